//! Which files of a workspace are captured: Git's ignore rules, and the policy on top of them.
//!
//! ```text
//! let rules = Rules::open(workspace, &policy)?;      // reads what lies outside the tree: exclude files, parents' .gitignore
//! let root = rules.root(workspace);                  // the rules as they hold in the workspace's own directory
//! let class = root.classify(b"target", EntryKind::Dir, 0);
//! if class.is_captured() { let below = root.enter(b"target", &class, fd_of_target, None); … }
//! ```
//!
//! # Model
//!
//! - *Ignored* is what `git status --ignored` calls so: `.gitignore` of each directory (the nearest wins), `info/exclude`, the
//!   user's global file; below an ignored directory everything is ignored; what the user's index has is never ignored.
//! - A workspace may be the top of a work tree, a directory inside one, or plain (then `.gitignore` files count all the
//!   same). If the repository above ignores the workspace itself, that repository has no say.
//! - A nested repository (or submodule) has its own rules and its own index; the outer `.gitignore` files end at its door.
//! - The policy excludes more, includes some of the ignored, and captures small ignored files outside ignored directories.
//!
//! # Limits
//!
//! Names are compared byte by byte, whatever `core.ignoreCase` says. A `.gitignore` that is a symlink counts as absent, as for Git.
//! One larger than 16 MiB counts as absent too. A pattern with more than three `**` and, in brackets, a slash matches nothing.
//! Git takes off what a pattern begins with up to its first special character before it matches, so that the `**` of `a**/*b` or `/a****` stands at the
//! beginning for it, and matches slashes, or nothing: it ignores `a/b` and `ab`, which are not ignored here.
//!
//! Not here: walking (`scan` in a provider, `walk` in core), finding out what changed, and the user's configuration:
//! patterns and the global file come in with the policy.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod class;
mod dir_rules;
mod open;
mod patterns;
mod repository;
mod rules;
mod staging;
mod tracked;

pub use class::Class;
pub use dir_rules::{DirRules, Present};
pub use open::without_magic;
pub use patterns::pattern_of;
pub use repository::GitDir;
pub use rules::Rules;
pub use staging::{STAGING_PREFIX, is_staging};
pub use tracked::{IndexStamp, LARGEST_INDEX, Tracked, end_of_entries};
