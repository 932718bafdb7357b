//! What a branch holds that is nowhere else, so that it is not taken away by mistake.

use std::path::PathBuf;

use ah_plugin_api::{CapturePolicy, Change, DiffRequest, Dir, EntryKind, Error, ErrorKind, RelPath, Result, Side};

use rustix::fs::AtFlags;
use rustix::io::Errno;

use crate::attend::Standing;
use crate::branch::inside::inside;
use crate::branch::repository::RepositoryMark;
use crate::branch::{BranchFile, BranchState, all, read_all};
use crate::engine::Engine;
use crate::registry::{Identity, Index};
use crate::text;
use crate::versioned;
use crate::walk::{self, Source};
use crate::workspace::{Served, Workspace};

/// Where a branch's directory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whereabouts {
    /// Where it was made.
    InPlace,
    /// Not there.
    Gone,
    /// Not there, but something else is.
    Replaced,
}

/// What a branch holds that is nowhere else.
#[derive(Default)]
struct Held {
    /// A few words for each kind.
    words: Vec<String>,
    /// A repository with commits or references that no other has.
    repository: Option<PathBuf>,
}

impl BranchFile {
    /// The workspace that the branch is, also if its maker did not live to write that down.
    pub(super) fn own_workspace(&self, engine: &Engine) -> Result<Option<Workspace>> {
        let mut id = self.record.workspace.clone();
        if id.is_none() {
            let mut records = Index::refresh(engine.home())?.workspaces.into_iter();
            id = records.find(|record| record.branch.as_ref() == Some(&self.record.id)).map(|record| record.id);
        }
        let Some(mut own) = id.map_or(Ok(None), |id| engine.workspace_by_id(&id))? else { return Ok(None) };
        // A filesystem that was mounted anew may have another number.
        if let Some(there) = Identity::of_path(&own.root)
            && own.record.identity.same_but_for_device(&there)
        {
            own.record.identity = there;
        }
        Ok(Some(own))
    }

    /// Where its directory is, by what the workspace `own` is known by.
    pub(super) fn whereabouts(&self, own: Option<&Workspace>) -> Whereabouts {
        let Some(there) = Identity::of_path(&self.made_at) else {
            // What cannot be looked at, as a mount whose process is gone, is there.
            return match std::fs::symlink_metadata(&self.made_at).map_err(|error| error.kind()) {
                Err(std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => Whereabouts::Gone,
                _ => Whereabouts::Replaced,
            };
        };
        if self.standing() == Standing::Unmounted {
            return Whereabouts::Replaced;
        }
        if own.is_none_or(|own| own.record.identity.same(&there)) {
            Whereabouts::InPlace
        } else {
            Whereabouts::Replaced
        }
    }
}

impl Workspace {
    /// Refuses if a branch of this workspace holds something that is nowhere else, or is not where it was made.
    pub(crate) fn refuse_held(&self, file: &BranchFile) -> Result<()> {
        let name = &file.record.name;
        let own = file.own_workspace(&self.engine)?;
        match (file.whereabouts(own.as_ref()), file.record.state) {
            // The rest of a removal that was cut short.
            (Whereabouts::Gone, BranchState::Removing) => return Ok(()),
            (Whereabouts::InPlace, _) => {}
            _ if file.standing() == Standing::Unmounted => {
                let message = format!("the branch {name} is not mounted, so what it holds cannot be looked at");
                return Err(Error::new(ErrorKind::FailedPrecondition, message).with_hint(format!(
                    "`ah agent fs branches` says why; or lose it: `ah agent fs rm --force {}`",
                    text::shell(name.as_ref())
                )));
            }
            (Whereabouts::Gone | Whereabouts::Replaced, _) => {
                let place = file.made_at.display();
                let message =
                    format!("the branch {name} is not at {place} any more: only its history could be removed");
                let path = &file.record.path;
                let back = match *path != file.made_at {
                    true => format!(
                        "`mv {} {place}`, then `ah -C {place} agent fs status`, brings it back there",
                        text::shell(path.as_os_str()),
                        place = text::shell(file.made_at.as_os_str())
                    ),
                    false => "bring it back there".to_owned(),
                };
                return Err(Error::new(ErrorKind::FailedPrecondition, message).with_hint(format!(
                    "{back}; or `ah agent fs rm --force {}`, which leaves its files wherever they are",
                    text::shell(name.as_ref())
                )));
            }
        }
        let held = self.held(file, own.as_ref()).map_err(|error| {
            error
                .context(format!("it cannot be found out what the branch {name} holds that is nowhere else"))
                .with_hint(format!(
                    "copy what is needed out of {}; then `ah agent fs rm --force {}`",
                    file.record.path.display(),
                    text::shell(name.as_ref())
                ))
        })?;
        if held.words.is_empty() {
            return Ok(());
        }
        let message = format!("the branch {name} holds what is nowhere else: {}", held.words.join(", "));
        let (place, name) = (text::shell(file.record.path.as_os_str()), text::shell(name.as_ref()));
        let fetch = |from: &PathBuf| format!(" (`cp`; commits: `git fetch {}`)", text::shell(from.as_os_str()));
        let fetch = held.repository.as_ref().map(fetch).unwrap_or_default();
        Err(Error::new(ErrorKind::FailedPrecondition, message).with_hint(format!(
            "copy what is needed out of {place}{fetch}; or lose it: `ah agent fs rm --force {name}`"
        )))
    }

    /// Refuses if branches grew from a branch: what was done in them is told by comparing with its snapshots.
    pub(super) fn refuse_grown(&self, file: &BranchFile) -> Result<()> {
        // One whose record cannot be read may have.
        let all = versioned::whole(read_all(self.engine.home())?)?;
        let (name, grown) = (&file.record.name, grown_from(&self.engine, file, all)?);
        if grown.is_empty() {
            return Ok(());
        }
        let message = format!("what {} grew from goes with the branch {name}", grown.join(", "));
        let names = grown.iter().map(|name| text::shell(name.as_ref())).collect::<Vec<_>>().join(" ");
        let (place, name) = (text::shell(file.record.path.as_os_str()), text::shell(name.as_ref()));
        Err(Error::new(ErrorKind::FailedPrecondition, message).with_hint(format!(
            "take those away first: `ah -C {place} agent fs rm {names}`; or leave them without it, so that `diff` there needs a REF: \
             `ah -C {} agent fs rm --force {name}`",
            text::shell(self.root.as_os_str())
        )))
    }

    fn held(&self, file: &BranchFile, own: Option<&Workspace>) -> Result<Held> {
        let Some(own) = own else { return Ok(Held::default()) };
        let mut held = Vec::new();
        match self.state()?.snapshot(&file.record.snapshot) {
            Some(origin) => {
                let served = self.serve(&origin.provider)?;
                match self.changed_files(file, own, &served, Side::Snapshot(origin.reference.clone()))? {
                    0 => {}
                    changed => held.push(text::count(changed, "changed file", "changed files")),
                }
            }
            None => held.push("perhaps changed files (the snapshot it grew from is gone)".to_owned()),
        }
        held.extend(own.snapshots_held(&own.lock("orphans")?)?);
        let branch = own.open_dir()?;
        let (words, repositories) = inside(&branch, self.open_dir().ok().as_ref())?;
        held.extend(words);
        let mut repository = repositories.first().map(|path| file.record.path.join(path.as_path()));
        for other in all(self.engine.home())? {
            if other.record.id != file.record.id && other.made_at.starts_with(&file.made_at) && other.made_at.exists() {
                held.push(format!("the branch {}", other.record.name));
            }
        }
        let now = RepositoryMark::of(&branch)?;
        match (&file.repository, &now) {
            // What is half taken away already has no HEAD.
            (_, None) => {}
            (None, Some(_)) => held.push("a repository of its own".to_owned()),
            (Some(then), Some(now)) if then.head != now.head => held.push("HEAD moved".to_owned()),
            (Some(then), Some(now)) if then != now => held.push("references moved".to_owned()),
            (Some(_), Some(_)) => {}
        }
        if now.is_some() && file.repository != now {
            repository = Some(file.record.path.clone());
        }
        Ok(Held { words: held, repository })
    }

    /// How many files of a branch are neither as in the snapshot it grew from nor as they are in this workspace now.
    fn changed_files(&self, file: &BranchFile, own: &Workspace, served: &Served, from: Side) -> Result<usize> {
        let (branch, policy): (Dir, CapturePolicy) = (own.open_dir()?, own.policy()?);
        let request = DiffRequest { from, to: Side::Workspace, paths: Vec::new(), times: false, policy };
        let changes = own.changes_since_growth(served, &request)?.changes;
        let here = self.open_dir().ok();
        let mut count = 0;
        for change in &changes {
            let is_file = |entry: &ah_plugin_api::Entry| entry.kind != EntryKind::Dir;
            let there = change.after.as_ref().is_some_and(is_file);
            let was = change.before.as_ref().is_some_and(is_file);
            // A removal that was cut short has taken files away itself.
            let counts = there || (was && file.record.state != BranchState::Removing);
            // It was brought home, or came from there.
            if counts && !here.as_ref().is_some_and(|here| self.is_here(here, &branch, change)) {
                count += 1;
            }
        }
        Ok(count)
    }

    /// Whether a changed file of a branch is the same in this workspace, contents and mode, or gone there as well. In doubt, it is not.
    fn is_here(&self, here: &Dir, branch: &Dir, change: &Change) -> bool {
        let none = |_: &RelPath, _: EntryKind, _: u64| false;
        let (ours, its) =
            (Source::Directory { root: here, skip: &none }, Source::Directory { root: branch, skip: &none });
        let (path, cx) = (&change.path, self.context());
        match (ours.entry(path, &cx), &change.after) {
            // An entry that is beyond a link or a mount is none to `entry`, and is there.
            (Ok(None), None) => {
                let missing = |errno| matches!(errno, Errno::NOENT | Errno::NOTDIR);
                rustix::fs::statat(here, path.as_path(), AtFlags::SYMLINK_NOFOLLOW).is_err_and(missing)
            }
            (Ok(Some(entry)), Some(after)) => {
                matches!(after.kind, EntryKind::File | EntryKind::Symlink)
                    && entry.mode == after.mode
                    && walk::same_contents((&ours, path, &entry), (&its, path, after), &cx).unwrap_or(false)
            }
            _ => false,
        }
    }
}

/// The names of those of `all` branches that grew from one.
pub(super) fn grown_from(engine: &Engine, file: &BranchFile, all: Vec<BranchFile>) -> Result<Vec<String>> {
    let Some(own) = file.own_workspace(engine)? else { return Ok(Vec::new()) };
    let grown = all.into_iter().filter(|other| other.record.origin == own.id);
    Ok(grown.map(|other| other.record.name).collect())
}

/// How many mounts there are at a directory itself, and the topmost mount point below it.
pub(crate) fn mounts_at(dir: &std::path::Path) -> (usize, Option<PathBuf>) {
    use std::os::unix::ffi::OsStringExt;
    let mounts = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let points = mounts.split(|&b| b == b'\n').filter_map(|line| line.split(|&b| b == b' ').nth(4));
    let points = points.map(|point| PathBuf::from(std::ffi::OsString::from_vec(unescaped(point))));
    let (there, below): (Vec<_>, Vec<_>) =
        points.filter(|point| point.starts_with(dir)).partition(|point| point == dir);
    (there.len(), below.into_iter().min())
}

/// Where what is mounted on which a path lies by its name, if a process or another machine serves that, which may never answer; none if nothing does.
pub(crate) fn served_mount(path: &std::path::Path) -> Option<PathBuf> {
    served_by(&std::fs::read("/proc/self/mountinfo").unwrap_or_default(), path)
}

/// As [`served_mount`], by the table: the mount point is the fifth word, the kind is behind a dash (`… - fuse.agentfs source options`); see
/// `proc_pid_mountinfo(5)`. Of several at one point the last is on top.
fn served_by(table: &[u8], path: &std::path::Path) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStringExt;
    const SERVED: [&[u8]; 9] = [b"fuse", b"nfs", b"cifs", b"smb", b"9p", b"ceph", b"afs", b"autofs", b"virtiofs"];
    let mounts = table.split(|&b| b == b'\n').filter_map(|line| {
        let mut words = line.split(|&b| b == b' ');
        let point = PathBuf::from(std::ffi::OsString::from_vec(unescaped(words.nth(4)?)));
        let kind = words.skip_while(|word| *word != b"-").nth(1)?;
        path.starts_with(&point).then_some((point, kind))
    });
    let (point, kind) = mounts.max_by_key(|(point, _)| point.components().count())?;
    (kind != b"fusectl" && SERVED.iter().any(|served| kind.starts_with(served))).then_some(point)
}

/// The kernel writes space, tab, newline and backslash as three octal digits.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::new(), text);
    while let Some((&first, after)) = rest.split_first() {
        let code = after.get(..3).filter(|_| first == b'\\').and_then(|code| std::str::from_utf8(code).ok());
        match code.and_then(|code| u8::from_str_radix(code, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_a_process_serves_is_told_by_the_mount_that_a_path_is_on() {
        let table = b"27 1 254:0 / / rw shared:1 - ext4 /dev/vda rw\n36 27 0:31 / /c rw - fusectl none rw\n\
            40 27 0:40 / /b\\040b rw,nosuid - fuse.agentfs agentfs:/h rw\n41 40 0:41 / /b\\040b/t rw - tmpfs none rw\n\
            42 27 0:42 / /n rw - nfs4 host:/ rw\n43 42 254:0 / /n rw - ext4 /dev/vdb rw\n44 27 0:44 / /s rw - nfs4 host:/ rw\n";
        for (path, served) in [
            ("/", None),
            ("/bb", None),
            ("/c/1", None),
            ("/b b", Some("/b b")),
            ("/b b/f", Some("/b b")),
            ("/b b/t/f", None),
            ("/n/f", None),
            ("/s/f", Some("/s")),
        ] {
            assert_eq!(super::served_by(table, path.as_ref()), served.map(Into::into), "{path}");
        }
    }

    #[test]
    fn mount_points_are_read_as_the_kernel_writes_them() {
        assert_eq!(super::unescaped(b"/a\\040b\\134c\\"), b"/a b\\c\\");
        let (there, below) = super::mounts_at(std::path::Path::new("/"));
        assert!(there > 0 && below.is_some());
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(super::mounts_at(dir.path()), (0, None));
    }
}
