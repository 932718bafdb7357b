//! `read_dir`, `read` and `lookup`: looking into a snapshot without a view.

use std::io::Read;
use std::os::fd::AsFd;

use ah_plugin_api::{Capability, Context, EntryKind, ErrorKind, Provider, ReadRequest, Reference, RelPath};

use crate::case::{Case, Check, Need, Trouble, ensure, refused};
use crate::fixture::{Fixture, path};

const NEEDS: &[Need] = &[Need::Has(Capability::ReadWithoutMount)];

pub(super) const CASES: &[Case] = &[
    Case {
        id: "reading.read-dir",
        clauses: &[
            "The entries of a directory in a snapshot, ordered by name bytes. `.` and `..` are not among them.",
            "`NotFound` if the path is not there; `InvalidArgument` if it is not a directory",
        ],
        needs: NEEDS,
        run: read_dir,
    },
    Case {
        id: "reading.read",
        clauses: &[
            "Writes a file's contents, or a symlink's target, to the output, and gives its entry.",
            "`NotFound` if the path is not there; `InvalidArgument` for a directory",
        ],
        needs: NEEDS,
        run: read,
    },
    Case {
        id: "reading.output",
        clauses: &["Needs an output.", "`InvalidArgument` for a place without what the method needs"],
        needs: NEEDS,
        run: output,
    },
    Case {
        id: "reading.lookup",
        clauses: &[
            "One path's entry in each of several snapshots, in their order. The root is always there.",
            "`NotFound` for an unknown snapshot",
        ],
        needs: NEEDS,
        run: lookup,
    },
    Case {
        id: "reading.content-ids",
        clauses: &["two entries of one store with equal ids have equal bytes."],
        needs: NEEDS,
        run: content_ids,
    },
];

fn read_dir(f: &Fixture) -> Check {
    f.ws.sample()?;
    for name in ["b", "b.c", "b-d", "B", "\u{e9}", "b0"] {
        f.ws.write(format!("order/{name}"), name)?;
    }
    f.ws.mkdir("order/b_dir")?;
    let taken = f.take("a")?;
    let snapshot = taken.reference();
    let entries = f.read_dir(&snapshot, &path("order"))?;
    let names: Vec<_> = entries.iter().map(|entry| String::from_utf8_lossy(&entry.name).into_owned()).collect();
    ensure!(names == ["B", "b", "b-d", "b.c", "b0", "b_dir", "\u{e9}"], "the names are {names:?}");
    ensure!(f.read_dir(&snapshot, &path("void"))?.is_empty(), "an empty directory has entries");
    refused(f.read_dir(&snapshot, &path("no/such")), &[ErrorKind::NotFound], "read_dir of what is not there")?;
    // What is below a symlink or a file is not there; symlinks are not followed.
    for below in ["to-dir/lib", "README.md/x"] {
        refused(f.read_dir(&snapshot, &path(below)), &[ErrorKind::NotFound], &format!("read_dir of {below}"))?;
    }
    for not_a_dir in ["README.md", "to-dir", "dangling"] {
        let what = format!("read_dir of {not_a_dir}");
        refused(f.read_dir(&snapshot, &path(not_a_dir)), &[ErrorKind::InvalidArgument], &what)?;
    }
    let nothing = Reference::new("no-such-snapshot")?;
    refused(f.read_dir(&nothing, &RelPath::root()), &[ErrorKind::NotFound], "read_dir in what is not there")
}

fn read(f: &Fixture) -> Check {
    f.ws.sample()?;
    let taken = f.take("a")?;
    let snapshot = taken.reference();
    let expect = |at: &str, kind: EntryKind, contents: &[u8]| -> Check {
        let (entry, bytes) = f.read(&snapshot, &path(at))??;
        ensure!(entry.kind == kind && bytes == contents, "{at} reads as a {} with {} bytes", entry.kind, bytes.len());
        ensure!(entry.name == at.rsplit('/').next().unwrap_or_default().as_bytes(), "the name of {at} is another");
        Ok(())
    };
    expect("README.md", EntryKind::File, b"# sample\n")?;
    expect("src/lib/deep/er.rs", EntryKind::File, b"pub fn deep() {}\n")?;
    expect("empty", EntryKind::File, b"")?;
    expect("to-dir", EntryKind::Symlink, b"src")?;
    expect("dangling", EntryKind::Symlink, b"../nowhere")?;
    expect("big", EntryKind::File, &vec![b'x'; 200_000])?;
    for nothing in ["no", "src/no", "README.md/no", "to-dir/main.rs"] {
        refused(f.read(&snapshot, &path(nothing))?, &[ErrorKind::NotFound], &format!("read of {nothing}"))?;
    }
    for dir in ["src", ""] {
        refused(f.read(&snapshot, &path(dir))?, &[ErrorKind::InvalidArgument], &format!("read of directory {dir:?}"))?;
    }
    let nothing = Reference::new("no-such-snapshot")?;
    refused(f.read(&nothing, &path("README.md"))?, &[ErrorKind::NotFound], "read in what is not there")
}

fn output(f: &Fixture) -> Check {
    f.ws.sample()?;
    let taken = f.take("a")?;
    let request = |at: &str| ReadRequest { snapshot: taken.reference(), path: path(at) };
    let cx = Context::quiet();
    let without = f.provider().read(&f.place_without_workspace(), &request("README.md"), &cx);
    refused(without, &[ErrorKind::InvalidArgument], "read without an output")?;
    // A pipe, which neither seeks nor takes everything at once.
    let (mut reader, writer) = std::io::pipe()?;
    let received = std::thread::scope(|scope| -> Check<Vec<u8>> {
        let drain = scope.spawn(move || {
            let mut bytes = Vec::new();
            reader.read_to_end(&mut bytes).map(|_| bytes)
        });
        let place = f.place_without_workspace().with_output(writer.as_fd());
        let result = f.provider().read(&place, &request("big"), &cx);
        drop(writer);
        result?;
        Ok(drain.join().map_err(|_| Trouble::Failed("the suite's reader panicked".to_owned()))??)
    })?;
    ensure!(received == vec![b'x'; 200_000], "{} bytes came through a pipe instead of 200,000", received.len());
    // A pipe whose reader has gone: an error, not the end of the process.
    let (reader, writer) = std::io::pipe()?;
    drop(reader);
    let place = f.place_without_workspace().with_output(writer.as_fd());
    ensure!(f.provider().read(&place, &request("big"), &cx).is_err(), "200,000 bytes went into a pipe nobody reads");
    // A file that is not at its beginning: written where it stands, with what was there kept.
    let mut file = tempfile::tempfile_in(f.beside(""))?;
    std::io::Write::write_all(&mut file, b"before ")?;
    let place = f.place_without_workspace().with_output(file.as_fd());
    f.provider().read(&place, &request("README.md"), &cx)?;
    let mut bytes = Vec::new();
    std::io::Seek::rewind(&mut file)?;
    file.read_to_end(&mut bytes)?;
    ensure!(bytes == b"before # sample\n", "the output is {:?}", String::from_utf8_lossy(&bytes));
    Ok(())
}

fn lookup(f: &Fixture) -> Check {
    f.ws.sample()?;
    let a = f.take("a")?;
    f.ws.remove("src")?;
    f.ws.write("src", "a file")?;
    let b = f.take("b")?;
    f.ws.remove("src")?;
    let c = f.take("c")?;
    let kinds = |at: &str, snapshots: &[&crate::fixture::Taken]| -> Check<Vec<Option<EntryKind>>> {
        Ok(f.lookup(snapshots, &path(at))?.into_iter().map(|entry| entry.map(|entry| entry.kind)).collect())
    };
    use EntryKind::{Dir, File, Symlink};
    ensure!(kinds("src", &[&a, &b, &c])? == [Some(Dir), Some(File), None], "src is {:?}", kinds("src", &[&a, &b, &c])?);
    let back = kinds("src", &[&c, &b, &a, &b])?;
    ensure!(back == [None, Some(File), Some(Dir), Some(File)], "in another order src is {back:?}");
    ensure!(kinds("", &[&a, &c])? == [Some(Dir), Some(Dir)], "the root is not there");
    ensure!(kinds("to-dir", &[&a])? == [Some(Symlink)], "a symlink was followed");
    ensure!(kinds("to-dir/main.rs", &[&a])? == [None], "a symlink was followed on the way");
    ensure!(kinds("README.md/x", &[&a])? == [None], "something is below a file");
    ensure!(f.lookup(&[], &path("src"))?.is_empty(), "no snapshots, but an answer");
    for name in ["README.md", "src/main.rs", "void"] {
        let entry = f.lookup(&[&a], &path(name))?.remove(0);
        let parent = path(name).parent().unwrap_or_default();
        let listed = f.read_dir(&a.reference(), &parent)?.into_iter().find(|e| path(name).file_name() == Some(&e.name));
        ensure!(entry == listed, "lookup and read_dir disagree on {name}: {entry:?}, {listed:?}");
    }
    f.destroy(&b)?;
    refused(f.lookup(&[&a, &b], &path("src")), &[ErrorKind::NotFound], "lookup in a snapshot that is gone")
}

fn content_ids(f: &Fixture) -> Check {
    f.ws.write("one", "same")?;
    f.ws.write("two", "same")?;
    f.ws.write("other", "else")?;
    f.ws.symlink("same", "link")?;
    let a = f.take("a")?;
    f.ws.write("one", "else")?;
    let b = f.take("b")?;
    let mut known = std::collections::BTreeMap::new();
    for taken in [&a, &b] {
        for entry in f.read_dir(&taken.reference(), &RelPath::root())? {
            let (again, bytes) = f.read(&taken.reference(), &path(&entry.name))??;
            ensure!(again.content == entry.content, "read and read_dir give other content ids");
            let Some(id) = entry.content else { continue };
            let former = known.insert(id.clone(), bytes.clone());
            ensure!(former.is_none_or(|former| former == bytes), "the content id {id:?} stands for two contents");
        }
    }
    Ok(())
}
