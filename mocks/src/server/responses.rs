//! Answers in the form of OpenAI's Responses API, as far as Codex reads it.

use serde_json::{Value, json};

use super::api::Frame;
use super::reply::{event, pieces};
use crate::script::{Answer, Block};

/// A response as one document.
pub(super) fn whole(answer: &Answer, frame: &Frame<'_>) -> Value {
    let mut response = response(frame, "completed");
    response["output"] = Value::Array(items(answer, frame));
    response
}

/// A response as events.
pub(super) fn events(answer: &Answer, frame: &Frame<'_>) -> Vec<String> {
    let mut events = Vec::new();
    let mut send = |kind: &str, mut data: Value| {
        data["type"] = kind.into();
        data["sequence_number"] = events.len().into();
        events.push(event(Some(kind), &data));
    };
    send("response.created", json!({"response": response(frame, "in_progress")}));
    for (index, (item, block)) in items(answer, frame).into_iter().zip(&answer.blocks).enumerate() {
        let mut added = item.clone();
        let id = item["id"].clone();
        match block {
            Block::Say(text) => {
                added["content"] = json!([]);
                send("response.output_item.added", json!({"output_index": index, "item": added}));
                for piece in pieces(text) {
                    let delta = json!({"item_id": id, "output_index": index, "content_index": 0, "delta": piece});
                    send("response.output_text.delta", delta);
                }
            }
            Block::Think(text) => {
                added["summary"] = json!([]);
                send("response.output_item.added", json!({"output_index": index, "item": added}));
                for piece in pieces(text) {
                    let delta = json!({"item_id": id, "output_index": index, "summary_index": 0, "delta": piece});
                    send("response.reasoning_summary_text.delta", delta);
                }
            }
            Block::Call(..) => send("response.output_item.added", json!({"output_index": index, "item": added})),
        }
        send("response.output_item.done", json!({"output_index": index, "item": item}));
    }
    send("response.completed", json!({"response": whole(answer, frame)}));
    events
}

fn items(answer: &Answer, frame: &Frame<'_>) -> Vec<Value> {
    let item = |(index, block): (usize, &Block)| match block {
        Block::Think(text) => json!({"type": "reasoning", "id": format!("rs_{}_{index}", frame.id),
            "summary": [{"type": "summary_text", "text": text}], "encrypted_content": null}),
        Block::Say(text) => json!({"type": "message", "id": format!("msg_{}_{index}", frame.id), "role": "assistant",
            "status": "completed", "content": [{"type": "output_text", "text": text, "annotations": []}]}),
        Block::Call(call, tool) if tool.text.is_some() => json!({"type": "custom_tool_call",
            "id": format!("ctc_{}_{index}", frame.id), "call_id": call.id, "name": call.name, "input": tool.text}),
        Block::Call(call, _) => {
            // `NAMESPACE/NAME`, of a tool that has one.
            let (namespace, name) =
                call.name.split_once('/').map_or((None, &*call.name), |(space, name)| (Some(space), name));
            let mut item = json!({"type": "function_call", "id": format!("fc_{}_{index}", frame.id),
                "call_id": call.id, "name": name, "arguments": call.input.to_string(), "status": "completed"});
            if let Some(namespace) = namespace {
                item["namespace"] = namespace.into();
            }
            item
        }
    };
    answer.blocks.iter().enumerate().map(item).collect()
}

fn response(frame: &Frame<'_>, status: &str) -> Value {
    json!({
        "id": frame.id, "object": "response", "created_at": 0, "status": status, "model": frame.model, "output": [],
        "error": null,
        "usage": {"input_tokens": frame.input_tokens, "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": frame.output_tokens, "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": frame.input_tokens + frame.output_tokens},
    })
}
