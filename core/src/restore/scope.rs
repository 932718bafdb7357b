//! What a restore may touch at all (DESIGN §4.4): the same on all providers.
//!
//! - Never: `.git` at any depth, `ah`'s own state, what another restore is staging.
//! - Not deleted and not overwritten: what the target snapshot left out, by its topmost omitted path.
//! - Ignored files: made when missing, overwritten only when asked for, deleted only by the undo of what made them.
//!
//! How the rest is put in order is in `plan.rs`.

use std::collections::HashMap;

use ah_plugin_api::{Omission, OmitReason, RelPath, Snapshot};

pub(crate) use ah_rules::STAGING_PREFIX;

/// Which paths a restore is about.
#[derive(Debug, Clone)]
pub(crate) enum Scope {
    /// All.
    Everything,
    /// These and what is below them.
    Below(Vec<RelPath>),
    /// These and nothing else: an undo's.
    Exactly(std::collections::HashSet<RelPath>),
}

impl Scope {
    /// Whether `path` is among them.
    pub(crate) fn holds(&self, path: &RelPath) -> bool {
        match self {
            Scope::Everything => true,
            Scope::Below(tops) => tops.iter().any(|top| path.starts_with(top)),
            Scope::Exactly(paths) => paths.contains(path),
        }
    }

    /// Whether `path` itself was asked for, rather than a directory that it is in.
    pub(crate) fn names(&self, path: &RelPath) -> bool {
        matches!(self, Scope::Below(tops) if tops.contains(path))
    }

    /// What to ask a diff for. Many single paths are not worth asking for one by one.
    pub(crate) fn tops(&self) -> Vec<RelPath> {
        match self {
            Scope::Everything => Vec::new(),
            Scope::Below(tops) => tops.clone(),
            Scope::Exactly(paths) if paths.len() <= 32 => paths.iter().cloned().collect(),
            Scope::Exactly(_) => Vec::new(),
        }
    }
}

/// What a snapshot left out, to be asked by path.
pub(crate) struct Omissions<'a>(HashMap<&'a [u8], &'a Omission>);

impl<'a> Omissions<'a> {
    /// What `snapshot` left out.
    pub(crate) fn of(snapshot: &'a Snapshot) -> Self {
        Self(snapshot.omitted.iter().map(|omission| (omission.path.as_bytes(), omission)).collect())
    }

    /// The omission of `path`, or of something it lies below.
    pub(crate) fn cover(&self, path: &RelPath) -> Option<&'a Omission> {
        if self.0.is_empty() {
            return None;
        }
        let bytes = path.as_bytes();
        let ends = (0..=bytes.len()).rev().filter(|&end| end == bytes.len() || bytes[end] == b'/');
        ends.filter_map(|end| self.0.get(&bytes[..end])).next().copied()
    }
}

/// Whether an omission was somebody's wish, rather than something that could not be helped.
pub(crate) fn by_rule(reason: OmitReason) -> bool {
    matches!(reason, OmitReason::Ignored | OmitReason::Excluded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> RelPath {
        RelPath::new(text).unwrap()
    }

    #[test]
    fn an_omission_covers_what_is_below_it() {
        let omission = |at: &str| Omission { path: path(at), reason: OmitReason::Ignored, detail: None };
        let listed = [omission("a/b"), omission("c")];
        let omissions = Omissions(listed.iter().map(|o| (o.path.as_bytes(), o)).collect());
        for covered in ["a/b", "a/b/c", "c", "c/d/e"] {
            assert!(omissions.cover(&path(covered)).is_some(), "{covered}");
        }
        for free in ["a", "a/bc", "cc", "d/c", ""] {
            assert!(omissions.cover(&path(free)).is_none(), "{free}");
        }
    }
}
