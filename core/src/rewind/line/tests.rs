//! Which line sessions are on, after what befell them.
//!
//! What befell them is told in words: `1:a` a prompt, in the conversation with the file `a`; `1` one of which no place is known; `m1:a` one that was typed meanwhile; `t1:a` a tool, `begin:a` and `end:a`
//! the agent begins and ends; `both<1:b`, `talk<1:b`, `files<1` a going back, with the file of the conversation's copy (none: it is to begin anew);
//! `undo` takes back what changed files last. `other/` before a word: in another session. `a'` is the file `a`, moved to another folder.

use std::path::PathBuf;

use ah_plugin_api::{SnapshotId, Timestamp};

use super::{With, left_behind, prompts_before};
use crate::ids::SessionName;
use crate::moments::{Moment, MomentKind, MomentRecord, TranscriptPosition};
use crate::restore::RestoreBegin;
use crate::rewind::Rewind;
use crate::session::ResumeMethod;
use crate::state;
use crate::timeline::{Event, EventBody};

/// The id of what is called so: letters that ids are made of.
fn id(name: &str) -> SnapshotId {
    let hex: String = format!("{:0>12}", name.bytes().map(|byte| format!("{byte:02x}")).collect::<String>());
    let letters = hex.chars().map(|digit| char::from(b'z' - u8::try_from(digit.to_digit(16).unwrap()).unwrap()));
    SnapshotId::new(letters.collect::<String>()).unwrap()
}

fn moment(word: &str, seq: u64) -> MomentRecord {
    let (name, file) = word.split_once(':').map_or((word, None), |(name, file)| (name, Some(file)));
    let kind = match name {
        "begin" => MomentKind::SessionStart,
        "end" => MomentKind::SessionEnd,
        _ if name.starts_with('t') => MomentKind::Tool,
        _ => MomentKind::Prompt,
    };
    let own =
        if kind == MomentKind::SessionStart || kind == MomentKind::SessionEnd { seq.to_string() } else { name.into() };
    let mut record = MomentRecord::new(id(&own), kind);
    record.prompt = Some(name.to_owned());
    record.meanwhile = name.starts_with('m');
    record.transcript = file.map(|file| TranscriptPosition { file: path(file), line: 1, offset: 1, uuid: None });
    record
}

fn path(file: &str) -> PathBuf {
    match file.strip_suffix('\'') {
        Some(file) => PathBuf::from("/agent/moved").join(file),
        None => PathBuf::from("/agent").join(file),
    }
}

fn rewind(how: &str, to: &str, moments: &[Event], restore: u64) -> Rewind {
    let (to, file) = to.split_once(':').map_or((to, None), |(to, file)| (to, Some(file)));
    let is_it = |event: &&Event| matches!(&event.body, EventBody::Moment(record) if record.id == id(to));
    let (files, talk) = (how != "talk", how != "files");
    Rewind {
        moment: id(to),
        to: moments.iter().find(is_it).unwrap().seq,
        snapshot: files.then(|| id("snap")),
        restore: files.then(|| restore.to_string()),
        method: talk.then_some(if file.is_some() { ResumeMethod::Resume } else { ResumeMethod::Replay }),
        agent_session: file.map(str::to_owned),
        transcript: file.map(path),
        left: None,
    }
}

fn events(flow: &str) -> Vec<Event> {
    let mut events: Vec<Event> = Vec::new();
    let mut last_restore = None;
    for (at, word) in flow.split_whitespace().enumerate() {
        let (session, word) = word.split_once('/').unwrap_or(("own", word));
        let seq = 10 * at as u64;
        let mut add = |seq, body| {
            let session = SessionName::new(session).unwrap();
            events.push(Event { seq, time: Timestamp { secs: 0, nanos: 0 }, session, body });
        };
        let begin = |undoes: Option<String>| {
            let (restore, target, safety) = (seq.to_string(), id("snap"), id("safe"));
            EventBody::RestoreBegin(RestoreBegin { restore, target, safety, undoes, paths: Vec::new(), changes: 1 })
        };
        match word.split_once('<') {
            Some((how, to)) => {
                if how != "talk" {
                    add(seq, begin(None));
                    last_restore = Some(seq.to_string());
                }
                let rewind = rewind(how, to, &events, seq);
                let session = SessionName::new(session).unwrap();
                let (time, body) = (Timestamp { secs: 0, nanos: 0 }, EventBody::Rewind(Box::new(rewind)));
                events.push(Event { seq: seq + 1, time, session, body });
            }
            None if word == "undo" => {
                add(seq, begin(last_restore.take()));
                last_restore = Some(seq.to_string());
            }
            None => add(seq, EventBody::Moment(Box::new(moment(word, seq)))),
        }
    }
    events
}

/// The names of prompts and tools.
fn names<'a>(moments: impl IntoIterator<Item = &'a Moment>) -> String {
    let names = moments.into_iter().filter_map(|moment| moment.record.prompt.as_deref());
    names.filter(|name| !["begin", "end"].contains(name)).collect::<Vec<_>>().join(" ")
}

fn line(flow: &str, with: With) -> String {
    let events = events(flow);
    let (moments, _) = state::moments(&events);
    let left = left_behind(&events, &moments, with);
    names(moments.iter().filter(|moment| !left.contains(&moment.record.id)))
}

#[test]
fn the_line_is_the_one_that_was_gone_on_with() {
    for (flow, expected) in [
        ("", ""),
        ("begin 1 2 3", "1 2 3"),
        ("1:a 2:a 3:a both<3:b", "1 2"),
        ("1:a 2:a 3:a both<3:b both<2:c", "1"),
        ("1:a 2:a 3:a both<3:b both<2:c both<1", ""),
        ("1:a 2:a 3:a both<3:b 4:b both<4:c both<2:d", "1"),
        // Forward again, and from one line to the other.
        ("1:a 2:a 3:a both<2:b both<3:c", "1 2"),
        ("1:a 2:a 3:a both<2:b 4:b 5:b both<3:c", "1 2"),
        ("1:a 2:a 3:a both<2:b 4:b 5:b both<3:c both<5:d", "1 4"),
        ("1:a 2:a 3:a both<2:b 4:b both<3:c 5:c 6:c both<4:d", "1"),
        // On in the conversation that there was, and back from it.
        ("1:a 2:a 3:a both<2:b undo 4:a", "1 2 3 4"),
        ("1:a 2:a 3:a both<2:b undo begin:a", "1 2 3"),
        ("1:a 2:a 3:a both<2:b undo 4:a both<4:c", "1 2 3"),
        ("1:a 2:a 3:a both<2:b undo 4:a both<4:c both<3:d", "1 2"),
        ("1:a 2:a 3:a both<2:b undo 4:a both<4:c 5:c both<5:d both<3:e", "1 2"),
        // To and fro between both; also to a copy in which nothing had been said yet.
        ("1:a 2:a 3:a both<2:b 4:b 5:a 6:b", "1 4 6"),
        ("1:a 2:a 3:a both<2:b 4:b 5:a 6:b 7:a", "1 2 3 5 7"),
        ("1:a 2:a 3:a both<2:b 4:a 5:b", "1 5"),
        ("1:a 2:a 3:a both<3:b both<2:c 4:b", "1 2 4"),
        ("1:a 2:a 3:a both<2:b both<3:c 4:b both<4:d", "1"),
        // The agent that was left running ends its turn, or itself.
        ("1:a 2:a t3:a both<2:b t4:a end:a", "1"),
        ("1:a 2:a t3:a both<2:b t4:a end:a 5:b", "1 5"),
        ("1:a 2:a t3:a both<2:b t4:a end:a 5:a", "1 2 t3 t4 5"),
        // What it had been told meanwhile is heard of only then.
        ("1:a t2:a both<1 m3:a end:a", ""),
        ("1:a t2:a both<1 m3:a end:a 4:b", "4"),
        ("1:a t2:a both<1 m3:a end:a 4:a", "1 t2 m3 4"),
        ("1:a 2:a t3:a both<2:b m4:a end:a 5:b m6:b", "1 5 m6"),
        // To before the first; the agent gives itself an id.
        ("1:a 2:a both<1 3:b", "3"),
        ("1:a 2:a both<1 begin:b 3:b 4:b both<4:c", "3"),
        ("1:a 2:a both<1 3:b 4:a", "1 2 4"),
        ("1:a 2:a both<1 begin:a", "1 2"),
        // To what is no prompt: that stays.
        ("1:a t2:a t3:a 4:a both<t2:b", "1 t2"),
        ("1:a t2:a t3:a 4:a both<t2:b 5:b both<5:c", "1 t2"),
        // Of moments of which no place is known.
        ("1 2 3 both<2 4", "1 4"),
        ("1 2:a 3 both<3:b 4", "1 2 4"),
        ("1 2:a 3 both<2:b 4:a", "1 2 3 4"),
        // A file that changes by itself leaves nothing.
        ("1:a 2:b 3:a", "1 2 3"),
        // A file that is moved is the same conversation: one that is gone on with, and one that was left.
        ("1:a 2:a' 3:a' both<3:b 4:b' both<4:c", "1 2"),
        ("1:a 2:a 3:a both<2:b 4:a' both<4:c", "1 2 3"),
        ("1:a 2:a 3:a both<2:b 4:b' begin:a' 5:a", "1 2 3 5"),
        ("1:a 2:a t3:a both<2:b t4:a' end:a' 5:b'", "1 5"),
        // Two sessions, each on its own line.
        ("1:a other/2:x 3:a other/4:x both<3:b other/5:x", "1 2 4 5"),
        ("1:a other/2:x 3:a other/4:x both<3:b other/both<4:y 5:b other/6:x", "1 2 4 5 6"),
        ("1:a 2:a both<2:b other/3:x other/both<3 4:a", "1 2 4"),
    ] {
        for with in [With::Any, With::Conversation] {
            assert_eq!(line(flow, with), expected, "{with:?}: {flow}");
        }
    }
}

#[test]
fn files_and_conversation_go_back_apart() {
    for (flow, any, conversation, files) in [
        ("1:a 2:a 3:a files<3", "1 2", "1 2 3", "1 2"),
        ("1:a 2:a 3:a files<3 files<2", "1", "1 2 3", "1"),
        ("1:a 2:a 3:a files<3 talk<3:b", "1 2", "1 2", "1 2"),
        ("1:a 2:a 3:a talk<3:b", "1 2", "1 2", "1 2 3"),
        ("1:a 2:a 3:a talk<3:b files<3", "1 2", "1 2", "1 2"),
        ("1:a 2:a 3:a files<3 both<3:b", "1 2", "1 2", "1 2"),
        ("1:a 2:a 3:a files<2 files<3", "1 2", "1 2 3", "1 2"),
        ("1:a 2:a 3:a files<3 4:a", "1 2 4", "1 2 3 4", "1 2 4"),
        ("1:a 2:a 3:a talk<3:b 4:b", "1 2 4", "1 2 4", "1 2 3 4"),
        // What was taken back.
        ("1:a 2:a 3:a files<3 undo", "1 2 3", "1 2 3", "1 2 3"),
        ("1:a 2:a 3:a files<3 undo undo", "1 2", "1 2 3", "1 2"),
        ("1:a 2:a 3:a files<3 files<2 undo", "1 2", "1 2 3", "1 2"),
        ("1:a 2:a 3:a both<2:b undo", "1", "1", "1 2 3"),
        ("1:a 2:a 3:a both<2:b undo 4:a", "1 2 3 4", "1 2 3 4", "1 2 3 4"),
        ("1:a 2:a 3:a both<2:b undo talk<3:c", "1 2", "1 2", "1 2 3"),
    ] {
        for (with, expected) in [(With::Any, any), (With::Conversation, conversation), (With::Files, files)] {
            assert_eq!(line(flow, with), expected, "{with:?}: {flow}");
        }
    }
}

#[test]
fn what_was_said_before_a_moment_is_what_came_before_it_in_its_own_conversation() {
    for (flow, of, expected) in [
        ("1:a 2:a 3:a", "1", ""),
        ("1:a 2:a 3:a", "3", "1 2"),
        ("1:a 2:a t3:a", "t3", "1 2"),
        ("1:a 2:a 3:a both<2:b", "3", "1 2"),
        ("1:a 2:a 3:a both<2:b 4:b", "3", "1 2"),
        ("1:a 2:a 3:a both<2:b 4:b", "4", "1"),
        ("1:a 2:a 3:a both<2:b undo 4:a both<4:c", "3", "1 2"),
        ("1:a 2:a 3:a both<1 4:b", "4", ""),
        ("1:a t2:a both<1 m3:a end:a 4:b", "4", ""),
        ("1:a 2:a 3:a files<2 4:a", "4", "1 2 3"),
    ] {
        let events = events(flow);
        let (moments, _) = state::moments(&events);
        let moment = moments.iter().find(|moment| moment.record.id == id(of)).unwrap();
        assert_eq!(names(prompts_before(&events, &moments, moment)), expected, "{of}: {flow}");
    }
}

#[test]
fn what_cannot_be_read_of_a_timeline_leaves_what_stood_behind_it() {
    let mut events = events("1:a 2:a 3:a 4:a both<3:b 5:b");
    events.remove(2);
    let (moments, _) = state::moments(&events);
    let left = left_behind(&events, &moments, With::Conversation);
    assert_eq!(left.into_iter().collect::<Vec<_>>(), [id("4")]);
}
