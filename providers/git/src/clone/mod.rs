//! Writable copies of a snapshot, with a repository of their own where one was recorded.
//!
//! A clone is the captured tree with its exact modes and times; made by root, without set-user-id and set-group-id bits of files. If the workspace was the top of a work tree, it gets a `.git`
//! ([`git_dir`]): HEAD, branch and index as captured, all objects from the store's keep, the harmless part of the configuration
//! (`ah_repository::write::put_settings`). It depends on nothing outside: no alternates, no gitdir elsewhere.
//!
//! A workspace that was only a subdirectory of a work tree gives a plain directory: a repository whose top is elsewhere
//! would show everything else as deleted, and one cut to the subdirectory would have other paths than its history.

mod git_dir;
mod index;

use std::os::fd::AsFd;

use ah_plugin_api::{CloneRequest, Context, Dir, Error, OmitReason, Place, Result, WritableClone};

use crate::checkout::{Options, checkout, gives_set_id};
use crate::made::{Build, Kind};
use crate::share::Share;
use crate::store::Store;
use crate::tree::{self, Head};
use ah_repository::Repository;

/// Makes a copy, as [`ah_plugin_api::Provider::clone_snapshot`] promises.
pub(crate) fn clone_snapshot(
    store: &Store,
    place: &Place<'_>,
    target: &Dir,
    request: &CloneRequest,
    cx: &Context<'_>,
) -> Result<WritableClone> {
    let head = tree::open(store, &request.snapshot, cx)?;
    let at = (target, &request.name);
    let ((path, notes), reference) = Build::run(place.store, Kind::Clone, &head.manifest.id, at, cx, |build| {
        let share = place.workspace.map(Share::new);
        let options = Options {
            paths: &[],
            without: 0,
            set_id: gives_set_id(target.as_fd()),
            total: Some(head.manifest.entries),
            share: share.as_ref(),
        };
        let into = build.dir().try_clone().map_err(|e| Error::from_io("cannot keep a folder open", &e))?;
        let settle = checkout(store, &head.root, into, options, cx)?;
        let mut notes = repository(store, &head, place.workspace, build, cx)?;
        notes.extend(nested(store, &head, cx)?);
        settle.apply(build.dir())?;
        build.install()?;
        Ok((build.path(), notes))
    })?;
    Ok(WritableClone { path, reference, notes })
}

/// What is to be said of the repositories inside, whose files alone were captured.
fn nested(store: &Store, head: &Head, cx: &Context<'_>) -> Result<Option<String>> {
    let omitted = head.omitted(store, cx)?;
    let mut tops = omitted.iter().filter(|omission| omission.reason == OmitReason::GitDir).map(|it| it.path.parent());
    let Some(first) = tops.next() else { return Ok(None) };
    let first = first.unwrap_or_default();
    let and_more = match tops.count() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Ok(Some(format!("repositories inside are plain directories in the clone: {first}{and_more}")))
}

/// Gives the clone its `.git`, if it is to have one.
fn repository(
    store: &Store,
    head: &Head,
    workspace: Option<&Dir>,
    build: &Build<'_>,
    cx: &Context<'_>,
) -> Result<Vec<String>> {
    let Some(state) = &head.manifest.repository else { return Ok(Vec::new()) };
    let Some(kept) = &head.kept else {
        let why = state.not_kept.as_deref().unwrap_or("its objects were not kept");
        return Ok(vec![format!("the clone is a plain directory without .git: {why}")]);
    };
    let theirs = workspace.and_then(Repository::of);
    git_dir::make(store, head, (state, kept), build.dir().as_fd(), theirs.as_ref(), cx)
}
