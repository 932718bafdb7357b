//! What a store looks like on disk, and making a new one.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ah_plugin_api::{Context, Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use super::{files, lock};

/// The only version of the layout so far.
const VERSION: u32 = 1;

/// The bare repository's configuration. Nothing may happen in it behind our back; and what people call their files is none
/// of fsck's business.
const CONFIG: &str = "\
[core]
\trepositoryformatversion = 0
\tfilemode = true
\tbare = true
\tbigFileThreshold = 16m
\tcommitGraph = false
\tmultiPackIndex = false
[gc]
\tauto = 0
\tpackRefs = false
\twriteCommitGraph = false
\tpruneExpire = never
[maintenance]
\tauto = false
[fsck]
\thasDotgit = ignore
\tgitmodulesName = ignore
\tgitmodulesParse = ignore
\tgitmodulesPath = ignore
\tgitmodulesSymlink = ignore
\tgitmodulesUpdate = ignore
\tgitmodulesUrl = ignore
\tgitattributesLarge = ignore
\tgitattributesLineLength = ignore
\tlargePathname = ignore
";

#[derive(Debug, Serialize, Deserialize)]
struct Format {
    version: u32,
}

/// The folders of a store, open.
#[derive(Debug)]
pub(super) struct Folders {
    pub(super) store: OwnedFd,
    pub(super) tmp: OwnedFd,
    pub(super) hints: OwnedFd,
    pub(super) unsynced: OwnedFd,
    pub(super) keep: OwnedFd,
    pub(super) merge: OwnedFd,
    pub(super) git: OwnedFd,
    pub(super) objects: OwnedFd,
    pub(super) packs: OwnedFd,
}

/// Opens the store's folders; makes them first if `dir` has no store.
pub(super) fn open(dir: BorrowedFd<'_>) -> Result<Folders> {
    match version(dir)? {
        Version::This => {}
        // It says the same in every store, and the objects are there.
        Version::Damaged if files::open_dir(dir, "git/objects/pack").is_ok() => {
            // Where this cannot be done now, the next does it.
            if let Ok(Some(_guard)) = lock::take_if_free(dir) {
                let _ = cache(dir, "tmp").and_then(|tmp| write_format(dir, &tmp));
            }
        }
        Version::None | Version::Damaged => {
            // Writers empty `tmp`, so making a store is writing too.
            let _guard = lock::take(dir, &Context::quiet())?;
            if version(dir)? != Version::This {
                make(dir)?;
            }
        }
    }
    let objects = sub(dir, "git/objects")?;
    let merge = cache(dir, "merge")?;
    // What gives room back on a full disk begins with this, for which there may be none then. Who may only read the store needs none.
    if !files::exists(&merge, "lock") {
        let _ = lock::take_if_free(&merge);
    }
    Ok(Folders {
        store: files::open_dir(dir, ".")?,
        tmp: cache(dir, "tmp")?,
        hints: cache(dir, "hints")?,
        unsynced: cache(dir, "unsynced")?,
        keep: cache(dir, "keep")?,
        merge,
        git: sub(dir, "git")?,
        packs: sub(&objects, "pack")?,
        objects,
    })
}

/// What a store says of its version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    /// It is a new folder.
    None,
    This,
    /// What it says is no version at all.
    Damaged,
}

/// Which version of the layout the store in `dir` has.
///
/// # Errors
/// `FailedPrecondition` if it is another than this.
pub(super) fn version(dir: BorrowedFd<'_>) -> Result<Version> {
    let Some(format) = files::read_file(dir, "format", 4096)? else { return Ok(Version::None) };
    let Ok(format) = serde_json::from_slice::<Format>(&format) else { return Ok(Version::Damaged) };
    if format.version == VERSION {
        return Ok(Version::This);
    }
    let message = format!("the store has version {}, this program knows version {VERSION}", format.version);
    Err(Error::new(ErrorKind::FailedPrecondition, message)
        .with_hint("use the version of the program that made it, or newer"))
}

/// A folder without which there is nothing.
fn sub(parent: impl AsFd, name: &str) -> Result<OwnedFd> {
    files::open_dir(parent, name).map_err(|mut error| {
        if error.kind == ErrorKind::NotFound {
            error.kind = ErrorKind::DataLoss;
        }
        error
    })
}

/// A folder whose loss does no harm.
fn cache(parent: BorrowedFd<'_>, name: &str) -> Result<OwnedFd> {
    match files::open_dir(parent, name) {
        Err(error) if error.kind == ErrorKind::NotFound => {
            files::make_dir(parent, name)?;
            files::open_dir(parent, name)
        }
        other => other,
    }
}

/// It may be killed at any point: each step is harmless when it is done again, and `format` comes last.
fn make(dir: BorrowedFd<'_>) -> Result<()> {
    const FOLDERS: [&str; 14] = [
        "tmp",
        "merge",
        "hints",
        "unsynced",
        "keep",
        "git",
        "git/objects",
        "git/objects/info",
        "git/objects/pack",
        "git/refs",
        "git/refs/heads",
        "git/refs/tags",
        "git/refs/ah",
        "git/refs/ah/snapshots",
    ];
    for name in FOLDERS {
        files::make_dir(dir, name)?;
    }
    let tmp = files::open_dir(dir, "tmp")?;
    let git = files::open_dir(dir, "git")?;
    files::put(tmp.as_fd(), git.as_fd(), "config", CONFIG.as_bytes(), 0o600, true)?;
    files::put(tmp.as_fd(), git.as_fd(), "HEAD", b"ref: refs/heads/main\n", 0o600, true)?;
    for name in FOLDERS.into_iter().rev() {
        files::sync(files::open_dir(dir, name)?, name)?;
    }
    write_format(dir, &tmp)
}

fn write_format(dir: BorrowedFd<'_>, tmp: &OwnedFd) -> Result<()> {
    let format = format!("{{\"version\":{VERSION}}}\n");
    files::put(tmp.as_fd(), dir, "format", format.as_bytes(), 0o600, true)?;
    files::sync(dir, "the folder")
}
