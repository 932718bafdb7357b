//! `ah agent fs check`: the conformance suite on any provider library.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ah_conformance::{CaseReport, ChildCommand, Options};
use ah_plugin_api::{Error, ErrorKind, Result};
use clap::Args;

use crate::app::App;
use crate::failure::{Exit, Outcome};
use crate::itself;
use crate::output::text;

/// Options of `ah agent fs check`.
#[derive(Debug, Args)]
#[command(after_help = "\
The library runs in a process of its own, so that nothing it does can harm this one. Ends with 1 if it does not keep the \
contract. A case whose failure was expected does not count; one that passes all the same does.

Examples:
  ah agent fs check ./target/release/libah_provider_minimal.so
  ah agent fs check ./libah_provider_mine.so --only exact --all
  ah agent fs check ./libah_provider_mine.so --expect-failure 'exact.times=whole seconds only' --json")]
pub(crate) struct CheckArgs {
    /// The library.
    #[arg(value_name = "LIB")]
    library: PathBuf,
    /// Only cases whose name contains TEXT; may be repeated.
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// A failure that is known, and why; may be repeated.
    #[arg(long, value_name = "CASE=REASON", value_parser = expectation)]
    expect_failure: Vec<(String, String)>,
    /// Where test directories are made: on the filesystem that the provider is for.
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
    /// The longest that a case may take.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u16).range(1..))]
    limit: u16,
    /// What this machine lacks counts as a failure.
    #[arg(long)]
    strict: bool,
    /// List passed cases too.
    #[arg(long)]
    all: bool,
}

/// What the parent hands to the child.
#[derive(Debug, Args)]
pub(crate) struct ChildArgs {
    library: PathBuf,
}

fn expectation(text: &str) -> Result<(String, String), String> {
    let (case, reason) = text.split_once('=').ok_or("a case and a reason are wanted: CASE=REASON")?;
    Ok((case.to_owned(), reason.to_owned()))
}

/// Runs the suite, prints the report.
pub(crate) fn run(app: &App, args: &CheckArgs) -> Outcome {
    let library = app.cwd.join(&args.library);
    if !library.is_file() {
        let message = format!("there is no library {}", library.display());
        return Err(Error::new(ErrorKind::NotFound, message)
            .with_hint("ah agent fs providers lists those that are installed")
            .into());
    }
    // A report on no case would say nothing, and look as if it did.
    let is_none = |text: &&String| !ah_conformance::all_cases().any(|case| case.id.contains(text.as_str()));
    if let Some(text) = args.only.iter().find(is_none) {
        return Err(Error::new(ErrorKind::InvalidArgument, format!("no case has {text:?} in its name"))
            .with_hint("without `--only`, `--all` lists the cases")
            .into());
    }
    let scratch = args.scratch.as_ref().map_or_else(|| app.temp().to_owned(), |folder| app.cwd.join(folder));
    let mut options = Options::new(scratch);
    options.only.clone_from(&args.only);
    options.limit = Duration::from_secs(args.limit.into());
    options.strict = args.strict;
    options.stop = Some(app.interrupted());
    for (case, reason) in &args.expect_failure {
        options = options.expect_failure(case, reason);
    }
    let mut progress = |case: &CaseReport| app.ui.passing(case.id);
    let report = ah_conformance::check(child_command()?, &library, &options, &mut progress);
    if app.interrupted().load(Ordering::Relaxed) {
        return Err(Error::new(ErrorKind::Cancelled, "the check was interrupted").into());
    }
    let exit = match report.exit_status() {
        0 => Exit::Done,
        code => Exit::Code(code),
    };
    exit.after(if app.ui.json {
        app.ui.json(&report)
    } else {
        let told = report.to_text(args.all);
        app.ui.stdout(|out| std::io::Write::write_all(out, text::lines(&told).as_bytes()))
    })
}

fn child_command() -> Result<ChildCommand> {
    let program = itself::program()?;
    Ok(ChildCommand { program, args: vec!["__check-child".into()] })
}

/// Is the child: standard input is the socket over which calls come.
pub(crate) fn child(args: &ChildArgs) -> u8 {
    use std::os::fd::AsFd;
    match std::io::stdin().as_fd().try_clone_to_owned() {
        Ok(socket) => ah_conformance::child_main(&args.library, socket),
        Err(_) => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::CheckArgs;
    use clap::{CommandFactory, Parser};

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        check: CheckArgs,
    }

    #[test]
    fn a_limit_is_a_time_that_can_be_waited() {
        let limit = |text: &str| Some(Cli::try_parse_from(["check", "lib.so", "--limit", text]).ok()?.check.limit);
        assert_eq!((limit("1"), limit("65535")), (Some(1), Some(u16::MAX)));
        for text in ["0", "65536", "18446744073709551615"] {
            assert_eq!(limit(text), None, "{text}");
        }
    }

    #[test]
    fn the_cases_that_the_help_names_exist() {
        let help = Cli::command().get_after_help().unwrap().to_string();
        let named: Vec<&str> =
            help.split("--expect-failure '").skip(1).filter_map(|text| Some(text.split_once('=')?.0)).collect();
        assert!(!named.is_empty(), "{help}");
        for case in named {
            assert!(ah_conformance::all_cases().any(|known| known.id == case), "{case}");
        }
    }
}
