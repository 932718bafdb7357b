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
        bench.sh(refused.stderr.split('`').find(|said| said.contains("test -f ")).unwrap());
        assert_eq!((text(bench, "f"), text(bench, "mine")), ("one".into(), String::new()));
        is_open(bench);
    });
}
