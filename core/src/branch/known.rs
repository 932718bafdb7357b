//! What the repository of a workspace has, so that it is no loss where a branch's goes: what its references name, what its HEAD was on, and what those lead to.
//!
//! Without Git, and so not all that Git would find: how one commit leads to another is read of loose objects only, and of so many. What is not found counts as missing.
//! Commits that were just brought home are loose, or what a loose merge leads to; for others, a reference on them tells it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;

use ah_plugin_api::{RelPath, Result};
use ah_rules::GitDir;
use flate2::read::ZlibDecoder;

use crate::branch::fetch::{Missing, REPLACING, is_taken, keeps_name, renamed};
use crate::branch::linked::{been, linked};
use crate::branch::repository::{TABLES, is_name, references, text};
use crate::restore::at::Tree;

/// So many objects are looked at.
const MOST: usize = 10_000;
/// The last that was stashed.
pub(super) const STASH: &str = "refs/stash";
/// So much of one is read: what it leads to stands at its beginning.
const BEGINNING: u64 = 64 << 10;

/// What is not lost with a repository.
#[derive(Default)]
pub(super) struct Known<'a> {
    /// Its references, with their values.
    refs: BTreeMap<String, String>,
    /// What they name, and others do.
    named: BTreeSet<String>,
    /// What HEAD was on, the last first.
    been: Vec<String>,
    /// The branch that HEAD is on.
    on: Option<String>,
    /// The directory of its objects.
    git: Option<(Tree<'a>, RelPath)>,
}

impl<'a> Known<'a> {
    /// By the repository in the directory `git`, where there is one.
    pub(super) fn at(tree: Tree<'a>, git: &RelPath) -> Self {
        let Some((head, refs)) = references(tree, git) else { return Self::default() };
        let mut known = Self { git: Some((tree, git.clone())), ..Self::default() };
        let on = head.strip_prefix("ref: ").map(str::to_owned);
        known.named.extend(refs.values().cloned().chain([head]));
        known.named.extend(linked(tree, git).into_iter().flat_map(|tree| tree.named));
        // Its own may have gone on since.
        for log in log_of_head(tree, git).into_iter().chain(been(tree, git)) {
            known.been.extend(logged(&log));
        }
        known.named.extend(known.been.iter().cloned());
        known.named.extend(stashed(tree, git, &refs));
        (known.refs, known.on) = (refs, on);
        known
    }

    /// By the repository of a work tree, which may be a linked one.
    pub(super) fn of_work_tree(git: &'a GitDir) -> Result<Self> {
        let (common, own) = (Tree::new(git.common())?, Tree::new(git.git_dir.as_fd())?);
        let mut known = Self::at(common, &RelPath::root());
        if let Some(head) = text(own, &RelPath::new("HEAD")?) {
            known.on = head.strip_prefix("ref: ").map(str::to_owned);
            known.named.insert(head);
        }
        Ok(known)
    }

    /// Takes it that what a reference has that value for is elsewhere, too.
    pub(super) fn add(&mut self, value: String) {
        self.named.insert(value);
    }

    /// Those of some values of references that it does not have.
    pub(super) fn lacks<'v>(&self, values: impl IntoIterator<Item = &'v String>) -> BTreeSet<&'v str> {
        let is_lacking = |value: &&str| !value.starts_with("ref: ") && !self.named.contains(*value);
        let mut lacking: BTreeSet<&str> = values.into_iter().map(String::as_str).filter(is_lacking).collect();
        self.strike_out(self.been.iter().chain(&self.named).cloned().collect(), &mut lacking);
        lacking
    }

    /// Strikes out of `lacking` what those lead to.
    fn strike_out(&self, mut todo: VecDeque<String>, lacking: &mut BTreeSet<&str>) {
        let Some((tree, git)) = self.git.as_ref().filter(|_| !lacking.is_empty()) else { return };
        let shallow = git.join(b"shallow").ok().and_then(|path| text(*tree, &path)).unwrap_or_default();
        let ends: BTreeSet<&str> = shallow.lines().collect();
        let mut seen = BTreeSet::new();
        for _ in 0..MOST {
            let Some(id) = todo.pop_front().filter(|_| !lacking.is_empty()) else { break };
            if ends.contains(id.as_str()) || !seen.insert(id.clone()) {
                continue;
            }
            for next in leads_to(*tree, git, &id).unwrap_or_default() {
                lacking.remove(next.as_str());
                todo.push_back(next);
            }
        }
    }

    /// The branch of Git's here that is on the commit that HEAD of the repository in the directory `git` of a branch is on, if what is checked out here does not
    /// hold that.
    pub(super) fn unmerged(&self, branch: Tree<'_>, git: &RelPath) -> Option<&str> {
        let (head, refs) = references(branch, git)?;
        let id = head.strip_prefix("ref: ").map_or(Some(&head), |name| refs.get(name))?;
        let (name, _) = self.refs.iter().find(|(name, value)| name.starts_with("refs/heads/") && *value == id)?;
        let ours = self.refs.get(self.on.as_ref()?).filter(|ours| *ours != id)?;
        let mut lacking = BTreeSet::from([id.as_str()]);
        self.strike_out([ours.clone()].into(), &mut lacking);
        (!lacking.is_empty()).then_some(name)
    }

    /// What the repository in the directory `git` of the branch `called` so names and this does not have; none if it has all. The name of a reference is something
    /// to have, too, if it can be had here.
    pub(super) fn lacks_of(&self, branch: Tree<'_>, git: &RelPath, called: &str) -> Option<Missing> {
        let Some((head, refs)) = references(branch, git) else { return Some(Missing::default()) };
        let stashed = stashed(branch, git, &refs);
        let lacking = self.lacks(refs.values().chain(&stashed).chain([&head]));
        let is_lacking = |(name, value): &(&String, &String)| match self.refs.get(*name) {
            None => *name == STASH || keeps_name(name, &self.refs) || lacking.contains(value.as_str()),
            Some(ours) => lacking.contains(value.as_str()) || (value.starts_with("ref: ") && ours != *value),
        };
        let lacked: Vec<_> =
            refs.iter().filter(is_lacking).map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let has_head = !lacking.contains(head.as_str());
        if lacked.is_empty() && has_head && !stashed.iter().any(|value| lacking.contains(value.as_str())) {
            return None;
        }
        // The last that was stashed is that reference: it is no branch to bring, but one of the stashes.
        let is_stash = |value: &String| {
            lacking.contains(value.as_str()) || (!self.refs.contains_key(STASH) && refs.get(STASH) == Some(value))
        };
        let mut missing =
            self.missing(called, lacked.into_iter().chain((!has_head).then_some(("HEAD", head.as_str()))));
        missing.stashes = stashed.iter().rev().filter(|value| is_stash(value)).cloned().collect();
        Some(missing)
    }

    /// How what a repository in the branch `called` so calls by these names, or by ids, with these values, is to come here: by the same name where that can be had
    /// here, and else by another.
    pub(super) fn missing<'n>(&self, called: &str, named: impl IntoIterator<Item = (&'n str, &'n str)>) -> Missing {
        let (mut missing, mut there) = (Missing::default(), self.refs.clone());
        for (name, value) in named {
            // Which references are in a table nobody here can tell.
            let name = if name == TABLES { "HEAD" } else { name };
            // What Git takes for no name it fetches by none.
            let what = if name.starts_with("refs/") && !is_name(name) { value } else { name };
            if name == STASH
                || name.starts_with(REPLACING)
                || !(what.starts_with("refs/") || what == "HEAD" || is_id(what))
            {
                continue;
            }
            let is_on = self.on.as_deref() == Some(name);
            let becomes = match !is_on && keeps_name(name, &there) {
                true => name.to_owned(),
                false => renamed(called, name, |name| is_taken(name, &there)),
            };
            if is_on {
                missing.merge = Some(becomes.clone());
            }
            there.insert(becomes.clone(), value.to_owned());
            missing.named.push((what.to_owned(), becomes));
        }
        missing
    }

    /// What was stashed in a repository with these references and this does not have, the oldest first.
    pub(super) fn stashes_lacked(
        &self,
        branch: Tree<'_>,
        git: &RelPath,
        refs: &BTreeMap<String, String>,
    ) -> Vec<String> {
        let mut stashed = stashed(branch, git, refs);
        stashed.reverse();
        let lacking: BTreeSet<String> = self.lacks(&stashed).into_iter().map(str::to_owned).collect();
        stashed.retain(|value| lacking.contains(value));
        stashed
    }

    /// Whether there is a repository.
    pub(super) fn is_there(&self) -> bool {
        self.git.is_some()
    }
}

/// The log of what HEAD was on.
fn log_of_head(tree: Tree<'_>, git: &RelPath) -> Option<String> {
    text(tree, &git.join(b"logs").ok()?.join(b"HEAD").ok()?)
}

/// What was stashed, the last first: all but that is in a log only.
fn stashed(tree: Tree<'_>, git: &RelPath, refs: &BTreeMap<String, String>) -> Vec<String> {
    let path = [&b"logs"[..], b"refs", b"stash"].into_iter().try_fold(git.clone(), |path, name| path.join(name));
    let log = path.ok().and_then(|path| text(tree, &path)).unwrap_or_default();
    let mut seen = BTreeSet::new();
    refs.get(STASH).cloned().into_iter().chain(logged(&log)).filter(|id| is_id(id) && seen.insert(id.clone())).collect()
}

/// What a log says that something was on, the last first. What it says beside that is only words.
fn logged(log: &str) -> Vec<String> {
    let ids = log.lines().rev().flat_map(|line| line.split(' ').take(2).collect::<Vec<_>>().into_iter().rev());
    // Where it begins it was on nothing, which is written in zeros.
    ids.filter(|id| is_id(id) && id.bytes().any(|byte| byte != b'0')).map(str::to_owned).collect()
}

/// Whether that is an object's id as Git writes it whole.
pub(crate) fn is_id(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The commits that a commit goes on from, or what a tag is on, if that is a loose object.
fn leads_to(tree: Tree<'_>, git: &RelPath, id: &str) -> Option<Vec<String>> {
    if !is_id(id) {
        return None;
    }
    let (folder, name) = id.split_at(2);
    let path = git.join(b"objects").ok()?.join(folder.as_bytes()).ok()?.join(name.as_bytes()).ok()?;
    let file = File::from(tree.file(&path).ok()?);
    let mut bytes = Vec::new();
    ZlibDecoder::new(file).take(BEGINNING).read_to_end(&mut bytes).ok()?;
    let object = String::from_utf8_lossy(&bytes);
    let (kind, contents) = object.split_once('\0')?;
    let word = match kind.split_once(' ')?.0 {
        "commit" => "parent ",
        "tag" => "object ",
        _ => return None,
    };
    let lines = contents.lines().take_while(|line| !line.is_empty());
    Some(lines.filter_map(|line| line.strip_prefix(word)).map(str::to_owned).collect())
}
