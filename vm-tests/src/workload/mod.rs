//! In the guest: looks at everything that was reported before the last power cut, then works until the next one.
//!
//! One thread for each workspace. `verify` looks (`interrupted` at what a restore left), `work` works, `tree` makes and measures directory trees, `repository` is what concerns
//! Git, `helper` is `ahd`; `lab` calls `ah` and reports to the host.

mod helper;
mod interrupted;
mod lab;
mod repository;
mod tree;
mod verify;
mod work;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::kinds::Kind;
use crate::random::Random;
use crate::record::{Book, Report};
use helper::Helper;
use lab::{Lab, Log};

pub use lab::views;

/// So many workspaces are looked at at once, as many as are worked in: emulated, more would only take each other's time.
const AT_ONCE: usize = 3;

/// What is to be done between two cuts.
#[derive(Debug)]
pub struct Inside<'a> {
    /// The kinds to look at: those that were worked in when the power went, or all.
    pub look: &'a [String],
    /// The kinds to work in.
    pub work: &'a [String],
    /// What was reported.
    pub books: &'a Path,
    /// Where randomness comes from.
    pub seed: u64,
    /// The way to the host.
    pub log: &'a Path,
}

impl Inside<'_> {
    /// Does it.
    pub fn run(&self) -> Result<()> {
        let log = Log::open(self.log)?;
        let done = self.look_and_work(&log);
        if let Err(error) = &done {
            log.say("", Report::Fault { text: format!("{error:#}") })?;
        }
        done
    }

    fn look_and_work(&self, log: &Log) -> Result<()> {
        let mut books: BTreeMap<String, Book> = serde_json::from_reader(File::open(self.books)?)?;
        let mut random = Random::new(self.seed);
        let mut lab = |name: &String, book: Book| -> Result<Lab> {
            let kind = Kind::find(name).with_context(|| format!("there is no kind {name}"))?;
            Ok(Lab::new(kind, book, Random::new(random.number()), log.clone()))
        };
        let mut helper = Helper::start()?;
        let labs = self.look.iter().map(|name| lab(name, books.remove(name).unwrap_or_default()));
        let (mut labs, mut looked) = (labs.collect::<Result<Vec<_>>>()?, Vec::new());
        while !labs.is_empty() {
            let rest = labs.split_off(labs.len().min(AT_ONCE));
            looked.append(&mut each(labs, |lab| verify::everything(lab).context("after the reboot"))?);
            labs = rest;
        }
        let by_helper: Vec<_> = looked.iter().filter(|lab| lab.kind.by_helper()).collect();
        if !by_helper.is_empty() {
            helper.look(&by_helper).context("after the reboot")?;
            helper = Helper::start().context("ahd was killed")?;
        }
        log.say("", Report::Ready)?;
        let mut known: BTreeMap<_, _> = looked.into_iter().map(|lab| (lab.kind.name.to_owned(), lab.book)).collect();
        let labs = self.work.iter().map(|name| {
            let book = known.remove(name).or_else(|| books.remove(name)).unwrap_or_default();
            lab(name, book)
        });
        each(labs.collect::<Result<_>>()?, |lab| work::until_cut(lab).context("at work"))?;
        drop(helper);
        Ok(())
    }
}

/// Does something with each at the same time; gives them back, or the first one's error, with its name.
fn each(labs: Vec<Lab>, act: fn(&mut Lab) -> Result<()>) -> Result<Vec<Lab>> {
    let threads = labs.into_iter().map(|mut lab| {
        std::thread::spawn(move || {
            let done = act(&mut lab).context(lab.kind.name);
            if let Err(error) = &done {
                // At once: others may go on for long.
                let _ = lab.say(Report::Fault { text: format!("{error:#}") });
            }
            done.map(|()| lab)
        })
    });
    let threads: Vec<_> = threads.collect();
    threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?).collect()
}
