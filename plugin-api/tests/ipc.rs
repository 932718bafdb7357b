//! The contract over a socket: the same answers, progress and cancellation on the way, and no harm from a bad other side. One file,
//! since all of it needs the same provider behind the same socket.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::io::{Read, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ah_plugin_api::ipc::{self, Client, connect, serve};
use ah_plugin_api::wire::{Remote, encode};
use ah_plugin_api::{
    CapturePolicy, Context, Dir, Durability, Error, ErrorKind, ListRequest, LogLevel, LookupRequest, Observer, Place,
    ProbeRequest, Progress, Provider, ReadRequest, RelPath, Result, SnapshotId, SnapshotRequest, Timestamp,
    UsageRequest,
};
use ah_test_plugins::Trivial;

const LIMIT: Duration = Duration::from_secs(20);

struct Scene {
    _dir: tempfile::TempDir,
    store: Dir,
    workspace: Dir,
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let open = |name: &str| {
            std::fs::create_dir(dir.path().join(name)).unwrap();
            Dir::open(dir.path().join(name)).unwrap()
        };
        let (store, workspace) = (open("store"), open("workspace"));
        std::fs::write(workspace.path().join("a.txt"), "hello").unwrap();
        Self { _dir: dir, store, workspace }
    }

    fn place(&self) -> Place<'_> {
        Place::new(&self.store).with_workspace(&self.workspace)
    }
}

fn request(id: &str) -> SnapshotRequest {
    SnapshotRequest {
        id: SnapshotId::new(id).unwrap(),
        created: Timestamp { secs: 1, nanos: 2 },
        label: None,
        attributes: std::collections::BTreeMap::new(),
        durability: Durability::Instant,
        policy: CapturePolicy::default(),
    }
}

/// Runs `test` with a client of `provider`; gives what the server says at the end.
fn with_client(provider: &dyn Provider, limit: Duration, test: impl FnOnce(Remote<Client>)) -> Result<()> {
    let (ours, theirs) = UnixStream::pair().unwrap();
    std::thread::scope(|scope| {
        let server = scope.spawn(move || serve(&theirs, provider));
        test(connect(ours, "the test server", limit).unwrap());
        server.join().unwrap()
    })
}

#[derive(Default)]
struct Notes {
    progress: Mutex<Vec<Progress>>,
    log: Mutex<Vec<(LogLevel, String)>>,
    cancel: AtomicBool,
}

impl Observer for Notes {
    fn progress(&self, progress: &Progress) {
        self.progress.lock().unwrap().push(progress.clone());
    }

    fn cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }

    fn log(&self, level: LogLevel, message: &str) {
        self.log.lock().unwrap().push((level, message.to_owned()));
    }
}

#[test]
fn a_provider_answers_as_if_it_were_here() {
    let scene = Scene::new();
    let trivial = Trivial::new("trivial");
    with_client(&trivial, LIMIT, |remote| {
        let notes = Notes::default();
        let cx = Context::new(&notes);
        assert_eq!(remote.describe(), trivial.describe());
        assert!(remote.probe(&scene.place(), &ProbeRequest::default(), &cx).unwrap().usable);
        let snapshot = remote.snapshot(&scene.place(), &request("one"), &cx).unwrap();
        assert_eq!(notes.progress.lock().unwrap().len(), 1);
        assert_eq!(*notes.log.lock().unwrap(), [(LogLevel::Info, "kept 1 files".to_owned())]);
        assert_eq!(
            trivial.list(&scene.place(), &ListRequest::default(), &cx).unwrap(),
            std::slice::from_ref(&snapshot)
        );

        let mut output = tempfile::tempfile().unwrap();
        let read = ReadRequest { snapshot: snapshot.reference.clone(), path: RelPath::new("a.txt").unwrap() };
        remote.read(&Place::new(&scene.store).with_output(output.as_fd()), &read, &cx).unwrap();
        let mut text = String::new();
        output.rewind().unwrap();
        output.read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello");

        let missing = ReadRequest { path: RelPath::new("b").unwrap(), ..read };
        let place = Place::new(&scene.store).with_output(output.as_fd());
        let (here, there) = (trivial.read(&place, &missing, &cx), remote.read(&place, &missing, &cx));
        assert_eq!(here, there);
        assert_eq!(there.unwrap_err().kind, ErrorKind::NotFound);
        assert_eq!(remote.usage(&place, &UsageRequest::default(), &cx).unwrap_err().kind, ErrorKind::Unsupported);
    })
    .unwrap();
}

/// Runs until it is told to stop, saying so in between.
fn until_cancelled(_: &str, cx: &Context<'_>) {
    let began = Instant::now();
    for step in 0.. {
        cx.progress("waiting", step, None);
        if cx.check_cancelled().is_err() {
            return;
        }
        assert!(began.elapsed() < LIMIT, "nobody told it to stop");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_running_call_can_be_cancelled_and_the_next_one_works() {
    let scene = Scene::new();
    let mut provider = Trivial::new("trivial");
    provider.before = |operation, cx| {
        if operation == "snapshot" {
            until_cancelled(operation, cx);
        }
    };
    with_client(&provider, LIMIT, |remote| {
        let notes = Notes::default();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while notes.progress.lock().unwrap().len() < 3 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                notes.cancel.store(true, Ordering::Relaxed);
            });
            let stopped = remote.snapshot(&scene.place(), &request("one"), &Context::new(&notes)).unwrap_err();
            assert_eq!(stopped.kind, ErrorKind::Cancelled);
        });
        assert!(remote.list(&scene.place(), &ListRequest::default(), &Context::quiet()).unwrap().is_empty());
    })
    .unwrap();
}

#[test]
fn a_panic_is_an_error_and_the_connection_goes_on() {
    let scene = Scene::new();
    let mut provider = Trivial::new("trivial");
    provider.before = |operation, _| assert!(operation != "list", "told to");
    with_client(&provider, LIMIT, |remote| {
        let error = remote.list(&scene.place(), &ListRequest::default(), &Context::quiet()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Internal);
        remote.snapshot(&scene.place(), &request("one"), &Context::quiet()).unwrap();
    })
    .unwrap();
}

/// Panics as soon as something is said to it.
struct Jumpy;

impl Observer for Jumpy {
    fn progress(&self, _: &Progress) {
        panic!("told to");
    }

    fn cancelled(&self) -> bool {
        false
    }

    fn log(&self, _: LogLevel, _: &str) {}
}

#[test]
fn after_a_panic_of_the_caller_nobody_waits_for_ever() {
    let scene = Scene::new();
    let provider = Trivial::new("trivial");
    // The server's answer finds nobody any more, so how it ends does not matter.
    let _ = with_client(&provider, LIMIT, |remote| {
        let call = || remote.snapshot(&scene.place(), &request("one"), &Context::new(&Jumpy));
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).unwrap_err();
        let began = Instant::now();
        let error = remote.list(&scene.place(), &ListRequest::default(), &Context::quiet()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unavailable);
        assert!(began.elapsed() < LIMIT);
    });
}

#[test]
fn a_call_without_a_sign_of_life_is_given_up() {
    static STOP: AtomicBool = AtomicBool::new(false);
    let scene = Scene::new();
    let mut provider = Trivial::new("trivial");
    provider.before = |_, _| {
        while !STOP.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    with_client(&provider, Duration::from_millis(100), |remote| {
        let error = remote.list(&scene.place(), &ListRequest::default(), &Context::quiet()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unavailable);
        assert!(error.message.contains("the test server hangs: its operation list"), "{error}");
        let error = remote.list(&scene.place(), &ListRequest::default(), &Context::quiet()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unavailable);
        STOP.store(true, Ordering::Relaxed);
    })
    .unwrap();
}

#[test]
fn a_call_that_was_to_stop_before_it_began_is_not_made() {
    let scene = Scene::new();
    let mut provider = Trivial::new("trivial");
    provider.before = |operation, _| assert!(operation != "snapshot", "it was made");
    with_client(&provider, LIMIT, |remote| {
        let notes = Notes { cancel: AtomicBool::new(true), ..Notes::default() };
        let stopped = remote.snapshot(&scene.place(), &request("one"), &Context::new(&notes)).unwrap_err();
        assert_eq!(stopped.kind, ErrorKind::Cancelled);
        assert!(remote.list(&scene.place(), &ListRequest::default(), &Context::quiet()).unwrap().is_empty());
    })
    .unwrap();
}

#[test]
fn whoever_wants_to_stop_does_not_wait_for_a_call_that_hangs() {
    static STOP: AtomicBool = AtomicBool::new(false);
    let scene = Scene::new();
    let mut provider = Trivial::new("trivial");
    provider.before = |_, cx| {
        cx.progress("waiting", 0, None);
        while !STOP.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    with_client(&provider, Duration::from_secs(3600), |remote| {
        let notes = Notes::default();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while notes.progress.lock().unwrap().is_empty() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                notes.cancel.store(true, Ordering::Relaxed);
            });
            let error = remote.list(&scene.place(), &ListRequest::default(), &Context::new(&notes)).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Cancelled);
        });
        // The answer may still come; nobody must take it for that of another call.
        let error = remote.list(&scene.place(), &ListRequest::default(), &Context::quiet()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unavailable);
        STOP.store(true, Ordering::Relaxed);
    })
    .unwrap();
}

#[test]
fn a_call_that_looks_whether_it_shall_stop_is_alive() {
    let scene = Scene::new();
    let mut provider = Trivial::new("trivial");
    provider.before = |_, cx| {
        for _ in 0..260 {
            cx.check_cancelled().unwrap();
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    with_client(&provider, Duration::from_millis(1500), |remote| {
        remote.list(&scene.place(), &ListRequest::default(), &Context::quiet()).unwrap();
    })
    .unwrap();
}

#[test]
fn a_call_whose_output_nobody_reads_is_waited_for() {
    const MUCH: usize = 8 << 20;
    let scene = Scene::new();
    std::fs::write(scene.workspace.path().join("much"), vec![b'x'; MUCH]).unwrap();
    let limit = Duration::from_secs(1);
    with_client(&Trivial::new("trivial"), limit, |remote| {
        let reference = remote.snapshot(&scene.place(), &request("one"), &Context::quiet()).unwrap().reference;
        let (mut reader, writer) = std::io::pipe().unwrap();
        std::thread::scope(|scope| {
            let reading = scope.spawn(move || {
                std::thread::sleep(3 * limit);
                let mut all = Vec::new();
                reader.read_to_end(&mut all).unwrap();
                all.len()
            });
            let read = ReadRequest { snapshot: reference, path: RelPath::new("much").unwrap() };
            let place = scene.place().with_output(writer.as_fd());
            let read = remote.read(&place, &read, &Context::quiet());
            drop(writer);
            assert_eq!((read.unwrap().size, reading.join().unwrap()), (MUCH as u64, MUCH));
        });
    })
    .unwrap();
}

#[test]
fn threads_take_turns() {
    static RUNNING: AtomicU32 = AtomicU32::new(0);
    let scene = Scene::new();
    let mut provider = Trivial::new("trivial");
    provider.before = |_, _| {
        assert_eq!(RUNNING.fetch_add(1, Ordering::SeqCst), 0);
        std::thread::sleep(Duration::from_millis(1));
        RUNNING.fetch_sub(1, Ordering::SeqCst);
    };
    with_client(&provider, LIMIT, |remote| {
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (remote, scene) = (&remote, &scene);
                scope.spawn(move || {
                    for step in 0..10 {
                        let request = request(&format!("{thread}-{step}"));
                        remote.snapshot(&scene.place(), &request, &Context::quiet()).unwrap();
                    }
                });
            }
        });
        assert_eq!(remote.list(&scene.place(), &ListRequest::default(), &Context::quiet()).unwrap().len(), 40);
    })
    .unwrap();
}

#[test]
fn a_client_that_dies_in_the_middle_stops_the_call() {
    let scene = Scene::new();
    let mut provider = Trivial::new("trivial");
    provider.before = until_cancelled;
    let (ours, theirs) = UnixStream::pair().unwrap();
    let also_ours = ours.try_clone().unwrap();
    std::thread::scope(|scope| {
        let server = scope.spawn(|| serve(&theirs, &provider));
        let remote = connect(ours, "the test server", LIMIT).unwrap();
        let killer = scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            also_ours.shutdown(std::net::Shutdown::Both).unwrap();
        });
        let error = remote.list(&scene.place(), &ListRequest::default(), &Context::quiet()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unavailable);
        killer.join().unwrap();
        server.join().unwrap().unwrap();
    });
}

#[test]
fn a_server_that_dies_in_the_middle_is_named() {
    let scene = Scene::new();
    let provider = Trivial::new("trivial");
    let (ours, theirs) = UnixStream::pair().unwrap();
    std::thread::scope(|scope| {
        let server = scope.spawn(|| serve(&theirs, &provider));
        let remote = connect(ours, "the test server", LIMIT).unwrap();
        theirs.shutdown(std::net::Shutdown::Both).unwrap();
        server.join().unwrap().unwrap();
        let error = remote.list(&scene.place(), &ListRequest::default(), &Context::quiet()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unavailable);
        assert!(error.message.contains("the test server ended"), "{error}");
    });
}

#[test]
fn a_request_that_is_too_large_is_refused_here_and_harms_nothing() {
    let scene = Scene::new();
    with_client(&Trivial::new("trivial"), LIMIT, |remote| {
        let snapshots = vec![ah_plugin_api::Reference::new("x".repeat(4000)).unwrap(); 1100];
        let lookup = LookupRequest { snapshots, path: RelPath::root() };
        let error = remote.lookup(&scene.place(), &lookup, &Context::quiet()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::ResourceExhausted);
        remote.list(&scene.place(), &ListRequest::default(), &Context::quiet()).unwrap();
    })
    .unwrap();
}

fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = u32::try_from(payload.len()).unwrap().to_le_bytes().to_vec();
    bytes.extend([kind, 0, 0, 0]);
    bytes.extend(payload);
    bytes
}

/// What a server says to a client that says `bytes` and then closes its side.
fn converse(bytes: &[u8]) -> (Result<()>, Vec<u8>) {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    std::thread::scope(|scope| {
        let server = scope.spawn(move || serve(&theirs, &Trivial::new("trivial")));
        let _ = ours.write_all(bytes);
        let _ = ours.shutdown(std::net::Shutdown::Write);
        let mut said = Vec::new();
        let _ = ours.read_to_end(&mut said);
        (server.join().unwrap(), said)
    })
}

#[derive(serde::Serialize)]
struct Hello {
    version: u32,
    from_the_future: &'static str,
}

#[test]
fn a_client_that_breaks_the_protocol_is_told_and_left() {
    let hello = frame(1, &encode(&Hello { version: ipc::VERSION, from_the_future: "x" }).unwrap());
    let other = frame(1, &encode(&Hello { version: 77, from_the_future: "x" }).unwrap());
    let with_hello = |bytes: &[u8]| [&hello, bytes].concat();

    // Going away is no offence, at any point, nor is a kind of frame that is not known.
    converse(b"").0.unwrap();
    converse(&hello).0.unwrap();
    converse(&with_hello(&hello[..5])).0.unwrap();
    converse(&with_hello(&frame(99, b"whatever"))).0.unwrap();

    let offences: [(Vec<u8>, ErrorKind); 8] = [
        (other, ErrorKind::Unsupported),
        (frame(2, b""), ErrorKind::InvalidArgument),
        (frame(1, b"\xff\xff"), ErrorKind::InvalidArgument),
        (with_hello(&frame(2, b"no call")), ErrorKind::InvalidArgument),
        (with_hello(&frame(7, b"")), ErrorKind::InvalidArgument),
        (with_hello(&[255, 255, 255, 255, 2, 0, 0, 0]), ErrorKind::ResourceExhausted),
        (with_hello(&[0, 0, 0, 0, 2, 3, 0, 0]), ErrorKind::InvalidArgument),
        (with_hello(&[0, 0, 0, 0, 2, 0, 0, 1]), ErrorKind::InvalidArgument),
    ];
    for (bytes, kind) in offences {
        let (ended, said) = converse(&bytes);
        assert_eq!(ended.unwrap_err().kind, kind, "{bytes:?}");
        let said = String::from_utf8_lossy(&said);
        assert!(said.contains(kind.as_str()), "{bytes:?}: the client was told nothing but {said:?}");
    }
}

#[test]
fn a_server_that_is_none_is_noticed() {
    let talk = |bytes: &'static [u8]| {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let server = std::thread::spawn(move || {
            let _ = theirs.write_all(bytes);
        });
        let outcome = connect(ours, "the test server", Duration::from_secs(5));
        server.join().unwrap();
        outcome.err().unwrap()
    };
    for bytes in [b"".as_slice(), b"SSH-2.0-OpenSSH_9.2p1 Debian\r\n", b"\x00\x00\x00\x00\x07\x00\x00\x00"] {
        let error: Error = talk(bytes);
        let kinds = [ErrorKind::Unavailable, ErrorKind::InvalidArgument, ErrorKind::ResourceExhausted];
        assert!(kinds.contains(&error.kind), "{error:?}");
    }
}

#[test]
fn nothing_is_left_open() {
    // Alone in its process under nextest; with other tests beside it, only the trend can be looked at.
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let scene = Scene::new();
    let provider = Trivial::new("trivial");
    let round = |id: &str| {
        with_client(&provider, LIMIT, |remote| {
            for step in 0..20 {
                remote.snapshot(&scene.place(), &request(&format!("{id}-{step}")), &Context::quiet()).unwrap();
                remote.snapshot(&scene.place(), &request(&format!("{id}-{step}")), &Context::quiet()).unwrap_err();
            }
        })
        .unwrap();
    };
    round("a");
    let before = open();
    for id in ["b", "c", "d", "e"] {
        round(id);
    }
    assert!(open() < before + 40, "{before} → {}", open());
}

/// Two providers, of which clients take one.
struct Two([Trivial; 2]);

impl ipc::Offered for Two {
    fn offers(&self) -> Vec<ah_plugin_api::Description> {
        self.0.iter().map(Provider::describe).collect()
    }

    fn choose(&self, name: &ah_plugin_api::ProviderName) -> Result<Box<dyn Provider + '_>> {
        /// Borrowed, as a server's providers are.
        struct Borrowed<'a>(&'a Trivial);
        macro_rules! forward {
            ($($method:ident($request:ty) -> $answer:ty;)+) => {
                impl Provider for Borrowed<'_> {
                    fn describe(&self) -> ah_plugin_api::Description {
                        self.0.describe()
                    }
                    $(fn $method(&self, place: &Place<'_>, request: &$request, cx: &Context<'_>) -> Result<$answer> {
                        self.0.$method(place, request, cx)
                    })+
                }
            };
        }
        forward! {
            probe(ProbeRequest) -> ah_plugin_api::Probe;
            snapshot(SnapshotRequest) -> ah_plugin_api::Snapshot;
            sync(ah_plugin_api::SnapshotRef) -> ah_plugin_api::Done;
            list(ListRequest) -> Vec<ah_plugin_api::Snapshot>;
            stat(ah_plugin_api::SnapshotRef) -> ah_plugin_api::Snapshot;
            destroy(ah_plugin_api::DestroyRequest) -> ah_plugin_api::Done;
            mount(ah_plugin_api::MountRequest) -> ah_plugin_api::View;
            unmount(ah_plugin_api::UnmountRequest) -> ah_plugin_api::Done;
            reclaim(ah_plugin_api::ReclaimRequest) -> ah_plugin_api::Reclaimed;
        }
        let found = self.0.iter().find(|provider| provider.describe().name == *name);
        let found = found.ok_or_else(|| Error::new(ErrorKind::NotFound, format!("there is no {name}")))?;
        Ok(Box::new(Borrowed(found)))
    }
}

/// A client of a server of two, which ends when the client is gone.
fn of_two<T>(bounds: ipc::Bounds, test: impl FnOnce(UnixStream) -> T) -> (T, Result<()>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    std::thread::scope(|scope| {
        let two = Two([Trivial::new("one"), Trivial::new("other")]);
        let server = scope.spawn(move || ipc::serve_one_of(&theirs, &two, bounds));
        let result = test(ours);
        (result, server.join().unwrap())
    })
}

#[test]
fn a_server_of_several_says_what_it_has_and_serves_the_one_that_is_named() {
    let scene = Scene::new();
    let name = |text: &str| ah_plugin_api::ProviderName::new(text).unwrap();
    let (offers, ended) = of_two(ipc::Bounds::default(), |stream| ipc::offers(&stream, "two", LIMIT).unwrap());
    ended.unwrap();
    assert_eq!(offers.iter().map(|offer| offer.name.as_str()).collect::<Vec<_>>(), ["one", "other"]);

    let ((), ended) = of_two(ipc::Bounds::default(), |stream| {
        let (client, description) = Client::open(stream, "two", Some(&name("other")), LIMIT).unwrap();
        assert_eq!(description.name.as_str(), "other");
        let remote = Remote::new(client, description);
        remote.snapshot(&scene.place(), &request("one"), &Context::quiet()).unwrap();
    });
    ended.unwrap();

    let (refused, ended) =
        of_two(ipc::Bounds::default(), |stream| Client::open(stream, "two", Some(&name("third")), LIMIT));
    assert_eq!(refused.err().unwrap().kind, ErrorKind::NotFound);
    assert_eq!(ended.unwrap_err().kind, ErrorKind::NotFound);

    // Who does not know that there are several is told so in its own way, and a server of one serves whom it has.
    let (refused, _) = of_two(ipc::Bounds::default(), |stream| connect(stream, "two", LIMIT).err());
    assert_eq!(refused.unwrap().kind, ErrorKind::Unavailable);
    let (ours, theirs) = UnixStream::pair().unwrap();
    std::thread::scope(|scope| {
        let server = scope.spawn(move || serve(&theirs, &Trivial::new("trivial")));
        let (client, description) = Client::open(ours, "one", Some(&name("other")), LIMIT).unwrap();
        assert_eq!(description.name.as_str(), "trivial");
        drop(client);
        server.join().unwrap().unwrap();
    });
}

#[test]
fn a_client_that_says_nothing_is_let_go_but_not_while_a_call_runs() {
    let scene = Scene::new();
    let short = ipc::Bounds {
        hello: Duration::from_millis(50),
        idle: Some(Duration::from_millis(200)),
        ..ipc::Bounds::default()
    };
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let ended = ipc::serve_one_of(&theirs, &Two([Trivial::new("one"), Trivial::new("other")]), short);
    assert_eq!(ended.unwrap_err().kind, ErrorKind::Unavailable);
    drop(theirs);
    ours.read_to_end(&mut Vec::new()).unwrap();

    let name = ah_plugin_api::ProviderName::new("one").unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    std::thread::scope(|scope| {
        let server = scope.spawn(move || {
            let mut two = Two([Trivial::new("one"), Trivial::new("other")]);
            two.0[0].before = |_, _| std::thread::sleep(Duration::from_millis(500));
            ipc::serve_one_of(&theirs, &two, short)
        });
        let (client, description) = Client::open(ours, "one", Some(&name), LIMIT).unwrap();
        let remote = Remote::new(client, description);
        remote.list(&scene.place(), &ListRequest::default(), &Context::quiet()).unwrap();
        server.join().unwrap().unwrap();
        assert!(remote.list(&scene.place(), &ListRequest::default(), &Context::quiet()).is_err());
    });

    let (ours, theirs) = UnixStream::pair().unwrap();
    std::thread::scope(|scope| {
        let server =
            scope.spawn(move || ipc::serve_one_of(&theirs, &Two([Trivial::new("one"), Trivial::new("other")]), short));
        let (client, _) = Client::open(ours, "one", Some(&name), LIMIT).unwrap();
        assert!(client.is_open());
        server.join().unwrap().unwrap();
        assert!(!client.is_open());
    });
}

#[test]
fn who_is_turned_away_is_told_why() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ipc::turn_away(&theirs, &Error::new(ErrorKind::ResourceExhausted, "enough"));
    drop(theirs);
    let refused = ipc::offers(&ours, "it", LIMIT).unwrap_err();
    assert_eq!((refused.kind, refused.message.as_str()), (ErrorKind::ResourceExhausted, "enough"));
}

#[test]
fn a_call_at_the_last_moment_is_answered_or_was_not_sent() {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let scene = Scene::new();
    let patience = Duration::from_millis(20);
    let bounds = ipc::Bounds { idle: Some(patience), ..ipc::Bounds::default() };
    let mut provider = Trivial::new("trivial");
    provider.before = |_, cx| {
        MADE.fetch_add(1, Ordering::SeqCst);
        // Nobody has gone away.
        cx.check_cancelled().unwrap();
    };
    let (mut answered, mut unsent) = (0, 0);
    for n in 0..150_u64 {
        let (ours, theirs) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            let server = scope.spawn(|| ipc::serve_within(&theirs, &provider, bounds));
            let (client, description) = Client::open(ours, "the test server", None, LIMIT).unwrap();
            let remote = Remote::new(Told(client), description);
            // Before, at, and after the end.
            std::thread::sleep(patience - Duration::from_millis(1) + Duration::from_micros(n % 30 * 100));
            match remote.list(&scene.place(), &ListRequest::default(), &Context::quiet()) {
                Ok(_) => answered += 1,
                Err(error) => {
                    assert_eq!(error.message, "unsent");
                    unsent += 1;
                }
            }
            drop(remote);
            server.join().unwrap().unwrap();
        });
    }
    assert_eq!(MADE.load(Ordering::SeqCst), answered);
    assert!(answered > 0 && unsent > 0, "{answered} answered, {unsent} not sent");
}

/// Tells calls that were not sent from others.
struct Told(Client);

impl ah_plugin_api::wire::Caller for Told {
    fn call(
        &self,
        op: ah_plugin_api::wire::Op,
        request: &[u8],
        fds: &[std::os::fd::BorrowedFd<'_>],
        cx: &Context<'_>,
    ) -> Result<Vec<u8>> {
        let answer = self.0.call_if_open(LIMIT, op, request, fds, cx)?;
        answer.ok_or_else(|| Error::new(ErrorKind::Unavailable, "unsent"))
    }
}

#[derive(serde::Serialize)]
struct Call {
    number: u64,
    op: &'static str,
    #[serde(with = "serde_bytes")]
    request: Vec<u8>,
}

#[test]
fn who_calls_while_a_call_runs_breaks_the_protocol_whether_it_looks_or_not() {
    let hello = frame(1, &encode(&Hello { version: ipc::VERSION, from_the_future: "x" }).unwrap());
    let call = frame(2, &encode(&Call { number: 1, op: "list", request: Vec::new() }).unwrap());
    let (ended, said) = converse(&[hello.as_slice(), &call, &call].concat());
    assert_eq!(ended.unwrap_err().message, "one call after the other");
    assert!(String::from_utf8_lossy(&said).contains("one call after the other"));
}
