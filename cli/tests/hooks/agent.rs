//! An agent for tests: it calls hooks with the events that Claude Code sends.

use std::io::Write;
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{Ran, World};

/// One session of an agent.
pub(crate) struct Agent<'a> {
    pub(crate) world: &'a World,
    pub(crate) id: String,
    pub(crate) name: &'static str,
    pub(crate) env: Vec<(String, String)>,
    /// Whether it goes on only when no moment waits for its snapshot: a hook holds it up for that, but no longer than two seconds, which
    /// on a busy machine may be too short.
    pub(crate) patient: bool,
    calls: AtomicU32,
}

impl<'a> Agent<'a> {
    /// A session of Claude Code's, by its id.
    pub(crate) fn claude(world: &'a World, id: &str) -> Self {
        Self { world, id: id.into(), name: "claude", env: Vec::new(), patient: true, calls: AtomicU32::default() }
    }

    pub(crate) fn transcript(&self) -> std::path::PathBuf {
        self.world.path(format!("home/{}.jsonl", self.id))
    }

    /// Calls a hook with an event of that name and these members beside those that all have.
    #[allow(clippy::needless_pass_by_value, reason = "it is written where it is passed")]
    pub(crate) fn call(&self, event: &str, members: Value) -> Ran {
        let mut all = json!({
            "session_id": self.id,
            "transcript_path": self.transcript(),
            "cwd": self.world.root(),
            "hook_event_name": event,
        });
        all.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
        let ran = self.feed(all.to_string().as_bytes());
        assert_eq!((ran.code, ran.stdout.as_str()), (0, ""), "{event}: {ran:?}");
        ran
    }

    /// Calls a hook with those bytes on stdin.
    pub(crate) fn feed(&self, bytes: &[u8]) -> Ran {
        let mut command = self.world.command(["hook", self.name]);
        command.envs(self.env.iter().map(|(key, value)| (key, value)));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let bytes = bytes.to_vec();
        let writer = std::thread::spawn(move || drop(stdin.write_all(&bytes)));
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap();
        Ran {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            raw: output.stdout,
        }
    }

    pub(crate) fn start(&self) {
        self.call("SessionStart", json!({"source": "startup"}));
    }

    pub(crate) fn prompt(&self, text: &str) {
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        self.rest();
        self.call("UserPromptSubmit", json!({"prompt": text, "prompt_id": format!("p{number}")}));
    }

    /// A call of a tool, to be ended by [`Agent::after`].
    pub(crate) fn before(&self, tool: &str) -> String {
        let id = format!("toolu_{}_{}", self.id, self.calls.fetch_add(1, Ordering::Relaxed));
        self.rest();
        self.call("PreToolUse", json!({"tool_name": tool, "tool_use_id": id, "tool_input": {}}));
        id
    }

    /// The same, at once, whatever waits.
    pub(crate) fn before_without_rest(&self, tool: &str) -> String {
        let id = format!("toolu_{}_{}", self.id, self.calls.fetch_add(1, Ordering::Relaxed));
        self.call("PreToolUse", json!({"tool_name": tool, "tool_use_id": id, "tool_input": {}}));
        id
    }

    fn rest(&self) {
        if self.patient {
            nothing_waits(self.world);
        }
    }

    pub(crate) fn after(&self, tool: &str, id: &str) {
        self.call("PostToolUse", json!({"tool_name": tool, "tool_use_id": id, "tool_response": {"stdout": "x"}}));
    }

    /// A tool that writes a file.
    pub(crate) fn writes(&self, name: &str, content: &str) {
        let id = self.before("Write");
        self.world.write(name, content);
        self.after("Write", &id);
    }

    pub(crate) fn stop(&self) {
        self.call("Stop", json!({}));
    }

    pub(crate) fn end(&self) {
        self.call("SessionEnd", json!({"reason": "exit"}));
    }
}

/// The moments of all sessions in order, when none waits for its snapshot any more.
pub(crate) fn settled(world: &World) -> Vec<Value> {
    let settled = || {
        let moments = moments(world);
        let waits = moments.iter().any(|moment| moment["snapshot"].is_null() && moment["reason"].is_null());
        (!waits && !is_waiting(world)).then_some(moments)
    };
    until("all moments to be settled", settled)
}

/// Returns when no moment waits for its snapshot.
pub(crate) fn nothing_waits(world: &World) {
    until("no moment to wait", || (!is_waiting(world)).then_some(()));
}

/// Whether a moment waits for its snapshot.
pub(crate) fn is_waiting(world: &World) -> bool {
    let pending = std::fs::read_dir(world.path("state/workspaces")).into_iter().flatten();
    let mut folders = pending.map(|workspace| workspace.unwrap().path().join("pending"));
    folders.any(|folder| std::fs::read_dir(folder).is_ok_and(|mut names| names.next().is_some()))
}

/// What `look` finds, which it may be long in finding on a busy machine.
pub(crate) fn until<T>(what: &str, look: impl Fn() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The moments of all sessions in order, as they are.
pub(crate) fn moments(world: &World) -> Vec<Value> {
    let timeline = world.json("timeline", &["timeline"]);
    let mut moments: Vec<Value> = Vec::new();
    for group in timeline["prompts"].as_array().unwrap() {
        moments.extend(group.get("prompt").cloned());
        moments.extend(group["moments"].as_array().unwrap().clone());
    }
    moments.sort_by_key(|moment| moment["seq"].as_u64());
    moments
}

/// The folder of the only workspace.
pub(crate) fn folder(world: &World) -> std::path::PathBuf {
    let all = std::fs::read_dir(world.path("state/workspaces")).unwrap();
    all.map(|entry| entry.unwrap().path()).next().unwrap()
}

/// A file as a REF shows it; none: it was not there.
pub(crate) fn cat(world: &World, reference: &str, file: &str) -> Option<String> {
    let ran = world.run(["agent", "fs", "cat", reference, file]);
    match ran.code {
        0 => Some(ran.stdout),
        3 => None,
        _ => panic!("{ran:?}"),
    }
}

/// A member of a moment that is text.
pub(crate) fn text<'a>(moment: &'a Value, member: &str) -> &'a str {
    moment[member].as_str().unwrap_or_else(|| panic!("no {member} in {moment}"))
}

/// The moments' kinds.
pub(crate) fn kinds(moments: &[Value]) -> Vec<&str> {
    moments.iter().map(|moment| text(moment, "kind")).collect()
}
