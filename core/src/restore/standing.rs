//! How far each restore is: running or interrupted, in place but perhaps not on disk, ended.
//!
//! A restore does not wait until what it has put in place is on disk. So its journal stays open until a process in the background
//! (`gc --auto`) has synced the workspace's filesystem. If the machine restarts before that, the restore counts as interrupted,
//! whatever its timeline says: a file may be there without its contents.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::os::fd::AsFd;

use ah_plugin_api::{Dir, Durability, ErrorKind, RelPath, Result, SnapshotId, Timestamp};

use super::apply::Staging;
use super::at::Tree;
use super::facade::Job;
use super::journal::{Head, Journal, Journals, PartOfRewind};
use super::{InterruptedRestore, RestoreBegin, RestoreEnd};
use crate::ids::SessionName;
use crate::lock::{Lock, boot_id};
use crate::notice::{Notice, NoticeKind};
use crate::text;
use crate::timeline::{Event, EventBody};
use crate::workspace::Workspace;

/// Up to so many bytes of paths are in the hint about an interrupted restore.
const HINTED: usize = 2000;

/// How a restore ended that an undo can take back.
const APPLIED: [&str; 2] = ["done", "partial"];

/// What the timeline says of each restore's end; the last word counts.
pub(super) struct Outcomes<'a>(HashMap<&'a str, &'a str>);

impl<'a> Outcomes<'a> {
    /// Those on a timeline.
    pub(super) fn of(events: &'a [Event]) -> Self {
        let ends = events.iter().filter_map(|event| match &event.body {
            EventBody::RestoreEnd(end) => Some((end.restore.as_str(), end.outcome.as_str())),
            _ => None,
        });
        Self(ends.collect())
    }

    /// Whether an undo can take it back.
    pub(super) fn undoable(&self, restore: &str) -> bool {
        self.0.get(restore).is_some_and(|outcome| APPLIED.contains(outcome))
    }

    /// Whether a restore is running, was interrupted, or would be if the machine restarted now.
    pub(super) fn is_open(&self, journal: &Head) -> bool {
        self.standing(journal, &boot_id()) != Standing::Ended
    }

    /// How far the restore of an open journal is, if nobody works on it.
    fn standing(&self, journal: &Head, boot: &str) -> Standing {
        match self.0.get(journal.restore.as_str()) {
            None => Standing::Interrupted,
            Some(outcome) if !APPLIED.contains(outcome) => Standing::Ended,
            Some(_) if journal.boot == boot => Standing::Applied,
            Some(_) => Standing::Interrupted,
        }
    }
}

/// How far the restore of an open journal is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// It was killed, or the machine restarted before all of it was on disk.
    Interrupted,
    /// It came to its end, and what it has put in place may not be on disk yet.
    Applied,
    /// Only filing it away is missing.
    Ended,
}

impl Workspace {
    pub(super) fn journals(&self) -> Journals {
        Journals::new(self.folder())
    }

    /// Interrupted restores, the oldest first. Files those away that only their last step was missing for, and sets aside what
    /// cannot be read, with a sentence for each. Needs the lock `restore`.
    pub(super) fn interrupted_journals(&self, notes: &mut Vec<String>) -> Result<Vec<Journal>> {
        let journals = self.journals();
        let (open, unreadable) = journals.open()?;
        for (path, error) in unreadable {
            // One of a newer version is nobody's to touch.
            if error.kind != ErrorKind::DataLoss {
                return Err(error);
            }
            let aside = journals.set_aside(&path)?;
            notes.push(format!("the damaged plan of an interrupted restore was put aside: {}", aside.display()));
        }
        let mut interrupted = Vec::new();
        for (head, standing) in self.with_standing(open)? {
            match standing {
                Standing::Interrupted => interrupted.extend(journals.of(&head.session, &head.restore)?),
                Standing::Applied => {}
                Standing::Ended => journals.end(&head.session, &head.restore)?,
            }
        }
        Ok(interrupted)
    }

    /// The restore that did not come to its end, if there is one; none while one runs. Cost: the beginning of each record that is not filed away.
    ///
    /// # Errors
    /// If the folder of its records cannot be read. A record that cannot be read is passed over.
    pub fn interrupted(&self) -> Result<Option<InterruptedRestore>> {
        let (open, _) = self.journals().open()?;
        self.interrupted_among(&self.with_standing(open)?)
    }

    /// As [`Workspace::interrupted`], by who has the lock `restore`: none runs then. What cannot be read may be one.
    pub(crate) fn interrupted_by_now(&self) -> Result<Option<InterruptedRestore>> {
        let (open, unreadable) = self.journals().open()?;
        if let Some((_, error)) = unreadable.into_iter().next() {
            return Err(error);
        }
        self.latest_interrupted(&self.with_standing(open)?)
    }

    fn interrupted_among(&self, open: &[(Head, Standing)]) -> Result<Option<InterruptedRestore>> {
        if !open.iter().any(|(_, standing)| *standing == Standing::Interrupted) {
            return Ok(None);
        }
        // Shared, and never waited for: who has it alone is restoring.
        match Lock::try_take(&self.folder().join("restore.lock"), false)? {
            Some(_lock) => self.latest_interrupted(open),
            None => Ok(None),
        }
    }

    fn latest_interrupted(&self, open: &[(Head, Standing)]) -> Result<Option<InterruptedRestore>> {
        let Some((head, _)) = open.iter().rfind(|(_, standing)| *standing == Standing::Interrupted) else {
            return Ok(None);
        };
        let latest = self.is_latest(&head.restore, head.began, &self.state()?.events);
        let (finish, back) = self.ways_on(head, latest);
        Ok(Some(InterruptedRestore {
            restore: head.restore.clone(),
            target: head.target.id.clone(),
            safety: head.back.id.clone(),
            session: head.session.clone(),
            began: head.began,
            changed: !self.only_prepared(open),
            finish,
            back,
        }))
    }

    /// Whether no interrupted restore has changed anything. After a restart of the machine nobody knows what came to the disk.
    fn only_prepared(&self, open: &[(Head, Standing)]) -> bool {
        let (Ok(dir), boot) = (self.open_dir(), boot_id()) else { return false };
        let Ok(tree) = Tree::new(dir.as_fd()) else { return false };
        let mut interrupted = open.iter().filter(|(_, standing)| *standing == Standing::Interrupted);
        interrupted.all(|(head, _)| {
            head.boot == boot && head.unlocked.is_empty() && Staging::only_prepares(tree, &head.staging)
        })
    }

    /// How far each is, in the order in which they began.
    fn with_standing(&self, mut open: Vec<Head>) -> Result<Vec<(Head, Standing)>> {
        if open.is_empty() {
            return Ok(Vec::new());
        }
        let (events, boot) = (self.state()?.events, boot_id());
        let outcomes = Outcomes::of(&events);
        open.sort_by_cached_key(|head| began_at(&head.restore, head.began, &events));
        let with = |head: Head| {
            let standing = outcomes.standing(&head, &boot);
            (head, standing)
        };
        Ok(open.into_iter().map(with).collect())
    }

    /// A restore that was cut short is a person's to decide about, so each command says so. True if there is something for
    /// [`Self::settle_restores`] to do.
    pub(crate) fn look_at_restores(&self) -> Result<bool> {
        let open = self.notice_restores(|open| self.interrupted_among(open))?;
        Ok(open.iter().any(|(_, standing)| *standing == Standing::Applied))
    }

    /// Notices the restore that `latest` finds among those that are not filed away, and gives these.
    fn notice_restores(
        &self,
        latest: impl FnOnce(&[(Head, Standing)]) -> Result<Option<InterruptedRestore>>,
    ) -> Result<Vec<(Head, Standing)>> {
        let (open, unreadable) = self.journals().open()?;
        for (_, error) in unreadable {
            let mut notice = Notice::new(NoticeKind::InterruptedRestore, error.message);
            notice.hint = error.hint;
            self.engine.notify_of(Some(&self.id), notice);
        }
        let open = self.with_standing(open)?;
        if let Some(interrupted) = latest(&open)? {
            let head = open.iter().map(|(head, _)| head).find(|head| head.restore == interrupted.restore);
            let InterruptedRestore { restore, target, .. } = &interrupted;
            let what = match head {
                Some(Head { rewind: Some(rewind), .. }) => {
                    format!("the rewind to {}, with the restore {restore} of {target},", rewind.moment)
                }
                Some(Head { undoes: Some(_), .. }) => format!("the undo {restore}"),
                _ => format!("the restore {restore} of {target}"),
            };
            let InterruptedRestore { finish, back, changed, .. } = interrupted;
            let before = if changed { "" } else { " before it changed anything" };
            let message = format!("{what} was interrupted{before}");
            // A rewind has no dry run.
            let either = if head.is_some_and(|head| head.rewind.is_some()) { "that" } else { "either" };
            let hint =
                format!("finish it with `{finish}`, or go back with `{back}`; `--dry-run` shows what {either} changes");
            let notice = Notice::new(NoticeKind::InterruptedRestore, message).with_hint(hint);
            self.engine.notify_of(Some(&self.id), notice);
        }
        Ok(open)
    }

    /// At the end of a restore or an undo, by who has the lock `restore`: what was noticed of interrupted ones when the workspace was opened is noticed anew,
    /// as things stand now. What was the way back then may do the opposite by now. What cannot be looked at, the next command tells.
    pub(super) fn notice_restores_anew(&self) {
        self.engine.drop_notices(&self.id, NoticeKind::InterruptedRestore);
        let _ = self.notice_restores(|open| self.latest_interrupted(open));
    }

    /// Paths, as a command takes them; none are none.
    pub(super) fn named(&self, paths: &[RelPath]) -> String {
        let named = paths.iter().map(|path| text::shell(self.root.join(path.as_path()).as_os_str()));
        let named = named.fold(String::new(), |all, path| format!("{all} {path}"));
        match named.len() {
            0 => named,
            1..HINTED => format!(" --{named}"),
            _ => " -- PATH…".to_owned(),
        }
    }

    /// The commands that finish an interrupted restore, and that go back to before it. Where no other came since, neither changes more than that was
    /// to change.
    fn ways_on(&self, head: &Head, latest: bool) -> (String, String) {
        let paths = self.named(&head.paths);
        let ignored = if head.ignored && head.undoes.is_none() { " --ignored" } else { "" };
        let times = if head.exact_times { " --times=exact" } else { "" };
        // What goes back is not to lose anything.
        let force = if head.force { " --force" } else { "" };
        let to = |snapshot: &SnapshotId, force| format!("ah agent fs restore {snapshot}{ignored}{times}{force}{paths}");
        let undo = "ah agent fs undo";
        let whole = match &head.rewind {
            Some(PartOfRewind { moment, files_only: false }) => format!("ah agent rewind {moment}"),
            Some(PartOfRewind { moment, files_only: true }) => format!("ah agent rewind {moment} --files"),
            None => to(&head.target.id, force),
        };
        // One more does not finish it, but takes it back.
        if let Some(own) = self.undo_of_nothing_known(head).filter(|_| latest) {
            let touched: BTreeSet<RelPath> = own.touched().cloned().collect();
            let paths = self.named(&Vec::from_iter(touched));
            return (format!("ah agent fs restore {}{times}{force}{paths}", head.target.id), undo.to_owned());
        }
        match latest {
            true if head.undoes.is_some() => {
                let finish = format!("{undo}{times}{force}");
                let back = format!("{finish} && {undo}");
                (finish, back)
            }
            true => (whole, undo.to_owned()),
            // That would take back the later one.
            false => (whole, to(&head.back.id, "")),
        }
    }

    /// The journal of an undo of which it is not known any more what it was to take back.
    fn undo_of_nothing_known(&self, head: &Head) -> Option<Journal> {
        head.undoes.as_ref()?;
        match self.undone_by(&head.session, head.undoes.as_deref()) {
            Ok(None) => self.journals().of(&head.session, &head.restore).ok().flatten(),
            _ => None,
        }
    }

    /// Waits until what restores have put in place is on disk, and files their journals away. No restore waits for that.
    pub(crate) fn settle_restores(&self) -> Result<()> {
        let journals = self.journals();
        let mut applied = self.with_standing(journals.open()?.0)?;
        applied.retain(|(_, standing)| *standing == Standing::Applied);
        if applied.is_empty() {
            return Ok(());
        }
        // Where the directory is another one now, there is nothing of it left to be synced.
        if let Ok(dir) = self.open_dir() {
            sync_filesystem(&dir)?;
        }
        let _lock = self.lock("restore")?;
        // An undo that began meanwhile has a journal of its own.
        let still: HashSet<String> = journals.open()?.0.into_iter().map(|journal| journal.restore).collect();
        let mut filed = applied.iter().map(|(head, _)| head).filter(|head| still.contains(&head.restore));
        filed.try_for_each(|head| journals.end(&head.session, &head.restore))
    }

    /// Files the interrupted restores away that this one takes the place of; `finished`: how those ended that it finishes.
    pub(super) fn end_taken_over(&self, job: &Job, finished: &str) -> Result<()> {
        for journal in &job.taken_over {
            let finishes = job.finishes && journal.target.id == job.target.id;
            self.say_ended(journal, if finishes { finished } else { "abandoned" })?;
            self.journals().end(&journal.session, &journal.restore)?;
        }
        Ok(())
    }

    /// Says on the timeline that a restore came to its end.
    pub(super) fn say_ended(&self, journal: &Journal, outcome: &str) -> Result<()> {
        let (restore, left) = (journal.restore.clone(), journal.left.len() as u64);
        let end = RestoreEnd { restore, outcome: outcome.to_owned(), left };
        self.append(&journal.session, EventBody::RestoreEnd(end), Durability::Durable).map(drop)
    }

    /// The latest restore of the sessions that count which an undo can take back.
    pub(super) fn last_begun<'a>(&self, events: &'a [Event]) -> Option<(&'a SessionName, &'a RestoreBegin)> {
        let outcomes = Outcomes::of(events);
        events.iter().rev().find_map(|event| match &event.body {
            EventBody::RestoreBegin(begin)
                if outcomes.undoable(&begin.restore) && self.session_counts(&event.session) =>
            {
                Some((&event.session, begin))
            }
            _ => None,
        })
    }

    /// Whether no restore that an undo can take back began after an interrupted one.
    pub(super) fn is_latest(&self, restore: &str, since: Timestamp, events: &[Event]) -> bool {
        let own = began_at(restore, since, events);
        let last = self.last_begun(events).map(|(_, begin)| &begin.restore);
        last.is_none_or(|last| last == restore || own > began_at(last, since, events))
    }

    /// Whether a session is among those that this call is about.
    pub(super) fn session_counts(&self, session: &SessionName) -> bool {
        let settings = self.engine.settings();
        settings.session.as_ref().or(settings.agent_session.as_ref()).is_none_or(|own| own == session)
    }
}

/// Where on a timeline a restore began: how many events came before that. By its line, as a clock may have been set; one that was killed before its line
/// was there is placed by its time.
pub(super) fn began_at(restore: &str, began: Timestamp, events: &[Event]) -> usize {
    let is_its = |event: &Event| matches!(&event.body, EventBody::RestoreBegin(begin) if begin.restore == restore);
    let by_time = || events.iter().rposition(|event| event.time <= began).map_or(0, |last| last + 1);
    events.iter().rposition(is_its).unwrap_or_else(by_time)
}

/// Takes what a restore did to the disk. A filesystem in user space hears nothing of `syncfs`; of `fsync` it does.
pub(super) fn sync_filesystem(dir: &Dir) -> Result<()> {
    let sync = || rustix::fs::syncfs(dir.as_fd()).and_then(|()| rustix::fs::fsync(dir.as_fd()));
    crate::crash::point("restore-sync")
        .and_then(|()| sync().map_err(std::io::Error::from))
        .map_err(|e| crate::fsio::failed("sync the filesystem of", dir.path(), &e))
}
