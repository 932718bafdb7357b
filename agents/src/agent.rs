//! Which agents there are, and where each keeps its things.
//!
//! Not here: anything that depends on a file's contents.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use ah_plugin_api::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

/// A coding agent that `ah` knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Agent {
    /// Claude Code, by Anthropic.
    Claude,
    /// Codex CLI, by OpenAI.
    Codex,
    /// Gemini CLI, by Google.
    Gemini,
    /// opencode, by its own project.
    Opencode,
}

impl Agent {
    /// All of them, in the order in which they are listed to people.
    pub const ALL: [Self; 4] = [Self::Claude, Self::Codex, Self::Gemini, Self::Opencode];

    /// The name on the command line, in records, and of the program itself.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Claude => "claude",
            Self::Codex => "codex",
            Self::Gemini => "gemini",
            Self::Opencode => "opencode",
        }
    }

    /// The name as its makers write it.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Claude => "Claude Code",
            Self::Codex => "Codex",
            Self::Gemini => "Gemini CLI",
            Self::Opencode => "opencode",
        }
    }

    /// The agent whose program `argv0` names, by its last component; `None` for every other program.
    #[must_use]
    pub fn of_program(argv0: &std::ffi::OsStr) -> Option<Self> {
        let name = std::path::Path::new(argv0).file_name()?.to_str()?;
        Self::ALL.into_iter().find(|agent| agent.name() == name)
    }
}

impl fmt::Display for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Agent {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|agent| agent.name() == text).ok_or_else(|| {
            Error::new(ErrorKind::InvalidArgument, format!("{text:?} is not an agent that ah knows"))
                .with_hint("one of: claude, codex, gemini, opencode")
        })
    }
}

/// Where Claude Code looks for the settings of a whole machine on Linux.
const CLAUDE_MANAGED: &str = "/etc/claude-code";
/// Where Codex looks for what a whole machine requires of it on Linux.
const CODEX_MANAGED: &str = "/etc/codex";

/// Where the agents of one user keep their things, taken from that user's environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Home {
    /// The user's home directory.
    pub user: PathBuf,
    /// Claude Code's: `$CLAUDE_CONFIG_DIR`, else `~/.claude`.
    pub claude: PathBuf,
    /// Claude Code's settings of the whole machine, which come before everybody's own: `/etc/claude-code`.
    pub claude_managed: PathBuf,
    /// Codex's: `$CODEX_HOME`, else `~/.codex`.
    pub codex: PathBuf,
    /// What the machine requires of everybody's Codex: `/etc/codex`.
    pub codex_managed: PathBuf,
    /// Gemini CLI's: `$GEMINI_CLI_HOME/.gemini`, else `~/.gemini`.
    pub gemini: PathBuf,
    /// opencode's configuration: `$OPENCODE_CONFIG_DIR`, else `$XDG_CONFIG_HOME/opencode`, else `~/.config/opencode`.
    pub opencode_config: PathBuf,
    /// opencode's data: `$XDG_DATA_HOME/opencode`, else `~/.local/share/opencode`.
    pub opencode_data: PathBuf,
    /// Where programs are looked for: `$PATH`.
    pub path: OsString,
}

impl Home {
    /// Takes what is needed of an environment. `get` answers with a variable's value; an empty one counts as absent.
    ///
    /// # Errors
    /// `FailedPrecondition` if there is no absolute `HOME`.
    pub fn new(get: impl Fn(&str) -> Option<OsString>) -> Result<Self> {
        let get = |name: &str| get(name).filter(|value| !value.is_empty());
        let user = get("HOME").map(PathBuf::from).filter(|home| home.is_absolute()).ok_or_else(|| {
            Error::new(
                ErrorKind::FailedPrecondition,
                "HOME is not set to an absolute path, so no agent's files can be found",
            )
            .with_hint("set it: export HOME=\"$(getent passwd \"$(id -u)\" | cut -d: -f6)\"")
        })?;
        let dir = |name: &str| get(name).map(PathBuf::from).filter(|dir| dir.is_absolute());
        let config = dir("XDG_CONFIG_HOME").unwrap_or_else(|| user.join(".config"));
        let data = dir("XDG_DATA_HOME").unwrap_or_else(|| user.join(".local/share"));
        Ok(Self {
            claude: dir("CLAUDE_CONFIG_DIR").unwrap_or_else(|| user.join(".claude")),
            claude_managed: CLAUDE_MANAGED.into(),
            codex_managed: CODEX_MANAGED.into(),
            codex: dir("CODEX_HOME").unwrap_or_else(|| user.join(".codex")),
            gemini: dir("GEMINI_CLI_HOME").unwrap_or_else(|| user.clone()).join(".gemini"),
            opencode_config: dir("OPENCODE_CONFIG_DIR").unwrap_or_else(|| config.join("opencode")),
            opencode_data: data.join("opencode"),
            path: get("PATH").unwrap_or_default(),
            user,
        })
    }

    /// A home of `user` with nothing set in the environment; for tests and for other users.
    #[must_use]
    pub fn plain(user: impl Into<PathBuf>, path: impl Into<OsString>) -> Self {
        let user = user.into();
        Self {
            claude: user.join(".claude"),
            claude_managed: CLAUDE_MANAGED.into(),
            codex_managed: CODEX_MANAGED.into(),
            codex: user.join(".codex"),
            gemini: user.join(".gemini"),
            opencode_config: user.join(".config/opencode"),
            opencode_data: user.join(".local/share/opencode"),
            path: path.into(),
            user,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home(vars: &[(&str, &str)]) -> Result<Home> {
        let vars: Vec<(String, OsString)> = vars.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        Home::new(move |name| vars.iter().find(|(k, _)| k == name).map(|(_, v)| v.clone()))
    }

    #[test]
    fn without_variables_everything_lies_below_home() {
        assert_eq!(home(&[("HOME", "/home/u"), ("PATH", "/bin")]).unwrap(), Home::plain("/home/u", "/bin"));
    }

    #[test]
    fn each_agents_own_variable_counts_and_an_empty_one_does_not() {
        let it =
            home(&[("HOME", "/h"), ("CLAUDE_CONFIG_DIR", "/c"), ("CODEX_HOME", ""), ("XDG_DATA_HOME", "rel")]).unwrap();
        assert_eq!((it.claude, it.codex), ("/c".into(), "/h/.codex".into()));
        assert_eq!(it.opencode_data, PathBuf::from("/h/.local/share/opencode"));
    }

    #[test]
    fn without_home_there_is_a_hint() {
        let error = home(&[("PATH", "/bin")]).unwrap_err();
        assert_eq!(error.kind, ErrorKind::FailedPrecondition);
        assert!(error.hint.is_some());
    }

    #[test]
    fn names_are_read_back_and_programs_known_by_their_last_component() {
        for agent in Agent::ALL {
            assert_eq!(agent.name().parse::<Agent>().unwrap(), agent);
            assert_eq!(Agent::of_program(format!("/usr/local/bin/{agent}").as_ref()), Some(agent));
        }
        assert!("cursor".parse::<Agent>().is_err());
        assert_eq!(Agent::of_program("claudette".as_ref()), None);
    }
}
