//! `ah agent record`: run a command, record its terminal, and put moments into the recording.
//!
//! `ah-recording` runs and records; here it is joined to a session. A thread of its own puts moments on the timeline (a shell's command
//! ended, the key was pressed), so that nothing that is typed or shown waits for a disk; another one follows the timeline and makes a
//! marker of each moment, whoever added it.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ah_agents::settings::OneRun;
use ah_agents::{Agent, launch};
use ah_core::exec::{cannot_run, look_for};
use ah_core::{
    Access, Moment, MomentFollower, MomentKind, MomentTool, NewMoment, Recording, RecordingPosition, Workspace, text,
};
use ah_plugin_api::{Error, ErrorKind, Result};
use ah_recording::cast::{Format, Header, sane_size};
use ah_recording::osc133::Mark;
use ah_recording::run::{Ended, Run, RunError, Terminal, monitor};
use ah_recording::tape::{Listener, Options, Source, Stopped, Tape};
use clap::{Args, ValueEnum};

use crate::app::App;
use crate::commands::hooks;
use crate::failure::{Exit, Failure, Outcome};
use crate::interrupt;
use crate::itself;

/// Options of `ah agent record`.
#[derive(Debug, Args)]
#[command(after_help = "\
CMD runs as it would without this: keys, output, the terminal's size, signals, Ctrl-Z and the exit status go through unchanged \
(128 + N if signal N ended it, 127 if there is no CMD, 126 if it cannot be run). Where what it writes cannot go on, as on a full disk, its writing fails from then on, and the status is never 0. Output that nobody takes, as on a frozen terminal, keeps `ah` no longer than 3 s once a signal to it, or Ctrl-C in a pipeline, has ended CMD (as long as it goes on being taken, all of it goes out), and not at all after one that comes later. What it shows is written to the session's folder as asciicast, \
on disk within 250 ms. An agent that is known (claude, codex) gets its hooks for this run, so that its prompts and tools are moments; nothing is \
installed for that. A recording ends before it fills the disk, or is larger than all may be together (prune.recordings); CMD goes on. Standard input that is no terminal is CMD's own. Where there is a terminal but standard output leads elsewhere (a pipe, a file), CMD keeps the terminal: what it writes to standard output and error is recorded (both are pipes for it, so that it may show neither colours nor progress), what is typed or asked for there is not, and there are no keys for moments. CMD finds AH_SESSION and AH_RECORDING in its environment.

Keys: Ctrl-] m makes a moment. Ctrl-] Ctrl-] types one Ctrl-]; with any other key both go through.

Shells tell where commands end if they are told to: see `ah shell-init`. With --json, errors before CMD starts are JSON; afterwards stdout is CMD's.

Examples:
  ah agent record -- claude
  ah agent record --session experiment -- bash
  ah agent record --format v3 -- make test")]
pub(crate) struct RecordArgs {
    /// Record what is typed too; what is typed without being shown, as passwords are, is left out even then. Where CMD reads key by key,
    /// only what it shows next tells: a character that this begins or ends with counts as shown, and stays.
    #[arg(long)]
    input: bool,
    /// The version of asciicast to write.
    #[arg(long, value_enum, default_value_t)]
    format: Version,
    /// The command and its arguments.
    #[arg(value_name = "CMD", last = true, required = true)]
    command: Vec<OsString>,
}

/// A version of asciicast.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Version {
    /// Read by every program that knows asciicast.
    #[default]
    V2,
    /// Its newer form; also says how CMD ended.
    V3,
}

impl From<Version> for Format {
    fn from(version: Version) -> Self {
        match version {
            Version::V2 => Self::V2,
            Version::V3 => Self::V3,
        }
    }
}

/// What the child that leads the pty's session is given.
#[derive(Debug, Args)]
pub(crate) struct ChildArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

/// Is that child.
pub(crate) fn child(args: ChildArgs) -> u8 {
    monitor::main(args.words.into_iter())
}

/// Runs the command.
pub(crate) fn run(app: &App, args: &RecordArgs) -> Outcome {
    interrupt::outlive_limits();
    // Before anything is begun.
    args.command.first().map_or(Ok(()), |program| look_for(program)).map_err(cannot_be_run)?;
    let workspace = app.workspace(Access::Create)?;
    let monitor = itself::program()?;
    let most = workspace.largest_recording()?;
    let (recording, file) = workspace.begin_recording()?;
    let keep = || file.try_clone().map_err(|error| Error::from_io("the recording cannot be kept open", &error));
    let mut begun = Begun { workspace: &workspace, recording: &recording, told: false, ran: false, _lock: keep()? };
    let file_of_run = keep()?;
    let line = command_line(&args.command);
    let terminal = Terminal::of_process();
    if args.input && terminal.is_beside_output() {
        app.ui.note("what is typed is not recorded: standard output leads elsewhere, and the terminal stays CMD's");
    }
    let (cols, rows) = terminal.size();
    let (cols, rows) = sane_size(cols, rows);
    let start = app.now();
    let env = app.terminal_env().map(|(name, value)| (name.to_owned(), value.to_string_lossy().into_owned())).collect();
    let header = Header {
        format: args.format.into(),
        cols,
        rows,
        timestamp: Some(start.secs),
        command: Some(line.clone()),
        env,
        ..Header::default()
    };
    let (jobs, queue) = sync_channel(64);
    let options = Options { header, bare_newlines: !terminal.shows_output(), start: Instant::now(), most };
    let shell = Arc::new(Shell::new(jobs.clone()));
    let (tape, running) = Tape::start(file, &options, Arc::clone(&shell) as Arc<dyn Listener>)?;
    let mut env: Vec<(OsString, OsString)> = vec![
        ("AH_SESSION".into(), recording.session.as_str().into()),
        ("AH_RECORDING".into(), recording.path.clone().into()),
    ];
    let run = Run {
        command: with_hooks(app, &args.command, &mut env),
        env,
        monitor: vec![monitor.into(), "__record-child".into(), "--".into()],
        input: args.input,
        file: Some(file_of_run.into()),
    };
    app.tell_notices();
    let diary = Diary { workspace: &workspace, recording: &recording, tape: &tape };
    let follower = workspace.follow_moments(&recording)?;
    if let Some(trouble) = follower.trouble() {
        let message = format!("markers come a little later than their moments: {}", trouble.message);
        app.ui.warning(&message, trouble.hint.as_deref());
    }
    begun.told = true;
    let kept = diary.keep(follower, queue, &jobs, &line, |moment| run.run(&terminal, &tape, moment))?;
    let Kept { ended, failed, is_agents } = kept;
    begun.ran = ended.is_ok();
    drop(tape);
    let summary = running.finish(ended.as_ref().ok().map(|ended| i32::from(ended.status)))?;
    let Ended { status, unwritten, unheard } = ended.map_err(|error| not_run(&args.command, error))?;
    if unheard {
        // A terminal that takes nothing takes no words either.
        return Ok(Exit::Code(status.max(1)));
    }
    if let Some(why) = &summary.stopped {
        let message = format!(
            "the recording ends before the command, without its last {}: {why}",
            text::count(summary.lost, "byte", "bytes")
        );
        app.ui.warning(&message, Some(&remedy(why, &recording)));
    }
    let left_out = shell.pace.lock().unwrap_or_else(PoisonError::into_inner).left_out;
    if left_out > 0 {
        app.ui.note(&format!("{left_out} commands that a shell told of came too fast to be moments"));
    }
    let agent = args.command.first().and_then(|program| Agent::of_program(program));
    // One that is at work elsewhere calls its hooks, too.
    let calls = |agent: &Agent| {
        let last = app.engine().and_then(|engine| engine.last_event(agent.name())).ok().flatten();
        last.is_some_and(|last| last.time >= start)
    };
    if let Some(agent) = agent.filter(|agent| !is_agents && failed.is_none() && !calls(agent)) {
        app.ui.note(&format!(
            "no prompt and no tool call came from the agent's hooks: none of its prompts and tools is a moment here; `ah agent hooks status {agent}`"
        ));
    }
    if let Some(error) = failed {
        app.ui.warning(&format!("some moments are missing: {}", error.message), error.hint.as_deref());
    }
    let which = if recording.number > 1 { format!(" {}", recording.number) } else { String::new() };
    app.ui.note(&format!("recorded; `ah agent replay --session {}{which}` plays it", recording.session));
    if let Some((source, error)) = unwritten {
        return Ok(incomplete(app, source, &error, status));
    }
    Ok(if status == 0 { Exit::Done } else { Exit::Code(status) })
}

/// What to end with where not all that CMD wrote went where it should: never as if all were well.
fn incomplete(app: &App, source: Source, error: &io::Error, status: u8) -> Exit {
    let stream = match source {
        Source::Terminal => "output",
        Source::Errors => "error",
    };
    let message = format!("not all that CMD wrote is in its standard {stream}: {error}");
    app.ui.warning(&message, Some("`ah agent replay` shows what the recording has of it"));
    Exit::Code(status.max(1))
}

/// A recording of which nothing stays unless its command ran.
struct Begun<'a> {
    workspace: &'a Workspace,
    recording: &'a Recording,
    /// Whether a moment names it.
    told: bool,
    ran: bool,
    /// Nobody else's until it is gone.
    _lock: File,
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        // After a defect of ours it may have run.
        if self.ran || std::thread::panicking() {
            return;
        }
        if !self.told || self.workspace.take_back_recording(self.recording).is_err() {
            let _ = std::fs::remove_file(&self.recording.path);
        }
    }
}

/// The command, with an agent's hooks for this one run if it is an agent that takes them so, and does not call `ah` by itself.
fn with_hooks(app: &App, command: &[OsString], env: &mut Vec<(OsString, OsString)>) -> Vec<OsString> {
    let mut words = command.to_vec();
    let Some(agent) = words.first().and_then(|program| Agent::of_program(program)) else { return words };
    // Hooks on its command line keep it in its own process just as well.
    let mut given: Vec<OsString> = launch::alone(agent).iter().map(OsString::from).collect();
    // Its settings are the user's own then, and it takes one such option only.
    let own_settings =
        words.iter().any(|word| word == "--settings" || word.as_encoded_bytes().starts_with(b"--settings="));
    match hooks::for_one_run(app, agent, Some(&app.cwd)) {
        Ok(None) => {}
        Ok(Some(_)) if own_settings => app.ui.warning(
            "no moments come from hooks that are not installed: none are passed beside --settings",
            Some(&format!("ah agent hooks install {agent}")),
        ),
        Ok(Some(OneRun { args, env: more })) => {
            given = args;
            env.extend(more);
        }
        Err(error) => {
            app.ui.warning(&format!("no moments come from hooks: {}", error.message), error.hint.as_deref());
        }
    }
    words.splice(1..1, given);
    words
}

/// What helps a recording that ended early.
pub(crate) fn remedy(why: &Stopped, recording: &Recording) -> String {
    match why {
        Stopped::TooLarge(_) => "`ah config set prune.recordings max-size=…` lets recordings be larger".to_owned(),
        Stopped::Disk(_) => {
            let folder = recording.path.parent().unwrap_or(&recording.path);
            format!("`df {}` shows how full the disk is", text::shell(folder.as_os_str()))
        }
    }
}

/// What is to be said of a command that did not run.
fn not_run(command: &[OsString], error: RunError) -> Failure {
    let error = match error {
        RunError::Place(error) => return error.into(),
        RunError::Command(error) => error,
    };
    let error = match (command.first(), error.errno) {
        (Some(program), Some(errno)) => cannot_run(program, &io::Error::from_raw_os_error(errno)),
        _ => error,
    };
    cannot_be_run(error)
}

/// The same with what to do.
fn cannot_be_run(error: Error) -> Failure {
    Failure::command(match error.kind {
        _ if error.hint.is_some() => error,
        ErrorKind::NotFound => error.with_hint("`command -v NAME` tells whether there is a program of that name"),
        _ => error.with_hint("`ls -l` shows whether it may be run"),
    })
}

/// A command as a shell would take it.
fn command_line(words: &[OsString]) -> String {
    words.iter().map(|word| text::shell(word)).collect::<Vec<_>>().join(" ")
}

/// A moment to be added.
enum Job {
    /// A shell's command ended, with that status if it failed, and the recording had come so far.
    Command { line: Option<String>, exit: Option<i32>, offset: u64 },
    /// The key was pressed.
    Key { offset: u64 },
    /// There are no more.
    Over,
}

/// Hears a shell's marks.
struct Shell {
    jobs: SyncSender<Job>,
    /// The command that runs, if one does.
    command: Mutex<Option<Option<String>>>,
    pace: Mutex<Pace>,
}

/// How often a shell's commands are moments: any program can print a shell's marks, and is not to fill the timeline.
struct Pace {
    /// So many may come at once.
    left: u32,
    /// When there was one more last.
    since: Instant,
    left_out: u64,
}

impl Pace {
    /// As many as somebody pastes at once, and then as fast as anybody types them.
    const BURST: u32 = 100;
    const EACH: Duration = Duration::from_millis(500);

    fn new(now: Instant) -> Self {
        Self { left: Self::BURST, since: now, left_out: 0 }
    }

    fn allows(&mut self, now: Instant) -> bool {
        let more = now.saturating_duration_since(self.since).as_millis() / Self::EACH.as_millis();
        let more = u32::try_from(more).unwrap_or(u32::MAX);
        if more >= Self::BURST - self.left {
            (self.left, self.since) = (Self::BURST, now);
        } else {
            self.left += more;
            self.since += Self::EACH * more;
        }
        let allowed = self.left > 0;
        self.left -= u32::from(allowed);
        self.left_out += u64::from(!allowed);
        allowed
    }
}

impl Shell {
    fn new(jobs: SyncSender<Job>) -> Self {
        Self { jobs, command: Mutex::default(), pace: Mutex::new(Pace::new(Instant::now())) }
    }
}

impl Listener for Shell {
    fn mark(&self, mark: Mark, offset: u64) {
        let mut command = self.command.lock().unwrap_or_else(PoisonError::into_inner);
        match mark {
            // One that begins with a blank is meant to be kept nowhere, as in the histories of shells.
            Mark::Start { command: line } => *command = Some(line.filter(|line| !line.starts_with([' ', '\t']))),
            // One without a beginning is an empty line's.
            Mark::End { status } => {
                let Some(line) = command.take() else { return };
                if !self.pace.lock().unwrap_or_else(PoisonError::into_inner).allows(Instant::now()) {
                    return;
                }
                let exit = status.filter(|status| *status != 0 && line.is_some());
                // Faster than a disk can note them: some are left out, nothing waits.
                let _ = self.jobs.try_send(Job::Command { line, exit, offset });
            }
            Mark::Prompt | Mark::Typing => {}
        }
    }
}

/// What came of a command that was recorded.
struct Kept {
    ended: std::result::Result<Ended, RunError>,
    /// Why a moment could not be added, if one could not.
    failed: Option<Error>,
    /// Whether an agent at work told of what it does.
    is_agents: bool,
}

/// The session's timeline while it is recorded.
struct Diary<'a> {
    workspace: &'a Workspace,
    recording: &'a Recording,
    tape: &'a Tape,
}

impl Diary<'_> {
    /// Runs `work` with what it calls for the key, and keeps the timeline and the recording's markers meanwhile.
    fn keep(
        &self,
        follower: MomentFollower,
        queue: Receiver<Job>,
        jobs: &SyncSender<Job>,
        line: &str,
        work: impl FnOnce(&dyn Fn()) -> std::result::Result<Ended, RunError>,
    ) -> Result<Kept> {
        let stop = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)
            .map_err(|error| Error::from_io("there are no descriptors left", &error.into()))?;
        std::thread::scope(|scope| {
            let marking = scope.spawn(|| self.put_markers(follower, &stop));
            let adding = scope.spawn(move || {
                let mut failed = self.add(MomentKind::SessionStart, Some(line.to_owned()), None, None).err();
                for job in queue {
                    let added = match job {
                        Job::Command { line, exit, offset } => self.add(MomentKind::Shell, line, exit, Some(offset)),
                        Job::Key { offset } => self.add(MomentKind::Manual, None, None, Some(offset)),
                        Job::Over => break,
                    };
                    failed = failed.or(added.err());
                }
                failed
            });
            let on_key = || drop(jobs.try_send(Job::Key { offset: self.tape.offset() }));
            let ended = work(&on_key);
            // The marks of what was shown last are still to come.
            self.tape.flush();
            let _ = jobs.send(Job::Over);
            let mut failed = adding.join().unwrap_or(None);
            // What did not run has come to its end, too.
            let label = match &ended {
                Ok(Ended { status, .. }) => (*status != 0).then(|| format!("exit {status}")),
                Err(_) => Some("not run".to_owned()),
            };
            failed = failed.or(self.add(MomentKind::SessionEnd, label, None, None).err());
            let _ = rustix::io::write(&stop, &1u64.to_ne_bytes());
            let is_agents = marking.join().unwrap_or(false);
            Ok(Kept { ended, failed, is_agents })
        })
    }

    fn add(&self, kind: MomentKind, label: Option<String>, exit: Option<i32>, offset: Option<u64>) -> Result<()> {
        let number = Some(self.recording.number).filter(|number| *number > 1);
        let offset = offset.unwrap_or_else(|| self.tape.offset());
        let recording = Some(RecordingPosition { offset, session: None, number });
        let new = NewMoment { label, exit, recording, ..NewMoment::new(kind) };
        self.workspace.add_moment(&self.recording.session, new).map(drop)
    }

    /// Whether any of them came of an agent at work.
    fn put_markers(&self, mut follower: MomentFollower, stop: &OwnedFd) -> bool {
        let mut is_agents = false;
        loop {
            let more = follower.wait(stop);
            follower.look(|moment| {
                use MomentKind::{Prompt, Stop, Tool, ToolFailed};
                is_agents |= matches!(moment.record.kind, Prompt | Tool | ToolFailed | Stop);
                self.tape.mark(&marker(moment));
            });
            if !more {
                return is_agents;
            }
        }
    }
}

/// A moment as a marker shows it.
fn marker(moment: &Moment) -> String {
    const LONGEST: usize = 100;
    let record = &moment.record;
    let tool = record.tool.as_ref().map(MomentTool::title);
    let what = record.label.as_deref().or(record.prompt.as_deref()).or(tool.as_deref()).unwrap_or_default();
    let what = what.lines().next().unwrap_or_default();
    let shown: String = what.chars().take(LONGEST).collect();
    if shown.is_empty() { record.kind.as_str().to_owned() } else { format!("{}: {shown}", record.kind.as_str()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_come_as_fast_as_somebody_types_or_pastes_them() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        let mut count = |secs: u64, commands: u32| {
            let now = start + Duration::from_secs(secs);
            (0..commands).filter(|_| pace.allows(now)).count()
        };
        assert_eq!((count(0, 100_000), count(10, 100_000), count(10, 1), count(11, 1)), (100, 20, 0, 1));
        // No more at once, however long nothing came.
        assert_eq!((count(100_000, 100_000), pace.left_out), (100, 99_900 + 99_980 + 1 + 99_900));
    }
}
