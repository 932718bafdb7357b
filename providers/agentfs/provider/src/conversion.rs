//! What is written down of a workspace that lies behind AgentFS, and the names beside it. `service/convert.rs` says what happens when.
//!
//! In the home:
//!
//! | name | what |
//! |---|---|
//! | `behind` | where the workspace is, and since when nobody has anything to change in the directory behind it |
//! | `converting` | a note of what is under way |
//! | `converting.lock` | held by the caller that takes it back |

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use ah_plugin_api::sys::remove_dir_for_good;
use ah_plugin_api::{Context, Dir, Error, ErrorKind, Result, SnapshotId, Timestamp, wire};
use ah_provider_directory::{State, failed, holders, look, names, path_of, remove_contents};
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, RenameFlags, Statx, StatxAttributes};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::home;
use crate::service::clear_place;

const NOTE: &str = "converting";
const LOCK: &str = "converting.lock";
const SINCE: &str = "behind";
/// What the name of the directory begins with that lies behind.
pub(crate) const BEHIND: &str = ".ah-behind-";
/// What the name of the copy begins with.
pub(crate) const COPY: &str = ".ah-convert-";
pub(crate) const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

fn read<T: serde::de::DeserializeOwned>(home: &Dir, name: &str) -> Result<Option<T>> {
    let bytes = home::read(home, name)?;
    bytes.map(|bytes| wire::decode(&bytes).map_err(|e| Error { kind: ErrorKind::DataLoss, ..e })).transpose()
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
    /// The name under which the directory that lay behind it is being removed.
    pub(crate) leaves: Option<Vec<u8>>,
}

impl Behind {
    pub(crate) fn of(home: &Dir) -> Result<Option<Self>> {
        read(home, SINCE)
    }

    pub(crate) fn write(&self, home: &Dir) -> Result<()> {
        home::write(home, SINCE, &wire::encode(self)?, true).map(drop)
    }

    /// On disk when it returns.
    pub(crate) fn forget(home: &Dir) -> Result<()> {
        match rustix::fs::unlinkat(home, SINCE, AtFlags::empty()).and_then(|()| rustix::fs::fsync(home)) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(failed("cannot forget what lies behind the workspace", errno)),
        }
    }

    pub(crate) fn at(&self) -> PathBuf {
        PathBuf::from(OsString::from_vec(self.at.clone()))
    }
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
    /// The snapshot that the copy is to be compared with.
    pub(crate) before: Option<String>,
}

impl Note {
    pub(crate) fn of(home: &Dir) -> Result<Option<Self>> {
        read(home, NOTE)
    }

    pub(crate) fn write(&self, home: &Dir) -> Result<()> {
        home::write(home, NOTE, &wire::encode(self)?, true).map(drop)
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

/// What is to be said where a copy would lack what lies behind.
pub(crate) fn incomplete() -> Error {
    let message = "the directory that lies behind it is not where it was, and a copy would lack what is in it";
    Error::new(ErrorKind::FailedPrecondition, message).with_hint(
        "bring it back there; or copy out of the workspace what it shows; `ah agent fs status` says where it was",
    )
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

    pub(crate) fn is(&self, name: &OsStr, ino: u64) -> bool {
        self.look(name).is_some_and(|stat| stat.stx_ino == ino)
    }

    /// Has names changed, on disk.
    pub(crate) fn rename(&self, from: &OsStr, to: &OsStr, how: RenameFlags) -> Result<()> {
        rustix::fs::renameat_with(&self.above, from, &self.above, to, how)
            .and_then(|()| rustix::fs::fsync(&self.above))
            .map_err(|errno| failed("cannot change the workspace's name", errno))
    }

    /// What the directory is called that lies behind.
    pub(crate) fn behind(&self) -> OsString {
        [OsStr::new(BEHIND), &self.name].into_iter().collect()
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

    /// Removes what is under a name of ours, with all that is in it. What is gone is success.
    pub(crate) fn remove(&self, name: &OsStr) -> Result<()> {
        let cannot = |errno| failed("cannot remove a directory beside the workspace", errno);
        let dir = match rustix::fs::openat(&self.above, name, DIRECTORY, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(()),
            dir => dir.map_err(cannot)?,
        };
        remove_contents(dir.as_fd())?;
        match remove_dir_for_good(&self.above, name) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(cannot(errno)),
        }
    }

    /// Takes away an empty place beside a workspace, with what stands in it.
    pub(crate) fn remove_place(&self, at: &Path, name: &OsStr) -> Result<()> {
        let place = path_beside(at, name);
        clear_place(&place);
        match remove_dir_for_good(&self.above, name) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(failed(format!("cannot remove {}", place.display()), errno)),
        }
    }
}

pub(crate) fn path_beside(at: &Path, name: &OsStr) -> PathBuf {
    at.parent().unwrap_or(Path::new("/")).join(name)
}

/// Refuses what could not be taken back: what cannot be read, or given to whom it belongs; and what somebody has open, as far as the kernel says.
pub(crate) fn refuse_what_stays(workspace: &Dir, cx: &Context<'_>) -> Result<()> {
    let me = rustix::process::geteuid();
    let groups = rustix::process::getgroups().unwrap_or_default();
    let in_group =
        |gid: u32| rustix::process::getegid().as_raw() == gid || groups.iter().any(|group| group.as_raw() == gid);
    let is_locked = |stat: &Statx| stat.stx_attributes.intersects(StatxAttributes::IMMUTABLE | StatxAttributes::APPEND);
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
        holders::refuse_open_entry(dir, name, stat)
    })
    .map(drop)
}
