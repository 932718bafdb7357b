//! How what only a repository of a branch has comes home: by commands that give each a name of its own there. None of what is there changes, least of all
//! the branch of Git's that the user is on, but by a `git merge` of one name.

use std::collections::BTreeMap;
use std::path::Path;

use crate::branch::repository::is_name;
use crate::text;

/// So much is fetched at once: who asks again after that is told the rest.
const AT_ONCE: usize = 10;

/// The kinds of references that are at home what they are in a branch. Others say what somebody is about to do in the one repository, or what Git is to
/// take for something else in it.
const KINDS: [&str; 4] = ["heads", "tags", "remotes", "notes"];
/// What these name Git takes for something else, wherever they are.
pub(super) const REPLACING: &str = "refs/replace/";

/// What a repository of a branch has, and the one at home lacks.
#[derive(Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Missing {
    /// What to fetch, and the reference that it becomes at home.
    pub(super) named: Vec<(String, String)>,
    /// What was stashed, the oldest first.
    pub(super) stashes: Vec<String>,
    /// What becomes of the branch of Git's that is checked out at home as well: the one that who goes on there may want to merge.
    pub(super) merge: Option<String>,
}

impl Missing {
    /// What brings it from the repository `from` of the branch `called` so to the one at home; nothing if nothing does.
    pub(super) fn commands(&self, from: &Path, home: &Path, called: &str) -> Option<String> {
        let (from, git) = (text::shell(from.as_os_str()), format!("git -C {}", text::shell(home.as_os_str())));
        let named = &self.named[..self.named.len().min(AT_ONCE)];
        let stashes = &self.stashes[..self.stashes.len().min(AT_ONCE)];
        let mut told = Vec::new();
        if !named.is_empty() {
            let named: Vec<_> =
                named.iter().map(|(what, name)| text::shell(format!("{what}:{name}").as_ref())).collect();
            let merge =
                self.merge.as_ref().filter(|merge| self.named.iter().take(AT_ONCE).any(|(_, name)| name == *merge));
            let merge = merge.map(|name| {
                let merge = merging(home, name);
                format!(", then `{merge}` merges what goes on with the branch that is checked out")
            });
            // What a `fetch` prunes is asked for by nobody here.
            told.push(format!(
                "commits: `{git} fetch --no-prune {from} {}`{}",
                named.join(" "),
                merge.unwrap_or_default()
            ));
        }
        if !stashes.is_empty() {
            let message = text::shell(format!("from {called}").as_ref());
            let stored: String = stashes.iter().map(|id| format!(" && {git} stash store -m {message} {id}")).collect();
            told.push(format!("stashes: `{git} fetch {from} {}{stored}`", stashes.join(" ")));
        }
        Some(told.join("; ")).filter(|told| !told.is_empty())
    }
}

/// Whether a reference can come home by its own name to where those are `there`.
pub(super) fn keeps_name<V>(name: &str, there: &BTreeMap<String, V>) -> bool {
    let kind = name.strip_prefix("refs/").and_then(|name| name.split_once('/')).map(|(kind, _)| kind);
    kind.is_some_and(|kind| KINDS.contains(&kind)) && is_name(name) && !is_taken(name, there)
}

/// Whether there is a reference that is called so, or that Git has no room for beside one that is: `a/b` beside `a`.
pub(super) fn is_taken<V>(name: &str, there: &BTreeMap<String, V>) -> bool {
    let below = format!("{name}/");
    let above = name.match_indices('/').any(|(end, _)| there.contains_key(&name[..end]));
    let first_below = there.range(below.clone()..).next();
    above || there.contains_key(name) || first_below.is_some_and(|(name, _)| name.starts_with(&below))
}

/// What merges the branch of Git's that is called so at home with the one that is checked out.
pub(super) fn merging(home: &Path, name: &str) -> String {
    // Of a branch and a tag that are called so Git takes the tag; and what begins as an option does is one.
    let short = name.strip_prefix("refs/").unwrap_or(name);
    format!("git -C {} merge {}", text::shell(home.as_os_str()), text::shell(short.as_ref()))
}

/// What `name` of a repository in the branch `called` so is called at home, if there is something else of that name: `refs/heads/BRANCH-NAME` for
/// `refs/heads/NAME`, as for what is no reference there, so that Git takes it for a name.
pub(super) fn renamed(called: &str, name: &str, is_taken: impl Fn(&str) -> bool) -> String {
    let (kind, leaf) = match name.strip_prefix("refs/") {
        Some(name) => name.split_once('/').filter(|(kind, _)| KINDS.contains(kind)).unwrap_or(("heads", name)),
        None => ("heads", name.get(..12).unwrap_or(name)),
    };
    let plain = |name: &str| -> String {
        name.chars().map(|c| if c.is_alphanumeric() || c == '_' { c } else { '-' }).collect()
    };
    let whole = format!("{}-{}", plain(called), plain(leaf));
    // With that it would be an option.
    let rest = Some(whole.trim_start_matches('-')).filter(|rest| !rest.is_empty()).unwrap_or("branch");
    let wanted = format!("refs/{kind}/{rest}");
    let numbered = (2..).map(|n: u32| format!("{wanted}-{n}"));
    std::iter::once(wanted.clone()).chain(numbered).find(|name| !is_taken(name)).unwrap_or(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_called_as_something_at_home_gets_a_name_that_git_takes() {
        let free = |_: &str| false;
        assert_eq!(renamed("b", "refs/heads/main", free), "refs/heads/b-main");
        assert_eq!(renamed("a b~^:..", "refs/tags/v/1.0.lock", free), "refs/tags/a-b------v-1-0-lock");
        assert_eq!(renamed("b", "HEAD", free), "refs/heads/b-HEAD");
        assert_eq!(renamed("b", "refs/bisect/bad", free), "refs/heads/b-bisect-bad");
        assert_eq!(renamed("#12", "refs/heads/main", free), "refs/heads/12-main");
        assert_eq!(renamed("#", "refs/heads/#", free), "refs/heads/branch");
        assert_eq!(renamed("b", &"0123456789abcdef".repeat(2), free), "refs/heads/b-0123456789ab");
        let taken = |name: &str| matches!(name, "refs/heads/b-main" | "refs/heads/b-main-2");
        assert_eq!(renamed("b", "refs/heads/main", taken), "refs/heads/b-main-3");
    }

    #[test]
    fn a_name_is_kept_where_git_takes_it_and_has_room_for_it() {
        let there: BTreeMap<String, ()> = ["a", "c/d", "c.e"].map(|name| (format!("refs/heads/{name}"), ())).into();
        let keeps = |name: &str| keeps_name(&format!("refs/{name}"), &there);
        for name in ["heads/a-b", "heads/c/e", "tags/a", "notes/commits", "remotes/origin/HEAD", "heads/-x"] {
            assert!(keeps(name), "{name}");
        }
        for name in ["heads/a", "heads/a/b", "heads/c", "replace/0", "bisect/bad", "stash", "worktree/x"] {
            assert!(!keeps(name), "{name}");
        }
        for odd in [
            ".DS_Store",
            ".l/x",
            "fe*",
            "x.lock",
            "x..y",
            "x@{1}",
            "x.",
            "x y",
            "x^",
            "x\\y",
            "x//y",
            "\u{fffd}",
            "x\n",
        ] {
            assert!(!keeps(&format!("heads/{odd}")), "{odd:?}");
        }
    }
}
