//! What is kept under a name of theirs, and is another file: it was damaged and put right since, or made anew.
//!
//! The name says the contents (of a pack: the objects), so what is whole serves all lists. Theirs takes the place of ours if it is
//! whole, which costs reading it; else it is theirs that is damaged, and ours stays. From then on both are one file again. Where they cannot be, a copy is
//! taken for the same if it is as large.

use std::os::fd::{AsFd, OwnedFd};

use ah_plugin_api::{Context, ErrorKind, Result};
use gix::ObjectId;

use super::PACKS;
use super::link::{Linker, Way};
use crate::store::files::{self, Doing};
use crate::store::loose;
use crate::store::pack::Pack;

/// Looks at a loose object that both have. `folder` is what `ours` is called inside of `keep`.
pub(super) fn loose(
    linker: &mut Linker<'_>,
    theirs: &OwnedFd,
    ours: &OwnedFd,
    (name, id): (&str, &ObjectId),
    folder: &str,
    cx: &Context<'_>,
) -> Result<Way> {
    let temp = files::temp_name("kept")?;
    match linker.beside(theirs, name, ours, &temp)? {
        Some(Way::Done) => {}
        // Ours stays.
        Some(Way::Special) | None => return Ok(Way::Done),
        Some(way) => return Ok(way),
    }
    if loose::is_whole(ours, &temp, id, cx)? {
        linker.replace(ours, &temp, name, folder)?;
    } else {
        files::remove(ours, &temp)?;
    }
    Ok(Way::Done)
}

/// Looks at a pack that both have.
pub(super) fn pack(
    linker: &mut Linker<'_>,
    theirs: &OwnedFd,
    ours: &OwnedFd,
    stem: &str,
    cx: &Context<'_>,
) -> Result<Way> {
    let temp = files::temp_name("kept")?;
    let (mut others, mut outcome) = (Vec::new(), Way::Done);
    for ending in ["pack", "idx"] {
        let (name, temp) = (format!("{stem}.{ending}"), format!("{temp}.{ending}"));
        match linker.beside(theirs, &name, ours, &temp)? {
            Some(Way::Done) => others.push((name, temp)),
            Some(Way::Special) | None => {}
            Some(way) => outcome = way,
        }
    }
    let whole = outcome == Way::Done && !others.is_empty() && is_whole(theirs, stem, cx)?;
    for (name, temp) in others {
        if whole {
            linker.replace(ours, &temp, &name, PACKS)?;
        } else {
            files::remove(ours, &temp)?;
        }
    }
    Ok(outcome)
}

/// Whether a pack and its index are, to the last bit, what their checksums say.
fn is_whole(dir: &OwnedFd, stem: &str, cx: &Context<'_>) -> Result<bool> {
    let Ok(pack) = Pack::open(dir.as_fd(), stem, 0) else { return Ok(false) };
    match pack.is_sound(cx) {
        Err(error) if error.kind == ErrorKind::Cancelled => Err(error),
        sound => Ok(sound.unwrap_or(false) && is_pair(dir, stem)?),
    }
}

/// Whether a pack ends as its index says. Costs two small reads.
pub(super) fn is_pair(dir: &OwnedFd, stem: &str) -> Result<bool> {
    let end = |ending: &str, before: u64| -> Result<Option<[u8; 20]>> {
        let name = format!("{stem}.{ending}");
        let Some((file, size)) = files::open_file(dir, &name)? else { return Ok(None) };
        let Some(at) = size.checked_sub(before) else { return Ok(None) };
        let mut sum = [0; 20];
        let read = files::pread_full(&file, &mut sum, at).doing(|| format!("read {name}"))?;
        Ok((read == sum.len()).then_some(sum))
    };
    let pack = end("pack", 20)?;
    Ok(pack.is_some() && pack == end("idx", 40)?)
}
