//! Opening files, and closing them, where large ones are passed through (see `opens`).

use std::collections::VecDeque;
use std::fs::File;
use std::sync::Arc;

use ah_agentfs::{Error, Ino, SetAttr, Whole};
use fuser::{Errno, FileHandle, FopenFlags, INodeNo, OpenFlags, ReplyOpen};
use rustix::fs::OFlags;

use crate::host::Host;
use crate::opens::{Asked, Backing, Finding, How, Opens, cuts};
use crate::replies::attr;
use crate::words::errno;

/// Smaller files are read by asking here: that is one message.
pub(crate) const LARGE: u64 = 1 << 20;

/// All files that are open are one as far as the kernel has to tell them apart here.
const HANDLE: FileHandle = FileHandle(0);

impl Host {
    /// Does what is asked of a file, at once or when that can be.
    pub(crate) fn admit(&self, asked: Asked) {
        let Some(opens) = &self.opens else { return };
        let mut all = VecDeque::from([asked]);
        while let Some(asked) = all.pop_front() {
            match (opens.enter(asked), opens) {
                (None, _) => {}
                (Some((asked, How::Cached)), opens) => all.extend(self.cached(opens, asked)),
                (Some((asked, How::Unknown(finding))), opens) => all.extend(self.find(opens, finding, asked)),
                (Some((asked, How::Through(backing))), opens) => all.extend(self.share(opens, &backing, asked)),
            }
        }
    }

    /// Somebody closed a file.
    pub(crate) fn closed(&self, ino: Ino) {
        if let Some(opens) = &self.opens {
            opens.leave(ino).into_iter().for_each(|asked| self.admit(asked));
        }
    }

    fn cached(&self, opens: &Opens, asked: Asked) -> Vec<Asked> {
        match asked {
            Asked::Open { ino, flags, uid, reply } => {
                let empty = SetAttr { size: Some(0), ..Default::default() };
                let cut = if cuts(flags) { self.set_attributes(uid, ino, empty).map(drop) } else { Ok(()) };
                match self.asked(INodeNo(ino), cut) {
                    Ok(()) => reply.opened(HANDLE, FopenFlags::FOPEN_KEEP_CACHE),
                    Err(error) => {
                        reply.error(errno(&error));
                        return opens.leave(ino);
                    }
                }
                Vec::new()
            }
            Asked::Set { ino, set, uid, reply } => {
                attr(reply, self.set_attributes(uid, ino, set).map(|attr| self.told(attr)));
                opens.leave(ino)
            }
        }
    }

    /// The first who opens a file to read it.
    fn find(&self, opens: &Opens, finding: Finding, asked: Asked) -> Vec<Asked> {
        let Asked::Open { ino, flags, reply, .. } = asked else { return vec![asked] };
        let whole = match self.asked(INodeNo(ino), self.view().whole(ino, LARGE)) {
            // The kernel asks for the name again, and opens what is there now.
            Err(Error::Stale) => {
                reply.error(Errno::ESTALE);
                return finding.failed();
            }
            // What cannot be had so is told to who reads it.
            whole => whole.ok().flatten(),
        };
        let backing = whole.and_then(|(file, whole)| make_known(opens, &file, whole, flags, &reply)).map(Arc::new);
        let others = finding.found(backing.clone());
        match backing {
            Some(backing) => pass(opens, reply, &backing),
            None => reply.opened(HANDLE, FopenFlags::FOPEN_KEEP_CACHE),
        }
        others
    }

    /// Another who opens a file to read it that is passed through.
    fn share(&self, opens: &Arc<Opens>, backing: &Backing, asked: Asked) -> Vec<Asked> {
        let Asked::Open { ino, flags, uid, reply } = asked else { return vec![asked] };
        let is_still = self.asked(INodeNo(ino), self.view().is_still(ino, &backing.whole));
        let error = match is_still {
            Err(Error::Stale) => Errno::ESTALE,
            Ok(true) if is_past_cache(flags) && !backing.is_direct => Errno::EINVAL,
            Ok(true) => {
                pass(opens, reply, backing);
                return Vec::new();
            }
            // What it holds is not that any more. Once those are closed who have it, it is opened as any.
            Ok(false) | Err(_) => {
                let mut others = opens.leave(ino);
                others.extend(opens.wait(Asked::Open { ino, flags, uid, reply }));
                return others;
            }
        };
        reply.error(error);
        opens.leave(ino)
    }
}

/// Makes the file that the contents of another are known to the kernel. What cannot be had so is read by asking here.
fn make_known(opens: &Opens, file: &File, whole: Whole, flags: OpenFlags, reply: &ReplyOpen) -> Option<Backing> {
    // What a file is opened for the kernel opens that for; not every filesystem has all of it.
    let is_direct = rustix::fs::fcntl_setfl(file, OFlags::DIRECT).is_ok();
    if is_past_cache(flags) && !is_direct {
        return None;
    }
    match reply.open_backing(file) {
        Ok(id) => Some(Backing { id, whole, is_direct }),
        Err(error) => {
            if error.kind() == std::io::ErrorKind::PermissionDenied {
                opens.refused();
            }
            None
        }
    }
}

fn pass(opens: &Opens, reply: ReplyOpen, backing: &Backing) {
    opens.told.add();
    // Who closes it would wait for who cuts it, who waits for that.
    reply.opened_passthrough(HANDLE, FopenFlags::FOPEN_NOFLUSH, &backing.id);
}

fn is_past_cache(flags: OpenFlags) -> bool {
    OFlags::from_bits_retain(flags.0.cast_unsigned()).contains(OFlags::DIRECT)
}
