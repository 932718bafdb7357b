//! Writable copies of a snapshot, with a repository of their own where one was recorded.

use ah_plugin_api::{CloneRequest, Context, Dir, Error, Place, Result, WritableClone};

use crate::checkout::{Options, checkout};
use crate::made::{Build, Kind};
use crate::store::Store;
use crate::tree;

/// Makes a copy, as [`ah_plugin_api::Provider::clone_snapshot`] promises.
pub(crate) fn clone_snapshot(
    store: &Store,
    place: &Place<'_>,
    target: &Dir,
    request: &CloneRequest,
    cx: &Context<'_>,
) -> Result<WritableClone> {
    let head = tree::open(store, &request.snapshot)?;
    let at = (target, &request.name);
    let ((path, notes), reference) = Build::run(place.store, Kind::Clone, &head.manifest.id, at, cx, |build| {
        let options = Options { paths: &[], without: 0, total: Some(head.manifest.entries) };
        let into = build.dir().try_clone().map_err(|e| Error::from_io("cannot keep a folder open", &e))?;
        let settle = checkout(store, &head.root, into, options, cx)?;
        let notes = Vec::new();
        settle.apply(build.dir())?;
        build.install()?;
        Ok((build.path(), notes))
    })?;
    Ok(WritableClone { path, reference, notes })
}
