//! `ah shell-init`: what makes a shell tell recordings where its commands begin and end. The scripts are in `cli/src/shell/`.

use std::io::Write;

use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::app::App;
use crate::failure::{Exit, Outcome};

/// Options of `ah shell-init`.
#[derive(Debug, Args)]
#[command(after_help = "\
The shell prints marks (OSC 133) before and after each command, only in recordings that `ah agent record` makes. Each command that ends becomes a moment, \
labelled with its line; one that begins with a blank gets no label, but the recording shows it. A recorded bash takes ignoredups out of HISTCONTROL, and does what it \
means itself.

Examples:
  ah shell-init bash >> ~/.bashrc
  eval \"$(ah shell-init zsh)\"
  ah shell-init fish | source")]
pub(crate) struct ShellInitArgs {
    /// The shell.
    shell: Shell,
}

/// A shell that has an integration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

#[derive(Serialize)]
struct Shape {
    shell: &'static str,
    script: &'static str,
}

/// Prints the script.
pub(crate) fn run(app: &App, args: &ShellInitArgs) -> Outcome {
    let (shell, script) = match args.shell {
        Shell::Bash => ("bash", include_str!("../shell/ah.bash")),
        Shell::Zsh => ("zsh", include_str!("../shell/ah.zsh")),
        Shell::Fish => ("fish", include_str!("../shell/ah.fish")),
    };
    if app.ui.json {
        app.ui.json(&Shape { shell, script })?;
    } else {
        app.ui.stdout(|out| writeln!(out, "{}", script.trim_end()))?;
    }
    Ok(Exit::Done)
}
