//! Listing from a directory downwards, everything.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ah_plugin_api::{OmitReason, Result};
use ah_rules::{Class, DirRules, Rules};
use rustix::io::Errno;

use super::list::{self, FoundDir};
use super::stat::{Seen, open_dir, stat_at, stat_of};
use super::{Env, Listed, Node, Stat, State, Sub, dir_flags, io_error, pool};

/// A directory that is to be listed.
#[derive(Debug)]
pub(super) struct Job {
    node: usize,
    path: Box<[u8]>,
    class: Class,
    /// The rules inside the directory above.
    above: Arc<DirRules>,
    old: Option<usize>,
}

/// Lists the whole workspace.
pub(super) fn from_root(env: &Env<'_>, seen: &Seen) -> Result<Vec<Node>> {
    let next = AtomicUsize::new(1);
    let rules = Arc::new(env.rules.root(env.root));
    let dir = open_dir(env.root, b"").map_err(|error| io_error("cannot read", b"", error))?;
    let names = list::names(dir.as_fd()).map_err(|error| io_error("cannot read", b"", error))?;
    let old = env.index.map(|_| 0);
    let (items, dirs) = list::decide(env, dir.as_fd(), names, &rules, old);
    env.count(items.iter().filter(|item| item.is_captured()).count() + dirs.len())?;
    let mut jobs = Vec::new();
    let subs = jobs_for(dirs, b"", &rules, &next, &mut jobs);
    let listed = Listed { stat: seen.stat, rules: list::rules_if_pending(&items, &rules), items, subs, nested: None };
    let root = Node { path: Box::default(), old, flags: 0, rule: "".into(), state: State::Listed(Box::new(listed)) };
    let mut nodes = run(env, jobs, &next)?;
    nodes.push((0, root));
    nodes.sort_unstable_by_key(|(at, _)| *at);
    Ok(nodes.into_iter().map(|(_, node)| node).collect())
}

/// Gives the directories found their nodes, and makes jobs of them.
pub(super) fn jobs_for(
    dirs: Vec<FoundDir>,
    above: &[u8],
    rules: &Arc<DirRules>,
    next: &AtomicUsize,
    jobs: &mut Vec<Job>,
) -> Vec<Sub> {
    let make = |dir: FoundDir| {
        let node = next.fetch_add(1, Ordering::Relaxed);
        let path = below(above, &dir.name);
        jobs.push(Job { node, path, class: dir.class, above: Arc::clone(rules), old: dir.old });
        Sub { name: dir.name, node }
    };
    dirs.into_iter().map(make).collect()
}

/// A path and a name as one path.
pub(super) fn below(path: &[u8], name: &[u8]) -> Box<[u8]> {
    if path.is_empty() { name.into() } else { [path, b"/", name].concat().into() }
}

/// Lists all directories of the jobs and everything below them. Gives nodes with their numbers.
pub(super) fn run(env: &Env<'_>, jobs: Vec<Job>, next: &AtomicUsize) -> Result<Vec<(usize, Node)>> {
    pool::grow(jobs, env.cx, |job: Job, more, out| {
        let (flags, rule) = dir_flags(&job.class);
        let state = one(env, &job, next, more)?;
        out.push((job.node, Node { path: job.path, old: job.old, flags, rule, state }));
        Ok(())
    })
}

fn one(env: &Env<'_>, job: &Job, next: &AtomicUsize, more: &mut Vec<Job>) -> Result<State> {
    let opened = open_dir(env.root, &job.path).and_then(|dir| stat_of(&dir).map(|seen| (dir, seen)));
    let (dir, seen) = match opened {
        Ok(opened) => opened,
        Err(error) => return cannot_list(env, &job.path, error),
    };
    if seen.device != env.device {
        return cannot_list(env, &job.path, Errno::XDEV);
    }
    let names = match list::names(dir.as_fd()) {
        Ok(names) => names,
        Err(error) => return cannot_list(env, &job.path, error),
    };
    let present = list::present(&names);
    // Before its rules are read: what changes in between is then a change to the next scan.
    let nested = present.git.then(|| Rules::nested_stamp(dir.as_fd()).0);
    let name = job.path.rsplit(|&byte| byte == b'/').next().unwrap_or(&job.path);
    let rules = Arc::new(job.above.enter(name, &job.class, dir.as_fd(), Some(present)));
    let (items, dirs) = list::decide(env, dir.as_fd(), names, &rules, job.old);
    env.count(items.iter().filter(|item| item.is_captured()).count() + dirs.len())?;
    let subs = jobs_for(dirs, &job.path, &rules, next, more);
    let rules = list::rules_if_pending(&items, &rules);
    Ok(State::Listed(Box::new(Listed { stat: seen.stat, items, subs, nested, rules })))
}

/// What it means that a directory cannot be opened or read.
pub(super) fn cannot_list(env: &Env<'_>, path: &[u8], error: Errno) -> Result<State> {
    let (reason, detail) = match error {
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP => return Ok(State::Gone),
        Errno::XDEV => (OmitReason::OtherFilesystem, String::new()),
        // Not a property of the directory: the scan as a whole cannot go on.
        Errno::MFILE | Errno::NFILE | Errno::NOMEM => return Err(io_error("cannot open", path, error)),
        other => (OmitReason::Unreadable, std::io::Error::from(other).to_string()),
    };
    Ok(State::Omitted(reason, detail, stat_of_name(env, path)))
}

/// The attributes of a directory that cannot be opened, as its parent shows them; zero if not even that is to be had.
fn stat_of_name(env: &Env<'_>, path: &[u8]) -> Stat {
    let (above, name) = match path.iter().rposition(|&byte| byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (&[][..], path),
    };
    open_dir(env.root, above).and_then(|dir| stat_at(dir.as_fd(), name)).map(|seen| seen.stat).unwrap_or_default()
}
