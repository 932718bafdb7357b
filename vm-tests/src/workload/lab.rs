//! One workspace, the `ah` that is called on it, the book that is kept, and the line to the host.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

use ah_core::{Access, Engine, ProviderSource, Settings, Workspace};
use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::random::Random;
use crate::record::{Book, Line, Report};

pub(super) struct Lab {
    pub(super) name: String,
    pub(super) folder: PathBuf,
    pub(super) book: Book,
    pub(super) random: Random,
    provider: String,
    log: Arc<Mutex<File>>,
}

impl Lab {
    pub(super) fn new(
        name: String,
        provider: &str,
        folder: &Path,
        book: Book,
        random: Random,
        log: Arc<Mutex<File>>,
    ) -> Self {
        Self { name, folder: folder.to_owned(), book, random, provider: provider.to_owned(), log }
    }

    pub(super) fn workspace(&self) -> PathBuf {
        self.folder.join("work")
    }

    /// Tells the host, which has it when this returns, and enters it in the book.
    pub(super) fn say(&mut self, report: Report) -> Result<()> {
        self.book.enter(&report);
        let mut line = serde_json::to_vec(&Line { place: self.name.clone(), report })?;
        line.push(b'\n');
        // One write: lines of several threads must not mix.
        self.log.lock().unwrap_or_else(PoisonError::into_inner).write_all(&line)?;
        Ok(())
    }

    /// The workspace, as `ah` opens it.
    pub(super) fn open(&self) -> Result<Workspace> {
        let home = self.folder.join("home");
        let mut settings = Settings::new(home.join("ah"), ProviderSource::Plugins(Vec::new()));
        settings.exe_dir = std::env::current_exe()?.parent().map(Path::to_owned);
        settings.user_home = Some(home);
        settings.flags = [("provider".to_owned(), self.provider.as_str().into())].into();
        Ok(Engine::open(settings)?.workspace(&self.workspace(), Access::Existing)?)
    }

    /// What `ah agent fs …` answers.
    pub(super) fn ah(&self, arguments: &[&str]) -> Result<Value> {
        let home = self.folder.join("home");
        let output = Command::new("ah")
            .args(["agent", "fs"])
            .args(arguments)
            .args(["--json", "--provider", &self.provider])
            .current_dir(self.workspace())
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", &home)
            .env("AH_HOME", home.join("ah"))
            .output()
            .context("ah")?;
        let text = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            bail!("ah agent fs {}: {}: {}{}", arguments.join(" "), output.status, text.trim(), errors.trim());
        }
        serde_json::from_str(&text).with_context(|| format!("ah agent fs {}: {text}", arguments.join(" ")))
    }
}

/// The text at a path of an answer.
pub(super) fn text<'v>(answer: &'v Value, pointer: &str) -> Result<&'v str> {
    answer.pointer(pointer).and_then(Value::as_str).with_context(|| format!("no {pointer} in {answer}"))
}

/// The list at a path of an answer.
pub(super) fn list<'v>(answer: &'v Value, pointer: &str) -> Result<&'v Vec<Value>> {
    answer.pointer(pointer).and_then(Value::as_array).with_context(|| format!("no {pointer} in {answer}"))
}
