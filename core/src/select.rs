//! Which provider serves a workspace: by rank or by name, with a verdict on each.
//!
//! A provider serves if it says that it can here, in the wanted mode of work, and that this user can delete again what it makes. Who captures
//! the workspace where it is need not be who new branches of it grow by: one may be able to do only the latter, and do it better.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;

use ah_plugin_api::wire::Op;
use ah_plugin_api::{Context, Dir, Error, ErrorKind, Mode, Place, ProbeRequest, Provider, ProviderName, Result};
use serde::Serialize;

use crate::config::Config;
use crate::convert::convert_command;
use crate::engine::Engine;
use crate::fsio;
use crate::moments::{Attempt, told};
use crate::providers::{Helped, ServedProvider};
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
    /// Whether it could serve, be it for new branches alone.
    pub usable: bool,
    /// Whether it is the one that captures the workspace.
    pub chosen: bool,
    /// Whether it is the one by which new branches of the present state grow.
    pub branches: bool,
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
    /// For what it could serve.
    #[serde(skip)]
    serves: Vec<Purpose>,
    /// Why it said nothing.
    #[serde(skip)]
    failed: Option<Error>,
}

/// What a provider is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To capture the workspace where it is.
    Capture,
    /// To capture what a branch is to grow from, and to grow it.
    Branch,
}

/// What is wanted of a provider at one place.
pub(crate) struct Wanted {
    named: Option<ProviderName>,
    /// None: `auto`.
    mode: Option<Mode>,
    /// Whether the workspace is shown at another path than its own (`exec`).
    elsewhere: bool,
    /// Whether a person reads the verdicts.
    thorough: bool,
}

impl Wanted {
    fn of(config: &Config, elsewhere: bool) -> Result<Self> {
        Ok(Self { named: config.provider()?, mode: config.mode(), elsewhere, thorough: false })
    }

    /// The modes of work that serve a purpose, each as well as the others.
    fn modes(&self, purpose: Purpose) -> &[Mode] {
        match (purpose, &self.mode) {
            // It says how branches are to be made.
            (Purpose::Capture, None | Some(Mode::CowOverlay)) => &[Mode::InPlace],
            // Left alone, they grow by the best there is. Who captures the workspace may have nothing more to say of how.
            (Purpose::Branch, None) => &[Mode::InPlace, Mode::Worktree, Mode::CowOverlay],
            (_, Some(mode)) => std::slice::from_ref(mode),
        }
    }

    /// Of `all`, those that come into question for a workspace on that filesystem, the best first. At the end come those that
    /// can serve on other filesystems only: for what they say when nobody can serve.
    fn order(&self, all: &[ServedProvider], filesystem: u32) -> VecDeque<ServedProvider> {
        if let Some(named) = &self.named {
            return all.iter().filter(|served| served.name == *named).cloned().collect();
        }
        let mut ranked: Vec<_> = all.iter().filter(|served| served.rank.is_some()).cloned().collect();
        let elsewhere = |s: &ServedProvider| !s.filesystems.is_empty() && !s.filesystems.contains(&filesystem);
        ranked.sort_by(|a, b| (elsewhere(a), b.rank, &a.name).cmp(&(elsewhere(b), a.rank, &b.name)));
        ranked.into()
    }

    /// Asks one provider, for one purpose alone or for all.
    fn ask(&self, served: &ServedProvider, place: &Place<'_>, purpose: Option<Purpose>, cx: &Context<'_>) -> Candidate {
        let mut verdict = Candidate {
            name: served.name.clone(),
            version: String::new(),
            rank: served.rank,
            usable: false,
            chosen: false,
            branches: false,
            reason: String::new(),
            remedy: None,
            convertible: None,
            modes: Vec::new(),
            path: served.path.clone(),
            serves: Vec::new(),
            failed: None,
        };
        let probed = served.provider().and_then(|provider| {
            verdict.version = provider.describe().version;
            // Without a purpose, or of several that would do, which it can serve is to be told.
            let mode = match purpose.map_or(&[][..], |purpose| self.modes(purpose)) {
                [mode] => Some(*mode),
                _ => None,
            };
            provider.probe(place, &ProbeRequest { mode, thorough: self.thorough }, cx)
        });
        match probed {
            Err(error) => {
                verdict.reason = format!("it cannot say: {error}");
                verdict.remedy.clone_from(&error.hint);
                verdict.failed = Some(error);
            }
            Ok(probe) => {
                // A branch over a plain directory goes on reading there, at a path that must be everybody's.
                let can = |mode: &Mode| {
                    let apart = *mode != Mode::CowOverlay || probe.modes.contains(&Mode::InPlace) || !self.elsewhere;
                    (probe.modes.is_empty() || probe.modes.contains(mode)) && apart
                };
                let served = |purpose: &Purpose| self.modes(*purpose).iter().any(can);
                let serves: Vec<_> = [Purpose::Capture, Purpose::Branch].into_iter().filter(served).collect();
                // By itself only what this user can delete again; who names one is served all the same.
                let deletes = probe.can_delete || self.named.is_some();
                verdict.reason = match (probe.usable, serves.is_empty(), deletes) {
                    (true, true, _) if self.elsewhere => "it cannot work on what is shown at another path".to_owned(),
                    (true, true, _) => format!("it cannot work {} here", self.mode.unwrap_or(Mode::InPlace)),
                    (true, false, false) => format!("you could not delete again what it makes ({})", probe.reason),
                    _ => probe.reason,
                };
                verdict.usable = probe.usable && deletes && !serves.is_empty();
                verdict.serves = if verdict.usable { serves } else { Vec::new() };
                verdict.modes = probe.modes.into_iter().collect();
                verdict.remedy = probe.remedy;
                verdict.convertible = probe.convertible;
            }
        }
        verdict
    }
}

impl Candidate {
    fn can(&self, purpose: Purpose) -> bool {
        self.serves.contains(&purpose)
    }

    /// Whether it says that it makes no branches here.
    fn lacks_branches(&self) -> bool {
        let makes_them = |mode: &Mode| matches!(mode, Mode::Worktree | Mode::CowOverlay);
        !self.modes.is_empty() && !self.modes.iter().any(makes_them)
    }

    /// Whether this one, usable as it is, gives way to the helper's of the same kind: it makes no branches here, and that does.
    fn gives_way_to(&self, other: &Self) -> bool {
        other.name.as_str() == helpers(&self.name)
            && other.can(Purpose::Capture)
            && self.lacks_branches()
            && !other.lacks_branches()
    }
}

/// How the names of the helper's providers end.
pub(crate) const HELPERS: &str = "_ahd";

/// The name of the helper's provider that does what `name` does.
pub(crate) fn helpers(name: &ProviderName) -> String {
    format!("{name}{HELPERS}")
}

impl Engine {
    /// All verdicts on a directory, by rank, those without a rank last. `elsewhere`: it is shown at another path than its own. `store` gives the folder to ask with.
    pub(crate) fn verdicts(
        &self,
        config: &Config,
        workspace: &Dir,
        elsewhere: bool,
        store: impl Fn(&ProviderName) -> Result<Dir>,
    ) -> Result<Vec<Candidate>> {
        let set = self.providers(|| config.provider_path());
        let wanted = Wanted { thorough: true, ..Wanted::of(config, elsewhere)? };
        let cx = Context::new(&*self.settings().observer);
        let mut verdicts = Vec::new();
        for served in &set.providers {
            let store = store(&served.name)?;
            verdicts.push(wanted.ask(served, &Place::new(&store).with_workspace(workspace), None, &cx));
        }
        verdicts.sort_by(|a, b| (b.rank, &a.name).cmp(&(a.rank, &b.name)));
        let order = wanted.order(&set.providers, filesystem(workspace)?);
        let serves = |verdict: &Candidate, purpose| {
            verdict.can(purpose) && order.iter().any(|served| served.name == verdict.name)
        };
        let captures = |verdict: &Candidate| serves(verdict, Purpose::Capture);
        let first = verdicts.iter().position(captures);
        let gives_way = |first: usize| {
            verdicts.iter().position(|other| captures(other) && verdicts[first].gives_way_to(other)).unwrap_or(first)
        };
        let chosen = first.map(gives_way);
        let grows = verdicts.iter().position(|verdict| serves(verdict, Purpose::Branch));
        chosen.into_iter().for_each(|at| verdicts[at].chosen = true);
        grows.into_iter().for_each(|at| verdicts[at].branches = true);
        // What the helper does already needs no remedy. Where it cannot, it says best what would help: that it should be set up is no advice.
        let said = |other: &&Candidate| other.usable || other.remedy.is_some();
        let helping: Vec<_> = verdicts.iter().filter(said).map(|other| other.name.clone()).collect();
        for verdict in &mut verdicts {
            let helped = helping.iter().any(|name| name.as_str() == helpers(&verdict.name));
            // Nor is it where it is there and cannot say.
            let names_it = |remedy: &String| set.helper.is_some() && remedy.contains("`ahd`");
            verdict.remedy = verdict.remedy.take().filter(|remedy| !helped && !names_it(remedy));
        }
        Ok(verdicts)
    }

    /// An empty folder to ask providers with that have no store yet.
    pub(crate) fn scratch_store(&self) -> Result<Dir> {
        fsio::open_made(&self.home().join("tmp").join("probe"))
    }
}

/// Whether the helper is only too busy, or too slow: what it refuses for good says nothing that changes by waiting.
fn passes(error: &Error) -> bool {
    matches!(error.kind, ErrorKind::ResourceExhausted | ErrorKind::Unavailable)
}

/// What `statfs` calls the filesystem of a directory.
fn filesystem(dir: &Dir) -> Result<u32> {
    let stat =
        rustix::fs::fstatfs(dir).map_err(|e| Error::from_io("cannot ask which filesystem this is", &e.into()))?;
    // The numbers have 32 bits; the type that the kernel's interface has for them differs from machine to machine.
    Ok(stat.f_type as u32)
}

/// Providers in the order in which they come into question, loaded and asked one after the other as they are needed.
pub(crate) struct Choices<'a> {
    workspace: &'a Workspace,
    dir: Dir,
    filesystem: u32,
    wanted: Wanted,
    purpose: Purpose,
    waiting: VecDeque<ServedProvider>,
    /// Whether the helper's are among them. It is talked to only when the first plugin cannot do all: what it offers is the same
    /// as a plugin does, one rank lower.
    helped: bool,
    /// The plugin that is for this filesystem, if there is one: what it cannot do, the helper's of its kind may.
    own: Option<ProviderName>,
    /// The helper's that comes into question and did not say whether it can serve, and why.
    unasked: Option<(ProviderName, Error)>,
    /// What those that were asked said.
    pub(crate) verdicts: Vec<Candidate>,
    /// A worker's: notes each that is asked.
    pub(crate) attempt: Option<&'a Attempt<'a>>,
}

impl Choices<'_> {
    /// Has them asked as if a person read what they say.
    pub(crate) fn thoroughly(&mut self) {
        self.wanted.thorough = true;
    }

    /// The next one that can serve.
    pub(crate) fn next_usable(&mut self) -> Result<Option<Served>> {
        let purpose = self.purpose;
        let Some(served) = self.find(|_, verdict| verdict.can(purpose))? else { return Ok(None) };
        let instead = self.verdicts.last().cloned().map_or(Ok(None), |verdict| self.helpers_instead(&verdict))?;
        if instead.is_none() {
            self.need_not_have_asked(&served.name);
        }
        self.serve(&instead.unwrap_or(served)).map(Some)
    }

    /// Where the plugin of its kind captures the workspace, as `found` does, who only captures lacks nothing without the helper's, unless that took the last snapshot: it is said that it does
    /// not serve, and no more.
    fn need_not_have_asked(&mut self, found: &ProviderName) {
        if self.purpose != Purpose::Capture || self.helpers_last().is_some() {
            return;
        }
        if let Some((_, error)) = self.unasked.take_if(|(name, _)| name.as_str() == helpers(found)) {
            self.workspace.engine.tell_unused(&error);
        }
    }

    /// The helper's that was passed over only because the helper, which is there, did not serve; told once.
    pub(crate) fn take_unasked(&mut self) -> Option<(ProviderName, Error)> {
        self.unasked.take()
    }

    /// Whether the one that was found last makes branches and captures nothing here, and was neither named nor asked for by its mode.
    pub(crate) fn serves_by_itself_for_branches_alone(&self) -> bool {
        let alone = |verdict: &Candidate| verdict.can(Purpose::Branch) && !verdict.can(Purpose::Capture);
        self.wanted.named.is_none() && self.wanted.mode.is_none() && self.verdicts.last().is_some_and(alone)
    }

    /// The next one of which that is true.
    pub(crate) fn next_that(&mut self, wanted: impl Fn(&dyn Provider, &Candidate) -> bool) -> Result<Option<Served>> {
        let found = self.find(|served, verdict| served.provider().is_ok_and(|provider| wanted(&*provider, verdict)))?;
        found.map(|served| self.serve(&served)).transpose()
    }

    fn find(&mut self, wanted: impl Fn(&ServedProvider, &Candidate) -> bool) -> Result<Option<ServedProvider>> {
        while let Some(served) = self.next()? {
            let verdict = self.ask(&served)?;
            self.note_unasked(&verdict);
            let it_is = wanted(&served, &verdict);
            self.verdicts.push(verdict);
            if it_is {
                return Ok(Some(served));
            }
        }
        Ok(None)
    }

    fn serve(&self, served: &ServedProvider) -> Result<Served> {
        let store = Arc::new(fsio::open_made(&self.workspace.store_path(&served.name))?);
        Ok(Served { name: served.name.clone(), provider: served.provider()?, store })
    }

    fn next(&mut self) -> Result<Option<ServedProvider>> {
        if !self.verdicts.is_empty() || self.waiting.is_empty() {
            self.add_helped()?;
        }
        Ok(self.waiting.pop_front())
    }

    fn add_helped(&mut self) -> Result<()> {
        // Who was named and asked is a plugin, and no other is wanted.
        let is_asked = self.wanted.named.is_some() && !self.verdicts.is_empty();
        if is_asked || std::mem::replace(&mut self.helped, true) {
            return Ok(());
        }
        let Helped { providers, error } = self.workspace.engine.helped();
        self.waiting.extend(providers.iter().cloned());
        let waiting: Vec<_> = std::mem::take(&mut self.waiting).into();
        self.waiting = self.wanted.order(&waiting, self.filesystem);
        if let Some(error) = error.as_ref().filter(|_| self.wanted.named.is_none()) {
            // Who stops waiting for it wants no other.
            if error.kind == ErrorKind::Cancelled {
                return Err(error.clone());
            }
            match self.missed().filter(|_| passes(error)) {
                Some(name) => self.unasked = Some((name, error.clone())),
                None => self.workspace.engine.tell_unused(error),
            }
        }
        Ok(())
    }

    /// The helper's provider that would probably serve here, were the helper to say what it has: the one that took the last snapshot, or the one of
    /// the same kind as this filesystem's plugin.
    fn missed(&self) -> Option<ProviderName> {
        let own = || ProviderName::new(helpers(self.own.as_ref()?)).ok();
        self.helpers_last().or_else(own)
    }

    /// The helper's provider that took the last snapshot, if one did.
    fn helpers_last(&self) -> Option<ProviderName> {
        let last = self.workspace.log().last_snapshot().map(|last| last.provider);
        last.filter(|last| last.as_str().ends_with(HELPERS))
    }

    /// Notes one of the helper's that the helper was too busy for, or too slow: what it refuses for good is a verdict as others are.
    fn note_unasked(&mut self, verdict: &Candidate) {
        let Some(error) = verdict.failed.as_ref().filter(|error| passes(error)) else { return };
        if self.workspace.engine.helped().providers.iter().any(|served| served.name == verdict.name) {
            self.unasked.get_or_insert_with(|| (verdict.name.clone(), error.clone()));
        }
    }

    fn ask(&self, served: &ServedProvider) -> Result<Candidate> {
        let path = self.workspace.store_path(&served.name);
        let existing = path.is_dir().then(|| Dir::open(path)).transpose()?;
        let store = existing.map_or_else(|| self.workspace.engine.scratch_store(), Ok)?;
        let place = Place::new(&store).with_workspace(&self.dir);
        let _noted = self.attempt.map(|attempt| attempt.calls(&served.name, Op::Probe.as_str()));
        let verdict = self.wanted.ask(served, &place, Some(self.purpose), &self.workspace.context());
        // Who stops it wants no other.
        match verdict.failed {
            Some(error) if error.kind == ErrorKind::Cancelled => Err(error),
            _ => Ok(verdict),
        }
    }

    /// The helper's provider that `verdict`'s gives way to.
    fn helpers_instead(&mut self, verdict: &Candidate) -> Result<Option<ServedProvider>> {
        if !verdict.lacks_branches() {
            return Ok(None);
        }
        self.add_helped()?;
        let name = helpers(&verdict.name);
        let Some(at) = self.waiting.iter().position(|served| served.name.as_str() == name) else { return Ok(None) };
        let other = self.ask(&self.waiting[at])?;
        self.note_unasked(&other);
        if !verdict.gives_way_to(&other) {
            return Ok(None);
        }
        self.verdicts.push(other);
        Ok(self.waiting.remove(at))
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
        let unused = if self.helped { self.workspace.engine.helped().error.as_ref() } else { None };
        error.causes.extend(unused.map(told));
        let convert = self.verdicts.iter().any(|verdict| verdict.convertible.is_some());
        let convert = convert.then(|| convert_command(self.workspace.root()));
        let remedies = self.verdicts.iter().filter_map(|verdict| verdict.remedy.clone());
        let remedy = unused.and_then(|error| error.hint.clone()).into_iter().chain(remedies).next();
        let remedy = convert.into_iter().chain(remedy).reduce(|convert, remedy| format!("{convert}; or {remedy}"));
        error.with_hint(remedy.unwrap_or_else(|| match &self.wanted.named {
            Some(named) => format!("do not insist on {named}: `ah agent fs status` tells who can serve here"),
            None => "ah agent fs status".to_owned(),
        }))
    }
}

impl Workspace {
    /// The providers that come into question here.
    pub(crate) fn choices(&self, config: &Config, purpose: Purpose) -> Result<Choices<'_>> {
        let wanted = Wanted::of(config, self.is_elsewhere())?;
        let set = self.engine.plugins(|| config.provider_path());
        if let Some(named) = &wanted.named {
            // For the error that says where it was looked for.
            set.get(named).map_or_else(|| self.engine.provider(named).map(drop), |_| Ok(()))?;
        }
        let dir = self.open_dir()?;
        let filesystem = filesystem(&dir)?;
        let waiting = wanted.order(&set.providers, filesystem);
        let own = waiting.iter().find(|served| served.filesystems.contains(&filesystem));
        Ok(Choices {
            workspace: self,
            dir,
            filesystem,
            wanted,
            purpose,
            own: own.map(|served| served.name.clone()),
            waiting,
            helped: false,
            unasked: None,
            verdicts: Vec::new(),
            attempt: None,
        })
    }
}
