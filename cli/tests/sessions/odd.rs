//! Transcripts that are missing, torn or odd, snapshots that are gone, agents that are not there.

use std::fs::{self, OpenOptions};
use std::io::Write;

use serde_json::{Value, json};

use crate::play::{Form, Play, put};
use crate::support::{Ran, World};

const PASTED: &str = "<bash-stdout>a log</bash-stdout> what is this?";

fn played(world: &World, form: Form) -> Play<'_> {
    world.write("a", "0");
    let mut play = Play::begin(world, form);
    play.turn("the first", |world| put(world, "a", "1"));
    play.turn("the second", |world| put(world, "a", "2"));
    play.settle();
    play
}

/// Everything that a session branch could leave behind.
fn traces(play: &Play<'_>) -> (Vec<String>, usize, usize) {
    let world = play.world;
    let count = |path: &str| fs::read_dir(world.path(path)).map_or(0, Iterator::count);
    let files = play.transcripts().into_iter().map(|(path, _)| path.display().to_string()).collect();
    (files, count("state/branches"), count("state/workspaces"))
}

#[test]
fn a_missing_transcript_leaves_the_prompts() {
    for form in Form::BOTH {
        let world = World::new();
        let play = played(&world, form);
        fs::remove_file(&play.file).unwrap();
        let made = play.json("session-branch", &["session", "branch", "@", "--name", "retry", "-m", "go on"]);
        let conversation = &made["session_branch"]["conversation"];
        assert_eq!((&conversation["method"], &conversation["replayed"]), (&"replay".into(), &2.into()), "{made:#}");
        let text = conversation["command"].as_array().unwrap().last().unwrap().as_str().unwrap();
        assert!(text.contains("the first") && text.contains("the second") && text.contains("go on"), "{text}");
        assert_eq!(made["session_branch"]["session"]["provenance"]["method"], "replay");
        // A person is told that this is less.
        let ran = play.run(&["session", "branch", "@", "--name", "other", "-m", "x"]);
        assert!(ran.stderr.contains("warning:") && ran.stderr.contains("knows less"), "{ran:?}");
    }
}

#[test]
fn a_conversation_from_before_the_clock_was_set_back_is_cut_where_it_was() {
    for form in Form::BOTH {
        let world = World::new();
        world.write("a", "0");
        let mut play = Play::begin(&world, form);
        play.turn("the first", |world| put(world, "a", "1"));
        play.settle();
        play.later();
        play.turn("the second", |world| put(world, "a", "2"));
        play.turn("the third", |world| put(world, "a", "3"));
        play.settle();
        let (prompts, tools, stops) = (play.of_kind("prompt"), play.of_kind("tool"), play.of_kind("stop"));
        let cases = [
            (&prompts[1], "done with the first", "the second"),
            (&tools[1], "the second", "done with the second"),
            (&stops[1], "done with the second", "the third"),
            (&prompts[2], "done with the second", "the third"),
        ];
        for (at, (moment, said, after)) in cases.into_iter().enumerate() {
            let name = format!("at-{at}");
            let made = play.json("session-branch", &["session", "branch", moment, "--name", &name]);
            let conversation = &made["session_branch"]["conversation"];
            assert_eq!(conversation["method"], "resume", "{form:?}, {at}: {made:#}");
            let copy = fs::read_to_string(conversation["transcript"].as_str().unwrap()).unwrap();
            assert!(copy.contains(said) && !copy.contains(after), "{form:?}, {at}: {copy}");
        }
    }
}

/// A prompt that was pasted, as Claude Code writes it down: it dates the line before it calls the hook.
fn paste(play: &mut Play<'_>, text: &str) {
    play.hook(json!({"hook_event_name": "UserPromptSubmit", "prompt": text, "prompt_id": "pasted"}));
    let line = json!({
        "type": "user", "uuid": "pasted", "promptId": "pasted", "timestamp": "2026-01-01T00:00:00.000Z",
        "message": {"role": "user", "content": text},
    });
    play.line(&line.to_string());
    play.stop("it is a log");
}

#[test]
fn a_prompt_that_begins_like_the_agents_own_text_is_not_in_the_conversation_before_it() {
    let world = World::new();
    let mut play = played(&world, Form::Claude);
    paste(&mut play, PASTED);
    play.settle();
    let made = play.json("session-branch", &["session", "branch", "@prompt", "--name", "retry"]);
    let copy = fs::read_to_string(made["session_branch"]["conversation"]["transcript"].as_str().unwrap()).unwrap();
    assert!(copy.contains("done with the second") && !copy.contains(PASTED), "{copy}");
}

#[test]
fn a_conversation_may_begin_with_a_prompt_like_the_agents_own_text() {
    let world = World::new();
    let mut play = Play::begin(&world, Form::Claude);
    paste(&mut play, PASTED);
    play.turn("the second", |world| put(world, "a", "2"));
    play.settle();
    let made = play.json("session-branch", &["session", "branch", "@prompt", "--name", "retry"]);
    assert_eq!(made["session_branch"]["conversation"]["method"], "resume", "{made:#}");
}

#[test]
fn a_torn_last_line_and_unknown_ones_are_no_trouble() {
    for form in Form::BOTH {
        let world = World::new();
        let mut play = played(&world, form);
        play.line(r#"{"type":"from-the-future","sessionId":"x","payload":{"v":99}}"#);
        play.turn("the third", |world| put(world, "a", "3"));
        play.settle();
        let mut file = OpenOptions::new().append(true).open(&play.file).unwrap();
        file.write_all(br#"{"type":"assistant","message":{"content":[{"type":"tex"#).unwrap();
        let made = play.json("session-branch", &["session", "branch", "@", "--name", "retry"]);
        let conversation = &made["session_branch"]["conversation"];
        assert_eq!(conversation["method"], "resume", "{made:#}");
        let copy = fs::read_to_string(conversation["transcript"].as_str().unwrap()).unwrap();
        assert!(copy.contains("from-the-future") && copy.contains("done with the third"), "{form:?}: {copy}");
        for line in copy.lines() {
            serde_json::from_str::<Value>(line).unwrap();
        }
    }
}

#[test]
fn a_transcript_that_is_no_such_thing_leaves_the_prompts() {
    let world = World::new();
    let play = played(&world, Form::Claude);
    fs::write(&play.file, vec![0xff; 100_000]).unwrap();
    let ran = play.run(&["session", "branch", "@", "--name", "retry", "-m", "x"]);
    assert!(ran.stderr.contains("knows less") && ran.stdout.contains("the second"), "{ran:?}");
    // A directory in its place, and one that may not be read.
    fs::remove_file(&play.file).unwrap();
    fs::create_dir(&play.file).unwrap();
    let ran = Ran::of(&mut play.ah(&["session", "branch", "@", "--name", "dir", "-m", "x"]));
    assert!(ran.code == 0 || ran.stderr.contains("hint: "), "{ran:?}");
}

#[test]
fn an_agent_that_is_not_installed_is_told_before_anything_is_made() {
    let world = World::new();
    let play = played(&world, Form::Claude);
    let before = traces(&play);
    fs::remove_file(world.path("bin/claude")).unwrap();
    for words in [&["session", "branch", "@", "--name", "x"][..], &["agent", "rewind", "@prompt"]] {
        let ran = Ran::of(&mut play.ah(words));
        assert_eq!(ran.code, 3, "{ran:?}");
        assert!(ran.stderr.contains("not installed") && ran.stderr.contains("hint: "), "{ran:?}");
    }
    assert_eq!((traces(&play), world.read("a").as_deref()), (before, Some("2")));
    // Files alone need no agent.
    play.run(&["agent", "rewind", "@prompt", "--files"]);
    assert_eq!(world.read("a").as_deref(), Some("1"));
}

#[test]
fn a_snapshot_that_is_gone_is_not_replaced_unasked() {
    let world = World::new();
    let play = played(&world, Form::Claude);
    let (first, second) = (play.of_kind("stop")[0].clone(), play.of_kind("stop")[1].clone());
    let before = traces(&play);
    let snapshot = play.moments().iter().find(|m| m["id"] == second.as_str()).unwrap()["snapshot"].clone();
    world.fs(["rm", snapshot.as_str().unwrap()]);
    let words = ["session", "branch", &second, "--name", "retry"];
    let ran = Ran::of(&mut play.ah(&words));
    assert_eq!((ran.code, traces(&play)), (4, before.clone()), "{ran:?}");
    let hint = ran.stderr.lines().find_map(|line| line.strip_prefix("hint: ah session branch ")).unwrap().to_owned();
    let nearest = hint.split(' ').next().unwrap();
    let shown = play.moments().iter().find(|m| m["id"] == first.as_str()).unwrap()["snapshot"].clone();
    assert_eq!(nearest, shown.as_str().unwrap(), "{ran:?}");
    let made = play.json("session-branch", &["session", "branch", nearest, "--name", "retry"]);
    let path = made["session_branch"]["branch"]["path"].as_str().unwrap();
    assert_eq!(fs::read_to_string(format!("{path}/a")).unwrap(), "1");
    let ran = Ran::of(&mut play.ah(&["agent", "rewind", &second]));
    assert_eq!((ran.code, world.read("a").as_deref()), (4, Some("2")), "{ran:?}");
    assert!(ran.stderr.contains("hint: ah agent rewind "), "{ran:?}");
}

#[test]
fn a_store_that_was_lost_offers_nothing_and_says_so() {
    let world = World::on_git();
    let play = played(&world, Form::Claude);
    for workspace in fs::read_dir(world.path("state/workspaces")).unwrap() {
        let store = workspace.unwrap().path().join("providers/git/git/objects");
        if store.exists() {
            fs::remove_dir_all(&store).unwrap();
            fs::create_dir(&store).unwrap();
        }
    }
    let before = traces(&play);
    let ran = Ran::of(&mut play.ah(&["session", "branch", "@prompt", "--name", "retry"]));
    assert_eq!((ran.code, traces(&play)), (4, before), "{ran:?}");
    assert!(ran.stderr.contains("hint: "), "{ran:?}");
}

#[test]
fn a_name_that_is_taken_is_refused_before_anything_is_made() {
    let world = World::new();
    let play = played(&world, Form::Claude);
    play.run(&["session", "branch", "@prompt", "--name", "taken"]);
    let before = traces(&play);
    let ran = Ran::of(&mut play.ah(&["session", "branch", "@prompt", "--name", "taken"]));
    assert_eq!((ran.code, traces(&play)), (4, before), "{ran:?}");
    // Taken away with its session; the agent's own copy of the conversation is the agent's.
    world.fs(["rm", "taken"]);
    let listed = play.run(&["session", "list"]);
    assert!(!listed.stdout.contains("taken"), "{listed:?}");
}

#[test]
fn the_agents_home_may_be_in_the_workspace() {
    let world = World::new();
    world.write("a", "0");
    let mut play = Play::begin(&world, Form::Codex);
    play.turn("the first", |world| put(world, "a", "1"));
    play.turn("the second", |world| put(world, "a", "2"));
    play.settle();
    // Under `exec` the agent sees the branch's copy of that folder, so that is where its conversation must be.
    let mut command = play.ah(&["session", "branch", "@prompt", "--name", "retry", "--json"]);
    let ran = Ran::of(command.env("CODEX_HOME", world.root().join(".codex")));
    assert_eq!(ran.code, 0, "{ran:?}");
    let made: Value = serde_json::from_str(&ran.stdout).unwrap();
    let copy = made["session_branch"]["conversation"]["transcript"].as_str().unwrap();
    assert!(copy.starts_with(world.path("state/branches/retry/.codex").to_str().unwrap()), "{copy}");
    assert!(fs::read_to_string(copy).unwrap().contains("done with the first"));
}
