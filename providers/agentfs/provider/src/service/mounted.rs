//! What is mounted: branches and views, each at an empty folder made for it.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use ah_agentfs::{BranchId, View};
use ah_agentfs_fuse::{Face, Mount, Placed, clear_dead};
use ah_plugin_api::sys::remove_dir_for_good;
use ah_plugin_api::{Dir, Error, ErrorKind, FileName, Result, text};
use ah_provider_directory::{failed, look, refuse_if_used};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use super::{lock, passthrough, stand_in};
use crate::conversion::{Around, path_beside};
use crate::home::{Shown, path_of, root_number};

/// So long the kernel is waited for that lets something go.
const PATIENCE: Duration = Duration::from_secs(1);

/// So often what is written beneath a mount is set aside: only root comes there still, and who stood there before.
const ATTEMPTS: u32 = 5;

/// Who is in something longer than that, works there.
const SHORT_USE: Duration = Duration::from_millis(500);

/// A tree at a place.
pub(super) struct Place {
    mount: Mount,
    /// What cuts the connection to the kernel when it is written to; none where that is not to be had. It stays this connection's when the device's number
    /// goes to another filesystem.
    connection: Option<File>,
}

/// All of them. One that is being unmounted is none.
#[derive(Default)]
pub(super) struct Mounted(BTreeMap<What, Option<Place>>);

/// What is mounted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum What {
    Branch(BranchId),
    View(String),
}

impl Mounted {
    /// Forgets what others have unmounted.
    pub(super) fn look(&mut self) {
        self.0.retain(|_, place| place.as_ref().is_none_or(|place| place.mount.serves()));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a mount with that device is one of these (`major:minor`).
    pub(super) fn serves(&self, device: &str) -> bool {
        let is_it = |place: &Place| {
            let (major, minor) = place.mount.device();
            device == format!("{major}:{minor}")
        };
        self.0.values().any(|place| place.as_ref().is_none_or(is_it))
    }

    /// Whether it is mounted, or is being unmounted.
    pub(super) fn has(&self, what: &What) -> bool {
        self.0.contains_key(what)
    }

    pub(super) fn insert(&mut self, what: What, place: Place) {
        self.0.insert(what, Some(place));
    }

    /// Takes everything away, also from under those who work there: what they write from then on fails, instead of being lost.
    pub(super) fn end(&mut self) {
        std::mem::take(&mut self.0).into_values().flatten().for_each(Place::cut);
    }

    /// The branch whose root an open directory is.
    pub(super) fn branch_at(&self, home: &Path, dir: &Dir) -> Result<Option<BranchId>> {
        // What the kernel has is enough: asking for more would be a message to this very process.
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let stat = rustix::fs::statx(dir, "", flags, StatxFlags::INO)
            .map_err(|errno| failed("cannot look at the workspace", errno))?;
        let device = (stat.stx_dev_major, stat.stx_dev_minor);
        let is_it = |place: &Option<Place>| place.as_ref().is_some_and(|place| place.mount.device() == device);
        let found = self.0.iter().find_map(|(what, place)| match what {
            What::Branch(branch) if is_it(place) => Some(*branch),
            _ => None,
        });
        let Some(branch) = found else { return Ok(None) };
        let mut ino = stat.stx_ino;
        if ino != root_number(home, branch.0) {
            // The kernel may not have been told of it yet.
            ino = look(dir, b"").map_err(|errno| failed("cannot look at the workspace", errno))?.stx_ino;
        }
        Ok(Some(branch).filter(|branch| ino == root_number(home, branch.0)))
    }
}

/// Takes one away, then has `behind` clear up behind it before anybody can mount it again. Nobody else waits while the kernel lets it go.
///
/// # Errors
/// `Busy` while somebody works in it, with the process named, or something else is mounted over it: then it stays. Also if another caller is taking it away, and does not come to an end.
pub(super) fn take_away(mounted: &Mutex<Mounted>, what: &What, behind: impl FnOnce() -> Result<()>) -> Result<()> {
    if let Some(mut place) = claim(mounted, what)?
        && let Err(error) = place.unmount()
    {
        lock(mounted).insert(what.clone(), place);
        return Err(error);
    }
    let outcome = behind();
    lock(mounted).0.remove(what);
    outcome
}

/// As [`take_away`], whoever works in it: nobody was told of it yet.
pub(super) fn discard(mounted: &Mutex<Mounted>, what: &What, behind: impl FnOnce() -> Result<()>) -> Result<()> {
    if let Some(place) = claim(mounted, what)? {
        place.cut();
    }
    let outcome = behind();
    lock(mounted).0.remove(what);
    outcome
}

/// Its place, if it is mounted. From then on nobody else takes it away or mounts it.
fn claim(mounted: &Mutex<Mounted>, what: &What) -> Result<Option<Place>> {
    let began = Instant::now();
    loop {
        let mut all = lock(mounted);
        match all.0.get_mut(what) {
            None => {
                all.0.insert(what.clone(), None);
                return Ok(None);
            }
            Some(slot) if slot.is_some() => return Ok(slot.take()),
            Some(_) => drop(all),
        }
        if began.elapsed() >= PATIENCE * 4 {
            return Err(
                Error::new(ErrorKind::Busy, "another command is taking it away").with_hint("repeat it in a moment")
            );
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Place {
    /// Mounts a tree at an empty folder.
    pub(super) fn mount(view: View, at: &Path, shown: &Shown) -> Result<Self> {
        Self::mount_over(view, at, shown, None)
    }

    /// The same where a branch was mounted before. What somebody has written there since comes into a directory beside it, and what is to be said of that to `left`.
    pub(super) fn mount_again(view: View, at: &Path, shown: &Shown, left: &mut Vec<String>) -> Result<Self> {
        Self::mount_over(view, at, shown, Some(left))
    }

    fn mount_over(view: View, at: &Path, shown: &Shown, mut left: Option<&mut Vec<String>>) -> Result<Self> {
        let face = face(shown);
        let full = || refused(&ah_agentfs_fuse::Error::NotEmpty(at.to_owned()));
        let cannot = |errno| failed(format!("cannot mount at {}", at.display()), errno);
        let beneath = match shown.branch {
            Some(_) => Some(stand_in::Place::ready(at, left.is_some()).map_err(cannot)?.ok_or_else(full)?),
            None if std::fs::read_dir(at).is_ok_and(|mut names| names.next().is_some()) => return Err(full()),
            None => None,
        };
        // Without it nothing is worse than an empty directory.
        let put_up = || _ = beneath.as_ref().map(stand_in::Place::put_up);
        let mut why = None;
        // Anybody could write there until now, and nobody would see it any more.
        let is_empty = || {
            put_up();
            let Some(beneath) = &beneath else { return true };
            let outcome = match &mut left {
                Some(left) => set_aside(beneath, at, left),
                None => beneath.others().map(|others| others.is_empty()).map_err(cannot),
            };
            outcome.unwrap_or_else(|error| {
                why = Some(error);
                false
            })
        };
        let mount = Mount::with_face(view, at, &face, is_empty).inspect_err(|_| put_up());
        mount.map(Self::of).map_err(|e| why.unwrap_or_else(|| refused(&e)))
    }

    fn of(mount: Mount) -> Self {
        if let Some(why) = mount.passthrough().why_not() {
            eprintln!("ah-agentfsd: {}: {why}", mount.at().display());
        }
        let abort = format!("/sys/fs/fuse/connections/{}/abort", mount.device().1);
        let connection = OpenOptions::new().write(true).open(abort).ok();
        Self { mount, connection }
    }

    /// The same of a branch, whose mount was made ready and put there.
    pub(super) fn show(view: View, placed: Placed) -> Self {
        Self::of(placed.show(view))
    }

    /// Takes it away, unless somebody works in it. What was mounted there is given back when this returns.
    ///
    /// # Errors
    /// `Busy`, with the process named, or what to unmount before.
    fn unmount(&mut self) -> Result<()> {
        let began = Instant::now();
        loop {
            match self.mount.unmount_within(PATIENCE) {
                // A process that is just being started has open what the one has that starts it, until it is another program.
                Err(ah_agentfs_fuse::Error::Busy(_)) if began.elapsed() < SHORT_USE => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(busy @ ah_agentfs_fuse::Error::Busy(_)) => {
                    // Who it is; they may have left meanwhile.
                    if let Ok(root) = Dir::open(self.mount.at()) {
                        refuse_if_used(&root)?;
                    }
                    return self
                        .mount
                        .unmount_within(PATIENCE)
                        .map_err(|_| refused(&busy))
                        .and_then(|gone| self.let_go(gone));
                }
                Ok(gone) => return self.let_go(gone),
                Err(error) => return Err(refused(&error)),
            }
        }
    }

    /// Cuts off who works in it, where that can be done; whether it was.
    fn abort(&self) -> bool {
        self.connection.as_ref().is_some_and(|mut connection| connection.write_all(b"1").is_ok())
    }

    /// Takes it away, and cuts off who works in it where that can be done.
    fn cut(mut self) {
        self.mount.detach();
        if self.abort() {
            // What is under way comes to its end.
            self.mount.gone_within(PATIENCE);
        }
    }

    /// It is unmounted here. Where it lives on in another mount namespace, the connection is cut, if that can be done.
    fn let_go(&mut self, gone: bool) -> Result<()> {
        if gone || self.abort() && self.mount.gone_within(PATIENCE) {
            return Ok(());
        }
        let message =
            format!("what was mounted at {} is mounted in another mount namespace still", self.mount.at().display());
        Err(Error::new(ErrorKind::Busy, message).with_hint(
            "end what runs there (a container, a service), then repeat; `grep -l agentfs: /proc/*/mountinfo` finds it",
        ))
    }
}

/// What is to be seen of it from outside, and how it is served.
pub(super) fn face(shown: &Shown) -> Face {
    let root = shown.branch.map_or(ah_agentfs::ROOT, |branch| root_number(&shown.home, branch));
    Face { source: shown.source(), root, passthrough: passthrough::is_wanted(&shown.home) }
}

/// Makes the folder at which something is to be mounted, and gives its path.
///
/// # Errors
/// `AlreadyExists` if the name is taken.
pub(super) fn make_folder(target: &Dir, name: &FileName) -> Result<PathBuf> {
    let at = path_of(target)?.join(name.as_os_str());
    match rustix::fs::mkdirat(target, name.as_os_str(), Mode::RWXU) {
        Ok(()) => Ok(at),
        Err(Errno::EXIST) => Err(Error::new(ErrorKind::AlreadyExists, format!("{} exists already", at.display()))),
        Err(errno) => Err(failed(format!("cannot make {}", at.display()), errno)),
    }
}

/// Takes away the folder at which something was mounted; one that holds something stays. Before a branch's removal is put on disk: who
/// asked for that takes what stands in the place of a branch that is not mounted for the branch.
pub(super) fn remove_folder(at: &Path) {
    let (Some(folder), Some(name)) = (at.parent(), at.file_name()) else { return };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(folder) = rustix::fs::open(folder, flags, Mode::empty()) else { return };
    // Twice, as what stands in for a branch that was just made may be put there at this moment.
    for _ in 0..2 {
        let _ = stand_in::Place::clear(at);
        if remove_dir_for_good(&folder, name) != Err(Errno::NOTEMPTY) {
            break;
        }
    }
}

/// Brings what somebody has put in a place, beneath what is mounted, into a directory beside it, which `left` is told of. False if they go on with it.
fn set_aside(beneath: &stand_in::Place, at: &Path, left: &mut Vec<String>) -> Result<bool> {
    let cannot = |errno| failed(format!("cannot set aside what was written at {}", at.display()), errno);
    for _ in 0..ATTEMPTS {
        if beneath.others().map_err(cannot)?.is_empty() {
            return Ok(true);
        }
        // Names may come again: each time into another one.
        let around = Around::of(at)?;
        let (name, made) = around.make_left()?;
        let moved = beneath.empty_into(made.as_fd());
        if remove_dir_for_good(&around.above, &name).is_err() {
            let (at, aside) = (at.display(), path_beside(at, &name));
            let said = format!(
                "what was written at {at} while it was not mounted is in {}: bring home what is needed of it, then remove that",
                aside.display()
            );
            eprintln!("ah-agentfsd: {said}");
            left.push(said);
        }
        moved.map_err(cannot)?;
    }
    Ok(false)
}

/// Makes a place ready at which something was mounted when the service was killed or the machine went down.
pub(super) fn make_ready(at: &Path) -> Result<()> {
    clear_dead(at).map_err(|e| refused(&e))?;
    match rustix::fs::mkdir(at, Mode::RWXU) {
        Ok(()) => Ok(()),
        Err(Errno::EXIST) => match rustix::fs::lstat(at).map(|stat| FileType::from_raw_mode(stat.st_mode)) {
            Ok(FileType::Directory) => Ok(()),
            _ => Err(Error::new(ErrorKind::FailedPrecondition, format!("{} is no directory", at.display()))),
        },
        Err(errno) => Err(failed(format!("cannot make {}", at.display()), errno)),
    }
}

fn refused(error: &ah_agentfs_fuse::Error) -> Error {
    use ah_agentfs_fuse::Error as Fuse;
    let kind = match error {
        Fuse::NoDevice | Fuse::NoFusermount | Fuse::NoName(_) => ErrorKind::Unavailable,
        Fuse::NotPermitted => ErrorKind::PermissionDenied,
        Fuse::NotEmpty(_) => ErrorKind::FailedPrecondition,
        Fuse::Busy(_) => ErrorKind::Busy,
        Fuse::Covered(at) => {
            let hint = format!("unmount that first: umount {}; then repeat", text::shell(at.as_os_str()));
            return Error::new(ErrorKind::Busy, error.to_string()).with_hint(hint);
        }
        Fuse::Io { source, .. } => return Error::from_io(error.to_string(), source),
        _ => ErrorKind::Internal,
    };
    Error::new(kind, error.to_string())
}
