//! From a workspace to its dataset, and from a dataset to where its files and its snapshots are seen.
//!
//! The kernel's mount table says which dataset a directory was reached through: by the mount's id, never by comparing paths.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use ah_plugin_api::text::shell;
use ah_plugin_api::{Dir, Error, ErrorKind, Omission, OmitReason, RelPath, Result};
use ah_provider_directory::{Mount, Mounts, climb, failed, mount_of, open_beneath};
use rustix::fs::{AtFlags, Mode, OFlags, Statx, StatxAttributes};
use rustix::io::Errno;

use crate::clones;
use crate::names;

/// What `statfs` calls ZFS. Source: `ZFS_SUPER_MAGIC`.
pub(crate) const SUPER_MAGIC: u32 = 0x2fc1_2fc1;

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A mounted dataset.
pub(crate) struct Mounted {
    /// The dataset's name.
    pub(crate) dataset: String,
    /// Its root, open for looking up names.
    pub(crate) root: OwnedFd,
    /// Where that is, for answers.
    pub(crate) point: PathBuf,
}

/// A workspace's place.
pub(crate) struct Located {
    /// The dataset that it is in.
    pub(crate) mounted: Mounted,
    /// From the dataset's root to the workspace.
    pub(crate) rel: RelPath,
    /// What is mounted inside the workspace.
    pub(crate) omitted: Vec<Omission>,
}

/// Whether an open directory is on ZFS at all.
pub(crate) fn is_zfs(dir: &Dir) -> Result<bool> {
    let stat = rustix::fs::fstatfs(dir).map_err(|errno| failed("cannot look at the workspace's filesystem", errno))?;
    #[allow(clippy::unnecessary_cast, reason = "the type differs between machines")]
    Ok(stat.f_type as i64 == i64::from(SUPER_MAGIC))
}

/// Finds the dataset of a workspace.
pub(crate) fn workspace(dir: &Dir) -> Result<Located> {
    let mounts = Mounts::read()?;
    let shown = dir.path().display();
    if !is_zfs(dir)? {
        let kind = mounts.of(dir).map_or("another filesystem", |mount| mount.kind.as_str());
        return Err(not_possible(format!("{shown} is on {kind}, not on ZFS")));
    }
    let Some(mount) = mounts.of(dir) else {
        return Err(not_possible(format!("{shown} was opened in another mount namespace"))
            .with_hint("run ah where the dataset is mounted"));
    };
    let dataset = name_of(mount)?;
    if dataset.contains('@') {
        return Err(not_possible(format!("{shown} is itself in a snapshot, {dataset}")));
    }
    let is_root = |stat: &Statx| stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
    let Some(climbed) = climb(dir.as_fd(), is_root)? else {
        return Err(not_possible(format!("the root of the dataset {dataset} cannot be reached from {shown}")));
    };
    let omitted = mounts.below(dir);
    if mount.root == Path::new("/") {
        let mounted = Mounted { dataset, root: climbed.root, point: mount.point.clone() };
        return with_control_directory(Located { mounted, rel: climbed.rel, omitted }, dir);
    }
    // A bind mount of a directory in the dataset: its snapshots are seen where the root is mounted.
    let mounted = root_in(&mounts, &dataset)?.ok_or_else(|| {
        not_possible(format!("only a part of the dataset {dataset} is mounted, at {}", mount.point.display()))
            .with_hint(format!("mount all of it somewhere: zfs mount {}", shell(dataset.as_ref())))
    })?;
    let above = mount.root.strip_prefix("/").unwrap_or(&mount.root);
    let rel = above.join(climbed.rel.as_path()).into_os_string().into_vec();
    // `join` of an empty path adds a slash.
    let rel = RelPath::new(rel.strip_suffix(b"/").unwrap_or(&rel))?;
    // The table's word is checked: a directory may be renamed under a bind mount.
    let there = open_beneath(mounted.root.as_fd(), rel.as_bytes(), DIRECTORY)
        .and_then(|there| Ok((rustix::fs::fstat(there)?, rustix::fs::fstat(dir)?)));
    match there {
        Ok((there, here)) if (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino) => {
            with_control_directory(Located { mounted, rel, omitted }, dir)
        }
        // Something is mounted over it there, this very bind mount perhaps: then the table is all there is.
        Err(Errno::XDEV) => with_control_directory(Located { mounted, rel, omitted }, dir),
        Ok(_) | Err(_) => Err(Error::new(ErrorKind::Conflict, format!("{shown} is being moved within {dataset}"))),
    }
}

/// Opens the workspace for listing once what was written through mappings of its dataset's files has reached ZFS. Until then it is in the
/// kernel's pages only: in no snapshot (`zfs_ioc_snapshot` writes none of them back), and not to be told by a file's times.
///
/// No other call reaches the pages of all files, also of those that nobody has open any more. It waits for no transaction group, as a snapshot does, but commits
/// the intent log (`zfs_sync`): nothing where nothing was written, and at worst as long again where much has just been.
pub(crate) fn written_out(workspace: &Dir) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fail = |what: &str, errno| failed(format!("cannot {what} {}", workspace.path().display()), errno);
    // Anew, and not by its path: `syncfs` tells an error once to each that was opened before, and knows nothing of those opened for names only.
    let top = rustix::fs::openat(workspace, c".", flags, Mode::empty()).map_err(|errno| fail("open", errno))?;
    rustix::fs::syncfs(&top).map_err(|errno| fail("write back what is mapped in", errno))?;
    Ok(top)
}

fn not_possible(message: String) -> Error {
    Error::new(ErrorKind::FailedPrecondition, message)
}

/// Adds ZFS's own directory, where it shows in listings: it is no part of what is captured. Nor are the snapshots in it that somebody has looked at, which
/// the kernel keeps mounted for a while.
fn with_control_directory(mut located: Located, dir: &Dir) -> Result<Located> {
    if located.rel.is_root() {
        located.omitted.retain(|omission| !omission.path.as_bytes().starts_with(b".zfs/"));
        let listing = rustix::fs::Dir::read_from(dir).map_err(|errno| failed("cannot list the workspace", errno))?;
        // It comes right after `.` and `..`.
        let first = listing.take(3).filter_map(std::result::Result::ok);
        if first.into_iter().any(|entry| entry.file_name() == c".zfs") {
            let detail = Some("ZFS's own directory, visible by the property snapdir".to_owned());
            let path = RelPath::new(".zfs")?;
            located.omitted.insert(0, Omission { path, reason: OmitReason::OtherFilesystem, detail });
        }
    }
    Ok(located)
}

/// Finds where a dataset's root is mounted; none if nowhere that this process sees.
///
/// Where it was last time is looked at first, so that the mount table is not read for each file of a snapshot.
pub(crate) fn dataset(name: &str) -> Result<Option<Mounted>> {
    static LAST: Mutex<Vec<Seen>> = Mutex::new(Vec::new());
    let last = || LAST.lock().unwrap_or_else(PoisonError::into_inner);
    let seen = last().iter().find(|seen| seen.dataset == name).cloned();
    if let Some(mounted) = seen.and_then(Seen::again) {
        return Ok(Some(mounted));
    }
    let found = root_in(&Mounts::read()?, name)?;
    let mut last = last();
    last.retain(|seen| seen.dataset != name);
    last.truncate(REMEMBERED - 1);
    last.extend(found.as_ref().and_then(Seen::new));
    Ok(found)
}

/// How many datasets' mounts are remembered.
const REMEMBERED: usize = 8;

/// Where a dataset's root was mounted, and what tells whether it still is: ids of mounts are used again.
#[derive(Debug, Clone)]
struct Seen {
    dataset: String,
    point: PathBuf,
    identity: Identity,
}

/// The mount, the filesystem (which for ZFS follows from what identifies the dataset), and the directory in it.
type Identity = (u64, u64, u64);

fn identity(root: &OwnedFd) -> Option<Identity> {
    let filesystem = rustix::fs::fstatvfs(root).ok()?.f_fsid;
    Some((mount_of(root).ok()?, filesystem, rustix::fs::fstat(root).ok()?.st_ino))
}

impl Seen {
    fn new(mounted: &Mounted) -> Option<Self> {
        let (dataset, point) = (mounted.dataset.clone(), mounted.point.clone());
        Some(Self { dataset, point, identity: identity(&mounted.root)? })
    }

    /// The same, if it is still there.
    fn again(self) -> Option<Mounted> {
        let root = rustix::fs::open(&self.point, DIRECTORY, Mode::empty()).ok()?;
        (identity(&root)? == self.identity).then_some(Mounted { dataset: self.dataset, root, point: self.point })
    }
}

fn root_in(mounts: &Mounts, dataset: &str) -> Result<Option<Mounted>> {
    let of_it =
        |mount: &&Mount| mount.kind == "zfs" && mount.source == dataset.as_bytes() && mount.root == Path::new("/");
    for mount in mounts.iter().filter(of_it) {
        match rustix::fs::open(&mount.point, DIRECTORY, Mode::empty()) {
            // Something else may be mounted on top.
            Ok(root) if mount_of(&root).ok() == Some(mount.id) => {
                return Ok(Some(Mounted { dataset: dataset.to_owned(), root, point: mount.point.clone() }));
            }
            Ok(_) | Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS | Errno::LOOP) => {}
            Err(errno) => return Err(failed(format!("cannot open {}", mount.point.display()), errno)),
        }
    }
    Ok(None)
}

fn name_of(mount: &Mount) -> Result<String> {
    String::from_utf8(mount.source.clone()).map_err(|_| {
        not_possible(format!("what is mounted at {} has a name that is no dataset's", mount.point.display()))
    })
}

impl Mounted {
    /// What tells datasets apart without asking libzfs: each has its own, a clone and a received one too, and keeps it. Zero if it is
    /// not to be had. Source: `dmu_objset_fsid_guid`, in `zfs_statvfs`.
    pub(crate) fn filesystem(&self) -> u64 {
        rustix::fs::fstatvfs(&self.root).map_or(0, |stat| stat.f_fsid)
    }

    /// Whether the dataset shows a snapshot of that name. `PermissionDenied` and the like count as yes: they are told later.
    pub(crate) fn shows(&self, snapshot: &CStr) -> Result<bool> {
        let path = [b".zfs/snapshot/", short(snapshot).to_bytes()].concat();
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        match rustix::fs::statat(&self.root, path, flags) {
            Err(Errno::NOENT) => Ok(false),
            Ok(_) | Err(_) => Ok(true),
        }
    }

    /// `FailedPrecondition` if the dataset does not show its snapshots at all.
    pub(crate) fn must_show_snapshots(&self) -> Result<()> {
        match rustix::fs::statat(&self.root, ".zfs/snapshot", AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT) {
            Ok(_) => Ok(()),
            Err(Errno::NOENT) => Err(not_possible(format!("the dataset {} does not show its snapshots", self.dataset))
                .with_hint(format!("zfs set snapdir=hidden {}", shell(self.dataset.as_ref())))),
            Err(errno) => Err(failed(format!("cannot look at the snapshots of {}", self.dataset), errno)),
        }
    }

    /// Opens the directory `rel` of a snapshot, which the kernel mounts by itself; and its path, for answers.
    pub(crate) fn open_snapshot(&self, snapshot: &CStr, rel: &RelPath) -> Result<(OwnedFd, PathBuf)> {
        let name = short(snapshot);
        let shown = snapshot.to_string_lossy().into_owned();
        let path = [b".zfs/snapshot/", name.to_bytes()].concat();
        // Not with O_PATH alone: the directory is to be mounted by this.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let top = match rustix::fs::openat(&self.root, path.as_slice(), flags, Mode::empty()) {
            Ok(top) => top,
            // It may be entered without being read.
            Err(Errno::ACCESS) => rustix::fs::openat(&self.root, path.as_slice(), DIRECTORY, Mode::empty())
                .map_err(|errno| failed(format!("cannot open the snapshot {shown}"), errno))?,
            Err(errno) => return Err(self.not_mounted(&shown, errno)),
        };
        if mount_of(&top).ok() == mount_of(&self.root).ok() {
            return Err(self.not_mounted(&shown, Errno::LOOP));
        }
        let dir = open_beneath(top.as_fd(), rel.as_bytes(), DIRECTORY)
            .map_err(|errno| failed(format!("cannot open {rel} in the snapshot {shown}"), errno))?;
        let mut path = self.point.join(Path::new(std::ffi::OsStr::from_bytes(&path)));
        if !rel.is_root() {
            path.push(rel.as_path());
        }
        Ok((dir, path))
    }

    /// A snapshot that the kernel cannot mount.
    fn not_mounted(&self, shown: &str, errno: Errno) -> Error {
        let dataset = &self.dataset;
        match errno {
            Errno::NOENT => Error::new(ErrorKind::NotFound, format!("the snapshot {shown} is not there")),
            // What comes back when the program that the kernel starts for it has failed.
            Errno::LOOP | Errno::ISDIR => {
                let error = not_possible(format!("the kernel could not mount the snapshot {shown}"));
                let untold = names::is_any_clone(dataset) && self.point.parent().is_some_and(clones::others_may_change);
                error.with_hint(if untold {
                    format!(
                        "OpenZFS 2.1 was not told where this branch is, as others than root may change the way to it: look where {} leads (namei -l), then zfs unmount {word} && zfs mount {word}. With others, {NEEDED}",
                        self.point.display(),
                        word = shell(dataset.as_ref()),
                    )
                } else {
                    NEEDED.to_owned()
                })
            }
            errno => failed(format!("cannot open the snapshot {shown}"), errno),
        }
    }
}

/// What showing a snapshot takes.
const NEEDED: &str = "the kernel starts `mount -t zfs` for that, in the machine's first mount namespace: it needs mount.zfs (zfsutils-linux) and /etc/mtab, and ah must not run in a container of its own";

/// The part of a snapshot's name after the `@`.
pub(crate) fn short(snapshot: &CStr) -> &CStr {
    let bytes = snapshot.to_bytes_with_nul();
    let at = bytes.iter().position(|&b| b == b'@').map_or(0, |at| at + 1);
    CStr::from_bytes_with_nul(&bytes[at..]).unwrap_or(snapshot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_on_zfs_is_told_with_what_it_is_on() {
        let temp = tempfile::tempdir().unwrap();
        let Err(error) = workspace(&Dir::open(temp.path()).unwrap()) else { return };
        assert_eq!(error.kind, ErrorKind::FailedPrecondition);
        assert!(error.message.contains("not on ZFS"), "{error}");
        assert!(dataset("no/such dataset").unwrap().is_none());
    }

    #[test]
    fn a_snapshots_own_name() {
        assert_eq!(short(c"tank/a b@ah-1"), c"ah-1");
    }
}
