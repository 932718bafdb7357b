//! Loose objects of a repository, read without Git.

use std::fs::File;
use std::io::Read;

use ah_plugin_api::RelPath;
use flate2::read::ZlibDecoder;

use crate::restore::at::Tree;

/// Whether that is an object's id as Git writes it whole.
pub(crate) fn is_id(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// What kind of object that is in the repository in the directory `git`, and of its contents the beginning, `most` bytes of it; none if it is not a loose one.
pub(super) fn object(tree: Tree<'_>, git: &RelPath, id: &str, most: u64) -> Option<(String, Vec<u8>)> {
    if !is_id(id) {
        return None;
    }
    let (folder, name) = id.split_at(2);
    let path = git.join(b"objects").ok()?.join(folder.as_bytes()).ok()?.join(name.as_bytes()).ok()?;
    let mut bytes = Vec::new();
    ZlibDecoder::new(File::from(tree.file(&path).ok()?)).take(most).read_to_end(&mut bytes).ok()?;
    let end = bytes.iter().position(|&byte| byte == 0)?;
    let kind = std::str::from_utf8(&bytes[..end]).ok()?.split_once(' ')?.0.to_owned();
    Some((kind, bytes.split_off(end + 1)))
}
