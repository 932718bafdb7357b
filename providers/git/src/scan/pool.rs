//! Work shared among a few threads. Two helpers, because a known list and a growing queue end differently.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use ah_plugin_api::{Context, Result};

/// How many threads a scan uses. More than a few only fight over the kernel's locks.
pub(crate) fn threads() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from).clamp(1, 8)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A worker that panicked takes the whole scope down anyway.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls `work` for 0..`count`, each once, and gives all results, in no order. The first error ends it early.
pub(crate) fn each<T: Send>(
    count: usize,
    cx: &Context<'_>,
    work: impl Fn(usize, &mut Vec<T>) -> Result<()> + Sync,
) -> Result<Vec<T>> {
    let next = AtomicUsize::new(0);
    let stop = AtomicBool::new(false);
    let run = || -> Result<Vec<T>> {
        let mut out = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= count || stop.load(Ordering::Relaxed) {
                return Ok(out);
            }
            if let Err(error) = cx.check_cancelled().and_then(|()| work(at, &mut out)) {
                stop.store(true, Ordering::Relaxed);
                return Err(error);
            }
        }
    };
    in_threads(threads().min(count), run)
}

/// Runs `work` on `start` and on everything that it pushes, and gives all results, in no order.
pub(crate) fn grow<J: Send, T: Send>(
    start: Vec<J>,
    cx: &Context<'_>,
    work: impl Fn(J, &mut Vec<J>, &mut Vec<T>) -> Result<()> + Sync,
) -> Result<Vec<T>> {
    struct Queue<J> {
        jobs: Vec<J>,
        busy: usize,
        stop: bool,
    }
    let queue = Mutex::new(Queue { jobs: start, busy: 0, stop: false });
    let changed = Condvar::new();
    let run = || -> Result<Vec<T>> {
        let mut out = Vec::new();
        let mut more = Vec::new();
        let mut state = lock(&queue);
        loop {
            if state.stop || (state.jobs.is_empty() && state.busy == 0) {
                changed.notify_all();
                return Ok(out);
            }
            // Last in, first out: the queue stays as small as the tree is deep.
            let Some(job) = state.jobs.pop() else {
                state = changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            state.busy += 1;
            drop(state);
            let call = AssertUnwindSafe(|| cx.check_cancelled().and_then(|()| work(job, &mut more, &mut out)));
            let result = catch_unwind(call);
            state = lock(&queue);
            state.busy -= 1;
            let result = match result {
                Ok(result) => result,
                Err(panic) => {
                    // Or the others would wait for this job for ever.
                    state.stop = true;
                    changed.notify_all();
                    drop(state);
                    resume_unwind(panic);
                }
            };
            if let Err(error) = result {
                state.stop = true;
                changed.notify_all();
                return Err(error);
            }
            if !more.is_empty() {
                state.jobs.append(&mut more);
                changed.notify_all();
            }
        }
    };
    in_threads(threads(), run)
}

/// Runs `run` in this thread and `count - 1` others.
fn in_threads<T: Send>(count: usize, run: impl Fn() -> Result<Vec<T>> + Sync) -> Result<Vec<T>> {
    if count <= 1 {
        return run();
    }
    std::thread::scope(|scope| {
        // Where no more threads are to be had, fewer do the same.
        let others: Vec<_> =
            (1..count).map_while(|_| std::thread::Builder::new().spawn_scoped(scope, &run).ok()).collect();
        let mut all = run();
        for other in others {
            let more = match other.join() {
                Ok(more) => more,
                Err(panic) => resume_unwind(panic),
            };
            match (&mut all, more) {
                (Ok(all), Ok(more)) => all.extend(more),
                (Ok(_), Err(error)) => all = Err(error),
                (Err(_), _) => {}
            }
        }
        all
    })
}

#[cfg(test)]
mod tests {
    use super::{each, grow};
    use ah_plugin_api::{Context, Error, ErrorKind};

    #[test]
    fn every_job_is_done_once() {
        let mut all = each(1000, &Context::quiet(), |at, out| {
            out.push(at);
            Ok(())
        })
        .unwrap();
        all.sort_unstable();
        assert_eq!(all, (0..1000).collect::<Vec<_>>());

        let mut all = grow(vec![1_u32], &Context::quiet(), |job, more, out| {
            out.push(job);
            more.extend([job * 2, job * 2 + 1].into_iter().filter(|&next| next < 512));
            Ok(())
        })
        .unwrap();
        all.sort_unstable();
        assert_eq!(all, (1..512).collect::<Vec<_>>());
    }

    #[test]
    fn an_error_ends_it() {
        let fail = || Error::new(ErrorKind::Internal, "no");
        assert!(each::<()>(1000, &Context::quiet(), |at, _| if at == 10 { Err(fail()) } else { Ok(()) }).is_err());
        let grown = grow::<u32, ()>(vec![0], &Context::quiet(), |job, more, _| {
            more.extend([job + 1, job + 1]);
            if job == 5 { Err(fail()) } else { Ok(()) }
        });
        assert!(grown.is_err());
    }
}
