//! Guarantee 4 under what can go wrong from outside: a full disk, a store that cannot be written, damage.

use std::path::{Path, PathBuf};

use ah_plugin_api::{
    Capability, Context, DestroyRequest, ErrorKind, ListRequest, Place, Provider, ReclaimRequest, RelPath,
};
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use crate::case::{Case, Check, Need, Trouble, describe, ensure, refused, same};
use crate::fixture::{Fixture, view_modes};
use crate::tree::{Tree, digest};

const NOTHING_HALF: &str = "An operation that fails leaves nothing behind that `reclaim` does not remove, and no snapshot that `list` shows is incomplete.";

pub(super) const CASES: &[Case] = &[
    Case {
        id: "failure.full-disk",
        clauses: &[NOTHING_HALF, "`PermissionDenied`, `ResourceExhausted`, `Cancelled`."],
        needs: &[Need::Root],
        run: full_disk,
    },
    Case { id: "failure.full-target", clauses: &[NOTHING_HALF], needs: &[Need::Root], run: full_target },
    Case {
        id: "failure.read-only-store",
        clauses: &[NOTHING_HALF, "`PermissionDenied`, `ResourceExhausted`, `Cancelled`."],
        needs: &[Need::Root, Need::InPlace],
        run: read_only_store,
    },
    Case {
        id: "failure.forbidden-store",
        clauses: &[NOTHING_HALF, "`PermissionDenied`, `ResourceExhausted`, `Cancelled`."],
        needs: &[Need::User, Need::InPlace],
        run: forbidden_store,
    },
    Case {
        id: "failure.damage",
        clauses: &["`DataLoss` for damaged data", "One damaged snapshot is left out and logged."],
        needs: &[Need::Lacks(Capability::FindsDamage)],
        run: damage,
    },
    Case {
        id: "failure.damage-found",
        clauses: &[
            "`DataLoss` for damaged data",
            "One damaged snapshot is left out and logged.",
            "damage of the store reads as `DataLoss`, never as other contents.",
        ],
        needs: &[Need::Has(Capability::FindsDamage)],
        run: damage,
    },
    Case {
        id: "failure.leftovers",
        clauses: &["Finishes or undoes what crashes left in the store, and puts it in order."],
        needs: &[],
        run: leftovers,
    },
];

/// A small filesystem, unmounted when dropped.
pub(super) struct Tmpfs(PathBuf);

impl Tmpfs {
    pub(super) fn mount(at: &Path, size: &str) -> Check<Self> {
        let options = format!("size={size},mode=0700");
        mount(
            Some("ah-conformance"),
            at,
            Some("tmpfs"),
            MsFlags::MS_NOSUID | MsFlags::MS_NODEV,
            Some(options.as_str()),
        )
        .map_err(|error| Trouble::Skip(format!("a tmpfs cannot be mounted here: {error}")))?;
        Ok(Self(at.to_owned()))
    }

    fn resize(&self, size: &str) -> Check {
        let options = format!("size={size}");
        let flags = MsFlags::MS_REMOUNT | MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        Ok(mount(None::<&str>, &self.0, None::<&str>, flags, Some(options.as_str())).map_err(std::io::Error::from)?)
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

/// A directory that nobody can write to, root neither, until dropped.
pub(super) struct ReadOnly(PathBuf);

impl ReadOnly {
    pub(super) fn bind(at: &Path) -> Check<Self> {
        let bind = mount(Some(at), at, None::<&str>, MsFlags::MS_BIND, None::<&str>);
        bind.map_err(|error| Trouble::Skip(format!("a bind mount cannot be made here: {error}")))?;
        let guard = Self(at.to_owned());
        let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        mount(None::<&str>, at, None::<&str>, flags, None::<&str>).map_err(std::io::Error::from)?;
        Ok(guard)
    }
}

impl Drop for ReadOnly {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

/// Bytes that do not compress.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..len).map(|_| next()).collect()
}

fn full_disk(f: &Fixture) -> Check {
    f.ws.sample()?;
    // The fixture's own store is left alone; this one is on a filesystem that ends soon.
    let at = f.beside("small-store");
    std::fs::create_dir(&at)?;
    let disk = Tmpfs::mount(&at, "2m")?;
    let store = ah_plugin_api::Dir::open(&at)?;
    let place = Place::new(&store).with_workspace(f.workspace()).with_target(f.folder());
    let cx = Context::quiet();
    let tree = Tree::walk(f.ws.root())?;
    let first = f.provider().snapshot(&place, &f.request("first"), &cx)?;
    let list = || -> Check<Vec<String>> {
        let list = f.provider().list(&place, &ListRequest::default(), &cx)?;
        Ok(list.into_iter().map(|snapshot| snapshot.id.to_string()).collect())
    };
    // In the middle of one large file, and between many small ones.
    f.ws.write("large", noise(1, 3 << 20))?;
    match f.provider().snapshot(&place, &f.request("large"), &cx) {
        // A filesystem that takes snapshots by itself needs no room in the store.
        Ok(large) => {
            let taken = crate::fixture::Taken { snapshot: large, tree: Tree::walk(f.ws.root())? };
            ensure!(list()? == ["first", "large"], "a snapshot was taken, but {:?} are listed", list()?);
            shows_in(f, &place, &taken)?;
            f.provider().destroy(&place, &DestroyRequest::Snapshot(taken.reference()), &cx)?;
            shows_in(f, &place, &crate::fixture::Taken { snapshot: first.clone(), tree })?;
            f.provider().destroy(&place, &DestroyRequest::Snapshot(first.reference), &cx)?;
            f.provider().reclaim(&place, &ReclaimRequest::default(), &cx)?;
            ensure!(list()?.is_empty(), "all was destroyed, but {:?} are listed", list()?);
            return Ok(());
        }
        refusal => refused(refusal, &[ErrorKind::ResourceExhausted], "a snapshot that does not fit on the disk")?,
    }
    f.ws.remove("large")?;
    for i in 0..300 {
        f.ws.write(format!("many/{i}"), noise(i + 2, 12_000))?;
    }
    let many = f.request("many");
    refused(f.provider().snapshot(&place, &many, &cx), &[ErrorKind::ResourceExhausted], "a snapshot of many files")?;
    ensure!(list()? == ["first"], "after snapshots that failed, {:?} are listed", list()?);
    // Reading goes on, on a full disk too.
    f.provider().stat(&place, &ah_plugin_api::SnapshotRef { snapshot: first.reference.clone() }, &cx)?;
    disk.resize("64m")?;
    f.provider().reclaim(&place, &Default::default(), &cx)?;
    let later = Tree::walk(f.ws.root())?;
    let second = f.provider().snapshot(&place, &many, &cx)?;
    ensure!(list()? == ["first", "many"], "with room again, {:?} are listed", list()?);
    for (snapshot, tree) in [(first, tree), (second, later)] {
        shows_in(f, &place, &crate::fixture::Taken { snapshot, tree })?;
    }
    Ok(())
}

/// As [`Fixture::shows`], in another place.
fn shows_in(f: &Fixture, place: &Place<'_>, taken: &crate::fixture::Taken) -> Check {
    let cx = Context::quiet();
    let name = ah_plugin_api::FileName::new("v")?;
    let request = ah_plugin_api::MountRequest { snapshot: taken.reference(), name, paths: Vec::new() };
    let view = f.provider().mount(place, &request, &cx)?;
    let shown = Tree::walk(&view.path)?;
    f.provider().unmount(place, &ah_plugin_api::UnmountRequest { view: view.reference.clone(), unused: false }, &cx)?;
    let differences = f.expected(taken).differences(&shown, crate::fixture::view_modes(&view));
    crate::case::same(&format!("the view of {}", taken.snapshot.id), &differences)
}

/// No room for a view or a clone: an error, and no half of one.
fn full_target(f: &Fixture) -> Check {
    f.ws.sample()?;
    f.ws.write("large", noise(9, 2 << 20))?;
    let taken = f.take("a")?;
    let at = f.beside("small-target");
    std::fs::create_dir(&at)?;
    let disk = Tmpfs::mount(&at, "1m")?;
    let target = ah_plugin_api::Dir::open(&at)?;
    let place = Place::new(f.store()).with_target(&target);
    let cx = Context::quiet();
    let empty = || -> Check<bool> { Ok(std::fs::read_dir(&at)?.next().is_none()) };
    let name = ah_plugin_api::FileName::new("v")?;
    let request = ah_plugin_api::MountRequest { snapshot: taken.reference(), name, paths: Vec::new() };
    match f.provider().mount(&place, &request, &cx) {
        // A filesystem that shows its snapshots by itself needs no room.
        Ok(view) => {
            f.provider().unmount(
                &place,
                &ah_plugin_api::UnmountRequest { view: view.reference, unused: false },
                &cx,
            )?;
        }
        refusal => refused(refusal, &[ErrorKind::ResourceExhausted], "a mount that does not fit")?,
    }
    f.provider().reclaim(&place, &Default::default(), &cx)?;
    ensure!(empty()?, "a mount that failed for want of room left something behind");
    if f.has(Capability::Clone) {
        let name = ah_plugin_api::FileName::new("c")?;
        let request = ah_plugin_api::CloneRequest { snapshot: taken.reference(), name };
        match f.provider().clone_snapshot(&place, &request, &cx) {
            Ok(clone) => {
                f.provider().destroy(&place, &ah_plugin_api::DestroyRequest::Clone(clone.reference), &cx)?;
            }
            refusal => refused(refusal, &[ErrorKind::ResourceExhausted], "a clone that does not fit")?,
        }
        f.provider().reclaim(&place, &Default::default(), &cx)?;
        ensure!(empty()?, "a clone that failed for want of room left something behind");
    }
    disk.resize("64m")?;
    let fits = crate::fixture::Taken { snapshot: taken.snapshot.clone(), tree: taken.tree.clone() };
    shows_in(f, &place, &fits)
}

/// What a store that cannot be written may answer: permission, as the system says it.
const DENIED: [ErrorKind; 2] = [ErrorKind::PermissionDenied, ErrorKind::FailedPrecondition];

fn read_only_store(f: &Fixture) -> Check {
    f.ws.sample()?;
    let taken = f.take("a")?;
    let guard = ReadOnly::bind(f.store().path())?;
    let store = ah_plugin_api::Dir::open(f.store().path())?;
    let place = Place::new(&store).with_workspace(f.workspace()).with_target(f.folder());
    let cx = Context::quiet();
    f.ws.write("README.md", "later")?;
    let request = f.request("b");
    refused(f.provider().snapshot(&place, &request, &cx), &DENIED, "a snapshot into a read-only store")?;
    drop(store);
    drop(guard);
    ensure!(f.ids()? == ["a"], "after a refused snapshot {:?} are listed", f.ids()?);
    f.shows(&taken)?;
    let later = f.take_with(&request, &[])?;
    f.shows(&later)
}

fn forbidden_store(f: &Fixture) -> Check {
    use std::os::unix::fs::PermissionsExt;
    f.ws.sample()?;
    let chmod = |mode| std::fs::set_permissions(f.store().path(), std::fs::Permissions::from_mode(mode));
    chmod(0o500)?;
    let request = f.request("a");
    let refusal = f.provider().snapshot(&f.place(), &request, &Context::quiet());
    chmod(0o700)?;
    refused(refusal, &DENIED, "a snapshot into a store without write permission")?;
    ensure!(f.ids()?.is_empty(), "after a refused snapshot {:?} are listed", f.ids()?);
    let taken = f.take_with(&request, &[])?;
    f.shows(&taken)
}

/// Each file of the store in turn is damaged. What is asked then is answered or refused; it does not panic, hang, or call
/// damage a defect (the witness sees to that). Who says that damage is found answers with what was captured, or not at all.
fn damage(f: &Fixture) -> Check {
    f.ws.sample()?;
    let a = f.take("a")?;
    f.ws.write("README.md", "later")?;
    let b = f.take("b")?;
    let files = store_files(f)?;
    let mut all = Vec::with_capacity(files.len());
    for file in &files {
        let at = f.store().path().join(file.as_path());
        all.push((std::fs::read(&at)?, at.metadata()?.permissions()));
    }
    // A provider may set aside what it finds damaged: all files are put back as they were.
    let put_back = || -> Check {
        let now = store_files(f)?;
        for file in now.iter().filter(|file| !files.contains(file)) {
            std::fs::remove_file(f.store().path().join(file.as_path()))?;
        }
        for (file, (bytes, mode)) in files.iter().zip(&all).filter(|(file, _)| !now.contains(file)) {
            let at = f.store().path().join(file.as_path());
            std::fs::write(&at, bytes)?;
            std::fs::set_permissions(&at, mode.clone())?;
        }
        Ok(())
    };
    'files: for file in sample(&files) {
        let at = f.store().path().join(file.as_path());
        let Ok(whole) = std::fs::read(&at) else { continue };
        let mode = at.metadata()?.permissions();
        let mut flipped = whole.clone();
        if let Some(byte) = flipped.get_mut(whole.len() / 2) {
            *byte ^= 0x55;
        }
        for bytes in [&flipped[..], &whole[..whole.len() / 2], b""] {
            match std::fs::remove_file(&at) {
                // In a filesystem's own snapshot: nobody can damage it from here.
                Err(error) if error.kind() == std::io::ErrorKind::ReadOnlyFilesystem => continue 'files,
                other => other?,
            }
            std::fs::write(&at, bytes)?;
            // A new instance, which has nothing of it in memory.
            let other = f.another()?;
            lists_the_other(&other, [&a, &b])?;
            look_around(&other, &a)?;
            look_around(&other, &b)?;
            put_back()?;
        }
        std::fs::remove_file(&at)?;
        std::fs::write(&at, &whole)?;
        std::fs::set_permissions(&at, mode)?;
    }
    // The damage is undone, and nothing that was done meanwhile was based on it. Who keeps files as they are, with their times,
    // has had those changed above.
    if !f.has(Capability::FindsDamage) {
        return Ok(());
    }
    let other = f.another()?;
    other.shows(&a)?;
    other.shows(&b)
}

/// Some providers keep a file for each captured one: of those, a sample does. What is known of snapshots is nearer to the top.
fn sample(files: &[RelPath]) -> impl Iterator<Item = &RelPath> {
    let mut files: Vec<_> = files.iter().collect();
    files.sort_by_key(|file| file.components().count());
    let below = files.split_off(files.len().min(8));
    let step = below.len().div_ceil(8).max(1);
    files.into_iter().chain(below.into_iter().step_by(step))
}

/// Every file of the store.
fn store_files(f: &Fixture) -> Check<Vec<RelPath>> {
    let tree = Tree::walk(f.store().path())?;
    let files = tree.0.into_iter().filter(|(_, node)| node.kind == ah_plugin_api::EntryKind::File);
    Ok(files.map(|(path, _)| path).collect())
}

/// Fails unless the error, if there is one, is what damage may be answered with.
fn allow(what: &str, error: Option<ah_plugin_api::Error>) -> Check {
    let Some(error) = error else { return Ok(()) };
    let fine = matches!(
        error.kind,
        ErrorKind::DataLoss | ErrorKind::NotFound | ErrorKind::FailedPrecondition | ErrorKind::Unsupported
    );
    ensure!(fine, "{what} in a damaged store answered {}", describe(&error));
    Ok(())
}

/// Where one of two snapshots cannot be had any more and the other can, this one is listed.
fn lists_the_other(f: &Fixture, both: [&crate::fixture::Taken; 2]) -> Check {
    let list = f.provider().list(&f.place_without_workspace(), &ListRequest::default(), &Context::quiet());
    let [a, b] = both.map(|taken| f.stat(&taken.reference()));
    if a.is_ok() != b.is_ok() {
        let whole = if a.is_ok() { both[0] } else { both[1] };
        let listed = list.as_ref().is_ok_and(|list| list.iter().any(|one| one.reference == whole.reference()));
        let answer = list.as_ref().map_or_else(describe, |list| format!("{} snapshots", list.len()));
        let id = &whole.snapshot.id;
        ensure!(
            listed,
            "one of two snapshots is damaged, and list does not show {id}, the other, but answers {answer}"
        );
    }
    allow("list", list.err())?;
    [a, b].into_iter().try_for_each(|answer| allow("stat", answer.err()))
}

fn look_around(f: &Fixture, taken: &crate::fixture::Taken) -> Check {
    match f.try_mount(&taken.reference(), "v", &[]) {
        Ok(view) => {
            let shown = Tree::walk(&view.path)?;
            f.unmount(&view)?;
            if f.has(Capability::FindsDamage) {
                same("a view from a damaged store", &f.expected(taken).differences(&shown, view_modes(&view)))?;
            }
        }
        Err(error) => allow("mount", Some(error))?,
    }
    if f.has(Capability::ReadWithoutMount) {
        allow("read_dir", f.read_dir(&taken.reference(), &RelPath::root()).err())?;
        let path = crate::fixture::path("src/main.rs");
        match f.read(&taken.reference(), &path)? {
            Ok((_, bytes)) if f.has(Capability::FindsDamage) => {
                let captured = taken.tree.0.get(&path).and_then(|node| node.digest);
                ensure!(captured == Some(digest(&bytes)), "a damaged store gave other contents of {path:?}");
            }
            answer => allow("read", answer.err())?,
        }
    }
    Ok(())
}

/// Whatever lies about in the store that nobody put on a list is not shown, and does not stop anyone.
fn leftovers(f: &Fixture) -> Check {
    f.ws.sample()?;
    let a = f.take("a")?;
    let before = Tree::walk(f.store().path())?;
    // Next to what the provider keeps, something that looks as if it had been cut off. Not further down, where it may keep
    // captured directories as they are.
    let near = |path: &RelPath| path.components().count() <= 2;
    let dirs = before.0.iter().filter(|(path, node)| node.kind == ah_plugin_api::EntryKind::Dir && near(path));
    for (path, _) in dirs {
        let dir = f.store().path().join(path.as_path());
        for name in ["tmp_half", ".tmp-half", "half.tmp", "half.lock"] {
            // Where the provider has made a directory read-only, there can be no leftovers of its own either.
            let _ = std::fs::write(dir.join(name), "half of somethi");
        }
    }
    let other = f.another()?;
    ensure!(other.ids()? == ["a"], "with leftovers in the store {:?} are listed", other.ids()?);
    other.reclaim()?;
    other.shows(&a)?;
    f.ws.write("README.md", "later")?;
    let b = other.take("b")?;
    other.shows(&b)?;
    f.shows(&a)
}
