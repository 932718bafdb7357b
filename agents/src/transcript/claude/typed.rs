//! Which messages are a person's prompts, and which look so.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::transcript::line::{What, text_of};

/// How a notice begins of a command in the background that ended.
pub(crate) const NOTICE: &str = "<task-notification>";

/// What a message is whose text a person may have typed.
pub(super) fn by_text(text: &str, id: Option<String>) -> What {
    const OWN: [&str; 7] = [
        "<command-name>",
        "<local-command-",
        "<bash-input>",
        "<bash-stdout>",
        "<bash-stderr>",
        "<system-reminder>",
        "[Request interrupted by user",
    ];
    let text = text.trim();
    if text.is_empty() || text.starts_with(NOTICE) {
        return What::Other;
    }
    if OWN.iter().any(|head| text.starts_with(head)) {
        return What::Unsure { text: text.to_owned(), id, by_agent: false };
    }
    // A command of the user's own, `/fix this`, which becomes a prompt. Those of the program begin with the name instead.
    if text.starts_with("<command-message>") {
        let part = |tag: &str| {
            text.split_once(&format!("<{tag}>"))?.1.split_once(&format!("</{tag}>")).map(|(inner, _)| inner.trim())
        };
        return match part("command-name") {
            Some(name) => {
                let text = format!("{name} {}", part("command-args").unwrap_or_default()).trim().to_owned();
                What::Prompt { text, id }
            }
            None => What::Unsure { text: text.to_owned(), id, by_agent: false },
        };
    }
    What::Prompt { text: text.to_owned(), id }
}

/// What a message is that is no person's: the prompt of a turn that nobody asked for, which was scheduled, say, or one of the program's many notes.
pub(super) fn by_agent(text: &str, id: Option<String>) -> What {
    match by_text(text, id) {
        What::Prompt { text, id } | What::Unsure { text, id, .. } => What::Unsure { text, id, by_agent: true },
        other => other,
    }
}

/// What a person typed while the agent was at work.
pub(super) fn queued(attachment: Option<&RawValue>) -> Option<String> {
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Queued<'a> {
        #[serde(borrow, rename = "type")]
        kind: Option<&'a RawValue>,
        #[serde(borrow)]
        prompt: Option<&'a RawValue>,
        #[serde(borrow, rename = "commandMode")]
        mode: Option<&'a RawValue>,
    }
    let raw = attachment.filter(|raw| raw.get().contains("queued_command"))?;
    let queued: Queued<'_> = serde_json::from_str(raw.get()).ok()?;
    let is = |raw, value| text_of(raw).as_deref() == Some(value);
    (is(queued.kind, "queued_command") && is(queued.mode, "prompt"))
        .then(|| text_of(queued.prompt).map(Cow::into_owned))
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{place, values};
    use crate::Agent;
    use crate::hook::HookKind;
    use crate::transcript::line::time_of;
    use crate::transcript::{Caught, Position, Sought, catch_up, prompts};

    /// A real session: a prompt that has another one scheduled, and a minute later that one. In lines: 5, and 13 to 16.
    const SCHEDULED: &str = include_str!("../../../fixtures/claude/scheduled.jsonl");

    #[test]
    fn a_scheduled_prompt_is_none_of_a_persons_and_has_its_place_before_all_that_comes_with_it() {
        let place = place(SCHEDULED);
        let catch = |id, text, time| {
            let kind = HookKind::Prompt;
            let time = time_of(time).unwrap();
            let sought =
                Sought { kind: &kind, tool_id: None, prompt_id: Some(id), prompt: Some(text), time, written: 0 };
            catch_up(Agent::Claude, &sought, &Position::start(&place.file)).unwrap()
        };
        let (id, text, time) = ("153648db-9bf6-4d52-9e72-5a0552375ded", "check the build", "2026-12-01T07:23:01.200Z");
        let found = catch(id, text, time);
        assert!(matches!(&found, Caught::ByAgent(at) if at.line == 12), "{found:?}");
        let typed = catch("54a099f1-5512-4f7f-87f8-ac6ccb5deb91", "One", "2026-12-01T07:22:08.800Z");
        assert!(matches!(&typed, Caught::Exact(at) if at.line == 2), "{typed:?}");
        // Either alone tells nothing: notes of the program bear the id of the prompt that they belong to, and say anything.
        for other in [catch("another", text, time), catch(id, "another", time)] {
            assert!(!matches!(other, Caught::ByAgent(_)), "{other:?}");
        }
        let told = vec![(id.to_owned(), text.to_owned())];
        let all = prompts(Agent::Claude, &place.file, None).unwrap().told(told);
        let all: Vec<String> = all.map(|prompt| prompt.unwrap().text).collect();
        assert_eq!(all, ["One"]);
        let copy = place.trim_at(found.position()).unwrap();
        assert_eq!((copy.lines, copy.dropped), (12, 0));
        assert!(values(&copy.file).iter().all(|line| line["message"]["content"] != text));
    }
}
