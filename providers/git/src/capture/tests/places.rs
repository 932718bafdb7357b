//! Paths that are long, gone, unreadable or elsewhere.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use ah_plugin_api::{CapturePolicy, Context, ErrorKind, OmitReason};
use gix::ObjectId;
use gix::objs::Kind;

use super::{Bench, reasons};
use crate::capture::snapshot;
use crate::index::What;
use crate::scan::{Sink, State};

#[test]
fn paths_longer_than_the_system_takes_at_once() {
    let bench = Bench::new();
    let name = "a-name-of-some-length".repeat(4);
    let mut at: std::os::fd::OwnedFd = fs::File::open(bench.path("")).unwrap().into();
    for _ in 0..60 {
        rustix::fs::mkdirat(&at, &name, rustix::fs::Mode::RWXU).unwrap();
        let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::RDONLY;
        at = rustix::fs::openat(&at, &name, flags, rustix::fs::Mode::empty()).unwrap();
    }
    let flags = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY;
    rustix::fs::openat(&at, "file", flags, rustix::fs::Mode::RWXU).unwrap();
    let first = bench.take();
    assert_eq!((first.entries, first.omitted_total), (Some(61), 0));
    bench.settle();
    assert_eq!(bench.take().tree, first.tree);
    rustix::fs::openat(&at, "other", flags, rustix::fs::Mode::RWXU).unwrap();
    assert_eq!(bench.take().entries, Some(62));
}

/// Makes a directory in a directory, and so on; gives the innermost one.
fn chain(top: &Path, depth: usize) -> std::os::fd::OwnedFd {
    let mut at: std::os::fd::OwnedFd = fs::File::open(top).unwrap().into();
    for _ in 0..depth {
        rustix::fs::mkdirat(&at, "d", rustix::fs::Mode::RWXU).unwrap();
        let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::RDONLY;
        at = rustix::fs::openat(&at, "d", flags, rustix::fs::Mode::empty()).unwrap();
    }
    at
}

/// Takes away what is nested too deep for a recursion.
struct Cleared(std::path::PathBuf);

impl Drop for Cleared {
    fn drop(&mut self) {
        let _ = Command::new("rm").arg("-rf").arg(&self.0).status();
    }
}

#[test]
fn a_chain_of_directories_without_end_is_left_out_from_somewhere_on() {
    let bench = Bench::new();
    let _cleared = Cleared(bench.path(""));
    let deepest = chain(&bench.path(""), 20_000);
    let index = || fs::metadata(bench.dir.path().join("store/index")).unwrap().len();
    for _ in 0..2 {
        let taken = bench.take();
        let omitted: Vec<_> = taken.omitted.iter().map(|it| (it.path.as_bytes().len(), it.reason)).collect();
        assert_eq!((taken.entries, omitted), (Some(4096), vec![(8193, OmitReason::TooDeep)]));
        assert!(index() < 50 << 20, "{}", index());
        bench.settle();
        // What is in it is none of a snapshot's business.
        let flags = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY;
        rustix::fs::openat(&deepest, "file", flags, rustix::fs::Mode::RWXU).unwrap();
    }
    // A level less, and the same is seen.
    fs::rename(bench.path("d/d"), bench.path("e")).unwrap();
    assert_eq!(bench.take().omitted[0].path.as_bytes().len(), 8193);
}

#[test]
fn a_deleted_workspace_is_not_an_empty_one() {
    let bench = Bench::new();
    let workspace = bench.workspace();
    fs::remove_dir(bench.path("")).unwrap();
    let refused = snapshot(&bench.store, &workspace, &bench.request(), &Context::quiet()).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::NotFound);
}

/// Runs a test of this binary, that is ignored otherwise, in a process of its own.
fn rerun(name: &str, command: &mut Command) {
    let args = ["--exact", name, "--ignored", "--nocapture"];
    let out = command.args(args).env("RUST_TEST_THREADS", "1").output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    let passed = out.status.success() && text.contains("test result: ok. 1 passed");
    assert!(passed, "{name}: {}\n{text}{}", out.status, String::from_utf8_lossy(&out.stderr));
}

#[test]
fn unreadable_things_are_omitted() {
    use std::os::unix::process::CommandExt;
    let exe = std::env::current_exe().unwrap();
    let mut command = Command::new(exe);
    if rustix::process::geteuid().is_root() {
        // Root reads everything.
        command.uid(65534).gid(65534);
    }
    rerun("capture::tests::places::unreadable_things_are_omitted_by_an_ordinary_user", &mut command);
}

#[test]
#[ignore = "run by unreadable_things_are_omitted"]
fn unreadable_things_are_omitted_by_an_ordinary_user() {
    let bench = Bench::new();
    bench.write("file", "x");
    bench.write("dir/file", "x");
    bench.write("fine/file", "x");
    let chmod = |path, mode| fs::set_permissions(bench.path(path), fs::Permissions::from_mode(mode)).unwrap();
    chmod("file", 0);
    chmod("dir", 0);
    let expected = [("dir", OmitReason::Unreadable), ("file", OmitReason::Unreadable)]
        .map(|(path, reason)| (path.to_owned(), reason));
    for _ in 0..3 {
        assert_eq!(reasons(&bench.take()), expected);
        bench.settle();
    }
    chmod("file", 0o644);
    chmod("dir", 0o755);
    assert_eq!(reasons(&bench.take_and_compare()), []);
    bench.settle();
    // Readable, but nothing in it can be reached.
    chmod("dir", 0o644);
    let taken = bench.take();
    assert!(!bench.listing(&taken).contains_key(Path::new("dir/file")));
    chmod("dir", 0);
    assert_eq!(reasons(&bench.take()), [("dir".to_owned(), OmitReason::Unreadable)]);
    chmod("dir", 0o755);
    bench.take_and_compare();

    // The workspace itself: no snapshot rather than one of what was there before.
    bench.settle();
    bench.write("file", "changed");
    let workspace = bench.workspace();
    chmod("", 0o300);
    let refused = snapshot(&bench.store, &workspace, &bench.request(), &Context::quiet()).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::PermissionDenied, "{refused:?}");
    chmod("", 0o755);
    bench.take_and_compare();
}

/// A disk that cannot read large files.
struct BadSectors;

impl Sink for BadSectors {
    fn object(&self, kind: Kind, data: &[u8], _replaces: Option<&gix::oid>) -> ah_plugin_api::Result<ObjectId> {
        Ok(crate::store::hash(kind, data))
    }

    fn blob_from(
        &self,
        _file: BorrowedFd<'_>,
        _size: u64,
        _replaces: Option<&gix::oid>,
        _cx: &Context<'_>,
    ) -> ah_plugin_api::Result<crate::store::Taken> {
        Ok(Err(rustix::io::Errno::IO))
    }
}

#[test]
fn a_large_file_that_cannot_be_read_is_omitted_like_a_small_one() {
    let bench = Bench::new();
    bench.write("large", &"x".repeat(2 << 20));
    bench.write("small", "x");
    let (workspace, policy, cx) = (bench.workspace(), CapturePolicy::default(), Context::quiet());
    let mut scan = crate::scan::scan(workspace.as_fd(), &policy, None, &bench.store, false, &cx).unwrap();
    crate::scan::read_contents(workspace.as_fd(), &mut scan, &BadSectors, &cx).unwrap();
    let State::Listed(root) = &scan.nodes[0].state else { panic!() };
    let whats: Vec<_> = root.items.iter().map(|item| item.what).collect();
    assert_eq!(whats, [What::Omitted(OmitReason::Unreadable), What::File]);
}

/// A directory that its user may not read, and then may, with nothing changed about it.
fn shut_for_a_while(bench: &Bench) {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    fs::set_permissions(bench.path("bind"), fs::Permissions::from_mode(0o000)).unwrap();
    bench.settle();
    let all = capabilities(None).unwrap();
    let mut fewer = all;
    fewer.effective.remove(CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH);
    set_capabilities(None, fewer).unwrap();
    for _ in 0..2 {
        assert_eq!(reasons(&bench.take()), [("bind".to_owned(), OmitReason::Unreadable)]);
        bench.settle();
    }
    set_capabilities(None, all).unwrap();
    assert_eq!(reasons(&bench.take_and_compare()), []);
}

#[test]
fn other_filesystems_are_left_out() {
    let exe = std::env::current_exe().unwrap();
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount"]).arg(exe);
    rerun("capture::tests::places::other_filesystems_are_left_out_in_a_namespace", &mut command);
}

#[test]
#[ignore = "run by other_filesystems_are_left_out"]
fn other_filesystems_are_left_out_in_a_namespace() {
    use nix::mount::{MsFlags, mount};
    let bench = Bench::new();
    bench.write("mnt/under", "x");
    bench.write("bind/under", "x");
    bench.write("file", "x");
    bench.write("other", "y");
    bench.take_and_compare();
    bench.settle();
    let none: Option<&str> = None;
    mount(Some("tmpfs"), &bench.path("mnt"), Some("tmpfs"), MsFlags::empty(), none).unwrap();
    mount(Some(&bench.path("mnt")), &bench.path("bind"), none, MsFlags::MS_BIND, none).unwrap();
    mount(Some(&bench.path("other")), &bench.path("file"), none, MsFlags::MS_BIND, none).unwrap();
    let other = OmitReason::OtherFilesystem;
    let expected = [("bind", other), ("file", other), ("mnt", other)].map(|(path, reason)| (path.to_owned(), reason));
    for _ in 0..2 {
        assert_eq!(reasons(&bench.take()), expected);
        let live = bench.live();
        assert_eq!(bench.take().tree, Some(crate::capture::tree_id(&live.tree, &live.meta)));
        bench.write("mnt/changes", "z");
        bench.settle();
    }
    for path in ["mnt", "bind", "file"] {
        ah_test_disks::unmount(&bench.path(path));
    }
    assert_eq!(reasons(&bench.take_and_compare()), []);

    // One of the same inode, whose coming and going changes no time.
    bench.settle();
    let own = bench.path("bind");
    mount(Some(&own), &own, none, MsFlags::MS_BIND, none).unwrap();
    bench.write("other", "z");
    assert_eq!(reasons(&bench.take()), [("bind".to_owned(), other)]);
    ah_test_disks::unmount(&own);
    assert_eq!(reasons(&bench.take_and_compare()), []);

    shut_for_a_while(&bench);
}
