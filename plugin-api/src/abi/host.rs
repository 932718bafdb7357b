//! The host's side: a library that was opened, and its table as a [`Caller`].

use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;

use abi_stable::library::{LibHeader, LibraryError, RawLibrary};
use abi_stable::library::{abi_header_from_raw_library, lib_header_from_raw_library};
use abi_stable::std_types::RResult;

use super::context;
use super::guest::StartError;
use super::table::{Answer, Table_Ref};
use super::{AbiVersion, layout};
use crate::answers::{cut_error, shown};
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::types::Description;
use crate::wire::{self, Caller, Op, Remote};

/// What the table calls itself; another library that uses the ABI library for something else says something else.
pub(crate) const MODULE: &str = "ah_provider";

/// A library that was opened. It stays open for the life of the process.
pub struct Library {
    /// What its provider says of itself.
    pub description: Description,
    /// What it was built for.
    pub abi: AbiVersion,
    /// Carries calls to it.
    pub caller: SharedLibrary,
}

impl Library {
    /// The provider in it.
    #[must_use]
    pub fn into_provider(self) -> Remote<SharedLibrary> {
        Remote::new(self.caller, self.description)
    }
}

/// Why a library could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Not a shared library of this machine, or not a whole one.
    #[error("it is not a shared library that can be loaded: {0}")]
    NotALibrary(String),
    /// A shared library, but without our table.
    #[error("it is a shared library, but not a provider plugin")]
    NotOurs,
    /// Built for another version of the ABI.
    #[error("it is built for version {found} of the plugin ABI, this program has {expected}")]
    OtherAbi {
        /// What the library says.
        found: String,
        /// What this build has.
        expected: AbiVersion,
    },
    /// Of our version by name, but its table has another shape.
    #[error("its table has another layout than its ABI version promises: {0}")]
    OtherLayout(String),
    /// Its provider could not be made.
    #[error("its initialiser failed: {0}")]
    InitFailed(Error),
    /// Its provider's constructor panicked.
    #[error("in its initialiser, {0}")]
    InitPanicked(Error),
    /// It does not say properly what it is.
    #[error("it does not describe itself: {0}")]
    Undescribed(Error),
}

impl OpenError {
    /// One word for it, for messages that programs read.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotALibrary(_) => "not-a-library",
            Self::NotOurs => "not-ours",
            Self::OtherAbi { .. } => "other-abi",
            Self::OtherLayout(_) => "other-layout",
            Self::InitFailed(_) => "init-failed",
            Self::InitPanicked(_) => "init-panicked",
            Self::Undescribed(_) => "undescribed",
        }
    }

    /// What the caller may do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NotALibrary(_) | Self::NotOurs => ErrorKind::InvalidArgument,
            Self::OtherAbi { .. } | Self::OtherLayout(_) => ErrorKind::Unsupported,
            Self::InitFailed(error) => error.kind,
            Self::InitPanicked(_) | Self::Undescribed(_) => ErrorKind::Internal,
        }
    }

    /// What the library itself said.
    #[must_use]
    pub fn inner(&self) -> Option<&Error> {
        match self {
            Self::InitFailed(error) | Self::InitPanicked(error) | Self::Undescribed(error) => Some(error),
            Self::NotALibrary(_) | Self::NotOurs | Self::OtherAbi { .. } | Self::OtherLayout(_) => None,
        }
    }
}

/// Opens the library at `path` and makes its provider.
///
/// Runs the library's constructors, so its file must be trusted. Opening the same file again gives the same provider. `path` goes to the
/// system's loader as it is; it must contain a `/`, or the loader would search for it.
///
/// # Errors
/// See [`OpenError`]. A library that fails after the system's loader took it stays loaded, but is not called again.
pub fn open(path: &Path) -> Result<Library, OpenError> {
    load(path)?.start()
}

/// The first half of [`open`]: what the system's loader does, one library after the other, and the judgement of the library. Nothing of its provider runs.
///
/// # Errors
/// See [`OpenError`].
pub fn load(path: &Path) -> Result<Loaded, OpenError> {
    let library = RawLibrary::load_at(path).map_err(|e| OpenError::NotALibrary(cause(&e)))?;
    // Never closed: a plugin may have started threads, registered thread-local destructors, or given out pointers to itself.
    let library: &'static RawLibrary = Box::leak(Box::new(library));

    // SAFETY: `library` is leaked, so the header lives as long as the process.
    let abi_header = unsafe { abi_header_from_raw_library(library) }.map_err(|_| OpenError::NotOurs)?;
    if abi_header.magic_string != abi_stable::library::AbiHeader::VALUE.magic_string {
        return Err(OpenError::NotOurs);
    }
    if !abi_header.is_valid() {
        let found = format!("of abi_stable {}.{}", abi_header.abi_major, abi_header.abi_minor);
        return Err(OpenError::OtherAbi { found, expected: AbiVersion::OURS });
    }
    // SAFETY: as above.
    let header = unsafe { lib_header_from_raw_library(library) }.map_err(|e| OpenError::OtherLayout(cause(&e)))?;
    let (abi, table) = table(header)?;
    Ok(Loaded { abi, table })
}

/// A library that is ours, and whose provider is not made yet.
pub struct Loaded {
    abi: AbiVersion,
    table: Table_Ref,
}

impl Loaded {
    /// The second half of [`open`]: makes the provider, and asks it what it is.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn start(self) -> Result<Library, OpenError> {
        let Self { abi, table } = self;
        if let RResult::RErr(bytes) = table.start()() {
            return Err(match wire::decode::<StartError>(&bytes) {
                Ok(StartError { panicked: true, error }) => OpenError::InitPanicked(cut_error(error)),
                Ok(StartError { panicked: false, error }) | Err(error) => OpenError::InitFailed(cut_error(error)),
            });
        }
        let description = carry(table.describe()())
            .and_then(|bytes| wire::decode::<Description>(&bytes))
            .and_then(shown)
            .map_err(|error| OpenError::Undescribed(cut_error(error)))?;
        let caller = SharedLibrary { table, name: description.name.to_string() };
        Ok(Library { description, abi, caller })
    }
}

/// Checks the version and layout of the table, and gets it.
fn table(header: &'static LibHeader) -> Result<(AbiVersion, Table_Ref), OpenError> {
    if header.root_mod_consts().name().as_str() != MODULE {
        return Err(OpenError::NotOurs);
    }
    let found = header.version_strings().version.as_str();
    let abi = AbiVersion::parse(found).filter(|abi| abi.major == AbiVersion::OURS.major);
    let abi = abi.ok_or_else(|| OpenError::OtherAbi { found: found.to_owned(), expected: AbiVersion::OURS })?;
    let theirs = header.layout().ok_or_else(|| OpenError::OtherLayout("it carries no layout".to_owned()))?;
    layout::check(<Table_Ref as abi_stable::StableAbi>::LAYOUT, theirs).map_err(OpenError::OtherLayout)?;
    // SAFETY: `layout::check` has just found that the table is ours, or a shorter or longer edition of it, whose missing entries
    // the accessors of `Table_Ref` answer with `None`.
    let table = unsafe { header.init_root_module_with_unchecked_layout::<Table_Ref>() };
    Ok((abi, table.map_err(|e| OpenError::InitFailed(Error::new(ErrorKind::Internal, cause(&e))))?))
}

/// The gist of the ABI library's errors, which are paragraphs.
fn cause(error: &LibraryError) -> String {
    match error {
        LibraryError::OpenError { err, .. } | LibraryError::GetSymbolError { err, .. } => err.to_string(),
        other => other.to_string().split_whitespace().collect::<Vec<_>>().join(" "),
    }
}

/// Calls the entries of a library's table.
pub struct SharedLibrary {
    table: Table_Ref,
    name: String,
}

impl Caller for SharedLibrary {
    fn call(&self, op: Op, request: &[u8], fds: &[BorrowedFd<'_>], cx: &Context<'_>) -> Result<Vec<u8>> {
        let Some(entry) = self.table.entry(op) else {
            let name = &self.name;
            return Err(Error::new(ErrorKind::Unsupported, format!("the provider {name} has no operation {op}")));
        };
        let fds: Vec<i32> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        carry(context::with_raw(cx, |cx| entry(request.into(), fds.as_slice().into(), cx)))
    }
}

fn carry(answer: Answer) -> Result<Vec<u8>> {
    answer.into_result().map(Into::into).map_err(|bytes| {
        wire::decode::<Error>(&bytes)
            .unwrap_or_else(|_| Error::new(ErrorKind::Internal, "the provider failed without a readable error"))
    })
}
