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

use crate::branch::linked::{been, linked};
use crate::branch::repository::{references, text};
use crate::restore::at::Tree;

/// So many objects are looked at.
const MOST: usize = 10_000;
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
    /// The directory of its objects.
    git: Option<(Tree<'a>, RelPath)>,
}

impl<'a> Known<'a> {
    /// By the repository in the directory `git`, where there is one.
    pub(super) fn at(tree: Tree<'a>, git: &RelPath) -> Self {
        let Some((head, refs)) = references(tree, git) else { return Self::default() };
        let mut known = Self { git: Some((tree, git.clone())), ..Self::default() };
        known.named.extend(refs.values().cloned().chain([head]));
        known.named.extend(linked(tree, git).into_iter().flat_map(|tree| tree.named));
        // Its own may have gone on since.
        for log in log_of_head(tree, git).into_iter().chain(been(tree, git)) {
            known.been.extend(logged(&log));
        }
        known.named.extend(known.been.iter().cloned());
        known.refs = refs;
        known
    }

    /// By the repository of a work tree, which may be a linked one.
    pub(super) fn of_work_tree(git: &'a GitDir) -> Result<Self> {
        let (common, own) = (Tree::new(git.common())?, Tree::new(git.git_dir.as_fd())?);
        let mut known = Self::at(common, &RelPath::root());
        known.named.extend(text(own, &RelPath::new("HEAD")?));
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
        let Some((tree, git)) = self.git.as_ref().filter(|_| !lacking.is_empty()) else { return lacking };
        let shallow = git.join(b"shallow").ok().and_then(|path| text(*tree, &path)).unwrap_or_default();
        let ends: BTreeSet<&str> = shallow.lines().collect();
        let mut todo: VecDeque<String> = self.been.iter().chain(&self.named).cloned().collect();
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
        lacking
    }

    /// What `git fetch` is to be told to bring what the repository in the directory `git` of a branch names and this does not have; none if it has all. The name of a
    /// reference is something to have, too.
    pub(super) fn lacks_of(&self, branch: Tree<'_>, git: &RelPath) -> Option<Vec<String>> {
        let Some((head, refs)) = references(branch, git) else { return Some(Vec::new()) };
        let stashed = stashed(branch, git);
        let lacking = self.lacks(refs.values().chain(&stashed).chain([&head]));
        let mut told = Vec::new();
        for (name, value) in &refs {
            match self.refs.get(name) {
                None => told.push(format!("{name}:{name}")),
                Some(ours) if value.starts_with("ref: ") && ours != value => told.push(name.clone()),
                Some(_) if lacking.contains(value.as_str()) => told.push(name.clone()),
                Some(_) => {}
            }
        }
        let is_told = told.iter().any(|what| what.starts_with("refs/stash"));
        if !is_told && stashed.iter().any(|value| lacking.contains(value.as_str())) {
            told.push("refs/stash".to_owned());
        }
        if lacking.contains(head.as_str()) {
            told.push("HEAD".to_owned());
        }
        Some(told).filter(|told| !told.is_empty())
    }
}

/// The log of what HEAD was on.
fn log_of_head(tree: Tree<'_>, git: &RelPath) -> Option<String> {
    text(tree, &git.join(b"logs").ok()?.join(b"HEAD").ok()?)
}

/// What was stashed: all but the last is in a log only.
fn stashed(tree: Tree<'_>, git: &RelPath) -> Vec<String> {
    let path = [&b"logs"[..], b"refs", b"stash"].into_iter().try_fold(git.clone(), |path, name| path.join(name));
    let log = path.ok().and_then(|path| text(tree, &path)).unwrap_or_default();
    logged(&log)
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
