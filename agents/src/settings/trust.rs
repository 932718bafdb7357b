//! Codex runs a hook only if a person trusted it: the SHA-256 of what it is stands in `config.toml`, under a key made of the file, the event and the place within.
//!
//! Facts from Codex 0.169.0, tried with the program: key `FILE:event_in_snake_case:GROUP:HOOK`; hashed is `{"event_name", "hooks": [{"async", "command", "timeout",
//! "type"}], "matcher"?}` as JSON with sorted members. Hooks given with `-c` are those of the file `/<session-flags>/config.toml`.

use std::ffi::OsString;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use ah_plugin_api::{Error, ErrorKind};
use sha2::{Digest as _, Sha256};

use super::events::Hook;
use super::json::Ours;
use crate::Home;
use crate::files::open_regular;

/// What hooks on the command line count as a part of.
const SESSION_FLAGS: &str = "/<session-flags>/config.toml";
/// The timeout of a hook that names none, in seconds.
const DEFAULT_TIMEOUT: u32 = 600;

/// Whether each of `ours` in `file` is trusted; `None` if the configuration cannot be read.
pub(super) fn trusted(home: &Home, file: &Path, ours: &[Ours]) -> Option<Vec<bool>> {
    let config = read(&place(home))?;
    let state = config.get("hooks").and_then(|hooks| hooks.get("state"));
    let file = std::fs::canonicalize(file).unwrap_or_else(|_| file.to_path_buf());
    let is = |ours: &Ours| {
        let label = label(&ours.event);
        let key = format!("{}:{label}:{}:{}", file.display(), ours.place.0, ours.place.1);
        let entry = state.and_then(|state| state.get(&key));
        let hash = hash(&label, &ours.command, ours.timeout.unwrap_or(DEFAULT_TIMEOUT), ours.matcher.as_deref());
        let on = entry.and_then(|entry| entry.get("enabled")).and_then(toml_edit::Item::as_bool).unwrap_or(true);
        on && entry.and_then(|entry| entry.get("trusted_hash")).and_then(toml_edit::Item::as_str) == Some(&hash)
    };
    Some(ours.iter().map(is).collect())
}

/// A configuration, empty where there is none; `None` if it cannot be read.
fn read(place: &Path) -> Option<toml_edit::DocumentMut> {
    let mut text = String::new();
    let read = open_regular(place).and_then(|mut file| file.read_to_string(&mut text));
    match read {
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(_) => return None,
    };
    text.parse().ok()
}

fn place(home: &Home) -> PathBuf {
    home.codex.join("config.toml")
}

/// The file that switches all hooks of the user's off, if one does, and by what. What the machine requires comes first (documented, and tried).
pub(super) fn switched_off(home: &Home) -> Option<(PathBuf, &'static str)> {
    let required = home.codex_managed.join("requirements.toml");
    if let Some(config) = read(&required) {
        if config.get("allow_managed_hooks_only").and_then(toml_edit::Item::as_bool) == Some(true) {
            return Some((required, "`allow_managed_hooks_only = true`"));
        }
        if let Some(switch) = without_hooks(&config) {
            return Some((required, switch));
        }
    }
    let own = place(home);
    without_hooks(&read(&own)?).map(|switch| (own, switch))
}

fn without_hooks(config: &toml_edit::DocumentMut) -> Option<&'static str> {
    // The second is what it was called before, and is understood still.
    let switches =
        [("hooks", "`hooks = false` under `[features]`"), ("codex_hooks", "`codex_hooks = false` under `[features]`")];
    let features = config.get("features")?;
    let said = |(name, switch)| Some((features.get(name)?.as_bool()?, switch));
    switches.into_iter().find_map(said).filter(|(on, _)| !on).map(|(_, switch)| switch)
}

/// The configuration, if hooks stand in it too, which Codex warns of at each start.
pub(super) fn with_hooks(home: &Home) -> Option<PathBuf> {
    let config = read(&place(home))?;
    let mut names = config.get("hooks")?.as_table_like()?.iter().map(|(name, _)| name);
    names.any(|name| name != "state").then(|| place(home))
}

/// Why that cannot be told.
pub(super) fn untold(home: &Home) -> Error {
    let config = place(home);
    let message = format!("whether the hooks are trusted cannot be told: {} cannot be understood", config.display());
    Error::new(ErrorKind::FailedPrecondition, message).with_hint("mend it; `codex` says what is wrong with it")
}

/// Arguments that give Codex `hooks` for one run, and trust these and no others.
pub(super) fn overrides(hooks: &[Hook]) -> Vec<OsString> {
    let mut args: Vec<OsString> = Vec::new();
    let mut state = Vec::new();
    for hook in hooks {
        let (label, command) = (label(&hook.event), toml_text(&hook.command));
        let entry = format!("{{type=\"command\",command={command},timeout={}}}", hook.timeout);
        args.extend(["-c".into(), format!("hooks.{}=[{{hooks=[{entry}]}}]", hook.event).into()]);
        let hash = hash(&label, &hook.command, hook.timeout, None);
        state.push(format!("\"{SESSION_FLAGS}:{label}:0:0\"={{trusted_hash=\"{hash}\",enabled=true}}"));
    }
    args.extend(["-c".into(), format!("hooks.state={{{}}}", state.join(",")).into()]);
    args
}

fn hash(label: &str, command: &str, timeout: u32, matcher: Option<&str>) -> String {
    // serde_json's map is sorted.
    let mut identity = serde_json::json!({
        "event_name": label,
        "hooks": [{"async": false, "command": command, "timeout": timeout, "type": "command"}],
    });
    if let Some(matcher) = matcher {
        identity["matcher"] = matcher.into();
    }
    let digest = Sha256::digest(identity.to_string().as_bytes());
    digest.iter().fold("sha256:".to_owned(), |text, byte| format!("{text}{byte:02x}"))
}

/// `PostToolUse` as `post_tool_use`.
fn label(event: &str) -> String {
    let mut label = String::new();
    for (at, c) in event.char_indices() {
        if c.is_ascii_uppercase() && at > 0 {
            label.push('_');
        }
        label.push(c.to_ascii_lowercase());
    }
    label
}

fn toml_text(text: &str) -> String {
    // A basic string of TOML has JSON's escapes.
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_labelled_and_hashed_as_codex_does() {
        assert_eq!(label("PostToolUse"), "post_tool_use");
        // Sorted members, no spaces; made with another program:
        // printf '%s' '{"event_name":"stop","hooks":[{"async":false,"command":"x","timeout":3,"type":"command"}]}' | sha256sum
        assert_eq!(
            hash("stop", "x", 3, None),
            "sha256:d01ee585acb29fd296868b24c90b448be56374b556348bcaeccb5d4e5f31df51"
        );
    }
}
