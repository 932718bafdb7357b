//! Hooks of `ah` in an agent's settings: putting them there, taking them out, and looking.
//!
//! | agent | for the user | for a project (`Scope::Project`, not to be committed) |
//! |---|---|---|
//! | Claude Code | `~/.claude/settings.json` | `.claude/settings.local.json` |
//! | Codex | `$CODEX_HOME/hooks.json` | — |
//! | Gemini CLI | `~/.gemini/settings.json` | — |
//! | opencode | a plugin, `~/.config/opencode/plugins/ah.js` | — |
//!
//! What others wrote stays as it is, order and comments included. Before a change the file is kept in [`Target::backups`], where nothing is removed that may be the only copy; if nobody changes it until the
//! hooks are taken out, it is put back byte for byte, else only what is ours is taken out: within `hooks` the lines and spaces may then be others. Files are
//! replaced in one step, with owner, mode, access list and attributes kept; through a symlink if the user's file is one, never through one in a project.
//! What root makes in a user's folder is that user's.
//!
//! The command that is written ends with 0 and does nothing where the `ah` that wrote it is gone, which [`status`] says, or cannot be run. That `ah` is known by
//! every path that leads to it.
//!
//! Not here: what a hook does when it is called ([`crate::hook`], `core`).

mod backup;
mod events;
mod file;
mod json;
mod plugin;
mod surrogates;
mod switches;
mod trust;

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ah_plugin_api::{Error, ErrorKind, Result, text};
use serde::{Deserialize, Serialize};

pub use switches::switched_off;

use crate::{Agent, Home};

/// Whose settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// The user's, for all projects.
    User,
    /// The project's, in the file that is not to be committed.
    Project,
}

/// Which settings, and how to get at them.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    /// The agent.
    pub agent: Agent,
    /// Whose.
    pub scope: Scope,
    /// Where the agent keeps its things.
    pub home: &'a Home,
    /// The top of the project, absolute; needed for [`Scope::Project`], and looked at by [`status`]: it may switch off what is the user's.
    pub project: Option<&'a Path>,
    /// A folder of ours for copies of what settings were before; made if it is missing.
    pub backups: &'a Path,
    /// The `ah` that hooks call, absolute.
    pub ah: &'a Path,
}

/// What [`install`] or [`uninstall`] did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The settings file.
    pub file: PathBuf,
    /// False if it was as wanted already.
    pub changed: bool,
    /// Where the file as it was before the hooks is kept; `None` if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup: Option<PathBuf>,
    /// Where something is kept that was there and is not any more: the file as it was before earlier hooks, if not all of that stands in it, or a plugin of ours that somebody had added to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aside: Option<PathBuf>,
    /// True if the file is again what it was before [`install`], byte for byte.
    #[serde(default)]
    pub restored: bool,
    /// True if hooks of others stand at other places in the file now, and the agent is one that trusts a hook by its place: it asks for them again.
    #[serde(default)]
    pub moved: bool,
    /// True if there was nothing to take out of a file that does not say all that it said before the hooks: [`Change::backup`] may be the only copy.
    #[serde(default)]
    pub lost: bool,
}

/// Whether hooks are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Installed {
    /// None of ours.
    No,
    /// Some of ours, two of one event, or ones that call another `ah`, or not always: `install` brings them up to date.
    Partly,
    /// All, as `install` would write them.
    Yes,
}

/// What [`status`] finds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The settings file.
    pub file: PathBuf,
    /// Whether hooks are there.
    pub installed: Installed,
    /// Whether the agent runs them: Codex asks a person first, and says so in its configuration. `None` where there is no such question, or it cannot
    /// be told.
    pub trusted: Option<bool>,
    /// The agent's names of the events that are hooked.
    pub events: Vec<String>,
    /// Those of them at which the agent calls this `ah` without being given anything for one run.
    pub calls: Vec<String>,
    /// The `ah` that hooks call, as they name it.
    pub ah: Option<PathBuf>,
    /// Hooks of others in the same file.
    pub others: usize,
    /// Another file of the agent's in which hooks stand, too: Codex runs both, and warns of that at each start.
    pub beside: Option<PathBuf>,
    /// Why nothing can be said, such as a file that is not JSON (`installed` is then `No`), or why nothing comes of the hooks: the `ah` that they call is gone,
    /// all hooks are switched off, or nobody can tell whether they are trusted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Error>,
}

/// What to add to an agent's command line so that hooks run this once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OneRun {
    /// Arguments, to be put right behind the program's name.
    pub args: Vec<OsString>,
    /// Variables to set.
    pub env: Vec<(OsString, OsString)>,
}

/// Puts the hooks into the settings; does nothing if they are there.
///
/// # Errors
/// `FailedPrecondition` if the file is not what the agent could read (nothing is touched, the hint says where it is wrong); `Unsupported` for a scope
/// that the agent has not; `Conflict` if somebody else writes at the same moment; the filesystem's own errors.
pub fn install(target: &Target<'_>) -> Result<Change> {
    let place = place_of(target)?;
    let wanted = wanted(target)?;
    let settings = file::Settings::read(&place, project_of(target))?;
    backup::follow(target)?;
    let text = match settings.text.as_deref() {
        Some(text) if target.agent == Agent::Opencode && !plugin::is_ours(text) => {
            return Err(plugin::not_ours(&place));
        }
        _ if target.agent == Agent::Opencode => plugin::text(target.ah)?,
        text => json::with(target.agent, &place, text.unwrap_or_default(), &wanted)?,
    };
    if settings.text.as_deref() == Some(text.as_str()) {
        return Ok(Change {
            file: place,
            changed: false,
            backup: backup::kept(target),
            aside: None,
            restored: false,
            moved: false,
            lost: false,
        });
    }
    // What is to come back some day is the file without what is ours.
    let mut edited = None;
    let former = match backup::of(target, &settings)? {
        Some(former) => former,
        None => match settings.text.as_deref() {
            Some(text) if target.agent == Agent::Opencode => {
                edited = keep_edited(target, text)?;
                None
            }
            Some(text) => Some(json::without(target.agent, &place, text, backup::before(target).as_deref())?),
            None => None,
        },
    };
    let kept = backup::keep(target, former.as_deref(), &text)?;
    settings.replace(&text)?;
    let aside = edited.or(kept.beside);
    let moved = moves_others(target, &settings, &text);
    Ok(Change { file: place, changed: true, backup: kept.before, aside, restored: false, moved, lost: false })
}

/// Takes the hooks out; does nothing if there are none.
///
/// # Errors
/// As [`install`].
pub fn uninstall(target: &Target<'_>) -> Result<Change> {
    let place = place_of(target)?;
    let settings = file::Settings::read(&place, project_of(target))?;
    backup::follow(target)?;
    let Some(text) = settings.text.as_deref() else {
        backup::forget(target, false);
        let (backup, lost) = (backup::kept(target), backup::is_lost(target, None));
        return Ok(Change { file: place, changed: false, backup, aside: None, restored: false, moved: false, lost });
    };
    if let Some(former) = backup::of(target, &settings)? {
        match &former {
            Some(former) => settings.replace(former)?,
            None => {
                settings.remove()?;
                backup::remove_made(target);
            }
        }
        backup::forget(target, former.is_some());
        let moved = former.is_some_and(|former| moves_others(target, &settings, &former));
        return Ok(Change {
            file: place,
            changed: true,
            backup: None,
            aside: None,
            restored: true,
            moved,
            lost: false,
        });
    }
    if target.agent == Agent::Opencode {
        let ours = plugin::is_ours(text);
        let mut aside = None;
        if ours {
            aside = keep_edited(target, text)?;
            settings.remove()?;
        }
        return Ok(Change {
            file: place,
            changed: ours,
            backup: None,
            aside,
            restored: false,
            moved: false,
            lost: false,
        });
    }
    let rest = json::without(target.agent, &place, text, backup::before(target).as_deref())?;
    let changed = rest != text;
    if changed {
        settings.replace(&rest)?;
    }
    let moved = moves_others(target, &settings, &rest);
    let lost = !changed && backup::is_lost(target, Some(text));
    Ok(Change { file: place, changed, backup: backup::kept(target), aside: None, restored: false, moved, lost })
}

/// Whether hooks of others stand elsewhere in `text` than in `settings`, of an agent that trusts them by their places.
fn moves_others(target: &Target<'_>, settings: &file::Settings, text: &str) -> bool {
    let others = |text: &str| json::look(target.agent, Path::new(""), text).map(|found| found.others).ok();
    target.agent == Agent::Codex && settings.text.as_deref().is_some_and(|former| others(former) != others(text))
}

/// Keeps a plugin of ours that is about to go, unless it is as we write it: somebody may have added to it.
fn keep_edited(target: &Target<'_>, text: &str) -> Result<Option<PathBuf>> {
    if plugin::is_unchanged(text) { Ok(None) } else { backup::keep_beside(target, text) }
}

/// Whether hooks were put into these settings from here: of others that stand in them nobody knows who wrote them.
#[must_use]
pub fn was_installed(target: &Target<'_>) -> bool {
    backup::is_recorded(target)
}

/// Looks, changes nothing.
///
/// # Errors
/// `Unsupported` as [`install`]; a file that cannot be understood is a [`Status::problem`].
pub fn status(target: &Target<'_>) -> Result<Status> {
    let file = place_of(target)?;
    let wanted = wanted(target)?;
    let mut status = Status {
        file,
        installed: Installed::No,
        trusted: None,
        events: Vec::new(),
        calls: Vec::new(),
        ah: None,
        others: 0,
        beside: None,
        problem: None,
    };
    let found = file::Settings::read(&status.file, project_of(target)).and_then(|settings| match settings.text {
        None => Ok(json::Found::default()),
        Some(text) if target.agent == Agent::Opencode && plugin::is_ours(&text) => {
            let ah = plugin::ah_of(&text);
            let named = ah.as_deref().filter(|ah| is_same(ah, target.ah)).unwrap_or(target.ah);
            Ok(json::Found::plugin(ah.as_deref(), text == plugin::text(named)?, &wanted))
        }
        Some(_) if target.agent == Agent::Opencode => {
            Ok(json::Found { ours: Vec::new(), others: vec![json::Spot::default()] })
        }
        Some(text) => json::look(target.agent, &status.file, &text),
    });
    match found {
        Err(error) => status.problem = Some(error),
        Ok(found) => {
            status.others += found.others.len();
            let current = wanted.iter().all(|hook| {
                let mut of_event = found.ours.iter().filter(|ours| ours.event == hook.event);
                of_event.next().is_some_and(|ours| calls(target, ours, hook)) && of_event.next().is_none()
            });
            status.installed = match (found.ours.is_empty(), current) {
                (true, _) => Installed::No,
                (false, true) => Installed::Yes,
                (false, false) => Installed::Partly,
            };
            let mut called = found.ours.iter().filter_map(|ours| ours.ah.as_deref());
            status.problem = called.find(|ah| !ah.exists()).map(|ah| gone(target, ah));
            if status.problem.is_none() {
                status.problem = switched_off(target);
            }
            status.ah = found.ours.iter().find_map(|ours| ours.ah.clone());
            let asks = target.agent == Agent::Codex && !found.ours.is_empty();
            status.beside = asks.then(|| trust::with_hooks(target.home)).flatten();
            let trusted = if asks { trust::trusted(target.home, &status.file, &found.ours) } else { None };
            status.trusted = trusted.as_ref().map(|each| each.iter().all(|trusted| *trusted));
            if asks && trusted.is_none() && status.problem.is_none() {
                status.problem = Some(trust::untold(target.home));
            }
            for (at, ours) in found.ours.into_iter().enumerate() {
                let runs = !asks || trusted.as_ref().is_some_and(|each| each[at]);
                if runs && wanted.iter().any(|hook| calls(target, &ours, hook)) {
                    status.calls.push(ours.event.clone());
                }
                if !status.events.contains(&ours.event) {
                    status.events.push(ours.event);
                }
            }
        }
    }
    Ok(status)
}

/// What makes `agent` call `ah` (absolute) for one run, at all events but those at which it `calls` it anyway ([`Status::calls`]); none if there are no others.
///
/// Where hooks are installed as well, Claude Code runs equal commands of an event once (tried), and these are equal if `ah` is the same. Codex runs both
/// (tried).
///
/// For Codex the hooks are trusted for this run by their own hash, so that no others are trusted along with them.
///
/// # Errors
/// `Unsupported` for agents that cannot (Gemini CLI, opencode), with a hint.
pub fn for_one_run(agent: Agent, ah: &Path, calls: &[String]) -> Result<Option<OneRun>> {
    let mut hooks = events::of(agent, ah)?;
    hooks.retain(|hook| !calls.contains(&hook.event));
    if hooks.is_empty() {
        return Ok(None);
    }
    match agent {
        Agent::Claude => {
            let mut events = serde_json::Map::new();
            for hook in hooks {
                let entry = serde_json::json!([{"hooks": [{"type": "command", "command": hook.command, "timeout": hook.timeout}]}]);
                events.insert(hook.event, entry);
            }
            let settings = serde_json::json!({ "hooks": events });
            Ok(Some(OneRun { args: vec!["--settings".into(), settings.to_string().into()], env: Vec::new() }))
        }
        Agent::Codex => Ok(Some(OneRun { args: trust::overrides(&hooks), env: Vec::new() })),
        Agent::Gemini | Agent::Opencode => {
            let message = format!("{} takes no hooks on its command line", agent.title());
            Err(Error::new(ErrorKind::Unsupported, message)
                .with_hint(format!("install them instead: ah agent hooks install {agent}")))
        }
    }
}

/// The file that holds the hooks.
fn place_of(target: &Target<'_>) -> Result<PathBuf> {
    let home = target.home;
    match (target.agent, target.scope) {
        (Agent::Claude, Scope::User) => Ok(home.claude.join("settings.json")),
        (Agent::Claude, Scope::Project) => match target.project.filter(|project| project.is_absolute()) {
            Some(project) => Ok(project.join(".claude/settings.local.json")),
            None => Err(Error::new(ErrorKind::InvalidArgument, "a project's settings need a project")
                .with_hint("run the command inside the project, or leave out --project")),
        },
        (Agent::Codex, Scope::User) => Ok(home.codex.join("hooks.json")),
        (Agent::Gemini, Scope::User) => Ok(home.gemini.join("settings.json")),
        (Agent::Opencode, Scope::User) => Ok(home.opencode_config.join("plugins/ah.js")),
        (agent, Scope::Project) => {
            let message = format!("{} has no settings of a project that are not committed with it", agent.title());
            Err(Error::new(ErrorKind::Unsupported, message)
                .with_hint(format!("install them for yourself: ah agent hooks install {agent} --user")))
        }
    }
}

/// Where a symlink is not followed.
fn project_of<'a>(target: &Target<'a>) -> Option<&'a Path> {
    target.project.filter(|_| target.scope == Scope::Project)
}

fn gone(target: &Target<'_>, ah: &Path) -> Error {
    let message = format!("{}'s hooks call {}, which is gone: they do nothing", target.agent.title(), ah.display());
    // Asked for from elsewhere, it is another project's.
    let (at, scope) = match project_of(target) {
        Some(project) => (format!("-C {} ", text::shell(project.as_os_str())), " --project"),
        None => (String::new(), ""),
    };
    Error::new(ErrorKind::NotFound, message).with_hint(format!("ah {at}agent hooks install {}{scope}", target.agent))
}

/// Whether what was found is what is wanted, for all that the event comes for: it may name the same `ah` by another path.
fn calls(target: &Target<'_>, ours: &json::Ours, hook: &events::Hook) -> bool {
    let named =
        || ours.ah.as_deref().filter(|ah| is_same(ah, target.ah)).and_then(|ah| events::of(target.agent, ah).ok());
    let same = |hook: &events::Hook| ours.event == hook.event && ours.command == hook.command;
    ours.always && (same(hook) || named().is_some_and(|hooks| hooks.iter().any(same)))
}

/// Whether both paths lead to one file.
fn is_same(one: &Path, other: &Path) -> bool {
    let file = |path: &Path| path.metadata().map(|it| (it.dev(), it.ino())).ok();
    file(one).is_some_and(|found| file(other) == Some(found))
}

fn wanted(target: &Target<'_>) -> Result<Vec<events::Hook>> {
    events::of(target.agent, target.ah)
}

#[cfg(test)]
mod tests;
