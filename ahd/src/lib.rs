//! `ahd`, the privileged helper: serves providers that need root to ordinary users, each with what is theirs.
//!
//! - `listen` takes connections, `closing` closes those that it refuses, `peer` is who connects, `limits` how many and how often, `accounts` whose ids count as one;
//! - `policy` checks each call and makes it, by what `owned` says of the caller's descriptors; views and clones in `making`; what providers advise then in `advice`;
//! - `keeper` is what they share: the providers, and the life of views and clones, which `graft` mounts and `records` writes down;
//! - `config`, `state` and `audit` are the helper's own files; `stores` how stores come and go, also by the administrator; `sys` the only place with `unsafe`.
//!
//! What it never does: read the environment, load a library that others could have changed, open by name what a caller named (what it wrote down itself it
//! finds by path, without symlinks, and by what is found there), read or write contents of files for a caller (but the `.git` of a workspace and of a
//! branch, with no more rights than its owner's), run another program.
//!
//! Not here: restore (the caller does that, from a view), providers (libraries), the protocol (`ah_plugin_api::ipc`).

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod accounts;
mod advice;
mod audit;
mod closing;
mod config;
mod graft;
mod holders;
mod keeper;
mod limits;
mod listen;
mod making;
mod mounts;
mod owned;
mod peer;
mod policy;
mod records;
mod state;
mod stores;
#[allow(unsafe_code)]
mod sys;

use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ah_plugin_api::{Error, ErrorKind, Result, text};
use rustix::thread::{CapabilitySet, CapabilitySets};

pub use config::{Config, Limits};
pub use stores::{Forgotten, Held};

/// How the helper is started.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where to listen, unless it is started with a socket.
    pub socket: PathBuf,
    /// The number of a descriptor on which to listen.
    pub listen_fd: Option<RawFd>,
    /// Its state folder.
    pub state: PathBuf,
    /// Its configuration.
    pub config: PathBuf,
    /// Folders of providers; none: the system's.
    pub provider_dirs: Vec<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            socket: PathBuf::from(ah_host::helper::SOCKET),
            listen_fd: None,
            state: PathBuf::from("/var/lib/ahd"),
            config: Path::new(SYSCONFDIR).join("ah/ahd.conf"),
            provider_dirs: Vec::new(),
        }
    }
}

/// The system's configuration folder, compiled in by `scripts/install`.
const SYSCONFDIR: &str = match option_env!("AH_SYSCONFDIR") {
    Some(directory) => directory,
    None => "/etc",
};

/// Starts the helper, and serves for ever.
///
/// # Errors
/// Why it cannot be started.
pub fn run(options: &Options) -> Result<std::convert::Infallible> {
    let listen_fd = options.listen_fd.map(sys::inherited).transpose();
    let listen_fd = listen_fd.map_err(|e| Error::from_io("cannot use the socket that this was started with", &e))?;
    let keeper = Arc::new(keeper(options)?);
    if elsewhere() {
        keeper.audit.say("this process is not in the mount namespace of the system: its mounts may not reach anybody");
    }
    let listener = match listen_fd {
        Some(fd) => listen::adopt(fd)?,
        None => listen::bind(&options.socket)?,
    };
    keeper.settle();
    if keeper.served.is_empty() {
        keeper.audit.say(
            "there is no provider to serve: libraries are looked for in --provider-dir, else in the system's folders",
        );
    }
    keeper.audit.say("ready");
    listen::serve(&listener, &keeper)
}

/// What is kept for whom. No helper may be at work.
///
/// # Errors
/// Why its state cannot be looked at.
pub fn stores(options: &Options) -> Result<Vec<Held>> {
    stores::all(&keeper(options)?)
}

/// Removes all that is kept for a user under a token, by all providers or by that one, as far as it can be looked for; branches that
/// cannot be only by `force`. No helper may be at work.
///
/// # Errors
/// `NotFound`; `Busy` while something of it is in use; `FailedPrecondition` without `force` while there is such a branch; the provider's.
pub fn forget_store(
    options: &Options,
    uid: u32,
    token: &str,
    provider: Option<&str>,
    force: bool,
) -> Result<Forgotten> {
    stores::forget(&keeper(options)?, uid, token, provider, force)
}

/// The helper's state, configuration and providers, for this process alone.
fn keeper(options: &Options) -> Result<keeper::Keeper> {
    need_root()?;
    // Whoever started it may be in groups that the users are not in.
    nix::unistd::setgroups(&[])
        .map_err(|e| Error::from_io("cannot leave the groups of who started this", &e.into()))?;
    keep_capabilities()?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    std::env::set_current_dir("/").map_err(|e| Error::from_io("cannot go to /", &e))?;
    let state = state::State::open(&options.state)?;
    let audit = audit::Audit::new(state.path());
    let config = Config::read(&options.config, &mut |warning| audit.say(&warning))?;
    let served = load(options, &state, &audit);
    keeper::Keeper::new(config, state, audit, served, elsewhere_given(options))
}

/// The options by which an `ahd` finds this state and these providers, where they are not those that it has without.
fn elsewhere_given(options: &Options) -> String {
    let option = |name: &str, path: &PathBuf| format!(" {name} {}", text::shell(path.as_os_str()));
    let state = Some(&options.state).filter(|state| **state != Options::default().state);
    let state = state.map(|state| option("--state", state));
    state.into_iter().chain(options.provider_dirs.iter().map(|dir| option("--provider-dir", dir))).collect()
}

/// Gives up what it does not need of root's rights, as its unit has it, however it was started: before there are threads, and before a library is
/// loaded.
fn keep_capabilities() -> Result<()> {
    let needed = CapabilitySet::SYS_ADMIN
        | CapabilitySet::DAC_OVERRIDE
        | CapabilitySet::DAC_READ_SEARCH
        | CapabilitySet::FOWNER
        | CapabilitySet::CHOWN
        | CapabilitySet::SETUID
        | CapabilitySet::SETGID;
    let cannot = |e: rustix::io::Errno| Error::from_io("cannot give up capabilities", &e.into());
    let has = rustix::thread::capabilities(None).map_err(cannot)?;
    let sets = CapabilitySets {
        effective: has.effective & needed,
        permitted: has.permitted & needed,
        inheritable: CapabilitySet::empty(),
    };
    rustix::thread::set_capabilities(None, sets).map_err(cannot)
}

/// Root of the whole system, not of a user namespace, where nothing would be worth what it seems.
fn need_root() -> Result<()> {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let whole = map.split_whitespace().eq(["0", "0", "4294967295"]);
    if rustix::process::geteuid().is_root() && whole {
        return Ok(());
    }
    Err(Error::new(ErrorKind::PermissionDenied, "ahd must be started by the system's root")
        .with_hint("systemctl enable --now ahd.socket ahd.service"))
}

/// Loads the providers of the system's folders. Before there are threads: each new library is tried in a child process.
fn load(options: &Options, state: &state::State, audit: &audit::Audit) -> Vec<keeper::Served> {
    let installed =
        |dir: &PathBuf| dir.file_name().is_some_and(|name| name == "bin" || name == "sbin" || name == "libexec");
    let exe_dir = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.to_owned())).filter(installed);
    let search = if options.provider_dirs.is_empty() {
        ah_host::Search { explicit: Vec::new(), exe_dir, system: true }
    } else {
        ah_host::Search { explicit: options.provider_dirs.clone(), exe_dir: None, system: false }
    };
    // Without a limit: a user who makes a call hang shall not take the provider away from others.
    let host = ah_host::load(&ah_host::Options { search, state: Some(state.path().join("plugins")), limit: None });
    for report in &host.report {
        if let ah_host::Outcome::Failed(fault) = &report.outcome {
            audit.say(&format!("{} is not used: {fault}", report.path.display()));
        }
    }
    let mut served = Vec::new();
    for plugin in host.plugins {
        match keeper::Served::new(plugin.provider) {
            Ok(provider) => served.push(provider),
            Err(why) => audit.say(&why),
        }
    }
    served
}

fn elsewhere() -> bool {
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    matches!((namespace("1"), namespace("self")), (Some(system), Some(own)) if system != own)
}
