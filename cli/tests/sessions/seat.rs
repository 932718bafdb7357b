//! Where an agent is seated whose conversation knows its files at another path than they are at.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::branch::confined;
use crate::play::{Form, Play, put};
use crate::support::bench::Bench;
use crate::support::{Ran, User, World, ah, is_root, skip};

/// Two turns in the workspace, then a session branch `one` that was gone on with at the workspace's path, where `a` is `in one` since. Its path; none where nothing can be shown.
fn branched(world: &World) -> Option<(Play<'_>, PathBuf)> {
    world.write("a", "0");
    let mut play = Play::begin(world, Form::Claude);
    play.turn("the first", |world| put(world, "a", "1"));
    play.turn("the second", |world| put(world, "a", "2"));
    play.settle();
    let made = play.json("session-branch", &["session", "branch", "@prompt", "--name", "one"]);
    if made["session_branch"]["conversation"]["cwd"] != world.root().to_str().unwrap() {
        skip("needs namespaces, to show a branch at the workspace's path");
        return None;
    }
    let path = gone_on(world, &made, "in one");
    Some((play, path))
}

/// A turn in a session branch, which writes `a`; where that is.
fn gone_on(world: &World, made: &Value, text: &str) -> PathBuf {
    let made = &made["session_branch"];
    let path = PathBuf::from(made["branch"]["path"].as_str().unwrap());
    went_on(world, &made["conversation"], &path, &[text]);
    path
}

/// The same of a conversation that was made anew, of an agent which works at `path`.
fn went_on(world: &World, made: &Value, path: &Path, texts: &[&str]) {
    let mut inside = Play::begin_at(world, Form::Claude, made["agent_session"].as_str().unwrap(), path);
    let transcript = Path::new(made["transcript"].as_str().unwrap());
    if transcript != inside.file {
        fs::copy(transcript, &inside.file).unwrap();
    }
    for text in texts {
        inside.turn(text, |_| fs::write(path.join("a"), text).unwrap());
    }
    world.wait_for_background();
}

/// The line that is printed within `exec` of a branch, there said in this shell's words.
fn within(play: &Play<'_>, branch: &str, words: &str) -> Ran {
    let (ah, root) = (ah().display().to_string(), play.world.root());
    play.shell(&format!("{ah} -C {} agent fs exec {branch} -- {words}", root.display()))
}

/// The last moment there at which an agent stopped.
fn last_stop(world: &World, at: &Path) -> String {
    let ran = Ran::of(world.command(["timeline", "--json"]).current_dir(at));
    let timeline: Value = serde_json::from_str(&ran.stdout).unwrap();
    let events = timeline["events"].as_array().unwrap();
    events.iter().rfind(|event| event["kind"] == "stop").unwrap()["id"].as_str().unwrap().to_owned()
}

/// A printed command starts the agent at the workspace's path, in a branch in which `a` is that.
fn starts_in(play: &Play<'_>, ran: &Ran, a: &str) {
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!((play.told("cwd").trim(), play.told("a").as_str()), (play.world.root().to_str().unwrap(), a));
    assert!(play.told("transcript").contains("done with the first"));
    play.forget();
}

#[test]
fn what_grew_from_a_branch_is_shown_where_its_conversation_knows_its_files() {
    let world = World::on_git();
    let Some((play, one)) = branched(&world) else { return };
    let ah = ah().display().to_string();
    // Said in the branch's directory: printed, and at once.
    let last = last_stop(&world, &one);
    let in_one = |words: &[&str]| {
        Ran::of(play.ah(&[&["session", "branch", &last, "-m", "x"], words].concat()).current_dir(&one))
    };
    let ran = in_one(&["--name", "two"]);
    assert!(ran.code == 0 && !ran.stderr.contains("knows its files"), "{ran:?}");
    starts_in(&play, &play.shell(ran.stdout.trim()), "in one");
    starts_in(&play, &in_one(&["--name", "at-once", "--run"]), "in one");
    // Within `exec`; what is printed there shows the same wherever it is run.
    let ran = within(&play, "one", &format!("{ah} session branch {last} --name three --json"));
    assert_eq!(ran.code, 0, "{ran:?}");
    let made: Value = serde_json::from_str(&ran.stdout).unwrap();
    let ran = within(&play, "one", &format!("{ah} session branch {last} --name four -m x"));
    let line = ran.stdout.trim();
    starts_in(&play, &play.shell(line), "in one");
    let quoted = line.replace('\'', r"'\''");
    starts_in(&play, &within(&play, "one", &format!("sh -c '{quoted}'")), "in one");
    // So it goes on, however far: what a rewind hints at, and what that prints.
    let three = gone_on(&world, &made, "in three");
    let ran = Ran::of(play.ah(&["agent", "rewind"]).current_dir(&three));
    let root = world.root().display().to_string();
    let hint = format!("ah -C {root} agent fs exec three -- ah agent rewind @prompt");
    assert!(ran.code == 4 && ran.stderr.contains(&hint), "{ran:?}");
    let ran = play.shell(&hint);
    assert_eq!(ran.code, 0, "{ran:?}");
    starts_in(&play, &play.shell(ran.stdout.trim()), "in one");
    // A branch of a branch is at work in as any other is.
    let ran = within(&play, "three", &format!("{ah} -C {} agent fs rm --force three", one.display()));
    assert!(ran.code != 0 && three.exists(), "{ran:?}");
}

#[test]
fn it_is_shown_there_also_when_a_branch_in_between_is_gone() {
    let world = World::on_git();
    let Some((play, one)) = branched(&world) else { return };
    let last = last_stop(&world, &one);
    let made = Ran::of(play.ah(&["session", "branch", &last, "--name", "two", "--json"]).current_dir(&one));
    let two = gone_on(&world, &serde_json::from_str(&made.stdout).unwrap(), "in two");
    // As long as nobody can read what that grew from, nothing is started beside it.
    let records = fs::read_dir(world.path("state/branches")).unwrap().flatten().map(|entry| entry.path());
    let of_one = |text: &str| text.split_whitespace().collect::<String>().contains(r#""name":"one""#);
    let mut records = records.filter_map(|path| Some((fs::read_to_string(&path).ok()?, path)));
    let (_, record) = records.find(|(text, _)| of_one(text)).unwrap();
    // With what it is brought back from.
    let id = record.file_stem().unwrap().to_str().unwrap().to_owned();
    let files = || fs::read_dir(record.parent().unwrap()).unwrap().flatten().map(|entry| entry.path());
    let of_it = files().filter(|path| path.is_file() && path.file_name().unwrap().to_str().unwrap().starts_with(&id));
    let kept: Vec<_> = of_it.map(|path| (fs::read(&path).unwrap(), path)).collect();
    kept.iter().for_each(|(_, path)| fs::write(path, "damaged").unwrap());
    let last = last_stop(&world, &two);
    for words in [&["agent", "rewind"][..], &["session", "branch", &last, "--name", "three"]] {
        let ran = Ran::of(play.ah(words).current_dir(&two));
        assert!(ran.code != 0 && ran.stderr.contains("cannot be told where the conversation knows"), "{ran:?}");
    }
    kept.iter().for_each(|(bytes, path)| fs::write(path, bytes).unwrap());
    let ran = play.run(&["agent", "fs", "rm", "--force", "one"]);
    assert!(ran.code == 0 && !one.exists(), "{ran:?}");
    let ran = Ran::of(play.ah(&["session", "branch", &last, "--name", "three"]).current_dir(&two));
    assert!(ran.code == 0 && !ran.stderr.contains("knows its files"), "{ran:?}");
    starts_in(&play, &play.shell(ran.stdout.trim()), "in two");
    let ran = Ran::of(play.ah(&["agent", "rewind"]).current_dir(&two));
    let hint = format!("ah -C {} agent fs exec two -- ah agent rewind @prompt", world.root().display());
    assert!(ran.code == 4 && ran.stderr.contains(&hint), "{ran:?}");
    let ran = play.shell(&hint);
    assert_eq!(ran.code, 0, "{ran:?}");
    starts_in(&play, &play.shell(ran.stdout.trim()), "in one");
}

/// Has the agent's session of a workspace have begun elsewhere.
fn began_at(play: &Play<'_>, workspace: &Path, start: &Path) {
    let session = play.json("session-list", &["-C", workspace.to_str().unwrap(), "session", "list"]);
    let session = session["sessions"].as_array().unwrap().iter().find(|session| session["agent"].is_object()).unwrap();
    let workspaces = fs::read_dir(play.world.path("state/workspaces")).unwrap().flatten();
    let record = format!("sessions/{}/session.json", session["name"].as_str().unwrap());
    let record = workspaces.map(|at| at.path().join(&record)).find(|record| record.exists()).unwrap();
    let mut fields: Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
    fields["agent"]["start"] = start.to_str().unwrap().into();
    fs::write(&record, fields.to_string()).unwrap();
}

#[test]
fn another_name_of_the_directory_is_not_somebody_elses() {
    if !is_root() {
        return skip("needs root, to mount");
    }
    let world = World::on_git();
    fs::create_dir(world.root().join("sub")).unwrap();
    world.write("sub/a", "0");
    let mut play = Play::begin(&world, Form::Claude);
    play.turn("the first", |world| put(world, "a", "1"));
    play.turn("the second", |world| put(world, "a", "2"));
    play.settle();
    let (root, bound) = (world.root(), world.path("bound"));
    fs::create_dir(&bound).unwrap();
    began_at(&play, &root, &bound.join("sub"));
    let (at, to, ah) = (root.display(), bound.display(), ah().display().to_string());
    let ran = play.shell(&format!(
        "unshare -m sh -c 'mount --bind {at} {to} && cd {at} && exec {ah} agent rewind --conversation --json'"
    ));
    assert_eq!(ran.code, 0, "{ran:?}");
    let made: Value = serde_json::from_str(&ran.stdout).unwrap();
    let conversation = &made["rewind"]["conversation"];
    assert!(conversation["known_at"].is_null(), "{made:#}");
    assert_eq!(conversation["cwd"], root.join("sub").to_str().unwrap());
}

#[test]
fn a_branch_that_cannot_be_made_within_exec_is_made_outside() {
    if !is_root() {
        return skip("needs root, to make a mount namespace");
    }
    let bench = Bench::new(User::Me);
    let world = &bench.0;
    world.write("a", "0");
    let one = bench.branch("one");
    let mut play = Play::begin_at(world, Form::Claude, "11111111-2222-4333-8444-555555555555", &one);
    play.turn("the first", |_| fs::write(one.join("a"), "1").unwrap());
    play.turn("the second", |_| fs::write(one.join("a"), "2").unwrap());
    world.wait_for_background();
    // As one that began where `exec` shows the branch.
    began_at(&play, &one, &world.root());
    // As where mounts are not shared: what is mounted outside does not come in.
    let alone = format!("unshare -m --propagation private {}", ah().display());
    let ran = within(&play, "one", &format!("{alone} session branch @prompt --name two -m 'go on'"));
    let hint = format!("ah -C {} session branch @prompt --name two -m 'go on'", one.display());
    assert!(ran.code == 4 && ran.stderr.contains(&format!("`{hint}`")), "{ran:?}");
    let ran = play.shell(&hint);
    assert_eq!(ran.code, 0, "{ran:?}");
    starts_in(&play, &play.shell(ran.stdout.trim()), "1");
    // Also where nothing of it is mounted any more, as after a start of the machine.
    world.wait_for_background();
    bench.kill_services();
    for point in bench.mounts() {
        assert!(Command::new("umount").args(["-l", &point]).status().unwrap().success(), "{point}");
    }
    starts_in(&play, &play.shell(ran.stdout.trim()), "1");
}

#[test]
fn an_agent_that_knows_a_path_which_is_somebody_elses_now_is_not_started_unseen() {
    let world = World::on_git();
    world.write("a", "0");
    let mut play = Play::begin(&world, Form::Claude);
    play.turn("the first", |world| put(world, "a", "1"));
    play.turn("the second", |world| put(world, "a", "2"));
    play.settle();
    let stop = play.of_kind("stop")[0].clone();
    // Moved, and another directory in its place.
    let (old, new) = (world.root(), world.path("moved"));
    fs::rename(&old, &new).unwrap();
    fs::create_dir(&old).unwrap();
    let ran = |words: &[&str]| Ran::of(play.ah(words).current_dir(&new));
    let made = ran(&["session", "branch", &stop, "--name", "b", "-m", "x", "--run"]);
    let said = format!("knows its files at {}, where", old.display());
    assert!(made.code == 4 && made.stderr.contains(&said) && made.stderr.contains("leave `--run` away"), "{made:?}");
    assert!(play.told("argv").is_empty() && !world.path("state/branches/b").exists());
    let made: Value =
        serde_json::from_str(&ran(&["session", "branch", &stop, "--name", "d", "--json"]).stdout).unwrap();
    crate::support::schema::check("session-branch", &made);
    assert_eq!(made["session_branch"]["conversation"]["known_at"], old.to_str().unwrap());
    for words in [&["session", "branch", &stop, "--name", "c"][..], &["agent", "rewind", &stop, "--conversation"]] {
        let made = ran(words);
        assert!(made.code == 0 && made.stderr.contains(&said), "{words:?}: {made:?}");
    }
    // It is at home in the new place since, but knows no more than before, until it was told something there.
    let again = ran(&["agent", "rewind", &stop, "--conversation", "--json"]);
    let again: Value = serde_json::from_str(&again.stdout).unwrap();
    let conversation = &again["rewind"]["conversation"];
    assert_eq!(conversation["known_at"], old.to_str().unwrap(), "{again:#}");
    let made = ran(&["session", "branch", &stop, "--name", "e", "-m", "x", "--run"]);
    assert!(made.code == 4 && made.stderr.contains(&said), "{made:?}");
    went_on(&world, conversation, &new, &["it is told", "it goes on"]);
    let made = ran(&["session", "branch", &last_stop(&world, &new), "--name", "f", "-m", "x", "--run"]);
    assert!(made.code == 0 && made.stderr.contains(&said) && play.told("a").starts_with("it "), "{made:?}");
}

#[test]
fn what_a_branch_was_told_elsewhere_is_still_known_when_it_is_gone_on_with() {
    let world = World::on_git();
    let mut play = Play::begin(&world, Form::Claude);
    world.write("a", "0");
    play.turn("the first", |world| put(world, "a", "1"));
    play.turn("the second", |world| put(world, "a", "2"));
    play.settle();
    if Ran::of(&mut confined(Command::new("true").current_dir("/"))).code != 0 {
        return skip("needs user namespaces");
    }
    let ran = Ran::of(&mut confined(&mut play.ah(&["session", "branch", "@prompt", "--name", "one", "--json"])));
    let made: Value = serde_json::from_str(&ran.stdout).unwrap();
    let root = world.root().display().to_string();
    assert_eq!(made["session_branch"]["conversation"]["known_at"], root, "{made:#}");
    let one = gone_on(&world, &made, "in one");
    let in_one = |words: &[&str]| Ran::of(play.ah(words).current_dir(&one));
    // Before anything was said there it knows the workspace's path alone; where that can be shown, it is.
    let ran = in_one(&["session", "branch", "@prompt", "--name", "two"]);
    assert!(ran.code == 0 && !ran.stderr.contains("knows its files"), "{ran:?}");
    starts_in(&play, &play.shell(ran.stdout.trim()), "1");
    // In the branch's own directory that is said each time.
    for _ in 0..2 {
        let ran = in_one(&["agent", "rewind", "--conversation", "--json"]);
        let made: Value = serde_json::from_str(&ran.stdout).unwrap();
        let conversation = &made["rewind"]["conversation"];
        assert_eq!(conversation["known_at"], root, "{made:#}");
        went_on(&world, conversation, &one, &["in one"]);
    }
}

#[test]
fn a_directory_that_is_in_the_branch_alone_is_started_in_at_once_too() {
    let world = World::on_git();
    let sub = world.root().join("sub");
    fs::create_dir(&sub).unwrap();
    world.write("a", "0");
    world.write("sub/b", "0");
    // By then it is known, so that what is in it is of it.
    world.fs(["snapshot"]);
    let mut play = Play::begin_at(&world, Form::Claude, "11111111-2222-4333-8444-555555555555", &sub);
    play.turn("the first", |world| put(world, "a", "1"));
    play.turn("the second", |world| put(world, "a", "2"));
    play.settle();
    if Ran::of(&mut confined(Command::new("true").current_dir("/"))).code != 0 {
        return skip("needs user namespaces");
    }
    fs::rename(&sub, world.root().join("gone")).unwrap();
    let ran = Ran::of(&mut play.ah(&["session", "branch", "@prompt", "--name", "one", "-m", "x", "--run"]));
    if ran.code == 4 && ran.stderr.contains("knows its files") {
        return skip("needs namespaces, to show a branch at the workspace's path");
    }
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(play.told("cwd").trim(), sub.to_str().unwrap(), "{ran:?}");
    // Where it cannot be shown, what it is of is told, not where in it the agent began.
    let ran = Ran::of(&mut confined(&mut play.ah(&["session", "branch", "@prompt", "--name", "two"])));
    let said = format!("knows its files at {}, where", world.root().display());
    assert!(ran.code == 0 && ran.stderr.contains(&said), "{ran:?}");
}
