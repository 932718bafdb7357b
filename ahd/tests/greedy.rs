//! One user who takes all they can get: nobody else waits for it.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use ah_host::helper::{self, Helper, Patience};
use ah_plugin_api::{Context, ErrorKind, wire};
use common::{ALICE, ALLOWED, BOB, Daemon, LIMIT, as_user, is_root, request, wait_for};
use nix::sys::signal::{Signal, kill};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sockopt};
use serde::Serialize;

/// Leaves a descriptor unread in `stream` whose last close takes as long as `heard` is open: what was written to it is not taken there.
fn clog(stream: &UnixStream, heard: &mut Vec<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut lingers = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    heard.push(listener.accept().unwrap().0);
    lingers.set_nonblocking(true).unwrap();
    while lingers.write(&[0; 1 << 16]).is_ok() {}
    sockopt::set_socket_linger(&lingers, Some(Duration::from_secs(600))).unwrap();
    send_with(stream, b"x", lingers.as_fd());
}

fn send_with(stream: &UnixStream, bytes: &[u8], fd: BorrowedFd<'_>) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [fd];
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    rustix::net::sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::empty()).unwrap();
}

/// Stops the helper while `work` is done, so that it finds all of it at once.
fn behind_its_back<T>(daemon: &Daemon, work: impl FnOnce() -> T) -> T {
    let pid = nix::unistd::Pid::from_raw(daemon.pid().cast_signed());
    kill(pid, Signal::SIGSTOP).unwrap();
    let outcome = work();
    kill(pid, Signal::SIGCONT).unwrap();
    outcome
}

#[test]
fn a_refused_client_whose_stream_takes_long_to_close_keeps_nobody_waiting() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(ALLOWED);
    let alice = daemon.home(ALICE);
    as_user(ALICE, || alice.open().snapshot(&*daemon.provider(), "one").unwrap());
    let mut heard = Vec::new();
    let mut streams = behind_its_back(&daemon, || {
        as_user(BOB, || {
            let streams: Vec<UnixStream> = (0..40).map(|_| daemon.dial()).collect();
            streams[16..].iter().for_each(|stream| clog(stream, &mut heard));
            streams
        })
    });
    for stream in &mut streams[16..] {
        let mut said = [0; 512];
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let length = stream.read(&mut said).unwrap();
        assert!(String::from_utf8_lossy(&said[..length]).contains("which is the limit"));
    }
    let began = Instant::now();
    let count = as_user(ALICE, || alice.open().list(&*daemon.provider()).unwrap().len());
    assert_eq!(count, 1);
    assert!(began.elapsed() < LIMIT / 4, "{:?}", began.elapsed());
    let tasks = || std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap().count();
    assert!(tasks() < 24, "{} threads", tasks());
    let sockets = || {
        let open = std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap();
        let sockets = open.filter(|entry| {
            let to = entry.as_ref().ok().and_then(|entry| std::fs::read_link(entry.path()).ok());
            to.is_some_and(|to| to.to_string_lossy().starts_with("socket:"))
        });
        sockets.count()
    };
    // Those with which nothing came do not wait behind one that hangs: their clients hold nothing themselves.
    let before = sockets();
    as_user(BOB, || (0..500).for_each(|_| drop(daemon.dial())));
    wait_for("they are closed at once", || sockets() <= before);
    drop((streams, heard));
    wait_for("nothing is left of them", || tasks() == 1 && sockets() == 1);
}

#[test]
fn a_connection_counts_until_it_is_closed() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(r#"{"limits": {"connections": 1}}"#);
    let mut heard = Vec::new();
    let mut first = behind_its_back(&daemon, || {
        as_user(BOB, || {
            let mut stream = daemon.dial();
            // It is let go for this, before the descriptor is read.
            stream.write_all(&[0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0]).unwrap();
            clog(&stream, &mut heard);
            stream
        })
    });
    let mut said = [0; 512];
    assert!(first.read(&mut said).unwrap() > 0);
    std::thread::sleep(Duration::from_millis(300));
    let mut said = vec![0; 512];
    let length = as_user(BOB, || daemon.dial().read(&mut said).unwrap());
    assert!(String::from_utf8_lossy(&said[..length]).contains("which is the limit"), "its thread hangs still");
    drop(heard);
    wait_for("the user is served again", || {
        as_user(BOB, || {
            let helper = Helper { socket: daemon.socket.clone(), named: true, limit: LIMIT };
            helper::load(&helper).is_ok()
        })
    });
}

/// A connection that was greeted, and so counts.
fn greeted(daemon: &Daemon) -> UnixStream {
    let mut stream = daemon.dial();
    stream.write_all(&frame(1, 0, &Hello { version: 1, provider: "copies_ahd" })).unwrap();
    let mut header = [0; 8];
    stream.read_exact(&mut header).unwrap();
    assert_eq!(header[4], 1);
    let length = u32::from_le_bytes(header[..4].try_into().unwrap());
    stream.read_exact(&mut vec![0; length as usize]).unwrap();
    stream
}

#[test]
fn who_has_all_their_connections_waits_for_one_of_them() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(r#"{"allow-containing": ["65534"], "limits": {"connections": 1}}"#);
    let alice = daemon.home(ALICE);
    as_user(ALICE, || {
        let helper = Helper { socket: daemon.socket.clone(), named: true, limit: LIMIT };
        let load = |each| {
            let patience = Patience { each, until: None };
            helper::load_patiently(&helper, patience, &Context::quiet()).map(|mut all| all.remove(0).1)
        };
        let later = |held: UnixStream| {
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(300));
                drop(held);
            })
        };
        let held = greeted(&daemon);
        let refused = load(Duration::from_millis(50)).err().unwrap();
        assert_eq!(refused.kind, ErrorKind::ResourceExhausted);
        assert!(refused.hint.unwrap().contains("limits.connections"));
        let freed = later(held);
        let provider = load(LIMIT).unwrap();
        freed.join().unwrap();
        // So it is when something is to be done.
        let mut held = None;
        wait_for("the connection counts no more", || {
            held = std::panic::catch_unwind(|| greeted(&daemon)).ok();
            held.is_some()
        });
        let freed = later(held.unwrap());
        alice.open().snapshot(&*provider, "one").unwrap();
        freed.join().unwrap();
    });
}

#[test]
fn one_program_needs_one_connection_whatever_the_helper_offers() {
    if !is_root() {
        return;
    }
    let config = r#"{"allow-containing": ["65534"], "limits": {"connections": 1}}"#;
    let daemon = Daemon::with(config, &["copies", "btrfs"], &[]);
    let alice = daemon.home(ALICE);
    as_user(ALICE, || {
        let helper = Helper { socket: daemon.socket.clone(), named: true, limit: LIMIT };
        let patience = Patience { each: LIMIT, until: None };
        let all = helper::load_patiently(&helper, patience, &Context::quiet()).unwrap();
        assert_eq!(all.len(), 2);
        let began = Instant::now();
        for _ in 0..2 {
            all.iter().for_each(|(_, provider)| drop(alice.open().probe(&**provider).unwrap()));
        }
        // So it is when they are asked at once.
        std::thread::scope(|scope| {
            for (_, provider) in &all {
                scope.spawn(|| alice.open().probe(&**provider).unwrap());
            }
        });
        assert!(began.elapsed() < LIMIT / 4, "{:?}", began.elapsed());
    });
}

#[test]
fn who_waits_for_a_connection_has_calls_left_then() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(r#"{"limits": {"connections": 1, "calls-per-minute": 30}}"#);
    as_user(BOB, || {
        let held = greeted(&daemon);
        for _ in 0..60 {
            let mut said = [0; 512];
            let length = daemon.dial().read(&mut said).unwrap();
            assert!(String::from_utf8_lossy(&said[..length]).contains("connections to the helper"));
        }
        drop(held);
        let helper = Helper { socket: daemon.socket.clone(), named: true, limit: LIMIT };
        wait_for("the user is served again", || helper::load(&helper).is_ok());
    });
}

/// What the helper answers to a call that fails.
fn refusal(stream: &mut UnixStream, op: &str, request: Vec<u8>) -> ErrorKind {
    stream.write_all(&frame(2, 0, &Call { number: 1, op, request })).unwrap();
    let mut header = [0; 8];
    stream.read_exact(&mut header).unwrap();
    assert_eq!(header[4], 8);
    let length = u32::from_le_bytes(header[..4].try_into().unwrap());
    let mut payload = vec![0; length as usize];
    stream.read_exact(&mut payload).unwrap();
    wire::decode::<ah_plugin_api::Error>(&payload).unwrap().kind
}

#[test]
fn a_call_counts_whatever_is_in_it() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(r#"{"limits": {"calls-per-minute": 30}}"#);
    let list = || wire::encode(&List { paths: Paths { store: b"/" }, request: Default::default() }).unwrap();
    let calls = [
        // No operation, no request, one without its descriptor, and one that the helper has not.
        ("steal", vec![7; 100_000]),
        ("list", vec![0xff; 1000]),
        ("list", list()),
        ("usage", list()),
    ];
    for ((op, request), uid) in calls.into_iter().zip(BOB..) {
        as_user(uid, || {
            let mut stream = greeted(&daemon);
            // On a slow machine the share comes back nearly as fast as it is used.
            let is_refused = |_: &_| refusal(&mut stream, op, request.clone()) == ErrorKind::ResourceExhausted;
            let refused = (0..1000).find(is_refused);
            assert!(refused.is_some_and(|at| at > 10), "{op}: {refused:?}");
        });
        let told = daemon.log.lock().unwrap().iter().filter(|line| line.contains(&format!("\"uid\":{uid},"))).count();
        assert!(told <= 1, "one line a minute");
        assert!(daemon.said(&format!("\"uid\":{uid},")));
    }
}

#[test]
fn what_a_user_has_mounted_again_and_again_is_said_out_of_their_share() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(ALLOWED);
    let alice = daemon.home(ALICE);
    // As who takes it away in a mount namespace of their own, by removing the directory that it is on.
    let clone = as_user(ALICE, || {
        let (provider, open) = (daemon.provider(), alice.open());
        let snapshot = open.snapshot(&*provider, "one").unwrap();
        open.fork(&*provider, &snapshot.reference, "c").unwrap().path
    });
    // A minute's share is 64,000 bytes, and each says where, which alone is more than 30.
    let said = (0..2000).find(|_| {
        nix::mount::umount(&clone).unwrap();
        as_user(ALICE, || drop(daemon.provider()));
        daemon.log.lock().unwrap().iter().any(|line| line.contains("has too much written"))
    });
    assert!(said.is_some());
}

#[derive(Serialize)]
struct Hello {
    version: u32,
    provider: &'static str,
}

#[derive(Serialize)]
struct Call<'a> {
    number: u64,
    op: &'a str,
    #[serde(with = "serde_bytes")]
    request: Vec<u8>,
}

#[derive(Serialize)]
struct List {
    paths: Paths,
    request: ah_plugin_api::ListRequest,
}

#[derive(Serialize)]
struct Paths {
    #[serde(with = "serde_bytes")]
    store: &'static [u8],
}

fn frame<T: Serialize>(kind: u8, fds: u8, value: &T) -> Vec<u8> {
    let payload = wire::encode(value).unwrap();
    let length = u32::try_from(payload.len()).unwrap();
    [&length.to_le_bytes()[..], &[kind, fds, 0, 0], &payload].concat()
}

/// A connection that has asked for a list, of which nothing but the beginning is read.
fn ask_for_list(daemon: &Daemon, token: &std::fs::File) -> UnixStream {
    let stream = greeted(daemon);
    let list = List { paths: Paths { store: b"/" }, request: ah_plugin_api::ListRequest::default() };
    let call = Call { number: 1, op: "list", request: wire::encode(&list).unwrap() };
    send_with(&stream, &frame(2, 1, &call), token.as_fd());
    stream
}

/// The most that it had in memory, MiB.
fn peak(daemon: &Daemon) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() >> 10
}

#[test]
fn lists_that_nobody_reads_fit_into_memory() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(ALLOWED);
    let alice = daemon.home(ALICE);
    as_user(ALICE, || {
        let (provider, open) = (daemon.provider(), alice.open());
        let taken = (0..400).find_map(|number| {
            let mut long = request(&number.to_string(), Some("label"));
            long.attributes.insert("text".to_owned(), "x".repeat(65_000));
            provider.snapshot(&open.place(), &long, &Context::quiet()).err().map(|refused| (number, refused))
        });
        drop(provider);
        let token = std::fs::File::open(alice.at("store/ahd-token")).unwrap();
        let mut asked: Vec<UnixStream> = (0..15).map(|_| ask_for_list(&daemon, &token)).collect();
        for stream in &mut asked {
            // The answer has come, and is written as far as there is room.
            let mut header = [0; 8];
            stream.set_read_timeout(Some(LIMIT)).unwrap();
            stream.read_exact(&mut header).unwrap();
            while header[4] == 6 {
                stream.read_exact(&mut header).unwrap();
            }
            assert_eq!(header[4], 7);
        }
        let peak = peak(&daemon);
        assert!(peak < 256, "{peak} MiB");
        drop(asked);
        let (number, refused) = taken.unwrap();
        assert_eq!(refused.kind, ErrorKind::ResourceExhausted);
        assert!(refused.hint.unwrap().contains("ah agent fs prune"));
        // All that could be taken is listed, and what goes makes room.
        let provider = daemon.provider();
        // The helper hears in its own time that connections are closed.
        let began = std::time::Instant::now();
        let list = loop {
            match open.list(&*provider) {
                Err(error) if error.kind == ErrorKind::ResourceExhausted && began.elapsed() < LIMIT => {
                    std::thread::sleep(std::time::Duration::from_millis(20));
                }
                list => break list.unwrap(),
            }
        };
        assert_eq!(list.len(), number);
        let first = ah_plugin_api::DestroyRequest::Snapshot(list[0].reference.clone());
        open.destroy(&*provider, &first).unwrap();
        open.snapshot(&*provider, "another").unwrap();
    });
}
