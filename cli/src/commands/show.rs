//! `ah agent fs show`: everything about one snapshot, or about a moment and the snapshot that shows it.

use std::io::{self, Write};

use ah_core::{Access, Moment, MomentKind, Point, SnapshotDetails, Workspace};
use clap::Args;
use serde::Serialize;

use crate::app::App;
use crate::args::reference;
use crate::commands::timeline::changed;
use crate::failure::{Exit, Outcome};
use crate::output::style::Style;
use crate::output::{text, time};

/// Options of `ah agent fs show`.
#[derive(Debug, Args)]
#[command(after_help = "\
Lists what the snapshot left out, and why: restore never deletes or overwrites that. Not listed is what a provider keeps of \
no file at all: git keeps no owners, extended attributes, access lists, hard links, holes and flags, agentfs no access lists \
and flags. SEMANTICS.md (installed in share/doc/ah/docs) has it under \"What comes back by what\". Of a moment it says what that was, and how exactly the snapshot shows it.

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
    #[serde(skip_serializing_if = "Option::is_none")]
    moment: Option<&'a Moment>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt: Option<&'a Moment>,
}

/// Prints the details.
pub(crate) fn run(app: &App, args: &ShowArgs) -> Outcome {
    let workspace = app.workspace(Access::Reading)?;
    let point = workspace.point(&args.reference)?;
    let details = workspace.show(point.snapshot.id.as_str())?;
    let moment = point.moment.as_ref().filter(|_| point.named);
    let prompt = moment.map_or(Ok(None), |moment| prompt_of(&workspace, moment))?;
    if app.ui.json {
        app.answer(workspace.root(), &Shape { snapshot: &details, moment, prompt: prompt.as_ref() })?;
        return Ok(Exit::Done);
    }
    app.ui.stdout(|out| {
        if let Some(moment) = moment {
            write_moment(out, app, moment, prompt.as_ref(), &point)?;
        }
        write(out, app, &details)
    })?;
    Ok(Exit::Done)
}

/// The prompt at which the agent was, by that moment.
fn prompt_of(workspace: &Workspace, moment: &Moment) -> ah_core::Result<Option<Moment>> {
    let mut before = workspace.moments(Some(&moment.session))?;
    before.retain(|other| other.seq < moment.seq && other.record.kind == MomentKind::Prompt);
    Ok(before.pop().filter(|_| moment.record.kind != MomentKind::Prompt))
}

fn write_moment(
    out: &mut impl Write,
    app: &App,
    moment: &Moment,
    prompt: Option<&Moment>,
    point: &Point,
) -> io::Result<()> {
    let record = &moment.record;
    let mut field = |name: &str, value: &str| field(out, app, name, value);
    field("moment", record.id.as_str())?;
    field("when", &time::both(moment.time, app.now()))?;
    field("session", moment.session.as_str())?;
    field("event", record.kind.as_str())?;
    if let Some(tool) = &record.tool {
        let id = tool.id.as_ref().map_or_else(String::new, |id| format!(" ({id})"));
        field("tool", &format!("{}{id}", tool.title()))?;
    }
    if let Some(sub_agent) = &record.sub_agent {
        field("sub-agent", sub_agent)?;
    }
    if let Some(label) = &record.label {
        field("label", label)?;
    }
    let words = |prompt: &str| format!("{:?}", prompt.split_whitespace().collect::<Vec<_>>().join(" "));
    if let Some(own) = &record.prompt {
        field("prompt", &words(own))?;
    }
    if let Some(prompt) = prompt {
        let text = prompt.record.prompt.as_deref().map_or_else(String::new, |text| format!("{} ", words(text)));
        field("prompt", &format!("{text}({})", prompt.record.id))?;
    }
    if let Some(files) = &record.files {
        field("files", &changed(files))?;
    }
    let reason = record.reason.as_deref().map_or_else(String::new, |reason| format!(": {reason}"));
    let shown = match (&record.snapshot, point.exact) {
        (Some(_), true) => "exactly by this snapshot".to_owned(),
        (Some(own), false) => format!("by the nearest snapshot before; its own, {own}, is inexact{reason}"),
        (None, _) if record.reason.is_some() => {
            format!("by the nearest snapshot before; it has none of its own{reason}")
        }
        (None, _) => "by the nearest snapshot before; its own is not taken yet".to_owned(),
    };
    field("shown", &shown)
}

fn field(out: &mut impl Write, app: &App, name: &str, value: &str) -> io::Result<()> {
    writeln!(out, "{} {}", app.ui.out.paint(&format!("{name:<11}"), Style::Dim), text::line(value))
}

fn write(out: &mut impl Write, app: &App, details: &SnapshotDetails) -> io::Result<()> {
    let record = &details.record;
    let mut field = |name: &str, value: &str| field(out, app, name, value);
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
        field("alone", &format!("{} would be freed by removing it", text::size(bytes)))?;
    }
    if let Some(pins) = &record.pins {
        field("holds", &format!("also the space of {pins}"))?;
    }
    if let Some(equal) = &record.equal_to {
        field("equal to", equal.as_str())?;
    }
    if let Some(repository) = &record.repository {
        let head = repository.head.as_deref().unwrap_or("no commit");
        let branch = repository.branch_name();
        let branch = branch.as_ref().map_or("no branch".into(), |name| ah_plugin_api::text::path(name));
        field("repository", &format!("{head} on {branch}"))?;
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
