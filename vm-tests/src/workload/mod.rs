//! In the guest: looks at everything that was reported before the last power cut, then works until the next one.
//!
//! One thread for each filesystem. `verify` looks, `work` works, `tree` makes and measures directory trees, `lab` calls `ah`
//! and reports to the host.

mod lab;
mod tree;
mod verify;
mod work;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Barrier, Mutex};

use anyhow::{Context as _, Result};

use crate::random::Random;
use crate::record::{Book, Report};
use lab::Lab;

/// Where a workspace is and what serves it: `NAME=PROVIDER=FOLDER`; the folder holds `work`, the workspace, and `home`.
pub fn inside(places: &[String], books: &Path, seed: u64, log: &Path, work: bool) -> Result<()> {
    let books: BTreeMap<String, Book> = serde_json::from_reader(File::open(books)?)?;
    let log = Arc::new(Mutex::new(File::options().write(true).open(log)?));
    let ready = Arc::new(Barrier::new(places.len()));
    let mut threads = Vec::new();
    for (index, place) in places.iter().enumerate() {
        let mut parts = place.splitn(3, '=').map(str::to_owned);
        let mut part = || parts.next().context("NAME=PROVIDER=FOLDER is meant");
        let (name, provider, folder) = (part()?, part()?, part()?);
        let book = books.get(&name).cloned().unwrap_or_default();
        let random = Random::new(seed.wrapping_add(index as u64 * 7919));
        let mut lab = Lab::new(name, &provider, folder.as_ref(), book, random, Arc::clone(&log));
        let ready = Arc::clone(&ready);
        threads.push(std::thread::spawn(move || {
            let looked = verify::everything(&mut lab);
            if let Err(error) = &looked {
                let _ = lab.say(Report::Fault { text: format!("after the reboot: {error:#}") });
            }
            ready.wait();
            if work && looked.is_ok() {
                let Err(error) = work::until_cut(&mut lab);
                let _ = lab.say(Report::Fault { text: format!("at work: {error:#}") });
            }
        }));
    }
    for thread in threads {
        let _ = thread.join();
    }
    Ok(())
}
