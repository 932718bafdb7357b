//! One user who takes all they can get: nobody else waits for it.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use common::{ALICE, ALLOWED, BOB, Daemon, LIMIT, as_user, is_root, wait_for};
use nix::sys::signal::{Signal, kill};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sockopt};

/// Leaves a descriptor unread in `stream` whose last close takes as long as `heard` is open: what was written to it is not taken there.
fn clog(stream: &UnixStream, heard: &mut Vec<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut lingers = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    heard.push(listener.accept().unwrap().0);
    lingers.set_nonblocking(true).unwrap();
    while lingers.write(&[0; 1 << 16]).is_ok() {}
    sockopt::set_socket_linger(&lingers, Some(Duration::from_secs(600))).unwrap();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [lingers.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    rustix::net::sendmsg(stream, &[IoSlice::new(b"x")], &mut control, SendFlags::empty()).unwrap();
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
    drop((streams, heard));
    wait_for("nothing is left of them", || {
        let open = std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap();
        let sockets = open.filter(|entry| {
            let to = entry.as_ref().ok().and_then(|entry| std::fs::read_link(entry.path()).ok());
            to.is_some_and(|to| to.to_string_lossy().starts_with("socket:"))
        });
        tasks() == 1 && sockets.count() == 1
    });
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
            let helper = ah_host::helper::Helper { socket: daemon.socket.clone(), named: true, limit: LIMIT };
            ah_host::helper::load(&helper).is_ok()
        })
    });
}
