//! How the place of a workspace that a provider mounted there becomes a directory again, where nobody has anything to mount there any more.
//!
//! What is printed may be typed at any time, and more than once. So nothing in it removes or overwrites anything: each step is taken only after the one before, and the
//! first ones fail where it is not as it was.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use ah_plugin_api::{BEHIND, NOT_MOUNTED};

use crate::{fsio, text};

/// What begins the name of what is put aside beside a workspace.
const ASIDE: &str = ".ah-left-";

/// What is typed where only what stands in for the workspace is at `root`. What lies beside it under the name of what it was before `convert` comes back there.
pub(crate) fn way_out(root: &Path) -> String {
    let typed = |path: &Path| text::shell(path.as_os_str());
    let (place, stands, aside) =
        (typed(root), typed(&root.join(NOT_MOUNTED)), typed(&fsio::free(&beside(root, ASIDE))));
    let clear = format!("test -f {stands} && cd / && mkdir {aside} && mv -T {place} {aside}");
    let before = beside(root, BEHIND);
    match before.symlink_metadata() {
        Ok(_) => format!(
            "what it was before `convert` is {0}: `{clear} && mv -T {0} {place}` puts that back, without what was written since, and shut to others until `chmod` opens it",
            typed(&before)
        ),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            format!("`{clear} && mkdir -m 700 {place}` puts an empty directory there")
        }
        // It may be there all the same, and would be left beside an empty directory.
        Err(error) => {
            format!("{} cannot be looked at ({error}): make that readable, then repeat", typed(&before))
        }
    }
}

/// The path beside `root` with that before its name.
pub(crate) fn beside(root: &Path, before: &str) -> PathBuf {
    let name: OsString = [before.as_ref(), root.file_name().unwrap_or_default()].into_iter().collect();
    root.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    use super::way_out;

    #[test]
    fn what_cannot_be_looked_at_is_not_said_to_be_missing() {
        let top = tempfile::tempdir().unwrap();
        let root = top.path().join("w");
        assert!(way_out(&root).contains("puts an empty directory there"));
        std::fs::create_dir(top.path().join(".ah-behind-w")).unwrap();
        assert!(way_out(&root).contains("puts that back"));
        // Root, too, is refused a name beside a file, and one that is too long.
        std::fs::write(&root, "").unwrap();
        let long = [b"w".as_slice(); 255].concat();
        for root in [root.join("w"), top.path().join(Path::new(std::ffi::OsStr::from_bytes(&long)))] {
            let said = way_out(&root);
            assert!(!said.contains("mkdir -m 700") && said.contains("cannot be looked at"), "{said}");
        }
    }
}
