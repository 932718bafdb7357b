//! A disk that forgets what was not flushed when its power is cut.
//!
//! QEMU reaches it as an NBD server over a Unix socket. What the guest writes is held in memory, block by block with every version
//! since the last flush; a flush carries the newest versions into the file. At a cut each block that was written since then comes to
//! rest, independently of all others, at one of its versions or at what it was before: real disks reorder in just this way. What is
//! not modelled: blocks of 4 KiB torn in themselves.
//!
//! Of the protocol only what QEMU speaks is here: <https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::random::Random;

const BLOCK: u64 = 4096;
/// Versions of a block that are kept until the next flush; of more, the one before the newest is forgotten.
const VERSIONS: usize = 4;

const MAGIC: u64 = 0x4e42_444d_4147_4943;
const OPTION: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
const REQUEST: u32 = 0x2560_9513;
const REPLY: u32 = 0x6744_6698;
const HAS_FLAGS_FLUSH_FUA: u16 = 1 | 4 | 8;
const EINVAL: u32 = 22;
/// The longest request that QEMU makes.
const LONGEST: u32 = 64 << 20;

/// A file that is an empty disk of so many bytes with one partition on it: without udev, ZFS can make none of its own.
pub fn blank(path: &Path, size: u64) -> io::Result<File> {
    const START: u32 = 2048;
    let file = File::options().read(true).write(true).create_new(true).open(path)?;
    file.set_len(size)?;
    let sectors = u32::try_from(size / 512).map_err(io::Error::other)? - START;
    let mut table = [0; 66];
    table[..8].copy_from_slice(&[0, 0xfe, 0xff, 0xff, 0x83, 0xfe, 0xff, 0xff]);
    table[8..12].copy_from_slice(&START.to_le_bytes());
    table[12..16].copy_from_slice(&sectors.to_le_bytes());
    table[64..].copy_from_slice(&[0x55, 0xaa]);
    file.write_all_at(&table, 446)?;
    Ok(file)
}

/// What one power cut did to a disk.
#[derive(Debug, Clone, Copy, Default)]
pub struct Loss {
    /// Blocks that had been written and not flushed.
    pub unflushed: usize,
    /// Those of them that came to rest at something older than the newest.
    pub lost: usize,
}

#[derive(Debug)]
struct State {
    file: File,
    size: u64,
    pending: HashMap<u64, Vec<Box<[u8]>>>,
}

/// A disk.
#[derive(Debug)]
pub struct Disk {
    state: Arc<Mutex<State>>,
    server: Option<JoinHandle<()>>,
}

impl Disk {
    /// An empty disk, of a size in bytes, kept in `file`.
    pub fn new(file: &Path, size: u64) -> io::Result<Self> {
        let file = blank(file, size)?;
        Ok(Self { state: Arc::new(Mutex::new(State { file, size, pending: HashMap::new() })), server: None })
    }

    /// Serves one connection, on a new socket.
    pub fn serve(&mut self, socket: &Path) -> io::Result<()> {
        let listener = UnixListener::bind(socket)?;
        let state = Arc::clone(&self.state);
        self.server = Some(std::thread::spawn(move || {
            if let Ok((stream, _)) = listener.accept() {
                // It ends when QEMU does.
                let _ = serve(&stream, &state);
            }
        }));
        Ok(())
    }

    /// What remains after the power went. QEMU is gone by then.
    pub fn cut(&mut self, random: &mut Random) -> Loss {
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
        self.state.lock().unwrap_or_else(PoisonError::into_inner).cut(random)
    }
}

impl State {
    fn cut(&mut self, random: &mut Random) -> Loss {
        let mut loss = Loss { unflushed: self.pending.len(), lost: 0 };
        let mut pending: Vec<_> = self.pending.drain().collect();
        pending.sort_by_key(|(block, _)| *block);
        // Sometimes everything is lost, sometimes nothing, mostly something.
        let chance = [0, 10, 50, 90, 100][usize::try_from(random.below(5)).unwrap_or(0)];
        for (block, versions) in pending {
            if random.below(100) < chance {
                let kept = usize::try_from(random.below(versions.len() as u64 + 1)).unwrap_or(0);
                loss.lost += usize::from(kept < versions.len());
                if let Some(version) = kept.checked_sub(1) {
                    let _ = self.file.write_all_at(&versions[version], block * BLOCK);
                }
            } else if let Some(newest) = versions.last() {
                let _ = self.file.write_all_at(newest, block * BLOCK);
            }
        }
        loss
    }

    fn flush(&mut self) -> io::Result<()> {
        for (block, versions) in self.pending.drain() {
            if let Some(newest) = versions.last() {
                self.file.write_all_at(newest, block * BLOCK)?;
            }
        }
        Ok(())
    }

    /// The pieces of a range, block by block: the block, where in it, how long, and where in the range.
    fn pieces(offset: u64, length: usize) -> impl Iterator<Item = (u64, usize, usize, usize)> {
        let mut done = 0;
        std::iter::from_fn(move || {
            let at = offset + done as u64;
            let inside = usize::try_from(at % BLOCK).unwrap_or(0);
            let count = (length - done).min(usize::try_from(BLOCK).unwrap_or(0) - inside);
            let piece = (at / BLOCK, inside, count, done);
            done += count;
            (count > 0).then_some(piece)
        })
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, offset)?;
        for (block, inside, count, at) in Self::pieces(offset, into.len()) {
            if let Some(newest) = self.pending.get(&block).and_then(|versions| versions.last()) {
                into[at..at + count].copy_from_slice(&newest[inside..inside + count]);
            }
        }
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8], through: bool) -> io::Result<()> {
        for (block, inside, count, at) in Self::pieces(offset, bytes.len()) {
            let mut content = vec![0; usize::try_from(BLOCK).unwrap_or(0)].into_boxed_slice();
            if count < content.len() {
                self.read(block * BLOCK, &mut content)?;
            }
            content[inside..inside + count].copy_from_slice(&bytes[at..at + count]);
            if through {
                self.pending.remove(&block);
                self.file.write_all_at(&content, block * BLOCK)?;
            } else {
                let versions = self.pending.entry(block).or_default();
                if versions.len() == VERSIONS {
                    versions.remove(VERSIONS - 2);
                }
                versions.push(content);
            }
        }
        Ok(())
    }
}

fn serve(stream: &UnixStream, state: &Mutex<State>) -> io::Result<()> {
    let (mut from, mut to) = (io::BufReader::new(stream), BufWriter::new(stream));
    if !greet(&mut from, &mut to, state)? {
        return Ok(());
    }
    let mut buffer = Vec::new();
    loop {
        let magic = u32::from_be_bytes(take(&mut from)?);
        let [flags, kind] = [take(&mut from)?, take(&mut from)?].map(u16::from_be_bytes);
        let cookie: [u8; 8] = take(&mut from)?;
        let offset = u64::from_be_bytes(take(&mut from)?);
        let length = u32::from_be_bytes(take(&mut from)?);
        if magic != REQUEST || length > LONGEST {
            return Err(io::Error::other("this is not a request"));
        }
        buffer.resize(length as usize, 0);
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        let result = match kind {
            0 => state.read(offset, &mut buffer),
            1 => {
                from.read_exact(&mut buffer)?;
                state.write(offset, &buffer, flags & 1 != 0)
            }
            2 => return Ok(()),
            3 => state.flush(),
            _ => Err(io::Error::other("not offered")),
        };
        drop(state);
        to.write_all(&REPLY.to_be_bytes())?;
        to.write_all(&if result.is_ok() { 0 } else { EINVAL }.to_be_bytes())?;
        to.write_all(&cookie)?;
        if kind == 0 && result.is_ok() {
            to.write_all(&buffer)?;
        }
        to.flush()?;
    }
}

/// The handshake; false if the client only looked.
fn greet(from: &mut impl Read, to: &mut impl Write, state: &Mutex<State>) -> io::Result<bool> {
    to.write_all(&MAGIC.to_be_bytes())?;
    to.write_all(&OPTION.to_be_bytes())?;
    // Fixed newstyle, without the zeroes of old.
    to.write_all(&3u16.to_be_bytes())?;
    to.flush()?;
    let _client_flags: [u8; 4] = take(from)?;
    loop {
        let magic = u64::from_be_bytes(take(from)?);
        let option = u32::from_be_bytes(take(from)?);
        let length = u32::from_be_bytes(take(from)?);
        if magic != OPTION || length > 1 << 16 {
            return Err(io::Error::other("this is not an option"));
        }
        let mut data = vec![0; length as usize];
        from.read_exact(&mut data)?;
        let mut reply = |kind: u32, data: &[u8]| -> io::Result<()> {
            to.write_all(&OPTION_REPLY.to_be_bytes())?;
            to.write_all(&option.to_be_bytes())?;
            to.write_all(&kind.to_be_bytes())?;
            to.write_all(&u32::try_from(data.len()).unwrap_or(0).to_be_bytes())?;
            to.write_all(data)?;
            to.flush()
        };
        match option {
            // Abort.
            2 => {
                reply(1, &[])?;
                return Ok(false);
            }
            // Info and go.
            6 | 7 => {
                let size = state.lock().unwrap_or_else(PoisonError::into_inner).size;
                let mut export = 0u16.to_be_bytes().to_vec();
                export.extend(size.to_be_bytes());
                export.extend(HAS_FLAGS_FLUSH_FUA.to_be_bytes());
                reply(3, &export)?;
                reply(1, &[])?;
                if option == 7 {
                    return Ok(true);
                }
            }
            // Everything else is something that need not be known.
            _ => reply(1 << 31 | 1, &[])?,
        }
    }
}

fn take<const N: usize>(from: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk() -> (tempfile::TempDir, Disk) {
        let folder = tempfile::tempdir().unwrap();
        let disk = Disk::new(&folder.path().join("disk"), 1 << 20).unwrap();
        (folder, disk)
    }

    fn content(disk: &Disk, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        disk.state.lock().unwrap().read(offset, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn what_was_flushed_survives_every_cut_and_the_rest_only_some() {
        let (mut kept, mut gone) = (0, 0);
        for seed in 0..200 {
            let (_folder, mut disk) = disk();
            {
                let mut state = disk.state.lock().unwrap();
                state.write(100, &[1; 10_000], false).unwrap();
                state.flush().unwrap();
                state.write(20_000, &[2; 512], true).unwrap();
                state.write(100, &[3; 10_000], false).unwrap();
                state.write(40_960, &[4; 512], false).unwrap();
            }
            assert_eq!(content(&disk, 100, 10_000), [3; 10_000], "the newest is read while there is power");
            let loss = disk.cut(&mut Random::new(seed));
            assert_eq!(loss.unflushed, 4);
            assert_eq!(content(&disk, 20_000, 512), [2; 512], "written through");
            let old = content(&disk, 100, 10_000);
            assert!(old.iter().all(|byte| [1, 3].contains(byte)), "flushed, or newer");
            match content(&disk, 40_960, 512)[0] {
                4 => kept += 1,
                0 => gone += 1,
                _ => panic!(),
            }
        }
        assert!(kept > 20 && gone > 20, "{kept} kept, {gone} gone");
    }

    #[test]
    fn a_client_that_speaks_the_protocol_reads_what_it_wrote() {
        let (folder, mut disk) = disk();
        let socket = folder.path().join("socket");
        disk.serve(&socket).unwrap();
        let mut client = UnixStream::connect(&socket).unwrap();
        let mut greeting = [0; 18];
        client.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        client.write_all(&3u32.to_be_bytes()).unwrap();
        client.write_all(b"IHAVEOPT\0\0\0\x08\0\0\0\0").unwrap();
        let mut refusal = [0; 20];
        client.read_exact(&mut refusal).unwrap();
        assert_eq!(refusal[12..16], [0x80, 0, 0, 1]);
        client.write_all(b"IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0").unwrap();
        let mut export = [0; 20 + 12 + 20];
        client.read_exact(&mut export).unwrap();
        assert_eq!(export[22..30], (1u64 << 20).to_be_bytes());
        let mut call = |kind: u16, offset: u64, length: u32, data: &[u8], answer: usize| {
            client.write_all(&REQUEST.to_be_bytes()).unwrap();
            client.write_all(&[0, 0]).unwrap();
            client.write_all(&kind.to_be_bytes()).unwrap();
            client.write_all(b"cookie!!").unwrap();
            client.write_all(&offset.to_be_bytes()).unwrap();
            client.write_all(&length.to_be_bytes()).unwrap();
            client.write_all(data).unwrap();
            let mut reply = vec![0; 16 + answer];
            client.read_exact(&mut reply).unwrap();
            assert_eq!(&reply[8..16], b"cookie!!");
            (reply[7], reply[16..].to_vec())
        };
        assert_eq!(call(1, 4000, 300, &[7; 300], 0).0, 0);
        assert_eq!(call(3, 0, 0, &[], 0).0, 0);
        assert_eq!(call(0, 4000, 300, &[], 300), (0, vec![7; 300]));
        assert_ne!(call(4, 0, 4096, &[], 0).0, 0, "what was not offered is refused");
    }
}
