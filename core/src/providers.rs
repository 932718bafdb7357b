//! Where providers come from: loaded plugins (by `ah-host`), or given by the caller.

use std::path::PathBuf;
use std::sync::Arc;

use ah_plugin_api::{Provider, ProviderName};
use serde::Serialize;

use crate::text;

/// A plugin that was not loaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RefusedPlugin {
    /// The file.
    #[serde(with = "text::abs")]
    pub path: PathBuf,
    /// Why not.
    pub reason: String,
    /// What would make it load.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// A provider at hand.
#[derive(Clone)]
pub struct ServedProvider {
    /// Its name.
    pub name: ProviderName,
    /// The provider itself.
    pub provider: Arc<dyn Provider>,
    /// The library it was loaded from.
    pub path: Option<PathBuf>,
}

/// All providers at hand.
#[derive(Clone, Default)]
pub struct ProviderSet {
    /// Those that can be asked.
    pub providers: Vec<ServedProvider>,
    /// Those that were not loaded.
    pub refused: Vec<RefusedPlugin>,
}

/// Where providers come from. Nothing is loaded before somebody is needed.
#[derive(Clone)]
pub enum ProviderSource {
    /// Plugins, looked for in these folders in this order (after those of the configuration).
    Plugins(Vec<PathBuf>),
    /// Providers of the caller's; for tests.
    Given(ProviderSet),
}

impl ProviderSet {
    /// A set of providers of the caller's own.
    #[must_use]
    pub fn of(providers: Vec<Arc<dyn Provider>>) -> Self {
        let providers = providers
            .into_iter()
            .map(|provider| ServedProvider { name: provider.describe().name, provider, path: None })
            .collect();
        Self { providers, refused: Vec::new() }
    }
}
