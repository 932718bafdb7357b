//! `mock-agent`: plays a scenario as Claude Code would, without a model.

use std::path::PathBuf;
use std::process::ExitCode;

use ah_mocks::agent::{self, start::Options};
use ah_mocks::scenario::Scenario;
use anyhow::Context;
use clap::Parser;

/// Plays a scenario as Claude Code would, without a model: takes prompts, edits files, runs commands, calls the hooks that are
/// configured for Claude Code, and keeps a transcript in its place and form.
///
/// Options are Claude Code's, so that it can be started under that name; further ones of those are passed over. Without a prompt
/// it asks for one, a line each. It ends with 1 if the scenario has no place for what it is told, or a check of it fails.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  mock-agent --scenario mocks/scenarios/greeting.yaml -p 'Make a greeting'
  ln -s $(command -v mock-agent) bin/claude; MOCK_AGENT_SCENARIO=story.yaml bin/claude --resume ID --fork-session 'Go on'")]
struct Arguments {
    /// The scenario: YAML, or JSON if the file is called so.
    #[arg(long, value_name = "FILE", env = "MOCK_AGENT_SCENARIO")]
    scenario: PathBuf,
    /// The seed of ids and chance, instead of the scenario's.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// The first prompt.
    prompt: Option<String>,
    /// End after one prompt, which comes from stdin if it is not given.
    #[arg(short, long)]
    print: bool,
    /// Go on with this session.
    #[arg(short, long, value_name = "ID")]
    resume: Option<String>,
    /// Go on with the latest session of this directory.
    #[arg(short, long = "continue", conflicts_with = "resume")]
    go_on: bool,
    /// Leave the session that is gone on with as it is, and write another.
    #[arg(long)]
    fork_session: bool,
    /// Go on from a checkpoint of its own.
    #[arg(long, value_name = "ID", conflicts_with_all = ["resume", "go_on"])]
    checkpoint: Option<String>,
    /// The new session's id.
    #[arg(long, value_name = "ID")]
    session_id: Option<String>,
    /// Further settings: a file, or JSON.
    #[arg(long, value_name = "FILE-OR-JSON")]
    settings: Option<String>,
    /// Taken, and without effect.
    #[arg(long, hide = true, value_name = "MODE")]
    permission_mode: Option<String>,
    /// Taken, and without effect.
    #[arg(long, hide = true)]
    dangerously_skip_permissions: bool,
    /// Taken, and without effect.
    #[arg(long, hide = true, value_name = "NAME")]
    model: Option<String>,
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(1)
        }
    }
}

fn run(arguments: Arguments) -> anyhow::Result<u8> {
    let mut scenario = Scenario::load(&arguments.scenario)?;
    if let Some(seed) = arguments.seed {
        scenario.seed = seed;
    }
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".claude"));
    let config = std::env::var_os("CLAUDE_CONFIG_DIR").map(PathBuf::from).or_else(home);
    let options = Options {
        resume: arguments.resume,
        go_on: arguments.go_on,
        fork: arguments.fork_session,
        checkpoint: arguments.checkpoint,
        session_id: arguments.session_id,
        print: arguments.print,
        prompt: arguments.prompt,
        settings: arguments.settings,
        config: config.context("neither CLAUDE_CONFIG_DIR nor HOME is set")?,
        cwd: std::env::current_dir().context("the working directory is gone")?,
        environment: Vec::new(),
    };
    agent::run(&scenario, &options)
}
