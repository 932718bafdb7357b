//! The commands that start an agent again: with a session that exists, or fresh with the prompts so far.
//!
//! Nothing is run here: an [`Invocation`] is what to run, in the directory that the caller chooses.
//!
//! Not here: running (`cli`, `ah-recording`), hooks for one run ([`crate::settings::for_one_run`]), and the copy of the transcript that is
//! resumed ([`crate::transcript::trim`]).

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use ah_plugin_api::{Error, ErrorKind, Result};

use crate::{Agent, Home};

/// Longest text that is given to a program as one argument; the kernel takes no more than 128 KiB.
const LONGEST_ARGUMENT: usize = 120 * 1024;

/// Keeps Codex on a terminal from handing the session to a server in the background, which would run tools and hooks elsewhere: outside the branch's
/// mounts, and without our environment. It does so only if nothing is configured on its command line (0.169.0), and passes over members that it does
/// not know, in older versions too, which an option of its own would not be.
const CODEX_ALONE: [&str; 2] = ["-c", "ah.session=true"];

/// What keeps `agent`, started by a person's own words, in its own process: arguments to be put right behind the program's name.
#[must_use]
pub fn alone(agent: Agent) -> &'static [&'static str] {
    match agent {
        Agent::Codex => &CODEX_ALONE,
        Agent::Claude | Agent::Gemini | Agent::Opencode => &[],
    }
}

/// Whether a process with these words as its command line does the work of all sessions of `agent`'s that a user has: it tells nothing of any one of them.
#[must_use]
pub fn serves_all<'a>(agent: Agent, mut words: impl Iterator<Item = &'a [u8]>) -> bool {
    agent == Agent::Codex && words.any(|word| word == b"app-server")
}

/// The folders by which agents' programs that a user starts find a server of that user's in the background, which does their work wherever it was started
/// itself. Who is shown others in their place finds none, and starts one of its own there. Of Codex (0.169.0): where it notes its server and the way to it,
/// and where the sockets are. None where the agent keeps nothing.
#[must_use]
pub fn meeting_places(home: &Home, user: u32) -> Vec<PathBuf> {
    if !home.codex.is_dir() {
        return Vec::new();
    }
    let sockets = PathBuf::from(format!("/tmp/codex-daemon-{user}"));
    vec![home.codex.join("app-server-control"), home.codex.join("app-server-daemon"), sockets]
}

/// A program with its arguments and what to add to its environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invocation {
    /// The program and its arguments; the program by name, to be found in `PATH`.
    pub argv: Vec<OsString>,
    /// Variables to set beside those that are there.
    pub env: Vec<(OsString, OsString)>,
}

/// How the agent is to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// On a terminal, waiting for the person after the instruction.
    Interactive,
    /// Once through the instruction, answering on standard output, then ending.
    OneShot,
}

/// Going on with a session.
#[derive(Debug, Clone, Copy)]
pub struct Resume<'a> {
    /// The agent's id of the session, such as [`crate::transcript::Trimmed::session_id`].
    pub session_id: &'a str,
    /// What to say first; needed for [`Form::OneShot`].
    pub instruction: Option<&'a str>,
    /// How to run.
    pub form: Form,
    /// Leave the session as it is and go on under another id, which the agent makes (Claude Code only; others go on in the session). Not needed for a
    /// trimmed copy, which is nobody else's.
    pub fork: bool,
}

/// The command that goes on with a session, to be run in the directory it belongs to.
///
/// # Errors
/// `InvalidArgument` for [`Form::OneShot`] without an instruction, for one that is too long (120 KiB) or has a NUL; `Unsupported` for Gemini CLI with an
/// id, which resumes by number only in versions that `docs/agents/gemini.md` names.
pub fn resume(agent: Agent, what: &Resume<'_>) -> Result<Invocation> {
    let mut argv: Vec<OsString> = vec![agent.name().into()];
    let add = |argv: &mut Vec<OsString>, args: &[&str]| argv.extend(args.iter().map(OsString::from));
    let once = what.form == Form::OneShot;
    checked(what.instruction, what.form)?;
    if what.session_id.is_empty() || what.session_id.starts_with('-') || what.session_id.contains('\0') {
        return Err(Error::new(ErrorKind::InvalidArgument, format!("{:?} is not a session id", what.session_id)));
    }
    match agent {
        Agent::Claude => {
            add(&mut argv, &["--resume", what.session_id]);
            if what.fork {
                add(&mut argv, &["--fork-session"]);
            }
            if once {
                add(&mut argv, &["-p"]);
            }
            say_after_dashes(&mut argv, what.instruction);
        }
        Agent::Codex => {
            if once {
                // A branch need not be a repository.
                add(&mut argv, &["exec", "resume", "--skip-git-repo-check"]);
            } else {
                // Otherwise it asks, and proposes the directory that the conversation was held in.
                add(&mut argv, &["resume", "--cd", "."]);
                add(&mut argv, &CODEX_ALONE);
            }
            add(&mut argv, &[what.session_id]);
            say_after_dashes(&mut argv, what.instruction);
        }
        Agent::Gemini => {
            add(&mut argv, &["--resume", what.session_id]);
            say_gemini(&mut argv, what.instruction, once);
        }
        Agent::Opencode => {
            if once {
                add(&mut argv, &["run"]);
            }
            add(&mut argv, &["--session", what.session_id]);
            if once && what.fork {
                add(&mut argv, &["--fork"]);
            }
            say_opencode(&mut argv, what.instruction, once);
        }
    }
    Ok(Invocation { argv, env: Vec::new() })
}

/// The command that goes on from a checkpoint of the agent's own, which [`crate::hook::HookEvent::checkpoint`] named.
///
/// # Errors
/// As [`resume`].
pub fn checkpoint(agent: Agent, id: &str, instruction: Option<&str>, form: Form) -> Result<Invocation> {
    checked(instruction, form)?;
    if id.is_empty() || id.starts_with('-') || id.contains('\0') {
        return Err(Error::new(ErrorKind::InvalidArgument, format!("{id:?} is not a checkpoint's id")));
    }
    let mut argv: Vec<OsString> = vec![agent.name().into(), "--checkpoint".into(), id.into()];
    if form == Form::OneShot {
        argv.push("-p".into());
    }
    say_after_dashes(&mut argv, instruction);
    Ok(Invocation { argv, env: Vec::new() })
}

/// The command that starts a fresh session with `instruction`.
///
/// # Errors
/// As [`resume`].
pub fn fresh(agent: Agent, instruction: Option<&str>, form: Form) -> Result<Invocation> {
    checked(instruction, form)?;
    let once = form == Form::OneShot;
    let mut argv: Vec<OsString> = vec![agent.name().into()];
    match agent {
        Agent::Claude => {
            if once {
                argv.push("-p".into());
            }
            say_after_dashes(&mut argv, instruction);
        }
        Agent::Codex => {
            if once {
                argv.extend(["exec".into(), "--skip-git-repo-check".into()]);
            } else {
                argv.extend(CODEX_ALONE.map(OsString::from));
            }
            say_after_dashes(&mut argv, instruction);
        }
        Agent::Gemini => say_gemini(&mut argv, instruction, once),
        Agent::Opencode => {
            if once {
                argv.push("run".into());
            }
            say_opencode(&mut argv, instruction, once);
        }
    }
    Ok(Invocation { argv, env: Vec::new() })
}

/// The command that starts a fresh session which is told the prompts so far, where a conversation cannot be resumed: of lower fidelity, since the
/// answers are missing.
///
/// If they are too long for one argument, the middle of the list is left out, and the text says so.
///
/// # Errors
/// As [`resume`].
pub fn replay(agent: Agent, prompts: &[String], instruction: Option<&str>, form: Form) -> Result<Invocation> {
    checked(instruction, Form::Interactive)?;
    if prompts.is_empty() {
        return fresh(agent, instruction, form);
    }
    fresh(agent, Some(&retold(prompts, instruction)), form)
}

/// Where `agent`'s program is.
///
/// # Errors
/// `NotFound` with a hint on how to install it.
pub fn program(agent: Agent, home: &Home) -> Result<PathBuf> {
    let found =
        home.path.as_bytes().split(|byte| *byte == b':').map(|dir| Path::new(OsStr::from_bytes(dir))).find_map(|dir| {
            let path = dir.join(agent.name());
            let meta = std::fs::metadata(&path).ok().filter(|_| dir.is_absolute())?;
            (meta.is_file() && meta.permissions().mode() & 0o111 != 0).then_some(path)
        });
    found.ok_or_else(|| {
        let how = match agent {
            Agent::Claude => "npm install -g @anthropic-ai/claude-code",
            Agent::Codex => "npm install -g @openai/codex",
            Agent::Gemini => "npm install -g @google/gemini-cli",
            Agent::Opencode => "npm install -g opencode-ai",
        };
        Error::new(ErrorKind::NotFound, format!("{} is not installed: there is no `{agent}` in PATH", agent.title()))
            .with_hint(format!("install it: {how}"))
    })
}

impl Invocation {
    /// The command as one line that a POSIX shell reads back to the same arguments.
    #[must_use]
    pub fn shell_line(&self) -> OsString {
        let mut line: Vec<u8> = Vec::new();
        for (name, value) in &self.env {
            line.extend_from_slice(name.as_bytes());
            line.push(b'=');
            quote(value.as_bytes(), &mut line);
            line.push(b' ');
        }
        for (at, arg) in self.argv.iter().enumerate() {
            if at > 0 {
                line.push(b' ');
            }
            quote(arg.as_bytes(), &mut line);
        }
        OsString::from_vec(line)
    }
}

/// Appends `arg` so that a POSIX shell reads it as one word.
pub(crate) fn quote(arg: &[u8], line: &mut Vec<u8>) {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_./:=@%+,".contains(byte);
    if !arg.is_empty() && arg.iter().all(plain) {
        line.extend_from_slice(arg);
        return;
    }
    line.push(b'\'');
    for byte in arg {
        if *byte == b'\'' {
            line.extend_from_slice(b"'\\''");
        } else {
            line.push(*byte);
        }
    }
    line.push(b'\'');
}

fn say_after_dashes(argv: &mut Vec<OsString>, instruction: Option<&str>) {
    if let Some(text) = instruction {
        argv.extend(["--".into(), text.into()]);
    }
}

fn say_gemini(argv: &mut Vec<OsString>, instruction: Option<&str>, once: bool) {
    if let Some(text) = instruction {
        // With `=`, since the text may begin with a dash.
        argv.push(format!("--{}={text}", if once { "prompt" } else { "prompt-interactive" }).into());
    }
}

fn say_opencode(argv: &mut Vec<OsString>, instruction: Option<&str>, once: bool) {
    match instruction {
        Some(text) if once => argv.extend(["--".into(), text.into()]),
        Some(text) => argv.push(format!("--prompt={text}").into()),
        None => {}
    }
}

fn checked(instruction: Option<&str>, form: Form) -> Result<()> {
    let refuse = |message: &str, hint: &str| Err(Error::new(ErrorKind::InvalidArgument, message).with_hint(hint));
    match instruction.map(str::trim) {
        None | Some("") if form == Form::OneShot => {
            refuse("without a terminal an agent needs an instruction", "give one: -m \"what to do\"")
        }
        Some(text) if text.len() > LONGEST_ARGUMENT => {
            refuse("the instruction is longer than 120 KiB", "put it into a file and tell the agent to read that")
        }
        Some(text) if text.contains('\0') => refuse("the instruction has a NUL character", "leave it out"),
        _ => Ok(()),
    }
}

/// The prompts as one text, at most [`LONGEST_ARGUMENT`] long.
fn retold(prompts: &[String], instruction: Option<&str>) -> String {
    let head = "These are my messages of an earlier session, oldest first. Your answers are not kept, but the files are as they were after the \
                last of them. Read them for context; do not carry them out again.\n";
    let tail = match instruction {
        Some(text) => format!("\nNow: {text}"),
        None => "\nSay in one sentence what you understand the task to be, then wait.".to_owned(),
    };
    // Printed on a terminal as well: nothing in it may steer that.
    let tame = |c: char| if c.is_control() && !matches!(c, '\n' | '\t') { ' ' } else { c };
    let entry = |at: usize| format!("\n{}. {}\n", at + 1, prompts[at].chars().map(tame).collect::<String>());
    let gap = "\n(… some are left out here …)\n";
    let mut room = LONGEST_ARGUMENT.saturating_sub(head.len() + tail.len() + gap.len());
    // The first says what it is all about, the last ones where it stands.
    let (mut first, mut last) = (0, prompts.len());
    if entry(0).len() <= room {
        room -= entry(0).len();
        first = 1;
    }
    while last > first && entry(last - 1).len() <= room {
        last -= 1;
        room -= entry(last).len();
    }
    let mut text = head.to_owned();
    (0..first).for_each(|at| text.push_str(&entry(at)));
    if last > first {
        text.push_str(gap);
    }
    (last..prompts.len()).for_each(|at| text.push_str(&entry(at)));
    text.push_str(&tail);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(invocation: &Invocation) -> Vec<&str> {
        invocation.argv.iter().map(|arg| arg.to_str().unwrap()).collect()
    }

    fn resumed(agent: Agent, form: Form, instruction: Option<&str>) -> Invocation {
        resume(agent, &Resume { session_id: "id", instruction, form, fork: false }).unwrap()
    }

    #[test]
    fn each_agent_is_resumed_its_own_way() {
        use Form::{Interactive, OneShot};
        let cases: [(Agent, Form, &[&str]); 8] = [
            (Agent::Claude, Interactive, &["claude", "--resume", "id", "--", "-x"]),
            (Agent::Claude, OneShot, &["claude", "--resume", "id", "-p", "--", "-x"]),
            (Agent::Codex, Interactive, &["codex", "resume", "--cd", ".", "-c", "ah.session=true", "id", "--", "-x"]),
            (Agent::Codex, OneShot, &["codex", "exec", "resume", "--skip-git-repo-check", "id", "--", "-x"]),
            (Agent::Gemini, Interactive, &["gemini", "--resume", "id", "--prompt-interactive=-x"]),
            (Agent::Gemini, OneShot, &["gemini", "--resume", "id", "--prompt=-x"]),
            (Agent::Opencode, Interactive, &["opencode", "--session", "id", "--prompt=-x"]),
            (Agent::Opencode, OneShot, &["opencode", "run", "--session", "id", "--", "-x"]),
        ];
        for (agent, form, argv) in cases {
            assert_eq!(words(&resumed(agent, form, Some("-x"))), argv);
        }
        assert_eq!(words(&resumed(Agent::Claude, Interactive, None)), ["claude", "--resume", "id"]);
    }

    #[test]
    fn only_what_is_there_has_places_to_meet_at() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::plain(dir.path(), "");
        assert_eq!(meeting_places(&home, 7), Vec::<PathBuf>::new());
        std::fs::create_dir(&home.codex).unwrap();
        let places = meeting_places(&home, 7);
        assert_eq!(places.iter().filter(|place| place.starts_with(&home.codex)).count(), 2);
        assert!(places.contains(&"/tmp/codex-daemon-7".into()), "{places:?}");
    }

    #[test]
    fn a_checkpoint_is_gone_on_from_by_its_id() {
        let made = checkpoint(Agent::Claude, "midway", Some("-x"), Form::OneShot).unwrap();
        assert_eq!(words(&made), ["claude", "--checkpoint", "midway", "-p", "--", "-x"]);
        for odd in ["", "-x", "a\0b"] {
            assert!(checkpoint(Agent::Claude, odd, None, Form::Interactive).is_err());
        }
    }

    #[test]
    fn a_fork_is_asked_for_where_there_is_one() {
        let what = Resume { session_id: "id", instruction: Some("x"), form: Form::OneShot, fork: true };
        assert_eq!(
            words(&resume(Agent::Claude, &what).unwrap()),
            ["claude", "--resume", "id", "--fork-session", "-p", "--", "x"]
        );
        assert!(words(&resume(Agent::Opencode, &what).unwrap()).contains(&"--fork"));
    }

    #[test]
    fn without_a_terminal_there_must_be_an_instruction() {
        for agent in Agent::ALL {
            for instruction in [None, Some(""), Some(" \n")] {
                assert_eq!(fresh(agent, instruction, Form::OneShot).unwrap_err().kind, ErrorKind::InvalidArgument);
            }
            assert!(fresh(agent, Some("a\0b"), Form::Interactive).is_err());
            assert!(fresh(agent, Some(&"x".repeat(LONGEST_ARGUMENT + 1)), Form::Interactive).is_err());
            assert!(fresh(agent, None, Form::Interactive).is_ok());
            let odd = Resume { session_id: "--help", instruction: None, form: Form::Interactive, fork: false };
            assert!(resume(agent, &odd).is_err());
        }
    }

    #[test]
    fn a_replay_tells_all_prompts_and_then_the_instruction() {
        let prompts = ["make a.txt".to_owned(), "and b.txt".to_owned()];
        let it = replay(Agent::Claude, &prompts, Some("undo that"), Form::OneShot).unwrap();
        let text = it.argv.last().unwrap().to_str().unwrap();
        let at = |part: &str| text.find(part).unwrap();
        assert!(at("make a.txt") < at("and b.txt") && at("and b.txt") < at("undo that"));
        assert_eq!(
            replay(Agent::Codex, &[], Some("x"), Form::OneShot).unwrap(),
            fresh(Agent::Codex, Some("x"), Form::OneShot).unwrap()
        );
    }

    #[test]
    fn a_replay_that_is_too_long_keeps_its_ends() {
        let prompts: Vec<String> = (0..100).map(|n| format!("prompt-{n}- {}", "x".repeat(5000))).collect();
        let text = retold(&prompts, Some("go on"));
        assert!(text.len() <= LONGEST_ARGUMENT && text.len() > LONGEST_ARGUMENT - 12_000, "{}", text.len());
        assert!(text.contains("prompt-0-") && text.contains("prompt-99-") && !text.contains("prompt-40-"));
        assert!(text.contains("left out"));
        let one = retold(&["y".repeat(200_000)], None);
        assert!(one.len() < LONGEST_ARGUMENT && one.contains("left out"));
    }

    #[test]
    fn the_shell_reads_the_line_back() {
        let nasty = ["a b", "it's", "$HOME `x` \\ \"", "", "new\nline", "--ok=1"];
        let mut argv: Vec<OsString> = vec!["printf".into(), "%s\\0".into()];
        argv.extend(nasty.iter().map(OsString::from));
        argv.push(OsString::from_vec(vec![0xff, b'x']));
        let line = Invocation { argv, env: vec![("V".into(), "1 2".into())] }.shell_line();
        let out = std::process::Command::new("sh").arg("-c").arg(line).output().unwrap();
        let mut expected = nasty.join("\0").into_bytes();
        expected.extend_from_slice(b"\0\xffx\0");
        assert_eq!(out.stdout, expected);
    }

    #[test]
    fn an_agent_that_is_not_installed_has_a_hint() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::plain("/nowhere", dir.path());
        for agent in Agent::ALL {
            let error = program(agent, &home).unwrap_err();
            assert_eq!(error.kind, ErrorKind::NotFound);
            assert!(error.hint.unwrap().contains("npm install"));
        }
        let path = dir.path().join("claude");
        std::fs::write(&path, "").unwrap();
        assert!(program(Agent::Claude, &home).is_err(), "a file that cannot be run is not the program");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(program(Agent::Claude, &home).unwrap(), path);
    }
}
