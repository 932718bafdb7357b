//! What takes telling the kernel something for which it may wait for answers first: done in a thread of its own.

use ah_agentfs::{Ino, Seek};
use fuser::{INodeNo, Notifier, ReplyEmpty, ReplyLseek};

use crate::replies::offset;
use crate::watch::Tree;

/// See the module.
pub(crate) enum Aside {
    /// An inode that the kernel remembers is not at its path any more, since somebody replaced it below.
    Stale(Ino),
    /// Where data or a hole begins, at or behind an offset.
    Seek(Ino, u64, Seek, ReplyLseek),
    /// A file has become longer by `fallocate`, from an end on, which is not answered yet.
    Longer(Ino, u64, ReplyEmpty),
}

impl Aside {
    pub(crate) fn act(self, tree: &Tree, kernel: &Notifier) {
        match self {
            // Attributes only; opening looks at them. What it does not know any more needs nothing.
            Self::Stale(ino) => _ = kernel.inval_inode(INodeNo(ino), -1, 0),
            Self::Seek(ino, from, what, reply) => {
                // It does not by itself hand on what was written through a mapping.
                let _ = kernel.inval_inode(INodeNo(ino), from.cast_signed(), 0);
                offset(reply, tree.wait().0.seek(ino, from, what));
            }
            Self::Longer(ino, end, reply) => {
                // What a mapping put behind the end, in the last page, would be in the file once the kernel knows of the new one. It holds no page for a
                // `fallocate`, so that this one can be had; for a `write` it may.
                let _ = kernel.inval_inode(INodeNo(ino), end.cast_signed(), 1);
                reply.ok();
            }
        }
    }
}
