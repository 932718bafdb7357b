//! `ah agent fs versions`: one file over time.

use std::ffi::OsString;
use std::path::Path;

use ah_core::{Access, ErrorKind, RelPath, VersionRecord};
use clap::Args;
use serde::Serialize;

use crate::app::App;
use crate::args::path;
use crate::failure::{Exit, Outcome};
use crate::hint;
use crate::output::style::Style;
use crate::output::table::{Cell, Table};
use crate::output::{text, time};

/// Options of `ah agent fs versions`.
#[derive(Debug, Args)]
#[command(after_help = "\
The newest is first; a file that is deleted by now has versions too. Rows with the same CONTENT hold the same bytes. \
Print one with `ah agent fs cat SNAPSHOT FILE`.

Examples:
  ah agent fs versions src/main.rs
  ah agent fs versions .env --json")]
pub(crate) struct VersionsArgs {
    /// The file.
    #[arg(value_parser = path())]
    path: OsString,
}

/// So much of a content's id as tells those of one file apart.
const CONTENT_DIGITS: usize = 10;

#[derive(Serialize)]
struct Shape<'a> {
    versions: &'a [VersionRecord],
}

/// Prints the versions.
pub(crate) fn run(app: &App, args: &VersionsArgs) -> Outcome {
    let workspace = app.workspace(Access::Reading)?;
    let path = workspace.rel_path(&app.cwd, Path::new(&args.path))?;
    let mut versions = workspace.versions(&path).map_err(|error| {
        let is_there = |path: &RelPath| workspace.versions(path).is_ok();
        let meant = || hint::path_from_here(app, &workspace, "versions", &args.path, is_there);
        match (error.kind == ErrorKind::NotFound).then(meant).flatten() {
            Some(hint) => error.with_hint(hint),
            None => error,
        }
    })?;
    versions.reverse();
    if app.ui.json {
        app.answer(workspace.root(), &Shape { versions: &versions })?;
        return Ok(Exit::Done);
    }
    let mut table =
        Table::new(&["FIRST SNAPSHOT", "TAKEN", "IN A ROW", "CONTENT", "MODE", "SIZE", "MODIFIED", "LABEL"]);
    for version in &versions {
        let [content, mode, bytes, modified] = match &version.entry {
            Some(entry) => [
                entry.content.as_deref().map(|id| id.chars().take(CONTENT_DIGITS).collect()).unwrap_or_default(),
                format!("{:04o}", entry.mode),
                text::size(entry.size),
                time::relative(entry.mtime, app.now()),
            ],
            None => ["not there".to_owned(), String::new(), String::new(), String::new()],
        };
        table.row([
            Cell::new(version.snapshot.as_str(), Style::Id),
            Cell::from(time::relative(version.time, app.now())),
            Cell::from(version.snapshots.to_string()),
            Cell::from(content),
            Cell::from(mode),
            Cell::from(bytes),
            Cell::from(modified),
            Cell::from(version.label.as_deref().unwrap_or_default()),
        ]);
    }
    app.ui.stdout(|out| table.write(out, app.ui.out))?;
    Ok(Exit::Done)
}
