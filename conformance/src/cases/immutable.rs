//! Guarantee 1: what a snapshot shows never changes.

use ah_plugin_api::{Capability, Timestamp};

use crate::case::{Case, Check, Need, ensure};
use crate::fixture::Fixture;

pub(super) const CASES: &[Case] = &[
    Case {
        id: "immutable.workspace-writes",
        clauses: &["What a snapshot shows never changes: not by writes to the workspace"],
        needs: &[],
        run: workspace_writes,
    },
    Case {
        id: "immutable.writes-in-place",
        clauses: &["not by writes to the workspace"],
        needs: &[],
        run: writes_in_place,
    },
    Case {
        id: "immutable.workspace-removed",
        clauses: &["not by writes to the workspace"],
        needs: &[Need::InPlace],
        run: workspace_removed,
    },
    Case {
        id: "immutable.clone-writes",
        clauses: &["to a clone", "*clone*: a writable copy grown from a snapshot."],
        needs: &[Need::Has(Capability::Clone)],
        run: clone_writes,
    },
    Case {
        id: "immutable.other-destroyed",
        clauses: &["not by destroying other snapshots", "Clones and other snapshots stay as they are."],
        needs: &[],
        run: other_destroyed,
    },
    Case {
        id: "immutable.reclaim",
        clauses: &[
            "Never touches a complete snapshot",
            "`reclaim` may come at any time.",
            "Calling it again goes on where it stopped.",
        ],
        needs: &[],
        run: reclaim,
    },
    Case {
        id: "immutable.snapshot-while-viewed",
        clauses: &["not by writes to the workspace"],
        needs: &[],
        run: snapshot_while_viewed,
    },
];

fn ruin(f: &Fixture) -> std::io::Result<()> {
    f.ws.write("README.md", "ruined")?;
    f.ws.chmod("run.sh", 0o600)?;
    f.ws.mtime("empty", Timestamp { secs: 1, nanos: 1 })?;
    f.ws.remove("src")?;
    f.ws.write("src", "a file now")?;
    f.ws.rename("big", "void/big")?;
    f.ws.remove("to-dir")?;
    f.ws.symlink("elsewhere", "to-dir")?;
    f.ws.write("new/file", "new")
}

fn workspace_writes(f: &Fixture) -> Check {
    f.ws.sample()?;
    let a = f.take("a")?;
    ruin(f)?;
    f.shows(&a)?;
    let b = f.take("b")?;
    f.ws.remove("new")?;
    f.shows(&a)?;
    f.shows(&b)
}

/// Writes into the file that was captured, rather than putting another in its place: what shares the inode shares the write.
fn writes_in_place(f: &Fixture) -> Check {
    use std::os::unix::fs::FileExt;
    f.ws.sample()?;
    let file = std::fs::OpenOptions::new().write(true).open(f.ws.at("big"))?;
    let a = f.take("a")?;
    // Through a descriptor that was open all the while.
    file.write_all_at(b"written in place", 100)?;
    f.shows(&a)?;
    file.set_len(10)?;
    let b = f.take("b")?;
    file.write_all_at(b"and on", 2)?;
    f.shows(&a)?;
    f.shows(&b)
}

fn workspace_removed(f: &Fixture) -> Check {
    f.provider().look_away();
    f.ws.sample()?;
    let a = f.take("a")?;
    // A new name, and nothing under the old one.
    std::fs::rename(f.ws.root(), f.beside("moved"))?;
    f.shows(&a)?;
    std::fs::remove_dir_all(f.beside("moved"))?;
    f.shows(&a)
}

fn clone_writes(f: &Fixture) -> Check {
    f.ws.sample()?;
    let a = f.take("a")?;
    let clone = f.try_clone(&a.reference(), "fork")?;
    let fork = crate::editor::Editor::new(&clone.path);
    fork.write("README.md", "written in the clone")?;
    let big = std::fs::OpenOptions::new().write(true).open(fork.at("big"))?;
    std::os::unix::fs::FileExt::write_all_at(&big, b"in place", 50)?;
    fork.chmod("run.sh", 0o600)?;
    fork.remove("src")?;
    // Who has a file of it open may be in the way of its removal.
    drop(big);
    f.shows(&a)?;
    ensure!(f.ws.read("README.md")? == b"# sample\n", "a write to the clone changed the workspace");
    // A second one from the same snapshot knows nothing of the first.
    let second = f.try_clone(&a.reference(), "second")?;
    let read = std::fs::read(second.path.join("README.md"))?;
    ensure!(read == b"# sample\n", "a second clone shows what was written in the first");
    f.destroy_clone(&clone)?;
    f.destroy_clone(&second)?;
    f.shows(&a)
}

fn other_destroyed(f: &Fixture) -> Check {
    f.ws.sample()?;
    let mut taken = Vec::new();
    for i in 0..6 {
        f.ws.write("README.md", format!("version {i}"))?;
        f.ws.write(format!("only-{i}"), format!("only in {i} and later"))?;
        taken.push(f.take(&format!("s{i}"))?);
    }
    // The oldest, the latest, and one from the middle: whoever builds one upon another has to notice.
    for i in [0, 5, 3] {
        f.destroy(&taken[i])?;
        f.reclaim()?;
        for (j, other) in taken.iter().enumerate() {
            let gone = [0, 5, 3]
                .iter()
                .position(|&k| k == j)
                .is_some_and(|at| [0, 5, 3].iter().position(|&k| k == i).is_some_and(|now| at <= now));
            if !gone {
                f.shows(other)?;
            }
        }
    }
    ensure!(f.ids()? == ["s1", "s2", "s4"], "the list is {:?}", f.ids()?);
    // And what comes next does not build upon what is gone.
    let next = f.take("next")?;
    f.shows(&next)
}

fn reclaim(f: &Fixture) -> Check {
    f.reclaim()?;
    f.ws.sample()?;
    let mut taken = Vec::new();
    for i in 0..30 {
        f.ws.write("README.md", format!("version {i}"))?;
        taken.push(f.take(&format!("s{i:02}"))?);
    }
    let request = ah_plugin_api::ReclaimRequest { auto: true, ..Default::default() };
    for _ in 0..2 {
        let cx = ah_plugin_api::Context::quiet();
        ah_plugin_api::Provider::reclaim(f.provider(), &f.place_without_workspace(), &request, &cx)?;
        f.reclaim()?;
    }
    let other = f.another()?;
    other.reclaim()?;
    ensure!(f.list()?.len() == 30, "30 snapshots were taken, {} are there after reclaim", f.list()?.len());
    for snapshot in taken.iter().step_by(4) {
        f.shows(snapshot)?;
        other.shows(snapshot)?;
    }
    f.ws.write("README.md", "after")?;
    f.shows(&f.take("after")?)
}

fn snapshot_while_viewed(f: &Fixture) -> Check {
    f.ws.sample()?;
    let a = f.take("a")?;
    let view = f.mount(&a, "v", &[])?;
    ruin(f)?;
    let b = f.take("b")?;
    let shown = crate::tree::Tree::walk(&view.path)?;
    let differences = f.expected(&a).differences(&shown, crate::fixture::view_modes(&view));
    crate::case::same("the view, after the workspace changed and another snapshot was taken", &differences)?;
    f.unmount(&view)?;
    f.shows(&a)?;
    f.shows(&b)
}
