//! What all connections share, and the life of views and clones: shown, taken down, and put in order when the helper starts.

use std::collections::{BTreeSet, HashMap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, RwLock, TryLockError};
use std::time::{Duration, Instant};

use ah_plugin_api::{
    Capability, Context, Description, DestroyRequest, Dir, Error, ErrorKind, FileName, Place, Provider, ProviderName,
    ReclaimRequest, Reference, Result, Snapshot, UnmountRequest,
};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::accounts;
use crate::audit::{Audit, told};
use crate::config::Config;
use crate::graft::{self, Ids};
use crate::limits::{Meter, texts};
use crate::mounts::{self, About, Mount};
use crate::records::{Made, Record, Records, Text};
use crate::state::State;

/// So many stores' snapshots are remembered at most.
const MAX_KNOWN: usize = 4096;
/// How often it is looked whether a list can be read.
const MOMENT: Duration = Duration::from_millis(10);
/// How long the start waits for what is put in order.
const SETTLING: Duration = Duration::from_secs(1);
/// The stack of a thread that calls a provider, which is used to that of a main thread.
pub(crate) const STACK: usize = 8 << 20;

/// A provider as it is offered.
pub(crate) struct Served {
    /// What it says of itself, changed to what is true through the helper.
    pub(crate) description: Description,
    /// Its own name.
    pub(crate) name: ProviderName,
    pub(crate) provider: Arc<dyn Provider>,
}

impl Served {
    /// None, with the reason, for a provider that must not run for others.
    pub(crate) fn new(provider: Arc<dyn Provider>) -> Result<Self, String> {
        let own = provider.describe();
        let name = own.name.clone();
        // Who reads files as root and writes them anew shows users what they may not read. Kept with their owners and access lists,
        // they stay as closed as they were.
        for needed in [Capability::Owners, Capability::Xattrs] {
            if !own.capabilities.contains(&needed) {
                return Err(format!("the provider {name} is not offered: it has not the capability {needed}"));
            }
        }
        let outer = ProviderName::new(format!("{name}_ahd")).map_err(|e| e.message)?;
        let mut capabilities = own.capabilities;
        // What would be read as root, or changed in place; and repositories, which name other places to read from.
        let withheld = ["read-without-mount", "diff", "usage", "convert", "repository-clones"];
        capabilities.retain(|capability| !withheld.contains(&capability.as_str()));
        capabilities.insert(Capability::ExactViewModes);
        let rank = own.rank.map(|rank| rank.saturating_sub(1));
        let description =
            Description { name: outer, version: own.version, rank, filesystems: own.filesystems, capabilities };
        Ok(Self { description, name, provider })
    }
}

/// Which store of whom.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct StoreKey {
    pub(crate) uid: u32,
    pub(crate) token: String,
    pub(crate) provider: ProviderName,
}

/// Snapshots of a store, each with how much its texts take.
pub(crate) type Known = HashMap<Reference, usize>;

/// What all connections share.
pub(crate) struct Keeper {
    pub(crate) config: Config,
    pub(crate) state: State,
    pub(crate) records: Records,
    pub(crate) audit: Audit,
    pub(crate) meter: Arc<Meter>,
    pub(crate) served: Vec<Served>,
    /// The options by which another `ahd` finds the same, as a shell takes them, each with a space before it.
    options: String,
    /// Which snapshots are in which store, as far as it was asked.
    known: Mutex<HashMap<StoreKey, Known>>,
    /// Held by the one of each account that reads a list.
    lists: Mutex<HashMap<u32, Arc<Mutex<()>>>>,
    /// Held shared by who works in a store, alone by who puts it in order.
    locks: Mutex<HashMap<StoreKey, Arc<RwLock<()>>>>,
}

impl Keeper {
    pub(crate) fn new(
        config: Config,
        state: State,
        audit: Audit,
        served: Vec<Served>,
        options: String,
    ) -> Result<Self> {
        let records = Records::open(state.path().join("records"), &mut |warning| audit.say(&warning))?;
        Ok(Self {
            config,
            state,
            records,
            audit,
            meter: Arc::default(),
            served,
            options,
            known: Mutex::default(),
            lists: Mutex::default(),
            locks: Mutex::default(),
        })
    }

    pub(crate) fn provider(&self, name: &ProviderName) -> Result<&Served> {
        let found = self.served.iter().find(|served| served.name == *name);
        found.ok_or_else(|| Error::new(ErrorKind::Unavailable, format!("the provider {name} is not there any more")))
    }

    /// What the administrator runs to have a store forgotten (`65534/TOKEN/btrfs`); `force`: with branches that cannot be looked for.
    pub(crate) fn forget_command(&self, store: &str, force: bool) -> String {
        format!("ahd --forget-store {store}{}{}", if force { " --force" } else { "" }, self.options)
    }

    /// Reads a list and makes of it what is needed, one at a time for each account: as a whole it takes much memory.
    pub(crate) fn list<T>(&self, uid: u32, cx: &Context<'_>, read: impl FnOnce() -> Result<T>) -> Result<T> {
        let mut lists = self.lists.lock().unwrap_or_else(PoisonError::into_inner);
        let turn = Arc::clone(lists.entry(accounts::of(uid)).or_default());
        drop(lists);
        let _mine = loop {
            match turn.try_lock() {
                Ok(mine) => break mine,
                Err(TryLockError::Poisoned(poisoned)) => break poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => cx.check_cancelled()?,
            }
            std::thread::sleep(MOMENT);
        };
        read()
    }

    /// Runs `work` on the snapshots that a store is known to hold, asked for if they are not known or `again`.
    pub(crate) fn known<T>(
        &self,
        key: &StoreKey,
        again: bool,
        cx: &Context<'_>,
        list: impl FnOnce() -> Result<Vec<Snapshot>>,
        work: impl FnOnce(&Known) -> T,
    ) -> Result<T> {
        let lock = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if !again && let Some(snapshots) = lock().get(key) {
            return Ok(work(snapshots));
        }
        let snapshots = self.read_known(key, cx, list)?;
        let outcome = work(&snapshots);
        let mut known = lock();
        if known.len() >= MAX_KNOWN {
            known.clear();
        }
        known.insert(key.clone(), snapshots);
        Ok(outcome)
    }

    /// What a list says that a store holds.
    pub(crate) fn read_known(
        &self,
        key: &StoreKey,
        cx: &Context<'_>,
        list: impl FnOnce() -> Result<Vec<Snapshot>>,
    ) -> Result<Known> {
        let read = || Ok(list()?.into_iter().map(|snapshot| (snapshot.reference.clone(), texts(&snapshot))).collect());
        self.list(key.uid, cx, read)
    }

    /// A snapshot came to a store, or went, if it is known what is in there.
    pub(crate) fn note(&self, key: &StoreKey, change: impl FnOnce(&mut Known) -> Option<usize>) {
        if let Some(snapshots) = self.known.lock().unwrap_or_else(PoisonError::into_inner).get_mut(key) {
            change(snapshots);
        }
    }

    /// Removes a store, which holds nothing any more. Nobody else may work in it.
    pub(crate) fn remove_store(&self, key: &StoreKey) -> Result<()> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
        self.state.remove_store(key)
    }

    /// The lock of a store.
    pub(crate) fn lock_of(&self, key: &StoreKey) -> Arc<RwLock<()>> {
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        if locks.len() >= MAX_KNOWN {
            locks.retain(|_, lock| Arc::strong_count(lock) > 1);
        }
        Arc::clone(locks.entry(key.clone()).or_default())
    }

    /// A directory of a user's as it is reached without the mount by which they see it, if it lies in a clone of theirs. By way of that mount
    /// nothing is above it, and nobody knows what subvolume it lies in.
    pub(crate) fn behind_clone(&self, dir: &Dir, about: &About, uid: u32) -> Result<Option<Dir>> {
        let is_it = |record: &Record| {
            let there = record.mark.as_ref().is_some_and(|mark| mark.id == about.mount && mark.boot == graft::boot());
            there && record.uid == uid && record.made == Made::Clone && record.ready
        };
        let Some(record) = self.records.find(is_it).into_iter().next() else { return Ok(None) };
        let moved = || Error::new(ErrorKind::Conflict, format!("{} was moved this moment", dir.path().display()));
        let failed = |e: Errno| Error::from_io(format!("cannot open {}", dir.path().display()), &e.into());
        let mount = mounts::find(about.mount)?.ok_or_else(moved)?;
        let inside = mounts::path_of(dir.as_fd())?.strip_prefix(&mount.point).map_err(|_| moved())?.to_owned();
        let source = open_shown(&record.source.as_ref().map(Text::path).unwrap_or_default(), uid)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let inside = if inside.as_os_str().is_empty() { Path::new(".") } else { &inside };
        let fd = rustix::fs::openat2(&source, inside, flags, Mode::empty(), resolve).map_err(failed)?;
        // The way was by name; that it leads to the same directory is what counts.
        if !About::of(&fd).map_err(failed)?.same_file(about) {
            return Err(moved());
        }
        Ok(Some(Dir::from_fd(fd, dir.path().to_owned())))
    }

    /// Shows `source` as the record says, and writes down how it is known.
    pub(crate) fn show(&self, record: &mut Record, source: &OwnedFd, target: BorrowedFd<'_>) -> Result<()> {
        let name = record.name()?;
        let (tree, mark) = graft::copy(source.as_fd(), target, record.made == Made::View)?;
        // First the record, so that nothing is mounted that nobody knows of.
        record.mark = Some(mark);
        self.records.save(record)?;
        let point = graft::make_point(target, &name, ids(record)).inspect_err(|_| record.mark = None)?;
        graft::attach(&tree, &point)?;
        let there = record.mark.as_ref().is_some_and(|mark| graft::is_at(mark, target, &name));
        if !there {
            // Its user has moved the directory meanwhile; wherever it is now, it is found and taken down.
            return Err(Error::new(ErrorKind::Conflict, format!("{name} in the target folder was moved away")));
        }
        record.ready = true;
        self.records.save(record)
    }

    /// Takes a view or a clone away, however far it has come. The record must be claimed.
    pub(crate) fn take_down(&self, record: &Record, cx: &Context<'_>) -> Result<()> {
        let whole = record.made == Made::Clone && record.is_whole();
        let room = if whole { self.records.make_room_for_going(&record.id) } else { Ok(()) };
        let taken = room
            .and_then(|()| take_from_user(record, !record.ready))
            // Should this process be killed before, it stays, and so does what is done in it from then on; after that, the next one goes on.
            .and_then(|()| if whole { self.records.going(&record.id) } else { Ok(()) })
            .and_then(|()| self.take_from_provider(record, cx));
        if let Err(error) = taken {
            if whole {
                self.put_back(record);
            }
            return Err(error);
        }
        self.records.remove(&record.id)
    }

    /// Whether a clone whose removal was cut off is mounted: then somebody may have worked in it since, and it stays. The record must be claimed.
    pub(crate) fn stays_mounted(&self, record: &Record) -> Result<bool> {
        let stays = record.going && stands(record)?;
        if stays {
            self.records.stays(&record.id)?;
        }
        Ok(stays)
    }

    /// After a removal that failed: a clone stays what it was. If it cannot be shown now, the next connection of its user tries again.
    fn put_back(&self, record: &Record) {
        let show = || {
            // Of what cannot be looked for, it is not known that it is gone.
            let stands = stands(record).unwrap_or(true);
            if stands { Ok(()) } else { record.name().and_then(|n| self.show_again(&mut record.clone(), &n)) }
        };
        if let Err(error) = self.records.stays(&record.id).and_then(|()| show()) {
            let text = format!("the clone at {}, whose removal failed: {}", record.place().display(), told(&error));
            self.audit.say_of(record.uid, &text);
        }
    }

    fn take_from_provider(&self, record: &Record, cx: &Context<'_>) -> Result<()> {
        let provider = &self.provider(&record.provider)?.provider;
        // Without a store there is nothing that the provider could have made.
        let Some(store) = self.state.store(record.uid, &record.token, &record.provider)? else { return Ok(()) };
        let workshop = self.state.dir(record.made.workshop())?;
        let place = Place::new(&store).with_target(&workshop);
        match (&record.inner, record.made) {
            (Some(view), Made::View) => {
                // There was no way to it but the mount that is gone.
                provider.unmount(&place, &UnmountRequest { view: view.clone(), unused: true }, cx)?;
            }
            (Some(clone), Made::Clone) => {
                provider.destroy(&place, &DestroyRequest::Clone(clone.clone()), cx)?;
            }
            (None, _) => {
                let request = ReclaimRequest { auto: false, forgotten: vec![record.id_name()?] };
                provider.reclaim(&place, &request, cx)?;
            }
        }
        Ok(())
    }

    /// Puts in order what a former run of the helper, or of the machine, left: each user's by itself, since a user can have a directory of
    /// theirs hold up for ever whoever changes something in it. Who is not ready soon goes on behind.
    pub(crate) fn settle(self: &Arc<Self>) {
        let users: BTreeSet<u32> = self.records.find(|_| true).iter().map(|record| record.uid).collect();
        let (done, settled) = std::sync::mpsc::channel();
        for uid in users {
            let (keeper, done) = (Arc::clone(self), done.clone());
            let work = move || {
                keeper.settle_those(|record| record.uid == uid);
                let _ = done.send(());
            };
            if let Err(e) = std::thread::Builder::new().name("settle".to_owned()).stack_size(STACK).spawn(work) {
                self.audit.say(&format!("nothing of user {uid} is put in order: {e}"));
            }
        }
        // Ends when all are done.
        drop(done);
        let until = Instant::now() + SETTLING;
        while settled.recv_timeout(until.saturating_duration_since(Instant::now())).is_ok() {}
    }

    /// Mounts again what of a user's is not mounted: their home may not have been there when the helper started.
    pub(crate) fn settle_for(&self, uid: u32) {
        // By the kernel's table alone, since the user may have a directory of theirs hold up for ever whoever looks at it. What is not where it was
        // is looked for.
        let mounts = mounts::all().unwrap_or_default();
        self.settle_those(|record| {
            let there = record.mark.as_ref().is_some_and(|mark| {
                let is_it = |mount: &Mount| mount.id == mark.id && mount.point == record.place();
                mark.boot == graft::boot() && mounts.iter().any(is_it)
            });
            record.uid == uid && record.made == Made::Clone && record.is_whole() && !there
        });
    }

    fn settle_those(&self, wanted: impl Fn(&Record) -> bool) {
        let cx = Context::quiet();
        for mut record in self.records.find(wanted) {
            let outcome = self.settle_one(&mut record, &cx);
            let what = match record.made {
                Made::View => "view",
                Made::Clone => "clone",
            };
            let place = record.place();
            let text = match outcome {
                Ok(None) => continue,
                Ok(Some(did)) => format!("{did} the {what} at {} of user {}", place.display(), record.uid),
                // Another thread is at it.
                Err(error) if error.kind == ErrorKind::Busy => continue,
                Err(error) => format!("the {what} at {} of user {}: {}", place.display(), record.uid, told(&error)),
            };
            // Said for each connection of theirs, of what they themselves can unmount too; so it is theirs to pay for.
            self.audit.say_of(record.uid, &text);
        }
    }

    fn settle_one(&self, record: &mut Record, cx: &Context<'_>) -> Result<Option<&'static str>> {
        let _claim = self.records.claim(&record.id)?;
        // As it is now that nobody else works on it.
        match self.records.get(&record.id) {
            Some(now) => *record = now,
            None => return Ok(None),
        }
        let name = record.name()?;
        if self.stays_mounted(record)? {
            return Ok(Some("kept, as it is mounted,"));
        }
        let stands = stands(record)?;
        if !record.is_whole() || (record.made == Made::View && !stands) {
            self.take_down(record, cx)?;
            return Ok(Some("took down what was left of"));
        }
        if stands {
            return Ok(None);
        }
        self.show_again(record, &name)?;
        Ok(Some("mounted again"))
    }

    /// Mounts a clone where it was.
    fn show_again(&self, record: &mut Record, name: &FileName) -> Result<()> {
        let cannot = |what: &str, e: Errno| Error::from_io(format!("cannot open {what}"), &e.into());
        let path = record.source.as_ref().map(Text::path).unwrap_or_default();
        let source = open_shown(&path, record.uid)?;
        let target = mounts::open_plain(&record.target.path()).map_err(|e| cannot("its folder", e))?;
        let about = About::of(&target).map_err(|e| cannot("its folder", e))?;
        if about.uid != record.uid || about.kind != FileType::Directory {
            return Err(Error::new(ErrorKind::Conflict, "its folder is not the user's any more"));
        }
        let user = ids(record);
        let point = match graft::open_point(target.as_fd(), name, user) {
            Err(error) if error.kind == ErrorKind::NotFound => graft::make_point(target.as_fd(), name, user)?,
            point => point?,
        };
        if !is_empty(&point) {
            return Err(Error::new(ErrorKind::Conflict, "there is something in its place"));
        }
        let (tree, mark) = graft::copy(source.as_fd(), target.as_fd(), false)?;
        record.mark = Some(mark);
        record.ready = true;
        self.records.save(record)?;
        graft::attach(&tree, &point).inspect_err(|_| {
            // The next connection of its user tries again.
            record.mark = None;
            let _ = self.records.save(record);
        })
    }
}

/// Whether what a record says is mounted is.
pub(crate) fn stands(record: &Record) -> Result<bool> {
    record.mark.as_ref().map_or(Ok(false), |mark| Ok(graft::find(mark)?.is_some()))
}

/// Takes away what the user sees of a view or clone. One that is in use stays, unless nobody was told of it yet: then `even_in_use`.
fn take_from_user(record: &Record, even_in_use: bool) -> Result<()> {
    let Some(mark) = &record.mark else { return Ok(()) };
    let target = mounts::open_plain(&record.target.path())
        .ok()
        .filter(|target| About::of(target).is_ok_and(|at| at.uid == record.uid && at.ino == record.target_ino));
    let even_in_use = even_in_use && record.made == Made::Clone;
    graft::remove(mark, &record.name()?, target.as_ref().map(AsFd::as_fd), ids(record), even_in_use)
}

fn ids(record: &Record) -> Ids {
    Ids { uid: record.uid, gid: record.gid }
}

/// Opens what a provider says it shows; it must be the user's own, with no symlink on the way.
pub(crate) fn open_shown(path: &Path, uid: u32) -> Result<OwnedFd> {
    let failed = |e: Errno| Error::from_io(format!("cannot open {}", path.display()), &e.into());
    let foreign = || {
        let message = "the directory was not one of yours when it was captured, so it is not shown to you";
        Error::new(ErrorKind::PermissionDenied, message)
    };
    let fd = match mounts::open_plain(path) {
        Err(Errno::LOOP) => return Err(foreign()),
        opened => opened.map_err(failed)?,
    };
    let about = About::of(&fd).map_err(failed)?;
    if about.uid != uid || about.kind != FileType::Directory {
        return Err(foreign());
    }
    Ok(fd)
}

/// Whether a directory is empty, as far as can be seen.
fn is_empty(dir: &OwnedFd) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(dir) = rustix::fs::openat(dir, c".", flags, Mode::empty()) else { return false };
    let Ok(mut entries) = rustix::fs::Dir::read_from(&dir) else { return false };
    entries.all(|entry| entry.is_ok_and(|entry| matches!(entry.file_name().to_bytes(), b"." | b"..")))
}
