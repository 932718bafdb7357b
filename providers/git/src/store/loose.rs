//! Loose objects. The store writes none, but a person's `git gc` or `git unpack-objects` in it may leave some.

use std::io::Read;
use std::os::fd::BorrowedFd;

use ah_plugin_api::Result;
use flate2::read::ZlibDecoder;
use gix::objs::Kind;
use gix::oid;

use super::files;

/// Larger ones are not read from the store: nothing that it wrote becomes one without its owner's doing.
pub(super) const LIMIT: u64 = 1 << 32;

/// Reads a loose object of at most `limit` bytes, header included, into `out`; none if there is none.
pub(super) fn read(objects: BorrowedFd<'_>, id: &oid, limit: u64, out: &mut Vec<u8>) -> Result<Option<Kind>> {
    let hex = id.to_hex().to_string();
    let name = format!("{}/{}", &hex[..2], &hex[2..]);
    let Some((file, _)) = files::open_file(objects, &name)? else { return Ok(None) };
    let bad = || files::damaged(format!("the loose object {hex} of the store is damaged"));
    out.clear();
    let mut stream = ZlibDecoder::new(std::fs::File::from(file)).take(limit);
    stream.read_to_end(out).map_err(|_| bad())?;
    let end = out.iter().take(40).position(|&byte| byte == 0).ok_or_else(bad)?;
    let head = std::str::from_utf8(&out[..end]).map_err(|_| bad())?;
    let (kind, size) = head.split_once(' ').ok_or_else(bad)?;
    let kind = Kind::from_bytes(kind.as_bytes()).map_err(|_| bad())?;
    if size.parse() != Ok(out.len() - end - 1) {
        return Err(bad());
    }
    out.drain(..=end);
    Ok(Some(kind))
}
