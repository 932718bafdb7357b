//! A workspace that was put behind AgentFS, brought back from a copy with what lies behind it and the home.

use std::fs;

use crate::convert::{end, text};
use crate::lost::fsck;
use crate::support::bench::{Bench, until};

#[test]
fn a_workspace_that_was_restored_with_all_that_belongs_to_it_is_whole_once_that_is_taken() {
    Bench::each_plain(|bench| {
        let root = bench.0.root();
        bench.sh(&format!("chmod 755 {0} && mkdir {0}/sub && echo -n deep > {0}/sub/deep", root.display()));
        bench.at(&root, &["snapshot", "-m", "before"]);
        bench.at(&root, &["convert"]);
        bench.sh(&format!("cd {}; echo -n two > g; chmod 700 sub; echo -n in > sub/new", root.display()));
        bench.at(&root, &["snapshot", "-m", "since"]);
        // What is known of it is written down behind it.
        until(|| !bench.at(&root, &["status"]).contains("still being kept"));
        end(bench);
        let top = bench.0.path("");
        bench.sh(&format!(
            "cd {} && tar -cpf saved.tar w .ah-behind-w state && chmod -R u+rwX w && rm -rf w .ah-behind-w state && tar -xpf saved.tar",
            top.display()
        ));
        // It is said what it is, and what has it taken for what it was.
        let status = bench.at(&root, &["status"]);
        assert!(status.contains("it was restored or copied") && !status.contains("any more"), "{status}");
        assert_eq!((text(bench, "f"), text(bench, "g")), (String::new(), "two".into()));
        let snapshot = bench.ran(&root, &["snapshot"]);
        assert!(snapshot.code == 0 && snapshot.stderr.contains("it was restored or copied"), "{snapshot:?}");
        let refused = bench.ran(&root, &["convert", "--back"]);
        assert!(refused.code == 4 && refused.stderr.contains("was restored or copied"), "{refused:?}");
        let typed: Vec<&str> = status.split('`').collect();
        bench.sh(typed.iter().find(|said| said.starts_with("kill -TERM ")).unwrap());
        until(|| bench.services().is_empty());
        let check = typed.iter().find_map(|said| said.strip_prefix("ah-agentfsd --fsck ")).unwrap();
        // Not another one.
        let behind = bench.0.path(".ah-behind-w");
        let other = |line: &str| bench.sh(&format!("cd {} && {line}", behind.display()));
        other("mv f aside && echo -n six > f");
        let said = fsck(bench, &format!("{check}; test $? = 1"));
        assert!(said.contains("2 paths are not known") && said.contains(": aside, f;"), "{said}");
        other("mv -T aside f");
        let said = fsck(bench, check);
        assert!(said.contains("is that from now on"), "{said}");
        let status = bench.at(&root, &["status"]);
        assert!(!status.contains("restored"), "{status}");
        let is_whole = || {
            let now = ["f", "g", "sub/deep", "sub/new"].map(|name| text(bench, name));
            assert_eq!(now, ["one", "two", "deep", "in"].map(ToOwned::to_owned));
        };
        is_whole();
        bench.at(&root, &["snapshot", "-m", "whole"]);
        assert_eq!(bench.at(&root, &["cat", "since", "g"]), "two");
        bench.at(&root, &["convert", "--back"]);
        is_whole();
        assert!(bench.mounts().is_empty() && fs::metadata(root.join("sub/deep")).is_ok());
    });
}
