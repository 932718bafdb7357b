//! Finding what changed in a workspace since the private index was written.
//!
//! [`scan`] lists the workspace; what the index knows and what is still the same is not read again. Two ways:
//!
//! - `refresh`, when the rules are those of the index: every known file is looked at (one `statx`), directories are listed only
//!   when their own times changed, and only what differs is classified anew.
//! - `walk`, from the root, otherwise: everything is listed and classified; contents whose attributes are as before are still
//!   not read.
//!
//! [`read_contents`] then reads what differs. Between the two, the number of entries is known and nothing large has been done.
//!
//! A file counts as unchanged if its type, permissions, size, inode, mtime and ctime are, and its ctime is older than the scan
//! that saw it by more than a second: a later change within the same tick of the clock would look the same, and a `write` that
//! was under way then too. The ctime decides because nobody can set it; `touch -d`, `mv`, `cp -p` all change it.
//!
//! Writers that go on without new times: a `write` that takes long, and stores into a shared mapping, which change the times only
//! at the first one into a page since that was last brought to disk (`dirty`). So a file that changed a short while ago is asked
//! when it is read whether somebody has it open for writing ([`crate::sys`]). If so, the next scan reads it again, whatever its
//! times say.
//!
//! All that holds within one run of the machine. After a power cut a file may have the times of a change whose contents never came to
//! the disk, and the index, which is written out by itself, may know that change. So what an index of another boot says of what
//! had changed shortly before its scan counts for nothing ([`written_out`]): contents, names, rules, the user's index.
//!
//! A limit: on tmpfs pages are never brought to disk. There every file that is read is asked; but a mapping that is made after that, of
//! a file whose page was written to before, changes no time, and what is stored through it stays unseen until the file changes otherwise.
//!
//! Not here: what is ignored (`ah-rules`), the index's form (`index`), trees and snapshots (`capture`).

mod content;
mod dirty;
mod list;
mod pool;
mod refresh;
mod stat;
mod walk;

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ah_plugin_api::{CapturePolicy, Context, Error, ErrorKind, OmitReason, Result, Timestamp};
use ah_rules::{Class, DirRules, Rules};
use gix::ObjectId;

use crate::index::{DIR_KEPT, DIR_THROUGH, DIR_TRACKED, Header, ITEM_WRITTEN, Index, ItemRecord, What};
use crate::store::{Store, boot_number};

pub(crate) use content::{Sink, read_contents};
pub(crate) use stat::{Filesystem, Stat, open_dir, open_file, stat_of};

/// A file, a symlink, or something omitted.
#[derive(Debug, Clone)]
pub(crate) struct Item {
    pub(crate) name: Box<[u8]>,
    pub(crate) detail: Box<str>,
    pub(crate) what: What,
    /// `ITEM_…` flags of the index.
    pub(crate) flags: u8,
    pub(crate) stat: Stat,
    /// The contents, unless `pending`.
    pub(crate) id: ObjectId,
    /// The contents are still to be read.
    pub(crate) pending: bool,
    /// What this path held before, if it held a file.
    pub(crate) former: Option<ObjectId>,
}

impl Item {
    /// A name of which nothing is known yet but its attributes.
    pub(crate) fn nothing(name: Box<[u8]>, stat: Stat) -> Self {
        Self { name, detail: "".into(), what: What::File, flags: 0, stat, id: null(), pending: false, former: None }
    }

    pub(crate) fn of_record(record: &ItemRecord<'_>) -> Self {
        Self {
            name: record.name.into(),
            detail: String::from_utf8_lossy(record.detail).into(),
            what: record.what,
            flags: record.flags,
            stat: record.stat,
            id: record.id,
            pending: false,
            former: None,
        }
    }

    pub(crate) fn as_record(&self) -> ItemRecord<'_> {
        ItemRecord {
            name: &self.name,
            detail: self.detail.as_bytes(),
            what: self.what,
            flags: self.flags,
            stat: self.stat,
            id: self.id,
        }
    }

    pub(crate) fn is_captured(&self) -> bool {
        !matches!(self.what, What::Omitted(_))
    }

    /// Makes it something that is not captured.
    pub(crate) fn omit(&mut self, reason: OmitReason, detail: impl Into<Box<str>>, flags: u8) {
        self.what = What::Omitted(reason);
        self.detail = detail.into();
        self.flags = flags;
        self.id = null();
        self.pending = false;
    }
}

/// A subdirectory that is looked into, by name and by its node.
#[derive(Debug, Clone)]
pub(crate) struct Sub {
    pub(crate) name: Box<[u8]>,
    pub(crate) node: usize,
}

/// A directory as it was listed now.
#[derive(Debug)]
pub(crate) struct Listed {
    pub(crate) stat: Stat,
    /// Ordered by name.
    pub(crate) items: Vec<Item>,
    /// Ordered by name.
    pub(crate) subs: Vec<Sub>,
    /// The say of its `.git`, if it has one and is not the root.
    pub(crate) nested: Option<[u8; 20]>,
    /// For looking again at what changes while it is read. None: nothing is left to read.
    pub(crate) rules: Option<Arc<DirRules>>,
}

/// What became of a directory.
#[derive(Debug)]
pub(crate) enum State {
    /// As in the index: names, attributes and contents of its items, and its own attributes.
    Same,
    /// As listed now.
    Listed(Box<Listed>),
    /// Gone since its name was seen.
    Gone,
    /// Cannot be captured.
    Omitted(OmitReason, String, Stat),
}

/// A directory of the workspace.
#[derive(Debug)]
pub(crate) struct Node {
    /// Path below the root.
    pub(crate) path: Box<[u8]>,
    /// Its number in the index.
    pub(crate) old: Option<usize>,
    /// What the rules said of it: some of `DIR_CLASS` of the index.
    pub(crate) flags: u32,
    /// The rule that ignores it.
    pub(crate) rule: Box<str>,
    pub(crate) state: State,
}

/// What a scan found.
#[derive(Debug)]
pub(crate) struct Scan {
    /// The index that it rests on.
    pub(crate) index: Option<Index>,
    /// Directories; number 0 is the root, and every one has a higher number than the one it is in. As long as the scan
    /// was a refresh, the first are those of the index by their numbers.
    pub(crate) nodes: Vec<Node>,
    pub(crate) started: Timestamp,
    /// See [`crate::index::Header::boot`].
    pub(crate) boot: u64,
    pub(crate) device: (u32, u32),
    pub(crate) rules: Rules,
    pub(crate) user_index: [i64; 6],
    /// What the index says of names, rules, and the user's index with a ctime from here on may have changed without looking so.
    pub(crate) racy_from: Timestamp,
    /// Files with a ctime from here on may change without a new one, by who has them open for writing.
    pub(crate) writers_from: Timestamp,
    /// Whether the store has every object that the index names.
    pub(crate) certain: bool,
}

impl Scan {
    /// When the user's index file was last written.
    pub(crate) fn user_index_written(&self) -> Timestamp {
        Timestamp { secs: self.user_index[2], nanos: u32::try_from(self.user_index[3]).unwrap_or_default() }
    }

    /// Whether the user's index was last changed long enough before the scan that the index rests on, so that an equal stamp tells all.
    pub(crate) fn user_index_settled(&self) -> bool {
        is_before(&self.user_index, self.racy_from)
    }
}

/// A `write` sets a file's times when it begins, and may go on for a while: a file that was changed this short before it was
/// read is read once more by the next scan. Nanoseconds; tests cannot wait that long.
const UNDER_WAY: u64 = if cfg!(test) { 1 } else { 1_000_000_000 };

/// Whether a user's index of that stamp was last changed before `time`.
fn is_before(stamp: &[i64; 6], time: Timestamp) -> bool {
    (stamp[4], stamp[5]) < (time.secs, i64::from(time.nanos))
}

/// Until when what an index saw was on disk when its machine stopped, at the latest: until its scan, if that was in this boot.
fn written_out(header: &Header, boot: u64) -> Timestamp {
    if header.boot == boot && boot != 0 {
        return header.started;
    }
    // Where nothing is ever written out by itself, nothing is certain.
    dirty::until_written().map_or(LONG_AGO, |time| stat::before(header.started, time))
}

/// Before all times that files have.
const LONG_AGO: Timestamp = Timestamp { secs: i64::MIN / 2, nanos: 0 };

/// The id that stands for none.
pub(crate) fn null() -> ObjectId {
    ObjectId::null(gix::hash::Kind::Sha1)
}

/// What a class is called in the index.
fn dir_flags(class: &Class) -> (u32, Box<str>) {
    match class {
        Class::Kept => (DIR_KEPT, "".into()),
        Class::Through { rule } => (DIR_THROUGH, rule.as_str().into()),
        Class::Tracked => (DIR_TRACKED, "".into()),
        Class::Captured | Class::Omitted { .. } => (0, "".into()),
    }
}

/// The class that a directory of the index has.
fn dir_class(index: &Index, at: usize) -> Class {
    let flags = index.dir(at).flags;
    if flags & DIR_KEPT != 0 {
        Class::Kept
    } else if flags & DIR_THROUGH != 0 {
        Class::Through { rule: String::from_utf8_lossy(index.rule(at)).into_owned() }
    } else if flags & DIR_TRACKED != 0 {
        Class::Tracked
    } else {
        Class::Captured
    }
}

/// What all parts of a scan need.
struct Env<'a> {
    root: BorrowedFd<'a>,
    index: Option<&'a Index>,
    rules: &'a Rules,
    /// Entries of the index with a ctime from here on may have changed without looking so.
    racy_from: Timestamp,
    /// Likewise for contents, see [`UNDER_WAY`].
    settled_until: Timestamp,
    device: (u32, u32),
    filesystem: Filesystem,
    /// Where to ask for objects that the index names, if it cannot be relied on for that.
    doubted: Option<&'a Store>,
    max_entries: u64,
    entries: AtomicU64,
    /// The rules inside directories of the index, as far as they were needed.
    known_rules: Mutex<HashMap<usize, Arc<DirRules>>>,
    cx: &'a Context<'a>,
}

impl Env<'_> {
    /// Whether what the index says of names or rules with these attributes still holds.
    fn unchanged(&self, before: &Stat, now: &Stat) -> bool {
        before == now && before.ctime < self.racy_from
    }

    /// Whether what the index says by way of a user's index of that stamp still holds.
    fn same_index(&self, before: &[i64; 6], now: &[i64; 6]) -> bool {
        before == now && is_before(now, self.racy_from)
    }

    /// Whether what the index says of contents with these attributes still holds.
    fn settled(&self, before: &ItemRecord<'_>, now: &Stat) -> bool {
        before.stat == *now && before.stat.ctime < self.settled_until && before.flags & ITEM_WRITTEN == 0
    }

    /// Whether the rules of a rule file that had been seen like that still hold.
    fn same_rules(&self, before: &ItemRecord<'_>, now: &Stat) -> bool {
        self.unchanged(&before.stat, now) && before.flags & ITEM_WRITTEN == 0
    }

    /// Takes note of captured entries, and refuses too many.
    fn count(&self, more: usize) -> Result<()> {
        let before = self.entries.fetch_add(more as u64, Ordering::Relaxed);
        let now = before + more as u64;
        if before / 4096 != now / 4096 {
            self.cx.progress("scanning", now, None);
        }
        if now > self.max_entries { Err(too_many(self.max_entries)) } else { Ok(()) }
    }

    /// The rules inside directory `at` of the index.
    fn rules_in(&self, index: &Index, at: usize) -> Result<Arc<DirRules>> {
        let known =
            |at: usize| self.known_rules.lock().unwrap_or_else(PoisonError::into_inner).get(&at).map(Arc::clone);
        // Up to the nearest one that is known, and down again: no recursion, for paths may be very deep.
        let mut way = vec![at];
        let mut rules = loop {
            let top = way[way.len() - 1];
            if let Some(rules) = known(top) {
                way.pop();
                break rules;
            }
            if top == 0 {
                way.pop();
                let rules = Arc::new(self.rules.root(self.root));
                self.remember(0, &rules);
                break rules;
            }
            way.push(index.dir(top).parent as usize);
        };
        while let Some(next) = way.pop() {
            let path = index.path(next);
            let dir = open_dir(self.root, path).map_err(|error| io_error("cannot open", path, error))?;
            let class = dir_class(index, next);
            rules = Arc::new(rules.enter(index.name(next), &class, std::os::fd::AsFd::as_fd(&dir), None));
            self.remember(next, &rules);
        }
        Ok(rules)
    }

    fn remember(&self, at: usize, rules: &Arc<DirRules>) {
        self.known_rules.lock().unwrap_or_else(PoisonError::into_inner).insert(at, Arc::clone(rules));
    }
}

/// The refusal of a workspace that is too large.
pub(crate) fn too_many(limit: u64) -> Error {
    Error::new(ErrorKind::FailedPrecondition, format!("the workspace has more than {limit} entries"))
        .with_hint("work in a directory inside it, exclude what is not needed, or raise the limit")
}

fn io_error(what: &str, path: &[u8], error: rustix::io::Errno) -> Error {
    let path = if path.is_empty() { "the workspace".into() } else { String::from_utf8_lossy(path) };
    Error::from_io(format!("{what} {path}"), &error.into())
}

/// Lists the workspace. `index` is what the last scan left; `certain` says that the store has every object it names.
///
/// # Errors
/// `FailedPrecondition` past the policy's `max_entries`, `Cancelled`, and what the system says of the root.
pub(crate) fn scan(
    root: BorrowedFd<'_>,
    policy: &CapturePolicy,
    index: Option<Index>,
    store: &Store,
    certain: bool,
    cx: &Context<'_>,
) -> Result<Scan> {
    let started = Timestamp::now();
    let seen = stat_of(root).map_err(|error| io_error("cannot look at", b"", error))?;
    if rustix::fs::fstat(root).is_ok_and(|stat| stat.st_nlink == 0) {
        // Its descriptor would show an empty directory.
        return Err(Error::new(ErrorKind::NotFound, "the workspace was deleted"));
    }
    let rules = Rules::open(root, policy);
    let user_index = rules.index_stamp();
    let filesystem = Filesystem::of(root);
    // What another filesystem's inodes said means nothing here.
    let index = index.filter(|index| index.header().device == seen.device);
    let boot = boot_number();
    // After the clock was set back, files may get times again that the last scan took for past.
    let seen_until = index.as_ref().map_or(started, |index| written_out(index.header(), boot).min(started));
    let racy_from = stat::before(seen_until, filesystem.tick);
    let nodes = {
        let env = Env {
            root,
            index: index.as_ref(),
            rules: &rules,
            racy_from,
            settled_until: stat::before(seen_until, UNDER_WAY.max(filesystem.tick)),
            device: seen.device,
            filesystem,
            doubted: (!certain).then_some(store),
            max_entries: policy.max_entries,
            entries: AtomicU64::new(0),
            known_rules: Mutex::default(),
            cx,
        };
        let refreshed = match &index {
            Some(index) if certain && index.header().rules == rules.fingerprint() => {
                refresh::refresh(&env, index, user_index)?
            }
            _ => None,
        };
        match refreshed {
            Some(nodes) => nodes,
            None => {
                env.entries.store(0, Ordering::Relaxed);
                walk::from_root(&env, &seen)?
            }
        }
    };
    let clean_until = dirty::until_clean().filter(|_| !filesystem.memory);
    let writers_from = clean_until.map_or(LONG_AGO, |time| stat::before(started, time));
    let (device, user_index) = (seen.device, user_index.fields);
    Ok(Scan { index, nodes, started, boot, device, rules, user_index, racy_from, writers_from, certain })
}
