//! Guarantee 3: nothing of the user's is changed. That no call changes the workspace is looked at in every case by the
//! witness; here is what else there is to leave alone.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::PathBuf;

use ah_plugin_api::{Capability, Context, Dir, Place, Provider, ReclaimRequest, Side};

use crate::case::{Case, Check, Need, ensure};
use crate::fixture::{Fixture, Taken};
use crate::tree::Tree;

pub(super) const CASES: &[Case] = &[
    Case {
        id: "hands-off.workspace",
        clauses: &[
            "Nothing of the user's is changed by any operation: not a byte, mode or time in the workspace, not `.git`.",
        ],
        needs: &[],
        run: workspace,
    },
    Case {
        id: "hands-off.read-only-workspace",
        clauses: &["Nothing of the user's is changed by any operation"],
        needs: &[Need::Root],
        run: read_only_workspace,
    },
    Case {
        id: "hands-off.process",
        clauses: &["It never changes the process's cwd, umask, environment or signal handlers."],
        needs: &[Need::Quiet],
        run: process,
    },
    Case {
        id: "hands-off.paths-are-for-display",
        clauses: &[
            "The provider works relative to the descriptors of the [`Place`]; paths in it are for messages and answers.",
        ],
        needs: &[Need::InPlace],
        run: paths_are_for_display,
    },
    Case {
        id: "hands-off.symlinks-are-not-followed",
        clauses: &["It follows no symlink inside the workspace", "does not cross into other filesystems."],
        needs: &[],
        run: symlinks_are_not_followed,
    },
    Case {
        id: "hands-off.descriptors",
        clauses: &["Nothing of the user's is changed by any operation"],
        needs: &[Need::Quiet],
        run: descriptors,
    },
];

/// Every operation there is, with the witness watching.
fn everything(f: &Fixture) -> Check<Taken> {
    let a = f.take("a")?;
    let view = f.mount(&a, "v", &[])?;
    f.unmount(&view)?;
    if f.has(Capability::Clone) {
        let clone = f.try_clone(&a.reference(), "fork")?;
        crate::editor::Editor::new(&clone.path).write("in the clone", "x")?;
        f.destroy_clone(&clone)?;
    }
    let b = f.take("b")?;
    if f.has(Capability::Diff) {
        f.diff(Side::Snapshot(a.reference()), Side::Workspace, &[], true)?;
        f.diff(Side::Snapshot(a.reference()), Side::Snapshot(b.reference()), &[], true)?;
    }
    f.destroy(&a)?;
    f.reclaim()?;
    Ok(b)
}

fn workspace(f: &Fixture) -> Check {
    f.ws.sample()?;
    // Looks like a repository, and is a broken one: nobody may repair it.
    f.ws.write("nested/.git/HEAD", "ref: refs/heads/no\n")?;
    f.ws.write("nested/.git/config", "[core\n")?;
    f.ws.write("nested/.git/index", "DIRC nonsense")?;
    f.ws.write("nested/file", "x")?;
    f.ws.write("submodule/.git", "gitdir: ../../ah-conformance-outside/precious\n")?;
    f.ws.write("submodule/file", "x")?;
    let taken = everything(f)?;
    f.shows(&taken)
}

fn read_only_workspace(f: &Fixture) -> Check {
    f.ws.sample()?;
    let mount = crate::cases::failure::ReadOnly::bind(f.ws.root())?;
    let workspace = Dir::open(f.ws.root())?;
    let place = Place::new(f.store()).with_workspace(&workspace).with_target(f.folder());
    let tree = Tree::walk(f.ws.root())?;
    let snapshot = f.provider().snapshot(&place, &f.request("a"), &Context::quiet());
    drop(workspace);
    drop(mount);
    f.shows(&Taken { snapshot: snapshot?, tree })
}

/// What a process has that every thread of it shares.
fn shared_state(pid: u32) -> Check<(PathBuf, BTreeMap<String, String>)> {
    let cwd = std::fs::read_link(format!("/proc/{pid}/cwd"))?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let fields = ["Umask", "SigIgn", "SigCgt", "Uid", "Gid", "Groups"];
    let lines = status.lines().filter_map(|line| line.split_once(':'));
    let lines = lines.filter(|(name, _)| fields.contains(name)).map(|(name, value)| (name.into(), value.into()));
    Ok((cwd, lines.collect()))
}

fn process(f: &Fixture) -> Check {
    f.ws.sample()?;
    let own = f.provider().instance().process.as_ref().map(|process| process.id());
    let pid = own.unwrap_or_else(std::process::id);
    // What a process of its own makes of its environment cannot be seen from here; in this process it can.
    let environment = || own.is_none().then(|| std::env::vars_os().collect::<BTreeMap<OsString, OsString>>());
    let (before, env) = (shared_state(pid)?, environment());
    everything(f)?;
    let after = shared_state(pid)?;
    ensure!(before == after, "the process was {before:?}, is {after:?}");
    ensure!(env == environment(), "the environment was changed");
    Ok(())
}

fn paths_are_for_display(f: &Fixture) -> Check {
    f.ws.sample()?;
    let lying = |dir: &Dir, path: &str| -> Check<Dir> {
        Ok(Dir::from_fd(dir.as_fd().try_clone_to_owned()?, PathBuf::from(path)))
    };
    let (workspace, store) = (lying(f.workspace(), "/no/such/workspace")?, lying(f.store(), "/no/such/store")?);
    let place = Place::new(&store).with_workspace(&workspace).with_target(f.folder());
    let tree = Tree::walk(f.ws.root())?;
    let cx = Context::quiet();
    let snapshot = f.provider().snapshot(&place, &f.request("a"), &cx)?;
    f.provider().list(&place, &Default::default(), &cx)?;
    f.provider().reclaim(&place, &ReclaimRequest::default(), &cx)?;
    let taken = Taken { snapshot, tree };
    f.shows(&taken)?;
    // Another directory at the workspace's path: the one that was opened is meant, not the one that is there now.
    std::fs::rename(f.ws.root(), f.beside("moved"))?;
    f.ws.write("impostor", "not this one")?;
    let tree = Tree::walk(&f.beside("moved"))?;
    let snapshot = f.provider().snapshot(&f.place(), &f.request("b"), &cx)?;
    f.shows(&Taken { snapshot, tree })
}

fn symlinks_are_not_followed(f: &Fixture) -> Check {
    f.ws.sample()?;
    let taken = f.take("a")?;
    // A directory that was captured as one is a symlink now, to where secrets are.
    f.ws.remove("src")?;
    f.ws.symlink(f.outside().join("precious").display().to_string(), "src")?;
    f.ws.remove("private/key")?;
    f.ws.symlink(f.outside().join("precious/file").display().to_string(), "private/key")?;
    let swapped = f.take("b")?;
    f.shows(&swapped)?;
    f.shows(&taken)?;
    if f.has(Capability::Diff) {
        let changes = f.diff(Side::Snapshot(taken.reference()), Side::Workspace, &[], false)?.changes;
        let followed = changes.iter().find(|change| change.path == crate::fixture::path("src/file"));
        ensure!(followed.is_none(), "diff followed a symlink out of the workspace: {followed:?}");
    }
    Ok(())
}

/// A plugin lives in a process for days.
fn descriptors(f: &Fixture) -> Check {
    f.ws.sample()?;
    let pid = f.provider().instance().process.as_ref().map_or_else(std::process::id, |process| process.id());
    let open = || -> Check<Vec<String>> {
        let links = std::fs::read_dir(format!("/proc/{pid}/fd"))?.flatten();
        // One may be closed between the two calls.
        let mut open: Vec<_> = links.filter_map(|link| std::fs::read_link(link.path()).ok()).collect();
        // Cases run side by side in one process: only what lies in this one's own folder counts.
        let own = f.ws.root().parent().unwrap_or(f.ws.root());
        open.retain(|path| path.starts_with(own));
        open.sort();
        Ok(open.into_iter().map(|path| path.display().to_string()).collect())
    };
    // Whatever is opened once and kept is open now.
    let first = f.take("first")?;
    f.shows(&first)?;
    let before = open()?;
    for i in 0..12 {
        f.ws.write("README.md", i.to_string())?;
        let taken = f.take(&format!("s{i}"))?;
        let view = f.mount(&taken, "v", &[])?;
        f.unmount(&view)?;
        // Failures too have to close what they opened.
        let missing = f.try_mount(&taken.reference(), "v", &["no/such"]);
        ensure!(missing.is_err(), "a path that is not there was mounted");
        f.destroy(&taken)?;
    }
    // What was kept for speed goes at the latest now.
    f.reclaim()?;
    let after = open()?;
    let new: Vec<_> = after.iter().filter(|path| !before.contains(path)).take(3).collect();
    // One for each step is a leak.
    ensure!(
        after.len() < before.len() + 12,
        "{} descriptors were open, after 12 snapshots, views and refusals it is {}; some of them: {new:?}",
        before.len(),
        after.len()
    );
    Ok(())
}
