//! Clients and libraries that behave badly, and an administrator who slips: nobody else is harmed, and nothing is left half.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ah_plugin_api::{Context, DestroyRequest, Error, ErrorKind, FileName, MountRequest, Observer, ReclaimRequest};
use common::{ALICE, ALLOWED, BOB, Daemon, LIMIT, as_user, is_root, request, wait_for};

/// That a user with a snapshot is served, and soon.
fn is_served(daemon: &Daemon, home: &common::Home, snapshots: usize) {
    let began = Instant::now();
    let count = as_user(home.uid, || home.open().list(&*daemon.provider()).unwrap().len());
    assert_eq!(count, snapshots);
    assert!(began.elapsed() < LIMIT / 2, "{:?}", began.elapsed());
}

#[test]
fn frames_that_are_too_large_or_never_end_harm_nobody() {
    if !is_root() {
        return;
    }
    let mut daemon = Daemon::start(ALLOWED);
    let alice = daemon.home(ALICE);
    as_user(ALICE, || alice.open().snapshot(&*daemon.provider(), "one").unwrap());
    let mut slow = as_user(BOB, || {
        let mut giant = daemon.dial();
        giant.write_all(&[0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0]).unwrap();
        let mut said = Vec::new();
        giant.read_to_end(&mut said).unwrap();
        assert!(String::from_utf8_lossy(&said).contains("resource-exhausted"));
        let mut slow: Vec<UnixStream> = (0..10).map(|_| daemon.dial()).collect();
        for (i, stream) in slow.iter_mut().enumerate() {
            // Nothing at all, a part of a header, a header without its payload, rubbish.
            let _ = stream.write_all(&[90, 0, 0, 0, 1, 0, 0, 0, 1][..i.min(9)]);
        }
        slow
    });
    is_served(&daemon, &alice, 1);
    // Those that say nothing are let go.
    let mut said = Vec::new();
    slow[0].set_read_timeout(Some(LIMIT)).unwrap();
    slow[0].read_to_end(&mut said).unwrap();
    is_served(&daemon, &alice, 1);
    assert!(daemon.is_alive());
}

#[test]
fn a_thousand_connections_of_one_user_keep_nobody_else_out() {
    if !is_root() {
        return;
    }
    let mut daemon = Daemon::start(ALLOWED);
    let alice = daemon.home(ALICE);
    as_user(ALICE, || alice.open().snapshot(&*daemon.provider(), "one").unwrap());
    let held: Vec<UnixStream> = as_user(BOB, || {
        let helped = || {
            // Those beyond the limit are told so at once.
            let mut streams = Vec::new();
            for _ in 0..1000 {
                streams.push(daemon.dial());
            }
            streams
        };
        helped()
    });
    is_served(&daemon, &alice, 1);
    let mut turned_away = 0;
    for mut stream in &held {
        stream.set_nonblocking(true).unwrap();
        let mut said = [0; 512];
        turned_away += usize::from(matches!(stream.read(&mut said), Ok(n) if n > 0));
    }
    assert!(turned_away >= 900, "{turned_away}");
    let threads = fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap().count();
    assert!(threads < 100, "{threads} threads");
    drop(held);
    let bob = daemon.home(BOB);
    wait_for("the user is served again", || as_user(BOB, || bob.open().snapshot(&*ah_or(&daemon), "one").is_ok()));
    assert!(daemon.is_alive());
}

/// The provider, once the helper has room for it.
fn ah_or(daemon: &Daemon) -> std::sync::Arc<dyn ah_plugin_api::Provider> {
    let helper = ah_host::helper::Helper { socket: daemon.socket.clone(), named: true, limit: Duration::from_secs(20) };
    let began = Instant::now();
    loop {
        match ah_host::helper::load(&helper) {
            Ok(mut all) if !all.is_empty() => return all.remove(0).1,
            refused => {
                assert!(began.elapsed() < LIMIT, "{:?}", refused.err());
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

#[test]
fn limits_hold() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(
        r#"{"allow-containing": ["65534"],
            "limits": {"views": 2, "clones": 1, "snapshots": 3, "stores": 1, "calls-per-minute": 60}}"#,
    );
    let alice = daemon.home(ALICE);
    // Who is refused hears the name of what to ask the administrator for.
    let names = |refused: Error, name: &str| {
        assert_eq!(refused.kind, ErrorKind::ResourceExhausted, "{refused:?}");
        assert!(refused.hint.as_ref().unwrap().contains(&format!("limits.{name} ")), "{refused:?}");
    };
    as_user(ALICE, || {
        let (provider, open) = (daemon.provider(), alice.open());
        let one = open.snapshot(&*provider, "one").unwrap().reference;
        for (name, fits) in [("a", true), ("b", true), ("c", false)] {
            let view = open.mount(&*provider, &one, name);
            assert_eq!(view.is_ok(), fits, "{view:?}");
            view.err().into_iter().for_each(|refused| names(refused, "views"));
        }
        assert!(open.fork(&*provider, &one, "d").is_ok());
        names(open.fork(&*provider, &one, "e").unwrap_err(), "clones");
        open.snapshot(&*provider, "two").unwrap();
        open.snapshot(&*provider, "three").unwrap();
        names(open.snapshot(&*provider, "four").unwrap_err(), "snapshots");
        fs::remove_file(alice.at("store/ahd-token")).unwrap();
        names(open.snapshot(&*provider, "one").unwrap_err(), "stores");
        let mut long = request("long", Some(&"x".repeat(5000)));
        assert!(provider.snapshot(&open.place(), &long, &Context::quiet()).is_err());
        long.label = None;
        long.attributes.insert("a".into(), "x".repeat(100_000));
        assert!(provider.snapshot(&open.place(), &long, &Context::quiet()).is_err());
        long.attributes = (0..65).map(|number| (number.to_string(), String::new())).collect();
        let many = provider.snapshot(&open.place(), &long, &Context::quiet()).unwrap_err();
        assert_eq!(many.kind, ErrorKind::InvalidArgument);
        // The bucket fills by one a second while it is emptied.
        names((0..10_000).find_map(|_| open.probe(&*provider).err()).unwrap(), "calls-per-minute");
    });
}

#[test]
fn stores_that_hold_nothing_make_room_and_no_others_do() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(r#"{"allow-containing": ["65534"], "limits": {"stores": 2}}"#);
    let alice = daemon.home(ALICE);
    let token = alice.at("store/ahd-token");
    as_user(ALICE, || {
        let (provider, open) = (daemon.provider(), alice.open());
        open.snapshot(&*provider, "one").unwrap();
        let first = fs::read_to_string(&token).unwrap();
        fs::remove_file(&token).unwrap();
        let two = open.snapshot(&*provider, "two").unwrap().reference;
        let second = fs::read_to_string(&token).unwrap();
        let view = open.mount(&*provider, &two, "view").unwrap();
        fs::remove_file(&token).unwrap();
        // Who cannot have a store is told so before it is chosen.
        let probe = open.probe(&*provider).unwrap();
        assert!(!probe.usable && probe.reason.contains("is the limit"), "{probe:?}");
        assert!(probe.remedy.unwrap().contains("ah agent fs rm"));
        assert_eq!(open.snapshot(&*provider, "three").unwrap_err().kind, ErrorKind::ResourceExhausted);
        let third = fs::read_to_string(&token).unwrap();
        // Nothing that anybody has was given back for it.
        fs::write(&token, &second).unwrap();
        assert_eq!(open.list(&*provider).unwrap().len(), 1);
        open.unmount(&*provider, &view.reference).unwrap();
        open.destroy(&*provider, &DestroyRequest::Snapshot(two)).unwrap();
        fs::write(&token, &third).unwrap();
        assert!(open.probe(&*provider).unwrap().usable);
        open.snapshot(&*provider, "three").unwrap();
        assert_eq!(open.list(&*provider).unwrap().len(), 1);
        fs::write(&token, &first).unwrap();
        assert_eq!(open.list(&*provider).unwrap().len(), 1);
        // Whose store was given back gets another one as soon as there is room.
        fs::write(&token, &second).unwrap();
        assert!(open.list(&*provider).unwrap().is_empty());
        assert_eq!(open.snapshot(&*provider, "four").unwrap_err().kind, ErrorKind::ResourceExhausted);
    });
    assert_eq!(daemon.state(&format!("stores/{ALICE}")).len(), 2);
}

/// Wants to stop after a while.
struct Until<'a>(&'a AtomicBool);

impl Observer for Until<'_> {
    fn cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

#[test]
fn putting_a_store_in_order_waits_for_who_works_in_it() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(ALLOWED);
    let alice = daemon.home(ALICE);
    as_user(ALICE, || {
        let (provider, open) = (daemon.provider(), alice.open());
        open.snapshot(&*provider, "one").unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let working = scope.spawn(|| {
                let (provider, slow) = (daemon.provider(), request("slow", Some("slow")));
                provider.snapshot(&open.place(), &slow, &Context::new(&Until(&stop))).unwrap_err()
            });
            std::thread::sleep(Duration::from_millis(200));
            let ordering = scope.spawn(|| {
                let request = ReclaimRequest { auto: false, forgotten: Vec::new() };
                provider.reclaim(&open.place(), &request, &Context::quiet())
            });
            std::thread::sleep(Duration::from_millis(300));
            assert!(!working.is_finished() && !ordering.is_finished(), "it is worked in");
            stop.store(true, Ordering::Relaxed);
            assert_eq!(working.join().unwrap().kind, ErrorKind::Cancelled);
            ordering.join().unwrap().unwrap();
        });
        assert_eq!(open.list(&*provider).unwrap().len(), 1);
    });
}

#[test]
fn a_client_that_goes_away_in_the_middle_leaves_nothing_half() {
    if !is_root() {
        return;
    }
    let mut daemon = Daemon::start(ALLOWED);
    let alice = daemon.home(ALICE);
    as_user(ALICE, || {
        let (provider, open) = (daemon.provider(), alice.open());
        open.snapshot(&*provider, "one").unwrap();
        // It stops when asked to.
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(200));
                stop.store(true, Ordering::Relaxed);
            });
            let watched = Until(&stop);
            let slow = request("slow", Some("slow"));
            let error = provider.snapshot(&open.place(), &slow, &Context::new(&watched)).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Cancelled);
        });
    });
    // It stops when nobody is there any more: a process that is killed.
    for call in ["snapshot", "views"] {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "victim", "--ignored", "--nocapture"])
            .env("AHD_TEST_SOCKET", &daemon.socket)
            .env("AHD_TEST_HOME", &alice.root)
            .env("AHD_TEST_CALL", call)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        // It says when it is at it.
        let mut out = child.stdout.take().unwrap();
        let mut said = String::new();
        let mut byte = [0];
        while !said.contains("GO") {
            assert_eq!(out.read(&mut byte).unwrap(), 1, "{said}");
            said.push(char::from(byte[0]));
        }
        std::thread::sleep(Duration::from_millis(50));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    wait_for("calls that nobody waits for end", || {
        fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap().count() == 1
    });
    // What was whole at that moment may be there; it is known, and goes.
    assert_eq!(daemon.mounts().len(), daemon.state("records").len());
    as_user(ALICE, || {
        let (provider, open) = (daemon.provider(), alice.open());
        assert_eq!(open.list(&*provider).unwrap().len(), 1);
        let names = fs::read_dir(alice.at("target")).unwrap();
        let forgotten = names.map(|entry| FileName::new(entry.unwrap().file_name().into_encoded_bytes()).unwrap());
        let reclaim = ah_plugin_api::ReclaimRequest { auto: false, forgotten: forgotten.collect() };
        provider.reclaim(&open.place(), &reclaim, &Context::quiet()).unwrap();
        assert_eq!(fs::read_dir(alice.at("target")).unwrap().count(), 0);
    });
    assert!(daemon.mounts().is_empty() && daemon.state("records").is_empty());
    assert!(daemon.is_alive());
}

#[test]
fn a_socket_of_a_helper_that_was_killed_and_cannot_end_is_taken_over() {
    if !is_root() {
        return;
    }
    let mut daemon = Daemon::start(ALLOWED);
    let alice = daemon.home(ALICE);
    as_user(ALICE, || alice.open().snapshot(&*daemon.provider(), "one").unwrap());
    daemon.kill();
    for full in [false, true] {
        fs::remove_file(&daemon.socket).unwrap();
        // Nobody has asked how it ended, and what it listened at is open still.
        let mut killed = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "listener", "--ignored", "--nocapture"])
            .env("AHD_TEST_SOCKET", &daemon.socket)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        let mut out = std::io::BufReader::new(killed.stdout.take().unwrap());
        while !said.contains("SLEEPER") {
            said.clear();
            assert_ne!(std::io::BufRead::read_line(&mut out, &mut said).unwrap(), 0);
        }
        let sleeper: i32 = said.trim().rsplit(' ').next().unwrap().parse().unwrap();
        wait_for("it has ended", || {
            let stat = fs::read_to_string(format!("/proc/{}/stat", killed.id())).unwrap();
            stat.rsplit_once(") ").unwrap().1.starts_with('Z')
        });
        // Who waits there, waits for ever; and who comes when there is no more room, too.
        let waiting: Vec<UnixStream> = if full { (0..2).map(|_| daemon.dial()).collect() } else { Vec::new() };
        let outcome = daemon.run();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(sleeper), nix::sys::signal::Signal::SIGKILL).unwrap();
        killed.wait().unwrap();
        drop(waiting);
        outcome.unwrap();
        is_served(&daemon, &alice, 1);
        daemon.kill();
    }
    // One that lives is left alone.
    let _lives = std::os::unix::net::UnixListener::bind(daemon.base.path().join("socket/lives")).unwrap();
    daemon.socket = daemon.base.path().join("socket/lives");
    assert!(daemon.run().unwrap_err().contains("another program listens"));
}

/// Not a test: who listens, and ends while another process has that open.
#[test]
#[ignore = "run by another test"]
fn listener() {
    let Some(path) = std::env::var_os("AHD_TEST_SOCKET") else { return };
    let listener = std::os::unix::net::UnixListener::bind(path).unwrap();
    // Room for two who wait.
    rustix::net::listen(&listener, 1).unwrap();
    let open = std::os::fd::OwnedFd::from(listener);
    let null = std::process::Stdio::null;
    let sleeper =
        std::process::Command::new("sleep").arg("600").stdin(open).stdout(null()).stderr(null()).spawn().unwrap();
    println!("SLEEPER {}", sleeper.id());
    std::process::exit(0);
}

/// Not a test: the client that is killed.
#[test]
#[ignore = "run by another test"]
fn victim() {
    let (Some(socket), Some(root)) = (std::env::var_os("AHD_TEST_SOCKET"), std::env::var_os("AHD_TEST_HOME")) else {
        return;
    };
    let home = common::Home { uid: ALICE, root: root.into() };
    as_user(ALICE, || {
        let helper = ah_host::helper::Helper { socket: socket.into(), named: true, limit: LIMIT };
        let provider = ah_host::helper::load(&helper).unwrap().remove(0).1;
        let open = home.open();
        println!("GO");
        if std::env::var("AHD_TEST_CALL").unwrap() == "snapshot" {
            let _ = provider.snapshot(&open.place(), &request("slow", Some("slow")), &Context::quiet());
            return;
        }
        let snapshot = open.list(&*provider).unwrap().remove(0).reference;
        for i in 0.. {
            let name = FileName::new(format!("v{i}")).unwrap();
            let mount = MountRequest { snapshot: snapshot.clone(), name, paths: Vec::new() };
            let view = provider.mount(&open.place(), &mount, &Context::quiet()).unwrap();
            open.unmount(&*provider, &view.reference).unwrap();
        }
    });
}

#[test]
fn a_helper_that_is_killed_in_the_middle_leaves_nothing_that_it_does_not_find() {
    if !is_root() {
        return;
    }
    let mut daemon = Daemon::start(ALLOWED);
    let alice = daemon.home(ALICE);
    as_user(ALICE, || alice.open().snapshot(&*daemon.provider(), "one").unwrap());
    for round in 0..12_u64 {
        let provider = daemon.provider();
        let (stop, alice) = (AtomicBool::new(false), &alice);
        std::thread::scope(|scope| {
            let stop = &stop;
            scope.spawn(move || {
                as_user(ALICE, || {
                    let open = alice.open();
                    let Ok(mut list) = open.list(&*provider) else { return };
                    let one = list.remove(0).reference;
                    for i in 0.. {
                        let name = format!("r{round}-{i}");
                        let view =
                            open.mount(&*provider, &one, &name).and_then(|v| open.unmount(&*provider, &v.reference));
                        let clone = open.fork(&*provider, &one, &name).and_then(|clone| {
                            open.destroy(&*provider, &ah_plugin_api::DestroyRequest::Clone(clone.reference))
                        });
                        if view.is_err() || clone.is_err() || stop.load(Ordering::Relaxed) {
                            return;
                        }
                    }
                });
            });
            std::thread::sleep(Duration::from_millis(20 + round * 3));
            daemon.kill();
            stop.store(true, Ordering::Relaxed);
        });
        daemon.run().unwrap();
        let records = daemon.state("records").len();
        let mounts = daemon.mounts();
        assert_eq!(mounts.len(), records, "{mounts:?}");
        let names = fs::read_dir(alice.at("target")).unwrap().count();
        assert_eq!(names, records, "directories without anything in them are left");
        assert_eq!(
            daemon.state("clones").len(),
            mounts.iter().filter(|(_, options)| !options.starts_with("ro")).count()
        );
        as_user(ALICE, || {
            let (provider, open) = (daemon.provider(), alice.open());
            let names = fs::read_dir(alice.at("target")).unwrap();
            let forgotten =
                names.map(|entry| FileName::new(entry.unwrap().file_name().into_encoded_bytes()).unwrap()).collect();
            let reclaim = ah_plugin_api::ReclaimRequest { auto: false, forgotten };
            provider.reclaim(&open.place(), &reclaim, &Context::quiet()).unwrap();
        });
        assert!(daemon.mounts().is_empty() && daemon.state("records").is_empty());
    }
}

#[test]
fn a_library_that_panics_takes_nobody_down_and_those_that_would_leak_are_not_offered() {
    if !is_root() {
        return;
    }
    let mut daemon = Daemon::with(ALLOWED, &["copies", "good", "init_panics", "crashes"], &[]);
    let alice = daemon.home(ALICE);
    as_user(ALICE, || {
        let (provider, open) = (daemon.provider(), alice.open());
        open.snapshot(&*provider, "one").unwrap();
        let error = provider.snapshot(&open.place(), &request("two", Some("panic")), &Context::quiet()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Internal);
        open.snapshot(&*provider, "two").unwrap();
        let helper = ah_host::helper::Helper { socket: daemon.socket.clone(), named: true, limit: LIMIT };
        assert_eq!(ah_host::helper::load(&helper).unwrap().len(), 1, "one is offered");
    });
    // It reads files and writes them anew.
    assert!(daemon.said("the provider good is not offered"));
    assert!(daemon.said("libah_provider_crashes.so is not used"));
    assert!(daemon.is_alive());
}

#[test]
fn the_environment_does_not_come_through() {
    if !is_root() {
        return;
    }
    let evil = tempfile::tempdir().unwrap();
    let path = evil.path().display().to_string();
    let env = [("AH_PROVIDER_PATH", path.as_str()), ("HOME", &path), ("TMPDIR", &path), ("AH_HOME", &path)];
    let daemon = Daemon::with(ALLOWED, &["copies"], &env);
    let alice = daemon.home(ALICE);
    as_user(ALICE, || {
        let probe = alice.open().probe(&*daemon.provider()).unwrap();
        assert!(probe.reason.starts_with("0 variables"), "{}", probe.reason);
    });
    assert_eq!(fs::read(format!("/proc/{}/environ", daemon.pid())).unwrap(), b"");
    assert_eq!(fs::read_dir(evil.path()).unwrap().count(), 0);
}

#[test]
fn what_others_could_have_changed_is_refused() {
    if !is_root() {
        return;
    }
    let mut daemon = Daemon::start(ALLOWED);
    daemon.kill();
    let base = daemon.base.path().to_owned();
    let mode = |path: &str, mode| fs::set_permissions(base.join(path), fs::Permissions::from_mode(mode)).unwrap();
    let refused = |why: &str, daemon: &mut Daemon| {
        daemon.log.lock().unwrap().clear();
        let said = daemon.run().unwrap_err();
        assert!(said.contains(why), "{said}");
        daemon.kill();
    };
    // A stopped program says no more, so that waiting for it would take the whole limit.
    for (path, others, own) in [("ahd.conf", 0o666, 0o644), ("state", 0o755, 0o700), ("socket", 0o777, 0o755)] {
        mode(path, others);
        refused("ahd:", &mut daemon);
        mode(path, own);
    }
    chown(base.join("ahd.conf"), Some(ALICE), None).unwrap();
    refused("is not to be trusted", &mut daemon);
    chown(base.join("ahd.conf"), Some(0), None).unwrap();
    for wrong in ["{", r#"{"allow-containig": []}"#] {
        fs::write(base.join("ahd.conf"), wrong).unwrap();
        refused("is wrong", &mut daemon);
    }
    fs::write(base.join("ahd.conf"), ALLOWED).unwrap();
    // A library that others can write to is not used; the helper itself comes up.
    for (path, others, own) in [("providers/libah_provider_copies.so", 0o666, 0o644), ("providers", 0o777, 0o755)] {
        mode(path, others);
        daemon.log.lock().unwrap().clear();
        daemon.run().unwrap();
        assert!(daemon.said("is not used"), "{path}");
        let helper = ah_host::helper::Helper { socket: daemon.socket.clone(), named: true, limit: LIMIT };
        assert!(ah_host::helper::load(&helper).unwrap().is_empty());
        daemon.kill();
        mode(path, own);
    }
    // Two at once, and who is not root.
    daemon.run().unwrap();
    let ahd = |uid: u32| {
        use std::os::unix::process::CommandExt;
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_ahd"));
        command.arg("--state").arg(base.join("state")).arg("--config").arg(base.join("ahd.conf"));
        command.arg("--socket").arg(base.join("socket/other")).arg("--provider-dir").arg(base.join("providers"));
        let out = command.uid(uid).gid(uid).output().unwrap();
        assert!(!out.status.success());
        String::from_utf8_lossy(&out.stderr).into_owned()
    };
    assert!(ahd(0).contains("another ahd"));
    assert!(ahd(ALICE).contains("system's root"));
}
