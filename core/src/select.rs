//! Which provider serves a workspace: by rank, by name, with a verdict on each.

use std::path::PathBuf;

use ah_plugin_api::{Mode, ProviderName};
use serde::Serialize;

use crate::text;

/// A provider's verdict on a workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Candidate {
    /// Its name.
    pub name: ProviderName,
    /// Its version.
    pub version: String,
    /// Its place in the order; none: used only by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// Whether it could serve.
    pub usable: bool,
    /// Whether it is the one that serves.
    pub chosen: bool,
    /// Why, or why not.
    pub reason: String,
    /// What would make it usable, or better.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// The modes of work that it can serve here.
    pub modes: Vec<Mode>,
    /// The library it was loaded from.
    #[serde(with = "text::abs_option", skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
}
