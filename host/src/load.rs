//! From places to plugins: one file after the other, with a report for each.

use std::fmt;
use std::fs::File;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ah_plugin_api::abi::{self, AbiVersion, Library, OpenError};
use ah_plugin_api::wire::Remote;
use ah_plugin_api::{Description, Provider, ProviderName};

use crate::elf;
use crate::ending::{Doing, Inside};
use crate::report::{Fault, Outcome, Report, told};
use crate::search::{Origin, Place, Search, name_of};
use crate::sys;
use crate::trial::{Known, Memory, Trace};
use crate::trust;
use crate::watch::{Watched, guarded, within};

/// How to load.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Where to look.
    pub search: Search,
    /// An existing folder of the user's own in which to remember which files were tried. Without it each file is tried in a child
    /// process every time, at the cost of some milliseconds.
    pub state: Option<PathBuf>,
    /// A call that gives no sign of life for so long is given up, and a file that takes so long to load; see [`Watched`]. Where it is
    /// the system's loader that is held up, the process says so on stderr and ends with [`EXIT_UNAVAILABLE`]. None: all are waited for
    /// for ever.
    pub limit: Option<Duration>,
}

/// A plugin in use. Cheap to clone.
#[derive(Clone)]
pub struct Plugin {
    /// What its provider says of itself.
    pub description: Description,
    /// Its file, without symlinks.
    pub path: PathBuf,
    /// What it was built for.
    pub abi: AbiVersion,
    /// The provider.
    pub provider: Arc<dyn Provider>,
}

impl fmt::Debug for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plugin").field("name", &self.description.name).field("path", &self.path).finish_non_exhaustive()
    }
}

/// A plugin that was loaded before and is not needed yet.
pub struct Prospect {
    /// What it said of itself.
    pub known: Known,
    /// Its file, as it was found.
    pub path: PathBuf,
    limit: Option<Duration>,
    memory: Arc<Mutex<Memory>>,
}

impl fmt::Debug for Prospect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prospect").field("known", &self.known).field("path", &self.path).finish_non_exhaustive()
    }
}

impl Prospect {
    /// Loads it.
    ///
    /// # Errors
    /// Why it cannot be used any more. The next search looks at it from the beginning.
    pub fn load(&self) -> Result<Plugin, Fault> {
        let mut memory = lock(&self.memory);
        let loaded = load_one(&self.path, Some(&self.known.name), self.limit, &mut memory);
        if loaded.is_err() {
            memory.forget(&self.path);
        }
        memory.write();
        loaded
    }
}

/// What was found.
#[derive(Debug, Default)]
pub struct Host {
    /// The plugins in use, in the order of the search.
    pub plugins: Vec<Plugin>,
    /// Those that can be loaded once they are needed; only [`look`] leaves any.
    pub prospects: Vec<Prospect>,
    /// One for each file that was looked at, and for each place that the user named and that could not be looked at.
    pub report: Vec<Report>,
}

impl Host {
    /// The plugin of a provider.
    #[must_use]
    pub fn get(&self, name: &ProviderName) -> Option<&Plugin> {
        self.plugins.iter().find(|plugin| plugin.description.name == *name)
    }
}

/// One file at a time in this process: the child in which one is tried (`trial`) would inherit the locks of a loader at work.
static LOADING: Mutex<()> = Mutex::new(());

/// The exit code of `ah` for [`ah_plugin_api::ErrorKind::Unavailable`], with which a process ends whose loader is held up.
pub const EXIT_UNAVAILABLE: u8 = 5;

/// Loads everything that the search finds. Best called before the program starts threads, for the same reason.
///
/// Cost: the files' constructors and some dozen system calls for each; a file that was not loaded before, a child process.
#[must_use]
pub fn load(options: &Options) -> Host {
    search(options, |_, _| None)
}

/// As [`load`], but what is remembered of files that were loaded before makes do for them; there is no report on those.
#[must_use]
pub fn look(options: &Options) -> Host {
    search(options, Memory::recall)
}

fn search(options: &Options, recall: impl Fn(&Memory, &Path) -> Option<Known>) -> Host {
    let memory = Arc::new(Mutex::new(Memory::read(options.state.as_deref())));
    let mut host = Host::default();
    for place in options.search.places() {
        for (path, name) in files(&place, &mut host.report) {
            let mut remembered = lock(&memory);
            let outcome = match name.as_ref().and_then(|name| host.path_of(name)) {
                Some(first) => Outcome::Failed(Fault::Duplicate { of: first.to_owned() }),
                None => match recall(&remembered, &path).filter(|known| name.as_ref() == Some(&known.name)) {
                    Some(known) => {
                        let (limit, memory) = (options.limit, Arc::clone(&memory));
                        host.prospects.push(Prospect { known, path, limit, memory });
                        continue;
                    }
                    None => match load_one(&path, name.as_ref(), options.limit, &mut remembered) {
                        Ok(plugin) => host.take(plugin),
                        Err(fault) => Outcome::Failed(fault),
                    },
                },
            };
            host.report.push(Report { path, origin: place.origin, outcome });
        }
    }
    lock(&memory).write();
    host
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Host {
    /// The file that a provider came from.
    fn path_of(&self, name: &ProviderName) -> Option<&Path> {
        let prospect = self.prospects.iter().find(|prospect| prospect.known.name == *name);
        self.get(name).map(|plugin| &*plugin.path).or_else(|| prospect.map(|prospect| &*prospect.path))
    }

    fn take(&mut self, plugin: Plugin) -> Outcome {
        let Description { name, version, .. } = plugin.description.clone();
        // Only a single file that the user named can get here with a name that is taken.
        if let Some(first) = self.path_of(&name) {
            return Outcome::Failed(Fault::Duplicate { of: first.to_owned() });
        }
        let abi = plugin.abi;
        self.plugins.push(plugin);
        Outcome::Loaded { name, version, abi }
    }
}

/// Loads the file at `path`, whatever its name, without looking anywhere else.
///
/// # Errors
/// Why it cannot be used.
pub fn load_file(path: &Path, options: &Options) -> Result<Plugin, Fault> {
    let mut memory = Memory::read(options.state.as_deref());
    let loaded = load_one(path, None, options.limit, &mut memory);
    memory.write();
    loaded
}

/// The files of a place that count, by name; the provider that the name promises, if the file was found by its name.
fn files(place: &Place, report: &mut Vec<Report>) -> Vec<(PathBuf, Option<ProviderName>)> {
    let Place { path, origin } = place;
    let explicit = *origin == Origin::Explicit;
    if explicit && path.is_file() {
        return vec![(path.clone(), None)];
    }
    let mut files = Vec::new();
    match std::fs::read_dir(path) {
        Ok(entries) => {
            let names = entries.flatten().map(|entry| entry.file_name());
            files.extend(names.filter_map(|file| name_of(&file).map(|name| (path.join(&file), Some(name)))));
            files.sort();
        }
        // That a usual place is not there is usual.
        Err(_) if !explicit => {}
        Err(e) => {
            let missing = e.kind() == std::io::ErrorKind::NotFound;
            let fault = if missing { Fault::Missing } else { Fault::Unreadable(e) };
            report.push(Report { path: path.clone(), origin: *origin, outcome: Outcome::Failed(fault) });
        }
    }
    files
}

fn load_one(
    path: &Path,
    promised: Option<&ProviderName>,
    limit: Option<Duration>,
    memory: &mut Memory,
) -> Result<Plugin, Fault> {
    let _alone = lock(&LOADING);
    let (file, real) = trust::open_trusted(path)?;
    elf::check(&file)?;
    let name = name_for_loader(&file, &real);
    memory.try_out(&file, || {
        let _ = abi::open(&name);
    })?;
    let opened = open(&name, &real, limit, memory.trace(&file));
    if let Err(Fault::Open(OpenError::NotALibrary(why))) = opened {
        let why = why.replace(&*name.to_string_lossy(), &real.to_string_lossy());
        return Err(OpenError::NotALibrary(why).into());
    }
    if let Ok(library) = &opened {
        memory.learn(&file, &library.description);
    }
    // The system's loader takes equal names for equal libraries, so the number in this one's name must not be used again.
    let _ = file.into_raw_fd();
    let Library { description, abi, caller } = opened?;
    if promised.is_some_and(|promised| *promised != description.name) {
        return Err(Fault::OtherName { says: description.name });
    }
    let provider: Arc<dyn Provider> = match limit {
        Some(limit) => {
            let what = format!("the provider {} ({})", description.name, real.display());
            Arc::new(Remote::new(Watched::new(caller, what, limit), description.clone()))
        }
        None => Arc::new(Remote::new(caller, description.clone())),
    };
    Ok(Plugin { description, path: real, abi, provider })
}

/// Opens a library, and gives it up when that takes too long: it did not where it was tried, but may wait for something. Ends it the process,
/// or does that have to be done, it is also forgotten that it was fine there.
fn open(name: &Path, real: &Path, limit: Option<Duration>, trace: Option<Trace>) -> Result<Library, Fault> {
    let (what, stale): (Arc<str>, _) = (format!("the plugin {}", real.display()).into(), trace.clone());
    let inside = move || Inside::begin(&what, Doing::Loading(trace.clone()));
    let load = || {
        let _inside = inside();
        abi::load(name)
    };
    let Some(limit) = limit else {
        let loaded = load()?;
        let _inside = inside();
        return Ok(loaded.start()?);
    };
    // What runs in the loader has its lock, which nobody can take from it: no thread can be started any more, no library loaded, and the
    // process waits for it at its usual end. So it can neither go on nor end in order; what was begun is as after a kill.
    let error = Fault::Hangs(limit).to_error(real);
    let held_up = || {
        stale.iter().for_each(Trace::forget);
        sys::end(&told(&error), EXIT_UNAVAILABLE)
    };
    let (loaded, left) = guarded(limit, held_up, load).map_err(Fault::Untried)?;
    let loaded = loaded?;
    let start = move || {
        let _inside = inside();
        loaded.start()
    };
    let started = within(left, start).map_err(Fault::Untried)?;
    Ok(started.ok_or(Fault::Hangs(limit))??)
}

/// A name by which the system's loader opens the very file that was judged; the file's own name where there is no `/proc`.
fn name_for_loader(file: &File, real: &Path) -> PathBuf {
    let by_number = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    if by_number.exists() { by_number } else { real.to_owned() }
}
