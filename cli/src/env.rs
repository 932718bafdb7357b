//! The environment, read once and handed on; nothing below this crate reads it.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ah_plugin_api::Result;

use crate::itself;

/// What of the environment matters.
#[derive(Debug, Clone)]
pub(crate) struct Env {
    /// Where whoever called this program found it, absolute; none if that does not lead to it.
    pub(crate) called: Option<PathBuf>,
    /// `AH_HOME`: where the state is, as it stands there; a relative one is refused.
    pub(crate) ah_home: Option<PathBuf>,
    /// `AH_SESSION`: the session that writing goes to.
    pub(crate) session: Option<OsString>,
    /// `AH_RECORDING`: the recording that this runs inside of.
    pub(crate) recording: Option<PathBuf>,
    /// `TERM`: what the terminal understands.
    pub(crate) term: Option<OsString>,
    /// `SHELL`: the user's shell.
    pub(crate) shell: Option<OsString>,
    /// `AH_PROVIDER_PATH`: folders of provider libraries, separated by colons.
    pub(crate) provider_path: Vec<PathBuf>,
    /// `AH_HELPER_SOCKET`: where the privileged helper listens; empty: it is not asked.
    pub(crate) helper_socket: Option<PathBuf>,
    /// Whether this runs inside Codex, whose sandbox may let nobody write outside the workspace.
    pub(crate) in_codex: bool,
    /// `CLAUDE_ENV_FILE`: where a hook leaves variables for what the agent runs.
    pub(crate) agent_env_file: Option<PathBuf>,
    /// `CLAUDE_PROJECT_DIR`: where the agent's session started.
    pub(crate) agent_start: Option<PathBuf>,
    /// The user's home directory, from `HOME` or else the user database.
    pub(crate) user_home: Option<PathBuf>,
    /// `SUDO_UID`: who became root by `sudo`.
    pub(crate) sudo_user: Option<u32>,
    /// `XDG_CONFIG_HOME`, where Git keeps the user's ignore file.
    pub(crate) xdg_config_home: Option<PathBuf>,
    /// Where temporary files go: `TMPDIR`, else `/tmp`.
    pub(crate) temp: PathBuf,
    /// Whether colour is unwanted: `NO_COLOR` is set and not empty, or `TERM` is `dumb`.
    pub(crate) no_color: bool,
    /// Whether stdout is a terminal.
    pub(crate) stdout_terminal: bool,
    /// Whether stderr is a terminal.
    pub(crate) stderr_terminal: bool,
}

impl Env {
    /// Where the state is: `AH_HOME`, else `~/.ah`.
    pub(crate) fn state(&self) -> Option<PathBuf> {
        self.ah_home.clone().or_else(|| Some(self.user_home.as_ref()?.join(".ah")))
    }

    /// Where agents keep their things, as their own variables say.
    pub(crate) fn agents_home() -> ah_core::Result<ah_agents::Home> {
        ah_agents::Home::new(|name| std::env::var_os(name))
    }

    /// This program's path, to be written down: as it was called, no symlink followed, so that what calls it later calls the newer one once such a link leads
    /// there, and the one that was called is gone.
    pub(crate) fn program(&self) -> Result<PathBuf> {
        self.called.clone().map_or_else(itself::program, Ok)
    }

    /// Reads it.
    pub(crate) fn read() -> Self {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        Self {
            called: called(),
            ah_home: set("AH_HOME").map(PathBuf::from),
            session: set("AH_SESSION"),
            recording: set("AH_RECORDING").map(PathBuf::from),
            term: set("TERM"),
            shell: set("SHELL"),
            provider_path: set("AH_PROVIDER_PATH")
                .map(|paths| std::env::split_paths(&paths).filter(|path| !path.as_os_str().is_empty()).collect())
                .unwrap_or_default(),
            helper_socket: std::env::var_os("AH_HELPER_SOCKET").map(PathBuf::from),
            in_codex: ["CODEX_THREAD_ID", "CODEX_SANDBOX", "CODEX_SANDBOX_NETWORK_DISABLED"]
                .iter()
                .any(|name| set(name).is_some()),
            agent_env_file: set("CLAUDE_ENV_FILE").map(PathBuf::from).filter(|path| path.is_absolute()),
            agent_start: set("CLAUDE_PROJECT_DIR").map(PathBuf::from).filter(|path| path.is_absolute()),
            user_home: std::env::home_dir().filter(|path| path.is_absolute()),
            sudo_user: set("SUDO_UID").and_then(|uid| uid.to_str()?.parse().ok()),
            xdg_config_home: set("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute()),
            temp: std::env::temp_dir(),
            no_color: set("NO_COLOR").is_some() || set("TERM").is_some_and(|term| term == "dumb"),
            stdout_terminal: std::io::stdout().is_terminal(),
            stderr_terminal: std::io::stderr().is_terminal(),
        }
    }
}

/// Where this program was found by the name that it was called by.
fn called() -> Option<PathBuf> {
    let name = PathBuf::from(std::env::args_os().next()?);
    // Through a folder above, it would hang on the directory that it was called from.
    let whole = |path: PathBuf| std::path::absolute(path).ok().filter(|path| !path.iter().any(|part| part == ".."));
    let own = Path::new("/proc/self/exe").metadata().ok()?;
    let is_it = |path: &PathBuf| path.metadata().is_ok_and(|it| (it.dev(), it.ino()) == (own.dev(), own.ino()));
    if name.components().count() > 1 {
        return whole(name).filter(is_it);
    }
    std::env::split_paths(&std::env::var_os("PATH")?).filter_map(|folder| whole(folder.join(&name))).find(is_it)
}
