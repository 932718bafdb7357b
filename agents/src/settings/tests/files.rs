//! What becomes of the file itself: symlinks, owners, attributes, and what is kept of it.

use std::os::unix::fs::{MetadataExt as _, chown, lchown, symlink};

use rustix::fs::{XattrFlags, getxattr, setxattr};

use super::*;

#[test]
fn a_symlinked_file_is_followed() {
    let place = place();
    let file = place.write(Agent::Claude, "{}");
    let real = place.dir.path().join("dotfiles.json");
    std::fs::rename(&file, &real).unwrap();
    symlink(&real, &file).unwrap();
    let target = place.target(Agent::Claude, Scope::User);
    install(&target).unwrap();
    assert!(std::fs::symlink_metadata(&file).unwrap().is_symlink());
    assert_eq!(events(&std::fs::read_to_string(&real).unwrap()).len(), 8);
    uninstall(&target).unwrap();
    assert_eq!(std::fs::read_to_string(&real).unwrap(), "{}");
}

#[test]
fn through_a_dangling_symlink_a_file_is_made_if_its_folder_is_there() {
    for agent in Agent::ALL {
        let place = place();
        let target = place.target(agent, Scope::User);
        let file = place.file(agent, Scope::User);
        let dotfiles = place.dir.path().join("dotfiles");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        symlink(dotfiles.join("link"), &file).unwrap();
        for error in [install(&target).unwrap_err(), status(&target).unwrap().problem.unwrap()] {
            assert!(error.kind == ErrorKind::FailedPrecondition && error.hint.is_some(), "{error}");
        }
        std::fs::create_dir(&dotfiles).unwrap();
        symlink("settings", dotfiles.join("link")).unwrap();
        assert_eq!(status(&target).unwrap().installed, Installed::No);
        for _ in 0..2 {
            assert!(install(&target).unwrap().changed);
            assert!(file.is_symlink() && dotfiles.join("settings").is_file());
            let back = uninstall(&target).unwrap();
            assert!(back.restored && file.is_symlink() && !file.exists(), "{agent}: as it was");
        }
        symlink("link", dotfiles.join("settings")).unwrap();
        assert_eq!(install(&target).unwrap_err().kind, ErrorKind::FailedPrecondition, "round and round");
    }
}

#[test]
fn a_file_that_was_moved_behind_a_symlink_since_stays_there() {
    for agent in [Agent::Claude, Agent::Codex, Agent::Gemini] {
        let place = place();
        let target = place.target(agent, Scope::User);
        let file = install(&target).unwrap().file;
        let real = place.dir.path().join("dotfiles.json");
        std::fs::rename(&file, &real).unwrap();
        symlink(&real, &file).unwrap();
        for _ in 0..2 {
            let back = uninstall(&target).unwrap();
            assert!(back.changed && file.is_symlink());
            assert_eq!(std::fs::read_to_string(&real).unwrap().trim(), "{}");
            assert!(install(&target).unwrap().changed);
        }
    }
}

#[test]
fn no_file_is_made_where_another_users_symlink_leads() {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("AH_TEST_REQUIRE_ALL").is_none(), "skipped: needs root");
        return;
    }
    let place = place();
    let file = place.file(Agent::Claude, Scope::User);
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    symlink(place.dir.path().join("nologin"), &file).unwrap();
    lchown(&file, Some(1234), None).unwrap();
    assert_eq!(install(&place.target(Agent::Claude, Scope::User)).unwrap_err().kind, ErrorKind::FailedPrecondition);
    assert!(!place.dir.path().join("nologin").exists());
}

#[test]
fn a_file_that_is_replaced_keeps_its_attributes_and_access_list() {
    // Version 2; its entries: the owner, user 1234, the group, the mask, others.
    let list = |named: u16| {
        let entries: [(u16, u16, u32); 5] = [(1, 6, !0), (2, named, 1234), (4, 0, !0), (0x10, 4, !0), (0x20, 0, !0)];
        let entries = entries
            .iter()
            .flat_map(|(tag, may, id)| [&tag.to_le_bytes()[..], &may.to_le_bytes(), &id.to_le_bytes()].concat());
        [2u32.to_le_bytes().to_vec(), entries.collect()].concat()
    };
    let get = |path: &Path, name: &str| {
        let mut value = vec![0; 1 << 10];
        getxattr(path, name, value.as_mut_slice()).ok().map(|length| value[..length].to_vec())
    };
    const LIST: &str = "system.posix_acl_access";
    let place = place();
    let file = place.write(Agent::Claude, THEIRS);
    let (folder, target) = (file.parent().unwrap(), place.target(Agent::Claude, Scope::User));
    if setxattr(&file, LIST, &list(4), XattrFlags::empty()).is_err() {
        assert!(std::env::var_os("AH_TEST_REQUIRE_ALL").is_none(), "skipped: the filesystem keeps no access lists");
        return;
    }
    setxattr(&file, "user.note", b"mine", XattrFlags::empty()).unwrap();
    setxattr(folder, "system.posix_acl_default", &list(6), XattrFlags::empty()).unwrap();
    let keeps = |kept: &Option<Vec<u8>>| {
        assert_eq!((&get(&file, LIST), get(&file, "user.note").as_deref()), (kept, Some(&b"mine"[..])));
    };
    for kept in [Some(list(4)), None] {
        if kept.is_none() {
            rustix::fs::removexattr(&file, LIST).unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o440)).unwrap();
        }
        let mode = std::fs::metadata(&file).unwrap().permissions();
        install(&target).unwrap();
        keeps(&kept);
        uninstall(&target).unwrap();
        keeps(&kept);
        assert_eq!(std::fs::metadata(&file).unwrap().permissions(), mode);
    }
}

#[test]
fn what_root_makes_in_a_users_folder_is_that_users() {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("AH_TEST_REQUIRE_ALL").is_none(), "skipped: needs root");
        return;
    }
    for agent in Agent::ALL {
        let place = place();
        std::fs::create_dir(&place.home.user).unwrap();
        for dir in [place.dir.path(), &place.home.user] {
            chown(dir, Some(1234), Some(4321)).unwrap();
        }
        let target = place.target(agent, Scope::User);
        let file = install(&target).unwrap().file;
        for made in file.ancestors().take_while(|path| *path != place.home.user) {
            let meta = std::fs::metadata(made).unwrap();
            assert_eq!((meta.uid(), meta.gid()), (1234, 4321), "{}", made.display());
        }
        assert!(uninstall(&target).unwrap().restored && !file.exists());
    }
    // One that is there stays whose it is.
    let place = place();
    let file = place.write(Agent::Claude, "{}");
    chown(&file, Some(1234), Some(4321)).unwrap();
    install(&place.target(Agent::Claude, Scope::User)).unwrap();
    let meta = std::fs::metadata(&file).unwrap();
    assert_eq!((meta.uid(), meta.gid()), (1234, 4321));
}

#[test]
fn no_symlink_of_a_project_is_followed() {
    let place = place();
    let elsewhere = place.dir.path().join("elsewhere");
    std::fs::create_dir_all(&elsewhere).unwrap();
    std::fs::create_dir_all(&place.project).unwrap();
    let target = place.target(Agent::Claude, Scope::Project);
    let folder = place.project.join(".claude");
    let refused = || {
        for error in
            [install(&target).unwrap_err(), uninstall(&target).unwrap_err(), status(&target).unwrap().problem.unwrap()]
        {
            assert!(error.kind == ErrorKind::FailedPrecondition && error.hint.is_some(), "{error}");
        }
    };
    symlink(&elsewhere, &folder).unwrap();
    refused();
    std::fs::remove_file(&folder).unwrap();
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(elsewhere.join("victim.json"), "{}").unwrap();
    symlink(elsewhere.join("victim.json"), folder.join("settings.local.json")).unwrap();
    refused();
    assert_eq!(std::fs::read_to_string(elsewhere.join("victim.json")).unwrap(), "{}");
    assert_eq!(std::fs::read_dir(&elsewhere).unwrap().count(), 1);
    std::fs::remove_file(folder.join("settings.local.json")).unwrap();
    assert!(install(&target).unwrap().changed);
}

#[test]
fn what_is_no_file_is_refused_at_once_with_a_hint() {
    let place = place();
    let file = place.write(Agent::Claude, "");
    let target = place.target(Agent::Claude, Scope::User);
    let fifo =
        |at: &Path| rustix::fs::mknodat(rustix::fs::CWD, at, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let socket = |at: &Path| drop(std::os::unix::net::UnixListener::bind(at).unwrap());
    let folder = |at: &Path| std::fs::create_dir(at).unwrap();
    let device = |at: &Path| symlink("/dev/zero", at).unwrap();
    let large = |at: &Path| std::fs::File::create(at).unwrap().set_len(1 << 30).unwrap();
    let makers: [&dyn Fn(&Path); 5] = [&fifo, &socket, &device, &large, &folder];
    for make in makers {
        std::fs::remove_file(&file).unwrap();
        make(&file);
        for error in
            [install(&target).unwrap_err(), uninstall(&target).unwrap_err(), status(&target).unwrap().problem.unwrap()]
        {
            assert!(error.kind == ErrorKind::FailedPrecondition && error.hint.is_some(), "{error}");
        }
        assert!(!place.backups.exists());
    }
}

#[test]
fn what_somebody_added_to_our_plugin_is_kept() {
    let place = place();
    let target = place.target(Agent::Opencode, Scope::User);
    let added = format!("{}export const Mine = 1\n", plugin::text(target.ah).unwrap());
    let file = install(&target).unwrap().file;
    for change in [install, uninstall] {
        std::fs::write(&file, &added).unwrap();
        let change = change(&target).unwrap();
        assert_eq!((change.changed, std::fs::read_to_string(change.aside.unwrap()).unwrap()), (true, added.clone()));
    }
    // One that is ours alone is no loss, whether or not it is written down that it is.
    for unknown in [false, true] {
        install(&target).unwrap();
        if unknown {
            std::fs::remove_dir_all(&place.backups).unwrap();
        }
        assert_eq!(install(&Target { ah: Path::new("/bin/sh"), ..target }).unwrap().aside, None);
        assert_eq!(uninstall(&target).unwrap().aside, None);
    }
}

#[test]
fn what_was_before_other_hooks_is_not_told_of_these() {
    let place = place();
    let target = place.target(Agent::Claude, Scope::User);
    let edit = |file: &Path| {
        let text = std::fs::read_to_string(file).unwrap();
        std::fs::write(file, format!("{text}\n")).unwrap();
    };
    let file = place.write(Agent::Claude, "{\"hooks\": {\"Stop\": []}}");
    install(&target).unwrap();
    edit(&file);
    assert!(uninstall(&target).unwrap().backup.is_some());
    std::fs::remove_file(&file).unwrap();
    let change = install(&target).unwrap();
    assert!(change.backup.is_none() && change.aside.is_some());
    edit(&file);
    let change = uninstall(&target).unwrap();
    assert_eq!((change.changed, change.backup), (true, None));
    assert_eq!(std::fs::read_to_string(&file).unwrap().trim(), "{}");
}

#[test]
fn what_settings_were_is_kept_when_they_are_lost() {
    let lose: [&dyn Fn(&Path); 3] =
        [&|file| std::fs::remove_file(file).unwrap(), &|file| std::fs::write(file, "").unwrap(), &|file| {
            std::fs::write(file, "{\"theme\": \"dark\"}").unwrap();
        }];
    for lose in lose {
        for taken_out_first in [false, true] {
            let place = place();
            let target = place.target(Agent::Claude, Scope::User);
            let file = place.write(Agent::Claude, THEIRS);
            install(&target).unwrap();
            lose(&file);
            if taken_out_first {
                for _ in 0..2 {
                    let change = uninstall(&target).unwrap();
                    assert!(!change.changed && change.lost);
                    assert_eq!(std::fs::read_to_string(change.backup.unwrap()).unwrap(), THEIRS);
                }
            }
            let kept = install(&target).unwrap().aside.unwrap();
            for _ in 0..2 {
                assert!(uninstall(&target).unwrap().restored);
                assert_eq!(std::fs::read_to_string(&kept).unwrap(), THEIRS);
                assert!(install(&target).unwrap().aside.is_none());
            }
        }
    }
}

#[test]
fn settings_that_say_all_that_they_said_are_not_lost() {
    let place = place();
    let target = place.target(Agent::Claude, Scope::User);
    let file = place.write(Agent::Claude, THEIRS);
    install(&target).unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replacen("\"model\"", "\"theme\": \"dark\", \"model\"", 1)).unwrap();
    for changed in [true, false] {
        let change = uninstall(&target).unwrap();
        assert_eq!((change.changed, change.lost, change.backup.is_some()), (changed, false, true));
    }
}

#[test]
fn what_still_stands_in_settings_is_not_kept_beside() {
    for agent in [Agent::Claude, Agent::Codex, Agent::Gemini] {
        let place = place();
        let target = place.target(agent, Scope::User);
        let note = if agent == Agent::Gemini { "// mine\n" } else { "" };
        let file = place.write(agent, &format!("{note}{}", THEIRS.replace("WorktreeCreate", "Stop")));
        install(&target).unwrap();
        let edits = [
            ("\"model\"", "\"theme\": \"dark\", \"more\": [{}], \"model\"", false),
            ("[{}]", "[1, {\"a\": {}}, 2]", false),
            ("\"Bash(ls:*)\"", "\"Bash(id)\", \"Bash(ls:*)\"", false),
            ("\"opus\"", "\"sonnet\"", true),
            ("\"a\": {}", "", true),
            ("\"Bash(id)\", ", "", true),
            // Of such an escape it cannot be told.
            ("\"dark\"", "\"dark\", \"half\": \"\\ud800\"", true),
            (note, "", !note.is_empty()),
        ];
        for (at, (from, to, is_lost)) in edits.into_iter().enumerate() {
            let text = std::fs::read_to_string(&file).unwrap();
            assert!(text.contains(from), "{text}");
            std::fs::write(&file, text.replacen(from, to, 1)).unwrap();
            let change = install(&Target { ah: Path::new(&format!("/opt/{at}/ah")), ..target }).unwrap();
            let before = std::fs::read_to_string(change.backup.unwrap()).unwrap();
            assert!(before.contains(to) && !before.contains("ah-hook"), "{before}");
            assert_eq!(change.aside.is_some(), is_lost, "{agent}: {from} {to}");
            if let Some(aside) = change.aside {
                assert_eq!(std::fs::read_to_string(aside).unwrap().replacen(from, to, 1), before, "{agent}");
            }
        }
        assert!(uninstall(&target).unwrap().restored);
    }
}

#[test]
fn a_project_whose_path_is_not_text_is_left_as_it_was() {
    use std::os::unix::ffi::OsStrExt as _;
    let place = place();
    // As text both are the same.
    let projects = [&b"caf\xe9"[..], b"caf\xe8"].map(|name| place.dir.path().join(std::ffi::OsStr::from_bytes(name)));
    let targets = projects.each_ref().map(|project| {
        std::fs::create_dir(project).unwrap();
        Target { project: Some(project), ..place.target(Agent::Claude, Scope::Project) }
    });
    for target in &targets {
        assert!(install(target).unwrap().changed);
    }
    for (target, project) in targets.iter().zip(&projects) {
        assert!(uninstall(target).unwrap().restored);
        assert_eq!(std::fs::read_dir(project).unwrap().count(), 0);
    }
    assert_eq!(std::fs::read_dir(&place.backups).unwrap().count(), 0);
}

#[test]
fn of_a_project_that_was_moved_the_settings_come_back_as_well() {
    for before in [None, Some("{\"model\": \"opus\"}")] {
        let place = place();
        let moved = place.dir.path().join("moved");
        let target = place.target(Agent::Claude, Scope::Project);
        let now = Target { project: Some(&moved), ..target };
        std::fs::create_dir(&place.project).unwrap();
        let file = place_of(&target).unwrap();
        if let Some(before) = before {
            std::fs::create_dir(file.parent().unwrap()).unwrap();
            std::fs::write(&file, before).unwrap();
        }
        install(&target).unwrap();
        std::fs::rename(&place.project, &moved).unwrap();
        // One that came with the same settings is another one.
        let copy = place.dir.path().join("copy");
        std::fs::create_dir_all(copy.join(".claude")).unwrap();
        std::fs::copy(place_of(&now).unwrap(), copy.join(".claude/settings.local.json")).unwrap();
        assert!(was_installed(&now) && !was_installed(&Target { project: Some(&copy), ..target }));
        assert!(!install(&now).unwrap().changed && was_installed(&now));
        assert!(uninstall(&now).unwrap().restored && !was_installed(&now) && !was_installed(&target));
        assert_eq!(std::fs::read_to_string(place_of(&now).unwrap()).ok().as_deref(), before);
        assert_eq!(std::fs::read_dir(&moved).unwrap().count(), usize::from(before.is_some()));
        assert_eq!(std::fs::read_dir(&place.backups).unwrap().count(), 0);
    }
}

#[test]
fn a_project_is_not_known_by_the_mount_that_it_is_on() {
    let place = place();
    // Another mount of it has another id.
    let shared = tempfile::tempdir_in("/dev/shm").unwrap();
    let target = Target { project: Some(shared.path()), ..place.target(Agent::Claude, Scope::Project) };
    assert!(backup::known_by(&target).is_none_or(|known| known.starts_with('-')));
}

#[test]
fn what_is_kept_of_a_project_is_not_another_ones_that_took_its_place() {
    const BEFORE: &str = "{\"model\": \"opus\"}";
    for theirs in [None, Some("{\"theme\": \"dark\"}")] {
        for change in [install, uninstall] {
            let place = place();
            let moved = place.dir.path().join("moved");
            let target = place.target(Agent::Claude, Scope::Project);
            let now = Target { project: Some(&moved), ..target };
            let file = place_of(&target).unwrap();
            let put = |text: &str| {
                std::fs::create_dir_all(file.parent().unwrap()).unwrap();
                std::fs::write(&file, text).unwrap();
            };
            put(BEFORE);
            install(&target).unwrap();
            std::fs::rename(&place.project, &moved).unwrap();
            std::fs::create_dir(&place.project).unwrap();
            theirs.inspect(|text| put(text));
            assert!(!was_installed(&target) && was_installed(&now));
            let change = change(&target).unwrap();
            assert_eq!((change.backup.is_some(), change.aside), (change.changed && theirs.is_some(), None));
            assert_eq!((was_installed(&target), was_installed(&now)), (change.changed, true));
            assert!(uninstall(&now).unwrap().restored && !was_installed(&now));
            assert_eq!(std::fs::read_to_string(place_of(&now).unwrap()).unwrap(), BEFORE);
            assert_eq!(uninstall(&target).unwrap().restored, change.changed);
            assert_eq!(std::fs::read_to_string(&file).ok().as_deref(), theirs);
            assert_eq!(std::fs::read_dir(&place.backups).unwrap().count(), 0);
        }
    }
}

#[test]
fn two_projects_that_changed_places_have_their_own_settings_back() {
    let place = place();
    let [one, other, between] = ["project", "other", "between"].map(|name| place.dir.path().join(name));
    let target = place.target(Agent::Claude, Scope::Project);
    let targets = [&one, &other].map(|project| Target { project: Some(project), ..target });
    for (target, before) in targets.iter().zip([None, Some("")]) {
        let file = place_of(target).unwrap();
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        before.inspect(|text| std::fs::write(&file, text).unwrap());
        install(target).unwrap();
    }
    let [in_one, in_other] = targets.each_ref().map(|target| std::fs::read(place_of(target).unwrap()).unwrap());
    assert!(in_one == in_other, "what was written tells them apart");
    for (from, to) in [(&one, &between), (&other, &one), (&between, &other)] {
        std::fs::rename(from, to).unwrap();
    }
    for (target, before) in targets.iter().zip([Some(""), None]) {
        assert!(was_installed(target) && uninstall(target).unwrap().restored);
        assert_eq!(std::fs::read_to_string(place_of(target).unwrap()).ok().as_deref(), before);
    }
    assert_eq!(std::fs::read_dir(&place.backups).unwrap().count(), 0);
}

/// As after a conversion, which puts a folder with the same files in the project's place.
fn put_anew(target: &Target<'_>) {
    let (project, file) = (target.project.unwrap(), place_of(target).unwrap());
    let former = project.with_file_name("former");
    let text = std::fs::read(&file).unwrap();
    std::fs::rename(project, &former).unwrap();
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, text).unwrap();
    std::fs::remove_dir_all(former).unwrap();
}

/// Has the one record that there is name the project's folder otherwise.
fn known_as(place: &Place, otherwise: impl Fn(&str) -> Option<String>) {
    let mut records = std::fs::read_dir(&place.backups).unwrap().map(|entry| entry.unwrap().path());
    let path = records.find(|path| path.extension().is_some_and(|it| it == "json")).unwrap();
    let mut record: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let project = record.as_object_mut().unwrap().remove("project").unwrap();
    otherwise(project.as_str().unwrap()).into_iter().for_each(|project| record["project"] = project.into());
    std::fs::write(&path, record.to_string()).unwrap();
}

#[test]
fn a_project_is_known_by_the_folder_that_it_was_installed_in_last() {
    let place = place();
    let moved = place.dir.path().join("moved");
    let target = place.target(Agent::Claude, Scope::Project);
    let now = Target { project: Some(&moved), ..target };
    let anew = || put_anew(&target);
    // As former versions wrote it down.
    let by_path = || known_as(&place, |_| None);
    let changes: [&dyn Fn(); 2] = [&anew, &by_path];
    for change in changes {
        std::fs::create_dir(&place.project).unwrap();
        install(&target).unwrap();
        change();
        assert!(was_installed(&target) && !install(&target).unwrap().changed);
        std::fs::rename(&place.project, &moved).unwrap();
        assert!(was_installed(&now) && uninstall(&now).unwrap().restored);
        std::fs::remove_dir_all(&moved).unwrap();
        assert_eq!(std::fs::read_dir(&place.backups).unwrap().count(), 0);
    }
}

#[test]
fn what_is_kept_of_a_project_stays_its_own_when_its_settings_were_edited() {
    // Another folder, or the same one known with its filesystem by one version, without it by another.
    let to_other_form = |known: &str| {
        let (id, rest) = known.split_once('-').unwrap();
        Some(format!("{}-{rest}", if id.is_empty() { "1f" } else { "" }))
    };
    for change in [install, uninstall] {
        for (is_anew, is_moved) in [(true, false), (false, true), (false, false)] {
            let place = place();
            let moved = place.dir.path().join("moved");
            let target = place.target(Agent::Claude, Scope::Project);
            let now = Target { project: Some(if is_moved { &moved } else { &place.project }), ..target };
            let file = place_of(&target).unwrap();
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(&file, "{\"model\": \"opus\"}").unwrap();
            install(&target).unwrap();
            let edited = std::fs::read_to_string(&file).unwrap().replace("opus", "sonnet");
            // The same folder's are its own also where no hook is in them any more.
            std::fs::write(&file, if is_anew { edited.as_str() } else { "{}" }).unwrap();
            if is_anew {
                put_anew(&target);
            } else {
                known_as(&place, to_other_form);
            }
            if is_moved {
                std::fs::rename(&place.project, &moved).unwrap();
            }
            assert!(was_installed(&now));
            let change = change(&now).unwrap();
            let kept = change.aside.or(change.backup).unwrap();
            assert_eq!(std::fs::read_to_string(kept).unwrap(), "{\"model\": \"opus\"}");
        }
    }
}
