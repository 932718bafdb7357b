//! Pins: what files and links below held when a base was taken, each in a file of its own that is named by its hash. Snapshots and branches read them once somebody has changed, replaced or removed
//! what is below.
//!
//! A pin is never believed for its name, and nothing of it is looked at when it is made: who reads it has hashed all of it since the store was opened, and as long as it is that file in which
//! nothing was changed since. One that does not match is removed, so that the next base makes it anew; so is one that a power cut may have damaged, before a base relies on it (`pinning`). So nothing here is ever synced.
//!
//! - here: where they are, and what they hold. `pinning`: when they are made, and when they go.
//!
//! `pins/<two digits>/<hash>` are files' contents, `pins/links/<two digits>/<hash>` are links' targets: a file that begins with a NUL can have a link's hash. `pins/new` is one that has no name yet.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, Mode, OFlags, mkdirat, openat, renameat, unlinkat};
use rustix::io::Errno;

use super::fingerprints::{Hash, hash_of_target};
use crate::error::{Error, Result};
use crate::lock;
use crate::lower::{Lower, XATTR};
use crate::platform::{self, open_beneath};
use crate::rows::key::LineId;
use crate::types::{Kind, Time};

/// Pins of which it is remembered in memory that they match.
const VERIFIED: usize = 1 << 16;
/// The longest target of a link, in bytes.
const TARGET: u64 = 4095;
/// A pin that has no name yet.
const NEW: &str = "new";

/// A file of the store in which nothing was changed: device, inode, size, times of modification and change.
pub(super) type Identity = (u64, u64, u64, Time, Time);

/// See the module.
pub(crate) struct Pins {
    /// The store. All else is found from it, and no link is followed.
    store: OwnedFd,
    /// Pins that were hashed since the store was opened.
    verified: Mutex<HashMap<Hash, Identity>>,
    /// Held while a pin gets its name, or loses it because it does not match, and while directories come and go.
    making: Mutex<()>,
    /// Held while the disk is asked for a pin, or told to remove one: never by who holds the state, which everybody waits for.
    pub(super) decided: Mutex<Decided>,
    /// Bases behind which pins are being made.
    pub(super) bases: Mutex<HashSet<LineId>>,
    /// How many rows were put that say that there may be pins to remove: each is another.
    pub(super) marks: AtomicU64,
    /// How many pins did not match.
    forgotten: AtomicU64,
}

/// Pins that fingerprints are about to name which are not written down yet.
#[derive(Default)]
pub(super) struct Decided {
    pub(super) pins: HashSet<(Kind, Hash)>,
    /// Those who are noting fingerprints of a directory, or removing pins, just now. With the last of them all is forgotten.
    pub(super) users: usize,
}

/// A pin in the list of all.
pub(super) struct Listed {
    pub(super) kind: Kind,
    pub(super) hash: Hash,
}

/// The directory of a pin, and its name there.
fn place(kind: Kind, hash: &Hash) -> (String, String) {
    let name = blake3::Hash::from_bytes(*hash).to_hex().to_string();
    let links = if kind == Kind::Symlink { "links/" } else { "" };
    (format!("pins/{links}{}", &name[..2]), name)
}

fn hash_named(name: &[u8]) -> Option<Hash> {
    let text = std::str::from_utf8(name).ok().filter(|text| text.len() == 64 && text.is_ascii())?;
    let mut hash = [0; 32];
    for (nth, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * nth..2 * nth + 2)?, 16).ok()?;
    }
    // Only as it is written here.
    Some(hash).filter(|hash| place(Kind::File, hash).1.as_bytes() == name)
}

fn identity(file: impl AsFd) -> rustix::io::Result<Identity> {
    let stat = rustix::fs::fstat(file)?;
    let mtime = Time { secs: stat.st_mtime, nanos: stat.st_mtime_nsec as u32 };
    let ctime = Time { secs: stat.st_ctime, nanos: stat.st_ctime_nsec as u32 };
    Ok((stat.st_dev as u64, stat.st_ino, stat.st_size as u64, mtime, ctime))
}

impl Pins {
    pub(super) fn open(store: &Path) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let store = rustix::fs::open(store, flags, Mode::empty()).map_err(Error::io("opening the store"))?;
        let since_epoch = platform::now();
        let since_epoch = (since_epoch.secs as u64) << 30 | u64::from(since_epoch.nanos);
        Ok(Self {
            store,
            verified: Mutex::default(),
            making: Mutex::default(),
            decided: Mutex::default(),
            bases: Mutex::default(),
            // No process before this one used the same.
            marks: AtomicU64::new(since_epoch),
            forgotten: AtomicU64::new(0),
        })
    }

    fn look(&self, kind: Kind, hash: &Hash, flags: OFlags) -> Option<File> {
        let (file, _) = self.look_at(kind, hash, flags)?;
        Some(file)
    }

    /// A pin, and its size.
    fn look_at(&self, kind: Kind, hash: &Hash, flags: OFlags) -> Option<(File, u64)> {
        let (directory, name) = place(kind, hash);
        let path = format!("{directory}/{name}");
        let file: File = open_beneath(self.store.as_fd(), path.as_bytes(), flags).ok()?.into();
        let metadata = file.metadata().ok().filter(std::fs::Metadata::is_file)?;
        Some((file, metadata.len()))
    }

    /// Whether there is a pin of that size. What it holds is not looked at.
    pub(crate) fn is_there(&self, kind: Kind, hash: &Hash, size: u64) -> bool {
        #[cfg(target_os = "linux")]
        let flags = OFlags::PATH;
        #[cfg(not(target_os = "linux"))]
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        self.look_at(kind, hash, flags).is_some_and(|(_, length)| length == size)
    }

    /// The contents of a file that had that hash, and what the pin is: it holds them for as long as it is that. Costs reading all of it, once. `stopped` ends that.
    pub(super) fn contents(&self, hash: &Hash, size: u64, stopped: &dyn Fn() -> bool) -> Option<(File, Identity)> {
        let file = self.look(Kind::File, hash, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
        let is = identity(&file).ok()?;
        if lock(&self.verified).get(hash) == Some(&is) {
            return Some((file, is)).filter(|_| is.2 == size);
        }
        // Whatever is changed in it from then on bears a later time. Where that does not come it is hashed each time.
        let settled = platform::settle(is.4);
        // What cannot be read now may be another time.
        let holds = is.2 == size && holds(&file, size, hash, stopped).ok()??;
        if identity(&file).ok()? != is {
            return None;
        }
        if !holds {
            self.forget(Kind::File, hash, &file);
            return None;
        }
        if settled {
            let mut verified = lock(&self.verified);
            if verified.len() >= VERIFIED {
                verified.clear();
            }
            verified.insert(*hash, is);
        }
        Some((file, is))
    }

    /// Where a link pointed that had that hash.
    pub(crate) fn target(&self, hash: &Hash) -> Option<Vec<u8>> {
        let file = self.look(Kind::Symlink, hash, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
        let target = target_in(&file).ok()?;
        if target.as_deref().map(hash_of_target) != Some(*hash) {
            self.forget(Kind::Symlink, hash, &file);
            return None;
        }
        target
    }

    /// Makes a pin of that size: `fill` gives an empty file its contents, and says whether it could. It gets its name then; gives whether it has it.
    pub(super) fn make(
        &self,
        kind: Kind,
        hash: &Hash,
        size: u64,
        fill: &mut dyn FnMut(&File) -> Result<bool>,
    ) -> Result<bool> {
        let _one = lock(&self.making);
        // Behind another base.
        if self.is_there(kind, hash, size) {
            return Ok(true);
        }
        let error = Error::io::<io::Error>;
        let (path, name) = place(kind, hash);
        let pins = self.directory("pins").map_err(error("pinning"))?;
        if kind == Kind::Symlink {
            self.directory("pins/links").map_err(error("pinning"))?;
        }
        let directory = self.directory(&path).map_err(error("pinning"))?;
        // Of somebody who was killed.
        remove(&pins, NEW.as_bytes()).map_err(error("pinning"))?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file: File = openat(&pins, NEW, flags, Mode::RUSR).map_err(Error::io("pinning"))?.into();
        let mut made = || -> Result<bool> {
            if !fill(&file)? || file.metadata().map_err(error("pinning"))?.len() != size {
                return Ok(false);
            }
            // What has the name already is no pin: it has another size.
            if renameat(&pins, NEW, &directory, &name).is_err() {
                remove(&directory, name.as_bytes()).map_err(error("pinning"))?;
                renameat(&pins, NEW, &directory, &name).map_err(Error::io("pinning"))?;
            }
            Ok(true)
        };
        let answer = made();
        if !matches!(answer, Ok(true)) {
            let _ = remove(&pins, NEW.as_bytes());
        }
        answer
    }

    /// A directory of the store, made if it is not there.
    fn directory(&self, path: &str) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        match open_beneath(self.store.as_fd(), path.as_bytes(), flags) {
            Err(Errno::NOENT) => {
                let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
                let above = open_beneath(self.store.as_fd(), above.as_bytes(), flags)?;
                mkdirat(&above, name, Mode::RWXU)?;
                Ok(open_beneath(self.store.as_fd(), path.as_bytes(), flags)?)
            }
            answer => Ok(answer?),
        }
    }

    /// How many pins were found not to match: none other goes that fingerprints name.
    pub(crate) fn forgotten(&self) -> u64 {
        self.forgotten.load(Ordering::SeqCst)
    }

    /// A pin that does not match is none. `file`: what was looked at; there may be another by now.
    fn forget(&self, kind: Kind, hash: &Hash, file: &File) {
        let _one = lock(&self.making);
        let now = self.look(kind, hash, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY);
        if now.is_some_and(|now| matches!((identity(&now), identity(file)), (Ok(now), Ok(was)) if now == was)) {
            let _ = self.remove(kind, hash);
        }
        self.forgotten.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn remove(&self, kind: Kind, hash: &Hash) -> io::Result<()> {
        let (directory, name) = place(kind, hash);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let directory = open_beneath(self.store.as_fd(), directory.as_bytes(), flags)?;
        remove(&directory, name.as_bytes())
    }

    /// Whether there may be any.
    pub(super) fn any(&self) -> bool {
        !matches!(open_beneath(self.store.as_fd(), b"pins", OFlags::RDONLY | OFlags::DIRECTORY), Err(Errno::NOENT))
    }

    /// Shows all pins, some at a time. What else is there is left alone.
    pub(super) fn list(&self, visit: &mut dyn FnMut(&[Listed]) -> Result<()>) -> Result<()> {
        for (above, kind) in [("pins", Kind::File), ("pins/links", Kind::Symlink)] {
            for part in 0..=u8::MAX {
                let names = self.names(&format!("{above}/{part:02x}"))?;
                let hashes = names.iter().filter_map(|name| hash_named(name)).filter(|hash| hash[0] == part);
                visit(&hashes.map(|hash| Listed { kind, hash }).collect::<Vec<_>>())?;
            }
        }
        Ok(())
    }

    fn names(&self, path: &str) -> Result<Vec<Vec<u8>>> {
        let opened = open_beneath(self.store.as_fd(), path.as_bytes(), OFlags::RDONLY | OFlags::DIRECTORY);
        let directory = match opened {
            Ok(directory) => directory,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(Vec::new()),
            Err(error) => return Err(Error::io("listing the store's pins")(error)),
        };
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::new(directory).map_err(Error::io("listing the store's pins"))? {
            names.push(entry.map_err(Error::io("listing the store's pins"))?.file_name().to_bytes().to_vec());
        }
        Ok(names)
    }

    /// Whether a pin holds what its name says; `None`: it is not there any more. Costs reading it.
    pub(super) fn is_sound(&self, pin: &Listed) -> io::Result<Option<bool>> {
        let (directory, name) = place(pin.kind, &pin.hash);
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file: File = match open_beneath(self.store.as_fd(), format!("{directory}/{name}").as_bytes(), flags) {
            Ok(file) => file.into(),
            Err(Errno::NOENT) => return Ok(None),
            // A link, a socket.
            Err(Errno::LOOP | Errno::NXIO) => return Ok(Some(false)),
            Err(error) => return Err(error.into()),
        };
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Ok(Some(false));
        }
        match pin.kind {
            Kind::Symlink => Ok(Some(target_in(&file)?.as_deref().map(hash_of_target) == Some(pin.hash))),
            _ => holds(&file, metadata.len(), &pin.hash, &|| false),
        }
    }

    /// Removes a pin that was changed after that time, or at all, if it does not hold what its name says. Costs reading it then.
    pub(super) fn doubt(&self, pin: &Listed, since: Option<Time>) {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let Some(file) = self.look(pin.kind, &pin.hash, flags) else { return };
        let is_old = |is: Identity| since.is_some_and(|since| is.4 <= since);
        // What cannot be read now may be another time.
        if !identity(&file).is_ok_and(is_old) && matches!(self.is_sound(pin), Ok(Some(false))) {
            self.forget(pin.kind, &pin.hash, &file);
        }
    }

    /// Whether they lie on the filesystem of a directory.
    pub(super) fn lie_on(&self, lower: &Lower) -> bool {
        identity(&self.store).is_ok_and(|(device, ..)| lower.is_on(device))
    }

    /// Removes what a kill left, and directories in which nothing is.
    pub(super) fn tidy(&self) {
        let _one = lock(&self.making);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let Ok(pins) = open_beneath(self.store.as_fd(), b"pins", flags) else { return };
        let _ = remove(&pins, NEW.as_bytes());
        for above in ["pins/links", "pins"] {
            let Ok(above) = open_beneath(self.store.as_fd(), above.as_bytes(), flags) else { continue };
            for part in 0..=u8::MAX {
                let _ = unlinkat(&above, format!("{part:02x}"), AtFlags::REMOVEDIR);
            }
        }
        let _ = unlinkat(&pins, "links", AtFlags::REMOVEDIR);
        let _ = unlinkat(&self.store, "pins", AtFlags::REMOVEDIR);
    }
}

/// Whatever is there, if it is not a directory that holds something.
fn remove(directory: &OwnedFd, name: &[u8]) -> io::Result<()> {
    match unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        // Of a directory; what is said differs between systems.
        Err(Errno::ISDIR | Errno::PERM) => Ok(unlinkat(directory, name, AtFlags::REMOVEDIR)?),
        Err(error) => Err(error.into()),
    }
}

fn target_in(file: &File) -> io::Result<Option<Vec<u8>>> {
    let size = file.metadata()?.len();
    if !(1..=TARGET).contains(&size) {
        return Ok(None);
    }
    let mut target = vec![0; size as usize];
    file.read_exact_at(&mut target, 0)?;
    Ok(Some(target))
}

/// Whether a file of that size holds what the hash is of, and nothing that attributes can be taken for; `None`: stopped.
fn holds(file: &File, size: u64, hash: &Hash, stopped: &dyn Fn() -> bool) -> io::Result<Option<bool>> {
    let mut hasher = blake3::Hasher::new();
    let mut bytes = vec![0; (1 << 20).min(size as usize)];
    let mut at = 0;
    while at < size {
        if stopped() {
            return Ok(None);
        }
        let rest = usize::try_from(size - at).unwrap_or(usize::MAX).min(bytes.len());
        match file.read_exact_at(&mut bytes[..rest], at) {
            Ok(()) => hasher.update(&bytes[..rest]),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(Some(false)),
            Err(error) => return Err(error),
        };
        at += rest as u64;
    }
    Ok(Some(hasher.finalize() == *hash && !may_be_attributes(file, size)?))
}

/// Whether the bytes are what a fingerprint hashes of a file with extended attributes: the hash of its contents, names and values. As contents of another file they would have that one's hash.
pub(super) fn may_be_attributes(file: &File, size: u64) -> io::Result<bool> {
    let number = |at: &mut u64| -> io::Result<Option<u64>> {
        let mut number = 0;
        for shift in [0, 7, 14] {
            let mut byte = [0];
            if *at >= size {
                return Ok(None);
            }
            file.read_exact_at(&mut byte, *at)?;
            *at += 1;
            number |= u64::from(byte[0] & 0x7f) << shift;
            if byte[0] < 0x80 {
                return Ok(Some(number));
            }
        }
        Ok(None)
    };
    let mut at = 0;
    if number(&mut at)? != Some(32) {
        return Ok(false);
    }
    at += 32;
    let mut before = Vec::new();
    while at < size {
        let Some(length) = number(&mut at)?.filter(|length| (1..=255).contains(length) && at + length <= size) else {
            return Ok(false);
        };
        let mut name = vec![0; length as usize];
        file.read_exact_at(&mut name, at)?;
        at += length;
        // By rising name.
        if name <= before {
            return Ok(false);
        }
        before = name;
        let Some(length) = number(&mut at)?.filter(|&length| length <= XATTR as u64) else { return Ok(false) };
        at += length;
    }
    Ok(at == size && !before.is_empty())
}
