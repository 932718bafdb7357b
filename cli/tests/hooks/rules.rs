//! Moments by hand, and what an agent may not do in its own session.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;

use serde_json::json;

use crate::agent::{Agent, cat, settled, text};
use crate::support::{Ran, World, ah};

#[test]
fn a_moment_by_hand() {
    World::each(|world| {
        world.write("f", "one");
        let id = world.run(["moment", "-m", "tests pass"]);
        assert_eq!(id.code, 0, "{id:?}");
        let id = id.stdout.trim().to_owned();
        world.write("f", "two");
        let second = world.json("moment", &["moment", "-m", "again"]);
        assert_eq!(second["moment"]["kind"], "manual");
        for (reference, content) in [(id.as_str(), "one"), ("tests pass", "one"), ("again", "two"), ("@", "two")] {
            assert_eq!(cat(world, reference, "f").as_deref(), Some(content), "{reference}");
        }
        // One row, though there are two things.
        let rows = world.run(["timeline"]).stdout;
        assert!(rows.matches("tests pass").count() == 1 && rows.contains(&id), "{rows}");
        let show = world.json("session-show", &["session", "show"]);
        assert_eq!((&show["session"]["name"], &show["moments"]), (&json!("main"), &json!(2)));
        assert_eq!(world.refused(2, &["moment", "-m", "a\nb"]), "invalid-argument");
    });
}

#[test]
fn a_moment_without_a_snapshot_stays_with_the_reason() {
    let world = World::on_git();
    world.write("f", "one");
    world.fs(["snapshot"]);
    assert_eq!(world.run(["config", "set", "capture.max-entries", "1"]).code, 0);
    for name in ["a", "b", "c"] {
        world.write(name, "x");
    }
    let ran = world.run(["moment", "-m", "too much"]);
    assert!(ran.code == 0 && ran.stderr.contains("warning:") && ran.stderr.contains("hint:"), "{ran:?}");
    let agent = Agent::claude(&world, "s1");
    agent.start();
    let moments = settled(&world);
    for moment in &moments {
        assert!(moment["snapshot"].is_null() && !text(moment, "reason").is_empty(), "{moment}");
    }
    assert_eq!(cat(&world, "too much", "f").as_deref(), Some("one"), "the nearest before it");
    assert!(world.run(["timeline"]).stdout.contains("no snapshot: "));
}

#[test]
fn an_agent_does_not_take_away_what_one_would_go_back_to() {
    let world = World::new();
    world.write("f", "one");
    let snapshot = world.fs(["snapshot"]);
    let branch = world.fs(["branch", "@", "--name", "b"]);
    let agent = Agent::claude(&world, "s1");
    agent.start();
    let session = text(&settled(&world)[0], "session").to_owned();
    // It makes the setting for itself, too.
    world.write(".ah/config.json", r#"{"agent": {"may-remove": true}}"#);
    assert_eq!(world.run(["config", "trust"]).code, 0);
    let inside = |words: &[&str]| Ran::of(world.command(words).env("AH_SESSION", &session));
    let refused: &[&[&str]] = &[
        &["agent", "fs", "rm", &snapshot],
        &["agent", "fs", "rm", "b", "--force"],
        &["agent", "fs", "rm", "--all"],
        &["agent", "fs", "rm", "--all", "--force"],
        &["agent", "fs", "prune", "keep-last=1"],
        &["config", "set", "agent.may-remove", "true"],
        &["config", "set", "prune.policy", "keep-last=1"],
        &["config", "set", "prune.max-size", "1B"],
        &["config", "unset", "prune.min-free"],
        &["config", "trust"],
        &["agent", "fs", "edit", "@", "--no-keep"],
    ];
    for words in refused {
        let ran = inside(words);
        assert!(ran.code == 4 && ran.stderr.contains("hint: "), "{words:?}: {ran:?}");
    }
    assert!(fs::metadata(branch).is_ok());
    assert_eq!(inside(&["agent", "fs", "prune", "keep-last=1", "--dry-run"]).code, 0);
    assert_eq!(inside(&["agent", "fs", "snapshot"]).code, 0);
    // A session that is a person's own is no reason.
    assert_eq!(Ran::of(world.command(["agent", "fs", "rm", "b", "--force"]).env("AH_SESSION", "mine")).code, 0);
    assert_eq!(world.run(["config", "set", "agent.may-remove", "true"]).code, 0);
    assert_eq!(inside(&["agent", "fs", "rm", &snapshot]).code, 0);
}

#[test]
fn what_a_project_that_is_not_trusted_keeps_back_is_told() {
    let world = World::new();
    let told = |words: &[&str]| {
        let ran = world.run(words);
        ran.stderr.lines().filter(|line| line.contains("decides what is kept")).map(str::to_owned).collect::<Vec<_>>()
    };
    // What does not change anything, or is not of what is kept, is not worth a word.
    world.write(".ah/config.json", r#"{"moments": {"interval": "0s"}, "labels": {"a": "b"}}"#);
    assert!(told(&[]).is_empty() && told(&["agent", "fs", "status"]).is_empty());
    let many = vec!["*"; 100_000];
    let config = serde_json::json!({"capture": {"exclude": many}, "moments": {"limit": 0}});
    world.write(".ah/config.json", config.to_string());
    for words in [&[][..], &["agent", "fs", "status"]] {
        let lines = told(words);
        assert_eq!(lines.len(), 1, "{words:?}");
        assert!(
            ["capture.exclude is [\"*\",", "moments.limit is 0"].iter().all(|part| lines[0].contains(part)),
            "{lines:?}"
        );
        assert!(lines[0].len() < 1000, "{lines:?}");
    }
    for words in [&["snapshot", "-m", "x"][..], &["diff", "x"], &["restore", "x"]] {
        assert_eq!(told(&[&["agent", "fs"], words].concat()).len(), 1, "{words:?}");
    }
    world.write(".ah/config.json", r#"{"branch": {"carry-limit": "9000T"}}"#);
    assert_eq!(told(&["agent", "fs", "status"]).len(), 1);
    assert_eq!(world.run(["config", "trust"]).code, 0);
    assert!(told(&[]).is_empty() && told(&["agent", "fs", "status"]).is_empty());
}

#[test]
fn after_an_agents_work_bare_ah_goes_back_to_before_its_prompt() {
    let world = World::new();
    world.write("f", "one");
    world.fs(["snapshot", "-m", "mine"]);
    let proposed = || {
        let next = world.json("overview", &[])["next"].clone();
        next.as_array().unwrap().iter().map(|next| text(next, "command").to_owned()).collect::<Vec<_>>()
    };
    let of_mine = ["ah agent fs diff @", "ah timeline", "ah agent fs restore @ --dry-run"];
    assert_eq!(proposed(), of_mine);
    let agent = Agent::claude(&world, "s1");
    agent.prompt("break it");
    agent.writes("f", "broken");
    settled(&world);
    assert_eq!(proposed(), ["ah agent fs diff @prompt", "ah timeline", "ah agent fs restore @prompt --dry-run"]);
    assert_eq!(world.fs(["diff", "@prompt"]), "M\tf");
    // What was taken since in a session without a prompt is not of that prompt, though nobody asked for a snapshot.
    Agent::claude(&world, "s2").writes("f", "mended");
    settled(&world);
    assert_eq!(world.json("overview", &[])["status"]["latest"]["kind"], "auto");
    assert_eq!(proposed(), of_mine);
    // What a person has taken since is what that person means.
    world.fs(["snapshot", "-m", "mine"]);
    assert_eq!(proposed(), of_mine);
}

#[test]
fn removing_a_prompt_again_takes_no_other_snapshot() {
    let world = World::new();
    world.write("f", "one");
    let mine = world.fs(["snapshot", "-m", "mine"]);
    world.write("f", "two");
    let agent = Agent::claude(&world, "s1");
    agent.prompt("go on");
    settled(&world);
    let taken = world.fs(["rm", "@prompt"]);
    assert_ne!(taken, mine);
    for words in [&["agent", "fs", "rm", "@prompt"][..], &["agent", "fs", "edit", "@prompt", "--keep"]] {
        let ran = world.run(words);
        assert!(ran.code == 4 && ran.stderr.contains(&mine), "{ran:?}");
    }
    assert_eq!(world.fs(["rm", "--dry-run", "mine"]), mine);
}

#[test]
fn hooks_are_put_into_settings_and_taken_out() {
    let world = World::new();
    world.write("f", "one");
    let file = world.path("home/.claude/settings.json");
    fs::create_dir(file.parent().unwrap()).unwrap();
    let before = b"{\n  \"model\": \"x\"\n}\n".to_vec();
    fs::write(&file, &before).unwrap();
    let done = world.json("hooks", &["agent", "hooks", "install", "claude"]);
    assert_eq!((&done["hooks"]["changed"], &done["hooks"]["file"]), (&json!(true), &json!(file)));
    assert_eq!(world.json("hooks", &["agent", "hooks", "install", "claude"])["hooks"]["changed"], false);
    // What is written there is what an agent runs.
    let settings: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let command = settings["hooks"]["SessionStart"][0]["hooks"][0]["command"].as_str().unwrap().to_owned();
    let event =
        json!({"session_id": "s1", "cwd": world.root(), "hook_event_name": "SessionStart", "source": "startup"});
    fs::write(world.path("event"), event.to_string()).unwrap();
    let mut shell = std::process::Command::new("sh");
    shell.arg("-c").arg(&command).stdin(fs::File::open(world.path("event")).unwrap());
    let ran = Ran::of(shell.env_clear().env("AH_HOME", world.path("state")).env("HOME", world.path("home")));
    assert_eq!((ran.code, ran.stdout.as_str()), (0, ""), "{ran:?}");
    let session = text(&settled(&world)[0], "session").to_owned();
    let status = world.json("hooks-status", &["agent", "hooks", "status"]);
    let claude = status["hooks"].as_array().unwrap().iter().find(|one| one["agent"] == "claude").unwrap();
    assert_eq!((&claude["installed"], &claude["last"]["session"]), (&json!("yes"), &json!(session)));
    assert!(world.run(["agent", "hooks", "status"]).stdout.contains("Claude Code: installed"));
    // Not by an agent in its own session.
    let ran = Ran::of(world.command(["agent", "hooks", "uninstall", "claude"]).env("AH_SESSION", &session));
    assert_eq!(ran.code, 4, "{ran:?}");
    let done = world.json("hooks", &["agent", "hooks", "uninstall", "claude"]);
    assert_eq!((&done["hooks"]["changed"], &done["hooks"]["restored"]), (&json!(true), &json!(true)));
    assert_eq!(fs::read(&file).unwrap(), before);
    // Of settings that are lost meanwhile who looks for the hooks hears where they are kept.
    assert_eq!(world.run(["agent", "hooks", "install", "claude"]).code, 0);
    let again = world.run(["agent", "hooks", "install", "claude"]);
    assert!(again.stdout.contains("installed already") && !again.stderr.contains("before"), "{again:?}");
    fs::remove_file(&file).unwrap();
    for rewritten in [false, true] {
        if rewritten {
            fs::write(&file, "{}").unwrap();
        }
        let ran = world.run(["agent", "hooks", "uninstall", "claude"]);
        let kept = fs::read_dir(world.path("state/backups")).unwrap().map(|it| it.unwrap().path()).collect::<Vec<_>>();
        let [kept] = &kept[..] else { panic!("{kept:?}") };
        assert!(ran.stderr.contains(kept.to_str().unwrap()) && fs::read(kept).unwrap() == before, "{ran:?}");
    }
    let aside = world.json("hooks", &["agent", "hooks", "install", "claude"])["hooks"]["aside"].clone();
    assert_eq!(fs::read(aside.as_str().unwrap()).unwrap(), before);
    assert_eq!(world.refused(2, &["agent", "hooks", "install", "nobody"]), "invalid-argument");
    fs::write(&file, "{ not json").unwrap();
    assert_eq!(world.refused(4, &["agent", "hooks", "install", "claude"]), "failed-precondition");
    assert_eq!(fs::read_to_string(&file).unwrap(), "{ not json");
}

#[test]
fn hooks_call_ah_by_the_link_that_it_was_called_by_and_who_looks_hears_when_that_leads_nowhere() {
    let world = World::new();
    let bin = world.path("bin");
    fs::create_dir(&bin).unwrap();
    let link = bin.join("ah");
    let settings = world.path("home/.claude/settings.json");
    let install = |name: &std::ffi::OsStr| {
        let mut command = world.command(["agent", "hooks", "install", "claude"]);
        let ran = Ran::of(command.arg0(name).env("PATH", format!("{}:/usr/bin:/bin", bin.display())));
        assert_eq!(ran.code, 0, "{ran:?}");
        fs::read_to_string(&settings).unwrap()
    };
    let by_path = install(ah().as_os_str());
    assert!(by_path.contains(ah().to_str().unwrap()), "{by_path}");
    std::os::unix::fs::symlink(ah(), &link).unwrap();
    for name in [link.as_os_str(), "ah".as_ref()] {
        let text = install(name);
        assert!(text.contains(link.to_str().unwrap()) && !text.contains(ah().to_str().unwrap()), "{name:?}: {text}");
    }
    let says = |words: &[&str]| {
        let ran = world.run(words);
        let shape = if words.is_empty() { "overview" } else { "status" };
        let notices = world.json(shape, words)["notices"].to_string();
        let mends = "ah agent hooks install claude";
        let told = [&ran.stderr, &notices].map(|told| told.contains(link.to_str().unwrap()) && told.contains(mends));
        assert_eq!(told[0], told[1], "{ran:?} {notices}");
        told[0]
    };
    for (gone, words) in
        [(false, &[][..]), (false, &["agent", "fs", "status"]), (true, &[]), (true, &["agent", "fs", "status"])]
    {
        if gone && link.exists() {
            fs::remove_file(&link).unwrap();
            std::os::unix::fs::symlink(bin.join("removed"), &link).unwrap();
        }
        assert_eq!(says(words), gone, "{words:?}");
    }
    install(ah().as_os_str());
    assert!(!says(&[]));
}

#[test]
fn of_hooks_in_projects_those_that_were_installed_from_here_are_told_to_call_what_is_gone() {
    let world = World::new();
    let link = world.path("ah");
    std::os::unix::fs::symlink(ah(), &link).unwrap();
    let [other, foreign] = ["other", "foreign"].map(|name| world.path(name));
    for dir in [&other, &foreign] {
        fs::create_dir_all(dir.join(".claude")).unwrap();
        fs::write(dir.join("file"), "x").unwrap();
    }
    let other_name = other.to_str().unwrap();
    let mut install = world.command(["-C", other_name, "agent", "hooks", "install", "claude", "--project"]);
    assert_eq!(Ran::of(install.arg0(&link)).code, 0);
    fs::remove_file(&link).unwrap();
    let told = |dir: &Path| world.run(["agent", "fs", "status", dir.to_str().unwrap()]).stderr;
    let mends = format!("ah -C {other_name} agent hooks install claude --project");
    assert!(told(&other).contains(&mends), "{}", told(&other));
    // As it may come with a repository: nobody follows a path to wherever that leads.
    let settings = ".claude/settings.local.json";
    fs::copy(other.join(settings), foreign.join(settings)).unwrap();
    assert!(!told(&foreign).contains("hooks"), "{}", told(&foreign));
}

#[test]
fn who_takes_hooks_out_in_front_of_trusted_ones_hears_that_those_are_to_be_trusted_again() {
    let world = World::new();
    let hooks = |act| world.run(["agent", "hooks", act, "codex"]);
    assert_eq!(hooks("install").code, 0);
    let file = world.path("home/.codex/hooks.json");
    let mut settings: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let theirs = json!({"hooks": [{"type": "command", "command": "theirs"}]});
    settings["hooks"]["Stop"].as_array_mut().unwrap().push(theirs);
    fs::write(&file, settings.to_string()).unwrap();
    for (act, moved) in [("install", false), ("uninstall", true), ("install", false)] {
        let ran = hooks(act);
        assert_eq!((ran.code, ran.stderr.contains("trust them again")), (0, moved), "{act}: {ran:?}");
    }
}

#[test]
fn who_installs_hooks_hears_what_keeps_them_from_running() {
    let world = World::new();
    let install = |agent| world.run(["agent", "hooks", "install", agent]);
    let says = |agent, what: &str| {
        let ran = install(agent);
        assert!(ran.code == 0 && ran.stderr.contains(what), "{ran:?}");
    };
    says("codex", "not trusted yet");
    let status = || world.run(["agent", "hooks", "status", "codex"]).stdout;
    assert!(status().contains("installed, not trusted"));
    // It can no more start with that than we can look into it.
    fs::write(world.path("home/.codex/config.toml"), "not toml").unwrap();
    says("codex", "config.toml cannot be understood");
    assert!(status().contains("config.toml cannot be understood"));
    assert_eq!(install("claude").stderr, "");
    fs::write(world.path("home/.claude/settings.json"), r#"{"disableAllHooks": true}"#).unwrap();
    says("claude", "disableAllHooks");
    fs::write(world.path("home/.codex/config.toml"), "[features]\nhooks = false\n[[hooks.Stop]]\nhooks = []\n")
        .unwrap();
    says("codex", "runs none of your hooks");
    says("codex", "warns of that at each start");
    assert!(status().contains("hooks = false"));
}

#[test]
fn a_projects_hooks_are_run_at_its_top() {
    let world = World::new();
    fs::create_dir_all(world.root().join(".git")).unwrap();
    fs::create_dir_all(world.root().join("below")).unwrap();
    world.give_away();
    let at = |below: &str, words: &[&str]| {
        let ran = Ran::of(world.command([&["agent", "hooks"], words].concat()).current_dir(world.root().join(below)));
        assert_eq!(ran.code, 0, "{ran:?}");
        format!("{}{}", ran.stdout, ran.stderr)
    };
    let words = "not below it";
    assert!(!at("", &["install", "claude", "--project"]).contains(words));
    assert!(at("below", &["install", "claude", "--project"]).contains(words));
    assert!(!at("", &["status", "claude"]).contains(words) && at("below", &["status", "claude"]).contains(words));
}

#[test]
fn who_installs_hooks_for_a_project_hears_that_git_would_take_them_along() {
    let world = World::new();
    // With no settings but the repository's.
    let output = |program: &str, words: &[&str]| {
        let mut command = std::process::Command::new(program);
        command
            .args(words)
            .current_dir(world.root())
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_NOSYSTEM", "1");
        let done = command.output().unwrap();
        assert!(done.status.success(), "{program} {words:?}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap()
    };
    let git = |words: &[&str]| output("git", words);
    let told = || {
        let ran = world.run(["agent", "hooks", "install", "claude", "--project"]);
        assert_eq!(ran.code, 0, "{ran:?}");
        ran.stderr
    };
    let names_it = |note: &str| note.contains("names places of this machine");
    let does_what_it_says = |note: &str| {
        let mut commands = note.split('`').skip(1).step_by(2).peekable();
        assert!(commands.peek().is_some(), "{note}");
        commands.for_each(|command| drop(output("sh", &["-c", command])));
    };
    assert!(!names_it(&told()), "there is no repository");
    git(&["init", "-q"]);
    let note = told();
    assert!(note.contains("Git does not ignore it"), "{note}");
    does_what_it_says(&note);
    assert_eq!(git(&["status", "--porcelain"]), "");
    assert!(!names_it(&told()), "it is ignored by now");
    // What was ignored before stays so, also by a line without an end.
    world.write("secret.key", "x");
    world.write(".git/info/exclude", "secret.key");
    does_what_it_says(&told());
    assert_eq!(git(&["status", "--porcelain"]), "");
    // As of a repository made from a template of one's own.
    fs::remove_file(world.root().join("secret.key")).unwrap();
    fs::remove_dir_all(world.root().join(".git/info")).unwrap();
    does_what_it_says(&told());
    assert_eq!(git(&["status", "--porcelain"]), "");
    // A file that the index has is taken along whatever is ignored.
    git(&["add", "-f", ".claude/settings.local.json"]);
    git(&["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "x"]);
    let note = told();
    assert!(note.contains("Git's index has it"), "{note}");
    does_what_it_says(&note);
    assert_eq!(git(&["status", "--porcelain"]), "D  .claude/settings.local.json\n");
    assert!(!names_it(&told()), "it is ignored, and in the index no more");
}
