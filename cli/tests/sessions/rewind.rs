//! Going back in place: files and conversation, one prompt further each time.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::SystemTime;

use serde_json::{Value, json};

use crate::play::{Form, Play, put};
use crate::support::{Ran, World, skip};

/// Three turns; file `a` holds the number of the turn that wrote it last.
fn played(world: &World, form: Form) -> Play<'_> {
    world.write("a", "0");
    let mut play = Play::begin(world, form);
    for (turn, prompt) in ["the first", "the second", "the third"].into_iter().enumerate() {
        play.turn(prompt, |world| put(world, "a", &(turn + 1).to_string()));
    }
    play.settle();
    play
}

#[test]
fn it_goes_back_before_the_last_prompt_and_then_further() {
    for form in Form::BOTH {
        World::each(|world| {
            let play = played(world, form);
            let whole = fs::read(&play.file).unwrap();
            for (a, said, unsaid) in
                [("2", "done with the second", "the third"), ("1", "done with the first", "the second")]
            {
                let ran = play.run(&["agent", "rewind"]);
                assert_eq!(world.read("a").as_deref(), Some(a), "{form:?}: {ran:?}");
                let ran = play.shell(ran.stdout.trim());
                assert_eq!(ran.code, 0, "{form:?}: {ran:?}");
                let transcript = play.told("transcript");
                assert!(transcript.contains(said) && !transcript.contains(unsaid), "{form:?}: {transcript}");
                assert_eq!(play.told("cwd").trim(), world.root().to_str().unwrap());
                play.forget();
            }
            assert_eq!(fs::read(&play.file).unwrap(), whole, "the conversation that there was stays");
            // Each takes the files forward again.
            world.fs(["undo"]);
            assert_eq!(world.read("a").as_deref(), Some("2"));
        });
    }
}

#[test]
fn in_a_branch_it_goes_on_only_where_the_conversation_knows_its_files() {
    let world = World::new();
    let play = played(&world, Form::Claude);
    let made = play.json("session-branch", &["session", "branch", "@prompt", "--name", "retry"]);
    let made = &made["session_branch"];
    if made["conversation"]["cwd"] != world.root().to_str().unwrap() {
        return skip("needs namespaces, to show a branch at the workspace's path");
    }
    let path = made["branch"]["path"].as_str().unwrap();
    let id = made["conversation"]["agent_session"].as_str().unwrap();
    let mut inside = Play::begin_at(&world, Form::Claude, id, Path::new(path));
    inside.turn("in the branch", |_| ());
    world.wait_for_background();
    let ran = Ran::of(inside.ah(&["agent", "rewind"]).current_dir(path));
    assert_eq!(ran.code, 4, "{ran:?}");
    let hint = format!("ah -C {} agent fs exec retry -- ah agent rewind", world.root().display());
    assert!(ran.stderr.contains(&hint), "{hint}: {ran:?}");
    let ran = play.run(&["session", "branch", "@prompt", "--name", "other"]);
    assert!(ran.stdout.contains("exec other"), "{ran:?}");
    // Where it is shown, a rewind prints what shows it again, wherever that is run.
    let mut words = vec!["agent", "fs", "exec", "retry", "--", env!("CARGO_BIN_EXE_ah")];
    words.extend(["agent", "rewind", "--conversation"]);
    let ran = Ran::of(&mut play.ah(&words));
    let again = format!("-C {} agent fs exec retry -- env AH_SESSION=", world.root().display());
    assert!(ran.code == 0 && ran.stdout.contains(&again), "{ran:?}");
    let ran = Ran::of(&mut play.ah(&["session", "branch", "@prompt", "--name", "main"]));
    assert_eq!(ran.code, 2, "{ran:?}");
}

#[test]
fn restore_and_diff_say_which_prompt_they_take() {
    let world = World::new();
    let play = played(&world, Form::Claude);
    let third = format!("from {} (", play.of_kind("prompt")[2]);
    for words in [&["diff", "@prompt"][..], &["restore", "@prompt", "--dry-run"], &["diff", "@prompt{2}", "@prompt"]] {
        let ran = world.run(["agent", "fs"].iter().chain(words));
        assert!(ran.code == 0 && ran.stderr.contains(&third) && ran.stderr.contains("the third"), "{words:?}: {ran:?}");
    }
    // After a rewind it is the one before, also where files were taken forward again.
    play.run(&["agent", "rewind"]);
    world.fs(["undo"]);
    let ran = world.run(["agent", "fs", "restore", "@prompt"]);
    assert!(ran.code == 0 && ran.stderr.contains("the second") && !ran.stderr.contains("the third"), "{ran:?}");
    let ran = world.run(["agent", "fs", "diff", "@"]);
    assert!(!ran.stderr.contains("from "), "{ran:?}");
}

#[test]
fn undo_after_a_rewind_that_changed_nothing_takes_nothing_else_back() {
    let world = World::new();
    let play = played(&world, Form::Claude);
    play.run(&["agent", "rewind"]);
    assert_eq!(world.read("a").as_deref(), Some("2"));
    // The same files again: nothing is to be put back.
    let again = play.json("rewind", &["agent", "rewind", "--files", play.of_kind("prompt")[2].as_str()]);
    assert_eq!(again["rewind"]["restore"]["changes"], serde_json::json!([]), "{again:#}");
    let ran = world.run(["agent", "fs", "undo"]);
    assert!(ran.code == 4 && ran.stderr.contains("changed no files") && ran.stderr.contains("hint: "), "{ran:?}");
    assert_eq!(world.read("a").as_deref(), Some("2"));
}

#[test]
fn a_conversation_goes_on_in_the_same_session() {
    let world = World::new();
    let play = played(&world, Form::Claude);
    let before = play.json("rewind", &["agent", "rewind"]);
    let made = &before["rewind"];
    let (session, id) = (made["session"].as_str().unwrap(), made["conversation"]["agent_session"].as_str().unwrap());
    assert!(made["restore"]["safety"]["id"].is_string() && made["launch"]["argv"].is_array(), "{made:#}");
    let prompts = play.json("timeline", &["timeline"])["prompts"].as_array().unwrap().clone();
    let left: Vec<bool> = prompts.iter().map(|group| group["left"] == true).collect();
    assert_eq!(left, [false, false, false, true], "{prompts:#?}");
    assert_eq!(world.run(["timeline"]).stdout.matches("prompt (left)").count(), 1);
    // The agent is started again, under its new id: another turn, other than the third.
    let mut again = Play::begin_as(&world, Form::Claude, id);
    assert!(again.file.exists(), "resumed from the copy");
    again.turn("the third, otherwise", |world| put(world, "a", "otherwise"));
    again.settle();
    let moments = again.moments();
    let sessions: std::collections::BTreeSet<&str> =
        moments.iter().map(|moment| moment["session"].as_str().unwrap()).collect();
    assert_eq!(sessions.into_iter().collect::<Vec<_>>(), [session], "one session");
    // The last prompt is the new one; before that comes the second, as the third was left behind.
    for (a, unsaid) in [("2", "the third, otherwise"), ("1", "the second")] {
        let made = play.json("rewind", &["agent", "rewind"]);
        assert_eq!(world.read("a").as_deref(), Some(a));
        let copy = made["rewind"]["conversation"]["transcript"].as_str().unwrap();
        assert!(!fs::read_to_string(copy).unwrap().contains(unsaid));
    }
}

#[test]
fn an_agent_that_was_left_running_ends_alone() {
    let world = World::new();
    let play = played(&world, Form::Claude);
    let made = play.json("rewind", &["agent", "rewind"]);
    let id = made["rewind"]["conversation"]["agent_session"].as_str().unwrap();
    let mut again = Play::begin_as(&world, Form::Claude, id);
    again.prompt("the third, otherwise");
    again.tool(|world| {
        put(world, "a", "half");
        play.hook(json!({"hook_event_name": "Stop"}));
        play.settle();
        play.hook(json!({"hook_event_name": "SessionEnd", "reason": "exit"}));
        play.settle();
        put(world, "a", "whole");
    });
    again.settle();
    let moments = again.moments();
    let last: Vec<_> = moments[moments.len() - 3..].iter().map(|one| (&one["kind"], one["inexact"] == true)).collect();
    // The tool of the one that goes on was running.
    assert_eq!(last, [(&json!("stop"), true), (&json!("session-end"), true), (&json!("tool"), false)], "{moments:#?}");
    let session = moments[0]["session"].as_str().unwrap();
    let shown = play.json("session-show", &["session", "show", session]);
    assert!(shown["session"]["ended"].is_null(), "{shown:#}");
}

#[test]
fn back_at_its_beginning_a_session_still_says_whose_it_was() {
    let world = World::new();
    let play = played(&world, Form::Claude);
    let session = play.moments()[0]["session"].as_str().unwrap().to_owned();
    let first = play.of_kind("prompt")[0].clone();
    let before = play.json("session-show", &["session", "show", &session]);
    let ran = play.run(&["agent", "rewind", &first]);
    let safety = play.json("timeline", &["timeline"])["events"]
        .as_array()
        .unwrap()
        .iter()
        .rev()
        .find_map(|event| Some(event["snapshot"]["id"].as_str()?.to_owned()));
    let way =
        format!("`ah agent fs restore {}` brings back the files of before this rewind, later on too", safety.unwrap());
    assert!(ran.stderr.contains(&way), "{way}: {ran:?}");
    let shown = play.json("session-show", &["session", "show", &session]);
    assert_eq!((&shown["session"]["agent"], &shown["left"]), (&Value::Null, &before["session"]["agent"]));
    let ran = play.run(&["session", "show", &session]);
    assert!(ran.stdout.contains("claude, begins anew; before the rewind session "), "{ran:?}");
    assert!(ran.stdout.contains(play.file.to_str().unwrap()), "{ran:?}");
    let ran = play.run(&["session", "list"]);
    let row = ran.stdout.lines().find(|line| line.starts_with(&session)).unwrap();
    assert!(row.ends_with("claude"), "{ran:?}");
}

#[test]
fn files_or_conversation_alone() {
    let world = World::new();
    let play = played(&world, Form::Claude);
    let count = play.transcripts().len();
    let ran = play.run(&["agent", "rewind", "--files"]);
    assert_eq!(world.read("a").as_deref(), Some("2"));
    assert_eq!(play.transcripts().len(), count, "no conversation is made");
    // What is printed is the safety snapshot.
    assert_eq!(world.fs(["cat", ran.stdout.trim(), "a"]), "3");
    play.run(&["agent", "rewind", "--files"]);
    assert_eq!(world.read("a").as_deref(), Some("1"), "files alone go further back as well");
    world.fs(["undo"]);
    play.run(&["agent", "rewind", "--files"]);
    assert_eq!(world.read("a").as_deref(), Some("1"), "what was taken back does not count");
    let last = play.of_kind("prompt")[2].clone();
    let made = play.json("rewind", &["agent", "rewind", &last, "--conversation"]);
    assert_eq!(world.read("a").as_deref(), Some("1"), "the files stay");
    assert!(made["rewind"]["restore"].is_null() && play.transcripts().len() == count + 1);
    let refused = play.ah(&["agent", "rewind", "--files", "--conversation"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
}

#[test]
fn what_the_agent_remembers_from_after_the_moment_is_told() {
    let world = World::new();
    let play = played(&world, Form::Claude);
    let memory = play.file.with_file_name("memory").join("MEMORY.md");
    fs::create_dir(memory.parent().unwrap()).unwrap();
    fs::write(&memory, "the third is hard").unwrap();
    let file = fs::File::options().write(true).open(&memory).unwrap();
    let told = || {
        let made = play.json("rewind", &["agent", "rewind", &play.of_kind("prompt")[2], "--conversation"]);
        made["rewind"]["conversation"]["notes"].to_string().contains("memory")
    };
    assert!(told());
    file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    assert!(!told());
}

/// Goes back: what file `a` holds then, and the last prompt of the conversation that was made, if any.
fn back(play: &Play<'_>, words: &[&str]) -> (String, Option<String>) {
    let made = play.json("rewind", &[&["agent", "rewind"], words].concat());
    let made = &made["rewind"]["conversation"];
    let copy = made["transcript"].as_str().map(|copy| fs::read_to_string(copy).unwrap());
    let prompts = ["the first", "the second", "the third", "the fourth"];
    let last = prompts.into_iter().rfind(|prompt| copy.as_ref().is_some_and(|copy| copy.contains(prompt)));
    (play.world.read("a").unwrap_or_default(), last.map(str::to_owned))
}

#[test]
fn whoever_goes_on_in_the_conversation_that_there_was_goes_back_in_that() {
    for form in Form::BOTH {
        World::each(|world| {
            let mut play = played(world, form);
            assert_eq!(back(&play, &["@prompt{2}"]), ("1".into(), Some("the first".into())), "{form:?}");
            world.fs(["undo"]);
            let goes_on = |play: &Play<'_>| {
                let listed = play.json("session-list", &["session", "list"]);
                let ids = listed["sessions"].as_array().unwrap().iter().map(|session| &session["agent"]["id"]);
                ids.into_iter().any(|id| *id == play.id)
            };
            assert!(!goes_on(&play));
            play.turn("the fourth", |world| put(world, "a", "4"));
            play.settle();
            assert!(goes_on(&play), "{form:?}");
            for (a, last) in [("3", "the third"), ("2", "the second"), ("1", "the first")] {
                assert_eq!(back(&play, &[]), (a.into(), Some(last.into())), "{form:?}");
            }
            let ran = play.run(&["agent", "rewind"]);
            assert!(world.read("a").as_deref() == Some("0") && ran.stderr.contains("nothing had been said"), "{ran:?}");
        });
    }
}

#[test]
fn forward_again_it_goes_back_from_there() {
    let world = World::new();
    let play = played(&world, Form::Claude);
    let prompts = play.of_kind("prompt");
    assert_eq!(back(&play, &[&prompts[1]]), ("1".into(), Some("the first".into())));
    assert_eq!(back(&play, &[&prompts[2]]), ("2".into(), Some("the second".into())));
    let groups = play.json("timeline", &["timeline"])["prompts"].as_array().unwrap().clone();
    let left: Vec<bool> = groups.iter().map(|group| group["left"] == true).collect();
    assert_eq!(left, [false, false, false, true], "{groups:#?}");
    assert_eq!(back(&play, &[]), ("1".into(), Some("the first".into())));
}

#[test]
fn files_and_conversation_after_each_other_come_to_the_same_prompt() {
    for (one, other) in [("--files", "--conversation"), ("--conversation", "--files"), ("--files", "--both")] {
        let world = World::new();
        let play = played(&world, Form::Claude);
        let (one, other) = (back(&play, &[one]), back(&play, &[other]));
        assert_eq!((other.0.as_str(), one.1.or(other.1).as_deref()), ("2", Some("the second")));
        let made = play.json("session-branch", &["session", "branch", "@prompt", "--name", "retry"]);
        assert_eq!(made["session_branch"]["from"]["prompt"], "the second", "{made:#}");
    }
}

#[test]
fn the_files_that_it_deletes_are_named() {
    let world = World::new();
    let play = played(&world, Form::Claude);
    world.write("new 00", "x");
    let ran = play.run(&["agent", "rewind", "--files"]);
    assert!(ran.stderr.contains("deleted: new 00\n") && !ran.stderr.contains("more"), "{ran:?}");
    for at in 1..=12 {
        world.write(format!("new {at:02}"), "x");
    }
    let ran = play.run(&["agent", "rewind", "--files"]);
    assert_eq!(ran.stderr.matches("deleted: new ").count(), 10, "{ran:?}");
    assert!(ran.stderr.contains("deleted: and 2 more"), "{ran:?}");
}

#[test]
fn a_restore_that_is_refused_changes_nothing() {
    let world = World::new();
    let play = played(&world, Form::Claude);
    // A directory that no snapshot can hold, where a file would come back.
    fs::remove_file(world.root().join("a")).unwrap();
    fs::create_dir(world.root().join("a")).unwrap();
    nix::unistd::mkfifo(&world.root().join("a/fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let before = (play.transcripts(), play.run(&["session", "list", "--json"]).stdout);
    let ran = Ran::of(&mut play.ah(&["agent", "rewind"]));
    assert_eq!(ran.code, 4, "{ran:?}");
    assert_eq!((play.transcripts(), play.run(&["session", "list", "--json"]).stdout), before);
    let pending = fs::read_dir(world.path("state/workspaces")).unwrap().flatten();
    let pending =
        pending.flat_map(|workspace| fs::read_dir(workspace.path().join("conversations")).into_iter().flatten());
    assert_eq!(pending.count(), 0);
}

#[test]
fn a_person_chooses_on_a_terminal() {
    let world = World::new();
    let play = played(&world, Form::Claude);
    if Command::new("script").arg("--version").output().is_err() {
        return skip("needs script(1)");
    }
    let choose = |keys: &str| {
        let command = play.ah(&[]);
        let ah = command.get_program().to_string_lossy().into_owned();
        let mut script = Command::new("script");
        script.args(["-qec", &format!("{ah} agent rewind"), "/dev/null"]);
        script.env_clear().envs(command.get_envs().filter_map(|(key, value)| Some((key, value?)))).env("TERM", "xterm");
        script.current_dir(world.root()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = script.spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        // The list is read by the key, so keys may come before it is there.
        std::thread::sleep(std::time::Duration::from_millis(700));
        input.write_all(keys.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (code, shown) = choose("\x1b");
    assert_eq!(code, Some(130), "{shown}");
    let (code, ctrl_c) = choose("\x03");
    assert_eq!(code, Some(130), "{ctrl_c}");
    assert!(shown.contains("the third") && shown.find("the third") < shown.find("the first"), "{shown}");
    assert_eq!(world.read("a").as_deref(), Some("3"), "nothing was chosen");
    // Down once: before the second.
    let (code, shown) = choose("\x1b[B\r");
    assert_eq!((code, world.read("a").as_deref()), (Some(0), Some("1")), "{shown}");
    assert!(shown.contains("claude --resume"), "{shown}");
}

#[test]
fn an_agent_that_gets_no_instruction_is_not_started_without_a_terminal() {
    let world = World::new();
    let play = played(&world, Form::Claude);
    let ran = Ran::of(&mut play.ah(&["agent", "rewind", "--run"]));
    assert_eq!((ran.code, world.read("a").as_deref()), (2, Some("3")), "{ran:?}");
    assert!(ran.stderr.contains("leave `--run` away"), "{ran:?}");
}

#[test]
fn without_a_prompt_there_is_nothing_to_go_back_to() {
    let world = World::new();
    world.write("a", "0");
    world.fs(["snapshot", "-m", "mine"]);
    assert_eq!(world.refused(3, &["agent", "rewind"]), "not-found");
    // A snapshot of a person's own belongs to no conversation.
    assert_eq!(world.refused(4, &["agent", "rewind", "mine"]), "failed-precondition");
    assert_eq!(world.refused(4, &["session", "branch", "mine", "--name", "x"]), "failed-precondition");
    assert_eq!(world.refused(2, &["session", "branch", "mine", "--name", "x y"]), "invalid-argument");
}

#[test]
fn an_agents_session_is_guarded_also_when_its_conversation_begins_anew() {
    let world = World::new();
    let play = played(&world, Form::Claude);
    let made = play.json("rewind", &["agent", "rewind", "--conversation", "@prompt{3}"]);
    let session = made["rewind"]["session"].as_str().unwrap();
    for words in [&["agent", "fs", "rm", "@"][..], &["config", "set", "agent.may-remove", "true"]] {
        let ran = Ran::of(world.command(words).env("AH_SESSION", session));
        assert_eq!(ran.code, 4, "{words:?}: {ran:?}");
    }
}

/// The process that called last may serve other sessions, or the agent's next one.
#[test]
fn an_agent_that_ended_its_session_does_not_run_with_it() {
    let world = World::new();
    let mut play = played(&world, Form::Claude);
    let notes = |play: &Play<'_>| play.json("rewind", &["agent", "rewind"])["rewind"]["notes"].to_string();
    play.end();
    play.settle();
    let ended = notes(&play);
    assert!(!ended.contains("still runs"), "{ended}");
    // From here on it goes on with what was left.
    play.turn("once more", |_| ());
    play.settle();
    let runs = notes(&play);
    assert!(runs.contains("still runs"), "{runs}");
}

#[test]
fn it_names_the_other_agents_that_it_takes_files_from() {
    let world = World::new();
    let play = played(&world, Form::Claude);
    let notes = |words: &[&str]| play.json("rewind", words)["rewind"]["notes"].to_string();
    let others = "their agents do not know: ";
    let alone = notes(&["agent", "rewind"]);
    assert!(!alone.contains(others), "{alone}");
    let mut other = Play::begin_as(&world, Form::Claude, "7d1c7c5e-2a1f-4c57-9c3e-0a2f4b6d8e10");
    other.turn("beside it", |world| put(world, "b", "1"));
    other.settle();
    let session = other.moments().last().unwrap()["session"].as_str().unwrap().to_owned();
    let first = play.of_kind("prompt")[0].clone();
    let with = notes(&["agent", "rewind", &first]);
    assert!(with.contains(&format!("{others}{session}")), "{with}");
    // Whose conversation alone goes back takes nothing from anybody.
    let conversation = notes(&["agent", "rewind", &first, "--conversation"]);
    assert!(!conversation.contains(others), "{conversation}");
}

#[test]
fn what_a_killed_one_left_goes_with_the_command_that_does_it_again() {
    let world = World::on_git();
    let play = played(&world, Form::Claude);
    let within = |what: &str| {
        let all = fs::read_dir(world.path("state/workspaces")).unwrap().flatten();
        all.map(|of| of.path().join(what)).find(|path| path.exists())
    };
    // Held where it would let the session have the conversation that it made.
    let session = format!("sessions/{}/session.lock", play.moments()[0]["session"].as_str().unwrap());
    let lock = fs::File::open(within(&session).unwrap()).unwrap();
    lock.lock().unwrap();
    let mut rewind = play.ah(&["agent", "rewind", "@prompt{2}", "--conversation"]);
    let mut rewind = rewind.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let made = || {
        let files = fs::read_dir(within("conversations")?).ok()?.flatten();
        let mut texts = files.filter_map(|file| fs::read_to_string(file.path()).ok());
        texts.find(|text| text.contains("\"rewind\""))
    };
    while made().is_none() {
        assert!(rewind.try_wait().unwrap().is_none(), "it did not wait for the session");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    rewind.kill().unwrap();
    rewind.wait().unwrap();
    drop(lock);
    let ran = play.run(&["agent", "fs", "gc"]);
    let second = play.of_kind("prompt")[1].clone();
    let again = format!("`ah agent rewind {second} --conversation` cuts it");
    assert!(ran.stdout.contains(&again) || ran.stderr.contains(&again), "{ran:?}");
    play.run(&["agent", "rewind", &second, "--conversation"]);
    assert_eq!(world.read("a").as_deref(), Some("3"));
}
