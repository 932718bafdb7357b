//! `ah agent fs check`: the conformance suite on any provider library.

use std::ffi::OsString;
use std::path::PathBuf;

use ah_plugin_api::{Error, ErrorKind};
use clap::Args;

use crate::app::App;
use crate::failure::Outcome;

/// Options of `ah agent fs check`.
#[derive(Debug, Args)]
#[command(after_help = "\
The library runs in a process of its own, so that nothing it does can harm this one. Ends with 1 if it does not keep the \
contract.

Examples:
  ah agent fs check ./target/release/libah_provider_minimal.so
  ah agent fs check ./libah_provider_mine.so --json")]
pub(crate) struct CheckArgs {
    /// The library.
    #[arg(value_name = "LIB")]
    library: PathBuf,
}

/// What the parent hands to the child.
#[derive(Debug, Args)]
pub(crate) struct ChildArgs {
    #[arg(allow_hyphen_values = true, trailing_var_arg = true)]
    arguments: Vec<OsString>,
}

/// Runs the suite, prints the report.
pub(crate) fn run(app: &App, args: &CheckArgs) -> Outcome {
    let _ = (app, &args.library);
    Err(Error::new(ErrorKind::Unsupported, "not connected yet").into())
}

/// Is the child.
pub(crate) fn child(args: &ChildArgs) -> Outcome {
    let _ = &args.arguments;
    Err(Error::new(ErrorKind::Unsupported, "not connected yet").into())
}
