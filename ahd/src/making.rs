//! Views and clones for a caller: made by the provider where only root comes, then shown where the caller wants them.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Instant;

use ah_plugin_api::{
    CloneRequest, Context, Dir, Done, Error, ErrorKind, FileName, MountRequest, Place, Reference, RelPath, Result,
    View, WritableClone,
};
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::graft;
use crate::keeper::open_shown;
use crate::mounts;
use crate::owned::{self, Owned};
use crate::peer::as_user;
use crate::policy::{Guarded, Kept, PATIENCE};
use crate::records::{Claim, Made, Record, Text, new_id};

/// The most paths that are looked for in a view.
const MAX_PATHS: usize = 1000;

/// A view or clone that is being made.
pub(crate) struct Making<'a> {
    record: Record,
    /// The caller's target folder, as it was given and as it is.
    given: &'a Dir,
    target: Owned,
    /// Where the provider works.
    inside: Place<'a>,
    _claim: Claim<'a>,
}

impl Making<'_> {
    /// What a provider says went wrong, with the place that its caller knows instead of the one where it works.
    fn outward(&self, error: Error) -> Error {
        let Some(workshop) = self.inside.target else { return error };
        let inner = workshop.path().join(&self.record.id).display().to_string();
        let outer = self.record.place().display().to_string();
        let tell = |text: String| text.replace(&inner, &outer);
        Error {
            message: tell(error.message),
            hint: error.hint.map(tell),
            causes: error.causes.into_iter().map(tell).collect(),
            ..error
        }
    }
}

impl<'k> Guarded<'k> {
    /// Writes down what is to be made at `name` in the place's target.
    pub(crate) fn begin<'a>(
        &self,
        made: Made,
        kept: &'a Kept,
        workshop: &'a Dir,
        place: &Place<'a>,
        name: &FileName,
        snapshot: &Reference,
    ) -> Result<Making<'a>>
    where
        'k: 'a,
    {
        let given = place.need_target()?;
        let target = owned::directory(given, self.peer, "target folder")?;
        target.refuse_more(given)?;
        let dir = target.dir(given);
        match rustix::fs::statat(dir, name.as_os_str(), AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => {}
            Ok(_) => {
                return Err(Error::new(ErrorKind::AlreadyExists, format!("{name} is in the target folder already")));
            }
            Err(e) => return Err(Error::from_io(format!("cannot look for {name} in the target folder"), &e.into())),
        }
        let record = Record {
            id: new_id()?,
            made,
            uid: self.peer.uid,
            gid: self.peer.gid,
            token: kept.key.token.clone(),
            provider: self.served.name.clone(),
            snapshot: snapshot.clone(),
            inner: None,
            source: None,
            target: mounts::path_of(dir.as_fd())?.as_path().into(),
            target_dev: target.about.dev,
            target_ino: target.about.ino,
            name: Text::from(name.as_bytes()),
            mark: None,
            ready: false,
            going: false,
        };
        let limits = &self.keeper.config.limits;
        let limit = if made == Made::View { limits.views } else { limits.clones };
        let claim = self.keeper.records.begin(&record, limit)?;
        // Without the workspace: what a clone would take from it, it would take as root.
        let inside = Place::new(&kept.store).with_target(workshop);
        Ok(Making { record, given, target, inside, _claim: claim })
    }

    /// Has a view made, and shows it.
    pub(crate) fn make_view(&self, mut making: Making<'_>, request: &MountRequest, cx: &Context<'_>) -> Result<View> {
        let made = self.view(&mut making, request, cx);
        self.finish(&making, made, cx)
    }

    fn view(&self, making: &mut Making<'_>, request: &MountRequest, cx: &Context<'_>) -> Result<View> {
        // The provider would look for the paths as root, and so tell which there are where the caller may not look.
        let inner =
            MountRequest { snapshot: request.snapshot.clone(), name: making.record.id_name()?, paths: Vec::new() };
        let view = self.served.provider.mount(&making.inside, &inner, cx).map_err(|error| making.outward(error))?;
        let source = self.found(making, view.reference, &view.path)?;
        self.look_for(&source, &request.paths, cx)?;
        let path = self.show(making, &source, &request.name)?;
        Ok(View { path, reference: making.record.reference()?, read_only_mount: true })
    }

    /// Whether a view has these paths, as its user can see it.
    fn look_for(&self, view: &OwnedFd, paths: &[RelPath], cx: &Context<'_>) -> Result<()> {
        if paths.len() > MAX_PATHS {
            let message = format!("more than {MAX_PATHS} paths are asked for at once");
            return Err(Error::new(ErrorKind::InvalidArgument, message).with_hint("ask for all of the snapshot"));
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        for path in paths {
            cx.check_cancelled()?;
            let (Some(above), Some(name)) = (path.parent(), path.file_name()) else { continue };
            let above = if above.is_root() { b".".as_slice() } else { above.as_bytes() };
            let found = as_user(self.peer.uid, self.peer.gid, || {
                let above = rustix::fs::openat2(view, above, flags, Mode::empty(), resolve)?;
                rustix::fs::statat(&above, name, AtFlags::SYMLINK_NOFOLLOW)
            });
            match found {
                // What they may not look for, or only as one of a group: whether it is there they see in the view, or do not.
                Ok(_) | Err(Errno::ACCESS) => {}
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                    return Err(Error::new(ErrorKind::NotFound, format!("the snapshot has no {path}")));
                }
                Err(e) => return Err(Error::from_io(format!("cannot look for {path} in the snapshot"), &e.into())),
            }
        }
        Ok(())
    }

    /// Has a clone made, and shows it.
    pub(crate) fn make_clone(
        &self,
        mut making: Making<'_>,
        request: &CloneRequest,
        cx: &Context<'_>,
    ) -> Result<WritableClone> {
        let made = self.clone_of(&mut making, request, cx);
        self.finish(&making, made, cx)
    }

    fn clone_of(&self, making: &mut Making<'_>, request: &CloneRequest, cx: &Context<'_>) -> Result<WritableClone> {
        let inner = CloneRequest { name: making.record.id_name()?, ..request.clone() };
        let clone = self.served.provider.clone_snapshot(&making.inside, &inner, cx);
        let clone = clone.map_err(|error| making.outward(error))?;
        let there = place_inside(&making.record, &clone);
        // What is said of that place is not true of where the caller sees the clone.
        let notes = clone.notes.into_iter().filter(|note| !note.contains(&there)).collect();
        let source = self.found(making, clone.reference, &clone.path)?;
        let path = self.show(making, &source, &request.name)?;
        Ok(WritableClone { path, reference: making.record.reference()?, notes })
    }

    /// Writes down what the provider has made, and opens it if it may be shown.
    fn found(&self, making: &mut Making<'_>, reference: Reference, path: &Path) -> Result<OwnedFd> {
        making.record.inner = Some(reference);
        making.record.source = Some(path.into());
        self.keeper.records.save(&making.record)?;
        open_shown(path, self.peer.uid)
    }

    /// Mounts what was made; gives the path by which the caller sees it.
    fn show(&self, making: &mut Making<'_>, source: &OwnedFd, name: &FileName) -> Result<PathBuf> {
        let Making { record, given, target, .. } = making;
        self.keeper.show(record, source, target.dir(given).as_fd())?;
        // An empty directory must never be taken for what was to be shown in it.
        let seen = record.mark.as_ref().is_some_and(|mark| graft::is_seen(mark, given.as_fd(), name));
        if !seen {
            let message = "what the helper ahd mounts does not reach the mount namespace of this program";
            return Err(Error::new(ErrorKind::FailedPrecondition, message)
                .with_hint("repeat it outside the container, or make that namespace a slave of the system's"));
        }
        Ok(given.path().join(name.as_os_str()))
    }

    /// Ends the making: what failed, or nobody waits for any more, is taken down.
    fn finish<T>(&self, making: &Making<'_>, made: Result<T>, cx: &Context<'_>) -> Result<T> {
        let made = made.and_then(|made| cx.check_cancelled().map(|()| made));
        if made.is_err() {
            // Nobody was told of it, however whole it is: so the next reclaim, or the next start, tries again.
            let left = Record { ready: false, ..making.record.clone() };
            if making.record.ready {
                let _ = self.keeper.records.save(&left);
            }
            if let Err(error) = self.keeper.take_down(&left, &Context::quiet()) {
                // They can have that said for each call, so it is theirs to pay for.
                let text = format!("what is left at {} stays for now: {error}", making.record.place().display());
                self.keeper.audit.say_of(self.peer.uid, &text);
            }
        }
        made
    }

    /// Takes down a view or clone of the caller's, by what it is called here. What is gone already is success.
    pub(crate) fn take_down(&self, reference: &Reference, made: Made, cx: &Context<'_>) -> Result<Done> {
        let (kind, id) = reference.as_str().split_once(':').unwrap_or_default();
        let right = kind == if made == Made::View { "view" } else { "clone" };
        let Some(record) = self.keeper.records.get(id).filter(|record| right && self.is_mine(record, made)) else {
            return Ok(Done {});
        };
        let _claim = self.keeper.records.claim_by(&record.id, Instant::now() + PATIENCE, cx)?;
        // As it is now that nobody else works on it.
        if let Some(record) = self.keeper.records.get(&record.id) {
            self.refuse_shown(&record)?;
            self.keeper.take_down(&record, cx)?;
        }
        Ok(Done {})
    }

    /// Refuses to take a clone from under a view of one of its own snapshots: where the filesystem shows those within the clone, it would go with it.
    fn refuse_shown(&self, clone: &Record) -> Result<()> {
        let Some(source) = clone.source.as_ref().map(Text::path).filter(|_| clone.made == Made::Clone) else {
            return Ok(());
        };
        let within = |view: &Record| {
            self.is_mine(view, Made::View)
                && view.source.as_ref().is_some_and(|shown| shown.path().starts_with(&source))
        };
        match self.keeper.records.find(within).first() {
            None => Ok(()),
            Some(view) => {
                let message = format!("a view of one of its snapshots is at {}", view.place().display());
                Err(Error::new(ErrorKind::Busy, message).with_hint("ah agent fs release --all"))
            }
        }
    }

    /// Whether a record is of something of the caller's, made by this provider.
    pub(crate) fn is_mine(&self, record: &Record, made: Made) -> bool {
        record.uid == self.peer.uid && record.provider == self.served.name && record.made == made
    }
}

/// Where the provider has a clone, which only root may know: the directory that has the clone's name in the workshop, or the provider's own for it.
fn place_inside(record: &Record, clone: &WritableClone) -> String {
    let names = [record.id.as_str(), clone.reference.as_str()];
    let is_it = |at: &&Path| at.file_name().is_some_and(|name| names.iter().any(|own| name == *own));
    clone.path.ancestors().find(is_it).unwrap_or(&clone.path).display().to_string()
}
