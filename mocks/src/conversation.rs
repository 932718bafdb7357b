//! A conversation as it is seen from outside: what was said, called and answered, whatever the service's form.
//!
//! The server makes one of each request, the mock agent one of its transcript; [`crate::script`] finds the place in the scenario
//! that fits. Left out is what agents add by themselves and change from version to version: system messages, reminders in tags,
//! the environment, thinking of earlier turns. Nothing here knows scenarios.

use serde_json::Value;

/// One thing in a conversation, in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Item {
    /// The person, or the agent in their name, says something: one block of text.
    User(String),
    /// The model's turn, as far as it is one.
    Assistant {
        /// All that it said.
        text: String,
        /// What it called.
        calls: Vec<Call>,
    },
    /// The result of a call.
    Result {
        /// The call's id.
        id: String,
        /// Its text.
        content: String,
        /// Whether it is one of an error.
        error: bool,
    },
    /// The agent says that the person interrupted it.
    Interrupted,
}

/// A tool call.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// The service's id for it.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// Its input: an object, or a string for tools that take plain text.
    pub input: Value,
}

impl Item {
    /// A short form for messages.
    #[must_use]
    pub fn brief(&self) -> String {
        let short = |text: &str| {
            let head: String = text.chars().take(80).collect();
            if head.len() < text.len() { format!("{head:?}…") } else { format!("{head:?}") }
        };
        match self {
            Self::User(text) => format!("user {}", short(text)),
            Self::Assistant { text, calls } => {
                let calls: Vec<String> =
                    calls.iter().map(|call| format!("{}({})", call.name, short(&call.input.to_string()))).collect();
                format!("assistant {} {}", short(text), calls.join(" ")).trim_end().to_owned()
            }
            Self::Result { id, content, error } => {
                format!("{} of {id} {}", if *error { "error" } else { "result" }, short(content))
            }
            Self::Interrupted => "interrupted".to_owned(),
        }
    }
}

/// The `messages` of Anthropic's Messages API; also those of Claude Code's transcript, one after the other.
#[must_use]
pub fn of_messages(messages: &Value) -> Vec<Item> {
    let mut items = Items::default();
    for message in messages.as_array().into_iter().flatten() {
        items.message(message);
    }
    items.0
}

/// The `input` of OpenAI's Responses API.
#[must_use]
pub fn of_responses(input: &Value) -> Vec<Item> {
    let mut items = Items::default();
    if let Value::String(text) = input {
        items.user(text);
    }
    for item in input.as_array().into_iter().flatten() {
        let text = |name: &str| item[name].as_str().unwrap_or_default();
        match text("type") {
            "message" | "" => {
                for part in blocks(&item["content"]) {
                    let part = part["text"].as_str().unwrap_or_default();
                    match text("role") {
                        "user" => items.user(part),
                        "assistant" => items.said(part),
                        _ => {}
                    }
                }
            }
            "function_call" => {
                let input = serde_json::from_str(text("arguments")).unwrap_or_else(|_| item["arguments"].clone());
                let name = match text("namespace") {
                    "" => text("name").to_owned(),
                    namespace => format!("{namespace}/{}", text("name")),
                };
                items.called(text("call_id"), &name, input);
            }
            "custom_tool_call" => items.called(text("call_id"), text("name"), item["input"].clone()),
            "function_call_output" | "custom_tool_call_output" => {
                let output = &item["output"];
                let content = output["content"].as_str().map_or_else(|| flat(output), ToOwned::to_owned);
                items.0.push(Item::Result {
                    id: text("call_id").to_owned(),
                    error: output["success"] == Value::Bool(false),
                    content,
                });
            }
            _ => {}
        }
    }
    items.0
}

/// The `messages` of OpenAI's Chat Completions.
#[must_use]
pub fn of_chat(messages: &Value) -> Vec<Item> {
    let mut items = Items::default();
    for message in messages.as_array().into_iter().flatten() {
        match message["role"].as_str().unwrap_or_default() {
            "user" => {
                for part in blocks(&message["content"]) {
                    items.user(part["text"].as_str().unwrap_or_default());
                }
            }
            "assistant" => {
                items.said(&flat(&message["content"]));
                for call in message["tool_calls"].as_array().into_iter().flatten() {
                    let arguments = &call["function"]["arguments"];
                    let input = arguments.as_str().and_then(|text| serde_json::from_str(text).ok());
                    items.called(
                        call["id"].as_str().unwrap_or_default(),
                        call["function"]["name"].as_str().unwrap_or_default(),
                        input.unwrap_or_else(|| arguments.clone()),
                    );
                }
            }
            "tool" => items.0.push(Item::Result {
                id: message["tool_call_id"].as_str().unwrap_or_default().to_owned(),
                content: flat(&message["content"]),
                error: false,
            }),
            _ => {}
        }
    }
    items.0
}

#[derive(Default)]
struct Items(Vec<Item>);

impl Items {
    fn message(&mut self, message: &Value) {
        let role = message["role"].as_str().unwrap_or_default();
        for block in blocks(&message["content"]) {
            let text = |name: &str| block[name].as_str().unwrap_or_default();
            match (role, text("type")) {
                ("user", "text") => self.user(text("text")),
                ("user", "tool_result") => self.0.push(Item::Result {
                    id: text("tool_use_id").to_owned(),
                    content: flat(&block["content"]),
                    error: block["is_error"] == Value::Bool(true),
                }),
                ("assistant", "text") => self.said(text("text")),
                ("assistant", "tool_use") => self.called(text("id"), text("name"), block["input"].clone()),
                _ => {}
            }
        }
    }

    fn user(&mut self, text: &str) {
        let text = text.trim();
        if text.starts_with("[Request interrupted by user") || text.starts_with("<turn_aborted>") {
            self.0.push(Item::Interrupted);
        } else if !is_agents_own(text) {
            self.0.push(Item::User(text.to_owned()));
        }
    }

    fn said(&mut self, said: &str) {
        if !said.is_empty() && said != "No response requested." {
            self.assistant().0.push_str(said);
        }
    }

    fn called(&mut self, id: &str, name: &str, input: Value) {
        self.assistant().1.push(Call { id: id.to_owned(), name: name.to_owned(), input });
    }

    /// The model's turn that is being put together; a turn may come in several messages.
    fn assistant(&mut self) -> (&mut String, &mut Vec<Call>) {
        if !matches!(self.0.last(), Some(Item::Assistant { .. })) {
            self.0.push(Item::Assistant { text: String::new(), calls: Vec::new() });
        }
        match self.0.last_mut() {
            Some(Item::Assistant { text, calls }) => (text, calls),
            _ => unreachable!("one was just put there"),
        }
    }
}

/// What an agent says in the person's name without having been told to.
fn is_agents_own(text: &str) -> bool {
    text.is_empty()
        || text == "Continue from where you left off."
        || text.starts_with("# AGENTS.md instructions")
        // A turn of its own begins with that notice.
        || (text.starts_with('<') && text.ends_with('>') && !text.starts_with("<task-notification>"))
}

/// Content as blocks: a string is one block of text.
fn blocks(content: &Value) -> Vec<Value> {
    match content {
        Value::String(text) => vec![serde_json::json!({"type": "text", "text": text})],
        Value::Array(blocks) => blocks.clone(),
        _ => Vec::new(),
    }
}

/// All text of some content.
fn flat(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(blocks) => blocks.iter().filter_map(|block| block["text"].as_str()).collect::<Vec<_>>().join("\n"),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Call, Item, of_chat, of_messages, of_responses};

    fn wanted() -> Vec<Item> {
        vec![
            Item::User("Greet".into()),
            Item::Assistant {
                text: "I will.".into(),
                calls: vec![Call { id: "c1".into(), name: "Bash".into(), input: json!({"command": "echo"}) }],
            },
            Item::Result { id: "c1".into(), content: "ok".into(), error: false },
            Item::User("Again".into()),
        ]
    }

    #[test]
    fn the_same_conversation_in_three_forms() {
        let anthropic = json!([
            {"role": "user", "content": [{"type": "text", "text": "<system-reminder>\nx\n</system-reminder>\n"},
                {"type": "text", "text": "Greet", "cache_control": {}}]},
            {"role": "system", "content": "more"},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "I will."}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "Bash", "input": {"command": "echo"}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "ok"}]},
                {"type": "text", "text": "Continue from where you left off."}]},
            {"role": "assistant", "content": "No response requested."},
            {"role": "user", "content": "Again"},
        ]);
        assert_eq!(of_messages(&anthropic), wanted());
        let responses = json!([
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "rules"}]},
            {"role": "user", "content": [{"type": "input_text", "text": "<environment_context>x</environment_context>"}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Greet"}]},
            {"type": "reasoning", "summary": []},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I will."}]},
            {"type": "function_call", "call_id": "c1", "name": "Bash", "arguments": "{\"command\":\"echo\"}"},
            {"type": "function_call_output", "call_id": "c1", "output": "ok"},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Again"}]},
        ]);
        assert_eq!(of_responses(&responses), wanted());
        let chat = json!([
            {"role": "system", "content": "rules"},
            {"role": "user", "content": "Greet"},
            {"role": "assistant", "content": "I will.", "tool_calls":
                [{"id": "c1", "type": "function", "function": {"name": "Bash", "arguments": "{\"command\":\"echo\"}"}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "ok"},
            {"role": "user", "content": [{"type": "text", "text": "Again"}]},
        ]);
        assert_eq!(of_chat(&chat), wanted());
    }
}
