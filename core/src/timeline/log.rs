//! All timelines of a workspace: one order for their events, kept under one short lock.
//!
//! Each event bears a number. The next one is the greater of what `head` says and of the last line of the session that is written to,
//! plus one: `head` is a small cache, written without sync, and rebuilt from the ends of all timelines when it is lost.
//!
//! A timeline that cannot be read is put aside by a person, as `timeline.jsonl.unread`. As long as that is there, lines are missing, whatever `head` says: the next
//! line says so, and then it is renamed to `timeline.jsonl.lost`.
//!
//! What could not be put on a timeline when it happened (`moments/unlisted`) comes before whatever is put on one next.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ah_plugin_api::{Durability, Error, ErrorKind, Observer, RepositoryState, Result, SnapshotId, Timestamp, text};

use crate::crash;
use crate::fsio;
use crate::ids::SessionName;
use crate::lock::{Lock, boot_id};
use crate::moments::pending::{self, Waiting};
use crate::moments::unlisted::{self, Left, Unlisted};
use crate::session::{self, SessionRecord};
use crate::settings::Clock;
use crate::timeline::event::{Event, EventBody};
use crate::timeline::file::{self, TimelineFile};
use crate::timeline::head::{Head, HeadFile, HeadSnapshot};
use crate::timeline::line::MAX_SEQ;
use crate::timeline::{FaultKind, TimelineFault, TimelineReport};

/// The timelines of one workspace.
pub(crate) struct Log<'a> {
    /// `$AH_HOME/workspaces/<id>`.
    pub(crate) folder: PathBuf,
    pub(crate) clock: &'a Clock,
    pub(crate) observer: &'a dyn Observer,
    /// How long to wait for another process that writes.
    pub(crate) patience: Duration,
    /// The lock of the timelines, where whoever asks holds it already.
    pub(crate) held: Option<&'a Lock>,
}

/// Whether a repository stands where it stood, its index and refs too. Where that cannot be told it does not.
pub(crate) fn is_unmoved(before: Option<&RepositoryState>, now: Option<&RepositoryState>) -> bool {
    match (before, now) {
        (None, None) => true,
        (Some(before), Some(now)) => before == now && now.marks.is_some(),
        _ => false,
    }
}

/// Why a timeline cannot be read.
fn unread(error: &Error) -> String {
    error.causes.iter().fold(error.message.clone(), |text, cause| format!("{text}: {cause}"))
}

/// What to do about it. What the disk does not give again, or is no file, can be done without; what is only closed, or cannot be read for a moment, is not to be.
fn way_out(file: &Path, why: &Error) -> String {
    let is_no_file = file.symlink_metadata().is_ok_and(|there| !there.is_file());
    if is_no_file || why.is_unreadable() {
        format!(
            "bring its timeline back from a backup, or do without it: `{}`, then `ah agent fs gc` lists again the snapshots that there are, and pins what may have been pinned",
            fsio::put_aside(file)
        )
    } else {
        format!("see that it is a file that you can read: `ls -l {}`", text::shell(file.as_os_str()))
    }
}

/// What an append did beside appending.
pub(crate) struct Appended {
    pub(crate) events: Vec<Event>,
    pub(crate) came: Came,
}

/// What came of the events that waited to be put on a timeline, and of torn lines.
#[derive(Default)]
pub(crate) struct Came {
    /// Bytes of torn last lines that were cut off first.
    pub(crate) torn: u64,
    /// Whether there is a moment among them, which waits for its snapshot from now on.
    pub(crate) waits: bool,
    /// Why the first one that waits still does.
    pub(crate) error: Option<Error>,
}

impl Log<'_> {
    fn path(&self, session: &SessionName) -> PathBuf {
        self.folder.join("sessions").join(session.as_str()).join("timeline.jsonl")
    }

    /// Puts events on a session's timeline. `make` gets the present head and says which; with `Durable` they survive a power cut
    /// when this returns.
    pub(crate) fn append(
        &self,
        session: &SessionName,
        durability: Durability,
        make: impl FnOnce(&Head) -> Vec<EventBody>,
    ) -> Result<Appended> {
        let _lock = self.lock()?;
        let (cache, mut head) = self.head();
        // What cannot be put there, on a full disk say, is tried again by who comes next.
        let mut came = self.list_all(&cache, &mut head);
        let (events, torn) = self.append_locked(session, durability, make, (&cache, &mut head))?;
        came.torn += torn;
        Ok(Appended { events, came })
    }

    /// Has the cache name none of those, which are about to be removed before a line says so: what is captured next would be taken for equal to one that is gone.
    pub(crate) fn name_none_of(&self, snapshots: &BTreeSet<SnapshotId>) -> Result<()> {
        let _lock = self.lock()?;
        let (cache, mut head) = self.head();
        if head.snapshot.as_ref().is_some_and(|last| snapshots.contains(&last.id)) {
            head.snapshot = None;
            cache.write(&head)?;
        }
        Ok(())
    }

    /// None where it is held already: taken once more, it would be waited for in vain.
    fn lock(&self) -> Result<Option<Lock>> {
        let take = || Lock::take(&self.folder.join("timeline.lock"), true, self.patience, self.observer);
        if self.held.is_some() { Ok(None) } else { take().map(Some) }
    }

    /// Puts all events there that wait for that.
    pub(crate) fn list_unlisted(&self) -> Came {
        let list = || {
            if unlisted::all(&self.folder)?.is_empty() {
                return Ok(Came::default());
            }
            let _lock = self.lock()?;
            let (cache, mut head) = self.head();
            Ok(self.list_all(&cache, &mut head))
        };
        list().unwrap_or_else(|error| Came { error: Some(error), ..Came::default() })
    }

    /// One that cannot be put there keeps back those behind it of its session, for their order, and nobody else's.
    fn list_all(&self, cache: &HeadFile, head: &mut Head) -> Came {
        let mut came = Came::default();
        let all = unlisted::all(&self.folder);
        let all = all.unwrap_or_else(|error| {
            came.error = Some(error);
            Vec::new()
        });
        let mut stuck: Vec<&SessionName> = Vec::new();
        for unlisted in &all {
            if stuck.contains(&&unlisted.session) {
                continue;
            }
            if let Err(error) = self.list(unlisted, (cache, &mut *head), &mut came) {
                stuck.push(&unlisted.session);
                came.error.get_or_insert(error);
            }
        }
        came
    }

    fn list(&self, unlisted: &Unlisted, head: (&HeadFile, &mut Head), came: &mut Came) -> Result<()> {
        let Some(Left { event, waits }) = unlisted.read(&self.folder)? else { return Ok(()) };
        let Unlisted { session, time, after, .. } = unlisted;
        let path = self.path(session);
        let since = match file::read_since(&path, session, *after)? {
            Some(since) => since,
            None => file::read(&path, session)?.events,
        };
        // Who put it there may have been killed before it was taken away.
        let there = since.iter().find(|there| (there.time, &there.body) == (*time, &event));
        let seq = match there {
            Some(there) => there.seq,
            None => {
                let time = *time;
                let log = Log { folder: self.folder.clone(), clock: &Clock::from_fn(move || time), ..*self };
                let (events, torn) = log.append_locked(session, Durability::Instant, |_| vec![event], head)?;
                came.torn += torn;
                events.last().map_or(0, |event| event.seq)
            }
        };
        crash::point("unlisted.wait").map_err(|e| fsio::failed("list what waits in", &self.folder, &e))?;
        // Nor may it have been killed long ago: what became of a moment since is said once.
        let is_settled = since
            .iter()
            .any(|event| matches!(&event.body, EventBody::MomentUpdate(update) if update.settles(&unlisted.id)));
        if let Some(waits) = waits.filter(|_| !is_settled) {
            let waiting = Waiting { seq, moment: unlisted.id.clone(), session: session.clone() };
            pending::add(&self.folder, &waiting, &waits)?;
            came.waits = true;
        }
        unlisted.listed(&self.folder)
    }

    /// As [`Self::append`], the lock being held; with the bytes of a torn last line that were cut off first.
    fn append_locked(
        &self,
        session: &SessionName,
        durability: Durability,
        make: impl FnOnce(&Head) -> Vec<EventBody>,
        (cache, head): (&HeadFile, &mut Head),
    ) -> Result<(Vec<Event>, u64)> {
        self.make_session(session)?;
        let path = self.path(session);
        // In this order: what is put aside meanwhile is for the next one to tell.
        let is_put_aside = file::is_put_aside(&path);
        let durability = if is_put_aside { Durability::Durable } else { durability };
        let (mut timeline, tail) = TimelineFile::open(&path)?;
        head.seq = head.seq.max(tail.last_seq.unwrap_or(0));
        let lost = head.end(session).filter(|last| tail.last_seq.is_none_or(|seq| seq < *last));
        // That what comes last is not the newest may have other reasons; it is seldom, and then looked at with care.
        let lost = match lost {
            _ if is_put_aside => Some(head.seq),
            Some(last) => file::read(&path, session)?.lacks(session, last).map(|_| last),
            None => None,
        };
        if lost.is_some() {
            // It may be in one of those lines.
            head.snapshot = None;
        }
        let mut bodies = make(head);
        if let Some(last) = lost {
            bodies.insert(0, EventBody::LinesLost { last });
        }
        if tail.torn > 0 {
            bodies.insert(0, EventBody::Repaired { bytes: tail.torn });
        }
        if bodies.iter().any(|body| head.loses(body)) {
            // Who is killed behind the line would leave a snapshot there that is removed.
            head.snapshot = None;
            cache.write(head)?;
        }
        let len = timeline.len();
        let events = self.append_all(&mut timeline, session, durability, head, bodies);
        let events = events.inspect_err(|_| timeline.take_back(len))?;
        if is_put_aside {
            file::forget_put_aside(&path);
        }
        if let Some(last) = events.last() {
            head.note_end(session, last.seq, durability == Durability::Durable);
        }
        // The line is there; what is said of the one before it is still so.
        let _ = cache.write(head);
        Ok((events, tail.torn))
    }

    /// Makes a session if it is not there.
    fn make_session(&self, session: &SessionName) -> Result<()> {
        if session::is_made(&self.folder, session) {
            return Ok(());
        }
        let _lock = session::lock(&self.folder, session, self.patience, self.observer)?;
        match session::is_made(&self.folder, session) {
            true => Ok(()),
            false => session::make(&self.folder, SessionRecord::new(session.clone(), self.clock.now())),
        }
    }

    fn append_all(
        &self,
        timeline: &mut TimelineFile,
        session: &SessionName,
        durability: Durability,
        head: &mut Head,
        bodies: Vec<EventBody>,
    ) -> Result<Vec<Event>> {
        let mut events = Vec::with_capacity(bodies.len());
        for mut body in bodies {
            head.seq = head.seq.checked_add(1).filter(|seq| *seq <= MAX_SEQ).ok_or_else(|| self.used_up())?;
            if let EventBody::Snapshot { snapshot } | EventBody::Recovered { snapshot, .. } = &mut body {
                snapshot.seq = head.seq;
                snapshot.session = session.clone();
            }
            let event = Event { seq: head.seq, time: self.clock.now(), session: session.clone(), body };
            timeline.append(&event)?;
            head.note(&event);
            events.push(event);
        }
        if durability == Durability::Durable && !events.is_empty() {
            timeline.sync()?;
        }
        Ok(events)
    }

    /// Only a forged line, or one from elsewhere, comes to that.
    fn used_up(&self) -> Error {
        let message = format!("no event can be written: a line of a timeline bears the highest number, {MAX_SEQ}");
        let sessions = text::shell(self.folder.join("sessions").as_os_str());
        Error::new(ErrorKind::FailedPrecondition, message)
            .with_hint(format!("take it out of its file: `grep -rn {MAX_SEQ} {sessions}` shows it"))
    }

    /// Reads all timelines, or one. What waits to be put there is, and torn ends are mended first: what came of that is beside.
    pub(crate) fn read(&self, only: Option<&SessionName>) -> Result<(TimelineReport, Came)> {
        let mut report = TimelineReport::default();
        // Who only reads waits for nobody.
        let at_once = Log { folder: self.folder.clone(), patience: Duration::ZERO, ..*self };
        let mut came = at_once.list_unlisted();
        // In this order: what it names was on the timelines before.
        let head = self.ends();
        let mut sessions = session::names(&self.folder)?;
        let gone: Vec<_> =
            head.ends().map(|(session, _)| session).filter(|it| !sessions.contains(it)).cloned().collect();
        sessions.extend(gone);
        let mut lost = Vec::new();
        for session in sessions {
            if only.is_some_and(|only| *only != session) {
                continue;
            }
            let path = self.path(&session);
            // Before, as a line may say so meanwhile.
            let was_put_aside = file::is_put_aside(&path);
            let mut contents = match file::read(&path, &session) {
                Ok(contents) => contents,
                // What one session's says, others do not need.
                Err(error) => {
                    let (kind, way_out) = (FaultKind::File, Some(way_out(&path, &error)));
                    report.faults.push(TimelineFault { session, kind, line: 1, reason: unread(&error), way_out });
                    continue;
                }
            };
            if let Some(line) = contents.torn {
                // Torn for good, or a line that another process is writing: under the lock it is one or the other.
                match self.append(&session, Durability::Durable, |_| Vec::new()) {
                    Ok(appended) => {
                        came.torn += appended.came.torn;
                        came.waits |= appended.came.waits;
                        contents = file::read(&path, &session)?;
                    }
                    Err(e) => contents.faults.push(TimelineFault {
                        session: session.clone(),
                        kind: FaultKind::Line,
                        line,
                        reason: format!("the last line is torn and cannot be mended: {e}"),
                        way_out: None,
                    }),
                }
            }
            // And behind, as it may have been put aside meanwhile.
            report.faults.extend(match was_put_aside || file::is_put_aside(&path) {
                true => Some(contents.lacks_what_is_aside(&session, &path)),
                false => head.end(&session).and_then(|last| contents.lacks(&session, last)),
            });
            report.events.append(&mut contents.events);
            report.faults.append(&mut contents.faults);
            lost.append(&mut contents.lost);
        }
        let sought = |event: &Event| matches!(event.body, EventBody::LinesSought {}).then_some(event.seq);
        let sought = report.events.iter().filter_map(sought).max();
        let is_open = |(seq, fault)| sought.is_none_or(|sought| sought < seq).then_some(fault);
        report.faults.extend(lost.into_iter().filter_map(is_open));
        report.events.sort_by(|a, b| (a.seq, a.time, &a.session).cmp(&(b.seq, b.time, &b.session)));
        // Lines that a copy or a merge of files doubled.
        report.events.dedup();
        Ok((report, came))
    }

    /// The events after that one, without reading what is before; none if a line after it cannot be read, is being written, or was lost.
    pub(crate) fn read_since(&self, seq: u64) -> Result<Option<Vec<Event>>> {
        let mut events = Vec::new();
        // In this order, as in [`Self::read`].
        let head = self.ends();
        for session in session::names(&self.folder)? {
            let path = self.path(&session);
            if file::is_put_aside(&path) {
                return Ok(None);
            }
            let Some(mut own) = file::read_since(&path, &session, seq)? else { return Ok(None) };
            events.append(&mut own);
        }
        let is_there = |session: &SessionName, last| {
            last <= seq || events.iter().any(|event: &Event| event.session == *session && event.seq >= last)
        };
        let says_so = |event: &Event| matches!(event.body, EventBody::LinesLost { .. });
        if !head.ends().all(|(session, last)| is_there(session, last)) || events.iter().any(says_so) {
            return Ok(None);
        }
        events.sort_by_key(|event| event.seq);
        Ok(Some(events))
    }

    /// The number of the last event, as far as the cache knows: it may be a little behind.
    pub(crate) fn last_seq(&self) -> u64 {
        self.head().1.seq
    }

    /// The last snapshot, as far as the cache knows.
    pub(crate) fn last_snapshot(&self) -> Option<HeadSnapshot> {
        self.head().1.snapshot
    }

    /// Makes one timeline survive a power cut, without holding anybody up.
    pub(crate) fn sync_one(&self, session: &SessionName, durability: Durability) -> Result<()> {
        file::sync(&self.path(session), durability)
    }

    /// Makes all timelines survive a power cut, and says why those do not of which that failed: one keeps no other from it.
    pub(crate) fn sync(&self) -> Result<BTreeMap<SessionName, Error>> {
        let sync = |session: SessionName| {
            let error = self.sync_one(&session, Durability::Durable).err()?;
            Some((session, error))
        };
        Ok(session::names(&self.folder)?.into_iter().filter_map(sync).collect())
    }

    /// When a session began, by its first event.
    pub(crate) fn began(&self, session: &SessionName) -> Option<Timestamp> {
        file::first_time(&self.path(session))
    }

    /// The cache, or what the ends of all timelines say.
    pub(super) fn head(&self) -> (HeadFile, Head) {
        let (file, head) = HeadFile::open(&self.head_file());
        let boot = boot_id();
        let head = match head.filter(Head::is_believed) {
            Some(head) if head.is_of(&boot) => head,
            former => {
                let sessions = session::names(&self.folder).unwrap_or_default();
                let ends = sessions.iter().filter_map(|session| file::last_seq(&self.path(session)));
                let former = former.unwrap_or_default().after_a_start(boot);
                // Numbers that a power cut took away are not given again.
                Head { seq: ends.max().unwrap_or(0).max(former.seq), ..former }
            }
        };
        (file, head)
    }

    fn head_file(&self) -> PathBuf {
        self.folder.join("head")
    }

    /// What the cache says of the ends of timelines, for who only reads.
    fn ends(&self) -> Head {
        let (file, boot) = (self.head_file(), boot_id());
        // Where it is there and says nothing, another process may be writing it: under the lock it is whole, or lost.
        let under_the_lock = || {
            let _lock = file.exists().then(|| self.lock().ok())??;
            HeadFile::said(&file)
        };
        match HeadFile::said(&file).or_else(under_the_lock).filter(Head::is_believed) {
            Some(head) if head.is_of(&boot) => head,
            former => former.unwrap_or_default().after_a_start(boot),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::way_out;
    use ah_plugin_api::Error;
    use rustix::io::Errno;
    use std::io;

    #[test]
    fn a_timeline_that_can_be_read_again_is_not_to_be_done_without() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("timeline.jsonl");
        let is_given_up = |errno: Errno| {
            let error = Error::from_io("cannot read it", &io::Error::from(errno));
            way_out(&path, &error).contains(&format!("mv -T {0} {0}.unread", path.display()))
        };
        std::fs::write(&path, "").unwrap();
        let passing = [
            Errno::ACCESS,
            Errno::MFILE,
            Errno::TIMEDOUT,
            Errno::NOTCONN,
            Errno::AGAIN,
            Errno::BUSY,
            Errno::STALE,
            Errno::INTR,
        ];
        assert_eq!(passing.into_iter().filter(|errno| is_given_up(*errno)).collect::<Vec<_>>(), []);
        assert!([Errno::IO, Errno::UCLEAN, Errno::BADMSG].into_iter().all(is_given_up));
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(temp.path(), &path).unwrap();
        assert!(is_given_up(Errno::LOOP));
    }
}
