//! Trees and meta objects of a scan, from the leaves up; what did not change is taken over.

use ah_plugin_api::{Context, Omission, RelPath, Result};
use gix::ObjectId;
use gix::objs::Kind;

use crate::index::{
    DIR_CAPTURED, DIR_CLASS, DIR_KEPT, DIR_OMITS, DIR_THROUGH, ITEM_DIR, ITEM_IGNORED, ITEM_RECHECK, Index, What,
};
use crate::meta::{self, DirMeta, FileMeta};
use crate::scan::{Item, Listed, Scan, Sink, State, Sub, null};

/// A directory with its objects.
#[derive(Debug, Clone, Copy)]
pub(super) struct Built {
    pub(super) tree: ObjectId,
    pub(super) meta: ObjectId,
    pub(super) meta_is_tree: bool,
    /// Captured entries at any depth below it.
    pub(super) entries: u64,
    /// Whether it is captured: all are, but those that were only looked through and had nothing.
    pub(super) captured: bool,
    /// Whether it is in every respect as in the index.
    pub(super) same: bool,
}

/// A scan with its objects.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) scan: Scan,
    /// By node; none for what is not part of the tree.
    pub(super) built: Vec<Option<Built>>,
}

/// Writes the objects of all directories that changed.
pub(super) fn build(mut scan: Scan, sink: &dyn Sink, cx: &Context<'_>) -> Result<Tree> {
    settle(&mut scan);
    let reachable = reachable(&scan);
    let mut built: Vec<Option<Built>> = vec![None; scan.nodes.len()];
    // Every directory has a higher number than the one it is in.
    for at in (0..scan.nodes.len()).rev() {
        if at % 256 == 0 {
            cx.check_cancelled()?;
        }
        if reachable[at] {
            built[at] = Some(build_one(&scan, &built, at, sink)?);
        }
    }
    Ok(Tree { scan, built })
}

/// Puts subdirectories that turned out to be no part of the tree in their place: gone, or omitted.
fn settle(scan: &mut Scan) {
    let Scan { nodes, index, .. } = scan;
    let lost: Vec<usize> =
        (0..nodes.len()).filter(|&at| matches!(nodes[at].state, State::Gone | State::Omitted(..))).collect();
    if lost.is_empty() {
        return;
    }
    for at in 0..nodes.len() {
        // Only a parent that still lists a lost one has to be changed; an unchanged parent is made a listed one first.
        if let State::Same = nodes[at].state
            && let (Some(index), Some(old)) = (index.as_ref(), nodes[at].old)
            && index.children(old).any(|child| lost.binary_search(&child).is_ok())
        {
            nodes[at].state = State::Listed(Box::new(listed_of(index, old)));
        }
        let State::Listed(listed) = &mut nodes[at].state else { continue };
        if !listed.subs.iter().any(|sub| lost.binary_search(&sub.node).is_ok()) {
            continue;
        }
        let subs = std::mem::take(&mut listed.subs);
        let (gone, kept): (Vec<_>, Vec<_>) = subs.into_iter().partition(|sub| lost.binary_search(&sub.node).is_ok());
        let mut more = Vec::new();
        for sub in gone {
            if let State::Omitted(reason, detail, stat) = &nodes[sub.node].state {
                let mut item = Item::nothing(sub.name, *stat);
                item.omit(*reason, detail.as_str(), ITEM_DIR | ITEM_RECHECK);
                more.push(item);
            }
        }
        if let State::Listed(listed) = &mut nodes[at].state {
            listed.subs = kept;
            listed.items.extend(more);
            listed.items.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        }
    }
}

/// A directory of the index as if it had been listed.
fn listed_of(index: &Index, old: usize) -> Listed {
    Listed {
        stat: index.dir(old).stat,
        items: index.items(old).map(|record| Item::of_record(&record)).collect(),
        subs: index.children(old).map(|child| Sub { name: index.name(child).into(), node: child }).collect(),
        nested: index.nested_of(old),
        rules: None,
    }
}

fn reachable(scan: &Scan) -> Vec<bool> {
    let mut reachable = vec![false; scan.nodes.len()];
    reachable[0] = true;
    for at in 0..scan.nodes.len() {
        if reachable[at] {
            each_sub(scan, at, |node| reachable[node] = true);
        }
    }
    reachable
}

/// The nodes of a directory's subdirectories, by name.
pub(super) fn each_sub(scan: &Scan, at: usize, mut call: impl FnMut(usize)) {
    let node = &scan.nodes[at];
    match (&node.state, &scan.index, node.old) {
        (State::Listed(listed), _, _) => listed.subs.iter().for_each(|sub| call(sub.node)),
        (State::Same, Some(index), Some(old)) => index.children(old).for_each(call),
        _ => {}
    }
}

/// An entry of a tree that is being put together.
struct Entry<'a> {
    name: &'a [u8],
    mode: &'static str,
    id: ObjectId,
}

fn build_one(scan: &Scan, built: &[Option<Built>], at: usize, sink: &dyn Sink) -> Result<Built> {
    let node = &scan.nodes[at];
    let old = scan.index.as_ref().zip(node.old);
    let same = match (&node.state, old) {
        (State::Same, Some((index, old))) => index.children(old).all(|child| is_built_same(built, child)),
        (State::Listed(listed), Some((index, old))) => scan.certain && is_same(scan, at, listed, index, old, built),
        _ => false,
    };
    if let Some((index, old)) = old.filter(|_| same) {
        let dir = index.dir(old);
        return Ok(Built {
            tree: dir.tree,
            meta: dir.meta,
            meta_is_tree: dir.meta_is_tree(),
            entries: u64::from(dir.entries),
            captured: dir.flags & DIR_CAPTURED != 0,
            same: true,
        });
    }
    let made;
    let listed = match (&node.state, old) {
        (State::Listed(listed), _) => listed,
        (_, Some((index, old))) => {
            made = Box::new(listed_of(index, old));
            &made
        }
        // Not reachable: settled before.
        (_, None) => return Ok(nothing()),
    };
    let subs: Vec<(&[u8], Built)> = listed
        .subs
        .iter()
        .filter_map(|sub| Some((&*sub.name, built[sub.node]?)))
        .filter(|(_, built)| built.captured)
        .collect();
    let files = listed.items.iter().filter(|item| item.is_captured());
    let ignored = node.flags & (DIR_KEPT | DIR_THROUGH) != 0;
    let mut meta = DirMeta {
        mode: listed.stat.permissions(),
        mtime: listed.stat.mtime,
        ignored,
        files: Vec::with_capacity(listed.items.len()),
    };
    let mut entries = Vec::with_capacity(listed.items.len() + subs.len());
    for item in files {
        meta.files.push(FileMeta {
            mode: item.stat.permissions(),
            size: item.stat.size,
            mtime: item.stat.mtime,
            ignored: item.flags & ITEM_IGNORED != 0,
        });
        let mode = match item.what {
            What::Symlink => "120000",
            _ if item.stat.mode & 0o100 != 0 => "100755",
            _ => "100644",
        };
        entries.push(Entry { name: &item.name, mode, id: item.id });
    }
    if entries.is_empty() && subs.is_empty() && node.flags & DIR_THROUGH != 0 {
        // It stays in the index, so that what may come to be captured in it is seen.
        return Ok(nothing());
    }
    let count = entries.len() + subs.len();
    entries.extend(subs.iter().map(|(name, built)| Entry { name, mode: "40000", id: built.tree }));
    let former = old.map(|(index, old)| index.dir(old));
    let tree = write_tree(&mut entries, former.map(|dir| dir.tree), sink)?;
    let mut bytes = Vec::new();
    meta.encode(&mut bytes);
    let former_meta = former.map(|dir| dir.meta);
    let meta = if subs.is_empty() {
        sink.object(Kind::Blob, &bytes, former_meta.as_deref())?
    } else {
        let own = sink.object(Kind::Blob, &bytes, None)?;
        let names: Vec<Vec<u8>> = subs.iter().map(|(name, _)| meta::sub_name(name)).collect();
        let mut entries = vec![Entry { name: meta::OWN, mode: "100644", id: own }];
        entries.extend(names.iter().zip(&subs).map(|(name, (_, built))| {
            let mode = if built.meta_is_tree { "40000" } else { "100644" };
            Entry { name, mode, id: built.meta }
        }));
        write_tree(&mut entries, former_meta, sink)?
    };
    let below: u64 = subs.iter().map(|(_, built)| built.entries).sum();
    Ok(Built { tree, meta, meta_is_tree: !subs.is_empty(), entries: count as u64 + below, captured: true, same: false })
}

fn nothing() -> Built {
    Built { tree: null(), meta: null(), meta_is_tree: false, entries: 0, captured: false, same: false }
}

fn is_built_same(built: &[Option<Built>], node: usize) -> bool {
    built[node].is_some_and(|built| built.same)
}

/// Whether a directory is as in the index, with all that the index keeps of it.
fn is_same(scan: &Scan, at: usize, listed: &Listed, index: &Index, old: usize, built: &[Option<Built>]) -> bool {
    let (node, dir) = (&scan.nodes[at], index.dir(old));
    let subs = listed.subs.iter().map(|sub| scan.nodes[sub.node].old);
    dir.stat == listed.stat
        && (dir.flags & DIR_CLASS, index.rule(old)) == (node.flags, node.rule.as_bytes())
        && index.nested_of(old) == listed.nested
        && listed.subs.iter().all(|sub| is_built_same(built, sub.node))
        && index.children(old).map(Some).eq(subs)
        && index.items(old).eq(listed.items.iter().map(Item::as_record))
}

/// Writes a Git tree. Git orders names as if those of trees ended with a slash.
fn write_tree(entries: &mut [Entry<'_>], former: Option<ObjectId>, sink: &dyn Sink) -> Result<ObjectId> {
    let key = |entry: &Entry<'_>, at: usize| match entry.name.get(at) {
        Some(&byte) => byte,
        None if entry.mode == "40000" => b'/',
        None => 0,
    };
    entries.sort_unstable_by(|a, b| {
        let common = a.name.len().min(b.name.len());
        a.name[..common].cmp(&b.name[..common]).then_with(|| key(a, common).cmp(&key(b, common)))
    });
    let mut bytes = Vec::with_capacity(entries.iter().map(|entry| entry.name.len() + 28).sum());
    for entry in entries.iter() {
        bytes.extend_from_slice(entry.mode.as_bytes());
        bytes.push(b' ');
        bytes.extend_from_slice(entry.name);
        bytes.push(0);
        bytes.extend_from_slice(entry.id.as_slice());
    }
    sink.object(Kind::Tree, &bytes, former.as_deref())
}

/// Writes the tree of a snapshot's commit.
pub(super) fn write_top(entries: Vec<(&[u8], &'static str, ObjectId)>, sink: &dyn Sink) -> Result<ObjectId> {
    let mut entries: Vec<_> = entries.into_iter().map(|(name, mode, id)| Entry { name, mode, id }).collect();
    write_tree(&mut entries, None, sink)
}

impl Tree {
    pub(super) fn root(&self) -> Built {
        self.built[0].unwrap_or_else(nothing)
    }

    /// What is not captured, ordered by path.
    pub(super) fn omitted(&self) -> Vec<Omission> {
        let mut out = Vec::new();
        let mut stack = vec![0];
        while let Some(at) = stack.pop() {
            let node = &self.scan.nodes[at];
            let Some(built) = self.built[at] else { continue };
            if !built.captured && at != 0 {
                let detail = (!node.rule.is_empty()).then(|| node.rule.to_string());
                push(&mut out, &node.path, b"", ah_plugin_api::OmitReason::Ignored, detail);
                continue;
            }
            let mut item = |name: &[u8], what: What, detail: &[u8]| {
                // The workspace's own `.git` is nothing that anyone would miss.
                if let What::Omitted(reason) = what
                    && !(at == 0 && name == b".git")
                {
                    let detail = (!detail.is_empty()).then(|| String::from_utf8_lossy(detail).into_owned());
                    push(&mut out, &node.path, name, reason, detail);
                }
            };
            match (&node.state, &self.scan.index, node.old) {
                (State::Listed(listed), _, _) => {
                    listed.items.iter().for_each(|this| item(&this.name, this.what, this.detail.as_bytes()));
                }
                (State::Same, Some(index), Some(old)) if index.dir(old).flags & DIR_OMITS != 0 => {
                    index.items(old).for_each(|this| item(this.name, this.what, this.detail));
                }
                _ => {}
            }
            each_sub(&self.scan, at, |sub| stack.push(sub));
        }
        out.sort_by(|a, b| a.path.cmp(&b.path));
        out
    }
}

fn push(out: &mut Vec<Omission>, dir: &[u8], name: &[u8], reason: ah_plugin_api::OmitReason, detail: Option<String>) {
    let path = match (dir.is_empty(), name.is_empty()) {
        (true, _) => name.to_vec(),
        (_, true) => dir.to_vec(),
        _ => [dir, b"/", name].concat(),
    };
    // Names come from the kernel, which has no others.
    out.extend(RelPath::new(path).ok().map(|path| Omission { path, reason, detail }));
}
