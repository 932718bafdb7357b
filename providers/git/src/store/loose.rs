//! Loose objects. The store writes none, but a person's `git gc` or `git unpack-objects` in it may leave some.

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};

use ah_plugin_api::{Context, Result};
use flate2::read::ZlibDecoder;
use flate2::{Decompress, FlushDecompress, Status};
use gix::objs::Kind;
use gix::oid;
use sha1::{Digest, Sha1};

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

/// Whether a file is, to the last bit, the loose object `id`. What cannot be read is not; neither is what has more than [`LIMIT`] bytes.
pub(super) fn is_whole(dir: impl AsFd, name: &str, id: &oid, cx: &Context<'_>) -> Result<bool> {
    let Ok(Some((file, _))) = files::open_file(dir, name) else { return Ok(false) };
    let (mut zlib, mut hash) = (Decompress::new(true), Sha1::new());
    let (mut input, mut output) = (vec![0; 16 << 10], vec![0; 64 << 10]);
    while zlib.total_out() <= LIMIT {
        cx.check_cancelled()?;
        let read = files::pread_full(&file, &mut input, zlib.total_in()).unwrap_or(0);
        let before = zlib.total_out();
        let status = zlib.decompress(&input[..read], &mut output, FlushDecompress::None);
        hash.update(&output[..(zlib.total_out() - before) as usize]);
        match status {
            Ok(Status::StreamEnd) => return Ok(hash.finalize()[..] == *id.as_bytes()),
            Ok(Status::Ok) if read > 0 => {}
            _ => return Ok(false),
        }
    }
    Ok(false)
}
