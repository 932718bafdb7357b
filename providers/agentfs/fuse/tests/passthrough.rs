//! Large files that are passed through, on real mounts: what is read of them is right, by whatever way and whatever is done meanwhile; nobody writes through them into what is below or a
//! snapshot holds. Needs root and /dev/fuse, as the other tests of mounts do, and Linux 6.9.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod common;

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ah_agentfs::{Class, Options, Workspace};
use ah_agentfs_fuse::{Face, Mount, Passthrough};
use ah_test_disks::kernel_passes_through;
use rustix::fs::{Advice, OFlags};
use rustix::io::Errno;
use rustix::process::Signal;

use common::{Child, Lab, sh, unmount};

const MIB: usize = 1 << 20;

/// Bytes of which no page is like another.
fn large(seed: u8) -> Vec<u8> {
    (0..3 * MIB + 777).map(|at| (at / 4096 * 7 + at % 251) as u8 ^ seed).collect()
}

fn face() -> Face {
    Face { passthrough: true, ..Face::default() }
}

/// With the file `large` below beside the others. None: skipped.
fn lab() -> Option<Lab> {
    let lab = Lab::new().filter(|_| kernel_passes_through())?;
    fs::write(lab.lower().join("large"), large(0)).unwrap();
    Some(lab)
}

/// A branch that shows what is below as it is.
fn as_it_is(lab: &Lab, label: &str) -> (Workspace, Mount) {
    let (workspace, mount) = lab.mount_as(label, Options { pins: false, ..Options::default() }, &face());
    assert_eq!(mount.passthrough(), Passthrough::On);
    (workspace, mount)
}

fn read(mut file: &File) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_end(&mut bytes).unwrap();
    bytes
}

fn to_write(path: &Path) -> std::io::Result<File> {
    File::options().write(true).open(path)
}

fn errno<T>(outcome: std::io::Result<T>) -> Option<Errno> {
    outcome.err().and_then(|error| Errno::from_io_error(&error))
}

/// Changes what was just closed. The kernel tells of that behind it; on a loaded machine that may take longer than a change waits for it, and so one that
/// is refused is done again. With how often that was.
fn once_it_is_closed<T>(change: impl Fn() -> std::io::Result<T>) -> (T, u32) {
    let began = Instant::now();
    let mut refused = 0;
    loop {
        match change() {
            Ok(outcome) => return (outcome, refused),
            Err(error) => assert_eq!(Errno::from_io_error(&error), Some(Errno::TXTBSY)),
        }
        assert!(began.elapsed() < Duration::from_secs(20), "it is never let in");
        refused += 1;
    }
}

/// Changes it while the reader has it open still, who closes it meanwhile. Of three that wait for that one is let in, however loaded the machine is.
fn closed_while_it_waits<T: Send + 'static>(
    path: &Path,
    mut reader: File,
    change: fn(&Path) -> std::io::Result<T>,
) -> T {
    for _ in 0..3 {
        let waits = path.to_owned();
        let waiting = std::thread::spawn(move || change(&waits));
        std::thread::sleep(Duration::from_millis(200));
        drop(reader);
        match waiting.join().unwrap() {
            Ok(outcome) => return outcome,
            Err(error) => assert_eq!(Errno::from_io_error(&error), Some(Errno::TXTBSY)),
        }
        reader = File::open(path).unwrap();
    }
    panic!("none that waits is let in");
}

#[test]
fn a_large_file_is_read_below_by_every_way_and_small_ones_are_not() {
    let Some(lab) = lab() else { return };
    let (_workspace, mount) = as_it_is(&lab, "work");
    let path = mount.at().join("large");
    assert_eq!(sh(mount.at(), "cat a d/f"), "lower\ndeep\n");
    assert_eq!(mount.passed_through(), 0);
    let file = File::open(&path).unwrap();
    assert!(read(&file) == large(0));
    assert_eq!(mount.passed_through(), 1);
    // Another beside it, by a mapping, by the kernel itself, past the cache, a part from within.
    let ways = "cmp large below; cp --reflink=never large /dev/null; dd if=large iflag=direct bs=1M status=none | cmp - below
        python3 -c \"
import mmap, os
f = os.open('large', os.O_RDONLY); m = mmap.mmap(f, 0, prot=mmap.PROT_READ); b = open('below', 'rb').read()
r, w = os.pipe()
print(m[:] == b, os.sendfile(w, f, 2000000, 4096), os.read(r, 4096) == b[2000000:2004096])
p = mmap.mmap(f, 0, flags=mmap.MAP_PRIVATE); p[0:3] = b'abc'; print(p[0:3], m[0:3] == b[0:3], os.pread(f, 3, 0) == b[0:3])
try: mmap.mmap(f, 0)
except PermissionError as e: print('refused')\"";
    std::os::unix::fs::symlink(lab.lower().join("large"), mount.at().join("below")).unwrap();
    assert_eq!(sh(mount.at(), ways), "True 4096 True\nb'abc' True True\nrefused\n");
    assert!(mount.passed_through() >= 5, "{}", mount.passed_through());
    // As a program.
    let passed = mount.passed_through();
    fs::copy(std::env::current_exe().unwrap(), lab.lower().join("program")).unwrap();
    assert!(sh(mount.at(), "./program --list").contains("what_is_pinned_is_read_from_its_pin"));
    assert!(mount.passed_through() > passed);
    assert!(fs::read(lab.lower().join("large")).unwrap() == large(0));
    drop(file);
    unmount(mount);
}

/// While whoever serves the mount does nothing at all.
#[test]
fn who_reads_it_asks_nobody() {
    let Some(lab) = lab() else { return };
    let at = lab.place();
    let mut child = Child::start_with(&lab, &["--passthrough"], &at);
    // Pinned behind the base, if it is at all.
    let file = || {
        let began = Instant::now();
        loop {
            let file = File::open(at.join("large")).unwrap();
            // What the kernel has of it is not what it was answered before.
            rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).unwrap();
            let id = rustix::process::Pid::from_child(&child.0);
            rustix::process::kill_process(id, Signal::STOP).unwrap();
            let (told, heard) = std::sync::mpsc::channel();
            let reader = file.try_clone().unwrap();
            let thread = std::thread::spawn(move || told.send(read(&reader)).unwrap());
            let bytes = heard.recv_timeout(Duration::from_secs(2));
            rustix::process::kill_process(id, Signal::CONT).unwrap();
            thread.join().unwrap();
            if let Ok(bytes) = bytes {
                return bytes;
            }
            assert!(began.elapsed() < Duration::from_secs(120), "it is not passed through");
        }
    };
    assert!(file() == large(0));
    sh(&at, "cd /; umount \"$OLDPWD\"");
    assert!(child.0.wait().unwrap().success());
}

#[test]
fn who_would_change_it_is_refused_until_it_is_closed_and_then_the_new_bytes_are_read() {
    let Some(lab) = lab() else { return };
    let (workspace, mount) = as_it_is(&lab, "work");
    let path = mount.at().join("large");
    let reader = File::open(&path).unwrap();
    for attempt in 0..2 {
        let began = Instant::now();
        assert_eq!(errno(to_write(&path)), Some(Errno::TXTBSY), "{attempt}");
        assert!(
            (Duration::from_millis(900)..Duration::from_secs(20)).contains(&began.elapsed()),
            "{:?}",
            began.elapsed()
        );
    }
    assert_eq!(errno(File::create(&path)), Some(Errno::TXTBSY));
    let cut = File::options().read(true).custom_flags(OFlags::TRUNC.bits() as i32).open(&path);
    assert_eq!(errno(cut), Some(Errno::TXTBSY));
    assert_eq!(errno(nix::unistd::truncate(&path, 5).map_err(Into::into)), Some(Errno::TXTBSY));
    // More of them than there are threads, and others are served meanwhile: in one of five rounds at once, if the machine is loaded.
    let mut took = Vec::new();
    let is_served = (0..5).any(|_| {
        std::thread::scope(|scope| {
            let waiting: Vec<_> = (0..40).map(|_| scope.spawn(|| errno(to_write(&path)))).collect();
            std::thread::sleep(Duration::from_millis(200));
            let began = Instant::now();
            fs::write(mount.at().join("other"), "other").unwrap();
            took.push(began.elapsed());
            let all_wait = waiting.iter().all(|one| !one.is_finished());
            assert!(waiting.into_iter().all(|one| one.join().unwrap() == Some(Errno::TXTBSY)));
            all_wait && took.last().is_some_and(|took| *took < Duration::from_millis(500))
        })
    });
    assert!(is_served, "{took:?}");
    // Everything but its contents can be changed, and it goes on.
    sh(mount.at(), "chmod 600 large; touch -d @0 large; ln large link; mv large moved; ln link large");
    assert!(read(&reader) == large(0) && read(&File::open(&path).unwrap()) == large(0));
    let branch = workspace.branches()[0].id;
    let before = workspace.snapshot(branch, b"", Class::Instant).unwrap();
    // Closed while somebody waits: let in.
    let writer = closed_while_it_waits(&path, reader, to_write);
    writer.write_all_at(b"new", 2 * MIB as u64).unwrap();
    let mut expected = large(0);
    expected[2 * MIB..2 * MIB + 3].copy_from_slice(b"new");
    let passed = mount.passed_through();
    assert!(fs::read(&path).unwrap() == expected);
    drop(writer);
    assert!(fs::read(&path).unwrap() == expected);
    assert_eq!(mount.passed_through(), passed, "it is the branch's own");
    let old = Mount::with_face(workspace.view_of(before).unwrap(), &lab.place(), &face(), || true).unwrap();
    assert!(fs::read(old.at().join("large")).unwrap() == large(0));
    assert!(fs::read(lab.lower().join("large")).unwrap() == large(0), "what is below is never written");
    unmount(old);
    unmount(mount);
    drop(workspace);
    common::is_sound(&lab.store(), &lab.lower());
}

#[test]
fn who_closes_it_does_not_wait_for_who_waits_to_cut_it() {
    let Some(lab) = lab() else { return };
    let (_workspace, mount) = as_it_is(&lab, "work");
    let path = mount.at().join("large");
    let reader = File::open(&path).unwrap();
    closed_while_it_waits(&path, reader, |path| nix::unistd::truncate(path, 5).map_err(Into::into));
    assert_eq!(fs::read(&path).unwrap(), large(0)[..5]);
    unmount(mount);
}

#[test]
fn right_behind_a_reader_it_can_be_written_at_once() {
    let Some(lab) = lab() else { return };
    for n in 0..40 {
        fs::write(lab.lower().join(format!("f{n}")), large(n)).unwrap();
    }
    let (_workspace, mount) = as_it_is(&lab, "work");
    let mut refused = 0;
    for n in 0..40 {
        let path = mount.at().join(format!("f{n}"));
        assert!(fs::read(&path).unwrap() == large(n));
        let change = || match n % 4 {
            0 => to_write(&path).and_then(|file| file.write_all_at(b"x", 7)),
            1 => File::options().append(true).open(&path).and_then(|mut file| file.write_all(b"x")),
            2 => nix::unistd::truncate(&path, 8).map_err(Into::into),
            _ => fs::write(&path, "x"),
        };
        refused += once_it_is_closed(change).1;
        let mut expected = large(n);
        match n % 4 {
            0 => expected[7] = b'x',
            1 => expected.push(b'x'),
            2 => expected.truncate(8),
            _ => expected = b"x".to_vec(),
        }
        assert!(fs::read(&path).unwrap() == expected, "{n}");
        assert!(fs::read(lab.lower().join(format!("f{n}"))).unwrap() == large(n), "{n}");
    }
    assert_eq!(mount.passed_through(), 40);
    assert!(refused <= 2, "{refused}");
    unmount(mount);
}

#[test]
fn who_writes_it_keeps_readers_from_being_passed_through_and_all_read_what_was_written() {
    let Some(lab) = lab() else { return };
    let (_workspace, mount) = as_it_is(&lab, "work");
    let path = mount.at().join("large");
    let writer = to_write(&path).unwrap();
    let reader = File::open(&path).unwrap();
    assert!(read(&reader) == large(0));
    writer.write_all_at(b"new", 5).unwrap();
    assert_eq!(&read(&reader)[4..9], &[&large(0)[4..5], b"new", &large(0)[8..9]].concat()[..]);
    assert_eq!(mount.passed_through(), 0);
    // One that only looked as if it would write.
    fs::write(lab.lower().join("other"), large(9)).unwrap();
    let other = mount.at().join("other");
    drop(File::options().read(true).write(true).open(&other).unwrap());
    let began = Instant::now();
    while mount.passed_through() == 0 {
        assert!(fs::read(&other).unwrap() == large(9));
        assert!(began.elapsed() < Duration::from_secs(20));
    }
    drop((writer, reader));
    unmount(mount);
}

#[test]
fn what_somebody_does_below_is_seen_as_without() {
    let Some(lab) = lab() else { return };
    let (_workspace, mount) = as_it_is(&lab, "work");
    let (path, below) = (mount.at().join("large"), lab.lower().join("large"));
    let reader = File::open(&path).unwrap();
    assert!(read(&reader) == large(0));
    // In place: who has it open sees it, and so does who opens it.
    to_write(&below).unwrap().write_all_at(b"new", 5).unwrap();
    let mut expected = large(0);
    expected[5..8].copy_from_slice(b"new");
    assert!(read(&reader) == expected && fs::read(&path).unwrap() == expected);
    // Replaced: who opens it by its name has the other, whether the kernel was told or not.
    for n in 1..9 {
        fs::write(lab.lower().join("new"), large(n)).unwrap();
        fs::rename(lab.lower().join("new"), &below).unwrap();
        assert!(fs::read(&path).unwrap() == large(n), "{n}");
    }
    // Who has what was there, goes on with that; it is not opened once more.
    assert!(read(&reader) == expected);
    assert_eq!(errno(File::open(format!("/proc/self/fd/{}", reader.as_raw_fd()))), Some(Errno::STALE));
    drop(reader);
    unmount(mount);
}

#[test]
fn two_branches_and_a_snapshot_go_on_as_they_were() {
    let Some(lab) = lab() else { return };
    let (workspace, mount) = as_it_is(&lab, "one");
    let base = workspace.snapshots()[0].id;
    let second = workspace.branch(base, b"two").unwrap();
    let second = Mount::with_face(workspace.view(second).unwrap(), &lab.place(), &face(), || true).unwrap();
    let before = File::open(mount.at().join("large")).unwrap();
    let branch = workspace.branches().into_iter().find(|it| it.label == b"one").unwrap().id;
    let held = workspace.snapshot(branch, b"", Class::Instant).unwrap();
    // Written in one, while the other has it open, and somebody holds what was open before the snapshot.
    fs::write(second.at().join("large"), "two").unwrap();
    assert!(read(&before) == large(0) && fs::read(mount.at().join("large")).unwrap() == large(0));
    assert_eq!(errno(before.write_at(b"x", 0)), Some(Errno::BADF));
    drop(before);
    once_it_is_closed(|| fs::write(mount.at().join("large"), "one"));
    let held = Mount::with_face(workspace.view_of(held).unwrap(), &lab.place(), &face(), || true).unwrap();
    assert_eq!(held.passthrough(), Passthrough::On);
    assert!(fs::read(held.at().join("large")).unwrap() == large(0));
    assert_eq!(held.passed_through(), 0, "somebody could change it below");
    assert_eq!(fs::read(second.at().join("large")).unwrap(), b"two");
    assert_eq!(fs::read(mount.at().join("large")).unwrap(), b"one");
    [held, second, mount].into_iter().for_each(unmount);
    drop(workspace);
    common::is_sound(&lab.store(), &lab.lower());
}

#[test]
fn what_is_made_is_no_younger_than_its_directory_and_is_open_until_it_is_closed() {
    let Some(lab) = lab() else { return };
    let (_workspace, mount) = as_it_is(&lab, "work");
    for n in 0..20 {
        let path = mount.at().join(n.to_string());
        let mut file = File::create(&path).unwrap();
        let modified = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
        assert!(modified(mount.at()) >= modified(&path), "{n}");
        file.write_all(&large(n)).unwrap();
        assert!(fs::read(&path).unwrap() == large(n));
        assert!(File::create_new(&path).is_err());
        // There was something in it.
        drop(File::create(&path).unwrap());
        assert_eq!((fs::read(&path).unwrap(), file.metadata().unwrap().len()), (Vec::new(), 0));
    }
    sh(mount.at(), "umask 027; echo x > made; [ $(stat -c %a made) = 640 ]");
    assert_eq!(mount.passed_through(), 0);
    unmount(mount);
}

/// As `ah` restores: another file comes in its place.
#[test]
fn another_can_be_put_in_its_place_while_it_is_open() {
    let Some(lab) = lab() else { return };
    let (_workspace, mount) = as_it_is(&lab, "work");
    let path = mount.at().join("large");
    let reader = File::open(&path).unwrap();
    fs::write(mount.at().join("new"), "new").unwrap();
    fs::rename(mount.at().join("new"), &path).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"new");
    assert!(read(&reader) == large(0));
    fs::remove_file(&path).unwrap();
    assert!(read(&reader) == large(0));
    // In one step with the one that is there, which has a name still.
    fs::write(lab.lower().join("second"), large(2)).unwrap();
    let (second, made) = (mount.at().join("second"), mount.at().join("made"));
    let reads = File::open(&second).unwrap();
    fs::write(&made, "made").unwrap();
    let exchange = rustix::fs::RenameFlags::EXCHANGE;
    rustix::fs::renameat_with(rustix::fs::CWD, &made, rustix::fs::CWD, &second, exchange).unwrap();
    assert_eq!(fs::read(&second).unwrap(), b"made");
    assert!(read(&reads) == large(2) && fs::read(&made).unwrap() == large(2));
    drop(reads);
    drop(reader);
    unmount(mount);
}

#[test]
fn what_is_pinned_is_read_from_its_pin_whatever_is_done_below() {
    for kind in ["xfs", "ext4"] {
        let Some(disk) = ah_test_disks::Disk::new(kind, 400, "") else { return };
        let Some(lab) = Lab::within(disk.at()).filter(|_| kernel_passes_through()) else { return };
        fs::write(lab.lower().join("large"), large(0)).unwrap();
        Workspace::create(&lab.store(), &lab.lower()).unwrap();
        let workspace = Workspace::open(&lab.store(), &lab.lower(), Options::default()).unwrap();
        let base = workspace.base_with_names(b"").unwrap();
        workspace.take_fingerprints(base).unwrap();
        let branch = workspace.branch(base, b"work").unwrap();
        let mount = Mount::with_face(workspace.view(branch).unwrap(), &lab.place(), &face(), || true).unwrap();
        let path = mount.at().join("large");
        let reader = File::open(&path).unwrap();
        assert!(read(&reader) == large(0), "{kind}");
        assert_eq!(mount.passed_through(), 1, "{kind}");
        let below = to_write(&lab.lower().join("large")).unwrap();
        below.write_all_at(&large(3), 0).unwrap();
        below.set_len(2 * MIB as u64).unwrap();
        assert!(read(&reader) == large(0) && fs::read(&path).unwrap() == large(0), "{kind}");
        fs::remove_file(lab.lower().join("large")).unwrap();
        assert!(read(&reader) == large(0) && fs::read(&path).unwrap() == large(0), "{kind}");
        let held = workspace.snapshot(branch, b"", Class::Instant).unwrap();
        let held = Mount::with_face(workspace.view_of(held).unwrap(), &lab.place(), &face(), || true).unwrap();
        assert!(fs::read(held.at().join("large")).unwrap() == large(0), "{kind}");
        assert_eq!(held.passed_through(), 1, "{kind}");
        assert_eq!(errno(to_write(&path)), Some(Errno::TXTBSY));
        drop(reader);
        once_it_is_closed(|| to_write(&path)).0.write_all_at(b"new", 5).unwrap();
        assert_eq!(&fs::read(&path).unwrap()[5..8], b"new");
        assert!(fs::read(held.at().join("large")).unwrap() == large(0), "{kind}");
        [held, mount].into_iter().for_each(unmount);
        drop(workspace);
        common::is_sound(&lab.store(), &lab.lower());
    }
}

/// The kernel knows it under the file that it maps, and tells of the close alone.
#[test]
fn a_mapping_whose_file_was_closed_shows_what_it_was() {
    let Some(lab) = lab() else { return };
    let (_workspace, mount) = as_it_is(&lab, "work");
    let script = "python3 -c \"
import ctypes, errno, mmap, os
libc = ctypes.CDLL(None); libc.mmap.restype = ctypes.c_void_p
f = os.open('large', os.O_RDONLY); was = os.pread(f, 3, 5)
m = libc.mmap(None, ctypes.c_size_t(1 << 20), mmap.PROT_READ, mmap.MAP_SHARED, f, ctypes.c_long(0)); os.close(f)
for _ in range(20):
    try: w = os.open('large', os.O_WRONLY); break
    except OSError as e: assert e.errno == errno.ETXTBSY
os.pwrite(w, b'new', 5); os.close(w)
print(ctypes.string_at(m + 5, 3) == was, open('large', 'rb').read(8)[5:])\"";
    assert_eq!(sh(mount.at(), script), "True b'new'\n");
    assert!(fs::read(lab.lower().join("large")).unwrap() == large(0));
    unmount(mount);
}

#[test]
fn many_who_read_keep_nobody_from_reading_what_was_written() {
    let Some(lab) = lab() else { return };
    let count = common::full_or_tenth(600) as usize;
    for n in 0..count {
        fs::write(lab.lower().join(format!("f{n}")), large(n as u8)).unwrap();
    }
    let (workspace, mount) = as_it_is(&lab, "work");
    let (at, next) = (mount.at(), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for reader in 0..4 {
            let next = &next;
            scope.spawn(move || {
                for round in reader.. {
                    let n = next.load(Ordering::SeqCst);
                    if n >= count {
                        return;
                    }
                    let bytes = fs::read(at.join(format!("f{}", (n + round % 3).min(count - 1)))).unwrap();
                    std::thread::sleep(Duration::from_millis(5));
                    // All of the end is what it was, or what was written, or cut.
                    let end = &bytes[MIB.min(bytes.len())..];
                    assert!(end.is_empty() || end[..9] == [0xee; 9] || bytes.len() == large(0).len());
                }
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Ordering::SeqCst);
                    if n >= count {
                        return;
                    }
                    let path = at.join(format!("f{n}"));
                    let mut expected = large(n as u8);
                    let write = || match n % 3 {
                        0 => to_write(&path).and_then(|file| file.write_all_at(&[0xee; 9], MIB as u64)),
                        1 => nix::unistd::truncate(&path, MIB as i64).map_err(Into::into),
                        _ => fs::write(&path, "x"),
                    };
                    while let Err(error) = write() {
                        assert_eq!(Errno::from_io_error(&error), Some(Errno::TXTBSY));
                    }
                    match n % 3 {
                        0 => expected[MIB..MIB + 9].fill(0xee),
                        1 => expected.truncate(MIB),
                        _ => expected = b"x".to_vec(),
                    }
                    assert!(fs::read(&path).unwrap() == expected, "{n}");
                }
            });
        }
    });
    assert!(mount.passed_through() > 0);
    for n in 0..count {
        assert!(fs::read(lab.lower().join(format!("f{n}"))).unwrap() == large(n as u8), "{n}");
    }
    unmount(mount);
    drop(workspace);
    common::is_sound(&lab.store(), &lab.lower());
}

#[test]
fn an_ordinary_user_is_told_that_it_is_roots() {
    let Some(lab) = lab() else { return };
    let script = "mkdir home/at; chown --reference home home/at
        ${HOST%% home/*} --passthrough home/store home/lower home/at >out 2>said & host=$!
        for n in $(seq 3000); do grep -q mounted out && break; sleep 0.02; done
        $AS cmp home/at/large home/lower/large; cat said
        for n in 1 2; do $AS sh -c 'echo x >home/at/large; echo y >home/at/a; cat home/at/large home/at/a'; done
        $AS fusermount3 -u home/at; wait $host";
    let said = lab.as_user("666", script);
    // What is opened to be cut is cut as ever, by the first who opens anything as by others.
    let cut = "x\ny\n".repeat(2);
    assert_eq!(said, format!("agentfs-mount: {}\n{cut}", Passthrough::NotPermitted.why_not().unwrap()));
}
