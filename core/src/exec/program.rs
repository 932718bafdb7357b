//! Why a program cannot be run, in words: the system says the same of one that is not there and of one whose interpreter is not.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use ah_plugin_api::{Error, ErrorKind};

use crate::text;

/// So much of a script's first line the kernel looks at.
const FIRST_LINE: usize = 256;

/// What is to be said of a program that could not be run in the directory where this process is. `NotFound` if there is none of that name.
#[must_use]
pub fn cannot_run(program: &OsStr, error: &io::Error) -> Error {
    let shown = Path::new(program).display();
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

/// The file that is run under that name.
fn find(program: &OsStr) -> Option<PathBuf> {
    if program.as_encoded_bytes().contains(&b'/') {
        return Some(PathBuf::from(program)).filter(|file| file.is_file());
    }
    std::env::split_paths(&std::env::var_os("PATH")?).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// The interpreter that a script's first line names.
fn interpreter(file: &Path) -> Option<String> {
    let mut start = Vec::new();
    File::open(file).and_then(|file| file.take(FIRST_LINE as u64).read_to_end(&mut start)).ok()?;
    let line = start.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let named = line.trim_ascii_start().split(|byte| matches!(byte, b' ' | b'\t')).next()?;
    Some(String::from_utf8_lossy(named).into_owned())
}
