//! The snapshots' refs: `refs/ah/snapshots/<id>`, one file each.
//!
//! The store's own configuration keeps `git gc` from packing them; a person's `git pack-refs` still may. So packed refs are read
//! too, and turned back into files by the next writer.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

use ah_plugin_api::{Context, Error, ErrorKind, LogLevel, Result, SnapshotId};
use gix::ObjectId;
use gix::bstr::ByteSlice;

use super::files;
use super::layout::Folders;

const SNAPSHOTS: &str = "refs/ah/snapshots";
const PACKED: &str = "packed-refs";
/// What follows the commit in a packed ref of ours.
const OURS: &[u8] = b" refs/ah/snapshots/";
/// A ref is 41 bytes; a file of packed refs may hold many.
const REF_LIMIT: u64 = 4096;
const PACKED_LIMIT: u64 = 1 << 30;

fn folder(folders: &Folders) -> Result<Option<OwnedFd>> {
    match files::open_dir(&folders.git, SNAPSHOTS) {
        Ok(dir) => Ok(Some(dir)),
        // Stock git removes folders of refs that it emptied.
        Err(error) if error.kind == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn folder_for_writing(folders: &Folders) -> Result<OwnedFd> {
    if let Some(dir) = folder(folders)? {
        return Ok(dir);
    }
    for name in ["refs", "refs/ah", SNAPSHOTS] {
        files::make_dir(&folders.git, name)?;
        files::sync(files::open_dir(&folders.git, name)?, name)?;
    }
    files::open_dir(&folders.git, SNAPSHOTS)
}

fn parse(text: &[u8]) -> Option<ObjectId> {
    ObjectId::from_hex(text.trim_ascii_end()).ok().filter(|id| id.kind() == gix::hash::Kind::Sha1)
}

fn read_loose(dir: &OwnedFd, name: &str) -> Result<Option<ObjectId>> {
    let Some(text) = files::read_file(dir, name, REF_LIMIT)? else { return Ok(None) };
    parse(&text).map(Some).ok_or_else(|| files::damaged(format!("the ref {SNAPSHOTS}/{name} is damaged")))
}

/// The snapshots among the packed refs; none if there is no such file. A line that cannot be read gives a name without a commit.
fn read_packed(folders: &Folders) -> Result<Option<BTreeMap<String, Option<ObjectId>>>> {
    let Some(text) = files::read_file(&folders.git, PACKED, PACKED_LIMIT)? else { return Ok(None) };
    let mut out = BTreeMap::new();
    for line in text.split(|&byte| byte == b'\n').filter(|line| !line.starts_with(b"#")) {
        let Some(at) = line.find(OURS) else { continue };
        let name = String::from_utf8_lossy(&line[at + OURS.len()..]).into_owned();
        out.insert(name, parse(&line[..at]));
    }
    Ok(Some(out))
}

/// Why it cannot be told what all snapshots need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doubt {
    /// Something is damaged or missing.
    Damage,
    /// Something cannot be read at this moment: an error of the disk, too many open files.
    Passing,
}

impl Doubt {
    /// What an error says.
    pub(super) fn of(error: &Error) -> Self {
        if error.kind == ErrorKind::DataLoss { Self::Damage } else { Self::Passing }
    }
}

/// All snapshots that can be read.
pub(super) struct All {
    /// Ordered by id.
    pub(super) snapshots: Vec<(SnapshotId, ObjectId)>,
    /// There is at least one more, and what it needs cannot be told.
    pub(super) unreadable: Option<Doubt>,
}

/// All snapshots.
pub(super) fn all(folders: &Folders, cx: &Context<'_>) -> Result<All> {
    // A ref may move between files and packed refs while this looks. Packing writes the packed one first, unpacking the
    // file: whichever way it goes, one of these three looks sees it.
    let mut found = read_packed(folders)?.unwrap_or_default();
    let mut unreadable = None;
    if let Some(dir) = folder(folders)? {
        for name in files::names(&dir)? {
            match read_loose(&dir, &name) {
                Ok(Some(id)) => {
                    found.insert(name, Some(id));
                }
                Ok(None) => {}
                Err(error) => {
                    // What passes says nothing of what is damaged for good.
                    unreadable = unreadable.filter(|doubt| *doubt == Doubt::Passing).or(Some(Doubt::of(&error)));
                    cx.log(LogLevel::Warn, &format!("{error}; snapshot {name} is left out"));
                }
            }
        }
    }
    for (name, id) in read_packed(folders)?.unwrap_or_default() {
        found.entry(name).or_insert(id);
    }
    let damaged = found.values().any(Option::is_none).then_some(Doubt::Damage);
    let unreadable = unreadable.or(damaged);
    let snapshots = found.into_iter().filter_map(|(name, id)| Some((SnapshotId::new(name).ok()?, id?))).collect();
    Ok(All { snapshots, unreadable })
}

/// One snapshot's commit.
pub(super) fn one(folders: &Folders, id: &SnapshotId) -> Result<Option<ObjectId>> {
    for _ in 0..2 {
        if let Some(dir) = folder(folders)?
            && let Some(found) = read_loose(&dir, id.as_str())?
        {
            return Ok(Some(found));
        }
        match read_packed(folders)? {
            Some(packed) if packed.contains_key(id.as_str()) => {
                let commit = packed.get(id.as_str()).copied().flatten();
                return commit.map(Some).ok_or_else(|| files::damaged(format!("the packed ref of {id} is damaged")));
            }
            Some(_) => {} // It may just have been unpacked: look once more.
            None => return Ok(None),
        }
    }
    Ok(None)
}

/// Writes a snapshot's ref. With `durable`, it is on disk afterwards.
pub(super) fn write(folders: &Folders, id: &SnapshotId, commit: ObjectId, durable: bool) -> Result<()> {
    let dir = folder_for_writing(folders)?;
    files::put(folders.tmp.as_fd(), dir.as_fd(), id.as_str(), format!("{commit}\n").as_bytes(), 0o600, durable)?;
    if !durable {
        return Ok(());
    }
    let synced = files::sync(&dir, SNAPSHOTS);
    if synced.is_err() {
        // The caller is told that there is no snapshot; so there must be none.
        let _ = files::remove(&dir, id.as_str());
    }
    synced
}

/// Removes a snapshot's ref for good; whether there was one.
pub(super) fn remove(folders: &Folders, id: &SnapshotId) -> Result<bool> {
    unpack(folders, Some(id.as_str()))?;
    let Some(dir) = folder(folders)? else { return Ok(false) };
    let removed = files::remove(&dir, id.as_str())?;
    if removed {
        files::sync(&dir, SNAPSHOTS)?;
    }
    Ok(removed)
}

/// Brings a ref that is a file to disk, and the folder.
pub(super) fn sync<'a>(folders: &Folders, ids: impl Iterator<Item = &'a str>) -> Result<()> {
    let Some(dir) = folder(folders)? else { return Ok(()) };
    for id in ids {
        if let Some((file, _)) = files::open_file(&dir, id)? {
            files::sync(&file, id)?;
        }
    }
    files::sync(&dir, SNAPSHOTS)
}

/// Turns packed refs of snapshots back into files; that of `removed` need not be readable. Other refs in that file, a person's own,
/// stay.
fn unpack(folders: &Folders, removed: Option<&str>) -> Result<()> {
    let Some(packed) = read_packed(folders)? else { return Ok(()) };
    if packed.is_empty() {
        return Ok(());
    }
    // Git's own way to keep others from writing it.
    let lock = format!("{PACKED}.lock");
    if is_stale(folders, &lock) {
        files::remove(&folders.git, &lock)?;
    }
    let fd = files::create_new(&folders.git, &lock, 0o600).map_err(|error| {
        if error.kind != ErrorKind::AlreadyExists {
            return error;
        }
        Error::new(ErrorKind::Busy, "somebody is packing the refs of the store's repository")
            .with_hint("repeat when that is done; a lock that is older than a minute is removed")
            .with_cause(&error)
    })?;
    let done = (|| {
        let dir = folder_for_writing(folders)?;
        let present = read_packed(folders)?.unwrap_or_default();
        for (name, id) in &present {
            let Some(id) = id else { continue };
            if read_loose(&dir, name).ok().flatten().is_none() {
                files::put(folders.tmp.as_fd(), dir.as_fd(), name, format!("{id}\n").as_bytes(), 0o600, true)?;
            }
        }
        files::sync(&dir, SNAPSHOTS)?;
        let text = files::read_file(&folders.git, PACKED, PACKED_LIMIT)?.unwrap_or_default();
        let rest = without_snapshots(&text, removed);
        files::write_all(&fd, &rest).map_err(|e| Error::from_io("cannot write packed-refs", &e.into()))?;
        files::sync(&fd, PACKED)?;
        files::rename(&folders.git, &lock, &folders.git, PACKED)?;
        files::sync(&folders.git, "git")
    })();
    if done.is_err() {
        let _ = files::remove(&folders.git, &lock);
    }
    done
}

/// Whether a lock was left by a process that was killed, ours or a git: nobody holds this one longer than a moment.
fn is_stale(folders: &Folders, lock: &str) -> bool {
    let Ok(stat) = rustix::fs::statat(&folders.git, lock, rustix::fs::AtFlags::SYMLINK_NOFOLLOW) else { return false };
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime).tv_sec;
    // A clock that was set back must not make it last for ever.
    !(0..60).contains(&(now - stat.st_mtime))
}

/// The packed refs but for those of snapshots. One that is damaged stays, since it is all that is left of a snapshot, unless it is
/// that of `removed`.
fn without_snapshots(text: &[u8], removed: Option<&str>) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut ours = false;
    for line in text.split_inclusive(|&byte| byte == b'\n') {
        // A line with `^` belongs to the ref before it.
        if line.first() != Some(&b'^') {
            ours = line.find(OURS).is_some_and(|at| {
                let name = line[at + OURS.len()..].trim_end_with(|end| end == '\n');
                parse(&line[..at]).is_some() || removed.is_some_and(|removed| removed.as_bytes() == name)
            });
        }
        if !ours {
            out.extend_from_slice(line);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::{any, proptest};

    #[test]
    fn other_packed_refs_stay() {
        let a = "a".repeat(40);
        let text = format!("# pack-refs with: peeled\n{a} refs/ah/snapshots/x\n^{a}\n{a} refs/heads/mine\n^{a}\n");
        let rest = format!("# pack-refs with: peeled\n{a} refs/heads/mine\n^{a}\n");
        assert_eq!(super::without_snapshots(text.as_bytes(), None), rest.as_bytes());
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_ref_or_none(text in vec(any::<u8>(), 0..80)) {
            let _ = super::parse(&text);
            let _ = super::without_snapshots(&text, Some("x"));
        }
    }
}
