//! Which events are hooked, and the command that an agent is to run for each.
//!
//! The command goes through `/bin/sh` by itself, since some agents use the user's own shell, which may be any. It calls the `ah` that wrote it and no other,
//! since what else is in `PATH` under that name may be anything. Where that `ah` is gone, or cannot be run (of another machine, damaged), it reads its input to
//! the end, does nothing and ends with 0: to agents another status is a word. Whether it runs is seen by running it once, for its version. Then `ah` takes
//! the shell's place, so that who ends the command ends `ah`, and nothing has the agent's pipes any more. The command is known again by all of it but the
//! place of `ah`: what others wrote may begin and end alike. So that a later version's is known, too, the script begins with a digest of the rest: what
//! stands around it, and how that is made, must stay as it is.

use std::path::{Path, PathBuf};

use ah_plugin_api::text::hex;
use ah_plugin_api::{Error, ErrorKind, Result};
use sha2::{Digest as _, Sha256};

use crate::Agent;
use crate::launch::quote;

/// The word that ends every command of ours.
const MARK: &str = " ah-hook";
/// What every command of ours begins with.
const START: &str = "exec /bin/sh -c '";
/// What every script of ours begins with, which does nothing; the digest follows.
const SIGN: &str = ": of-ah ";

/// One hook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hook {
    /// The agent's name of the event.
    pub(super) event: String,
    /// What it runs.
    pub(super) command: String,
    /// How long it may take, in the agent's unit.
    pub(super) timeout: u32,
}

/// The hooks that `agent` gets, calling `ah`.
///
/// `WorktreeCreate` of Claude Code is not among them and must never be: a hook of it replaces the making of worktrees.
pub(super) fn of(agent: Agent, ah: &Path) -> Result<Vec<Hook>> {
    let names: &[&str] = match agent {
        Agent::Claude => &[
            "SessionStart",
            "UserPromptSubmit",
            "PreToolUse",
            "PostToolUse",
            "PostToolUseFailure",
            "Stop",
            "SubagentStop",
            "SessionEnd",
        ],
        // A tool that failed is reported as PostToolUse.
        Agent::Codex => {
            &["SessionStart", "UserPromptSubmit", "PreToolUse", "PostToolUse", "Stop", "SubagentStop", "SessionEnd"]
        }
        Agent::Gemini => &["SessionStart", "BeforeAgent", "BeforeTool", "AfterTool", "AfterAgent", "SessionEnd"],
        Agent::Opencode => &["SessionStart", "UserPromptSubmit", "PreToolUse", "PostToolUse", "Stop", "SessionEnd"],
    };
    let command = command(agent, ah)?;
    let timeout = |event: &str| match (agent, event) {
        // It allows no more there, and warns.
        (Agent::Codex, "SessionEnd") => 3,
        (Agent::Gemini, _) => 30_000,
        _ => 30,
    };
    Ok(names
        .iter()
        .map(|event| Hook { event: (*event).into(), command: command.clone(), timeout: timeout(event) })
        .collect())
}

/// Whether `command` is one of ours, of this or another version.
pub(super) fn is_ours(command: &str) -> bool {
    ah_of(command).is_some()
}

/// The `ah` that a command of ours calls, of this or another version; `None` if it is not one.
pub(super) fn ah_of(command: &str) -> Option<PathBuf> {
    // There is no quotation mark in a script of ours.
    let (script, place) = command.strip_suffix(MARK)?.strip_prefix(START)?.split_once("' ")?;
    let path = match place.strip_prefix('\'') {
        Some(quoted) => quoted.strip_suffix('\'')?.replace(r"'\''", "'"),
        None => place.to_owned(),
    };
    let known =
        is_of_some_version(script) || Agent::ALL.into_iter().flat_map(former_scripts).any(|known| known == script);
    // Quoted again it is what was there, so that it is one word.
    (known && quoted(&path) == place).then(|| PathBuf::from(path)).filter(|path| path.is_absolute())
}

/// What the shell is given.
fn script(agent: Agent) -> String {
    let nothing = nothing(agent);
    let rest = format!("\"$0\" --version </dev/null >/dev/null 2>&1 && exec \"$0\" hook {agent}; {nothing}");
    format!("{SIGN}{}; {rest}", digest(&rest))
}

/// Whether this version, or a later one, made the script, and nobody has changed it since.
fn is_of_some_version(script: &str) -> bool {
    let signed = script.strip_prefix(SIGN).and_then(|signed| signed.split_once("; "));
    signed.is_some_and(|(sign, rest)| sign == digest(rest))
}

fn digest(rest: &str) -> String {
    hex(&Sha256::digest(rest.as_bytes())[..8])
}

/// What it was given by former versions, which did not sign it: their hooks are taken out and brought up to date as well.
fn former_scripts(agent: Agent) -> [String; 4] {
    let nothing = nothing(agent);
    [
        format!("\"$0\" --version </dev/null >/dev/null 2>&1 && exec \"$0\" hook {agent}; {nothing}"),
        format!("[ -x \"$0\" ] && \"$0\" hook {agent} || {{ {nothing}; }}; exit 0"),
        format!("[ -x \"$0\" ] && exec \"$0\" hook {agent}; {nothing}"),
        format!("a=$0; [ -x \"$a\" ] || a=$(command -v ah) || {{ {nothing}; exit 0; }}; exec \"$a\" hook {agent}"),
    ]
}

fn nothing(agent: Agent) -> &'static str {
    if agent == Agent::Gemini { "cat >/dev/null; echo {}" } else { "cat >/dev/null" }
}

fn quoted(path: &str) -> String {
    let mut word = Vec::new();
    quote(path.as_bytes(), &mut word);
    // Nothing but ASCII is put around it.
    String::from_utf8_lossy(&word).into_owned()
}

fn command(agent: Agent, ah: &Path) -> Result<String> {
    let Some(path) = ah.to_str().filter(|path| ah.is_absolute() && !path.chars().any(char::is_control)) else {
        let message = format!("{} cannot be written into an agent's settings as the place of ah", ah.display());
        return Err(Error::new(ErrorKind::InvalidArgument, message));
    };
    Ok(format!("{START}{}' {}{MARK}", script(agent), quoted(path)))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, Write as _};
    use std::os::unix::fs::PermissionsExt as _;
    use std::process::{Command, Stdio};

    use super::*;

    /// Runs a hook as agents do; tells its status, and what it wrote.
    fn run(command: &str, path: &str) -> (i32, String) {
        let mut child = Command::new("/bin/sh")
            .args(["-c", command])
            .env_clear()
            .env("PATH", path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(&vec![b'x'; 1 << 20]).unwrap();
        let out = child.wait_with_output().unwrap();
        (out.status.code().unwrap(), String::from_utf8(out.stdout).unwrap())
    }

    #[test]
    fn the_command_runs_the_ah_that_wrote_it_and_is_nothing_where_that_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("it's a place");
        std::fs::create_dir(&place).unwrap();
        let ah = place.join("ah");
        std::fs::write(&ah, "#!/bin/sh\n[ \"$1\" = --version ] && exit\nwc -c; echo \"$@\"\n").unwrap();
        std::fs::set_permissions(&ah, std::fs::Permissions::from_mode(0o755)).unwrap();
        for agent in Agent::ALL {
            let hook = &of(agent, &ah).unwrap()[0];
            assert!(is_ours(&hook.command));
            let whole = format!("{}\nhook {agent}\n", 1 << 20);
            assert_eq!(run(&hook.command, "/usr/bin:/bin"), (0, whole), "{agent}");
            assert_eq!(ah_of(&hook.command).as_deref(), Some(&*ah));
            // Another one is in PATH, which may be anything.
            let gone = dir.path().join("gone");
            let moved = &of(agent, &gone).unwrap()[0];
            assert_eq!(ah_of(&moved.command), Some(gone));
            let path = format!("{}:/usr/bin:/bin", place.display());
            let nothing = if agent == Agent::Gemini { "{}\n" } else { "" };
            assert_eq!(run(&moved.command, &path), (0, nothing.into()));
        }
    }

    #[test]
    fn an_ah_that_cannot_be_run_is_as_one_that_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let ah = dir.path().join("ah");
        let damaged = b"\x7fELF\x02\x01\x01\0damaged\0";
        let without = b"#!/no/such/interpreter\n";
        let killed = b"#!/bin/sh\nkill -SEGV $$\n";
        let blocking = b"#!/bin/sh\nexit 2\n";
        for bytes in [&damaged[..], without, killed, blocking] {
            std::fs::write(&ah, bytes).unwrap();
            std::fs::set_permissions(&ah, std::fs::Permissions::from_mode(0o755)).unwrap();
            for agent in Agent::ALL {
                let nothing = if agent == Agent::Gemini { "{}\n" } else { "" };
                let ran = run(&of(agent, &ah).unwrap()[0].command, "/usr/bin:/bin");
                assert_eq!(ran, (0, nothing.into()), "{agent}: {}", String::from_utf8_lossy(bytes));
            }
        }
    }

    #[test]
    fn who_ends_the_command_ends_ah() {
        let dir = tempfile::tempdir().unwrap();
        let ah = dir.path().join("ah");
        std::fs::write(&ah, "#!/bin/sh\n[ \"$1\" = --version ] && exit\necho $$\nwhile read -r line; do :; done\n")
            .unwrap();
        std::fs::set_permissions(&ah, std::fs::Permissions::from_mode(0o755)).unwrap();
        for agent in Agent::ALL {
            let command = &of(agent, &ah).unwrap()[0].command;
            let mut shell = Command::new("/bin/sh");
            let mut child = shell.args(["-c", command]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            let mut told = std::io::BufReader::new(child.stdout.take().unwrap());
            let mut line = String::new();
            told.read_line(&mut line).unwrap();
            let is_it = line.trim() == child.id().to_string();
            // It would wait for more of its input.
            let input = child.stdin.take();
            child.kill().unwrap();
            child.wait().unwrap();
            assert!(is_it, "{agent}: another process has the pipes");
            assert_eq!(told.read_line(&mut line).unwrap(), 0, "{agent}: {line}");
            drop(input);
        }
    }

    #[test]
    fn commands_of_former_versions_are_ours() {
        let former = "exec /bin/sh -c 'a=$0; [ -x \"$a\" ] || a=$(command -v ah) || { cat >/dev/null; exit 0; }; exec \"$a\" hook claude' \
                      '/it'\\''s here/ah' ah-hook";
        assert!(is_ours(former) && !is_ours("notify-send done ah-hook"));
        assert_eq!(ah_of(former).as_deref(), Some(Path::new("/it's here/ah")));
        let former =
            "exec /bin/sh -c '[ -x \"$0\" ] && exec \"$0\" hook gemini; cat >/dev/null; echo {}' /opt/ah ah-hook";
        assert_eq!(ah_of(former).as_deref(), Some(Path::new("/opt/ah")));
        let former =
            "exec /bin/sh -c '[ -x \"$0\" ] && \"$0\" hook codex || { cat >/dev/null; }; exit 0' /opt/ah ah-hook";
        assert_eq!(ah_of(former).as_deref(), Some(Path::new("/opt/ah")));
        let former = "exec /bin/sh -c '\"$0\" --version </dev/null >/dev/null 2>&1 && exec \"$0\" hook claude; cat >/dev/null' /opt/ah ah-hook";
        assert_eq!(ah_of(former).as_deref(), Some(Path::new("/opt/ah")));
        assert_eq!((ah_of("/bin/ah ah-hook"), ah_of("exec /bin/sh -c 'x' '/a ah-hook")), (None, None));
    }

    #[test]
    fn commands_of_later_versions_are_ours_unless_somebody_changed_them() {
        // The digest is as any version makes it.
        let later = "exec /bin/sh -c ': of-ah eff88cc832082ce6; \"$0\" next --of claude' '/it'\\''s here/ah' ah-hook";
        assert_eq!(ah_of(later).as_deref(), Some(Path::new("/it's here/ah")));
        for (from, to) in [
            ("next", "last"),
            ("claude'", "claude; date'"),
            ("claude'", "claude' 'x'"),
            (": of-ah", ":  of-ah"),
            ("of-ah eff88cc832082ce6; ", ""),
            ("of-ah eff88cc832082ce6", "of-ah"),
            ("of-ah eff88cc832082ce6;", "of-ah eff88cc832082ce6"),
            ("/ah'", "/ah'; date '/b'"),
        ] {
            let changed = later.replace(from, to);
            assert!(changed != later && !is_ours(&changed), "{changed}");
        }
        for agent in Agent::ALL {
            let command = &of(agent, Path::new("/opt/ah")).unwrap()[0].command;
            let script = command.split('\'').nth(1).unwrap();
            assert!(is_of_some_version(script) && !is_of_some_version(&format!("{script} ")), "{command}");
        }
    }

    #[test]
    fn commands_that_begin_and_end_as_ours_are_not_ours() {
        let ours = &of(Agent::Claude, Path::new("/opt/ah")).unwrap()[0].command;
        assert!(is_ours(ours));
        for (from, to) in [
            ("hook claude", "hook claude; date"),
            ("hook claude", "hook nobody"),
            ("/opt/ah", "/opt/ah; date"),
            ("/opt/ah", "'/opt/ah'"),
            ("/opt/ah", "'/opt/a h'; date '/b'"),
            ("/opt/ah", "opt/ah"),
            ("/opt/ah", "/opt/ah date"),
        ] {
            assert!(!is_ours(&ours.replace(from, to)), "{to}");
        }
        assert!(!is_ours("exec /bin/sh -c 'make lint' /usr/bin/make ah-hook"));
    }

    #[test]
    fn worktrees_are_left_alone() {
        for agent in Agent::ALL {
            assert!(of(agent, Path::new("/ah")).unwrap().iter().all(|hook| hook.event != "WorktreeCreate"));
        }
    }

    #[test]
    fn a_place_that_cannot_be_written_down_is_refused() {
        use std::os::unix::ffi::OsStrExt as _;
        let odd = Path::new(std::ffi::OsStr::from_bytes(b"/\xff/ah"));
        for ah in [Path::new("ah"), Path::new("/a\nb"), odd] {
            assert_eq!(of(Agent::Claude, ah).unwrap_err().kind, ErrorKind::InvalidArgument);
        }
    }
}
