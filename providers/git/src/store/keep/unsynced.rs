//! What is new in `keep/` and not on disk yet.
//!
//! Before the first new name appears, an empty marker is put into `unsynced/`: whoever finds it brings the whole file system to
//! disk. At the end it gets the exact list, where that is short: lines `d <folder>` and `f <file>`, then `end`. So a keeper that fails or
//! is killed at any point leaves nothing that the next snapshot could take for synced. Hard links are on the list as copies are: Git
//! does not bring loose objects to disk by default.

use std::os::fd::{AsFd, OwnedFd};

use ah_plugin_api::Result;

use super::{LOOSE, PACKS, STATE};
use crate::store::files;
use crate::store::{Store, reclaim, sync};

/// More names than this are brought to disk with the whole file system.
const MANY: usize = 128;

/// Notes what is being added to `keep/`.
pub(super) struct Unsynced<'s> {
    store: &'s Store,
    /// Its name, once it is there.
    marker: Option<String>,
    lines: Vec<String>,
    folder: String,
}

impl<'s> Unsynced<'s> {
    pub(super) fn new(store: &'s Store) -> Self {
        Self { store, marker: None, lines: Vec::new(), folder: String::new() }
    }

    /// Must be called before a name is added. Notes also that there will be garbage if the snapshot comes to nothing.
    pub(super) fn begin(&mut self) -> Result<()> {
        if self.marker.is_none() {
            reclaim::note_writing(self.store)?;
            self.marker = Some(sync::mark(self.store, &format!("keep-{}", files::temp_name("list")?))?);
        }
        Ok(())
    }

    /// Whether anything may have been added.
    pub(super) fn began(&self) -> bool {
        self.marker.is_some()
    }

    /// Notes a new file of a folder inside of `keep`.
    pub(super) fn note(&mut self, folder: &str, file: &str) {
        if self.lines.len() > MANY {
            return;
        }
        if self.folder != folder {
            folder.clone_into(&mut self.folder);
            self.lines.push(format!("d {folder}\n"));
        }
        self.lines.push(format!("f {folder}/{file}\n"));
    }

    /// Puts the list into the marker, if it is short.
    pub(super) fn finish(self) -> Result<()> {
        let Some(marker) = self.marker.filter(|_| self.lines.len() <= MANY) else { return Ok(()) };
        let folders = &self.store.folders;
        let content = self.lines.concat() + "end\n";
        files::put(folders.tmp.as_fd(), folders.unsynced.as_fd(), &marker, content.as_bytes(), 0o600, false)
    }
}

/// Brings what the marker `name` lists to disk. The caller has the lock.
pub(in crate::store) fn sync(store: &Store, name: &str) -> Result<()> {
    let keep = &store.folders.keep;
    let text = files::read_file(&store.folders.unsynced, name, 1 << 20)?.unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    if text.lines().next_back() != Some("end") {
        return files::sync_all(keep);
    }
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("f ") {
            if let Some((file, _)) = files::open_file(keep, name)? {
                files::sync(&file, name)?;
            }
        } else if let Some(name) = line.strip_prefix("d ")
            && let Ok(dir) = files::open_dir(keep, name)
        {
            files::sync(&dir, name)?;
        }
    }
    for name in [LOOSE, PACKS, "."] {
        if let Ok(dir) = files::open_dir(keep, name) {
            files::sync(&dir, name)?;
        }
    }
    Ok(())
}

/// After a power cut: what was being kept may be there in name only. The caller has the lock.
pub(in crate::store) fn recover(store: &Store) -> Result<()> {
    let keep = &store.folders.keep;
    files::remove(keep, STATE)?;
    let drop_empty = |dir: &OwnedFd| -> Result<()> {
        for name in files::names(dir)? {
            if files::open_file(dir, &name).is_ok_and(|found| found.is_some_and(|(_, size)| size == 0)) {
                files::remove(dir, &name)?;
            }
        }
        Ok(())
    };
    if let Ok(packs) = files::open_dir(keep, PACKS) {
        drop_empty(&packs)?;
    }
    if let Ok(loose) = files::open_dir(keep, LOOSE) {
        for folder in files::names(&loose)? {
            drop_empty(&files::open_dir(&loose, &folder)?)?;
        }
    }
    Ok(())
}
