//! The hooks that are configured for Claude Code, and running them as it does.
//!
//! They are read from the files that Claude Code reads: the user's settings, the project's, the project's local ones, and those of
//! this run. All commands of an event run at the same time, each with the event as JSON on stdin; exit 2 blocks, every other
//! failure is told and changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::start::Options;

/// How long a command may take if the settings do not say.
const TIMEOUT: Duration = Duration::from_secs(60);

/// What is configured.
#[derive(Debug, Default)]
pub(super) struct Hooks {
    /// By event: the tools that it is for, and the command.
    commands: BTreeMap<String, Vec<Configured>>,
    /// What the settings add to the environment.
    pub environment: Vec<(String, String)>,
    /// The file in which a hook leaves variables for what the agent runs.
    pub env_file: PathBuf,
    /// Not waited for.
    behind: Mutex<Vec<Child>>,
}

#[derive(Debug)]
struct Configured {
    matcher: String,
    command: String,
    timeout: Duration,
    behind: bool,
}

/// What the hooks said.
#[derive(Debug, Default)]
pub(super) struct Said {
    /// Why what was to happen must not.
    pub blocked: Option<String>,
}

impl Hooks {
    /// Reads the settings.
    pub(super) fn read(options: &Options, session: &str) -> Self {
        let mut hooks = Self::default();
        hooks.env_file = options.config.join(format!("session-env-{session}.sh"));
        let project = options.cwd.join(".claude");
        let files =
            [options.config.join("settings.json"), project.join("settings.json"), project.join("settings.local.json")];
        for file in files {
            hooks.take_file(&file);
        }
        match options.settings.as_deref() {
            Some(text) if text.trim_start().starts_with('{') => hooks.take(text, "--settings"),
            Some(file) => hooks.take_file(Path::new(file)),
            None => {}
        }
        hooks
    }

    fn take_file(&mut self, file: &Path) {
        if let Ok(text) = fs::read_to_string(file) {
            self.take(&text, &file.display().to_string());
        }
    }

    fn take(&mut self, text: &str, whence: &str) {
        let settings: Value = match serde_json::from_str(text) {
            Ok(settings) => settings,
            // As Claude Code: what cannot be read does not count.
            Err(error) => return eprintln!("warning: {whence} does not count: {error}"),
        };
        for (name, value) in settings["env"].as_object().into_iter().flatten() {
            self.environment.push((name.clone(), value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned)));
        }
        for (event, groups) in settings["hooks"].as_object().into_iter().flatten() {
            for group in groups.as_array().into_iter().flatten() {
                for hook in group["hooks"].as_array().into_iter().flatten() {
                    let Some(command) = hook["command"].as_str() else { continue };
                    self.commands.entry(event.clone()).or_default().push(Configured {
                        matcher: group["matcher"].as_str().unwrap_or_default().to_owned(),
                        command: command.to_owned(),
                        timeout: hook["timeout"].as_f64().map_or(TIMEOUT, Duration::from_secs_f64),
                        behind: hook["async"] == true,
                    });
                }
            }
        }
    }

    /// Runs all that is configured for an event. `subject` is what matchers look at: a tool's name, a source.
    pub(super) fn call(&self, options: &Options, event: &Value, subject: &str) -> Said {
        let name = event["hook_event_name"].as_str().unwrap_or_default();
        let configured = self.commands.get(name).map(Vec::as_slice).unwrap_or_default();
        let mut seen = BTreeSet::new();
        let due = configured.iter().filter(|hook| matches(&hook.matcher, subject) && seen.insert(&hook.command));
        let mut said = Said::default();
        let mut running = Vec::new();
        for hook in due {
            match self.begin(options, hook, name, event) {
                Ok(child) if hook.behind => self.behind.lock().unwrap_or_else(PoisonError::into_inner).push(child),
                Ok(child) => running.push((hook, child)),
                Err(error) => eprintln!("warning: {name} hook {:?} cannot be run: {error}", hook.command),
            }
        }
        for (hook, child) in running {
            end(child, hook, name, &mut said);
        }
        said
    }

    fn begin(&self, options: &Options, hook: &Configured, name: &str, event: &Value) -> std::io::Result<Child> {
        let mut command = Command::new("sh");
        command
            .args(["-c", &hook.command])
            .envs(options.environment.iter().map(|(name, value)| (name, value)))
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .env("CLAUDE_PROJECT_DIR", &options.cwd)
            .current_dir(&options.cwd)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if name == "SessionStart" {
            command.env("CLAUDE_ENV_FILE", &self.env_file);
        }
        let mut child = command.spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            // A hook need not read what it is told.
            let _ = stdin.write_all(event.to_string().as_bytes());
        }
        Ok(child)
    }
}

impl Drop for Hooks {
    fn drop(&mut self) {
        for child in self.behind.get_mut().unwrap_or_else(PoisonError::into_inner) {
            let _ = child.wait();
        }
        let _ = fs::remove_file(&self.env_file);
    }
}

/// Waits for a command, and takes up what it said.
fn end(mut child: Child, hook: &Configured, name: &str, said: &mut Said) {
    let pipe = |pipe: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut text = Vec::new();
            // What a hook leaves running may hold the pipe; then what there is counts.
            let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut text));
            String::from_utf8_lossy(&text).into_owned()
        })
    };
    let out = pipe(child.stdout.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>));
    let error = pipe(child.stderr.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>));
    let until = Instant::now() + hook.timeout;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(1)),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                eprintln!("warning: {name} hook {:?} took longer than {:?}", hook.command, hook.timeout);
                return;
            }
        }
    };
    let (out, error) = (out.join().unwrap_or_default(), error.join().unwrap_or_default());
    match status.code() {
        Some(0) => {
            let answer: Value = serde_json::from_str(out.trim()).unwrap_or_else(|_| json!({}));
            let decision = &answer["hookSpecificOutput"]["permissionDecision"];
            if answer["decision"] == "block" || *decision == "deny" {
                let reason =
                    answer["reason"].as_str().or(answer["hookSpecificOutput"]["permissionDecisionReason"].as_str());
                said.blocked = Some(reason.unwrap_or("a hook said no").to_owned());
            }
        }
        Some(2) => said.blocked = Some(error.trim().to_owned()),
        _ => eprintln!("warning: {name} hook {:?} failed ({status}): {}", hook.command, error.trim()),
    }
}

/// Whether a matcher means a subject: nothing and `*` mean all, `A|B` either.
fn matches(matcher: &str, subject: &str) -> bool {
    matches!(matcher, "" | "*" | ".*") || matcher.split('|').any(|name| name == subject)
}
