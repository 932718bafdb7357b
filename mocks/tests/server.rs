//! `mock-model-server` as a program: its three APIs, faults, mismatches, recording and replaying.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::needless_pass_by_value))]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use serde_json::{Value, json};

const STORY: &str = r#"
name: story
aside: A title
steps:
  - prompt: One
  - think: Hm, so.
  - fault: {status: 429, retry_after: 2, headers: {anthropic-ratelimit-requests-remaining: "0"}, times: 2}
  - fault: {break_after: 3}
  - request: {/metadata/kind: test}
  - say: I write it now.
  - tool: {name: Write, input: {file_path: a, content: "b c"}, expect: {contains: fine}}
  - label: written
  - pace_ms: 20
  - say: Done with all of it.
  - prompt: Two
  - fault: {error_after: 4}
  - say: Two is done.
branches:
  - {name: other, after: written, steps: [prompt: Else, say: Else is done.]}
"#;

/// A server, and what it needs on disk.
struct Server {
    child: Child,
    address: String,
    folder: PathBuf,
    _temp: Option<tempfile::TempDir>,
}

/// What came back.
struct Reply {
    status: u16,
    head: String,
    body: String,
    /// Whether it ended as it should.
    whole: bool,
}

impl Server {
    fn new(story: &str, more: &[&str]) -> Self {
        let temp = tempfile::tempdir().unwrap();
        std::fs::write(temp.path().join("story.yaml"), story).unwrap();
        let scenario = temp.path().join("story.yaml");
        let mut server = Self::start(temp.path(), &[&[scenario.to_str().unwrap()], more].concat());
        server._temp = Some(temp);
        server
    }

    fn start(folder: &Path, arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mock-model-server"));
        command.args(arguments).arg("--report").arg(folder.join("report.json")).current_dir(folder);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("http://").unwrap().to_owned();
        assert!(address.starts_with("127.0.0.1:"), "{address}");
        Self { child, address, folder: folder.to_owned(), _temp: None }
    }

    fn post(&self, path: &str, body: &Value) -> Reply {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let body = body.to_string();
        let head = "host: x\r\nx-api-key: any\r\nconnection: close\r\ncontent-type: application/json";
        write!(stream, "POST {path}?beta=true HTTP/1.1\r\n{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
            .unwrap();
        let mut text = Vec::new();
        let read = stream.read_to_end(&mut text);
        let text = String::from_utf8_lossy(&text).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_default();
        let chunked = head.contains("transfer-encoding: chunked");
        let whole = read.is_ok() && (!chunked || body.ends_with("0\r\n\r\n"));
        Reply { status, head: head.to_owned(), body: body.to_owned(), whole }
    }

    /// Ends it; its exit code, and the report.
    fn end(mut self) -> (i32, Value) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let code = self.child.wait().unwrap().code().unwrap();
        (code, serde_json::from_slice(&std::fs::read(self.folder.join("report.json")).unwrap()).unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The data of each event.
fn events(body: &str) -> Vec<Value> {
    body.lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .filter_map(|data| serde_json::from_str(data).ok())
        .collect()
}

fn ask(messages: Value, stream: bool) -> Value {
    json!({"model": "m", "stream": stream, "metadata": {"kind": "test"}, "messages": messages, "tools": [{"name": "Write"}]})
}

#[test]
fn anthropic_with_faults_first_then_the_answer_then_the_rest() {
    let server = Server::new(STORY, &["--all"]);
    let one = ask(json!([{"role": "user", "content": "One"}]), true);
    for _ in 0..2 {
        let limited = server.post("/v1/messages", &one);
        assert_eq!(limited.status, 429);
        assert!(
            limited.head.contains("retry-after: 2")
                && limited.head.contains("anthropic-ratelimit-requests-remaining: 0")
        );
        assert!(limited.body.contains("rate_limit_error"), "{}", limited.body);
    }
    let broken = server.post("/v1/messages", &one);
    assert_eq!((broken.status, broken.whole, events(&broken.body).len()), (200, false, 3));
    let answered = server.post("/v1/messages", &one);
    assert!(answered.whole);
    let all = events(&answered.body);
    let kinds: Vec<&str> = all.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!((kinds[0], *kinds.last().unwrap()), ("message_start", "message_stop"));
    let join = |member: &str| -> String { all.iter().filter_map(|event| event["delta"][member].as_str()).collect() };
    assert_eq!((join("thinking"), join("text")), ("Hm, so.".to_owned(), "I write it now.".to_owned()));
    let input: Value = serde_json::from_str(&join("partial_json")).unwrap();
    assert_eq!(input, json!({"file_path": "a", "content": "b c"}));
    assert_eq!(join("stop_reason"), "tool_use");
    let call = all.iter().find(|event| event["content_block"]["type"] == "tool_use").unwrap()["content_block"].clone();

    // The result, and what comes after it; not streamed.
    let asked = json!([{"type": "text", "text": "I write it now."},
        {"type": "tool_use", "id": call["id"], "name": "Write", "input": input}]);
    let result = json!([{"type": "tool_result", "tool_use_id": call["id"], "content": "fine"}]);
    let so_far = vec![
        json!({"role": "user", "content": "One"}),
        json!({"role": "assistant", "content": asked}),
        json!({"role": "user", "content": result}),
    ];
    let begun = Instant::now();
    let done: Value = serde_json::from_str(&server.post("/v1/messages", &ask(json!(so_far), false)).body).unwrap();
    assert_eq!(
        (&done["content"][0]["text"], &done["stop_reason"]),
        (&json!("Done with all of it."), &json!("end_turn"))
    );
    assert_eq!(server.post("/v1/messages", &ask(json!(so_far), true)).status, 200);
    assert!(begun.elapsed().as_millis() >= 200, "slow: 20 ms between the events of a stream");
    // Cut there, with another instruction.
    let cut = [so_far.clone(), vec![json!({"role": "user", "content": "Else"})]].concat();
    assert!(server.post("/v1/messages", &ask(json!(cut), false)).body.contains("Else is done."));
    // On to the end; a stream that says it failed, then the answer.
    let done = json!({"role": "assistant", "content": "Done with all of it."});
    let two = [so_far, vec![done, json!({"role": "user", "content": "Two"})]].concat();
    let failed = server.post("/v1/messages", &ask(json!(two), true));
    assert_eq!(events(&failed.body).last().unwrap()["error"]["type"], "overloaded_error");
    assert!(server.post("/v1/messages", &ask(json!(two), false)).body.contains("Two is done."));
    // Beside the conversation: no tools.
    let title = json!({"model": "m", "messages": [{"role": "user", "content": "a title, please"}]});
    assert!(server.post("/v1/messages", &title).body.contains("A title"));

    let (code, report) = server.end();
    assert_eq!((code, &report["passed"], &report["unasked"]), (0, &json!(true), &json!([])), "{report:#}");
    assert_eq!((&report["faults"], &report["asides"]), (&json!(4), &json!(1)));
    assert_eq!(report["answered"][3]["path"], "main/other");
}

#[test]
fn a_mismatch_fails_loudly() {
    let server = Server::new(STORY, &[]);
    let reply = server.post("/v1/messages", &ask(json!([{"role": "user", "content": "Something else"}]), true));
    assert_eq!(reply.status, 400);
    assert!(reply.body.contains("not that prompt"), "{}", reply.body);
    let other = json!({"model": "m", "metadata": {"kind": "live"}, "messages": [{"role": "user", "content": "One"}], "tools": [1]});
    assert!(server.post("/v1/messages", &other).body.contains("/metadata/kind should be"), "what a request must have");
    assert_eq!(server.post("/v1/telemetry", &json!({})).status, 400);
    let (code, report) = server.end();
    assert_eq!((code, report["mismatches"].as_array().unwrap().len()), (1, 3), "{report:#}");
    assert_eq!(report["mismatches"][0]["conversation"], json!(["user \"Something else\""]));
}

#[test]
fn what_nobody_asked_for_is_a_fault_if_all_is_wanted() {
    let (code, report) = Server::new(STORY, &["--all"]).end();
    assert_eq!((code, report["unasked"].as_array().unwrap().len()), (1, 4));
}

#[test]
fn a_stream_stalls_and_the_next_request_is_answered() {
    let story = "name: x\nsteps: [prompt: One, fault: {stall_after: 2}, say: Here.]";
    let server = Server::new(story, &["--all"]);
    let body = ask(json!([{"role": "user", "content": "One"}]), true).to_string();
    let mut stream = TcpStream::connect(&server.address).unwrap();
    let head = "host: x\r\nx-api-key: any\r\ncontent-type: application/json";
    write!(stream, "POST /v1/messages HTTP/1.1\r\n{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
    stream.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
    let mut text = Vec::new();
    while events(&String::from_utf8_lossy(&text)).len() < 2 {
        let mut some = [0; 4096];
        let count = stream.read(&mut some).unwrap();
        assert!(count > 0, "it ended: {}", String::from_utf8_lossy(&text));
        text.extend_from_slice(&some[..count]);
    }
    stream.set_read_timeout(Some(std::time::Duration::from_millis(500))).unwrap();
    let error = stream.read_to_end(&mut text).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "it is open, and silent");
    assert_eq!(events(&String::from_utf8_lossy(&text)).len(), 2);
    let answered = server.post("/v1/messages", &ask(json!([{"role": "user", "content": "One"}]), true));
    assert!(answered.whole && answered.body.contains("Here."));
    drop(stream);
    assert_eq!(server.end().0, 0);
}

#[test]
fn openai_in_both_forms() {
    let server = Server::new(&STORY.replace("  - fault: {break_after: 3}\n", "").replace("times: 2", "times: 0"), &[]);
    let one = |member: &str, stream: bool| json!({"model": "m", "stream": stream, "metadata": {"kind": "test"}, member: [{"role": "user", "content": "One"}]});
    let streamed = events(&server.post("/v1/responses", &one("input", true)).body);
    let kinds: Vec<&str> = streamed.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!((kinds[0], *kinds.last().unwrap()), ("response.created", "response.completed"));
    let done: Vec<&Value> = streamed.iter().filter(|event| event["type"] == "response.output_item.done").collect();
    let kinds: Vec<&Value> = done.iter().map(|event| &event["item"]["type"]).collect();
    assert_eq!(kinds, ["reasoning", "message", "function_call"]);
    let whole: Value = serde_json::from_str(&server.post("/v1/responses", &one("input", false)).body).unwrap();
    assert_eq!(whole, streamed.last().unwrap()["response"]);

    let chat: Value = serde_json::from_str(&server.post("/v1/chat/completions", &one("messages", false)).body).unwrap();
    assert_eq!(chat["choices"][0]["finish_reason"], "tool_calls");
    let call = &chat["choices"][0]["message"]["tool_calls"][0];
    assert_eq!(call["function"]["arguments"], json!({"file_path": "a", "content": "b c"}).to_string());
    let streamed = server.post("/v1/chat/completions", &one("messages", true)).body;
    assert!(streamed.contains("data: [DONE]"));
    let text: String = events(&streamed)
        .iter()
        .filter_map(|event| event["choices"][0]["delta"]["content"].as_str().map(ToOwned::to_owned))
        .collect();
    assert_eq!(text, "I write it now.");
    // A result that is not as the scenario expects it.
    let bad = json!({"model": "m", "messages": [{"role": "user", "content": "One"},
        {"role": "assistant", "content": "I write it now.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": "it failed"}]});
    assert_eq!(server.post("/v1/chat/completions", &bad).status, 400);
    assert_eq!(server.end().0, 1);
}

#[test]
fn what_was_recorded_is_replayed() {
    let temp = tempfile::tempdir().unwrap();
    let recording = temp.path().join("run.jsonl");
    let server = Server::new(STORY, &["--record", recording.to_str().unwrap()]);
    let one = ask(json!([{"role": "user", "content": "One"}]), true);
    let first: Vec<(u16, bool, String)> = (0..4).map(|_| server.post("/v1/messages", &one)).map(parts).collect();
    assert_eq!(server.end().0, 0);

    let server = Server::start(temp.path(), &["--replay", recording.to_str().unwrap(), "--all"]);
    let again: Vec<(u16, bool, String)> = (0..4).map(|_| server.post("/v1/messages", &one)).map(parts).collect();
    assert_eq!(first, again, "faults, broken streams and all");
    assert_eq!(server.post("/v1/messages", &one).status, 400, "one more than was recorded");
    let (code, report) = server.end();
    assert_eq!((code, &report["unasked"]), (1, &json!([])));
}

fn parts(reply: Reply) -> (u16, bool, String) {
    (reply.status, reply.whole, reply.body)
}
