//! What a branch holds that is nowhere else, so that it is not taken away by mistake.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use ah_plugin_api::{Change, DiffRequest, Dir, EntryKind, Error, ErrorKind, RelPath, Result, Side};

use ah_rules::GitDir;
use rustix::fs::AtFlags;
use rustix::io::Errno;

use crate::attend::Standing;
use crate::branch::fetch::{Missing, merging};
use crate::branch::inside::inside;
use crate::branch::known::Known;
use crate::branch::repository::RepositoryMark;
use crate::branch::{BranchFile, BranchState, all, read_all};
use crate::engine::Engine;
use crate::lock::Lock;
use crate::record::SnapshotRecord;
use crate::registry::{Identity, Index};
use crate::restore::at::Tree;
use crate::text;
use crate::versioned;
use crate::walk::{self, Source};
use crate::workspace::{Served, Workspace};
use crate::wrecked::Wreck;

/// So many of the files that were changed in a branch are named.
const NAMED: usize = 10;

/// Where a branch's directory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whereabouts {
    /// Where it was made.
    InPlace,
    /// Not there.
    Gone,
    /// Not there, but something else is.
    Replaced,
}

/// What differs in a branch.
struct Changed {
    /// Files that are there.
    files: Vec<RelPath>,
    /// Files that are there no more.
    deleted: Vec<RelPath>,
    /// Paths that nobody can tell of.
    unread: Vec<RelPath>,
}

/// What a branch holds that is nowhere else.
#[derive(Default)]
struct Held {
    /// A few words for each kind.
    words: Vec<String>,
    /// The files that were changed, then those that were deleted.
    files: Vec<RelPath>,
    /// What brings home the commits and references of a repository that no other has.
    fetch: Option<String>,
}

impl Held {
    /// Refuses if there is anything, in what grew from `workspace`.
    fn refuse(&self, workspace: &Workspace, file: &BranchFile) -> Result<()> {
        if self.words.is_empty() {
            return Ok(());
        }
        let name = &file.record.name;
        let message = format!("the branch {name} holds what is nowhere else: {}", self.words.join(", "));
        let (place, name) = (text::shell(file.record.path.as_os_str()), workspace.typed(&file.record));
        let fetch = self.fetch.as_ref().map(|commands| format!(" (`cp`; {commands})")).unwrap_or_default();
        let mut error = Error::new(ErrorKind::FailedPrecondition, message);
        error.causes = self.files.iter().take(NAMED).map(ToString::to_string).collect();
        if self.files.len() > NAMED {
            error.causes.push(format!("and {} more", self.files.len() - NAMED));
        }
        Err(error.with_hint(format!(
            "copy what is needed out of {place}{fetch}; or lose it: `ah agent fs rm --force {name}`"
        )))
    }
}

impl BranchFile {
    /// The workspace that the branch is, also if its maker did not live to write that down.
    pub(super) fn own_workspace(&self, engine: &Engine) -> Result<Option<Workspace>> {
        let mut id = self.record.workspace.clone();
        if id.is_none() {
            let mut records = Index::refresh(engine.home())?.workspaces.into_iter();
            id = records.find(|record| record.branch.as_ref() == Some(&self.record.id)).map(|record| record.id);
        }
        let Some(mut own) = id.map_or(Ok(None), |id| engine.workspace_by_id(&id))? else { return Ok(None) };
        // A filesystem that was mounted anew may have another number, and an `$AH_HOME` that was moved took the branch along.
        for place in [own.root.clone(), self.made_at.clone()] {
            if let Some(there) =
                Identity::of_path(&place).filter(|there| own.record.identity.same_but_for_device(there))
            {
                (own.root, own.record.identity) = (place, there);
                break;
            }
        }
        Ok(Some(own))
    }

    /// Where its directory is, by what the workspace `own` is known by.
    pub(super) fn whereabouts(&self, own: Option<&Workspace>) -> Whereabouts {
        let Some(there) = Identity::of_path(&self.made_at) else {
            // Of one that is not mounted, only the place is there.
            let place = if self.standing() == Standing::Unmounted { self.point() } else { &self.made_at };
            // What cannot be looked at, as a mount whose process is gone, is there.
            return match std::fs::symlink_metadata(place).map_err(|error| error.kind()) {
                Err(std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => Whereabouts::Gone,
                _ => Whereabouts::Replaced,
            };
        };
        if self.standing() == Standing::Unmounted {
            return Whereabouts::Replaced;
        }
        if own.is_none_or(|own| own.record.identity.same(&there)) {
            Whereabouts::InPlace
        } else {
            Whereabouts::Replaced
        }
    }
}

impl Workspace {
    /// Refuses if a branch of this workspace holds something that is nowhere else, or is not where it was made.
    pub(crate) fn refuse_held(&self, file: &BranchFile) -> Result<()> {
        let name = &file.record.name;
        let own = file.own_workspace(&self.engine)?;
        match (file.whereabouts(own.as_ref()), file.record.state) {
            // The rest of a removal that was cut short.
            (Whereabouts::Gone, BranchState::Removing) => return Ok(()),
            (Whereabouts::InPlace, _) => {}
            _ if file.standing() == Standing::Unmounted => {
                let message = format!("the branch {name} is not mounted, so what it holds cannot be looked at");
                return Err(Error::new(ErrorKind::FailedPrecondition, message).with_hint(format!(
                    "`ah agent fs branches` says why; or lose it: `ah agent fs rm --force {}`",
                    self.typed(&file.record)
                )));
            }
            (whereabouts @ (Whereabouts::Gone | Whereabouts::Replaced), _) => {
                let place = file.made_at.display();
                let message = format!("the branch {name} is not at {place} any more");
                // Where more than the branch was made, that is there, and goes with it.
                let made = Some(file.made_whole())
                    .filter(|made| whereabouts == Whereabouts::Gone && *made != file.made_at && made.exists());
                let (message, loses) = match made {
                    Some(made) => (message, format!("removes all that is in {} now", made.display())),
                    None => {
                        let message = format!("{message}: only its history could be removed");
                        (message, "leaves its files wherever they are".to_owned())
                    }
                };
                let path = &file.record.path;
                let back = match *path != file.made_at {
                    true => format!(
                        "`mv {} {place}`, then `ah -C {place} agent fs status`, brings it back there",
                        text::shell(path.as_os_str()),
                        place = text::shell(file.made_at.as_os_str())
                    ),
                    false => "bring it back there".to_owned(),
                };
                return Err(Error::new(ErrorKind::FailedPrecondition, message).with_hint(format!(
                    "{back}; or `ah agent fs rm --force {}`, which {loses}",
                    self.typed(&file.record)
                )));
            }
        }
        let held = self.held(file, own.as_ref()).map_err(|error| {
            error
                .context(format!("it cannot be found out what the branch {name} holds that is nowhere else"))
                .with_hint(format!(
                    "copy what is needed out of {}; then `ah agent fs rm --force {}`",
                    file.record.path.display(),
                    self.typed(&file.record)
                ))
        })?;
        held.refuse(self, file)
    }

    /// Whether a branch lacks what a removal that was cut short may have taken away: of one to work in, that is told as well.
    pub(crate) fn is_half_removed(&self, file: &BranchFile) -> Result<bool> {
        let own = file.own_workspace(&self.engine)?;
        let mut whole = file.clone();
        whole.record.state = BranchState::Ready;
        Ok(self.held(file, own.as_ref())?.words != self.held(&whole, own.as_ref())?.words)
    }

    /// Refuses if snapshots were taken in a branch, or branches grew from it, since somebody looked who has since marked it as being taken away.
    pub(super) fn refuse_made_meanwhile(&self, file: &BranchFile) -> Result<()> {
        let own = file.own_workspace(&self.engine)?;
        let making = own.as_ref().map(|own| own.lock("orphans")).transpose()?;
        self.refuse_made(file, own.as_ref().zip(making.as_ref()))
    }

    /// The same by who has `orphans` of the workspace that the branch is.
    pub(super) fn refuse_made(&self, file: &BranchFile, own: Option<(&Self, &Lock)>) -> Result<()> {
        self.refuse_grown(file)?;
        let Some((own, making)) = own else { return Ok(()) };
        let words = own.snapshots_held(making)?;
        Held { words, ..Held::default() }.refuse(self, file)
    }

    /// Refuses in a branch that is being taken away: what is made in it now would go with it, unseen. To be asked with the lock that who takes it
    /// away waits for once that is marked: `orphans`, or the registry's.
    pub(crate) fn refuse_going(&self) -> Result<()> {
        let Some(id) = &self.record.branch else { return Ok(()) };
        // One that cannot be read is not taken away.
        let Ok(Some(file)) = BranchFile::load(self.engine.home(), id) else { return Ok(()) };
        if file.record.state != BranchState::Removing || !file.maker.alive() {
            return Ok(());
        }
        let message = format!("process {} is removing the branch {}", file.maker.pid, file.record.name);
        Err(Error::new(ErrorKind::FailedPrecondition, message)
            .with_hint("work elsewhere: `ah agent fs branch` makes another"))
    }

    /// Refuses if branches grew from a branch: what was done in them is told by comparing with its snapshots.
    pub(super) fn refuse_grown(&self, file: &BranchFile) -> Result<()> {
        // One whose record cannot be read may have.
        let all = versioned::whole(read_all(self.engine.home())?)?;
        let (name, grown) = (&file.record.name, grown_from(&self.engine, file, all)?);
        if grown.is_empty() {
            return Ok(());
        }
        let message = format!("what {} grew from goes with the branch {name}", grown.join(", "));
        let names = grown.iter().map(|name| text::shell(name.as_ref())).collect::<Vec<_>>().join(" ");
        let (place, name) = (text::shell(file.record.path.as_os_str()), self.typed(&file.record));
        Err(Error::new(ErrorKind::FailedPrecondition, message).with_hint(format!(
            "take those away first: `ah -C {place} agent fs rm {names}`; or leave them without it, so that `diff` there needs a REF: \
             `ah -C {} agent fs rm --force {name}`",
            text::shell(self.root.as_os_str())
        )))
    }

    fn held(&self, file: &BranchFile, own: Option<&Workspace>) -> Result<Held> {
        let own = match own {
            Some(own) => own,
            // The rest of a removal that was cut short.
            None if file.record.state == BranchState::Removing => return Ok(Held::default()),
            None => {
                let message = "what ah knew of it as a workspace is gone";
                return Err(Error::new(ErrorKind::FailedPrecondition, message));
            }
        };
        let (mut held, mut files, mut deleted) = (Vec::new(), Vec::new(), Vec::new());
        match self.state()?.snapshot(&file.record.snapshot) {
            Some(origin) => {
                let served = self.serve(&origin.provider)?;
                let Changed { files: changed, deleted: gone, unread } =
                    self.changed_files(file, own, &served, origin)?;
                if !changed.is_empty() {
                    held.push(text::count(changed.len(), "changed file", "changed files"));
                }
                (files, deleted) = (changed, gone);
                if let Some(first) = unread.first() {
                    let more = if unread.len() > 1 { format!(" and {} more", unread.len() - 1) } else { String::new() };
                    held.push(format!("perhaps what cannot be compared ({first}{more})"));
                }
            }
            None => held.push("perhaps changed files (the snapshot it grew from is gone)".to_owned()),
        }
        held.extend(own.snapshots_held(&own.lock("orphans")?)?);
        let branch = own.open_dir()?;
        let (words, repositories) = inside(&branch, &file.record.name, self.open_dir().ok().as_ref())?;
        held.extend(words);
        let commands = |place: &Path, missing: &Missing| {
            let at = |top: &Path| -> PathBuf { top.join(place).components().collect() };
            missing.commands(&at(&file.record.path), &at(&self.root), &file.record.name)
        };
        let mut fetch = repositories.iter().find_map(|(place, missing)| commands(place, missing));
        for other in all(self.engine.home())? {
            if other.record.id != file.record.id && other.made_at.starts_with(file.point()) && other.made_at.exists() {
                held.push(format!("the branch {}", other.record.name));
            }
        }
        let now = RepositoryMark::of(&branch)?;
        // What is half taken away already is none any more. Else nobody can tell what commits are in what is left, or were in it. One that only lacks the
        // commit that it was made with may have been so by then.
        let is_lost = file.repository.is_some()
            && file.record.state != BranchState::Removing
            && (GitDir::of(branch.as_fd()).is_none() || (file.repository != now && Wreck::of(&branch).is_some()));
        if is_lost {
            held.push("perhaps commits (its repository is broken or gone)".to_owned());
        }
        let moved = match (&file.repository, &now) {
            _ if is_lost => None,
            (_, None) => None,
            (None, Some(_)) => Some("a repository of its own"),
            (Some(then), Some(now)) if then.head != now.head => Some("HEAD moved"),
            (Some(then), Some(now)) if then != now => Some("references moved"),
            (Some(_), Some(_)) => None,
        };
        if let Some(moved) = moved {
            let here = self.open_dir().ok();
            let git = here.as_ref().and_then(|here| GitDir::of(here.as_fd()));
            let known = git.as_ref().map(Known::of_work_tree).transpose()?.unwrap_or_default();
            let (tree, repository) = (Tree::new(branch.as_fd())?, RelPath::new(".git")?);
            let lacking = known.lacks_of(tree, &repository, &file.record.name);
            // Brought home, it is nothing that only the branch has.
            if file.repository.is_none() || lacking.is_some() {
                held.push(moved.to_owned());
                let lacking = lacking.filter(|_| known.is_there());
                fetch = lacking.and_then(|missing| commands(Path::new(""), &missing)).or(fetch);
            } else if let Some(name) = known.unmerged(tree, &repository).filter(|_| !files.is_empty()) {
                let merge = merging(&self.root, name);
                fetch.get_or_insert(format!(
                    "commits: `{merge}` merges what it is on with the branch that is checked out"
                ));
            }
        }
        // That a commit is at home is not enough for them: who asks again would be told the same.
        if let Some(commands) = fetch.as_mut().filter(|_| !files.is_empty()) {
            commands.push_str("; changed files hold it until they are in the workspace as well, by a merge or `cp`");
        }
        // They are as the snapshot has them that the branch grew from: of themselves they are nothing to lose.
        if !held.is_empty() && !deleted.is_empty() {
            held.push(text::count(deleted.len(), "deleted file", "deleted files"));
            files.append(&mut deleted);
        }
        Ok(Held { words: held, files, fetch })
    }

    /// Which files of a branch are neither as in the snapshot it grew from nor as they are in this workspace now.
    fn changed_files(
        &self,
        file: &BranchFile,
        own: &Workspace,
        served: &Served,
        from: &SnapshotRecord,
    ) -> Result<Changed> {
        let branch = own.open_dir()?;
        let (mut changes, mut unread) = (Vec::new(), Vec::new());
        for policy in own.policies_of_loss(self)? {
            let from_side = Side::Snapshot(from.reference.clone());
            let request = DiffRequest { from: from_side, to: Side::Workspace, paths: Vec::new(), times: false, policy };
            let mut told = own.changes_since_growth(served, &request)?;
            unread.append(&mut told.unread);
            unread.append(&mut own.look_at_missing(served, from, &mut told.changes, false)?);
            changes.append(&mut told.changes);
        }
        // In what another user has shut nobody did anything here; what is open is damaged in the snapshot.
        let (tree, me) = (Tree::new(branch.as_fd())?, rustix::process::geteuid().as_raw());
        let door = |path: &RelPath| {
            let mut up = std::iter::successors(Some(path.clone()), RelPath::parent);
            up.find_map(|path| tree.stat(&path).ok().flatten())
        };
        unread.retain(|path| !tree.is_unreadable(path) || door(path).is_none_or(|found| found.uid == me));
        unread.sort();
        unread.dedup();
        let here = self.open_dir().ok();
        let (mut counted, mut deleted) = (BTreeSet::new(), BTreeSet::new());
        for change in &changes {
            let is_file = |entry: &ah_plugin_api::Entry| entry.kind != EntryKind::Dir;
            let there = change.after.as_ref().is_some_and(is_file);
            let was = change.before.as_ref().is_some_and(is_file);
            // A removal that was cut short has taken files away itself.
            let counts = there || (was && file.record.state != BranchState::Removing);
            // It was brought home, or came from there.
            let paths = if there { &mut counted } else { &mut deleted };
            if counts
                && !paths.contains(&change.path)
                && !here.as_ref().is_some_and(|here| self.is_here(here, &branch, change))
            {
                paths.insert(&change.path);
            }
        }
        let files = counted.iter().copied().cloned().collect();
        let deleted = deleted.difference(&counted).copied().cloned().collect();
        Ok(Changed { files, deleted, unread })
    }

    /// Whether a changed file of a branch is the same in this workspace, contents and mode, or gone there as well. In doubt, it is not.
    fn is_here(&self, here: &Dir, branch: &Dir, change: &Change) -> bool {
        let none = |_: &RelPath, _: EntryKind, _: u64| false;
        let (ours, its) =
            (Source::Directory { root: here, skip: &none }, Source::Directory { root: branch, skip: &none });
        let (path, cx) = (&change.path, self.context());
        match (ours.entry(path, &cx), &change.after) {
            // An entry that is beyond a link or a mount is none to `entry`, and is there.
            (Ok(None), None) => {
                let missing = |errno| matches!(errno, Errno::NOENT | Errno::NOTDIR);
                rustix::fs::statat(here, path.as_path(), AtFlags::SYMLINK_NOFOLLOW).is_err_and(missing)
            }
            // What is in it are changes of their own.
            (Ok(Some(entry)), Some(after)) if after.kind == EntryKind::Dir => entry.kind == EntryKind::Dir,
            (Ok(Some(entry)), Some(after)) => {
                matches!(after.kind, EntryKind::File | EntryKind::Symlink)
                    && entry.mode == after.mode
                    && walk::same_contents((&ours, path, &entry), (&its, path, after), &cx).unwrap_or(false)
            }
            _ => false,
        }
    }
}

/// The names of those of `all` branches that grew from one.
pub(super) fn grown_from(engine: &Engine, file: &BranchFile, all: Vec<BranchFile>) -> Result<Vec<String>> {
    let Some(own) = file.own_workspace(engine)? else { return Ok(Vec::new()) };
    let grown = all.into_iter().filter(|other| other.record.origin == own.id);
    Ok(grown.map(|other| other.record.name).collect())
}
