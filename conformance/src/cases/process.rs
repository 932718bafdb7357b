//! Guarantees 4 and 5 where the provider has a process of its own that can be killed, and what has to survive a process in
//! general.

use std::time::Duration;

use ah_plugin_api::{Capability, Context, Durability, Provider};

use crate::case::{Case, Check, Need, Trouble, ensure};
use crate::fixture::{Fixture, Taken};
use crate::tree::Tree;

pub(super) const CASES: &[Case] = &[
    Case {
        id: "process.survives",
        clauses: &[
            "When `snapshot` returns, the snapshot survives the kill of any process",
            "The kill of any process, from the moment the call returned",
        ],
        needs: &[],
        run: survives,
    },
    Case {
        id: "process.killed-in-snapshot",
        clauses: &[
            "A process may be killed between any two system calls.",
            "Finishes or undoes what crashes left in the store",
        ],
        needs: &[Need::OwnProcess],
        run: killed_in_snapshot,
    },
    Case {
        id: "process.killed-in-clone",
        clauses: &["A process may be killed between any two system calls."],
        needs: &[Need::OwnProcess, Need::Has(Capability::Clone)],
        run: killed_in_clone,
    },
    Case {
        id: "process.killed-in-reclaim",
        clauses: &["Never touches a complete snapshot", "A process may be killed between any two system calls."],
        needs: &[Need::OwnProcess],
        run: killed_in_reclaim,
    },
];

/// By the way of a socket, the process that took it is killed; else, another instance has to know it.
fn survives(f: &Fixture) -> Check {
    f.ws.sample()?;
    let maker = f.another()?;
    let instant = maker.take("instant")?;
    let mut request = maker.request("durable");
    request.durability = Durability::Durable;
    let durable = maker.take_with(&request, &[])?;
    kill(&maker);
    drop(maker);
    ensure!(f.ids()? == ["instant", "durable"], "after the kill {:?} are listed", f.ids()?);
    f.shows(&instant)?;
    f.shows(&durable)
}

fn kill(f: &Fixture) {
    if let Some(process) = &f.provider().instance().process {
        process.kill();
    }
}

/// Delays after which a process is killed, up to `whole`, how long the work takes undisturbed.
fn delays(whole: Duration, count: u32) -> impl Iterator<Item = Duration> {
    (0..count).map(move |i| whole * i / count)
}

fn fill(f: &Fixture, step: u32) -> Check {
    for i in 0..100 {
        f.ws.write(format!("many/{}/file-{i}", i % 5), format!("contents {step} of {i} {}", "x".repeat(2000)))?;
    }
    Ok(())
}

/// Runs `call` with a process of its own, and kills that after `delay`.
fn killed<T: Send>(f: &Fixture, delay: Duration, call: impl FnOnce(&Fixture) -> T + Send) -> Check<T> {
    let victim = f.another()?;
    victim.provider().look_away();
    // Awake and connected, so that the delay is spent in the call.
    victim.ids()?;
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| call(&victim));
        std::thread::sleep(delay);
        kill(&victim);
        thread.join().map_err(|_| Trouble::Failed("the suite's thread panicked".to_owned()))
    })
}

fn killed_in_snapshot(f: &Fixture) -> Check {
    f.provider().look_away();
    f.ws.sample()?;
    fill(f, 0)?;
    let start = std::time::Instant::now();
    let mut whole = vec![f.take("first")?];
    let took = start.elapsed();
    let mut cut_off = 0;
    for (step, delay) in (1..).zip(delays(took, 10)) {
        fill(f, step)?;
        let tree = Tree::walk(f.ws.root())?;
        let request = f.request(&format!("s{step}"));
        let result =
            killed(f, delay, |victim| victim.provider().snapshot(&victim.place(), &request, &Context::quiet()))?;
        cut_off += u32::from(result.is_err());
        // It may be there although its answer never came; what is listed is whole.
        let listed = f.list()?.into_iter().find(|snapshot| snapshot.id == request.id);
        ensure!(result.is_err() || listed.is_some(), "the answer came, then the kill, and the snapshot is gone");
        if step % 2 == 0 {
            f.reclaim()?;
        }
        match listed {
            Some(listed) => {
                let snapshot = f.stat(&listed.reference)?;
                let taken = Taken { snapshot, tree };
                f.views(&taken)?;
                whole.push(taken);
            }
            None => {
                let taken = f.take_with(&request, &[])?;
                f.views(&taken)?;
                whole.push(taken);
            }
        }
    }
    ensure!(cut_off > 0, "no kill came before the answer: nothing was tried");
    f.reclaim()?;
    whole.iter().step_by(3).try_for_each(|taken| f.views(taken))?;
    whole.last().map_or(Ok(()), |taken| f.shows(taken))
}

fn killed_in_clone(f: &Fixture) -> Check {
    f.provider().look_away();
    f.ws.sample()?;
    fill(f, 0)?;
    let taken = f.take("a")?;
    let start = std::time::Instant::now();
    let clone = f.try_clone(&taken.reference(), "whole")?;
    let took = start.elapsed();
    // Where more than the workspace is cloned, its copy is somewhere below the name.
    let below = clone.path.strip_prefix(f.folder().path().join("whole")).unwrap_or(std::path::Path::new("")).to_owned();
    f.destroy_clone(&clone)?;
    let mut cut_off = 0;
    for (i, delay) in delays(took, 8).enumerate() {
        let name = format!("half-{i}");
        let result = killed(f, delay, |victim| victim.try_clone(&taken.reference(), &name))?;
        cut_off += u32::from(result.is_err());
        f.reclaim()?;
        if let Ok(clone) = result {
            f.destroy_clone(&clone)?;
        }
        let half = f.folder().path().join(&name);
        if half.symlink_metadata().is_ok() {
            // Done, and killed before it could say so: whole, then.
            let shown = Tree::walk(&half.join(&below))?;
            let differences = f.expected(&taken).differences(&shown, crate::tree::Modes::Exact);
            crate::case::same("a clone that was cut off and that reclaim left there", &differences)?;
            // Nobody was given a reference to it.
            f.reclaim_forgotten(&[&name])?;
            ensure!(
                half.symlink_metadata().is_err(),
                "a clone that nobody was told of stays, although it was named to reclaim"
            );
        } else {
            let again = f.try_clone(&taken.reference(), &name)?;
            f.destroy_clone(&again)?;
        }
    }
    ensure!(cut_off > 0, "no kill came before the answer: nothing was tried");
    f.shows(&taken)
}

fn killed_in_reclaim(f: &Fixture) -> Check {
    f.provider().look_away();
    f.ws.sample()?;
    let mut kept = Vec::new();
    for step in 0..6 {
        fill(f, step)?;
        let taken = f.take(&format!("s{step}"))?;
        if step % 2 == 0 {
            f.destroy(&taken)?;
        } else {
            kept.push(taken);
        }
    }
    let mut cut_off = 0;
    for delay in delays(Duration::from_millis(40), 8) {
        cut_off += u32::from(killed(f, delay, Fixture::reclaim)?.is_err());
        f.views(&kept[0])?;
    }
    ensure!(cut_off > 0, "no kill came before the answer: nothing was tried");
    f.reclaim()?;
    kept.iter().try_for_each(|taken| f.views(taken))
}
