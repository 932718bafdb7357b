//! Finds, trusts and loads provider plugins.
//!
//! [`load`] looks through the folders of a [`Search`], and gives a [`Host`]: the plugins that can be used, and a [`Report`] for
//! every file that was looked at. [`load_file`] does the same for one file.
//!
//! A file is loaded in these steps, each of which can end in a [`Fault`] of its own, and none of which can take another file's
//! plugin down:
//!
//! 1. `trust`: nobody but root and the user can have put it there or can change it;
//! 2. `elf`: it is a whole shared library for this machine, with our symbol in it — before any of its code runs;
//! 3. `trial`: a file that was never loaded before is loaded in a child process first, because a library that crashes or
//!    hangs in its constructor cannot be survived in one's own (one that was fine there and hangs here later ends the process, which
//!    says so);
//! 4. [`ah_plugin_api::abi::open`]: version, layout, initialiser, description.
//!
//! The privileged helper's providers come over its socket: [`helper`].
//!
//! A plugin's provider is then called through [`Watched`], if the caller sets a limit, so that a call that hangs is named, and one that ends
//! the process; so is a library that does that while it is loaded (`ending`). A program that loads any ends by [`leave`].
//!
//! Not here: which provider serves a workspace (`ah-core`), how calls cross the boundary (`ah_plugin_api::abi`).

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod elf;
mod ending;
pub mod helper;
mod load;
mod report;
mod search;
#[allow(unsafe_code)]
mod sys;
mod trial;
mod trust;
mod watch;

pub use ending::leave;
pub use load::{EXIT_UNAVAILABLE, Host, Options, Plugin, Prospect, load, load_file, look};
pub use report::{Fault, Outcome, Report};
pub use search::{Origin, Search};
pub use trial::{Known, sweep};
pub use trust::{Untrusted, Why, open_trusted, roots_own};
pub use watch::Watched;
