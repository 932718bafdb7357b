//! Differences between two snapshots, or a snapshot and the workspace.
//!
//! Where this process may ask (`changed`), the filesystem says which inodes were written since the older side was taken. The comparison
//! itself is `ah_provider_directory`'s.

mod changed;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;

use ah_plugin_api::{
    Changes, Context, DiffMethod, DiffRequest, Dir, ErrorKind, Omission, Place, Reference, RelPath, Result,
    Side as Asked,
};
use ah_provider_directory::{Comparison, Side, Touched, failed};
use rustix::fs::{Mode, OFlags, Statx, StatxAttributes};

use crate::omitted::omitted;
use crate::shelf::Shelf;
use crate::subvolume::{Subvolume, is_root, is_stub};
use crate::sys::{self, Uuid};
use changed::Changed;

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A file that was written less than so many seconds before the older side was taken may have been written after it within the same
/// tick of the clock.
const RECENT: i64 = 2;

/// Answers [`ah_plugin_api::Provider::diff`].
pub(crate) fn diff(place: &Place<'_>, request: &DiffRequest, cx: &Context<'_>) -> Result<Changes> {
    let open = |asked: &Asked| match asked {
        Asked::Snapshot(reference) => Taken::snapshot(place.store, reference),
        Asked::Workspace => Taken::workspace(place.need_workspace()?),
    };
    let (from, to) = (open(&request.from)?, open(&request.to)?);
    // Of two sides of one subvolume, the one that was taken first.
    let (older, newer) = if from.made_in <= to.made_in { (&from, &to) } else { (&to, &from) };
    let related = from.origin == to.origin;
    let mut changed = if related { Changed::since(newer, older.made_in)? } else { None };
    let mut ways = HashSet::new();
    if changed.is_some() {
        match from.omitted(place, cx).and_then(|from| Ok((from, to.omitted(place, cx)?))) {
            Ok((from, to)) => ways = ways_to(&from, &to),
            Err(error) if error.kind == ErrorKind::Cancelled => return Err(error),
            // Whoever walks needs none of that.
            Err(_) => changed = None,
        }
    }
    let method = if changed.is_some() { DiffMethod::Native } else { DiffMethod::Walk };
    let touched =
        changed.as_ref().map(|changed| |path: &RelPath, inode: u64| changed.holds(inode) || ways.contains(path));
    let comparison = Comparison {
        from: &from.side,
        to: &to.side,
        touched: touched.as_ref().map(|touched| touched as &Touched<'_>),
        settled: related.then_some(older.made.0 - RECENT),
        times: request.times,
    };
    // With whatever was written come the directories above it, up to the workspace; the subvolume may hold more than that.
    let top = rustix::fs::fstat(newer.side.top()).map_err(|errno| failed("cannot look at the workspace", errno))?;
    let untouched = changed.as_ref().is_some_and(|changed| !changed.holds(top.st_ino)) && ways.is_empty();
    let (changes, unread) = comparison.run(&request.paths, cx)?;
    Ok(Changes { changes, method, untouched, lost: Vec::new(), unread })
}

/// The directories above all that was not left out of both sides alike. The filesystem does not count it as written when something is mounted
/// over a directory, or taken off it.
fn ways_to(from: &[Omission], to: &[Omission]) -> HashSet<RelPath> {
    let mut ways = HashSet::new();
    for omission in lacking(from, to).chain(lacking(to, from)) {
        // Above a known one, all are known.
        let _ = std::iter::successors(omission.path.parent(), RelPath::parent).all(|way| ways.insert(way));
    }
    ways
}

/// What of `some` is not in `others` as it is.
fn lacking<'a>(some: &'a [Omission], others: &'a [Omission]) -> impl Iterator<Item = &'a Omission> {
    let others: HashMap<&RelPath, &Omission> = others.iter().map(|other| (&other.path, other)).collect();
    some.iter().filter(move |one| others.get(&one.path) != Some(one))
}

/// A side, and when it was taken.
struct Taken {
    side: Side,
    /// What was left out of a snapshot; none for the workspace.
    omitted: Option<Vec<Omission>>,
    /// The subvolume that both sides must be of to be compared by inodes.
    origin: Uuid,
    /// The transaction that took it; the workspace is newer than all.
    made_in: u64,
    /// When it was taken, in seconds.
    made: (i64, u32),
    live: bool,
}

impl Taken {
    fn snapshot(store: &Dir, reference: &Reference) -> Result<Self> {
        let (_, shown) = Shelf::find(store, reference)?;
        let top = shown.top()?;
        let info = sys::info(&top).map_err(|errno| failed("cannot look at the snapshot", errno))?;
        let hidden = shown.record.omitted.iter().map(|omission| omission.path.clone());
        let side = Side::new(top, is_other_subvolume).hiding(hidden);
        let omitted = Some(shown.record.omitted);
        Ok(Self { side, omitted, origin: shown.record.origin, made_in: info.made_in, made: info.made, live: false })
    }

    fn workspace(workspace: &Dir) -> Result<Self> {
        // That it is on a Btrfs.
        Subvolume::around(workspace)?;
        let fail = |errno| failed("cannot look at the workspace", errno);
        let top: OwnedFd = rustix::fs::openat(workspace, c".", DIRECTORY, Mode::empty()).map_err(fail)?;
        let origin = sys::info(&top).map_err(fail)?.uuid;
        let elsewhere =
            |stat: &Statx| is_other_subvolume(stat) || stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
        Ok(Self {
            side: Side::new(top, elsewhere),
            omitted: None,
            origin,
            made_in: u64::MAX,
            made: (i64::MAX, 0),
            live: true,
        })
    }

    /// What was left out of it, or would be.
    fn omitted(&self, place: &Place<'_>, cx: &Context<'_>) -> Result<Cow<'_, [Omission]>> {
        if let Some(omitted) = &self.omitted {
            return Ok(Cow::Borrowed(omitted));
        }
        let workspace = place.need_workspace()?;
        omitted(workspace, &Subvolume::around(workspace)?, place.store, cx).map(Cow::Owned)
    }
}

/// Another subvolume, or what stands for one in a snapshot.
fn is_other_subvolume(stat: &Statx) -> bool {
    is_stub(stat) || is_root(stat)
}
