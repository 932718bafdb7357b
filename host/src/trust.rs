//! Whether anybody but root and the user could have put a file where it is, or can change it.
//!
//! The way from `/` to the file is walked one component at a time on open descriptors, symlinks included, and the file is opened at
//! the end of that walk: what was judged is what is opened, whatever happens to the names meanwhile. On the way,
//!
//! - every folder, symlink and the file itself must belong to root or to the user;
//! - nobody else may write to a folder or to the file. Two things that look like it are let pass: a group that is the user's
//!   own (named like the user, with nobody else in it), since many distributions give new files to such a group, writable; and a
//!   *sticky* folder like `/tmp` on the way, because nobody can replace there what belongs to somebody else. The folder that
//!   holds the file itself may not be sticky and writable by others: others could add to it.
//!
//! In a user namespace, owners that it does not map are shown as one overflow id. `ah agent fs exec` makes such namespaces for
//! ordinary users, in which root itself is not mapped. There the overflow id counts as root; others' files cannot be told
//! from root's then, but the places where plugins are looked for were the same outside. Where the overflow id itself is mapped, as in rootless containers, it is
//! a user's, and does not.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use ah_plugin_api::text::shell;
use rustix::fs::{FileType, Mode, OFlags, Stat};

/// The kernel's own limit.
const MAX_SYMLINKS: u32 = 40;

/// What is not to be trusted, and why.
#[derive(Debug)]
pub struct Untrusted {
    /// The file, or the folder or symlink on its way.
    pub path: PathBuf,
    /// Why.
    pub why: Why,
}

/// Why something is not to be trusted, or cannot be judged.
#[derive(Debug)]
pub enum Why {
    /// It belongs to this user id.
    Owner(u32),
    /// The members of this group can write to it.
    WritableByGroup(u32),
    /// Everybody can write to it.
    WritableByAll,
    /// Everybody can add files to it.
    Sticky,
    /// It is no regular file (or no folder, on the way).
    Kind,
    /// It cannot be looked at.
    Unreachable(io::Error),
}

impl fmt::Display for Untrusted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match &self.why {
            Why::Owner(uid) => write!(f, "{path} belongs to user {uid}, neither root nor you"),
            Why::WritableByGroup(gid) => write!(f, "the members of group {gid} can write to {path}"),
            Why::WritableByAll => write!(f, "everybody can write to {path}"),
            Why::Sticky => write!(f, "everybody can put files into {path}"),
            Why::Kind => write!(f, "{path} is not a regular file"),
            Why::Unreachable(error) => write!(f, "{path}: {error}"),
        }
    }
}

impl Untrusted {
    /// A command, or what else to do.
    pub(crate) fn hint(&self) -> String {
        let path = shell(self.path.as_os_str());
        match self.why {
            Why::Owner(_) => format!("if you trust it: sudo chown root {path}"),
            Why::WritableByGroup(_) | Why::WritableByAll => format!("if its contents are yours: chmod go-w {path}"),
            Why::Sticky | Why::Kind | Why::Unreachable(_) => "put the plugin into a folder of your own".to_owned(),
        }
    }
}

/// Opens the regular file at `path` for reading if it and the way to it are to be trusted; also gives its path without
/// symlinks. Never waits: a FIFO is refused, not opened.
///
/// # Errors
/// The first thing on the way that is not to be trusted, or cannot be reached.
pub fn open_trusted(path: &Path) -> Result<(File, PathBuf), Untrusted> {
    let absolute =
        std::path::absolute(path).map_err(|e| Untrusted { path: path.to_owned(), why: Why::Unreachable(e) })?;
    let mut walk = Walk::from_root(names(&absolute))?;
    let mut links = 0;
    while let Some(name) = walk.todo.pop_front() {
        let (fd, stat) = walk.look(&name)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink => {
                links += 1;
                if links > MAX_SYMLINKS {
                    return Err(walk.fail(&name, Why::Unreachable(io::Error::from_raw_os_error(ELOOP))));
                }
                walk.follow(&name, &fd)?;
            }
            FileType::Directory => walk.enter(&name, fd, &stat)?,
            FileType::RegularFile if walk.todo.is_empty() => return walk.open(&name),
            _ if walk.todo.is_empty() => return Err(walk.fail(&name, Why::Kind)),
            _ => return Err(walk.fail(&name, Why::Unreachable(io::Error::from_raw_os_error(ENOTDIR)))),
        }
    }
    Err(Untrusted { path: walk.real, why: Why::Kind })
}

/// Whether nobody but root can change what is at `path`, or put something else there: the thing itself (a folder, or a socket that
/// everybody may write to) and every folder on its way belong to root, and nobody else may write to the folders.
///
/// Symlinks are followed as in [`open_trusted`], those of root only.
///
/// # Errors
/// The first thing on the way that is not so.
pub fn roots_own(path: &Path) -> Result<(), Untrusted> {
    let absolute =
        std::path::absolute(path).map_err(|e| Untrusted { path: path.to_owned(), why: Why::Unreachable(e) })?;
    let mut walk = Walk::from_root(names(&absolute))?;
    let mut links = 0;
    while let Some(name) = walk.todo.pop_front() {
        let (fd, stat) = walk.look(&name)?;
        if !is_root(stat.st_uid) {
            return Err(walk.fail(&name, Why::Owner(stat.st_uid)));
        }
        let last = walk.todo.is_empty();
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink => {
                links += 1;
                if links > MAX_SYMLINKS {
                    return Err(walk.fail(&name, Why::Unreachable(io::Error::from_raw_os_error(ELOOP))));
                }
                walk.follow(&name, &fd)?;
            }
            FileType::Directory => {
                walk.enter(&name, fd, &stat)?;
                if walk.open_to_others {
                    return Err(Untrusted { path: walk.real, why: Why::Sticky });
                }
            }
            FileType::Socket if last => {}
            _ if last => return Err(walk.fail(&name, Why::Kind)),
            _ => return Err(walk.fail(&name, Why::Unreachable(io::Error::from_raw_os_error(ENOTDIR)))),
        }
    }
    Ok(())
}

/// Whether a user id is root's, as far as this process can see.
pub(crate) fn is_root(uid: u32) -> bool {
    uid == 0 || (uid == overflow_uid() && is_unmapped_root(uid))
}

const ELOOP: i32 = 40;
const ENOTDIR: i32 = 20;

/// A walk that has come as far as `folder`.
struct Walk {
    folder: OwnedFd,
    /// The name of `folder`, without symlinks.
    real: PathBuf,
    /// Whether others can add files to `folder`.
    open_to_others: bool,
    todo: VecDeque<OsString>,
}

impl Walk {
    fn from_root(todo: VecDeque<OsString>) -> Result<Self, Untrusted> {
        let real = PathBuf::from("/");
        let unreachable = |e: rustix::io::Errno| Untrusted { path: "/".into(), why: Why::Unreachable(e.into()) };
        let folder = rustix::fs::open("/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(unreachable)?;
        let stat = rustix::fs::fstat(&folder).map_err(unreachable)?;
        let open_to_others = judge(&folder, &stat).map_err(|why| Untrusted { path: real.clone(), why })?;
        Ok(Self { folder, real, open_to_others, todo })
    }

    fn fail(&self, name: &OsStr, why: Why) -> Untrusted {
        Untrusted { path: self.real.join(name), why }
    }

    /// Opens the next thing without following, entering or reading it.
    fn look(&self, name: &OsStr) -> Result<(OwnedFd, Stat), Untrusted> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = rustix::fs::openat(&self.folder, name, flags, Mode::empty());
        open.and_then(|fd| rustix::fs::fstat(&fd).map(|stat| (fd, stat)))
            .map_err(|e| self.fail(name, Why::Unreachable(e.into())))
    }

    fn enter(&mut self, name: &OsStr, fd: OwnedFd, stat: &Stat) -> Result<(), Untrusted> {
        self.open_to_others = judge(&fd, stat).map_err(|why| self.fail(name, why))?;
        if name == ".." {
            self.real.pop();
        } else {
            self.real.push(name);
        }
        self.folder = fd;
        Ok(())
    }

    fn follow(&mut self, name: &OsStr, fd: &OwnedFd) -> Result<(), Untrusted> {
        let fail = |e: rustix::io::Errno| self.fail(name, Why::Unreachable(e.into()));
        let stat = rustix::fs::fstat(fd).map_err(fail)?;
        if !trusted_owner(stat.st_uid) {
            return Err(self.fail(name, Why::Owner(stat.st_uid)));
        }
        let target = rustix::fs::readlinkat(fd, "", Vec::new()).map_err(fail)?;
        let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
        let mut todo = names(&target);
        todo.append(&mut self.todo);
        if target.is_absolute() {
            *self = Self::from_root(todo)?;
        } else {
            self.todo = todo;
        }
        Ok(())
    }

    /// Opens the file at the end of the way, and judges what was opened.
    fn open(self, name: &OsStr) -> Result<(File, PathBuf), Untrusted> {
        let fail = |e: rustix::io::Errno| self.fail(name, Why::Unreachable(e.into()));
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.folder, name, flags, Mode::empty()).map_err(fail)?;
        let stat = rustix::fs::fstat(&fd).map_err(fail)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(self.fail(name, Why::Kind));
        }
        judge(&fd, &stat).map_err(|why| self.fail(name, why))?;
        if self.open_to_others {
            return Err(Untrusted { path: self.real, why: Why::Sticky });
        }
        Ok((fd.into(), self.real.join(name)))
    }
}

fn names(path: &Path) -> VecDeque<OsString> {
    let name = |component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    };
    path.components().filter_map(name).collect()
}

/// Judges a folder or a file. `true`: others can add to it (a sticky folder), but not change what is there.
fn judge(fd: &OwnedFd, stat: &Stat) -> Result<bool, Why> {
    if !trusted_owner(stat.st_uid) {
        return Err(Why::Owner(stat.st_uid));
    }
    let mode = Mode::from_raw_mode(stat.st_mode);
    let (by_all, by_group) = (mode.contains(Mode::WOTH), mode.contains(Mode::WGRP));
    let sticky = FileType::from_raw_mode(stat.st_mode) == FileType::Directory && mode.contains(Mode::SVTX);
    match (by_all, by_group) {
        (false, false) => Ok(false),
        _ if sticky => Ok(true),
        (true, _) => Err(Why::WritableByAll),
        // Asked last: it may read the user database.
        (false, true) if own_group(fd, stat) => Ok(false),
        (false, true) => Err(Why::WritableByGroup(stat.st_gid)),
    }
}

fn trusted_owner(uid: u32) -> bool {
    uid == rustix::process::geteuid().as_raw() || is_root(uid)
}

/// Whether only the owner is in the group that may write, as far as the machine's own accounts tell. An ACL could name others behind the same mode bits, so there must be none.
fn own_group(fd: &OwnedFd, stat: &Stat) -> bool {
    let (Ok(Some(owner)), Ok(Some(group))) = (
        nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(stat.st_uid)),
        nix::unistd::Group::from_gid(nix::unistd::Gid::from_raw(stat.st_gid)),
    ) else {
        return false;
    };
    owner.gid == group.gid
        && owner.name == group.name
        && group.mem.iter().all(|member| *member == owner.name)
        && std::fs::read("/etc/passwd").is_ok_and(|accounts| !is_anothers(&accounts, owner.gid.as_raw(), &owner.name))
        && has_no_acl(fd)
}

/// Whether an account of `/etc/passwd` but its owner's has a group for its own: such an account is no member by the group's list. Fields: `passwd(5)`.
fn is_anothers(accounts: &[u8], gid: u32, owner: &str) -> bool {
    accounts.split(|&b| b == b'\n').any(|line| {
        let mut fields = line.split(|&b| b == b':');
        let name = fields.next();
        name != Some(owner.as_bytes()) && fields.nth(2) == Some(gid.to_string().as_bytes())
    })
}

fn has_no_acl(fd: &OwnedFd) -> bool {
    // An O_PATH descriptor has no attributes of its own; the name under /proc has.
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let mut none: [u8; 0] = [];
    let size = rustix::fs::getxattr(path, "system.posix_acl_access", &mut none);
    matches!(size, Err(rustix::io::Errno::NODATA | rustix::io::Errno::OPNOTSUPP))
}

/// Whether the user namespace of this process shows the system's root user as the overflow id. Unreadable maps count as the system's own.
fn is_unmapped_root(overflow: u32) -> bool {
    std::fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| leaves_root_out(&map, overflow))
}

/// Lines of: first id inside, first id outside, how many. Where the overflow id is mapped, it is somebody's, as it is in containers.
fn leaves_root_out(map: &str, overflow: u32) -> bool {
    map.lines().all(|line| {
        let mut numbers = line.split_whitespace().map(|number| number.parse::<u64>().unwrap_or(u64::MAX));
        let mut next = || numbers.next().unwrap_or(u64::MAX);
        let (inside, outside, count) = (next(), next(), next());
        outside != 0 && !(inside..inside.saturating_add(count)).contains(&u64::from(overflow))
    })
}

fn overflow_uid() -> u32 {
    let text = std::fs::read_to_string("/proc/sys/kernel/overflowuid").unwrap_or_default();
    text.trim().parse().unwrap_or(65534)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    /// A folder with `lib.so` in it.
    fn scene() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().canonicalize().unwrap().join("lib.so");
        fs::write(&file, "x").unwrap();
        mode(&file, 0o755);
        (dir, file)
    }

    #[test]
    fn a_group_that_is_the_own_one_of_another_account_too_is_not_its_owners_alone() {
        let accounts =
            "root:x:0:0:root:/root:/bin/sh\nme:x:1000:1000::/home/me:/bin/sh\nbot:x:999:1001::/:/bin/false\n";
        for (gid, is) in [(1000, false), (1001, true), (1002, false), (999, false)] {
            assert_eq!(is_anothers(accounts.as_bytes(), gid, "me"), is, "{gid}");
        }
        assert!(is_anothers(format!("{accounts}you:x:1002:1000::/:/bin/sh").as_bytes(), 1000, "me"));
    }

    #[test]
    fn what_only_the_user_can_change_is_opened_by_its_real_path() {
        let (dir, file) = scene();
        assert_eq!(open_trusted(&file).unwrap().1, file);
        let below = dir.path().join("a/b");
        fs::create_dir_all(&below).unwrap();
        symlink("../../lib.so", below.join("relative")).unwrap();
        symlink(&below, dir.path().join("absolute")).unwrap();
        assert_eq!(open_trusted(&dir.path().join("absolute/relative")).unwrap().1, file);
        assert_eq!(open_trusted(&dir.path().join("a/./b/../../lib.so")).unwrap().1, file);
    }

    #[test]
    fn what_others_can_write_to_is_refused_wherever_it_is_on_the_way() {
        let (dir, file) = scene();
        mode(&file, 0o757);
        let error = open_trusted(&file).unwrap_err();
        assert!(matches!(error.why, Why::WritableByAll) && error.path == file, "{error}");
        mode(&file, 0o755);
        let middle = dir.path().canonicalize().unwrap().join("middle");
        fs::create_dir_all(middle.join("inner")).unwrap();
        fs::copy(&file, middle.join("inner/lib.so")).unwrap();
        mode(&middle, 0o777);
        symlink(middle.join("inner"), dir.path().join("link")).unwrap();
        for way in [middle.join("inner/lib.so"), dir.path().join("link/lib.so")] {
            let error = open_trusted(&way).unwrap_err();
            assert!(matches!(error.why, Why::WritableByAll) && error.path == middle, "{error}");
        }
        // A sticky folder on the way is no harm; but nothing is loaded straight out of one.
        mode(&middle, 0o1777);
        open_trusted(&middle.join("inner/lib.so")).unwrap();
        fs::copy(&file, middle.join("lib.so")).unwrap();
        let error = open_trusted(&middle.join("lib.so")).unwrap_err();
        assert!(matches!(error.why, Why::Sticky) && error.path == middle, "{error}");
    }

    fn skip(reason: &str) {
        assert!(std::env::var_os("AH_TEST_REQUIRE_ALL").is_none(), "skipped: {reason}");
        eprintln!("skipped: {reason}");
    }

    #[test]
    fn a_group_counts_as_others_unless_it_is_the_users_own() {
        let (_dir, file) = scene();
        mode(&file, 0o775);
        let group = nix::unistd::Group::from_gid(nix::unistd::getegid()).unwrap();
        let user = nix::unistd::User::from_uid(nix::unistd::geteuid()).unwrap();
        let (Some(group), Some(user)) = (group, user) else { return skip("needs a user and a group with names") };
        let own = group.name == user.name && group.mem.iter().all(|member| *member == user.name);
        assert_eq!(open_trusted(&file).is_ok(), own);
        if user.uid.is_root() {
            chown(&file, None, Some(12345)).unwrap();
            let error = open_trusted(&file).unwrap_err();
            assert!(matches!(error.why, Why::WritableByGroup(12345)), "{error}");
        }
    }

    #[test]
    fn what_belongs_to_somebody_else_is_refused() {
        if !nix::unistd::geteuid().is_root() {
            return skip("needs root, to give files away");
        }
        let (dir, file) = scene();
        chown(&file, Some(12345), None).unwrap();
        assert!(matches!(open_trusted(&file).unwrap_err().why, Why::Owner(12345)));
        chown(&file, Some(0), None).unwrap();
        let link = dir.path().join("link");
        symlink(&file, &link).unwrap();
        std::os::unix::fs::lchown(&link, Some(12345), None).unwrap();
        assert!(matches!(open_trusted(&link).unwrap_err().why, Why::Owner(12345)));
        chown(dir.path(), Some(12345), None).unwrap();
        assert!(matches!(open_trusted(&file).unwrap_err().why, Why::Owner(12345)));
    }

    #[test]
    fn what_is_no_file_is_refused_without_waiting() {
        let (dir, file) = scene();
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, Mode::RWXU, 0).unwrap();
        for path in [fifo, dir.path().to_owned(), "/dev/null".into(), "/".into()] {
            assert!(matches!(open_trusted(&path).unwrap_err().why, Why::Kind), "{}", path.display());
        }
        let loops = dir.path().join("loop");
        symlink("loop", &loops).unwrap();
        for path in [loops, dir.path().join("missing"), file.join("below")] {
            assert!(matches!(open_trusted(&path).unwrap_err().why, Why::Unreachable(_)), "{}", path.display());
        }
    }

    #[test]
    fn maps_of_namespaces_are_read() {
        let nobody = 65534;
        assert!(!leaves_root_out("         0          0 4294967295\n", nobody));
        assert!(!leaves_root_out("0 100000 65536\n65536 0 1\n", nobody));
        assert!(leaves_root_out("      1000       1000          1\n", nobody));
        assert!(leaves_root_out("         0       1000          1\n", nobody));
        // A container's: its own nobody is a user of the system.
        for map in ["0 100000 65536\n", "0 1000 1\n1 100000 65535\n", "65534 1000 1\n"] {
            assert!(!leaves_root_out(map, nobody), "{map}");
        }
        assert!(leaves_root_out("0 1000 1\n1 100000 65533\n65535 165535 1\n", nobody));
    }
}
