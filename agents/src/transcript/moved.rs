//! Where a transcript is by now. Agents move it, under the same name: Claude Code to another project's folder (`/cd`), Codex to its archive and
//! back. It is looked for from where it was, so that the agent's home need not be the one of today.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::codex;
use crate::Agent;

/// Where the transcript is that was at `file`: there, else where its agent moves it, of several the newest; `file` itself if it is nowhere.
///
/// # Cost
/// One stat if it is where it was; else a few, of Claude Code one for each project.
#[must_use]
pub fn place_now(agent: Agent, file: &Path) -> PathBuf {
    let there = fs::metadata(file).is_ok_and(|there| there.is_file());
    let found = file.file_name().filter(|_| !there).and_then(|name| match agent {
        Agent::Claude => in_another_project(file, name),
        Agent::Codex => in_or_out_of_the_archive(file, name).filter(|found| written(found).is_some()),
        Agent::Gemini | Agent::Opencode => None,
    });
    found.unwrap_or_else(|| file.to_owned())
}

fn in_another_project(file: &Path, name: &OsStr) -> Option<PathBuf> {
    let projects = file.parent()?.parent().filter(|projects| projects.ends_with("projects"))?;
    let all = fs::read_dir(projects).ok()?.flatten().map(|project| project.path().join(name));
    let found = all.filter_map(|file| Some((written(&file)?, file)));
    found.max().map(|(_, file)| file)
}

fn in_or_out_of_the_archive(file: &Path, name: &OsStr) -> Option<PathBuf> {
    let folder = file.parent()?;
    if folder.ends_with("archived_sessions") {
        let (_, day) = codex::time_and_day(name.to_str()?)?;
        return Some(folder.with_file_name("sessions").join(day).join(name));
    }
    let sessions = folder.ancestors().find(|above| above.ends_with("sessions"))?;
    Some(sessions.with_file_name("archived_sessions").join(name))
}

/// When a regular file was written last; none if it is none.
fn written(file: &Path) -> Option<SystemTime> {
    fs::symlink_metadata(file).ok().filter(fs::Metadata::is_file)?.modified().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(file: &Path) {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, "{}\n").unwrap();
    }

    #[test]
    fn claude_codes_is_found_in_another_projects_folder() {
        let dir = tempfile::tempdir().unwrap();
        let at = |project: &str| dir.path().join("projects").join(project).join("one.jsonl");
        let now = || place_now(Agent::Claude, &at("a"));
        assert_eq!(now(), at("a"), "there is none");
        // None that is no file, nor one that leads elsewhere.
        fs::create_dir_all(at("b")).unwrap();
        write(&dir.path().join("elsewhere"));
        fs::create_dir(dir.path().join("projects/c")).unwrap();
        std::os::unix::fs::symlink(dir.path().join("elsewhere"), at("c")).unwrap();
        assert_eq!(now(), at("a"));
        write(&at("d"));
        assert_eq!(now(), at("d"));
        // Of two the newest, whichever is listed first.
        write(&at("e"));
        for (newest, older) in [("d", "e"), ("e", "d")] {
            let day = |file: &str, day: u64| {
                let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(day * 86400);
                fs::File::options().append(true).open(at(file)).unwrap().set_modified(time).unwrap();
            };
            day(newest, 20);
            day(older, 10);
            assert_eq!(now(), at(newest));
        }
        assert_eq!(place_now(Agent::Gemini, &at("a")), at("a"));
        // Where it was counts first.
        write(&at("a"));
        assert_eq!(now(), at("a"));
    }

    #[test]
    fn of_what_is_in_no_projects_folder_nothing_is_looked_for() {
        let dir = tempfile::tempdir().unwrap();
        write(&dir.path().join("folder/b/one.jsonl"));
        let file = dir.path().join("folder/a/one.jsonl");
        for file in [file.as_path(), Path::new("/"), Path::new("one.jsonl"), Path::new("projects/a/..")] {
            for agent in Agent::ALL {
                assert_eq!(place_now(agent, file), file);
            }
        }
    }

    #[test]
    fn codexs_is_found_in_its_archive_and_out_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let name = "rollout-2026-11-21T22-47-14-01900000-0000-7000-8000-000000000001.jsonl";
        let there = dir.path().join("sessions/2026/11/21").join(name);
        let archived = dir.path().join("archived_sessions").join(name);
        let now = |file: &Path| place_now(Agent::Codex, file);
        assert_eq!((now(&there), now(&archived)), (there.clone(), archived.clone()), "there is none");
        write(&there);
        assert_eq!((now(&there), now(&archived)), (there.clone(), there.clone()));
        fs::create_dir(archived.parent().unwrap()).unwrap();
        fs::rename(&there, &archived).unwrap();
        assert_eq!((now(&there), now(&archived)), (archived.clone(), archived.clone()));
        fs::rename(&archived, &there).unwrap();
        assert_eq!((now(&there), now(&archived)), (there.clone(), there));
        // One whose name tells no day.
        let odd = archived.with_file_name("rollout.jsonl");
        assert_eq!(now(&odd), odd);
    }
}
