//! Panics inside a plugin: kept off the user's terminal, with their place in the error instead.
//!
//! A plugin has a standard library of its own, and so a panic hook of its own; the host's is not touched.

use std::cell::{Cell, RefCell};
use std::sync::Once;

use crate::error::Result;
use crate::wire;

thread_local! {
    /// Whether an operation runs on this thread.
    static IN_CALL: Cell<bool> = const { Cell::new(false) };
    /// Where the last panic of this thread's operation was.
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs an operation as [`wire::guard`] does; if it panics, the place is among the causes of the error.
pub(crate) fn guard<T>(call: impl FnOnce() -> Result<T>) -> Result<T> {
    install();
    PLACE.take();
    IN_CALL.set(true);
    let result = wire::guard(call);
    IN_CALL.set(false);
    result.map_err(|mut error| {
        error.causes.extend(PLACE.take().map(|place| format!("panicked at {place}")));
        error
    })
}

/// Makes panics of operations silent, unless somebody looks for them. Those of a plugin's own threads are told as ever.
fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let loud = std::env::var_os("RUST_BACKTRACE").is_some_and(|value| value != "0");
        let former = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if IN_CALL.get() {
                PLACE.set(panic.location().map(ToString::to_string));
            }
            if loud || !IN_CALL.get() {
                former(panic);
            }
        }));
    });
}
