//! A split index made whole: most of its entries are in a second file, `sharedindex.<id>`, which a snapshot does not hold.
//!
//! Both files are copied first and read from the copy: the reader maps them, and theirs may be cut short at any moment. The copies have
//! no extensions but what says how the two belong together: the reader takes all of them apart, and some as deep as they say
//! they are nested, or from where they say.

use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use ah_plugin_api::{Error, ErrorKind, Result};

use gix::ObjectId;

use crate::repository::{Repository, read_file};

const PREFIX: &str = "sharedindex.";
/// Bytes of the checksum at an index's end.
const CHECKSUM: usize = 20;
/// Larger ones are not put together.
const LIMIT: u64 = 256 << 20;

impl Repository {
    /// The user's index as one whole file, if it is a split one; none if it is not.
    ///
    /// `scratch` is a folder in which files may be made for the time of the call.
    ///
    /// # Errors
    /// If it is one, and cannot be put together.
    pub fn whole_index(&self, scratch: BorrowedFd<'_>) -> Result<Option<Vec<u8>>> {
        let names = shared_names(self.git.git_dir.as_fd());
        if names.is_empty() {
            return Ok(None);
        }
        let failed = |why: &str| Error::new(ErrorKind::Unsupported, format!("it is a split index, {why}"));
        let Ok(Some(main)) = read_file(&self.git.git_dir, "index", LIMIT) else {
            return Err(failed("and too large"));
        };
        let found = names.into_iter().find_map(|name| links_to(&main, &name).map(|id| (name, id)));
        let Some((name, id)) = found else { return Ok(None) };
        let Ok(Some(shared)) = read_file(&self.git.git_dir, &name, LIMIT) else {
            return Err(failed("whose second file cannot be read"));
        };
        let damaged = || failed("which is damaged");
        if !shared.ends_with(id.as_bytes()) {
            return Err(damaged());
        }
        let (shared, now) = bare(&shared, None).ok_or_else(damaged)?;
        let (main, _) = bare(&main, Some((&id, &now))).ok_or_else(damaged)?;
        let copies = Copies { scratch, names: [format!("index-of-{now}"), format!("{PREFIX}{now}")] };
        for (name, data) in copies.names.iter().zip([&main, &shared]) {
            let flags = rustix::fs::OFlags::WRONLY
                | rustix::fs::OFlags::CREATE
                | rustix::fs::OFlags::TRUNC
                | rustix::fs::OFlags::NOFOLLOW
                | rustix::fs::OFlags::CLOEXEC;
            rustix::fs::openat(scratch, name, flags, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)
                .map_err(std::io::Error::from)
                .and_then(|file| std::fs::File::from(file).write_all(data))
                .map_err(|e| Error::from_io("cannot copy a split index", &e))?;
        }
        let path = format!("/proc/self/fd/{}/{}", scratch.as_raw_fd(), copies.names[0]);
        let file = gix::index::File::at(path, gix::hash::Kind::Sha1, false, gix::index::decode::Options::default())
            .map_err(|error| damaged().context(error.to_string()))?;
        let mut out = Vec::new();
        // Caches are left out: they may be those of one half.
        let options = gix::index::write::Options { extensions: gix::index::write::Extensions::None, skip_hash: false };
        file.write_to(&mut out, options)
            .map_err(|error| failed("that cannot be written").context(error.to_string()))?;
        Ok(Some(out))
    }
}

fn shared_names(git_dir: BorrowedFd<'_>) -> Vec<String> {
    let Ok(entries) = rustix::fs::Dir::read_from(git_dir) else { return Vec::new() };
    let names = entries.flatten().filter_map(|entry| entry.file_name().to_str().ok().map(str::to_owned));
    names.filter(|name| name.strip_prefix(PREFIX).is_some_and(|hex| hex.len() == 40)).collect()
}

/// The checksum of that second file, if an index names it in its `link` extension.
fn links_to(index: &[u8], name: &str) -> Option<ObjectId> {
    let id = ObjectId::from_hex(&name.as_bytes()[PREFIX.len()..]).ok()?;
    // Four bytes of name, four of size, then the id.
    index.windows(28).any(|at| at.starts_with(b"link") && at[8..] == *id.as_bytes()).then_some(id)
}

/// An index with the entries of `index`, and its checksum. Of its extensions it has what must be understood: with `link`, the one of a
/// second file, which has changed its checksum from the one to the other. None if that is not to be had.
fn bare(index: &[u8], link: Option<(&ObjectId, &ObjectId)>) -> Option<(Vec<u8>, ObjectId)> {
    let end = ah_rules::end_of_entries(index)?;
    let (whole, checksum) = index.split_at(index.len() - CHECKSUM);
    // Git writes none if it is told so.
    if checksum != [0; CHECKSUM] && sum(whole)?.as_bytes() != checksum {
        return None;
    }
    let mut out = whole[..end].to_vec();
    let mut rest = &whole[end..];
    let mut linked = false;
    while !rest.is_empty() {
        let size = u32::from_be_bytes(rest.get(4..8)?.try_into().ok()?);
        let (extension, after) = rest.split_at_checked(8 + size as usize)?;
        match (&extension[..4], link) {
            (b"link", Some((before, now))) if !linked && extension.get(8..28) == Some(before.as_bytes()) => {
                out.extend_from_slice(&extension[..8]);
                out.extend_from_slice(now.as_bytes());
                out.extend_from_slice(&extension[28..]);
                linked = true;
            }
            // That there are directories among the entries.
            (b"sdir", _) => out.extend_from_slice(extension),
            // Those whose name begins with a capital may be dropped.
            ([b'A'..=b'Z', ..], _) => {}
            _ => return None,
        }
        rest = after;
    }
    if linked != link.is_some() {
        return None;
    }
    let checksum = sum(&out)?;
    out.extend_from_slice(checksum.as_bytes());
    Some((out, checksum))
}

fn sum(bytes: &[u8]) -> Option<ObjectId> {
    let mut hash = gix::hash::hasher(gix::hash::Kind::Sha1);
    hash.update(bytes);
    hash.try_finalize().ok()
}

/// The copies, removed when it goes; what a kill leaves, the next writer removes with all else in that folder.
struct Copies<'a> {
    scratch: BorrowedFd<'a>,
    names: [String; 2],
}

impl Drop for Copies<'_> {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = rustix::fs::unlinkat(self.scratch, name, rustix::fs::AtFlags::empty());
        }
    }
}
