//! The command that starts an agent again: for people, for programs, and run.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use ah_agents::launch::{Form, Invocation};
use ah_core::exec::cannot_run;
use ah_core::{ConversationReport, FromRecord, text as words};
use ah_plugin_api::{Error, ErrorKind};
use serde::Serialize;

use crate::app::App;
use crate::commands::hooks;
use crate::failure::Failure;
use crate::output::{text, time};

/// A command, and where it is to be run.
#[derive(Debug, Serialize)]
pub(crate) struct Launch {
    /// The program and its arguments.
    #[serde(with = "words::words")]
    argv: Vec<OsString>,
    /// The directory to run it in; none: any.
    #[serde(with = "words::abs_option", skip_serializing_if = "Option::is_none")]
    cwd: Option<PathBuf>,
}

impl Launch {
    /// A command for a directory, or for any.
    pub(crate) fn new(argv: Vec<OsString>, cwd: Option<&Path>) -> Self {
        Self { argv, cwd: cwd.map(Path::to_owned) }
    }

    /// Prints it as a line for the shell: byte for byte, or on a terminal as bash, zsh and ksh read it when it is copied from there.
    pub(crate) fn print(&self, app: &App) -> Result<(), Failure> {
        let quoted = |argv: &[OsString]| match app.ui.stdout_terminal() {
            true => argv.iter().map(|word| words::shell(word)).collect::<Vec<_>>().join(" ").into(),
            false => Invocation { argv: argv.to_vec(), env: Vec::new() }.shell_line(),
        };
        let mut line = OsString::new();
        if let Some(cwd) = &self.cwd {
            line.push(quoted(&["cd".into(), "--".into(), cwd.clone().into_os_string()]));
            line.push(" && ");
        }
        line.push(quoted(&self.argv));
        app.ui.path(Path::new(&line))
    }
}

/// The agent's own command, in a session of ours, by `env`. An agent that does not call `ah` by itself is recorded, which gives it hooks for that run: else no
/// moments would come of it.
pub(crate) fn command(app: &App, session: &str, conversation: &ConversationReport) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec!["env".into(), format!("AH_SESSION={session}").into()];
    if conversation.agent.parse().is_ok_and(|agent| matches!(hooks::for_one_run(app, agent, None), Ok(Some(_)))) {
        words.push(ah(app));
        words.extend(["agent", "record", "--"].map(OsString::from));
    }
    words.extend_from_slice(&conversation.command);
    words
}

/// The command that shows a branch at the workspace's own path, `root`, to the agent alone, which runs in `cwd` there.
pub(crate) fn in_branch(app: &App, root: &Path, cwd: &Path, branch: &str, agent: &[OsString]) -> Vec<OsString> {
    let mut words = vec![ah(app), "-C".into(), root.into()];
    words.extend(["agent", "fs", "exec", branch, "--"].map(OsString::from));
    words.extend(seated(root, cwd, agent));
    words
}

/// The agent's command as `exec` runs it in `cwd`, where a branch is shown at `root`: a directory may be in the branch alone, and then not where that begins.
pub(crate) fn seated(root: &Path, cwd: &Path, agent: &[OsString]) -> Vec<OsString> {
    match agent.split_first().filter(|_| cwd != root) {
        Some((env, rest)) => [&[env.clone(), "-C".into(), cwd.into()][..], rest].concat(),
        None => agent.to_vec(),
    }
}

/// How the agent is to run: without a terminal it gets its instruction, answers, and ends.
pub(crate) fn form(run: bool) -> Form {
    let terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    if run && !terminal { Form::OneShot } else { Form::Interactive }
}

/// This program, as the person named it.
pub(crate) fn ah(app: &App) -> OsString {
    let named = std::env::args_os().next().unwrap_or_else(|| "ah".into());
    match Path::new(&named).components().count() {
        1 => named,
        _ => app.env().program().map_or(named, PathBuf::into_os_string),
    }
}

/// Becomes the agent. Only if that cannot be is there anything to say.
pub(crate) fn become_it(app: &App, agent: &[OsString], cwd: &Path) -> Failure {
    app.tell_notices();
    let Some((program, arguments)) = agent.split_first() else {
        return Error::new(ErrorKind::Internal, "there is no command to run").into();
    };
    let error = Command::new(program).args(arguments).current_dir(cwd).env("PWD", cwd).exec();
    Failure::command(cannot_run(program, &error))
}

/// Tells of which moment something is.
pub(crate) fn tell_from(app: &App, from: &FromRecord) {
    let when = time::relative(from.time, app.now());
    let what = from.prompt.as_ref().map_or_else(String::new, |prompt| format!(": {}", text::short(prompt, 60)));
    app.ui.note(&format!("from {} ({when}{what})", from.moment));
}

/// Tells what the conversation was made from, and how.
pub(crate) fn tell(app: &App, from: &FromRecord, conversation: &ConversationReport) {
    tell_from(app, from);
    if from.inexact {
        app.ui.warning(
            "the files are not exactly those of that moment: something else was writing while they were captured",
            Some("`ah timeline` shows the moments around it"),
        );
    }
    for note in &conversation.notes {
        app.ui.note(note);
    }
    if let Some(message) = conversation.unseen() {
        app.ui.warning(&message, Some("let the first thing that it is told be where its files are now"));
    }
    if conversation.replayed > 0 {
        let message = "the conversation could not be cut there: a new one gets the prompts so far, and knows less";
        app.ui.warning(message, None);
    }
    if conversation.dropped > 0 {
        let lines = text::count(conversation.dropped, "line", "lines");
        let are = if conversation.dropped == 1 { "is" } else { "are" };
        app.ui.note(&format!("{lines} of the conversation {are} left out: calls that had no answer yet, or were torn"));
    }
}
