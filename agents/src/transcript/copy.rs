//! Writing a copy of a transcript, line by line, and making sure first that the place is still where it was.
//!
//! Not here: which lines stay and what is changed in them (each agent's `plan` and `edit`).

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

use ah_plugin_api::{Error, ErrorKind, Result, Timestamp};

use super::line::{Lines, rewritten};
use super::{Position, catch, tail};
use crate::Agent;
use crate::files::rename_new;

/// Where reading ends.
pub(super) enum Until {
    /// At this byte, which begins a line.
    Offset(u64, std::path::PathBuf),
    /// With the last line made by this time.
    Time(Timestamp),
    /// With the file.
    End,
}

impl Until {
    /// Whether the byte `offset`, at which a line begins, is the end.
    pub(super) fn reached(&self, offset: u64) -> Result<bool> {
        match self {
            Self::Offset(end, _) if offset == *end => Ok(true),
            Self::Offset(end, file) if offset > *end => Err(rewritten(file)),
            _ => Ok(false),
        }
    }

    /// Whether a line made at `time` is behind the end.
    pub(super) fn is_before(&self, time: Option<Timestamp>) -> bool {
        matches!((self, time), (Self::Time(end), Some(time)) if time > *end)
    }
}

/// What becomes of a line.
pub(super) enum Edit {
    /// It is left out.
    Drop,
    /// It stays as it is.
    Keep,
    /// It stays with these bytes replaced, in order and apart.
    Splice(Vec<(std::ops::Range<usize>, String)>),
}

impl Edit {
    /// Replaces `part`, a piece of `line`, by `with`.
    pub(super) fn replace(self, line: &[u8], part: &str, with: String) -> Self {
        let start = (part.as_ptr() as usize).wrapping_sub(line.as_ptr() as usize);
        let range = start..start.wrapping_add(part.len());
        if line.get(range.clone()) != Some(part.as_bytes()) {
            // A piece of something else: it was decoded, not borrowed, which a value as written never is.
            return self;
        }
        let mut parts = match self {
            Self::Drop => return Self::Drop,
            Self::Keep => Vec::new(),
            Self::Splice(parts) => parts,
        };
        parts.push((range, with));
        parts.sort_by_key(|(range, _)| range.start);
        Self::Splice(parts)
    }
}

/// What [`write`] did.
pub(super) struct Counts {
    pub(super) lines: u64,
    pub(super) dropped: u64,
}

/// The place in the file as it is now: `at` itself, or where its id is now if the file was rewritten.
pub(super) fn settled(agent: Agent, at: &Position) -> Result<Position> {
    if tail::is_boundary(&at.file, at.offset)? {
        let uuid = tail::upto(&at.file, at.offset)?.last_that(|line| catch::look(agent, line).uuid)?;
        if at.uuid.is_none() || uuid == at.uuid {
            return Ok(at.clone());
        }
    }
    let Some(wanted) = &at.uuid else { return Err(rewritten(&at.file)) };
    let mut lines = Lines::open(&at.file, None)?;
    while let Some(line) = lines.next()? {
        if catch::look(agent, line).uuid.as_ref() == Some(wanted) {
            return Ok(lines.position(Some(wanted.clone())));
        }
    }
    Err(rewritten(&at.file))
}

/// Refuses a session that exists.
pub(super) fn refuse_existing(file: &Path) -> Result<()> {
    if std::fs::symlink_metadata(file).is_ok() {
        return Err(exists(file));
    }
    Ok(())
}

/// There is nothing to go on with.
pub(super) fn nothing_said(at: &Position) -> Error {
    let message = format!(
        "nothing was said in {} before that place, so there is no conversation to go on with",
        at.file.display()
    );
    Error::new(ErrorKind::FailedPrecondition, message).with_hint("start the agent afresh in the branch")
}

/// Writes the lines of `at.file` up to `at` to `target`, each as `edit` says. `target` comes into being whole or not at all, and is on disk then.
pub(super) fn write(at: &Position, target: &Path, mut edit: impl FnMut(u64, &[u8]) -> Edit) -> Result<Counts> {
    let fail = |error: std::io::Error| Error::from_io(format!("cannot write {}", target.display()), &error);
    let (Some(dir), Some(name)) = (target.parent(), target.file_name()) else {
        return Err(Error::new(ErrorKind::InvalidArgument, format!("{} is not a place for a file", target.display())));
    };
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(fail)?;
    let mut hidden = std::ffi::OsString::from(".ah-");
    hidden.push(name);
    let temp = dir.join(hidden);
    let counts = (|| {
        let file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&temp).map_err(fail)?;
        let mut out = BufWriter::with_capacity(1 << 20, file);
        let mut lines = Lines::open(&at.file, None)?;
        let mut counts = Counts { lines: 0, dropped: 0 };
        while lines.offset < at.offset {
            let number = lines.line + 1;
            // The file became shorter while it was read.
            let Some(line) = lines.next()? else { return Err(rewritten(&at.file)) };
            match edit(number, line) {
                Edit::Drop => {
                    counts.dropped += 1;
                    continue;
                }
                Edit::Keep => out.write_all(line).map_err(fail)?,
                Edit::Splice(parts) => {
                    let mut done = 0;
                    for (range, with) in parts {
                        out.write_all(&line[done..range.start]).map_err(fail)?;
                        out.write_all(with.as_bytes()).map_err(fail)?;
                        done = range.end;
                    }
                    out.write_all(&line[done..]).map_err(fail)?;
                }
            }
            counts.lines += 1;
        }
        // It is another file than the one in which the place was found.
        if lines.offset != at.offset {
            return Err(rewritten(&at.file));
        }
        let file = out.into_inner().map_err(|error| fail(error.into_error()))?;
        file.sync_all().map_err(fail)?;
        rename_new(&temp, target).map_err(|error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => exists(target),
            _ => fail(error),
        })?;
        File::open(dir).and_then(|dir| dir.sync_all()).map_err(fail)?;
        Ok(counts)
    })();
    if counts.is_err() {
        // What is left otherwise is a hidden file that the agent does not look at.
        let _ = std::fs::remove_file(&temp);
    }
    counts
}

fn exists(file: &Path) -> Error {
    Error::new(ErrorKind::AlreadyExists, format!("the session {} exists", file.display()))
        .with_hint("repeat: another id is taken each time")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_is_within_a_line_is_of_another_file() {
        let dir = tempfile::tempdir().unwrap();
        let (file, target) = (dir.path().join("from"), dir.path().join("to"));
        std::fs::write(&file, "{}\n{\"a\": 1}\n").unwrap();
        let at = |offset| Position { file: file.clone(), line: 1, offset, uuid: None };
        let wrong = write(&at(5), &target, |_, _| Edit::Keep).err().unwrap();
        assert_eq!((wrong.kind, target.exists()), (ErrorKind::Conflict, false));
        assert_eq!(write(&at(3), &target, |_, _| Edit::Keep).unwrap().lines, 1);
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "{}\n");
    }
}
