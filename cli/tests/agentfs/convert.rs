//! A workspace that is itself behind AgentFS: put there, worked in, its service killed, taken back.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::support::bench::{Bench, until};
use crate::support::{Ran, User, ah, is_root, schema};

/// A process that stands in a directory.
struct Stands(Child);

impl Stands {
    fn at(bench: &Bench, directory: &Path) -> Self {
        Self(bench.program("sleep").arg("60").current_dir(directory).spawn().unwrap())
    }
}

impl Drop for Stands {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What lies beside the workspace with a name of ours.
fn beside(bench: &Bench) -> Vec<String> {
    let names = fs::read_dir(bench.0.path("")).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter_map(|name| name.into_string().ok()).filter(|name| name.starts_with(".ah-")).collect()
}

/// What is in a file of the workspace, for its user; nothing if it is not there.
pub(crate) fn text(bench: &Bench, name: &str) -> String {
    bench.sh(&format!("cd {} && if test -e {name}; then cat {name}; fi", bench.0.root().display()))
}

fn provider(bench: &Bench) -> String {
    let status = bench.at(&bench.0.root(), &["status"]);
    status.lines().find_map(|line| line.strip_prefix("provider  ")).unwrap().to_owned()
}

#[test]
fn a_workspace_goes_behind_and_comes_back() {
    Bench::each_plain(|bench| {
        let root = bench.0.root();
        bench.sh(&format!(
            "git init -q {0} && git -C {0} add f && git -C {0} -c user.name=n -c user.email=e commit -qm one",
            root.display()
        ));
        bench.at(&root, &["snapshot", "-m", "plain"]);
        assert_eq!(provider(bench), "git");
        let refused = bench.ran(&root, &["convert", "--back"]);
        assert!(refused.code == 4 && refused.stderr.contains("nothing to take back"), "{refused:?}");

        let stands = Stands::at(bench, &root);
        let refused = bench.ran(&root, &["convert"]);
        assert!(refused.code != 0 && refused.stderr.contains(&stands.0.id().to_string()), "{refused:?}");
        assert!(beside(bench).is_empty() && bench.mounts().is_empty());
        drop(stands);
        let converted = bench.ran(&root, &["convert", "--json"]);
        let converted: serde_json::Value = serde_json::from_str(&converted.stdout).unwrap();
        schema::check("convert", &converted);
        assert!(converted["convert"]["mounted"] == true && converted["convert"]["changed"] == true, "{converted}");
        assert_eq!((provider(bench).as_str(), beside(bench)), ("agentfs", vec![".ah-behind-w".to_owned()]));

        // Snapshots where it is, ignored files included.
        bench.at(&root, &["snapshot", "-m", "first"]);
        bench.sh(&format!(
            "cd {}; echo two > f; rm src/main; echo new > node_modules/new; echo more > more",
            root.display()
        ));
        assert_eq!(bench.at(&root, &["cat", "first", "node_modules/big"]), "ignored, and needed");
        bench.at(&root, &["restore", "first"]);
        assert_eq!((text(bench, "f").as_str(), text(bench, "src/main").as_str()), ("one", "fn main() {}"));
        bench.at(&root, &["undo"]);
        assert_eq!((text(bench, "f").as_str(), text(bench, "src/main").as_str()), ("two", ""));
        // Those that were taken before, too.
        bench.at(&root, &["restore", "plain", "--", "f"]);
        assert_eq!(text(bench, "f"), "one");
        // What is changed afterwards is not seen in a branch, nor the other way round.
        let branch = bench.at(&root, &["branch", "--name", "b"]);
        bench.sh(&format!(
            "echo three > {}/f; echo in b > {branch}/more; git -C {branch} status --short",
            root.display()
        ));
        assert_eq!(bench.sh(&format!("cat {branch}/f {branch}/node_modules/big")), "oneignored, and needed");
        assert_eq!(text(bench, "more"), "more");
        let seen = bench.ran(&root, &["exec", "b", "--", "sh", "-c", "pwd; cat more"]);
        assert_eq!(seen.stdout, format!("{}\nin b\n", root.display()), "{seen:?}");
        // In the branch, at that path, it is worked with as anywhere.
        let within = |words: &[&str]| {
            let program = [&["exec", "b", "--", ah().to_str().unwrap(), "agent", "fs"], words].concat();
            let ran = bench.ran(&root, &program);
            assert_eq!(ran.code, 0, "{ran:?}");
            ran.stdout
        };
        within(&["snapshot", "-m", "within"]);
        bench.sh(&format!("echo four > {branch}/more"));
        assert_eq!(within(&["diff", "within", "--name-status"]), "M\tmore\n");
        within(&["restore", "within"]);
        assert_eq!(bench.sh(&format!("cat {branch}/more")), "in b");
        // What was kept of the repository's objects for a snapshot of former days goes, and that is no work in what lies behind.
        bench.at(&root, &["rm", "plain"]);
        bench.at(&root, &["gc"]);

        // The service killed, and ended: the next command finds it as it was, and nothing else in its place.
        bench.sh(&format!("cd {}; mkdir .ah; echo '{{}}' >.ah/config.json; sync f", root.display()));
        bench.kill_services();
        let ran = bench.ran(&root, &["snapshot", "-m", "after a kill"]);
        assert!(ran.code == 0 && !ran.stderr.contains("config.json"), "{ran:?}");
        assert_eq!(text(bench, "f"), "three");
        end(bench);
        assert!(!text(bench, "NOT-MOUNTED.txt").is_empty());
        bench.at(&root, &["snapshot", "-m", "after its end"]);
        assert_eq!(text(bench, "f"), "three");
        let mut timeline = bench.0.command(["-C", root.to_str().unwrap(), "timeline"]);
        let timeline = Ran::of(timeline.current_dir("/")).stdout;
        assert!(!timeline.contains("made-anew") && !timeline.contains("made again"), "{timeline}");

        bench.at(&root, &["convert", "--back"]);
        assert_eq!((provider(bench).as_str(), beside(bench)), ("git", vec![".ah-behind-w".to_owned()]));
        assert_eq!((text(bench, "f").as_str(), text(bench, "node_modules/new").as_str()), ("three", "new"));
        bench.sh(&format!("git -C {0} fsck --strict && test -z \"$(git -C {0} diff --cached)\"", root.display()));
        // What was taken meanwhile is there still, and so is the branch.
        bench.at(&root, &["restore", "first"]);
        assert_eq!((text(bench, "f").as_str(), text(bench, "src/main").as_str()), ("one", "fn main() {}"));
        assert_eq!(bench.sh(&format!("cat {branch}/more")), "in b");
        assert!(bench.ran(&root, &["convert", "--back"]).code == 4);
        // Once nothing reads what lay behind, it goes.
        bench.at(&root, &["rm", "--force", "b"]);
        let listed: serde_json::Value = serde_json::from_str(&bench.at(&root, &["snapshots", "--json"])).unwrap();
        let listed =
            listed["snapshots"].as_array().unwrap().iter().filter(|snapshot| snapshot["provider"] == "agentfs");
        let ids: Vec<&str> = listed.map(|snapshot| snapshot["id"].as_str().unwrap()).collect();
        assert!(ids.len() > 3, "{ids:?}");
        bench.at(&root, &[&["rm"], ids.as_slice()].concat());
        bench.at(&root, &["gc"]);
        assert_eq!(beside(bench), Vec::<String>::new());
        assert_eq!(text(bench, "f"), "one");
    });
}

#[test]
fn a_copy_of_the_state_takes_nothing_over() {
    Bench::each_plain(|bench| {
        let root = bench.0.root();
        bench.at(&root, &["convert"]);
        let copy = bench.copy_of_state();
        bench.sh(&format!("cd {}; echo later > later; sync later", root.display()));
        end(bench);
        for words in [&["status"][..], &["convert", "--back"], &["gc"]] {
            let mut command = bench.0.command([&["-C", root.to_str().unwrap(), "agent", "fs"], words].concat());
            let ran = Ran::of(command.env("AH_HOME", &copy).current_dir("/"));
            assert!(ran.code == 4 && ran.stderr.contains("is a copy of"), "{ran:?}");
            assert!(!ah_test_disks::mounts().contains(copy.to_str().unwrap()), "{words:?}");
        }
        bench.at(&root, &["snapshot"]);
        assert_eq!(text(bench, "later"), "later");
        assert_eq!(beside(bench), [".ah-behind-w"]);
        // While the original is away the copy is the one, and not any more when that is back.
        let (state, away) = (bench.0.path("state"), bench.0.path("away"));
        end(bench);
        bench.sh(&format!("mv {} {}", state.display(), away.display()));
        let status = || {
            let mut command = bench.0.command(["-C", root.to_str().unwrap(), "agent", "fs", "status"]);
            Ran::of(command.env("AH_HOME", &copy).current_dir("/"))
        };
        assert_eq!(status().code, 0);
        assert!(ah_test_disks::mounts().contains(copy.to_str().unwrap()));
        end(bench);
        bench.sh(&format!("mv {} {}", away.display(), state.display()));
        let ran = status();
        assert!(ran.code == 4 && ran.stderr.contains("is a copy of"), "{ran:?}");
        bench.at(&root, &["convert", "--back"]);
        assert_eq!(text(bench, "later"), "later");
    });
}

#[test]
fn nothing_else_is_taken_for_a_workspace_that_cannot_be_mounted() {
    Bench::each_plain(|bench| {
        let root = bench.0.root();
        bench.at(&root, &["convert"]);
        let taken = bench.at(&root, &["snapshot", "-m", "taken"]);
        end(bench);
        let format =
            bench.sh(&format!("echo {}/workspaces/*/providers/agentfs/tree/format", bench.0.path("state").display()));
        let whole = fs::read(&format).unwrap();
        fs::write(&format, "agentfs 999\n").unwrap();
        for words in [&["snapshot", "-m", "of what?"][..], &["restore", "taken"], &["status"], &["convert", "--back"]] {
            let refused = bench.ran(&root, words);
            assert!(refused.code != 0 && refused.stderr.contains("is not mounted"), "{words:?}: {refused:?}");
        }
        fs::write(&format, whole).unwrap();
        let listed = bench.at(&root, &["snapshots"]);
        assert!(listed.contains(&taken) && !listed.contains("of what?"), "{listed}");
        assert_eq!(text(bench, "f"), "one");
        // Without what lies behind it, each command says so.
        let (behind, aside) = (bench.0.path(".ah-behind-w"), bench.0.path("aside"));
        fs::rename(&behind, &aside).unwrap();
        let told = bench.ran(&root, &["snapshots"]);
        assert!(told.code == 0 && told.stderr.contains(".ah-behind-w is gone"), "{told:?}");
        fs::rename(&aside, &behind).unwrap();
        assert_eq!(bench.ran(&root, &["snapshots"]).stderr, "");
        // What is told of it is as it is now.
        let branch = std::path::PathBuf::from(bench.at(&root, &["branch", "--name", "b"]));
        fs::rename(&behind, &aside).unwrap();
        end(bench);
        let reasons = || {
            let reason = |at: &Path| {
                let status: serde_json::Value = serde_json::from_str(&bench.at(at, &["status", "--json"])).unwrap();
                let candidates = status["status"]["candidates"].as_array().unwrap().clone();
                let its = candidates.into_iter().find(|candidate| candidate["name"] == "agentfs").unwrap();
                its["reason"].as_str().unwrap().to_owned()
            };
            [reason(&root), reason(&branch)]
        };
        let [of_it, of_branch] = reasons();
        assert!(of_it.starts_with("it is behind AgentFS; what lies behind it is not at"), "{of_it}");
        assert!(
            of_branch.starts_with("it is a branch in AgentFS; the workspace that it grew from is not"),
            "{of_branch}"
        );
        assert!(!of_it.contains("became other") && !of_branch.contains("became other"), "{of_it} {of_branch}");
        fs::rename(&aside, &behind).unwrap();
        bench.at(&root, &["gc"]);
        assert_eq!(reasons(), ["it is behind AgentFS", "it is a branch in AgentFS"]);
        bench.sh(&format!("echo other > {}/f", behind.display()));
        assert_ne!(text(bench, "f"), "one");
        let [of_it, _] = reasons();
        assert!(of_it.contains("1 path that it reads in what lies behind it became other there"), "{of_it}");
        // The branch has not read it, but hears of it.
        until(|| reasons()[1].contains("1 path that it reads in the workspace became other there"));
        bench.sh(&format!("echo -n one > {}/f", behind.display()));
        bench.at(&root, &["rm", "--force", "b"]);
        bench.at(&root, &["convert", "--back"]);
        assert_eq!(text(bench, "f"), "one");
        assert_eq!(bench.ran(&root, &["snapshots"]).stderr, "");
    });
}

#[test]
fn what_is_put_in_its_place_hides_it_with_a_word_and_for_no_longer_than_it_is_there() {
    Bench::each_plain(|bench| {
        let root = bench.0.root();
        bench.at(&root, &["convert"]);
        bench.at(&root, &["snapshot", "-m", "taken"]);
        bench.sh(&format!("cd {} && echo -n unsaved > f", root.display()));
        end(bench);
        bench.sh(&format!("cd / && chmod u+w {0} && rm -rf {0} && mkdir {0} && echo mine > {0}/mine", root.display()));
        let status = bench.at(&root, &["status"]);
        assert!(status.contains("is kept whole"), "{status}");
        for words in [&["convert"][..], &["convert", "--back"]] {
            let refused = bench.ran(&root, words);
            assert!(refused.code == 4 && refused.stderr.contains("agent fs status`"), "{words:?}: {refused:?}");
        }
        bench.sh(&format!("mv {} {}", root.display(), bench.0.path("aside").display()));
        bench.at(&root, &["snapshots"]);
        assert_eq!(text(bench, "f"), "unsaved");
        bench.at(&root, &["convert", "--back"]);
        assert_eq!(text(bench, "f"), "unsaved");
    });
}

#[test]
fn who_is_in_what_lay_behind_is_named() {
    Bench::each_plain(|bench| {
        let (root, behind) = (bench.0.root(), bench.0.path(".ah-behind-w"));
        bench.at(&root, &["convert"]);
        let both = [Stands::at(bench, &behind), Stands::at(bench, &behind.join("src"))];
        let named = |said: &str| both.iter().all(|stands| said.contains(&format!("{} (sleep)", stands.0.id())));
        let back = bench.ran(&root, &["convert", "--back"]);
        assert!(back.code == 0 && named(&back.stderr), "{back:?}");
        let gc = bench.ran(&root, &["gc"]);
        assert!(gc.stderr.contains(behind.to_str().unwrap()) && named(&gc.stderr), "{gc:?}");
        drop(both);
        bench.at(&root, &["gc"]);
        assert_eq!(beside(bench), Vec::<String>::new());
    });
}

#[test]
fn names_outside_of_it_are_told_of() {
    Bench::each_plain(|bench| {
        let root = bench.0.root();
        // Of one file both names are in it.
        let git = "git init -q . && git add f && git -c user.name=n -c user.email=e commit -qm one";
        bench.sh(&format!("cd {} && ln src/main linked && ln f ../outside && {git}", root.display()));
        // What ah itself keeps of the repository's objects nobody writes to.
        bench.at(&root, &["snapshot"]);
        assert_ne!(bench.sh(&format!("find {}/.git/objects -type f -links +1", root.display())), "");
        let converted = bench.ran(&root, &["convert"]);
        assert_eq!(converted.code, 0, "{converted:?}");
        assert!(format!("{converted:?}").contains("1 file in it has names outside of it"), "{converted:?}");
        bench.sh(&format!("echo written > {}/f", root.display()));
        assert_eq!(bench.sh(&format!("cat {}/../outside", root.display())), "one");
        bench.at(&root, &["convert", "--back"]);
    });
}

#[test]
fn a_command_that_is_killed_while_it_copies_leaves_nothing() {
    Bench::each_plain(|bench| {
        let root = bench.0.root();
        let many = format!("cd {}; mkdir many; for n in $(seq 3000); do echo $n > many/$n; done", root.display());
        bench.sh(&many);
        bench.at(&root, &["convert"]);
        let (mut cut_short, mut told) = (0, 0);
        for round in 0..8 {
            let words = ["-C", root.to_str().unwrap(), "agent", "fs", "convert", "--back"];
            let mut command = bench.0.command(words);
            let mut back = command.current_dir("/").stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            // It has begun, or come to its end.
            until(|| beside(bench).len() > 1 || back.try_wait().unwrap().is_some());
            std::thread::sleep(Duration::from_millis(round * 20));
            let _ = back.kill();
            cut_short += u32::from(!back.wait().unwrap().success());
            // `status` says it as long as it is so.
            let is_left = bench.at(&root, &["status"]).contains("was cut short: `ah agent fs gc`");
            let gc = bench.ran(&root, &["gc"]);
            assert!(gc.code == 0 && (!is_left || gc.stderr.contains("was cut short, and is undone")), "{gc:?}");
            told += u32::from(is_left);
            let count = bench.sh(&format!("cat {}/many/* | sort -n | uniq | wc -l", root.display()));
            assert_eq!(count, "3000", "{round}");
            let left = beside(bench);
            assert!(left.iter().all(|name| name == ".ah-behind-w"), "{left:?}");
            if bench.mounts().is_empty() {
                assert!(left.is_empty(), "{left:?}");
                bench.at(&root, &["convert"]);
            }
        }
        assert!(cut_short > 0 && told > 0, "{cut_short} were cut short, {told} were told");
        if bench.0.user == User::Me {
            bench.at(&root, &["convert", "--back"]);
        }
    });
}

/// Killed when the provider was done, before any of that was written down: it is put there as it was before.
#[test]
fn what_was_cut_short_at_its_end_is_repeated() {
    Bench::each_plain(|bench| {
        let (root, state) = (bench.0.root(), bench.0.path("state"));
        bench.at(&root, &["snapshot", "-m", "plain"]);
        let record = bench.sh(&format!("echo {}/workspaces/*/workspace.json", state.display()));
        let cut_short = |words: &[&str]| {
            let mut was: serde_json::Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
            was["mounted_by"] = "agentfs".into();
            bench.at(&root, words);
            fs::write(&record, was.to_string()).unwrap();
            fs::remove_file(state.join("index.json")).unwrap();
            let ran = bench.ran(&root, words);
            assert!(ran.code == 0 && !ran.stderr.contains("adopt"), "{ran:?}");
            ran.stderr
        };
        assert!(cut_short(&["convert"]).contains("is mounted already"));
        assert_eq!(provider(bench), "agentfs");
        bench.at(&root, &["snapshot", "-m", "behind"]);
        bench.at(&root, &["branch", "--name", "b"]);
        let said = cut_short(&["convert", "--back"]);
        assert!(said.contains("a plain directory again already"), "{said}");
        assert_eq!((provider(bench).as_str(), beside(bench)), ("git", vec![".ah-behind-w".to_owned()]));
        assert_eq!(bench.ran(&root, &["convert", "--back"]).code, 4);
    });
}

/// The service is killed, and whoever works there goes on writing, to what is mounted or to what is beneath.
#[test]
fn what_is_written_beneath_it_is_set_aside_and_named() {
    Bench::each_plain(|bench| {
        let root = bench.0.root();
        bench.at(&root, &["convert"]);
        bench.sh(&format!("cd {} && echo -n kept > f && sync f", root.display()));
        let left =
            || -> Vec<String> { beside(bench).into_iter().filter(|name| name.starts_with(".ah-left-")).collect() };
        if is_root() {
            bench.kill_services();
            assert!(Command::new("umount").arg("-l").arg(&root).status().unwrap().success());
            let line =
                "chmod u+w . && echo -n mine > f && mkdir -p d/closed && echo -n deep > d/closed/g && chmod 555 d";
            bench.sh(&format!("cd {} && {line}", root.display()));
            let ran = bench.ran(&root, &["status"]);
            let [at] = left().try_into().unwrap();
            let told = ran.stderr.lines().filter(|line| line.contains(&at)).count();
            assert!(ran.code == 0 && told == 1, "{ran:?}");
            assert_eq!(text(bench, "f"), "kept");
            let at = bench.0.path(&at);
            assert_eq!(bench.sh(&format!("cat {0}/f {0}/d/closed/g; ls {0}", at.display())), "minedeepd\nf");
            assert_eq!(fs::metadata(at.join("d")).unwrap().permissions().mode() & 0o777, 0o555);
            // Said once, and by `gc` as long as it is there.
            assert_eq!(bench.ran(&root, &["status"]).stderr, "");
            assert!(bench.ran(&root, &["gc"]).stderr.contains(at.to_str().unwrap()));
        }
        // What is on the disk is told by its number.
        let line = format!(
            "n=0; while :; do n=$((n+1)); f={}/w-$n; echo -n $n > $f && sync $f && echo $n; done 2>/dev/null",
            root.display()
        );
        let mut writer = Stands(bench.program("sh").args(["-c", &line]).stdout(Stdio::piped()).spawn().unwrap());
        let written = writer.0.stdout.take().unwrap();
        for round in 0..6 {
            std::thread::sleep(Duration::from_millis(40 * round));
            bench.kill_services();
            let ran = bench.ran(&root, &["status"]);
            assert!(ran.code == 0 || ran.stderr.contains("hint: "), "{ran:?}");
        }
        drop(writer);
        let written = std::io::read_to_string(written).unwrap();
        bench.at(&root, &["status"]);
        assert_eq!(text(bench, "f"), "kept");
        let places = left().into_iter().map(|name| bench.0.path(&name)).chain([root.clone()]);
        let names = places.map(|at| format!("ls {}; ", at.display())).collect::<String>();
        let found = bench.sh(&names);
        let found: BTreeSet<&str> = found.lines().collect();
        let mut written = written.lines().map(|n| format!("w-{n}"));
        assert_eq!(written.find(|name| !found.contains(name.as_str())), None, "{found:?}");
        bench.at(&root, &["convert", "--back"]);
        assert_eq!(text(bench, "f"), "kept");
    });
}

/// Ends what serves this world, as a restart of the machine does.
pub(crate) fn end(bench: &Bench) {
    bench.0.wait_for_background();
    for pid in bench.services() {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::SIGTERM).unwrap();
    }
    until(|| bench.mounts().is_empty() && bench.services().is_empty());
}

#[test]
fn what_stands_in_for_it_is_no_workspace_wherever_it_is() {
    Bench::each_plain(|bench| {
        let (above, moved) = (bench.0.root().join("above"), bench.0.root().join("moved"));
        bench.sh(&format!("mkdir -p {0}/p && echo one > {0}/p/f", above.display()));
        bench.at(&above.join("p"), &["snapshot", "-m", "plain"]);
        bench.at(&above.join("p"), &["convert"]);
        bench.sh(&format!("echo two > {}/p/f", above.display()));
        end(bench);
        bench.sh(&format!("mv {} {}", above.display(), moved.display()));
        for words in [&["snapshot"][..], &["status"], &["restore", "plain"], &["convert"]] {
            let refused = bench.ran(&moved.join("p"), words);
            assert!(refused.code != 0 && refused.stderr.contains("not mounted"), "{words:?}: {refused:?}");
        }
        // A file that is called so, in a repository that somebody else has made, stands in for nothing.
        let text = "This is the place of a branch that ah keeps in AgentFS.";
        bench.sh(&format!("cd {}; git init -q q; echo '{text}' > q/NOT-MOUNTED.txt", bench.0.root().display()));
        bench.at(&bench.0.root().join("q"), &["snapshot"]);
        bench.sh(&format!("mv {} {}", moved.display(), above.display()));
        bench.at(&above.join("p"), &["snapshot", "-m", "again"]);
        assert_eq!(bench.sh(&format!("cat {}/p/f", above.display())), "two");
        bench.at(&above.join("p"), &["convert", "--back"]);
        assert_eq!(bench.sh(&format!("cat {}/p/f", above.display())), "two");
    });
}

#[test]
fn a_workspace_around_it_leaves_it_alone() {
    Bench::each_plain(|bench| {
        let root = bench.0.root();
        bench.sh(&format!("mkdir {0}/p && echo one > {0}/p/f && : > {0}/p/empty-below", root.display()));
        bench.at(&root, &["snapshot", "-m", "before"]);
        // Registered by itself, so that it is one within the other.
        bench.sh(&format!("git init -q {}/p", root.display()));
        bench.at(&root.join("p"), &["convert"]);
        bench.sh(&format!("echo two > {}/p/f", root.display()));
        for mounted in [true, false] {
            if !mounted {
                end(bench);
            }
            let changed = bench.at(&root, &["diff", "before"]);
            assert_eq!(changed, "");
            bench.at(&root, &["restore", "before"]);
            bench.at(&root, &["snapshot"]);
            let refused = bench.ran(&root, &["convert"]);
            assert!(refused.code != 0 && refused.stderr.contains("inside of it"), "{refused:?}");
        }
        bench.at(&root.join("p"), &["snapshot"]);
        assert_eq!(bench.sh(&format!("cat {}/p/f", root.display())), "two");
        bench.at(&root.join("p"), &["snapshot", "-m", "inside"]);
        bench.at(&root.join("p"), &["convert", "--back"]);
        assert_eq!(bench.sh(&format!("cat {}/p/f", root.display())), "two");
        // What lay behind stays for the snapshot that reads it, and is nobody's work.
        assert!(!bench.at(&root, &["diff", "before"]).contains("ah-behind"));
        bench.at(&root, &["restore", "before"]);
        bench.at(&root, &["snapshot", "-m", "after"]);
        assert!(!bench.at(&root, &["diff", "before", "after"]).contains("ah-behind"));
        assert_eq!(bench.at(&root.join("p"), &["cat", "inside", "empty-below"]), "");
    });
}

/// What is in it is in no snapshot and no branch of what is around it, whoever makes them, and whether it is mounted just now.
#[test]
fn what_is_around_it_says_what_it_does_not_have() {
    Bench::each_plain(|bench| {
        let (root, inner) = (bench.0.root(), bench.0.root().join("sub/p"));
        bench.sh(&format!("mkdir -p {0} && echo one > {0}/in-it && git init -q {0}", inner.display()));
        bench.at(&root, &["snapshot", "-m", "before"]);
        bench.at(&inner, &["convert"]);
        let taken = bench.ran(&root, &["snapshot", "-m", "after"]);
        assert!(taken.stderr.contains("left out: sub/p (a workspace of its own)"), "{taken:?}");
        let told = format!(
            "what is in sub/p is not in the branch: it is a workspace of its own, and `ah -C {} agent fs branch` makes one of it",
            inner.display()
        );
        // Another user, root too, does not see into a branch.
        let has =
            |branch: &str, name: &str| bench.sh(&format!("test -e {branch}/{name} && echo yes || echo no")) == "yes";
        for mounted in [true, false] {
            if !mounted {
                end(bench);
            }
            for how in ["cow-overlay", "worktree"] {
                let made = bench.ran(&root, &["branch", "--mode", how]);
                let line = made.stderr.lines().find(|line| line.contains(&told)).unwrap_or_else(|| panic!("{made:?}"));
                let has = |name: &str| has(made.stdout.trim_end(), name);
                assert!(made.code == 0 && !has("sub/p/in-it"), "{made:?}");
                // Where it is to be seen, nobody is to take it for that.
                let shows_behind = has("sub/.ah-behind-p");
                assert_eq!(shows_behind, how == "cow-overlay");
                assert_eq!(line.contains("; sub/.ah-behind-p does not have"), shows_behind, "{made:?}");
            }
        }
        // One that has it from before says nothing of the kind.
        let made = bench.ran(&root, &["branch", "before"]);
        assert!(made.code == 0 && !made.stderr.contains("of its own"), "{made:?}");
        assert!(has(made.stdout.trim_end(), "sub/p/in-it"));
        // Nor one of itself, nor where it is a plain directory again.
        let made = bench.ran(&inner, &["branch"]);
        assert!(made.code == 0 && !made.stderr.contains("of its own"), "{made:?}");
        bench.at(&inner, &["convert", "--back"]);
        let made = bench.ran(&root, &["branch"]);
        assert!(made.code == 0 && !made.stderr.contains("of its own"), "{made:?}");
    });
}

#[test]
fn what_lies_behind_is_no_workspace() {
    Bench::each_plain(|bench| {
        let (root, behind) = (bench.0.root(), bench.0.path(".ah-behind-w"));
        let refused = || {
            for at in [behind.clone(), behind.join("src")] {
                for words in [&["status"][..], &["snapshot", "-m", "start"], &["convert"]] {
                    let refused = bench.ran(&at, words);
                    let named = format!("cd {}", root.display());
                    assert!(refused.code == 4 && refused.stderr.contains(&named), "{at:?} {words:?}: {refused:?}");
                }
            }
        };
        bench.at(&root, &["convert"]);
        refused();
        bench.at(&root, &["snapshot", "-m", "taken"]);
        bench.at(&root, &["convert", "--back"]);
        // The snapshot reads it still.
        refused();
        assert_eq!(fs::read_dir(bench.0.path("state/workspaces")).unwrap().count(), 1);
    });
}

#[test]
fn a_place_that_was_moved_says_what_it_is_the_place_of() {
    Bench::each_plain(|bench| {
        let (root, moved) = (bench.0.root(), bench.0.path("moved"));
        bench.at(&root, &["convert"]);
        bench.sh(&format!("echo mine > {}/mine", root.display()));
        end(bench);
        bench.sh(&format!("mv {} {}", root.display(), moved.display()));
        let refused = bench.ran(&moved, &["status"]);
        let named = format!("`ah -C {}`", root.display());
        assert!(refused.code == 4 && refused.stderr.contains(&named), "{refused:?}");
        assert_eq!(text(bench, "mine"), "mine");
    });
}
