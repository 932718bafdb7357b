//! A workspace that was put behind AgentFS, and lost its directory: what of it is written off, and when.

use std::fs;
use std::path::{Path, PathBuf};

use crate::convert::{end, text};
use crate::given_up::is_open;
use crate::support::bench::{Bench, until};
use crate::support::{Ran, User};

#[test]
fn a_workspace_that_lost_what_lay_behind_it_is_written_off() {
    Bench::each_plain(|bench| {
        let (root, state) = (bench.0.root(), bench.0.path("state/workspaces"));
        bench.at(&root, &["convert"]);
        bench.sh(&format!("echo mine > {}/mine", root.display()));
        bench.at(&root, &["snapshot", "-m", "taken"]);
        bench.sh(&format!("rm -rf {}", bench.0.path(".ah-behind-w").display()));
        let (all, forced) = (&["rm", "--all"][..], &["rm", "--all", "--force"][..]);
        for words in [&["status"][..], &["convert", "--back"]] {
            let told = bench.ran(&root, words);
            assert!(told.stderr.contains("agent fs rm --all`"), "{words:?}: {told:?}");
        }
        // Copied before, and worked on since.
        bench.sh(&format!("mkdir {0}.saved && touch {0}.saved/older", root.display()));
        // What it shows is not lost: it is to be copied out first, by the commands that are named.
        let refused = bench.ran(&root, forced);
        assert!(refused.code == 4 && bench.ran(&root, all).code == 4, "{refused:?}");
        assert!(text(bench, "mine") == "mine", "{refused:?}");
        let hint = refused.stderr.lines().rfind(|line| line.starts_with("hint: ")).unwrap().to_owned();
        let commands: Vec<&str> = hint.split('`').skip(1).step_by(2).collect();
        let [copy, place, write_off] = commands[..] else { panic!("{hint}") };
        let out_of_turn = bench.program("sh").args(["-c", place]).output().unwrap();
        assert!(!out_of_turn.status.success() && text(bench, "mine") == "mine", "{out_of_turn:?}");
        bench.sh(copy);
        bench.sh(place);
        assert!(!root.join("older").exists());
        assert!(bench.mounts().is_empty() && text(bench, "mine") == "mine");
        // Whether the service that had it mounted is there still, or another one; whether anything is in the directory, or not.
        if matches!(bench.0.user, User::Ordinary) {
            bench.kill_services();
            bench.sh(&format!("rm {}/mine", root.display()));
        }
        let files = bench.0.picture("w");
        for words in [&["convert"][..], &["convert", "--back"]] {
            let refused = bench.ran(&root, words);
            assert!(refused.code == 4 && refused.stderr.contains("agent fs status`"), "{words:?}: {refused:?}");
        }
        assert!(bench.ran(&root, &["status"]).stderr.contains(write_off));
        // It is said before.
        let told = bench.ran(&root, all);
        assert!(told.code == 4 && told.stderr.contains("would go: what agentfs keeps"), "{told:?}");
        assert_eq!(fs::read_dir(&state).unwrap().count(), 1, "it was only told");
        let gone = bench.ran(&root, forced);
        assert!(gone.code == 0 && gone.stderr.contains("what agentfs keeps"), "{gone:?}");
        assert_eq!((bench.0.picture("w"), fs::read_dir(&state).unwrap().count()), (files, 0));
        assert_eq!(bench.ran(&root, forced).code, 3);
        bench.sh(&format!("touch {}/new", root.display()));
        bench.at(&root, &["snapshot"]);
        bench.at(&root, &["convert"]);
        bench.at(&root, &["convert", "--back"]);
    });
}

#[test]
fn a_workspace_whose_place_another_directory_has_is_not_written_off() {
    Bench::each_plain(|bench| {
        let root = bench.0.root();
        bench.at(&root, &["convert"]);
        bench.sh(&format!("echo -n mine > {}/f", root.display()));
        end(bench);
        bench.sh(&format!("mv {0} {0}-aside && mkdir {0} && touch {0}/other", root.display()));
        let refused = bench.ran(&root, &["rm", "--all", "--force"]);
        assert_eq!(refused.code, 4, "{refused:?}");
        assert!(root.join("other").exists());
        bench.sh(&format!("rm -r {}", root.display()));
        bench.at(&root, &["snapshots"]);
        assert_eq!(text(bench, "f"), "mine");
    });
}

#[test]
fn a_workspace_that_was_only_moved_is_not_written_off() {
    Bench::each_plain(|bench| {
        let (above, moved) = (bench.0.path("above"), bench.0.path("moved"));
        let root = above.join("w");
        let moves = |from: &Path, to: &Path| bench.sh(&format!("mv {} {}", from.display(), to.display()));
        let refused = |words: &[&str]| {
            let refused = bench.ran(&root, words);
            assert_eq!(refused.code, 4, "{words:?}: {refused:?}");
            refused.stderr
        };
        bench.sh(&format!("mkdir -p {}", root.display()));
        bench.at(&root, &["snapshot", "-m", "plain"]);
        bench.at(&root, &["convert"]);
        bench.sh(&format!("echo mine > {}/mine", root.display()));
        bench.at(&root, &["snapshot", "-m", "taken"]);
        bench.at(&root, &["edit", "--keep", "taken"]);
        let is_whole = || {
            assert_eq!(bench.at(&root, &["cat", "taken", "mine"]), "mine");
            assert_eq!(bench.sh(&format!("cat {}/mine", root.display())), "mine");
        };
        let (all, forced) = (&["rm", "--all"][..], &["rm", "--all", "--force"][..]);
        // With its service, which has it mounted where it was moved to: whether nothing is where it was, or another directory.
        moves(&above, &moved);
        refused(forced);
        bench.sh(&format!("mkdir -p {0} && touch {0}/other", root.display()));
        refused(forced);
        bench.sh(&format!("rm -r {}", above.display()));
        moves(&moved, &above);
        is_whole();
        // Without.
        end(bench);
        moves(&above, &moved);
        for words in [all, forced] {
            let told = refused(words);
            assert!(told.contains("bring them back"), "{told}");
        }
        moves(&moved, &above);
        is_whole();
    });
}

/// A workspace with a snapshot by another provider, behind AgentFS since, with one more and something that no snapshot has; its service has ended.
pub(crate) fn kept(bench: &Bench) -> PathBuf {
    let root = bench.0.root();
    bench.at(&root, &["snapshot", "-m", "before"]);
    bench.at(&root, &["convert"]);
    bench.sh(&format!("echo -n mine > {}/mine", root.display()));
    bench.at(&root, &["snapshot", "-m", "since"]);
    bench.sh(&format!("echo -n more > {}/more", root.display()));
    end(bench);
    let state = bench.0.path("state/workspaces");
    let id = fs::read_dir(state).unwrap().next().unwrap().unwrap();
    id.path().join("providers/agentfs")
}

/// All that was kept is there.
fn is_whole(bench: &Bench) {
    let root = bench.0.root();
    assert_eq!(bench.at(&root, &["cat", "since", "mine"]), "mine");
    assert_eq!(
        (text(bench, "mine"), text(bench, "more"), text(bench, "f")),
        ("mine".into(), "more".into(), "one".into())
    );
    let order = bench.ran(&root, &["gc"]);
    assert!(order.code == 0 && !order.stderr.contains("does not have it any more"), "{order:?}");
}

/// Changes one byte of a file: a digit stays one.
fn damage(file: &Path, at: usize) {
    let mut bytes = fs::read(file).unwrap();
    bytes[at] = if bytes[at] == b'0' { b'1' } else { b'0' };
    fs::write(file, bytes).unwrap();
}

/// What the check says that hints name.
pub(crate) fn fsck(bench: &Bench, arguments: &str) -> String {
    let programs = Path::new(env!("CARGO_BIN_EXE_ah")).parent().unwrap().display();
    bench.sh(&format!("PATH={programs}:$PATH; ah-agentfsd --fsck {arguments}"))
}

#[test]
fn what_is_lost_of_a_home_is_told_by_what_is_kept_twice() {
    Bench::each_plain(|bench| {
        let home = kept(bench);
        // What somebody was writing who was killed is nothing that is kept.
        let begun = ["here", "behind", "views/0123456789abcdef0123456789abcdef"]
            .map(|name| home.join(format!("{name}.0123456789abcdef0123456789abcdef")));
        begun.iter().for_each(|file| _ = bench.sh(&format!("touch -d @0 {}", file.display())));
        is_whole(bench);
        end(bench);
        assert!(!begun.iter().any(|file| file.exists()));
        // A digit of the key; a copy there is; or none, as older programs made none.
        for how in ["changed", "removed", "older"] {
            match how {
                "changed" => damage(&home.join("shelf"), 20),
                "removed" => fs::remove_file(home.join("shelf")).unwrap(),
                _ => {
                    fs::remove_file(home.join("shelf.copy")).unwrap();
                    damage(&home.join("shelf"), 20);
                    let said = fsck(bench, &format!("{}; test $? = 1", home.display()));
                    assert!(said.contains("/shelf is not one"), "{said}");
                }
            }
            is_whole(bench);
            end(bench);
        }
        // Where the directory is that lies behind, and that it does.
        let lower = fs::read(home.join("lower")).unwrap();
        for name in ["lower", "behind"] {
            fs::remove_file(home.join(name)).unwrap();
            is_whole(bench);
            end(bench);
            let last = fs::metadata(home.join(name)).unwrap().len() as usize - 1;
            damage(&home.join(name), if name == "lower" { last } else { 0 });
            is_whole(bench);
            end(bench);
        }
        assert_eq!(fs::read(home.join("lower")).unwrap(), lower);
        // Both.
        let at = home.display();
        for checks in [&[][..], &[("", 1), (" --repair", 0)]] {
            ["lower", "behind"].iter().for_each(|name| fs::remove_file(home.join(name)).unwrap());
            for (how, code) in checks {
                let said = fsck(bench, &format!("{at}{how}; test $? = {code}"));
                assert!(said.contains("/lower is missing") && said.contains("/behind is missing"), "{said}");
            }
            is_whole(bench);
            end(bench);
            assert_eq!(fs::read(home.join("lower")).unwrap(), lower);
        }
        // Nor while what lay behind is elsewhere, or in the workspace's place itself.
        let (root, before, aside) = (bench.0.root(), bench.0.path(".ah-behind-w"), bench.0.path("aside"));
        let moves = |from: &Path, to: &Path| bench.sh(&format!("mv -T {} {}", from.display(), to.display()));
        let not_mended = || {
            ["lower", "behind"].iter().for_each(|name| _ = fs::remove_file(home.join(name)));
            let said = fsck(bench, &format!("{at} --repair; test $? = 1"));
            assert!(said.contains("not all of it can be mended") && !home.join("lower").exists(), "{said}");
        };
        moves(&before, &aside);
        not_mended();
        let stands = bench.0.path("stands");
        moves(&root, &stands);
        moves(&aside, &root);
        not_mended();
        assert!(!home.join("behind").exists());
        moves(&root, &before);
        moves(&stands, &root);
        is_whole(bench);
        end(bench);
        // The check that is named then knows of it, too.
        for (name, mended) in [("behind", 0), ("converting", 1)] {
            fs::write(home.join(name), "damaged").unwrap();
            if name == "converting" {
                // Who asks for no warnings is told why as well.
                let refused = bench.ran(&bench.0.root(), &["-q", "snapshot"]);
                assert!(refused.code == 4 && refused.stderr.contains("/converting is damaged"), "{refused:?}");
                assert!(refused.stderr.contains("hint: whether it can be mended says `ah-agentfsd --fsck"));
                end(bench);
            }
            for (how, code) in [("", 1), (" --repair", mended), ("", 0)] {
                let said = fsck(bench, &format!("{at}{how}; test $? = {code}"));
                assert_eq!(said.contains(&format!("/{name} is damaged")), (how, code) != ("", 0), "{said}");
            }
        }
        is_whole(bench);
        // What nobody will take away is not said to be taken away.
        let back = bench.ran(&bench.0.root(), &["convert", "--back"]);
        let said = [&back.stdout[..], &back.stderr].concat();
        assert!(back.code == 0 && said.contains("says how it is taken away"), "{back:?}");
        assert_eq!((text(bench, "more"), text(bench, "f")), ("more".into(), "one".into()));
        // What lay behind is not said to have been worked in.
        bench.at(&bench.0.root(), &["rm", "since"]);
        let order = bench.ran(&bench.0.root(), &["gc"]);
        assert!(order.stderr.contains("was lost once") && !order.stderr.contains("was worked in"), "{order:?}");
        assert!(order.stderr.contains("by hand") && !order.stderr.contains("rm -r"), "{order:?}");
    });
}

#[test]
fn what_only_the_tree_vouches_for_is_left_where_that_cannot_be_read() {
    Bench::each_plain(|bench| {
        let (home, saved) = (kept(bench), bench.0.path("saved"));
        fs::write(home.join("behind"), "damaged").unwrap();
        // Older programs made none.
        fs::remove_file(home.join("shelf.copy")).unwrap();
        let rows = fs::read(home.join("tree/rows.redb")).unwrap();
        bench.sh(&format!("cp -aT {} {}", home.display(), saved.display()));
        let mut unread = 0;
        // A page that holds rows begins with a 1; how many, and where their keys end, comes behind that.
        let pages = (0..rows.len()).step_by(4096).filter(|&at| rows[at] == 1);
        for at in pages.flat_map(|at| [at + 3, at + 6]) {
            let mut rows = rows.clone();
            rows[at] ^= 0x20;
            bench.sh(&format!("rm -r {0} && cp -aT {1} {0}", home.display(), saved.display()));
            fs::write(home.join("tree/rows.redb"), rows).unwrap();
            let said = fsck(bench, &format!("{} --repair 2>&1 || true", home.display()));
            if said.contains("\n0 rows read, 0 blocks") {
                unread += 1;
                assert_eq!(fs::read(home.join("behind")).unwrap(), b"damaged", "{said}");
                assert!(!home.join("shelf.copy").exists(), "{said}");
                assert!(
                    said.contains("`shelf` is left as it is") && said.contains("`behind` is left as it is"),
                    "{said}"
                );
            }
        }
        assert!(unread > 0);
    });
}

#[test]
fn what_is_written_down_of_a_workspace_is_not_believed_where_its_tree_says_otherwise() {
    Bench::each_plain(|bench| {
        let (root, home) = (bench.0.root(), kept(bench));
        let file = home.join("behind");
        let whole = fs::read(&file).unwrap();
        let changed = |of: &[u8], mask: u8, older: bool| {
            let mut bytes = whole.clone();
            let at = bytes.windows(of.len()).position(|there| there == of).unwrap() + of.len();
            bytes[at] ^= mask;
            // Older programs wrote no sum behind it.
            bytes.truncate(if older { bytes.len() - 9 } else { bytes.len() });
            bytes
        };
        // That it was taken back, and a letter of its path.
        let path = root.to_str().unwrap().as_bytes();
        let damages = [(&b"taken_back"[..], 1), (&path[..path.len() - 1], 1)];
        for (of, mask) in damages {
            for older in [false, true] {
                fs::write(&file, changed(of, mask, older)).unwrap();
                let said = fsck(bench, &format!("{}; test $? = 1", home.display()));
                assert!(said.contains("/behind is"), "{said}");
                is_whole(bench);
                // While it is mounted, too, nobody says that it is not.
                fs::write(&file, changed(of, mask, older)).unwrap();
                let refused = bench.ran(&root, &["convert", "--back"]);
                assert!(refused.code != 0, "{refused:?}");
                end(bench);
                is_whole(bench);
                end(bench);
                assert!(fsck(bench, &home.display().to_string()).contains("all is well"));
            }
        }
        bench.at(&root, &["convert", "--back"]);
        assert_eq!((text(bench, "more"), text(bench, "f")), ("more".into(), "one".into()));
    });
}

#[test]
fn what_other_providers_have_of_a_workspace_that_cannot_be_mounted_is_read() {
    Bench::each_plain(|bench| {
        let (root, home) = (bench.0.root(), kept(bench));
        let shelf = fs::read(home.join("shelf")).unwrap();
        for name in ["shelf", "shelf.copy"] {
            fs::write(home.join(name), "").unwrap();
        }
        for words in [&["snapshots"][..], &["branches"], &["diff", "before", "before"]] {
            let read = bench.ran(&root, words);
            assert!(read.code == 0 && read.stderr.contains("is not mounted"), "{words:?}: {read:?}");
        }
        let mut timeline = bench.0.command(["-C", root.to_str().unwrap(), "timeline"]);
        let read = Ran::of(timeline.current_dir("/"));
        assert!(read.code == 0 && read.stderr.contains("is not mounted"), "{read:?}");
        let read = bench.ran(&root, &["cat", "before", "f"]);
        assert!(read.code == 0 && read.stdout == "one", "{read:?}");
        let seen = bench.at(&root, &["seek", "before"]);
        assert_eq!(bench.sh(&format!("cat {seen}/f")), "one");
        // What cannot be read is not gone, and the file is named, with what mends it.
        for words in [&["cat", "since", "mine"][..], &["status"], &["diff"], &["gc"], &["rm", "--force", "since"]] {
            let refused = bench.ran(&root, words);
            assert!(refused.code != 0 && !refused.stderr.contains("any more"), "{words:?}: {refused:?}");
        }
        let refused = bench.ran(&root, &["cat", "since", "mine"]);
        assert!(refused.stderr.contains("agentfs/shelf is damaged"), "{refused:?}");
        let hint = refused.stderr.split('`').find(|word| word.starts_with("ah-agentfsd --fsck")).unwrap();
        let said = fsck(bench, &format!("{} --repair", hint.trim_start_matches("ah-agentfsd --fsck ")));
        assert!(said.contains("it was mended") && fs::read(home.join("shelf")).unwrap() == shelf, "{said}");
        is_whole(bench);
        // Nor does it take what is left of a mount whose service was killed.
        for name in ["shelf", "shelf.copy"] {
            fs::write(home.join(name), "").unwrap();
        }
        bench.kill_services();
        let read = bench.ran(&root, &["diff", "before", "before"]);
        assert!(read.code == 0 && read.stderr.contains("is not mounted"), "{read:?}");
    });
}

#[test]
fn a_tree_that_is_gone_is_not_made_anew_and_comes_back_whole() {
    Bench::each_plain(|bench| {
        let root = bench.0.root();
        let branch = bench.branch("first");
        bench.sh(&format!("echo mine > {}/f", branch.display()));
        let (tree, aside) = (tree(bench), bench.0.path("aside"));
        for is_served in [false, true] {
            if !is_served {
                end(bench);
            }
            fs::rename(&tree, &aside).unwrap();
            // A service ends by itself then.
            until(|| bench.mounts().is_empty());
            let refused = bench.ran(&root, &["branch", "--mode", "cow-overlay", "--name", "second"]);
            assert!(refused.code == 1 && refused.stderr.contains("hint: bring it back"), "{refused:?}");
            assert!(!tree.exists());
            fs::rename(&aside, &tree).unwrap();
            bench.at(&root, &["branches"]);
            assert_eq!(bench.sh(&format!("cat {}/f", branch.display())), "mine");
        }
        bench.branch("second");
    });
}

#[test]
fn nothing_is_put_behind_in_place_of_a_tree_that_is_gone_until_it_is_given_up() {
    Bench::each_plain(|bench| {
        let root = bench.0.root();
        bench.at(&root, &["convert"]);
        bench.at(&root, &["snapshot", "-m", "taken"]);
        bench.at(&root, &["convert", "--back"]);
        end(bench);
        let tree = tree(bench);
        fs::remove_dir_all(&tree).unwrap();
        let refused = bench.ran(&root, &["convert"]);
        let give_up = refused.stderr.split('`').find(|said| said.contains("rm ") && said.contains("test "));
        assert!(refused.code == 1 && give_up.is_some() && !tree.exists(), "{refused:?}");
        bench.sh(give_up.unwrap());
        bench.at(&root, &["rm", "taken"]);
        // What lay behind is nobody's any more, and in nobody's way once it is moved.
        let behind = bench.0.path(".ah-behind-w");
        bench.sh(&format!("mv {0} {0}-aside", behind.display()));
        bench.at(&root, &["convert"]);
        bench.at(&root, &["snapshot"]);
    });
}

/// Whether a line that was printed does anything where it is typed now.
fn still_does(bench: &Bench, line: &str) -> bool {
    bench.program("sh").args(["-c", line]).output().unwrap().status.success()
}

#[test]
fn a_workspace_whose_tree_is_gone_is_given_up_and_is_what_it_was_before() {
    Bench::each_plain(|bench| {
        let (root, home) = (bench.0.root(), kept(bench));
        fs::remove_dir_all(home.join("tree")).unwrap();
        let refused = bench.ran(&root, &["rm", "--all", "--force"]);
        assert!(refused.code != 0 && refused.stderr.contains("/tree is not there"), "{refused:?}");
        assert!(refused.stderr.contains("the workspace is what it was before `convert`, "), "{refused:?}");
        let give_up = refused.stderr.split('`').find(|said| said.contains("mv -T")).unwrap();
        bench.sh(give_up);
        assert_eq!((text(bench, "f"), text(bench, "mine")), ("one".into(), String::new()));
        assert!(!home.join("behind").exists() && !home.join("lower").exists());
        // A second time it does nothing: to what was written since, and to what was put behind again.
        bench.sh(&format!("echo -n new > {}/new", root.display()));
        assert!(!still_does(bench, give_up) && text(bench, "new") == "new");
        bench.at(&root, &["rm", "--all", "--force"]);
        assert_eq!(fs::read_dir(bench.0.path("state/workspaces")).unwrap().count(), 0);
        bench.at(&root, &["convert"]);
        bench.at(&root, &["snapshot"]);
        bench.sh(&format!("chmod -R u+w {0} && rm -r {0}", bench.0.path(".ah-left-w").display()));
        for is_served in [true, false] {
            if !is_served {
                end(bench);
            }
            assert!(!still_does(bench, give_up) && bench.0.path(".ah-behind-w").exists());
        }
        bench.at(&root, &["status"]);
        assert_eq!((text(bench, "f"), text(bench, "new")), ("one".into(), "new".into()));
    });
}

#[test]
fn nothing_is_said_to_be_lost_that_was_given_up_half_way() {
    Bench::each_plain(|bench| {
        let (root, home) = (bench.0.root(), kept(bench));
        fs::remove_dir_all(home.join("tree")).unwrap();
        let behind = fs::read(home.join("behind")).unwrap();
        let refused = bench.ran(&root, &["status"]);
        bench.sh(refused.stderr.split('`').find(|said| said.contains("mv -T")).unwrap());
        fs::write(home.join("behind"), behind).unwrap();
        bench.at(&root, &["convert"]);
        let order = bench.ran(&root, &["gc"]);
        assert!(!order.stderr.contains("has lost"), "{order:?}");
        assert_eq!(text(bench, "f"), "one");
    });
}

#[test]
fn a_workspace_whose_place_has_something_is_given_up_as_that_is() {
    Bench::each_plain(|bench| {
        let (root, home) = (bench.0.root(), kept(bench));
        let before = bench.0.path(".ah-behind-w");
        fs::rename(home.join("tree"), home.join("aside")).unwrap();
        let refused = |words: &[&str]| {
            let refused = bench.ran(&root, words);
            assert!(refused.code != 0 && refused.stderr.contains("/tree is not there"), "{refused:?}");
            refused.stderr
        };
        let told = |said: &str| said.contains(before.to_str().unwrap()) && !said.contains("mv -T");
        // A copy of the home gives up nothing that is another's.
        let copy = bench.copy_of_state();
        let mut command = bench.0.command(["-C", root.to_str().unwrap(), "agent", "fs", "rm", "--all", "--force"]);
        let in_copy = Ran::of(command.env("AH_HOME", &copy).current_dir("/"));
        assert!(in_copy.stderr.contains("of which this is a copy"), "{in_copy:?}");
        assert!(!in_copy.stderr.contains("give it up"), "{in_copy:?}");
        // Nothing is known of it but where the directory was that was branched.
        let known = fs::read(home.join("behind")).unwrap();
        fs::write(home.join("behind"), "damaged").unwrap();
        assert!(told(&refused(&["rm", "--all", "--force"])));
        fs::write(home.join("behind"), known).unwrap();
        bench.sh(&format!("chmod u+w {0} && echo own > {0}/own", root.display()));
        let said = refused(&["rm", "--all", "--force"]);
        let give_up = said.split('`').find(|said| said.contains("rm ") && said.contains("test ")).unwrap();
        assert!(told(&said), "{said}");
        // Not once it is back.
        fs::rename(home.join("aside"), home.join("tree")).unwrap();
        assert!(!still_does(bench, give_up) && home.join("behind").exists());
        fs::rename(home.join("tree"), home.join("aside")).unwrap();
        bench.sh(give_up);
        assert!(!home.join("behind").exists() && !home.join("lower").exists());
        assert_eq!(
            (text(bench, "own"), bench.sh(&format!("cat {}/f", before.display()))),
            ("own".into(), "one".into())
        );
        is_open(bench);
    });
}

#[test]
fn what_a_workspace_was_before_a_log_was_lost_comes_back_as_the_hint_says() {
    Bench::each_plain(|bench| {
        let (root, home, before) = (bench.0.root(), kept(bench), bench.0.path(".ah-behind-w"));
        for log in fs::read_dir(home.join("tree/log")).unwrap() {
            fs::File::options().write(true).open(log.unwrap().path()).unwrap().set_len(0).unwrap();
        }
        let refused = bench.ran(&root, &["status"]);
        assert!(refused.code == 4 && refused.stderr.contains("the newest log is not there"), "{refused:?}");
        end(bench);
        fsck(bench, &format!("{} --repair; test $? = 1", home.display()));
        let told = bench.ran(&root, &["status"]);
        let bring_back = told.stderr.split('`').find(|said| said.contains("cp -aT"));
        assert!(told.stderr.contains("its log is damaged") && bring_back.is_some(), "{told:?}");
        bench.sh(bring_back.unwrap());
        assert_eq!((text(bench, "f"), text(bench, "mine")), ("one".into(), String::new()));
        assert!(!root.join(".ah-behind-w").exists());
        bench.at(&root, &["status"]);
        // What is written since stays, whether it is typed once more, or told.
        bench.sh(&format!("echo -n new > {}/f", root.display()));
        assert!(!still_does(bench, bring_back.unwrap()) && text(bench, "f") == "new");
        bench.sh(&format!("chmod -R u+w {0} && rm -r {0}", bench.0.path(".ah-left-w").display()));
        assert!(!still_does(bench, bring_back.unwrap()) && text(bench, "f") == "new");
        end(bench);
        let told = bench.ran(&root, &["gc"]).stderr;
        assert!(told.contains("its log is damaged") && told.contains(before.to_str().unwrap()), "{told}");
        assert!(!told.contains(&format!("{} {}", before.display(), root.display())), "{told}");
        // Once what lay behind is elsewhere, the workspace is as any other.
        bench.sh(&format!("mv {0} {0}-aside", before.display()));
        bench.at(&root, &["convert"]);
        bench.at(&root, &["snapshot"]);
        assert_eq!(text(bench, "f"), "new");
    });
}

/// Where the tree is of the only workspace that has one.
fn tree(bench: &Bench) -> PathBuf {
    let workspaces = fs::read_dir(bench.0.path("state/workspaces")).unwrap();
    let mut trees = workspaces.map(|workspace| workspace.unwrap().path().join("providers/agentfs/tree"));
    trees.find(|tree| tree.exists()).unwrap()
}
