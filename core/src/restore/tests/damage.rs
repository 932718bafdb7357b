//! Snapshots of which something, or nothing any more, can be read.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use ah_plugin_api::{Capability, ErrorKind, RelPath, Snapshot};

use super::lab::{Ask, Lab};
use super::{paths, set, timeless};
use crate::restore::scope::Scope;

#[test]
fn what_is_damaged_stays_as_it_is_with_what_would_make_room_for_it() {
    let lab = Lab::like_git();
    for name in ["lost", "kept", "place", "short"] {
        lab.write(name, "then");
    }
    std::os::unix::fs::symlink("then", lab.at("link")).unwrap();
    let target = lab.snapshot();
    for name in ["lost", "kept", "short"] {
        lab.write(name, "as it is now");
    }
    std::fs::remove_file(lab.at("place")).unwrap();
    std::fs::remove_file(lab.at("link")).unwrap();
    lab.write("place/inside", "now");
    lab.write("came", "now");
    let before = lab.shown();
    let safety = lab.snapshot();
    ["lost", "place", "link"].iter().for_each(|name| lab.refuse(&target, name, ErrorKind::DataLoss));
    let mut plan = lab.plan(&safety, &target, &Ask::default());
    plan.puts.iter_mut().find(|step| step.path.as_bytes() == b"short").unwrap().after.as_mut().unwrap().size = 99;
    let outcome = lab.apply(plan, &safety, &target, false).unwrap();
    let left = set(&["link", "lost", "place", "place/inside", "short"]);
    assert_eq!((paths(&outcome.applied.failed), outcome.applied.damaged), (left, 5));
    let touched: Vec<_> = outcome.journal.touched().map(ToString::to_string).collect();
    assert_eq!(touched.iter().collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>(), ["came", "kept"]);
    assert_eq!((lab.text("kept"), lab.at("came").exists()), ("then".into(), false));
    lab.undo(&safety, &outcome);
    assert_eq!(timeless(&lab.shown()), timeless(&before));
}

/// A workspace in which a directory was moved since the snapshot.
fn moved(lab: &Lab) -> Snapshot {
    for name in ["src/a", "src/b", "src/c"] {
        lab.write(name, "then");
    }
    let target = lab.snapshot();
    std::fs::rename(lab.at("src"), lab.at("lib")).unwrap();
    target
}

#[test]
fn nothing_goes_for_a_snapshot_that_is_away() {
    // What was read before does not say that it still can be.
    for read in 0..3 {
        let lab = Lab::like_git();
        let target = moved(&lab);
        let (before, safety) = (lab.shown(), lab.snapshot());
        let plan = lab.plan(&safety, &target, &Ask::default());
        *lab.memory.away_after.lock().unwrap() = Some(read);
        let error = lab.apply(plan, &safety, &target, false).unwrap_err();
        assert_eq!((error.kind, lab.shown()), (ErrorKind::DataLoss, before), "{read}");
    }
}

#[test]
fn nothing_goes_for_what_the_disk_may_give_the_next_time() {
    let lab = Lab::like_git();
    lab.write("to-file/inside", "then");
    let target = moved(&lab);
    std::fs::remove_dir_all(lab.at("to-file")).unwrap();
    lab.write("to-file", "now");
    let (before, safety) = (lab.shown(), lab.snapshot());
    let plan = lab.plan(&safety, &target, &Ask::default());
    lab.break_disk_under(&target, "src/b");
    let outcome = lab.apply(plan, &safety, &target, false).unwrap();
    let left = ["lib", "lib/a", "lib/b", "lib/c", "src/b", "to-file", "to-file/inside"];
    assert_eq!(paths(&outcome.applied.failed), set(&left));
    assert_eq!((outcome.applied.damaged, outcome.applied.passing), (0, 1));
    assert_eq!(
        (lab.text("src/a"), lab.text("lib/b"), lab.text("to-file")),
        ("then".into(), "then".into(), "now".into())
    );
    assert!(!lab.at("src/b").exists());
    lab.undo(&safety, &outcome);
    assert_eq!(timeless(&lab.shown()), timeless(&before));
}

#[test]
fn nothing_goes_where_none_of_what_was_to_come_can_be_read() {
    let lab = Lab::like_git();
    let target = moved(&lab);
    let safety = lab.snapshot();
    ["src/a", "src/b", "src/c"].iter().for_each(|name| lab.refuse(&target, name, ErrorKind::DataLoss));
    let outcome = lab.apply(lab.plan(&safety, &target, &Ask::default()), &safety, &target, false).unwrap();
    assert_eq!((outcome.applied.failed.len(), outcome.applied.damaged), (7, 3));
    assert_eq!(lab.text("lib/a"), "then");
}

#[test]
fn a_file_makes_room_for_a_directory_only_if_something_in_it_can_be_read() {
    for (broken, stays) in [(&["place/a", "place/deep/b"][..], true), (&["place/a"], false)] {
        let lab = Lab::like_git();
        for name in ["place/a", "place/deep/b", "other"] {
            lab.write(name, "then");
        }
        let target = lab.snapshot();
        std::fs::remove_dir_all(lab.at("place")).unwrap();
        lab.write("place", "now");
        lab.write("other", "now");
        let safety = lab.snapshot();
        broken.iter().for_each(|name| lab.refuse(&target, name, ErrorKind::DataLoss));
        let outcome = lab.apply(lab.plan(&safety, &target, &Ask::default()), &safety, &target, false).unwrap();
        assert_eq!((lab.at("place").is_file(), lab.text("other")), (stays, "then".into()));
        let left: &[&str] = if stays { &["place", "place/a", "place/deep", "place/deep/b"] } else { broken };
        assert_eq!((paths(&outcome.applied.failed), outcome.applied.damaged), (set(left), left.len()));
        assert!(stays || lab.text("place/deep/b") == "then");
        lab.undo(&safety, &outcome);
        assert_eq!((lab.text("place"), lab.text("other")), ("now".into(), "now".into()));
    }
}

#[test]
fn trouble_of_the_workspaces_own_disk_is_none_of_the_snapshots() {
    let lab = Lab::like_git();
    lab.write("file", "then");
    lab.write("more", "then");
    let target = lab.snapshot();
    lab.write("file", "as it is now");
    lab.write("more", "as it is now");
    let (before, safety, top) = (lab.shown(), lab.snapshot(), lab.at(""));
    let plan = lab.plan(&safety, &target, &Ask::default());
    lab.break_disk_under(&target, "file");
    // No file can be made where files are prepared.
    *lab.memory.on_read.lock().unwrap() = Some(Box::new(move |_| {
        let ours = std::fs::read_dir(&top).unwrap().map(|entry| entry.unwrap().path());
        let ours = ours.into_iter().find(|path| path.to_string_lossy().contains(".ah-restore-")).unwrap();
        std::fs::write(ours.join("room"), "in the way").unwrap();
    }));
    let error = lab.apply(plan, &safety, &target, false).unwrap_err();
    assert!(error.message.contains("cannot write in the workspace"), "{error:?}");
    let mut after = lab.shown();
    after.retain(|path, _| !path.starts_with(".ah-restore-") && !path.to_string_lossy().starts_with(".ah-restore-"));
    assert_eq!(after, before);
}

#[test]
fn what_is_damaged_is_no_reason_not_to_compare_the_rest() {
    // Whoever has no ids of contents reads both sides.
    let lab = Lab::new(&[Capability::ReadWithoutMount, Capability::AppliesPolicy]);
    for name in ["damaged", "unread", "other"] {
        lab.write(name, "then");
    }
    let target = lab.snapshot();
    for name in ["damaged", "unread", "other"] {
        lab.write(name, "now!");
    }
    lab.refuse(&target, "damaged", ErrorKind::DataLoss);
    lab.break_disk_under(&target, "unread");
    let safety = lab.snapshot();
    let outcome = lab.apply(lab.plan(&safety, &target, &Ask::default()), &safety, &target, false).unwrap();
    assert_eq!((paths(&outcome.applied.failed), lab.text("other")), (set(&["damaged", "unread"]), "then".into()));
}

#[test]
fn a_directory_that_cannot_be_read_keeps_nothing_else_from_being_compared() {
    for may_pass in [false, true] {
        let lab = Lab::new(&[Capability::ReadWithoutMount, Capability::AppliesPolicy]);
        for name in ["dir/a", "place/a", "other"] {
            lab.write(name, "then");
        }
        let target = lab.snapshot();
        std::fs::remove_dir_all(lab.at("place")).unwrap();
        for name in ["dir/a", "dir/new", "place", "other", "new"] {
            lab.write(name, "now");
        }
        for name in ["dir", "place"] {
            if may_pass { lab.break_disk_under(&target, name) } else { lab.refuse(&target, name, ErrorKind::DataLoss) }
        }
        let safety = lab.snapshot();
        let plan = lab.plan(&safety, &target, &Ask::default());
        assert_eq!(paths(&plan.beyond), set(&["dir", "place"]));
        assert_eq!((plan.damaged, plan.passing), if may_pass { (0, 2) } else { (2, 0) });
        lab.apply(plan, &safety, &target, false).unwrap();
        let now = ["dir/a", "dir/new", "place"].map(|name| lab.text(name));
        assert_eq!(now, ["now"; 3]);
        // Where the disk said no nothing goes, as the next time it may give what is to be there.
        assert_eq!((lab.text("other"), lab.at("new").exists()), ("then".into(), may_pass));
    }
}

#[test]
fn nothing_goes_for_what_the_disk_gave_at_the_second_time() {
    for of_the_present in [false, true] {
        let lab = Lab::new(&[Capability::ReadWithoutMount, Capability::AppliesPolicy]);
        lab.write("dir/a", "then");
        let target = lab.snapshot();
        ["dir/a", "dir/new", "new"].iter().for_each(|name| lab.write(name, "now"));
        let safety = lab.snapshot();
        lab.memory.passes.store(true, Ordering::Relaxed);
        lab.break_disk_under(if of_the_present { &safety } else { &target }, "dir");
        let plan = lab.plan(&safety, &target, &Ask::default());
        assert_eq!((paths(&plan.beyond), plan.left.len(), plan.passing), (set(&["dir"]), 0, 1));
        let outcome = lab.apply(plan, &safety, &target, false).unwrap();
        assert_eq!((paths(&outcome.applied.failed), outcome.applied.waiting), (set(&["new"]), 1));
        assert_eq!(["dir/a", "dir/new", "new"].map(|name| lab.text(name)), ["now"; 3]);
    }
}

#[test]
fn a_directory_that_was_not_read_makes_no_room() {
    for passes in [false, true] {
        let lab = Lab::new(&[Capability::ReadWithoutMount, Capability::AppliesPolicy]);
        lab.write("place", "then");
        let target = lab.snapshot();
        std::fs::remove_file(lab.at("place")).unwrap();
        lab.write("place/in/a", "now");
        let safety = lab.snapshot();
        lab.memory.passes.store(passes, Ordering::Relaxed);
        lab.break_disk_under(&safety, "place/in");
        assert_eq!(paths(&lab.plan(&safety, &target, &Ask::default()).conflicts), set(&["place/in"]), "{passes}");
    }
}

#[test]
fn where_the_top_cannot_be_read_the_restore_says_so_and_whether_anything_can() {
    for (capabilities, leads_nowhere) in [
        (&[Capability::ReadWithoutMount, Capability::AppliesPolicy][..], true),
        (&[Capability::ReadWithoutMount], true),
        (&[Capability::ReadWithoutMount], false),
    ] {
        let lab = Lab::new(capabilities);
        lab.write("file", "then");
        let target = lab.snapshot();
        lab.write("file", "now!");
        lab.refuse(&target, "", ErrorKind::DataLoss);
        lab.memory.leads_nowhere.store(leads_nowhere, Ordering::Relaxed);
        let safety = lab.snapshot();
        let error = lab.try_plan(&safety, &target, &Ask::default()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::DataLoss);
        assert_eq!(error.message.contains("nothing of the snapshot can be read"), leads_nowhere, "{error:?}");
        assert_eq!(error.hint.unwrap().contains("after `--`"), !leads_nowhere);
        // What is named comes back where it can.
        let scope = Scope::Below(vec![RelPath::new("file").unwrap()]);
        let plan = lab.plan(&safety, &target, &Ask { scope, ..Ask::default() });
        assert_eq!((plan.puts.len(), paths(&plan.beyond).len()), if leads_nowhere { (0, 1) } else { (1, 0) });
    }
}
