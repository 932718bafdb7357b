use crate::lab::Lab;
use crate::prune::{auto, behind, by, ids};
use ah_core::{Access, BranchOptions, ErrorKind, GcOptions, PruneOptions, RelPath, Release, RmOptions, SeekOptions};
use std::fs;
use std::sync::atomic::Ordering;

#[test]
fn a_view_is_shown_shared_and_given_back() {
    let lab = Lab::new();
    lab.step("a", "1");
    lab.step("a", "2");
    let workspace = lab.open();
    let own = [(); 2].map(|()| workspace.seek("@{1}", &SeekOptions::default()).unwrap());
    assert!(own[0].path != own[1].path && !own[1].shared, "somebody may have written into the other");
    workspace.release(&Release::All).unwrap();
    lab.fake.read_only.store(true, Ordering::Relaxed);
    let lease = workspace.seek("@{1}", &SeekOptions::default()).unwrap();
    assert_eq!(fs::read_to_string(lease.path.join("a")).unwrap(), "1");
    lab.wait(1);
    let second = workspace.seek("@{1}", &SeekOptions::default()).unwrap();
    assert_eq!((second.path.clone(), second.shared), (lease.path.clone(), true));
    assert_ne!(second.id, lease.id);
    let error = workspace.rm(&["@{1}".into()], &RmOptions::default()).unwrap_err();
    assert_eq!(error.kind, ErrorKind::FailedPrecondition);
    assert!(error.hint.unwrap().starts_with("ah agent fs release "));

    assert_eq!(workspace.release(&Release::Path(lease.path.join("sub"))).unwrap()[0].id, lease.id);
    assert!(lease.path.join("a").exists(), "the other one holds it");
    assert_eq!(workspace.release(&Release::Id(second.id)).unwrap().len(), 1);
    assert!(!lease.path.exists());
    assert!(workspace.leases().unwrap().is_empty());
    let error = workspace.release(&Release::Path(lease.path)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::NotFound);
    workspace.rm(&["@{1}".into()], &RmOptions::default()).unwrap();
}

#[test]
fn some_paths_have_a_view_of_their_own() {
    let lab = Lab::new();
    lab.write("b", "b");
    lab.step("a", "1");
    let workspace = lab.open();
    let whole = workspace.seek("@", &SeekOptions::default()).unwrap();
    let some = SeekOptions { paths: vec![RelPath::new("a").unwrap()], ..SeekOptions::default() };
    let part = workspace.seek("@", &some).unwrap();
    assert_ne!(part.path, whole.path);
    assert!(part.path.join("a").exists());
    let missing = SeekOptions { paths: vec![RelPath::new("none").unwrap()], ..SeekOptions::default() };
    assert_eq!(workspace.seek("@", &missing).unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(workspace.leases().unwrap().len(), 2);
    assert_eq!(workspace.release(&Release::All).unwrap().len(), 2);
    assert!(workspace.release(&Release::All).unwrap().is_empty());
}

#[test]
fn inside_a_view_there_is_no_workspace() {
    let lab = Lab::new();
    lab.step("a", "1");
    let lease = lab.open().seek("@", &SeekOptions::default()).unwrap();
    let error = lab.engine().workspace(&lease.path, Access::Create).err().unwrap();
    assert_eq!(error.kind, ErrorKind::FailedPrecondition);
    assert!(error.hint.is_some());
    lab.open().release(&Release::All).unwrap();
}

#[test]
fn gc_gives_back_what_nobody_holds() {
    let lab = Lab::new();
    lab.step("a", "1");
    let workspace = lab.open();
    let lease = workspace.seek("@", &SeekOptions { while_process_lives: true, ..SeekOptions::default() }).unwrap();
    let file = lab.settings.home.join(format!("leases/{}.json", lease.id));
    assert!(workspace.gc(&GcOptions::default()).unwrap().actions.is_empty());
    assert!(file.exists(), "this process lives");

    let mut value: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    value["maker"]["start"] = 1.into();
    fs::write(&file, serde_json::to_vec(&value).unwrap()).unwrap();
    assert_eq!(workspace.gc(&GcOptions::default()).unwrap().actions.len(), 1);
    assert!(!file.exists() && !lease.path.exists());

    // Killed between writing the lease down and making the view.
    value["shown"] = serde_json::Value::Null;
    fs::write(&file, serde_json::to_vec(&value).unwrap()).unwrap();
    fs::create_dir_all(&lease.path).unwrap();
    workspace.gc(&GcOptions::default()).unwrap();
    assert!(!file.exists() && !lease.path.exists());
    assert!(workspace.gc(&GcOptions::default()).unwrap().actions.is_empty());
}

#[test]
fn one_that_is_in_use_keeps_no_other() {
    let lab = Lab::new();
    (0..3).for_each(|n| drop(lab.step("a", &n.to_string())));
    let workspace = lab.open();
    let seek = |reference| workspace.seek(reference, &SeekOptions::default()).unwrap();
    let leases = ["@", "@{1}", "@{2}"].map(seek);
    *lab.fake.stuck.lock().unwrap() = Some(leases[0].view.clone());
    let error = workspace.release(&Release::All).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Busy);
    assert!(error.message.contains("2 of 3"), "{error}");
    let left: Vec<_> = workspace.leases().unwrap().into_iter().map(|lease| lease.id).collect();
    assert_eq!(left, [leases[0].id.clone()]);
    *lab.fake.stuck.lock().unwrap() = None;
    assert_eq!(lab.engine().release(&Release::All).unwrap().len(), 1);
}

#[test]
fn gc_leaves_a_view_to_its_provider_while_that_makes_it() {
    let lab = Lab::new();
    lab.step("a", "1");
    let making = lab.settings.home.join("mounts/.ah-kkkkkkkkkkkk");
    fs::create_dir_all(&making).unwrap();
    assert!(lab.open().gc(&GcOptions::default()).unwrap().actions.is_empty());
    assert!(making.exists());
}

#[test]
fn nothing_goes_while_it_cannot_be_read_what_a_view_or_a_branch_needs() {
    let lab = Lab::new();
    let [shown, grown, _] = [(); 3].map(|()| auto(&lab, 60));
    behind(&lab);
    let workspace = lab.open();
    let lease = workspace.seek(shown.as_str(), &SeekOptions::default()).unwrap();
    let from = |id: &ah_core::SnapshotId| BranchOptions { from: Some(id.to_string()), ..BranchOptions::default() };
    let branch = workspace.branch(&from(&grown)).unwrap();
    let records = [format!("leases/{}.json", lease.id), format!("branches/{}.json", branch.id)];
    for (record, needed) in records.into_iter().zip([shown, grown]) {
        let file = lab.settings.home.join(record);
        let whole = std::fs::read(&file).unwrap();
        std::fs::write(&file, &whole[..30]).unwrap();
        // A branch's has a backup, without which it is damaged for good.
        let _ = std::fs::remove_file(file.with_extension("json.bak1"));
        // What that needs is all that keeps it.
        let lost = |error: ah_core::Error| {
            let way_out = format!("`mv -T {0} {0}.unread`", file.display());
            let told = error.message.contains(file.to_str().unwrap()) && error.hint.unwrap().contains(&way_out);
            assert!(told && error.kind == ErrorKind::DataLoss, "{}", error.message);
        };
        auto(&lab, 15 * 86_400);
        let report = lab.open().gc(&GcOptions { auto: true }).unwrap();
        assert!(ids(&lab).contains(&needed), "{report:?}");
        assert!(report.failures[0].contains("retention policy"), "{report:?}");
        lost(workspace.prune(&by("keep-last=1"), &mut |_| Ok(())).unwrap_err());
        lost(workspace.rm(&[needed.to_string()], &RmOptions::default()).unwrap_err());
        let engine = lab.engine();
        engine.status(&lab.path()).unwrap();
        let told = engine.take_notices();
        assert!(told.iter().any(|notice| notice.message.contains(file.to_str().unwrap())), "{told:?}");
        let failures = lab.open().gc(&GcOptions::default()).unwrap().failures;
        assert!(failures.len() == 1 && failures[0].contains(file.to_str().unwrap()), "{failures:?}");
        if file.starts_with(lab.settings.home.join("leases")) {
            lost(workspace.release(&Release::All).unwrap_err());
            assert!(lease.path.exists(), "whoever holds it has it still");
        } else {
            let other = workspace.branch(&from(&needed)).unwrap();
            lost(workspace.remove_branch(&other.name, false).unwrap_err());
            workspace.remove_branch(&other.name, true).unwrap();
        }
        std::fs::rename(&file, lab.top.join("put away")).unwrap();
        assert_eq!(lab.open().gc(&GcOptions::default()).unwrap().failures, [""; 0]);
        std::fs::write(&file, &whole).unwrap();
        workspace.prune(&PruneOptions { dry_run: true, ..by("keep-last=1") }, &mut |_| Ok(())).unwrap();
        std::fs::remove_file(&file).unwrap();
        workspace.rm(&[needed.to_string()], &RmOptions::default()).unwrap();
    }
}
