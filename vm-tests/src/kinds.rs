//! The workspaces that power cuts befall: on which disk, whose, captured by whom, and of which repository.
//!
//! Each is a folder `/mnt/DISK/NAME` that `guest/cuts.sh` makes: in it `work`, the workspace, and `home`; of a linked work tree also
//! `main`, the repository that it belongs to. The `home` of `zfs-ahd` is on the system's disk, which has Btrfs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::random::Random;

/// Which repository a workspace is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Git {
    /// None.
    No,
    /// Its own `.git`, and an ignored directory.
    Own,
    /// A work tree that is linked to the repository in `main`.
    Linked,
}

/// One of them.
#[derive(Debug)]
pub struct Kind {
    /// What it is called.
    pub name: &'static str,
    /// The disk, and the filesystem on it: `git` (ext4), `btrfs`, `zfs`.
    pub disk: &'static str,
    /// The provider that is asked for.
    pub provider: &'static str,
    /// Whose it is.
    pub user: &'static str,
    /// Whether it is a subvolume or dataset of its own; else a directory in one of root's.
    pub unit: bool,
    /// Of which repository.
    pub git: Git,
}

const fn kind(name: &'static str, [disk, provider, user]: [&'static str; 3], unit: bool, git: Git) -> Kind {
    Kind { name, disk, provider, user, unit, git }
}

/// All of them.
pub const KINDS: &[Kind] = &[
    kind("git", ["git", "git", "root"], false, Git::No),
    kind("git-own", ["git", "git", "root"], false, Git::Own),
    kind("git-linked", ["git", "git", "root"], false, Git::Linked),
    kind("btrfs", ["btrfs", "btrfs", "root"], true, Git::No),
    kind("btrfs-linked", ["btrfs", "btrfs", "root"], true, Git::Linked),
    kind("btrfs-ahd", ["btrfs", "btrfs_ahd", "user"], true, Git::Own),
    kind("btrfs-ahd-within", ["btrfs", "btrfs_ahd", "other"], false, Git::Linked),
    kind("zfs", ["zfs", "zfs", "root"], true, Git::No),
    kind("zfs-linked", ["zfs", "zfs", "root"], true, Git::Linked),
    kind("zfs-ahd", ["zfs", "zfs_ahd", "user"], true, Git::Own),
    kind("zfs-ahd-within", ["zfs", "zfs_ahd", "other"], false, Git::Linked),
];

impl Kind {
    /// The one of that name.
    pub fn find(name: &str) -> Option<&'static Self> {
        KINDS.iter().find(|kind| kind.name == name)
    }

    /// Where it is in the guest.
    pub fn folder(&self) -> PathBuf {
        Path::new("/mnt").join(self.disk).join(self.name)
    }

    /// Whether its snapshots are made by the helper.
    pub fn by_helper(&self) -> bool {
        self.provider != self.disk
    }

    /// Whether its provider keeps owners, extended attributes and hard links, too.
    pub fn keeps_all(&self) -> bool {
        self.disk != "git"
    }

    /// Its owner's number in the guest.
    pub fn uid(&self) -> u32 {
        match self.user {
            "user" => 1000,
            "other" => 1001,
            _ => 0,
        }
    }

    /// As `guest/cuts.sh` reads it.
    pub fn for_script(&self) -> String {
        let unit = if self.unit { "unit" } else { "within" };
        format!("{}:{}:{}:{unit}:{:?}", self.disk, self.name, self.user, self.git)
    }
}

/// Whose turn it is. The same for the same seed, whatever else happens by chance.
#[derive(Debug)]
pub struct Turns {
    random: Random,
    to_come: BTreeMap<String, Vec<&'static Kind>>,
}

impl Turns {
    /// The turns that this seed gives.
    pub fn new(seed: u64) -> Self {
        Self { random: Random::new(seed), to_come: BTreeMap::new() }
    }

    /// One kind of each disk, at random; none a second time before all others have had their turn.
    pub fn next(&mut self, disks: &[String]) -> Vec<&'static Kind> {
        let one = |disk: &String| {
            let to_come = self.to_come.entry(disk.clone()).or_default();
            if to_come.is_empty() {
                to_come.extend(KINDS.iter().filter(|kind| kind.disk == disk));
            }
            let count = u64::try_from(to_come.len()).ok().filter(|count| *count > 0)?;
            Some(to_come.swap_remove(usize::try_from(self.random.below(count)).ok()?))
        };
        disks.iter().filter_map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_cuts_reach_every_kind() {
        for seed in 0..50 {
            let mut turns = Turns::new(seed);
            let disks = ["git", "btrfs", "zfs"].map(str::to_owned);
            let four: Vec<_> = (0..4).flat_map(|_| turns.next(&disks)).collect();
            assert_eq!(four.len(), 12);
            assert!(KINDS.iter().all(|kind| four.iter().any(|one| one.name == kind.name)));
            assert_eq!(four.iter().filter(|kind| kind.by_helper()).count(), 4);
            assert!(four.iter().filter(|kind| kind.git != Git::No).count() >= 8);
        }
        assert!(Turns::new(1).next(&["other".to_owned()]).is_empty());
    }
}
