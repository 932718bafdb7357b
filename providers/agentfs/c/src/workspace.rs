//! Stores, branches and snapshots. What a function means is said by `ah_agentfs::Workspace`.

use std::ffi::{OsStr, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use ah_agentfs::{self as core, BranchId, SnapshotId};

use crate::outcome::{Failure, Outcome, Stop, call};
use crate::types::{
    self, Access, BranchInfo, Bytes, OnBranch, OnName, OnSnapshot, Options, SnapshotInfo, give, must_have,
};
use crate::view::View;

/// An open store. One process has it at a time.
pub struct Workspace {
    inner: core::Workspace,
    /// Shared with the views: how many there are.
    views: Arc<()>,
}

// Any number of threads may call at once.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<Workspace>();
    shared::<View>();
};

/// Makes an empty store in the directory `store`, which is made too, for a lower directory. EXISTS if there is one. Paths are
/// bytes, as the system has them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agentfs_create(store: Bytes, lower: Bytes, failure: *mut Failure) -> i32 {
    // SAFETY: the header's contract: byte strings and `failure` are what they say.
    unsafe { call(failure, || Ok(core::Workspace::create(path(&store)?, path(&lower)?)?)) }
}

/// Opens a store. `options` may be null. NOT_FOUND: no store; BUSY: open elsewhere; also NEWER_FORMAT, OTHER_LOWER, CORRUPT.
/// After a crash this takes a time that does not grow with the store.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agentfs_open(
    store: Bytes,
    lower: Bytes,
    options: *const Options,
    workspace: *mut *mut Workspace,
    failure: *mut Failure,
) -> i32 {
    let work = || {
        must_have(workspace)?;
        // SAFETY: the header's contract: `options` is null or one.
        let options =
            unsafe { options.as_ref() }.map_or_else(|| Ok(core::Options::default()), |given| given.asked())?;
        // SAFETY: as above.
        let (store, lower) = unsafe { (path(&store)?, path(&lower)?) };
        let opened = Workspace { inner: core::Workspace::open(store, lower, options)?, views: Arc::new(()) };
        // SAFETY: as above.
        unsafe { give(workspace, Box::into_raw(Box::new(opened))) }
    };
    // SAFETY: as above.
    unsafe { call(failure, work) }
}

/// Takes everything to the disk and closes the store. BUSY as long as there is a view: nothing happens then. With any other answer the
/// handle is gone; an error says that what was changed last may be lost. Not at the same time as any other call with this handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agentfs_close(workspace: *mut Workspace, failure: *mut Failure) -> i32 {
    let work = || {
        // SAFETY: the header's contract: a handle that is open.
        let opened = unsafe { workspace_of(workspace)? };
        if Arc::strong_count(&opened.views) > 1 {
            return Err(core::Error::Busy("a view is open").into());
        }
        // SAFETY: it came from `Box::into_raw`, and nobody else uses it.
        let closed = unsafe { Box::from_raw(workspace) };
        Ok(closed.inner.sync()?)
    };
    // SAFETY: as above.
    unsafe { call(failure, work) }
}

/// A snapshot of the lower directory as it is now; nothing is read or copied. Takes up to 10 ms, for a tick of the clock; a second
/// where files bear whole seconds. A label is any bytes. Behind it what is below is kept for its branches, copied where the disk
/// shares no contents between files, unless AGENTFS_OPEN_WITHOUT_PINS was said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agentfs_base(
    workspace: *mut Workspace,
    label: Bytes,
    snapshot: *mut u64,
    failure: *mut Failure,
) -> i32 {
    // SAFETY: the header's contract.
    unsafe { make(workspace, label, snapshot, failure, |workspace, label| Ok(workspace.base(label)?.0)) }
}

/// A branch that begins at a snapshot, any number of times, at a cost that depends on nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agentfs_branch(
    workspace: *mut Workspace,
    from: u64,
    label: Bytes,
    branch: *mut u32,
    failure: *mut Failure,
) -> i32 {
    let grow = |workspace: &core::Workspace, label: &[u8]| Ok(workspace.branch(SnapshotId(from), label)?.0);
    // SAFETY: the header's contract.
    unsafe { make(workspace, label, branch, failure, grow) }
}

/// A snapshot of a branch. Every change that had returned before the call is in it, none that begins after its return is, and a
/// change that runs meanwhile is in it wholly or not at all. After an error there is none. `class_`: one of agentfs_class.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agentfs_snapshot(
    workspace: *mut Workspace,
    branch: u32,
    label: Bytes,
    class_: u32,
    snapshot: *mut u64,
    failure: *mut Failure,
) -> i32 {
    let take = |workspace: &core::Workspace, label: &[u8]| {
        Ok(workspace.snapshot(BranchId(branch), label, types::class(class_)?)?.0)
    };
    // SAFETY: the header's contract.
    unsafe { make(workspace, label, snapshot, failure, take) }
}

/// Shows all snapshots, oldest first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agentfs_snapshots(
    workspace: *mut Workspace,
    show: OnSnapshot,
    context: *mut c_void,
    failure: *mut Failure,
) -> i32 {
    let work = || {
        let show = show.ok_or(Stop::Argument("a null pointer for a function"))?;
        // SAFETY: the header's contract: a handle that is open.
        for snapshot in unsafe { workspace_of(workspace)? }.inner.snapshots() {
            let info = SnapshotInfo {
                id: snapshot.id.0,
                time: snapshot.time.into(),
                branch: snapshot.branch.map_or(0, |branch| branch.0),
                has_branch: snapshot.branch.is_some().into(),
                label: Bytes::of(&snapshot.label),
            };
            // SAFETY: the header's contract: a function of this kind; what it is shown lives longer than the call.
            if !unsafe { show(context, &raw const info) } {
                break;
            }
        }
        Ok(())
    };
    // SAFETY: as above.
    unsafe { call(failure, work) }
}

/// Shows all branches, oldest first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agentfs_branches(
    workspace: *mut Workspace,
    show: OnBranch,
    context: *mut c_void,
    failure: *mut Failure,
) -> i32 {
    let work = || {
        let show = show.ok_or(Stop::Argument("a null pointer for a function"))?;
        // SAFETY: the header's contract: a handle that is open.
        for branch in unsafe { workspace_of(workspace)? }.inner.branches() {
            let info = BranchInfo { id: branch.id.0, reserved: 0, label: Bytes::of(&branch.label) };
            // SAFETY: the header's contract: a function of this kind; what it is shown lives longer than the call.
            if !unsafe { show(context, &raw const info) } {
                break;
            }
        }
        Ok(())
    };
    // SAFETY: as above.
    unsafe { call(failure, work) }
}

/// Shows what somebody was found to have changed, made or removed below since the branch began, of what the branch reads there still: paths
/// below the lower directory. The branch shows it as it is now, its snapshots cannot.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agentfs_changed_below(
    workspace: *mut Workspace,
    branch: u32,
    show: OnName,
    context: *mut c_void,
    failure: *mut Failure,
) -> i32 {
    let work = || {
        let show = show.ok_or(Stop::Argument("a null pointer for a function"))?;
        // SAFETY: the header's contract: a handle that is open.
        for path in unsafe { workspace_of(workspace)? }.inner.changed_below(core::BranchId(branch))? {
            // SAFETY: the header's contract: a function of this kind; what it is shown lives longer than the call.
            if !unsafe { show(context, Bytes::of(&path)) } {
                break;
            }
        }
        Ok(())
    };
    // SAFETY: as above.
    unsafe { call(failure, work) }
}

/// Removes a snapshot. Branches that grew from it are not harmed. Its space comes back in the background. BUSY as long as a view of it
/// is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agentfs_delete_snapshot(
    workspace: *mut Workspace,
    snapshot: u64,
    failure: *mut Failure,
) -> i32 {
    // SAFETY: the header's contract.
    unsafe { with(workspace, failure, |workspace| workspace.delete_snapshot(SnapshotId(snapshot))) }
}

/// Removes a branch; its snapshots stay. BUSY as long as a view of it is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agentfs_delete_branch(workspace: *mut Workspace, branch: u32, failure: *mut Failure) -> i32 {
    // SAFETY: the header's contract.
    unsafe { with(workspace, failure, |workspace| workspace.delete_branch(BranchId(branch))) }
}

/// Takes everything that was changed before this call to the disk.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agentfs_sync(workspace: *mut Workspace, failure: *mut Failure) -> i32 {
    // SAFETY: the header's contract.
    unsafe { with(workspace, failure, core::Workspace::sync) }
}

/// A branch's tree. `access`: one of agentfs_access; BUSY if it is open to write already.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agentfs_view_branch(
    workspace: *mut Workspace,
    branch: u32,
    access: u32,
    view: *mut *mut View,
    failure: *mut Failure,
) -> i32 {
    let open = |workspace: &core::Workspace| match types::access(access)? {
        Access::Write => Ok(workspace.view(BranchId(branch))?),
        Access::Read => Ok(workspace.look(BranchId(branch))?),
    };
    // SAFETY: the header's contract.
    unsafe { view_of(workspace, view, failure, open) }
}

/// A snapshot's tree, to read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agentfs_view_snapshot(
    workspace: *mut Workspace,
    snapshot: u64,
    view: *mut *mut View,
    failure: *mut Failure,
) -> i32 {
    // SAFETY: the header's contract.
    unsafe { view_of(workspace, view, failure, |workspace| Ok(workspace.view_of(SnapshotId(snapshot))?)) }
}

/// Closes a tree: all inodes are forgotten. Null is nothing to close. Not at the same time as any other call with this handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agentfs_view_close(view: *mut View) {
    let close = || {
        if !view.is_null() {
            // SAFETY: it came from `Box::into_raw`, and by the header's contract nobody else uses it.
            drop(unsafe { Box::from_raw(view) });
        }
        Ok(())
    };
    // SAFETY: null is allowed.
    unsafe { call(std::ptr::null_mut(), close) };
}

/// # Safety
///
/// The handle is null or open.
unsafe fn workspace_of<'a>(workspace: *mut Workspace) -> Outcome<&'a Workspace> {
    // SAFETY: the caller's promise; only shared references are made of it.
    unsafe { workspace.as_ref() }.ok_or(Stop::Argument("a null pointer for a workspace"))
}

/// # Safety
///
/// As of [`Bytes::get`].
unsafe fn path(bytes: &Bytes) -> Outcome<&Path> {
    // SAFETY: the caller's promise.
    match unsafe { bytes.get()? } {
        b"" => Err(Stop::Argument("an empty path")),
        bytes => Ok(Path::new(OsStr::from_bytes(bytes))),
    }
}

/// # Safety
///
/// The header's contract.
unsafe fn with(
    workspace: *mut Workspace,
    failure: *mut Failure,
    work: impl FnOnce(&core::Workspace) -> core::Result<()>,
) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { call(failure, || Ok(work(&workspace_of(workspace)?.inner)?)) }
}

/// Makes something that has a label and a number.
///
/// # Safety
///
/// The header's contract.
unsafe fn make<T>(
    workspace: *mut Workspace,
    label: Bytes,
    id: *mut T,
    failure: *mut Failure,
    work: impl FnOnce(&core::Workspace, &[u8]) -> Outcome<T>,
) -> i32 {
    let work = || {
        must_have(id)?;
        // SAFETY: the caller's promise.
        unsafe { give(id, work(&workspace_of(workspace)?.inner, label.get()?)?) }
    };
    // SAFETY: the caller's promise.
    unsafe { call(failure, work) }
}

/// # Safety
///
/// The header's contract.
unsafe fn view_of(
    workspace: *mut Workspace,
    view: *mut *mut View,
    failure: *mut Failure,
    open: impl FnOnce(&core::Workspace) -> Outcome<core::View>,
) -> i32 {
    let work = || {
        must_have(view)?;
        // SAFETY: the caller's promise.
        let workspace = unsafe { workspace_of(workspace)? };
        let opened = View::new(open(&workspace.inner)?, workspace.views.clone());
        // SAFETY: as above.
        unsafe { give(view, Box::into_raw(Box::new(opened))) }
    };
    // SAFETY: as above.
    unsafe { call(failure, work) }
}
