//! Modes and times that are set in place: of which files, and not of those that somebody changes meanwhile.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::SystemTime;

use super::lab::{Ask, Lab};
use super::{chmod, make_old, path};
use crate::restore::scope::Scope;

fn mode(lab: &Lab, name: &str) -> u32 {
    lab.at(name).metadata().unwrap().permissions().mode() & 0o7777
}

fn time(lab: &Lab, name: &str) -> SystemTime {
    lab.at(name).metadata().unwrap().modified().unwrap()
}

#[test]
fn no_mode_or_time_is_set_under_names_that_are_not_to_be_like_it() {
    let lab = Lab::like_git();
    for name in ["f", "alone", "d/one", "d/two"] {
        lab.write(name, "same");
        make_old(&lab.at(name));
    }
    let target = lab.snapshot();
    // Outside of the workspace, and outside of what is asked for.
    std::fs::hard_link(lab.at("f"), lab.at("../outside")).unwrap();
    std::fs::hard_link(lab.at("alone"), lab.at("other")).unwrap();
    std::fs::remove_file(lab.at("d/two")).unwrap();
    std::fs::hard_link(lab.at("d/one"), lab.at("d/two")).unwrap();
    for name in ["f", "alone", "d/one"] {
        chmod(&lab.at(name), 0o600);
    }
    let before = ["f", "alone", "d/one"].map(|name| time(&lab, name));
    let file = lab.at("d/one").metadata().unwrap().ino();
    let scope = || Scope::Below(vec![path("f"), path("alone"), path("d")]);
    let (safety, outcome) = lab.restore(&target, &Ask { scope: scope(), ..Ask::default() });
    for name in ["f", "alone", "d/one", "d/two"] {
        assert_eq!((mode(&lab, name), lab.text(name).as_str()), (0o644, "same"), "{name}");
    }
    assert_eq!(["../outside", "other"].map(|name| mode(&lab, name)), [0o600; 2]);
    // What has the contents already keeps its time.
    assert_eq!(["f", "alone", "d/one"].map(|name| time(&lab, name)), before);
    // All names of this one become alike, so it stays what it is.
    assert_eq!(["d/one", "d/two"].map(|name| lab.at(name).metadata().unwrap().ino()), [file; 2]);
    lab.undo(&safety, &outcome);
    assert_eq!(["f", "alone", "d/one", "d/two"].map(|name| mode(&lab, name)), [0o600; 4]);

    std::fs::hard_link(lab.at("f"), lab.at("../again")).unwrap();
    chmod(&lab.at("f"), 0o644);
    let now = SystemTime::now();
    std::fs::File::open(lab.at("f")).unwrap().set_modified(now).unwrap();
    lab.restore(&target, &Ask { scope: scope(), exact_times: true, ..Ask::default() });
    assert_eq!((time(&lab, "f"), time(&lab, "../again")), (before[0], now));
}
