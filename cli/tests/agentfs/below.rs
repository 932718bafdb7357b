//! The workspace that branches read in: what is changed there, and what is told and put back of it.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::support::bench::{Bench, until};
use crate::support::{self, User, is_root, skip};

#[test]
fn what_is_changed_below_is_never_shown_as_something_else() {
    Bench::each_unpinned(|bench| {
        let branch = bench.branch("b");
        let text = branch.to_str().unwrap();
        bench.sh(&format!("cat {text}/f; echo mine > {text}/src/main"));
        bench.at(&branch, &["snapshot", "-m", "before"]);
        let told = || {
            let timeline = bench.0.run(["-C", text, "timeline", "--json"]).stdout;
            let timeline: serde_json::Value = serde_json::from_str(&timeline).unwrap();
            support::schema::check("timeline", &timeline);
            let events = timeline["events"].as_array().unwrap().clone();
            events.into_iter().filter(|event| event["type"] == "changed-below").collect::<Vec<_>>()
        };
        assert_eq!(told(), Vec::<serde_json::Value>::new());
        bench.0.write("f", "changed by the user");
        bench.0.write("src/main", "also changed");
        assert_eq!(bench.at(&branch, &["cat", "before", "src/main"]), "mine");
        let ran = bench.ran(&branch, &["cat", "before", "f"]);
        assert!(ran.code == 1 && ran.stderr.contains("f"), "{ran:?}");
        // Status says so at once, the timeline with the next snapshot, and once.
        let status = || bench.at(&branch, &["status"]);
        until(|| status().contains("; 1 path that it reads in the workspace became other there"));
        assert!(!status().contains("src/main"), "{}", status());
        let said = |words: &[&str]| bench.ran(&branch, words).stderr.contains("1 path became other in the workspace");
        assert!(said(&["snapshot", "-m", "after"]));
        assert!(!said(&["snapshot"]));
        let events = told();
        assert_eq!(events.len(), 1, "{events:?}");
        assert_eq!((&events[0]["total"], &events[0]["paths"]), (&1.into(), &serde_json::json!(["f"])));
        let table = bench.0.run(["-C", text, "timeline"]).stdout;
        assert!(table.contains("changed below") && table.contains("in the workspace: 1 path: f"), "{table}");
        // Another branch has heard of nothing, and grew from what is there now.
        let other = bench.branch("other");
        bench.at(&other, &["snapshot"]);
        let status = || bench.at(&other, &["status"]);
        assert!(!status().contains("became other there"));
        // A mode is told, too: the branch shows it, and its snapshots the old one.
        bench.sh(&format!("cat {}/src/main", other.display()));
        fs::set_permissions(bench.0.root().join("src/main"), PermissionsExt::from_mode(0o755)).unwrap();
        until(|| status().contains("; 1 path that it reads in the workspace became other there"));
        bench.0.fs(["rm", "--force", "b", "other"]);
    });
}

/// How many files are pinned.
fn pins(bench: &Bench) -> String {
    let state = bench.0.path("state");
    bench.sh(&format!("find {} -path '*/tree/pins/*' -type f | grep -vc /new || true", state.display()))
}

#[test]
fn what_is_changed_or_removed_below_stays_in_branches_and_snapshots() {
    // Shared, and copied.
    for disk in ["xfs", "ext4"].into_iter().filter_map(|kind| ah_test_disks::Disk::new(kind, 400, "")) {
        let bench = Bench::within(support::User::Me, disk.at());
        let branch = bench.branch("b");
        bench.sh(&format!("echo mine > {}/mine", branch.display()));
        let before = bench.at(&branch, &["snapshot"]);
        // f, src/main, .gitignore and node_modules/big: behind the branch.
        until(|| pins(&bench) == "4");
        bench.0.write("f", "changed by the user");
        bench.sh(&format!("rm -r {}/src", bench.0.root().display()));
        assert_eq!(bench.at(&branch, &["cat", &before, "f"]), "one");
        assert_eq!(bench.at(&branch, &["cat", &before, "src/main"]), "fn main() {}");
        assert_eq!(bench.at(&branch, &["diff", &before]), "");
        // So does the branch, and nothing is told.
        assert_eq!(bench.sh(&format!("cd {}; cat f src/main", branch.display())), "onefn main() {}");
        bench.at(&branch, &["snapshot"]);
        assert!(!bench.at(&branch, &["status"]).contains("became other there"));
        let view = bench.at(&branch, &["seek", &before]);
        assert_eq!(
            bench.sh(&format!("cd {view}; cat f src/main mine; ls")),
            "onefn main() {}mine\nf\nmine\nnode_modules\nsrc"
        );
        bench.at(&branch, &["release", &view]);
        bench.0.fs(["rm", "--force", "b"]);
    }
}

#[test]
fn what_branches_grow_from_saves_nothing_of_the_workspace_that_is_restored() {
    Bench::each(|bench| {
        let world = &bench.0;
        bench.branch("b");
        let base = world.json("snapshots", &["agent", "fs", "snapshots"])["snapshots"][0]["id"].clone();
        world.write("came-later", "and is to come back");
        world.fs(["restore", base.as_str().unwrap()]);
        assert_eq!(world.read("came-later"), None);
        world.fs(["undo"]);
        assert_eq!(world.read("came-later").as_deref(), Some("and is to come back"));
    });
}

#[test]
fn who_restores_is_told_of_the_branches_that_read_it_and_of_no_others() {
    let named = |bench: &Bench, words: &[&str]| {
        let ran = bench.0.run(["agent", "fs", "restore", "first"].iter().chain(words));
        assert!(ran.code == 0 && !ran.stderr.contains("is as in"), "{ran:?}");
        let line = ran.stderr.lines().find_map(|line| line.split("then show what is put back: ").nth(1));
        line.unwrap_or_default().to_owned()
    };
    Bench::each_unpinned(|bench| {
        bench.0.fs(["snapshot", "-m", "first"]);
        let (owns, reads) = (bench.branch("owns"), bench.branch("reads"));
        bench.sh(&format!("echo mine > {}/f; ls {}", owns.display(), reads.display()));
        bench.0.write("f", "changed by the user");
        // As the kernel remembers it, too.
        assert_eq!(bench.sh(&format!("stat -c %s {}/f", owns.display())), "5");
        let one = ["--dry-run", "--", "f"].map(|word| if word == "f" { bench.0.root().join("f") } else { word.into() });
        let one: Vec<&str> = one.iter().map(|word| word.to_str().unwrap()).collect();
        assert_eq!(named(bench, &one), "reads");
        assert_eq!(named(bench, &[]), "reads");
        bench.0.fs(["rm", "--force", "owns", "reads"]);
    });
    for disk in ["xfs", "ext4"].into_iter().filter_map(|kind| ah_test_disks::Disk::new(kind, 400, "")) {
        let bench = Bench::within(support::User::Me, disk.at());
        bench.unpin("src/main");
        bench.0.fs(["snapshot", "-m", "first"]);
        // Directories are kept for branches, whatever else is not.
        fs::create_dir(bench.0.root().join("later")).unwrap();
        bench.branch("b");
        until(|| pins(&bench) == "3");
        bench.0.write("f", "changed by the user");
        bench.0.write("new", "came later");
        assert_eq!(named(&bench, &["--dry-run"]), "");
        bench.0.write("src/main", "this one is not pinned");
        assert_eq!(named(&bench, &[]), "b");
        bench.0.fs(["rm", "--force", "b"]);
    }
}

#[test]
fn what_a_branch_changed_is_told_whatever_is_done_in_the_workspace() {
    Bench::each_unpinned(|bench| {
        bench.0.write("both", "of both");
        let (first, second) = (bench.branch("first"), bench.branch("second"));
        bench.sh(&format!("echo 1 > {0}/f; echo 1 > {0}/both; mkdir {0}/new; echo 1 > {0}/new/n", first.display()));
        bench.sh(&format!("echo 2 > {0}/src/main; echo 2 > {0}/both; rm -r {0}/node_modules", second.display()));
        let before = bench.at(&second, &["snapshot", "-m", "before"]);
        // The first one's work is brought home, and more is done there.
        let patch = bench.at(&first, &["diff", "--patch"]);
        bench.0.write("patch", format!("{patch}\n"));
        bench.sh(&format!("cd {} && git apply patch && rm patch && rm .gitignore", bench.0.root().display()));
        assert_eq!(bench.0.read("f").unwrap(), "1\n");
        assert_eq!(bench.at(&second, &["diff"]), "M\tboth\nD\tnode_modules/\nD\tnode_modules/big\nM\tsrc/main");
        assert_eq!(bench.at(&first, &["diff"]), "M\tboth\nM\tf\nA\tnew/\nA\tnew/n");
        // Of what both changed there is no patch any more, and that is no patch's silence.
        let ran = bench.ran(&second, &["diff", "--patch"]);
        assert!(ran.code == 1 && ran.stderr.contains("error: both differs"), "{ran:?}");
        assert!(ran.stdout.contains("+++ b/src/main") && !ran.stdout.contains("+++ b/both"), "{ran:?}");
        // And the second one goes back in its own time.
        bench.sh(&format!("echo 3 > {0}/src/main; rm {0}/both; echo 3 > {0}/third", second.display()));
        assert_eq!(bench.at(&second, &["diff", &before]), "D\tboth\nM\tsrc/main\nA\tthird");
        bench.at(&second, &["restore", &before]);
        assert_eq!(
            bench.sh(&format!("cat {0}/src/main {0}/both; ls {0}", second.display())),
            "2\n2\nboth\nf\nnew\nsrc"
        );
        bench.at(&second, &["undo"]);
        assert_eq!(bench.sh(&format!("cat {0}/src/main {0}/third", second.display())), "3\n3");
        // What they hold is known, and held.
        let refused = bench.0.run(["agent", "fs", "rm", "second"]);
        assert!(
            refused.code == 4 && refused.stderr.contains("2 changed files, 3 snapshots of its own, 2 deleted files"),
            "{refused:?}"
        );
        bench.0.fs(["rm", "first"]);
        bench.0.fs(["rm", "--force", "second"]);
    });
}

#[test]
fn what_reads_in_the_workspace_is_named_before_it_is_changed() {
    Bench::each(|bench| {
        let world = &bench.0;
        let first = world.fs(["snapshot", "-m", "first"]);
        world.write("f", "two");
        let ran = world.run(["agent", "fs", "branch", "--mode", "cow-overlay", "--name", "idea", "--carry", "none"]);
        assert!(ran.code == 0 && ran.stderr.contains("ignored files are there too"), "{ran:?}");
        world.fs(["branch", &first, "--name", "copy"]);
        for words in [&["restore", "first", "--dry-run"][..], &["restore", "first"]] {
            let ran = bench.ran(&world.root(), words);
            assert!(ran.code == 0 && ran.stderr.contains("then show what is put back: idea"), "{words:?}: {ran:?}");
        }
        // What it grew from says nothing of a file that was changed since, and nobody is to do anything about that.
        let ran = bench.ran(&world.root(), &["versions", "f"]);
        assert!(ran.code == 0 && !ran.stderr.contains("passed over"), "{ran:?}");
        let ran = bench.ran(&world.root(), &["convert"]);
        assert!(ran.code == 4 && ran.stderr.contains("idea") && ran.stderr.contains("agent fs rm idea"), "{ran:?}");
        // Unless the one who captures it does not say how much it stores.
        if world.can("usage") {
            world.fs(["prune", "max-size=1G", "--dry-run"]);
        }
        world.fs(["rm", "--force", "idea", "copy"]);
        assert!(!bench.ran(&world.root(), &["restore", "@", "--dry-run"]).stderr.contains("idea"));
    });
}

#[test]
fn a_restore_puts_back_what_is_known_and_names_the_rest() {
    Bench::each_unpinned(|bench| {
        let world = &bench.0;
        world.write("both", "of both");
        world.write("was", "there");
        let branch = bench.branch("b");
        let text = branch.to_str().unwrap();
        bench.sh(&format!("echo then > {text}/src/main; rm {text}/was"));
        let before = bench.at(&branch, &["snapshot"]);
        // Two names come below, and are shown since one is lost; one file is changed there. Then the branch writes to all of that.
        fs::remove_file(world.root().join("was")).unwrap();
        for name in ["gone-again", "over", "both"] {
            world.write(name, "came later");
        }
        until(|| bench.sh(&format!("ls {text}")).contains("over"));
        bench.sh(&format!("cd {text}; rm gone-again; echo mine > over; echo mine > both; echo now > src/main"));

        let restored = |dry: bool| {
            let mut words = vec!["restore", &before, "--json"];
            words.extend(dry.then_some("--dry-run"));
            let ran = bench.ran(&branch, &words);
            assert_eq!(ran.code, 4, "it is partial, and so it would be: {ran:?}");
            let told: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
            support::schema::check("restore", &told);
            told["restore"].clone()
        };
        let (would, did) = (restored(true), restored(false));
        for told in [&would, &did] {
            let paths = |list: &str| {
                let list = told[list].as_array().unwrap().iter();
                list.map(|it| it["path"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
            };
            assert_eq!((paths("changes"), paths("conflicts")), (vec!["over".into(), "src/main".into()], vec![]));
            assert_eq!(paths("failed"), ["both"]);
            assert!(told["failed"][0]["reason"].as_str().unwrap().contains("DataLoss"), "{told}");
        }
        // As the snapshot shows it, but for what nobody knows any more. In the workspace all is as it was.
        let there = "both\nf\nnode_modules\nsrc\nthen\nmine";
        assert_eq!(bench.sh(&format!("cd {text}; ls; cat src/main both")), there);
        assert_eq!((world.read("over"), world.read("both")), (Some("came later".into()), Some("came later".into())));
        let timeline = world.run(["-C", text, "timeline", "--json"]).stdout;
        assert!(timeline.contains("\"outcome\":\"partial\""), "{timeline}");
        bench.at(&branch, &["undo"]);
        let there = "both\nf\nnode_modules\nover\nsrc\nnow\nmine\nmine";
        assert_eq!(bench.sh(&format!("cd {text}; ls; cat src/main both over")), there);

        // What nobody could give back afterwards is not overwritten unless that is asked for.
        let told = bench.ran(&branch, &["restore", &before, "--", "both"]);
        assert!(told.code == 4 && told.stderr.contains("both (it stays as it is"), "{told:?}");
        assert!(!told.stderr.contains("everything is as in"), "{told:?}");
    });
}

#[test]
fn what_is_gone_below_is_neither_as_it_was_nor_lost_without_a_word() {
    Bench::each_unpinned(|bench| {
        let (branch, root) = (bench.branch("b"), bench.0.root());
        bench.sh(&format!("echo mine > {}/src/main", branch.display()));
        bench.at(&branch, &["snapshot", "-m", "before"]);
        let told = bench.ran(&branch, &["restore", "before"]);
        assert!(told.code == 0 && told.stderr.contains("everything is as in"), "{told:?}");
        // One file is changed there: it is said, and the rest goes on.
        bench.0.write("f", "changed by the user");
        until(|| bench.at(&branch, &["status"]).contains("became other there"));
        bench.sh(&format!("echo other > {}/src/main", branch.display()));
        let told = bench.ran(&branch, &["restore", "before"]);
        assert!(told.code == 0 && told.stderr.contains("reads in is not put back: 1 path: f\n"), "{told:?}");
        assert_eq!(bench.sh(&format!("cat {}/src/main", branch.display())), "mine");
        let told = bench.ran(&branch, &["restore", "before", "--", "src"]);
        assert!(told.code == 0 && told.stderr.contains("everything is as in"), "{told:?}");
        // All of it goes.
        let other = bench.branch("other");
        bench.sh(&format!("echo mine > {}/src/main", other.display()));
        bench.at(&other, &["snapshot", "-m", "before"]);
        bench.sh(&format!("echo other > {}/src/main", other.display()));
        fs::rename(&root, bench.0.path("aside")).unwrap();
        fs::remove_dir_all(bench.0.path("aside")).unwrap();
        for words in [&["restore", "before"][..], &["restore", "before", "--dry-run"]] {
            let told = bench.ran(&branch, words);
            assert!(
                told.code == 0 && told.stderr.contains("nothing that was changed in the branch itself"),
                "{told:?}"
            );
            assert!(!told.stderr.contains("everything is as in"), "{told:?}");
            assert!(told.stderr.contains("copy out of the branch what is needed"), "{told:?}");
        }
        // Where the disk makes nothing in a directory that is gone, it fails; the reason is said either way.
        let told = bench.ran(&other, &["restore", "before"]);
        assert!(told.stderr.contains("the workspace that this branch reads in was deleted or replaced"), "{told:?}");
        if told.code == 0 {
            assert_eq!(bench.sh(&format!("cat {}/src/main", other.display())), "mine");
        }

        // So it is when another service serves it, whatever is in its place then.
        let views = [&branch, &other].map(|at| bench.at(at, &["seek", "before"]));
        bench.kill_services();
        for made_anew in [false, true] {
            if made_anew {
                bench.sh(&format!("mkdir {0}; echo copy > {0}/f", root.display()));
            }
            let at_root = |words: &[&str]| {
                let mut command = bench.0.command(["-C", root.to_str().unwrap(), "agent", "fs"].iter().chain(words));
                support::Ran::of(command.current_dir("/"))
            };
            let before = at_root(&["snapshots"]).stdout;
            let ran = at_root(&["gc"]);
            assert_eq!(ran.code, 0, "{ran:?}");
            let after = at_root(&["snapshots"]).stdout;
            let ids = |table: &str| table.lines().map(|line| line[..12].to_owned()).collect::<Vec<_>>();
            assert!(ids(&after).len() == 3 && ids(&after) == ids(&before), "{before}{after}");
            // What was not kept is an error, and what the branch wrote is there.
            assert_eq!(bench.ran(&branch, &["cat", "before", "f"]).code, 1);
            assert_eq!(bench.at(&branch, &["cat", "before", "src/main"]), "mine");
            let view = &views[usize::from(made_anew)];
            let ran = at_root(&["release", view]);
            assert!(ran.code == 0 && !fs::exists(view).unwrap(), "{ran:?}");
        }
        bench.at(&root, &["rm", "--force", "b", "other"]);
    });
}

#[test]
fn what_git_touches_of_what_has_other_names_elsewhere_leaves_differences_those_of_the_branch() {
    Bench::each_unpinned(|bench| {
        let root = bench.0.root();
        bench.sh(&format!(
            "cd {0} && git init -q && git add -A && git -c user.name=a -c user.email=a@b commit -qm one",
            root.display()
        ));
        // As a snapshot by Git does, and `git clone` of a local repository: other names of the objects, outside of the workspace.
        bench.sh(&format!("cp -al {0}/.git/objects {0}.objects", root.display()));
        let branch = bench.branch("b");
        // The object of the copy is there already, and is touched.
        bench.sh(&format!("cd {} && cp f copy && git add copy", branch.display()));
        bench.sh(&format!("cd {} && echo theirs > fromws && echo other >> src/main && rm f", root.display()));
        assert_eq!(bench.at(&branch, &["diff"]), "A\tcopy");
        bench.sh(&format!("cd {} && git -c user.name=a -c user.email=a@b commit -qm two", branch.display()));
        assert_eq!(bench.at(&branch, &["diff"]), "A\tcopy");
        bench.0.fs(["rm", "--force", "b"]);
    });
}

/// A branch of which all is kept that will be.
fn kept_branch(bench: &Bench, name: &str) -> std::path::PathBuf {
    let branch = bench.branch(name);
    until(|| !bench.at(&branch, &["status"]).contains("still being kept"));
    branch
}

#[test]
fn a_directory_made_anew_in_the_workspace_and_removed_in_the_branch_stops_neither_diff_nor_restore() {
    Bench::each(|bench| {
        let world = &bench.0;
        for name in ["nm/pkg/native", "nm/pkg/small", "src/a"] {
            world.write(name, "then");
        }
        bench.unpin("nm/pkg/native");
        let branch = kept_branch(bench, "b");
        let text = branch.to_str().unwrap();
        let before = bench.at(&branch, &["snapshot"]);
        // The numbers of the old ones are given out again, in one order or another.
        bench.sh(&format!(
            "cd {}; rm -r nm; mkdir -p nm/pkg; echo 2 >nm/pkg/small; echo 2 >nm/pkg/native",
            world.root().display()
        ));
        bench.sh(&format!("cd {text}; rm -r nm; echo mine >src/a"));
        for since in [&["diff", &before][..], &["diff"]] {
            let told = bench.at(&branch, since);
            assert_eq!(told, "D\tnm/\nD\tnm/pkg/\nD\tnm/pkg/native\nD\tnm/pkg/small\nM\tsrc/a");
        }
        let ran = bench.ran(&branch, &["diff", "--patch", &before]);
        assert!(ran.code == 1 && ran.stderr.contains("nm/pkg/native differs"), "{ran:?}");
        assert!(ran.stdout.contains("+++ b/src/a") && ran.stdout.contains("--- a/nm/pkg/small\n"), "{ran:?}");
        assert!(!ran.stdout.contains("--- a/nm/pkg/native"), "{ran:?}");
        for dry in [true, false] {
            let mut words = vec!["restore", &before];
            words.extend(dry.then_some("--dry-run"));
            let ran = bench.ran(&branch, &words);
            assert!(ran.code == 4 && ran.stderr.contains("nm/pkg/native (it stays as it is"), "{ran:?}");
        }
        assert_eq!(bench.sh(&format!("cd {text}; cat src/a nm/pkg/small; ls nm/pkg")), "thenthensmall");
        bench.at(&branch, &["undo"]);
        assert_eq!(bench.sh(&format!("cd {text}; cat src/a; ls")), "mine\nf\nnode_modules\nsrc");
    });
}

#[test]
fn a_directory_of_which_nothing_is_known_any_more_stops_neither_diff_nor_restore() {
    Bench::each(|bench| {
        let world = &bench.0;
        for name in ["gone/in/small", "worked/in/small", "worked/in/other", "src/a"] {
            world.write(name, "then");
        }
        // Their lists are too long to be written down.
        let long = "x".repeat(250);
        let root = world.root();
        let fill = format!("i=0; while [ $i -lt 4200 ]; do : >gone/{long}$i; : >worked/{long}$i; i=$((i + 1)); done");
        bench.sh(&format!("cd {}; {fill}", root.display()));
        let branch = kept_branch(bench, "b");
        let text = branch.to_str().unwrap();
        let before = bench.at(&branch, &["snapshot"]);
        bench.sh(&format!("cd {text}; echo mine >worked/in/small; echo mine >worked/in/new"));
        bench.sh(&format!("cd {}; rm -r gone worked; mkdir -p gone worked; echo 2 >gone/other", root.display()));
        until(|| bench.sh(&format!("ls {text}/gone")) == "other");
        bench.sh(&format!("cd {text}; rm -r gone; echo mine >src/a; echo mine >made"));
        let told = "D\tgone/\nA\tmade\nM\tsrc/a\nM\tworked/\nM\tworked/in/\nA\tworked/in/new\nM\tworked/in/small";
        assert_eq!(bench.at(&branch, &["diff", &before]), told);
        let ran = bench.ran(&branch, &["diff", "--patch", &before]);
        assert!(ran.code == 1 && ran.stderr.contains("worked/in/small differs"), "{ran:?}");
        assert!(ran.stdout.contains("+++ b/src/a") && !ran.stdout.contains("+++ b/worked/in/small"), "{ran:?}");
        let ran = bench.ran(&branch, &["restore", &before]);
        assert_eq!(ran.code, 4, "{ran:?}");
        for lost in ["gone", "worked", "worked/in", "worked/in/new", "worked/in/small"] {
            assert!(ran.stderr.contains(&format!(" {lost} (it stays as it is")), "{lost}: {ran:?}");
        }
        let shown = format!("cd {text}; ls; cat src/a worked/in/small worked/in/new");
        assert_eq!(bench.sh(&shown), "f\nnode_modules\nsrc\nworked\nthenmine\nmine");
        bench.at(&branch, &["undo"]);
        assert_eq!(bench.sh(&shown), "f\nmade\nnode_modules\nsrc\nworked\nmine\nmine\nmine");
    });
}

#[test]
fn names_that_workspace_and_branch_make_are_new_ones_in_the_branch() {
    Bench::each(|bench| {
        let world = &bench.0;
        let branch = kept_branch(bench, "b");
        let text = branch.to_str().unwrap();
        let before = bench.at(&branch, &["snapshot"]);
        bench.sh(&format!("cd {text}; echo branch >y; mkdir dist; echo b >dist/x"));
        world.write("y", "ws");
        world.write("dist/x", "w");
        let with = bench.at(&branch, &["snapshot"]);
        bench.sh(&format!("cd {text}; rm -r y dist"));
        assert_eq!(bench.at(&branch, &["diff", &before]), "");
        assert_eq!(bench.at(&branch, &["diff", "--patch", &before]), "");
        bench.at(&branch, &["restore", &with]);
        assert_eq!(bench.at(&branch, &["diff", &before]), "A\tdist/\nA\tdist/x\nA\ty");
        assert!(bench.at(&branch, &["diff", "--patch", &before]).contains("+branch"));
        bench.at(&branch, &["restore", &before]);
        assert_eq!(bench.sh(&format!("ls {text}")), "f\nnode_modules\nsrc");
    });
}

#[test]
fn what_is_closed_in_the_workspace_is_in_branches_as_it_was() {
    Bench::each(|bench| {
        let world = &bench.0;
        for name in ["k/t", "k/in/t", "other/t"] {
            world.write(name, "then");
        }
        let branch = kept_branch(bench, "b");
        let text = branch.to_str().unwrap();
        let root = world.root();
        bench.sh(&format!("ls {text}/k; chmod 000 {}/k", root.display()));
        // The other one becomes somebody else's.
        fs::remove_dir_all(root.join("other")).unwrap();
        fs::create_dir(root.join("other")).unwrap();
        fs::set_permissions(root.join("other"), PermissionsExt::from_mode(0o700)).unwrap();
        let read = format!("cd {text}; cat k/t k/in/t other/t; ls k other");
        until(|| bench.sh(&format!("ls -ld {text}/k")).starts_with("drwx"));
        assert_eq!(bench.sh(&read), "thenthenthenk:\nin\nt\n\nother:\nt");
        bench.sh(&format!(
            "cd {text}; echo mine >k/n; echo mine >k/in/n; echo mine >other/n; echo mine >>k/t; rm other/t"
        ));
        assert_eq!(bench.at(&branch, &["diff"]), "A\tk/in/n\nA\tk/n\nM\tk/t\nA\tother/n\nD\tother/t");
        let snapshot = bench.at(&branch, &["snapshot"]);
        assert_eq!(bench.at(&branch, &["cat", &snapshot, "k/t"]), "thenmine");
        assert!(!bench.at(&branch, &["status"]).contains("became other there"));
        bench.sh(&format!("rm -r {text}/k {text}/other"));
        bench.at(&branch, &["restore", &snapshot]);
        assert_eq!(bench.sh(&format!("cd {text}; cat k/t k/in/t other/n; ls k")), "thenmine\nthenmine\nin\nn\nt");
        fs::set_permissions(root.join("k"), PermissionsExt::from_mode(0o755)).unwrap();
    });
}

#[test]
fn what_this_user_may_not_read_below_is_there_and_can_be_written_over() {
    if !is_root() {
        return skip("needs root, to act as another user");
    }
    let bench = &Bench::new(User::Ordinary);
    bench.sh(&format!(
        "cd {}; mkdir x; echo in > x/f; ln -s f x/l; chmod 0311 x; echo old > own; chmod 0200 own",
        bench.0.root().display()
    ));
    let theirs = bench.0.root().join("theirs");
    fs::write(&theirs, "root's").unwrap();
    fs::set_permissions(&theirs, fs::Permissions::from_mode(0o600)).unwrap();
    let branch = bench.branch("b");
    let at = branch.display();
    assert_eq!(bench.sh(&format!("cd {at}; readlink x/l; cat x/l")), "f\nin");
    let listed = bench.sh(&format!("cd {at}; ls -l theirs 2>&1; cat theirs 2>&1 || true"));
    assert!(listed.starts_with("-rw-------") && listed.ends_with("Permission denied"), "{listed}");
    assert_eq!(listed.lines().count(), 2, "{listed}");
    assert_eq!(bench.sh(&format!("cd {at}; echo new > own; chmod 600 own; cat own")), "new");
}

#[test]
fn a_repository_that_git_packs_behind_a_new_branch_is_whole_there_without_the_workspace() {
    Bench::each_plain(|bench| {
        let root = bench.0.root().display().to_string();
        let repository =
            "git init -q && git config gc.auto 0 && git add -A && git -c user.name=a -c user.email=a@b commit -qm one";
        bench.sh(&format!("cd {root} && seq 300 | while read n; do echo $n >src/$n; done && {repository}"));
        let branch = bench.branch("b");
        let git = |words: &str| bench.sh(&format!("git -C {} {words}", branch.display()));
        bench.sh(&format!("git -C {root} gc -q"));
        git("fsck --full");
        until(|| !bench.at(&branch, &["status"]).contains("still being kept"));
        bench.sh(&format!("rm -r {root}/.git"));
        git("fsck --full");
        assert_eq!((git("log --oneline | wc -l"), git("status --short")), ("1".to_owned(), String::new()));
        assert!(!bench.at(&branch, &["status"]).contains("became other"));
        // One that goes before it is kept is, or that is said.
        bench.sh(&format!("cd {root} && {repository}"));
        let branch = bench.branch("c");
        bench.sh(&format!("rm -r {root}/.git"));
        let status = || bench.at(&branch, &["status"]);
        until(|| !status().contains("still being kept"));
        let fsck = bench.program("git").arg("-C").arg(&branch).args(["fsck", "--full"]).output().unwrap();
        if !fsck.status.success() {
            let said =
                || status().split_once("became other there").map(|(_, said)| said.to_owned()).unwrap_or_default();
            until(|| said().contains("as now: .git") && !said().contains("as now: .git/hooks"));
            assert!(bench.ran(&branch, &["snapshot"]).stderr.contains("became other in the workspace"));
        }
    });
}

#[test]
fn what_is_not_kept_for_a_branch_is_named_before_it_is_changed() {
    Bench::each_plain(|bench| {
        let root = bench.0.root().display().to_string();
        bench.sh(&format!("truncate -s 65M {root}/large && truncate -s 65M {root}/mine"));
        let branch = kept_branch(bench, "b");
        let text = branch.to_str().unwrap();
        let status = || bench.at(&branch, &["status"]);
        assert!(status().contains("; 2 paths that it reads in the workspace are not kept for it: large, mine"));
        bench.sh(&format!("echo mine > {text}/mine"));
        assert!(status().contains("; 1 path that it reads in the workspace is not kept for it: large"));
        bench.sh(&format!("echo other > {root}/large"));
        assert_eq!(bench.sh(&format!("cat {text}/large")), "other");
        let told =
            "1 path that it reads in the workspace became other there, and its snapshots do not hold it as now: large";
        assert!(status().contains(told) && !status().contains("not kept"), "{}", status());
    });
}
