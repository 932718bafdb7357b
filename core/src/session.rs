//! Sessions and their `sessions/<name>/session.json`. `main` is there without being asked for.

use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use ah_plugin_api::{Result, Timestamp};
use serde::{Deserialize, Serialize};

use crate::fsio;
use crate::ids::SessionName;
use crate::text;
use crate::versioned::{Doc, Versioned};

/// A session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionRecord {
    /// Its name.
    pub name: SessionName,
    /// When it began.
    #[serde(with = "text::time")]
    pub created: Timestamp,
    /// A title for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
}

impl Versioned for SessionRecord {
    const VERSION: u64 = 1;
}

/// Makes a session if it is not there; true if it was not. Whoever calls holds the workspace's timeline lock.
pub(crate) fn ensure(folder: &Path, session: &SessionName, now: Timestamp) -> Result<bool> {
    let folder = folder.join("sessions").join(session.as_str());
    let file = folder.join("session.json");
    if file.exists() {
        return Ok(false);
    }
    fsio::make_dir(&folder)?;
    // Made before the folder is synced, so that whoever syncs a line later needs not think of the folder.
    let timeline = folder.join("timeline.jsonl");
    let made = std::fs::OpenOptions::new().append(true).create(true).mode(fsio::FILE_MODE).open(&timeline);
    made.map_err(|e| fsio::failed("make", &timeline, &e))?;
    Doc::new(SessionRecord { name: session.clone(), created: now, title: None }).save(&file)?;
    Ok(true)
}

/// The names of a workspace's sessions.
pub(crate) fn names(folder: &Path) -> Result<Vec<SessionName>> {
    Ok(fsio::names(&folder.join("sessions"))?.into_iter().filter_map(|name| SessionName::new(name).ok()).collect())
}

/// A workspace's sessions, oldest first. One whose file is damaged beyond its backups still counts: its timeline is what matters.
pub(crate) fn list(folder: &Path) -> Result<Vec<SessionRecord>> {
    let mut sessions: Vec<SessionRecord> = names(folder)?
        .into_iter()
        .map(|name| {
            let file = folder.join("sessions").join(name.as_str()).join("session.json");
            let doc = Doc::<SessionRecord>::load(&file).ok().flatten();
            doc.map_or_else(|| SessionRecord { name, created: Timestamp::default(), title: None }, |doc| doc.value)
        })
        .collect();
    sessions.sort_by(|a, b| (a.created, &a.name).cmp(&(b.created, &b.name)));
    Ok(sessions)
}
