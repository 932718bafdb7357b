//! Which files are those of one elsewhere, as a whole, so that a host may have that read instead.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};

use ah_agentfs::{Ino, SetAttr, View, Whole};

use crate::{Place, at, branch, content, snapshot};

/// What a file of the tree is as a whole, and what that holds.
fn whole(view: &View, ino: Ino) -> Option<(File, Whole, Vec<u8>)> {
    view.whole(ino, 5).unwrap().map(|(mut file, whole)| {
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).unwrap();
        (file, whole, bytes)
    })
}

#[test]
fn what_a_branch_shows_as_it_is_below_is_that_file_until_it_is_written() {
    let place = Place::new();
    let below = place.lower().join("f");
    std::fs::write(&below, "below").unwrap();
    std::fs::write(place.lower().join("less"), "less").unwrap();
    let workspace = place.create();
    let branch = branch(&workspace);
    let view = workspace.view(branch).unwrap();
    let ino = at(&view, "f");
    assert!(whole(&view, at(&view, "less")).is_none(), "it is not long enough");
    let (file, is, bytes) = whole(&view, ino).unwrap();
    assert_eq!(bytes, b"below");
    assert_eq!(file.metadata().unwrap().ino(), std::fs::metadata(&below).unwrap().ino());
    // Not to be written through, whatever it is opened for.
    assert!(file.write_at(b"x", 0).is_err());
    // In place: that file still, as the branch shows.
    std::fs::File::options().write(true).open(&below).unwrap().write_all_at(b"BE", 0).unwrap();
    assert!(view.is_still(ino, &is).unwrap());
    assert_eq!((whole(&view, ino).unwrap().2, content(&view, "f")), (b"BElow".to_vec(), b"BElow".to_vec()));
    // Taken over: nothing new, and what is known of it goes on for as long as the contents do.
    view.setattr(ino, SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
    assert!(whole(&view, ino).is_none() && view.is_still(ino, &is).unwrap());
    let taken = snapshot(&workspace, branch);
    assert!(whole(&workspace.view_of(taken).unwrap(), ino).is_none());
    view.write(ino, 1, b"x").unwrap();
    assert!(whole(&view, ino).is_none() && !view.is_still(ino, &is).unwrap());
}

#[test]
fn what_was_taken_over_is_not_another_file_or_one_that_was_changed_since() {
    for fate in ["changed", "replaced", "removed", "cut", "written", "cut in the branch"] {
        let place = Place::new();
        let below = place.lower().join("f");
        std::fs::write(&below, vec![7; 100_000]).unwrap();
        let workspace = place.create();
        let view = workspace.view(branch(&workspace)).unwrap();
        let ino = at(&view, "f");
        let (_, is, _) = whole(&view, ino).unwrap();
        view.setattr(ino, SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
        assert!(view.is_still(ino, &is).unwrap());
        match fate {
            "changed" => std::fs::File::options().write(true).open(&below).unwrap().write_all_at(b"x", 0).unwrap(),
            "replaced" => {
                std::fs::write(place.lower().join("new"), vec![7; 100_000]).unwrap();
                std::fs::rename(place.lower().join("new"), &below).unwrap();
            }
            "removed" => std::fs::remove_file(&below).unwrap(),
            "cut" => std::fs::File::options().write(true).open(&below).unwrap().set_len(50_000).unwrap(),
            "written" => assert_eq!(view.write(ino, 90_000, b"x").unwrap(), 1),
            _ => drop(view.setattr(ino, SetAttr { size: Some(99_999), ..SetAttr::default() }).unwrap()),
        }
        assert!(!matches!(view.is_still(ino, &is), Ok(true)), "{fate}");
    }
}

#[test]
fn what_is_pinned_is_its_pin_whatever_is_done_below_and_a_snapshot_is_nothing_else() {
    let place = Place::pinned();
    let below = place.lower().join("f");
    std::fs::write(&below, "below").unwrap();
    std::fs::write(place.lower().join("large"), vec![0; (64 << 20) + 1]).unwrap();
    let workspace = place.create();
    let base = workspace.base_with_names(b"").unwrap();
    let branch = workspace.branch(base, b"").unwrap();
    let view = workspace.view(branch).unwrap();
    let (ino, large) = (at(&view, "f"), at(&view, "large"));
    // Not pinned yet.
    assert!(whole(&view, ino).is_none() && view.whole(large, 5).unwrap().is_none());
    drop(view);
    workspace.take_fingerprints(base).unwrap();
    let view = workspace.view(branch).unwrap();
    let (ino, large) = (at(&view, "f"), at(&view, "large"));
    let (file, is, bytes) = whole(&view, ino).unwrap();
    assert_eq!(bytes, b"below");
    assert_ne!(file.metadata().unwrap().ino(), std::fs::metadata(&below).unwrap().ino());
    // Too large for a pin: shown as it is.
    assert!(view.whole(large, 5).unwrap().is_some());
    let taken = snapshot(&workspace, branch);
    for change in [0, 1, 2] {
        match change {
            0 => std::fs::File::options().write(true).open(&below).unwrap().write_all_at(b"BE", 0).unwrap(),
            1 => std::fs::set_permissions(&below, std::fs::Permissions::from_mode(0o000)).unwrap(),
            _ => std::fs::remove_file(&below).unwrap(),
        }
        assert!(view.is_still(ino, &is).unwrap(), "{change}");
        assert_eq!(whole(&view, ino).unwrap().2, b"below", "{change}");
        let old = workspace.view_of(taken).unwrap();
        let (then, too_large) = (at(&old, "f"), at(&old, "large"));
        assert_eq!(whole(&old, then).unwrap().2, b"below", "{change}");
        assert!(old.whole(too_large, 5).unwrap().is_none(), "somebody can change it");
    }
    view.setattr(ino, SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
    assert!(view.is_still(ino, &is).unwrap());
    view.write(ino, 4, b"x").unwrap();
    assert!(!view.is_still(ino, &is).unwrap());
}
