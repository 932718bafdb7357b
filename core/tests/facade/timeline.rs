use crate::lab::{Lab, kinds};
use ah_core::{
    EditOptions, EventBody, FaultKind, NoticeKind, PruneOptions, SnapshotFilter, SnapshotOptions, TimelineFilter,
};
use ah_plugin_api::{Durability, ErrorKind};
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

/// A sound line with that number.
fn line(seq: u64) -> Vec<u8> {
    let text = format!("{{\"bytes\":1,\"seq\":{seq},\"time\":\"2026-01-01T00:00:00Z\",\"type\":\"repaired\"");
    format!("{text},\"crc\":\"{:08x}\"}}\n", crc32fast::hash(text.as_bytes())).into_bytes()
}

#[test]
fn a_number_that_none_can_follow_is_a_damaged_line() {
    for seq in [u64::MAX, u64::MAX - 1, i64::MAX.unsigned_abs() + 1] {
        for is_cache_lost in [true, false] {
            let lab = Lab::new();
            let first = lab.step("a", "1");
            append(&lab, &line(seq));
            if is_cache_lost {
                fs::remove_file(lab.folder().join("head")).unwrap();
            }
            let second = lab.step("a", "2");
            assert_eq!(second.seq, first.seq + 1);
            let workspace = lab.open();
            workspace.gc(&ah_core::GcOptions::default()).unwrap();
            let report = workspace.timeline(&TimelineFilter::default()).unwrap();
            assert_eq!(report.faults.iter().map(|fault| fault.line).collect::<Vec<_>>(), [2]);
            assert_eq!(workspace.snapshots(&SnapshotFilter::default()).unwrap(), [first, second]);
        }
    }
}

#[test]
fn when_no_number_is_left_that_is_said_and_nothing_written() {
    let lab = Lab::new();
    let first = lab.step("a", "1");
    append(&lab, &line(i64::MAX.unsigned_abs()));
    let before = fs::read(lab.timeline_file()).unwrap();
    let error = lab.open().snapshot(&SnapshotOptions::default()).unwrap_err();
    assert_eq!(error.kind, ErrorKind::FailedPrecondition);
    assert_eq!(fs::read(lab.timeline_file()).unwrap(), before);
    // As the hint says: without that line it goes on.
    fs::write(lab.timeline_file(), &before[..before.len() - line(i64::MAX.unsigned_abs()).len()]).unwrap();
    assert!(lab.step("a", "2").seq > first.seq);
}

#[test]
fn blank_lines_cost_little_and_count_for_nothing() {
    let lab = Lab::new();
    let first = lab.step("a", "1");
    append(&lab, &vec![b'\n'; 2_000_000]);
    // A block of lines is read with one call, and not each line with one.
    let calls = reads();
    let second = lab.step("a", "2");
    let workspace = lab.open();
    let report = workspace.timeline(&TimelineFilter::default()).unwrap();
    assert!(reads() - calls < 2_000, "{}", reads() - calls);
    assert_eq!((report.events.len(), report.faults), (2, Vec::new()));
    assert!(workspace.engine().take_notices().is_empty());
    // Lines are still counted as an editor counts them.
    append(&lab, b"x\n");
    let report = workspace.timeline(&TimelineFilter::default()).unwrap();
    assert_eq!(report.faults.iter().map(|fault| fault.line).collect::<Vec<_>>(), [2_000_003]);
    assert_eq!(workspace.snapshots(&SnapshotFilter::default()).unwrap(), [first, second]);
}

/// How often this thread has read from files.
fn reads() -> u64 {
    let told = fs::read_to_string("/proc/thread-self/io").unwrap();
    told.lines().find_map(|line| line.strip_prefix("syscr: ")).unwrap().parse().unwrap()
}

#[test]
fn an_event_that_stands_there_twice_counts_once() {
    let lab = Lab::new();
    (0..3).for_each(|n| drop(lab.step("a", &n.to_string())));
    let events = lab.open().timeline(&TimelineFilter::default()).unwrap().events;
    let bytes = fs::read(lab.timeline_file()).unwrap();
    append(&lab, &bytes);
    assert_eq!(lab.open().timeline(&TimelineFilter::default()).unwrap().events, events);
    let next = lab.step("a", "4");
    assert!(next.seq > events.last().unwrap().seq);
    // Another event of the same number is lost by nobody's count.
    append(&lab, &line(next.seq));
    assert_eq!(lab.open().timeline(&TimelineFilter::default()).unwrap().events.len(), events.len() + 2);
}

/// Leaves so many lines of a timeline.
fn cut_to(lab: &Lab, lines: usize) {
    let text = fs::read_to_string(lab.timeline_file()).unwrap();
    let kept: String = text.split_inclusive('\n').take(lines).collect();
    fs::write(lab.timeline_file(), kept).unwrap();
}

fn ends_missing(lab: &Lab) -> usize {
    let report = lab.open().timeline(&TimelineFilter::default()).unwrap();
    report.faults.iter().filter(|fault| fault.kind == FaultKind::End).count()
}

#[test]
fn the_end_of_a_timeline_that_is_missing_is_told_until_gc_has_pinned_what_it_may_have_pinned() {
    let by = PruneOptions { policy: Some("keep-last=1".into()), ..PruneOptions::default() };
    for lines in [0, 1, 2, 4] {
        for is_told_late in [false, true] {
            let lab = Lab::new();
            let made = [lab.step("a", "1"), lab.step("a", "2"), lab.step("a", "3")];
            let pin = EditOptions { keep: Some(true), label: None };
            lab.open().edit(made[0].id.as_str(), &pin).unwrap();
            lab.step("a", "4");
            assert_eq!(ends_missing(&lab), 0);
            cut_to(&lab, lines);
            if is_told_late {
                lab.step("a", "5");
            }
            assert_eq!(ends_missing(&lab), 1, "{lines}");
            let workspace = lab.open();
            workspace.snapshots(&SnapshotFilter::default()).unwrap();
            assert_eq!(kinds(&workspace.engine().take_notices()), [NoticeKind::TimelineDamaged]);
            let refused = workspace.prune(&by, &mut |report| panic!("{report:?}")).unwrap_err();
            assert_eq!(refused.kind, ErrorKind::FailedPrecondition);
            let report = workspace.gc(&ah_core::GcOptions::default()).unwrap();
            assert!(report.failures.is_empty(), "{report:?}");
            // Of one the line that pins it is there still.
            let pinned = format!("{} snapshots are pinned", if lines == 4 { 3 } else { 4 });
            assert!(report.actions.iter().any(|action| action.contains(&pinned)), "{lines}: {report:?}");
            // From then on all is as ever, and what there was by then stays until somebody lets it go.
            assert_eq!(ends_missing(&lab), 0);
            let workspace = lab.open();
            let all = workspace.snapshots(&SnapshotFilter::default()).unwrap();
            assert_eq!(all.len(), 4 + usize::from(is_told_late));
            assert!(all[..4].iter().all(|snapshot| snapshot.kept), "{all:?}");
            assert_eq!(all[..3].iter().map(|it| &it.id).collect::<Vec<_>>(), made.each_ref().map(|it| &it.id));
            assert!(workspace.engine().take_notices().is_empty());
            let let_go = EditOptions { keep: Some(false), label: None };
            workspace.edit(made[1].id.as_str(), &let_go).unwrap();
            lab.step("a", "6");
            assert!(workspace.prune(&by, &mut |_| Ok(())).unwrap().removed >= 1);
            assert!(
                !workspace.gc(&ah_core::GcOptions::default()).unwrap().actions.iter().any(|it| it.contains("pinned"))
            );
        }
    }
}

#[test]
fn a_timeline_that_is_gone_or_an_older_one_is_missing_its_end_and_a_whole_state_that_is_older_is_not() {
    let lab = Lab::new();
    lab.step("a", "1");
    let (file, head) = (lab.timeline_file(), lab.folder().join("head"));
    let former = [&file, &head].map(|path| fs::read(path).unwrap());
    lab.step("a", "2");
    fs::write(&file, &former[0]).unwrap();
    assert_eq!(ends_missing(&lab), 1);
    // Put back with all that belongs to it.
    fs::write(&head, &former[1]).unwrap();
    assert_eq!(ends_missing(&lab), 0);
    lab.step("a", "3");
    fs::remove_file(&file).unwrap();
    assert_eq!(ends_missing(&lab), 1);
    lab.step("a", "4");
    fs::remove_dir_all(file.parent().unwrap()).unwrap();
    assert_eq!(ends_missing(&lab), 1);
    // Without the cache nobody knows.
    fs::remove_file(&head).unwrap();
    assert_eq!(ends_missing(&lab), 0);
}

#[test]
fn of_an_earlier_run_of_the_machine_only_a_line_that_was_synced_can_be_missing() {
    let lab = Lab::new();
    lab.step("a", "1");
    lab.wait(60);
    lab.write("a", "2");
    let instant = SnapshotOptions { durability: Some(Durability::Instant), ..SnapshotOptions::default() };
    lab.open().snapshot(&instant).unwrap();
    let head = lab.folder().join("head");
    let mut value: serde_json::Value = serde_json::from_slice(&fs::read(&head).unwrap()).unwrap();
    value["boot"] = "another".into();
    value.as_object_mut().unwrap().remove("crc");
    let mut text = value.to_string();
    text.pop();
    fs::write(&head, format!("{text},\"crc\":\"{:08x}\"}}\n", crc32fast::hash(text.as_bytes()))).unwrap();
    // A power cut takes that away, and nobody is to blame.
    cut_to(&lab, 1);
    assert_eq!(ends_missing(&lab), 0);
    cut_to(&lab, 0);
    assert_eq!(ends_missing(&lab), 1);
    lab.step("a", "3");
    assert_eq!(ends_missing(&lab), 1);
}

#[test]
fn a_session_whose_only_line_was_made_blank_misses_none() {
    let lab = Lab::new();
    lab.step("a", "1");
    let faults = || lab.open().timeline(&TimelineFilter::default()).unwrap().faults;
    std::fs::write(lab.timeline_file(), "").unwrap();
    assert_eq!(faults().len(), 1);
    std::fs::write(lab.timeline_file(), "\n").unwrap();
    assert_eq!(faults(), []);
}
