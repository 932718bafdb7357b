//! A split index made whole: most of its entries are in a second file, `sharedindex.<id>`, which a snapshot does not hold.
//!
//! Both files are copied first and read from the copy: the reader maps them, and theirs may be cut short at any moment.

use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use ah_plugin_api::{Error, ErrorKind, Result};

use crate::repository::{Repository, read_file};

const PREFIX: &str = "sharedindex.";
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
        let Some(name) = names.into_iter().find(|name| links_to(&main, name)) else { return Ok(None) };
        let Ok(Some(shared)) = read_file(&self.git.git_dir, &name, LIMIT) else {
            return Err(failed("whose second file cannot be read"));
        };
        if ![&main, &shared].into_iter().all(|half| ah_rules::is_index(half)) {
            return Err(failed("which is damaged"));
        }
        let copies = Copies { scratch, names: [format!("index-of-{name}"), name] };
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
            .map_err(|error| failed("which is damaged").context(error.to_string()))?;
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

/// Whether an index names that second file in its `link` extension.
fn links_to(index: &[u8], name: &str) -> bool {
    let Ok(id) = gix::ObjectId::from_hex(&name.as_bytes()[PREFIX.len()..]) else { return false };
    // Four bytes of name, four of size, then the id.
    index.windows(28).any(|at| at.starts_with(b"link") && at[8..] == *id.as_bytes())
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
