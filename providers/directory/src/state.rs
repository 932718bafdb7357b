//! What a directory looks like, to notice that it was changed.

use std::collections::HashSet;
use std::os::fd::BorrowedFd;

use ah_plugin_api::{Context, Result};
use rustix::fs::{FileType, Mode, Statx};
use rustix::io::Errno;

use crate::way::DIRECTORY;
use crate::{Way, failed, look, names};

/// What everything in a directory looked like: number, change time, size. Whatever is done in it shows.
#[derive(Debug, Default)]
pub struct State {
    /// The directory itself, whose change time changes when it changes its name: modification time and mode instead.
    top: (u64, i64, u32, u16),
    entries: Vec<(u64, i64, u32, u64)>,
    inodes: HashSet<u64>,
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.top == other.top && self.entries == other.entries
    }
}

impl State {
    /// What a directory looks like now. `each` is shown every entry, with the directory it is in.
    pub fn of(
        dir: BorrowedFd<'_>,
        cx: &Context<'_>,
        mut each: impl FnMut(BorrowedFd<'_>, &[u8], &Statx) -> Result<()>,
    ) -> Result<Self> {
        let fail = |errno| failed("cannot look at what is in the workspace", errno);
        let mut state = Self::default();
        state.set_top(&look(dir, b"").map_err(fail)?);
        let mut way = Way::new(dir).map_err(fail)?;
        let mut levels = vec![names(way.at()).map_err(fail)?.into_iter()];
        while let Some(level) = levels.last_mut() {
            cx.check_cancelled()?;
            let Some(name) = level.next() else {
                levels.pop();
                if !levels.is_empty() {
                    way.up().map_err(fail)?;
                }
                continue;
            };
            // What is gone by now shows in the length.
            let stat = match look(way.at(), &name) {
                Err(Errno::NOENT) => continue,
                stat => stat.map_err(fail)?,
            };
            state.add(&stat);
            if state.entries.len().is_multiple_of(512) {
                cx.progress("looking", state.entries.len() as u64, None);
            }
            each(way.at(), &name, &stat)?;
            if is(&stat, FileType::Directory) {
                let below = match rustix::fs::openat(way.at(), name.as_slice(), DIRECTORY, Mode::empty()) {
                    Err(Errno::NOENT) => continue,
                    below => below.map_err(fail)?,
                };
                way.down(below).map_err(fail)?;
                levels.push(names(way.at()).map_err(fail)?.into_iter());
            }
        }
        Ok(state)
    }

    /// Adds an entry.
    pub fn add(&mut self, stat: &Statx) {
        self.entries.push((stat.stx_ino, stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec, stat.stx_size));
        self.inodes.insert(stat.stx_ino);
    }

    /// Says what the directory itself is like.
    pub fn set_top(&mut self, stat: &Statx) {
        self.top = (stat.stx_ino, stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec, stat.stx_mode);
        self.inodes.insert(stat.stx_ino);
    }

    /// Whether something of that number was there.
    pub fn has(&self, inode: u64) -> bool {
        self.inodes.contains(&inode)
    }
}

pub(crate) fn is(stat: &Statx, kind: FileType) -> bool {
    FileType::from_raw_mode(stat.stx_mode.into()) == kind
}
