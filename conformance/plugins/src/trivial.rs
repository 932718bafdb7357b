//! The least provider that does something: keeps the regular files at the top of a workspace in memory.
//!
//! For tests of loading and calling. It is no model to write a provider by (`examples/minimal-provider`), and no reference to compare
//! one with (`ah_conformance::memory`).

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Mutex;

use ah_plugin_api::{
    Capability, Context, ConvertRequest, Converted, Description, DestroyRequest, Done, Durability, Entry, EntryKind,
    Error, ErrorKind, ListRequest, LogLevel, LookupRequest, MountRequest, Omission, OmitReason, Place, Probe,
    ProbeRequest, Provider, ProviderName, ReadDirRequest, ReadRequest, ReclaimRequest, Reclaimed, Reference, RelPath,
    Result, Snapshot, SnapshotRef, SnapshotRequest, Timestamp, UnmountRequest, View,
};
use rustix::fs::{Mode, OFlags};

/// See the module. The hooks are where the bad plugins are bad.
pub struct Trivial {
    name: &'static str,
    /// What it says of its version.
    pub version: String,
    /// Runs at the beginning of each operation, with its name.
    pub before: fn(operation: &str, cx: &Context<'_>),
    /// What reading a file fails with, if it does.
    pub refuse: fn() -> Result<()>,
    /// Runs over each file's contents when it is captured.
    pub capture: fn(&mut Vec<u8>),
    /// Runs over what is said of each snapshot when it is taken.
    pub tell: fn(&mut Snapshot),
    snapshots: Mutex<BTreeMap<String, Kept>>,
}

#[derive(Clone)]
struct Kept {
    snapshot: Snapshot,
    files: BTreeMap<Vec<u8>, (Entry, Vec<u8>)>,
    root: Entry,
}

impl Trivial {
    /// A provider of that name that does nothing wrong.
    ///
    /// # Panics
    /// If `name` is not the name of a provider.
    #[must_use]
    pub fn new(name: &'static str) -> Self {
        ProviderName::new(name).unwrap();
        let version = "0.1.0".to_owned();
        Self {
            name,
            version,
            before: |_, _| {},
            refuse: || Ok(()),
            capture: |_| {},
            tell: |_| {},
            snapshots: Mutex::new(BTreeMap::new()),
        }
    }

    fn kept(&self, reference: &Reference) -> Result<Kept> {
        let snapshots = self.snapshots.lock().unwrap();
        let kept = snapshots.get(reference.as_str()).cloned();
        kept.ok_or_else(|| Error::new(ErrorKind::NotFound, format!("there is no snapshot {reference}")))
    }
}

impl Provider for Trivial {
    fn describe(&self) -> Description {
        Description {
            name: ProviderName::new(self.name).unwrap(),
            version: self.version.clone(),
            rank: None,
            filesystems: [].into(),
            capabilities: [Capability::AlwaysDurable, Capability::ReadWithoutMount].into(),
        }
    }

    fn probe(&self, place: &Place<'_>, request: &ProbeRequest, cx: &Context<'_>) -> Result<Probe> {
        (self.before)("probe", cx);
        place.need_workspace()?;
        let modes: std::collections::BTreeSet<_> = [ah_plugin_api::Mode::InPlace].into();
        Ok(Probe {
            usable: request.mode.is_none_or(|mode| modes.contains(&mode)),
            reason: "memory is everywhere".to_owned(),
            remedy: None,
            modes,
            can_delete: true,
            convertible: None,
        })
    }

    fn snapshot(&self, place: &Place<'_>, request: &SnapshotRequest, cx: &Context<'_>) -> Result<Snapshot> {
        (self.before)("snapshot", cx);
        let workspace = place.need_workspace()?;
        let io = |e: std::io::Error| Error::from_io("cannot read the workspace", &e);
        let dir = rustix::fs::Dir::read_from(workspace).map_err(|e| io(e.into()))?;
        let mut files = BTreeMap::new();
        let mut omitted = Vec::new();
        for (done, found) in dir.enumerate() {
            cx.check_cancelled()?;
            let name = found.map_err(|e| io(e.into()))?.file_name().to_bytes().to_vec();
            if name == b"." || name == b".." {
                continue;
            }
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let opened = rustix::fs::openat(workspace, name.as_slice(), flags, Mode::empty()).map(File::from);
            let file = opened.ok().filter(|file| file.metadata().is_ok_and(|at| at.is_file()));
            let Some(mut file) = file else {
                let path = RelPath::new(name)?;
                omitted.push(Omission { path, reason: OmitReason::SpecialFile, detail: None });
                continue;
            };
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).map_err(io)?;
            (self.capture)(&mut bytes);
            let at = file.metadata().map_err(io)?;
            let entry = entry(name.clone(), EntryKind::File, bytes.len() as u64, &at);
            files.insert(name, (entry, bytes));
            cx.progress("reading", done as u64 + 1, None);
        }
        cx.log(LogLevel::Info, &format!("kept {} files", files.len()));
        let own = workspace.as_fd().try_clone_to_owned().map(File::from).and_then(|dir| dir.metadata()).map_err(io)?;
        let mut snapshot = Snapshot {
            id: request.id.clone(),
            reference: Reference::new(request.id.as_str())?,
            created: request.created,
            label: request.label.clone(),
            attributes: request.attributes.clone(),
            durability: Durability::Durable,
            tree: None,
            entries: Some(files.len() as u64 + 1),
            omitted_total: omitted.len() as u64,
            omitted,
            repository: None,
            pins: None,
            changed_below: None,
        };
        let kept = Kept { snapshot: snapshot.clone(), files, root: entry(Vec::new(), EntryKind::Dir, 0, &own) };
        (self.tell)(&mut snapshot);
        let mut snapshots = self.snapshots.lock().unwrap();
        if snapshots.contains_key(request.id.as_str()) {
            return Err(Error::new(ErrorKind::AlreadyExists, format!("there is a snapshot {}", request.id)));
        }
        snapshots.insert(request.id.to_string(), kept);
        Ok(snapshot)
    }

    fn sync(&self, _place: &Place<'_>, request: &SnapshotRef, cx: &Context<'_>) -> Result<Done> {
        (self.before)("sync", cx);
        self.kept(&request.snapshot).map(|_| Done {})
    }

    fn list(&self, _place: &Place<'_>, _request: &ListRequest, cx: &Context<'_>) -> Result<Vec<Snapshot>> {
        (self.before)("list", cx);
        let all = self.snapshots.lock().unwrap();
        let mut all: Vec<_> = all.values().map(|kept| kept.snapshot.clone()).collect();
        all.iter_mut().for_each(|snapshot| snapshot.omitted.clear());
        all.sort_by_key(|snapshot| snapshot.created);
        Ok(all)
    }

    fn stat(&self, _place: &Place<'_>, request: &SnapshotRef, cx: &Context<'_>) -> Result<Snapshot> {
        (self.before)("stat", cx);
        self.kept(&request.snapshot).map(|kept| kept.snapshot)
    }

    fn destroy(&self, _place: &Place<'_>, request: &DestroyRequest, cx: &Context<'_>) -> Result<Done> {
        (self.before)("destroy", cx);
        if let DestroyRequest::Snapshot(reference) = request {
            self.snapshots.lock().unwrap().remove(reference.as_str());
        }
        Ok(Done {})
    }

    fn mount(&self, place: &Place<'_>, request: &MountRequest, cx: &Context<'_>) -> Result<View> {
        (self.before)("mount", cx);
        let kept = self.kept(&request.snapshot)?;
        let target = place.need_target()?;
        let path = target.path().join(request.name.as_os_str());
        let made = std::fs::create_dir(&path);
        made.map_err(|e| Error::from_io(format!("cannot make {}", path.display()), &e))?;
        for (name, (_, bytes)) in &kept.files {
            let file = path.join(RelPath::new(name.clone())?.as_path());
            std::fs::write(&file, bytes).map_err(|e| Error::from_io("cannot write a view", &e))?;
        }
        let reference = Reference::new(path.to_string_lossy())?;
        Ok(View { path, reference, read_only_mount: false })
    }

    fn unmount(&self, _place: &Place<'_>, request: &UnmountRequest, cx: &Context<'_>) -> Result<Done> {
        (self.before)("unmount", cx);
        match std::fs::remove_dir_all(request.view.as_str()) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::from_io("cannot remove a view", &e)),
            Ok(()) | Err(_) => Ok(Done {}),
        }
    }

    fn read_dir(&self, _place: &Place<'_>, request: &ReadDirRequest, cx: &Context<'_>) -> Result<Vec<Entry>> {
        (self.before)("read_dir", cx);
        let kept = self.kept(&request.snapshot)?;
        if request.path.is_root() {
            return Ok(kept.files.into_values().map(|(entry, _)| entry).collect());
        }
        Err(Error::new(ErrorKind::NotFound, format!("there is no folder {}", request.path)))
    }

    fn read(&self, place: &Place<'_>, request: &ReadRequest, cx: &Context<'_>) -> Result<Entry> {
        (self.before)("read", cx);
        (self.refuse)()?;
        let kept = self.kept(&request.snapshot)?;
        let missing = || Error::new(ErrorKind::NotFound, format!("there is no file {}", request.path));
        let (entry, bytes) = kept.files.get(request.path.as_bytes()).ok_or_else(missing)?;
        let output = place.need_output()?.try_clone_to_owned().map(File::from);
        let written = output.and_then(|mut output| output.write_all(bytes));
        written.map_err(|e| Error::from_io("cannot write to the output", &e))?;
        Ok(entry.clone())
    }

    fn lookup(&self, _place: &Place<'_>, request: &LookupRequest, cx: &Context<'_>) -> Result<Vec<Option<Entry>>> {
        (self.before)("lookup", cx);
        let find = |kept: Kept| match request.path.is_root() {
            true => Some(kept.root),
            false => kept.files.get(request.path.as_bytes()).map(|(entry, _)| entry.clone()),
        };
        request.snapshots.iter().map(|snapshot| self.kept(snapshot).map(find)).collect()
    }

    fn reclaim(&self, _place: &Place<'_>, _request: &ReclaimRequest, cx: &Context<'_>) -> Result<Reclaimed> {
        (self.before)("reclaim", cx);
        Ok(Reclaimed::default())
    }

    fn convert(&self, _place: &Place<'_>, _request: &ConvertRequest, cx: &Context<'_>) -> Result<Converted> {
        (self.before)("convert", cx);
        Ok(Converted { changed: false, mounted: false, notes: vec!["a trivial unit".to_owned()] })
    }
}

fn entry(name: Vec<u8>, kind: EntryKind, size: u64, at: &std::fs::Metadata) -> Entry {
    let mtime = Timestamp { secs: at.mtime(), nanos: at.mtime_nsec() as u32 };
    Entry { name, kind, mode: at.mode() & 0o7777, size, mtime, content: None, ignored: false }
}
