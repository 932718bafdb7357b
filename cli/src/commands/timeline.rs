//! `ah timeline`: what happened here, in order; what an agent did for a prompt stands below it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::Path;

use ah_core::{
    Access, Event, EventBody, FaultKind, FilesChanged, Moment, MomentKind, MomentRecord, PromptGroup, SnapshotId,
    SnapshotKind, SnapshotRecord, TimelineFilter, TimelineReport,
};
use clap::Args;
use serde::Serialize;

use crate::app::App;
use crate::failure::{Exit, Outcome};
use crate::output::style::Style;
use crate::output::table::{Cell, Table};
use crate::output::{text, time};

/// Options of `ah timeline`.
#[derive(Debug, Args)]
#[command(after_help = "\
The latest is last. What an agent did for a prompt stands indented below it, with the files that changed in all; rows of other sessions \
that were at work meanwhile come in between. `(left)`: the session went back behind that prompt. `(by agent)`: nobody typed it; it was scheduled, say. With --session only that session's, also one \
that lives in a branch.

Examples:
  ah timeline
  ah timeline -n 20 --session main
  ah timeline --json | jq '.events[]'")]
pub(crate) struct TimelineArgs {
    /// At most N, the latest.
    #[arg(short = 'n', long, value_name = "N")]
    limit: Option<usize>,
}

/// The JSON: the events as they stand, and the moments by prompts.
#[derive(Serialize)]
struct Shape<'a> {
    #[serde(flatten)]
    report: &'a TimelineReport,
    prompts: Vec<PromptGroup>,
}

/// Prints the events.
pub(crate) fn run(app: &App, args: &TimelineArgs) -> Outcome {
    let (mut root, mut workspace) = app.history(Access::Reading)?;
    if let Some(session) = &app.engine()?.settings().session {
        workspace = workspace.map(|here| here.where_lives(session)).transpose()?;
        if let Some(there) = &workspace {
            there.root().clone_into(&mut root);
        }
    }
    let filter = TimelineFilter { limit: args.limit, ..TimelineFilter::default() };
    let is_known = workspace.is_some();
    let report = workspace.map_or_else(|| Ok(TimelineReport::default()), |workspace| workspace.timeline(&filter))?;
    if app.ui.json {
        app.answer(&root, &Shape { report: &report, prompts: report.prompts() })?;
        return Ok(Exit::Done);
    }
    if is_known && report.events.is_empty() && report.faults.is_empty() {
        app.tell_none(args.limit)?;
    }
    app.ui.stdout(|out| table(&report, app).write(out, app.ui.out))?;
    for fault in &report.faults {
        let (message, hint) = match fault.kind {
            FaultKind::File => (
                format!("session {} is left out: {}", fault.session, fault.reason),
                fault.way_out.as_deref().unwrap_or_default(),
            ),
            FaultKind::End => (
                format!("the end of session {} is missing, line {}: {}", fault.session, fault.line, fault.reason),
                "`ah agent fs gc` puts back what the providers still know",
            ),
            _ => (
                format!("session {}, line {} cannot be read: {}", fault.session, fault.line, fault.reason),
                "`ah agent fs gc` puts back what the providers still know",
            ),
        };
        app.ui.warning(&message, Some(hint));
    }
    Ok(Exit::Done)
}

fn table(report: &TimelineReport, app: &App) -> Table {
    let now = app.now();
    let moments: HashMap<&str, &Moment> =
        report.moments.iter().map(|moment| (moment.record.id.as_str(), moment)).collect();
    let shown: HashSet<&str> =
        report.moments.iter().filter_map(|moment| moment.record.snapshot.as_ref()).map(SnapshotId::as_str).collect();
    // Whoever marks a moment has the snapshot taken with it, under the same label.
    // The first of those that share one comes last.
    let marks = report.moments.iter().rev().filter(|moment| moment.record.kind == MomentKind::Manual);
    let marked: HashMap<&SnapshotId, &Moment> =
        marks.filter_map(|moment| Some((moment.record.exact()?, moment))).collect();
    let is_a_marks = |event: &Event, snapshot: &SnapshotRecord| {
        let mark = marked.get(&snapshot.id).filter(|mark| mark.seq < event.seq);
        mark.is_some_and(|mark| snapshot.kind == SnapshotKind::Manual && mark.record.label == snapshot.label)
    };
    let elsewhere = elsewhere(report);
    // The sessions whose rows stand below a prompt by now.
    let mut prompted: HashSet<&str> = HashSet::new();
    let mut table = Table::new(&["WHEN", "SESSION", "EVENT", "ID", "WHAT"]);
    for event in &report.events {
        let begins = match &event.body {
            // Told with their moments.
            EventBody::MomentUpdate(_) => continue,
            _ if report.came_to_nothing(event) => continue,
            EventBody::Snapshot { snapshot }
                if (snapshot.kind == SnapshotKind::Auto && shown.contains(snapshot.id.as_str()))
                    || is_a_marks(event, snapshot) =>
            {
                continue;
            }
            EventBody::Moment(moment) => moment.kind == MomentKind::Prompt,
            _ => false,
        };
        if begins {
            prompted.insert(event.session.as_str());
        }
        let below = !begins && prompted.contains(event.session.as_str());
        let (name, id, what) = row(event, &moments, &elsewhere, &report.left);
        table.row([
            Cell::from(time::relative(event.time, now)),
            Cell::from(event.session.as_str()),
            if below { name.indented() } else { name },
            Cell::new(&id, Style::Id),
            Cell::from(what),
        ]);
    }
    table
}

/// Where else than in the workspace the agent was at work for a prompt, by the prompts' ids.
fn elsewhere(report: &TimelineReport) -> HashMap<&str, &Path> {
    let mut found = HashMap::new();
    let mut current: HashMap<&str, &str> = HashMap::new();
    for moment in &report.moments {
        let (session, id) = (moment.session.as_str(), moment.record.id.as_str());
        if moment.record.kind == MomentKind::Prompt {
            current.insert(session, id);
        }
        if let (Some(at), Some(prompt)) = (&moment.record.elsewhere, current.get(session)) {
            found.entry(*prompt).or_insert(at.as_path());
        }
    }
    found
}

/// A moment for a person: what it was, which files changed, and why it cannot be gone back to exactly.
fn about(moment: &MomentRecord, elsewhere: Option<&Path>) -> String {
    let prompt =
        moment.prompt.as_ref().map(|prompt| format!("{:?}", prompt.split_whitespace().collect::<Vec<_>>().join(" ")));
    let tool = || {
        let tool = moment.tool.as_ref()?;
        let by = moment.sub_agent.as_ref().map_or_else(String::new, |sub| format!(" (sub-agent {sub})"));
        Some(tool.title() + &by)
    };
    let mut what = prompt.or_else(tool).or_else(|| moment.label.clone()).unwrap_or_default();
    let mut add = |more: String| {
        what = if what.is_empty() { more.clone() } else { format!("{what} - {more}") };
    };
    if let Some(files) = &moment.files {
        let nothing = elsewhere.filter(|_| files.total == 0);
        add(nothing.map_or_else(|| changed(files), |at| format!("no files changed here, at work in {}", at.display())));
    }
    match (&moment.snapshot, &moment.reason, moment.inexact) {
        (Some(_), Some(reason), true) => add(format!("inexact: {reason}")),
        (None, Some(reason), _) => add(format!("no snapshot: {reason}")),
        (None, None, _) => add("no snapshot yet".to_owned()),
        _ => {}
    }
    what
}

/// `2 files: a, b`.
pub(crate) fn changed(files: &FilesChanged) -> String {
    if files.total == 0 {
        return "no files changed".to_owned();
    }
    listed(files, "file", "files")
}

fn listed(files: &FilesChanged, one: &str, many: &str) -> String {
    const NAMED: usize = 3;
    let named: Vec<String> = files.paths.iter().take(NAMED).map(ToString::to_string).collect();
    let more = files.total.saturating_sub(named.len() as u64);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}: {}{more}", text::count(files.total, one, many), named.join(", "))
}

/// An event's name, the id that it is about, and the rest for a person.
fn row(
    event: &Event,
    moments: &HashMap<&str, &Moment>,
    elsewhere: &HashMap<&str, &Path>,
    left: &BTreeSet<SnapshotId>,
) -> (Cell, String, String) {
    let plain = |name: &str, id: &str, what: String| (Cell::from(name), id.to_owned(), what);
    match &event.body {
        EventBody::Snapshot { snapshot } => {
            let name = match snapshot.kind {
                SnapshotKind::Safety => Cell::new("safety", Style::Dim),
                _ => Cell::new("snapshot", Style::Bold),
            };
            (name, snapshot.id.to_string(), label(snapshot))
        }
        EventBody::Recovered { snapshot, .. } => plain("recovered", snapshot.id.as_str(), label(snapshot)),
        EventBody::Moment(record) => {
            // As it became.
            let moment = moments.get(record.id.as_str()).map_or(&**record, |moment| &moment.record);
            let name = if moment.by_agent { "prompt (by agent)" } else { moment.kind.as_str() };
            let (is_prompt, left) = (moment.kind == MomentKind::Prompt, left.contains(&moment.id));
            let name = match (is_prompt, left) {
                (true, true) => Cell::new(&format!("{name} (left)"), Style::Dim),
                (false, true) => Cell::new(name, Style::Dim),
                (true, false) => Cell::new(name, Style::Bold),
                (false, false) => Cell::from(name),
            };
            (name, moment.id.to_string(), about(moment, elsewhere.get(moment.id.as_str()).copied()))
        }
        EventBody::MomentUpdate(update) => {
            let found = update.snapshot.as_ref().map(|id| format!("snapshot {id}"));
            plain("moment", update.moment.as_str(), found.or_else(|| update.reason.clone()).unwrap_or_default())
        }
        EventBody::HookFailed { agent, event, reason } => {
            (Cell::new("hook failed", Style::Warning), String::new(), format!("{agent}, {event}: {reason}"))
        }
        EventBody::Edit { snapshot, label, kept } => {
            let label = label.as_ref().map(|label| format!("label {label:?}"));
            let kept = kept.map(|kept| if kept { "kept" } else { "no longer kept" }.to_owned());
            let what: Vec<String> = label.into_iter().chain(kept).collect();
            plain("edit", snapshot.as_str(), what.join(", "))
        }
        EventBody::Remove { snapshots, by } => {
            let first = snapshots.first().map_or("", |id| id.as_str());
            let more = match snapshots.len() {
                0 | 1 => String::new(),
                several => format!(", with {} more", several - 1),
            };
            plain("remove", first, format!("by {by}{more}"))
        }
        EventBody::Branch { name, snapshot, path, .. } => {
            plain("branch", snapshot.as_str(), format!("{name} at {}", path.display()))
        }
        EventBody::SessionBranch(made) => {
            let what = format!("{} from {}, {}", made.name, made.from, made.method);
            plain("session branch", made.moment.as_str(), what)
        }
        EventBody::Rewind(rewind) => {
            let what = match (&rewind.snapshot, rewind.method) {
                (Some(_), Some(_)) => "files and conversation",
                (Some(_), None) => "files",
                _ => "conversation",
            };
            (Cell::new("rewind", Style::Changed), rewind.moment.to_string(), what.to_owned())
        }
        EventBody::BranchRemoved { name, .. } => plain("branch removed", "", name.clone()),
        EventBody::RestoreBegin(begin) => {
            let name = if begin.undoes.is_some() { "undo" } else { "restore" };
            let paths = text::count(begin.changes, "path", "paths");
            (Cell::new(name, Style::Changed), begin.target.to_string(), format!("{paths}, saved in {}", begin.safety))
        }
        EventBody::RestoreEnd(end) => {
            let paths = || text::count(end.left, "path", "paths");
            let left = if end.left > 0 { format!(", {} left as before", paths()) } else { String::new() };
            // It was stopped, or came to nothing, before the first change.
            let unchanged = if end.outcome == "failed" { ": nothing was changed" } else { "" };
            plain("restore end", "", format!("{}{unchanged}{left}", end.outcome))
        }
        EventBody::Degraded { provider, reason, next } => (
            Cell::new("degraded", Style::Warning),
            String::new(),
            format!("{provider} failed, {next} took over: {reason}"),
        ),
        EventBody::ChangedBelow { files } => {
            let what = format!("in the workspace: {}", listed(files, "path", "paths"));
            (Cell::new("changed below", Style::Warning), String::new(), what)
        }
        EventBody::CapturePaused { free, total } => (
            Cell::new("paused", Style::Warning),
            String::new(),
            format!("automatic snapshots: only {} of {} are free on the disk", text::size(*free), text::size(*total)),
        ),
        EventBody::CaptureResumed {} => plain("resumed", "", "automatic snapshots".to_owned()),
        EventBody::Repaired { bytes } => {
            plain("repaired", "", format!("a torn last line of {} was cut off", text::count(*bytes, "byte", "bytes")))
        }
        EventBody::LinesLost { last } => {
            let what = format!("the end of this timeline, up to event {last}, was not there any more");
            (Cell::new("lines lost", Style::Warning), String::new(), what)
        }
        EventBody::LinesSought {} => plain("lines sought", "", "what was lost is listed again, and pinned".to_owned()),
        EventBody::Workspace { change, from, to } if from == to => {
            plain("workspace", "", format!("{change}: {}", to.display()))
        }
        EventBody::Workspace { change, from, to } => {
            plain("workspace", "", format!("{change}: {} -> {}", from.display(), to.display()))
        }
        EventBody::Other(fields) => {
            let name = fields.get("type").and_then(|name| name.as_str()).unwrap_or("unknown");
            (Cell::new(name, Style::Dim), String::new(), String::new())
        }
        _ => plain("unknown", "", String::new()),
    }
}

fn label(snapshot: &SnapshotRecord) -> String {
    snapshot.label.clone().unwrap_or_default()
}
