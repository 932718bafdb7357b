//! The layout of `$AH_HOME`, and the check that it is ours and can be used.
//!
//! ```text
//! home.json      version, key and place  config.json    the user's configuration     trust.json   trusted project files
//! index.json     a cache (registry/)     lock           held while the registry changes
//! workspaces/<id>/                       registry/, session.rs, timeline/
//! leases/<id>.json   mounts/<id>         seek/
//! branches/<id>.json branches/<name>/    branch/
//! trash/                                 emptied by gc        reserve, …   room on a full disk (reserve.rs)
//! logs/                                  agent/unkept.rs
//! ```

mod reserve;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use ah_plugin_api::{Durability, Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::fsio;
use crate::registry::Identity;
use crate::{attend, mounts, text};

pub(crate) use reserve::lacks_room;

const VERSION: u32 = 1;
/// Where it is if nobody says otherwise, as people write it.
const DEFAULT: &str = "~/.ah";

/// An `$AH_HOME` that can be used.
#[derive(Debug, Clone)]
pub(crate) struct Home {
    path: PathBuf,
    /// The one that it was copied from, if that is there.
    original: Option<PathBuf>,
    /// What `home.json` is to say before anything is removed that is not in here, if it says otherwise.
    settled: Option<HomeFile>,
}

#[derive(Debug, Clone, Serialize)]
struct HomeFile {
    version: u32,
    /// What it shares with its copies alone: 16 hex digits.
    key: Option<String>,
    /// Where it was when that was last written: when it was made, was found moved, or something was to be removed by it. A copy was
    /// somewhere else.
    #[serde(with = "text::abs_option")]
    path: Option<PathBuf>,
    /// What the folder is known by, which a copy of it is not.
    folder: Option<Identity>,
    /// Where it was before that, or what it is a copy of was: that may be there again.
    #[serde(with = "text::abs_option", skip_serializing_if = "Option::is_none")]
    from: Option<PathBuf>,
}

/// What is in the place of another `home.json`.
enum There {
    /// None.
    Nothing,
    /// One, or something that cannot be read now.
    File(Option<HomeFile>),
}

impl HomeFile {
    /// A field that cannot be read is none: a newer version may write it in another way.
    fn parse(bytes: &[u8]) -> Option<Self> {
        #[derive(Deserialize)]
        struct Place(#[serde(with = "text::abs")] PathBuf);
        let fields: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(bytes).ok()?;
        let version = fields.get("version")?.as_u64()?;
        let place = |name: &str| Some(serde_json::from_value::<Place>(fields.get(name)?.clone()).ok()?.0);
        Some(Self {
            version: u32::try_from(version).unwrap_or(u32::MAX),
            key: fields.get("key").and_then(|key| Some(key.as_str()?.to_owned())),
            path: place("path"),
            folder: fields.get("folder").and_then(|folder| serde_json::from_value(folder.clone()).ok()),
            from: place("from"),
        })
    }

    fn read(home: &Path) -> There {
        match fsio::read(&home.join("home.json")) {
            Ok(Some(bytes)) => There::File(Self::parse(&bytes)),
            Ok(None) => There::Nothing,
            // What is behind a closed door is nobody's whom this one could harm.
            Err(error) if error.kind == ErrorKind::PermissionDenied => There::Nothing,
            Err(_) => There::File(None),
        }
    }
}

impl Home {
    /// Makes it if it is not there, and checks it. `user_home` is the user's home directory.
    ///
    /// An existing directory is used, and made private, only if it is an `$AH_HOME` already, or there is nothing of anybody's in it.
    pub(crate) fn open(path: &Path, user_home: Option<&Path>) -> Result<Self> {
        let called = called(path, user_home);
        let unusable = |error| unusable(&called, error);
        if !path.is_absolute() {
            return Err(Error::new(ErrorKind::InvalidArgument, format!("AH_HOME {} is not absolute", path.display()))
                .with_hint("set AH_HOME to an absolute path, or unset it for ~/.ah"));
        }
        let me = rustix::process::geteuid().as_raw();
        let is_home = path.join("home.json").exists();
        if !is_home {
            refuse_anothers(path, user_home, me)?;
        }
        let made = fsio::make_dir(path).map_err(unusable)?;
        // One spelling of it, so that paths below it can be compared with canonical ones.
        let path = fs::canonicalize(path).map_err(|e| unusable(fsio::failed("open", path, &e)))?;
        let meta = fs::metadata(&path).map_err(|e| unusable(fsio::failed("open", &path, &e)))?;
        if meta.uid() != me {
            let message = format!("{called} belongs to user {}, not to user {me}", meta.uid());
            return Err(Error::new(ErrorKind::PermissionDenied, message)
                .with_hint("run this as its owner, or set AH_HOME to a directory of your own"));
        }
        if !made && !is_home {
            // Another process may be making it at this moment; it writes that file before anything else.
            refuse_full(&path, &called)
                .or_else(|error| if path.join("home.json").exists() { Ok(()) } else { Err(error) })?;
        }
        if meta.permissions().mode() & 0o077 != 0 {
            fs::set_permissions(&path, fs::Permissions::from_mode(fsio::DIR_MODE))
                .map_err(|e| unusable(fsio::failed("make private", &path, &e)))?;
        }
        // What was captured can be looked at on a disk that is read-only now; what writes says so by itself.
        let wanted = if is_home {
            rustix::fs::Access::EXEC_OK
        } else {
            rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK
        };
        let usable = rustix::fs::access(&path, wanted);
        usable.map_err(|e| unusable(fsio::failed("write to", &path, &e.into())))?;
        let file = path.join("home.json");
        // All else is there: whoever went elsewhere now would not find it.
        let unread = |error: Error| {
            let hint = format!("see that it is a file that you can read: `ls -l {}`", text::shell(file.as_os_str()));
            unusable(error.with_hint(hint))
        };
        let bytes = if made { None } else { fsio::read(&file).map_err(unread)? };
        // Missing or damaged: it is written anew, with another key, by which copies that were made before are not told any more.
        let found = bytes.and_then(|bytes| HomeFile::parse(&bytes));
        if found.as_ref().is_some_and(|found| found.version > VERSION) {
            return Err(Error::new(
                ErrorKind::FailedPrecondition,
                format!("{called} was made by a newer version of ah"),
            )
            .with_hint("use that version, or set AH_HOME to another directory"));
        }
        let original = found.as_ref().and_then(|found| original_of(&path, found));
        let mut home = Self { path, original, settled: None };
        match found {
            Some(found) if found.key.is_some() && found.path.is_some() => home.settled = home.settle(found),
            found => home.write_down(found).map_err(unusable)?,
        }
        Ok(home)
    }

    /// What is to be said of the copy of one that is not there. One that was moved says at once where it is now.
    fn settle(&self, found: HomeFile) -> Option<HomeFile> {
        if self.original.is_some() {
            return None;
        }
        let folder = Identity::of_path(&self.path);
        let is_this = is_its_folder(&found, &self.path);
        if found.path.as_deref() == Some(&self.path) {
            // Put back in its place, it is another folder.
            let _ = (!is_this).then(|| self.write(&HomeFile { folder, ..found }));
            return None;
        }
        let settled = HomeFile { from: found.path, path: Some(self.path.clone()), folder, ..found };
        // On a disk that is full or read-only, the next one does.
        if is_this && self.write(&settled).is_ok() { None } else { Some(settled) }
    }

    /// Has `home.json` say where it is for the first time.
    fn write_down(&self, found: Option<HomeFile>) -> Result<()> {
        let is_new = found.is_none();
        let key = found.and_then(|found| found.key).map_or_else(random_key, Ok)?;
        let (path, folder) = (Some(self.path.clone()), Identity::of_path(&self.path));
        let written = self.write(&HomeFile { version: VERSION, key: Some(key), path, folder, from: None });
        // On a disk that is full or read-only, the next one does.
        if is_new { written } else { Ok(()) }
    }

    fn write(&self, file: &HomeFile) -> Result<()> {
        let mut bytes = serde_json::to_vec(file).map_err(|e| {
            Error::new(ErrorKind::InvalidArgument, "where AH_HOME is cannot be written down").with_cause(&e)
        })?;
        bytes.push(b'\n');
        fsio::replace(&self.path.join("home.json"), &bytes, Durability::Durable)
    }

    /// Whether something that is not in here may be removed: a copy names the snapshots and branches of its original, and does not know what
    /// that came to need since. Where the original is not there, this is the one from now on, until that comes back.
    pub(crate) fn claim(&self) -> bool {
        // On a disk that is full, the next one writes it.
        let _ = self.settled.as_ref().map(|settled| self.write(settled));
        self.original.is_none()
    }

    /// As [`Home::claim`], for what a person asked for.
    ///
    /// # Errors
    /// `FailedPrecondition` for a copy whose original is there.
    pub(crate) fn may_remove(&self, what: &str) -> Result<()> {
        self.claim();
        let Some(original) = &self.original else { return Ok(()) };
        let message = format!(
            "{what} is not done in {}, a copy of {}, whose snapshots and branches it would remove",
            self.path.display(),
            original.display()
        );
        Err(Error::new(ErrorKind::FailedPrecondition, message).with_hint(format!(
            "set AH_HOME to {}; if the copy is to go on in its place, move that away first",
            text::shell(original.as_os_str())
        )))
    }

    /// The one that it is a copy of, if that is there.
    pub(crate) fn original(&self) -> Option<&Path> {
        self.original.as_deref()
    }

    /// Where something of this one is now that was at `path` when this was at another place; `part` is the beginning of where it is in here. None if it
    /// is where it was, or nothing of it is here.
    pub(crate) fn brought_along(&self, path: &Path, part: &Path) -> Option<PathBuf> {
        if self.original.is_some() || path.starts_with(&self.path) {
            return None;
        }
        let here = |above: &Path| -> Option<PathBuf> {
            let rest = path.strip_prefix(above).ok()?;
            let here = [&self.path, part, rest].into_iter().flat_map(Path::components).collect::<PathBuf>();
            fs::symlink_metadata(&here).is_ok().then_some(here)
        };
        path.ancestors().filter(|above| above.ends_with(part)).find_map(here)
    }

    /// The folder itself, canonical.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A file or folder in it.
    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The folder of a workspace.
    pub(crate) fn workspace(&self, id: &str) -> PathBuf {
        self.path.join("workspaces").join(id)
    }
}

/// Where the one is that the `$AH_HOME` at `path` was copied from: another one of its key, where it says that it was, and which says so itself; or
/// one that cannot be read now.
fn original_of(path: &Path, found: &HomeFile) -> Option<PathBuf> {
    let key = found.key.as_ref()?;
    let id = |path: &Path| fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
    let is_it = |other: &Path| match HomeFile::read(other) {
        There::Nothing => false,
        There::File(None) => true,
        There::File(Some(theirs)) => {
            theirs.key.as_ref() == Some(key) && (theirs.path.as_deref() == Some(other) || is_its_folder(&theirs, other))
        }
    };
    let mut others = [&found.path, &found.from].into_iter().flatten().filter(|other| *other != path);
    others.find(|other| is_it(other) && id(other) != id(path)).cloned()
}

/// Whether a folder is the one that its `home.json` is of, which it may call by another name: a symlink leads there now, or it is mounted elsewhere, too.
fn is_its_folder(file: &HomeFile, folder: &Path) -> bool {
    let there = file.folder.as_ref().zip(Identity::of_path(folder));
    there.is_some_and(|(then, now)| then.same_but_for_device(&now))
}

fn random_key() -> Result<String> {
    let random = getrandom::u64();
    let random =
        random.map_err(|e| Error::new(ErrorKind::Unavailable, format!("the system has no random numbers: {e}")))?;
    Ok(format!("{random:016x}"))
}

/// Refuses what somebody else may have put where a new `$AH_HOME` would be: a symlink; and for root, who runs `sudo`, `~/.ah` in
/// another user's home directory, which that user could not use any more.
fn refuse_anothers(path: &Path, user_home: Option<&Path>, me: u32) -> Result<()> {
    let link = fs::symlink_metadata(path).ok();
    let owner = match (&link, user_home) {
        (Some(meta), _) if meta.is_symlink() => Some(meta.uid()).filter(|&uid| uid != 0),
        (None, Some(home)) if me == 0 && path == home.join(".ah") => fs::metadata(home).ok().map(|meta| meta.uid()),
        _ => None,
    };
    let Some(owner) = owner.filter(|&owner| owner != me) else { return Ok(()) };
    let what = if link.is_some() { "is a symlink of" } else { "would be in the home directory of" };
    Err(Error::new(ErrorKind::PermissionDenied, format!("AH_HOME {} {what} user {owner}", path.display()))
        .with_hint("run without sudo, or set AH_HOME"))
}

/// What a person calls it.
fn called(path: &Path, user_home: Option<&Path>) -> String {
    match user_home.is_some_and(|home| path == home.join(".ah")) {
        true => DEFAULT.to_owned(),
        false => format!("AH_HOME {}", path.display()),
    }
}

/// Refuses a directory that holds what is not ours. Configuration may be there before the first use.
fn refuse_full(path: &Path, called: &str) -> Result<()> {
    let ours = |name: &std::ffi::OsStr| {
        name.to_str().is_some_and(|name| ["config.json", "trust.json"].contains(&name) || fsio::is_temp(name))
    };
    let mut names = fs::read_dir(path).map_err(|e| unusable(called, fsio::failed("read", path, &e)))?;
    if names.all(|entry| entry.is_ok_and(|entry| ours(&entry.file_name()))) {
        return Ok(());
    }
    let typed = if called == DEFAULT { DEFAULT.to_owned() } else { text::shell(path.as_os_str()) };
    let hint = if is_a_husk(path) {
        format!("nothing is kept in it any more; take it away: chmod -R u+w {typed} && rm -rf {typed}")
    } else if path.join("workspaces").is_dir() {
        format!(
            "if you have moved it while something ran in it, this is what that has made anew: move it aside, and the other one back, or set AH_HOME; if it \
             is one that lost its `home.json`: echo '{{\"version\":{VERSION}}}' >{typed}/home.json"
        )
    } else if called == DEFAULT {
        format!("move what is not ah's out of {DEFAULT}, or set AH_HOME to a directory that is not there yet")
    } else {
        "set AH_HOME to a directory that is not there yet, or unset it for ~/.ah".to_owned()
    };
    Err(Error::new(ErrorKind::FailedPrecondition, format!("{called} is a directory with other things in it"))
        .with_hint(hint))
}

/// Whether a removal by hand left only what it could not take: directories, and what stands in the place of branches. What
/// cannot be looked at, or may be mounted in it, may be somebody's.
fn is_a_husk(path: &Path) -> bool {
    const LOOKS: usize = 10_000;
    let (there, below) = mounts::at(path);
    let (mut folders, mut looks) = (vec![path.to_owned()], 0);
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else { return false };
        for entry in entries {
            looks += 1;
            let Ok(entry) = entry else { return false };
            match entry.file_type() {
                _ if looks > LOOKS => return false,
                Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                Ok(kind) if kind.is_file() && attend::is_stand_in(&entry.path()) => {}
                _ => return false,
            }
        }
    }
    there == 0 && below.is_none()
}

fn unusable(called: &str, error: Error) -> Error {
    let hint = error.hint.clone();
    // That a folder above it is not there says nothing about what the person asked for.
    let kind = if error.kind == ErrorKind::NotFound { ErrorKind::FailedPrecondition } else { error.kind };
    let error = Error { kind, ..error }.context(format!("{called} cannot be used"));
    error.with_hint(hint.unwrap_or_else(|| "set AH_HOME to a directory that you can write to".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::Home;
    use ah_plugin_api::ErrorKind;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    fn open(path: &Path) -> ah_plugin_api::Result<Home> {
        Home::open(path, None)
    }

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn an_existing_directory_is_not_taken_over() {
        let dir = tempfile::tempdir().unwrap();
        let (full, link) = (dir.path().join("full"), dir.path().join("link"));
        std::fs::create_dir(&full).unwrap();
        std::fs::write(full.join("mine"), "").unwrap();
        std::fs::set_permissions(&full, std::fs::Permissions::from_mode(0o1777)).unwrap();
        symlink(&full, &link).unwrap();
        for path in [&full, &link] {
            let error = open(path).unwrap_err();
            assert_eq!((error.kind, error.hint.is_some()), (ErrorKind::FailedPrecondition, true));
        }
        assert_eq!((mode(&full), std::fs::read_dir(&full).unwrap().count()), (0o1777, 1));
        // Empty but for configuration: that is what it is for.
        std::fs::rename(full.join("mine"), full.join("config.json")).unwrap();
        open(&full).unwrap();
        assert_eq!(mode(&full), 0o700);
        open(&link).unwrap();
    }

    #[test]
    fn what_a_removal_could_not_take_is_told_from_what_may_be_somebodys() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join(".ah");
        let place = home.join("branches/z1");
        std::fs::create_dir_all(&place).unwrap();
        std::fs::create_dir_all(home.join("workspaces/k")).unwrap();
        std::fs::write(place.join("NOT-MOUNTED.txt"), "This is the place of a branch that ah keeps in …").unwrap();
        let said = || Home::open(&home, Some(dir.path())).unwrap_err();
        assert!(said().message.starts_with("~/.ah is a directory"), "{:?}", said());
        assert!(said().hint.unwrap().ends_with(": chmod -R u+w ~/.ah && rm -rf ~/.ah"), "{:?}", said());
        for (file, content) in [("branches/z1/mine", "x"), ("workspaces/k/timeline", ""), ("NOT-MOUNTED.txt", "mine")] {
            std::fs::write(home.join(file), content).unwrap();
            assert!(!said().hint.unwrap().contains("rm "), "{file}: {:?}", said());
            std::fs::remove_file(home.join(file)).unwrap();
        }
        let error = open(&home).unwrap_err();
        assert!(error.message.starts_with("AH_HOME /") && error.hint.unwrap().contains("rm -rf /"));
    }

    #[test]
    fn root_does_not_settle_in_anothers_home() {
        if !rustix::process::geteuid().is_root() {
            assert!(std::env::var_os("AH_TEST_REQUIRE_ALL").is_none(), "skipped: needs root");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (user, empty) = (dir.path().join("user"), dir.path().join("empty"));
        std::fs::create_dir(&user).unwrap();
        std::fs::create_dir(&empty).unwrap();
        std::os::unix::fs::chown(&user, Some(1234), None).unwrap();
        let home = user.join(".ah");
        assert_eq!(Home::open(&home, Some(&user)).unwrap_err().kind, ErrorKind::PermissionDenied);
        assert!(!home.exists());
        symlink(&empty, &home).unwrap();
        std::os::unix::fs::lchown(&home, Some(1234), None).unwrap();
        assert_eq!(Home::open(&home, Some(&user)).unwrap_err().kind, ErrorKind::PermissionDenied);
        assert_eq!(std::fs::read_dir(&empty).unwrap().count(), 0);
        std::fs::remove_file(&home).unwrap();
        // Asked for by name it is nobody else's matter.
        Home::open(&user.join("root"), Some(&user)).unwrap();
    }

    #[test]
    fn is_made_private_and_opened_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/home");
        open(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        open(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn a_copy_is_told_from_what_was_moved_or_put_back() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let copy = |from: &str, to: &str| {
            std::fs::create_dir(at(to)).unwrap();
            std::fs::copy(at(from).join("home.json"), at(to).join("home.json")).unwrap();
        };
        let is_copy = |name: &str| open(&at(name)).unwrap().original().is_some();
        // As versions before this one wrote it.
        std::fs::create_dir(at("a")).unwrap();
        std::fs::write(at("a/home.json"), "{\"version\":1}\n").unwrap();
        assert!(!is_copy("a"));
        copy("a", "b");
        for _ in 0..2 {
            assert!(is_copy("b") && !is_copy("a"));
        }
        let error = open(&at("b")).unwrap().may_remove("`rm`").unwrap_err();
        assert!(error.message.contains("a copy of") && error.hint.unwrap().contains(at("a").to_str().unwrap()));
        // Away for a moment only, it is the one again.
        std::fs::rename(at("a"), at("moved")).unwrap();
        assert!(!is_copy("moved") && !is_copy("b"));
        std::fs::rename(at("moved"), at("a")).unwrap();
        assert!(!is_copy("a") && is_copy("b"));
        // Moved, it is what it was; the copy of one that is not there goes on in its place, until that is back.
        std::fs::rename(at("a"), at("moved")).unwrap();
        open(&at("b")).unwrap().may_remove("`rm`").unwrap();
        assert!(!is_copy("b"));
        std::fs::rename(at("moved"), at("a")).unwrap();
        assert!(!is_copy("a") && is_copy("b"));
        std::fs::remove_dir_all(at("b")).unwrap();
        std::fs::rename(at("a"), at("moved")).unwrap();
        open(&at("moved")).unwrap().may_remove("`rm`").unwrap();
        // Moved aside, and put back from a copy: the other one is the copy now.
        std::fs::rename(at("moved"), at("aside")).unwrap();
        copy("aside", "moved");
        assert!(!is_copy("moved") && is_copy("aside"));
        // A copy of one that was moved is told as well.
        let there = at("moved");
        std::fs::rename(&there, at("twice")).unwrap();
        assert!(!is_copy("twice"));
        copy("twice", "copy");
        assert!(is_copy("copy") && !is_copy("twice"));
        // What cannot be read now may be the original.
        std::fs::write(at("twice/home.json"), "garb").unwrap();
        assert!(is_copy("copy"));
        std::fs::copy(at("copy/home.json"), at("twice/home.json")).unwrap();
        assert!(!is_copy("twice"));
        std::fs::rename(at("twice"), &there).unwrap();
        assert!(!is_copy("moved"));
        // By another name, or with another one in its old place, it is itself.
        symlink(at("moved"), at("link")).unwrap();
        assert!(!is_copy("link"));
        std::fs::rename(at("moved"), at("again")).unwrap();
        open(&at("moved")).unwrap();
        assert!(!is_copy("again") && !is_copy("moved"));
    }

    #[test]
    fn bad_homes_are_refused_with_a_hint() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(open(Path::new("relative")).unwrap_err().kind, ErrorKind::InvalidArgument);
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let error = open(&file.join("home")).unwrap_err();
        assert!(error.hint.is_some(), "{error:?}");
        let newer = dir.path().join("newer");
        std::fs::create_dir(&newer).unwrap();
        std::fs::write(newer.join("home.json"), "{\"version\":99}").unwrap();
        assert_eq!(open(&newer).unwrap_err().kind, ErrorKind::FailedPrecondition);
        std::fs::write(newer.join("home.json"), "garb").unwrap();
        open(&newer).unwrap();
    }
}
