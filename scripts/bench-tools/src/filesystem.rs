//! What ah costs on a filesystem that snapshots by itself, beside that filesystem's own command: whole process against whole process,
//! one after the other in turn, so that a noisy machine is as unkind to both. Runs in a virtual machine too, so it needs nothing but
//! the programs that it measures.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::{change, generate};

const SMALL: usize = 100;

/// What is measured, and how often.
pub(crate) struct Options<'a> {
    /// `btrfs` or `zfs`.
    pub(crate) mechanism: &'a str,
    /// A folder on that filesystem; for ZFS, where the pool of the same name is mounted.
    pub(crate) dir: &'a Path,
    /// The program.
    pub(crate) ah: &'a Path,
    /// Files of the large workspace.
    pub(crate) files: usize,
    /// How deep the history gets.
    pub(crate) snapshots: usize,
    /// Runs of each.
    pub(crate) runs: usize,
    /// The user that runs ah, if it is not this one.
    pub(crate) user: Option<u32>,
}

/// Measures, and prints a table in Markdown.
pub(crate) fn run(options: &Options<'_>) -> Result<()> {
    let bench = Bench { options, native: 0.into() };
    println!("| what | ah | beside it | ratio | bar | |\n|---|---|---|---|---|---|");
    let (small, large) = (bench.workspace("small", SMALL)?, bench.workspace("large", options.files)?);
    let status = bench.ah(&small, &["status"])?.1;
    let serves =
        if options.user.is_some() { format!("{}_ahd", options.mechanism) } else { options.mechanism.to_owned() };
    ensure!(status.contains(&format!("provider  {serves}\n")), "{serves} does not serve there: {status}");
    bench.beside_native(&small)?;
    bench.tree_size(&small, &large)?;
    bench.history(&small)
}

struct Bench<'a> {
    options: &'a Options<'a>,
    native: std::cell::Cell<usize>,
}

impl Bench<'_> {
    fn workspace(&self, name: &str, files: usize) -> Result<PathBuf> {
        let path = self.options.dir.join(name);
        match self.options.mechanism {
            "btrfs" => call(Command::new("btrfs").args(["subvolume", "create"]).arg(&path))?,
            _ => call(Command::new("zfs").arg("create").arg(self.dataset(&path)))?,
        };
        generate(&path, files)?;
        if let Some(user) = self.options.user {
            call(Command::new("chown").args(["-R", &format!("{user}:{user}")]).arg(&path))?;
        }
        Ok(path)
    }

    fn dataset(&self, path: &Path) -> String {
        path.display().to_string().trim_start_matches('/').to_owned()
    }

    /// Takes a snapshot with the filesystem's own command.
    fn by_hand(&self, workspace: &Path) -> Result<Duration> {
        let number = self.native.replace(self.native.get() + 1);
        let mut command = match self.options.mechanism {
            "btrfs" => Command::new("btrfs"),
            _ => Command::new("zfs"),
        };
        match self.options.mechanism {
            "btrfs" => {
                let to = workspace.with_extension(format!("by-hand-{number}"));
                command.args(["subvolume", "snapshot", "-r"]).arg(workspace).arg(to)
            }
            _ => command.arg("snapshot").arg(format!("{}@by-hand-{number}", self.dataset(workspace))),
        };
        timed(&mut command).map(|(time, _)| time)
    }

    /// Runs ah in a workspace; gives how long it took and what it printed.
    fn ah(&self, workspace: &Path, arguments: &[&str]) -> Result<(Duration, String)> {
        use std::os::unix::process::CommandExt as _;
        let home = self.options.dir.join("home");
        let mut command = Command::new(self.options.ah);
        command
            .args(["agent", "fs"])
            .args(arguments)
            .current_dir(workspace)
            .env("AH_HOME", home)
            .env("HOME", "/nonexistent");
        if let Some(user) = self.options.user {
            command.uid(user).gid(user);
        }
        timed(&mut command)
    }

    fn snapshot(&self, workspace: &Path) -> Result<Duration> {
        self.ah(workspace, &["snapshot"]).map(|(time, _)| time)
    }

    fn beside_native(&self, small: &Path) -> Result<()> {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        self.snapshot(small)?;
        for run in 0..self.options.runs {
            change(small, SMALL, 10, 2 * run as u64)?;
            ours.push(self.snapshot(small)?);
            change(small, SMALL, 10, 2 * run as u64 + 1)?;
            theirs.push(self.by_hand(small)?);
        }
        let (bar, own) = match (self.options.user, self.options.mechanism) {
            (Some(_), _) => (1.5, "by root"),
            (None, "btrfs") => (1.25, "btrfs subvolume snapshot -r"),
            (None, _) => (1.25, "zfs snapshot"),
        };
        ratio("snapshot, 10 files changed", median(&mut ours), own, median(&mut theirs), bar);
        Ok(())
    }

    fn tree_size(&self, small: &Path, large: &Path) -> Result<()> {
        let [mut snapshots, mut by_hand, mut seeks, mut branches] = [(); 4].map(|()| [Vec::new(), Vec::new()]);
        let mut first_bytes = Vec::new();
        for run in 0..self.options.runs {
            for (at, workspace) in [small, large].into_iter().enumerate() {
                // The same files in both: what differs is the size of the tree, not how far apart its changes lie.
                change(workspace, SMALL, 10, 1_000 + run as u64)?;
                let (time, id) = self.ah(workspace, &["snapshot"])?;
                snapshots[at].push(time);
                change(workspace, SMALL, 10, 2_000 + run as u64)?;
                by_hand[at].push(self.by_hand(workspace)?);
                let began = Instant::now();
                let (time, view) = self.ah(workspace, &["seek", &id])?;
                let file = crate::file(Path::new(&view), 0);
                fs::read(&file).with_context(|| file.display().to_string())?;
                first_bytes.push(began.elapsed());
                seeks[at].push(time);
                self.ah(workspace, &["release", &view])?;
                let name = format!("b{at}-{run}");
                branches[at].push(self.ah(workspace, &["branch", &id, "--name", &name, "--carry", "none"])?.0);
                self.ah(workspace, &["rm", "--force", &name])?;
            }
        }
        let files = self.options.files;
        let [mut small, mut large] = by_hand;
        println!(
            "| (the same by the filesystem's own command) | {:.1} ms | {SMALL} files: {:.1} ms | {:.2} | | |",
            millis(median(&mut large)),
            millis(median(&mut small)),
            median(&mut large).as_secs_f64() / median(&mut small).as_secs_f64()
        );
        for (what, [mut small, mut large]) in [("snapshot", snapshots), ("seek", seeks), ("branch", branches)] {
            ratio(
                &format!("{what}, {files} files"),
                median(&mut large),
                &format!("{SMALL} files"),
                median(&mut small),
                1.2,
            );
        }
        bound("seek, to the first byte read", median(&mut first_bytes), 20.0);
        Ok(())
    }

    fn history(&self, small: &Path) -> Result<()> {
        let deep = self.workspace("deep", SMALL)?;
        let count = self.options.snapshots;
        let [mut early, mut late, mut early_by_hand, mut late_by_hand] = [(); 4].map(|()| Vec::new());
        for run in 0..count {
            change(&deep, SMALL, 2, run as u64)?;
            let time = self.snapshot(&deep)?;
            let (times, by_hand) = match run {
                5..25 => (&mut early, &mut early_by_hand),
                _ if run + 20 >= count => (&mut late, &mut late_by_hand),
                _ => continue,
            };
            times.push(time);
            change(&deep, SMALL, 2, (count + run) as u64)?;
            by_hand.push(self.by_hand(&deep)?);
        }
        println!(
            "| (the same by the filesystem's own command) | {:.1} ms | numbers 6–25: {:.1} ms | {:.2} | | |",
            millis(median(&mut late_by_hand)),
            millis(median(&mut early_by_hand)),
            median(&mut late_by_hand).as_secs_f64() / median(&mut early_by_hand).as_secs_f64()
        );
        ratio(&format!("snapshot number {count}"), median(&mut late), "numbers 6–25", median(&mut early), 1.25);
        let mut lists =
            (0..self.options.runs).map(|_| Ok(self.ah(&deep, &["snapshots"])?.0)).collect::<Result<Vec<_>>>()?;
        bound(&format!("list of {count} snapshots"), median(&mut lists), 50.0);
        let listed = self.ah(&deep, &["snapshots", "--json"])?.1;
        let ids: Vec<&str> = listed.split("\"id\":\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        ensure!(ids.len() >= count, "{} of {count} snapshots are listed", ids.len());
        // Usual is what a snapshot costs of another workspace just before.
        let mut usual = (0..self.options.runs)
            .map(|run| change(small, SMALL, 2, run as u64).and_then(|()| self.snapshot(small)))
            .collect::<Result<Vec<_>>>()?;
        let gone = AtomicBool::new(false);
        let meanwhile = std::thread::scope(|scope| {
            let removing = scope.spawn(|| {
                let outcome = Bench { options: self.options, native: 0.into() }.remove(&deep, &ids);
                gone.store(true, Ordering::Release);
                outcome
            });
            let mut taken = Vec::new();
            while !gone.load(Ordering::Acquire) {
                change(small, SMALL, 2, 7_000 + taken.len() as u64)?;
                taken.push(self.snapshot(small)?);
            }
            let took = removing.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
            println!("| removing {count} snapshots | {:.0} ms | | | | |", millis(took));
            Ok::<_, anyhow::Error>(taken)
        })?;
        let longest = meanwhile.into_iter().max().unwrap_or_default();
        ratio("longest snapshot while they are removed", longest, "usual", median(&mut usual), 2.0);
        Ok(())
    }

    fn remove(&self, workspace: &Path, ids: &[&str]) -> Result<Duration> {
        let began = Instant::now();
        self.ah(workspace, &[&["rm", "--force"], ids].concat())?;
        Ok(began.elapsed())
    }
}

fn timed(command: &mut Command) -> Result<(Duration, String)> {
    let began = Instant::now();
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("{command:?}"))?;
    let time = began.elapsed();
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok((time, String::from_utf8_lossy(&output.stdout).trim().to_owned()))
}

fn call(command: &mut Command) -> Result<()> {
    timed(command).map(drop)
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

fn met(is: bool) -> &'static str {
    if is { "met" } else { "**missed**" }
}

fn ratio(what: &str, ours: Duration, beside: &str, theirs: Duration, bar: f64) {
    let ratio = ours.as_secs_f64() / theirs.as_secs_f64();
    let (ours, theirs) = (millis(ours), millis(theirs));
    println!("| {what} | {ours:.1} ms | {beside}: {theirs:.1} ms | {ratio:.2} | ≤ {bar:.2} | {} |", met(ratio <= bar));
}

fn bound(what: &str, ours: Duration, bar: f64) {
    println!("| {what} | {:.1} ms | | | < {bar} ms | {} |", millis(ours), met(millis(ours) < bar));
}
