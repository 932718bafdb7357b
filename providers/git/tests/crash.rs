//! Views and clones whose maker is killed at any moment: `reclaim` leaves whole ones and nothing else.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use ah_plugin_api::{
    CloneRequest, Context, DestroyRequest, Dir, FileName, MountRequest, Place, Provider, ReclaimRequest, Reference,
    UnmountRequest,
};
use ah_provider_git::GitProvider;
use common::{Bench, listing};

const MARK: &str = "AH_TEST_CRASH";

/// What the killed process does: views and clones, made and taken away, until it ends.
fn victim(root: &Path) {
    let open = |name: &str| Dir::open(root.join(name)).unwrap();
    let (store, target, work) = (open("store"), open("target"), open("work"));
    let place = Place::new(&store).with_target(&target).with_workspace(&work);
    let (provider, cx) = (GitProvider::new(), Context::quiet());
    for round in 0.. {
        let name = |kind: &str| FileName::new(format!("{kind}{}-{round}", std::process::id())).unwrap();
        let snapshot = Reference::new("s1").unwrap();
        let request = MountRequest { snapshot: snapshot.clone(), name: name("view"), paths: Vec::new() };
        let view = provider.mount(&place, &request, &cx).unwrap();
        let clone = provider.clone_snapshot(&place, &CloneRequest { snapshot, name: name("clone") }, &cx).unwrap();
        provider.unmount(&place, &UnmountRequest { view: view.reference, unused: false }, &cx).unwrap();
        provider.destroy(&place, &DestroyRequest::Clone(clone.reference), &cx).unwrap();
    }
}

fn names(dir: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(dir).map(|dir| dir.map(|entry| entry.unwrap().path()).collect()).unwrap_or_default()
}

#[test]
fn what_a_kill_leaves_is_whole_or_reclaimed() {
    if let Some(root) = std::env::var_os(MARK) {
        victim(Path::new(&root));
        return;
    }
    let bench = Bench::new();
    for i in 0..300 {
        bench.write(&format!("d{}/f{i}", i % 20), format!("contents {i}"));
    }
    common::git(bench.workspace.path(), &["init", "-q"]);
    common::git(bench.workspace.path(), &["add", "."]);
    bench.snapshot();
    let expected = listing(bench.workspace.path());
    let mut kept = BTreeMap::<String, u32>::new();
    for round in 0..25_u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "what_a_kill_leaves_is_whole_or_reclaimed"])
            .env(MARK, bench.temp.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(20 + round * 37 % 290));
        assert!(child.try_wait().unwrap().is_none(), "the victim ended by itself");
        child.kill().unwrap();
        child.wait().unwrap();
        bench.provider.reclaim(&bench.place(), &ReclaimRequest::default(), &Context::quiet()).unwrap();

        let left = names(bench.target.path());
        for path in &left {
            let name = path.file_name().unwrap().to_str().unwrap();
            assert!(name.starts_with("view") || name.starts_with("clone"), "{left:?}");
            assert_eq!(listing(path), expected, "{path:?}");
            *kept.entry(name.trim_end_matches(|c: char| c != 'w' && c != 'e').to_owned()).or_default() += 1;
        }
        // Whatever is there has a record, by which it can be taken away.
        let records = names(&bench.store.path().join("views"));
        for record in &records {
            let reference = Reference::new(record.file_name().unwrap().to_str().unwrap()).unwrap();
            if bench.destroy(&DestroyRequest::Clone(reference.clone())).is_err() {
                let request = UnmountRequest { view: reference, unused: false };
                bench.provider.unmount(&bench.place(), &request, &Context::quiet()).unwrap();
            }
        }
        assert_eq!(names(bench.target.path()), Vec::<PathBuf>::new(), "round {round}, records {records:?}");
        assert_eq!(names(&bench.store.path().join("views")), Vec::<PathBuf>::new());
    }
    println!("whole ones left by kills: {kept:?}");
}
