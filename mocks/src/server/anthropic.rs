//! Answers in the form of Anthropic's Messages API, as its documentation gives it.

use serde_json::{Value, json};

use super::api::Frame;
use super::reply::{event, pieces};
use crate::script::{Answer, Block};

/// A message as one document.
pub(super) fn whole(answer: &Answer, frame: &Frame<'_>) -> Value {
    let content: Vec<Value> = answer
        .blocks
        .iter()
        .map(|block| match block {
            Block::Think(text) => json!({"type": "thinking", "thinking": text, "signature": signature()}),
            Block::Say(text) => json!({"type": "text", "text": text}),
            Block::Call(call, _) => json!({"type": "tool_use", "id": call.id, "name": call.name, "input": call.input}),
        })
        .collect();
    let mut message = message(frame);
    message["content"] = Value::Array(content);
    message["stop_reason"] = stop_reason(answer).into();
    message["usage"]["output_tokens"] = frame.output_tokens.into();
    message
}

/// A message as events.
pub(super) fn events(answer: &Answer, frame: &Frame<'_>) -> Vec<String> {
    let mut events = Vec::new();
    let mut send = |kind: &str, mut data: Value| {
        data["type"] = kind.into();
        events.push(event(Some(kind), &data));
    };
    send("message_start", json!({"message": message(frame)}));
    send("ping", json!({}));
    for (index, block) in answer.blocks.iter().enumerate() {
        let (start, deltas) = match block {
            Block::Think(text) => {
                let mut deltas: Vec<Value> =
                    pieces(text).iter().map(|piece| json!({"type": "thinking_delta", "thinking": piece})).collect();
                deltas.push(json!({"type": "signature_delta", "signature": signature()}));
                (json!({"type": "thinking", "thinking": "", "signature": ""}), deltas)
            }
            Block::Say(text) => {
                let deltas = pieces(text).iter().map(|piece| json!({"type": "text_delta", "text": piece})).collect();
                (json!({"type": "text", "text": ""}), deltas)
            }
            Block::Call(call, _) => {
                let input = call.input.to_string();
                let delta = |piece: &&str| json!({"type": "input_json_delta", "partial_json": piece});
                let start = json!({"type": "tool_use", "id": call.id, "name": call.name, "input": {}});
                (start, pieces(&input).iter().map(delta).collect())
            }
        };
        send("content_block_start", json!({"index": index, "content_block": start}));
        for delta in deltas {
            send("content_block_delta", json!({"index": index, "delta": delta}));
        }
        send("content_block_stop", json!({"index": index}));
    }
    let usage = json!({"output_tokens": frame.output_tokens});
    send(
        "message_delta",
        json!({"delta": {"stop_reason": stop_reason(answer), "stop_sequence": null}, "usage": usage}),
    );
    send("message_stop", json!({}));
    events
}

fn message(frame: &Frame<'_>) -> Value {
    json!({
        "id": frame.id, "type": "message", "role": "assistant", "model": frame.model, "content": [],
        "stop_reason": null, "stop_sequence": null,
        "usage": {"input_tokens": frame.input_tokens, "output_tokens": 1,
            "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0},
    })
}

fn stop_reason(answer: &Answer) -> &'static str {
    if answer.calls().next().is_some() { "tool_use" } else { "end_turn" }
}

/// Thinking is signed; nobody here can check it.
fn signature() -> &'static str {
    "bW9jaw=="
}
