//! The fields of an event. One that is not as it should be reads as absent, and never makes the event unreadable.

use std::fmt;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::{Agent, transcript};

/// So many tasks are looked at: more than an agent has.
const TASKS: usize = 1000;

/// What can be made of any value; of what it does not ask for it makes its default.
trait Loose: Default {
    fn of_text(_: &str) -> Self {
        Self::default()
    }
    fn of_bool(_: bool) -> Self {
        Self::default()
    }
    fn of_list<'de, A: SeqAccess<'de>>(mut list: A) -> Result<Self, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Self::default())
    }
    fn of_object<'de, A: MapAccess<'de>>(mut object: A) -> Result<Self, A::Error> {
        while object.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Self::default())
    }
}

struct Any<T>(PhantomData<T>);

impl<'de, T: Loose> Visitor<'de> for Any<T> {
    type Value = T;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }
    fn visit_str<E>(self, text: &str) -> Result<T, E> {
        Ok(T::of_text(text))
    }
    fn visit_bool<E>(self, value: bool) -> Result<T, E> {
        Ok(T::of_bool(value))
    }
    fn visit_i64<E>(self, _: i64) -> Result<T, E> {
        Ok(T::default())
    }
    fn visit_u64<E>(self, _: u64) -> Result<T, E> {
        Ok(T::default())
    }
    fn visit_f64<E>(self, _: f64) -> Result<T, E> {
        Ok(T::default())
    }
    fn visit_unit<E>(self) -> Result<T, E> {
        Ok(T::default())
    }
    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<T, A::Error> {
        T::of_list(list)
    }
    fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<T, A::Error> {
        T::of_object(object)
    }
}

macro_rules! reads_anything {
    ($($name:ty),*) => {$(
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(Any(PhantomData))
            }
        }
    )*};
}
reads_anything!(Text, Truth, Input, Response, Tasks, Task);

/// Text that is not empty.
#[derive(Debug, Default)]
pub(super) struct Text(pub(super) Option<String>);

impl Loose for Text {
    fn of_text(text: &str) -> Self {
        Self(Some(text.to_owned()).filter(|text| !text.is_empty()))
    }
}

impl Text {
    /// Whether it is the agent's own notice of a command in the background that ended. Of other texts that look like the agent's a person may have typed
    /// or pasted the beginning.
    pub(super) fn is_notice(&self, agent: Agent) -> bool {
        agent == Agent::Claude
            && self.0.as_deref().is_some_and(|text| text.trim_start().starts_with(transcript::NOTICE))
    }

    /// As an absolute path.
    pub(super) fn path(&self) -> Option<PathBuf> {
        self.0.as_deref().map(Path::new).filter(|path| path.is_absolute()).map(Path::to_path_buf)
    }
}

/// Whether it is `true`.
#[derive(Default)]
struct Truth(bool);

impl Loose for Truth {
    fn of_bool(value: bool) -> Self {
        Self(value)
    }
}

/// Of a tool's input whether its command goes on in the background, which Claude Code tells by `run_in_background`, and what it is about.
#[derive(Debug, Default)]
pub(super) struct Input {
    /// Whether the tool ends before its command does.
    pub(super) background: bool,
    command: Text,
    file: Text,
    words: Text,
}

impl Input {
    /// What the tool was asked for, from the agent's directory.
    pub(super) fn about(&self, cwd: &Path) -> Option<String> {
        let Text(Some(text)) = &self.command else {
            let inside = |file: &str| Path::new(file).strip_prefix(cwd).ok()?.to_str().map(ToOwned::to_owned);
            let file = self.file.0.as_ref().map(|file| inside(file).unwrap_or_else(|| file.clone()));
            return file.or_else(|| self.words.0.clone());
        };
        if !text.starts_with("*** Begin Patch") {
            return Some(text.clone());
        }
        let of_line = |line: &'_ str| {
            let (what, file) = line.strip_prefix("*** ")?.split_once(" File: ")?;
            matches!(what, "Add" | "Update" | "Delete").then(|| file.trim().to_owned())
        };
        Some(text.lines().filter_map(of_line).collect::<Vec<_>>().join(", "))
    }
}

impl Loose for Input {
    fn of_object<'de, A: MapAccess<'de>>(mut object: A) -> Result<Self, A::Error> {
        let mut this = Self::default();
        while let Some(key) = object.next_key::<String>()? {
            match key.as_str() {
                "run_in_background" => this.background |= object.next_value::<Truth>()?.0,
                "command" => this.command = object.next_value()?,
                "file_path" | "filePath" | "notebook_path" => this.file = object.next_value()?,
                "description" => this.words = object.next_value()?,
                _ => drop(object.next_value::<IgnoredAny>()?),
            }
        }
        Ok(this)
    }
}

/// Of a tool's result only whether it is an error, and what it left running.
#[derive(Debug, Default)]
pub(super) struct Response {
    /// Gemini CLI tells by a member `error` that is not null.
    pub(super) failed: bool,
    /// A command was sent to the background while it ran: Claude Code names it by `backgroundTaskId`.
    pub(super) background: bool,
    /// A sub-agent, or a workflow of them, goes on in the background: the agent's id of it. Claude Code's `status` is `async_launched` then.
    pub(super) launched: Option<String>,
}

impl Loose for Response {
    fn of_object<'de, A: MapAccess<'de>>(mut object: A) -> Result<Self, A::Error> {
        let mut this = Self::default();
        let (mut status, mut agent, mut task) = (Text(None), Text(None), Text(None));
        while let Some(key) = object.next_key::<String>()? {
            match key.as_str() {
                "error" => this.failed |= object.next_value::<Option<IgnoredAny>>()?.is_some(),
                "backgroundTaskId" => this.background |= object.next_value::<Text>()?.0.is_some(),
                "status" => status = object.next_value()?,
                "agentId" => agent = object.next_value()?,
                "taskId" => task = object.next_value()?,
                _ => drop(object.next_value::<IgnoredAny>()?),
            }
        }
        if status.0.as_deref() == Some("async_launched") {
            this.launched = agent.0.or(task.0);
        }
        Ok(this)
    }
}

/// What goes on in the background, by the agent's ids, but for commands and what only watches; `None` if that is not told.
#[derive(Debug, Default)]
pub(super) struct Tasks(pub(super) Option<Vec<String>>);

impl Loose for Tasks {
    fn of_list<'de, A: SeqAccess<'de>>(mut list: A) -> Result<Self, A::Error> {
        let mut ids = Vec::new();
        while let Some(Task(id)) = list.next_element::<Task>()? {
            ids.extend(id.filter(|_| ids.len() < TASKS));
        }
        Ok(Self(Some(ids)))
    }
}

/// The id of a task that may write by tools of its own.
#[derive(Default)]
struct Task(Option<String>);

impl Loose for Task {
    fn of_object<'de, A: MapAccess<'de>>(mut object: A) -> Result<Self, A::Error> {
        let (mut id, mut kind) = (Text(None), Text(None));
        while let Some(key) = object.next_key::<String>()? {
            match key.as_str() {
                "id" => id = object.next_value()?,
                "type" => kind = object.next_value()?,
                _ => drop(object.next_value::<IgnoredAny>()?),
            }
        }
        Ok(Self(id.0.filter(|_| !matches!(kind.0.as_deref(), Some("shell" | "monitor")))))
    }
}

#[cfg(test)]
mod tests {
    use super::{Input, Response, Tasks};

    #[test]
    fn only_the_member_itself_counts() {
        let background = |text: &str| serde_json::from_str::<Input>(text).unwrap().background;
        assert!(background(r#"{"command":"x","run_in_background":true}"#));
        for other in [
            r#"{"run_in_background":false}"#,
            r#"{"a":{"run_in_background":true}}"#,
            r#"{"run_in_background":{"run_in_background":true}}"#,
            r#"[true]"#,
            "true",
            "null",
            "1.5",
            r#""run_in_background""#,
        ] {
            assert!(!background(other), "{other}");
        }
    }

    #[test]
    fn what_a_tool_is_about_is_its_command_or_its_file() {
        let about = |text: &str| serde_json::from_str::<Input>(text).unwrap().about(std::path::Path::new("/w/p"));
        for (input, wanted) in [
            (r#"{"description":"Clean up","command":"rm -rf src"}"#, Some("rm -rf src")),
            (r#"{"file_path":"/w/p/src/a.rs","content":"x"}"#, Some("src/a.rs")),
            (r#"{"file_path":"/w/p2/a.rs"}"#, Some("/w/p2/a.rs")),
            (r#"{"filePath":"a.rs"}"#, Some("a.rs")),
            (r#"{"description":"Look for the parser","prompt":"…"}"#, Some("Look for the parser")),
            (r#"{"command":["ls"],"description":7}"#, None),
            (r#"{"command":""}"#, None),
            ("[]", None),
            (
                r#"{"command":"*** Begin Patch\n*** Add File: a.txt\n+*** not one\n*** Update File: d/b.rs\n*** Move to: c.rs\n@@\n*** End Patch\n"}"#,
                Some("a.txt, d/b.rs"),
            ),
        ] {
            assert_eq!(about(input).as_deref(), wanted, "{input}");
        }
    }

    #[test]
    fn what_a_tool_left_running_is_told_by_its_result() {
        let read = |text: &str| serde_json::from_str::<Response>(text).unwrap();
        let launched = |text: &str| read(text).launched;
        assert_eq!(launched(r#"{"isAsync":true,"status":"async_launched","agentId":"a1"}"#).as_deref(), Some("a1"));
        assert_eq!(launched(r#"{"taskId":"w1","status":"async_launched"}"#).as_deref(), Some("w1"));
        for other in [r#"{"status":"completed","agentId":"a1"}"#, r#"{"status":1,"agentId":[]}"#, "[]", "null", "-1"] {
            assert_eq!(launched(other), None, "{other}");
        }
        assert!(read(r#"{"backgroundTaskId":"b1"}"#).background);
        assert!(!read(r#"{"backgroundTaskId":null}"#).background && !read(r#""x""#).background);
    }

    #[test]
    fn tasks_are_those_that_have_tools_of_their_own() {
        let ids = |text: &str| serde_json::from_str::<Tasks>(text).unwrap().0;
        let some = r#"[{"id":"a","type":"subagent"},{"id":"b","type":"shell"},{"type":"x"},7,{"id":"c"}]"#;
        assert_eq!(ids(some).unwrap(), ["a", "c"]);
        assert_eq!((ids("[]"), ids("{}"), ids("null")), (Some(Vec::new()), None, None));
    }
}
