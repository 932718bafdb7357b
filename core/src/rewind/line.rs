//! Which moments of a session are on the line that it goes on from, and which it has left behind.
//!
//! A session's moments form a tree: before each comes the one after which it was made. Going back to a prompt goes on from the moment before that
//! prompt, wherever it is in the tree; to any other moment, from that one. Whoever then goes on with a conversation that was left goes on from its
//! own last moment. The line is the chain of moments from the last one upwards. `@prompt` counts on it, so that going back twice goes back further.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;

use ah_plugin_api::SnapshotId;

use crate::ids::SessionName;
use crate::moments::{Moment, MomentKind, conversation};
use crate::rewind::Rewind;
use crate::timeline::{Event, EventBody};

/// What is gone back with: files and conversation may have gone back apart from each other.
#[derive(Debug, Clone, Copy)]
pub(crate) enum With {
    /// Either.
    Any,
    /// The conversation.
    Conversation,
    /// The files.
    Files,
}

impl With {
    /// Whether a going back counts. One of files that was taken back (`undo`) moved them to nowhere else.
    fn counts(self, rewind: &Rewind, events: &[Event]) -> bool {
        let of_files = || rewind.restore.as_deref().is_none_or(|restore| !is_undone(events.iter(), restore));
        match self {
            Self::Any => rewind.method.is_some() || of_files(),
            Self::Conversation => rewind.method.is_some(),
            Self::Files => rewind.snapshot.is_some() && of_files(),
        }
    }
}

/// The moments that sessions have left behind; `moments` are those of `events`, all of them.
pub(crate) fn left_behind(events: &[Event], moments: &[Moment], with: With) -> BTreeSet<SnapshotId> {
    let tree = Tree::of(events, moments, with);
    let on: BTreeSet<usize> = tree.lines.values().flat_map(|line| tree.up_from(line.last)).collect();
    let left = moments.iter().enumerate().filter(|(at, _)| !on.contains(at));
    left.map(|(_, moment)| moment.record.id.clone()).collect()
}

/// The prompts before a moment in its conversation, in order, whether that is on the line or was left.
pub(crate) fn prompts_before<'a>(events: &[Event], moments: &'a [Moment], moment: &Moment) -> Vec<&'a Moment> {
    let before = up_from(events, moments, moment, With::Conversation).into_iter().skip(1);
    let mut prompts: Vec<&Moment> = before.filter(|moment| is_prompt(moment)).collect();
    prompts.reverse();
    prompts
}

/// A moment and those before it on its line, backwards.
pub(crate) fn up_from<'a>(events: &[Event], moments: &'a [Moment], moment: &Moment, with: With) -> Vec<&'a Moment> {
    let own = moments.iter().position(|other| other.record.id == moment.record.id);
    Tree::of(events, moments, with).up_from(own).map(|at| &moments[at]).collect()
}

/// The moments, by their places, with what comes before each.
struct Tree<'a> {
    before: Vec<Option<usize>>,
    lines: HashMap<&'a SessionName, Line<'a>>,
}

/// The line that a session is on.
#[derive(Default)]
struct Line<'a> {
    /// Its last moment.
    last: Option<usize>,
    /// The conversation that it goes on with, as far as that is known by its file.
    conversation: Option<&'a OsStr>,
    /// The conversations that were left, each with its last moment.
    left: HashMap<&'a OsStr, Option<usize>>,
}

impl Line<'_> {
    fn leave(&mut self) {
        if let Some(conversation) = self.conversation.take() {
            self.left.insert(conversation, self.last);
        }
    }
}

impl<'a> Tree<'a> {
    fn of(events: &'a [Event], moments: &'a [Moment], with: With) -> Self {
        let mut tree = Self { before: Vec::with_capacity(moments.len()), lines: HashMap::new() };
        for event in events {
            match &event.body {
                EventBody::Moment(_) => tree.add(&moments[tree.before.len()]),
                EventBody::Rewind(rewind) if with.counts(rewind, events) => tree.go_back(event, rewind, moments),
                _ => {}
            }
        }
        tree
    }

    fn add(&mut self, moment: &'a Moment) {
        let at = self.before.len();
        let line = self.lines.entry(&moment.session).or_default();
        let conversation = moment.record.transcript.as_ref().map(|place| conversation(&place.file));
        let left = conversation.filter(|own| line.conversation != Some(own)).and_then(|own| line.left.get_mut(own));
        let Some(left) = left else {
            self.before.push(line.last);
            line.last = Some(at);
            line.conversation = conversation.or(line.conversation);
            return;
        };
        self.before.push(left.replace(at));
        // An agent that was left running may still end its turn, or end, and what it was told meanwhile may be heard of only then: it is not gone on with for that.
        let goes_on = matches!(moment.record.kind, MomentKind::SessionStart | MomentKind::Prompt);
        if goes_on && !moment.record.meanwhile {
            line.leave();
            (line.last, line.conversation) = (Some(at), conversation);
        }
    }

    fn go_back(&mut self, event: &'a Event, rewind: &'a Rewind, moments: &[Moment]) {
        let line = self.lines.entry(&event.session).or_default();
        if rewind.method.is_some() {
            line.leave();
            line.conversation = rewind.transcript.as_deref().map(conversation);
        }
        // Where the moment's own event cannot be read: back along the line to where it stood.
        let to = moments[..self.before.len()].iter().position(|moment| moment.record.id == rewind.moment);
        let from = to.or(line.last);
        let stays =
            |at: &usize| moments[*at].seq < rewind.to || moments[*at].seq == rewind.to && !is_prompt(&moments[*at]);
        let last = self.up_from(from).find(stays);
        self.lines.entry(&event.session).or_default().last = last;
    }

    /// The moment and all that come before it, backwards.
    fn up_from(&self, last: Option<usize>) -> impl Iterator<Item = usize> {
        std::iter::successors(last, |at| self.before[*at])
    }
}

fn is_prompt(moment: &Moment) -> bool {
    moment.record.kind == MomentKind::Prompt
}

/// Whether a restore does not count any more: it was taken back, and that was not.
pub(crate) fn is_undone<'a>(events: impl DoubleEndedIterator<Item = &'a Event> + Clone, restore: &str) -> bool {
    // The last: one that was interrupted is finished by another.
    let undone = events.clone().rev().find_map(|event| match &event.body {
        EventBody::RestoreBegin(begin) if begin.undoes.as_deref() == Some(restore) => Some(begin.restore.as_str()),
        _ => None,
    });
    undone.is_some_and(|undo| !is_undone(events, undo))
}

#[cfg(test)]
mod tests;
