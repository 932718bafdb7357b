//! `ah agent replay`: play a recording in the terminal.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ah_core::recording::time_into;
use ah_core::{Point as CorePoint, Recording, Workspace, text};
use ah_plugin_api::{Error, ErrorKind, Result};
use ah_recording::cast::{EventKind, Format, Reader};
use ah_recording::play::{Options, Played, Point, Source, play};
use clap::Args;
use serde::Serialize;

use crate::app::App;
use crate::args::reference;
use crate::commands::cast::tell_unread;
use crate::failure::{Exit, Outcome};

/// Options of `ah agent replay`.
#[derive(Debug, Args)]
#[command(after_help = "\
Keys: space pauses, the arrows go 5 s back and forth, [ and ] to the moment before and after, q ends. Where output is no terminal, all of the recording is written at once; with --from the screen of then, as text, and what came after. \
With --json it says what there is to play instead. Only what draws is shown: a recording cannot ask the terminal anything, or reach the clipboard.

RECORDING is the number of one of the session's recordings, which `ah session show` lists, or a file; without it, the latest. --from takes a time into the recording (12.5s, 3m), or a REF.

Examples:
  ah agent replay
  ah agent replay 2 --session experiment --idle-limit 2
  ah agent replay --from @prompt --speed 2
  ah agent replay demo.cast --from 1m30s")]
pub(crate) struct ReplayArgs {
    /// Which one: a number, or a file.
    recording: Option<OsString>,
    /// Where to begin: a time into the recording, or a REF.
    #[arg(long, value_name = "REF|TIME", value_parser = reference, allow_hyphen_values = true)]
    from: Option<String>,
    /// So many times as fast.
    #[arg(long, value_name = "FACTOR", value_parser = above_zero, default_value = "1", hide_default_value = true)]
    speed: f64,
    /// Shorten pauses to so many seconds.
    #[arg(long, value_name = "SECONDS", value_parser = above_zero)]
    idle_limit: Option<f64>,
}

/// Reads a number above 0.
fn above_zero(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| format!("{text:?} is no number above 0"))
}

/// A recording as it was named.
pub(crate) enum Named {
    /// A session's, in the workspace that it belongs to.
    Session(Box<Workspace>, Recording),
    /// A file's.
    File(PathBuf),
}

/// The workspace, for who asks for a recording.
fn recorded(app: &App) -> Result<Workspace> {
    app.workspace_with("there is no recording here", Some("`ah agent record -- CMD` makes one"))
}

impl Named {
    /// The one that an argument names; without one the latest.
    pub(crate) fn find(app: &App, argument: Option<&OsString>) -> Result<Self> {
        let number = match argument {
            None => None,
            Some(text) => match text.to_str().and_then(|text| text.parse::<u32>().ok()) {
                Some(number) => Some(number),
                None => return Ok(Self::File(app.cwd.join(text))),
            },
        };
        let workspace = recorded(app)?;
        let recording = workspace.recording(number)?;
        Ok(Self::Session(Box::new(workspace), recording))
    }

    fn path(&self) -> &Path {
        match self {
            Self::Session(_, recording) => &recording.path,
            Self::File(path) => path,
        }
    }
}

impl Source for Named {
    fn open_at(&self, offset: u64) -> Result<Box<dyn io::BufRead + '_>> {
        match self {
            Self::Session(_, recording) => Ok(recording.open_at(offset)?),
            Self::File(path) => {
                let packed = path.extension().is_some_and(|extension| extension == "gz");
                Ok(ah_core::recording::open_at(path, packed, offset)?)
            }
        }
    }
}

#[derive(Serialize)]
struct Shape<'a> {
    recording: RecordingShape<'a>,
}

#[derive(Serialize)]
struct RecordingShape<'a> {
    #[serde(with = "text::abs")]
    path: &'a Path,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    number: Option<u32>,
    live: bool,
    format: &'static str,
    cols: u16,
    rows: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    began: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<String>,
    seconds: f64,
    bytes: u64,
    events: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit: Option<i32>,
    torn: bool,
    faults: u64,
    markers: Vec<MarkerShape>,
}

#[derive(Serialize)]
struct MarkerShape {
    seconds: f64,
    offset: u64,
    label: String,
}

/// So many markers of a recording are told, with so many bytes of labels: one may come from anywhere.
const MOST_MARKERS: usize = 100_000;
const MOST_LABELS: usize = 16 << 20;

/// Plays it.
pub(crate) fn run(app: &App, args: &ReplayArgs) -> Outcome {
    let named = match (&args.recording, &args.from) {
        // The one that the REF lies in.
        (None, Some(from)) if time_into(from).is_none() => {
            let workspace = recorded(app)?;
            let point = workspace.point(from)?;
            let place = point.moment.as_ref().and_then(|moment| {
                let at = moment.record.recording.as_ref()?;
                Some((at.session.clone().unwrap_or_else(|| moment.session.clone()), at.number.unwrap_or(1)))
            });
            match place {
                Some((session, number)) => {
                    let all = workspace.recordings(&session)?;
                    let recording = all.into_iter().find(|recording| recording.number == number).ok_or_else(|| {
                        Error::new(
                            ErrorKind::NotFound,
                            format!("recording {number} of session {session} is not there any more"),
                        )
                        .with_hint(format!("ah timeline --session {session} lists what else there is"))
                    })?;
                    Named::Session(Box::new(workspace), recording)
                }
                None => Named::find(app, None)?,
            }
        }
        (recording, _) => Named::find(app, recording.as_ref())?,
    };
    let from = args.from.as_deref().map(|from| place(&named, from)).transpose()?;
    if app.ui.json {
        return tell(app, &named);
    }
    let limit = args.idle_limit.and_then(|limit| Duration::try_from_secs_f64(limit).ok());
    let options = Options { speed: args.speed, idle_limit: limit, from };
    app.tell_notices();
    match play(&named, &options, io::stdout().as_fd(), Some(io::stdin().as_fd())) {
        Ok(Played { signal: None, faults, torn }) => {
            // The last line of one that is being made is on its way.
            let live = matches!(&named, Named::Session(_, recording) if recording.is_live());
            tell_unread(app, faults, torn && !live);
            Ok(Exit::Done)
        }
        Ok(Played { signal: Some(signal), .. }) => Ok(Exit::Code(u8::try_from(128 + signal).unwrap_or(u8::MAX))),
        Err(error) if error.errno == Some(rustix::io::Errno::PIPE.raw_os_error()) => Ok(Exit::Done),
        Err(error) => Err(error.into()),
    }
}

/// Where in a recording `from` is.
fn place(named: &Named, from: &str) -> Result<Point> {
    if let Some(time) = time_into(from) {
        return Ok(Point::Time(time));
    }
    let Named::Session(workspace, recording) = named else {
        let message = format!("{from:?} is no time into the recording");
        return Err(Error::new(ErrorKind::InvalidArgument, message).with_hint("a time is written like 12.5s or 1m30s"));
    };
    let CorePoint { snapshot, moment, .. } = workspace.point(from)?;
    let time = match &moment {
        Some(moment) => {
            let at = moment.record.recording.as_ref().filter(|at| {
                *at.session.as_ref().unwrap_or(&moment.session) == recording.session
                    && at.number.unwrap_or(1) == recording.number
            });
            if let Some(at) = at {
                return Ok(Point::Offset(at.offset));
            }
            moment.time
        }
        None => snapshot.time,
    };
    let reader = Reader::open(recording.open_at(0)?)?;
    let began = reader.header().timestamp.unwrap_or(time.secs);
    Ok(Point::Time(Duration::from_secs(u64::try_from(time.secs.saturating_sub(began)).unwrap_or(0))))
}

/// Says what there is to play.
fn tell(app: &App, named: &Named) -> Outcome {
    let mut reader = Reader::open(named.open_at(0)?)?;
    let (mut events, mut seconds, mut exit, mut markers, mut labels) = (0, 0.0, None, Vec::new(), 0);
    while let Some(placed) = reader.next_event()? {
        events += 1;
        seconds = placed.event.time.as_secs_f64();
        match placed.event.kind {
            EventKind::Marker(label) => {
                labels += label.len();
                if markers.len() < MOST_MARKERS && labels <= MOST_LABELS {
                    markers.push(MarkerShape { seconds, offset: placed.end, label });
                }
            }
            EventKind::Exit(status) => exit = Some(status),
            _ => {}
        }
    }
    let header = reader.header().clone();
    let (session, number, live) = match named {
        Named::Session(_, recording) => (Some(recording.session.as_str()), Some(recording.number), recording.is_live()),
        Named::File(_) => (None, None, false),
    };
    let format = match header.format {
        Format::V2 => "v2",
        Format::V3 => "v3",
    };
    app.ui.json(&Shape {
        recording: RecordingShape {
            path: named.path(),
            session,
            number,
            live,
            format,
            cols: header.cols,
            rows: header.rows,
            began: header.timestamp,
            command: header.command,
            seconds,
            bytes: reader.offset(),
            events,
            exit,
            torn: reader.torn(),
            faults: reader.faults(),
            markers,
        },
    })?;
    Ok(Exit::Done)
}
