//! What a tool call does: the edit tools and the shell of Claude Code, as far as their effect on files goes.

use std::fs::{self, File};
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::Interrupt;
use super::hooks::Hooks;
use super::start::Options;

/// What came of a call.
#[derive(Debug, Default)]
pub(super) struct Done {
    /// What the model is told.
    pub content: String,
    /// Whether it failed.
    pub error: bool,
    /// Whether the person interrupted it.
    pub interrupted: bool,
    /// `tool_response` of hooks, `toolUseResult` of transcripts.
    pub response: Value,
}

impl Done {
    pub(super) fn failed(content: impl Into<String>) -> Self {
        let content = content.into();
        Self { response: json!(content), content, error: true, interrupted: false }
    }

    fn well(content: impl Into<String>, response: Value) -> Self {
        Self { content: content.into(), response, ..Self::default() }
    }
}

/// Does what `name` does; none if there is no such tool here.
pub(super) fn run(name: &str, input: &Value, options: &Options, hooks: &Hooks, interrupt: &Interrupt) -> Option<Done> {
    let text = |name: &str| input[name].as_str().unwrap_or_default();
    let path = || options.cwd.join(text("file_path"));
    Some(match name {
        "Write" => write(&path(), text("content")),
        "Edit" => edit(&path(), text("old_string"), text("new_string"), input["replace_all"] == true),
        "Read" => match fs::read_to_string(path()) {
            Ok(content) => Done::well(content.clone(), json!({"type": "text", "file": {"content": content}})),
            Err(error) => Done::failed(error.to_string()),
        },
        "Bash" => shell(text("command"), options, hooks, interrupt),
        "exec_command" => shell(text("cmd"), options, hooks, interrupt),
        _ => return None,
    })
}

fn write(path: &PathBuf, content: &str) -> Done {
    let before = fs::read_to_string(path).ok();
    let made = path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(path, content));
    let kind = if before.is_some() { "update" } else { "create" };
    match made {
        Ok(()) => Done::well(
            format!("File {kind}d successfully at: {}", path.display()),
            json!({"type": kind, "filePath": path, "content": content, "originalFile": before}),
        ),
        Err(error) => Done::failed(error.to_string()),
    }
}

fn edit(path: &PathBuf, old: &str, new: &str, all: bool) -> Done {
    let before = match fs::read_to_string(path) {
        Ok(before) => before,
        Err(error) => return Done::failed(format!("{}: {error}", path.display())),
    };
    let found = if old.is_empty() { 0 } else { before.matches(old).count() };
    if found == 0 || (found > 1 && !all) {
        return Done::failed(format!("the text to replace is there {found} times"));
    }
    match fs::write(path, before.replace(old, new)) {
        Ok(()) => Done::well(
            format!("The file {} has been updated successfully.", path.display()),
            json!({"filePath": path, "oldString": old, "newString": new, "originalFile": before, "replaceAll": all}),
        ),
        Err(error) => Done::failed(error.to_string()),
    }
}

/// Runs a command as the agent's shell does; what it leaves running goes on.
pub(super) fn shell(line: &str, options: &Options, hooks: &Hooks, interrupt: &Interrupt) -> Done {
    match shell_or(line, options, hooks, interrupt) {
        Ok(done) => done,
        Err(error) => Done::failed(format!("the shell cannot be run: {error}")),
    }
}

fn shell_or(line: &str, options: &Options, hooks: &Hooks, interrupt: &Interrupt) -> std::io::Result<Done> {
    // A file rather than a pipe: a background process may hold it without being waited for.
    let mut output = unnamed(&options.config)?;
    let mut command = Command::new("bash");
    if hooks.env_file.exists() {
        command.args(["-c", r#". "$0"; eval "$1""#]).arg(&hooks.env_file).arg(line);
    } else {
        command.args(["-c", line]);
    }
    command
        .envs(options.environment.iter().map(|(name, value)| (name, value)))
        .envs(hooks.environment.iter().map(|(name, value)| (name, value)))
        .env("CLAUDECODE", "1")
        .current_dir(&options.cwd)
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output.try_clone()?)
        .process_group(0);
    let mut child = command.spawn()?;
    let mut interrupted = false;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if interrupt.wait(Duration::from_millis(2)) && !interrupted {
            interrupted = true;
            if let Some(group) = rustix::process::Pid::from_raw(child.id().cast_signed()) {
                let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            }
        }
        if interrupted {
            // The flag stays up; do not spin.
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    let mut text = Vec::new();
    output.rewind()?;
    output.read_to_end(&mut text)?;
    let text = String::from_utf8_lossy(&text).trim_end().to_owned();
    let response = json!({"stdout": text, "stderr": "", "interrupted": interrupted, "isImage": false});
    let content = match (status.code(), text.is_empty()) {
        (Some(0), true) => "(Bash completed with no output)".to_owned(),
        (Some(0), false) => text,
        (code, _) => format!("Exit code {}\n{text}", code.unwrap_or(137)).trim_end().to_owned(),
    };
    Ok(Done { content, error: !status.success(), interrupted, response })
}

/// A file without a name.
fn unnamed(folder: &Path) -> std::io::Result<File> {
    use rustix::fs::{Mode, OFlags};
    Ok(rustix::fs::open(folder, OFlags::TMPFILE | OFlags::RDWR, Mode::RUSR | Mode::WUSR)?.into())
}
