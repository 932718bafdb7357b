//! `ah agent fs providers`: the libraries, and what came of loading each.

use ah_core::{Candidate, RefusedPlugin};
use clap::Args;
use serde::Serialize;

use crate::app::App;
use crate::failure::{Exit, Outcome};
use crate::output::style::Style;
use crate::output::table::{Cell, Table};
use crate::output::text;

/// Options of `ah agent fs providers`.
#[derive(Debug, Args)]
#[command(after_help = "\
Libraries are looked for in --provider-path and $AH_PROVIDER_PATH, beside the program, then in the system's folder. \
Whether one can serve a workspace, `ah agent fs status` says.

Examples:
  ah agent fs providers
  ah agent fs providers --provider-path ./target/release")]
pub(crate) struct ProvidersArgs {}

#[derive(Serialize)]
struct Shape<'a> {
    providers: &'a [Candidate],
    refused: &'a [RefusedPlugin],
}

/// Prints the list.
pub(crate) fn run(app: &App, _args: &ProvidersArgs) -> Outcome {
    let status = app.engine()?.status(&app.cwd)?;
    let shape = Shape { providers: &status.candidates, refused: &status.refused };
    if app.ui.json {
        app.answer(&status.root, &shape)?;
        return Ok(Exit::Done);
    }
    let mut table = Table::new(&["PROVIDER", "RANK", "VERSION", "LIBRARY"]);
    for provider in shape.providers {
        table.row([
            Cell::new(provider.name.as_str(), Style::Bold),
            Cell::from(provider.rank.map_or_else(|| "by name".to_owned(), |rank| rank.to_string())),
            Cell::from(&provider.version),
            Cell::from(provider.path.as_ref().map(|path| text::path(path)).unwrap_or_default()),
        ]);
    }
    app.ui.stdout(|out| table.write(out, app.ui.out))?;
    for plugin in shape.refused {
        let message = format!("{} is not loaded: {}", plugin.path.display(), plugin.reason);
        app.ui.warning(&message, plugin.remedy.as_deref());
    }
    Ok(Exit::Done)
}
