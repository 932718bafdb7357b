//! How the suite reaches a provider: the three ways, behind one trait.
//!
//! [`InProcess`] is straight through the trait, [`Library`] a `.so` in this process; a library in a process of its own is in
//! [`crate::ChildTarget`].

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use ah_plugin_api::{Error, Provider};
use serde::Serialize;

/// By which way calls travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// Straight through the Rust trait.
    Trait,
    /// Through the ABI of a shared library in this process.
    Library,
    /// Over a socket to another process that has loaded the library.
    Socket,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Trait => "through the trait",
            Self::Library => "from its library",
            Self::Socket => "over a socket",
        })
    }
}

/// A provider under test.
pub trait Target: Send + Sync {
    /// What to call it in a report: a name or a file.
    fn name(&self) -> String;

    /// By which way calls travel.
    fn way(&self) -> Way;

    /// A new instance: one that shares nothing in memory with the others, in a process of its own, where that can be had.
    ///
    /// # Errors
    /// Why there is none: the file cannot be loaded, its process died.
    fn open(&self) -> Result<Instance, Error>;

    /// Makes an empty workspace at `path`, which does not exist yet. Providers that need more than a directory (a
    /// subvolume, a dataset) make it here.
    ///
    /// # Errors
    /// What the operating system says.
    fn make_workspace(&self, path: &Path) -> io::Result<()> {
        std::fs::create_dir(path)
    }
}

/// An open provider.
pub struct Instance {
    /// The provider.
    pub provider: Arc<dyn Provider>,
    /// The process it runs in, if that is its own.
    pub process: Option<Arc<dyn Process>>,
}

/// A process of which an instance is the only purpose.
pub trait Process: Send + Sync {
    /// Its number.
    fn id(&self) -> u32;

    /// Ends it with SIGKILL, and waits until it is gone. Does nothing to one that is gone.
    fn kill(&self);

    /// How it ended by itself, if it did: the signal or status, and the last that it wrote to stderr.
    fn fate(&self) -> Option<String>;
}

/// A provider that is linked into this program.
pub struct InProcess<F> {
    name: String,
    make: F,
}

impl<P: Provider + 'static, F: Fn() -> P + Send + Sync> InProcess<F> {
    /// `make` is called for each instance. If all of them shall see one store, what they share is in `make`.
    pub fn new(name: impl Into<String>, make: F) -> Self {
        Self { name: name.into(), make }
    }
}

impl<P: Provider + 'static, F: Fn() -> P + Send + Sync> Target for InProcess<F> {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn way(&self) -> Way {
        Way::Trait
    }

    fn open(&self) -> Result<Instance, Error> {
        Ok(Instance { provider: Arc::new((self.make)()), process: None })
    }
}

/// A plugin's library, loaded into this process. One that aborts takes the process with it: for a library that is not trusted
/// to behave, use [`crate::ChildTarget`].
///
/// Its instances share what the library keeps in memory, because a library is loaded once.
pub struct Library {
    path: PathBuf,
    loaded: Mutex<Option<Arc<dyn Provider>>>,
}

impl Library {
    /// The library at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), loaded: Mutex::new(None) }
    }
}

impl Target for Library {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn way(&self) -> Way {
        Way::Library
    }

    fn open(&self) -> Result<Instance, Error> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let provider = match &*loaded {
            Some(provider) => provider.clone(),
            None => {
                let plugin = ah_host::load_file(&self.path, &ah_host::Options::default());
                plugin.map_err(|fault| fault.to_error(&self.path))?.provider
            }
        };
        *loaded = Some(provider.clone());
        Ok(Instance { provider, process: None })
    }
}
