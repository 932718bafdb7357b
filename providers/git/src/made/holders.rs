//! Which processes use a directory tree: a courtesy to the person who is told `Busy`.

use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ah_provider_directory::Process;

/// Processes, other than this one, whose working directory, root, program, open or mapped files lie at or below `dir`: `pid (name)`
/// each. As far as this user may see them; empty also where `/proc` is not there.
pub(crate) fn holders_of(dir: impl AsFd) -> Vec<String> {
    let Ok(top) = std::fs::read_link(format!("/proc/self/fd/{}", dir.as_fd().as_raw_fd())) else { return Vec::new() };
    let uses = |process: &Process| process.uses(|used| used.is_below(&top)).is_some();
    Process::others().filter(uses).map(|process| process.to_string()).collect()
}

/// Mount points of this mount namespace strictly below `dir`.
pub(crate) fn mounts_below(dir: impl AsFd) -> Vec<String> {
    let Ok(top) = std::fs::read_link(format!("/proc/self/fd/{}", dir.as_fd().as_raw_fd())) else { return Vec::new() };
    let Ok(mounts) = std::fs::read("/proc/self/mountinfo") else { return Vec::new() };
    let points = mounts.split(|&b| b == b'\n').filter_map(|line| line.split(|&b| b == b' ').nth(4)).map(unescape);
    points
        .filter(|point| point.as_slice() != top.as_os_str().as_bytes())
        .filter(|point| is_below(Path::new(std::ffi::OsStr::from_bytes(point)), &top))
        .map(|point| String::from_utf8_lossy(&point).into_owned())
        .collect()
}

/// Undoes the octal escapes of mountinfo (space, tab, newline, backslash).
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, after)) = rest.split_first() {
        let octal = (first == b'\\').then(|| after.get(..3)).flatten().and_then(|digits| {
            digits.iter().try_fold(0_u16, |n, d| d.is_ascii_digit().then(|| n * 8 + u16::from(d - b'0')))
        });
        match octal.and_then(|n| u8::try_from(n).ok()) {
            Some(byte) => {
                out.push(byte);
                rest = &after[3..];
            }
            None => {
                out.push(first);
                rest = after;
            }
        }
    }
    out
}

fn is_below(path: &Path, top: &Path) -> bool {
    let (path, top) = (path.as_os_str().as_bytes(), top.as_os_str().as_bytes());
    path.starts_with(top) && matches!(path.get(top.len()), None | Some(b'/'))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::holders_of;

    #[test]
    fn mountinfo_names_are_unescaped() {
        assert_eq!(super::unescape(b"/a\\040b\\134c\\"), b"/a b\\c\\");
    }

    #[test]
    fn finds_a_process_by_its_working_directory_only() {
        let dir = tempfile::tempdir().unwrap();
        let (inside, beside) = (dir.path().join("v/deep"), dir.path().join("v2"));
        std::fs::create_dir_all(&inside).unwrap();
        std::fs::create_dir_all(&beside).unwrap();
        let mut child = Command::new("sleep").arg("60").current_dir(&inside).stdin(Stdio::null()).spawn().unwrap();
        let top = std::fs::File::open(dir.path().join("v")).unwrap();
        let other = std::fs::File::open(&beside).unwrap();
        let (found, none) = (holders_of(&top), holders_of(&other));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found.iter().any(|holder| holder.starts_with(&format!("{} (", child.id()))), "{found:?}");
        assert_eq!(none, Vec::<String>::new());
    }
}
