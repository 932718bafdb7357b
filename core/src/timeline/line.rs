//! One event as one line of text.
//!
//! ```text
//! {"seq":7,"time":"2026-03-01T12:00:00.5Z","type":"remove","snapshots":["kkkkmmmmpppp"],"by":"rm","crc":"0a1b2c3d"}
//! ```
//!
//! `crc` is last: the CRC-32 (IEEE, lower-case hex, eight digits) of everything before `,"crc"`. Paths and times are written as
//! `text` says. A line ends with one newline and has none inside.

use std::borrow::Cow;

use ah_plugin_api::{Error, ErrorKind, Result, Timestamp};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::ids::SessionName;
use crate::record::SnapshotRecord;
use crate::text::{format_time, parse_time};
use crate::timeline::event::{Event, EventBody};

/// `,"crc":"01234567"}`
const TAIL: usize = 18;

/// The highest number of an event: no workspace comes that far, and a line that says more is damaged.
pub(super) const MAX_SEQ: u64 = i64::MAX.unsigned_abs();

/// Writes an event as a line, newline included.
pub(super) fn encode(event: &Event) -> Result<Vec<u8>> {
    let internal = |e: &serde_json::Error| Error::new(ErrorKind::Internal, "an event cannot be written").with_cause(e);
    let mut fields = Map::new();
    fields.insert("seq".to_owned(), Value::from(event.seq));
    fields.insert("time".to_owned(), Value::from(format_time(event.time)));
    match serde_json::to_value(&event.body).map_err(|e| internal(&e))? {
        Value::Object(body) => fields.extend(body),
        _ => return Err(Error::new(ErrorKind::Internal, "an event is not an object")),
    }
    fields.remove("crc");
    Ok(seal(serde_json::to_vec(&Value::Object(fields)).map_err(|e| internal(&e))?))
}

/// Puts the checksum into an object that has fields, and a newline after it.
pub(super) fn seal(mut object: Vec<u8>) -> Vec<u8> {
    object.pop();
    let crc = crc32fast::hash(&object);
    object.extend_from_slice(format!(",\"crc\":\"{crc:08x}\"}}\n").as_bytes());
    object
}

/// What every event has; read first, as it costs little.
#[derive(Deserialize)]
struct Common<'a> {
    seq: u64,
    #[serde(borrow)]
    time: Cow<'a, str>,
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
}

/// A snapshot's line, the longest there are, in one go.
#[derive(Deserialize)]
struct OfSnapshot<'a> {
    seq: u64,
    #[serde(borrow)]
    time: Cow<'a, str>,
    snapshot: Box<SnapshotRecord>,
}

/// Reads a line without its newline; the error is a reason for people.
///
/// What a long timeline consists of is read straight into its type; the rest the way that keeps what is not known.
pub(crate) fn decode(line: &[u8], session: &SessionName) -> Result<Event, String> {
    let event = decode_sound(line, session)?;
    if event.seq <= MAX_SEQ { Ok(event) } else { Err("its number is too high".to_owned()) }
}

fn decode_sound(line: &[u8], session: &SessionName) -> Result<Event, String> {
    let front = sound(line)?;
    // Members are written in order, so that this mostly is the last one.
    if front.ends_with(b",\"type\":\"snapshot\"")
        && let Ok(OfSnapshot { seq, time, mut snapshot }) = serde_json::from_slice(line)
        && let Some(time) = parse_time(&time)
    {
        snapshot.seq = seq;
        snapshot.session = session.clone();
        return Ok(Event { seq, time, session: session.clone(), body: EventBody::Snapshot { snapshot } });
    }
    let common = serde_json::from_slice::<Common<'_>>(line).ok();
    let common = common.and_then(|common| Some((parse_time(&common.time)?, common)));
    let Some((time, Common { seq, kind, .. })) = common else { return decode_any(line, session) };
    let body = match &*kind {
        "moment" => serde_json::from_slice(line).ok().map(EventBody::Moment),
        "moment-update" => serde_json::from_slice(line).ok().map(EventBody::MomentUpdate),
        _ => None,
    };
    match body {
        Some(body) => Ok(Event { seq, time, session: session.clone(), body }),
        // It says what is wrong, too.
        None => decode_any(line, session),
    }
}

fn decode_any(line: &[u8], session: &SessionName) -> Result<Event, String> {
    let mut fields = checked(line)?;
    let seq = fields.remove("seq").and_then(|v| v.as_u64()).ok_or("it has no number")?;
    let time = fields.remove("time").as_ref().and_then(Value::as_str).and_then(parse_time).ok_or("it has no time")?;
    let mut body = EventBody::deserialize(Value::Object(fields)).map_err(|e| e.to_string())?;
    match &mut body {
        EventBody::Other(fields) => {
            let kind = fields.get("type").and_then(Value::as_str).unwrap_or_default();
            if kind.is_empty() || EventBody::KNOWN.contains(&kind) {
                return Err(format!("an event of type {kind:?} does not look like that"));
            }
        }
        EventBody::Snapshot { snapshot } | EventBody::Recovered { snapshot, .. } => {
            snapshot.seq = seq;
            snapshot.session = session.clone();
        }
        _ => {}
    }
    Ok(Event { seq, time, session: session.clone(), body })
}

/// The number of a line, if the line is sound.
pub(super) fn seq_of(line: &[u8]) -> Option<u64> {
    checked(line).ok()?.get("seq")?.as_u64().filter(|seq| *seq <= MAX_SEQ)
}

/// The time of a line, if the line is sound.
pub(super) fn time_of(line: &[u8]) -> Option<Timestamp> {
    parse_time(checked(line).ok()?.get("time")?.as_str()?)
}

fn checked(line: &[u8]) -> Result<Map<String, Value>, String> {
    sound(line)?;
    let mut fields: Map<String, Value> = serde_json::from_slice(line).map_err(|e| e.to_string())?;
    fields.remove("crc");
    Ok(fields)
}

/// What the checksum is of, if it fits.
pub(super) fn sound(line: &[u8]) -> Result<&[u8], String> {
    let (front, tail) = line.split_at_checked(line.len().wrapping_sub(TAIL)).ok_or("it is too short")?;
    let crc = tail.strip_prefix(b",\"crc\":\"").and_then(|t| t.strip_suffix(b"\"}")).ok_or("it has no checksum")?;
    let crc =
        std::str::from_utf8(crc).ok().and_then(|crc| u32::from_str_radix(crc, 16).ok()).ok_or("it has no checksum")?;
    if crc != crc32fast::hash(front) {
        return Err("its checksum does not fit".to_owned());
    }
    Ok(front)
}

#[cfg(test)]
mod tests {
    use super::{Event, EventBody, SessionName, Timestamp, decode, encode, seq_of};
    use crate::moments::{MomentKind, MomentRecord, MomentUpdate};
    use crate::timeline::event::WorkspaceChange;
    use ah_plugin_api::SnapshotId;
    use proptest::prelude::{any, proptest};
    use std::os::unix::ffi::OsStrExt;
    use std::path::PathBuf;

    fn event(body: EventBody) -> Event {
        let time = Timestamp { secs: 1_772_366_400, nanos: 5_000_001 };
        Event { seq: 7, time, session: SessionName::main(), body }
    }

    fn back(event: &Event) -> Event {
        let line = encode(event).unwrap();
        assert_eq!(line.iter().filter(|&&b| b == b'\n').count(), 1);
        assert_eq!(seq_of(&line[..line.len() - 1]), Some(event.seq));
        decode(&line[..line.len() - 1], &event.session).unwrap()
    }

    #[test]
    fn events_come_back() {
        let id = SnapshotId::new("kkkkmmmmpppp").unwrap();
        let odd = PathBuf::from(std::ffi::OsStr::from_bytes(b"/a\xff\n"));
        for body in [
            EventBody::Edit { snapshot: id.clone(), label: Some("a\n\"b\"".into()), kept: None },
            EventBody::Remove { snapshots: vec![id], by: "rm".into() },
            EventBody::Workspace { change: WorkspaceChange::Moved, from: odd, to: "/b".into() },
        ] {
            let event = event(body);
            assert_eq!(back(&event), event);
        }
    }

    #[test]
    fn what_is_read_straight_reads_as_the_rest() {
        let moment = SnapshotId::new("kkkkmmmmpppp").unwrap();
        let mut record = MomentRecord::new(moment.clone(), MomentKind::Tool);
        record.label = Some("x\",\"type\":\"snapshot".into());
        let update = MomentUpdate { inexact: true, reason: Some("y".into()), ..MomentUpdate::new(moment) };
        for body in [EventBody::Moment(Box::new(record)), EventBody::MomentUpdate(Box::new(update))] {
            let event = event(body);
            let line = encode(&event).unwrap();
            let line = &line[..line.len() - 1];
            assert_eq!(back(&event), event);
            assert_eq!(super::decode_any(line, &event.session).unwrap(), event);
        }
        let text = r#"{"seq":3,"snapshot":{"durability":"instant","id":"kkkkmmmmpppp","kept":false,"kind":"auto","provider":"git","reference":"r","time":"2026-01-01T00:00:00Z"},"time":"2026-01-01T00:00:01Z","type":"snapshot""#;
        let line = format!("{text},\"crc\":\"{:08x}\"}}", crc32fast::hash(text.as_bytes()));
        let session = SessionName::new("s").unwrap();
        let read = decode(line.as_bytes(), &session).unwrap();
        assert_eq!(read, super::decode_any(line.as_bytes(), &session).unwrap());
        assert!(
            matches!(read.body, EventBody::Snapshot { snapshot } if snapshot.seq == 3 && snapshot.session == session)
        );
    }

    #[test]
    fn unknown_events_are_kept_whole() {
        let fields = serde_json::json!({"type": "teleported", "where": [1, {"x": null}]});
        let event = event(EventBody::Other(fields.as_object().unwrap().clone()));
        assert_eq!(back(&event), event);
        let fields = serde_json::json!({"type": "remove", "snapshots": 3});
        let bad =
            super::encode(&Event { body: EventBody::Other(fields.as_object().unwrap().clone()), ..event }).unwrap();
        assert!(decode(&bad[..bad.len() - 1], &SessionName::main()).is_err());
    }

    #[test]
    fn every_flipped_byte_is_noticed() {
        let line = encode(&event(EventBody::Repaired { bytes: 5 })).unwrap();
        let line = &line[..line.len() - 1];
        for at in 0..line.len() {
            let mut bad = line.to_vec();
            bad[at] ^= 1;
            let read = decode(&bad, &SessionName::main());
            // Only a checksum's own digit in the other case would be the same number; a flipped lowest bit is none.
            assert!(read.is_err(), "byte {at}");
            assert!(decode(&line[..at], &SessionName::main()).is_err());
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_no_panic(bytes in any::<Vec<u8>>()) {
            let _ = decode(&bytes, &SessionName::main());
        }

        #[test]
        fn any_json_is_no_panic(text in "\\{\"(type|seq|time|snapshot)\":(\"snapshot\"|1|\\{\\})(,\"(type|seq|time)\":(\"edit\"|-1|1e99|\"x\"))*") {
            let crc = crc32fast::hash(text.as_bytes());
            let _ = decode(format!("{text},\"crc\":\"{crc:08x}\"}}").as_bytes(), &SessionName::main());
        }
    }
}
