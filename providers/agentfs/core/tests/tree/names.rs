//! Names, links, attributes, special files.

use ah_agentfs::{Error, Kind, ROOT, Rename, SetAttr, SetTime, SetXattr, Time};

use crate::{ME, Place, at, branch, content, everything, make, snapshot};

#[test]
fn names_are_bytes_and_are_checked() {
    let place = Place::new();
    let workspace = place.create();
    let view = workspace.view(branch(&workspace)).unwrap();
    let name = b"\xff\xfe \n\x01".as_slice();
    view.create(ROOT, name, ME).unwrap();
    assert_eq!(view.list(ROOT).unwrap()[0].name, name);
    for bad in [&b""[..], b".", b"..", b"a/b", b"a\0b"] {
        assert!(matches!(view.create(ROOT, bad, ME), Err(Error::Invalid(_))), "{bad:?}");
    }
    assert!(matches!(view.create(ROOT, &[b'a'; 256], ME), Err(Error::NameTooLong)));
    view.create(ROOT, &[b'a'; 255], ME).unwrap();
    assert!(matches!(view.create(ROOT, name, ME), Err(Error::Exists)));
    assert!(matches!(view.lookup(ROOT, b"none"), Err(Error::NotFound)));
}

#[test]
fn a_prefix_of_a_name_is_another_name() {
    let place = Place::new();
    let workspace = place.create();
    let view = workspace.view(branch(&workspace)).unwrap();
    for (nth, name) in [&b"a"[..], b"aa", b"a\x01", b"a\x01\x01\x01\x01\x01", b"b"].into_iter().enumerate() {
        let ino = view.create(ROOT, name, ME).unwrap().ino;
        view.write(ino, 0, &[nth as u8]).unwrap();
    }
    for (nth, name) in [&b"a"[..], b"aa", b"a\x01", b"a\x01\x01\x01\x01\x01", b"b"].into_iter().enumerate() {
        assert_eq!(view.read(view.lookup(ROOT, name).unwrap().ino, 0, 9).unwrap(), [nth as u8]);
    }
}

#[test]
fn hard_links_share_everything() {
    let place = Place::new();
    std::fs::write(place.lower().join("one"), "below").unwrap();
    std::fs::hard_link(place.lower().join("one"), place.lower().join("two")).unwrap();
    let workspace = place.create();
    let branch = branch(&workspace);
    let view = workspace.view(branch).unwrap();
    let one = view.lookup(ROOT, b"one").unwrap();
    assert_eq!((one.nlink, view.lookup(ROOT, b"two").unwrap().ino), (2, one.ino));
    view.write(one.ino, 0, b"BE").unwrap();
    assert_eq!(content(&view, "two"), b"BElow");
    let before = snapshot(&workspace, branch);
    assert_eq!(view.link(one.ino, ROOT, b"three").unwrap().nlink, 3);
    view.unlink(ROOT, b"one").unwrap();
    view.unlink(ROOT, b"two").unwrap();
    assert_eq!(view.getattr(one.ino).unwrap().nlink, 1);
    assert_eq!(content(&view, "three"), b"BElow");
    let old = workspace.view_of(before).unwrap();
    assert_eq!(old.lookup(ROOT, b"two").unwrap().nlink, 2);
    assert!(matches!(old.lookup(ROOT, b"three"), Err(Error::NotFound)));
    assert!(matches!(view.link(ROOT, ROOT, b"no"), Err(Error::NotPermitted)));
    assert_eq!(std::fs::read(place.lower().join("one")).unwrap(), b"below");
}

#[test]
fn a_file_without_a_name_lives_until_it_is_forgotten() {
    let place = Place::new();
    std::fs::write(place.lower().join("below"), "below").unwrap();
    let workspace = place.create();
    let view = workspace.view(branch(&workspace)).unwrap();
    let ino = make(&view, "file", &[7; 10_000]);
    view.unlink(ROOT, b"file").unwrap();
    assert_eq!(view.getattr(ino).unwrap().nlink, 0);
    view.write(ino, 10_000, b"more").unwrap();
    assert_eq!(view.read(ino, 9_998, 100).unwrap(), b"\x07\x07more");
    assert!(matches!(view.link(ino, ROOT, b"again"), Err(Error::NotFound)));
    let below = at(&view, "below");
    view.unlink(ROOT, b"below").unwrap();
    assert_eq!((view.read(below, 0, 10).unwrap(), view.getattr(below).unwrap().nlink), (b"below".to_vec(), 0));
    assert!(workspace.used() > 0);
    view.forget(ino, 1);
    view.forget(below, 1);
    assert!(matches!(view.getattr(ino), Err(Error::Stale)));
    workspace.reclaim().unwrap();
    assert_eq!(workspace.used(), 0);
    drop((view, workspace));
    place.check();
}

#[test]
fn a_file_made_without_a_name_can_be_given_one() {
    let place = Place::new();
    let workspace = place.create();
    let branch = branch(&workspace);
    let view = workspace.view(branch).unwrap();
    let (kept, lost) = (view.tmpfile(ME).unwrap(), view.tmpfile(ME).unwrap());
    assert_eq!(kept.nlink, 0);
    view.write(kept.ino, 0, b"kept").unwrap();
    view.write(lost.ino, 0, b"lost").unwrap();
    assert_eq!(view.link(kept.ino, ROOT, b"name").unwrap().nlink, 1);
    workspace.sync().unwrap();
    // The process dies: what has no name by then is gone.
    std::mem::forget(view);
    let lower = place.lower();
    let copy = tempfile::tempdir().unwrap();
    copy_store(&place.store(), copy.path());
    drop(workspace);
    let reopened = ah_agentfs::Workspace::open(copy.path(), &lower, Default::default()).unwrap();
    let view = reopened.view(branch).unwrap();
    assert_eq!(content(&view, "name"), b"kept");
    reopened.reclaim().unwrap();
    assert_eq!(reopened.used(), 4096);
}

fn copy_store(from: &std::path::Path, to: &std::path::Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            std::fs::create_dir(&target).unwrap();
            copy_store(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn attributes_and_times_are_kept_exactly() {
    let place = Place::new();
    std::fs::write(place.lower().join("below"), "below").unwrap();
    let workspace = place.create();
    let branch = branch(&workspace);
    let view = workspace.view(branch).unwrap();
    for ino in [make(&view, "file", b"x"), at(&view, "below")] {
        let before = view.getattr(ino).unwrap();
        let (past, future) = (Time { secs: -1 << 40, nanos: 1 }, Time { secs: 1 << 40, nanos: 999_999_999 });
        let set = SetAttr {
            mode: Some(0o6751),
            uid: Some(u32::MAX - 1),
            gid: Some(7),
            size: None,
            atime: Some(SetTime::At(past)),
            mtime: Some(SetTime::At(future)),
        };
        let after = view.setattr(ino, set).unwrap();
        assert_eq!(
            (after.mode, after.uid, after.gid, after.atime, after.mtime),
            (0o6751, u32::MAX - 1, 7, past, future)
        );
        assert!(after.ctime > before.ctime && after.size == before.size && after.btime == before.btime);
        assert_eq!(view.getattr(ino).unwrap(), after);
    }
    assert_eq!(content(&view, "below"), b"below");
    drop(view);
    workspace.sync().unwrap();
    drop(workspace);
    let workspace = place.open();
    let view = workspace.view(branch).unwrap();
    assert_eq!(view.lookup(ROOT, b"below").unwrap().mtime, Time { secs: 1 << 40, nanos: 999_999_999 });
}

#[test]
fn special_files_and_links() {
    let place = Place::new();
    std::os::unix::fs::symlink("some/where", place.lower().join("link")).unwrap();
    let workspace = place.create();
    let view = workspace.view(branch(&workspace)).unwrap();
    let device = view.mknod(ROOT, b"device", Kind::CharDevice, ME, 0x0103).unwrap();
    assert_eq!((device.kind, device.rdev), (Kind::CharDevice, 0x0103));
    for (name, kind) in [(b"pipe", Kind::Fifo), (b"sock", Kind::Socket)] {
        view.mknod(ROOT, name, kind, ME, 0).unwrap();
        assert_eq!(view.lookup(ROOT, name).unwrap().kind, kind);
    }
    assert!(matches!(view.mknod(ROOT, b"x", Kind::Directory, ME, 0), Err(Error::Invalid(_))));
    assert_eq!(view.readlink(at(&view, "link")).unwrap(), b"some/where");
    let link = view.symlink(ROOT, b"new", b"\xff/..", ME).unwrap();
    assert_eq!((link.size, view.readlink(link.ino).unwrap()), (4, b"\xff/..".to_vec()));
    view.rename(ROOT, b"link", ROOT, b"moved", Rename::Replace).unwrap();
    assert_eq!(view.readlink(at(&view, "moved")).unwrap(), b"some/where");
    assert!(matches!(view.readlink(device.ino), Err(Error::Invalid(_))));
}

#[test]
fn directories_go_only_when_empty() {
    let place = Place::new();
    std::fs::create_dir_all(place.lower().join("d/e")).unwrap();
    let workspace = place.create();
    let branch = branch(&workspace);
    let view = workspace.view(branch).unwrap();
    assert!(matches!(view.rmdir(ROOT, b"d"), Err(Error::NotEmpty)));
    assert!(matches!(view.unlink(ROOT, b"d"), Err(Error::IsDirectory)));
    let before = snapshot(&workspace, branch);
    view.rmdir(at(&view, "d"), b"e").unwrap();
    view.rmdir(ROOT, b"d").unwrap();
    assert!(view.list(ROOT).unwrap().is_empty());
    // The new one is opaque: nothing of the one below shines through.
    view.mkdir(ROOT, b"d", ME).unwrap();
    assert!(view.list(at(&view, "d")).unwrap().is_empty());
    make(&view, "d/f", b"new");
    assert!(matches!(view.rmdir(ROOT, b"d"), Err(Error::NotEmpty)));
    let old = workspace.view_of(before).unwrap();
    assert_eq!(everything(&old).keys().map(Vec::as_slice).collect::<Vec<_>>(), [&b"/d"[..], b"/d/e"]);
    assert!(matches!(old.rmdir(ROOT, b"d"), Err(Error::ReadOnly)));
    drop((old, view, workspace));
    place.check();
}

#[test]
fn extended_attributes_over_those_below() {
    let place = Place::new();
    let file = place.lower().join("file");
    std::fs::write(&file, "x").unwrap();
    let below = rustix::fs::setxattr(&file, "user.below", b"1", rustix::fs::XattrFlags::empty()).is_ok();
    let workspace = place.create();
    let branch = branch(&workspace);
    let view = workspace.view(branch).unwrap();
    let ino = at(&view, "file");
    view.setxattr(ino, b"user.a", b"", SetXattr::Create).unwrap();
    assert!(matches!(view.setxattr(ino, b"user.a", b"", SetXattr::Create), Err(Error::Exists)));
    assert!(matches!(view.setxattr(ino, b"user.b", b"", SetXattr::Replace), Err(Error::NoAttribute)));
    view.setxattr(ino, b"user.a", &[0, 255], SetXattr::Replace).unwrap();
    let before = snapshot(&workspace, branch);
    assert_eq!(view.getxattr(ino, b"user.a").unwrap(), [0, 255]);
    view.removexattr(ino, b"user.a").unwrap();
    assert!(matches!(view.getxattr(ino, b"user.a"), Err(Error::NoAttribute)));
    if below {
        assert_eq!(view.getxattr(ino, b"user.below").unwrap(), b"1");
        view.removexattr(ino, b"user.below").unwrap();
        assert!(matches!(view.getxattr(ino, b"user.below"), Err(Error::NoAttribute)));
    }
    assert_eq!(view.listxattr(ino).unwrap(), Vec::<Vec<u8>>::new());
    // As many names as one list takes, each with a NUL behind it.
    let name = |n: usize| format!("user.{n:0250}").into_bytes();
    (0..256).for_each(|n| view.setxattr(ino, &name(n), b"1", SetXattr::Any).unwrap());
    assert!(matches!(view.setxattr(ino, b"user.x", b"1", SetXattr::Any), Err(Error::NoSpace)));
    view.setxattr(ino, &name(7), b"2", SetXattr::Any).unwrap();
    view.removexattr(ino, &name(9)).unwrap();
    view.setxattr(ino, b"user.x", b"1", SetXattr::Any).unwrap();
    assert_eq!(view.listxattr(ino).unwrap().len(), 256);
    let old = workspace.view_of(before).unwrap();
    let ino = at(&old, "file");
    assert_eq!(old.getxattr(ino, b"user.a").unwrap(), [0, 255]);
    assert_eq!(old.listxattr(ino).unwrap().len(), if below { 2 } else { 1 });
}

#[test]
fn listing_goes_on_behind_a_cookie_whatever_happened_meanwhile() {
    let place = Place::new();
    for nth in 0..50 {
        std::fs::write(place.lower().join(format!("below{nth}")), "").unwrap();
    }
    let workspace = place.create();
    let view = workspace.view(branch(&workspace)).unwrap();
    for nth in 0..50 {
        make(&view, &format!("ours{nth}"), b"");
    }
    let first = view.list(ROOT).unwrap();
    assert_eq!(first.len(), 100);
    assert!(first.windows(2).all(|pair| pair[0].cookie < pair[1].cookie) && first[0].cookie > 2);
    let half = first[49].cookie;
    for entry in &first[..50] {
        view.unlink(ROOT, &entry.name).unwrap();
    }
    make(&view, "new", b"");
    let rest: Vec<_> = view.list(ROOT).unwrap().into_iter().filter(|e| e.cookie > half && e.name != b"new").collect();
    assert_eq!(rest, first[50..]);
}
