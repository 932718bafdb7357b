//! What the contract's entries do not tell of a path, and a view of its snapshot shows: whose it was, and its extended attributes.
//!
//! Never given: what would let a program act for somebody else (`security.…`, set-id bits, see [`Work::allowed_mode`]), and what only root sees
//! (`trusted.…`). Whose the contents were, a snapshot does not say.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::PoisonError;

use ah_plugin_api::{EntryKind, Error, RelPath};
use rustix::fs::{Gid, Uid, XattrFlags};
use rustix::io::Errno;

use super::Work;
use crate::restore::at::{Found, Tree};

/// Those that a file may have whoever owns it. Setting one needs write permission.
const USER: &[u8] = b"user.";

/// Access lists. Only the owner sets them, and they hold the permission bits too.
const LISTS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

/// The kernel gives labels by rules of its own.
const LABEL: &[u8] = b"security.selinux";

const WITHOUT: &str = "came back without what restore never gives: capabilities or other attributes of the system";
const OF_OTHERS: &str = "belonged to others in the snapshot, and came back as yours";
const UNSEEN: &str = "came back without its owner and extended attributes, which could not be read in the snapshot";

/// A name and its value.
type Xattr = (Vec<u8>, Vec<u8>);

/// What is to be said of paths, and of which.
pub(super) type Said = BTreeMap<&'static str, Vec<RelPath>>;

/// What a view shows of a path.
#[derive(Debug, Default)]
pub(super) struct Shown {
    owner: Option<(u32, u32)>,
    xattrs: Vec<Xattr>,
    /// Whether it would show access lists, if there were any.
    lists: bool,
}

impl Shown {
    fn of(tree: Tree<'_>, path: &RelPath) -> Result<Self, Errno> {
        let Found { uid, gid, kind, .. } = tree.stat(path)?.ok_or(Errno::NOENT)?;
        let xattrs = match kind {
            EntryKind::File => xattrs(tree.file(path)?.as_fd())?,
            EntryKind::Dir => xattrs(tree.listing(path)?.as_fd())?,
            _ => Vec::new(),
        };
        Ok(Self { owner: Some((uid, gid)), xattrs, lists: false })
    }

    /// Gives a new file or directory the attributes that need write permission on it: before its mode is set.
    pub(super) fn give_attributes(&self, to: BorrowedFd<'_>) -> Result<(), Errno> {
        let mut users = self.xattrs.iter().filter(|(name, _)| name.starts_with(USER));
        users.try_for_each(|(name, value)| set(to, name, value))
    }

    /// Whether it is known to have been this user's, who is not root: a program of somebody else's must not run as this one.
    pub(super) fn is_own(&self) -> bool {
        let me = rustix::process::geteuid();
        !me.is_root() && self.owner.is_some_and(|(uid, _)| uid == me.as_raw())
    }

    /// Gives it its access lists, after its owner and its mode, of which they are a part; takes away what it has of the directory that it
    /// was made in.
    pub(super) fn give_lists(&self, to: BorrowedFd<'_>) -> Result<(), Errno> {
        for list in LISTS {
            match self.xattrs.iter().find(|(name, _)| name == list) {
                Some((name, value)) => set(to, name, value)?,
                None if self.lists => match rustix::fs::fremovexattr(to, list) {
                    Err(Errno::NODATA | Errno::NOTSUP) => {}
                    done => done?,
                },
                None => {}
            }
        }
        Ok(())
    }
}

impl Work<'_> {
    /// What the snapshot shows of a path that comes back; nothing where it does not tell.
    pub(super) fn shown(&self, path: &RelPath) -> Shown {
        let Some(view) = self.view else { return Shown::default() };
        let shown = view.tree().ok().flatten().map_or(Err(Errno::BADF), |tree| Shown::of(tree, path));
        let Ok(mut shown) = shown else {
            self.say(UNSEEN, path);
            return Shown::default();
        };
        shown.owner = shown.owner.filter(|_| self.owners);
        shown.lists = self.lists;
        let given = |name: &[u8]| name.starts_with(USER) || name == LABEL || LISTS.contains(&name);
        if shown.xattrs.iter().any(|(name, _)| !given(name)) {
            self.say(WITHOUT, path);
        }
        shown
    }

    /// Makes a path its owner's, by `chown`: the snapshot's owner where that is known and this user may, else `otherwise`.
    pub(super) fn give(
        &self,
        path: &RelPath,
        shown: &Shown,
        otherwise: (Option<Uid>, Option<Gid>),
        chown: impl Fn(Option<Uid>, Option<Gid>) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let me = rustix::process::geteuid();
        let fallback = || match otherwise {
            (None, None) => Ok(()),
            (uid, gid) => chown(uid, gid),
        };
        match shown.owner {
            None => fallback(),
            Some((uid, gid)) if me.is_root() => chown(Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid))),
            Some((uid, gid)) => {
                // A group that they are not in any more is another's, too.
                let group = chown(None, Some(Gid::from_raw(gid)));
                if uid != me.as_raw() || group.is_err() {
                    self.say(OF_OTHERS, path);
                }
                group.or_else(|_| fallback())
            }
        }
    }

    fn say(&self, what: &'static str, path: &RelPath) {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).entry(what).or_default().push(path.clone());
    }

    /// One note for each thing there is to say.
    pub(super) fn tell_said(&self, unseen: Option<&Error>) {
        if let Some(error) = unseen {
            self.note(format!(
                "what came back may lack owners and extended attributes that it had: the snapshot could not be shown ({error})"
            ));
        }
        for (what, mut paths) in std::mem::take(&mut *self.said.lock().unwrap_or_else(PoisonError::into_inner)) {
            paths.sort();
            // One is made again under a name where it could not be made without.
            paths.dedup();
            let more = if paths.len() > 1 { format!(" and {} more", paths.len() - 1) } else { String::new() };
            self.note(format!("{}{more} {what}", paths[0]));
        }
    }
}

fn set(to: BorrowedFd<'_>, name: &[u8], value: &[u8]) -> Result<(), Errno> {
    rustix::fs::fsetxattr(to, name, value, XattrFlags::empty())
}

fn xattrs(of: BorrowedFd<'_>) -> Result<Vec<Xattr>, Errno> {
    let mut names = vec![0; 64 << 10];
    let length = match rustix::fs::flistxattr(of, names.as_mut_slice()) {
        Err(Errno::NOTSUP) => return Ok(Vec::new()),
        // Most have none.
        Ok(0) => return Ok(Vec::new()),
        other => other?,
    };
    let mut value = vec![0; 64 << 10];
    let mut found = Vec::new();
    for name in names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        match rustix::fs::fgetxattr(of, name, value.as_mut_slice()) {
            Ok(length) => found.push((name.to_vec(), value[..length].to_vec())),
            Err(Errno::NODATA) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}
