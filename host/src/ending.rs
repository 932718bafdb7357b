//! Ends a process in which libraries run, and names the library that does so itself.
//!
//! `exit` in a library takes this process along, with whatever number it was given: 0 would read as if all had been done, and nothing would
//! say otherwise. So where a library's code runs stands here, and a handler of `atexit` tells whose library ended the process in what, and makes the number 1.
//!
//! The main thread runs libraries only while they are loaded. Otherwise, when it ends the process, the program has come to its end, and a call
//! that is open then was given up. A child that a library forked is another process, and ends as it likes.
//!
//! No signal is handled: after one nothing in the process can be relied upon. What `abort` or a crash ends (or `_exit`, which passes over
//! handlers) of a worker, `ah-core` wrote down before it called for a snapshot (`moments/trying.rs`); who typed a command sees the signal.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use ah_plugin_api::wire::{DEFECT, Op};
use ah_plugin_api::{Error, ErrorKind};
use nix::unistd::{Pid, getpid, gettid};

use crate::report::told;
use crate::sys;
use crate::trial::Trace;

/// Ends this process with `code`: the last thing in `main`, when all is done, dropped and written out.
///
/// Where a library was loaded, at once: its finalizers (`.fini_array`, `atexit`, destructors of static values) would run when nobody
/// watches them any more, and could hang, crash or change the code of what was done. A provider has to bear being killed anyway.
pub fn leave(code: u8) -> ! {
    if PROCESS.get().is_some() {
        sys::exit(code)
    }
    std::process::exit(code.into())
}

/// This process, once it has run a library's code.
static PROCESS: OnceLock<Pid> = OnceLock::new();

/// What a library is doing.
pub(crate) enum Doing {
    /// It is being loaded; with what is remembered of its file, if anything is.
    Loading(Option<Trace>),
    /// An operation of its provider.
    Call(Op),
}

/// Where code of the library runs that `what` names.
struct Open {
    thread: Pid,
    what: Arc<str>,
    doing: Doing,
}

static OPEN: Mutex<Vec<Open>> = Mutex::new(Vec::new());

fn open() -> MutexGuard<'static, Vec<Open>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says that this thread runs a library's code, until it is dropped there.
pub(crate) struct Inside;

impl Inside {
    pub(crate) fn begin(what: &Arc<str>, doing: Doing) -> Self {
        PROCESS.get_or_init(|| {
            sys::at_exit(tell);
            getpid()
        });
        open().push(Open { thread: gettid(), what: Arc::clone(what), doing });
        Self
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let me = gettid();
        open().retain(|it| it.thread != me);
    }
}

/// Runs when the process ends by `exit`, on the thread that called it.
extern "C" fn tell() {
    let (me, process) = (gettid(), getpid());
    // Before the lock is asked for: in a forked child nobody may be left to give it back.
    if PROCESS.get() != Some(&process) {
        return;
    }
    let error = {
        let open = open();
        let mine = open.iter().find(|it| it.thread == me);
        // A thread that a library started is not known; then it is most likely what was begun last.
        let Some(Open { what, doing, .. }) = mine.or_else(|| open.last().filter(|_| me != process)) else { return };
        let during = match doing {
            Doing::Loading(trace) => {
                // It was fine once: the next time it is tried again, where it does no harm.
                trace.iter().for_each(Trace::forget);
                "while it was loaded".to_owned()
            }
            Doing::Call(op) => format!("in its operation {op}"),
        };
        Error::new(ErrorKind::Internal, format!("{what} ended the process {during}")).with_hint(DEFECT)
    };
    sys::end(&told(&error), 1)
}
