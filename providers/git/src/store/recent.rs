//! Small objects that were read a moment ago: who reads a thousand files of a snapshot one by one passes the same few directories
//! each time.
//!
//! Objects are named by their contents, so what is remembered is never out of date. Contents of files are not kept here.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use gix::objs::Kind;
use gix::{ObjectId, oid};

/// What all of them may have together, bytes; then everything is forgotten, and begins anew.
const LIMIT: usize = 4 << 20;
/// Larger ones are not kept.
const LARGEST: usize = 64 << 10;

/// The memory.
#[derive(Debug, Default)]
pub(super) struct Recent(Mutex<(HashMap<ObjectId, Known>, usize)>);

type Known = (Kind, Arc<[u8]>);

impl Recent {
    /// What is remembered of an object.
    pub(super) fn get(&self, id: &oid) -> Option<Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0.get(id).cloned()
    }

    /// Remembers an object whose hash was checked.
    pub(super) fn put(&self, id: &oid, kind: Kind, data: &[u8]) {
        if data.len() > LARGEST {
            return;
        }
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.1 + data.len() > LIMIT {
            *known = Default::default();
        }
        if known.0.insert(id.to_owned(), (kind, data.into())).is_none() {
            known.1 += data.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stays_within_its_limit() {
        let recent = Recent::default();
        let id = |n: u32| crate::store::hash(Kind::Blob, &n.to_le_bytes());
        let data = vec![0; LARGEST];
        for n in 0..1000 {
            recent.put(&id(n), Kind::Blob, &data);
            assert_eq!(recent.get(&id(n)).map(|(_, data)| data.len()), Some(LARGEST));
            let known = recent.0.lock().unwrap();
            assert_eq!(known.1, known.0.len() * LARGEST);
            assert!(known.1 <= LIMIT);
        }
        recent.put(&id(1000), Kind::Blob, &vec![0; LARGEST + 1]);
        assert!(recent.get(&id(1000)).is_none());
    }
}
