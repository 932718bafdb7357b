//! A timeline that somebody holds for longer than an agent may be held up: what agents call for meanwhile comes there afterwards.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::agent::{Agent, cat, folder, kinds, moments, nothing_waits, settled, text, until};
use crate::support::World;

/// Holds a lock as another process would.
pub(crate) fn hold(lock: &Path) -> nix::fcntl::Flock<fs::File> {
    let file = fs::File::options().append(true).create(true).open(lock).unwrap();
    nix::fcntl::Flock::lock(file, nix::fcntl::FlockArg::LockExclusive).unwrap()
}

/// What is left beside the timelines.
fn unlisted(world: &World) -> Vec<PathBuf> {
    let names = fs::read_dir(folder(world).join("pending")).unwrap().map(|entry| entry.unwrap().path());
    let mut all: Vec<PathBuf> =
        names.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("unlisted.")).collect();
    all.sort();
    all
}

/// As it was, or inexact only because this machine took its time.
fn is_exact(moment: &Value) -> bool {
    let late = moment["reason"].as_str().is_some_and(|reason| reason.contains("held the timeline for long"));
    moment["snapshot"].is_string() && (moment["inexact"].is_null() || late)
}

fn prompted(agent: &Agent<'_>, prompt: &str) {
    agent.call("UserPromptSubmit", json!({"prompt": prompt, "prompt_id": prompt}));
}

#[test]
fn what_came_meanwhile_has_its_place_before_what_came_since() {
    let world = World::on_git();
    world.write("f", "zero");
    let (one, two) = (Agent::claude(&world, "s1"), Agent::claude(&world, "s2"));
    let line =
        |number: u8| json!({"type": "user", "uuid": number.to_string(), "message": {"role": "user", "content": "x"}});
    fs::write(one.transcript(), format!("{}\n", line(1))).unwrap();
    one.start();
    two.start();
    one.prompt("first");
    one.writes("f", "first");
    settled(&world);
    let held = hold(&folder(&world).join("timeline.lock"));
    one.call("Stop", json!({}));
    prompted(&one, "second");
    // Who only reads waits for nobody, and whoever wrote to the transcript since belongs to another moment.
    let before = moments(&world).len();
    fs::write(one.transcript(), format!("{}\n{}\n", line(1), line(2))).unwrap();
    drop(held);
    prompted(&two, "the other's");
    one.writes("f", "second");
    let moments = settled(&world);
    assert_eq!(kinds(&moments[before..]), ["stop", "prompt", "prompt", "tool"], "{moments:#?}");
    let [stop, second, others, tool] = &moments[before..] else { panic!("{moments:#?}") };
    assert_eq!((text(second, "prompt"), text(others, "prompt")), ("second", "the other's"));
    assert_eq!(second["session"], stop["session"]);
    for (moment, shown) in [(stop, "first"), (second, "first"), (tool, "second")] {
        assert!(is_exact(moment), "{moment}");
        assert_eq!(cat(&world, text(moment, "id"), "f").as_deref(), Some(shown), "{moment}");
    }
    assert_eq!(stop["transcript"]["line"], 1, "{stop}");
    assert!(text(stop, "time") < text(second, "time") && text(second, "time") < text(others, "time"));
    assert_eq!(cat(&world, "@prompt{2}", "f").as_deref(), Some("first"));
    assert!(!world.path("state/logs/hooks.log").exists());
}

#[test]
fn what_a_tool_overtook_meanwhile_is_inexact() {
    let world = World::on_git();
    world.write("f", "zero");
    let mut agent = Agent::claude(&world, "s1");
    agent.patient = false;
    agent.start();
    let before = settled(&world).len();
    let held = hold(&folder(&world).join("timeline.lock"));
    prompted(&agent, "do it");
    agent.writes("f", "one");
    drop(held);
    let moments = settled(&world);
    let [prompt, tool] = &moments[before..] else { panic!("{moments:#?}") };
    assert_eq!((text(prompt, "kind"), text(tool, "kind")), ("prompt", "tool"));
    assert!(prompt["inexact"] == true && is_exact(tool), "{moments:#?}");
    assert_eq!(cat(&world, text(prompt, "id"), "f").as_deref(), Some("zero"), "nothing newer");
    assert_eq!(cat(&world, text(tool, "id"), "f").as_deref(), Some("one"));
}

#[test]
fn who_is_killed_behind_a_line_leaves_no_second_one() {
    let world = World::on_git();
    world.write("f", "zero");
    let agent = Agent::claude(&world, "s1");
    agent.start();
    settled(&world);
    let held = hold(&folder(&world).join("timeline.lock"));
    agent.call("Stop", json!({}));
    let [left] = &unlisted(&world)[..] else { panic!("one is left") };
    let bytes = fs::read(left).unwrap();
    drop(held);
    assert_eq!(settled(&world).len(), 2);
    // As if that had been killed before it was taken away, and a tool ran in between; and then something that cannot be read.
    agent.writes("f", "one");
    settled(&world);
    fs::write(left, &bytes).unwrap();
    agent.end();
    let told = settled(&world);
    assert_eq!((kinds(&told), unlisted(&world).len()), (vec!["session-start", "stop", "tool", "session-end"], 0));
    assert!(told.iter().all(is_exact), "{told:#?}");
    assert_eq!(cat(&world, text(&told[1], "id"), "f").as_deref(), Some("zero"));
    fs::write(left, &bytes[..9]).unwrap();
    let failed = || {
        let events = world.json("timeline", &["timeline"])["events"].as_array().unwrap().clone();
        events.into_iter().find(|event| event["type"] == "hook-failed")
    };
    let failed = until("the event to be told of", failed);
    assert_eq!((&failed["session"], moments(&world).len()), (&told[0]["session"], 4), "{failed}");
}

#[test]
fn who_only_reads_has_the_snapshot_taken_of_what_was_left() {
    let world = World::on_git();
    world.write("f", "zero");
    let agent = Agent::claude(&world, "s1");
    agent.start();
    settled(&world);
    let held = hold(&folder(&world).join("timeline.lock"));
    agent.call("Stop", json!({}));
    let [left] = &unlisted(&world)[..] else { panic!("one is left") };
    let bytes = fs::read(left).unwrap();
    // As if the worker had given up, or had been killed.
    fs::remove_file(left).unwrap();
    drop(held);
    nothing_waits(&world);
    fs::write(left, &bytes).unwrap();
    let moments = settled(&world);
    assert_eq!(kinds(&moments), ["session-start", "stop"]);
    assert!(moments[1]["snapshot"].is_string(), "{moments:#?}");
}

#[test]
fn a_session_begins_and_ends_while_the_timeline_of_its_workspace_is_held() {
    let world = World::on_git();
    world.write("f", "zero");
    let one = Agent::claude(&world, "s1");
    one.start();
    settled(&world);
    let held = [folder(&world).join("timeline.lock"), world.path("state/agents.lock")].map(|lock| hold(&lock));
    let mut two = Agent::claude(&world, "s2");
    let env = world.path("home/env");
    two.env = vec![("CLAUDE_ENV_FILE".to_owned(), env.to_str().unwrap().to_owned())];
    two.start();
    assert!(fs::read_to_string(&env).unwrap().starts_with("export AH_SESSION=claude-"));
    one.end();
    drop(held);
    let moments = settled(&world);
    assert_eq!(kinds(&moments), ["session-start", "session-start", "session-end"]);
    let list = world.json("session-list", &["session", "list"]);
    let ended: Vec<bool> = list["sessions"].as_array().unwrap().iter().map(|one| one["ended"].is_object()).collect();
    assert_eq!(ended, [true, false], "{list:#}");
    assert!(!world.path("state/logs/hooks.log").exists());
}

#[test]
fn a_session_that_could_not_be_made_is_told_of_whatever_others_did_since() {
    let world = World::on_git();
    world.write("f", "zero");
    let (one, two) = (Agent::claude(&world, "s1"), Agent::claude(&world, "s2"));
    one.start();
    settled(&world);
    let held: Vec<_> = (0..16).map(|digit| hold(&world.path(format!("state/agents-{digit:x}.lock")))).collect();
    two.call("SessionStart", json!({"source": "startup"}));
    drop(held);
    one.stop();
    let timeline = world.json("timeline", &["timeline"]);
    let failed = timeline["events"].as_array().unwrap().iter().find(|event| event["type"] == "hook-failed").unwrap();
    assert_eq!((text(failed, "session"), text(failed, "event")), ("main", "session start"));
    assert!(text(failed, "reason").contains("/agents-"), "{failed}");
}
