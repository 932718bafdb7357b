//! `ah agent fs show`: everything about one snapshot.

use std::io::{self, Write};

use ah_core::{Access, SnapshotDetails};
use clap::Args;
use serde::Serialize;

use crate::app::App;
use crate::args::reference;
use crate::failure::{Exit, Outcome};
use crate::output::style::Style;
use crate::output::{size, text, time};

/// Options of `ah agent fs show`.
#[derive(Debug, Args)]
#[command(after_help = "\
Lists what the snapshot left out, and why: restore never deletes or overwrites that.

Examples:
  ah agent fs show @
  ah agent fs show 'before the refactoring' --json")]
pub(crate) struct ShowArgs {
    /// The snapshot.
    #[arg(value_name = "REF", value_parser = reference, allow_hyphen_values = true)]
    reference: String,
}

#[derive(Serialize)]
struct Shape<'a> {
    snapshot: &'a SnapshotDetails,
}

/// Prints the details.
pub(crate) fn run(app: &App, args: &ShowArgs) -> Outcome {
    let workspace = app.workspace(Access::Existing)?;
    let details = workspace.show(&args.reference)?;
    if app.ui.json {
        app.answer(workspace.root(), &Shape { snapshot: &details })?;
        return Ok(Exit::Done);
    }
    app.ui.stdout(|out| write(out, app, &details))?;
    Ok(Exit::Done)
}

fn write(out: &mut impl Write, app: &App, details: &SnapshotDetails) -> io::Result<()> {
    let record = &details.record;
    let mut field = |name: &str, value: &str| {
        writeln!(out, "{} {}", app.ui.out.paint(&format!("{name:<11}"), Style::Dim), text::line(value))
    };
    field("snapshot", record.id.as_str())?;
    if let Some(label) = &record.label {
        field("label", label)?;
    }
    field("taken", &time::both(record.time, app.now()))?;
    field("session", record.session.as_str())?;
    field("kind", &if record.kept { format!("{}, kept", record.kind) } else { record.kind.to_string() })?;
    let own = record.reference.as_str();
    let own = if own == record.id.as_str() { String::new() } else { format!(" ({own})") };
    field("provider", &format!("{}{own}", record.provider))?;
    field("durability", details.durability_now.as_str())?;
    if let Some(entries) = record.entries {
        field("entries", &entries.to_string())?;
    }
    if let Some(bytes) = details.exclusive_bytes {
        field("alone", &format!("{} would be freed by removing it", size::human(bytes)))?;
    }
    if let Some(pins) = &record.pins {
        field("holds", &format!("also the space of {pins}"))?;
    }
    if let Some(equal) = &record.equal_to {
        field("equal to", equal.as_str())?;
    }
    if let Some(repository) = &record.repository {
        let head = repository.head.as_deref().unwrap_or("no commit");
        field("repository", &format!("{head} on {}", repository.branch.as_deref().unwrap_or("no branch")))?;
        if let Some(reason) = &repository.not_kept {
            field("", &format!("its objects are not kept: {reason}"))?;
        }
    }
    for (name, value) in &record.attributes {
        field("attribute", &format!("{name}={value}"))?;
    }
    for lease in &details.leases {
        field("shown by", lease.as_str())?;
    }
    for branch in &details.branches {
        field("branch", branch.as_str())?;
    }
    if !details.omitted.is_empty() {
        writeln!(out, "{}", app.ui.out.paint("left out", Style::Dim))?;
    }
    for omitted in &details.omitted {
        write!(out, "  {:<17} ", omitted.reason.as_str())?;
        text::write_path(out, omitted.path.as_bytes())?;
        match &omitted.detail {
            Some(detail) => writeln!(out, "  ({})", text::line(detail))?,
            None => writeln!(out)?,
        }
    }
    Ok(())
}
