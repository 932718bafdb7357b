//! The repository at the top of a workspace where it is gone, or none any more: nobody puts one back, so whoever comes is to hear of it, and what to do.
//!
//! Judged as Git does before it opens one: by `HEAD`, `objects` and `refs`, and by the commit that `HEAD` is on. What cannot be read is taken for whole.

mod submodules;

use std::os::fd::AsFd;
use std::path::Path;

use ah_plugin_api::{Capability, Dir, EntryKind, RelPath, RepositoryState, SnapshotId};
use ah_rules::GitDir;
use rustix::io::Errno;

use crate::branch::{is_id, text_of};
use crate::notice::{Notice, NoticeKind};
use crate::record::SnapshotKind;
use crate::registry::Identity;
use crate::restore::at::Tree;
use crate::state::State;
use crate::text;
use crate::workspace::{Served, Workspace};

pub(crate) use submodules::{Submodule, leads_nowhere};

/// `HEAD` leads to another reference, and that to another, at most so often.
const DEPTH: usize = 5;

/// What has become of a repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wreck {
    /// There is no `.git`.
    Gone,
    /// There is one that is no repository, and why.
    Broken(&'static str),
}

impl Wreck {
    /// What has become of the repository at the top of a workspace; none if Git opens it, or that cannot be told.
    pub(crate) fn of(workspace: &Dir) -> Option<Self> {
        let (tree, git) = (Tree::new(workspace.as_fd()).ok()?, RelPath::new(".git").ok()?);
        let Some(found) = tree.stat(&git).ok()? else { return Some(Self::Gone) };
        let why = match GitDir::of(workspace.as_fd()) {
            Some(git) => unsound(&git),
            None if found.kind == EntryKind::Dir => lacking(tree, &git),
            None if tree.is_unreadable(&git) => None,
            None => Some("it leads to none"),
        };
        why.map(Self::Broken)
    }

    /// For a person.
    pub(crate) fn told(self) -> String {
        match self {
            Self::Gone => "the repository (.git) that was here is gone".to_owned(),
            Self::Broken(why) => format!("the repository (.git) here is broken, and Git does not open it: {why}"),
        }
    }

    /// How it comes back to a `workspace` as a snapshot knows it, which may hold it `whole`.
    pub(crate) fn way_back(self, (workspace, root): (&Dir, &Path), id: &SnapshotId, whole: bool) -> String {
        let root = text::shell(root.as_os_str());
        let first = match self {
            Self::Gone => "",
            Self::Broken(_) => "move that `.git` out of the workspace, then ",
        };
        let as_it_was = match whole {
            true => "whole, as it was",
            false => {
                "HEAD, branches, tags and index as they were; no settings, remotes, hooks, stash, linked work trees and repositories of submodules"
            }
        };
        let left: Vec<_> = if whole { Vec::new() } else { Submodule::broken(workspace) };
        let left: Vec<String> = left.into_iter().map(|submodule| submodule.path.to_string()).collect();
        let then = match left.is_empty() {
            true => String::new(),
            false => format!("; then `ah -C {root}` tells how those of these come back: {}", left.join(", ")),
        };
        format!(
            "{first}`b=$(ah -C {root} agent fs branch {id}) && cp -aT \"$b\"/.git {root}/.git && ah -C {root} agent fs rm \"$b\"` makes a branch of that moment, takes its repository ({as_it_was}), and removes it again{then}"
        )
    }
}

/// What a directory `.git` that is no repository lacks; none if that cannot be told.
fn lacking(tree: Tree<'_>, git: &RelPath) -> Option<&'static str> {
    let is_gone = |name: &[u8]| git.join(name).is_ok_and(|path| matches!(tree.stat(&path), Ok(None)));
    let needed: [(&[u8], _); 3] =
        [(b"HEAD", "it has no HEAD"), (b"objects", "it has no objects"), (b"refs", "it has no refs")];
    needed.into_iter().find(|(name, _)| is_gone(name)).map(|(_, why)| why)
}

/// Why what looks like a repository is none, or has nothing of what it had.
fn unsound(git: &GitDir) -> Option<&'static str> {
    let (own, common) = (Tree::new(git.git_dir.as_fd()).ok()?, Tree::new(git.common()).ok()?);
    let head = RelPath::new("HEAD").ok()?;
    match own.stat(&head).ok()??.kind {
        EntryKind::File => {}
        // As Git wrote it long ago; what it leads to is not followed.
        EntryKind::Symlink => return None,
        _ => return Some("its HEAD is damaged"),
    }
    let mut value = text_of(own, &head)?;
    for _ in 0..DEPTH {
        let Some(name) = value.strip_prefix("ref:").map(str::trim_start) else { break };
        if !name.starts_with("refs/") {
            return Some("its HEAD is damaged");
        }
        // Of a branch without commits, and of another form of storage, no more is asked.
        value = text_of(common, &RelPath::new(name).ok()?).or_else(|| packed(common, name))?;
    }
    if !is_id(&value) {
        return Some("its HEAD is damaged");
    }
    has_nothing_of(common, &value).then_some("the commit that HEAD is on is gone")
}

fn packed(common: Tree<'_>, name: &str) -> Option<String> {
    let refs = text_of(common, &RelPath::new("packed-refs").ok()?)?;
    let mut lines = refs.lines().filter_map(|line| line.split_once(' '));
    lines.find(|(_, found)| *found == name).map(|(value, _)| value.to_owned())
}

/// Whether an object is surely not there: it has no file, and there is nothing else that it could be in.
fn has_nothing_of(common: Tree<'_>, id: &str) -> bool {
    let (folder, name) = id.split_at(2);
    let gone = |path: &str| {
        let found = RelPath::new(path).map(|path| common.stat(&path));
        matches!(found, Ok(Ok(None)))
    };
    let packs = || match RelPath::new("objects/pack").map(|path| common.names(&path)) {
        Ok(Ok(names)) => names.iter().all(|name| !name.ends_with(b".pack")),
        Ok(Err(errno)) => errno == Errno::NOENT,
        Err(_) => false,
    };
    gone(&format!("objects/{folder}/{name}")) && gone("objects/info/alternates") && packs()
}

/// Whether snapshots have what is in a `.git`, too.
pub(crate) fn holds_repositories(served: &Served) -> bool {
    !served.can(Capability::AppliesPolicy)
}

impl Workspace {
    /// Writes down what lies behind it now. Where it cannot, whoever comes next does.
    fn note_behind_anew(&self) {
        if let Some(there) = self.record.behind().and_then(|path| Identity::of_path(&path)) {
            let _ = self.engine.note_behind(&self.id, Some(there));
        }
    }

    /// Tells of a repository that a snapshot knows and that is none any more, and of submodules that lost theirs; of one that is gone not once somebody took a snapshot without it.
    pub(crate) fn tell_of_wreck(&self, state: &State, workspace: &Dir) {
        let (lacks, wreck) = (self.record.lacks_behind(), Wreck::of(workspace));
        let Some(wreck) = wreck else {
            let submodules = Submodule::broken(workspace);
            // What lies behind was restored and taken for what it was: nothing is missing for lack of that.
            if lacks && submodules.is_empty() {
                self.note_behind_anew();
            }
            for submodule in submodules.into_iter().filter(|_| !lacks) {
                let notice = Notice::new(NoticeKind::Other, submodule.told());
                self.engine.notify(notice.with_hint(submodule.way_back(&self.root)));
            }
            return;
        };
        // It is where the rest is then, and comes back with that.
        if lacks {
            return;
        }
        let has_commit = |repository: &RepositoryState| repository.head.is_some();
        let known = state.snapshots.iter().rev().filter(|snapshot| snapshot.counts()).find_map(|snapshot| {
            match &snapshot.repository {
                Some(repository) if has_commit(repository) => Some(Some(snapshot)),
                None if wreck == Wreck::Gone && snapshot.kind == SnapshotKind::Manual => Some(None),
                _ => None,
            }
        });
        if let Some(snapshot) = known.flatten() {
            let notice = Notice::new(NoticeKind::Other, wreck.told());
            let whole = self.serve(&snapshot.provider).is_ok_and(|served| holds_repositories(&served));
            self.engine.notify(notice.with_hint(wreck.way_back((workspace, &self.root), &snapshot.id, whole)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use ah_plugin_api::Dir;

    use super::Wreck;

    const ID: &str = "1234567890123456789012345678901234567890";

    /// What a repository that something was done to is.
    fn after(change: impl FnOnce(&Path)) -> Option<Wreck> {
        let top = tempfile::tempdir().unwrap();
        let git = top.path().join(".git");
        fs::create_dir_all(git.join("refs/heads")).unwrap();
        fs::create_dir_all(git.join("objects/12")).unwrap();
        fs::write(git.join("objects/12").join(&ID[2..]), "").unwrap();
        fs::write(git.join("HEAD"), "ref: refs/heads/main\n").unwrap();
        fs::write(git.join("refs/heads/main"), format!("{ID}\n")).unwrap();
        change(&git);
        Wreck::of(&Dir::open(top.path()).unwrap())
    }

    #[test]
    fn what_git_opens_is_whole() {
        assert_eq!(after(|_| {}), None);
        // Detached, without commits, packed, borrowed, of another form of storage.
        assert_eq!(after(|git| fs::write(git.join("HEAD"), ID).unwrap()), None);
        assert_eq!(after(|git| fs::remove_file(git.join("refs/heads/main")).unwrap()), None);
        assert_eq!(after(|git| fs::write(git.join("HEAD"), "ref: refs/heads/.invalid").unwrap()), None);
        let without = |git: &Path| fs::remove_dir_all(git.join("objects/12")).unwrap();
        assert_eq!(
            after(|git| {
                without(git);
                fs::create_dir(git.join("objects/pack")).unwrap();
                fs::write(git.join("objects/pack/pack-1.pack"), "").unwrap();
            }),
            None
        );
        assert_eq!(
            after(|git| {
                without(git);
                fs::create_dir(git.join("objects/info")).unwrap();
                fs::write(git.join("objects/info/alternates"), "/elsewhere").unwrap();
            }),
            None
        );
    }

    #[test]
    fn what_git_does_not_open_is_none() {
        assert_eq!(after(|git| fs::remove_dir_all(git).unwrap()), Some(Wreck::Gone));
        let broken = |why| Some(Wreck::Broken(why));
        let emptied = |git: &Path| {
            fs::remove_dir_all(git).unwrap();
            fs::create_dir(git).unwrap();
        };
        assert_eq!(after(emptied), broken("it has no HEAD"));
        assert_eq!(after(|git| fs::remove_file(git.join("HEAD")).unwrap()), broken("it has no HEAD"));
        assert_eq!(after(|git| fs::remove_dir_all(git.join("objects")).unwrap()), broken("it has no objects"));
        assert_eq!(after(|git| fs::remove_dir_all(git.join("refs")).unwrap()), broken("it has no refs"));
        for head in ["junk", "", "ref: main", &ID[1..]] {
            assert_eq!(
                after(|git| fs::write(git.join("HEAD"), head).unwrap()),
                broken("its HEAD is damaged"),
                "{head}"
            );
        }
        let lost = broken("the commit that HEAD is on is gone");
        assert_eq!(after(|git| fs::remove_file(git.join("objects/12").join(&ID[2..])).unwrap()), lost);
        let packed = |git: &Path| {
            fs::remove_dir_all(git.join("objects/12")).unwrap();
            fs::remove_file(git.join("refs/heads/main")).unwrap();
            fs::write(git.join("packed-refs"), format!("# pack-refs with: peeled\n{ID} refs/heads/main\n")).unwrap();
        };
        assert_eq!(after(packed), lost);
        let dangling = |git: &Path| {
            fs::remove_dir_all(git).unwrap();
            fs::write(git, "gitdir: /no/such/directory\n").unwrap();
        };
        assert_eq!(after(dangling), broken("it leads to none"));
    }
}
