//! Names the library that ends the process in the middle of a call.
//!
//! `exit` in a library takes this process along, with whatever number it was given: 0 would read as if all had been done, and nothing would
//! say otherwise. So the calls that are open stand here, and a handler of `atexit` tells whose library ended the process in which operation, and makes the number 1.
//!
//! The main thread is nobody's: when it ends the process, the program has come to its end, and a call that is open then was given up. Nor does
//! it run a library; so in a child that a library forked, whose only thread is its main thread, the handler does nothing either.
//!
//! No signal is handled: after one nothing in the process can be relied upon. What `abort` or a crash ends (or `_exit`, which passes over
//! handlers) of a worker, `ah-core` wrote down before it called for a snapshot (`moments/trying.rs`); who typed a command sees the signal.

use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use ah_plugin_api::wire::{DEFECT, Op};
use ah_plugin_api::{Error, ErrorKind};
use nix::unistd::{Pid, getpid, gettid};

use crate::report::told;
use crate::sys;

/// A call that is open, of the provider that `what` names.
struct Open {
    thread: Pid,
    what: Arc<str>,
    op: Op,
}

static OPEN: Mutex<Vec<Open>> = Mutex::new(Vec::new());

fn open() -> MutexGuard<'static, Vec<Open>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says that this thread runs a library's code, until it is dropped there.
pub(crate) struct Call;

impl Call {
    pub(crate) fn begin(what: &Arc<str>, op: Op) -> Self {
        static HANDLER: Once = Once::new();
        HANDLER.call_once(|| sys::at_exit(tell));
        open().push(Open { thread: gettid(), what: Arc::clone(what), op });
        Self
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let me = gettid();
        open().retain(|call| call.thread != me);
    }
}

/// Runs when the process ends by `exit`, on the thread that called it.
extern "C" fn tell() {
    let me = gettid();
    if me == getpid() {
        return;
    }
    let error = {
        let open = open();
        // A thread that a library started is not known; then it is most likely the call that was begun last.
        let Some(Open { what, op, .. }) = open.iter().find(|call| call.thread == me).or_else(|| open.last()) else {
            return;
        };
        Error::new(ErrorKind::Internal, format!("{what} ended the process in its operation {op}")).with_hint(DEFECT)
    };
    sys::end(&told(&error), 1)
}
