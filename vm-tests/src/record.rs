//! What the workload of the power cuts reported, and what follows from it: what must be there after a reboot, what must not, and what
//! may be either way because it was under way.
//!
//! The program in the guest and the host keep the same book by the same rules: the guest says each [`Report`] to the host at once, and
//! the host hands its [`Book`] to the guest that boots next.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// A tree in three numbers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Digest {
    /// What a restore gives back: names, kinds, permission bits, contents, targets of symlinks, owners, users' extended attributes.
    pub plain: String,
    /// What a branch has: the same, and which names are of one file.
    pub linked: String,
    /// What a snapshot holds: the same, and modification times.
    pub timed: String,
}

/// One line from the guest.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Report {
    /// A snapshot is about to be taken of a tree like this.
    Snapshot {
        /// Its label; none for the one that a restore takes first.
        label: Option<String>,
        /// The workspace.
        digest: Digest,
    },
    /// It was reported as taken and durable.
    SnapshotDone {
        /// Its id.
        id: String,
        /// What it shows.
        digest: Digest,
    },
    /// A snapshot is about to be removed.
    Remove {
        /// Its id.
        id: String,
    },
    /// It was reported as removed.
    RemoveDone {
        /// Its id.
        id: String,
    },
    /// A branch is about to be made.
    Branch {
        /// Its name.
        name: String,
        /// What it is to show.
        digest: Digest,
        /// The commit that is to be its HEAD, where that is known.
        head: Option<String>,
    },
    /// It was reported as made.
    BranchDone {
        /// Its name.
        name: String,
    },
    /// A branch is about to be removed.
    RemoveBranch {
        /// Its name.
        name: String,
    },
    /// It was reported as removed.
    RemoveBranchDone {
        /// Its name.
        name: String,
    },
    /// The user is about to change the workspace.
    Change,
    /// A restore or an undo is about to make something else of the workspace, all of which is on disk.
    PutBack {
        /// What it is.
        before: Digest,
        /// What it is to be.
        after: Digest,
    },
    /// It was reported as done. Nobody waits until that is on disk.
    PutBackDone,
    /// The user is about to commit.
    Commit,
    /// That is on disk.
    CommitDone {
        /// What came of it.
        repository: Repository,
    },
    /// Everything was looked at after a reboot, and this is what stands from now on.
    Verified {
        /// The book.
        book: Box<Book>,
        /// Snapshots whose contents were compared.
        compared: usize,
        /// Restores that were interrupted, and finished or taken back.
        interrupted: usize,
    },
    /// All that there was to look at was looked at, and work begins.
    Ready,
    /// Something is not as it must be, or a command failed that must not.
    Fault {
        /// What.
        text: String,
    },
    /// Something worth a line.
    Note {
        /// What.
        text: String,
    },
}

/// A branch that was reported as made.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Branch {
    /// What it shows.
    pub digest: Digest,
    /// Its HEAD, where that is known.
    pub head: Option<String>,
    /// The filesystem was written out since.
    pub synced: bool,
}

/// The workspace, as far as it is known: its user has changed nothing since.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Present {
    /// What it was before the last restore, or undo.
    pub before: Digest,
    /// What it is after it.
    pub after: Digest,
    /// Whether that was reported as done. If not, it may be either, or something between of which `status` tells.
    pub done: bool,
}

/// A repository as its user left it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repository {
    /// All of it, and what git ignores in the workspace: nothing that `ah` may change.
    pub digest: Digest,
    /// The commit at HEAD.
    pub head: String,
}

/// What follows from the reports.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Book {
    /// Must be there and show this.
    pub snapshots: BTreeMap<String, Digest>,
    /// May be there; then they must show what stands here. By label.
    pub maybe: BTreeMap<String, Digest>,
    /// The same for those without a label, which restores take first.
    pub maybe_safety: BTreeSet<Digest>,
    /// Was being removed: may be there, whole.
    pub removing: BTreeMap<String, Digest>,
    /// Must not be there.
    pub removed: BTreeSet<String>,
    /// Must be listed.
    pub branches: BTreeMap<String, Branch>,
    /// May be listed.
    pub maybe_branches: BTreeMap<String, Branch>,
    /// Must not be listed.
    pub removed_branches: BTreeSet<String>,
    /// The workspace, unless its user was at work in it.
    pub workspace: Option<Present>,
    /// The user's repository, unless they were at work in it.
    pub repository: Option<Repository>,
    /// What HEAD was when a snapshot was taken, as far as it is known.
    pub heads: BTreeMap<String, String>,
}

impl Book {
    /// Enters what was reported.
    pub fn enter(&mut self, report: &Report) {
        match report {
            Report::Snapshot { label: Some(label), digest } => {
                self.maybe.insert(label.clone(), digest.clone());
            }
            Report::Snapshot { label: None, digest } => {
                self.maybe_safety.insert(digest.clone());
            }
            Report::SnapshotDone { id, digest } => {
                self.snapshots.insert(id.clone(), digest.clone());
                self.maybe.retain(|_, maybe| maybe != digest);
                self.maybe_safety.remove(digest);
                if let Some(repository) = &self.repository {
                    self.heads.insert(id.clone(), repository.head.clone());
                }
            }
            Report::Remove { id } => {
                if let Some(digest) = self.snapshots.remove(id) {
                    self.removing.insert(id.clone(), digest);
                }
            }
            Report::RemoveDone { id } => {
                self.removing.remove(id);
                self.heads.remove(id);
                self.removed.insert(id.clone());
            }
            Report::Branch { name, digest, head } => {
                let branch = Branch { digest: digest.clone(), head: head.clone(), synced: false };
                self.maybe_branches.insert(name.clone(), branch);
            }
            Report::BranchDone { name } => {
                if let Some(branch) = self.maybe_branches.remove(name) {
                    self.branches.insert(name.clone(), branch);
                }
            }
            Report::RemoveBranch { name } => {
                if let Some(branch) = self.branches.remove(name) {
                    self.maybe_branches.insert(name.clone(), Branch { synced: false, ..branch });
                }
            }
            Report::RemoveBranchDone { name } => {
                self.maybe_branches.remove(name);
                self.removed_branches.insert(name.clone());
            }
            Report::Change => self.workspace = None,
            Report::PutBack { before, after } => {
                let (before, after) = (before.clone(), after.clone());
                self.workspace = Some(Present { before, after, done: false });
            }
            Report::PutBackDone => {
                if let Some(present) = &mut self.workspace {
                    present.done = true;
                }
            }
            Report::Commit => self.repository = None,
            Report::CommitDone { repository } => self.repository = Some(repository.clone()),
            Report::Verified { book, .. } => *self = Book::clone(book),
            Report::Ready | Report::Fault { .. } | Report::Note { .. } => {}
        }
    }
}

/// A report with the workspace that it is about.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Line {
    /// Its kind's name; none: all of them.
    pub lab: String,
    /// What.
    pub report: Report,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_under_way_may_be_either_way_and_what_was_reported_not() {
        let digest = |text: &str| Digest { plain: text.to_owned(), linked: text.to_owned(), timed: text.to_owned() };
        let mut book = Book::default();
        book.enter(&Report::Snapshot { label: Some("l".into()), digest: digest("1") });
        assert!(book.maybe.contains_key("l") && book.snapshots.is_empty());
        book.enter(&Report::SnapshotDone { id: "a".into(), digest: digest("1") });
        assert!(book.maybe.is_empty() && book.snapshots.contains_key("a"));
        book.enter(&Report::Remove { id: "a".into() });
        assert!(book.snapshots.is_empty() && book.removing.contains_key("a"));
        book.enter(&Report::RemoveDone { id: "a".into() });
        assert!(book.removing.is_empty() && book.removed.contains("a"));
        let repository = Repository { digest: digest("g"), head: "c".into() };
        book.enter(&Report::CommitDone { repository });
        book.enter(&Report::SnapshotDone { id: "b".into(), digest: digest("2") });
        assert_eq!(book.heads["b"], "c");
        book.enter(&Report::Commit);
        assert!(book.repository.is_none(), "as long as the user works on it, nothing is known");
        book.enter(&Report::PutBack { before: digest("2"), after: digest("1") });
        assert!(book.workspace.as_ref().is_some_and(|present| !present.done));
        book.enter(&Report::PutBackDone);
        assert!(book.workspace.as_ref().is_some_and(|present| present.done));
        book.enter(&Report::Change);
        assert!(book.workspace.is_none(), "nor of what the user changes");
        let line =
            serde_json::to_string(&Line { lab: "zfs".into(), report: Report::Remove { id: "a".into() } }).unwrap();
        assert_eq!(line, r#"{"lab":"zfs","report":{"remove":{"id":"a"}}}"#);
    }
}
