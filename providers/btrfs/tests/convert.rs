//! Making a subvolume of a directory: what comes along, what is refused, what is left of one that was cut short.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use ah_plugin_api::{Dir, ErrorKind};
use ah_test_disks::{Disk, NOBODY};
use common::{Bench, run, subvolume, subvolumes};

/// Everything that is to be kept, one line an entry.
fn listing(root: &Path) -> Vec<String> {
    let mut out = Vec::new();
    let mut todo = vec![root.to_owned()];
    while let Some(path) = todo.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        let name = path.strip_prefix(root).unwrap().display().to_string();
        let xattrs: Vec<String> = ["user.test", "trusted.test"]
            .iter()
            .filter_map(|name| {
                let mut value = [0; 100];
                let got = rustix::fs::lgetxattr(&path, *name, &mut value).ok()?;
                Some(format!("{name}={}", String::from_utf8_lossy(&value[..got])))
            })
            .collect();
        let contents = if meta.is_file() { fs::read(&path).unwrap().len() } else { 0 };
        out.push(format!(
            "{name} {:o} {}:{} {}.{:09} {}.{} {} {} {contents} {xattrs:?} {:?}",
            meta.mode(),
            meta.uid(),
            meta.gid(),
            meta.mtime(),
            meta.mtime_nsec(),
            meta.atime(),
            meta.atime_nsec(),
            meta.nlink(),
            meta.rdev(),
            fs::read_link(&path).ok(),
        ));
        if meta.is_dir() {
            todo.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    out.sort();
    out
}

fn fill(bench: &Bench) {
    bench.write("dir/file", "contents");
    fs::hard_link(bench.work("dir/file"), bench.work("other name")).unwrap();
    bench.write("foreign", "x");
    std::os::unix::fs::chown(bench.work("foreign"), Some(NOBODY), Some(1234)).unwrap();
    std::os::unix::fs::symlink("nowhere", bench.work("link")).unwrap();
    std::os::unix::fs::lchown(bench.work("link"), Some(NOBODY), None).unwrap();
    for (args, name) in [(["p"].as_slice(), "fifo"), (&["c", "1", "3"], "null")] {
        let path = bench.work(name);
        run("mknod", &[&[path.to_str().unwrap()], args].concat());
    }
    let sparse = fs::File::create(bench.work("sparse")).unwrap();
    sparse.set_len(50 << 20).unwrap();
    sparse.write_all_at(b"middle", 20 << 20).unwrap();
    bench.write("setuid", "x");
    fs::set_permissions(bench.work("setuid"), fs::Permissions::from_mode(0o4755)).unwrap();
    for (name, attribute) in [("dir", "user.test"), ("foreign", "trusted.test")] {
        rustix::fs::setxattr(bench.work(name), attribute, b"value", rustix::fs::XattrFlags::empty()).unwrap();
    }
    bench.write("nocow/f", "");
    run("chattr", &["+C", bench.work("nocow").to_str().unwrap()]);
    bench.write("nocow/in place", vec![7; 100_000]);
    bench.write("big", vec![9; 3_000_000]);
    for (name, time) in
        [("dir", "@1234567890.123456789"), ("link", "@-5.5"), ("big", "@15000000000.000000001"), (".", "@1000.25")]
    {
        run("touch", &["-h", "-d", time, bench.work(name).to_str().unwrap()]);
    }
    fs::set_permissions(bench.work(""), fs::Permissions::from_mode(0o1750)).unwrap();
}

#[test]
fn everything_comes_along_and_shares_its_data() {
    let Some(disk) = Disk::new("btrfs", 400, "noatime") else { return };
    let bench = Bench::in_folder(disk.at());
    fill(&bench);
    let before = listing(bench.workspace.path());
    let old = fs::metadata(bench.workspace.path()).unwrap().ino();
    run("sync", &["-f", disk.at().to_str().unwrap()]);
    let taken = bench.snapshot("a");
    assert!(taken.pins.is_some());
    let converted = bench.convert().unwrap();
    assert!(converted.changed && converted.notes.len() == 1, "{converted:?}");
    assert_eq!(listing(bench.workspace.path()), before);
    let new = fs::metadata(bench.workspace.path()).unwrap();
    assert_eq!((new.ino(), old != 256), (256, true));
    let map = run("filefrag", &["-v", bench.work("big").to_str().unwrap()]);
    assert!(map.contains("shared"), "{map}");
    assert!(fs::metadata(bench.work("sparse")).unwrap().blocks() < 1000);
    assert!(run("lsattr", &[bench.work("nocow").to_str().unwrap()]).contains('C'));
    // Nothing is left of it.
    assert_eq!(fs::read_dir(disk.at()).unwrap().count(), 3);
    assert_eq!(fs::read_dir(disk.at().join("store")).unwrap().count(), 1);
    // The history goes on, and holds nothing more now.
    let bench = Bench::in_folder(disk.at());
    let after = bench.snapshot("b");
    assert_eq!((after.pins.clone(), bench.ids()), (None, vec!["a".to_owned(), "b".to_owned()]));
    assert_eq!(bench.names(&after, "dir"), bench.names(&taken, "dir"));
    assert!(!bench.convert().unwrap().changed);
}

#[test]
fn processes_inside_are_named() {
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    let bench = Bench::in_folder(disk.at());
    bench.write("dir/f", "x");
    fs::copy("/bin/sleep", bench.work("sleep")).unwrap();
    let dir = bench.work("dir");
    let shell = |script: &str, cwd: &Path| {
        Command::new("sh").args(["-c", script]).current_dir(cwd).stdin(Stdio::null()).spawn().unwrap()
    };
    let outside = Path::new("/");
    let file = dir.join("f");
    let cases = [
        shell("exec sleep 60", bench.workspace.path()),
        shell("exec sleep 60", &dir),
        shell(&format!("exec 3>>{}; exec sleep 60", file.display()), outside),
        shell(&format!("exec 3<{}; rm {0}; exec sleep 60", file.display()), outside),
        shell(&format!("exec {} 60", bench.work("sleep").display()), outside),
    ];
    for mut process in cases {
        std::thread::sleep(std::time::Duration::from_millis(300));
        let refused = bench.convert();
        process.kill().unwrap();
        process.wait().unwrap();
        let error = refused.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Busy, "{error:?}");
        bench.write("dir/f", "x");
        assert_eq!(fs::read_dir(disk.at()).unwrap().count(), 3, "{error:?}");
    }
    assert_ne!(fs::metadata(bench.workspace.path()).unwrap().ino(), 256);
    assert!(bench.convert().unwrap().changed);
}

#[test]
fn what_cannot_be_one_is_refused() {
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    let bench = Bench::in_folder(disk.at());
    bench.write("f", "x");
    let refused = |bench: &Bench, why: &str| {
        let error = bench.convert().unwrap_err();
        assert!(error.kind == ErrorKind::FailedPrecondition && error.hint.is_some(), "{error:?}");
        assert!(error.message.contains(why), "{error:?}");
    };
    subvolume(&bench.work("nested"));
    refused(&bench, "subvolume");
    run("btrfs", &["subvolume", "delete", bench.work("nested").to_str().unwrap()]);
    fs::create_dir(bench.work("m")).unwrap();
    run("mount", &["-t", "tmpfs", "tmpfs", bench.work("m").to_str().unwrap()]);
    refused(&bench, "mounted inside");
    run("umount", &[bench.work("m").to_str().unwrap()]);
    let at = disk.at().join("bound");
    fs::create_dir(&at).unwrap();
    run("mount", &["--bind", bench.workspace.path().to_str().unwrap(), at.to_str().unwrap()]);
    refused(&Bench::of(&at, &disk.at().join("s"), &disk.at().join("t")), "mount point");
    run("umount", &[at.to_str().unwrap()]);
    refused(&Bench::of(disk.at().join("work").as_path(), &bench.work("own"), &disk.at().join("t")), "own state");
}

#[test]
fn whatever_was_cut_short_is_cleared_up() {
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    let bench = Bench::in_folder(disk.at());
    bench.write("dir/f", "precious");
    let above = fs::metadata(disk.at()).unwrap();
    let born = run("stat", &["-c", "%W", disk.at().to_str().unwrap()]);
    assert!(above.ino() == 256 && !born.is_empty());
    let temp = format!(".ah-convert-{}", "5".repeat(32));
    let note = disk.at().join(format!("store/convert-{}", "5".repeat(32)));
    // As `identity` writes it down.
    let stat = rustix::fs::statx(
        Dir::open(disk.at()).unwrap(),
        "",
        rustix::fs::AtFlags::EMPTY_PATH,
        rustix::fs::StatxFlags::ALL | rustix::fs::StatxFlags::BTIME,
    )
    .unwrap();
    let identity = format!("{:x}.{:x}.{:x}", stat.stx_ino, stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec);
    let write_note = |identity: &str| fs::write(&note, format!("{identity} {temp} {}\n", disk.at().display())).unwrap();
    // Before the exchange: a half of a copy.
    write_note(&identity);
    subvolume(&disk.at().join(&temp));
    fs::write(disk.at().join(&temp).join("half"), "x").unwrap();
    assert_eq!(bench.reclaim().actions.len(), 1);
    assert!(!disk.at().join(&temp).exists() && !note.exists());
    assert_eq!(subvolumes(disk.at()), 0);
    // After it: the former directory.
    write_note(&identity);
    fs::create_dir_all(disk.at().join(&temp).join("closed")).unwrap();
    fs::write(disk.at().join(&temp).join("closed/f"), "x").unwrap();
    assert_eq!(bench.reclaim().actions.len(), 1);
    assert!(!disk.at().join(&temp).exists() && !note.exists());
    // Another directory at that path is not the one meant.
    write_note("1.2.3");
    fs::create_dir(disk.at().join(&temp)).unwrap();
    bench.reclaim();
    assert!(disk.at().join(&temp).exists() && note.exists());
    // Held by who converts.
    write_note(&identity);
    let lock = fs::File::open(&note).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    bench.reclaim();
    assert!(disk.at().join(&temp).exists());
    drop(lock);
    bench.reclaim();
    assert!(!disk.at().join(&temp).exists());
    fs::write(&note, "cut o").unwrap();
    bench.reclaim();
    assert!(!note.exists());
    assert_eq!(fs::read_to_string(bench.work("dir/f")).unwrap(), "precious");
}

/// Started by the next test, and killed by it.
#[test]
#[ignore = "does nothing by itself"]
fn convert_what_the_environment_names() {
    let Some(folder) = std::env::var_os("AH_TEST_CONVERT") else { return };
    // As a program does that was told where to work; it has to be able to convert that.
    std::env::set_current_dir(Path::new(&folder).join("work")).unwrap();
    let _ = Bench::in_folder(Path::new(&folder)).convert();
}

#[test]
fn killed_anywhere_one_of_the_two_is_there_whole() {
    let Some(disk) = Disk::new("btrfs", 400, "") else { return };
    let mut converted = 0;
    for round in 0..14u32 {
        let folder = disk.at().join(format!("round{round}"));
        let bench = Bench::in_folder(&folder);
        for i in 0..300 {
            bench.write(&format!("{}/f{i}", i % 7), format!("contents {i}"));
        }
        let before = listing(bench.workspace.path());
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "convert_what_the_environment_names", "--ignored"])
            .env("AH_TEST_CONVERT", &folder)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // The last ones are not disturbed.
        std::thread::sleep(std::time::Duration::from_millis(u64::from(round) * 12));
        if round < 12 {
            child.kill().unwrap();
        }
        child.wait().unwrap();
        let now = |lines: Vec<String>| -> Vec<String> {
            // Reading may have changed a time of access.
            lines.into_iter().map(|line| line.split(' ').take(4).collect::<Vec<_>>().join(" ")).collect()
        };
        assert_eq!(now(listing(&folder.join("work"))), now(before.clone()), "round {round}");
        let bench = Bench::in_folder(&folder);
        bench.reclaim();
        let left: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left.len(), 3, "round {round}: {left:?}");
        assert_eq!(fs::read_dir(folder.join("store")).unwrap().count(), 0, "round {round}");
        assert_eq!(now(listing(&folder.join("work"))), now(before), "round {round}");
        converted += u32::from(fs::metadata(folder.join("work")).unwrap().ino() == 256);
    }
    assert!(converted >= 2, "none came to its end");
}
