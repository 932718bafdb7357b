//! Why a program cannot be run, in words: the system says the same of one that is not there and of one whose interpreter is not.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use ah_plugin_api::{Error, ErrorKind, Result};
use rustix::fs::{Access, AtFlags, CWD};
use rustix::io::Errno;

use crate::text;

/// So much of a script's first line the kernel looks at.
const FIRST_LINE: usize = 256;
/// Where the C library looks for programs without `$PATH`.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// What is to be said of a program that could not be run in the directory where this process is. `NotFound` if there is none of that name.
#[must_use]
pub fn cannot_run(program: &OsStr, error: &io::Error) -> Error {
    let shown = Path::new(program).display();
    // The system says of a folder of the path that may not be looked into what it says of a program that may not be run. As to a shell, what is in no other is not there.
    let nowhere = error.kind() == io::ErrorKind::PermissionDenied && !has_place(program) && find(program).is_none();
    let error = if nowhere { &Errno::NOENT.into() } else { error };
    let mut failed = Error::from_io(format!("cannot run {shown}"), error);
    if !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) {
        return failed;
    }
    if let Some(file) = find(program) {
        failed.kind = ErrorKind::FailedPrecondition;
        let file_shown = text::shell(file.as_os_str());
        let (named, hint) = match interpreter(&file) {
            // Quoted: often it ends in a return that one does not see.
            Some(named) => (format!(" {named:?}"), format!("install it, or mend the first line of {file_shown}")),
            None => (String::new(), format!("`file {file_shown}` tells which that is")),
        };
        failed.message = format!("cannot run {shown}: it is there, but its interpreter{named} probably is not");
        return failed.with_hint(hint);
    }
    failed.kind = ErrorKind::NotFound;
    let mut above = Path::new(program).components().as_path().ancestors();
    if let Some(file) = above.find(|above| above.metadata().is_ok_and(|found| !found.is_dir())) {
        failed.message = format!("cannot run {shown}: {} is no directory", file.display());
    }
    failed
}

/// Looks for a program without running it.
///
/// # Errors
/// As [`cannot_run`], if it is sure that it cannot be run in the directory where this process is: there is none of that name, or only what may not be run.
pub fn look_for(program: &OsStr) -> Result<()> {
    let may_run = |file: &PathBuf| {
        let asked = rustix::fs::accessat(CWD, file, Access::EXEC_OK, AtFlags::EACCESS);
        file.is_file() && asked != Err(Errno::ACCESS)
    };
    if places(program).iter().any(may_run) {
        return Ok(());
    }
    let missing = if has_place(program) { std::fs::metadata(program).err() } else { None };
    Err(cannot_run(program, &missing.unwrap_or_else(|| Errno::ACCESS.into())))
}

/// The file that is run under that name.
fn find(program: &OsStr) -> Option<PathBuf> {
    places(program).into_iter().find(|file| file.is_file())
}

/// Where a program may be.
fn places(program: &OsStr) -> Vec<PathBuf> {
    if has_place(program) {
        return vec![PathBuf::from(program)];
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
    std::env::split_paths(&path).map(|folder| folder.join(program)).collect()
}

/// Whether a program is named by where it is, and not looked for.
fn has_place(program: &OsStr) -> bool {
    program.as_encoded_bytes().contains(&b'/')
}

/// The interpreter that a script's first line names.
fn interpreter(file: &Path) -> Option<String> {
    let mut start = Vec::new();
    File::open(file).and_then(|file| file.take(FIRST_LINE as u64).read_to_end(&mut start)).ok()?;
    let line = start.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let named = line.trim_ascii_start().split(|byte| matches!(byte, b' ' | b'\t')).next()?;
    Some(String::from_utf8_lossy(named).into_owned())
}
