use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use super::*;

type Hook = Box<dyn FnMut(Point)>;

thread_local! {
    static BETWEEN: RefCell<Option<Hook>> = const { RefCell::new(None) };
}

pub(super) fn between(point: Point) {
    BETWEEN.with_borrow_mut(|hook| hook.iter_mut().for_each(|hook| hook(point)));
}

/// Copies with somebody coming in between.
fn copy(from: &Path, to: &Path, hook: impl FnMut(Point) + 'static) -> Result<()> {
    fs::create_dir(to).unwrap();
    let (old, new) = (fs::File::open(from).unwrap(), fs::File::open(to).unwrap());
    BETWEEN.set(Some(Box::new(hook)));
    let cx = Context::quiet();
    let mut copier = Copier::new(new.as_fd(), from.to_owned(), &cx);
    let done = copier.run(old.as_fd()).and_then(|top| copier.finish(old.as_fd(), &top));
    BETWEEN.set(None);
    done
}

/// Whether there is a program with that text which runs with its owner's rights.
fn has_program(dir: &Path, text: &str) -> bool {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).any(|path| {
        fs::symlink_metadata(&path).unwrap().mode() & 0o6000 != 0 && fs::read_to_string(&path).unwrap() == text
    })
}

#[test]
fn bits_and_contents_are_those_of_one_file() {
    let dir = tempfile::tempdir().unwrap();
    let (from, aside) = (dir.path().join("from"), dir.path().join("aside"));
    fs::create_dir(&from).unwrap();
    let program = from.join("program");
    let anew = |program: &Path| {
        fs::write(&aside, "evil").unwrap();
        fs::write(program, "good").unwrap();
        fs::set_permissions(program, fs::Permissions::from_mode(0o4755)).unwrap();
    };
    for (which, point) in [Point::Looked, Point::Copied].into_iter().enumerate() {
        for in_place in [false, true] {
            anew(&program);
            let to = dir.path().join(format!("to{which}{in_place}"));
            let (aside, program) = (aside.clone(), program.clone());
            let refused = copy(&from, &to, move |now| {
                if now == point && in_place {
                    fs::write(&program, "evil").unwrap();
                    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
                } else if now == point {
                    fs::rename(&aside, &program).unwrap();
                }
            });
            assert!(!has_program(&to, "evil"), "{point:?} {in_place}");
            assert_eq!(refused.unwrap_err().kind, ErrorKind::Busy, "{point:?} {in_place}");
        }
    }
    anew(&program);
    copy(&from, &dir.path().join("undisturbed"), |_| {}).unwrap();
    assert!(has_program(&dir.path().join("undisturbed"), "good"));
}

#[test]
fn a_tree_deeper_than_there_are_descriptors_is_copied() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    fs::create_dir(&from).unwrap();
    let top = fs::File::open(&from).unwrap();
    let mut way = Way::new(top.as_fd()).unwrap();
    for _ in 0..3000 {
        rustix::fs::mkdirat(way.at(), "d", Mode::RWXU).unwrap();
        way.down(rustix::fs::openat(way.at(), "d", DIRECTORY, Mode::empty()).unwrap()).unwrap();
    }
    let to = dir.path().join("to");
    copy(&from, &to, |_| {}).unwrap();
    let new = fs::File::open(&to).unwrap();
    let count = |dir: &fs::File| {
        let mut count = 0;
        State::of(dir.as_fd(), &Context::quiet(), |_, _, _| {
            count += 1;
            Ok(())
        })
        .unwrap();
        count
    };
    assert_eq!((count(&top), count(&new)), (3000, 3000));
    // Deeper than the standard library removes with a usual number of descriptors.
    for dir in [top, new] {
        crate::remove_contents(dir.as_fd(), &crate::Plain, &Context::quiet()).unwrap();
        assert_eq!(count(&dir), 0);
    }
}

#[test]
fn what_has_more_attributes_than_can_be_listed_is_named() {
    // Which other filesystems do not let come about.
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let from = dir.path().join("from");
    fs::create_dir(&from).unwrap();
    let file = from.join("file");
    fs::write(&file, "x").unwrap();
    let set = |n: u32| rustix::fs::setxattr(&file, format!("user.{n:0250}"), b"1", XattrFlags::empty());
    if set(0) == Err(Errno::OPNOTSUPP) {
        assert!(std::env::var_os("AH_TEST_REQUIRE_ALL").is_none(), "skipped: needs Linux 6.6");
        println!("skipped: needs Linux 6.6");
        return;
    }
    (1..=256).for_each(|n| set(n).unwrap());
    let refused = copy(&from, &dir.path().join("to"), |_| {}).unwrap_err();
    assert!(refused.message.contains("file"), "{refused}");
    let mended = std::process::Command::new("bash")
        .args(["-c", refused.hint.as_deref().unwrap().split('`').nth(1).unwrap()])
        .status();
    assert!(mended.unwrap().success());
    copy(&from, &dir.path().join("again"), |_| {}).unwrap();
    assert_eq!(fs::read_to_string(dir.path().join("again/file")).unwrap(), "x");
}

/// A kernel may take the times of changes from a clock with steps: what is changed within the same one does not show.
#[test]
fn what_was_just_written_is_copied_when_a_change_of_it_shows() {
    let dir = tempfile::tempdir().unwrap();
    for which in 0..5 {
        let from = dir.path().join(format!("from{which}"));
        fs::create_dir(&from).unwrap();
        fs::write(from.join("f"), "x").unwrap();
        let places = [from.clone(), from.join("f")];
        copy(&from, &dir.path().join(format!("to{which}")), move |_| {
            for place in &places {
                let meta = fs::metadata(place).unwrap();
                let changed = std::time::UNIX_EPOCH
                    + std::time::Duration::new(meta.ctime().unsigned_abs(), meta.ctime_nsec().try_into().unwrap());
                assert!(changed.elapsed().unwrap() >= std::time::Duration::from_millis(20), "{place:?}");
            }
        })
        .unwrap();
    }
}
