//! A workspace behind AgentFS: its directory lies beside its place, under a name of ours, and a branch of it is mounted there.
//!
//! **There**, in this order, so that being killed anywhere leaves the directory in its place, or the branch:
//!
//! 1. a note in the home, on disk; a place for the mount beside the workspace, with what stands in for it;
//! 2. both change names in one step; a last look whether somebody is in the directory; that is shut to everybody else, and the note has its permission bits;
//! 3. the branch, which has those bits, on disk; in the home, where the directory is now (`lower`), and that it lies behind (`behind`): from here on it is done;
//! 4. the branch is mounted, the note goes. If somebody wrote into the place by then, nobody has been let write into the branch yet: all is undone, and what was written goes into the directory.
//!
//! **Back**, of which the first is done by the caller's process: one that waits for a filesystem which it serves itself could not be killed.
//!
//! 1. the note; a snapshot; a copy of everything beside the workspace, on disk, and what it is into the note (`crate::back`);
//! 2. the branch is unmounted, which nobody may work in; if anything was changed since the snapshot, it is mounted again, and the copy goes;
//! 3. the copy and the place change names in one step, on disk: from here on it is done;
//! 4. in the home, that it was taken back; the branch goes, then the place, then the note.
//!
//! **Written off**, where what lay behind is gone and another directory is in the workspace's place, be it empty: a note that the branch is to go, on disk; `behind` goes,
//! the branch, the note. A branch that neither `behind` nor a note knows is not taken away: then `behind` was lost, and is written anew,
//! unless the directory that lay behind is in the workspace's place itself: then neither is touched. A damaged `behind` is one that is there, and one that does not say what the tree does
//! is damaged.
//!
//! What snapshots are of goes on lying beside it, until the last one is gone: then `reclaim` takes it away, if it is written down that the workspace was taken back, and nobody changed anything in it.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use ah_agentfs::{BranchId, BranchInfo, ROOT, SetAttr, SnapshotId as Number, View, Workspace};
use ah_plugin_api::sys::remove_dir_for_good;
use ah_plugin_api::{
    BEHIND, Context, Converted, Dir, Error, ErrorKind, LogLevel, Reference, Result, SnapshotId, Timestamp, text,
};
use ah_provider_directory::{Mounts, State, failed, holders, look, mount_of};
use rustix::fs::{Mode, RenameFlags};
use rustix::io::Errno;

use super::mounted::{Place, What, take_away};
use super::opened::Open;
use super::record::PlaceLabel;
use super::{Service, alone, below, fail, lock, lower, stand_in};
use crate::conversion::{Around, Behind, COPY, Note, incomplete, is_object, path_beside, shut};
use crate::home::{self, Shelf, TREE};

/// So many processes are named.
const AT_A_GLANCE: usize = 5;
/// What is said of what nobody else is to take away. No command: by the time that is typed the next workspace may lie there.
const BY_HAND: &str = "to take it away, look at what is in it, and remove it by hand";

/// The branch that is mounted in place of a workspace.
pub(super) fn converted(tree: &Workspace) -> Option<(BranchInfo, PathBuf)> {
    converted_of(tree.branches()).map(|(branch, label)| (branch, label.at()))
}

/// The same of a tree that is not open.
pub(super) fn converted_of(branches: Vec<BranchInfo>) -> Option<(BranchInfo, PlaceLabel)> {
    branches.into_iter().find_map(|branch| {
        let label = PlaceLabel::decode(&branch.label).ok().filter(|label| label.converted)?;
        Some((branch, label))
    })
}

/// The key of the shelf of a home whose workspace is behind AgentFS, as the branches of its tree have it.
pub(super) fn shelf_of_converted(branches: Vec<BranchInfo>) -> Option<String> {
    converted_of(branches).map(|(_, label)| label.shelf)
}

/// Whether a branch is mounted in place of the workspace.
pub(super) fn is_converted(tree: &Workspace, branch: BranchId) -> bool {
    converted(tree).is_some_and(|(info, _)| info.id == branch)
}

impl Service {
    /// Answers [`ah_plugin_api::Provider::convert`].
    pub(super) fn put_behind(&self, workspace: &Dir, shelf: &Shelf, cx: &Context<'_>) -> Result<Converted> {
        let at = home::path_of(workspace)?;
        let around = refuse_boundaries(workspace, &at)?;
        self.refuse_in_copy()?;
        if let Some(error) = self.refuses(workspace, cx)? {
            if error.kind == ErrorKind::DataLoss {
                return Err(error);
            }
            let message = "snapshots or branches of what was here before are kept in AgentFS";
            let ids = self.current().map(|open| open.ids(shelf)).unwrap_or_default();
            let them = match ids.len() {
                0 => String::new(),
                1..=20 => format!(", `ah agent fs rm {}` removes its snapshots", ids.join(" ")),
                many => {
                    format!(", `ah agent fs snapshots --json` says which {many} snapshots are its own; remove them")
                }
            };
            return Err(Error::new(ErrorKind::FailedPrecondition, message)
                .with_cause(&error)
                .with_hint(format!("`ah agent fs branches` lists its branches{them}; then repeat")));
        }
        // What lay behind before goes first, while it is known.
        if let Some(open) = self.current().filter(|open| open.holds_nothing())
            && let Some(stays) = self.drop_behind(&open, cx)?
            && Behind::is_there(&self.home)?
        {
            return Err(Error::new(ErrorKind::FailedPrecondition, stays));
        }
        // With its tree it was given up: nobody is to be told that the next one has lost it. As long as the directory is there, that says where.
        if look(&self.home, TREE.as_bytes()).err() == Some(Errno::NOENT) && around.look(&around.behind()).is_none() {
            Behind::forget(&self.home)?;
        }
        let open = self.for_lower(workspace, cx)?;
        let _making = alone(&open.making, cx)?;
        if !open.tree.branches().is_empty() {
            let message = "branches read in the workspace what was not changed in them";
            return Err(Error::new(ErrorKind::FailedPrecondition, message).with_hint("ah agent fs branches"));
        }
        cx.check_cancelled()?;
        let aside = around.behind();
        let behind = path_beside(&at, &aside);
        if aside.len() > 255 {
            let message = format!("{} would have too long a name", behind.display());
            return Err(
                Error::new(ErrorKind::FailedPrecondition, message).with_hint("give the workspace a shorter one")
            );
        }
        if around.look(&aside).is_some() {
            return Err(Error::new(ErrorKind::AlreadyExists, format!("{} is there already", behind.display()))
                .with_hint("rename it, or remove it if nothing in it is needed"));
        }
        // One of another time would say that this one is done.
        Behind::forget(&self.home)?;
        let mut note = Note::new(false, &at, &aside);
        let stat = rustix::fs::fstat(workspace).map_err(|errno| failed("cannot look at the workspace", errno))?;
        note.own = Some((stat.st_ino, Mode::from_raw_mode(stat.st_mode).as_raw_mode()));
        note.write(&self.home)?;
        let made = self.exchange(&around, &behind, &mut note, workspace).and_then(|since| {
            // Locked until it is known: whoever mounts again what should be mounted must not find it half-way.
            let mut mounted = lock(&open.mounted);
            let branch = self.grow_behind(&open, shelf, &note, behind.clone(), since)?;
            let view = open.tree.view(branch).map_err(|e| fail("cannot open the branch", &e))?;
            let place = Place::mount(view, &at, &self.shown(Some(branch)))?;
            mounted.insert(What::Branch(branch), place);
            Ok(())
        });
        if let Err(mut error) = made {
            let mut said = vec![error.message];
            let undone = self.undo_all(&open, &note, &at, &mut said, cx);
            error.message = said.join("; ");
            return Err(match undone {
                Ok(()) => error,
                Err(why) => {
                    self.unsettled.store(true, Ordering::Relaxed);
                    let stat = look(workspace, b"").ok();
                    let is_aside = stat.is_some_and(|stat| around.is(&aside, stat.stx_ino).unwrap_or(false));
                    let lies = if is_aside { &behind } else { &at };
                    let hint = format!("the directory is at {}; `ah agent fs gc` puts things in order", lies.display());
                    error.with_cause(&why).with_hint(hint)
                }
            });
        }
        Note::forget(&self.home);
        Ok(Converted { changed: true, mounted: true, notes: self.what_is_where(&at, &behind, workspace) })
    }

    /// What a person should know of a workspace that was just put behind AgentFS.
    fn what_is_where(&self, at: &Path, behind: &Path, workspace: &Dir) -> Vec<String> {
        let (at, behind, home) = (at.display(), behind.display(), self.path.display());
        let device = |dir: &Dir| rustix::fs::fstat(dir).map(|stat| stat.st_dev).ok();
        let another = if device(workspace) == device(&self.home) { "" } else { ", which is on another disk" };
        let mut notes = vec![
            format!(
                "{at} is mounted by AgentFS now, and another directory: programs that were in it have to be started anew"
            ),
            format!("what it was until now is {behind}: AgentFS reads it there, and nothing is to be done in it"),
            format!("what is written from now on is kept in {home}{another}"),
        ];
        if !rustix::process::geteuid().is_root() {
            notes.push("other users, root too, do not see into it".to_owned());
        }
        notes
    }

    /// What is beside the workspace, and in its place, is the original's.
    fn refuse_in_copy(&self) -> Result<()> {
        let Some(original) = self.original() else { return Ok(()) };
        let message =
            format!("{} is a copy of {}, which may have the workspace", self.path.display(), original.display());
        Err(Error::new(ErrorKind::FailedPrecondition, message)
            .with_hint("use the AH_HOME that it was copied from; or move that away first"))
    }

    /// Puts a place for the mount where the workspace is, and that beside it. Gives since when nobody else changes anything in it.
    fn exchange(&self, around: &Around, behind: &Path, note: &mut Note, workspace: &Dir) -> Result<Timestamp> {
        let cannot = |errno| failed(format!("cannot make {}", behind.display()), errno);
        let place = around.make(note.aside())?;
        note.made = Some(look(&place, b"").map_err(cannot)?.stx_ino);
        note.write(&self.home)?;
        stand_in::Place::of(place).put_up().map_err(cannot)?;
        around.rename(&around.name, note.aside(), RenameFlags::EXCHANGE)?;
        // Who came in by then works in what nobody else sees any more.
        holders::refuse_others(workspace.as_fd())?;
        // What is closed or removed in the workspace from now on, others would read here still.
        if let Some((_, mode)) = note.own {
            shut_up(workspace, mode, behind)?;
        }
        Ok(Timestamp::now())
    }

    /// Makes the branch, on disk, and writes down that it is in place of the workspace: from there on it is done.
    fn grow_behind(
        &self,
        open: &Open,
        shelf: &Shelf,
        note: &Note,
        behind: PathBuf,
        since: Timestamp,
    ) -> Result<BranchId> {
        let cannot = |e: &ah_agentfs::Error| fail("cannot put the workspace behind AgentFS", e);
        let base = open.tree.base_alone(b"").map_err(|e| cannot(&e))?;
        let branch = open.tree.branch(base, &PlaceLabel::of_workspace(&shelf.key, &note.at())?.encode()?);
        let _ = open.tree.delete_snapshot(base);
        let branch = branch.map_err(|e| cannot(&e))?;
        if let Some((_, mode)) = note.own.filter(|&(_, mode)| shut(mode) != mode) {
            open.tree.view(branch).and_then(|view| keep_mode(&view, mode)).map_err(|e| cannot(&e))?;
        }
        open.tree.sync().map_err(|e| cannot(&e))?;
        self.write_lower(open, behind)?;
        let behind = Behind { at: note.at.clone(), branch: branch.0, since, taken_back: Some(false), leaves: None };
        behind.write(&self.home)?;
        Ok(branch)
    }

    /// Undoes what was begun, in the reverse order. What a person should know goes to `left`.
    fn undo_all(&self, open: &Open, note: &Note, at: &Path, left: &mut Vec<String>, cx: &Context<'_>) -> Result<()> {
        Behind::forget(&self.home)?;
        if let Some((branch, _)) = converted(&open.tree) {
            Self::discard_branch(open, branch.id, at, cx);
        }
        self.undo(note, left)?;
        self.write_lower(open, at.to_owned())?;
        self.forget_undone(Some(open), note)
    }

    /// Puts the workspace's own directory back, whichever of the steps was the last. Nothing is mounted there any more. The note stays: it says that the branch is
    /// nobody's, as long as that is there.
    pub(super) fn undo(&self, note: &Note, left: &mut Vec<String>) -> Result<()> {
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
        if let Some(own) =
            note.own.filter(|&(ino, _)| around.look(&around.name).is_some_and(|stat| stat.stx_ino == ino))
        {
            around.open_again(own)?;
        }
        match note.made {
            Some(made) if around.is(note.aside(), made)? => left.extend(around.remove_place(&at, note.aside())?),
            // As long as it is not in its place, it stays on record where it is.
            Some(_) if around.look(note.aside()).is_some() => {
                let aside = path_beside(&at, note.aside());
                let message = format!("something else is at {}, which is {} now", at.display(), aside.display());
                return Err(Error::new(ErrorKind::Conflict, message).with_hint("move that away, then repeat"));
            }
            Some(_) => {}
            // Killed before it was known which it is: an empty one is ours, or as good as nothing.
            None => _ = remove_dir_for_good(&around.above, note.aside()),
        }
        if self.lower()?.is_some_and(|lower| lower == path_beside(&at, note.aside())) {
            lower::write(&self.home, &at)?;
        }
        Ok(())
    }

    /// Answers [`ah_plugin_api::Provider::convert`] where the workspace is to be a plain directory again: a copy of it is beside it, as the note says.
    pub(super) fn take_back(&self, open: &Open, cx: &Context<'_>) -> Result<Converted> {
        self.refuse_in_copy()?;
        // Whoever puts in order what others have left waits for that.
        let _making = alone(&open.making, cx)?;
        let none = || Error::new(ErrorKind::FailedPrecondition, "the workspace is not behind AgentFS");
        let (branch, at) = converted(&open.tree).ok_or_else(none)?;
        if open.apart {
            return Err(incomplete());
        }
        let uncopied = || Error::new(ErrorKind::Internal, "no copy of the workspace was made");
        let note = Note::of(&self.home)?.filter(|note| note.back && note.at() == at).ok_or_else(uncopied)?;
        let made = note.made.ok_or_else(uncopied)?;
        let before = SnapshotId::new(note.before.as_deref().unwrap_or_default())?;
        let shelf = open.shelf(Shelf::of(&self.home)?.ok_or_else(uncopied)?);
        let (before, _) = open.find(&shelf, &Reference::new(before.as_str())?)?;
        let around = Around::of(&at)?;
        if !around.is(note.aside(), made)? {
            return Err(uncopied());
        }
        let mut notes = vec![format!(
            "{} is a plain directory again, and another one: programs that were in it have to be started anew",
            at.display()
        )];
        notes.extend(open.tree.changed_below(branch.id).ok().and_then(|paths| below::changed(paths, None)).map(
            |changed| {
                let first: Vec<_> = changed.paths.iter().take(3).map(ToString::to_string).collect();
                let behind = path_beside(&at, &around.behind());
                let what = text::count(changed.total, "path was", "paths were");
                format!("{what} changed in {}, and came along as there: {} …", behind.display(), first.join(", "))
            },
        ));
        // It is done then, whatever becomes of the rest: that is left to `reclaim`.
        let later = |error: Error| format!("`ah agent fs gc` clears up behind it: {}", error.message);
        let mut left = Vec::new();
        take_away(&open.mounted, &What::Branch(branch.id), || {
            unchanged(open, before, branch.id)?;
            around.rename(&around.name, note.aside(), RenameFlags::EXCHANGE)?;
            if let Err(error) = self.finish_back(open, &note, &mut left) {
                left.push(later(error));
            }
            Ok(())
        })
        .inspect_err(|_| self.mount_again(open))?;
        notes.append(&mut left);
        match self.drop_behind(open, cx) {
            Ok(stays) => notes.extend(stays),
            Err(error) => notes.push(later(error)),
        }
        Ok(Converted { changed: true, mounted: false, notes })
    }

    /// Removes the branch that is in place of a workspace, of which what lay behind is gone. What is at its path by now is somebody's, and stays.
    pub(super) fn write_off(&self, open: &Open, branch: BranchId, at: &Path, cx: &Context<'_>) -> Result<()> {
        self.refuse_in_copy()?;
        let _making = alone(&open.making, cx)?;
        // Locked until the branch is gone: nobody mounts what was found to be lost.
        let mut mounted = lock(&open.mounted);
        mounted.look();
        let is_replaced = at.symlink_metadata().is_ok_and(|there| there.is_dir());
        if mounted.has(&What::Branch(branch)) || !is_replaced || self.lost_behind()?.is_none() {
            let message = format!("{} is a workspace behind AgentFS, and is kept", at.display());
            let typed = text::shell(at.as_os_str());
            return Err(Error::new(ErrorKind::FailedPrecondition, message).with_hint(format!(
                "bring it back there if it was moved, then make it a plain directory again: `cd / && ah -C {typed} agent fs convert --back`"
            )));
        }
        // In this order: killed behind the second, the next service takes the branch away; before that, it is as if nobody had asked.
        let aside = Around::of(at)?.behind();
        Note::new(false, at, &aside).undone().write(&self.home)?;
        Behind::forget(&self.home)?;
        Self::delete_from_tree(open, branch, cx)?;
        drop(mounted);
        Self::settle_removal(open)?;
        Note::forget(&self.home);
        Ok(())
    }

    /// Whether what branches read is a directory that lies behind a workspace, or did.
    pub(super) fn lies_behind(&self, open: &Open) -> Result<bool> {
        let name = lock(&open.lower)
            .as_ref()
            .and_then(|lower| Some(lower.file_name()?.as_bytes().starts_with(BEHIND.as_bytes())));
        Ok(name == Some(true) && Behind::of(&self.home)?.is_some())
    }

    /// Shuts what lies behind a workspace, where a program put it there that did not, or somebody opened it.
    pub(super) fn shut_behind(&self, open: &Open, view: &View) -> Result<()> {
        let Some(shown) = lock(&open.lower).clone().filter(|_| !open.apart) else { return Ok(()) };
        let dir = Dir::open(&shown)?;
        let stat = rustix::fs::fstat(&dir).map_err(|errno| failed("cannot look at what lies behind", errno))?;
        let mode = Mode::from_raw_mode(stat.st_mode).as_raw_mode();
        if shut(mode) == mode || !open.tree.is_lower(stat.st_dev, stat.st_ino) {
            return Ok(());
        }
        let cannot = |e: &ah_agentfs::Error| fail("cannot shut what lies behind", e);
        let shows = view.getattr(ROOT).map_err(|e| cannot(&e))?;
        keep_mode(view, shows.mode).map_err(|e| cannot(&e))?;
        open.tree.sync().map_err(|e| cannot(&e))?;
        shut_up(&dir, mode, &shown)
    }

    /// Says where something lies beside the workspace that could not be put into it: who asked for the conversion may have been gone by then.
    pub(super) fn tell_what_is_left(open: &Open, cx: &Context<'_>) {
        let Some(at) = lock(&open.lower).clone() else { return };
        let left = Around::of(&at).map(|around| around.left()).unwrap_or_default();
        let left = left.into_iter().map(|name| path_beside(&at, &name));
        // Who brought back what the workspace was has put aside what stood in for it.
        for left in left.filter(|left| stand_in::stands_in(left) != Some(true)) {
            let message =
                "was written at the place of a workspace while that was not mounted, or `convert` was at work there";
            cx.log(LogLevel::Warn, &format!("what is in {} {message}: bring it home, or remove it", left.display()));
        }
    }

    /// As [`Service::drop_behind`], of a workspace that is a plain directory again since some time. Gives what was done.
    ///
    /// # Errors
    /// `Cancelled`: the next call goes on.
    pub(super) fn drop_what_lay_behind(&self, open: &Open, cx: &Context<'_>) -> Result<Option<String>> {
        let Ok(_making) = open.making.try_write() else { return Ok(None) };
        let is_free = || self.original().is_none() && open.holds_nothing();
        let Some(behind) = Behind::of(&self.home).ok().flatten().filter(|_| is_free()) else { return Ok(None) };
        let said = match self.drop_behind(open, cx) {
            Ok(None) => {
                let at = behind.at();
                return Ok(Some(format!("took away what {} was when it was put behind AgentFS", at.display())));
            }
            Ok(Some(stays)) => stays,
            Err(error) if error.kind == ErrorKind::Cancelled => return Err(error),
            Err(Error { message, hint, .. }) => {
                let hint = hint.map(|hint| format!(" ({hint})")).unwrap_or_default();
                format!("what lay behind AgentFS is not cleared up: {message}{hint}")
            }
        };
        cx.log(LogLevel::Warn, &said);
        Ok(None)
    }

    /// Takes away the directory that lay behind a workspace, once nothing reads it any more and if nobody changed anything in it or has it open. Gives what is
    /// to be said unless it did.
    fn drop_behind(&self, open: &Open, cx: &Context<'_>) -> Result<Option<String>> {
        let behind = Behind::of(&self.home)?.filter(|_| self.original().is_none());
        let Some(mut behind) = behind else { return Ok(None) };
        let around = Around::of(&behind.at())?;
        if behind.taken_back != Some(true) {
            let shown = path_beside(&behind.at(), &around.behind());
            if look(&around.above, around.behind().as_bytes()).err() == Some(Errno::NOENT) {
                return self.forget_behind(&shown);
            }
            let kept = "stays: it is not on record that a plain directory came in its place, so it may be the last there is of it; elsewhere it is in nobody's way";
            return Ok(Some(format!("{} {kept}", shown.display())));
        }
        // It may have been killed before it got that name.
        let leaves = behind.leaves.clone().map(OsString::from_vec).filter(|name| around.look(name).is_some());
        let leaves = match leaves {
            Some(leaves) => leaves,
            None => {
                let name = around.behind();
                let shown = path_beside(&behind.at(), &name);
                if !open.tree.snapshots().is_empty() || !open.tree.branches().is_empty() {
                    let then = match behind.is_since_known() {
                        true => "`ah agent fs gc` takes it away",
                        false => "`ah agent fs gc` says how it is taken away",
                    };
                    return Ok(Some(format!(
                        "{} stays as long as there are snapshots and branches by agentfs, which read it; then {then}",
                        shown.display()
                    )));
                }
                let dir = match Dir::open(&shown) {
                    Err(error) if error.kind == ErrorKind::NotFound => {
                        return self.forget_behind(&shown);
                    }
                    dir => dir?,
                };
                let stat = rustix::fs::fstat(&dir).map_err(|errno| failed("cannot look at what lay behind", errno))?;
                if !open.tree.is_lower(stat.st_dev, stat.st_ino) {
                    Behind::forget(&self.home)?;
                    return Ok(Some(format!("{} is another directory by now, and stays", shown.display())));
                }
                refuse_used(&dir, &shown)?;
                if !behind.is_since_known() {
                    return Ok(Some(format!(
                        "{} stays: what was written down of it was lost once, and whether anything was done in it since then is not known: {BY_HAND}",
                        shown.display()
                    )));
                }
                if Timestamp::now() < behind.since {
                    let shown = shown.display();
                    return Ok(Some(format!("{shown} stays: by the clock it was put there later than now")));
                }
                if is_changed(&dir, behind.since, cx)? {
                    return Ok(Some(format!(
                        "{} was worked in, although nothing was to be done there, and stays: {BY_HAND}",
                        shown.display()
                    )));
                }
                // From here on it is nobody's any more, under a name that nobody knows.
                let leaves = OsString::from(format!("{COPY}{}", home::random()?));
                behind.leaves = Some(leaves.as_bytes().to_vec());
                behind.write(&self.home)?;
                around.rename(&name, &leaves, RenameFlags::NOREPLACE)?;
                leaves
            }
        };
        around.remove(&leaves, cx)?;
        Behind::forget(&self.home)?;
        Ok(None)
    }

    /// Forgets what lay behind a workspace, and is not there.
    fn forget_behind(&self, shown: &Path) -> Result<Option<String>> {
        Behind::forget(&self.home)?;
        Ok(Some(format!("{} is gone already: somebody else took it away", shown.display())))
    }
}

/// Lets nobody but its owner into a directory.
fn shut_up(dir: &Dir, mode: u32, shown: &Path) -> Result<()> {
    if shut(mode) == mode {
        return Ok(());
    }
    rustix::fs::fchmod(dir, Mode::from_raw_mode(shut(mode)))
        .map_err(|errno| failed(format!("cannot shut {} to other users", shown.display()), errno))
}

/// Has a branch keep what permission bits its own directory has, whatever that below has.
fn keep_mode(view: &View, mode: u32) -> ah_agentfs::Result<()> {
    view.setattr(ROOT, SetAttr { mode: Some(mode), ..SetAttr::default() }).map(drop)
}

/// Refuses to take away what lies at `shown` while somebody uses it: who that is, all of them.
fn refuse_used(dir: &Dir, shown: &Path) -> Result<()> {
    let shown = shown.display();
    holders::refuse_mounts(dir.as_fd()).map_err(|error| error.context(format!("{shown} stays")))?;
    let Err(refused) = holders::refuse_others(dir.as_fd()) else { return Ok(()) };
    let them = holders::others_in(dir.as_fd())?;
    if them.is_empty() {
        return Err(refused);
    }
    let named: Vec<_> = them.iter().take(AT_A_GLANCE).map(|(process, used)| format!("{process}: {used}")).collect();
    let more = match them.len().saturating_sub(AT_A_GLANCE) {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    let what = text::count(them.len() as u64, "process has", "processes have");
    let message = format!("{shown} stays, as {what} it in use: {}{more}", named.join(", "));
    Err(Error::new(ErrorKind::Busy, message).with_hint("end or leave that, then `ah agent fs gc` takes it away"))
}

/// That nothing was changed since a snapshot.
fn unchanged(open: &Open, before: Number, branch: BranchId) -> Result<()> {
    let cannot = |e: &ah_agentfs::Error| fail("cannot tell what was changed while the workspace was copied", e);
    let now = open.tree.look(branch).map_err(|e| cannot(&e))?;
    // Owners and attributes too, and what was changed and changed back.
    match open.view_of(before)?.is_untouched_until(&now).map_err(|e| cannot(&e))? {
        true => Ok(()),
        // Who copies tries it once more.
        false => Err(Error { kind: ErrorKind::Conflict, ..ah_provider_directory::changed() }),
    }
}

/// Whether anything in a directory was changed after a time. The directory itself got its name about then. Git's objects have the links that a store of
/// ours has to them taken away, which changes them as little as another link does.
fn is_changed(dir: &Dir, since: Timestamp, cx: &Context<'_>) -> Result<bool> {
    let mut changed = false;
    let since = (since.secs, since.nanos);
    State::of(dir.as_fd(), cx, |folder, _, stat| {
        changed |= (stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec) > since
            && ((stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec) > since || !is_object(folder, stat));
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
    if !around.is(&around.name, ino)? {
        return Err(Error::new(ErrorKind::Conflict, format!("{shown} was moved meanwhile")).with_hint("repeat"));
    }
    if let Some(inside) = Mounts::read()?.below(workspace).first() {
        let message = format!("{} is mounted inside of {shown}", inside.path);
        return Err(Error::new(ErrorKind::FailedPrecondition, message).with_hint("unmount it, then repeat"));
    }
    // This process has read in it, perhaps, for a branch that is gone by now.
    holders::refuse_others(workspace.as_fd())?;
    holders::refuse_mounts(workspace.as_fd())?;
    Ok(around)
}
