//! Looking into a snapshot without writing it out: a directory's entries, one file, one path in many snapshots.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;

use ah_plugin_api::{Context, Entry, Error, ErrorKind, LookupRequest, ReadDirRequest, ReadRequest, Result};

use crate::provider::no_such_path;
use crate::store::Store;
use crate::tree::{self, Directory, Reader, What, damaged};

/// Answers [`ah_plugin_api::Provider::read_dir`].
pub(crate) fn read_dir(store: &Store, request: &ReadDirRequest, cx: &Context<'_>) -> Result<Vec<Entry>> {
    let head = tree::open(store, &request.snapshot, cx)?;
    let mut reader = Reader::new(store, cx);
    let What::Dir(directory) = reader.find(&head.root, &request.path)?.ok_or_else(|| no_such_path(&request.path))?
    else {
        return Err(Error::new(ErrorKind::InvalidArgument, format!("{} is not a directory", request.path)));
    };
    let listing = reader.list(&directory)?;
    let mut entries =
        listing.items.iter().map(|item| reader.entry(&item.name, &item.what)).collect::<Result<Vec<_>>>()?;
    // Git orders a directory as if its name ended in a slash.
    entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(entries)
}

/// Answers [`ah_plugin_api::Provider::read`].
pub(crate) fn read(store: &Store, request: &ReadRequest, output: BorrowedFd<'_>, cx: &Context<'_>) -> Result<Entry> {
    let head = tree::open(store, &request.snapshot, cx)?;
    let mut reader = Reader::new(store, cx);
    let what = reader.find(&head.root, &request.path)?.ok_or_else(|| no_such_path(&request.path))?;
    let (What::File(id, meta) | What::Symlink(id, meta)) = what else {
        return Err(Error::new(ErrorKind::InvalidArgument, format!("{} is a directory", request.path)));
    };
    let written = store.read_to(&id, output, cx)?;
    if written != meta.size {
        return Err(damaged(format!("{} is {written} bytes long instead of {}", request.path, meta.size)));
    }
    reader.entry(request.path.file_name().unwrap_or_default(), &what)
}

/// Answers [`ah_plugin_api::Provider::lookup`]. Each distinct directory on the way is read once, however many snapshots
/// share it.
pub(crate) fn lookup(store: &Store, request: &LookupRequest, cx: &Context<'_>) -> Result<Vec<Option<Entry>>> {
    let mut reader = Reader::new(store, cx);
    let mut known: HashMap<(usize, Directory), Option<Entry>> = HashMap::new();
    let components: Vec<&[u8]> = request.path.components().collect();
    let mut answers = Vec::with_capacity(request.snapshots.len());
    for reference in &request.snapshots {
        cx.check_cancelled()?;
        let mut at = What::Dir(tree::open(store, reference, cx)?.root);
        let mut on_the_way = Vec::new();
        let mut depth = 0;
        let answer = loop {
            let What::Dir(directory) = at else {
                break if depth == components.len() {
                    Some(reader.entry(name_at(&components, depth), &at)?)
                } else {
                    None
                };
            };
            if let Some(answer) = known.get(&(depth, directory)) {
                break answer.clone();
            }
            on_the_way.push((depth, directory));
            let Some(name) = components.get(depth) else {
                break Some(reader.entry(name_at(&components, depth), &at)?);
            };
            let Some(item) = reader.list(&directory)?.items.into_iter().find(|item| item.name == *name) else {
                break None;
            };
            at = item.what;
            depth += 1;
        };
        known.extend(on_the_way.into_iter().map(|key| (key, answer.clone())));
        answers.push(answer);
    }
    Ok(answers)
}

fn name_at<'a>(components: &[&'a [u8]], depth: usize) -> &'a [u8] {
    depth.checked_sub(1).and_then(|at| components.get(at)).copied().unwrap_or_default()
}
