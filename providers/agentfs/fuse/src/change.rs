//! Changes of files: who makes one takes away what lets the file run with more than their own rights, which the kernel leaves to a filesystem.

use ah_agentfs::{Allocate, Attr, Error, Ino, Kind, Result, SetAttr};
use fuser::{INodeNo, Request};
use rustix::fs::{FallocateFlags, Mode};

use crate::host::{CAPABILITY, Host, lock};

impl Host {
    /// Takes away what lets a file run with more than its caller's rights, since somebody changes it: set-id bits, unless they
    /// may keep them, and capabilities.
    pub(crate) fn strip(&self, ino: Ino, set_ids: bool) -> Result<()> {
        if set_ids {
            let attr = self.view().getattr(ino)?;
            let mode = stripped(attr.mode);
            if attr.kind == Kind::File && mode != attr.mode {
                self.view().setattr(ino, SetAttr { mode: Some(mode), ..SetAttr::default() })?;
                // Behind a write it asks for size and times alone.
                self.renew(INodeNo(ino));
            }
        }
        if lock(&self.plain).contains(&ino) {
            return Ok(());
        }
        match self.view().removexattr(ino, CAPABILITY) {
            Ok(()) | Err(Error::NoAttribute) => drop(lock(&self.plain).insert(ino)),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    pub(crate) fn set_attributes(&self, uid: u32, ino: Ino, mut set: SetAttr) -> Result<Attr> {
        if set.uid.is_some() || set.gid.is_some() {
            let attr = self.view().getattr(ino)?;
            if attr.kind != Kind::Directory {
                set.mode = Some(stripped(set.mode.unwrap_or(attr.mode)));
                self.strip(ino, false)?;
            }
        }
        if set.size.is_some() {
            self.strip(ino, uid != 0)?;
        }
        self.view().setattr(ino, set)
    }

    /// Gives the end that the file had, if it has become longer.
    pub(crate) fn allocate(
        &self,
        request: &Request,
        ino: Ino,
        offset: u64,
        length: u64,
        mode: i32,
    ) -> Result<Option<u64>> {
        let flags = FallocateFlags::from_bits_retain(mode as u32);
        let keep = FallocateFlags::KEEP_SIZE;
        let (how, stays) = match flags {
            _ if flags.is_empty() => (Allocate::Extend, false),
            _ if flags == keep => (Allocate::Keep, true),
            _ if flags == FallocateFlags::PUNCH_HOLE | keep => (Allocate::Punch, true),
            _ if flags == FallocateFlags::ZERO_RANGE => (Allocate::Zero, false),
            _ if flags == FallocateFlags::ZERO_RANGE | keep => (Allocate::Zero, true),
            _ => return Err(Error::Unsupported),
        };
        // The kernel leaves all of that to us.
        self.strip(ino, request.uid() != 0)?;
        let end = self.view().getattr(ino)?.size;
        // Zeros up to the end, which stays.
        let within = how == Allocate::Zero && stays;
        let length = if within { end.saturating_sub(offset).min(length) } else { length };
        if length > 0 {
            self.view().fallocate(ino, offset, length, how)?;
        }
        // The kernel lets one at a time change where a file ends.
        Ok((!stays && offset.saturating_add(length) > end).then_some(end))
    }
}

/// Permissions without set-id bits; set-gid without execution by the group means something else, and stays.
fn stripped(mode: u32) -> u32 {
    let mode = mode & !Mode::SUID.bits();
    if mode & Mode::XGRP.bits() != 0 { mode & !Mode::SGID.bits() } else { mode }
}
