//! Recordings as files: played, exported, imported, cut off anywhere.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use ah_recording::cast::EventKind;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::support::{self, Ran, World};
use crate::terminal::{Terminal, wait};
use crate::through::{events, file, output, recorded, through_shell};

/// A world with a recording in which a line comes each second, with a marker before each fifth.
fn world() -> World {
    recording((0..30).map(|second| (f64::from(second), second)))
}

/// A world with a recording of lines with these times and numbers, with a marker before each fifth.
fn recording(lines: impl Iterator<Item = (f64, u32)>) -> World {
    let world = World::new();
    let mut text = "{\"version\":2,\"width\":40,\"height\":10,\"timestamp\":1700000000}\n".to_owned();
    for (time, number) in lines {
        if number % 5 == 0 {
            text.push_str(&format!("[{time:.1}, \"m\", \"mark {number}\"]\n"));
        }
        text.push_str(&format!("[{time:.1}, \"o\", \"line {number}\\r\\n\"]\n"));
    }
    world.write("in.cast", text);
    let ran = world.run(["agent", "cast", "import", "in.cast"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stdout.trim_end().ends_with("/sessions/main/recording.cast"), "{ran:?}");
    world
}

#[test]
fn what_is_larger_than_files_may_be_is_not_imported_and_that_is_said() {
    let world = recording((0..30_000).map(|second| (f64::from(second), second)));
    let limit = "set -- env --default-signal=XFSZ \"$@\"; ulimit -f 512";
    let ran = Ran::of(&mut through_shell(&world.command(["agent", "cast", "import", "in.cast"]), limit));
    assert!(ran.code == 1 && ran.stderr.contains("hint: "), "{ran:?}");
    assert!(!file(&world, "recording.cast").with_file_name("recording-2.cast").exists());
}

#[test]
fn a_ttyrec_begins_with_any_byte_and_one_that_is_cut_off_is_told() {
    let world = World::new();
    let frame = |number: u32| {
        let text = format!("frame {number}\r\n");
        let (time, length) = (0x6000_007b + number, u32::try_from(text.len()).unwrap());
        [&time.to_le_bytes()[..], &[0; 4], &length.to_le_bytes(), text.as_bytes()].concat()
    };
    let whole: Vec<u8> = (0..5000).flat_map(frame).collect();
    assert!(whole.starts_with(b"{"));
    world.write("whole", &whole);
    world.write("cut", &whole[..whole.len() - 1]);
    let pack = "gzip -c whole >all.gz; head -c 5000 all.gz >cut.gz";
    assert!(Command::new("sh").args(["-c", pack]).current_dir(world.root()).status().unwrap().success());
    for (number, (name, torn)) in
        [("whole", false), ("cut", true), ("all.gz", false), ("cut.gz", true)].iter().enumerate()
    {
        let told = world.json("cast-import", &["agent", "cast", "import", name]);
        assert_eq!(told["import"]["torn"], *torn, "{name}");
        let name = if number == 0 { "recording.cast".to_owned() } else { format!("recording-{}.cast", number + 1) };
        let shown = output(&world, &name);
        assert!(shown.starts_with("frame 0\r\nframe 1\r\n"));
        assert_eq!(shown.ends_with("frame 4999\r\n"), !torn);
    }
    assert!(world.run(["agent", "cast", "import", "cut.gz"]).stderr.contains("warning: "));
}

#[test]
fn what_comes_in_goes_out_the_same_in_every_format() {
    let world = world();
    let told = world.json("replay", &["agent", "replay"]);
    let told = &told["recording"];
    assert_eq!((&told["seconds"], &told["events"], &told["torn"]), (&29.0.into(), &36.into(), &false.into()));
    assert_eq!((&told["markers"][1]["label"], &told["markers"][1]["seconds"]), (&"mark 5".into(), &5.0.into()));
    for (number, to) in ["v2", "v3", "ttyrec"].iter().enumerate() {
        let out = world.path(format!("out.{to}"));
        let out = out.to_str().unwrap();
        let export = world.json("cast-export", &["agent", "cast", "export", "1", "--to", to, "-o", out]);
        assert_eq!((&export["export"]["format"], &export["export"]["faults"]), (&(*to).into(), &0.into()));
        let import = world.json("cast-import", &["agent", "cast", "import", out]);
        let name = format!("recording-{}.cast", number + 2);
        assert_eq!(import["import"]["number"], Value::from(number + 2));
        let shown = output(&world, &name);
        assert!(shown.ends_with("line 28\r\nline 29\r\n"), "{shown}");
        let markers = events(&world, &name).iter().filter(|event| matches!(event, EventKind::Marker(_))).count();
        assert_eq!(markers, if *to == "ttyrec" { 0 } else { 6 });
        assert_eq!(world.refused(4, &["agent", "cast", "export", "-o", out]), "already-exists");
    }
    let shown = world.json("session-show", &["session", "show"]);
    let listed: Vec<_> = shown["recordings"].as_array().unwrap().iter().map(|one| &one["number"]).collect();
    assert_eq!(listed, [1, 2, 3, 4], "{shown:#}");
    assert!(shown["recordings"].as_array().unwrap().iter().all(|one| one["live"] == false), "{shown:#}");
    let ran = world.run(["session", "show"]);
    assert!(ran.stdout.contains("`ah agent replay --session main 4` plays it"), "{ran:?}");
    let root = world.root();
    let ran = Ran::of(world.command(["-C", root.to_str().unwrap(), "session", "show"]).current_dir("/"));
    let play = format!("`ah -C {} agent replay --session main 4` plays it", root.display());
    assert!(ran.stdout.contains(&play), "{ran:?}");
    for output in [&[][..], &["-o", "-"]] {
        let ran = world.run(["agent", "cast", "export", "--to", "v3"].iter().chain(output));
        assert!(ran.stdout.starts_with("{\"version\":3") && !world.root().join("-").exists(), "{ran:?}");
    }
}

#[test]
fn what_is_no_recording_or_not_there_is_refused() {
    let world = world();
    world.write("nonsense", "#!/bin/sh\necho this is a script\n");
    world.write("empty", "");
    for name in ["nonsense", "empty"] {
        assert_eq!(world.refused(2, &["agent", "cast", "import", name]), "invalid-argument");
    }
    assert_eq!(world.refused(3, &["agent", "cast", "import", "none.cast"]), "not-found");
    let ran = world.run(["agent", "cast", "import", "none.cast"]);
    assert!(ran.stderr.ends_with("hint: name a file that is there, or - for standard input\n"), "{ran:?}");
    // Neither waited for nor read without end.
    assert!(std::process::Command::new("mkfifo").arg(world.root().join("pipe")).status().unwrap().success());
    for name in ["pipe", "/dev/zero", "."] {
        for words in [&["agent", "replay", name][..], &["agent", "cast", "import", name]] {
            assert_eq!(world.refused(2, words), "invalid-argument", "{words:?}");
        }
    }
    assert_eq!(world.refused(2, &["agent", "replay", "nonsense"]), "invalid-argument");
    assert_eq!(world.refused(3, &["agent", "replay", "7"]), "not-found");
    assert_eq!(world.refused(3, &["agent", "replay", "--session", "other"]), "not-found");
    assert_eq!(world.refused(2, &["agent", "replay", "in.cast", "--from", "@"]), "invalid-argument");
    // Nothing of it became a recording.
    assert_eq!(world.json("replay", &["agent", "replay"])["recording"]["number"], 1);
}

#[test]
fn a_recording_that_is_cut_off_is_read_up_to_there() {
    let world = world();
    let whole = fs::read(file(&world, "recording.cast")).unwrap();
    for cut in [whole.len() - 4, whole.len() / 2, whole.len() / 2 + 9] {
        world.write("cut.cast", &whole[..cut]);
        let told = world.json("replay", &["agent", "replay", "cut.cast"]);
        let torn = whole[cut - 1] != b'\n';
        assert_eq!((&told["recording"]["torn"], &told["recording"]["faults"]), (&torn.into(), &0.into()), "{cut}");
        let ran = world.run(["agent", "cast", "export", "cut.cast"]);
        assert!(
            ran.code == 0 && whole.starts_with(&ran.raw[..ran.raw.len().min(50)]) && ran.raw.ends_with(b"]\n"),
            "{ran:?}"
        );
    }
}

#[test]
fn what_could_not_be_read_is_told_wherever_the_rest_goes() {
    let world = World::new();
    let header = "{\"version\":2,\"width\":40,\"height\":10}";
    let (good, bad) = ("[0, \"o\", \"shown\\r\\n\"]\n", "[0, \"o\", nonsense]\n");
    world.write("bad.cast", format!("{header}\n{bad}{good}{bad}[0, \"o\", \"not who"));
    let commands: [&[&str]; 4] = [
        &["agent", "cast", "export", "bad.cast"],
        &["agent", "cast", "export", "bad.cast", "-o", "out.cast"],
        &["agent", "cast", "import", "bad.cast"],
        &["agent", "replay", "bad.cast"],
    ];
    for words in commands {
        let ran = world.run(words);
        assert_eq!(ran.code, 0, "{ran:?}");
        let warnings = ran.stderr.matches("warning: ").count();
        assert!(warnings == 2 && ran.stderr.contains("2 lines are left out"), "{words:?}: {ran:?}");
    }
    world.write("good.cast", format!("{header}\n{good}"));
    for words in [&["agent", "cast", "export", "good.cast"][..], &["agent", "replay", "good.cast"]] {
        assert_eq!(world.run(words).stderr, "", "{words:?}");
    }
}

#[test]
fn a_recording_does_nothing_to_a_terminal_that_is_told_of_it() {
    let world = World::new();
    let text = "\u{9b}6n\u{9d}52;c;aGk=\u{9c}\u{7f}\x1b[6nshown";
    let header = json!({"version": 2, "width": 40, "height": 10, "title": text, "command": text, "env": {"X": text}});
    let events = [json!([0, "o", text]), json!([0, "m", text]), json!([0, text, {"of": text}])];
    let lines: Vec<String> = std::iter::once(&header).chain(&events).map(|line| format!("{line}\n")).collect();
    world.write("hostile.cast", lines.concat());
    let is_plain = |shown: &str| !shown.contains(|c: char| c.is_control() && !"\r\n".contains(c));
    for words in [
        &["agent", "cast", "export", "hostile.cast"][..],
        &["agent", "cast", "export", "hostile.cast", "--to", "v3"],
        &["agent", "replay", "hostile.cast", "--json"],
        &["agent", "replay", "\u{9b}6n.cast", "--json"],
    ] {
        let mut terminal = Terminal::run(&world.command(words), 60, 20);
        let ended = terminal.end();
        assert!(
            is_plain(&terminal.text()) && ended == if words[2].contains('6') { 3 } else { 0 },
            "{terminal:?}",
            terminal = terminal.text()
        );
    }
    let told = world.json("replay", &["agent", "replay", "hostile.cast"]);
    assert_eq!(
        (&told["recording"]["command"], &told["recording"]["markers"][0]["label"]),
        (&text.into(), &text.into())
    );
    let ran = world.run(["agent", "cast", "export", "hostile.cast"]);
    let back: Vec<Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&back[0], &back[1][2], &back[3][1], &back[3][2]), (&header, &text.into(), &text.into(), &events[2][2]));
    // What is no text goes there only if that was meant.
    let ttyrec = |more: &[&str]| {
        let words = [&["agent", "cast", "export", "hostile.cast", "--to", "ttyrec"], more].concat();
        let mut terminal = Terminal::run(&world.command(words), 60, 20);
        (terminal.end(), terminal.text())
    };
    let (status, shown) = ttyrec(&[]);
    assert!(status == 2 && !shown.contains("shown") && shown.contains("-o FILE"), "{shown:?}");
    let (status, shown) = ttyrec(&["-o", "-"]);
    assert!(status == 0 && shown.contains(text), "{shown:?}");
}

#[test]
fn it_is_played_from_where_one_wants() {
    let world = world();
    let all = world.run(["agent", "replay"]);
    assert!(all.stdout.starts_with("line 0\r\n") && all.stdout.ends_with("line 29\r\n"), "{all:?}");
    let late = world.run(["agent", "replay", "1", "--from", "25.5s"]).stdout;
    assert!(late.contains("line 25") && !late.contains("line 10") && late.ends_with("line 29\r\n"), "{late}");
    // A time before the recording is its beginning, one after it its end.
    let none = world.run(["agent", "replay", "--from", "1h"]).stdout;
    assert!(none.contains("line 29") && !none.contains("line 15"), "{none}");
}

#[test]
fn moments_are_places_to_play_from() {
    let world = World::new();
    let script = "echo first; sleep 0.3; echo second; sleep 0.3; printf '\\033]133;C;cmdline_url=make\\a'; echo third; \
                  printf '\\033]133;D;0\\a'; sleep 0.3; echo fourth";
    assert_eq!(Ran::of(&mut recorded(&world, &["-q"], script)).code, 0);
    let timeline = world.json("timeline", &["timeline"]);
    let moment = timeline["events"].as_array().unwrap().iter().find(|event| event["kind"] == "shell").unwrap();
    assert_eq!(moment["label"], "make");
    let told = world.json("replay", &["agent", "replay"]);
    let markers = told["recording"]["markers"].as_array().unwrap();
    assert!(markers.iter().any(|marker| marker["label"] == "shell: make"), "{markers:?}");
}

#[test]
fn on_a_terminal_keys_seek() {
    // An hour of lines, of which one comes every 50 ms at that speed.
    let world = recording((0..3600).map(|second| (f64::from(second), second)));
    let mut terminal = Terminal::run(&world.command(["agent", "replay", "--speed", "20"]), 60, 20);
    let modes = terminal.before.clone();
    terminal.wait_for("line 2\r\n", 1);
    terminal.type_in(" ");
    let mut before = String::new();
    let stands = || {
        let last = std::mem::replace(&mut before, terminal.text());
        std::thread::sleep(Duration::from_millis(600));
        last == before
    };
    wait(stands, || "nothing to move while it is paused".into());
    // Two moments on, and painted as it was there: what comes after has not been shown.
    terminal.type_in("]");
    terminal.wait_for("\x1b[2J", 1);
    terminal.type_in("\x1b[C");
    terminal.wait_for("\x1b[2J", 2);
    terminal.type_in("[");
    terminal.wait_for("\x1b[2J", 3);
    let painted = terminal.text();
    let painted = painted.rsplit("\x1b[2J").next().unwrap();
    assert!(!painted.contains("line 3599"), "{painted:?}");
    let lines = terminal.text().matches("line ").count();
    terminal.type_in(" ");
    terminal.wait_for("line ", lines + 20);
    terminal.type_in("q");
    assert_eq!(terminal.end(), 0);
    assert_eq!(terminal.modes().local_modes, modes.local_modes);
}

#[test]
fn keys_that_come_together_all_count() {
    let world = recording((0..3600).map(|second| (f64::from(second), second)));
    let mut terminal = Terminal::run(&world.command(["agent", "replay"]), 60, 20);
    terminal.wait_for("line 0\r\n", 1);
    terminal.type_in("\x1b[C\x1b[C q");
    assert_eq!(terminal.end(), 0);
    assert_eq!(terminal.text().matches("\x1b[2J").count(), 2, "{}", terminal.text());
}

#[test]
fn a_signal_ends_it_and_leaves_the_terminal_as_it_was() {
    let world = World::new();
    let hostile = "\\u001b[?1049h\\u001b[?1003h\\u001b[?2004h\\u001b[>1u\\u001b[6n\\u001b]11;?\\u0007\\u001bP+q544e\\u001b\\\\shown";
    let cast =
        format!("{{\"version\":2,\"width\":40,\"height\":10}}\n[0, \"o\", \"{hostile}\"]\n[86400, \"o\", \"never\"]\n");
    world.write("hostile.cast", cast);
    for (signal, status) in [(Signal::SIGTERM, 143), (Signal::SIGHUP, 129), (Signal::SIGINT, 130)] {
        let mut terminal = Terminal::run(&world.command(["agent", "replay", "hostile.cast"]), 60, 20);
        let modes = terminal.before.clone();
        terminal.wait_for("shown", 1);
        assert_ne!(terminal.modes().local_modes, modes.local_modes);
        kill(Pid::from_raw(terminal.process(&[support::ah().as_os_str(), "agent".as_ref()])), signal).unwrap();
        assert_eq!(terminal.end(), status);
        assert_eq!(terminal.modes().local_modes, modes.local_modes);
        let text = terminal.text();
        // The other screen is left, and nothing else was ever on or asked.
        let (before, after) = text.split_once("shown").unwrap();
        assert!(before.ends_with("\x1b[?1049h") && after.starts_with("\x1b[?1049l"), "{text:?}");
    }
}

#[test]
fn keys_and_signals_are_heard_while_the_terminal_takes_nothing() {
    let world = World::new();
    // Frozen before the long one comes.
    let lines = ["\\u001b[?1049hbegin", &"x".repeat(2_000_000), "later"];
    let lines = lines.iter().zip([0, 2, 9]).map(|(text, at)| format!("[{at}, \"o\", \"{text}\"]\n"));
    let cast = format!("{{\"version\":2,\"width\":40,\"height\":10}}\n{}", lines.collect::<String>());
    world.write("long.cast", cast);
    for (key, status) in [(None, 143), (Some("q"), 0), (Some("\x1b[C\x1b[C"), 0)] {
        let mut terminal = Terminal::run(&world.command(["agent", "replay", "long.cast"]), 60, 20);
        let modes = terminal.before.clone();
        terminal.wait_for("begin", 1);
        terminal.freeze(true);
        let player = terminal.process(&[support::ah().as_os_str(), "agent".as_ref()]);
        terminal.wait_until_full(player);
        match key {
            None => kill(Pid::from_raw(player), Signal::SIGTERM).unwrap(),
            Some(key) => terminal.type_in(key),
        }
        wait(|| terminal.child.try_wait().unwrap().is_some(), || format!("the end after {key:?}"));
        terminal.freeze(false);
        assert_eq!(terminal.end(), status);
        assert_eq!(terminal.modes().local_modes, modes.local_modes);
        // What was not shown is left out, and the other screen is left.
        let text = terminal.text();
        assert!(text.len() < 1_000_000 && text.contains("x\x1b[?1049l"), "{} bytes", text.len());
        assert_eq!(text.contains("later"), status == 0 && key != Some("q"));
    }
}

#[test]
fn it_takes_as_long_as_it_says() {
    // A day passes before the second line.
    let world = recording([(0.0, 1), (86400.0, 2)].into_iter());
    for (option, value, least) in [("--speed", "86400", 0.9), ("--idle-limit", "0.5", 0.4)] {
        let since = Instant::now();
        let mut quick = Terminal::run(&world.command(["agent", "replay", option, value]), 60, 20);
        quick.wait_for("line 2", 1);
        assert_eq!(quick.end(), 0);
        let took = since.elapsed().as_secs_f64();
        assert!(took > least, "{took}");
    }
}

#[test]
fn a_compressed_one_plays_the_same_and_goes_by_rule() {
    let world = world();
    let export = || world.run(["agent", "cast", "export", "--to", "v2"]).stdout;
    let played = || world.json("replay", &["agent", "replay"])["recording"]["markers"].clone();
    let before = (export(), played());
    assert!(before.0.lines().count() > 30);
    world.fs(["gc"]);
    let packed = file(&world, "recording.cast.gz");
    assert!(!packed.with_file_name("recording.cast").exists());
    assert_eq!((export(), played()), before);
    // The next one has a number of its own, whatever becomes of this one.
    assert_eq!(world.json("cast-import", &["agent", "cast", "import", "in.cast"])["import"]["number"], 2);
    let words = ["agent", "fs", "prune", "--recordings", "keep-last=0"];
    let prune = world.json("prune", &[&words[..], &["--dry-run"]].concat());
    assert_eq!((&prune["prune"]["policy"], &prune["prune"]["verdicts"]), (&Value::from(""), &Value::Array(Vec::new())));
    let pruned = &prune["prune"]["recordings"];
    assert_eq!((&pruned[0]["stays"], &pruned[1]["reason"]), (&false.into(), &"the newest".into()), "{pruned}");
    let ran = world.run(words);
    assert!(ran.code == 0 && ran.stderr.contains("1 recording to be removed"), "{ran:?}");
    assert!(!packed.exists() && file(&world, "recording-2.cast").exists());
    assert_eq!(world.refused(2, &["agent", "fs", "prune", "--recordings", "keep-manual"]), "invalid-argument");
}

#[test]
fn the_latest_is_the_latest_whatever_the_clock_said_before() {
    let world = world();
    world.run(["agent", "cast", "import", "in.cast"]);
    let tomorrow = std::time::SystemTime::now() + Duration::from_secs(86400);
    let ahead = fs::File::options().append(true).open(file(&world, "recording.cast")).unwrap();
    ahead.set_modified(tomorrow).unwrap();
    assert_eq!(world.json("replay", &["agent", "replay"])["recording"]["number"], 2);
    assert_eq!(world.run(["agent", "fs", "prune", "--recordings", "keep-last=1"]).code, 0);
    assert_eq!(world.json("replay", &["agent", "replay"])["recording"]["number"], 2);
}

/// A world with two recordings, whose state lies on a disk without a byte left.
fn on_a_full_disk() -> World {
    let world = World::new();
    let size = Some("size=4M,mode=700");
    let flags = nix::mount::MsFlags::empty();
    nix::mount::mount(Some("none"), &world.path("state"), Some("tmpfs"), flags, size).unwrap();
    world.capture_on_full_disks();
    world.write("in.cast", "{\"version\":2,\"width\":40,\"height\":10}\n[0, \"o\", \"x\"]\n");
    for _ in 0..2 {
        let ran = world.run(["agent", "cast", "import", "in.cast"]);
        assert_eq!(ran.code, 0, "{ran:?}");
    }
    fs::write(world.path("state").join("filler"), vec![0; 8 << 20]).unwrap_err();
    world
}

fn unmount(world: &World) {
    nix::mount::umount2(&world.path("state"), nix::mount::MntFlags::MNT_DETACH).unwrap();
}

#[test]
fn what_came_to_nothing_is_no_recording() {
    let world = world();
    // A recorder that was killed before its first line.
    fs::write(file(&world, "recording.cast").with_file_name("recording-2.cast"), "").unwrap();
    assert_eq!(world.json("replay", &["agent", "replay"])["recording"]["number"], 1);
    assert_eq!(world.refused(3, &["agent", "replay", "2"]), "not-found");
    let prune = world.json("prune", &["agent", "fs", "prune", "--recordings", "keep-last=1", "--dry-run"]);
    assert_eq!(prune["prune"]["recordings"].as_array().unwrap().len(), 1, "{prune}");
    // Its number means nothing yet.
    assert_eq!(world.json("cast-import", &["agent", "cast", "import", "in.cast"])["import"]["number"], 2);
}

#[test]
fn a_recording_that_cannot_begin_leaves_nothing() {
    if !support::is_root() {
        return support::skip("needs root, to mount a small filesystem");
    }
    let world = on_a_full_disk();
    let ran = world.run(["agent", "record", "--", "echo", "second"]);
    let left = file(&world, "recording.cast").with_file_name("recording-3.cast").exists();
    unmount(&world);
    assert!(ran.code == 1 && !left, "{ran:?}");
}

#[test]
fn what_is_removed_is_gone_under_both_its_names() {
    let world = world();
    assert_eq!(world.run(["agent", "cast", "import", "in.cast"]).code, 0);
    let plain = file(&world, "recording.cast");
    let before = fs::read(&plain).unwrap();
    world.fs(["gc"]);
    // Who compressed it was killed before the plain one went.
    fs::write(&plain, before).unwrap();
    assert_eq!(world.run(["agent", "fs", "prune", "--recordings", "keep-last=1"]).code, 0);
    assert_eq!(world.refused(3, &["agent", "replay", "1"]), "not-found");
}

#[test]
fn a_full_disk_is_freed_of_recordings() {
    if !support::is_root() {
        return support::skip("needs root, to mount a small filesystem");
    }
    let world = on_a_full_disk();
    let ran = world.run(["agent", "fs", "prune", "--recordings", "keep-last=1"]);
    let left = file(&world, "recording-2.cast").with_file_name("recording.cast").exists();
    unmount(&world);
    assert!(ran.code == 0 && !left, "{ran:?}");
}

#[test]
fn what_is_larger_than_all_recordings_may_be_is_not_imported() {
    let world = world();
    world.run(["config", "set", "prune.recordings", "max-size=1000B"]);
    let header = "{\"version\":2,\"width\":40,\"height\":10}";
    world.write("large.cast", format!("{header}\n[0, \"o\", \"{}\"]\n", "x".repeat(1000)));
    world.write("large.ttyrec", [&[0; 8][..], &1000u32.to_le_bytes(), &[b'x'; 1000]].concat());
    for name in ["large.cast", "large.ttyrec"] {
        assert_eq!(world.refused(1, &["agent", "cast", "import", name]), "resource-exhausted");
    }
    assert_eq!(world.json("replay", &["agent", "replay"])["recording"]["number"], 1);
}

#[test]
fn no_more_markers_are_told_than_anybody_reads() {
    let world = World::new();
    let lines = "[0, \"m\", \"\"]\n".repeat(100_010);
    world.write("many.cast", format!("{{\"version\":2,\"width\":40,\"height\":10}}\n{lines}"));
    let label = "x".repeat(12 << 20);
    world.write(
        "long.cast",
        format!("{{\"version\":2,\"width\":40,\"height\":10}}\n[0, \"m\", \"{label}\"]\n[1, \"m\", \"{label}\"]\n"),
    );
    for (name, events, markers) in [("many.cast", 100_010, 100_000), ("long.cast", 2, 1)] {
        let ran = world.run(["agent", "replay", name, "--json"]);
        let told: Value = serde_json::from_str(&ran.stdout).unwrap();
        let told = &told["recording"];
        assert_eq!((&told["events"], told["markers"].as_array().unwrap().len()), (&events.into(), markers));
    }
}
