//! The root commit that first parents lead to from HEAD. Walked to once in the life of a repository; from then on `keep/first` knows.

use std::os::fd::{AsFd, OwnedFd};

use ah_plugin_api::{Context, Error, ErrorKind, Result};
use gix::ObjectId;
use gix::objs::{CommitRefIter, Kind};
use serde::{Deserialize, Serialize};

use crate::made::Identity;
use crate::store::files;
use crate::store::pack::{Bases, Pack, Scratch};
use crate::store::{Store, hash, loose};
use ah_repository::Repository;

const FILE: &str = "first";
/// Longer histories have no first commit that anyone would wait for.
const STEPS: u64 = 1 << 20;
/// A commit of more bytes is none that Git made.
const LARGEST: u64 = 4 << 20;

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
    let Some(start) = ObjectId::from_hex(head.as_bytes()).ok().filter(|_| repository.shallow.is_none()) else {
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
    let commit = Objects::open(&repository.objects).walk(start, cx)?.map(|id| id.to_string());
    let known = Known { repository: identity, head: head.clone(), commit };
    let text = serde_json::to_vec(&known)
        .map_err(|e| Error::new(ErrorKind::Internal, "cannot note the first commit").with_cause(&e))?;
    files::put(store.folders.tmp.as_fd(), keep.as_fd(), FILE, &text, 0o600, false)?;
    Ok(known.commit)
}

/// The user's objects.
struct Objects<'a> {
    folders: &'a [OwnedFd],
    /// The one first in which an object was found last.
    packs: Vec<Pack>,
    scratch: Scratch,
    bases: Bases,
}

impl<'a> Objects<'a> {
    fn open(folders: &'a [OwnedFd]) -> Self {
        let mut packs = Vec::new();
        for folder in folders {
            let Ok(dir) = files::open_dir(folder, "pack") else { continue };
            for name in files::names(&dir).unwrap_or_default() {
                let number = packs.len() as u32;
                packs.extend(name.strip_suffix(".idx").and_then(|stem| Pack::open(dir.as_fd(), stem, number).ok()));
            }
        }
        packs.sort_by_key(|pack| std::cmp::Reverse(pack.size));
        Self { folders, packs, scratch: Scratch::default(), bases: Bases::default() }
    }

    fn walk(&mut self, mut at: ObjectId, cx: &Context<'_>) -> Result<Option<ObjectId>> {
        let mut data = Vec::new();
        for step in 0..STEPS {
            if step % 256 == 0 {
                cx.check_cancelled()?;
                cx.progress("looking for the first commit", step, None);
            }
            if self.commit(&at, &mut data).is_none() {
                return Ok(None);
            }
            match CommitRefIter::from_bytes(&data, gix::hash::Kind::Sha1).parent_ids().next() {
                Some(parent) => at = parent,
                None => return Ok(Some(at)),
            }
        }
        Ok(None)
    }

    /// Reads a commit; none if it is not there or not what its id says.
    fn commit(&mut self, id: &ObjectId, out: &mut Vec<u8>) -> Option<()> {
        let found = self.packs.iter().enumerate().find_map(|(at, pack)| Some((at, pack.index.find(id)?)));
        let kind = if let Some((at, place)) = found {
            self.packs.swap(0, at);
            let pack = &self.packs[0];
            let (_, size) = pack.header(place, &mut self.scratch).ok()?;
            if size > LARGEST {
                return None;
            }
            pack.read(place, &mut self.scratch, &self.bases, out).ok()?
        } else {
            self.folders.iter().find_map(|folder| loose::read(folder.as_fd(), id, LARGEST, out).ok().flatten())?
        };
        (kind == Kind::Commit && hash(kind, out) == *id).then_some(())
    }
}
