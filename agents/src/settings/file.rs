//! A settings file: read whole, replaced in one step.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use ah_plugin_api::sys::as_user;
use ah_plugin_api::{Error, ErrorKind, Result};
use rustix::fs::{Gid, Uid, XattrFlags};
use rustix::io::Errno;

use crate::files::open_regular;

/// Largest settings file that is read.
const LARGEST: u64 = 16 << 20;
/// The attribute that an access list is.
const ACCESS_LIST: &str = "system.posix_acl_access";

/// A settings file as it was found.
pub(super) struct Settings {
    /// Behind symlinks.
    path: PathBuf,
    /// What is in it; `None` if there is no file.
    pub(super) text: Option<String>,
}

impl Settings {
    /// Reads the file at `place`, which may be a symlink, and need not exist. Below `project` nothing may be one: who wrote the project chose where
    /// it leads. What a symlink leads to need not exist either, if it is this user's symlink, and the folder is there.
    pub(super) fn read(place: &Path, project: Option<&Path>) -> Result<Self> {
        let below = project.map(|project| place.ancestors().take_while(move |path| *path != project));
        if let Some(symlink) = below.and_then(|mut below| below.find(|path| path.is_symlink())) {
            let message = format!("{} is a symlink, which is not followed in a project", symlink.display());
            return Err(Error::new(ErrorKind::FailedPrecondition, message)
                .with_hint("replace it by what it points to, or use the settings of your own: leave out --project"));
        }
        let path = match std::fs::canonicalize(place) {
            Ok(path) => path,
            Err(_) if place.is_symlink() => end_of(place).ok_or_else(|| {
                let message = format!("{} is a symlink to something that cannot be reached", place.display());
                Error::new(ErrorKind::FailedPrecondition, message)
                    .with_hint("remove the symlink, or make what it points to")
            })?,
            Err(_) => place.to_path_buf(),
        };
        let text = read_text(&path)?;
        Ok(Self { path, text })
    }

    /// Puts `text` into its place, unless somebody else changed the file since it was read. The file stays whose it is, and with its mode, access list
    /// and attributes; what root makes in a user's folder is that user's.
    pub(super) fn replace(&self, text: &str) -> Result<()> {
        let above = || self.path.ancestors().skip(1).find_map(|dir| std::fs::metadata(dir).ok());
        let made = self.text.is_none() && rustix::process::geteuid().is_root();
        match made.then(above).flatten().filter(|above| above.uid() != 0) {
            // With their rights alone: they may change where a name leads at any moment.
            Some(above) => as_user(above.uid(), above.gid(), &[], || self.put(text)).unwrap_or_else(|| {
                let message = format!("{} is in a folder of user {}", self.path.display(), above.uid());
                Err(Error::new(ErrorKind::PermissionDenied, message).with_hint("run the command as that user"))
            }),
            None => self.put(text),
        }
    }

    fn put(&self, text: &str) -> Result<()> {
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
            match open_regular(&self.path) {
                Ok(former) => take_over(&former, &file).map_err(fail)?,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(fail(error)),
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

/// Gives a new file what `former` has beside its contents, as far as this user may.
fn take_over(former: &File, file: &File) -> std::io::Result<()> {
    let meta = former.metadata()?;
    // Root may change another user's settings; they stay that user's.
    let _ = rustix::fs::fchown(file, Some(Uid::from_raw(meta.uid())), Some(Gid::from_raw(meta.gid())));
    let (mut names, mut value) = (vec![0; 64 << 10], vec![0; 64 << 10]);
    let length = match rustix::fs::flistxattr(former, names.as_mut_slice()) {
        Err(Errno::NOTSUP) => 0,
        length => length?,
    };
    // While the mode lets this user write.
    for name in names[..length].split(|byte| *byte == 0).filter(|name| name.starts_with(b"user.")) {
        let length = rustix::fs::fgetxattr(former, name, value.as_mut_slice())?;
        rustix::fs::fsetxattr(file, name, &value[..length], XattrFlags::empty())?;
    }
    file.set_permissions(std::fs::Permissions::from_mode(meta.permissions().mode() & 0o7777))?;
    let done = match rustix::fs::fgetxattr(former, ACCESS_LIST, value.as_mut_slice()) {
        Ok(length) => rustix::fs::fsetxattr(file, ACCESS_LIST, &value[..length], XattrFlags::empty()),
        // One that the folder gave the new file would let others in.
        Err(Errno::NODATA) => rustix::fs::fremovexattr(file, ACCESS_LIST),
        Err(error) => Err(error),
    };
    match done {
        Err(Errno::NODATA | Errno::NOTSUP) => Ok(()),
        done => Ok(done?),
    }
}

/// The place that a dangling symlink leads to, if its folder is there. Another user's is none: they could have root make a file anywhere.
fn end_of(symlink: &Path) -> Option<PathBuf> {
    let me = rustix::process::geteuid().as_raw();
    let mut path = symlink.to_path_buf();
    // As many as the kernel follows.
    for _ in 0..40 {
        match std::fs::symlink_metadata(&path) {
            Ok(meta) if meta.is_symlink() && meta.uid() == me => {
                path = path.parent()?.join(std::fs::read_link(&path).ok()?);
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Some(std::fs::canonicalize(path.parent()?).ok()?.join(path.file_name()?));
            }
            _ => return None,
        }
    }
    None
}

fn read_text(path: &Path) -> Result<Option<String>> {
    let fail = |error: &std::io::Error| Error::from_io(format!("cannot read {}", path.display()), error);
    let file = match open_regular(path) {
        Ok(file) => file,
        Err(error) => {
            return match error.kind() {
                std::io::ErrorKind::NotFound => Ok(None),
                std::io::ErrorKind::Unsupported => Err(refused(path, "not a file", "move it away, then repeat")),
                _ => Err(fail(&error)),
            };
        }
    };
    let mut bytes = Vec::new();
    file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(|error| fail(&error))?;
    if bytes.len() as u64 > LARGEST {
        return Err(refused(path, "larger than 16 MiB", "make it smaller, then repeat"));
    }
    String::from_utf8(bytes).map(Some).map_err(|_| refused(path, "not text in UTF-8", "mend the file, then repeat"))
}

fn refused(path: &Path, what: &str, hint: &str) -> Error {
    Error::new(ErrorKind::FailedPrecondition, format!("{} is {what}", path.display()))
        .with_hint(format!("nothing was changed; {hint}"))
}

/// Writes a file of our own in one step.
pub(super) fn write_own(path: &Path, text: &str) -> Result<()> {
    let current = Settings { path: path.into(), text: read_text(path)? };
    current.replace(text)
}
