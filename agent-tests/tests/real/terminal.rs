//! Claude Code on a terminal, as a person has it: recorded, interrupted by Ctrl-C in the middle of a command, told something else, and left.
//! Nothing is installed: the recorder gives it the hooks for that run.

use std::fs;
use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};

use ah_agent_tests::agents::Agent;
use ah_agent_tests::namespace::without_network;
use ah_agent_tests::server::Server;
use ah_agent_tests::world::World;
use serde_json::json;

use crate::timeline::{Moment, files, files_at, moments};

const STORY: &str = "
name: terminal
aside: A title
steps:
  - prompt: One
  - say: I begin.
  - tool: {name: Bash, input: {command: 'touch begun; sleep 600', description: Wait}}
  - prompt: {text: Two, after_interrupt: true}
  - tool: {name: Write, input: {file_path: a.txt, content: 'a1'}}
  - say: Good.
";

/// Waits until something is so; meanwhile does something every two seconds.
pub(crate) fn until(what: &str, mut is: impl FnMut() -> bool, mut meanwhile: impl FnMut()) {
    let (end, mut next) = (Instant::now() + Duration::from_secs(120), Instant::now() + Duration::from_secs(2));
    while !is() {
        assert!(Instant::now() < end, "{what}: never");
        std::thread::sleep(Duration::from_millis(50));
        if Instant::now() > next {
            next += Duration::from_secs(2);
            meanwhile();
        }
    }
}

/// Waits until it has answered all, and its hook has told so. (The last answer is asked for before it is shown.)
pub(crate) fn until_it_stopped(world: &World, server: &Server) {
    until("it answered", || server.report()["unasked"] == json!([]), || {});
    until("it stopped", || moments(world).last().is_some_and(|moment| moment.kind() == "stop"), || {});
}

/// What it asks a person at its very first start has been answered.
pub(crate) fn at_home(world: &World) {
    let trusted = json!({world.path("work").to_str().unwrap(): {"hasTrustDialogAccepted": true}});
    let config = json!({"hasCompletedOnboarding": true, "theme": "dark", "projects": trusted,
        "customApiKeyResponses": {"approved": ["any"], "rejected": []}});
    fs::write(world.path("home/.claude.json"), config.to_string()).unwrap();
    let settings =
        json!({"permissions": {"defaultMode": "bypassPermissions"}, "skipDangerousModePermissionPrompt": true});
    fs::write(world.path("home/.claude/settings.json"), settings.to_string()).unwrap();
}

fn interrupted(world: &World) -> bool {
    let grep = world
        .command("grep")
        .args(["-rqs", "Request interrupted by user"])
        .arg(world.path("home/.claude/projects"))
        .status();
    grep.is_ok_and(|status| status.success())
}

#[test]
fn recorded_interrupted_and_told_something_else() {
    without_network("terminal::recorded_interrupted_and_told_something_else", || {
        if !Agent::Claude.is_here() {
            return;
        }
        let world = World::new();
        Agent::Claude.install(&world);
        at_home(&world);
        let server = Server::start(&world, Agent::Claude, STORY);
        // `script` gives it the terminal that a test has not.
        let mut command = world.command("script");
        command.args(["-qfec", "stty rows 40 cols 120; exec ah agent record -- claude One", "/dev/null"]);
        command.env("TERM", "xterm-256color").stdin(Stdio::piped()).stdout(Stdio::null());
        Agent::Claude.ask(&mut command, &world, &server);
        let mut running = command.spawn().unwrap();
        let mut keys = running.stdin.take().unwrap();
        let mut press = |text: &str| keys.write_all(text.as_bytes()).and_then(|()| keys.flush()).unwrap_or_default();

        until("the command ran", || world.read("begun").is_some(), || {});
        std::thread::sleep(Duration::from_secs(1));
        press("\x03");
        until("it was interrupted", || interrupted(&world), || {});
        std::thread::sleep(Duration::from_secs(1));
        press("Two");
        std::thread::sleep(Duration::from_secs(1));
        press("\r");
        until("it was told", || world.read("a.txt").is_some(), || press("\r"));
        until_it_stopped(&world, &server);
        std::thread::sleep(Duration::from_secs(1));
        press("/exit");
        std::thread::sleep(Duration::from_secs(1));
        press("\r");
        until("it ended", || running.try_wait().unwrap().is_some(), || press("\x03\x03"));
        server.passed();

        let all = moments(&world);
        let of_agent: Vec<&Moment> = all.iter().filter(|moment| !moment.kind().starts_with("session")).collect();
        let kinds: Vec<&str> = of_agent.iter().map(|moment| moment.kind()).collect();
        assert_eq!(kinds, ["prompt", "prompt", "tool", "stop"], "{all:#?}");
        assert_eq!(files_at(&world, of_agent[1]), files(&[("begun", "")]));
        assert_eq!(files_at(&world, of_agent[2]), files(&[("a.txt", "a1"), ("begun", "")]));
        // Each has a place in the recording, which has what was to be seen.
        let places: Vec<u64> =
            of_agent.iter().map(|moment| moment.0["recording"]["offset"].as_u64().unwrap()).collect();
        assert!(places.is_sorted() && places[0] < places[3], "{places:?}");
        let shown = world.command("ah").args(["agent", "replay"]).output().unwrap().stdout;
        assert!(String::from_utf8_lossy(&shown).contains("Interrupted"), "what was shown is not in the recording");
    });
}
