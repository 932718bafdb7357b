//! Configuration: built in, system, user, project, environment, flags; the later wins, key by key.
//!
//! A project's file may set labels, includes, excludes and caps only, unless a person has trusted it as it is: a cloned repository must
//! not be able to choose what runs or is loaded. Keys are in `keys`, files in `file`, trust in `trust`; commands in `commands`.

mod commands;
mod file;
mod keys;
#[cfg(test)]
mod tests;
mod trust;

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ah_plugin_api::{CapturePolicy, Error, ErrorKind, Mode, ProviderName, Result};
use serde::Serialize;
use serde_json::Value;

use crate::home::Home;
use crate::moments::{Rules, told};
use crate::notice::{Notice, NoticeKind};
use crate::prune;
use crate::settings::Settings;
use crate::text::{self, text_enum};

pub use keys::ConfigKey;
pub(crate) use keys::{Share, parse_size};

/// Values by key: `provider`, `capture.exclude`, ….
pub type ConfigValues = BTreeMap<String, Value>;

text_enum! {
    /// Where a value comes from, the weakest first.
    pub enum ConfigLayer {
        /// Built in.
        Default = "default",
        /// The system's file.
        System = "system",
        /// `$AH_HOME/config.json`.
        User = "user",
        /// `.ah/config.json` in the workspace.
        Project = "project",
        /// An environment variable.
        Environment = "environment",
        /// A flag.
        Flags = "flags",
    }
}

/// A value in force.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ConfigEntry {
    /// Its key.
    pub key: String,
    /// The value; null: none.
    pub value: Value,
    /// The layer that it comes from.
    pub layer: ConfigLayer,
    /// The file that it comes from.
    #[serde(with = "text::abs_option", skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// What it is for.
    pub help: String,
}

/// What was trusted.
#[derive(Debug, Clone, Serialize)]
pub struct TrustReport {
    /// The file.
    #[serde(with = "text::abs")]
    pub file: PathBuf,
    /// Whether it is trusted now.
    pub trusted: bool,
    /// The keys it sets that count only when it is trusted.
    pub restricted: Vec<String>,
    /// All that it sets of the keys that there are.
    pub values: ConfigValues,
}

/// The configuration in force at one place.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    values: BTreeMap<&'static str, (Value, ConfigLayer, Option<PathBuf>)>,
    warnings: Vec<Notice>,
    /// What a project that is not trusted says of what is kept, where something else would hold without it.
    unasked: Vec<&'static str>,
}

impl Config {
    /// Reads all layers for a workspace's root, or for no workspace.
    pub(crate) fn load(settings: &Settings, home: &Home, root: Option<&Path>) -> Result<Self> {
        let mut config = Self { values: BTreeMap::new(), warnings: Vec::new(), unasked: Vec::new() };
        let user = home.join("config.json");
        let system = settings.system_config.as_deref().map(|path| (path, ConfigLayer::System));
        for (path, layer) in system.into_iter().chain([(user.as_path(), ConfigLayer::User)]) {
            match file::read(path) {
                // It is nobody's here to correct.
                Err(error) if layer == ConfigLayer::System && error.kind == ErrorKind::PermissionDenied => {
                    config.warn(format!("{} is ignored: {}", path.display(), told(&error)));
                }
                fields => {
                    if let Some(fields) = fields? {
                        config.add(&file::flatten(&fields), layer, Some(path), true);
                    }
                }
            }
        }
        if let Some(root) = root {
            config.add_project(home, root);
        }
        config.add(&settings.environment, ConfigLayer::Environment, None, true);
        config.add(&settings.flags, ConfigLayer::Flags, None, true);
        Ok(config)
    }

    /// What stands wrong in the files.
    pub(crate) fn warnings(&self) -> &[Notice] {
        &self.warnings
    }

    fn warn(&mut self, message: String) {
        self.warnings.push(Notice::new(NoticeKind::Config, message));
    }

    /// Says that a project's file, which nobody has trusted, decides what is kept; it may, and has to be seen.
    pub(crate) fn of_what_is_kept(&self) -> Option<Notice> {
        const MOST: usize = 100;
        let mut file = None;
        let mut told = Vec::new();
        for name in &self.unasked {
            if let Some((value, ConfigLayer::Project, Some(path))) = self.values.get(name) {
                let value = value.to_string();
                let short: String = value.chars().take(MOST).collect();
                told.push(format!("{name} is {short}{}", if short.len() < value.len() { "…" } else { "" }));
                file = Some(path);
            }
        }
        let message = format!("{}, which is not trusted, decides what is kept: {}", file?.display(), told.join(", "));
        let hint = "if that is as it should be, `ah config trust`; if not, take it out of the file";
        Some(Notice::new(NoticeKind::Config, message).with_hint(hint))
    }

    /// Whether a project's file, which nobody has trusted, decides what is kept.
    pub(crate) fn is_a_strangers(&self) -> bool {
        !self.unasked.is_empty()
    }

    /// A stranger's file is no reason to fail: what is wrong with it is a warning.
    fn add_project(&mut self, home: &Home, root: &Path) {
        if is_own(home, root) {
            return;
        }
        let path = project_file(root);
        let bytes = match file::read_project(root) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return,
            Err(e) => return self.warn(format!("{} is ignored: {e}", path.display())),
        };
        match file::parse(&bytes) {
            Ok(fields) => {
                let trusted = trust::is_trusted(home, &path, &bytes);
                self.add(&file::flatten(&fields), ConfigLayer::Project, Some(&path), trusted);
            }
            Err(reason) => self.warn(format!("{} is ignored: {reason}", path.display())),
        }
    }

    fn add(&mut self, values: &ConfigValues, layer: ConfigLayer, path: Option<&Path>, trusted: bool) {
        let place = path.map_or_else(|| layer.to_string(), |path| path.display().to_string());
        let mut unknown = Vec::new();
        for (name, value) in values {
            let Some(key) = ConfigKey::find(name) else {
                unknown.push(name.as_str());
                continue;
            };
            if value.is_null() {
                continue;
            }
            if !key.project && !trusted {
                let message = format!("{place} sets {name}, which does not count in a project that is not trusted");
                let hint = "look at the file; if you trust it as it is, `ah config trust`";
                self.warnings.push(Notice::new(NoticeKind::Config, message).with_hint(hint));
                continue;
            }
            if let Err(reason) = key.check(value) {
                self.warn(format!("{place} sets {name} wrong: {reason}"));
                continue;
            }
            if layer == ConfigLayer::Project
                && key.name == "provider-path"
                && path.is_some_and(|path| lies_in_workspace(path, value))
            {
                let message = format!("{place} sets {name} to a folder in the workspace, which does not count");
                let hint = "trusted is the file, and not what comes to stand in that folder later: put the plugins into one outside of the workspace, and name that";
                self.warnings.push(Notice::new(NoticeKind::Config, message).with_hint(hint));
                continue;
            }
            let former = self.values.insert(key.name, (value.clone(), layer, path.map(Path::to_owned)));
            let is_of_what_is_kept =
                ["branch.", "capture.", "moments."].iter().any(|group| key.name.starts_with(group));
            if !trusted && is_of_what_is_kept && former.map_or_else(|| built_in(key.name), |it| it.0) != *value {
                self.unasked.push(key.name);
            }
        }
        // In one sentence: a cloned repository may set any number of them.
        let (told, more) = unknown.split_at(unknown.len().min(3));
        let told: Vec<String> = told.iter().map(|name| name.chars().take(100).collect()).collect();
        match (told.len(), more.len()) {
            (0, _) => {}
            (1, _) => self.warn(format!("{place} sets {}, which is not known", told[0])),
            (_, 0) => self.warn(format!("{place} sets {}, which are not known", told.join(", "))),
            (_, more) => self.warn(format!("{place} sets {} and {more} more, which are not known", told.join(", "))),
        }
    }

    fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key).map(|(value, ..)| value)
    }

    fn text(&self, key: &str) -> Option<&str> {
        self.get(key).and_then(Value::as_str)
    }

    fn texts(&self, key: &str) -> Vec<String> {
        let list = self.get(key).and_then(Value::as_array);
        list.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    }

    fn size(&self, key: &str) -> Option<u64> {
        self.get(key).and_then(keys::size)
    }

    /// The provider that shall serve, whatever its rank.
    pub(crate) fn provider(&self) -> Result<Option<ProviderName>> {
        self.text("provider").map(ProviderName::new).transpose()
    }

    /// Folders in which plugins are looked for first.
    pub(crate) fn provider_path(&self) -> Vec<PathBuf> {
        self.texts("provider-path").into_iter().map(PathBuf::from).collect()
    }

    /// The mode of work; none: `auto`.
    pub(crate) fn mode(&self) -> Option<Mode> {
        self.text("mode").map(Mode::from_text).filter(|mode| *mode != Mode::Unknown)
    }

    /// Attributes for every snapshot.
    pub(crate) fn labels(&self) -> BTreeMap<String, String> {
        let map = self.get("labels").and_then(Value::as_object);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        map.into_iter().flatten().map(|(key, value)| (key.clone(), text(value))).collect()
    }

    /// Whether ignored files come along into a branch.
    pub(crate) fn carry(&self) -> crate::carry::Carry {
        self.text("branch.carry").map_or(crate::carry::Carry::Auto, crate::carry::Carry::from_text)
    }

    /// How much is copied into a branch at most.
    pub(crate) fn carry_limit(&self) -> u64 {
        self.size("branch.carry-limit").unwrap_or(2 << 30)
    }

    /// The retention policy of `prune` without one, and of what runs by itself.
    pub(crate) fn prune_policy(&self) -> &str {
        self.text("prune.policy").unwrap_or(prune::DEFAULT)
    }

    /// That of recordings.
    pub(crate) fn recordings_policy(&self) -> &str {
        self.text("prune.recordings").unwrap_or(prune::DEFAULT_RECORDINGS)
    }

    /// What all stores may take together, if somebody said so.
    pub(crate) fn max_size(&self) -> Option<Share> {
        self.get("prune.max-size").and_then(keys::share)
    }

    /// What stays free on the disk, if somebody said so.
    pub(crate) fn min_free(&self) -> Option<Share> {
        self.get("prune.min-free").and_then(keys::share)
    }

    /// Whether an agent may remove things inside its own session.
    pub(crate) fn agent_may_remove(&self) -> bool {
        self.get("agent.may-remove").and_then(Value::as_bool).unwrap_or(false)
    }

    /// How often automatic snapshots are taken.
    pub(crate) fn moment_rules(&self) -> Rules {
        let span = |key, default| self.text(key).and_then(keys::duration).unwrap_or(default);
        Rules {
            window: span("moments.window", Rules::WINDOW),
            interval: span("moments.interval", Duration::ZERO),
            limit: self.get("moments.limit").and_then(Value::as_u64).unwrap_or(Rules::LIMIT),
        }
    }

    /// What is captured, but for what depends on the place.
    pub(crate) fn capture_policy(&self) -> CapturePolicy {
        let default = CapturePolicy::default();
        CapturePolicy {
            include: self.texts("capture.include"),
            exclude: self.texts("capture.exclude"),
            max_file_size: self.size("capture.max-file-size").unwrap_or(default.max_file_size),
            max_ignored_size: self.size("capture.max-ignored-size").unwrap_or(default.max_ignored_size),
            max_entries: self.get("capture.max-entries").and_then(Value::as_u64).unwrap_or(default.max_entries),
            ..default
        }
    }

    fn entry(&self, key: &ConfigKey) -> ConfigEntry {
        let (value, layer, file) =
            self.values.get(key.name).cloned().unwrap_or_else(|| (built_in(key.name), ConfigLayer::Default, None));
        ConfigEntry { key: key.name.to_owned(), value, layer, file, help: key.help.to_owned() }
    }
}

fn built_in(key: &str) -> Value {
    let policy = CapturePolicy::default();
    match key {
        "branch.carry" | "mode" => Value::from("auto"),
        "branch.carry-limit" => Value::from(2u64 << 30),
        "capture.exclude" | "capture.include" | "provider-path" => Value::Array(Vec::new()),
        "capture.max-entries" => Value::from(policy.max_entries),
        "capture.max-file-size" => Value::from(policy.max_file_size),
        "capture.max-ignored-size" => Value::from(policy.max_ignored_size),
        "agent.may-remove" => Value::from(false),
        "moments.window" => Value::from(format!("{}ms", Rules::WINDOW.as_millis())),
        "moments.interval" => Value::from("0s"),
        "moments.limit" => Value::from(Rules::LIMIT),
        "prune.min-free" => Value::from("10%"),
        "prune.policy" => Value::from(prune::DEFAULT),
        "prune.recordings" => Value::from(prune::DEFAULT_RECORDINGS),
        "labels" => Value::Object(serde_json::Map::new()),
        _ => Value::Null,
    }
}

/// Whether one of these folders lies in the workspace whose file this is, though it may not be there yet.
fn lies_in_workspace(project_file: &Path, folders: &Value) -> bool {
    let real = |path: &Path| path.ancestors().find_map(|path| std::fs::canonicalize(path).ok());
    let root = project_file.ancestors().nth(2).and_then(real);
    let mut folders = folders.as_array().into_iter().flatten().filter_map(Value::as_str);
    // What cannot be told does not count.
    root.is_none_or(|root| folders.any(|folder| real(Path::new(folder)).is_none_or(|folder| folder.starts_with(&root))))
}

/// Where a project's file is.
pub(crate) fn project_file(root: &Path) -> PathBuf {
    root.join(".ah/config.json")
}

/// Whether what stands in the place of a project's folder, or file, is ah's own, as it is in a home directory: then there is no project's.
fn is_own(home: &Home, root: &Path) -> bool {
    let id = |path: &Path| std::fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    let is_same = |own: &Path, other: &Path| id(own).is_some_and(|own| Some(own) == id(other));
    is_same(home.path(), &root.join(".ah")) || is_same(&home.join("config.json"), &project_file(root))
}

/// So much alike is a name that was only mistyped.
const ALIKE: f64 = 0.9;

fn unknown_key(key: &str) -> Error {
    let alike = |known: &&ConfigKey| strsim::jaro_winkler(known.name, &key.to_lowercase());
    let nearest = ConfigKey::all().iter().max_by(|a, b| alike(a).total_cmp(&alike(b)));
    let hint = match nearest.filter(|known| alike(known) > ALIKE) {
        Some(known) => format!("did you mean {}? `ah config list` shows all of them", known.name),
        None => "ah config list".to_owned(),
    };
    Error::new(ErrorKind::InvalidArgument, format!("there is no configuration key {key:?}")).with_hint(hint)
}
