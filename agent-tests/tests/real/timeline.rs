//! What `ah hook` makes of an agent's work: each moment with the files and the place in the conversation that it had.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ah_agent_tests::agents::Agent;
use ah_agent_tests::namespace::without_network;
use ah_agent_tests::server::Server;
use ah_agent_tests::world::{World, well};
use serde_json::Value;

/// Two prompts: the first edits by a tool and by the shell, the second by the shell.
pub(crate) const CLAUDE: &str = "
name: timeline
steps:
  - prompt: One
  - say: I write.
  - tool: {name: Write, input: {file_path: a.txt, content: 'a1'}}
  - label: written
  - tool: {name: Bash, input: {command: 'printf a2 > a.txt; printf b1 > b.txt', description: Change}}
  - label: changed
  - say: Changed.
  - label: first
  - prompt: Two
  - tool: {name: Bash, input: {command: 'rm a.txt; mkdir d; printf c1 > d/c.txt', description: Spoil}}
  - say: Spoilt.
";

pub(crate) const CODEX: &str = "
name: timeline
steps:
  - prompt: One
  - say: I write.
  - tool: {name: apply_patch, text: \"*** Begin Patch\\n*** Add File: a.txt\\n+a1\\n*** End Patch\\n\"}
  - label: written
  - tool: {name: exec_command, input: {cmd: 'printf a2 > a.txt; printf b1 > b.txt'}}
  - label: changed
  - say: Changed.
  - label: first
  - prompt: Two
  - tool: {name: exec_command, input: {cmd: 'rm a.txt; mkdir d; printf c1 > d/c.txt'}}
  - say: Spoilt.
";

/// A moment as the timeline tells it.
#[derive(Debug, Clone)]
pub(crate) struct Moment(pub(crate) Value);

impl Moment {
    pub(crate) fn id(&self) -> &str {
        self.0["id"].as_str().unwrap()
    }

    pub(crate) fn kind(&self) -> &str {
        self.0["kind"].as_str().unwrap()
    }
}

/// All moments, in order, once the captures behind them are done.
pub(crate) fn moments(world: &World) -> Vec<Moment> {
    let until = Instant::now() + Duration::from_secs(120);
    loop {
        let timeline = world.json(&["timeline"]);
        let groups = timeline["prompts"].as_array().unwrap();
        let of = |group: &Value| -> Vec<Value> {
            let prompt = group["prompt"].is_object().then(|| group["prompt"].clone());
            prompt.into_iter().chain(group["moments"].as_array().unwrap().clone()).collect()
        };
        let mut all: Vec<Moment> = groups.iter().flat_map(of).map(Moment).collect();
        all.sort_by_key(|moment| moment.0["seq"].as_u64());
        let open = all.iter().find(|moment| moment.0["snapshot"].is_null() && moment.0["reason"].is_null());
        match open {
            None => return all,
            Some(open) => assert!(Instant::now() < until, "never captured: {open:?}"),
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The files as they are at a moment, by a view.
pub(crate) fn files_at(world: &World, moment: &Moment) -> BTreeMap<PathBuf, String> {
    let view = world.ah(["agent", "fs", "seek", moment.id()]);
    let found = World::contents(view.as_ref());
    world.ah(["agent", "fs", "release", &view]);
    // A view has no write bits where nothing keeps one from writing.
    found
        .into_iter()
        .map(|(path, what)| (path, what.split_once(' ').map_or(what.clone(), |(_, text)| text.to_owned())))
        .collect()
}

/// Files and their contents.
pub(crate) fn files(wanted: &[(&str, &str)]) -> BTreeMap<PathBuf, String> {
    let mut files: BTreeMap<PathBuf, String> = BTreeMap::new();
    for (name, content) in wanted {
        if let Some((folder, _)) = name.split_once('/') {
            files.insert(folder.into(), "folder".to_owned());
        }
        files.insert((*name).into(), format!("{content:?}"));
    }
    files
}

/// A position is real: so many lines end there, and the last that has an id has that one.
fn position_is_real(agent: Agent, moment: &Moment) {
    let position = &moment.0["transcript"];
    let text = fs::read(position["file"].as_str().unwrap()).unwrap();
    let before = &text[..usize::try_from(position["offset"].as_u64().unwrap()).unwrap()];
    let lines: Vec<&[u8]> = before.split_inclusive(|byte| *byte == b'\n').collect();
    assert!(before.is_empty() || before.ends_with(b"\n"), "{moment:?}");
    assert_eq!(lines.len() as u64, position["line"].as_u64().unwrap(), "{moment:?}");
    if let Some(prompt) = moment.0["prompt"].as_str() {
        // The place is before the prompt, whoever writes down first that it came.
        let said = |line: &&&[u8]| serde_json::from_slice::<Value>(line).unwrap()["message"]["content"] == prompt;
        assert_eq!(lines.iter().filter(said).count(), 0, "{moment:?}");
    }
    // Some lines have no id.
    let lines = lines.iter().map(|line| serde_json::from_slice::<Value>(line).unwrap());
    let last = lines.filter_map(|line| line["uuid"].as_str().map(ToOwned::to_owned)).next_back();
    if agent != Agent::Codex {
        assert_eq!(position["uuid"].as_str(), last.as_deref(), "{moment:?}");
    }
}

/// Runs both prompts of the story with hooks installed.
pub(crate) fn two_prompts(world: &World, agent: Agent, server: &Server) {
    world.ah(["agent", "hooks", "install", agent.name()]);
    let go_on: &[&str] = if agent == Agent::Codex { &["resume", "--last"] } else { &["--continue"] };
    well(&agent.prompt(world, server, &[], "One").output().unwrap());
    well(&agent.prompt(world, server, go_on, "Two").output().unwrap());
}

fn each_moment_is_as_it_was(agent: Agent, story: &str) {
    if !agent.is_here() {
        return;
    }
    let world = World::new();
    agent.install(&world);
    let server = Server::start(&world, agent, story);
    two_prompts(&world, agent, &server);
    server.passed();

    let all = moments(&world);
    let kinds: Vec<&str> = all.iter().map(Moment::kind).filter(|kind| !kind.starts_with("session")).collect();
    assert_eq!(kinds, ["prompt", "tool", "tool", "stop", "prompt", "tool", "stop"], "{all:#?}");
    let about: Vec<&str> = all.iter().filter_map(|moment| moment.0["tool"]["about"].as_str()).collect();
    let commands = ["printf a2 > a.txt; printf b1 > b.txt", "rm a.txt; mkdir d; printf c1 > d/c.txt"];
    assert_eq!(about, ["a.txt", commands[0], commands[1]], "{all:#?}");
    let a1 = if agent == Agent::Codex { "a1\n" } else { "a1" };
    let (first, second) = (files(&[("a.txt", "a2"), ("b.txt", "b1")]), files(&[("b.txt", "b1"), ("d/c.txt", "c1")]));
    let wanted = [
        files(&[]),
        files(&[("a.txt", a1)]),
        first.clone(),
        first.clone(),
        first.clone(),
        second.clone(),
        second.clone(),
    ];
    let said: Vec<&Moment> = all.iter().filter(|moment| !moment.kind().starts_with("session")).collect();
    for (moment, wanted) in said.iter().zip(wanted) {
        assert_eq!(files_at(&world, moment), wanted, "{moment:?}");
        assert_ne!(moment.0["inexact"], true, "{moment:?}");
        position_is_real(agent, moment);
    }
    assert_eq!((&said[0].0["prompt"], &said[4].0["prompt"]), (&"One".into(), &"Two".into()));

    // Back, and forward again.
    world.ah(["agent", "fs", "restore", said[1].id()]);
    assert_eq!((world.read("a.txt").as_deref(), world.read("b.txt"), world.read("d/c.txt")), (Some(a1), None, None));
    world.ah(["agent", "fs", "undo"]);
    assert_eq!((world.read("a.txt"), world.read("d/c.txt").as_deref()), (None, Some("c1")));
}

const CHECKED: &str = "
name: checked
steps:
  - prompt: One
  - tool: {name: Write, input: {file_path: a.txt, content: 'a1'}}
  - check:
      files: {a.txt: {is: a1}}
      ah:
        - {run: [timeline], at: /events, where: {type: moment}, each: [kind, [session-start, prompt, tool]]}
        - {run: [agent, fs, snapshots], at: /snapshots, at_least: 1}
        - {run: [agent, fs, branches], at: /branches, count: 0}
  - say: Done.
";

#[test]
fn a_scenario_checks_what_ah_says() {
    without_network("timeline::a_scenario_checks_what_ah_says", || {
        let (world, agent) = (World::new(), Agent::Mock);
        agent.install(&world);
        world.ah(["agent", "hooks", "install", agent.name()]);
        let server = Server::start(&world, agent, CHECKED);
        well(&agent.prompt(&world, &server, &[], "One").output().unwrap());
        // The same where it is not so.
        let server = Server::start(&world, agent, &CHECKED.replace("count: 0}", "count: 1}\n      within_ms: 100"));
        let refused = agent.prompt(&world, &server, &[], "One").output().unwrap();
        assert_eq!(refused.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&refused.stderr).contains("0 of 0 at /branches fit"), "{refused:?}");
    });
}

#[test]
fn mock_agent() {
    without_network("timeline::mock_agent", || each_moment_is_as_it_was(Agent::Mock, CLAUDE));
}

#[test]
fn claude_code() {
    without_network("timeline::claude_code", || each_moment_is_as_it_was(Agent::Claude, CLAUDE));
}

#[test]
fn codex() {
    without_network("timeline::codex", || each_moment_is_as_it_was(Agent::Codex, CODEX));
}
