//! From request to reply: what the scenario, or the recording, has for it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::api::{Api, Frame};
use super::reply::{Body, End, Exchange, Reply};
use super::report::{Answered, Mismatch, Report};
use super::{Options, Source};
use crate::conversation::Item;
use crate::ids;
use crate::scenario::{Fault, Scenario};
use crate::script::{Answer, Beat, BeatKind, Script};

/// A request, as far as it matters.
#[derive(Debug)]
pub(super) struct Request {
    pub method: String,
    /// Without the query.
    pub path: String,
    /// Whether it carries a key or a token.
    pub signed: bool,
    pub body: Value,
}

/// Everything that is answered from, and what came of it so far.
#[derive(Debug)]
pub(super) struct Answers {
    source: From,
    report: Report,
    /// How many of its faults an answer has had, by place.
    faulted: BTreeMap<String, usize>,
    report_to: Option<PathBuf>,
    record: Option<File>,
    all: bool,
}

#[derive(Debug)]
enum From {
    Scenario(Box<Scenario>, Script),
    Recording(Vec<Option<Exchange>>),
}

impl Answers {
    pub(super) fn new(options: &Options) -> Result<Self> {
        let mut report = Report::default();
        let source = match &options.source {
            Source::Scenario(scenario) => {
                report.source.clone_from(&scenario.name);
                From::Scenario(scenario.clone(), Script::new(scenario)?)
            }
            Source::Recording(path) => {
                report.source = path.display().to_string();
                let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
                let exchanges: Result<Vec<_>, _> = text.lines().map(serde_json::from_str).collect();
                From::Recording(exchanges.with_context(|| format!("{} is no recording", path.display()))?)
            }
        };
        let record = match &options.record {
            Some(path) => {
                let mut create = OpenOptions::new();
                let opened = create.create(true).append(true).open(path);
                Some(opened.with_context(|| format!("cannot write to {}", path.display()))?)
            }
            None => None,
        };
        let report_to = options.report.clone();
        let mut answers = Self { source, report, faulted: BTreeMap::new(), report_to, record, all: options.all };
        answers.note()?;
        Ok(answers)
    }

    /// Whether all was as it should be, all being over.
    pub(super) fn passed(&mut self) -> Result<bool> {
        self.note()?;
        Ok(self.report.passed)
    }

    /// The reply to a request. What is wrong with it goes into the report and onto stderr as well.
    pub(super) fn reply(&mut self, request: Request) -> Result<Reply> {
        self.report.requests += 1;
        let name = format!("{} {}", request.method, request.path);
        let reply = match self.find(&request) {
            Ok(reply) => reply,
            Err(Wrong { api, why, items }) => {
                eprintln!("mismatch: {name}: {why}");
                let conversation = items.iter().map(Item::brief).collect();
                let reply = api.unwrap_or(Api::Anthropic).error(400, None, &format!("not in the scenario: {why}"));
                self.report.mismatches.push(Mismatch { request: name, why, conversation });
                reply
            }
        };
        if let Some(file) = &mut self.record
            && Api::of(&request.path).is_some()
        {
            let exchange = Exchange { path: request.path, request: request.body, reply: reply.clone() };
            file.write_all((serde_json::to_string(&exchange)? + "\n").as_bytes())?;
        }
        self.note()?;
        Ok(reply)
    }

    fn find(&mut self, request: &Request) -> Result<Reply, Wrong> {
        match (request.method.as_str(), request.path.as_str()) {
            // Agents look whether somebody is there.
            ("GET" | "HEAD", "/" | "/api/hello") => return Ok(Reply::json(200, json!({}))),
            ("GET", "/v1/models") => return Ok(Reply::json(200, json!({"object": "list", "data": [], "models": []}))),
            ("POST", "/v1/messages/count_tokens") => {
                return Ok(Reply::json(200, json!({"input_tokens": tokens(&request.body)})));
            }
            _ => {}
        }
        let wrong = |api, why: &str| Wrong { api, why: why.to_owned(), items: Vec::new() };
        let api = Api::of(&request.path).filter(|_| request.method == "POST");
        let api = api.ok_or_else(|| wrong(None, "nothing is served there"))?;
        if !request.signed {
            return Err(wrong(Some(api), "neither x-api-key nor authorization is there"));
        }
        if !request.body["model"].is_string() {
            return Err(wrong(Some(api), "no model is named"));
        }
        let items = api.conversation(&request.body);
        match &mut self.source {
            From::Recording(exchanges) => {
                let same = |exchange: &&mut Option<Exchange>| {
                    exchange.as_ref().is_some_and(|exchange| {
                        exchange.path == request.path && api.conversation(&exchange.request) == items
                    })
                };
                let found = exchanges.iter_mut().find(same).and_then(Option::take);
                let why =
                    || Wrong { api: Some(api), why: "it is not in the recording".to_owned(), items: items.clone() };
                let exchange = found.ok_or_else(why)?;
                self.report.answered.push(Answered {
                    api: "recording".to_owned(),
                    place: self.report.answered.len().to_string(),
                    path: request.path.clone(),
                    after: items.last().map(Item::brief).unwrap_or_default(),
                });
                Ok(exchange.reply)
            }
            From::Scenario(scenario, script) => {
                let place = match script.locate(&items) {
                    Ok(place) => place,
                    Err(why) => {
                        let no_tools = request.body["tools"].as_array().is_none_or(Vec::is_empty);
                        if let (Some(aside), true, false) = (&scenario.aside, no_tools, script.knows(&items)) {
                            self.report.asides += 1;
                            return Ok(aside_reply(api, aside, request));
                        }
                        return Err(Wrong { api: Some(api), why: format!("{why:#}"), items });
                    }
                };
                let Some(Beat { place: at, kind: BeatKind::Answer(answer), .. }) = place.next() else {
                    return Err(Wrong { api: Some(api), why: "another turn is due".to_owned(), items });
                };
                for (pointer, wanted) in &answer.request {
                    let is = request.body.pointer(pointer);
                    if is.unwrap_or(&Value::Null) != wanted {
                        let why = format!("{at}: {pointer} should be {wanted}, and is {}", is.unwrap_or(&Value::Null));
                        return Err(Wrong { api: Some(api), why, items });
                    }
                }
                let had = self.faulted.entry(at.clone()).or_default();
                let fault = due(&answer.faults, *had);
                let id = ids::id(if api == Api::Anthropic { "msg" } else { "resp" }, scenario.seed, at);
                let reply = reply(api, answer, fault, id, request);
                if fault.is_some() {
                    *had += 1;
                    self.report.faults += 1;
                } else {
                    let branch = place.path.branch.as_ref().map(|branch| format!("/{branch}")).unwrap_or_default();
                    self.report.answered.push(Answered {
                        api: api.name().to_owned(),
                        place: at.clone(),
                        path: format!("{}{branch}", place.path.conversation),
                        after: items.last().map(Item::brief).unwrap_or_default(),
                    });
                }
                Ok(reply)
            }
        }
    }

    /// Brings the report up to date.
    fn note(&mut self) -> Result<()> {
        let asked: BTreeSet<&str> = self.report.answered.iter().map(|answered| answered.place.as_str()).collect();
        self.report.unasked = match &self.source {
            From::Scenario(_, script) => {
                let beats = script.paths().iter().flat_map(|path| &path.beats);
                let answers = beats.filter(|beat| matches!(&beat.kind, BeatKind::Answer(answer) if !answer.given));
                let open: BTreeSet<&str> =
                    answers.map(|beat| beat.place.as_str()).filter(|at| !asked.contains(at)).collect();
                open.into_iter().map(ToOwned::to_owned).collect()
            }
            From::Recording(exchanges) => {
                let open = exchanges.iter().enumerate().filter(|(_, exchange)| exchange.is_some());
                open.map(|(at, _)| at.to_string()).collect()
            }
        };
        self.report.passed = self.report.mismatches.is_empty() && (!self.all || self.report.unasked.is_empty());
        if let Some(path) = &self.report_to {
            self.report.write(path).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }
}

/// What is wrong with a request.
struct Wrong {
    api: Option<Api>,
    why: String,
    items: Vec<Item>,
}

/// The fault that is due when an answer has had so many.
fn due(faults: &[Fault], had: usize) -> Option<&Fault> {
    faults.iter().flat_map(|fault| std::iter::repeat_n(fault, fault.times)).nth(had)
}

fn reply(api: Api, answer: &Answer, fault: Option<&Fault>, id: String, request: &Request) -> Reply {
    let model = request.body["model"].as_str().unwrap_or_default();
    let output: usize = answer.text().len() / 4 + 1;
    let input_tokens = answer.input_tokens.unwrap_or_else(|| tokens(&request.body));
    let frame = Frame { id, model, input_tokens, output_tokens: output as u64 };
    if let Some(Fault { status: Some(status), kind, retry_after, headers, .. }) = fault {
        let mut reply = api.error(*status, kind.as_deref(), "the scenario wants this to fail");
        reply.headers = headers.clone();
        if let Some(seconds) = retry_after {
            reply.headers.insert("retry-after".to_owned(), seconds.to_string());
        }
        return reply;
    }
    if request.body["stream"] != Value::Bool(true) && fault.is_none() {
        return Reply::json(200, api.whole(answer, &frame));
    }
    let mut events = api.events(answer, &frame);
    let mut end = End::Whole;
    if let Some(fault) = fault {
        let after = fault.break_after.or(fault.error_after).or(fault.stall_after).unwrap_or_default();
        events.truncate(after);
        if fault.break_after.is_some() {
            end = End::Broken;
        } else if fault.stall_after.is_some() {
            end = End::Stalled;
        } else {
            events.push(api.error_event("the scenario wants this to fail"));
        }
    }
    Reply { status: 200, headers: BTreeMap::new(), body: Body::Stream { events, pace_ms: answer.pace_ms, end } }
}

fn aside_reply(api: Api, text: &str, request: &Request) -> Reply {
    let answer = Answer { blocks: vec![crate::script::Block::Say(text.to_owned())], ..Answer::default() };
    reply(api, &answer, None, ids::id("msg", 0, "aside"), request)
}

/// About what a request costs: four bytes a token.
fn tokens(body: &Value) -> u64 {
    (body.to_string().len() / 4) as u64
}
