//! What becomes of a conversion that was cut short: a killed service's, or a killed caller's. `convert` says in which order things are done. Whoever comes next has
//! it finished or undone, and is told which.

use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;

use ah_agentfs::{BranchId, Workspace};
use ah_agentfs_fuse::clear_dead;
use ah_plugin_api::{Context, Error, ErrorKind, LogLevel, NOT_MOUNTED, ReclaimRequest, Result, SnapshotId, text};

use super::convert::converted;
use super::mounted::What;
use super::opened::Open;
use super::{Service, fail, lock};
use crate::conversion::{Around, Behind, Note, cut_short, lock_back, path_beside};
use crate::home::{Shelf, TREE};
use crate::lost;

/// What `status` says of a copy that lies beside the workspace and is of no use.
pub(super) const UNDONE_LATER: &str =
    "; `convert --back` of it was cut short: `ah agent fs gc` takes away what that had begun";

const UNSETTLED: &str = "a conversion that was cut short is not settled";

impl Service {
    /// If the copy is in the workspace's place, the rest goes; whether it is. Before that is known nothing goes. What a person should know goes to `left`.
    pub(super) fn finish_back(&self, open: &Open, note: &Note, left: &mut Vec<String>) -> Result<bool> {
        let at = note.at();
        let cannot = |e: &ah_agentfs::Error| fail("cannot remove the branch that the workspace was", e);
        if !self.is_replaced(open, note)? {
            return Ok(false);
        }
        let around = Around::of(&at)?;
        if let Some(behind) = Behind::of(&self.home)?.filter(|behind| behind.taken_back != Some(true)) {
            Behind { taken_back: Some(true), ..behind }.write(&self.home)?;
        }
        if let Some((branch, _)) = converted(&open.tree) {
            open.tree.delete_branch(branch.id).map_err(|e| cannot(&e))?;
        }
        self.forget_before(open, note)?;
        open.tree.sync().map_err(|e| cannot(&e))?;
        left.extend(around.remove_place(&at, note.aside())?);
        Note::forget(&self.home);
        Ok(true)
    }

    /// The snapshot that the copy is compared with goes.
    fn forget_before(&self, open: &Open, note: &Note) -> Result<()> {
        let Some(id) = note.before.as_deref().and_then(|id| SnapshotId::new(id).ok()) else { return Ok(()) };
        let Some(shelf) = Shelf::of(&self.home)? else { return Ok(()) };
        let known = lock(&open.known).remove(&(open.shelf(shelf).key, id));
        match known.and_then(|known| known.number).map(|number| open.tree.delete_snapshot(number)) {
            None | Some(Ok(()) | Err(ah_agentfs::Error::NotFound)) => Ok(()),
            Some(Err(error)) => Err(fail("cannot remove a snapshot that is not needed", &error)),
        }
    }

    /// Refuses to mount a branch where the copy is that is to be there instead.
    pub(super) fn refuse_replaced(&self, open: &Open, at: &Path) -> Result<()> {
        match Note::of(&self.home)?.filter(|note| note.back && note.at() == at) {
            Some(note) if self.is_replaced(open, &note)? => {
                Err(Error::new(ErrorKind::FailedPrecondition, "a plain directory is there again"))
            }
            _ => Ok(()),
        }
    }

    /// Whether the copy is in the workspace's place. An error where that cannot be told, be it that the folder around it is not there at the moment, or that the
    /// branch is gone and the copy is somewhere else: nothing may go then, as it may be the last of either.
    fn is_replaced(&self, open: &Open, note: &Note) -> Result<bool> {
        let Some(made) = note.made else { return Ok(false) };
        let around = Around::of(&note.at())?;
        if around.is(&around.name, made)? {
            return Ok(true);
        }
        if converted(&open.tree).is_some() {
            return Ok(false);
        }
        let message = format!("the copy that was made of {} is not in its place", note.at().display());
        Err(Error::new(ErrorKind::FailedPrecondition, message))
    }

    /// What a killed service had begun to do: before the tree is opened, as it says where the directory lies that was branched.
    pub(super) fn settle_before(&self) -> Result<()> {
        let note = Note::of(&self.home)?.filter(|note| !note.back && !note.undone && self.original().is_none());
        let Some(note) = note else { return Ok(()) };
        clear_dead(&note.at()).map_err(|e| Error::new(ErrorKind::Unavailable, e.to_string()))?;
        let finished = Behind::is_there(&self.home)?;
        let mut left = Vec::new();
        match finished {
            true => Note::forget(&self.home),
            false => {
                self.undo(&note, &mut left)?;
                self.forget_undone(self.current().as_deref(), &note)?;
            }
        }
        let mut untold = lock(&self.untold);
        untold.push(cut_short(&note.at(), false, finished));
        untold.append(&mut left);
        Ok(())
    }

    /// Forgets what was undone once its branch is gone, on disk. Until then the note says that it is to go, should it come back.
    pub(super) fn forget_undone(&self, open: Option<&Open>, note: &Note) -> Result<()> {
        let is_gone = match open {
            Some(open) => converted(&open.tree).is_none() && Self::settle_removal(open).is_ok(),
            None => !self.path.join(TREE).exists(),
        };
        if !is_gone {
            return note.clone().undone().write(&self.home);
        }
        Note::forget(&self.home);
        Ok(())
    }

    /// Refuses to take a branch for a workspace that lies behind where the directory itself is in its place: undone, or put back by hand. What was written in the
    /// branch may be somebody's all the same.
    pub(super) fn refuse_beneath_itself(&self, at: &Path) -> Result<()> {
        if !matches!(Workspace::may_be_of(&self.path.join(TREE), at), Ok(true)) {
            return Ok(());
        }
        let message = format!(
            "{} is in its place, and AgentFS has a branch that is to be mounted there, too: neither is touched",
            at.display()
        );
        let aside = path_beside(at, &Around::of(at)?.behind());
        let (at, aside) = (text::shell(at.as_os_str()), text::shell(aside.as_os_str()));
        Err(Error::new(ErrorKind::FailedPrecondition, message).with_hint(format!(
            "if it was brought back by hand, `mv -T {at} {aside}` has the next service mount the branch again"
        )))
    }

    /// The same as the service begins. What cannot be settled then is tried again by each caller.
    pub(super) fn settle_first(&self) {
        if let Err(error) = self.settle_before() {
            // What is where it was, or is not: the tree tells.
            eprintln!("ah-agentfsd: {}", unsettled(&error));
            self.unsettled.store(true, Ordering::Relaxed);
        }
    }

    /// As [`Service::settle_before`], where that was in vain. Gives why it still is.
    pub(super) fn settle_again(&self, cx: &Context<'_>) -> Result<Option<Error>> {
        if !self.unsettled.load(Ordering::Relaxed) {
            return Ok(None);
        }
        // Nobody puts it there meanwhile: what lies behind is in the way of that.
        let _opening = self.opens(cx)?;
        match self.settle_before() {
            Ok(()) => {
                if let (Some(open), Some(lower)) = (self.current(), self.lower()?) {
                    *lock(&open.lower) = Some(lower);
                }
                self.unsettled.store(false, Ordering::Relaxed);
                Ok(None)
            }
            Err(error) => Ok(Some(error)),
        }
    }

    /// Tells the caller of that. An error for who asks to have the workspace mounted, where it is the reason that it is not.
    pub(super) fn tell_unsettled(&self, error: Option<Error>, mounts: bool, cx: &Context<'_>) -> Result<()> {
        let is_away = |open: &Open| {
            let Some((branch, at)) = converted(&open.tree) else { return false };
            // In this order: what is mounted would have to be asked by who answers it. Somebody's own directory in its place goes on being one.
            !lock(&open.mounted).has(&What::Branch(branch.id)) && is_away(&at)
        };
        match error {
            Some(error) if mounts && self.current().is_some_and(|open| is_away(&open)) => Err(error.context(UNSETTLED)),
            Some(error) => {
                cx.log(LogLevel::Warn, &unsettled(&error));
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// The same, with the tree, before anything is mounted.
    pub(super) fn settle_with(&self, open: &Open) -> Result<()> {
        if self.original().is_some() {
            return Ok(());
        }
        let note = Note::of(&self.home)?;
        let ends = note.as_ref().is_some_and(|note| note.back);
        let begun = note.filter(|note| !note.back);
        let behind = match Behind::of(&self.home) {
            Err(error) if error.kind == ErrorKind::DataLoss => None,
            behind => behind?,
        };
        if let Some((branch, at)) = converted(&open.tree)
            && !behind.as_ref().is_some_and(|behind| behind.is_of(branch.id.0, &at, ends))
        {
            match begun {
                // Undone before it was whole.
                Some(_) if !Behind::is_there(&self.home)? => {
                    let cannot = |e: &ah_agentfs::Error| fail("cannot remove a branch that was not finished", e);
                    open.tree.delete_branch(branch.id).map_err(|e| cannot(&e))?;
                    open.tree.sync().map_err(|e| cannot(&e))?;
                }
                _ => {
                    self.refuse_beneath_itself(&at)?;
                    self.write_behind_anew(branch.id, &at)?;
                }
            }
        }
        if begun.is_some_and(|note| note.undone) {
            Note::forget(&self.home);
        }
        if let Some(note) = Note::of(&self.home)?.filter(|note| note.back) {
            let mut left = Vec::new();
            if self.finish_back(open, &note, &mut left)? {
                let mut untold = lock(&self.untold);
                untold.push(cut_short(&note.at(), true, true));
                untold.append(&mut left);
            }
        }
        Ok(())
    }

    /// Why a workspace that lies behind cannot be mounted, where the tree has lost its branch: nobody took it away.
    pub(super) fn lost_branch(&self) -> Option<Lost> {
        let open = self.current().filter(|_| self.original().is_none())?;
        let behind = Behind::of(&self.home).ok()??;
        let is_lost = behind.taken_back == Some(false) && converted(&open.tree).is_none();
        // Who takes it back at this moment has the branch taken away.
        let is_lost = is_lost && !matches!(Note::of(&self.home), Ok(Some(note)) if note.back);
        is_lost.then(|| Lost { why: lost::branch_gone(&behind), is_away: is_away(&behind.at()) })
    }

    /// Tells the caller of that. An error for who asks to have the workspace mounted, unless a directory is in its place again: then who has things put in order
    /// is warned.
    pub(super) fn tell_lost(&self, request: &ReclaimRequest, cx: &Context<'_>) -> Result<()> {
        let mounts = request.auto && request.forgotten.is_empty();
        match self.lost_branch() {
            Some(lost) if mounts && lost.is_away => Err(lost.why),
            Some(lost) if !request.auto => {
                cx.log(LogLevel::Warn, &lost.told());
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Writes down what the tree says of a workspace that lies behind, where that was lost. Since when nobody had anything to change there is not known any more.
    fn write_behind_anew(&self, branch: BranchId, at: &Path) -> Result<()> {
        Behind::anew(branch.0, at).write(&self.home)?;
        eprintln!("ah-agentfsd: what was written down of the workspace {} was lost, and is anew", at.display());
        Ok(())
    }

    /// Whether somebody began to take the workspace back, and is gone.
    pub(super) fn was_cut_short(&self, open: &Open) -> Result<bool> {
        // The service may be at it still.
        let Ok(_making) = open.making.try_write() else { return Ok(false) };
        Ok(Note::of(&self.home)?.is_some_and(|note| note.back) && lock_back(&self.home)?.is_some())
    }

    /// Puts in order what a caller has left who took the workspace back and is gone, unless somebody is converting it at this moment. What cannot be done is
    /// tried again by the next one.
    pub(super) fn settle(&self, open: &Open, cx: &Context<'_>) {
        if self.original().is_some() {
            return;
        }
        let Ok(_making) = open.making.try_write() else { return };
        let settled: Result<()> = (|| {
            let Some(note) = Note::of(&self.home)?.filter(|note| note.back) else { return Ok(()) };
            let Some(_lock) = lock_back(&self.home)? else { return Ok(()) };
            let mut left = Vec::new();
            if self.finish_back(open, &note, &mut left)? {
                left.insert(0, cut_short(&note.at(), true, true));
                left.iter().for_each(|said| cx.log(LogLevel::Warn, said));
                return Ok(());
            }
            let around = Around::of(&note.at())?;
            // Its number may be another's as soon as it is gone. Only then: a copy that found no room has left none for a note.
            if note.made.is_some() {
                Note { made: None, ..note.clone() }.write(&self.home)?;
            }
            around.remove(note.aside(), cx)?;
            self.forget_before(open, &note)?;
            Note::forget(&self.home);
            if !note.given_up {
                cx.log(LogLevel::Warn, &cut_short(&note.at(), true, false));
            }
            Ok(())
        })();
        if let Err(error) = settled {
            cx.log(LogLevel::Warn, &unsettled(&error));
        }
    }
}

/// A workspace that lies behind, and of which the branch is lost.
pub(super) struct Lost {
    why: Error,
    /// Whether nothing but what stands in for it is in its place.
    is_away: bool,
}

impl Lost {
    pub(super) fn told(&self) -> String {
        with_hint(&self.why)
    }
}

/// Whether what stands in for a workspace is at its place, as far as can be told.
fn is_away(at: &Path) -> bool {
    !matches!(at.join(NOT_MOUNTED).symlink_metadata(), Err(error) if error.kind() == io::ErrorKind::NotFound)
}

/// What is said of one.
pub(super) fn unsettled(error: &Error) -> String {
    format!("{UNSETTLED}: {}", with_hint(error))
}

fn with_hint(error: &Error) -> String {
    let hint = error.hint.as_ref().map(|hint| format!(": {hint}")).unwrap_or_default();
    format!("{}{hint}", error.message)
}

/// What is written down of an error: with why.
pub(super) fn told(error: &Error) -> String {
    error.causes.iter().fold(error.message.clone(), |text, cause| format!("{text}: {cause}"))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::sync::{Arc, Mutex};

    use ah_plugin_api::{Dir, FileName, Observer, Place, Provider, Timestamp};

    use super::super::record::PlaceLabel;
    use super::*;

    #[derive(Default)]
    struct Hears(Mutex<Vec<String>>);

    impl Observer for Hears {
        fn log(&self, _level: LogLevel, message: &str) {
            self.0.lock().unwrap().push(message.to_owned());
        }
    }

    /// What the next caller hears.
    fn heard(service: &Service, home: &Dir) -> Vec<String> {
        let hears = Hears::default();
        let request = ReclaimRequest { auto: true, forgotten: Vec::new() };
        service.reclaim(&Place::new(home), &request, &Context::new(&hears)).unwrap();
        hears.0.into_inner().unwrap()
    }

    /// A home and a workspace `work` with a file, as they are when `convert` was killed right after the two had changed names.
    fn killed() -> (tempfile::TempDir, Dir, Note) {
        let temp = tempfile::tempdir().unwrap();
        let (home, at, aside) =
            (temp.path().join("home"), temp.path().join("work"), temp.path().join(".ah-behind-work"));
        for directory in [&home, &at, &aside] {
            std::fs::create_dir(directory).unwrap();
        }
        std::fs::write(aside.join("f"), "work").unwrap();
        let home = Dir::open(home).unwrap();
        Shelf::make(&home, None).unwrap();
        let mut note = Note::new(false, &at, OsStr::new(".ah-behind-work"));
        note.made = Some(std::fs::metadata(&at).unwrap().ino());
        std::fs::set_permissions(&aside, std::fs::Permissions::from_mode(0o700)).unwrap();
        note.own = Some((std::fs::metadata(&aside).unwrap().ino(), 0o751));
        note.write(&home).unwrap();
        (temp, home, note)
    }

    #[test]
    fn who_comes_after_a_conversion_was_cut_short_is_told_what_became_of_it() {
        let (temp, home, note) = killed();
        let at = temp.path().join("work");
        // Somebody wrote there meanwhile, under a name that is taken.
        std::fs::write(at.join("f"), "meanwhile").unwrap();
        let service = Service::open(Dir::open(home.path()).unwrap()).unwrap();
        let said = heard(&service, &home);
        assert_eq!(said.first(), Some(&cut_short(&at, false, false)));
        assert!(said.len() == 2 && said[1].contains(".ah-left-"), "{said:?}");
        assert_eq!(std::fs::read_to_string(at.join("f")).unwrap(), "work");
        assert_eq!(std::fs::metadata(&at).unwrap().mode() & 0o7777, 0o751);
        assert_eq!(heard(&service, &home), Vec::<String>::new(), "once");
        // One that was done.
        drop(service);
        note.write(&home).unwrap();
        let path = at.as_os_str().as_encoded_bytes().to_vec();
        let behind = Behind { at: path, branch: 0, since: Timestamp::now(), taken_back: Some(false), leaves: None };
        behind.write(&home).unwrap();
        let service = Service::open(Dir::open(home.path()).unwrap()).unwrap();
        assert_eq!(heard(&service, &home), [cut_short(&at, false, true)]);
    }

    /// A workspace whose directory lies beside its place, and the branch that is to be mounted there.
    fn behind() -> (tempfile::TempDir, Service, Arc<Open>, Note) {
        let (temp, home, note) = killed();
        let at = note.at();
        Note::forget(&home);
        let service = Service::open(Dir::open(home.path()).unwrap()).unwrap();
        let lower = Dir::open(temp.path().join(".ah-behind-work")).unwrap();
        let open = service.for_lower(&lower, &Context::quiet()).unwrap();
        let base = open.tree.base_alone(b"").unwrap();
        let label = PlaceLabel::of_workspace(&Shelf::of(&home).unwrap().unwrap().key, &at).unwrap().encode().unwrap();
        open.tree.branch(base, &label).unwrap();
        (temp, service, open, note)
    }

    #[test]
    fn what_was_done_is_not_undone_where_what_says_so_is_damaged() {
        let (temp, service, open, note) = behind();
        let (branch, at) = converted(&open.tree).unwrap();
        let damage = || std::fs::write(temp.path().join("home/behind"), "damaged").unwrap();
        damage();
        note.write(&service.home).unwrap();
        service.settle_before().unwrap();
        assert_eq!(*lock(&service.untold), [cut_short(&at, false, true)]);
        for left in [None, Some(note.clone()), Some(note.undone())] {
            damage();
            left.iter().for_each(|note| note.write(&service.home).unwrap());
            service.settle_with(&open).unwrap();
            assert_eq!(converted(&open.tree).map(|(info, _)| info.id), Some(branch.id), "{left:?}");
            assert_eq!(Behind::of(&service.home).unwrap().map(|behind| behind.branch), Some(branch.id.0), "{left:?}");
        }
    }

    #[test]
    fn a_branch_is_not_taken_for_a_workspace_that_is_in_its_place_itself() {
        let (temp, service, open, _) = behind();
        let (branch, at) = converted(&open.tree).unwrap();
        std::fs::remove_dir(&at).unwrap();
        std::fs::rename(temp.path().join(".ah-behind-work"), &at).unwrap();
        let refused = service.settle_with(&open).unwrap_err();
        assert!(refused.kind == ErrorKind::FailedPrecondition && refused.message.contains("neither is touched"));
        service.mount_again(&open);
        assert!(lock(&open.mounted).is_empty());
        assert_eq!(std::fs::read_to_string(at.join("f")).unwrap(), "work");
        assert_eq!(converted(&open.tree).map(|(info, _)| info.id), Some(branch.id));
        assert_eq!(Behind::of(&service.home).unwrap(), None);
    }

    #[test]
    fn who_gives_something_back_is_answered_though_the_workspace_is_not_mounted() {
        let (temp, service, _open, note) = behind();
        std::fs::write(temp.path().join("home/converting"), "damaged").unwrap();
        std::fs::write(note.at().join(NOT_MOUNTED), "").unwrap();
        service.unsettled.store(true, Ordering::Relaxed);
        let mut request = ReclaimRequest { auto: true, forgotten: Vec::new() };
        let mut asked = |forgotten| {
            request.forgotten = forgotten;
            service.reclaim(&Place::new(&service.home), &request, &Context::quiet())
        };
        let why = asked(Vec::new()).unwrap_err();
        assert!(why.causes.iter().any(|cause| cause.contains("/converting is damaged")), "{why:?}");
        asked(vec![FileName::new("view").unwrap()]).unwrap();
    }

    #[test]
    fn an_undone_conversion_stays_on_record_as_long_as_its_branch_may_come_back() {
        let (_temp, service, open, note) = behind();
        service.forget_undone(Some(&open), &note).unwrap();
        assert_eq!(Note::of(&service.home).unwrap(), Some(note.clone().undone()));
        let (branch, _) = converted(&open.tree).unwrap();
        open.tree.delete_branch(branch.id).unwrap();
        // The service that may have it on disk still.
        service.forget_undone(None, &note).unwrap();
        assert_eq!(Note::of(&service.home).unwrap(), Some(note.clone().undone()));
        service.forget_undone(Some(&open), &note).unwrap();
        assert_eq!(Note::of(&service.home).unwrap(), None);
    }

    #[test]
    fn what_cannot_be_settled_is_told_each_time_and_settled_as_soon_as_it_can_be() {
        let (temp, home, note) = killed();
        let (at, away) = (temp.path().join("work"), temp.path().join("away"));
        std::fs::rename(&at, &away).unwrap();
        std::fs::create_dir(&at).unwrap();
        std::fs::write(at.join("other"), "somebody's").unwrap();
        let service = Service::open(Dir::open(home.path()).unwrap()).unwrap();
        for _ in 0..2 {
            let said = heard(&service, &home);
            assert!(said.len() == 1 && said[0].contains("move that away"), "{said:?}");
            assert_eq!(Note::of(&home).unwrap(), Some(note.clone()));
        }
        std::fs::rename(&at, temp.path().join("other")).unwrap();
        std::fs::rename(&away, &at).unwrap();
        assert_eq!(heard(&service, &home), [cut_short(&at, false, false)]);
        assert_eq!(std::fs::read_to_string(at.join("f")).unwrap(), "work");
        assert_eq!((heard(&service, &home), Note::of(&home).unwrap()), (Vec::new(), None));
    }
}
