//! Where providers come from: plugins (loaded by `ah-host`), the privileged helper (connected by `ah-host`), or given by the caller.

use std::path::PathBuf;
use std::sync::Arc;

use ah_plugin_api::{Error, ErrorKind, Provider, ProviderName, Result};
use serde::Serialize;

use crate::engine::Engine;
use crate::fsio;
use crate::notice::{Notice, NoticeKind};
use crate::text;

/// A plugin that was not loaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RefusedPlugin {
    /// The file.
    #[serde(with = "text::abs")]
    pub path: PathBuf,
    /// What kind of fault it is, in one word.
    pub code: String,
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
    /// The library it was loaded from; none for one of the helper's.
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
    /// Plugins: looked for in these folders first, then in those of the configuration (`provider-path`), beside the program
    /// ([`crate::Settings::exe_dir`]) and in the system's.
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

impl Engine {
    /// All providers at hand, loaded the first time that somebody asks. `config_path` are the folders that the configuration names.
    pub(crate) fn providers(&self, config_path: impl FnOnce() -> Vec<PathBuf>) -> &ProviderSet {
        self.inner.providers.get_or_init(|| match &self.settings().providers {
            ProviderSource::Given(set) => set.clone(),
            ProviderSource::Plugins(folders) => {
                let mut explicit = folders.clone();
                explicit.extend(config_path());
                self.load_plugins(explicit)
            }
        })
    }

    fn load_plugins(&self, explicit: Vec<PathBuf>) -> ProviderSet {
        let state = self.home().join("plugins");
        let options = ah_host::Options {
            search: ah_host::Search { explicit, exe_dir: self.settings().exe_dir.clone(), system: true },
            state: fsio::make_dir(&state).is_ok().then_some(state),
            limit: Some(self.settings().hang),
        };
        let host = ah_host::load(&options);
        let providers = host.plugins.into_iter().map(|plugin| ServedProvider {
            name: plugin.description.name,
            provider: plugin.provider,
            path: Some(plugin.path),
        });
        let refused = host.report.into_iter().filter_map(|report| match report.outcome {
            ah_host::Outcome::Loaded { .. } => None,
            ah_host::Outcome::Failed(fault) => Some(RefusedPlugin {
                code: fault.code().to_owned(),
                reason: fault.to_string(),
                remedy: fault.hint(&report.path),
                path: report.path,
            }),
        });
        let mut set = ProviderSet { providers: providers.collect(), refused: refused.collect() };
        set.providers.extend(self.helped());
        // One that another of its name came before is what `--provider-path` is for, and listed where plugins are.
        for refused in set.refused.iter().filter(|refused| refused.code != "duplicate") {
            let message = format!("the plugin {} is not used: {}", refused.path.display(), refused.reason);
            let mut notice = Notice::new(NoticeKind::Plugin, message);
            notice.hint.clone_from(&refused.remedy);
            self.notify(notice);
        }
        set
    }

    /// The providers of the privileged helper. One that is there and cannot be used is a notice.
    fn helped(&self) -> Vec<ServedProvider> {
        let Some(at) = &self.settings().helper else { return Vec::new() };
        let limit = self.settings().hang;
        let helper = ah_host::helper::Helper { socket: at.path.clone(), named: at.named, limit };
        let offered = ah_host::helper::load(&helper).unwrap_or_else(|error| {
            let causes = error.causes.iter().fold(String::new(), |text, cause| format!("{text}: {cause}"));
            let mut notice = Notice::new(NoticeKind::Plugin, format!("{error}{causes}"));
            notice.hint.clone_from(&error.hint);
            self.notify(notice);
            Vec::new()
        });
        let served = |(description, provider): (ah_plugin_api::Description, _)| ServedProvider {
            name: description.name,
            provider,
            path: None,
        };
        offered.into_iter().map(served).collect()
    }

    /// The providers at hand when no workspace's configuration counts.
    ///
    /// # Errors
    /// If the configuration cannot be read.
    pub fn all_providers(&self) -> Result<&ProviderSet> {
        let config = self.config(None)?;
        Ok(self.providers(|| config.provider_path()))
    }

    /// The provider of that name.
    pub(crate) fn provider(&self, name: &ProviderName) -> Result<Arc<dyn Provider>> {
        let set = self.all_providers()?;
        if let Some(served) = set.providers.iter().find(|served| served.name == *name) {
            return Ok(Arc::clone(&served.provider));
        }
        let mut error = Error::new(ErrorKind::Unavailable, format!("the provider {name} is not there"));
        let file = format!("libah_provider_{name}.so");
        for refused in set.refused.iter().filter(|refused| refused.path.ends_with(&file)) {
            error.causes.push(format!("{}: {}", refused.path.display(), refused.reason));
        }
        if name.as_str().ends_with("_ahd") {
            return Err(
                error.with_hint("it is the helper's: `systemctl start ahd.socket`, or as it was started before")
            );
        }
        Err(error
            .with_hint("ah agent fs providers lists what was found, and where; `--provider-path DIR` adds a folder"))
    }
}
