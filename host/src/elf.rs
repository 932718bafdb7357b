//! A look at a file before the system's loader runs its code: a whole shared library, for this machine, with our symbol?
//!
//! The loader maps a file that is cut off without complaint and the process dies of SIGBUS later; and it runs the constructors of
//! any library before one can ask for a symbol. Source of the offsets: elf(5).

use std::fs::File;
use std::os::unix::fs::FileExt;

use ah_plugin_api::abi::{OpenError, SYMBOL};

use crate::report::Fault;

const ET_DYN: u16 = 3;
const PT_LOAD: u32 = 1;
const SHT_DYNSYM: u32 = 11;
/// A table of dynamic symbol names beyond this is not looked into; the loader will tell.
const MAX_NAMES: u64 = 16 << 20;

/// Refuses what need not be loaded to be refused.
pub(crate) fn check(file: &File) -> Result<(), Fault> {
    let bad = |why: &str| Fault::Open(OpenError::NotALibrary(why.to_owned()));
    let size = file.metadata().map_err(Fault::Unreadable)?.len();
    let mut header = [0_u8; 64];
    file.read_exact_at(&mut header, 0).map_err(|_| bad("it is too short to be one"))?;
    if &header[..4] != b"\x7fELF" {
        return Err(bad("it has no ELF header"));
    }
    let word = if cfg!(target_pointer_width = "64") { 2 } else { 1 };
    let order = if cfg!(target_endian = "little") { 1 } else { 2 };
    let machine = machine();
    if header[4] != word || header[5] != order || machine.is_some_and(|machine| machine != u16_at(&header, 18)) {
        return Err(bad("it is for another kind of machine"));
    }
    if u16_at(&header, 16) != ET_DYN {
        return Err(bad("it is not a shared object"));
    }
    if word != 2 {
        // The fields below are those of 64-bit files; 32-bit ones are left to the loader.
        return Ok(());
    }
    whole(file, &header, size).ok_or_else(|| bad("it is cut off"))?;
    match names(file, &header, size) {
        Some(names) if !contains(&names, SYMBOL.as_bytes()) => Err(OpenError::NotOurs.into()),
        // Without section headers there is nothing to look into.
        Some(_) | None => Ok(()),
    }
}

/// `Some` if everything that the loader would map is in the file.
fn whole(file: &File, header: &[u8], size: u64) -> Option<()> {
    let (start, entry, count) = (u64_at(header, 32), u16_at(header, 54), u16_at(header, 56));
    let mut segment = [0_u8; 56];
    for index in 0..count {
        file.read_exact_at(&mut segment, start.checked_add(u64::from(entry) * u64::from(index))?).ok()?;
        if u32_at(&segment, 0) == PT_LOAD && u64_at(&segment, 8).checked_add(u64_at(&segment, 32))? > size {
            return None;
        }
    }
    Some(())
}

/// The names of the dynamic symbols, if the file still has its section headers.
fn names(file: &File, header: &[u8], size: u64) -> Option<Vec<u8>> {
    let (start, entry, count) = (u64_at(header, 40), u16_at(header, 58), u16_at(header, 60));
    let section = |index: u16| {
        let mut section = [0_u8; 64];
        let at = start.checked_add(u64::from(entry) * u64::from(index))?;
        file.read_exact_at(&mut section, at).ok()?;
        Some(section)
    };
    for index in 0..count {
        let symbols = section(index)?;
        if u32_at(&symbols, 4) == SHT_DYNSYM {
            let strings = section(u16::try_from(u32_at(&symbols, 40)).ok()?)?;
            let (at, length) = (u64_at(&strings, 24), u64_at(&strings, 32));
            if length > size.min(MAX_NAMES) {
                return None;
            }
            let mut names = vec![0; usize::try_from(length).ok()?];
            file.read_exact_at(&mut names, at).ok()?;
            return Some(names);
        }
    }
    None
}

/// Whether `name` is one of the NUL-terminated `names`, or the end of one: an answer good enough to refuse by.
fn contains(names: &[u8], name: &[u8]) -> bool {
    names.split(|&byte| byte == 0).any(|one| one.ends_with(name))
}

/// The machine number of this program's own architecture, where it is known here.
fn machine() -> Option<u16> {
    Some(match std::env::consts::ARCH {
        "x86" => 3,
        "powerpc64" => 21,
        "s390x" => 22,
        "arm" => 40,
        "x86_64" => 62,
        "aarch64" => 183,
        "riscv64" => 243,
        "loongarch64" => 258,
        _ => return None,
    })
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    let mut field = [0; 2];
    field.copy_from_slice(&bytes[at..at + 2]);
    u16::from_ne_bytes(field)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut field = [0; 4];
    field.copy_from_slice(&bytes[at..at + 4]);
    u32::from_ne_bytes(field)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut field = [0; 8];
    field.copy_from_slice(&bytes[at..at + 8]);
    u64::from_ne_bytes(field)
}
