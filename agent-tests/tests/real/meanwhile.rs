//! What Claude Code does without being asked at just that moment: it reads what was typed while it was at work, goes on by what was scheduled, and goes
//! to work elsewhere.

use std::fs;
use std::io::Write;
use std::process::{Child, ChildStdin, Stdio};
use std::time::Duration;

use ah_agent_tests::agents::Agent;
use ah_agent_tests::namespace::without_network;
use ah_agent_tests::server::Server;
use ah_agent_tests::world::{World, well};

use crate::terminal::{at_home, until, until_it_stopped};
use crate::timeline::{Moment, files, files_at, moments};

/// It, on a terminal, told `One`.
struct Terminal {
    running: Child,
    keys: ChildStdin,
}

impl Terminal {
    fn start(world: &World, server: &Server) -> Self {
        let mut command = world.command("script");
        command.args(["-qfec", "stty rows 40 cols 120; exec claude One", "/dev/null"]);
        command.env("TERM", "xterm-256color").stdin(Stdio::piped()).stdout(Stdio::null());
        Agent::Claude.ask(&mut command, world, server);
        let mut running = command.spawn().unwrap();
        let keys = running.stdin.take().unwrap();
        Self { running, keys }
    }

    fn press(&mut self, text: &str) {
        self.keys.write_all(text.as_bytes()).and_then(|()| self.keys.flush()).unwrap_or_default();
    }

    fn type_line(&mut self, text: &str) {
        self.press(text);
        std::thread::sleep(Duration::from_secs(1));
        self.press("\r");
    }

    /// Leaves it, once it has answered all.
    fn leave(mut self, world: &World, server: &Server) {
        until_it_stopped(world, server);
        std::thread::sleep(Duration::from_secs(1));
        self.type_line("/exit");
        let Self { running, keys } = &mut self;
        let press = || keys.write_all(b"\x03\x03").and_then(|()| keys.flush()).unwrap_or_default();
        until("it ended", || running.try_wait().unwrap().is_some(), press);
    }
}

/// The moments but those of the session's beginning and end.
fn within(world: &World) -> Vec<Moment> {
    let mut all = moments(world);
    all.retain(|moment| !moment.kind().starts_with("session"));
    all
}

/// Plays a story.
fn play(story: &str, keys: impl FnOnce(&World, &mut Terminal)) -> World {
    let world = World::new();
    Agent::Claude.install(&world);
    at_home(&world);
    world.ah(["agent", "hooks", "install", "claude"]);
    let server = Server::start(&world, Agent::Claude, story);
    let mut terminal = Terminal::start(&world, &server);
    keys(&world, &mut terminal);
    terminal.leave(&world, &server);
    server.passed();
    world
}

/// Its transcript comes a tenth of a second late; no model is as quick as that.
const MEANWHILE: &str = "
name: meanwhile
aside: A title
steps:
  - prompt: One
  - tool: {name: Bash, input: {command: 'touch begun; sleep 8; printf 1 > one.txt', description: Wait}}
  - pace_ms: 200
  - tool: {name: Write, input: {file_path: two.txt, content: '2'}}
  - say: Good.
";

#[test]
fn typed_while_it_is_at_work() {
    without_network("meanwhile::typed_while_it_is_at_work", || {
        if !Agent::Claude.is_here() {
            return;
        }
        let world = play(MEANWHILE, |world, terminal| {
            until("the command ran", || world.read("begun").is_some(), || {});
            std::thread::sleep(Duration::from_secs(1));
            terminal.type_line("Two please");
        });
        let all = within(&world);
        let kinds: Vec<&str> = all.iter().map(Moment::kind).collect();
        assert_eq!(kinds, ["prompt", "tool", "prompt", "tool", "stop"], "{all:#?}");
        assert_eq!(all[2].0["prompt"], "Two please");
        let first = files(&[("begun", ""), ("one.txt", "1")]);
        assert_eq!(files_at(&world, &all[2]), first);
        // Back behind what was typed last, and not behind all.
        let rewind = world.json(&["agent", "rewind"]);
        assert_eq!((world.read("one.txt").as_deref(), world.read("two.txt")), (Some("1"), None), "{rewind:#}");
        let copy = rewind["rewind"]["conversation"]["transcript"].as_str().unwrap();
        let copy = fs::read_to_string(copy).unwrap();
        assert!(copy.contains("one.txt") && !copy.contains("queued_command"), "{copy}");
    });
}

const SCHEDULED: &str = "
name: scheduled
aside: A title
steps:
  - prompt: One
  - tool: {name: CronCreate, input: {cron: '* * * * *', prompt: check the build, recurring: false}}
  - tool: {name: Write, input: {file_path: a.txt, content: 'a1'}}
  - say: Done.
  - prompt: check the build
  - tool: {name: Write, input: {file_path: b.txt, content: 'b1'}}
  - say: Checked.
";

#[test]
fn by_what_was_scheduled() {
    without_network("meanwhile::by_what_was_scheduled", || {
        if !Agent::Claude.is_here() {
            return;
        }
        let world = play(SCHEDULED, |world, _| until("the time came", || world.read("b.txt").is_some(), || {}));
        // It is told once the agent has written the prompt down, which may be late.
        let by_agent = || moments(&world).iter().any(|moment| moment.0["by_agent"] == true);
        until("what says that nobody typed it", by_agent, || {});
        let all = within(&world);
        let kinds: Vec<&str> = all.iter().map(Moment::kind).collect();
        assert_eq!(kinds, ["prompt", "tool", "tool", "stop", "prompt", "tool", "stop"], "{all:#?}");
        let by_agent: Vec<bool> = all.iter().map(|moment| moment.0["by_agent"] == true).collect();
        assert_eq!(by_agent, [false, false, false, false, true, false, false], "{all:#?}");
        // To that one by its name, then to what a person typed.
        let rewind = world.json(&["agent", "rewind", all[4].id()]);
        assert_eq!((world.read("a.txt").as_deref(), world.read("b.txt")), (Some("a1"), None), "{rewind:#}");
        let copy = rewind["rewind"]["conversation"]["transcript"].as_str().unwrap();
        let said = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["message"]["content"].clone();
        let copy = fs::read_to_string(copy).unwrap();
        assert!(copy.lines().all(|line| said(line) != "check the build"), "{copy}");
        world.ah(["agent", "rewind"]);
        assert_eq!(world.read("a.txt"), None);
    });
}

const ELSEWHERE: &str = "
name: elsewhere
aside: A title
steps:
  - prompt: One
  - tool: {name: EnterWorktree, input: {name: feat}}
  - tool: {name: Bash, input: {command: 'printf a1 > a.txt', description: Write}}
  - say: Done.
";

#[test]
fn in_a_work_tree_of_its_own() {
    without_network("meanwhile::in_a_work_tree_of_its_own", || {
        let agent = Agent::Claude;
        if !agent.is_here() {
            return;
        }
        let world = World::new();
        agent.install(&world);
        fs::write(world.path("work/.gitignore"), ".claude/worktrees/\n").unwrap();
        for arguments in [&["init", "-q"][..], &["add", "."], &["commit", "-qm", "one"]] {
            let mut git = world.command("git");
            git.args(["-c", "user.name=a", "-c", "user.email=a@example.org"]).args(arguments);
            well(&git.output().unwrap());
        }
        world.ah(["agent", "hooks", "install", "claude"]);
        let server = Server::start(&world, agent, ELSEWHERE);
        well(&agent.prompt(&world, &server, &[], "One").output().unwrap());
        server.passed();
        let all = moments(&world);
        let at = world.path("work/.claude/worktrees/feat");
        let bash = all.iter().find(|moment| moment.0["tool"]["name"] == "Bash").unwrap();
        assert_eq!(bash.0["elsewhere"].as_str(), at.to_str(), "{all:#?}");
        let mut told = String::new();
        let wanted = format!("no files changed here, at work in {}", at.display());
        let is_told = || {
            told = world.ah(["timeline"]);
            told.contains(&wanted)
        };
        until("what it did elsewhere is told", is_told, || {});
    });
}
