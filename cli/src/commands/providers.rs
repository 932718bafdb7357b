//! `ah agent fs providers`: the libraries, and what came of loading each.

use std::path::PathBuf;

use ah_core::{NoticeKind, RefusedPlugin, UnusedHelper};
use ah_plugin_api::Description;
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
Libraries are looked for in --provider-path and $AH_PROVIDER_PATH, in ../lib/ah/providers/1 from the program's folder (where cargo built it, in \
that folder itself), then in the system's folder. \
The providers of the helper ahd are asked for where it listens; where it does not serve, that is told. \
Whether one can serve a workspace, `ah agent fs status` says.

Examples:
  ah agent fs providers
  ah agent fs providers --provider-path ./target/release")]
pub(crate) struct ProvidersArgs {}

#[derive(Serialize)]
struct Shape<'a> {
    providers: Vec<ProviderShape<'a>>,
    refused: &'a [RefusedPlugin],
    #[serde(skip_serializing_if = "Option::is_none")]
    helper: Option<&'a UnusedHelper>,
}

#[derive(Serialize)]
struct ProviderShape<'a> {
    #[serde(flatten)]
    description: Description,
    #[serde(with = "ah_core::text::abs_option", skip_serializing_if = "Option::is_none")]
    path: &'a Option<PathBuf>,
}

/// Prints the list.
pub(crate) fn run(app: &App, _args: &ProvidersArgs) -> Outcome {
    let set = app.engine()?.all_providers()?;
    app.answer_tells(NoticeKind::Plugin);
    let mut providers = Vec::new();
    for served in &set.providers {
        providers.push(ProviderShape { description: served.provider()?.describe(), path: &served.path });
    }
    providers.sort_by_key(|provider| std::cmp::Reverse(provider.description.rank));
    if app.ui.json {
        app.answer_tells(NoticeKind::Helper);
        app.ui.json(&Shape { providers, refused: &set.refused, helper: set.helper.as_ref() })?;
        return Ok(Exit::Done);
    }
    let mut table = Table::new(&["PROVIDER", "RANK", "VERSION", "LIBRARY"]);
    for ProviderShape { description, path } in &providers {
        table.row([
            Cell::new(description.name.as_str(), Style::Bold),
            Cell::from(description.rank.map_or_else(|| "by name".to_owned(), |rank| rank.to_string())),
            Cell::from(&description.version),
            Cell::from(path.as_ref().map(|path| text::path(path)).unwrap_or_default()),
        ]);
    }
    app.ui.stdout(|out| table.write(out, app.ui.out))?;
    for plugin in &set.refused {
        let message = format!("{} is not loaded: {}", plugin.path.display(), plugin.reason);
        app.ui.warning(&message, plugin.remedy.as_deref());
    }
    Ok(Exit::Done)
}
