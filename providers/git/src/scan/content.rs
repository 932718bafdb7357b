//! Reading what differs, so that what is captured was really there at one time.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use ah_plugin_api::{Context, EntryKind, OmitReason, Result, Timestamp};
use ah_rules::{Class, DirRules};
use gix::objs::Kind;
use gix::{ObjectId, oid};
use rustix::io::Errno;

use super::stat::{Stat, open_dir, open_file, stat_at, stat_of};
use super::walk::below;
use super::{Item, Scan, State, io_error, pool};
use crate::index::{ITEM_IGNORED, ITEM_RECHECK, ITEM_TRACKED, ITEM_WRITTEN, What};
use crate::store::Taken;
use crate::sys::may_have_writer;

/// Where contents and trees go.
pub(crate) trait Sink: Sync {
    /// Takes an object; gives its id. `replaces` is what stood in its place before.
    fn object(&self, kind: Kind, data: &[u8], replaces: Option<&oid>) -> Result<ObjectId>;

    /// Takes the contents of a file of `size` bytes.
    fn blob_from(&self, file: BorrowedFd<'_>, size: u64, replaces: Option<&oid>, cx: &Context<'_>) -> Result<Taken>;
}

/// Files up to this size are read at once.
const AT_ONCE: u64 = 1 << 20;
/// How often a file that changes is read before it is given up.
const TRIES: usize = 3;
/// How many files one thread reads before it asks for more work.
const UNIT: usize = 32;

/// What all that read need.
struct Reading<'a> {
    sink: &'a dyn Sink,
    /// See [`Scan::writers_from`].
    writers_from: Timestamp,
    cx: &'a Context<'a>,
}

/// What became of an item.
enum Outcome {
    Captured(What, u8, Stat, ObjectId),
    Omitted(OmitReason, String, Stat),
    Gone,
}

/// Reads everything that is pending. Afterwards nothing is.
///
/// A file that changes while it is read is read again, then omitted as `changing`.
///
/// # Errors
/// Those of the sink, `Cancelled`, and the want of descriptors or memory.
pub(crate) fn read_contents(root: BorrowedFd<'_>, scan: &mut Scan, sink: &dyn Sink, cx: &Context<'_>) -> Result<()> {
    let mut units: Vec<(usize, Vec<usize>)> = Vec::new();
    for (at, node) in scan.nodes.iter().enumerate() {
        if let State::Listed(listed) = &node.state {
            let pending: Vec<usize> = (0..listed.items.len()).filter(|&item| listed.items[item].pending).collect();
            units.extend(pending.chunks(UNIT).map(|unit| (at, unit.to_vec())));
        }
    }
    let total = units.iter().map(|(_, items)| items.len() as u64).sum();
    let done = AtomicU64::new(0);
    let nodes = &scan.nodes;
    let reading = Reading { sink, writers_from: scan.writers_from, cx };
    let outcomes = pool::each(units.len(), cx, |unit, out| {
        let (at, items) = &units[unit];
        let node = &nodes[*at];
        let State::Listed(listed) = &node.state else { return Ok(()) };
        let Some(rules) = &listed.rules else { return Ok(()) };
        read_unit(root, &node.path, &listed.items, items, rules, &reading, |item, outcome| {
            out.push((*at, item, outcome));
        })?;
        let before = done.fetch_add(items.len() as u64, Ordering::Relaxed);
        if before / 512 != (before + items.len() as u64) / 512 {
            cx.progress("reading", before, Some(total));
        }
        Ok(())
    })?;
    for (at, item, outcome) in outcomes {
        let State::Listed(listed) = &mut scan.nodes[at].state else { continue };
        apply(&mut listed.items[item], outcome);
    }
    for node in &mut scan.nodes {
        if let State::Listed(listed) = &mut node.state {
            // Still pending: gone.
            if listed.rules.take().is_some() {
                listed.items.retain(|item| !item.pending);
            }
        }
    }
    Ok(())
}

fn apply(item: &mut Item, outcome: Outcome) {
    match outcome {
        Outcome::Captured(what, flags, stat, id) => {
            (item.what, item.flags, item.stat, item.id, item.pending) = (what, flags, stat, id, false);
        }
        Outcome::Omitted(reason, detail, stat) => {
            item.stat = stat;
            item.omit(reason, detail, ITEM_RECHECK);
        }
        Outcome::Gone => {}
    }
}

fn read_unit(
    root: BorrowedFd<'_>,
    path: &[u8],
    items: &[Item],
    unit: &[usize],
    rules: &DirRules,
    reading: &Reading<'_>,
    mut result: impl FnMut(usize, Outcome),
) -> Result<()> {
    let dir = match open_dir(root, path) {
        Ok(dir) => dir,
        // The directory went away under us: with all that was in it.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
        Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => return Err(io_error("cannot open", path, error)),
        Err(error) => {
            for &item in unit {
                result(item, Outcome::Omitted(OmitReason::Unreadable, text(error), items[item].stat));
            }
            return Ok(());
        }
    };
    let mut buffer = Vec::new();
    for &number in unit {
        reading.cx.check_cancelled()?;
        let item = &items[number];
        let outcome = read_item(dir.as_fd(), item, rules, reading, &mut buffer).map_err(|error| {
            error.context(format!("cannot capture {}", String::from_utf8_lossy(&below(path, &item.name))))
        })?;
        result(number, outcome);
    }
    Ok(())
}

fn text(error: Errno) -> String {
    std::io::Error::from(error).to_string()
}

fn read_item(
    dir: BorrowedFd<'_>,
    item: &Item,
    rules: &DirRules,
    reading: &Reading<'_>,
    buffer: &mut Vec<u8>,
) -> Result<Outcome> {
    let former = item.former.as_deref();
    let mut what = item.what;
    for _ in 0..TRIES {
        let tried = match what {
            What::Symlink => read_link(dir, item, rules, reading.sink, former)?,
            _ => read_file(dir, item, rules, reading, former, buffer)?,
        };
        match tried {
            Ok(Some(outcome)) => return Ok(outcome),
            Ok(None) => {}
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(Outcome::Gone),
            Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => {
                return Err(io_error("cannot open", &item.name, error));
            }
            // Something else took its place, or it cannot be read.
            Err(error) => match stat_at(dir, &*item.name) {
                Err(Errno::NOENT | Errno::NOTDIR) => return Ok(Outcome::Gone),
                Err(error) => return Ok(Outcome::Omitted(OmitReason::Unreadable, text(error), item.stat)),
                Ok(seen) => match seen.stat.file_type() {
                    rustix::fs::FileType::Symlink if what != What::Symlink => what = What::Symlink,
                    rustix::fs::FileType::RegularFile if what == What::Symlink => what = What::File,
                    rustix::fs::FileType::RegularFile | rustix::fs::FileType::Symlink => {
                        return Ok(Outcome::Omitted(OmitReason::Unreadable, text(error), seen.stat));
                    }
                    rustix::fs::FileType::Directory => break,
                    _ => return Ok(Outcome::Omitted(OmitReason::SpecialFile, String::new(), seen.stat)),
                },
            },
        }
    }
    let stat = stat_at(dir, &*item.name).map(|seen| seen.stat).unwrap_or_default();
    Ok(Outcome::Omitted(OmitReason::Changing, format!("changed each of the {TRIES} times it was read"), stat))
}

/// The result of one try: an outcome, or none if it changed meanwhile.
type Try = Result<Option<Outcome>, Errno>;

fn read_file(
    dir: BorrowedFd<'_>,
    item: &Item,
    rules: &DirRules,
    reading: &Reading<'_>,
    former: Option<&oid>,
    buffer: &mut Vec<u8>,
) -> Result<Try> {
    let (file, before) = match open_file(dir, &*item.name) {
        Ok(opened) => opened,
        Err(error) => return Ok(Err(error)),
    };
    let stat = before.stat;
    if before.mount {
        return Ok(Ok(Some(Outcome::Omitted(OmitReason::OtherFilesystem, String::new(), stat))));
    }
    let flags = match flags_now(item, rules, EntryKind::File, &stat) {
        Ok(flags) => flags,
        Err(outcome) => return Ok(Ok(Some(outcome))),
    };
    // Asked before it is read: who opens it later changes its times with the first thing he writes.
    let written = stat.ctime >= reading.writers_from && may_have_writer(file.as_fd());
    let flags = flags | if written { ITEM_WRITTEN } else { 0 };
    let id = if stat.size <= AT_ONCE {
        match read_whole(file.as_fd(), stat.size as usize, buffer) {
            Ok(true) => Some(reading.sink.object(Kind::Blob, buffer, former)?),
            Ok(false) => None,
            Err(error) => return Ok(Err(error)),
        }
    } else {
        match reading.sink.blob_from(file.as_fd(), stat.size, former, reading.cx)? {
            Ok(id) => id,
            Err(error) => return Ok(Err(error)),
        }
    };
    let after = match stat_of(&file) {
        Ok(after) => after.stat,
        Err(error) => return Ok(Err(error)),
    };
    Ok(Ok(id.filter(|_| after == stat).map(|id| Outcome::Captured(What::File, flags, stat, id))))
}

fn read_link(dir: BorrowedFd<'_>, item: &Item, rules: &DirRules, sink: &dyn Sink, former: Option<&oid>) -> Result<Try> {
    let look = || stat_at(dir, &*item.name).map(|seen| seen.stat);
    let (before, target, after) = match (look(), rustix::fs::readlinkat(dir, &*item.name, Vec::new()), look()) {
        (Ok(before), Ok(target), Ok(after)) => (before, target, after),
        (Err(error), _, _) | (_, Err(error), _) | (_, _, Err(error)) => return Ok(Err(error)),
    };
    if before != after {
        return Ok(Ok(None));
    }
    let flags = match flags_now(item, rules, EntryKind::Symlink, &before) {
        Ok(flags) => flags,
        Err(outcome) => return Ok(Ok(Some(outcome))),
    };
    let id = sink.object(Kind::Blob, target.as_bytes(), former)?;
    Ok(Ok(Some(Outcome::Captured(What::Symlink, flags, before, id))))
}

/// The item's flags, with its class asked again if it is no longer what was classified.
fn flags_now(item: &Item, rules: &DirRules, kind: EntryKind, stat: &Stat) -> Result<u8, Outcome> {
    if item.stat.size == stat.size && item.stat.file_type() == stat.file_type() {
        return Ok(item.flags);
    }
    match rules.classify(&item.name, kind, stat.size) {
        Class::Omitted { reason, detail, .. } => Err(Outcome::Omitted(reason, detail.unwrap_or_default(), *stat)),
        Class::Kept => Ok(ITEM_IGNORED),
        Class::Tracked => Ok(ITEM_TRACKED),
        Class::Captured | Class::Through { .. } => Ok(0),
    }
}

/// Reads a file of `size` bytes into `buffer`; false if it has more or fewer.
fn read_whole(file: BorrowedFd<'_>, size: usize, buffer: &mut Vec<u8>) -> Result<bool, Errno> {
    // One byte more than expected, so that the end is seen in the same call.
    buffer.resize(size + 1, 0);
    let mut filled = 0;
    while filled <= size {
        match rustix::io::read(file, &mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    buffer.truncate(filled);
    Ok(filled == size)
}
