//! `clone_snapshot`, and `destroy` of what it made.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use ah_plugin_api::{Capability, CloneRequest, Context, ErrorKind, FileName, Place, Provider, WritableClone};

use crate::case::{Case, Check, Need, ensure, refused, same};
use crate::editor::Editor;
use crate::fixture::{Fixture, Taken};
use crate::tree::{Modes, Tree};

const NEEDS: &[Need] = &[Need::Has(Capability::Clone)];

pub(super) const CASES: &[Case] = &[
    Case {
        id: "clones.exact",
        clauses: &[
            "Makes a writable copy with the captured times.",
            "The copy is at the request's name in the target, or below it where more than the workspace had to be cloned.",
        ],
        needs: NEEDS,
        run: exact,
    },
    Case {
        id: "clones.outlive",
        clauses: &["It outlives the snapshot it came from.", "Clones and other snapshots stay as they are."],
        needs: NEEDS,
        run: outlive,
    },
    Case { id: "clones.name-taken", clauses: &["`AlreadyExists` if the name is taken"], needs: NEEDS, run: name_taken },
    Case {
        id: "clones.destroy",
        clauses: &[
            "Removes a snapshot or a clone. What is gone already is success.",
            "Says which clones lie in the store itself ([`Reclaimed::held`]).",
        ],
        needs: NEEDS,
        run: destroy,
    },
    Case {
        id: "clones.forgotten",
        clauses: &[
            "Names in the place's target of views and clones that are to go although they are whole",
            "Names of anything else that is there do nothing.",
        ],
        needs: NEEDS,
        run: forgotten,
    },
    Case { id: "clones.replaced", clauses: &[super::REPLACED], needs: NEEDS, run: replaced },
    Case {
        id: "clones.without-workspace",
        clauses: &["Needs a target; a workspace is used where it is there."],
        needs: NEEDS,
        run: without_workspace,
    },
    Case {
        id: "clones.as-workspace",
        clauses: &["*clone*: a writable copy grown from a snapshot."],
        needs: NEEDS,
        run: as_workspace,
    },
];

fn exact(f: &Fixture) -> Check {
    f.ws.sample()?;
    f.ws.write("closed/in", "x")?;
    f.ws.chmod("closed", 0o555)?;
    let taken = f.take("a")?;
    let clone = f.try_clone(&taken.reference(), "fork")?;
    ensure!(clone.path.starts_with(f.folder().path().join("fork")), "the clone is at {}", clone.path.display());
    same_as(f, &taken, &clone)?;
    // Writable, each as its bits say.
    let fork = Editor::new(&clone.path);
    fork.write("README.md", "mine now")?;
    fork.write("src/lib/new", "new")?;
    fork.rename("src", "source")?;
    fork.remove("void")?;
    fork.chmod("closed", 0o755)?;
    fork.write("closed/new", "new")?;
    ensure!(fork.read("README.md")? == b"mine now", "a write to the clone is not there");
    f.shows(&taken)?;
    f.destroy_clone(&clone)
}

fn outlive(f: &Fixture) -> Check {
    f.ws.sample()?;
    let taken = f.take("a")?;
    let other = f.take("b")?;
    let clone = f.try_clone(&taken.reference(), "fork")?;
    f.destroy(&taken)?;
    f.reclaim()?;
    same_as(f, &taken, &clone)?;
    f.destroy(&other)?;
    f.reclaim()?;
    same_as(f, &taken, &clone)?;
    Editor::new(&clone.path).write("README.md", "still writable")?;
    f.another()?.destroy_clone(&clone)
}

fn name_taken(f: &Fixture) -> Check {
    f.ws.sample()?;
    let taken = f.take("a")?;
    let target = Editor::new(f.folder().path());
    target.write("file", "stays")?;
    target.write("dir/in", "stays")?;
    target.mkdir("empty-dir")?;
    target.symlink("nowhere", "dangling")?;
    let before = Tree::walk(target.root())?;
    for name in ["file", "dir", "empty-dir", "dangling"] {
        refused(f.try_clone(&taken.reference(), name), &[ErrorKind::AlreadyExists], &format!("a clone at {name}"))?;
    }
    same("the target folder", &before.differences(&Tree::walk(target.root())?, Modes::Exact))?;
    let clone = f.try_clone(&taken.reference(), "fork")?;
    refused(f.try_clone(&taken.reference(), "fork"), &[ErrorKind::AlreadyExists], "a second clone of one name")?;
    same_as(f, &taken, &clone)?;
    f.destroy_clone(&clone)
}

fn is_mount(path: &Path) -> Check<bool> {
    let above = path.parent().unwrap_or(path);
    Ok(path.symlink_metadata()?.dev() != above.symlink_metadata()?.dev())
}

fn destroy(f: &Fixture) -> Check {
    f.ws.sample()?;
    let taken = f.take("a")?;
    let clone = f.try_clone(&taken.reference(), "fork")?;
    let stays = f.try_clone(&taken.reference(), "stays")?;
    let held = f.held()?;
    let known = [&clone.reference, &stays.reference];
    ensure!(
        held.is_empty() || held.len() == 2 && held.iter().all(|one| known.contains(&one)),
        "{held:?} are said to be held"
    );
    // What an agent may leave behind: ways out, closed doors, a FIFO that blocks whoever opens it.
    let fork = Editor::new(&clone.path);
    fork.symlink(f.outside().display().to_string(), "to-outside")?;
    fork.write("closed/deep/in", "x")?;
    fork.chmod("closed/deep", 0)?;
    fork.chmod("closed", 0o555)?;
    fork.fifo("fifo")?;
    f.destroy_clone(&clone)?;
    ensure!(clone.path.symlink_metadata().is_err(), "the clone is there after destroy");
    ensure!(!f.held()?.contains(&clone.reference), "a clone is held that was destroyed");
    f.destroy_clone(&clone)?;
    let other = f.another()?;
    other.destroy_clone(&clone)?;
    same_as(f, &taken, &stays)?;
    // Taken away by its user, not by the provider; all of it, where it is below its name.
    match std::fs::rename(f.folder().path().join("stays"), f.beside("moved-away")) {
        // A filesystem's clone may be a mount, which cannot be renamed, perhaps at a directory that nobody is to write to; what is in it can be removed.
        Err(error)
            if error.kind() == std::io::ErrorKind::ResourceBusy
                || error.kind() == std::io::ErrorKind::PermissionDenied && is_mount(&stays.path)? =>
        {
            for entry in std::fs::read_dir(&stays.path)? {
                remove_all(&entry?.path())?;
            }
        }
        renamed => renamed?,
    }
    other.destroy_clone(&stays)?;
    f.shows(&taken)?;
    // The name is free again.
    let again = f.try_clone(&taken.reference(), "fork")?;
    same_as(f, &taken, &again)?;
    f.destroy_clone(&again)
}

/// Its maker was killed, perhaps, before it could write down that it has it.
fn forgotten(f: &Fixture) -> Check {
    f.ws.sample()?;
    let taken = f.take("a")?;
    let target = Editor::new(f.folder().path());
    target.write("file", "stays")?;
    target.write("dir/in", "stays")?;
    let maker = f.another()?;
    let clone = maker.try_clone(&taken.reference(), "fork")?;
    let stays = maker.try_clone(&taken.reference(), "stays")?;
    drop(maker);
    f.reclaim()?;
    f.reclaim_forgotten(&["file", "dir", "nothing"])?;
    same_as(f, &taken, &clone)?;
    f.reclaim_forgotten(&["fork", "file", "dir"])?;
    let named = f.folder().path().join("fork");
    ensure!(named.symlink_metadata().is_err(), "a clone stays that was named to reclaim");
    ensure!(!f.held()?.contains(&clone.reference), "a clone is held that was named to reclaim");
    same_as(f, &taken, &stays)?;
    // Neither is what bears its name by now.
    target.write("fork/in", "stays")?;
    f.reclaim_forgotten(&["fork"])?;
    f.destroy_clone(&clone)?;
    ensure!(target.read("fork/in")? == b"stays", "what is called as a clone was is not left alone");
    target.remove("fork")?;
    let again = f.try_clone(&taken.reference(), "fork")?;
    same_as(f, &taken, &again)?;
    f.destroy_clone(&again)?;
    f.destroy_clone(&stays)?;
    for name in ["file", "dir/in"] {
        ensure!(target.read(name)? == b"stays", "{name}, which was there before, is not left alone");
    }
    Ok(())
}

/// Taken away by its user, who has put something of their own there.
fn replaced(f: &Fixture) -> Check {
    f.ws.sample()?;
    let taken = f.take("a")?;
    let clone = f.try_clone(&taken.reference(), "fork")?;
    let theirs = f.replace("fork")?;
    f.destroy_clone(&clone)?;
    f.another()?.destroy_clone(&clone)?;
    theirs.is_there()?;
    f.shows(&taken)
}

fn remove_all(path: &std::path::Path) -> std::io::Result<()> {
    if path.symlink_metadata()?.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) }
}

fn without_workspace(f: &Fixture) -> Check {
    f.ws.sample()?;
    let taken = f.take("a")?;
    let request = CloneRequest { snapshot: taken.reference(), name: FileName::new("fork")? };
    let cx = Context::quiet();
    let clone = f.provider().clone_snapshot(&f.place_without_workspace(), &request, &cx)?;
    same_as(f, &taken, &clone)?;
    let nowhere = f.provider().clone_snapshot(&Place::new(f.store()).with_workspace(f.workspace()), &request, &cx);
    refused(nowhere, &[ErrorKind::InvalidArgument], "a clone without a target")?;
    f.destroy_clone(&clone)
}

/// An agent goes on in a clone, and its steps are captured in turn, in a store of the clone's own.
fn as_workspace(f: &Fixture) -> Check {
    f.ws.sample()?;
    let taken = f.take("a")?;
    let clone = f.try_clone(&taken.reference(), "fork")?;
    std::fs::create_dir(f.beside("store-of-fork"))?;
    let store = ah_plugin_api::Dir::open(f.beside("store-of-fork"))?;
    let workspace = ah_plugin_api::Dir::open(&clone.path)?;
    let place = Place::new(&store).with_workspace(&workspace).with_target(f.folder());
    Editor::new(&clone.path).write("README.md", "from the fork")?;
    let tree = Tree::walk(&clone.path)?;
    let cx = Context::quiet();
    let snapshot = f.provider().snapshot(&place, &f.request("a"), &cx)?;
    let request =
        ah_plugin_api::MountRequest { snapshot: snapshot.reference.clone(), name: FileName::new("v")?, paths: vec![] };
    let view = f.provider().mount(&place, &request, &cx)?;
    let shown = Tree::walk(&view.path)?;
    let request = ah_plugin_api::UnmountRequest { view: view.reference.clone(), unused: false };
    f.provider().unmount(&place, &request, &cx)?;
    // Who has it open may be in the way of its removal.
    drop(workspace);
    let expected = f.expected(&Taken { snapshot, tree });
    same("a snapshot of a clone", &expected.differences(&shown, crate::fixture::view_modes(&view)))?;
    f.destroy_clone(&clone)
}

fn same_as(f: &Fixture, taken: &Taken, clone: &WritableClone) -> Check {
    let shown = Tree::walk(&clone.path)?;
    same("the clone", &f.expected(taken).differences(&shown, Modes::Exact))
}
