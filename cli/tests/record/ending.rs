//! How a recording ends whose output is read slowly, or by nobody any more.

use std::io::Read;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::{self, World};
use crate::terminal::{Terminal, wait};
use crate::through::{in_pipeline, output, recorded};

#[test]
fn a_command_that_was_ended_is_not_outlived_for_a_terminal_that_takes_nothing() {
    let world = World::new();
    let scripts = [("exec yes", 143, "recording.cast"), ("trap 'exit 5' TERM; yes & wait", 5, "recording-2.cast")];
    for (script, status, name) in scripts {
        let mut terminal = Terminal::run(&recorded(&world, &[], script), 80, 24);
        let modes = terminal.before.clone();
        terminal.wait_for("y\r\n", 1);
        terminal.freeze(true);
        let recorder = terminal.process(&[support::ah().as_os_str(), "agent".as_ref()]);
        terminal.wait_until_full(recorder);
        let mut sent = 0;
        let ended = || {
            // The first one ends the command. Where that does not end by it, whoever wants it to be over sends another.
            if sent == 0 || status != 143 {
                let _ = kill(Pid::from_raw(recorder), Signal::SIGTERM);
                sent += 1;
            }
            terminal.child.try_wait().unwrap().is_some()
        };
        wait(ended, || format!("the end of {script}"));
        terminal.freeze(false);
        assert_eq!(terminal.end(), status);
        assert_eq!(terminal.modes().local_modes, modes.local_modes);
        let text = terminal.text();
        assert!(!text.contains("recorded"), "words were waited for");
        assert!(output(&world, name).starts_with(text.trim_end_matches(|c| c != '\n')));
    }
}

#[test]
fn whichever_of_several_signals_ended_a_command_it_is_not_outlived() {
    let world = World::new();
    let mut terminal = Terminal::run(&recorded(&world, &[], "exec yes"), 80, 24);
    terminal.wait_for("y\r\n", 1);
    terminal.freeze(true);
    let recorder = terminal.process(&[support::ah().as_os_str(), "agent".as_ref()]);
    terminal.wait_until_full(recorder);
    // Both come at once, as those of a service's end may.
    for signal in [Signal::SIGSTOP, Signal::SIGHUP, Signal::SIGTERM, Signal::SIGCONT] {
        kill(Pid::from_raw(recorder), signal).unwrap();
    }
    wait(|| terminal.child.try_wait().unwrap().is_some(), || "the end".into());
    terminal.freeze(false);
    let status = terminal.end();
    assert!([128 + 1, 128 + 15].contains(&status), "{status}");
}

#[test]
fn a_command_that_was_ended_is_not_outlived_for_a_pipe_that_nobody_reads() {
    let world = World::new();
    let mut terminal = in_pipeline(&world, &[], "exec yes", "| { read line; echo $line; read stop </dev/tty; }");
    terminal.wait_for("y", 1);
    let recorder = terminal.process(&[support::ah().as_os_str(), "agent".as_ref()]);
    terminal.wait_until_full(recorder);
    kill(Pid::from_raw(recorder), Signal::SIGTERM).unwrap();
    wait(|| kill(Pid::from_raw(recorder), None).is_err(), || "the recorder's end".into());
    // The terminal takes words.
    terminal.wait_for("not all that CMD wrote is in its standard output: nobody took it", 1);
    terminal.type_in("\r");
    terminal.end();
}

#[test]
fn ctrl_c_wants_a_command_to_be_over_in_a_pipeline_too() {
    for (script, ended) in [("exec yes", true), ("trap 'echo >ended; exit 5' INT; yes & wait", false)] {
        let world = World::new();
        let reader = "| { trap '' INT; read line; echo $line; read stop </dev/tty; }";
        let mut terminal = in_pipeline(&world, &["-q"], script, reader);
        terminal.wait_for("y", 1);
        let recorder = terminal.process(&[support::ah().as_os_str(), "agent".as_ref()]);
        terminal.wait_until_full(recorder);
        terminal.type_in("\x03");
        if !ended {
            // Whoever wants what does not end by it to be over types another.
            wait(|| world.root().join("ended").exists(), || "the command's end".into());
        }
        let gone = || {
            let gone = kill(Pid::from_raw(recorder), None).is_err();
            if !gone && !ended {
                terminal.type_in("\x03");
            }
            gone
        };
        wait(gone, || format!("the recorder's end after {script}"));
        terminal.type_in("\r");
        terminal.end();
    }
}

#[test]
fn a_reader_that_is_slow_gets_all_that_a_command_wrote_that_was_ended() {
    let world = World::new();
    // On standard error, which is a pipe for the command: with the one to here it takes all of this at once, and the command has ended then.
    let script = "trap 'exec >&2; seq 1 20000; echo END; exit 143' TERM; echo ready >&2; while :; do sleep 0.05; done";
    let mut command = recorded(&world, &["-q"], script);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut from = child.stderr.take().unwrap();
    let mut shown = vec![0; "ready\n".len()];
    from.read_exact(&mut shown).unwrap();
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGTERM).unwrap();
    // Longer than what nobody takes is waited for, and never that long without taking any.
    let (since, mut page) = (Instant::now(), [0; 4096]);
    while since.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(400));
        from.read_exact(&mut page).unwrap();
        shown.extend(page);
    }
    from.read_to_end(&mut shown).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(143));
    assert!(shown.ends_with(b"\n19999\n20000\nEND\n"), "{} bytes", shown.len());
}

#[test]
fn what_a_command_leaves_behind_does_not_keep_its_recorder() {
    // A pty is hung up with its command; a pipe stays whoever's has it, and is always full here.
    for to in ["", ">&2"] {
        let world = World::new();
        let script = format!("setsid yes {to} & until test -e over; do sleep 0.05; done; exit 3");
        let mut command = recorded(&world, &["-q"], &script);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let taken = Arc::new(AtomicUsize::new(0));
        let (output, errors) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let (of_output, of_errors) = (Arc::clone(&taken), Arc::clone(&taken));
        std::thread::spawn(move || read_slowly(output, &of_output));
        std::thread::spawn(move || read_slowly(errors, &of_errors));
        wait(|| taken.load(Ordering::Relaxed) > 256 << 10, || "what is left behind to write".into());
        world.write("over", "");
        let mut status = None;
        let ended = || {
            status = child.try_wait().unwrap();
            status.is_some()
        };
        wait(ended, || format!("the end {to}"));
        assert_eq!(status.unwrap().code(), Some(3));
    }
}

/// Reads to the end, more slowly than anybody writes.
fn read_slowly(mut from: impl Read, taken: &AtomicUsize) {
    let mut page = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut page) {
        taken.fetch_add(count, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_reader_that_goes_ends_the_command_as_it_would_without() {
    let world = World::new();
    let mut command = recorded(&world, &["-q"], "while :; do echo y || exit 3; done");
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let mut status = None;
    wait(
        || {
            status = child.try_wait().unwrap();
            status.is_some()
        },
        || "the end of a command whose output nobody reads".into(),
    );
    assert_eq!(status.unwrap().code(), Some(128 + 13));
}
