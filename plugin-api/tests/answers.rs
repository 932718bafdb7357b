//! Answers that are well formed and not true: none reaches the caller.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use ah_plugin_api::ipc;
use ah_plugin_api::wire::{self, Op, Remote};
use ah_plugin_api::{
    Context, Description, DestroyRequest, Dir, Done, Durability, Error, ErrorKind, FileName, ListRequest, MountRequest,
    Place, Probe, ProbeRequest, Provider, ProviderName, ReclaimRequest, Reclaimed, Reference, Result, Snapshot,
    SnapshotId, SnapshotRef, SnapshotRequest, Timestamp, UnmountRequest, View,
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
