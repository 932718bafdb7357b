//! What a REF names among what there is.
//!
//! In order of precedence: `@…`; a full snapshot or moment id; a label that a person gave (the newest that bears it); a time (the nearest
//! snapshot at or before it); an unambiguous prefix of an id; what a program ran or printed, as the label of its moment. So nothing that a
//! program prints changes what another name means. `@…` and times pass over snapshots that
//! a restore or a branch took for itself; ids and labels do not.
//!
//! A moment means the snapshot that shows the workspace as it was then, else the nearest one before it, or the one that all files were put
//! back to since (`before`). A snapshot that was taken for a moment counts from that moment on: it was taken behind it, when nothing had changed yet.

use std::collections::{BTreeMap, HashMap};

use ah_plugin_api::{Error, ErrorKind, Result, SnapshotId, Timestamp};

use crate::ids::{SessionName, looks_like_id};
use crate::moments::{self, Moment, MomentKind, MomentRecord, Point};
use crate::record::SnapshotRecord;
use crate::refs::parse::{Parsed, When, parse};
use crate::refs::{Before, PutBack};
use crate::state::State;
use crate::text::shell;

/// From how alike a label is to a name that nothing has it is worth asking about, of 1.
const ALIKE: f64 = 0.8;

/// Everything that the meaning of a REF depends on.
#[derive(Clone, Copy)]
pub(crate) struct Resolver<'a> {
    pub(crate) state: &'a State,
    /// The session that everything is limited to.
    pub(crate) only: Option<&'a SessionName>,
    /// The session that `@…` and times mean, inside an agent's session.
    pub(crate) own: Option<&'a SessionName>,
    /// The session whose beginning `12.5s` counts from, and when that was.
    pub(crate) began: Option<Timestamp>,
    pub(crate) now: Timestamp,
    /// Reads a time without an offset.
    pub(crate) local: fn(&str) -> Option<Timestamp>,
    /// Names a time to the user.
    pub(crate) named: fn(Timestamp) -> String,
}

impl Resolver<'_> {
    /// The snapshot that `text` names.
    pub(crate) fn resolve(&self, text: &str) -> Result<SnapshotRecord> {
        self.point(text).map(|point| point.snapshot)
    }

    /// As [`Resolver::resolve`], with the moment that is meant.
    pub(crate) fn point(&self, text: &str) -> Result<Point> {
        let named = match parse(text)? {
            Parsed::Back(count) => Named::Snapshot(self.back(count, text)?),
            Parsed::Prompt(count) => Named::Moment(self.prompt(count, text)?),
            Parsed::Text { time } => {
                if let Some(found) = self.by_id(text).or_else(|| self.by_label(text)) {
                    found
                } else if let Some(time) = time.or_else(|| (self.local)(text).map(When::At)) {
                    Named::Snapshot(self.by_time(time, text)?)
                } else {
                    match self.by_prefix(text) {
                        Err(error) if error.kind == ErrorKind::NotFound => self.by_program(text).ok_or(error)?,
                        found => found?,
                    }
                }
            }
        };
        match named {
            Named::Snapshot(snapshot) => Ok(self.point_of(snapshot)),
            Named::Moment(moment) => {
                let exact = moment.record.exact().and_then(|id| self.state.snapshot(id));
                let snapshot = match exact.map_or_else(|| self.before(moment.seq), Before::Snapshot) {
                    Before::Snapshot(snapshot) => snapshot,
                    Before::Removed(target) => return Err(self.removed_before(target, moment)),
                    Before::Nothing => return Err(self.nothing_before(text, moment)),
                };
                let (snapshot, moment) = (snapshot.clone(), Some(moment.clone()));
                Ok(Point { exact: exact.is_some(), snapshot, moment, named: true })
            }
        }
    }

    /// As [`Resolver::resolve`], of what is to go or to be marked: that must not be a neighbour of what was meant, nor follow from what a program
    /// printed.
    pub(crate) fn resolve_own(&self, text: &str) -> Result<SnapshotRecord> {
        let point = self.point(text)?;
        let Some(moment) = point.moment.filter(|_| point.named) else { return Ok(point.snapshot) };
        let MomentRecord { id, kind, snapshot: taken, .. } = &moment.record;
        let printed = *kind != MomentKind::Manual && is_program(&moment.record, text) && !id.as_str().starts_with(text);
        if printed {
            let message = format!("{text} is only what a program ran or printed, and no name to go by here");
            return Err(Error::new(ErrorKind::InvalidArgument, message).with_hint(format!("its id is {id}")));
        }
        if point.exact {
            return Ok(point.snapshot);
        }
        let message = format!("the moment {id} has no snapshot that shows it");
        let error = Error::new(ErrorKind::FailedPrecondition, message);
        Err(match taken.as_ref().filter(|taken| self.state.snapshot(taken).is_some()) {
            Some(taken) => error.with_hint(format!("the one that was taken for it, and shows more, is {taken}")),
            None => error.with_hint(format!("the nearest one before it is {}", point.snapshot.id)),
        })
    }

    /// There is neither a snapshot that shows a moment nor one before it.
    fn nothing_before(&self, text: &str, moment: &Moment) -> Error {
        let id = &moment.record.id;
        let Some(lost) = self.state.lost_snapshot(moment) else {
            return not_found(format!("{text} names the moment {id}, before which there is no snapshot"));
        };
        let message = format!("the snapshot {lost} of {id} was removed, and there is none before it");
        self.with_nearest(Error::new(ErrorKind::FailedPrecondition, message), moment)
    }

    /// All files had been put back to a snapshot by that moment which is not there any more.
    fn removed_before(&self, target: &SnapshotId, moment: &Moment) -> Error {
        let id = &moment.record.id;
        let message = format!("before {id} all files were put back to the snapshot {target}, which was removed since");
        self.with_nearest(Error::new(ErrorKind::FailedPrecondition, message), moment)
    }

    /// What can be used in place of a moment's snapshot that was removed, where nothing before it can.
    fn with_nearest(&self, error: Error, moment: &Moment) -> Error {
        let mut own = self.counting().filter(|snapshot| snapshot.session == moment.session);
        match own.find(|snapshot| snapshot.seq > moment.seq) {
            Some(next) => error.with_hint(format!(
                "the nearest that is left is of {}, after it: use {} in its place",
                (self.named)(next.time),
                next.id
            )),
            None => error.with_hint("`ah agent fs snapshots` lists what there is"),
        }
    }

    /// The moment that a snapshot belongs to: the last one that it shows exactly, else the last one before it of its session.
    fn point_of(&self, snapshot: &SnapshotRecord) -> Point {
        let all = || self.state.moments.iter().rev().filter(|moment| moment.session == snapshot.session);
        let shown = all().find(|moment| moment.record.exact() == Some(&snapshot.id));
        let moment = shown.or_else(|| all().find(|moment| moment.seq < snapshot.seq));
        Point { snapshot: snapshot.clone(), moment: moment.cloned(), exact: shown.is_some(), named: false }
    }

    /// Whether a snapshot is of what an agent did about the last prompt.
    pub(crate) fn is_of_prompt(&self, snapshot: &SnapshotRecord) -> bool {
        let by_hook = |moment: &Moment| !matches!(moment.record.kind, MomentKind::Manual | MomentKind::Shell);
        let prompt = || self.point("@prompt").ok()?.moment;
        let last = self.point_of(snapshot).moment.filter(by_hook);
        last.is_some_and(|last| prompt().is_some_and(|prompt| prompt.session == last.session))
    }

    fn in_scope(&self, session: &SessionName) -> bool {
        self.only.is_none_or(|only| only == session)
    }

    fn snapshots(&self) -> impl DoubleEndedIterator<Item = &SnapshotRecord> {
        self.state.snapshots.iter().filter(|snapshot| self.in_scope(&snapshot.session))
    }

    /// What `@…` and times choose from.
    fn counting(&self) -> impl DoubleEndedIterator<Item = &SnapshotRecord> {
        let own = |snapshot: &&SnapshotRecord| self.own.is_none_or(|own| *own == snapshot.session);
        self.snapshots().filter(|snapshot| snapshot.counts()).filter(own)
    }

    fn back(&self, count: u64, text: &str) -> Result<&SnapshotRecord> {
        let found = usize::try_from(count).ok().and_then(|count| self.counting().rev().nth(count));
        found.ok_or_else(|| {
            let total = self.counting().count();
            not_found(if total == 0 && self.snapshots().next().is_some() {
                format!("{text} names nothing: there are only snapshots that a restore or a branch took for itself, or of other sessions; name one by its id")
            } else if total == 0 {
                format!("{text} names nothing: there are no snapshots yet")
            } else {
                let passed_over = self.snapshots().filter(|snapshot| !snapshot.counts()).count();
                let others = self.snapshots().count() - total - passed_over;
                let beside = [(passed_over, "that a restore or a branch took for itself"), (others, "of other sessions")];
                format!("{text} names nothing: {}", only(total, "snapshot", &beside))
            })
        })
    }

    fn moments(&self) -> impl DoubleEndedIterator<Item = &Moment> {
        self.state.moments.iter().filter(|moment| self.in_scope(&moment.session))
    }

    fn prompt(&self, count: u64, text: &str) -> Result<&Moment> {
        let own = |moment: &&Moment| self.own.is_none_or(|own| *own == moment.session);
        // What was gone back behind is no part of the conversation any more, and what nobody typed is part of what was done for the prompt before.
        let is_prompt =
            |moment: &&Moment| moment.record.is_persons_prompt() && !self.state.rewound.contains(&moment.record.id);
        let prompts = || self.moments().filter(own).filter(is_prompt);
        let back = usize::try_from(count - 1).ok();
        back.and_then(|back| prompts().rev().nth(back)).ok_or_else(|| {
            let left = self.moments().filter(own).filter(|moment| moment.record.is_persons_prompt()).count();
            match (prompts().count(), left) {
                (0, 0) => not_found(format!("{text} names nothing: there are no prompts yet")).with_hint(
                    "an agent's hooks have its prompts noted: `ah agent hooks status` says whether they are there; `ah timeline` shows what there is",
                ),
                (0, _) => not_found(format!("{text} names nothing: all prompts were rewound; name one by its id"))
                    .with_hint("`ah timeline` shows their ids"),
                (count, all) => {
                    let rewound = [(all - count, "rewound")];
                    let error = not_found(format!("{text} names nothing: {}", only(count, "prompt", &rewound)));
                    if all > count { error.with_hint("`ah timeline` shows the ids of those, too") } else { error }
                }
            }
        })
    }

    /// What shows the workspace as it was at a place where no snapshot was taken.
    fn before(&self, seq: u64) -> Before<'_> {
        let taken = self.counting().rev().find(|snapshot| snapshot.seq <= seq);
        PutBack::of(&self.state.events, &self.state.snapshots).before(seq, taken)
    }

    fn by_id(&self, text: &str) -> Option<Named<'_>> {
        let id = SnapshotId::new(text).ok()?;
        let snapshot = self.snapshots().find(|snapshot| snapshot.id == id).map(Named::Snapshot);
        snapshot.or_else(|| self.moments().find(|moment| moment.record.id == id).map(Named::Moment))
    }

    fn by_label(&self, text: &str) -> Option<Named<'_>> {
        let labelled = |snapshot: &&SnapshotRecord| snapshot.label.as_deref() == Some(text);
        let own = self.counting().rev().find(labelled);
        // The one that a restore or a branch took for itself only if there is no other.
        let snapshot = own.or_else(|| self.snapshots().rev().find(labelled));
        let mut labelled = self.moments().rev().filter(|moment| moment.record.label.as_deref() == Some(text));
        let moment = labelled.find(|moment| moment.record.kind == MomentKind::Manual);
        match (snapshot, moment) {
            // A moment's label is on the snapshot that was taken with it, too.
            (Some(snapshot), Some(moment)) if moment.record.snapshot.as_ref() == Some(&snapshot.id) => {
                Some(Named::Moment(moment))
            }
            (Some(snapshot), Some(moment)) if own.is_none() || moment.seq >= snapshot.seq => {
                Some(Named::Moment(moment))
            }
            (None, Some(moment)) => Some(Named::Moment(moment)),
            (snapshot, _) => snapshot.map(Named::Snapshot),
        }
    }

    fn by_program(&self, text: &str) -> Option<Named<'_>> {
        self.moments().rev().find(|moment| is_program(&moment.record, text)).map(Named::Moment)
    }

    /// The moments that snapshots show exactly: the first of each, by snapshot.
    fn shown_from(&self) -> HashMap<&SnapshotId, Timestamp> {
        let mut from = HashMap::new();
        for moment in &self.state.moments {
            if let Some(id) = moment.record.exact() {
                from.entry(id).or_insert(moment.time);
            }
        }
        from
    }

    fn by_time(&self, time: When, text: &str) -> Result<&SnapshotRecord> {
        let wanted = match time {
            When::At(at) => at,
            When::Ago(nanos) => add(self.now, -nanos),
            When::Into(nanos) => {
                let began = self
                    .began
                    .ok_or_else(|| not_found(format!("{text} names nothing: the session has no events yet")))?;
                let wanted = add(began, nanos);
                // Who means `5m-ago` is not given the latest. This second counts to its end, and the clock may have been ahead.
                if wanted.secs > self.counting().map(|snapshot| snapshot.time.secs).fold(self.now.secs, i64::max) {
                    let error = not_found(format!("{text} into the session is still to come"));
                    return Err(error.with_hint(format!("`{text}-ago` counts back from now, and `@` is the latest")));
                }
                wanted
            }
        };
        let shown_from = self.shown_from();
        let from = |snapshot: &SnapshotRecord| {
            shown_from.get(&snapshot.id).map_or(snapshot.time, |&time| time.min(snapshot.time))
        };
        let earlier = self.counting().filter(|snapshot| from(snapshot) <= wanted);
        earlier.max_by_key(|snapshot| (from(snapshot), snapshot.seq)).ok_or_else(|| {
            let passed = self.snapshots().any(|snapshot| !snapshot.counts() && snapshot.time <= wanted);
            let but = if passed { " but for those that restores and branches took for themselves" } else { "" };
            let wanted = (self.named)(wanted);
            let first = self.counting().min_by_key(|snapshot| snapshot.time);
            let first = first.map_or_else(String::new, |first| match (self.named)(first.time) {
                // What tells them apart is not shown.
                time if time == wanted => format!("; {}, the first, was taken a moment after it", first.id),
                time => format!("; the first was taken at {time}"),
            });
            not_found(format!("{text} names nothing: there is no snapshot at or before {wanted}{but}{first}"))
        })
    }

    /// What may have been meant by a name that nothing has.
    fn unknown(&self, text: &str) -> Error {
        let error = not_found(format!("{text:?} is no snapshot's id, label or time here"));
        let elsewhere = || self.only.and_then(|_| Resolver { only: None, ..*self }.resolve(text).ok());
        let labels = || {
            let of_moments = self.moments().filter(|moment| moment.record.kind == MomentKind::Manual);
            let of_moments = of_moments.filter_map(|moment| moment.record.label.as_deref());
            self.snapshots().filter_map(|snapshot| snapshot.label.as_deref()).chain(of_moments)
        };
        let alike = |label: &str| strsim::jaro_winkler(&label.to_lowercase(), &text.to_lowercase());
        let near = labels().map(|label| (alike(label), label)).filter(|(alike, _)| *alike >= ALIKE);
        let near = near.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, label)| shell(label.as_ref()));
        if let Some(snapshot) = elsewhere() {
            error.with_hint(format!(
                "it is in another session: `--session {}`",
                shell(snapshot.session.as_str().as_ref())
            ))
        } else if let Some(near) = near {
            error.with_hint(format!("did you mean {near}? `ah agent fs snapshots` lists what there is"))
        } else if text.starts_with(|first: char| first.is_ascii_digit()) {
            error.with_hint("times are written like 5m-ago, 2h-ago, '2026-01-31 14:30:00', or 12.5s into the session; `ah agent fs snapshots` lists what there is")
        } else {
            error
        }
    }

    fn by_prefix(&self, text: &str) -> Result<Named<'_>> {
        let unknown = || self.unknown(text);
        if !looks_like_id(text) {
            return Err(unknown());
        }
        let mut found: BTreeMap<&str, Named<'_>> = BTreeMap::new();
        for snapshot in self.snapshots().filter(|snapshot| snapshot.id.as_str().starts_with(text)) {
            found.insert(snapshot.id.as_str(), Named::Snapshot(snapshot));
        }
        for moment in self.moments().filter(|moment| moment.record.id.as_str().starts_with(text)) {
            found.entry(moment.record.id.as_str()).or_insert(Named::Moment(moment));
        }
        let mut all = found.values();
        match (all.next(), all.next()) {
            (None, _) => Err(unknown()),
            (Some(one), None) => Ok(*one),
            _ => {
                let shown: Vec<String> = found
                    .iter()
                    .take(8)
                    .map(|(id, named)| {
                        let (time, label) = match named {
                            Named::Snapshot(snapshot) => (snapshot.time, &snapshot.label),
                            Named::Moment(moment) => (moment.time, &moment.record.label),
                        };
                        let label = label.as_deref().map_or_else(String::new, |label| format!(" {label:?}"));
                        format!("{id} ({}{label})", (self.named)(time))
                    })
                    .collect();
                let more = if found.len() > 8 { format!(" and {} more", found.len() - 8) } else { String::new() };
                Err(Error::new(
                    ErrorKind::InvalidArgument,
                    format!("{text:?} is ambiguous: {} ids begin so", found.len()),
                )
                .with_hint(format!("say one of {}{more}", shown.join(", "))))
            }
        }
    }
}

/// Whether `text` is a moment's label, or the command in it of one that failed.
fn is_program(record: &MomentRecord, text: &str) -> bool {
    let is_command = |label: &str| record.kind == MomentKind::Shell && moments::command_of(label) == text;
    record.label.as_deref().is_some_and(|label| label == text || is_command(label))
}

/// What a REF names before it is known which snapshot that means.
#[derive(Clone, Copy)]
enum Named<'a> {
    Snapshot(&'a SnapshotRecord),
    Moment(&'a Moment),
}

/// How many there are, and how many beside that do not count.
fn only(count: usize, what: &str, beside: &[(usize, &str)]) -> String {
    let (are, many) = if count == 1 { ("is", "") } else { ("are", "s") };
    let beside: Vec<String> =
        beside.iter().filter(|(count, _)| *count > 0).map(|(count, which)| format!("{count} {which}")).collect();
    let beside = if beside.is_empty() { String::new() } else { format!(", beside {}", beside.join(" and ")) };
    format!("there {are} only {count} {what}{many}{beside}")
}

fn not_found(message: String) -> Error {
    Error::new(ErrorKind::NotFound, message).with_hint("ah agent fs snapshots")
}

fn add(time: Timestamp, nanos: i128) -> Timestamp {
    const SECOND: i128 = 1_000_000_000;
    let sum = time.as_nanos() + nanos;
    let clamp = if sum < 0 { i64::MIN } else { i64::MAX };
    Timestamp {
        secs: i64::try_from(sum.div_euclid(SECOND)).unwrap_or(clamp),
        nanos: u32::try_from(sum.rem_euclid(SECOND)).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests;
