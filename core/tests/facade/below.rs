//! Branches below a mount point that their provider made: it captures more than the workspace.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ah_core::{BranchOptions, BranchState, ErrorKind, GcOptions, Workspace};
use ah_plugin_api::WritableClone;

use crate::lab::{Lab, write};

/// What the provider has of a branch, which it mounts.
struct Dataset {
    there: PathBuf,
    point: PathBuf,
    destroyed: Arc<AtomicBool>,
}

impl Dataset {
    fn mount(&self) {
        bind(&self.there, &self.point);
    }

    fn unmount(&self) {
        ah_test_disks::unmount(&self.point);
    }

    fn is_mounted(&self) -> bool {
        ah_test_disks::mounts().lines().any(|line| line.split(' ').nth(4) == self.point.to_str())
    }
}

impl Drop for Dataset {
    fn drop(&mut self) {
        if self.is_mounted() {
            self.unmount();
        }
    }
}

fn bind(what: &Path, point: &Path) {
    let none = None::<&str>;
    nix::mount::mount(Some(what), point, none, nix::mount::MsFlags::MS_BIND, none).unwrap();
}

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        ah_test_disks::skip("root, to mount");
    }
    is_root
}

/// The branch `fork`, with a file `new` that is nowhere else, at `fork/proj` of what is mounted at `fork`.
fn forked(lab: &Lab) -> (Workspace, Dataset) {
    lab.step("a", "1");
    let there = lab.top.join("dataset");
    let dataset = there.clone();
    let lie = move |clone: WritableClone| {
        fs::create_dir(&dataset).unwrap();
        fs::rename(&clone.path, dataset.join("proj")).unwrap();
        fs::create_dir(&clone.path).unwrap();
        bind(&dataset, &clone.path);
        Ok(WritableClone { path: clone.path.join("proj"), ..clone })
    };
    *lab.fake.of_clones.lock().unwrap() = Some(Box::new(lie));
    let workspace = lab.open();
    let branch = workspace.branch(&BranchOptions { name: Some("fork".into()), ..BranchOptions::default() }).unwrap();
    let point = lab.settings.home.join("branches/fork");
    assert_eq!(branch.path, point.join("proj"));
    write(&branch.path.join("new"), "work");
    let (destroyed, when) = (Arc::<AtomicBool>::default(), point.clone());
    let noted = Arc::clone(&destroyed);
    let destroy = move || {
        noted.store(true, Ordering::Relaxed);
        // As a provider that unmounts what it destroys.
        let _ = std::process::Command::new("umount").arg(&when).output();
    };
    *lab.fake.on_destroy.lock().unwrap() = Some(Box::new(destroy));
    (workspace, Dataset { there, point, destroyed })
}

fn states(workspace: &Workspace) -> Vec<BranchState> {
    workspace.branches_looked_at().unwrap().into_iter().map(|branch| branch.state).collect()
}

fn record(lab: &Lab) -> PathBuf {
    let files = fs::read_dir(lab.settings.home.join("branches")).unwrap().map(|entry| entry.unwrap().path());
    files.into_iter().find(|path| path.extension().is_some_and(|it| it == "json")).unwrap()
}

/// Changes what is written down of the branch.
fn rewrite(lab: &Lab, change: impl FnOnce(&mut serde_json::Map<String, serde_json::Value>)) {
    let file = record(lab);
    let mut fields: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    change(fields.as_object_mut().unwrap());
    fs::write(&file, fields.to_string()).unwrap();
}

/// As an older version wrote it.
fn make_old(lab: &Lab) {
    rewrite(lab, |fields| {
        fields.remove("mounted");
        fields.remove("mounted_at");
    });
}

/// The branch is not mounted: it is told so, and what is in it stays.
fn waits(lab: &Lab, workspace: &Workspace, dataset: &Dataset) {
    assert_eq!(states(workspace), [BranchState::NotMounted]);
    assert_eq!(workspace.find_ready_branch("fork").unwrap_err().kind, ErrorKind::FailedPrecondition);
    let error = workspace.remove_branch("fork", false).unwrap_err();
    assert_eq!(error.kind, ErrorKind::FailedPrecondition);
    assert!(error.message.contains("is not mounted") && error.hint.unwrap().contains("or lose it"));
    assert!(lab.engine().workspace(&dataset.point, ah_core::Access::Create).is_err(), "its place is none to work in");
    let report = workspace.gc(&GcOptions::default()).unwrap();
    assert!(report.missing.is_empty(), "{report:?}");
    assert!(!dataset.destroyed.load(Ordering::Relaxed) && dataset.there.join("proj/new").exists());
}

#[test]
fn one_that_is_not_mounted_is_told_so_and_is_not_gone() {
    if !is_root() {
        return;
    }
    let lab = Lab::new();
    let (workspace, dataset) = forked(&lab);
    assert_eq!(states(&workspace), [BranchState::Ready]);
    dataset.unmount();
    waits(&lab, &workspace, &dataset);
    make_old(&lab);
    waits(&lab, &workspace, &dataset);
    dataset.mount();
    assert_eq!(states(&workspace), [BranchState::Ready]);
    // By force all of it goes, and with it what was made for it.
    workspace.remove_branch("fork", true).unwrap();
    assert!(dataset.destroyed.load(Ordering::Relaxed) && !dataset.point.exists());
    assert!(workspace.branches().unwrap().is_empty());
}

/// Somebody may have worked in it since its removal was cut short.
#[test]
fn one_whose_removal_was_cut_short_is_not_taken_away_unseen() {
    if !is_root() {
        return;
    }
    for old in [false, true] {
        let lab = Lab::new();
        let (workspace, dataset) = forked(&lab);
        let cut_short = || {
            rewrite(&lab, |fields| {
                fields.insert("state".into(), "removing".into());
                fields["maker"]["pid"] = 4_000_000.into();
            });
        };
        cut_short();
        if old {
            make_old(&lab);
        }
        dataset.unmount();
        let report = workspace.gc(&GcOptions::default()).unwrap();
        assert!(report.actions.iter().any(|did| did.contains("kept the branch fork")), "{report:?}");
        assert!(!dataset.destroyed.load(Ordering::Relaxed) && dataset.there.join("proj/new").exists());
        // By this process it would still be at work.
        cut_short();
        dataset.mount();
        workspace.gc(&GcOptions::default()).unwrap();
        assert_eq!(states(&workspace), [BranchState::Ready], "it holds work");
        // An order to lose it is one, whether it can be seen or not.
        dataset.unmount();
        workspace.remove_branch("fork", true).unwrap();
        assert!(dataset.destroyed.load(Ordering::Relaxed) && !dataset.point.exists());
    }
}

#[test]
fn what_is_mounted_for_it_is_its_place() {
    if !is_root() {
        return;
    }
    let lab = Lab::new();
    let (workspace, dataset) = forked(&lab);
    // Something mounted beside its directory would hold up what unmounts it.
    fs::create_dir(dataset.point.join("on")).unwrap();
    bind(&lab.path(), &dataset.point.join("on"));
    let busy = workspace.remove_branch("fork", true).unwrap_err();
    ah_test_disks::unmount(&dataset.point.join("on"));
    assert_eq!(busy.kind, ErrorKind::Busy, "{busy}");
    assert!(!dataset.destroyed.load(Ordering::Relaxed));
    assert_eq!(states(&workspace), [BranchState::Ready]);
    // Moved within what is mounted it is not left wherever it is: that goes with the rest.
    fs::rename(dataset.point.join("proj"), dataset.point.join("moved")).unwrap();
    assert_eq!(states(&workspace), [BranchState::Gone]);
    let hint = workspace.remove_branch("fork", false).unwrap_err().hint.unwrap();
    assert!(!hint.contains("leaves its files") && hint.contains("removes all"), "{hint}");
}
