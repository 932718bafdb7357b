//! Attributes, extended ones, and what the filesystem as a whole has left.

use std::collections::BTreeSet;
use std::fs::File;

use crate::error::{Error, Result};
use crate::lock;
use crate::lower::{self, XATTR, XATTR_NAMES, xattrs};
use crate::platform;
use crate::rows::chunk::BLOCK;
use crate::rows::key;
use crate::rows::value::{GONE, HERE, Origin};
use crate::types::{Attr, Ino, Kind, SetAttr, SetTime, StatFs};
use crate::view::pinned::is_lost;
use crate::view::{Node, View};

/// Whether an extended attribute may, must or must not be there before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetXattr {
    /// It is made or replaced.
    Any,
    /// It must be new.
    Create,
    /// It must be there.
    Replace,
}

// That all of the file below were copied is noted under the empty name.
pub(super) use crate::lower::Xattr;

impl View {
    /// An inode's attributes.
    pub fn getattr(&self, ino: Ino) -> Result<Attr> {
        Ok(self.attr(&self.node(ino)?))
    }

    /// Changes attributes. Cutting a file gives back what was behind the cut.
    pub fn setattr(&self, ino: Ino, set: SetAttr) -> Result<Attr> {
        let pen = self.writable()?;
        if let Some(size) = set.size {
            self.resize(ino, size)?;
        }
        let _ops = lock(&pen.ops);
        let mut node = self.node_to_change(ino, None)?;
        let rest = SetAttr { size: None, ..set };
        if rest == SetAttr::default() {
            return Ok(self.attr(&node));
        }
        let now = platform::now();
        let time = |time| match time {
            SetTime::Now => now,
            SetTime::At(time) => time,
        };
        let inode = &mut node.inode;
        inode.mode = set.mode.map_or(inode.mode, |mode| mode & 0o7777);
        inode.uid = set.uid.unwrap_or(inode.uid);
        inode.gid = set.gid.unwrap_or(inode.gid);
        inode.atime = set.atime.map_or(inode.atime, time);
        inode.mtime = set.mtime.map_or(inode.mtime, time);
        inode.ctime = now;
        self.change(|state, view| self.put(state, view, &node))?;
        Ok(self.attr(&node))
    }

    /// Where a symbolic link points.
    pub fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        let node = self.node(ino)?;
        if node.inode.kind != Kind::Symlink {
            return Err(Error::Invalid("not a symbolic link"));
        }
        Ok(node.inode.target)
    }

    /// What the disk under the store, or the store's limit, has left.
    pub fn statfs(&self) -> Result<StatFs> {
        let stat = rustix::fs::statvfs(&self.engine.directory).map_err(Error::io("looking at the disk"))?;
        let reserved = stat.f_bfree.saturating_sub(stat.f_bavail);
        // Without what is kept for root alone, so that `df` shows of a mount how full it shows the disk to be.
        let blocks = stat.f_blocks.saturating_sub(reserved);
        let (mut total, mut free) = (blocks.saturating_mul(stat.f_frsize), self.engine.disk_free()?);
        if let Some(limit) = self.engine.options.limit {
            let used = crate::read_lock(&self.engine.state).used_blocks() * BLOCK;
            (total, free) = (limit.min(total), free.min(limit.saturating_sub(used)));
        }
        Ok(StatFs { total, free, free_inodes: stat.f_favail })
    }

    /// The value of an extended attribute.
    pub fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        check_xattr(name)?;
        let node = self.node(ino)?;
        if let Some(row) = self.seen(&key::xattr(ino, name))? {
            return match row.split_first() {
                Some((&HERE, value)) => Ok(value.to_vec()),
                _ => Err(Error::NoAttribute),
            };
        }
        let Some(file) = self.with_xattrs(&node)? else { return Err(Error::NoAttribute) };
        lower::xattr(&file, name).map_err(|_| Error::NoAttribute)
    }

    /// The names of an inode's extended attributes.
    pub fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        let node = self.node(ino)?;
        let mut names = BTreeSet::new();
        if let Some(file) = self.with_xattrs(&node)? {
            names.extend(lower::xattr_names(&file).unwrap_or_default());
        }
        let rows = crate::read_lock(&self.engine.state).all_seen(&key::stem(b'x', ino), self.view())?;
        for (stem, row) in rows {
            let name = key::name(&stem);
            if name.is_empty() {
                continue;
            }
            if row.first() == Some(&HERE) {
                names.insert(name.to_vec());
            } else {
                names.remove(name);
            }
        }
        Ok(names.into_iter().collect())
    }

    /// Sets an extended attribute. [`Error::NoSpace`] if the names of all would not fit into one list any more: then nobody could read that.
    pub fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], how: SetXattr) -> Result<()> {
        if value.len() > XATTR {
            return Err(Error::Invalid("an attribute's value is too long"));
        }
        let mut row = vec![HERE];
        row.extend_from_slice(value);
        self.change_xattr(ino, name, row, how)
    }

    /// Removes an extended attribute.
    pub fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.change_xattr(ino, name, Vec::new(), SetXattr::Replace)
    }

    /// An empty row: remove.
    fn change_xattr(&self, ino: Ino, name: &[u8], row: Vec<u8>, how: SetXattr) -> Result<()> {
        let pen = self.writable()?;
        check_xattr(name)?;
        let _ops = lock(&pen.ops);
        let there = match self.getxattr(ino, name) {
            Ok(_) => true,
            Err(Error::NoAttribute) => false,
            // Whether it was there nobody knows: it is not from now on. Else who may not change a file's contents before that is removed could never again.
            Err(error) if row.is_empty() && is_lost(&error) => true,
            Err(error) => return Err(error),
        };
        match how {
            SetXattr::Create if there => return Err(Error::Exists),
            SetXattr::Replace if !there => return Err(Error::NoAttribute),
            _ if !there => {
                let names: usize = self.listxattr(ino)?.iter().map(|name| name.len() + 1).sum();
                if names + name.len() + 1 > XATTR_NAMES {
                    return Err(Error::NoSpace);
                }
            }
            _ => {}
        }
        let mut node = self.node_to_change(ino, None)?;
        node.inode.ctime = platform::now();
        // One of the file below has to be hidden, which a row that is merely gone does as long as it is kept.
        let row = match (row.is_empty(), node.inode.origin.is_some()) {
            (false, _) => row,
            (true, true) => vec![crate::rows::value::WHITEOUT],
            (true, false) => vec![GONE],
        };
        self.change(|state, view| {
            state.write(&key::xattr(ino, name), row, view)?;
            self.put(state, view, &node)
        })
    }

    /// All extended attributes of the file below, and the note that they were copied; `None`: none are read there.
    pub(super) fn xattrs_below(&self, node: &Node) -> Result<Option<Vec<Xattr>>> {
        let (Some(file), Some(origin)) = (self.with_xattrs(node)?, &node.inode.origin) else { return Ok(None) };
        let Ok(Some(was)) = self.proven(&file, origin) else { return Ok(None) };
        let mut all = vec![(Vec::new(), Vec::new())];
        all.extend(xattrs(&file)?);
        // By its times, not by what it holds: it may have held something else in between.
        let unchanged = self.engine.lower.find_open(&file)?.is_as(&was);
        Ok(Some(all).filter(|_| unchanged))
    }

    /// The file below whose extended attributes shine through; `None`: none does.
    fn with_xattrs(&self, node: &Node) -> Result<Option<File>> {
        let Some(origin) = &node.inode.origin else { return Ok(None) };
        if self.is_copied(node.ino)? {
            return Ok(None);
        }
        if !matches!(node.inode.kind, Kind::File | Kind::Directory) {
            return Ok(None);
        }
        self.or_then(self.with_xattrs_below(node, origin), || Ok(self.has_none_then(node, origin)?.then_some(None)))
    }

    fn with_xattrs_below(&self, node: &Node, origin: &Origin) -> Result<Option<File>> {
        let Origin { path, device, ino, .. } = origin;
        let Some(file) = self.engine.lower.open_for_xattrs(path)? else {
            // Where another filesystem is mounted there is an empty directory, which has none.
            let is_mount = node.inode.kind == Kind::Directory && *device != 0;
            return if is_mount { Ok(None) } else { Err(self.changed(path, "removed below")) };
        };
        if node.inode.kind == Kind::File && (node.has_row || self.at.is_some() || self.is_then(origin)) {
            self.proven(&file, origin)?.ok_or_else(|| self.changed(path, "changed or replaced below"))?;
            return Ok(Some(file));
        }
        let found = self.engine.lower.find_open(&file)?;
        if (found.device, found.ino) != (*device, *ino) {
            let error = self.changed(path, "replaced below");
            // A pen shows the names that are in the directory which is there now, and so what else that has.
            let shows_now = self.at.is_none() && node.inode.kind == Kind::Directory && found.kind == Kind::Directory;
            return if shows_now { Ok(Some(file)) } else { Err(error) };
        }
        if !node.has_row {
            self.judge(&found, path)?;
        }
        Ok(Some(file))
    }
}

fn check_xattr(name: &[u8]) -> Result<()> {
    match name {
        b"" => Err(Error::Invalid("not an attribute's name")),
        _ if name.contains(&0) => Err(Error::Invalid("not an attribute's name")),
        _ if name.len() > 255 => Err(Error::NameTooLong),
        _ => Ok(()),
    }
}
