//! Reading a snapshot: its head, its directories, one path in it.
//!
//! A directory is two objects, a Git tree and what runs beside it ([`crate::meta`]); a [`Reader`] puts the two together again.
//! Everything read is checked for being what a snapshot can hold: a damaged or forged store ends in `DataLoss`, not in a
//! name with a slash. Not here: writing it to disk (`checkout`), comparing (`diff`).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use ah_plugin_api::{
    ContentId, Context, Entry, EntryKind, Error, ErrorKind, Omission, Reference, RelPath, Result, SnapshotId,
};
use gix::ObjectId;
use gix::objs::{Kind, TreeRefIter, tree};

use crate::capture::Live;
use crate::manifest::{INDEX, MANIFEST, META, Manifest, OMITTED, PROGRESS, REFS, TREE, VERSION};
use crate::meta::{DirMeta, FileMeta, OWN};
use crate::store::{KEPT, Store};

/// A snapshot's head: everything but its contents.
#[derive(Debug, Clone)]
pub(crate) struct Head {
    /// What is known of it as a whole.
    pub(crate) manifest: Manifest,
    /// Its root.
    pub(crate) root: Directory,
    /// The user's index file.
    pub(crate) index: Option<ObjectId>,
    /// The list of objects kept of the user's repository.
    pub(crate) kept: Option<ObjectId>,
    /// Its refs.
    pub(crate) refs: Option<ObjectId>,
    /// The tree of what was in progress in it.
    pub(crate) progress: Option<ObjectId>,
    omitted: Option<ObjectId>,
}

/// A directory: its data tree and what represents it in the meta hierarchy. Equal for equal directories, times included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Directory {
    /// Names, kinds, contents.
    pub(crate) tree: ObjectId,
    /// Modes, times, sizes.
    pub(crate) meta: ObjectId,
}

/// A directory with its entries.
#[derive(Debug)]
pub(crate) struct Listing {
    /// The directory's own mode, time and ignored flag; its column of files is moved into `items`.
    pub(crate) own: DirMeta,
    /// Its entries in the order of Git trees.
    pub(crate) items: Vec<Item>,
}

impl Listing {
    /// What bears that name.
    fn get(&self, name: &[u8]) -> Option<What> {
        let find = |dir| self.items.binary_search_by(|item| item.key().cmp(key(name, dir))).ok();
        find(false).or_else(|| find(true)).map(|at| self.items[at].what)
    }
}

impl Item {
    fn key(&self) -> impl Iterator<Item = u8> {
        key(&self.name, matches!(self.what, What::Dir(_)))
    }
}

/// What Git trees are in the order of: a directory stands where its name and a slash would.
fn key(name: &[u8], dir: bool) -> impl Iterator<Item = u8> {
    name.iter().copied().chain(dir.then_some(b'/'))
}

/// An entry of a directory.
#[derive(Debug, Clone)]
pub(crate) struct Item {
    /// One component: not empty, no slash, no NUL, not `.` or `..`.
    pub(crate) name: Vec<u8>,
    /// The rest.
    pub(crate) what: What,
}

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// A directory.
    Dir(Directory),
    /// A regular file.
    File(ObjectId, FileMeta),
    /// A symbolic link.
    Symlink(ObjectId, FileMeta),
}

/// The snapshot that a reference names.
///
/// # Errors
/// `NotFound` if there is none, `DataLoss` if it is damaged.
pub(crate) fn open(store: &Store, reference: &Reference, cx: &Context<'_>) -> Result<Head> {
    let not_found = || Error::new(ErrorKind::NotFound, format!("there is no snapshot {:?}", reference.as_str()));
    let id = SnapshotId::new(reference.as_str()).map_err(|_| not_found())?;
    let commit = store.snapshot(&id)?.ok_or_else(not_found)?;
    head(store, &id, &commit, cx)
}

/// The head of the snapshot `id`, whose commit is known already.
///
/// # Errors
/// `DataLoss` if it is damaged, `Unsupported` if a newer version of this provider made it.
pub(crate) fn head(store: &Store, id: &SnapshotId, commit: &ObjectId, cx: &Context<'_>) -> Result<Head> {
    let damaged = |what: &str| damaged(format!("the snapshot {id} is damaged: {what}"));
    if let Some(known) = store.known.head(commit).filter(|known| known.manifest.id == *id) {
        return Ok(Head::clone(&known));
    }
    let mut data = Vec::new();
    expect(store, commit, Kind::Commit, &mut data, cx)?;
    let tree = gix::objs::CommitRefIter::from_bytes(&data, gix::hash::Kind::Sha1)
        .tree_id()
        .map_err(|e| damaged("its commit cannot be read").context(e.to_string()))?;
    expect(store, &tree, Kind::Tree, &mut data, cx)?;
    let (mut parts, mut found) = ([None; 8], 0);
    let names = [TREE, META, MANIFEST, OMITTED, INDEX, KEPT.as_bytes(), REFS, PROGRESS];
    for entry in TreeRefIter::from_bytes(&data, gix::hash::Kind::Sha1) {
        let entry = entry.map_err(|_| damaged("its top tree cannot be read"))?;
        if let Some(at) = names.iter().position(|name| entry.filename == *name) {
            parts[at] = Some(entry.oid.to_owned());
            found += 1;
        }
    }
    let [Some(tree), Some(meta), Some(manifest), omitted, index, kept, refs, progress] = parts else {
        return Err(damaged(&format!("only {found} parts of it are there")));
    };
    expect(store, &manifest, Kind::Blob, &mut data, cx)?;
    let version = serde_json::from_slice::<VersionOnly>(&data).map_err(|_| damaged("its manifest cannot be read"))?;
    if version.version > VERSION {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!("the snapshot {id} was made by a newer version of this provider"),
        ));
    }
    let manifest: Manifest = serde_json::from_slice(&data).map_err(|_| damaged("its manifest cannot be read"))?;
    if manifest.id != *id {
        return Err(damaged("its manifest is another snapshot's"));
    }
    let head = Head { manifest, root: Directory { tree, meta }, index, kept, refs, progress, omitted };
    store.known.keep_head(commit, &head);
    Ok(head)
}

#[derive(serde::Deserialize)]
struct VersionOnly {
    version: u32,
}

impl Head {
    /// What was omitted.
    pub(crate) fn omitted(&self, store: &Store, cx: &Context<'_>) -> Result<Vec<Omission>> {
        let Some(id) = &self.omitted else { return Ok(Vec::new()) };
        let mut data = Vec::new();
        expect(store, id, Kind::Blob, &mut data, cx)?;
        let lines = data.split(|&b| b == b'\n').filter(|line| !line.is_empty());
        lines
            .map(|line| serde_json::from_slice(line).map_err(|_| damaged("a list of omitted files cannot be read")))
            .collect()
    }

    /// What identifies the whole tree, times included.
    pub(crate) fn content(&self) -> ContentId {
        ContentId([self.root.tree.as_slice(), self.root.meta.as_slice()].concat())
    }
}

/// Heads and directories that paths led through: who reads a thousand files one by one passes the same few each time.
///
/// All are named by what they hold, so what is remembered is never out of date.
#[derive(Debug, Default)]
pub(crate) struct Known(Mutex<Remembered>);

#[derive(Debug, Default)]
struct Remembered {
    /// By their commits.
    heads: HashMap<ObjectId, Arc<Head>>,
    directories: HashMap<Directory, Arc<Listing>>,
    /// Entries of all these directories.
    entries: usize,
}

impl Known {
    /// The most heads, and the most entries, that are remembered; then all is forgotten, and begins anew. Some 30 MB.
    const HEADS: usize = 64;
    const ENTRIES: usize = 250_000;

    fn with<T>(&self, work: impl FnOnce(&mut Remembered) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn head(&self, commit: &ObjectId) -> Option<Arc<Head>> {
        self.with(|known| known.heads.get(commit).cloned())
    }

    fn keep_head(&self, commit: &ObjectId, head: &Head) {
        self.with(|known| {
            if known.heads.len() >= Self::HEADS {
                known.heads.clear();
            }
            known.heads.insert(*commit, Arc::new(head.clone()));
        });
    }

    fn directory(&self, directory: &Directory) -> Option<Arc<Listing>> {
        self.with(|known| known.directories.get(directory).cloned())
    }

    fn keep_directory(&self, directory: &Directory, listing: &Arc<Listing>) {
        self.with(|known| {
            if known.entries + listing.items.len() > Self::ENTRIES {
                known.directories.clear();
                known.entries = 0;
            }
            if known.directories.insert(*directory, Arc::clone(listing)).is_none() {
                known.entries += listing.items.len();
            }
        });
    }
}

/// What represents each subdirectory in the meta hierarchy, sorted by name.
type Subdirectories = Vec<(Vec<u8>, ObjectId)>;

/// Reads directories, of a snapshot or of a workspace as it is now. Keeps its buffers; one a thread.
pub(crate) struct Reader<'a> {
    store: &'a Store,
    live: Option<&'a Live>,
    cx: &'a Context<'a>,
    data: Vec<u8>,
    beside: Vec<u8>,
}

impl<'a> Reader<'a> {
    /// A reader of the store's snapshots.
    pub(crate) fn new(store: &'a Store, cx: &'a Context<'a>) -> Self {
        Self { store, live: None, cx, data: Vec::new(), beside: Vec::new() }
    }

    /// A reader that also knows the objects of `live`.
    pub(crate) fn with_live(store: &'a Store, live: &'a Live, cx: &'a Context<'a>) -> Self {
        Self { live: Some(live), ..Self::new(store, cx) }
    }

    fn load(&self, id: &ObjectId, out: &mut Vec<u8>) -> Result<Kind> {
        if let Some((kind, data)) = self.live.and_then(|live| live.get(id)) {
            out.clear();
            out.extend_from_slice(&data);
            return Ok(kind);
        }
        self.store.read(id, out, self.cx)
    }

    /// A directory's own mode, time and flag, without its entries.
    pub(crate) fn own(&mut self, directory: &Directory) -> Result<DirMeta> {
        Ok(self.meta(&directory.meta)?.0)
    }

    /// The decoded meta blob, and the subdirectories.
    fn meta(&mut self, id: &ObjectId) -> Result<(DirMeta, Subdirectories)> {
        let mut beside = std::mem::take(&mut self.beside);
        let mut kind = self.load(id, &mut beside)?;
        let mut subs = Vec::new();
        if kind == Kind::Tree {
            let mut own = None;
            for entry in TreeRefIter::from_bytes(&beside, gix::hash::Kind::Sha1) {
                let entry = entry.map_err(|_| damaged("directory metadata cannot be read"))?;
                match entry.filename.split_first() {
                    Some((b'+', name)) => subs.push((name.to_vec(), entry.oid.to_owned())),
                    _ if entry.filename == OWN => own = Some(entry.oid.to_owned()),
                    _ => {}
                }
            }
            subs.sort_unstable();
            let own = own.ok_or_else(|| damaged("directory metadata is incomplete"))?;
            kind = self.load(&own, &mut beside)?;
        }
        if kind != Kind::Blob {
            return Err(damaged("directory metadata is of another kind"));
        }
        let meta = DirMeta::decode(&beside).map_err(|e| damaged(e.to_string()))?;
        self.beside = beside;
        Ok((meta, subs))
    }

    /// A directory with its entries.
    pub(crate) fn list(&mut self, directory: &Directory) -> Result<Listing> {
        let (mut own, subs) = self.meta(&directory.meta)?;
        let mut data = std::mem::take(&mut self.data);
        if self.load(&directory.tree, &mut data)? != Kind::Tree {
            return Err(damaged("a directory is of another kind"));
        }
        let mut files = std::mem::take(&mut own.files).into_iter();
        let mut items = Vec::with_capacity(files.len() + subs.len());
        for entry in TreeRefIter::from_bytes(&data, gix::hash::Kind::Sha1) {
            let entry = entry.map_err(|_| damaged("a directory cannot be read"))?;
            let name = entry.filename.to_vec();
            if name.is_empty() || name.contains(&b'/') || name.contains(&0) || name == b"." || name == b".." {
                return Err(damaged("a directory holds an impossible name"));
            }
            let id = entry.oid.to_owned();
            let mut file = || files.next().ok_or_else(|| damaged("a directory and its metadata do not match"));
            let what = match entry.mode.kind() {
                tree::EntryKind::Tree => {
                    let at = subs.binary_search_by(|(sub, _)| sub.as_slice().cmp(&name));
                    let at = at.map_err(|_| damaged("a directory and its metadata do not match"))?;
                    What::Dir(Directory { tree: id, meta: subs[at].1 })
                }
                tree::EntryKind::Blob | tree::EntryKind::BlobExecutable => What::File(id, file()?),
                tree::EntryKind::Link => What::Symlink(id, file()?),
                tree::EntryKind::Commit => return Err(damaged("a directory holds a commit")),
            };
            let item = Item { name, what };
            if items.last().is_some_and(|last: &Item| last.key().ge(item.key())) {
                return Err(damaged("a directory is out of order"));
            }
            items.push(item);
        }
        if files.next().is_some() {
            return Err(damaged("a directory and its metadata do not match"));
        }
        self.data = data;
        Ok(Listing { own, items })
    }

    /// What is at a path below a directory; none if nothing is.
    pub(crate) fn find(&mut self, root: &Directory, path: &RelPath) -> Result<Option<What>> {
        let mut at = What::Dir(*root);
        for name in path.components() {
            let What::Dir(directory) = at else { return Ok(None) };
            let Some(what) = self.known(&directory)?.get(name) else { return Ok(None) };
            at = what;
        }
        Ok(Some(at))
    }

    /// As [`Reader::list`], for directories that are soon asked for again.
    pub(crate) fn known(&mut self, directory: &Directory) -> Result<Arc<Listing>> {
        if let Some(known) = self.store.known.directory(directory) {
            return Ok(known);
        }
        let listing = Arc::new(self.list(directory)?);
        // What only `live` has is not there for others.
        if self.live.is_none() {
            self.store.known.keep_directory(directory, &listing);
        }
        Ok(listing)
    }

    /// The contract's entry for something of that name.
    pub(crate) fn entry(&mut self, name: &[u8], what: &What) -> Result<Entry> {
        Ok(match what {
            What::Dir(directory) => dir_entry(name, &self.own(directory)?),
            What::File(id, meta) => leaf(name, EntryKind::File, id, meta),
            What::Symlink(id, meta) => leaf(name, EntryKind::Symlink, id, meta),
        })
    }
}

/// The contract's entry for a directory of that name.
pub(crate) fn dir_entry(name: &[u8], own: &DirMeta) -> Entry {
    Entry {
        name: name.to_vec(),
        kind: EntryKind::Dir,
        mode: own.mode,
        size: 0,
        mtime: own.mtime,
        content: None,
        ignored: own.ignored,
    }
}

fn leaf(name: &[u8], kind: EntryKind, id: &ObjectId, meta: &FileMeta) -> Entry {
    Entry {
        name: name.to_vec(),
        kind,
        mode: meta.mode,
        size: meta.size,
        mtime: meta.mtime,
        content: Some(ContentId(id.as_slice().to_vec())),
        ignored: meta.ignored,
    }
}

/// Reads an object that must be of that kind.
pub(crate) fn expect(store: &Store, id: &ObjectId, kind: Kind, out: &mut Vec<u8>, cx: &Context<'_>) -> Result<()> {
    let found = store.read(id, out, cx)?;
    if found == kind { Ok(()) } else { Err(damaged(format!("the object {id} is a {found}, not a {kind}"))) }
}

/// Stored data that is not what it must be.
pub(crate) fn damaged(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::DataLoss, what)
}
