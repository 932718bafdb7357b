//! A workspace: a lower directory, a store, and the branches and snapshots in it.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use crate::engine::{self, Engine, Held, Opening, Options, Report};
use crate::error::{Error, Result};
use crate::rows::chunk::BLOCK;
use crate::rows::key::LineId;
use crate::state::State;
use crate::types::Time;
use crate::view::View;
use crate::{lock, read_lock};

/// A snapshot's number, never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapshotId(pub u64);

/// A branch's number, never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BranchId(pub u32);

/// What a snapshot must survive from the moment it is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The death of any process.
    Instant,
    /// A power cut.
    Durable,
}

/// A snapshot as it is listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// Its number.
    pub id: SnapshotId,
    /// What it was called.
    pub label: Vec<u8>,
    /// When it was taken.
    pub time: Time,
    /// The branch that it is of, if that is there still. One of the lower directory itself is of none.
    pub branch: Option<BranchId>,
}

impl SnapshotInfo {
    pub(crate) fn all(state: &State) -> Vec<Self> {
        let branch = |line: LineId| state.lines.get(&line).filter(|line| line.pen).map(|_| BranchId(line));
        let info = |(&id, snapshot): (&u64, &crate::state::Snapshot)| Self {
            id: SnapshotId(id),
            label: snapshot.label.clone(),
            time: snapshot.time,
            branch: branch(snapshot.line),
        };
        state.snapshots.iter().map(info).collect()
    }
}

/// A branch as it is listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BranchInfo {
    /// Its number.
    pub id: BranchId,
    /// What it was called.
    pub label: Vec<u8>,
}

impl BranchInfo {
    pub(crate) fn all(state: &State) -> Vec<Self> {
        let pens = state.lines.iter().filter(|(_, line)| line.pen);
        pens.map(|(&id, line)| Self { id: BranchId(id), label: line.label.clone() }).collect()
    }
}

/// An open store. One process has it at a time, and one of these in it.
///
/// Dropping it writes nothing: what was changed in the last milliseconds and not asked to be kept is lost then, just as when the
/// process dies. Call [`Workspace::sync`] before.
///
/// ```no_run
/// use std::path::Path;
/// use ah_agentfs::{Class, Options, Owner, ROOT, Workspace};
///
/// # fn main() -> ah_agentfs::Result<()> {
/// Workspace::create(Path::new("/var/tmp/store"), Path::new("/home/me/project"))?;
/// let workspace = Workspace::open(Path::new("/var/tmp/store"), Path::new("/home/me/project"), Options::default())?;
/// let base = workspace.base(b"as it is now")?;
/// let branch = workspace.branch(base, b"an idea")?;
/// let tree = workspace.view(branch)?;
/// let file = tree.create(ROOT, b"notes", Owner { mode: 0o644, uid: 1000, gid: 1000 })?;
/// tree.write(file.ino, 0, b"hello")?;
/// let before = workspace.snapshot(branch, b"before", Class::Instant)?;
/// tree.unlink(ROOT, b"notes")?;
/// assert_eq!(workspace.view_of(before)?.lookup(ROOT, b"notes")?.size, 5);
/// # Ok(()) }
/// ```
pub struct Workspace {
    engine: Arc<Engine>,
    keepers: Vec<JoinHandle<()>>,
    helpers: Mutex<Vec<JoinHandle<()>>>,
}

impl Workspace {
    /// Makes an empty store in `store`, which is made too, for a lower directory. [`Error::Exists`] if there is one, [`Error::Corrupt`] if one has lost its format.
    pub fn create(store: &Path, lower: &Path) -> Result<()> {
        Engine::create(store, lower)
    }

    /// Whether the store there may have been made for that lower directory, also while it is open elsewhere: if not, [`Workspace::open`] says
    /// [`Error::OtherLower`].
    ///
    /// Errors: as there.
    pub fn may_be_of(store: &Path, lower: &Path) -> Result<bool> {
        crate::engine::may_be_of(store, lower)
    }

    /// Opens a store. After a crash this reads the log, which is bounded by `options.log_limit`, and nothing that grows with what
    /// the store holds but the lists of branches and snapshots.
    ///
    /// Errors: [`Error::NotFound`] (no store), [`Error::Busy`] (open elsewhere), [`Error::NewerFormat`], [`Error::OtherLower`],
    /// [`Error::Corrupt`].
    pub fn open(store: &Path, lower: &Path, options: Options) -> Result<Self> {
        let background = options.background;
        let engine = Arc::new(Engine::open(store, lower, options, Opening::Use)?);
        let keepers = if background { engine.keep()? } else { Vec::new() };
        let workspace = Self { engine, keepers, helpers: Mutex::default() };
        if background {
            let unfinished = workspace.engine.unfinished();
            if !unfinished.is_empty() && !workspace.engine.options.without_lower {
                workspace
                    .help("agentfs-names", move |engine| unfinished.iter().for_each(|&base| engine.keep_below(base)));
            }
            workspace.help("agentfs-copies", Engine::keep_copying);
        }
        Ok(workspace)
    }

    /// Checks a store that is not open, and mends what can be mended if `repair`. Costs everything there is. The lower directory may be gone, or another.
    pub fn fsck(store: &Path, lower: &Path, repair: bool) -> Result<Report> {
        engine::check(store, lower, repair)
    }

    /// Has a store that is not open grow from another lower directory, where the one that it was made for was lost and brought back by copying: if that holds what is known
    /// of the one from which a branch grew, to the names in all its directories, owners and modes, and the hashes of files that were taken. Where too little is known, or something differs, all is as before
    /// (see [`others`](crate::Restored::others)); files of which no hash was taken are counted. Branches show the copies; what snapshots read below is
    /// [`Error::DataLoss`] in them still, and in those that are taken later. Costs listing all directories, and reading files.
    ///
    /// Errors: as [`Workspace::open`].
    pub fn take_restored(store: &Path, lower: &Path, branch: BranchId) -> Result<engine::Restored> {
        engine::take_restored(store, lower, branch.0)
    }

    /// Has a store in which there is neither a branch nor a snapshot grow from another lower directory, when it is opened again. Numbers go on: none is
    /// given twice.
    ///
    /// Errors: [`Error::Busy`] if there is a branch or a snapshot.
    pub fn begin_anew(&self, lower: &Path) -> Result<()> {
        self.engine.begin_anew(lower)
    }

    /// Whether the directory with this device (`st_dev`) and inode is the lower one, wherever it is now.
    pub fn is_lower(&self, device: u64, ino: u64) -> bool {
        self.engine.lower.is(device, ino)
    }

    /// A snapshot of the lower directory as it is now; nothing is read or copied. Takes up to 10 ms, for a tick of the clock;
    /// a second where files bear whole seconds.
    ///
    /// Behind it the names of all directories below are written down, so that snapshots know them when they are changed there later (see [`Workspace::base_with_names`]), and what files hold is
    /// pinned, so that branches and snapshots go on showing it (see [`Workspace::take_fingerprints`]).
    pub fn base(&self, label: &[u8]) -> Result<SnapshotId> {
        self.keep_behind(self.engine.base(label, true)?)
    }

    /// As [`Workspace::base`], of a lower directory that nobody works in any more: nothing is pinned, which would take room for nothing. What is changed there all
    /// the same is noticed, and shown in branches; in snapshots where it holds what it held.
    pub fn base_alone(&self, label: &[u8]) -> Result<SnapshotId> {
        self.keep_behind(self.engine.base(label, false)?)
    }

    fn keep_behind(&self, (snapshot, line): (u64, LineId)) -> Result<SnapshotId> {
        if !self.keepers.is_empty() {
            self.help("agentfs-names", move |engine| engine.keep_below(line));
        }
        Ok(SnapshotId(snapshot))
    }

    /// Writes down what files below held when the base was taken, as hashes, where the names are written down and nothing has changed since: so that its snapshots, and those of
    /// its branches, know a file again whose times were moved or that was replaced by an equal one; and pins it, unless [`Options::pins`] says otherwise. Happens by itself behind [`Workspace::base`]. Costs reading
    /// files that no earlier base knew, of 64 MiB at most each, and of 3 GiB all told, and where the disk shares no contents writing what is not pinned yet.
    pub fn take_fingerprints(&self, base: SnapshotId) -> Result<()> {
        let line = read_lock(&self.engine.state).snapshots.get(&base.0).ok_or(Error::NotFound)?.line;
        self.engine.take_fingerprints(line)
    }

    /// Whether what a branch reads below is still being kept for it, behind its base: what is changed there before it is its turn, the branch shows.
    pub fn is_keeping(&self, branch: BranchId) -> bool {
        self.engine.is_keeping(branch.0)
    }

    /// Has a thread do something that ends when the store is closed. Where there is none to be had it is not done.
    fn help(&self, name: &str, work: impl FnOnce(&Engine) + Send + 'static) {
        let engine = self.engine.clone();
        let mut helpers = lock(&self.helpers);
        helpers.retain(|helper| !helper.is_finished());
        helpers.extend(std::thread::Builder::new().name(name.into()).spawn(move || work(&engine)));
    }

    /// As [`Workspace::base`], with all names written down when it returns: it costs listing all directories.
    pub fn base_with_names(&self, label: &[u8]) -> Result<SnapshotId> {
        let (snapshot, line) = self.engine.base(label, true)?;
        if let Err(error) = self.engine.remember_names(line) {
            let _ = self.engine.delete_snapshot(snapshot);
            return Err(error);
        }
        Ok(SnapshotId(snapshot))
    }

    /// A branch that begins at a snapshot, any number of times, at a cost that depends on nothing.
    pub fn branch(&self, from: SnapshotId, label: &[u8]) -> Result<BranchId> {
        self.engine.branch(from.0, label).map(BranchId)
    }

    /// The number of the branch that is made next, if no base is taken before.
    pub fn next_branch(&self) -> BranchId {
        BranchId(read_lock(&self.engine.state).next.line)
    }

    /// A snapshot of a branch, at a cost that depends on nothing but the changes of the last milliseconds. Every change that had
    /// returned before the call is in it, none that begins after its return is, and a change that runs meanwhile is in it
    /// wholly or not at all. After an error there is none. A durable one is so with what it reads below: see [`Workspace::take_below_to_disk`].
    pub fn snapshot(&self, branch: BranchId, label: &[u8], class: Class) -> Result<SnapshotId> {
        let snapshot = SnapshotId(self.engine.snapshot(branch.0, label)?);
        if class == Class::Durable
            && let Err(error) = self.take_below_to_disk(branch).and_then(|()| self.persist())
        {
            let _ = self.engine.delete_snapshot(snapshot.0);
            return Err(error);
        }
        Ok(snapshot)
    }

    /// A branch's tree, to read and write. [`Error::Busy`] if there is a view of it already: its inodes are counted in one place.
    pub fn view(&self, branch: BranchId) -> Result<View> {
        View::new(self.engine.clone(), branch.0, Held::Pen)
    }

    /// A branch's tree as it is, to read only: any number of them, beside the one through which it is written.
    pub fn look(&self, branch: BranchId) -> Result<View> {
        View::new(self.engine.clone(), branch.0, Held::Look)
    }

    /// A snapshot's tree.
    pub fn view_of(&self, snapshot: SnapshotId) -> Result<View> {
        let (line, epoch) = {
            let state = read_lock(&self.engine.state);
            let snapshot = state.snapshots.get(&snapshot.0).ok_or(Error::NotFound)?;
            (snapshot.line, snapshot.epoch)
        };
        View::new(self.engine.clone(), line, Held::At(epoch))
    }

    /// Removes a snapshot. Branches that grew from it are not harmed. The space that only it held comes back in the background,
    /// or with [`Workspace::reclaim`]. [`Error::Busy`] as long as a view of it is open.
    pub fn delete_snapshot(&self, snapshot: SnapshotId) -> Result<()> {
        self.engine.delete_snapshot(snapshot.0)?;
        self.engine.take_back_told(snapshot.0);
        Ok(())
    }

    /// Removes a branch; its snapshots stay. [`Error::Busy`] as long as a view of it is open.
    pub fn delete_branch(&self, branch: BranchId) -> Result<()> {
        self.engine.delete_branch(branch.0)?;
        self.engine.forget_changed(branch.0);
        Ok(())
    }

    /// Gives the space back that deleted snapshots and branches held. Costs what had been written for them alone.
    pub fn reclaim(&self) -> Result<()> {
        self.engine.reclaim_space()
    }

    /// Copies what branches took over of files below and read there still, so that it does not matter any more what becomes of those: of files up to 64 MiB,
    /// or of up to 256 GiB where the disk shares contents. Happens by itself in the background. Costs what is copied.
    pub fn copy_taken_over(&self) -> Result<()> {
        self.engine.copy_taken_over()
    }

    /// Takes everything that was changed before this call to the disk, and gives space back that is free since then.
    pub fn sync(&self) -> Result<()> {
        self.engine.sync()
    }

    /// As [`Workspace::sync`], sooner where few contents were written, but gives no space back.
    pub fn persist(&self) -> Result<()> {
        self.engine.persist()
    }

    /// As [`Workspace::persist`], and what a snapshot reads below, as [`Workspace::take_below_to_disk`], but that what the disk lost does not count as told: nobody may hear of this.
    pub fn persist_with_below(&self, snapshot: SnapshotId) -> Result<()> {
        let line = read_lock(&self.engine.state).snapshots.get(&snapshot.0).ok_or(Error::NotFound)?.line;
        self.engine.have_below_on_disk(line)?;
        self.engine.persist()
    }

    /// Takes what was below when a branch's base was taken to the disk, where it is not known that the disk has it: all that waits to be written on that filesystem, whoever's it is. That is so
    /// for seconds behind a base, and where older programs took it.
    ///
    /// Errors: [`Error::LostBelow`], of that base until this has answered so and the store is opened anew.
    pub fn take_below_to_disk(&self, branch: BranchId) -> Result<()> {
        self.engine.take_below_to_disk(branch.0)
    }

    /// Whether the disk has what a snapshot reads below, as far as that is known.
    pub fn below_is_on_disk(&self, snapshot: SnapshotId) -> bool {
        let line = read_lock(&self.engine.state).snapshots.get(&snapshot.0).map(|snapshot| snapshot.line);
        line.is_some_and(|line| self.engine.below_is_on_disk(line))
    }

    /// Writes everything that was changed before this call down, so that it survives the death of this process.
    pub fn flush(&self) -> Result<()> {
        self.engine.flush().map(drop)
    }

    /// Moves rows from the log to the base; happens by itself in the background when the log is long.
    pub fn checkpoint(&self) -> Result<()> {
        self.engine.checkpoint()
    }

    /// All snapshots, oldest first.
    pub fn snapshots(&self) -> Vec<SnapshotInfo> {
        SnapshotInfo::all(&read_lock(&self.engine.state))
    }

    /// All branches, oldest first.
    pub fn branches(&self) -> Vec<BranchInfo> {
        BranchInfo::all(&read_lock(&self.engine.state))
    }

    /// Bytes of contents that only these snapshots hold: what deleting them would give back. Those that are not there hold nothing. Costs what was
    /// written for them.
    pub fn usage(&self, snapshots: &[SnapshotId]) -> Result<u64> {
        self.engine.usage(&snapshots.iter().map(|snapshot| snapshot.0).collect())
    }

    /// Bytes of contents that the store holds, those included that are about to be given back.
    pub fn used(&self) -> u64 {
        read_lock(&self.engine.state).used_blocks() * BLOCK
    }

    /// Rows that are in memory: they are bounded by `options.log_limit`.
    pub fn rows_in_memory(&self) -> usize {
        read_lock(&self.engine.state).layers.in_memory()
    }

    /// What somebody was found to have changed, made or removed below since the base was taken, of what the branch reads there still: paths below the
    /// lower directory, 10,000 at most, since the store was opened. What is pinned, and shown as it was, is not among it: the branch shows what is as it is now; its snapshots cannot. Costs what is told.
    pub fn changed_below(&self, branch: BranchId) -> Result<Vec<Vec<u8>>> {
        self.still_other(branch, self.engine.changed_below(branch.0))
    }

    /// What a branch reads below, since it was not kept for it, once no more is being kept: files that are too large, say, or for which there was no room, and stores of Git's objects. What is changed there the branch shows.
    /// Paths below the lower directory, 1000 at most; none where nothing is pinned. Costs looking for all pins that were made behind the base, the first time.
    pub fn not_kept(&self, branch: BranchId) -> Result<Vec<Vec<u8>>> {
        let base = read_lock(&self.engine.state).chain(branch.0)?.base;
        if self.is_keeping(branch) || !self.engine.isolates(base)? {
            return Ok(Vec::new());
        }
        let paths = self.engine.not_kept(base)?;
        let view = self.look(branch)?;
        Ok(paths.iter().filter(|path| view.reads_below(path)).cloned().collect())
    }

    /// As [`Workspace::changed_below`], what was not told with another snapshot yet that is there still. It is told with this one.
    pub fn newly_changed_below(&self, branch: BranchId, snapshot: SnapshotId) -> Result<Vec<Vec<u8>>> {
        self.still_other(branch, self.engine.tell_changed(branch.0, snapshot.0))
    }

    fn still_other(&self, branch: BranchId, mut paths: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>> {
        if !paths.is_empty() {
            let view = self.look(branch)?;
            paths.retain(|path| {
                if view.is_other_at(path) {
                    return true;
                }
                // Should it become other later it is told then; in between is now.
                self.engine.forget_changed_at(branch.0, path);
                let is_other = view.is_other_at(path);
                if is_other {
                    self.engine.note_changed(branch.0, path);
                }
                is_other
            });
        }
        Ok(paths)
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        self.engine.stop();
        for thread in self.keepers.drain(..).chain(lock(&self.helpers).drain(..)) {
            let _ = thread.join();
        }
    }
}
