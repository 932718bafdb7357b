//! Points at which a test can kill the process or make a write fail.
//!
//! Every durable step calls [`point`] with its name just before it. In ordinary use that costs one relaxed load. Only tests of this crate
//! set a hook, once a process; the command line's tests kill the real program from outside.

use std::io;
use std::sync::OnceLock;

type Hook = Box<dyn Fn(&str) -> io::Result<()> + Send + Sync>;

static HOOK: OnceLock<Hook> = OnceLock::new();

/// Sets what happens at each point, for the rest of the process; false if something was set before. The hook may exit or kill
/// the process, or return the error that the step shall fail with.
pub fn set_hook(hook: impl Fn(&str) -> io::Result<()> + Send + Sync + 'static) -> bool {
    HOOK.set(Box::new(hook)).is_ok()
}

/// A durable step named `name` comes next.
///
/// # Errors
/// What the hook returns; nothing without one.
#[inline]
pub fn point(name: &str) -> io::Result<()> {
    HOOK.get().map_or(Ok(()), |hook| hook(name))
}
