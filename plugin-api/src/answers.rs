//! What an answer must be for the caller to rely on it, checked where answers of all providers arrive. What a provider says for a person is cut.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use crate::context::{LogLevel, Observer, Progress};
use crate::error::{Error, ErrorKind, Result};
use crate::path::{FileName, RelPath};
use crate::place::{Dir, Place};
use crate::request as rq;
use crate::types as ty;
use crate::wire::DEFECT;

/// Bytes of a sentence for a person.
const LONGEST: usize = 4 << 10;
/// Sentences of one kind.
const MOST: usize = 100;
/// Bytes of what a snapshot omitted, and those that each takes beside its path and what is said of it. None can be left out: restore would take away what it names.
const OMITTED: usize = 256 << 20;
const OMISSION: usize = 64;

/// A request whose answer can be held against it.
pub(crate) trait Asked<A> {
    /// What is wrong with an answer; none: it can be relied on.
    fn wrong(&self, _place: &Place<'_>, _answer: &mut A) -> Option<&'static str> {
        None
    }
}

impl Asked<rq::Done> for rq::SnapshotRef {}
impl Asked<rq::Done> for rq::DestroyRequest {}
impl Asked<rq::Done> for rq::UnmountRequest {}
impl Asked<ty::Usage> for rq::UsageRequest {}

/// What is wrong with an entry; none: nothing.
const NO_ENTRY: &str = "an entry with another name than it was asked about, or a kind or mode that is none";

/// Whether an entry is one of that name; the top directory's is empty.
fn fits(entry: &ty::Entry, name: Option<&[u8]>) -> bool {
    entry.name == name.unwrap_or_default() && is_something(entry)
}

fn is_something(entry: &ty::Entry) -> bool {
    entry.mode & !0o7777 == 0 && entry.kind != ty::EntryKind::Unknown
}

impl Asked<ty::Entry> for rq::ReadRequest {
    fn wrong(&self, _: &Place<'_>, answer: &mut ty::Entry) -> Option<&'static str> {
        (!fits(answer, self.path.file_name())).then_some(NO_ENTRY)
    }
}

impl Asked<ty::Reclaimed> for rq::ReclaimRequest {
    fn wrong(&self, _: &Place<'_>, answer: &mut ty::Reclaimed) -> Option<&'static str> {
        cut_all(&mut answer.actions);
        cut_all(&mut answer.stays);
        None
    }
}

impl Asked<ty::Snapshot> for rq::SnapshotRef {
    fn wrong(&self, _: &Place<'_>, answer: &mut ty::Snapshot) -> Option<&'static str> {
        cut_snapshot(answer);
        if answer.reference != self.snapshot {
            return Some("another snapshot than it was asked about");
        }
        omitted(answer)
    }
}

impl Asked<Vec<ty::Snapshot>> for rq::ListRequest {
    fn wrong(&self, _: &Place<'_>, answer: &mut Vec<ty::Snapshot>) -> Option<&'static str> {
        answer.iter_mut().for_each(cut_snapshot);
        answer.iter().find_map(omitted)
    }
}

impl Asked<ty::Probe> for rq::ProbeRequest {
    fn wrong(&self, _: &Place<'_>, answer: &mut ty::Probe) -> Option<&'static str> {
        let said = [&mut answer.remedy, &mut answer.convertible].into_iter().flatten();
        said.chain([&mut answer.reason]).for_each(cut);
        None
    }
}

impl Asked<ty::Snapshot> for rq::SnapshotRequest {
    fn wrong(&self, _: &Place<'_>, answer: &mut ty::Snapshot) -> Option<&'static str> {
        cut_snapshot(answer);
        let same = (&answer.id, answer.created, &answer.label, &answer.attributes)
            == (&self.id, self.created, &self.label, &self.attributes);
        if !same {
            return Some("a snapshot that bears another id, time, label or attributes than it was to bear");
        }
        omitted(answer)
    }
}

/// What is wrong with what a snapshot says that it does not hold.
fn omitted(snapshot: &ty::Snapshot) -> Option<&'static str> {
    let bytes = |it: &ty::Omission| OMISSION + it.path.as_bytes().len() + it.detail.as_ref().map_or(0, String::len);
    (snapshot.omitted.iter().map(bytes).sum::<usize>() > OMITTED)
        .then_some("a snapshot that names more that it does not hold than 256 MiB")
}

fn is_plain(path: &Path) -> bool {
    path.is_absolute() && !path.components().any(|part| part == Component::ParentDir)
}

/// A directory as the caller names it, which may lead through symlinks, and without these.
fn as_said(dir: &Dir) -> impl Iterator<Item = PathBuf> + use<> {
    std::iter::once(dir.path().to_owned()).chain(std::fs::canonicalize(dir.path()))
}

impl Asked<ty::View> for rq::MountRequest {
    fn wrong(&self, _: &Place<'_>, answer: &mut ty::View) -> Option<&'static str> {
        let path = &answer.path;
        (!is_plain(path) || path.parent().is_none()).then_some("a path of a view that is not absolute and plain")
    }
}

impl Asked<ty::WritableClone> for rq::CloneRequest {
    fn wrong(&self, place: &Place<'_>, answer: &mut ty::WritableClone) -> Option<&'static str> {
        cut_all(&mut answer.notes);
        let path = &answer.path;
        if !is_plain(path) {
            return Some("a path of a clone that is not absolute and plain");
        }
        let asked = place.target.into_iter().flat_map(as_said);
        if asked.map(|target| target.join(self.name.as_os_str())).any(|asked| path.starts_with(asked)) {
            return None;
        }
        let mut own = place.workspace.into_iter().flat_map(as_said);
        own.any(|own| path.starts_with(&own) || own.starts_with(path))
            .then_some("the workspace itself for a clone of it")
    }
}

impl Asked<Vec<ty::Entry>> for rq::ReadDirRequest {
    fn wrong(&self, _: &Place<'_>, answer: &mut Vec<ty::Entry>) -> Option<&'static str> {
        if answer.iter().any(|entry| FileName::new(entry.name.as_slice()).is_err()) {
            return Some("names in a directory that are none");
        }
        if !answer.iter().all(is_something) {
            return Some("kinds or modes in a directory that are none");
        }
        (!answer.is_sorted_by(|a, b| a.name < b.name)).then_some("names in a directory out of order, or twice")
    }
}

impl Asked<ty::Changes> for rq::DiffRequest {
    fn wrong(&self, _: &Place<'_>, answer: &mut ty::Changes) -> Option<&'static str> {
        let changes = &answer.changes;
        if !changes.is_sorted_by(|a, b| a.path < b.path) {
            return Some("differences out of order, or twice");
        }
        let named = |it: &ty::Change| {
            let name = it.path.file_name();
            [&it.before, &it.after].into_iter().flatten().all(|entry| fits(entry, name))
        };
        if !changes.iter().all(named) {
            return Some(
                "differences in which a path and the name of what is there do not agree, or with kinds or modes that are none",
            );
        }
        // Thousands of paths may have been asked about.
        let tops: BTreeSet<&RelPath> = self.paths.iter().collect();
        let asked = |it: &ty::Change| {
            std::iter::successors(Some(it.path.clone()), RelPath::parent).any(|above| tops.contains(&above))
        };
        (!tops.is_empty() && !changes.iter().all(asked)).then_some("differences outside of what it was asked about")
    }
}

impl Asked<Vec<Option<ty::Entry>>> for rq::LookupRequest {
    fn wrong(&self, _: &Place<'_>, answer: &mut Vec<Option<ty::Entry>>) -> Option<&'static str> {
        if answer.len() != self.snapshots.len() {
            return Some("other than one entry for each snapshot");
        }
        if self.path.is_root() && answer.contains(&None) {
            return Some("a snapshot without a top directory");
        }
        (!answer.iter().flatten().all(|entry| fits(entry, self.path.file_name()))).then_some(NO_ENTRY)
    }
}

impl Asked<ty::Converted> for rq::ConvertRequest {
    fn wrong(&self, _: &Place<'_>, answer: &mut ty::Converted) -> Option<&'static str> {
        cut_all(&mut answer.notes);
        None
    }
}

/// Passes on what a provider says meanwhile, cut.
pub(crate) struct Brief<'a>(pub(crate) &'a dyn Observer);

impl Observer for Brief<'_> {
    fn progress(&self, progress: &Progress) {
        let mut progress = progress.clone();
        cut(&mut progress.stage);
        self.0.progress(&progress);
    }

    fn cancelled(&self) -> bool {
        self.0.cancelled()
    }

    fn log(&self, level: LogLevel, message: &str) {
        let mut message = message.to_owned();
        cut(&mut message);
        self.0.log(level, &message);
    }
}

/// What a provider says of itself, if it can be shown to a person in a line.
pub(crate) fn shown(mut description: ty::Description) -> Result<ty::Description> {
    if description.version.contains(char::is_control) {
        return Err(Error::new(ErrorKind::Internal, "a version with control characters").with_hint(DEFECT));
    }
    cut(&mut description.version);
    Ok(description)
}

/// Cuts what an error says.
pub(crate) fn cut_error(mut error: Error) -> Error {
    cut(&mut error.message);
    error.hint.iter_mut().for_each(cut);
    cut_all(&mut error.causes);
    error
}

fn cut_snapshot(snapshot: &mut ty::Snapshot) {
    let not_kept = snapshot.repository.iter_mut().filter_map(|repository| repository.not_kept.as_mut());
    let details = snapshot.omitted.iter_mut().filter_map(|omission| omission.detail.as_mut());
    not_kept.chain(details).chain(&mut snapshot.pins).for_each(cut);
    if let Some(ty::RepositoryState { head, branch, branch_hex, first_commit, marks, not_kept: _ }) =
        &mut snapshot.repository
    {
        // These are compared, so they are not cut: what cannot be one is not known.
        for it in [head, branch, branch_hex, first_commit, marks] {
            it.take_if(|it| it.len() > LONGEST);
        }
    }
    // Some of them, by the contract.
    snapshot.changed_below.iter_mut().for_each(|below| below.paths.truncate(MOST));
}

fn cut_all(sentences: &mut Vec<String>) {
    // An answer may come by way of another provider, and is cut there already.
    if sentences.len() > MOST {
        let beyond = sentences.split_off(MOST - 1).len();
        sentences.push(format!("and {beyond} more"));
    }
    sentences.iter_mut().for_each(cut);
}

fn cut(text: &mut String) {
    if text.len() > LONGEST {
        let end = (0..=LONGEST).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
}
