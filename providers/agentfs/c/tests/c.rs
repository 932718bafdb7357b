//! A C program drives the library: compiled here by the system's compiler against the header, linked both ways, and run. In the end the core
//! finds nothing wrong with the store.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

use ah_agentfs::Workspace;

/// The folder into which cargo put the library that this test is linked with, too.
fn built() -> PathBuf {
    let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    assert!(folder.join("libagentfs.a").is_file(), "no libagentfs.a in {}", folder.display());
    folder
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&said));
}

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// With everything that a careful C program has switched on.
fn compile(into: &Path, compiler: &str, standard: &str, source: &Path) {
    let options = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-O1", "-g", "-c"];
    let mut command = Command::new(compiler);
    run(command.arg(standard).args(options).arg("-I").arg(here("include")).arg("-o").arg(into).arg(source));
}

fn drive(link: impl FnOnce(&mut Command)) {
    let place = tempfile::tempdir().unwrap();
    let (store, lower) = (place.path().join("store"), place.path().join("lower"));
    std::fs::create_dir_all(lower.join("folder")).unwrap();
    std::fs::write(lower.join("below"), vec![b'b'; 3 << 20]).unwrap();
    std::fs::write(lower.join("folder/inner"), "inner").unwrap();
    let (object, program) = (place.path().join("object.o"), place.path().join("program"));
    compile(&object, "cc", "-std=c11", &here("tests/c/agentfs_test.c"));
    let mut linker = Command::new("cc");
    linker.arg("-o").arg(&program).arg(&object);
    link(&mut linker);
    run(&mut linker);
    run(Command::new(&program).args([&store, &lower]).arg("create"));
    std::fs::write(lower.join("below"), "somebody else's").unwrap();
    std::fs::write(lower.join("came"), "").unwrap();
    run(Command::new(&program).args([&store, &lower]).arg("reopen"));
    assert_eq!(std::fs::read(lower.join("below")).unwrap(), b"somebody else's");
    let problems = Workspace::fsck(&store, &lower, false).unwrap().problems;
    assert_eq!(problems, Vec::<String>::new());
}

#[test]
fn a_c_program_works_with_the_static_library() {
    drive(|linker| {
        linker.arg(built().join("libagentfs.a")).args(["-lpthread", "-lm"]);
        // What Rust's own library needs there.
        if cfg!(target_os = "linux") {
            linker.args(["-ldl", "-lgcc_s", "-lutil", "-lrt"]);
        }
    });
}

#[test]
fn a_c_program_works_with_the_shared_library() {
    drive(|linker| {
        let folder = built();
        linker.arg("-L").arg(&folder).arg("-lagentfs").arg(format!("-Wl,-rpath,{}", folder.display()));
        // The static one lies beside it.
        if cfg!(target_os = "linux") {
            linker.arg("-Wl,-Bdynamic");
        }
    });
}

#[test]
fn the_header_is_c_plus_plus_too() {
    let place = tempfile::tempdir().unwrap();
    let source = place.path().join("host.cpp");
    let uses = "#include \"agentfs.h\"\nint main() { agentfs_failure f; return agentfs_sync(nullptr, &f) == AGENTFS_CODE_INVALID; }\n";
    std::fs::write(&source, uses).unwrap();
    compile(&place.path().join("host.o"), "c++", "-std=c++17", &source);
}
