//! Reading a snapshot's tree by paths.

use std::os::fd::BorrowedFd;

use ah_agentfs::{Attr, Ino, Kind, ROOT, Seek, View};
use ah_plugin_api::{Context, Entry, EntryKind, Error, ErrorKind, RelPath, Result, Timestamp};
use ah_provider_directory::{failed, is_new_file};
use rustix::fs::SeekFrom;

use super::fail;

/// So much is read at a time.
const PIECE: usize = 1 << 20;

/// A path's entry; none if it is not there.
pub(super) fn entry(view: &View, path: &RelPath) -> Result<Option<Entry>> {
    Ok(find(view, path)?.map(|attr| entry_of(&attr, path.file_name().unwrap_or_default())))
}

/// Answers [`ah_plugin_api::Provider::read_dir`].
pub(super) fn read_dir(view: &View, path: &RelPath, cx: &Context<'_>) -> Result<Vec<Entry>> {
    let directory = need(view, path)?;
    if directory.kind != Kind::Directory {
        return Err(Error::new(ErrorKind::InvalidArgument, format!("{path} is not a directory")));
    }
    refuse_closed(&directory, READ, path)?;
    let names = view.list(directory.ino).map_err(|e| fail(format!("cannot read {path}"), &e))?;
    let mut entries = Vec::with_capacity(names.len());
    for name in names {
        cx.check_cancelled()?;
        let attr = view
            .lookup(directory.ino, &name.name)
            .map_err(|e| fail(format!("cannot look at {} in {path}", String::from_utf8_lossy(&name.name)), &e))?;
        entries.push(entry_of(&attr, &name.name));
    }
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(entries)
}

/// Answers [`ah_plugin_api::Provider::read`].
pub(super) fn read(view: &View, path: &RelPath, output: BorrowedFd<'_>, cx: &Context<'_>) -> Result<Entry> {
    let attr = need(view, path)?;
    let cannot = |e: ah_agentfs::Error| fail(format!("cannot read {path}"), &e);
    match attr.kind {
        Kind::File => {
            refuse_closed(&attr, READ, path)?;
            let of_output = |errno| failed("cannot hand over what was read", errno);
            // In a new file holes stay holes.
            let sparse = is_new_file(output);
            let mut at = 0;
            while at < attr.size {
                let mut end = attr.size;
                if sparse {
                    at = match view.seek(attr.ino, at, Seek::Data) {
                        Err(ah_agentfs::Error::NoData) => break,
                        data => data.map_err(cannot)?,
                    };
                    end = view.seek(attr.ino, at, Seek::Hole).map_err(cannot)?;
                    rustix::fs::seek(output, SeekFrom::Start(at)).map_err(of_output)?;
                }
                while at < end {
                    cx.check_cancelled()?;
                    let most = PIECE.min(usize::try_from(end - at).unwrap_or(PIECE));
                    let bytes = view.read(attr.ino, at, most).map_err(cannot)?;
                    if bytes.is_empty() {
                        return Err(Error::new(ErrorKind::DataLoss, format!("{path} ends before its end")));
                    }
                    put(output, &bytes)?;
                    at += bytes.len() as u64;
                }
            }
            if sparse {
                rustix::fs::ftruncate(output, attr.size).map_err(of_output)?;
                rustix::fs::seek(output, SeekFrom::End(0)).map_err(of_output)?;
            }
        }
        Kind::Symlink => put(output, &view.readlink(attr.ino).map_err(cannot)?)?,
        _ => return Err(Error::new(ErrorKind::InvalidArgument, format!("{path} has no contents"))),
    }
    Ok(entry_of(&attr, path.file_name().unwrap_or_default()))
}

fn put(output: BorrowedFd<'_>, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        let done = rustix::io::retry_on_intr(|| rustix::io::write(output, bytes))
            .map_err(|errno| failed("cannot hand over what was read", errno))?;
        bytes = bytes.get(done..).unwrap_or_default();
    }
    Ok(())
}

fn need(view: &View, path: &RelPath) -> Result<Attr> {
    find(view, path)?.ok_or_else(|| Error::new(ErrorKind::NotFound, format!("the snapshot has no {path}")))
}

fn find(view: &View, path: &RelPath) -> Result<Option<Attr>> {
    let cannot = |e: &ah_agentfs::Error| fail(format!("cannot look at {path}"), e);
    let mut at: Ino = ROOT;
    let mut found = view.getattr(at).map_err(|e| cannot(&e))?;
    for name in path.as_bytes().split(|&b| b == b'/').filter(|name| !name.is_empty()) {
        refuse_closed(&found, SEARCH, path)?;
        found = match view.lookup(at, name) {
            Ok(attr) => attr,
            Err(ah_agentfs::Error::NotFound | ah_agentfs::Error::NotDirectory) => return Ok(None),
            Err(error) => return Err(cannot(&error)),
        };
        at = found.ino;
    }
    Ok(Some(found))
}

/// The owner's bits.
const READ: u32 = 0o400;
const SEARCH: u32 = 0o100;

/// Refuses what is closed to its owner, as a view of it would. What belongs to others the system refuses by itself, where it lies below; an
/// ordinary user's service never makes any.
fn refuse_closed(attr: &Attr, bit: u32, path: &RelPath) -> Result<()> {
    let me = rustix::process::geteuid();
    let closed = !me.is_root() && attr.uid == me.as_raw() && attr.mode & bit == 0;
    match closed && (attr.kind == Kind::Directory || bit == READ) {
        true => Err(Error::new(ErrorKind::PermissionDenied, format!("{path} is closed to its owner"))),
        false => Ok(()),
    }
}

pub(super) fn entry_of(attr: &Attr, name: &[u8]) -> Entry {
    let kind = match attr.kind {
        Kind::File => EntryKind::File,
        Kind::Directory => EntryKind::Dir,
        Kind::Symlink => EntryKind::Symlink,
        Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice => EntryKind::Special,
    };
    Entry {
        name: name.to_vec(),
        kind,
        mode: attr.mode,
        size: if matches!(kind, EntryKind::File | EntryKind::Symlink) { attr.size } else { 0 },
        mtime: Timestamp { secs: attr.mtime.secs, nanos: attr.mtime.nanos.min(999_999_999) },
        content: None,
        ignored: false,
    }
}
