//! A merge, cherry-pick or revert that is not finished: the small files by which Git knows of it.
//!
//! They are recorded and come along into a clone. Of a rebase, `git am`, bisection or series of picks only that there is one: its
//! folders name commands to run and places in history, and it goes on where it was begun.

use std::os::fd::AsFd;

use crate::repository::{SMALL, read_file};

/// What makes Git believe that something is in progress.
const HEADS: &[&str] = &["MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD"];
/// What belongs to it.
const BESIDE: &[&str] = &["MERGE_MODE", "MERGE_MSG", "MERGE_AUTOSTASH", "AUTO_MERGE"];
/// What is not taken along, and what it is.
const OTHERS: &[(&str, &str)] = &[
    ("rebase-merge", "a rebase"),
    ("rebase-apply", "a rebase or `git am`"),
    ("sequencer", "a series of cherry-picks or reverts"),
    ("BISECT_LOG", "a bisection"),
];

/// What is in progress: files with their contents; empty for what is not taken along. Nothing, mostly.
pub(crate) fn read(git_dir: impl AsFd) -> Vec<(&'static str, Vec<u8>)> {
    let git_dir = git_dir.as_fd();
    let file = |name: &&'static str| Some((*name, read_file(git_dir, name, SMALL).ok()??));
    let mut found: Vec<_> = HEADS.iter().filter_map(file).collect();
    if !found.is_empty() {
        found.extend(BESIDE.iter().filter_map(file));
    }
    let there =
        |name: &str| rustix::fs::accessat(git_dir, name, rustix::fs::Access::EXISTS, rustix::fs::AtFlags::empty());
    found.extend(OTHERS.iter().filter(|(name, _)| there(name).is_ok()).map(|(name, _)| (*name, Vec::new())));
    found
}

/// Whether a recorded file comes along into a clone; no other name does.
pub fn is_taken(name: &[u8]) -> Option<&'static str> {
    HEADS.iter().chain(BESIDE).copied().find(|known| known.as_bytes() == name)
}

/// What a recorded name stands for that does not come along.
pub fn what_is_left(name: &[u8]) -> Option<&'static str> {
    OTHERS.iter().find(|(known, _)| known.as_bytes() == name).map(|(_, what)| *what)
}
