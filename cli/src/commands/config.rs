//! `ah config …`: settings, and where each comes from.

use std::io::Write;

use ah_core::{ConfigEntry, ConfigLayer, TrustReport};
use clap::{Args, Subcommand};
use serde::Serialize;

use crate::app::App;
use crate::failure::{Exit, Outcome};
use crate::output::style::Style;
use crate::output::table::{Cell, Table};
use crate::output::text;

/// `ah config …`.
#[derive(Debug, Subcommand)]
pub(crate) enum Config {
    /// Print the value of a key, alone.
    Get(GetArgs),
    /// Set a key.
    Set(SetArgs),
    /// Take a key's value away.
    Unset(UnsetArgs),
    /// List all keys, their values and where these come from.
    List(ListArgs),
    /// Let this project's configuration run and load things, as it is now.
    Trust(TrustArgs),
}

/// Options of `ah config get`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ah config get provider
  ah config get capture.max-file-size --json")]
pub(crate) struct GetArgs {
    /// The key.
    key: String,
}

/// Options of `ah config set`.
#[derive(Debug, Args)]
#[command(after_help = "\
Writes the user's file, $AH_HOME/config.json. VALUE is JSON, or text where it is not. The system's file is ah/config.json in the \
directory that was named when ah was built (of packages /etc; scripts/install: etc below its prefix). A project's file that was not there, \
or was trusted as it was, is trusted as this leaves it (ah config trust); not in an agent's own session.

Examples:
  ah config set provider git
  ah config set capture.exclude '[\"*.iso\"]' --project")]
pub(crate) struct SetArgs {
    /// The key.
    key: String,
    /// The value.
    #[arg(allow_hyphen_values = true)]
    value: String,
    #[command(flatten)]
    layer: LayerArgs,
}

/// Options of `ah config unset`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ah config unset provider
  ah config unset capture.exclude --project")]
pub(crate) struct UnsetArgs {
    /// The key.
    key: String,
    #[command(flatten)]
    layer: LayerArgs,
}

/// Options of `ah config list`.
#[derive(Debug, Args)]
#[command(after_help = "\
A later layer wins: default, system, user, project, environment, flags.

Examples:
  ah config list
  ah config list --json")]
pub(crate) struct ListArgs {}

/// Options of `ah config trust`.
#[derive(Debug, Args)]
#[command(after_help = "\
A project's file, .ah/config.json, may set labels, includes, excludes and caps; anything that runs or loads something \
counts only once it is trusted, and no longer when the file changes. Read it first: what it sets is printed, but of long \
values the beginning alone. A folder of plugins (provider-path) in the workspace never counts.

Examples:
  ah config trust
  ah config trust --revoke")]
pub(crate) struct TrustArgs {
    /// Trust it no longer.
    #[arg(long)]
    revoke: bool,
}

/// Which file is written.
#[derive(Debug, Args)]
struct LayerArgs {
    /// Write the project's file, .ah/config.json, instead of the user's.
    #[arg(long, conflicts_with = "system")]
    project: bool,
    /// Write the system's file, which holds for all users, instead of the user's; root's to do.
    #[arg(long)]
    system: bool,
}

impl LayerArgs {
    fn layer(&self) -> ConfigLayer {
        match (self.project, self.system) {
            (true, _) => ConfigLayer::Project,
            (_, true) => ConfigLayer::System,
            _ => ConfigLayer::User,
        }
    }
}

#[derive(Serialize)]
struct EntryShape<'a> {
    config: &'a ConfigEntry,
}

#[derive(Serialize)]
struct ListShape<'a> {
    config: &'a [ConfigEntry],
}

#[derive(Serialize)]
struct TrustShape<'a> {
    trust: &'a TrustReport,
}

/// Runs one of them.
pub(crate) fn run(app: &App, command: &Config) -> Outcome {
    match command {
        Config::Get(args) => get(app, &args.key),
        Config::Set(args) => set(app, args.layer.layer(), &args.key, Some(&args.value)),
        Config::Unset(args) => set(app, args.layer.layer(), &args.key, None),
        Config::List(_) => list(app),
        Config::Trust(args) => trust(app, args.revoke),
    }
}

fn get(app: &App, key: &str) -> Outcome {
    let entry = app.engine()?.config_get(Some(&app.cwd), key)?;
    if app.ui.json {
        app.ui.json(&EntryShape { config: &entry })?;
    } else if let Some(shown) = shown(&entry.value) {
        app.ui.stdout(|out| writeln!(out, "{shown}"))?;
    }
    Ok(Exit::Done)
}

fn set(app: &App, layer: ConfigLayer, key: &str, value: Option<&str>) -> Outcome {
    let trusted = app.engine()?.config_set(Some(&app.cwd), layer, key, value)?;
    let entry = app.engine()?.config_get(Some(&app.cwd), key)?;
    if app.ui.json {
        app.ui.json_of_act(&EntryShape { config: &entry })?;
        return Ok(Exit::Done);
    }
    if !trusted {
        let message = "this project's configuration is not trusted: a person's `ah config set` makes it so only where it held nothing of anybody else's";
        app.ui.note(&format!("{message}; if all of it is as it should be, a person says so with `ah config trust`"));
    }
    // A stronger layer may hide what was just written. Why it does not count where none does is told by itself.
    if value.is_some() && entry.layer > layer {
        let message = format!("{key} is set in the {} layer too, which wins", entry.layer);
        app.ui.warning(&message, Some("`ah config list` shows every value and its layer"));
    }
    Ok(Exit::Done)
}

fn list(app: &App) -> Outcome {
    let entries = app.engine()?.config_list(Some(&app.cwd))?;
    if app.ui.json {
        app.ui.json(&ListShape { config: &entries })?;
        return Ok(Exit::Done);
    }
    let mut table = Table::new(&["KEY", "VALUE", "LAYER", "FOR"]);
    for entry in &entries {
        table.row([
            Cell::new(&entry.key, Style::Bold),
            Cell::from(shown(&entry.value).unwrap_or_else(|| "-".to_owned())),
            Cell::from(entry.layer.as_str()),
            Cell::new(&entry.help, Style::Dim),
        ]);
    }
    app.ui.stdout(|out| table.write(out, app.ui.out))?;
    Ok(Exit::Done)
}

/// How many characters are shown of a value that a project sets.
const MOST_SHOWN: usize = 1000;

/// A value for a person: text without quotes; none if there is none.
fn shown(value: &serde_json::Value) -> Option<String> {
    match value {
        serde_json::Value::Null => None,
        serde_json::Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

fn trust(app: &App, revoke: bool) -> Outcome {
    let report = app.engine()?.config_trust(&app.cwd, revoke)?;
    if app.ui.json {
        app.ui.json_of_act(&TrustShape { trust: &report })?;
        return Ok(Exit::Done);
    }
    let state = if report.trusted { "trusted" } else { "not trusted" };
    let answer = format!("{} is {state}", text::path(&report.file));
    let told = app.ui.stdout(|out| {
        writeln!(out, "{answer}")?;
        report.values.iter().try_for_each(|(key, value)| {
            let value = shown(value).unwrap_or_else(|| "-".to_owned());
            let value = text::line(&value);
            let cut = value.char_indices().nth(MOST_SHOWN).map(|(at, _)| at);
            let more =
                cut.map_or_else(String::new, |at| format!("… and {} more", text::size((value.len() - at) as u64)));
            writeln!(out, "  {key} {}{more}", &value[..cut.unwrap_or(value.len())])
        })
    });
    told.map_err(|failure| failure.of_answer(&answer))?;
    Ok(Exit::Done)
}
