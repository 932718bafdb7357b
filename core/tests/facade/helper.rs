//! A helper that is there, and does not serve: it is waited for, and what it would have done is left to no other in silence.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ah_core::{
    BranchOptions, DiffOptions, Error, ErrorKind, EventBody, HelperSocket, NoticeKind, SnapshotFilter, SnapshotKind,
};
use ah_core::{SnapshotOptions, TimelineFilter};
use ah_plugin_api::ipc::{self, Bounds, Offered};
use ah_plugin_api::{
    Context, Description, DestroyRequest, Dir, Done, ListRequest, Mode, MountRequest, Place, Probe, ProbeRequest,
    Provider, ProviderName, ReclaimRequest, Reclaimed, Result, Snapshot, SnapshotRef, SnapshotRequest, UnmountRequest,
    View,
};

use crate::lab::{Fake, Lab, Stop, kinds};

/// What one offers that has a store of its own, as the helper has.
struct Offers {
    fake: Fake,
    store: PathBuf,
    /// What it says instead of whether it can serve.
    mute: Arc<AtomicBool>,
}

struct Offer<'a>(&'a Offers);

impl Offered for Offers {
    fn offers(&self) -> Vec<Description> {
        vec![self.fake.describe()]
    }

    fn choose(&self, _: &ProviderName) -> Result<Box<dyn Provider + '_>> {
        Ok(Box::new(Offer(self)))
    }
}

macro_rules! forward {
    ($($method:ident($request:ty) -> $answer:ty;)+) => {
        $(fn $method(&self, place: &Place<'_>, request: &$request, cx: &Context<'_>) -> Result<$answer> {
            self.0.fake.$method(place, request, cx)
        })+
    };
}

impl Provider for Offer<'_> {
    fn describe(&self) -> Description {
        self.0.fake.describe()
    }

    fn probe(&self, place: &Place<'_>, request: &ProbeRequest, cx: &Context<'_>) -> Result<Probe> {
        if self.0.mute.load(Ordering::Relaxed) {
            return Err(busy());
        }
        self.0.fake.probe(place, request, cx)
    }

    fn snapshot(&self, place: &Place<'_>, request: &SnapshotRequest, cx: &Context<'_>) -> Result<Snapshot> {
        let store = Dir::open(self.0.store.clone())?;
        self.0.fake.snapshot(&Place::new(&store).with_workspace(place.need_workspace()?), request, cx)
    }

    forward! {
        sync(SnapshotRef) -> Done;
        list(ListRequest) -> Vec<Snapshot>;
        stat(SnapshotRef) -> Snapshot;
        destroy(DestroyRequest) -> Done;
        mount(MountRequest) -> View;
        unmount(UnmountRequest) -> Done;
        reclaim(ReclaimRequest) -> Reclaimed;
    }
}

fn busy() -> Error {
    Error::new(ErrorKind::ResourceExhausted, "made to refuse").with_hint("wait a little")
}

/// A helper, until it is dropped.
struct Helper {
    socket: PathBuf,
    /// How many connections it will refuse yet.
    refuses: Arc<Mutex<u32>>,
    mute: Arc<AtomicBool>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Helper {
    fn start(folder: &Path, fake: &Fake) -> Self {
        let (socket, store) = (folder.join("ahd.sock"), folder.join("ahd"));
        std::fs::create_dir(&store).unwrap();
        let listener = UnixListener::bind(&socket).unwrap();
        let (refuses, mute, ended) = (Arc::<Mutex<u32>>::default(), Arc::default(), Arc::<AtomicBool>::default());
        let offers = Arc::new(Offers { fake: fake.clone(), store, mute: Arc::clone(&mute) });
        let (left, over) = (Arc::clone(&refuses), Arc::clone(&ended));
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                if over.load(Ordering::Relaxed) {
                    return;
                }
                let mut left = left.lock().unwrap();
                if *left > 0 {
                    *left -= 1;
                    ipc::turn_away(&stream, &busy());
                    continue;
                }
                let offers = Arc::clone(&offers);
                // Ends with its client.
                std::thread::spawn(move || ipc::serve_one_of(&stream, &*offers, Bounds::default()));
            }
        });
        Self { socket, refuses, mute, ended, thread: Some(thread) }
    }

    fn refuse(&self, times: u32) {
        *self.refuses.lock().unwrap() = times;
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        let _ = UnixStream::connect(&self.socket);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// For ever, as far as a test goes.
const ALWAYS: u32 = u32::MAX;

/// A filesystem whose own provider cannot serve here, as its files are somebody else's; the helper's can, and one for all filesystems can. None
/// where this is not root: a helper is root's.
fn helped() -> Option<(Lab, Helper)> {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("AH_TEST_REQUIRE_ALL").is_none(), "skipped: needs root");
        eprintln!("skipped: needs root");
        return None;
    }
    let at = rustix::fs::statfs(std::env::temp_dir().as_path()).unwrap().f_type;
    let (mut own, other) = (Fake::new("fs", Some(400)), Fake::new("other", Some(10)));
    own.filesystems = [u32::try_from(at).unwrap()].into();
    *own.probe.lock().unwrap() = Some(Probe {
        usable: false,
        reason: "it is somebody else's".into(),
        remedy: Some("let the administrator set up `ahd`".into()),
        modes: std::collections::BTreeSet::new(),
        can_delete: true,
        convertible: None,
    });
    let mut lab = Lab::with(vec![own.clone(), other], own);
    let helper = Helper::start(&lab.top, &Fake::new("fs_ahd", Some(399)));
    lab.settings.helper = Some(HelperSocket { path: helper.socket.clone(), named: true });
    lab.settings.patience = Duration::from_secs(20);
    lab.write("a", "1");
    Some((lab, helper))
}

fn automatic() -> SnapshotOptions {
    SnapshotOptions { kind: SnapshotKind::Auto, ..SnapshotOptions::default() }
}

#[test]
fn one_that_has_too_much_to_do_is_waited_for() {
    let Some((lab, helper)) = helped() else { return };
    helper.refuse(3);
    let workspace = lab.open();
    assert_eq!(workspace.snapshot(&SnapshotOptions::default()).unwrap().provider.as_str(), "fs_ahd");
    assert_eq!(kinds(&workspace.engine().take_notices()), []);
}

#[test]
fn it_is_waited_for_as_long_as_others_are() {
    let Some((mut lab, helper)) = helped() else { return };
    helper.refuse(ALWAYS);
    let began = Instant::now();
    lab.settings.patience = Duration::from_millis(300);
    lab.open().snapshot(&SnapshotOptions::default()).unwrap_err();
    let waited = began.elapsed();
    assert!(waited >= lab.settings.patience && waited < Duration::from_secs(10), "{waited:?}");
    let began = Instant::now();
    lab.settings.patience = Duration::from_secs(60);
    lab.settings.deadline = Some(began + Duration::from_millis(300));
    lab.open().snapshot(&SnapshotOptions::default()).unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

#[test]
fn a_person_is_offered_the_next_where_it_does_not_serve() {
    let Some((mut lab, helper)) = helped() else { return };
    lab.settings.patience = Duration::from_millis(50);
    let refused = |lab: &Lab| {
        let workspace = lab.open();
        let error = workspace.snapshot(&SnapshotOptions::default()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::ResourceExhausted, "{error:?}");
        assert!(error.causes.iter().chain([&error.message]).any(|text| text.contains("made to refuse")), "{error:?}");
        let hint = error.hint.unwrap();
        assert!(hint.starts_with("wait a little; or ") && hint.ends_with("--provider other"), "{hint}");
        // Once.
        assert_eq!(kinds(&workspace.engine().take_notices()), []);
        assert_eq!(workspace.snapshots(&SnapshotFilter::default()).unwrap(), []);
    };
    helper.refuse(ALWAYS);
    refused(&lab);
    helper.refuse(0);
    helper.mute.store(true, Ordering::Relaxed);
    refused(&lab);
    helper.mute.store(false, Ordering::Relaxed);
    lab.open().snapshot(&SnapshotOptions::default()).unwrap();
    // Who has named another has chosen.
    helper.refuse(ALWAYS);
    lab.settings.flags.insert("provider".into(), "other".into());
    assert_eq!(lab.open().snapshot(&SnapshotOptions::default()).unwrap().provider.as_str(), "other");
}

#[test]
fn so_it_is_with_a_branch() {
    let Some((mut lab, helper)) = helped() else { return };
    lab.settings.patience = Duration::from_millis(50);
    helper.refuse(ALWAYS);
    let workspace = lab.open();
    let error = workspace.branch(&BranchOptions { name: Some("b".into()), ..BranchOptions::default() }).unwrap_err();
    assert_eq!(error.kind, ErrorKind::ResourceExhausted, "{error:?}");
    assert!(error.hint.unwrap().contains("--provider other"));
    assert_eq!(workspace.branches().unwrap(), []);
}

#[test]
fn who_stops_waiting_hears_that_and_nothing_is_taken() {
    let Some((mut lab, helper)) = helped() else { return };
    helper.refuse(ALWAYS);
    let (stop, began) = (Stop::default(), Instant::now());
    let stopped = Arc::clone(&stop.0);
    lab.settings.observer = Arc::new(stop);
    let workspace = lab.open();
    let soon = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        stopped.store(true, Ordering::Relaxed);
    });
    let error = workspace.snapshot(&automatic()).unwrap_err();
    soon.join().unwrap();
    assert_eq!((error.kind, error.message.as_str()), (ErrorKind::Cancelled, "cancelled"));
    assert!(began.elapsed() < lab.settings.patience / 2, "{:?}", began.elapsed());
    assert_eq!(kinds(&workspace.engine().take_notices()), []);
}

#[test]
fn an_automatic_one_that_another_takes_says_so() {
    let Some((mut lab, helper)) = helped() else { return };
    lab.settings.patience = Duration::from_millis(50);
    for mute in [false, true] {
        helper.refuse(if mute { 0 } else { ALWAYS });
        helper.mute.store(mute, Ordering::Relaxed);
        lab.wait(60);
        lab.write("a", if mute { "muted" } else { "refused" });
        let workspace = lab.open();
        assert_eq!(workspace.snapshot(&automatic()).unwrap().provider.as_str(), "other");
        assert_eq!(kinds(&workspace.engine().take_notices()), [NoticeKind::Degraded], "{mute}");
        let events = workspace.timeline(&TimelineFilter::default()).unwrap().events;
        let degraded = |body: &EventBody| matches!(body, EventBody::Degraded { provider, reason, .. } if provider.as_str() == "fs_ahd" && reason.contains("made to refuse"));
        assert_eq!(events.iter().filter(|event| degraded(&event.body)).count(), if mute { 2 } else { 1 });
    }
    helper.refuse(ALWAYS);
    assert!(lab.engine().status(&lab.path()).unwrap().degraded.unwrap().contains("fs_ahd failed and other took over"));
}

/// The same helper beside these plugins.
fn beside(helper: &Helper, fakes: Vec<Fake>) -> Lab {
    let first = fakes[0].clone();
    let mut lab = Lab::with(fakes, first);
    lab.settings.helper = Some(HelperSocket { path: helper.socket.clone(), named: true });
    lab.settings.patience = Duration::from_millis(50);
    lab.write("a", "1");
    lab
}

#[test]
fn where_nothing_says_that_it_would_have_served_another_does_and_it_is_told() {
    let Some((lab, helper)) = helped() else { return };
    // One that is for another filesystem, and one for all.
    let (mut own, all) = (Fake::new("fs", Some(400)), Fake::new("all", Some(20)));
    own.filesystems = [1].into();
    own.probe.clone_from(&lab.fake.probe);
    let no = lab.fake.probe.lock().unwrap().clone();
    all.probe.lock().unwrap().clone_from(&no);
    let lab = beside(&helper, vec![all, own, Fake::new("other", Some(10))]);
    helper.refuse(ALWAYS);
    let workspace = lab.open();
    assert_eq!(workspace.snapshot(&SnapshotOptions::default()).unwrap().provider.as_str(), "other");
    assert_eq!(kinds(&workspace.engine().take_notices()), [NoticeKind::Helper]);
    // What it has done before says that it would.
    helper.refuse(0);
    assert_eq!(lab.step("a", "2").provider.as_str(), "fs_ahd");
    helper.refuse(ALWAYS);
    let error = lab.open().snapshot(&SnapshotOptions::default()).unwrap_err();
    assert_eq!(error.kind, ErrorKind::ResourceExhausted);
    assert!(error.hint.unwrap().ends_with("--provider other"));
}

#[test]
fn where_nobody_can_serve_that_it_did_not_is_among_the_causes() {
    let Some((lab, helper)) = helped() else { return };
    let lab = beside(&helper, vec![lab.fake.clone()]);
    helper.refuse(ALWAYS);
    let error = lab.open().snapshot(&SnapshotOptions::default()).unwrap_err();
    assert_eq!((error.kind, error.hint.as_deref()), (ErrorKind::Unavailable, Some("wait a little")), "{error:?}");
    assert!(error.causes.iter().any(|cause| cause.contains("made to refuse")), "{error:?}");
}

#[test]
fn what_it_keeps_is_asked_of_it_and_its_own_error_told() {
    let Some((mut lab, helper)) = helped() else { return };
    lab.open().snapshot(&SnapshotOptions::default()).unwrap();
    lab.settings.patience = Duration::from_millis(50);
    helper.refuse(ALWAYS);
    let error = lab.open().diff("@", None, &DiffOptions::default()).unwrap_err();
    assert_eq!((error.kind, error.hint.as_deref()), (ErrorKind::ResourceExhausted, Some("wait a little")), "{error:?}");
    drop(helper);
    let error = lab.open().diff("@", None, &DiffOptions::default()).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unavailable);
    assert!(error.hint.unwrap().contains("systemctl start ahd.socket"));
}

#[test]
fn status_tells_of_it_and_nobody_is_to_set_up_what_is_there() {
    let Some((mut lab, helper)) = helped() else { return };
    lab.settings.patience = Duration::from_millis(50);
    helper.refuse(ALWAYS);
    let engine = lab.engine();
    let status = engine.status(&lab.path()).unwrap();
    assert!(status.candidates.iter().all(|candidate| candidate.remedy.is_none()), "{:?}", status.candidates);
    let notices = engine.take_notices();
    assert!(notices.iter().any(|it| it.kind == NoticeKind::Helper && it.message.contains("made to refuse")));
    let unused = engine.all_providers().unwrap().helper.unwrap();
    assert_eq!((unused.path, unused.kind), (helper.socket.clone(), ErrorKind::ResourceExhausted));
    assert_eq!(unused.remedy.as_deref(), Some("wait a little"));
    drop(helper);
    let status = lab.engine().status(&lab.path()).unwrap();
    assert!(status.candidates.iter().any(|candidate| candidate.remedy.is_some()), "it is not there");
}

#[test]
fn where_it_is_refused_for_good_another_serves_and_it_is_told() {
    let Some((mut lab, helper)) = helped() else { return };
    // Whom others could replace is not trusted.
    lab.settings.helper = Some(HelperSocket { path: helper.socket.clone(), named: false });
    std::fs::set_permissions(&lab.top, Permissions::from_mode(0o777)).unwrap();
    let workspace = lab.open();
    assert_eq!(workspace.snapshot(&SnapshotOptions::default()).unwrap().provider.as_str(), "other");
    assert_eq!(kinds(&workspace.engine().take_notices()), [NoticeKind::Helper]);
    assert_eq!(lab.engine().all_providers().unwrap().helper.unwrap().kind, ErrorKind::PermissionDenied);
}

#[test]
fn who_captures_well_and_only_makes_no_branches_waits_for_no_helper() {
    let Some((lab, helper)) = helped() else { return };
    let mut own = Fake::new("fs", Some(400));
    own.filesystems.clone_from(&lab.fake.filesystems);
    *own.probe.lock().unwrap() = Some(Probe {
        usable: true,
        reason: "it can".into(),
        remedy: None,
        modes: [Mode::InPlace].into(),
        can_delete: true,
        convertible: None,
    });
    // Asked first, and no use here.
    let before = Fake::new("before", Some(500));
    before.probe.lock().unwrap().clone_from(&lab.fake.probe.lock().unwrap());
    for fakes in [vec![own.clone()], vec![own.clone(), before]] {
        let mut lab = beside(&helper, [fakes, vec![Fake::new("other", Some(10))]].concat());
        for mute in [false, true] {
            helper.refuse(if mute { 0 } else { ALWAYS });
            helper.mute.store(mute, Ordering::Relaxed);
            lab.wait(60);
            lab.write("a", if mute { "muted" } else { "refused" });
            let workspace = lab.open();
            assert_eq!(workspace.snapshot(&SnapshotOptions::default()).unwrap().provider.as_str(), "fs");
            assert_eq!(kinds(&workspace.engine().take_notices()), [NoticeKind::Helper], "{mute}");
        }
        // What one has done before that makes branches, too, is asked for.
        let better = Fake::new("fs_ahd", Some(399));
        *better.probe.lock().unwrap() = Some(Probe {
            usable: true,
            reason: "it can".into(),
            remedy: None,
            modes: [Mode::InPlace, Mode::Worktree].into(),
            can_delete: true,
            convertible: None,
        });
        let helper = Helper::start(&lab.top, &better);
        lab.settings.helper = Some(HelperSocket { path: helper.socket.clone(), named: true });
        assert_eq!(lab.step("a", "2").provider.as_str(), "fs_ahd");
        helper.refuse(ALWAYS);
        let error = lab.open().snapshot(&SnapshotOptions::default()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::ResourceExhausted);
    }
}

#[test]
fn who_stops_while_it_is_asked_whether_it_can_wants_no_other() {
    let Some((lab, helper)) = helped() else { return };
    let other = Fake::new("other", Some(10));
    let mut lab = beside(&helper, vec![lab.fake.clone(), other.clone()]);
    lab.settings.patience = Duration::from_secs(20);
    let stop = Stop::default();
    let stopped = Arc::clone(&stop.0);
    lab.settings.observer = Arc::new(stop);
    let workspace = lab.open();
    // It has said what it offers by then.
    workspace.engine().all_providers().unwrap();
    helper.refuse(ALWAYS);
    let soon = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        stopped.store(true, Ordering::Relaxed);
    });
    let error = workspace.snapshot(&automatic()).unwrap_err();
    soon.join().unwrap();
    assert_eq!(error.kind, ErrorKind::Cancelled);
    assert_eq!(other.probes.load(Ordering::Relaxed), 0);
}
