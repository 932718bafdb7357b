//! What of a transcript does not come along into a copy that ends at a place.
//!
//! A call whose result lies behind the place must not stay: the model's API refuses it. Its line goes, and what hung on it (a parallel call, a
//! note by a hook) hangs on what it hung on. If the line has other calls too, their results go with it. What points at a message that is not
//! in the copy goes, and so do notes that would take the session to another directory or to a remote one, and what the agent's own `/rewind` gave
//! up right before the place (`rewound`).

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};

use ah_plugin_api::{Result, Timestamp};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::Line;
use super::rewound::Rewound;
use crate::transcript::copy::Until;
use crate::transcript::line::{Lines, is_true, text_of, time_of};

/// See the module.
#[derive(Default)]
pub(super) struct Plan {
    /// Numbers of the lines that go.
    pub(super) dropped: HashSet<u64>,
    /// Of each message that goes, on what its followers hang instead.
    pub(super) heirs: HashMap<String, Option<String>>,
    /// Messages of the conversation that stay.
    pub(super) messages: u64,
    /// Sub-agents whose results stay.
    pub(super) agents: Vec<String>,
    /// Whether tasks were put on the list.
    pub(super) tasks: bool,
    /// When the latest line was made that has a time; after a clock was set back it is not the last one.
    pub(super) until: Option<Timestamp>,
}

/// A line that matters because of the calls or results in it.
struct Knot {
    line: u64,
    uuid: Option<String>,
    parent: Option<String>,
    /// Whether it is counted among [`Plan::messages`].
    counts: bool,
}

/// A line with calls.
struct Calls {
    knot: Knot,
    open: HashSet<String>,
    results: Vec<usize>,
}

/// A line with results, kept while something could still drop it.
struct Results {
    knot: Knot,
    /// The lines with the calls, if there are several.
    calls: Vec<usize>,
}

/// Reads `lines` up to `until` and decides.
pub(super) fn plan(lines: &mut Lines, until: &Until, mut rewound: Rewound) -> Result<Plan> {
    let mut plan = Plan::default();
    let hasher = RandomState::new();
    let hash = |text: &str| hasher.hash_one(text);
    let mut ids: HashSet<u64> = HashSet::new();
    let mut answered: HashSet<u64> = HashSet::new();
    let mut pointers: Vec<(u64, u64)> = Vec::new();
    let mut calls: HashMap<usize, Calls> = HashMap::new();
    let mut by_id: HashMap<String, Vec<usize>> = HashMap::new();
    let mut results: HashMap<usize, Results> = HashMap::new();
    let mut serial = 0_usize;
    loop {
        if until.reached(lines.offset)? {
            break;
        }
        let number = lines.line + 1;
        let Some(bytes) = lines.next()? else { break };
        let Some(line) = Line::parse(bytes) else { continue };
        let time = text_of(line.timestamp).and_then(|text| time_of(&text));
        if until.is_before(time) {
            // Whatever comes later in the file is later too.
            plan.dropped.insert(number);
            break;
        }
        plan.until = plan.until.max(time);
        if rewound.takes(&line) {
            plan.dropped.insert(number);
            continue;
        }
        let uuid = text_of(line.uuid);
        if let Some(uuid) = &uuid {
            ids.insert(hash(uuid));
        }
        let kind = line.kind();
        match kind.as_ref() {
            "worktree-state" | "relocated" | "bridge-session" => {
                plan.dropped.insert(number);
            }
            "summary" | "last-prompt" => {
                if let Some(leaf) = text_of(line.leaf) {
                    pointers.push((number, hash(&leaf)));
                }
            }
            "user" | "assistant" => {
                let counts = !is_true(line.sidechain);
                plan.messages += u64::from(counts);
                let content = line.content();
                plan.tasks |= content.tasks;
                if content.calls.is_empty() && content.results.is_empty() {
                    continue;
                }
                let knot = Knot {
                    line: number,
                    uuid: uuid.map(Cow::into_owned),
                    parent: text_of(line.parent).map(Cow::into_owned),
                    counts,
                };
                serial += 1;
                if content.results.is_empty() {
                    let open: HashSet<String> =
                        content.calls.into_iter().filter(|id| !answered.contains(&hash(id))).collect();
                    if open.is_empty() {
                        continue;
                    }
                    open.iter().for_each(|id| by_id.entry(id.clone()).or_default().push(serial));
                    calls.insert(serial, Calls { knot, open, results: Vec::new() });
                    continue;
                }
                plan.agents.extend(agent_of(line.result));
                let mut of: Vec<usize> = Vec::new();
                for id in &content.results {
                    answered.insert(hash(id));
                    for call in by_id.remove(id).unwrap_or_default() {
                        if let Some(entry) = calls.get_mut(&call) {
                            entry.open.remove(id);
                            entry.results.push(serial);
                            of.push(call);
                        }
                    }
                }
                of.sort_unstable();
                of.dedup();
                // One call and one result, answered: nothing can part them any more.
                let settled = |call: &usize| {
                    calls.get(call).is_some_and(|entry| entry.open.is_empty() && entry.results.len() == 1)
                };
                if of.len() == 1 && of.iter().all(settled) {
                    calls.remove(&of[0]);
                } else if !of.is_empty() {
                    results.insert(serial, Results { knot, calls: of });
                }
            }
            _ => {}
        }
    }
    // Whatever hangs together with an unanswered call goes.
    let mut parents: HashMap<String, Option<String>> = HashMap::new();
    let mut go: Vec<usize> =
        calls.iter().filter(|(_, entry)| !entry.open.is_empty()).map(|(serial, _)| *serial).collect();
    while let Some(serial) = go.pop() {
        let Some(entry) = calls.remove(&serial) else { continue };
        let mut gone = vec![entry.knot];
        for result in entry.results {
            if let Some(result) = results.remove(&result) {
                go.extend(result.calls);
                gone.push(result.knot);
            }
        }
        for knot in gone {
            plan.dropped.insert(knot.line);
            plan.messages -= u64::from(knot.counts);
            if let Some(uuid) = knot.uuid {
                ids.remove(&hash(&uuid));
                parents.insert(uuid, knot.parent);
            }
        }
    }
    plan.dropped.extend(pointers.iter().filter(|(_, leaf)| !ids.contains(leaf)).map(|(line, _)| *line));
    plan.heirs = parents.keys().map(|uuid| (uuid.clone(), heir(uuid, &parents))).collect();
    Ok(plan)
}

/// The nearest ancestor of `uuid` that is not gone.
fn heir(uuid: &str, parents: &HashMap<String, Option<String>>) -> Option<String> {
    let mut at = uuid;
    // As many steps as there are lines gone; a cycle, which no real transcript has, ends it.
    for _ in 0..=parents.len() {
        match parents.get(at) {
            Some(Some(parent)) => at = parent,
            Some(None) => return None,
            None => return Some(at.to_owned()),
        }
    }
    None
}

/// The sub-agent whose result this is.
fn agent_of(result: Option<&RawValue>) -> Option<String> {
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Of<'a> {
        #[serde(borrow, rename = "agentId")]
        agent: Option<&'a RawValue>,
    }
    let raw = result.filter(|raw| raw.get().contains("\"agentId\""))?;
    let of: Of<'_> = serde_json::from_str(raw.get()).ok()?;
    // It becomes part of a file's name.
    let id = text_of(of.agent)?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (!id.is_empty() && id.len() <= 64 && id.bytes().all(plain)).then(|| id.into_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::place;

    #[test]
    fn who_goes_on_hears_that_tasks_stay_where_they_were_made() {
        let message = |kind: &str, content: serde_json::Value| json!({"type": kind, "message": {"role": kind, "content": content}});
        let call = |name: &str| json!([{"type": "tool_use", "id": name, "name": name, "input": {}}]);
        let result = |name: &str| json!([{"type": "tool_result", "tool_use_id": name, "content": "TaskCreate"}]);
        let lines = [
            message("user", json!("make TaskCreate a list")),
            message("assistant", call("Bash")),
            message("user", result("Bash")),
            message("assistant", call("TaskCreate")),
            message("user", result("TaskCreate")),
        ];
        let place = place(&lines.map(|line| format!("{line}\n")).concat());
        let before = place.trim(3);
        assert_eq!(before.notes, Vec::<String>::new());
        std::fs::remove_file(before.file).unwrap();
        assert!(place.trim(5).notes[0].contains("tasks"));
    }
}
