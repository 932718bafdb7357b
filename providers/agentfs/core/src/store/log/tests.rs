//! What counts of a log that was torn or damaged.

use std::os::unix::fs::MetadataExt;

use super::*;

fn fill(directory: &Path) -> u64 {
    let mut log = Log::begin(directory, 1, 0, "boot").unwrap();
    for number in 0..10_u8 {
        log.append([(&[number][..], Some(&[7_u8; 40][..])), (b"gone", None)].into_iter()).unwrap();
    }
    log.mark(4, 4).unwrap();
    log.length()
}

fn look(directory: &Path) -> Found {
    read(directory, "boot", 0).unwrap()
}

fn spoil(directory: &Path, number: u64, at: u64, with: &[u8]) {
    let file = OpenOptions::new().write(true).open(path(directory, number)).unwrap();
    file.write_all_at(with, at).unwrap();
}

#[test]
fn any_torn_end_leaves_the_batches_before_it() {
    let directory = tempfile::tempdir().unwrap();
    let length = fill(directory.path());
    let mut before = 10;
    for cut in (30..length).rev() {
        Log::resume(directory.path(), 1, cut, 0).unwrap();
        let found = look(directory.path());
        assert!(!found.damaged, "cut at {cut}");
        assert!(found.batches.len() <= before && before - found.batches.len() <= 1, "cut at {cut}");
        before = found.batches.len();
    }
    assert_eq!(before, 0);
}

#[test]
fn zeros_ahead_are_no_records_and_are_written_over() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = Log::begin(directory.path(), 1, 0, "boot").unwrap();
    let size = || std::fs::metadata(path(directory.path(), 1)).unwrap().len();
    log.write_ahead(0);
    assert_eq!(size(), log.length(), "not where there is little room");
    for number in 1..=100_u64 {
        log.write_ahead(u64::MAX);
        let full = size();
        log.append([(&b"row"[..], Some(&[7_u8; 4000][..]))].into_iter()).unwrap();
        log.mark_with(number, number - 1, &[]).unwrap();
        assert_eq!(size(), full, "nothing made it longer");
        let found = look(directory.path());
        assert!(!found.damaged && found.last == number && found.files[0].length == log.length());
    }
    assert!(log.length() > AHEAD as u64);
    // Written over in part, when the machine goes down.
    let end = log.length();
    spoil(directory.path(), 1, end + 100, &[9; 50]);
    let found = read(directory.path(), "another", 0).unwrap();
    assert!(!found.damaged && found.last == 100 && found.files[0].counts == end);
    cut(directory.path(), &found.files).unwrap();
    assert_eq!(size(), end);
    // A sync that a power cut interrupted, whose last page came to the disk first: over zeros each page stands for itself.
    let mut log = Log::resume(directory.path(), 1, end, 100).unwrap();
    log.write_ahead(u64::MAX);
    let covered = log.length();
    log.append([(&b"row"[..], Some(&[7_u8; 9000][..]))].into_iter()).unwrap();
    let between = log.length();
    log.mark(101, 100).unwrap();
    let whole = std::fs::read(path(directory.path(), 1)).unwrap();
    spoil(directory.path(), 1, covered, &vec![0; (between - covered) as usize]);
    let found = read(directory.path(), "another", 0).unwrap();
    assert!(!found.damaged && found.last == 100 && found.files[0].counts == end, "nothing was told of that");
    assert!(look(directory.path()).damaged, "without a power cut that cannot be");
    // But what an earlier mark had covered was on the disk.
    spoil(directory.path(), 1, covered, &whole[covered as usize..between as usize]);
    log.append([(&b"row"[..], None)].into_iter()).unwrap();
    log.mark(102, 101).unwrap();
    spoil(directory.path(), 1, covered, &vec![0; (between - covered) as usize]);
    assert!(read(directory.path(), "another", 0).unwrap().damaged);
    // One that is resumed begins where its last record ends.
    let mut log = Log::resume(directory.path(), 1, end, 100).unwrap();
    log.append([(&b"row"[..], None)].into_iter()).unwrap();
    assert_eq!(look(directory.path()).last, 101);
}

#[test]
fn damage_in_the_middle_is_not_taken_for_a_torn_end() {
    let directory = tempfile::tempdir().unwrap();
    fill(directory.path());
    let found = look(directory.path());
    assert_eq!((found.batches.len(), found.damaged, found.files[0].present), (10, false, true));
    let other = read(directory.path(), "another", 0).unwrap();
    assert_eq!((other.batches.len(), other.last, other.damaged), (4, 4, false));
    spoil(directory.path(), 1, 200, b"?");
    let found = look(directory.path());
    assert!(found.damaged && found.batches.len() < 10);
    // A mark covers what is lost.
    assert!(read(directory.path(), "another", 0).unwrap().damaged);
}

#[test]
fn after_a_power_cut_only_what_was_marked_can_be_missed() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = Log::begin(directory.path(), 1, 0, "boot").unwrap();
    log.append([(&b"kept"[..], None)].into_iter()).unwrap();
    log.mark(1, 0).unwrap();
    let marked = log.length();
    for _ in 0..3 {
        log.append([(&[7_u8; 100][..], None)].into_iter()).unwrap();
    }
    spoil(directory.path(), 1, marked + 20, b"?");
    let found = read(directory.path(), "another", 0).unwrap();
    assert!(!found.damaged && found.last == 1, "the pages of the others came in any order");
    assert!(look(directory.path()).damaged, "without a power cut they cannot");
    // Nor does the next file make it damage.
    let mut next = Log::begin(directory.path(), 2, 4, "boot").unwrap();
    next.append([(&b"lost"[..], None)].into_iter()).unwrap();
    let found = read(directory.path(), "another", 0).unwrap();
    assert!(!found.damaged && found.batches.len() == 1);
    cut(directory.path(), &found.files).unwrap();
    assert_eq!(read(directory.path(), "another", 0).unwrap().batches.len(), 1);
    assert!(!look(directory.path()).damaged);
    // But a mark there does.
    let mut next = Log::begin(directory.path(), 2, 4, "boot").unwrap();
    next.mark(4, 4).unwrap();
    assert!(read(directory.path(), "another", 0).unwrap().damaged);
}

#[test]
fn a_kill_while_the_last_batch_before_a_checkpoint_is_written_is_no_damage() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = Log::begin(directory.path(), 1, 0, "boot").unwrap();
    log.append([(&b"one"[..], None)].into_iter()).unwrap();
    let whole = log.length();
    log.append([(&b"two"[..], None)].into_iter()).unwrap();
    let length = log.length();
    Log::begin(directory.path(), 2, 2, "boot").unwrap();
    for torn in whole..length {
        Log::resume(directory.path(), 1, torn, 0).unwrap();
        for boot in ["boot", "another"] {
            assert!(!read(directory.path(), boot, 0).unwrap().damaged, "torn at {torn}");
        }
        Log::resume(directory.path(), 1, length, 0).unwrap();
    }
}

#[test]
fn a_mark_brings_contents_that_count_until_all_are_in_their_places() {
    let directory = tempfile::tempdir().unwrap();
    let written = |nth: u8| vec![(u64::from(nth), vec![nth; 5000])];
    let mut log = Log::begin(directory.path(), 1, 0, "boot").unwrap();
    let append = |log: &mut Log| log.append([(&b"row"[..], None)].into_iter()).unwrap();
    append(&mut log);
    log.mark(1, 0).unwrap();
    append(&mut log);
    log.mark_with(2, 1, &written(2)).unwrap();
    let before = log.length();
    append(&mut log);
    let between = log.length();
    log.mark_with(3, 2, &written(3)).unwrap();
    let found = read(directory.path(), "another", 0).unwrap();
    assert_eq!((found.last, &found.contents, found.damaged), (3, &[written(2), written(3)].concat(), false));
    assert_eq!(look(directory.path()).contents, found.contents, "the disk may have been cut off alone");
    let found = read(directory.path(), "another", 2).unwrap();
    assert_eq!(found.contents, written(3), "those of rows in the base are in their places");

    // A sync that a power cut interrupted, whichever of its pages got to the disk.
    let length = log.length();
    let whole = std::fs::read(path(directory.path(), 1)).unwrap();
    for torn in (before..between).chain((between..length).step_by(97)) {
        spoil(directory.path(), 1, torn, &[!whole[torn as usize]]);
        let found = read(directory.path(), "another", 0).unwrap();
        assert_eq!((found.last, found.contents, found.damaged), (2, written(2), false), "torn at {torn}");
        assert!(look(directory.path()).damaged || torn >= between, "without a power cut that cannot be");
        spoil(directory.path(), 1, torn, &[whole[torn as usize]]);
    }
    // But what was on the disk before is damaged.
    spoil(directory.path(), 1, before - 10, b"?");
    assert!(read(directory.path(), "another", 0).unwrap().damaged);
    spoil(directory.path(), 1, before - 10, &[whole[before as usize - 10]]);

    append(&mut log);
    assert_eq!(look(directory.path()).contents, [], "who has written since then may have written there");
    assert_eq!(read(directory.path(), "another", 0).unwrap().contents.len(), 2);
    log.mark(4, 3).unwrap();
    assert_eq!(read(directory.path(), "another", 0).unwrap().contents, []);
}

#[test]
fn contents_that_look_like_records_are_none() {
    let mut bytes = frame(&[BATCH; 100]);
    let mut mark = Writer::new(MARK);
    mark.number(3);
    bytes.extend(frame(&mark.0));
    let found = |bytes: &[u8], beyond| {
        let found = search(bytes, beyond);
        (found.batch, found.mark)
    };
    assert_eq!(found(&bytes, 3), (0, 0), "an old number");
    assert_eq!(found(&bytes, 2), (0, 3));
    assert_eq!(found(&[2; 1 << 20], 0), (0, 0));
}

#[test]
fn whole_batches_behind_a_header_that_cannot_be_read_are_damage_whatever_the_boot() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = Log::begin(directory.path(), 1, 0, "boot").unwrap();
    let header = log.length();
    log.append([(&key::stem(b's', 3)[..], Some(&b"snapshot"[..]))].into_iter()).unwrap();
    spoil(directory.path(), 1, 12, b"?");
    for boot in ["boot", "another"] {
        let found = read(directory.path(), boot, 0).unwrap();
        assert!(found.damaged && found.gone == 1 && found.snapshots == [3].into(), "{boot}");
        assert!(!found.has(1));
    }
    // One that a power cut kept from the disk was never written.
    spoil(directory.path(), 1, 0, &vec![0; header as usize]);
    assert!(!read(directory.path(), "another", 0).unwrap().damaged);
}

#[test]
fn a_file_that_the_disk_cannot_read_everywhere_is_kept_itself_even_without_room() {
    let directory = tempfile::tempdir().unwrap();
    let length = fill(directory.path());
    let log = path(directory.path(), 1);
    let (was, ino) = (std::fs::read(&log).unwrap(), log.metadata().unwrap().ino());
    std::fs::write(log.with_extension("damaged"), b"earlier").unwrap();
    let files = [Piece { number: 1, counts: 100, length, unread: true, present: true }];
    let kept = set_aside(directory.path(), &files, || Ok(0)).unwrap();
    assert!(kept.names == ["0000000001.damaged.1"] && !kept.had_no_room, "{:?}", kept.names);
    // What one that was killed left is in nobody's way.
    std::fs::write(log.with_extension(CUT), vec![9; 1000]).unwrap();
    std::fs::write(path(directory.path(), 7).with_extension(CUT), b"half").unwrap();
    assert_eq!(numbers(directory.path()).unwrap(), [1]);
    cut(directory.path(), &files).unwrap();
    assert_eq!(std::fs::read(&log).unwrap(), was[..100]);
    let kept = log.with_extension("damaged.1");
    assert_eq!((std::fs::read(&kept).unwrap(), kept.metadata().unwrap().ino()), (was, ino));
    assert_eq!(std::fs::read(log.with_extension("damaged")).unwrap(), b"earlier");
    let cuts = std::fs::read_dir(directory.path())
        .unwrap()
        .filter(|at| at.as_ref().unwrap().path().extension().unwrap() == CUT);
    assert_eq!(cuts.count(), 0);
}
