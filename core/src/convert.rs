//! Making a workspace a unit that a provider can capture by itself: a subvolume of its own, say, or a mount that its process keeps. What is mounted can be taken
//! back.
//!
//! The provider puts another directory in the workspace's place; what is known of it goes on. Neither a restore nor a snapshot may be at
//! work meanwhile. Killed after the exchange, the next command finds a directory made anew at the path, and the timeline goes on all the same.

use std::path::{Path, PathBuf};

use ah_plugin_api::{Capability, ConvertRequest, Converted, Durability, Error, ErrorKind, ProviderName, Result};
use serde::Serialize;

use crate::attend::is_place;
use crate::branch;
use crate::engine::Access;
use crate::mounts;
use crate::notice::{Notice, NoticeKind};
use crate::registry::{Identity, Index, WorkspaceRecord};
use crate::select::{Purpose, helpers};
use crate::text;
use crate::timeline::{EventBody, WorkspaceChange};
use crate::workspace::{Served, Workspace};

/// What became of a workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConvertReport {
    /// The provider that did it.
    pub provider: ProviderName,
    /// Whether anything was done; false: it was such a unit already, or a plain directory again.
    pub changed: bool,
    /// Whether it is mounted now, by a process of the provider's: after the machine was started anew, any command in it has it mounted again.
    pub mounted: bool,
    /// What a person should know.
    pub notes: Vec<String>,
    /// The workspace's directory.
    #[serde(with = "text::abs")]
    pub path: PathBuf,
}

/// What is typed to convert a workspace: from outside, as nobody may stand in it.
#[must_use]
pub fn convert_command(root: &Path) -> String {
    format!("cd / && ah -C {} agent fs convert", text::shell(root.as_os_str()))
}

impl Workspace {
    /// Makes the workspace a unit of its own with the best provider that says that it can.
    ///
    /// # Errors
    /// `FailedPrecondition` if none can, with what each says; `Busy` while something in it is open; the provider's.
    pub fn convert(&self) -> Result<ConvertReport> {
        self.exchange(false)
    }

    /// Makes what a provider mounts in the workspace's place a plain directory again. Its snapshots stay. Cut short when that was done, it is success.
    ///
    /// # Errors
    /// `FailedPrecondition` if nothing was mounted there so; `Busy` while something in it is open; the provider's.
    pub fn convert_back(&self) -> Result<ConvertReport> {
        self.exchange(true)
    }

    fn exchange(&self, back: bool) -> Result<ConvertReport> {
        let _restore = self.lock("restore")?;
        let _making = self.lock("orphans")?;
        // Another command may have done it by now.
        if !back && self.is_mounted()? {
            let notes = vec![format!("{} is mounted already", self.root.display())];
            let provider = self.mounted()?.name;
            return Ok(ConvertReport { provider, changed: false, mounted: true, notes, path: self.root.clone() });
        }
        if let Some(interrupted) = self.interrupted_by_now()? {
            let message = format!("a restore was interrupted ({})", interrupted.restore);
            return Err(Error::new(ErrorKind::FailedPrecondition, message)
                .with_hint("finish it or take it back first: `ah agent fs undo`"));
        }
        // Perhaps a plain directory is there again, which only is to be written down: nothing reads in that.
        let is_away = back && !self.is_mounted()?;
        if !is_away {
            self.refuse_needed()?;
        }
        let served = if back { self.mounted()? } else { self.convertible()? };
        let within = self.workspaces_within()?;
        let converted = match self.ask_to_convert(&served, back) {
            Err(error) if is_away => return self.refuse_needed().and(Err(error)),
            answer => answer?,
        };
        if converted.changed {
            // They are other directories now, too, and nobody made them anew.
            for inner in within {
                let Some(there) = Identity::of_path(&inner.path) else { continue };
                self.engine.note_identity(&inner.id, there)?;
            }
            let there = Identity::of_path(&self.root).ok_or_else(|| {
                Error::new(ErrorKind::Internal, format!("{} is not there after it was converted", self.root.display()))
            })?;
            self.engine.note_identity(&self.id, there)?;
            let body = EventBody::Workspace {
                change: if back { WorkspaceChange::ConvertedBack } else { WorkspaceChange::Converted },
                from: self.root.clone(),
                to: self.root.clone(),
            };
            self.append(&self.writing_session(), body, Durability::Durable)?;
        }
        self.engine.note_mounted(&self.id, converted.mounted.then(|| served.name.clone()))?;
        let mut notes = converted.notes;
        // By what is there now, which is not what this one was opened for. It is done: what cannot be told of it is no error.
        let here = self.engine.workspace(&self.root, Access::Existing);
        if !back {
            notes.extend(here.and_then(|here| here.served_otherwise(&served.name)).ok().flatten());
        }
        let (changed, mounted) = (converted.changed, converted.mounted);
        Ok(ConvertReport { provider: served.name, changed, mounted, notes, path: self.root.clone() })
    }

    /// Refuses while what is there is needed as it is.
    fn refuse_needed(&self) -> Result<()> {
        let readers = self.branches_reading_here()?;
        if !readers.is_empty() {
            let names: Vec<&str> = readers.iter().map(|branch| branch.record.name.as_str()).collect();
            let listed = names.join(", ");
            let message = format!("branches read here what was not changed in them, and would lose it: {listed}");
            let names: Vec<String> = readers.iter().map(|branch| self.typed(&branch.record)).collect();
            return Err(Error::new(ErrorKind::FailedPrecondition, message)
                .with_hint(format!("bring home what they hold, then `ah agent fs rm {}`", names.join(" "))));
        }
        self.refuse_mounted_within()?;
        // Those too that grew from branches which are gone.
        branch::refuse_held_unless_captured(self)
    }

    /// Says so where somebody has taken that away.
    pub(crate) fn tell_what_lacks(&self) {
        let is_lost = self.record.has_lost_behind() && mounts::at(&self.record.path).0 > 0;
        if let Some(behind) = self.record.behind().filter(|_| is_lost) {
            let message =
                format!("{} is gone, and with it all that was not written here since `convert`", behind.display());
            let hint = "bring it back there; what snapshots still have of it, `ah agent fs cat` and `seek` show; how to write it off, `ah agent fs rm --all`";
            self.engine.notify(Notice::new(NoticeKind::Other, message).with_hint(hint));
        }
    }

    /// The workspaces inside of this one that are where they are known to be.
    fn workspaces_within(&self) -> Result<Vec<WorkspaceRecord>> {
        let is_there = |record: &WorkspaceRecord| {
            Identity::of_path(&record.path).is_some_and(|there| there.same(&record.identity))
        };
        let records = Index::load(self.engine.home())?.0.workspaces.into_iter();
        Ok(records
            .filter(|record| record.id != self.id && record.path.starts_with(&self.root) && is_there(record))
            .collect())
    }

    /// Refuses while a workspace inside of this one is mounted, or should be: it would be taken along without what is in it.
    fn refuse_mounted_within(&self) -> Result<()> {
        let is_within = |record: &WorkspaceRecord| {
            record.id != self.id && record.path.starts_with(&self.root) && record.is_mounted()
        };
        match Index::load(self.engine.home())?.0.workspaces.into_iter().find(is_within) {
            None => Ok(()),
            Some(inner) => {
                let message = format!("the workspace {} inside of it is mounted by itself", inner.path.display());
                let inner = text::shell(inner.path.as_os_str());
                Err(Error::new(ErrorKind::FailedPrecondition, message)
                    .with_hint(format!("take that back first: ah -C {inner} agent fs convert --back")))
            }
        }
    }

    fn ask_to_convert(&self, served: &Served, back: bool) -> Result<Converted> {
        if back {
            // Whoever has it open is in the way.
            return served.provider.convert(&served.place(), &ConvertRequest { back }, &self.context());
        }
        let dir = self.open_dir()?;
        let (was, lay_behind) = (self.record.mounted_by.clone(), self.record.lies_behind);
        // If this is killed, the next command knows whom to ask what became of it, and later ones what lies behind. What stands in for it is not that.
        let behind = if is_place(&self.root) { lay_behind } else { Some(self.record.identity) };
        self.engine.note_mounting(&self.id, Some(served.name.clone()), behind)?;
        let place = served.place().with_workspace(&dir);
        served.provider.convert(&place, &ConvertRequest { back }, &self.context()).inspect_err(|_| {
            // Where another directory is there than was, it may be that only the answer was lost.
            if Identity::of_path(&self.root).is_some_and(|there| there.same(&self.record.identity)) {
                let _ = self.engine.note_mounting(&self.id, was, lay_behind);
            }
        })
    }

    /// Whether a provider has mounted it in its place.
    fn is_mounted(&self) -> Result<bool> {
        Ok(self.mounted_by()?.is_some() && mounts::at(&self.root).0 > 0)
    }

    /// The provider that mounts it by now: another command may have changed that since it was opened.
    fn mounted_by(&self) -> Result<Option<ProviderName>> {
        Ok(self.engine.workspace_by_id(&self.id)?.and_then(|now| now.record.mounted_by))
    }

    /// The provider that mounts the workspace.
    fn mounted(&self) -> Result<Served> {
        match &self.mounted_by()? {
            Some(provider) => self.serve(provider),
            None if self.record.branch.is_some() => {
                let message = format!("{} is a branch, and was not put behind anything", self.root.display());
                let origin = self.grown_from().ok().flatten().map(|(origin, _)| origin);
                let there =
                    origin.map_or_else(String::new, |origin| format!("-C {} ", text::shell(origin.root().as_os_str())));
                let branch = branch::of_workspace(self.engine.home(), self.record.branch.as_ref()).ok().flatten();
                let branch = branch.map_or_else(|| "BRANCH".to_owned(), |branch| text::shell(branch.name.as_ref()));
                Err(Error::new(ErrorKind::FailedPrecondition, message).with_hint(format!(
                    "copy out of it what is needed; `ah {there}agent fs rm {branch}` takes a branch away"
                )))
            }
            None => {
                let message = format!("{} is not behind AgentFS: there is nothing to take back", self.root.display());
                Err(Error::new(ErrorKind::FailedPrecondition, message).with_hint("ah agent fs status"))
            }
        }
    }

    /// What is to be said where it is still not the provider that converted who captures the workspace.
    fn served_otherwise(&self, converter: &ProviderName) -> Result<Option<String>> {
        let mut choices = self.choices(&self.config()?, Purpose::Capture)?;
        let Some(chosen) = choices.next_usable()?.map(|served| served.name).filter(|name| name != converter) else {
            return Ok(None);
        };
        // The helper does the same, and nothing is amiss.
        if chosen.as_str() == helpers(converter) {
            return Ok(Some(format!("snapshots here go by {chosen}")));
        }
        let verdict = choices.verdicts.iter().find(|verdict| verdict.name == *converter);
        let why = verdict.map_or_else(String::new, |verdict| format!(": {converter} says {}", verdict.reason));
        let remedy =
            verdict.and_then(|verdict| verdict.remedy.as_ref()).map_or_else(String::new, |it| format!("; {it}"));
        Ok(Some(format!("snapshots here go by {chosen}{why}{remedy}")))
    }

    /// The provider to convert with.
    fn convertible(&self) -> Result<Served> {
        let config = self.config()?;
        let mut choices = self.choices(&config, Purpose::Capture)?;
        choices.thoroughly();
        let able = choices.next_that(|provider, verdict| {
            verdict.convertible.is_some() && provider.describe().capabilities.contains(&Capability::Convert)
        })?;
        able.ok_or_else(|| {
            let message = format!("nothing can be made better for {} by converting it", self.root.display());
            let mut error = Error::new(ErrorKind::FailedPrecondition, message).with_hint("ah agent fs status");
            error.causes =
                choices.verdicts.iter().map(|verdict| format!("{}: {}", verdict.name, verdict.reason)).collect();
            error
        })
    }
}
