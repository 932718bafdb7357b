//! What is told of changes in the directory that a branch grew from.

use std::path::Path;

use ah_plugin_api::{ChangedBelow, RelPath};

/// So many are named on a timeline, and to a person at a glance.
const NAMED: usize = 100;
const AT_A_GLANCE: usize = 3;

/// Of paths below; none if there is nothing to tell.
pub(super) fn changed(paths: Vec<Vec<u8>>) -> Option<ChangedBelow> {
    // A branch has a `.git` of its own, and what is added to the objects that it reads takes nothing from it.
    let of_git = |path: &[u8]| path == b".git" || path.starts_with(b".git/");
    let mut paths: Vec<RelPath> =
        paths.into_iter().filter(|path| !of_git(path)).filter_map(|path| RelPath::new(path).ok()).collect();
    let total = paths.len() as u64;
    paths.truncate(NAMED);
    (total > 0).then_some(ChangedBelow { total, paths })
}

/// What a person should know of a branch from the start.
pub(super) fn caution(lower: &Path) -> String {
    let lower = lower.display();
    format!(
        "it goes on showing {lower} as it is now, files of more than 64 MiB apart: let that rest for the next seconds, or take a copy (`--mode worktree`)"
    )
}

/// What a person should know of a branch without what it grew from.
pub(super) fn gone(lower: Option<&Path>, is_behind: bool) -> String {
    let lower = lower.unwrap_or(Path::new("its place")).display();
    if is_behind {
        return format!(
            "; what lies behind it is not at {lower} any more, and what was not written here since is missing (if it is there again: `ah agent fs gc`)"
        );
    }
    format!(
        "; the workspace that it grew from is not at {lower} any more, and what was not kept of that is missing (if it was moved, or is there again: `ah agent fs gc` in it)"
    )
}

/// What a person should know of a branch whose paths below were changed; `is_behind`: that is in place of the workspace.
pub(super) fn sentence(ChangedBelow { total, paths }: &ChangedBelow, is_behind: bool) -> String {
    let place = if is_behind { "what lies behind it" } else { "the workspace" };
    let named: Vec<String> = paths.iter().take(AT_A_GLANCE).map(ToString::to_string).collect();
    let (what, they) = if *total == 1 { ("path", "it") } else { ("paths", "them") };
    let more = total.saturating_sub(named.len() as u64);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!(
        "{total} {what} that it reads in {place} became other there, and its snapshots do not hold {they} as now: {}{more}",
        named.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_some_and_counts_all() {
        let paths = |names: &[&str]| names.iter().map(|name| name.as_bytes().to_vec()).collect();
        assert_eq!(changed(paths(&[".git", ".git/index"])), None);
        let one = changed(paths(&["a", ".git/index"])).unwrap();
        let said =
            "1 path that it reads in the workspace became other there, and its snapshots do not hold it as now: a";
        assert_eq!(sentence(&one, false), said);
        assert_eq!(changed(paths(&["sub/.git/HEAD"])).unwrap().total, 1, "a nested one is read in the workspace");
        let many = changed((0..150).map(|n| format!("{n:03}").into_bytes()).collect()).unwrap();
        assert_eq!((many.total, many.paths.len()), (150, 100));
        assert!(sentence(&many, true).ends_with("hold them as now: 000, 001, 002 and 147 more"));
    }
}
