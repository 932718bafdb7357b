//! The worker: takes the snapshots that moments wait for, in a process of its own that nobody waits for but the fence.
//!
//! One works in a workspace at a time. It takes one snapshot for all moments of a session that wait, by the policy of `pace`; where nothing
//! has changed since the session's last one, that one serves. After the provider has made the snapshot it looks whether a tool of the
//! session runs, or has begun since a moment, or files were put back since: of such a moment the snapshot is inexact.
//!
//! Killed anywhere, it leaves moments that still wait, and a snapshot that is nobody's at most: the next worker settles them by what is
//! known then, which is that a moment is only shown exactly if nothing of that has happened since, in the same run of the machine.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ah_plugin_api::{Durability, Error, ErrorKind, Result, SnapshotId};

use crate::crash;
use crate::gc::GcOptions;
use crate::ids::SessionName;
use crate::lock::{Lock, boot_id};
use crate::moments::pace::Pace;
use crate::moments::pending::{self, Pending, Waiting};
use crate::moments::tools::{Running, Tools};
use crate::moments::trying::Tries;
use crate::moments::{Attempt, Moment, MomentKind, MomentUpdate, fence};
use crate::record::SnapshotKind;
use crate::snapshot::{Behind, Listed, SnapshotOptions};
use crate::timeline::{Came, EventBody, Log};
use crate::workspace::Workspace;

/// How often the worker looks whether somebody hurries it.
const LOOK: Duration = Duration::from_millis(4);
/// A worker that finds another one at work waits for it no longer than this; that one, or the next, will see to it.
const OTHERS: Duration = Duration::from_secs(30);
/// A worker that nobody waits for waits so long for who holds a timeline. What is left then waits for whoever comes there next.
const HOLDERS: Duration = Duration::from_secs(600);
/// How often it looks whether a timeline is held still, when that has gone on for some seconds.
const SELDOM: Duration = Duration::from_millis(100);
/// A moment that had to be left beside its timeline, and whose snapshot is taken more than so many seconds later, is inexact: an agent is held up for
/// two seconds at a call, and waits for a busy machine a little longer; what people do to the files is not noted anywhere.
const FRESH: i64 = 10;
/// A moment that is so many seconds old has been left to a worker, if its hook has come so far.
const OLD: i64 = 600;

/// A snapshot that was taken for moments.
pub(super) struct Taken {
    pub(super) listed: Listed,
    /// What was said of each of them, but its id.
    pub(super) said: Vec<MomentUpdate>,
}

impl Workspace {
    /// Takes the snapshots that moments wait for, until none waits; then does what else is due and nobody waits for.
    ///
    /// # Errors
    /// If what became of a moment could not be written down; it waits for the next worker. A snapshot that fails is no error here:
    /// its moments say why they have none.
    pub fn capture(&self) -> Result<()> {
        let settled = self.settle_moments(HOLDERS);
        // Another worker was faster, and sees to the rest as well; or this one is stopped.
        if matches!(settled, Ok(false)) || settled.as_ref().is_err_and(|error| error.kind == ErrorKind::Cancelled) {
            return settled.map(drop);
        }
        self.catch_up(false)?;
        self.gc(&GcOptions { auto: true })?;
        self.catch_up(true)?;
        // What has come in the meantime.
        self.gc(&GcOptions { auto: true })?;
        settled.map(drop)
    }

    /// Settles all moments that wait; whether there was one. Who holds a timeline is waited for no longer than `patience`.
    pub(crate) fn settle_moments(&self, patience: Duration) -> Result<bool> {
        let mut settled = false;
        let since = Instant::now();
        // Since when it is another one's turn.
        let mut turn = since;
        while !pending::all_there(self)?.is_empty() {
            let Some(workers) = Lock::try_take(&self.capture_lock(), true)? else {
                if turn.elapsed() > OTHERS {
                    return Ok(settled);
                }
                std::thread::sleep((turn.elapsed() / 32).clamp(LOOK, SELDOM));
                continue;
            };
            match self.settle_those_there(&workers, &mut settled) {
                // What nobody can settle is not looked at without a pause.
                Ok(()) => std::thread::sleep(LOOK),
                Err(error) if error.kind == ErrorKind::Busy && since.elapsed() < patience => {
                    // Still the only one at work: of many that waited here each would look as often.
                    std::thread::sleep((since.elapsed() / 32).clamp(LOOK, SELDOM));
                    // Who takes the workspace away has its turn.
                    drop(workers);
                    std::thread::sleep(2 * LOOK);
                }
                Err(error) => return Err(error),
            }
            turn = Instant::now();
        }
        Ok(settled)
    }

    /// Settles the moments that are on a timeline, and those that can be put there at once. What fails keeps back nobody else's: the error is returned at
    /// the end, and that something is held only if there is nothing worse.
    fn settle_those_there(&self, workers: &Lock, settled: &mut bool) -> Result<()> {
        let at_once = Log { patience: Duration::ZERO, ..self.log() };
        let Came { torn, error: mut failed, .. } = at_once.list_unlisted();
        self.tell_repaired(torn);
        let before = self.settle_stopped(workers)?;
        self.wait_for_more()?;
        let mut sessions: Vec<SessionName> = Vec::new();
        for waiting in pending::all(self)? {
            if !sessions.contains(&waiting.session) {
                sessions.push(waiting.session);
            }
        }
        // First those that somebody waits for.
        sessions.sort_by_key(|session| !fence::is_hurried(self, session));
        for session in sessions {
            match self.capture_for(&session, &before) {
                Ok(()) => *settled = true,
                Err(error) if error.kind == ErrorKind::Cancelled => return Err(error),
                // The others' lines would wait for the same.
                Err(error) if error.kind == ErrorKind::Busy => {
                    failed.get_or_insert(error);
                    break;
                }
                Err(error) if failed.as_ref().is_none_or(|first| first.kind == ErrorKind::Busy) => failed = Some(error),
                Err(_) => {}
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Says of moments that nobody takes a snapshot for why they have none: their lines came on the timeline, and the notes that they wait did
    /// not, on a full disk, or as their hooks were killed.
    pub(crate) fn settle_unheard_moments(&self) -> Result<()> {
        let now = self.engine.settings().clock.now();
        // In this order: one that is added meanwhile is not old.
        let state = self.state()?;
        // What became of them may be in a line that cannot be read.
        if state.gap.is_some() {
            return Ok(());
        }
        let waiting: BTreeSet<SnapshotId> = pending::all(self)?.into_iter().map(|waiting| waiting.moment).collect();
        let is_unheard = |moment: &&Moment| {
            let record = &moment.record;
            // One that was typed meanwhile waits for none: it has what the moment before it has.
            !record.meanwhile
                && record.snapshot.is_none()
                && record.reason.is_none()
                && !waiting.contains(&record.id)
                && now.secs - moment.time.secs > OLD
        };
        let mut unheard: BTreeMap<SessionName, Vec<EventBody>> = BTreeMap::new();
        for moment in state.moments.iter().filter(is_unheard) {
            let reason = Some("nobody heard of it: its hook was killed, or the disk was full".to_owned());
            let update = MomentUpdate { reason, ..MomentUpdate::new(moment.record.id.clone()) };
            unheard.entry(moment.session.clone()).or_default().push(EventBody::MomentUpdate(Box::new(update)));
        }
        for (session, updates) in unheard {
            self.append_with(&session, Durability::Instant, |_| updates)?;
        }
        Ok(())
    }

    /// Waits until every session that waits has had its window, or is hurried.
    fn wait_for_more(&self) -> Result<()> {
        let policy = self.pace();
        loop {
            let mut longest = Duration::ZERO;
            for Waiting { session, .. } in pending::all(self)? {
                if fence::is_hurried(self, &session) {
                    return Ok(());
                }
                longest = longest.max(policy.window_left(&Pace::read(self, &session)));
            }
            if longest.is_zero() {
                return Ok(());
            }
            std::thread::sleep(longest.min(LOOK));
        }
    }

    /// Takes one snapshot for all moments of a session that wait by now.
    fn capture_for(&self, session: &SessionName, before: &Tries) -> Result<()> {
        let mut moments: Vec<(Waiting, Pending)> = Vec::new();
        for waiting in pending::all(self)?.into_iter().filter(|waiting| waiting.session == *session) {
            if let Some(left) = pending::read(self, &waiting)? {
                moments.push((waiting, left));
            }
        }
        if moments.is_empty() {
            return Ok(());
        }
        let mut pace = Pace::read(self, session);
        let asked = moments.iter().any(|(_, left)| left.kind == MomentKind::Manual);
        let refused = self.pace().refuses(&pace).filter(|_| !asked);
        let taken = match refused {
            Some(reason) => self.give_up(session, &moments, &reason).map(|()| None),
            None => {
                let attempt = Attempt::of(self, &moments, before)?;
                self.take_for(session, &moments, &mut pace, asked, &attempt)
            }
        };
        let taken = taken?;
        self.settled(session, &moments)?;
        if let Some(taken) = taken {
            self.after_capture(session, &moments, &taken);
        }
        Ok(())
    }

    /// What became of moments stands on the timeline: they wait no longer.
    pub(super) fn settled(&self, session: &SessionName, moments: &[(Waiting, Pending)]) -> Result<()> {
        for (waiting, _) in moments {
            pending::settled(self, waiting)?;
        }
        fence::calm(self, session);
        // From here on nobody waits.
        let lates = moments.iter().filter_map(|(_, left)| left.late.clone()).collect();
        let _ = self.leave_late(session, lates);
        if moments.iter().any(|(_, left)| left.kind == MomentKind::SessionStart) {
            let _ = self.end_vanished();
        }
        Ok(())
    }

    fn take_for(
        &self,
        session: &SessionName,
        moments: &[(Waiting, Pending)],
        pace: &mut Pace,
        asked: bool,
        attempt: &Attempt<'_>,
    ) -> Result<Option<Taken>> {
        let tools = Tools::of(&self.folder(), session);
        let said = RefCell::new(Vec::new());
        let look = || self.overtaken(&tools, moments).inspect(|updates| said.borrow_mut().clone_from(updates));
        let options = SnapshotOptions {
            kind: if asked { SnapshotKind::Manual } else { SnapshotKind::Auto },
            durability: Some(Durability::Instant),
            ..SnapshotOptions::default()
        };
        pace.begins();
        match self.snapshot_behind(&options, Behind { session, look: &look, own: asked, attempt: Some(attempt) }) {
            // A line that is not on disk yet is no less than was asked for.
            Ok((listed, _)) => {
                pace.took(matches!(listed, Listed::New(_)));
                pace.write(self, session);
                Ok(Some(Taken { listed, said: said.take() }))
            }
            // Somebody stops this worker: the moments wait for the next one.
            Err(error) if error.kind == ErrorKind::Cancelled => Err(error),
            // There was a snapshot, and somebody holds the timeline: no reason to have none.
            Err(error) if error.kind == ErrorKind::Busy && !said.borrow().is_empty() => Err(error),
            Err(error) => self.give_up(session, moments, &told(&error)).map(|()| None),
        }
    }

    /// Writes down why moments have no snapshot.
    pub(super) fn give_up(&self, session: &SessionName, moments: &[(Waiting, Pending)], reason: &str) -> Result<()> {
        let update = |(waiting, _): &(Waiting, Pending)| {
            let update = MomentUpdate::new(waiting.moment.clone());
            EventBody::MomentUpdate(Box::new(MomentUpdate { reason: Some(reason.to_owned()), ..update }))
        };
        let updates = moments.iter().map(update).collect();
        crash::point("moment.give-up").map_err(|e| Error::from_io("cannot say why a moment has no snapshot", &e))?;
        self.append_with(session, Durability::Instant, |_| updates).map(drop)
    }

    /// What is to be said of each moment, its snapshot having been made just now.
    pub(super) fn overtaken(&self, tools: &Tools, moments: &[(Waiting, Pending)]) -> Result<Vec<MomentUpdate>> {
        // In this order: one that begins in between is seen by its number.
        let running = tools.running()?;
        // Before the number, which counts a restore when it begins and when it is done.
        let restoring = Lock::try_take(&self.folder().join("restore.lock"), false)?.is_none();
        let (begun, put_back, boot) = (tools.begun(), self.put_back_so_far(), boot_id());
        let now = self.engine.settings().clock.running_for();
        let is_late = |left: &Pending| left.unlisted.is_some_and(|then| now.saturating_sub(then) > FRESH);
        let update = |(waiting, left): &(Waiting, Pending)| {
            let before = [
                (left.boot != boot, "the machine was started anew"),
                (restoring || left.put_back != put_back, "files were restored"),
                (left.begun != begun, "another tool had begun"),
                (is_late(left), "somebody held the timeline for long"),
            ];
            let before = before.iter().find(|(so, _)| *so);
            let before = before.map(|(_, what)| format!("{what} before its snapshot was taken"));
            let beside = running.as_ref().filter(|_| left.kind != MomentKind::Manual).map(Running::told);
            let reason = left.beside.clone().or(before).or(beside);
            MomentUpdate { inexact: reason.is_some(), reason, ..MomentUpdate::new(waiting.moment.clone()) }
        };
        Ok(moments.iter().map(update).collect())
    }
}

/// An error as a reason.
pub(crate) fn told(error: &Error) -> String {
    error.causes.iter().fold(error.message.clone(), |text, cause| format!("{text}: {cause}"))
}
