//! Which messages are a person's prompts, and which look so.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::Content;
use crate::transcript::line::{What, is_true, text_of, value_of};

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

/// What the type is of an attachment that waited in the queue while the agent was at work.
pub(in crate::transcript) const QUEUED: &str = "queued_command";

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
        #[serde(borrow, rename = "isMeta")]
        meta: Option<&'a RawValue>,
        #[serde(borrow)]
        origin: Option<&'a RawValue>,
    }
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Origin<'a> {
        #[serde(borrow)]
        kind: Option<&'a RawValue>,
    }
    let raw = attachment.filter(|raw| raw.get().contains(QUEUED))?;
    let queued: Queued<'_> = serde_json::from_str(raw.get()).ok()?;
    let is = |raw, value| text_of(raw).as_deref() == Some(value);
    // Older versions do not say whose it is.
    let is_persons = queued.origin.is_none_or(|origin| {
        serde_json::from_str::<Origin<'_>>(origin.get()).is_ok_and(|origin| is(origin.kind, "human"))
    });
    if !(is(queued.kind, QUEUED) && is(queued.mode, "prompt") && is_persons) || is_true(queued.meta) {
        return None;
    }
    // With an image it is a list.
    let listed = || queued.prompt.and_then(value_of).map(|content: Content| content.text);
    let text = text_of(queued.prompt).map(Cow::into_owned).or_else(listed);
    text.filter(|text| !text.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::super::tests::{place, values};
    use crate::Agent;
    use crate::hook::HookKind;
    use crate::transcript::line::time_of;
    use crate::transcript::{Caught, Position, Sought, catch_up, position_and_meanwhile, prompts};

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
        let all = all.map(Result::unwrap).map(|prompt| (prompt.text, prompt.by_agent, prompt.before.line));
        let wanted = [("One".to_owned(), false, 2), ("check the build".to_owned(), true, 12)];
        assert_eq!(all.collect::<Vec<_>>(), wanted);
        let untold = prompts(Agent::Claude, &place.file, None).unwrap().map(|prompt| prompt.unwrap().text);
        assert_eq!(untold.collect::<Vec<_>>(), ["One"]);
        let copy = place.trim_at(found.position()).unwrap();
        assert_eq!((copy.lines, copy.dropped), (12, 0));
        assert!(values(&copy.file).iter().all(|line| line["message"]["content"] != text));
    }

    /// A real session: a prompt, and another one that was typed while a tool ran. In lines: 5 and 10.
    const MEANWHILE: &str = include_str!("../../../fixtures/claude/meanwhile.jsonl");

    #[test]
    fn what_was_typed_while_the_agent_was_at_work_is_told_once_with_its_place() {
        let place = place(MEANWHILE);
        let since = |line| {
            let (end, all) = position_and_meanwhile(Agent::Claude, &place.file, Some(&place.at(line))).unwrap();
            assert_eq!(end.line, 13);
            all.into_iter().map(|prompt| (prompt.text, prompt.before.line, prompt.position.line)).collect::<Vec<_>>()
        };
        for line in [0, 6, 9] {
            assert_eq!(since(line), [("Two please".to_owned(), 9, 10)], "from line {line}");
        }
        assert_eq!(since(10), []);
        // Of a file that nobody has looked at before it is not known what has been told.
        assert_eq!(position_and_meanwhile(Agent::Claude, &place.file, None).unwrap().1, []);
        let of = |changed: &str| {
            let place = super::super::tests::place(&MEANWHILE.replace(r#""kind":"human"},"timestamp""#, changed));
            let all = position_and_meanwhile(Agent::Claude, &place.file, Some(&place.at(6))).unwrap().1;
            let prompts = prompts(Agent::Claude, &place.file, None).unwrap().count();
            (all.len(), prompts)
        };
        assert_eq!(of(r#""kind":"human"},"timestamp""#), (1, 2));
        assert_eq!(of(r#""kind":"channel"},"timestamp""#), (0, 1));
        assert_eq!(of(r#""kind":"human"},"isMeta":true,"timestamp""#), (0, 1));
    }

    #[test]
    fn what_was_typed_meanwhile_with_an_image_is_its_text() {
        let blocks = r#""prompt":[{"type":"image","source":{}},{"type":"text","text":"Two please"}]"#;
        let lines = MEANWHILE.replace(r#""prompt":"Two please""#, blocks);
        assert_ne!(lines, MEANWHILE);
        let place = place(&lines);
        let all = position_and_meanwhile(Agent::Claude, &place.file, Some(&place.at(6))).unwrap().1;
        assert_eq!(all.iter().map(|prompt| prompt.text.as_str()).collect::<Vec<_>>(), ["Two please"]);
    }

    #[test]
    fn of_much_that_was_typed_meanwhile_the_last_is_told() {
        let typed = MEANWHILE.lines().find(|line| line.contains("queued_command")).unwrap();
        let lines = (0..40).map(|number| format!("{}\n", typed.replace("Two please", &format!("{number}"))));
        let place = place(&lines.collect::<String>());
        let all = position_and_meanwhile(Agent::Claude, &place.file, Some(&Position::start(&place.file))).unwrap().1;
        let told: Vec<(&str, u64)> = all.iter().map(|prompt| (prompt.text.as_str(), prompt.position.line)).collect();
        let wanted: Vec<(String, u64)> = (24..40).map(|number| (number.to_string(), number + 1)).collect();
        assert_eq!(told, wanted.iter().map(|(text, line)| (text.as_str(), *line)).collect::<Vec<_>>());
    }

    /// However it is cut into what is read at once.
    #[test]
    fn what_was_typed_meanwhile_is_found_behind_much_else() {
        let (before, after) = MEANWHILE.split_at(MEANWHILE.find("queued_command").unwrap());
        let start = before.rfind('\n').unwrap() + 1;
        for more in (0..40).map(|more| 256 * 1024 - 16 + more) {
            let filler =
                format!("{{\"type\":\"x\",\"more\":\"{}\"}}\n", "x".repeat(more - (before.len() - start) - 24));
            let place = place(&format!("{filler}{}{after}", &before[start..]));
            let all =
                position_and_meanwhile(Agent::Claude, &place.file, Some(&Position::start(&place.file))).unwrap().1;
            assert_eq!(all.len(), 1, "{more}");
        }
    }
}
