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
                let parent = match item.kind {
                    sys::INODE_REF => Some(item.offset),
                    sys::INODE_EXTREF => item.body.get(..8).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes),
                    _ => None,
                };
                if let Some(parent) = parent
                    && all.insert(parent)
                {
                    todo.push(parent);
                }
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
