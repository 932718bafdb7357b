//! Plays a scenario, one step after the other.

use std::io::{BufRead, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::{Map, Value, json};

use super::hooks::{Hooks, Said};
use super::start::{Options, Session};
use super::tools::{self, Done};
use super::transcript::Transcript;
use super::{Interrupt, checkpoint, checks};
use crate::conversation::{Call, Item};
use crate::ids;
use crate::scenario::{Print, Scenario, Step, Tool};
use crate::script::{Beat, BeatKind, Block, Path, Script};

/// Plays `scenario` as `options` say; the exit code.
///
/// # Errors
/// The scenario has no place for what it is told, a check of it fails, or the session cannot be kept.
pub fn run(scenario: &Scenario, options: &Options) -> Result<u8> {
    let script = Script::new(scenario)?;
    for (name, content) in &scenario.files {
        let path = options.cwd.join(name);
        if !path.exists() {
            path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
            std::fs::write(path, content)?;
        }
    }
    let session = options.session(scenario)?;
    let mut player = Player::new(scenario, &script, options, session)?;
    let ended = player.play();
    let (code, reason) = match &ended {
        Ok(code) => (*code, if options.print { "other" } else { "prompt_input_exit" }),
        Err(_) => (1, "other"),
    };
    player.event("SessionEnd", json!({"reason": reason}), reason);
    player.transcript.close();
    ended.map(|_| code)
}

struct Player<'a> {
    scenario: &'a Scenario,
    script: &'a Script,
    options: &'a Options,
    session: Session,
    hooks: Hooks,
    transcript: Transcript,
    interrupt: Interrupt,
    chance: fastrand::Rng,
    prompts: Prompts,
    /// What the hooks of a sub-agent are told beside the rest.
    agent: Option<(String, String)>,
    /// The last checkpoint, and how long the transcript was then: hooks are told of it as long as nothing more was said.
    kept: Option<(String, u64)>,
}

/// What a turn came to.
enum Turn {
    /// The next prompt is due.
    Over,
    /// The agent ends, with this code.
    Exit(u8),
}

impl<'a> Player<'a> {
    fn new(scenario: &'a Scenario, script: &'a Script, options: &'a Options, session: Session) -> Result<Self> {
        let hooks = Hooks::read(options, &session.id);
        let (made, last) = (session.made, session.last.clone());
        let mut transcript =
            Transcript::open(&session.transcript, &session.id, &options.cwd, scenario.seed, made, last)?;
        transcript.now = scenario.clock.as_ref().and_then(|clock| clock.parse().ok());
        let interrupt = Interrupt::listen()?;
        let prompts = Prompts::new(options, interrupt.clone());
        let chance = ids::chance(scenario.seed);
        Ok(Self {
            scenario,
            script,
            options,
            session,
            hooks,
            transcript,
            interrupt,
            chance,
            prompts,
            agent: None,
            kept: None,
        })
    }

    fn play(&mut self) -> Result<u8> {
        let source = self.session.source;
        self.event("SessionStart", json!({"source": source}), source);
        loop {
            let Some(text) = self.prompts.next()? else { return Ok(0) };
            let fits = |beat: Option<&Beat>| matches!(beat, Some(Beat { kind: BeatKind::Prompt(prompt), .. }) if prompt.is(&text));
            let place = self.script.locate_where(&self.session.items, |place| fits(place.next()))?;
            let Some(beat) = place.next() else { bail!("nothing is due after that prompt") };
            let id = ids::uuid(self.scenario.seed, &format!("{} prompt {}", self.session.id, self.session.items.len()));
            self.transcript.prompt.clone_from(&id);
            let said = self.event("UserPromptSubmit", json!({"prompt": text, "prompt_id": id}), "");
            if let Some(reason) = said.blocked {
                println!("blocked: {reason}");
                continue;
            }
            self.transcript.user(&text);
            self.session.items.push(Item::User(text));
            match self.turn(place.path, beat.end)? {
                Turn::Over if self.options.print => return Ok(0),
                Turn::Over => {}
                Turn::Exit(code) => return Ok(code),
            }
        }
    }

    /// Plays from a step on, up to the next prompt.
    fn turn(&mut self, path: &Path, from: usize) -> Result<Turn> {
        let mut at = from;
        while let Some((place, step)) = path.steps.get(at) {
            match step {
                Step::Prompt(_) => break,
                Step::Think(_) | Step::Say(_) | Step::Tool(_) | Step::Tools(_) => {
                    let beat = path.beats.iter().find(|beat| beat.end > at && matches!(beat.kind, BeatKind::Answer(_)));
                    let Some(beat) = beat else { bail!("{place} is in no answer") };
                    at = self.answer(path, beat, at)?;
                    if at == usize::MAX {
                        return Ok(Turn::Over);
                    }
                    continue;
                }
                _ => {
                    if let Some(code) = self.aside(place, step)? {
                        return Ok(Turn::Exit(code));
                    }
                }
            }
            at += 1;
            if self.interrupt.take() {
                self.interrupted(false);
                return Ok(Turn::Over);
            }
        }
        Ok(Turn::Over)
    }

    /// Says and does one answer, and whatever stands between its parts; the step after it, or `usize::MAX` if it was interrupted.
    fn answer(&mut self, path: &Path, beat: &Beat, from: usize) -> Result<usize> {
        let BeatKind::Answer(answer) = &beat.kind else { bail!("{} is no answer", beat.place) };
        let message = ids::id("msg", self.scenario.seed, &beat.place);
        let calls: Vec<(&Call, &Tool)> = answer.calls().collect();
        let stop = if calls.is_empty() { "end_turn" } else { "tool_use" };
        let mut asked_by = Vec::new();
        let mut blocks = answer.blocks.iter();
        let mut text = String::new();
        // Up to the last block; what follows a text at a turn's end (labels, checks) comes after the turn.
        let mut at = from;
        let mut left = answer.blocks.len();
        while left > 0 {
            let Some((place, step)) = path.steps.get(at) else { break };
            let takes = match step {
                Step::Think(_) | Step::Say(_) | Step::Tool(_) => 1,
                Step::Tools(tools) => tools.len(),
                Step::Exit(_) => return Ok(at),
                _ => {
                    self.aside(place, step)?;
                    0
                }
            };
            for block in blocks.by_ref().take(takes) {
                let line = match block {
                    Block::Think(thought) => json!({"type": "thinking", "thinking": thought, "signature": ""}),
                    Block::Say(said) => {
                        println!("{said}");
                        text.push_str(said);
                        json!({"type": "text", "text": said})
                    }
                    Block::Call(call, _) => {
                        println!("* {} {}", call.name, call.input);
                        json!({"type": "tool_use", "id": call.id, "name": call.name, "input": call.input})
                    }
                };
                let uuid = self.transcript.assistant(&message, &line, stop);
                if matches!(block, Block::Call(..)) {
                    asked_by.push(uuid);
                }
            }
            left -= takes;
            at += 1;
            if self.interrupt.take() {
                self.say(text, Vec::new());
                self.interrupted(false);
                return Ok(usize::MAX);
            }
        }
        std::io::stdout().flush()?;
        self.say(text.clone(), calls.iter().map(|(call, _)| (*call).clone()).collect());
        if calls.is_empty() {
            // What it keeps at the end of a turn it keeps before it tells that the turn is over.
            while let Some((place, step @ Step::Checkpoint(_))) = path.steps.get(at) {
                self.aside(place, step)?;
                at += 1;
            }
            self.end_of_turn(&text);
            return Ok(at);
        }
        let done = self.tools(&calls)?;
        let mut interrupted = false;
        for (((call, _), asked_by), done) in calls.iter().zip(&asked_by).zip(done) {
            interrupted |= done.interrupted;
            self.transcript.result(&call.id, asked_by, &done.content, done.error, &done.response);
            self.session.items.push(Item::Result { id: call.id.clone(), content: done.content, error: done.error });
        }
        if interrupted || self.interrupt.came() {
            self.interrupted(true);
            return Ok(usize::MAX);
        }
        Ok(at)
    }

    fn say(&mut self, text: String, calls: Vec<Call>) {
        if !text.is_empty() || !calls.is_empty() {
            self.session.items.push(Item::Assistant { text, calls });
        }
    }

    /// The turn's end: `Stop`, or `SubagentStop`.
    fn end_of_turn(&mut self, text: &str) {
        if self.agent.is_none() {
            self.event("Stop", json!({"stop_hook_active": false, "last_assistant_message": text}), "");
        }
    }

    fn interrupted(&mut self, tool: bool) {
        // As with the real one, `Stop` does not come.
        self.interrupt.take();
        println!("interrupted");
        self.transcript.interrupted(tool);
        self.session.items.push(Item::Interrupted);
    }

    /// Calls several tools at once; one after the other is several calls of one.
    fn tools(&mut self, calls: &[(&Call, &Tool)]) -> Result<Vec<Done>> {
        if let [(call, tool)] = calls
            && let Some(name) = &tool.subagent
        {
            return Ok(vec![self.subagent(call, name)?]);
        }
        let player = &*self;
        Ok(std::thread::scope(|scope| {
            let running: Vec<_> =
                calls.iter().map(|(call, tool)| scope.spawn(move || player.tool(call, tool))).collect();
            running.into_iter().map(|tool| tool.join().unwrap_or_else(|_| Done::failed("the tool panicked"))).collect()
        }))
    }

    /// Calls one tool, with the hooks around it.
    fn tool(&self, call: &Call, tool: &Tool) -> Done {
        let about = json!({"tool_name": call.name, "tool_input": call.input, "tool_use_id": call.id});
        if let Some(reason) = self.event("PreToolUse", about.clone(), &call.name).blocked {
            return Done::failed(reason);
        }
        let done = tools::run(&call.name, &call.input, self.options, &self.hooks, &self.interrupt);
        let done = done.unwrap_or_else(|| {
            let content = tool.result.clone().unwrap_or_default();
            Done { response: json!(content), content, ..Done::default() }
        });
        self.after(about, call, &done);
        done
    }

    fn after(&self, mut about: Value, call: &Call, done: &Done) {
        if done.error {
            about["error"] = done.content.as_str().into();
            about["is_interrupt"] = done.interrupted.into();
            self.event("PostToolUseFailure", about, &call.name);
        } else {
            about["tool_response"] = done.response.clone();
            self.event("PostToolUse", about, &call.name);
        }
    }

    /// Plays a conversation as a sub-agent: hooks bear its id, its lines go into a file of their own.
    fn subagent(&mut self, call: &Call, name: &str) -> Result<Done> {
        let about = json!({"tool_name": call.name, "tool_input": call.input, "tool_use_id": call.id});
        if let Some(reason) = self.event("PreToolUse", about.clone(), &call.name).blocked {
            return Ok(Done::failed(reason));
        }
        let script = self.script;
        let Some(path) = script.paths().iter().find(|path| path.conversation == name) else {
            bail!("there is no conversation {name:?}");
        };
        let id = ids::uuid(self.scenario.seed, &call.id).chars().filter(|c| *c != '-').take(17).collect::<String>();
        let folder = self.session.transcript.with_extension("").join("subagents");
        std::fs::create_dir_all(&folder)?;
        let file = folder.join(format!("agent-{id}.jsonl"));
        let mut transcript = self.transcript.of_subagent(&file, &id)?;
        let prompt = call.input["prompt"].as_str().unwrap_or_default().to_owned();
        transcript.user(&prompt);
        // For this long it is the player.
        std::mem::swap(&mut self.transcript, &mut transcript);
        let outer = std::mem::replace(&mut self.session.items, vec![Item::User(prompt)]);
        let kind = call.input["subagent_type"].as_str().unwrap_or("general-purpose").to_owned();
        self.agent = Some((id.clone(), kind.clone()));
        self.event("SubagentStart", json!({}), &kind);
        let first = path.beats.first().map_or(0, |beat| beat.end);
        let played = self.turn(path, first);
        let said = std::mem::replace(&mut self.session.items, outer);
        std::mem::swap(&mut self.transcript, &mut transcript);
        transcript.close();
        let last = said.iter().rev().find_map(|item| match item {
            Item::Assistant { text, .. } => Some(text.clone()),
            _ => None,
        });
        let last = last.unwrap_or_default();
        let fields = json!({"stop_hook_active": false, "agent_transcript_path": file, "last_assistant_message": last});
        self.event("SubagentStop", fields, &kind);
        self.agent = None;
        played?;
        let response = json!({"status": "completed", "agentId": id, "content": [{"type": "text", "text": last}]});
        let done = Done { content: last, response, ..Done::default() };
        self.after(about, call, &done);
        Ok(done)
    }

    /// A step that is no part of the conversation; an exit code if it ends the agent.
    fn aside(&mut self, place: &str, step: &Step) -> Result<Option<u8>> {
        match step {
            Step::Print(print) => self.print(print)?,
            Step::PauseMs(pause) => {
                // Up to a quarter more, by chance from the seed.
                let long = Duration::from_millis(pause + self.chance.u64(0..=pause / 4));
                self.interrupt.wait(long);
                if let Some(now) = &mut self.transcript.now {
                    *now += long;
                }
            }
            Step::Write(file) => {
                let path = self.options.cwd.join(&file.path);
                path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
                std::fs::write(path, &file.content)?;
            }
            Step::Run(line) => {
                let done = tools::shell(line, self.options, &self.hooks, &self.interrupt);
                if done.error && !done.interrupted {
                    bail!("{place}: {line:?} failed: {}", done.content);
                }
            }
            Step::LateMs(late) => self.transcript.late = Duration::from_millis(*late),
            Step::Checkpoint(id) => {
                checkpoint::keep(&self.options.config, id, &self.session.transcript)?;
                self.kept = Some((id.clone(), length(&self.session.transcript)));
            }
            Step::Hook(hook) => {
                let fields: Map<String, Value> = hook.fields.clone().into_iter().collect();
                self.event(&hook.event, Value::Object(fields), "");
            }
            Step::Check(check) => {
                if let Err(why) = checks::check(check, self.options) {
                    bail!("{place}: {why}");
                }
            }
            Step::Crash => {
                std::io::stdout().flush()?;
                let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
            }
            Step::Hang => loop {
                std::thread::sleep(Duration::from_secs(60));
            },
            Step::Exit(code) => return Ok(Some(u8::try_from(*code).unwrap_or(255))),
            _ => {}
        }
        Ok(None)
    }

    fn print(&mut self, print: &Print) -> Result<()> {
        let (text, char_ms, times) = match print {
            Print::Text(text) => (text, 0, 1),
            Print::Timed { text, char_ms, times } => (text, *char_ms, *times),
        };
        let mut out = std::io::stdout();
        for _ in 0..times {
            if char_ms == 0 {
                out.write_all(text.as_bytes())?;
                continue;
            }
            for character in text.chars() {
                write!(out, "{character}")?;
                out.flush()?;
                if self.interrupt.wait(Duration::from_millis(char_ms)) {
                    return Ok(());
                }
            }
        }
        Ok(out.flush()?)
    }

    /// Calls the hooks of an event.
    fn event(&self, name: &str, fields: Value, subject: &str) -> Said {
        let mut event = json!({
            "session_id": self.session.id,
            "transcript_path": self.session.transcript,
            "cwd": self.options.cwd,
            "hook_event_name": name,
        });
        if !matches!(name, "SessionStart" | "SessionEnd") {
            event["permission_mode"] = "default".into();
        }
        if let Some((id, kind)) = &self.agent {
            event["agent_id"] = id.as_str().into();
            event["agent_type"] = kind.as_str().into();
        }
        if let Some((id, _)) = self.kept.as_ref().filter(|(_, kept)| *kept == length(&self.session.transcript)) {
            event["checkpoint_id"] = id.as_str().into();
        }
        if let (Some(event), Value::Object(fields)) = (event.as_object_mut(), fields) {
            event.extend(fields);
        }
        self.hooks.call(self.options, &event, subject)
    }
}

/// Where prompts come from: the command line first, then lines on stdin.
struct Prompts {
    first: Option<String>,
    print: bool,
    interrupt: Interrupt,
    /// Lines, read in the background so that Ctrl-C is heard while none comes.
    lines: Option<Mutex<Receiver<String>>>,
}

impl Prompts {
    fn new(options: &Options, interrupt: Interrupt) -> Self {
        Self { first: options.prompt.clone(), print: options.print, interrupt, lines: None }
    }

    /// The next prompt; none when there are no more.
    fn next(&mut self) -> Result<Option<String>> {
        if let Some(first) = self.first.take() {
            return Ok(Some(first));
        }
        if self.print {
            let mut text = String::new();
            std::io::Read::read_to_string(&mut std::io::stdin(), &mut text)?;
            return Ok(Some(text.trim().to_owned()).filter(|text| !text.is_empty()));
        }
        print!("> ");
        std::io::stdout().flush()?;
        let lines = self.lines.get_or_insert_with(|| {
            let (sender, lines) = channel();
            std::thread::spawn(move || {
                for line in std::io::stdin().lock().lines().map_while(Result::ok) {
                    if sender.send(line).is_err() {
                        return;
                    }
                }
            });
            Mutex::new(lines)
        });
        let lines = lines.get_mut().unwrap_or_else(PoisonError::into_inner);
        loop {
            match lines.recv_timeout(Duration::from_millis(10)) {
                Ok(line) if line.trim() == "/exit" => return Ok(None),
                Ok(line) if line.trim().is_empty() => {}
                Ok(line) => return Ok(Some(line.trim().to_owned())),
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                // At its prompt, Ctrl-C ends it.
                Err(RecvTimeoutError::Timeout) if self.interrupt.take() => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

/// Bytes of a file; 0 if it is not there.
fn length(file: &std::path::Path) -> u64 {
    std::fs::metadata(file).map_or(0, |found| found.len())
}
