//! AgentFS for programs that are not Rust: a C interface to its core, for hosts on other systems and for anybody else.
//!
//! `include/agentfs.h` is made from these files by cbindgen, and a test fails when it is not what they say:
//! `AGENTFS_WRITE_HEADER=1 cargo test -p ah-agentfs-c --test header` writes it anew. What holds for all functions stands at its
//! top, which is `header.txt` here.
//!
//! - `types`: what is handed over and back; every size is fixed, and stated.
//! - `outcome`: errors, and the door that every call goes through, which no panic passes.
//! - `workspace`, `view`: the functions.
//!
//! Not here: anything that a host does with it. No logic either: what a function means is said by the core's of the same name.

#![allow(unsafe_code, reason = "a C interface: pointers come in, and are looked at before they are used")]
#![allow(clippy::missing_safety_doc, reason = "one contract for all functions, in the header")]

mod outcome;
mod types;
mod view;
mod workspace;

pub use outcome::{Code, Failure, agentfs_code_text};
pub use types::*;
pub use view::*;
pub use workspace::*;

/// The version of this interface: the upper half changes when a program has to be compiled anew, the lower half when something
/// was added.
pub const AGENTFS_ABI_VERSION: u32 = 0x0001_0001;

/// The version that the library has; a program compares its upper half with that of AGENTFS_ABI_VERSION.
#[unsafe(no_mangle)]
pub extern "C" fn agentfs_abi_version() -> u32 {
    AGENTFS_ABI_VERSION
}
