//! The three services: which one a request is for, and how each puts conversations, answers and errors.

use serde_json::{Value, json};

use super::reply::Reply;
use super::{anthropic, chat, responses};
use crate::conversation::{self, Item};
use crate::script::Answer;

/// A service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// Anthropic's Messages.
    Anthropic,
    /// OpenAI's Responses.
    Responses,
    /// OpenAI's Chat Completions.
    Chat,
}

/// What an answer's form needs beside the answer.
#[derive(Debug)]
pub(super) struct Frame<'a> {
    /// The reply's id.
    pub id: String,
    /// The model that was asked for.
    pub model: &'a str,
    /// What the request is said to have cost.
    pub input_tokens: u64,
    /// What the answer is said to have cost.
    pub output_tokens: u64,
}

impl Api {
    /// The service that a path belongs to.
    #[must_use]
    pub fn of(path: &str) -> Option<Self> {
        match path {
            "/v1/messages" => Some(Self::Anthropic),
            "/v1/responses" => Some(Self::Responses),
            "/v1/chat/completions" => Some(Self::Chat),
            _ => None,
        }
    }

    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Anthropic => "anthropic",
            Self::Responses => "responses",
            Self::Chat => "chat",
        }
    }

    /// The conversation in a request.
    #[must_use]
    pub fn conversation(self, request: &Value) -> Vec<Item> {
        match self {
            Self::Anthropic => conversation::of_messages(&request["messages"]),
            Self::Responses => conversation::of_responses(&request["input"]),
            Self::Chat => conversation::of_chat(&request["messages"]),
        }
    }

    /// An answer as one document.
    pub(super) fn whole(self, answer: &Answer, frame: &Frame<'_>) -> Value {
        match self {
            Self::Anthropic => anthropic::whole(answer, frame),
            Self::Responses => responses::whole(answer, frame),
            Self::Chat => chat::whole(answer, frame),
        }
    }

    /// An answer as events.
    pub(super) fn events(self, answer: &Answer, frame: &Frame<'_>) -> Vec<String> {
        match self {
            Self::Anthropic => anthropic::events(answer, frame),
            Self::Responses => responses::events(answer, frame),
            Self::Chat => chat::events(answer, frame),
        }
    }

    /// An error in the service's form.
    #[must_use]
    pub fn error(self, status: u16, kind: Option<&str>, message: &str) -> Reply {
        Reply::json(status, self.error_body(status, kind, message))
    }

    /// An error in the middle of a stream.
    #[must_use]
    pub fn error_event(self, message: &str) -> String {
        let body = self.error_body(529, None, message);
        match self {
            Self::Anthropic => super::reply::event(Some("error"), &body),
            Self::Responses => {
                let failed =
                    json!({"type": "response.failed", "response": {"status": "failed", "error": body["error"]}});
                super::reply::event(Some("response.failed"), &failed)
            }
            Self::Chat => super::reply::event(None, &body),
        }
    }

    fn error_body(self, status: u16, kind: Option<&str>, message: &str) -> Value {
        let usual = match (self, status) {
            (Self::Anthropic, 400) => "invalid_request_error",
            (Self::Anthropic, 401) => "authentication_error",
            (Self::Anthropic, 403) => "permission_error",
            (Self::Anthropic, 404) => "not_found_error",
            (Self::Anthropic, 413) => "request_too_large",
            (Self::Anthropic, 429) => "rate_limit_error",
            (Self::Anthropic, 529) => "overloaded_error",
            (Self::Anthropic, _) => "api_error",
            (_, 400..=428) => "invalid_request_error",
            (_, 429) => "rate_limit_exceeded",
            (..) => "server_error",
        };
        let kind = kind.unwrap_or(usual);
        match self {
            Self::Anthropic => json!({"type": "error", "error": {"type": kind, "message": message}}),
            Self::Responses | Self::Chat => {
                json!({"error": {"type": kind, "code": kind, "message": message, "param": null}})
            }
        }
    }
}
