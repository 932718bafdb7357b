//! Files whose contents are those of one file elsewhere, as a whole: the one below, or a pin. A host can have the kernel read that instead of asking here.
//!
//! Who reads so is not looked after any more: bytes that somebody changes in that file are what he reads from then on. So it is the file below only in a branch, and only where that
//! shows it as it is, whatever is done to it; and a pin, which nobody changes, where what is shown is what was there when the base was taken. Of a file that a branch has taken over there is none.

use std::fs::File;

use crate::error::Result;
use crate::lower::Found;
use crate::rows::value::Origin;
use crate::types::{Ino, Kind};
use crate::view::{Node, View};

/// Which file the contents of another are.
#[derive(Debug, Clone)]
pub struct Whole {
    is: Found,
    /// Or what is below.
    pin: bool,
}

impl View {
    /// What the contents of a file are as a whole, open for reading, if it has at least so many bytes. Costs reading a pin, once as long as the store is open.
    pub fn whole(&self, ino: Ino, least: u64) -> Result<Option<(File, Whole)>> {
        let node = self.file(ino)?;
        let Some(origin) = node.inode.origin.as_ref().filter(|_| !node.has_row && node.inode.size >= least) else {
            return Ok(None);
        };
        if self.keeps
            && let Some((then, _)) = self.engine.fingerprint(self.chain.base, &origin.path)?
        {
            // Of what is another now, or was not pinned, a pin may come with another base.
            let pin = if then.is_of(origin) { self.contents_then(origin)? } else { None };
            return Ok(pin.map(|(file, is)| (file, Whole { is, pin: true })));
        }
        // What is not pinned yet is shown as it was once it is.
        if self.at.is_some() || self.keeps && self.engine.is_unfinished(self.chain.base) {
            return Ok(None);
        }
        let (file, is) = self.open_as_it_is(origin)?;
        Ok((is.kind == Kind::File && is.size >= least).then_some((file, Whole { is, pin: false })))
    }

    /// Whether the contents of a file are still those of that one: also if something else was changed of it since.
    pub fn is_still(&self, ino: Ino, whole: &Whole) -> Result<bool> {
        let node = self.file(ino)?;
        let Some(origin) = node.inode.origin.as_ref() else { return Ok(false) };
        if node.has_row && !self.is_all_below(&node, origin)? {
            return Ok(false);
        }
        let is_it = |is: &Found| (is.device, is.ino) == (whole.is.device, whole.is.ino);
        if whole.pin {
            return Ok(self.contents_then(origin)?.is_some_and(|(_, is)| is_it(&is)));
        }
        if !node.has_row {
            return Ok(!self.is_then_pinned(origin)? && is_it(&self.open_as_it_is(origin)?.1));
        }
        let Some(file) = self.engine.lower.open_file(&origin.path)? else { return Ok(false) };
        Ok(self.proven(&file, origin)?.is_some_and(|is| is_it(&is)))
    }

    /// Whether nothing of what was taken over was written or cut.
    fn is_all_below(&self, node: &Node, origin: &Origin) -> Result<bool> {
        let is_as_long = (node.inode.size, node.inode.lower_limit) == (origin.size, origin.size);
        Ok(is_as_long && self.chunks_from(node.ino, 0)?.is_empty())
    }

    fn is_then_pinned(&self, origin: &Origin) -> Result<bool> {
        Ok(self.is_then(origin) && self.contents_then(origin)?.is_some())
    }

    /// The file below where it was found, as it is now.
    fn open_as_it_is(&self, origin: &Origin) -> Result<(File, Found)> {
        let (file, _) = self.open_origin(origin, false)?;
        let is = self.engine.lower.find_open(&file)?;
        Ok((file, is))
    }
}
