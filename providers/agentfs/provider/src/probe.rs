//! What can be served: a branch of ours where it is; of any other directory, branches.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};

use ah_plugin_api::{Dir, Mode, Probe, ProbeRequest, Result};
use ah_provider_directory::mount_of;
use rustix::fs::{Access, AtFlags, FileType, OFlags};

use crate::home::{Shown, path_of};
use crate::reach::service_program;

/// What `statfs` calls filesystems on which every change of a file moves its time of change by this machine's clock, which cannot be set. On
/// others, of another machine or of another process, a change could look like none.
const KNOWN: &[u32] = &[
    0xef53,      // ext2, ext3, ext4
    0x5846_5342, // XFS
    0x9123_683e, // Btrfs
    0x2fc1_2fc1, // ZFS
    0xf2f5_2010, // F2FS
    0xca45_1a4e, // bcachefs
    0x0102_1994, // tmpfs
];

/// What is said of a workspace that lies behind, and of a branch.
pub(crate) const BEHIND: &str = "it is behind AgentFS";
pub(crate) const BRANCH: &str = "it is a branch in AgentFS";

/// Btrfs and ZFS.
const MAKE_SNAPSHOTS: &[u32] = &[0x9123_683e, 0x2fc1_2fc1];

/// Answers [`ah_plugin_api::Provider::probe`].
pub(crate) fn probe(workspace: &Dir, store: &Dir, request: &ProbeRequest) -> Result<Probe> {
    let (reason, modes) = match Shown::around(workspace)? {
        // A branch of it reads where it reads itself, and is no worktree apart.
        Some((shown, true)) => {
            let reason = match path_of(store).is_ok_and(|store| store == shown.home) {
                true => BEHIND,
                false => BRANCH,
            };
            (reason.to_owned(), BTreeSet::from([Mode::InPlace, Mode::CowOverlay]))
        }
        Some(_) => {
            return Ok(unusable(
                "it is within a branch or view of AgentFS, and only a branch as a whole is captured",
                None,
            ));
        }
        None if request.mode == Some(Mode::InPlace) => {
            let not_where_it_is =
                unusable("a directory is not captured where it is, but branches may grow from it", None);
            // For each snapshot of the workspace: what else there is to know takes a process.
            if !request.thorough {
                return Ok(not_where_it_is);
            }
            return Ok(match refusal(workspace, store) {
                Some((reason, remedy)) => unusable(&reason, remedy),
                None => match convertible(workspace) {
                    Ok(convertible) => Probe { convertible: Some(convertible), ..not_where_it_is },
                    Err(why) => {
                        let reason = format!("{}; nor can it be put behind AgentFS: {why}", not_where_it_is.reason);
                        Probe { reason, ..not_where_it_is }
                    }
                },
            });
        }
        None => match refusal(workspace, store) {
            Some((reason, remedy)) => return Ok(unusable(&reason, remedy)),
            None => (
                "branches grow from it at once; it is not captured where it is".to_owned(),
                BTreeSet::from([Mode::CowOverlay]),
            ),
        },
    };
    let is_plain = !modes.contains(&Mode::InPlace);
    let convertible = if request.thorough && is_plain { convertible(workspace).ok() } else { None };
    match request.mode {
        Some(mode) if !modes.contains(&mode) => Ok(unusable(&format!("it cannot work {mode} here"), None)),
        _ => Ok(Probe { usable: true, reason, remedy: None, modes, can_delete: true, convertible }),
    }
}

pub(crate) fn unusable(reason: &str, remedy: Option<String>) -> Probe {
    Probe {
        usable: false,
        reason: reason.to_owned(),
        remedy,
        modes: BTreeSet::new(),
        can_delete: true,
        convertible: None,
    }
}

/// Whether the filesystem keeps no more of a time (ext4 with inodes of 128 bytes, as it was made long ago).
fn has_whole_seconds(workspace: &Dir) -> bool {
    rustix::fs::fstat(workspace).is_ok_and(|stat| stat.st_mtime_nsec == 0 && stat.st_ctime_nsec == 0)
}

/// Whether names that differ in case alone are one and the same, as far as the directory's own names tell: then a name that was removed in a branch would be there still
/// under another.
fn ignores_case(workspace: &Dir) -> bool {
    let Ok(entries) = rustix::fs::Dir::read_from(workspace) else { return false };
    let look = |name: &[u8]| {
        let stat = rustix::fs::statat(workspace, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let has_one_name = stat.st_nlink == 1 || FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        Some((stat.st_dev, stat.st_ino, has_one_name))
    };
    is_found_in_other_case(entries.flatten().map(|entry| entry.file_name().to_bytes().to_vec()), look)
}

/// By the first name that tells. `look`: device, inode, and whether that has but one name.
fn is_found_in_other_case(
    names: impl Iterator<Item = Vec<u8>>,
    look: impl Fn(&[u8]) -> Option<(u64, u64, bool)>,
) -> bool {
    let other =
        |byte: &u8| if byte.is_ascii_lowercase() { byte.to_ascii_uppercase() } else { byte.to_ascii_lowercase() };
    names.filter(|name| name.iter().any(u8::is_ascii_alphabetic)).find_map(|name| {
        let is = look(&name).filter(|is| is.2)?;
        Some(look(&name.iter().map(other).collect::<Vec<_>>()) == Some(is))
    }) == Some(true)
}

/// Why no branch can grow from a plain directory here, and what to do about it.
pub(crate) fn refusal(workspace: &Dir, store: &Dir) -> Option<(String, Option<String>)> {
    if let Err(error) = service_program() {
        return Some((error.message, error.hint));
    }
    if let Err(error) = ah_agentfs_fuse::available() {
        return Some((error.to_string(), None));
    }
    let kind = rustix::fs::fstatfs(workspace).map(|stat| stat.f_type as u32).unwrap_or_default();
    if !KNOWN.contains(&kind) {
        let why = format!(
            "it is on a filesystem (0x{kind:x}) of which it is not known that changes underneath can be noticed"
        );
        return Some((why, None));
    }
    if has_whole_seconds(workspace) {
        let why = "the times of its files are whole seconds, and changes within one could look like none".to_owned();
        return Some((why, None));
    }
    if ignores_case(workspace) {
        return Some(("it takes upper case in names for lower".to_owned(), None));
    }
    match (path_of(store), path_of(workspace)) {
        (Ok(store), Ok(workspace)) if store.starts_with(&workspace) => Some((
            "AgentFS would keep what changes within it".to_owned(),
            Some("keep AH_HOME outside of the workspace".to_owned()),
        )),
        (Ok(_), Ok(_)) => None,
        (Err(error), _) | (_, Err(error)) => Some((error.message, error.hint)),
    }
}

/// What putting the workspace, from which branches can grow, behind AgentFS would make better; or why this user cannot.
fn convertible(workspace: &Dir) -> Result<String, String> {
    let unseen = |_| "it cannot be looked at".to_owned();
    let kind = rustix::fs::fstatfs(workspace).map(|stat| stat.f_type as u32).map_err(unseen)?;
    if MAKE_SNAPSHOTS.contains(&kind) {
        return Err("the filesystem that it is on makes snapshots by itself".to_owned());
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let above = rustix::fs::openat(workspace, c"..", flags, rustix::fs::Mode::empty()).map_err(unseen)?;
    let mount = |dir: BorrowedFd<'_>| mount_of(dir).map_err(|_| "it cannot be told what is mounted".to_owned());
    if mount(above.as_fd())? != mount(workspace.as_fd())? {
        return Err("something is mounted at it".to_owned());
    }
    // What is renamed is the workspace's name in the directory above.
    rustix::fs::accessat(&above, c".", Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS).map_err(|_| {
        let above =
            path_of(&above).map_or_else(|_| "the directory above".to_owned(), |path| path.display().to_string());
        format!("you may not rename it in {above}")
    })?;
    Ok("snapshots take the same time however much there is, and hold ignored files too, once the workspace is behind it".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_case_is_ignored_the_first_name_with_letters_tells() {
        let dir = tempfile::tempdir().unwrap();
        let workspace = Dir::open(dir.path()).unwrap();
        assert!(!ignores_case(&workspace));
        std::fs::write(dir.path().join("a"), "").unwrap();
        std::fs::hard_link(dir.path().join("a"), dir.path().join("A")).unwrap();
        assert!(!ignores_case(&workspace), "two names of one file are none");
        std::fs::create_dir(dir.path().join("Src")).unwrap();
        std::fs::create_dir(dir.path().join("sRC")).unwrap();
        assert!(!ignores_case(&workspace));
        // As vfat, or a directory of ext4 with `chattr +F`, answers.
        let told = |has_one_name: bool| {
            let look = move |name: &[u8]| name.eq_ignore_ascii_case(b"src").then_some((1, 2, has_one_name));
            is_found_in_other_case([b"1".to_vec(), b"Src".to_vec()].into_iter(), look)
        };
        assert!(told(true) && !told(false));
    }
}
