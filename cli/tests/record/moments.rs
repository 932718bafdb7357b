//! Moments of a recording: the key, a shell's commands, other processes; each with its place, and a marker there.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

use ah_recording::cast::EventKind;
use ah_recording::input::HIDDEN;
use serde_json::Value;

use crate::support::{self, Ran, World};
use crate::terminal::{Terminal, wait};
use crate::through::{events, file, recorded};

/// The moments of a kind on the timeline.
fn moments(world: &World, kind: &str) -> Vec<Value> {
    let timeline = world.json("timeline", &["timeline"]);
    let events = timeline["events"].as_array().unwrap();
    events.iter().filter(|event| event["type"] == "moment" && event["kind"] == kind).cloned().collect()
}

fn markers(world: &World, name: &str) -> Vec<String> {
    let label = |event| if let EventKind::Marker(label) = event { Some(label) } else { None };
    events(world, name).into_iter().filter_map(label).collect()
}

/// What is shown up to a moment's place in the recording.
fn shown_before(world: &World, name: &str, moment: &Value) -> String {
    let offset = usize::try_from(moment["recording"]["offset"].as_u64().unwrap()).unwrap();
    let bytes = fs::read(file(world, name)).unwrap();
    assert_eq!(bytes[offset - 1], b'\n', "a place is between two events");
    String::from_utf8(bytes[..offset].to_vec()).unwrap()
}

#[test]
fn the_key_makes_a_moment_and_is_not_typed() {
    let world = World::new();
    let script = "stty raw -echo; echo ready; head -c 4 | od -An -c; stty sane";
    let mut terminal = Terminal::run(&recorded(&world, &[], script), 80, 24);
    terminal.wait_for("ready", 1);
    let recording = file(&world, "recording.cast");
    wait(|| fs::read_to_string(&recording).unwrap().contains("\"ready"), || "it in the recording".into());
    terminal.type_in("a\x1dm");
    terminal.type_in("b\x1d\x1d");
    terminal.type_in("c");
    assert_eq!(terminal.end(), 0);
    assert!(terminal.text().contains("a   b 035   c"), "{}", terminal.text());
    let made = moments(&world, "manual");
    assert_eq!(made.len(), 1, "{made:?}");
    assert!(shown_before(&world, "recording.cast", &made[0]).contains("ready"));
    let markers = markers(&world, "recording.cast");
    assert_eq!((markers.len(), markers[1].as_str()), (3, "manual"), "{markers:?}");
    assert!(markers[0].starts_with("session-start: sh -c "), "{markers:?}");
    assert_eq!(markers[2], "session-end");
}

#[test]
fn what_other_processes_add_gets_its_place_and_a_marker() {
    let world = World::new();
    world.fs(["snapshot", "-m", "before"]);
    // A recording inside of a recording is another one.
    let ah = support::ah().to_str().unwrap();
    let script = format!("echo outer; {ah} agent record -q -- sh -c 'echo inner $AH_SESSION $AH_RECORDING'; echo over");
    let mut terminal = Terminal::run(&recorded(&world, &["--session", "s"], &script), 80, 24);
    assert_eq!(terminal.end(), 0, "{}", terminal.text());
    let second = file(&world, "recording-2.cast");
    assert!(
        terminal.text().replace("\r\n", "").contains(&format!("inner s {}", second.display())),
        "{}",
        terminal.text()
    );
    assert_eq!(markers(&world, "recording-2.cast").len(), 2);
    assert_eq!(markers(&world, "recording.cast").len(), 2);
    let starts = moments(&world, "session-start");
    assert_eq!((&starts[0]["recording"]["number"], &starts[1]["recording"]["number"]), (&Value::Null, &2.into()));
    assert_eq!((&starts[0]["session"], &starts[1]["session"]), (&"s".into(), &"s".into()));
}

#[test]
fn a_session_inside_of_a_recording_is_told_where_it_was_recorded() {
    let world = World::new();
    for name in ["first", "second"] {
        // Of a command as much is told as fits; wherever this was built.
        let script = format!("$AH moment --session {name} -m there; echo in the {name}");
        assert_eq!(Ran::of(recorded(&world, &["-q"], &script).env("AH", support::ah())).code, 0);
    }
    for (name, number) in [("first", 1), ("second", 2)] {
        let ran = world.run(["agent", "replay", "--session", name]);
        let command = format!("agent replay --session main {number}");
        assert!(ran.code == 3 && ran.stderr.contains(&format!("`ah {command}`")), "{ran:?}");
        let shown = world.run(["session", "show", name]).stdout;
        assert!(shown.contains(&format!("recorded    in session main: `ah {command}` plays it")), "{shown}");
        let ran = world.run(command.split(' '));
        assert!(ran.code == 0 && ran.stdout.contains(&format!("in the {name}")), "{ran:?}");
    }
    // What was recorded, and when, is said of each.
    let shown = world.run(["session", "show", "main"]).stdout;
    let first = shown.lines().find(|line| line.starts_with("recording   1, ")).unwrap();
    assert!(first.contains("moment --session first") && first.contains("ago; ") | first.contains("now; "), "{first}");
    assert!(world.run(["agent", "replay", "--session", "other"]).stderr.contains("ah agent record -- CMD"));
}

/// A shell with its integration, in which something is typed; then its commands as moments.
fn shell(world: &World, words: &[&str], prompt: &str, lines: &[&str]) -> Vec<(String, String)> {
    let recorded = world.command(["agent", "record", "-q", "--"].iter().chain(words));
    let mut terminal = Terminal::run(&recorded, 80, 24);
    terminal.wait_for(prompt, 1);
    for (at, line) in lines.iter().enumerate() {
        terminal.type_in(format!("{line}\r"));
        terminal.wait_for(prompt, at + 2);
    }
    terminal.type_in("exit\r");
    terminal.end();
    let made = moments(world, "shell");
    made.iter()
        .map(|moment| {
            let label = moment["label"].as_str().unwrap_or_default().to_owned();
            (label, shown_before(world, "recording.cast", moment))
        })
        .collect()
}

fn check_shell(commands: &[(String, String)]) {
    let labels: Vec<&str> = commands.iter().map(|(label, _)| label.as_str()).collect();
    // What begins with a blank is a moment without a label.
    assert_eq!(labels, ["echo one", "false (exit 1)", "printf 'é;%s\\n' \"two\"", "", "echo three; exit 3 | cat"]);
    assert!(commands[0].1.contains("one\\r\\n") && !commands[0].1.contains("two"), "{}", commands[0].1);
    assert!(commands[2].1.contains("é;two\\r\\n") && !commands[2].1.contains("three"), "{}", commands[2].1);
}

const LINES: [&str; 6] =
    ["echo one", "false", "", "printf 'é;%s\\n' \"two\"", " echo secret", "echo three; exit 3 | cat"];

#[test]
fn commands_of_bash_are_moments() {
    let world = World::new();
    let script = world.run(["shell-init", "bash"]).stdout;
    fs::write(world.path("rc"), format!("export LC_ALL=C.UTF-8\nPS1='<prompt> '\nPROMPT_COMMAND='last=$?'\n{script}"))
        .unwrap();
    let rc = world.path("rc");
    check_shell(&shell(&world, &["bash", "--noprofile", "--rcfile", rc.to_str().unwrap(), "-i"], "<prompt> ", &LINES));
}

#[test]
fn a_repeated_command_and_one_that_failed_are_told_whatever_the_history_keeps() {
    for control in ["ignoreboth", "ignoredups"] {
        let world = World::new();
        let script = world.run(["shell-init", "bash"]).stdout;
        fs::write(world.path("rc"), format!("PS1='<prompt> '\nHISTCONTROL={control}\n{script}")).unwrap();
        let long = format!("false {}", "x".repeat(300));
        let count = "echo is=$(history | grep -c 'echo o[n]e$')";
        let lines = ["echo one", "echo one", "echo one", " echo two", &long, count];
        let rc = world.path("rc");
        let words = ["bash", "--noprofile", "--rcfile", rc.to_str().unwrap(), "-i"];
        let made = shell(&world, &words, "<prompt> ", &lines);
        let labels: Vec<&str> = made.iter().map(|(label, _)| label.as_str()).collect();
        assert_eq!((&labels[..4], labels[5]), (&["echo one", "echo one", "echo one", ""][..], count), "{control}");
        assert!(labels[4].starts_with("false xxx") && labels[4].ends_with("x (exit 1)"), "{}", labels[4]);
        // As the history would be without.
        assert!(made[5].1.contains("is=1\\r\\n"), "{control}: {}", made[5].1);
    }
}

#[test]
fn what_bash_is_told_to_do_about_failures_and_prompts_it_does_as_unrecorded() {
    let world = World::new();
    let script = world.run(["shell-init", "bash"]).stdout;
    fs::write(world.path("rc"), format!("PS1='<prompt> '\nPROMPT_COMMAND='last=$?'\n{script}")).unwrap();
    let rc = world.path("rc");
    let words = ["bash", "--noprofile", "--rcfile", rc.to_str().unwrap(), "-i"];
    let trapped = ["trap 'echo trapped=$((1 + 1))' ERR", "! true", "false", "echo last=$last", "trap - ERR"];
    let lines = [
        &trapped[..],
        &["set -e", "! true", "false && true", "IFS=0123456789", "echo {}", "shopt -u promptvars", "echo hi"],
    ];
    let made = shell(&world, &words, "<prompt> ", &lines.concat());
    let told = |label: &str| {
        let (_, shown) = made.iter().find(|(said, _)| said == label).unwrap_or_else(|| panic!("{label}: {made:?}"));
        shown
    };
    let times = |text: &str| made.iter().map(|(_, shown)| shown.matches(text).count()).max().unwrap_or_default();
    assert_eq!(times("trapped=2"), 1, "{made:?}");
    assert!(told("echo last=$last").contains("last=1\\r\\n") && told("echo {}").contains("{}\\r\\n"), "{made:?}");
    assert_eq!(times("__ah"), 0, "{made:?}");
}

#[test]
fn commands_of_zsh_are_moments() {
    if Command::new("zsh").arg("--version").output().is_err() {
        return support::skip("there is no zsh");
    }
    let world = World::new();
    let script = world.run(["shell-init", "zsh"]).stdout;
    fs::write(
        world.path("home/.zshrc"),
        format!("export LC_ALL=C.UTF-8\nPS1='<prompt> '\nunsetopt zle prompt_cr prompt_sp\nsetopt nounset\n{script}"),
    )
    .unwrap();
    check_shell(&shell(&world, &["zsh", "-i"], "<prompt> ", &LINES));
}

#[test]
fn commands_of_fish_are_moments() {
    if Command::new("fish").arg("--version").output().is_err() {
        return support::skip("there is no fish");
    }
    let world = World::new();
    let script = world.run(["shell-init", "fish"]).stdout;
    let folder = world.path("home/.config/fish");
    fs::create_dir_all(&folder).unwrap();
    let prompt = "set -x LC_ALL C.UTF-8\nset -g fish_greeting\nfunction fish_prompt; echo -n '<prompt> '; end\n";
    fs::write(folder.join("config.fish"), format!("{prompt}{script}")).unwrap();
    // fish draws its prompt again and again; what it shows is not looked at.
    let recorded = world.command(["agent", "record", "-q", "--", "fish", "-i"]);
    let mut terminal = Terminal::run(&recorded, 80, 24);
    terminal.wait_for("<prompt> ", 1);
    for (line, shown) in
        [("echo o''ne", "one"), ("false", "false"), (" echo se''cret", "secret"), ("echo t''wo", "two")]
    {
        terminal.type_in(format!("{line}\r"));
        terminal.wait_for(shown, 1);
    }
    std::thread::sleep(std::time::Duration::from_millis(500));
    terminal.type_in("exit\r");
    terminal.end();
    let labels: Vec<String> =
        moments(&world, "shell").iter().map(|moment| moment["label"].as_str().unwrap_or_default().to_owned()).collect();
    // `exit` is a command there as well.
    assert_eq!(labels[..4], ["echo o''ne", "false (exit 1)", "", "echo t''wo"]);
}

#[test]
fn nothing_is_typed_into_a_recording_unasked_and_secrets_never() {
    let world = World::new();
    let script = "printf 'name: '; read name; stty -echo; printf 'password: '; read secret; stty echo; printf 'again: '; read again; echo $name $again";
    for (name, options) in [("recording.cast", &[][..]), ("recording-2.cast", &["--input"][..])] {
        let options: Vec<&str> = ["-q"].iter().chain(options).copied().collect();
        let mut terminal = Terminal::run(&recorded(&world, &options, script), 80, 24);
        for (prompt, answer) in [("name: ", "me\r"), ("password: ", "hunter2\r"), ("again: ", "here\r")] {
            terminal.wait_for(prompt, 1);
            terminal.type_in(answer);
        }
        assert_eq!(terminal.end(), 0, "{}", terminal.text());
        assert!(terminal.text().ends_with("me here\r\n"), "{}", terminal.text());
        let recording = fs::read_to_string(file(&world, name)).unwrap();
        assert!(!recording.contains("hunter2"), "{recording}");
        let typed = |event| if let EventKind::Input(text) = event { Some(text) } else { None };
        let typed: String = events(&world, name).into_iter().filter_map(typed).collect();
        let expected = if options.len() == 1 { String::new() } else { format!("me\r{HIDDEN}here\r") };
        assert_eq!(typed, expected);
    }
}

#[test]
fn a_moment_that_another_process_adds_is_where_it_was_added() {
    let world = World::new();
    let ah = support::ah().to_str().unwrap();
    // The command stands in the recording too, but there its quotes are escaped.
    let recorded_is = |event: &str| format!("until grep -qF '{event}' $AH_RECORDING; do sleep 0.05; done");
    let (before, after) = (recorded_is(r#""o", "first"#), recorded_is(r#""m", "manual: inner"#));
    let script = format!("echo first; {before}; {ah} moment -q -m inner >/dev/null; {after}; echo second");
    let mut terminal = Terminal::run(&recorded(&world, &["-q"], &script), 80, 24);
    assert_eq!(terminal.end(), 0, "{}", terminal.text());
    let made = moments(&world, "manual");
    assert_eq!(made[0]["label"], "inner");
    let before = shown_before(&world, "recording.cast", &made[0]);
    assert!(before.contains("first\\r\\n") && !before.contains("second\\r\\n"), "{before}");
    let events = events(&world, "recording.cast");
    let at = |wanted: &EventKind| events.iter().position(|event| event == wanted);
    let marker = at(&EventKind::Marker("manual: inner".into()));
    assert!(marker.is_some() && marker < at(&EventKind::Output("second\r\n".into())), "{events:?}");
    // Afterwards nothing is recorded any more.
    assert_eq!(world.run(["moment", "-m", "after"]).code, 0);
    assert_eq!(moments(&world, "manual")[1]["recording"], Value::Null);
}

#[test]
fn marks_that_a_program_prints_without_end_are_no_flood_of_moments() {
    let world = World::new();
    let marks = "printf '\\033]133;C;cmdline_url=flood\\a\\033]133;D;0\\a'";
    let script = format!("i=0; while [ $i -lt 5000 ]; do {marks}; i=$((i+1)); done");
    let began = std::time::Instant::now();
    let ran = Ran::of(&mut recorded(&world, &[], &script));
    assert!(ran.code == 0 && ran.stderr.contains("too fast to be moments"), "{ran:?}");
    let most = 100 + began.elapsed().as_millis() / 500;
    let made = moments(&world, "shell").len() as u128;
    assert!((1..=most).contains(&made), "{made} of {most}");
}

#[test]
fn without_a_watch_to_be_had_moments_are_found_all_the_same() {
    let world = World::new();
    let record = recorded(&world, &[], &format!("{} moment -q -m inner >/dev/null", support::ah().display()));
    let mut none = Command::new("unshare");
    let inside = "echo 0 >/proc/sys/user/max_inotify_instances && exec \"$@\"";
    none.args(["--user", "--map-root-user", "sh", "-c"]);
    if !Command::new("unshare").args(none.get_args()).arg(":").status().is_ok_and(|status| status.success()) {
        return support::skip("needs user namespaces");
    }
    none.args([inside, "sh"]).arg(record.get_program()).args(record.get_args()).current_dir(world.root()).env_clear();
    let ran = Ran::of(none.envs(record.get_envs().filter_map(|(name, value)| Some((name, value?)))));
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(ran.stderr.matches("a little later than their moments").count(), 1, "{ran:?}");
    assert!(markers(&world, "recording.cast").contains(&"manual: inner".to_owned()));
}

#[test]
fn an_agent_gets_its_hooks_for_this_run() {
    use std::os::unix::fs::PermissionsExt;
    let world = World::new();
    // Not the real one: it shows what it is given.
    let claude = world.path("claude");
    fs::write(&claude, "#!/bin/sh\nprintf '<%s>\\n' \"$@\"\n").unwrap();
    fs::set_permissions(&claude, fs::Permissions::from_mode(0o755)).unwrap();
    let claude = claude.to_str().unwrap();
    let ran = world.run(["agent", "record", "-q", "--", claude, "-p", "hello"]);
    assert!(ran.stdout.starts_with("<--settings>\n<{") && ran.stdout.ends_with("<-p>\n<hello>\n"), "{ran:?}");
    assert!(ran.stdout.contains("PostToolUse") && ran.stdout.contains(" hook claude"), "{ran:?}");
    // Nor twice, where those of the project call the same `ah` by another path.
    let link = world.path("ah");
    std::os::unix::fs::symlink(support::ah(), &link).unwrap();
    let hooks = |what: &str| {
        let mut command = world.command(["agent", "hooks", what, "claude", "--project"]);
        assert_eq!(Ran::of(command.arg0(&link)).code, 0, "{what}");
    };
    hooks("install");
    let says = |words: &[&str]| {
        let ran = world.run(words);
        (ran.stdout + &ran.stderr).contains("by another path")
    };
    assert!(!says(&["agent", "hooks", "status", "claude"]));
    assert!(says(&["agent", "hooks", "install", "claude"]) && says(&["agent", "hooks", "status", "claude"]));
    assert_eq!(world.run(["agent", "hooks", "uninstall", "claude"]).code, 0);
    assert!(!says(&["agent", "hooks", "status", "claude"]));
    let ran = world.run(["agent", "record", "-q", "--", claude, "-p", "hello"]);
    assert!(!ran.stdout.contains(" hook claude") && ran.stdout.ends_with("<-p>\n<hello>\n"), "{ran:?}");
    hooks("uninstall");
    // Settings of the user's own are not pushed aside.
    let beside = || {
        let ran = world.run(["agent", "record", "--", claude, "--settings", "mine.json"]);
        assert_eq!(ran.stdout, "<--settings>\n<mine.json>\n");
        ran.stderr
    };
    // Then none are called but those that are installed; where none are, that is said.
    let said = beside();
    assert!(said.contains("no moments come from hooks") && said.contains("ah agent hooks install claude"), "{said}");
    assert_eq!(world.run(["agent", "hooks", "install", "claude"]).code, 0);
    let said = beside();
    assert!(!said.contains("no moments come from hooks"), "{said}");
    // An agent that was told on its command line to call none, say, does not say so.
    const UNHEARD: &str = "none of its prompts and tools is a moment here";
    assert!(said.contains(UNHEARD), "{said}");
    let hook = format!(
        "printf '{{\"session_id\":\"%s\",\"hook_event_name\":\"UserPromptSubmit\",\"prompt\":\"hello\",\"cwd\":\"%s\"}}' $$ \"$PWD\" | {} hook claude",
        support::ah().display()
    );
    // Nor one that is at work elsewhere, whose moments are not here.
    let elsewhere = world.path("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    for at in [&world.path("w"), &elsewhere] {
        fs::write(claude, format!("#!/bin/sh\ncd {}\n{hook}\n", at.display())).unwrap();
        let ran = world.run(["agent", "record", "--", claude, "-p", "hello"]);
        assert!(ran.code == 0 && !ran.stderr.contains(UNHEARD), "{ran:?}");
    }
    fs::write(claude, "#!/bin/sh\nprintf '<%s>\\n' \"$@\"\n").unwrap();
    assert_eq!(world.run(["agent", "hooks", "uninstall", "claude"]).code, 0);
    // Nothing would come of them where they are switched off.
    let settings = world.path("home/.claude/settings.json");
    fs::create_dir_all(settings.parent().unwrap()).unwrap();
    fs::write(&settings, r#"{"disableAllHooks": true}"#).unwrap();
    let ran = world.run(["agent", "record", "--", claude, "-p", "hello"]);
    assert_eq!(ran.stdout, "<-p>\n<hello>\n");
    assert!(ran.stderr.contains("no moments come from hooks") && ran.stderr.contains("disableAllHooks"), "{ran:?}");
}

#[test]
fn codex_gets_no_hooks_beside_those_that_it_calls_anyway() {
    use std::os::unix::fs::PermissionsExt;
    let world = World::new();
    let codex = world.path("codex");
    fs::write(&codex, "#!/bin/sh\nprintf '%s\\n' \"$@\"\n").unwrap();
    fs::set_permissions(&codex, fs::Permissions::from_mode(0o755)).unwrap();
    let given = || world.run(["agent", "record", "-q", "--", codex.to_str().unwrap(), "hello"]).stdout;
    let first = given();
    assert!(first.starts_with("-c\nhooks.") && first.ends_with("\nhello\n"), "{first}");
    let done = world.json("hooks", &["agent", "hooks", "install", "codex"]);
    assert_eq!(given(), first, "nobody has trusted them: they are not called");
    // As the program writes it down when a person has trusted them.
    let file = done["hooks"]["file"].as_str().unwrap();
    let state = first.lines().find_map(|line| line.strip_prefix("hooks.state=")).unwrap();
    let state = state.replace("/<session-flags>/config.toml", file);
    let trust = |state: &str| {
        fs::write(world.path("home/.codex/config.toml"), format!("[hooks]\nstate = {state}\n")).unwrap();
    };
    trust(&state);
    assert_eq!(given(), "-c\nah.session=true\nhello\n", "which keeps it from handing the session to a server");
    // One was changed since: that alone is given, and trusted for this run.
    let (before, after) = state.split_once(":stop:0:0\"={trusted_hash=\"sha256:").unwrap();
    trust(&format!("{before}:stop:0:0\"={{trusted_hash=\"sha256:0{after}"));
    let given: Vec<String> = given().lines().filter(|line| *line != "-c").map(str::to_owned).collect();
    assert!(given.len() == 3 && given[0].starts_with("hooks.Stop="), "{given:?}");
    assert!(given[1].starts_with("hooks.state={") && given[1].matches("trusted_hash").count() == 1, "{given:?}");
}
