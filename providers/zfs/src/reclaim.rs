//! Finishing or undoing what was cut off, and what could not be finished when it was asked for.

use ah_plugin_api::{Context, ErrorKind, LogLevel, Place, ReclaimRequest, Reclaimed, Result};
use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use crate::clones::{self, Gone, Outcome, State, Written};
use crate::failure::{is_damage, of_library};
use crate::find::{self, AT_ONCE, Datasets};
use crate::names::{Named, read_snapshot};
use crate::remove;
use crate::store::{Identity, Lock, Store};
use crate::sys::{Core, Dataset, Kind, Number, Zfs};

/// Answers [`ah_plugin_api::Provider::reclaim`].
pub(crate) fn reclaim(place: &Place<'_>, request: &ReclaimRequest, cx: &Context<'_>) -> Result<Reclaimed> {
    let store = Store::new(place.store);
    if store.identity()?.is_none() && store.unfinished()?.is_empty() {
        return Ok(Reclaimed::default());
    }
    let mut actions = Vec::new();
    // Whose they were has ended, whoever is at work here: who asked for that is not told that it is done if it is not.
    if let Some(target) = place.target {
        let views = store.views()?.forget(target, &request.forgotten)?;
        if views > 0 {
            actions.push(format!("{views} forgotten views were taken away"));
        }
    }
    // Whoever makes something holds the lock. If it cannot be had, what is half may be theirs.
    let _lock = match store.lock(Lock::Exclusive, cx) {
        Err(error) if error.kind == ErrorKind::Busy && request.auto => {
            return Ok(Reclaimed { actions, ..Reclaimed::default() });
        }
        lock => lock?,
    };
    for name in store.unfinished()? {
        store.remove(&name)?;
    }
    // Read with the lock: it is written again below.
    let Some(identity) = store.identity()? else { return Ok(Reclaimed { actions, ..Reclaimed::default() }) };
    let forgotten: Vec<PathBuf> = match place.target.filter(|_| !request.forgotten.is_empty()) {
        Some(target) => {
            let folder = rustix::fs::readlink(format!("/proc/self/fd/{}", target.as_fd().as_raw_fd()), Vec::new());
            let folder = folder.map(|folder| PathBuf::from(std::ffi::OsString::from_vec(folder.into_bytes())));
            let folder =
                folder.map_err(|e| ah_provider_directory::failed("cannot find the target folder's path", e))?;
            request.forgotten.iter().map(|name| folder.join(name.as_os_str())).collect()
        }
        None => Vec::new(),
    };
    for (gone, written) in clones::all(&store)? {
        cx.check_cancelled()?;
        let record = match written {
            Written::Whole(record) => record,
            Written::CutOff => {
                clones::forget_cut_off(&store, &gone)?;
                continue;
            }
            Written::Damaged(error) => {
                cx.log(LogLevel::Warn, &error.to_string());
                continue;
            }
        };
        match clones::resume(&store, &gone, &record, forgotten.contains(&record.point()), cx) {
            Ok(Outcome::Removed) => actions.push(told(&gone, &record.dataset)),
            Ok(Outcome::Kept) => {
                actions.push(format!("the clone {}, whose removal was cut off, is mounted, and kept", record.dataset));
            }
            // Until it is gone, this record is all that is known of it.
            Ok(Outcome::Stays) if gone.state != State::Whole => {
                let why = "somebody is at it, or what others have in it keeps it";
                cx.log(LogLevel::Warn, &format!("the clone {} is not gone yet: {why}", record.dataset));
            }
            Ok(Outcome::Stays) => {}
            // One that is in use now is for the next time.
            Err(error) => cx.log(LogLevel::Warn, &format!("the clone {} stays: {error}", record.dataset)),
        }
    }
    // Not in the background, behind every snapshot: it may look through all pools.
    if !request.auto {
        free_names(&identity, settle(&store, &identity)?, &mut actions, cx)?;
    }
    Ok(Reclaimed { actions, ..Reclaimed::default() })
}

fn told(gone: &Gone, dataset: &str) -> String {
    match gone.state {
        State::Part => format!("the half-made clone {dataset} was undone"),
        State::Gone | State::Whole => format!("the clone {dataset} was removed"),
    }
}

/// Finds the store's datasets, and writes down where they are now: whoever looks for one that was renamed or destroyed has to look through
/// all pools, each time, until that is known.
fn settle(store: &Store<'_>, identity: &Identity) -> Result<Datasets> {
    let datasets = find::datasets(&Zfs::get()?, identity)?;
    store.know(identity, datasets.known.clone())?;
    Ok(datasets)
}

/// The names of what this store has in a dataset, each with whether it is a snapshot's, not one of what was removed.
fn names_of_ours(dataset: &str, identity: &Identity) -> Result<Vec<(CString, bool)>> {
    let fail = |error| of_library(format!("cannot list the snapshots of {dataset}"), &error);
    let zfs = Zfs::get()?;
    let mut ours = Vec::new();
    let Some(opened) = find::open_dataset(&zfs, dataset).map_err(fail)? else { return Ok(ours) };
    let each = |snapshot: &Dataset<'_>| {
        let name = snapshot.name();
        match read_snapshot(name.to_bytes(), &identity.key) {
            Named::Snapshot(_) => ours.push((name, true)),
            Named::Removed => ours.push((name, false)),
            Named::Foreign => {}
        }
    };
    opened.snapshots(each).map_err(fail)?;
    Ok(ours)
}

/// Goes on with removals of snapshots that were cut off. Nobody is asked or told anything while the library is held: all others wait for it.
fn free_names(identity: &Identity, datasets: Datasets, actions: &mut Vec<String>, cx: &Context<'_>) -> Result<()> {
    let core = Core::get()?;
    let mut todo: Vec<(String, CString, bool)> = Vec::new();
    if let Some(name) = datasets.lost {
        cx.log(LogLevel::Warn, &format!("left for later: {}", find::lost(&name)));
    }
    for dataset in datasets.there {
        let fail = |error| of_library(format!("cannot list the snapshots of {dataset}"), &error);
        cx.check_cancelled()?;
        let ours = names_of_ours(&dataset, identity)?;
        for some in ours.chunks(AT_ONCE) {
            cx.check_cancelled()?;
            let zfs = Zfs::get()?;
            for (name, whole) in some {
                let snapshot = match zfs.open(name, Kind::Snapshot) {
                    // Whether it was removed cannot be read from it. That it is damaged, the list says.
                    Err(error) if is_damage(&error) => continue,
                    opened => opened.map_err(fail)?,
                };
                let Some(snapshot) = snapshot else { continue };
                if (snapshot.number(Number::DeferDestroy) != 0) == *whole {
                    todo.push((dataset.clone(), name.clone(), *whole));
                }
            }
        }
    }
    for (dataset, name, marked) in todo {
        cx.check_cancelled()?;
        if marked {
            remove::set_aside(core, &dataset, &identity.key, &name);
        } else {
            remove::destroy(core, &dataset, &identity.key, &name)?;
            actions.push(format!("the removal of {} was finished", name.to_string_lossy()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ah_plugin_api::{Dir, FileName, Observer, SnapshotId};
    use std::sync::Mutex;

    #[derive(Default)]
    struct Heard(Mutex<Vec<String>>);

    impl Observer for Heard {
        fn log(&self, level: LogLevel, message: &str) {
            if level >= LogLevel::Warn {
                self.0.lock().unwrap().push(message.to_owned());
            }
        }
    }

    #[test]
    fn a_clone_that_is_half_made_or_half_gone_is_told_as_long_as_it_stays() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::open(temp.path()).unwrap();
        Store::new(&dir).identity_with("tank/a", 10, || Ok((1, 100))).unwrap();
        for (suffix, told) in [(".part", true), (".gone", true), ("", false)] {
            let path = temp.path().join(format!("clone-0123456789abcdef{suffix}"));
            std::fs::write(&path, r#"{"dataset":"tank/ah-0-0","mountpoint":"/there"}"#).unwrap();
            let at_it = std::fs::File::open(&path).unwrap();
            rustix::fs::flock(&at_it, rustix::fs::FlockOperation::LockExclusive).unwrap();
            let heard = Heard::default();
            let request = ReclaimRequest { auto: true, forgotten: Vec::new() };
            let reclaimed = reclaim(&Place::new(&dir), &request, &Context::new(&heard)).unwrap();
            let warnings = heard.0.into_inner().unwrap();
            assert_eq!((reclaimed.actions.len(), warnings.len()), (0, usize::from(told)), "{suffix}: {warnings:?}");
            assert!(path.exists());
            std::fs::remove_file(path).unwrap();
        }
    }

    /// Beside an agent somebody takes a snapshot nearly always.
    #[test]
    fn what_a_killed_process_was_shown_is_forgotten_while_somebody_is_at_work() {
        let (temp, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (dir, target) = (Dir::open(temp.path()).unwrap(), Dir::open(target.path()).unwrap());
        let (store, cx) = (Store::new(&dir), Context::quiet());
        std::fs::write(temp.path().join("identity.new-7"), "half").unwrap();
        let [dead, other] = ["walk-1-0", "walk-2-0"].map(|name| FileName::new(name).unwrap());
        let snapshot = SnapshotId::new("kkkkkkkkkkkk").unwrap();
        for name in [&dead, &other] {
            store.views().unwrap().add(&target, name, &snapshot).unwrap();
        }
        let _taking = store.lock(Lock::Shared, &cx).unwrap();
        let request = ReclaimRequest { auto: true, forgotten: vec![dead] };
        let done = reclaim(&Place::new(&dir).with_target(&target), &request, &cx).unwrap();
        assert_eq!((done.actions.len(), store.views().unwrap().of(&snapshot).unwrap()), (1, 1));
        assert!(temp.path().join("identity.new-7").exists(), "somebody may be writing it");
    }

    #[test]
    fn what_was_to_replace_a_file_goes_when_nobody_is_at_it() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::open(temp.path()).unwrap();
        let (place, cx) = (Place::new(&dir), Context::quiet());
        let left = ["identity.new-7", "clone-0123456789abcdef.part.new-9"];
        let write = || left.iter().for_each(|name| std::fs::write(temp.path().join(name), "half").unwrap());
        let ask = |auto| reclaim(&place, &ReclaimRequest { auto, forgotten: Vec::new() }, &cx);
        write();
        let taking = Store::new(&dir).lock(Lock::Shared, &cx).unwrap();
        assert_eq!(ask(false).unwrap_err().kind, ErrorKind::Busy);
        ask(true).unwrap();
        assert!(left.iter().all(|name| temp.path().join(name).exists()), "somebody may be writing them");
        drop(taking);
        for auto in [true, false] {
            write();
            ask(auto).unwrap();
            assert!(!left.iter().any(|name| temp.path().join(name).exists()));
        }
    }
}
