//! Making a subvolume of a directory: what comes along, what is refused, what is left of one that was cut short.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use ah_plugin_api::{Dir, ErrorKind};
use ah_test_disks::{Disk, NOBODY, as_ordinary_user, ordinary_users_path, unmount};
use common::{Bench, listing, run, subvolume, subvolumes};

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
    for (name, attribute) in
        [("dir", "user.test"), ("foreign", "trusted.test"), ("link", "trusted.test"), ("fifo", "trusted.test")]
    {
        rustix::fs::lsetxattr(bench.work(name), attribute, b"value", rustix::fs::XattrFlags::empty()).unwrap();
    }
    bench.write("nocow/f", "");
    run("chattr", &["+C", bench.work("nocow").to_str().unwrap()]);
    bench.write("nocow/in place", vec![7; 100_000]);
    bench.write("flags", "");
    run("chattr", &["+Ad", bench.work("flags").to_str().unwrap()]);
    bench.write("big", vec![9; 3_000_000]);
    for (name, time) in
        [("dir", "@1234567890.123456789"), ("link", "@-5.5"), ("big", "@15000000000.000000001"), (".", "@1000.25")]
    {
        run("touch", &["-h", "-d", time, bench.work(name).to_str().unwrap()]);
    }
    fs::set_permissions(bench.work(""), fs::Permissions::from_mode(0o1750)).unwrap();
}

/// All that it can be told to keep of a file, one by one, and where the directory would give it something else.
#[test]
fn what_chattr_sets_comes_along() {
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    let bench = Bench::in_folder(disk.at());
    let set = |flag: &str, path: &str| run("chattr", &[flag, bench.work(path).to_str().unwrap()]);
    for letter in ["A", "C", "D", "S", "c", "d", "m"] {
        let dir = format!("in {letter}");
        fs::create_dir(bench.work(&dir)).unwrap();
        set(&format!("+{letter}"), &dir);
        for other in ["C", "S", "c", "d", "m"] {
            let file = format!("{dir}/{other}");
            bench.write(&file, "");
            for inherited in ["-C", "-c", "-m"] {
                set(inherited, &file);
            }
            set(&format!("+{other}"), &file);
        }
        bench.write(&format!("{dir}/inherits"), "x");
    }
    let flags = || {
        let told = run("lsattr", &["-aR", bench.workspace.path().to_str().unwrap()]);
        told.lines().map(str::to_owned).collect::<std::collections::BTreeSet<_>>()
    };
    let before = flags();
    let has = |letter, name: &str| {
        before.iter().any(|line| line.ends_with(name) && line.split('/').next().unwrap().contains(letter))
    };
    assert!(has('m', "in c/m") && has('C', "in c/C") && has('D', "in D"), "{before:?}");
    bench.convert().unwrap();
    assert_eq!(flags(), before);
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
    assert!(converted.changed && converted.notes.len() == 2, "{converted:?}");
    // What others make of the subvolume around it does not have it any more.
    assert!(converted.notes[1].contains(&format!("the subvolume {} ", disk.at().display())), "{converted:?}");
    assert_eq!(listing(bench.workspace.path()), before);
    let new = fs::metadata(bench.workspace.path()).unwrap();
    assert_eq!((new.ino(), old != 256), (256, true));
    let map = run("filefrag", &["-v", bench.work("big").to_str().unwrap()]);
    assert!(map.contains("shared"), "{map}");
    assert!(fs::metadata(bench.work("sparse")).unwrap().blocks() < 1000);
    assert!(run("lsattr", &[bench.work("nocow").to_str().unwrap()]).contains('C'));
    let flags = run("lsattr", &[bench.work("flags").to_str().unwrap()]);
    assert!(flags.split(' ').next().is_some_and(|flags| flags.contains('A') && flags.contains('d')), "{flags}");
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
    unmount(&bench.work("m"));
    let at = disk.at().join("bound");
    fs::create_dir(&at).unwrap();
    run("mount", &["--bind", bench.workspace.path().to_str().unwrap(), at.to_str().unwrap()]);
    refused(&Bench::of(&at, &disk.at().join("s"), &disk.at().join("t")), "mount point");
    unmount(&at);
    refused(&Bench::of(disk.at().join("work").as_path(), &bench.work("own"), &disk.at().join("t")), "own state");
}

#[test]
fn a_subvolume_inside_stays_whoever_may_see_it_and_whenever_it_came() {
    let Some(disk) = Disk::new("btrfs", 400, "") else { return };
    // Root converts what is somebody else's, who may not read all of it.
    let bench = Bench::in_folder(disk.at());
    bench.write("private/sub/f", "x");
    subvolume(&bench.work("private/sub/nested"));
    bench.write("private/sub/nested/inner", "inner");
    std::os::unix::fs::chown(bench.workspace.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    fs::set_permissions(bench.work("private"), fs::Permissions::from_mode(0o700)).unwrap();
    let error = bench.convert_watched(|stage| panic!("{stage}")).unwrap_err();
    assert!(error.kind == ErrorKind::FailedPrecondition && error.message.contains("private/sub/nested"), "{error:?}");
    // Made when it was looked for already. Its files have numbers that others have.
    let bench = Bench::in_folder(&disk.at().join("second"));
    bench.write("a", "outer");
    fs::hard_link(bench.work("a"), bench.work("b")).unwrap();
    let refused = bench.convert_watched(|stage| {
        if stage == "copying" {
            subvolume(&bench.work("nested"));
            bench.write("nested/inner", "inner");
        }
    });
    let error = refused.unwrap_err();
    assert!(error.kind == ErrorKind::FailedPrecondition && error.hint.is_some(), "{error:?}");
    assert_eq!(fs::read_to_string(bench.work("nested/inner")).unwrap(), "inner");
    assert_eq!(fs::metadata(bench.work("nested")).unwrap().ino(), 256);
    assert_eq!(fs::read_dir(disk.at().join("second")).unwrap().count(), 3);
}

#[test]
fn whatever_was_cut_short_is_cleared_up() {
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    let bench = Bench::in_folder(disk.at());
    bench.write("dir/f", "precious");
    let temp = format!(".ah-convert-{}", "5".repeat(32));
    let note = disk.at().join(format!("store/convert-{}", "5".repeat(32)));
    let temp_at = disk.at().join(&temp);
    let above = identity(disk.at());
    let start = |above: &str, former: &str| format!("{above}\0{temp}\0{}\0{former}\0", disk.at().display());
    // Before the exchange: a copy that was not written down yet, and the half of one that was.
    fs::write(&note, start(&above, "1.2.3 4.5 755")).unwrap();
    subvolume(&temp_at);
    assert_eq!(bench.reclaim().actions.len(), 1);
    assert!(!temp_at.exists() && !note.exists());
    subvolume(&temp_at);
    fs::write(temp_at.join("half"), "x").unwrap();
    fs::write(&note, start(&above, "1.2.3 4.5 755") + &copy(&temp_at) + "\0").unwrap();
    assert_eq!(bench.reclaim().actions.len(), 1);
    assert!(!temp_at.exists() && !note.exists());
    assert_eq!(subvolumes(disk.at()), 0);
    // A subvolume that is another one.
    subvolume(&temp_at);
    fs::write(temp_at.join("half"), "x").unwrap();
    fs::write(&note, start(&above, "1.2.3 4.5 755") + &format!("{} 1.2\0", "0".repeat(32))).unwrap();
    assert_eq!(bench.reclaim().actions.len(), 1);
    assert!(temp_at.join("half").exists() && !note.exists());
    run("btrfs", &["subvolume", "delete", temp_at.to_str().unwrap()]);
    // After it: the former directory, looked at or not, and changed or not.
    for (looked, changed, there) in
        [(true, true, false), (true, false, false), (false, false, false), (false, true, true)]
    {
        fs::create_dir_all(temp_at.join("closed")).unwrap();
        fs::write(temp_at.join("closed/f"), "x").unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        subvolume(&disk.at().join("copy"));
        let mut text = start(&above, &former(&temp_at)) + &copy(&disk.at().join("copy")) + "\0";
        if looked {
            text += "looked\0";
        }
        fs::write(&note, text).unwrap();
        if changed {
            let mut file = fs::OpenOptions::new().append(true).open(temp_at.join("closed/f")).unwrap();
            std::io::Write::write_all(&mut file, b"newer").unwrap();
        }
        for _ in 0..2 {
            // It is told each time that something is kept, and fails nothing.
            let stays = bench.reclaim().stays;
            assert_eq!(stays.len(), usize::from(there), "{stays:?}");
            assert_eq!((temp_at.exists(), note.exists()), (there, there), "{looked} {changed} {stays:?}");
            assert!(!there || stays[0].contains(&temp), "{stays:?}");
        }
        run("btrfs", &["subvolume", "delete", disk.at().join("copy").to_str().unwrap()]);
    }
    fs::remove_dir_all(&temp_at).unwrap();
    bench.reclaim();
    assert!(!note.exists());
    // What took its place went back to what it was, or was moved away: then this may be all that there is.
    for looked in ["looked\0", ""] {
        fs::create_dir(&temp_at).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        subvolume(&disk.at().join("copy"));
        fs::write(&note, start(&above, &former(&temp_at)) + &copy(&disk.at().join("copy")) + "\0" + looked).unwrap();
        fs::rename(disk.at().join("copy"), disk.at().join("store/away")).unwrap();
        subvolume(&disk.at().join("copy"));
        for _ in 0..2 {
            let stays = bench.reclaim().stays;
            assert!(stays.len() == 1 && stays[0].contains(&temp), "{stays:?}");
            assert!(temp_at.exists() && note.exists());
        }
        // Under another name beside it, it is there.
        fs::rename(disk.at().join("store/away"), disk.at().join("renamed")).unwrap();
        assert_eq!(bench.reclaim().actions.len(), 1);
        assert!(!temp_at.exists() && !note.exists());
        for name in ["copy", "renamed"] {
            run("btrfs", &["subvolume", "delete", disk.at().join(name).to_str().unwrap()]);
        }
    }
    // Another directory at that path is not the one meant.
    fs::create_dir(&temp_at).unwrap();
    let there = disk.at().join("copy");
    subvolume(&there);
    let text = start("1.2.3", &former(&temp_at)) + &copy(&there) + "\0looked\0";
    fs::write(&note, &text).unwrap();
    bench.reclaim();
    assert!(temp_at.exists() && note.exists());
    // Held by who converts.
    fs::write(&note, text.replacen("1.2.3", &above, 1)).unwrap();
    let lock = fs::File::open(&note).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    bench.reclaim();
    assert!(temp_at.exists());
    drop(lock);
    bench.reclaim();
    assert!(!temp_at.exists());
    fs::write(&note, "cut o").unwrap();
    bench.reclaim();
    assert!(!note.exists());
    assert_eq!(fs::read_to_string(bench.work("dir/f")).unwrap(), "precious");
}

fn statx(path: &Path) -> rustix::fs::Statx {
    let mask = rustix::fs::StatxFlags::ALL | rustix::fs::StatxFlags::BTIME;
    rustix::fs::statx(Dir::open(path).unwrap(), "", rustix::fs::AtFlags::EMPTY_PATH, mask).unwrap()
}

/// As it is written down.
fn identity(path: &Path) -> String {
    let stat = statx(path);
    format!("{:x}.{:x}.{:x}", stat.stx_ino, stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec)
}

fn former(path: &Path) -> String {
    let stat = statx(path);
    let (time, mode) = (stat.stx_mtime, stat.stx_mode);
    format!("{} {:x}.{:x} {mode:o}", identity(path), time.tv_sec, time.tv_nsec)
}

fn copy(path: &Path) -> String {
    let shown = run("btrfs", &["subvolume", "show", path.to_str().unwrap()]);
    let uuid = shown.lines().find_map(|line| line.trim().strip_prefix("UUID:")).unwrap().trim().replace('-', "");
    let born = statx(path).stx_btime;
    format!("{uuid} {}.{}", born.tv_sec, born.tv_nsec)
}

#[test]
fn what_was_changed_before_its_end_is_never_lost() {
    let Some(disk) = Disk::new("btrfs", 400, "") else { return };
    // The names cannot go back, because one is taken away: the former directory has newer work, and stays.
    let bench = Bench::in_folder(disk.at());
    bench.write("dir/f", "old");
    let former = || {
        let mut names = fs::read_dir(disk.at()).unwrap().map(|entry| entry.unwrap().path());
        names.find(|path| path.file_name().unwrap().to_string_lossy().starts_with(".ah-convert-"))
    };
    let refused = bench.convert_watched(|stage| {
        if stage == "looking once more" {
            fs::write(former().unwrap().join("dir/f"), "newer").unwrap();
            fs::rename(disk.at().join("work"), disk.at().join("moved")).unwrap();
        }
    });
    let error = refused.unwrap_err();
    let kept = former().unwrap();
    assert_eq!(fs::read_to_string(kept.join("dir/f")).unwrap(), "newer");
    assert!(error.hint.unwrap().contains(kept.to_str().unwrap()));
    common::is_named_until_it_is_gone(&bench, &kept);
    // Nobody else comes to the copy until it is compared.
    let bench = Bench::in_folder(&disk.at().join("second"));
    bench.write("f", "x");
    std::os::unix::fs::chown(bench.workspace.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    fs::set_permissions(bench.workspace.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let seen = std::sync::Mutex::new(Vec::new());
    let converted = bench.convert_watched(|stage| {
        let copy = fs::read_dir(disk.at().join("second")).unwrap().map(|entry| entry.unwrap());
        let copy = copy.filter(|entry| entry.file_name().to_string_lossy().starts_with(".ah-convert-"));
        let copy = copy.map(|entry| entry.metadata().unwrap()).next().unwrap();
        seen.lock().unwrap().push((stage.to_owned(), copy.mode() & 0o777, copy.uid()));
    });
    assert!(converted.unwrap().changed);
    let closed = |stage: &str| (stage.to_owned(), 0o700, 0);
    let expected = [closed("copying"), closed("comparing"), ("looking once more".to_owned(), 0o777, NOBODY)];
    assert_eq!(*seen.lock().unwrap(), expected);
}

#[test]
fn files_are_open_to_processes_that_cannot_be_seen() {
    let test = "files_are_open_to_processes_that_cannot_be_seen";
    if let Some(folder) = ordinary_users_path() {
        let bench = Bench::in_folder(&folder);
        let file = bench.work("dir/f");
        match fs::read_to_string(folder.join("what")).unwrap().as_str() {
            "open" => {
                let refused = bench.convert_watched(|stage| assert_eq!(stage, "copying", "nobody is disturbed"));
                assert_eq!(refused.unwrap_err().kind, ErrorKind::Busy);
            }
            "opened later" => {
                let refused = bench.convert_watched(|stage| {
                    if stage == "looking once more" {
                        fs::write(folder.join("now"), "").unwrap();
                        while !folder.join("held").exists() {
                            std::thread::sleep(std::time::Duration::from_millis(5));
                        }
                    }
                });
                assert_eq!(refused.unwrap_err().kind, ErrorKind::Busy);
                assert_ne!(fs::metadata(bench.work("")).unwrap().ino(), 256);
            }
            "closed" => {
                fs::hard_link(&file, folder.join("outside")).unwrap();
                fs::set_permissions(bench.work("shut"), fs::Permissions::from_mode(0o0)).unwrap();
                let error = bench.convert().unwrap_err();
                let hint = error.hint.unwrap();
                assert!(error.kind == ErrorKind::PermissionDenied && hint.contains("chmod u+rX"), "{hint}");
                fs::set_permissions(bench.work("shut"), fs::Permissions::from_mode(0o600)).unwrap();
                let notes = bench.convert().unwrap().notes;
                let told = |what: &str| notes.iter().any(|note| note.starts_with("1 ") && note.contains(what));
                assert!(notes.len() == 4 && told("dir/f") && told("security.capability of able"), "{notes:?}");
            }
            other => panic!("{other}"),
        }
        return;
    }
    let Some(disk) = Disk::new("btrfs", 400, "") else { return };
    let bench = Bench::in_folder(&disk.at().join("own"));
    for name in ["dir/f", "able", "shut"] {
        bench.write(name, "x");
    }
    run("chown", &["-R", &format!("{NOBODY}:{NOBODY}"), disk.at().join("own").to_str().unwrap()]);
    // cap_net_raw, permitted
    let capability = [1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(bench.work("able"), "security.capability", &capability, flags).unwrap();
    let tell = |what: &str| fs::write(disk.at().join("own/what"), what).unwrap();
    tell("open");
    let file = fs::File::open(bench.work("dir/f")).unwrap();
    as_ordinary_user(test, &disk.at().join("own"));
    drop(file);
    tell("opened later");
    let dir = fs::File::open(bench.work("dir")).unwrap();
    let file = std::thread::scope(|threads| {
        let opened = threads.spawn(|| {
            for _ in 0..2000 {
                if disk.at().join("own/now").exists() {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            let file = rustix::fs::openat(&dir, "f", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty());
            fs::write(disk.at().join("own/held"), "").unwrap();
            file.unwrap()
        });
        as_ordinary_user(test, &disk.at().join("own"));
        opened.join().unwrap()
    });
    drop((file, dir));
    tell("closed");
    as_ordinary_user(test, &disk.at().join("own"));
    assert_eq!(fs::metadata(bench.work("")).unwrap().ino(), 256);
}

#[test]
fn a_file_opened_while_it_was_exchanged_puts_the_former_back() {
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    let bench = Bench::in_folder(disk.at());
    bench.write("dir/f", "x");
    let holder = std::sync::Mutex::new(None);
    let refused = bench.convert_watched(|stage| {
        if stage == "looking once more" {
            // By the descriptor of the workspace itself: one of a directory in it would be refused at once.
            let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
            let file = rustix::fs::openat(&bench.workspace, "dir/f", flags, rustix::fs::Mode::empty()).unwrap();
            *holder.lock().unwrap() = Some(file);
        }
    });
    assert!(holder.lock().unwrap().is_some());
    assert_eq!(refused.unwrap_err().kind, ErrorKind::Busy);
    assert_ne!(fs::metadata(bench.work("")).unwrap().ino(), 256);
    assert_eq!(fs::read_dir(disk.at()).unwrap().count(), 3);
}

#[test]
fn mounts_of_other_processes_over_it_or_of_it_are_in_the_way() {
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    let bench = Bench::in_folder(disk.at());
    bench.write("dir/f", "x");
    let (branch, other) = (disk.at().join("branch"), disk.at().join("other"));
    for dir in [&branch, &other] {
        fs::create_dir(dir).unwrap();
    }
    let work = bench.workspace.path();
    let unshared = |from: &Path, to: &Path| {
        let script = format!("mount --bind {} {} && cd / && exec sleep 60", from.display(), to.display());
        let mut unshare = Command::new("unshare");
        unshare.args(["-m", "--propagation", "private", "sh", "-c", &script]).stdin(Stdio::null()).spawn().unwrap()
    };
    for (from, to) in
        [(branch.as_path(), work), (&branch, &bench.work("dir")), (work, &other), (&bench.work("dir"), &other)]
    {
        let mut process = unshared(from, to);
        std::thread::sleep(std::time::Duration::from_millis(300));
        let refused = bench.convert_watched(|stage| panic!("{stage}"));
        process.kill().unwrap();
        process.wait().unwrap();
        let error = refused.unwrap_err();
        assert!(error.kind == ErrorKind::Busy && error.message.contains("mounts of its own"), "{error:?}");
    }
    run("mount", &["--bind", work.to_str().unwrap(), other.to_str().unwrap()]);
    let refused = bench.convert();
    unmount(&other);
    assert_eq!(refused.unwrap_err().kind, ErrorKind::FailedPrecondition);
    assert!(bench.convert().unwrap().changed);
}

#[test]
fn what_could_not_be_removed_is_refused_before() {
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    let bench = Bench::in_folder(disk.at());
    bench.write("dir/f", "x");
    for (letter, name) in [('i', "dir/f"), ('a', "dir/f"), ('i', "dir"), ('i', "")] {
        let path = bench.work(name);
        let path = path.to_str().unwrap().trim_end_matches('/');
        run("chattr", &[&format!("+{letter}"), path]);
        let refused = bench.convert();
        run("chattr", &[&format!("-{letter}"), path]);
        let error = refused.unwrap_err();
        assert_eq!(error.kind, ErrorKind::FailedPrecondition);
        assert!(error.hint.unwrap().starts_with(&format!("chattr -{letter} {path}")));
        assert_eq!(fs::read_dir(disk.at()).unwrap().count(), 3);
    }
    fs::hard_link(bench.work("dir/f"), disk.at().join("target/outside")).unwrap();
    let notes = bench.convert().unwrap().notes;
    assert!(notes.len() == 3 && notes[2].starts_with("1 file has") && notes[2].contains("dir/f"), "{notes:?}");
}
