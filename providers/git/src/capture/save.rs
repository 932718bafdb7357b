//! Saving what a scan found, for the next one.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;

use super::build::{Tree, each_sub};
use crate::index::{DIR_CAPTURED, Header, Index, ItemRecord, NewDir, Patch, Writer};
use crate::scan::{Item, Stat, State};

impl Tree {
    /// Saves what was found for the next scan, with as little writing as can be.
    ///
    /// # Errors
    /// Of the system. The index may be broken then, and counts as absent.
    pub(super) fn save_index(&mut self, store: BorrowedFd<'_>, header: &Header) -> Result<(), Errno> {
        if let Some(patch) = self.patch()
            && let Some(index) = &mut self.scan.index
            && patch.write(store, index, header).is_ok()
        {
            return Ok(());
        }
        self.writer().write(store, header)
    }

    /// The changes to the index that the scan rests on; none if it has to be written anew.
    fn patch(&self) -> Option<Patch> {
        let index = self.scan.index.as_ref().filter(|index| index.len() == self.scan.nodes.len())?;
        let mut patch = Patch::default();
        for (at, node) in self.scan.nodes.iter().enumerate() {
            let built = self.built[at]?;
            if node.old != Some(at) || patch.is_large(index) {
                return None;
            }
            if built.same {
                continue;
            }
            let dir = |stat| self.new_dir(at, index.dir(at).parent as usize, stat);
            let fits = match &node.state {
                State::Same => {
                    let items: Option<std::iter::Empty<ItemRecord<'_>>> = None;
                    patch.dir(index, at, &dir(index.dir(at).stat)?, items)
                }
                State::Listed(listed) => {
                    index.nested_of(at) == listed.nested
                        && index.children(at).eq(listed.subs.iter().map(|sub| sub.node))
                        && patch.dir(index, at, &dir(listed.stat)?, Some(listed.items.iter().map(Item::as_record)))
                }
                State::Gone | State::Omitted(..) => false,
            };
            if !fits {
                return None;
            }
        }
        Some(patch)
    }

    fn new_dir(&self, at: usize, parent: usize, stat: Stat) -> Option<NewDir<'_>> {
        let (node, built) = (&self.scan.nodes[at], self.built[at]?);
        Some(NewDir {
            path: &node.path,
            rule: node.rule.as_bytes(),
            parent,
            flags: node.flags | if built.captured { DIR_CAPTURED } else { 0 },
            entries: built.entries,
            stat,
            tree: built.tree,
            meta: built.meta,
            meta_is_tree: built.meta_is_tree,
        })
    }

    /// The index that says what was found.
    fn writer(&self) -> Writer {
        enum Step {
            Open(usize, usize),
            Close(usize),
        }
        let items = self.scan.index.as_ref().map_or(1024, Index::items_len);
        let mut writer = Writer::with_capacity(self.scan.nodes.len(), items);
        let mut stack = vec![Step::Open(0, 0)];
        while let Some(step) = stack.pop() {
            let (at, parent) = match step {
                Step::Close(number) => {
                    writer.close(number);
                    continue;
                }
                Step::Open(at, parent) => (at, parent),
            };
            let node = &self.scan.nodes[at];
            let old = self.scan.index.as_ref().zip(node.old);
            let (stat, nested) = match (&node.state, old) {
                (State::Listed(listed), _) => (listed.stat, listed.nested),
                (_, Some((index, old))) => (index.dir(old).stat, index.nested_of(old)),
                (_, None) => continue,
            };
            let Some(dir) = self.new_dir(at, parent, stat) else { continue };
            let number = writer.open(&dir);
            match (&node.state, old) {
                (State::Listed(listed), _) => listed.items.iter().for_each(|item| writer.item(&item.as_record())),
                (_, Some((index, old))) => writer.copy_items(index, old),
                (_, None) => {}
            }
            if let Some(stamp) = nested {
                writer.nested(number, &stamp);
            }
            stack.push(Step::Close(number));
            let first = stack.len();
            each_sub(&self.scan, at, |sub| stack.push(Step::Open(sub, number)));
            stack[first..].reverse();
        }
        writer
    }
}
