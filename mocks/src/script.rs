//! Where in a scenario a conversation stands.
//!
//! Nothing is remembered between requests: the conversation itself says what is to come next. So a retry, a resumed session, a
//! sub-agent beside the main one and a branch cut at some point all get the right answer, in whichever order they ask. A scenario
//! is laid out as paths: the main way from the first prompt to the end, and for each branch the way up to its label and on from
//! there. The way that agrees with all that was said is the place; if none does, that is a mismatch, with the reason.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use serde_json::Value;

use crate::conversation::{Call, Item};
use crate::ids;
use crate::scenario::{Branch, Fault, Prompt, Scenario, Step, Tool};

/// A way through one conversation of a scenario, from its first prompt to its end.
#[derive(Debug, Clone)]
pub struct Path {
    /// The conversation's name.
    pub conversation: String,
    /// The branch's name; none for the main way.
    pub branch: Option<String>,
    /// Every step on it, with the place where it stands in the file (`main/3`, `main/politely/0`).
    pub steps: Vec<(String, Step)>,
    /// What of it is conversation.
    pub beats: Vec<Beat>,
}

/// What a person or the model does in one go.
#[derive(Debug, Clone)]
pub struct Beat {
    /// The place of its first step; the same beat on two paths has the same place.
    pub place: String,
    /// How many of the path's steps are over when it is.
    pub end: usize,
    /// Who does what.
    pub kind: BeatKind,
}

/// Who does what.
#[derive(Debug, Clone)]
pub enum BeatKind {
    /// The person says something.
    Prompt(Prompt),
    /// The model answers.
    Answer(Answer),
}

/// One answer of the model: all up to and with its tool calls, or up to the person's turn.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    /// In order.
    pub blocks: Vec<Block>,
    /// What goes wrong before it comes.
    pub faults: Vec<Fault>,
    /// Milliseconds between two events of the stream.
    pub pace_ms: u64,
    /// What the request is said to have cost.
    pub input_tokens: Option<u64>,
    /// It was given before; nobody asks for it.
    pub given: bool,
    /// What the request must have at which JSON pointers.
    pub request: BTreeMap<String, Value>,
}

/// A part of an answer.
#[derive(Debug, Clone)]
pub enum Block {
    /// Thinking.
    Think(String),
    /// Text.
    Say(String),
    /// A tool call, and what is known about it.
    Call(Call, Box<Tool>),
}

impl Answer {
    /// All that it says.
    #[must_use]
    pub fn text(&self) -> String {
        self.blocks
            .iter()
            .filter_map(|block| if let Block::Say(text) = block { Some(text.as_str()) } else { None })
            .collect()
    }

    /// All that it calls.
    pub fn calls(&self) -> impl Iterator<Item = (&Call, &Tool)> {
        self.blocks
            .iter()
            .filter_map(|block| if let Block::Call(call, tool) = block { Some((call, &**tool)) } else { None })
    }
}

/// A place found: what comes next there.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// On which path.
    pub path: &'a Path,
    /// How many beats are over.
    pub over: usize,
}

impl<'a> Place<'a> {
    /// What comes next.
    #[must_use]
    pub fn next(&self) -> Option<&'a Beat> {
        self.path.beats.get(self.over)
    }
}

/// All paths of a scenario.
#[derive(Debug, Clone)]
pub struct Script {
    paths: Vec<Path>,
}

impl Script {
    /// Lays a scenario out.
    ///
    /// # Errors
    /// Branches that go on from each other in a circle.
    pub fn new(scenario: &Scenario) -> Result<Self> {
        let mut paths = Vec::new();
        for (name, steps, branches) in scenario.all() {
            let main = placed(name, steps);
            paths.push(path(scenario, name, None, main.clone()));
            for branch in branches {
                let steps = along(name, &main, branches, branch, 0)?;
                paths.push(path(scenario, name, Some(&branch.name), steps));
            }
        }
        Ok(Self { paths })
    }

    /// All paths, the main one of the main conversation first.
    #[must_use]
    pub fn paths(&self) -> &[Path] {
        &self.paths
    }

    /// The place at which a conversation stands, the model being next.
    ///
    /// # Errors
    /// It is none of the scenario's; the message says how far it was one, and what came instead of what.
    pub fn locate(&self, items: &[Item]) -> Result<Place<'_>> {
        self.locate_where(
            items,
            |place| matches!(place.next(), Some(Beat { kind: BeatKind::Answer(answer), .. }) if !answer.given),
        )
    }

    /// Whether a conversation begins as one of the scenario's does.
    #[must_use]
    pub fn knows(&self, items: &[Item]) -> bool {
        let first = &items[..items.len().min(1)];
        !first.is_empty() && self.paths.iter().any(|path| follow(path, first).is_ok())
    }

    /// The place at which a conversation stands, with what is to come next chosen by the caller.
    ///
    /// # Errors
    /// As for [`Script::locate`].
    pub fn locate_where(&self, items: &[Item], fits: impl Fn(&Place<'_>) -> bool) -> Result<Place<'_>> {
        // The attempt that came furthest explains best.
        let mut furthest: Option<(usize, String)> = None;
        for path in &self.paths {
            let (over, seen, why) = match follow(path, items) {
                Ok(over) => {
                    let place = Place { path, over };
                    if fits(&place) {
                        return Ok(place);
                    }
                    (over, items.len(), "another turn is due here".to_owned())
                }
                Err(fault) => fault,
            };
            if furthest.as_ref().is_none_or(|(best, _)| seen > *best) {
                let next = path.beats.get(over).map_or_else(|| "nothing more".to_owned(), brief);
                let saw = items.get(seen).map_or_else(|| "the end".to_owned(), Item::brief);
                let branch = path.branch.as_deref().map(|name| format!(", branch {name}")).unwrap_or_default();
                let text = format!(
                    "{}{branch}: after {over} turns the scenario has {next}, the conversation {saw}: {why}",
                    path.conversation
                );
                furthest = Some((seen, text));
            }
        }
        bail!("{}", furthest.map_or_else(|| "there are no paths".to_owned(), |(_, text)| text))
    }
}

/// Steps with their places.
fn placed(name: &str, steps: &[Step]) -> Vec<(String, Step)> {
    steps.iter().enumerate().map(|(at, step)| (format!("{name}/{at}"), step.clone())).collect()
}

/// All steps on the way of a branch: that up to its label, wherever that stands, and its own.
fn along(
    name: &str,
    main: &[(String, Step)],
    branches: &[Branch],
    branch: &Branch,
    depth: usize,
) -> Result<Vec<(String, Step)>> {
    if depth > branches.len() {
        bail!("branch {:?} goes on from itself", branch.name);
    }
    let is_label = |step: &Step| matches!(step, Step::Label(label) if *label == branch.after);
    let own = placed(&format!("{name}/{}", branch.name), &branch.steps);
    let before = match main.iter().position(|(_, step)| is_label(step)) {
        Some(_) => main.to_vec(),
        None => match branches.iter().find(|other| other.steps.iter().any(is_label)) {
            Some(other) => along(name, main, branches, other, depth + 1)?,
            None => bail!("there is no label {:?}", branch.after),
        },
    };
    let end = before.iter().position(|(_, step)| is_label(step)).map_or(0, |at| at + 1);
    Ok(before.into_iter().take(end).chain(own).collect())
}

fn path(scenario: &Scenario, name: &str, branch: Option<&str>, steps: Vec<(String, Step)>) -> Path {
    let mut beats: Vec<Beat> = Vec::new();
    let mut answer = Answer::default();
    let mut first: Option<String> = None;
    for (at, (place, step)) in steps.iter().enumerate() {
        let mut close = |answer: &mut Answer, first: &mut Option<String>, end: usize| {
            if !answer.blocks.is_empty() {
                let place = first.take().unwrap_or_default();
                beats.push(Beat { place, end, kind: BeatKind::Answer(std::mem::take(answer)) });
            }
        };
        let call = |tool: &Tool, which: usize| {
            let id = ids::id("toolu", scenario.seed, &format!("{place}#{which}"));
            let input = tool.input.clone().or_else(|| tool.text.clone().map(Value::String)).unwrap_or_default();
            Block::Call(Call { id, name: tool.name.clone(), input }, Box::new(tool.clone()))
        };
        match step {
            Step::Prompt(prompt) => {
                close(&mut answer, &mut first, at);
                beats.push(Beat { place: place.clone(), end: at + 1, kind: BeatKind::Prompt(prompt.clone()) });
            }
            Step::Said(text) => {
                close(&mut answer, &mut first, at);
                let given = Answer { blocks: vec![Block::Say(text.clone())], given: true, ..Answer::default() };
                beats.push(Beat { place: place.clone(), end: at + 1, kind: BeatKind::Answer(given) });
            }
            Step::Think(text) => {
                first.get_or_insert_with(|| place.clone());
                answer.blocks.push(Block::Think(text.clone()));
            }
            Step::Say(text) => {
                first.get_or_insert_with(|| place.clone());
                answer.blocks.push(Block::Say(text.clone()));
            }
            Step::Tool(tool) => {
                first.get_or_insert_with(|| place.clone());
                answer.blocks.push(call(tool, 0));
                close(&mut answer, &mut first, at + 1);
            }
            Step::Tools(tools) => {
                first.get_or_insert_with(|| place.clone());
                answer.blocks.extend(tools.iter().enumerate().map(|(which, tool)| call(tool, which)));
                close(&mut answer, &mut first, at + 1);
            }
            Step::Fault(fault) => answer.faults.push(fault.clone()),
            Step::PaceMs(pace) => answer.pace_ms = *pace,
            Step::InputTokens(tokens) => answer.input_tokens = Some(*tokens),
            Step::Request(wanted) => answer.request.extend(wanted.clone()),
            _ => {}
        }
    }
    if !answer.blocks.is_empty() {
        beats.push(Beat { place: first.unwrap_or_default(), end: steps.len(), kind: BeatKind::Answer(answer) });
    }
    Path { conversation: name.to_owned(), branch: branch.map(ToOwned::to_owned), steps, beats }
}

/// Follows a path as far as the conversation goes: how many beats are over, or at which beat and item they part, and why.
fn follow(path: &Path, items: &[Item]) -> Result<usize, (usize, usize, String)> {
    let (mut over, mut seen) = (0, 0);
    while seen < items.len() {
        let fault = |why: &str| (over, seen, why.to_owned());
        let Some(beat) = path.beats.get(over) else { return Err(fault("the scenario is over")) };
        match &beat.kind {
            BeatKind::Prompt(prompt) => {
                if items[seen] == Item::Interrupted {
                    if !prompt.after_interrupt() {
                        return Err(fault("nothing was to be interrupted"));
                    }
                    seen += 1;
                    continue;
                }
                match &items[seen] {
                    Item::User(text) if prompt.is(text) => seen += 1,
                    _ => return Err(fault("not that prompt")),
                }
            }
            BeatKind::Answer(answer) => {
                let cut = matches!(path.beats.get(over + 1),
                    Some(Beat { kind: BeatKind::Prompt(prompt), .. }) if prompt.after_interrupt());
                let heard = heard(answer, &items[seen..], cut).map_err(|why| fault(&why))?;
                seen += heard;
            }
        }
        over += 1;
    }
    Ok(over)
}

/// How many items an answer and the results of its calls take up.
fn heard(answer: &Answer, items: &[Item], cut: bool) -> Result<usize, String> {
    let Some(Item::Assistant { text, calls }) = items.first() else {
        return if cut { Ok(0) } else { Err("an answer is missing".to_owned()) };
    };
    let whole = answer.text();
    if text.trim() != whole.trim() && !(cut && whole.starts_with(text.trim_end())) {
        return Err(format!("it should say {whole:?}"));
    }
    let wanted: Vec<(&Call, &Tool)> = answer.calls().collect();
    if calls.len() > wanted.len() || (!cut && calls.len() < wanted.len()) {
        return Err(format!("it should call {} tools", wanted.len()));
    }
    for (call, (meant, _)) in calls.iter().zip(&wanted) {
        if call.name != meant.name || call.id != meant.id || !includes(&call.input, &meant.input) {
            return Err(format!("the call should be {} {} of {}", meant.id, meant.name, meant.input));
        }
    }
    let mut open: Vec<&(&Call, &Tool)> = wanted.iter().take(calls.len()).collect();
    let mut seen = 1;
    while let Some(Item::Result { id, content, error }) = items.get(seen) {
        let Some(at) = open.iter().position(|(call, _)| call.id == *id) else {
            return Err(format!("a result of {id}, which was not called, or has one already"));
        };
        let (_, tool) = open.remove(at);
        if let Some(part) = &tool.expect.contains
            && !content.contains(part)
        {
            return Err(format!("the result of {id} should contain {part:?}, and is {content:?}"));
        }
        if tool.expect.error.is_some_and(|wanted| wanted != *error) {
            return Err(format!("the result of {id} should {}be an error", if *error { "not " } else { "" }));
        }
        seen += 1;
    }
    match open.first() {
        Some((call, _)) if !cut => Err(format!("the call {} has no result", call.id)),
        _ => Ok(seen),
    }
}

/// Whether `seen` has all that `meant` has; agents add members of their own to inputs.
fn includes(seen: &Value, meant: &Value) -> bool {
    match (seen, meant) {
        (Value::Object(seen), Value::Object(meant)) => {
            meant.iter().all(|(name, value)| seen.get(name).is_some_and(|seen| includes(seen, value)))
        }
        _ => seen == meant,
    }
}

fn brief(beat: &Beat) -> String {
    match &beat.kind {
        BeatKind::Prompt(prompt) => format!("the prompt {:?} ({})", prompt.text(), beat.place),
        BeatKind::Answer(answer) => format!("the answer {:?} ({})", answer.text(), beat.place),
    }
}

#[cfg(test)]
mod tests {
    use super::{BeatKind, Script};
    use crate::conversation::{Call, Item};
    use crate::scenario::Scenario;

    const STORY: &str = r#"
name: story
steps:
  - prompt: One
  - say: I write.
  - tool: {name: Write, input: {file_path: a}, expect: {error: false}}
  - label: written
  - say: Done.
  - label: first
  - prompt: Two
  - say: A long answer.
  - prompt: {text: Three, after_interrupt: true}
  - say: Good.
branches:
  - {name: other, after: written, steps: [prompt: Else, say: Else done., label: deep]}
  - {name: deeper, after: deep, steps: [prompt: More, say: More done.]}
conversations:
  - {name: helper, steps: [prompt: {contains: sub}, say: Sub done.]}
"#;

    fn script() -> Script {
        Script::new(&Scenario::parse(STORY, false).unwrap()).unwrap()
    }

    fn user(text: &str) -> Item {
        Item::User(text.to_owned())
    }

    fn said(text: &str) -> Item {
        Item::Assistant { text: text.to_owned(), calls: Vec::new() }
    }

    /// What comes next after these, or why nothing does.
    fn next(script: &Script, items: &[Item]) -> String {
        match script.locate(items) {
            Ok(place) => match &place.next().unwrap().kind {
                BeatKind::Answer(answer) => answer.text(),
                BeatKind::Prompt(_) => unreachable!(),
            },
            Err(error) => format!("no: {error:#}"),
        }
    }

    fn written(script: &Script) -> Vec<Item> {
        let BeatKind::Answer(answer) = &script.paths()[0].beats[1].kind else { unreachable!() };
        let call: Call = answer.calls().next().unwrap().0.clone();
        let result = Item::Result { id: call.id.clone(), content: "ok".into(), error: false };
        vec![user("One"), Item::Assistant { text: "I write.".into(), calls: vec![call] }, result]
    }

    #[test]
    fn the_conversation_says_what_comes_next() {
        let script = script();
        let written = written(&script);
        let after = |more: &[Item]| next(&script, &[&written, more].concat());
        assert_eq!(next(&script, &[user("One")]), "I write.");
        assert_eq!(after(&[]), "Done.");
        assert_eq!(after(&[user("Else")]), "Else done.", "cut after the tool");
        assert_eq!(after(&[user("Else"), said("Else done."), user("More")]), "More done.");
        assert_eq!(after(&[said("Done."), user("Two")]), "A long answer.");
        assert_eq!(next(&script, &[user("this is the sub task")]), "Sub done.");
    }

    #[test]
    fn an_interrupted_answer_may_be_there_in_part() {
        let script = script();
        let before = [written(&script), vec![said("Done."), user("Two")]].concat();
        let after = |more: &[Item]| next(&script, &[&before, more].concat());
        assert_eq!(after(&[Item::Interrupted, user("Three")]), "Good.");
        assert_eq!(after(&[said("A long"), Item::Interrupted, user("Three")]), "Good.");
        assert!(after(&[said("Another"), Item::Interrupted, user("Three")]).contains("it should say"));
    }

    #[test]
    fn what_is_not_of_the_scenario_is_told_with_the_reason() {
        let script = script();
        let written = written(&script);
        assert!(next(&script, &[user("Zero")]).contains("not that prompt"));
        assert!(next(&script, &written[..2]).contains("has no result"));
        let error = Item::Result { id: "x".into(), content: String::new(), error: true };
        assert!(next(&script, &[&written[..2], &[error]].concat()).contains("was not called"));
        // A conversation that was cut too late: the branch's instruction comes after what should be gone.
        let late = [written.clone(), vec![said("Done."), user("Else")]].concat();
        assert!(next(&script, &late).contains("no: "));
        assert!(next(&script, &[written, vec![said("Done.")]].concat()).contains("another turn"));
    }
}
