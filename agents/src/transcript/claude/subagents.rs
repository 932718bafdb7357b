//! Transcripts of sub-agents: `<session>/subagents/agent-<id>.jsonl` beside the session's own, with notes in `agent-<id>.meta.json`.
//!
//! Those whose result is in the copy come along, so that the agent can go on with them; what they did after the place does not. A sub-agent without
//! a file is none the worse: its result stands in the conversation.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use ah_plugin_api::{Error, ErrorKind, Result};

use super::plan::{Plan, plan as plan_of};
use super::rewound::Rewound;
use crate::files::open_regular;
use crate::transcript::Position;
use crate::transcript::copy::{self, Until};
use crate::transcript::line::Lines;

/// Largest file of notes that is copied.
const LARGEST_NOTES: u64 = 1 << 20;

/// Copies them below `folder`; tells which files were made.
pub(super) fn copy(at: &Position, plan: &Plan, folder: &Path, session_id: &str) -> Result<Vec<PathBuf>> {
    let mut made = Vec::new();
    let all = plan.agents.iter().try_for_each(|agent| one(at, plan, agent, folder, session_id, &mut made));
    if let Err(error) = all {
        remove(&made);
        return Err(error);
    }
    Ok(made)
}

fn one(
    at: &Position,
    whole: &Plan,
    agent: &str,
    folder: &Path,
    session_id: &str,
    made: &mut Vec<PathBuf>,
) -> Result<()> {
    let from = at.file.with_extension("").join("subagents");
    let into = folder.join(session_id).join("subagents");
    let (source, target) = (from.join(format!("agent-{agent}.jsonl")), into.join(format!("agent-{agent}.jsonl")));
    if made.contains(&target) {
        return Ok(());
    }
    let mut lines = match Lines::open(&source, None) {
        Ok(lines) => lines,
        Err(error) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::Unsupported) => return Ok(()),
        Err(error) => return Err(error),
    };
    let until = whole.until.map_or(Until::End, Until::Time);
    let plan = plan_of(&mut lines, &until, Rewound::default())?;
    // The line that was too late was read to be seen as such, and is among the dropped.
    let end = lines.position(None);
    copy::write(&end, &target, |number, line| super::edit(&plan, session_id, number, line))?;
    made.push(target);
    notes(&from.join(format!("agent-{agent}.meta.json")), &into.join(format!("agent-{agent}.meta.json")), made)
}

fn notes(source: &Path, target: &Path, made: &mut Vec<PathBuf>) -> Result<()> {
    let mut text = Vec::new();
    let read = open_regular(source).and_then(|file| file.take(LARGEST_NOTES).read_to_end(&mut text));
    if read.is_err() {
        return Ok(());
    }
    let mut options = File::options();
    let written = options.write(true).create(true).truncate(true).mode(0o600).open(target);
    written
        .and_then(|mut file| file.write_all(&text))
        .map_err(|error| Error::from_io(format!("cannot write {}", target.display()), &error))?;
    made.push(target.into());
    Ok(())
}

/// Takes back what was made.
pub(super) fn remove(made: &[PathBuf]) {
    for file in made {
        // What cannot be removed is a file in a folder that no session has.
        let _ = std::fs::remove_file(file);
        // Only empty folders go.
        file.ancestors().skip(1).take(2).for_each(|dir| {
            let _ = std::fs::remove_dir(dir);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{tools, values};

    /// Of the conversation's lines the last is not the latest then.
    #[test]
    fn a_subagent_from_before_the_clock_was_set_back_comes_along_whole() {
        let place = tools();
        let mut lines = values(&place.file);
        lines[19]["timestamp"] = "2020-01-01T00:00:00.000Z".into();
        let lines: Vec<String> = lines.iter().map(|line| format!("{line}\n")).collect();
        std::fs::write(&place.file, lines.concat()).unwrap();
        let copy = place.trim(20);
        assert_eq!(values(&copy.others[0]).len(), 5);
    }
}
