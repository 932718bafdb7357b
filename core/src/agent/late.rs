//! Moments' places in transcripts. Agents write late: when they call, the lines that belong to the moment may be missing. A moment
//! bears at first what was written by then, as far as can be read while the agent waits; the worker looks again, a few times if need
//! be, and the timeline then says it better.
//!
//! In the session's folder, `transcript` is how far the file was counted last, and `late` the moments whose place is not certain yet.
//! Both are caches: without the one a file is counted from its beginning, without the other a moment keeps the place that it has.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ah_agents::Agent;
use ah_agents::hook::HookKind;
use ah_agents::transcript::{self, Caught, Position, Prompt, Sought};
use ah_plugin_api::{Durability, Result, SnapshotId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::fsio;
use crate::ids::SessionName;
use crate::lock::Lock;
use crate::moments::{MomentKind, MomentUpdate, TranscriptPosition};
use crate::session;
use crate::text;
use crate::timeline::EventBody;
use crate::workspace::Workspace;

/// How often a place is looked for before the best that was found counts, and how long between two looks.
const LOOKS: u32 = 8;
const BETWEEN: Duration = Duration::from_millis(250);
/// So many moments are looked after; the oldest give way.
const MOST: usize = 64;

/// A moment whose place in the transcript is not certain yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Late {
    pub(crate) moment: SnapshotId,
    pub(crate) agent: Agent,
    pub(crate) kind: MomentKind,
    #[serde(with = "text::time")]
    pub(crate) time: Timestamp,
    /// Where it was thought to be.
    pub(crate) at: TranscriptPosition,
    /// What is looked for does not lie before it; none (a prompt, and in what older versions left): it is not known, and that of the last prompt counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) from: Option<TranscriptPosition>,
    #[serde(default)]
    pub(crate) tool: Option<String>,
    #[serde(default)]
    pub(crate) prompt: Option<String>,
    #[serde(default)]
    pub(crate) prompt_id: Option<String>,
    #[serde(default)]
    pub(crate) looks: u32,
}

/// How far a transcript has come.
pub(super) struct Come {
    pub(super) position: TranscriptPosition,
    /// Where it was counted last.
    pub(super) before: Option<TranscriptPosition>,
    /// What a person typed since, and the agent read between two of its tools.
    pub(super) meanwhile: Vec<Prompt>,
    /// Since when the agent goes on with it.
    begun: Option<Begun>,
}

/// What the file `transcript` holds.
#[derive(Serialize, Deserialize)]
struct Counted {
    #[serde(flatten)]
    at: TranscriptPosition,
    /// Since when the agent goes on with it: what was typed before that had its moment then, or in the conversation that it was copied from. None: an
    /// older version left it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    begun: Option<Begun>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
struct Begun(#[serde(with = "text::time")] Timestamp);

/// What the file `late` holds.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Lates {
    /// The last prompt's place: nothing that is looked for from then on lies before it.
    #[serde(default)]
    since: Option<TranscriptPosition>,
    #[serde(default)]
    moments: Vec<Late>,
}

impl From<Position> for TranscriptPosition {
    fn from(Position { file, line, offset, uuid }: Position) -> Self {
        Self { file, line, offset, uuid }
    }
}

impl From<TranscriptPosition> for Position {
    fn from(TranscriptPosition { file, line, offset, uuid }: TranscriptPosition) -> Self {
        Self { file, line, offset, uuid }
    }
}

impl Workspace {
    /// How far a transcript has come, counted on from where it was counted last, and no further than is quickly done; none if there is none, or it cannot be read.
    pub(super) fn position_now(&self, session: &SessionName, agent: Agent, file: Option<&Path>) -> Option<Come> {
        let file = file?;
        let bytes = fsio::read(&self.position_file(session)).ok().flatten();
        let last: Option<Counted> = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let has_moved = |at: &TranscriptPosition| at.is_in(file) && matches!(at.file.try_exists(), Ok(false));
        let last = last.filter(|last| last.at.file == file || has_moved(&last.at));
        let begun = last.as_ref().map_or_else(|| Some(self.begun_now()), |last| last.begun);
        let last = last.map(|last| Position { file: file.to_owned(), ..Position::from(last.at) });
        let now = transcript::position_and_meanwhile(agent, file, last.as_ref());
        let now = now.map(|(now, meanwhile)| (now, last, meanwhile));
        // A file that was rewritten is counted anew.
        let now = now.or_else(|_| transcript::position_now(agent, file, None).map(|now| (now, None, Vec::new())));
        let (now, last, mut meanwhile) = now.ok()?;
        let is_old = |prompt: &Prompt| begun.zip(prompt.time).is_some_and(|(begun, time)| time < begun.0);
        meanwhile.retain(|prompt| !is_old(prompt));
        let position = TranscriptPosition::from(now);
        Some(Come { position, before: last.map(TranscriptPosition::from), meanwhile, begun })
    }

    /// Notes where a transcript was counted last; `anew`: from now on the agent goes on with it.
    pub(super) fn note_position(&self, session: &SessionName, now: &Come, anew: bool) {
        let begun = if anew { Some(self.begun_now()) } else { now.begun };
        let bytes = serde_json::to_vec(&Counted { at: now.position.clone(), begun }).unwrap_or_default();
        let _ = fsio::replace(&self.position_file(session), &bytes, Durability::Instant);
    }

    fn begun_now(&self) -> Begun {
        Begun(self.engine.settings().clock.now())
    }

    fn position_file(&self, session: &SessionName) -> PathBuf {
        session::folder(&self.folder(), session).join("transcript")
    }

    /// Leaves moments for which a place is to be looked for. Whoever calls holds the capture lock.
    pub(crate) fn leave_late(&self, session: &SessionName, new: Vec<Late>) -> Result<()> {
        if new.is_empty() {
            return Ok(());
        }
        let mut lates = self.lates(session);
        lates.moments.extend(new);
        self.write_lates(session, lates)
    }

    /// Looks for the places of the moments that were left; `again`: a few times, as long as something is missing. One worker at a time
    /// does, and reads transcripts without a lock that others wait for.
    pub(crate) fn catch_up(&self, again: bool) -> Result<()> {
        let Some(_only) = Lock::try_take(&self.folder().join("late.lock"), true)? else { return Ok(()) };
        for _ in 0..if again { LOOKS } else { 1 } {
            let mut waiting = session::names(&self.folder())?;
            waiting.retain(|session| !self.lates(session).moments.is_empty());
            if waiting.is_empty() {
                break;
            }
            if again {
                std::thread::sleep(BETWEEN);
                // Moments come first: somebody may wait for their snapshots.
                self.settle_moments(self.engine.settings().patience)?;
            }
            waiting.iter().try_for_each(|session| self.look_for_late(session))?;
        }
        Ok(())
    }

    fn look_for_late(&self, session: &SessionName) -> Result<()> {
        let Lates { mut since, moments } = self.lates(session);
        let looked: HashSet<SnapshotId> = moments.iter().map(|late| late.moment.clone()).collect();
        let mut files: Vec<(Agent, &PathBuf)> = Vec::new();
        for late in &moments {
            if !files.contains(&(late.agent, &late.at.file)) {
                files.push((late.agent, &late.at.file));
            }
        }
        let (mut updates, mut left) = (Vec::new(), Vec::new());
        for (agent, file) in files {
            let own: Vec<&Late> = moments.iter().filter(|late| late.agent == agent && late.at.file == *file).collect();
            // Its agent may have moved it. One that is nowhere tells no place.
            let now = transcript::place_now(agent, file);
            let from = Late::all_from(&own, since.as_ref()).map_or_else(|| Position::start(&now), Position::from);
            let from = Position { file: now, ..from };
            let sought: Vec<Sought<'_>> = own.iter().map(|late| late.sought()).collect();
            let caught = from.file.exists().then(|| transcript::catch_up_all(agent, &sought, &from).ok()).flatten();
            for (at, late) in own.into_iter().enumerate() {
                let late = Late { looks: late.looks + 1, ..late.clone() };
                // What cannot be read now may be later.
                let Some(caught) = caught.as_ref().map(|all| &all[at]) else {
                    left.extend((late.looks < LOOKS).then_some(late));
                    continue;
                };
                let by_agent = matches!(caught, Caught::ByAgent(_));
                let certain = by_agent || matches!(caught, Caught::Exact(_));
                let place = TranscriptPosition::from(caught.position().clone());
                if certain && late.kind == MomentKind::Prompt {
                    since = Some(place.clone());
                }
                if !certain && late.looks < LOOKS {
                    left.push(late);
                } else if place != late.at || by_agent {
                    let transcript = Some(place).filter(|place| *place != late.at);
                    let update = MomentUpdate { transcript, by_agent, ..MomentUpdate::new(late.moment) };
                    updates.push(EventBody::MomentUpdate(Box::new(update)));
                }
            }
        }
        if !updates.is_empty() {
            self.append_with(session, Durability::Instant, |_| updates)?;
        }
        let _lock = self.lock("capture")?;
        // What was left meanwhile.
        let new = self.lates(session).moments.into_iter().filter(|late| !looked.contains(&late.moment));
        left.extend(new);
        self.write_lates(session, Lates { since, moments: left })
    }

    fn write_lates(&self, session: &SessionName, Lates { since, mut moments }: Lates) -> Result<()> {
        let moments = moments.split_off(moments.len().saturating_sub(MOST));
        let bytes = serde_json::to_vec(&Lates { since, moments }).unwrap_or_default();
        fsio::replace(&self.late_file(session), &bytes, Durability::Instant)
    }

    fn lates(&self, session: &SessionName) -> Lates {
        let bytes = fsio::read(&self.late_file(session)).ok().flatten();
        bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
    }

    fn late_file(&self, session: &SessionName) -> PathBuf {
        session::folder(&self.folder(), session).join("late")
    }
}

impl Late {
    /// The place behind which all that these look for lies, which are in the same file; none if that can only be said of its beginning.
    fn all_from(these: &[&Self], since: Option<&TranscriptPosition>) -> Option<TranscriptPosition> {
        let since = |late: &Self| since.filter(|since| since.is_in(&late.at.file)).cloned();
        let from = these.iter().map(|late| late.from.clone().or_else(|| since(late)));
        // One of which it is not known says that of all.
        from.collect::<Option<Vec<_>>>()?.into_iter().min_by_key(|from| from.offset)
    }

    fn sought(&self) -> Sought<'_> {
        static OTHER: HookKind = HookKind::Other(String::new());
        let kind = match self.kind {
            MomentKind::Prompt => &HookKind::Prompt,
            MomentKind::Tool | MomentKind::ToolFailed => &HookKind::AfterTool { failed: false },
            MomentKind::Stop => &HookKind::Stop,
            MomentKind::SessionStart => &HookKind::SessionStart,
            MomentKind::SessionEnd => &HookKind::SessionEnd,
            _ => &OTHER,
        };
        Sought {
            kind,
            tool_id: self.tool.as_deref(),
            prompt_id: self.prompt_id.as_deref(),
            prompt: self.prompt.as_deref(),
            time: self.time,
            written: self.at.offset,
        }
    }
}
