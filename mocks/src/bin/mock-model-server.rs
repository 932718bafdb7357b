//! `mock-model-server`: answers an agent on loopback as its model would, from a scenario or a recording.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use ah_mocks::scenario::Scenario;
use ah_mocks::server::{Options, Source, serve};
use clap::Parser;

/// Answers an agent on loopback as its model would, from a scenario or from a recording, and checks what the agent asks.
///
/// The first line on stdout is the address. It serves until SIGTERM or Ctrl-C. It ends with 0 if every request was one of the
/// scenario, with 1 if not, with 2 if it could not begin.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  mock-model-server mocks/scenarios/greeting.yaml --report report.json
  ANTHROPIC_BASE_URL=http://127.0.0.1:PORT ANTHROPIC_API_KEY=any claude -p 'Make a greeting'
  mock-model-server mocks/scenarios/greeting.yaml --record run.jsonl
  mock-model-server --replay run.jsonl")]
struct Arguments {
    /// The scenario: YAML, or JSON if the file is called so.
    #[arg(required_unless_present = "replay", conflicts_with = "replay")]
    scenario: Option<PathBuf>,
    /// Answer from a recording instead: the same requests get the same replies.
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,
    /// The port on 127.0.0.1; any that is free if not given.
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Write what was asked, and what of it was wrong, as JSON; after each request anew.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Append each request with its reply, a line each.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// An answer that nobody asked for is a fault too.
    #[arg(long)]
    all: bool,
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: Arguments) -> anyhow::Result<bool> {
    let source = match (arguments.scenario, arguments.replay) {
        (Some(scenario), _) => Source::Scenario(Box::new(Scenario::load(&scenario)?)),
        (None, Some(recording)) => Source::Recording(recording),
        (None, None) => unreachable!("one of them is required"),
    };
    let Arguments { port, report, record, all, .. } = arguments;
    serve(&Options { source, port, report, record, all }, |address| {
        println!("http://{address}");
        let _ = std::io::stdout().flush();
    })
}
