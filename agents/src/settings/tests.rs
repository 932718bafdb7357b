//! Round trips over settings of all kinds, and what is refused.

use std::os::unix::fs::PermissionsExt as _;

use proptest::prelude::*;
use serde_json::Value;

use super::*;

mod called;
mod files;

struct Place {
    dir: tempfile::TempDir,
    home: Home,
    backups: PathBuf,
    project: PathBuf,
}

fn place() -> Place {
    let dir = tempfile::tempdir().unwrap();
    let path = std::fs::canonicalize(dir.path()).unwrap();
    Place {
        home: Home {
            claude_managed: path.join("etc"),
            codex_managed: path.join("etc-codex"),
            ..Home::plain(path.join("home"), "")
        },
        backups: path.join("backups"),
        project: path.join("project"),
        dir,
    }
}

impl Place {
    fn target(&self, agent: Agent, scope: Scope) -> Target<'_> {
        let (home, project) = (&self.home, Some(self.project.as_path()));
        Target { agent, scope, home, project, backups: &self.backups, ah: Path::new("/opt/ah/bin/ah") }
    }

    fn file(&self, agent: Agent, scope: Scope) -> PathBuf {
        place_of(&self.target(agent, scope)).unwrap()
    }

    fn write(&self, agent: Agent, text: &str) -> PathBuf {
        let file = self.file(agent, Scope::User);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, text).unwrap();
        file
    }
}

fn events(text: &str) -> Vec<String> {
    let value: Value = serde_json::from_str(text).unwrap();
    value["hooks"].as_object().map(|hooks| hooks.keys().cloned().collect()).unwrap_or_default()
}

#[test]
fn where_nothing_was_nothing_is_left() {
    for (agent, scope) in
        Agent::ALL.map(|agent| (agent, Scope::User)).into_iter().chain([(Agent::Claude, Scope::Project)])
    {
        let place = place();
        // Any program that is there.
        let target = Target { ah: Path::new("/bin/sh"), ..place.target(agent, scope) };
        assert_eq!(status(&target).unwrap().installed, Installed::No);
        let change = install(&target).unwrap();
        assert_eq!(
            (change.changed, change.backup.clone(), change.file.clone()),
            (true, None, place.file(agent, scope))
        );
        let text = std::fs::read(&change.file).unwrap();
        assert!(!install(&target).unwrap().changed, "twice is once");
        assert_eq!(std::fs::read(&change.file).unwrap(), text);
        let now = status(&target).unwrap();
        assert_eq!((now.installed, now.others, now.problem), (Installed::Yes, 0, None));
        assert_eq!(now.events.len(), events::of(agent, target.ah).unwrap().len());
        assert_eq!(std::fs::metadata(&change.file).unwrap().permissions().mode() & 0o777, 0o600);
        let back = uninstall(&target).unwrap();
        assert!(back.changed && back.restored && !change.file.exists());
        assert!(!uninstall(&target).unwrap().changed);
        assert_eq!(std::fs::read_dir(&place.backups).unwrap().count(), 0, "{agent}");
        assert!(!change.file.parent().unwrap().exists(), "{agent}: nothing beside it");
    }
}

const THEIRS: &str = r#"{
    "model" : "opus",
    "hooks": {
        "PostToolUse": [
            {"matcher": "Edit", "hooks": [{"type": "command", "command": "prettier --write"}]}
        ],
        "WorktreeCreate": []
    },
    "permissions": {"allow": ["Bash(ls:*)"]}
}
"#;

#[test]
fn hooks_of_others_stay_and_the_file_comes_back_byte_for_byte() {
    let place = place();
    let file = place.write(Agent::Claude, THEIRS);
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
    let target = place.target(Agent::Claude, Scope::User);
    let change = install(&target).unwrap();
    assert_eq!(std::fs::read_to_string(change.backup.unwrap()).unwrap(), THEIRS);
    let text = std::fs::read_to_string(&file).unwrap();
    let value: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        value["hooks"]["PostToolUse"][0]["hooks"][0]["command"], "prettier --write",
        "theirs stays in its place"
    );
    assert_eq!(value["hooks"]["PostToolUse"].as_array().unwrap().len(), 2);
    assert!(value["hooks"]["WorktreeCreate"].as_array().unwrap().is_empty());
    assert!(text.starts_with("{\n    \"model\" : \"opus\",\n"));
    assert_eq!(status(&target).unwrap().others, 1);
    assert!(uninstall(&target).unwrap().restored);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), THEIRS);
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
}

#[test]
fn a_hook_that_only_looks_like_ours_stays() {
    const LIKE: &str = "exec /bin/sh -c 'make lint' /usr/bin/make ah-hook";
    for agent in [Agent::Claude, Agent::Codex] {
        let place = place();
        let like = serde_json::json!({"hooks": {"Stop": [{"hooks": [{"type": "command", "command": LIKE}]}]}});
        let file = place.write(agent, &like.to_string());
        let target = place.target(agent, Scope::User);
        let now = status(&target).unwrap();
        assert_eq!((now.installed, now.others, now.problem), (Installed::No, 1, None));
        assert!(!uninstall(&target).unwrap().changed);
        install(&target).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["hooks"]["Stop"].as_array().unwrap().len(), 2);
        std::fs::write(&file, text + "\n").unwrap();
        uninstall(&target).unwrap();
        let rest: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        assert_eq!(rest, like);
    }
}

#[test]
fn what_changed_meanwhile_stays_and_only_ours_goes() {
    let place = place();
    let file = place.write(Agent::Claude, THEIRS);
    let target = place.target(Agent::Claude, Scope::User);
    install(&target).unwrap();
    let text = std::fs::read_to_string(&file).unwrap().replace("\"opus\"", "\"sonnet\"");
    std::fs::write(&file, text).unwrap();
    let change = uninstall(&target).unwrap();
    assert!(change.changed && !change.restored);
    let rest: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let expected: Value = serde_json::from_str(&THEIRS.replace("opus", "sonnet")).unwrap();
    assert_eq!(rest["hooks"]["PostToolUse"], expected["hooks"]["PostToolUse"]);
    assert_eq!((&rest["model"], &rest["permissions"]), (&expected["model"], &expected["permissions"]));
    assert_eq!(status(&target).unwrap().installed, Installed::No);
}

#[test]
fn another_ah_is_brought_up_to_date_and_the_first_state_still_comes_back() {
    let place = place();
    let file = place.write(Agent::Claude, THEIRS);
    let target = place.target(Agent::Claude, Scope::User);
    install(&Target { ah: Path::new("/old/ah"), ..target }).unwrap();
    assert_eq!(status(&target).unwrap().installed, Installed::Partly);
    assert!(install(&target).unwrap().changed);
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(!text.contains("/old/ah") && status(&target).unwrap().installed == Installed::Yes);
    assert_eq!(text.matches("ah-hook").count(), 8, "no hook is there twice");
    assert!(uninstall(&target).unwrap().restored);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), THEIRS);
}

#[test]
fn folders_that_were_made_go_and_what_was_empty_stays() {
    let place = place();
    let project = place.target(Agent::Claude, Scope::Project);
    std::fs::create_dir(&place.project).unwrap();
    let dir = place.project.join(".claude");
    install(&project).unwrap();
    // By another `ah`, as after an upgrade.
    install(&Target { ah: Path::new("/bin/sh"), ..project }).unwrap();
    assert!(uninstall(&project).unwrap().restored && !dir.exists() && place.project.exists());
    install(&project).unwrap();
    std::fs::write(dir.join("settings.json"), "{}").unwrap();
    uninstall(&project).unwrap();
    assert!(dir.exists(), "somebody put something into it");
    std::fs::remove_file(dir.join("settings.json")).unwrap();
    install(&project).unwrap();
    uninstall(&project).unwrap();
    assert!(dir.exists(), "somebody else's");

    for (theirs, stays) in
        [("{\"hooks\": {}, ", "{}"), ("{\"hooks\": {\"Stop\": []}, ", "{\"Stop\":[]}"), ("{", "null")]
    {
        let file = place.write(Agent::Claude, &format!("{theirs}\"model\": \"opus\"}}"));
        let target = place.target(Agent::Claude, Scope::User);
        install(&target).unwrap();
        let edited = std::fs::read_to_string(&file).unwrap().replace("opus", "sonnet");
        std::fs::write(&file, edited).unwrap();
        uninstall(&target).unwrap();
        let rest: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        assert_eq!((rest["hooks"].to_string().as_str(), &rest["model"]), (stays, &Value::from("sonnet")));
        std::fs::remove_dir_all(&place.backups).unwrap();
    }
}

#[test]
fn who_switches_all_hooks_off_is_named() {
    let place = place();
    let target = Target { ah: Path::new("/bin/sh"), ..place.target(Agent::Claude, Scope::User) };
    let file = place.write(Agent::Claude, "{\"disableAllHooks\": true}");
    install(&target).unwrap();
    let problem = || status(&target).unwrap().problem.map(|problem| problem.message);
    assert!(problem().unwrap().contains(&*file.to_string_lossy()));
    let dir = place.project.join(".claude");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("settings.json"), "{\"disableAllHooks\": false}").unwrap();
    assert_eq!(problem(), None, "the project's comes before the user's");
    std::fs::write(dir.join("settings.local.json"), "{\"disableAllHooks\": true}").unwrap();
    assert!(problem().unwrap().contains("settings.local.json"));
    assert_eq!(status(&Target { agent: Agent::Gemini, ..target }).unwrap().problem, None);
}

#[test]
fn what_the_machines_settings_forbid_is_named() {
    let place = place();
    let target = Target { ah: Path::new("/bin/sh"), ..place.target(Agent::Claude, Scope::User) };
    place.write(Agent::Claude, "{\"disableAllHooks\": true, \"allowManagedHooksOnly\": true}");
    install(&target).unwrap();
    let managed = place.home.claude_managed.join("managed-settings.json");
    let beside = place.home.claude_managed.join("managed-settings.d");
    std::fs::create_dir_all(&beside).unwrap();
    let named = |file: &Path, text: &str| {
        std::fs::write(file, text).unwrap();
        status(&target).unwrap().problem.map(|problem| problem.message)
    };
    assert!(named(&managed, "{}").unwrap().ends_with("settings.json has disableAllHooks"), "the user's");
    assert_eq!(named(&managed, "{\"disableAllHooks\": false}"), None, "the machine's come first");
    for switch in ["disableAllHooks", "allowManagedHooksOnly"] {
        let message = named(&managed, &format!("{{\"{switch}\": true}}")).unwrap();
        assert!(message.contains(&*managed.to_string_lossy()) && message.ends_with(switch), "{message}");
    }
    assert!(named(&beside.join("10.json"), "{}").is_some());
    let both = "{\"disableAllHooks\": false, \"allowManagedHooksOnly\": false}";
    assert_eq!(named(&beside.join("20.json"), both), None, "the last one decides");
    assert!(named(&beside.join("30.json"), "{\"allowManagedHooksOnly\": true}").unwrap().contains("30.json"));
}

#[test]
fn geminis_own_switch_is_looked_at() {
    let place = place();
    let target = Target { ah: Path::new("/bin/sh"), ..place.target(Agent::Gemini, Scope::User) };
    let problem = || status(&target).unwrap().problem.map(|problem| problem.message);
    let file = place.write(Agent::Gemini, "{ /* for now */ \"hooksConfig\": {\"enabled\": false} }");
    install(&target).unwrap();
    assert!(problem().unwrap().contains(&*file.to_string_lossy()));
    let dir = place.project.join(".gemini");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("settings.json"), "{\"hooksConfig\": {\"enabled\": true}}").unwrap();
    assert_eq!(problem(), None, "the project's comes before the user's");
    std::fs::remove_file(dir.join("settings.json")).unwrap();
    for other in
        ["{\"hooksConfig\": {\"enabled\": true}}", "{\"hooksConfig\": {\"disabled\": []}}", "{\"hooksConfig\": false}"]
    {
        place.write(Agent::Gemini, other);
        install(&target).unwrap();
        assert_eq!(problem(), None, "{other}");
    }
}

#[test]
fn what_codexs_configuration_says_of_hooks_is_told() {
    let place = place();
    let target = Target { ah: Path::new("/bin/sh"), ..place.target(Agent::Codex, Scope::User) };
    install(&target).unwrap();
    let config = place.home.codex.join("config.toml");
    let look = |text: &str| {
        std::fs::write(&config, text).unwrap();
        let status = status(&target).unwrap();
        (status.problem.map(|problem| problem.message), status.beside)
    };
    assert_eq!(look("[features]\nhooks = true\n[hooks.state]\n"), (None, None));
    let (problem, beside) = look("[features]\nhooks = false\n");
    assert!(problem.unwrap().contains(&*config.to_string_lossy()) && beside.is_none());
    assert!(look("[features]\ncodex_hooks = false\n").0.unwrap().contains("codex_hooks"), "as it was called before");
    assert_eq!(look("[features]\nhooks = true\ncodex_hooks = false\n").0, None);
    let required = place.home.codex_managed.join("requirements.toml");
    std::fs::create_dir_all(&place.home.codex_managed).unwrap();
    for (text, is_off) in
        [("allow_managed_hooks_only = true\n", true), ("[features]\nhooks = false\n", true), ("a = 1\n", false)]
    {
        std::fs::write(&required, text).unwrap();
        let problem = look("[features]\nhooks = true\n").0;
        assert_eq!(
            problem.map(|problem| problem.contains(&*required.to_string_lossy())),
            is_off.then_some(true),
            "{text}"
        );
    }
    let (problem, beside) = look("[[hooks.Stop]]\nhooks = [{ type = \"command\", command = \"true\" }]\n");
    assert_eq!((problem, beside.as_deref()), (None, Some(&*config)));
}

#[test]
fn escapes_of_half_a_character_stay_as_they_are() {
    const ODD: &str = "{\"a\": \"\\ud800 \\uDC00\\ud800\\ud83d\\ude00\\ue000\", \"hooks\": {\"Stop\": [{\"hooks\": [{\"command\": \"\\udfff\"}]}]}}";
    for agent in [Agent::Claude, Agent::Codex, Agent::Gemini] {
        let place = place();
        let file = place.write(agent, ODD);
        let target = Target { ah: Path::new("/bin/sh"), ..place.target(agent, Scope::User) };
        install(&target).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        let [values, hooks] = [&ODD[..48], &ODD[ODD.len() - 38..ODD.len() - 3]];
        assert!(text.starts_with(values) && text.contains(hooks), "{text}");
        assert_eq!(status(&target).unwrap().installed, Installed::Yes);
        // As if something had changed meanwhile.
        std::fs::remove_dir_all(&place.backups).unwrap();
        assert!(uninstall(&target).unwrap().changed);
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.starts_with(values) && text.contains(hooks), "{text}");
        assert_eq!(status(&target).unwrap().installed, Installed::No);
    }
}

#[test]
fn what_the_agent_could_not_read_is_refused_and_untouched() {
    let deep = "[".repeat(100_000);
    let cases = [
        "{",
        "[]",
        "7",
        "{\"hooks\": []}",
        "{\"hooks\": {\"Stop\": {}}}",
        "// note\n{}",
        "{\"a\": 1,}",
        "{'a': 1}",
        "{\"hooks\": {}, \"a\": 1, \"hooks\": {}}",
        "{\"hooks\": {\"Setup\": [], \"\\u0053etup\": []}}",
        "{\"hooks\": {\"Setup\": [{\"hooks\": [], \"hooks\": [{\"command\": \"theirs\"}]}]}}",
        "{\"hooks\": {\"Setup\": [{\"hooks\": [{\"command\": \"a\", \"command\": \"theirs\"}]}]}}",
        deep.as_str(),
    ];
    for text in cases {
        for agent in [Agent::Claude, Agent::Codex, Agent::Gemini] {
            if agent == Agent::Gemini && (text.starts_with("//") || text.contains("\"Stop\"")) {
                continue;
            }
            let place = place();
            let file = place.write(agent, text);
            let target = place.target(agent, Scope::User);
            let head = &text[..text.len().min(40)];
            let Err(error) = install(&target) else { panic!("{agent} took {head}") };
            assert_eq!(error.kind, ErrorKind::FailedPrecondition, "{agent}: {head}");
            assert!(error.hint.is_some());
            assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
            assert!(!place.backups.exists());
            assert!(!text.contains(": {}, ") || status(&target).unwrap().problem.is_some(), "{agent}: {head}");
        }
    }
    let place = place();
    let file = place.write(Agent::Claude, "");
    std::fs::write(&file, b"{\"a\": \"\xff\"}").unwrap();
    let target = place.target(Agent::Claude, Scope::User);
    assert_eq!(install(&target).unwrap_err().kind, ErrorKind::FailedPrecondition);
    assert!(status(&target).unwrap().problem.is_some());
}

#[test]
fn of_lists_that_are_there_twice_none_is_taken_out() {
    let place = place();
    let target = place.target(Agent::Claude, Scope::User);
    let file = install(&target).unwrap().file;
    let text = std::fs::read_to_string(&file).unwrap();
    let (before, after) = text.split_once("\n        ]").unwrap();
    let twice = format!("{before}\n        ], \"hooks\": [{{\"command\": \"theirs\"}}]{after}");
    std::fs::write(&file, &twice).unwrap();
    assert_eq!(uninstall(&target).unwrap_err().kind, ErrorKind::FailedPrecondition);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), twice);
}

#[test]
fn comments_are_kept_where_the_agent_takes_them() {
    let text = "// mine\n{\n  /* kept */ \"theme\": \"dark\", // and this\n  \"hooks\": {\n    // before tools\n    \"BeforeTool\": []\n  }\n}\n";
    let place = place();
    let file = place.write(Agent::Gemini, text);
    let target = place.target(Agent::Gemini, Scope::User);
    install(&target).unwrap();
    let now = std::fs::read_to_string(&file).unwrap();
    for comment in ["// mine", "/* kept */", "// and this", "// before tools"] {
        assert!(now.contains(comment));
    }
    uninstall(&target).unwrap();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
}

#[test]
fn hooks_whose_ah_is_gone_are_said_to_do_nothing() {
    let place = place();
    for agent in Agent::ALL {
        let target = place.target(agent, Scope::User);
        let ah = place.dir.path().join("ah");
        std::fs::write(&ah, "").unwrap();
        let target = Target { ah: &ah, ..target };
        install(&target).unwrap();
        assert!(status(&target).unwrap().problem.is_none());
        std::fs::remove_file(&ah).unwrap();
        // Asked by another one, which its hooks do not call.
        let status = status(&Target { ah: Path::new("/opt/ah"), ..target }).unwrap();
        let problem = status.problem.unwrap();
        assert!(problem.message.contains(ah.to_str().unwrap()) && problem.hint.is_some(), "{problem}");
        assert_eq!(status.installed, Installed::Partly);
    }
}

#[test]
fn an_ah_is_the_same_by_whatever_path() {
    let place = place();
    let [ah, link] = ["ah", "link"].map(|name| place.dir.path().join(name));
    std::fs::write(&ah, "").unwrap();
    std::os::unix::fs::symlink(&ah, &link).unwrap();
    for agent in Agent::ALL {
        let [target, by_link] = [&ah, &link].map(|ah| Target { ah, ..place.target(agent, Scope::User) });
        install(&target).unwrap();
        let found = status(&by_link).unwrap();
        assert_eq!((found.installed, found.calls), (Installed::Yes, status(&target).unwrap().calls), "{agent}");
        // What is written from now on is what stays when the link leads to a newer one.
        assert!(install(&by_link).unwrap().changed && !install(&by_link).unwrap().changed);
        assert_eq!(status(&target).unwrap().installed, Installed::Yes);
    }
}

#[test]
fn scopes_that_an_agent_has_not_are_said_to_be_so() {
    let place = place();
    for agent in [Agent::Codex, Agent::Gemini, Agent::Opencode] {
        let error = install(&place.target(agent, Scope::Project)).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unsupported);
        assert!(error.hint.unwrap().contains("--user"));
    }
    let target = Target { project: None, ..place.target(Agent::Claude, Scope::Project) };
    assert_eq!(install(&target).unwrap_err().kind, ErrorKind::InvalidArgument);
}

#[test]
fn somebody_elses_plugin_is_left_alone() {
    let place = place();
    let file = place.write(Agent::Opencode, "export const Theirs = async () => ({})\n");
    let target = place.target(Agent::Opencode, Scope::User);
    assert_eq!(install(&target).unwrap_err().kind, ErrorKind::AlreadyExists);
    assert!(!uninstall(&target).unwrap().changed && file.exists());
    assert_eq!(status(&target).unwrap().others, 1);
}

#[test]
fn trust_is_read_from_codexs_configuration() {
    let place = place();
    let target = place.target(Agent::Codex, Scope::User);
    install(&target).unwrap();
    assert_eq!(status(&target).unwrap().trusted, Some(false));
    let config = place.home.codex.join("config.toml");
    // As for one run, but for the file that the hooks are in.
    let file = place.file(Agent::Codex, Scope::User);
    let run = for_one_run(Agent::Codex, target.ah, &[]).unwrap().unwrap();
    let state = run.args.last().unwrap().to_str().unwrap().strip_prefix("hooks.state=").unwrap().to_owned();
    let state = state.replace("/<session-flags>/config.toml", file.to_str().unwrap());
    std::fs::write(&config, format!("model = \"x\"\n[hooks]\nstate = {state}\n")).unwrap();
    assert_eq!(status(&target).unwrap().trusted, Some(true));
    std::fs::write(&config, format!("[hooks]\nstate = {}\n", state.replacen("sha256:", "sha256:0", 1))).unwrap();
    assert_eq!(status(&target).unwrap().trusted, Some(false), "a hook that was trusted in another form");
    std::fs::write(&config, "not toml").unwrap();
    assert_eq!(status(&target).unwrap().trusted, None);
}

#[test]
fn one_run_needs_no_settings() {
    let run = for_one_run(Agent::Claude, Path::new("/opt/ah"), &[]).unwrap().unwrap();
    assert_eq!(run.args[0], "--settings");
    assert_eq!(events(run.args[1].to_str().unwrap()).len(), 8);
    let run = for_one_run(Agent::Codex, Path::new("/opt/ah"), &[]).unwrap().unwrap();
    for pair in run.args.chunks(2) {
        assert_eq!(pair[0], "-c");
        pair[1].to_str().unwrap().parse::<toml_edit::DocumentMut>().unwrap();
    }
    for agent in [Agent::Gemini, Agent::Opencode] {
        assert_eq!(for_one_run(agent, Path::new("/opt/ah"), &[]).unwrap_err().kind, ErrorKind::Unsupported);
    }
}

#[test]
fn comments_that_were_put_among_the_hooks_stay() {
    let place = place();
    let target = place.target(Agent::Gemini, Scope::User);
    let file = install(&target).unwrap().file;
    let theirs = r#"{"hooks": [{"type": "command", "command": "theirs"}]}"#;
    let text = std::fs::read_to_string(&file).unwrap();
    let [before, after] = ["\"BeforeTool\": [", "\"AfterTool\": ["];
    let text = text
        .replacen("\"hooks\": {", "\"hooks\": { // in all", 1)
        .replacen("\"SessionEnd\": [", "\"SessionEnd\": [ // in a list", 1)
        .replacen("\"hooks\": [", "\"hooks\": [ // in a group", 1)
        .replacen(before, &format!("{before} // first\n{theirs}, // behind theirs\n// before ours\n"), 1)
        .replacen(after, &format!("{after} // last\n"), 1);
    let (at, _) = text.match_indices("\n    ]").nth(3).unwrap();
    let text = format!("{},\n // before theirs\n{theirs} // at the end\n{}", &text[..at], &text[at..]);
    std::fs::write(&file, &text).unwrap();
    uninstall(&target).unwrap();
    let rest = std::fs::read_to_string(&file).unwrap();
    assert_eq!((rest.matches("theirs\"").count(), rest.contains("ah-hook")), (2, false), "{rest}");
    for comment in text.lines().filter_map(|line| line.split_once("//")) {
        assert!(rest.contains(comment.1), "{}: {rest}", comment.1);
    }
}

fn tabbed(top: &serde_json::Map<String, Value>) -> String {
    use serde::Serialize as _;
    let mut out = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(b"\t");
    top.serialize(&mut serde_json::Serializer::with_formatter(&mut out, formatter)).unwrap();
    String::from_utf8(out).unwrap()
}

/// Settings of somebody, in any spelling.
fn anyones() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "\\PC{0,8}".prop_map(Value::from),
    ];
    let value = leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            proptest::collection::hash_map("\\PC{0,5}", inner, 0..3)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    });
    let hook = proptest::collection::vec("[a-z \"\\\\]{0,9}", 0..3).prop_map(|commands| {
        let list: Vec<Value> =
            commands.iter().map(|command| serde_json::json!({"type": "command", "command": command})).collect();
        serde_json::json!({"matcher": "Edit", "hooks": list})
    });
    let name = prop_oneof![Just("PostToolUse"), Just("Stop"), Just("PreCompact")];
    let hooks = proptest::collection::hash_map(name, proptest::collection::vec(hook, 0..3), 0..3);
    let rest = proptest::collection::hash_map("[a-zä ]{1,6}", value, 0..4);
    (rest, proptest::option::of(hooks), 0..5u8, any::<bool>()).prop_map(|(rest, hooks, style, mark)| {
        let mut top: serde_json::Map<String, Value> = rest.into_iter().collect();
        if let Some(hooks) = hooks {
            top.insert("hooks".into(), serde_json::to_value(hooks).unwrap());
        }
        let text = match style {
            0 => Value::Object(top).to_string(),
            1 => serde_json::to_string_pretty(&top).unwrap() + "\n",
            2 => serde_json::to_string_pretty(&top).unwrap().replace("\n", "\r\n"),
            3 => tabbed(&top) + "\n\n",
            _ => format!(" {}  ", Value::Object(top)),
        };
        if mark { format!("\u{feff}{text}") } else { text }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn whatever_the_settings_were_they_come_back(text in anyones()) {
        let place = place();
        let file = place.write(Agent::Claude, &text);
        let target = place.target(Agent::Claude, Scope::User);
        install(&target).unwrap();
        let with = std::fs::read_to_string(&file).unwrap();
        prop_assert_eq!(status(&target).unwrap().installed, Installed::Yes);
        prop_assert!(!install(&target).unwrap().changed);
        // Taken out without knowing what was before: the same values in the same order, but for hooks that are empty lists.
        let without = json::without(Agent::Claude, &file, &with, None).unwrap();
        let read = |text: &str| {
            let mut value: Value = serde_json::from_str(text.trim_start_matches('\u{feff}')).unwrap();
            if let Some(hooks) = value.get_mut("hooks").and_then(Value::as_object_mut) {
                hooks.retain(|_, list| list.as_array().is_none_or(|list| !list.is_empty()));
                if hooks.is_empty() {
                    value.as_object_mut().unwrap().remove("hooks");
                }
            }
            value
        };
        prop_assert_eq!(read(&without), read(&text));
        // And knowing it: exactly the same values.
        let without = json::without(Agent::Claude, &file, &with, Some(&text)).unwrap();
        let exactly = |text: &str| serde_json::from_str::<Value>(text.trim_start_matches('\u{feff}')).unwrap();
        prop_assert_eq!(exactly(&without), exactly(&text));
        prop_assert!(uninstall(&target).unwrap().restored);
        prop_assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
    }
}
