//! What a person does with configuration: list, get, set, trust.

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use ah_plugin_api::{Durability, Error, ErrorKind, Result};
use serde_json::Map;

use crate::config::{ConfigEntry, ConfigLayer, TrustReport, file, is_own, keys, project_file, trust, unknown_key};
use crate::engine::Engine;
use crate::fsio;

use super::ConfigKey;

impl Engine {
    /// All configuration in force at `path` (none: outside any workspace), with the layer each value comes from.
    ///
    /// # Errors
    /// If a configuration file is there and cannot be read.
    pub fn config_list(&self, path: Option<&Path>) -> Result<Vec<ConfigEntry>> {
        let root = self.config_root(path)?;
        let config = self.config(root.as_deref())?;
        Ok(keys::KEYS.iter().map(|key| config.entry(key)).collect())
    }

    /// One key's value in force at `path`.
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown key.
    pub fn config_get(&self, path: Option<&Path>, key: &str) -> Result<ConfigEntry> {
        let key = ConfigKey::find(key).ok_or_else(|| unknown_key(key))?;
        let root = self.config_root(path)?;
        Ok(self.config(root.as_deref())?.entry(key))
    }

    /// Sets (or with no value: takes away) a key in a layer's file. `value` is JSON, or taken as text where that is not JSON. A project's file that
    /// was not there, or that was trusted as it was, is trusted as this leaves it: nobody else has written anything in it. One that holds nothing any more is
    /// removed. Gives whether the file counts in full from now on.
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown key, a wrong value, a layer without a file or a project's where ah's own folder is; `FailedPrecondition` inside an agent's own session for
    /// what agents may do and what is removed.
    pub fn config_set(&self, path: Option<&Path>, layer: ConfigLayer, key: &str, value: Option<&str>) -> Result<bool> {
        let key = ConfigKey::find(key).ok_or_else(|| unknown_key(key))?;
        if ["agent.", "prune."].iter().any(|group| key.name.starts_with(group)) {
            self.refuse_to_agents(&format!("changing `{}`", key.name))?;
        }
        let value = value.map(|text| key.value_of(text));
        if let Some(value) = &value
            && let Err(reason) = key.check(value)
        {
            return Err(Error::new(ErrorKind::InvalidArgument, format!("{} cannot be {value}: {reason}", key.name))
                .with_hint("ah config list"));
        }
        if let Some(number) = value.as_ref().filter(|value| key.lacks_unit(value)) {
            let message = format!("{} cannot be {number}: a size needs a unit", key.name);
            let share = if key.may_be_share(number) { format!(", or `{number}%` of the disk") } else { String::new() };
            return Err(Error::new(ErrorKind::InvalidArgument, message)
                .with_hint(format!("`ah config set {} {number}G`{share}; B, K, M, G and T are units", key.name)));
        }
        // From reading to writing nobody else may change it.
        let _lock = self.lock_registry()?;
        let (target, mut fields, mut trusted) = match layer {
            ConfigLayer::User => {
                let target = file::real(&self.home().join("config.json"));
                let fields = file::read(&target)?;
                (target, fields, true)
            }
            ConfigLayer::Project => {
                let root = self.config_root(path)?.ok_or_else(|| {
                    Error::new(ErrorKind::InvalidArgument, "a project's configuration needs a directory")
                })?;
                self.needs_project(&root, "without `--project`, your own settings are changed, which hold everywhere")?;
                let target = project_file(&root);
                let bytes =
                    file::read_project(&root).map_err(|e| e.context(format!("cannot change {}", target.display())))?;
                let fields = bytes.as_ref().map(|bytes| file::parse(bytes)).transpose().map_err(|reason| {
                    Error::new(ErrorKind::InvalidArgument, format!("{} cannot be read: {reason}", target.display()))
                })?;
                let trusted = bytes.is_none_or(|bytes| trust::is_trusted(self.home(), &target, &bytes));
                (target, fields, trusted)
            }
            ConfigLayer::System if let Some(target) = &self.settings().system_config => {
                let target = file::real(target);
                let fields = file::read(&target)?;
                (target, fields, true)
            }
            _ => {
                let message = format!("this ah has no file for the layer {layer}");
                return Err(Error::new(ErrorKind::InvalidArgument, message)
                    .with_hint("without `--system`, the user's own is changed, and with `--project` the project's"));
            }
        };
        let fields = fields.get_or_insert_with(Map::new);
        file::set(fields, key.name, value);
        let mut bytes = serde_json::to_vec_pretty(fields).unwrap_or_default();
        bytes.push(b'\n');
        if layer == ConfigLayer::Project {
            // What no agent may trust, none makes trusted.
            trusted = trusted && self.refuse_to_agents("`config trust`").is_ok();
            let is_empty = fields.is_empty();
            let written =
                if is_empty { remove_project_file(&target) } else { replace_shared_file(&target, &bytes, None) };
            written.map_err(|e| fsio::failed("write", &target, &e))?;
            if trusted {
                trust::set(self.home(), &target, (!is_empty).then_some(&bytes))?;
            }
            return Ok(trusted || is_empty);
        }
        if layer == ConfigLayer::System {
            replace_shared_file(&target, &bytes, Some(0o644)).map_err(|e| fsio::failed("write", &target, &e))?;
        } else {
            fsio::replace(&target, &bytes, Durability::Durable)?;
        }
        Ok(trusted)
    }

    /// Trusts the project's configuration file at `path` as it is now, or with `revoke` no longer.
    ///
    /// # Errors
    /// `NotFound` if there is none; `InvalidArgument` where ah's own folder is; `FailedPrecondition` inside an agent's own session.
    pub fn config_trust(&self, path: &Path, revoke: bool) -> Result<TrustReport> {
        self.refuse_to_agents("`config trust`")?;
        let root = self.config_root(Some(path))?.unwrap_or_default();
        self.needs_project(&root, "your own settings need no trust; a project below it may have a file")?;
        let target = project_file(&root);
        let bytes = file::read_project(&root)
            .map_err(|e| e.context(format!("{} cannot be trusted", target.display())))?
            .ok_or_else(|| {
                Error::new(ErrorKind::NotFound, format!("there is no {}", target.display())).with_hint(
                    "only a project that has this file needs trust; `ah config set KEY VALUE --project` makes it",
                )
            })?;
        let fields = file::parse(&bytes)
            .map_err(|e| Error::new(ErrorKind::InvalidArgument, format!("{} cannot be read: {e}", target.display())))?;
        let lock = self.lock_registry()?;
        trust::set(self.home(), &target, (!revoke).then_some(&bytes))?;
        drop(lock);
        // What does not count all the same is said now.
        self.config(Some(&root))?;
        let mut values = file::flatten(&fields);
        values.retain(|name, _| ConfigKey::find(name).is_some());
        let is_restricted = |name: &&String| ConfigKey::find(name).is_some_and(|key| !key.project);
        let restricted = values.keys().filter(is_restricted).cloned().collect();
        Ok(TrustReport { file: target, trusted: !revoke, restricted, values })
    }

    /// Refuses what is a project's where ah's own folder is.
    fn needs_project(&self, root: &Path, hint: &str) -> Result<()> {
        if !is_own(self.home(), root) {
            return Ok(());
        }
        let message = format!("what is at {} is ah's own here, and no project's", root.join(".ah").display());
        Err(Error::new(ErrorKind::InvalidArgument, message).with_hint(hint))
    }

    fn config_root(&self, path: Option<&Path>) -> Result<Option<PathBuf>> {
        path.map(|path| self.find(path).map(|(root, ..)| root)).transpose()
    }
}

/// Removes the project's file, and its folder if nothing else is in that.
fn remove_project_file(target: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(target) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    // Others may have put something there.
    let _ = target.parent().map(std::fs::remove_dir);
    Ok(())
}

/// Replaces a file that others read as well whole, with the mode that it has; a new one has `mode`, and each folder that is made for it what goes with that, or all
/// what the user's umask says.
fn replace_shared_file(target: &Path, bytes: &[u8], mode: Option<u32>) -> std::io::Result<()> {
    make_folders(target.parent().unwrap_or(Path::new("/")), mode.map(|mode| mode | 0o111))?;
    let temp = fsio::temp_beside(target);
    let write = || -> std::io::Result<()> {
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).open(&temp)?;
        if let Ok(former) = std::fs::symlink_metadata(target) {
            file.set_permissions(former.permissions())?;
        } else if let Some(mode) = mode {
            file.set_permissions(Permissions::from_mode(mode))?;
        }
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&temp, target)
    };
    write().inspect_err(|_| drop(std::fs::remove_file(&temp)))
}

/// Makes a folder and those above it, as far as they are not there, each with `mode`.
fn make_folders(folder: &Path, mode: Option<u32>) -> std::io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    if let Some(above) = folder.parent().filter(|above| !above.as_os_str().is_empty()) {
        make_folders(above, mode)?;
    }
    match std::fs::create_dir(folder) {
        // Another one was quicker.
        Err(_) if folder.is_dir() => Ok(()),
        Err(error) => Err(error),
        Ok(()) => mode.map_or(Ok(()), |mode| std::fs::set_permissions(folder, Permissions::from_mode(mode))),
    }
}
