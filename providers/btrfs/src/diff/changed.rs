//! Which inodes of a subvolume were written since a transaction, by the filesystem's own knowledge.
//!
//! Every write, also of a name or an attribute, puts the transaction's number into the inode; parts of the tree that hold no new ones are not
//! even read (`min_transid`). From the inodes, references lead up to all directories that hold one.

use std::collections::HashSet;

use ah_plugin_api::Result;
use ah_provider_directory::failed;
use rustix::io::Errno;

use super::Taken;
use crate::subvolume::is_privileged;
use crate::sys;

/// Where an inode item has the transaction that wrote it last: behind the one that made it.
const TRANSID: std::ops::Range<usize> = 8..16;

/// More than this are not looked up one by one: walking is as fast then.
const MANY: usize = 100_000;

/// The inodes that were written, and the directories above them.
pub(super) struct Changed(HashSet<u64>);

impl Changed {
    /// Those of `taken` that were written after the transaction `older`. None if this process may not ask, or there are too many.
    ///
    /// # Errors
    /// What the filesystem says.
    pub(super) fn since(taken: &Taken, older: u64) -> Result<Option<Self>> {
        if !is_privileged() {
            return Ok(None);
        }
        let fail = |errno| failed("cannot ask the filesystem what was written", errno);
        if taken.live {
            // What is in memory only is in no tree yet.
            rustix::fs::syncfs(taken.side.top()).map_err(fail)?;
        }
        let mut all = HashSet::new();
        let everything = ((sys::ROOT_INODE, 0, 0), (u64::MAX, u32::MAX, u64::MAX));
        let found = sys::search(taken.side.top(), everything.0, everything.1, older.saturating_add(1), |item| {
            if item.kind == sys::INODE_ITEM {
                let transid = item.body.get(TRANSID).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes);
                if transid.is_none_or(|transid| transid > older) {
                    all.insert(item.inode);
                }
            }
            all.len() <= MANY
        });
        match found {
            Ok(()) if all.len() <= MANY => {}
            Ok(()) | Err(Errno::PERM) => return Ok(None),
            Err(errno) => return Err(fail(errno)),
        }
        let mut todo: Vec<u64> = all.iter().copied().collect();
        while let Some(inode) = todo.pop() {
            let names = ((inode, sys::INODE_REF, 0), (inode, sys::INODE_EXTREF, u64::MAX));
            sys::search(taken.side.top(), names.0, names.1, 0, |item| {
                let parents = match item.kind {
                    sys::INODE_REF => vec![item.offset],
                    sys::INODE_EXTREF => parents(item.body),
                    _ => Vec::new(),
                };
                todo.extend(parents.into_iter().filter(|parent| all.insert(*parent)));
                true
            })
            .map_err(fail)?;
        }
        Ok(Some(Self(all)))
    }

    /// Whether it was written, or holds something that was.
    pub(super) fn holds(&self, inode: u64) -> bool {
        self.0.contains(&inode)
    }
}

/// The directories that an item of the third kind names: one for each name whose hash, with its directory, is the same. Before a name are the
/// directory (8 bytes), a number (8) and the name's length (2).
fn parents(mut body: &[u8]) -> Vec<u64> {
    let mut parents = Vec::new();
    while let Some((parent, rest)) = body.split_first_chunk::<8>()
        && let Some(length) = rest.get(8..10).and_then(|bytes| bytes.try_into().ok()).map(u16::from_le_bytes)
    {
        parents.push(u64::from_le_bytes(*parent));
        body = rest.get(10 + usize::from(length)..).unwrap_or_default();
    }
    parents
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_names_of_an_item_are_read() {
        let name = |parent: u64, name: &[u8]| {
            let length = u16::try_from(name.len()).unwrap();
            [&parent.to_le_bytes()[..], &7_u64.to_le_bytes(), &length.to_le_bytes(), name].concat()
        };
        let item = [name(257, b"a"), name(300, b"caf\xe9 \n"), name(u64::MAX, b"")].concat();
        assert_eq!(parents(&item), [257, 300, u64::MAX]);
        assert_eq!((parents(&item[..20]), parents(b"")), (vec![257], vec![]));
    }
}
