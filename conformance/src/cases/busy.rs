//! Guarantee 2 while somebody writes: what a snapshot shows was there, of a file by all, of the whole workspace by who says so.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ah_plugin_api::{Capability, Context, OmitReason, Provider};

use crate::case::{Case, Check, Need, ensure};
use crate::fixture::{Fixture, Taken, path};
use crate::tree::Tree;

pub(super) const CASES: &[Case] = &[
    Case {
        id: "exact.changing",
        clauses: &["a file that changes while it is read is read again, then omitted as [`OmitReason::Changing`]"],
        needs: &[],
        run: changing,
    },
    Case {
        id: "exact.one-instant",
        clauses: &["A snapshot is one point in time, however busy the workspace is."],
        needs: &[Need::Has(Capability::PointInTime)],
        run: one_instant,
    },
];

/// A writer changes the beginning of a large file, then its end, with more than a clock tick between. Whoever reads through
/// it while that goes on, and does not notice, has a beginning and an end that were never there together.
fn changing(f: &Fixture) -> Check {
    use std::os::unix::fs::FileExt;
    const SIZE: u64 = 8 << 20;
    f.provider().look_away();
    f.ws.write("still", "still")?;
    let file = std::fs::File::create(f.ws.at("busy"))?;
    file.set_len(SIZE)?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| -> Check {
        let writer = scope.spawn(|| -> std::io::Result<()> {
            for n in 1u64.. {
                for offset in [0, SIZE - 8] {
                    file.write_all_at(&n.to_le_bytes(), offset)?;
                    std::thread::sleep(Duration::from_millis(12));
                }
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
            Ok(())
        });
        let result = (0..3).try_for_each(|i| captured_while_changing(f, &format!("s{i}"), SIZE));
        stop.store(true, Ordering::Relaxed);
        let _ = writer.join();
        result
    })
}

fn captured_while_changing(f: &Fixture, id: &str, size: u64) -> Check {
    let snapshot = f.provider().snapshot(&f.place(), &f.request(id), &Context::quiet())?;
    if let Some(omission) = snapshot.omitted.first() {
        ensure!(
            snapshot.omitted.len() == 1 && omission.path == path("busy") && omission.reason == OmitReason::Changing,
            "only the busy file may be omitted, as changing: {:?}",
            snapshot.omitted
        );
        ensure!(!f.has(Capability::PointInTime), "a point-in-time provider omits a file because it is changing");
        return Ok(());
    }
    let taken = Taken { snapshot, tree: Tree::default() };
    let view = f.mount(&taken, "v", &[])?;
    let shown = std::fs::read(view.path.join("busy"))?;
    f.unmount(&view)?;
    ensure!(shown.len() as u64 == size, "the busy file has {} bytes instead of {size}", shown.len());
    let (begin, end) = (number(&shown[..8]), number(&shown[shown.len() - 8..]));
    ensure!(
        begin == end || begin == end + 1,
        "a file was captured that never was: its beginning is the {begin}th, its end the {end}th version"
    );
    Ok(())
}

/// A writer counts up in the first file, then in the last, with many between them that take whoever reads one after the other their time.
fn one_instant(f: &Fixture) -> Check {
    use std::os::unix::fs::FileExt;
    f.provider().look_away();
    for i in 0..2000 {
        f.ws.write(format!("m{i}"), "between")?;
    }
    let zero = 0u64.to_le_bytes();
    f.ws.write("a", zero)?;
    f.ws.write("z", zero)?;
    let open = |name: &str| std::fs::File::options().write(true).open(f.ws.at(name));
    let (first, last) = (open("a")?, open("z")?);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| -> Check {
        let writer = scope.spawn(|| -> std::io::Result<()> {
            for n in 1u64.. {
                first.write_all_at(&n.to_le_bytes(), 0)?;
                last.write_all_at(&n.to_le_bytes(), 0)?;
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                std::thread::sleep(Duration::from_micros(200));
            }
            Ok(())
        });
        let result = (0..5).try_for_each(|i| {
            let snapshot = f.provider().snapshot(&f.place(), &f.request(&format!("s{i}")), &Context::quiet())?;
            ensure!(snapshot.omitted.is_empty(), "a point-in-time provider omits something: {:?}", snapshot.omitted);
            let taken = Taken { snapshot, tree: Tree::default() };
            let view = f.mount(&taken, "v", &[])?;
            let count = |name: &str| std::fs::read(view.path.join(name)).map(|bytes| number(&bytes));
            let seen = count("a").and_then(|a| Ok((a, count("z")?)));
            f.unmount(&view)?;
            let (a, z) = seen?;
            ensure!(
                a == z || a == z + 1,
                "no instant had this: one file is the {a}th version, the one written next the {z}th"
            );
            Ok(())
        });
        stop.store(true, Ordering::Relaxed);
        let _ = writer.join();
        result
    })
}

/// What was counted to.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0u64, |n, &byte| n << 8 | u64::from(byte))
}
