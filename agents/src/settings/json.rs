//! Hooks in a JSON file, `{"hooks": {EVENT: [{"hooks": [{"type": "command", "command": …}]}]}}`, changed without touching what else is in it.
//!
//! Claude Code and Codex read plain JSON: with a comment in it they do not read the file at all. Gemini CLI takes comments.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use ah_plugin_api::{Error, ErrorKind, Result};
use jsonc_parser::ParseOptions;
use jsonc_parser::cst::{CstArray, CstInputValue, CstNode, CstObject, CstObjectProp, CstRootNode};

use super::events::{Hook, ah_of, is_ours};
use super::surrogates::Aside;
use crate::Agent;

/// A byte order mark, which some editors put in front.
const MARK: char = '\u{feff}';

/// What [`look`] found.
#[derive(Default)]
pub(super) struct Found {
    pub(super) ours: Vec<Ours>,
    /// Where those of others stand.
    pub(super) others: Vec<Spot>,
}

/// Where a hook stands: the event, which group of it, and which hook of that group.
pub(super) type Spot = (String, usize, usize);

/// A hook of ours, and where it stands.
pub(super) struct Ours {
    pub(super) event: String,
    pub(super) command: String,
    /// The `ah` that it calls, where that can be told.
    pub(super) ah: Option<PathBuf>,
    /// Whether it is called whenever the event comes.
    pub(super) always: bool,
    pub(super) timeout: Option<u32>,
    pub(super) matcher: Option<String>,
    /// Which group of the event, and which hook of that group.
    pub(super) place: (usize, usize),
}

impl Found {
    /// As if the events of a plugin of ours, which calls `ah`, were hooks.
    pub(super) fn plugin(ah: Option<&Path>, current: bool, wanted: &[Hook]) -> Self {
        let of = |hook: &Hook| Ours {
            event: hook.event.clone(),
            command: if current { hook.command.clone() } else { String::new() },
            ah: ah.map(Path::to_owned),
            always: true,
            timeout: None,
            matcher: None,
            place: (0, 0),
        };
        Self { ours: wanted.iter().map(of).collect(), others: Vec::new() }
    }
}

/// `text` with `wanted` in it, each of them once; the same text if they are there.
pub(super) fn with(agent: Agent, file: &Path, text: &str, wanted: &[Hook]) -> Result<String> {
    let (mark, text) = split(text);
    let (root, aside) = parse(agent, file, text)?;
    let top = if root.value().is_none() { root.object_value_or_create() } else { root.object_value() };
    let top = top.ok_or_else(|| odd(file, "it is not an object"))?;
    let hooks = match top.get("hooks") {
        None => top.append("hooks", CstInputValue::Object(Vec::new())).object_value(),
        Some(_) => top.object_value("hooks"),
    };
    let hooks = hooks.ok_or_else(|| odd(file, "its member `hooks` is not an object"))?;
    let mut changed = false;
    for hook in wanted {
        let list = match hooks.get(&hook.event) {
            None => hooks.append(&hook.event, CstInputValue::Array(Vec::new())).array_value(),
            Some(_) => hooks.array_value(&hook.event),
        };
        let list = list.ok_or_else(|| odd(file, &format!("its hooks for {} are not a list", hook.event)))?;
        let mut there = false;
        for entry in entries(&list).into_iter().filter(|entry| entry.command.as_deref().is_some_and(is_ours)) {
            let always = entry.is_always_run();
            changed |= there || !always;
            // Again, as two files that became one leave it: some agents would run both.
            if there || !always && !entry.mend() {
                entry.take_out();
                continue;
            }
            if entry.command.as_deref() != Some(&hook.command)
                && let Some(command) = entry.object.get("command")
            {
                command.set_value(CstInputValue::String(hook.command.clone()));
                changed = true;
            }
            there = true;
        }
        if !there {
            list.append(group(hook));
            changed = true;
        }
    }
    Ok(if changed { format!("{mark}{}", aside.back(&root.to_string())) } else { format!("{mark}{text}") })
}

/// `text` without any hook of ours; the same text if there is none. What was empty in `former` stays so.
pub(super) fn without(agent: Agent, file: &Path, text: &str, former: Option<&str>) -> Result<String> {
    let (mark, text) = split(text);
    let (root, aside) = parse(agent, file, text)?;
    let Some(hooks) = root.object_value().and_then(|top| top.object_value("hooks")) else {
        return Ok(format!("{mark}{text}"));
    };
    let former =
        former.and_then(|former| parse(agent, file, split(former).1).ok()?.0.object_value()?.object_value("hooks"));
    let was_there = |event: &str| former.as_ref().is_some_and(|former| former.get(event).is_some());
    let mut changed = false;
    for event in hooks.properties() {
        let Some(list) = event.array_value() else { continue };
        for entry in entries(&list).into_iter().filter(|entry| entry.command.as_deref().is_some_and(is_ours)) {
            changed = true;
            entry.take_out();
        }
        let empty = list.elements().is_empty() && !noted(&list.children());
        if changed && empty && !event.decoded_name().is_some_and(|name| was_there(&name)) {
            event.remove();
        }
    }
    if changed
        && hooks.properties().is_empty()
        && !noted(&hooks.children())
        && former.is_none()
        && let Some(member) = root.object_value().and_then(|top| top.get("hooks"))
    {
        member.remove();
    }
    Ok(if changed { format!("{mark}{}", aside.back(&root.to_string())) } else { format!("{mark}{text}") })
}

/// Whether all that `former` says stands in `text` too, comments included.
pub(super) fn holds(agent: Agent, text: &str, former: &str) -> bool {
    let parsed = |text| parse(agent, Path::new(""), split(text).1).ok();
    let (Some((now, put)), Some((former, put_formerly))) = (parsed(text), parsed(former)) else { return false };
    let there = former.value().is_none_or(|former| now.value().is_some_and(|now| contains(&now, &former)));
    // What stands for an escape means the same in both.
    there && put == put_formerly && comments(&former.children()).is_subset(&comments(&now.children()))
}

fn contains(now: &CstNode, former: &CstNode) -> bool {
    if let (Some(now), Some(former)) = (now.as_object(), former.as_object()) {
        let members = |object: &CstObject| -> BTreeMap<_, _> {
            let all = object.properties().into_iter();
            all.map(|member| (member.decoded_name(), member.value())).collect()
        };
        let there = members(&now);
        return members(&former).iter().all(|(name, former)| match (there.get(name), former) {
            (Some(Some(now)), Some(former)) => contains(now, former),
            _ => false,
        });
    }
    if let (Some(now), Some(former)) = (now.as_array(), former.as_array()) {
        let mut rest = now.elements().into_iter();
        return former.elements().iter().all(|former| rest.any(|now| contains(&now, former)));
    }
    now.to_string() == former.to_string()
}

fn comments(children: &[CstNode]) -> BTreeSet<String> {
    let of = |child: &CstNode| {
        if child.is_comment() { BTreeSet::from([child.to_string()]) } else { comments(&child.children()) }
    };
    children.iter().flat_map(of).collect()
}

/// Whether somebody wrote a comment among them.
fn noted(children: &[CstNode]) -> bool {
    children.iter().any(CstNode::is_comment)
}

/// Which hooks are in `text`.
pub(super) fn look(agent: Agent, file: &Path, text: &str) -> Result<Found> {
    let (root, _) = parse(agent, file, split(text).1)?;
    let mut found = Found::default();
    let Some(hooks) = root.object_value().and_then(|top| top.object_value("hooks")) else { return Ok(found) };
    for event in hooks.properties() {
        let (Some(list), Some(name)) = (event.array_value(), event.decoded_name()) else { continue };
        for entry in entries(&list) {
            let always = entry.is_always_run();
            match entry.command.filter(|command| is_ours(command)) {
                None => found.others.push((name.clone(), entry.place.0, entry.place.1)),
                Some(command) => found.ours.push(Ours {
                    event: name.clone(),
                    ah: ah_of(&command),
                    command,
                    always,
                    timeout: number(&entry.object, "timeout"),
                    matcher: text_of(&entry.group, "matcher"),
                    place: entry.place,
                }),
            }
        }
    }
    Ok(found)
}

/// One hook in the file.
struct Entry {
    group: CstObject,
    list: CstArray,
    object: CstObject,
    command: Option<String>,
    place: (usize, usize),
}

impl Entry {
    /// Whether the agent calls its command whenever the event comes: a matcher, or a condition (`if`, of Claude Code's), lets only some of them through, and
    /// of another type it is no command.
    fn is_always_run(&self) -> bool {
        self.is_for_all() && self.is_command() && self.object.get("if").is_none()
    }

    fn is_for_all(&self) -> bool {
        match self.group.get("matcher") {
            None => true,
            Some(_) => text_of(&self.group, "matcher").is_some_and(|matcher| matches!(matcher.as_str(), "" | "*")),
        }
    }

    fn is_command(&self) -> bool {
        text_of(&self.object, "type").as_deref() == Some("command")
    }

    /// Has it run whenever the event comes, where it stands: Codex knows hooks by their places, those behind it too. False if the matcher is others' as well.
    fn mend(&self) -> bool {
        if !self.is_for_all() {
            if self.list.elements().len() > 1 {
                return false;
            }
            self.group.get("matcher").into_iter().for_each(CstObjectProp::remove);
        }
        self.object.get("if").into_iter().for_each(CstObjectProp::remove);
        if !self.is_command() {
            self.object.get("type").into_iter().for_each(CstObjectProp::remove);
            self.object.insert(0, "type", CstInputValue::String("command".into()));
        }
        true
    }

    fn take_out(self) {
        self.object.remove();
        // A group that held nothing else is ours too.
        if self.list.elements().is_empty() && !noted(&self.list.children()) && !noted(&self.group.children()) {
            self.group.remove();
        }
    }
}

fn entries(event: &CstArray) -> Vec<Entry> {
    let mut all = Vec::new();
    for (outer, group) in event.elements().into_iter().enumerate() {
        let Some(group) = group.as_object() else { continue };
        let Some(list) = group.array_value("hooks") else { continue };
        for (inner, object) in list.elements().iter().filter_map(CstNode::as_object).enumerate() {
            let command = text_of(&object, "command");
            all.push(Entry { group: group.clone(), list: list.clone(), object, command, place: (outer, inner) });
        }
    }
    all
}

fn group(hook: &Hook) -> CstInputValue {
    let entry = vec![
        ("type".to_owned(), CstInputValue::String("command".into())),
        ("command".to_owned(), CstInputValue::String(hook.command.clone())),
        ("timeout".to_owned(), CstInputValue::Number(hook.timeout.to_string())),
    ];
    CstInputValue::Object(vec![("hooks".into(), CstInputValue::Array(vec![CstInputValue::Object(entry)]))])
}

fn text_of(object: &CstObject, name: &str) -> Option<String> {
    object.get(name)?.value()?.as_string_lit()?.decoded_value().ok()
}

fn number(object: &CstObject, name: &str) -> Option<u32> {
    object.get(name)?.value()?.to_string().parse().ok()
}

fn split(text: &str) -> (&str, &str) {
    text.strip_prefix(MARK).map_or(("", text), |rest| (&text[..MARK.len_utf8()], rest))
}

fn parse(agent: Agent, file: &Path, text: &str) -> Result<(CstRootNode, Aside)> {
    let comments = agent == Agent::Gemini;
    let options = ParseOptions {
        allow_comments: comments,
        allow_loose_object_property_names: false,
        allow_trailing_commas: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        allow_bare_decimal_point_numbers: false,
        allow_non_finite_numbers: false,
        allow_extended_string_escapes: false,
    };
    if !comments && !text.trim_ascii().is_empty() {
        // The parser that keeps the spelling is more lenient than the agents' own.
        serde_json::from_str::<serde::de::IgnoredAny>(text).map_err(|error| odd(file, &error.to_string()))?;
    }
    let (text, aside) = Aside::put(text);
    let root = CstRootNode::parse(&text, &options).map_err(|error| odd(file, &error.to_string()))?;
    if let Some(top) = root.object_value() {
        only_once(file, &top, |name| matches!(name, "hooks" | SWITCH))?;
        if let Some(hooks) = top.object_value("hooks") {
            only_once(file, &hooks, |_| true)?;
            let groups = objects(hooks.properties().iter().filter_map(CstObjectProp::array_value));
            groups.iter().try_for_each(|group| only_once(file, group, |_| true))?;
            let each = objects(groups.iter().filter_map(|group| group.array_value("hooks")));
            each.iter().try_for_each(|hook| only_once(file, hook, |_| true))?;
        }
    }
    Ok((root, aside))
}

fn objects(lists: impl Iterator<Item = CstArray>) -> Vec<CstObject> {
    lists.flat_map(|list| list.elements()).filter_map(|one| one.as_object()).collect()
}

/// Agents take the last of several members of one name: who looked at another one would see, or change, what does not count.
fn only_once(file: &Path, object: &CstObject, counts: impl Fn(&str) -> bool) -> Result<()> {
    let mut names = BTreeSet::new();
    let all = object.properties().into_iter().filter_map(|member| member.decoded_name());
    match all.filter(|name| counts(name)).find(|name| !names.insert(name.clone())) {
        Some(name) => Err(odd(file, &format!("its member `{name}` is there twice, and only the last one counts"))),
        None => Ok(()),
    }
}

/// The member that switches off all hooks of Claude Code.
pub(super) const SWITCH: &str = "disableAllHooks";

/// What the member that `names` lead to says; none if it is not there, or says neither.
pub(super) fn said(agent: Agent, text: &str, names: &[&str]) -> Option<bool> {
    let (root, _) = parse(agent, Path::new(""), split(text).1).ok()?;
    let (last, above) = names.split_last()?;
    let object = above.iter().try_fold(root.object_value()?, |object, name| object.object_value(name))?;
    object.get(last)?.value()?.to_string().parse().ok()
}

fn odd(file: &Path, why: &str) -> Error {
    let message = format!("{} is not what its agent could read: {why}", file.display());
    let mut path = Vec::new();
    crate::launch::quote(std::os::unix::ffi::OsStrExt::as_bytes(file.as_os_str()), &mut path);
    let path = String::from_utf8_lossy(&path).into_owned();
    Error::new(ErrorKind::FailedPrecondition, message)
        .with_hint(format!("nothing was changed; mend it, then repeat: ${{EDITOR:-vi}} {path}"))
}
