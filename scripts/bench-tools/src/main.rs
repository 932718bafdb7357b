//! Generators and baselines for `scripts/bench`: makes a tree of small text files, edits some of them, and looks at all of
//! them with `statx` from two threads, which is the least that any tool that finds changes by attributes must do.
//!
//! Everything is deterministic: the same arguments make the same bytes.

use std::fs;
use std::io::Write as _;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, openat, statx};

mod agentfs;
mod filesystem;

const FILES_A_DIR: usize = 100;
const WORDS: [&str; 16] = [
    "snapshot", "branch", "seek", "tree", "entry", "return", "match", "value", "agent", "moment", "fn", "let", "impl",
    "mount", "clone", "lease",
];

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["gen", dir, files] => generate(Path::new(dir), files.parse()?),
        ["change", dir, files, count, seed] => change(Path::new(dir), files.parse()?, count.parse()?, seed.parse()?),
        ["list", dir, out] => list(Path::new(dir), Path::new(out)),
        ["statx", dir, list] => statx_all(Path::new(dir), Path::new(list)),
        ["filesystem", mechanism @ ("btrfs" | "zfs"), dir, ah, files, snapshots, runs, user @ ..] => {
            filesystem::run(&filesystem::Options {
                mechanism,
                dir: Path::new(dir),
                ah: Path::new(ah),
                files: files.parse()?,
                snapshots: snapshots.parse()?,
                runs: runs.parse()?,
                user: user.first().map(|user| user.parse()).transpose()?,
            })
        }
        ["agentfs", dir, files, depth] => agentfs::run(Path::new(dir), files.parse()?, depth.parse()?),
        ["calls", what @ ("open" | "stat"), file, count] => agentfs::calls(what, Path::new(file), count.parse()?),
        _ => bail!(
            "usage: ah-bench-tools gen DIR FILES | change DIR FILES COUNT SEED | list DIR OUT | statx DIR LIST\n\
             | filesystem btrfs|zfs DIR AH FILES SNAPSHOTS RUNS [UID] | agentfs DIR FILES DEPTH | calls open|stat FILE COUNT\n\
             gen makes FILES files of about 1 KiB; change edits one line in each of COUNT of them, spread evenly;\n\
             list writes the names of all files, NUL-separated; statx looks at each of them from two threads"
        ),
    }
}

/// A small, fast, well-spread generator (SplitMix64, Steele et al. 2014); quality beyond that does not matter here.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        for _ in 0..6 {
            let word = WORDS[usize::try_from(self.next() % 16).unwrap_or(0)];
            line += &format!("{word}_{:x} ", self.next() % 4096);
        }
        line.push('\n');
        line
    }
}

fn file(dir: &Path, number: usize) -> PathBuf {
    let folder = number / FILES_A_DIR;
    dir.join(format!("d{:02}/s{:02}/f{:02}.txt", folder / 32, folder % 32, number % FILES_A_DIR))
}

fn generate(dir: &Path, files: usize) -> Result<()> {
    for number in 0..files {
        let path = file(dir, number);
        if number % FILES_A_DIR == 0 {
            fs::create_dir_all(path.parent().context("a file has a parent")?)?;
        }
        let mut random = Random(number as u64);
        let lines = 8 + random.next() % 24;
        let text: String = (0..lines).map(|_| random.line()).collect();
        fs::write(&path, text).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

fn change(dir: &Path, files: usize, count: usize, seed: u64) -> Result<()> {
    let mut random = Random(seed ^ 0xA5A5_5A5A);
    let offset = usize::try_from(random.next())? % files;
    for n in 0..count {
        let path = file(dir, (offset + n * files / count) % files);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let mut lines: Vec<String> = text.lines().map(|line| format!("{line}\n")).collect();
        let at = usize::try_from(random.next())? % lines.len();
        lines[at] = random.line();
        fs::write(&path, lines.concat())?;
    }
    Ok(())
}

fn list(dir: &Path, out: &Path) -> Result<()> {
    let mut names = Vec::new();
    let mut pending = vec![dir.to_owned()];
    while let Some(next) = pending.pop() {
        for entry in fs::read_dir(&next)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                if entry.file_name() != ".git" {
                    pending.push(entry.path());
                }
            } else {
                names.push(entry.path().strip_prefix(dir)?.as_os_str().as_bytes().to_vec());
            }
        }
    }
    names.sort();
    let mut file = fs::File::create(out)?;
    file.write_all(&names.join(&0))?;
    Ok(())
}

fn statx_all(dir: &Path, list: &Path) -> Result<()> {
    let names = fs::read(list)?;
    let names: Vec<&[u8]> = names.split(|&b| b == 0).collect();
    let root = openat(CWD, dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let halves = names.split_at(names.len() / 2);
    let look = |names: &[&[u8]]| -> Result<u64> {
        let mut bytes = 0;
        for name in names {
            bytes += statx(root.as_fd(), *name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS)?.stx_size;
        }
        Ok(bytes)
    };
    let total = std::thread::scope(|scope| {
        let other = scope.spawn(|| look(halves.1));
        Ok::<u64, anyhow::Error>(look(halves.0)? + other.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??)
    })?;
    println!("{} files, {total} bytes", names.len());
    Ok(())
}
