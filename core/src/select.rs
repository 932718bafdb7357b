//! Which provider serves a workspace: by rank or by name, with a verdict on each.
//!
//! A provider serves if it says that it can here, in the wanted mode of work, and that this user can delete again what it makes.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;

use ah_plugin_api::{Context, Dir, Error, ErrorKind, Mode, Place, ProbeRequest, ProviderName, Result};
use serde::Serialize;

use crate::config::Config;
use crate::engine::Engine;
use crate::fsio;
use crate::providers::ServedProvider;
use crate::text;
use crate::workspace::{Served, Workspace};

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
    /// What `ah agent fs convert` would make better here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub convertible: Option<String>,
    /// The modes of work that it can serve here.
    pub modes: Vec<Mode>,
    /// The library it was loaded from.
    #[serde(with = "text::abs_option", skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
}

/// What is wanted of a provider at one place.
pub(crate) struct Wanted {
    named: Option<ProviderName>,
    /// None: whatever serves the directory where it is.
    mode: Option<Mode>,
}

impl Wanted {
    pub(crate) fn of(config: &Config) -> Result<Self> {
        Ok(Self { named: config.provider()?, mode: config.mode() })
    }

    /// Those that come into question, the best first.
    fn order<'a>(&self, all: &'a [ServedProvider]) -> Vec<&'a ServedProvider> {
        if let Some(named) = &self.named {
            return all.iter().filter(|served| served.name == *named).collect();
        }
        let mut ranked: Vec<_> = all.iter().filter_map(|s| Some((s.provider.describe().rank?, s))).collect();
        ranked.sort_by(|(a, one), (b, other)| (b, &one.name).cmp(&(a, &other.name)));
        ranked.into_iter().map(|(_, served)| served).collect()
    }

    /// Asks one provider.
    fn ask(&self, served: &ServedProvider, place: &Place<'_>, cx: &Context<'_>) -> Candidate {
        let description = served.provider.describe();
        let mut verdict = Candidate {
            name: served.name.clone(),
            version: description.version,
            rank: description.rank,
            usable: false,
            chosen: false,
            reason: String::new(),
            remedy: None,
            convertible: None,
            modes: Vec::new(),
            path: served.path.clone(),
        };
        match served.provider.probe(place, &ProbeRequest { mode: self.mode }, cx) {
            Err(error) => {
                verdict.reason = format!("it cannot say: {error}");
                verdict.remedy = error.hint;
            }
            Ok(probe) => {
                let mode = self.mode.unwrap_or(Mode::InPlace);
                let serves = probe.modes.is_empty() || probe.modes.contains(&mode);
                verdict.usable = probe.usable && probe.can_delete && serves;
                verdict.modes = probe.modes.into_iter().collect();
                verdict.remedy = probe.remedy;
                verdict.convertible = probe.convertible;
                verdict.reason = match (probe.usable, serves, probe.can_delete) {
                    (true, false, _) => format!("it cannot work {mode} here"),
                    (true, true, false) => format!("you could not delete again what it makes ({})", probe.reason),
                    _ => probe.reason,
                };
            }
        }
        verdict
    }
}

impl Engine {
    /// All verdicts on a directory, by rank, those without a rank last. `store` gives the folder to ask with.
    pub(crate) fn verdicts(
        &self,
        config: &Config,
        workspace: &Dir,
        store: impl Fn(&ProviderName) -> Result<Dir>,
    ) -> Result<Vec<Candidate>> {
        let set = self.providers(|| config.provider_path());
        let wanted = Wanted::of(config)?;
        let cx = Context::new(&*self.settings().observer);
        let mut verdicts = Vec::new();
        for served in &set.providers {
            let store = store(&served.name)?;
            verdicts.push(wanted.ask(served, &Place::new(&store).with_workspace(workspace), &cx));
        }
        verdicts.sort_by(|a, b| (b.rank, &a.name).cmp(&(a.rank, &b.name)));
        let order = wanted.order(&set.providers);
        let serves =
            |verdict: &&mut Candidate| verdict.usable && order.iter().any(|served| served.name == verdict.name);
        if let Some(first) = verdicts.iter_mut().find(serves) {
            first.chosen = true;
        }
        Ok(verdicts)
    }

    /// An empty folder to ask providers with that have no store yet.
    pub(crate) fn scratch_store(&self) -> Result<Dir> {
        fsio::open_made(&self.home().join("tmp").join("probe"))
    }
}

/// Providers in the order in which they come into question, asked one after the other as they are needed.
pub(crate) struct Choices<'a> {
    workspace: &'a Workspace,
    dir: Dir,
    wanted: Wanted,
    waiting: VecDeque<&'a ServedProvider>,
    /// What those that were asked said.
    pub(crate) verdicts: Vec<Candidate>,
}

impl Choices<'_> {
    /// The next one that can serve.
    pub(crate) fn next_usable(&mut self) -> Result<Option<Served>> {
        self.next_that(|_, verdict| verdict.usable)
    }

    /// The next one of which that is true.
    pub(crate) fn next_that(&mut self, wanted: impl Fn(&ServedProvider, &Candidate) -> bool) -> Result<Option<Served>> {
        while let Some(served) = self.waiting.pop_front() {
            let path = self.workspace.store_path(&served.name);
            let existing = path.is_dir().then(|| Dir::open(path)).transpose()?;
            let store = existing.map_or_else(|| self.workspace.engine.scratch_store(), Ok)?;
            let place = Place::new(&store).with_workspace(&self.dir);
            let verdict = self.wanted.ask(served, &place, &self.workspace.context());
            let it_is = wanted(served, &verdict);
            self.verdicts.push(verdict);
            if it_is {
                let store = Arc::new(fsio::open_made(&self.workspace.store_path(&served.name))?);
                let provider = Arc::clone(&served.provider);
                return Ok(Some(Served { name: served.name.clone(), provider, store }));
            }
        }
        Ok(None)
    }

    /// The error when there is none.
    pub(crate) fn nobody(&self) -> Error {
        let root = self.workspace.root().display();
        let mut error = Error::new(ErrorKind::Unavailable, format!("no provider can serve {root}"));
        for verdict in &self.verdicts {
            error.causes.push(format!("{}: {}", verdict.name, verdict.reason));
        }
        if self.verdicts.is_empty() {
            error.causes.push("no provider was found".to_owned());
        }
        let remedy = self.verdicts.iter().find_map(|verdict| verdict.remedy.clone());
        error.with_hint(remedy.unwrap_or_else(|| "ah agent fs status".to_owned()))
    }
}

impl Workspace {
    /// The providers that come into question here.
    pub(crate) fn choices(&self, config: &Config) -> Result<Choices<'_>> {
        let wanted = Wanted::of(config)?;
        let set = self.engine.providers(|| config.provider_path());
        if let Some(named) = &wanted.named
            && !set.providers.iter().any(|served| served.name == *named)
        {
            // For the error that says where it was looked for.
            self.engine.provider(named)?;
        }
        let waiting = wanted.order(&set.providers).into();
        Ok(Choices { workspace: self, dir: self.open_dir()?, wanted, waiting, verdicts: Vec::new() })
    }
}
