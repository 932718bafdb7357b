//! What was copied of files below behind the branch that took them over (`engine::complete`): read instead of those.

use crate::engine::Engine;
use crate::error::Result;
use crate::rows::chunk::{CHUNK, Chunk};
use crate::rows::key;
use crate::rows::value::{GONE, HERE};
use crate::state::{self, State};
use crate::types::{Ino, Kind};
use crate::view::content::each_below;
use crate::view::{Node, View};

impl View {
    /// Where the blocks of a chunk of the file below are that were copied; `None`: none were.
    pub(super) fn kept(&self, ino: Ino, index: u64) -> Result<Option<Chunk>> {
        self.seen(&key::kept(ino, index))?.map(|row| Chunk::decode(&row)).transpose()
    }

    /// Whether nothing of a file is read below any more: its extended attributes neither.
    pub(super) fn is_copied(&self, ino: Ino) -> Result<bool> {
        Ok(self.seen(&key::xattr(ino, b""))?.is_some_and(|row| row.first() == Some(&HERE)))
    }

    /// Reads within one chunk what the file below had when it was taken over.
    pub(super) fn read_origin(&self, node: &Node, offset: u64, bytes: &mut [u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let kept = || {
            let kept = if node.has_row { self.kept(node.ino, offset / CHUNK)? } else { None };
            Ok(kept.unwrap_or_default())
        };
        let kept = self.read_stored(kept, offset, bytes)?;
        each_below(&kept, offset, bytes, |at, here| {
            if self.read_below(node, at, here)? < here.len() {
                let path = node.inode.origin.as_ref().map_or(&b""[..], |origin| &origin.path);
                return Err(self.changed(path, "cut below since it was taken over"));
            }
            Ok(())
        })
    }

    /// A file got its first row: what it reads below is to be copied.
    pub(super) fn want_copy(&self, state: &mut State, view: state::View<'_>, node: &Node) {
        if node.inode.kind == Kind::File && node.inode.lower_limit > 0 && node.inode.origin.is_some() {
            let row = key::of_line(b'q', view.line, Some(node.ino));
            state.layers.put(&row, view.until.to_be_bytes().to_vec());
            Engine::ring(&self.engine.to_copy);
        }
    }
}

impl State {
    /// Nothing of the file below is read any more.
    pub(crate) fn drop_kept(&mut self, ino: Ino, view: state::View<'_>) -> Result<()> {
        for (stem, row) in self.seen_from(&key::stem(b'c', ino), &key::kept(ino, 0), view)? {
            if row.first() != Some(&GONE) {
                self.write(&stem, vec![GONE], view)?;
            }
        }
        Ok(())
    }
}
