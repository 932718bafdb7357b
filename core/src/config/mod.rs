//! Configuration: system, user, project, environment, flags; the later wins.
//!
//! A project's file may set labels, includes, excludes and caps only, unless it is trusted as it is.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;

use crate::text::{self, text_enum};

/// Values by key: `provider`, `capture.exclude`, ….
pub type ConfigValues = BTreeMap<String, serde_json::Value>;

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

/// A key that there is.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct ConfigKey {
    /// Its name.
    pub name: &'static str,
    /// What it is for, one sentence.
    pub help: &'static str,
    /// Whether an untrusted project may set it.
    pub project: bool,
}

/// A value in force.
#[derive(Debug, Clone, Serialize)]
pub struct ConfigEntry {
    /// Its key.
    pub key: String,
    /// The value; null: none.
    pub value: serde_json::Value,
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
}
