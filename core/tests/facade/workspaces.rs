use crate::lab::{Fake, Lab, kinds, write};
use ah_core::{
    Access, Engine, ErrorKind, EventBody, GcOptions, NoticeKind, RestoreOptions, SnapshotFilter, SnapshotOptions,
    TimelineFilter, WorkspaceChange,
};
use ah_plugin_api::{Probe, RelPath};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::Ordering;

fn id(engine: &Engine, path: &Path) -> String {
    engine.workspace(path, Access::Create).unwrap().id().to_string()
}

#[test]
fn is_found_from_below_and_through_symlinks() {
    let lab = Lab::new();
    let engine = lab.engine();
    write(&lab.path().join("a/b/file"), "x");
    let own = id(&engine, &lab.path());
    assert_eq!(id(&engine, &lab.path().join("a/b")), own);
    assert_eq!(id(&engine, &lab.path().join("a/b/file")), own);
    symlink(lab.path().join("a"), lab.top.join("link")).unwrap();
    assert_eq!(id(&engine, &lab.top.join("link")), own);
    assert_eq!(engine.workspace(&lab.path().join("a"), Access::Existing).unwrap().root(), lab.path());
}

#[test]
fn the_top_of_a_git_work_tree_is_one() {
    let lab = Lab::new();
    let engine = lab.engine();
    fs::create_dir_all(lab.path().join(".git")).unwrap();
    fs::create_dir_all(lab.path().join("sub/deep")).unwrap();
    let workspace = engine.workspace(&lab.path().join("sub/deep"), Access::Create).unwrap();
    assert_eq!(workspace.root(), lab.path());
    // A linked worktree or a submodule has a file there.
    write(&lab.path().join("sub/.git"), "gitdir: /nowhere");
    let nested = engine.workspace(&lab.path().join("sub/deep"), Access::Create).unwrap();
    assert_eq!(nested.root(), lab.path().join("sub"));
    assert_ne!(nested.id(), workspace.id());
}

#[test]
fn an_unknown_directory_is_not_registered_by_looking() {
    let lab = Lab::new();
    let error = lab.engine().workspace(&lab.path(), Access::Existing).err().unwrap();
    assert_eq!((error.kind, error.hint.as_deref()), (ErrorKind::NotFound, Some("`ah agent fs snapshot`")));
    assert!(lab.engine().status(&lab.path()).unwrap().workspace.is_none());
    assert!(!lab.settings.home.join("workspaces").exists());
    let error = lab.engine().workspace(&lab.top.join("nowhere"), Access::Create).err().unwrap();
    assert_eq!(error.kind, ErrorKind::NotFound);
    assert!(error.hint.is_some());
}

#[test]
fn a_moved_one_is_followed_with_a_notice() {
    let lab = Lab::new();
    let own = id(&lab.engine(), &lab.path());
    lab.step("a", "1");
    let elsewhere = lab.top.join("elsewhere");
    fs::rename(lab.path(), &elsewhere).unwrap();
    let engine = lab.engine();
    let workspace = engine.workspace(&elsewhere, Access::Existing).unwrap();
    assert_eq!(workspace.id().to_string(), own);
    assert_eq!(kinds(&engine.take_notices()), [NoticeKind::WorkspaceMoved]);
    let events = workspace.timeline(&TimelineFilter::default()).unwrap().events;
    assert!(matches!(&events.last().unwrap().body,
        EventBody::Workspace { change: WorkspaceChange::Moved, from, to } if *from == lab.path() && *to == elsewhere));
    assert!(engine.take_notices().is_empty());
    assert_eq!(id(&engine, &elsewhere), own);
    assert!(engine.take_notices().is_empty());
}

#[test]
fn one_that_was_made_anew_goes_on_with_a_notice() {
    let lab = Lab::new();
    let own = id(&lab.engine(), &lab.path());
    fs::rename(lab.path(), lab.top.join("old")).unwrap();
    fs::remove_dir_all(lab.top.join("old")).unwrap();
    fs::create_dir(lab.path()).unwrap();
    let engine = lab.engine();
    assert_eq!(id(&engine, &lab.path()), own);
    assert_eq!(kinds(&engine.take_notices()), [NoticeKind::WorkspaceMadeAnew]);
    assert_eq!(id(&engine, &lab.path()), own);
    assert!(engine.take_notices().is_empty());
}

#[test]
fn two_that_changed_places_are_told_apart() {
    let lab = Lab::new();
    let (a, b) = (lab.path(), lab.top.join("b"));
    fs::create_dir(&b).unwrap();
    let (id_a, id_b) = (id(&lab.engine(), &a), id(&lab.engine(), &b));
    fs::rename(&a, lab.top.join("t")).unwrap();
    fs::rename(&b, &a).unwrap();
    fs::rename(lab.top.join("t"), &b).unwrap();
    assert_eq!(id(&lab.engine(), &a), id_b);
    assert_eq!(id(&lab.engine(), &b), id_a);
}

#[test]
fn copies_and_second_clones_are_new() {
    let lab = Lab::new();
    write(&lab.path().join(".git/HEAD"), "ref: refs/heads/main\n");
    let own = id(&lab.engine(), &lab.path());
    let copy = lab.top.join("copy");
    assert!(std::process::Command::new("cp").arg("-a").arg(lab.path()).arg(&copy).status().unwrap().success());
    assert_ne!(id(&lab.engine(), &copy), own);
    assert_eq!(id(&lab.engine(), &lab.path()), own);
}

#[test]
fn adopt_brings_a_timeline_to_a_copy() {
    let lab = Lab::new();
    let first = lab.step("a", "1");
    let copy = lab.top.join("copy");
    assert!(std::process::Command::new("cp").arg("-a").arg(lab.path()).arg(&copy).status().unwrap().success());
    let engine = lab.engine();
    let error = engine.adopt(&copy, &lab.path()).err().unwrap();
    assert_eq!(error.kind, ErrorKind::Conflict, "the old one is still there");
    fs::remove_dir_all(lab.path()).unwrap();
    let moved = lab.top.join("sub/ws");
    fs::create_dir_all(&moved).unwrap();
    let hint = engine.workspace(&moved, Access::Existing).err().unwrap().hint.unwrap();
    assert!(hint.ends_with(&format!("adopt {}`", lab.path().display())), "{hint}");
    // Looking at it registers it; that is no obstacle as long as nothing was captured.
    engine.workspace(&copy, Access::Create).unwrap();
    let workspace = engine.adopt(&copy, &lab.path()).unwrap();
    assert_eq!(workspace.resolve("@").unwrap().id, first.id);
    assert_eq!(engine.workspace(&copy, Access::Existing).unwrap().resolve("@").unwrap().id, first.id);
    assert_eq!(engine.adopt(&copy, Path::new("/never/was")).err().unwrap().kind, ErrorKind::NotFound);

    let other = lab.top.join("other");
    fs::create_dir(&other).unwrap();
    engine.workspace(&other, Access::Create).unwrap().snapshot(&SnapshotOptions::default()).unwrap();
    fs::remove_dir_all(&copy).unwrap();
    assert_eq!(engine.adopt(&other, &copy).err().unwrap().kind, ErrorKind::Conflict);
    // Nor where the line of the snapshot is lost.
    let folder = lab.settings.home.join("workspaces").join(id(&engine, &other));
    fs::write(folder.join("sessions/main/timeline.jsonl"), "").unwrap();
    let error = engine.adopt(&other, &copy).err().unwrap();
    assert!(error.message.ends_with(": 1 snapshot that no timeline lists"), "{error:?}");
}

#[test]
fn adopt_takes_a_timeline_back_from_a_copy_that_came_in_the_old_place() {
    let lab = Lab::new();
    let first = lab.step("a", "1");
    let (old, new) = (lab.path(), lab.top.join("new"));
    fs::rename(&old, &new).unwrap();
    let copy = |from: &Path| {
        assert!(std::process::Command::new("cp").arg("-a").arg(from).arg(&old).status().unwrap().success());
    };
    copy(&new);
    let engine = lab.engine();
    assert_eq!(engine.workspace(&old, Access::Existing).unwrap().resolve("@").unwrap().id, first.id);
    let notices = engine.take_notices();
    let adopt = format!("`ah agent fs adopt {}`", old.display());
    let there = adopt.replace("ah ", "ah -C . ");
    assert!(notices.len() == 1 && notices[0].message.contains(&there), "{notices:?}");
    // And once more.
    fs::remove_dir_all(&old).unwrap();
    copy(&new);
    let second = lab.step("a", "2");
    let _ = engine.take_notices();

    let hint = engine.workspace(&new, Access::Existing).err().unwrap().hint.unwrap();
    assert!(hint.ends_with(&adopt), "{hint}");
    let elsewhere = lab.top.join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    assert_eq!(engine.adopt(&elsewhere, &old).err().unwrap().kind, ErrorKind::Conflict);
    let here = engine.adopt(&new, &old).unwrap();
    assert!(here.resolve(&first.id.to_string()).is_ok() && here.resolve("@").unwrap().id == second.id);
    assert_eq!(engine.workspace(&new, Access::Existing).unwrap().id(), here.id());
    // The copy is one, and cannot take it again.
    assert_eq!(engine.workspace(&old, Access::Existing).err().unwrap().kind, ErrorKind::NotFound);
    assert_eq!(engine.adopt(&old, &new).err().unwrap().kind, ErrorKind::Conflict);
}

#[test]
fn adopt_gives_no_timeline_to_a_workspace_around() {
    let lab = Lab::new();
    lab.step("a", "1");
    let (old, around) = (lab.path(), lab.top.join("around"));
    let new = around.join("new");
    fs::create_dir_all(&new).unwrap();
    fs::write(around.join("theirs"), "kept").unwrap();
    let engine = lab.engine();
    let theirs = engine.workspace(&around, Access::Create).unwrap();
    fs::remove_dir_all(&old).unwrap();
    let error = engine.adopt(&new, &old).err().unwrap();
    assert!(error.kind == ErrorKind::Conflict && error.hint.unwrap().contains(around.to_str().unwrap()));
    assert_eq!(engine.workspace(&around, Access::Existing).unwrap().id(), theirs.id());
    // Who means it says so.
    assert_ne!(engine.adopt(&around, &old).unwrap().id(), theirs.id());
}

#[test]
fn adopt_of_what_was_found_again_by_itself_is_done_already() {
    let lab = Lab::new();
    let first = lab.step("a", "1");
    let (old, new, elsewhere) = (lab.path(), lab.top.join("new"), lab.top.join("elsewhere"));
    fs::create_dir(&elsewhere).unwrap();
    fs::rename(&old, &new).unwrap();
    let engine = lab.engine();
    engine.workspace(&new, Access::Existing).unwrap();
    let _ = engine.take_notices();
    assert_eq!(engine.adopt(&new, &old).unwrap().resolve("@").unwrap().id, first.id);
    let notices = engine.take_notices();
    assert!(notices.len() == 1 && notices[0].message.contains("goes on here already"), "{notices:?}");
    // From elsewhere it is said where it is.
    let error = engine.adopt(&elsewhere, &old).err().unwrap();
    assert_eq!(error.kind, ErrorKind::Conflict);
    assert!(error.message.contains(new.to_str().unwrap()), "{error:?}");
    assert_eq!(engine.adopt(&new, &lab.top.join("never")).err().unwrap().kind, ErrorKind::NotFound);
}

#[test]
fn adopt_gives_up_no_recordings() {
    let lab = Lab::new();
    let engine = lab.engine();
    lab.step("a", "1");
    fs::remove_dir_all(lab.path()).unwrap();
    let other = lab.top.join("other");
    fs::create_dir(&other).unwrap();
    let own = engine.workspace(&other, Access::Create).unwrap();
    let (recording, mut file) = own.begin_recording().unwrap();
    std::io::Write::write_all(&mut file, b"{\"version\": 2}\n").unwrap();
    drop(file);
    let error = engine.adopt(&other, &lab.path()).err().unwrap();
    let named = error.message.contains(recording.path.to_str().unwrap());
    assert!(error.kind == ErrorKind::Conflict && named, "{error:?}");
    fs::remove_file(recording.path).unwrap();
    assert_eq!(engine.adopt(&other, &lab.path()).unwrap().snapshots(&SnapshotFilter::default()).unwrap().len(), 1);
}

#[test]
fn adopt_gives_up_no_other_timeline_however_it_is_found() {
    let lab = Lab::new();
    let engine = lab.engine();
    lab.step("a", "1");
    fs::remove_dir_all(lab.path()).unwrap();
    let (other, moved) = (lab.top.join("other"), lab.top.join("moved"));
    let make = || {
        fs::create_dir(&other).unwrap();
        fs::write(other.join("f"), "x").unwrap();
    };
    make();
    engine.workspace(&other, Access::Create).unwrap().snapshot(&SnapshotOptions::default()).unwrap();
    // Moved, and not looked at since.
    fs::rename(&other, &moved).unwrap();
    assert_eq!(engine.adopt(&moved, &lab.path()).err().unwrap().kind, ErrorKind::Conflict);
    fs::rename(&moved, &other).unwrap();
    // Made anew.
    fs::rename(&other, lab.top.join("gone")).unwrap();
    fs::remove_dir_all(lab.top.join("gone")).unwrap();
    make();
    assert_eq!(engine.adopt(&other, &lab.path()).err().unwrap().kind, ErrorKind::Conflict);
    let own = engine.workspace(&other, Access::Existing).unwrap();
    assert_eq!(own.snapshots(&SnapshotFilter::default()).unwrap().len(), 1);

    let mut lab = lab;
    lab.settings.user_home = Some(other);
    let error = lab.engine().adopt(&lab.top, &lab.path()).err().unwrap();
    assert_eq!(error.kind, ErrorKind::FailedPrecondition, "{error:?}");
}

#[test]
fn own_places_and_too_much_are_refused() {
    let mut lab = Lab::new();
    lab.settings.user_home = Some(lab.path());
    let engine = lab.engine();
    for path in [lab.settings.home.clone(), lab.settings.home.join("branches"), lab.settings.home.join("branches/left")]
    {
        fs::create_dir_all(&path).unwrap();
        let error = engine.workspace(&path, Access::CreateForced).err().unwrap();
        assert_eq!(error.kind, ErrorKind::FailedPrecondition, "{}", path.display());
        assert!(error.hint.is_some());
    }
    for path in [lab.path(), lab.top.clone(), Path::new("/").to_owned()] {
        let error = engine.workspace(&path, Access::Create).err().unwrap();
        assert_eq!(error.kind, ErrorKind::FailedPrecondition, "{}", path.display());
    }
    engine.workspace(&lab.path(), Access::CreateForced).unwrap();
    engine.workspace(&lab.path(), Access::Create).unwrap();
}

#[test]
fn a_home_directory_in_git_does_not_swallow_what_is_below() {
    let mut lab = Lab::new();
    lab.settings.user_home = Some(lab.path());
    fs::create_dir_all(lab.path().join(".git")).unwrap();
    fs::create_dir_all(lab.path().join("notes/deep")).unwrap();
    let engine = lab.engine();
    let error = engine.workspace(&lab.path(), Access::Create).err().unwrap();
    assert_eq!(error.kind, ErrorKind::FailedPrecondition);
    let notes = lab.path().join("notes");
    assert_eq!(engine.workspace(&notes, Access::Create).unwrap().root(), notes);
    assert_eq!(engine.workspace(&notes.join("deep"), Access::Create).unwrap().root(), notes);
}

#[test]
fn what_an_agents_first_call_costs_does_not_grow_with_the_sessions() {
    let lab = Lab::new();
    lab.step("a", "1");
    let call = |id: &str| {
        let event = format!(r#"{{"session_id":"{id}","cwd":{:?},"hook_event_name":"SessionStart"}}"#, lab.path());
        let event = ah_agents::hook::read(ah_agents::Agent::Claude, &mut event.as_bytes()).unwrap();
        lab.engine().hook(&event, &ah_core::HookContext::default()).unwrap().unwrap().session.to_string()
    };
    let index = || fs::read(lab.settings.home.join("index.json")).unwrap();
    let before = index();
    let names: Vec<String> = (0..20).map(|at| call(&format!("s{at}"))).collect();
    assert_eq!(index(), before, "the index of workspaces says nothing of sessions");
    let all: std::collections::BTreeSet<&String> = names.iter().collect();
    assert_eq!(all.len(), names.len());
    // The others' records are not looked at: the damage in one would be a file that was looked for in vain.
    let lost = lab.settings.home.join("agents/claude/s7.json");
    fs::remove_file(&lost).unwrap();
    call("s20");
    assert!(!lost.exists(), "the sessions were looked through");
    // But they are where what is known of them is lost, and after a kill.
    assert_eq!(lab.open().gc(&ah_core::GcOptions::default()).unwrap().failures, [""; 0]);
    fs::remove_dir(lab.settings.home.join("agents/all")).unwrap();
    assert_eq!(call("s7"), names[7]);
    fs::remove_dir_all(lab.settings.home.join("agents")).unwrap();
    assert_eq!(call("s3"), names[3]);
}

#[test]
fn a_lost_or_damaged_index_is_rebuilt() {
    let lab = Lab::new();
    let own = id(&lab.engine(), &lab.path());
    let index = lab.settings.home.join("index.json");
    fs::remove_file(&index).unwrap();
    assert_eq!(id(&lab.engine(), &lab.path()), own);
    for damage in ["", "{", "{\"version\":1,\"workspaces\":[]}", "{\"version\":7}"] {
        fs::write(&index, damage).unwrap();
        assert_eq!(id(&lab.engine(), &lab.path()), own, "{damage}");
    }
    assert!(fs::read_to_string(&index).unwrap().contains(&own));
}

#[test]
fn a_lost_record_hides_no_other_and_is_reported() {
    let lab = Lab::new();
    let other = lab.top.join("other");
    fs::create_dir(&other).unwrap();
    lab.step("a", "1");
    let own = id(&lab.engine(), &lab.path());
    let lost = id(&lab.engine(), &other);
    lab.engine().workspace(&other, Access::Create).unwrap().snapshot(&SnapshotOptions::default()).unwrap();
    let folder = lab.settings.home.join("workspaces").join(&lost);
    for file in fs::read_dir(&folder).unwrap() {
        let file = file.unwrap().path();
        if file.file_name().unwrap().to_str().unwrap().starts_with("workspace.json") {
            fs::remove_file(file).unwrap();
        }
    }
    fs::remove_file(lab.settings.home.join("index.json")).unwrap();
    assert_eq!(id(&lab.engine(), &lab.path()), own);
    let report = lab.open().gc(&ah_core::GcOptions::default()).unwrap();
    assert!(report.failures.iter().any(|failure| failure.contains(&lost)), "{report:?}");
}

#[test]
fn where_a_record_cannot_be_read_no_second_history_begins() {
    let lab = Lab::new();
    let (other, third) = (lab.top.join("other"), lab.top.join("third"));
    [&other, &third].into_iter().for_each(|path| fs::create_dir(path).unwrap());
    let own = lab.step("a", "1").id;
    let known = id(&lab.engine(), &other);
    let (record, index) = (lab.folder().join("workspace.json"), lab.settings.home.join("index.json"));
    fs::rename(&record, lab.top.join("aside")).unwrap();
    // Not even root reads it.
    symlink("workspace.json", &record).unwrap();
    let has_index = || index.exists();
    // The index still knows of it.
    assert!(has_index() && lab.open().resolve("@").unwrap().id == own);
    fs::create_dir(lab.settings.home.join("workspaces/new")).unwrap();
    assert!(lab.open().resolve("@").unwrap().id == own, "{:?}", fs::read_to_string(&index));
    fs::remove_file(&index).unwrap();
    for path in [&lab.path(), &third] {
        for access in [Access::Existing, Access::Create] {
            let error = lab.engine().workspace(path, access).err().unwrap();
            assert!(error.kind != ErrorKind::NotFound && error.hint.is_some(), "{error:?}");
        }
    }
    assert_eq!(id(&lab.engine(), &other), known, "it hides no other");
    fs::remove_file(&record).unwrap();
    fs::rename(lab.top.join("aside"), &record).unwrap();
    assert_eq!(lab.open().resolve("@").unwrap().id, own);
    assert_ne!(id(&lab.engine(), &third), known);
}

#[test]
fn one_whose_place_another_one_was_moved_to_is_told_and_taken_up_again() {
    let lab = Lab::new();
    let (moved, fresh) = (lab.path(), lab.top.join("fresh"));
    let place = lab.top.join("place");
    [&place, &fresh].into_iter().for_each(|path| fs::create_dir(path).unwrap());
    lab.step("a", "moved");
    write(&place.join("a"), "lost");
    let lost = lab.engine().workspace(&place, Access::Create).unwrap();
    let snapshot = lost.snapshot(&SnapshotOptions::default()).unwrap().id;
    let own = id(&lab.engine(), &moved);
    fs::remove_dir_all(&place).unwrap();
    fs::rename(&moved, &place).unwrap();
    let engine = lab.engine();
    assert_eq!(id(&engine, &place), own);
    let notices = engine.take_notices();
    let hint = format!("ah -C . agent fs adopt {}", lost.id());
    assert!(notices.iter().any(|notice| notice.hint.as_ref().is_some_and(|it| it.contains(&hint))), "{notices:?}");
    // Whatever comes to be of that directory.
    fs::remove_dir_all(&place).unwrap();
    fs::create_dir(&place).unwrap();
    assert_eq!(id(&lab.engine(), &place), own);
    for known in [
        lab.engine().status(&place).unwrap().missing,
        lab.engine().workspace(&place, Access::Existing).unwrap().gc(&GcOptions::default()).unwrap().missing,
    ] {
        assert_eq!(known.len(), 1, "{known:?}");
        assert!(known[0].id == *lost.id() && known[0].path == place && known[0].displaced, "{known:?}");
    }
    let error = lab.engine().adopt(&fresh, &place).err().unwrap();
    assert!(
        error.kind == ErrorKind::Conflict && error.hint.as_ref().unwrap().contains(&hint.replace("-C . ", "")),
        "{error:?}"
    );
    let adopted = lab.engine().adopt(&fresh, &place.with_file_name(lost.id().as_str())).unwrap();
    assert_eq!((adopted.id(), adopted.resolve("@").unwrap().id), (lost.id(), snapshot));
    assert_eq!((id(&lab.engine(), &fresh), id(&lab.engine(), &place)), (lost.id().to_string(), own));
    assert!(lab.engine().status(&place).unwrap().missing.is_empty());
}

#[test]
fn paths_are_taken_as_they_are_said() {
    let lab = Lab::new();
    let workspace = lab.open();
    write(&lab.path().join("sub/file"), "x");
    let rel = |cwd: &Path, path: &str| workspace.rel_path(cwd, Path::new(path)).map(|path| path.to_string());
    let sub = lab.path().join("sub");
    assert_eq!(rel(&sub, "file").unwrap(), "sub/file");
    assert_eq!(rel(&sub, "../gone/x").unwrap(), "gone/x");
    assert_eq!(rel(&sub, "..").unwrap(), ".");
    assert_eq!(rel(&lab.path(), ".").unwrap(), ".");
    assert_eq!(rel(Path::new("/"), sub.to_str().unwrap()).unwrap(), "sub");
    symlink(lab.path(), lab.top.join("link")).unwrap();
    assert_eq!(rel(&lab.top.join("link/sub"), "file").unwrap(), "sub/file");
    symlink("/etc", lab.path().join("away")).unwrap();
    assert_eq!(rel(&lab.path(), "away").unwrap(), "away");
    assert_eq!(rel(&lab.path(), "../other").unwrap_err().kind, ErrorKind::InvalidArgument);
}

#[test]
fn a_record_that_is_lost_is_written_anew() {
    let lab = Lab::new();
    lab.step("a", "1");
    let (folder, id) = (lab.folder(), lab.open().id().clone());
    let damage: [&dyn Fn(&std::path::Path); 2] =
        [&|path| fs::remove_file(path).unwrap(), &|path| fs::write(path, "{").unwrap()];
    for damage in damage {
        for backup_too in [false, true] {
            for entry in fs::read_dir(&folder).unwrap() {
                let path = entry.unwrap().path();
                let name = path.file_name().unwrap().to_string_lossy().into_owned();
                if name == "workspace.json" || (backup_too && name.starts_with("workspace.json.bak")) {
                    damage(&path);
                }
            }
            if !backup_too {
                fs::remove_file(lab.settings.home.join("index.json")).unwrap();
            }
            lab.open().gc(&GcOptions::default()).unwrap();
            let workspace = lab.open();
            assert_eq!(*workspace.id(), id);
            assert_eq!(workspace.snapshots(&SnapshotFilter::default()).unwrap().len(), 1);
        }
    }
}

fn convertible() -> Probe {
    Probe {
        usable: true,
        reason: "a part of something larger".into(),
        remedy: None,
        modes: [].into(),
        can_delete: true,
        convertible: Some("snapshots hold too much".into()),
    }
}

#[test]
fn a_converted_workspace_goes_on_with_its_history() {
    let lab = Lab::new();
    let before = lab.step("a", "1");
    let error = lab.open().convert().unwrap_err();
    assert_eq!(error.kind, ErrorKind::FailedPrecondition);
    assert!(error.causes.iter().any(|cause| cause.starts_with("fake: ")), "{error:?}");
    *lab.fake.probe.lock().unwrap() = Some(convertible());
    let status = lab.engine().status(&lab.path()).unwrap();
    assert_eq!(status.candidates[0].convertible.as_deref(), Some("snapshots hold too much"));
    let inode = |path: &Path| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap());
    let (id, old) = (lab.open().id().clone(), inode(&lab.path()));
    let report = lab.open().convert().unwrap();
    assert!(report.changed && report.notes == ["copied"] && report.path == lab.path());
    assert_ne!(inode(&lab.path()), old);
    *lab.fake.probe.lock().unwrap() = None;
    // The next command finds the same workspace, and has nothing to say about it.
    let workspace = lab.open();
    assert_eq!(*workspace.id(), id);
    let events = workspace.timeline(&TimelineFilter::default()).unwrap().events;
    let changes: Vec<_> = events
        .iter()
        .filter_map(|event| match &event.body {
            EventBody::Workspace { change, .. } => Some(*change),
            _ => None,
        })
        .collect();
    assert_eq!(changes, [WorkspaceChange::Converted]);
    let report = lab.open().restore(before.id.as_str(), &RestoreOptions::default());
    assert!(report.is_ok(), "{report:?}");
}

/// By whom it would be mounted is written down before that, and what would lie behind, also where nothing is mounted in the end.
#[test]
fn a_conversion_that_was_killed_is_none() {
    let lab = Lab::new();
    let inner = lab.path().join("inner");
    write(&inner.join(".git/HEAD"), "ref: refs/heads/main\n");
    write(&inner.join("f"), "x");
    lab.write("a", "1");
    *lab.fake.probe.lock().unwrap() = Some(convertible());
    let open = || lab.engine().workspace(&inner, Access::Create).unwrap();
    let record = lab.settings.home.join("workspaces").join(open().id().as_str()).join("workspace.json");
    lab.fake.converts_die.store(true, Ordering::Relaxed);
    let workspace = open();
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| workspace.convert())).unwrap_err();
    lab.fake.converts_die.store(false, Ordering::Relaxed);
    drop(workspace);
    let written: serde_json::Value = serde_json::from_str(&fs::read_to_string(&record).unwrap()).unwrap();
    assert!(
        written["mounted_by"].is_string() && written["ino"].is_u64() && written["lies_behind"]["ino"] == written["ino"],
        "{written}"
    );
    // What is around it goes on having it.
    let taken = lab.open().snapshot(&SnapshotOptions::default()).unwrap();
    assert_eq!(lab.open().versions(&RelPath::new("inner/f").unwrap()).unwrap().len(), 1, "{taken:?}");
    lab.fake.converts_fail.store(true, Ordering::Relaxed);
    let own = lab.settings.home.join("workspaces").join(lab.open().id().as_str()).join("workspace.json");
    lab.open().convert().unwrap_err();
    let written = fs::read_to_string(own).unwrap();
    assert!(!written.contains("mounted_by") && !written.contains("lies_behind"), "{written}");
    lab.fake.converts_fail.store(false, Ordering::Relaxed);
    assert!(lab.open().convert().unwrap().changed);
}

#[test]
fn a_conversion_is_offered_as_it_is_typed_and_needs_no_helper_that_serves() {
    let (direct, helped) = (Fake::new("fs", Some(400)), Fake::new("fs_ahd", Some(399)));
    let lab = Lab::with(vec![helped.clone(), direct.clone()], direct.clone());
    lab.step("a", "1");
    let cannot = Probe {
        usable: false,
        reason: "it is somebody else's".into(),
        remedy: Some("set up the helper".into()),
        modes: [].into(),
        can_delete: true,
        convertible: Some("snapshots hold too much".into()),
    };
    *direct.probe.lock().unwrap() = Some(cannot.clone());
    assert_eq!(lab.open().convert().unwrap().notes, ["copied", "snapshots here go by fs_ahd"]);
    *helped.probe.lock().unwrap() = Some(Probe { convertible: None, remedy: None, ..cannot });
    let hint = lab.open().snapshot(&SnapshotOptions::default()).unwrap_err().hint.unwrap();
    let typed = format!("cd / && ah -C {} agent fs convert; or set up the helper", lab.path().display());
    assert_eq!(hint, typed);
}

#[test]
fn a_copy_knows_its_original_under_another_name_as_well() {
    let mut lab = Lab::new();
    lab.step("a", "1");
    let (original, moved, copy) = (lab.settings.home.clone(), lab.top.join("large"), lab.top.join("copy"));
    assert!(std::process::Command::new("cp").arg("-a").args([&original, &copy]).status().unwrap().success());
    let refused = |lab: &mut Lab| {
        lab.settings.home.clone_from(&copy);
        let error = lab.open().gc(&GcOptions::default()).unwrap_err();
        assert!(error.kind == ErrorKind::FailedPrecondition && error.message.contains("a copy of"), "{error}");
    };
    refused(&mut lab);
    fs::rename(&original, &moved).unwrap();
    symlink(&moved, &original).unwrap();
    lab.settings.home.clone_from(&original);
    lab.open().snapshots(&SnapshotFilter::default()).unwrap();
    let told = fs::read_to_string(moved.join("home.json")).unwrap();
    assert!(told.contains(&format!("\"path\":\"{}\"", moved.display())), "{told}");
    refused(&mut lab);
}
