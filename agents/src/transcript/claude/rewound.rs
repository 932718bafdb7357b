//! What the agent's own `/rewind` left behind: a prompt, and what was said to it, after which the person went back to before it.
//!
//! Nothing in the file is changed by that, nor is it noted. The next prompt hangs on what that one hung on, and shows by it what was given up
//! (2.1.197, tried). Without that prompt, which a copy that ends before it lacks, the newest leaf is what was given up.

use std::collections::HashSet;

use ah_plugin_api::Result;

use super::{Line, What};
use crate::transcript::Position;
use crate::transcript::line::{Lines, text_of};

/// Most lines that are read for the prompt at a place. What opens one is fewer.
const OPENING: usize = 64;

/// See the module.
#[derive(Default)]
pub(super) struct Rewound {
    /// On what the prompt hangs that comes at the place, if one does. One that hangs on nothing shows nothing.
    on: Option<String>,
    /// Messages that were given up.
    messages: HashSet<String>,
}

impl Rewound {
    /// By the prompt that comes at `at`.
    pub(super) fn at(at: &Position) -> Result<Self> {
        let mut lines = Lines::open(&at.file, Some(at))?;
        let mut on = None;
        for _ in 0..OPENING {
            let Some(line) = lines.next()?.and_then(Line::parse) else { break };
            match line.what() {
                What::Prompt { .. } | What::Unsure { by_agent: false, .. } => {
                    on = text_of(line.parent).map(std::borrow::Cow::into_owned);
                    break;
                }
                What::Opening { .. } => {}
                // A message that is no prompt hangs on the conversation that goes on.
                _ if line.uuid.is_some() => break,
                _ => {}
            }
        }
        Ok(Self { on, messages: HashSet::new() })
    }

    /// Whether `line` was given up; lines come in the order of the file.
    pub(super) fn takes(&mut self, line: &Line<'_>) -> bool {
        let (Some(on), Some(uuid)) = (&self.on, text_of(line.uuid)) else { return false };
        let Some(parent) = text_of(line.parent) else { return false };
        let begins = || {
            on.as_str() == parent && matches!(line.what(), What::Prompt { .. } | What::Unsure { by_agent: false, .. })
        };
        let given_up = self.messages.contains(parent.as_ref()) || begins();
        if given_up {
            self.messages.insert(uuid.into_owned());
        }
        given_up
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::tests::{place, values};

    /// A real session: two prompts, back to before the second, a third, back to the beginning, a fourth. In lines: 4, 10, 14 and 18.
    const REAL: &str = include_str!("../../../fixtures/claude/rewound.jsonl");

    fn said(lines: &[Value]) -> Vec<&str> {
        let of = |line: &Value| line["message"]["content"].as_str().map(str::len);
        let prompts = lines.iter().filter(|line| of(line).is_some());
        prompts.map(|line| line["message"]["content"].as_str().unwrap()).collect()
    }

    #[test]
    fn what_was_rewound_before_a_prompt_is_not_in_a_copy_that_ends_there() {
        let place = place(REAL);
        // Before what opens the third.
        let copy = place.trim(12);
        let lines = values(&copy.file);
        assert_eq!(said(&lines), ["first prompt"]);
        // The prompt, its answer, and the program's note on the turn.
        assert_eq!((copy.lines, copy.dropped), (9, 3));
        let ids: Vec<&Value> = lines.iter().map(|line| &line["uuid"]).collect();
        for line in lines.iter().filter(|line| line["parentUuid"].is_string()) {
            assert!(ids.contains(&&line["parentUuid"]), "{line}");
        }
    }

    #[test]
    fn what_was_given_up_may_begin_like_the_agents_own_text_and_so_may_the_prompt() {
        for changed in ["second prompt", "third prompt"] {
            let pasted = format!("<bash-stdout>{changed}");
            let place =
                place(&REAL.replace(&format!("\"content\":\"{changed}\""), &format!("\"content\":\"{pasted}\"")));
            let copy = place.trim(12);
            assert_eq!((said(&values(&copy.file)), copy.dropped), (vec!["first prompt"], 3), "{changed}");
        }
    }

    /// Whether a prompt that hangs on nothing begins anew by the person's will, no other line says; better too much is known than nothing.
    #[test]
    fn back_to_the_beginning_everything_stays() {
        let place = place(REAL);
        let copy = place.trim(16);
        assert_eq!((said(&values(&copy.file)).len(), copy.dropped), (3, 0));
    }

    /// It was what had been said, when something other than that prompt had its moment there.
    #[test]
    fn what_was_given_up_later_is_in_a_copy_of_before_that() {
        let place = place(REAL);
        let copy = place.trim_as(&place.at(12), false).unwrap();
        assert_eq!((said(&values(&copy.file)), copy.dropped), (vec!["first prompt", "second prompt"], 0));
    }

    #[test]
    fn where_no_prompt_comes_next_everything_stays() {
        for (line, all) in [(9, vec!["first prompt"]), (11, vec!["first prompt", "second prompt"])] {
            let place = place(REAL);
            let copy = place.trim(line);
            assert_eq!((said(&values(&copy.file)), copy.dropped), (all, 0), "line {line}");
        }
        let place = place(REAL);
        let copy = place.trim(21);
        assert_eq!((said(&values(&copy.file)).len(), copy.dropped), (4, 0), "the end of the file");
    }
}
