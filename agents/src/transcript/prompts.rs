//! The prompts of a transcript.

use std::path::Path;

use ah_plugin_api::{Result, Timestamp};

use super::line::{Lines, What};
use super::{Position, catch};
use crate::Agent;

/// What a person typed, or the agent was told by itself, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// The text; images and other attachments are left out.
    pub text: String,
    /// The agent's id of the prompt: what its hooks call `prompt_id` or `turn_id`, if lines bear it.
    pub id: Option<String>,
    /// The line's own id.
    pub uuid: Option<String>,
    /// The conversation without the prompt: where to cut so as to say something else instead.
    pub before: Position,
    /// The conversation with the prompt, unanswered.
    pub position: Position,
    /// When it was made.
    pub time: Option<Timestamp>,
    /// Whether no person typed it. Only of what hooks told is that known; see [`Prompts::told`].
    pub by_agent: bool,
}

/// The prompts of a transcript, read as they are asked for; see [`super::prompts`].
pub struct Prompts {
    agent: Agent,
    lines: Option<Lines>,
    last: Position,
    /// Where the lines begin that belong to the next prompt, if it comes at once.
    opening: Option<Position>,
    told: Vec<(String, String)>,
}

impl Prompts {
    /// Those, too, that begin like the agent's own text, or that nobody typed, and that hooks told of: by id, and by what was typed or its beginning.
    #[must_use]
    pub fn told(self, told: Vec<(String, String)>) -> Self {
        Self { told, ..self }
    }

    pub(super) fn open(agent: Agent, file: &Path, since: Option<&Position>) -> Result<Self> {
        let last = since.cloned().unwrap_or_else(|| Position::start(file));
        Ok(Self { agent, lines: Some(Lines::open(file, since)?), last, opening: None, told: Vec::new() })
    }

    fn step(&mut self) -> Result<Option<Prompt>> {
        let Some(lines) = &mut self.lines else { return Ok(None) };
        loop {
            let Some(line) = lines.next()? else { return Ok(None) };
            let seen = catch::look(self.agent, line);
            let before = self.last.clone();
            self.last = lines.position(seen.uuid.clone().or(before.uuid.clone()));
            let opening = self.opening.take();
            let by_agent = matches!(seen.what, What::Unsure { by_agent: true, .. });
            match seen.what {
                What::Opening { .. } => self.opening = opening.or(Some(before)),
                What::Unsure { text, id, .. } if !is_told(&self.told, id.as_deref(), &text) => {}
                What::Prompt { text, id } | What::Unsure { text, id, .. } => {
                    let before = opening.unwrap_or(before);
                    return Ok(Some(Prompt {
                        text,
                        id,
                        uuid: seen.uuid,
                        before,
                        position: self.last.clone(),
                        time: seen.time,
                        by_agent,
                    }));
                }
                What::Other | What::Results(_) | What::GoesOn(_) => {}
            }
        }
    }
}

/// Whether that is among what hooks told.
fn is_told(told: &[(String, String)], id: Option<&str>, text: &str) -> bool {
    told.iter().any(|(of, beginning)| catch::is_told((of, beginning), id, text))
}

impl Iterator for Prompts {
    type Item = Result<Prompt>;

    fn next(&mut self) -> Option<Self::Item> {
        let step = self.step();
        if !matches!(step, Ok(Some(_))) {
            self.lines = None;
        }
        step.transpose()
    }
}
