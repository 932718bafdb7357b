//! What is kept for whom: made, given back where it holds nothing any more, and for the administrator told and forgotten. A store whose user
//! has lost its token (`rm -rf ~/.ah`) can be reached by nobody else, and what it holds takes space for ever.
//!
//! Not here: what is done in a store (`policy`), the folders (`state`).

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use ah_plugin_api::{
    Context, DestroyRequest, Dir, Error, ErrorKind, ListRequest, LogLevel, Observer, Place, Provider, ProviderName,
    ReclaimRequest, Reclaimed, Result, Snapshot, Timestamp, text,
};
use rustix::fs::AtFlags;
use rustix::io::Errno;

use crate::accounts;
use crate::advice;
use crate::audit::told;
use crate::keeper::{self, Keeper, Served, StoreKey};
use crate::owned::is_token;
use crate::records::{Made, Record};

/// A store, and what is in it.
#[derive(Debug)]
pub struct Held {
    /// Whose it is.
    pub uid: u32,
    /// The token that its user has in the workspace's store, or has lost.
    pub token: String,
    /// Whose store it is among the providers.
    pub provider: ProviderName,
    /// How many snapshots are in it, and when the last one was taken; or why that cannot be told.
    pub snapshots: Result<(usize, Option<Timestamp>)>,
    /// How many views and clones are shown from it.
    pub shown: usize,
}

/// `3 days ago`.
fn ago(time: Timestamp) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let minutes = i64::try_from(now.as_secs()).unwrap_or(i64::MAX).saturating_sub(time.secs) / 60;
    match u64::try_from(minutes).unwrap_or(0) {
        0 => "just now".to_owned(),
        minutes @ 1..60 => format!("{} ago", text::count(minutes, "minute", "minutes")),
        minutes @ 60..2880 => format!("{} ago", text::count(minutes / 60, "hour", "hours")),
        minutes => format!("{} ago", text::count(minutes / 1440, "day", "days")),
    }
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}  {}  ", self.uid, self.token, self.provider)?;
        match &self.snapshots {
            Ok((count, last)) => {
                f.write_str(&text::count(*count, "snapshot", "snapshots"))?;
                if let Some(last) = last {
                    write!(f, ", the last one {}", ago(*last))?;
                }
            }
            Err(error) => write!(f, "cannot be looked at: {error}")?,
        }
        if self.shown > 0 {
            write!(f, ", {}", text::count(self.shown, "view or branch", "views and branches"))?;
        }
        Ok(())
    }
}

/// All stores, by user.
pub(crate) fn all(keeper: &Keeper) -> Result<Vec<Held>> {
    let mut held = Vec::new();
    for key in keeper.state.stores()? {
        let snapshots = keeper.provider(&key.provider).and_then(|served| {
            let store = open(keeper, &key)?;
            let list = served.provider.list(&Place::new(&store), &ListRequest::default(), &Context::quiet())?;
            Ok((list.len(), list.iter().map(|snapshot| snapshot.created).max()))
        });
        let is_its =
            |record: &Record| (record.uid, &record.token, &record.provider) == (key.uid, &key.token, &key.provider);
        let shown = keeper.records.find(is_its).len();
        held.push(Held { uid: key.uid, token: key.token, provider: key.provider, snapshots, shown });
    }
    Ok(held)
}

/// Makes a store, or opens it. Who has as many as they may have gets those back that hold nothing: a branch that was removed has left one.
pub(crate) fn make(keeper: &Keeper, key: &StoreKey) -> Result<Dir> {
    let limit = keeper.config.limits.stores;
    match keeper.state.make_store(key, limit) {
        Err(error) if error.kind == ErrorKind::ResourceExhausted => {
            give_back(keeper, key.uid)?;
            keeper.state.make_store(key, limit)
        }
        made => made,
    }
}

/// Refuses what [`make`] would refuse for want of room; without a token: a new one.
pub(crate) fn check_room(keeper: &Keeper, uid: u32, token: Option<&str>) -> Result<()> {
    let check = || keeper.state.check_room(uid, token, keeper.config.limits.stores);
    check().or_else(|_| {
        give_back(keeper, uid)?;
        check()
    })
}

/// What may be of any store, since no record says of which: a record that cannot be read, or a clone that there is none of.
fn unaccounted(keeper: &Keeper) -> Result<Option<PathBuf>> {
    if let Some(record) = keeper.records.unread() {
        return Ok(Some(record.to_owned()));
    }
    // Its record comes before a clone, and goes after it: one without, that is still there, has none.
    let mut clones = keeper.state.clones()?.into_iter();
    let without = |(id, path): &(String, PathBuf)| keeper.records.get(id).is_none() && path.symlink_metadata().is_ok();
    Ok(clones.find(without).map(|(_, path)| path))
}

/// Removes the stores of a user's account that hold nothing. What somebody works in, or cannot be looked at, stays.
fn give_back(keeper: &Keeper, uid: u32) -> Result<()> {
    let account = accounts::of(uid);
    if let Some(path) = unaccounted(keeper)? {
        let text = format!("no store is given back, because nobody knows of which one {} is", path.display());
        keeper.audit.say_of(uid, &text);
        return Ok(());
    }
    for key in keeper.state.stores()?.into_iter().filter(|key| accounts::of(key.uid) == account) {
        let lock = keeper.lock_of(&key);
        let Ok(_alone) = lock.try_write() else { continue };
        if !keeper.records.find(|record| record.uid == key.uid && record.token == key.token).is_empty() {
            continue;
        }
        let Ok(Served { provider, .. }) = keeper.provider(&key.provider) else { continue };
        let Ok(store) = open(keeper, &key) else { continue };
        let heard = Warnings::default();
        let (place, cx) = (Place::new(&store), Context::new(&heard));
        // Those that are known to hold something are not asked each time.
        let list = || provider.list(&place, &ListRequest::default(), &cx);
        let empty = keeper.known(&key, false, &cx, list, HashMap::is_empty).unwrap_or(false);
        if !empty || !matches!(what_stays(&**provider, &place, None, &cx), Ok(None)) || heard.first().is_some() {
            continue;
        }
        if let Err(error) = keeper.remove_store(&key) {
            let text = format!("the store {}/{} holds nothing, and stays: {}", key.uid, key.token, told(&error));
            keeper.audit.say_of(key.uid, &text);
        }
    }
    Ok(())
}

/// Puts a store in order; what there is in it then, as far as it can be read, and where the list has `lost` some, as far as it can be looked for.
fn what_stays(
    provider: &dyn Provider,
    place: &Place<'_>,
    lost: Option<&Error>,
    cx: &Context<'_>,
) -> Result<Option<String>> {
    let request = ReclaimRequest { auto: false, forgotten: Vec::new() };
    let reclaim = || match (provider.reclaim(place, &request, cx), lost) {
        // The same is not there for this either.
        (Err(error), Some(lost)) if is_same(&error, lost) => Ok(Reclaimed::default()),
        (reclaimed, _) => reclaimed,
    };
    reclaim()?;
    let count = provider.list(place, &ListRequest { partial: lost.is_some() }, cx)?.len();
    let last = reclaim()?;
    if let Some(clone) = last.held.first() {
        return Ok(Some(format!("the clone {clone} lies in it, of which there is no record")));
    }
    if count > 0 {
        return Ok(Some(text::count(count, "snapshot", "snapshots")));
    }
    let rest = [last.stays, last.actions].concat();
    Ok((!rest.is_empty()).then(|| rest.join(", ")))
}

/// Whether two errors are one and the same reason.
fn is_same(one: &Error, other: &Error) -> bool {
    (one.kind, &one.message) == (other.kind, &other.message)
}

/// What a store lists.
fn listed(keeper: &Keeper, key: &StoreKey, partial: bool, cx: &Context<'_>) -> Result<Vec<Snapshot>> {
    let (served, store) = (keeper.provider(&key.provider)?, open(keeper, key)?);
    served.provider.list(&Place::new(&store), &ListRequest { partial }, cx)
}

/// Whether what a clone shows is there. Where a dataset would be mounted is a directory of root's.
fn is_seen(record: &Record) -> bool {
    record.source.as_ref().is_none_or(|source| keeper::open_shown(&source.path(), record.uid).is_ok())
}

/// What was done with a store that was to be forgotten.
#[derive(Debug)]
pub struct Forgotten {
    /// What it is called: `65534/TOKEN`, or `65534/TOKEN/btrfs` where it was that provider's alone.
    pub store: String,
    /// How many snapshots were removed.
    pub snapshots: usize,
    /// How many branches were.
    pub branches: usize,
    /// Where branches were that could not be looked for: nobody knows of them any more.
    pub given_up: Vec<PathBuf>,
    /// Why some could not be looked for: they stay where they are, and belong to nobody.
    pub unseen: Vec<Error>,
}

impl Forgotten {
    /// `3 snapshots and 1 branch`.
    #[must_use]
    pub fn what(&self) -> String {
        let snapshots = text::count(self.snapshots, "snapshot", "snapshots");
        match self.branches {
            0 => snapshots,
            branches => format!("{snapshots} and {}", text::count(branches, "branch", "branches")),
        }
    }
}

/// Removes all that is kept for `uid` under `token`, by all providers or by that one, views and branches too; of the snapshots those that can be looked for.
/// A branch that cannot be is a reason to refuse, before anything is gone; by `force` it is forgotten.
pub(crate) fn forget(keeper: &Keeper, uid: u32, token: &str, provider: Option<&str>, force: bool) -> Result<Forgotten> {
    let name = provider.map_or_else(|| format!("{uid}/{token}"), |provider| format!("{uid}/{token}/{provider}"));
    let missing = || Error::new(ErrorKind::NotFound, format!("there is no store {name}")).with_hint("ahd --stores");
    let is_meant = |of: &ProviderName| provider.is_none_or(|provider| of.as_str() == provider);
    if !is_token(token) {
        return Err(missing());
    }
    let mut keys = keeper.state.stores()?;
    keys.retain(|key| key.uid == uid && key.token == token && is_meant(&key.provider));
    if keys.is_empty() {
        return Err(missing());
    }
    if let Some(path) = unaccounted(keeper)? {
        let message = format!("nobody knows of which store {} is; it may be {name}, which stays", path.display());
        return Err(Error::new(ErrorKind::DataLoss, message).with_hint(format!(
            "look at it; once nothing of it is needed, remove {}, then repeat this",
            path.display()
        )));
    }
    let heard = Warnings::default();
    let cx = Context::new(&heard);
    let is_its = |record: &Record| record.uid == uid && record.token == token && is_meant(&record.provider);
    let (mut branches, mut given_up) = (0, Vec::new());
    let mut records = keeper.records.find(is_its);
    // Some of these stores cannot be looked for.
    let find_lost = |key: &StoreKey| {
        let error = listed(keeper, key, false, &cx).err().filter(|error| error.kind == ErrorKind::FailedPrecondition);
        error.map(|error| (key.clone(), error))
    };
    let lost: Vec<(StoreKey, Error)> = keys.iter().filter_map(find_lost).collect();
    let lost_of = |record: &Record| lost.iter().find(|(key, _)| key.provider == record.provider);
    // The provider's last advice is to forget what is lost, by which nobody would know of a branch any more.
    let refused = |error: &Error, gone: &[&Record]| {
        let places: Vec<String> = gone.iter().map(|record| record.place().display().to_string()).collect();
        let what = if gone.len() == 1 { "the branch at" } else { "the branches at" };
        let is = if gone.len() == 1 { "is" } else { "are" };
        let message =
            format!("{}; {what} {} {is} on that disk, and nothing is forgotten", error.message, places.join(", "));
        let hint = advice::with_last(error.hint.as_deref(), &keeper.forget_command(&name, true));
        Error { message, hint: Some(hint), ..error.clone() }
    };
    let is_branch = |record: &Record| record.made == Made::Clone && record.is_whole();
    for (key, error) in lost.iter().filter(|_| !force) {
        let is_gone = |record: &&Record| record.provider == key.provider && is_branch(record) && !is_seen(record);
        let gone: Vec<&Record> = records.iter().filter(is_gone).collect();
        if !gone.is_empty() {
            return Err(refused(error, &gone));
        }
    }
    // Those first that may be a reason to refuse still.
    records.sort_by_key(|record| record.made == Made::View || lost_of(record).is_none());
    for record in records {
        let _claim = keeper.records.claim(&record.id)?;
        match (keeper.take_down(&record, &cx), lost_of(&record)) {
            (Err(error), Some((key, _))) if error.kind == ErrorKind::FailedPrecondition => {
                // What the provider has written down of it is where its snapshot is, which cannot be looked for either, or goes with the store: which
                // stays where nothing of it can be listed.
                let is_there = keeper::stands(&record)? || is_branch(&record) && is_seen(&record);
                if is_there || listed(keeper, key, true, &cx).is_err() {
                    return Err(error);
                }
                if is_branch(&record) && !force {
                    return Err(refused(&error, &[&record]));
                }
                // Where a dataset would be mounted, if nothing is in it. Before its record: without one nobody would know whose it is.
                let workshop = keeper.state.dir(record.made.workshop())?;
                match rustix::fs::unlinkat(&workshop, record.id.as_str(), AtFlags::REMOVEDIR) {
                    Err(errno) if errno != Errno::NOENT && record.made == Made::Clone => {
                        let message = format!("cannot remove the folder of {}", record.place().display());
                        return Err(Error::from_io(message, &errno.into()));
                    }
                    _ => {}
                }
                if is_branch(&record) {
                    given_up.push(record.place());
                }
                keeper.records.remove(&record.id)?;
                continue;
            }
            (taken, _) => taken?,
        }
        branches += usize::from(is_branch(&record));
    }
    let (mut count, mut unseen) = (0, Vec::new());
    for key in &keys {
        let provider = &keeper.provider(&key.provider)?.provider;
        let store = open(keeper, key)?;
        let place = Place::new(&store);
        let (list, lost) = match provider.list(&place, &ListRequest::default(), &cx) {
            // It is an order: what nobody will look for again, as the disk that it is on will not come back, is not waited for.
            Err(error) if error.kind == ErrorKind::FailedPrecondition => {
                (provider.list(&place, &ListRequest { partial: true }, &cx)?, Some(error))
            }
            list => (list?, None),
        };
        for snapshot in list {
            provider.destroy(&place, &DestroyRequest::Snapshot(snapshot.reference), &cx)?;
            count += 1;
        }
        // What was removed is given back now, since nobody will ask for it again.
        if let Some(what) = what_stays(&**provider, &place, lost.as_ref(), &cx)? {
            let message = format!("the store {uid}/{token} of {} is not empty yet: {what}", key.provider);
            return Err(
                Error::new(ErrorKind::Busy, message).with_hint("repeat it; what is in use has to be left first")
            );
        }
        unseen.extend(lost);
    }
    // What cannot be read is listed nowhere, and would be found by nobody without what is known of the store.
    if let Some(warning) = heard.first_beyond(&unseen) {
        let message = format!("the store {name} holds something that cannot be read, and stays: {warning}");
        return Err(Error::new(ErrorKind::DataLoss, message));
    }
    for key in &keys {
        keeper.remove_store(key)?;
    }
    let forgotten = Forgotten { store: name, snapshots: count, branches, given_up, unseen };
    let gone = forgotten.given_up.iter().map(|place| format!("; the branch at {} is given up", place.display()));
    let unseen = forgotten.unseen.iter().map(|error| format!("; what cannot be looked for stays: {}", told(error)));
    let without: String = gone.chain(unseen).collect();
    let (store, what) = (&forgotten.store, forgotten.what());
    keeper.audit.say(&format!("the administrator had the store {store} forgotten: {what}{without}"));
    Ok(forgotten)
}

/// What providers warn of.
#[derive(Default)]
struct Warnings(Mutex<Vec<String>>);

impl Warnings {
    fn first(&self) -> Option<String> {
        self.first_beyond(&[])
    }

    /// The first that does not only repeat one of `errors`.
    fn first_beyond(&self, errors: &[Error]) -> Option<String> {
        let heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        heard.iter().find(|warning| !errors.iter().any(|error| warning.ends_with(&error.message))).cloned()
    }
}

impl Observer for Warnings {
    fn log(&self, level: LogLevel, message: &str) {
        if level >= LogLevel::Warn {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(message.to_owned());
        }
    }
}

fn open(keeper: &Keeper, key: &StoreKey) -> Result<Dir> {
    let store = keeper.state.store(key.uid, &key.token, &key.provider)?;
    store.ok_or_else(|| Error::new(ErrorKind::NotFound, "the store is gone"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn how_long_ago() {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        let ago = |secs: u64| super::ago(super::Timestamp { secs: i64::try_from(now - secs).unwrap(), nanos: 0 });
        assert_eq!([ago(0), ago(70), ago(7_300)], ["just now", "1 minute ago", "2 hours ago"]);
        assert_eq!(ago(3 * 86_400 + 5), "3 days ago");
        assert_eq!(super::ago(super::Timestamp { secs: i64::MAX, nanos: 0 }), "just now");
        assert!(super::ago(super::Timestamp { secs: i64::MIN, nanos: 0 }).ends_with("days ago"));
    }
}
