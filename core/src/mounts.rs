//! What is mounted where, by the kernel's tables; see `proc_pid_mountinfo(5)`.

use std::path::{Path, PathBuf};

use ah_plugin_api::proc_path;

/// The table of this process.
pub(crate) const OWN: &str = "/proc/self/mountinfo";

/// A line of a table.
pub(crate) struct Mount {
    pub(crate) id: u64,
    parent: u64,
    /// The filesystem's, as the table has it: `254:0`.
    pub(crate) device: Vec<u8>,
    /// What of the filesystem is mounted.
    pub(crate) root: PathBuf,
    /// Where.
    pub(crate) point: PathBuf,
    /// The filesystem's kind: `ext4`, `fuse.agentfs`.
    kind: Vec<u8>,
}

impl Mount {
    /// What of which filesystem is below it: wherever the table's owner sees that, and whatever it is called there.
    pub(crate) fn lies_on(&self, table: &[Self]) -> Option<(Vec<u8>, PathBuf)> {
        let parent = table.iter().find(|mount| mount.id == self.parent)?;
        Some((parent.device.clone(), parent.root.join(self.point.strip_prefix(&parent.point).ok()?)))
    }
}

/// The lines of a table. The kind is behind a dash (`… - fuse.agentfs source options`).
pub(crate) fn parse(table: &[u8]) -> Vec<Mount> {
    let number = |word: &[u8]| std::str::from_utf8(word).ok()?.parse().ok();
    let mount = |line: &[u8]| {
        let mut words = line.split(|&b| b == b' ');
        let (id, parent) = (number(words.next()?)?, number(words.next()?)?);
        let device = words.next()?.to_owned();
        let (root, point) = (proc_path(words.next()?), proc_path(words.next()?));
        let kind = words.skip_while(|word| *word != b"-").nth(1)?.to_owned();
        Some(Mount { id, parent, device, root, point, kind })
    };
    table.split(|&b| b == b'\n').filter_map(mount).collect()
}

/// How many mounts there are at a directory itself, and the topmost mount point below it.
pub(crate) fn at(dir: &Path) -> (usize, Option<PathBuf>) {
    let points = parse(&std::fs::read(OWN).unwrap_or_default()).into_iter().map(|mount| mount.point);
    let (there, below): (Vec<_>, Vec<_>) =
        points.filter(|point| point.starts_with(dir)).partition(|point| point == dir);
    (there.len(), below.into_iter().min())
}

/// Where what is mounted on which a path lies by its name, if a process or another machine serves that, which may never answer; none if nothing does.
pub(crate) fn served(path: &Path) -> Option<PathBuf> {
    served_by(&std::fs::read(OWN).unwrap_or_default(), path)
}

/// As [`served`], by the table. Of several at one point the last is on top.
fn served_by(table: &[u8], path: &Path) -> Option<PathBuf> {
    const SERVED: [&[u8]; 9] = [b"fuse", b"nfs", b"cifs", b"smb", b"9p", b"ceph", b"afs", b"autofs", b"virtiofs"];
    let mounts = parse(table).into_iter().filter(|mount| path.starts_with(&mount.point));
    let Mount { point, kind, .. } = mounts.max_by_key(|mount| mount.point.components().count())?;
    (kind != b"fusectl" && SERVED.iter().any(|served| kind.starts_with(served))).then_some(point)
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_a_process_serves_is_told_by_the_mount_that_a_path_is_on() {
        let table = b"27 1 254:0 / / rw shared:1 - ext4 /dev/vda rw\n36 27 0:31 / /c rw - fusectl none rw\n\
            40 27 0:40 / /b\\040b rw,nosuid - fuse.agentfs agentfs:/h rw\n41 40 0:41 / /b\\040b/t rw - tmpfs none rw\n\
            42 27 0:42 / /n rw - nfs4 host:/ rw\n43 42 254:0 / /n rw - ext4 /dev/vdb rw\n44 27 0:44 / /s rw - nfs4 host:/ rw\n";
        for (path, served) in [
            ("/", None),
            ("/bb", None),
            ("/c/1", None),
            ("/b b", Some("/b b")),
            ("/b b/f", Some("/b b")),
            ("/b b/t/f", None),
            ("/n/f", None),
            ("/s/f", Some("/s")),
        ] {
            assert_eq!(super::served_by(table, path.as_ref()), served.map(Into::into), "{path}");
        }
    }

    #[test]
    fn mount_points_are_counted_at_a_directory_and_below_it() {
        let (there, below) = super::at(std::path::Path::new("/"));
        assert!(there > 0 && below.is_some());
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(super::at(dir.path()), (0, None));
    }
}
