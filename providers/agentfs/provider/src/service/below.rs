//! What is told of changes in the directory that a branch grew from.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ah_plugin_api::{ChangedBelow, RelPath, text};

use super::lower;
use crate::home::TREE;

/// So many are named on a timeline, and to a person at a glance.
const NAMED: usize = 100;
const AT_A_GLANCE: usize = 3;

/// Of paths below, where the directory that was branched is `lower`; none if there is nothing to tell.
pub(super) fn changed(paths: Vec<Vec<u8>>, lower: Option<&Path>) -> Option<ChangedBelow> {
    let told = paths.into_iter().filter(|path| !of_git(path) || lower.is_some_and(|lower| is_lost(lower, path)));
    let mut paths: Vec<RelPath> = told.filter_map(|path| RelPath::new(path).ok()).collect();
    // Without that a repository is none.
    paths.sort_by_key(|path| path.as_bytes() != b".git/objects");
    let total = paths.len() as u64;
    paths.truncate(NAMED);
    (total > 0).then_some(ChangedBelow { total, paths })
}

/// A branch has a `.git` of its own, and what is added to the objects that it reads takes nothing from it.
fn of_git(path: &[u8]) -> bool {
    path == b".git" || path.starts_with(b".git/")
}

/// Whether something of a repository is gone that the branch read there. Single objects go into a pack, and are there still.
fn is_lost(lower: &Path, path: &[u8]) -> bool {
    let name = path.strip_prefix(b".git/objects/").and_then(|rest| rest.split(|&byte| byte == b'/').next());
    let is_gone = || std::fs::symlink_metadata(lower.join(OsStr::from_bytes(path)));
    name.is_none_or(|name| name.len() != 2) && is_gone().is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

/// What a person should know of a branch from the start.
pub(super) fn caution(lower: &Path) -> String {
    let lower = lower.display();
    format!(
        "it goes on showing {lower} as it is now, files of more than 64 MiB apart: let that rest for the next seconds, or take a copy (`--mode worktree`)"
    )
}

/// What a person should know of a branch of a home without what it grew from.
pub(super) fn gone(lower: Option<&Path>, is_behind: bool, home: &Path) -> String {
    // The very one may be back since.
    let is_another = lower.is_some_and(|lower| lower::is_another(&home.join(TREE), lower));
    let lower = lower.unwrap_or(Path::new("its place")).display();
    if is_behind && is_another {
        return format!(
            "; another directory than lay behind it is at {lower}: it was restored or copied; what was not written here since is missing ({})",
            restored(home)
        );
    }
    if is_behind {
        return format!(
            "; what lies behind it is not at {lower} any more, and what was not written here since is missing (if it is there again: `ah agent fs gc`)"
        );
    }
    format!(
        "; the workspace that it grew from is not at {lower} any more, and what was not kept of that is missing (if it was moved, or is there again: `ah -C . agent fs gc` in it)"
    )
}

/// What has what lies behind a workspace, and was restored or copied, taken for it. `home` is that of this service. What is typed later may find another process under its number, which is
/// not ended: no other is told of this home.
pub(super) fn restored(home: &Path) -> String {
    let home = text::shell(home.as_os_str());
    format!(
        "once its service has ended, `grep -zxqF -- {home} /proc/{0}/cmdline && kill -TERM {0}`, `ah-agentfsd --fsck {home} --repair` takes it if it holds what is known of that",
        std::process::id()
    )
}

/// What a person should know of a branch whose paths below were changed; `is_behind`: that is in place of the workspace.
pub(super) fn sentence(ChangedBelow { total, paths }: &ChangedBelow, is_behind: bool) -> String {
    let place = if is_behind { "what lies behind it" } else { "the workspace" };
    let named: Vec<String> = paths.iter().take(AT_A_GLANCE).map(ToString::to_string).collect();
    let (what, they) = if *total == 1 { ("path", "it") } else { ("paths", "them") };
    let more = more(*total, named.len());
    format!(
        "{total} {what} that it reads in {place} became other there, and its snapshots do not hold {they} as now: {}{more}",
        named.join(", ")
    )
}

/// What a person should know of paths that a branch reads in the workspace; those that were changed are told as that.
pub(super) fn not_kept(mut paths: Vec<Vec<u8>>, changed: &[RelPath]) -> Option<String> {
    paths.retain(|path| !changed.iter().any(|changed| changed.as_bytes() == path.as_slice()));
    let total = paths.len();
    let named: Vec<String> =
        paths.into_iter().take(AT_A_GLANCE).filter_map(|path| Some(RelPath::new(path).ok()?.to_string())).collect();
    let (what, are) = if total == 1 { ("path", "is") } else { ("paths", "are") };
    (total > 0).then(|| {
        format!(
            "{total} {what} that it reads in the workspace {are} not kept for it: {}{}",
            named.join(", "),
            more(total as u64, named.len())
        )
    })
}

fn more(total: u64, named: usize) -> String {
    let more = total.saturating_sub(named as u64);
    if more > 0 { format!(" and {more} more") } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_some_and_counts_all() {
        let paths = |names: &[&str]| names.iter().map(|name| name.as_bytes().to_vec()).collect();
        let changed = |paths| changed(paths, None);
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

    #[test]
    fn names_what_is_not_kept_and_was_not_changed() {
        let paths = |names: &[&str]| names.iter().map(|name| name.as_bytes().to_vec()).collect::<Vec<_>>();
        let changed = [RelPath::new(b"b".to_vec()).unwrap()];
        assert_eq!(not_kept(paths(&["b"]), &changed), None);
        let one = not_kept(paths(&["a", "b"]), &changed).unwrap();
        assert_eq!(one, "1 path that it reads in the workspace is not kept for it: a");
        assert!(
            not_kept(paths(&["a", "b", "c", "d"]), &[]).unwrap().ends_with("are not kept for it: a, b, c and 1 more")
        );
    }

    #[test]
    fn of_a_repository_what_is_gone_is_told() {
        let lower = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(lower.path().join(".git/objects/pack")).unwrap();
        std::fs::write(lower.path().join(".git/index"), "").unwrap();
        let told = |paths: &[&str]| {
            let paths = paths.iter().map(|path| path.as_bytes().to_vec()).collect();
            changed(paths, Some(lower.path()))
                .map(|told| told.paths.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(told(&[".git", ".git/index", ".git/objects", ".git/objects/ab", ".git/objects/ab/cd"]), None);
        let gone = ".git/objects/pack/large.pack";
        assert_eq!(told(&[".git/index", gone]), Some(vec![gone.to_owned()]));
        std::fs::remove_dir_all(lower.path().join(".git/objects")).unwrap();
        let hook = ".git/hooks/pre-push".to_owned();
        assert_eq!(told(&[&hook, ".git/index", ".git/objects"]), Some(vec![".git/objects".to_owned(), hook]));
    }
}
