//! `mock-agent` as a program: tools, hooks, transcripts, going on, chance, and how it ends.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::needless_pass_by_value))]

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// A home with settings, a workspace and a scenario.
struct Stage {
    temp: tempfile::TempDir,
}

impl Stage {
    fn new(scenario: &str) -> Self {
        let stage = Self { temp: tempfile::tempdir().unwrap() };
        fs::create_dir_all(stage.path("home/.claude")).unwrap();
        fs::create_dir_all(stage.path("work")).unwrap();
        fs::write(stage.path("story.yaml"), scenario).unwrap();
        stage
    }

    fn path(&self, name: &str) -> PathBuf {
        self.temp.path().canonicalize().unwrap().join(name)
    }

    /// Hooks that write every event down, and those given.
    fn with_hooks(self, more: Value) -> Self {
        let note = json!([{"matcher": "*", "hooks": [{"type": "command",
            "command": format!("cat >> '{0}'; echo >> '{0}'", self.path("events").display())}]}]);
        let events = [
            "SessionStart",
            "UserPromptSubmit",
            "PreToolUse",
            "PostToolUse",
            "PostToolUseFailure",
            "Stop",
            "SubagentStop",
            "SessionEnd",
            "PreCompact",
        ];
        let mut hooks: serde_json::Map<String, Value> =
            events.iter().map(|event| ((*event).to_owned(), note.clone())).collect();
        for (event, groups) in more.as_object().unwrap() {
            hooks[event].as_array_mut().unwrap().extend(groups.as_array().unwrap().clone());
        }
        fs::write(self.path("home/.claude/settings.json"), json!({"hooks": hooks}).to_string()).unwrap();
        self
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mock-agent"));
        command
            .arg("--scenario")
            .arg(self.path("story.yaml"))
            .args(arguments)
            .env_clear()
            .env("HOME", self.path("home"))
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .current_dir(self.path("work"))
            .stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn events(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.path("events")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// All transcripts, by name.
    fn transcripts(&self) -> Vec<(String, Vec<Value>)> {
        let projects = self.path("home/.claude/projects");
        let mut found = Vec::new();
        for project in fs::read_dir(projects).unwrap() {
            for file in fs::read_dir(project.unwrap().path()).unwrap() {
                let path = file.unwrap().path();
                if path.extension().is_some_and(|extension| extension == "jsonl") {
                    let text = fs::read_to_string(&path).unwrap();
                    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
                    found.push((path.file_stem().unwrap().to_str().unwrap().to_owned(), lines));
                }
            }
        }
        found.sort_by_key(|(name, _)| name.clone());
        found
    }

    fn read(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.path("work").join(name)).ok()
    }
}

fn names(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["hook_event_name"].as_str().unwrap()).collect()
}

fn well(output: &Output) {
    assert!(output.status.success(), "{output:?}");
}

const STORY: &str = r#"
name: story
seed: 5
clock: 2026-01-01T00:00:00Z
files: {there.txt: "old\n"}
steps:
  - prompt: One
  - think: Hm.
  - say: I write.
  - tool: {name: Write, input: {file_path: a.txt, content: "a\n"}}
  - label: written
  - tool: {name: Edit, input: {file_path: there.txt, old_string: old, new_string: new}}
  - tool: {name: Bash, input: {command: "echo shell >> a.txt; exit 3"}}
  - checkpoint: midway
  - say: Done.
  - check: {files: {a.txt: {is: "a\nshell\n"}, b.txt: {exists: false}, there.txt: {contains: new}}}
  - label: first
  - prompt: Two
  - write: {path: b.txt, content: "no tool\n"}
  - tool: {name: Agent, input: {prompt: Look around, subagent_type: Explore}, subagent: helper}
  - hook: {event: PreCompact, fields: {trigger: auto}}
  - say: Two done.
branches:
  - name: other
    after: written
    steps:
      - prompt: Else
      - tool: {name: Bash, input: {command: "echo else > else.txt"}}
      - say: Else done.
  - {name: on, after: first, steps: [prompt: On, say: Went on.]}
conversations:
  - name: helper
    steps:
      - prompt: Look around
      - tool: {name: Bash, input: {command: "echo sub > sub.txt"}}
      - say: Seen.
"#;

#[test]
fn two_prompts_with_tools_hooks_and_a_subagent() {
    let stage = Stage::new(STORY).with_hooks(json!({}));
    let mut command = stage.command(&[]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"One\nTwo\n").unwrap();
    well(&child.wait_with_output().unwrap());
    assert_eq!(stage.read("a.txt").as_deref(), Some("a\nshell\n"));
    assert_eq!((stage.read("there.txt").as_deref(), stage.read("sub.txt").as_deref()), (Some("new\n"), Some("sub\n")));

    let events = stage.events();
    let wanted = "SessionStart UserPromptSubmit PreToolUse PostToolUse PreToolUse PostToolUse PreToolUse PostToolUseFailure Stop \
        UserPromptSubmit PreToolUse PreToolUse PostToolUse SubagentStop PostToolUse PreCompact Stop SessionEnd";
    assert_eq!(names(&events).join(" "), wanted);
    let transcripts = stage.transcripts();
    let (id, lines) = &transcripts[0];
    assert!(events.iter().all(|event| event["session_id"] == *id && event["cwd"] == json!(stage.path("work"))));
    assert_eq!(events[0]["source"], "startup");
    assert_eq!((&events[1]["prompt"], events[1]["prompt_id"].is_string()), (&json!("One"), true));
    assert_eq!((&events[2]["tool_name"], &events[2]["tool_input"]["file_path"]), (&json!("Write"), &json!("a.txt")));
    assert_eq!(events[2]["tool_use_id"], events[3]["tool_use_id"]);
    assert_eq!(events[7]["error"], "Exit code 3");
    assert_eq!((&events[11]["agent_type"], &events[10]["agent_type"]), (&json!("Explore"), &Value::Null));
    assert_eq!(events[16]["last_assistant_message"], "Two done.");

    // The transcript: a chain, each call with its result, the blocks of one message under one id.
    let chained = lines.windows(2).all(|pair| pair[1]["parentUuid"] == pair[0]["uuid"]);
    assert!(chained && lines[0]["parentUuid"].is_null());
    assert_eq!(lines[1]["message"]["id"], lines[3]["message"]["id"], "thinking, text, call");
    assert_eq!(lines[4]["message"]["content"][0]["tool_use_id"], lines[3]["message"]["content"][0]["id"]);
    assert_eq!(lines[0]["timestamp"], "2026-01-01T00:00:00.000Z");
    let file = PathBuf::from(events[13]["agent_transcript_path"].as_str().unwrap());
    let sub = fs::read_to_string(file).unwrap();
    assert!(sub.lines().count() == 4 && sub.lines().all(|line| line.contains("\"isSidechain\":true")), "{sub}");
}

#[test]
fn same_seed_same_run() {
    let run = |seed: &str| {
        let stage = Stage::new(STORY);
        well(&stage.run(&["-p", "One", "--seed", seed]));
        let cwd = stage.path("work").display().to_string();
        let text = |lines: &[Value]| lines.iter().map(Value::to_string).collect::<String>().replace(&cwd, "CWD");
        let transcripts = stage.transcripts();
        (transcripts[0].0.clone(), text(&transcripts[0].1))
    };
    assert_eq!(run("1"), run("1"));
    assert_ne!(run("1").0, run("2").0);
}

#[test]
fn it_goes_on_from_a_whole_a_cut_and_a_kept_conversation() {
    let stage = Stage::new(STORY);
    well(&stage.run(&["-p", "One"]));
    let (id, lines) = stage.transcripts().remove(0);
    // Whole, under ids of their own.
    well(&stage.run(&["--continue", "--fork-session", "-p", "Two"]));
    well(&stage.run(&["--resume", &id, "--fork-session", "-p", "On"]));
    // Cut after the first tool's result, in a file of its own.
    let cut: String = lines[..5].iter().map(|line| line.to_string().replace(&id, "cut-id") + "\n").collect();
    let folder = fs::read_dir(stage.path("home/.claude/projects")).unwrap().next().unwrap().unwrap().path();
    fs::write(folder.join("cut-id.jsonl"), cut).unwrap();
    well(&stage.run(&["--resume", "cut-id", "-p", "Else"]));
    assert_eq!(stage.read("else.txt").as_deref(), Some("else\n"));
    // What comes after the cut is not known there.
    let refused = stage.run(&["--resume", "cut-id", "-p", "Two"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("the scenario has"), "{refused:?}");
    assert_eq!(stage.run(&["--resume", "nobody", "-p", "x"]).status.code(), Some(1));
}

#[test]
fn a_checkpoint_is_restored_by_id_and_nothing_is_done_again() {
    let story = STORY
        .replace("  - label: written\n", "")
        .replace("  - checkpoint: midway\n", "  - checkpoint: midway\n  - label: written\n");
    let stage = Stage::new(&story);
    well(&stage.run(&["-p", "One"]));
    let before = stage.read("a.txt");
    fs::remove_file(stage.path("work/there.txt")).unwrap();
    well(&stage.run(&["--checkpoint", "midway", "-p", "Else"]));
    assert_eq!((stage.read("a.txt"), stage.read("else.txt").as_deref()), (before, Some("else\n")));
    assert_eq!(stage.transcripts().len(), 2, "the session that kept it stays");
    assert_eq!(stage.run(&["--checkpoint", "none", "-p", "Else"]).status.code(), Some(1));
}

#[test]
fn hooks_are_told_of_a_checkpoint_until_more_is_said() {
    let at_the_end =
        STORY.replace("  - checkpoint: midway\n  - say: Done.\n", "  - say: Done.\n  - checkpoint: midway\n");
    for (story, expected) in [(STORY, &[][..]), (&at_the_end, &["Stop", "SessionEnd"])] {
        let stage = Stage::new(story).with_hooks(json!({}));
        well(&stage.run(&["-p", "One"]));
        let told: Vec<Value> = stage.events().into_iter().filter(|event| event["checkpoint_id"] == "midway").collect();
        assert_eq!(names(&told), expected);
    }
}

#[test]
fn hooks_block_fail_and_leave_variables() {
    let stage = Stage::new(
        "name: x\nsteps:\n  - prompt: One\n  - tool: {name: Write, input: {file_path: no.txt, content: x}, expect: {error: true}}\n  \
         - tool: {name: Bash, input: {command: 'echo $AH_SESSION > yes.txt'}}\n  - say: Done.\n",
    );
    let hooks = json!({
        "SessionStart": [{"hooks": [{"type": "command", "command": "echo 'export AH_SESSION=mine' >> \"$CLAUDE_ENV_FILE\""}]}],
        "PreToolUse": [{"matcher": "Edit|Write", "hooks": [{"type": "command", "command": "echo not that >&2; exit 2"}]}],
        "PostToolUse": [{"hooks": [{"type": "command", "command": "exit 1"}, {"type": "command", "timeout": 0.2, "command": "exec sleep 600"}]}],
    });
    let stage = stage.with_hooks(hooks);
    let begun = Instant::now();
    let output = stage.run(&["-p", "One"]);
    well(&output);
    assert!(begun.elapsed() < Duration::from_secs(300), "a hook that hangs is ended");
    assert_eq!((stage.read("no.txt"), stage.read("yes.txt").as_deref()), (None, Some("mine\n")));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("\"exit 1\" failed") && told.contains("took longer"), "{told}");
    let (_, lines) = stage.transcripts().remove(0);
    assert_eq!(lines[2]["message"]["content"][0]["content"], "not that");
}

#[test]
fn lines_may_be_late_and_are_lost_in_a_crash() {
    let story = "name: x\nsteps:\n  - prompt: One\n  - late_ms: LATE\n  - tool: {name: Bash, input: {command: 'true'}}\n  - say: Done.\n";
    // The hook has so long to run.
    let stage = Stage::new(&story.replace("LATE", "5000"));
    let count = format!("wc -l < \"$(echo '{}'/home/.claude/projects/*/*.jsonl)\" > count", stage.path("").display());
    let stage = stage.with_hooks(json!({"PostToolUse": [{"hooks": [{"type": "command", "command": count}]}]}));
    well(&stage.run(&["-p", "One"]));
    assert_eq!(
        stage.read("count").as_deref().map(str::trim),
        Some("1"),
        "the hook ran before the call's line was there"
    );
    assert_eq!(stage.transcripts()[0].1.len(), 4);

    let stage = Stage::new(&story.replace("LATE", "600000").replace("  - say: Done.\n", "  - crash\n"));
    let output = stage.run(&["-p", "One"]);
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&output.status), Some(9));
    assert_eq!(stage.transcripts()[0].1.len(), 1);
}

#[test]
fn a_hanging_agent_hangs_until_it_is_ended() {
    let stage = Stage::new("name: x\nsteps:\n  - prompt: One\n  - write: {path: begun, content: x}\n  - hang\n");
    let mut child = stage.command(&["-p", "One"]).spawn().unwrap();
    let begun = Instant::now();
    while stage.read("begun").is_none() {
        assert!(begun.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(child.try_wait().unwrap(), None);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn ctrl_c_interrupts_the_tool_and_the_next_prompt_goes_on() {
    let stage = Stage::new(
        "name: x\nsteps:\n  - prompt: One\n  - tool: {name: Bash, input: {command: 'touch begun; sleep 600'}}\n  - say: Never.\n  \
         - prompt: {text: Two, after_interrupt: true}\n  - say: Two done.\n",
    )
    .with_hooks(json!({}));
    let mut command = stage.command(&["One"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    while stage.read("begun").is_none() {
        assert!(begun.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(10));
    }
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT).unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"Two\n").unwrap();
    let output = child.wait_with_output().unwrap();
    well(&output);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("interrupted") && said.contains("Two done.") && !said.contains("Never"), "{said}");
    let wanted = "SessionStart UserPromptSubmit PreToolUse PostToolUseFailure UserPromptSubmit Stop SessionEnd";
    assert_eq!(names(&stage.events()).join(" "), wanted, "no Stop for what was interrupted");
}

#[test]
fn checks_exits_and_prints() {
    let stage = Stage::new("name: x\nsteps:\n  - prompt: One\n  - check: {files: {a: {is: b}}, within_ms: 50}\n");
    let output = stage.run(&["-p", "One"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("main/1: a is not there"), "{output:?}");
    let stage = Stage::new(
        "name: x\nsteps:\n  - prompt: One\n  - print: {text: \"ab\\e[0m\", char_ms: 20, times: 2}\n  - pause_ms: 40\n  - exit: 7\n",
    );
    let begun = Instant::now();
    let output = stage.run(&["-p", "One"]);
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(7), &b"ab\x1b[0mab\x1b[0m"[..]));
    assert!(begun.elapsed() >= Duration::from_millis(280));
}
