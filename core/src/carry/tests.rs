//! Carrying between two directories, without a provider.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use ah_plugin_api::{CapturePolicy, Change, Context, Dir, Observer, RelPath, Timestamp};
use rustix::io::Errno;

use super::CarryReport;
use super::copy::copy;
use super::find::missing;
use super::times::fit;
use crate::restore::at::Tree;
use crate::walk::copy_contents;

struct Two {
    tmp: tempfile::TempDir,
    workspace: Dir,
    branch: Dir,
}

impl Two {
    fn new() -> Self {
        let tmp = tempfile::tempdir().unwrap();
        for part in ["ws/.git/objects", "ws/.git/refs", "branch"] {
            std::fs::create_dir_all(tmp.path().join(part)).unwrap();
        }
        std::fs::write(tmp.path().join("ws/.git/HEAD"), "ref: refs/heads/main\n").unwrap();
        let open = |name| Dir::open(tmp.path().join(name)).unwrap();
        Self { workspace: open("ws"), branch: open("branch"), tmp }
    }

    fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        self.tmp.path().join(path)
    }

    fn write(&self, path: &str, contents: &str) {
        std::fs::create_dir_all(self.at(path).parent().unwrap()).unwrap();
        std::fs::write(self.at(path), contents).unwrap();
    }

    fn missing(&self) -> Vec<RelPath> {
        missing(&self.workspace, &self.branch, &CapturePolicy::default(), &Context::quiet()).unwrap()
    }

    fn carry(&self, limit: u64) -> CarryReport {
        let mut report = CarryReport::default();
        copy(&self.workspace, &self.branch, &self.missing(), limit, &[], &mut report, &Context::quiet()).unwrap();
        report
    }
}

fn names(paths: &[RelPath]) -> BTreeSet<String> {
    paths.iter().map(ToString::to_string).collect()
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

fn old(path: &Path) -> SystemTime {
    let time = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    std::fs::File::open(path).unwrap().set_modified(time).unwrap();
    time
}

#[test]
fn the_topmost_ignored_paths_that_the_branch_lacks() {
    let two = Two::new();
    two.write("ws/.gitignore", "target/\nnode_modules\n*.env\n/partly\n");
    for path in [
        "target/debug/a",
        "src/main.rs",
        "web/node_modules/x/y",
        "web/app.js",
        "came/since/node_modules/x",
        "was/a/file/node_modules/x",
        "a.env",
        "b.env",
        "partly/in",
        "partly/out",
    ] {
        two.write(&format!("ws/{path}"), "x");
    }
    for path in ["b.env", "partly/in", "src/main.rs", "web/app.js", "was/a"] {
        two.write(&format!("branch/{path}"), "x");
    }
    let missing = set(&["target", "web/node_modules", "a.env", "partly/out"]);
    assert_eq!(names(&two.missing()), missing);
    assert_eq!(names(&two.carry(u64::MAX).carried), missing);
}

#[test]
fn what_the_branch_does_not_take_is_left() {
    let two = Two::new();
    two.write("ws/.gitignore", "cache\n");
    for path in ["ws/vendor/cache/x", "ws/cache/x", "branch/vendor/f"] {
        two.write(path, "x");
    }
    let mode = |mode| std::fs::set_permissions(two.at("branch/vendor"), std::fs::Permissions::from_mode(mode)).unwrap();
    mode(0o555);
    // Root, too: of this thread alone.
    let mut rights = rustix::thread::capabilities(None).unwrap();
    rights.effective.remove(rustix::thread::CapabilitySet::DAC_OVERRIDE);
    rustix::thread::set_capabilities(None, rights).unwrap();
    let report = two.carry(u64::MAX);
    mode(0o755);
    let left: Vec<RelPath> = report.left.iter().map(|left| left.path.clone()).collect();
    assert_eq!((names(&report.carried), names(&left)), (set(&["cache"]), set(&["vendor/cache"])));
    assert!(two.at("branch/cache/x").exists() && !two.at("branch/vendor/cache").exists());
}

#[test]
fn a_tree_comes_along_as_it_is() {
    let two = Two::new();
    two.write("ws/.gitignore", "deps\n");
    two.write("ws/deps/bin/tool", "tool");
    two.write("ws/deps/lib", "lib");
    std::fs::create_dir(two.at("ws/deps/empty")).unwrap();
    std::fs::hard_link(two.at("ws/deps/lib"), two.at("ws/deps/other-name")).unwrap();
    symlink("../../outside", two.at("ws/deps/link")).unwrap();
    nix::unistd::mkfifo(&two.at("ws/deps/fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    std::fs::set_permissions(two.at("ws/deps/bin/tool"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let times: Vec<_> = ["deps/bin/tool", "deps/bin", "deps"].map(|path| (path, old(&two.at("ws").join(path)))).into();
    std::fs::set_permissions(two.at("ws/deps/bin"), std::fs::Permissions::from_mode(0o555)).unwrap();
    let report = two.carry(u64::MAX);
    assert_eq!(names(&report.carried), set(&["deps"]));
    assert_eq!(report.copied + report.shared, 7, "hard links count once");
    for (path, time) in times {
        assert_eq!(two.at("branch").join(path).metadata().unwrap().modified().unwrap(), time, "{path}");
    }
    let mode = |path: &str| two.at(path).metadata().unwrap().mode() & 0o7777;
    assert_eq!((mode("branch/deps/bin/tool"), mode("branch/deps/bin")), (0o755, 0o555));
    let inode = |path: &str| two.at(path).metadata().unwrap().ino();
    assert_eq!(inode("branch/deps/lib"), inode("branch/deps/other-name"));
    assert_ne!(inode("branch/deps/lib"), inode("ws/deps/lib"));
    assert_eq!(std::fs::read_link(two.at("branch/deps/link")).unwrap(), Path::new("../../outside"));
    assert!(two.at("branch/deps/empty").is_dir() && !two.at("branch/deps/fifo").exists());
    std::fs::set_permissions(two.at("ws/deps/bin"), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::set_permissions(two.at("branch/deps/bin"), std::fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn no_set_id_programs_are_taken_along() {
    let two = Two::new();
    two.write("ws/.gitignore", "deps\n");
    two.write("ws/deps/tool", "tool");
    std::fs::set_permissions(two.at("ws/deps/tool"), std::fs::Permissions::from_mode(0o6755)).unwrap();
    two.carry(u64::MAX);
    assert_eq!(two.at("branch/deps/tool").metadata().unwrap().mode() & 0o7777, 0o755);
}

#[test]
fn what_is_too_much_is_listed_and_the_small_comes_first() {
    let two = Two::new();
    two.write("ws/.gitignore", "a\nb\n");
    two.write("ws/a/big", &"x".repeat(10_000));
    two.write("ws/b/small", "x");
    let report = two.carry(5000);
    if report.shared > 0 {
        assert_eq!(names(&report.carried), set(&["a", "b"]));
        return;
    }
    assert_eq!(names(&report.carried), set(&["b"]));
    assert_eq!(report.left.iter().map(|left| left.path.to_string()).collect::<Vec<_>>(), ["a"]);
    assert!(!two.at("branch/a").exists());
}

/// Who does not wait any more.
struct Gone;

impl Observer for Gone {
    fn cancelled(&self) -> bool {
        true
    }
}

#[test]
fn no_more_of_a_file_is_copied_than_was_counted_and_that_can_be_stopped() {
    // Nothing shares contents with this.
    let from = rustix::fs::memfd_create("large", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&from, 100 << 20).unwrap();
    let copied = |most, cx: &Context<'_>| {
        rustix::fs::seek(&from, rustix::fs::SeekFrom::Start(0)).unwrap();
        let out = tempfile::tempfile().unwrap();
        let told = copy_contents(from.as_fd(), out.as_fd(), most, cx);
        (told, out.metadata().unwrap().len())
    };
    for most in [0, 1, (9 << 20) + 1] {
        assert_eq!(copied(most, &Context::quiet()), (Ok(Some(most)), most));
    }
    assert_eq!(copied(u64::MAX, &Context::quiet()), (Ok(Some(100 << 20)), 100 << 20));
    assert_eq!(copied(u64::MAX, &Context::new(&Gone)), (Err(Errno::CANCELED), 0));
}

#[test]
fn a_branch_inside_does_not_take_itself_along() {
    let two = Two::new();
    two.write("ws/.gitignore", "ignored\n");
    two.write("ws/ignored/f", "x");
    std::fs::rename(two.at("branch"), two.at("ws/ignored/branch")).unwrap();
    let report = two.carry(u64::MAX);
    assert_eq!(names(&report.carried), set(&["ignored"]));
    assert!(two.at("ws/ignored/branch/ignored/f").exists());
    assert!(!two.at("ws/ignored/branch/ignored/branch").exists());
}

#[test]
fn equal_files_get_the_present_time_and_others_now() {
    let two = Two::new();
    for (name, here, there) in [("equal", "x", "x"), ("differs", "x", "y"), ("gone", "", "z")] {
        if !here.is_empty() {
            two.write(&format!("ws/{name}"), here);
        }
        two.write(&format!("branch/{name}"), there);
        old(&two.at("branch").join(name));
    }
    let entry = |dir: &Dir, name: &str| {
        use std::os::fd::AsFd;
        let found = Tree::new(dir.as_fd()).unwrap().stat(&RelPath::new(name).unwrap()).unwrap();
        found.map(|found| found.entry(name.as_bytes()))
    };
    let change = |name: &str| Change {
        path: RelPath::new(name).unwrap(),
        before: entry(&two.branch, name),
        after: entry(&two.workspace, name),
    };
    let began = SystemTime::now() - Duration::from_secs(1);
    fit(&two.workspace, &two.branch, &["differs", "equal", "gone"].map(change), Timestamp::now(), &Context::quiet())
        .unwrap();
    let time = |path: &str| two.at(path).metadata().unwrap().modified().unwrap();
    assert_eq!(time("branch/equal"), time("ws/equal"));
    assert!(time("branch/differs") > began && time("branch/gone") > began);
}
