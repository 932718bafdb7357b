//! Session branches from several moments: the agent goes on from exactly there, with the files of then.

use ah_agent_tests::agents::Agent;
use ah_agent_tests::namespace::without_network;
use ah_agent_tests::server::Server;
use ah_agent_tests::world::{World, well};
use serde_json::Value;

use crate::timeline::{CLAUDE, CODEX, Moment, files, files_at, moments, two_prompts};

/// Other ways on: from after each tool, from the first turn's end, and from before the second prompt, which is the same place.
const BRANCHES: &str = "
branches:
  - {name: w, after: written, steps: [prompt: Not like that, say: Otherwise then.]}
  - {name: c, after: changed, steps: [prompt: That will do, say: Good.]}
  - {name: f, after: first, steps: [prompt: Something else, say: Something else it is., label: deep]}
";

fn goes_on_from_each(agent: Agent, story: &str) {
    if !agent.is_here() {
        return;
    }
    let world = World::new();
    agent.install(&world);
    let server = Server::start(&world, agent, &format!("{story}{BRANCHES}"));
    two_prompts(&world, agent, &server);
    let all = moments(&world);
    let said: Vec<&Moment> = all.iter().filter(|moment| !moment.kind().starts_with("session")).collect();
    let before = World::contents(&world.path("work"));

    let a1 = if agent == Agent::Codex { "a1\n" } else { "a1" };
    let both = [("a.txt", "a2"), ("b.txt", "b1")];
    // The moment, the instruction, the answer, the files.
    let ways = [
        (said[1], "Not like that", "Otherwise then.", files(&[("a.txt", a1)])),
        (said[2], "That will do", "Good.", files(&both)),
        (said[3], "Something else", "Something else it is.", files(&both)),
        (said[4], "Something else", "Something else it is.", files(&both)),
    ];
    for (number, (moment, instruction, answer, wanted)) in ways.into_iter().enumerate() {
        let name = format!("way-{number}");
        let mut branch = world.command("ah");
        branch.args(["session", "branch", moment.id(), "--name", &name, "-m", instruction, "--run"]);
        agent.ask(&mut branch, &world, &server);
        let output = branch.output().unwrap();
        well(&output);
        assert!(String::from_utf8_lossy(&output.stdout).contains(answer), "{output:?}");

        let branches = world.json(&["agent", "fs", "branches"]);
        let branches = branches["branches"].as_array().unwrap().clone();
        let path = |branch: &Value| branch["path"].as_str().unwrap().to_owned();
        let path = branches.iter().find(|branch| branch["name"] == *name).map(path).unwrap();
        let found = World::contents(path.as_ref());
        let found: std::collections::BTreeMap<_, _> =
            found.into_iter().map(|(at, what)| (at, what.split_once(' ').unwrap().1.to_owned())).collect();
        assert_eq!(found, wanted, "{moment:?}");
        assert_eq!(found, files_at(&world, moment));
    }
    assert_eq!(World::contents(&world.path("work")), before, "the workspace itself");
    // Every request was of the scenario: each conversation was cut at exactly its point, with the instruction after it.
    server.passed();
}

const LAST: &str = "  - prompt: Three\n  - say: Still the workspace's.\n";

/// Who goes on in the workspace with the last conversation there goes on with its own, and not with that of a branch which is shown there.
fn the_last_one_is_the_workspaces(agent: Agent, story: &str) {
    if !agent.is_here() {
        return;
    }
    let world = World::new();
    agent.install(&world);
    let server = Server::start(&world, agent, &format!("{story}{LAST}"));
    two_prompts(&world, agent, &server);
    moments(&world);
    let mut branch = world.command("ah");
    branch.args(["session", "branch", "@prompt", "--name", "retry"]);
    agent.ask(&mut branch, &world, &server);
    well(&branch.output().unwrap());
    let go_on: &[&str] = if agent == Agent::Codex { &["resume", "--last"] } else { &["--continue"] };
    let output = agent.prompt(&world, &server, go_on, "Three").output().unwrap();
    well(&output);
    assert!(String::from_utf8_lossy(&output.stdout).contains("Still the workspace's."), "{output:?}");
    server.passed();
}

/// What is made within `exec` of a branch is shown where the conversation knows its files, wherever the printed command is run: by such a path the agent writes into its branch.
fn knows_its_paths(agent: Agent) {
    if !agent.is_here() {
        return;
    }
    let world = World::new();
    agent.install(&world);
    // Others need mounts that come into the namespace of `exec`.
    world.ah(["config", "set", "mode", "worktree"]);
    let by_path = world.path("work/by-path.txt");
    let write = format!("tool: {{name: Write, input: {{file_path: {:?}, content: w}}}}", by_path.display().to_string());
    let steps = format!("[prompt: Go on, say: Gone on., prompt: By path, {write}, say: Written.]");
    let story = format!("{CLAUDE}branches:\n  - {{name: on, after: first, steps: {steps}}}\n");
    let server = Server::start(&world, agent, &story);
    two_prompts(&world, agent, &server);
    moments(&world);
    let ran = |program: &str, words: &[&str]| {
        let mut command = world.command(program);
        agent.ask(command.args(words), &world, &server);
        let output = command.output().unwrap();
        well(&output);
        String::from_utf8(output.stdout).unwrap()
    };
    ran("ah", &["session", "branch", "@prompt", "--name", "one", "-m", "Go on", "--run"]);
    let within = ["agent", "fs", "exec", "one", "--", "ah", "session", "branch", "@", "--name", "two", "-m", "By path"];
    let line = ran("ah", &within);
    // Without a screen.
    ran("sh", &["-c", &line.replacen(" --resume ", " -p --resume ", 1)]);
    let written = |folder: &str| world.path(folder).join("by-path.txt").exists();
    let places = ["state/branches/two", "state/branches/one", "work"];
    assert_eq!(places.map(written), [true, false, false], "{line}");
    server.passed();
}

#[test]
fn the_paths_that_mock_agent_knows() {
    without_network("branches::the_paths_that_mock_agent_knows", || knows_its_paths(Agent::Mock));
}

#[test]
fn the_paths_that_claude_code_knows() {
    without_network("branches::the_paths_that_claude_code_knows", || knows_its_paths(Agent::Claude));
}

#[test]
fn the_last_one_of_mock_agent() {
    without_network("branches::the_last_one_of_mock_agent", || the_last_one_is_the_workspaces(Agent::Mock, CLAUDE));
}

#[test]
fn the_last_one_of_claude_code() {
    without_network("branches::the_last_one_of_claude_code", || the_last_one_is_the_workspaces(Agent::Claude, CLAUDE));
}

#[test]
fn the_last_one_of_codex() {
    without_network("branches::the_last_one_of_codex", || the_last_one_is_the_workspaces(Agent::Codex, CODEX));
}

#[test]
fn mock_agent() {
    without_network("branches::mock_agent", || goes_on_from_each(Agent::Mock, CLAUDE));
}

#[test]
fn claude_code() {
    without_network("branches::claude_code", || goes_on_from_each(Agent::Claude, CLAUDE));
}

#[test]
fn codex() {
    without_network("branches::codex", || goes_on_from_each(Agent::Codex, CODEX));
}
