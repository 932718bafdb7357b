//! Answers that are well formed and not true: none reaches the caller.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use ah_plugin_api::ipc;
use ah_plugin_api::wire::{self, Op, Remote};
use ah_plugin_api::{
    Context, Description, DestroyRequest, Dir, Done, Durability, Entry, EntryKind, Error, ErrorKind, FileName,
    ListRequest, LookupRequest, MountRequest, Omission, OmitReason, Place, Probe, ProbeRequest, Provider, ProviderName,
    ReadDirRequest, ReadRequest, ReclaimRequest, Reclaimed, Reference, RelPath, Result, Snapshot, SnapshotId,
    SnapshotRef, SnapshotRequest, Timestamp, UnmountRequest, View,
};

/// Knows one snapshot, whatever it is asked for, and shows it at one path.
#[derive(Clone)]
struct Stubborn {
    view: PathBuf,
}

fn reference(text: &str) -> Reference {
    Reference::new(text).unwrap()
}

impl Provider for Stubborn {
    fn describe(&self) -> Description {
        Description {
            name: ProviderName::new("stubborn").unwrap(),
            version: "1".into(),
            rank: None,
            filesystems: [].into(),
            capabilities: [].into(),
        }
    }

    fn probe(&self, _: &Place<'_>, _: &ProbeRequest, _: &Context<'_>) -> Result<Probe> {
        Err(Error::new(ErrorKind::Busy, "busy"))
    }

    fn snapshot(&self, _: &Place<'_>, _: &SnapshotRequest, _: &Context<'_>) -> Result<Snapshot> {
        Err(Error::new(ErrorKind::Busy, "busy"))
    }

    fn sync(&self, _: &Place<'_>, _: &SnapshotRef, _: &Context<'_>) -> Result<Done> {
        Ok(Done {})
    }

    fn list(&self, _: &Place<'_>, _: &ListRequest, _: &Context<'_>) -> Result<Vec<Snapshot>> {
        Ok(Vec::new())
    }

    fn stat(&self, _: &Place<'_>, _: &SnapshotRef, _: &Context<'_>) -> Result<Snapshot> {
        Ok(Snapshot {
            id: SnapshotId::new("one").unwrap(),
            reference: reference("one"),
            created: Timestamp { secs: 1, nanos: 2 },
            label: None,
            attributes: [].into(),
            durability: Durability::Instant,
            tree: None,
            entries: None,
            omitted_total: 0,
            omitted: Vec::new(),
            repository: None,
            pins: None,
            changed_below: None,
        })
    }

    fn destroy(&self, _: &Place<'_>, _: &DestroyRequest, _: &Context<'_>) -> Result<Done> {
        Ok(Done {})
    }

    fn mount(&self, _: &Place<'_>, _: &MountRequest, _: &Context<'_>) -> Result<View> {
        Ok(View { path: self.view.clone(), reference: reference("view"), read_only_mount: false })
    }

    fn unmount(&self, _: &Place<'_>, _: &UnmountRequest, _: &Context<'_>) -> Result<Done> {
        Ok(Done {})
    }

    fn reclaim(&self, _: &Place<'_>, _: &ReclaimRequest, _: &Context<'_>) -> Result<Reclaimed> {
        Ok(Reclaimed::default())
    }
}

impl wire::Caller for Stubborn {
    fn call(&self, op: Op, request: &[u8], fds: &[BorrowedFd<'_>], cx: &Context<'_>) -> Result<Vec<u8>> {
        let fds = fds.iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect();
        wire::serve(self, op, request, fds, cx)
    }
}

fn remote(view: PathBuf) -> Remote<Stubborn> {
    let provider = Stubborn { view };
    let description = provider.describe();
    Remote::new(provider, description)
}

#[test]
fn another_snapshot_than_it_was_asked_about() {
    let dir = tempfile::tempdir().unwrap();
    let store = Dir::open(dir.path()).unwrap();
    let stat = |text: &str| {
        let request = SnapshotRef { snapshot: reference(text) };
        remote(PathBuf::new()).stat(&Place::new(&store), &request, &Context::quiet())
    };
    assert_eq!(stat("one").unwrap().reference, reference("one"));
    let error = stat("two").unwrap_err();
    assert_eq!(error.kind, ErrorKind::Internal);
    assert!(error.message.contains("another snapshot"), "{error:?}");
}

#[test]
fn a_path_of_a_view_that_is_not_absolute_and_plain() {
    let dir = tempfile::tempdir().unwrap();
    let open = |name: &str| {
        std::fs::create_dir(dir.path().join(name)).unwrap();
        Dir::open(dir.path().join(name)).unwrap()
    };
    let (store, target) = (open("store"), open("target"));
    let request = MountRequest { snapshot: reference("one"), name: FileName::new("v").unwrap(), paths: Vec::new() };
    let mount =
        |view: PathBuf| remote(view).mount(&Place::new(&store).with_target(&target), &request, &Context::quiet());
    for wrong in ["/".into(), "v".into(), target.path().join("v/../../elsewhere")] {
        let error = mount(wrong.clone()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Internal, "{}", wrong.display());
    }
    // As asked for, and where the provider shows it anyway.
    for right in [target.path().join("v"), dir.path().join("elsewhere")] {
        assert_eq!(mount(right.clone()).unwrap().path, right);
    }
}

/// Gives what a test has it give.
struct Gives(Vec<u8>);

impl wire::Caller for Gives {
    fn call(&self, _: Op, _: &[u8], _: &[BorrowedFd<'_>], _: &Context<'_>) -> Result<Vec<u8>> {
        Ok(self.0.clone())
    }
}

fn gives(answer: &impl serde::Serialize) -> Remote<Gives> {
    Remote::new(Gives(wire::encode(answer).unwrap()), Stubborn { view: PathBuf::new() }.describe())
}

fn is_the_providers(error: &Error) -> bool {
    error.kind == ErrorKind::Internal && error.message.contains("the provider stubborn answered with")
}

#[test]
fn an_entry_of_a_kind_that_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let store = Dir::open(dir.path()).unwrap();
    let (place, cx) = (Place::new(&store), Context::quiet());
    let (snapshot, path) = (reference("one"), RelPath::new("a").unwrap());
    for (kind, is_right) in [(EntryKind::Special, true), (EntryKind::Unknown, false)] {
        let entry = Entry {
            name: b"a".to_vec(),
            kind,
            mode: 0o644,
            size: 0,
            mtime: Timestamp::default(),
            content: None,
            ignored: false,
        };
        let read_dir = ReadDirRequest { snapshot: snapshot.clone(), path: RelPath::root() };
        let lookup = LookupRequest { snapshots: vec![snapshot.clone()], path: path.clone() };
        let read = ReadRequest { snapshot: snapshot.clone(), path: path.clone() };
        let answers = [
            gives(&vec![&entry]).read_dir(&place, &read_dir, &cx).map(drop),
            gives(&vec![Some(&entry)]).lookup(&place, &lookup, &cx).map(drop),
            gives(&entry).read(&place, &read, &cx).map(drop),
        ];
        for answer in answers {
            assert!(if is_right { answer.is_ok() } else { is_the_providers(&answer.unwrap_err()) }, "{kind:?}");
        }
    }
}

#[test]
fn more_that_a_snapshot_does_not_hold_than_anybody_can_use() {
    let dir = tempfile::tempdir().unwrap();
    let store = Dir::open(dir.path()).unwrap();
    let (place, cx) = (Place::new(&store), Context::quiet());
    let request = SnapshotRef { snapshot: reference("one") };
    let one = Stubborn { view: PathBuf::new() }.stat(&place, &request, &cx).unwrap();
    // What is said of each is cut at 4 KiB.
    let omission = |detail: usize| Omission {
        path: RelPath::new("a").unwrap(),
        reason: OmitReason::Ignored,
        detail: Some("x".repeat(detail)),
    };
    for (omitted, is_right) in [(vec![omission(1); 2], true), (vec![omission(4 << 10); 70_000], false)] {
        let snapshot = Snapshot { omitted_total: omitted.len() as u64, omitted, ..one.clone() };
        let answers = [
            gives(&snapshot).stat(&place, &request, &cx).map(drop),
            gives(&vec![&snapshot]).list(&place, &ListRequest::default(), &cx).map(drop),
        ];
        for answer in answers {
            assert!(if is_right { answer.is_ok() } else { is_the_providers(&answer.unwrap_err()) }, "{is_right}");
        }
    }
}

/// Has two providers, the first of which has a version that cannot be shown.
struct Two;

impl ipc::Offered for Two {
    fn offers(&self) -> Vec<Description> {
        let good = Stubborn { view: PathBuf::new() }.describe();
        let odd = Description { name: ProviderName::new("odd").unwrap(), version: "1\u{1b}[2J".into(), ..good.clone() };
        vec![odd, good]
    }

    fn choose(&self, _: &ProviderName) -> Result<Box<dyn Provider + '_>> {
        Err(Error::new(ErrorKind::NotFound, "nobody asks"))
    }
}

#[test]
fn an_offer_that_cannot_be_shown_beside_one_that_can() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || ipc::serve_one_of(&theirs, &Two, ipc::Bounds::default()));
        let offers = ipc::offers(&ours, "the test server", Duration::from_secs(20));
        drop(ours);
        assert_eq!(offers.unwrap().iter().map(|offer| offer.name.as_str()).collect::<Vec<_>>(), ["stubborn"]);
    });
}
