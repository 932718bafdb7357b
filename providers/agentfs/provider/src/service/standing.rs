//! What of a home is mounted, and what is written down of it: of branches in the tree, of views in files.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use ah_agentfs::{BranchId, ROOT, SnapshotId as Number};
use ah_agentfs_fuse::clear_dead;
use ah_plugin_api::{Context, Dir, Error, ErrorKind, FileName, Reference, Result};
use ah_provider_directory::{Mount, Mounts, failed, names};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::convert::is_converted;
use super::mounted::{Mounted, Place, What, discard, make_folder, make_ready, remove_folder, take_away};
use super::opened::Open;
use super::record::{PlaceLabel, SnapshotLabel};
use super::settle::told;
use super::{ATTEMPTS, PAUSE, Service, fail, lock, stand_in};
use crate::home::{self, Shelf, Shown};

/// A folder in a home.
const VIEWS: &str = "views";

/// A branch that was just made.
pub(super) struct Grown {
    pub(super) at: PathBuf,
    pub(super) branch: BranchId,
    pub(super) reference: Reference,
    /// Its place, if nothing stands there beneath it yet.
    pub(super) beneath: Option<stand_in::Place>,
    /// Whether it is a repository's work tree, perhaps.
    pub(super) has_git: bool,
}

impl Service {
    /// Mounts what should be mounted and is not: when the last service was killed, or somebody has unmounted it by hand. What cannot be is written
    /// to the log.
    pub(super) fn mount_again(&self, open: &Open) {
        if self.original().is_some() {
            return;
        }
        // On a disk that is full, the next one does.
        let _ = home::settle(&self.home, &self.path);
        let mut mounted = lock(&open.mounted);
        mounted.look();
        let stays = self.clear_strays(&mounted, &self.places_of_views());
        let mut places = BTreeSet::new();
        let branches = open.tree.branches().into_iter().rev();
        let at = branches.map(|branch| (branch.id, PlaceLabel::decode(&branch.label).map(|label| label.at())));
        // Where one that could not be made was not taken away either, a later one has its place.
        let mut branches: Vec<_> =
            at.filter(|(_, at)| at.as_ref().map_or(true, |at| places.insert(at.clone()))).collect();
        // One may lie within another's place.
        branches.sort_by_key(|(_, at)| at.as_ref().map_or(0, |at| at.components().count()));
        let mut missing = Vec::new();
        for (id, at) in branches {
            let what = What::Branch(id);
            if mounted.has(&what) {
                continue;
            }
            let again = at.and_then(|at| {
                let again = self.mount_branch_again(open, id, &at, &missing);
                again.inspect_err(|_| missing.push(at))
            });
            match again {
                Ok(place) => mounted.insert(what, place),
                Err(error) => eprintln!("ah-agentfsd: branch {} is not mounted: {}", id.0, told(&error)),
            }
        }
        for name in self.names_of_views() {
            let what = What::View(name.clone());
            if mounted.has(&what) {
                continue;
            }
            let again = self.view_label(&name).and_then(|label| {
                let (label, number) = label
                    .and_then(|label| label.number().map(|number| (label, number)))
                    .ok_or_else(|| no_view(&name))?;
                let at = label.at();
                refuse_within(&missing, &at)?;
                if !open.has(&label, number) {
                    // What it showed is lost, and its number may be another's. What was mounted there when the service was killed is still.
                    let _ = clear_dead(&at);
                    remove_folder(&at);
                    self.forget_view(&name)?;
                    return Err(Error::new(
                        ErrorKind::NotFound,
                        "the snapshot that it showed is gone: it is forgotten",
                    ));
                }
                make_ready(&at)?;
                let view = open.tree.view_of(number).map_err(|e| fail("cannot open a snapshot", &e))?;
                Place::mount(view, &at, &self.shown(None))
            });
            match again {
                Ok(place) => mounted.insert(what, place),
                Err(error) => eprintln!("ah-agentfsd: view {name} is not mounted: {}", told(&error)),
            }
        }
        if stays {
            self.clear_strays(&mounted, &BTreeSet::new());
        }
    }

    fn mount_branch_again(&self, open: &Open, branch: BranchId, at: &Path, missing: &[PathBuf]) -> Result<Place> {
        refuse_within(missing, at)?;
        self.refuse_replaced(open, at)?;
        // Who has lost what lay behind, and made another directory there, has begun anew.
        if is_converted(&open.tree, branch) && is_empty(at) && self.lost_behind()?.is_some() {
            return Err(Error::new(
                ErrorKind::FailedPrecondition,
                "another directory is there, and what lay behind is gone",
            ));
        }
        if is_converted(&open.tree, branch) {
            self.refuse_beneath_itself(at)?;
        }
        make_ready(at)?;
        let view = open.tree.view(branch).map_err(|e| fail("cannot open a branch", &e))?;
        if !is_converted(&open.tree, branch) {
            // What is in its way is told, for who put it there to move it.
            return Place::mount(view, at, &self.shown(Some(branch)));
        }
        // It is mounted all the same.
        if let Err(error) = self.shut_behind(open, &view) {
            eprintln!("ah-agentfsd: {error}");
        }
        let mut left = Vec::new();
        let again = Place::mount_again(view, at, &self.shown(Some(branch)), &mut left);
        lock(&self.untold).append(&mut left);
        again
    }

    fn names_of_views(&self) -> Vec<String> {
        let names = self.views().and_then(|views| names_in(&views)).unwrap_or_default();
        names.into_iter().filter(|name| is_views(name)).collect()
    }

    /// Where views are to be shown. Who reads in one whose service was killed is not to take the place below it for an empty tree: that gives an error until the view is
    /// about to be there again.
    pub(super) fn places_of_views(&self) -> BTreeSet<PathBuf> {
        let labels = self.names_of_views().into_iter().filter_map(|name| self.view_label(&name).ok()?);
        labels.map(|label| label.at()).collect()
    }

    /// Takes away mounts of a service that is gone, wherever they are, but for those at the places `but`: a folder above them may have been renamed since, and the tree
    /// that they show be gone. Gives whether any stays.
    pub(super) fn clear_strays(&self, mounted: &Mounted, but: &BTreeSet<PathBuf>) -> bool {
        let Ok(mounts) = Mounts::read() else { return false };
        let its = |mount: &&Mount| Shown::parse(&mount.source).is_some_and(|shown| shown.home == self.path);
        let mut stays = false;
        for stray in mounts.iter().filter(its).filter(|mount| !mounted.serves(&mount.device)) {
            if but.contains(&stray.point) {
                stays = true;
            } else {
                let _ = clear_dead(&stray.point);
            }
        }
        stays
    }

    pub(super) fn shown(&self, branch: Option<BranchId>) -> Shown {
        Shown { home: self.path.clone(), branch: branch.map(|branch| branch.0) }
    }

    /// A new branch, mounted.
    pub(super) fn grow(
        &self,
        open: &Open,
        shelf: &Shelf,
        from: Number,
        target: &Dir,
        name: &FileName,
    ) -> Result<Grown> {
        let cannot = |e: &ah_agentfs::Error| fail("cannot make a branch", e);
        // Locked until it is known: whoever mounts again what should be mounted must not find it half-way.
        let mut mounted = lock(&open.mounted);
        let at = make_folder(target, name)?;
        let begun = PlaceLabel::new(&shelf.key, &at).and_then(|label| {
            let branch = open.tree.branch(from, &label.encode()?).map_err(|e| cannot(&e))?;
            Ok((branch, label.mark))
        });
        let (branch, mark) = begun.inspect_err(|_| remove_folder(&at))?;
        let view = open.tree.view(branch).map_err(|e| cannot(&e));
        let made = view.and_then(|view| {
            let has_git = match view.lookup(ROOT, b".git") {
                Err(ah_agentfs::Error::NotFound) => false,
                Ok(git) => {
                    view.forget(git.ino, 1);
                    true
                }
                Err(_) => true,
            };
            let beneath = stand_in::Place::hold(&at).ok();
            let (place, beneath) = match open.behind.spare(branch, &at) {
                Some(placed) => (Place::show(view, placed), beneath),
                None => (Place::mount(view, &at, &self.shown(Some(branch)))?, None),
            };
            Ok((place, beneath, has_git, self.reference(branch, mark.as_deref())?))
        });
        match made {
            Ok((place, beneath, has_git, reference)) => {
                mounted.insert(What::Branch(branch), place);
                Ok(Grown { at, branch, reference, beneath, has_git })
            }
            Err(error) => {
                // The error at hand is the one to tell.
                if let Err(error) = open.tree.delete_branch(branch) {
                    eprintln!("ah-agentfsd: branch {} could not be made, and not be removed: {error}", branch.0);
                }
                remove_folder(&at);
                Err(error)
            }
        }
    }

    /// Takes away what somebody who was killed had begun to write here.
    pub(super) fn sweep(&self) {
        home::sweep(&self.home);
        let _ = self.views().map(|views| home::sweep(&views));
    }

    pub(super) fn views(&self) -> Result<Dir> {
        match rustix::fs::mkdirat(&self.home, VIEWS, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(failed("cannot make a folder for what is known of views", errno)),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.home, VIEWS, flags, Mode::empty())
            .map_err(|errno| failed("cannot open what is known of views", errno))?;
        Ok(Dir::from_fd(fd, self.path.join(VIEWS)))
    }

    /// What is known of a view; none if nothing is.
    pub(super) fn view_label(&self, name: &str) -> Result<Option<PlaceLabel>> {
        if !is_views(name) {
            return Ok(None);
        }
        home::read(&self.views()?, name)?.map(|bytes| PlaceLabel::decode(&bytes)).transpose()
    }

    pub(super) fn forget_view(&self, name: &str) -> Result<()> {
        match rustix::fs::unlinkat(&self.views()?, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(failed("cannot forget a view", errno)),
        }
    }

    pub(super) fn unmount_view(&self, open: &Open, name: &str, label: &PlaceLabel) -> Result<()> {
        take_away(&open.mounted, &What::View(name.to_owned()), || {
            remove_folder(&label.at());
            self.forget_view(name)
        })
    }

    /// Removes a branch that nobody works in.
    pub(super) fn remove_branch(open: &Open, branch: BranchId, at: &Path, cx: &Context<'_>) -> Result<()> {
        take_away(&open.mounted, &What::Branch(branch), || Self::delete_branch(open, branch, at, cx))
    }

    /// Removes a branch that was just made, and that its caller will not hear of.
    pub(super) fn discard_branch(open: &Open, branch: BranchId, at: &Path, cx: &Context<'_>) {
        let removed = discard(&open.mounted, &What::Branch(branch), || Self::delete_branch(open, branch, at, cx));
        if let Err(error) = removed {
            eprintln!("ah-agentfsd: branch {} could not be made, and not be removed: {error}", branch.0);
        }
    }

    fn delete_branch(open: &Open, branch: BranchId, at: &Path, cx: &Context<'_>) -> Result<()> {
        Self::delete_from_tree(open, branch, cx)?;
        remove_folder(at);
        Self::settle_removal(open)
    }

    /// As a removal that [`Service::settle_removal`] puts on disk.
    pub(super) fn delete_from_tree(open: &Open, branch: BranchId, cx: &Context<'_>) -> Result<()> {
        for attempt in 0.. {
            match open.tree.delete_branch(branch) {
                Ok(()) | Err(ah_agentfs::Error::NotFound) => break,
                // Somebody may be comparing it at this moment.
                Err(ah_agentfs::Error::Busy(_)) if attempt < ATTEMPTS => {
                    cx.check_cancelled()?;
                    std::thread::sleep(PAUSE);
                }
                Err(error) => return Err(fail("cannot remove the branch", &error)),
            }
        }
        Ok(())
    }

    /// Once the caller has forgotten what was removed, nobody would know it any more if a power cut brought it back.
    pub(super) fn settle_removal(open: &Open) -> Result<()> {
        open.tree.sync().map_err(|e| fail("cannot put a removal on disk", &e))
    }

    /// The branch that a clone's reference names: what the mount table calls it, too, and its mark.
    pub(super) fn branch_of<'a>(&self, reference: &'a Reference) -> Result<(BranchId, Option<&'a str>)> {
        let named = Shown::referred(reference.as_str()).filter(|(shown, _)| shown.home == self.path);
        let branch = named.and_then(|(shown, mark)| Some((BranchId(shown.branch?), mark)));
        branch.ok_or_else(|| Error::new(ErrorKind::InvalidArgument, "that is no branch of this home of AgentFS"))
    }

    /// Whether a view of a snapshot is mounted.
    pub(super) fn is_shown(&self, number: Number, of: &SnapshotLabel) -> Result<bool> {
        let shows = |name: &String| matches!(self.view_label(name), Ok(Some(label)) if label.is_of(number, of));
        Ok(names_in(&self.views()?)?.iter().any(shows))
    }
}

fn is_empty(directory: &Path) -> bool {
    std::fs::read_dir(directory).is_ok_and(|mut there| there.next().is_none())
}

/// What is made in a place at which nothing is mounted is in its way, and hidden once something is.
fn refuse_within(missing: &[PathBuf], at: &Path) -> Result<()> {
    missing.iter().find(|place| at.starts_with(place)).map_or(Ok(()), |place| {
        let message = format!("it lies in {}, where the branch is not mounted", place.display());
        Err(Error::new(ErrorKind::FailedPrecondition, message))
    })
}

fn no_view(name: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no view {name}"))
}

/// Whether a file in that folder is a view's; another was being written when its service was killed.
fn is_views(name: &str) -> bool {
    name.len() == 32 && name.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Names of views.
pub(super) fn names_in(dir: &Dir) -> Result<Vec<String>> {
    let found = names(dir.as_fd()).map_err(|errno| failed("cannot read what is known of views", errno))?;
    Ok(found.into_iter().filter_map(|name| String::from_utf8(name).ok()).collect())
}
