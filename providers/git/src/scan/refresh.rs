//! Comparing the workspace with the index, directory by directory, without listing what did not change.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use ah_plugin_api::{OmitReason, Result};
use ah_rules::{IndexStamp, Rules};
use rustix::fs::FileType;

use super::list::{self, Decision, FoundDir};
use super::stat::{Seen, open_dir, open_file, stat_at, stat_of};
use super::walk::{self, Job, cannot_list};
use super::{Env, Item, Listed, Node, State, Sub, dir_class, pool};
use crate::index::{
    DIR_CLASS, DIR_MARKED, DIR_THROUGH, DIR_TRACKED, ITEM_DIR, ITEM_IGNORED, ITEM_RECHECK, ITEM_TRACKED, Index, What,
};

/// How many files are looked at before a thread asks for more work.
const UNIT: usize = 512;

/// What a look at a directory, or at a part of its items, showed.
enum Finding {
    /// An item's attributes differ; none: it is gone, or cannot be looked at.
    Item(usize, usize, Option<Seen>),
    /// The directory itself differs, so it must be listed.
    Dir(usize),
    /// It cannot be listed.
    Lost(usize, State),
}

/// Scans by the index; none if the rules changed, so that everything must be classified anew.
pub(super) fn refresh(env: &Env<'_>, index: &Index, user_index: IndexStamp) -> Result<Option<Vec<Node>>> {
    if nested_changed(env, index) || tracked_changed(env, index, user_index) {
        return Ok(None);
    }
    let findings = look(env, index)?;
    let mut dirty = Dirty::of(findings, index.len());
    if dirty.rules_changed(env, index) {
        return Ok(None);
    }
    let jobs: Vec<usize> = (0..index.len()).filter(|&at| dirty.is(at)).collect();
    let changed = AtomicBool::new(false);
    let next = AtomicUsize::new(index.len());
    let lists = pool::each(jobs.len(), env.cx, |job, out| {
        if !changed.load(Ordering::Relaxed) {
            match list_again(env, index, jobs[job], &dirty, &next)? {
                Some(again) => out.push((jobs[job], again)),
                None => changed.store(true, Ordering::Relaxed),
            }
        }
        Ok(())
    })?;
    if changed.load(Ordering::Relaxed) {
        return Ok(None);
    }
    let mut nodes: Vec<Node> = (0..index.len()).map(|at| same(index, at)).collect();
    let mut new_dirs = Vec::new();
    for (at, (state, jobs)) in lists {
        nodes[at].state = state;
        new_dirs.extend(jobs);
    }
    for (at, state) in dirty.lost.drain(..) {
        nodes[at].state = state;
    }
    if matches!(nodes[0].state, State::Gone | State::Omitted(..)) {
        // Nothing stands above the root that could show it as lost: the walk says why it cannot be listed.
        return Ok(None);
    }
    let mut new = walk::run(env, new_dirs, &next)?;
    new.sort_unstable_by_key(|(at, _)| *at);
    nodes.extend(new.into_iter().map(|(_, node)| node));
    Ok(Some(nodes))
}

fn same(index: &Index, at: usize) -> Node {
    Node {
        path: index.path(at).into(),
        old: Some(at),
        flags: index.dir(at).flags & DIR_CLASS,
        rule: String::from_utf8_lossy(index.rule(at)).into(),
        state: State::Same,
    }
}

/// Whether a nested repository's say over its files changed.
fn nested_changed(env: &Env<'_>, index: &Index) -> bool {
    index.nested().any(|(at, before)| match open_dir(env.root, index.path(at)) {
        Ok(dir) => {
            let (now, index) = Rules::nested_stamp(dir.as_fd());
            now != before || !env.same_index(&index.fields, &index.fields)
        }
        // That it is gone, its parent will show.
        Err(_) => false,
    })
}

/// Whether the user's index tracks something now that it did not, or the other way round, where an ignore rule matches.
fn tracked_changed(env: &Env<'_>, index: &Index, stamp: IndexStamp) -> bool {
    if env.same_index(&index.header().user_index, &stamp.fields) {
        return false;
    }
    let Some((tracked, prefix)) = env.rules.tracked() else { return false };
    // What is below a nested repository is not the outer index's business.
    let nested: Vec<_> = index.nested().map(|(at, _)| at..index.dir(at).end as usize).collect();
    let outer = |at: usize| !nested.iter().any(|range| range.start < at && range.contains(&at));
    for at in (0..index.len()).filter(|&at| outer(at)) {
        let flags = index.dir(at).flags;
        if flags & (DIR_MARKED | DIR_THROUGH | DIR_TRACKED) == 0 {
            continue;
        }
        let mut path = [prefix, index.path(at)].concat();
        if flags & DIR_TRACKED != 0 && !tracked.contains(&path) {
            return true;
        }
        if at != 0 {
            path.push(b'/');
        }
        // A directory that is looked through for includes only would be listed anew each time; that is rare.
        if flags & DIR_THROUGH != 0 && !tracked.has_below(&path) {
            return true;
        }
        let base = path.len();
        // A nested repository's directory is the outer index's business, what is in it is not.
        let items = index.items(at).take(if index.nested_of(at).is_some() && at != 0 { 0 } else { usize::MAX });
        for item in items {
            let ignored = item.flags & ITEM_IGNORED != 0 || item.what == What::Omitted(OmitReason::Ignored);
            if !ignored && item.flags & ITEM_TRACKED == 0 {
                continue;
            }
            path.truncate(base);
            path.extend_from_slice(item.name);
            let mut is_tracked = tracked.contains(&path);
            if item.flags & ITEM_DIR != 0 && !is_tracked {
                path.push(b'/');
                is_tracked = tracked.has_below(&path);
            }
            if is_tracked == ignored {
                return true;
            }
        }
    }
    false
}

/// Looks at everything that the index knows.
fn look(env: &Env<'_>, index: &Index) -> Result<Vec<Finding>> {
    // Units of about equal size: many small directories, or a part of a large one.
    let mut units: Vec<(std::ops::Range<usize>, std::ops::Range<usize>)> = Vec::new();
    let (mut first, mut items) = (0, 0);
    for at in 0..index.len() {
        let here = index.dir(at).items_len as usize;
        if here > UNIT * 2 {
            if first < at {
                units.push((first..at, 0..usize::MAX));
            }
            units.extend((0..here).step_by(UNIT).map(|start| (at..at + 1, start..here.min(start + UNIT))));
            (first, items) = (at + 1, 0);
            continue;
        }
        items += here + 4;
        if items >= UNIT {
            units.push((first..at + 1, 0..usize::MAX));
            (first, items) = (at + 1, 0);
        }
    }
    if first < index.len() {
        units.push((first..index.len(), 0..usize::MAX));
    }
    pool::each(units.len(), env.cx, |unit, out| {
        let (dirs, items) = &units[unit];
        for at in dirs.clone() {
            look_at(env, index, at, items, out)?;
        }
        Ok(())
    })
}

fn look_at(
    env: &Env<'_>,
    index: &Index,
    at: usize,
    range: &std::ops::Range<usize>,
    out: &mut Vec<Finding>,
) -> Result<()> {
    let dir = match open_dir(env.root, index.path(at)) {
        Ok(dir) => dir,
        Err(error) => {
            out.push(Finding::Lost(at, cannot_list(env, index.path(at), error)?));
            return Ok(());
        }
    };
    if range.start == 0 {
        let seen = match stat_of(&dir) {
            Ok(seen) => seen,
            Err(error) => {
                out.push(Finding::Lost(at, cannot_list(env, index.path(at), error)?));
                return Ok(());
            }
        };
        if !env.filesystem.dir_times || !env.unchanged(&index.dir(at).stat, &seen.stat) {
            out.push(Finding::Dir(at));
            // Listing it looks at each of its items; of a large one, other units may be at the rest already.
            if range.end == usize::MAX {
                return Ok(());
            }
        }
    }
    for (number, item) in (range.start..).zip(index.some_items(at, range.clone())) {
        if matches!(item.what, What::Omitted(_)) && item.flags & ITEM_RECHECK == 0 {
            continue;
        }
        let seen = stat_at(dir.as_fd(), item.name).ok();
        let fine = seen.is_some_and(|seen| match item.what {
            What::File | What::Symlink => env.settled(&item, &seen.stat) && !seen.mount,
            What::Omitted(OmitReason::Changing) => false,
            // Neither is a matter of its attributes: who asks may be another by now, a disk may be well again, a mount gone.
            What::Omitted(OmitReason::Unreadable) => item.stat == seen.stat && is_shut(dir.as_fd(), item.name, &seen),
            What::Omitted(OmitReason::OtherFilesystem) => {
                item.stat == seen.stat && (seen.mount || seen.device != env.device)
            }
            What::Omitted(_) => item.stat == seen.stat,
        });
        if !fine {
            out.push(Finding::Item(at, number, seen));
        }
    }
    Ok(())
}

/// Whether something that could not be read before cannot be opened now either. What can be is tried as a whole.
fn is_shut(dir: BorrowedFd<'_>, name: &[u8], seen: &Seen) -> bool {
    match seen.stat.file_type() {
        FileType::Directory => open_dir(dir, name).is_err(),
        FileType::RegularFile => open_file(dir, name).is_err(),
        FileType::Symlink => rustix::fs::readlinkat(dir, name, Vec::new()).is_err(),
        _ => true,
    }
}

/// What differs, by directory.
struct Dirty {
    /// Ordered by directory and item.
    items: Vec<(usize, usize, Option<Seen>)>,
    listed: Vec<bool>,
    any: Vec<bool>,
    lost: Vec<(usize, State)>,
}

impl Dirty {
    fn of(findings: Vec<Finding>, dirs: usize) -> Self {
        let mut this = Self { items: Vec::new(), listed: vec![false; dirs], any: vec![false; dirs], lost: Vec::new() };
        for finding in findings {
            match finding {
                Finding::Item(at, item, seen) => {
                    this.items.push((at, item, seen));
                    this.any[at] = true;
                }
                Finding::Dir(at) => {
                    this.listed[at] = true;
                    this.any[at] = true;
                }
                Finding::Lost(at, state) => this.lost.push((at, state)),
            }
        }
        this.items.sort_unstable_by_key(|(at, item, _)| (*at, *item));
        // A directory that is lost halfway is lost.
        for (at, _) in &this.lost {
            this.any[*at] = false;
        }
        this
    }

    fn is(&self, at: usize) -> bool {
        self.any[at]
    }

    fn items_of(&self, at: usize) -> &[(usize, usize, Option<Seen>)] {
        let start = self.items.partition_point(|item| item.0 < at);
        let end = self.items.partition_point(|item| item.0 <= at);
        &self.items[start..end]
    }

    fn rules_changed(&self, env: &Env<'_>, index: &Index) -> bool {
        self.items.iter().any(|(at, item, seen)| {
            let rule_file = index.item(*at, *item).filter(|item| item.name == b".gitignore");
            rule_file.is_some_and(|item| seen.is_none_or(|seen| !env.same_rules(&item, &seen.stat)))
        })
    }
}

/// Lists a directory of the index again, or only takes over what differs. None if the rules changed.
fn list_again(
    env: &Env<'_>,
    index: &Index,
    at: usize,
    dirty: &Dirty,
    next: &AtomicUsize,
) -> Result<Option<(State, Vec<Job>)>> {
    let path = index.path(at);
    let opened = open_dir(env.root, path).and_then(|dir| stat_of(&dir).map(|seen| (dir, seen)));
    let (dir, seen) = match opened {
        Ok(opened) => opened,
        Err(error) => return Ok(Some((cannot_list(env, path, error)?, Vec::new()))),
    };
    let rules = match env.rules_in(index, at) {
        Ok(rules) => rules,
        // Something on the way down went away: the walk will see what.
        Err(_) => return Ok(None),
    };
    let nested = index.nested_of(at);
    if !dirty.listed[at] && seen.stat == index.dir(at).stat {
        let patched = patch(env, index, at, dirty, &rules);
        if let Some(items) = patched {
            let subs = index.children(at).map(|child| Sub { name: index.name(child).into(), node: child }).collect();
            let rules = list::rules_if_pending(&items, &rules);
            let listed = Listed { stat: seen.stat, items, subs, nested, rules };
            return Ok(Some((State::Listed(Box::new(listed)), Vec::new())));
        }
    }
    let names = match list::names(dir.as_fd()) {
        Ok(names) => names,
        Err(error) => return Ok(Some((cannot_list(env, path, error)?, Vec::new()))),
    };
    let (items, dirs) = list::decide(env, dir.as_fd(), names, &rules, Some(at));
    if list::rules_changed(env, index, at, &items) || dirs.iter().any(|dir| class_changed(index, dir)) {
        return Ok(None);
    }
    let (known, new): (Vec<_>, Vec<_>) = dirs.into_iter().partition(|dir| dir.old.is_some());
    env.count(new.len())?;
    let mut jobs = Vec::new();
    let mut subs = walk::jobs_for(new, path, &rules, next, &mut jobs);
    subs.extend(known.into_iter().filter_map(|dir| Some(Sub { name: dir.name, node: dir.old? })));
    subs.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    let rules = list::rules_if_pending(&items, &rules);
    Ok(Some((State::Listed(Box::new(Listed { stat: seen.stat, items, subs, nested, rules })), jobs)))
}

fn class_changed(index: &Index, dir: &FoundDir) -> bool {
    dir.old.is_some_and(|at| super::dir_flags(&dir.class) != super::dir_flags(&dir_class(index, at)))
}

/// The items of a directory whose names did not change, with those decided anew that differ. None if that is not enough.
fn patch(env: &Env<'_>, index: &Index, at: usize, dirty: &Dirty, rules: &ah_rules::DirRules) -> Option<Vec<Item>> {
    let mut changes = dirty.items_of(at).iter().peekable();
    let mut items = Vec::with_capacity(index.dir(at).items_len as usize);
    for (number, record) in index.items(at).enumerate() {
        match changes.next_if(|change| change.1 == number) {
            None => items.push(Item::of_record(&record)),
            Some((_, _, seen)) => {
                match list::decide_one(env, rules, record.name.into(), Some(seen.as_ref()?), Some(&record)) {
                    Decision::Item(item) => items.push(item),
                    Decision::Dir(..) => return None,
                }
            }
        }
    }
    Some(items)
}
