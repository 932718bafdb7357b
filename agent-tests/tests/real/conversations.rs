//! What the other tests stand on: the real agents take the mock server for their model, whole, interrupted and resumed.

use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};

use ah_agent_tests::agents::Agent;
use ah_agent_tests::namespace::without_network;
use ah_agent_tests::server::Server;
use ah_agent_tests::world::{World, well};
use serde_json::json;

use crate::timeline::{Moment, files, files_at, moments};

const CLAUDE: &str = include_str!("../../../mocks/scenarios/greeting.yaml");
const CODEX: &str = include_str!("../../../mocks/scenarios/codex.yaml");

/// A scenario without its branches: all of it is to be asked for.
fn main_way(scenario: &str) -> &str {
    scenario.split("branches:").next().unwrap()
}

#[test]
fn claude_code_edits_and_goes_on() {
    without_network("conversations::claude_code_edits_and_goes_on", || {
        edits_and_goes_on(Agent::Claude, main_way(CLAUDE), &["--continue"]);
    });
}

#[test]
fn codex_edits_and_goes_on() {
    without_network("conversations::codex_edits_and_goes_on", || {
        edits_and_goes_on(Agent::Codex, main_way(CODEX), &["resume", "--last"]);
    });
}

fn edits_and_goes_on(agent: Agent, scenario: &str, go_on: &[&str]) {
    if !agent.is_here() {
        return;
    }
    let world = World::new();
    agent.install(&world);
    let server = Server::start(&world, agent, scenario);
    let first = agent.prompt(&world, &server, &[], "Make a greeting").output().unwrap();
    well(&first);
    assert!(String::from_utf8_lossy(&first.stdout).contains("Both are there."), "{first:?}");
    assert_eq!(
        (world.read("hello.txt").as_deref(), world.read("loud.txt").as_deref()),
        (Some("hello\n"), Some("HELLO\n"))
    );
    well(&agent.prompt(&world, &server, go_on, "Remove the quiet one").output().unwrap());
    assert_eq!(world.read("hello.txt"), None);
    server.passed();
}

const INTERRUPTED: &str = "
name: interrupted
steps:
  - prompt: One
  - say: I begin.
  - tool: {name: Bash, input: {command: 'touch begun; sleep 600', description: Wait}}
  - prompt: {text: Two, after_interrupt: true}
  - say: Good.
";

#[test]
fn claude_code_is_interrupted_and_resumed() {
    without_network("conversations::claude_code_is_interrupted_and_resumed", || {
        if !Agent::Claude.is_here() {
            return;
        }
        let world = World::new();
        Agent::Claude.install(&world);
        let server = Server::start(&world, Agent::Claude, INTERRUPTED);
        world.ah(["agent", "hooks", "install", "claude"]);
        let mut running = Agent::Claude.prompt(&world, &server, &[], "One").spawn().unwrap();
        world.await_file("begun");
        let pid = rustix::process::Pid::from_child(&running);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        let begun = std::time::Instant::now();
        running.wait().unwrap();
        assert!(begun.elapsed() < Duration::from_secs(300), "it waited for its command");
        well(&Agent::Claude.prompt(&world, &server, &["--continue"], "Two").output().unwrap());
        server.passed();
        // What the interrupted tool had done is there when the next prompt comes.
        let all = moments(&world);
        let prompts: Vec<&Moment> = all.iter().filter(|moment| moment.kind() == "prompt").collect();
        assert_eq!(prompts.len(), 2, "{all:#?}");
        assert_eq!((files_at(&world, prompts[0]), files_at(&world, prompts[1])), (files(&[]), files(&[("begun", "")])));
    });
}

const TROUBLE: &str = "
name: trouble
steps:
  - prompt: One
  - fault: {status: 529, retry_after: 0}
  - fault: {status: 429, retry_after: 0, headers: {anthropic-ratelimit-unified-reset: '1'}}
  - pace_ms: 30
  - say: At last.
  - prompt: Find out
  - tool: {name: Agent, input: {description: Look, prompt: Look around here, subagent_type: general-purpose}, expect: {contains: I saw it}}
  - say: They saw it.
conversations:
  - name: helper
    steps:
      - prompt: {contains: Look around here}
      - tool: {name: Bash, input: {command: 'echo seen > seen.txt', description: Look}}
      - say: I saw it.
";

#[test]
fn claude_code_meets_errors_and_sends_a_subagent() {
    without_network("conversations::claude_code_meets_errors_and_sends_a_subagent", || {
        if !Agent::Claude.is_here() {
            return;
        }
        let world = World::new();
        Agent::Claude.install(&world);
        let server = Server::start(&world, Agent::Claude, TROUBLE);
        world.ah(["agent", "hooks", "install", "claude"]);
        well(&Agent::Claude.prompt(&world, &server, &[], "One").output().unwrap());
        assert_eq!(server.report()["faults"], 2);
        well(&Agent::Claude.prompt(&world, &server, &["--continue"], "Find out").output().unwrap());
        assert_eq!(world.read("seen.txt").as_deref(), Some("seen\n"));
        server.passed();
        let all = moments(&world);
        let sub: Vec<&Moment> = all.iter().filter(|moment| moment.0["sub_agent"].is_string()).collect();
        assert_eq!(sub.first().map(|moment| moment.kind()), Some("tool"), "{all:#?}");
        assert_eq!(files_at(&world, sub[0]), files(&[("seen.txt", "seen\n")]));
    });
}

const REFUSED: &str = "
name: refused
steps:
  - prompt: One
  - tool: {name: Bash, input: {command: 'touch never', description: Touch}, expect: {error: true}}
  - pace_ms: 200
  - tool: {name: Write, input: {file_path: one.txt, content: one}}
  - say: Good.
";

#[test]
fn what_claude_code_does_after_a_refused_tool_has_exact_snapshots() {
    without_network("conversations::what_claude_code_does_after_a_refused_tool_has_exact_snapshots", || {
        if !Agent::Claude.is_here() {
            return;
        }
        let world = World::new();
        Agent::Claude.install(&world);
        let server = Server::start(&world, Agent::Claude, REFUSED);
        world.ah(["agent", "hooks", "install", "claude"]);
        // Without a person whom it could ask, it refuses by itself what nobody has allowed.
        // It writes down that it did while the model thinks.
        let more = ["--permission-mode", "default", "--allowedTools=Write"];
        well(&Agent::Claude.prompt(&world, &server, &more, "One").output().unwrap());
        assert_eq!((world.read("never"), world.read("one.txt").as_deref()), (None, Some("one")));
        server.passed();
        let all = moments(&world);
        let tools: Vec<&Moment> = all.iter().filter(|moment| moment.kind() == "tool").collect();
        assert_eq!(tools.len(), 1, "{all:#?}");
        assert!(tools[0].0["inexact"].is_null(), "{all:#?}");
        assert_eq!(files_at(&world, tools[0]), files(&[("one.txt", "one")]));
    });
}

const SENT: &str = "
name: sent
steps:
  - prompt: One
  - tool: {name: multi_agent_v1/spawn_agent, input: {message: Look around here}}
  - tool: {name: exec_command, input: {cmd: 'until [ -e seen.txt ]; do sleep 0.1; done', yield_time_ms: 30000}}
  - say: They saw it.
conversations:
  - name: helper
    steps:
      - prompt: {contains: Look around here}
      - pace_ms: 500
      - tool: {name: exec_command, input: {cmd: 'echo one > one.txt'}}
      - tool: {name: exec_command, input: {cmd: 'echo seen > seen.txt; sleep 600', yield_time_ms: 30000}}
      - say: I saw it.
";

#[test]
fn codex_sends_a_subagent_whose_moments_are_in_the_conversation_that_sent_it() {
    without_network("conversations::codex_sends_a_subagent_whose_moments_are_in_the_conversation_that_sent_it", || {
        if !Agent::Codex.is_here() {
            return;
        }
        let world = World::new();
        Agent::Codex.install(&world);
        let server = Server::start(&world, Agent::Codex, SENT);
        world.ah(["agent", "hooks", "install", "codex"]);
        // The sub-agent's answer would be told the other one, sooner or later, so it comes to none.
        well(&Agent::Codex.prompt(&world, &server, &[], "One").output().unwrap());
        let all = moments(&world);
        let prompts: Vec<&Moment> = all.iter().filter(|moment| moment.kind() == "prompt").collect();
        assert_eq!(prompts.len(), 1, "what a sub-agent is told is no prompt: {all:#?}");
        let sub: Vec<&Moment> = all.iter().filter(|moment| moment.0["sub_agent"].is_string()).collect();
        assert_eq!(sub.first().map(|moment| moment.kind()), Some("tool"), "{all:#?}");
        for moment in &all {
            let file = |moment: &Moment| moment.0["transcript"]["file"].clone();
            assert_eq!(file(moment), file(prompts[0]), "{all:#?}");
        }
        // To start it, and what it does by itself later (it thinks for a while), are no reasons for others not to be exact.
        let spawned = all.iter().find(|moment| moment.0["tool"]["name"] == "spawn_agent").unwrap();
        assert!(spawned.0["inexact"].is_null(), "{all:#?}");
    });
}

const BEHIND: &str = "
name: behind
steps:
  - prompt: One
  - tool: {name: Bash, input: {command: 'until [ -e go.txt ]; do sleep 0.1; done', description: Wait, run_in_background: true}}
  - say: It waits.
  - prompt: {contains: task-notification}
  - say: It is over.
";

#[test]
fn claude_code_is_told_of_a_command_that_ended_which_is_no_prompt() {
    without_network("conversations::claude_code_is_told_of_a_command_that_ended_which_is_no_prompt", || {
        if !Agent::Claude.is_here() {
            return;
        }
        let world = World::new();
        Agent::Claude.install(&world);
        let server = Server::start(&world, Agent::Claude, BEHIND);
        world.ah(["agent", "hooks", "install", "claude"]);
        let mut command = world.command("claude");
        command.args(["-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose"]);
        Agent::Claude.ask(&mut command, &world, &server);
        let mut running = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        // It waits for more as long as more may come.
        let mut said = running.stdin.take().unwrap();
        writeln!(said, "{}", json!({"type": "user", "message": {"role": "user", "content": "One"}})).unwrap();
        let until = |what: &str, is: &dyn Fn() -> bool| {
            let end = Instant::now() + Duration::from_secs(120);
            while !is() {
                assert!(Instant::now() < end, "{what}: never");
                std::thread::sleep(Duration::from_millis(50));
            }
        };
        until("the first turn was over", &|| moments(&world).iter().any(|moment| moment.kind() == "stop"));
        std::fs::write(world.path("work/go.txt"), "").unwrap();
        until("it answered", &|| server.report()["unasked"] == json!([]));
        drop(said);
        assert!(running.wait().unwrap().success());
        server.passed();
        let all = moments(&world);
        let prompts: Vec<&Moment> = all.iter().filter(|moment| moment.kind() == "prompt").collect();
        assert_eq!(prompts.len(), 1, "{all:#?}");
        assert_eq!(all.iter().filter(|moment| moment.kind() == "stop").count(), 2, "{all:#?}");
    });
}

const NOT_AWAITED: &str = "
name: not-awaited
steps:
  - prompt: One
  - tool: {name: exec_command, input: {cmd: 'until [ -e go.txt ]; do sleep 0.1; done', yield_time_ms: 250}, expect: {contains: running with session}}
  - tool: {name: exec_command, input: {cmd: 'echo other > other.txt'}}
  - say: The first one goes on.
";

#[test]
fn what_codex_does_beside_a_command_that_goes_on_is_not_exact() {
    without_network("conversations::what_codex_does_beside_a_command_that_goes_on_is_not_exact", || {
        if !Agent::Codex.is_here() {
            return;
        }
        let world = World::new();
        Agent::Codex.install(&world);
        let server = Server::start(&world, Agent::Codex, NOT_AWAITED);
        world.ah(["agent", "hooks", "install", "codex"]);
        well(&Agent::Codex.prompt(&world, &server, &[], "One").output().unwrap());
        server.passed();
        let all = moments(&world);
        let other: Vec<&Moment> = all.iter().filter(|moment| ["tool", "stop"].contains(&moment.kind())).collect();
        assert!(other.len() >= 2, "{all:#?}");
        for moment in &other[..2] {
            assert!(moment.0["reason"].as_str().is_some_and(|reason| reason.contains("Bash")), "{all:#?}");
        }
    });
}
