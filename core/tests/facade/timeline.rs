use crate::lab::{Lab, kinds};
use ah_core::{EventBody, NoticeKind, SnapshotFilter, TimelineFilter};
use std::fs::{self, OpenOptions};
use std::io::Write;

fn append(lab: &Lab, bytes: &[u8]) {
    OpenOptions::new().append(true).open(lab.timeline_file()).unwrap().write_all(bytes).unwrap();
}

#[test]
fn a_torn_line_is_cut_off_kept_aside_and_reported() {
    for torn in [&b"{\"seq\":99,\"ti"[..], b"\0\0\0\0", b"x"] {
        let lab = Lab::new();
        let first = lab.step("a", "1");
        append(&lab, torn);
        let workspace = lab.open();
        assert_eq!(workspace.snapshots(&SnapshotFilter::default()).unwrap(), std::slice::from_ref(&first));
        assert_eq!(kinds(&workspace.engine().take_notices()), [NoticeKind::TimelineRepaired]);
        let aside = fs::read(lab.timeline_file().with_extension("torn")).unwrap();
        assert_eq!(aside.strip_suffix(b"\n").unwrap(), torn);
        let second = lab.step("a", "2");
        let events = workspace.timeline(&TimelineFilter::default()).unwrap().events;
        let bytes = torn.len() as u64;
        assert!(matches!(&events[1].body, EventBody::Repaired { bytes: cut } if *cut == bytes), "{events:?}");
        assert_eq!(workspace.snapshots(&SnapshotFilter::default()).unwrap(), [first, second]);
        assert!(workspace.engine().take_notices().is_empty());
    }
}

#[test]
fn a_line_that_only_lacks_its_newline_is_kept() {
    let lab = Lab::new();
    let (first, second) = (lab.step("a", "1"), lab.step("a", "2"));
    let bytes = fs::read(lab.timeline_file()).unwrap();
    fs::write(lab.timeline_file(), &bytes[..bytes.len() - 1]).unwrap();
    assert_eq!(lab.open().snapshots(&SnapshotFilter::default()).unwrap(), [first, second]);
    assert_eq!(fs::read(lab.timeline_file()).unwrap(), bytes);
}

#[test]
fn a_damaged_line_hides_no_other() {
    let lab = Lab::new();
    let (first, second, third) = (lab.step("a", "1"), lab.step("a", "2"), lab.step("a", "3"));
    let text = fs::read_to_string(lab.timeline_file()).unwrap();
    fs::write(lab.timeline_file(), text.replace(second.id.as_str(), "kkkkkkkkkkkk")).unwrap();
    let workspace = lab.open();
    assert_eq!(workspace.snapshots(&SnapshotFilter::default()).unwrap(), [first.clone(), third.clone()]);
    let notices = workspace.engine().take_notices();
    assert_eq!(kinds(&notices), [NoticeKind::TimelineDamaged]);
    let report = workspace.timeline(&TimelineFilter::default()).unwrap();
    assert_eq!(report.faults.iter().map(|fault| fault.line).collect::<Vec<_>>(), [2]);
    // The provider still has it, so gc lists it again.
    let actions = workspace.gc(&ah_core::GcOptions::default()).unwrap().actions;
    assert!(actions.iter().any(|action| action.contains(second.id.as_str())), "{actions:?}");
    assert_eq!(workspace.snapshots(&SnapshotFilter::default()).unwrap().len(), 3);
}

#[test]
fn numbers_go_on_when_the_cache_is_lost_or_lies() {
    let lab = Lab::new();
    let mut last = lab.step("a", "1").seq;
    for damage in [None, Some(""), Some("{\"seq\":0}"), Some("garbage")] {
        let head = lab.folder().join("head");
        match damage {
            None => fs::remove_file(&head).unwrap(),
            Some(text) => fs::write(&head, text).unwrap(),
        }
        let next = lab.step("a", damage.unwrap_or("x")).seq;
        assert!(next > last, "{damage:?}");
        last = next;
    }
}

#[test]
fn the_order_is_that_of_writing_though_the_clock_jumps_back() {
    let lab = Lab::new();
    let first = lab.step("a", "1");
    lab.wait(-10_000);
    let second = lab.step("a", "2");
    assert!(second.time < first.time);
    assert_eq!(lab.open().resolve("@").unwrap(), second);
}

#[test]
fn a_damaged_session_file_does_not_hide_its_timeline() {
    let lab = Lab::new();
    let first = lab.step("a", "1");
    fs::write(lab.folder().join("sessions/main/session.json"), "{").unwrap();
    assert_eq!(lab.open().resolve("@").unwrap(), first);
    let second = lab.step("a", "2");
    assert_eq!(lab.open().resolve("@").unwrap(), second);
    assert_eq!(lab.engine().status(&lab.path()).unwrap().sessions.len(), 1);
}

#[test]
fn only_one_session_or_the_last_few_are_had() {
    let lab = Lab::new();
    (0..5).for_each(|n| drop(lab.step("a", &n.to_string())));
    let filter = TimelineFilter { limit: Some(2), ..TimelineFilter::default() };
    assert_eq!(lab.open().timeline(&filter).unwrap().events.len(), 2);
    let events = lab.open().timeline(&TimelineFilter::default()).unwrap().events;
    let json = serde_json::to_value(&events[0]).unwrap();
    assert_eq!(json["type"], "snapshot");
    assert_eq!(json["snapshot"]["session"], "main");
}
