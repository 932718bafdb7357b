//! What REFs mean, on timelines made up for it.

use super::Resolver;
use crate::ids::SessionName;
use crate::moments::{MomentKind, MomentRecord, MomentUpdate};
use crate::record::{SnapshotKind, SnapshotRecord};
use crate::state::State;
use crate::text::format_time;
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
        body: EventBody::Moment(Box::new(MomentRecord::new(SnapshotId::new(id).unwrap(), MomentKind::Prompt))),
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
    State::of(TimelineReport { events, ..TimelineReport::default() })
}

/// In no session that has begun, 40 s after all began, far from any time zone.
fn plain(state: &State) -> Resolver<'_> {
    let (local, named) = (|_: &str| None, format_time);
    Resolver { state, only: None, own: None, began: None, now: at(40), local, named }
}

fn ask(text: &str, only: Option<&str>, own: Option<&str>) -> Result<String, ErrorKind> {
    let state = state();
    let (only, own) = (only.map(|s| SessionName::new(s).unwrap()), own.map(|s| SessionName::new(s).unwrap()));
    let resolver = Resolver { only: only.as_ref(), own: own.as_ref(), began: Some(at(0)), ..plain(&state) };
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
fn a_time_into_the_session_that_is_still_to_come_names_nothing() {
    // Now is 40 s into the session.
    assert_eq!(ask("40s", None, None).as_deref(), Ok("mmmmmmmmmmmm"));
    assert_eq!(ask("40.9s", None, None).as_deref(), Ok("mmmmmmmmmmmm"));
    let state = state();
    let resolver = |now| Resolver { began: Some(at(0)), now, ..plain(&state) };
    let error = resolver(at(40)).resolve("5m").unwrap_err();
    assert_eq!(error.kind, ErrorKind::NotFound);
    assert!(error.hint.as_ref().unwrap().contains("`5m-ago`"), "{error:?}");
    assert_eq!(ask("2970-01-12T13:46:45Z", None, None).as_deref(), Ok("mmmmmmmmmmmm"), "the latest before");
    // The clock went back behind what was taken.
    assert_eq!(resolver(at(-100)).resolve("12s").unwrap().id.as_str(), "kkkkzzzzzzzz");
}

/// A moment at 10 s with its snapshot behind it at 11 s, and one at 12 s whose snapshot, at 14 s, another tool overtook.
fn moments() -> State {
    let event = |seq, secs, body| Event { seq, time: at(secs), session: SessionName::main(), body };
    let moment = |id: &str, kind| {
        let record =
            MomentRecord { label: Some("make".into()), ..MomentRecord::new(SnapshotId::new(id).unwrap(), kind) };
        EventBody::Moment(Box::new(record))
    };
    let update = |id: &str, snapshot: &str, inexact| {
        let snapshot = Some(SnapshotId::new(snapshot).unwrap());
        let update = MomentUpdate::new(SnapshotId::new(id).unwrap());
        EventBody::MomentUpdate(Box::new(MomentUpdate { snapshot, inexact, ..update }))
    };
    let events = vec![
        record("kkkkkkkkkkkk", 0, None, SnapshotKind::Auto, "main", 1),
        event(2, 10, moment("ppppkkkkkkkk", MomentKind::Prompt)),
        record("llllllllllll", 11, None, SnapshotKind::Auto, "main", 3),
        event(4, 11, update("ppppkkkkkkkk", "llllllllllll", false)),
        event(5, 12, moment("qqqqkkkkkkkk", MomentKind::Shell)),
        record("mmmmmmmmmmmm", 14, None, SnapshotKind::Auto, "main", 6),
        event(7, 14, update("qqqqkkkkkkkk", "mmmmmmmmmmmm", true)),
    ];
    State::of(TimelineReport { events, ..TimelineReport::default() })
}

#[test]
fn a_moment_means_what_it_was_and_nothing_later() {
    let state = moments();
    let resolver = Resolver { began: Some(at(0)), now: at(20), ..plain(&state) };
    for (text, snapshot, moment, exact) in [
        ("ppppkkkkkkkk", "llllllllllll", Some("ppppkkkkkkkk"), true),
        ("@prompt", "llllllllllll", Some("ppppkkkkkkkk"), true),
        ("10s", "llllllllllll", Some("ppppkkkkkkkk"), true),
        ("9.9s", "kkkkkkkkkkkk", None, false),
        ("qqqqkkkkkkkk", "llllllllllll", Some("qqqqkkkkkkkk"), false),
        ("qqqq", "llllllllllll", Some("qqqqkkkkkkkk"), false),
        ("make", "llllllllllll", Some("qqqqkkkkkkkk"), false),
        ("12s", "llllllllllll", Some("ppppkkkkkkkk"), true),
        ("@", "mmmmmmmmmmmm", Some("qqqqkkkkkkkk"), false),
    ] {
        let point = resolver.point(text).unwrap();
        let found = point.moment.as_ref().map(|moment| moment.record.id.as_str());
        assert_eq!((point.snapshot.id.as_str(), found, point.exact), (snapshot, moment, exact), "{text}");
    }
}

#[test]
fn a_moment_after_all_was_put_back_means_what_it_was_put_back_to() {
    let mut report = TimelineReport { events: moments().events, ..TimelineReport::default() };
    let mut add = |seq, body| report.events.push(Event { seq, time: at(20), session: SessionName::main(), body });
    let begin = |restore: &str, paths: &[&str], undoes: Option<&str>| {
        EventBody::RestoreBegin(crate::RestoreBegin {
            restore: restore.into(),
            target: SnapshotId::new("kkkkkkkkkkkk").unwrap(),
            safety: SnapshotId::new("llllllllllll").unwrap(),
            undoes: undoes.map(Into::into),
            paths: paths.iter().map(|path| ah_plugin_api::RelPath::new(*path).unwrap()).collect(),
            changes: 1,
        })
    };
    let end = |restore: &str, outcome: &str| {
        EventBody::RestoreEnd(crate::RestoreEnd { restore: restore.into(), outcome: outcome.into(), left: 0 })
    };
    let moment =
        |id: &str| EventBody::Moment(Box::new(MomentRecord::new(SnapshotId::new(id).unwrap(), MomentKind::Shell)));
    for (seq, body) in [
        begin("named", &["a"], None),
        end("named", "done"),
        begin("part", &[], None),
        end("part", "partial"),
        moment("wwwwkkkkkkkk"),
        begin("whole", &[], None),
        end("whole", "done"),
        moment("xxxxkkkkkkkk"),
        begin("undo", &[], Some("whole")),
        end("undo", "done"),
        moment("yyyykkkkkkkk"),
        // Once more, and interrupted, and finished, and taken back.
        begin("again", &[], None),
        end("again", "done"),
        begin("killed", &[], Some("again")),
        begin("finishes", &[], Some("again")),
        end("finishes", "done"),
        end("killed", "abandoned"),
        begin("forward", &[], Some("finishes")),
        end("forward", "done"),
        moment("zzzzkkkkkkkk"),
    ]
    .into_iter()
    .enumerate()
    {
        add(8 + seq as u64, body);
    }
    let upto = |last: u64| {
        let events = report.events.iter().filter(|event| event.seq <= last).cloned().collect();
        State::of(TimelineReport { events, ..TimelineReport::default() })
    };
    for (last, text, snapshot) in [
        (12, "wwwwkkkkkkkk", "mmmmmmmmmmmm"),
        (15, "wwwwkkkkkkkk", "mmmmmmmmmmmm"),
        (15, "xxxxkkkkkkkk", "kkkkkkkkkkkk"),
        (18, "yyyykkkkkkkk", "mmmmmmmmmmmm"),
        (18, "xxxxkkkkkkkk", "kkkkkkkkkkkk"),
        (27, "zzzzkkkkkkkk", "kkkkkkkkkkkk"),
    ] {
        let state = upto(last);
        let resolver = Resolver { began: Some(at(0)), now: at(20), ..plain(&state) };
        assert_eq!(resolver.point(text).unwrap().snapshot.id.as_str(), snapshot, "{text} by {last}");
    }
    // Where what it was put back to is gone, it means nothing that was put away by that.
    let body = EventBody::Remove { snapshots: vec![SnapshotId::new("kkkkkkkkkkkk").unwrap()], by: "rm".into() };
    report.events.push(Event { seq: 28, time: at(20), session: SessionName::main(), body });
    report.events.push(record("nnnnnnnnnnnn", 21, None, SnapshotKind::Auto, "main", 29));
    let state = State::of(report);
    let resolver = Resolver { began: Some(at(0)), now: at(30), ..plain(&state) };
    let error = resolver.resolve("xxxxkkkkkkkk").unwrap_err();
    assert!(error.kind == ErrorKind::FailedPrecondition && error.message.contains("kkkkkkkkkkkk"), "{error:?}");
    assert!(error.hint.unwrap().contains("nnnnnnnnnnnn"));
    assert_eq!(resolver.resolve("wwwwkkkkkkkk").unwrap().id.as_str(), "mmmmmmmmmmmm");
}

#[test]
fn what_goes_is_what_was_named_and_not_what_is_beside_it() {
    let state = moments();
    let resolver = Resolver { began: Some(at(0)), now: at(20), ..plain(&state) };
    for (text, own) in [
        ("ppppkkkkkkkk", Ok("llllllllllll")),
        ("@prompt", Ok("llllllllllll")),
        ("12s", Ok("llllllllllll")),
        ("@", Ok("mmmmmmmmmmmm")),
        ("qqqqkkkkkkkk", Err((ErrorKind::FailedPrecondition, "mmmmmmmmmmmm"))),
        ("qqqq", Err((ErrorKind::FailedPrecondition, "mmmmmmmmmmmm"))),
        ("make", Err((ErrorKind::InvalidArgument, "qqqqkkkkkkkk"))),
    ] {
        match (resolver.resolve_own(text), own) {
            (Ok(found), Ok(own)) => assert_eq!(found.id.as_str(), own, "{text}"),
            (Err(error), Err((kind, named))) => {
                assert!(error.kind == kind && error.hint.unwrap().contains(named), "{text}");
            }
            other => panic!("{text}: {other:?}"),
        }
    }
}

#[test]
fn what_a_program_printed_changes_no_other_name() {
    let shell = |seq, label: &str| {
        let id = SnapshotId::new(format!("zzzz{}", "klmnopqr".repeat(2).get(seq..seq + 8).unwrap())).unwrap();
        let record = MomentRecord { label: Some(label.into()), ..MomentRecord::new(id, MomentKind::Shell) };
        let body = EventBody::Moment(Box::new(record));
        Event { seq: 10 + seq as u64, time: at(30), session: SessionName::main(), body }
    };
    let names = ["make", "kkkkkkkkkkkk", "5s", "1970-01-12T13:46:45Z", "kkkk", "only printed"];
    let mut events = moments().events;
    events.extend(names.iter().enumerate().map(|(seq, name)| shell(seq, name)));
    let state = State::of(TimelineReport { events, ..TimelineReport::default() });
    let resolver = Resolver { began: Some(at(0)), ..plain(&state) };
    for (text, snapshot) in [
        ("kkkkkkkkkkkk", "kkkkkkkkkkkk"),
        ("5s", "kkkkkkkkkkkk"),
        ("1970-01-12T13:46:45Z", "kkkkkkkkkkkk"),
        ("kkkk", "kkkkkkkkkkkk"),
        ("only printed", "mmmmmmmmmmmm"),
    ] {
        assert_eq!(resolver.resolve(text).unwrap().id.as_str(), snapshot, "{text}");
    }
}

#[test]
fn a_command_that_failed_is_named_without_how_it_ended_too() {
    let event = |seq, id: &str, kind, label: &str| {
        let id = SnapshotId::new(id).unwrap();
        let record = MomentRecord { label: Some(label.into()), ..MomentRecord::new(id, kind) };
        Event { seq, time: at(30), session: SessionName::main(), body: EventBody::Moment(Box::new(record)) }
    };
    let mut events = moments().events;
    events.push(event(10, "zzzzkkkkkkkk", MomentKind::Shell, "make tset (exit 2)"));
    events.push(event(11, "zzzzllllllll", MomentKind::Shell, "make (exit 2)"));
    events.push(event(12, "zzzzmmmmmmmm", MomentKind::Stop, "make tset (exit 2)"));
    events.push(event(13, "zzzznnnnnnnn", MomentKind::Shell, "make tset (exit two)"));
    let state = State::of(TimelineReport { events, ..TimelineReport::default() });
    let resolver = Resolver { began: Some(at(0)), ..plain(&state) };
    let named = |text: &str| resolver.point(text).map(|point| point.moment.unwrap().record.id.to_string()).ok();
    assert_eq!(named("make tset").as_deref(), Some("zzzzkkkkkkkk"));
    assert_eq!(named("make tset (exit 2)").as_deref(), Some("zzzzmmmmmmmm"));
    // The newest that was so called, however it ended.
    assert_eq!(named("make").as_deref(), Some("zzzzllllllll"));
    assert_eq!(named("make tset (exit"), None);
    assert_eq!(resolver.resolve_own("make tset").unwrap_err().kind, ErrorKind::InvalidArgument);
}

#[test]
fn a_moment_whose_snapshot_was_removed_says_so() {
    let mut events = moments().events;
    let snapshots = vec![SnapshotId::new("llllllllllll").unwrap()];
    let body = EventBody::Remove { snapshots, by: "rm".into() };
    events.push(Event { seq: 8, time: at(15), session: SessionName::main(), body });
    let state = State::of(TimelineReport { events, ..TimelineReport::default() });
    let record = &state.moments[0].record;
    assert!(record.snapshot.is_none() && record.reason.is_some(), "{record:?}");
    let resolver = Resolver { now: at(20), ..plain(&state) };
    assert_eq!(resolver.resolve("@prompt").unwrap().id.as_str(), "kkkkkkkkkkkk");
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
fn what_there_is_too_little_of_is_counted_as_it_is_passed_over() {
    let said = |text: &str, only: Option<&str>, own: Option<&str>| {
        let state = state();
        let (only, own) = (only.map(|s| SessionName::new(s).unwrap()), own.map(|s| SessionName::new(s).unwrap()));
        let (only, own) = (only.as_ref(), own.as_ref());
        let resolver = Resolver { only, own, ..plain(&state) };
        resolver.resolve(text).unwrap_err().message
    };
    let (three, one) = ("there are only 3 snapshots", "there is only 1 snapshot");
    let taken = "2 that a restore or a branch took for itself";
    for (text, only, own, there) in [
        ("@{3}", None, None, format!("{three}, beside {taken}")),
        ("@{1}", None, Some("agent"), format!("{one}, beside {taken} and 2 of other sessions")),
        ("@{1}", Some("agent"), None, one.to_owned()),
        ("@prompt{3}", None, None, "there are only 2 prompts".to_owned()),
    ] {
        assert_eq!(said(text, only, own), format!("{text} names nothing: {there}"));
    }
    let mut state = state();
    state.rewound.insert(SnapshotId::new("ppppzzzzzzzz").unwrap());
    let resolver = plain(&state);
    let error = resolver.resolve("@prompt{2}").unwrap_err();
    assert!(error.message.ends_with("there is only 1 prompt, beside 1 rewound"), "{error}");
    assert!(error.hint.unwrap().contains("`ah timeline` shows the ids"));
    state.rewound.insert(SnapshotId::new("ppppkkkkkkkk").unwrap());
    let resolver = plain(&state);
    assert!(resolver.resolve("@prompt").unwrap_err().hint.unwrap().contains("`ah timeline`"));
}

#[test]
fn what_may_have_been_meant_is_said() {
    let hint = |text: &str, only: Option<&str>| {
        let (state, only) = (state(), only.map(|s| SessionName::new(s).unwrap()));
        let only = only.as_ref();
        let resolver = Resolver { only, ..plain(&state) };
        resolver.resolve(text).unwrap_err().hint.unwrap()
    };
    assert!(hint("Strat", None).starts_with("did you mean start? "));
    assert!(hint("branchb", None).starts_with("did you mean 'branch b'? "));
    assert!(hint("5m-ago", Some("agent")).starts_with("ah agent fs snapshots"), "it is a time there");
    assert_eq!(hint("branch b", Some("agent")), "it is in another session: `--session main`");
    assert!(hint("2 hours ago", None).contains("2h-ago"));
    assert_eq!(hint("nonsense", None), "ah agent fs snapshots");
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
        let _ = Resolver { began: Some(at(0)), ..plain(&state) }.resolve(&text);
    }

    #[test]
    fn any_number_of_seconds_is_no_panic(text in "-?[0-9]{0,30}(\\.[0-9]{0,12})?[smhdw](-ago)?") {
        let state = state();
        let extreme = Timestamp { secs: i64::MIN, nanos: 0 };
        let _ = Resolver { began: Some(extreme), now: extreme, ..plain(&state) }.resolve(&text);
    }
}

#[test]
fn a_time_just_before_the_first_snapshot_is_not_told_to_be_that_of_it() {
    let events = vec![record("kkkkkkkkkkkk", 0, None, SnapshotKind::Manual, "main", 1)];
    let mut state = State::of(TimelineReport { events, ..TimelineReport::default() });
    state.snapshots[0].time.nanos = 500;
    let named = |time| format_time(Timestamp { nanos: 0, ..time });
    let resolver = Resolver { named, ..plain(&state) };
    let error = resolver.resolve(&format_time(at(0))).unwrap_err();
    assert!(error.message.ends_with("; kkkkkkkkkkkk, the first, was taken a moment after it"), "{error:?}");
    let error = resolver.resolve(&format_time(at(-1))).unwrap_err();
    assert!(error.message.ends_with(&format!("; the first was taken at {}", named(at(0)))), "{error:?}");
}
