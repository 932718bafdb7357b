//! Guarantee 2: what is captured is what is shown.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};

use ah_plugin_api::{Capability, Context, EntryKind, Error, ErrorKind, OmitReason, Provider, RelPath, Timestamp};
use rustix::fs::{Mode, OFlags};

use crate::case::{Case, Check, Need, Trouble, describe, ensure, refused};
use crate::fixture::{Fixture, Taken, path};
use crate::tree::Tree;

const SHOWS: &str = "A view, `read_dir` and `read` show the captured tree";
const NAMES: &str = "names (any bytes but NUL and `/`)";
const NOT_KEPT: &str =
    "What is not kept is either absent from the capabilities or listed in `omitted`, with the reason.";

pub(super) const CASES: &[Case] = &[
    Case { id: "exact.sample", clauses: &[SHOWS], needs: &[], run: sample },
    Case { id: "exact.empty-workspace", clauses: &[SHOWS], needs: &[], run: |f| f.shows(&f.take("a")?) },
    Case { id: "exact.names", clauses: &[NAMES], needs: &[], run: names },
    Case { id: "exact.odd-names", clauses: &[NAMES], needs: &[], run: odd_names },
    Case { id: "exact.deep", clauses: &[NAMES], needs: &[], run: deep },
    Case { id: "exact.many-in-one-directory", clauses: &[SHOWS], needs: &[], run: many },
    Case {
        id: "exact.contents",
        clauses: &["names (any bytes but NUL and `/`), contents, kinds"],
        needs: &[],
        run: contents,
    },
    Case {
        id: "exact.mapped",
        clauses: &["What was written before the call is in it, also through a mapping that is gone since."],
        needs: &[],
        run: mapped,
    },
    Case { id: "exact.modes", clauses: &["permission bits"], needs: &[], run: modes },
    Case {
        id: "exact.symlinks",
        clauses: &["symlink targets", "It follows no symlink inside the workspace"],
        needs: &[],
        run: symlinks,
    },
    Case { id: "exact.empty-directories", clauses: &["empty directories"], needs: &[], run: empty_directories },
    Case {
        id: "exact.times",
        clauses: &["modification times to the nanosecond (directories included)"],
        needs: &[],
        run: times,
    },
    Case { id: "exact.hard-links", clauses: &[NOT_KEPT], needs: &[], run: |f| linked(f).map(drop) },
    Case {
        id: "exact.hard-links-stay",
        clauses: &["Hard links between captured files stay hard links."],
        needs: &[Need::Has(Capability::HardLinks)],
        run: hard_links_stay,
    },
    Case {
        id: "exact.special-files",
        clauses: &[NOT_KEPT],
        needs: &[Need::Lacks(Capability::SpecialFiles)],
        run: special_files,
    },
    Case {
        id: "exact.special-files-kept",
        clauses: &["FIFOs, sockets and device nodes are kept."],
        needs: &[Need::Has(Capability::SpecialFiles)],
        run: special_files,
    },
    Case {
        id: "exact.unreadable",
        clauses: &[NOT_KEPT, "This user may not read it."],
        needs: &[Need::User],
        run: unreadable,
    },
    Case {
        id: "exact.sparse",
        clauses: &["Holes stay holes."],
        needs: &[Need::Has(Capability::SparseFiles)],
        run: sparse,
    },
    Case {
        id: "exact.xattrs",
        clauses: &["Extended attributes and ACLs are kept."],
        needs: &[Need::Has(Capability::Xattrs)],
        run: xattrs,
    },
    Case {
        id: "exact.other-filesystem",
        clauses: &["does not cross into other filesystems", "Another filesystem, dataset or subvolume begins here."],
        needs: &[Need::Root],
        run: other_filesystem,
    },
    Case {
        id: "exact.large",
        clauses: &["names (any bytes but NUL and `/`), contents, kinds"],
        needs: &[],
        run: large,
    },
    Case {
        id: "exact.owners",
        clauses: &["Owner and group are kept."],
        needs: &[Need::Root, Need::Has(Capability::Owners)],
        run: owners,
    },
];

fn sample(f: &Fixture) -> Check {
    f.ws.sample()?;
    let taken = f.take("a")?;
    f.shows(&taken)?;
    // Also when nothing of what made it is in memory any more.
    f.another()?.shows(&taken)
}

fn names(f: &Fixture) -> Check {
    f.provider().look_away();
    for byte in 1..=255u8 {
        if byte != b'/' {
            f.ws.write([b'x', byte, b'y'], [byte])?;
            // Alone too, where that is a name.
            if byte != b'.' {
                f.ws.write([b"alone/".as_slice(), &[byte]].concat(), [byte])?;
            }
        }
    }
    f.shows(&f.take("a")?)
}

fn odd_names(f: &Fixture) -> Check {
    f.provider().look_away();
    let long = "n".repeat(255);
    let long_bytes = vec![0xfe; 255];
    let names: [&[u8]; 33] = [
        b"-rf",
        b"--",
        b"...",
        b"..a",
        b"a.",
        b" ",
        b"  leading",
        b"trailing ",
        b"~",
        b"$HOME",
        b"%s%n",
        b"*",
        b"?",
        b"[a]",
        b"!",
        b"#comment",
        b"a\nb",
        b"a\tb",
        b"\"q\"",
        b"'",
        b"\\",
        b"a\\b",
        b"C:",
        b"con",
        b"nul.txt",
        // Names that Git treats as dangerous on some systems, and that are ordinary here.
        b".GIT",
        b"git~1",
        b".git ",
        b".gitmodules",
        b".gitattributes",
        "\u{200c}.git".as_bytes(),
        long.as_bytes(),
        &long_bytes,
    ];
    for name in names {
        f.ws.write(name, name)?;
        f.ws.write([b"as-directory/".as_slice(), name, b"/in"].concat(), "in")?;
    }
    // One a prefix of the other, in all orders that sorting by path and by name could differ in.
    for name in ["pre", "pre.a", "pre-a", "pre0", "prefix"] {
        f.ws.mkdir(format!("order/{name}"))?;
        f.ws.write(format!("order/{name}/x"), name)?;
        f.ws.write(format!("order2/{name}"), name)?;
    }
    f.ws.write("order2/dir/pre", "")?;
    // The same in the two normal forms of Unicode.
    f.ws.write("caf\u{e9}", "composed")?;
    f.ws.write("cafe\u{301}", "decomposed")?;
    f.ws.write("README", "upper")?;
    f.ws.write("readme", "lower")?;
    f.shows(&f.take("a")?)
}

/// Deeper than `PATH_MAX`: whoever works with whole paths gets stuck.
fn deep(f: &Fixture) -> Check {
    f.provider().look_away();
    let name = CString::new("d".repeat(120)).map_err(std::io::Error::other)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut dir: OwnedFd = f.workspace().as_fd().try_clone_to_owned()?;
    for _ in 0..40 {
        rustix::fs::mkdirat(&dir, &name, Mode::RWXU).map_err(std::io::Error::from)?;
        dir = rustix::fs::openat(&dir, &name, flags, Mode::empty()).map_err(std::io::Error::from)?;
    }
    let file = rustix::fs::openat(&dir, c"file", OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC, Mode::RUSR)
        .map_err(std::io::Error::from)?;
    rustix::io::write(&file, b"deep").map_err(std::io::Error::from)?;
    let taken = f.take("a")?;
    ensure!(taken.tree.0.len() == 42, "the suite sees {} entries of its own tree", taken.tree.0.len());
    f.shows(&taken)
}

fn many(f: &Fixture) -> Check {
    f.provider().look_away();
    for i in 0..3000 {
        f.ws.write(format!("many/file-{i}"), i.to_string())?;
    }
    let taken = f.take("a")?;
    let view = f.mount(&taken, "v", &[])?;
    let shown = Tree::walk(&view.path)?;
    f.unmount(&view)?;
    let differences = f.expected(&taken).differences(&shown, crate::fixture::view_modes(&view));
    crate::case::same("a directory of 3,000 files", &differences)
}

fn contents(f: &Fixture) -> Check {
    f.ws.write("empty", "")?;
    f.ws.write("nul", [0])?;
    f.ws.write("newlines", "\r\n\n\r")?;
    f.ws.write("no newline at the end", "a")?;
    f.ws.write("every byte", (0..=255u8).collect::<Vec<_>>())?;
    f.ws.write("looks like a pointer", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 0\n")?;
    f.ws.write("ident", "$Id$ $Id: 0 $\n")?;
    // What a user's own tools do with such files on checkout is not to be done here.
    f.ws.write(".gitattributes", "* text=auto eol=crlf ident filter=evil\n")?;
    for size in [4095, 4096, 4097, 65_535, 65_536, 65_537, 1 << 20, 5_000_001] {
        let data: Vec<u8> = (0..size).map(|i: u32| i.to_le_bytes()[0] ^ i.to_le_bytes()[1]).collect();
        f.ws.write(format!("size {size}"), data)?;
    }
    f.ws.write("twin 1", "the same contents in two files")?;
    f.ws.write("twin 2", "the same contents in two files")?;
    f.shows(&f.take("a")?)
}

/// The kernel has it in its pages, and hands it to the filesystem when it likes: half a minute later, mostly.
fn mapped(f: &Fixture) -> Check {
    const SIZE: usize = 65_536;
    f.ws.write("over", [b'a'; SIZE])?;
    let before = f.take("a")?;
    f.ws.write_mapped("over", [b'b'; SIZE])?;
    f.ws.write_mapped("new", [b'c'; SIZE])?;
    let after = f.take("b")?;
    f.shows(&after)?;
    f.shows(&before)
}

fn modes(f: &Fixture) -> Check {
    for mode in
        [0o400, 0o444, 0o500, 0o555, 0o600, 0o604, 0o640, 0o644, 0o664, 0o666, 0o700, 0o711, 0o755, 0o775, 0o777]
    {
        let file = format!("file {mode:o}");
        f.ws.write(&file, "x")?;
        f.ws.chmod(&file, mode)?;
        if mode & 0o700 == 0o700 {
            let dir = format!("dir {mode:o}");
            f.ws.write(format!("{dir}/in"), "x")?;
            f.ws.chmod(&dir, mode)?;
        }
    }
    // A directory in which its owner may not write, with something in it.
    f.ws.write("closed/in", "x")?;
    f.ws.chmod("closed", 0o555)?;
    for (name, mode) in [("setuid", 0o4755), ("setgid", 0o2755), ("sticky", 0o1644)] {
        f.ws.write(name, "x")?;
        f.ws.chmod(name, mode)?;
    }
    f.ws.mkdir("sticky dir")?;
    f.ws.chmod("sticky dir", 0o1777)?;
    f.ws.mkdir("setgid dir")?;
    f.ws.chmod("setgid dir", 0o2775)?;
    f.ws.chmod("", 0o750)?;
    let taken = f.take("a")?;
    // Whoever runs this may not set all of them; then the filesystem has dropped them, and the tree says so.
    f.shows(&taken)
}

fn symlinks(f: &Fixture) -> Check {
    f.ws.write("file", "x")?;
    f.ws.write("dir/in", "x")?;
    let outside = f.outside().join("precious/file").display().to_string();
    let long = "t/".repeat(2000);
    for (i, target) in (0..).zip([
        b"file".as_slice(),
        b"dir",
        b"dir/in",
        b"dir/",
        b"../workspace/file",
        b"nowhere",
        b"/nonexistent/ah-conformance",
        b".",
        b"..",
        b"link 0",
        b"self",
        b"\xff\xfe not utf-8",
        b" ",
        b"a\nb",
        outside.as_bytes(),
        long.as_bytes(),
    ]) {
        f.ws.symlink(target, format!("link {i}"))?;
        f.ws.symlink(target, format!("dir/link {i}"))?;
    }
    f.ws.symlink("self", "self")?;
    f.shows(&f.take("a")?)
}

fn empty_directories(f: &Fixture) -> Check {
    f.ws.mkdir("empty")?;
    f.ws.mkdir("a/b/c/d")?;
    f.ws.mkdir("mixed/empty")?;
    f.ws.write("mixed/file", "")?;
    let taken = f.take("a")?;
    f.shows(&taken)?;
    f.ws.remove("a/b/c")?;
    f.ws.write("empty/not any more", "")?;
    f.ws.remove("mixed/file")?;
    f.shows(&f.take("b")?)?;
    f.shows(&taken)
}

fn times(f: &Fixture) -> Check {
    let times = [
        (0, 0),
        (0, 1),
        (1, 999_999_999),
        (-1, 0),
        (-1, 999_999_999),
        (-2_000_000_000, 1),
        (1_600_000_000, 123_456_789),
        (1_600_000_000, 123_456_700),
        (2_147_483_647, 5),
        (2_147_483_648, 5),
        (4_000_000_000, 7),
        (15_000_000_000, 9),
    ];
    for (i, (secs, nanos)) in (0..).zip(times) {
        let time = Timestamp { secs, nanos };
        f.ws.write(format!("file {i}"), "x")?;
        f.ws.mtime(format!("file {i}"), time)?;
        f.ws.symlink("x", format!("link {i}"))?;
        f.ws.mtime(format!("link {i}"), time)?;
        f.ws.write(format!("dir {i}/in"), "x")?;
        f.ws.mkdir(format!("dir {i}/empty"))?;
        f.ws.mtime(format!("dir {i}/empty"), time)?;
        f.ws.mtime(format!("dir {i}"), time)?;
    }
    f.ws.mtime("", Timestamp { secs: 1_500_000_000, nanos: 42 })?;
    let first = f.take("a")?;
    f.shows(&first)?;
    // Times alone, one a nanosecond away, of entries of each kind and of the root.
    for name in ["file 6", "link 6", "dir 6", ""] {
        f.ws.mtime(name, Timestamp { secs: 1_600_000_000, nanos: 123_456_788 })?;
    }
    f.shows(&f.take("b")?)?;
    f.shows(&first)
}

fn linked(f: &Fixture) -> Check<Taken> {
    f.ws.write("one", "linked")?;
    f.ws.mkdir("dir")?;
    f.ws.link("one", "dir/two")?;
    f.ws.link("one", "three")?;
    let taken = f.take("a")?;
    f.shows(&taken)?;
    Ok(taken)
}

fn hard_links_stay(f: &Fixture) -> Check {
    use std::os::unix::fs::MetadataExt;
    let view = f.mount(&linked(f)?, "v", &[])?;
    let inode = |name: &str| -> Check<u64> { Ok(view.path.join(name).metadata()?.ino()) };
    let one = inode("one")? == inode("dir/two")? && inode("one")? == inode("three")?;
    f.unmount(&view)?;
    ensure!(one, "hard links are three files now");
    Ok(())
}

fn special_files(f: &Fixture) -> Check {
    f.ws.sample()?;
    f.ws.fifo("fifo")?;
    f.ws.mkdir("sub")?;
    let _listener = std::os::unix::net::UnixListener::bind(f.ws.at("sub/socket"))?;
    let taken = f.take_with(&f.request("a"), &[OmitReason::SpecialFile])?;
    for name in ["fifo", "sub/socket"] {
        let omitted = taken.snapshot.omitted.iter().any(|o| o.path == path(name));
        ensure!(
            omitted != f.has(Capability::SpecialFiles),
            "{name} is {} `omitted`, in spite of what the capabilities say",
            if omitted { "in" } else { "not in" }
        );
    }
    f.shows(&taken)
}

fn unreadable(f: &Fixture) -> Check {
    f.ws.sample()?;
    f.ws.chmod("secret", 0)?;
    f.ws.chmod("private", 0)?;
    let taken = f.take_with(&f.request("a"), &[OmitReason::Unreadable])?;
    let mut omitted: Vec<_> = taken.snapshot.omitted.iter().map(|o| o.path.clone()).collect();
    omitted.sort();
    if omitted.is_empty() {
        // A filesystem need not read what it captures: it is all there, and no more readable than before.
        if f.has(Capability::ReadWithoutMount) {
            for name in ["secret", "private/key"] {
                refused(f.read(&taken.reference(), &path(name))?, &[ErrorKind::PermissionDenied], name)?;
            }
        }
        return f.views(&taken);
    }
    ensure!(omitted == [path("private"), path("secret")], "unreadable are private and secret, omitted are {omitted:?}");
    f.shows(&taken)
}

fn sparse(f: &Fixture) -> Check {
    use std::os::unix::fs::MetadataExt;
    let file = std::fs::File::create(f.ws.at("sparse"))?;
    file.set_len(8 << 20)?;
    // Some count a block for the file itself.
    const FEW: u64 = 100;
    if file.metadata()?.blocks() >= FEW {
        return Err(Trouble::Skip("this filesystem has no holes".to_owned()));
    }
    let taken = f.take("a")?;
    f.shows(&taken)?;
    let view = f.mount(&taken, "v", &[])?;
    let blocks = view.path.join("sparse").metadata()?.blocks();
    f.unmount(&view)?;
    ensure!(blocks < FEW, "8 MiB of hole take {blocks} blocks in the view");
    Ok(())
}

/// Larger than what is kept by the way, and, where holes cost nothing, than what 32 bits count: with something at both ends and past half of that.
fn large(f: &Fixture) -> Check {
    use std::os::unix::fs::FileExt;
    const MARK: &[u8] = b"here";
    // All of it is written by who does not keep holes.
    let size: u64 = if f.has(Capability::SparseFiles) { (4 << 30) + 1 } else { (100 << 20) + 1 };
    let marked = [0, size / 2 + 5, size - MARK.len() as u64];
    f.provider().look_away();
    f.ws.write("small", "x")?;
    let file = std::fs::File::create(f.ws.at("large"))?;
    if let Err(error) = file.set_len(size) {
        return Err(Trouble::Skip(format!("no file of {size} bytes can be here: {error}")));
    }
    for at in marked {
        file.write_all_at(MARK, at)?;
    }
    let no_room = |error: &Error| error.kind == ErrorKind::ResourceExhausted;
    let skip = |error: Error| Trouble::Skip(format!("{size} bytes have no room here: {}", describe(&error)));
    let snapshot = match f.provider().snapshot(&f.place(), &f.request("a"), &Context::quiet()) {
        Err(error) if no_room(&error) => return Err(skip(error)),
        taken => taken?,
    };
    ensure!(snapshot.omitted.is_empty(), "a file of {size} bytes is not captured: {:?}", snapshot.omitted);
    let view = match f.try_mount(&snapshot.reference, "v", &[]) {
        Err(error) if no_room(&error) => return Err(skip(error)),
        view => view?,
    };
    let seen = std::fs::File::open(view.path.join("large")).and_then(|shown| {
        let mut found = [[0; MARK.len()]; 3];
        for (found, at) in found.iter_mut().zip(marked) {
            shown.read_exact_at(found, at)?;
        }
        Ok((shown.metadata()?.len(), found))
    });
    f.unmount(&view)?;
    let (len, found) =
        seen.map_err(|e| Trouble::Failed(format!("a file of {size} bytes is not whole in the view: {e}")))?;
    ensure!(len == size, "a file of {size} bytes has {len} in the view");
    ensure!(
        found.iter().all(|found| found == MARK),
        "a file of {size} bytes has other contents in the view: {found:?}"
    );
    Ok(())
}

fn owners(f: &Fixture) -> Check {
    use std::os::unix::fs::{MetadataExt, lchown};
    const OWNER: (u32, u32) = (12_345, 23_456);
    f.ws.sample()?;
    let names = ["README.md", "src", "src/main.rs", "void", "dangling"];
    for name in names {
        if let Err(error) = lchown(f.ws.at(name), Some(OWNER.0), Some(OWNER.1)) {
            return Err(Trouble::Skip(format!("root gives no files away here: {error}")));
        }
    }
    let taken = f.take("a")?;
    let view = f.mount(&taken, "v", &[])?;
    let owner = |name: &str| -> std::io::Result<_> {
        let found = view.path.join(name).symlink_metadata()?;
        Ok((found.uid(), found.gid()))
    };
    let seen: std::io::Result<Vec<_>> = names.iter().map(|name| owner(name)).chain([owner("run.sh")]).collect();
    f.unmount(&view)?;
    let mut seen = seen?;
    let mine = f.ws.at("run.sh").metadata()?;
    ensure!(seen.pop() == Some((mine.uid(), mine.gid())), "run.sh belongs to somebody else in the view");
    for (name, found) in names.iter().zip(seen) {
        ensure!(found == OWNER, "{name} belongs to {found:?} in the view, and to {OWNER:?} in the workspace");
    }
    Ok(())
}

fn xattrs(f: &Fixture) -> Check {
    f.ws.write("file", "x")?;
    let flags = rustix::fs::XattrFlags::empty();
    if let Err(error) = rustix::fs::setxattr(f.ws.at("file"), c"user.test", b"value", flags) {
        return Err(Trouble::Skip(format!("no extended attributes here: {error}")));
    }
    let taken = f.take("a")?;
    let view = f.mount(&taken, "v", &[])?;
    let mut value = [0; 16];
    let read = rustix::fs::getxattr(view.path.join("file"), c"user.test", &mut value);
    f.unmount(&view)?;
    ensure!(read == Ok(5) && value.starts_with(b"value"), "the extended attribute is not there: {read:?}");
    Ok(())
}

fn other_filesystem(f: &Fixture) -> Check {
    f.ws.sample()?;
    f.ws.mkdir("src/mounted")?;
    let mount = crate::cases::failure::Tmpfs::mount(&f.ws.at("src/mounted"), "1m")?;
    f.ws.write("src/mounted/elsewhere", "x")?;
    let taken = f.take_with(&f.request("a"), &[OmitReason::OtherFilesystem])?;
    ensure!(
        taken.snapshot.omitted.iter().any(|o| o.path == path("src/mounted") && o.reason == OmitReason::OtherFilesystem),
        "the mount point is not listed as omitted: {:?}",
        taken.snapshot.omitted
    );
    let view = f.mount(&taken, "v", &[])?;
    let crossed = view.path.join("src/mounted/elsewhere").exists();
    f.unmount(&view)?;
    drop(mount);
    ensure!(!crossed, "a file of another filesystem was captured");
    Ok(())
}

/// Used by cases that look for one entry.
pub(super) fn kind_at(tree: &Tree, at: &RelPath) -> Option<EntryKind> {
    tree.0.get(at).map(|node| node.kind)
}
