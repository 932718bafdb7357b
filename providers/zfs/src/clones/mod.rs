//! Clones: writable datasets grown from a snapshot, mounted where the caller wants them.
//!
//! A clone lies right below the dataset it comes from, so that it has its settings, its quota and its encryption, and goes with it in
//! whatever is done recursively. Mounting one is root's alone on Linux: without that right nothing is made.
//!
//! - [`make`] and what it writes down; [`remove`]; both can be cut off anywhere, and `reclaim` goes on with either ([`resume`]), once
//!   whoever was at it is dead.

mod make;
mod mounting;
mod record;
mod remove;

use ah_provider_directory::{has_capability, in_first_user_namespace};

pub(crate) use make::make;
pub(crate) use mounting::others_may_change;
pub(crate) use record::{Gone, State, Written, all};
pub(crate) use remove::{Outcome, forget_cut_off, remove, resume};

/// capabilities(7).
const CAP_SYS_ADMIN: u32 = 21;

/// Whether this process may mount datasets.
pub(crate) fn allowed() -> bool {
    use std::sync::OnceLock;
    static ALLOWED: OnceLock<bool> = OnceLock::new();
    *ALLOWED.get_or_init(|| has_capability(CAP_SYS_ADMIN) && in_first_user_namespace())
}
