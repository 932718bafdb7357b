//! Where an operation works: open directories, never names.
//!
//! A path can be swapped between check and use; a descriptor cannot. So a workspace, a store and a target reach the
//! provider as open directories, with a path for messages and for answers only.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorKind, Result};

/// An open directory with the path it was opened by.
#[derive(Debug)]
pub struct Dir {
    fd: OwnedFd,
    path: PathBuf,
}

impl Dir {
    /// Opens `path`, which must be a directory; its last component may not be a symlink.
    ///
    /// # Errors
    /// As the operating system says: `NotFound`, `PermissionDenied`, `InvalidArgument` (not a directory).
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        use rustix::fs::{Mode, OFlags};
        let path = path.into();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::open(&path, flags, Mode::empty())
            .map_err(|e| Error::from_io(format!("cannot open the directory {}", path.display()), &e.into()))?;
        Ok(Self { fd, path })
    }

    /// Takes over a descriptor that came from elsewhere. `path` is for display.
    #[must_use]
    pub fn from_fd(fd: OwnedFd, path: PathBuf) -> Self {
        Self { fd, path }
    }

    /// The path, for people and for answers; never to be opened again.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The directories that an operation may use. Which of them are there, each operation says.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// The provider's own folder for this workspace (0700), made and removed by the caller. The provider may keep anything
    /// in it, and nothing anywhere else but where the operation says.
    pub store: &'a Dir,
    /// The workspace; not there when it is gone or not needed.
    pub workspace: Option<&'a Dir>,
    /// The folder in which `mount` and `clone` create what they make.
    pub target: Option<&'a Dir>,
    /// Where `read` writes.
    pub output: Option<BorrowedFd<'a>>,
}

impl<'a> Place<'a> {
    /// A place with nothing but a store.
    #[must_use]
    pub fn new(store: &'a Dir) -> Self {
        Self { store, workspace: None, target: None, output: None }
    }

    /// Adds the workspace.
    #[must_use]
    pub fn with_workspace(mut self, dir: &'a Dir) -> Self {
        self.workspace = Some(dir);
        self
    }

    /// Adds the target folder.
    #[must_use]
    pub fn with_target(mut self, dir: &'a Dir) -> Self {
        self.target = Some(dir);
        self
    }

    /// Adds the output.
    #[must_use]
    pub fn with_output(mut self, fd: BorrowedFd<'a>) -> Self {
        self.output = Some(fd);
        self
    }

    /// The workspace, or the error of an operation that needs one.
    ///
    /// # Errors
    /// `InvalidArgument` without a workspace.
    pub fn need_workspace(&self) -> Result<&'a Dir> {
        self.workspace.ok_or_else(|| Error::new(ErrorKind::InvalidArgument, "this operation needs a workspace"))
    }

    /// The target folder, or the error of an operation that needs one.
    ///
    /// # Errors
    /// `InvalidArgument` without a target.
    pub fn need_target(&self) -> Result<&'a Dir> {
        self.target.ok_or_else(|| Error::new(ErrorKind::InvalidArgument, "this operation needs a target folder"))
    }

    /// The output, or the error of an operation that needs one.
    ///
    /// # Errors
    /// `InvalidArgument` without an output.
    pub fn need_output(&self) -> Result<BorrowedFd<'a>> {
        self.output.ok_or_else(|| Error::new(ErrorKind::InvalidArgument, "this operation needs an output"))
    }
}
