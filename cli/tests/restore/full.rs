//! A full disk whose snapshots hold `AH_HOME`, too, as where `/home` is one subvolume: the reserve gives nothing back there.

use std::fs;
use std::path::Path;
use std::process::Command;

use ah_test_disks::Disk;

use crate::support::{Ran, User, World, is_root, need_btrfs, skip};

fn btrfs(words: &[&str], at: &Path) {
    assert!(Command::new("btrfs").arg("-q").args(words).arg(at).status().unwrap().success(), "{words:?}");
}

/// Until nothing fits any more, nor comes back of what was removed before.
fn fill(at: &Path) {
    let more = |size: usize| {
        let mut files = (fs::read_dir(at).unwrap().count()..).take_while(|number| {
            let path = at.join(number.to_string());
            fs::write(&path, vec![1; size]).and_then(|()| fs::File::open(&path)?.sync_all()).is_ok()
        });
        files.by_ref().count()
    };
    loop {
        btrfs(&["subvolume", "sync"], at);
        btrfs(&["filesystem", "sync"], at);
        if [1 << 20, 1 << 16, 1 << 12].map(more) == [0; 3] {
            return;
        }
    }
}

#[test]
fn a_full_disk_whose_snapshots_hold_the_reserve_can_be_freed() {
    if !is_root() {
        return skip("needs root, to mount");
    }
    for user in [User::Me, User::Ordinary] {
        let world = World::of(user);
        let Some(disk) = Disk::new("btrfs", 300, "user_subvol_rm_allowed,commit=1") else { return };
        need_btrfs();
        let (home, project, filler) = (disk.at().join("u"), disk.at().join("u/p"), disk.at().join("filler"));
        let give = |path: &Path| {
            if user == User::Ordinary {
                std::os::unix::fs::chown(path, Some(65534), Some(65534)).unwrap();
            }
        };
        btrfs(&["subvolume", "create"], &home);
        fs::create_dir(&project).unwrap();
        fs::create_dir(&filler).unwrap();
        [&home, &project].into_iter().for_each(|path| give(path));
        let ah = |words: &[&str]| {
            let mut command = world.command(["agent", "fs"].iter().chain(words));
            let ran = Ran::of(command.current_dir(&project).env("AH_HOME", home.join("state")));
            assert_eq!(ran.code, 0, "{user:?}: {ran:?}");
            ran.stdout.trim_end().to_owned()
        };
        let write = |path: &Path| {
            fs::write(path, vec![2; 16 << 20]).unwrap();
            give(path);
        };
        let ids: Vec<String> = (0..4)
            .map(|_| {
                write(&project.join("big"));
                ah(&["snapshot"])
            })
            .collect();
        fs::remove_file(project.join("big")).unwrap();
        let last = ah(&["snapshot"]);
        let branch = ah(&["branch", "--name", "b", &last]);
        write(&Path::new(&branch).join("big"));
        fill(&filler);
        ah(&["rm", "--force", "b"]);
        assert!(!Path::new(&branch).exists(), "{user:?}");
        fill(&filler);
        assert_eq!(ah(&["rm", &ids[0], &ids[1]]), format!("{}\n{}", ids[0], ids[1]));
        fill(&filler);
        ah(&["prune", "keep-last=2"]);
        assert_eq!(ah(&["cat", &ids[3], "big"]).len(), 16 << 20, "{user:?}");
        ah(&["gc"]);
        ah(&["snapshot"]);
    }
}
