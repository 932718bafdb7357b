//! A branch that is mounted, once what is below is pinned, by sharing contents or by copying: whatever is done in the workspace, programs in the branch see what was there, and their own work.
//! Needs root and /dev/fuse, as the other tests of mounts do.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeSet;
use std::fs;

use ah_agentfs::{Class, Workspace};
use ah_agentfs_fuse::Mount;

use common::{Lab, is_sound, sh, unmount};

const GIT: &str = "git() { command git -c user.name=a -c user.email=a@b -c gc.auto=0 -c core.fsync=none \"$@\"; }; export HOME=/nonexistent; ";
const ALL: &str = "find . -type f -not -path './.git/*' -print0 | sort -z | xargs -0 sha256sum; find . -not -path './.git/*' -type d -printf '%p %m %T@\\n' | sort; find . -not -path './.git/*' -not -type d -printf '%p %y %m %s %T@ %l\\n' | sort";

/// A repository of two branches, one of which is checked out, with what is not tracked beside.
fn plant(lab: &Lab) {
    let script = "git init -qb main .; echo node_modules >.gitignore; mkdir -p src/deep node_modules/{p,q}
        for n in $(seq 20); do echo $n >src/f$n; echo deep $n >src/deep/f$n; git add -A; git commit -qm c$n; done
        for n in $(seq 200); do echo $n >node_modules/p/$n.js; echo $n >node_modules/q/$n.js; done
        ln -s p/1.js node_modules/link
        git checkout -qb side HEAD~10; echo side >side; git add -A; git commit -qm side; git checkout -q main";
    sh(&lab.lower(), &format!("{GIT}{script}"));
}

#[test]
fn who_works_in_a_branch_does_not_see_what_is_done_in_the_workspace() {
    for kind in ["xfs", "btrfs", "ext4"] {
        let Some(disk) = ah_test_disks::Disk::new(kind, 600, "") else { return };
        let Some(lab) = Lab::within(disk.at()) else { return };
        plant(&lab);
        Workspace::create(&lab.store(), &lab.lower()).unwrap();
        let workspace = Workspace::open(&lab.store(), &lab.lower(), Default::default()).unwrap();
        let base = workspace.base_with_names(b"").unwrap();
        workspace.take_fingerprints(base).unwrap();
        let branch = workspace.branch(base, b"work").unwrap();
        let mount = Mount::new(workspace.view(branch).unwrap(), &lab.place()).unwrap();
        let at = mount.at().to_owned();
        // The kernel knows half of it.
        sh(&at, "cat src/deep/* node_modules/p/* >/dev/null; ls -lR src node_modules/p >/dev/null");
        let untouched = sh(&lab.lower(), ALL);
        std::thread::scope(|scope| {
            let theirs = scope.spawn(|| {
                let script = "echo edited >src/f1; echo edited >src/deep/f2; rm src/f3; git commit -qam theirs
                    rm -rf node_modules; mkdir -p node_modules/{p,r}
                    for n in $(seq 200); do echo other $n >node_modules/p/$n.js; echo other >node_modules/r/$n.js; done
                    git checkout -q side; git branch -qD main; git reflog expire --expire=now --all; git gc -q --prune=now
                    echo half >src/f4; echo new >src/new; mv src/deep src/moved; git gc -q --prune=now; git fsck --full";
                sh(&lab.lower(), &format!("{GIT}{script}"))
            });
            let script = "for n in $(seq 30); do
                    echo mine $n >>src/f5; echo mine >src/mine$n; git add -A; git commit -qm mine$n; cat src/deep/* node_modules/*/*.js >/dev/null
                done";
            sh(&at, &format!("{GIT}{script}"));
            theirs.join().unwrap();
        });
        std::thread::sleep(std::time::Duration::from_millis(500));
        let check = format!("{GIT}git status --porcelain; git fsck --full 2>&1; git log --oneline | wc -l");
        assert_eq!(sh(&at, &check), "50\n", "{kind}");
        assert_eq!(sh(&at, &format!("{GIT}git diff --name-only HEAD~30 | grep -v src/mine")), "src/f5\n");
        let id = workspace.snapshot(branch, b"", Class::Instant).unwrap();
        let snapshot = Mount::new(workspace.view_of(id).unwrap(), &lab.place()).unwrap();
        assert_eq!(sh(&at, ALL), sh(snapshot.at(), ALL), "the snapshot is the branch");
        sh(&at, "rm src/mine*; git reset -q --hard HEAD~30");
        // But for the times that are the branch's own.
        let lines = |all: &str| -> BTreeSet<String> {
            all.lines()
                .filter(|line| !["./src", "./.git ", ". "].iter().any(|own| line.starts_with(own)))
                .map(String::from)
                .collect()
        };
        let (now, then) = (lines(&sh(&at, ALL)), lines(&untouched));
        assert_eq!(now.symmetric_difference(&then).collect::<Vec<_>>(), Vec::<&String>::new(), "{kind}");
        assert_eq!(workspace.changed_below(branch).unwrap(), Vec::<Vec<u8>>::new());
        assert!(fs::metadata(at.join("src/new")).is_err() && fs::metadata(at.join("side")).is_err());
        unmount(snapshot);
        unmount(mount);
        drop(workspace);
        is_sound(&lab.store(), &lab.lower());
    }
}
