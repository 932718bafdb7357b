//! `ah agent fs seek`: a snapshot as a read-only directory.

use std::ffi::OsString;

use ah_core::{Access, ErrorKind, LeaseRecord, SeekOptions, text};
use clap::Args;
use serde::Serialize;

use crate::app::App;
use crate::args::{path, reference};
use crate::failure::{Exit, Outcome};
use crate::hint;

/// Options of `ah agent fs seek`.
#[derive(Debug, Args)]
#[command(after_help = "\
Prints the path of a directory that shows the snapshot, alone. Nothing can be written there. It stays until it is \
given back with `ah agent fs release`.

Examples:
  ah agent fs seek @{2}
  ah agent fs seek before -- src Cargo.toml
  view=$(ah agent fs seek 5m-ago)")]
pub(crate) struct SeekArgs {
    /// The snapshot.
    #[arg(value_name = "REF", value_parser = reference, allow_hyphen_values = true)]
    reference: String,
    /// Only these paths, which is quicker.
    #[arg(value_name = "PATH", value_parser = path(), last = true)]
    paths: Vec<OsString>,
}

#[derive(Serialize)]
struct Shape<'a> {
    lease: &'a LeaseRecord,
}

/// Makes the view, prints its path.
pub(crate) fn run(app: &App, args: &SeekArgs) -> Outcome {
    let workspace = app.workspace(Access::Reading)?;
    let options = SeekOptions { paths: app.paths(&workspace, &args.paths)?, ..SeekOptions::default() };
    let lease = workspace.seek(&args.reference, &options);
    let lease = lease.map_err(|error| match args.paths.as_slice() {
        [path] if error.kind == ErrorKind::NotFound && error.hint.is_none() => {
            let end = if path.as_encoded_bytes().starts_with(b"-") { "-- " } else { "" };
            let shown = "shows whether and when it was there";
            error.with_hint(format!("`ah agent fs versions {end}{}` {shown}", text::shell(path)))
        }
        [_, ..] if error.kind == ErrorKind::NotFound && error.hint.is_none() => {
            error.with_hint("`ah agent fs versions PATH` shows whether and when a file was there")
        }
        _ => hint::reference_first(app, &workspace, "seek", &args.reference, error),
    });
    let lease = lease.map_err(|error| hint::from_top(app, &workspace, &args.reference, &args.paths, false, error))?;
    if app.ui.json {
        app.answer_of(true, workspace.root(), &Shape { lease: &lease })?;
    } else {
        app.ui.path(&lease.path)?;
    }
    Ok(Exit::Done)
}
