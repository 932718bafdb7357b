//! Packs without an index: a removal that was killed leaves them, and so does who loses an index.
//!
//! Not here: finding out whether every snapshot is whole without them (`reclaim`).

use std::collections::HashSet;

use ah_plugin_api::{Context, Reclaimed, Result};

use super::{Store, damage, files};

/// Those that are there, and stay so for a moment: a git that is working here gives a pack its name before its index.
pub(super) fn find(store: &Store) -> Result<Vec<String>> {
    let seen = without_index(store)?;
    if seen.is_empty() {
        return Ok(Vec::new());
    }
    std::thread::sleep(std::time::Duration::from_millis(200));
    Ok(without_index(store)?.intersection(&seen).cloned().collect())
}

fn without_index(store: &Store) -> Result<HashSet<String>> {
    let names: HashSet<String> = files::names(&store.folders.packs)?.into_iter().collect();
    let is_orphan = |name: &&String| {
        let stem = name.strip_suffix(".pack").filter(|stem| stem.starts_with("pack-"));
        stem.is_some_and(|stem| !names.contains(&format!("{stem}.idx")))
    };
    Ok(names.iter().filter(is_orphan).cloned().collect())
}

/// Removes those that were found if every snapshot is `whole` without them. If not, the index may be what was lost: then they are set aside.
pub(super) fn tidy(store: &Store, found: &[String], whole: bool, out: &mut Reclaimed, cx: &Context<'_>) -> Result<()> {
    if found.is_empty() {
        return Ok(());
    }
    let _guard = store.lock(cx)?;
    let packs = &store.folders.packs;
    for orphan in without_index(store)?.into_iter().filter(|orphan| found.contains(orphan)) {
        if !whole {
            files::rename(packs, &orphan, packs, &format!("{orphan}{}", damage::ENDING))?;
            out.actions.push(format!(
                "set aside {orphan}{}, which has no index, as snapshots lack what may be in it: give it its name again, and an index by `git index-pack`",
                damage::ENDING
            ));
        } else if files::remove(packs, &orphan)? {
            out.actions.push(format!("removed {orphan}, which had no index"));
        }
    }
    Ok(())
}
