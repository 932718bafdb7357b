//! What keeps an agent from running hooks that are installed: switches in its settings.
//!
//! Of several files the strongest that has a switch decides. What an agent takes from elsewhere (a server, its command line) is not looked at.

use std::path::{Path, PathBuf};

use ah_plugin_api::{Error, ErrorKind};

use super::{Target, file, json, trust};
use crate::Agent;

/// In Claude Code's managed settings: no hooks but those that stand there.
const MANAGED_ONLY: &str = "allowManagedHooksOnly";

/// Why the agent runs no hooks of the user's, nor any given for one run, if it is told not to.
#[must_use]
pub fn switched_off(target: &Target<'_>) -> Option<Error> {
    let (file, switch) = match target.agent {
        Agent::Claude => claude(target)?,
        Agent::Codex => trust::switched_off(target.home)?,
        Agent::Gemini => gemini(target)?,
        Agent::Opencode => return None,
    };
    let message = format!("the agent runs none of your hooks: {} has {switch}", file.display());
    let managed = [&target.home.claude_managed, &target.home.codex_managed];
    let hint = match managed.into_iter().any(|folder| file.starts_with(folder)) {
        true => format!("ask whoever manages this machine to take {switch} out of it"),
        false => format!("take {switch} out of it"),
    };
    Some(Error::new(ErrorKind::FailedPrecondition, message).with_hint(hint))
}

fn claude(target: &Target<'_>) -> Option<(PathBuf, &'static str)> {
    let managed = claude_managed(&target.home.claude_managed);
    let says = |file: &PathBuf, switch| said(Agent::Claude, file, &[switch]).map(|on| (on, file.clone()));
    if let Some((true, file)) = managed.iter().find_map(|file| says(file, MANAGED_ONLY)) {
        return Some((file, MANAGED_ONLY));
    }
    let project = target.project.map(|project| project.join(".claude"));
    let own = target.home.claude.join("settings.json");
    let all = project.map(|dir| [dir.join("settings.local.json"), dir.join("settings.json")]).into_iter().flatten();
    let (_, file) = managed
        .into_iter()
        .chain(all)
        .chain([own])
        .find_map(|file| says(&file, json::SWITCH))
        .filter(|(off, _)| *off)?;
    Some((file, json::SWITCH))
}

/// The machine's settings, the strongest first: of the folder beside the file, the last by name is that (documented).
fn claude_managed(folder: &Path) -> Vec<PathBuf> {
    let beside = std::fs::read_dir(folder.join("managed-settings.d")).into_iter().flatten().flatten();
    let mut all: Vec<PathBuf> = beside.map(|entry| entry.path()).collect();
    all.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
    all.sort_by(|a, b| b.cmp(a));
    all.push(folder.join("managed-settings.json"));
    all
}

fn gemini(target: &Target<'_>) -> Option<(PathBuf, &'static str)> {
    let project = target.project.map(|project| project.join(".gemini/settings.json"));
    let own = target.home.gemini.join("settings.json");
    let said = |file: PathBuf| Some((said(Agent::Gemini, &file, &["hooksConfig", "enabled"])?, file));
    let (_, file) = project.into_iter().chain([own]).find_map(said).filter(|(on, _)| !on)?;
    Some((file, "`enabled: false` under `hooksConfig`"))
}

/// What a member of a settings file says, given by the names that lead to it.
fn said(agent: Agent, file: &Path, names: &[&str]) -> Option<bool> {
    json::said(agent, &file::Settings::read(file, None).ok()?.text?, names)
}
