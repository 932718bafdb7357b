//! On real mounts: what the kernel leaves undone, what other filesystems refuse, and paths that are longer than a system call takes. Needs root
//! and /dev/fuse, as the other tests of mounts do.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::{XattrFlags, listxattr, setxattr};
use rustix::io::Errno;

use ah_agentfs_fuse::{Error, Mount};
use common::{Lab, USER, sh, unmount};

#[test]
fn what_was_written_through_a_mapping_is_data_to_who_seeks_it() {
    let Some(lab) = Lab::new() else { return };
    let (_workspace, mount) = lab.mount("work");
    let script = "python3 -c \"
import mmap, os
f = os.open('sparse', os.O_RDWR | os.O_CREAT); os.ftruncate(f, 1 << 20)
m = mmap.mmap(f, 1 << 20); m[500000:500003] = b'abc'
print(os.lseek(f, 0, os.SEEK_DATA) // 65536, os.lseek(f, 500002, os.SEEK_HOLE) < 1 << 20)
m[9:10] = b'd'; print(os.lseek(f, 0, os.SEEK_DATA), os.pread(f, 3, 500000), m[9:10])\"";
    assert_eq!(sh(mount.at(), script), "7 True\n0 b'abc' b'd'\n");
    unmount(mount);
}

#[test]
fn what_a_mapping_has_behind_the_end_is_not_in_what_fallocate_makes_longer() {
    let Some(lab) = Lab::new() else { return };
    let (workspace, mount) = lab.mount("work");
    let branch = workspace.branches()[0].id;
    let script = "python3 -c \"
import ctypes, mmap, os
f = os.open('tail', os.O_RDWR | os.O_CREAT); os.ftruncate(f, 4096)
m = mmap.mmap(f, 4096)
longer = lambda how, at, size: ctypes.CDLL(None).fallocate(f, how, *map(ctypes.c_long, (at, size)))
for how in ((0, 0, 4000), (16, 8000, 4000)):
    os.ftruncate(f, 100); m[:] = b'x' * 4096
    print(longer(*how), m[99:101], sum(map(bool, os.pread(f, 20000, 0))), end=' ')
    m[50:51] = b'y'; m.flush()
    print(os.pread(f, 4, 49), os.fstat(f).st_size)\"";
    let mut expected = String::new();
    for size in [4000, 12000] {
        expected += &format!("0 b'x\\x00' 100 b'xyxx' {size}\n");
    }
    assert_eq!(sh(mount.at(), script), expected);
    let snapshot = workspace.snapshot(branch, b"", ah_agentfs::Class::Instant).unwrap();
    let view = workspace.view_of(snapshot).unwrap();
    let held = view.read(view.lookup(ah_agentfs::ROOT, b"tail").unwrap().ino, 0, 20000).unwrap();
    assert_eq!((held.len(), held.iter().filter(|byte| **byte != 0).count()), (12000, 100));
    unmount(mount);
}

/// `cp` looks for holes in what is told to take less than its size, and GNU `tar` reads nothing of what takes none.
#[test]
fn what_is_copied_of_a_file_with_holes_has_holes_and_all_that_is_written() {
    let Some(lab) = Lab::new() else { return };
    let below = fs::File::create(lab.lower().join("below")).unwrap();
    below.set_len(64 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&below, &[1; 4096], 9 << 20).unwrap();
    below.sync_all().unwrap();
    let (workspace, mount) = lab.mount("work");
    let copies = "
        truncate -s 64M own; printf x | dd of=own bs=1 seek=33000000 conv=notrunc status=none
        for file in own below; do cp $file $file.cp; cmp $file $file.cp; done
        du -k own below own.cp below.cp | cut -f1 | sort -n | tail -n1";
    let most: u64 = sh(mount.at(), copies).trim().parse().unwrap();
    assert!(most < 1024, "{most} KiB");
    assert!(workspace.used() < 1 << 20, "{} bytes", workspace.used());
    let mapped = "python3 -c \"
import mmap, os, subprocess
f = os.open('mapped', os.O_RDWR | os.O_CREAT); os.ftruncate(f, 1 << 20)
m = mmap.mmap(f, 1 << 20); m[500000:500003] = b'abc'
subprocess.check_call('tar -cSf mapped.tar mapped; rm mapped; tar -xf mapped.tar', shell=True)
print(open('mapped', 'rb').read()[500000:500003])\"";
    assert_eq!(sh(mount.at(), mapped), "b'abc'\n");
    unmount(mount);
}

/// Also to who asks for nothing but them.
#[test]
fn what_loses_its_set_id_bits_is_shown_without_them() {
    let Some(lab) = Lab::new() else { return };
    let (_workspace, mount) = lab.mount("work");
    for script in ["echo x >> tool", "fallocate -l 9999 tool", "fallocate -nzo 99999 -l 4 tool"] {
        sh(mount.at(), "echo x > tool; chmod 6777 tool");
        let as_other = format!("setpriv --reuid={USER} --clear-groups sh -c '{script}'; stat -c %a tool");
        assert_eq!(sh(mount.at(), &as_other), "777\n", "{script}");
    }
    unmount(mount);
}

/// Who lists with attributes is answered for many directories at once, and what of that comes through late is not taken for news of those in
/// which names came meanwhile.
#[test]
fn a_directory_in_which_a_file_was_made_is_as_young_as_that() {
    let Some(lab) = Lab::new() else { return };
    let (_workspace, mount) = lab.mount("work");
    let above = mount.at().join("above");
    (0..200).for_each(|n| fs::create_dir_all(above.join(format!("d{n}"))).unwrap());
    let directory = above.join("d0");
    let is_over = AtomicBool::new(false);
    // Also when this fails.
    struct End<'a>(&'a AtomicBool);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let list = || {
        while !is_over.load(Ordering::Relaxed) {
            for (nth, entry) in fs::read_dir(&above).unwrap().enumerate() {
                // To ask for attributes has the kernel ask for them with the names that follow.
                if nth < 3 {
                    let _ = entry.and_then(|entry| entry.metadata());
                }
            }
        }
    };
    let modified = |path: &Path| fs::symlink_metadata(path).unwrap().modified().unwrap();
    let old = std::thread::scope(|threads| {
        let _end = End(&is_over);
        threads.spawn(list);
        threads.spawn(list);
        let make = |round: usize| {
            // The list is asked for anew.
            fs::write(above.join("other"), "").unwrap();
            fs::remove_file(above.join("other")).unwrap();
            let file = directory.join(round.to_string());
            fs::write(&file, "").unwrap();
            std::thread::sleep(Duration::from_millis(15));
            modified(&directory) < modified(&file)
        };
        (0..200).filter(|round| make(*round)).count()
    });
    assert_eq!(old, 0, "of 200 times");
    unmount(mount);
}

#[test]
fn attributes_that_no_disk_takes_are_refused() {
    let Some(lab) = Lab::new() else { return };
    let (_workspace, mount) = lab.mount("work");
    let file = mount.at().join("a");
    let set = |name: &str| setxattr(&file, name, b"1", XattrFlags::empty());
    for name in ["foo.x", "system.foo"] {
        assert_eq!(set(name), Err(Errno::OPNOTSUPP), "{name}");
    }
    assert_eq!(set("user."), Err(Errno::INVAL));
    for name in ["user.x", "trusted.x", "security.x"] {
        assert_eq!(set(name), Ok(()), "{name}");
    }
    let mut names = [0; 64];
    assert_eq!(listxattr(&file, &mut names).unwrap(), "security.x\0trusted.x\0user.x\0".len());
    let list = "/usr/bin/python3 -c \"import os; print(os.listxattr('a'))\"";
    let seen = sh(mount.at(), &format!("setpriv --reuid={USER} --clear-groups {list}"));
    assert_eq!(seen, "['security.x', 'user.x']\n");
    unmount(mount);
}

#[test]
fn who_changes_hands_keeps_a_directorys_attributes() {
    let Some(lab) = Lab::new() else { return };
    let (_workspace, mount) = lab.mount("work");
    // A capability of version 2 without any bit.
    let none = [&[0, 0, 0, 2][..], &[0; 16]].concat();
    let capabilities = "security.capability";
    for name in ["a", "d"] {
        setxattr(mount.at().join(name), capabilities, &none, XattrFlags::empty()).unwrap();
    }
    sh(mount.at(), "chown 1:1 a d");
    let left = |name: &str| rustix::fs::getxattr(mount.at().join(name), capabilities, &mut [0; 64]).is_ok();
    assert_eq!((left("a"), left("d")), (false, true));
    unmount(mount);
}

#[test]
fn paths_below_of_any_length_are_reached() {
    let Some(lab) = Lab::new() else { return };
    let steps = "import os
def down():
    for n in range(40):
        yield str(n) + 'n' * 230
";
    let make = "for step in down(): os.mkdir(step); os.chdir(step)
open('bottom', 'w').write('deep')";
    let program = |dir: &std::path::Path, rest: &str| sh(dir, &format!("python3 -c \"{steps}{rest}\""));
    program(&lab.lower(), make);
    let (_workspace, mount) = lab.mount("work");
    let read = "for step in down(): os.chdir(step)
print(open('bottom').read()); open('bottom', 'a').write('er'); print(open('bottom').read(), os.listdir('.'))";
    assert_eq!(program(mount.at(), read), "deep\ndeeper ['bottom']\n");
    sh(mount.at(), "rm -r 0n*");
    assert_eq!(fs::read_dir(mount.at()).unwrap().count(), 3);
    unmount(mount);
    // It is long for who removes it, too.
    sh(&lab.lower(), "rm -r 0n*");
}

/// What is mounted at a path, taken away also when the test fails.
struct Over(std::path::PathBuf);

impl Over {
    fn mount(at: &Path, what: &str) -> Self {
        sh(at.parent().unwrap(), &format!("mount {what} '{}'", at.display()));
        Self(at.to_owned())
    }
}

impl Drop for Over {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

#[test]
fn what_somebody_mounts_over_a_mount_is_left_there() {
    let Some(lab) = Lab::new() else { return };
    let (workspace, mount) = lab.mount("work");
    let other = lab.path("other");
    for directory in [&other, &mount.at().join("within")] {
        fs::create_dir(directory).unwrap();
        fs::write(directory.join("theirs"), "").unwrap();
    }
    let mut mount = mount;
    let at = mount.at().to_owned();
    let (other, within) = (format!("--bind {}", other.display()), format!("--bind {}/within", at.display()));
    for what in ["-t tmpfs none", &other, &within] {
        let over = Over::mount(&at, what);
        if what.starts_with("-t") {
            fs::write(at.join("theirs"), "").unwrap();
        }
        let refused = mount.unmount_within(Duration::from_secs(1));
        assert!(matches!(refused, Err(Error::Covered(_))), "{what}: {refused:?}");
        mount.detach();
        assert!(at.join("theirs").exists() && mount.serves(), "{what}");
        drop(over);
        assert_eq!(fs::read_to_string(at.join("a")).unwrap(), "lower\n", "{what}");
    }
    let over = Over::mount(&at, &other);
    drop(mount);
    assert!(at.join("theirs").exists());
    drop(over);
    rustix::mount::unmount(&at, rustix::mount::UnmountFlags::empty()).unwrap();
    drop(workspace);
}

#[test]
fn who_seeks_in_a_snapshot_has_what_is_cached_of_it_kept() {
    let Some(lab) = Lab::new() else { return };
    let file = |n: u32| lab.lower().join(format!("f{n}"));
    (0..10).for_each(|n| fs::write(file(n), vec![b'x'; 64 << 10]).unwrap());
    let (workspace, mount) = lab.mount_unpinned("work");
    let branch = workspace.branches()[0].id;
    let snapshot = workspace.snapshot(branch, b"", ah_agentfs::Class::Instant).unwrap();
    let view = Mount::new(workspace.view_of(snapshot).unwrap(), &lab.place()).unwrap();
    let read = |shown: &fs::File| std::os::unix::fs::FileExt::read_at(shown, &mut [0; 64 << 10], 0);
    // The machine by itself may take some of it back.
    let kept = (0..10).any(|n| {
        let shown = fs::File::open(view.at().join(format!("f{n}"))).unwrap();
        assert_eq!(read(&shown).unwrap(), 64 << 10);
        // Who is asked for it from now on has lost it.
        fs::write(file(n), vec![b'y'; 64 << 10]).unwrap();
        let _ = rustix::fs::seek(&shown, rustix::fs::SeekFrom::Hole(0));
        read(&shown).is_ok_and(|bytes| bytes == 64 << 10)
    });
    assert!(kept);
    unmount(view);
    unmount(mount);
}
