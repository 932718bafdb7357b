//! Where things are: homes, shelves, and which tree a directory is part of.
//!
//! A home is a provider's store (see the contract) in which AgentFS keeps:
//!
//! | name | what |
//! |---|---|
//! | `shelf` | which snapshots are this store's; every store has one, a home or not |
//! | `shelf.copy` | the same once more, and its checksum: it counts before the other, but older programs made none |
//! | `tree/` | the store of `ah-agentfs` |
//! | `lower` | the path of the directory that was branched |
//! | `here` | the path of the home itself, and behind a NUL the one before that: a copy finds another home there |
//! | `views/` | a record for each view that is mounted |
//! | `behind`, `converting`, `converting.lock` | of a workspace that was itself put behind AgentFS (`conversion`) |
//! | `passthrough` | if it is there: large files are passed through in what the service mounts |
//! | `socket`, `service.lock`, `log` | the service's |
//! | `NAME.` and 32 hexadecimal digits | one of these, as it is being written |
//!
//! A shelf is three lines: `agentfs shelf 1`, a random key, and the path of the home, which is empty for a home itself. In its copy a fourth one is the CRC-32 of
//! these.

use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use ah_plugin_api::{Dir, Error, ErrorKind, Result, Timestamp, text};
use ah_provider_directory::{Mounts, failed, look, names, unescape};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, RenameFlags, Statx};
use rustix::io::Errno;

use crate::lost;

/// The name of a store's shelf.
pub(crate) const SHELF: &str = "shelf";
const COPY: &str = "shelf.copy";
const HERE: &str = "here";
/// The tree's name in a home.
pub(crate) const TREE: &str = "tree";
/// Written once there is a tree, and never taken away.
pub(crate) const LOWER: &str = "lower";
const FIRST_LINE: &str = "agentfs shelf 1";
/// The beginning of a mount's source; behind it the home, `#`, and the number of the line.
const SOURCE: &str = "agentfs:";
/// How long such a last line is.
const CRC: usize = 9;
/// Longer files of these kinds are not ours.
const LONGEST: usize = 8192;
/// In seconds: what was written to so lately may be an older program's, which locks nothing.
const YOUNG: i64 = 60;

/// Whose snapshots a store's are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shelf {
    /// In every snapshot's record.
    pub(crate) key: String,
    /// Where the tree is; none: in this store.
    pub(crate) home: Option<PathBuf>,
}

impl Shelf {
    /// That of a store; none if nothing was ever kept in it.
    ///
    /// # Errors
    /// `DataLoss` if it is damaged, or not there though a tree is.
    pub(crate) fn of(store: &Dir) -> Result<Option<Self>> {
        if let Some(shelf) = Self::of_copy(store) {
            return Ok(Some(shelf));
        }
        match read(store, SHELF)? {
            Some(bytes) => Self::parse(&bytes).map(Some).ok_or_else(|| damaged(store, SHELF, "is damaged")),
            None if look(store, TREE.as_bytes()).is_ok() => Err(damaged(store, SHELF, "is not there")),
            None => Ok(None),
        }
    }

    /// What the copy says, as long as that is whole.
    fn of_copy(store: &Dir) -> Option<Self> {
        let bytes = read(store, COPY).ok()??;
        let shelf = Self::parse(bytes.get(..bytes.len().checked_sub(CRC)?)?)?;
        (shelf.summed() == bytes).then_some(shelf)
    }

    /// Whether a checksum vouches for what is written down of it.
    pub(crate) fn is_sure(store: &Dir) -> bool {
        Self::of_copy(store).is_some()
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let mut lines = bytes.strip_suffix(b"\n")?.splitn(3, |&b| b == b'\n');
        let (first, key, home) = (lines.next()?, lines.next()?, lines.next()?);
        let key = std::str::from_utf8(key).ok().filter(|key| is_key(key))?.to_owned();
        let home = (!home.is_empty()).then(|| PathBuf::from(OsString::from_vec(home.to_vec())));
        let is_ours = first == FIRST_LINE.as_bytes() && home.as_ref().is_none_or(|home| home.is_absolute());
        is_ours.then_some(Self { key, home })
    }

    fn text(&self) -> Vec<u8> {
        let home = self.home.as_ref().map_or(b"".as_slice(), |home| home.as_os_str().as_bytes());
        [FIRST_LINE.as_bytes(), b"\n", self.key.as_bytes(), b"\n", home, b"\n"].concat()
    }

    fn summed(&self) -> Vec<u8> {
        summed(self.text())
    }

    /// Writes it where it is not, or not as it should be: what is kept says that it is the one.
    pub(crate) fn keep(&self, store: &Dir) -> Result<()> {
        for (name, bytes) in [(SHELF, self.text()), (COPY, self.summed())] {
            if !matches!(read(store, name), Ok(Some(there)) if there == bytes) {
                write(store, name, &bytes, true)?;
            }
        }
        Ok(())
    }

    /// Which of its files are not as they should be, for a person. Older programs made no copy.
    pub(crate) fn faults(store: &Dir) -> Vec<String> {
        let copy = Self::of_copy(store);
        let first = read(store, SHELF).ok().flatten().and_then(|bytes| Self::parse(&bytes));
        let is_other = first.is_none() || copy.is_some() && first != copy;
        let is_no_copy = copy.is_none() && !matches!(read(store, COPY), Ok(None));
        let faults = [(SHELF, is_other), (COPY, is_no_copy)].into_iter().filter(|(_, is_fault)| *is_fault);
        faults.map(|(name, _)| format!("{} is missing or damaged", store.path().join(name).display())).collect()
    }

    /// That of a store, made if there is none: for a tree in `home`, or one of its own.
    ///
    /// # Errors
    /// `FailedPrecondition` if the store's snapshots are of another home's trees; those of the system.
    pub(crate) fn make(store: &Dir, home: Option<&Path>) -> Result<Self> {
        if let Some(shelf) = Self::of(store)? {
            return shelf.fits(home);
        }
        let shelf = Self { key: random()?, home: home.map(Path::to_owned) };
        if home.is_some_and(|home| home.as_os_str().as_bytes().contains(&b'\n')) {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "AgentFS keeps nothing in a folder with a line break in its name",
            ));
        }
        if home.is_none() {
            settle(store, &path_of(store)?)?;
        }
        if write(store, SHELF, &shelf.text(), false)? {
            // Only who has made the one makes the other. Where that fails, it is made later.
            let _ = shelf.keep(store);
            return Ok(shelf);
        }
        // Somebody else was quicker.
        let removed = || Err(Error::new(ErrorKind::Busy, "the store is being removed"));
        Self::of(store)?.map_or_else(removed, |shelf| shelf.fits(home))
    }

    /// It, if its snapshots are of a tree in `home`, or one of its own.
    ///
    /// # Errors
    /// `FailedPrecondition` if not.
    pub(crate) fn fits(self, home: Option<&Path>) -> Result<Self> {
        if self.home.as_deref() == home {
            return Ok(self);
        }
        let message = "the snapshots that were taken of this workspace before are of another AgentFS tree";
        Err(Error::new(ErrorKind::FailedPrecondition, message)
            .with_hint("ah agent fs snapshots shows them; `ah agent fs rm` them first"))
    }
}

/// What is said of a file in a store without which it is not known what is kept there.
pub(crate) fn damaged(store: &Dir, name: &str, how: &str) -> Error {
    let message = format!("{} {how}: what AgentFS keeps there is not to be had", store.path().join(name).display());
    let hint = match look(store, TREE.as_bytes()) {
        Ok(_) => {
            format!("whether it can be mended says `ah-agentfsd --fsck {}`", text::shell(store.path().as_os_str()))
        }
        // A branch's: what it is of is written down nowhere else.
        Err(_) => "a copy of AH_HOME may have that file; nothing else says what it said".to_owned(),
    };
    Error::new(ErrorKind::DataLoss, message).with_hint(hint)
}

/// What is said where a tree was made once and is not there any more: an empty one in its place would say that nothing was ever kept, stand in the way of its return, and give
/// its branches the names of those that were. None where it is there, or nothing was ever kept.
pub(crate) fn tree_gone(home: &Dir) -> Option<Error> {
    let is_gone = look(home, TREE.as_bytes()).err() == Some(Errno::NOENT) && look(home, LOWER.as_bytes()).is_ok();
    is_gone.then(|| {
        let tree = home.path().join(TREE);
        let message = format!("{} is not there: what AgentFS keeps there is not to be had", tree.display());
        Error::new(ErrorKind::DataLoss, message).with_hint(lost::tree_gone(home))
    })
}

/// What is to be written, with a last line that vouches for it: its CRC-32.
pub(crate) fn summed(bytes: Vec<u8>) -> Vec<u8> {
    let sum = format!("{:08x}\n", crc32fast::hash(&bytes));
    [bytes, sum.into_bytes()].concat()
}

/// Whether what was read is not what its last line vouches for. Older programs wrote none, and nothing that ends like one.
pub(crate) fn is_other_than_summed(bytes: &[u8]) -> bool {
    let Some((before, line)) = bytes.len().checked_sub(CRC).map(|at| bytes.split_at(at)) else { return false };
    let is_sum = line.strip_suffix(b"\n").is_some_and(|sum| sum.iter().all(u8::is_ascii_hexdigit));
    is_sum && summed(before.to_vec()) != bytes
}

fn is_key(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// 32 hexadecimal digits that nobody else has.
pub(crate) fn random() -> Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|e| Error::new(ErrorKind::Internal, format!("no random number is to be had: {e}")))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A small file of ours; none if it is not there.
pub(crate) fn read(dir: &Dir, name: &str) -> Result<Option<Vec<u8>>> {
    let fail = |errno| failed(format!("cannot read {}/{name}", dir.path().display()), errno);
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(fail(errno)),
    };
    let mut bytes = vec![0; LONGEST];
    let mut filled = 0;
    while filled < LONGEST {
        match rustix::io::retry_on_intr(|| rustix::io::read(&file, &mut bytes[filled..])).map_err(fail)? {
            0 => break,
            got => filled += got,
        }
    }
    bytes.truncate(filled);
    Ok(Some(bytes))
}

/// Writes a small file, whole and on the disk, or not at all. False if it is there already and shall not be replaced.
pub(crate) fn write(dir: &Dir, name: &str, bytes: &[u8], replace: bool) -> Result<bool> {
    let fail = |errno| failed(format!("cannot write {}/{name}", dir.path().display()), errno);
    let (new, file) = begin(dir, name)?;
    let written = (|| {
        let mut rest = bytes;
        while !rest.is_empty() {
            let done = rustix::io::retry_on_intr(|| rustix::io::write(&file, rest))?;
            rest = rest.get(done..).unwrap_or_default();
        }
        rustix::fs::fsync(&file)?;
        let how = if replace { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
        rustix::fs::renameat_with(dir, &new, dir, name, how)?;
        rustix::fs::fsync(dir)
    })();
    if written.is_err() {
        let _ = rustix::fs::unlinkat(dir, &new, AtFlags::empty());
    }
    match written {
        Ok(()) => Ok(true),
        Err(Errno::EXIST) if !replace => Ok(false),
        Err(errno) => Err(fail(errno)),
    }
}

/// A file beside the one of that name, and what it is called: locked, so that [`sweep`] leaves it alone.
fn begin(dir: &Dir, name: &str) -> Result<(String, OwnedFd)> {
    let fail = |errno| failed(format!("cannot write {}/{name}", dir.path().display()), errno);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    loop {
        let new = format!("{name}.{}", random()?);
        let file = rustix::fs::openat(dir, &new, flags, Mode::RUSR | Mode::WUSR).map_err(fail)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) if rustix::fs::fstat(&file).map_err(fail)?.st_nlink > 0 => return Ok((new, file)),
            // It was swept before it was locked, or is at this moment.
            Ok(()) | Err(Errno::WOULDBLOCK) => {}
            Err(errno) => {
                let _ = rustix::fs::unlinkat(dir, &new, AtFlags::empty());
                return Err(fail(errno));
            }
        }
    }
}

/// Takes away what somebody who was killed had begun to write in a folder. What cannot go now, or was written to lately, the next one takes away.
pub(crate) fn sweep(dir: &Dir) {
    let is_begun = |name: &[u8]| {
        let name = std::str::from_utf8(name).ok().and_then(|name| name.rsplit_once('.'));
        name.is_some_and(|(name, random)| !name.is_empty() && is_key(random))
    };
    let names = names(dir.as_fd()).unwrap_or_default();
    for name in names.iter().filter(|name| is_begun(name)) {
        // For writing: NFS and CIFS give no other such a lock.
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let Ok(file) = rustix::fs::openat(dir, name.as_slice(), flags, Mode::empty()) else { continue };
        let is_old = |stat: Statx| Timestamp::now().secs.saturating_sub(stat.stx_mtime.tv_sec) > YOUNG;
        let is_free = || rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
        if look(&file, b"").is_ok_and(is_old) && is_free() {
            let _ = rustix::fs::unlinkat(dir, name.as_slice(), AtFlags::empty());
        }
    }
}

/// The path of an open directory, as the kernel knows it.
pub(crate) fn path_of(dir: impl AsFd) -> Result<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{}", dir.as_fd().as_raw_fd()))
        .map_err(|e| Error::from_io("cannot find out where a folder is", &e))
}

/// Whether a store is a home that was at a path, and was moved.
pub(crate) fn was_at(store: &Dir, path: &Path) -> bool {
    here(store).is_some_and(|(now, before)| now == path || before.as_deref() == Some(path))
}

/// What is said of a home that is not where it was.
pub(crate) fn moved(from: &Path, to: &Path) -> Error {
    let message = format!("what AgentFS kept at {} is at {} now", from.display(), to.display());
    Error::new(ErrorKind::FailedPrecondition, message).with_hint("if AH_HOME was moved, move it back to where it was")
}

/// Where a home says that it is, and where it was before that, or what it is a copy of.
fn here(home: &Dir) -> Option<(PathBuf, Option<PathBuf>)> {
    let bytes = read(home, HERE).ok().flatten()?;
    let mut places = bytes.split(|&b| b == 0).map(|place| PathBuf::from(OsString::from_vec(place.to_vec())));
    Some((places.next()?, places.next()))
}

/// The home that this one, at `path`, is a copy of, if that is there and says so itself, or cannot be read now: what is in place of its
/// branches and its workspace is not this one's to mount or to take away.
pub(crate) fn original(home: &Dir, path: &Path) -> Option<PathBuf> {
    let shelf = Shelf::of(home).ok().flatten()?;
    let id = |dir: &Dir| rustix::fs::fstat(dir).map(|stat| (stat.st_dev, stat.st_ino)).ok();
    let is_it = |other: &PathBuf| match Dir::open(other) {
        Ok(there) => {
            id(&there) != id(home)
                && matches!(Shelf::of(&there), Ok(Some(theirs)) if theirs.key == shelf.key)
                && here(&there).is_some_and(|(place, _)| place == *other)
        }
        Err(error) => {
            !matches!(error.kind, ErrorKind::NotFound | ErrorKind::InvalidArgument | ErrorKind::PermissionDenied)
        }
    };
    let (place, from) = here(home)?;
    [Some(place), from].into_iter().flatten().filter(|other| other != path).find(is_it)
}

/// Has a home, which is no copy of one that is there, say where it is.
pub(crate) fn settle(home: &Dir, path: &Path) -> Result<()> {
    let before = here(home).map(|(place, _)| place);
    if before.as_deref() == Some(path) {
        return Ok(());
    }
    let path = path.as_os_str().as_bytes();
    let bytes = before.map_or_else(|| path.to_vec(), |before| [path, b"\0", before.as_os_str().as_bytes()].concat());
    write(home, HERE, &bytes, true).map(drop)
}

/// A home of this user's, opened.
///
/// # Errors
/// `PermissionDenied` if it is none, or others may write in it; `DataLoss` if it cannot be told for sure, as its shelf is lost.
pub(crate) fn own(path: &Path) -> Result<Dir> {
    let dir = mine(path)?;
    match Shelf::of(&dir)? {
        Some(Shelf { home: None, .. }) => Ok(dir),
        _ => Err(Error::new(ErrorKind::PermissionDenied, format!("{} is no home of AgentFS", path.display()))),
    }
}

/// A folder that is this user's alone, whatever is in it.
pub(crate) fn mine(path: &Path) -> Result<Dir> {
    let dir = Dir::open(path)?;
    let is_mine =
        |stat: &rustix::fs::Stat| stat.st_uid == rustix::process::geteuid().as_raw() && stat.st_mode & 0o022 == 0;
    match rustix::fs::fstat(&dir).is_ok_and(|stat| is_mine(&stat)) {
        true => Ok(dir),
        false => Err(Error::new(ErrorKind::PermissionDenied, format!("{} is not yours alone", path.display()))),
    }
}

/// Whether a folder is a home of this user's, be it a damaged one.
fn is_home(path: &Path) -> bool {
    own(path).map_or_else(|error| error.kind == ErrorKind::DataLoss, |_| true)
}

/// Which tree of which home is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) home: PathBuf,
    /// The branch's number; none for a view.
    pub(crate) branch: Option<u32>,
}

impl Shown {
    /// What the mount table is to say.
    pub(crate) fn source(&self) -> String {
        let mut text = SOURCE.to_owned();
        for &byte in self.home.as_os_str().as_bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'_' | b'-' => text.push(char::from(byte)),
                other => text.push_str(&format!("%{other:02x}")),
            }
        }
        match self.branch {
            Some(branch) => format!("{text}#{branch}"),
            None => format!("{text}#view"),
        }
    }

    /// What refers to a branch: the same, and behind a point its mark, if it has one.
    pub(crate) fn reference(&self, mark: Option<&str>) -> String {
        mark.map_or_else(|| self.source(), |mark| format!("{}.{mark}", self.source()))
    }

    /// The reverse of that.
    pub(crate) fn referred(reference: &str) -> Option<(Self, Option<&str>)> {
        let (_, branch) = reference.rsplit_once('#')?;
        let mark = branch.split_once('.').map(|(_, mark)| mark);
        let source = mark.map_or(reference, |mark| &reference[..reference.len() - mark.len() - 1]);
        Some((Self::parse(source.as_bytes())?, mark))
    }

    /// The reverse of [`Shown::source`].
    pub(crate) fn parse(source: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(source).ok()?.strip_prefix(SOURCE)?;
        let (path, branch) = text.rsplit_once('#')?;
        let branch = if branch == "view" { None } else { Some(branch.parse().ok()?) };
        let home = unescape(path.as_bytes())?;
        Some(Self { home: PathBuf::from(OsString::from_vec(home)), branch })
    }

    /// The tree of which an open directory is the root or a part, and whether it is the root. By the number of its device, so also where it is shown at
    /// another path.
    pub(crate) fn around(dir: &Dir) -> Result<Option<(Self, bool)>> {
        let stat = look(dir, b"").map_err(|errno| failed("cannot look at the workspace", errno))?;
        let device = format!("{}:{}", stat.stx_dev_major, stat.stx_dev_minor);
        let mounts = Mounts::read()?;
        // `fuse` when root mounted it, `fuse.agentfs` by fusermount3.
        let ours = |kind: &str| kind == "fuse" || kind == "fuse.agentfs";
        let mut found = mounts.iter().filter(|mount| ours(&mount.kind) && mount.device == device);
        // Anybody who may mount can call a mount so; but only this user makes a home of this user's.
        let shown = found.find_map(|mount| Self::parse(&mount.source).filter(|shown| is_home(&shown.home)));
        let Some(shown) = shown else { return Ok(None) };
        // Only roots have numbers of that kind.
        let is_root = shown.branch.is_some_and(|branch| stat.stx_ino == root_number(&shown.home, branch));
        Ok(Some((shown, is_root)))
    }
}

/// The inode number that the root of a branch shows: the same after each mount, and nobody else's, so that who knows a workspace by device and
/// inode does not take one for another when device numbers are handed out anew.
pub(crate) fn root_number(home: &Path, branch: u32) -> u64 {
    // FNV-1a over the home's path, with the branch behind it. Bit 62 is set: the tree's own numbers are below.
    let bytes = home.as_os_str().as_bytes().iter().copied().chain(branch.to_le_bytes());
    let hash =
        bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    (1 << 62) | (hash >> 2)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    #[test]
    fn sources_come_back_and_odd_ones_are_nobodys() {
        let home = PathBuf::from(OsString::from_vec(b"/a b/,\\#%\xff/\xc3\xa9".to_vec()));
        for branch in [None, Some(0), Some(u32::MAX)] {
            let shown = Shown { home: home.clone(), branch };
            assert!(shown.source().bytes().all(|b| b.is_ascii_alphanumeric() || b"/._-:#%".contains(&b)));
            for mark in [None, Some("0a")] {
                assert_eq!(Shown::referred(&shown.reference(mark)), Some((shown.clone(), mark)));
            }
            assert_eq!(Shown::parse(shown.source().as_bytes()), Some(shown));
        }
        for odd in [
            b"agentfs".as_slice(),
            b"agentfs:/a",
            b"agentfs:/a#",
            b"agentfs:/a#-1",
            b"agentfs:/%4#1",
            b"agentfs:/%zz#1",
            b"\xff",
        ] {
            assert_eq!(Shown::parse(odd), None);
        }
    }

    #[test]
    fn a_shelf_is_made_once_and_comes_back() {
        let temp = tempfile::tempdir().unwrap();
        let store = Dir::open(temp.path()).unwrap();
        assert_eq!(Shelf::of(&store).unwrap(), None);
        let shelf = Shelf::make(&store, None).unwrap();
        assert_eq!(Shelf::make(&store, None).unwrap(), shelf);
        assert_eq!(Shelf::of(&store).unwrap(), Some(shelf));
        assert_eq!(Shelf::make(&store, Some(Path::new("/x"))).unwrap_err().kind, ErrorKind::FailedPrecondition);
    }

    #[test]
    fn a_shelf_is_the_same_whichever_of_its_files_is_damaged_and_never_another() {
        for home in [None, Some(Path::new("/a/home"))] {
            let temp = tempfile::tempdir().unwrap();
            let store = Dir::open(temp.path()).unwrap();
            let shelf = Shelf::make(&store, home).unwrap();
            let whole = [SHELF, COPY].map(|name| (name, std::fs::read(temp.path().join(name)).unwrap()));
            for (name, bytes) in &whole {
                let path = temp.path().join(name);
                for bit in 0..bytes.len() * 8 {
                    let mut other = bytes.clone();
                    other[bit / 8] ^= 1 << (bit % 8);
                    std::fs::write(&path, &other).unwrap();
                    assert_eq!(Shelf::of(&store).unwrap(), Some(shelf.clone()), "bit {bit} of {name}");
                }
                std::fs::remove_file(&path).unwrap();
                assert_eq!(Shelf::of(&store).unwrap(), Some(shelf.clone()), "without {name}");
                shelf.keep(&store).unwrap();
                assert_eq!((std::fs::read(&path).unwrap(), Shelf::faults(&store)), (bytes.clone(), Vec::new()));
            }
            // That of an older program.
            std::fs::remove_file(temp.path().join(COPY)).unwrap();
            assert_eq!((Shelf::of(&store).unwrap(), Shelf::faults(&store).len()), (Some(shelf), 0));
            for damage in ["agentfs shelf 1\nshort\n\n", ""] {
                std::fs::write(temp.path().join(SHELF), damage).unwrap();
                let lost = Shelf::of(&store).unwrap_err();
                assert!(lost.kind == ErrorKind::DataLoss && !lost.hint.unwrap().contains("--fsck"), "there is no tree");
            }
            // Nothing was ever kept where there is neither of them, nor a tree.
            std::fs::remove_file(temp.path().join(SHELF)).unwrap();
            assert_eq!(Shelf::of(&store).unwrap(), None);
            std::fs::create_dir(temp.path().join(TREE)).unwrap();
            let lost = Shelf::of(&store).unwrap_err();
            assert!(lost.kind == ErrorKind::DataLoss && lost.message.contains("/shelf is not there"), "{lost:?}");
        }
    }

    #[test]
    fn what_was_begun_goes_once_nobody_writes_it() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::open(temp.path()).unwrap();
        let there = || std::fs::read_dir(temp.path()).unwrap().count();
        for name in ["here", "shelf.copy"] {
            let (new, file) = begin(&dir, name).unwrap();
            let written = |at: SystemTime| {
                let file = std::fs::File::options().write(true).open(temp.path().join(&new)).unwrap();
                file.set_modified(at).unwrap();
            };
            written(SystemTime::UNIX_EPOCH);
            sweep(&dir);
            assert_eq!(there(), 1, "it is being written");
            drop(file);
            for at in [SystemTime::now(), SystemTime::now() + Duration::from_secs(1 << 20)] {
                written(at);
                sweep(&dir);
                assert_eq!(there(), 1, "perhaps by a program that locks nothing");
            }
            written(SystemTime::UNIX_EPOCH);
            sweep(&dir);
            assert_eq!(there(), 0);
        }
        // What others have is none, nor is a view's record.
        for name in ["log", "tree.old", "0123456789abcdef0123456789abcdef", ".0123456789abcdef0123456789abcdef"] {
            std::fs::write(temp.path().join(name), "").unwrap();
        }
        write(&dir, "here", b"x", true).unwrap();
        for file in std::fs::read_dir(temp.path()).unwrap() {
            let file = std::fs::File::options().write(true).open(file.unwrap().path()).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        }
        sweep(&dir);
        assert_eq!(there(), 5);
    }

    #[test]
    fn roots_have_numbers_of_their_own() {
        let (a, b) = (root_number(Path::new("/a"), 1), root_number(Path::new("/a"), 2));
        assert!(a != b && a != root_number(Path::new("/b"), 1) && a >> 62 == 1);
    }
}
