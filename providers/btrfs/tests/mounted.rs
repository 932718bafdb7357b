//! What of a subvolume is mounted, or in it, when that is to be removed, and what the kernel itself keeps.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use ah_plugin_api::{Context, DestroyRequest, Error, ErrorKind, Provider, ReclaimRequest, Result};
use ah_test_disks::{Disk, unmount};
use common::{Bench, run, subvolume, subvolumes};

/// Whose workspace is a subvolume.
fn bench(disk: &Disk) -> Bench {
    subvolume(&disk.at().join("work"));
    Bench::in_folder(disk.at())
}

/// A process that ends with this.
struct Stands(Child);

impl Drop for Stands {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// A process that has done that in a mount namespace of its own, and stays.
fn unshared(script: &str) -> Stands {
    let script = format!("{script} && echo done && exec sleep 600");
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-ec", &script]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = Stands(command.stderr(Stdio::null()).spawn().unwrap());
    let mut said = String::new();
    BufReader::new(child.0.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "done\n");
    child
}

/// Removes it as soon as no process of another test is left that has begun with a copy of this one's mounts.
fn removed_in_the_end(remove: impl Fn() -> Result<()>) {
    for _ in 0..600 {
        match remove() {
            Err(error) if error.kind == ErrorKind::Busy && error.message.contains("mounts of its own") => {
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
            removed => return removed.unwrap(),
        }
    }
    panic!("it stays");
}

/// What is removed by `remove` stays while something is mounted in it anywhere, or, with `other`, of it there. It is at `at`, and has a directory `in`.
fn stays_while_mounted(at: &Path, other: Option<&Path>, remove: impl Fn() -> Result<()>) {
    let shown = |path: &Path| path.to_str().unwrap().to_owned();
    let device = run("findmnt", &["-no", "SOURCE", "--target", &shown(at)]);
    let device = device.split('[').next().unwrap().trim();
    let id = run("btrfs", &["inspect-internal", "rootid", &shown(at)]);
    let inside = at.join("in");
    let mut scripts = vec![(format!("mount -t tmpfs tmpfs {}", inside.display()), inside.as_path())];
    if let Some(other) = other {
        scripts.extend([
            (format!("mount --bind {} {}", at.display(), other.display()), other),
            (format!("mount --bind {} {}", inside.display(), other.display()), other),
            (format!("mount -o subvolid={} {device} {}", id.trim(), other.display()), other),
        ]);
    }
    let busy = |removed: Result<()>| {
        let error = removed.unwrap_err();
        assert!(error.kind == ErrorKind::Busy && error.hint.is_some(), "{error:?}");
        error
    };
    for (script, point) in scripts {
        let process = unshared(&script);
        let error = busy(remove());
        assert!(error.message.contains("mounts of its own"), "{error:?}");
        drop(process);
        run("sh", &["-ec", &script]);
        // By its descriptor, as it may have been moved.
        let held = fs::File::open(point).unwrap();
        let error = busy(remove());
        let now = fs::read_link(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&held))).unwrap();
        drop(held);
        unmount(&now);
        assert!(error.hint.unwrap().contains(now.to_str().unwrap()), "{script}");
    }
}

#[test]
fn a_clone_stays_while_something_is_mounted_in_it() {
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    let bench = bench(&disk);
    bench.write("in/f", "x");
    let taken = bench.snapshot("a");
    let clone = bench.clone(&taken, "c");
    let remove = || bench.destroy(&DestroyRequest::Clone(clone.reference.clone()));
    stays_while_mounted(&clone.path, None, remove);
    assert_eq!(fs::read_to_string(clone.path.join("in/f")).unwrap(), "x");
    removed_in_the_end(remove);
    assert!(!disk.at().join("target/c").exists());
}

#[test]
fn a_removed_snapshot_is_given_back_when_nothing_of_it_is_mounted_and_keeps_no_other() {
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    let bench = bench(&disk);
    bench.write("in/f", "x");
    let (taken, second) = (bench.snapshot("a"), bench.snapshot("b"));
    bench.remove(&taken);
    let trash = disk.at().join("store/depot/trash");
    let tree = fs::read_dir(&trash).unwrap().next().unwrap().unwrap().path().join("tree");
    let other = tempfile::tempdir().unwrap();
    let reclaim = |auto| {
        let request = ReclaimRequest { auto, ..ReclaimRequest::default() };
        bench.provider.reclaim(&bench.place(), &request, &Context::quiet()).map(drop)
    };
    stays_while_mounted(&tree, Some(other.path()), || reclaim(false));
    let process = unshared(&format!("mount --bind {} {}", tree.display(), other.path().display()));
    bench.remove(&second);
    reclaim(true).unwrap();
    let (left, again) = (subvolumes(disk.at()), reclaim(true));
    drop(process);
    assert_eq!((left, again.unwrap_err().kind), (3, ErrorKind::Busy), "the workspace, the depot and what is mounted");
    assert_eq!(fs::read_to_string(tree.join("in/f")).unwrap(), "x");
    removed_in_the_end(|| reclaim(false));
    assert_eq!(subvolumes(disk.at()), 2, "the workspace and the depot");
}

/// Refused by the kernel whoever asks, so that it is not emptied instead.
#[test]
fn the_default_subvolume_and_what_is_sent_stay_whole() {
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    let bench = bench(&disk);
    bench.write("in/f", vec![7; 4 << 20]);
    let taken = bench.snapshot("a");
    let clone = bench.clone(&taken, "c");
    let busy = |error: Error| assert!(error.kind == ErrorKind::Busy && error.hint.is_some(), "{error:?}");
    run("btrfs", &["subvolume", "set-default", clone.path.to_str().unwrap()]);
    busy(bench.destroy(&DestroyRequest::Clone(clone.reference.clone())).unwrap_err());
    assert_eq!(fs::metadata(clone.path.join("in/f")).unwrap().len(), 4 << 20);
    run("btrfs", &["subvolume", "set-default", "5", disk.at().to_str().unwrap()]);
    bench.destroy(&DestroyRequest::Clone(clone.reference)).unwrap();
    bench.remove(&taken);
    let tree = fs::read_dir(disk.at().join("store/depot/trash")).unwrap().next().unwrap().unwrap().path().join("tree");
    // It waits for somebody to read on.
    let mut send = Command::new("btrfs");
    let mut send = Stands(send.arg("send").arg(&tree).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap());
    send.0.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    let refused = bench.provider.reclaim(&bench.place(), &ReclaimRequest::default(), &Context::quiet());
    drop(send);
    busy(refused.unwrap_err());
    assert_eq!(fs::metadata(tree.join("in/f")).unwrap().len(), 4 << 20);
    bench.reclaim();
    assert_eq!(subvolumes(disk.at()), 2, "the workspace and the depot");
}
