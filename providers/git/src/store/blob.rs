//! Hashing a file as a blob, piece by piece.

use std::os::fd::BorrowedFd;

use ah_plugin_api::{Context, Result};
use gix::ObjectId;
use gix::objs::Kind;
use rustix::io::Errno;
use sha1::{Digest, Sha1};

use super::{files, object_header};

/// What came of reading a file of the user's: the id of its contents, or none if it had more or fewer bytes than it should; an
/// error if it could not be read, which is no fault of the store.
pub(crate) type Taken = Result<Option<ObjectId>, Errno>;

/// Bytes of a piece.
const PIECE: usize = 256 << 10;

/// The id that `size` bytes of `file` have as a blob. Its offset stays.
pub(crate) fn hash_file(file: BorrowedFd<'_>, size: u64, cx: &Context<'_>) -> Result<Taken> {
    each_piece(file, size, cx, |_, _| Ok(()))
}

/// Likewise, and hands the contents over piece by piece, the last one marked.
pub(super) fn each_piece(
    file: BorrowedFd<'_>,
    size: u64,
    cx: &Context<'_>,
    mut each: impl FnMut(&[u8], bool) -> Result<()>,
) -> Result<Taken> {
    let mut buffer = vec![0; PIECE];
    let mut hash = Sha1::new();
    hash.update(object_header(Kind::Blob, size));
    let mut at = 0;
    while at < size {
        cx.check_cancelled()?;
        let want = usize::try_from(size - at).unwrap_or(usize::MAX).min(PIECE);
        match files::pread_full(file, &mut buffer[..want], at) {
            Ok(read) if read == want => {}
            Ok(_) => return Ok(Ok(None)),
            Err(errno) => return Ok(Err(errno)),
        }
        at += want as u64;
        hash.update(&buffer[..want]);
        each(&buffer[..want], at == size)?;
    }
    Ok(files::pread_full(file, &mut buffer[..1], size)
        .map(|more| (more == 0).then(|| ObjectId::Sha1(hash.finalize().into()))))
}
