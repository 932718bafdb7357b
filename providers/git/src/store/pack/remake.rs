//! Making a pack's index anew, from the pack alone: all that an index says can be found out by reading everything.

use std::os::fd::BorrowedFd;

use ah_plugin_api::{Context, Error, Result};
use gix::ObjectId;
use sha1::{Digest, Sha1};

use super::bad::Bad;
use super::index::{self, IndexEntry};
use super::read::PIECE;
use super::{Bases, Body, HEADER, Pack, Scratch};
use crate::store::{hash, object_header};

/// The index that the pack `name` should have; none if the pack itself is not what was written, or if it has deltas whose bases
/// only an index tells (this program makes none).
///
/// # Errors
/// If it cannot be read at this moment; `Cancelled`.
pub(in crate::store) fn remake(
    packs: BorrowedFd<'_>,
    name: &str,
    number: u32,
    cx: &Context<'_>,
) -> Result<Option<Vec<u8>>> {
    let unreadable = |why: Bad| match why.errno {
        Some(errno) => Err(Error::from_io(format!("cannot read {name}.pack of the store"), &errno.into())),
        None => Ok(None),
    };
    let pack = match Pack::open_alone(packs, name, number) {
        Ok(pack) => pack,
        Err(why) => return unreadable(why),
    };
    let Some(sum) = pack.sum(cx)? else { return Ok(None) };
    let (mut scratch, bases, mut room) = (Scratch::default(), Bases::default(), Vec::new());
    let (mut entries, mut at) = (Vec::new(), HEADER);
    for _ in 0..pack.count {
        cx.check_cancelled()?;
        match look(&pack, at, &mut scratch, &bases, &mut room) {
            Ok((entry, end)) => {
                entries.push(entry);
                at = end;
            }
            Err(why) => return unreadable(why),
        }
    }
    Ok((at == pack.end()).then(|| index::encode(&mut entries, &sum)))
}

/// What an index says of the entry at `at`, and where that ends.
fn look(
    pack: &Pack,
    at: u64,
    scratch: &mut Scratch,
    bases: &Bases,
    room: &mut Vec<u8>,
) -> Result<(IndexEntry, u64), Bad> {
    let entry = pack.entry(at, scratch)?;
    let body = at + entry.len as u64;
    let mut sum = Sha1::new();
    if let Body::Whole(kind) = entry.body {
        sum.update(object_header(kind, entry.size));
    }
    room.clear();
    room.reserve(PIECE);
    pack.inflate(body, entry.size, scratch, room, |piece| {
        sum.update(&*piece);
        piece.clear();
        Ok(())
    })?;
    sum.update(&*room);
    let end = body + scratch.eaten();
    let id = match entry.body {
        Body::Whole(_) => ObjectId::Sha1(sum.finalize().into()),
        Body::Before(_) | Body::Against(_) => {
            let kind = pack.read((at, u64::MAX), scratch, bases, room)?;
            hash(kind, room)
        }
    };
    let mut crc = crc32fast::Hasher::new();
    pack.pieces(at, end, |piece| {
        crc.update(piece);
        Ok(())
    })?;
    Ok((IndexEntry { id, crc: crc.finalize(), offset: at }, end))
}
