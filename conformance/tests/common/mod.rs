//! What the tests of whole libraries share: building them, and starting the child.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::path::{Path, PathBuf};
use std::process::Command;

use ah_conformance::{ChildCommand, Options, Report};

/// The program that loads a library for us.
pub(crate) fn child() -> ChildCommand {
    ChildCommand { program: env!("CARGO_BIN_EXE_conformance-child").into(), args: Vec::new() }
}

/// The folder of the project.
pub(crate) fn project() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("conformance/ lies in the project")
}

/// The folder of the profile that this test was built with: target/<profile>/conformance-child.
fn profile() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_conformance-child")).parent().expect("a profile's folder")
}

/// Builds the package whose manifest is at `manifest` in the running test's target folder; gives the library `name`.
pub(crate) fn build(manifest: &str, name: &str) -> PathBuf {
    build_in(profile().parent().expect("a target folder"), manifest, name)
}

/// Builds the example provider, which is no part of the workspace, in a target folder of its own.
pub(crate) fn build_example() -> PathBuf {
    let target = profile().parent().expect("a target folder").join("examples");
    build_in(&target, "examples/minimal-provider/Cargo.toml", "libah_provider_minimal.so")
}

fn build_in(target: &Path, manifest: &str, name: &str) -> PathBuf {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| env!("CARGO").into()));
    command.args(["build", "--quiet", "--manifest-path"]).arg(project().join(manifest)).arg("--target-dir").arg(target);
    if profile().ends_with("release") {
        command.arg("--release");
    }
    let status = command.status().expect("cargo can be run");
    assert!(status.success(), "{manifest} cannot be built");
    let library = target.join(profile().file_name().expect("a profile")).join(name);
    assert!(library.is_file(), "{} was not built", library.display());
    library
}

/// The options of these tests: on the usual temporary folder, strict where the environment says that nothing may be missing.
pub(crate) fn options() -> Options {
    let mut options = Options::new(std::env::temp_dir());
    // To run some cases only: AH_TEST_CASES=exact.,views.names
    let only = std::env::var("AH_TEST_CASES").unwrap_or_default();
    options.only = only.split(',').filter(|part| !part.is_empty()).map(ToOwned::to_owned).collect();
    options.strict = std::env::var_os("AH_TEST_STRICT").is_some_and(|value| value == "1");
    options
}

/// Fails with the report unless it is a good one.
pub(crate) fn must_keep(report: &Report) {
    println!("{}", report.to_text(true));
    assert!(report.ok, "{}", report.to_text(false));
}
