//! Sessions and their `sessions/<name>/session.json`. `main` is there without being asked for.
//!
//! Which of them an agent's session is, by the agent's own id for it, is in `agent/`.

use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ah_plugin_api::{ErrorKind, Observer, Result, SnapshotId, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::fsio;
use crate::ids::SessionName;
use crate::lock::Lock;
use crate::text::{self, text_enum};
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
    /// The agent whose session it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentSession>,
    /// When and how it ended; none: it goes on, or nobody has said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<SessionEnd>,
    /// The session that it grew from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provenance: Option<Provenance>,
    /// Whether it has been an agent's, which it may not be just now: an agent that is started anew has no id yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub was_agents: bool,
    /// Where its conversation knows its files from before its agent was seated here; none: here.
    #[serde(with = "text::abs_option", default, skip_serializing_if = "Option::is_none")]
    pub known_at: Option<PathBuf>,
}

impl SessionRecord {
    /// A session of which nothing more is known.
    #[must_use]
    pub fn new(name: SessionName, created: Timestamp) -> Self {
        Self {
            name,
            created,
            title: None,
            agent: None,
            ended: None,
            provenance: None,
            was_agents: false,
            known_at: None,
        }
    }
}

/// An agent's own session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentSession {
    /// The agent: `claude`, `codex`, `gemini`, `opencode`.
    pub name: String,
    /// The agent's id of it.
    pub id: String,
    /// The agent's file of the conversation.
    #[serde(with = "text::abs_option", default, skip_serializing_if = "Option::is_none")]
    pub transcript: Option<PathBuf>,
    /// The directory in which it started. Its workspace is that directory's, wherever the agent goes later.
    #[serde(with = "text::abs")]
    pub start: PathBuf,
}

/// How a session ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionEnd {
    /// When.
    #[serde(with = "text::time")]
    pub time: Timestamp,
    /// Why, in the agent's word; `vanished`: it is not there any more and never said.
    pub reason: String,
}

text_enum! {
    /// How a conversation was taken up in a session that grew from another.
    pub enum ResumeMethod {
        /// From a checkpoint of the agent's own.
        Checkpoint = "checkpoint",
        /// From a trimmed copy of the transcript.
        Resume = "resume",
        /// By giving a fresh agent the prompts again.
        Replay = "replay",
    }
}

/// Where a session came from. Its members are named as the specification of session branches has them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Provenance {
    /// The session that it grew from, by its name.
    pub from_session_id: SessionName,
    /// The moment in that session.
    #[serde(with = "text::time")]
    pub from_ts: Timestamp,
    /// The snapshot that its files came from.
    pub fs_snapshot_id: SnapshotId,
    /// How the conversation was taken up.
    pub method: ResumeMethod,
    /// What else there is to know about the agent's side.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub agent_details: Map<String, Value>,
}

impl Versioned for SessionRecord {
    const VERSION: u64 = 1;
}

/// The file in a session's folder that is locked.
const LOCK: &str = "session.lock";

/// The folder of a session.
pub(crate) fn folder(workspace: &Path, session: &SessionName) -> PathBuf {
    workspace.join("sessions").join(session.as_str())
}

fn file(workspace: &Path, session: &SessionName) -> PathBuf {
    folder(workspace, session).join("session.json")
}

/// Held while a session's record is made or changed, and while what came to nothing is removed: nobody waits for that as long as for a timeline.
/// Makes its folder.
pub(crate) fn lock(
    workspace: &Path,
    session: &SessionName,
    patience: Duration,
    observer: &dyn Observer,
) -> Result<Lock> {
    let folder = folder(workspace, session);
    loop {
        fsio::make_dir(&folder)?;
        match Lock::take(&folder.join(LOCK), true, patience, observer) {
            Ok(lock) if lock.is_there() => return Ok(lock),
            // The folder was removed this moment: it had come to nothing.
            Ok(_) => {}
            Err(e) if e.kind == ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
    }
}

/// Takes a name for a session that is to be made, and its lock; none if that is taken.
pub(crate) fn claim(
    workspace: &Path,
    session: &SessionName,
    patience: Duration,
    observer: &dyn Observer,
) -> Result<Option<Lock>> {
    let folder = folder(workspace, session);
    let sessions = workspace.join("sessions");
    fsio::make_dir(&sessions)?;
    match DirBuilder::new().mode(fsio::DIR_MODE).create(&folder).and_then(|()| fsio::sync_dir(&sessions)) {
        Ok(()) => {}
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => return Ok(None),
        Err(e) => return Err(fsio::failed("make the folder", &folder, &e)),
    }
    let lock = lock(workspace, session, patience, observer)?;
    // Until it was locked, the folder could be removed, and the name taken by another.
    Ok((!is_there(workspace, session)).then_some(lock))
}

/// Takes away the folder of a session that came to nothing, if it is one and nobody is making it; `forget` comes before, under its lock.
pub(crate) fn remove_unmade(folder: &Path, forget: impl FnOnce()) {
    if came_to_nothing(folder)
        && let Ok(Some(lock)) = Lock::try_take(&folder.join(LOCK), true)
        && lock.is_there()
    {
        forget();
        give_up(folder, &lock);
    }
}

/// The same by who holds its lock.
pub(crate) fn give_up(folder: &Path, _lock: &Lock) {
    if came_to_nothing(folder) {
        // The lock's file last of what is in it: who waits for that begins anew.
        let _ = ["timeline.jsonl", LOCK].map(|name| std::fs::remove_file(folder.join(name)));
        let _ = std::fs::remove_dir(folder);
    }
}

/// Whether there is nothing in the folder of a session but what is made before its record.
fn came_to_nothing(folder: &Path) -> bool {
    let is_nothing = |name: &String| match name.as_str() {
        LOCK => true,
        "timeline.jsonl" => std::fs::metadata(folder.join(name)).is_ok_and(|at| at.len() == 0),
        _ => false,
    };
    fsio::names(folder).is_ok_and(|names| names.iter().all(is_nothing))
}

/// Whether there is anything of a session; of one whose record is lost, its timeline.
pub(crate) fn is_there(workspace: &Path, session: &SessionName) -> bool {
    let timeline = folder(workspace, session).join("timeline.jsonl");
    is_made(workspace, session) || std::fs::metadata(timeline).is_ok_and(|at| at.len() > 0)
}

/// Whether a session's record is there.
pub(crate) fn is_made(workspace: &Path, session: &SessionName) -> bool {
    file(workspace, session).exists()
}

/// Makes a session that is not there. Whoever calls holds its lock, or has it where nobody else looks for it.
pub(crate) fn make(workspace: &Path, record: SessionRecord) -> Result<()> {
    let folder = folder(workspace, &record.name);
    let file = file(workspace, &record.name);
    fsio::make_dir(&folder)?;
    // Made before the folder is synced, so that whoever syncs a line later needs not think of the folder.
    let timeline = folder.join("timeline.jsonl");
    let mut options = std::fs::OpenOptions::new();
    let made = options.append(true).create(true).mode(fsio::FILE_MODE).custom_flags(fsio::NOFOLLOW_NONBLOCK);
    let made = made.open(&timeline);
    made.map_err(|e| fsio::failed("make", &timeline, &e))?;
    Doc::new(record).save(&file)
}

/// Reads a session's record; none if it is not there.
pub(crate) fn load(workspace: &Path, session: &SessionName) -> Result<Option<SessionRecord>> {
    Ok(Doc::<SessionRecord>::load(&file(workspace, session))?.map(|doc| doc.value))
}

/// Changes a session's record, if that changes anything. Whoever calls holds its lock.
pub(crate) fn change(workspace: &Path, session: &SessionName, change: impl FnOnce(&mut SessionRecord)) -> Result<()> {
    let file = file(workspace, session);
    let Some(mut doc) = Doc::<SessionRecord>::load(&file)? else { return Ok(()) };
    let before = doc.value.clone();
    change(&mut doc.value);
    if doc.value == before { Ok(()) } else { doc.save(&file) }
}

/// The names of a workspace's sessions.
pub(crate) fn names(folder: &Path) -> Result<Vec<SessionName>> {
    Ok(fsio::names(&folder.join("sessions"))?.into_iter().filter_map(|name| SessionName::new(name).ok()).collect())
}

/// A workspace's sessions, oldest first. One whose file is damaged beyond its backups still counts: its timeline is what matters. What came to nothing is none.
pub(crate) fn list(folder: &Path) -> Result<Vec<SessionRecord>> {
    let record = |name| match load(folder, &name) {
        Ok(Some(record)) => Some(record),
        _ => is_there(folder, &name).then(|| SessionRecord::new(name, Timestamp::default())),
    };
    let mut sessions: Vec<SessionRecord> = names(folder)?.into_iter().filter_map(record).collect();
    sessions.sort_by(|a, b| (a.created, &a.name).cmp(&(b.created, &b.name)));
    Ok(sessions)
}
