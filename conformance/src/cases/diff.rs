//! `diff`, compared with a walk of both sides that is too simple to be wrong.

use std::collections::BTreeSet;

use ah_plugin_api::{
    Capability, CapturePolicy, Change, Context, DiffRequest, Dir, EntryKind, ErrorKind, Provider, RelPath, Side,
    Timestamp,
};

use crate::case::{Case, Check, Need, ensure, refused};
use crate::editor::Editor;
use crate::fixture::{Fixture, Taken, path};
use crate::tree::{Node, Tree};

const NEEDS: &[Need] = &[Need::Has(Capability::Diff)];

pub(super) const CASES: &[Case] = &[
    Case {
        id: "diff.snapshots",
        clauses: &[
            "Lists the differences between two sides.",
            "The differences between two sides, ordered by path bytes, every one of them: a directory that was added or deleted is listed with all that is below it.",
            "Of which of these one side is not known any more.",
            "Directories that cannot be looked into on one side, as this user may not or as they are damaged",
        ],
        needs: NEEDS,
        run: snapshots,
    },
    Case { id: "diff.nothing", clauses: &["Lists the differences between two sides."], needs: NEEDS, run: nothing },
    Case {
        id: "diff.workspace",
        clauses: &["Lists the differences between two sides.", "The workspace as it is now."],
        needs: NEEDS,
        run: workspace,
    },
    Case {
        id: "diff.clones",
        clauses: &["`diff` also takes as the workspace a clone that grew from a snapshot of the store."],
        needs: &[Need::Has(Capability::Diff), Need::Has(Capability::Clone), Need::Has(Capability::DiffOfClones)],
        run: clones,
    },
    Case {
        id: "diff.needs-workspace",
        clauses: &["Needs a workspace if a side is the workspace."],
        needs: NEEDS,
        run: needs_workspace,
    },
    Case {
        id: "diff.paths",
        clauses: &["Only these paths and what is below them; empty: everything."],
        needs: NEEDS,
        run: paths,
    },
    Case {
        id: "diff.times",
        clauses: &["Whether a file that differs in its modification time alone is a difference."],
        needs: NEEDS,
        run: times,
    },
    Case {
        id: "diff.untouched",
        clauses: &[
            "Nothing at all was written between the sides, nothing that is no difference either: no owner, no attribute, nothing of a repository's own.",
            "False where that is not known.",
        ],
        needs: NEEDS,
        run: untouched,
    },
    Case {
        id: "diff.not-found",
        clauses: &["`NotFound` for a reference that names nothing"],
        needs: NEEDS,
        run: not_found,
    },
];

/// Everything that can happen to an entry, at once.
fn change_much(f: &Fixture) -> std::io::Result<()> {
    f.ws.write("README.md", "changed contents\n")?;
    f.ws.write("src/lib/added/deep/file", "added\n")?;
    f.ws.mkdir("added-empty")?;
    f.ws.remove("private")?;
    f.ws.chmod("run.sh", 0o644)?;
    f.ws.chmod("void", 0o700)?;
    f.ws.mtime("secret", Timestamp { secs: 1, nanos: 1 })?;
    f.ws.remove("empty")?;
    f.ws.write("empty/file-became-directory", "")?;
    f.ws.remove("to-file")?;
    f.ws.symlink("elsewhere", "to-file")?;
    f.ws.remove("dangling")?;
    f.ws.write("dangling", "../nowhere")?;
    // Sorts between a directory and what is below it.
    f.ws.write("src.orig", "x")?;
    f.ws.write("src-2", "x")
}

fn snapshots(f: &Fixture) -> Check {
    f.ws.sample()?;
    let a = f.take("a")?;
    change_much(f)?;
    let b = f.take("b")?;
    compare(f, &side(&a), &side(&b), &a.tree, &b.tree)?;
    compare(f, &side(&b), &side(&a), &b.tree, &a.tree)?;
    f.ws.remove("src")?;
    let c = f.take("c")?;
    compare(f, &side(&a), &side(&c), &a.tree, &c.tree)?;
    compare(&f.another()?, &side(&c), &side(&a), &c.tree, &a.tree)
}

fn nothing(f: &Fixture) -> Check {
    f.ws.sample()?;
    let a = f.take("a")?;
    let b = f.take("b")?;
    for (from, to) in [(&a, &a), (&a, &b)] {
        let changes = f.diff(side(from), side(to), &[], true)?.changes;
        ensure!(changes.is_empty(), "nothing changed, but there are differences: {changes:?}");
    }
    let changes = f.diff(side(&a), Side::Workspace, &[], true)?.changes;
    ensure!(changes.is_empty(), "nothing changed, but the workspace differs: {changes:?}");
    Ok(())
}

fn workspace(f: &Fixture) -> Check {
    f.ws.sample()?;
    let a = f.take("a")?;
    change_much(f)?;
    let now = Tree::walk(f.ws.root())?;
    compare(f, &side(&a), &Side::Workspace, &a.tree, &now)?;
    compare(f, &Side::Workspace, &side(&a), &now, &a.tree)?;
    ensure!(f.ids()? == ["a"], "diff with the workspace left a snapshot behind: {:?}", f.ids()?);
    // Again after a snapshot, which may have remembered what is there.
    let b = f.take("b")?;
    compare(f, &side(&b), &Side::Workspace, &b.tree, &now)?;
    f.ws.write("README.md", "CHANGED contents\n")?;
    let now = Tree::walk(f.ws.root())?;
    compare(f, &side(&b), &Side::Workspace, &b.tree, &now)?;
    compare(f, &side(&a), &Side::Workspace, &a.tree, &now)?;
    f.shows(&a)
}

fn clones(f: &Fixture) -> Check {
    f.ws.sample()?;
    let a = f.take("a")?;
    f.ws.write("README.md", "of the workspace, later\n")?;
    let clone = f.try_clone(&a.reference(), "fork")?;
    let fork = Editor::new(&clone.path);
    fork.write("src/main.rs", "of the clone\n")?;
    fork.remove("void")?;
    fork.write("void/now/full", "")?;
    fork.rename("src/lib", "lib")?;
    let dir = Dir::open(&clone.path)?;
    let now = Tree::walk(fork.root())?;
    for (from, to, before, after) in
        [(side(&a), Side::Workspace, &a.tree, &now), (Side::Workspace, side(&a), &now, &a.tree)]
    {
        let request = DiffRequest { from, to, paths: Vec::new(), times: false, policy: CapturePolicy::default() };
        let found = f.provider().diff(&f.place_of(&dir), &request, &Context::quiet())?.changes;
        let listed: BTreeSet<_> = found.iter().map(|change| &change.path).filter(|path| !in_git(path)).collect();
        let differing: BTreeSet<_> = before.0.keys().chain(after.0.keys()).collect();
        let differing = differing
            .into_iter()
            .filter(|path| !in_git(path) && differ(before.0.get(*path), after.0.get(*path), false) == Some(true));
        let differing: BTreeSet<_> = differing.collect();
        ensure!(listed == differing, "a clone differs in {differing:?}, told is {listed:?}");
    }
    drop(dir);
    f.destroy_clone(&clone)
}

/// A clone of a repository has one of its own.
fn in_git(path: &RelPath) -> bool {
    path.starts_with(&crate::fixture::path(".git"))
}

fn needs_workspace(f: &Fixture) -> Check {
    f.ws.sample()?;
    let a = f.take("a")?;
    for (from, to) in [(side(&a), Side::Workspace), (Side::Workspace, side(&a))] {
        let request = DiffRequest { from, to, paths: Vec::new(), times: false, policy: CapturePolicy::default() };
        let diff = f.provider().diff(&f.place_without_workspace(), &request, &Context::quiet());
        refused(diff, &[ErrorKind::InvalidArgument], "diff with a workspace that is not given")?;
    }
    Ok(())
}

fn paths(f: &Fixture) -> Check {
    f.ws.sample()?;
    let a = f.take("a")?;
    change_much(f)?;
    let b = f.take("b")?;
    let all = f.diff(side(&a), side(&b), &[], false)?.changes;
    for filter in [
        &["src"] as &[&str],
        &["README.md"],
        &["src/lib/added"],
        &["empty"],
        &["private/key", "src"],
        &["no/such"],
        &["sr"],
        &["dangling"],
        &["src/lib/added/deep/file"],
        &[""],
        &["src", "src/lib"],
    ] {
        let filters: Vec<_> = filter.iter().map(path).collect();
        let want: Vec<Change> =
            all.iter().filter(|change| filters.iter().any(|p| change.path.starts_with(p))).cloned().collect();
        let got = f.diff(side(&a), side(&b), filter, false)?.changes;
        ensure!(got == want, "below {filter:?} it lists {:?}, not {:?}", names(&got), names(&want));
        let got = f.diff(side(&a), Side::Workspace, filter, false)?.changes;
        ensure!(names(&got) == names(&want), "with the workspace, below {filter:?} it lists {:?}", names(&got));
    }
    Ok(())
}

fn times(f: &Fixture) -> Check {
    f.ws.sample()?;
    let a = f.take("a")?;
    f.ws.mtime("README.md", Timestamp { secs: 1, nanos: 1 })?;
    f.ws.mtime("src/main.rs", Timestamp { secs: 1_600_003_000, nanos: 123_456_791 })?;
    let b = f.take("b")?;
    for to in [side(&b), Side::Workspace] {
        let without = f.diff(side(&a), to.clone(), &[], false)?.changes;
        ensure!(without.is_empty(), "times were not asked for, but there is {:?}", names(&without));
        let with = f.diff(side(&a), to, &[], true)?.changes;
        let files: Vec<_> = with.iter().map(|change| change.path.to_string()).collect();
        ensure!(files == ["README.md", "src/main.rs"], "two files differ in time, listed are {files:?}");
        let sides = |change: &Change| Some((change.before.as_ref()?.mtime, change.after.as_ref()?.mtime));
        ensure!(
            with.iter().all(|change| sides(change).is_some_and(|(before, after)| before != after)),
            "the entries of a difference in time show none: {with:?}"
        );
    }
    Ok(())
}

/// What is written is told as such, whatever is asked for; also what is no difference, where the provider keeps it.
fn untouched(f: &Fixture) -> Check {
    type Write = fn(&Fixture) -> std::io::Result<()>;
    let writes: [(&str, bool, Write); 8] = [
        ("contents", true, |f| f.ws.write("README.md", "changed\n")),
        ("permissions", true, |f| f.ws.chmod("run.sh", 0o644)),
        ("a time", true, |f| f.ws.mtime("src/main.rs", Timestamp { secs: 1, nanos: 1 })),
        ("an ignored file", !f.has(Capability::AppliesPolicy), |f| f.ws.write("ignored/file", "2")),
        ("an attribute", f.has(Capability::Xattrs), |f| {
            let flags = rustix::fs::XattrFlags::empty();
            Ok(rustix::fs::setxattr(f.ws.at("secret"), c"user.test", b"value", flags)?)
        }),
        // Only root can give files away.
        ("an owner", f.has(Capability::Owners) && rustix::process::geteuid().is_root(), |f| {
            std::os::unix::fs::chown(f.ws.at("src/main.rs"), Some(1), Some(1))
        }),
        ("a repository's configuration", true, |f| f.ws.write(".git/config", "[core]\n\tbare = false\n")),
        ("a repository's HEAD", true, |f| f.ws.write(".git/HEAD", "ref: refs/heads/other\n")),
    ];
    f.ws.sample()?;
    // As `git init` makes it, by hand, as there need not be one.
    f.ws.mkdir(".git/objects")?;
    f.ws.mkdir(".git/refs/heads")?;
    f.ws.write(".git/config", "[core]\n\trepositoryformatversion = 0\n")?;
    f.ws.write(".git/HEAD", "ref: refs/heads/main\n")?;
    if !f.has(Capability::AppliesPolicy) {
        f.ws.write(".gitignore", "ignored\n")?;
        f.ws.write("ignored/file", "1")?;
    }
    let mut last = f.take("first")?;
    for (at, (what, kept, write)) in writes.into_iter().enumerate() {
        if !kept {
            continue;
        }
        match write(f) {
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::OPNOTSUPP.raw_os_error()) => continue,
            written => written?,
        }
        let now = f.take(&format!("after{at}"))?;
        for to in [Side::Workspace, side(&now)] {
            for (paths, times) in [(&[][..], true), (&[], false), (&["void"], false)] {
                let found = f.diff(side(&last), to.clone(), paths, times)?;
                ensure!(!found.untouched, "{what} was written, but below {paths:?}, times {times}, it says untouched");
            }
        }
        last = now;
    }
    Ok(())
}

fn not_found(f: &Fixture) -> Check {
    f.ws.sample()?;
    let a = f.take("a")?;
    let gone = f.take("gone")?;
    f.destroy(&gone)?;
    for (from, to) in [(side(&a), side(&gone)), (side(&gone), side(&a)), (side(&gone), Side::Workspace)] {
        let request = DiffRequest { from, to, paths: Vec::new(), times: false, policy: CapturePolicy::default() };
        let diff = f.provider().diff(&f.place(), &request, &Context::quiet());
        refused(diff, &[ErrorKind::NotFound], "diff with a snapshot that is gone")?;
    }
    Ok(())
}

fn side(taken: &Taken) -> Side {
    Side::Snapshot(taken.reference())
}

fn names(changes: &[Change]) -> Vec<String> {
    changes.iter().map(|change| change.path.to_string()).collect()
}

/// Compares `diff` with what the two trees differ in.
pub(super) fn compare(f: &Fixture, from: &Side, to: &Side, before: &Tree, after: &Tree) -> Check {
    for times in [false, true] {
        let found = f.diff(from.clone(), to.clone(), &[], times)?.changes;
        let what = format!("diff {}, times {times}:", if *to == Side::Workspace { "to the workspace" } else { "" });
        let listed: BTreeSet<_> = found.iter().map(|change| &change.path).collect();
        for path in before.0.keys().chain(after.0.keys()).collect::<BTreeSet<_>>() {
            let (old, new) = (before.0.get(path), after.0.get(path));
            match differ(old, new, times) {
                Some(true) => ensure!(listed.contains(path), "{what} {path:?} differs, but is not listed"),
                Some(false) => ensure!(!listed.contains(path), "{what} {path:?} is listed, but does not differ"),
                None => {}
            }
        }
        for change in &found {
            let (old, new) = (before.0.get(&change.path), after.0.get(&change.path));
            for (entry, node, when) in [(&change.before, old, "before"), (&change.after, new, "after")] {
                let fits = match (entry, node) {
                    (None, None) => true,
                    (Some(entry), Some(node)) => {
                        entry.kind == node.kind
                            && entry.mode == node.mode
                            && entry.size == node.size
                            && entry.mtime == node.mtime
                            && entry.name == change.path.file_name().unwrap_or_default()
                    }
                    _ => false,
                };
                ensure!(fits, "{what} {:?} was {when} {node:?}, but the entry says {entry:?}", change.path);
            }
        }
    }
    Ok(())
}

/// Whether an entry differs; none where the contract leaves it open: the times of what is not a file.
fn differ(before: Option<&Node>, after: Option<&Node>, times: bool) -> Option<bool> {
    let (Some(before), Some(after)) = (before, after) else { return Some(true) };
    if (before.kind, before.mode, before.size, before.digest) != (after.kind, after.mode, after.size, after.digest) {
        return Some(true);
    }
    if !times || before.mtime == after.mtime {
        return Some(false);
    }
    (before.kind == EntryKind::File).then_some(true)
}
