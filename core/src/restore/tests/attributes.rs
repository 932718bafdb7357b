//! Modes and times that are set in place: of which files, and not of those that somebody changes meanwhile.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::{Duration, SystemTime};

use super::lab::{Ask, Lab};
use super::{chmod, make_old, path, paths, set};
use crate::restore::scope::Scope;

fn mode(lab: &Lab, name: &str) -> u32 {
    lab.at(name).metadata().unwrap().permissions().mode() & 0o7777
}

fn time(lab: &Lab, name: &str) -> SystemTime {
    lab.at(name).metadata().unwrap().modified().unwrap()
}

#[test]
fn no_mode_or_time_is_set_under_names_that_are_not_to_be_like_it() {
    let lab = Lab::like_git();
    for name in ["f", "alone", "d/one", "d/two"] {
        lab.write(name, "same");
        make_old(&lab.at(name));
    }
    let target = lab.snapshot();
    // Outside of the workspace, and outside of what is asked for.
    std::fs::hard_link(lab.at("f"), lab.at("../outside")).unwrap();
    std::fs::hard_link(lab.at("alone"), lab.at("other")).unwrap();
    std::fs::remove_file(lab.at("d/two")).unwrap();
    std::fs::hard_link(lab.at("d/one"), lab.at("d/two")).unwrap();
    for name in ["f", "alone", "d/one"] {
        chmod(&lab.at(name), 0o600);
    }
    let before = ["f", "alone", "d/one"].map(|name| time(&lab, name));
    let file = lab.at("d/one").metadata().unwrap().ino();
    let scope = || Scope::Below(vec![path("f"), path("alone"), path("d")]);
    let (safety, outcome) = lab.restore(&target, &Ask { scope: scope(), ..Ask::default() });
    for name in ["f", "alone", "d/one", "d/two"] {
        assert_eq!((mode(&lab, name), lab.text(name).as_str()), (0o644, "same"), "{name}");
    }
    assert_eq!(["../outside", "other"].map(|name| mode(&lab, name)), [0o600; 2]);
    // What has the contents already keeps its time.
    assert_eq!(["f", "alone", "d/one"].map(|name| time(&lab, name)), before);
    // All names of this one become alike, so it stays what it is.
    assert_eq!(["d/one", "d/two"].map(|name| lab.at(name).metadata().unwrap().ino()), [file; 2]);
    lab.undo(&safety, &outcome);
    assert_eq!(["f", "alone", "d/one", "d/two"].map(|name| mode(&lab, name)), [0o600; 4]);

    std::fs::hard_link(lab.at("f"), lab.at("../again")).unwrap();
    chmod(&lab.at("f"), 0o644);
    let now = SystemTime::now();
    std::fs::File::open(lab.at("f")).unwrap().set_modified(now).unwrap();
    lab.restore(&target, &Ask { scope: scope(), exact_times: true, ..Ask::default() });
    assert_eq!((time(&lab, "f"), time(&lab, "../again")), (before[0], now));
}

#[test]
fn what_somebody_sets_meanwhile_stays() {
    let lab = Lab::like_git();
    for name in ["a", "mode", "edited", "gone", "time", "dir/f"] {
        lab.write(name, "old");
    }
    let target = lab.snapshot();
    lab.write("a", "newer");
    for name in ["mode", "edited", "gone", "dir"] {
        chmod(&lab.at(name), 0o700);
    }
    make_old(&lab.at("time"));
    let safety = lab.snapshot();
    let plan = lab.plan(&safety, &target, &Ask { exact_times: true, ..Ask::default() });
    let (top, new) = (lab.at(""), SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000));
    *lab.memory.on_read.lock().unwrap() = Some(Box::new(move |_| {
        chmod(&top.join("mode"), 0o640);
        chmod(&top.join("dir"), 0o711);
        std::fs::write(top.join("edited"), "theirs").unwrap();
        std::fs::remove_file(top.join("gone")).unwrap();
        std::fs::File::open(top.join("time")).unwrap().set_modified(new).unwrap();
    }));
    let outcome = lab.apply(plan, &safety, &target, true).unwrap();
    assert_eq!(paths(&outcome.applied.failed), set(&["mode", "edited", "gone", "time", "dir"]));
    assert_eq!(["mode", "edited", "dir"].map(|name| mode(&lab, name)), [0o640, 0o700, 0o711]);
    assert_eq!((lab.text("edited").as_str(), lab.text("a").as_str(), time(&lab, "time")), ("theirs", "old", new));
    // Nor is it an undo's to take back.
    assert_eq!(outcome.journal.left.len(), 5);
}

#[test]
fn a_directory_that_somebody_opens_or_shuts_meanwhile_is_left_so() {
    let lab = Lab::like_git();
    lab.write("d/f", "old");
    lab.write("a", "old");
    let target = lab.snapshot();
    lab.write("d/f", "newer");
    lab.write("a", "newer");
    let safety = lab.snapshot();
    let mut plan = lab.plan(&safety, &target, &Ask::default());
    // As for its owner who has taken that from himself.
    chmod(&lab.at("d"), 0o500);
    let found = crate::restore::at::Tree::new(std::os::fd::AsFd::as_fd(&std::fs::File::open(lab.at("")).unwrap()))
        .unwrap()
        .stat(&path("d"))
        .unwrap()
        .unwrap();
    plan.unlock.push((path("d"), found));
    let top = lab.at("");
    *lab.memory.on_read.lock().unwrap() = Some(Box::new(move |_| chmod(&top.join("d"), 0o751)));
    let outcome = lab.apply(plan, &safety, &target, false).unwrap();
    assert_eq!((paths(&outcome.applied.failed), mode(&lab, "d")), (set(&["d"]), 0o751));
    assert_eq!([lab.text("d/f"), lab.text("a")], ["old", "old"]);
}

#[test]
fn a_mode_that_no_snapshot_holds_is_asked_to_be_held() {
    let lab = Lab::like_git();
    lab.write("data/f", "same");
    let target = lab.snapshot();
    lab.write(".gitignore", "data\n");
    chmod(&lab.at("data/f"), 0o600);
    let plan = lab.plan(&lab.snapshot(), &target, &Ask::default());
    assert_eq!(plan.to_hold, [path("data/f")]);
}
