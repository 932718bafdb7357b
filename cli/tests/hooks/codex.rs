//! What Codex does otherwise than Claude Code, by the events that it sends.

use serde_json::json;

use crate::agent::{Agent, cat, kinds, settled, text};
use crate::support::{Ran, World};

fn codex<'a>(world: &'a World, id: &str) -> Agent<'a> {
    let mut agent = Agent::claude(world, id);
    agent.name = "codex";
    agent
}

#[test]
fn a_sub_agents_moments_are_in_the_conversation_that_sent_it() {
    let world = World::new();
    world.write("f", "0");
    let agent = codex(&world, "s1");
    std::fs::write(agent.transcript(), "{}\n").unwrap();
    std::fs::write(world.path("home/sub.jsonl"), "{}\n{}\n").unwrap();
    agent.start();
    agent.prompt("Send somebody");
    let running = agent.before("spawn_agent");
    let of_it = |more: serde_json::Value| {
        let mut members = json!({"agent_id": "a1", "turn_id": "t2", "transcript_path": world.path("home/sub.jsonl")});
        members.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        members
    };
    agent.call("UserPromptSubmit", of_it(json!({"prompt": "Look around"})));
    agent.call("PreToolUse", of_it(json!({"tool_name": "Bash", "tool_use_id": "c1"})));
    world.write("f", "1");
    agent.call("PostToolUse", of_it(json!({"tool_name": "Bash", "tool_use_id": "c1"})));
    agent.after("spawn_agent", &running);
    let moments = settled(&world);
    assert_eq!(kinds(&moments), ["session-start", "prompt", "tool", "tool"], "{moments:#?}");
    for moment in &moments {
        assert_eq!(moment["transcript"]["file"], json!(agent.transcript()), "{moments:#?}");
        assert!(moment["inexact"].is_null(), "{moments:#?}");
    }
    assert_eq!(moments[2]["sub_agent"], "a1");
}

/// A command that runs longer than the model waits for it: the model gets what there is, and goes on; nobody calls until the command has ended.
#[test]
fn a_command_that_the_model_waits_for_no_longer_makes_moments_inexact_until_it_ends() {
    let world = World::new();
    world.write("f", "0");
    let agent = codex(&world, "s1");
    let mut lines = String::new();
    agent.start();
    agent.prompt("Do it");
    // Other tests' processes are children of this one, too: those that begin beside the tool count as its, as long as they run.
    for round in 0..20 {
        let begun = settled(&world).len();
        std::fs::write(agent.transcript(), &lines).unwrap();
        let waited_for = agent.before("Bash");
        // A child of this process, which is the agent here.
        let mut command = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let output = "Chunk ID: fa9f71\nWall time: 1.0 seconds\nProcess running with session ID 7\nOutput:\n";
        let line = json!({"type": "response_item", "payload": {"type": "function_call_output", "call_id": waited_for, "output": output}});
        lines += &format!("{line}\n");
        std::fs::write(agent.transcript(), &lines).unwrap();
        agent.writes("f", "1");
        agent.stop();
        let with = settled(&world);
        command.kill().unwrap();
        command.wait().unwrap();
        agent.after("Bash", &waited_for);
        agent.writes("f", "2");
        let moments = settled(&world);
        assert_eq!((with.len(), moments.len()), (begun + 2, begun + 4), "round {round}");
        assert!(with[begun..].iter().all(|moment| moment["inexact"] == true), "{with:#?}");
        let after = moments.last().unwrap();
        if after["inexact"].is_null() {
            assert_eq!(cat(&world, text(after, "id"), "f").as_deref(), Some("2"));
            return;
        }
    }
    panic!("no moment is exact any more");
}

/// It serves all sessions, and goes on when they have ended, or ends while they are taken up by another one.
#[test]
fn the_server_in_the_background_is_no_sessions_process() {
    let world = World::new();
    world.write("f", "1");
    // A shell under another name counts as an agent.
    let shell = world.path("codex");
    std::fs::copy("/bin/sh", &shell).unwrap();
    let call = |session: &str, words: &[&str]| {
        let event = json!({"session_id": session, "cwd": world.root(), "hook_event_name": "SessionStart"});
        std::fs::write(world.path("event"), event.to_string()).unwrap();
        let script =
            format!("'{}' hook codex < '{}'; true", crate::support::ah().display(), world.path("event").display());
        let mut command = std::process::Command::new(&shell);
        command.args(["-c", &script]).args(words).env_clear();
        command.env("AH_HOME", world.path("state")).env("HOME", world.path("home")).env("AH_HELPER_SOCKET", "");
        let ran = Ran::of(command.current_dir(world.root()));
        assert_eq!(ran.code, 0, "{ran:?}");
        settled(&world);
        let list = world.json("session-list", &["session", "list"]);
        let of_it = |one: &&serde_json::Value| one["agent"]["id"] == session;
        list["sessions"].as_array().unwrap().iter().find(of_it).unwrap()["ended"].clone()
    };
    assert_eq!(call("s1", &["app-server", "--listen", "unix://"])["reason"], json!(null));
    assert_eq!(call("s2", &["exec"])["reason"], "vanished");
    assert_eq!(call("s2", &["app-server"])["reason"], json!(null));
}
