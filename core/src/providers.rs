//! Where providers come from: plugins (loaded by `ah-host`), the privileged helper (connected by `ah-host`), or given by the caller.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use ah_host::helper::{self, Helper, Patience};
use ah_plugin_api::{Context, Description, Error, ErrorKind, Provider, ProviderName, Result};
use serde::Serialize;

use crate::engine::Engine;
use crate::fsio;
use crate::moments::told;
use crate::notice::{Notice, NoticeKind};
use crate::select::HELPERS;
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

/// The privileged helper, where it is there and cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UnusedHelper {
    /// Its socket.
    #[serde(with = "text::abs")]
    pub path: PathBuf,
    /// What kind of error it is.
    pub kind: ErrorKind,
    /// Why not.
    pub reason: String,
    /// What would help.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// What came of asking the privileged helper.
#[derive(Default)]
pub(crate) struct Helped {
    /// What it offers; nothing if there is none.
    pub(crate) providers: Vec<ServedProvider>,
    /// Why it does not, though it is there.
    pub(crate) error: Option<Error>,
}

/// A provider at hand, loaded when it is first called.
#[derive(Clone)]
pub struct ServedProvider {
    /// Its name.
    pub name: ProviderName,
    /// Its library; none for one of the helper's.
    pub path: Option<PathBuf>,
    /// Its place in the order; none: used only by name.
    pub(crate) rank: Option<u32>,
    /// Where it can serve at all, as in [`Description`].
    pub(crate) filesystems: BTreeSet<u32>,
    source: Source,
}

#[derive(Clone)]
enum Source {
    Loaded(Arc<dyn Provider>),
    Prospect(Arc<Later>),
}

struct Later {
    prospect: ah_host::Prospect,
    loaded: OnceLock<std::result::Result<Arc<dyn Provider>, RefusedPlugin>>,
}

impl ServedProvider {
    fn loaded(description: Description, provider: Arc<dyn Provider>, path: Option<PathBuf>) -> Self {
        let Description { name, rank, filesystems, .. } = description;
        Self { name, path, rank, filesystems, source: Source::Loaded(provider) }
    }

    fn later(prospect: ah_host::Prospect) -> Self {
        let ah_host::Known { name, rank, filesystems } = prospect.known.clone();
        let path = Some(prospect.path.clone());
        let later = Later { prospect, loaded: OnceLock::new() };
        Self { name, path, rank, filesystems, source: Source::Prospect(Arc::new(later)) }
    }

    fn load(&self) -> std::result::Result<Arc<dyn Provider>, RefusedPlugin> {
        match &self.source {
            Source::Loaded(provider) => Ok(Arc::clone(provider)),
            Source::Prospect(later) => later
                .loaded
                .get_or_init(|| match later.prospect.load() {
                    Ok(plugin) => Ok(plugin.provider),
                    Err(fault) => Err(RefusedPlugin::of(later.prospect.path.clone(), &fault)),
                })
                .clone(),
        }
    }

    /// The provider itself.
    ///
    /// # Errors
    /// `Unavailable` if its library cannot be loaded any more.
    pub fn provider(&self) -> Result<Arc<dyn Provider>> {
        self.load().map_err(|refused| {
            let error = Error::new(ErrorKind::Unavailable, refused.to_string());
            match refused.remedy {
                Some(remedy) => error.with_hint(remedy),
                None => error,
            }
        })
    }
}

impl RefusedPlugin {
    fn of(path: PathBuf, fault: &ah_host::Fault) -> Self {
        Self { code: fault.code().to_owned(), reason: fault.to_string(), remedy: fault.hint(&path), path }
    }
}

impl fmt::Display for RefusedPlugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the plugin {} is not used: {}", self.path.display(), self.reason)
    }
}

/// Providers at hand.
#[derive(Clone, Default)]
pub struct ProviderSet {
    /// Those that can be asked.
    pub providers: Vec<ServedProvider>,
    /// Those that were not loaded.
    pub refused: Vec<RefusedPlugin>,
    /// The helper, if it is there and cannot be used.
    pub helper: Option<UnusedHelper>,
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
        let served = |provider: Arc<dyn Provider>| ServedProvider::loaded(provider.describe(), provider, None);
        Self { providers: providers.into_iter().map(served).collect(), ..Self::default() }
    }

    pub(crate) fn get(&self, name: &ProviderName) -> Option<&ServedProvider> {
        self.providers.iter().find(|served| served.name == *name)
    }
}

impl Engine {
    /// The plugins, looked for the first time that somebody asks. `config_path` are the folders that the configuration names.
    pub(crate) fn plugins(&self, config_path: impl FnOnce() -> Vec<PathBuf>) -> &ProviderSet {
        self.inner.plugins.get_or_init(|| match &self.settings().providers {
            ProviderSource::Given(set) => set.clone(),
            ProviderSource::Plugins(folders) => {
                let mut explicit = folders.clone();
                explicit.extend(config_path());
                self.look_for_plugins(explicit)
            }
        })
    }

    /// The library of a provider that has been looked for.
    pub(crate) fn library_of(&self, name: &ProviderName) -> Option<PathBuf> {
        self.inner.plugins.get()?.get(name)?.path.clone()
    }

    fn look_for_plugins(&self, explicit: Vec<PathBuf>) -> ProviderSet {
        let state = self.home().join("plugins");
        let options = ah_host::Options {
            search: self.search(explicit),
            state: fsio::make_dir(&state).is_ok().then_some(state),
            limit: Some(self.settings().hang),
        };
        let host = ah_host::look(&options);
        let loaded = host
            .plugins
            .into_iter()
            .map(|plugin| ServedProvider::loaded(plugin.description, plugin.provider, Some(plugin.path)));
        let providers = loaded.chain(host.prospects.into_iter().map(ServedProvider::later)).collect();
        let refused = host.report.into_iter().filter_map(|report| match report.outcome {
            ah_host::Outcome::Loaded { .. } => None,
            ah_host::Outcome::Failed(fault) => Some(RefusedPlugin::of(report.path, &fault)),
        });
        let refused: Vec<_> = refused.collect();
        for refused in &refused {
            self.tell_of(refused);
        }
        ProviderSet { providers, refused, helper: None }
    }

    fn search(&self, explicit: Vec<PathBuf>) -> ah_host::Search {
        ah_host::Search { explicit, exe_dir: self.settings().exe_dir.clone(), system: true }
    }

    /// Where plugins are looked for, first to last, at a workspace's root.
    ///
    /// # Errors
    /// If the configuration cannot be read.
    pub fn looked_in(&self, root: &std::path::Path) -> Result<Vec<PathBuf>> {
        let ProviderSource::Plugins(folders) = &self.settings().providers else { return Ok(Vec::new()) };
        let mut explicit = folders.clone();
        explicit.extend(self.config(Some(root))?.provider_path());
        Ok(self.search(explicit).paths())
    }

    fn tell_of(&self, refused: &RefusedPlugin) {
        // One that another of its name came before is what `--provider-path` is for, and listed where plugins are.
        if refused.code != "duplicate" {
            let mut notice = Notice::new(NoticeKind::Plugin, refused.to_string());
            notice.hint.clone_from(&refused.remedy);
            self.notify(notice);
        }
    }

    /// What the privileged helper offers, asked the first time that somebody needs it: one that has too much to do is waited for, as others are
    /// that hold something. It is for who asks to say why one that is there offers nothing.
    pub(crate) fn helped(&self) -> &Helped {
        self.inner.helped.get_or_init(|| {
            let settings = self.settings();
            let Some(at) = &settings.helper else { return Helped::default() };
            let helper = Helper { socket: at.path.clone(), named: at.named, limit: settings.hang };
            let patience = Patience { each: settings.patience, until: settings.deadline };
            let served = |(description, provider)| ServedProvider::loaded(description, provider, None);
            match helper::load_patiently(&helper, patience, &Context::new(&*settings.observer)) {
                Ok(offered) => Helped { providers: offered.into_iter().map(served).collect(), error: None },
                Err(error) => Helped { providers: Vec::new(), error: Some(error) },
            }
        })
    }

    /// Says that the helper is there and not used.
    pub(crate) fn tell_unused(&self, error: &Error) {
        let notice = Notice::new(NoticeKind::Helper, told(error));
        self.notify(error.hint.iter().fold(notice, Notice::with_hint));
    }

    /// All providers, the helper's too, every plugin loaded. `config_path` as in [`Engine::plugins`].
    pub(crate) fn providers(&self, config_path: impl FnOnce() -> Vec<PathBuf>) -> ProviderSet {
        let mut set = self.plugins(config_path).clone();
        set.providers.retain(|served| match served.load() {
            Ok(_) => true,
            Err(refused) => {
                self.tell_of(&refused);
                set.refused.push(refused);
                false
            }
        });
        let Helped { providers, error } = self.helped();
        set.providers.extend_from_slice(providers);
        if let (Some(error), Some(at)) = (error, &self.settings().helper) {
            self.tell_unused(error);
            let (path, kind, remedy) = (at.path.clone(), error.kind, error.hint.clone());
            set.helper = Some(UnusedHelper { path, kind, reason: told(error), remedy });
        }
        set
    }

    /// The providers at hand when no workspace's configuration counts, every plugin loaded.
    ///
    /// # Errors
    /// If the configuration cannot be read.
    pub fn all_providers(&self) -> Result<ProviderSet> {
        let config = self.config(None)?;
        Ok(self.providers(|| config.provider_path()))
    }

    /// The provider of that name.
    pub(crate) fn provider(&self, name: &ProviderName) -> Result<Arc<dyn Provider>> {
        let config = self.config(None)?;
        let set = self.plugins(|| config.provider_path());
        let its = || self.helped().providers.iter().find(|served| served.name == *name);
        if let Some(served) = set.get(name).or_else(its) {
            return served.provider();
        }
        let mut error = Error::new(ErrorKind::Unavailable, format!("the provider {name} is not there"));
        let file = format!("libah_provider_{name}.so");
        for refused in set.refused.iter().filter(|refused| refused.path.ends_with(&file)) {
            error.causes.push(format!("{}: {}", refused.path.display(), refused.reason));
        }
        if name.as_str().ends_with(HELPERS) {
            if let Some(error) = &self.helped().error {
                return Err(error
                    .clone()
                    .context(format!("the provider {name}, which is the helper's, cannot be asked")));
            }
            return Err(
                error.with_hint("it is the helper's: `systemctl start ahd.socket`, or as it was started before")
            );
        }
        Err(error
            .with_hint("ah agent fs providers lists what was found, and where; `--provider-path DIR` adds a folder"))
    }
}
