//! Runs the cases, each with a time limit, in a directory of its own.
//!
//! A provider in a process of its own is killed when a case takes too long, and the next case starts another. One in
//! this process cannot be: its thread is left behind. After a few calls that did not return, the rest is not tried; a case that took
//! too long by all it did, on a slow machine, is none of these.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, mpsc};
use std::time::{Duration, Instant};

use ah_plugin_api::{
    Context, Description, DestroyRequest, Dir, ErrorKind, ListRequest, Place, ProbeRequest, Provider, ReclaimRequest,
    UnmountRequest,
};

use crate::case::{Case, Check, Need, Trouble, describe};
use crate::cases;
use crate::fixture::{Fixture, Witnesses};
use crate::report::{CaseReport, Outcome, Report};
use crate::scratch::{Scratch, mounts_below};
use crate::target::Target;
use crate::witness::Witness;

/// How to run the suite.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where the cases make their directories. A provider for one filesystem only needs a place on it.
    pub scratch: PathBuf,
    /// Only cases whose id contains one of these; empty: all.
    pub only: Vec<String>,
    /// The longest that a case may take.
    pub limit: Duration,
    /// After this many calls that did not return, the rest is not tried.
    pub max_hangs: usize,
    /// Cases that will fail, and why.
    pub expected: Vec<Expected>,
    /// Whether something that this machine lacks counts as a failure.
    pub strict: bool,
    /// The `git` program, for cases about what the user's own git does.
    pub git: Option<PathBuf>,
    /// How many cases run at the same time. Most of their time is spent waiting for the disk.
    pub jobs: usize,
    /// Once true, no further case is begun, and the report says so.
    pub stop: Option<Arc<AtomicBool>>,
}

/// A failure that is known.
#[derive(Debug, Clone)]
pub struct Expected {
    /// The case's id.
    pub case: String,
    /// Why it fails.
    pub reason: String,
}

impl Options {
    /// The usual options, with test directories below `scratch`.
    pub fn new(scratch: impl Into<PathBuf>) -> Self {
        let git = ["/usr/bin/git", "/usr/local/bin/git", "/bin/git"].into_iter().map(PathBuf::from);
        Self {
            scratch: scratch.into(),
            only: Vec::new(),
            limit: Duration::from_secs(60),
            max_hangs: 3,
            expected: Vec::new(),
            strict: false,
            git: git.into_iter().find(|path| path.is_file()),
            jobs: std::thread::available_parallelism().map_or(1, |n| n.get().min(4)),
            stop: None,
        }
    }

    /// Adds a failure that is known.
    #[must_use]
    pub fn expect_failure(mut self, case: &str, reason: &str) -> Self {
        self.expected.push(Expected { case: case.to_owned(), reason: reason.to_owned() });
        self
    }
}

/// Runs the suite. `each` is called after each case, for progress.
pub fn run(target: &Arc<dyn Target>, options: &Options, each: &mut dyn FnMut(&CaseReport)) -> Report {
    let mut report = Report::new(target.name(), target.way());
    if let Some(expected) = options.expected.iter().find(|e| !cases::all().any(|case| case.id == e.case)) {
        report.fault = Some(format!("a failure is expected of {:?}, but there is no such case", expected.case));
        return report.close(options.strict);
    }
    let (description, in_place) = match with_limit(target, options, first_look) {
        Ended::Passed(seen) => seen,
        Ended::Troubled(Trouble::Failed(message) | Trouble::Skip(message), _) => {
            report.fault = Some(message);
            return report.close(options.strict);
        }
        Ended::Late(late) => {
            report.fault = Some(late.message);
            return report.close(options.strict);
        }
    };
    report.provider = Some(description.clone().into());
    let wanted =
        |case: &&Case| options.only.is_empty() || options.only.iter().any(|part| case.id.contains(part.as_str()));
    let cases: Vec<&'static Case> = cases::all().filter(wanted).collect();
    let run = Run { target, options, description, in_place, hangs: AtomicUsize::new(0) };
    let mut done: Vec<Option<CaseReport>> = cases.iter().map(|_| None).collect();
    let (alone, together): (Vec<usize>, Vec<usize>) =
        (0..cases.len()).partition(|&i| cases[i].needs.contains(&Need::Quiet));
    for (jobs, indices) in [(options.jobs.max(1), together), (1, alone)] {
        let (cases, indices, run) = (&cases, &indices, &run);
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let (sender, receiver) = mpsc::channel();
            for _ in 0..jobs {
                let (sender, next) = (sender.clone(), &next);
                scope.spawn(move || {
                    while let Some(&i) = indices.get(next.fetch_add(1, Ordering::Relaxed)) {
                        // The receiver is there for as long as this scope.
                        if run.stopped() || sender.send((i, run.case(cases[i]))).is_err() {
                            break;
                        }
                    }
                });
            }
            drop(sender);
            for (i, case) in receiver {
                each(&case);
                done[i] = Some(case);
            }
        });
    }
    if run.stopped() {
        report.fault = Some("interrupted".to_owned());
    }
    report.cases = done.into_iter().flatten().collect();
    report.close(options.strict)
}

/// What the cases of a run share.
struct Run<'a> {
    target: &'a Arc<dyn Target>,
    options: &'a Options,
    description: Description,
    in_place: bool,
    hangs: AtomicUsize,
}

impl Run<'_> {
    fn stopped(&self) -> bool {
        self.options.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed))
    }

    /// Whether a need is lacking; if so, whether it is the machine that lacks it.
    fn lacking(&self, need: &Need) -> Option<bool> {
        let has = |capability| self.description.capabilities.contains(&capability);
        let root = rustix::process::geteuid().is_root();
        match *need {
            Need::Has(capability) => (!has(capability)).then_some(false),
            Need::Lacks(capability) => has(capability).then_some(false),
            Need::Root => (!root).then_some(true),
            // Root is the one with more cases; the few for an ordinary user need another run.
            Need::User => root.then_some(false),
            Need::Git => self.options.git.is_none().then_some(true),
            // Not the machine's fault either: it is the way that was chosen.
            Need::OwnProcess => (self.target.way() != crate::Way::Socket).then_some(false),
            Need::Quiet => None,
            Need::InPlace => (!self.in_place).then_some(false),
        }
    }

    fn case(&self, case: &'static Case) -> CaseReport {
        let start = Instant::now();
        let outcome = self.outcome(case);
        CaseReport { id: case.id, clauses: case.clauses, outcome, took: start.elapsed() }
    }

    fn outcome(&self, case: &Case) -> Outcome {
        if let Some((need, prerequisite)) = case.needs.iter().find_map(|need| Some((need, self.lacking(need)?))) {
            return Outcome::Skipped { reason: need.to_string(), prerequisite };
        }
        if self.hangs.load(Ordering::Relaxed) >= self.options.max_hangs {
            let message = "not tried, after so many calls that hung".to_owned();
            return Outcome::Failed { message, trace: Vec::new() };
        }
        let expected = self.options.expected.iter().find(|expected| expected.case == case.id);
        match (with_limit(self.target, self.options, case.run), expected) {
            (Ended::Passed(()), None) => Outcome::Passed,
            (Ended::Passed(()), Some(expected)) => Outcome::UnexpectedPass { reason: expected.reason.clone() },
            (Ended::Troubled(Trouble::Skip(reason), _), _) => Outcome::Skipped { reason, prerequisite: true },
            (Ended::Troubled(Trouble::Failed(message), _), Some(expected)) => {
                Outcome::ExpectedFailure { reason: expected.reason.clone(), message }
            }
            (Ended::Troubled(Trouble::Failed(message), trace), None) => Outcome::Failed { message, trace },
            // Never expected: nobody can live with a call that does not return.
            (Ended::Late(late), _) => {
                if late.hangs {
                    self.hangs.fetch_add(1, Ordering::Relaxed);
                }
                Outcome::Failed { message: late.message, trace: Vec::new() }
            }
        }
    }
}

/// All cases, for a list.
pub fn all_cases() -> impl Iterator<Item = &'static Case> {
    cases::all()
}

/// Opens the provider and asks whether it can serve here at all; otherwise every case would fail for one reason. Gives what it says of itself, and whether
/// the workspace is captured where it is.
fn first_look(f: &Fixture) -> Check<(Description, bool)> {
    let description = f.provider().describe();
    let probe = f.provider().probe(&f.place(), &ProbeRequest::default(), &Context::quiet())?;
    if !probe.usable {
        let remedy = probe.remedy.map(|remedy| format!("; {remedy}")).unwrap_or_default();
        return Err(Trouble::Failed(format!(
            "the provider {} cannot serve a directory like {}: {}{remedy}; name a place that it is for (`--scratch DIR`)",
            description.name,
            f.ws.root().display(),
            probe.reason
        )));
    }
    Ok((description, f.is_in_place()))
}

enum Ended<T> {
    Passed(T),
    Troubled(Trouble, Vec<String>),
    Late(Late),
}

/// Why a case was not over in time.
struct Late {
    message: String,
    /// Whether one call has had as long as the whole case.
    hangs: bool,
}

impl Late {
    /// A call that was made late has its time, too, which `wait` waits for, before it is the one to blame.
    fn of(witnesses: &Witnesses, limit: Duration, wait: impl FnOnce(Duration)) -> Self {
        let longest = || {
            let running = seen_by(witnesses).into_iter().flat_map(|witness| witness.running());
            running.max_by_key(|(_, since)| *since)
        };
        let began = longest();
        if let Some((_, since)) = began {
            wait(limit.saturating_sub(since));
        }
        let limited = limit.as_secs_f64();
        match (began, longest()) {
            (_, Some((name, since))) if since >= limit => {
                let since = since.as_secs_f64();
                let message = format!("{name}, called {since:.0} s ago, did not return within the case's {limited} s");
                Self { message, hangs: true }
            }
            (began, _) => {
                let had_run =
                    |(name, since): (_, Duration)| format!(" ({name} had run for {:.0} s)", since.as_secs_f64());
                let had_run = began.map(had_run).unwrap_or_default();
                let message = format!("the case took more than {limited} s{had_run}: `--limit` gives it more");
                Self { message, hangs: false }
            }
        }
    }
}

fn seen_by(witnesses: &Witnesses) -> Vec<Arc<Witness>> {
    witnesses.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Runs `body` in a thread and a directory of its own, and clears up behind it.
fn with_limit<T: Send + 'static>(
    target: &Arc<dyn Target>,
    options: &Options,
    body: fn(&Fixture) -> Check<T>,
) -> Ended<T> {
    let scratch = match Scratch::new(&options.scratch) {
        Ok(scratch) => scratch,
        Err(error) => {
            let message = format!("no directory for tests can be made in {}: {error}", options.scratch.display());
            return Ended::Troubled(Trouble::Failed(message), Vec::new());
        }
    };
    let witnesses = Witnesses::default();
    let (sender, receiver) = mpsc::channel();
    let thread = {
        let (target, witnesses) = (target.clone(), witnesses.clone());
        let (root, git) = (scratch.path().to_owned(), options.git.clone());
        std::thread::spawn(move || {
            let ended = catch_unwind(AssertUnwindSafe(|| {
                let fixture = Fixture::new(target, &root, witnesses, git)?;
                let result = body(&fixture)?;
                finish(&fixture)?;
                Ok(result)
            }));
            let ended = ended.unwrap_or_else(|panic| {
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                Err(Trouble::Failed(format!("the case panicked: {}", text.unwrap_or_default())))
            });
            // Nobody listens any more if it took too long.
            let _ = sender.send(ended);
        })
    };
    let received = receiver.recv_timeout(options.limit);
    let received = received.map_err(|_| Late::of(&witnesses, options.limit, |rest| _ = receiver.recv_timeout(rest)));
    let seen = seen_by(&witnesses);
    let ended = match received {
        Ok(Ok(result)) => judge(&seen)
            .map_or(Ended::Passed(result), |message| Ended::Troubled(Trouble::Failed(message), trace(&seen))),
        Ok(Err(Trouble::Failed(message))) => {
            // What the witness saw is nearer to the cause than what came of it.
            let message = judge(&seen).map_or(message.clone(), |cause| format!("{message}; {cause}"));
            Ended::Troubled(Trouble::Failed(message), trace(&seen))
        }
        Ok(Err(skip)) => Ended::Troubled(skip, Vec::new()),
        Err(late) => Ended::Late(late),
    };
    for witness in &seen {
        if let (Ended::Late(_), Some(process)) = (&ended, &witness.instance().process) {
            process.kill();
        }
    }
    if matches!(ended, Ended::Late(_)) {
        // What it may still be writing would be in the way of clearing up. One that hangs in a call never ends; the suite's own work does, but may take
        // long on a busy machine.
        let start = Instant::now();
        let in_a_call = || seen.iter().any(|witness| !witness.running().is_empty());
        let patience = || Duration::from_secs(if in_a_call() { 3 } else { 60 });
        while !thread.is_finished() && start.elapsed() < patience() {
            std::thread::sleep(Duration::from_millis(10));
        }
    } else {
        // Its result has arrived, so it is as good as done.
        let _ = thread.join();
    }
    drop(seen);
    let mut cleared = scratch.clear();
    if cleared.is_err() {
        // A filesystem's own snapshots are not to be removed as files are; who made them can.
        give_back(target, scratch.path());
        cleared = scratch.clear();
    }
    let Err(error) = cleared else { return ended };
    let left = format!("what the case made in {} could not be removed afterwards: {error}", scratch.path().display());
    match ended {
        Ended::Troubled(Trouble::Failed(message), trace) => {
            Ended::Troubled(Trouble::Failed(format!("{message}; {left}")), trace)
        }
        Ended::Late(late) => Ended::Late(Late { message: format!("{}; {left}", late.message), ..late }),
        Ended::Passed(_) | Ended::Troubled(Trouble::Skip(_), _) => Ended::Troubled(Trouble::Failed(left), Vec::new()),
    }
}

/// Gives back what a case has mounted, and fails if mounts stay all the same.
fn finish(f: &Fixture) -> Check {
    for view in f.provider().views() {
        let request = UnmountRequest { view, unused: false };
        match f.provider().unmount(&f.place_without_workspace(), &request, &Context::quiet()) {
            Ok(_) => {}
            Err(error) if error.kind == ErrorKind::NotFound => {}
            Err(error) => return Err(Trouble::Failed(format!("at the end of the case: {}", describe(&error)))),
        }
    }
    let left: Vec<_> = mounts_below(&f.beside("target")).iter().map(|path| path.display().to_string()).collect();
    crate::case::ensure!(left.is_empty(), "mounts are left behind: {}", left.join(", "));
    untouched_outside(&f.outside())
}

/// Has the provider remove everything from all stores that a case has used: any directory of it may be one.
fn give_back(target: &Arc<dyn Target>, root: &Path) {
    let Ok(instance) = target.open() else { return };
    let (provider, cx) = (&instance.provider, Context::quiet());
    let Ok(folder) = Dir::open(root.join("target")) else { return };
    for entry in std::fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if ["workspace", "target"].iter().any(|other| name == *other) {
            continue;
        }
        let Ok(store) = Dir::open(entry.path()) else { continue };
        let place = Place::new(&store).with_target(&folder);
        for snapshot in provider.list(&place, &ListRequest::default(), &cx).unwrap_or_default() {
            // What cannot be removed fails the case, when its directory is cleared.
            let _ = provider.destroy(&place, &DestroyRequest::Snapshot(snapshot.reference), &cx);
        }
        let _ = provider.reclaim(&place, &ReclaimRequest::default(), &cx);
    }
}

fn untouched_outside(outside: &Path) -> Check {
    let intact = std::fs::read(outside.join("precious/file")).is_ok_and(|bytes| bytes == b"precious\n")
        && std::fs::read_dir(outside)?.count() == 1
        && std::fs::read_dir(outside.join("precious"))?.count() == 1;
    crate::case::ensure!(intact, "a directory that is none of the provider's business was changed");
    Ok(())
}

fn judge(seen: &[Arc<Witness>]) -> Option<String> {
    let died = seen.iter().filter_map(|witness| witness.died());
    let mut found: Vec<String> = died.chain(seen.iter().flat_map(|witness| witness.violations())).collect();
    found.truncate(4);
    (!found.is_empty()).then(|| found.join("; "))
}

fn trace(seen: &[Arc<Witness>]) -> Vec<String> {
    seen.iter().flat_map(|witness| witness.trace()).collect()
}
