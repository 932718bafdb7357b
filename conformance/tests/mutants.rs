//! The suite is tested too: a provider that passes is given one fault at a time, and the suite has to find it.

#![allow(clippy::unwrap_used)]

#[path = "mutants/lies.rs"]
mod lies;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ah_conformance::{Editor, InProcess, MemoryProvider, Options, Outcome, Report, Target, run};
use ah_plugin_api::{
    Capability, Changes, CloneRequest, Context, Description, DestroyRequest, DiffRequest, Done, Entry, Error,
    ErrorKind, FileName, ListRequest, LookupRequest, MountRequest, Omission, OmitReason, Place, Probe, ProbeRequest,
    Provider, ReadDirRequest, ReadRequest, ReclaimRequest, Reclaimed, Reference, RelPath, Result, Snapshot,
    SnapshotRef, SnapshotRequest, Timestamp, UnmountRequest, Usage, UsageRequest, View, WritableClone,
};

/// One fault, and the case that has to find it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    DescribesItselfDifferently,
    ListsTheLatestFirst,
    ListsNothingForOneDamaged,
    DropsAttributes,
    LosesLongKeys,
    TrimsLabels,
    CapsTimesToSeconds,
    ReplacesADuplicate,
    DestroyOfNothingFails,
    DestroyTakesAnother,
    DestroyDoesNothing,
    SyncDoesNothing,
    TouchesAFile,
    LeavesAFile,
    SaysNothingOfAnOmission,
    OmitsForNoReason,
    ClaimsHardLinks,
    ClaimsOwners,
    ClaimsOneInstant,
    ClaimsDurability,
    ClaimsSpecialFiles,
    ViewLosesLargeFiles,
    ClaimsExactModes,
    ViewIsWritable,
    ViewLosesNanoseconds,
    ViewLosesDirectoryTimes,
    ViewLosesEmptyDirectories,
    ViewFollowsSymlinks,
    ViewLosesModes,
    ViewReplacesWhatIsThere,
    ViewIgnoresPaths,
    UnmountLeavesTheView,
    CloneIsTheView,
    CloneTimesAreNow,
    DestroyLeavesTheClone,
    RemovesWhatBearsTheName,
    ReadIsShort,
    ReadDirIsUnordered,
    LookupIsReversed,
    LookupLosesTheRoot,
    DiffForgetsOne,
    DiffIgnoresPaths,
    DiffIgnoresTimes,
    DiffConfusesSides,
    DiffGoesByAttributes,
    DiffLosesAll,
    DiffReadsNothing,
    RepositoryIsUntouched,
    NoDifferenceIsUntouched,
    ReclaimTakesOne,
    ReclaimLeavesTheForgotten,
    ReclaimTakesWhatBearsAName,
    TreesAreWhole,
    TreesLackModes,
    TreesLackTimes,
    TreesLackTargets,
    TreesLackEmptyDirectories,
    TreesLackWhatDirectoriesAre,
    UsageIsTheSameForAny,
    UsageIsOfTheFirst,
    CancelledIsInternal,
    Panics,
}

const FOUND_BY: &[(Fault, &str)] = &[
    (Fault::None, ""),
    (Fault::DescribesItselfDifferently, "answers.describe"),
    (Fault::ListsTheLatestFirst, "answers.list"),
    (Fault::ListsNothingForOneDamaged, "failure.damage"),
    (Fault::DropsAttributes, "answers.given-back"),
    (Fault::LosesLongKeys, "answers.given-back"),
    (Fault::TrimsLabels, "answers.given-back"),
    (Fault::CapsTimesToSeconds, "answers.given-back"),
    (Fault::ReplacesADuplicate, "answers.duplicate-id"),
    (Fault::DestroyOfNothingFails, "answers.destroy"),
    (Fault::DestroyTakesAnother, "immutable.other-destroyed"),
    (Fault::DestroyDoesNothing, "answers.destroy"),
    (Fault::SyncDoesNothing, "answers.sync"),
    (Fault::TouchesAFile, "hands-off.workspace"),
    (Fault::LeavesAFile, "hands-off.workspace"),
    (Fault::SaysNothingOfAnOmission, "exact.special-files"),
    (Fault::OmitsForNoReason, "exact.sample"),
    (Fault::ClaimsHardLinks, "exact.hard-links-stay"),
    (Fault::ClaimsOneInstant, "exact.one-instant"),
    (Fault::ClaimsDurability, "answers.always-durable"),
    (Fault::ClaimsSpecialFiles, "exact.special-files-kept"),
    (Fault::ViewLosesLargeFiles, "exact.large"),
    (Fault::ClaimsExactModes, "views.exact-modes"),
    (Fault::ViewIsWritable, "views.by-mode"),
    (Fault::ViewLosesNanoseconds, "exact.times"),
    (Fault::ViewLosesDirectoryTimes, "exact.times"),
    (Fault::ViewLosesEmptyDirectories, "exact.empty-directories"),
    (Fault::ViewFollowsSymlinks, "exact.symlinks"),
    (Fault::ViewLosesModes, "exact.modes"),
    (Fault::ViewReplacesWhatIsThere, "views.name-taken"),
    (Fault::ViewIgnoresPaths, "views.paths"),
    (Fault::UnmountLeavesTheView, "views.unmount"),
    (Fault::CloneIsTheView, "clones.exact"),
    (Fault::CloneTimesAreNow, "clones.exact"),
    (Fault::DestroyLeavesTheClone, "clones.destroy"),
    (Fault::RemovesWhatBearsTheName, "views.replaced"),
    (Fault::RemovesWhatBearsTheName, "clones.replaced"),
    (Fault::ReadIsShort, "reading.read"),
    (Fault::ReadDirIsUnordered, "reading.read-dir"),
    (Fault::LookupIsReversed, "reading.lookup"),
    (Fault::LookupLosesTheRoot, "reading.lookup"),
    (Fault::DiffForgetsOne, "diff.snapshots"),
    (Fault::DiffIgnoresPaths, "diff.paths"),
    (Fault::DiffIgnoresTimes, "diff.times"),
    (Fault::DiffConfusesSides, "diff.snapshots"),
    (Fault::DiffGoesByAttributes, "changed.contents-of-same-size-and-time"),
    (Fault::DiffLosesAll, "diff.snapshots"),
    (Fault::DiffReadsNothing, "diff.snapshots"),
    (Fault::RepositoryIsUntouched, "diff.untouched"),
    (Fault::NoDifferenceIsUntouched, "diff.untouched"),
    (Fault::ReclaimTakesOne, "immutable.reclaim"),
    (Fault::ReclaimLeavesTheForgotten, "clones.forgotten"),
    (Fault::ReclaimLeavesTheForgotten, "views.forgotten"),
    (Fault::ReclaimTakesWhatBearsAName, "clones.forgotten"),
    (Fault::ReclaimTakesWhatBearsAName, "views.forgotten"),
    (Fault::TreesLackModes, "answers.entries"),
    (Fault::TreesLackTimes, "answers.entries"),
    (Fault::TreesLackTargets, "answers.entries"),
    (Fault::TreesLackEmptyDirectories, "answers.entries"),
    (Fault::TreesLackWhatDirectoriesAre, "answers.entries"),
    (Fault::UsageIsTheSameForAny, "answers.usage-of-several"),
    (Fault::UsageIsOfTheFirst, "answers.usage-of-several"),
    (Fault::CancelledIsInternal, "cancel.snapshot"),
    (Fault::Panics, "answers.usage"),
];

impl Fault {
    /// What is claimed without being kept.
    fn claims(self) -> Option<Capability> {
        match self {
            Self::ClaimsHardLinks => Some(Capability::HardLinks),
            Self::ClaimsOwners => Some(Capability::Owners),
            Self::ClaimsOneInstant => Some(Capability::PointInTime),
            Self::ClaimsDurability => Some(Capability::AlwaysDurable),
            Self::ClaimsSpecialFiles => Some(Capability::SpecialFiles),
            Self::ClaimsExactModes => Some(Capability::ExactViewModes),
            _ => None,
        }
    }
}

/// The in-memory provider with a fault.
struct Faulty {
    inner: MemoryProvider,
    fault: Fault,
    calls: AtomicU32,
}

impl Faulty {
    fn is(&self, fault: Fault) -> bool {
        self.fault == fault
    }

    /// Of one whose file in the store is not as it was written; there is one with this fault alone.
    fn find_damage(&self, place: &Place<'_>, snapshot: &Snapshot) -> Result<()> {
        let file = place.store.path().join(snapshot.id.as_str());
        if self.is(Fault::ListsNothingForOneDamaged)
            && !std::fs::read(file).is_ok_and(|bytes| bytes == snapshot.id.as_str().as_bytes())
        {
            return Err(Error::new(ErrorKind::DataLoss, format!("the snapshot {} is damaged", snapshot.id)));
        }
        Ok(())
    }

    /// Removes whatever is called as what was made under a reference.
    fn remove_by_name(&self, place: &Place<'_>, made: &Reference) {
        if self.is(Fault::RemovesWhatBearsTheName) {
            // The name, in hexadecimal.
            let hex = made.as_str().split_once(':').unwrap().1.as_bytes();
            let byte = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap();
            let name = FileName::new(hex.chunks(2).map(byte).collect::<Vec<_>>()).unwrap();
            let _ = std::fs::remove_dir_all(place.need_target().unwrap().path().join(name.as_os_str()));
        }
    }

    fn altered(&self, mut snapshot: Snapshot) -> Snapshot {
        match self.fault {
            Fault::DropsAttributes => snapshot.attributes.clear(),
            Fault::LosesLongKeys => snapshot.attributes.retain(|key, _| key.len() < 40),
            Fault::TrimsLabels => snapshot.label = snapshot.label.map(|label| label.replace('\n', " ")),
            Fault::CapsTimesToSeconds => snapshot.created.nanos = 0,
            Fault::SaysNothingOfAnOmission => {
                snapshot.omitted.clear();
                snapshot.omitted_total = 0;
            }
            _ => {}
        }
        snapshot
    }

    /// Spoils a view or clone that is fine otherwise.
    fn spoil(&self, at: &Path) {
        // Write bits are off; they come back by themselves where the fault is not about them.
        let all = walk(at);
        for path in &all {
            let meta = path.symlink_metadata().unwrap();
            let mode = meta.permissions().mode();
            let chmod = |mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
            let editor = Editor::new(path);
            let time = editor.mtime_of("").unwrap();
            match self.fault {
                Fault::ViewIsWritable if !meta.is_symlink() => chmod(mode | 0o200),
                Fault::ViewLosesModes if meta.is_file() => chmod(if mode & 0o100 == 0 { 0o444 } else { 0o555 }),
                Fault::ViewLosesNanoseconds => editor.mtime("", Timestamp { nanos: 0, ..time }).unwrap(),
                Fault::ViewLosesDirectoryTimes if meta.is_dir() => editor.mtime("", Timestamp::now()).unwrap(),
                Fault::CloneTimesAreNow if meta.is_file() => editor.mtime("", Timestamp::now()).unwrap(),
                Fault::ViewLosesEmptyDirectories if meta.is_dir() && path != at => {
                    let above = Editor::new(path.parent().unwrap());
                    let (bits, time) = (above.at("").metadata().unwrap().permissions(), above.mtime_of("").unwrap());
                    above.chmod("", 0o700).unwrap();
                    let _ = std::fs::remove_dir(path);
                    std::fs::set_permissions(above.at(""), bits).unwrap();
                    above.mtime("", time).unwrap();
                }
                Fault::ViewLosesLargeFiles if meta.len() > 64 << 20 => {
                    Editor::new(path.parent().unwrap()).chmod("", 0o700).unwrap();
                    std::fs::remove_file(path).unwrap();
                }
                Fault::ViewFollowsSymlinks if meta.is_symlink() => {
                    let Ok(contents) = std::fs::read(path) else { continue };
                    let above = Editor::new(path.parent().unwrap());
                    above.chmod("", 0o700).unwrap();
                    std::fs::remove_file(path).unwrap();
                    std::fs::write(path, contents).unwrap();
                }
                _ => {}
            }
        }
    }
}

/// Everything at and below `at`, the innermost first.
fn walk(at: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    if at.symlink_metadata().unwrap().is_dir() {
        for entry in std::fs::read_dir(at).unwrap() {
            found.extend(walk(&entry.unwrap().path()));
        }
    }
    found.push(at.to_owned());
    found
}

impl Provider for Faulty {
    fn describe(&self) -> Description {
        let mut description = self.inner.describe();
        if self.fault == Fault::DescribesItselfDifferently {
            description.version = format!("1.{}", self.calls.fetch_add(1, Ordering::Relaxed));
        }
        description.capabilities.extend(self.fault.claims());
        description
    }

    fn probe(&self, place: &Place<'_>, request: &ProbeRequest, cx: &Context<'_>) -> Result<Probe> {
        self.inner.probe(place, request, cx)
    }

    fn snapshot(&self, place: &Place<'_>, request: &SnapshotRequest, cx: &Context<'_>) -> Result<Snapshot> {
        let workspace = Editor::new(place.need_workspace()?.path());
        match self.fault {
            Fault::ReplacesADuplicate => {
                let all = self.inner.list(place, &ListRequest::default(), cx)?;
                if let Some(old) = all.into_iter().find(|snapshot| snapshot.id == request.id) {
                    self.inner.destroy(place, &DestroyRequest::Snapshot(old.reference), cx)?;
                }
            }
            // To the nanosecond that it had: only the change time tells.
            Fault::TouchesAFile if workspace.exists("README.md") => {
                workspace.mtime("README.md", workspace.mtime_of("README.md").unwrap()).unwrap();
            }
            Fault::LeavesAFile => workspace.write(".minimal-was-here", "").unwrap(),
            _ => {}
        }
        let snapshot = self.inner.snapshot(place, request, cx);
        if self.is(Fault::CancelledIsInternal) {
            return snapshot.map_err(|error| Error { kind: ErrorKind::Internal, ..error });
        }
        if self.is(Fault::ListsNothingForOneDamaged) {
            std::fs::write(place.store.path().join(request.id.as_str()), request.id.as_str()).unwrap();
        }
        let mut snapshot = self.altered(snapshot?);
        snapshot.tree = lies::tree(self.fault, workspace.root());
        if self.is(Fault::OmitsForNoReason) {
            let path = RelPath::new("README.md")?;
            snapshot.omitted.push(Omission { path, reason: OmitReason::Excluded, detail: None });
            snapshot.omitted_total += 1;
        }
        Ok(snapshot)
    }

    fn sync(&self, place: &Place<'_>, request: &SnapshotRef, cx: &Context<'_>) -> Result<Done> {
        if self.is(Fault::SyncDoesNothing) {
            return self.inner.stat(place, request, cx).map(|_| Done {});
        }
        self.inner.sync(place, request, cx)
    }

    fn list(&self, place: &Place<'_>, request: &ListRequest, cx: &Context<'_>) -> Result<Vec<Snapshot>> {
        let mut list = self.inner.list(place, request, cx)?;
        list.iter().try_for_each(|snapshot| self.find_damage(place, snapshot))?;
        if self.is(Fault::ListsTheLatestFirst) {
            list.reverse();
        }
        Ok(list.into_iter().map(|snapshot| self.altered(snapshot)).collect())
    }

    fn stat(&self, place: &Place<'_>, request: &SnapshotRef, cx: &Context<'_>) -> Result<Snapshot> {
        let snapshot = self.inner.stat(place, request, cx)?;
        self.find_damage(place, &snapshot)?;
        Ok(self.altered(snapshot))
    }

    fn destroy(&self, place: &Place<'_>, request: &DestroyRequest, cx: &Context<'_>) -> Result<Done> {
        match (self.fault, request) {
            (Fault::DestroyDoesNothing, DestroyRequest::Snapshot(_))
            | (Fault::DestroyLeavesTheClone, DestroyRequest::Clone(_)) => return Ok(Done {}),
            (Fault::DestroyOfNothingFails, DestroyRequest::Snapshot(snapshot)) => {
                self.inner.stat(place, &SnapshotRef { snapshot: snapshot.clone() }, cx)?;
            }
            (Fault::DestroyTakesAnother, DestroyRequest::Snapshot(_)) => {
                if let Some(first) = self.inner.list(place, &ListRequest::default(), cx)?.into_iter().next() {
                    self.inner.destroy(place, &DestroyRequest::Snapshot(first.reference), cx)?;
                }
            }
            (_, DestroyRequest::Clone(clone)) => self.remove_by_name(place, clone),
            _ => {}
        }
        self.inner.destroy(place, request, cx)
    }

    fn mount(&self, place: &Place<'_>, request: &MountRequest, cx: &Context<'_>) -> Result<View> {
        let at = place.need_target()?.path().join(request.name.as_os_str());
        if self.is(Fault::ViewReplacesWhatIsThere) && at.is_dir() {
            let _ = std::fs::remove_dir_all(&at);
        }
        let mut request = request.clone();
        if self.is(Fault::ViewIgnoresPaths) {
            request.paths.clear();
        }
        let view = self.inner.mount(place, &request, cx)?;
        self.spoil(&view.path);
        Ok(view)
    }

    fn unmount(&self, place: &Place<'_>, request: &UnmountRequest, cx: &Context<'_>) -> Result<Done> {
        if self.is(Fault::UnmountLeavesTheView) {
            return Ok(Done {});
        }
        self.remove_by_name(place, &request.view);
        self.inner.unmount(place, request, cx)
    }

    fn clone_snapshot(&self, place: &Place<'_>, request: &CloneRequest, cx: &Context<'_>) -> Result<WritableClone> {
        if self.is(Fault::CloneIsTheView) {
            let (snapshot, name) = (request.snapshot.clone(), request.name.clone());
            let view = self.inner.mount(place, &MountRequest { snapshot, name, paths: Vec::new() }, cx)?;
            return Ok(WritableClone { path: view.path, reference: view.reference, notes: Vec::new() });
        }
        let clone = self.inner.clone_snapshot(place, request, cx)?;
        if self.is(Fault::CloneTimesAreNow) {
            self.spoil(&clone.path);
        }
        Ok(clone)
    }

    fn diff(&self, place: &Place<'_>, request: &DiffRequest, cx: &Context<'_>) -> Result<Changes> {
        let mut request = request.clone();
        match self.fault {
            Fault::DiffIgnoresPaths => request.paths.clear(),
            Fault::DiffIgnoresTimes => request.times = false,
            Fault::DiffConfusesSides => std::mem::swap(&mut request.from, &mut request.to),
            _ => {}
        }
        let mut changes = self.inner.diff(place, &request, cx)?;
        if self.is(Fault::DiffForgetsOne) {
            changes.changes.pop();
        }
        if self.is(Fault::NoDifferenceIsUntouched) {
            changes.untouched = changes.changes.is_empty();
        }
        lies::tell(self.fault, &mut changes);
        Ok(changes)
    }

    fn read_dir(&self, place: &Place<'_>, request: &ReadDirRequest, cx: &Context<'_>) -> Result<Vec<Entry>> {
        let mut entries = self.inner.read_dir(place, request, cx)?;
        if self.is(Fault::ReadDirIsUnordered) {
            entries.reverse();
        }
        Ok(entries)
    }

    fn read(&self, place: &Place<'_>, request: &ReadRequest, cx: &Context<'_>) -> Result<Entry> {
        let entry = self.inner.read(place, request, cx)?;
        if self.is(Fault::ReadIsShort) && entry.size > 0 {
            rustix::fs::ftruncate(place.need_output()?, entry.size - 1).unwrap();
        }
        Ok(entry)
    }

    fn lookup(&self, place: &Place<'_>, request: &LookupRequest, cx: &Context<'_>) -> Result<Vec<Option<Entry>>> {
        let mut found = self.inner.lookup(place, request, cx)?;
        match self.fault {
            Fault::LookupIsReversed => found.reverse(),
            Fault::LookupLosesTheRoot if request.path.is_root() => found.fill(None),
            _ => {}
        }
        Ok(found)
    }

    fn usage(&self, place: &Place<'_>, request: &UsageRequest, cx: &Context<'_>) -> Result<Usage> {
        assert!(!self.is(Fault::Panics), "this is the fault");
        lies::usage(self.fault, &self.inner, place, request, cx)
    }

    fn reclaim(&self, place: &Place<'_>, request: &ReclaimRequest, cx: &Context<'_>) -> Result<Reclaimed> {
        if self.is(Fault::ReclaimTakesOne)
            && let Some(first) = self.inner.list(place, &ListRequest::default(), cx)?.into_iter().next()
        {
            self.inner.destroy(place, &DestroyRequest::Snapshot(first.reference), cx)?;
        }
        if self.is(Fault::ReclaimLeavesTheForgotten) {
            return self.inner.reclaim(place, &ReclaimRequest { forgotten: Vec::new(), ..request.clone() }, cx);
        }
        if self.is(Fault::ReclaimTakesWhatBearsAName) {
            for name in &request.forgotten {
                let _ = std::fs::remove_dir_all(place.need_target()?.path().join(name.as_os_str()));
            }
        }
        self.inner.reclaim(place, request, cx)
    }
}

fn report_of(fault: Fault, options: &Options) -> Report {
    let inner = MemoryProvider::default();
    let make = move || Faulty { inner: inner.clone(), fault, calls: AtomicU32::new(0) };
    let target: Arc<dyn Target> = Arc::new(InProcess::new(format!("{fault:?}"), make));
    run(&target, options, &mut |_| {})
}

fn only(case: &str) -> Options {
    let mut options = Options::new(std::env::temp_dir());
    options.only = vec![case.to_owned()];
    options
}

#[test]
fn every_fault_is_found() {
    let mut missed = Vec::new();
    for &(fault, case) in FOUND_BY.iter().filter(|(fault, _)| *fault != Fault::None) {
        let report = report_of(fault, &only(case));
        let found = report.cases.iter().find(|found| found.id == case).map(|found| &found.outcome);
        if !matches!(found, Some(Outcome::Failed { .. })) {
            missed.push(format!("{fault:?} was not found by {case}: {found:?}, {:?}", report.fault));
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

#[test]
fn who_makes_all_files_roots_does_not_keep_owners() {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("AH_TEST_REQUIRE_ALL").is_none(), "skipped: needs root");
        eprintln!("skipped: needs root");
        return;
    }
    let report = report_of(Fault::ClaimsOwners, &only("exact.owners"));
    let Outcome::Failed { message, .. } = &report.cases[0].outcome else { panic!("{:?}", report.cases) };
    assert!(message.contains("belongs to"), "{message}");
}

#[test]
fn who_gives_files_away_is_not_untouched() {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("AH_TEST_REQUIRE_ALL").is_none(), "skipped: needs root");
        eprintln!("skipped: needs root");
        return;
    }
    let report = report_of(Fault::ClaimsOwners, &only("diff.untouched"));
    let Outcome::Failed { message, .. } = &report.cases[0].outcome else { panic!("{:?}", report.cases) };
    assert!(message.contains("an owner was written"), "{message}");
}

#[test]
fn a_tree_that_is_told_by_all_that_is_in_it_passes() {
    let report = report_of(Fault::TreesAreWhole, &only("answers.entries"));
    assert!(matches!(report.cases[0].outcome, Outcome::Passed), "{:?}", report.cases);
}

#[test]
fn without_a_fault_the_same_cases_pass() {
    for case in FOUND_BY.iter().map(|(_, case)| case).filter(|case| !case.is_empty()) {
        let report = report_of(Fault::None, &only(case));
        let outcome = &report.cases[0].outcome;
        let without_need = matches!(outcome, Outcome::Skipped { prerequisite: false, .. });
        assert!(matches!(outcome, Outcome::Passed) || without_need, "{case}: {outcome:?}");
    }
}

#[test]
fn a_case_that_takes_long_is_told_from_a_call_that_hangs() {
    let (inner, made) = (MemoryProvider::default(), AtomicU32::new(0));
    let make = move || {
        // The second one of a case, and in no call.
        if made.fetch_add(1, Ordering::Relaxed) == 2 {
            std::thread::sleep(Duration::from_secs(4));
        }
        inner.clone()
    };
    let target: Arc<dyn Target> = Arc::new(InProcess::new("slow", make));
    let options = Options { limit: Duration::from_secs(2), max_hangs: 1, jobs: 1, ..only("answers.describe") };
    let options = Options { only: vec!["answers.describe".to_owned(), "answers.list".to_owned()], ..options };
    let report = run(&target, &options, &mut |_| {});
    let message = |case: usize| match &report.cases[case].outcome {
        Outcome::Failed { message, .. } => message.clone(),
        _ => String::new(),
    };
    assert!(message(0).starts_with("the case took more than 2 s") && message(0).contains("--limit"), "{}", message(0));
    assert!(!message(1).contains("not tried"), "{}", message(1));
}

#[test]
fn a_known_failure_is_expected_and_an_unexpected_pass_is_none() {
    let known = only("answers.list").expect_failure("answers.list", "it is known");
    let report = report_of(Fault::ListsTheLatestFirst, &known);
    assert!(matches!(&report.cases[0].outcome, Outcome::ExpectedFailure { reason, .. } if reason == "it is known"));
    assert_eq!((report.summary.expected_failures, report.summary.failed), (1, 0));

    let report = report_of(Fault::None, &known);
    assert!(matches!(&report.cases[0].outcome, Outcome::UnexpectedPass { .. }));
    assert!(!report.ok && report.exit_status() == 1);
    assert!(report.to_text(false).contains("XPASS"));

    let report = report_of(Fault::None, &only("answers.list").expect_failure("no.such-case", "gone"));
    assert!(report.fault.is_some_and(|fault| fault.contains("no.such-case")));
}

#[test]
fn a_run_without_a_passed_case_is_no_success() {
    let report = report_of(Fault::None, &only("exact.xattrs"));
    assert!(matches!(report.cases[0].outcome, Outcome::Skipped { prerequisite: false, .. }));
    assert!(!report.ok, "nothing was tested");
}

#[test]
fn a_scratch_folder_that_is_not_there_is_a_fault() {
    let report = report_of(Fault::None, &Options::new("/nonexistent/ah-conformance"));
    assert!(report.fault.is_some_and(|fault| fault.contains("/nonexistent/ah-conformance")));
}
