//! A provider as one caller sees it: each call is checked, then made as root in the caller's own store.
//!
//! A caller can name nothing but: directories by open descriptors, which must be theirs; a store by its token, which leads to a store of
//! theirs whatever it says; snapshots by references, which must be in that store; views and clones by references of ours.
//!
//! What is left out, is what would be read or changed as root on their behalf: `read_dir`, `read`, `lookup`, `diff`, `usage`, `convert`. A
//! caller looks at a view instead, with their own rights.
//!
//! How views and clones are made is in `making`.

use std::collections::HashSet;
use std::os::fd::AsFd;
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard, TryLockError};
use std::time::{Duration, Instant};

use ah_plugin_api::ipc::Offered;
use ah_plugin_api::wire::Op;
use ah_plugin_api::{
    CloneRequest, Context, Description, DestroyRequest, Dir, Done, Error, ErrorKind, FileName, ListRequest,
    MountRequest, Place, Probe, ProbeRequest, Provider, ProviderName, ReclaimRequest, Reclaimed, Reference, Result,
    Snapshot, SnapshotId, SnapshotRef, SnapshotRequest, UnmountRequest, View, WritableClone,
};
use rustix::fs::FileType;

use crate::advice;
use crate::audit::{What, told};
use crate::keeper::{Keeper, Known, Served, StoreKey};
use crate::limits::{LISTED_TEXTS, MOST_TEXTS, texts};
use crate::mounts::{self, About};
use crate::owned::{self, Owned};
use crate::peer::Peer;
use crate::records::{Made, Record};
use crate::stores;

/// The longest label, and the most that attributes may hold together, bytes; and how many there may be: in memory each takes more than it says.
const MAX_LABEL: usize = 4096;
const MAX_ATTRIBUTES: usize = 64 << 10;
const MOST_ATTRIBUTES: usize = 64;

/// How long a call waits for others who work in the same store or on the same record, and how often it looks.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
pub(crate) const MOMENT: Duration = Duration::from_millis(10);

/// A connection's view of the helper.
pub(crate) struct Session<'a> {
    pub(crate) keeper: &'a Keeper,
    pub(crate) peer: &'a Peer,
}

impl Offered for Session<'_> {
    fn offers(&self) -> Vec<Description> {
        self.keeper.served.iter().map(|served| served.description.clone()).collect()
    }

    fn choose(&self, name: &ProviderName) -> Result<Box<dyn Provider + '_>> {
        let served = self.keeper.served.iter().find(|served| served.description.name == *name);
        let served =
            served.ok_or_else(|| Error::new(ErrorKind::NotFound, format!("the helper ahd has no provider {name}")))?;
        Ok(Box::new(Guarded { keeper: self.keeper, served, peer: self.peer }))
    }

    /// Counts a call. Of those that are too many only the first is written down, so that nobody can push older lines out of the log.
    fn admit(&self, provider: &ProviderName, op: Op) -> Result<()> {
        let (meter, most) = (&self.keeper.meter, self.keeper.config.limits.calls_per_minute);
        meter.call(self.peer.uid, most).map_err(|refused| {
            if refused.is_first {
                let op = if op == Op::Clone { "clone" } else { op.as_str() };
                let what = What { op, provider: provider.as_str(), ..What::default() };
                self.keeper.audit.note(self.peer, &what, Err(&refused.error));
            }
            refused.error
        })
    }
}

/// One provider for one caller.
pub(crate) struct Guarded<'a> {
    pub(crate) keeper: &'a Keeper,
    pub(crate) served: &'a Served,
    pub(crate) peer: &'a Peer,
}

/// A store of the caller's.
pub(crate) struct Kept {
    pub(crate) key: StoreKey,
    pub(crate) store: Dir,
    lock: Arc<RwLock<()>>,
}

/// A workspace of the caller's.
struct Workspace {
    dir: Dir,
    owned: Owned,
}

impl Guarded<'_> {
    /// Makes a call, and writes down how it ended.
    fn audited<T>(
        &self,
        op: &str,
        place: &Place<'_>,
        object: Option<&str>,
        call: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let result = call().map_err(|error| self.advised(place, error));
        let what = What {
            op,
            provider: self.served.description.name.as_str(),
            workspace: named(place.workspace),
            target: named(place.target),
            object: object.map(str::to_owned),
        };
        self.keeper.audit.note(self.peer, &what, result.as_ref().map(|_| ()));
        result
    }

    /// As [`Guarded::audited`], for calls that change nothing: only what was forbidden is written down.
    fn quietly<T>(&self, op: &str, place: &Place<'_>, call: impl FnOnce() -> Result<T>) -> Result<T> {
        match call().map_err(|error| self.advised(place, error)) {
            Err(error) if error.kind == ErrorKind::PermissionDenied => {
                let refused = Error::clone(&error);
                self.keeper.audit.note(
                    self.peer,
                    &What {
                        op,
                        provider: self.served.description.name.as_str(),
                        workspace: named(place.workspace),
                        ..What::default()
                    },
                    Err(&refused),
                );
                Err(error)
            }
            result => result,
        }
    }

    /// An error whose advice is for the caller.
    fn advised(&self, place: &Place<'_>, mut error: Error) -> Error {
        error.hint = error.hint.and_then(|hint| self.advice(place, &hint));
        error
    }

    /// An advice of a provider's as it is for the caller, if anything is left of it.
    fn advice(&self, place: &Place<'_>, hint: &str) -> Option<String> {
        let hint = advice::without_helper(hint)?;
        let token = owned::token(place.store, self.peer).unwrap_or_else(|_| "TOKEN".to_owned());
        let store = format!("{}/{token}/{}", self.peer.uid, self.served.name);
        Some(advice::for_user(&hint, self.keeper.state.path(), &self.keeper.forget_command(&store, false)))
    }

    fn key(&self, place: &Place<'_>) -> Result<StoreKey> {
        let token = owned::token(place.store, self.peer)?;
        Ok(StoreKey { uid: self.peer.uid, token, provider: self.served.name.clone() })
    }

    /// The caller's store, if anything was ever put into it.
    fn kept(&self, place: &Place<'_>) -> Result<Option<Kept>> {
        let key = self.key(place)?;
        let store = self.keeper.state.store(key.uid, &key.token, &key.provider)?;
        let lock = self.keeper.lock_of(&key);
        Ok(store.map(|store| Kept { key, store, lock }))
    }

    fn list_of(&self, kept: &Kept, cx: &Context<'_>) -> Result<Vec<Snapshot>> {
        self.served.provider.list(&Place::new(&kept.store), &ListRequest::default(), cx)
    }

    /// Runs `work` on the snapshots of a store as [`Keeper::known`] does; where some cannot be looked for now, on those that can be, and gives why. Those are
    /// asked for each time: once the others can be looked for, all count.
    fn seen<T>(
        &self,
        kept: &Kept,
        again: bool,
        cx: &Context<'_>,
        work: impl Fn(&Known) -> T,
    ) -> Result<(T, Option<Error>)> {
        match self.keeper.known(&kept.key, again, cx, || self.list_of(kept, cx), &work) {
            Err(error) if error.kind == ErrorKind::FailedPrecondition => {
                let request = ListRequest { partial: true };
                let list = || self.served.provider.list(&Place::new(&kept.store), &request, cx);
                Ok((work(&self.keeper.read_known(&kept.key, cx, list)?), Some(error)))
            }
            known => known.map(|outcome| (outcome, None)),
        }
    }

    /// Whether a reference is one to a snapshot in the caller's store. What another store, or nobody, has is all the same here.
    fn holds(&self, kept: &Kept, snapshot: &Reference, cx: &Context<'_>) -> Result<bool> {
        let mut unseen = None;
        for again in [false, true] {
            let (found, others) = self.seen(kept, again, cx, |known| known.contains_key(snapshot))?;
            if found {
                return Ok(true);
            }
            unseen = others;
        }
        // One that cannot be read is not listed, and is there all the same: whose record is damaged must not be told as gone. By its id alone, which
        // names nothing outside of the store.
        if SnapshotId::new(snapshot.as_str()).is_err() {
            return unseen.map_or(Ok(false), Err);
        }
        let request = SnapshotRef { snapshot: snapshot.clone() };
        match self.served.provider.stat(&Place::new(&kept.store), &request, cx) {
            Err(error) => Ok(error.kind != ErrorKind::NotFound),
            Ok(_) => Ok(true),
        }
    }

    fn need(&self, place: &Place<'_>, snapshot: &Reference, cx: &Context<'_>) -> Result<Kept> {
        let missing = || Error::new(ErrorKind::NotFound, format!("there is no snapshot {snapshot} in this store"));
        let kept = self.kept(place)?.ok_or_else(missing)?;
        if self.holds(&kept, snapshot, cx)? { Ok(kept) } else { Err(missing()) }
    }

    /// The caller's workspace, as a provider can work with it.
    fn workspace(&self, place: &Place<'_>) -> Result<Workspace> {
        let given = place.need_workspace()?;
        let mut owned = owned::directory(given, self.peer, "workspace")?;
        let found = owned.from_here.take();
        let dir = found.as_ref().unwrap_or(given);
        if let Some(behind) = self.keeper.behind_clone(dir, &owned.about, self.peer.uid)? {
            let owned = owned::directory(&behind, self.peer, "workspace")?;
            return Ok(Workspace { dir: behind, owned });
        }
        let fd = dir.as_fd().try_clone_to_owned().map_err(|e| Error::from_io("cannot keep the workspace open", &e))?;
        Ok(Workspace { dir: Dir::from_fd(fd, given.path().to_owned()), owned })
    }

    /// Where a removed snapshot goes into a trash, it counts for no limit any more and holds its space: so with each at least one leaves it, whether its
    /// user ever asks for that or goes away now. It takes a moment.
    fn give_space_back(&self, kept: &Kept) {
        let request = ReclaimRequest { auto: true, forgotten: Vec::new() };
        if let Err(error) = self.served.provider.reclaim(&Place::new(&kept.store), &request, &Context::quiet()) {
            let text = format!("the space of a removed snapshot of user {} is kept: {}", self.peer.uid, told(&error));
            self.keeper.audit.say_of(self.peer.uid, &text);
        }
    }

    /// Refuses to have somebody else's subvolume or dataset captured.
    fn check_containing(&self, Workspace { dir, owned }: &Workspace) -> Result<()> {
        let owner = owned::owner_above(dir.as_fd(), &owned.mount)?;
        if owner != Some(self.peer.uid) && !self.keeper.config.may_capture_containing(self.peer) {
            let whose = owner.map_or_else(|| "somebody else".to_owned(), |uid| format!("user {uid}"));
            let message = format!(
                "{} lies in a subvolume or dataset of {whose}, and all of it would be captured",
                dir.path().display()
            );
            let (uid, conf) = (self.peer.uid, self.keeper.config.path.display());
            return Err(Error::new(ErrorKind::PermissionDenied, message).with_hint(format!(
                "an administrator can allow it: {{\"allow-containing\": [\"{uid}\"]}} in {conf}, and ahd started anew (`systemctl restart ahd`); or \
                 make the directory a subvolume or dataset of its own"
            )));
        }
        Ok(())
    }
}

impl Provider for Guarded<'_> {
    fn describe(&self) -> Description {
        self.served.description.clone()
    }

    fn probe(&self, place: &Place<'_>, request: &ProbeRequest, cx: &Context<'_>) -> Result<Probe> {
        self.quietly("probe", place, || {
            let workspace = self.workspace(place)?;
            // Before the provider looks at it: one that lies too deep is not climbed.
            let allowed = match self.check_containing(&workspace) {
                Err(error) if error.kind != ErrorKind::PermissionDenied => return Err(error),
                allowed => allowed,
            };
            let is_token = About::of(place.store).is_ok_and(|at| at.kind == FileType::RegularFile);
            let kept = if is_token { self.kept(place)? } else { None };
            let is_new = kept.is_none();
            let store = match kept {
                Some(kept) => kept.store,
                None => self.keeper.state.dir("probe")?,
            };
            let inner = Place::new(&store).with_workspace(&workspace.dir);
            let mut probe = self.served.provider.probe(&inner, request, cx)?;
            probe.convertible = None;
            probe.remedy = probe.remedy.and_then(|remedy| self.advice(place, &remedy));
            if !probe.usable {
                return Ok(probe);
            }
            let has_room = || {
                let token = is_token.then(|| owned::token(place.store, self.peer)).transpose()?;
                stores::check_room(self.keeper, self.peer.uid, token.as_deref())
            };
            match allowed.and_then(|()| if is_new { has_room() } else { Ok(()) }) {
                Ok(()) => {
                    probe.can_delete = true;
                    probe.reason.push_str(", through the helper ahd");
                }
                Err(error) => {
                    probe.usable = false;
                    probe.reason = error.message;
                    probe.remedy = error.hint;
                }
            }
            Ok(probe)
        })
    }

    fn snapshot(&self, place: &Place<'_>, request: &SnapshotRequest, cx: &Context<'_>) -> Result<Snapshot> {
        self.audited("snapshot", place, Some(request.id.as_str()), || {
            let workspace = self.workspace(place)?;
            self.check_containing(&workspace)?;
            let attributes: usize = request.attributes.iter().map(|(key, value)| key.len() + value.len()).sum();
            if request.label.as_ref().is_some_and(|label| label.len() > MAX_LABEL) || attributes > MAX_ATTRIBUTES {
                return Err(Error::new(ErrorKind::InvalidArgument, "the label or the attributes are too long"));
            }
            if request.attributes.len() > MOST_ATTRIBUTES {
                let message = format!("the snapshot has more than {MOST_ATTRIBUTES} attributes, which is the limit");
                return Err(Error::new(ErrorKind::InvalidArgument, message));
            }
            let (key, limits) = (self.key(place)?, &self.keeper.config.limits);
            let lock = self.keeper.lock_of(&key);
            // Before it is made, so that nobody finds that it holds nothing, and removes it.
            let _shared = lock.read().unwrap_or_else(PoisonError::into_inner);
            let store = stores::make(self.keeper, &key)?;
            let kept = Kept { lock: Arc::clone(&lock), key, store };
            // Those that cannot be looked for now, on a disk that is not there, are no reason to take none elsewhere.
            let ((count, taken), _) =
                self.seen(&kept, false, cx, |known| (known.len(), known.values().sum::<usize>()))?;
            if count >= limits.snapshots {
                let message = format!("this store has {} snapshots, which is the limit", limits.snapshots);
                return Err(Error::new(ErrorKind::ResourceExhausted, message).with_hint(
                    "ah agent fs prune removes old snapshots; an administrator sets limits.snapshots in ahd.conf",
                ));
            }
            if taken >= MOST_TEXTS {
                let message = format!(
                    "the labels and attributes of this store's snapshots take {} MiB, which is the limit",
                    MOST_TEXTS >> 20
                );
                return Err(Error::new(ErrorKind::ResourceExhausted, message)
                    .with_hint("ah agent fs prune removes old snapshots, ah agent fs rm those that you name"));
            }
            let inner = Place::new(&kept.store).with_workspace(&workspace.dir);
            let mut snapshot = self.served.provider.snapshot(&inner, request, cx)?;
            self.keeper.note(&kept.key, |known| known.insert(snapshot.reference.clone(), texts(&snapshot)));
            blind(&mut snapshot);
            Ok(snapshot)
        })
    }

    fn sync(&self, place: &Place<'_>, request: &SnapshotRef, cx: &Context<'_>) -> Result<Done> {
        self.quietly("sync", place, || {
            let kept = self.need(place, &request.snapshot, cx)?;
            self.served.provider.sync(&Place::new(&kept.store), request, cx)
        })
    }

    fn list(&self, place: &Place<'_>, _request: &ListRequest, cx: &Context<'_>) -> Result<Vec<Snapshot>> {
        self.quietly("list", place, || {
            let Some(kept) = self.kept(place)? else { return Ok(Vec::new()) };
            self.keeper.list(self.peer.uid, cx, || {
                let mut snapshots = self.list_of(&kept, cx)?;
                refuse_beyond(&snapshots, LISTED_TEXTS)?;
                snapshots.iter_mut().for_each(blind);
                Ok(snapshots)
            })
        })
    }

    fn stat(&self, place: &Place<'_>, request: &SnapshotRef, cx: &Context<'_>) -> Result<Snapshot> {
        self.quietly("stat", place, || {
            let kept = self.need(place, &request.snapshot, cx)?;
            let mut snapshot = self.served.provider.stat(&Place::new(&kept.store), request, cx)?;
            blind(&mut snapshot);
            Ok(snapshot)
        })
    }

    fn destroy(&self, place: &Place<'_>, request: &DestroyRequest, cx: &Context<'_>) -> Result<Done> {
        let (DestroyRequest::Snapshot(object) | DestroyRequest::Clone(object)) = request;
        self.audited("destroy", place, Some(object.as_str()), || {
            let snapshot = match request {
                DestroyRequest::Snapshot(snapshot) => snapshot,
                DestroyRequest::Clone(clone) => return self.take_down(clone, Made::Clone, cx),
            };
            let Some(kept) = self.kept(place)? else { return Ok(Done {}) };
            if !self.holds(&kept, snapshot, cx)? {
                return Ok(Done {});
            }
            let shown = self.keeper.records.find(|record| {
                self.is_mine(record, Made::View) && record.token == kept.key.token && record.snapshot == *snapshot
            });
            if let Some(record) = shown.first() {
                let message = format!("a view of it is at {}", record.place().display());
                return Err(Error::new(ErrorKind::Busy, message).with_hint("ah agent fs release --all"));
            }
            let _shared = kept.lock.read().unwrap_or_else(PoisonError::into_inner);
            let done = self.served.provider.destroy(&Place::new(&kept.store), request, cx)?;
            self.keeper.note(&kept.key, |known| known.remove(snapshot));
            self.give_space_back(&kept);
            Ok(done)
        })
    }

    fn mount(&self, place: &Place<'_>, request: &MountRequest, cx: &Context<'_>) -> Result<View> {
        self.audited("mount", place, Some(request.snapshot.as_str()), || {
            place.need_target()?;
            let kept = self.need(place, &request.snapshot, cx)?;
            let _shared = kept.lock.read().unwrap_or_else(PoisonError::into_inner);
            let workshop = self.keeper.state.dir(Made::View.workshop())?;
            let making = self.begin(Made::View, &kept, &workshop, place, &request.name, &request.snapshot)?;
            self.make_view(making, request, cx)
        })
    }

    fn unmount(&self, place: &Place<'_>, request: &UnmountRequest, cx: &Context<'_>) -> Result<Done> {
        self.audited("unmount", place, Some(request.view.as_str()), || {
            place.need_target()?;
            self.take_down(&request.view, Made::View, cx)
        })
    }

    fn clone_snapshot(&self, place: &Place<'_>, request: &CloneRequest, cx: &Context<'_>) -> Result<WritableClone> {
        self.audited("clone", place, Some(request.snapshot.as_str()), || {
            place.need_target()?;
            let kept = self.need(place, &request.snapshot, cx)?;
            let _shared = kept.lock.read().unwrap_or_else(PoisonError::into_inner);
            let workshop = self.keeper.state.dir(Made::Clone.workshop())?;
            let making = self.begin(Made::Clone, &kept, &workshop, place, &request.name, &request.snapshot)?;
            self.make_clone(making, request, cx)
        })
    }

    fn reclaim(&self, place: &Place<'_>, request: &ReclaimRequest, cx: &Context<'_>) -> Result<Reclaimed> {
        self.audited("reclaim", place, None, || {
            let Some(kept) = self.kept(place)? else { return Ok(Reclaimed::default()) };
            // All who work in the store are in this process, so that nobody has to guess whether somebody still makes something.
            let _alone = kept.alone(cx)?;
            let (mut actions, mut first_error) = (Vec::new(), None);
            let target = place.target.map(|dir| owned::directory(dir, self.peer, "target folder")).transpose()?;
            let here = target.as_ref().zip(place.target).map(|(target, given)| target.dir(given));
            let path = here.and_then(|dir| mounts::path_of(dir.as_fd()).ok());
            // Looked at for each record, while nobody else gets at any of them.
            let names: HashSet<&FileName> = request.forgotten.iter().collect();
            let forgotten = |record: &Record| {
                // A filesystem may have another number since it was mounted again.
                let here = target.as_ref().is_some_and(|target| {
                    record.target_ino == target.about.ino
                        && (record.target_dev == target.about.dev || path.as_ref() == Some(&record.target.path()))
                });
                here && record.name().is_ok_and(|name| names.contains(&name))
            };
            let left = self.keeper.records.find(|record| {
                record.uid == self.peer.uid
                    && record.provider == self.served.name
                    && record.token == kept.key.token
                    && (!record.is_whole() || forgotten(record))
            });
            // Nobody makes one, as long as nobody else works in the store. Who has it takes it away, or shows it again, and is waited for: all of them together
            // no longer than one, and not in the background.
            let until = Instant::now() + if request.auto { Duration::ZERO } else { PATIENCE };
            for record in left {
                let claim = self.keeper.records.claim_by(&record.id, until, cx);
                cx.check_cancelled()?;
                // What is forgotten nobody asks for once more.
                if claim.is_err() && (request.auto || !forgotten(&record)) {
                    continue;
                }
                let taken = claim.and_then(|_claim| {
                    // As it is now that nobody else works on it.
                    let now = self.keeper.records.get(&record.id).filter(|now| !now.is_whole() || forgotten(now));
                    let Some(record) = now else { return Ok(None) };
                    let place = record.place();
                    if !forgotten(&record) && self.keeper.stays_mounted(&record)? {
                        let place = place.display();
                        return Ok(Some(format!(
                            "kept the branch at {place}, whose removal was cut off: it is mounted"
                        )));
                    }
                    self.keeper.take_down(&record, cx)?;
                    Ok(Some(format!("took away what was left at {}", place.display())))
                });
                match taken {
                    Ok(action) => actions.extend(action),
                    // One that is in use holds up nothing else.
                    Err(error) => drop(first_error.get_or_insert(error)),
                }
            }
            let inner = ReclaimRequest { auto: request.auto, forgotten: Vec::new() };
            let mut reclaimed = self.served.provider.reclaim(&Place::new(&kept.store), &inner, cx)?;
            actions.append(&mut reclaimed.actions);
            // What lies in a store here is none of the caller's own store, and is known to them by other references.
            first_error.map_or(Ok(Reclaimed { actions, held: Vec::new(), ..reclaimed }), Err)
        })
    }
}

impl Kept {
    /// Waits until nobody else works in the store.
    fn alone(&self, cx: &Context<'_>) -> Result<RwLockWriteGuard<'_, ()>> {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.lock.try_write() {
                Ok(alone) => return Ok(alone),
                Err(TryLockError::Poisoned(poisoned)) => return Ok(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) if Instant::now() < until => {
                    cx.check_cancelled()?;
                    std::thread::sleep(MOMENT);
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(Error::new(ErrorKind::Busy, "another call is working in this store")
                        .with_hint("wait a little, then repeat"));
                }
            }
        }
    }
}

/// Refuses a list whose texts take more, before it is written a second time.
fn refuse_beyond(snapshots: &[Snapshot], limit: usize) -> Result<()> {
    if snapshots.iter().map(texts).sum::<usize>() <= limit {
        return Ok(());
    }
    let message = format!("the labels and attributes of the snapshots are more than {} MiB", limit >> 20);
    Err(Error::new(ErrorKind::ResourceExhausted, message).with_hint("ah agent fs rm removes snapshots by their ids"))
}

/// Where a directory is, for the log: not where its caller says that it is. In a mount namespace of their own they can have it anywhere, so what is reached
/// by a mount that is not one here is marked.
fn named(dir: Option<&Dir>) -> Option<String> {
    let dir = dir?;
    let path = mounts::path_of(dir.as_fd()).ok()?;
    let about = About::of(dir).ok()?;
    // Mostly it is found at once, without all mounts being read.
    let is_there = mounts::open_plain(&path).and_then(About::of).is_ok_and(|there| about.same_file(&there));
    let is_here = is_there || mounts::find(about.mount).is_ok_and(|mount| mount.is_some());
    // Behind it: the beginning of a long one is cut off.
    let mark = if is_here { "" } else { " (in its own mount namespace)" };
    Some(format!("{}{mark}", path.to_string_lossy()))
}

/// Takes out what was read as root of a repository: where it lies, is the user's to say, and it may be anywhere.
fn blind(snapshot: &mut Snapshot) {
    snapshot.repository = None;
}

#[cfg(test)]
mod tests {
    use super::*;
    use ah_plugin_api::{Durability, Timestamp};

    #[test]
    fn a_list_is_refused_by_the_texts_in_it() {
        let id = SnapshotId::new("a").unwrap();
        let snapshot = Snapshot {
            reference: Reference::new(id.as_str()).unwrap(),
            id,
            created: Timestamp { secs: 0, nanos: 0 },
            label: Some("x".repeat(10)),
            attributes: [("key".to_owned(), "x".repeat(7))].into(),
            durability: Durability::Durable,
            tree: None,
            entries: None,
            omitted_total: 0,
            omitted: Vec::new(),
            repository: None,
            pins: None,
            changed_below: None,
        };
        let list = vec![snapshot; 3];
        assert!(refuse_beyond(&list, 60 + 3 * 32).is_ok());
        assert_eq!(refuse_beyond(&list, 59 + 3 * 32).unwrap_err().kind, ErrorKind::ResourceExhausted);
    }
}
