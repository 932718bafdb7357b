//! The engine: one `$AH_HOME` with everything that is needed to work on it.
//!
//! What it does with paths is in `open.rs`, with configuration in `config/`, with providers in `providers.rs` and `select.rs`.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use ah_plugin_api::Result;

use crate::config::Config;
use crate::home::Home;
use crate::ids::WorkspaceId;
use crate::notice::{Notice, NoticeKind};
use crate::providers::{Helped, ProviderSet};
use crate::settings::Settings;

/// Whether a path that is no workspace yet may become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Register it if need be; `$HOME` and `/` are refused.
    Create,
    /// Register it if need be, `$HOME` and `/` too (`--force`).
    CreateForced,
    /// `NotFound` if it is not registered.
    Existing,
    /// The same, to read what is kept of it: also where its provider should have it mounted and cannot, which is told. What is at its place is not it then.
    Reading,
}

impl Access {
    /// Whether nothing is to be registered.
    pub(crate) fn is_of_what_there_is(self) -> bool {
        matches!(self, Self::Existing | Self::Reading)
    }
}

/// One `$AH_HOME` with its settings. Cheap to clone; may be used from several threads.
#[derive(Clone)]
pub struct Engine {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) settings: Settings,
    pub(crate) home: Home,
    pub(crate) plugins: OnceLock<ProviderSet>,
    pub(crate) helped: OnceLock<Helped>,
    /// With the workspace whose matter each is, where it may be another by and by.
    notices: Mutex<Vec<(Option<WorkspaceId>, Notice)>>,
    /// The workspaces that it registered, to be taken back if nothing comes of them (`fresh`).
    pub(crate) made: Mutex<Vec<WorkspaceId>>,
}

impl Engine {
    /// Makes or opens `$AH_HOME`.
    ///
    /// # Errors
    /// If it cannot be made, read or written, or belongs to somebody else.
    pub fn open(settings: Settings) -> Result<Self> {
        let home = Home::open(&settings.home, settings.user_home.as_deref())?;
        let notices = Mutex::default();
        let (plugins, helped) = (OnceLock::new(), OnceLock::new());
        let inner = Inner { settings, home, plugins, helped, notices, made: Mutex::default() };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The settings it was opened with.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.inner.settings
    }

    pub(crate) fn home(&self) -> &Home {
        &self.inner.home
    }

    /// Configuration in force at a workspace's root, or outside any workspace.
    pub(crate) fn config(&self, root: Option<&std::path::Path>) -> Result<Config> {
        let config = Config::load(self.settings(), self.home(), root)?;
        for warning in config.warnings() {
            self.notify(warning.clone());
        }
        Ok(config)
    }

    /// Tells a person something, once.
    pub fn notify(&self, notice: Notice) {
        self.notify_of(None, notice);
    }

    /// The same of a matter of one workspace, if it is one that [`Self::drop_notices`] is for.
    pub(crate) fn notify_of(&self, workspace: Option<&WorkspaceId>, notice: Notice) {
        let mut notices = self.inner.notices.lock().unwrap_or_else(PoisonError::into_inner);
        if !notices.iter().any(|(_, told)| *told == notice) {
            notices.push((workspace.cloned(), notice));
        }
    }

    /// Takes back what was to be told of a matter of a workspace that is another by now.
    pub(crate) fn drop_notices(&self, workspace: &WorkspaceId, kind: NoticeKind) {
        let mut notices = self.inner.notices.lock().unwrap_or_else(PoisonError::into_inner);
        notices.retain(|(of, notice)| of.as_ref() != Some(workspace) || notice.kind != kind);
    }

    /// What a person should hear by now; each notice is given once.
    #[must_use]
    pub fn take_notices(&self) -> Vec<Notice> {
        let notices = std::mem::take(&mut *self.inner.notices.lock().unwrap_or_else(PoisonError::into_inner));
        notices.into_iter().map(|(_, notice)| notice).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::providers::ProviderSource;

    #[test]
    fn a_matter_of_one_workspace_is_taken_back_and_no_others() {
        let temp = tempfile::tempdir().unwrap();
        let engine =
            Engine::open(Settings::new(temp.path().join("home"), ProviderSource::Plugins(Vec::new()))).unwrap();
        let [one, other] = ["one", "other"].map(|id| WorkspaceId::new(id).unwrap());
        let kind = NoticeKind::InterruptedRestore;
        engine.notify_of(Some(&one), Notice::new(kind, "of the one"));
        engine.notify_of(Some(&one), Notice::new(NoticeKind::Other, "of another kind"));
        engine.notify_of(Some(&other), Notice::new(kind, "of the other"));
        engine.notify(Notice::new(kind, "of none"));
        engine.drop_notices(&one, kind);
        let told: Vec<String> = engine.take_notices().into_iter().map(|notice| notice.message).collect();
        assert_eq!(told, ["of another kind", "of the other", "of none"]);
    }
}
