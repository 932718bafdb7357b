//! A workspace behind AgentFS: its directory lies beside its place, under a name of ours, and a branch of it is mounted there.
//!
//! **There**, in this order, so that being killed anywhere leaves the directory in its place, or the branch:
//!
//! 1. a note in the home, on disk; a place for the mount beside the workspace, with what stands in for it;
//! 2. both change names in one step; a last look whether somebody is in the directory;
//! 3. the branch, on disk; in the home, where the directory is now (`lower`): from here on it is done;
//! 4. the branch is mounted, the note goes.
//!
//! **Back**, of which the first is done by the caller's process: one that waits for a filesystem which it serves itself could not be killed.
//!
//! 1. the note; a snapshot; a copy of everything beside the workspace, on disk, and what it is into the note (`crate::back`);
//! 2. the branch is unmounted, which nobody may work in; if anything was changed since the snapshot, it is mounted again, and the copy goes;
//! 3. the copy and the place change names in one step, on disk: from here on it is done;
//! 4. the branch goes, then the place, then the note.
//!
//! What snapshots are of goes on lying beside it, until the last one is gone: then `reclaim` takes it away, if nobody changed anything in it.

use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ah_agentfs::{BranchId, BranchInfo, SnapshotId as Number, Workspace};
use ah_agentfs_fuse::clear_dead;
use ah_plugin_api::{Context, Converted, Dir, Error, ErrorKind, Reference, Result, SnapshotId, Timestamp, text};
use ah_provider_directory::{Mounts, State, failed, holders, look, mount_of};
use rustix::fs::{Mode, RenameFlags};

use super::mounted::{Place, What, take_away};
use super::opened::Open;
use super::record::PlaceLabel;
use super::{Service, fail, lock, patiently, stand_in};
use crate::behind::{Around, BEHIND, Behind, Note, alone, incomplete, path_beside, remove_tree};
use crate::home::{self, Shelf, Shown};

/// The branch that is mounted in place of a workspace.
fn converted(tree: &Workspace) -> Option<(BranchInfo, PathBuf)> {
    tree.branches().into_iter().find_map(|branch| {
        let label = PlaceLabel::decode(&branch.label).ok().filter(|label| label.converted)?;
        Some((branch, label.at()))
    })
}

/// Whether a branch is mounted in place of the workspace.
pub(super) fn is_converted(tree: &Workspace, branch: BranchId) -> bool {
    converted(tree).is_some_and(|(info, _)| info.id == branch)
}

impl Service {
    /// Answers [`ah_plugin_api::Provider::convert`].
    pub(super) fn put_behind(&self, workspace: &Dir, shelf: &Shelf, cx: &Context<'_>) -> Result<Converted> {
        let at = home::path_of(workspace)?;
        if let Some((_, is_root)) = Shown::around(workspace)? {
            return match is_root {
                true => Ok(Converted {
                    changed: false,
                    mounted: true,
                    notes: vec![format!("{} is in AgentFS already", at.display())],
                }),
                false => Err(Error::new(ErrorKind::FailedPrecondition, "it is within a branch or view of AgentFS")),
            };
        }
        let around = refuse_boundaries(workspace, &at)?;
        if let Some(error) = self.refuses(workspace)? {
            let message = "snapshots or branches of what was here before are kept in AgentFS";
            return Err(Error::new(ErrorKind::FailedPrecondition, message)
                .with_cause(&error)
                .with_hint("`ah agent fs snapshots` and `branches` list them; `ah agent fs rm` them first"));
        }
        let open = self.for_lower(workspace)?;
        let _making = open.making.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        if !open.tree.branches().is_empty() {
            let message = "branches read in the workspace what was not changed in them";
            return Err(Error::new(ErrorKind::FailedPrecondition, message).with_hint("ah agent fs branches"));
        }
        cx.check_cancelled()?;
        let aside: OsString = [OsStr::new(BEHIND), &around.name].into_iter().collect();
        let moved = path_beside(&at, &aside);
        if around.look(&aside).is_some() {
            return Err(Error::new(ErrorKind::AlreadyExists, format!("{} is there already", moved.display()))
                .with_hint("rename it, or remove it if nothing in it is needed"));
        }
        let mut note = Note {
            back: false,
            at: at.as_os_str().as_bytes().to_vec(),
            aside: aside.as_bytes().to_vec(),
            made: None,
            before: None,
        };
        note.write(&self.home)?;
        let made = self.exchange_and_grow(&open, shelf, &around, &at, &mut note, workspace, cx);
        match made {
            Ok(()) => {}
            Err(error) => {
                if let Some((branch, _)) = converted(&open.tree) {
                    Self::discard_branch(&open, branch.id, &at, cx);
                }
                return Err(match self.undo(&note) {
                    Ok(()) => error,
                    Err(why) => error
                        .with_cause(&why)
                        .with_hint(format!("the directory is at {}; `ah agent fs gc` puts it back", moved.display())),
                });
            }
        }
        Note::forget(&self.home);
        let notes = vec![
            format!(
                "{} is mounted by AgentFS now, and another directory: programs that were in it have to be started anew",
                at.display()
            ),
            format!("what it was until now is {}, for AgentFS to read: nothing is to be done there", moved.display()),
            "other users, root too, do not see into it".to_owned(),
        ];
        Ok(Converted { changed: true, mounted: true, notes })
    }

    #[expect(clippy::too_many_arguments, reason = "what one step of a conversion works with")]
    fn exchange_and_grow(
        &self,
        open: &Open,
        shelf: &Shelf,
        around: &Around,
        at: &Path,
        note: &mut Note,
        workspace: &Dir,
        cx: &Context<'_>,
    ) -> Result<()> {
        let aside = note.aside().to_owned();
        let place = path_beside(at, &aside);
        let cannot = |errno| failed(format!("cannot make {}", place.display()), errno);
        rustix::fs::mkdirat(&around.above, &aside, Mode::RWXU).map_err(cannot)?;
        note.made = Some(look(&around.above, aside.as_bytes()).map_err(cannot)?.stx_ino);
        note.write(&self.home)?;
        stand_in::Place::hold(&place).and_then(|place| place.put_up()).map_err(cannot)?;
        around.rename(&around.name, &aside, RenameFlags::EXCHANGE)?;
        // Who came in by then works in what nobody else sees any more.
        holders::refuse(workspace.as_fd(), None)?;
        let since = Timestamp::now();
        let cannot = |e: &ah_agentfs::Error| fail("cannot put the workspace behind AgentFS", e);
        let base = open.tree.base_alone(b"").map_err(|e| cannot(&e))?;
        let label = PlaceLabel::of_workspace(&shelf.key, at);
        let branch = open.tree.branch(base, &label.encode()?);
        let _ = open.tree.delete_snapshot(base);
        let branch = branch.map_err(|e| cannot(&e))?;
        patiently(cx, || open.tree.sync()).map_err(|e| cannot(&e))?;
        let view = open.tree.view(branch).map_err(|e| cannot(&e))?;
        let mounted = Place::mount(view, at, &self.shown(Some(branch)))?;
        lock(&open.mounted).insert(What::Branch(branch), mounted);
        Behind { at: note.at.clone(), since, leaves: false }.write(&self.home)?;
        self.write_lower(open, place)
    }

    /// Puts the workspace's own directory back, whichever of the steps was the last. Nothing is mounted there any more.
    fn undo(&self, note: &Note) -> Result<()> {
        let at = note.at();
        let around = Around::of(&at)?;
        let how = match (note.made, around.look(&around.name)) {
            (None, _) => None,
            // Taken away with its branch.
            (Some(_), None) => Some(RenameFlags::NOREPLACE),
            (Some(made), Some(stat)) => (stat.stx_ino == made).then_some(RenameFlags::EXCHANGE),
        };
        if let Some(how) = how {
            around.rename(note.aside(), &around.name, how)?;
        }
        if note.made.is_none_or(|made| around.is(note.aside(), made)) {
            // What is not empty is not the place.
            let _ = around.remove_place(at.parent().unwrap_or(Path::new("/")), note.aside());
        }
        Note::forget(&self.home);
        Ok(())
    }

    /// Answers [`ah_plugin_api::Provider::convert`] where the workspace is to be a plain directory again: a copy of it is beside it, as the note says.
    pub(super) fn take_back(&self, open: &Open, cx: &Context<'_>) -> Result<Converted> {
        let _making = open.making.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        let none = || Error::new(ErrorKind::FailedPrecondition, "the workspace is not behind AgentFS");
        let (branch, at) = converted(&open.tree).ok_or_else(none)?;
        if open.apart {
            return Err(incomplete());
        }
        let uncopied = || Error::new(ErrorKind::Internal, "no copy of the workspace was made");
        let note = Note::of(&self.home)?.filter(|note| note.back && note.at() == at).ok_or_else(uncopied)?;
        let made = note.made.ok_or_else(uncopied)?;
        let before = SnapshotId::new(note.before.as_deref().unwrap_or_default())?;
        let shelf = Shelf::of(&self.home)?.ok_or_else(uncopied)?;
        let (before, _) = open.find(&shelf, &Reference::new(before.as_str())?)?;
        let around = Around::of(&at)?;
        if !around.is(note.aside(), made) {
            return Err(uncopied());
        }
        take_away(&open.mounted, &What::Branch(branch.id), || {
            unchanged(open, before, branch.id)?;
            around.rename(&around.name, note.aside(), RenameFlags::EXCHANGE)?;
            self.finish_back(open, &note)
        })
        .inspect_err(|_| self.mount_again(open))?;
        let about = "is a plain directory again, and another one: programs that were in it have to be started anew";
        let mut notes = vec![format!("{} {about}", at.display())];
        notes.extend(self.drop_behind(open, cx)?);
        Ok(Converted { changed: true, mounted: false, notes })
    }

    /// The copy is in the workspace's place: the rest goes.
    fn finish_back(&self, open: &Open, note: &Note) -> Result<()> {
        let at = note.at();
        let cannot = |e: &ah_agentfs::Error| fail("cannot remove the branch that the workspace was", e);
        if let Some((branch, _)) = converted(&open.tree) {
            open.tree.delete_branch(branch.id).map_err(|e| cannot(&e))?;
        }
        self.forget_before(open, note)?;
        open.tree.sync().map_err(|e| cannot(&e))?;
        let around = Around::of(&at)?;
        if !note.made.is_some_and(|made| around.is(note.aside(), made)) {
            around.remove_place(at.parent().unwrap_or(Path::new("/")), note.aside())?;
        }
        Note::forget(&self.home);
        Ok(())
    }

    /// The snapshot that the copy is compared with goes.
    fn forget_before(&self, open: &Open, note: &Note) -> Result<()> {
        let Some(id) = note.before.as_deref().and_then(|id| SnapshotId::new(id).ok()) else { return Ok(()) };
        let Some(shelf) = Shelf::of(&self.home)? else { return Ok(()) };
        let known = lock(&open.known).remove(&(shelf.key, id));
        match known.and_then(|known| known.number).map(|number| open.tree.delete_snapshot(number)) {
            None | Some(Ok(()) | Err(ah_agentfs::Error::NotFound)) => Ok(()),
            Some(Err(error)) => Err(fail("cannot remove a snapshot that is not needed", &error)),
        }
    }

    /// Refuses to mount a branch where the copy is that is to be there instead.
    pub(super) fn refuse_replaced(&self, at: &Path) -> Result<()> {
        match Note::of(&self.home)?.filter(|note| note.back && note.at() == at) {
            Some(Note { made: Some(made), .. }) if Around::of(at)?.is(at.file_name().unwrap_or_default(), made) => {
                Err(Error::new(ErrorKind::FailedPrecondition, "a plain directory is there again"))
            }
            _ => Ok(()),
        }
    }

    /// What a killed service had begun to do: before the tree is opened, as it says where the directory lies that was branched.
    pub(super) fn settle_before(&self) -> Result<()> {
        let Some(note) = Note::of(&self.home)? else { return Ok(()) };
        clear_dead(&note.at()).map_err(|e| Error::new(ErrorKind::Unavailable, e.to_string()))?;
        let done = self.lower()?.is_some_and(|lower| lower == path_beside(&note.at(), note.aside()));
        match (note.back, done) {
            // What was copied is looked at with the tree.
            (true, _) => Ok(()),
            (false, true) => {
                Note::forget(&self.home);
                Ok(())
            }
            (false, false) => self.undo(&note),
        }
    }

    /// The same, with the tree, before anything is mounted; and of whoever took the workspace back and is gone.
    pub(super) fn settle_after(&self, open: &Open) -> Result<()> {
        if let Some(note) = Note::of(&self.home)?.filter(|note| note.back)
            && let Some(_alone) = alone(&self.home)?
        {
            let around = Around::of(&note.at())?;
            if note.made.is_some_and(|made| around.is(&around.name, made)) {
                self.finish_back(open, &note)?;
            } else {
                remove_tree(&path_beside(&note.at(), note.aside()))?;
                self.forget_before(open, &note)?;
                Note::forget(&self.home);
            }
        }
        // One that was undone before it was whole: the directory is in its place.
        let lower = self.lower()?;
        if let Some((branch, at)) = converted(&open.tree)
            && lower.as_ref() == Some(&at)
        {
            open.tree.delete_branch(branch.id).map_err(|e| fail("cannot remove a branch that was not finished", &e))?;
        }
        Ok(())
    }

    /// Whether what branches read is a directory that lies behind a workspace, or did.
    pub(super) fn lies_behind(&self, open: &Open) -> Result<bool> {
        let name = lock(&open.lower)
            .as_ref()
            .and_then(|lower| Some(lower.file_name()?.as_bytes().starts_with(BEHIND.as_bytes())));
        Ok(name == Some(true) && Behind::of(&self.home)?.is_some())
    }

    /// Takes away the directory that lay behind a workspace, once nothing reads it any more and if nobody changed anything in it. Gives what is to be said
    /// where it stays.
    pub(super) fn drop_behind(&self, open: &Open, cx: &Context<'_>) -> Result<Option<String>> {
        let Some(lower) = lock(&open.lower).clone() else { return Ok(None) };
        if !self.lies_behind(open)? {
            return Ok(None);
        }
        let Some(mut behind) = Behind::of(&self.home)? else { return Ok(None) };
        let shown = lower.display();
        if !open.tree.snapshots().is_empty() || !open.tree.branches().is_empty() {
            return Ok(Some(format!(
                "{shown} stays as long as there are snapshots and branches by agentfs, which read it; then `ah agent fs gc` takes it away"
            )));
        }
        let Ok(dir) = Dir::open(&lower) else { return Ok(None) };
        let stat = rustix::fs::fstat(&dir).map_err(|errno| failed("cannot look at what lay behind", errno))?;
        if !open.tree.is_lower(stat.st_dev, stat.st_ino) {
            return Ok(None);
        }
        // A removal that was cut short has changed it.
        if !behind.leaves && is_changed(&dir, behind.since, cx)? {
            return Ok(Some(format!(
                "{shown} was worked in, although nothing was to be done there, and stays: `rm -r {}` takes it away",
                text::shell(lower.as_os_str())
            )));
        }
        behind.leaves = true;
        behind.write(&self.home)?;
        remove_tree(&lower)?;
        Behind::forget(&self.home);
        Ok(None)
    }
}

/// That nothing was changed since a snapshot.
fn unchanged(open: &Open, before: Number, branch: BranchId) -> Result<()> {
    let cannot = |e: &ah_agentfs::Error| fail("cannot tell what was changed while the workspace was copied", e);
    let now = open.tree.look(branch).map_err(|e| cannot(&e))?;
    let told = open.view_of(before)?.differences(&now, &|_| true).map_err(|e| cannot(&e))?;
    match told {
        Some(told) if told.list.is_empty() => Ok(()),
        _ => Err(ah_provider_directory::changed()),
    }
}

/// Whether anything in a directory was changed after a time. The directory itself got its name about then.
fn is_changed(dir: &Dir, since: Timestamp, cx: &Context<'_>) -> Result<bool> {
    let mut changed = false;
    State::of(dir.as_fd(), cx, |_, _, stat| {
        changed |= (stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec) > (since.secs, since.nanos);
        Ok(())
    })?;
    Ok(changed)
}

/// Refuses what cannot come along, and what cannot be put aside.
fn refuse_boundaries(workspace: &Dir, at: &Path) -> Result<Around> {
    let shown = at.display();
    let fail = |errno| failed(format!("cannot look at what is around {shown}"), errno);
    let around = Around::of(at)?;
    if mount_of(&around.above).map_err(fail)? != mount_of(workspace).map_err(fail)? {
        return Err(Error::new(ErrorKind::FailedPrecondition, format!("{shown} is a mount point"))
            .with_hint("convert the directories in it that you work in, each by itself"));
    }
    let ino = look(workspace, b"").map_err(fail)?.stx_ino;
    if !around.is(&around.name, ino) {
        return Err(Error::new(ErrorKind::Conflict, format!("{shown} was moved meanwhile")).with_hint("repeat"));
    }
    if let Some(inside) = Mounts::read()?.below(workspace).first() {
        let message = format!("{} is mounted inside of {shown}", inside.path);
        return Err(Error::new(ErrorKind::FailedPrecondition, message).with_hint("unmount it, then repeat"));
    }
    holders::refuse(workspace.as_fd(), None)?;
    holders::refuse_mounts(workspace.as_fd())?;
    Ok(around)
}
