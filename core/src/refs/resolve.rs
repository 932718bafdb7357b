//! What a REF names among what there is.
//!
//! In order of precedence: `@…`; a full snapshot or moment id; a label (the newest that bears it); a time (the nearest snapshot at or
//! before it); an unambiguous prefix of an id. `@…` and times pass over snapshots that
//! a restore or a branch took for itself; ids and labels do not.

use std::collections::BTreeMap;

use ah_plugin_api::{Error, ErrorKind, Result, SnapshotId, Timestamp};

use crate::ids::{SessionName, looks_like_id};
use crate::open::when;
use crate::record::SnapshotRecord;
use crate::refs::parse::{Parsed, When, parse};
use crate::state::State;
use crate::timeline::EventBody;

/// Everything that the meaning of a REF depends on.
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
}

impl Resolver<'_> {
    /// The snapshot that `text` names.
    pub(crate) fn resolve(&self, text: &str) -> Result<SnapshotRecord> {
        let found = match parse(text)? {
            Parsed::Back(count) => self.back(count, text)?,
            Parsed::Prompt(count) => self.prompt(count, text)?,
            Parsed::Text { time } => {
                if let Some(found) = self.by_id(text).or_else(|| self.by_label(text)) {
                    found
                } else if let Some(time) = time.or_else(|| (self.local)(text).map(When::At)) {
                    self.by_time(time, text)?
                } else {
                    self.by_prefix(text)?
                }
            }
        };
        Ok(found.clone())
    }

    fn in_scope(&self, session: &SessionName) -> bool {
        self.only.is_none_or(|only| only == session)
    }

    fn snapshots(&self) -> impl DoubleEndedIterator<Item = &SnapshotRecord> {
        self.state.snapshots.iter().filter(|snapshot| self.in_scope(&snapshot.session))
    }

    /// What `@…` and times choose from.
    fn moments(&self) -> impl DoubleEndedIterator<Item = &SnapshotRecord> {
        let own = |snapshot: &&SnapshotRecord| self.own.is_none_or(|own| *own == snapshot.session);
        self.snapshots().filter(|snapshot| snapshot.counts()).filter(own)
    }

    fn back(&self, count: u64, text: &str) -> Result<&SnapshotRecord> {
        let found = usize::try_from(count).ok().and_then(|count| self.moments().rev().nth(count));
        found.ok_or_else(|| {
            let total = self.moments().count();
            not_found(if total == 0 {
                format!("{text} names nothing: there are no snapshots yet")
            } else {
                format!("{text} names nothing: there are only {total} snapshots")
            })
        })
    }

    fn prompt(&self, count: u64, text: &str) -> Result<&SnapshotRecord> {
        let mut left = count;
        for event in self.state.events.iter().rev() {
            let EventBody::Moment { kind, snapshot, .. } = &event.body else { continue };
            let own = self.own.or(self.only).is_none_or(|own| *own == event.session);
            if kind != "prompt" || !own {
                continue;
            }
            left -= 1;
            if left == 0 {
                let shown = snapshot.as_ref().and_then(|id| self.state.snapshot(id));
                return shown.or_else(|| self.before(event.seq)).ok_or_else(|| {
                    not_found(format!("{text} names nothing: there is no snapshot before that prompt"))
                });
            }
        }
        Err(not_found(format!("{text} names nothing: there are only {} prompts", count - left)))
    }

    fn before(&self, seq: u64) -> Option<&SnapshotRecord> {
        self.moments().rev().find(|snapshot| snapshot.seq <= seq)
    }

    fn by_id(&self, text: &str) -> Option<&SnapshotRecord> {
        let id = SnapshotId::new(text).ok()?;
        if let Some(found) = self.snapshots().find(|snapshot| snapshot.id == id) {
            return Some(found);
        }
        self.state.events.iter().filter(|event| self.in_scope(&event.session)).find_map(|event| match &event.body {
            EventBody::Moment { id: moment, snapshot, .. } if *moment == id => {
                let shown = snapshot.as_ref().and_then(|id| self.state.snapshot(id));
                shown.or_else(|| self.before(event.seq))
            }
            _ => None,
        })
    }

    fn by_label(&self, text: &str) -> Option<&SnapshotRecord> {
        let own = self.moments().rev().find(|snapshot| snapshot.label.as_deref() == Some(text));
        own.or_else(|| self.snapshots().rev().find(|snapshot| snapshot.label.as_deref() == Some(text)))
    }

    fn by_time(&self, time: When, text: &str) -> Result<&SnapshotRecord> {
        let wanted = match time {
            When::At(at) => at,
            When::Ago(nanos) => add(self.now, -nanos),
            When::Into(nanos) => {
                let began = self
                    .began
                    .ok_or_else(|| not_found(format!("{text} names nothing: the session has no events yet")))?;
                add(began, nanos)
            }
        };
        let earlier = self.moments().filter(|snapshot| snapshot.time <= wanted);
        earlier.max_by_key(|snapshot| (snapshot.time, snapshot.seq)).ok_or_else(|| {
            let first = self.moments().map(|snapshot| snapshot.time).min();
            let first = first.map_or_else(String::new, |first| format!("; the first was taken at {}", when(first)));
            not_found(format!("{text} names nothing: there is no snapshot at or before {}{first}", when(wanted)))
        })
    }

    fn by_prefix(&self, text: &str) -> Result<&SnapshotRecord> {
        let unknown = || not_found(format!("{text:?} is no snapshot's id, label or time here"));
        if !looks_like_id(text) {
            return Err(unknown());
        }
        let mut found: BTreeMap<&str, Option<&SnapshotRecord>> = BTreeMap::new();
        for snapshot in self.snapshots().filter(|snapshot| snapshot.id.as_str().starts_with(text)) {
            found.insert(snapshot.id.as_str(), Some(snapshot));
        }
        for event in self.state.events.iter().filter(|event| self.in_scope(&event.session)) {
            if let EventBody::Moment { id, .. } = &event.body
                && id.as_str().starts_with(text)
            {
                found.entry(id.as_str()).or_insert_with(|| self.by_id(id.as_str()));
            }
        }
        let mut all = found.iter();
        match (all.next(), all.next()) {
            (None, _) => Err(unknown()),
            (Some((_, one)), None) => one.ok_or_else(unknown),
            _ => {
                let shown: Vec<String> = found
                    .iter()
                    .take(8)
                    .map(|(id, snapshot)| match snapshot {
                        Some(snapshot) => {
                            let label =
                                snapshot.label.as_deref().map_or_else(String::new, |label| format!(" {label:?}"));
                            format!("{id} ({}{label})", when(snapshot.time))
                        }
                        None => (*id).to_owned(),
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

fn not_found(message: String) -> Error {
    Error::new(ErrorKind::NotFound, message).with_hint("ah agent fs snapshots")
}

fn add(time: Timestamp, nanos: i128) -> Timestamp {
    const SECOND: i128 = 1_000_000_000;
    let sum = i128::from(time.secs) * SECOND + i128::from(time.nanos) + nanos;
    let clamp = if sum < 0 { i64::MIN } else { i64::MAX };
    Timestamp {
        secs: i64::try_from(sum.div_euclid(SECOND)).unwrap_or(clamp),
        nanos: u32::try_from(sum.rem_euclid(SECOND)).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::Resolver;
    use crate::ids::SessionName;
    use crate::record::{SnapshotKind, SnapshotRecord};
    use crate::state::State;
    use crate::timeline::{Event, EventBody, TimelineReport};
    use ah_plugin_api::{Durability, ErrorKind, ProviderName, Reference, SnapshotId, Timestamp};
    use proptest::prelude::{any, proptest};

    fn at(secs: i64) -> Timestamp {
        Timestamp { secs: 1_000_000 + secs, nanos: 0 }
    }

    fn record(id: &str, secs: i64, label: Option<&str>, kind: SnapshotKind, session: &str, seq: u64) -> Event {
        let session = SessionName::new(session).unwrap();
        let snapshot = SnapshotRecord {
            id: SnapshotId::new(id).unwrap(),
            session: session.clone(),
            seq,
            time: at(secs),
            kind,
            label: label.map(str::to_owned),
            kept: false,
            provider: ProviderName::new("fake").unwrap(),
            reference: Reference::new(id).unwrap(),
            durability: Durability::Durable,
            tree: None,
            entries: None,
            omitted_total: 0,
            repository: None,
            pins: None,
            equal_to: None,
            attributes: std::collections::BTreeMap::new(),
        };
        Event { seq, time: at(secs), session, body: EventBody::Snapshot { snapshot: Box::new(snapshot) } }
    }

    fn state() -> State {
        let manual = SnapshotKind::Manual;
        let prompt = |id: &str, seq, secs| Event {
            seq,
            time: at(secs),
            session: SessionName::main(),
            body: EventBody::Moment {
                id: SnapshotId::new(id).unwrap(),
                kind: "prompt".into(),
                label: None,
                snapshot: None,
            },
        };
        let events = vec![
            record("kkkkkkkkkkkk", 0, Some("start"), manual, "main", 1),
            prompt("ppppkkkkkkkk", 2, 5),
            record("kkkkzzzzzzzz", 10, Some("5m-ago"), manual, "main", 3),
            record("mmmmmmmmmmmm", 20, Some("start"), manual, "agent", 4),
            prompt("ppppzzzzzzzz", 5, 25),
            record("ssssssssssss", 30, None, SnapshotKind::Safety, "main", 6),
            record("tttttttttttt", 35, Some("branch b"), SnapshotKind::Branch, "main", 7),
        ];
        State::of(TimelineReport { events, faults: Vec::new() })
    }

    fn ask(text: &str, only: Option<&str>, own: Option<&str>) -> Result<String, ErrorKind> {
        let state = state();
        let (only, own) = (only.map(|s| SessionName::new(s).unwrap()), own.map(|s| SessionName::new(s).unwrap()));
        let resolver = Resolver {
            state: &state,
            only: only.as_ref(),
            own: own.as_ref(),
            began: Some(at(0)),
            now: at(40),
            local: |_| None,
        };
        resolver.resolve(text).map(|snapshot| snapshot.id.to_string()).map_err(|e| {
            assert!(e.hint.is_some(), "{e:?}");
            e.kind
        })
    }

    #[test]
    fn every_form_resolves() {
        for (text, id) in [
            ("@", "mmmmmmmmmmmm"),
            ("@{1}", "kkkkzzzzzzzz"),
            ("@prompt", "mmmmmmmmmmmm"),
            ("@prompt{2}", "kkkkkkkkkkkk"),
            ("kkkkkkkkkkkk", "kkkkkkkkkkkk"),
            ("ppppkkkkkkkk", "kkkkkkkkkkkk"),
            ("ssssssssssss", "ssssssssssss"),
            ("branch b", "tttttttttttt"),
            ("start", "mmmmmmmmmmmm"),
            ("5m-ago", "kkkkzzzzzzzz"),
            ("-5s", "mmmmmmmmmmmm"),
            ("-25s", "kkkkzzzzzzzz"),
            ("10s", "kkkkzzzzzzzz"),
            ("9.9s", "kkkkkkkkkkkk"),
            ("1970-01-12T13:46:45Z", "kkkkkkkkkkkk"),
            ("kkkkz", "kkkkzzzzzzzz"),
            ("mm", "mmmmmmmmmmmm"),
            ("ppppz", "mmmmmmmmmmmm"),
        ] {
            assert_eq!(ask(text, None, None).as_deref(), Ok(id), "{text}");
        }
    }

    #[test]
    fn what_names_nothing_or_too_much_says_so() {
        for text in ["@{3}", "@prompt{3}", "zzz", "nonsense", "-50s", "1960-01-01T00:00:00Z"] {
            assert_eq!(ask(text, None, None), Err(ErrorKind::NotFound), "{text}");
        }
        for text in ["kkkk", "k", "pppp", "@{x}", ""] {
            assert_eq!(ask(text, None, None), Err(ErrorKind::InvalidArgument), "{text}");
        }
    }

    #[test]
    fn sessions_limit_what_is_meant() {
        assert_eq!(ask("@", Some("main"), None).as_deref(), Ok("kkkkzzzzzzzz"));
        assert_eq!(ask("@", None, Some("agent")).as_deref(), Ok("mmmmmmmmmmmm"));
        assert_eq!(ask("kkkkz", None, Some("agent")).as_deref(), Ok("kkkkzzzzzzzz"));
        assert_eq!(ask("kkkkz", Some("agent"), None), Err(ErrorKind::NotFound));
        assert_eq!(ask("@{1}", None, Some("agent")), Err(ErrorKind::NotFound));
    }

    proptest! {
        #[test]
        fn any_text_is_no_panic(text in any::<String>()) {
            let state = state();
            let _ = Resolver { state: &state, only: None, own: None, began: Some(at(0)), now: at(40), local: |_| None }.resolve(&text);
        }

        #[test]
        fn any_number_of_seconds_is_no_panic(text in "-?[0-9]{0,30}(\\.[0-9]{0,12})?[smhdw](-ago)?") {
            let state = state();
            let extreme = Timestamp { secs: i64::MIN, nanos: 0 };
            let _ = Resolver { state: &state, only: None, own: None, began: Some(extreme), now: extreme, local: |_| None }.resolve(&text);
        }
    }
}
