//! The mount table of this process, and what else it says of itself.
//!
//! Format: proc(5), `/proc/pid/mountinfo`.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use ah_plugin_api::{Error, ErrorKind, Omission, OmitReason, RelPath, Result, proc_path};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{AtFlags, OFlags, StatxFlags};
use rustix::thread::CapabilitySet;

use crate::{look, mount_of, open_beneath};

/// One line of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Its id, as `statx` gives it for what is reached by it.
    pub id: u64,
    /// The mount that it is mounted on.
    pub parent: u64,
    /// The filesystem's device, as this table has it.
    pub device: String,
    /// Which directory of the filesystem is mounted.
    pub root: PathBuf,
    /// Where.
    pub point: PathBuf,
    /// The kind of filesystem.
    pub kind: String,
    /// What is mounted: a device, a dataset.
    pub source: Vec<u8>,
    /// Options of the mount, separated by commas.
    pub options: String,
    /// Options of the filesystem, separated by commas.
    pub super_options: String,
    /// The group of mounts with which it shares what is mounted and unmounted on it.
    pub shared: Option<u64>,
    /// The group from which it gets that, without giving anything back.
    pub master: Option<u64>,
}

impl Mount {
    /// Whether an option of the filesystem is set.
    #[must_use]
    pub fn has_super_option(&self, option: &str) -> bool {
        self.super_options.split(',').any(|set| set == option)
    }
}

/// The mount table.
#[derive(Debug, Clone, Default)]
pub struct Mounts(Vec<Mount>);

impl Mounts {
    /// Reads it. What is not listed counts as not mounted, so that one which cannot be read is an error.
    ///
    /// # Errors
    /// `Unavailable` where it cannot be read, or names nothing: something is mounted at `/`.
    pub fn read() -> Result<Self> {
        let cannot = |why: &str| {
            Error::new(ErrorKind::Unavailable, format!("the table of mounts cannot be read: {why}"))
                .with_hint("see that /proc is mounted and shows this process: cat /proc/self/mountinfo")
        };
        let table = std::fs::read("/proc/self/mountinfo").map_err(|e| cannot(&e.to_string()))?;
        let mounts = Self::parse(&table);
        if mounts.0.is_empty() { Err(cannot("nothing is in it")) } else { Ok(mounts) }
    }

    /// The table with these contents: that of another process, say.
    #[must_use]
    pub fn parse(table: &[u8]) -> Self {
        Self(table.split(|&b| b == b'\n').filter_map(line).collect())
    }

    /// The mount by which what is open was reached.
    #[must_use]
    pub fn of(&self, fd: impl AsFd) -> Option<&Mount> {
        let id = mount_of(fd).ok()?;
        self.0.iter().find(|mount| mount.id == id)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Mount> {
        self.0.iter()
    }

    /// Where something else is mounted below an open directory, the topmost only, ordered by path. Looked at one by one, by
    /// descriptor, so that what only seems to be there by its name is not listed.
    #[must_use]
    pub fn below(&self, dir: impl AsFd) -> Vec<Omission> {
        let dir = dir.as_fd();
        let (Ok(id), Ok(path)) = (mount_of(dir), std::fs::read_link(format!("/proc/self/fd/{}", dir.as_raw_fd())))
        else {
            return Vec::new();
        };
        let mut found: Vec<Omission> = Vec::new();
        for mount in self.0.iter().filter(|mount| mount.parent == id) {
            // By components, and only for candidates: what counts is the look below.
            let Ok(below) = mount.point.strip_prefix(&path) else { continue };
            let Ok(rel) = RelPath::new(below.as_os_str().to_owned().into_vec()) else { continue };
            if rel.is_root() || !is_mount_point(dir, &rel, mount.id) {
                continue;
            }
            let detail = Some(format!("{} is mounted there", mount.kind));
            found.push(Omission { path: rel, reason: OmitReason::OtherFilesystem, detail });
        }
        found.sort_by(|a, b| a.path.cmp(&b.path));
        found.dedup_by(|a, b| a.path == b.path);
        found
    }
}

/// The mount table of this process, kept until the kernel says that something was mounted or unmounted: `/proc/self/mountinfo` can be polled for that (proc(5)).
#[derive(Debug, Default)]
pub struct KeptMounts(Mutex<Option<(File, Mounts)>>);

impl KeptMounts {
    /// As [`Mounts::below`]; nothing where the table cannot be read.
    #[must_use]
    pub fn below(&self, dir: impl AsFd) -> Vec<Omission> {
        let dir = dir.as_fd();
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !kept.as_ref().is_some_and(|(table, _)| is_unchanged(table)) {
            // In this order: what is mounted while it is read is told of when it is looked at next.
            *kept = File::open("/proc/self/mountinfo").ok().zip(Mounts::read().ok());
        }
        // What is mounted on what does not change without notice; where that is may, by a rename.
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let none = rustix::fs::statx(dir, "", flags, StatxFlags::MNT_ID).is_ok_and(|stat| {
            let known = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::MNT_ID);
            known && kept.as_ref().is_some_and(|(_, all)| all.iter().all(|mount| mount.parent != stat.stx_mnt_id))
        });
        drop(kept);
        if none { Vec::new() } else { Mounts::read().unwrap_or_default().below(dir) }
    }
}

/// Whether nothing was mounted or unmounted since that was asked last, or the file was opened.
fn is_unchanged(table: &File) -> bool {
    let mut polled = [PollFd::new(table, PollFlags::PRI)];
    rustix::event::poll(&mut polled, Some(&Timespec::default())).is_ok_and(|changed| changed == 0)
}

fn is_mount_point(dir: impl AsFd, rel: &RelPath, id: u64) -> bool {
    let parent = rel.parent().unwrap_or_default();
    let Ok(parent) = open_beneath(dir.as_fd(), parent.as_bytes(), OFlags::PATH | OFlags::DIRECTORY) else {
        return false;
    };
    // Several may be mounted on top of each other; the uppermost is what is seen.
    look(&parent, rel.file_name().unwrap_or_default())
        .is_ok_and(|stat| stat.stx_mnt_id == id || Some(stat.stx_mnt_id) != mount_of(&parent).ok())
}

fn line(line: &[u8]) -> Option<Mount> {
    let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
    let number = |field: &[u8]| std::str::from_utf8(field).ok()?.parse::<u64>().ok();
    let mut fields = line.split(|&b| b == b' ');
    let (id, parent) = (number(fields.next()?)?, number(fields.next()?)?);
    let (device, root, point, options) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
    // A varying number of optional fields ends with a dash.
    let (mut shared, mut master) = (None, None);
    for field in fields.by_ref().take_while(|field| *field != b"-") {
        let group = |name: &[u8]| field.strip_prefix(name).and_then(number);
        (shared, master) = (shared.or(group(b"shared:")), master.or(group(b"master:")));
    }
    let (kind, source) = (fields.next()?, fields.next()?);
    Some(Mount {
        id,
        parent,
        device: text(device),
        root: proc_path(root),
        point: proc_path(point),
        kind: text(kind),
        source: proc_path(source).into_os_string().into_vec(),
        options: text(options),
        super_options: text(fields.next().unwrap_or_default()),
        shared,
        master,
    })
}

/// This run of the machine.
#[must_use]
pub fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// Whether this thread has that capability (by number, capabilities(7)), in whichever user namespace it is in.
#[must_use]
pub fn has_capability(number: u32) -> bool {
    let wanted = CapabilitySet::from_bits_retain(1 << number);
    rustix::thread::capabilities(None).is_ok_and(|has| has.effective.contains(wanted))
}

/// Whether this process is in the first user namespace: capabilities in another one count for little in filesystems.
#[must_use]
pub fn in_first_user_namespace() -> bool {
    std::fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| map.split_whitespace().eq(["0", "0", "4294967295"]))
}

/// Whether a file's owner, as it is told here, is known in this process's user namespace: its capabilities count for the files of nobody else.
#[must_use]
pub fn is_known_here(uid: u32) -> bool {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    // Everybody else is told as this one.
    let stranger = read("/proc/sys/kernel/overflowuid").trim().parse().unwrap_or(65534);
    in_first_user_namespace() || (uid != stranger && is_mapped(&read("/proc/self/uid_map"), uid))
}

/// Whether an id is one on the left side of such a table: the first of them, what it is outside, how many.
fn is_mapped(table: &str, id: u32) -> bool {
    let mut lines = table.lines().map(|line| line.split_whitespace().map(|field| field.parse::<u32>().ok()));
    lines.any(|mut fields| match (fields.next().flatten(), fields.nth(1).flatten()) {
        (Some(first), Some(count)) => id.checked_sub(first).is_some_and(|at| at < count),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_table() {
        let table =
            br"36 35 98:0 /mnt1 /mnt\0402 rw,noatime master:1 - btrfs /dev/root rw,user_subvol_rm_allowed,subvolid=5
37 36 0:5 / /mnt\0402/x\134y rw shared:3 master:2 propagate_from:9 - tmpfs none rw
nonsense";
        let mounts = Mounts::parse(table);
        let all: Vec<_> = mounts.iter().collect();
        assert_eq!(all.len(), 2);
        assert_eq!((all[0].id, all[0].parent, all[0].device.as_str()), (36, 35, "98:0"));
        assert_eq!(all[0].root, PathBuf::from("/mnt1"));
        assert_eq!(all[0].point, PathBuf::from("/mnt 2"));
        assert!(all[0].has_super_option("user_subvol_rm_allowed") && !all[0].has_super_option("user_subvol"));
        assert_eq!(all[1].point, PathBuf::from(r"/mnt 2/x\y"));
        assert_eq!(all[1].kind, "tmpfs");
        assert_eq!([all[0], all[1]].map(|mount| (mount.shared, mount.master)), [(None, Some(1)), (Some(3), Some(2))]);
    }

    #[test]
    fn capabilities_are_those_that_proc_tells() {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
        let bits = u64::from_str_radix(effective.trim(), 16).unwrap();
        for number in 0..64 {
            assert_eq!(has_capability(number), bits & (1 << number) != 0, "{number}");
        }
    }

    #[test]
    fn an_owner_is_known_by_the_table_of_ids() {
        let table = "         0       1000          1\n      1000     100000      65536\n";
        let known = [0, 1, 999, 1000, 66535, 66536].map(|id| is_mapped(table, id));
        assert_eq!(known, [true, false, false, true, true, false]);
        assert!(!is_mapped("", 0));
    }

    #[test]
    fn sees_what_is_mounted_here() {
        let root = std::fs::File::open("/").unwrap();
        let mounts = Mounts::read().unwrap();
        let below = mounts.below(&root);
        assert!(below.iter().any(|omission| omission.path.as_bytes() == b"proc"), "{below:?}");
        assert!(!below.iter().any(|omission| omission.path.as_bytes().starts_with(b"proc/")), "{below:?}");
        assert!(mounts.of(&root).is_some());
    }
}
