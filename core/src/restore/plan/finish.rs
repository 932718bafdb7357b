//! The last look at a plan as a whole: the order of its steps, directories that must or must not be empty, and directories
//! that have to be opened for it.

use std::collections::{HashMap, HashSet};

use ah_plugin_api::{EntryKind, RelPath, Result};
use rustix::io::Errno;

use super::{CHANGED_AFTER, Plan, Planner, SHUT, Step};
use crate::restore::LeftAlone;
use crate::restore::at::{Tree, io};

impl Planner<'_> {
    pub(super) fn finish(mut self) -> Result<Plan> {
        self.only_whole_files_change_in_place();
        let deepest_first = |a: &Step, b: &Step| b.path.cmp(&a.path);
        self.plan.clear.sort_by(deepest_first);
        self.plan.removals.sort_by(deepest_first);
        self.plan.attributes.sort_by(deepest_first);
        self.plan.dirs.sort_by(|a, b| a.path.cmp(&b.path));
        self.plan.puts.sort_by(|a, b| a.path.cmp(&b.path));
        self.only_what_is_held_makes_room()?;
        self.only_empty_directories_go();
        self.doors();
        Ok(self.plan)
    }

    /// What changes in place changes under all names of a file. Where not all are to be like this one, it is made anew.
    fn only_whole_files_change_in_place(&mut self) {
        let exact_times = self.wish.exact_times;
        let linked = |step: &Step| {
            let found = step.found.filter(|found| found.nlink > 1 && found.kind != EntryKind::Dir)?;
            let after = step.after.as_ref()?;
            Some((found.dev, found.ino, after.mode, exact_times.then_some(after.mtime)))
        };
        let mut alike: HashMap<_, u32> = HashMap::new();
        self.plan.attributes.iter().filter_map(linked).for_each(|file| *alike.entry(file).or_default() += 1);
        let is_apart = |step: &mut Step| {
            let names = step.found.map_or(0, |found| found.nlink);
            linked(step).is_some_and(|file| alike[&file] < names)
        };
        let apart: Vec<Step> = self.plan.attributes.extract_if(.., is_apart).collect();
        for step in apart {
            self.plan.anew.insert(step.path.clone());
            self.put(step);
        }
    }

    /// A directory that becomes something else may hold nothing but what the safety snapshot holds and this plan takes away.
    fn only_what_is_held_makes_room(&mut self) -> Result<()> {
        // What is refused already is named once.
        let refused = self.plan.conflicts.iter().map(|conflict| conflict.path.clone());
        let decided: HashSet<RelPath> = self.plan.clear.iter().map(|step| step.path.clone()).chain(refused).collect();
        for step in &self.plan.clear {
            if step.before.as_ref().is_none_or(|before| before.kind != EntryKind::Dir) {
                continue;
            }
            let names = match self.tree.names(&step.path) {
                Ok(names) => names,
                // Somebody is at work there.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                    let reason = CHANGED_AFTER.to_owned();
                    self.plan.conflicts.push(LeftAlone { path: step.path.clone(), reason });
                    continue;
                }
                Err(error) => return Err(io(format!("cannot list {}", step.path), error)),
            };
            for name in names {
                let child = step.path.join(&name)?;
                if !decided.contains(&child) {
                    let reason = "a file takes the place of its directory, and the snapshot of the present state does not hold it";
                    self.plan.conflicts.push(LeftAlone { path: child, reason: reason.to_owned() });
                }
            }
        }
        Ok(())
    }

    /// A directory that has something left in it stays.
    fn only_empty_directories_go(&mut self) {
        let mut going: HashSet<RelPath> = HashSet::new();
        let mut left = Vec::new();
        self.plan.removals.retain(|step| {
            // The deepest come first, so whatever is below has been decided.
            let stays = step.before.as_ref().is_some_and(|before| before.kind == EntryKind::Dir)
                && self.tree.names(&step.path).is_ok_and(|names| {
                    names.iter().any(|name| step.path.join(name).is_ok_and(|child| !going.contains(&child)))
                });
            if stays {
                let reason = "it is not empty: something in it is left alone".to_owned();
                left.push(LeftAlone { path: step.path.clone(), reason });
            } else {
                going.insert(step.path.clone());
            }
            !stays
        });
        self.plan.left.extend(left);
    }

    /// The directories in which names come and go: their times, and which of them their owner has to open first.
    fn doors(&mut self) {
        let mut seen: HashSet<RelPath> = HashSet::new();
        let (me, mut unlock, mut parents, mut shut) = (rustix::process::geteuid(), Vec::new(), Vec::new(), Vec::new());
        // The top is among them: that is where files are prepared.
        let mut doors = vec![RelPath::root()];
        let moving = self.plan.clear.iter().chain(&self.plan.dirs).chain(&self.plan.puts).chain(&self.plan.removals);
        doors.extend(moving.filter_map(|step| step.path.parent()));
        for door in doors {
            if self.becoming.contains(&door) || !seen.insert(door.clone()) {
                continue;
            }
            let Ok(Some(found)) = self.tree.stat(&door) else { continue };
            parents.push((door.clone(), found));
            if me.is_root() || found.mode & 0o300 == 0o300 && found.uid == me.as_raw() {
                continue;
            }
            if found.uid == me.as_raw() {
                unlock.push((door, found));
            } else if !may_write(&self.tree, &door) {
                shut.push(LeftAlone { path: door, reason: SHUT.to_owned() });
            }
        }
        self.plan.conflicts.extend(shut);
        unlock.sort_by(|(a, _), (b, _)| a.cmp(b));
        self.plan.unlock = unlock;
        self.plan.parents = parents;
    }
}

fn may_write(tree: &Tree<'_>, dir: &RelPath) -> bool {
    use rustix::fs::{Access, AtFlags};
    let access = Access::WRITE_OK | Access::EXEC_OK;
    let answer = tree.dir(dir).and_then(|fd| rustix::fs::accessat(&fd, ".", access, AtFlags::EACCESS));
    // Only a clear no counts; an old kernel that cannot be asked leaves it to the attempt.
    !matches!(answer, Err(Errno::ACCESS | Errno::ROFS))
}
