//! What of the host for Windows can be run anywhere: how names are shown there.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

#[test]
fn names_are_the_same_after_windows() {
    let place = tempfile::tempdir().unwrap();
    let (sources, program) = (Path::new(env!("CARGO_MANIFEST_DIR")).join("../winfsp"), place.path().join("names"));
    let compiled = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-o"])
        .arg(&program)
        .args(["names.c", "names_test.c"].map(|file| sources.join(file)))
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let ran = Command::new(&program).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}
