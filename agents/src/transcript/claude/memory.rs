//! What Claude Code remembers of a directory, whatever was said in which conversation: notes in `memory/` beside the sessions, which it writes itself and
//! reads whenever it starts there.

use std::os::unix::fs::MetadataExt as _;

use ah_plugin_api::Timestamp;

use super::place;
use crate::transcript::Destination;

/// See [`crate::transcript::remembered_since`].
pub(crate) fn remembered_since(to: &Destination<'_>, since: Timestamp) -> Option<String> {
    let folder = place::project(to).ok()?.join("memory");
    let is_later = |found: std::fs::Metadata| {
        let changed = Timestamp { secs: found.mtime(), nanos: u32::try_from(found.mtime_nsec()).unwrap_or(0) };
        found.is_file() && changed > since
    };
    let changed = std::fs::read_dir(&folder).ok()?.flatten().any(|file| file.metadata().is_ok_and(is_later));
    changed.then(|| {
        format!(
            "Claude Code reads its memory of this directory as it is now; it was changed since: {}",
            folder.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::Home;

    #[test]
    fn what_was_remembered_later_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::plain(dir.path(), "");
        let to = Destination { home: &home, cwd: dir.path() };
        let told = |secs| remembered_since(&to, Timestamp { secs, nanos: 0 });
        assert_eq!(told(0), None);
        let folder = place::project(&to).unwrap().join("memory");
        std::fs::create_dir_all(&folder).unwrap();
        assert_eq!(told(0), None);
        let file = std::fs::File::create(folder.join("MEMORY.md")).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1000)).unwrap();
        assert_eq!((told(1000), told(999).is_some()), (None, true));
    }
}
