//! The stores of objects that Git's repositories have, which are kept whole behind a base.
//!
//! What is in one never becomes other under its name, and what goes from it, as `git gc` has it, which Git also starts by itself, went into a pack that came before. So what was there when the base was taken may
//! be in a pack a moment later: in the names of one moment and the files of another there are objects missing. What is kept here is therefore not what there was then, but all that is there at some moment after,
//! and names are written down only when all of it is pinned, those of the packs last. Until then branches show what is there, which is whole, too.
//!
//! What is too large to be pinned, or what there is no room for, branches read below as long as it is there. Once it is gone another pack has it: where that was a pack, what came beside it shows (`view::isolated`); where it was an object, the names of the packs are
//! not written down at all.

use std::ops::ControlFlow;
use std::time::Duration;

use super::fingerprints::{Fingerprint, Told, row_from, rows_of};
use super::pinning::Pinning;
use super::remembered::{LARGEST, Remembered, row_of};
use crate::engine::Engine;
use crate::error::Result;
use crate::lower::{Found, Listed, join};
use crate::rows::key::{self, LineId};
use crate::types::{Kind, Time};
use crate::{platform, read_lock};

/// So often it is tried to find all of a store there before everything else is kept, and behind that: who packs has half a minute.
pub(super) const AT_FIRST: u32 = 4;
pub(super) const AT_LAST: u32 = 300;
const PAUSE: Duration = Duration::from_millis(100);

/// A directory of a store, and of its files what was pinned.
struct Part {
    path: Vec<u8>,
    then: Remembered,
    files: Vec<Fingerprint>,
    /// Those that have several names, and how many.
    several: Vec<(u64, u32)>,
    /// Not all of them are pinned.
    lacks: bool,
}

/// What became of an attempt.
enum Attempt {
    /// All of it is pinned.
    Whole(Vec<Part>),
    /// Something went meanwhile, or came to a name.
    Moving,
    /// It cannot be.
    Never,
}

/// The number of the store of objects in a directory of those names, if that is a repository, as Git tells one. Without births what comes later could not be told from what was there (`None`).
pub(super) fn store_in(birth: Time, names: &[Listed]) -> Option<u64> {
    if birth == Time::default() {
        return None;
    }
    let find = |wanted: &[u8], as_what| names.iter().find(|(name, _, kind)| name == wanted && *kind == as_what);
    let (_, ino, _) = find(b"objects", Kind::Directory)?;
    find(b"refs", Kind::Directory)?;
    find(b"HEAD", Kind::File)?;
    Some(*ino)
}

/// What Git is writing that has no name yet.
fn is_unfinished(name: &[u8]) -> bool {
    [b"tmp_".as_slice(), b".tmp-", b"incoming-"].iter().any(|begin| name.starts_with(begin)) || name.ends_with(b".lock")
}

impl Engine {
    /// Keeps those stores of a base that are not kept yet. Breaks where the base is gone, or the store is being closed.
    pub(super) fn keep_stores(
        &self,
        base: LineId,
        earlier: &[LineId],
        attempts: u32,
        (left, pinning): (&mut [u64; 2], &mut Option<Pinning>),
    ) -> Result<ControlFlow<()>> {
        let Some(pinning) = pinning.as_mut().filter(|_| self.isolates(base).unwrap_or(false)) else {
            return Ok(ControlFlow::Continue(()));
        };
        // Until they are written down.
        let _deciding = self.decide();
        for (store, ino) in self.stores(base)? {
            for attempt in 0..attempts {
                if attempt > 0 {
                    std::thread::sleep(PAUSE);
                }
                let Some(time) = self.base_seen(&read_lock(&self.state), base).filter(|_| !self.is_stopped()) else {
                    return Ok(ControlFlow::Break(()));
                };
                match self.lower.find(&store) {
                    Ok(Some(found)) if (found.ino, found.kind) == (ino, Kind::Directory) && found.btime <= time => {}
                    _ => {
                        self.lose(base, &store);
                        break;
                    }
                }
                // What was read before need not be read again.
                let mut rest = *left;
                match self.pin_store(&store, (time, earlier), (&mut rest, pinning))? {
                    Attempt::Moving => {}
                    Attempt::Never => break,
                    Attempt::Whole(parts) => {
                        if !self.write_store(base, &store, parts)? {
                            return Ok(ControlFlow::Break(()));
                        }
                        *left = rest;
                        break;
                    }
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// The stores of a base of which nothing is written down, and their numbers.
    pub(super) fn stores(&self, base: LineId) -> Result<Vec<(Vec<u8>, u64)>> {
        let mut stores = Vec::new();
        let mut next = self.next_remembered(base, None)?;
        while let Some((above, row)) = next {
            // Of what cannot be read nothing is kept.
            if let Some(ino) = Remembered::decode(&row).ok().and_then(|then| store_in(then.birth, &then.names)) {
                let store = join(&above, b"objects");
                if self.remembered(base, &store)?.is_none() {
                    stores.push((store, ino));
                }
            }
            next = self.next_remembered(base, Some(&above))?;
        }
        Ok(stores)
    }

    /// All directories of a store as they are now, and packs last: what goes into a pack while they are listed is in that. `None`: they are being changed.
    fn directories_now(&self, store: &[u8]) -> Option<Vec<Part>> {
        let (mut all, mut waiting, mut packs) = (Vec::new(), vec![store.to_vec()], None);
        while let Some(path) = waiting.pop().or_else(|| packs.take()) {
            // What is changed from then on bears a later time.
            let before = self.lower.find(&path).ok()??;
            if !self.lower.is_to_come(before.ctime) && !platform::settle(before.ctime) {
                return None;
            }
            let (found, mut names, unchanged) = self.look_in(&path)?;
            if !unchanged || found.ctime != before.ctime || found.device != 0 {
                return None;
            }
            names.retain(|(name, ..)| !is_unfinished(name));
            for (name, ..) in names.iter().filter(|(_, _, kind)| *kind == Kind::Directory) {
                let below = join(&path, name);
                match path == store && name == b"pack" {
                    true => packs = Some(below),
                    false => waiting.push(below),
                }
            }
            let Found { ino, btime: birth, mode, uid, gid, mtime, .. } = found;
            let then = Remembered { ino, birth, mode, uid, gid, mtime, names };
            all.push(Part { path, then, files: Vec::new(), several: Vec::new(), lacks: false });
        }
        Some(all)
    }

    /// Pins all that is in a store now, packs first: they are few, and hold most.
    fn pin_store(
        &self,
        store: &[u8],
        (time, earlier): (Time, &[LineId]),
        (left, pinning): (&mut [u64; 2], &mut Pinning),
    ) -> Result<Attempt> {
        let Some(mut parts) = self.directories_now(store) else { return Ok(Attempt::Moving) };
        if parts.iter().any(|part| part.then.encode().len() > LARGEST) {
            return Ok(Attempt::Never);
        }
        let mut made = 0;
        for part in parts.iter_mut().rev() {
            let failed = self.pin_part(part, (time, earlier), (left, pinning))?;
            made += part.files.len();
            if let Some(failed) = failed {
                // Nothing names those.
                pinning.count_unnamed(made);
                return Ok(failed);
            }
        }
        Ok(Attempt::Whole(parts))
    }

    /// Pins the files of one directory; gives why the attempt has failed, if it has.
    fn pin_part(
        &self,
        part: &mut Part,
        (time, earlier): (Time, &[LineId]),
        (left, pinning): (&mut [u64; 2], &mut Pinning),
    ) -> Result<Option<Attempt>> {
        for (name, ino, kind) in &part.then.names {
            if !matches!(kind, Kind::File | Kind::Symlink) {
                continue;
            }
            let below = join(&part.path, name);
            let is_it = |found: &Found| (found.kind, found.ino, found.device) == (*kind, *ino, 0);
            let Some(found) = self.lower.find(&below).ok().flatten().filter(is_it) else {
                return Ok(Some(Attempt::Moving));
            };
            let hash = match self.told_of(earlier, &below, &found, left)? {
                Told::Nothing => return Ok(Some(Attempt::Moving)),
                Told::TooMuch => {
                    part.lacks = true;
                    continue;
                }
                Told::Hash(hash, open) => {
                    self.pin((&below, &found, &hash), open, pinning);
                    hash
                }
            };
            if !self.pins.is_there(*kind, &hash, found.size) {
                if !matches!(self.lower.find(&below), Ok(Some(now)) if now.is_as(&found)) {
                    return Ok(Some(Attempt::Moving));
                }
                part.lacks = true;
                continue;
            }
            if found.nlink > 1 {
                part.several.push((found.ino, found.nlink));
            }
            let Found { ino, mode, uid, gid, size, mtime, ctime, btime, .. } = found;
            // As if it had been there: what is shown of a base bears no later time.
            let ctime = ctime.min(time);
            part.files.push(Fingerprint { name: name.clone(), ino, mode, uid, gid, size, mtime, ctime, btime, hash });
        }
        Ok(None)
    }

    /// Writes down what is in a store, which is pinned. Until the last of it what is below counts: as long as that is there nothing is missing. False: nobody sees the base any more.
    fn write_store(&self, base: LineId, store: &[u8], parts: Vec<Part>) -> Result<bool> {
        let packs = join(store, b"pack");
        let lacks = parts.iter().any(|part| part.lacks && part.path != packs);
        let (mut rows, mut last) = (Vec::new(), Vec::new());
        for Part { path, then, files, several, .. } in parts {
            // Of who was killed in the middle: what is there now may begin at other names.
            self.forget_rows(&row_from(base, &path, b""))?;
            let links = several
                .into_iter()
                .map(|(ino, links)| (key::of_line(b'j', base, Some(ino)), u64::from(links).to_be_bytes().to_vec()));
            rows.extend(links);
            rows.extend(rows_of(base, &path, (then.ino, then.birth), files));
            let names = (row_of(b'b', base, &path), then.encode());
            if path != store && path != packs {
                rows.push(names);
            } else if path == store || !lacks {
                last.push(names);
            }
        }
        // The last two are one step.
        Ok(self.put_behind(base, &rows)? && self.put_behind(base, &last)?)
    }

    /// A store is not there any more, and was not kept: the base's branches lost it.
    fn lose(&self, base: LineId, store: &[u8]) {
        let state = read_lock(&self.state);
        let is_its = |line: LineId| state.chain(line).is_ok_and(|chain| chain.base == base);
        let branches = state.lines.iter().filter(|(_, line)| line.pen).map(|(&line, _)| line);
        let branches: Vec<_> = branches.filter(|&line| is_its(line)).collect();
        drop(state);
        branches.into_iter().for_each(|branch| self.note_changed(branch, store));
    }
}
