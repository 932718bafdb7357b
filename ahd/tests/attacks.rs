//! What the helper's design rules out, tried: a test for each attack.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ah_host::helper::TOKEN_FILE;
use ah_plugin_api::ipc::Client;
use ah_plugin_api::wire::{self, Caller, Op};
use ah_plugin_api::{
    Context, DestroyRequest, ErrorKind, FileName, ListRequest, MountRequest, Place, ProbeRequest, ProviderName,
    Reference, RelPath, Result, Snapshot,
};
use common::{ALICE, ALLOWED, BOB, Daemon, Home, LIMIT, as_user, is_root, request};
use rustix::fs::{Mode, OFlags};
use serde::Serialize;

/// A call as it goes over the socket, with whatever a client of its own may put into it.
#[derive(Serialize)]
struct Message<R> {
    paths: Paths,
    request: R,
}

#[derive(Serialize, Default)]
struct Paths {
    #[serde(with = "serde_bytes")]
    store: Vec<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    workspace: Option<Bytes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<Bytes>,
}

#[derive(Serialize)]
#[serde(transparent)]
struct Bytes(#[serde(with = "serde_bytes")] Vec<u8>);

/// A client that says and sends what it likes.
struct Raw(Client);

impl Raw {
    fn of(daemon: &Daemon) -> Self {
        let name = ProviderName::new("copies_ahd").unwrap();
        Self(Client::open(daemon.dial(), "ahd", Some(&name), LIMIT).unwrap().0)
    }

    fn call<R: Serialize>(
        &self,
        op: Op,
        request: R,
        store: impl AsFd,
        workspace: Option<&dyn AsFd>,
        target: Option<&dyn AsFd>,
    ) -> Result<Vec<u8>> {
        // The paths lie: they are all root's.
        let lie = |there: bool| there.then(|| Bytes(b"/root".to_vec()));
        let paths =
            Paths { store: b"/root".to_vec(), workspace: lie(workspace.is_some()), target: lie(target.is_some()) };
        let mut fds = vec![store.as_fd()];
        fds.extend(workspace.map(|fd| fd.as_fd()));
        fds.extend(target.map(|fd| fd.as_fd()));
        self.0.call(op, &wire::encode(&Message { paths, request })?, &fds, &Context::quiet())
    }
}

/// A user with a snapshot.
fn with_snapshot(daemon: &Daemon, uid: u32) -> (Home, Snapshot) {
    let home = daemon.home(uid);
    let snapshot = as_user(uid, || home.open().snapshot(&*daemon.provider(), "one").unwrap());
    (home, snapshot)
}

fn open(path: &Path, flags: OFlags) -> OwnedFd {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

#[test]
fn another_users_workspace_target_and_token_are_refused_however_they_were_come_by() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(ALLOWED);
    let (alice, _) = with_snapshot(&daemon, ALICE);
    let (bob, of_bob) = with_snapshot(&daemon, BOB);
    // Open descriptors that somebody passed on.
    let (theirs, token) = (alice.open(), File::open(alice.at("store").join(TOKEN_FILE)).unwrap());
    as_user(BOB, || {
        let (provider, own) = (daemon.provider(), bob.open());
        let place = Place::new(&own.store).with_workspace(&theirs.workspace);
        let refused = provider.probe(&place, &ProbeRequest::default(), &Context::quiet()).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::PermissionDenied);
        let refused = provider.snapshot(&place, &request("two", None), &Context::quiet()).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::PermissionDenied);
        let name = FileName::new("v").unwrap();
        let mount = MountRequest { snapshot: of_bob.reference.clone(), name, paths: Vec::new() };
        let place = Place::new(&own.store).with_target(&theirs.target);
        assert_eq!(provider.mount(&place, &mount, &Context::quiet()).unwrap_err().kind, ErrorKind::PermissionDenied);
        let raw = Raw::of(&daemon);
        assert_eq!(
            raw.call(Op::List, ListRequest::default(), &token, None, None).unwrap_err().kind,
            ErrorKind::InvalidArgument
        );
    });
    assert_eq!(fs::read_dir(alice.at("target")).unwrap().count(), 0);
    assert!(daemon.said("permission-denied"));
    assert_eq!(daemon.mounts().len(), 0);
}

#[test]
fn what_was_refused_is_written_down_with_where_it_is_and_not_with_what_its_caller_says() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(ALLOWED);
    let (alice, bob) = (daemon.home(ALICE), daemon.home(BOB));
    let (theirs, own) = (alice.open(), bob.open());
    as_user(BOB, || {
        // All its paths are lies.
        let refused =
            Raw::of(&daemon).call(Op::Probe, ProbeRequest::default(), &own.store, Some(&theirs.workspace), None);
        assert_eq!(refused.unwrap_err().kind, ErrorKind::PermissionDenied);
    });
    let place = alice.at("w").display().to_string();
    assert!(daemon.said(&format!(r#""op":"probe","provider":"copies_ahd","workspace":"{place}""#)));
}

#[test]
fn another_users_token_and_references_lead_nowhere() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(ALLOWED);
    let (alice, of_alice) = with_snapshot(&daemon, ALICE);
    let view = as_user(ALICE, || alice.open().mount(&*daemon.provider(), &of_alice.reference, "v").unwrap());
    let clone = as_user(ALICE, || alice.open().fork(&*daemon.provider(), &of_alice.reference, "c").unwrap());
    let (bob, _) = with_snapshot(&daemon, BOB);
    // The provider of this test would take any path for a snapshot's.
    let store = Path::new(of_alice.reference.as_str()).parent().unwrap().to_owned();
    let planted = bob.at("w");
    fs::create_dir(planted.join("tree")).unwrap();
    fs::copy(Path::new(of_alice.reference.as_str()).join("record"), planted.join("record")).unwrap();
    let token = fs::read(alice.at("store").join(TOKEN_FILE)).unwrap();
    as_user(BOB, || {
        let (provider, open) = (daemon.provider(), bob.open());
        for reference in [
            of_alice.reference.clone(),
            Reference::new(planted.display().to_string()).unwrap(),
            Reference::new(format!("{}/../{}", store.display(), "one")).unwrap(),
        ] {
            assert_eq!(open.mount(&*provider, &reference, "x").unwrap_err().kind, ErrorKind::NotFound);
            assert_eq!(open.fork(&*provider, &reference, "x").unwrap_err().kind, ErrorKind::NotFound);
            open.destroy(&*provider, &DestroyRequest::Snapshot(reference.clone())).unwrap();
            open.destroy(&*provider, &DestroyRequest::Clone(reference.clone())).unwrap();
            open.unmount(&*provider, &reference).unwrap();
        }
        // What they know of views and clones does not help either.
        open.unmount(&*provider, &view.reference).unwrap();
        open.destroy(&*provider, &DestroyRequest::Clone(clone.reference.clone())).unwrap();
        open.destroy(&*provider, &DestroyRequest::Snapshot(clone.reference.clone())).unwrap();
        // Nor does the token.
        fs::write(bob.at("store").join(TOKEN_FILE), &token).unwrap();
        assert!(open.list(&*provider).unwrap().is_empty());
        assert_eq!(open.mount(&*provider, &of_alice.reference, "x").unwrap_err().kind, ErrorKind::NotFound);
        for bad in ["../../../etc", "a/b", "..", "A"] {
            fs::write(bob.at("store/bad"), bad).unwrap();
            let file = File::open(bob.at("store/bad")).unwrap();
            let refused = Raw::of(&daemon).call(Op::List, ListRequest::default(), &file, None, None).unwrap_err();
            assert_eq!(refused.kind, ErrorKind::InvalidArgument, "{bad}");
        }
    });
    assert!(planted.join("record").exists() && view.path.join("file").exists() && clone.path.join("file").exists());
    as_user(ALICE, || assert_eq!(alice.open().list(&*daemon.provider()).unwrap().len(), 1));
}

#[test]
fn names_cannot_lead_out_of_the_target() {
    if !is_root() {
        return;
    }
    #[derive(Serialize)]
    struct Mount<'a> {
        snapshot: &'a str,
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
        paths: Vec<Bytes>,
    }
    let daemon = Daemon::start(ALLOWED);
    let (alice, snapshot) = with_snapshot(&daemon, ALICE);
    as_user(ALICE, || {
        let (raw, target) = (Raw::of(&daemon), open(&alice.at("target"), OFlags::RDONLY));
        let token = File::open(alice.at("store").join(TOKEN_FILE)).unwrap();
        let snapshot = snapshot.reference.as_str();
        let long = [b'x'; 300];
        for name in [&b".."[..], b".", b"", b"/etc", b"../u12345", b"a/b", b"a\0b", &long] {
            for op in [Op::Mount, Op::Clone] {
                let request = Mount { snapshot, name, paths: Vec::new() };
                assert!(raw.call(op, request, &token, None, Some(&target)).is_err(), "{name:?}");
            }
        }
        for path in [&b"../.."[..], b"/etc", b"a/../../b"] {
            let request = Mount { snapshot, name: b"v", paths: vec![Bytes(path.to_vec())] };
            assert!(raw.call(Op::Mount, request, &token, None, Some(&target)).is_err(), "{path:?}");
        }
        // A symlink in the place of the name is not followed.
        symlink("/run", alice.at("target/link")).unwrap();
        let request = Mount { snapshot, name: b"link", paths: Vec::new() };
        let refused = raw.call(Op::Mount, request, &token, None, Some(&target)).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::AlreadyExists);
    });
    assert!(daemon.mounts().is_empty() && daemon.state("records").is_empty());
}

#[test]
fn descriptors_of_other_kinds_are_refused() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(ALLOWED);
    let (alice, snapshot) = with_snapshot(&daemon, ALICE);
    rustix::fs::mknodat(rustix::fs::CWD, alice.at("fifo"), rustix::fs::FileType::Fifo, Mode::RWXU, 0).unwrap();
    nix::unistd::chown(&alice.at("fifo"), Some(ALICE.into()), Some(ALICE.into())).unwrap();
    as_user(ALICE, || {
        let raw = Raw::of(&daemon);
        let token = File::open(alice.at("store").join(TOKEN_FILE)).unwrap();
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let memory = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::io::write(&memory, b"..").unwrap();
        let kinds: Vec<(&str, OwnedFd)> = vec![
            ("a file", open(&alice.at("w/file"), OFlags::RDONLY)),
            ("a file's place", open(&alice.at("w/file"), OFlags::PATH)),
            ("a fifo", open(&alice.at("fifo"), OFlags::RDWR)),
            ("a folder of /proc", open(Path::new("/proc/self/fdinfo"), OFlags::RDONLY)),
            ("a root", open(Path::new("/"), OFlags::RDONLY)),
            ("a socket", ours.into()),
            ("memory", memory),
            ("the null device", open(Path::new("/dev/null"), OFlags::RDONLY)),
        ];
        let snapshot =
            MountRequest { snapshot: snapshot.reference.clone(), name: FileName::new("v").unwrap(), paths: Vec::new() };
        for (kind, fd) in &kinds {
            let probe = raw.call(Op::Probe, ProbeRequest::default(), &token, Some(fd), None);
            let taken = raw.call(Op::Snapshot, request("two", None), &token, Some(fd), None);
            let mounted = raw.call(Op::Mount, &snapshot, &token, None, Some(fd));
            assert!(probe.is_err() && taken.is_err() && mounted.is_err(), "{kind}");
        }
        let a_directory = [("a directory", open(&alice.at("w"), OFlags::RDONLY))];
        let tokens = kinds.iter().filter(|(kind, _)| *kind != "a file").chain(&a_directory);
        for (kind, fd) in tokens {
            let refused = raw.call(Op::List, ListRequest::default(), fd, None, None).unwrap_err();
            assert_eq!(refused.kind, ErrorKind::InvalidArgument, "{kind} for a token");
        }
        let write_only = open(&alice.at("store").join(TOKEN_FILE), OFlags::WRONLY);
        assert!(raw.call(Op::List, ListRequest::default(), &write_only, None, None).is_err());
        // The place of a directory is as good as the directory.
        let place = open(&alice.at("w"), OFlags::PATH);
        raw.call(Op::Snapshot, request("two", None), &token, Some(&place), None).unwrap();
        // One that was removed is not.
        fs::create_dir(alice.at("gone")).unwrap();
        let gone = open(&alice.at("gone"), OFlags::RDONLY);
        fs::remove_dir(alice.at("gone")).unwrap();
        assert!(raw.call(Op::Mount, &snapshot, &token, None, Some(&gone)).is_err());
    });
    assert!(daemon.mounts().is_empty() && daemon.state("records").is_empty());
}

#[test]
fn a_race_for_the_name_mounts_nothing_anywhere_else() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(ALLOWED);
    let (alice, snapshot) = with_snapshot(&daemon, ALICE);
    let bob = daemon.home(BOB);
    // A directory of somebody else's that can be moved into the way.
    fs::create_dir(alice.at("foreign")).unwrap();
    let stop = AtomicBool::new(false);
    let mut mounted = 0;
    /// Also when an assertion fails.
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    std::thread::scope(|scope| {
        let stop_at_the_end = Stop(&stop);
        let racer = scope.spawn(|| {
            as_user(ALICE, || {
                let (name, aside, link) = (alice.at("target/v"), alice.at("target/aside"), alice.at("target/link"));
                while !stop.load(Ordering::Relaxed) {
                    let _ = symlink(bob.at("w"), &link);
                    let _ = fs::rename(&name, &aside);
                    let _ = fs::rename(&link, &name);
                    let _ = fs::remove_file(&name);
                    let _ = fs::rename(alice.at("foreign"), &name);
                    let _ = fs::rename(&name, alice.at("foreign"));
                    let _ = fs::remove_dir(&aside);
                    let _ = fs::remove_dir(&name);
                }
            });
        });
        as_user(ALICE, || {
            let (provider, open) = (daemon.provider(), alice.open());
            let began = Instant::now();
            for _ in 0..400 {
                if began.elapsed() > Duration::from_secs(8) {
                    break;
                }
                match open.mount(&*provider, &snapshot.reference, "v") {
                    Ok(view) => {
                        mounted += 1;
                        open.unmount(&*provider, &view.reference).unwrap();
                    }
                    Err(error) => assert_ne!(error.kind, ErrorKind::Internal, "{error:?}"),
                }
                for (point, _) in daemon.mounts() {
                    assert!(point.starts_with(&alice.root), "{}", point.display());
                }
            }
        });
        drop(stop_at_the_end);
        racer.join().unwrap();
    });
    eprintln!("{mounted} mounts in the race");
    assert!(daemon.mounts().is_empty(), "{:?}", daemon.mounts());
    assert!(daemon.state("records").is_empty());
    assert_eq!(fs::metadata(bob.at("w")).unwrap().uid(), BOB);
    assert_eq!(fs::read_dir(bob.at("w")).unwrap().count(), 1);
}

#[test]
fn a_directory_that_was_not_theirs_when_it_was_captured_is_not_shown() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(ALLOWED);
    let (alice, snapshot) = with_snapshot(&daemon, ALICE);
    let tree = Path::new(snapshot.reference.as_str()).join("tree");
    let attempt = || {
        as_user(ALICE, || {
            let (provider, open) = (daemon.provider(), alice.open());
            let view = open.mount(&*provider, &snapshot.reference, "v").map(|_| ());
            let clone = open.fork(&*provider, &snapshot.reference, "c").map(|_| ());
            [view, clone].map(|refused| refused.unwrap_err().kind)
        })
    };
    // As if the workspace had been moved while the snapshot was taken, and something else were where it was.
    nix::unistd::chown(&tree, Some(BOB.into()), None).unwrap();
    assert_eq!(attempt(), [ErrorKind::PermissionDenied; 2]);
    fs::rename(&tree, tree.with_file_name("real")).unwrap();
    symlink(alice.at("w"), &tree).unwrap();
    assert_eq!(attempt(), [ErrorKind::PermissionDenied; 2]);
    assert!(daemon.mounts().is_empty() && daemon.state("records").is_empty());
    assert_eq!(fs::read_dir(alice.at("target")).unwrap().count(), 0);
}

#[test]
fn other_mount_namespaces_get_what_is_real_and_what_reaches_them() {
    if !is_root() {
        return;
    }
    use nix::mount::{MsFlags, mount};
    let daemon = Daemon::start(ALLOWED);
    let alice = daemon.home(ALICE);
    let bob = daemon.home(BOB);
    let none = None::<&str>;
    // Mounts below are passed on to namespaces that want them.
    mount(Some(daemon.base.path()), daemon.base.path(), none, MsFlags::MS_BIND, none).unwrap();
    mount(none, daemon.base.path(), none, MsFlags::MS_SHARED, none).unwrap();
    let in_namespace = |propagation: MsFlags, work: &(dyn Fn() + Sync)| {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                // This thread alone, and those that it starts.
                nix::sched::unshare(nix::sched::CloneFlags::CLONE_FS | nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
                mount(none, "/", none, MsFlags::MS_REC | propagation, none).unwrap();
                work();
            });
            thread.join().unwrap();
        });
    };
    in_namespace(MsFlags::MS_SLAVE, &|| {
        // As `exec` does it: something else at the workspace's own path.
        fs::create_dir(alice.at("branch")).unwrap();
        nix::unistd::chown(&alice.at("branch"), Some(ALICE.into()), None).unwrap();
        fs::write(alice.at("branch/in-branch"), "x").unwrap();
        mount(Some(&alice.at("branch")), &alice.at("w"), none, MsFlags::MS_BIND, none).unwrap();
        as_user(ALICE, || {
            let (provider, open) = (daemon.provider(), alice.open());
            assert!(alice.at("w/in-branch").exists());
            let snapshot = open.snapshot(&*provider, "one").unwrap();
            let view = open.mount(&*provider, &snapshot.reference, "v").unwrap();
            assert!(view.path.join("in-branch").exists(), "the branch was captured, and is shown here");
            open.unmount(&*provider, &view.reference).unwrap();
        });
        let said = format!(r#""workspace":"{} (in its own mount namespace)""#, alice.at("w").display());
        assert!(daemon.said(&said), "that path leads to something else from here");
        // What a sandbox is kept from by its mounts, it does not get by the helper.
        mount(Some(&alice.at("target")), &alice.at("target"), none, MsFlags::MS_BIND, none).unwrap();
        for (id, forbidden) in [("four", MsFlags::MS_RDONLY), ("five", MsFlags::MS_NOEXEC)] {
            mount(none, &alice.at("target"), none, MsFlags::MS_BIND | MsFlags::MS_REMOUNT | forbidden, none).unwrap();
            as_user(ALICE, || {
                let (provider, open) = (daemon.provider(), alice.open());
                let snapshot = open.snapshot(&*provider, id).unwrap();
                let view = open.mount(&*provider, &snapshot.reference, "v").map(|_| ());
                let clone = open.fork(&*provider, &snapshot.reference, "c").map(|_| ());
                for refused in [view, clone] {
                    let refused = refused.unwrap_err();
                    assert_eq!(refused.kind, ErrorKind::PermissionDenied, "{refused}");
                    assert!(refused.hint.unwrap().contains("sandbox"));
                }
            });
            assert!(daemon.state("records").is_empty());
            assert_eq!(fs::read_dir(alice.at("target")).unwrap().count(), 0);
        }
        nix::mount::umount(&alice.at("target")).unwrap();
        // Who says that somebody else's directory is theirs is not believed.
        mount(Some(&bob.at("w")), &alice.at("target"), none, MsFlags::MS_BIND, none).unwrap();
        as_user(ALICE, || {
            let open = rustix::fs::open(alice.at("target"), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
            let token = File::open(alice.at("store").join(TOKEN_FILE)).unwrap();
            let refused = Raw::of(&daemon).call(Op::Snapshot, request("two", None), &token, Some(&open), None);
            assert_eq!(refused.unwrap_err().kind, ErrorKind::PermissionDenied);
        });
    });
    in_namespace(MsFlags::MS_PRIVATE, &|| {
        as_user(ALICE, || {
            let (provider, open) = (daemon.provider(), alice.open());
            let snapshot = open.snapshot(&*provider, "three").unwrap();
            let refused = open.mount(&*provider, &snapshot.reference, "v").unwrap_err();
            assert_eq!(refused.kind, ErrorKind::FailedPrecondition, "an empty directory is no view");
        });
        // A filesystem that is nowhere else.
        let options = format!("mode=0700,uid={ALICE},gid={ALICE}");
        mount(Some("x"), &alice.at("w"), Some("tmpfs"), MsFlags::empty(), Some(&*options)).unwrap();
        as_user(ALICE, || {
            let (provider, open) = (daemon.provider(), alice.open());
            let refused = open.snapshot(&*provider, "four").unwrap_err();
            assert_eq!(refused.kind, ErrorKind::FailedPrecondition);
            assert!(refused.hint.is_some());
        });
    });
    assert!(daemon.state("records").is_empty());
    assert_eq!(fs::read_dir(alice.at("target")).unwrap().count(), 0);
}

#[test]
fn what_a_user_may_not_look_into_is_not_told_by_the_paths_of_a_view() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(ALLOWED);
    let alice = daemon.home(ALICE);
    fs::create_dir(alice.at("w/closed")).unwrap();
    fs::write(alice.at("w/closed/there"), "").unwrap();
    fs::set_permissions(alice.at("w/closed"), fs::Permissions::from_mode(0o700)).unwrap();
    as_user(ALICE, || {
        let (provider, open) = (daemon.provider(), alice.open());
        let snapshot = open.snapshot(&*provider, "one").unwrap().reference;
        let ask = |paths: Vec<&str>| {
            let paths = paths.into_iter().map(|path| RelPath::new(path).unwrap()).collect();
            let request = MountRequest { snapshot: snapshot.clone(), name: FileName::new("v").unwrap(), paths };
            let view = provider.mount(&open.place(), &request, &Context::quiet())?;
            open.unmount(&*provider, &view.reference)
        };
        ask(vec!["file", "closed", ""]).unwrap();
        assert_eq!(ask(vec!["file", "missing"]).unwrap_err().kind, ErrorKind::NotFound);
        for closed in ["closed/there", "closed/missing"] {
            ask(vec![closed]).unwrap();
        }
        assert_eq!(ask(vec!["file"; 2000]).unwrap_err().kind, ErrorKind::InvalidArgument);
        // Nor may anybody say more than anybody has to: what is said is kept in many times the room.
        let error = ask(vec!["file"; 100_000]).unwrap_err();
        assert!(matches!(error.kind, ErrorKind::ResourceExhausted | ErrorKind::Unavailable), "{error}");
    });
    assert!(daemon.mounts().is_empty() && daemon.state("records").is_empty());
}

#[test]
fn what_stays_for_now_is_said_out_of_its_users_share() {
    if !is_root() {
        return;
    }
    use nix::mount::{MsFlags, mount};
    let daemon = Daemon::start(ALLOWED);
    let (alice, snapshot) = with_snapshot(&daemon, ALICE);
    // The longest name of a place, of what takes most room in the log.
    let deep = as_user(ALICE, || {
        let mut deep = alice.at("target");
        for _ in 0..14 {
            deep.push("\u{1}".repeat(250));
            fs::create_dir(&deep).unwrap();
        }
        deep
    });
    let (stop, deep) = (&AtomicBool::new(false), &deep);
    let said = || daemon.log.lock().unwrap().iter().filter(|line| line.contains("what is left at")).count();
    std::thread::scope(|scope| {
        // Whoever sees a view is in it at once.
        scope.spawn(move || {
            as_user(ALICE, || {
                let mut held: Vec<Option<File>> = (0..60).map(|_| None).collect();
                while !stop.load(Ordering::Relaxed) {
                    for (i, file) in held.iter_mut().enumerate().filter(|(_, file)| file.is_none()) {
                        *file = File::open(deep.join(format!("v{i}/file"))).ok();
                    }
                }
            });
        });
        let caller = scope.spawn(|| {
            // Here nothing that the helper mounts is seen, so that each call fails when it has been done.
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_FS | nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
            mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
            as_user(ALICE, || {
                let (store, target) = (alice.open().store, ah_plugin_api::Dir::open(deep).unwrap());
                let place = Place::new(&store).with_target(&target);
                for i in 0..60 {
                    if said() >= 4 {
                        break;
                    }
                    let name = FileName::new(format!("v{i}")).unwrap();
                    let request = MountRequest { snapshot: snapshot.reference.clone(), name, paths: Vec::new() };
                    let refused = daemon.provider().mount(&place, &request, &Context::quiet()).unwrap_err();
                    assert_eq!(refused.kind, ErrorKind::FailedPrecondition);
                }
            });
        });
        let outcome = caller.join();
        stop.store(true, Ordering::Relaxed);
        outcome.unwrap();
    });
    assert!(daemon.said("what is left at"), "it was not in use once");
    let lines = daemon.log.lock().unwrap().clone();
    let longest = lines.iter().filter(|line| line.contains("what is left at")).map(String::len).max().unwrap();
    assert!(longest < 10_000, "{longest} bytes");
}
