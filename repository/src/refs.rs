//! Branches, tags and remote-tracking refs as they stand, so that a clone of a snapshot knows `main` and `origin/main` too.
//!
//! A line each, ordered by name: `<commit> <name>`, or `ref:<target> <name>` for a symbolic one. Names are bytes, as Git has them. Where there are
//! very many, none are recorded: each snapshot would pay for reading them.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};

use gix::ObjectId;
use gix::bstr::ByteSlice;
use rustix::fs::{AtFlags, FileType};

use crate::repository::{SMALL, open_dir, read_file, read_linked};

/// The kinds that are recorded. Not the stash, whose log is not; nor what a rebase or bisection keeps for itself.
const KINDS: &[&str] = &["heads", "tags", "remotes"];
/// More bytes, of packed refs or of those in files, or more files, are too many.
const LIMIT: u64 = 4 << 20;
const FILES_LIMIT: usize = 10_000;
const DEPTH: usize = 32;

/// How much more is read.
struct Room {
    files: usize,
    bytes: u64,
}

impl Room {
    fn take(&mut self, name: &[u8], text: &[u8]) -> Option<()> {
        self.bytes = self.bytes.checked_sub((name.len() + text.len()) as u64)?;
        Some(())
    }
}

/// What a ref holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A commit or tag.
    Object(ObjectId),
    /// Another ref.
    Ref(Vec<u8>),
}

/// Reads them; none if there are too many, or they cannot be read.
pub(crate) fn read(common_dir: BorrowedFd<'_>) -> Option<Vec<u8>> {
    let mut found = BTreeMap::new();
    // A ref that moves from its file into the packed ones meanwhile is seen in one of the two looks at those.
    packed(common_dir, &mut found)?;
    let mut loose = BTreeMap::new();
    let mut room = Room { files: FILES_LIMIT, bytes: LIMIT };
    for kind in KINDS {
        files(common_dir, format!("refs/{kind}").as_bytes(), &mut loose, &mut room, DEPTH)?;
    }
    packed(common_dir, &mut found)?;
    found.append(&mut loose);
    let mut out = Vec::new();
    for (name, target) in found {
        let target = match target {
            Target::Object(id) => id.to_string().into_bytes(),
            Target::Ref(target) => [b"ref:", target.as_slice()].concat(),
        };
        out.extend([target.as_slice(), b" ", &name, b"\n"].concat());
    }
    Some(out)
}

/// Reads what `read` wrote; leaves out what no ref can be.
pub fn parse(text: &[u8]) -> impl Iterator<Item = (Vec<u8>, Target)> {
    text.lines().filter_map(|line| {
        let (target, name) = line.split_once_str(" ")?;
        let target = match target.strip_prefix(b"ref:") {
            Some(target) => Target::Ref(valid(target)?),
            None => Target::Object(ObjectId::from_hex(target).ok()?),
        };
        Some((valid(name)?, target))
    })
}

fn valid(name: &[u8]) -> Option<Vec<u8>> {
    let kind = name.strip_prefix(b"refs/")?.split_once_str("/")?.0;
    let known = KINDS.iter().any(|known| known.as_bytes() == kind);
    let name = gix::validate::reference::name(name.as_bstr()).ok().filter(|_| known)?;
    Some(name.to_vec())
}

fn packed(common_dir: BorrowedFd<'_>, found: &mut BTreeMap<Vec<u8>, Target>) -> Option<()> {
    // A file that is too large reads as one that is not there; so its size is asked for first.
    if let Ok(stat) = rustix::fs::statat(common_dir, "packed-refs", AtFlags::empty())
        && u64::try_from(stat.st_size).unwrap_or(u64::MAX) > LIMIT
    {
        return None;
    }
    let text = read_linked(common_dir, "packed-refs", LIMIT).ok()?.unwrap_or_default();
    // Comments begin with `#`, what a tag leads to with `^`: neither is a line of this form.
    found.extend(parse(&text).filter(|(_, target)| matches!(target, Target::Object(_))));
    Some(())
}

fn files(
    common_dir: BorrowedFd<'_>,
    path: &[u8],
    found: &mut BTreeMap<Vec<u8>, Target>,
    room: &mut Room,
    depth: usize,
) -> Option<()> {
    let Ok(dir) = open_dir(common_dir, path) else { return Some(()) };
    for entry in rustix::fs::Dir::read_from(dir.as_fd()).ok()? {
        let entry = entry.ok()?;
        let name = entry.file_name().to_bytes();
        if name.starts_with(b".") {
            continue;
        }
        room.files = room.files.checked_sub(1)?;
        let below = [path, b"/", name].concat();
        // Some filesystems do not say the kind in the listing.
        let is_dir = match entry.file_type() {
            FileType::Unknown => rustix::fs::statat(&dir, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)
                .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory),
            kind => kind == FileType::Directory,
        };
        if is_dir {
            files(common_dir, &below, found, room, depth.checked_sub(1)?)?;
        } else if let (Some(name), Ok(Some(text))) = (valid(&below), read_file(dir.as_fd(), name, SMALL)) {
            room.take(&name, &text)?;
            let text = text.trim_ascii_end();
            let target = match text.strip_prefix(b"ref:") {
                Some(target) => valid(target.trim_ascii()).map(Target::Ref),
                None => ObjectId::from_hex(text).ok().map(Target::Object),
            };
            found.extend(target.map(|target| (name, target)));
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::fd::AsFd;
    use std::os::unix::ffi::OsStrExt;

    use super::{LIMIT, Target, parse, read};
    use crate::write::put_refs;

    #[test]
    fn many_that_are_long_are_too_many() {
        let dir = tempfile::tempdir().unwrap();
        let heads = dir.path().join("refs/heads");
        std::fs::create_dir_all(&heads).unwrap();
        // One file under many names costs its maker nothing.
        let first = heads.join("0");
        std::fs::write(&first, format!("ref: refs/heads/{}", "a".repeat(60_000))).unwrap();
        let read = || read(std::fs::File::open(dir.path()).unwrap().as_fd());
        assert!(read().is_some());
        for n in 1..=LIMIT / 60_000 {
            std::fs::hard_link(&first, heads.join(n.to_string())).unwrap();
        }
        assert_eq!(read(), None);
    }

    #[test]
    fn names_of_any_bytes_come_along() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let folder = from.path().join(OsStr::from_bytes(b"refs/heads/d\xfc"));
        std::fs::create_dir_all(&folder).unwrap();
        let id = "1".repeat(40);
        std::fs::write(folder.join(OsStr::from_bytes(b"caf\xe9")), format!("{id}\n")).unwrap();
        std::fs::write(folder.join("alias"), b"ref: refs/heads/d\xfc/caf\xe9\n").unwrap();
        std::fs::write(from.path().join("packed-refs"), [id.as_bytes(), b" refs/tags/\xff\n"].concat()).unwrap();
        let open = |dir: &tempfile::TempDir| std::fs::File::open(dir.path()).unwrap();
        let text = read(open(&from).as_fd()).unwrap();
        let names: Vec<_> = parse(&text).map(|(name, _)| name).collect();
        assert_eq!(names, [&b"refs/heads/d\xfc/alias"[..], b"refs/heads/d\xfc/caf\xe9", b"refs/tags/\xff"]);
        assert_eq!(put_refs(open(&to).as_fd(), Some(&text)).unwrap(), None);
        assert_eq!(read(open(&to).as_fd()), Some(text));
    }

    #[test]
    fn files_win_over_packed_refs_and_only_refs_are_taken() {
        let dir = tempfile::tempdir().unwrap();
        let (old, new) = ("1".repeat(40), "2".repeat(40));
        let put = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put(
            "packed-refs",
            &format!("# pack-refs with: peeled\n{old} refs/heads/main\n{old} refs/tags/v1\n^{new}\n{old} refs/stash\n"),
        );
        put("refs/heads/main", &format!("{new}\n"));
        put("refs/heads/a/b", &format!("{new}\n"));
        put("refs/heads/main.lock", "x");
        put("refs/heads/torn", "22");
        put("refs/remotes/origin/HEAD", "ref: refs/remotes/origin/main\n");
        put("refs/bisect/bad", &format!("{new}\n"));
        std::os::unix::fs::symlink("/dev/zero", dir.path().join("refs/heads/link")).unwrap();
        let text = read(std::fs::File::open(dir.path()).unwrap().as_fd()).unwrap();
        let expected = format!(
            "{new} refs/heads/a/b\n{new} refs/heads/main\nref:refs/remotes/origin/main refs/remotes/origin/HEAD\n\
             {old} refs/tags/v1\n"
        );
        assert_eq!(String::from_utf8_lossy(&text), expected);
        assert_eq!(parse(&text).count(), 4);
        assert!(parse(b"ref:refs/heads/../x refs/heads/y\nzz refs/heads/z\n").next().is_none());
        assert!(matches!(parse(&text).nth(2), Some((_, Target::Ref(_)))));
    }
}
