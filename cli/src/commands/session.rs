//! `ah session …`: the sessions of this workspace.

use std::path::Path;

use ah_core::{
    Access, AgentSession, Error, ErrorKind, ListedSession, Moment, Recording, SessionName, SessionRecord, Workspace,
};
use ah_plugin_api::Timestamp;
use ah_recording::cast::Reader;
use clap::{Args, Subcommand};
use serde::Serialize;

use crate::app::App;
use crate::commands::session_branch;
use crate::failure::{Exit, Outcome};
use crate::output::style::Style;
use crate::output::table::{Cell, Table};
use crate::output::{text, time};

/// `ah session …`.
#[derive(Debug, Subcommand)]
pub(crate) enum Session {
    /// List the sessions, with those that branched off.
    List(ListArgs),
    /// Everything known about a session.
    Show(ShowArgs),
    /// Start a new session from a moment: files and conversation as they were.
    Branch(session_branch::BranchArgs),
}

/// Options of `ah session list`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ah session list
  ah session list --json")]
pub(crate) struct ListArgs {}

/// Options of `ah session show`.
#[derive(Debug, Args)]
#[command(after_help = "\
Without NAME the session that is written to: --session, else $AH_SESSION, else main.

Examples:
  ah session show claude-20261121-1
  ah session show --json")]
pub(crate) struct ShowArgs {
    /// The session.
    #[arg(value_name = "NAME")]
    name: Option<String>,
}

#[derive(Serialize)]
struct ListShape<'a> {
    sessions: &'a [ListedSession],
}

#[derive(Serialize)]
struct ShowShape<'a> {
    session: &'a SessionRecord,
    moments: usize,
    prompts: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    last: Option<&'a Moment>,
    #[serde(skip_serializing_if = "Option::is_none")]
    left: Option<&'a AgentSession>,
    recordings: Vec<RecordingShape<'a>>,
}

#[derive(Serialize)]
struct RecordingShape<'a> {
    number: u32,
    #[serde(with = "ah_core::text::abs")]
    path: &'a Path,
    live: bool,
}

impl<'a> RecordingShape<'a> {
    fn of(recording: &'a Recording) -> Self {
        Self { number: recording.number, path: &recording.path, live: recording.is_live() }
    }
}

/// Runs one of them.
pub(crate) fn run(app: &App, command: &Session) -> Outcome {
    match command {
        Session::List(_) => list(app),
        Session::Show(args) => show(app, args),
        Session::Branch(args) => session_branch::run(app, args),
    }
}

fn list(app: &App) -> Outcome {
    let (root, here) = app.history(Access::Existing)?;
    let sessions = here.as_ref().map_or_else(|| Ok(Vec::new()), Workspace::related_sessions)?;
    if app.ui.json {
        app.answer(&root, &ListShape { sessions: &sessions })?;
        return Ok(Exit::Done);
    }
    let now = app.now();
    let mut table = Table::new(&["SESSION", "BEGAN", "AGENT", "ENDED", "FROM", "IN"]);
    for ListedSession { record, workspace, .. } in &sessions {
        let own = here.as_ref().filter(|_| workspace.is_none());
        let agent = record.agent.clone().or_else(|| left(own?, record));
        let ended = record.ended.as_ref();
        let from = record.provenance.as_ref();
        table.row([
            Cell::new(record.name.as_str(), Style::Bold),
            Cell::from(time::relative(record.created, now)),
            Cell::from(agent.as_ref().map_or("", |agent| &agent.name)),
            Cell::from(
                ended.map_or_else(String::new, |end| format!("{} ({})", time::relative(end.time, now), end.reason)),
            ),
            Cell::from(from.map_or("", |from| from.from_session_id.as_str())),
            Cell::from(workspace.as_deref().map_or_else(String::new, text::path)),
        ]);
    }
    app.ui.stdout(|out| table.write(out, app.ui.out))?;
    Ok(Exit::Done)
}

/// The agent of a session whose conversation begins anew.
fn left(workspace: &Workspace, session: &SessionRecord) -> Option<AgentSession> {
    if !session.was_agents || session.agent.is_some() {
        return None;
    }
    // Who it was is worth no error.
    workspace.left_agent(&session.name).ok()?
}

/// So many recordings are named to people, the latest.
const RECORDINGS_NAMED: usize = 10;

/// So many characters of a recorded command are shown.
const COMMAND_SHOWN: usize = 60;

/// What a recording is of, and from when, as its first line says.
fn about(recording: &Recording, now: Timestamp) -> Option<String> {
    let reader = Reader::open(recording.open_at(0).ok()?).ok()?;
    let header = reader.header();
    let began = header.timestamp.map(|secs| time::relative(Timestamp { secs, nanos: 0 }, now));
    let command = header.command.as_ref().map(|command| command.chars().take(COMMAND_SHOWN).collect());
    let parts: Vec<String> = command.into_iter().chain(began).collect();
    Some(parts.join(", ")).filter(|about| !about.is_empty())
}

fn show(app: &App, args: &ShowArgs) -> Outcome {
    let absent = args
        .name
        .as_ref()
        .map_or_else(|| "there is no session here".to_owned(), |name| format!("there is no session {name} here"));
    let workspace = app.workspace_with(&absent, None)?;
    let name = args.name.clone().map_or_else(|| Ok(workspace.own_session()), SessionName::new)?;
    let workspace = workspace.where_lives(&name)?;
    let sessions = workspace.sessions()?;
    let session = sessions.iter().find(|session| session.name == name).ok_or_else(|| {
        Error::new(ErrorKind::NotFound, format!("there is no session {name} in this workspace")).with_hint(
            match &*sessions {
                [only] => format!(
                    "the only one is {0}: `ah session show {0}`",
                    ah_core::text::shell(only.name.as_str().as_ref())
                ),
                _ => "ah session list".to_owned(),
            },
        )
    })?;
    let moments = workspace.moments(Some(&name))?;
    let prompts = moments.iter().filter(|moment| moment.record.is_persons_prompt()).count();
    let left = left(&workspace, session);
    let recordings = workspace.recordings(&name)?;
    let shape = ShowShape {
        session,
        moments: moments.len(),
        prompts,
        last: moments.last(),
        left: left.as_ref(),
        recordings: recordings.iter().map(RecordingShape::of).collect(),
    };
    if app.ui.json {
        app.answer(workspace.root(), &shape)?;
        return Ok(Exit::Done);
    }
    let now = app.now();
    let mut rows: Vec<(&str, String)> = vec![("session", session.name.to_string())];
    rows.extend(session.title.clone().map(|title| ("title", title)));
    rows.push(("began", format!("{}, {}", time::local(session.created), time::relative(session.created, now))));
    if let Some(agent) = &session.agent {
        rows.push(("agent", format!("{}, session {}", agent.name, agent.id)));
        rows.push(("started in", agent.start.display().to_string()));
        rows.extend(agent.transcript.as_ref().map(|file| ("transcript", file.display().to_string())));
    }
    if let Some(agent) = &left {
        rows.push(("agent", format!("{}, begins anew; before the rewind session {}", agent.name, agent.id)));
        rows.push(("started in", agent.start.display().to_string()));
        rows.extend(agent.transcript.as_ref().map(|file| ("transcript", file.display().to_string())));
    }
    if let Some(end) = &session.ended {
        rows.push(("ended", format!("{}, {} ({})", time::local(end.time), time::relative(end.time, now), end.reason)));
    }
    if let Some(from) = &session.provenance {
        let (session, snapshot, method) = (&from.from_session_id, &from.fs_snapshot_id, from.method);
        rows.push((
            "grew from",
            format!("{session} at {}, snapshot {snapshot}, by {method}", time::local(from.from_ts)),
        ));
    }
    rows.push(("moments", format!("{}, {}", moments.len(), text::count(prompts as u64, "prompt", "prompts"))));
    let earlier = recordings.len().saturating_sub(RECORDINGS_NAMED);
    if earlier > 0 {
        rows.push(("recordings", format!("{earlier} earlier ones, see --json")));
    }
    rows.extend(recordings.iter().skip(earlier).map(|recording| {
        let live = if recording.is_live() { "goes on; " } else { "" };
        let play = app.ui.in_place(&format!("ah agent replay --session {name} {}", recording.number));
        let about = about(recording, now).map(|about| format!("{about}; ")).unwrap_or_default();
        ("recording", format!("{}, {about}{live}`{play}` plays it", recording.number))
    }));
    if let Some(around) = recordings.is_empty().then(|| workspace.recorded_around(&name)).flatten() {
        let play = app.ui.in_place(&format!("ah agent replay --session {} {}", around.session, around.number));
        rows.push(("recorded", format!("in session {}: `{play}` plays it", around.session)));
    }
    app.ui.stdout(|out| {
        use std::io::Write;
        rows.iter().try_for_each(|(name, value)| writeln!(out, "{name:<12}{}", text::line(value)))
    })?;
    Ok(Exit::Done)
}
