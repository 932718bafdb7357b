//! Differences between two trees in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ah_plugin_api::{Change, RelPath, Result};

use super::node::{Data, Node};

/// All differences, ordered by path bytes.
pub(super) fn compare(from: &Node, to: &Node, paths: &[RelPath], times: bool) -> Result<Vec<Change>> {
    let mut changes = Vec::new();
    visit(Some(from), Some(to), &RelPath::root(), times, &mut changes)?;
    changes.retain(|change| paths.is_empty() || paths.iter().any(|path| change.path.starts_with(path)));
    changes.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(changes)
}

fn visit(from: Option<&Node>, to: Option<&Node>, path: &RelPath, times: bool, changes: &mut Vec<Change>) -> Result<()> {
    if differ(from, to, times) {
        let name = path.file_name().unwrap_or_default();
        let entry = |node: Option<&Node>| node.map(|node| node.entry(name));
        changes.push(Change { path: path.clone(), before: entry(from), after: entry(to) });
    }
    let (before, after) = (children(from), children(to));
    let names = |side: Option<&'_ BTreeMap<Vec<u8>, Arc<Node>>>| -> Vec<Vec<u8>> {
        side.map(|children| children.keys().cloned().collect()).unwrap_or_default()
    };
    let all: BTreeSet<Vec<u8>> = names(before).into_iter().chain(names(after)).collect();
    for name in all {
        let get = |side: Option<&BTreeMap<Vec<u8>, Arc<Node>>>| side.and_then(|children| children.get(&name)).cloned();
        let (from, to) = (get(before), get(after));
        if let (Some(from), Some(to)) = (&from, &to)
            && Arc::ptr_eq(from, to)
        {
            continue;
        }
        visit(from.as_deref(), to.as_deref(), &path.join(&name)?, times, changes)?;
    }
    Ok(())
}

fn children(node: Option<&Node>) -> Option<&BTreeMap<Vec<u8>, Arc<Node>>> {
    match node.map(|node| &node.data) {
        Some(Data::Dir(children)) => Some(children),
        _ => None,
    }
}

/// Whether two nodes differ in themselves, what is below them apart.
fn differ(from: Option<&Node>, to: Option<&Node>, times: bool) -> bool {
    let (Some(from), Some(to)) = (from, to) else { return true };
    let contents = match (&from.data, &to.data) {
        (Data::Dir(_), Data::Dir(_)) => false,
        (from, to) => from != to,
    };
    contents || from.mode != to.mode || times && from.mtime != to.mtime
}
