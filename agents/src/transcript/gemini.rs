//! Gemini CLI's transcripts: `<home>/tmp/<project>/chats/session-<time>-<first 8 of the id>.jsonl`.
//!
//! The first line has the session's id and the SHA-256 of the project's path. Then a message a line; one that changes is written again under the same
//! `id`, and the last counts. `$set` changes members of the first line, `$rewindTo` takes messages back. Calls stand, with their results, in the message that
//! made them.
//!
//! Which folder is a project's, the program keeps in a list of its own. So a copy can only be for the same project, in the folder of the same name.
//!
//! Made from the program's published source; it was not run. See `docs/agents/gemini.md`.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use ah_plugin_api::{Error, ErrorKind, Result};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

use super::copy::{self, Edit, Until};
use super::line::{Lines, Seen, What, text_of, time_of};
use super::{Destination, Position, Trimmed};
use crate::Agent;

#[derive(Deserialize, Default)]
#[serde(default)]
struct Line<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow, rename = "type")]
    kind: Option<&'a RawValue>,
    #[serde(borrow)]
    timestamp: Option<&'a RawValue>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow, rename = "toolCalls")]
    calls: Option<&'a RawValue>,
    #[serde(borrow, rename = "sessionId")]
    session: Option<&'a RawValue>,
    #[serde(borrow, rename = "projectHash")]
    project: Option<&'a RawValue>,
    #[serde(borrow, rename = "$set")]
    set: Option<&'a RawValue>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Part<'a> {
    #[serde(borrow)]
    text: Option<&'a RawValue>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Call<'a> {
    #[serde(borrow)]
    result: Option<&'a RawValue>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Set<'a> {
    #[serde(borrow, rename = "sessionId")]
    session: Option<&'a RawValue>,
}

fn parse(line: &[u8]) -> Option<Line<'_>> {
    serde_json::from_slice(line).ok()
}

pub(super) fn look(line: &[u8]) -> Seen {
    let Some(line) = parse(line) else { return Seen::default() };
    let typed = line
        .content
        .filter(|_| text_of(line.kind).as_deref() == Some("user"))
        .map(said)
        .filter(|text| !text.is_empty());
    Seen {
        uuid: text_of(line.id).map(Cow::into_owned),
        time: text_of(line.timestamp).and_then(|text| time_of(&text)),
        what: typed.map_or(What::Other, |text| What::Prompt { text, id: None }),
    }
}

/// The text of a message, which is a string or a list of parts.
fn said(content: &RawValue) -> String {
    if let Some(text) = text_of(Some(content)) {
        return text.into_owned();
    }
    let parts: Vec<Part<'_>> = serde_json::from_str(content.get()).unwrap_or_default();
    parts.iter().filter_map(|part| text_of(part.text)).collect::<Vec<_>>().join("\n")
}

#[derive(Default)]
struct Plan {
    dropped: std::collections::HashSet<u64>,
    messages: u64,
    project: Option<String>,
}

/// A message as it was last written.
#[derive(Default)]
struct Message {
    lines: Vec<u64>,
    open: bool,
    said: bool,
}

fn plan(lines: &mut Lines, until: &Until) -> Result<Plan> {
    let mut plan = Plan::default();
    let mut messages: HashMap<String, Message> = HashMap::new();
    while !until.reached(lines.offset)? {
        let number = lines.line + 1;
        let Some(bytes) = lines.next()? else { break };
        let Some(line) = parse(bytes) else { continue };
        if let Some(project) = text_of(line.project) {
            plan.project = Some(project.into_owned());
        }
        let Some(id) = text_of(line.id) else { continue };
        let message = messages.entry(id.into_owned()).or_default();
        message.lines.push(number);
        message.said = matches!(text_of(line.kind).as_deref(), Some("user" | "gemini"));
        let calls: Vec<Call<'_>> =
            line.calls.and_then(|calls| serde_json::from_str(calls.get()).ok()).unwrap_or_default();
        message.open = calls.iter().any(|call| call.result.is_none());
    }
    for message in messages.into_values() {
        if message.open {
            plan.dropped.extend(message.lines);
        } else {
            plan.messages += u64::from(message.said);
        }
    }
    Ok(plan)
}

pub(super) fn trim(at: &Position, to: &Destination<'_>, session_id: &str) -> Result<Trimmed> {
    let at = copy::settled(Agent::Gemini, at)?;
    let plan = plan(&mut Lines::open(&at.file, None)?, &Until::Offset(at.offset, at.file.clone()))?;
    let cwd = std::fs::canonicalize(to.cwd).unwrap_or_else(|_| to.cwd.to_path_buf());
    let digest = Sha256::digest(cwd.as_os_str().as_bytes());
    let hash = digest.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
    if plan.project.as_deref() != Some(hash.as_str()) {
        let message = format!(
            "Gemini CLI finds a conversation only from the directory it was held in, which {} is not",
            cwd.display()
        );
        return Err(Error::new(ErrorKind::Unsupported, message)
            .with_hint("the prompts so far can be told to a fresh session instead"));
    }
    let file = place(&at, to, session_id)?;
    copy::refuse_existing(&file)?;
    if plan.messages == 0 {
        return Err(copy::nothing_said(&at));
    }
    let counts = copy::write(&at, &file, |number, line| {
        if plan.dropped.contains(&number) || serde_json::from_slice::<IgnoredAny>(line).is_err() {
            return Edit::Drop;
        }
        let parsed = parse(line).unwrap_or_default();
        let set: Set<'_> = parsed.set.and_then(|set| serde_json::from_str(set.get()).ok()).unwrap_or_default();
        let quoted = format!("\"{session_id}\"");
        [parsed.session, set.session]
            .into_iter()
            .flatten()
            .fold(Edit::Keep, |edit, raw| edit.replace(line, raw.get(), quoted.clone()))
    })?;
    Ok(Trimmed {
        file,
        session_id: session_id.into(),
        lines: counts.lines,
        dropped: counts.dropped,
        others: Vec::new(),
        notes: Vec::new(),
    })
}

/// In the project's folder of the agent's home, which has the original's name, named for the new id.
fn place(at: &Position, to: &Destination<'_>, session_id: &str) -> Result<PathBuf> {
    let odd = || {
        let message = format!("{} is not where a session of Gemini CLI is", at.file.display());
        Error::new(ErrorKind::Unsupported, message).with_hint("expected: tmp/PROJECT/chats/session-TIME-ID.jsonl")
    };
    let name = at.file.file_name().and_then(OsStr::to_str).unwrap_or_default();
    let stem = name.strip_prefix("session-").and_then(|rest| rest.strip_suffix(".jsonl")).ok_or_else(odd)?;
    // The time in the name has dashes too; the id is what comes last.
    let (time, _) = stem.rsplit_once('-').ok_or_else(odd)?;
    let mut above = at.file.ancestors().skip(1).map(std::path::Path::file_name);
    let (Some(Some(chats)), Some(Some(project)), Some(Some(tmp))) = (above.next(), above.next(), above.next()) else {
        return Err(odd());
    };
    if chats != "chats" || tmp != "tmp" {
        return Err(odd());
    }
    Ok(to
        .home
        .gemini
        .join("tmp")
        .join(project)
        .join("chats")
        .join(format!("session-{time}-{}.jsonl", &session_id[..8])))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Home;
    use crate::transcript::{Prompt, position_now, prompts, trim};

    const NEW: &str = "99999999-9999-4999-8999-999999999999";

    /// A session of the project `cwd`, in the form of the program's source.
    fn session(cwd: &std::path::Path) -> String {
        let digest = Sha256::digest(cwd.as_os_str().as_bytes());
        let hash = digest.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
        [
            format!(r#"{{"sessionId":"old","projectHash":"{hash}","startTime":"2026-01-01T00:00:00.000Z"}}"#),
            r#"{"id":"u1","timestamp":"2026-01-01T00:00:01.000Z","type":"user","content":[{"text":"make a.txt"}]}"#.into(),
            r#"{"id":"g1","timestamp":"2026-01-01T00:00:02.000Z","type":"gemini","content":"","toolCalls":[{"id":"c1","name":"write_file","status":"executing"}]}"#
                .into(),
            r#"{"id":"g1","timestamp":"2026-01-01T00:00:02.000Z","type":"gemini","content":"","toolCalls":[{"id":"c1","name":"write_file","status":"success","result":[{"x":1}]}]}"#
                .into(),
            r#"{"$set":{"sessionId":"old","lastUpdated":"x"}}"#.into(),
            r#"{"id":"i1","timestamp":"2026-01-01T00:00:03.000Z","type":"info","content":"note"}"#.into(),
            r#"{"id":"u2","timestamp":"2026-01-01T00:00:04.000Z","type":"user","content":"and b.txt"}"#.into(),
            r#"{"id":"g2","timestamp":"2026-01-01T00:00:05.000Z","type":"gemini","content":"","toolCalls":[{"id":"c2","name":"x","result":null}]}"#.into(),
        ]
        .map(|line: String| line + "\n")
        .concat()
    }

    #[test]
    fn a_session_of_the_same_project_is_cut_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let cwd = std::fs::canonicalize(dir.path()).unwrap();
        let text = session(&cwd);
        let home = Home::plain(cwd.join("home"), "");
        let chats = home.gemini.join("tmp/project-1/chats");
        std::fs::create_dir_all(&chats).unwrap();
        let file = chats.join("session-2026-01-01T00-00-old00000.jsonl");
        std::fs::write(&file, &text).unwrap();
        let all: Vec<Prompt> = prompts(Agent::Gemini, &file, None).unwrap().map(Result::unwrap).collect();
        let texts: Vec<(&str, u64)> = all.iter().map(|prompt| (prompt.text.as_str(), prompt.before.line)).collect();
        assert_eq!(texts, [("make a.txt", 1), ("and b.txt", 6)]);

        let end = position_now(Agent::Gemini, &file, None).unwrap();
        let copy = trim(Agent::Gemini, &end, &Destination { home: &home, cwd: &cwd }, NEW, false).unwrap();
        assert_eq!(copy.file, chats.join("session-2026-01-01T00-00-99999999.jsonl"));
        assert_eq!((copy.lines, copy.dropped), (7, 1), "the call without a result goes");
        let expected: String =
            text.lines().take(7).map(|line| line.replace("\"old\"", &format!("\"{NEW}\"")) + "\n").collect();
        assert_eq!(std::fs::read_to_string(&copy.file).unwrap(), expected);

        std::fs::remove_file(&copy.file).unwrap();
        let early = Position {
            line: 3,
            offset: text.lines().take(3).map(|line| line.len() as u64 + 1).sum(),
            uuid: None,
            file: file.clone(),
        };
        let copy = trim(Agent::Gemini, &early, &Destination { home: &home, cwd: &cwd }, NEW, false).unwrap();
        assert_eq!((copy.lines, copy.dropped), (2, 1), "a message that was not finished by then");

        let other = Destination { home: &home, cwd: std::path::Path::new("/another/place") };
        assert_eq!(trim(Agent::Gemini, &end, &other, NEW, false).unwrap_err().kind, ErrorKind::Unsupported);
        let start = Position { line: 1, offset: text.find('\n').unwrap() as u64 + 1, uuid: None, file: file.clone() };
        let to = Destination { home: &home, cwd: &cwd };
        std::fs::remove_file(&copy.file).unwrap();
        assert_eq!(trim(Agent::Gemini, &start, &to, NEW, false).unwrap_err().kind, ErrorKind::FailedPrecondition);

        // Another home is another place, as for the other agents.
        let home = Home::plain(cwd.join("elsewhere"), "");
        let copy = trim(Agent::Gemini, &end, &Destination { home: &home, cwd: &cwd }, NEW, false).unwrap();
        assert!(copy.file.starts_with(home.gemini.join("tmp/project-1/chats")));
        let odd = cwd.join("session-2026-01-01T00-00-old00000.jsonl");
        std::fs::copy(&file, &odd).unwrap();
        let at = position_now(Agent::Gemini, &odd, None).unwrap();
        assert_eq!(trim(Agent::Gemini, &at, &to, NEW, false).unwrap_err().kind, ErrorKind::Unsupported);
    }
}
