//! Going back, as a person does it with the real binary: build tools afterwards, `exec`, odd permissions, full disks, several
//! processes at once. Kills are `crash`'s.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod at_work;
mod attributes;
mod builds;
mod closed;
mod damage;
mod disks;
mod exec;
mod full;
mod interrupted;
mod repository;
#[path = "../support/mod.rs"]
mod support;
mod together;
mod told;
