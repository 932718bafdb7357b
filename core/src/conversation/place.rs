//! The copy of a conversation put where the agent looks for it.
//!
//! It is made in a folder of ours first, laid out as the agent's home is. So each file's place is known, and written down, before
//! anything is there; and there it appears whole or not at all.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ah_agents::files::{open_regular, rename_new};
use ah_agents::transcript::{Destination, Position, Trimmed, remembered_since, trim};
use ah_agents::{Agent, Home};
use ah_plugin_api::{Error, ErrorKind, Result, Timestamp};

use crate::conversation::intent::{Intent, Made, staging};
use crate::crash;
use crate::fsio::{self, failed};
use crate::open::absolute;
use crate::workspace::Workspace;

/// Where an agent will run, and what it will see there.
pub(crate) struct Seat<'a> {
    /// The homes of the agents, as they will be seen.
    pub(crate) home: &'a Home,
    /// The directory it will be started in, as it will be seen.
    pub(crate) cwd: &'a Path,
    /// A branch that is shown at another path: that path, and where the branch is.
    pub(crate) shown: Option<(&'a Path, &'a Path)>,
    /// Where its conversation knows its files, if it will not see them there.
    pub(crate) elsewhere: Option<&'a Path>,
}

impl Seat<'_> {
    /// Where a path that the agent will see is now. The agents' homes may be spelled through symlinks that lead into the workspace.
    fn real(&self, path: &Path) -> PathBuf {
        let inside = self.shown.and_then(|(at, branch)| Some(branch.join(absolute(path).strip_prefix(at).ok()?)));
        inside.unwrap_or_else(|| path.to_owned())
    }

    /// What the agent wrote down since and will read here, for a person.
    pub(crate) fn remembered_since(&self, agent: Agent, since: Timestamp) -> Option<String> {
        let home = Home { claude: self.real(&self.home.claude), ..self.home.clone() };
        remembered_since(agent, &Destination { home: &home, cwd: self.cwd }, since)
    }
}

/// Makes the copy that ends at `at`, where a prompt comes next or something else, under the intent's id, and puts it into its place; `session` is the folder of the session that
/// will bear it. The intent is saved before each step.
pub(crate) fn put(
    agent: Agent,
    (at, before_prompt): (&Position, bool),
    seat: &Seat<'_>,
    (workspace, intent, session): (&Workspace, &mut Intent, &Path),
) -> Result<Trimmed> {
    let staged = staging(session, &intent.id);
    fsio::make_dir(&staged)?;
    let home = staged_home(seat.home, &staged);
    let mut trimmed = trim(agent, at, &Destination { home: &home, cwd: seat.cwd }, &intent.id, before_prompt)?;
    if seat.shown.is_some() {
        age(&trimmed.file, &at.file)?;
    }
    let (from, to) = (root_of(agent, &home)?, root_of(agent, seat.home)?);
    let mut moves = Vec::new();
    for file in std::iter::once(&mut trimmed.file).chain(&mut trimmed.others) {
        let inside = file
            .strip_prefix(from)
            .map_err(|_| Error::new(ErrorKind::Internal, format!("{} is not in the agent's home", file.display())))?;
        let path = seat.real(&to.join(inside));
        let bytes = std::fs::metadata(&*file).map_err(|e| failed("read", file, &e))?.size();
        moves.push((file.clone(), Made { path: path.clone(), bytes }));
        *file = path;
    }
    // The first is what the agent looks for: it comes last, when what it names is there.
    moves.reverse();
    intent.files = moves.iter().map(|(_, made)| made.clone()).collect();
    intent.save(workspace)?;
    for (file, made) in &moves {
        move_in(file, made)?;
    }
    fsio::remove_tree(&staged)?;
    Ok(trimmed)
}

/// Makes a copy a second older than the last conversation beside what it was cut from: agents that are asked to go on with the last conversation of a
/// directory (`claude --continue`) take the newest. At the workspace's own path that is to be its own, not that of a branch which is shown there.
/// Not older than that, since agents clear away what is old.
fn age(copy: &Path, original: &Path) -> Result<()> {
    let run = || -> io::Result<()> {
        let mut last = std::fs::metadata(original)?.modified()?;
        let beside = original.parent().map(std::fs::read_dir).transpose()?.into_iter().flatten().flatten();
        for other in beside.filter(|other| other.path().extension() == original.extension()) {
            // It may be gone by now.
            last = other.metadata().and_then(|other| other.modified()).map_or(last, |other| last.max(other));
        }
        File::open(copy)?.set_modified(last.checked_sub(Duration::from_secs(1)).unwrap_or(last))
    };
    run().map_err(|e| failed("change the time of", copy, &e))
}

/// The agent's own folder in a home.
fn root_of(agent: Agent, home: &Home) -> Result<&Path> {
    match agent {
        Agent::Claude => Ok(&home.claude),
        Agent::Codex => Ok(&home.codex),
        Agent::Gemini => Ok(&home.gemini),
        Agent::Opencode => Ok(&home.opencode_data),
    }
}

/// The same home, with every agent's folder below `staged`.
fn staged_home(home: &Home, staged: &Path) -> Home {
    Home {
        claude: staged.join("claude"),
        codex: staged.join("codex"),
        gemini: staged.join("gemini"),
        opencode_config: staged.join("opencode-config"),
        opencode_data: staged.join("opencode-data"),
        ..home.clone()
    }
}

/// Moves a whole file to where nothing is yet.
fn move_in(from: &Path, made: &Made) -> Result<()> {
    let to = &made.path;
    let run = || -> io::Result<()> {
        let folder = to.parent().unwrap_or(Path::new("/"));
        DirBuilder::new().recursive(true).mode(fsio::DIR_MODE).create(folder)?;
        crash::point("conversation-put")?;
        match rename_new(from, to) {
            Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {
                let unfinished = made.unfinished();
                copy(from, &unfinished)?;
                crash::point("conversation-rename")?;
                rename_new(&unfinished, to)?;
            }
            moved => moved?,
        }
        crash::point("conversation-sync")?;
        fsio::sync_dir(folder)
    };
    run().map_err(|e| failed("put the conversation at", to, &e))
}

/// Copies a file to a name that is not there, with its time, for its owner's eyes only; on disk when this returns. Shares blocks where the
/// filesystem can.
pub(crate) fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let mut source = File::open(from)?;
    let mut target = OpenOptions::new().write(true).create_new(true).mode(fsio::FILE_MODE).open(to)?;
    io::copy(&mut source, &mut target)?;
    target.set_modified(source.metadata()?.modified()?)?;
    target.sync_all()
}

/// Keeps a copy of the whole transcript in the folder of the session that a part of it went to.
pub(crate) fn keep_untrimmed(transcript: &Path, to: &Path) -> Result<()> {
    let temp = fsio::temp_beside(to);
    let run = || -> io::Result<()> {
        crash::point("untrimmed-copy")?;
        let mut source = open_regular(transcript)?;
        let mut target = OpenOptions::new().write(true).create_new(true).mode(fsio::FILE_MODE).open(&temp)?;
        // No sync: it is there for who wants to look, and the original is, too.
        io::copy(&mut source, &mut target)?;
        crash::point("untrimmed-rename")?;
        std::fs::rename(&temp, to)
    };
    run().map_err(|e| {
        let _ = std::fs::remove_file(&temp);
        failed("keep a copy of", transcript, &e)
    })
}

#[cfg(test)]
mod tests {
    use super::{Made, copy, move_in};
    use std::fs::File;
    use std::os::unix::fs::PermissionsExt;
    use std::time::{Duration, SystemTime};

    #[test]
    fn nothing_that_is_there_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("deep/er/to"));
        std::fs::write(&from, "new").unwrap();
        move_in(&from, &Made { path: to.clone(), bytes: 3 }).unwrap();
        assert_eq!((from.exists(), std::fs::read_to_string(&to).unwrap().as_str()), (false, "new"));
        for folder in to.ancestors().skip(1).take(2) {
            assert_eq!(folder.metadata().unwrap().permissions().mode() & 0o777, 0o700, "{}", folder.display());
        }
        std::fs::write(&from, "other").unwrap();
        assert!(move_in(&from, &Made { path: to.clone(), bytes: 5 }).is_err());
        assert_eq!(std::fs::read_to_string(&to).unwrap(), "new");
    }

    #[test]
    fn copies_are_private_and_as_old() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        std::fs::write(&from, "x").unwrap();
        std::fs::set_permissions(&from, std::fs::Permissions::from_mode(0o644)).unwrap();
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        File::open(&from).unwrap().set_modified(time).unwrap();
        copy(&from, &to).unwrap();
        assert_eq!(to.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(to.metadata().unwrap().modified().unwrap(), time);
        assert!(copy(&from, &to).is_err());
    }
}
