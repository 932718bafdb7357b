//! A workspace that is open: the handle that all operations hang on.

use std::path::{Path, PathBuf};

use std::sync::Arc;

use ah_plugin_api::{
    Capability, CapturePolicy, Context, Dir, Durability, Error, ErrorKind, Place, Provider, ProviderName, RelPath,
    Result,
};

use crate::engine::Engine;
use crate::ids::{SessionName, WorkspaceId};
use crate::lock::Lock;
use crate::record::SnapshotRecord;
use crate::state::State;
use crate::timeline::{Event, EventBody};

/// A registered workspace.
pub struct Workspace {
    pub(crate) engine: Engine,
    pub(crate) id: WorkspaceId,
    pub(crate) root: PathBuf,
}

impl Workspace {
    /// Its id.
    #[must_use]
    pub fn id(&self) -> &WorkspaceId {
        &self.id
    }

    /// Where it is, canonical.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The engine it belongs to.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The path inside this workspace that `path` means when said in directory `cwd`. It need not exist any more.
    ///
    /// # Errors
    /// `InvalidArgument` if it is outside the workspace.
    pub fn rel_path(&self, cwd: &Path, path: &Path) -> Result<RelPath> {
        let _ = (cwd, path);
        Err(Error::new(ErrorKind::Unsupported, "not written yet"))
    }

    /// The snapshot that a REF names (DESIGN §7): `@`, `@{2}`, an id or a beginning of one, a label, a time.
    ///
    /// # Errors
    /// `InvalidArgument` if it is ambiguous, with the candidates in the hint, or not well-formed; `NotFound` if it names nothing.
    pub fn resolve(&self, reference: &str) -> Result<SnapshotRecord> {
        let _ = reference;
        Err(Error::new(ErrorKind::Unsupported, "not written yet"))
    }
}

/// A provider with its store for one workspace.
#[derive(Clone)]
pub(crate) struct Served {
    /// Its name.
    pub(crate) name: ProviderName,
    /// The provider itself.
    pub(crate) provider: Arc<dyn Provider>,
    /// Its folder for this workspace.
    pub(crate) store: Arc<Dir>,
}

impl Served {
    /// A place with the store; workspace, target and output are added as the operation needs.
    pub(crate) fn place(&self) -> Place<'_> {
        Place::new(&self.store)
    }

    /// Whether it can do that.
    pub(crate) fn can(&self, capability: Capability) -> bool {
        self.provider.describe().capabilities.contains(&capability)
    }
}

/// For the operations in other modules.
impl Workspace {
    /// The workspace's directory, opened; `FailedPrecondition` if it is not the registered one any more.
    pub(crate) fn open_dir(&self) -> Result<Dir> {
        Err(Error::new(ErrorKind::Unsupported, "not written yet"))
    }

    /// `$AH_HOME/workspaces/<id>`.
    pub(crate) fn folder(&self) -> PathBuf {
        self.engine.settings().home.join("workspaces").join(self.id.as_str())
    }

    /// `$AH_HOME/mounts`, opened: the target of views.
    pub(crate) fn mounts_dir(&self) -> Result<Dir> {
        Err(Error::new(ErrorKind::Unsupported, "not written yet"))
    }

    /// The provider of that name, to serve what it made.
    pub(crate) fn serve(&self, name: &ProviderName) -> Result<Served> {
        let _ = name;
        Err(Error::new(ErrorKind::Unsupported, "not written yet"))
    }

    /// The provider that serves new snapshots.
    pub(crate) fn chosen(&self) -> Result<Served> {
        Err(Error::new(ErrorKind::Unsupported, "not written yet"))
    }

    /// What is captured here: configuration, the user's global ignore file, our own state.
    pub(crate) fn policy(&self) -> Result<CapturePolicy> {
        Err(Error::new(ErrorKind::Unsupported, "not written yet"))
    }

    /// What provider calls run beside.
    pub(crate) fn context(&self) -> Context<'_> {
        Context::new(&*self.engine.settings().observer)
    }

    /// The session that is written to.
    pub(crate) fn writing_session(&self) -> SessionName {
        let settings = self.engine.settings();
        settings.session.clone().or_else(|| settings.agent_session.clone()).unwrap_or_else(SessionName::main)
    }

    /// All sessions' timelines, and what they amount to.
    pub(crate) fn state(&self) -> Result<State> {
        Err(Error::new(ErrorKind::Unsupported, "not written yet"))
    }

    /// Puts an event on a session's timeline. With `Durable` it survives a power cut when this returns.
    pub(crate) fn append(&self, session: &SessionName, body: EventBody, durability: Durability) -> Result<Event> {
        let _ = (session, body, durability);
        Err(Error::new(ErrorKind::Unsupported, "not written yet"))
    }

    /// Takes the lock of that name in this workspace (`restore`, `timeline`, …), waiting briefly for another process.
    pub(crate) fn lock(&self, name: &str) -> Result<Lock> {
        let _ = name;
        Err(Error::new(ErrorKind::Unsupported, "not written yet"))
    }
}
