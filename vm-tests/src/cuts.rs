//! Power cuts: boots, lets the guest look at what it had reported and work on, and takes its power away at a random instant.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};

use crate::disk::{Disk, Loss};
use crate::kinds::{KINDS, Kind, Turns};
use crate::machine::{Backing, Event, KernelLog, Machine, Setup};
use crate::random::Random;
use crate::record::{Book, Line, Report};

/// How large a disk is. Sparse.
const DISK: u64 = 2 << 30;
/// The disk with the helper's own state.
const SYSTEM: &str = "system";
/// How long the guest may say nothing.
const SILENCE: Duration = Duration::from_secs(180);
/// The longest time that a workload has.
const LONGEST: u64 = 12_000;
/// A workspace of which nothing was heard for so long may hang. In every second boot the cut waits for it then.
const QUIET: Duration = Duration::from_secs(6);

/// What a run of cuts is.
#[derive(Debug)]
pub struct Cuts {
    /// The machine, without disks and command.
    pub setup: Setup,
    /// The disks whose workspaces are worked in: of `git`, `btrfs`, `zfs`.
    pub places: Vec<String>,
    /// How often.
    pub count: u32,
    /// Where randomness comes from.
    pub seed: u64,
    /// Where this program lies, for the guest.
    pub program: PathBuf,
    /// `guest/cuts.sh`.
    pub script: PathBuf,
    /// Where the disks are put, in a folder of their own. They are kept there when something was wrong.
    pub disks: PathBuf,
}

/// What a run saw.
#[derive(Debug, Default)]
pub struct Tally {
    /// Snapshots that were compared after a cut.
    pub compared: usize,
    /// Operations that were reported as done.
    pub done: usize,
    /// Those of them that the helper had a part in.
    pub by_helper: usize,
    /// Cuts while an operation was under way.
    pub amid: usize,
    /// Restores that a cut interrupted, and that were finished or taken back.
    pub interrupted: usize,
    /// Blocks that were written and not flushed when power went, and those of them that were lost.
    pub loss: Loss,
}

/// Everything that changes from boot to boot.
struct Run<'c> {
    cuts: &'c Cuts,
    folder: PathBuf,
    books: BTreeMap<String, Book>,
    disks: Vec<(String, Disk)>,
    turns: Turns,
    /// The kinds that were worked in before the last cut.
    worked: Vec<&'static Kind>,
    random: Random,
    tally: Tally,
}

/// When power goes.
enum When {
    /// So long after work began.
    After(Duration),
    /// So long after so many operations were reported as done.
    Done(usize, Duration),
}

impl Cuts {
    /// Carries them out. An error says at which cut what was wrong.
    pub fn run(&self, say: &mut dyn FnMut(&str)) -> Result<Tally> {
        let folder = tempfile::Builder::new().prefix("cuts.").tempdir_in(&self.disks)?;
        let mut disks = Vec::new();
        for place in self.places.iter().chain([&SYSTEM.to_owned()]) {
            disks.push((place.clone(), Disk::new(&folder.path().join(place), DISK)?));
        }
        let mut run = Run {
            cuts: self,
            folder: folder.path().to_owned(),
            books: BTreeMap::new(),
            disks,
            turns: Turns::new(self.seed),
            worked: Vec::new(),
            random: Random::new(self.seed),
            tally: Tally::default(),
        };
        // The last boot only looks, at all that there are.
        for number in 1..=self.count + 1 {
            let last = number > self.count;
            let what = if last { "the last look".to_owned() } else { format!("cut {number} of {}", self.count) };
            let line = run.boot(number == 1, last).with_context(|| format!("{what} (--seed {})", self.seed));
            match line {
                Ok(line) => say(&format!("{what}: {line}")),
                Err(error) => {
                    let kept = folder.keep();
                    return Err(error.context(format!("the disks are kept in {}", kept.display())));
                }
            }
        }
        Ok(run.tally)
    }
}

impl Run<'_> {
    fn boot(&mut self, first: bool, last: bool) -> Result<String> {
        let started = Instant::now();
        let mut setup = self.cuts.setup.clone();
        let books = self.folder.join("books.json");
        fs::write(&books, serde_json::to_vec(&self.books)?)?;
        let when = if first { "first" } else { "again" };
        // Others share their disks, so at last all that were ever worked in.
        let known = |kind: &&Kind| self.books.contains_key(kind.name);
        let look = if last { KINDS.iter().filter(known).collect() } else { std::mem::take(&mut self.worked) };
        let work = if last { Vec::new() } else { self.turns.next(&self.cuts.places) };
        let all = KINDS.iter().filter(|kind| self.cuts.places.iter().any(|place| place == kind.disk));
        let all: Vec<_> = all.map(Kind::for_script).collect();
        let options = |option: &str, kinds: &[&Kind]| -> String {
            kinds.iter().map(|kind| format!(" --{option} {}", kind.name)).collect()
        };
        let seed = self.random.number() >> 1;
        setup.payload.command = format!(
            "set -e; bash ./cuts.sh {when} {}; exec ah-vm inside --books books.json --seed {seed} --log $AH_VM_LOG{}{}",
            all.join(" "),
            options("look", &look),
            options("work", &work)
        );
        self.worked = work;
        setup.payload.files = vec![books, self.cuts.script.clone()];
        setup.payload.programs.push(self.cuts.program.clone());
        let sockets = tempfile::Builder::new().prefix("ah-disks.").tempdir()?;
        let (mut kernel, mut tries, others) = (KernelLog::default(), 0, setup.disks.len());
        let mut machine = Machine::up(&mut kernel, || {
            tries += 1;
            setup.disks.truncate(others);
            for (name, disk) in &mut self.disks {
                let socket = sockets.path().join(format!("{name}.{tries}"));
                disk.serve(&socket)?;
                setup.disks.push((name.clone(), Backing::Nbd(socket)));
            }
            Machine::start(&setup)
        })?;
        let heard = self.listen(&mut machine, kernel, last)?;
        let worked = heard.worked.map_or(0, |at| at.elapsed().as_millis());
        machine.cut();
        // What was said until then counts: it had arrived.
        let mut amid = heard.amid;
        while let Ok(event) = machine.next(Duration::from_secs(5)) {
            match event {
                Event::Log(line) => _ = self.hear(&line, &mut amid)?,
                Event::Ended => break,
                _ => {}
            }
        }
        let mut loss = Loss::default();
        for (_, disk) in &mut self.disks {
            let one = disk.cut(&mut self.random);
            loss.unflushed += one.unflushed;
            loss.lost += one.lost;
        }
        self.tally.loss.unflushed += loss.unflushed;
        self.tally.loss.lost += loss.lost;
        self.tally.amid += usize::from(amid > 0);
        let kinds: Vec<_> = self.worked.iter().map(|kind| kind.name).collect();
        Ok(format!(
            "{kinds}: {} snapshots compared after {:.1} s, {} operations in {worked} ms, {amid} under way, {} of {} unflushed blocks lost",
            heard.compared,
            (started.elapsed().as_millis() as f64 - worked as f64) / 1000.0,
            heard.done,
            loss.lost,
            loss.unflushed,
            kinds = if last { "nothing more".to_owned() } else { kinds.join(", ") },
        ))
    }

    /// Hears the guest until its instant has come, or until it ends, if it only looks.
    fn listen(&mut self, machine: &mut Machine, mut kernel: KernelLog, last: bool) -> Result<Heard> {
        let when = if self.random.below(2) == 0 {
            When::After(Duration::from_millis(self.random.below(LONGEST)))
        } else {
            let count = usize::try_from(1 + self.random.below(20))?;
            When::Done(count, Duration::from_micros(self.random.below(30_000)))
        };
        let (mut heard, mut output) = (Heard::default(), String::new());
        let (mut ready, mut end) = (false, None::<Instant>);
        loop {
            let wait = end.map_or(SILENCE, |end| end.saturating_duration_since(Instant::now()));
            let event = match machine.next(wait) {
                Ok(event) => event,
                Err(_) if end.is_some() && matches!(when, When::After(_)) => return Ok(heard),
                Err(_) if end.is_some() => match heard.quiet(&self.worked) {
                    None => return Ok(heard),
                    Some((name, since)) if since > SILENCE => {
                        bail!("{name} said nothing at work for {} s: {}", since.as_secs(), kernel.text())
                    }
                    Some(_) => {
                        end = Some(Instant::now() + QUIET / 10);
                        continue;
                    }
                },
                Err(error) => return Err(error.context(kernel.text())),
            };
            match event {
                Event::Kernel(line) => kernel.add(line),
                Event::Out(bytes) => output.push_str(&String::from_utf8_lossy(&bytes)),
                Event::Log(line) if line.starts_with("exit ") => {
                    if last && line == "exit 0" && ready {
                        return Ok(heard);
                    }
                    bail!("the guest ended ({line}): {output}");
                }
                Event::Log(line) => {
                    let before = (self.tally.done, self.tally.compared);
                    let lab = self.hear(&line, &mut heard.amid)?;
                    heard.done += self.tally.done - before.0;
                    heard.compared += self.tally.compared - before.1;
                    heard.said.insert(lab, Instant::now());
                    ready |= line.contains("\"ready\"");
                    if ready && heard.worked.is_none() && !last {
                        heard.worked = Some(Instant::now());
                        let longest = match when {
                            When::After(time) => time,
                            When::Done(..) => Duration::from_millis(LONGEST),
                        };
                        end = Some(Instant::now() + longest);
                    }
                    if let (When::Done(count, more), Some(_)) = (&when, heard.worked)
                        && heard.done == *count
                    {
                        end = Some(Instant::now() + *more);
                    }
                }
                Event::Ended => return Err(anyhow!("{output}{}", kernel.text()).context("the guest went away")),
            }
        }
    }

    /// Enters a line in the books, and says whose it is.
    fn hear(&mut self, line: &str, amid: &mut usize) -> Result<String> {
        let line: Line = serde_json::from_str(line).with_context(|| format!("from the guest: {line}"))?;
        match &line.report {
            Report::Fault { text } => bail!("{text}"),
            Report::Note { .. } | Report::Ready | Report::Change | Report::PutBack { .. } | Report::PutBackDone => {}
            Report::Verified { compared, interrupted, .. } => {
                self.tally.compared += compared;
                self.tally.interrupted += interrupted;
            }
            Report::Snapshot { .. }
            | Report::Remove { .. }
            | Report::Branch { .. }
            | Report::RemoveBranch { .. }
            | Report::Commit => *amid += 1,
            Report::SnapshotDone { .. }
            | Report::RemoveDone { .. }
            | Report::BranchDone { .. }
            | Report::RemoveBranchDone { .. }
            | Report::CommitDone { .. } => {
                *amid = amid.saturating_sub(1);
                self.tally.done += 1;
                self.tally.by_helper += usize::from(Kind::find(&line.lab).is_some_and(Kind::by_helper));
            }
        }
        self.books.entry(line.lab.clone()).or_default().enter(&line.report);
        Ok(line.lab)
    }
}

/// What was heard of one boot.
#[derive(Default)]
struct Heard {
    worked: Option<Instant>,
    /// When something was last heard of each workspace.
    said: BTreeMap<String, Instant>,
    amid: usize,
    done: usize,
    compared: usize,
}

impl Heard {
    /// One of these at work of which nothing was heard for long, and since when.
    fn quiet(&self, kinds: &[&'static Kind]) -> Option<(&'static str, Duration)> {
        let since = |kind: &&'static Kind| self.said.get(kind.name).copied().max(self.worked).map(|at| at.elapsed());
        let long = kinds.iter().filter_map(|kind| Some((kind.name, since(kind)?))).max_by_key(|(_, since)| *since);
        long.filter(|(_, since)| *since > QUIET)
    }
}

/// Where `guest/` is: in the sources that this program was built from.
pub fn guest_files() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("guest")
}
