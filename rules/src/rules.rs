//! The rules of a workspace: what holds for all of it, and how to get at those of its directories.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, OnceLock};

use ah_plugin_api::{CapturePolicy, RelPath};
use bstr::ByteSlice;
use sha1::{Digest, Sha1};

use crate::dir_rules::{DirRules, Present};
use crate::open::{self, Links};
use crate::patterns::{Chain, Patterns};
use crate::repository::{Found, GitDir};
use crate::tracked::{IndexStamp, Tracked};

/// The rules of one workspace, as they were when it was opened. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Rules {
    shared: Arc<Shared>,
    /// Rules from outside the workspace: the global file, `info/exclude`, `.gitignore` files above.
    outer: Option<Arc<Chain>>,
    repo: Option<Arc<Repo>>,
    /// The workspace's path in the work tree, with a slash at its end; empty if it is the top.
    prefix: Vec<u8>,
    fingerprint: [u8; 20],
}

/// What does not change from directory to directory.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) include: Patterns,
    pub(crate) exclude: Patterns,
    pub(crate) global: Option<Arc<Chain>>,
    pub(crate) max_file_size: u64,
    pub(crate) max_ignored_size: u64,
    pub(crate) own_state: Vec<RelPath>,
}

/// A repository whose index says what is tracked; the index is read when first needed.
#[derive(Debug)]
pub(crate) struct Repo {
    pub(crate) git_dir: GitDir,
    tracked: OnceLock<Tracked>,
}

impl Repo {
    pub(crate) fn new(git_dir: GitDir) -> Self {
        Self { git_dir, tracked: OnceLock::new() }
    }

    pub(crate) fn tracked(&self) -> &Tracked {
        self.tracked.get_or_init(|| Tracked::read(self.git_dir.git_dir.as_fd()))
    }
}

impl Rules {
    /// Reads what holds for the whole workspace: the policy, and what lies outside its tree.
    ///
    /// Cost: a few system calls; the user's index is read only when something tracked may be ignored.
    #[must_use]
    pub fn open(workspace: BorrowedFd<'_>, policy: &CapturePolicy) -> Self {
        let mut digest = Sha1::new();
        digest_policy(&mut digest, policy);
        let global = Chain::push(None, Patterns::parse(&policy.global_ignore, "global ignore file"), 0);
        let shared = Arc::new(Shared {
            include: Patterns::of_lines(&policy.include, ""),
            exclude: Patterns::of_lines(&policy.exclude, ""),
            global: global.clone(),
            max_file_size: policy.max_file_size,
            max_ignored_size: policy.max_ignored_size,
            own_state: policy.own_state.clone(),
        });
        let plain = Self { shared, outer: global, repo: None, prefix: Vec::new(), fingerprint: [0; 20] };
        let mut this =
            Found::discover(workspace).and_then(|found| plain.clone().inside(found, &mut digest)).unwrap_or(plain);
        this.fingerprint = digest.finalize().into();
        this
    }

    /// Adds the rules of the repository that the workspace is in; none if that one ignores the workspace.
    fn inside(mut self, found: Found, digest: &mut Sha1) -> Option<Self> {
        let mut seen = Sha1::new();
        for part in open::identity(&found.git_dir.git_dir).into_iter().flat_map(|(device, inode)| [device, inode]) {
            seen.update(part.to_le_bytes());
        }
        if let Some(bytes) = found.git_dir.exclude_file() {
            digest_bytes(&mut seen, &bytes);
            self.outer = Chain::push(self.outer.take(), Patterns::parse(&bytes, ".git/info/exclude"), 0);
        }
        let levels = found.above.len();
        for (level, (dir, next)) in found.above.iter().enumerate() {
            if let Some(bytes) = read_gitignore(dir.as_fd()) {
                digest_bytes(&mut seen, &bytes);
                let source = format!("{}.gitignore", "../".repeat(levels - level));
                self.outer = Chain::push(self.outer.take(), Patterns::parse(&bytes, source), self.prefix.len());
            }
            self.prefix.extend_from_slice(next);
            digest_bytes(&mut seen, next);
            if Chain::ignored_by(self.outer.as_ref(), self.prefix.as_bstr(), true).is_some() {
                return None;
            }
            self.prefix.push(b'/');
        }
        digest.update(seen.finalize());
        self.repo = Some(Arc::new(Repo::new(found.git_dir)));
        Some(self)
    }

    /// Equal as long as everything is equal that lies outside the workspace's tree and bears on classes, the user's index
    /// apart ([`Rules::index_stamp`]).
    #[must_use]
    pub fn fingerprint(&self) -> [u8; 20] {
        self.fingerprint
    }

    /// Tells whether the user's index may have changed; all zero without one.
    #[must_use]
    pub fn index_stamp(&self) -> IndexStamp {
        self.repo.as_ref().map(|repo| IndexStamp::read(repo.git_dir.git_dir.as_fd())).unwrap_or_default()
    }

    /// What the user's index has, and the workspace's own path in it (with a slash at its end, or empty). None if there is no
    /// repository.
    #[must_use]
    pub fn tracked(&self) -> Option<(&Tracked, &[u8])> {
        self.repo.as_ref().map(|repo| (repo.tracked(), self.prefix.as_slice()))
    }

    /// Equal as long as the nested repository at `dir` has the same say over what is below it, and the stamp of its index, which is
    /// part of that. `dir` has a `.git`.
    #[must_use]
    pub fn nested_stamp(dir: BorrowedFd<'_>) -> ([u8; 20], IndexStamp) {
        let (mut digest, mut index) = (Sha1::new(), IndexStamp::default());
        if let Some(git_dir) = GitDir::of(dir) {
            digest.update(b"repository");
            digest_bytes(&mut digest, &git_dir.exclude_file().unwrap_or_default());
            index = IndexStamp::read(git_dir.git_dir.as_fd());
            for field in index.fields {
                digest.update(field.to_le_bytes());
            }
        }
        (digest.finalize().into(), index)
    }

    /// The rules inside the workspace's own directory, which `workspace` has open.
    #[must_use]
    pub fn root(&self, workspace: BorrowedFd<'_>) -> DirRules {
        DirRules::root(Arc::clone(&self.shared), self.outer.clone(), self.repo.clone(), self.prefix.clone(), workspace)
    }
}

/// A directory's own `.gitignore`.
pub(crate) fn read_gitignore(dir: BorrowedFd<'_>) -> Option<Vec<u8>> {
    open::read(dir, c".gitignore", Links::Refuse, open::LARGEST_IGNORE_FILE)
}

impl Present {
    /// Says that nothing is known.
    pub(crate) fn unknown() -> Self {
        Self { git: true, gitignore: true }
    }
}

fn digest_policy(digest: &mut Sha1, policy: &CapturePolicy) {
    // Every field is named, so that a new one cannot be forgotten here. `max_entries` changes no class.
    let CapturePolicy { global_ignore, include, exclude, max_file_size, max_ignored_size, max_entries: _, own_state } =
        policy;
    digest_bytes(digest, global_ignore);
    for list in [include, exclude] {
        digest.update((list.len() as u64).to_le_bytes());
        list.iter().for_each(|line| digest_bytes(digest, line.as_bytes()));
    }
    digest.update(max_file_size.to_le_bytes());
    digest.update(max_ignored_size.to_le_bytes());
    own_state.iter().for_each(|path| digest_bytes(digest, path.as_bytes()));
}

fn digest_bytes(digest: &mut Sha1, bytes: &[u8]) {
    digest.update((bytes.len() as u64).to_le_bytes());
    digest.update(bytes);
}
