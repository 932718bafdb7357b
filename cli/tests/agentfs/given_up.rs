//! Workspaces that were put behind AgentFS and of which something is lost without which they are not mounted: what is told, and what is typed then.

use std::fs;
use std::path::Path;

use crate::convert::{end, text};
use crate::lost::{fsck, kept};
use crate::support::bench::Bench;

/// The workspace is worked in as any other.
pub(crate) fn is_open(bench: &Bench) {
    let root = bench.0.root();
    bench.at(&root, &["status"]);
    // What was lost is told as that, by its name.
    let order = bench.ran(&root, &["gc"]);
    for lost in order.stderr.split('`').filter_map(|said| said.strip_prefix("ah agent fs rm ")) {
        bench.at(&root, &["rm", lost]);
    }
    for words in [["gc"], ["snapshot"]] {
        bench.at(&root, &words);
    }
}

#[test]
fn a_workspace_that_was_given_up_is_one_whatever_is_beside_it() {
    Bench::each_plain(|bench| {
        let (root, home) = (bench.0.root(), kept(bench));
        let (left, before) = (bench.0.path(".ah-left-w"), bench.0.path(".ah-behind-w"));
        let given_up = |home: &Path| {
            fs::rename(home.join("tree"), home.join("aside")).unwrap();
            let said = bench.ran(&root, &["status"]).stderr;
            bench.sh(said.split('`').find(|said| said.contains("test -e ")).unwrap());
            is_open(bench);
            said
        };
        // What was put aside before is in nobody's way.
        bench.sh(&format!("mkdir {0} && touch {0}/older", left.display()));
        let said = given_up(&home);
        assert!(said.contains("the workspace is what it was before `convert`, ") && !before.exists(), "{said}");
        assert_eq!((text(bench, "f"), left.join("older").exists()), ("one".into(), true));
        bench.at(&root, &["rm", "--all", "--force"]);
        bench.at(&root, &["convert"]);
        let state = fs::read_dir(bench.0.path("state/workspaces")).unwrap().next().unwrap().unwrap();
        let home = state.path().join("providers/agentfs");
        end(bench);
        // Nor is it missed, what lay behind.
        fs::rename(&before, bench.0.path("away")).unwrap();
        let said = given_up(&home);
        assert!(said.contains("the workspace is an empty directory (what"), "{said}");
        assert_eq!(text(bench, "NOT-MOUNTED.txt"), "");
    });
}

#[test]
fn where_nothing_is_kept_of_a_workspace_it_is_said_how_it_comes_back() {
    Bench::each_plain(|bench| {
        let (root, home) = (bench.0.root(), kept(bench));
        bench.sh(&format!("rm -r {0} && mkdir {0}", home.display()));
        let refused = bench.ran(&root, &["status"]);
        assert!(refused.code == 4 && refused.stderr.contains("agentfs keeps nothing of it"), "{refused:?}");
        assert!(refused.stderr.contains("in another AH_HOME, bring that back first"), "{refused:?}");
        bench.sh(refused.stderr.split('`').find(|said| said.contains("test -f ")).unwrap());
        assert_eq!((text(bench, "f"), text(bench, "mine")), ("one".into(), String::new()));
        is_open(bench);
    });
}

#[test]
fn a_tree_that_is_gone_is_told_also_where_what_served_it_was_killed() {
    Bench::each_plain(|bench| {
        let (root, home) = (bench.0.root(), kept(bench));
        bench.at(&root, &["status"]);
        bench.kill_services();
        fs::rename(home.join("tree"), home.join("aside")).unwrap();
        let mut give_up = String::new();
        for words in [&["status"][..], &["gc"], &["snapshot"], &["convert", "--back"], &["rm", "--all"]] {
            let refused = bench.ran(&root, words);
            assert!(refused.code != 0 && refused.stderr.contains("/tree is not there"), "{words:?}: {refused:?}");
            let line = refused.stderr.split('`').find(|said| said.contains("mv -T"));
            give_up = line.unwrap_or_else(|| panic!("{words:?}: {refused:?}")).to_owned();
        }
        bench.sh(&give_up);
        is_open(bench);
        assert_eq!(text(bench, "f"), "one");
    });
}

#[test]
fn that_a_log_is_damaged_is_told_each_time() {
    for is_killed in [false, true] {
        Bench::each_plain(|bench| {
            let (root, home) = (bench.0.root(), kept(bench));
            if is_killed {
                bench.at(&root, &["status"]);
                bench.kill_services();
            }
            for log in fs::read_dir(home.join("tree/log")).unwrap() {
                fs::File::options().write(true).open(log.unwrap().path()).unwrap().set_len(0).unwrap();
            }
            // Nothing is opened until what was changed since is given up, and each is told how.
            for words in [&["-q", "snapshot"][..], &["status", "--json"], &["gc"]] {
                let refused = bench.ran(&root, words);
                let said = [&refused.stdout[..], &refused.stderr].concat();
                let is_told = said.contains("the newest log is not there") && said.contains("ah-agentfsd --fsck");
                assert!(refused.code == 4 && is_told, "{words:?}: {refused:?}");
            }
            end(bench);
            fsck(bench, &format!("{} --repair; test $? = 1", home.display()));
            let mut bring_back = String::new();
            for words in [&["-q", "snapshot"][..], &["snapshot"], &["status", "--json"], &["gc"]] {
                let refused = bench.ran(&root, words);
                let said = [&refused.stdout[..], &refused.stderr].concat();
                assert!(refused.code == 4 && said.contains("its log is damaged"), "{words:?}: {refused:?}");
                assert!(!said.contains("cut short") && !said.contains("repeat it"), "{words:?}: {refused:?}");
                let line = said.split('`').find(|said| said.contains("test -f ") && said.contains("cp -aT"));
                bring_back = line.unwrap_or_else(|| panic!("{words:?}: {refused:?}")).to_owned();
            }
            bench.sh(&bring_back);
            assert_eq!((text(bench, "f"), text(bench, "mine")), ("one".into(), String::new()));
            // Nothing of anybody's is where only what stood in for it is, and it is brought back already.
            end(bench);
            let told = bench.ran(&root, &["status"]);
            assert!(told.code == 0 && !told.stderr.contains("has lost"), "{told:?}");
            let told = bench.ran(&root, &["gc"]);
            assert!(told.stderr.contains("has lost") && !told.stderr.contains(".ah-left-w"), "{told:?}");
            is_open(bench);
        });
    }
}

#[test]
fn what_lies_beside_a_workspace_that_no_home_knows_of_is_named() {
    for is_gone in [false, true] {
        Bench::each_plain(|bench| {
            let (root, state) = (bench.0.root(), bench.0.path("state"));
            bench.branch("b");
            end(bench);
            let saved = bench.copy_of_state();
            bench.at(&root, &["rm", "--force", "b"]);
            bench.at(&root, &["convert"]);
            end(bench);
            let latest = bench.0.path("latest");
            fs::rename(&state, &latest).unwrap();
            if !is_gone {
                fs::rename(&saved, &state).unwrap();
            }
            let mut back = String::new();
            let itself = format!("ah -C {} agent fs branches", root.display());
            for words in [&["status"][..], &["branches"], &["gc"], &["snapshot"], &["convert"]] {
                let refused = bench.ran(&root, words);
                assert!(refused.code == 4 && !refused.stderr.contains(&itself), "{words:?}: {refused:?}");
                let line = refused.stderr.split('`').find(|said| said.contains(".ah-behind-w "));
                back = line.unwrap_or_else(|| panic!("{words:?}: {refused:?}")).to_owned();
            }
            bench.sh(&back);
            assert_eq!((text(bench, "f"), bench.0.path(".ah-behind-w").exists()), ("one".into(), false));
            bench.at(&root, &["snapshot"]);
            bench.at(&root, &["status"]);
        });
    }
}

#[test]
fn a_repository_is_not_said_to_be_gone_that_lies_behind_what_is_missing() {
    Bench::each_plain(|bench| {
        let (root, behind) = (bench.0.root(), bench.0.path(".ah-behind-w"));
        bench.sh(&format!(
            "git init -q {0} && git -C {0} add f && git -C {0} -c user.name=n -c user.email=e commit -qm one",
            root.display()
        ));
        bench.at(&root, &["snapshot", "-m", "plain"]);
        bench.at(&root, &["convert"]);
        bench.at(&root, &["snapshot", "-m", "since"]);
        end(bench);
        for is_other in [false, true] {
            let aside = bench.0.path("aside");
            fs::rename(&behind, &aside).unwrap();
            if is_other {
                bench.sh(&format!("mkdir {}", behind.display()));
            }
            let told = bench.ran(&root, &["status"]);
            assert!(!told.stderr.contains("(.git) that was here is gone"), "{told:?}");
            end(bench);
            if is_other {
                fs::remove_dir(&behind).unwrap();
            }
            fs::rename(&aside, &behind).unwrap();
        }
        bench.sh(&format!("rm -rf {}", root.join(".git").display()));
        bench.at(&root, &["status"]);
        bench.sh(&format!("rm -rf {}", root.join(".git").display()));
        let told = bench.ran(&root, &["status"]);
        assert!(told.stderr.contains("(.git) that was here is gone"), "{told:?}");
    });
}

#[test]
fn what_was_mounted_by_a_home_that_is_gone_is_taken_away_as_the_hint_says() {
    Bench::each_plain(|bench| {
        let root = bench.0.root();
        bench.at(&root, &["convert"]);
        bench.kill_services();
        fs::rename(bench.0.path("state"), bench.0.path("latest")).unwrap();
        let refused = bench.ran(&root, &["status"]);
        assert!(refused.code != 0 && refused.stderr.contains("another AH_HOME"), "{refused:?}");
        let unmount = refused.stderr.split('`').find(|said| said.starts_with("umount "));
        bench.sh(unmount.unwrap_or_else(|| panic!("{refused:?}")));
        assert!(bench.mounts().is_empty());
        let refused = bench.ran(&root, &["status"]);
        assert!(refused.code == 4 && refused.stderr.contains(".ah-behind-w "), "{refused:?}");
    });
}

#[test]
fn a_tree_that_cannot_be_mended_is_given_up_as_well() {
    Bench::each_plain(|bench| {
        let (root, home) = (bench.0.root(), kept(bench));
        fs::remove_file(home.join("tree/rows.redb")).unwrap();
        let refused = bench.ran(&root, &["status"]);
        let aside = |said: &str| said.split('`').find(|said| said.starts_with("mv -T ")).map(ToOwned::to_owned);
        let aside = aside(&refused.stderr).unwrap_or_else(|| panic!("{refused:?}"));
        assert_eq!(fsck(bench, &format!("{} --repair 2>&1 | grep -cF '{aside}'", home.display())), "1");
        bench.sh(&aside);
        let refused = bench.ran(&root, &["status"]);
        bench.sh(refused.stderr.split('`').find(|said| said.contains("test -e ")).unwrap());
        let told = bench.ran(&root, &["status"]);
        // Who repeats that would have it put behind AgentFS again.
        assert!(told.code == 0 && !told.stderr.contains("convert` was cut short"), "{told:?}");
        is_open(bench);
        assert_eq!(text(bench, "f"), "one");
    });
}
