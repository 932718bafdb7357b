//! Session branches: what is in them, where they run, and what stays untouched.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::play::{Form, Play, put};
use crate::support::{Ran, World, ah, is_root, skip};

/// Two turns, then a third that is not answered yet. File `a` holds the number of the turn that wrote it last.
fn played(world: &World, form: Form) -> Play<'_> {
    world.write("a", "0");
    let mut play = Play::begin(world, form);
    play.turn("the first", |world| put(world, "a", "1"));
    play.turn("the second", |world| {
        put(world, "a", "2");
        put(world, "b", "new");
    });
    play.settle();
    play
}

/// What stays as it is, whatever branches are made: the workspace, and the agent's own transcript.
fn original(play: &Play<'_>) -> (Vec<String>, Vec<u8>) {
    (play.world.picture("w"), fs::read(&play.file).unwrap())
}

/// Whether the line of a transcript has what a person or an agent said.
fn says(transcript: &str, words: &str) -> bool {
    transcript.contains(words)
}

#[test]
fn a_branch_has_files_and_conversation_of_its_moment_and_nothing_more() {
    for form in Form::BOTH {
        World::each(|world| {
            let play = played(world, form);
            let before = original(&play);
            let words = ["session", "branch", "@prompt", "--name", "retry", "-m", "-it's $HOME", "--run"];
            play.run(&words);
            assert_eq!(original(&play), before, "{form:?}: the original was touched");
            let said = play.told("transcript");
            assert!(says(&said, "the first") && says(&said, "done with the first"), "{form:?}: {said}");
            assert!(!says(&said, "the second") && !said.contains(&play.id), "{form:?}: {said}");
            assert_eq!(said.matches("\"tool_use\"").count(), said.matches("\"tool_result\"").count());
            assert_eq!(play.told("a"), "1", "the files as before the second prompt");
            // At the workspace's own path, so that paths in the conversation are right.
            assert_eq!(play.told("cwd").trim(), world.root().to_str().unwrap());
            assert_eq!(play.told("session"), "retry");
            assert!(play.told("argv").ends_with("--\n-it's $HOME\n"), "{}", play.told("argv"));
            assert!(!world.path("state/branches/retry/b").exists());
        });
    }
}

#[test]
fn every_moment_is_cut_where_it_was() {
    for form in Form::BOTH {
        let world = World::new();
        let play = played(&world, form);
        let tools = play.of_kind("tool");
        let stops = play.of_kind("stop");
        let prompts = play.of_kind("prompt");
        // What the last line must say, and what must not be said any more.
        let cases = [
            (&tools[0], "1", "\"output\":\"ok\"|\"content\":\"ok\"", "done with the first"),
            (&stops[0], "1", "done with the first", "the second"),
            (&prompts[1], "1", "done with the first", "the second"),
            (&tools[1], "2", "\"output\":\"ok\"|\"content\":\"ok\"", "done with the second"),
            (&stops[1], "2", "done with the second", "the third"),
        ];
        for (at, (moment, a, last, after)) in cases.into_iter().enumerate() {
            let name = format!("at-{at}");
            let made = play.json("session-branch", &["session", "branch", moment, "--name", &name]);
            let made = &made["session_branch"];
            assert_eq!(made["conversation"]["method"], "resume", "{form:?}, {at}: {made:#}");
            let copy = fs::read_to_string(made["conversation"]["transcript"].as_str().unwrap()).unwrap();
            let end = copy.lines().last().unwrap().replace(": ", ":");
            assert!(last.split('|').any(|last| end.contains(last)), "{form:?}, {at}: {end}");
            assert!(!says(&copy, after), "{form:?}, {at}: {copy}");
            assert_eq!(copy.lines().count() as u64, made["conversation"]["lines"].as_u64().unwrap());
            let path = made["branch"]["path"].as_str().unwrap();
            assert_eq!(fs::read_to_string(format!("{path}/a")).unwrap(), a, "{form:?}, {at}");
            assert_eq!(made["from"]["moment"], moment.as_str());
            assert_eq!(made["from"]["inexact"], false);
        }
        // Before the first prompt there is nothing to resume: the agent starts anew, and that is exact.
        let made = play.json("session-branch", &["session", "branch", &prompts[0], "--name", "anew"]);
        let conversation = &made["session_branch"]["conversation"];
        let words = conversation["command"].as_array().unwrap();
        assert!(conversation["replayed"] == 0 && !words.iter().any(|word| word == "resume" || word == "--resume"));
    }
}

/// An agent that is to go on with the last conversation of a directory takes the newest file there.
#[test]
fn the_workspaces_own_conversation_stays_its_last_one() {
    let world = World::new();
    let play = played(&world, Form::Claude);
    let stop = play.of_kind("stop")[1].clone();
    let made = play.json("session-branch", &["session", "branch", &stop, "--name", "retry"]);
    let copy = made["session_branch"]["conversation"]["transcript"].as_str().unwrap();
    let age = |file: &Path| fs::metadata(file).unwrap().modified().unwrap();
    assert_eq!(Path::new(copy).parent(), play.file.parent());
    assert!(age(Path::new(copy)) < age(&play.file));
    // Nor is it as old as what nobody has gone on in for long: that is cleared away.
    let old = age(&play.file) - Duration::from_secs(20 * 86_400);
    File::options().append(true).open(&play.file).unwrap().set_modified(old).unwrap();
    let other = play.file.with_file_name("other.jsonl");
    fs::write(&other, "").unwrap();
    let made = play.json("session-branch", &["session", "branch", &stop, "--name", "again"]);
    let copy = made["session_branch"]["conversation"]["transcript"].as_str().unwrap();
    assert!(age(Path::new(copy)) < age(&other) && age(Path::new(copy)) > old);
    fs::remove_file(other).unwrap();
    // In place it is the new one that goes on.
    let made = play.json("rewind", &["agent", "rewind", &stop, "--conversation"]);
    let copy = made["rewind"]["conversation"]["transcript"].as_str().unwrap();
    assert!(age(Path::new(copy)) > age(&play.file));
}

#[test]
fn where_it_came_from_is_kept() {
    let world = World::new();
    let play = played(&world, Form::Claude);
    let moment = play.of_kind("stop")[0].clone();
    let made = play.json("session-branch", &["session", "branch", &moment, "--name", "retry", "-m", "x"]);
    let made = &made["session_branch"];
    let from = &made["session"]["provenance"];
    assert_eq!(from["fromSessionId"], made["from"]["session"]);
    assert_eq!(from["fromTs"], made["from"]["time"]);
    assert_eq!(from["fsSnapshotId"], made["branch"]["snapshot"]);
    assert_eq!(from["method"], "resume");
    let details = &from["agentDetails"];
    assert_eq!(details["agent"], "claude");
    assert_eq!(details["fromAgentSessionId"], play.id.as_str());
    assert_eq!(details["momentId"], moment.as_str());
    assert_eq!(details["agentSessionId"], made["conversation"]["agent_session"]);
    // In the session's own file too, beside the whole transcript.
    let workspace = made["branch"]["workspace"].as_str().unwrap();
    let folder = world.path(format!("state/workspaces/{workspace}/sessions/retry"));
    let record: Value = serde_json::from_str(&fs::read_to_string(folder.join("session.json")).unwrap()).unwrap();
    assert_eq!(&record["provenance"], from);
    let untrimmed = made["conversation"]["untrimmed"].as_str().unwrap();
    assert!(untrimmed.starts_with(folder.to_str().unwrap()), "{untrimmed}");
    assert_eq!(fs::read(untrimmed).unwrap(), fs::read(&play.file).unwrap());
    // Both sessions are listed, from either side, and both timelines say it.
    for here in [world.root(), made["branch"]["path"].as_str().unwrap().into()] {
        let ran = Ran::of(world.command(["session", "list", "--json"]).current_dir(&here));
        let listed: Value = serde_json::from_str(&ran.stdout).unwrap();
        crate::support::schema::check("session-list", &listed);
        let names: Vec<&str> =
            listed["sessions"].as_array().unwrap().iter().map(|session| session["name"].as_str().unwrap()).collect();
        assert!(names.contains(&"retry") && names.contains(&from["fromSessionId"].as_str().unwrap()), "{names:?}");
        let ran = Ran::of(world.command(["timeline", "--json"]).current_dir(&here));
        let timeline: Value = serde_json::from_str(&ran.stdout).unwrap();
        crate::support::schema::check("timeline", &timeline);
        let branched = timeline["events"].as_array().unwrap().iter().filter(|e| e["type"] == "session-branch");
        assert_eq!(branched.map(|event| event["name"].as_str().unwrap()).collect::<Vec<_>>(), ["retry"]);
        // And each is found by its name.
        let own = from["fromSessionId"].as_str().unwrap();
        for (name, lives) in
            [("retry", made["branch"]["path"].as_str().unwrap()), (own, world.root().to_str().unwrap())]
        {
            let ran = Ran::of(world.command(["session", "show", name, "--json"]).current_dir(&here));
            let shown: Value = serde_json::from_str(&ran.stdout).unwrap();
            assert_eq!((&shown["session"]["name"], &shown["workspace"]), (&json!(name), &json!(lives)));
            let ran = Ran::of(world.command(["timeline", "--session", name, "--json"]).current_dir(&here));
            let timeline: Value = serde_json::from_str(&ran.stdout).unwrap();
            let events = timeline["events"].as_array().unwrap();
            assert!(!events.is_empty() && events.iter().all(|event| event["session"] == name), "{ran:?}");
        }
        let ran = Ran::of(world.command(["session", "show", "other"]).current_dir(&here));
        assert_eq!(ran.code, 3, "{ran:?}");
    }
}

#[test]
fn the_printed_command_runs_as_it_is() {
    for form in Form::BOTH {
        World::each(|world| {
            let play = played(world, form);
            let ran = play.run(&["session", "branch", "@prompt", "--name", "retry", "-m", "it's \"new\"\n$x"]);
            let line = ran.stdout.strip_suffix('\n').unwrap();
            assert!(play.told("argv").is_empty(), "it was only printed");
            let ran = play.shell(line);
            assert_eq!(ran.code, 0, "{form:?}: {line}: {ran:?}");
            assert!(play.told("argv").ends_with("--\nit's \"new\"\n$x\n"), "{}", play.told("argv"));
            assert_eq!((play.told("a").as_str(), play.told("cwd").trim()), ("1", world.root().to_str().unwrap()));
            assert!(says(&play.told("transcript"), "done with the first"));
            // Hooks are not installed: it is recorded, in the branch's session, and gets them for this run.
            let branch = world.path("state/branches/retry");
            let ran = Ran::of(world.command(["session", "show", "retry", "--json"]).current_dir(&branch));
            let shown: Value = serde_json::from_str(&ran.stdout).unwrap();
            assert_eq!(
                (&shown["session"]["agent"]["name"], &shown["moments"]),
                (&json!(form.name()), &json!(2)),
                "{shown:#}"
            );
            match form {
                Form::Claude => assert!(play.told("settings").contains(" hook claude"), "{}", play.told("settings")),
                Form::Codex => assert!(play.told("argv").contains("hooks.state="), "{}", play.told("argv")),
            }
        });
    }
}

#[test]
fn the_lines_that_are_left_out_are_counted_in_words() {
    let world = World::on_git();
    let mut play = played(&world, Form::Claude);
    for (name, said) in [("one", "1 line of the conversation is left out"), ("two", "2 lines of the conversation are")]
    {
        play.line("{\"torn");
        play.turn(name, |_| ());
        play.settle();
        let stop = play.of_kind("stop").pop().unwrap();
        let ran = play.run(&["session", "branch", &stop, "--name", name]);
        assert!(ran.stderr.contains(said), "{ran:?}");
    }
}

/// In a namespace in which no further ones can be made.
pub(crate) fn confined(command: &mut Command) -> Command {
    let script = "echo 0 >/proc/sys/user/max_mnt_namespaces && exec \"$@\"";
    let mut confined = Command::new("unshare");
    confined.args(["-U", "-r", "-m", "sh", "-c", script, "sh"]).arg(command.get_program()).args(command.get_args());
    confined.env_clear().envs(command.get_envs().filter_map(|(key, value)| Some((key, value?))));
    confined.current_dir(command.get_current_dir().unwrap());
    confined
}

#[test]
fn where_nothing_can_be_shown_elsewhere_it_runs_in_the_branchs_directory() {
    let world = World::on_git();
    let play = played(&world, Form::Claude);
    let words = ["session", "branch", "@prompt", "--name", "retry", "-m", "again"];
    let mut command = play.ah(&words);
    if Ran::of(&mut confined(Command::new("true").current_dir("/"))).code != 0 {
        return skip("needs user namespaces");
    }
    let ran = Ran::of(&mut confined(&mut command));
    assert_eq!(ran.code, 0, "{ran:?}");
    let branch = world.path("state/branches/retry");
    assert!(ran.stdout.starts_with(&format!("cd -- {} && env AH_SESSION=retry ", branch.display())), "{ran:?}");
    assert!(ran.stderr.contains(&format!("knows its files at {}, where", world.root().display())), "{ran:?}");
    let ran = play.shell(ran.stdout.trim());
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(play.told("cwd").trim(), branch.to_str().unwrap());
    assert!(says(&play.told("transcript"), "done with the first"));
    // But not unseen: what it does by the paths that it knows is done to the workspace.
    play.forget();
    let words = ["session", "branch", "@prompt", "--name", "other", "-m", "again", "--run"];
    let ran = Ran::of(&mut confined(&mut play.ah(&words)));
    assert!(ran.code == 4 && ran.stderr.contains("or add `--elsewhere`"), "{ran:?}");
    assert!(play.told("argv").is_empty() && !world.path("state/branches/other").exists());
    let ran = Ran::of(&mut confined(&mut play.ah(&[&words[..], &["--elsewhere"]].concat())));
    assert!(ran.code == 0 && ran.stderr.contains("knows its files at"), "{ran:?}");
    assert!(play.told("argv").contains("again") && world.path("state/branches/other").exists());
    play.forget();
    // Before the first prompt nothing was said of any path.
    let first = play.of_kind("prompt")[0].clone();
    let words = ["session", "branch", &first, "--name", "anew", "-m", "again", "--run"];
    let ran = Ran::of(&mut confined(&mut play.ah(&words)));
    assert_eq!((ran.code, play.told("session").as_str()), (0, "anew"), "{ran:?}");
    assert_eq!(play.told("cwd").trim(), world.path("state/branches/anew").to_str().unwrap());
}

#[test]
fn three_at_once_are_each_as_their_moment_was() {
    let world = World::new();
    let mut play = played(&world, Form::Claude);
    play.turn("the third", |world| put(world, "a", "3"));
    play.settle();
    let stops = play.of_kind("stop");
    let before = original(&play);
    let children: Vec<_> = (0..3)
        .map(|at| {
            let name = format!("branch-{at}");
            let mut command = play.ah(&["session", "branch", &stops[at], "--name", &name, "--json"]);
            command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap()
        })
        .collect();
    for (at, child) in children.into_iter().enumerate() {
        let output = child.wait_with_output().unwrap();
        let made: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
        let made = &made["session_branch"];
        let path = made["branch"]["path"].as_str().unwrap();
        assert_eq!(fs::read_to_string(format!("{path}/a")).unwrap(), (at + 1).to_string());
        let copy = fs::read_to_string(made["conversation"]["transcript"].as_str().unwrap()).unwrap();
        for (turn, words) in ["done with the first", "done with the second", "done with the third"].iter().enumerate() {
            assert_eq!(says(&copy, words), turn <= at, "{at}: {words}");
        }
    }
    assert_eq!(original(&play), before);
    assert_eq!(play.transcripts().len(), 4);
}

/// None of the real agents names a checkpoint in its hooks; the mock agent does (mocks/README.md).
#[test]
fn a_checkpoint_of_the_agents_own_comes_before_everything_else() {
    let world = World::new();
    let mut play = played(&world, Form::Claude);
    play.hook(json!({"hook_event_name": "UserPromptSubmit", "prompt": "the third", "checkpoint_id": "midway", "prompt_id": "p3"}));
    play.settle();
    let before = play.transcripts().len();
    let made = play.json("session-branch", &["session", "branch", "@prompt", "--name", "retry", "-m", "else"]);
    let conversation = &made["session_branch"]["conversation"];
    assert_eq!(conversation["method"], "checkpoint");
    assert_eq!(conversation["command"], json!(["claude", "--checkpoint", "midway", "--", "else"]));
    assert_eq!(made["session_branch"]["session"]["provenance"]["agentDetails"]["checkpointId"], "midway");
    assert_eq!(play.transcripts().len(), before, "nothing is cut, nothing is told again");
    // Its next moment has no checkpoint any more.
    play.tool(|world| put(world, "a", "3"));
    play.settle();
    let tool = play.of_kind("tool")[2].clone();
    let made = play.json("session-branch", &["session", "branch", &tool, "--name", "other"]);
    assert_eq!(made["session_branch"]["conversation"]["method"], "resume");
}

#[test]
fn a_branch_of_a_branch() {
    let world = World::new();
    let play = played(&world, Form::Claude);
    let made = play.json("session-branch", &["session", "branch", "@prompt", "--name", "one"]);
    let made = &made["session_branch"];
    let path = made["branch"]["path"].as_str().unwrap();
    // From inside, as an agent that runs there would: it has no moments of its own yet, and so nothing to start from.
    let mut inside = play.ah(&["session", "branch", "@prompt", "--name", "two"]);
    let ran = Ran::of(inside.current_dir(path));
    assert_eq!(ran.code, 3, "{ran:?}");
    assert!(ran.stderr.contains("hint: "), "{ran:?}");
}

#[test]
fn an_ordinary_user_needs_no_more_than_root() {
    if !is_root() {
        return skip("needs root, to act as an ordinary user");
    }
    let world = World::of(crate::support::User::Ordinary);
    let play = played(&world, Form::Claude);
    play.run(&["session", "branch", "@prompt", "--name", "retry", "-m", "x", "--run"]);
    let copies = play.transcripts();
    for (path, _) in &copies {
        use std::os::unix::fs::MetadataExt;
        assert_eq!(fs::metadata(path).unwrap().uid(), 65534, "{path:?}");
    }
    assert!(ah().exists() && copies.len() == 2);
}
