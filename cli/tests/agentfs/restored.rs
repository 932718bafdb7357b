//! A workspace that was put behind AgentFS, brought back from a copy with what lies behind it and the home.

use std::fs;

use crate::convert::{end, text};
use crate::lost::fsck;
use crate::support::bench::{Bench, until};

/// What is known of what lies behind is written down by a thread of the service, which is there before `convert` is done.
fn is_written_down(bench: &Bench) {
    let is_at_it = |pid: &i32| bench.sh(&format!("cat /proc/{pid}/task/*/comm || true")).contains("agentfs-names");
    until(|| !bench.services().iter().any(is_at_it));
}

#[test]
fn a_workspace_that_was_restored_with_all_that_belongs_to_it_is_whole_once_that_is_taken() {
    Bench::each_plain(|bench| {
        let root = bench.0.root();
        bench.sh(&format!("chmod 755 {0} && mkdir {0}/sub && echo -n deep > {0}/sub/deep", root.display()));
        bench.sh(&format!(
            "git init -q {0} && git -C {0} add f && git -C {0} -c user.name=n -c user.email=e commit -qm one",
            root.display()
        ));
        bench.at(&root, &["snapshot", "-m", "before"]);
        bench.at(&root, &["convert"]);
        bench.sh(&format!("cd {}; echo -n two > g; chmod 700 sub; echo -n in > sub/new", root.display()));
        bench.at(&root, &["snapshot", "-m", "since"]);
        is_written_down(bench);
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
        let ends = typed.iter().find(|said| said.contains("kill -TERM ")).unwrap();
        // Under its number may be another process by then.
        let service = ends.rsplit(' ').next().unwrap();
        let other = ends.replace(&format!("/{service}/"), "/$!/").replace(&format!("-TERM {service}"), "-TERM $!");
        bench.sh(&format!("sleep 60 >&- 2>&- & if {other}; then exit 1; else kill $!; fi"));
        bench.sh(ends);
        until(|| bench.services().is_empty());
        let check = typed.iter().find_map(|said| said.strip_prefix("ah-agentfsd --fsck ")).unwrap();
        // Not another one.
        let behind = bench.0.path(".ah-behind-w");
        let other = |line: &str| bench.sh(&format!("cd {} && {line}", behind.display()));
        other("mv f aside && echo -n six > f");
        let said = fsck(bench, &format!("{check}; test $? = 1"));
        assert!(said.contains("2 paths are not known") && said.contains(": aside, f;"), "{said}");
        other("mv -T aside f");
        // Where it was is mended with it, and no sooner.
        bench.sh(&format!("rm {}/lower", check.trim_end_matches(" --repair")));
        let said = fsck(bench, check);
        assert!(said.contains("is that from now on"), "{said}");
        assert!(said.contains("those to come as well") && said.ends_with("it was mended"), "{said}");
        let status = bench.at(&root, &["status"]);
        assert!(!status.contains("restored"), "{status}");
        let is_whole = || {
            let now = ["f", "g", "sub/deep", "sub/new"].map(|name| text(bench, name));
            assert_eq!(now, ["one", "two", "deep", "in"].map(ToOwned::to_owned));
        };
        is_whole();
        bench.at(&root, &["snapshot", "-m", "whole"]);
        assert_eq!(bench.at(&root, &["cat", "since", "g"]), "two");
        bench.sh(&format!("rm -rf {}", root.join(".git").display()));
        let told = bench.ran(&root, &["status"]);
        assert!(told.stderr.contains("(.git) that was here is gone"), "{told:?}");
        bench.at(&root, &["convert", "--back"]);
        is_whole();
        assert!(bench.mounts().is_empty() && fs::metadata(root.join("sub/deep")).is_ok());
    });
}

#[test]
fn a_directory_that_is_back_in_its_place_is_no_other() {
    Bench::each_plain(|bench| {
        let root = bench.0.root();
        bench.at(&root, &["convert"]);
        end(bench);
        let (behind, away) = (bench.0.path(".ah-behind-w"), bench.0.path("away"));
        fs::rename(&behind, &away).unwrap();
        let status = bench.at(&root, &["status"]);
        assert!(status.contains("if it is there again: `ah agent fs gc`"), "{status}");
        fs::rename(&away, &behind).unwrap();
        let status = bench.at(&root, &["status"]);
        assert!(!status.contains("restored or copied") && !status.contains("kill"), "{status}");
        bench.at(&root, &["gc"]);
        assert!(!bench.at(&root, &["status"]).contains("is missing"));
        assert_eq!(text(bench, "f"), "one");
    });
}

#[test]
fn files_that_nobody_could_compare_are_named() {
    Bench::each_plain(|bench| {
        let root = bench.0.root();
        bench.sh(&format!("truncate -s 65M {}/large", root.display()));
        bench.at(&root, &["convert"]);
        is_written_down(bench);
        end(bench);
        bench.sh(&format!(
            "cd {} && cp -a .ah-behind-w copy && rm -r .ah-behind-w && ln -s copy .ah-behind-w",
            bench.0.path("").display()
        ));
        let home = fs::read_dir(bench.0.path("state/workspaces")).unwrap().next().unwrap().unwrap();
        let check = format!("{} --repair", home.path().join("providers/agentfs").display());
        let said = fsck(bench, &format!("{check} || true"));
        assert!(!said.contains("is that from now on"), "{said}");
        bench.sh(&format!("cd {} && rm .ah-behind-w && mv copy .ah-behind-w", bench.0.path("").display()));
        let said = fsck(bench, &check);
        assert!(said.contains("1 file was compared by name only") && said.contains("held: large"), "{said}");
        assert!(said.ends_with("look at these"), "{said}");
        bench.at(&root, &["status"]);
        assert_eq!(text(bench, "f"), "one");
    });
}
