//! Which processes use a directory tree: a courtesy to the person who is told `Busy`.

use std::os::fd::{AsFd, AsRawFd};

use ah_plugin_api::proc_path;
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
    let points = mounts.split(|&b| b == b'\n').filter_map(|line| line.split(|&b| b == b' ').nth(4)).map(proc_path);
    points.filter(|point| *point != top && point.starts_with(&top)).map(|point| point.display().to_string()).collect()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::holders_of;

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
