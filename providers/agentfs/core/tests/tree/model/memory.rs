//! The tree in memory that the one on disk is compared with.

use std::collections::BTreeMap;

use ah_agentfs::{Kind, ROOT, Rename, View};

use crate::ME;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Thing {
    pub(super) kind: Kind,
    pub(super) mode: u32,
    pub(super) bytes: Vec<u8>,
    pub(super) xattr: Option<u8>,
}

/// Names are paths without a leading slash; the root is not among them.
#[derive(Debug, Clone, Default)]
pub(super) struct Tree {
    pub(super) names: BTreeMap<String, u64>,
    pub(super) things: BTreeMap<u64, Thing>,
    pub(super) next: u64,
}

impl Tree {
    pub(super) fn read(view: &View) -> Self {
        let mut tree = Self { next: 1 << 60, ..Self::default() };
        let mut directories = vec![(ROOT, String::new())];
        let mut seen = Vec::new();
        while let Some((directory, path)) = directories.pop() {
            for entry in view.list(directory).unwrap() {
                let attr = view.lookup(directory, &entry.name).unwrap();
                let name = std::str::from_utf8(&entry.name).unwrap();
                let path = if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") };
                let bytes = match attr.kind {
                    Kind::File => view.read(attr.ino, 0, 1 << 24).unwrap(),
                    Kind::Symlink => view.readlink(attr.ino).unwrap(),
                    _ => Vec::new(),
                };
                assert!(attr.kind == Kind::Directory || attr.size == bytes.len() as u64);
                assert_eq!(entry.kind, attr.kind);
                let xattr = view.getxattr(attr.ino, b"user.x").ok().map(|value| value[0]);
                if attr.kind == Kind::Directory {
                    directories.push((attr.ino, path.clone()));
                }
                tree.things.insert(attr.ino, Thing { kind: attr.kind, mode: attr.mode, bytes, xattr });
                tree.names.insert(path, attr.ino);
                seen.push(attr.ino);
            }
        }
        for ino in seen {
            view.forget(ino, 1);
        }
        tree
    }

    /// The same for two trees that look the same: each name with the first name of its inode.
    pub(super) fn shape(&self) -> Vec<(&str, &str, &Thing)> {
        let mut first: BTreeMap<u64, &str> = BTreeMap::new();
        let names = self.names.iter();
        names.map(|(name, id)| (name.as_str(), *first.entry(*id).or_insert(name), &self.things[id])).collect()
    }

    pub(super) fn pick(&self, at: usize) -> Option<String> {
        (!self.names.is_empty()).then(|| self.names.keys().nth(at % self.names.len()).unwrap().clone())
    }

    /// A name in some directory.
    pub(super) fn place(&self, at: usize, name: u8) -> String {
        let mut directories: Vec<&str> = vec![""];
        directories.extend(self.names.iter().filter(|(_, id)| self.is_directory(**id)).map(|(path, _)| path.as_str()));
        let directory = directories[at % directories.len()];
        let name = char::from(b'a' + name);
        if directory.is_empty() { name.to_string() } else { format!("{directory}/{name}") }
    }

    pub(super) fn is_directory(&self, id: u64) -> bool {
        self.things[&id].kind == Kind::Directory
    }

    pub(super) fn has_children(&self, path: &str) -> bool {
        let inside = format!("{path}/");
        self.names.range(inside.clone()..).next().is_some_and(|(name, _)| name.starts_with(&inside))
    }

    pub(super) fn make(&mut self, path: String, kind: Kind, bytes: &[u8]) -> bool {
        if self.names.contains_key(&path) {
            return false;
        }
        let mode = if kind == Kind::Symlink { 0o777 } else { ME.mode };
        self.things.insert(self.next, Thing { kind, mode, bytes: bytes.to_vec(), xattr: None });
        self.names.insert(path, self.next);
        self.next += 1;
        true
    }

    pub(super) fn take(&mut self, path: &str) -> Vec<(String, u64)> {
        let inside = format!("{path}/");
        let moved: Vec<_> = self
            .names
            .iter()
            .filter(|(name, _)| *name == path || name.starts_with(&inside))
            .map(|(n, i)| (n.clone(), *i))
            .collect();
        self.names.retain(|name, _| name != path && !name.starts_with(&inside));
        moved.into_iter().map(|(name, id)| (name[path.len()..].to_owned(), id)).collect()
    }

    pub(super) fn put(&mut self, path: &str, moved: Vec<(String, u64)>) {
        self.names.extend(moved.into_iter().map(|(rest, id)| (format!("{path}{rest}"), id)));
    }

    pub(super) fn rename(&mut self, from: &str, to: &str, how: Rename) -> bool {
        let (source, target) = (self.names[from], self.names.get(to).copied());
        if to.starts_with(&format!("{from}/")) || how == Rename::NoReplace && target.is_some() {
            return false;
        }
        let Some(target) = target else {
            let moved = self.take(from);
            if how != Rename::Exchange {
                self.put(to, moved);
                return true;
            }
            self.put(from, moved);
            return false;
        };
        if how == Rename::Exchange {
            if from.starts_with(&format!("{to}/")) {
                return false;
            }
            if source != target {
                let (one, other) = (self.take(from), self.take(to));
                self.put(to, one);
                self.put(from, other);
            }
            return true;
        }
        if source == target {
            return true;
        }
        if self.is_directory(source) != self.is_directory(target) || self.has_children(to) {
            return false;
        }
        let moved = self.take(from);
        self.put(to, moved);
        true
    }
}
