//! What Codex does otherwise than Claude Code, by the events that it sends.

use serde_json::json;

use crate::agent::{Agent, kinds, settled};
use crate::support::World;

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
