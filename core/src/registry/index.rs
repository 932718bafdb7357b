//! `index.json`: all workspaces in one file, so that finding one costs one read. Their sessions are not in it: there are many more of those, and
//! more all the time.
//!
//! A cache. It is rebuilt from `workspaces/` when it is missing, damaged, does not name exactly the folders that are there, or says of one that it has no
//! record and it has: who writes it holds no lock, and may have looked into that folder just before the record was there. The other
//! way round, a workspace's record that is lost or damaged, with its backups, is written anew from here. What it says
//! of one workspace is checked against that workspace's own record before anything is done with it.

use std::collections::BTreeSet;

use ah_plugin_api::{Durability, Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::fsio;
use crate::home::Home;
use crate::ids::WorkspaceId;
use crate::registry::record::{WorkspaceRecord, load, save_new};
use crate::text;

const VERSION: u64 = 1;

/// All workspaces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Index {
    version: u64,
    pub(crate) workspaces: Vec<WorkspaceRecord>,
    /// Folders without a record that can be read, so that they do not make the index look out of date each time.
    #[serde(default)]
    empty: Vec<String>,
    /// Why the record of one cannot be read now that is nowhere else: who does not find a workspace here may have missed that one.
    #[serde(skip)]
    pub(crate) unread: Option<Error>,
}

impl Index {
    /// Reads it, or rebuilds it if it is not sound; true if it was damaged.
    pub(crate) fn load(home: &Home) -> Result<(Self, bool)> {
        let folders: BTreeSet<String> = fsio::names(&home.join("workspaces"))?.into_iter().collect();
        // What cannot be read of a cache is lost, and written anew.
        let bytes = fsio::read(&home.join("index.json")).unwrap_or_else(|_| Some(Vec::new()));
        let damaged = match bytes.as_deref().map(serde_json::from_slice::<Self>) {
            Some(Ok(index)) if index.version == VERSION && index.folders() == folders && !index.has_missed(home) => {
                return Ok((index, false));
            }
            Some(Err(_)) => true,
            Some(Ok(_)) | None => false,
        };
        let index = Self::rebuild(home, &folders)?;
        index.save(home);
        Ok((index, damaged))
    }

    /// Reads everything anew.
    pub(crate) fn refresh(home: &Home) -> Result<Self> {
        let folders = fsio::names(&home.join("workspaces"))?.into_iter().collect();
        let index = Self::rebuild(home, &folders)?;
        index.save(home);
        Ok(index)
    }

    fn rebuild(home: &Home, folders: &BTreeSet<String>) -> Result<Self> {
        let former = fsio::read(&home.join("index.json")).ok().flatten();
        let former = former.and_then(|bytes| serde_json::from_slice::<Self>(&bytes).ok());
        let known = |folder: &str| {
            let former = former.iter().flat_map(|index| &index.workspaces);
            former.into_iter().find(|record| record.id.as_str() == folder)
        };
        let mut index = Self { version: VERSION, workspaces: Vec::new(), empty: Vec::new(), unread: None };
        for folder in folders {
            let record = match load(home, folder) {
                Ok(Some(doc)) => Some(doc.value),
                // It is there, and may be anybody's: for want of memory, say, or as another user's.
                Err(error) if error.kind != ErrorKind::DataLoss => match known(folder) {
                    Some(record) => Some(record.clone()),
                    None => {
                        let file = text::shell(home.workspace(folder).join("workspace.json").as_os_str());
                        let hint = format!("see that it can be read, then repeat: `cat {file}`");
                        let why = "it is not known which workspace that is";
                        index.unread.get_or_insert(error.context(why).with_hint(hint));
                        continue;
                    }
                },
                // What was lost there is known here still: its history must not begin anew, though it may not be possible to write it there now.
                Ok(None) | Err(_) => known(folder).inspect(|record| drop(save_new(home, record))).cloned(),
            };
            // One workspace whose record is lost must not hide the others.
            match record {
                Some(record) => index.workspaces.push(record),
                None => index.empty.push(folder.clone()),
            }
        }
        Ok(index)
    }

    /// For who was not found: that is certain only where every record was read.
    pub(crate) fn need_all(&self) -> Result<()> {
        self.unread.clone().map_or(Ok(()), Err)
    }

    /// The workspace of that id.
    pub(crate) fn by_id(&self, id: &WorkspaceId) -> Option<&WorkspaceRecord> {
        self.workspaces.iter().find(|record| record.id == *id)
    }

    fn folders(&self) -> BTreeSet<String> {
        let known = self.workspaces.iter().map(|record| record.id.as_str().to_owned());
        known.chain(self.empty.iter().cloned()).collect()
    }

    /// Whether a folder that was without a record has one by now. Mostly there is no such folder.
    fn has_missed(&self, home: &Home) -> bool {
        self.empty.iter().any(|folder| matches!(load(home, folder), Ok(Some(_))))
    }

    /// Writes it. It is only a cache: what cannot be written is rebuilt the next time.
    fn save(&self, home: &Home) {
        // Nor is it taken for whole the next time.
        if self.unread.is_some() {
            return;
        }
        if let Ok(bytes) = serde_json::to_vec_pretty(self) {
            let _ = fsio::replace(&home.join("index.json"), &bytes, Durability::Instant);
        }
    }
}
