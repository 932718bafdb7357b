//! A workspace that is a Git repository: nothing its user does with git harms a snapshot, and nothing of it is changed.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

use ah_plugin_api::Capability;

use crate::case::{Case, Check, Need, Trouble, ensure};
use crate::editor::Editor;
use crate::fixture::Fixture;

const IMMUTABLE: &str = "nor by anything done to the user's repository.";

pub(super) const CASES: &[Case] = &[
    Case { id: "repository.gc", clauses: &[IMMUTABLE], needs: &[Need::Git], run: gc },
    Case { id: "repository.rewritten", clauses: &[IMMUTABLE], needs: &[Need::Git], run: rewritten },
    Case { id: "repository.removed", clauses: &[IMMUTABLE], needs: &[Need::Git], run: removed },
    Case {
        id: "repository.untouched",
        clauses: &["not a byte, mode or time in the workspace, not `.git`."],
        needs: &[Need::Git],
        run: untouched,
    },
    Case {
        id: "repository.tracked-is-not-ignored",
        clauses: &["Matched by an ignore rule."],
        needs: &[Need::Git, Need::Has(Capability::AppliesPolicy)],
        run: tracked_is_not_ignored,
    },
    Case {
        id: "repository.info-exclude",
        clauses: &["Matched by an ignore rule."],
        needs: &[Need::Git, Need::Has(Capability::AppliesPolicy)],
        run: info_exclude,
    },
    Case {
        id: "repository.clone",
        clauses: &[
            "if the workspace was a repository, so is the clone, with a `.git` of its own (HEAD, branch and index as captured) that depends on nothing outside it.",
        ],
        needs: &[Need::Git, Need::Has(Capability::RepositoryClones)],
        run: clone,
    },
    Case {
        id: "repository.state",
        clauses: &[
            "The commit that HEAD names, in hex; none in a repository without commits.",
            "none when detached, and where `branch_hex` has it.",
            "The bytes of its name in lower-case hex, where that is not UTF-8.",
        ],
        needs: &[Need::Git, Need::Has(Capability::RepositoryClones)],
        run: state,
    },
];

/// Runs git in `dir` with nothing of the user's configuration, and gives its standard output.
fn git(f: &Fixture, dir: &Path, args: &[&str]) -> Check<String> {
    let output = Command::new(f.git()?)
        .args(args)
        .current_dir(dir)
        .env_clear()
        .envs([("PATH", "/usr/local/bin:/usr/bin:/bin"), ("HOME", "/nonexistent"), ("LC_ALL", "C")])
        .envs([("GIT_CONFIG_NOSYSTEM", "1"), ("GIT_CONFIG_GLOBAL", "/dev/null"), ("GIT_TERMINAL_PROMPT", "0")])
        .envs([
            ("GIT_AUTHOR_NAME", "a"),
            ("GIT_AUTHOR_EMAIL", "a@a"),
            ("GIT_COMMITTER_NAME", "c"),
            ("GIT_COMMITTER_EMAIL", "c@c"),
        ])
        .stdin(Stdio::null())
        .output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    if !output.status.success() {
        let dir = dir.file_name().map(OsStr::to_string_lossy).unwrap_or_default();
        let message = format!("git {} in {dir} failed: {}", args.join(" "), text(&output.stderr));
        return Err(Trouble::Failed(message));
    }
    Ok(text(&output.stdout))
}

/// A repository with two commits, a staged change, an unstaged one, and an untracked file.
fn repository(f: &Fixture) -> Check {
    let ws = f.ws.root();
    git(f, ws, &["init", "-q", "-b", "main"])?;
    f.ws.sample()?;
    git(f, ws, &["add", "-A"])?;
    git(f, ws, &["commit", "-q", "-m", "first"])?;
    f.ws.write("src/main.rs", "fn main() { second() }\n")?;
    git(f, ws, &["commit", "-q", "-am", "second"])?;
    git(f, ws, &["branch", "side", "HEAD~1"])?;
    f.ws.write("staged", "staged\n")?;
    git(f, ws, &["add", "staged"])?;
    f.ws.write("README.md", "unstaged\n")?;
    f.ws.write("untracked", "untracked\n")?;
    Ok(())
}

fn gc(f: &Fixture) -> Check {
    repository(f)?;
    let ws = f.ws.root();
    let before = f.take("a")?;
    git(f, ws, &["gc", "-q", "--prune=now"])?;
    let after = f.take("b")?;
    git(f, ws, &["reset", "-q", "--hard", "HEAD~1"])?;
    git(f, ws, &["branch", "-q", "-D", "side"])?;
    git(f, ws, &["reflog", "expire", "--expire=now", "--all"])?;
    git(f, ws, &["gc", "-q", "--prune=now", "--aggressive"])?;
    git(f, ws, &["prune", "--expire=now"])?;
    f.shows(&before)?;
    f.shows(&after)?;
    f.reclaim()?;
    f.shows(&before)?;
    f.another()?.shows(&after)
}

fn rewritten(f: &Fixture) -> Check {
    repository(f)?;
    let ws = f.ws.root();
    let a = f.take("a")?;
    git(f, ws, &["commit", "-q", "--amend", "-m", "amended"])?;
    git(f, ws, &["checkout", "-q", "-f", "--orphan", "fresh"])?;
    git(f, ws, &["rm", "-q", "-r", "-f", "."])?;
    f.ws.write("fresh", "fresh\n")?;
    git(f, ws, &["add", "-A"])?;
    git(f, ws, &["commit", "-q", "-m", "fresh"])?;
    git(f, ws, &["branch", "-q", "-D", "main", "side"])?;
    git(f, ws, &["reflog", "expire", "--expire=now", "--all"])?;
    git(f, ws, &["gc", "-q", "--prune=now"])?;
    let b = f.take("b")?;
    f.shows(&a)?;
    f.shows(&b)
}

fn removed(f: &Fixture) -> Check {
    repository(f)?;
    let a = f.take("a")?;
    f.ws.remove(".git")?;
    f.shows(&a)?;
    let b = f.take("b")?;
    git(f, f.ws.root(), &["init", "-q"])?;
    let c = f.take("c")?;
    f.reclaim()?;
    [a, b, c].iter().try_for_each(|taken| f.shows(taken))
}

fn untouched(f: &Fixture) -> Check {
    repository(f)?;
    let ws = f.ws.root().to_owned();
    // Git's own view of it, besides the fingerprint that the witness takes of each call.
    let look = || -> Check<[String; 4]> {
        Ok([
            git(f, &ws, &["status", "--porcelain=v2", "--branch", "--untracked-files=all"])?,
            git(f, &ws, &["for-each-ref"])?,
            git(f, &ws, &["stash", "list"])?,
            git(f, &ws, &["fsck", "--full", "--no-dangling"])?,
        ])
    };
    // A hook that tells if somebody runs it.
    let told = f.beside("hook-was-run");
    for hook in ["post-checkout", "pre-commit", "post-index-change", "reference-transaction", "post-rewrite"] {
        let hook = format!(".git/hooks/{hook}");
        f.ws.write(&hook, format!("#!/bin/sh\necho \"$0\" >> '{}'\n", told.display()))?;
    }
    let before = look()?;
    for hook in ["post-checkout", "pre-commit", "post-index-change", "reference-transaction", "post-rewrite"] {
        f.ws.chmod(format!(".git/hooks/{hook}"), 0o755)?;
    }
    let a = f.take("a")?;
    let view = f.mount(&a, "v", &[])?;
    f.unmount(&view)?;
    if f.has(Capability::Clone) {
        let clone = f.try_clone(&a.reference(), "fork")?;
        f.destroy_clone(&clone)?;
    }
    f.destroy(&a)?;
    f.reclaim()?;
    for hook in ["post-checkout", "pre-commit", "post-index-change", "reference-transaction", "post-rewrite"] {
        f.ws.chmod(format!(".git/hooks/{hook}"), 0o644)?;
    }
    ensure!(!told.exists(), "a hook of the user's repository was run: {}", std::fs::read_to_string(&told)?);
    ensure!(look()? == before, "git sees another repository than before");
    Ok(())
}

fn tracked_is_not_ignored(f: &Fixture) -> Check {
    let ws = f.ws.root();
    git(f, ws, &["init", "-q", "-b", "main"])?;
    f.ws.write(".gitignore", "*.bin\nbuild/\n")?;
    f.ws.write("tracked.bin", vec![b't'; 5000])?;
    f.ws.write("build/tracked", "x")?;
    f.ws.write("untracked.bin", vec![b'u'; 5000])?;
    f.ws.write("build/untracked", vec![b'u'; 5000])?;
    git(f, ws, &["add", "-f", "tracked.bin", "build/tracked", ".gitignore"])?;
    let mut request = f.request("a");
    request.policy.max_ignored_size = 100;
    let taken = f.take_with(&request, &[ah_plugin_api::OmitReason::Ignored])?;
    let omitted: Vec<_> = taken.snapshot.omitted.iter().map(|o| o.path.to_string()).collect();
    for name in ["tracked.bin", "build/tracked", "build"] {
        ensure!(!omitted.iter().any(|path| path == name), "{name} is tracked, or holds what is, but was omitted");
    }
    for name in ["untracked.bin", "build/untracked"] {
        ensure!(omitted.iter().any(|path| path == name), "{name} is ignored, but not in omitted: {omitted:?}");
    }
    f.shows(&taken)
}

fn info_exclude(f: &Fixture) -> Check {
    git(f, f.ws.root(), &["init", "-q", "-b", "main"])?;
    f.ws.sample()?;
    f.ws.write(".git/info/exclude", "big\n")?;
    let mut request = f.request("a");
    request.policy.max_ignored_size = 0;
    let taken = f.take_with(&request, &[ah_plugin_api::OmitReason::Ignored])?;
    let omitted: Vec<_> = taken.snapshot.omitted.iter().map(|o| o.path.to_string()).collect();
    ensure!(omitted == ["big"], "excluded is big, omitted are {omitted:?}");
    f.shows(&taken)
}

fn clone(f: &Fixture) -> Check {
    repository(f)?;
    let ws = f.ws.root().to_owned();
    let look = |dir: &Path| -> Check<[String; 5]> {
        Ok([
            git(f, dir, &["rev-parse", "HEAD", "HEAD~1"])?,
            git(f, dir, &["symbolic-ref", "HEAD"])?,
            git(f, dir, &["status", "--porcelain", "--untracked-files=all"])?,
            git(f, dir, &["diff", "--cached"])?,
            git(f, dir, &["diff"])?,
        ])
    };
    let wanted = look(&ws)?;
    let taken = f.take("a")?;
    // The user goes on, and tidies up thoroughly.
    f.ws.write("later", "later\n")?;
    git(f, &ws, &["add", "-A"])?;
    git(f, &ws, &["commit", "-q", "-m", "later"])?;
    let clone = f.try_clone(&taken.reference(), "fork")?;
    f.ws.remove(".git")?;
    ensure!(look(&clone.path)? == wanted, "git sees in the clone {:?} instead of {wanted:?}", look(&clone.path)?);
    git(f, &clone.path, &["fsck", "--full", "--no-dangling"])?;
    let fork = Editor::new(&clone.path);
    ensure!(fork.at(".git").symlink_metadata()?.is_dir(), "the clone's .git is not a directory");
    ensure!(!fork.exists(".git/objects/info/alternates"), "the clone borrows objects from elsewhere");
    // An agent works in it as in any repository.
    fork.write("new", "new\n")?;
    git(f, &clone.path, &["add", "-A"])?;
    git(f, &clone.path, &["commit", "-q", "-m", "in the clone"])?;
    git(f, &clone.path, &["gc", "-q", "--prune=now"])?;
    git(f, &clone.path, &["checkout", "-q", "-b", "another", "HEAD~1"])?;
    git(f, &clone.path, &["fsck", "--full", "--no-dangling"])?;
    // Neither side's gc harms the other.
    f.shows(&taken)?;
    let second = f.try_clone(&taken.reference(), "second")?;
    ensure!(look(&second.path)? == wanted, "git sees in a second clone {:?}", look(&second.path)?);
    f.destroy_clone(&clone)?;
    f.destroy_clone(&second)
}

fn state(f: &Fixture) -> Check {
    let ws = f.ws.root().to_owned();
    let of = |id: &str| -> Check<(Option<String>, Option<String>, Option<String>)> {
        let state = f.take(id)?.snapshot.repository;
        let state =
            state.ok_or_else(|| Trouble::Failed("the workspace is a repository, but no state is told".into()))?;
        ensure!(state.not_kept.is_none(), "objects are not kept: {:?}", state.not_kept);
        Ok((state.head, state.branch, state.branch_hex))
    };
    f.ws.sample()?;
    let plain = f.take("plain")?;
    ensure!(
        plain.snapshot.repository.is_none(),
        "there is no repository, but a state: {:?}",
        plain.snapshot.repository
    );
    git(f, &ws, &["init", "-q", "-b", "main"])?;
    let main = Some("refs/heads/main".to_owned());
    ensure!(
        of("unborn")? == (None, main.clone(), None),
        "a repository without commits is told as {:?}",
        of("unborn-2")?
    );
    git(f, &ws, &["add", "-A"])?;
    git(f, &ws, &["commit", "-q", "-m", "first"])?;
    let head = Some(git(f, &ws, &["rev-parse", "HEAD"])?);
    ensure!(of("born")? == (head.clone(), main, None), "the state is told as {:?}", of("born-2")?);
    // In files, as `git` takes no such name here.
    let caf = b"refs/heads/caf\xe9";
    f.ws.write([b".git/", &caf[..]].concat(), format!("{}\n", head.as_deref().unwrap_or_default()))?;
    f.ws.write(".git/HEAD", [b"ref: ", &caf[..], b"\n"].concat())?;
    let hex = Some(ah_plugin_api::text::hex(caf));
    ensure!(
        of("bytes")? == (head.clone(), None, hex),
        "a HEAD on a branch whose name is not UTF-8 is told as {:?}",
        of("bytes-2")?
    );
    git(f, &ws, &["checkout", "-q", "--detach"])?;
    ensure!(of("detached")? == (head, None, None), "a detached HEAD is told as {:?}", of("detached-2")?);
    Ok(())
}
