//! Several sessions in a workspace, and several workspaces of a session.

use std::fs;

use serde_json::json;

use crate::agent::{Agent, cat, kinds, moments, nothing_waits, settled, text};
use crate::support::{Ran, World};

#[test]
fn a_session_stays_where_it_started() {
    let world = World::new();
    world.write("f", "1");
    let agent = Agent::claude(&world, "s1");
    agent.start();
    // It goes somewhere else, where another workspace is; the one that it left counts.
    fs::create_dir_all(world.path("elsewhere/.git")).unwrap();
    let elsewhere = json!({"cwd": world.path("elsewhere"), "tool_name": "Bash", "tool_use_id": "t1"});
    agent.call("PreToolUse", elsewhere.clone());
    world.write("f", "2");
    agent.call("PostToolUse", elsewhere);
    agent.call("UserPromptSubmit", json!({"cwd": "/no/such/directory", "prompt": "and?", "prompt_id": "p"}));
    let moments = settled(&world);
    assert_eq!(kinds(&moments), ["session-start", "tool", "prompt"]);
    assert_eq!(cat(&world, text(&moments[1], "id"), "f").as_deref(), Some("2"));
    let workspaces = fs::read_dir(world.path("state/workspaces")).unwrap().count();
    assert_eq!(workspaces, 1);
}

#[test]
fn what_one_session_wrote_is_captured_before_another_one_writes() {
    let world = World::on_git();
    world.write("f", "zero");
    let (one, two) = (Agent::claude(&world, "s1"), Agent::claude(&world, "s2"));
    one.start();
    two.start();
    settled(&world);
    // Whoever is not hurried waits for more.
    assert_eq!(world.run(["config", "set", "moments.window", "10s"]).code, 0);
    two.writes("f", "the second's");
    one.writes("f", "the first's");
    two.before("Bash");
    let moments = settled(&world);
    let of_tools: Vec<_> = moments.iter().filter(|moment| moment["kind"] == "tool").collect();
    let shown: Vec<_> = of_tools.iter().map(|moment| cat(&world, text(moment, "id"), "f")).collect();
    assert_eq!(shown, [Some("the second's".to_owned()), Some("the first's".to_owned())]);
}

#[test]
fn one_that_is_taken_up_in_another_workspace_is_captured_there() {
    let world = World::on_git();
    world.write("f", "1");
    let agent = Agent::claude(&world, "s1");
    agent.start();
    agent.writes("f", "2");
    let before = settled(&world).len();
    let other = world.path("other");
    fs::create_dir_all(other.join(".git")).unwrap();
    world.give_away();
    // As it goes on after a compaction, wherever it is by then, it stays.
    agent.call("SessionStart", json!({"cwd": other, "source": "compact"}));
    assert_eq!(settled(&world).len(), before + 1);
    let there = json!({"cwd": other, "source": "resume", "tool_name": "Write", "tool_use_id": "t9"});
    agent.call("SessionStart", there.clone());
    agent.call("PreToolUse", there.clone());
    fs::write(other.join("new"), "there").unwrap();
    agent.call("PostToolUse", there);
    nothing_waits(&world);
    assert_eq!(moments(&world).len(), before + 1);
    let shown = Ran::of(world.command(["agent", "fs", "cat", "@", "new"]).current_dir(&other));
    assert_eq!((shown.code, shown.stdout.as_str()), (0, "there"), "{shown:?}");
    assert_eq!(world.json("session-list", &["session", "list"])["sessions"][0]["ended"]["reason"], "elsewhere");
    // And back.
    agent.call("SessionStart", json!({"source": "resume"}));
    agent.writes("f", "3");
    let sessions = world.json("session-list", &["session", "list"])["sessions"].clone();
    assert_eq!(sessions.as_array().unwrap().len(), 1, "{sessions:#}");
    assert!(sessions[0]["ended"].is_null(), "{sessions:#}");
    let moments = settled(&world);
    assert_eq!(cat(&world, text(moments.last().unwrap(), "id"), "f").as_deref(), Some("3"));
}

#[test]
fn an_agent_goes_on_in_a_new_workspace_where_its_own_is_none_any_more() {
    let world = World::on_git();
    let agent = Agent::claude(&world, "s1");
    agent.start();
    agent.prompt("one");
    settled(&world);
    world.wait_for_background();
    let known = world.path("state/agents/claude/s1.json");
    assert!(known.exists());
    world.fs(["rm", "--all", "--force"]);
    assert!(!known.exists(), "it names a workspace that is not there");
    agent.prompt("two");
    let moments = settled(&world);
    assert_eq!(kinds(&moments), ["prompt"]);
    assert_eq!((text(&moments[0], "prompt"), known.exists()), ("two", true));
}
