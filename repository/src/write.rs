//! Writing the files of a `.git` that is being made.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ah_plugin_api::{Error, RepositoryState, Result, text};
use rustix::fs::{Mode, OFlags};

use crate::refs::Target;
use crate::repository::{CONFIG_LIMIT, Repository};
use crate::{config, ignores_case};

/// Writes the configuration of a repository's that comes along, and what `info` has beside it; `theirs` is none if the repository is gone. Gives notes for a
/// person.
///
/// # Errors
/// Those of the system.
pub fn put_settings(git: BorrowedFd<'_>, theirs: Option<&Repository>) -> Result<Vec<String>> {
    let info = make_dir(git, "info")?;
    let mut texts = Vec::new();
    if let Some(theirs) = theirs {
        texts = theirs.configs(CONFIG_LIMIT)?;
        for name in ["exclude", "attributes"] {
            if let Some(text) = theirs.common_file(&format!("info/{name}"), CONFIG_LIMIT)? {
                put(info.as_fd(), name, &text)?;
            }
        }
        if let Some(text) = theirs.own_file("info/sparse-checkout", CONFIG_LIMIT)? {
            put(info.as_fd(), "sparse-checkout", &text)?;
        }
    }
    let config = config(&texts, ignores_case(git));
    put(git, "config", &config.text)?;
    Ok(config.notes)
}

/// Git follows no longer chains of symbolic refs.
const DEEPEST_REF: usize = 5;

/// Writes HEAD, and the branch that it is on: where that is one of the `recorded` symbolic refs, which [`put_refs`] writes, the one that it leads to.
///
/// # Errors
/// Those of the system.
pub fn put_head(git: BorrowedFd<'_>, state: &RepositoryState, recorded: Option<&[u8]>) -> Result<()> {
    let text = match (state.branch_name().filter(|branch| is_ref(branch)), state.head.as_deref()) {
        (Some(branch), commit) => {
            if let (Some(commit), Some(end)) = (commit, end_of(&branch, recorded)) {
                put_ref(git, &end, commit.as_bytes())?;
            }
            [b"ref: ", branch.as_slice(), b"\n"].concat()
        }
        (None, Some(commit)) => format!("{commit}\n").into_bytes(),
        (None, None) => b"ref: refs/heads/main\n".to_vec(),
    };
    put(git, "HEAD", &text)
}

/// The ref at the end of the symbolic ones that `branch` is the first of, if it is one; none if they have no end.
fn end_of(branch: &[u8], recorded: Option<&[u8]>) -> Option<Vec<u8>> {
    let leads_to = |name: &[u8]| {
        crate::refs::parse(recorded.unwrap_or_default()).find_map(|(found, target)| match target {
            Target::Ref(target) if found == name => Some(target),
            _ => None,
        })
    };
    let mut name = branch.to_owned();
    for _ in 0..DEEPEST_REF {
        let Some(next) = leads_to(&name) else { return Some(name) };
        name = next;
    }
    None
}

/// Whether this can be the name of a ref, and of a path that stays below `refs/`.
fn is_ref(name: &[u8]) -> bool {
    name.starts_with(b"refs/") && gix::validate::reference::name(name.into()).is_ok()
}

/// Writes the recorded refs: those of objects together, as Git packs them, symbolic ones each in its file. Gives a note for a person if there are
/// none on record.
///
/// # Errors
/// Those of the system.
pub fn put_refs(git: BorrowedFd<'_>, recorded: Option<&[u8]>) -> Result<Option<String>> {
    let Some(recorded) = recorded else {
        let note = "of the repository's branches, tags and remote-tracking refs only the branch that HEAD is on was taken \
                    along: there are too many, or they could not be read";
        return Ok(Some(note.to_owned()));
    };
    let mut packed = b"# pack-refs with: sorted \n".to_vec();
    for (name, target) in crate::refs::parse(recorded) {
        match target {
            Target::Object(id) => packed.extend([id.to_string().as_bytes(), b" ", &name, b"\n"].concat()),
            Target::Ref(target) => put_ref(git, &name, &[b"ref: ", target.as_slice()].concat())?,
        }
    }
    put(git, "packed-refs", &packed).map(|()| None)
}

fn put_ref(git: BorrowedFd<'_>, name: &[u8], value: &[u8]) -> Result<()> {
    let mut parts = name.split(|&byte| byte == b'/');
    let file = parts.next_back().unwrap_or_default();
    let mut at: Option<OwnedFd> = None;
    for dir in parts.filter(|dir| !dir.is_empty()) {
        at = Some(make_dir(at.as_ref().map_or(git, |fd| fd.as_fd()), dir)?);
    }
    put(at.as_ref().map_or(git, |fd| fd.as_fd()), file, &[value, b"\n"].concat())
}

/// Makes a directory, or opens the one that is there.
///
/// # Errors
/// Those of the system.
pub fn make_dir(parent: BorrowedFd<'_>, name: impl AsRef<[u8]>) -> Result<OwnedFd> {
    let name = name.as_ref();
    match rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(e) => return Err(failed(name, e)),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty()).map_err(|e| failed(name, e))
}

/// Writes a file that is not there yet.
///
/// # Errors
/// Those of the system; `AlreadyExists` if it is there.
pub fn put(dir: BorrowedFd<'_>, name: impl AsRef<[u8]>, data: &[u8]) -> Result<()> {
    let name = name.as_ref();
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, name, flags, Mode::from_raw_mode(0o644)).map_err(|e| failed(name, e))?;
    File::from(file).write_all(data).map_err(|e| Error::from_io(doing(name), &e))
}

fn failed(name: &[u8], e: rustix::io::Errno) -> Error {
    Error::from_io(doing(name), &e.into())
}

fn doing(name: &[u8]) -> String {
    format!("cannot make {} in the clone's .git", text::path(name))
}

#[cfg(test)]
mod tests {
    use super::is_ref;

    #[test]
    fn no_ref_leads_out() {
        assert!(is_ref(b"refs/heads/main") && is_ref(b"refs/heads/a/b") && is_ref(b"refs/heads/caf\xe9"));
        for bad in [
            "refs/heads/../../x",
            "refs/heads/.x",
            "HEAD",
            "/refs/heads/x",
            "refs/heads/x.lock",
            "refs//x",
            "refs/heads/",
        ] {
            assert!(!is_ref(bad.as_bytes()), "{bad}");
        }
    }
}
