//! Cancellation: what was asked to stop stops, and leaves nothing half.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ah_plugin_api::{
    Capability, CloneRequest, Context, DiffRequest, Error, ErrorKind, FileName, MountRequest, Observer, Progress,
    Provider, ReclaimRequest, Side, SnapshotRequest,
};

use crate::case::{Case, Check, Need, Trouble, describe, ensure};
use crate::fixture::{Fixture, Taken};

const CANCELLED: &str = "Returns early when the caller wants the operation to stop.";
const NOTHING_HALF: &str = "An operation that fails leaves nothing behind that `reclaim` does not remove, and no snapshot that `list` shows is incomplete.";

pub(super) const CASES: &[Case] = &[
    Case { id: "cancel.snapshot", clauses: &[CANCELLED, NOTHING_HALF], needs: &[], run: snapshot },
    Case { id: "cancel.mount", clauses: &[CANCELLED, NOTHING_HALF], needs: &[], run: mount },
    Case {
        id: "cancel.clone",
        clauses: &[CANCELLED, NOTHING_HALF],
        needs: &[Need::Has(Capability::Clone)],
        run: clone,
    },
    Case { id: "cancel.diff", clauses: &[CANCELLED], needs: &[Need::Has(Capability::Diff)], run: diff },
    Case { id: "cancel.reclaim", clauses: &[CANCELLED, "Never touches a complete snapshot"], needs: &[], run: reclaim },
    Case {
        id: "cancel.prompt",
        clauses: &["Providers call this at least every 100 ms of work."],
        needs: &[Need::Quiet],
        run: prompt,
    },
    Case { id: "cancel.progress", clauses: &["Units done.", "Units in all, where known."], needs: &[], run: progress },
];

/// Says stop from the nth time on that it is asked.
struct StopAt {
    at: u64,
    asked: AtomicU64,
}

impl StopAt {
    fn new(at: u64) -> Self {
        Self { at, asked: AtomicU64::new(0) }
    }
}

impl Observer for StopAt {
    fn cancelled(&self) -> bool {
        self.asked.fetch_add(1, Ordering::Relaxed) >= self.at
    }
}

/// When to stop: at once, and at ever later times, until the operation is done before.
const STOPS: [u64; 12] = [0, 1, 2, 3, 5, 10, 30, 60, 100, 200, 400, 100_000];

/// A call that was asked to stop may have been done already; anything but that and `Cancelled` is wrong.
fn cancelled_or<T>(result: Result<T, Error>, what: &str) -> Check<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind == ErrorKind::Cancelled => Ok(None),
        Err(error) => Err(Trouble::Failed(format!("{what}, cancelled, answered {}", describe(&error)))),
    }
}

fn fill(f: &Fixture) -> Check {
    f.provider().look_away();
    f.ws.sample()?;
    for i in 0..120 {
        f.ws.write(format!("many/{}/file-{i}", i % 7), format!("contents of {i}"))?;
    }
    Ok(())
}

fn nothing_at(f: &Fixture, name: &str) -> Check {
    let path = f.folder().path().join(name);
    ensure!(path.symlink_metadata().is_err(), "a cancelled operation left {name} behind, which reclaim did not remove");
    let left = std::fs::read_dir(f.folder().path())?.count();
    ensure!(left == 0, "a cancelled operation left {left} things in the target folder");
    Ok(())
}

fn snapshot(f: &Fixture) -> Check {
    fill(f)?;
    let before = f.take("before")?;
    let mut done = Vec::new();
    for (i, at) in STOPS.into_iter().enumerate() {
        // So that there is something to do each time.
        f.ws.write("many/1/changing", i.to_string())?;
        for j in 0..30 {
            f.ws.write(format!("many/new-{i}/{j}"), format!("{i} {j}"))?;
        }
        let request = f.request(&format!("s{i}"));
        let tree = crate::tree::Tree::walk(f.ws.root())?;
        let stop = StopAt::new(at);
        let result = f.provider().snapshot(&f.place(), &request, &Context::new(&stop));
        let listed = f.ids()?.contains(&request.id.to_string());
        match cancelled_or(result, "snapshot")? {
            Some(snapshot) => {
                ensure!(listed, "a snapshot was made, but is not listed");
                done.push(Taken { snapshot, tree });
            }
            None => {
                ensure!(!listed, "a cancelled snapshot is listed");
                again(f, &request, i, &mut done)?;
            }
        }
    }
    f.shows(&before)?;
    done.iter().step_by(2).try_for_each(|taken| f.views(taken))
}

/// The same id again, which nothing may have taken; half the time after `reclaim`.
fn again(f: &Fixture, request: &SnapshotRequest, i: usize, done: &mut Vec<Taken>) -> Check {
    if i.is_multiple_of(2) {
        f.reclaim()?;
    }
    done.push(f.take_with(request, &[])?);
    Ok(())
}

fn mount(f: &Fixture) -> Check {
    fill(f)?;
    let taken = f.take("a")?;
    for at in STOPS {
        let request = MountRequest { snapshot: taken.reference(), name: FileName::new("v")?, paths: Vec::new() };
        let stop = StopAt::new(at);
        let result = f.provider().mount(&f.place_without_workspace(), &request, &Context::new(&stop));
        if let Some(view) = cancelled_or(result, "mount")? {
            f.unmount(&view)?;
        } else {
            f.reclaim()?;
        }
        nothing_at(f, "v")?;
    }
    f.shows(&taken)
}

fn clone(f: &Fixture) -> Check {
    fill(f)?;
    let taken = f.take("a")?;
    for at in STOPS {
        let request = CloneRequest { snapshot: taken.reference(), name: FileName::new("fork")? };
        let stop = StopAt::new(at);
        let result = f.provider().clone_snapshot(&f.place(), &request, &Context::new(&stop));
        if let Some(clone) = cancelled_or(result, "clone_snapshot")? {
            f.destroy_clone(&clone)?;
        } else {
            f.reclaim()?;
        }
        nothing_at(f, "fork")?;
    }
    f.shows(&taken)
}

fn diff(f: &Fixture) -> Check {
    fill(f)?;
    let taken = f.take("a")?;
    f.ws.write("many/1/file-1", "changed")?;
    let request = DiffRequest {
        from: Side::Snapshot(taken.reference()),
        to: Side::Workspace,
        paths: Vec::new(),
        times: false,
        policy: Default::default(),
    };
    for at in STOPS {
        let stop = StopAt::new(at);
        let result = f.provider().diff(&f.place(), &request, &Context::new(&stop));
        if let Some(changes) = cancelled_or(result, "diff")? {
            ensure!(changes.changes.len() == 1, "one file changed, listed are {:?}", changes.changes);
        }
    }
    Ok(())
}

fn reclaim(f: &Fixture) -> Check {
    fill(f)?;
    let mut taken = Vec::new();
    for i in 0..8 {
        f.ws.write("README.md", i.to_string())?;
        taken.push(f.take(&format!("s{i}"))?);
    }
    f.destroy(&taken.remove(3))?;
    for at in STOPS {
        let stop = StopAt::new(at);
        let place = f.place_without_workspace();
        let result = f.provider().reclaim(&place, &ReclaimRequest::default(), &Context::new(&stop));
        cancelled_or(result, "reclaim")?;
    }
    f.reclaim()?;
    taken.iter().try_for_each(|taken| f.views(taken))
}

/// Asked to stop before it began, a long operation must not go on to its end.
fn prompt(f: &Fixture) -> Check {
    f.provider().look_away();
    for i in 0..4000 {
        f.ws.write(format!("d{}/file-{i}", i % 40), format!("contents of {i}"))?;
    }
    f.ws.write("large", vec![b'x'; 48 << 20])?;
    let start = Instant::now();
    let result = f.provider().snapshot(&f.place(), &f.request("a"), &Context::new(&StopAt::new(0)));
    let took = start.elapsed();
    // Ten times what the contract allows, for slow machines.
    let late = took > Duration::from_secs(1);
    ensure!(!late, "snapshot went on for {:.1} s after it was asked to stop", took.as_secs_f64());
    cancelled_or(result, "snapshot")?;
    Ok(())
}

fn progress(f: &Fixture) -> Check {
    #[derive(Default)]
    struct Odd(AtomicBool);
    impl Observer for Odd {
        fn progress(&self, progress: &Progress) {
            let past = progress.total.is_some_and(|total| progress.done > total);
            if past || progress.stage.trim().is_empty() {
                self.0.store(true, Ordering::Relaxed);
            }
        }
    }
    fill(f)?;
    let odd = Odd::default();
    f.provider().snapshot(&f.place(), &f.request("a"), &Context::new(&odd))?;
    ensure!(!odd.0.load(Ordering::Relaxed), "progress was told without a stage, or of more units than there are");
    Ok(())
}
