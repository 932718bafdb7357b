//! The plugin that opencode gets: it has no hooks that are commands, so a small script calls `ah` with events in the form of the other agents'.
//!
//! Written from its documentation (plugins of version 1: `event`, `chat.message`, `tool.execute.before`, `tool.execute.after`); with version 1.18.33 it was run by hand.

use std::path::{Path, PathBuf};

use ah_plugin_api::{Error, ErrorKind, Result};

/// The first line, by which the file is known.
const HEAD: &str = "// Written by `ah agent hooks install opencode`; `ah agent hooks uninstall opencode` removes it.\n";

/// The plugin, calling `ah`.
pub(super) fn text(ah: &Path) -> Result<String> {
    let path = ah.to_str().filter(|_| ah.is_absolute()).ok_or_else(|| {
        Error::new(
            ErrorKind::InvalidArgument,
            format!("{} cannot be written into a plugin as the place of ah", ah.display()),
        )
    })?;
    let path = serde_json::to_string(path).map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
    Ok(format!("{HEAD}{}", BODY.replace("\"@AH@\"", &path)))
}

/// The `ah` that a plugin of ours calls.
pub(super) fn ah_of(text: &str) -> Option<PathBuf> {
    let path = text.lines().find_map(|line| line.strip_prefix("const AH = "))?;
    serde_json::from_str(path).ok()
}

/// Whether a plugin's text is one of ours, of this or another version.
pub(super) fn is_ours(text: &str) -> bool {
    text.starts_with(HEAD)
}

/// Whether it is as it was written by this version: nobody added anything.
pub(super) fn is_unchanged(text: &str) -> bool {
    ah_of(text).and_then(|ah| self::text(&ah).ok()).as_deref() == Some(text)
}

pub(super) fn not_ours(file: &Path) -> Error {
    Error::new(ErrorKind::AlreadyExists, format!("{} is somebody else's plugin", file.display()))
        .with_hint("give it another name, then repeat")
}

const BODY: &str = include_str!("plugin.js");
