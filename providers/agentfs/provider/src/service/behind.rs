//! What is done behind the answer to who makes a branch: it is taken to the disk, what stands in for it is put beneath it, and the mount of the next one is made.
//!
//! What a mount takes is the kernel's greeting and a dozen threads and descriptors. Only root can have one made before its place is known; others mount
//! when it is asked for.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, Weak};
use std::time::Duration;

use ah_agentfs::BranchId;
use ah_agentfs_fuse::{Placed, Spare};

use super::mounted::face;
use super::opened::Open;
use super::{lock, stand_in};
use crate::home::Shown;

/// So long the caller who was answered is let go on alone.
const AFTER: Duration = Duration::from_millis(2);

/// The thread that does it, and the mount that it made, of the branch that it names.
pub(super) struct Behind {
    spare: Mutex<Option<(BranchId, Spare)>>,
    /// None if no thread is to be had: then the tree syncs by itself, and mounts are made when they are asked for.
    thread: Option<Sender<Option<stand_in::Place>>>,
}

impl Behind {
    /// Does nothing before [`Behind::begin`].
    pub(super) fn new(home: PathBuf, open: Weak<Open>) -> Self {
        let (thread, told) = channel();
        let work = move || work(&home, &open, &told);
        let started = std::thread::Builder::new().name("behind".to_owned()).spawn(work).is_ok();
        Self { spare: Mutex::default(), thread: started.then_some(thread) }
    }

    /// A branch was made at that place, or will be soon.
    pub(super) fn begin(&self, beneath: Option<stand_in::Place>) {
        // It ends with this.
        let _ = self.thread.as_ref().map(|thread| thread.send(beneath));
    }

    /// Puts the mount that was made for this branch, as the mount table names it, at a folder that was just made. None if there is none, or the system
    /// does not let it be moved there.
    pub(super) fn spare(&self, branch: BranchId, at: &Path) -> Option<Placed> {
        let (_, spare) = lock(&self.spare).take_if(|(of, _)| *of == branch)?;
        spare.place(at).inspect_err(|error| eprintln!("ah-agentfsd: {error}")).ok()
    }
}

fn work(home: &Path, open: &Weak<Open>, told: &Receiver<Option<stand_in::Place>>) {
    let mut can_spare = rustix::process::geteuid().is_root();
    while let Ok(first) = told.recv() {
        std::thread::sleep(AFTER);
        for beneath in std::iter::once(first).chain(told.try_iter()).flatten() {
            // Without it nothing is worse than an empty directory.
            let _ = beneath.put_up();
        }
        let Some(open) = open.upgrade() else { return };
        if can_spare && let Err(error) = make_spare(home, &open) {
            eprintln!("ah-agentfsd: mounts are made when they are asked for: {error}");
            can_spare = false;
        }
        // Who asks for durability is told of an error.
        let _ = open.tree.sync();
    }
}

fn make_spare(home: &Path, open: &Open) -> ah_agentfs_fuse::Result<()> {
    let branch = open.tree.next_branch();
    // One that a base or another branch has outrun goes, and not while somebody waits for it.
    let outrun = lock(&open.behind.spare).take_if(|(of, _)| *of != branch);
    drop(outrun);
    if lock(&open.behind.spare).is_none() {
        let shown = Shown { home: home.to_owned(), branch: Some(branch.0) };
        let spare = Spare::new(&face(&shown))?;
        *lock(&open.behind.spare) = Some((branch, spare));
    }
    Ok(())
}
