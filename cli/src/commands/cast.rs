//! `ah agent cast …`: recordings as files, in from elsewhere and out for other programs.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::Path;

use ah_core::{Access, text};
use ah_plugin_api::{Error, ErrorKind, Result};
use ah_recording::cast::{Encoder, Format, Reader};
use ah_recording::play::Source;
use ah_recording::tape::{Stopped, has_room};
use ah_recording::ttyrec;
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;

use crate::app::App;
use crate::args::path;
use crate::commands::record::remedy;
use crate::commands::replay::Named;
use crate::failure::{Exit, Failure, Outcome};
use crate::interrupt;

/// `ah agent cast …`.
#[derive(Debug, Subcommand)]
pub(crate) enum Cast {
    /// Write a recording in a standard format.
    Export(ExportArgs),
    /// Make a recording of a file, to be played and kept like one's own.
    Import(ImportArgs),
}

/// Options of `ah agent cast export`.
#[derive(Debug, Args)]
#[command(after_help = "\
RECORDING is the number of one of the session's recordings, or a file; without it, the latest. Lines that a crash tore are left out. \
ttyrec has no room for markers, input and exit status, and what is shown stands in it as it is: a terminal gets it by `-o -` alone.

Examples:
  ah agent cast export -o demo.cast
  ah agent cast export 2 --session experiment --to v3 -o demo.cast
  ah agent cast export --to ttyrec > demo.ttyrec")]
pub(crate) struct ExportArgs {
    /// Which one: a number, or a file.
    recording: Option<OsString>,
    /// The format to write.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
    to: To,
    /// The file to write, which must not be there yet; without it, or as `-`, standard output.
    #[arg(short, long, value_name = "FILE", value_parser = path())]
    output: Option<OsString>,
}

/// Options of `ah agent cast import`.
#[derive(Debug, Args)]
#[command(after_help = "\
FILE is in asciicast 2 or 3, or in ttyrec; - is standard input. It becomes the next recording of the session, unless it \
is larger than all may be together (prune.recordings), or its disk has no room.

Examples:
  ah agent cast import demo.cast
  ah agent cast import --session elsewhere old.ttyrec
  ah agent replay --session elsewhere")]
pub(crate) struct ImportArgs {
    /// The file.
    #[arg(value_parser = path())]
    file: OsString,
}

/// A standard format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum To {
    /// asciicast 2: read by every program that knows asciicast.
    #[default]
    V2,
    /// asciicast 3.
    V3,
    /// ttyrec.
    Ttyrec,
}

impl To {
    fn name(self) -> &'static str {
        match self {
            Self::V2 => "v2",
            Self::V3 => "v3",
            Self::Ttyrec => "ttyrec",
        }
    }
}

#[derive(Serialize)]
struct ExportShape<'a> {
    export: WrittenShape<'a>,
}

#[derive(Serialize)]
struct ImportShape<'a> {
    import: WrittenShape<'a>,
}

#[derive(Serialize)]
struct WrittenShape<'a> {
    #[serde(with = "text::abs")]
    path: &'a Path,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    number: Option<u32>,
    format: &'static str,
    /// Lines of the source that could not be read.
    faults: u64,
    /// The source ends in the middle of a line, or of a frame.
    torn: bool,
}

/// Runs one of them.
pub(crate) fn run(app: &App, command: &Cast) -> Outcome {
    interrupt::outlive_limits();
    match command {
        Cast::Export(args) => export(app, args),
        Cast::Import(args) => import(app, args),
    }
}

fn export(app: &App, args: &ExportArgs) -> Outcome {
    let output = args.output.as_ref().filter(|output| *output != "-");
    if app.ui.json && output.is_none() {
        let message = "with --json the recording cannot go to standard output";
        let error = Error::new(ErrorKind::InvalidArgument, message);
        return Err(error.with_hint("say where it is to go: `ah agent cast export --json -o FILE`").into());
    }
    if args.to == To::Ttyrec && args.output.is_none() && app.ui.stdout_terminal() {
        let message = "a terminal would do what the recording says: ttyrec has its bytes as they are";
        let error = Error::new(ErrorKind::InvalidArgument, message);
        return Err(error
            .with_hint("`ah agent cast export --to ttyrec -o FILE` writes a file; with `-o -` the terminal gets it")
            .into());
    }
    let named = Named::find(app, args.recording.as_ref())?;
    let mut reader = Reader::open(named.open_at(0)?)?;
    let Some(output) = output else {
        app.tell_notices();
        let mut out = BufWriter::new(io::stdout().lock());
        let written = write(&mut reader, args.to, &mut out);
        return match written.and_then(|()| flush(&mut out)) {
            Ok(()) => {
                tell_unread(app, reader.faults(), reader.torn());
                Ok(Exit::Done)
            }
            Err(error) => Err(output_failed(error)),
        };
    };
    let target = app.cwd.join(output);
    let make = || File::options().write(true).create_new(true).open(&target);
    let file = make().map_err(|error| {
        Error::from_io(format!("cannot make {}", target.display()), &error)
            .with_hint("name a file that is not there yet")
    })?;
    let mut out = BufWriter::new(file);
    let written = write(&mut reader, args.to, &mut out).and_then(|()| flush(&mut out));
    if let Err(error) = written {
        // Half a file helps nobody.
        let _ = std::fs::remove_file(&target);
        return Err(error.into());
    }
    tell_unread(app, reader.faults(), reader.torn());
    if app.ui.json {
        let (faults, torn) = (reader.faults(), reader.torn());
        let export = WrittenShape { path: &target, session: None, number: None, format: args.to.name(), faults, torn };
        app.ui.json_of_act(&ExportShape { export })?;
    }
    Ok(Exit::Done)
}

fn import(app: &App, args: &ImportArgs) -> Outcome {
    let mut input: Box<dyn BufRead> = if args.file == "-" {
        Box::new(BufReader::new(io::stdin().lock()))
    } else {
        let path = app.cwd.join(&args.file);
        let packed = path.extension().is_some_and(|extension| extension == "gz");
        ah_core::recording::open_at(&path, packed, 0).map_err(|error| match error.kind {
            ErrorKind::NotFound => error.with_hint("name a file that is there, or - for standard input"),
            _ => error,
        })?
    };
    let start = input.fill_buf().map_err(|error| Error::from_io("the recording cannot be read", &error))?;
    // A ttyrec begins with any byte.
    let cast = start.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{') && !ttyrec::is_begun_by(start);
    // What it is is seen before anything is made.
    let mut source = if cast { From::Cast(Reader::open(input)?) } else { From::Ttyrec(input) };
    let workspace = app.workspace(Access::Create)?;
    let most = workspace.largest_recording()?;
    let (recording, file) = workspace.begin_recording()?;
    let mut bounded = Bounded { file: &file, good: 0, most, stopped: None };
    let mut out = BufWriter::with_capacity(1 << 16, &mut bounded);
    let to = match &source {
        From::Cast(reader) if reader.header().format == Format::V3 => To::V3,
        _ => To::V2,
    };
    let written = match &mut source {
        From::Cast(reader) => write(reader, to, &mut out).map(|()| reader.torn()),
        From::Ttyrec(input) => ttyrec::import(input, Format::V2, &mut out),
    };
    let written = written.and_then(|torn| flush(&mut out).map(|()| torn));
    drop(out);
    let synced = written.and_then(|torn| {
        file.sync_all().map(|()| torn).map_err(|error| Error::from_io("the recording cannot be written", &error))
    });
    if let Err(error) = &synced {
        let _ = std::fs::remove_file(&recording.path);
        let Some(why) = bounded.stopped else { return Err(error.clone().into()) };
        let error = Error::new(ErrorKind::ResourceExhausted, format!("the recording cannot be imported: {why}"));
        return Err(error.with_hint(remedy(&why, &recording)).into());
    }
    let torn = synced.unwrap_or(false);
    let faults = match &source {
        From::Cast(reader) => {
            tell_unread(app, reader.faults(), reader.torn());
            reader.faults()
        }
        From::Ttyrec(_) => {
            if torn {
                app.ui.warning(
                    "the recording was cut off, or is damaged, before its end: what was before that is here",
                    None,
                );
            }
            0
        }
    };
    if app.ui.json {
        let (path, session, number) =
            (recording.path.as_path(), Some(recording.session.as_str()), Some(recording.number));
        let import = WrittenShape { path, session, number, format: to.name(), faults, torn };
        app.answer_of(true, workspace.root(), &ImportShape { import })?;
        return Ok(Exit::Done);
    }
    app.ui.path(&recording.path)?;
    Ok(Exit::Done)
}

/// A recording's file, which gets no larger than one that is made here, and fills its disk no more.
struct Bounded<'a> {
    file: &'a File,
    good: u64,
    most: u64,
    stopped: Option<Stopped>,
}

impl Write for Bounded<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Err(why) = has_room(self.file, self.good, bytes.len() as u64, self.most) {
            self.stopped = Some(why);
            return Err(io::ErrorKind::StorageFull.into());
        }
        let written = self.file.write(bytes)?;
        self.good += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What is imported.
enum From {
    Cast(Reader<Box<dyn BufRead>>),
    Ttyrec(Box<dyn BufRead>),
}

/// Writes what `reader` has still to read.
fn write<R: BufRead>(reader: &mut Reader<R>, to: To, out: &mut impl Write) -> Result<()> {
    let format = match to {
        To::V2 => Format::V2,
        To::V3 => Format::V3,
        To::Ttyrec => return ttyrec::export(reader, out),
    };
    let failed = |error: &io::Error| Error::from_io("the recording cannot be written", error);
    let mut header = reader.header().clone();
    header.format = format;
    out.write_all(&Encoder::header(&header)).map_err(|error| failed(&error))?;
    let (mut encoder, mut line) = (Encoder::new(format), Vec::new());
    while let Some(placed) = reader.next_event()? {
        line.clear();
        encoder.event(&mut line, placed.event.time, &placed.event.kind);
        out.write_all(&line).map_err(|error| failed(&error))?;
    }
    Ok(())
}

fn flush(out: &mut impl Write) -> Result<()> {
    out.flush().map_err(|error| Error::from_io("the recording cannot be written", &error))
}

/// A pipe that nobody reads any more is no error of ours.
fn output_failed(error: Error) -> Failure {
    if error.errno == Some(rustix::io::Errno::PIPE.raw_os_error()) {
        return Failure::output(io::ErrorKind::BrokenPipe.into());
    }
    error.into()
}

/// Says what of a recording is not in what was made of it.
pub(crate) fn tell_unread(app: &App, faults: u64, torn: bool) {
    if faults > 0 {
        app.ui
            .warning(&format!("{} left out that could not be read", text::count(faults, "line is", "lines are")), None);
    }
    if torn {
        app.ui.warning("the recording was cut off in the middle of a line, which was left out", None);
    }
}
