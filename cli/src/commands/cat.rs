//! `ah agent fs cat`: one file as it was.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use ah_core::text::shell;
use ah_core::{Access, EntryRecord, ErrorKind, RelPath, SnapshotRecord, Workspace, text};
use clap::Args;
use serde::Serialize;

use crate::app::App;
use crate::args::{path, reference};
use crate::contents;
use crate::failure::{Exit, Failure, Outcome};
use crate::hint;

/// Options of `ah agent fs cat`.
#[derive(Debug, Args)]
#[command(after_help = "\
Prints the contents, or a symlink's target, byte for byte.

Examples:
  ah agent fs cat @ src/main.rs
  ah agent fs cat before .env | diff - .env
  ah agent fs restore before -- .env        # put it back; what is there is saved first")]
pub(crate) struct CatArgs {
    /// The snapshot.
    #[arg(value_name = "REF", value_parser = reference, allow_hyphen_values = true)]
    reference: String,
    /// The file.
    #[arg(value_parser = path())]
    path: OsString,
}

/// So many bytes of contents are put into JSON.
const MOST: u64 = 32 << 20;

#[derive(Serialize)]
struct Shape<'a> {
    snapshot: &'a SnapshotRecord,
    #[serde(with = "text::rel")]
    path: &'a RelPath,
    entry: EntryRecord,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<String>,
}

/// Prints the file.
pub(crate) fn run(app: &App, args: &CatArgs) -> Outcome {
    let workspace = app.workspace(Access::Reading)?;
    let path = workspace.rel_path(&app.cwd, Path::new(&args.path))?;
    let snapshot = workspace
        .resolve(&args.reference)
        .map_err(|error| hint::reference_first(app, &workspace, "cat", &args.reference, error))?;
    if app.ui.json {
        return json(app, &workspace, &snapshot, &path);
    }
    match workspace.cat_from(&snapshot, &path, io::stdout().as_fd()) {
        Ok(_) => Ok(Exit::Done),
        Err(error) if error.kind == ErrorKind::NotFound => {
            let typed = format!("cat {}", shell(args.reference.as_ref()));
            let has = |path: &RelPath| workspace.has_then(&snapshot, path);
            let meant = hint::path_from_here(app, &workspace, &typed, &args.path, has);
            Err(meant.map_or_else(|| error.clone(), |hint| error.clone().with_hint(hint)).into())
        }
        // The provider writes by itself; a pipe that nobody reads any more comes back as its error.
        Err(error) if error.errno == Some(rustix::io::Errno::PIPE.raw_os_error()) => {
            Err(Failure::output(io::ErrorKind::BrokenPipe.into()))
        }
        Err(error) => Err(error.into()),
    }
}

fn json(app: &App, workspace: &Workspace, snapshot: &SnapshotRecord, path: &RelPath) -> Outcome {
    let (entry, bytes) = contents::then_at_most(MOST, workspace, snapshot, path)?;
    let (text, bytes) = match String::from_utf8(bytes) {
        Ok(text) => (Some(text), None),
        Err(error) => (None, Some(text::hex(error.as_bytes()))),
    };
    app.answer(workspace.root(), &Shape { snapshot, path, entry, text, bytes })?;
    Ok(Exit::Done)
}
