//! `mount` and `unmount`.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use ah_plugin_api::{Capability, Context, DestroyRequest, ErrorKind, FileName, MountRequest, Place, Provider, View};

use crate::case::{Case, Check, Need, describe, ensure, refused};
use crate::editor::Editor;
use crate::fixture::{Fixture, view_modes};
use crate::tree::{Modes, Tree};

pub(super) const CASES: &[Case] = &[
    Case {
        id: "views.not-writable",
        clauses: &["to a view (which fail)", "No write through it succeeds"],
        needs: &[],
        run: not_writable,
    },
    Case {
        id: "views.exact-modes",
        clauses: &["Views keep write bits: they are read-only by mount, not by mode."],
        needs: &[Need::Has(Capability::ExactViewModes)],
        run: exact_modes,
    },
    Case {
        id: "views.by-mode",
        clauses: &[
            "where even root's cannot be stopped, `read_only_mount` is false and write bits are taken off instead.",
        ],
        needs: &[],
        run: by_mode,
    },
    Case {
        id: "views.outlive",
        clauses: &[
            "The view outlives this process.",
            "What `unmount` needs to find it again, also from another process.",
        ],
        needs: &[],
        run: outlive,
    },
    Case {
        id: "views.unmount",
        clauses: &["Takes a view away. Needs the target that `mount` was given. What is gone already is success."],
        needs: &[],
        run: unmount,
    },
    Case {
        id: "views.forgotten",
        clauses: &[
            "Names in the place's target of views and clones that are to go although they are whole",
            "Names of anything else that is there do nothing.",
        ],
        needs: &[],
        run: forgotten,
    },
    Case { id: "views.replaced", clauses: &[super::REPLACED], needs: &[], run: replaced },
    Case {
        id: "views.in-use",
        clauses: &["`Busy` while a process uses it, with the process named where it can be found out."],
        needs: &[],
        run: in_use,
    },
    Case { id: "views.name-taken", clauses: &["`AlreadyExists` if the name is taken."], needs: &[], run: name_taken },
    Case {
        id: "views.paths",
        clauses: &[
            "Show at least these paths and what is below them; empty: everything.",
            "`NotFound` for a snapshot or one of `paths` that is not there.",
        ],
        needs: &[],
        run: paths,
    },
    Case {
        id: "views.several",
        clauses: &["*view*: a snapshot shown read-only at a path, from `mount` to `unmount`."],
        needs: &[],
        run: several,
    },
    Case {
        id: "views.names",
        clauses: &["The name to create in the target directory; must not exist."],
        needs: &[],
        run: names,
    },
    Case {
        id: "views.needs-target",
        clauses: &[
            "Shows a snapshot read-only. Needs a target.",
            "`InvalidArgument` for a place without what the method needs",
        ],
        needs: &[],
        run: needs_target,
    },
    Case {
        id: "views.destroy-while-mounted",
        clauses: &["`Busy` while a view of it is mounted, where that matters to the provider, with the holder named."],
        needs: &[],
        run: destroy_while_mounted,
    },
];

fn not_writable(f: &Fixture) -> Check {
    f.ws.sample()?;
    let taken = f.take("a")?;
    let view = f.mount(&taken, "v", &[])?;
    if rustix::process::geteuid().is_root() && !view.read_only_mount {
        // The contract has nothing to stop root with there, but that the bits are off.
        let shown = Tree::walk(&view.path)?;
        f.unmount(&view)?;
        ensure!(shown.0.values().all(writeless), "neither a read-only mount, nor are all write bits off");
        return Ok(());
    }
    let v = Editor::new(&view.path);
    let mut attempts: Vec<(&str, io::Result<()>)> = vec![
        ("overwriting a file", v.write("README.md", "x")),
        ("appending", std::fs::OpenOptions::new().append(true).open(v.at("big")).map(|_| ())),
        ("truncating", std::fs::OpenOptions::new().write(true).truncate(true).open(v.at("run.sh")).map(|_| ())),
        ("making a file", v.write("new", "x")),
        ("making a file in a subdirectory", v.write("src/lib/new", "x")),
        ("making a file in an empty directory", v.write("void/new", "x")),
        ("making a directory", v.mkdir("new-dir")),
        ("making a symlink", v.symlink("x", "new-link")),
        ("making a hard link", v.link("README.md", "new-hard-link")),
        ("renaming", v.rename("README.md", "renamed")),
        ("renaming a directory", v.rename("src", "renamed")),
        ("removing a file", v.remove("empty")),
        ("removing an empty directory", std::fs::remove_dir(v.at("void"))),
        ("removing a symlink", v.remove("dangling")),
    ];
    if view.read_only_mount {
        // By mode alone, an owner's cannot be stopped.
        attempts.push(("changing bits", v.chmod("README.md", 0o777)));
        attempts.push(("changing a time", v.mtime("README.md", ah_plugin_api::Timestamp { secs: 1, nanos: 0 })));
        attempts.push(("changing the root's bits", v.chmod("", 0o777)));
    }
    for (what, result) in &attempts {
        ensure!(result.is_err(), "{what} in a view succeeded");
    }
    same_as(f, &taken, &view)?;
    f.unmount(&view)?;
    f.shows(&taken)
}

fn exact_modes(f: &Fixture) -> Check {
    f.ws.sample()?;
    let taken = f.take("a")?;
    let view = f.mount(&taken, "v", &[])?;
    ensure!(view.read_only_mount, "views keep write bits, the capabilities say, but this is no read-only mount");
    let shown = Tree::walk(&view.path)?;
    f.unmount(&view)?;
    crate::case::same("modes in the view", &f.expected(&taken).differences(&shown, Modes::Exact))
}

fn by_mode(f: &Fixture) -> Check {
    f.ws.sample()?;
    f.ws.chmod("README.md", 0o666)?;
    let taken = f.take("a")?;
    let view = f.mount(&taken, "v", &[])?;
    let mounted = crate::scratch::mounts_below(f.folder().path()).iter().any(|mount| view.path.starts_with(mount));
    let shown = Tree::walk(&view.path)?;
    f.unmount(&view)?;
    if view.read_only_mount {
        // On a filesystem that mounts snapshots by itself, the mount point may be anywhere.
        return crate::case::same("modes in the view", &f.expected(&taken).differences(&shown, Modes::Exact));
    }
    ensure!(!mounted || shown.0.values().all(writeless), "a mount that is not read-only, with write bits");
    let writable = shown.0.iter().find(|(_, node)| !writeless(node)).map(|(path, _)| path.clone());
    ensure!(writable.is_none(), "{writable:?} has write bits in a view without a read-only mount");
    Ok(())
}

fn writeless(node: &crate::tree::Node) -> bool {
    node.kind == ah_plugin_api::EntryKind::Symlink || node.mode & 0o222 == 0
}

fn outlive(f: &Fixture) -> Check {
    f.ws.sample()?;
    let taken = f.take("a")?;
    let other = f.another()?;
    let view = other.mount(&taken, "v", &[])?;
    if let Some(process) = &other.provider().instance().process {
        process.kill();
    }
    drop(other);
    same_as(f, &taken, &view)?;
    f.unmount(&view)?;
    ensure!(given_back(f, &view), "the view is there after unmount");
    f.shows(&taken)
}

fn unmount(f: &Fixture) -> Check {
    f.ws.sample()?;
    // What a view shows may lead out of it; taking it away must not follow.
    f.ws.symlink(f.outside().display().to_string(), "to-outside")?;
    let taken = f.take("a")?;
    let view = f.mount(&taken, "v", &[])?;
    f.unmount(&view)?;
    ensure!(given_back(f, &view), "the view is there after unmount");
    f.unmount(&view)?;
    f.another()?.unmount(&view)?;
    // The name is free again, and the next view is a new one.
    let again = f.mount(&taken, "v", &[])?;
    same_as(f, &taken, &again)?;
    f.unmount(&again)?;
    f.destroy(&taken)?;
    f.unmount(&view)
}

/// Its maker was killed, perhaps, before it could write down that it has it.
fn forgotten(f: &Fixture) -> Check {
    f.ws.sample()?;
    let taken = f.take("a")?;
    let target = Editor::new(f.folder().path());
    target.write("dir/in", "stays")?;
    let maker = f.another()?;
    let stays = maker.mount(&taken, "stays", &[])?;
    let before = entries(f)?;
    let view = maker.mount(&taken, "v", &[])?;
    drop(maker);
    f.reclaim()?;
    f.reclaim_forgotten(&["dir", "nothing"])?;
    same_as(f, &taken, &view)?;
    f.reclaim_forgotten(&["v", "dir"])?;
    ensure!(entries(f)? == before, "a view stays that was named to reclaim");
    same_as(f, &taken, &stays)?;
    // Neither is what bears its name by now.
    target.write("v/in", "stays")?;
    f.reclaim_forgotten(&["v"])?;
    f.unmount(&view)?;
    ensure!(target.read("v/in")? == b"stays", "what is called as a view was is not left alone");
    ensure!(target.read("dir/in")? == b"stays", "what was there before is not left alone");
    f.unmount(&stays)
}

/// Taken away by its user, who has put something of their own there.
fn replaced(f: &Fixture) -> Check {
    f.ws.sample()?;
    let taken = f.take("a")?;
    let view = f.mount(&taken, "v", &[])?;
    let theirs = f.replace("v")?;
    f.unmount(&view)?;
    f.another()?.unmount(&view)?;
    theirs.is_there()?;
    f.shows(&taken)
}

fn in_use(f: &Fixture) -> Check {
    f.ws.sample()?;
    let taken = f.take("a")?;
    let view = f.mount(&taken, "v", &[])?;
    let user = std::fs::File::open(view.path.join("README.md"))?;
    let request = ah_plugin_api::UnmountRequest { view: view.reference.clone(), unused: false };
    match f.provider().unmount(&f.place_without_workspace(), &request, &Context::quiet()) {
        // Where a view is plain files, an open one is nobody's trouble.
        Ok(_) => ensure!(given_back(f, &view), "unmount succeeded, but the view is there"),
        Err(error) => {
            ensure!(error.kind == ErrorKind::Busy, "unmount of a view in use answered {}", describe(&error));
            same_as(f, &taken, &view)?;
            drop(user);
            f.unmount(&view)?;
            ensure!(given_back(f, &view), "the view is there after its user went and it was unmounted");
        }
    }
    Ok(())
}

fn name_taken(f: &Fixture) -> Check {
    f.ws.sample()?;
    let taken = f.take("a")?;
    let target = Editor::new(f.folder().path());
    target.write("file", "stays")?;
    target.write("dir/in", "stays")?;
    target.mkdir("empty-dir")?;
    target.symlink("../ah-conformance-outside", "link")?;
    target.symlink("nowhere", "dangling")?;
    let before = Tree::walk(target.root())?;
    for name in ["file", "dir", "empty-dir", "link", "dangling"] {
        refused(f.try_mount(&taken.reference(), name, &[]), &[ErrorKind::AlreadyExists], &format!("mount at {name}"))?;
    }
    crate::case::same("the target folder", &before.differences(&Tree::walk(target.root())?, Modes::Exact))?;
    let view = f.mount(&taken, "v", &[])?;
    // Also where nothing is made at that name, because the snapshot is shown elsewhere: the caller knows the view by it.
    refused(f.try_mount(&taken.reference(), "v", &[]), &[ErrorKind::AlreadyExists], "a second mount of one name")?;
    same_as(f, &taken, &view)?;
    f.unmount(&view)
}

fn paths(f: &Fixture) -> Check {
    f.ws.sample()?;
    let taken = f.take("a")?;
    let expected = f.expected(&taken);
    for filter in [
        &["README.md"] as &[&str],
        &["src"],
        &["src/lib/deep/er.rs"],
        &["void"],
        &["to-dir"],
        &["dangling", "private"],
        &["src/lib", "src/main.rs"],
        &["src", "src/lib"],
        &[""],
    ] {
        let view = f.mount(&taken, "v", filter)?;
        let shown = Tree::walk(&view.path)?;
        f.unmount(&view)?;
        let filters: Vec<_> = filter.iter().map(crate::fixture::path).collect();
        let mut wanted = expected.clone();
        wanted.0.retain(|path, _| filters.iter().any(|p| path.starts_with(p)));
        // More may be shown, but nothing wrong, and the directories on the way are as they were.
        let mut present = expected.clone();
        present.0.retain(|path, _| wanted.0.contains_key(path) || shown.0.contains_key(path));
        let differences = present.differences(&shown, view_modes(&view));
        crate::case::same(&format!("the view of {filter:?}"), &differences)?;
    }
    for missing in [&["no/such"] as &[&str], &["README.md", "no"], &["README.md/x"], &["to-dir/main.rs"]] {
        let mount = f.try_mount(&taken.reference(), "v", missing);
        refused(mount, &[ErrorKind::NotFound], &format!("mount of {missing:?}"))?;
        ensure!(gone(&f.folder().path().join("v")), "a refused mount left something at its name");
    }
    Ok(())
}

fn several(f: &Fixture) -> Check {
    f.ws.sample()?;
    let a = f.take("a")?;
    f.ws.write("README.md", "later")?;
    let b = f.take("b")?;
    let views = [(&a, f.mount(&a, "v1", &[])?), (&b, f.mount(&b, "v2", &[])?), (&a, f.mount(&a, "v3", &[])?)];
    for (taken, view) in &views {
        same_as(f, taken, view)?;
    }
    f.unmount(&views[0].1)?;
    same_as(f, &a, &views[2].1)?;
    same_as(f, &b, &views[1].1)?;
    f.unmount(&views[2].1)?;
    f.unmount(&views[1].1)
}

fn names(f: &Fixture) -> Check {
    use std::os::unix::ffi::OsStrExt;
    f.ws.sample()?;
    let taken = f.take("a")?;
    let long = [b'n'; 255];
    for name in [b"-v".as_slice(), b" ", b"a b\n", b"caf\xe9", b"...", b"*", b".hidden", b"a,b:c=d\\", &long] {
        let request = MountRequest { snapshot: taken.reference(), name: FileName::new(name)?, paths: Vec::new() };
        let view = f.provider().mount(&f.place_without_workspace(), &request, &Context::quiet())?;
        let under = f.folder().path().join(std::ffi::OsStr::from_bytes(name));
        ensure!(view.path == under || gone(&under), "something else is at the view's name");
        same_as(f, &taken, &view)?;
        f.unmount(&view)?;
        ensure!(given_back(f, &view), "the view {:?} is there after unmount", view.path);
    }
    Ok(())
}

fn needs_target(f: &Fixture) -> Check {
    f.ws.sample()?;
    let taken = f.take("a")?;
    let request = MountRequest { snapshot: taken.reference(), name: FileName::new("v")?, paths: Vec::new() };
    let mount = f.provider().mount(&Place::new(f.store()), &request, &Context::quiet());
    refused(mount, &[ErrorKind::InvalidArgument], "mount without a target")?;
    let view = f.mount(&taken, "v", &[])?;
    f.unmount(&view)
}

fn destroy_while_mounted(f: &Fixture) -> Check {
    f.ws.sample()?;
    let taken = f.take("a")?;
    let view = f.mount(&taken, "v", &[])?;
    let request = DestroyRequest::Snapshot(taken.reference());
    match f.provider().destroy(&f.place_without_workspace(), &request, &Context::quiet()) {
        Ok(_) => ensure!(f.ids()?.is_empty(), "destroyed, but listed"),
        Err(error) => {
            ensure!(error.kind == ErrorKind::Busy, "destroy of a mounted snapshot answered {}", describe(&error));
            ensure!(f.ids()? == ["a"], "destroy was refused, but the snapshot is not listed");
        }
    }
    // Either way, whoever looks at the view goes on seeing what it showed.
    same_as(f, &taken, &view)?;
    f.reclaim()?;
    same_as(f, &taken, &view)?;
    f.unmount(&view)?;
    f.destroy(&taken)?;
    ensure!(f.ids()?.is_empty(), "destroyed, but listed");
    Ok(())
}

fn same_as(f: &Fixture, taken: &crate::fixture::Taken, view: &View) -> Check {
    let shown = Tree::walk(&view.path)?;
    crate::case::same("the view", &f.expected(taken).differences(&shown, view_modes(view)))
}

/// Whether nothing is left of a view after it was unmounted. Where a snapshot is shown anyway, outside of the target folder, it goes on
/// being there, and nothing ever was in the target folder.
/// What is in the target folder.
fn entries(f: &Fixture) -> Check<BTreeSet<OsString>> {
    Ok(std::fs::read_dir(f.folder().path())?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<_>>()?)
}

fn given_back(f: &Fixture, view: &View) -> bool {
    if view.path.starts_with(f.folder().path()) {
        return gone(&view.path);
    }
    std::fs::read_dir(f.folder().path()).is_ok_and(|mut entries| entries.next().is_none())
}

fn gone(path: &Path) -> bool {
    PathBuf::from(path).symlink_metadata().is_err()
}
