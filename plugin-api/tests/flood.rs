//! A client that says too much, or does not listen, keeps nobody's call from going on: whoever runs it may hold what others wait for. One that waits is told
//! that its call goes on, where the server likes.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::io::Write;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ah_plugin_api::ipc::{self, Client, connect, serve};
use ah_plugin_api::wire::{Caller, Op, Remote, encode};
use ah_plugin_api::{Context, Dir, ErrorKind, ListRequest, LogLevel, Observer, Place, Provider, Result};
use ah_test_plugins::Trivial;

const LIMIT: Duration = Duration::from_secs(60);

#[derive(serde::Serialize)]
struct Cancel {
    number: u64,
}

fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = u32::try_from(payload.len()).unwrap().to_le_bytes().to_vec();
    bytes.extend([kind, 0, 0, 0]);
    bytes.extend(payload);
    bytes
}

fn wait_for(flag: &AtomicBool) {
    let began = Instant::now();
    while !flag.load(Ordering::Relaxed) {
        assert!(began.elapsed() < LIMIT, "the other side never came so far");
        std::thread::sleep(Duration::from_millis(1));
    }
}

static RUNS: AtomicBool = AtomicBool::new(false);
static SAID: AtomicBool = AtomicBool::new(false);
static LOOKS: AtomicU32 = AtomicU32::new(0);

fn looks_until_cancelled(_: &str, cx: &Context<'_>) {
    RUNS.store(true, Ordering::Relaxed);
    wait_for(&SAID);
    let began = Instant::now();
    while cx.check_cancelled().is_ok() {
        LOOKS.fetch_add(1, Ordering::Relaxed);
        assert!(began.elapsed() < LIMIT, "nobody told it to stop");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// How the server ends whose client says that while its call runs; `at_once`: before the call looks for the first time.
fn ended(said: &[u8], at_once: bool) -> Result<()> {
    let dir = tempfile::tempdir().unwrap();
    let store = Dir::open(dir.path()).unwrap();
    let mut provider = Trivial::new("trivial");
    provider.before = looks_until_cancelled;
    RUNS.store(false, Ordering::Relaxed);
    SAID.store(!at_once, Ordering::Relaxed);
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut also_ours = ours.try_clone().unwrap();
    std::thread::scope(|scope| {
        let server = scope.spawn(move || serve(&theirs, &provider));
        scope.spawn(move || {
            wait_for(&RUNS);
            let _ = also_ours.write_all(said);
            SAID.store(true, Ordering::Relaxed);
        });
        let remote = connect(ours, "the test server", LIMIT).unwrap();
        let _ = remote.list(&Place::new(&store), &ListRequest::default(), &Context::quiet());
        drop(remote);
        server.join().unwrap()
    })
}

#[test]
fn who_says_more_and_more_during_a_call_keeps_no_look_from_ending_and_breaks_the_protocol() {
    let cancel = |number| frame(3, &encode(&Cancel { number }).unwrap());
    let meaningless = [frame(99, b""), cancel(0)].concat();
    ended(&[meaningless.repeat(200), cancel(u64::MAX)].concat(), true).unwrap();
    let looks = LOOKS.load(Ordering::Relaxed);
    assert!(looks >= 20, "400 frames were heard in {looks} looks");
    let error = ended(&[meaningless.repeat(100_000), cancel(u64::MAX)].concat(), false).unwrap_err();
    assert_eq!(error.kind, ErrorKind::InvalidArgument);
}

/// Takes a line only when all of them were written.
#[derive(Default)]
struct Slow(Mutex<Vec<String>>);

static WRITTEN: AtomicBool = AtomicBool::new(false);
const LINES: u32 = 1000;

fn logs_much(operation: &str, cx: &Context<'_>) {
    if operation == "list" {
        let began = Instant::now();
        for _ in 0..LINES {
            cx.log(LogLevel::Warn, &"x".repeat(4000));
            if began.elapsed() >= ipc::PAUSE {
                break;
            }
        }
        let waited = began.elapsed() >= ipc::PAUSE;
        WRITTEN.store(true, Ordering::Relaxed);
        assert!(!waited, "it waited for a client that does not read");
    }
}

impl Observer for Slow {
    fn log(&self, _: LogLevel, message: &str) {
        let began = Instant::now();
        while !WRITTEN.load(Ordering::Relaxed) && began.elapsed() < LIMIT {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.0.lock().unwrap().push(message.to_owned());
    }
}

#[test]
fn a_client_that_does_not_read_is_not_waited_for_and_is_told_what_it_missed() {
    let dir = tempfile::tempdir().unwrap();
    let store = Dir::open(dir.path()).unwrap();
    let mut provider = Trivial::new("trivial");
    provider.before = logs_much;
    let (ours, theirs) = UnixStream::pair().unwrap();
    let slow = Slow::default();
    std::thread::scope(|scope| {
        let server = scope.spawn(move || serve(&theirs, &provider));
        let remote = connect(ours, "the test server", LIMIT).unwrap();
        remote.list(&Place::new(&store), &ListRequest::default(), &Context::new(&slow)).unwrap();
        drop(remote);
        server.join().unwrap().unwrap();
    });
    let mut lines = slow.0.into_inner().unwrap();
    let told = lines.pop().unwrap();
    assert!(lines.iter().all(|line| line.len() == 4000), "whole lines only");
    let left_out: usize = told.split(' ').next().unwrap().parse().unwrap();
    assert!(left_out > 0 && lines.len() + left_out == LINES as usize, "{} lines came, then {told:?}", lines.len());
}

/// Looks of the client, which come about every 20 ms, while its call is not over.
#[derive(Default)]
struct Looks {
    count: AtomicU32,
    /// Whether it shall stop.
    stop: bool,
}

impl Observer for Looks {
    fn cancelled(&self) -> bool {
        if self.count.fetch_add(1, Ordering::Relaxed) == 400 {
            LONG.store(true, Ordering::Relaxed);
        }
        self.stop
    }
}

static LONG: AtomicBool = AtomicBool::new(false);
const SHORT: Duration = Duration::from_secs(5);

fn never_looks(operation: &str, _: &Context<'_>) {
    if operation == "list" {
        wait_for(&LONG);
    }
}

struct Kept(std::sync::Arc<Client>);

impl Caller for Kept {
    fn call(&self, op: Op, request: &[u8], fds: &[BorrowedFd<'_>], cx: &Context<'_>) -> Result<Vec<u8>> {
        self.0.call(op, request, fds, cx)
    }
}

#[test]
fn what_takes_longer_than_a_client_waits_is_heard_to_go_on_where_the_server_likes_and_nothing_behind_the_answer() {
    let dir = tempfile::tempdir().unwrap();
    let store = Dir::open(dir.path()).unwrap();
    let hour = Duration::from_secs(3600);
    for (alive, stop) in [(None, false), (Some(Duration::ZERO), false), (Some(hour), true), (Some(hour), false)] {
        let heard = alive == Some(hour) && !stop;
        let mut provider = Trivial::new("trivial");
        provider.before = never_looks;
        LONG.store(false, Ordering::Relaxed);
        let (ours, theirs) = UnixStream::pair().unwrap();
        let bounds = ipc::Bounds { alive, ..ipc::Bounds::default() };
        std::thread::scope(|scope| {
            let server = scope.spawn(move || ipc::serve_within(&theirs, &provider, bounds));
            let (client, description) = Client::open(ours, "the test server", None, SHORT).unwrap();
            let client = std::sync::Arc::new(client);
            let remote = Remote::new(Kept(client.clone()), description);
            let looks = Looks { stop, ..Looks::default() };
            let listed = remote.list(&Place::new(&store), &ListRequest::default(), &Context::new(&looks));
            LONG.store(true, Ordering::Relaxed);
            assert_eq!(listed.is_ok(), heard, "{alive:?}, {stop}: {listed:?}");
            if heard {
                std::thread::sleep(Duration::from_millis(2500));
                assert!(client.is_open(), "something was said behind the answer");
            }
            drop((remote, client));
            server.join().unwrap().unwrap();
        });
    }
}
