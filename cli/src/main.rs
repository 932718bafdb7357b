//! The `ah` command line: arguments in, data on stdout, everything else on stderr, an exit code.
//!
//! - [`args`] is the tree of commands and the options that all of them take; each command's own options are in its file
//!   in [`commands`], next to what it does.
//! - [`env`] is the only place that reads the environment, [`app`] turns both into the settings of `ah-core`.
//! - [`output`] renders: JSON shapes, tables, times, patches, progress. [`failure`] renders errors and knows exit codes, [`hint`] the commands in them.
//!
//! Not here: anything that decides what happens to files. That is `ah-core`, which neither prints nor reads the environment.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod app;
mod args;
mod commands;
mod contents;
mod env;
mod failure;
mod generate;
mod hint;
mod interrupt;
mod itself;
mod login;
mod output;

use ah_plugin_api::{Error, ErrorKind};

use crate::failure::{Failure, Report};

fn main() {
    ah_host::leave(run())
}

/// The whole program, with nothing left to do behind it; gives the exit code.
fn run() -> u8 {
    let env = env::Env::read();
    let arguments: Vec<_> = std::env::args_os().collect();
    let cli = match args::parse(&arguments, &env) {
        Ok(cli) => cli,
        // To an agent that calls a hook every other code is a word: 2 forbids it what it is about to do.
        Err(_) if commands::hook::is_meant(&arguments) => return 0,
        Err(code) => return code,
    };
    // A stranger's library runs in this one: nothing before, nothing after.
    if let Some(args::Command::CheckChild(child)) = &cli.command {
        return commands::check::child(child);
    }
    // Nothing of ours may stand between the terminal and the command.
    if let Some(args::Command::RecordChild(child)) = cli.command {
        return commands::record::child(child);
    }
    let report = Report::new(&cli.globals, &env, &arguments);
    // A panic in this process is a defect; it is told like every other error, in JSON too, after the hook's message.
    let outcome = std::panic::catch_unwind(|| commands::run(cli, env)).unwrap_or_else(|_| {
        Err(Failure::Failed(Error::new(ErrorKind::Internal, "a defect in ah; the lines above say where")))
    });
    report.finish(outcome)
}
