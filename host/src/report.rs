//! What became of each file: loaded, or why not.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ah_plugin_api::abi::{AbiVersion, OpenError};
use ah_plugin_api::text::{misleads, shell};
use ah_plugin_api::{Error, ErrorKind, ProviderName};

use crate::search::Origin;
use crate::trust::Untrusted;

/// What became of one file, or of a folder that could not be looked through.
#[derive(Debug)]
pub struct Report {
    /// The file or folder, as it was found.
    pub path: PathBuf,
    /// Why it was looked at.
    pub origin: Origin,
    /// What became of it.
    pub outcome: Outcome,
}

/// What became of a file.
#[derive(Debug)]
pub enum Outcome {
    /// It is in use.
    Loaded {
        /// The provider's name.
        name: ProviderName,
        /// The provider's version.
        version: String,
        /// What the library was built for.
        abi: AbiVersion,
    },
    /// It is not.
    Failed(Fault),
}

/// Why a file is not in use.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// There is no such file or folder.
    #[error("it does not exist")]
    Missing,
    /// It cannot be looked at.
    #[error("it cannot be read: {0}")]
    Unreadable(std::io::Error),
    /// Others could have put it there, or could change it.
    #[error("it is not to be trusted: {0}")]
    NotTrusted(Untrusted),
    /// It cannot be opened as a plugin.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Its file is named for another provider than it is.
    #[error("its file name promises another provider than the one in it, {says}")]
    OtherName {
        /// What the library says.
        says: ProviderName,
    },
    /// It crashes while it is loaded.
    #[error("it crashes while it is loaded ({signal})")]
    Crashes {
        /// The name of the signal.
        signal: String,
    },
    /// It ends the process that loads it.
    #[error("it ends the process that loads it, with exit code {code}")]
    Exits {
        /// The exit code.
        code: i32,
    },
    /// Loading it does not come to an end.
    #[error("loading it does not come to an end (given up after {} s)", .0.as_secs_f32())]
    Hangs(Duration),
    /// There could be no child process to try it in, or no thread to watch that it comes to an end.
    #[error("there can be no process to try it in, or no thread to watch it: {0}")]
    Untried(std::io::Error),
    /// Another file of that name came first.
    #[error("{} came first", .of.display())]
    Duplicate {
        /// The file in use.
        of: PathBuf,
    },
}

impl Fault {
    /// One word for it, for messages that programs read.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Unreadable(_) => "unreadable",
            Self::NotTrusted(_) => "not-trusted",
            Self::Open(error) => error.code(),
            Self::OtherName { .. } => "other-name",
            Self::Crashes { .. } => "crashes",
            Self::Exits { .. } => "exits",
            Self::Hangs(_) => "hangs",
            Self::Untried(_) => "untried",
            Self::Duplicate { .. } => "duplicate",
        }
    }

    /// What can be done about it, where something can.
    #[must_use]
    pub fn hint(&self, path: &Path) -> Option<String> {
        let shown = path.display();
        match self {
            Self::NotTrusted(untrusted) => Some(untrusted.hint()),
            Self::Open(OpenError::OtherAbi { .. } | OpenError::OtherLayout(_)) => {
                Some(format!("install the build of {shown} that belongs to this version of ah"))
            }
            Self::Crashes { .. } | Self::Exits { .. } => {
                Some(format!("remove or replace it; after `touch {}` it is tried again", shell(path.as_os_str())))
            }
            // The machine may have been too busy, so that is not remembered.
            Self::Hangs(_) => Some(format!("remove or replace {shown}: it is tried again with every command")),
            Self::Open(OpenError::InitFailed(error)) => error.hint.clone(),
            Self::OtherName { says } => Some(format!("name the file libah_provider_{says}.so")),
            Self::Open(OpenError::InitPanicked(_) | OpenError::Undescribed(_)) => {
                Some(format!("this is a defect of {shown}; please report it to its authors"))
            }
            // The system's loader's words, which say nothing of where it looked.
            Self::Open(OpenError::NotALibrary(why)) if why.contains("cannot open shared object file") => Some(format!(
                "install what `ldd {}` does not find: it is looked for where the system has libraries, and not beside the plugin (`$ORIGIN`)",
                shell(path.as_os_str())
            )),
            Self::Missing | Self::Unreadable(_) | Self::Open(_) | Self::Untried(_) | Self::Duplicate { .. } => None,
        }
    }

    /// The fault as an error of the contract, naming the file.
    #[must_use]
    pub fn to_error(&self, path: &Path) -> Error {
        let kind = match self {
            Self::Missing => ErrorKind::NotFound,
            Self::NotTrusted(_) => ErrorKind::PermissionDenied,
            Self::Unreadable(e) => ErrorKind::of_io(e),
            Self::Untried(_) => ErrorKind::ResourceExhausted,
            Self::Open(error) => error.kind(),
            Self::OtherName { .. } => ErrorKind::InvalidArgument,
            Self::Duplicate { .. } => ErrorKind::AlreadyExists,
            Self::Crashes { .. } | Self::Exits { .. } | Self::Hangs(_) => ErrorKind::Unavailable,
        };
        let mut error = Error::new(kind, format!("cannot use the plugin {}: {self}", path.display()));
        error.hint = self.hint(path);
        if let Self::Open(open) = self
            && let Some(inner) = open.inner()
        {
            error.causes.clone_from(&inner.causes);
            error.errno = inner.errno;
        }
        error
    }
}

impl From<Untrusted> for Fault {
    fn from(untrusted: Untrusted) -> Self {
        use crate::trust::Why;
        match untrusted.why {
            Why::Unreachable(e) if e.kind() == std::io::ErrorKind::NotFound => Self::Missing,
            Why::Unreachable(e) => Self::Unreadable(e),
            Why::Owner(_) | Why::WritableByGroup(_) | Why::WritableByAll | Why::Sticky | Why::Kind => {
                Self::NotTrusted(untrusted)
            }
        }
    }
}

/// An error as `ah` tells it, of who can no longer hand it on.
pub(crate) fn told(error: &Error) -> String {
    let line = |text: &str| -> String {
        let shown = |c: char| if misleads(c) { c.escape_default().to_string() } else { c.to_string() };
        text.chars().map(shown).collect()
    };
    let hint = error.hint.as_ref().map(|hint| format!("hint: {}\n", line(hint)));
    format!("error: {}\n{}", line(&error.message), hint.unwrap_or_default())
}
