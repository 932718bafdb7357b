//! Several processes at once: threads with engines of their own, which share nothing but the files (flock is by open file).

use crate::lab::Lab;
use ah_core::{
    Access, Engine, GcOptions, RmOptions, SeekOptions, SessionName, SnapshotFilter, SnapshotOptions, TimelineFilter,
};
use std::collections::BTreeSet;

#[test]
fn nothing_is_lost_and_sessions_do_not_mix() {
    let lab = Lab::new();
    lab.write("a", "1");
    let taken: Vec<(String, String)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..8)
            .map(|n| {
                let mut settings = lab.settings.clone();
                settings.session = Some(SessionName::new(format!("s{}", n % 4)).unwrap());
                let path = lab.path();
                scope.spawn(move || {
                    let mut taken = Vec::new();
                    for round in 0..10 {
                        let engine = Engine::open(settings.clone()).unwrap();
                        let workspace = engine.workspace(&path, Access::Create).unwrap();
                        let record = workspace.snapshot(&SnapshotOptions::default()).unwrap();
                        taken.push((record.session.to_string(), record.id.to_string()));
                        match round % 5 {
                            1 => drop(workspace.gc(&GcOptions::default()).unwrap()),
                            2 => {
                                let lease = workspace.seek(record.id.as_str(), &SeekOptions::default()).unwrap();
                                workspace.release(&ah_core::Release::Id(lease.id)).unwrap();
                            }
                            3 => {
                                workspace.rm(&[record.id.to_string()], &RmOptions::default()).unwrap();
                                taken.pop();
                            }
                            _ => {}
                        }
                    }
                    taken
                })
            })
            .collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    assert_eq!(std::fs::read_dir(lab.settings.home.join("workspaces")).unwrap().count(), 1);
    let workspace = lab.open();
    let listed = workspace.snapshots(&SnapshotFilter::default()).unwrap();
    let listed: BTreeSet<_> = listed.iter().map(|s| (s.session.to_string(), s.id.to_string())).collect();
    assert_eq!(listed, taken.into_iter().collect());
    let report = workspace.timeline(&TimelineFilter::default()).unwrap();
    assert!(report.faults.is_empty());
    let numbers: BTreeSet<u64> = report.events.iter().map(|event| event.seq).collect();
    assert_eq!(numbers.len(), report.events.len(), "each number is given once");
    assert!(workspace.gc(&GcOptions::default()).unwrap().actions.is_empty());
    assert!(workspace.engine().take_notices().is_empty());
}
