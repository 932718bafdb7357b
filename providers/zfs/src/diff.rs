//! Differences between two snapshots, or a snapshot and the workspace. Where ZFS says that nothing was written between two snapshots, that is
//! the answer; else both sides are looked at, and contents are read only of what times leave open (`ah_provider_directory::Comparison`).
//!
//! Not by libzfs's `zfs_show_diffs`: it tells paths, and leaves out what it finds none for. ZFS notes one parent for a file, of the name
//! that it was given last; once that one is removed, what is written to the file is not told, and the call succeeds all the same
//! (`zfs_obj_to_path` in the module, `write_inuse_diffs_one` in `libzfs_diff.c`; 2.1 to 2.3).

use ah_plugin_api::{Changes, Context, DiffMethod, DiffRequest, Dir, Place, Result, Side as Asked, Timestamp};
use ah_provider_directory::{Comparison, Side};
use rustix::fs::{Statx, StatxAttributes};

use crate::failure::of_library;
use crate::find::{self, Found};
use crate::locate;
use crate::store::Store;
use crate::sys::{Kind, Zfs};
use crate::view;

/// A file that was written less than so many seconds before the older side was taken may have been written after it within the same
/// tick of the clock.
const RECENT: i64 = 2;

/// Answers [`ah_plugin_api::Provider::diff`].
pub(crate) fn diff(place: &Place<'_>, request: &DiffRequest, cx: &Context<'_>) -> Result<Changes> {
    let store = Store::new(place.store);
    let find = |asked: &Asked| match asked {
        Asked::Snapshot(reference) => find::snapshot(&store, reference).map(Some),
        Asked::Workspace => Ok(None),
    };
    let (from, to) = (find(&request.from)?, find(&request.to)?);
    if let (Some(from), Some(to)) = (&from, &to)
        && is_untouched(from, to)?
    {
        return Ok(Changes {
            changes: Vec::new(),
            method: DiffMethod::Native,
            untouched: true,
            lost: Vec::new(),
            unread: Vec::new(),
        });
    }
    let open = |found: Option<Found>| match found {
        Some(found) => Taken::snapshot(found),
        None => Taken::workspace(place.need_workspace()?),
    };
    // To show a snapshot the kernel has it mounted by a program, which cannot be stopped in the middle.
    let from = open(from)?;
    cx.check_cancelled()?;
    let to = open(to)?;
    cx.check_cancelled()?;
    let related = from.dataset == to.dataset;
    let asked = [from.asked, to.asked].into_iter().flatten().min();
    let comparison = Comparison {
        from: &from.side,
        to: &to.side,
        touched: None,
        settled: asked.filter(|_| related).map(|asked| asked.secs - RECENT),
        times: request.times,
    };
    let (changes, unread) = comparison.run(&request.paths, cx)?;
    Ok(Changes { changes, method: DiffMethod::Walk, untouched: false, lost: Vec::new(), unread })
}

/// Whether nothing at all was written to the workspace's dataset between two snapshots, and the same was left out of them.
///
/// Whatever is written to a dataset, an owner too, has its root block written anew, which is counted as all others are
/// (`dmu_objset_write_done`, `dsl_dataset_space_written` in the module).
fn is_untouched(from: &Found, to: &Found) -> Result<bool> {
    let omitted = |found: &Found| {
        let snapshot = &found.record.snapshot;
        (snapshot.omitted.clone(), snapshot.omitted_total)
    };
    if from.dataset != to.dataset || from.record.rel != to.record.rel {
        return Ok(false);
    }
    let (older, newer) = if from.made_in <= to.made_in { (from, to) } else { (to, from) };
    if older.made_in == newer.made_in {
        return Ok(true);
    }
    if omitted(from) != omitted(to) {
        return Ok(false);
    }
    let fail = |error| of_library("cannot look at a snapshot", &error);
    let zfs = Zfs::get()?;
    // One that has gone meanwhile is told by who looks into it.
    let opened = zfs.open(&newer.full, Kind::Snapshot).map_err(fail)?;
    Ok(opened.and_then(|opened| opened.written_since(locate::short(&older.full))) == Some(0))
}

/// A side, and when it was taken.
struct Taken {
    side: Side,
    dataset: String,
    /// When it was asked for. What it shows is from then or later, but can be of many seconds before the time that ZFS has for it, which
    /// is when that was on the disk.
    asked: Option<Timestamp>,
}

impl Taken {
    fn snapshot(found: Found) -> Result<Self> {
        let omitted = found.record.snapshot.omitted.iter().map(|omission| omission.path.clone());
        let side = Side::new(view::directory(&found)?.0, |_| false).hiding(omitted);
        Ok(Self { side, dataset: found.dataset, asked: Some(found.record.snapshot.created) })
    }

    fn workspace(workspace: &Dir) -> Result<Self> {
        let located = locate::workspace(workspace)?;
        let top = locate::written_out(workspace)?;
        let elsewhere = |stat: &Statx| stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
        let side = Side::new(top, elsewhere).hiding(located.omitted.into_iter().map(|omission| omission.path));
        Ok(Self { side, dataset: located.mounted.dataset, asked: None })
    }
}
