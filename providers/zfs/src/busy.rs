//! Who holds a dataset that is busy. Mostly that is a mount in some other mount namespace, which this process does not see: so all
//! processes' mount tables are looked through, one for each namespace. A courtesy to the person who is told; only done then.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use ah_plugin_api::{Error, ErrorKind};
use ah_provider_directory::{Mounts, Process};

/// At most so many are named.
const NAMED: usize = 5;

/// `Busy`, with those who hold the dataset or snapshot called `source`, as far as this user may see them.
pub(crate) fn error(message: &str, source: &str) -> Error {
    let holders = holders(source);
    if holders.is_empty() {
        return Error::new(ErrorKind::Busy, format!("{message}, by whom cannot be seen"))
            .with_hint("repeat later; as root, the holder can be named");
    }
    let more = holders.len().saturating_sub(NAMED);
    let mut named = holders[..holders.len() - more].join(", ");
    if more > 0 {
        named.push_str(&format!(" and {more} more"));
    }
    Error::new(ErrorKind::Busy, format!("{message} by {named}")).with_hint("end them or unmount it there, then repeat")
}

/// `process 12 (bash) in the mount namespace 4026531841, at /path` each.
fn holders(source: &str) -> Vec<String> {
    let own = namespace(Path::new("/proc/self"));
    let mut seen: BTreeSet<PathBuf> = BTreeSet::new();
    let mut elsewhere: Vec<(PathBuf, Vec<PathBuf>)> = Vec::new();
    let mut found = Vec::new();
    for process in Process::all() {
        let Some(space) = namespace(&process.folder) else { continue };
        if seen.insert(space.clone()) {
            elsewhere.push((space.clone(), points(&process.folder, source)));
        }
        let points = elsewhere.iter().find(|(at, _)| *at == space).map_or(&[] as &[_], |(_, points)| points);
        if points.is_empty() {
            continue;
        }
        let uses = points.iter().find(|point| process.uses(|used| used.is_below(point)).is_some());
        // In this namespace a mount alone is no obstacle: it is taken away. In another one it is.
        let Some(point) = uses.or_else(|| points.first().filter(|_| Some(&space) != own.as_ref())) else { continue };
        let space = space.to_string_lossy().replace("mnt:", "");
        found.push(format!(
            "process {process} in the mount namespace {}, at {}",
            space.trim_matches(['[', ']']),
            point.display()
        ));
    }
    found
}

fn namespace(process: &Path) -> Option<PathBuf> {
    std::fs::read_link(process.join("ns/mnt")).ok()
}

/// Where a process sees `source` mounted.
fn points(process: &Path, source: &str) -> Vec<PathBuf> {
    let table = std::fs::read(process.join("mountinfo")).unwrap_or_default();
    let mounts = Mounts::parse(&table);
    let of_it = mounts.iter().filter(|mount| mount.kind == "zfs" && mount.source == source.as_bytes());
    of_it.map(|mount| mount.point.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_holds_what_is_not_mounted() {
        assert_eq!(holders("no/such@snapshot"), Vec::<String>::new());
        let error = error("it is in use", "no/such@snapshot");
        assert!(error.kind == ErrorKind::Busy && error.hint.is_some());
    }
}
