//! What a settings file was before the hooks, kept so that it can come back byte for byte.
//!
//! Two files a settings file, in a folder of ours: its former contents (`….before`, absent if there was no file), and a record of what was written into it. The
//! former contents come back only if what was written is still there unchanged. They may be the only copy of the user's settings, as where the file was lost
//! since: only once they are back are they removed, and others that take their place leave them beside (`….before-DIGEST`), unless all that they say stands in
//! these, too.
//!
//! A project that was moved is found by its folder's id ([`known_by`]). What cannot be told is whether a folder with another id at its former path is the project
//! itself, put there anew, or a clone that came with hooks of ours in its settings: it counts as the project itself. Who installs or uninstalls in such a clone
//! before doing either in the moved project gives the clone what is kept of that one; from that one's settings only the hooks can then be taken out.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use ah_plugin_api::sys::filesystem_id;
use ah_plugin_api::{Error, ErrorKind, Result, text};
use rustix::fs::{AtFlags, CWD, StatxFlags, statfs, statvfs, statx};
use serde::{Deserialize, Serialize};
use sha1::{Digest as _, Sha1};

use super::file::{self, Settings};
use super::{Target, json, place_of, project_of};

/// The record. Paths in it are as people read them: they need not be text.
#[derive(Serialize, Deserialize)]
struct Record {
    version: u32,
    file: String,
    /// Whether there was a file before.
    existed: bool,
    /// Whether its place was a symlink.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    linked: bool,
    /// The SHA-1 of what was written.
    written: String,
    /// The folders that were made for it, among those above it; those in a project as they are called there, by older ones in full.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    made: Vec<String>,
    /// What the project's folder is known by wherever it is; none of the user's settings, nor where it cannot be told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    project: Option<String>,
}

/// One way of writing for each path, and no other path's.
fn shown(path: &Path) -> String {
    text::path(path.as_os_str().as_bytes()).into_owned()
}

fn digest(bytes: &[u8]) -> String {
    Sha1::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What the project's folder is known by, whatever its path. Inodes are used again, so that without a time of birth it cannot be told, and a clone of a
/// filesystem has both of its origin's.
pub(super) fn known_by(target: &Target<'_>) -> Option<String> {
    let project = project_of(target)?;
    let wanted = StatxFlags::INO | StatxFlags::BTIME;
    let found = statx(CWD, project, AtFlags::empty(), wanted).ok()?;
    let id = filesystem_id(&statfs(project).ok()?, &statvfs(project).ok()?);
    let id = id.map(|id| format!("{id:x}")).unwrap_or_default();
    let born = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::BTIME).then_some(found.stx_btime)?;
    Some(format!("{id}-{:x}-{}.{:09}", found.stx_ino, born.tv_sec, born.tv_nsec))
}

/// Whether both are what one folder is known by: of some filesystems former versions wrote down what they say of themselves, and this one does not.
fn is_same_folder(one: &str, other: &str) -> bool {
    one.split_once('-').zip(other.split_once('-')).is_some_and(|((id, folder), (other_id, other_folder))| {
        folder == other_folder && (id == other_id || id.is_empty() || other_id.is_empty())
    })
}

/// How a folder that was made is written down.
fn called(dir: &Path, target: &Target<'_>) -> String {
    let inside = project_of(target).and_then(|project| dir.strip_prefix(project).ok());
    shown(inside.filter(|inside| !inside.as_os_str().is_empty()).unwrap_or(dir))
}

/// The record of a project that was elsewhere when it was written.
fn of_moved(target: &Target<'_>) -> Option<PathBuf> {
    let known = known_by(target)?;
    let prefix = format!("{}-", target.agent);
    let files = std::fs::read_dir(target.backups).ok()?.flatten();
    let mut records = files.map(|entry| entry.path()).filter(|path| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with(&prefix) && name.ends_with(".json"))
    });
    let project_in = |path: &Path| read(path).ok()??.project;
    records.find(|path| project_in(path).is_some_and(|project| is_same_folder(&project, &known)))
}

/// Whether the record at the project's place is another project's, which was there before. A folder whose settings hold hooks of ours is the same project, as
/// after a conversion, whatever else was edited in them, unless what is kept of its own is elsewhere.
fn is_anothers(target: &Target<'_>, record: &Record) -> bool {
    let known = known_by(target).zip(record.project.as_ref());
    let is_another = known.is_some_and(|(known, project)| !is_same_folder(&known, project));
    let holds_ours = || {
        let place = place_of(target)?;
        let text = Settings::read(&place, project_of(target))?.text.unwrap_or_default();
        json::look(target.agent, &place, &text).map(|found| !found.ours.is_empty())
    };
    is_another && (of_moved(target).is_some() || !holds_ours().unwrap_or(false))
}

/// Whether what was written is what is there now.
fn is_as_written(record: &Record, settings: &Settings) -> bool {
    settings.text.as_deref().is_some_and(|text| digest(text.as_bytes()) == record.written)
}

/// Brings what is kept of a project's settings to where it is looked for, if the project was moved since; what is kept there of another one first goes to where that
/// is found by its folder. From then on it is known by the folder that is there.
pub(super) fn follow(target: &Target<'_>) -> Result<()> {
    let Some((place, _)) = places(target) else { return Ok(()) };
    let another = read(&place)?.filter(|record| is_anothers(target, record));
    if let Some(project) = another.and_then(|record| record.project) {
        let name = format!("{}-{}.json", target.agent, &digest(project.as_bytes())[..12]);
        bring(&place, &target.backups.join(name))?;
    }
    if !place.exists()
        && let Some(former) = of_moved(target)
    {
        bring(&former, &place)?;
    }
    let known = known_by(target);
    match read(&place)?.filter(|record| known.is_some() && record.project != known) {
        Some(record) => write(&place, &Record { project: known, ..record }),
        None => Ok(()),
    }
}

/// Renames the record `from`, and the former contents that it goes with.
fn bring(from: &Path, to: &Path) -> Result<()> {
    let rename = |from: &Path, to: &Path| {
        std::fs::rename(from, to).map_err(|error| Error::from_io(format!("cannot move {}", from.display()), &error))
    };
    let [former, before] = [from, to].map(|record| record.with_extension("before"));
    if former.exists() {
        set_aside(&before, |_| false)?;
        rename(&former, &before)?;
    }
    // The record goes last: with it all of it is found again.
    rename(from, to)
}

/// The record's and the former contents' places.
fn places(target: &Target<'_>) -> Option<(PathBuf, PathBuf)> {
    let file = place_of(target).ok()?;
    let key = digest(file.as_os_str().as_bytes());
    let name = format!("{}-{}", target.agent, &key[..12]);
    Some((target.backups.join(format!("{name}.json")), target.backups.join(format!("{name}.before"))))
}

/// What `settings` was before the hooks, if what was written then is what is there now: the outer `None` if that cannot be said, the inner one if
/// there was no file.
pub(super) fn of(target: &Target<'_>, settings: &Settings) -> Result<Option<Option<String>>> {
    let Some((record, before)) = places(target) else { return Ok(None) };
    let Some(record) = read(&record)? else { return Ok(None) };
    if !is_as_written(&record, settings) {
        return Ok(None);
    }
    if !record.existed {
        // Somebody who put a symlink there since keeps the file where that leads.
        return Ok((record.linked || !place_of(target)?.is_symlink()).then_some(None));
    }
    // Without the former contents only what is ours can be taken out.
    Ok(Settings::read(&before, None)?.text.map(Some))
}

fn read(place: &Path) -> Result<Option<Record>> {
    Ok(Settings::read(place, None)?.text.and_then(|text| serde_json::from_str(&text).ok()))
}

fn write(place: &Path, record: &Record) -> Result<()> {
    let text = serde_json::to_string(record).map_err(|error| {
        Error::new(ErrorKind::Internal, format!("cannot write down what {} was: {error}", record.file))
    })?;
    file::write_own(place, &text)
}

/// What the file was before the hooks, whatever it is now; none if there was none, or nobody knows.
pub(super) fn before(target: &Target<'_>) -> Option<String> {
    Settings::read(&kept(target)?, None).ok()?.text
}

/// Whether something of what the file was before the hooks does not stand in `text`, what it is now.
pub(super) fn is_lost(target: &Target<'_>, text: Option<&str>) -> bool {
    before(target).is_some_and(|kept| !text.is_some_and(|text| says_all(target, text, &kept)))
}

/// Whether all that `kept` says stands in `text`.
fn says_all(target: &Target<'_>, text: &str, kept: &str) -> bool {
    text == kept || json::holds(target.agent, text, kept)
}

/// What [`keep`] keeps.
#[derive(Default)]
pub(super) struct Kept {
    /// Where the file as it was before these hooks is; none if there was none.
    pub(super) before: Option<PathBuf>,
    /// Where it is as it was before earlier ones, if something of that is no more.
    pub(super) beside: Option<PathBuf>,
}

/// Keeps `former`, which `written` is about to replace. The record comes last: until it is there nothing is restored from what it goes with.
pub(super) fn keep(target: &Target<'_>, former: Option<&str>, written: &str) -> Result<Kept> {
    let Some((record, before)) = places(target) else { return Ok(Kept::default()) };
    let beside = set_aside(&before, |kept| former.is_some_and(|former| says_all(target, former, kept)))?;
    if let Some(former) = former {
        file::write_own(&before, former)?;
    }
    let file = place_of(target)?;
    let mut made: Vec<String> =
        file.ancestors().skip(1).take_while(|dir| !dir.exists()).map(|dir| called(dir, target)).collect();
    if let Some(earlier) = read(&record)?.filter(|earlier| !earlier.existed && made.is_empty()) {
        made = earlier.made;
    }
    let (linked, existed) = (file.is_symlink(), former.is_some());
    let (written, project) = (digest(written.as_bytes()), known_by(target));
    write(&record, &Record { version: 1, file: shown(&file), existed, linked, written, made, project })?;
    Ok(Kept { before: former.map(|_| before), beside })
}

/// Keeps `text`, which stands in the file, is about to go and may be somebody's: a copy of it.
pub(super) fn keep_beside(target: &Target<'_>, text: &str) -> Result<Option<PathBuf>> {
    let Some((_, before)) = places(target) else { return Ok(None) };
    let beside = beside(&before, text);
    file::write_own(&beside, text)?;
    Ok(Some(beside))
}

/// Moves what is kept in `before` out of the way, unless it `is_held` by what takes its place.
fn set_aside(before: &Path, is_held: impl FnOnce(&str) -> bool) -> Result<Option<PathBuf>> {
    let Some(text) = Settings::read(before, None)?.text.filter(|text| !is_held(text)) else { return Ok(None) };
    let beside = beside(before, &text);
    std::fs::rename(before, &beside)
        .map_err(|error| Error::from_io(format!("cannot move {} aside", before.display()), &error))?;
    Ok(Some(beside))
}

/// A place for `text` beside `before`, and for no other text.
fn beside(before: &Path, text: &str) -> PathBuf {
    let mut name = before.as_os_str().to_owned();
    name.push(format!("-{}", &digest(text.as_bytes())[..12]));
    name.into()
}

/// Whether it is written down what was put into the settings.
pub(super) fn is_recorded(target: &Target<'_>) -> bool {
    let is_own = |place: &Path| match read(place) {
        Ok(Some(record)) => !is_anothers(target, &record),
        _ => place.exists(),
    };
    places(target).is_some_and(|(place, _)| is_own(&place)) || of_moved(target).is_some()
}

/// Where the former contents are kept.
pub(super) fn kept(target: &Target<'_>) -> Option<PathBuf> {
    places(target).map(|(_, before)| before).filter(|before| before.exists())
}

/// Removes the folders that were made for the file, as far as nothing else is in them by now.
pub(super) fn remove_made(target: &Target<'_>) {
    let Some(record) = places(target).and_then(|(record, _)| read(&record).ok()?) else { return };
    let Ok(file) = place_of(target) else { return };
    for dir in file
        .ancestors()
        .skip(1)
        .filter(|dir| [called(dir, target), shown(dir)].iter().any(|it| record.made.contains(it)))
    {
        let _ = std::fs::remove_dir(dir);
    }
}

/// Removes the record, and the former contents if they are what the settings hold again (`put_back`).
pub(super) fn forget(target: &Target<'_>, put_back: bool) {
    if let Some((record, before)) = places(target) {
        let _ = std::fs::remove_file(record);
        if put_back {
            let _ = std::fs::remove_file(before);
        }
    }
}
