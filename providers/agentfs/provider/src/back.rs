//! The caller's part of making a workspace that lies behind AgentFS a plain directory again: a copy of it, beside it.

use std::collections::BTreeMap;
use std::os::fd::AsFd;

use ah_agentfs::Workspace;
use ah_plugin_api::{
    CapturePolicy, Context, ConvertRequest, Converted, Dir, Durability, Error, ErrorKind, LogLevel, Place, Provider,
    ReclaimRequest, Result, SnapshotId, SnapshotRequest, Timestamp,
};
use ah_provider_directory::{Copier, Mount, Mounts, failed, look};

use crate::conversion::{
    Around, Behind, COPY, Note, cut_short, incomplete, lock_back, path_beside, refuse_held, restored, unlock,
};
use crate::home::{self, Shown, TREE};

/// Copies the workspace, and has the service put the copy in its place; twice at most, if it is worked in meanwhile.
pub(crate) fn back(service: &impl Provider, store: &Dir, cx: &Context<'_>) -> Result<Converted> {
    match once(service, store, cx) {
        Err(error) if error.kind == ErrorKind::Conflict => once(service, store, cx),
        done => done,
    }
}

fn once(service: &impl Provider, store: &Dir, cx: &Context<'_>) -> Result<Converted> {
    // It is mounted then, if it can be, and what others have left is put in order.
    settle(service, store, cx)?;
    let (home, mounts) = (home::path_of(store)?, Mounts::read()?);
    let behind = Behind::of(store)?;
    let branch = behind.as_ref().map(|behind| behind.branch);
    let is_it = |mount: &&Mount| {
        branch.is_some()
            && Shown::parse(&mount.source).is_some_and(|shown| shown.home == home && shown.branch == branch)
    };
    let mounted = mounts.iter().find(is_it);
    let stays = behind.is_some();
    let Some(behind) = behind.filter(|behind| behind.taken_back != Some(true)) else {
        // It cannot have been taken back.
        if mounted.is_some() {
            return Err(Behind::damaged(store));
        }
        let mut notes = vec!["it is a plain directory again already: nothing was left to do".to_owned()];
        if stays {
            notes
                .push("what lay behind it `ah agent fs gc` takes away, once no snapshot or branch reads it".to_owned());
        }
        return Ok(Converted { notes, ..Converted::default() });
    };
    let at = behind.at();
    match mounted {
        Some(mount) if mount.point == at => {}
        Some(mount) => {
            let message = format!(
                "it is at {}, since a folder above it was renamed: it was {}",
                mount.point.display(),
                at.display()
            );
            return Err(Error::new(ErrorKind::FailedPrecondition, message)
                .with_hint("give that its old name back, then repeat"));
        }
        None => {
            let message = format!("the workspace is not mounted at {}", at.display());
            return Err(Error::new(ErrorKind::FailedPrecondition, message)
                .with_hint(format!("{} says why", home.join("log").display())));
        }
    }
    if let Some(inside) = mounts.iter().find(|mount| mount.point != at && mount.point.starts_with(&at)) {
        let message = format!("{} is mounted inside of it", inside.point.display());
        return Err(Error::new(ErrorKind::FailedPrecondition, message).with_hint("unmount it, then repeat"));
    }
    let around = Around::of(&at)?;
    if around.look(&around.behind()).is_none() {
        return Err(incomplete());
    }
    let lies_behind = path_beside(&at, &around.behind());
    if matches!(Workspace::may_be_of(&home.join(TREE), &lies_behind), Ok(false)) {
        return Err(restored(&home, &lies_behind));
    }
    let busy = || Error::new(ErrorKind::Busy, "another command is taking it back").with_hint("repeat it in a moment");
    let lock = lock_back(store)?.ok_or_else(busy)?;
    let aside = format!("{COPY}{}", home::random()?);
    let mut note = Note::new(true, &at, aside.as_ref());
    note.before = Some(aside.trim_start_matches('.').to_owned());
    note.write(store)?;
    let done = copy(service, store, &around, &mut note, cx).and_then(|notes| {
        let mut converted = service.convert(&Place::new(store), &ConvertRequest { back: true }, cx)?;
        converted.notes.extend(notes);
        Ok(converted)
    });
    if done.is_err()
        && let Ok(Some(note)) = Note::of(store)
    {
        // Whoever settles it says nothing of that: it is told here of what this failed.
        let _ = Note { given_up: true, ..note }.write(store);
    }
    unlock(&lock);
    if done.is_err() {
        // The copy goes, or, if it is in its place already, the rest of what it is there instead of. If not now, then by the next command.
        let _ = settle(service, store, cx);
        if Behind::of(store).is_ok_and(|behind| behind.is_none_or(|behind| behind.taken_back == Some(true))) {
            cx.log(LogLevel::Warn, &cut_short(&at, true, true));
        }
    }
    done
}

/// Gives notes for a person. Nothing of the workspace is open when it returns.
fn copy(
    service: &impl Provider,
    store: &Dir,
    around: &Around,
    note: &mut Note,
    cx: &Context<'_>,
) -> Result<Vec<String>> {
    let cannot = |errno| failed("cannot make a copy beside the workspace", errno);
    let at = note.at();
    let from = Dir::open(&at)?;
    refuse_held(&from, cx)?;
    let request = SnapshotRequest {
        id: SnapshotId::new(note.before.clone().unwrap_or_default())?,
        created: Timestamp::now(),
        label: None,
        attributes: BTreeMap::new(),
        durability: Durability::Instant,
        policy: CapturePolicy::default(),
    };
    service.snapshot(&Place::new(store).with_workspace(&from), &request, cx)?;
    let to = around.make(note.aside())?;
    let mut copier = Copier::new(to.as_fd(), at, cx);
    // What the kernel remembers of what was changed below can look like a change, once.
    let again = |error: Error| match error.kind {
        ErrorKind::Busy => Error { kind: ErrorKind::Conflict, ..error },
        _ => error,
    };
    copier.run(from.as_fd()).and_then(|top| copier.finish(from.as_fd(), &top)).map_err(again)?;
    cx.progress("putting it on disk", 0, None);
    rustix::fs::syncfs(&to).map_err(cannot)?;
    note.made = Some(look(&to, b"").map_err(cannot)?.stx_ino);
    note.write(store)?;
    Ok(copier.notes())
}

fn settle(service: &impl Provider, store: &Dir, cx: &Context<'_>) -> Result<()> {
    let request = ReclaimRequest { auto: true, forgotten: Vec::new() };
    service.reclaim(&Place::new(store), &request, cx).map(drop)
}
