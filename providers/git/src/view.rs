//! Read-only views of a snapshot: the tree written out below the target folder and, where this process may mount, a
//! read-only mount over it, so that not even root can write there.
//!
//! Without such a mount every write bit is taken off instead. Not here: writing the tree (`checkout`), recording what was
//! made and taking it away (`made`).

use std::os::fd::AsFd;

use ah_plugin_api::{Context, Dir, Error, MountRequest, Place, Result, View};

use crate::checkout::{Options, checkout, gives_set_id};
use crate::made::{Build, Kind, mounts};
use crate::provider::no_such_path;
use crate::share::Share;
use crate::store::Store;
use crate::tree::{self, Reader};

/// Shows a snapshot, as [`ah_plugin_api::Provider::mount`] promises.
pub(crate) fn mount(
    store: &Store,
    place: &Place<'_>,
    target: &Dir,
    request: &MountRequest,
    cx: &Context<'_>,
) -> Result<View> {
    let head = tree::open(store, &request.snapshot, cx)?;
    let mut reader = Reader::new(store, cx);
    for path in &request.paths {
        if reader.find(&head.root, path)?.is_none() {
            return Err(no_such_path(path));
        }
    }
    let at = (target, &request.name);
    let ((path, read_only_mount), reference) =
        Build::run(place.store, Kind::View, &head.manifest.id, at, cx, |build| {
            let by_mount = mounts::allowed() && mounts::work(target.as_fd(), &build.temporary(), build.dir().as_fd());
            let share = place.workspace.map(Share::new);
            let options = Options {
                paths: &request.paths,
                without: if by_mount { 0 } else { 0o222 },
                // The mount runs nothing as another user; but the folder below it is there before it, and after a reboot.
                set_id: gives_set_id(target.as_fd()) || (by_mount && mounts::is_private(target.as_fd())),
                total: request.paths.is_empty().then_some(head.manifest.entries),
                share: share.as_ref(),
            };
            let into = build.dir().try_clone().map_err(|e| Error::from_io("cannot keep a folder open", &e))?;
            let settle = checkout(store, &head.root, into, options, cx)?;
            settle.apply(build.dir())?;
            build.install()?;
            if by_mount {
                mounts::mount_read_only(target.as_fd(), &build.name(), build.dir().as_fd())?;
            }
            Ok((build.path(), by_mount))
        })?;
    Ok(View { path, reference, read_only_mount })
}
