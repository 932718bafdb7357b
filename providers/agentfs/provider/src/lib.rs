//! Branches of any directory by AgentFS, as a provider, and the service that keeps them mounted.
//!
//! - [`AgentFsProvider`] is the way in for `ah`. It looks at places itself, and hands everything else on to the service of the store, which it starts
//!   if it is not there.
//! - [`service`] is that service, the program `ah-agentfsd`: one process for each *home*. It has the home's store open, mounts branches and
//!   views, and answers the same contract over a socket in the home (`ah_plugin_api::ipc`), so that there is no second protocol.
//! - `home` is how both know where things are: the *home* is the store of the workspace that was branched first; a branch of it is a workspace with a
//!   store of its own, in which is written whose tree it is part of (its *shelf*).
//! - `conversion` is what is written down of a workspace that was itself put behind AgentFS; `back` takes it back.
//! - `lost` says how it is brought back where something of that is lost.
//! - `reach` finds the service, or starts it. `probe` says what can be served.
//!
//! **One service for a home, not one for a user**: the store is open in one process at a time anyway, there is no list of stores that
//! could be wrong, and what befalls one workspace's service befalls no other's. It ends by itself when nothing is mounted and nobody calls; killed, it
//! is started again by the next command, and mounts again what was mounted.
//!
//! Not here: the filesystem (`ah-agentfs`), mounting (`ah-agentfs-fuse`), what a directory looks like in place: that is for other providers.

#![cfg(target_os = "linux")]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod back;
mod conversion;
mod home;
mod lost;
mod probe;
mod provider;
mod reach;
pub mod service;

pub use provider::AgentFsProvider;
