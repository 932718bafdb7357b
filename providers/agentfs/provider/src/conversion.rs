//! What is written down of a workspace that lies behind AgentFS, and the names beside it. `service/convert.rs` says what happens when.
//!
//! In the home:
//!
//! | name | what |
//! |---|---|
//! | `behind` | where the workspace is, since when nobody has anything to change in the directory behind it, and whether it was taken back |
//! | `converting` | a note of what is under way |
//! | `converting.lock` | held by the caller that takes it back |
//!
//! Behind what the first two say stands its CRC-32, in a line as that of a shelf's copy.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ah_plugin_api::sys::remove_dir_for_good;
use ah_plugin_api::{BEHIND, Context, Dir, Error, ErrorKind, NOT_MOUNTED, Result, SnapshotId, Timestamp, wire};
use ah_provider_directory::{Plain, State, failed, holders, look, names, path_of, remove_entry};
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, RenameFlags, Statx, StatxAttributes};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::home;
use crate::service::clear_place;

/// So long somebody is waited for who is just leaving.
const PATIENCE: Duration = Duration::from_secs(2);
const NOTE: &str = "converting";
const LOCK: &str = "converting.lock";
pub(crate) const SINCE: &str = "behind";
/// Since when nobody knows any more.
const UNKNOWN: Timestamp = Timestamp { secs: 0, nanos: 0 };
/// What the name of the copy begins with.
pub(crate) const COPY: &str = ".ah-convert-";
/// What the name begins with of a place that held more than could be put into the workspace, and of a directory with what was written in one.
pub(crate) const LEFT: &str = ".ah-left-";
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

fn read<T: serde::de::DeserializeOwned>(home: &Dir, name: &str) -> Result<Option<T>> {
    let Some(bytes) = home::read(home, name)? else { return Ok(None) };
    let damaged = || home::damaged(home, name, "is damaged");
    if home::is_other_than_summed(&bytes) {
        return Err(damaged());
    }
    wire::decode(&bytes).map(Some).map_err(|e| damaged().with_cause(&e))
}

/// Older programs read no further than what is before the sum.
fn write(home: &Dir, name: &str, what: &impl Serialize) -> Result<()> {
    home::write(home, name, &home::summed(wire::encode(what)?), true).map(drop)
}

/// Whether a snapshot is what a copy is to be compared with.
pub(crate) fn is_for_copy(id: &SnapshotId) -> bool {
    id.as_str().starts_with(COPY.trim_start_matches('.'))
}

/// A workspace that lies behind, or did, as long as what it was is read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Behind {
    /// The workspace's path.
    #[serde(with = "serde_bytes")]
    pub(crate) at: Vec<u8>,
    pub(crate) since: Timestamp,
    /// The number of the branch that is in place of the workspace, or was.
    pub(crate) branch: u32,
    /// Whether a plain directory is in the workspace's place again. Only then is it known that the branch was taken away, and is not lost.
    /// None: written by a program that did not say.
    #[serde(default)]
    pub(crate) taken_back: Option<bool>,
    /// The name under which the directory that lay behind it is being removed.
    pub(crate) leaves: Option<Vec<u8>>,
}

impl Behind {
    pub(crate) fn of(home: &Dir) -> Result<Option<Self>> {
        read(home, SINCE)
    }

    /// Whether it is there, be it damaged: what it says of was done then.
    pub(crate) fn is_there(home: &Dir) -> Result<bool> {
        match Self::of(home) {
            Err(error) if error.kind == ErrorKind::DataLoss => Ok(true),
            behind => Ok(behind?.is_some()),
        }
    }

    pub(crate) fn write(&self, home: &Dir) -> Result<()> {
        write(home, SINCE, self)
    }

    /// On disk when it returns.
    pub(crate) fn forget(home: &Dir) -> Result<()> {
        match rustix::fs::unlinkat(home, SINCE, AtFlags::empty()).and_then(|()| rustix::fs::fsync(home)) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(failed("cannot forget what lies behind the workspace", errno)),
        }
    }

    /// What a tree says of a workspace that lies behind, where what was written down is lost.
    pub(crate) fn anew(branch: u32, at: &Path) -> Self {
        let at = at.as_os_str().as_bytes().to_vec();
        Self { at, since: UNKNOWN, branch, taken_back: Some(false), leaves: None }
    }

    /// Whether it is known since when nobody has anything to change behind it.
    pub(crate) fn is_since_known(&self) -> bool {
        self.since != UNKNOWN
    }

    pub(crate) fn at(&self) -> PathBuf {
        PathBuf::from(OsString::from_vec(self.at.clone()))
    }

    /// Whether it says what the tree does of a workspace that is behind. `ends`: while that is being taken back.
    pub(crate) fn is_of(&self, branch: u32, at: &Path, ends: bool) -> bool {
        self.branch == branch && self.at() == at && (ends || self.taken_back != Some(true))
    }

    /// What is said of it where it is not so.
    pub(crate) fn damaged(home: &Dir) -> Error {
        home::damaged(home, SINCE, "is missing or damaged")
    }

    /// Where what lies behind it is put.
    pub(crate) fn beside(&self) -> Option<PathBuf> {
        beside(&self.at())
    }
}

/// Where what lies behind a workspace at that path is put.
pub(crate) fn beside(at: &Path) -> Option<PathBuf> {
    Some(path_beside(at, &behind_of(at.file_name()?)))
}

/// What the directory is called that lies behind a workspace of that name.
fn behind_of(name: &OsStr) -> OsString {
    [OsStr::new(BEHIND), name].into_iter().collect()
}

/// What is under way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Note {
    pub(crate) back: bool,
    /// The workspace's path.
    #[serde(with = "serde_bytes")]
    pub(crate) at: Vec<u8>,
    /// The name beside it.
    #[serde(with = "serde_bytes")]
    pub(crate) aside: Vec<u8>,
    /// The number of the directory that was made there: the place, or the copy; none before it is there, and whole.
    pub(crate) made: Option<u64>,
    /// The number of the workspace's own directory, and its permission bits: while it lies behind, it is shut. None: it stays as it is.
    #[serde(default)]
    pub(crate) own: Option<(u64, u32)>,
    /// The snapshot that the copy is to be compared with.
    pub(crate) before: Option<String>,
    /// Who began it has told why it failed: it was not cut short.
    #[serde(default)]
    pub(crate) given_up: bool,
    /// All is as it was, but for the branch, which is to go if it is there.
    #[serde(default)]
    pub(crate) undone: bool,
}

impl Note {
    /// Of what begins.
    pub(crate) fn new(back: bool, at: &Path, aside: &OsStr) -> Self {
        let bytes = |path: &OsStr| path.as_bytes().to_vec();
        let (at, aside) = (bytes(at.as_os_str()), bytes(aside));
        Self { back, at, aside, made: None, own: None, before: None, given_up: false, undone: false }
    }

    /// As it is once all was put back.
    pub(crate) fn undone(self) -> Self {
        Self { undone: true, ..self }
    }

    pub(crate) fn of(home: &Dir) -> Result<Option<Self>> {
        read(home, NOTE)
    }

    pub(crate) fn write(&self, home: &Dir) -> Result<()> {
        write(home, NOTE, self)
    }

    pub(crate) fn forget(home: &Dir) {
        // One that stays is settled by the next service, which finds that it is.
        let _ = rustix::fs::unlinkat(home, NOTE, AtFlags::empty());
    }

    pub(crate) fn at(&self) -> PathBuf {
        PathBuf::from(OsString::from_vec(self.at.clone()))
    }

    pub(crate) fn aside(&self) -> &OsStr {
        OsStr::from_bytes(&self.aside)
    }
}

/// The bits of a directory that nobody but its owner comes into.
pub(crate) fn shut(mode: u32) -> u32 {
    mode & !0o077
}

/// What is to be said where a copy would lack what lies behind.
pub(crate) fn incomplete() -> Error {
    let message = "the directory that lies behind it is not where it was, and a copy would lack what is in it";
    Error::new(ErrorKind::FailedPrecondition, message).with_hint(
        "bring it back there (`ah agent fs status` says where it was); or write it off: `ah agent fs rm --all` says how",
    )
}

/// The same where another directory is there.
pub(crate) fn restored(home: &Path, behind: &Path) -> Error {
    let message = format!(
        "the directory that lies behind it is another one than was put there, and a copy would lack what is in it: {} was restored or copied",
        behind.display()
    );
    let home = ah_plugin_api::text::shell(home.as_os_str());
    Error::new(ErrorKind::FailedPrecondition, message).with_hint(format!(
        "`ah agent fs status` says how it is taken for that; where `ah-agentfsd --fsck {home} --repair` does not take it, move it away: then `ah agent fs rm --all` says how what is shown is copied out"
    ))
}

/// The lock of who takes a workspace back; none while somebody has it.
pub(crate) fn lock_back(home: &Dir) -> Result<Option<OwnedFd>> {
    let cannot = |errno| failed("cannot lock the home of AgentFS", errno);
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(home, LOCK, flags, Mode::RUSR | Mode::WUSR).map_err(cannot)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(errno) => Err(cannot(errno)),
    }
}

/// Gives that lock back, also if a program that is being started has it open, too.
pub(crate) fn unlock(lock: &OwnedFd) {
    let _ = rustix::fs::flock(lock, FlockOperation::Unlock);
}

/// The folder that a workspace is in, and its name there.
pub(crate) struct Around {
    pub(crate) above: OwnedFd,
    pub(crate) name: OsString,
}

impl Around {
    pub(crate) fn of(at: &Path) -> Result<Self> {
        let (Some(above), Some(name)) = (at.parent(), at.file_name()) else {
            return Err(Error::new(ErrorKind::FailedPrecondition, "the whole system cannot be put behind AgentFS"));
        };
        let above = rustix::fs::open(above, DIRECTORY, Mode::empty())
            .map_err(|errno| failed(format!("cannot look at what is around {}", at.display()), errno))?;
        Ok(Self { above, name: name.to_owned() })
    }

    /// What is there under a name.
    pub(crate) fn look(&self, name: &OsStr) -> Option<Statx> {
        look(&self.above, name.as_bytes()).ok()
    }

    /// Whether the directory of that number is there under a name. A mount whose process is gone is another one.
    pub(crate) fn is(&self, name: &OsStr, ino: u64) -> Result<bool> {
        match look(&self.above, name.as_bytes()) {
            Ok(stat) => Ok(stat.stx_ino == ino),
            Err(Errno::NOENT | Errno::NOTCONN) => Ok(false),
            Err(errno) => Err(failed(format!("cannot look at {}", name.display()), errno)),
        }
    }

    /// Has names changed, on disk.
    pub(crate) fn rename(&self, from: &OsStr, to: &OsStr, how: RenameFlags) -> Result<()> {
        rustix::fs::renameat_with(&self.above, from, &self.above, to, how)
            .and_then(|()| rustix::fs::fsync(&self.above))
            .map_err(|errno| failed("cannot change the workspace's name", errno))
    }

    /// Gives the workspace's own directory, which lay behind and is in its place again, its permission bits back, on disk. What was changed of them since is
    /// somebody's.
    pub(crate) fn open_again(&self, (ino, mode): (u64, u32)) -> Result<()> {
        let cannot = |errno| failed(format!("cannot give {} its permissions back", self.name.display()), errno);
        let dir = rustix::fs::openat(&self.above, &self.name, DIRECTORY, Mode::empty()).map_err(cannot)?;
        let stat = rustix::fs::fstat(&dir).map_err(cannot)?;
        // Who shut it may have lost the set-group-ID bit by that, as the kernel takes it from who is not of the group.
        let who_may = |mode: Mode| mode & (Mode::RWXU | Mode::RWXG | Mode::RWXO);
        let (bits, shut) = (Mode::from_raw_mode(mode), Mode::from_raw_mode(shut(mode)));
        if stat.st_ino != ino || who_may(Mode::from_raw_mode(stat.st_mode)) != who_may(shut) || bits == shut {
            return Ok(());
        }
        rustix::fs::fchmod(&dir, bits).and_then(|()| rustix::fs::fsync(&dir)).map_err(cannot)
    }

    /// What the directory is called that lies behind.
    pub(crate) fn behind(&self) -> OsString {
        behind_of(&self.name)
    }

    /// Makes a directory that nobody else can come to.
    pub(crate) fn make(&self, name: &OsStr) -> Result<OwnedFd> {
        let cannot = |errno| failed("cannot make a directory beside the workspace", errno);
        rustix::fs::mkdirat(&self.above, name, Mode::RWXU).map_err(cannot)?;
        let made = rustix::fs::openat(&self.above, name, DIRECTORY, Mode::empty()).map_err(cannot)?;
        rustix::fs::fchmod(&made, Mode::RWXU).map_err(cannot)?;
        let stat = rustix::fs::fstat(&made).map_err(cannot)?;
        // Whoever may write above could have put something else there.
        if stat.st_uid != rustix::process::geteuid().as_raw() || !names(made.as_fd()).map_err(cannot)?.is_empty() {
            let message = "somebody else works beside the workspace under names of ours";
            return Err(Error::new(ErrorKind::Conflict, message).with_hint("repeat"));
        }
        Ok(made)
    }

    /// Removes what is under a name of ours, with all that is in it. What is gone is success; after `Cancelled`, calling it again goes on.
    pub(crate) fn remove(&self, name: &OsStr, cx: &Context<'_>) -> Result<()> {
        remove_entry(self.above.as_fd(), name.as_bytes(), &Plain, cx)
    }

    /// Takes away the place beside a workspace at which that was mounted, or was to be, with what stands in it. What somebody has put there goes into the workspace,
    /// where nothing is called so; else it stays, under a name that is in nobody's way, which is given in a sentence for a person.
    pub(crate) fn remove_place(&self, at: &Path, name: &OsStr) -> Result<Option<String>> {
        let place = path_beside(at, name);
        let cannot = |errno| failed(format!("cannot remove {}", place.display()), errno);
        clear_place(&place);
        match remove_dir_for_good(&self.above, name) {
            Ok(()) | Err(Errno::NOENT) => return Ok(None),
            Err(Errno::NOTEMPTY) => {}
            Err(errno) => return Err(cannot(errno)),
        }
        let from = rustix::fs::openat(&self.above, name, DIRECTORY, Mode::empty()).map_err(cannot)?;
        let to = rustix::fs::openat(&self.above, &self.name, DIRECTORY, Mode::empty()).map_err(cannot)?;
        rustix::fs::fchmod(&from, Mode::RWXU).map_err(cannot)?;
        for entry in names(from.as_fd()).map_err(cannot)?.iter().filter(|entry| *entry != NOT_MOUNTED.as_bytes()) {
            // What is called so there is the workspace's own.
            let _ = rustix::fs::renameat_with(&from, entry.as_slice(), &to, entry.as_slice(), RenameFlags::NOREPLACE);
        }
        clear_place(&place);
        if remove_dir_for_good(&self.above, name).is_ok() {
            return Ok(None);
        }
        let left = OsString::from(format!("{LEFT}{}", home::random()?));
        self.rename(name, &left, RenameFlags::NOREPLACE)?;
        let (at, left) = (at.display(), path_beside(at, &left));
        let said = format!("what was written at {at} meanwhile and could not be put into it is in {}", left.display());
        eprintln!("ah-agentfsd: {said}");
        Ok(Some(said))
    }

    /// Makes a directory of that kind, for what was written in a place, and gives its name.
    pub(crate) fn make_left(&self) -> Result<(OsString, OwnedFd)> {
        let name = OsString::from(format!("{LEFT}{}", home::random()?));
        let made = self.make(&name)?;
        Ok((name, made))
    }

    /// The names of what stayed so.
    pub(crate) fn left(&self) -> Vec<OsString> {
        let mut names = names(self.above.as_fd()).unwrap_or_default();
        names.retain(|name| name.starts_with(LEFT.as_bytes()));
        names.into_iter().map(OsString::from_vec).collect()
    }
}

/// What is said to who comes next after a conversion that was cut short.
pub(crate) fn cut_short(at: &Path, back: bool, finished: bool) -> String {
    let (at, what) = (at.display(), if back { "convert --back" } else { "convert" });
    let became = match (back, finished) {
        (false, true) => "finished: it is behind AgentFS now",
        (false, false) => "undone: it is a plain directory, as it was",
        (true, true) => "finished: it is a plain directory again",
        (true, false) => "undone: it is behind AgentFS, as before",
    };
    format!("`{what}` of {at} was cut short, and is {became}")
}

pub(crate) fn path_beside(at: &Path, name: &OsStr) -> PathBuf {
    at.parent().unwrap_or(Path::new("/")).join(name)
}

/// Refuses a workspace that somebody is in. What `ah` does in the background has files open, works nowhere, and comes to its end by itself: it is waited for.
pub(crate) fn refuse_held(workspace: &Dir, cx: &Context<'_>) -> Result<()> {
    holders::refuse_after(workspace.as_fd(), PATIENCE, cx)
}

/// Refuses what could not be taken back: what cannot be read, or given to whom it belongs; and what somebody has open, as far as the kernel says.
/// Gives a note for a person if files in it have names outside of it, too.
pub(crate) fn refuse_what_stays(workspace: &Dir, cx: &Context<'_>) -> Result<Option<String>> {
    let me = rustix::process::geteuid();
    let groups = rustix::process::getgroups().unwrap_or_default();
    let in_group =
        |gid: u32| rustix::process::getegid().as_raw() == gid || groups.iter().any(|group| group.as_raw() == gid);
    let is_locked = |stat: &Statx| stat.stx_attributes.intersects(StatxAttributes::IMMUTABLE | StatxAttributes::APPEND);
    // Of each file with several names, how many of them were not met.
    let mut unmet = HashMap::new();
    cx.progress("looking", 0, None);
    State::of(workspace.as_fd(), cx, |dir, name, stat| {
        let shown = || path_of(dir).join(OsStr::from_bytes(name));
        let refused = |why: &str, remedy: &str| {
            let message = format!("{} {why}, so it could not be taken back", shown().display());
            let hint = format!("{remedy} {}; then repeat", ah_plugin_api::text::shell(shown().as_os_str()));
            Err(Error::new(ErrorKind::FailedPrecondition, message).with_hint(hint))
        };
        if is_locked(stat) {
            return refused("is immutable or append-only", "chattr -ia");
        }
        if !me.is_root() && (stat.stx_uid != me.as_raw() || !in_group(stat.stx_gid)) {
            return refused("belongs to another user or group", "sudo chown \"$(id -u):$(id -g)\"");
        }
        let kind = FileType::from_raw_mode(stat.stx_mode.into());
        let needed = match kind {
            FileType::Directory => 0o500,
            FileType::RegularFile => 0o400,
            _ => 0,
        };
        if !me.is_root() && u32::from(stat.stx_mode) & needed != needed {
            return refused("cannot be read", "chmod u+rX");
        }
        if kind != FileType::Symlink && has_access_list(dir, name) {
            return refused("has an access list (ACL), which AgentFS does not enforce", "setfacl -b");
        }
        // Git's objects are never written to, and have names in `ah`'s own stores, and in clones.
        if kind != FileType::Directory && stat.stx_nlink > 1 && !is_object(dir, stat) {
            let file = (stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino);
            let names = unmet.entry(file).or_insert(stat.stx_nlink);
            *names = names.saturating_sub(1);
        }
        holders::refuse_open_entry(dir, name, stat)
    })?;
    let count = unmet.values().filter(|names| **names > 0).count() as u64;
    Ok((count > 0).then(|| {
        format!(
            "{} names outside of it, too (hard links): what is written to them here does not show there from now on",
            ah_plugin_api::text::count(count, "file in it has", "files in it have")
        )
    }))
}

/// Whether a file is one of Git's objects, by where it is.
pub(crate) fn is_object(folder: BorrowedFd<'_>, stat: &Statx) -> bool {
    FileType::from_raw_mode(stat.stx_mode.into()) == FileType::RegularFile
        && path_of(folder).iter().skip_while(|name| *name != ".git").any(|name| name == "objects")
}

/// Whether more is said of who may use an entry than its bits say.
fn has_access_list(dir: BorrowedFd<'_>, name: &[u8]) -> bool {
    let path = [format!("/proc/self/fd/{}/", dir.as_raw_fd()).as_bytes(), name].concat();
    let has = |list: &str| rustix::fs::lgetxattr(path.as_slice(), list, &mut [0_u8; 0][..]).is_ok();
    has("system.posix_acl_access") || has("system.posix_acl_default")
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_lock_is_free_though_another_program_has_it_open() {
        let temp = tempfile::tempdir().unwrap();
        let home = Dir::open(temp.path()).unwrap();
        let lock = lock_back(&home).unwrap().unwrap();
        // As a child has it between `fork` and `exec`.
        let _theirs = lock.try_clone().unwrap();
        assert!(lock_back(&home).unwrap().is_none());
        unlock(&lock);
        assert!(lock_back(&home).unwrap().is_some());
    }

    #[test]
    fn what_is_written_down_is_that_or_damaged_and_never_something_else() {
        let temp = tempfile::tempdir().unwrap();
        let (home, path) = (Dir::open(temp.path()).unwrap(), temp.path().join(SINCE));
        let leaves = Some(b".ah-convert-0123456789abcdef".to_vec());
        let behind = Behind { leaves, ..Behind::anew(1, Path::new("/some/where")) };
        behind.write(&home).unwrap();
        let whole = std::fs::read(&path).unwrap();
        for bit in 0..whole.len() * 8 {
            let mut other = whole.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&path, other).unwrap();
            match Behind::of(&home) {
                Ok(read) => assert_eq!(read, Some(behind.clone()), "bit {bit}"),
                Err(error) => assert_eq!(error.kind, ErrorKind::DataLoss, "bit {bit}"),
            }
        }
        // That of an older program, and what one reads of this.
        for leaves in [None, behind.leaves.clone()] {
            let older = Behind { leaves, ..behind.clone() };
            std::fs::write(&path, wire::encode(&older).unwrap()).unwrap();
            assert_eq!(Behind::of(&home).unwrap(), Some(older));
        }
        assert_eq!(wire::decode::<Behind>(&whole).unwrap(), behind);
    }

    #[test]
    fn what_was_put_in_the_place_is_found_again() {
        let temp = tempfile::tempdir().unwrap();
        let at = temp.path().join("work");
        std::fs::create_dir(&at).unwrap();
        std::fs::write(at.join("a"), "the workspace's").unwrap();
        let around = Around::of(&at).unwrap();
        let names = || {
            let names = std::fs::read_dir(temp.path()).unwrap().map(|entry| entry.unwrap().file_name());
            names.filter(|name| name != "work").collect::<Vec<_>>()
        };
        drop(around.make(OsStr::new("place")).unwrap());
        assert!(around.make(OsStr::new("place")).is_err());
        assert_eq!(around.remove_place(&at, OsStr::new("place")).unwrap(), None);
        assert_eq!(names(), Vec::<OsString>::new());
        drop(around.make(OsStr::new("place")).unwrap());
        std::fs::write(temp.path().join("place/new"), "somebody's").unwrap();
        std::fs::write(temp.path().join("place/a"), "somebody's").unwrap();
        let said = around.remove_place(&at, OsStr::new("place")).unwrap().unwrap();
        assert_eq!(std::fs::read_to_string(at.join("new")).unwrap(), "somebody's");
        assert_eq!(std::fs::read_to_string(at.join("a")).unwrap(), "the workspace's");
        let [left] = names().try_into().unwrap();
        let left = temp.path().join(left);
        assert_eq!(std::fs::read_to_string(left.join("a")).unwrap(), "somebody's");
        assert!(said.contains(left.to_str().unwrap()), "{said}");
    }

    #[test]
    fn who_works_there_is_told_of_at_once_and_who_has_something_open_is_waited_for() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::write(temp.path().join("f"), "x").unwrap();
        let dir = Dir::open(temp.path()).unwrap();
        let refused = |change: &dyn Fn(&mut Command), script: &str| {
            let mut command = Command::new("sh");
            change(command.args(["-c", script]));
            let mut child = command.spawn().unwrap();
            // It has what it was given open, too.
            drop(command);
            let began = Instant::now();
            let refused = refuse_held(&dir, &Context::quiet());
            child.kill().unwrap();
            child.wait().unwrap();
            (refused.err().map(|error| error.kind), began.elapsed())
        };
        let works = |command: &mut Command| _ = command.current_dir(temp.path());
        let (works, took) = refused(&works, "exec sleep 60");
        assert!(works == Some(ErrorKind::Busy) && took < PATIENCE / 2, "{works:?} {took:?}");
        let opens = |command: &mut Command| _ = command.stdin(std::fs::File::open(temp.path().join("f")).unwrap());
        let (leaves, took) = refused(&opens, "sleep 1; exec sleep 60 </dev/null");
        assert!(leaves.is_none() && took >= PATIENCE / 4, "{leaves:?} {took:?}");
    }

    #[test]
    fn access_lists_are_seen() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::write(temp.path().join("plain"), "").unwrap();
        std::fs::write(temp.path().join("listed"), "").unwrap();
        // Version 2; the owner, user 1000, the group, the mask, others.
        let entries: [(u16, u16, u32); 5] = [(1, 6, !0), (2, 6, 1000), (4, 4, !0), (0x10, 6, !0), (0x20, 0, !0)];
        let mut list = 2_u32.to_le_bytes().to_vec();
        for (tag, bits, id) in entries {
            list.extend([tag.to_le_bytes(), bits.to_le_bytes()].concat());
            list.extend(id.to_le_bytes());
        }
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(temp.path().join("listed"), "system.posix_acl_access", &list, flags).unwrap();
        let dir = std::fs::File::open(temp.path()).unwrap();
        assert!(has_access_list(dir.as_fd(), b"listed") && !has_access_list(dir.as_fd(), b"plain"));
    }
}
