//! AgentFS on real mounts: what programs see, what snapshots have, who may mount, what a killed host leaves. Needs root and /dev/fuse;
//! where they are missing each test says so and does nothing, unless `AH_TEST_REQUIRE_ALL` is set.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod common;

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use ah_agentfs::{Class, Workspace};
use ah_agentfs_fuse::{Error, Mount};
use rustix::fs::{AtFlags, CWD, FallocateFlags, RenameFlags, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;

use common::{Child, Lab, USER, full_or_tenth, sh, unmount};

fn names(at: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(at).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn programs_see_a_filesystem_and_nothing_below_changes() {
    let Some(lab) = Lab::new() else { return };
    let before = sh(&lab.lower(), "find . -printf '%P %y %s %m %T@ %l\\n' | sort; cat a d/f");
    let (workspace, mount) = lab.mount("work");
    let at = mount.at().to_owned();
    assert_eq!(names(&at), ["a", "d", "l"]);
    assert_eq!(fs::read_to_string(at.join("l")).unwrap(), "lower\n");

    // Bytes, holes, sizes.
    OpenOptions::new().append(true).open(at.join("a")).unwrap().write_all(b"upper\n").unwrap();
    assert_eq!(fs::read_to_string(at.join("a")).unwrap(), "lower\nupper\n");
    let sparse = OpenOptions::new().read(true).write(true).create_new(true).open(at.join("sparse")).unwrap();
    sparse.write_all_at(b"end", 1 << 40).unwrap();
    assert_eq!(rustix::fs::seek(&sparse, rustix::fs::SeekFrom::Data(0)).unwrap(), 1 << 40);
    assert_eq!(rustix::fs::seek(&sparse, rustix::fs::SeekFrom::Hole(0)).unwrap(), 0);
    rustix::fs::fallocate(&sparse, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 1 << 40, 3).unwrap();
    let mut end = [1; 3];
    sparse.read_exact_at(&mut end, 1 << 40).unwrap();
    assert_eq!(end, [0; 3]);
    rustix::fs::fallocate(&sparse, FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE, (1 << 40) + 1, 100).unwrap();
    assert_eq!(sparse.metadata().unwrap().len(), (1 << 40) + 3);
    sparse.set_len(5).unwrap();
    assert_eq!(sparse.metadata().unwrap().len(), 5);
    let refused = rustix::fs::fallocate(&sparse, FallocateFlags::COLLAPSE_RANGE, 0, 4096).unwrap_err();
    assert_eq!(refused, Errno::OPNOTSUPP);

    // Names.
    fs::create_dir(at.join("new")).unwrap();
    fs::rename(at.join("d"), at.join("new/d")).unwrap();
    assert_eq!(fs::read_to_string(at.join("new/d/f")).unwrap(), "deep\n");
    fs::hard_link(at.join("a"), at.join("b")).unwrap();
    assert_eq!(fs::metadata(at.join("b")).unwrap().nlink(), 2);
    let exchange = |from: &str, to: &str, flags| rustix::fs::renameat_with(CWD, at.join(from), CWD, at.join(to), flags);
    exchange("b", "new", RenameFlags::EXCHANGE).unwrap();
    assert!(at.join("b/d/f").is_file() && at.join("new").is_file());
    assert_eq!(exchange("new", "a", RenameFlags::NOREPLACE).unwrap_err(), Errno::EXIST);
    assert_eq!(exchange("b", "b/d/x", RenameFlags::empty()).unwrap_err(), Errno::INVAL);
    assert_eq!(fs::remove_dir(at.join("b")).unwrap_err().raw_os_error(), Some(Errno::NOTEMPTY.raw_os_error()));
    let odd = OsStr::from_bytes(b"\xff \n*");
    fs::write(at.join(odd), "odd").unwrap();
    assert_eq!(fs::read(at.join(odd)).unwrap(), b"odd");
    assert!(fs::write(at.join("x".repeat(256)), "").is_err());
    rustix::fs::mknodat(CWD, at.join("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    fs::remove_file(at.join("l")).unwrap();
    std::os::unix::fs::symlink("nowhere", at.join("l")).unwrap();
    assert_eq!(fs::read_link(at.join("l")).unwrap(), Path::new("nowhere"));

    // A file without a name lives as long as it is open.
    let mut gone = OpenOptions::new().read(true).write(true).create_new(true).open(at.join("gone")).unwrap();
    fs::remove_file(at.join("gone")).unwrap();
    gone.write_all(b"still").unwrap();
    gone.seek(SeekFrom::Start(0)).unwrap();
    let mut text = String::new();
    gone.read_to_string(&mut text).unwrap();
    assert_eq!((text.as_str(), gone.metadata().unwrap().nlink()), ("still", 0));

    // Attributes: times before 1970, extended ones, none that nobody would enforce.
    let time = Timespec { tv_sec: -2, tv_nsec: 250_000_000 };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(CWD, at.join("a"), &times, AtFlags::empty()).unwrap();
    let meta = fs::metadata(at.join("a")).unwrap();
    assert_eq!((meta.mtime(), meta.mtime_nsec()), (-2, 250_000_000));
    rustix::fs::setxattr(at.join("a"), "user.k", b"v", XattrFlags::CREATE).unwrap();
    assert_eq!(rustix::fs::setxattr(at.join("a"), "user.k", b"v", XattrFlags::CREATE).unwrap_err(), Errno::EXIST);
    let mut list = [0; 100];
    let length = rustix::fs::listxattr(at.join("a"), &mut list).unwrap();
    assert_eq!(&list[..length], b"user.k\0");
    let acl = rustix::fs::setxattr(at.join("a"), "system.posix_acl_access", b"\x02\0\0\0", XattrFlags::empty());
    assert_eq!(acl.unwrap_err(), Errno::OPNOTSUPP);

    // A directory that is read by many messages while it changes.
    fs::create_dir(at.join("many")).unwrap();
    (0..2000).for_each(|n| fs::write(at.join(format!("many/n{n}")), "").unwrap());
    let mut seen = 0;
    for (n, entry) in fs::read_dir(at.join("many")).unwrap().enumerate() {
        let name = entry.unwrap().file_name();
        seen += usize::from(name.to_str().unwrap().starts_with('n'));
        if n % 10 == 0 {
            fs::write(at.join(format!("many/later{n}")), "").unwrap();
        }
    }
    assert_eq!(seen, 2000);
    sh(&at, "rm -r many && ! ls many 2>/dev/null");

    drop((sparse, gone));
    unmount(mount);
    workspace.sync().unwrap();
    drop(workspace);
    assert_eq!(sh(&lab.lower(), "find . -printf '%P %y %s %m %T@ %l\\n' | sort; cat a d/f"), before);
    // All of it is in the branch.
    let (_workspace, mount) = lab.mount("work");
    assert_eq!(fs::read_to_string(mount.at().join("new")).unwrap(), "lower\nupper\n");
    assert_eq!(fs::read_to_string(mount.at().join("b/d/f")).unwrap(), "deep\n");
}

/// Who lists a directory with attributes, as `ls -l` does, must not have the kernel take a file that was renamed meanwhile for an empty one.
#[test]
fn a_file_that_is_renamed_while_its_directory_is_listed_keeps_its_size() {
    let Some(lab) = Lab::new() else { return };
    let (_workspace, mount) = lab.mount("work");
    let many = mount.at().join("many");
    fs::create_dir(&many).unwrap();
    let all: Vec<String> = (0..400).map(|n| format!("n{n}")).collect();
    all.iter().for_each(|name| fs::write(many.join(name), "0123456789").unwrap());
    let directory = File::open(&many).unwrap();
    let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
    let mut reading = rustix::fs::RawDir::new(&directory, &mut buffer);
    let mut seen = Vec::new();
    // What it has of one message.
    while seen.is_empty() || !reading.is_buffer_empty() {
        seen.push(reading.next().unwrap().unwrap().file_name().to_str().unwrap().to_owned());
    }
    let later: Vec<&String> = all.iter().filter(|name| !seen.contains(name)).collect();
    assert!(later.len() > 300, "{}", later.len());
    let mut open: Vec<File> =
        later.iter().map(|name| OpenOptions::new().append(true).open(many.join(name)).unwrap()).collect();
    for (number, name) in later.iter().enumerate() {
        fs::rename(many.join(name), many.join(format!("moved{number}"))).unwrap();
    }
    // To ask for attributes has the kernel ask for them with the names that follow.
    let ask = |name: &str| _ = fs::symlink_metadata(many.join(name));
    ask(seen.last().unwrap());
    while let Some(entry) = reading.next() {
        ask(entry.unwrap().file_name().to_str().unwrap());
    }
    for (number, file) in open.iter_mut().enumerate() {
        file.write_all(b"tail").unwrap();
        let text = fs::read_to_string(many.join(format!("moved{number}"))).unwrap();
        assert_eq!((text.as_str(), file.metadata().unwrap().len()), ("0123456789tail", 14));
    }
}

#[test]
fn who_changes_a_file_takes_its_privileges_away() {
    let Some(lab) = Lab::new() else { return };
    let (_workspace, mount) = lab.mount("work");
    let at = mount.at();
    let mode = |name: &str| fs::metadata(at.join(name)).unwrap().mode() & 0o7777;
    let other = |script: &str| sh(at, &format!("setpriv --reuid 65534 --regid 65534 --clear-groups sh -c '{script}'"));
    for script in
        ["echo x >> tool", "truncate -s 1 tool", "echo x > tool", "fallocate -l 9999 tool", "fallocate -pl 4 tool"]
    {
        fs::write(at.join("tool"), "#!/bin/sh\n").unwrap();
        fs::set_permissions(at.join("tool"), fs::Permissions::from_mode(0o6777)).unwrap();
        rustix::fs::setxattr(at.join("tool"), "security.capability", &CAPABILITY, XattrFlags::empty()).unwrap();
        other(script);
        assert_eq!(mode("tool"), 0o777, "{script}");
        let value = rustix::fs::getxattr(at.join("tool"), "security.capability", &mut [0; 100][..]);
        assert_eq!(value.unwrap_err(), Errno::NODATA, "{script}");
    }
    fs::set_permissions(at.join("tool"), fs::Permissions::from_mode(0o4755)).unwrap();
    std::os::unix::fs::chown(at.join("tool"), Some(1), None).unwrap();
    assert_eq!(mode("tool"), 0o755);
    // Who may not, may not.
    fs::write(at.join("mine"), "").unwrap();
    let refused = other("echo x >> mine 2>/dev/null || echo refused; rm -f mine 2>/dev/null || echo refused");
    assert_eq!(refused, "refused\nrefused\n");
    // A directory whose group is inherited.
    fs::create_dir(at.join("shared")).unwrap();
    std::os::unix::fs::chown(at.join("shared"), None, Some(1234)).unwrap();
    fs::set_permissions(at.join("shared"), fs::Permissions::from_mode(0o2777)).unwrap();
    other("umask 002; mkdir shared/d; echo > shared/f");
    let [d, f] = ["shared/d", "shared/f"].map(|name| fs::metadata(at.join(name)).unwrap());
    assert_eq!((d.gid(), d.mode() & 0o7777, f.gid(), f.mode() & 0o7777), (1234, 0o2775, 1234, 0o664));
}

/// `cap_net_raw=ep`, as the kernel stores it.
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

#[test]
fn a_snapshot_has_what_was_written_before_it_and_nothing_else() {
    let Some(lab) = Lab::new() else { return };
    let (workspace, mount) = lab.mount("work");
    let branch = workspace.branches()[0].id;
    let at = mount.at();
    let (files, over) = (4, AtomicBool::new(false));
    // Each writer counts up in its file, one write after the other: in a snapshot no file is torn, and together they are of one moment
    // if the counts are no lower than those that were reported before and no higher than those after.
    let counts: Vec<_> = (0..files).map(|_| std::sync::atomic::AtomicU64::new(0)).collect();
    let mut snapshots = Vec::new();
    std::thread::scope(|scope| {
        for (n, count) in counts.iter().enumerate() {
            let over = &over;
            scope.spawn(move || {
                let file = File::create(at.join(format!("count{n}"))).unwrap();
                for number in 1_u64.. {
                    file.write_all_at(&[number.to_le_bytes(); 1024].concat(), 0).unwrap();
                    count.store(number, Ordering::SeqCst);
                    if over.load(Ordering::SeqCst) {
                        break;
                    }
                }
            });
        }
        while counts.iter().any(|count| count.load(Ordering::SeqCst) == 0) {
            std::thread::yield_now();
        }
        for n in 0..30 {
            let lowest: Vec<_> = counts.iter().map(|count| count.load(Ordering::SeqCst)).collect();
            let snapshot = workspace.snapshot(branch, format!("s{n}").as_bytes(), Class::Instant).unwrap();
            let highest: Vec<_> = counts.iter().map(|count| count.load(Ordering::SeqCst) + 1).collect();
            snapshots.push((snapshot, lowest, highest));
        }
        over.store(true, Ordering::SeqCst);
    });
    // A shared mapping is in it once it was synced.
    sh(
        at,
        "python3 -c \"
import mmap
f = open('mapped', 'w+b'); f.truncate(4096)
m = mmap.mmap(f.fileno(), 4096); m[0:4] = b'then'; m.flush()\"",
    );
    let synced = workspace.snapshot(branch, b"mapped", Class::Durable).unwrap();
    fs::write(at.join("mapped"), "now").unwrap();
    for (snapshot, lowest, highest) in &snapshots {
        let place = lab.place();
        let mount = Mount::new(workspace.view_of(*snapshot).unwrap(), &place).unwrap();
        for n in 0..files {
            let bytes = fs::read(place.join(format!("count{n}"))).unwrap();
            let number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
            assert!(bytes == [number.to_le_bytes(); 1024].concat(), "a torn write");
            assert!((lowest[n]..=highest[n]).contains(&number), "{number} is not of {}..={}", lowest[n], highest[n]);
        }
        let refused = fs::write(place.join("count0"), "").unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(Errno::ROFS.raw_os_error()));
        unmount(mount);
    }
    let place = lab.place();
    let _mount = Mount::new(workspace.view_of(synced).unwrap(), &place).unwrap();
    assert_eq!(&fs::read(place.join("mapped")).unwrap()[..5], b"then\0");
}

#[test]
fn branches_at_work_at_once_do_not_see_each_other() {
    let Some(lab) = Lab::new() else { return };
    let (workspace, one) = lab.mount("work");
    let base = workspace.snapshots()[0].id;
    let two = Mount::new(workspace.view(workspace.branch(base, b"two").unwrap()).unwrap(), &lab.place()).unwrap();
    std::thread::scope(|scope| {
        for (mount, word) in [(&one, "one"), (&two, "two")] {
            scope.spawn(move || {
                let script = format!(
                    "git init -q g && cd g && git config user.name a && git config user.email a@b && for i in 1 2 3 4 5; do
                     for n in $(seq 20); do echo {word} $i $n > f$n; done; git add -A && git commit -qm {word}$i; done && git fsck --strict 2>&1
                     echo {word} >> ../a; rm ../d/f; git log --format=%s"
                );
                let log = sh(mount.at(), &script);
                assert_eq!(log, (1..=5).rev().map(|n| format!("{word}{n}\n")).collect::<String>());
            });
        }
    });
    for (mount, word) in [(&one, "one"), (&two, "two")] {
        assert_eq!(fs::read_to_string(mount.at().join("a")).unwrap(), format!("lower\n{word}\n"));
        let shown = sh(mount.at(), "cat g/f*");
        assert!(shown.lines().count() == 20 && shown.lines().all(|line| line.starts_with(word)));
    }
    assert_eq!(fs::read_to_string(lab.lower().join("d/f")).unwrap(), "deep\n");
}

/// A directory below with 500 files in it.
fn five_hundred(lab: &Lab) -> std::path::PathBuf {
    let many = lab.lower().join("many");
    fs::create_dir(&many).unwrap();
    (0..500).for_each(|n| fs::write(many.join(format!("n{n}")), "then").unwrap());
    many
}

#[test]
fn what_was_changed_below_is_an_error_in_a_snapshot_and_still_a_name() {
    let Some(lab) = Lab::new() else { return };
    let many = five_hundred(&lab);
    let (workspace, mount) = lab.mount_unpinned("work");
    drop(mount);
    // With names, and without pins, on any disk.
    let base = workspace.base_with_names(b"").unwrap();
    (0..500).step_by(2).for_each(|n| fs::write(many.join(format!("n{n}")), "now").unwrap());
    let place = lab.place();
    let _mount = Mount::new(workspace.view_of(base).unwrap(), &place).unwrap();
    assert_eq!(names(&place), ["a", "d", "l", "many"]);
    // Read with attributes, in several messages, again and again.
    for _ in 0..3 {
        assert_eq!(names(&place.join("many")).len(), 500);
        let fine = sh(&place, "ls -l many 2>/dev/null | grep -c '^-rw' || true");
        assert_eq!(fine, "250\n");
        for n in 0..500 {
            let outcome = fs::read(place.join(format!("many/n{n}"))).map_err(|error| error.raw_os_error());
            let expected = if n % 2 == 0 { Err(Some(Errno::IO.raw_os_error())) } else { Ok(b"then".to_vec()) };
            assert_eq!(outcome, expected, "n{n}");
        }
    }
}

#[test]
fn what_was_removed_below_is_there_in_a_snapshot_if_it_was_pinned() {
    let Some(disk) = ah_test_disks::Disk::new("xfs", 400, "") else { return };
    let Some(lab) = Lab::within(disk.at()) else { return };
    let many = five_hundred(&lab);
    let (workspace, mount) = lab.mount("work");
    drop(mount);
    let base = workspace.base_with_names(b"").unwrap();
    workspace.take_fingerprints(base).unwrap();
    fs::remove_dir_all(&many).unwrap();
    let place = lab.place();
    let _mount = Mount::new(workspace.view_of(base).unwrap(), &place).unwrap();
    for _ in 0..3 {
        assert_eq!(sh(&place, "ls -l many | grep -c '^-rw'"), "500\n");
        assert_eq!(sh(&place, "cat many/* | wc -c"), "2000\n");
    }
    assert!((0..500).all(|n| fs::read(place.join(format!("many/n{n}"))).unwrap() == b"then"));
}

#[test]
fn what_was_replaced_below_is_found_again_in_a_branch() {
    let Some(lab) = Lab::new() else { return };
    let (_workspace, mount) = lab.mount_unpinned("work");
    let at = mount.at();
    // The kernel knows them, but not what is in them.
    assert_eq!((fs::metadata(at.join("a")).unwrap().len(), fs::metadata(at.join("d/f")).unwrap().len()), (6, 5));
    for name in ["a", "d/f"] {
        fs::write(lab.lower().join("new"), format!("another {name}\n")).unwrap();
        fs::rename(lab.lower().join("new"), lab.lower().join(name)).unwrap();
        // Who has the old one gets nothing else under its name.
        let first = fs::read(at.join(name));
        assert!(first.is_err() || first.unwrap() == format!("another {name}\n").as_bytes());
        let began = std::time::Instant::now();
        while fs::read(at.join(name)).ok() != Some(format!("another {name}\n").into_bytes()) {
            assert!(began.elapsed() < std::time::Duration::from_secs(5), "{name} stays lost");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        sh(at, &format!("echo more >> {name}; stat {name}; ls -l"));
        assert_eq!(fs::read_to_string(at.join(name)).unwrap(), format!("another {name}\nmore\n"));
    }
}

/// Waits until something is so: what is changed below is seen soon, not at once.
fn soon(what: &str, is_so: impl Fn() -> bool) {
    let began = std::time::Instant::now();
    while !is_so() {
        assert!(began.elapsed().as_secs() < 20, "waited in vain: {what}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn the_kernel_reads_ahead_as_far_as_one_message_goes() {
    let Some(lab) = Lab::new() else { return };
    let (_workspace, mount) = lab.mount("work");
    let (major, minor) = mount.device();
    let far = fs::read_to_string(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb")).unwrap();
    assert_eq!(far, "1024\n");
    unmount(mount);
}

#[test]
fn a_branch_shows_soon_what_is_changed_below() {
    let Some(lab) = Lab::new() else { return };
    let (workspace, mount) = lab.mount_unpinned("work");
    let (at, lower) = (mount.at().to_owned(), lab.lower());
    let read = |name: &str| fs::read_to_string(at.join(name)).unwrap_or_default();
    // All of it is in the kernel's memory, absent names too.
    assert_eq!((names(&at), names(&at.join("d"))), (vec!["a".into(), "d".into(), "l".into()], vec!["f".to_owned()]));
    assert_eq!((read("a"), read("d/f"), read("d/new")), ("lower\n".into(), "deep\n".into(), String::new()));
    fs::write(at.join("mine"), "mine").unwrap();
    let within = File::open(at.join("d")).unwrap();

    // In place, grown and shrunk; by another file; new and removed names.
    OpenOptions::new().append(true).open(lower.join("a")).unwrap().write_all(b"and more\n").unwrap();
    soon("appended", || read("a") == "lower\nand more\n" && fs::metadata(at.join("a")).unwrap().len() == 15);
    fs::write(lower.join("a"), "x").unwrap();
    soon("cut", || read("a") == "x");
    fs::write(lower.join("other"), "another").unwrap();
    fs::rename(lower.join("other"), lower.join("d/f")).unwrap();
    soon("replaced", || read("d/f") == "another" && !names(&at).contains(&"other".to_owned()));
    fs::write(lower.join("d/new"), "new").unwrap();
    soon("came", || read("d/new") == "new" && names(&at.join("d")) == ["f", "new"]);
    fs::remove_file(lower.join("d/f")).unwrap();
    soon("went", || !at.join("d/f").exists() && names(&at.join("d")) == ["new"]);
    fs::create_dir(lower.join("d/e")).unwrap();
    soon("a directory", || names(&at.join("d")) == ["e", "new"]);
    fs::write(lower.join("d/e/deep"), "1").unwrap();
    soon("in it", || read("d/e/deep") == "1");
    fs::write(lower.join("d/e/deep"), "2").unwrap();
    soon("and again", || read("d/e/deep") == "2");
    // Who works in a directory goes on there.
    let name = fs::read_link(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&within))).unwrap();
    assert_eq!(name, at.join("d"));

    // Grown, and moved at once.
    fs::write(lower.join("log"), "x".repeat(100)).unwrap();
    soon("a log", || read("log").len() == 100);
    OpenOptions::new().append(true).open(lower.join("log")).unwrap().write_all(b"more").unwrap();
    fs::rename(lower.join("log"), lower.join("log.1")).unwrap();
    soon("moved", || read("log.1").ends_with("xmore") && !at.join("log").exists());
    // A directory that the branch has made something in goes, and another comes in its place.
    fs::create_dir(lower.join("s")).unwrap();
    fs::write(lower.join("s/f"), "one").unwrap();
    soon("s", || read("s/f") == "one");
    fs::write(at.join("s/own"), "own").unwrap();
    fs::remove_dir_all(lower.join("s")).unwrap();
    soon("without s", || names(&at.join("s")) == ["own"] && !at.join("s/f").exists());
    fs::create_dir(lower.join("s")).unwrap();
    fs::write(lower.join("s/f"), "two").unwrap();
    soon("another s", || read("s/f") == "two" && names(&at.join("s")) == ["f", "own"]);
    fs::write(lower.join("s/f"), "three").unwrap();
    soon("and watched", || read("s/f") == "three");

    // What is the branch's own stays so.
    fs::write(at.join("d/new"), "of the branch").unwrap();
    fs::write(lower.join("d/new"), "of somebody else").unwrap();
    fs::write(lower.join("mine"), "theirs").unwrap();
    fs::remove_file(lower.join("l")).unwrap();
    soon("the last", || !names(&at).contains(&"l".to_owned()));
    assert_eq!((read("d/new"), read("mine")), ("of the branch".into(), "mine".into()));
    assert!(names(&at).contains(&"mine".to_owned()));
    // People are told of it, but not of what came and went again, nor of what is the branch's own.
    fs::write(lower.join("d/passing"), "").unwrap();
    fs::remove_file(lower.join("d/passing")).unwrap();
    fs::write(lower.join("d/last"), "").unwrap();
    let told = || workspace.changed_below(workspace.branches()[0].id).unwrap();
    soon("what is told", || told().contains(&b"d/last".to_vec()));
    for path in ["d/passing", "mine"] {
        assert!(!told().contains(&path.as_bytes().to_vec()), "{path}");
    }
}

#[test]
fn a_branch_shows_what_is_changed_below_while_it_is_read() {
    let Some(lab) = Lab::new() else { return };
    let lower = lab.lower();
    fs::create_dir(lower.join("many")).unwrap();
    let (_workspace, mount) = lab.mount_unpinned("work");
    let many = mount.at().join("many");
    let (done, count) = (AtomicBool::new(false), 300);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    for name in names(&many) {
                        let _ = fs::read(many.join(name));
                    }
                    for n in 0..count {
                        let _ = fs::metadata(many.join(n.to_string()));
                    }
                }
            });
        }
        for round in 0..3 {
            for n in 0..count {
                fs::write(lower.join(format!("many/{n}")), format!("{round} {n}")).unwrap();
                if n % 3 == round {
                    fs::remove_file(lower.join(format!("many/{n}"))).unwrap();
                }
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    let is = |n: &i32| fs::read_to_string(many.join(n.to_string())).ok();
    let will = |n: &i32| (n % 3 != 2).then(|| format!("2 {n}"));
    soon("as below", || (0..count).all(|n| is(&n) == will(&n)) && names(&many).len() == 200);
}

#[test]
fn another_filesystem_below_is_an_empty_directory() {
    let Some(lab) = Lab::new() else { return };
    // At a place that the lab unmounts: the lower directory is the folder of the places.
    let (place, at) = (lab.place(), lab.place());
    sh(&place, "mount -t tmpfs none . && cd . && echo hidden > $PWD/f");
    let lower = place.parent().unwrap();
    let store = tempfile::tempdir().unwrap();
    Workspace::create(store.path(), lower).unwrap();
    let workspace = Workspace::open(store.path(), lower, ah_agentfs::Options::default()).unwrap();
    let branch = workspace.branch(workspace.base(b"").unwrap(), b"").unwrap();
    let mount = Mount::new(workspace.view(branch).unwrap(), &at).unwrap();
    let shown = at.join(place.file_name().unwrap());
    assert!(shown.is_dir() && names(&shown).is_empty());
    assert!(fs::read(shown.join("f")).is_err());
    // The mount itself is within its lower directory: that ends there, too.
    assert!(names(&at.join(at.file_name().unwrap())).is_empty());
    assert_eq!(fs::read_to_string(at.join("lower/a")).unwrap(), "lower\n");
    unmount(mount);
}

#[test]
fn a_killed_host_loses_nothing_that_was_synced() {
    let Some(lab) = Lab::new() else { return };
    let place = lab.place();
    for round in 0..full_or_tenth(30) {
        let mut host = Child::start(&lab, &place);
        for done in 0..round {
            assert_eq!(fs::read_to_string(place.join(format!("kept{done}"))).unwrap(), "synced");
        }
        let mut file = File::create(place.join(format!("kept{round}"))).unwrap();
        file.write_all(b"synced").unwrap();
        file.sync_all().unwrap();
        // While others write.
        let busy = Command::new("sh")
            .args(["-c", "for i in $(seq 10000); do echo $i > busy$i || exit 0; done"])
            .stderr(std::process::Stdio::null())
            .current_dir(&place)
            .spawn();
        std::thread::sleep(std::time::Duration::from_millis(100));
        host.kill();
        // Nobody hangs on it: it says what it is.
        assert_eq!(fs::read_dir(&place).unwrap_err().raw_os_error(), Some(Errno::NOTCONN.raw_os_error()));
        assert_eq!(file.write_all(b"x").unwrap_err().raw_os_error(), Some(Errno::NOTCONN.raw_os_error()));
        drop(file);
        busy.unwrap().wait().unwrap();
        rustix::mount::unmount(&place, rustix::mount::UnmountFlags::DETACH).unwrap();
        let report = Workspace::fsck(&lab.store(), &lab.lower(), false).unwrap();
        assert!(report.problems.is_empty(), "{report:?}");
    }
}

#[test]
fn an_ordinary_user_mounts_by_fusermount() {
    let Some(lab) = Lab::new() else { return };
    // Only they see it, and the host ends when it is unmounted.
    let said = lab.as_user(
        "0666",
        "$AS mkdir home/at
         $HOST home/at >home/log & host=$!
         for n in $(seq 100); do grep -q mounted home/log && break; sleep 0.1; done
         ls home/at 2>/dev/null && exit 1
         $AS bash -ec 'cd home/at; echo mine > new; cat a new; stat -c %u new'
         $AS fusermount3 -u home/at
         wait $host
         ls home/at home/lower",
    );
    assert_eq!(said, format!("lower\nmine\n{USER}\nhome/at:\n\nhome/lower:\na\nd\nl\n"));
}

#[test]
fn where_it_cannot_be_mounted_it_says_why() {
    let Some(lab) = Lab::new() else { return };
    let (workspace, mut mount) = lab.mount("work");
    let base = workspace.snapshots()[0].id;
    let view = || workspace.view_of(base).unwrap();
    assert!(matches!(Mount::new(view(), &lab.lower()), Err(Error::NotEmpty(_))));
    assert!(matches!(Mount::new(view(), &lab.lower().join("missing")), Err(Error::Io { .. })));
    assert!(matches!(Mount::new(view(), &lab.lower().join("a")), Err(Error::Io { .. })));
    // What somebody works in stays until they are done.
    let file = File::open(mount.at().join("a")).unwrap();
    let error = mount.unmount().unwrap_err();
    assert!(matches!(error, Error::Busy(_)), "{error}");
    assert_eq!(fs::read(mount.at().join("a")).unwrap(), b"lower\n");
    drop(file);
    // Who finds it unmounted by somebody else touches nothing.
    sh(Path::new("/"), &format!("for n in $(seq 100); do umount {} && break; sleep 0.05; done", mount.at().display()));
    for _ in 0..100 {
        if mount.unmount().is_ok() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    mount.unmount().unwrap();
    // Where the device is closed to a user, or there is no program that mounts for them.
    let said = lab.as_user("0600", "$AS mkdir home/at; $HOST home/at 2>&1 && exit 1; true");
    assert!(said.contains("/dev/fuse may not be opened by this user"), "{said}");
}

#[test]
fn without_fusermount_it_says_what_to_install() {
    let Some(lab) = Lab::new() else { return };
    let said = lab.as_user("0666", "$AS mkdir home/at; PATH=/nowhere; /usr/bin/$HOST home/at 2>&1 && exit 1; true");
    assert!(said.contains("install the package fuse3"), "{said}");
}
