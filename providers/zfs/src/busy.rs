//! Who holds a dataset that is busy. Mostly that is a mount in some other mount namespace, which this process does not see: so all
//! processes' mount tables are looked through, one for each namespace. A courtesy to the person who is told; only done then.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use ah_plugin_api::{Error, ErrorKind};
use ah_provider_directory::{Mount, Mounts, Process};

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

/// `Busy` if it can be seen that a dataset will go on being mounted in another mount namespace when all mounts of it here are gone.
pub(crate) fn refuse_what_stays(dataset: &str, own: &Mounts) -> Result<(), Error> {
    let mut seen: BTreeSet<PathBuf> = namespace(Path::new("/proc/self")).into_iter().collect();
    for process in Process::all() {
        let Some(space) = namespace(&process.folder) else { continue };
        if !seen.insert(space) {
            continue;
        }
        let table = std::fs::read(process.folder.join("mountinfo")).unwrap_or_default();
        if stays(dataset, own, &Mounts::parse(&table)) {
            return Err(error(&format!("the clone {dataset} is in use"), dataset));
        }
    }
    Ok(())
}

/// Whether one of `theirs` stays that shows the dataset when those of `own` are unmounted: an unmount reaches the mounts that get it from
/// the mount that it happens on. Where that goes by way of others, which need not be seen, it counts as reached: in the end ZFS knows.
fn stays(dataset: &str, own: &Mounts, theirs: &Mounts) -> bool {
    let of_it = |mounts: &Mounts| -> Vec<Option<Mount>> {
        let on = |mount: &Mount| mounts.iter().find(|on| on.id == mount.parent).cloned();
        mounts.iter().filter(|mount| mount.kind == "zfs" && mount.source == dataset.as_bytes()).map(on).collect()
    };
    let groups: BTreeSet<u64> = of_it(own).into_iter().flatten().filter_map(|on| on.shared).collect();
    of_it(theirs).into_iter().flatten().any(|on| match (on.master, on.shared) {
        (None, None) => true,
        (None, Some(group)) => !groups.contains(&group),
        (Some(_), _) => groups.is_empty(),
    })
}

/// Processes in this mount namespace that use something below one of these places.
pub(crate) fn is_used(points: &[PathBuf]) -> bool {
    let own = namespace(Path::new("/proc/self"));
    let here = |process: &Process| namespace(&process.folder) == own;
    let uses = |process: &Process| process.uses(|used| points.iter().any(|point| used.is_below(point))).is_some();
    Process::all().iter().any(|process| here(process) && uses(process))
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
    fn what_an_unmount_does_not_reach_stays() {
        let table = |on: &str| {
            let text = format!("20 1 0:1 / / rw {on}- ext4 /dev/a rw\n30 20 0:2 / /c rw shared:9 - zfs t/c rw\n");
            Mounts::parse(text.as_bytes())
        };
        let none = Mounts::parse(b"20 1 0:1 / / rw - ext4 /dev/a rw\n");
        assert!(!stays("t/c", &table("shared:1 "), &none) && !stays("t/other", &table(""), &table("")));
        for (own, theirs, is) in [
            ("shared:1 ", "shared:1 ", false),
            ("shared:1 ", "master:1 ", false),
            ("shared:1 ", "shared:2 master:1 ", false),
            // By way of a third one, perhaps.
            ("shared:1 ", "master:3 ", false),
            ("shared:1 ", "shared:2 ", true),
            ("shared:1 ", "", true),
            ("", "master:1 ", true),
            ("master:1 ", "shared:1 ", true),
        ] {
            assert_eq!(stays("t/c", &table(own), &table(theirs)), is, "{own}/ {theirs}");
        }
        // Mounted there only.
        assert!(stays("t/c", &none, &table("shared:1 ")));
        assert!(is_used(&[std::env::current_exe().unwrap()]) && !is_used(&["/no/such/place".into()]));
    }

    #[test]
    fn nobody_holds_what_is_not_mounted() {
        assert_eq!(holders("no/such@snapshot"), Vec::<String>::new());
        let error = error("it is in use", "no/such@snapshot");
        assert!(error.kind == ErrorKind::Busy && error.hint.is_some());
    }
}
