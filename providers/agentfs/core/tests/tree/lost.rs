//! What the disk has lost is an error for who needs it and is told by fsck, whatever is written afterwards.

use ah_agentfs::{Class, Error, View, Workspace};

use crate::{Place, at, branch, content, make};

/// Of a store that is not open.
fn problems(place: &Place) -> Vec<String> {
    Workspace::fsck(&place.store(), &place.lower(), false).unwrap().problems
}

fn is_lost(view: &View, path: &str) -> bool {
    matches!(view.read(at(view, path), 0, 1 << 24), Err(Error::Corrupt(_)))
}

#[test]
fn a_segment_that_is_missing_or_short_stays_so_whatever_is_written() {
    for cut in [None, Some(60_000)] {
        let place = Place::new();
        let workspace = place.create();
        let branch = branch(&workspace);
        let view = workspace.view(branch).unwrap();
        make(&view, "old", &[7; 100_000]);
        let snapshot = workspace.snapshot(branch, b"", Class::Durable).unwrap();
        make(&view, "in place", &[8; 100_000]);
        make(&view, "removed", &[9; 100_000]);
        workspace.sync().unwrap();
        drop((view, workspace));
        let segment = place.store().join("data/0000000000");
        match cut {
            None => std::fs::remove_file(&segment).unwrap(),
            Some(length) => std::fs::File::options().write(true).open(&segment).unwrap().set_len(length).unwrap(),
        }
        let is_as_it_was = || std::fs::metadata(&segment).map_or(cut.is_none(), |found| Some(found.len()) == cut);
        assert!(!problems(&place).is_empty());
        for round in 0..2 {
            let workspace = place.open();
            let view = workspace.view(branch).unwrap();
            make(&view, &format!("new{round}"), &[round + 1; 5000]);
            let refused = view.write(at(&view, "in place"), 0, &[1; 5000]);
            assert!(matches!(refused, Err(Error::Corrupt(_))), "{cut:?}: {refused:?}");
            if round == 1 {
                let ino = at(&view, "removed");
                view.unlink(1, b"removed").unwrap();
                view.forget(ino, 1);
            }
            workspace.sync().unwrap();
            assert!(is_lost(&view, "old") && is_lost(&view, "in place"), "{cut:?}");
            assert!(is_lost(&workspace.view_of(snapshot).unwrap(), "old"), "{cut:?}");
            for nth in 0..=round {
                assert_eq!(content(&view, &format!("new{nth}")), [nth + 1; 5000], "{cut:?}");
            }
            drop((view, workspace));
            assert!(is_as_it_was() && !problems(&place).is_empty(), "{cut:?}");
        }
    }
}
