//! Prompts that are not given as others are: those that nobody typed.

use std::fs;

use serde_json::json;

use crate::agent::{Agent, cat, settled, text, until};
use crate::support::World;

/// A real session: a prompt that has another one scheduled, and a minute later that one. In lines: 5, and 13 to 16.
const SCHEDULED: &str = include_str!("../../../agents/fixtures/claude/scheduled.jsonl");

/// Has the transcript as it was after so many lines of what was recorded.
fn wrote(agent: &Agent<'_>, recorded: &str, lines: usize) {
    let text: Vec<&str> = recorded.split_inclusive('\n').take(lines).collect();
    fs::write(agent.transcript(), text.concat()).unwrap();
}

#[test]
fn a_prompt_that_nobody_typed_is_part_of_what_was_done_for_the_one_before() {
    let world = World::new();
    fs::create_dir_all(world.path("home")).unwrap();
    let agent = Agent::claude(&world, "s1");
    let says = |prompt: &str, id: &str| agent.call("UserPromptSubmit", json!({"prompt": prompt, "prompt_id": id}));
    world.write("f", "zero");
    agent.start();
    says("One", "54a099f1-5512-4f7f-87f8-ac6ccb5deb91");
    wrote(&agent, SCHEDULED, 9);
    agent.writes("f", "one");
    wrote(&agent, SCHEDULED, 12);
    agent.stop();
    settled(&world);
    says("check the build", "153648db-9bf6-4d52-9e72-5a0552375ded");
    wrote(&agent, SCHEDULED, 18);
    agent.writes("f", "two");
    wrote(&agent, SCHEDULED, 19);
    agent.stop();
    let scheduled = until("what says that nobody typed it", || {
        settled(&world).into_iter().find(|moment| moment["by_agent"] == true)
    });
    assert_eq!((text(&scheduled, "prompt"), &scheduled["transcript"]["line"]), ("check the build", &json!(12)));
    assert_eq!(cat(&world, "@prompt", "f").as_deref(), Some("zero"));
    assert_eq!(cat(&world, text(&scheduled, "id"), "f").as_deref(), Some("one"));
    let told = world.run(["timeline"]).stdout;
    assert_eq!(told.matches("prompt (by agent)").count(), 1, "{told}");
    assert_eq!(world.json("session-show", &["session", "show", text(&scheduled, "session")])["prompts"], 1);
}
