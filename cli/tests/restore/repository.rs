//! The repository of a workspace, and those in it, that are gone or broken: no restore puts one back, and what is said does.

use std::fs;
use std::process::Command;

use crate::support::bench::Bench;
use crate::support::{Ran, User, World, ah};

/// What a hint quotes that begins so.
fn quoted<'a>(ran: &'a Ran, begin: &str) -> &'a str {
    ran.stderr.split('`').find(|text| text.starts_with(begin)).unwrap_or_else(|| panic!("no {begin} in {ran:?}"))
}

/// Does what a line says, as the user types it.
fn typed(world: &World, line: &str) {
    let typed = world.command(["-c", line]);
    let words = std::iter::once(typed.get_program()).chain(typed.get_args());
    let mut words = words.map(|word| if word == ah().as_os_str() { "sh".as_ref() } else { word });
    let mut shell = Command::new(words.next().unwrap());
    shell.args(words).current_dir(world.root()).env_clear();
    shell.envs(typed.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell.env("PATH", format!("{}:/usr/bin:/bin", ah().parent().unwrap().display()));
    let ran = Ran::of(&mut shell);
    assert_eq!(ran.code, 0, "{line}: {ran:?}");
}

#[test]
fn a_repository_that_is_gone_is_said() {
    World::each(|world| {
        let git = |arguments: &[&str]| {
            let mut git = Command::new("git");
            let commit = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "safe.directory=*"];
            assert!(git.args(commit).args(arguments).current_dir(world.root()).status().unwrap().success());
        };
        git(&["init", "--quiet"]);
        world.write("f", "1");
        git(&["add", "f"]);
        git(&["commit", "--quiet", "--message=one"]);
        world.fs(["snapshot", "-m", "s"]);
        if world.can("applies-policy") {
            assert!(world.run(["agent", "fs", "cat", "s", ".git/HEAD"]).stderr.contains("makes a repository"));
        }
        assert!(!world.run(["agent", "fs", "restore", "s"]).stderr.contains(".git"));
        fs::remove_dir_all(world.root().join(".git")).unwrap();
        let ran = world.run(["agent", "fs", "restore", "s"]);
        assert_eq!(ran.code, 0, "{ran:?}");
        assert!(ran.stderr.contains("the repository (.git) that was here is gone"), "{ran:?}");
        assert!(world.run(["--color", "never"]).stderr.contains("the repository (.git) that was here is gone"));
        // Whether it comes back whole depends on what snapshots hold.
        assert_eq!(ran.stderr.contains("no settings, remotes"), world.can("applies-policy"), "{ran:?}");
        assert_eq!(ran.stderr.contains("whole, as it was"), !world.can("applies-policy"), "{ran:?}");
        // What is printed brings it back, typed as it stands, and leaves nothing else.
        let line = quoted(&ran, "b=$(ah ");
        typed(world, line);
        assert_eq!(world.json("branches", &["agent", "fs", "branches"])["branches"], serde_json::json!([]));
        git(&["diff", "--cached", "--quiet", "HEAD"]);
        let ran = world.run(["agent", "fs", "restore", "s"]);
        assert!(ran.code == 0 && !ran.stderr.contains(".git"), "{ran:?}");
        assert!(!world.run(["--color", "never"]).stderr.contains(".git"));
        // One that was wrecked is none either, whatever is left of it.
        for part in ["refs", "objects", "HEAD"] {
            let (path, aside) = (world.root().join(".git").join(part), world.root().join(".git/aside"));
            fs::rename(&path, &aside).unwrap();
            let ran = world.run(["agent", "fs", "restore", "s"]);
            assert!(
                ran.code == 0 && ran.stderr.contains(&format!("broken, and Git does not open it: it has no {part}"))
            );
            assert!(ran.stderr.contains("move that `.git` out of the workspace, then `b=$(ah -C "), "{ran:?}");
            let bare = world.run(["--color", "never"]);
            assert!(bare.code == 0 && bare.stderr.contains(&format!("it has no {part}")), "{bare:?}");
            fs::rename(&aside, &path).unwrap();
        }
        // Who takes a snapshot without one means that.
        fs::remove_dir_all(world.root().join(".git")).unwrap();
        world.fs(["snapshot"]);
        assert!(!world.run(["--color", "never"]).stderr.contains(".git"));
    });
}

#[test]
fn where_snapshots_hold_all_of_it_a_repository_comes_back_whole() {
    let bench = Bench::new(User::Me);
    let branch = bench.branch("b");
    bench.sh(&format!("cd {} && git init --quiet && git config alias.own status", branch.display()));
    bench.at(&branch, &["snapshot", "-m", "s"]);
    bench.sh(&format!("rm -r {}/.git", branch.display()));
    let ran = bench.ran(&branch, &["restore", "s"]);
    assert!(ran.stderr.contains("whole, as it was") && !ran.stderr.contains("no settings"), "{ran:?}");
    typed(&bench.0, quoted(&ran, "b=$(ah "));
    assert_eq!(bench.sh(&format!("git -C {} config alias.own", branch.display())), "status");
}

#[test]
fn a_submodule_whose_repository_is_gone_is_told_of_until_it_is_back() {
    let world = World::on_git();
    let git = |at: &str, arguments: &[&str]| {
        let mut git = Command::new("git");
        git.args(["-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always"]).args(arguments);
        assert!(git.current_dir(world.path(at)).status().unwrap().success(), "{arguments:?}");
    };
    fs::create_dir(world.path("lib")).unwrap();
    fs::write(world.path("lib/f"), "of the submodule").unwrap();
    fs::write(world.path("home/.gitconfig"), "[protocol \"file\"]\n\tallow = always\n").unwrap();
    for at in ["lib", "w"] {
        git(at, &["init", "--quiet"]);
    }
    git("lib", &["add", "."]);
    git("lib", &["commit", "--quiet", "--message=one"]);
    git("w", &["submodule", "--quiet", "add", world.path("lib").to_str().unwrap(), "deep/sub"]);
    git("w", &["commit", "--quiet", "--message=one"]);
    world.fs(["snapshot", "-m", "s"]);
    let lost = "the .git of the submodule deep/sub leads to no repository";
    let bare = || world.run(["--color", "never"]);
    // Damaged, and the repository that it led to is there.
    world.write("deep/sub/.git", "gitdir: ../../.git/m0dules/deep/sub\n");
    world.write("deep/sub/f", "the user's");
    for ran in [bare(), world.run(["agent", "fs", "restore", "s", "--", "deep/sub"])] {
        assert!(ran.code == 0 && ran.stderr.contains(lost), "{ran:?}");
        assert!(quoted(&ran, "echo 'gitdir: ../../.git/modules/deep/sub'").contains("/w/deep/sub/.git"), "{ran:?}");
    }
    assert!(!world.run(["agent", "fs", "restore", "s", "--dry-run", "--", ".gitmodules"]).stderr.contains(lost));
    typed(&world, quoted(&bare(), "echo "));
    git("w", &["diff", "--quiet", "HEAD"]);
    assert!(!bare().stderr.contains(lost));
    // Damaged, and what it led to is, too.
    fs::remove_file(world.root().join(".git/modules/deep/sub/HEAD")).unwrap();
    world.write("deep/sub/f", "damaged");
    let ran = bare();
    assert!(ran.stderr.contains(lost), "{ran:?}");
    typed(&world, quoted(&ran, "mv -T "));
    git("w", &["diff", "--quiet", "HEAD"]);
    assert_eq!(world.read("deep/sub.was/f").as_deref(), Some("damaged"));
    assert!(world.root().join(".git/modules/deep/sub.was/objects").exists() && !bare().stderr.contains(lost));
    fs::remove_dir_all(world.root().join("deep/sub.was")).unwrap();
    // Gone with that of the workspace.
    fs::remove_dir_all(world.root().join(".git")).unwrap();
    world.write("deep/sub/f", "the user's");
    let ran = bare();
    assert!(ran.stderr.contains("tells how those of these come back: deep/sub"), "{ran:?}");
    typed(&world, quoted(&ran, "b=$(ah "));
    assert!(!Command::new("git").arg("status").current_dir(world.root()).output().unwrap().status.success());
    let ran = bare();
    assert!(ran.stderr.contains(lost), "{ran:?}");
    typed(&world, quoted(&ran, "mv -T "));
    git("w", &["diff", "--quiet", "HEAD"]);
    assert_eq!(world.read("deep/sub.was/f").as_deref(), Some("the user's"));
    assert!(!bare().stderr.contains(".git"));
}

#[test]
fn a_git_file_that_leads_nowhere_is_not_taken_for_what_the_snapshot_holds() {
    let bench = Bench::new(User::Me);
    let branch = bench.branch("b");
    let in_branch = |line: &str| bench.sh(&format!("cd {} && {line}", branch.display()));
    in_branch("git init --quiet && mkdir .git/modules && git init --quiet --separate-git-dir=.git/modules/sub sub");
    bench.at(&branch, &["snapshot", "-m", "s"]);
    in_branch("echo gitdir: ../.git/m0dules/sub > sub/.git");
    let ran = bench.ran(&branch, &["restore", "s"]);
    let lost = "sub/.git (it leads to no repository any more, and repositories are left alone: the snapshot holds it)";
    assert!(ran.code == 4 && ran.stderr.contains(lost) && !ran.stderr.contains("already"), "{ran:?}");
    typed(&bench.0, quoted(&ran, "v=$(ah "));
    in_branch("git -C sub rev-parse --git-dir");
    assert!(bench.at(&branch, &["restore", "s"]).is_empty());
}

#[test]
fn a_git_file_inside_that_leads_nowhere_is_said_where_the_snapshot_does_not_hold_it() {
    let world = World::on_git();
    let git = |at: &str, arguments: &[&str]| {
        let mut git = Command::new("git");
        git.args(["-c", "user.name=a", "-c", "user.email=a@b", "-c", "safe.directory=*"]).args(arguments);
        assert!(git.current_dir(world.path(at)).status().unwrap().success(), "{arguments:?}");
    };
    fs::create_dir(world.path("main")).unwrap();
    git("main", &["init", "--quiet"]);
    git("main", &["commit", "--quiet", "--allow-empty", "--message=one"]);
    git("main", &["worktree", "add", "--quiet", "../w/in/linked"]);
    git("w", &["init", "--quiet", "--separate-git-dir=../apart", "apart"]);
    world.fs(["snapshot", "-m", "s"]);
    let lost = |arguments: &[&str]| {
        let ran = world.run([&["agent", "fs", "restore", "s"], arguments].concat());
        assert_eq!(ran.code, 0, "{ran:?}");
        ran.stderr.lines().find(|line| line.contains("to no repository")).map(str::to_owned)
    };
    assert_eq!(lost(&[]), None);
    let whole = world.read("in/linked/.git").unwrap();
    world.write("in/linked/.git", "gitdir: nowhere\n");
    let said = lost(&[]).unwrap();
    assert!(said.contains("in/linked/.git leads to no repository; the snapshot does not hold that"), "{said}");
    assert_eq!(lost(&["--", "apart"]), None);
    git("main", &["worktree", "repair"]);
    assert_eq!((lost(&[]), world.read("in/linked/.git")), (None, Some(whole)));
    for at in ["in/linked/.git", "apart/.git"] {
        world.write(at, "gitdir: nowhere\n");
    }
    assert!(lost(&[]).unwrap().contains("apart/.git and 1 more lead to no repository"));
}

#[test]
fn a_head_on_a_branch_whose_name_is_not_utf_8_is_told_as_that() {
    let world = World::on_git();
    let git = |line: &str| {
        let line = format!("git -c user.name=a -c user.email=a@b {line}");
        assert!(
            Command::new("bash").args(["-c", &line]).current_dir(world.root()).status().unwrap().success(),
            "{line}"
        );
    };
    git("init --quiet --initial-branch=main");
    git("commit --quiet --allow-empty --message=one");
    git("checkout --quiet -b $'caf\\xe9'");
    let snapshot = world.run(["agent", "fs", "snapshot", "-m", "s"]);
    assert!(snapshot.code == 0 && !snapshot.stderr.contains("not kept"), "{snapshot:?}");
    let shown = world.run(["agent", "fs", "show", "s"]);
    assert!(shown.stdout.contains(r"on $'refs/heads/caf\351'"), "{shown:?}");
    assert_eq!(
        world.json("show", &["agent", "fs", "show", "s"])["snapshot"]["repository"]["branch_hex"],
        "726566732f68656164732f636166e9"
    );
    git("checkout --quiet main");
    let ran = world.run(["agent", "fs", "restore", "s"]);
    assert!(
        ran.stderr.contains(r"on $'caf\351' at that moment and is ") && ran.stderr.contains("on main now"),
        "{ran:?}"
    );
    let branch = world.fs(["branch", "s"]);
    let head = fs::read(std::path::Path::new(&branch).join(".git/HEAD")).unwrap();
    assert_eq!(head, b"ref: refs/heads/caf\xe9\n");
    let log = Command::new("git")
        .args(["-c", "safe.directory=*", "log", "--format=%s"])
        .current_dir(&branch)
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&log.stdout), "one\n", "{log:?}");
}
