//! Who is not let into the workspace finds nothing in what lies behind it.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::process::Signal;

use super::Scene;

fn bits(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

fn give(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn what_lies_behind_is_shut_and_the_workspace_keeps_its_bits() {
    let scene = Scene::new();
    let (work, behind) = (scene.workspace(), scene.behind());
    give(&work, 0o2755);
    scene.there().unwrap();
    assert_eq!((bits(&work), bits(&behind)), (0o2755, 0o2700));
    let before = scene.snapshot("before").unwrap();
    // By hand, or never shut, as a former version left it.
    give(&behind, 0o755);
    scene.end(Signal::TERM);
    scene.reclaim(true).unwrap();
    assert_eq!((bits(&work), bits(&behind)), (0o2755, 0o700));
    assert_eq!(scene.cat(&before, "a"), "as it was");
    scene.destroy(before);
    give(&work, 0o750);
    scene.back().unwrap();
    assert_eq!(bits(&work), 0o750);
    // Of one that was nobody else's, the branch reads the bits below.
    give(&work, 0o700);
    scene.there().unwrap();
    give(&behind, 0o755);
    scene.end(Signal::TERM);
    scene.reclaim(true).unwrap();
    assert_eq!((bits(&work), bits(&behind)), (0o755, 0o700));
    give(&behind, 0o750);
    scene.end(Signal::KILL);
    scene.settle();
    assert_eq!((bits(&work), bits(&behind)), (0o755, 0o700));
    scene.back().unwrap();
    assert_eq!(bits(&work), 0o755);
}
