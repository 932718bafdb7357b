//! One file, then: its contents in a snapshot, and its versions over time.

use std::fs::File;
use std::io::{self, Read};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use ah_plugin_api::{
    Capability, ContentId, Context, Entry, EntryKind, Error, ErrorKind, LookupRequest, OmitReason, ProviderName,
    ReadRequest, Reference, RelPath, Result, SnapshotId, SnapshotRef,
};

use rustix::fs::{FileType, OFlags};
use sha1::{Digest, Sha1};

use crate::notice::{Notice, NoticeKind};
use crate::record::{EntryRecord, SnapshotKind, SnapshotRecord, VersionRecord};
use crate::restore::Omissions;
use crate::text;
use crate::walk::Source;
use crate::workspace::{Served, Workspace};

/// Files up to this size are told apart by reading them, always; bytes.
const READ_ALWAYS: u64 = 1 << 20;
/// How often it is looked whether the user wants it all to stop.
const TICK: Duration = Duration::from_millis(20);

impl Workspace {
    /// Writes a file's contents (or a symlink's target) as of a snapshot to `out`.
    ///
    /// # Errors
    /// As [`Workspace::resolve`]; `NotFound` if the path was not there; `InvalidArgument` for a directory.
    pub fn cat(&self, reference: &str, path: &RelPath, out: BorrowedFd<'_>) -> Result<EntryRecord> {
        self.cat_from(&self.resolve(reference)?, path, out)
    }

    /// As [`Workspace::cat`], from a snapshot that was resolved before.
    ///
    /// # Errors
    /// `NotFound` if the path was not there; `InvalidArgument` for a directory; the provider's.
    pub fn cat_from(&self, snapshot: &SnapshotRecord, path: &RelPath, out: BorrowedFd<'_>) -> Result<EntryRecord> {
        let served = self.serve(&snapshot.provider)?;
        let cx = self.context();
        // What is no file is looked at in a view.
        let seek = |path: &RelPath| {
            let whole = self.root.join(path.as_path());
            let paths = if path.is_root() { String::new() } else { format!(" -- {}", text::shell(whole.as_os_str())) };
            format!("`ah agent fs seek {}{paths}` shows what is in it", snapshot.id)
        };
        let explain = |error: Error| match error.kind {
            ErrorKind::NotFound => self.not_there(&served, path, snapshot),
            ErrorKind::InvalidArgument if error.hint.is_none() => error.with_hint(seek(path)),
            _ => error,
        };
        if served.can(Capability::ReadWithoutMount) {
            let request = ReadRequest { snapshot: snapshot.reference.clone(), path: path.clone() };
            let read = |out: BorrowedFd<'_>| served.provider.read(&served.place().with_output(out), &request, &cx);
            let (entry, given) = counted(out, &cx, read).map_err(explain)?;
            // More may come in one file, by others who write there.
            if given < entry.size {
                let message = format!("the snapshot {} gave {given} bytes of {path}, not {}", snapshot.id, entry.size);
                return Err(Error::new(ErrorKind::DataLoss, message).with_hint("ah agent fs gc"));
            }
            return Ok(EntryRecord::from(&entry));
        }
        let scratch = self.mounts_dir()?;
        let shelf = self.shelf(&served, &scratch);
        let source = shelf.open(&snapshot.reference, &cx).map_err(|error| self.explain_lost(snapshot, error))?;
        let entry = source.entry(path, &cx).map_err(explain)?.ok_or_else(|| self.not_there(&served, path, snapshot))?;
        if !matches!(entry.kind, EntryKind::File | EntryKind::Symlink) {
            let message = format!("{path} is a {} in {}, which has no contents", entry.kind, snapshot.id);
            return Err(Error::new(ErrorKind::InvalidArgument, message).with_hint(seek(path)));
        }
        source.read(path, out, &cx).map_err(|error| where_it_goes(out, error))?;
        Ok(EntryRecord::from(&entry))
    }

    /// Whether a path was there at the time of a snapshot, as far as that can be told.
    #[must_use]
    pub fn has_then(&self, snapshot: &SnapshotRecord, path: &RelPath) -> bool {
        let answers = self.entries(std::slice::from_ref(snapshot), path);
        matches!(answers.as_deref(), Ok([Some(Ok(Some(_)))]))
    }

    /// Either the path or the whole snapshot is gone.
    fn not_there(&self, served: &Served, path: &RelPath, snapshot: &SnapshotRecord) -> Error {
        let request = SnapshotRef { snapshot: snapshot.reference.clone() };
        let captured = match served.provider.stat(&served.place(), &request, &self.context()) {
            Ok(captured) => captured,
            Err(error) if error.kind == ErrorKind::NotFound => return snapshot.lost(),
            Err(error) => {
                return Error { kind: ErrorKind::DataLoss, ..error }
                    .context(format!("the snapshot {} cannot be read", snapshot.id))
                    .with_hint("ah agent fs gc");
            }
        };
        if let Some(omission) = Omissions::of(&captured).cover(path) {
            let message =
                format!("{path} is not in the snapshot {}, which left it out: {}", snapshot.id, omission.reason);
            return Error::new(ErrorKind::NotFound, message).with_hint(self.left_out_hint(path, &snapshot.id));
        }
        let of_repository =
            snapshot.repository.is_some() && path.components().next().is_some_and(|name| name == b".git");
        if served.can(Capability::AppliesPolicy) && of_repository {
            let message =
                format!("{path} is not in the snapshot {}: repositories are not captured as files", snapshot.id);
            let hint = format!(
                "`ah agent fs branch {}` makes a repository with HEAD, branch and index as they were",
                snapshot.id
            );
            return Error::new(ErrorKind::NotFound, message).with_hint(hint);
        }
        Error::new(ErrorKind::NotFound, format!("{path} is not in the snapshot {}", snapshot.id)).with_hint(format!(
            "`ah agent fs versions {}` shows whether and when it was there",
            text::shell(self.root.join(path.as_path()).as_os_str())
        ))
    }

    /// What to do about a path that a snapshot left out.
    pub(crate) fn left_out_hint(&self, path: &RelPath, id: &SnapshotId) -> String {
        let place = text::shell(self.root.join(path.as_path()).as_os_str());
        format!(
            "`ah agent fs show {id}` lists what was left out, and why; `ah agent fs versions {place}` says which snapshots have it, if any"
        )
    }

    /// The distinct versions of a path over all snapshots, oldest first; times when it was not there included, but for those
    /// before it first was.
    ///
    /// # Errors
    /// `NotFound` if no snapshot has the path.
    pub fn versions(&self, path: &RelPath) -> Result<Vec<VersionRecord>> {
        let session = self.reading_session(None)?;
        let mut snapshots = self.state()?.snapshots;
        snapshots.retain(|snapshot| session.as_ref().is_none_or(|session| *session == snapshot.session));
        let entries = self.entries(&snapshots, path)?;
        let mut versions: Vec<(VersionRecord, Option<ProviderName>)> = Vec::new();
        let mut all_asked = true;
        for (snapshot, entry) in snapshots.iter().zip(entries) {
            let Some(entry) = entry else {
                all_asked = false;
                continue;
            };
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) if error.kind == ErrorKind::Cancelled => return Err(error),
                // What a branch grew from need not hold what was changed since.
                Err(error) if error.kind == ErrorKind::DataLoss && snapshot.kind == SnapshotKind::Branch => continue,
                // It says nothing about the path, and that is said.
                Err(error) => {
                    let error = self.explain_lost(snapshot, error);
                    let message = format!("the snapshot {} is passed over: {error}", snapshot.id);
                    let hint = error.hint.as_deref().unwrap_or("ah agent fs gc");
                    self.engine.notify(Notice::new(NoticeKind::Other, message).with_hint(hint));
                    all_asked = false;
                    continue;
                }
            };
            let entry = entry.as_ref().map(EntryRecord::from);
            if let Some((last, provider)) = versions.last_mut()
                && same(last.entry.as_ref(), entry.as_ref(), provider.as_ref() == Some(&snapshot.provider))
            {
                last.last = snapshot.id.clone();
                last.snapshots += 1;
                continue;
            }
            if versions.is_empty() && entry.is_none() {
                continue;
            }
            let version = VersionRecord {
                snapshot: snapshot.id.clone(),
                time: snapshot.time,
                session: snapshot.session.clone(),
                label: snapshot.label.clone(),
                last: snapshot.id.clone(),
                snapshots: 1,
                entry,
            };
            versions.push((version, Some(snapshot.provider.clone())));
        }
        if versions.is_empty() {
            let left_out = snapshots.last().and_then(|latest| self.left_out(latest, path));
            let why = left_out.map_or_else(String::new, |reason| format!("; the latest left it out: {reason}"));
            let those = if all_asked { "no snapshot" } else { "no snapshot that can be looked at" };
            let message = format!("{those} has {path}{why}");
            return Err(Error::new(ErrorKind::NotFound, message).with_hint("ah agent fs snapshots"));
        }
        Ok(versions.into_iter().map(|(version, _)| version).collect())
    }

    /// Whether a snapshot has a path; none if that cannot be told.
    #[must_use]
    pub fn has(&self, snapshot: &SnapshotRecord, path: &RelPath) -> Option<bool> {
        let served = self.serve(&snapshot.provider).ok()?;
        let found = self.lookup(&served, vec![snapshot.reference.clone()], path).ok()?.pop()?;
        found.ok().map(|entry| entry.is_some())
    }

    /// Why a snapshot left out a path, if it says so.
    fn left_out(&self, snapshot: &SnapshotRecord, path: &RelPath) -> Option<OmitReason> {
        let served = self.serve(&snapshot.provider).ok()?;
        let request = SnapshotRef { snapshot: snapshot.reference.clone() };
        let captured = served.provider.stat(&served.place(), &request, &self.context()).ok()?;
        Omissions::of(&captured).cover(path).map(|omission| omission.reason)
    }

    /// The path's entry in each snapshot, in their order; one question to each provider. None for those of a provider that cannot be asked, which is said.
    fn entries(&self, snapshots: &[SnapshotRecord], path: &RelPath) -> Result<Vec<Option<Result<Option<Entry>>>>> {
        let mut answers: Vec<Option<Result<Option<Entry>>>> = snapshots.iter().map(|_| None).collect();
        let mut providers: Vec<&ProviderName> = snapshots.iter().map(|snapshot| &snapshot.provider).collect();
        providers.sort_unstable();
        providers.dedup();
        for name in providers {
            let (at, references): (Vec<usize>, Vec<Reference>) = snapshots
                .iter()
                .enumerate()
                .filter(|(_, snapshot)| snapshot.provider == *name)
                .map(|(at, snapshot)| (at, snapshot.reference.clone()))
                .unzip();
            let found = self.serve(name).and_then(|served| {
                let mut found = self.lookup(&served, references.clone(), path)?;
                self.identify(&served, &references, path, &mut found)?;
                Ok(found)
            });
            match found {
                Ok(found) => at.into_iter().zip(found).for_each(|(at, answer)| answers[at] = Some(answer)),
                Err(error) if error.kind == ErrorKind::Cancelled => return Err(error),
                Err(error) => {
                    let those = text::count(at.len(), "snapshot", "snapshots");
                    let notice = Notice::new(NoticeKind::Other, format!("{those} of {name} passed over: {error}"));
                    self.engine.notify(notice.with_hint(error.hint.as_deref().unwrap_or("ah agent fs providers")));
                }
            }
        }
        Ok(answers)
    }

    /// Gives files an id of their contents where the provider has none: by reading them. A large one is taken for the one before it if
    /// both have one size and one time.
    fn identify(
        &self,
        served: &Served,
        snapshots: &[Reference],
        path: &RelPath,
        found: &mut [Result<Option<Entry>>],
    ) -> Result<()> {
        let mut before: Option<Entry> = None;
        for (snapshot, entry) in snapshots.iter().zip(found) {
            let Ok(Some(entry)) = entry else { continue };
            if entry.content.is_some() || !matches!(entry.kind, EntryKind::File | EntryKind::Symlink) {
                continue;
            }
            let alike = |before: &&Entry| (before.size, before.mtime) == (entry.size, entry.mtime);
            entry.content = match before.as_ref().filter(alike).filter(|_| entry.size > READ_ALWAYS) {
                Some(before) => before.content.clone(),
                // One that cannot be read is compared by size and time.
                None => match self.digest(served, snapshot, path) {
                    Err(error) if error.kind == ErrorKind::Cancelled => return Err(error),
                    digest => digest.ok(),
                },
            };
            before = Some(entry.clone());
        }
        Ok(())
    }

    fn digest(&self, served: &Served, snapshot: &Reference, path: &RelPath) -> Result<ContentId> {
        let failed = |e: std::io::Error| Error::from_io(format!("cannot read {path}"), &e);
        let (scratch, cx) = (self.mounts_dir()?, self.context());
        let shelf = self.shelf(served, &scratch);
        let hash = |mut from: UnixStream| -> io::Result<ContentId> {
            let (mut hash, mut buffer) = (Sha1::new(), vec![0; 64 << 10]);
            loop {
                match from.read(&mut buffer)? {
                    0 => return Ok(ContentId(hash.finalize().to_vec())),
                    n => hash.update(&buffer[..n]),
                }
            }
        };
        let read = |to: BorrowedFd<'_>| shelf.open(snapshot, &cx)?.read(path, to, &cx);
        let (read, digest) = through(&cx, hash, read)?;
        read?;
        digest.map_err(failed)
    }

    fn lookup(&self, served: &Served, snapshots: Vec<Reference>, path: &RelPath) -> Result<Vec<Result<Option<Entry>>>> {
        let cx = self.context();
        if !served.can(Capability::ReadWithoutMount) {
            let scratch = self.mounts_dir()?;
            let shelf = self.shelf(served, &scratch);
            let one = |snapshot: &Reference| {
                cx.check_cancelled()?;
                let source: Source<'_> = shelf.open(snapshot, &cx)?;
                source.entry(path, &cx)
            };
            return Ok(snapshots.iter().map(one).collect());
        }
        let request = LookupRequest { snapshots, path: path.clone() };
        match served.provider.lookup(&served.place(), &request, &cx) {
            Ok(entries) => Ok(entries.into_iter().map(Ok).collect()),
            Err(error) if error.kind == ErrorKind::Cancelled => Err(error),
            // One of them is lost: ask for each.
            Err(_) => Ok(request
                .snapshots
                .into_iter()
                .map(|snapshot| {
                    let request = LookupRequest { snapshots: vec![snapshot], path: path.clone() };
                    Ok(served.provider.lookup(&served.place(), &request, &cx)?.pop().flatten())
                })
                .collect()),
        }
    }
}

/// Runs `read` with an output of ours, and beside it `take`, which has what is written into that until its end.
fn through<T: Send + 'static, R>(
    cx: &Context<'_>,
    take: impl FnOnce(UnixStream) -> io::Result<T> + Send + 'static,
    read: impl FnOnce(BorrowedFd<'_>) -> Result<R>,
) -> Result<(Result<R>, io::Result<T>)> {
    let failed = |e: io::Error| Error::from_io("cannot get at what is read", &e);
    let (from, to) = UnixStream::pair().map_err(failed)?;
    let (done, taken) = sync_channel(1);
    let beside = move || {
        let _ = done.send(take(from));
    };
    std::thread::Builder::new().name("ah-reading".to_owned()).spawn(beside).map_err(failed)?;
    let read = read(to.as_fd());
    // A provider's process that hangs has it open, too, and nobody waits for that.
    let _ = to.shutdown(Shutdown::Write);
    loop {
        match taken.recv_timeout(TICK) {
            Ok(taken) => return Ok((read, taken)),
            // It may be waiting for who reads, who need not. It ends with this process.
            Err(RecvTimeoutError::Timeout) => cx.check_cancelled()?,
            Err(RecvTimeoutError::Disconnected) => return Err(Error::new(ErrorKind::Internal, "a thread panicked")),
        }
    }
}

/// Has `read` write to `out`, and says how many bytes came.
fn counted<R>(
    out: BorrowedFd<'_>,
    cx: &Context<'_>,
    read: impl FnOnce(BorrowedFd<'_>) -> Result<R>,
) -> Result<(R, u64)> {
    // Straight into a file, in which holes stay holes.
    if let Some(before) = position(out) {
        let read = read(out).map_err(|error| where_it_goes(out, error))?;
        return Ok((read, position(out).unwrap_or(before).saturating_sub(before)));
    }
    let failed = |e: io::Error| Error::from_io("cannot write to the output", &e);
    let mut own = File::from(out.try_clone_to_owned().map_err(failed)?);
    let (read, written) = through(cx, move |mut from| io::copy(&mut from, &mut own), read)?;
    // What keeps the output from being written to is what keeps it from being read.
    let written = written.map_err(|e| no_room(failed(e)))?;
    Ok((read?, written))
}

/// An error of who wrote to a file: if the disk that this is on is full, or a quota used up, it is there that room is lacking, and not where snapshots are.
fn where_it_goes(out: BorrowedFd<'_>, error: Error) -> Error {
    // Of a quota `fstatvfs` says nothing, and to show a snapshot takes next to none of it.
    let is_full = error.errno == Some(rustix::io::Errno::DQUOT.raw_os_error())
        || rustix::fs::fstatvfs(out).is_ok_and(|disk| disk.f_bavail == 0);
    if is_full { no_room(error) } else { error }
}

fn no_room(error: Error) -> Error {
    match error.kind {
        ErrorKind::ResourceExhausted => error.with_hint("free some space where the output goes"),
        _ => error,
    }
}

/// Where in a file the next bytes are written; none for what is no file, or where that is its end always.
fn position(out: BorrowedFd<'_>) -> Option<u64> {
    let kind = FileType::from_raw_mode(rustix::fs::fstat(out).ok()?.st_mode);
    let appends = rustix::fs::fcntl_getfl(out).ok()?.contains(OFlags::APPEND);
    rustix::fs::tell(out).ok().filter(|_| kind == FileType::RegularFile && !appends)
}

/// Whether two entries are one version: by contents where these are known, else by size and time.
fn same(a: Option<&EntryRecord>, b: Option<&EntryRecord>, one_provider: bool) -> bool {
    match (a, b) {
        (None, None) => true,
        (Some(a), Some(b)) if a.kind == b.kind && a.mode == b.mode => match (&a.content, &b.content) {
            (Some(a), Some(b)) if one_provider => a == b,
            _ => a.kind == EntryKind::Dir || (a.size == b.size && a.mtime == b.mtime),
        },
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::{Error, where_it_goes};
    use std::os::fd::AsFd;

    #[test]
    fn a_quota_is_used_up_where_the_output_goes() {
        let out = tempfile::tempfile().unwrap();
        let error = Error::from_io("cannot write", &rustix::io::Errno::DQUOT.into());
        assert_eq!(where_it_goes(out.as_fd(), error).hint.as_deref(), Some("free some space where the output goes"));
    }
}
