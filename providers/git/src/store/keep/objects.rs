//! Single objects of a user's repository, read where they lie.

use std::os::fd::{AsFd, OwnedFd};

use gix::ObjectId;
use gix::objs::Kind;

use crate::store::pack::{Bases, Pack, Scratch};
use crate::store::{files, hash, loose};

/// A commit of more bytes, or one that is made of more, is none that Git made.
const LARGEST: u64 = 4 << 20;

/// The objects in some folders of a user's.
pub(crate) struct Objects<'a> {
    folders: &'a [OwnedFd],
    /// The one first in which an object was found last.
    packs: Vec<Pack>,
    scratch: Scratch,
    bases: Bases,
}

impl<'a> Objects<'a> {
    pub(crate) fn open(folders: &'a [OwnedFd]) -> Self {
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

    /// Reads a commit; none if it is not there or not what its id says.
    pub(super) fn commit(&mut self, id: &ObjectId, out: &mut Vec<u8>) -> Option<()> {
        let kind = if let Some(place) = self.find(id) {
            let pack = &self.packs[0];
            let (_, size) = pack.header(place, &mut self.scratch).ok()?;
            if size > LARGEST {
                return None;
            }
            pack.read((place, LARGEST), &mut self.scratch, &self.bases, out).ok()?
        } else {
            self.folders.iter().find_map(|folder| loose::read(folder.as_fd(), id, LARGEST, out).ok().flatten())?
        };
        (kind == Kind::Commit && hash(kind, out) == *id).then_some(())
    }

    /// How many bytes an object has; none if it is not there, or is a large loose one. Its hash is not checked.
    pub(crate) fn size(&mut self, id: &ObjectId) -> Option<u64> {
        if let Some(place) = self.find(id) {
            return Some(self.packs[0].header(place, &mut self.scratch).ok()?.1);
        }
        let mut data = Vec::new();
        self.folders.iter().find_map(|folder| loose::read(folder.as_fd(), id, LARGEST, &mut data).ok().flatten())?;
        Some(data.len() as u64)
    }

    /// Where in a pack an object is; that pack is the first then.
    fn find(&mut self, id: &ObjectId) -> Option<u64> {
        let (at, place) = self.packs.iter().enumerate().find_map(|(at, pack)| Some((at, pack.index.find(id)?)))?;
        self.packs.swap(0, at);
        Some(place)
    }
}
