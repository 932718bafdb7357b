//! The engine: one `$AH_HOME` with everything that is needed to work on it.

use std::path::Path;
use std::sync::Arc;

use ah_plugin_api::Result;

use crate::config::{ConfigEntry, ConfigLayer, TrustReport};
use crate::notice::Notice;
use crate::settings::Settings;
use crate::status::Status;
use crate::workspace::Workspace;

/// Whether a path that is no workspace yet may become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Register it if need be; `$HOME` and `/` are refused.
    Create,
    /// Register it if need be, `$HOME` and `/` too (`--force`).
    CreateForced,
    /// `NotFound` if it is not registered.
    Existing,
}

/// One `$AH_HOME` with its settings. Cheap to clone; may be used from several threads.
#[derive(Clone)]
pub struct Engine {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) settings: Settings,
}

fn unfinished<T>() -> Result<T> {
    Err(ah_plugin_api::Error::new(ah_plugin_api::ErrorKind::Unsupported, "not written yet"))
}

impl Engine {
    /// Makes or opens `$AH_HOME`.
    ///
    /// # Errors
    /// If it cannot be made, read or written, or belongs to somebody else.
    pub fn open(settings: Settings) -> Result<Self> {
        Ok(Self { inner: Arc::new(Inner { settings }) })
    }

    /// The settings it was opened with.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.inner.settings
    }

    /// The workspace of `path`: the nearest ancestor that is registered or the top of a Git work tree, else the directory itself.
    /// Takes care of one that was moved, copied or made anew, with a notice.
    ///
    /// # Errors
    /// `NotFound` if the path is not there, or not registered with [`Access::Existing`]; `FailedPrecondition` inside `$AH_HOME`,
    /// a view, or for `$HOME` and `/`.
    pub fn workspace(&self, path: &Path, access: Access) -> Result<Workspace> {
        let _ = (path, access);
        unfinished()
    }

    /// Makes the timeline of the workspace that was at `old_path` that of the one at `path`, after a move that was not noticed.
    ///
    /// # Errors
    /// `NotFound` if no workspace was at `old_path`; `Conflict` if `path` has a timeline of its own with snapshots on it, or the
    /// old directory is still there.
    pub fn adopt(&self, path: &Path, old_path: &Path) -> Result<Workspace> {
        let _ = (path, old_path);
        unfinished()
    }

    /// What can be said of `path`, registered or not: provider and candidates, sessions, last snapshot, notices. Changes nothing
    /// in the workspace and registers nothing.
    ///
    /// # Errors
    /// `NotFound` if the path is not there; `FailedPrecondition` inside `$AH_HOME` or a view.
    pub fn status(&self, path: &Path) -> Result<Status> {
        let _ = path;
        unfinished()
    }

    /// All configuration in force at `path` (none: outside any workspace), with the layer each value comes from.
    ///
    /// # Errors
    /// If a configuration file is there and cannot be read.
    pub fn config_list(&self, path: Option<&Path>) -> Result<Vec<ConfigEntry>> {
        let _ = path;
        unfinished()
    }

    /// One key's value in force at `path`.
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown key.
    pub fn config_get(&self, path: Option<&Path>, key: &str) -> Result<ConfigEntry> {
        let _ = (path, key);
        unfinished()
    }

    /// Sets (or with no value: takes away) a key in a layer's file. `value` is JSON, or taken as text where that is not JSON.
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown key, a wrong value or a layer without a file.
    pub fn config_set(&self, path: Option<&Path>, layer: ConfigLayer, key: &str, value: Option<&str>) -> Result<()> {
        let _ = (path, layer, key, value);
        unfinished()
    }

    /// Trusts the project's configuration file at `path` as it is now, or with `revoke` no longer.
    ///
    /// # Errors
    /// `NotFound` if there is none.
    pub fn config_trust(&self, path: &Path, revoke: bool) -> Result<TrustReport> {
        let _ = (path, revoke);
        unfinished()
    }

    /// What a person should hear by now; each notice is given once.
    #[must_use]
    pub fn take_notices(&self) -> Vec<Notice> {
        Vec::new()
    }
}
