//! What a call comes to: a code, and a message in memory of the caller's.

use std::ffi::{CStr, c_char};
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

use ah_agentfs::Error;

/// What a call came to. The numbers are the same on all systems and never get another meaning; later versions may have more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub enum Code {
    /// It was done.
    Ok = 0,
    /// No such name, branch, snapshot or store.
    NotFound = 1,
    /// The name is taken.
    Exists = 2,
    /// A directory was needed.
    NotDirectory = 3,
    /// Anything but a directory was needed.
    IsDirectory = 4,
    /// The directory holds something.
    NotEmpty = 5,
    /// A null pointer, a number that means nothing here, or a request that makes no sense.
    Invalid = 6,
    /// A name of more than 255 bytes, or a link's target of more than 4095.
    NameTooLong = 7,
    /// A change through the view of a snapshot, or one that was opened to read.
    ReadOnly = 8,
    /// The disk is full, or the store's own limit is reached.
    NoSpace = 9,
    /// The kind of thing does not allow this (a hard link to a directory).
    NotPermitted = 10,
    /// No extended attribute of this name.
    NoAttribute = 11,
    /// Beyond the largest file, 2^62 bytes.
    FileTooLarge = 12,
    /// An offset behind the last data, where a seek ends.
    NoData = 13,
    /// Too many names of one file.
    TooManyLinks = 14,
    /// A view, a child or another process holds it.
    Busy = 15,
    /// An inode number that was forgotten, or never given out.
    Stale = 16,
    /// This filesystem, or this system, does not do that.
    Unsupported = 17,
    /// What the tree stood for is gone: the file below was changed by somebody else.
    DataLoss = 18,
    /// The store itself is damaged.
    Corrupt = 19,
    /// The store was written by a newer version.
    NewerFormat = 20,
    /// The lower directory is not the one that the store was made for.
    OtherLower = 21,
    /// The system said no: `system` says how.
    Io = 22,
    /// The buffer is too small for the whole value; `length` says what it takes.
    TooSmall = 23,
    /// A fault in AgentFS itself: it gave up in the middle of the call.
    Internal = 24,
}

/// What went wrong, in memory of the caller's: 256 bytes. Written by every call that is given one, also when it succeeds.
#[repr(C)]
pub struct Failure {
    /// One of `agentfs_code`, as the call returned it.
    pub code: i32,
    /// The error number of this system that comes closest (`errno.h`); 0 if there was no error.
    pub system: i32,
    /// A sentence for people, UTF-8, cut if it is too long, always ended by a NUL.
    pub message: [c_char; 248],
}

const _: () = assert!(size_of::<Failure>() == 256);

/// Why a call ends without having been done.
pub(crate) enum Stop {
    Core(Error),
    /// An argument that cannot be.
    Argument(&'static str),
    TooSmall,
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Core(error)
    }
}

/// What a call here gives inside.
pub(crate) type Outcome<T = ()> = Result<T, Stop>;

fn code(error: &Error) -> Code {
    match error {
        Error::NotFound => Code::NotFound,
        Error::Exists => Code::Exists,
        Error::NotDirectory => Code::NotDirectory,
        Error::IsDirectory => Code::IsDirectory,
        Error::NotEmpty => Code::NotEmpty,
        Error::Invalid(_) => Code::Invalid,
        Error::NameTooLong => Code::NameTooLong,
        Error::ReadOnly => Code::ReadOnly,
        Error::NoSpace => Code::NoSpace,
        Error::NotPermitted => Code::NotPermitted,
        Error::NoAttribute => Code::NoAttribute,
        Error::FileTooLarge => Code::FileTooLarge,
        Error::NoData => Code::NoData,
        Error::TooManyLinks => Code::TooManyLinks,
        Error::Busy(_) => Code::Busy,
        Error::Stale => Code::Stale,
        Error::Unsupported => Code::Unsupported,
        Error::DataLoss { .. } | Error::LostBelow => Code::DataLoss,
        Error::Corrupt(_) => Code::Corrupt,
        Error::NewerFormat { .. } => Code::NewerFormat,
        Error::OtherLower => Code::OtherLower,
        Error::Io { .. } | Error::Below { .. } => Code::Io,
    }
}

/// A sentence for a code, UTF-8, ended by a NUL, there for as long as the program; null for a number that is no code.
#[unsafe(no_mangle)]
pub extern "C" fn agentfs_code_text(code: i32) -> *const c_char {
    const TEXTS: [&CStr; 25] = [
        c"done",
        c"not found",
        c"already exists",
        c"not a directory",
        c"is a directory",
        c"directory not empty",
        c"invalid argument",
        c"name too long",
        c"read-only",
        c"no space left",
        c"operation not permitted",
        c"no such attribute",
        c"file too large",
        c"no data there",
        c"too many links",
        c"busy",
        c"stale inode number",
        c"not supported",
        c"changed below since the base was taken",
        c"the store is damaged",
        c"the store was written by a newer version",
        c"the lower directory is not the one that the store was made for",
        c"the system said no",
        c"the buffer is too small",
        c"a fault in AgentFS",
    ];
    let text = usize::try_from(code).ok().and_then(|code| TEXTS.get(code));
    text.map_or(std::ptr::null(), |text| text.as_ptr())
}

/// Runs one call and says what it came to. No panic leaves here: unwinding into C is undefined.
///
/// # Safety
///
/// `failure` is null or can be written.
pub(crate) unsafe fn call(failure: *mut Failure, work: impl FnOnce() -> Outcome) -> i32 {
    // What the work holds is a handle that outlives it; the core leaves everything whole when it panics (`ah_agentfs::lock`).
    let outcome = catch_unwind(AssertUnwindSafe(work));
    // SAFETY: the caller's promise.
    let tell = |code: Code, system: i32, message: &dyn Display| unsafe { tell(failure, code, system, message) };
    match outcome {
        Ok(Ok(())) => tell(Code::Ok, 0, &""),
        Ok(Err(Stop::Core(error))) => tell(code(&error), error.errno(), &Causes(&error)),
        Ok(Err(Stop::Argument(what))) => tell(Code::Invalid, Error::Invalid("").errno(), &what),
        Ok(Err(Stop::TooSmall)) => tell(Code::TooSmall, RANGE, &"the buffer is too small"),
        Err(_) => tell(Code::Internal, Error::Corrupt(String::new()).errno(), &"a fault in AgentFS"),
    }
}

/// ERANGE: 34 on Linux, macOS and the BSDs, and in Windows' C library.
const RANGE: i32 = 34;

/// An error with its causes, on one line.
struct Causes<'a>(&'a Error);

impl Display for Causes<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}", self.0)?;
        let mut cause = std::error::Error::source(self.0);
        while let Some(error) = cause {
            write!(out, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

/// # Safety
///
/// As of [`call`].
unsafe fn tell(failure: *mut Failure, code: Code, system: i32, message: &dyn Display) -> i32 {
    if !failure.is_null() {
        let text = message.to_string();
        let mut message = [0; 248];
        let fits = |&end: &usize| text.is_char_boundary(end);
        let end = (0..=text.len().min(message.len() - 1)).rev().find(fits).unwrap_or(0);
        // A NUL within would end it early.
        let bytes = text.as_bytes()[..end].iter().map(|&byte| if byte == 0 { b'?' } else { byte });
        message.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte as c_char);
        // SAFETY: not null, and the caller's promise; what was there before is not looked at.
        unsafe { failure.write(Failure { code: code as i32, system, message }) };
    }
    code as i32
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn blank() -> Failure {
        Failure { code: 99, system: 99, message: [1; 248] }
    }

    fn message(failure: &Failure) -> &str {
        // SAFETY: `tell` ends it with a NUL.
        unsafe { CStr::from_ptr(failure.message.as_ptr()) }.to_str().unwrap()
    }

    #[test]
    fn a_panic_ends_at_the_door() {
        let mut failure = blank();
        // SAFETY: the failure is a local one.
        let code = unsafe { call(&raw mut failure, || panic!("on purpose")) };
        assert_eq!((code, failure.code), (Code::Internal as i32, Code::Internal as i32));
        assert_ne!(failure.system, 0);
        assert_eq!(message(&failure), "a fault in AgentFS");
        // SAFETY: null is allowed.
        assert_eq!(unsafe { call(std::ptr::null_mut(), || panic!("on purpose")) }, Code::Internal as i32);
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let mut failure = blank();
        let path = "ä".repeat(500);
        // SAFETY: the failure is a local one.
        unsafe { call(&raw mut failure, || Err(Error::DataLoss { path, what: "changed\0" }.into())) };
        assert_eq!(failure.code, Code::DataLoss as i32);
        assert!(
            message(&failure).starts_with("changed?: ää") && message(&failure).len() >= 246,
            "{}",
            message(&failure)
        );
    }

    #[test]
    fn causes_are_in_the_message_and_the_system_s_number_beside_it() {
        let mut failure = blank();
        let source = std::io::Error::from_raw_os_error(13);
        // SAFETY: the failure is a local one.
        unsafe { call(&raw mut failure, || Err(Error::Io { what: "opening the store", source }.into())) };
        assert_eq!((failure.code, failure.system), (Code::Io as i32, 13));
        assert!(message(&failure).starts_with("opening the store: "), "{}", message(&failure));
    }

    #[test]
    fn every_code_has_a_text_and_no_other_number() {
        for code in 0..=Code::Internal as i32 {
            assert!(!agentfs_code_text(code).is_null(), "{code}");
        }
        for code in [-1, Code::Internal as i32 + 1, i32::MIN, i32::MAX] {
            assert!(agentfs_code_text(code).is_null(), "{code}");
        }
    }
}
