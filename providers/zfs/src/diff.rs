//! Differences between two snapshots, or a snapshot and the workspace: both sides are looked at, and contents are read only of what times
//! leave open (`ah_provider_directory::Comparison`).
//!
//! Not by libzfs's `zfs_show_diffs`: it tells paths, and leaves out what it finds none for. ZFS notes one parent for a file, of the name
//! that it was given last; once that one is removed, what is written to the file is not told, and the call succeeds all the same
//! (`zfs_obj_to_path` in the module, `write_inuse_diffs_one` in `libzfs_diff.c`; 2.1 to 2.3).

use ah_plugin_api::{
    Changes, Context, DiffMethod, DiffRequest, Dir, Place, Reference, RelPath, Result, Side as Asked, Timestamp,
};
use ah_provider_directory::{Comparison, Side, failed};
use rustix::fs::{Mode, OFlags, Statx, StatxAttributes};

use crate::find::{self, Found};
use crate::locate;
use crate::record::Record;
use crate::store::Store;
use crate::sys::Number;
use crate::view;

/// A file that was written less than so many seconds before the older side was taken may have been written after it within the same
/// tick of the clock.
const RECENT: i64 = 2;

/// Answers [`ah_plugin_api::Provider::diff`].
pub(crate) fn diff(place: &Place<'_>, request: &DiffRequest, cx: &Context<'_>) -> Result<Changes> {
    let store = Store::new(place.store);
    let open = |asked: &Asked| match asked {
        Asked::Snapshot(reference) => Taken::snapshot(&store, reference),
        Asked::Workspace => Taken::workspace(place.need_workspace()?),
    };
    // To show a snapshot the kernel has it mounted by a program, which cannot be stopped in the middle.
    let from = open(&request.from)?;
    cx.check_cancelled()?;
    let to = open(&request.to)?;
    cx.check_cancelled()?;
    let related = from.dataset == to.dataset;
    // Snapshots are made when all else of a transaction group is done.
    if related && from.rel == to.rel && from.made_in.is_some() && from.made_in == to.made_in {
        return Ok(Changes {
            changes: Vec::new(),
            method: DiffMethod::Native,
            untouched: true,
            lost: Vec::new(),
            unread: Vec::new(),
        });
    }
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

/// A side, and when it was taken.
struct Taken {
    side: Side,
    dataset: String,
    /// From the dataset's root to the workspace.
    rel: RelPath,
    /// The transaction group that made it; the workspace is in none yet.
    made_in: Option<u64>,
    /// When it was asked for. What it shows is from then or later, but can be of many seconds before the time that ZFS has for it, which
    /// is when that was on the disk.
    asked: Option<Timestamp>,
}

impl Taken {
    fn snapshot(store: &Store<'_>, reference: &Reference) -> Result<Self> {
        let (found, made_in) = find::with_snapshot(store, reference, |dataset, opened, id| {
            let full = opened.name();
            let record = Record::from_properties(&opened.user_properties(), dataset, id)?;
            Ok((Found { dataset: dataset.to_owned(), full, record }, opened.number(Number::CreateTxg)))
        })?;
        let omitted = found.record.snapshot.omitted.iter().map(|omission| omission.path.clone());
        let side = Side::new(view::directory(&found)?.0, |_| false).hiding(omitted);
        let Found { dataset, record, .. } = found;
        Ok(Self { side, dataset, rel: record.rel, made_in: Some(made_in), asked: Some(record.snapshot.created) })
    }

    fn workspace(workspace: &Dir) -> Result<Self> {
        let located = locate::workspace(workspace)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fail = |errno| failed("cannot look at the workspace", errno);
        let top = rustix::fs::openat(workspace, c".", flags, Mode::empty()).map_err(fail)?;
        // What is in mapped files' pages only has changed no time yet.
        rustix::fs::syncfs(&top).map_err(fail)?;
        let elsewhere = |stat: &Statx| stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
        let side = Side::new(top, elsewhere).hiding(located.omitted.into_iter().map(|omission| omission.path));
        Ok(Self { side, dataset: located.mounted.dataset, rel: located.rel, made_in: None, asked: None })
    }
}
