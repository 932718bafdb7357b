//! Taking a snapshot.
//!
//! The order of steps is what makes it safe to be killed anywhere: first the provider makes the snapshot, which bears session and kind
//! itself, then comes one line on the timeline. Between the two, `gc` finds an orphan and lists it again.

use std::collections::BTreeMap;

use ah_plugin_api::{
    Capability, CapturePolicy, DestroyRequest, Durability, Error, ErrorKind, Result, Snapshot, SnapshotRequest,
};

use crate::background;
use crate::config::Config;
use crate::ids::{SessionName, snapshot_id};
use crate::notice::{Notice, NoticeKind};
use crate::record::{OmittedRecord, SnapshotKind, SnapshotRecord};
use crate::timeline::{EventBody, Head};
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

/// The longest label, bytes.
const MAX_LABEL: usize = 4096;

impl Workspace {
    /// Captures the workspace and puts it on the timeline.
    ///
    /// `equal_to` of the answer names the snapshot before it if nothing has changed since. When the provider of choice fails, an
    /// automatic snapshot is taken with the next one, with an event; by hand, the error's hint offers it.
    ///
    /// # Errors
    /// `Unavailable` if no provider can serve; `FailedPrecondition` if there are too many entries; `ResourceExhausted`; the
    /// provider's.
    pub fn snapshot(&self, options: &SnapshotOptions) -> Result<SnapshotRecord> {
        self.snapshot_of(options, None).map(|(record, _)| record)
    }

    /// As [`Workspace::snapshot`], with what was left out and why.
    ///
    /// # Errors
    /// As [`Workspace::snapshot`].
    pub fn snapshot_and_omitted(&self, options: &SnapshotOptions) -> Result<(SnapshotRecord, Vec<OmittedRecord>)> {
        let (record, snapshot) = self.snapshot_of(options, None)?;
        Ok((record, snapshot.omitted.into_iter().map(OmittedRecord::from).collect()))
    }

    /// As [`Workspace::snapshot`], with what the provider said, omissions included. `only` is the provider that must do it.
    pub(crate) fn snapshot_of(
        &self,
        options: &SnapshotOptions,
        only: Option<&Served>,
    ) -> Result<(SnapshotRecord, Snapshot)> {
        check_label(options.label.as_deref())?;
        let config = self.config()?;
        let automatic = options.kind == SnapshotKind::Auto;
        let durability =
            options.durability.unwrap_or(if automatic { Durability::Instant } else { Durability::Durable });
        let taking = Taking { workspace: self, options, session: self.writing_session(), durability, config: &config };
        if let Some(served) = only {
            return taking.with(served, Vec::new());
        }
        let mut choices = self.choices(&config)?;
        let mut served = choices.next_usable()?.ok_or_else(|| choices.nobody())?;
        let mut degraded: Vec<EventBody> = Vec::new();
        loop {
            let error = match taking.with(&served, degraded.clone()) {
                Ok(done) => return Ok(done),
                Err(error) if !another_may_help(&error) => return Err(error),
                Err(error) => error,
            };
            let Some(next) = choices.next_usable()? else { return Err(error) };
            if !automatic {
                let command = format!("ah agent fs snapshot --provider {}", next.name);
                let own = error.hint.as_deref().map_or_else(String::new, |hint| format!("{hint}; or "));
                return Err(Error { hint: None, ..error }
                    .context(format!("the provider {} failed", served.name))
                    .with_hint(format!("{own}{command}")));
            }
            let message = format!("the provider {} failed, {} took over: {error}", served.name, next.name);
            self.engine.notify(Notice::new(NoticeKind::Degraded, message).with_hint("ah agent fs status"));
            degraded.push(EventBody::Degraded {
                provider: served.name.clone(),
                reason: error.to_string(),
                next: next.name.clone(),
            });
            served = next;
        }
    }
}

/// Whether the next provider may do what this one could not.
fn another_may_help(error: &Error) -> bool {
    match error.kind {
        ErrorKind::Unsupported
        | ErrorKind::Unavailable
        | ErrorKind::PermissionDenied
        | ErrorKind::ResourceExhausted
        | ErrorKind::DataLoss
        | ErrorKind::Internal
        | ErrorKind::Busy
        | ErrorKind::NotFound
        | ErrorKind::Unknown => true,
        // The request, the workspace's state or the person is the reason: the same with every provider.
        _ => false,
    }
}

pub(crate) fn check_label(label: Option<&str>) -> Result<()> {
    match label {
        Some(label) if label.len() > MAX_LABEL || label.chars().any(char::is_control) => Err(Error::new(
            ErrorKind::InvalidArgument,
            "a label is one line of up to 4096 bytes without control characters",
        )),
        Some("") => Err(Error::new(ErrorKind::InvalidArgument, "a label cannot be empty")),
        _ => Ok(()),
    }
}

/// One snapshot to be taken.
struct Taking<'a> {
    workspace: &'a Workspace,
    options: &'a SnapshotOptions,
    session: SessionName,
    durability: Durability,
    config: &'a Config,
}

impl Taking<'_> {
    fn with(&self, served: &Served, before: Vec<EventBody>) -> Result<(SnapshotRecord, Snapshot)> {
        let workspace = self.workspace;
        let dir = workspace.open_dir()?;
        let request = self.request(served)?;
        // Held until the line is written, so that gc does not take a snapshot in the making for an orphan.
        let _making = workspace.lock_as("orphans", false)?;
        let snapshot =
            served.provider.snapshot(&served.place().with_workspace(&dir), &request, &workspace.context())?;
        let mut record = SnapshotRecord::of(&snapshot, &served.name, self.options.kind, &self.session);
        record.kept = self.options.keep;
        record.attributes = self.attributes();
        match self.list(before, record, &snapshot) {
            Ok(record) => {
                self.note_first_commit(&snapshot);
                background::after_snapshot(workspace, &record);
                Ok((record, snapshot))
            }
            Err(error) => {
                // Nobody will hear its id: take it back. If that fails too, gc finds it.
                let request = DestroyRequest::Snapshot(snapshot.reference);
                let _ = served.provider.destroy(&served.place(), &request, &workspace.context());
                Err(error)
            }
        }
    }

    fn list(
        &self,
        mut events: Vec<EventBody>,
        mut record: SnapshotRecord,
        snapshot: &Snapshot,
    ) -> Result<SnapshotRecord> {
        let make = |head: &Head| {
            let last = head.snapshot.as_ref().filter(|last| last.equals(&record.provider, snapshot.tree.as_ref()));
            record.equal_to = last.map(|last| last.id.clone());
            events.push(EventBody::Snapshot { snapshot: Box::new(record) });
            events
        };
        let durability = match snapshot.durability {
            Durability::Durable => Durability::Durable,
            _ => self.durability,
        };
        let listed = self.workspace.append_with(&self.session, durability, make)?;
        let last = listed.into_iter().rev().find_map(|event| match event.body {
            EventBody::Snapshot { snapshot } => Some(*snapshot),
            _ => None,
        });
        last.ok_or_else(|| Error::new(ErrorKind::Internal, "a snapshot was not listed"))
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
        own.insert("session".to_owned(), self.session.to_string());
        own.insert("kind".to_owned(), self.options.kind.to_string());
        own.insert("workspace".to_owned(), self.workspace.id.to_string());
        if self.options.keep {
            own.insert("kept".to_owned(), "true".to_owned());
        }
        own
    }
}
