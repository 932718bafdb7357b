//! The contract: what every provider of snapshots promises.

use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::place::Place;
use crate::request::{
    CloneRequest, ConvertRequest, DestroyRequest, DiffRequest, Done, ListRequest, LookupRequest, MountRequest,
    ProbeRequest, ReadDirRequest, ReadRequest, ReclaimRequest, SnapshotRef, SnapshotRequest, UnmountRequest,
    UsageRequest,
};
use crate::types::{Changes, Converted, Description, Entry, Probe, Reclaimed, Snapshot, Usage, View, WritableClone};

/// A mechanism that captures a directory tree and gives it back.
///
/// # Purpose
///
/// `ah` takes a snapshot of a workspace before and after an agent's steps, and gives any of them back as a view, as
/// single files, or as a writable copy. A provider is the mechanism behind it: a filesystem that can snapshot, or a store of
/// its own. It knows nothing of timelines, sessions, restore or users' wishes.
///
/// # Words
///
/// - *workspace*: the directory tree that is captured as one.
/// - *store*: the provider's own folder for that workspace. Made by the caller, empty at first, 0700.
/// - *snapshot*: an immutable capture, with an id from the caller and a [`crate::Reference`] from the provider.
/// - *view*: a snapshot shown read-only at a path, from `mount` to `unmount`.
/// - *clone*: a writable copy grown from a snapshot. It outlives the snapshot it came from.
///
/// # Life cycle
///
/// `probe` → `snapshot` (any number) → `list`, `stat`, `read_dir`, `read`, `lookup`, `diff` → `mount` … `unmount`,
/// `clone_snapshot` … `destroy(Clone)` → `destroy(Snapshot)`. `reclaim` may come at any time.
///
/// # Example
///
/// Workspace `/home/me/proj`, store `~/.ah/workspaces/w1/providers/git`. `snapshot{id: a}` captures it. An agent deletes
/// `src/`. `snapshot{id: b}`. `diff{from: b, to: a}` lists all of `src/` as added, with contents by `read` from `a`: restore is
/// that list, applied by the caller. `mount{a, name: v}` with target `~/.ah/mounts` shows the tree at `~/.ah/mounts/v`;
/// `clone_snapshot{a, name: fix}` with target `~/.ah/branches` makes `~/.ah/branches/fix`, in which another agent goes on.
/// `destroy(Snapshot a)` takes `a` away; `b`, the view's owner permitting, and the clone are untouched.
///
/// # Guarantees, each a case of the conformance suite
///
/// 1. **Immutable.** What a snapshot shows never changes: not by writes to the workspace, to a clone, to a view (which fail),
///    not by destroying other snapshots, nor by anything done to the user's repository.
/// 2. **Exact.** A view, `read_dir` and `read` show the captured tree: names (any bytes but NUL and `/`), contents, kinds,
///    permission bits, symlink targets, empty directories, modification times to the nanosecond (directories included).
///    What is not kept is either absent from the capabilities or listed in `omitted`, with the reason.
/// 3. **Hands off.** Nothing of the user's is changed by any operation: not a byte, mode or time in the workspace, not `.git`.
///    Access times may change where the mount keeps them.
/// 4. **Nothing half.** An operation that fails leaves nothing behind that `reclaim` does not remove, and no snapshot that
///    `list` shows is incomplete. A process may be killed between any two system calls.
/// 5. **Durable as asked.** When `snapshot` returns, the snapshot survives the kill of any process.
///    With `Durable` it survives a power cut, too.
///
/// # Concurrency
///
/// Every method takes `&self` and may be called from many threads, and from many processes on one store, at once.
/// The provider locks what it must, waits at most briefly for another process, then answers `Busy`.
///
/// # Ownership of paths
///
/// The provider works relative to the descriptors of the [`Place`]; paths in it are for messages and answers. It writes to
/// the store, and in the target what `mount` and `clone_snapshot` make. Whoever was given a view or clone may have taken it away, and something
/// else may bear its name by now: that is not the provider's to remove, whoever asks. It follows no symlink inside the workspace, and does not cross into
/// other filesystems. It never changes the process's cwd, umask, environment or signal handlers.
///
/// # Optional abilities
///
/// A method whose default says so may be left out; it answers `Unsupported`, and the caller takes a longer way. The
/// capabilities in [`Description`] say which are there.
///
/// # Errors
///
/// By kind, for all methods: `InvalidArgument` for a place without what the method needs, `NotFound` for a reference that names
/// nothing, `DataLoss` for damaged data, `PermissionDenied`, `ResourceExhausted`, `Cancelled`. What is special is
/// said at the method.
pub trait Provider: Send + Sync {
    /// Says what this is. No I/O, no failure, the same answer every time.
    fn describe(&self) -> Description;

    /// Says whether this workspace can be served, by this user, and why or why not. Needs a workspace.
    ///
    /// Changes nothing. An unusable workspace is an answer, not an error. Cost: a few system calls.
    ///
    /// # Errors
    /// Only when the question itself could not be answered.
    fn probe(&self, place: &Place<'_>, request: &ProbeRequest, cx: &Context<'_>) -> Result<Probe>;

    /// Captures the workspace. Needs a workspace.
    ///
    /// What was written before the call is in it, also through a mapping that is gone since.
    ///
    /// The answer bears the id, time, label and attributes of the request. Cost grows with what changed since the last
    /// snapshot of this store, not with what is there (a look at each file's attributes aside) or with how many snapshots
    /// there are.
    ///
    /// # Errors
    /// `AlreadyExists` if the store has a snapshot of that id. `FailedPrecondition` if the policy's `max_entries` is passed.
    fn snapshot(&self, place: &Place<'_>, request: &SnapshotRequest, cx: &Context<'_>) -> Result<Snapshot>;

    /// Makes an `Instant` snapshot survive a power cut. Does nothing to one that does already.
    ///
    /// # Errors
    /// `NotFound` if there is none of that reference.
    fn sync(&self, place: &Place<'_>, request: &SnapshotRef, cx: &Context<'_>) -> Result<Done>;

    /// All complete snapshots of the store, oldest first, without `omitted`.
    ///
    /// # Errors
    /// `DataLoss` if the store cannot be read. One damaged snapshot is left out and logged. `FailedPrecondition` if some cannot be looked for now, as on a disk
    /// that is not there: a list without them would say that they are gone. Where the request says `partial`, they are left out.
    fn list(&self, place: &Place<'_>, request: &ListRequest, cx: &Context<'_>) -> Result<Vec<Snapshot>>;

    /// One snapshot, with everything known of it.
    ///
    /// # Errors
    /// `NotFound` if there is none of that reference.
    fn stat(&self, place: &Place<'_>, request: &SnapshotRef, cx: &Context<'_>) -> Result<Snapshot>;

    /// Removes a snapshot or a clone. What is gone already is success.
    ///
    /// From the moment it returns, `list` does not show it; space may come back later, in `reclaim`. Clones and other
    /// snapshots stay as they are.
    ///
    /// # Errors
    /// `Busy` while a view of it is mounted, where that matters to the provider, with the holder named.
    fn destroy(&self, place: &Place<'_>, request: &DestroyRequest, cx: &Context<'_>) -> Result<Done>;

    /// Shows a snapshot read-only. Needs a target.
    ///
    /// It is at the request's name in the target, or wherever the provider shows the snapshot anyway: below its store, or on another filesystem than the target, in a
    /// read-only mount or subvolume, where not even root can write.
    ///
    /// The view outlives this process. No write through it succeeds; where even root's cannot be stopped,
    /// `read_only_mount` is false and write bits are taken off instead.
    ///
    /// # Errors
    /// `AlreadyExists` if the name is taken. `NotFound` for a snapshot or one of `paths` that is not there.
    fn mount(&self, place: &Place<'_>, request: &MountRequest, cx: &Context<'_>) -> Result<View>;

    /// Takes a view away. Needs the target that `mount` was given. What is gone already is success. Where the request says `unused`, users need not be looked
    /// for.
    ///
    /// # Errors
    /// `Busy` while a process uses it, with the process named where it can be found out.
    fn unmount(&self, place: &Place<'_>, request: &UnmountRequest, cx: &Context<'_>) -> Result<Done>;

    /// Makes a writable copy with the captured times. Needs a target; a workspace is used where it is there.
    ///
    /// The copy is at the request's name in the target, or below it where more than the workspace had to be cloned.
    /// Where the target is on another filesystem, it may be elsewhere; a note says where then.
    ///
    /// With [`crate::Capability::RepositoryClones`]: if the workspace was a repository, so is the clone, with a `.git` of its
    /// own (HEAD, branch and index as captured) that depends on nothing outside it.
    ///
    /// # Errors
    /// `AlreadyExists` if the name is taken; `Unsupported` (the default) without [`crate::Capability::Clone`].
    fn clone_snapshot(&self, _place: &Place<'_>, _request: &CloneRequest, _cx: &Context<'_>) -> Result<WritableClone> {
        Err(unsupported("clone_snapshot"))
    }

    /// Lists the differences between two sides. Needs a workspace if a side is the workspace.
    ///
    /// # Errors
    /// `Unsupported` (the default) without [`crate::Capability::Diff`]: the caller walks both sides.
    fn diff(&self, _place: &Place<'_>, _request: &DiffRequest, _cx: &Context<'_>) -> Result<Changes> {
        Err(unsupported("diff"))
    }

    /// The entries of a directory in a snapshot, ordered by name bytes. `.` and `..` are not among them.
    ///
    /// # Errors
    /// `NotFound` if the path is not there; `InvalidArgument` if it is not a directory; `Unsupported` (the default) without
    /// [`crate::Capability::ReadWithoutMount`].
    fn read_dir(&self, _place: &Place<'_>, _request: &ReadDirRequest, _cx: &Context<'_>) -> Result<Vec<Entry>> {
        Err(unsupported("read_dir"))
    }

    /// Writes a file's contents, or a symlink's target, to the output, and gives its entry. Needs an output.
    ///
    /// # Errors
    /// `NotFound` if the path is not there; `InvalidArgument` for a directory; `Unsupported` (the default) without
    /// [`crate::Capability::ReadWithoutMount`].
    fn read(&self, _place: &Place<'_>, _request: &ReadRequest, _cx: &Context<'_>) -> Result<Entry> {
        Err(unsupported("read"))
    }

    /// One path's entry in each of several snapshots, in their order. The root is always there.
    ///
    /// # Errors
    /// `NotFound` for an unknown snapshot; `Unsupported` (the default) without [`crate::Capability::ReadWithoutMount`].
    fn lookup(&self, _place: &Place<'_>, _request: &LookupRequest, _cx: &Context<'_>) -> Result<Vec<Option<Entry>>> {
        Err(unsupported("lookup"))
    }

    /// Space in use by the store, or by snapshots of it taken together: those that are not there hold nothing.
    ///
    /// # Errors
    /// `Unsupported` (the default) without [`crate::Capability::Usage`].
    fn usage(&self, _place: &Place<'_>, _request: &UsageRequest, _cx: &Context<'_>) -> Result<Usage> {
        Err(unsupported("usage"))
    }

    /// Finishes or undoes what crashes left in the store, and puts it in order. Never touches a complete snapshot, nor what
    /// another live process is making. Says which clones lie in the store itself ([`Reclaimed::held`]).
    ///
    /// # Errors
    /// Those of all methods. Calling it again goes on where it stopped.
    fn reclaim(&self, place: &Place<'_>, request: &ReclaimRequest, cx: &Context<'_>) -> Result<Reclaimed>;

    /// Makes the workspace a unit of its own (a subvolume, say), so that snapshots hold it and nothing else. Needs a workspace.
    ///
    /// Another directory is at the workspace's path afterwards, with the same contents, names, permissions, owners and times. The
    /// exchange is atomic: whoever looks sees the old directory or the new one, whole. Killed anywhere, the old one or the new one
    /// is there, and `reclaim` takes the other away. Where the new one is mounted ([`Converted::mounted`]), an empty one is there for the moment between, and
    /// until it is mounted again whenever it is not.
    ///
    /// [`ConvertRequest::back`] makes what is mounted so a plain directory again, with the same contents and under the same conditions; snapshots stay. It
    /// goes without a workspace, as an open one is in use. Where that was done already, it is success.
    ///
    /// # Errors
    /// `Busy` while a process has something in it open, with the process named where it can be found out; `FailedPrecondition` if it cannot be one here (a mount
    /// point, say); `Unsupported` (the default) without [`crate::Capability::Convert`].
    fn convert(&self, _place: &Place<'_>, _request: &ConvertRequest, _cx: &Context<'_>) -> Result<Converted> {
        Err(unsupported("convert"))
    }
}

fn unsupported(operation: &str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("this provider has no operation {operation:?}"))
}
