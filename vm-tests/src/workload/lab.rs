//! One workspace, the `ah` that is called on it, the book that is kept, and the line to the host.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

use ah_core::{Access, Engine, HelperSocket, ProviderSource, SeekOptions, Settings};
use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::tree::{self, Tree};
use crate::kinds::Kind;
use crate::random::Random;
use crate::record::{Book, Line, Report};

pub(super) struct Lab {
    pub(super) kind: &'static Kind,
    pub(super) folder: PathBuf,
    pub(super) book: Book,
    pub(super) random: Random,
    log: Log,
}

/// The line to the host.
#[derive(Clone)]
pub(super) struct Log(Arc<Mutex<File>>);

impl Log {
    pub(super) fn open(path: &Path) -> Result<Self> {
        Ok(Self(Arc::new(Mutex::new(File::options().write(true).open(path)?))))
    }

    /// Tells the host, which has it when this returns.
    pub(super) fn say(&self, lab: &str, report: Report) -> Result<()> {
        let mut line = serde_json::to_vec(&Line { lab: lab.to_owned(), report })?;
        line.push(b'\n');
        // One write: lines of several threads must not mix.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write_all(&line)?;
        Ok(())
    }
}

impl Lab {
    pub(super) fn new(kind: &'static Kind, book: Book, random: Random, log: Log) -> Self {
        Self { kind, folder: kind.folder(), book, random, log }
    }

    pub(super) fn workspace(&self) -> PathBuf {
        self.folder.join("work")
    }

    /// The workspace's owner changes something in it.
    pub(super) fn change(&mut self) -> Result<()> {
        self.say(Report::Change)?;
        tree::change_for(self.kind, &self.workspace(), &mut self.random).context("changing the workspace")
    }

    /// Tells the host, and enters it in the book.
    pub(super) fn say(&mut self, report: Report) -> Result<()> {
        self.book.enter(&report);
        self.log.say(self.kind.name, report)
    }

    /// A program, run by the workspace's owner in the workspace.
    pub(super) fn command(&self, program: &str) -> Command {
        let home = self.folder.join("home");
        let mut command = Command::new(program);
        command
            .current_dir(self.workspace())
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", &home)
            .env("AH_HOME", home.join("ah"));
        if self.kind.uid() != 0 {
            command.uid(self.kind.uid()).gid(self.kind.uid());
        }
        command
    }

    /// What `ah agent fs …` answers.
    pub(super) fn ah(&self, arguments: &[&str]) -> Result<Value> {
        let mut command = self.command("ah");
        command.args(["agent", "fs"]).args(arguments).args(["--json", "--provider", self.kind.provider]);
        let text = printed(&mut command).with_context(|| format!("ah agent fs {}", arguments.join(" ")))?;
        serde_json::from_str(&text).with_context(|| format!("ah agent fs {}: {text}", arguments.join(" ")))
    }

    /// What snapshots show, in views, by one process: emulated, a program's start takes longer than all that it then does.
    pub(super) fn views<'i>(&self, ids: impl Iterator<Item = &'i String>) -> Result<BTreeMap<String, Tree>> {
        let text = printed(self.command("ah-vm").args(["views", self.kind.name]).args(ids))?;
        Ok(serde_json::from_str(&text)?)
    }
}

/// What a program prints, which must end well.
pub(super) fn printed(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| command.get_program().display().to_string())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!("{}: {}{}", output.status, text.trim(), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(text)
}

/// What `Lab::views` prints.
pub fn views(kind: &Kind, ids: &[String]) -> Result<BTreeMap<String, Tree>> {
    let home = kind.folder().join("home");
    let mut settings = Settings::new(home.join("ah"), ProviderSource::Plugins(Vec::new()));
    settings.exe_dir = std::env::current_exe()?.parent().map(Path::to_owned);
    settings.user_home = Some(home);
    settings.flags = [("provider".to_owned(), kind.provider.into())].into();
    settings.helper = Some(HelperSocket { path: ah_host::helper::SOCKET.into(), named: false });
    let workspace = Engine::open(settings)?.workspace(&kind.folder().join("work"), Access::Existing)?;
    let shown = ids.iter().map(|id| {
        let lease = workspace.seek(id, &SeekOptions::default()).with_context(|| format!("snapshot {id} is listed"))?;
        let tree = tree::of(&lease.path).with_context(|| format!("the view of {id}"))?;
        Ok((id.clone(), tree))
    });
    shown.collect()
}

/// The text at a path of an answer.
pub(super) fn text<'v>(answer: &'v Value, pointer: &str) -> Result<&'v str> {
    answer.pointer(pointer).and_then(Value::as_str).with_context(|| format!("no {pointer} in {answer}"))
}

/// The list at a path of an answer.
pub(super) fn list<'v>(answer: &'v Value, pointer: &str) -> Result<&'v Vec<Value>> {
    answer.pointer(pointer).and_then(Value::as_array).with_context(|| format!("no {pointer} in {answer}"))
}
