//! A conversation, played; and the stand-in for the agent that goes on with it.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::support::{Ran, User, World};

/// Which agent's forms are played.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Claude,
    Codex,
}

impl Form {
    pub(crate) const BOTH: [Self; 2] = [Self::Claude, Self::Codex];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Claude => "claude",
            Self::Codex => "codex",
        }
    }
}

/// Finds the transcript as the real one does, by the directory it runs in, and by the id.
const CLAUDE: &str = r#"#!/bin/sh
# A stand-in for Claude Code: says how it was called, and what it finds.
out=${STAND_IN_OUT:?}
if [ "$1" = --settings ]; then printf '%s' "$2" >"$out/settings"; shift 2; fi
printf '%s\n' "$@" >"$out/argv"
pwd >"$out/cwd"; printf '%s' "$AH_SESSION" >"$out/session"; cp a "$out/a" 2>/dev/null
[ "$1" = --resume ] || exit 0
project=$(pwd | sed 's/[^a-zA-Z0-9]/-/g')
cp "$HOME/.claude/projects/$project/$2.jsonl" "$out/transcript" || { echo "No conversation found with session ID: $2" >&2; exit 1; }
"#;

/// Finds it by the id alone.
const CODEX: &str = r#"#!/bin/sh
# A stand-in for Codex: says how it was called, and what it finds.
out=${STAND_IN_OUT:?}
printf '%s\n' "$@" >"$out/argv"
pwd >"$out/cwd"; printf '%s' "$AH_SESSION" >"$out/session"; cp a "$out/a" 2>/dev/null
while [ $# -gt 0 ]; do
    case $1 in
        exec | --skip-git-repo-check) shift ;;
        --cd | -c) shift 2 ;;
        resume) resume=yes; shift ;;
        *) break ;;
    esac
done
[ -n "$resume" ] || exit 0
file=$(find "$HOME/.codex/sessions" -name "rollout-*-$1.jsonl")
[ -n "$file" ] || { echo "no rollout found for $1" >&2; exit 1; }
cp "$file" "$out/transcript"
"#;

/// A conversation that is played in a world's workspace.
pub(crate) struct Play<'w> {
    pub(crate) world: &'w World,
    form: Form,
    /// The agent's id of its session.
    pub(crate) id: String,
    pub(crate) file: PathBuf,
    cwd: PathBuf,
    lines: u32,
    turn: u32,
    last: Option<String>,
}

impl<'w> Play<'w> {
    /// A session that has just begun, with the stand-in on the `PATH` of [`ah`].
    pub(crate) fn begin(world: &'w World, form: Form) -> Self {
        Self::begin_as(world, form, "11111111-2222-4333-8444-555555555555")
    }

    pub(crate) fn begin_as(world: &'w World, form: Form, id: &str) -> Self {
        Self::begin_at(world, form, id, &world.root())
    }

    /// Of an agent that works at `cwd`, the workspace itself or what `exec` shows there.
    pub(crate) fn begin_at(world: &'w World, form: Form, id: &str, cwd: &Path) -> Self {
        use std::os::unix::fs::PermissionsExt;
        for folder in ["bin", "out"] {
            fs::create_dir_all(world.path(folder)).unwrap();
        }
        let program = world.path("bin").join(form.name());
        fs::write(&program, if form == Form::Claude { CLAUDE } else { CODEX }).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let file = match form {
            Form::Claude => {
                let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
                let project: String = world.root().to_str().unwrap().chars().map(plain).collect();
                world.path("home/.claude/projects").join(project).join(format!("{id}.jsonl"))
            }
            Form::Codex => {
                world.path("home/.codex/sessions/2026/11/21").join(format!("rollout-2026-11-21T09-30-00-{id}.jsonl"))
            }
        };
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        world.give_away();
        let mut play =
            Self { world, form, id: id.to_owned(), file, cwd: cwd.to_owned(), lines: 0, turn: 0, last: None };
        if form == Form::Codex {
            let root = world.root();
            let meta = json!({"id": id, "timestamp": now(), "cwd": root, "originator": "codex_cli_rs", "cli_version": "0.169.0", "source": "cli"});
            play.rollout("session_meta", &meta);
        }
        play.hook(json!({"hook_event_name": "SessionStart", "source": "startup"}));
        play
    }

    /// A turn: a prompt, a tool that does `work`, an answer.
    pub(crate) fn turn(&mut self, prompt: &str, work: impl FnOnce(&World)) {
        self.prompt(prompt);
        self.tool(work);
        self.stop(&format!("done with {prompt}"));
    }

    /// What a person types. The line comes after the hook, as the agents write it.
    pub(crate) fn prompt(&mut self, text: &str) {
        self.turn += 1;
        self.hook(json!({"hook_event_name": "UserPromptSubmit", "prompt": text}));
        match self.form {
            Form::Claude => self.message("user", &json!(text)),
            Form::Codex => {
                let turn = format!("turn-{}", self.turn);
                self.rollout("event_msg", &json!({"type": "task_started", "turn_id": turn}));
                self.rollout("turn_context", &json!({"cwd": self.world.root(), "model": "m", "turn_id": turn}));
                let content = json!([{"type": "input_text", "text": text}]);
                self.rollout("response_item", &json!({"type": "message", "role": "user", "content": content}));
                self.rollout("event_msg", &json!({"type": "user_message", "message": text}));
            }
        }
    }

    /// A tool that does `work`. Its result is written after the hook.
    pub(crate) fn tool(&mut self, work: impl FnOnce(&World)) {
        let id = format!("toolu_{}", self.lines);
        let call = json!({"tool_name": "Bash", "tool_use_id": id, "tool_input": {"command": "work"}});
        match self.form {
            Form::Claude => self.message(
                "assistant",
                &json!([{"type": "tool_use", "id": id, "name": "Bash", "input": {"command": "work"}}]),
            ),
            Form::Codex => self.rollout(
                "response_item",
                &json!({"type": "function_call", "name": "exec_command", "arguments": "{}", "call_id": id}),
            ),
        }
        self.hook(with(&call, json!({"hook_event_name": "PreToolUse"})));
        work(self.world);
        self.hook(with(&call, json!({"hook_event_name": "PostToolUse", "tool_response": {"stdout": "ok"}})));
        match self.form {
            Form::Claude => {
                self.message("user", &json!([{"type": "tool_result", "tool_use_id": id, "content": "ok"}]));
            }
            Form::Codex => {
                self.rollout("response_item", &json!({"type": "function_call_output", "call_id": id, "output": "ok"}));
            }
        }
    }

    /// The agent answers, and waits.
    pub(crate) fn stop(&mut self, text: &str) {
        match self.form {
            Form::Claude => self.message("assistant", &json!([{"type": "text", "text": text}])),
            Form::Codex => {
                let content = json!([{"type": "output_text", "text": text}]);
                self.rollout("response_item", &json!({"type": "message", "role": "assistant", "content": content}));
            }
        }
        self.hook(json!({"hook_event_name": "Stop", "stop_hook_active": false}));
    }

    /// The agent ends its session.
    pub(crate) fn end(&mut self) {
        self.hook(json!({"hook_event_name": "SessionEnd", "reason": "other"}));
    }

    fn message(&mut self, role: &str, content: &Value) {
        let uuid = format!("00000000-0000-4000-8000-{:012}", self.lines);
        let line = json!({
            "parentUuid": self.last, "isSidechain": false, "userType": "external", "cwd": self.world.root(),
            "sessionId": self.id, "version": "2.1.197", "gitBranch": "", "type": role,
            "message": {"role": role, "content": content}, "uuid": uuid, "timestamp": now(),
        });
        self.last = Some(uuid);
        self.line(&line.to_string());
    }

    fn rollout(&mut self, kind: &str, payload: &Value) {
        self.line(&json!({"timestamp": now(), "type": kind, "payload": payload}).to_string());
    }

    /// Appends a line as it is.
    pub(crate) fn line(&mut self, line: &str) {
        let mut file = OpenOptions::new().create(true).append(true).open(&self.file).unwrap();
        writeln!(file, "{line}").unwrap();
        self.lines += 1;
        give(self.world, &self.file);
    }

    /// Has all lines say that they are from three hours later, as they do once the clock is set back.
    pub(crate) fn later(&self) {
        let text = fs::read_to_string(&self.file).unwrap();
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        for line in &mut lines {
            let said: Value = serde_json::from_str(line).unwrap();
            let time = said["timestamp"].as_str().unwrap();
            let later = time.parse::<jiff::Timestamp>().unwrap() + jiff::SignedDuration::from_hours(3);
            *line = line.replace(time, &format!("{later:.3}"));
        }
        fs::write(&self.file, lines.join("\n") + "\n").unwrap();
    }

    /// Calls the hook as the agent does.
    pub(crate) fn hook(&self, event: Value) {
        let common = json!({
            "session_id": self.id, "transcript_path": self.file, "cwd": self.cwd,
            "prompt_id": format!("{}-{}", self.id, self.turn),
        });
        let mut command = self.world.command(["hook", self.form.name()]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(with(&common, event).to_string().as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    }

    /// Waits until every moment knows its snapshot.
    pub(crate) fn settle(&self) {
        for _ in 0..200 {
            if self.moments().iter().all(|moment| moment["snapshot"].is_string() || moment["reason"].is_string()) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        panic!("moments are not settled: {:#?}", self.moments());
    }

    /// The moments of the workspace, with what became of each.
    pub(crate) fn moments(&self) -> Vec<Value> {
        let timeline: Value = serde_json::from_str(&self.world.run(["timeline", "--json"]).stdout).unwrap();
        let mut moments: Vec<Value> = Vec::new();
        for event in timeline["events"].as_array().unwrap() {
            match event["type"].as_str().unwrap() {
                "moment" => moments.push(event.clone()),
                "moment-update" => {
                    let moment = moments.iter_mut().find(|moment| moment["id"] == event["moment"]).unwrap();
                    for (key, value) in event.as_object().unwrap() {
                        if !["seq", "time", "type", "moment"].contains(&key.as_str()) {
                            moment[key] = value.clone();
                        }
                    }
                }
                _ => {}
            }
        }
        moments
    }

    /// The ids of the moments of a kind, oldest first.
    pub(crate) fn of_kind(&self, kind: &str) -> Vec<String> {
        let all = self.moments();
        all.iter().filter(|moment| moment["kind"] == kind).map(|m| m["id"].as_str().unwrap().to_owned()).collect()
    }

    /// `ah` with the stand-in to be found.
    pub(crate) fn ah(&self, words: &[&str]) -> Command {
        let mut command = self.world.command(words);
        self.dress(&mut command);
        command
    }

    /// As `ah` in a shell would have it.
    pub(crate) fn dress(&self, command: &mut Command) {
        let ah = crate::support::ah().parent().unwrap().display().to_string();
        let path = format!("{}:{ah}:/usr/local/bin:/usr/bin:/bin", self.world.path("bin").display());
        command.env("PATH", path).env("STAND_IN_OUT", self.world.path("out"));
    }

    /// Runs it, which must succeed.
    pub(crate) fn run(&self, words: &[&str]) -> Ran {
        let ran = Ran::of(&mut self.ah(words));
        assert_eq!(ran.code, 0, "{words:?}: {ran:?}");
        ran
    }

    /// Runs it with `--json`, which must succeed and keep the shape.
    pub(crate) fn json(&self, shape: &str, words: &[&str]) -> Value {
        let words: Vec<&str> = words.iter().copied().chain(["--json"]).collect();
        let value = serde_json::from_str(&self.run(&words).stdout).unwrap();
        crate::support::schema::check(shape, &value);
        value
    }

    /// Runs a line that `ah` printed, in a shell and another directory, as the same user.
    pub(crate) fn shell(&self, line: &str) -> Ran {
        let command = self.world.command(["--version"]);
        let mut shell = Command::new(command.get_program());
        let words: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
        // As `World::command` becomes another user, if it does.
        let ah = words.iter().position(|word| word == crate::support::ah());
        match ah {
            Some(at) => drop(shell.args(&words[..at]).arg("sh")),
            None => shell = Command::new("sh"),
        }
        shell.arg("-c").arg(line).env_clear();
        shell.envs(command.get_envs().filter_map(|(key, value)| Some((key, value?))));
        self.dress(&mut shell);
        Ran::of(shell.current_dir("/").stdin(Stdio::null()))
    }

    /// What the stand-in wrote down.
    pub(crate) fn told(&self, what: &str) -> String {
        fs::read_to_string(self.world.path("out").join(what)).unwrap_or_default()
    }

    /// Forgets what it wrote down.
    pub(crate) fn forget(&self) {
        for file in fs::read_dir(self.world.path("out")).unwrap() {
            fs::remove_file(file.unwrap().path()).unwrap();
        }
    }

    /// The transcripts in the agent's home, with their contents.
    pub(crate) fn transcripts(&self) -> Vec<(PathBuf, String)> {
        let mut found = Vec::new();
        let top = self.world.path("home").join(format!(".{}", self.form.name()));
        collect(&top, &mut found);
        found.sort();
        found
    }
}

/// Writes a file of the workspace, beside whatever `ah` does behind.
pub(crate) fn put(world: &World, name: &str, text: &str) {
    let path = world.root().join(name);
    fs::write(&path, text).unwrap();
    give(world, &path);
}

/// Hands one file to the user that `ah` runs as.
fn give(world: &World, path: &Path) {
    if world.user == User::Ordinary {
        std::os::unix::fs::chown(path, Some(65534), Some(65534)).unwrap();
    }
}

fn collect(folder: &Path, found: &mut Vec<(PathBuf, String)>) {
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, found);
        } else {
            found.push((path.clone(), fs::read_to_string(&path).unwrap()));
        }
    }
}

fn with(one: &Value, other: Value) -> Value {
    let mut both = one.as_object().unwrap().clone();
    if let Value::Object(other) = other {
        both.extend(other);
    }
    Value::Object(both)
}

fn now() -> String {
    format!("{:.3}", jiff::Timestamp::now())
}
