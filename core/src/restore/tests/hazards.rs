//! What somebody else does, or did, to a workspace must cost no contents and give nobody what is not theirs.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::time::{Duration, SystemTime};

use ah_plugin_api::{Capability, Context, EntryKind, Lost, Observer, Progress, RelPath};

use super::lab::{Ask, Lab};
use super::{age, chmod, paths, set};
use crate::restore::{LeftAlone, plan, way_out};

/// Whether this is root; anybody else may only skip where skipping is allowed.
fn root() -> bool {
    let root = rustix::process::geteuid().is_root();
    assert!(root || std::env::var_os("AH_TEST_REQUIRE_ALL").is_none(), "skipped: needs root");
    if !root {
        eprintln!("skipped: needs root");
    }
    root
}

#[test]
fn root_makes_no_set_id_programs() {
    if !root() {
        return;
    }
    let lab = Lab::like_git();
    for name in ["missing", "edited", "kept", "mode", "same"] {
        lab.write(name, "old");
        chown(lab.at(name), Some(1234), Some(1234)).unwrap();
        chmod(&lab.at(name), 0o6755);
    }
    std::fs::create_dir(lab.at("dir")).unwrap();
    chmod(&lab.at("dir"), 0o2775);
    let target = lab.snapshot();
    for name in ["edited", "kept"] {
        std::fs::write(lab.at(name), "newer").unwrap();
    }
    for (name, mode) in [("edited", 0o755), ("kept", 0o6755), ("mode", 0o700), ("same", 0o6700)] {
        chmod(&lab.at(name), mode);
    }
    std::fs::remove_file(lab.at("missing")).unwrap();
    std::fs::remove_dir(lab.at("dir")).unwrap();
    let (_, outcome) = lab.restore(&target, &Ask::default());
    let shown = |name: &str| {
        let meta = lab.at(name).metadata().unwrap();
        (meta.permissions().mode() & 0o7777, meta.uid())
    };
    assert_eq!(
        ["missing", "edited", "kept", "mode", "same"].map(shown),
        // Whose contents come back nobody knows: never as a program that runs as the file's owner.
        [(0o755, 0), (0o755, 1234), (0o755, 1234), (0o755, 1234), (0o6755, 1234)]
    );
    assert_eq!(shown("dir").0, 0o775);
    assert_eq!(outcome.applied.notes.len(), 5, "{:?}", outcome.applied.notes);
}

#[test]
fn what_root_brings_back_is_not_the_directorys_owners_to_read() {
    if !root() {
        return;
    }
    let lab = Lab::like_git();
    lab.write("theirs/secret", "root's");
    lab.write("theirs/dir/file", "root's");
    chmod(&lab.at("theirs/secret"), 0o600);
    chmod(&lab.at("theirs/dir"), 0o700);
    let target = lab.snapshot();
    std::fs::remove_file(lab.at("theirs/secret")).unwrap();
    std::fs::remove_dir_all(lab.at("theirs/dir")).unwrap();
    chown(lab.at("theirs"), Some(1234), Some(1234)).unwrap();
    lab.restore(&target, &Ask::default());
    for name in ["theirs/secret", "theirs/dir", "theirs/dir/file"] {
        let meta = lab.at(name).metadata().unwrap();
        assert_eq!((meta.uid(), meta.gid()), (0, 0), "{name}");
    }
}

#[test]
fn a_change_that_hides_its_size_and_time_survives() {
    let lab = Lab::like_git();
    for name in ["replaced", "chmodded", "twin"] {
        lab.write(name, "old");
    }
    let target = lab.snapshot();
    for name in ["replaced", "chmodded", "removed", "twin"] {
        lab.write(name, "new!");
    }
    std::fs::hard_link(lab.at("twin"), lab.at("other")).unwrap();
    let safety = lab.snapshot();
    let plan = lab.plan(&safety, &target, &Ask::default());
    let top = lab.at("");
    *lab.memory.on_read.lock().unwrap() = Some(Box::new(move |_| {
        // Longer than a tick of the clock that stamps change times.
        std::thread::sleep(Duration::from_millis(20));
        for name in ["replaced", "removed"] {
            let stamp = top.join(name).metadata().unwrap().modified().unwrap();
            std::fs::write(top.join(name), "NEW!").unwrap();
            std::fs::File::options().write(true).open(top.join(name)).unwrap().set_modified(stamp).unwrap();
        }
        chmod(&top.join("chmodded"), 0o600);
    }));
    let outcome = lab.apply(plan, &safety, &target, false).unwrap();
    assert_eq!(paths(&outcome.applied.failed), set(&["replaced", "chmodded", "removed"]));
    assert_eq!(["replaced", "removed", "chmodded"].map(|name| lab.text(name)), ["NEW!", "NEW!", "new!"]);
    // What the restore itself does to a file under one name is no change under the other.
    assert_eq!((lab.text("twin").as_str(), lab.at("other").exists()), ("old", false));
}

#[test]
fn nothing_is_written_through_a_bind_mount() {
    use nix::mount::{MsFlags, mount};
    use nix::sched::{CloneFlags, unshare};
    if !root() {
        return;
    }
    // Of this thread alone, so that nothing outlives it.
    let apart = || {
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_FS).unwrap();
        let none: Option<&str> = None;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
        let lab = Lab::like_git();
        lab.write("shared/f", "old");
        lab.write("shared/gone", "old");
        let target = lab.snapshot();
        let outside = tempfile::tempdir_in(lab.at("").parent().unwrap()).unwrap();
        std::fs::write(outside.path().join("f"), "theirs").unwrap();
        mount(Some(outside.path()), &lab.at("shared"), none, MsFlags::MS_BIND, none).unwrap();
        // Mounted before the plan: in the way. Mounted after it: left alone.
        let plan = lab.plan(&lab.snapshot_without("shared"), &target, &Ask::default());
        assert_eq!(paths(&plan.conflicts), set(&["shared"]));
        assert_eq!(way_out(&lab.at(""), &plan.conflicts, false), "unmount what is on these");
        ah_test_disks::unmount(&lab.at("shared"));
        std::fs::remove_file(lab.at("shared/gone")).unwrap();
        drop(plan);
        let safety = lab.snapshot();
        let plan = lab.plan(&safety, &target, &Ask::default());
        mount(Some(outside.path()), &lab.at("shared"), none, MsFlags::MS_BIND, none).unwrap();
        let outcome = lab.apply(plan, &safety, &target, false).unwrap();
        assert_eq!(paths(&outcome.applied.failed), set(&["shared/gone"]));
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 1);
        ah_test_disks::unmount(&lab.at("shared"));
    };
    std::thread::spawn(apart).join().unwrap();
}

#[test]
fn files_put_back_together_keep_their_order_and_what_builds_make_its_time() {
    let lab = Lab::like_git();
    lab.write(".gitignore", "*.o\n");
    for (name, old) in [("b.c", 900), ("a.c", 800), ("c.c", 700), ("d.c", 700), ("a.o", 850)] {
        lab.write(name, "old");
        let file = std::fs::File::open(lab.at(name)).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 - old)).unwrap();
    }
    let target = lab.snapshot();
    for name in ["a.c", "b.c", "c.c", "d.c", "a.o"] {
        lab.write(name, "newer");
    }
    let time = |name: &str| lab.at(name).metadata().unwrap().modified().unwrap();
    lab.restore(&target, &Ask { ignored: true, ..Ask::default() });
    assert_eq!(time("a.o"), SystemTime::UNIX_EPOCH + Duration::from_secs(999_150));
    assert!(time("b.c") < time("a.c") && time("a.c") < time("c.c") && time("c.c") == time("d.c"));
    assert!(age(&lab.at("b.c")) < Duration::from_secs(100));
    // Right after it, what is written is newer.
    lab.write("a.o", "built");
    assert!(time("a.o") >= time("c.c"));
    // One that was missing alike.
    std::fs::remove_file(lab.at("a.o")).unwrap();
    lab.restore(&target, &Ask::default());
    assert_eq!(time("a.o"), SystemTime::UNIX_EPOCH + Duration::from_secs(999_150));
}

#[test]
fn a_path_longer_than_the_system_takes_at_once_comes_back() {
    use rustix::fs::{AtFlags, Mode, OFlags, mkdirat, openat, unlinkat};
    let lab = Lab::like_git();
    let name = "d".repeat(200);
    let mut deepest = std::fs::File::open(lab.at("")).unwrap();
    for _ in 0..25 {
        mkdirat(&deepest, &name, Mode::RWXU).unwrap();
        deepest = openat(&deepest, &name, OFlags::RDONLY, Mode::empty()).unwrap().into();
    }
    drop(openat(&deepest, "f", OFlags::CREATE | OFlags::WRONLY, Mode::RWXU).unwrap());
    let target = lab.snapshot();
    unlinkat(&deepest, "f", AtFlags::empty()).unwrap();
    let (safety, outcome) = lab.restore(&target, &Ask::default());
    openat(&deepest, "f", OFlags::RDONLY, Mode::empty()).unwrap();
    lab.undo(&safety, &outcome);
    openat(&deepest, "f", OFlags::RDONLY, Mode::empty()).unwrap_err();
}

#[test]
fn where_times_are_whole_seconds_a_later_edit_is_told_by_its_contents() {
    // Inodes too small for more.
    let Some(disk) = ah_test_disks::Disk::formatted("ext4", 20, &["-I", "128"], "") else { return };
    let lab = Lab::within(disk.at(), &[Capability::Diff, Capability::ReadWithoutMount, Capability::AppliesPolicy]);
    // In one second, not at its end.
    while SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().subsec_millis() > 300 {
        std::thread::sleep(Duration::from_millis(10));
    }
    lab.write("f", "then");
    let target = lab.snapshot();
    lab.write("f", "now ");
    std::thread::sleep(Duration::from_millis(150));
    let safety = lab.snapshot();
    lab.write("f", "new ");
    assert_eq!(lab.at("f").metadata().unwrap().ctime_nsec(), 0);
    assert_eq!(paths(&lab.plan(&safety, &target, &Ask::default()).conflicts), set(&["f"]));
}

#[test]
fn what_a_snapshot_cannot_give_any_more_keeps_nothing_else_from_coming_back() {
    let lab = Lab::like_git();
    for name in ["known", "target", "absent", "safety"] {
        lab.write(name, "then");
    }
    std::fs::remove_file(lab.at("absent")).unwrap();
    let target = lab.snapshot();
    for name in ["known", "target", "absent", "safety"] {
        lab.write(name, "as it is now");
    }
    let safety = lab.snapshot();
    for (of, name, absent) in [(&target, "target", false), (&target, "absent", true), (&safety, "safety", false)] {
        let lost = Lost { path: RelPath::new(name).unwrap(), absent };
        lab.memory.lost.lock().unwrap().push((of.reference.clone(), lost));
    }
    let plan = lab.plan(&safety, &target, &Ask::default());
    let steps = |plan: &crate::restore::plan::Plan| {
        plan.changes().into_iter().map(|it| it.path.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(steps(&plan), ["absent", "known"]);
    assert_eq!((paths(&plan.beyond), plan.removals.len()), (set(&["target"]), 1));
    // What the safety snapshot does not hold goes by force alone.
    assert_eq!((paths(&plan.conflicts), plan.forcible), (set(&["safety"]), 1));
    let plan = lab.plan(&safety, &target, &Ask { force: true, ..Ask::default() });
    assert_eq!((steps(&plan), plan.conflicts.len()), (vec!["absent".into(), "known".into(), "safety".into()], 0));
}

#[test]
fn a_directory_that_goes_away_while_it_is_looked_at_is_in_the_way() {
    let lab = Lab::like_git();
    lab.write("d", "old");
    lab.write("e", "old");
    let target = lab.snapshot();
    std::fs::remove_file(lab.at("d")).unwrap();
    std::fs::create_dir(lab.at("d")).unwrap();
    lab.write("e", "new");
    let (safety, dir) = (lab.snapshot(), lab.at("d"));
    // What was written just now is compared with what was saved, after that was looked at.
    *lab.memory.on_read.lock().unwrap() = Some(Box::new(move |_| drop(std::fs::remove_dir(&dir))));
    let plan = lab.plan(&safety, &target, &Ask::default());
    assert!(!lab.at("d").exists());
    assert_eq!(paths(&plan.conflicts), set(&["d"]));
    assert_eq!(
        way_out(&lab.at(""), &plan.conflicts, false),
        "something is at work on these: repeat it when that has stopped"
    );
}

#[test]
fn what_is_closed_in_the_top_directory_is_opened_and_nothing_beside_it() {
    let told = |paths: &[String]| {
        let closed = |path: &String| LeftAlone {
            path: RelPath::new(path.as_str()).unwrap(),
            reason: plan::unreadable::CLOSED.to_owned(),
        };
        way_out(Path::new("/w"), &paths.iter().map(closed).collect::<Vec<_>>(), false)
    };
    let of = |dir: &str| (1..8).map(|at| format!("{dir}{at}")).collect::<Vec<_>>();
    assert!(told(&of("d/")).contains("`chmod -R u+rwX /w/d`, then repeat it"));
    let five = "`chmod -R u+rwX /w/1 /w/2 /w/3 /w/4 /w/5`, and so for 2 more, then repeat it";
    assert!(told(&of("")).contains(five), "{}", told(&of("")));
}

/// Does something once files are being changed, when directories are there already.
struct Meanwhile<F>(std::sync::Mutex<Option<F>>);

impl<F: FnOnce() + Send> Observer for Meanwhile<F> {
    fn progress(&self, progress: &Progress) {
        if progress.stage == "changing files"
            && let Some(then) = self.0.lock().unwrap().take()
        {
            then();
        }
    }
}

/// Puts the directory `priv` in place of another one.
fn swap(top: &std::path::Path, name: &str) {
    std::fs::rename(top.join(name), top.join("aside")).unwrap();
    std::fs::rename(top.join("priv"), top.join(name)).unwrap();
}

fn staging_in(top: &std::path::Path) -> String {
    let names = top.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.into_iter().find(|name| name.starts_with(".ah-restore-")).unwrap()
}

/// A snapshot with files that are missing now, and the ignored directory `priv`, which nobody else may look into.
fn with_private() -> (Lab, ah_plugin_api::Snapshot) {
    let lab = Lab::like_git();
    lab.write(".gitignore", "priv\n");
    for name in ["pub/f", "d/f"] {
        lab.write(name, "old");
    }
    let target = lab.snapshot();
    std::fs::remove_dir_all(lab.at("pub")).unwrap();
    lab.write("d/f", "newer");
    for name in ["priv/0/0", "priv/0/1", "priv/secret"] {
        lab.write(name, "secret");
    }
    chmod(&lab.at("priv"), 0o700);
    (lab, target)
}

#[test]
fn what_is_put_in_place_of_the_staging_folder_is_not_swept_away() {
    for early in [true, false] {
        let (lab, target) = with_private();
        let safety = lab.snapshot();
        let (plan, top) = (lab.plan(&safety, &target, &Ask::default()), lab.at(""));
        let then = || swap(&top, &staging_in(&top));
        let outcome = if early {
            let top = top.clone();
            let once = std::sync::Once::new();
            let then = move |_: &RelPath| once.call_once(|| swap(&top, &staging_in(&top)));
            *lab.memory.on_read.lock().unwrap() = Some(Box::new(then));
            lab.apply(plan, &safety, &target, false)
        } else {
            let watch = Meanwhile(std::sync::Mutex::new(Some(then)));
            lab.apply_watched(plan, &safety, &target, false, &Context::new(&watch))
        };
        let notes = outcome.unwrap().applied.notes;
        assert!(notes.iter().any(|note| note.contains("could not be removed")), "{notes:?}");
        let there = staging_in(&top);
        for name in ["0/0", "0/1", "secret"] {
            assert_eq!(lab.text(&format!("{there}/{name}")), "secret");
        }
        assert_eq!([lab.text("pub/f"), lab.text("d/f")], ["old", "old"]);
        // What was in the folder is swept away wherever that is now.
        assert_eq!(lab.at("aside").read_dir().unwrap().count(), 0);
    }
}

#[test]
fn what_is_put_in_place_of_a_killed_restores_folder_is_not_swept_away() {
    let (lab, target) = with_private();
    let safety = lab.snapshot();
    let journal = lab.journal(&lab.plan(&safety, &target, &Ask::default()), &safety, &target);
    std::fs::rename(lab.at("priv"), lab.at(journal.staging.as_path())).unwrap();
    lab.ground(|ground| crate::restore::clean::clean(ground, &journal, &Context::quiet())).unwrap();
    for name in ["0/0", "0/1", "secret"] {
        assert_eq!(lab.text(&format!("{}/{name}", journal.staging)), "secret");
    }
}

#[test]
fn what_is_put_in_place_of_a_directory_stays_closed() {
    let (lab, target) = with_private();
    let safety = lab.snapshot();
    let (plan, top) = (lab.plan(&safety, &target, &Ask::default()), lab.at(""));
    let watch = Meanwhile(std::sync::Mutex::new(Some(|| swap(&top, "pub"))));
    let outcome = lab.apply_watched(plan, &safety, &target, false, &Context::new(&watch)).unwrap();
    assert_eq!(lab.text("pub/secret"), "secret");
    assert_eq!(lab.at("pub").metadata().unwrap().permissions().mode() & 0o777, 0o700);
    let told = outcome.applied.failed.iter().find(|failed| failed.path.as_bytes() == b"pub");
    assert_eq!(told.unwrap().reason, "something else was put in its place");
}

#[test]
fn what_a_provider_told_wrong_of_the_present_state_is_not_said_to_have_changed() {
    let lab = Lab::like_git();
    let names = ["dir", "kind", "mode", "size"];
    lab.write("dir/file", "the same");
    names[1..].iter().for_each(|name| lab.write(name, "then"));
    let target = lab.snapshot();
    lab.falsify(&target, "dir", |dir| dir.mode = 0o711);
    names[1..].iter().for_each(|name| lab.write(name, "as it is now"));
    let mut safety = lab.snapshot();
    lab.falsify(&safety, "dir", |dir| dir.mode = 0o710);
    lab.falsify(&safety, "kind", |file| file.kind = EntryKind::Symlink);
    lab.falsify(&safety, "mode", |file| file.mode ^= 0o001);
    lab.falsify(&safety, "size", |file| file.mtime.secs -= 1);
    lab.falsify(&safety, "size", |file| file.mode ^= 0o001);
    for (since, is_told) in [(0, false), (3600, true)] {
        safety.created.secs += since;
        let plan = lab.plan(&safety, &target, &Ask::default());
        assert_eq!(paths(&plan.conflicts), set(&names));
        for conflict in &plan.conflicts {
            // What it held then under another time, the disk may have lost.
            let why = match conflict.path.as_bytes() {
                b"size" => "it is not what was saved",
                _ => "the provider memory told",
            };
            assert_eq!(conflict.reason.starts_with(why), is_told, "{conflict:?}");
        }
        // What is on disk instead is in no snapshot.
        assert_eq!(plan.forcible, if is_told { 0 } else { names.len() - 1 });
    }
}
