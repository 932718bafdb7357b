//! The helper's state folder: stores that only root can enter, and a lock so that one helper at a time works on it.
//!
//! ```text
//! lock, audit.log, plugins/          who works here (a process's number, where there is room for it); what was done; which libraries were tried
//! stores/<uid>/<token>/<provider>/   a provider's store for one of a user's
//! records/<id>.json                  a view or a clone, see `records`
//! shown/, clones/                    where providers make views and clones
//! probe/                             an empty store to ask with
//! ```

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use ah_plugin_api::{Dir, Error, ErrorKind, ProviderName, Result};
use rustix::fs::FlockOperation;
use rustix::process::FlockType;

use crate::accounts;
use crate::keeper::StoreKey;
use crate::owned::is_token;
use crate::records::Made;

/// The state folder, locked.
#[derive(Debug)]
pub(crate) struct State {
    root: PathBuf,
    _lock: File,
    /// Held by who makes or removes folders of stores, so that none is counted or removed while it comes.
    changing: Mutex<()>,
}

impl State {
    /// Makes or opens the folder at `path`.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let shown = path.display();
        make(path)?;
        let root = path.canonicalize().map_err(|e| Error::from_io(format!("cannot find {shown}"), &e))?;
        let at = std::fs::metadata(&root).map_err(|e| Error::from_io(format!("cannot look at {shown}"), &e))?;
        ah_host::roots_own(&root).map_err(|untrusted| {
            Error::new(ErrorKind::PermissionDenied, format!("{shown} is no place for root's state: {untrusted}"))
        })?;
        if at.mode() & 0o077 != 0 {
            return Err(Error::new(ErrorKind::PermissionDenied, format!("others can enter {shown}"))
                .with_hint(format!("chmod 700 {shown}")));
        }
        for name in ["stores", "records", "shown", "clones", "probe", "plugins"] {
            make(&root.join(name))?;
        }
        // Providers know what they made by the folder it was made in: one that a power cut took and the next start made anew is another.
        for folder in root.parent().into_iter().chain([root.as_path()]) {
            sync(folder)?;
        }
        let lock = lock(&root)?;
        Ok(Self { root, _lock: lock, changing: Mutex::default() })
    }

    /// The folder.
    pub(crate) fn path(&self) -> &Path {
        &self.root
    }

    /// A folder in it, opened.
    pub(crate) fn dir(&self, name: &str) -> Result<Dir> {
        Dir::open(self.root.join(name))
    }

    fn store_path(&self, uid: u32, token: &str, provider: &ProviderName) -> Result<PathBuf> {
        // Was checked when it came in; what becomes a path is checked where it does.
        if !is_token(token) {
            return Err(Error::new(ErrorKind::InvalidArgument, "no token"));
        }
        Ok(self.root.join("stores").join(uid.to_string()).join(token).join(provider.as_str()))
    }

    /// A provider's store for one of a user's, if it was made.
    pub(crate) fn store(&self, uid: u32, token: &str, provider: &ProviderName) -> Result<Option<Dir>> {
        match Dir::open(self.store_path(uid, token, provider)?) {
            Err(error) if error.kind == ErrorKind::NotFound => Ok(None),
            opened => opened.map(Some),
        }
    }

    /// Refuses a store, if it would be one under a new token and those of the user's account are `limit`.
    pub(crate) fn check_room(&self, uid: u32, token: Option<&str>, limit: usize) -> Result<()> {
        let stores = self.root.join("stores");
        if token.is_some_and(|token| stores.join(uid.to_string()).join(token).exists()) {
            return Ok(());
        }
        let account = accounts::of(uid);
        let theirs = |name: &str| name.parse().is_ok_and(|other| accounts::of(other) == account);
        let mut held = 0;
        for (_, folder) in folders(&stores)?.into_iter().filter(|(name, _)| theirs(name)) {
            // One that is empty is left of a making or a removal that was cut short.
            let filled = |of_token: &Path| folders(of_token).map_or(true, |all| !all.is_empty());
            held += folders(&folder)?.iter().filter(|(_, of_token)| filled(of_token)).count();
        }
        if held >= limit {
            let message = format!(
                "the helper ahd keeps snapshots of {limit} of your workspaces and branches, which is the limit"
            );
            return Err(Error::new(ErrorKind::ResourceExhausted, message).with_hint(
                "remove what you do not need (ah agent fs branches, ah agent fs rm), or have an administrator raise limits.stores in ahd.conf, \
                 or look for what can be reached no more (ahd --stores)",
            ));
        }
        Ok(())
    }

    /// As [`State::store`]; made if need be, and if [`State::check_room`] allows it.
    pub(crate) fn make_store(&self, StoreKey { uid, token, provider }: &StoreKey, limit: usize) -> Result<Dir> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = self.store(*uid, token, provider)? {
            return Ok(store);
        }
        self.check_room(*uid, Some(token), limit)?;
        let path = self.store_path(*uid, token, provider)?;
        let of_user = self.root.join("stores").join(uid.to_string());
        for folder in [&of_user, &of_user.join(token), &path] {
            make(folder)?;
        }
        // What is in it shall be found after a power cut.
        for folder in [&self.root.join("stores"), &of_user, &of_user.join(token)] {
            sync(folder)?;
        }
        Dir::open(path)
    }
}

impl State {
    /// All stores. What is no store's name is none.
    pub(crate) fn stores(&self) -> Result<Vec<StoreKey>> {
        let mut keys = Vec::new();
        for (user, of_user) in folders(&self.root.join("stores"))? {
            let Ok(uid) = user.parse() else { continue };
            for (token, of_token) in folders(&of_user)?.into_iter().filter(|(token, _)| is_token(token)) {
                for (provider, _) in folders(&of_token)? {
                    let Ok(provider) = ProviderName::new(provider) else { continue };
                    keys.push(StoreKey { uid, token: token.clone(), provider });
                }
            }
        }
        keys.sort_by(|a, b| (a.uid, &a.token, a.provider.as_str()).cmp(&(b.uid, &b.token, b.provider.as_str())));
        Ok(keys)
    }

    /// What providers made as clones: names, which are those of the records, and paths.
    pub(crate) fn clones(&self) -> Result<Vec<(String, PathBuf)>> {
        folders(&self.root.join(Made::Clone.workshop()))
    }

    /// Removes the folder of a store, which must hold nothing any more, and with a token's last one that of the token.
    pub(crate) fn remove_store(&self, StoreKey { uid, token, provider }: &StoreKey) -> Result<()> {
        let cannot = |e: std::io::Error| Error::from_io("cannot remove the store", &e);
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        std::fs::remove_dir_all(self.store_path(*uid, token, provider)?).map_err(cannot)?;
        let of_user = self.root.join("stores").join(uid.to_string());
        match std::fs::remove_dir(of_user.join(token)) {
            Err(e) if e.kind() != std::io::ErrorKind::DirectoryNotEmpty => Err(cannot(e)),
            _ => sync(&of_user),
        }
    }
}

/// Takes the lock of a state folder.
///
/// A process that was killed holds it until its last thread has ended, and one that a user has had wait in a directory of theirs may never end. Such a
/// process does nothing any more: another file takes the place of its lock, once that is made, so that there is a lock also where there is no room for one.
fn lock(root: &Path) -> Result<File> {
    let failed = |e: std::io::Error| Error::from_io(format!("cannot lock {}", root.display()), &e);
    let open = |name: &str| {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(nix::libc::O_NOFOLLOW);
        options.open(root.join(name)).map_err(failed)
    };
    let take = |file: &File| rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).is_ok();
    // Of those who start at once one after the other looks.
    let turn = open("lock.turn")?;
    rustix::fs::flock(&turn, FlockOperation::LockExclusive).map_err(|e| failed(e.into()))?;
    let mut file = open("lock")?;
    if !take(&file) {
        let free = holder(&mut file).map_err(failed)?.is_some_and(is_dying) && {
            // One that was made, and did not get there, may be somebody's who is dying.
            match std::fs::remove_file(root.join("lock.new")) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(failed(e)),
                _ => file = open("lock.new")?,
            }
            take(&file) && {
                std::fs::rename(root.join("lock.new"), root.join("lock")).map_err(failed)?;
                true
            }
        };
        if !free {
            let message = format!("another ahd works on {}", root.display());
            return Err(Error::new(ErrorKind::Busy, message).with_hint("systemctl stop ahd.socket ahd.service"));
        }
    }
    // A second one, of a kind of which the kernel knows whose it is. It goes when this process closes any descriptor of that file.
    let known = rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
    // And for a helper that asks for the number alone. Where the disk has no room for it, nor for taking away the one of who had the lock before, this one
    // works all the same: by way of it goes what fills the disk.
    let number = std::process::id().to_string();
    match file.set_len(0).and_then(|()| file.write_all_at(number.as_bytes(), 0)) {
        Err(e) if !known => Err(failed(e)),
        _ => Ok(file),
    }
}

/// Who holds a lock, if that is known: by what the kernel says, else by the number in the file, which may be one of a former holder otherwise.
fn holder(file: &mut File) -> std::io::Result<Option<u32>> {
    if let Some(lock) = rustix::process::fcntl_getlk(&*file, &FlockType::WriteLock.into())? {
        return Ok(lock.pid.and_then(|pid| u32::try_from(pid.as_raw_nonzero().get()).ok()));
    }
    let mut number = String::new();
    file.read_to_string(&mut number)?;
    Ok(number.trim().parse().ok())
}

/// Whether a process has been killed and waits for its last threads: its main thread is a zombie.
pub(crate) fn is_dying(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // Behind the name, which may contain anything.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z') || rest.starts_with('X'))
}

/// The names and paths of what is in a folder.
fn folders(path: &Path) -> Result<Vec<(String, PathBuf)>> {
    let failed = |e: std::io::Error| Error::from_io(format!("cannot look into {}", path.display()), &e);
    let entries = std::fs::read_dir(path).map_err(failed)?.collect::<std::io::Result<Vec<_>>>().map_err(failed)?;
    Ok(entries.into_iter().filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path()))).collect())
}

/// Makes a folder that only this user can enter; one that is there is left as it is.
fn make(path: &Path) -> Result<()> {
    match std::fs::DirBuilder::new().mode(0o700).create(path) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(Error::from_io(format!("cannot make the folder {}", path.display()), &e))
        }
        _ => Ok(()),
    }
}

/// Makes sure that the names in a folder survive a power cut.
pub(crate) fn sync(folder: &Path) -> Result<()> {
    let dir = Dir::open(folder)?;
    rustix::fs::fsync(dir.as_fd()).map_err(|e| Error::from_io(format!("cannot sync {}", folder.display()), &e.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_works_on_a_state_and_who_was_killed_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let held = lock(dir.path()).unwrap();
        assert_eq!(lock(dir.path()).unwrap_err().kind, ErrorKind::Busy);
        // A process that has ended, and that nobody has asked about.
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        while !is_dying(ended.id()) {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        held.set_len(0).unwrap();
        assert_eq!(lock(dir.path()).unwrap_err().kind, ErrorKind::Busy, "as which nobody is named");
        held.write_all_at(ended.id().to_string().as_bytes(), 0).unwrap();
        let next = lock(dir.path()).unwrap();
        assert_eq!(lock(dir.path()).unwrap_err().kind, ErrorKind::Busy, "and of those who come then only one");
        drop((held, next));
        ended.wait().unwrap();
        assert!(!is_dying(std::process::id()) && !is_dying(0));
        lock(dir.path()).unwrap();
    }

    #[test]
    fn a_lock_that_cannot_be_set_aside_as_the_disk_is_full_stays_and_is_taken_once_it_is_free() {
        if !rustix::process::geteuid().is_root() {
            assert!(std::env::var_os("AH_TEST_REQUIRE_ALL").is_none(), "skipped: needs root");
            return;
        }
        let base = tempfile::tempdir().unwrap();
        let dir = base.path().join("small");
        std::fs::create_dir(&dir).unwrap();
        let options = Some("size=64k,nr_inodes=8");
        nix::mount::mount(Some("none"), &dir, Some("tmpfs"), nix::mount::MsFlags::empty(), options).unwrap();
        let _mounted = Mounted(dir.clone());
        let held = lock(&dir).unwrap();
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        while !is_dying(ended.id()) {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        held.set_len(0).unwrap();
        held.write_all_at(ended.id().to_string().as_bytes(), 0).unwrap();
        // As many files as there is room for.
        while File::create(dir.join(format!("of-others-{}", std::fs::read_dir(&dir).unwrap().count()))).is_ok() {}
        for _ in 0..2 {
            assert_eq!(lock(&dir).unwrap_err().kind, ErrorKind::ResourceExhausted);
        }
        drop(held);
        ended.wait().unwrap();
        lock(&dir).unwrap();
    }

    /// Unmounted also when a test fails.
    struct Mounted(PathBuf);

    impl Drop for Mounted {
        fn drop(&mut self) {
            let _ = nix::mount::umount2(&self.0, nix::mount::MntFlags::MNT_DETACH);
        }
    }
}
