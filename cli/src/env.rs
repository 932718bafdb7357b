//! The environment, read once and handed on; nothing below this crate reads it.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::PathBuf;

/// What of the environment matters.
#[derive(Debug, Clone)]
pub(crate) struct Env {
    /// `AH_HOME`: where the state is, as it stands there; a relative one is refused.
    pub(crate) ah_home: Option<PathBuf>,
    /// `AH_SESSION`: the session that writing goes to.
    pub(crate) session: Option<OsString>,
    /// `AH_PROVIDER_PATH`: folders of provider libraries, separated by colons.
    pub(crate) provider_path: Vec<PathBuf>,
    /// `AH_HELPER_SOCKET`: where the privileged helper listens; empty: it is not asked.
    pub(crate) helper_socket: Option<PathBuf>,
    /// The user's home directory, from `HOME` or else the user database.
    pub(crate) user_home: Option<PathBuf>,
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
    /// Reads it.
    pub(crate) fn read() -> Self {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        Self {
            ah_home: set("AH_HOME").map(PathBuf::from),
            session: set("AH_SESSION"),
            provider_path: set("AH_PROVIDER_PATH")
                .map(|paths| std::env::split_paths(&paths).filter(|path| !path.as_os_str().is_empty()).collect())
                .unwrap_or_default(),
            helper_socket: std::env::var_os("AH_HELPER_SOCKET").map(PathBuf::from),
            user_home: std::env::home_dir().filter(|path| path.is_absolute()),
            xdg_config_home: set("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute()),
            temp: std::env::temp_dir(),
            no_color: set("NO_COLOR").is_some() || set("TERM").is_some_and(|term| term == "dumb"),
            stdout_terminal: std::io::stdout().is_terminal(),
            stderr_terminal: std::io::stderr().is_terminal(),
        }
    }
}
