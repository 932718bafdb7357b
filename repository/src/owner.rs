//! Acting with the rights of a directory's owner.
//!
//! What a repository contains leads anywhere: a `.git` file and borrowed objects name directories. Run by root for somebody else (the helper
//! is), following them would show that user what only root may read. So root follows them as the owner of the work tree would, in the groups
//! that the system knows them in. The work tree's own group says nothing: it may be one that the owner is not in.

use std::ffi::CString;
use std::os::fd::AsFd;

use ah_plugin_api::sys::as_user;
use nix::unistd::{Gid, Uid, User, getgrouplist};
use rustix::fs::{Mode, OFlags, ResolveFlags};

/// Calls `run` with the filesystem rights of the owner of `dir`, on this thread, where this process is root and the owner is not. None if
/// these rights cannot be had: then nothing was called.
pub fn as_owner<T>(dir: impl AsFd, run: impl FnOnce() -> T) -> Option<T> {
    let owner = rustix::fs::fstat(dir).ok()?;
    if !rustix::process::geteuid().is_root() || owner.st_uid == 0 {
        return Some(run());
    }
    // Without it the owner could lead root by what other processes have open (`ah_rules::without_magic`).
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    rustix::fs::openat2(rustix::fs::CWD, c"/", flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS).ok()?;
    let (group, groups) = groups_of(owner.st_uid)?;
    as_user(owner.st_uid, group, &groups, run)
}

/// The group that a user's own files are in, and all that they are in; none if that cannot be told.
fn groups_of(uid: u32) -> Option<(u32, Vec<u32>)> {
    let Some(user) = User::from_uid(Uid::from_raw(uid)).ok()? else { return Some((NO_GROUP, Vec::new())) };
    let all = getgrouplist(&CString::new(user.name).ok()?, user.gid).ok()?;
    Some((user.gid.as_raw(), all.into_iter().map(Gid::as_raw).collect()))
}

/// Of whom the system knows nothing: the group that nobody is in (`/proc/sys/kernel/overflowgid`).
const NO_GROUP: u32 = 65534;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::as_owner;

    #[test]
    fn root_reads_nothing_for_others_that_they_could_not() {
        if !nix::unistd::geteuid().is_root() {
            assert!(std::env::var_os("AH_TEST_REQUIRE_ALL").is_none(), "skipped: needs root");
            eprintln!("skipped: needs root");
            return;
        }
        let temp = tempfile::tempdir().unwrap();
        std::fs::set_permissions(temp.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let (theirs, secret) = (temp.path().join("theirs"), temp.path().join("secret"));
        std::fs::create_dir(&theirs).unwrap();
        std::fs::write(&secret, "secret").unwrap();
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::chown(&theirs, Some(65534), Some(65534)).unwrap();
        // A group that this thread has, and the owner has not.
        let shared = temp.path().join("shared");
        std::fs::write(&shared, "for the group").unwrap();
        std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(0o040)).unwrap();
        std::os::unix::fs::chown(&shared, Some(1), Some(4711)).unwrap();
        let group = rustix::process::Gid::from_raw(4711);
        rustix::thread::set_thread_groups(&[group]).unwrap();
        // One that their directory is in, and they are not; and one that they are in.
        let [of_directory, own] = [("of directory", 4712), ("own", 65534)].map(|(name, group)| {
            let path = temp.path().join(name);
            std::fs::write(&path, name).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o040)).unwrap();
            std::os::unix::fs::chown(&path, Some(1), Some(group)).unwrap();
            path
        });
        std::os::unix::fs::chown(&theirs, Some(65534), Some(4712)).unwrap();
        let dir = std::fs::File::open(&theirs).unwrap();
        let made = as_owner(&dir, || {
            assert!([&secret, &shared, &of_directory].iter().all(|path| std::fs::read(path).is_err()));
            assert_eq!(std::fs::read(&own).unwrap(), b"own");
            std::fs::write(theirs.join("made"), "").unwrap();
            theirs.join("made")
        });
        let made = made.unwrap();
        let made = std::fs::metadata(made).unwrap();
        assert_eq!((made.uid(), made.gid()), (65534, 65534));
        // And afterwards it is root again.
        assert_eq!(std::fs::read(&secret).unwrap(), b"secret");
        assert_eq!(rustix::process::getgroups().unwrap(), [group]);
    }

    #[test]
    fn a_repository_leads_nowhere_by_what_other_processes_have_open() {
        if !nix::unistd::geteuid().is_root() {
            assert!(std::env::var_os("AH_TEST_REQUIRE_ALL").is_none(), "skipped: needs root");
            eprintln!("skipped: needs root");
            return;
        }
        // A closed directory of somebody's, with a repository in it that is not closed itself; a process of theirs works there, and this one has it open.
        let temp = tempfile::tempdir().unwrap();
        std::fs::set_permissions(temp.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let (closed, theirs) = (temp.path().join("closed"), temp.path().join("theirs"));
        let git = closed.join("project/.git");
        for folder in ["objects/info", "refs/heads"] {
            std::fs::create_dir_all(git.join(folder)).unwrap();
        }
        std::fs::write(git.join("HEAD"), "ref: refs/heads/main\n").unwrap();
        std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o700)).unwrap();
        let mut works_there =
            std::process::Command::new("sleep").arg("60").current_dir(closed.join("project")).spawn().unwrap();
        let open = std::fs::File::open(closed.join("project")).unwrap();
        let (pid, number) = (works_there.id(), std::os::fd::AsRawFd::as_raw_fd(&open));
        let outcome = std::panic::catch_unwind(|| {
            std::fs::create_dir(&theirs).unwrap();
            std::os::unix::fs::chown(&theirs, Some(65534), Some(65534)).unwrap();
            let dir = ah_plugin_api::Dir::open(&theirs).unwrap();
            let ways = [
                git.display().to_string(),
                format!("/proc/{pid}/cwd/.git"),
                format!("/proc/{pid}/root{}", git.display()),
                format!("/proc/self/fd/{number}/.git"),
                format!("/dev/fd/{number}/.git"),
            ];
            for way in &ways {
                std::fs::write(theirs.join(".git"), format!("gitdir: {way}\n")).unwrap();
                let found = as_owner(&dir, || crate::Repository::of(&dir)).unwrap();
                assert!(found.is_none(), "{way}: {:?}", found.map(|found| found.state));
                std::fs::remove_file(theirs.join(".git")).unwrap();
                std::os::unix::fs::symlink(way, theirs.join(".git")).unwrap();
                assert!(as_owner(&dir, || crate::Repository::of(&dir)).unwrap().is_none(), "{way}");
                std::fs::remove_file(theirs.join(".git")).unwrap();
                // Nor by objects that are borrowed, or by a common directory.
                for folder in ["objects/info", "refs"] {
                    std::fs::create_dir_all(theirs.join(".git").join(folder)).unwrap();
                }
                std::fs::write(theirs.join(".git/HEAD"), "ref: refs/heads/main\n").unwrap();
                std::fs::write(theirs.join(".git/objects/info/alternates"), format!("{way}/objects\n")).unwrap();
                let found = as_owner(&dir, || crate::Repository::of(&dir)).unwrap().unwrap();
                assert!(found.state.not_kept.is_some(), "{way}");
                std::fs::write(theirs.join(".git/commondir"), way).unwrap();
                assert!(as_owner(&dir, || crate::Repository::of(&dir)).unwrap().is_none(), "{way}");
                std::fs::remove_dir_all(theirs.join(".git")).unwrap();
            }
            // What this user can reach is followed.
            std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o755)).unwrap();
            std::fs::write(theirs.join(".git"), format!("gitdir: {}\n", ways[0])).unwrap();
            assert!(as_owner(&dir, || crate::Repository::of(&dir)).unwrap().is_some());
        });
        let _ = works_there.kill();
        let _ = works_there.wait();
        outcome.unwrap();
    }
}
