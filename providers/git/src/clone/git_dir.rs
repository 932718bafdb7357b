//! Making the `.git` of a clone: HEAD, its branch, configuration, excludes, index. Objects come from the store's keep.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ah_plugin_api::{Context, RepositoryState, Result};
use ah_repository::write::{make_dir, put, put_head, put_refs, put_settings};
use ah_repository::{Repository, progress};
use gix::ObjectId;
use gix::objs::{Kind, TreeRefIter};

use super::index::{Files, adapt};
use crate::store::Store;
use crate::tree::{Head, Reader, damaged, expect};

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
    let refs_dir = make_dir(git.as_fd(), "refs")?;
    make_dir(refs_dir.as_fd(), "heads")?;
    make_dir(refs_dir.as_fd(), "tags")?;
    if let Some(shallow) = store.populate(kept, objects.as_fd(), cx)? {
        put(git.as_fd(), "shallow", &shallow)?;
    }

    if theirs.is_none() {
        notes.push(
            "the workspace's repository is not there any more: its settings and remotes were not taken along"
                .to_owned(),
        );
    }
    notes.extend(put_settings(git.as_fd(), theirs)?);
    let mut refs = Vec::new();
    if let Some(id) = &head.refs {
        expect(store, id, Kind::Blob, &mut refs, cx)?;
    }
    let refs = head.refs.map(|_| &*refs);
    put_head(git.as_fd(), state, refs)?;
    notes.extend(put_refs(git.as_fd(), refs)?);
    notes.extend(index(store, head, (clone, git.as_fd()), &[objects], cx)?);
    if let Some(id) = &head.progress {
        notes.extend(put_progress(store, id, git.as_fd(), cx)?);
    }
    Ok(notes)
}

/// Writes what was in progress, and says what of it does not come along.
fn put_progress(store: &Store, id: &ObjectId, git: BorrowedFd<'_>, cx: &Context<'_>) -> Result<Vec<String>> {
    let (mut tree, mut text, mut notes) = (Vec::new(), Vec::new(), Vec::new());
    expect(store, id, Kind::Tree, &mut tree, cx)?;
    for entry in TreeRefIter::from_bytes(&tree, gix::hash::Kind::Sha1) {
        let entry = entry.map_err(|_| damaged("what was in progress in the repository cannot be read".to_owned()))?;
        if let Some(name) = progress::is_taken(entry.filename) {
            expect(store, &entry.oid.to_owned(), Kind::Blob, &mut text, cx)?;
            put(git, name, &text)?;
        } else if let Some(what) = progress::what_is_left(entry.filename) {
            notes.push(format!(
                "{what} was in progress: the clone has its files, HEAD and index, but cannot continue or abort it"
            ));
        }
    }
    Ok(notes)
}

fn index(
    store: &Store,
    head: &Head,
    (clone, git): (BorrowedFd<'_>, BorrowedFd<'_>),
    objects: &[OwnedFd],
    cx: &Context<'_>,
) -> Result<Option<String>> {
    let Some(id) = &head.index else { return Ok(None) };
    let mut data = Vec::new();
    expect(store, id, Kind::Blob, &mut data, cx)?;
    let written = head.manifest.index_written;
    let mut files = Files { reader: Reader::new(store, cx), root: head.root, clone, objects, written };
    match adapt(data, &mut files)? {
        Ok(adapted) => put(git, "index", &adapted).map(|()| None),
        Err(bad) => {
            Ok(Some(format!("the index was not taken along: {bad}; `git reset` in the clone makes one from HEAD")))
        }
    }
}
