//! `ah agent hooks …`: an agent's settings, so that it calls `ah hook`.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ah_agents::settings::{self, Change, Installed, OneRun, Scope, Target};
use ah_agents::{Agent, Home};
use ah_core::{Error, ErrorKind, LastEvent, Notice, NoticeKind, RelPath, Result, TakenBy, UnkeptCall, text};
use clap::{Args, Subcommand};
use serde::Serialize;

use crate::app::App;
use crate::failure::{Exit, Outcome};
use crate::output::{text as shown, time};

/// `ah agent hooks …`.
#[derive(Debug, Subcommand)]
pub(crate) enum Hooks {
    /// Let an agent call `ah` at each step.
    Install(InstallArgs),
    /// Take that out of its settings again.
    Uninstall(UninstallArgs),
    /// Whether it does.
    Status(StatusArgs),
}

/// Options of `ah agent hooks install`.
#[derive(Debug, Args)]
#[command(after_help = "\
Adds to the agent's settings what makes it call `ah hook AGENT`: everything else in them stays as it is, order too, and comments where the agent allows them. What \
is added does nothing where `ah` is gone, which bare `ah` then says, or cannot be run. It calls `ah` by the path that this was called by: through a link that leads to the installed \
version, it goes on after an upgrade. Codex runs hooks only when you have trusted them: it asks at its next start.

Examples:
  ah agent hooks install claude
  ah agent hooks install claude --project")]
pub(crate) struct InstallArgs {
    #[command(flatten)]
    target: TargetArgs,
}

/// Options of `ah agent hooks uninstall`.
#[derive(Debug, Args)]
#[command(after_help = "\
Where nobody has changed the settings since, they are what they were before, byte for byte. Else the hooks of `ah` alone go: what others wrote keeps its values, \
order and comments, but the lines and spaces within `hooks` may be others. Of settings that were lost meanwhile a copy is kept, and named.

Examples:
  ah agent hooks uninstall claude")]
pub(crate) struct UninstallArgs {
    #[command(flatten)]
    target: TargetArgs,
}

/// Options of `ah agent hooks status`.
#[derive(Debug, Args)]
#[command(after_help = "\
Without AGENT, all of them.

Examples:
  ah agent hooks status
  ah agent hooks status codex --json")]
pub(crate) struct StatusArgs {
    /// claude, codex, gemini or opencode.
    #[arg(value_name = "AGENT", value_parser = agent)]
    agent: Option<Agent>,
    #[command(flatten)]
    scope: ScopeArgs,
}

#[derive(Debug, Args)]
struct TargetArgs {
    /// claude, codex, gemini or opencode.
    #[arg(value_name = "AGENT", value_parser = agent)]
    agent: Agent,
    #[command(flatten)]
    scope: ScopeArgs,
}

#[derive(Debug, Args)]
struct ScopeArgs {
    /// For you, in all projects; so it is without this option, too.
    #[arg(long, conflicts_with = "project")]
    user: bool,
    /// For this project alone, in the settings file that is not to be committed; Claude Code reads it where it is started at the project's top.
    #[arg(long)]
    project: bool,
}

fn agent(text: &str) -> std::result::Result<Agent, String> {
    text.parse().map_err(|_| "the agents are claude, codex, gemini and opencode".to_owned())
}

#[derive(Serialize)]
struct ChangeShape {
    hooks: ChangeBody,
}

#[derive(Serialize)]
struct ChangeBody {
    agent: Agent,
    scope: Scope,
    #[serde(with = "text::abs")]
    file: PathBuf,
    changed: bool,
    #[serde(with = "text::abs_option", skip_serializing_if = "Option::is_none")]
    backup: Option<PathBuf>,
    #[serde(with = "text::abs_option", skip_serializing_if = "Option::is_none")]
    aside: Option<PathBuf>,
    lost: bool,
    restored: bool,
    moved: bool,
}

#[derive(Serialize)]
struct StatusShape {
    hooks: Vec<StatusBody>,
}

#[derive(Serialize)]
struct StatusBody {
    agent: Agent,
    scope: Scope,
    #[serde(with = "text::abs_option", skip_serializing_if = "Option::is_none")]
    file: Option<PathBuf>,
    installed: Installed,
    #[serde(skip_serializing_if = "Option::is_none")]
    trusted: Option<bool>,
    events: Vec<String>,
    others: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last: Option<LastEvent>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unkept: Option<UnkeptCall>,
}

/// What is needed for any of them.
#[derive(Clone)]
struct Settings {
    scope: Scope,
    home: Home,
    project: Option<PathBuf>,
    backups: PathBuf,
    ah: PathBuf,
}

impl Settings {
    fn of(app: &App, scope: &ScopeArgs) -> Result<Self> {
        let scope = if scope.project { Scope::Project } else { Scope::User };
        let project = (scope == Scope::Project).then(|| app.engine()?.root_of(&app.cwd)).transpose()?;
        let (home, backups, ah) = (app.agents_home()?, app.engine()?.settings_backups(), app.env().program()?);
        Ok(Self { scope, home, project, backups, ah })
    }

    /// What is to be said of a project's settings from a directory below: Claude Code reads those of the directory in which it is started, and no others.
    fn elsewhere(&self, app: &App) -> Option<String> {
        let top = self.project.as_ref().filter(|top| self.scope == Scope::Project && **top != app.cwd)?;
        Some(format!("they are run where the agent is started in {}, and not below it", shown::path(top)))
    }

    /// What is to be said of a project's settings that Git would take along.
    fn taken_along(&self, app: &App, file: &Path) -> Result<Option<String>> {
        let Some(top) = self.project.as_ref().filter(|_| self.scope == Scope::Project) else { return Ok(None) };
        let Ok(inside) = file.strip_prefix(top) else { return Ok(None) };
        let path = RelPath::new(inside.as_os_str().as_bytes())?;
        // The file may be missing, its folder too, and its last line may have no end.
        let exclude = "`f=\"$(git rev-parse --git-path info/exclude)\" && mkdir -p \"${f%/*}\" && \
                       printf '\\n%s\\n' '**/.claude/settings.local.json' >> \"$f\"`";
        Ok(app.engine()?.taken_by_git(top, &path).map(|why| match why {
            TakenBy::NoRule => {
                format!("Git does not ignore it, and it names places of this machine; in the project: {exclude}")
            }
            TakenBy::Index => {
                let inside = text::shell(inside.as_os_str());
                format!(
                    "Git's index has it, and it names places of this machine; in the project: \
                     `git rm --cached -- {inside}`, and where nothing ignores it {exclude}"
                )
            }
        }))
    }

    /// What is to be said of settings beside these that call the same `ah` by another path: an agent runs equal commands once, and these are not equal.
    fn twice(&self, app: &App, agent: Agent) -> Option<String> {
        let project = self.project.clone().or_else(|| app.engine().ok()?.root_of(&app.cwd).ok());
        let scope = if self.scope == Scope::User { Scope::Project } else { Scope::User };
        let other = Self { scope, project, ..self.clone() };
        if ![self, &other].iter().all(|it| it.scope == Scope::User || settings::was_installed(&it.target(agent))) {
            return None;
        }
        let (own, other) = (settings::status(&self.target(agent)).ok()?, settings::status(&other.target(agent)).ok()?);
        let both = own.ah != other.ah && own.calls.iter().any(|event| other.calls.contains(event));
        let file = shown::path(&other.file);
        both.then(|| {
            format!("the hooks in {file} call the same `ah` by another path, so that it is called twice: install both by one path, or take one out")
        })
    }

    fn target(&self, agent: Agent) -> Target<'_> {
        let Self { scope, home, project, backups, ah } = self;
        Target { agent, scope: *scope, home, project: project.as_deref(), backups, ah }
    }
}

/// What makes an agent call `ah` for one run; none if it does so by itself, its hooks being installed for the user, or for the project that it is started in
/// (`started_in`, if that is known), and trusted where it asks for that. An error where the agent runs no hooks, whoever gives them.
pub(crate) fn for_one_run(app: &App, agent: Agent, started_in: Option<&Path>) -> Result<Option<OneRun>> {
    let mut settings = Settings::of(app, &ScopeArgs { user: true, project: false })?;
    settings.project = app.engine()?.root_of(&app.cwd).ok();
    let target = settings.target(agent);
    if let Some(off) = settings::switched_off(&target) {
        return Err(off);
    }
    let mut calls = settings::status(&target)?.calls;
    // Those of a directory above are not read.
    if settings.project.as_deref().is_some_and(|top| started_in == Some(top)) {
        let project = Settings { scope: Scope::Project, ..settings.clone() };
        let own = Some(project.target(agent)).filter(settings::was_installed);
        calls.extend(own.and_then(|target| settings::status(&target).ok()).into_iter().flat_map(|status| status.calls));
    }
    settings::for_one_run(agent, &settings.ah, &calls)
}

/// Says of hooks that call an `ah` which is gone, the user's and those of the project at `top`, that they do nothing: the agent does not. A project that
/// came with such settings may name any place, a server that does not answer, too: only what was installed from here is looked at.
pub(crate) fn tell_gone(app: &App, top: &Path) {
    let user = ScopeArgs { user: true, project: false };
    let (Ok(engine), Ok(user)) = (app.engine(), Settings::of(app, &user)) else { return };
    let project = Settings { scope: Scope::Project, project: Some(top.to_owned()), ..user.clone() };
    for settings in [user, project] {
        let targets = Agent::ALL.into_iter().map(|agent| settings.target(agent));
        let own = targets.filter(|target| target.scope == Scope::User || settings::was_installed(target));
        let all = own.filter_map(|target| settings::status(&target).ok());
        for gone in all.filter_map(|status| status.problem).filter(|problem| problem.kind == ErrorKind::NotFound) {
            let notice = Notice::new(NoticeKind::Other, gone.message);
            engine.notify(gone.hint.into_iter().fold(notice, Notice::with_hint));
        }
    }
}

/// Runs one of them.
pub(crate) fn run(app: &App, command: &Hooks) -> Outcome {
    match command {
        Hooks::Install(args) => {
            let settings = Settings::of(app, &args.target.scope)?;
            let target = settings.target(args.target.agent);
            let change = settings::install(&target)?;
            let outcome = changed(app, &settings, args.target.agent, change, "installed", "installed already");
            let status = settings::status(&target)?;
            if status.trusted == Some(false) {
                app.ui.note("not trusted yet: it asks for that at its next start, and calls `ah` from then on");
            }
            if let Some(problem) = status.problem {
                app.ui.warning(&problem.message, problem.hint.as_deref());
            }
            if let Some(file) = status.beside {
                let file = shown::path(&file);
                app.ui.note(&format!("hooks stand in {file}, too: Codex runs both, and warns of that at each start"));
            }
            let agent = args.target.agent;
            for told in [settings.twice(app, agent), settings.elsewhere(app)].into_iter().flatten() {
                app.ui.note(&told);
            }
            if let Some(taken) = settings.taken_along(app, &status.file)? {
                app.ui.note(&taken);
            }
            outcome
        }
        Hooks::Uninstall(args) => {
            app.engine()?.refuse_to_agents("`hooks uninstall`")?;
            let settings = Settings::of(app, &args.target.scope)?;
            let change = settings::uninstall(&settings.target(args.target.agent))?;
            changed(app, &settings, args.target.agent, change, "uninstalled", "not installed")
        }
        Hooks::Status(args) => status(app, args),
    }
}

fn changed(app: &App, settings: &Settings, agent: Agent, change: Change, done: &str, was: &str) -> Outcome {
    let Change { file, changed, backup, aside, restored, moved, lost } = change;
    if app.ui.json {
        let scope = settings.scope;
        let body = ChangeBody { agent, scope, file, changed, backup, aside, lost, restored, moved };
        return Exit::Done.after(app.ui.json_of_act(&ChangeShape { hooks: body }));
    }
    let what = if changed { done } else { was };
    let told = app.ui.line(&format!("{}: {what}, {}", agent.title(), shown::path(&file)));
    // Where nothing is to be taken out, too, if the settings are lost, or others were written in their place.
    if let Some(backup) = backup.filter(|_| changed || lost) {
        app.ui.note(&format!("as it was before: {}", shown::path(&backup)));
    }
    if let Some(aside) = aside {
        app.ui.note(&format!("what was there earlier, and is no more: {}", shown::path(&aside)));
    }
    if moved {
        app.ui.note(
            "hooks of others stand elsewhere in it now: those that were trusted are not run until you trust them again",
        );
    }
    Exit::Done.after(told)
}

fn status(app: &App, args: &StatusArgs) -> Outcome {
    let mut settings = Settings::of(app, &args.scope)?;
    // It may switch off what is the user's.
    settings.project = settings.project.or_else(|| app.engine().ok()?.root_of(&app.cwd).ok());
    let agents = args.agent.map_or_else(|| Agent::ALL.to_vec(), |agent| vec![agent]);
    let mut bodies = Vec::new();
    for agent in agents {
        bodies.push(body(app, &settings, agent)?);
        // A project's own are told where there are any.
        if settings.scope == Scope::User && !args.scope.user && settings.project.is_some() {
            let project = Settings { scope: Scope::Project, ..settings.clone() };
            bodies.extend(Some(body(app, &project, agent)?).filter(|body| body.installed != Installed::No));
        }
    }
    // Who asks for one that has no such settings is told so as an error.
    if let (Some(_), [StatusBody { file: None, problem: Some(problem), .. }]) = (args.agent, bodies.as_slice()) {
        return Err(Error::new(ErrorKind::Unsupported, problem.clone()).with_hint("leave `--project` away").into());
    }
    if app.ui.json {
        app.ui.json(&StatusShape { hooks: bodies })?;
        return Ok(Exit::Done);
    }
    let now = app.now();
    app.ui.stdout(|out| {
        for body in &bodies {
            let installed = match body.installed {
                Installed::Yes => "installed",
                Installed::Partly => "partly installed",
                Installed::No => "not installed",
            };
            let trusted = match body.trusted {
                Some(true) => ", trusted",
                Some(false) => ", not trusted",
                None => "",
            };
            let file = body.file.as_ref().map_or_else(String::new, |file| format!(", {}", shown::path(file)));
            let scope = if body.scope == Scope::Project && !args.scope.project { " in this project" } else { "" };
            writeln!(out, "{}: {installed}{scope}{trusted}{file}", body.agent.title())?;
            if let Some(problem) = &body.problem {
                writeln!(out, "  {}", shown::line(problem))?;
            }
            if let Some(last) = &body.last {
                let when = time::relative(last.time, now);
                writeln!(out, "  last event {when}: {}, session {}", shown::line(&last.event), last.session)?;
            }
            if let Some(call) = &body.unkept {
                writeln!(out, "  {}", shown::line(&call.told(&time::relative(call.time, now))))?;
            }
        }
        Ok(())
    })?;
    Ok(Exit::Done)
}

fn body(app: &App, settings: &Settings, agent: Agent) -> Result<StatusBody> {
    let engine = app.engine()?;
    let last = engine.last_event(agent.name())?;
    // Settings can be asked for anywhere. What was kept here since is what counts.
    let unkept = engine.unkept_since(&app.cwd, Some(agent.name())).ok().flatten();
    let scope = settings.scope;
    Ok(match settings::status(&settings.target(agent)) {
        Ok(settings::Status { file, installed, trusted, events, calls: _, ah: _, others, beside: _, problem }) => {
            let elsewhere = || settings.elsewhere(app).filter(|_| installed != Installed::No);
            let problem =
                problem.map(|problem| problem.message).or_else(|| settings.twice(app, agent)).or_else(elsewhere);
            StatusBody { agent, scope, file: Some(file), installed, trusted, events, others, problem, last, unkept }
        }
        Err(error) if error.kind == ErrorKind::Unsupported => {
            let (installed, problem) = (Installed::No, Some(error.message));
            StatusBody {
                agent,
                scope,
                file: None,
                installed,
                trusted: None,
                events: Vec::new(),
                others: 0,
                problem,
                last,
                unkept,
            }
        }
        Err(error) => return Err(error),
    })
}
