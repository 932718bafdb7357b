//! The folder in which Claude Code keeps the sessions of a directory.

use std::path::{Path, PathBuf};

use ah_plugin_api::{Error, ErrorKind, Result};

use crate::transcript::Destination;

/// Longest name that is used as it is; a longer one is cut and gets a hash.
const LONGEST_NAME: usize = 200;

/// The folder for sessions in `to.cwd`, which need not exist.
pub(super) fn project(to: &Destination<'_>) -> Result<PathBuf> {
    if !to.cwd.is_absolute() {
        let message = format!("{} is not an absolute path", to.cwd.display());
        return Err(Error::new(ErrorKind::InvalidArgument, message));
    }
    // The program asks the kernel where it is, which answers without symlinks.
    let cwd = std::fs::canonicalize(to.cwd).unwrap_or_else(|_| to.cwd.to_path_buf());
    Ok(to.home.claude.join("projects").join(name_of(&cwd)))
}

/// The folder's name: each UTF-16 unit that is not an ASCII letter or digit becomes `-`. What is longer than 200 is cut there and gets a
/// 32-bit hash of the path in base 36, as the program's source has it (2.1.197).
pub(super) fn name_of(cwd: &Path) -> String {
    let cwd = cwd.to_string_lossy();
    let units: Vec<u16> = cwd.encode_utf16().collect();
    let plain = |unit: &u16| u8::try_from(*unit).ok().filter(u8::is_ascii_alphanumeric).map_or('-', char::from);
    let name: String = units.iter().map(plain).collect();
    if name.len() <= LONGEST_NAME {
        return name;
    }
    let hash = units.iter().fold(0_i32, |hash, unit| (hash << 5).wrapping_sub(hash).wrapping_add(i32::from(*unit)));
    format!("{}-{}", &name[..LONGEST_NAME], base36(hash.unsigned_abs()))
}

fn base36(mut value: u32) -> String {
    let mut digits = Vec::new();
    loop {
        digits.push(char::from_digit(value % 36, 36).unwrap_or('0'));
        value /= 36;
        if value == 0 {
            return digits.into_iter().rev().collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_program() {
        assert_eq!(name_of(Path::new("/work/agents-npm/run.1/a_b/w")), "-work-agents-npm-run-1-a-b-w");
        assert_eq!(name_of(Path::new("/tmp/ä😀")), "-tmp----", "each UTF-16 unit counts");
    }

    #[test]
    fn a_long_path_is_cut_and_hashed_as_the_program_does() {
        // Made with the program's own function under node: `$E("/tmp/" + "x".repeat(300))`.
        let name = name_of(Path::new(&format!("/tmp/{}", "x".repeat(300))));
        assert_eq!(name, format!("-tmp-{}-{}", "x".repeat(195), "uqvuhz"));
        let name = name_of(Path::new(&format!("/home/ü/{}", "deep/".repeat(60))));
        assert_eq!(name, format!("{}-{}", &format!("-home---{}", "deep-".repeat(60))[..200], "26j76c"));
    }
}
