//! `ah hook AGENT`: what agents call. And `ah __capture`, which takes the snapshots behind it.
//!
//! Whatever goes wrong here, the agent gets the answer that it expects and exit status 0; what went wrong is told on the timeline, or in
//! the log where there is none.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use ah_agents::Agent;
use ah_agents::hook::{self, HookEvent, HookKind};
use ah_core::{Access, Called, Engine, Error, ErrorKind, HookContext, Result};
use clap::Args;

use crate::app::App;
use crate::args::Globals;
use crate::env::Env;
use crate::failure::{Exit, Outcome};
use crate::interrupt;

/// Options of `ah hook`.
#[derive(Debug, Args)]
#[command(after_help = "\
Called by the agent itself, with one event as JSON on stdin; `ah agent hooks install AGENT` sets that up. Puts a moment on the \
session's timeline and takes its snapshot behind the agent's back. Ends with 0 whatever happens: what goes wrong is on the timeline, \
or in $AH_HOME/logs/hooks.log.

Examples:
  ah hook claude < event.json")]
pub(crate) struct HookArgs {
    /// claude, codex, gemini or opencode.
    #[arg(value_name = "AGENT")]
    agent: String,
}

/// An agent that sends nothing does not hang on us.
const INPUT: Duration = Duration::from_secs(10);

/// Whether the words are a call of a hook, however wrong.
pub(crate) fn is_meant(arguments: &[OsString]) -> bool {
    arguments.get(1).is_some_and(|word| word == "hook")
}

/// Answers the agent.
pub(crate) fn run(globals: &Globals, env: &Env, args: &HookArgs) -> Outcome {
    interrupt::outlive_limits();
    let serve = AssertUnwindSafe(|| serve(globals, env, args));
    let outcome = std::panic::catch_unwind(serve)
        .unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "a defect in ah; the lines above say where")));
    if let Err(error) = outcome {
        // For who looks; agents do not show it where the status is 0.
        let _ = writeln!(io::stderr(), "ah hook: {error}");
    }
    let answer = args.agent.parse().map_or(&b""[..], hook::answer_of);
    // An agent that does not read it has no use for it.
    let _ = io::stdout().write_all(answer).and_then(|()| io::stdout().flush());
    Ok(Exit::Done)
}

fn serve(globals: &Globals, env: &Env, args: &HookArgs) -> Result<()> {
    let event = args.agent.parse().and_then(|agent| event(agent, io::stdin()));
    let cwd = event.as_ref().map_or_else(|_| "/".into(), |event| event.cwd.clone());
    let app = App::for_hook(globals.clone(), env.clone(), cwd);
    let engine = app.engine()?;
    let done = match &event {
        // A panic must not keep it from being told either.
        Ok(event) => std::panic::catch_unwind(AssertUnwindSafe(|| call(engine, env, event)))
            .unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "a defect in ah"))),
        Err(error) => Err(error.clone()),
    };
    if let Err(error) = &done {
        let event = event.as_ref().ok();
        engine.hook_failed(&args.agent, event, event.and_then(|event| start_of(env, event)), error);
    }
    done
}

fn call(engine: &Engine, env: &Env, event: &HookEvent) -> Result<()> {
    let context = HookContext { caller: Some(std::os::unix::process::parent_id()), start: start_of(env, event) };
    let called = engine.hook(event, &context)?;
    match (called, &env.agent_env_file) {
        (Some(called), Some(file)) if event.kind == HookKind::SessionStart => tell_session(file, &called),
        _ => Ok(()),
    }
}

/// The directory in which the agent's session started, where the agent tells.
fn start_of<'a>(env: &'a Env, event: &HookEvent) -> Option<&'a Path> {
    env.agent_start.as_deref().filter(|_| event.agent == Agent::Claude)
}

/// Lets the commands that the agent runs know their session: what stands in that file is run before each of them.
fn tell_session(file: &Path, called: &Called) -> Result<()> {
    let line = format!("export AH_SESSION={}\n", called.session);
    let write = || -> io::Result<()> {
        let nonblock = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
        let mut file = OpenOptions::new().read(true).append(true).create(true).custom_flags(nonblock).open(file)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("it is no regular file"));
        }
        let mut there = String::new();
        (&mut file).take(1 << 20).read_to_string(&mut there)?;
        if there.ends_with(&line) {
            return Ok(());
        }
        let gap = if there.is_empty() || there.ends_with('\n') { "" } else { "\n" };
        file.write_all(format!("{gap}{line}").as_bytes())
    };
    write().map_err(|e| Error::from_io(format!("cannot write {}", file.display()), &e))
}

/// Reads the event, in bounded time.
fn event(agent: Agent, mut input: impl Read + Send + IsTerminal + 'static) -> Result<HookEvent> {
    if input.is_terminal() {
        return Err(Error::new(ErrorKind::InvalidArgument, "a hook reads an agent's event on stdin")
            .with_hint(format!("`ah agent hooks install {agent}` lets the agent call it")));
    }
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        // Nobody listens any more once the time is up.
        let _ = send.send(hook::read(agent, &mut input));
    });
    receive.recv_timeout(INPUT).unwrap_or_else(|_| {
        Err(Error::new(ErrorKind::Unavailable, "the agent sent no whole event on stdin within ten seconds"))
    })
}

/// Takes the snapshots that moments wait for.
pub(crate) fn capture(app: &App) -> Outcome {
    interrupt::outlive_limits();
    app.work_in_background();
    let engine = app.engine()?;
    let workspace = app.workspace(Access::Existing)?;
    workspace.capture().inspect_err(|error| engine.hook_failed("ah", None, None, error))?;
    Ok(Exit::Done)
}
