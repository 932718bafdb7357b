//! Going back in place: files and conversation to before the last prompt, on from there, and the files forward again.

use ah_agent_tests::agents::Agent;
use ah_agent_tests::namespace::without_network;
use ah_agent_tests::server::Server;
use ah_agent_tests::world::{World, well};

use crate::timeline::{CLAUDE, CODEX, moments, two_prompts};

const BRANCH: &str = "
branches:
  - {name: again, after: first, steps: [prompt: Something else, say: Something else it is.]}
";

fn back_and_on(agent: Agent, story: &str) {
    if !agent.is_here() {
        return;
    }
    let world = World::new();
    agent.install(&world);
    let server = Server::start(&world, agent, &format!("{story}{BRANCH}"));
    two_prompts(&world, agent, &server);
    moments(&world);
    let rewind = world.json(&["agent", "rewind"]);
    let found = (world.read("a.txt"), world.read("b.txt"), world.read("d/c.txt"));
    assert_eq!(found, (Some("a2".to_owned()), Some("b1".to_owned()), None), "{rewind:#}");
    let id = rewind["rewind"]["conversation"]["agent_session"].as_str().unwrap();
    let resume = if agent == Agent::Codex { ["resume", id] } else { ["--resume", id] };
    let answer = agent.prompt(&world, &server, &resume, "Something else").output().unwrap();
    well(&answer);
    assert!(String::from_utf8_lossy(&answer.stdout).contains("Something else it is."), "{answer:?}");
    // The second prompt's answer was asked for once, and not again.
    server.passed();
    world.ah(["agent", "fs", "undo"]);
    assert_eq!((world.read("a.txt"), world.read("d/c.txt").as_deref()), (None, Some("c1")));
}

#[test]
fn mock_agent() {
    without_network("rewind::mock_agent", || back_and_on(Agent::Mock, CLAUDE));
}

#[test]
fn claude_code() {
    without_network("rewind::claude_code", || back_and_on(Agent::Claude, CLAUDE));
}

#[test]
fn codex() {
    without_network("rewind::codex", || back_and_on(Agent::Codex, CODEX));
}
