//! The root commit that first parents lead to from HEAD. Walked to once in the life of a repository; from then on `keep/first` knows.

use std::os::fd::AsFd;

use ah_plugin_api::{Context, Error, ErrorKind, Result};
use gix::ObjectId;
use gix::objs::CommitRefIter;
use serde::{Deserialize, Serialize};

use super::objects::Objects;
use crate::made::Identity;
use crate::store::{Store, files};
use ah_repository::Repository;

const FILE: &str = "first";
/// Longer histories have no first commit that anyone would wait for.
const STEPS: u64 = 1 << 20;

/// What was found.
#[derive(Debug, Serialize, Deserialize)]
struct Known {
    /// The repository's objects folder.
    repository: Identity,
    /// From where.
    head: String,
    /// None: there is no way there from that HEAD.
    commit: Option<String>,
}

/// See [`Store::first_commit`].
pub(in crate::store) fn first_commit(
    store: &Store,
    repository: &Repository,
    cx: &Context<'_>,
) -> Result<Option<String>> {
    let (Some(head), Some(objects)) = (&repository.state.head, repository.objects.first()) else { return Ok(None) };
    let Some(start) = ObjectId::from_hex(head.as_bytes()).ok().filter(|_| repository.shallow.is_empty()) else {
        return Ok(None);
    };
    let identity = Identity::of(objects)?;
    let keep = &store.folders.keep;
    let known = files::read_file(keep, FILE, 4096).ok().flatten();
    if let Some(known) = known.and_then(|text| serde_json::from_slice::<Known>(&text).ok())
        && known.repository.is(&identity)
        && (known.commit.is_some() || known.head == *head)
    {
        return Ok(known.commit);
    }
    let commit = walk(&mut Objects::open(&repository.objects), start, cx)?.map(|id| id.to_string());
    let known = Known { repository: identity, head: head.clone(), commit };
    let text = serde_json::to_vec(&known)
        .map_err(|e| Error::new(ErrorKind::Internal, "cannot note the first commit").with_cause(&e))?;
    files::put(store.folders.tmp.as_fd(), keep.as_fd(), FILE, &text, 0o600, false)?;
    Ok(known.commit)
}

/// From a commit along first parents; none if one of them is not there.
fn walk(objects: &mut Objects<'_>, mut at: ObjectId, cx: &Context<'_>) -> Result<Option<ObjectId>> {
    let mut data = Vec::new();
    for step in 0..STEPS {
        if step % 256 == 0 {
            cx.check_cancelled()?;
            cx.progress("looking for the first commit", step, None);
        }
        if objects.commit(&at, &mut data).is_none() {
            return Ok(None);
        }
        match CommitRefIter::from_bytes(&data, gix::hash::Kind::Sha1).parent_ids().next() {
            Some(parent) => at = parent,
            None => return Ok(Some(at)),
        }
    }
    Ok(None)
}
