//! AgentFS mounted by FUSE: the host on Linux. [`Mount`] shows a tree of `ah-agentfs` at a directory.
//!
//! - `mount`: mounting and unmounting, as root or by `fusermount3`, and what to say where that cannot be.
//! - `host`: what the kernel asks, answered by the tree; what the kernel leaves to a filesystem: groups of directories, and in `change` set-id bits.
//! - `opens`: which files are open, where large ones are passed through; `open`: opening them then.
//! - `aside`: what is done after the kernel was told something.
//! - `lists`: directories that are being read.
//! - `replies`: what the kernel is answered.
//! - `watch`: what somebody changes below, told to the kernel.
//! - `words`: attributes, times and errors in the kernel's words and in the tree's.
//!
//! **No message per open.** The answer to OPEN is that there is no such operation; from then on the kernel opens files by itself, and
//! an open, read and close of what it has cached costs no switch to this process. So there are no handles here.
//!
//! **Passing through**, if it is asked for ([`Face::passthrough`]): then each open is a message, and who reads a large file that lies elsewhere as a whole reads it there, by the kernel alone.
//!
//! **What the kernel may keep.** Only the kernel changes the tree that it shows, so names, absent names, attributes and contents are
//! its to cache for ever. What somebody changes in the lower directory while it is mounted it is told to forget; a snapshot never shows it (see `docs/agentfs.md`).
//!
//! **What a snapshot has.** Every write is handed on before `write` returns: the kernel's writeback cache is not asked for. A shared
//! mapping is written back when the program says so (`msync`), when it goes (`munmap`, or its process's end) or when the kernel likes to: what was not is not in the snapshot.
//!
//! Not here: the service that keeps mounts (`ah-provider-agentfs`). The files of a mount whose process was killed answer `ENOTCONN` until it is unmounted.

#![cfg(target_os = "linux")]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod aside;
mod change;
mod host;
mod lists;
mod mount;
mod open;
mod opens;
mod replies;
mod watch;
mod words;

pub use mount::{Error, Face, Mount, Placed, Result, Spare, available, clear_dead};
pub use opens::Passthrough;
