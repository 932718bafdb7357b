//! One file a command: its options, what it asks of core, how the answer looks.

pub(crate) mod adopt;
pub(crate) mod branch;
pub(crate) mod branches;
pub(crate) mod cast;
pub(crate) mod cat;
pub(crate) mod check;
pub(crate) mod config;
pub(crate) mod convert;
pub(crate) mod diff;
pub(crate) mod edit;
pub(crate) mod exec;
pub(crate) mod gc;
pub(crate) mod hook;
pub(crate) mod hooks;
pub(crate) mod launch;
pub(crate) mod moment;
pub(crate) mod overview;
pub(crate) mod providers;
pub(crate) mod prune;
pub(crate) mod record;
pub(crate) mod release;
pub(crate) mod replay;
pub(crate) mod restore;
pub(crate) mod rewind;
pub(crate) mod rm;
pub(crate) mod seek;
pub(crate) mod session;
pub(crate) mod session_branch;
pub(crate) mod shell_init;
pub(crate) mod show;
pub(crate) mod snapshot;
pub(crate) mod snapshots;
pub(crate) mod status;
pub(crate) mod timeline;
pub(crate) mod undo;
pub(crate) mod versions;

use std::sync::Arc;

use crate::app::App;
use crate::args::{Agent, Cli, Command, Fs};
use crate::env::Env;
use crate::failure::{Exit, Outcome};
use crate::{generate, interrupt};

/// Runs the command that `cli` names.
pub(crate) fn run(cli: Cli, env: Env) -> Outcome {
    let Cli { globals, command } = cli;
    // This one stands outside of everything else: no workspace, no state, no signals of ours.
    if let Some(Command::Generate(args)) = &command {
        return generate::run(args);
    }
    // Nothing that goes wrong may reach the agent.
    if let Some(Command::Hook(args)) = &command {
        return hook::run(&globals, &env, args);
    }
    // While a command is recorded, signals are that command's.
    let passed_on = matches!(command, Some(Command::Agent(Agent::Record(_))));
    let interrupted = if passed_on { Arc::default() } else { interrupt::listen() };
    let app = App::new(globals, env, interrupted)?;
    let outcome = dispatch(&app, command.as_ref());
    if outcome.is_err() {
        app.take_back_new();
    }
    app.tell_notices();
    outcome
}

fn dispatch(app: &App, command: Option<&Command>) -> Outcome {
    match command {
        None => overview::run(app),
        Some(Command::Agent(Agent::Fs(command))) => fs(app, command),
        Some(Command::Agent(Agent::Hooks(command))) => hooks::run(app, command),
        Some(Command::Agent(Agent::Rewind(args))) => rewind::run(app, args),
        Some(Command::Agent(Agent::Record(args))) => record::run(app, args),
        Some(Command::Agent(Agent::Replay(args))) => replay::run(app, args),
        Some(Command::Agent(Agent::Cast(command))) => cast::run(app, command),
        Some(Command::ShellInit(args)) => shell_init::run(app, args),
        Some(Command::Timeline(args)) => timeline::run(app, args),
        Some(Command::Session(command)) => session::run(app, command),
        Some(Command::Moment(args)) => moment::run(app, args),
        Some(Command::Config(command)) => config::run(app, command),
        Some(Command::Capture) => hook::capture(app),
        // `run` has seen to it.
        Some(Command::Hook(_)) => Ok(Exit::Done),
        Some(Command::Generate(args)) => generate::run(args),
        // `main` has seen to it.
        Some(Command::CheckChild(_) | Command::RecordChild(_)) => Ok(Exit::Done),
    }
}

fn fs(app: &App, command: &Fs) -> Outcome {
    match command {
        Fs::Status(args) => status::run(app, args),
        Fs::Snapshot(args) => snapshot::run(app, args),
        Fs::Snapshots(args) => snapshots::run(app, args),
        Fs::Show(args) => show::run(app, args),
        Fs::Diff(args) => diff::run(app, args),
        Fs::Seek(args) => seek::run(app, args),
        Fs::Release(args) => release::run(app, args),
        Fs::Cat(args) => cat::run(app, args),
        Fs::Versions(args) => versions::run(app, args),
        Fs::Branch(args) => branch::run(app, args),
        Fs::Branches(args) => branches::run(app, args),
        Fs::Exec(args) => exec::run(app, args),
        Fs::Restore(args) => restore::run(app, args),
        Fs::Undo(args) => undo::run(app, args),
        Fs::Edit(args) => edit::run(app, args),
        Fs::Adopt(args) => adopt::run(app, args),
        Fs::Convert(args) => convert::run(app, args),
        Fs::Rm(args) => rm::run(app, args),
        Fs::Prune(args) => prune::run(app, args),
        Fs::Gc(args) => gc::run(app, args),
        Fs::Providers(args) => providers::run(app, args),
        Fs::Check(args) => check::run(app, args),
    }
}
