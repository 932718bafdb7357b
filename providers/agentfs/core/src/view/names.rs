//! Names: looked up, made, removed.

use crate::error::{Error, Result};
use crate::lock;
use crate::lower::join;
use crate::platform;
use crate::rows::key;
use crate::rows::value::{CAME, Entry, GONE, Inode, Takes, WHITEOUT, hides_what_was_there};
use crate::state::{self, State};
use crate::types::{Attr, DirEntry, Ino, Kind, Owner, Time};
use crate::view::pinned::is_lost;
use crate::view::{Named, Node, View, check_name};

/// Most names of one file.
const LINKS: u32 = 65_000;

impl View {
    /// What a name in a directory leads to. Counts that it is known.
    pub fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Attr> {
        let named = self.resolve(parent, name)?.ok_or(Error::NotFound)?;
        let node = self.node_named(&named)?;
        self.know(named.ino, parent, named.path.as_deref());
        Ok(self.attr(&node))
    }

    /// Makes an empty regular file. Counts that it is known.
    pub fn create(&self, parent: Ino, name: &[u8], owner: Owner) -> Result<Attr> {
        self.make(parent, name, new(Kind::File, owner))
    }

    /// Makes a directory. Counts that it is known.
    pub fn mkdir(&self, parent: Ino, name: &[u8], owner: Owner) -> Result<Attr> {
        self.make(parent, name, Inode { nlink: 2, ..new(Kind::Directory, owner) })
    }

    /// Makes a pipe, a socket's name, a device node (`rdev` as `makedev` makes it) or a regular file. Counts that it is known.
    pub fn mknod(&self, parent: Ino, name: &[u8], kind: Kind, owner: Owner, rdev: u64) -> Result<Attr> {
        match kind {
            Kind::Directory | Kind::Symlink => Err(Error::Invalid("not made by mknod")),
            Kind::CharDevice | Kind::BlockDevice => self.make(parent, name, Inode { rdev, ..new(kind, owner) }),
            Kind::File | Kind::Fifo | Kind::Socket => self.make(parent, name, new(kind, owner)),
        }
    }

    /// Makes a symbolic link. Counts that it is known.
    pub fn symlink(&self, parent: Ino, name: &[u8], target: &[u8], owner: Owner) -> Result<Attr> {
        if target.is_empty() || target.contains(&0) {
            return Err(Error::Invalid("not a link's target"));
        }
        if target.len() > 4095 {
            return Err(Error::NameTooLong);
        }
        let inode = Inode { size: target.len() as u64, target: target.to_vec(), ..new(Kind::Symlink, owner) };
        self.make(parent, name, Inode { mode: 0o777, ..inode })
    }

    fn make(&self, parent: Ino, name: &[u8], inode: Inode) -> Result<Attr> {
        let pen = self.writable()?;
        check_name(name)?;
        let _ops = lock(&pen.ops);
        let mut directory = self.directory(parent)?;
        if self.resolve(parent, name)?.is_some() {
            return Err(Error::Exists);
        }
        directory.touch(inode.ctime, i32::from(inode.kind == Kind::Directory));
        let hides = self.hides(parent, name, None)?;
        let inode = Inode { parent, ..inode };
        let kind = inode.kind;
        let ino = self.change(|state, view| {
            let ino = state.new_ino();
            state.write(&key::inode(ino), inode.encode(), view)?;
            state.write(&key::entry(parent, name), Entry { ino, kind, hides }.encode(), view)?;
            self.put(state, view, &directory)?;
            Ok(ino)
        })?;
        self.know(ino, parent, None);
        Ok(inode.attr(ino))
    }

    /// A regular file without a name, which goes when it is forgotten unless `link` gives it one. Counts that it is known.
    pub fn tmpfile(&self, owner: Owner) -> Result<Attr> {
        let pen = self.writable()?;
        let _ops = lock(&pen.ops);
        let inode = Inode { nlink: 0, ..new(Kind::File, owner) };
        let ino = self.change(|state, view| {
            let ino = state.new_ino();
            state.write(&key::inode(ino), inode.encode(), view)?;
            state.layers.put(&key::of_line(b'o', view.line, Some(ino)), Vec::new());
            Ok(ino)
        })?;
        self.know(ino, 0, None);
        if let Some(known) = lock(&self.known).get_mut(&ino) {
            (known.orphan, known.linkable) = (true, true);
        }
        Ok(inode.attr(ino))
    }

    /// Gives a file one more name. Counts that it is known.
    pub fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        let pen = self.writable()?;
        let _ops = lock(&pen.ops);
        let mut node = self.node_to_change(ino, None)?;
        let linkable = lock(&self.known).get(&ino).is_some_and(|known| known.linkable);
        match node.inode {
            Inode { kind: Kind::Directory, .. } => return Err(Error::NotPermitted),
            Inode { nlink: 0, .. } if !linkable => return Err(Error::NotFound),
            Inode { nlink, .. } if nlink >= LINKS => return Err(Error::TooManyLinks),
            _ => {}
        }
        let mut directory = self.directory(parent)?;
        if self.resolve(parent, name)?.is_some() {
            return Err(Error::Exists);
        }
        let now = platform::now();
        let hides = self.hides(parent, name, None)?;
        directory.touch(now, 0);
        node.inode.nlink += 1;
        (node.inode.ctime, node.inode.parent) = (now, parent);
        self.change(|state, view| {
            let entry = Entry { ino, kind: node.inode.kind, hides };
            state.write(&key::entry(parent, name), entry.encode(), view)?;
            self.put(state, view, &node)?;
            self.put(state, view, &directory)?;
            state.layers.remove(&key::of_line(b'o', view.line, Some(ino)));
            Ok(())
        })?;
        self.know(ino, parent, None);
        if let Some(known) = lock(&self.known).get_mut(&ino) {
            (known.orphan, known.linkable) = (false, false);
        }
        Ok(self.attr(&node))
    }

    /// Removes a name of anything but a directory. What was its last name leaves a file that lives until it is forgotten.
    pub fn unlink(&self, parent: Ino, name: &[u8]) -> Result<()> {
        self.remove(parent, name, false)
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<()> {
        self.remove(parent, name, true)
    }

    fn remove(&self, parent: Ino, name: &[u8], directories: bool) -> Result<()> {
        let pen = self.writable()?;
        let _ops = lock(&pen.ops);
        let named = self.resolve(parent, name)?.ok_or(Error::NotFound)?;
        match (named.kind == Kind::Directory, directories) {
            (true, false) => return Err(Error::IsDirectory),
            (false, true) => return Err(Error::NotDirectory),
            (true, true) if !self.is_empty(&named)? => return Err(Error::NotEmpty),
            _ => {}
        }
        let mut node = self.node_named(&named)?;
        self.count_name(&mut node, parent, name)?;
        let mut container = self.directory(parent)?;
        let now = platform::now();
        container.touch(now, -i32::from(directories));
        let hidden = self.hidden(parent, name, &named)?;
        self.engine.change_removing(self.line, &self.chain, |state, view| {
            state.write(&key::entry(parent, name), hidden, view)?;
            self.put(state, view, &container)?;
            self.lose_name(state, view, node, now)
        })
    }

    /// Counts a name that is about to go and that somebody made below, by a link to a file that had been taken over: else that would go with it.
    pub(super) fn count_name(&self, node: &mut Node, parent: Ino, name: &[u8]) -> Result<()> {
        let may_be = node.has_row && node.inode.nlink == 1 && node.inode.origin.is_some();
        if !may_be || node.inode.kind == Kind::Directory || self.seen(&key::entry(parent, name))?.is_some() {
            return Ok(());
        }
        let above = node.inode.parent;
        let others = if above == 0 { Vec::new() } else { self.list(above).unwrap_or_default() };
        let is_other = |entry: &DirEntry| entry.ino == node.ino && (above, entry.name.as_slice()) != (parent, name);
        node.inode.nlink += u32::from(others.iter().any(is_other));
        Ok(())
    }

    /// One name of the inode is gone; the row of the name was changed before. Comes last in a change: what it notes of who is known is not undone with the rows.
    pub(super) fn lose_name(&self, state: &mut State, view: state::View<'_>, mut node: Node, now: Time) -> Result<()> {
        let left = if node.inode.kind == Kind::Directory { 0 } else { node.inode.nlink.saturating_sub(1) };
        (node.inode.nlink, node.inode.ctime) = (left, now);
        if left > 0 {
            self.put(state, view, &node)?;
            if !node.has_row {
                // Of what is being removed nothing is copied.
                state.layers.remove(&key::of_line(b'q', view.line, Some(node.ino)));
            }
            return Ok(());
        }
        if !node.has_row {
            // There is nothing of ours to remove; who still knows it reads what is below.
            if let Some(known) = lock(&self.known).get_mut(&node.ino) {
                known.unlinked = true;
            }
            return Ok(());
        }
        if !self.is_known(node.ino) {
            return state.purge(node.ino, view);
        }
        state.write(&key::inode(node.ino), node.inode.encode(), view)?;
        state.layers.put(&key::of_line(b'o', view.line, Some(node.ino)), Vec::new());
        match lock(&self.known).get_mut(&node.ino) {
            Some(known) => known.orphan = true,
            // Forgotten by the last one in this moment, when it still had a name.
            None => return state.purge(node.ino, view),
        }
        Ok(())
    }

    /// A directory in which names are about to change.
    pub(super) fn directory(&self, ino: Ino) -> Result<Node> {
        let node = self.node_to_change(ino, None)?;
        match node.inode {
            Inode { kind: Kind::Directory, nlink: 0, .. } => Err(Error::NotFound),
            Inode { kind: Kind::Directory, .. } => Ok(node),
            _ => Err(Error::NotDirectory),
        }
    }

    /// What the row of a name says when the name is gone.
    pub(super) fn hidden(&self, parent: Ino, name: &[u8], named: &Named) -> Result<Vec<u8>> {
        if self.hides(parent, name, Some(named))? {
            return Ok(vec![WHITEOUT]);
        }
        let Some(below) = self.below(parent)? else { return Ok(vec![GONE]) };
        let found = self.engine.lower.find(&join(&below, name));
        match found {
            Err(error) if !(self.keeps && is_lost(&error)) => Err(error),
            Ok(None) => Ok(vec![GONE]),
            _ if self.is_new(parent, &below, name)? => Ok(vec![WHITEOUT, CAME]),
            _ => Ok(vec![WHITEOUT]),
        }
    }

    /// Whether a name is, or was, there below: `named` is what it leads to here.
    pub(super) fn hides(&self, parent: Ino, name: &[u8], named: Option<&Named>) -> Result<bool> {
        match self.seen(&key::entry(parent, name))? {
            Some(row) if row.first() == Some(&WHITEOUT) => Ok(hides_what_was_there(&row)),
            Some(row) => Ok(Entry::decode(&row)?.is_some_and(|entry| entry.hides)),
            None => Ok(named.is_some_and(|named| named.path.is_some())),
        }
    }

    pub(super) fn is_empty(&self, directory: &Named) -> Result<bool> {
        Ok(self.names_in(directory.ino, directory.path.as_deref())?.is_empty())
    }
}

impl Node {
    /// A name in this directory changed; `children`: by how many its child directories did.
    pub(super) fn touch(&mut self, now: Time, children: i32) {
        (self.inode.mtime, self.inode.ctime) = (now, now);
        // One that says 1 does not count its children.
        if self.inode.nlink > 1 {
            self.inode.nlink = self.inode.nlink.saturating_add_signed(children).max(2);
        }
    }
}

impl State {
    /// Removes everything of an inode that nothing leads to.
    pub(crate) fn purge(&mut self, ino: Ino, view: state::View<'_>) -> Result<()> {
        for kind in *b"icxd" {
            let stems: Vec<_> = self.all_seen(&key::stem(kind, ino), view)?.into_iter().collect();
            for (stem, value) in stems {
                if value.first() != Some(&GONE) {
                    self.write(&stem, vec![GONE], view)?;
                }
            }
        }
        self.layers.remove(&key::of_line(b'o', view.line, Some(ino)));
        Ok(())
    }
}

fn new(kind: Kind, owner: Owner) -> Inode {
    let now = platform::now();
    Inode {
        kind,
        mode: owner.mode & 0o7777,
        uid: owner.uid,
        gid: owner.gid,
        nlink: 1,
        size: 0,
        rdev: 0,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        target: Vec::new(),
        lower_limit: 0,
        origin: None,
        parent: 0,
        takes: (kind == Kind::File).then(Takes::default),
    }
}
