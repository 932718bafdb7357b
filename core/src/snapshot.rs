//! Taking a snapshot.
//!
//! The order of steps is what makes it safe to be killed anywhere: first the provider makes the snapshot, which bears session and kind
//! itself, then comes one line on the timeline. Between the two, `gc` finds an orphan and lists it again.

use std::collections::BTreeMap;

use ah_plugin_api::wire::{DEFECT, Op};
use ah_plugin_api::{
    Capability, CapturePolicy, ChangedBelow, Dir, Durability, Error, ErrorKind, ProviderName, Reference, Result,
    Snapshot, SnapshotId, SnapshotRequest,
};
use serde::{Deserialize, Serialize};

use crate::background;
use crate::config::Config;
use crate::ids::{SessionName, looks_like_id, snapshot_id};
use crate::moments::{Attempt, FilesChanged, MomentUpdate};
use crate::notice::{Notice, NoticeKind};
use crate::record::{OmittedRecord, SnapshotKind, SnapshotRecord};
use crate::refs;
use crate::select::Purpose;
use crate::text;
use crate::timeline::{Event, EventBody, Head, HeadSnapshot};
use crate::workspace::{Served, Workspace};

/// What can be said about a snapshot to be taken.
#[derive(Debug, Clone)]
pub struct SnapshotOptions {
    /// A label for people and REFs.
    pub label: Option<String>,
    /// Why it is taken.
    pub kind: SnapshotKind,
    /// What it must survive when the call returns; none: `durable` by hand, `instant` when automatic.
    pub durability: Option<Durability>,
    /// Pin it.
    pub keep: bool,
    /// Capture even more entries than the guard allows.
    pub force: bool,
    /// Put on the snapshot as they are.
    pub attributes: BTreeMap<String, String>,
}

impl Default for SnapshotOptions {
    fn default() -> Self {
        Self {
            label: None,
            kind: SnapshotKind::Manual,
            durability: None,
            keep: false,
            force: false,
            attributes: BTreeMap::new(),
        }
    }
}

impl SnapshotOptions {
    /// What it must survive when the call returns.
    fn asked(&self) -> Durability {
        let automatic = self.kind == SnapshotKind::Auto;
        self.durability.unwrap_or(if automatic { Durability::Instant } else { Durability::Durable })
    }
}

/// What the line of a snapshot must survive: a durable one is not to be lost with its line.
fn of_the_line(asked: Durability, snapshot: &Snapshot) -> Durability {
    match snapshot.durability {
        Durability::Durable => Durability::Durable,
        _ => asked,
    }
}

/// The longest label, bytes.
pub(crate) const MAX_LABEL: usize = 4096;

impl Workspace {
    /// Captures the workspace and puts it on the timeline.
    ///
    /// `equal_to` of the answer names the snapshot before it if nothing has changed since. When the provider of choice fails, an
    /// automatic snapshot is taken with the next one, with an event; by hand, the error's hint offers it.
    ///
    /// # Errors
    /// `Unavailable` if no provider can serve; `FailedPrecondition` if there are too many entries, and no other provider serves an automatic one; `ResourceExhausted`, for an
    /// automatic one also when the disk has less room than shall stay free; the provider's.
    pub fn snapshot(&self, options: &SnapshotOptions) -> Result<SnapshotRecord> {
        self.snapshot_of(options, None).map(|(record, _)| record)
    }

    /// As [`Workspace::snapshot`], with what was left out and why.
    ///
    /// # Errors
    /// As [`Workspace::snapshot`].
    pub fn snapshot_and_omitted(&self, options: &SnapshotOptions) -> Result<(SnapshotRecord, Vec<OmittedRecord>)> {
        self.tell_what_is_kept()?;
        let (record, snapshot) = self.snapshot_of(options, None)?;
        Ok((record, snapshot.omitted.into_iter().map(OmittedRecord::from).collect()))
    }

    /// As [`Workspace::snapshot`], with what the provider said, omissions included. `only` is the provider that must do it.
    pub(crate) fn snapshot_of(
        &self,
        options: &SnapshotOptions,
        only: Option<&Served>,
    ) -> Result<(SnapshotRecord, Snapshot)> {
        match self.snapshot_for(options, only, None)? {
            (Listed::New(record), snapshot) => {
                if options.kind == SnapshotKind::Manual
                    && let Some(ChangedBelow { total, paths }) = &snapshot.changed_below
                {
                    let first = paths.first().map(|path| format!(": {path}")).unwrap_or_default();
                    let more = if *total > 1 { " …" } else { "" };
                    let what = text::count(*total, "path", "paths");
                    let how = "became other in the workspace that this branch reads in";
                    let message = format!("{what} {how}, and its snapshots do not hold that as now{first}{more}");
                    self.engine.notify(Notice::new(NoticeKind::Other, message).with_hint("ah timeline"));
                }
                Ok((*record, snapshot))
            }
            (Listed::Equal(_), _) => Err(not_listed()),
        }
    }

    /// As [`Workspace::snapshot`], for moments that wait for it. Where nothing has changed since the session's last snapshot, that one
    /// is theirs, and there is no new one. Beside it comes whether the timeline is as durable as it was to be: what it says, it says anyway.
    pub(crate) fn snapshot_behind(
        &self,
        options: &SnapshotOptions,
        behind: Behind<'_>,
    ) -> Result<(Listed, Result<()>)> {
        let (listed, snapshot) = self.snapshot_for(options, None, Some(behind))?;
        let durability = of_the_line(options.asked(), &snapshot);
        Ok((listed, self.log().sync_one(behind.session, durability)))
    }

    /// Whether a timeline names that snapshot, or that cannot be told.
    pub(crate) fn may_be_told_of(&self, session: &SessionName, id: &SnapshotId) -> bool {
        let is_it = |event: &Event| matches!(&event.body, EventBody::Snapshot { snapshot } if snapshot.id == *id);
        let read = self.read_log(Some(session));
        read.map_or(true, |report| !report.faults.is_empty() || report.events.iter().any(is_it))
    }

    /// Has a provider take a snapshot. It finds each by its reference, and removes it by that: one that bears the last one's is refused, and left
    /// to it, since nothing can be taken back by that without the other. What removes one looks for the others first ([`Workspace::destroy`]), or asks the provider which one it finds
    /// ([`Workspace::withdraw_for`]).
    ///
    /// # Errors
    /// The provider's; `Internal`: its answer is wrong.
    pub(crate) fn take_by(&self, served: &Served, dir: &Dir, request: &SnapshotRequest) -> Result<Snapshot> {
        let snapshot = served.provider.snapshot(&served.place().with_workspace(dir), request, &self.context())?;
        let reference = &snapshot.reference;
        match self.log().last_snapshot().filter(|last| last.is_found_by(&served.name, reference)) {
            None => Ok(snapshot),
            Some(last) => Err(same_reference(&served.name, &snapshot.id, &last.id)),
        }
    }

    fn snapshot_for(
        &self,
        options: &SnapshotOptions,
        only: Option<&Served>,
        behind: Option<Behind<'_>>,
    ) -> Result<(Listed, Snapshot)> {
        check_label(options.label.as_deref())?;
        let config = self.config()?;
        let automatic = options.kind == SnapshotKind::Auto;
        if automatic {
            self.make_room(&config)?;
        }
        let durability = options.asked();
        let session = behind.map_or_else(|| self.writing_session(), |behind| behind.session.clone());
        let taking = Taking { workspace: self, options, session, durability, config: &config, behind };
        if let Some(served) = only {
            return Ok(taking.with(served, Vec::new())?);
        }
        let mut choices = self.choices(&config, Purpose::Capture)?;
        choices.attempt = behind.and_then(|behind| behind.attempt);
        let mut served = choices.next_usable()?.ok_or_else(|| choices.nobody())?;
        let mut degraded: Vec<EventBody> = Vec::new();
        loop {
            if let Some((passed, error)) = choices.take_unasked() {
                if !automatic {
                    return Err(offered(error, "snapshot", &passed, &served.name));
                }
                degraded.push(self.tell_degraded(&passed, &error, &served.name));
            }
            let error = match taking.with(&served, degraded.clone()) {
                Ok(done) => return Ok(done),
                Err(Failed::ByProvider(error)) if another_may_help(&error) => error,
                Err(failed) => return Err(failed.into()),
            };
            let Some(next) = choices.next_usable()? else { return Err(error) };
            if !automatic {
                return Err(offered(error, "snapshot", &served.name, &next.name));
            }
            degraded.push(self.tell_degraded(&served.name, &error, &next.name));
            served = next;
        }
    }

    /// Says that one provider took over from another; gives what the timeline says of it.
    fn tell_degraded(&self, failed: &ProviderName, error: &Error, next: &ProviderName) -> EventBody {
        let message = format!("the provider {failed} failed, {next} took over: {error}");
        self.engine.notify(Notice::new(NoticeKind::Degraded, message).with_hint("ah agent fs status"));
        EventBody::Degraded { provider: failed.clone(), reason: error.to_string(), next: next.clone() }
    }
}

impl Workspace {
    /// What a snapshot of that kind that is taken now says of itself to its provider: what it is, whose, and behind which event it stands.
    pub(crate) fn attributes_of(&self, kind: SnapshotKind, session: &SessionName) -> BTreeMap<String, String> {
        BTreeMap::from([
            ("session".to_owned(), session.to_string()),
            ("kind".to_owned(), kind.to_string()),
            ("workspace".to_owned(), self.id.to_string()),
            ("after".to_owned(), self.log().last_seq().to_string()),
        ])
    }
}

/// The error of a provider, with the next one offered to a person.
pub(crate) fn offered(error: Error, command: &str, failed: &ProviderName, next: &ProviderName) -> Error {
    let own = error.hint.as_deref().map_or_else(String::new, |hint| format!("{hint}; or "));
    let hint = format!("{own}ah agent fs {command} --provider {next}");
    Error { hint: None, ..error }.context(format!("the provider {failed} failed")).with_hint(hint)
}

/// Whether the next provider may do what this one could not.
pub(crate) fn another_may_help(error: &Error) -> bool {
    match error.kind {
        ErrorKind::Unsupported
        | ErrorKind::Unavailable
        | ErrorKind::PermissionDenied
        // What has to be done first is the next one's to ask for, if it asks for anything: an automatic snapshot must not stop for good at
        // what nobody sees, and who asks for one by hand is told both what to do and who can do it as it is.
        | ErrorKind::FailedPrecondition
        | ErrorKind::ResourceExhausted
        | ErrorKind::DataLoss
        | ErrorKind::Internal
        | ErrorKind::Busy
        | ErrorKind::NotFound
        | ErrorKind::Unknown => true,
        // The request or the person is the reason: the same with every provider.
        _ => false,
    }
}

pub(crate) fn check_label(label: Option<&str>) -> Result<()> {
    match label {
        Some(label) if label.len() > MAX_LABEL || label.chars().any(char::is_control) => Err(Error::new(
            ErrorKind::InvalidArgument,
            "a label is one line of up to 4096 bytes without control characters",
        )),
        Some(label) if label.trim().is_empty() => {
            Err(Error::new(ErrorKind::InvalidArgument, "a label cannot be empty"))
        }
        // No REF could reach it, or something else would be reached.
        Some(label) if label.starts_with('@') || (label.len() == 12 && looks_like_id(label)) => Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("{label:?} cannot be a label: as a REF it means something else"),
        )
        .with_hint("labels do not begin with @, and are not twelve letters from k to z")),
        Some(label) if refs::reads_as_option(label) => Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("{label:?} cannot be a label: as a REF it reads as an option"),
        )
        .with_hint(format!("say more: `-m {}`", text::shell(format!("with {label}").as_ref())))),
        Some(label) if refs::reads_as_time(label) => Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("{label:?} cannot be a label: as a REF it means a time"),
        )
        .with_hint(format!("say more: `-m {}`", text::shell(format!("from {label}").as_ref())))),
        _ => Ok(()),
    }
}

/// The moments that a snapshot is taken for.
#[derive(Clone, Copy)]
pub(crate) struct Behind<'a> {
    /// Their session.
    pub(crate) session: &'a SessionName,
    /// Says of each what is to be said but the snapshot's id, when the snapshot has just been made.
    pub(crate) look: &'a dyn Fn() -> Result<Vec<MomentUpdate>>,
    /// Whether they get one of their own, even where nothing has changed.
    pub(crate) own: bool,
    /// A worker's: notes each call of a provider that it may not survive.
    pub(crate) attempt: Option<&'a Attempt<'a>>,
}

/// The snapshot that is on the timeline now.
#[derive(Debug, Clone)]
pub(crate) enum Listed {
    /// The one that was taken.
    New(Box<SnapshotRecord>),
    /// The session's last one, to which it is equal.
    Equal(Shown),
}

/// Enough of a snapshot to look at it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shown {
    pub(crate) id: SnapshotId,
    pub(crate) provider: ProviderName,
    pub(crate) reference: Reference,
}

impl Listed {
    pub(crate) fn shown(&self) -> Shown {
        match self {
            Self::New(record) => {
                Shown { id: record.id.clone(), provider: record.provider.clone(), reference: record.reference.clone() }
            }
            Self::Equal(shown) => shown.clone(),
        }
    }
}

/// What is said of a provider that finds two snapshots by one reference.
pub(crate) fn same_reference(provider: &ProviderName, id: &SnapshotId, other: &SnapshotId) -> Error {
    let message = format!("the provider {provider} gave the snapshot {id} the reference of another one, {other}");
    Error::new(ErrorKind::Internal, message).with_hint(DEFECT)
}

fn not_listed() -> Error {
    Error::new(ErrorKind::Internal, "a snapshot was not listed")
}

/// One snapshot to be taken.
struct Taking<'a> {
    workspace: &'a Workspace,
    options: &'a SnapshotOptions,
    session: SessionName,
    durability: Durability,
    config: &'a Config,
    behind: Option<Behind<'a>>,
}

/// Why there is no snapshot.
enum Failed {
    /// Another provider may be able to do it.
    ByProvider(Error),
    /// None of them has to do with it: a timeline that cannot be written, say.
    Otherwise(Error),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Otherwise(error)
    }
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::ByProvider(error) | Failed::Otherwise(error) => error,
        }
    }
}

impl Taking<'_> {
    fn with(&self, served: &Served, before: Vec<EventBody>) -> Result<(Listed, Snapshot), Failed> {
        let workspace = self.workspace;
        let dir = workspace.open_dir()?;
        let request = self.request(served)?;
        // Held until the line is written, so that gc does not take a snapshot in the making for an orphan.
        let _making = workspace.lock_as("orphans", false)?;
        let attempt = self.behind.and_then(|behind| behind.attempt);
        let noted = attempt.map(|attempt| attempt.calls(&served.name, Op::Snapshot.as_str()));
        workspace.refuse_going()?;
        let snapshot = workspace.take_by(served, &dir, &request).map_err(Failed::ByProvider)?;
        let mut record = SnapshotRecord::of(&snapshot, &served.name, self.options.kind, &self.session);
        record.kept = self.options.keep;
        record.attributes = self.attributes();
        match noted {
            Some(noted) => drop(noted),
            None => workspace.forget_stopped(&served.name),
        }
        let mut before = before;
        before.extend(
            snapshot
                .changed_below
                .clone()
                .map(|ChangedBelow { total, paths }| EventBody::ChangedBelow { files: FilesChanged { total, paths } }),
        );
        let listed = self.list(before, record, &snapshot);
        // One whose id nobody will hear is taken back. If that fails too, gc finds it.
        let _ = match &listed {
            Ok(Listed::New(_)) => Ok(()),
            Ok(Listed::Equal(last)) => workspace.withdraw_for(last, served, &snapshot.id, &snapshot.reference),
            // The line of one that failed may be there all the same, where it could not be taken back.
            Err(_) if workspace.may_be_told_of(&self.session, &snapshot.id) => Ok(()),
            Err(_) => workspace.withdraw(served, &snapshot),
        };
        let listed = listed?;
        self.note_first_commit(&snapshot);
        if let Listed::New(record) = &listed {
            background::after_snapshot(workspace, record);
        }
        Ok((listed, snapshot))
    }

    fn list(&self, mut events: Vec<EventBody>, mut record: SnapshotRecord, snapshot: &Snapshot) -> Result<Listed> {
        let updates = self.behind.map_or_else(|| Ok(Vec::new()), |behind| (behind.look)())?;
        let mut equal = None;
        let make = |head: &Head| {
            let last = head.snapshot.as_ref().filter(|last| last.equals(&record.provider, snapshot.tree.as_ref()));
            record.equal_to = last.map(|last| last.id.clone());
            equal = last.and_then(|last| self.serves(last, snapshot));
            let theirs = equal.as_ref().map_or_else(|| record.id.clone(), |equal: &Shown| equal.id.clone());
            if equal.is_none() {
                events.push(EventBody::Snapshot { snapshot: Box::new(record) });
            }
            events.extend(updates.into_iter().map(|mut update| {
                update.snapshot = Some(theirs.clone());
                EventBody::MomentUpdate(Box::new(update))
            }));
            events
        };
        // Behind an agent the lock is not held for as long as the disk takes: another hook may wait for it.
        let held = if self.behind.is_some() { Durability::Instant } else { of_the_line(self.durability, snapshot) };
        let listed = self.workspace.append_with(&self.session, held, make)?;
        if let Some(equal) = equal {
            return Ok(Listed::Equal(equal));
        }
        let last = listed.into_iter().rev().find_map(|event| match event.body {
            EventBody::Snapshot { snapshot } => Some(snapshot),
            _ => None,
        });
        last.map(Listed::New).ok_or_else(not_listed)
    }

    /// The last snapshot, if it can be what the moments show, its tree being equal.
    fn serves(&self, last: &HeadSnapshot, snapshot: &Snapshot) -> Option<Shown> {
        let behind = self.behind.filter(|behind| !behind.own)?;
        last.serves(behind.session, snapshot.repository.as_ref()).then_some(())?;
        let reference = last.reference.clone()?;
        Some(Shown { id: last.id.clone(), provider: last.provider.clone(), reference })
    }

    /// Once for a repository. Only an attribute: what cannot be written now, a later snapshot writes.
    fn note_first_commit(&self, snapshot: &Snapshot) {
        let first = snapshot.repository.as_ref().and_then(|repository| repository.first_commit.as_deref());
        let first = first.map(|first| first.get(..12).unwrap_or(first));
        let record = &self.workspace.record;
        if let Some(first) = first.filter(|first| record.first_commit.as_deref() != Some(*first)) {
            let _ = self.workspace.engine.note_first_commit(&record.id, first);
        }
    }

    fn request(&self, served: &Served) -> Result<SnapshotRequest> {
        let settings = self.workspace.engine.settings();
        let mut policy = CapturePolicy::default();
        if served.can(Capability::AppliesPolicy) {
            policy = self.workspace.policy_of(self.config)?;
        }
        if self.options.force {
            policy.max_entries = u64::MAX;
        }
        Ok(SnapshotRequest {
            id: snapshot_id(&settings.ids)?,
            created: settings.clock.now(),
            label: self.options.label.clone(),
            attributes: self.own_attributes(),
            durability: self.durability,
            policy,
        })
    }

    fn attributes(&self) -> BTreeMap<String, String> {
        let mut attributes = self.config.labels();
        attributes.extend(self.options.attributes.clone());
        attributes
    }

    /// What `gc` needs to list it again if its line is never written.
    fn own_attributes(&self) -> BTreeMap<String, String> {
        let mut own: BTreeMap<String, String> =
            self.attributes().into_iter().map(|(key, value)| (format!("label.{key}"), value)).collect();
        own.extend(self.workspace.attributes_of(self.options.kind, &self.session));
        if self.options.keep {
            own.insert("kept".to_owned(), "true".to_owned());
        }
        own
    }
}
