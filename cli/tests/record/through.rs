//! What goes through a recording: bytes, sizes, signals, stopping, exit status, and whatever the terminal was like before.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use ah_recording::cast::{EventKind, Reader};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::Termios;
use serde_json::Value;

use crate::support::{self, Ran, User, World};
use crate::terminal::{Terminal, wait};

/// `ah agent record … -- sh -c SCRIPT`.
pub(crate) fn recorded(world: &World, options: &[&str], script: &str) -> Command {
    let mut words = vec!["agent", "record"];
    words.extend(options);
    words.extend(["--", "sh", "-c", script]);
    world.command(words)
}

/// The file of a session's recording.
pub(crate) fn file(world: &World, name: &str) -> std::path::PathBuf {
    let mut found = Vec::new();
    for workspace in fs::read_dir(world.path("state/workspaces")).unwrap() {
        let sessions = workspace.unwrap().path().join("sessions");
        for session in fs::read_dir(sessions).into_iter().flatten() {
            found.push(session.unwrap().path().join(name));
        }
    }
    found.into_iter().find(|path| path.exists()).unwrap_or_else(|| panic!("there is no {name}"))
}

/// The events of the recording of that name; none of it is torn.
pub(crate) fn events(world: &World, name: &str) -> Vec<EventKind> {
    let (events, torn) = read(world, name);
    assert!(!torn, "{name} is torn");
    events
}

/// The events of a recording, and whether its last line is not whole.
fn read(world: &World, name: &str) -> (Vec<EventKind>, bool) {
    let bytes = fs::read(file(world, name)).unwrap();
    let mut reader = Reader::open(&bytes[..]).unwrap();
    let mut events = Vec::new();
    while let Some(placed) = reader.next_event().unwrap() {
        events.push(placed.event.kind);
    }
    assert_eq!(reader.faults(), 0);
    (events, reader.torn())
}

/// All that a recording shows.
pub(crate) fn output(world: &World, name: &str) -> String {
    text_of(events(world, name))
}

fn text_of(events: Vec<EventKind>) -> String {
    let shown = |event: EventKind| if let EventKind::Output(text) = event { Some(text) } else { None };
    events.into_iter().filter_map(shown).collect()
}

#[test]
fn bytes_go_through_unchanged_and_are_recorded() {
    let world = World::new();
    let mut terminal = Terminal::run(
        &recorded(&world, &[], r"printf 'caf\303\251 \377\376 \033[1mb\033[0m\n'; stty size; tty"),
        90,
        31,
    );
    assert_eq!(terminal.end(), 0, "{}", terminal.text());
    let shown = terminal.shown();
    let expected = b"caf\xc3\xa9 \xff\xfe \x1b[1mb\x1b[0m\r\n31 90\r\n/dev/pts/";
    assert!(shown.starts_with(expected), "{}", terminal.text());
    let recorded = output(&world, "recording.cast");
    assert!(recorded.starts_with("café \u{fffd}\u{fffd} \x1b[1mb\x1b[0m\r\n31 90\r\n/dev/pts/"), "{recorded:?}");
    let head = fs::read_to_string(file(&world, "recording.cast")).unwrap();
    let head: Value = serde_json::from_str(head.lines().next().unwrap()).unwrap();
    assert_eq!((&head["version"], &head["width"], &head["height"]), (&2.into(), &90.into(), &31.into()));
    assert!(head["timestamp"].is_u64() && head["command"].as_str().unwrap().starts_with("sh -c "), "{head}");
    let mode = fs::metadata(file(&world, "recording.cast")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
}

#[test]
fn without_a_terminal_streams_stay_what_they_were() {
    let world = World::new();
    let script = "cat; printf 'err\\n' >&2; test -t 0 && echo in; test -t 1 && echo out; test -t 2 && echo err; exit 7";
    let mut command = recorded(&world, &["-q"], script);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Longer than a terminal takes for a line, and with bytes that would mean something to one.
    let input = [b"x".repeat(10_000), b"\n\x03\x04\x1a\n".to_vec()].concat();
    child.stdin.take().unwrap().write_all(&input).unwrap();
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(7));
    assert_eq!(ended.stdout, [&input[..], b"out\n"].concat());
    assert_eq!(String::from_utf8_lossy(&ended.stderr), "err\n");
    let shown = output(&world, "recording.cast");
    assert!(shown.contains("err\r\n"), "{:?}", &shown[shown.len() - 40..]);
    // Two streams have no order between them.
    assert!(shown.replace("err\r\n", "").contains("\u{1a}\r\nout\r\n"), "{:?}", &shown[shown.len() - 40..]);
}

#[test]
fn what_leads_to_a_ptys_other_side_comes_out_of_that_pty() {
    let world = World::new();
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let other = openpt(flags).unwrap();
    grantpt(&other).unwrap();
    unlockpt(&other).unwrap();
    let pty = ioctl_tiocgptpeer(&other, flags).unwrap();
    let mut command = recorded(&world, &["-q"], "echo shown");
    assert!(command.stdin(Stdio::null()).stdout(other.try_clone().unwrap()).status().unwrap().success());
    let mut fds = [PollFd::new(&pty, PollFlags::IN)];
    wait(|| poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0, || "what was shown".into());
    let mut line = [0; 100];
    let count = rustix::io::read(&pty, &mut line).unwrap();
    assert_eq!(String::from_utf8_lossy(&line[..count]), "shown\n");
}

/// `through_shell`, with `after` behind the command, on a terminal.
pub(crate) fn in_pipeline(world: &World, options: &[&str], script: &str, after: &str) -> Terminal {
    let mut shell = through_shell(&recorded(world, options, script), &format!("\"$@\" {after}; exit"));
    shell.env("PATH", "/usr/bin:/bin");
    Terminal::run(&shell, 80, 24)
}

#[test]
fn what_is_typed_and_told_beside_a_redirected_output_is_not_in_it() {
    let world = World::new();
    let script = "echo asks >/dev/tty; read x; echo out=$x; read y </dev/tty; echo err=$y >&2; test -t 1 || exit 7";
    let mut terminal = in_pipeline(&world, &["-q"], script, "> out; echo status=$?");
    terminal.wait_for("asks", 1);
    assert_eq!(terminal.modes().local_modes, terminal.before.local_modes);
    terminal.type_in("typed\r");
    terminal.wait_for("typed", 1);
    terminal.type_in("more\r");
    terminal.wait_for("status=7", 1);
    assert_eq!(terminal.end(), 0);
    assert_eq!(terminal.text(), "asks\r\ntyped\r\nmore\r\nerr=more\r\nstatus=7\r\n");
    assert_eq!(fs::read_to_string(world.root().join("out")).unwrap(), "out=typed\n");
    let shown = output(&world, "recording.cast");
    assert!(shown.contains("out=typed\r\n") && shown.contains("err=more\r\n"), "{shown:?}");
}

#[test]
fn the_rest_of_a_pipeline_has_the_terminal_too() {
    let world = World::new();
    // As a pager does: it shows what comes, and reads its keys from the terminal.
    let pager = r#"| { while read line; do echo "got $line"; done; echo key?; read key </dev/tty; echo "key=$key"; }"#;
    let mut terminal = in_pipeline(&world, &["-q"], "echo one; echo two; sleep 0.3; echo three", pager);
    terminal.wait_for("got two", 1);
    terminal.wait_for("key?", 1);
    terminal.type_in("k\r");
    terminal.wait_for("key=k", 1);
    assert_eq!(terminal.end(), 0);
    assert_eq!(terminal.text(), "got one\r\ngot two\r\ngot three\r\nkey?\r\nk\r\nkey=k\r\n");
}

#[test]
fn ctrl_c_and_signals_come_once_to_a_command_in_a_pipeline() {
    let world = World::new();
    let script = "trap 'echo got int' INT; trap 'echo got term; exit 5' TERM; echo ready; while :; do sleep 0.05; done";
    let mut terminal = in_pipeline(&world, &["-q"], script, "| (trap '' INT; cat)");
    terminal.wait_for("ready", 1);
    terminal.type_in("\x03");
    terminal.wait_for("got int", 1);
    std::thread::sleep(Duration::from_millis(300));
    let recorder = Pid::from_raw(terminal.process(&[support::ah().as_os_str(), "agent".as_ref()]));
    // By somebody who means the recorder alone.
    kill(recorder, Signal::SIGINT).unwrap();
    terminal.wait_for("got int", 2);
    std::thread::sleep(Duration::from_millis(300));
    kill(recorder, Signal::SIGTERM).unwrap();
    terminal.wait_for("got term", 1);
    terminal.end();
    assert_eq!(terminal.text().matches("got int").count(), 2, "{}", terminal.text());
}

#[test]
fn a_reader_that_goes_ends_all_that_write_into_a_pipeline() {
    let world = World::new();
    let mut terminal = in_pipeline(&world, &["-q"], "(yes; echo $? > last); exit 3", "| head -n 2");
    assert_eq!(terminal.end(), 0);
    assert_eq!(terminal.text(), "y\r\ny\r\n");
    assert_eq!(fs::read_to_string(world.root().join("last")).unwrap(), "141\n");
}

#[test]
fn ends_as_the_command_ends() {
    let world = World::new();
    let status = |words: &[&str]| world.run(["agent", "record", "-q", "--"].iter().chain(words)).code;
    assert_eq!(status(&["true"]), 0);
    assert_eq!(status(&["sh", "-c", "exit 42"]), 42);
    assert_eq!(status(&["sh", "-c", "kill -TERM $$"]), 143);
    assert_eq!(status(&["sh", "-c", "kill -KILL $$"]), 137);
    world.write("no-program", "x");
    for (code, kind, words) in [(127, "not-found", "no-such-program"), (126, "permission-denied", "./no-program")] {
        let ran = world.run(["agent", "record", "--json", "--", words]);
        assert_eq!(ran.code, code, "{ran:?}");
        let error: Value = serde_json::from_str(&ran.stdout).unwrap();
        support::schema::check("error", &error);
        assert_eq!(error["error"]["kind"], kind);
    }
    // Nothing has begun with it.
    assert_eq!(world.run(["agent", "record", "--session", "apart", "--", "no-such-program"]).code, 127);
    assert!(!world.run(["session", "list"]).stdout.contains("apart"));
    let count = |kind: &str| {
        let timeline = world.json("timeline", &["timeline"]);
        timeline["events"].as_array().unwrap().iter().filter(|event| event["kind"] == kind).count()
    };
    assert_eq!((count("session-start"), count("session-end")), (4, 4));
    // What did not run left no recording: four of them.
    let ran = world.run(["agent", "record", "-q", "--", "true"]);
    assert_eq!(ran.code, 0);
    assert!(file(&world, "recording-5.cast").exists());
    // Only the attempt tells of this one that it cannot be run. The moments that tell of that have no other recording.
    world.write("lost", "#!/no/such/program\n");
    fs::set_permissions(world.root().join("lost"), fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(world.run(["agent", "record", "-q", "--", "./lost"]).code, 126);
    assert_eq!((count("session-start"), count("session-end")), (6, 6));
    assert_eq!(world.run(["agent", "record", "-q", "--", "true"]).code, 0);
    let folder = file(&world, "recording-7.cast");
    assert!(!folder.with_file_name("recording-6.cast").exists());
}

#[test]
fn a_program_that_is_nowhere_is_not_found_though_a_folder_of_the_path_is_shut() {
    if !support::is_root() {
        return support::skip("needs root, to act as an ordinary user whom a folder is shut to");
    }
    let world = World::of(User::Ordinary);
    let (shut, open) = (world.path("shut"), world.path("open"));
    for folder in [&shut, &open] {
        fs::create_dir(folder).unwrap();
        fs::write(folder.join("no-program"), "x").unwrap();
    }
    fs::set_permissions(&shut, fs::Permissions::from_mode(0o700)).unwrap();
    let path = |folder: &std::path::Path| format!("{}:/usr/bin:/bin", folder.display());
    for words in [&["agent", "record", "--"][..], &["agent", "fs", "exec", "--"]] {
        let ran = |folder: &std::path::Path, program: &str| {
            Ran::of(world.command(words.iter().chain(&[program])).env("PATH", path(folder)))
        };
        for program in ["no-such-program", "no-program"] {
            let ran = ran(&shut, program);
            assert!(ran.code == 127 && !ran.stderr.contains("denied"), "{ran:?}");
        }
        // One that is there.
        let ran = ran(&open, "no-program");
        assert!(ran.code == 126 && ran.stderr.contains("denied"), "{ran:?}");
    }
}

#[test]
fn the_last_of_much_output_is_not_lost() {
    let world = World::new();
    for round in 1..=3 {
        let ran = Ran::of(&mut recorded(&world, &["-q"], "seq 1 20000; printf END"));
        assert!(ran.stdout.starts_with("1\n2\n") && ran.stdout.ends_with("20000\nEND"), "{}", ran.stdout.len());
        let name = if round == 1 { "recording.cast".to_owned() } else { format!("recording-{round}.cast") };
        assert!(output(&world, &name).ends_with("19999\r\n20000\r\nEND"), "{name}");
    }
}

#[test]
fn sizes_are_followed_and_one_of_0_by_0_is_no_obstacle() {
    let world = World::new();
    let script = "stty size; trap 'stty size; exit 0' WINCH; echo ready; while :; do sleep 0.05; done";
    let mut terminal = Terminal::run(&recorded(&world, &["--format", "v3"], script), 0, 0);
    terminal.wait_for("ready", 1);
    terminal.resize(101, 33);
    assert_eq!(terminal.end(), 0, "{}", terminal.text());
    assert!(terminal.text().starts_with("0 0\r\nready\r\n33 101"), "{}", terminal.text());
    let events = events(&world, "recording.cast");
    assert!(events.contains(&EventKind::Resize { cols: 101, rows: 33 }), "{events:?}");
    assert_eq!(events.last(), Some(&EventKind::Exit(0)));
    let head = fs::read_to_string(file(&world, "recording.cast")).unwrap();
    let head: Value = serde_json::from_str(head.lines().next().unwrap()).unwrap();
    assert_eq!((&head["term"]["cols"], &head["term"]["rows"]), (&80.into(), &24.into()));
}

#[test]
fn keys_and_signals_reach_the_command() {
    let world = World::new();
    let script = "trap 'echo got int' INT; trap 'echo got term; exit 5' TERM; echo ready; while :; do sleep 0.05; done";
    let mut terminal = Terminal::run(&recorded(&world, &[], script), 80, 24);
    terminal.wait_for("ready", 1);
    terminal.type_in("\x03");
    terminal.wait_for("got int", 1);
    let recorder = terminal.process(&[support::ah().as_os_str(), "agent".as_ref()]);
    kill(Pid::from_raw(recorder), Signal::SIGTERM).unwrap();
    terminal.wait_for("got term", 1);
    assert_eq!(terminal.end(), 5);
}

/// Where every write fails as on a full disk.
fn full() -> fs::File {
    fs::File::options().write(true).open("/dev/full").unwrap()
}

#[test]
fn a_command_whose_output_cannot_be_written_sees_that_and_goes_on() {
    let world = World::new();
    // More than is taken from it before its writing fails.
    let script = "seq 1000000; echo seq=$? >&2; echo more; echo echo=$? >&2";
    let mut command = recorded(&world, &[], script);
    let ended = command.stdin(Stdio::null()).stdout(full()).stderr(Stdio::piped()).output().unwrap();
    let told = String::from_utf8_lossy(&ended.stderr);
    assert!(told.contains("seq=1\n") && told.contains("echo=1\n"), "{told}");
    assert!(told.contains("standard output: No space left on device") && told.contains("hint: "), "{told}");
    assert_eq!(ended.status.code(), Some(1), "{told}");
    assert!(output(&world, "recording.cast").starts_with("1\r\n2\r\n"));
}

#[test]
fn output_that_is_written_only_once_the_command_has_ended_fails_it_too() {
    let world = World::new();
    for (script, status, name) in [("echo shown", 1, "recording.cast"), ("echo shown; exit 4", 4, "recording-2.cast")] {
        let mut command = recorded(&world, &[], script);
        let ended = command.stdin(Stdio::null()).stdout(full()).stderr(Stdio::piped()).output().unwrap();
        assert_eq!(ended.status.code(), Some(status), "{}", String::from_utf8_lossy(&ended.stderr));
        assert_eq!(output(&world, name), "shown\r\n");
    }
    let mut command = recorded(&world, &[], "echo out; echo err >&2");
    let ended = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(full()).output().unwrap();
    assert_eq!((ended.status.code(), &ended.stdout[..]), (Some(1), &b"out\n"[..]));
    assert!(output(&world, "recording-3.cast").contains("err\r\n"));
}

#[test]
fn a_command_beside_the_terminal_sees_that_its_output_cannot_be_written() {
    let world = World::new();
    let script = "(seq 1000000; echo seq=$? >&2)";
    let mut terminal = in_pipeline(&world, &[], script, ">/dev/full; echo status=$?");
    terminal.wait_for("status=1", 1);
    assert_eq!(terminal.end(), 0);
    // What a closed pipe does.
    assert!(terminal.text().contains("seq=141\r\n"), "{}", terminal.text());
    assert!(terminal.text().contains("standard output: No space left on device"), "{}", terminal.text());
}

/// A shell with jobs, and `ah` as `$AH`.
fn bash(world: &World) -> Command {
    let command = world.command(["unused"]);
    let mut shell = Command::new("bash");
    shell.args(["--norc", "--noprofile", "-i"]).current_dir(world.root()).env_clear();
    shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell.env("PS1", "% ").env("AH", support::ah());
    shell
}

#[test]
fn ctrl_z_stops_the_job_and_fg_continues_it() {
    let world = World::new();
    let mut terminal = Terminal::run(&bash(&world), 80, 24);
    terminal.wait_for("% ", 1);
    terminal
        .type_in("\"$AH\" agent record -q -- sh -c 'echo begun; sleep 1; read line; echo \"line $line\"; exit 9'\r");
    terminal.wait_for("begun\r\n", 1);
    // Stopped between its vfork and its exec, `sleep` would keep its shell from stopping: no fault of the recorder's.
    terminal.process(&["sleep".as_ref()]);
    let modes = terminal.modes();
    terminal.type_in("\x1a");
    terminal.wait_for("Stopped", 1);
    assert_ne!(terminal.modes().local_modes, modes.local_modes, "the shell has its terminal again");
    terminal.type_in("echo between\r");
    terminal.wait_for("\nbetween", 1);
    terminal.type_in("fg\r");
    std::thread::sleep(Duration::from_millis(1500));
    terminal.type_in("typed\r");
    // What is typed sooner goes to the recorder that is ending.
    terminal.wait_for("line typed\r\n% ", 1);
    terminal.type_in("echo status $?\r");
    terminal.wait_for("status 9", 1);
    terminal.type_in("exit\r");
    terminal.end();
    assert!(output(&world, "recording.cast").contains("line typed"));
}

#[test]
fn a_job_that_begins_in_the_background_has_an_ordinary_terminal_once_it_is_in_the_foreground() {
    let world = World::new();
    let mut terminal = Terminal::run(&bash(&world), 80, 24);
    terminal.wait_for("% ", 1);
    // The terminal's erase character is the shell's to set; what reads keys one by one is the shell itself then.
    terminal.type_in(
        "stty erase '#'; \"$AH\" agent record -q -- sh -c 'echo begun; read line; echo \"got=$line\"; stty -a' &\r",
    );
    terminal.wait_for("begun\r", 1);
    terminal.type_in("fg\r");
    // The shell's line editor lets Ctrl-C be a signal.
    let is_taken = |terminal: &Terminal| !terminal.modes().local_modes.contains(rustix::termios::LocalModes::ISIG);
    wait(|| is_taken(&terminal), || "the recorder to have the terminal".into());
    terminal.type_in("me#\r");
    terminal.wait_for("\r\ngot=m\r\n", 1);
    terminal.wait_for("erase = #;", 1);
    // What is typed before the recorder has given it back is the recorded command's.
    wait(|| !is_taken(&terminal), || "the shell to have the terminal again".into());
    terminal.type_in("exit\r");
    terminal.end();
}

#[test]
fn a_killed_recorder_leaves_what_was_shown_and_the_terminal_as_it_was() {
    // Where nobody hears of a hangup, too.
    for trap in ["", "trap '' HUP"] {
        killed_recorder(trap);
    }
}

fn killed_recorder(trap: &str) {
    let world = World::new();
    // Ends with its terminal. Without its pauses it would soon be much to read.
    let script = "i=0; while printf 'line %06d\\n' $i; do i=$((i+1)); [ $((i%200)) != 0 ] || sleep 0.02; done";
    let record = recorded(&world, &[], script);
    let mut terminal = Terminal::run(&through_shell(&record, trap), 80, 24);
    let before = terminal.before.clone();
    terminal.wait_for("line 000500", 1);
    assert_ne!(terminal.modes().local_modes, before.local_modes);
    let recorder = terminal.process(&[support::ah().as_os_str(), "agent".as_ref()]);
    let shown = terminal.text();
    // Soon, and without its end.
    let (last, recording) = (shown.lines().rev().nth(1).unwrap(), file(&world, "recording.cast"));
    wait(|| text_of(read(&world, "recording.cast").0).contains(last), || format!("{last} in the recording"));
    kill(Pid::from_raw(recorder), Signal::SIGKILL).unwrap();
    assert_eq!(terminal.end(), 137);
    // The process that watched over the command takes a torn line off, and gives the terminal its modes back.
    wait(|| terminal.modes().local_modes == before.local_modes, || "the terminal's modes".into());
    wait(|| fs::read(&recording).unwrap().ends_with(b"\n"), || "a whole last line".into());
    let recorded = output(&world, "recording.cast");
    let whole = shown.rfind(last).unwrap();
    assert!(recorded.starts_with(&shown[..whole]), "{} of {} bytes", recorded.len(), whole);
    let told = world.json("replay", &["agent", "replay"]);
    assert_eq!((&told["recording"]["torn"], &told["recording"]["live"]), (&false.into(), &false.into()));
}

#[test]
fn a_recorder_that_was_begun_in_the_background_and_is_killed_leaves_the_terminal_as_it_took_it() {
    let world = World::new();
    let command = world.command(["unused"]);
    // One that puts no modes back itself, and with a terminal whose modes are not those of any new one, as they are where people type.
    let mut shell = through_shell(&command, "stty iutf8; set -- sh -i");
    shell.env("PS1", "% ").env("AH", support::ah());
    let mut terminal = Terminal::run(&shell, 80, 24);
    terminal.wait_for("% ", 1);
    let before = terminal.modes();
    terminal.type_in("\"$AH\" agent record -q -- sh -c 'echo begun; exec sleep 1000' &\r");
    terminal.wait_for("begun\r", 1);
    terminal.type_in("fg\r");
    let is_as_before = |terminal: &Terminal| {
        let modes = |of: &Termios| (of.input_modes, of.output_modes, of.local_modes);
        modes(&terminal.modes()) == modes(&before)
    };
    wait(|| !is_as_before(&terminal), || "the recorder to have the terminal".into());
    let recorder = terminal.process(&[support::ah().as_os_str(), "agent".as_ref()]);
    kill(Pid::from_raw(recorder), Signal::SIGKILL).unwrap();
    wait(|| is_as_before(&terminal), || "the terminal's modes".into());
    terminal.type_in("exit\r");
    terminal.end();
}

#[test]
fn a_recording_ends_before_the_disk_is_full_and_nothing_else_does() {
    if !support::is_root() {
        return support::skip("needs root, to mount a small filesystem");
    }
    let world = World::new();
    let state = world.path("state");
    // What a recording leaves free, a fiftieth, has to be enough for the snapshot that is taken meanwhile.
    nix::mount::mount(Some("none"), &state, Some("tmpfs"), nix::mount::MsFlags::empty(), Some("size=12M,mode=700"))
        .unwrap();
    world.capture_on_full_disks();
    let ran = Ran::of(&mut recorded(&world, &[], "seq 1 1800000; echo END; exit 4"));
    assert_eq!(ran.code, 4, "{}", ran.stderr);
    assert!(ran.stdout.ends_with("1800000\nEND\n"));
    assert!(ran.stderr.contains("the recording ends before the command") && ran.stderr.contains("hint: "), "{ran:?}");
    stopped(&world, "recording.cast");
    assert!(!ran.stderr.contains("moments are missing"), "the timeline has room: {ran:?}");
    nix::mount::umount2(&state, nix::mount::MntFlags::MNT_DETACH).unwrap();
}

#[test]
fn a_write_that_fails_in_the_middle_of_a_line_ends_the_recording() {
    let world = World::new();
    world.fs(["snapshot"]);
    let record = recorded(&world, &[], "seq 1 300000; grep SigIgn: /proc/self/status; echo END; exit 4");
    // A file may have no more than half a megabyte, as if the disk were full then; the system has a signal for that, too.
    for (name, disposition) in [("recording.cast", "default"), ("recording-2.cast", "ignore")] {
        let limit = format!("set -- env --{disposition}-signal=XFSZ \"$@\"; ulimit -f 1024");
        let ran = Ran::of(&mut through_shell(&record, &limit));
        assert_eq!(ran.code, 4, "{}", ran.stderr);
        // Whether the command ignores it is whoever's that started this.
        let mask = ran.stdout.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
        let ignored = u64::from_str_radix(mask.trim(), 16).unwrap() & (1 << (Signal::SIGXFSZ as i32 - 1)) != 0;
        assert_eq!(ignored, disposition == "ignore", "{mask}");
        assert!(ran.stdout.contains("\n300000\n") && ran.stdout.ends_with("\nEND\n"));
        assert!(ran.stderr.contains("the recording ends before the command"), "{}", ran.stderr);
        stopped(&world, name);
    }
}

#[test]
fn ends_with_its_command_where_the_end_of_children_is_ignored() {
    let world = World::new();
    let ran = Ran::of(&mut through_shell(
        &recorded(&world, &["-q"], "echo shown; exit 3"),
        "set -- timeout -s KILL 60 env --ignore-signal=CHLD \"$@\"",
    ));
    assert_eq!((ran.code, ran.stdout.as_str()), (3, "shown\n"), "{ran:?}");
}

/// The same command, run by a shell that first runs `before`.
pub(crate) fn through_shell(command: &Command, before: &str) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{before}\nexec \"$@\""), "sh"]).arg(command.get_program()).args(command.get_args());
    shell.env_clear().envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell.current_dir(command.get_current_dir().unwrap());
    shell
}

/// The recording has the beginning of what was shown, whole, and says at its end that it has no more.
fn stopped(world: &World, name: &str) {
    let events = events(world, name);
    assert!(
        matches!(events.last(), Some(EventKind::Marker(label)) if label.contains("ends here")),
        "{:?}",
        events.last()
    );
    let shown = output(world, name);
    assert!(shown.starts_with("1\r\n2\r\n") && !shown.contains("END"), "{} bytes", shown.len());
}
