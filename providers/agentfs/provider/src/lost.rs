//! What is said where something is lost without which a workspace that lies behind AgentFS is not to be had: how that is brought back.
//!
//! Nobody knows when what is printed is typed, how often, and what is in the place by then. So nothing in it removes or overwrites what somebody may have
//! written: each step is taken only after the one before, the first ones fail where it is not as it was, and a place that is not empty goes aside with all
//! that is in it. Where no such line is to be had, it is said where things are.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use ah_plugin_api::{BEHIND, Dir, Error, ErrorKind, NOT_MOUNTED, text};

use crate::conversion::{Behind, LEFT, SINCE, path_beside};
use crate::home::{self, LOWER, TREE, original, path_of};
use crate::service::stands_in;

/// How a tree that is gone is brought back, or given up.
pub(crate) fn tree_gone(home: &Dir) -> String {
    // What is beside the workspace, and in its place, is the original's.
    if let Some(original) = path_of(home).ok().and_then(|path| original(home, &path)) {
        let original = original.display();
        return format!(
            "bring it back from {original}, of which this is a copy; or use the AH_HOME that it was copied from"
        );
    }
    let bring_back = "bring it back, from a copy of AH_HOME, say";
    match give_up(home) {
        Some((becomes, typed)) => format!(
            "{bring_back}; or give it up{becomes}: `{typed}`, then `ah agent fs rm --force` of each of its branches, then `ah agent fs gc`"
        ),
        None => bring_back.to_owned(),
    }
}

/// How a tree that is damaged and cannot be mended is given up: once it is not where it was, that is said of it. Without the first words of a sentence.
pub(crate) fn put_aside(home: &Dir) -> Option<String> {
    let tree = home.path().join(TREE);
    let aside = free(&home.path().join(format!("{TREE}.lost")))?;
    Some(format!(
        "where it cannot be mended, and no copy of AH_HOME has it whole, `mv -T {} {}` has the next command say how it is given up",
        typed(&tree),
        typed(&aside)
    ))
}

/// What is to be known of that, and what is typed. None where it cannot be told what lies behind the workspace.
fn give_up(home: &Dir) -> Option<(String, String)> {
    let [tree, lower, known] = [TREE, LOWER, SINCE].map(|name| typed(&home.path().join(name)));
    let guard = format!("test ! -e {tree}");
    let behind = match Behind::of(home) {
        Ok(None) => return Some((String::new(), format!("{guard} && rm {lower}"))),
        Ok(Some(behind)) => Some(behind),
        Err(error) if error.kind == ErrorKind::DataLoss => None,
        Err(_) => return None,
    };
    // Of that home, as it is now: not once it was given up, and another one came.
    let guard = format!("test -e {known} && {guard}");
    // In this order: with the second one alone, what is put behind next would be taken for lost.
    let forget = format!("rm {known} && rm {lower}");
    let before = behind.as_ref().map_or_else(|| written(home), Behind::beside);
    let forget_alone = format!("{guard} && {forget}");
    let Some(before) = before else { return Some((String::new(), forget_alone)) };
    let at = behind.filter(|behind| behind.taken_back != Some(true)).map(|behind| behind.at());
    if !is_there(&before).ok()? {
        // Its disk may be away: once that is given up nobody else knows.
        let was = format!("what the workspace was before `convert` was at {}, and is not there now", before.display());
        // What stands in for it would be taken for something that is kept.
        return Some(match at.filter(|at| stands_in(at) == Some(true)) {
            Some(at) => {
                let way = format!("{} && mkdir -m 700 {}", make_way(&at)?, typed(&at));
                (format!(", and the workspace is an empty directory ({was})"), format!("{guard} && {way} && {forget}"))
            }
            None => (format!(" ({was})"), forget_alone),
        });
    }
    // Nothing else is done in a workspace that is behind it, until that has its own directory again.
    if let Some(at) = at
        && let Some(way) = make_way(&at)
    {
        let becomes = ", and the workspace is what it was before `convert`, but shut to others until `chmod` opens it";
        let puts_back = format!("mv -T {} {}", typed(&before), typed(&at));
        return Some((becomes.to_owned(), format!("{guard} && {way} && {puts_back} && {forget}")));
    }
    Some((format!(" (what the workspace was before `convert` is {})", before.display()), forget_alone))
}

/// The branch that the workspace is, is not in the tree, and nobody took it away.
pub(crate) fn branch_gone(behind: &Behind) -> Error {
    let at = behind.at();
    let message =
        format!("AgentFS has lost what was written in {} since it was put behind it: its log is damaged", at.display());
    let error = Error::new(ErrorKind::DataLoss, message);
    let Some(before) = behind.beside() else { return error };
    match is_there(&before) {
        Ok(true) => {}
        Ok(false) => {
            return error.with_hint(format!("what it was until then is not at {} any more", before.display()));
        }
        Err(_) => return error,
    }
    let (before, place) = (typed(&before), typed(&at));
    error.with_hint(match make_way(&at) {
        Some(way) => format!(
            "what it was until then is there: `{way} && mkdir -m 700 {place} && cp -aT {before} {place}` brings that back, shut to others until `chmod` opens it"
        ),
        None => format!(
            "what it was until then is {before}: `mkdir -m 700 SOMEWHERE-NEW && cp -aT {before} SOMEWHERE-NEW` copies that"
        ),
    })
}

/// What is typed to clear the place of a workspace that is not mounted, for a directory to come there. None where something else is there than what stands in
/// for it.
fn make_way(at: &Path) -> Option<String> {
    if !is_there(at).ok()? {
        return Some("cd /".to_owned());
    }
    let (place, stands) = (typed(at), typed(&at.join(NOT_MOUNTED)));
    if !stands_in(at)? {
        return Some(format!("cd / && rmdir {place}"));
    }
    // What is mounted by then stays, too: the system gives it no other name.
    let aside: OsString = [OsStr::new(LEFT), at.file_name()?].into_iter().collect();
    let aside = free(&path_beside(at, &aside))?;
    Some(format!("test -f {stands} && cd / && mkdir {0} && mv -T {place} {0}", typed(&aside)))
}

/// A path for what is put aside, where nothing is: that one, or with a number behind it.
fn free(first: &Path) -> Option<PathBuf> {
    for number in 1.. {
        let mut path = first.as_os_str().to_owned();
        if number > 1 {
            path.push(format!("-{number}"));
        }
        if !is_there(Path::new(&path)).ok()? {
            return Some(path.into());
        }
    }
    None
}

/// Where what lies behind a workspace is, by what is written down of the directory that was branched.
fn written(home: &Dir) -> Option<PathBuf> {
    let lower = PathBuf::from(OsString::from_vec(home::read(home, LOWER).ok()??));
    let lies_behind = lower.file_name()?.as_bytes().starts_with(BEHIND.as_bytes());
    (lies_behind && lower.is_absolute()).then_some(lower)
}

/// Whether anything is at a path. An error where that cannot be told.
fn is_there(path: &Path) -> io::Result<bool> {
    match path.symlink_metadata() {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn typed(path: &Path) -> String {
    text::shell(path.as_os_str())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::{Command, Stdio};

    use super::*;
    use crate::home::Shelf;

    /// What may be in a workspace's place: `f` is somebody's work, and is called as what the workspace had before.
    const STATES: [&[&str]; 5] = [&["absent"], &[], &[NOT_MOUNTED], &["f"], &[NOT_MOUNTED, "f"]];

    fn put(at: &Path, state: &[&str]) {
        let _ = fs::remove_dir_all(at);
        if state != ["absent"] {
            fs::create_dir(at).unwrap();
            // What stands in for it and is empty was just begun.
            state.iter().for_each(|name| fs::write(at.join(name), if *name == "f" { "work" } else { "" }).unwrap());
        }
    }

    /// Whether a file with that content is in a directory, wherever.
    fn holds(dir: &Path, content: &str) -> bool {
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).any(|path| match path.is_dir() {
            true => holds(&path, content),
            false => fs::read(path).unwrap() == content.as_bytes(),
        })
    }

    #[test]
    fn what_is_typed_takes_nothing_away_whatever_is_there_when_it_was_said_and_when_it_is_typed() {
        let pairs = STATES.iter().flat_map(|said| STATES.iter().map(move |typed| (said, typed)));
        for ((said_at, typed_at), is_tree) in pairs.flat_map(|pair| [(pair, true), (pair, false)]) {
            let temp = tempfile::tempdir().unwrap();
            let [at, before, home] = ["w", ".ah-behind-w", "home"].map(|name| temp.path().join(name));
            [&before, &home].into_iter().for_each(|dir| fs::create_dir(dir).unwrap());
            fs::write(before.join("f"), "before").unwrap();
            let home = Dir::open(home).unwrap();
            Shelf::make(&home, None).unwrap();
            fs::write(home.path().join(LOWER), before.as_os_str().as_bytes()).unwrap();
            let behind = Behind::anew(1, &at);
            behind.write(&home).unwrap();
            put(&at, said_at);
            // What was put aside before is in nobody's way.
            fs::create_dir(temp.path().join(".ah-left-w")).unwrap();
            let hint = if is_tree { tree_gone(&home) } else { branch_gone(&behind).hint.unwrap() };
            let line = hint.split('`').find(|said| said.contains(" && ")).unwrap();
            let types = || {
                let mut shell = Command::new("sh");
                let shell = shell.args(["-c", line]).current_dir(temp.path()).stderr(Stdio::null());
                shell.status().unwrap().success()
            };
            put(&at, typed_at);
            let (done, told) = (types(), format!("{said_at:?}, {typed_at:?}: {line}"));
            assert!(done || said_at != typed_at, "{told}");
            let is_back = fs::read(at.join("f")).is_ok_and(|f| f == b"before");
            assert!(is_back || said_at.contains(&"f") || !done, "{told}");
            let is_kept = || !typed_at.contains(&"f") || holds(temp.path(), "work");
            assert!(is_kept() && holds(temp.path(), "before"), "{told}");
            if is_back {
                fs::write(at.join("f"), "since").unwrap();
            }
            types();
            assert!(is_kept() && (!is_back || fs::read(at.join("f")).unwrap() == b"since"), "{told}");
        }
    }

    #[test]
    fn who_gives_up_a_workspace_of_which_nothing_is_left_has_an_empty_directory_there() {
        for state in STATES {
            let temp = tempfile::tempdir().unwrap();
            let [at, home] = ["w", "home"].map(|name| temp.path().join(name));
            fs::create_dir(&home).unwrap();
            let home = Dir::open(home).unwrap();
            Shelf::make(&home, None).unwrap();
            fs::write(home.path().join(LOWER), temp.path().join(".ah-behind-w").as_os_str().as_bytes()).unwrap();
            Behind::anew(1, &at).write(&home).unwrap();
            put(&at, state);
            let hint = tree_gone(&home);
            let line = hint.split('`').find(|said| said.contains(" && ")).unwrap();
            assert!(Command::new("sh").args(["-c", line]).status().unwrap().success(), "{line}");
            assert!(!home.path().join(SINCE).exists() && !home.path().join(LOWER).exists());
            let names = |at: &Path| fs::read_dir(at).map_or(0, Iterator::count);
            let stays = if state == [NOT_MOUNTED] || state == ["absent"] { 0 } else { state.len() };
            assert_eq!(names(&at), stays, "{state:?}: {line}");
        }
    }
}
