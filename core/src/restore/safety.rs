//! The safety snapshot: the present state, saved before anything is changed.
//!
//! The provider of the snapshot to be restored takes it where it can, since comparing within one provider is cheap. It may not be able to
//! here any more: a workspace that was a subvolume of its own and was deleted and made anew is a plain directory. Then whoever can serve
//! the directory as it is now takes it, and the two are compared by reading both.

use ah_plugin_api::{Capability, CapturePolicy, Dir, Durability, Error, ErrorKind, Result, Snapshot, SnapshotRequest};

use crate::ids;
use crate::record::SnapshotKind;
use crate::select::Purpose;
use crate::workspace::{Served, Workspace};

/// The present state, and who saved it.
pub(super) struct Saved {
    pub(super) snapshot: Snapshot,
    /// Who took it, if not the provider of what is restored.
    pub(super) other: Option<Served>,
    /// What a person should know about that.
    pub(super) note: Option<String>,
}

impl Workspace {
    /// Saves the present state with `served` if that can do so here, else with the first provider that can. `everything`: what is restored may
    /// come from a provider that captures all there is, so that a snapshot which leaves ignored files out would not be the whole state.
    pub(super) fn save_present(
        &self,
        served: &Served,
        workspace: &Dir,
        policy: &CapturePolicy,
        everything: bool,
    ) -> Result<Saved> {
        let able = self.can_capture(served);
        let is_unable = able.is_err();
        let saved = able.and_then(|()| self.save_with(served, workspace, policy, everything));
        let refused = match saved {
            Ok(snapshot) => return Ok(Saved { snapshot, other: None, note: None }),
            Err(error) if !another_may_help(&error) => return Err(refusal(error)),
            Err(error) => error,
        };
        let config = self.config()?;
        // Who is asked for by name takes snapshots, and no other.
        let Ok(mut choices) = self.choices(&config, Purpose::Capture) else { return Err(refusal(refused)) };
        loop {
            let other = match choices.next_usable() {
                Err(error) if error.kind == ErrorKind::Cancelled => return Err(error),
                Err(_) | Ok(None) => break,
                Ok(Some(other)) => other,
            };
            if other.name == served.name {
                continue;
            }
            let everything = everything || !served.can(Capability::AppliesPolicy);
            match self.save_with(&other, workspace, policy, everything) {
                Ok(snapshot) => {
                    // Of what failed only then `status` does not know.
                    let why = match is_unable {
                        true => {
                            "does not capture this directory as it is now (`ah agent fs status` says why)".to_owned()
                        }
                        false => format!("could not: {}", refused.message),
                    };
                    let note = format!("the present state is saved by {}, as {} {why}", other.name, served.name);
                    return Ok(Saved { snapshot, other: Some(other), note: Some(note) });
                }
                Err(error) if error.kind == ErrorKind::Cancelled => return Err(error),
                Err(_) => {}
            }
        }
        Err(refusal(refused))
    }

    fn save_with(
        &self,
        served: &Served,
        workspace: &Dir,
        policy: &CapturePolicy,
        everything: bool,
    ) -> Result<Snapshot> {
        let settings = self.engine.settings();
        // Whoever took the snapshot to be restored had this many, too.
        let mut policy = CapturePolicy { max_entries: u64::MAX, ..policy.clone() };
        if everything {
            policy.include = vec!["*".to_owned()];
            policy.exclude = Vec::new();
            policy.max_file_size = u64::MAX;
        }
        let request = SnapshotRequest {
            id: ids::snapshot_id(&settings.ids)?,
            created: settings.clock.now(),
            label: None,
            attributes: self.attributes_of(SnapshotKind::Safety, &self.writing_session()),
            durability: Durability::Durable,
            policy,
        };
        self.take_by(served, workspace, &request)
    }
}

/// Whether this provider cannot work on the directory as it is now, which says nothing about others.
fn another_may_help(error: &Error) -> bool {
    matches!(
        error.kind,
        ErrorKind::PermissionDenied
            | ErrorKind::Unavailable
            | ErrorKind::Unsupported
            | ErrorKind::FailedPrecondition
            | ErrorKind::NotFound
    )
}

fn refusal(error: Error) -> Error {
    let error = error.context("the present state could not be saved, so nothing was changed");
    // The provider may not be able to work here any more; what it keeps can be had all the same.
    match (error.kind, error.hint.clone()) {
        (ErrorKind::PermissionDenied | ErrorKind::Unavailable | ErrorKind::FailedPrecondition, hint) => {
            let own = hint.map_or_else(String::new, |hint| format!("{hint}; or "));
            error.with_hint(format!("{own}copy what you need out of what `ah agent fs seek` shows"))
        }
        _ => error,
    }
}
