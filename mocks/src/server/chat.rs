//! Answers in the form of OpenAI's Chat Completions. It has no thinking; that is left out.

use serde_json::{Value, json};

use super::api::Frame;
use super::reply::{event, pieces};
use crate::script::{Answer, Block};

/// A completion as one document.
pub(super) fn whole(answer: &Answer, frame: &Frame<'_>) -> Value {
    let mut message = json!({"role": "assistant", "content": answer.text()});
    let calls: Vec<Value> = calls(answer);
    if !calls.is_empty() {
        message["tool_calls"] = Value::Array(calls);
    }
    let choice = json!({"index": 0, "message": message, "finish_reason": finish_reason(answer)});
    json!({"id": frame.id, "object": "chat.completion", "created": 0, "model": frame.model, "choices": [choice],
        "usage": usage(frame)})
}

/// A completion as events.
pub(super) fn events(answer: &Answer, frame: &Frame<'_>) -> Vec<String> {
    let chunk = |delta: Value, finish: Option<&str>| {
        let choice = json!({"index": 0, "delta": delta, "finish_reason": finish});
        let body = json!({"id": frame.id, "object": "chat.completion.chunk", "created": 0, "model": frame.model,
            "choices": [choice]});
        event(None, &body)
    };
    let mut events = vec![chunk(json!({"role": "assistant", "content": ""}), None)];
    for block in &answer.blocks {
        if let Block::Say(text) = block {
            events.extend(pieces(text).iter().map(|piece| chunk(json!({"content": piece}), None)));
        }
    }
    for (index, mut call) in calls(answer).into_iter().enumerate() {
        call["index"] = index.into();
        events.push(chunk(json!({"tool_calls": [call]}), None));
    }
    events.push(chunk(json!({}), Some(finish_reason(answer))));
    let end = json!({"id": frame.id, "object": "chat.completion.chunk", "created": 0, "model": frame.model, "choices": [],
        "usage": usage(frame)});
    events.push(event(None, &end));
    events.push("data: [DONE]\n\n".to_owned());
    events
}

fn calls(answer: &Answer) -> Vec<Value> {
    let call = |(call, _): (&crate::conversation::Call, _)| {
        let function = json!({"name": call.name, "arguments": call.input.to_string()});
        json!({"id": call.id, "type": "function", "function": function})
    };
    answer.calls().map(call).collect()
}

fn finish_reason(answer: &Answer) -> &'static str {
    if answer.calls().next().is_some() { "tool_calls" } else { "stop" }
}

fn usage(frame: &Frame<'_>) -> Value {
    json!({"prompt_tokens": frame.input_tokens, "completion_tokens": frame.output_tokens,
        "total_tokens": frame.input_tokens + frame.output_tokens})
}
