//! No change goes unnoticed, however little of it shows in a file's attributes.

use std::time::Duration;

use ah_plugin_api::{Capability, Side, Timestamp};

use super::diff::compare;
use crate::case::{Case, Check};
use crate::fixture::Fixture;

const SHOWS: &[&str] = &[
    "Captures the workspace.",
    "A view, `read_dir` and `read` show the captured tree",
    "One for each path that differs in kind, contents, permission bits or (if asked for) time.",
];

/// Each takes a snapshot, changes something, takes another, looks at both, and has them compared where the provider can.
macro_rules! cases {
    ($($id:literal $prepare:expr => $change:expr;)+) => {
        pub(super) const CASES: &[Case] = &[
            $(Case {
                id: concat!("changed.", $id),
                clauses: SHOWS,
                needs: &[],
                run: |f| noticed(f, $prepare, $change),
            },)+
            Case { id: "changed.within-a-tick", clauses: SHOWS, needs: &[], run: within_a_tick },
            Case { id: "changed.many-steps", clauses: SHOWS, needs: &[], run: many_steps },
        ];
    };
}

type Step = fn(&Fixture) -> std::io::Result<()>;

const OLD: Timestamp = Timestamp { secs: 1_600_000_000, nanos: 5 };

fn noticed(f: &Fixture, prepare: Step, change: Step) -> Check {
    f.ws.sample()?;
    prepare(f)?;
    // Longer than a provider may hold a file for one that is still being written, and read it again for that alone: what is to
    // be noticed here is noticed by attributes, and `within-a-tick` is for the rest.
    std::thread::sleep(Duration::from_millis(1200));
    let before = f.take("before")?;
    // A second look at an unchanged tree, so that whatever is remembered of it is what is used.
    f.take("still")?;
    change(f)?;
    let after = f.take("after")?;
    f.shows(&after)?;
    f.shows(&before)?;
    if f.has(Capability::Diff) {
        let [old, new] = [&before, &after].map(|taken| Side::Snapshot(taken.reference()));
        compare(f, &old, &new, &before.tree, &after.tree)?;
        compare(f, &old, &Side::Workspace, &before.tree, &after.tree)?;
        compare(f, &new, &Side::Workspace, &after.tree, &after.tree)?;
    }
    Ok(())
}

cases! {
    "nothing" |_| Ok(()) => |_| Ok(());
    "contents" |_| Ok(()) => |f| f.ws.write("README.md", "something else entirely");
    "contents-of-same-size" |_| Ok(()) => |f| f.ws.write("README.md", "# SAMPLE\n");
    "contents-of-same-size-and-time" |f| f.ws.mtime("README.md", OLD) => |f| {
        f.ws.write("README.md", "# SAMPLE\n")?;
        f.ws.mtime("README.md", OLD)
    };
    "time-alone" |_| Ok(()) => |f| f.ws.mtime("README.md", Timestamp { secs: 1, nanos: 1 });
    "time-in-the-future" |f| f.ws.mtime("README.md", Timestamp { secs: 4_000_000_000, nanos: 0 }) => |f| {
        f.ws.write("README.md", "# SAMPLE\n")?;
        f.ws.mtime("README.md", Timestamp { secs: 4_000_000_000, nanos: 0 })
    };
    "mode-alone" |_| Ok(()) => |f| f.ws.chmod("README.md", 0o755);
    "mode-of-directory" |_| Ok(()) => |f| f.ws.chmod("src/lib", 0o700);
    "added" |_| Ok(()) => |f| f.ws.write("src/lib/new", "new");
    "added-behind-the-directory's-back" |_| Ok(()) => |f| {
        // The directory has the time it had.
        let time = f.ws.mtime_of("src/lib")?;
        f.ws.write("src/lib/new", "new")?;
        f.ws.mtime("src/lib", time)
    };
    "removed" |_| Ok(()) => |f| f.ws.remove("src/main.rs");
    "removed-tree" |_| Ok(()) => |f| f.ws.remove("src");
    "everything-removed" |_| Ok(()) => |f| {
        for entry in std::fs::read_dir(f.ws.root())? {
            use std::os::unix::ffi::OsStrExt;
            f.ws.remove(entry?.file_name().as_bytes())?;
        }
        Ok(())
    };
    "renamed-over" |f| {
        // As `mv` does: the new file brings its old time along, and its size is that of the one it replaces.
        f.ws.write("other", "# SAMPLE\n")?;
        f.ws.mtime("other", OLD)?;
        f.ws.mtime("README.md", OLD)
    } => |f| f.ws.rename("other", "README.md");
    "copied-over-with-time" |f| f.ws.mtime("README.md", OLD) => |f| {
        // As `cp -p` does.
        f.ws.write("README.md", "# COPIED\n")?;
        f.ws.mtime("README.md", OLD)
    };
    "unpacked-over" |f| f.ws.mtime("README.md", OLD) => |f| {
        // As `tar -x` does: unlink, make anew, set the time.
        f.ws.remove("README.md")?;
        f.ws.write("README.md", "# TARRED\n")?;
        f.ws.mtime("README.md", OLD)
    };
    "swapped-files" |f| {
        f.ws.write("twin", "# SAMPLE\n")?;
        f.ws.mtime("twin", OLD)?;
        f.ws.mtime("README.md", OLD)
    } => |f| f.ws.exchange("twin", "README.md");
    "swapped-directories" |f| {
        f.ws.write("src2/main.rs", "fn main() { }")?;
        f.ws.mtime("src2", OLD)?;
        f.ws.mtime("src", OLD)
    } => |f| f.ws.exchange("src", "src2");
    "directory-moved-in" |f| {
        f.ws.write("elsewhere/lib/deep/er.rs", "pub fn DEEP() {}\n")?;
        f.ws.mtime("elsewhere/lib/deep/er.rs", OLD)?;
        f.ws.mtime("src/lib/deep/er.rs", OLD)
    } => |f| {
        f.ws.remove("src/lib")?;
        f.ws.rename("elsewhere/lib", "src/lib")
    };
    "renamed-directory" |_| Ok(()) => |f| f.ws.rename("src", "source");
    "moved-deep" |_| Ok(()) => |f| f.ws.rename("README.md", "src/lib/deep/README.md");
    "file-becomes-directory" |_| Ok(()) => |f| {
        f.ws.remove("README.md")?;
        f.ws.write("README.md/in/side", "x")
    };
    "directory-becomes-file" |_| Ok(()) => |f| {
        f.ws.remove("src")?;
        f.ws.write("src", "x")
    };
    "file-becomes-symlink" |_| Ok(()) => |f| {
        f.ws.remove("README.md")?;
        f.ws.symlink("run.sh", "README.md")
    };
    "symlink-becomes-directory" |_| Ok(()) => |f| {
        f.ws.remove("to-dir")?;
        f.ws.write("to-dir/main.rs", "x")
    };
    "directory-becomes-symlink" |_| Ok(()) => |f| {
        f.ws.rename("src/lib", "lib")?;
        f.ws.symlink("../lib", "src/lib")
    };
    "symlink-target" |f| f.ws.mtime("to-file", OLD) => |f| {
        f.ws.remove("to-file")?;
        // As long as the one before.
        f.ws.symlink("src/niam.rs", "to-file")?;
        f.ws.mtime("to-file", OLD)
    };
    "through-a-hard-link" |f| f.ws.link("README.md", "second-name") => |f| f.ws.write("second-name", "# SAMPLE\n");
    "truncated" |_| Ok(()) => |f| f.ws.write("README.md", "");
    "appended" |_| Ok(()) => |f| f.ws.write("README.md", "# sample\nmore\n");
    "emptied-directory" |_| Ok(()) => |f| f.ws.remove("private/key");
}

/// Edits that keep the size, made right after a snapshot, before the clock that files are stamped by ticks again.
fn within_a_tick(f: &Fixture) -> Check {
    f.provider().look_away();
    f.ws.sample()?;
    let mut taken = Vec::new();
    for i in 0..60 {
        f.ws.write("README.md", format!("# {i:06}\n"))?;
        f.ws.write("src/main.rs", format!("fn main() {{ {i:06} }}\n"))?;
        taken.push(f.take(&format!("s{i}"))?);
    }
    for snapshot in taken.iter().step_by(15).chain(taken.last()) {
        f.shows(snapshot)?;
    }
    // And each of them, at the file that changed.
    for (i, snapshot) in taken.iter().enumerate() {
        let view = f.mount(snapshot, "v", &["README.md"])?;
        let read = std::fs::read(view.path.join("README.md"))?;
        f.unmount(&view)?;
        crate::case::ensure!(
            read == format!("# {i:06}\n").into_bytes(),
            "snapshot {i} shows {:?}",
            String::from_utf8_lossy(&read)
        );
    }
    Ok(())
}

/// A dozen steps of all kinds, with all snapshots compared in the end.
fn many_steps(f: &Fixture) -> Check {
    f.provider().look_away();
    f.ws.sample()?;
    let mut taken = vec![f.take("start")?];
    let steps: [Step; 10] = [
        |f| f.ws.write("src/a", "1"),
        |f| f.ws.rename("src", "s"),
        |f| f.ws.write("src", "now a file"),
        |f| f.ws.write("s/a", "2"),
        |f| f.ws.remove("src"),
        |f| f.ws.rename("s", "src"),
        |f| f.ws.chmod("src/a", 0o755),
        |f| f.ws.symlink("a", "src/b"),
        |f| f.ws.remove("src/lib"),
        |f| f.ws.write("src/lib", "x"),
    ];
    for (i, step) in steps.into_iter().enumerate() {
        step(f)?;
        taken.push(f.take(&format!("step{i}"))?);
    }
    taken.iter().try_for_each(|snapshot| f.shows(snapshot))
}
