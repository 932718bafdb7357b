//! A workspace that is to be none any more; the command line's tests have the rest.

use crate::lab::{Fake, Lab};
use crate::restores::{reboot, restored};
use ah_core::{Access, ErrorKind, GcOptions, RestoreOptions, SnapshotFilter, SnapshotOptions};
use std::fs;

#[test]
fn who_still_has_it_open_does_not_begin_it_anew() {
    let lab = Lab::new();
    lab.step("a", "1");
    let held = lab.open();
    lab.open().forget().unwrap();
    let workspaces = || fs::read_dir(lab.settings.home.join("workspaces")).unwrap().count();
    assert!(held.snapshot(&SnapshotOptions::default()).is_err());
    assert!(held.mark(None).is_err());
    assert!(held.restore("@", &RestoreOptions::default()).is_err());
    assert!(held.forget().is_err());
    assert_eq!(workspaces(), 0);
    lab.step("a", "2");
    assert_eq!((workspaces(), lab.open().snapshots(&SnapshotFilter::default()).unwrap().len()), (1, 1));
}

#[test]
fn what_cannot_be_removed_keeps_the_workspace() {
    let lab = Lab::new();
    let snapshot = lab.step("a", "1");
    // A view that is being made, or was, by a process that may live.
    let lease = lab.open().seek("@", &ah_core::SeekOptions::default()).unwrap();
    let file = lab.settings.home.join(format!("leases/{}.json", lease.id));
    let whole = fs::read(&file).unwrap();
    fs::write(&file, &whole[..30]).unwrap();
    let error = lab.open().forget().unwrap_err();
    assert!(error.kind == ErrorKind::DataLoss && error.hint.is_some(), "{error:?}");
    fs::write(&file, &whole).unwrap();
    assert_eq!(lab.open().forget().unwrap_err().kind, ErrorKind::FailedPrecondition);
    assert_eq!(lab.open().to_forget().unwrap_err().kind, ErrorKind::FailedPrecondition);
    lab.open().release(&ah_core::Release::All).unwrap();
    let gone = lab.open().forget().unwrap();
    assert_eq!(gone.snapshots.iter().map(|it| &it.id).collect::<Vec<_>>(), [&snapshot.id]);
    assert_eq!(lab.engine().workspace(&lab.path(), Access::Existing).err().unwrap().kind, ErrorKind::NotFound);
}

#[test]
fn what_an_interrupted_restore_needs_is_kept() {
    let lab = Lab::new();
    let journal = restored(&lab);
    let forget = || lab.open().forget().map(drop);
    let convert = || lab.open().convert().map(drop);
    reboot(&journal);
    for refused in [lab.open().to_forget().map(drop), forget(), convert()] {
        let error = refused.unwrap_err();
        assert!(error.kind == ErrorKind::FailedPrecondition && error.message.contains("interrupted"), "{error:?}");
    }
    assert!(journal.exists());
    lab.open().resolve("@{1}").unwrap();
    // One that cannot be read may be one.
    let whole = fs::read(&journal).unwrap();
    fs::write(&journal, &whole[..30]).unwrap();
    assert_eq!(forget().unwrap_err().kind, ErrorKind::DataLoss);
    fs::write(&journal, &whole).unwrap();
    lab.open().restore("@{1}", &RestoreOptions::default()).unwrap();
    forget().unwrap();
}

#[test]
fn one_whose_place_another_one_came_to_is_not_removed_by_that_place() {
    let lab = Lab::new();
    let (moved, place, elsewhere) = (lab.path(), lab.top.join("place"), lab.top.join("elsewhere"));
    lab.step("a", "moved");
    fs::create_dir(&place).unwrap();
    let engine = lab.engine();
    let first = engine.workspace(&place, Access::Create).unwrap();
    first.snapshot(&SnapshotOptions::default()).unwrap();
    fs::rename(&place, &elsewhere).unwrap();
    fs::rename(&moved, &place).unwrap();
    lab.engine().workspace(&place, Access::Existing).unwrap();
    fs::remove_dir_all(&place).unwrap();
    let there = || lab.engine().workspace(&place, Access::Existing);
    there().unwrap().forget().unwrap();
    let error = there().unwrap().forget().unwrap_err();
    assert!(error.kind == ErrorKind::FailedPrecondition, "{error:?}");
    assert!(error.hint.unwrap().contains(&format!("adopt {}", first.id())));
    assert_eq!(lab.engine().workspace(&elsewhere, Access::Existing).unwrap().id(), first.id());
}

#[test]
fn what_has_to_stay_in_a_store_keeps_the_workspace_and_what_was_done_does_not() {
    let mut fake = Fake::new("fake", Some(50));
    // It keeps nothing in its store but what it knows.
    let temp = tempfile::tempdir().unwrap();
    fake.filesystems = [rustix::fs::statfs(temp.path()).unwrap().f_type as u32].into();
    let lab = Lab::with(vec![fake.clone()], fake);
    lab.step("a", "1");
    let say = |stays: &'static [&'static str]| {
        *lab.fake.of_reclaims.lock().unwrap() = Some(Box::new(move |mut reclaimed| {
            reclaimed.actions.push("gave back the space of 1 removed snapshot".to_owned());
            reclaimed.stays = stays.iter().map(ToString::to_string).collect();
            Ok(reclaimed)
        }));
    };
    say(&["kept it"]);
    let report = lab.open().gc(&GcOptions::default()).unwrap();
    assert_eq!(report.actions.iter().filter(|action| *action == "kept it").count(), 1, "{report:?}");
    let error = lab.open().forget().unwrap_err();
    assert!(error.kind == ErrorKind::FailedPrecondition && error.causes == ["kept it"], "{error:?}");
    say(&[]);
    lab.open().forget().unwrap();
}
