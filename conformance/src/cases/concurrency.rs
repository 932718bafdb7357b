//! Many threads, and many instances, at once. Over a socket each instance is a process, so that there these are several
//! processes on one store.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::scope;
use std::time::{Duration, Instant};

use ah_plugin_api::{Context, Error, ErrorKind, Provider, SnapshotRequest};

use crate::case::{Case, Check, Trouble, describe, ensure};
use crate::fixture::{Fixture, Taken};
use crate::tree::Tree;

const AT_ONCE: &str =
    "Every method takes `&self` and may be called from many threads, and from many processes on one store, at once.";
const BUSY: &str = "The provider locks what it must, waits at most briefly for another process, then answers `Busy`.";

pub(super) const CASES: &[Case] = &[
    Case { id: "concurrency.threads", clauses: &[AT_ONCE], needs: &[], run: threads },
    Case { id: "concurrency.instances", clauses: &[AT_ONCE, BUSY], needs: &[], run: instances },
    Case {
        id: "concurrency.one-id",
        clauses: &["`AlreadyExists` if the store has a snapshot of that id.", AT_ONCE],
        needs: &[],
        run: one_id,
    },
    Case {
        id: "concurrency.reclaim",
        clauses: &["Never touches a complete snapshot, nor what another live process is making."],
        needs: &[],
        run: reclaim,
    },
    Case { id: "concurrency.readers", clauses: &[AT_ONCE], needs: &[], run: readers },
    Case {
        id: "concurrency.while-changing",
        clauses: &["no snapshot that `list` shows is incomplete."],
        needs: &[],
        run: while_changing,
    },
    Case {
        id: "concurrency.first-use",
        clauses: &["Made by the caller, empty at first, 0700.", AT_ONCE],
        needs: &[],
        run: first_use,
    },
];

/// Repeats what is `Busy`, for as long as a person would wait.
fn patiently<T>(mut call: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    let start = Instant::now();
    loop {
        match call() {
            Err(error) if error.kind == ErrorKind::Busy && start.elapsed() < Duration::from_secs(20) => {
                std::thread::sleep(Duration::from_millis(5));
            }
            other => return other,
        }
    }
}

fn take(f: &Fixture, request: &SnapshotRequest) -> Result<Taken, Error> {
    let snapshot = patiently(|| f.provider().snapshot(&f.place(), request, &Context::quiet()))?;
    Ok(Taken { snapshot, tree: Tree::default() })
}

/// Each of `hands` takes `count` snapshots of an unchanging workspace, all at once; all of them are there and whole.
fn all_at_once(hands: &[&Fixture], count: usize) -> Check {
    let f = hands[0];
    hands.iter().for_each(|hand| hand.provider().look_away());
    f.ws.sample()?;
    let tree = Tree::walk(f.ws.root())?;
    let taken: Vec<Result<Taken, Error>> = scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|t| {
                let hand = hands[t % hands.len()];
                scope.spawn(move || (0..count).map(|i| take(hand, &hand.request(&format!("t{t}-{i}")))).collect())
            })
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Vec<_>>| thread.join().unwrap_or_default();
        threads.into_iter().flat_map(join).collect()
    });
    ensure!(taken.len() == 4 * count, "{} of {} calls came back", taken.len(), 4 * count);
    let mut listed = f.ids()?;
    listed.sort();
    let mut wanted = Vec::new();
    for result in taken {
        let taken = Taken { tree: tree.clone(), ..result? };
        wanted.push(taken.snapshot.id.to_string());
        f.shows(&taken)?;
    }
    wanted.sort();
    ensure!(listed == wanted, "listed are {listed:?}, taken were {wanted:?}");
    Ok(())
}

fn threads(f: &Fixture) -> Check {
    all_at_once(&[f], 3)
}

fn instances(f: &Fixture) -> Check {
    let others = [f.another()?, f.another()?, f.another()?];
    all_at_once(&[f, &others[0], &others[1], &others[2]], 3)
}

/// The very first use of a store by several at once, each of which finds it empty.
fn first_use(f: &Fixture) -> Check {
    let others = [f.another()?, f.another()?, f.another()?];
    all_at_once(&[&others[0], &others[1], &others[2], f], 1)
}

fn one_id(f: &Fixture) -> Check {
    let other = f.another()?;
    f.provider().look_away();
    other.provider().look_away();
    f.ws.sample()?;
    for round in 0..4 {
        let request = f.request(&format!("same-{round}"));
        let results: Vec<_> = scope(|scope| {
            let threads: Vec<_> = [f, &other, f, &other]
                .into_iter()
                .map(|hand| {
                    let request = &request;
                    scope.spawn(move || take(hand, request))
                })
                .collect();
            threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
        });
        let made = results.iter().filter(|result| result.is_ok()).count();
        ensure!(made == 1, "of 4 snapshots with one id {made} were made");
        for error in results.iter().filter_map(|result| result.as_ref().err()) {
            ensure!(error.kind == ErrorKind::AlreadyExists, "the others were answered {}", describe(error));
        }
        let listed = f.ids()?.into_iter().filter(|id| *id == request.id.as_str()).count();
        ensure!(listed == 1, "it is listed {listed} times");
        let tree = Tree::walk(f.ws.root())?;
        for taken in results.into_iter().flatten() {
            f.shows(&Taken { tree: tree.clone(), ..taken })?;
        }
    }
    Ok(())
}

/// One tidies up all the time while others make and destroy.
fn reclaim(f: &Fixture) -> Check {
    let other = f.another()?;
    f.provider().look_away();
    other.provider().look_away();
    f.ws.sample()?;
    let stop = AtomicBool::new(false);
    let mut kept = Vec::new();
    let tidied = scope(|scope| -> Check {
        let tidy = scope.spawn(|| -> Check {
            while !stop.load(Ordering::Relaxed) {
                match other.reclaim() {
                    Ok(()) => {}
                    Err(Trouble::Failed(message)) if message.starts_with(ErrorKind::Busy.as_str()) => {}
                    Err(trouble) => return Err(trouble),
                }
            }
            Ok(())
        });
        let work = (0..12).try_for_each(|i| -> Check {
            f.ws.write("README.md", format!("step {i}"))?;
            let tree = Tree::walk(f.ws.root())?;
            let taken = Taken { tree, ..take(f, &f.request(&format!("s{i}")))? };
            if i % 3 == 0 {
                patiently(|| {
                    let request = ah_plugin_api::DestroyRequest::Snapshot(taken.reference());
                    f.provider().destroy(&f.place_without_workspace(), &request, &Context::quiet())
                })?;
            } else {
                kept.push(taken);
            }
            Ok(())
        });
        stop.store(true, Ordering::Relaxed);
        let tidied = tidy.join().unwrap_or_else(|_| Err(Trouble::Failed("the suite's thread panicked".to_owned())));
        work.and(tidied)
    });
    tidied?;
    let wanted: Vec<_> = kept.iter().map(|taken| taken.snapshot.id.to_string()).collect();
    ensure!(f.ids()? == wanted, "listed are {:?}, should be {wanted:?}", f.ids()?);
    kept.iter().try_for_each(|taken| f.shows(taken))
}

/// Some look while another makes and destroys what does not concern them.
fn readers(f: &Fixture) -> Check {
    let other = f.another()?;
    f.provider().look_away();
    other.provider().look_away();
    f.ws.sample()?;
    let a = f.take("a")?;
    let stop = AtomicBool::new(false);
    scope(|scope| -> Check {
        let writer = scope.spawn(|| -> Check {
            let mut i = 0;
            while !stop.load(Ordering::Relaxed) {
                i += 1;
                f.ws.write("README.md", format!("step {i}"))?;
                let taken = take(&other, &other.request(&format!("s{i}")))?;
                let request = ah_plugin_api::DestroyRequest::Snapshot(taken.reference());
                patiently(|| other.provider().destroy(&other.place(), &request, &Context::quiet()))?;
                if i % 5 == 0 {
                    patiently(|| other.provider().reclaim(&other.place(), &Default::default(), &Context::quiet()))?;
                }
            }
            Ok(())
        });
        let read = (0..6).try_for_each(|_| -> Check {
            f.shows(&a)?;
            ensure!(f.ids()?.contains(&"a".to_owned()), "a snapshot is not listed while others come and go");
            Ok(())
        });
        stop.store(true, Ordering::Relaxed);
        let written = writer.join().unwrap_or_else(|_| Err(Trouble::Failed("the suite's thread panicked".to_owned())));
        read.and(written)
    })
}

/// Files come, go and change while they are captured. Each captured file is one that there was.
fn while_changing(f: &Fixture) -> Check {
    f.provider().look_away();
    f.ws.sample()?;
    let stop = AtomicBool::new(false);
    scope(|scope| -> Check {
        let writer = scope.spawn(|| -> std::io::Result<()> {
            let mut i = 0u32;
            while !stop.load(Ordering::Relaxed) {
                i += 1;
                let letter = b'a' + u8::try_from(i % 26).unwrap_or_default();
                // As editors save: whole, under another name, then renamed.
                f.ws.write("new", vec![letter; 50_000])?;
                f.ws.rename("new", format!("saved-{}", i % 5))?;
                f.ws.write(format!("come/{}/and/go", i % 3), "x")?;
                f.ws.remove(format!("come/{}", (i + 1) % 3)).or_else(|error| match error.kind() {
                    std::io::ErrorKind::NotFound => Ok(()),
                    _ => Err(error),
                })?;
            }
            Ok(())
        });
        let work = (0..12).try_for_each(|i| -> Check {
            let request = f.request(&format!("s{i}"));
            let snapshot = f.provider().snapshot(&f.place(), &request, &Context::quiet())?;
            for omission in &snapshot.omitted {
                let changing = omission.reason == ah_plugin_api::OmitReason::Changing;
                ensure!(changing, "{:?} was omitted as {}", omission.path, omission.reason);
            }
            let view = f.mount(&Taken { snapshot, tree: Tree::default() }, "v", &[])?;
            for i in 0..5 {
                let saved = view.path.join(format!("saved-{i}"));
                let Ok(bytes) = std::fs::read(saved) else { continue };
                let whole = bytes.len() == 50_000 && bytes.iter().all(|byte| *byte == bytes[0]);
                ensure!(whole, "a file was captured that never was: {} bytes", bytes.len());
            }
            ensure!(
                std::fs::read(view.path.join("README.md"))? == b"# sample\n",
                "a file that did not change is another"
            );
            f.unmount(&view)
        });
        stop.store(true, Ordering::Relaxed);
        let written = writer.join().map_err(|_| Trouble::Failed("the suite's thread panicked".to_owned()))?;
        work?;
        Ok(written?)
    })
}
