//! What comes back beside names, contents and modes, where the snapshot knows it: owners, extended attributes, access lists, holes.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, lchown};
use std::path::Path;

use ah_test_disks::Disk;
use rustix::fs::{SeekFrom, XattrFlags};
use rustix::process::{Gid, Uid};

use crate::support::bench::Bench;
use crate::support::{Ran, User, World, is_root, need_btrfs, skip};
use crate::told::tampered;

fn set(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::setxattr(path, name, value, XattrFlags::empty()).unwrap();
}

fn get(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 1024];
    let length = rustix::fs::getxattr(path, name, value.as_mut_slice()).ok()?;
    Some(value[..length].to_vec())
}

fn owner(path: &Path) -> (u32, u32) {
    let meta = path.symlink_metadata().unwrap();
    (meta.uid(), meta.gid())
}

/// Where data begins and ends in a file.
fn extents(path: &Path) -> Vec<(u64, u64)> {
    let file = File::open(path).unwrap();
    let (mut at, mut found) = (0, Vec::new());
    while let Ok(data) = rustix::fs::seek(&file, SeekFrom::Data(at)) {
        at = rustix::fs::seek(&file, SeekFrom::Hole(data)).unwrap();
        found.push((data, at));
    }
    found
}

/// Looks as the user does: nobody else, root included, sees into what an ordinary user mounted.
fn seen<T: Send>(bench: &Bench, look: impl FnOnce() -> T + Send) -> T {
    if bench.0.user == User::Me {
        return look();
    }
    let as_user = || {
        let (uid, gid) = (Uid::from_raw(65534), Gid::from_raw(65534));
        rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
        rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
        look()
    };
    std::thread::scope(|scope| scope.spawn(as_user).join().unwrap())
}

/// In a workspace of which snapshots know all of it: a branch by AgentFS, and a subvolume.
fn each(users: &[User], test: impl Fn(&Bench, &Path)) {
    for &user in users {
        let bench = Bench::new(user);
        let branch = bench.branch("b");
        test(&bench, &branch);
    }
    if !is_root() {
        return skip("needs root, to mount");
    }
    let Some(disk) = Disk::new("btrfs", 300, "user_subvol_rm_allowed") else { return };
    need_btrfs();
    for &user in users {
        let bench = Bench(World::within(user, disk.at()));
        test(&bench, &bench.0.root());
    }
}

#[test]
fn attributes_and_holes_come_back_with_what_is_put_back() {
    let users: &[User] = if is_root() { &[User::Me, User::Ordinary] } else { &[User::Me] };
    each(users, |bench, at| {
        bench.sh(&format!("mkdir -p {0}/d/e; echo one > {0}/d/f; echo closed > {0}/d/closed", at.display()));
        let sparse = at.join("d/sparse");
        bench.sh(&format!("truncate -s 4M {}", sparse.display()));
        let holes = seen(bench, || {
            for name in ["d/f", "d/closed", "d/e"] {
                set(&at.join(name), "user.ah", name.as_bytes());
            }
            fs::set_permissions(at.join("d/closed"), fs::Permissions::from_mode(0o400)).unwrap();
            File::options().write(true).open(&sparse).unwrap().write_at(b"data", 1 << 20).unwrap();
            extents(&sparse)
        });
        assert!(holes.len() == 1 && holes[0].0 == 1 << 20, "{holes:?}");
        bench.at(at, &["snapshot", "-m", "s"]);
        let is_back = |how: &str| {
            seen(bench, || {
                for name in ["d/f", "d/closed", "d/e"] {
                    assert_eq!(get(&at.join(name), "user.ah").as_deref(), Some(name.as_bytes()), "{how}: {name}");
                }
                assert_eq!((fs::metadata(&sparse).unwrap().len(), extents(&sparse)), (4 << 20, holes.clone()), "{how}");
            });
        };
        bench.sh(&format!("rm -rf {}/d", at.display()));
        let ran = bench.ran(at, &["restore", "s"]);
        assert!(ran.code == 0 && !ran.stderr.contains("came back"), "{ran:?}");
        is_back("missing");
        bench.sh(&format!("cd {}/d; rm f sparse; echo two > f; echo two > sparse", at.display()));
        bench.at(at, &["restore", "s"]);
        is_back("changed");
        // By an undo of what took it away as well.
        bench.sh(&format!("rm -rf {}/d", at.display()));
        bench.at(at, &["snapshot", "-m", "without"]);
        bench.at(at, &["restore", "s"]);
        bench.at(at, &["restore", "without"]);
        bench.at(at, &["undo"]);
        is_back("undone");
    });
}

#[test]
fn root_gives_back_what_was_others() {
    if !is_root() {
        return skip("needs root, to give files away");
    }
    each(&[User::Me], |bench, at| {
        let names = ["d", "d/e", "d/f", "d/link", "d/suid"];
        fs::create_dir_all(at.join("d/e")).unwrap();
        for name in ["d/f", "d/suid"] {
            fs::write(at.join(name), "old").unwrap();
        }
        std::os::unix::fs::symlink("f", at.join("d/link")).unwrap();
        let give = || {
            for (name, id) in names.iter().zip(2001..) {
                lchown(at.join(name), Some(id), Some(id + 100)).unwrap();
            }
        };
        give();
        fs::set_permissions(at.join("d/suid"), fs::Permissions::from_mode(0o6755)).unwrap();
        fs::set_permissions(at.join("d/e"), fs::Permissions::from_mode(0o2775)).unwrap();
        set(&at.join("d/f"), "security.capability", &[1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        bench.at(at, &["snapshot", "-m", "s"]);
        let is_back = || {
            for (name, id) in names.iter().zip(2001..) {
                assert_eq!(owner(&at.join(name)), (id, id + 100), "{name}");
            }
        };
        fs::remove_dir_all(at.join("d")).unwrap();
        let ran = bench.ran(at, &["restore", "s"]);
        is_back();
        // What would let a program act for somebody else never comes back, and that is said.
        assert_eq!(fs::metadata(at.join("d/suid")).unwrap().permissions().mode() & 0o7777, 0o755);
        assert_eq!(get(&at.join("d/f"), "security.capability"), None);
        assert!(ran.stderr.contains("d/suid comes back without its set-id bits"), "{ran:?}");
        assert!(ran.stderr.contains("d/f came back without what restore never gives"), "{ran:?}");
        // Of a directory nothing acts.
        let mode = || fs::metadata(at.join("d/e")).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode(), 0o2775, "{ran:?}");
        fs::set_permissions(at.join("d/e"), fs::Permissions::from_mode(0o700)).unwrap();
        bench.at(at, &["restore", "s"]);
        assert_eq!(mode(), 0o2775);
        // In the place of something else, and of what is another's by now.
        for name in ["d/f", "d/suid"] {
            fs::write(at.join(name), "newer").unwrap();
            chown(at.join(name), Some(0), Some(0)).unwrap();
        }
        fs::remove_file(at.join("d/link")).unwrap();
        fs::create_dir(at.join("d/link")).unwrap();
        bench.at(at, &["restore", "s"]);
        is_back();
    });
}

#[test]
fn what_was_others_is_named_by_who_cannot_give_it_back() {
    if !is_root() {
        return skip("needs root, to act as an ordinary user");
    }
    each(&[User::Ordinary], |bench, at| {
        let there = if at == bench.0.root() { at.to_owned() } else { bench.0.root() };
        bench.sh(&format!("mkdir {0}/d; echo mine > {0}/d/mine; echo theirs > {0}/d/theirs", there.display()));
        chown(there.join("d/theirs"), Some(2001), Some(2001)).unwrap();
        let at = if at == there { there } else { bench.branch("c") };
        bench.at(&at, &["snapshot", "-m", "s"]);
        bench.sh(&format!("rm -rf {}/d", at.display()));
        let ran = bench.ran(&at, &["restore", "s"]);
        assert!(ran.code == 0 && ran.stderr.contains("d/theirs belonged to others"), "{ran:?}");
        assert!(!ran.stderr.contains("more belonged") && !ran.stderr.contains("mine"), "{ran:?}");
        assert_eq!(bench.sh(&format!("stat -c %u {0}/d/mine {0}/d/theirs", at.display())), "65534\n65534");
    });
}

#[test]
fn who_could_not_read_a_file_cannot_by_a_restore() {
    if !is_root() {
        return skip("needs root, to mount");
    }
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    need_btrfs();
    let world = World::within(User::Me, disk.at());
    let file = world.root().join("f");
    world.write("f", "for one user alone");
    // The owner reads and writes, and so does user 2001; the owning group does nothing. The group bits are what the list allows at most.
    let entry =
        |tag: u16, bits: u16, id: u32| [&tag.to_le_bytes()[..], &bits.to_le_bytes(), &id.to_le_bytes()].concat();
    let none = u32::MAX;
    let entries = [entry(1, 6, none), entry(2, 6, 2001), entry(4, 0, none), entry(0x10, 6, none), entry(0x20, 0, none)];
    let list = [&2_u32.to_le_bytes()[..], &entries.concat()].concat();
    set(&file, "system.posix_acl_access", &list);
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o660);
    // What is made in a directory has the list that it gives, unless it had none.
    for without in ["giving/f", "giving/d/f"] {
        world.write(without, "for everybody to read");
    }
    for giving in [world.root().join("giving"), world.root()] {
        set(&giving, "system.posix_acl_default", &list);
    }
    world.fs(["snapshot", "-m", "s"]);
    let is_back = || {
        assert_eq!(get(&file, "system.posix_acl_access").as_ref(), Some(&list));
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o660);
        assert_eq!(get(&world.root().join("giving"), "system.posix_acl_default").as_ref(), Some(&list));
        for without in ["giving", "giving/f", "giving/d", "giving/d/f"] {
            assert_eq!(get(&world.root().join(without), "system.posix_acl_access"), None, "{without}");
        }
        assert_eq!(get(&world.root().join("giving/d"), "system.posix_acl_default"), None);
        assert_eq!(world.root().join("giving/d/f").metadata().unwrap().permissions().mode() & 0o777, 0o644);
    };
    fs::remove_file(&file).unwrap();
    fs::remove_file(world.root().join("giving/f")).unwrap();
    fs::remove_dir_all(world.root().join("giving/d")).unwrap();
    world.fs(["restore", "s"]);
    is_back();
    fs::remove_dir_all(world.root().join("giving")).unwrap();
    world.fs(["restore", "s"]);
    is_back();
}

#[test]
fn what_a_killed_restore_was_shown_holds_nothing_up() {
    let make = || {
        let bench = Bench::new(User::Me);
        let branch = bench.branch("b");
        fs::create_dir(branch.join("d")).unwrap();
        fs::write(branch.join("d/f"), "old").unwrap();
        bench.at(&branch, &["snapshot", "-m", "s"]);
        fs::remove_dir_all(branch.join("d")).unwrap();
        (bench, branch)
    };
    // Views are mounted beside branches.
    let views = |bench: &Bench| bench.mounts().iter().filter(|at| at.contains("/walk-")).count();
    let (bench, branch) = make();
    for place in 1..=2 {
        let how = format!("renameat2:signal=KILL:when={place}");
        let Some(mut ah) = tampered(&bench.0, &how, &["restore", "s"]) else { return };
        let ran = Ran::of(ah.current_dir(&branch));
        assert_eq!((ran.code, views(&bench)), (128 + 9, 1), "{ran:?}");
        bench.at(&branch, &["restore", "s"]);
        assert_eq!((fs::read_to_string(branch.join("d/f")).unwrap().as_str(), views(&bench)), ("old", 0));
        fs::remove_dir_all(branch.join("d")).unwrap();
    }
    let (bench, branch) = make();
    let Some(mut ah) = tampered(&bench.0, "renameat2:signal=KILL:when=2", &["restore", "s"]) else { return };
    assert_eq!(Ran::of(ah.current_dir(&branch)).code, 128 + 9);
    bench.0.fs(["rm", "--force", "b"]);
    assert_eq!(bench.mounts(), [""; 0]);
}

#[test]
fn root_hears_whose_a_branch_is_that_knows_no_owners() {
    if !is_root() {
        return skip("needs root, to give files away");
    }
    let world = World::on_git();
    world.write("f", "f");
    let branch = |name| world.run(["agent", "fs", "branch", "--mode", "worktree", "--name", name]);
    let own = branch("own");
    assert!(own.code == 0 && !own.stderr.contains("root's"), "{own:?}");
    for path in [world.root(), world.root().join("f")] {
        chown(path, Some(2001), Some(2001)).unwrap();
    }
    let theirs = branch("theirs");
    assert!(theirs.code == 0 && theirs.stderr.contains("is root's in the branch"), "{theirs:?}");
    assert_eq!(owner(&Path::new(theirs.stdout.trim_end()).join("f")), (0, 0));
}

#[test]
fn where_an_owner_cannot_be_given_the_rest_comes_back_closed_to_others() {
    if !is_root() {
        return skip("needs root, to make files of others");
    }
    each(&[User::Me], |bench, at| {
        bench
            .sh(&format!("cd {}; mkdir -p d/e; echo one > d/e/f; chown -R 2001:2001 d; chmod 755 d d/e", at.display()));
        bench.at(at, &["snapshot", "-m", "s"]);
        bench.sh(&format!("rm -r {}/d", at.display()));
        let ah = bench.0.command(["-C", at.to_str().unwrap(), "agent", "fs", "restore", "s"]);
        let mut without = std::process::Command::new("setpriv");
        without.args(["--bounding-set=-chown", "--inh-caps=-chown"]).arg(ah.get_program()).args(ah.get_args());
        for (name, value) in ah.get_envs() {
            match value {
                Some(value) => without.env(name, value),
                None => without.env_remove(name),
            };
        }
        let ran = Ran::of(without.current_dir("/"));
        assert!(ran.code == 4 && ran.stderr.contains("only you can look into it now"), "{ran:?}");
        // Repeating it would find no difference.
        assert!(ran.stderr.contains("seek") && !ran.stderr.contains("repeat"), "{ran:?}");
        assert_eq!(bench.sh(&format!("cat {}/d/e/f", at.display())), "one");
        let mode = |name: &str| fs::metadata(at.join(name)).unwrap().mode() & 0o777;
        assert_eq!((mode("d"), mode("d/e"), mode("d/e/f")), (0o700, 0o700, 0o600), "{ran:?}");
    });
}

#[test]
fn a_program_of_somebody_elses_does_not_come_back_as_ones_own_set_id_program() {
    if !is_root() {
        return skip("needs root, to make files of others");
    }
    each(&[User::Ordinary], |bench, at| {
        // In the branch it is seen as it is below.
        let below = bench.0.root();
        let prog = below.join("src/prog");
        bench.sh(&format!(
            "mkdir -p {0}/src; echo f > {0}/f; echo own > {0}/src/own; chmod 4755 {0}/src/own",
            below.display()
        ));
        fs::write(&prog, "prog").unwrap();
        chown(&prog, Some(2001), Some(2001)).unwrap();
        fs::set_permissions(&prog, fs::Permissions::from_mode(0o4755)).unwrap();
        let grown = below != at;
        let at = if grown { bench.branch("later") } else { below };
        bench.at(&at, &["snapshot", "-m", "s"]);
        bench.sh(&format!("rm -f {0}/src/prog {0}/src/own", at.display()));
        let ran = bench.ran(&at, &["restore", "s"]);
        assert!(ran.code == 0 && ran.stderr.contains("belonged to others"), "{ran:?}");
        let own = || {
            let meta = seen(bench, || fs::metadata(at.join("src/prog")).unwrap());
            (meta.uid(), meta.mode() & 0o7777)
        };
        assert_eq!(own(), (65534, 0o755), "{ran:?}");
        let theirs = seen(bench, || fs::metadata(at.join("src/own")).unwrap().mode() & 0o7777);
        assert_eq!(theirs, 0o4755, "one's own comes back");
        // Nor by once more, when its mode alone differs.
        bench.sh(&format!("rm {}/f", at.display()));
        bench.at(&at, &["restore", "s"]);
        assert_eq!(own(), (65534, 0o755));
    });
    // Nor where the snapshot does not tell whose it was.
    let world = World::of(User::Ordinary);
    world.use_git();
    world.write("prog", "prog");
    let prog = world.root().join("prog");
    chown(&prog, Some(2001), Some(2001)).unwrap();
    fs::set_permissions(&prog, fs::Permissions::from_mode(0o4755)).unwrap();
    world.fs(["snapshot", "-m", "s"]);
    fs::remove_file(&prog).unwrap();
    let ran = world.run(["agent", "fs", "restore", "s"]);
    assert!(ran.code == 0 && ran.stderr.contains("prog comes back without its set-id bits"), "{ran:?}");
    let meta = fs::metadata(&prog).unwrap();
    assert_eq!((meta.uid(), meta.mode() & 0o7777), (65534, 0o755));
}

#[test]
fn a_mode_that_only_an_ignore_rule_keeps_from_being_saved_is_put_back_and_comes_back() {
    let world = World::on_git();
    let file = world.root().join("data/f");
    let mode = || file.metadata().unwrap().permissions().mode() & 0o7777;
    let set = |mode| fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
    world.write("data/f", "same");
    set(0o640);
    world.fs(["snapshot", "-m", "first"]);
    world.write(".gitignore", "data/\n");
    set(0o600);
    world.fs(["restore", "first"]);
    assert_eq!((mode(), world.read(".gitignore")), (0o640, None));
    world.fs(["undo"]);
    assert_eq!((mode(), world.read(".gitignore").as_deref()), (0o600, Some("data/\n")));
}
