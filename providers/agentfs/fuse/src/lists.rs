//! Directories that are being read: the names of each, as they were when that began.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ah_agentfs::{DirEntry, Ino};

/// How many are remembered.
const LISTS: usize = 32;
/// How many bytes they may take together: some 900,000 short names. One list that alone takes more may be there besides: directories in it are read in turn with it, and of one
/// that is not remembered all names are listed anew with every message.
const BYTES: usize = 64 << 20;

pub(crate) type Names = Arc<Vec<DirEntry>>;

struct List {
    of: Ino,
    names: Names,
    bytes: usize,
}

/// See the module. What was asked for last comes last.
#[derive(Default)]
pub(crate) struct Lists(Mutex<VecDeque<List>>);

impl Lists {
    pub(crate) fn get(&self, directory: Ino) -> Option<Names> {
        let mut lists = self.lock();
        let at = lists.iter().position(|list| list.of == directory)?;
        let list = lists.remove(at)?;
        let names = list.names.clone();
        lists.push_back(list);
        Some(names)
    }

    /// Remembers a list in place of an older one, and forgets others that nobody has asked for lately if they become too many.
    pub(crate) fn put(&self, directory: Ino, names: Names) {
        let bytes = names.iter().map(|entry| size_of::<DirEntry>() + entry.name.capacity()).sum();
        let mut lists = self.lock();
        // One that alone takes more goes with the next such, and has others beside it only behind it.
        lists.retain(|list| list.of != directory && bytes <= BYTES);
        lists.push_back(List { of: directory, names, bytes });
        if lists.len() > LISTS {
            lists.pop_front();
        }
        let counts = |list: &List| list.bytes <= BYTES;
        let mut all: usize = lists.iter().filter(|&list| counts(list)).map(|list| list.bytes).sum();
        while all > BYTES
            && let Some(list) = lists.iter().position(counts).and_then(|at| lists.remove(at))
        {
            all -= list.bytes;
        }
    }

    /// All names were read: who goes on behind others finds them anew.
    pub(crate) fn forget(&self, directory: Ino, names: &Names) {
        self.lock().retain(|list| list.of != directory || !Arc::ptr_eq(&list.names, names));
    }

    /// Every change here is whole before the lock is let go.
    fn lock(&self) -> MutexGuard<'_, VecDeque<List>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use ah_agentfs::Kind;

    use super::*;

    fn names(count: usize, length: usize) -> Names {
        let entry = |cookie| DirEntry { cookie, ino: cookie, kind: Kind::File, name: vec![b'n'; length] };
        Arc::new((0..count as u64).map(entry).collect())
    }

    #[test]
    fn large_directories_that_are_read_in_turn_stay_and_who_was_not_asked_for_lately_goes() {
        let lists = Lists::default();
        lists.put(1, names(150_000, 16));
        lists.put(2, names(150_000, 16));
        assert!(lists.get(1).is_some() && lists.get(2).is_some() && lists.get(1).is_some());
        // 49 MiB, and before them 9 each.
        lists.put(3, names(800_000, 16));
        assert!(lists.get(2).is_none() && lists.get(1).is_some() && lists.get(3).is_some());
        // However large.
        lists.put(4, names(900_000, 64));
        assert!(lists.get(4).is_some() && lists.get(1).is_none() && lists.get(3).is_none());
        // Nor do those in it that are read meanwhile have it listed anew.
        for child in [1, 2, 3] {
            lists.put(child, names(700_000, 16));
            assert!(lists.get(child).is_some() && lists.get(4).is_some(), "{child}");
        }
        assert!(lists.get(1).is_none() && lists.get(2).is_none(), "of all others there are not more than before");
        lists.put(4, names(900_000, 64));
        assert!(lists.get(4).is_some() && lists.get(3).is_none());
        (5..5 + LISTS as u64).for_each(|ino| lists.put(ino, names(1, 1)));
        assert!(lists.get(4).is_none() && lists.get(5).is_some());
        let (read, newer) = (lists.get(6).unwrap(), names(2, 1));
        lists.put(6, newer.clone());
        lists.forget(6, &read);
        assert!(lists.get(6).is_some_and(|names| Arc::ptr_eq(&names, &newer)));
        lists.forget(6, &newer);
        assert!(lists.get(6).is_none());
    }
}
