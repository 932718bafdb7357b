//! Calls of agents that no timeline could take: a log in `$AH_HOME`, and what it says of one directory.

use std::fs::DirBuilder;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ah_agents::Agent;
use ah_plugin_api::{Error, Result, Timestamp};
use serde::{Deserialize, Serialize};

use crate::engine::Engine;
use crate::fsio;
use crate::notice::{Notice, NoticeKind};
use crate::state::State;
use crate::text;

/// The log is begun anew at this size; the former one is kept beside it.
const LOG: u64 = 1 << 20;
const NAMES: [&str; 2] = ["hooks.log", "hooks.log.1"];

/// A call of an agent that could not be served, and that no timeline could take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnkeptCall {
    /// When.
    #[serde(with = "text::time")]
    pub time: Timestamp,
    /// Which agent called.
    pub agent: String,
    /// What for.
    pub event: String,
    /// Why nothing came of it.
    pub reason: String,
    /// The workspace that was meant, registered or not; none: that is not known.
    #[serde(default, with = "text::abs_option", skip_serializing_if = "Option::is_none")]
    pub directory: Option<PathBuf>,
}

impl UnkeptCall {
    /// Whether nothing was written down in its workspace since.
    fn is_last(&self, state: Option<&State>) -> bool {
        let since = state.and_then(|state| state.events.iter().map(|event| event.time).max());
        since.is_none_or(|since| since < self.time)
    }

    /// For a person, to whom `when` tells the time.
    #[must_use]
    pub fn told(&self, when: &str) -> String {
        let agent = self.agent.parse().map_or(self.agent.as_str(), |agent: Agent| agent.title());
        format!("{agent} called here {when} ({}), and nothing was kept of that: {}", self.event, self.reason)
    }
}

impl Engine {
    /// The last call of an agent, or of any, in the workspace of `path` that no timeline could take; none: as far as is known, there was none.
    ///
    /// # Errors
    /// As [`Engine::root_of`]; if the log cannot be read.
    pub fn last_unkept(&self, path: &Path, agent: Option<&str>) -> Result<Option<UnkeptCall>> {
        let root = self.root_of(path)?;
        for name in NAMES {
            let bytes = fsio::read(&self.home().join("logs").join(name))?.unwrap_or_default();
            // Somebody may write to it at this moment, or has killed who did.
            let calls = bytes.split(|byte| *byte == b'\n').rev().filter_map(|line| serde_json::from_slice(line).ok());
            let is_meant = |call: &UnkeptCall| {
                call.directory.as_ref() == Some(&root) && agent.is_none_or(|agent| call.agent == agent)
            };
            if let Some(call) = calls.into_iter().find(is_meant) {
                return Ok(Some(call));
            }
        }
        Ok(None)
    }

    /// The same, unless something was written down in that workspace since.
    ///
    /// # Errors
    /// As [`Engine::last_unkept`]; if the timelines cannot be read.
    pub fn unkept_since(&self, path: &Path, agent: Option<&str>) -> Result<Option<UnkeptCall>> {
        let Some(call) = self.last_unkept(path, agent)? else { return Ok(None) };
        let state = self.registered(path).map(|workspace| workspace.state()).transpose()?;
        Ok(Some(call).filter(|call| call.is_last(state.as_ref())))
    }

    /// Tells of a call in the workspace of `root` that no timeline could take, unless something was written down there since.
    pub(crate) fn tell_of_unkept(&self, root: &Path, state: Option<&State>) {
        // A log that cannot be read keeps nothing else from being told.
        let Some(call) = self.last_unkept(root, None).ok().flatten() else { return };
        if call.is_last(state) {
            let message = call.told(&format!("at {}", (self.settings().named_time)(call.time)));
            self.notify(Notice::new(NoticeKind::Other, message));
        }
    }

    /// Writes a call into the log. Never fails; where nothing can be written nothing is.
    pub(super) fn log_unkept(&self, call: &UnkeptCall) {
        let folder = self.home().join("logs");
        let [file, former] = NAMES.map(|name| folder.join(name));
        let run = || -> std::io::Result<()> {
            // In `$AH_HOME` as it is: one that was removed meanwhile is not made again for this.
            match DirBuilder::new().mode(fsio::DIR_MODE).create(&folder) {
                Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => return Err(e),
                _ => {}
            }
            if std::fs::metadata(&file).is_ok_and(|at| at.len() > LOG) {
                std::fs::rename(&file, &former)?;
            }
            let mut options = std::fs::OpenOptions::new();
            options.read(true).append(true).create(true).mode(fsio::FILE_MODE).custom_flags(fsio::NOFOLLOW_NONBLOCK);
            let mut file = options.open(&file)?;
            let (mut line, mut last) = (Vec::new(), [b'\n']);
            // Of a line for which there was no room, a part may be there.
            if let Some(end) = file.metadata()?.len().checked_sub(1) {
                file.read_at(&mut last, end)?;
            }
            line.extend(last.into_iter().filter(|byte| *byte != b'\n').map(|_| b'\n'));
            serde_json::to_writer(&mut line, call)?;
            line.push(b'\n');
            file.write_all(&line)
        };
        // A full disk has room for the first of them.
        let write = || run().map_err(|e| Error::from_io("cannot write down that a call was not kept", &e));
        let _ = self.home().with_hooks_reserve(write);
    }
}
