//! After restore, undo and in a branch, make and cargo rebuild what changed, and the program that then runs is the right one.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::{self, World};

fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

fn make(at: &Path) -> String {
    output(Command::new("make").arg("-s").current_dir(at));
    output(&mut Command::new(at.join("out/program")))
}

/// A project of two sources and two outputs in an ignored folder.
fn make_project(world: &World) {
    world.write(".gitignore", "out/\n");
    world.write(
        "Makefile",
        format!(
            "all: out/program out/other\n\
             out/%: %.in\n\t@mkdir -p out\n\t@cp $< $@\n\t@chmod +x $@\n\t@echo $@ >>'{}'\n",
            world.path("log").display()
        ),
    );
    world.write("program.in", "#!/bin/sh\necho v1\n");
    world.write("other.in", "#!/bin/sh\necho other\n");
}

/// What was rebuilt since the last time this was asked.
fn rebuilt(world: &World) -> Vec<String> {
    let log = fs::read_to_string(world.path("log")).unwrap_or_default();
    let _ = fs::remove_file(world.path("log"));
    log.lines().map(str::to_owned).collect()
}

#[test]
fn make_after_restore_and_undo() {
    let world = World::new();
    make_project(&world);
    assert_eq!(make(&world.root()), "v1");
    let first = world.fs(["snapshot"]);
    world.write("program.in", "#!/bin/sh\necho v2\n");
    assert_eq!(make(&world.root()), "v2");
    rebuilt(&world);
    world.fs(["restore", &first]);
    assert_eq!(make(&world.root()), "v1");
    assert_eq!(rebuilt(&world), ["out/program"]);
    world.fs(["undo"]);
    assert_eq!(make(&world.root()), "v2");
    assert_eq!(rebuilt(&world), ["out/program"]);
    world.fs(["undo"]);
    assert_eq!(make(&world.root()), "v1");
    assert_eq!(rebuilt(&world), ["out/program"]);
}

#[test]
fn make_rebuilds_a_captured_output_that_was_out_of_date() {
    let world = World::new();
    world.write(".gitignore", "*.o\nlog\n");
    world.write("Makefile", "a.o: a.c a.h\n\t@cat a.h >a.o\n\t@echo a.o >>log\n");
    world.write("a.c", "c");
    world.write("a.h", "v1");
    let make = || output(Command::new("make").arg("-s").current_dir(world.root()));
    make();
    std::thread::sleep(std::time::Duration::from_millis(20));
    world.write("a.h", "v2");
    let stale = world.fs(["snapshot"]);
    fs::remove_file(world.root().join("a.o")).unwrap();
    world.fs(["restore", &stale]);
    assert_eq!(fs::read_to_string(world.root().join("a.o")).unwrap(), "v1");
    make();
    assert_eq!(fs::read_to_string(world.root().join("a.o")).unwrap(), "v2");
    // Source and output come back together: neither looks newer than it was.
    let built = world.fs(["snapshot"]);
    fs::remove_file(world.root().join("a.o")).unwrap();
    world.write("a.h", "v3");
    world.fs(["restore", &built]);
    make();
    assert_eq!(fs::read_to_string(world.root().join("a.o")).unwrap(), "v2");
}

#[test]
fn make_in_a_branch() {
    let world = World::new();
    make_project(&world);
    assert_eq!(make(&world.root()), "v1");
    let first = world.fs(["snapshot"]);
    // The same contents again, so that its time is not the captured one; the other one changes.
    world.write("other.in", "#!/bin/sh\necho other\n");
    world.write("program.in", "#!/bin/sh\necho v2\n");
    assert_eq!(make(&world.root()), "v2");
    rebuilt(&world);

    let past = world.fs(["branch", &first, "--name", "past"]);
    let past = Path::new(&past);
    assert!(past.join("out/program").exists(), "build output came along");
    rebuilt(&world);
    assert_eq!(make(past), "v1");
    // Who captured the output has it as it was with these sources; what came along from the present is newer.
    let captured = support::on_btrfs(&world.root());
    assert_eq!(rebuilt(&world), if captured { &[][..] } else { &["out/program"] });
    assert_eq!(make(past), "v1");
    assert!(rebuilt(&world).is_empty());

    let present = world.fs(["branch", "--name", "present", "--mode", "worktree"]);
    rebuilt(&world);
    assert_eq!(make(Path::new(&present)), "v2");
    assert!(rebuilt(&world).is_empty(), "nothing differs from the workspace, so nothing is rebuilt");
    assert_eq!(make(&world.root()), "v2");
}

/// Builds and runs with cargo.
fn cargo(at: &Path) -> String {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["run", "--quiet", "--offline"]).current_dir(at).env_remove("CARGO_TARGET_DIR").env_remove("RUSTFLAGS");
    output(&mut cargo)
}

fn source(version: &str) -> String {
    format!("fn main() {{\n    println!(\"{{}}\", {version:?});\n}}\n")
}

#[test]
fn cargo_after_restore_undo_and_in_a_branch() {
    let world = World::new();
    world.write(".gitignore", "target/\n");
    let manifest = "[package]\nname = \"tiny\"\nversion = \"0.1.0\"\nedition = \"2021\"\n\n[workspace]\n";
    world.write("Cargo.toml", manifest);
    world.write("src/main.rs", source("v1"));
    assert_eq!(cargo(&world.root()), "v1");
    let first = world.fs(["snapshot"]);
    world.write("src/main.rs", source("v2"));
    assert_eq!(cargo(&world.root()), "v2");
    world.fs(["restore", &first]);
    assert_eq!(cargo(&world.root()), "v1");
    world.fs(["undo"]);
    assert_eq!(cargo(&world.root()), "v2");

    let branch = world.fs(["branch", &first, "--name", "past"]);
    assert!(Path::new(&branch).join("target/debug").is_dir());
    assert_eq!(cargo(Path::new(&branch)), "v1");
    // At the workspace's own path cargo takes the output for its own: only the times tell it what to rebuild.
    world.fs(["branch", &first, "--name", "again"]);
    let ran = crate::support::Ran::of(
        world
            .command(["agent", "fs", "exec", "again", "--"])
            .args([env!("CARGO"), "run", "--quiet", "--offline"])
            .env("PATH", std::env::var_os("PATH").unwrap())
            .envs(
                ["HOME", "CARGO_HOME", "RUSTUP_HOME"]
                    .into_iter()
                    .filter_map(|name| Some((name, std::env::var_os(name)?))),
            ),
    );
    assert_eq!((ran.code, ran.stdout.trim_end()), (0, "v1"), "{ran:?}");
    assert_eq!(cargo(&world.root()), "v2");
}
