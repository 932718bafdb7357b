//! A settings file: read whole, replaced in one step.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use ah_plugin_api::{Error, ErrorKind, Result};

use crate::files::open_regular;

/// Largest settings file that is read.
const LARGEST: u64 = 16 << 20;

/// A settings file as it was found.
pub(super) struct Settings {
    /// Behind symlinks.
    path: PathBuf,
    /// What is in it; `None` if there is no file.
    pub(super) text: Option<String>,
}

impl Settings {
    /// Reads the file at `place`, which may be a symlink, and need not exist. Below `project` nothing may be one: who wrote the project chose where
    /// it leads.
    pub(super) fn read(place: &Path, project: Option<&Path>) -> Result<Self> {
        let below = project.map(|project| place.ancestors().take_while(move |path| *path != project));
        let is_symlink = |path: &&Path| std::fs::symlink_metadata(path).is_ok_and(|meta| meta.is_symlink());
        if let Some(symlink) = below.and_then(|mut below| below.find(is_symlink)) {
            let message = format!("{} is a symlink, which is not followed in a project", symlink.display());
            return Err(Error::new(ErrorKind::FailedPrecondition, message)
                .with_hint("replace it by what it points to, or use the settings of your own: leave out --project"));
        }
        let path = match std::fs::canonicalize(place) {
            Ok(path) => path,
            Err(_) if std::fs::symlink_metadata(place).is_ok_and(|meta| meta.is_symlink()) => {
                let message = format!("{} is a symlink to something that cannot be reached", place.display());
                return Err(Error::new(ErrorKind::FailedPrecondition, message)
                    .with_hint("remove the symlink, or make what it points to"));
            }
            Err(_) => place.to_path_buf(),
        };
        let text = read_text(&path)?;
        Ok(Self { path, text })
    }

    /// Puts `text` into its place, unless somebody else changed the file since it was read.
    pub(super) fn replace(&self, text: &str) -> Result<()> {
        let fail = |error: std::io::Error| Error::from_io(format!("cannot write {}", self.path.display()), &error);
        let (Some(dir), Some(name)) = (self.path.parent(), self.path.file_name()) else {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("{} is not a file's name", self.path.display()),
            ));
        };
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(fail)?;
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".ah-{}", std::process::id()));
        let temp = dir.join(hidden);
        let result = (|| {
            // One of a process that was killed, and had the same number.
            let _ = std::fs::remove_file(&temp);
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temp).map_err(fail)?;
            if let Ok(meta) = std::fs::metadata(&self.path) {
                // Root may change another user's settings; they stay that user's.
                let (uid, gid) = (rustix::fs::Uid::from_raw(meta.uid()), rustix::fs::Gid::from_raw(meta.gid()));
                let _ = rustix::fs::fchown(&file, Some(uid), Some(gid));
                file.set_permissions(std::fs::Permissions::from_mode(meta.permissions().mode() & 0o7777))
                    .map_err(fail)?;
            }
            file.write_all(text.as_bytes()).map_err(fail)?;
            file.sync_all().map_err(fail)?;
            self.unchanged()?;
            std::fs::rename(&temp, &self.path).map_err(fail)?;
            File::open(dir).and_then(|dir| dir.sync_all()).map_err(fail)
        })();
        if result.is_err() {
            let _ = std::fs::remove_file(&temp);
        }
        result
    }

    /// Removes the file, unless somebody else changed it since it was read.
    pub(super) fn remove(&self) -> Result<()> {
        self.unchanged()?;
        std::fs::remove_file(&self.path)
            .map_err(|error| Error::from_io(format!("cannot remove {}", self.path.display()), &error))
    }

    fn unchanged(&self) -> Result<()> {
        if read_text(&self.path)? == self.text {
            return Ok(());
        }
        let message = format!("{} was changed by somebody else just now", self.path.display());
        Err(Error::new(ErrorKind::Conflict, message).with_hint("repeat the command"))
    }
}

fn read_text(path: &Path) -> Result<Option<String>> {
    let fail = |error: &std::io::Error| Error::from_io(format!("cannot read {}", path.display()), error);
    let file = match open_regular(path) {
        Ok(file) => file,
        Err(error) => {
            return match error.kind() {
                std::io::ErrorKind::NotFound => Ok(None),
                std::io::ErrorKind::Unsupported => {
                    Err(Error::new(ErrorKind::FailedPrecondition, format!("{} is not a file", path.display())))
                }
                _ => Err(fail(&error)),
            };
        }
    };
    let mut bytes = Vec::new();
    file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(|error| fail(&error))?;
    if bytes.len() as u64 > LARGEST {
        return Err(Error::new(ErrorKind::FailedPrecondition, format!("{} is larger than 16 MiB", path.display())));
    }
    String::from_utf8(bytes).map(Some).map_err(|_| {
        let message = format!("{} is not text in UTF-8", path.display());
        Error::new(ErrorKind::FailedPrecondition, message).with_hint("nothing was changed; mend the file, then repeat")
    })
}

/// Writes a file of our own in one step.
pub(super) fn write_own(path: &Path, text: &str) -> Result<()> {
    let current = Settings { path: path.into(), text: read_text(path)? };
    current.replace(text)
}
