//! Where a conversation knows its files, and where its agent will see them. What it does by a path that is not one of theirs is done to somebody
//! else's: to the workspace's own, or to what lies where that was.

use std::path::{Path, PathBuf};

use ah_plugin_api::{Error, ErrorKind, Result};

use crate::branch;
use crate::conversation::{ConversationReport, Start};
use crate::open::absolute;
use crate::registry::Identity;
use crate::rewind::prompts_before;
use crate::state::State;
use crate::text;
use crate::timeline::EventBody;
use crate::versioned;
use crate::workspace::Workspace;

impl Workspace {
    /// The path at which the conversation of a session that started in `start` knows this workspace's files: one of its own, or, where `exec` showed it, that of
    /// what it grew from. None if that is known no more: it was moved, say.
    pub(crate) fn known_at(&self, start: &Path) -> Result<Option<PathBuf>> {
        let all = branch::all(self.engine.home())?;
        let line = branch::line_of(&all, &self.id);
        let above = line.iter().map(|branch| branch.record.origin_path.as_path());
        let names: Vec<&Path> = [self.own_path(), self.root()].into_iter().chain(above).collect();
        let around = |start: &Path| {
            let around = names.iter().filter(|name| start.starts_with(name));
            around.max_by_key(|name| name.components().count()).map(|name| (*name).to_owned())
        };
        // An agent may have told it as it was typed, through symlinks.
        let found = around(start).or_else(|| around(&absolute(start)));
        if found.is_some() || line.is_empty() {
            return Ok(found);
        }
        // A branch in between may be gone: what this grew from shows it all the same.
        if let Some(there) = self.engine.workspace_around(start)
            && there.place_in(&line)?.is_some()
        {
            return Ok(Some(there.root));
        }
        // Or what is written down of it cannot be read.
        let whole = versioned::whole(branch::read_all(self.engine.home())?);
        whole.map(|_| None).map_err(|error| error.context("it cannot be told where the conversation knows its files"))
    }

    /// Refuses a conversation that cannot go on here because it names its files where only `exec` shows them; without that, somebody else's are there. `again` is the
    /// command to repeat in it. Else gives where it knows its files, if they are there no more.
    pub(crate) fn is_seated_here(&self, start: &Start, again: &str) -> Result<Option<PathBuf>> {
        let seat = &start.agent()?.1.start;
        let names = [self.own_path(), self.root()];
        let at = match self.known_at(seat)? {
            Some(at) if names.contains(&at.as_path()) => {
                return Ok(start.known_at.clone().filter(|at| !names.iter().any(|name| at.starts_with(name))));
            }
            Some(at) => at,
            None => return Ok(Some(seat.to_owned()).filter(|seat| self.also_at(seat).is_none())),
        };
        let Some(own) = self.own_branch()? else { return Ok(Some(seat.to_owned())) };
        let (name, shown) = (&own.name, at.display());
        let message =
            format!("the conversation knows the files of the branch {name} at {shown}, where only `exec` shows them");
        Err(Error::new(ErrorKind::FailedPrecondition, message).with_hint(format!(
            "ah -C {} agent fs exec {} -- {again}",
            text::shell(at.as_os_str()),
            text::shell(name.as_ref())
        )))
    }

    /// Refuses to start an agent unseen whose conversation knows its files `elsewhere` than it will see them. One that begins anew knows none; one that was told
    /// something by the moment where it is now was told where they are.
    pub(crate) fn refuse_elsewhere(&self, state: &State, start: &Start, elsewhere: Option<&Path>) -> Result<()> {
        let told = |at: &Path| start.known_at.as_deref() == Some(at) && start.is_told_here(state);
        let unseen = elsewhere.filter(|at| !told(at) && !start.begins_anew(state));
        let Some(elsewhere) = unseen else { return Ok(()) };
        Err(Error::new(ErrorKind::FailedPrecondition, unseen_at(elsewhere))
            .with_hint("leave `--run` away: the command that starts the agent is printed; or add `--elsewhere`, and it is started all the same"))
    }

    /// The path above `start`, or that itself, at which this workspace is as well as at its own, as by a bind mount.
    fn also_at<'a>(&self, start: &'a Path) -> Option<&'a Path> {
        let own = Identity::of_path(&self.root)?;
        start.ancestors().find(|at| Identity::of_path(at).is_some_and(|there| there.same(&own)))
    }

    /// The directory below `root` that stands for the one in which an agent's session started, under whatever name this workspace had for it:
    /// the nearest that `is_there`.
    pub(crate) fn seat_below(&self, root: &Path, start: &Path, is_there: impl Fn(&Path) -> bool) -> Result<PathBuf> {
        let known = self.known_at(start)?;
        let below = known.as_deref().or_else(|| self.also_at(start)).and_then(|at| {
            let below = start.strip_prefix(at).map(Path::to_owned);
            below.or_else(|_| absolute(start).strip_prefix(at).map(Path::to_owned)).ok()
        });
        let below = below.unwrap_or_default();
        Ok(match below.ancestors().find(|below| is_there(below)) {
            Some(below) if below != Path::new("") => root.join(below),
            _ => root.to_owned(),
        })
    }
}

/// What is to be said of a conversation that knows its files at a path where its agent will not see them.
fn unseen_at(path: &Path) -> String {
    format!(
        "the conversation knows its files at {}, where the agent will not see them: what it does by that path is done to what is there",
        path.display()
    )
}

impl ConversationReport {
    /// What a person is to be warned of, if it knows its files where the agent will not see them.
    #[must_use]
    pub fn unseen(&self) -> Option<String> {
        self.known_at.as_deref().map(unseen_at)
    }
}

impl Start {
    /// The path by which the conversation knows its files at the moment: as long as nothing was said where its session is now, that from before.
    pub(crate) fn knows(&self, state: &State) -> Result<&Path> {
        let seat = &self.agent()?.1.start;
        Ok(self.known_at.as_deref().filter(|_| !self.is_told_here(state)).unwrap_or(seat))
    }

    /// Whether a prompt was given by the moment since the session is where it is now.
    fn is_told_here(&self, state: &State) -> bool {
        let seat = self.agent.as_ref().map(|agent| &agent.start);
        let of_it = state.events.iter().rev().filter(|event| event.session == self.moment.session);
        let came = of_it.filter_map(|event| match &event.body {
            EventBody::Rewind(rewind) => {
                rewind.left.as_ref().filter(|left| Some(&left.start) != seat).map(|_| event.seq)
            }
            _ => None,
        });
        let since = came.max().unwrap_or(0);
        prompts_before(&state.events, &state.moments, &self.moment).iter().any(|prompt| prompt.seq > since)
    }
}
