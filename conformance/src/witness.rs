//! Stands between a case and the provider, and looks at every call: what holds for all of them is checked here.
//!
//! - Hands off: the workspace is fingerprinted before and after each call.
//! - No answer is `Internal` or of an unknown kind, and none is `Unsupported` where a capability says otherwise.
//! - Answers are sound in themselves: absolute paths, sound times, `omitted` where it belongs.
//!
//! What it saw stays here until the runner asks for it, also while the provider hangs.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use ah_plugin_api::{
    Capability, Change, Changes, CloneRequest, Context, ConvertRequest, Converted, Description, DestroyRequest,
    DiffRequest, Done, Entry, Error, ErrorKind, ListRequest, LookupRequest, MountRequest, Place, Probe, ProbeRequest,
    Provider, ReadDirRequest, ReadRequest, ReclaimRequest, Reclaimed, Reference, Result, Snapshot, SnapshotRef,
    SnapshotRequest, Timestamp, UnmountRequest, Usage, UsageRequest, View, WritableClone,
};

use crate::case::describe;
use crate::target::Instance;
use crate::tree::{Modes, Tree};

/// A provider with a witness.
pub(crate) struct Witness {
    instance: Instance,
    workspace: PathBuf,
    watching: AtomicBool,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    running: Vec<(u64, &'static str, Instant)>,
    calls: u64,
    /// The last calls with their outcomes, for a report.
    trace: Vec<String>,
    violations: Vec<String>,
    views: Vec<Reference>,
    died: Option<String>,
}

const TRACE: usize = 8;

impl Witness {
    pub(crate) fn new(instance: Instance, workspace: PathBuf) -> Self {
        Self { instance, workspace, watching: AtomicBool::new(true), seen: Mutex::default() }
    }

    /// Stops fingerprinting the workspace, for cases in which it changes by itself.
    pub(crate) fn look_away(&self) {
        self.watching.store(false, Ordering::Relaxed);
    }

    /// Runs several calls with one fingerprint before all and one after all, because many small calls would cost as many.
    pub(crate) fn together<T>(&self, what: &str, calls: impl FnOnce() -> T) -> T {
        let watch = self.watching.swap(false, Ordering::Relaxed);
        let before = if watch { Tree::walk(&self.workspace).ok() } else { None };
        let result = calls();
        if let Some(before) = before
            && let Ok(after) = Tree::walk(&self.workspace)
        {
            before
                .touched(&after)
                .iter()
                .for_each(|change| self.object(format!("{what} changed the workspace: {change}")));
        }
        self.watching.store(watch, Ordering::Relaxed);
        result
    }

    pub(crate) fn instance(&self) -> &Instance {
        &self.instance
    }

    /// The calls that have not returned, for how long.
    pub(crate) fn running(&self) -> Vec<(&'static str, std::time::Duration)> {
        self.seen().running.iter().map(|(_, name, since)| (*name, since.elapsed())).collect()
    }

    pub(crate) fn violations(&self) -> Vec<String> {
        self.seen().violations.clone()
    }

    pub(crate) fn trace(&self) -> Vec<String> {
        self.seen().trace.clone()
    }

    /// Views that were mounted and not unmounted.
    pub(crate) fn views(&self) -> Vec<Reference> {
        self.seen().views.clone()
    }

    /// The call during which the provider's process ended by itself.
    pub(crate) fn died(&self) -> Option<String> {
        self.seen().died.clone()
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn object(&self, what: String) {
        let mut seen = self.seen();
        if !seen.violations.contains(&what) {
            seen.violations.push(what);
        }
    }

    fn call<T>(&self, name: &'static str, optional: Option<Capability>, call: impl FnOnce() -> Result<T>) -> Result<T> {
        let watch = self.watching.load(Ordering::Relaxed);
        let before = if watch { Tree::walk(&self.workspace).ok() } else { None };
        let number = {
            let mut seen = self.seen();
            seen.calls += 1;
            let number = seen.calls;
            seen.running.push((number, name, Instant::now()));
            number
        };
        let result = call();
        {
            let mut seen = self.seen();
            seen.running.retain(|(other, ..)| *other != number);
            if seen.trace.len() == TRACE {
                seen.trace.remove(0);
            }
            seen.trace.push(match &result {
                Ok(_) => format!("{name}: done"),
                Err(error) => format!("{name}: {}", describe(error)),
            });
        }
        if let Some(before) = before
            && self.watching.load(Ordering::Relaxed)
            && let Ok(after) = Tree::walk(&self.workspace)
        {
            before
                .touched(&after)
                .iter()
                .for_each(|change| self.object(format!("{name} changed the workspace: {change}")));
        }
        if let Err(error) = &result {
            self.judge(name, optional, error);
        }
        result
    }

    fn judge(&self, name: &'static str, optional: Option<Capability>, error: &Error) {
        match error.kind {
            ErrorKind::Internal | ErrorKind::Unknown => {
                self.object(format!("{name} answered with a defect of its own: {}", describe(error)));
            }
            ErrorKind::Unsupported => match optional {
                Some(capability) if !self.describe().capabilities.contains(&capability) => {}
                Some(capability) => {
                    self.object(format!("{name} answered unsupported in spite of the capability {capability}"));
                }
                None => self.object(format!("{name} answered unsupported, but every provider has it")),
            },
            ErrorKind::Unavailable => {
                if let Some(fate) = self.instance.process.as_ref().and_then(|process| process.fate()) {
                    let mut seen = self.seen();
                    seen.died.get_or_insert(format!("its process ended during {name}: {fate}"));
                }
            }
            _ => {}
        }
        if error.message.trim().is_empty() {
            self.object(format!("{name} answered {} without a message", error.kind));
        }
    }

    fn sound_time(&self, name: &str, time: Timestamp) {
        if time.nanos >= 1_000_000_000 {
            self.object(format!("{name} gave a time with {} nanoseconds", time.nanos));
        }
    }

    fn sound_entry(&self, name: &str, entry: &Entry) {
        self.sound_time(name, entry.mtime);
        if entry.mode & !0o7777 != 0 {
            self.object(format!("{name} gave a mode with more than permission bits: {:o}", entry.mode));
        }
        if entry.content.as_ref().is_some_and(|id| id.0.len() > 64) {
            self.object(format!("{name} gave a content id of more than 64 bytes"));
        }
    }

    fn sound_snapshot(&self, name: &str, snapshot: &Snapshot, full: bool) {
        self.sound_time(name, snapshot.created);
        let listed = snapshot.omitted.len() as u64;
        if full && listed != snapshot.omitted_total {
            self.object(format!("{name} lists {listed} omissions and counts {}", snapshot.omitted_total));
        }
        if !full && listed != 0 {
            self.object(format!("{name} gives what was omitted, which it shall leave empty"));
        }
    }

    fn sound_changes(&self, name: &str, changes: &[Change]) {
        if !changes.is_sorted_by(|a, b| a.path < b.path) {
            self.object(format!("{name} gave changes that are not ordered by path, each path once"));
        }
        for change in changes {
            change.before.iter().chain(&change.after).for_each(|entry| self.sound_entry(name, entry));
            if change.before.is_none() && change.after.is_none() {
                self.object(format!("{name} gave a change of {:?} from nothing to nothing", change.path));
            }
        }
    }
}

impl Provider for Witness {
    fn describe(&self) -> Description {
        self.instance.provider.describe()
    }

    fn probe(&self, place: &Place<'_>, request: &ProbeRequest, cx: &Context<'_>) -> Result<Probe> {
        let probe = self.call("probe", None, || self.instance.provider.probe(place, request, cx))?;
        if probe.reason.trim().is_empty() {
            self.object("probe gave no reason".to_owned());
        }
        Ok(probe)
    }

    fn snapshot(&self, place: &Place<'_>, request: &SnapshotRequest, cx: &Context<'_>) -> Result<Snapshot> {
        let snapshot = self.call("snapshot", None, || self.instance.provider.snapshot(place, request, cx))?;
        self.sound_snapshot("snapshot", &snapshot, true);
        Ok(snapshot)
    }

    fn sync(&self, place: &Place<'_>, request: &SnapshotRef, cx: &Context<'_>) -> Result<Done> {
        self.call("sync", None, || self.instance.provider.sync(place, request, cx))
    }

    fn list(&self, place: &Place<'_>, request: &ListRequest, cx: &Context<'_>) -> Result<Vec<Snapshot>> {
        let list = self.call("list", None, || self.instance.provider.list(place, request, cx))?;
        list.iter().for_each(|snapshot| self.sound_snapshot("list", snapshot, false));
        Ok(list)
    }

    fn stat(&self, place: &Place<'_>, request: &SnapshotRef, cx: &Context<'_>) -> Result<Snapshot> {
        let snapshot = self.call("stat", None, || self.instance.provider.stat(place, request, cx))?;
        self.sound_snapshot("stat", &snapshot, true);
        Ok(snapshot)
    }

    fn destroy(&self, place: &Place<'_>, request: &DestroyRequest, cx: &Context<'_>) -> Result<Done> {
        self.call("destroy", None, || self.instance.provider.destroy(place, request, cx))
    }

    fn mount(&self, place: &Place<'_>, request: &MountRequest, cx: &Context<'_>) -> Result<View> {
        let view = self.call("mount", None, || self.instance.provider.mount(place, request, cx))?;
        self.seen().views.push(view.reference.clone());
        if !view.path.is_absolute() {
            self.object(format!("mount gave the path {}, which is not absolute", view.path.display()));
        }
        Ok(view)
    }

    fn unmount(&self, place: &Place<'_>, request: &UnmountRequest, cx: &Context<'_>) -> Result<Done> {
        let done = self.call("unmount", None, || self.instance.provider.unmount(place, request, cx))?;
        self.seen().views.retain(|view| *view != request.view);
        Ok(done)
    }

    fn clone_snapshot(&self, place: &Place<'_>, request: &CloneRequest, cx: &Context<'_>) -> Result<WritableClone> {
        let call = || self.instance.provider.clone_snapshot(place, request, cx);
        let clone = self.call("clone_snapshot", Some(Capability::Clone), call)?;
        if !clone.path.is_absolute() {
            self.object(format!("clone_snapshot gave the path {}, which is not absolute", clone.path.display()));
        }
        Ok(clone)
    }

    fn diff(&self, place: &Place<'_>, request: &DiffRequest, cx: &Context<'_>) -> Result<Changes> {
        let call = || self.instance.provider.diff(place, request, cx);
        let changes = self.call("diff", Some(Capability::Diff), call)?;
        self.sound_changes("diff", &changes.changes);
        Ok(changes)
    }

    fn read_dir(&self, place: &Place<'_>, request: &ReadDirRequest, cx: &Context<'_>) -> Result<Vec<Entry>> {
        let call = || self.instance.provider.read_dir(place, request, cx);
        let entries = self.call("read_dir", Some(Capability::ReadWithoutMount), call)?;
        if !entries.is_sorted_by(|a, b| a.name < b.name) {
            self.object("read_dir gave entries that are not ordered by name, each name once".to_owned());
        }
        entries.iter().for_each(|entry| self.sound_entry("read_dir", entry));
        if entries.iter().any(|entry| matches!(entry.name.as_slice(), b"" | b"." | b"..")) {
            self.object("read_dir gave an entry that is none: the directory itself, or the one above".to_owned());
        }
        Ok(entries)
    }

    fn read(&self, place: &Place<'_>, request: &ReadRequest, cx: &Context<'_>) -> Result<Entry> {
        let call = || self.instance.provider.read(place, request, cx);
        let entry = self.call("read", Some(Capability::ReadWithoutMount), call)?;
        self.sound_entry("read", &entry);
        Ok(entry)
    }

    fn lookup(&self, place: &Place<'_>, request: &LookupRequest, cx: &Context<'_>) -> Result<Vec<Option<Entry>>> {
        let call = || self.instance.provider.lookup(place, request, cx);
        let entries = self.call("lookup", Some(Capability::ReadWithoutMount), call)?;
        if entries.len() != request.snapshots.len() {
            self.object("lookup gave another number of answers than it was asked for".to_owned());
        }
        entries.iter().flatten().for_each(|entry| self.sound_entry("lookup", entry));
        Ok(entries)
    }

    fn usage(&self, place: &Place<'_>, request: &UsageRequest, cx: &Context<'_>) -> Result<Usage> {
        self.call("usage", Some(Capability::Usage), || self.instance.provider.usage(place, request, cx))
    }

    fn reclaim(&self, place: &Place<'_>, request: &ReclaimRequest, cx: &Context<'_>) -> Result<Reclaimed> {
        self.call("reclaim", None, || self.instance.provider.reclaim(place, request, cx))
    }

    fn convert(&self, place: &Place<'_>, request: &ConvertRequest, cx: &Context<'_>) -> Result<Converted> {
        // The one call after which another directory is there: as long as it is said, only what is in it counts.
        let watch = self.watching.swap(false, Ordering::Relaxed);
        let before = if watch { Tree::walk(&self.workspace).ok() } else { None };
        let call = || self.instance.provider.convert(place, request, cx);
        let result = self.call("convert", Some(Capability::Convert), call);
        self.watching.store(watch, Ordering::Relaxed);
        if let Some(before) = before
            && let Ok(after) = Tree::walk(&self.workspace)
        {
            let another = result.as_ref().is_ok_and(|converted| converted.changed);
            let found = if another { before.differences(&after, Modes::Exact) } else { before.touched(&after) };
            found.iter().for_each(|change| self.object(format!("convert changed the workspace: {change}")));
        }
        let converted = result?;
        if converted.notes.iter().any(|note| note.trim().is_empty()) {
            self.object("convert gave an empty note".to_owned());
        }
        Ok(converted)
    }
}
