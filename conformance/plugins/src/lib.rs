//! Plugins for tests, and what they have in common.
//!
//! The plugins are the examples of this package. [`library`] builds them (once a process) and gives the file of one; [`folder`]
//! copies some into a new folder under names that `ah` looks for. What is wrong with each is in its `examples/` file.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a helper of tests, which may fail loudly")]

mod trivial;

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

pub use trivial::Trivial;

/// The file of a test plugin: `good`, `panics`, …; see the files in `examples/`.
///
/// # Panics
/// If the plugins cannot be built.
#[must_use]
pub fn library(name: &str) -> PathBuf {
    let path = built().join(format!("libplugin_{name}.so"));
    assert!(path.is_file(), "{} is not there; is it an example of ah-test-plugins?", path.display());
    path
}

/// A new folder with copies of test plugins under the names that `ah` looks for: `libah_provider_<name>.so`.
///
/// # Panics
/// If the plugins cannot be built or copied.
#[must_use]
pub fn folder(names: &[&str]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a temporary folder");
    for name in names {
        std::fs::copy(library(name), dir.path().join(format!("libah_provider_{name}.so"))).expect("a copy");
    }
    dir
}

/// Builds the plugins in the profile and target folder of the running test, and gives the folder they are in.
fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        // target/[triple/]<profile>/deps/<test>, or target/[triple/]<profile>/<program>
        let exe = env::current_exe().expect("a running test");
        let mut folder = exe.parent().expect("a folder");
        if folder.ends_with("deps") {
            folder = folder.parent().expect("a folder");
        }
        if env::var_os("AH_TEST_PLUGINS_BUILT").is_none() {
            build(folder);
        }
        folder.join("examples")
    })
}

fn build(profile_folder: &Path) {
    let profile = match profile_folder.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(other) => other,
    };
    let mut target = profile_folder.parent().expect("a target folder");
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from(env!("CARGO"))));
    command.args(["build", "--quiet", "--package", "ah-test-plugins", "--examples", "--profile", profile]);
    if !target.join(".rustc_info.json").is_file() {
        command.arg("--target").arg(target.file_name().expect("a triple"));
        target = target.parent().expect("a target folder");
    }
    command.arg("--target-dir").arg(target).current_dir(env!("CARGO_MANIFEST_DIR"));
    let status = command.status().expect("cargo can be run");
    assert!(status.success(), "the test plugins cannot be built");
}
