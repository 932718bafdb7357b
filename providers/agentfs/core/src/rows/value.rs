//! Values: numbers as LEB128, signed ones zigzag, bytes with their length before them. The first byte of a versioned row says
//! whether there is anything: [`GONE`] hides older versions, [`WHITEOUT`] a name of the lower directory too, [`HERE`] is followed by the value.

use crate::error::{Error, Result};
use crate::rows::chunk::BLOCK;
use crate::types::{Attr, Ino, Kind, Time};

/// Nothing is there, and nothing of the lower directory is hidden by that.
pub(crate) const GONE: u8 = 0;
/// A value follows.
pub(crate) const HERE: u8 = 1;
/// Nothing is there, and a name of the lower directory is hidden.
pub(crate) const WHITEOUT: u8 = 2;
/// Behind [`WHITEOUT`]: what is hidden came later, and was never shown. Older programs do not look at it.
pub(crate) const CAME: u8 = 1;

/// Builds a value.
#[derive(Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn new(tag: u8) -> Self {
        Self(vec![tag])
    }

    pub(crate) fn number(&mut self, mut number: u64) -> &mut Self {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
        self
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn time(&mut self, time: Time) -> &mut Self {
        self.number((time.secs << 1 ^ time.secs >> 63) as u64).number(u64::from(time.nanos))
    }
}

/// Takes a value apart.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    /// Of a row that says that it is there; `None` if it says that it is not.
    pub(crate) fn here(row: &'a [u8]) -> Option<Self> {
        row.split_first().filter(|(tag, _)| **tag == HERE).map(|(_, rest)| Self(rest))
    }

    pub(crate) fn number(&mut self) -> Result<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first().ok_or_else(short)?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(Error::corrupt("a number in a row has no end"))
    }

    pub(crate) fn small(&mut self) -> Result<u32> {
        u32::try_from(self.number()?).map_err(|_| Error::corrupt("a number in a row is too large"))
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8]> {
        let length = usize::try_from(self.number()?).map_err(|_| short())?;
        let (bytes, rest) = self.0.split_at_checked(length).ok_or_else(short)?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(crate) fn time(&mut self) -> Result<Time> {
        let secs = self.number()?;
        Ok(Time { secs: (secs >> 1) as i64 ^ -((secs & 1) as i64), nanos: self.small()? })
    }
}

fn short() -> Error {
    Error::corrupt("a row is too short")
}

/// What a file of the lower directory was when it was last known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin {
    /// Where, relative to the lower directory.
    pub(crate) path: Vec<u8>,
    /// The device: 0 for that of the lower directory itself, whose number may differ after a boot.
    pub(crate) device: u64,
    pub(crate) ino: u64,
    pub(crate) size: u64,
    pub(crate) mtime: Time,
    pub(crate) ctime: Time,
    pub(crate) btime: Time,
}

/// What a file takes on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Takes {
    /// Blocks that its chunks name.
    pub(crate) stored: u64,
    /// Units of 512 bytes that the file below took when it was last looked at.
    pub(crate) below: u64,
}

/// The row of an inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Inode {
    pub(crate) kind: Kind,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) nlink: u32,
    pub(crate) size: u64,
    pub(crate) rdev: u64,
    pub(crate) atime: Time,
    pub(crate) mtime: Time,
    pub(crate) ctime: Time,
    pub(crate) btime: Time,
    /// Of a symlink.
    pub(crate) target: Vec<u8>,
    /// Bytes before this that no chunk says anything about are those of the origin; the others are zeros.
    pub(crate) lower_limit: u64,
    /// The file or directory below. A directory without one is opaque.
    pub(crate) origin: Option<Origin>,
    /// The directory in which it got its name last, 0 if that is not known. There may be other names, and this one may be gone.
    pub(crate) parent: Ino,
    /// Of a file; `None` if it was not counted from the beginning.
    pub(crate) takes: Option<Takes>,
}

impl Inode {
    /// The state of the file below that is read there: device, inode, size, times of modification and change.
    pub(crate) fn came_from(&self) -> Option<(u64, u64, u64, Time, Time)> {
        let origin = self.origin.as_ref().filter(|_| self.kind == Kind::File && self.lower_limit > 0)?;
        Some((origin.device, origin.ino, origin.size, origin.mtime, origin.ctime))
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new(HERE);
        writer.number(self.kind as u64).number(u64::from(self.mode)).number(u64::from(self.uid));
        writer.number(u64::from(self.gid)).number(u64::from(self.nlink)).number(self.size).number(self.rdev);
        writer.time(self.atime).time(self.mtime).time(self.ctime).time(self.btime);
        writer.bytes(&self.target).number(self.lower_limit);
        match &self.origin {
            None => writer.number(0),
            Some(origin) => writer
                .number(1)
                .bytes(&origin.path)
                .number(origin.device)
                .number(origin.ino)
                .number(origin.size)
                .time(origin.mtime)
                .time(origin.ctime)
                .time(origin.btime),
        };
        writer.number(self.parent);
        if let Some(takes) = self.takes {
            writer.number(takes.stored).number(takes.below);
        }
        writer.0
    }

    /// `None`: the row says that there is none.
    pub(crate) fn decode(row: &[u8]) -> Result<Option<Self>> {
        let Some(mut reader) = Reader::here(row) else { return Ok(None) };
        let reader = &mut reader;
        let kind = u8::try_from(reader.number()?).ok().and_then(Kind::from_u8);
        Ok(Some(Self {
            kind: kind.ok_or_else(|| Error::corrupt("an inode is of no known kind"))?,
            mode: reader.small()?,
            uid: reader.small()?,
            gid: reader.small()?,
            nlink: reader.small()?,
            size: reader.number()?,
            rdev: reader.number()?,
            atime: reader.time()?,
            mtime: reader.time()?,
            ctime: reader.time()?,
            btime: reader.time()?,
            target: reader.bytes()?.to_vec(),
            lower_limit: reader.number()?,
            origin: match reader.number()? {
                0 => None,
                _ => Some(Origin {
                    path: reader.bytes()?.to_vec(),
                    device: reader.number()?,
                    ino: reader.number()?,
                    size: reader.number()?,
                    mtime: reader.time()?,
                    ctime: reader.time()?,
                    btime: reader.time()?,
                }),
            },
            // Rows that were written before there were such numbers end here, or behind the next.
            parent: if reader.0.is_empty() { 0 } else { reader.number()? },
            takes: match reader.0 {
                [] => None,
                _ => Some(Takes { stored: reader.number()?, below: reader.number()? }),
            },
        }))
    }

    /// In units of 512 bytes. Never none of what is not empty: programs take that for zeros alone without looking (GNU tar), and what a mapping holds need not be here yet.
    fn blocks(&self) -> u64 {
        let Some(takes) = self.takes else { return self.size.div_ceil(512) };
        let of = |bytes: u64| bytes.div_ceil(BLOCK) * (BLOCK / 512);
        let below = takes.below.min(of(self.lower_limit));
        takes.stored.saturating_mul(BLOCK / 512).saturating_add(below).min(of(self.size)).max(u64::from(self.size > 0))
    }

    pub(crate) fn attr(&self, ino: Ino) -> Attr {
        Attr {
            ino,
            kind: self.kind,
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            nlink: self.nlink,
            size: self.size,
            blocks: self.blocks(),
            rdev: self.rdev,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            btime: self.btime,
        }
    }
}

/// What a name leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) ino: Ino,
    pub(crate) kind: Kind,
    /// Whether the name was, or may have been, there below when this line, or one above it, first wrote it: what is there below now need not have come later.
    pub(crate) hides: bool,
}

impl Entry {
    pub(crate) fn encode(self) -> Vec<u8> {
        let mut writer = Writer::new(HERE);
        writer.number(self.kind as u64).number(self.ino).number(u64::from(self.hides));
        writer.0
    }

    /// `None`: the row says that there is none.
    pub(crate) fn decode(row: &[u8]) -> Result<Option<Self>> {
        let Some(mut reader) = Reader::here(row) else { return Ok(None) };
        let kind = u8::try_from(reader.number()?).ok().and_then(Kind::from_u8);
        Ok(Some(Self {
            kind: kind.ok_or_else(|| Error::corrupt("a name leads to no known kind"))?,
            ino: reader.number()?,
            // Rows that were written before there was such a number end here.
            hides: reader.0.is_empty() || reader.number()? != 0,
        }))
    }
}

/// Whether a whiteout hides what was there, or was shown.
pub(crate) fn hides_what_was_there(row: &[u8]) -> bool {
    row.get(1) != Some(&CAME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_comes_back_as_it_was() {
        let inode = Inode {
            kind: Kind::File,
            mode: 0o4755,
            uid: u32::MAX,
            gid: 0,
            nlink: 3,
            size: u64::MAX >> 2,
            rdev: 0,
            atime: Time { secs: -1, nanos: 999_999_999 },
            mtime: Time { secs: i64::MIN, nanos: 0 },
            ctime: Time { secs: i64::MAX, nanos: 1 },
            btime: Time::default(),
            target: vec![0xff, 0],
            lower_limit: 12,
            origin: Some(Origin {
                path: b"a/b".to_vec(),
                device: 0,
                ino: 7,
                size: 1,
                mtime: Time::default(),
                ctime: Time::default(),
                btime: Time::default(),
            }),
            parent: 5,
            takes: Some(Takes { stored: 7, below: 24 }),
        };
        let row = inode.encode();
        assert_eq!(Inode::decode(&row).unwrap().as_ref(), Some(&inode));
        // As it was written before what it takes was, and before the parent was.
        let older = Inode { takes: None, ..inode };
        assert_eq!(Inode::decode(&row[..row.len() - 2]).unwrap().as_ref(), Some(&older));
        assert_eq!(older.encode(), row[..row.len() - 2]);
        assert_eq!(Inode::decode(&row[..row.len() - 3]).unwrap(), Some(Inode { parent: 0, ..older }));
        for cut in (1..row.len() - 3).chain([row.len() - 1]) {
            assert!(matches!(Inode::decode(&row[..cut]), Err(Error::Corrupt(_))), "cut at {cut}");
        }
        assert_eq!(Inode::decode(&[GONE]).unwrap(), None);
    }
}
