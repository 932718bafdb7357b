//! Disks that are full, and directories that do not want to be written to.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use ah_test_disks::Disk;

use crate::support::{User, World, is_root, skip};

/// Mounts a small filesystem; false (and a message) if the tests may not.
fn small_disk(at: &Path, megabytes: u32) -> bool {
    mounted(at, &format!("size={megabytes}m"))
}

fn mounted(at: &Path, options: &str) -> bool {
    if !is_root() {
        skip("needs root, to mount");
        return false;
    }
    fs::create_dir_all(at).unwrap();
    let status = Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(at).status().unwrap();
    assert!(status.success());
    true
}

fn bytes(fill: u8) -> Vec<u8> {
    // Not compressible, and different for each `fill`.
    let mut state = u32::from(fill) + 1;
    std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_le_bytes()[3]
    })
    .take(2_500_000)
    .collect()
}

#[test]
fn a_restore_that_does_not_fit_changes_nothing() {
    let world = World::new();
    if !small_disk(&world.root(), 4) {
        return;
    }
    world.write("big", bytes(1));
    world.write("small", "old");
    let first = world.fs(["snapshot"]);
    world.write("big", bytes(2));
    world.write("small", "new");
    world.write("added", "new");
    let before = world.picture("w");
    let ran = world.run(["agent", "fs", "restore", &first]);
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.stderr.contains("No space left"), "{ran:?}");
    // Removing snapshots would free nothing there.
    let root = world.root().display().to_string();
    let hint = ran.stderr.lines().find(|line| line.starts_with("hint: ")).unwrap();
    assert!(hint.contains(&root) && !hint.contains("prune"), "{hint}");
    assert_eq!(world.picture("w"), before);
    // What fits is done.
    world.fs(["restore", &first, "--", "small", "added"]);
    assert_eq!((world.read("small").as_deref(), world.read("added")), (Some("old"), None));
    // With room, all of it.
    fs::remove_file(world.root().join("big")).unwrap();
    world.fs(["restore", &first]);
    assert_eq!(fs::read(world.root().join("big")).unwrap(), bytes(1));
}

#[test]
fn a_disk_that_takes_no_more_files_is_named_however_much_room_it_has() {
    for (root, state, is_root) in
        [("size=64m,nr_inodes=24", "size=16m", true), ("size=16m", "size=64m,nr_inodes=200", false)]
    {
        let world = World::new();
        if !mounted(&world.root(), root) || !mounted(&world.path("state"), state) {
            return;
        }
        world.use_git();
        for n in 0..8 {
            world.write(format!("old{n}"), "old");
        }
        let first = world.fs(["snapshot"]);
        for n in 0..8 {
            fs::remove_file(world.root().join(format!("old{n}"))).unwrap();
        }
        let full = if is_root { world.root() } else { world.path("state") };
        (0..).find(|n| fs::write(full.join(format!("new{n}")), "").is_err()).unwrap();
        let ran = world.run(["agent", "fs", "restore", &first]);
        assert_eq!(ran.code, 1, "{ran:?}");
        let names_root = ran.stderr.contains("the workspace's disk is full");
        assert_eq!(names_root, is_root, "{ran:?}");
    }
}

/// As on Btrfs, where that takes more room than to make files.
#[test]
fn without_room_to_put_files_in_place_nothing_is_changed() {
    if !may_trace() {
        return;
    }
    let world = World::new();
    world.use_git();
    world.write("edited", "old");
    world.write("gone", "old");
    let first = world.fs(["snapshot"]);
    world.write("edited", "new!");
    world.write("added", "new");
    fs::remove_file(world.root().join("gone")).unwrap();
    let before = world.picture("w");
    let ah = world.command(["agent", "fs", "restore", &first]);
    let ran = crate::support::Ran::of(&mut under_strace(&world, &ah, "renameat2", "ENOSPC"));
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.stderr.contains("cannot put the files in place") && ran.stderr.contains("free"), "{ran:?}");
    assert_eq!(world.picture("w"), before);
}

#[test]
fn without_room_for_the_safety_snapshot_nothing_is_changed() {
    let world = World::new();
    if !small_disk(&world.path("state"), 4) {
        return;
    }
    world.use_git();
    world.write("big", bytes(1));
    let first = world.fs(["snapshot"]);
    world.write("big", bytes(2));
    let before = world.picture("w");
    for words in [&["agent", "fs", "restore", &first][..], &["agent", "fs", "snapshot"]] {
        let ran = world.run(words);
        assert_eq!(ran.code, 1, "{ran:?}");
    }
    assert_eq!(world.picture("w"), before);
    world.write("big", "small now");
    world.fs(["gc"]);
    world.fs(["restore", &first]);
    assert_eq!(fs::read(world.root().join("big")).unwrap(), bytes(1));
    world.fs(["undo"]);
    assert_eq!(world.read("big").as_deref(), Some("small now"));
}

#[test]
fn what_frees_a_full_disk_can_be_done_on_it() {
    // Where the timeline's last block ends decides what of the removal is the first to want room.
    for label in [1, 1000, 2000, 3000] {
        if !full_disk(&"x".repeat(label)) {
            return;
        }
    }
}

fn full_disk(label: &str) -> bool {
    let world = World::new();
    if !small_disk(&world.path("state"), 4) {
        return false;
    }
    world.use_git();
    world.write("big", bytes(1));
    let first = world.fs(["snapshot"]);
    world.write("big", "small now");
    world.fs(["snapshot", "-m", label]);
    // Not a byte is left, nor anything in the last block of a file.
    let mut filler = fs::File::create(world.path("state/filler")).unwrap();
    for size in [1 << 16, 1 << 12, 1] {
        while filler.write_all(&vec![1; size]).is_ok() {}
    }
    drop(filler);
    assert_eq!(world.run(["agent", "fs", "snapshot", "-m", &"x".repeat(4000)]).code, 1);
    assert_eq!(world.fs(["rm", &first]), first);
    world.fs(["gc"]);
    world.write("big", "another small one");
    world.fs(["snapshot"]);
    true
}

#[test]
fn a_disk_that_takes_no_more_files_is_freed_by_the_same() {
    let world = World::new();
    if !mounted(&world.path("state"), "size=16m,nr_inodes=400") {
        return;
    }
    world.use_git();
    let ids: Vec<String> = (0..8u8)
        .map(|number| {
            world.write("f", [number; 100]);
            world.fs(["snapshot"])
        })
        .collect();
    world.wait_for_background();
    let filler = world.path("state/filler");
    fs::create_dir(&filler).unwrap();
    let fill = |name| assert!((0..).any(|number| fs::write(filler.join(format!("{name}{number}")), "").is_err()));
    fill("a");
    world.write("f", "new");
    let ran = world.run(["agent", "fs", "snapshot"]);
    assert!(ran.code == 1 && ran.stderr.contains("`df -i`"), "{ran:?}");
    // What that had begun is gone again.
    fill("b");
    assert_eq!(world.fs(["rm", &ids[0]]), ids[0]);
    world.fs(["gc"]);
    world.fs(["snapshot"]);
    assert_eq!(world.fs(["cat", &ids[7], "f"]).as_bytes(), [7; 100]);
    // Not once only: what is given up is no more than is needed, and comes back by itself when there is room.
    for (id, name) in ids[1..3].iter().zip(["c", "d"]) {
        world.wait_for_background();
        fill(name);
        assert_eq!(world.fs(["rm", id]), *id);
    }
    world.wait_for_background();
    fs::remove_dir_all(&filler).unwrap();
    world.fs(["rm", &ids[3]]);
    world.wait_for_background();
    let is_reserve = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with("reserve");
    let kept =
        fs::read_dir(world.path("state")).unwrap().filter(|entry| is_reserve(&entry.as_ref().unwrap().file_name()));
    assert_eq!(kept.count(), 9);
    // Nothing that a filesystem could compress: it is to take the room that it is to give.
    let reserve = fs::read(world.path("state/reserve")).unwrap();
    assert_eq!(reserve.iter().collect::<std::collections::BTreeSet<_>>().len(), 256);
}

#[test]
fn notes_of_garbage_that_are_of_a_wrong_length_keep_nothing_from_being_given_back() {
    let world = World::new();
    world.use_git();
    world.write("f", "old");
    world.fs(["snapshot"]);
    let mut workspaces = fs::read_dir(world.path("state/workspaces")).unwrap();
    let notes = workspaces.next().unwrap().unwrap().path().join("providers/git/garbage");
    fs::File::create(&notes).unwrap().set_len(1 << 43).unwrap();
    world.fs(["gc"]);
    assert!(!notes.exists());
}

#[test]
fn read_only_directories_of_ones_own() {
    World::each(|world| {
        let chmod = |path: &str, mode| {
            fs::set_permissions(world.root().join(path), fs::Permissions::from_mode(mode)).unwrap();
        };
        let mode = |path: &str| fs::metadata(world.root().join(path)).unwrap().permissions().mode() & 0o7777;
        for name in ["shut/edited", "shut/deleted", "shut/in/deep"] {
            world.write(name, "old");
        }
        ["shut/in", "shut", "."].into_iter().for_each(|path| chmod(path, 0o555));
        let first = world.fs(["snapshot"]);
        [".", "shut", "shut/in"].into_iter().for_each(|path| chmod(path, 0o755));
        world.write("shut/edited", "new");
        world.write("shut/added", "new");
        world.write("shut/in/deep", "new");
        fs::remove_file(world.root().join("shut/deleted")).unwrap();
        ["shut/in", "shut", "."].into_iter().for_each(|path| chmod(path, 0o555));
        world.fs(["restore", &first]);
        for name in ["shut/edited", "shut/deleted", "shut/in/deep"] {
            assert_eq!(world.read(name).as_deref(), Some("old"), "{name}");
        }
        assert!(!world.root().join("shut/added").exists());
        assert_eq!([mode("."), mode("shut"), mode("shut/in")], [0o555; 3]);
        world.fs(["undo"]);
        assert_eq!(world.read("shut/edited").as_deref(), Some("new"));
        assert!(world.root().join("shut/added").exists() && !world.root().join("shut/deleted").exists());
        assert_eq!([mode("."), mode("shut"), mode("shut/in")], [0o555; 3]);
    });
}

#[test]
fn a_directory_of_somebody_else_is_refused_with_nothing_changed() {
    if !is_root() {
        return skip("needs root, to act as an ordinary user");
    }
    let world = World::of(User::Ordinary);
    world.write("theirs/f", "old");
    world.write("mine", "old");
    let first = world.fs(["snapshot"]);
    world.write("theirs/f", "new");
    world.write("mine", "new");
    std::os::unix::fs::chown(world.root().join("theirs"), Some(0), Some(0)).unwrap();
    let ran = world.run(["agent", "fs", "restore", &first]);
    assert_eq!(ran.code, 4, "{ran:?}");
    assert!(ran.stderr.contains("theirs"), "{ran:?}");
    assert_eq!([world.read("theirs/f").as_deref(), world.read("mine").as_deref()], [Some("new"); 2]);
}

#[test]
fn what_is_ones_own_and_shut_is_said_to_be_opened() {
    if !is_root() {
        return skip("needs root, to act as an ordinary user");
    }
    let world = World::of(User::Ordinary);
    world.use_git();
    world.write("f", "old");
    world.fs(["snapshot"]);
    world.wait_for_background();
    let workspaces = world.path("state/workspaces");
    fs::set_permissions(&workspaces, fs::Permissions::from_mode(0o000)).unwrap();
    let ran = world.run(["agent", "fs", "snapshot"]);
    fs::set_permissions(&workspaces, fs::Permissions::from_mode(0o700)).unwrap();
    assert!(ran.code == 1 && ran.stderr.contains("`chmod u+rwX PATH`"), "{ran:?}");
}

/// A command under strace, which makes a system call fail.
fn under_strace(world: &World, ah: &Command, call: &str, error: &str) -> Command {
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-o"]).arg(world.path("log"));
    strace.args(["-e", &format!("trace={call}"), "-e", &format!("inject={call}:error={error}")]);
    strace.arg("--").arg(ah.get_program()).args(ah.get_args()).env_clear().current_dir(world.root());
    strace.envs(ah.get_envs().filter_map(|(name, value)| Some((name, value?))));
    strace
}

fn may_trace() -> bool {
    let traced = Command::new("strace").args(["-o", "/dev/null", "true"]).status();
    let may = traced.is_ok_and(|status| status.success());
    if !may {
        skip("needs strace (apt-get install strace), and to be allowed to trace");
    }
    may
}

#[test]
fn older_kernels_and_lesser_filesystems_do() {
    if !may_trace() {
        return;
    }
    let lacks = [
        ("renameat2", "EINVAL"),
        ("openat2", "ENOSYS"),
        ("openat2", "EPERM"),
        ("copy_file_range", "EXDEV"),
        ("linkat", "EXDEV"),
        ("fadvise64", "EINVAL"),
    ];
    for (call, error) in lacks {
        let world = World::new();
        for name in ["edited", "deleted", "swap/file"] {
            world.write(name, "old");
        }
        world.write(".gitignore", "built/\n");
        world.write("built/file", "built");
        let before = crate::support::Ran::of(&mut under_strace(
            &world,
            &world.command(["agent", "fs", "snapshot"]),
            call,
            error,
        ));
        assert_eq!(before.code, 0, "{call} {error}: {before:?}");
        let before = before.stdout.trim().to_owned();
        world.write("built/later", "built");
        world.write("edited", "new!");
        world.write("added", "new");
        fs::remove_file(world.root().join("deleted")).unwrap();
        fs::remove_dir_all(world.root().join("swap")).unwrap();
        world.write("swap", "a file");
        let ah = world.command(["agent", "fs", "restore", &before]);
        let ran = crate::support::Ran::of(&mut under_strace(&world, &ah, call, error));
        assert_eq!(ran.code, 0, "{call} {error}: {ran:?}");
        let contents = ["edited", "deleted", "swap/file"].map(|name| world.read(name));
        assert_eq!(contents, ["old"; 3].map(|text| Some(text.to_owned())), "{call} {error}");
        assert!(!world.root().join("added").exists(), "{call} {error}");
        assert_eq!(world.read("built/later").as_deref(), Some("built"), "{call} {error}: ignored files stay");
        // Nor are they captured, but where all is.
        if !crate::support::on_btrfs(&world.root()) {
            assert_eq!(world.refused(3, &["agent", "fs", "cat", &before, "built/file"]), "not-found", "{call} {error}");
        }
        // Removing trees goes other ways.
        let branch = world.fs(["branch", "--name", "b", "--mode", "worktree"]);
        let ah = world.command(["agent", "fs", "rm", "b"]);
        let ran = crate::support::Ran::of(&mut under_strace(&world, &ah, call, error));
        assert_eq!(ran.code, 0, "{call} {error}: {ran:?}");
        assert!(!Path::new(&branch).exists(), "{call} {error}");
    }
}

#[test]
fn paths_that_no_restore_touches_are_refused() {
    let world = World::new();
    world.write("f", "x");
    fs::create_dir(world.root().join(".git")).unwrap();
    world.fs(["snapshot"]);
    assert_eq!(world.refused(2, &["agent", "fs", "restore", "@", "--", ".git/config"]), "invalid-argument");
    assert_eq!(world.refused(3, &["agent", "fs", "restore", "@", "--", "nowhere"]), "not-found");
    // Hints are right wherever one stands.
    fs::create_dir(world.root().join("sub")).unwrap();
    let mut inside = world.command(["agent", "fs", "restore", "@", "--", "nowhere"]);
    let ran = crate::support::Ran::of(inside.current_dir(world.root().join("sub")));
    let whole = world.root().join("sub/nowhere");
    assert!(ran.stderr.contains(&format!("versions {}", whole.display())), "{ran:?}");
    let ran = world.run(["agent", "fs", "restore", "@", "--", ".git"]);
    let holds = !world.can("applies-policy");
    assert_eq!(ran.stderr.contains("copies it out"), holds, "{ran:?}");
    assert_eq!(ran.stderr.contains("ah agent fs branch "), !holds, "{ran:?}");
}

#[test]
fn filesystems_with_reflinks_share_what_is_carried() {
    for kind in ["btrfs", "xfs"] {
        let world = World::new();
        let Some(disk) = Disk::new(kind, 400, "") else { return };
        let root = disk.at().join("w");
        fs::create_dir_all(root.join("node_modules/pkg")).unwrap();
        fs::write(root.join("node_modules/pkg/big"), bytes(3)).unwrap();
        fs::write(root.join(".gitignore"), "node_modules/\n").unwrap();
        fs::write(root.join("f"), "old").unwrap();
        assert!(Command::new("git").args(["init", "-q"]).current_dir(&root).status().unwrap().success());
        let ah = |words: &[&str]| {
            let all = ["agent", "fs"].iter().chain(words);
            let ran =
                crate::support::Ran::of(world.command(all).current_dir(&root).env("AH_HOME", disk.at().join("state")));
            assert_eq!(ran.code, 0, "{kind}: {ran:?}");
            ran.stdout.trim_end().to_owned()
        };
        let set = world
            .command(["config", "set", "provider", "git"])
            .env("AH_HOME", disk.at().join("state"))
            .status()
            .unwrap();
        assert!(set.success());
        let first = ah(&["snapshot"]);
        let branch: serde_json::Value = serde_json::from_str(&ah(&["branch", "--name", "b", "--json"])).unwrap();
        let carried = &branch["branch"]["carried"];
        assert_eq!(carried["copied"], 0, "{kind}: {branch}");
        assert_eq!(carried["shared"], 2_500_000, "{kind}: {branch}");
        let there = disk.at().join("state/branches/b/node_modules/pkg/big");
        assert_eq!(fs::read(there).unwrap(), bytes(3));
        fs::write(root.join("f"), "new").unwrap();
        ah(&["restore", &first]);
        assert_eq!(fs::read_to_string(root.join("f")).unwrap(), "old");
        ah(&["undo"]);
        assert_eq!(fs::read_to_string(root.join("f")).unwrap(), "new");
    }
}

#[test]
fn a_subvolume_deleted_and_made_anew_as_a_plain_directory_comes_back() {
    if !is_root() {
        return skip("needs root, to mount");
    }
    let world = World::of(User::Ordinary);
    let Some(disk) = Disk::new("btrfs", 300, "user_subvol_rm_allowed") else { return };
    crate::support::need_btrfs();
    // A home in a subvolume of root's, as after most installations.
    let (home, project) = (disk.at().join("u"), disk.at().join("u/p"));
    let give = |path: &Path| std::os::unix::fs::chown(path, Some(65534), Some(65534)).unwrap();
    let write = |name: &str, content: &str| {
        let path = project.join(name);
        let above = path.parent().unwrap();
        if !above.exists() {
            fs::create_dir(above).unwrap();
            give(above);
        }
        fs::write(&path, content).unwrap();
        give(&path);
    };
    let read = |name: &str| fs::read_to_string(project.join(name)).ok();
    fs::create_dir(&home).unwrap();
    let made = Command::new("btrfs").args(["-q", "subvolume", "create"]).arg(&project).status().unwrap();
    assert!(made.success());
    give(&home);
    give(&project);
    let ah = |words: &[&str]| {
        let mut command = world.command(["agent", "fs"].iter().chain(words));
        crate::support::Ran::of(command.current_dir(&project).env("AH_HOME", home.join("state")))
    };
    let done = |words: &[&str]| {
        let ran = ah(words);
        assert_eq!(ran.code, 0, "{words:?}: {ran:?}");
        ran
    };
    write("f", "old");
    write("sub/g", "g");
    write(".gitignore", "out/\n");
    write("out/build", "b");
    let first = done(&["snapshot"]).stdout.trim_end().to_owned();
    let shown = done(&["show", &first, "--json"]).stdout;
    assert!(shown.contains("\"provider\":\"btrfs\"") || shown.contains("\"provider\": \"btrfs\""), "{shown}");

    // Ignored files are in both, and no difference between the two, as they are none to the workspace.
    write("out/build", "c");
    write("f", "between");
    let second = done(&["snapshot"]).stdout.trim_end().to_owned();
    for to in [&[second.as_str()][..], &[]] {
        let words = [&["diff", "--name-status", &first], to].concat();
        assert_eq!(done(&words).stdout, "M\tf\n");
    }
    write("out/build", "b");

    fs::remove_dir_all(&project).unwrap();
    fs::create_dir(&project).unwrap();
    give(&project);
    write("f", "another");
    write("new", "n");
    let differs = done(&["diff", &first, "--name-status"]).stdout;
    assert!(differs.contains("sub/g") && differs.contains("new"), "{differs}");
    done(&["restore", &first, "--dry-run"]);
    assert_eq!(read("f").as_deref(), Some("another"));
    let ran = done(&["restore", &first]);
    assert!(ran.stderr.contains("the present state is saved by"), "{ran:?}");
    let there = || ["f", "sub/g", "out/build", "new"].map(read);
    let then = [Some("old"), Some("g"), Some("b"), None].map(|text| text.map(str::to_owned));
    let between = [Some("another"), None, None, Some("n")].map(|text| text.map(str::to_owned));
    assert_eq!(there(), then);
    done(&["undo"]);
    assert_eq!(there(), between);
    done(&["undo"]);
    assert_eq!(there(), then);
    done(&["gc"]);
}

#[test]
fn what_no_restore_can_put_back_is_told() {
    if !is_root() {
        return skip("needs root, to mount and to make devices");
    }
    let world = World::new();
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    crate::support::need_btrfs();
    let project = disk.at().join("p");
    fs::create_dir_all(project.join("d")).unwrap();
    for name in ["d/f", "d/g"] {
        fs::write(project.join(name), "old").unwrap();
    }
    let device = |minor: &str| {
        let status = Command::new("mknod").arg(project.join("device")).args(["c", "1", minor]).status().unwrap();
        assert!(status.success());
    };
    device("3");
    let fifo = project.join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let ah = |words: &[&str]| {
        let mut command = world.command(["agent", "fs"].iter().chain(words));
        crate::support::Ran::of(command.current_dir(&project).env("AH_HOME", disk.at().join("state")))
    };
    let first = ah(&["snapshot"]).stdout.trim_end().to_owned();
    // Another device, which could not be made again.
    fs::remove_file(project.join("device")).unwrap();
    device("5");
    // And one that is only not as it was.
    fs::set_permissions(&fifo, fs::Permissions::from_mode(0o600)).unwrap();
    let ran = ah(&["restore", &first]);
    for name in ["device", "fifo"] {
        let told = format!("{name} (nothing of a special file is brought back");
        assert!(ran.code == 0 && ran.stderr.contains(&told), "{ran:?}");
    }
    assert_eq!(fs::metadata(&fifo).unwrap().permissions().mode() & 0o777, 0o600);
    // A subvolume, and something that is mounted, where a directory was.
    fs::rename(project.join("d"), project.join("e")).unwrap();
    let made = Command::new("btrfs").args(["-q", "subvolume", "create"]).arg(project.join("d")).status().unwrap();
    assert!(made.success());
    let ran = ah(&["restore", &first]);
    assert_eq!(ran.code, 4, "{ran:?}");
    assert!(ran.stderr.contains("d: it is a subvolume of its own by now"), "{ran:?}");
    assert!(ran.stderr.contains("move these out of the way") && !ran.stderr.contains("d/f"), "{ran:?}");
    fs::remove_dir(project.join("d")).unwrap();
    fs::rename(project.join("e"), project.join("d")).unwrap();
    assert!(small_disk(&project.join("d"), 4));
    let ran = ah(&["restore", &first]);
    ah_test_disks::unmount(&project.join("d"));
    assert!(ran.code == 4 && ran.stderr.contains("d: something is mounted on it by now"), "{ran:?}");
    assert!(ran.stderr.contains("unmount what is on these"), "{ran:?}");
    assert_eq!(fs::read_to_string(project.join("d/f")).unwrap(), "old");
}
