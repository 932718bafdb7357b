//! Tests of the tree through its public interface: a lower directory and a store in a temporary directory each.

#![allow(clippy::unwrap_used)]

mod below;
mod changed;
mod crash;
mod damage;
mod drift;
mod isolated;
mod kept;
mod lost;
mod model;
mod names;
mod objects;
mod pinned;
mod pins;
mod restored;
mod same;
mod snapshots;
mod space;
mod whole;

use std::collections::BTreeMap;
use std::path::PathBuf;

use ah_agentfs::{BranchId, Class, Ino, Kind, Options, Owner, ROOT, SnapshotId, View, Workspace};

/// Whether this system makes holes in files and tells of those below; elsewhere there is a slower way, and space comes back later.
pub(crate) const HOLES: bool = cfg!(target_os = "linux");

pub(crate) const ME: Owner = Owner { mode: 0o644, uid: 1000, gid: 100 };

/// A lower directory and a store, gone with it.
pub(crate) struct Place {
    directory: tempfile::TempDir,
    pins: bool,
}

impl Place {
    /// Where nothing is pinned.
    pub(crate) fn new() -> Self {
        Self::of(tempfile::tempdir().unwrap(), false)
    }

    /// Where what is below is pinned.
    pub(crate) fn pinned() -> Self {
        Self::of(tempfile::tempdir().unwrap(), true)
    }

    /// On that disk, where what is below is pinned.
    pub(crate) fn on(disk: &ah_test_disks::Disk) -> Self {
        Self::of(tempfile::tempdir_in(disk.at()).unwrap(), true)
    }

    fn of(directory: tempfile::TempDir, pins: bool) -> Self {
        let place = Self { directory, pins };
        std::fs::create_dir(place.lower()).unwrap();
        place
    }

    pub(crate) fn lower(&self) -> PathBuf {
        self.directory.path().join("lower")
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.directory.path().join("store")
    }

    pub(crate) fn create(&self) -> Workspace {
        Workspace::create(&self.store(), &self.lower()).unwrap();
        self.open()
    }

    pub(crate) fn open(&self) -> Workspace {
        self.open_with(Options { background: false, pins: self.pins, ..Options::default() })
    }

    pub(crate) fn open_with(&self, options: Options) -> Workspace {
        Workspace::open(&self.store(), &self.lower(), options).unwrap()
    }

    /// Nothing is wrong with the store, which must not be open.
    pub(crate) fn check(&self) {
        let report = Workspace::fsck(&self.store(), &self.lower(), false).unwrap();
        assert_eq!(report.problems, Vec::<String>::new());
    }

    /// Space that the contents take on the disk, in bytes.
    pub(crate) fn data_on_disk(&self) -> u64 {
        use std::os::unix::fs::MetadataExt;
        let files = std::fs::read_dir(self.store().join("data")).unwrap();
        files.map(|file| file.unwrap().metadata().unwrap().blocks() * 512).sum()
    }
}

/// Makes the logs say that they were begun in another boot.
pub(crate) fn in_another_boot(store: &std::path::Path) {
    for log in std::fs::read_dir(store.join("log")).unwrap() {
        let log = log.unwrap().path();
        let mut bytes = std::fs::read(&log).unwrap();
        let mut length = u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize;
        let last = 8 + length - 1;
        if bytes[last] == 0 {
            // None is named, on a system that does not tell.
            bytes.splice(last..=last, [1, b'x']);
            length += 1;
            bytes[..4].copy_from_slice(&(length as u32).to_le_bytes());
        } else {
            bytes[last] ^= 1;
        }
        let checksum = crc32fast::hash(&bytes[8..8 + length]).to_le_bytes();
        bytes[4..8].copy_from_slice(&checksum);
        let file = std::fs::OpenOptions::new().write(true).open(&log).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &bytes, 0).unwrap();
    }
}

/// What the disk has of contents when they have just been taken there.
pub(crate) struct OnDisk(BTreeMap<PathBuf, Vec<u8>>);

impl OnDisk {
    pub(crate) fn now(store: &std::path::Path) -> Self {
        let files = std::fs::read_dir(store.join("data")).unwrap().map(|file| file.unwrap().path());
        Self(files.map(|file| (file.clone(), std::fs::read(file).unwrap())).collect())
    }

    /// A power cut: what was written since then did not get there.
    pub(crate) fn is_all(&self, store: &std::path::Path) {
        for file in std::fs::read_dir(store.join("data")).unwrap() {
            std::fs::remove_file(file.unwrap().path()).unwrap();
        }
        for (path, bytes) in &self.0 {
            let file = std::fs::File::create(path).unwrap();
            file.set_len(bytes.len() as u64).unwrap();
            for (nth, block) in bytes.chunks(4096).enumerate().filter(|(_, block)| block.iter().any(|&byte| byte != 0))
            {
                std::os::unix::fs::FileExt::write_all_at(&file, block, nth as u64 * 4096).unwrap();
            }
        }
        in_another_boot(store);
    }
}

/// On a disk that shares contents between files, and on one where pins are copies. Both give inodes' numbers out again. Those that cannot be had are skipped.
pub(crate) fn on_each_disk(test: impl Fn(ah_test_disks::Disk)) {
    ["xfs", "ext4"].into_iter().filter_map(|kind| ah_test_disks::Disk::new(kind, 400, "")).for_each(test);
}

/// A branch of the lower directory as it is now.
pub(crate) fn branch(workspace: &Workspace) -> BranchId {
    workspace.branch(workspace.base(b"base").unwrap(), b"branch").unwrap()
}

pub(crate) fn snapshot(workspace: &Workspace, branch: BranchId) -> SnapshotId {
    workspace.snapshot(branch, b"", Class::Instant).unwrap()
}

/// The inode at a path.
pub(crate) fn at(view: &View, path: &str) -> Ino {
    path.split('/').filter(|part| !part.is_empty()).fold(ROOT, |at, part| view.lookup(at, part.as_bytes()).unwrap().ino)
}

pub(crate) fn make(view: &View, path: &str, content: &[u8]) -> Ino {
    let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
    let ino = view.create(at(view, parent), name.as_bytes(), ME).unwrap().ino;
    if !content.is_empty() {
        assert_eq!(view.write(ino, 0, content).unwrap(), content.len());
    }
    ino
}

pub(crate) fn content(view: &View, path: &str) -> Vec<u8> {
    view.read(at(view, path), 0, 1 << 24).unwrap()
}

/// Everything in a tree: path, kind, permissions, content or target.
pub(crate) fn everything(view: &View) -> BTreeMap<Vec<u8>, (Kind, u32, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut directories = vec![(ROOT, Vec::new())];
    while let Some((directory, path)) = directories.pop() {
        for entry in view.list(directory).unwrap() {
            let attr = view.lookup(directory, &entry.name).unwrap();
            assert_eq!(attr.kind, entry.kind);
            let mut path = path.clone();
            path.push(b'/');
            path.extend_from_slice(&entry.name);
            let content = match attr.kind {
                Kind::File => view.read(attr.ino, 0, 1 << 24).unwrap(),
                Kind::Symlink => view.readlink(attr.ino).unwrap(),
                _ => Vec::new(),
            };
            if attr.kind == Kind::File {
                assert_eq!(attr.size, content.len() as u64);
            }
            if attr.kind == Kind::Directory {
                directories.push((attr.ino, path.clone()));
            }
            found.insert(path, (attr.kind, attr.mode, content));
        }
    }
    found
}
