//! The provider contract as tests that run against any provider, ours or a stranger's.
//!
//! [`run`] takes a [`Target`] (a provider linked in, a library, a library in a process of its own) and gives a
//! [`Report`]. Each [`Case`] quotes the words of the contract that it checks; a test sees to it that the words stand there
//! and that none is forgotten. [`MemoryProvider`] is the contract at its simplest.
//!
//! A case works on real directories through a fixture; a witness looks at every call it makes. Cases are in `cases`, a
//! file for each part of the contract. Not here: how libraries are loaded (`ah-host`) and how calls travel
//! (`ah-plugin-api`).

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod case;
mod cases;
mod child;
mod editor;
mod fixture;
mod memory;
mod report;
mod runner;
mod scratch;
#[allow(unsafe_code)]
mod sys;
mod target;
mod tree;
mod witness;

pub use case::{Case, Check, Need, Trouble};
pub use child::{ChildCommand, ChildTarget, check, child_main};
pub use editor::Editor;
pub use fixture::Fixture;
pub use memory::MemoryProvider;
pub use report::{CaseReport, Outcome, ProviderReport, Report, Summary};
pub use runner::{Expected, Options, all_cases, run};
pub use target::{InProcess, Instance, Library, Process, Target, Way};
pub use tree::{Inode, Modes, Node, Tree, digest};
