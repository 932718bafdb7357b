use crate::lab::{Lab, write};
use ah_core::{
    Access, BranchOptions, BranchState, ErrorKind, GcOptions, SnapshotFilter, SnapshotKind, SnapshotOptions,
};
use std::fs;
use std::path::PathBuf;

fn named(name: &str) -> BranchOptions {
    BranchOptions { name: Some(name.into()), ..BranchOptions::default() }
}

#[test]
fn is_a_workspace_of_its_own() {
    let lab = Lab::new();
    let first = lab.step("a", "1");
    lab.step("a", "2");
    let workspace = lab.open();
    let options = BranchOptions { from: Some("@{1}".into()), ..named("fix") };
    let branch = workspace.branch(&options).unwrap();
    assert_eq!(branch.path, lab.settings.home.join("branches/fix"));
    assert_eq!((branch.state, &branch.snapshot), (BranchState::Ready, &first.id));
    assert_eq!(fs::read_to_string(branch.path.join("a")).unwrap(), "1");
    let own = lab.engine().workspace(&branch.path, Access::Existing).unwrap();
    assert_eq!(Some(own.id()), branch.workspace.as_ref());
    assert!(own.snapshots(&SnapshotFilter::default()).unwrap().is_empty());
    write(&branch.path.join("a"), "3");
    own.snapshot(&SnapshotOptions::default()).unwrap();
    assert_eq!(fs::read_to_string(lab.path().join("a")).unwrap(), "2");
    assert_eq!(workspace.find_branch("fix").unwrap(), branch);
    assert_eq!(workspace.find_branch(branch.path.to_str().unwrap()).unwrap(), branch);
    let status = lab.engine().status(&branch.path).unwrap();
    assert_eq!(status.branch.unwrap().id, branch.id);
    assert_eq!(workspace.branch(&options).unwrap_err().kind, ErrorKind::AlreadyExists);
    assert_eq!(workspace.show("@{1}").unwrap().branches, [branch.id]);
}

#[test]
fn without_a_ref_it_grows_from_the_present() {
    let lab = Lab::new();
    lab.step("a", "1");
    lab.write("a", "unsaved");
    let branch = lab.open().branch(&BranchOptions::default()).unwrap();
    assert!(branch.name.starts_with("ws-"), "{}", branch.name);
    assert_eq!(fs::read_to_string(branch.path.join("a")).unwrap(), "unsaved");
    let snapshots = lab.open().snapshots(&SnapshotFilter::default()).unwrap();
    assert_eq!(snapshots.last().unwrap().kind, SnapshotKind::Branch);
}

#[test]
fn bad_names_and_places_are_refused_before_anything_is_made() {
    let lab = Lab::new();
    lab.step("a", "1");
    let workspace = lab.open();
    for name in ["", ".x", "-x", "a/b", "x.json", "a\nb"] {
        assert_eq!(workspace.branch(&named(name)).unwrap_err().kind, ErrorKind::InvalidArgument, "{name:?}");
    }
    let at = |path: PathBuf| BranchOptions { at: Some(path), ..named("n") };
    for (path, kind) in [
        (lab.path().join("inside"), ErrorKind::InvalidArgument),
        (lab.settings.home.join("mounts/x"), ErrorKind::InvalidArgument),
        (lab.top.join("no/where"), ErrorKind::NotFound),
        (PathBuf::from("/"), ErrorKind::InvalidArgument),
    ] {
        fs::create_dir_all(lab.settings.home.join("mounts")).unwrap();
        assert_eq!(workspace.branch(&at(path.clone())).unwrap_err().kind, kind, "{}", path.display());
    }
    fs::create_dir(lab.top.join("there")).unwrap();
    let options = BranchOptions { from: Some("@".into()), ..at(lab.top.join("there")) };
    assert_eq!(workspace.branch(&options).unwrap_err().kind, ErrorKind::AlreadyExists);
    assert_eq!(workspace.snapshots(&SnapshotFilter::default()).unwrap().len(), 1);
    assert!(workspace.branches().unwrap().is_empty());
}

#[test]
fn one_elsewhere_that_is_moved_is_still_known() {
    let lab = Lab::new();
    lab.step("a", "1");
    let workspace = lab.open();
    let options = BranchOptions { at: Some(lab.top.join("beside")), ..named("n") };
    let branch = workspace.branch(&options).unwrap();
    assert_eq!(branch.path, lab.top.join("beside"));
    let moved = lab.top.join("moved");
    fs::rename(&branch.path, &moved).unwrap();
    let own = lab.engine().workspace(&moved, Access::Existing).unwrap();
    assert_eq!(Some(own.id()), branch.workspace.as_ref());
    assert_eq!(workspace.find_branch("n").unwrap().path, moved);
}

#[test]
fn is_taken_away_only_when_saved_or_forced() {
    let lab = Lab::new();
    lab.step("a", "1");
    let workspace = lab.open();
    let branch = workspace.branch(&named("b")).unwrap();
    write(&branch.path.join("new"), "work");
    let error = workspace.remove_branch("b", false).unwrap_err();
    assert_eq!(error.kind, ErrorKind::FailedPrecondition);
    assert!(branch.path.join("new").exists());
    let own = lab.engine().workspace(&branch.path, Access::Existing).unwrap();
    own.snapshot(&SnapshotOptions::default()).unwrap();
    workspace.remove_branch("b", false).unwrap();
    assert!(!branch.path.exists());
    assert!(workspace.branches().unwrap().is_empty());
    assert!(!lab.settings.home.join("workspaces").join(own.id().as_str()).exists());
    assert_eq!(workspace.remove_branch("b", true).unwrap_err().kind, ErrorKind::NotFound);

    let branch = workspace.branch(&named("b")).unwrap();
    workspace.remove_branch("b", false).unwrap();
    assert!(!branch.path.exists());
}

#[test]
fn gc_takes_away_what_a_killed_process_was_making() {
    let lab = Lab::new();
    lab.step("a", "1");
    let workspace = lab.open();
    let branch = workspace.branch(&named("b")).unwrap();
    let file = lab.settings.home.join(format!("branches/{}.json", branch.id));
    let mut value: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    value["state"] = "making".into();
    fs::write(&file, serde_json::to_vec(&value).unwrap()).unwrap();
    assert_eq!(workspace.remove_branch("b", true).unwrap_err().kind, ErrorKind::Busy);
    assert!(workspace.gc(&GcOptions::default()).unwrap().actions.is_empty(), "this process lives");
    value["maker"]["start"] = 1.into();
    fs::write(&file, serde_json::to_vec(&value).unwrap()).unwrap();
    let report = workspace.gc(&GcOptions::default()).unwrap();
    assert!(report.failures.is_empty() && !report.actions.is_empty(), "{report:?}");
    assert!(!file.exists() && !branch.path.exists());
}
