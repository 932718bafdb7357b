//! The conformance suite in the guest, on a library in this process or on the helper.
//!
//! `ah agent fs check` has each library in processes of its own, which is what a stranger's needs, and what takes longest where
//! the machine is emulated: a process's start.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ah_conformance::{Instance, Library, Options, Target, Way};
use ah_host::helper::{self, Helper};
use ah_plugin_api::{Error, ErrorKind};

/// The longest that a case may take. The one place for it: emulated, and beside others, the longest need two minutes.
const LIMIT: Duration = Duration::from_secs(400);

/// Who is asked.
#[derive(Debug, Clone)]
pub enum Whom {
    /// A library, in this process.
    Library(PathBuf),
    /// The helper's provider of that name.
    Helper(String),
}

/// What is run.
#[derive(Debug, Clone)]
pub struct Contract {
    /// Who is asked.
    pub whom: Whom,
    /// Where the cases make their directories.
    pub scratch: PathBuf,
    /// Only cases whose names contain one of these; empty: all.
    pub only: Vec<String>,
    /// Whether what this machine lacks counts as a failure.
    pub strict: bool,
}

impl Contract {
    /// Runs it and says how it went, each case on a line as it ends. Whether it was kept.
    pub fn run(&self, say: &mut dyn FnMut(&str)) -> bool {
        let target: Arc<dyn Target> = match &self.whom {
            Whom::Library(path) => Arc::new(Library::new(path)),
            Whom::Helper(name) => Arc::new(Served(name.clone())),
        };
        let mut options = Options::new(&self.scratch);
        options.only.clone_from(&self.only);
        options.limit = LIMIT;
        options.strict = self.strict;
        let report = ah_conformance::run(&target, &options, &mut |case| {
            say(&format!("{} {:.1} s", case.id, case.took.as_secs_f64()));
        });
        say(&report.to_text(false));
        report.ok
    }
}

/// A provider of the helper. Each instance is a connection of its own.
struct Served(String);

impl Target for Served {
    fn name(&self) -> String {
        self.0.clone()
    }

    // There is no process here that is a provider's alone, to be killed.
    fn way(&self) -> Way {
        Way::Trait
    }

    fn open(&self) -> Result<Instance, Error> {
        let helper = Helper { socket: helper::SOCKET.into(), named: false, limit: LIMIT };
        let found = helper::load(&helper)?.into_iter().find(|(description, _)| description.name.as_str() == self.0);
        let (_, provider) = found.ok_or_else(|| Error::new(ErrorKind::NotFound, "ahd does not offer it"))?;
        Ok(Instance { provider, process: None })
    }
}
