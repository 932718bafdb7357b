//! Making the `.git` of a clone: HEAD, its branch, configuration, excludes, index. Objects come from the store's keep.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ah_plugin_api::{Context, Error, RepositoryState, Result};
use gix::ObjectId;
use gix::objs::{Kind, TreeRefIter};
use rustix::fs::{Mode, OFlags};

use super::config::config;
use super::index::{Files, adapt};
use crate::repository::Repository;
use crate::repository::progress;
use crate::repository::refs::{self, Target};
use crate::store::{Store, write_all};
use crate::tree::{Head, Reader, damaged, expect};

/// Files of the user's repository larger than this are not taken for what they should be.
const LIMIT: u64 = 16 << 20;

/// Makes `.git` in the open directory `clone`, all files of which are in place. Gives notes for a person.
///
/// `theirs` is the user's repository as it is now, for what a snapshot does not record; none if it is gone.
pub(super) fn make(
    store: &Store,
    head: &Head,
    (state, kept): (&RepositoryState, &ObjectId),
    clone: BorrowedFd<'_>,
    theirs: Option<&Repository>,
    cx: &Context<'_>,
) -> Result<Vec<String>> {
    let mut notes = Vec::new();
    let git = make_dir(clone, ".git")?;
    let objects = make_dir(git.as_fd(), "objects")?;
    let info = make_dir(git.as_fd(), "info")?;
    let refs_dir = make_dir(git.as_fd(), "refs")?;
    make_dir(refs_dir.as_fd(), "heads")?;
    make_dir(refs_dir.as_fd(), "tags")?;
    if let Some(shallow) = store.populate(kept, objects.as_fd(), cx)? {
        put(git.as_fd(), "shallow", &shallow)?;
    }

    let mut texts = Vec::new();
    match theirs {
        Some(theirs) => {
            texts.extend(theirs.common_file("config", LIMIT)?);
            for name in ["exclude", "attributes", "sparse-checkout"] {
                if let Some(text) = theirs.common_file(&format!("info/{name}"), LIMIT)? {
                    put(info.as_fd(), name, &text)?;
                }
            }
        }
        None => notes.push(
            "the workspace's repository is not there any more: its settings and remotes were not taken along"
                .to_owned(),
        ),
    }
    // As Git itself finds out.
    let ignores_case = rustix::fs::statat(&git, "rEfS", rustix::fs::AtFlags::empty()).is_ok();
    let config = config(&texts, ignores_case);
    put(git.as_fd(), "config", &config.text)?;
    notes.extend(config.notes);

    let head_text = match (state.branch.as_deref().filter(|branch| is_ref(branch)), state.head.as_deref()) {
        (Some(branch), commit) => {
            if let Some(commit) = commit {
                put_ref(git.as_fd(), branch, commit)?;
            }
            format!("ref: {branch}\n")
        }
        (None, Some(commit)) => format!("{commit}\n"),
        (None, None) => "ref: refs/heads/main\n".to_owned(),
    };
    put(git.as_fd(), "HEAD", head_text.as_bytes())?;
    if let Some(id) = &head.refs {
        let mut text = Vec::new();
        expect(store, id, Kind::Blob, &mut text)?;
        put_refs(git.as_fd(), &text)?;
    }
    notes.extend(index(store, head, clone, git.as_fd())?);
    if let Some(id) = &head.progress {
        notes.extend(put_progress(store, id, git.as_fd())?);
    }
    Ok(notes)
}

/// Writes what was in progress, and says what of it does not come along.
fn put_progress(store: &Store, id: &ObjectId, git: BorrowedFd<'_>) -> Result<Vec<String>> {
    let (mut tree, mut text, mut notes) = (Vec::new(), Vec::new(), Vec::new());
    expect(store, id, Kind::Tree, &mut tree)?;
    for entry in TreeRefIter::from_bytes(&tree, gix::hash::Kind::Sha1) {
        let entry = entry.map_err(|_| damaged("what was in progress in the repository cannot be read".to_owned()))?;
        if let Some(name) = progress::is_taken(entry.filename) {
            expect(store, &entry.oid.to_owned(), Kind::Blob, &mut text)?;
            put(git, name, &text)?;
        } else if let Some(what) = progress::what_is_left(entry.filename) {
            notes.push(format!(
                "{what} was in progress: the clone has its files, HEAD and index, but cannot continue or abort it"
            ));
        }
    }
    Ok(notes)
}

fn index(store: &Store, head: &Head, clone: BorrowedFd<'_>, git: BorrowedFd<'_>) -> Result<Option<String>> {
    let Some(id) = &head.index else { return Ok(None) };
    let mut data = Vec::new();
    expect(store, id, Kind::Blob, &mut data)?;
    let mut files = Files { reader: Reader::new(store), root: head.root, clone, written: head.manifest.index_written };
    match adapt(data, &mut files)? {
        Ok(adapted) => put(git, "index", &adapted).map(|()| None),
        Err(bad) => {
            Ok(Some(format!("the index was not taken along: {bad}; `git reset` in the clone makes one from HEAD")))
        }
    }
}

/// Whether this can be the name of a ref, and of a path that stays below `refs/`.
fn is_ref(name: &str) -> bool {
    name.starts_with("refs/") && gix::validate::reference::name(name.into()).is_ok()
}

/// Writes the recorded refs: those of objects together, as Git packs them, symbolic ones each in its file.
fn put_refs(git: BorrowedFd<'_>, recorded: &[u8]) -> Result<()> {
    let mut packed = b"# pack-refs with: sorted \n".to_vec();
    for (name, target) in refs::parse(recorded) {
        match target {
            Target::Object(id) => packed.extend_from_slice(format!("{id} {name}\n").as_bytes()),
            Target::Ref(target) => put_ref(git, &name, &format!("ref: {target}"))?,
        }
    }
    put(git, "packed-refs", &packed)
}

fn put_ref(git: BorrowedFd<'_>, name: &str, value: &str) -> Result<()> {
    let (dirs, file) = name.rsplit_once('/').unwrap_or(("", name));
    let mut at: Option<OwnedFd> = None;
    for dir in dirs.split('/').filter(|dir| !dir.is_empty()) {
        at = Some(make_dir(at.as_ref().map_or(git, |fd| fd.as_fd()), dir)?);
    }
    put(at.as_ref().map_or(git, |fd| fd.as_fd()), file, format!("{value}\n").as_bytes())
}

/// Makes a directory, or opens the one that is there.
fn make_dir(parent: BorrowedFd<'_>, name: &str) -> Result<OwnedFd> {
    match rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(e) => return Err(failed(name, e)),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty()).map_err(|e| failed(name, e))
}

fn put(dir: BorrowedFd<'_>, name: &str, data: &[u8]) -> Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, name, flags, Mode::from_raw_mode(0o644)).map_err(|e| failed(name, e))?;
    write_all(file.as_fd(), data).map_err(|e| failed(name, e))
}

fn failed(name: &str, e: rustix::io::Errno) -> Error {
    Error::from_io(format!("cannot make {name:?} in the clone's .git"), &e.into())
}

#[cfg(test)]
mod tests {
    use super::is_ref;

    #[test]
    fn no_ref_leads_out() {
        assert!(is_ref("refs/heads/main") && is_ref("refs/heads/a/b"));
        for bad in [
            "refs/heads/../../x",
            "refs/heads/.x",
            "HEAD",
            "/refs/heads/x",
            "refs/heads/x.lock",
            "refs//x",
            "refs/heads/",
        ] {
            assert!(!is_ref(bad), "{bad}");
        }
    }
}
