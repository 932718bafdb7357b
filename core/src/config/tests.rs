use super::{ConfigLayer, project_file};
use crate::engine::Engine;
use crate::providers::{ProviderSet, ProviderSource};
use crate::settings::Settings;
use ah_plugin_api::ErrorKind;
use serde_json::json;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

struct Fixture {
    _dir: tempfile::TempDir,
    settings: Settings,
    project: PathBuf,
}

fn fixture() -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let project = dir.path().canonicalize().unwrap().join("project");
    std::fs::create_dir_all(project.join(".ah")).unwrap();
    let mut settings = Settings::new(dir.path().join("home"), ProviderSource::Given(ProviderSet::default()));
    settings.system_config = Some(dir.path().join("system.json"));
    Fixture { settings, project, _dir: dir }
}

impl Fixture {
    fn engine(&self) -> Engine {
        Engine::open(self.settings.clone()).unwrap()
    }
}

#[test]
fn the_later_layer_wins() {
    let mut f = fixture();
    let get = |f: &Fixture| {
        let entry = f.engine().config_get(Some(&f.project), "capture.max-entries").unwrap();
        (entry.value, entry.layer)
    };
    assert_eq!(get(&f), (json!(1_000_000), ConfigLayer::Default));
    std::fs::write(f.settings.system_config.as_ref().unwrap(), r#"{"capture.max-entries": 1}"#).unwrap();
    assert_eq!(get(&f), (json!(1), ConfigLayer::System));
    f.engine().config_set(None, ConfigLayer::User, "capture.max-entries", Some("2")).unwrap();
    assert_eq!(get(&f), (json!(2), ConfigLayer::User));
    f.engine().config_set(Some(&f.project), ConfigLayer::Project, "capture.max-entries", Some("3")).unwrap();
    assert_eq!(get(&f), (json!(3), ConfigLayer::Project));
    f.settings.environment.insert("capture.max-entries".into(), json!(4));
    assert_eq!(get(&f), (json!(4), ConfigLayer::Environment));
    f.settings.flags.insert("capture.max-entries".into(), json!(5));
    assert_eq!(get(&f), (json!(5), ConfigLayer::Flags));
    f.settings.flags.clear();
    f.settings.environment.clear();
    f.engine().config_set(Some(&f.project), ConfigLayer::Project, "capture.max-entries", None).unwrap();
    assert_eq!(get(&f), (json!(2), ConfigLayer::User));
}

#[test]
fn a_project_cannot_choose_what_is_loaded_unless_trusted_as_it_is() {
    let f = fixture();
    let file = project_file(&f.project);
    std::fs::write(&file, r#"{"provider": "evil", "provider-path": ["/tmp"], "capture": {"exclude": ["x"]}}"#).unwrap();
    let engine = f.engine();
    let provider = |engine: &Engine| engine.config_get(Some(&f.project), "provider").unwrap().value;
    assert_eq!(provider(&engine), json!(null));
    assert_eq!(engine.config_get(Some(&f.project), "capture.exclude").unwrap().value, json!(["x"]));
    let notices = engine.take_notices();
    assert_eq!(notices.len(), 2, "{notices:?}");
    let report = engine.config_trust(&f.project, false).unwrap();
    assert_eq!(report.restricted, ["provider", "provider-path"]);
    assert_eq!(provider(&engine), json!("evil"));
    std::fs::write(&file, r#"{"provider": "worse"}"#).unwrap();
    assert_eq!(provider(&engine), json!(null));
    std::fs::write(&file, r#"{"provider": "evil", "provider-path": ["/tmp"], "capture": {"exclude": ["x"]}}"#).unwrap();
    assert_eq!(provider(&engine), json!("evil"));
    engine.config_trust(&f.project, true).unwrap();
    assert_eq!(provider(&engine), json!(null));
}

#[test]
fn odd_project_files_are_passed_over_with_a_notice() {
    let f = fixture();
    let file = project_file(&f.project);
    let engine = f.engine();
    nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).unwrap();
    engine.config_list(Some(&f.project)).unwrap();
    assert_eq!(engine.take_notices().len(), 1);
    std::fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", &file).unwrap();
    engine.config_list(Some(&f.project)).unwrap();
    assert_eq!(engine.take_notices().len(), 1);
    assert!(engine.config_set(Some(&f.project), ConfigLayer::Project, "labels", Some("{}")).is_err());
    std::fs::remove_file(&file).unwrap();
    std::fs::write(&file, "{\"a\": ").unwrap();
    engine.config_list(Some(&f.project)).unwrap();
    assert_eq!(engine.take_notices().len(), 1);
    std::fs::write(&file, "{\"nonsense\": 1, \"mode\": 7, \"labels\": {\"a\": 3}}").unwrap();
    engine.config_list(Some(&f.project)).unwrap();
    assert_eq!(engine.take_notices().len(), 3);
    // However much a cloned repository has in its file.
    let unknown: Vec<String> = (0..20_000).map(|n| format!("\"k{n}\": 1")).collect();
    std::fs::write(&file, format!("{{{}, \"labels\": {{\"a\": \"{}\"}}}}", unknown.join(", "), "x".repeat(5000)))
        .unwrap();
    let labels = engine.config_list(Some(&f.project)).unwrap();
    let notices = engine.take_notices();
    assert!(notices.len() == 2 && notices.iter().all(|notice| notice.message.len() < 1000), "{notices:?}");
    assert!(!format!("{labels:?}").contains("xxx"));
}

#[test]
fn wrong_keys_and_values_are_refused() {
    let f = fixture();
    let engine = f.engine();
    for (layer, key, value) in [
        (ConfigLayer::User, "nonsense", "1"),
        (ConfigLayer::User, "mode", "fast"),
        (ConfigLayer::Environment, "mode", "auto"),
        (ConfigLayer::User, "prune.max-size", "5"),
        (ConfigLayer::User, "capture.max-file-size", "1000000"),
        (ConfigLayer::User, "prune.recordings", "max-size=5"),
    ] {
        let error = engine.config_set(None, layer, key, Some(value)).unwrap_err();
        assert_eq!(error.kind, ErrorKind::InvalidArgument, "{key}");
    }
    for size in ["0", "5B", "5G", "5%"] {
        engine.config_set(None, ConfigLayer::User, "prune.max-size", Some(size)).unwrap();
    }
    std::fs::write(f.settings.home.join("config.json"), "{").unwrap();
    assert_eq!(engine.config_list(None).unwrap_err().kind, ErrorKind::InvalidArgument);
}

#[test]
fn the_systems_file_is_written_for_all_to_read() {
    let mut f = fixture();
    let file = f.settings.home.with_file_name("etc").join("ah/system.json");
    f.settings.system_config = Some(file.clone());
    f.engine().config_set(None, ConfigLayer::System, "capture.max-entries", Some("7")).unwrap();
    let entry = f.engine().config_get(None, "capture.max-entries").unwrap();
    assert_eq!((entry.value, entry.layer, entry.file.as_ref()), (json!(7), ConfigLayer::System, Some(&file)));
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode(&file), mode(file.parent().unwrap())), (0o644, 0o755));
    // As the administrator has it, it stays.
    std::fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
    f.engine().config_set(None, ConfigLayer::System, "capture.max-entries", None).unwrap();
    assert_eq!(f.engine().config_get(None, "capture.max-entries").unwrap().layer, ConfigLayer::Default);
    assert_eq!(mode(&file), 0o640);
    // There need not be one.
    f.settings.system_config = None;
    let error = f.engine().config_set(None, ConfigLayer::System, "capture.max-entries", Some("7")).unwrap_err();
    assert_eq!(error.kind, ErrorKind::InvalidArgument);
}

#[test]
fn several_at_once_lose_nothing() {
    let f = fixture();
    let engine = f.engine();
    let keys = ["capture.max-entries", "capture.max-file-size", "capture.max-ignored-size", "branch.carry-limit"];
    for layer in [ConfigLayer::User, ConfigLayer::Project] {
        for round in 1..20u64 {
            std::thread::scope(|scope| {
                for key in keys {
                    let unit = if key == "capture.max-entries" { "" } else { "K" };
                    let value = format!("{round}{unit}");
                    let (engine, project) = (&engine, &f.project);
                    let set = move || engine.config_set(Some(project), layer, key, Some(&value)).unwrap();
                    scope.spawn(set);
                }
            });
            for key in keys {
                let entry = engine.config_get(Some(&f.project), key).unwrap();
                let value = if key == "capture.max-entries" { json!(round) } else { json!(format!("{round}K")) };
                assert_eq!((entry.value, entry.layer), (value, layer), "{key}");
            }
        }
    }
    let names: Vec<_> = std::fs::read_dir(f.project.join(".ah")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["config.json"]);
}

#[test]
fn a_relative_folder_of_plugins_counts_nowhere() {
    let f = fixture();
    let error = f.engine().config_set(None, ConfigLayer::User, "provider-path", Some("lib")).unwrap_err();
    assert_eq!(error.kind, ErrorKind::InvalidArgument);
    std::fs::write(f.settings.home.join("config.json"), r#"{"provider-path": ["lib"]}"#).unwrap();
    let engine = f.engine();
    assert_eq!(engine.config_get(None, "provider-path").unwrap().layer, ConfigLayer::Default);
    assert_eq!(engine.take_notices().len(), 1);
}

#[test]
fn what_a_person_sets_in_a_projects_file_is_trusted_but_not_what_others_wrote() {
    let f = fixture();
    let engine = f.engine();
    let file = project_file(&f.project);
    let set = |key, value| engine.config_set(Some(&f.project), ConfigLayer::Project, key, value).unwrap();
    let provider = || engine.config_get(Some(&f.project), "provider").unwrap().value;
    // Nobody else wrote anything in it.
    assert!(set("capture.include", Some("[\"keep/\"]")));
    assert!(set("provider", Some("mine")));
    assert_eq!(provider(), json!("mine"));
    assert!(!engine.config(Some(&f.project)).unwrap().is_a_strangers());
    assert!(engine.take_notices().is_empty());
    // Somebody else did: what is set beside that is not trusted, nor is that.
    std::fs::write(&file, r#"{"provider": "evil", "capture": {"exclude": ["x"]}}"#).unwrap();
    assert!(!set("capture.include", Some("[\"keep/\"]")));
    assert_eq!(provider(), json!(null));
    assert!(!set("provider", Some("mine")));
    assert_eq!(provider(), json!(null));
    // Until a person has looked at it.
    engine.config_trust(&f.project, false).unwrap();
    assert!(set("provider", Some("other")));
    assert_eq!(provider(), json!("other"));
}

#[test]
fn a_projects_file_that_sets_nothing_any_more_is_removed() {
    let f = fixture();
    let engine = f.engine();
    let file = project_file(&f.project);
    let unset = |key| engine.config_set(Some(&f.project), ConfigLayer::Project, key, None).unwrap();
    for beside in [false, true] {
        engine.config_set(Some(&f.project), ConfigLayer::Project, "labels", Some("{\"a\": \"b\"}")).unwrap();
        engine.config_set(Some(&f.project), ConfigLayer::Project, "capture.include", Some("[\"x\"]")).unwrap();
        if beside {
            std::fs::write(f.project.join(".ah/other"), "").unwrap();
        }
        unset("labels");
        assert!(file.exists());
        unset("capture.include");
        assert_eq!((file.exists(), f.project.join(".ah").exists()), (false, beside));
    }
    // A file that is made anew by somebody else is not the one that was trusted.
    std::fs::write(&file, "{\"capture\": {\"include\": [\"x\"]}}\n").unwrap();
    assert!(engine.config(Some(&f.project)).unwrap().is_a_strangers());
}

#[test]
fn where_the_home_directory_is_the_workspace_the_users_file_is_no_projects() {
    for by_link in [false, true] {
        let mut f = fixture();
        let file = project_file(&f.project);
        f.settings.home = f.project.join(".ah");
        if by_link {
            std::fs::rename(f.project.join(".ah"), f.project.join("elsewhere")).unwrap();
            std::os::unix::fs::symlink("elsewhere", f.project.join(".ah")).unwrap();
        }
        let engine = f.engine();
        let refused = |engine: &Engine| {
            let set = |value| engine.config_set(Some(&f.project), ConfigLayer::Project, "labels", value);
            let trusted = engine.config_trust(&f.project, false).map(|_| true);
            [set(Some("{\"a\": \"b\"}")), set(None), trusted].map(|done| done.unwrap_err().kind)
        };
        // Whether the user has a file yet, or not.
        assert_eq!(refused(&engine), [ErrorKind::InvalidArgument; 3]);
        assert!(!file.exists());
        engine.config_set(Some(&f.project), ConfigLayer::User, "prune.max-size", Some("5G")).unwrap();
        let entry = engine.config_get(Some(&f.project), "prune.max-size").unwrap();
        assert_eq!((entry.value, entry.layer), (json!("5G"), ConfigLayer::User));
        let notices = engine.take_notices();
        assert!(notices.is_empty(), "{notices:?}");
        assert_eq!(refused(&engine), [ErrorKind::InvalidArgument; 3]);
        let kept = std::fs::read_to_string(&file).unwrap();
        assert!(kept.contains("5G") && !f.settings.home.join("trust.json").exists(), "{kept}");
        // A project below has one of its own.
        let below = f.project.join("below");
        std::fs::create_dir_all(below.join(".git")).unwrap();
        engine.config_set(Some(&below), ConfigLayer::Project, "labels", Some("{\"a\": \"b\"}")).unwrap();
        assert_eq!(engine.config_get(Some(&below), "labels").unwrap().layer, ConfigLayer::Project);
    }
    // Also where it is the file alone that is the same.
    let f = fixture();
    f.engine().config_set(None, ConfigLayer::User, "prune.max-size", Some("5G")).unwrap();
    std::fs::hard_link(f.settings.home.join("config.json"), project_file(&f.project)).unwrap();
    let engine = f.engine();
    assert_eq!(engine.config_get(Some(&f.project), "prune.max-size").unwrap().layer, ConfigLayer::User);
    assert!(engine.take_notices().is_empty());
    assert_eq!(engine.config_trust(&f.project, false).unwrap_err().kind, ErrorKind::InvalidArgument);
}

#[test]
fn a_size_without_a_unit_may_have_been_a_share() {
    let engine = fixture().engine();
    let hint = |key, value| engine.config_set(None, ConfigLayer::User, key, Some(value)).unwrap_err().hint.unwrap();
    assert!(hint("prune.min-free", "5").contains("5%"));
    assert!(!hint("prune.min-free", "101").contains('%'));
    assert!(!hint("capture.max-file-size", "5").contains('%'));
}

#[test]
fn each_folder_that_is_made_for_the_systems_file_is_for_all_to_enter() {
    let f = fixture();
    let etc = f.settings.home.with_file_name("etc");
    let mut settings = f.settings.clone();
    settings.system_config = Some(etc.join("sub/ah/system.json"));
    // The umask, too, is of this thread alone.
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_FS).unwrap();
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let engine = Engine::open(settings).unwrap();
    engine.config_set(None, ConfigLayer::System, "capture.max-entries", Some("7")).unwrap();
    let mode = |path: PathBuf| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    let modes = ["", "sub", "sub/ah", "sub/ah/system.json"].map(|path| mode(etc.join(path)));
    assert_eq!(modes, [0o755, 0o755, 0o755, 0o644]);
}

#[test]
fn a_system_file_that_may_not_be_read_is_passed_over_with_a_notice() {
    use rustix::thread::CapabilitySet;
    let f = fixture();
    let file = f.settings.system_config.clone().unwrap();
    std::fs::write(&file, r#"{"capture.max-entries": 1}"#).unwrap();
    std::fs::set_permissions(&file, Permissions::from_mode(0o000)).unwrap();
    // Root, too: of this thread alone.
    let mut rights = rustix::thread::capabilities(None).unwrap();
    rights.effective.remove(CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH);
    rustix::thread::set_capabilities(None, rights).unwrap();
    let engine = f.engine();
    let entry = engine.config_get(None, "capture.max-entries").unwrap();
    assert_eq!(entry.layer, ConfigLayer::Default);
    let notices = engine.take_notices();
    assert!(notices.len() == 1 && notices[0].message.contains(file.to_str().unwrap()), "{notices:?}");
    // The user's own is theirs to correct.
    let own = f.settings.home.join("config.json");
    std::fs::write(&own, "{}").unwrap();
    std::fs::set_permissions(&own, Permissions::from_mode(0o000)).unwrap();
    let error = f.engine().config_get(None, "capture.max-entries").unwrap_err();
    assert_eq!(error.kind, ErrorKind::PermissionDenied);
}
