//! Prompts that are not given as others are: those that nobody typed, and those that are typed while the agent is at work.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::agent::{Agent, cat, folder, kinds, settled, text, until};
use crate::held::hold;
use crate::support::World;

/// A real session: a prompt that has another one scheduled, and a minute later that one. In lines: 5, and 13 to 16.
const SCHEDULED: &str = include_str!("../../../agents/fixtures/claude/scheduled.jsonl");

/// When what is typed meanwhile was, in what was recorded, and a time that comes after all that a test does.
const TYPED: &str = "2026-12-01T07:22:12.775Z";
const LATER: &str = "2999-01-01T00:00:00.000Z";

/// An agent that was given its first prompt, with which `f` is "zero".
fn at_work(world: &World) -> Agent<'_> {
    fs::create_dir_all(world.path("home")).unwrap();
    let agent = Agent::claude(world, "s1");
    world.write("f", "zero");
    agent.start();
    agent.prompt("One");
    agent
}

/// Has the transcript as it was after so many lines of what was recorded.
fn wrote(agent: &Agent<'_>, recorded: &str, lines: usize) {
    let text: Vec<&str> = recorded.split_inclusive('\n').take(lines).collect();
    fs::write(agent.transcript(), text.concat().replace(TYPED, LATER)).unwrap();
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

/// A real session: a prompt, and another one that was typed while a tool ran. In lines: 5 and 10.
const MEANWHILE: &str = include_str!("../../../agents/fixtures/claude/meanwhile.jsonl");

#[test]
fn what_is_typed_while_the_agent_is_at_work_has_a_moment_with_the_files_of_just_then() {
    let world = World::on_git();
    let agent = at_work(&world);
    wrote(&agent, MEANWHILE, 6);
    agent.writes("f", "one");
    let bash = agent.before("Bash");
    world.write("one.txt", "1");
    wrote(&agent, MEANWHILE, 7);
    agent.after("Bash", &bash);
    let (write, beside) = (agent.before("Write"), agent.before("Write"));
    world.write("f", "two");
    wrote(&agent, MEANWHILE, 11);
    // Two at once see the same lines.
    std::thread::scope(|scope| {
        scope.spawn(|| agent.after("Write", &write));
        scope.spawn(|| agent.after("Write", &beside));
    });
    wrote(&agent, MEANWHILE, 13);
    agent.stop();
    let moments = settled(&world);
    let kinds: Vec<&str> = moments.iter().map(|moment| text(moment, "kind")).collect();
    assert_eq!(kinds, ["session-start", "prompt", "tool", "tool", "prompt", "tool", "tool", "stop"], "{moments:#?}");
    let typed = &moments[4];
    assert_eq!((text(typed, "prompt"), &typed["transcript"]["line"]), ("Two please", &json!(9)));
    assert_eq!((&typed["snapshot"], &typed["inexact"]), (&moments[3]["snapshot"], &json!(null)));
    assert_eq!(cat(&world, "@prompt", "f").as_deref(), Some("one"));
    assert_eq!(cat(&world, "@prompt", "one.txt").as_deref(), Some("1"));
    assert_eq!(cat(&world, "@prompt{2}", "f").as_deref(), Some("zero"));
    let files = until("the files that each prompt changed", || {
        let timeline = world.json("timeline", &["timeline"]);
        let groups = timeline["prompts"].as_array().unwrap();
        let files: Vec<Value> = groups.iter().map(|group| group["prompt"]["files"].clone()).collect();
        files[1..].iter().all(Value::is_object).then_some(files)
    });
    assert_eq!(files[1]["paths"], json!(["f", "one.txt"]));
    assert_eq!(files[2]["paths"], json!(["f"]));
    // Where its snapshot is gone, that is said, as of the moment that it has it from.
    world.fs(["rm", text(typed, "snapshot"), "--force"]);
    let refused = world.run(["agent", "rewind", text(typed, "id"), "--files"]);
    assert!(refused.code != 0 && refused.stderr.contains("was removed"), "{refused:?}");
}

#[test]
fn what_was_typed_meanwhile_is_what_is_gone_back_to_while_the_next_tool_runs() {
    let goes_back: [&[&str]; 2] = [&["agent", "rewind", "@prompt", "--files"], &["agent", "fs", "restore", "@prompt"]];
    for goes_back in goes_back {
        let world = World::on_git();
        let agent = at_work(&world);
        wrote(&agent, MEANWHILE, 6);
        agent.writes("f", "one");
        wrote(&agent, MEANWHILE, 10);
        let write = agent.before("Write");
        world.write("g", "two");
        let ran = world.run(goes_back);
        assert_eq!(ran.code, 0, "{ran:?}");
        assert_eq!(fs::read_to_string(world.root().join("f")).unwrap(), "one", "{ran:?}");
        assert!(!world.root().join("g").exists(), "{ran:?}");
        agent.after("Write", &write);
        agent.stop();
        let moments = settled(&world);
        assert_eq!(kinds(&moments), ["session-start", "prompt", "tool", "prompt", "tool", "stop"], "{moments:#?}");
        assert_eq!(text(&moments[3], "prompt"), "Two please");
    }
}

/// Its files are those of a moment that shows some of what the other tool did.
#[test]
fn where_it_is_not_known_which_files_there_were_when_it_was_typed_none_are_told() {
    let world = World::on_git();
    let agent = at_work(&world);
    wrote(&agent, MEANWHILE, 6);
    let (bash, write) = (agent.before("Bash"), agent.before("Write"));
    world.write("f", "one");
    agent.after("Write", &write);
    settled(&world);
    wrote(&agent, MEANWHILE, 10);
    world.write("g", "two");
    agent.after("Bash", &bash);
    settled(&world);
    world.wait_for_background();
    agent.stop();
    let moments = settled(&world);
    world.wait_for_background();
    assert_eq!(kinds(&moments), ["session-start", "prompt", "tool", "prompt", "tool", "stop"], "{moments:#?}");
    assert_eq!((text(&moments[3], "prompt"), &moments[3]["inexact"]), ("Two please", &json!(true)));
    let timeline = world.json("timeline", &["timeline"]);
    let groups = timeline["prompts"].as_array().unwrap();
    let files: Vec<&Value> = groups.iter().map(|group| &group["prompt"]["files"]).collect();
    assert_eq!(files, [&Value::Null; 3], "{timeline:#}");
}

/// The folder of the only agent's session.
fn session_folder(world: &World) -> PathBuf {
    folder(world).join("sessions").join(text(&settled(world)[0], "session"))
}

#[test]
fn who_cannot_tell_of_what_is_typed_meanwhile_tells_of_the_tool_and_the_next_call_of_both() {
    let world = World::on_git();
    let agent = at_work(&world);
    wrote(&agent, MEANWHILE, 6);
    agent.writes("f", "one");
    let folder = session_folder(&world);
    let held = hold(&folder.join("meanwhile.lock"));
    wrote(&agent, MEANWHILE, 10);
    agent.writes("f", "two");
    assert_eq!(kinds(&settled(&world)), ["session-start", "prompt", "tool", "tool"]);
    drop(held);
    // What is known of the last one cannot be read.
    fs::create_dir(folder.join("meanwhile")).unwrap();
    agent.stop();
    let moments = settled(&world);
    assert_eq!(kinds(&moments), ["session-start", "prompt", "tool", "tool", "prompt", "stop"], "{moments:#?}");
    // It stands before what the tool came to, which was told first.
    assert_ne!(moments[2]["snapshot"], moments[3]["snapshot"]);
    assert_eq!((text(&moments[4], "prompt"), &moments[4]["snapshot"]), ("Two please", &moments[2]["snapshot"]));
    assert!(!world.path("state/logs/hooks.log").exists());
}

/// A copy bears the old lines, and what was said in them had its moments in the conversation that it was made of.
#[test]
fn what_was_typed_in_a_conversation_that_goes_on_elsewhere_is_not_told_again() {
    let world = World::on_git();
    fs::create_dir_all(world.path("home")).unwrap();
    let agent = Agent::claude(&world, "s1");
    wrote(&agent, MEANWHILE, 13);
    agent.start();
    agent.prompt("Three");
    agent.stop();
    let moments = settled(&world);
    let kinds: Vec<&str> = moments.iter().map(|moment| text(moment, "kind")).collect();
    assert_eq!(kinds, ["session-start", "prompt", "stop"], "{moments:#?}");
}

#[test]
fn what_was_typed_before_the_session_began_is_not_told_where_the_transcript_comes_later() {
    let world = World::on_git();
    fs::create_dir_all(world.path("home")).unwrap();
    let agent = Agent::claude(&world, "s1");
    world.write("f", "zero");
    agent.start();
    agent.prompt("Three");
    let old = MEANWHILE.replace(TYPED, "2020-01-01T00:00:00.000Z");
    fs::write(agent.transcript(), &old).unwrap();
    agent.writes("f", "one");
    let now = MEANWHILE.lines().find(|line| line.contains("queued_command")).unwrap().replace(TYPED, LATER);
    fs::write(agent.transcript(), format!("{old}{now}\n")).unwrap();
    agent.stop();
    let moments = settled(&world);
    assert_eq!(kinds(&moments), ["session-start", "prompt", "tool", "prompt", "stop"], "{moments:#?}");
}

/// It was killed behind the prompt's line, before or behind the note that it is told, and before the line of the tool is known to anybody.
#[test]
fn what_a_killed_call_told_of_what_was_typed_meanwhile_is_told_once_and_what_was_done_for_it_is() {
    for is_noted in [true, false] {
        let world = World::on_git();
        let agent = at_work(&world);
        wrote(&agent, MEANWHILE, 6);
        agent.writes("f", "one");
        let session = session_folder(&world);
        let counted = fs::read(session.join("transcript")).unwrap();
        let write = agent.before("Write");
        world.write("g", "two");
        wrote(&agent, MEANWHILE, 10);
        // All is new to it, and nobody can be told that the tool's moment waits.
        let none = json!({"file": agent.transcript(), "line": 0, "offset": 0});
        fs::write(session.join("meanwhile"), none.to_string()).unwrap();
        let (pending, aside) = (folder(&world).join("pending"), folder(&world).join("aside"));
        fs::rename(&pending, &aside).unwrap();
        fs::write(&pending, "").unwrap();
        agent.after("Write", &write);
        fs::remove_file(&pending).unwrap();
        fs::rename(&aside, &pending).unwrap();
        fs::write(session.join("transcript"), counted).unwrap();
        if !is_noted {
            fs::remove_file(session.join("meanwhile")).unwrap();
        }
        agent.stop();
        let files = |number: usize| {
            until("the files that a prompt changed", || {
                let timeline = world.json("timeline", &["timeline"]);
                let groups = timeline["prompts"].as_array().unwrap();
                let prompts: Vec<&Value> = groups.iter().map(|group| &group["prompt"]).collect();
                let given: Vec<&Value> = prompts.into_iter().filter(|prompt| prompt.is_object()).collect();
                assert_eq!(given.len(), 2, "{timeline:#}");
                given[number]["files"].is_object().then(|| given[number]["files"]["paths"].clone())
            })
        };
        assert_eq!(files(0), json!(["f"]), "{is_noted}");
        assert_eq!(files(1), json!(["g"]), "{is_noted}");
    }
}

/// `/cd` and `EnterWorktree`: the events tell it by their `cwd`.
#[test]
fn what_an_agent_does_elsewhere_is_not_said_to_be_nothing() {
    let world = World::on_git();
    let agent = Agent::claude(&world, "s1");
    let (inside, outside) = (world.root().join(".claude/worktrees/feat"), world.path("other"));
    fs::create_dir_all(inside.join("src")).unwrap();
    fs::write(inside.join(".git"), "gitdir: elsewhere\n").unwrap();
    fs::create_dir(&outside).unwrap();
    fs::create_dir(world.root().join("sub")).unwrap();
    world.write(".gitignore", ".claude/worktrees/\n");
    world.write("f", "zero");
    let at_work = |text: &str, cwd: &Path| {
        agent.call("UserPromptSubmit", json!({"prompt": text, "prompt_id": text, "cwd": world.root()}));
        let tool = json!({"tool_name": "Bash", "tool_use_id": format!("t {text}"), "tool_response": {}, "cwd": cwd});
        agent.call("PostToolUse", tool);
        agent.call("Stop", json!({"cwd": cwd}));
        settled(&world);
    };
    agent.start();
    at_work("In a directory", &world.root().join("sub"));
    at_work("In a work tree", &inside.join("src"));
    at_work("Outside", &outside);
    let moments = settled(&world);
    let elsewhere: Vec<Option<&str>> = moments.iter().map(|moment| moment["elsewhere"].as_str()).collect();
    let (inside, outside) = (inside.to_str(), outside.to_str());
    assert_eq!(elsewhere, [None, None, None, None, None, inside, inside, None, outside, outside]);
    let told = until("the files that each prompt changed", || {
        let told = world.run(["timeline"]).stdout;
        (told.matches("no files changed").count() == 3).then_some(told)
    });
    for (prompt, at) in [("In a work tree", inside), ("Outside", outside)] {
        let wanted = format!("{prompt:?} - no files changed here, at work in {}", at.unwrap());
        assert!(told.contains(&wanted), "{told}");
    }
    assert_eq!(told.matches("\"In a directory\" - no files changed\n").count(), 1, "{told}");
    let status = world.run(["agent", "fs", "status"]);
    let said = status.stderr.lines().filter(|line| line.contains("is at work in")).collect::<Vec<_>>();
    assert!(said.len() == 1 && said[0].contains(outside.unwrap()), "{status:?}");
    let notes = |reference: &str| {
        let rewind = world.json("rewind", &["agent", "rewind", reference, "--files"]);
        rewind["rewind"]["notes"].to_string()
    };
    let both = notes(text(&moments[1], "id"));
    assert!(both.contains(inside.unwrap()) && both.contains(outside.unwrap()), "{both}");
    agent.end();
    assert!(!world.run(["agent", "fs", "status"]).stderr.contains("is at work in"));
}
