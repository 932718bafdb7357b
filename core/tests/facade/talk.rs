//! An agent's conversation for one test: its transcript in Claude Code's form (docs/agents/claude.md), the moments that its hooks
//! would have left, and a program of its name to be found.

#![allow(dead_code)]

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use ah_agents::Home;
use ah_agents::launch::Form;
use ah_core::{
    MomentKind, MomentTool, NewMoment, RewindOptions, SessionBranchOptions, SessionName, TranscriptPosition,
};

use crate::lab::Lab;

pub(crate) const ID: &str = "11111111-2222-4333-8444-555555555555";

pub(crate) struct Talk {
    pub(crate) home: Home,
    pub(crate) file: PathBuf,
    pub(crate) session: SessionName,
    workspace: PathBuf,
    lines: u64,
}

impl Talk {
    /// What there is below the top of a lab.
    pub(crate) fn known(top: &Path) -> Self {
        let home = Home::plain(top.join("user"), top.join("bin"));
        let file = home.claude.join("projects").join(project(&top.join("ws"))).join(format!("{ID}.jsonl"));
        Self { home, file, session: SessionName::new("claude-one").unwrap(), workspace: top.join("ws"), lines: 0 }
    }

    pub(crate) fn begin(lab: &Lab) -> Self {
        let bin = lab.top.join("bin");
        fs::create_dir_all(&bin).unwrap();
        let program = bin.join("claude");
        fs::write(&program, "").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let talk = Self::known(&lab.top);
        fs::create_dir_all(talk.file.parent().unwrap()).unwrap();
        talk.moment(lab, NewMoment::new(MomentKind::SessionStart));
        // As the hook writes it down.
        let record = lab.folder().join("sessions/claude-one/session.json");
        let mut fields: serde_json::Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
        fields["agent"] = serde_json::json!({"name": "claude", "id": ID, "transcript": talk.file, "start": lab.path()});
        fs::write(&record, fields.to_string()).unwrap();
        talk
    }

    /// From here on the agent keeps its conversations below another folder.
    pub(crate) fn keeps_below(&mut self, folder: &Path) {
        self.home.claude = folder.to_owned();
        self.file = folder.join("projects").join(project(&self.workspace)).join(format!("{ID}.jsonl"));
        fs::create_dir_all(self.file.parent().unwrap()).unwrap();
    }

    /// Says that the hooks find every agent's session, which is so.
    pub(crate) fn make_known(&self, lab: &Lab) {
        fs::create_dir_all(lab.settings.home.join("agents/all")).unwrap();
        self.calls_by(lab, &serde_json::Value::Null);
    }

    /// Says which process called the hooks last for the conversation.
    pub(crate) fn calls_by(&self, lab: &Lab, process: &serde_json::Value) {
        let agents = lab.settings.home.join("agents");
        let workspace = lab.open().id().as_str().to_owned();
        let known = serde_json::json!({"workspace": workspace, "session": self.session, "process": process});
        crate::lab::write(&agents.join("claude").join(format!("{ID}.json")), &known.to_string());
    }

    /// A prompt, a tool that writes `text` to the file `a`, an answer.
    pub(crate) fn turn(&mut self, lab: &Lab, prompt: &str, text: &str) {
        let new = NewMoment { prompt: Some(prompt.to_owned()), ..NewMoment::new(MomentKind::Prompt) };
        self.moment(lab, new);
        self.line(lab, "user", &serde_json::json!(prompt));
        let call = format!("toolu_{}", self.lines);
        self.line(
            lab,
            "assistant",
            &serde_json::json!([{"type": "tool_use", "id": call, "name": "Bash", "input": {}}]),
        );
        lab.write("a", text);
        let tool = Some(MomentTool { name: "Bash".to_owned(), id: Some(call.clone()), about: None });
        self.moment(lab, NewMoment { tool, ..NewMoment::new(MomentKind::Tool) });
        self.line(lab, "user", &serde_json::json!([{"type": "tool_result", "tool_use_id": call, "content": "ok"}]));
        self.line(lab, "assistant", &serde_json::json!([{"type": "text", "text": format!("done with {prompt}")}]));
        self.moment(lab, NewMoment::new(MomentKind::Stop));
    }

    fn line(&mut self, lab: &Lab, role: &str, content: &serde_json::Value) {
        lab.wait(1);
        let uuid = |n: u64| format!("00000000-0000-4000-8000-{n:012}");
        let time = ah_core::text::format_time(lab.settings.clock.now());
        let parent = self.lines.checked_sub(1).map(uuid);
        let line = serde_json::json!({
            "parentUuid": parent, "isSidechain": false, "cwd": lab.path(), "sessionId": ID, "version": "2.1.197",
            "type": role, "message": {"role": role, "content": content}, "uuid": uuid(self.lines), "timestamp": time,
        });
        let mut file = fs::OpenOptions::new().create(true).append(true).open(&self.file).unwrap();
        writeln!(file, "{line}").unwrap();
        self.lines += 1;
    }

    /// The agent moves its transcript to the folder of another project.
    pub(crate) fn moves_to(&mut self, project: &str) {
        let moved = self.home.claude.join("projects").join(project).join(self.file.file_name().unwrap());
        fs::create_dir_all(moved.parent().unwrap()).unwrap();
        fs::rename(&self.file, &moved).unwrap();
        self.file = moved;
    }

    fn moment(&self, lab: &Lab, new: NewMoment) {
        lab.wait(1);
        let offset = fs::metadata(&self.file).map_or(0, |found| found.len());
        let transcript = TranscriptPosition { file: self.file.clone(), line: self.lines, offset, uuid: None };
        let workspace = lab.open();
        workspace.add_moment(&self.session, NewMoment { transcript: Some(transcript), ..new }).unwrap();
        workspace.capture().unwrap();
    }

    /// A moment without a place in the transcript, as a person's or a shell's is.
    pub(crate) fn mark(&self, lab: &Lab) -> String {
        lab.wait(1);
        let workspace = lab.open();
        let moment = workspace.add_moment(&self.session, NewMoment::new(MomentKind::Manual)).unwrap();
        workspace.capture().unwrap();
        moment.id.to_string()
    }

    /// The agent ends.
    pub(crate) fn end(&self, lab: &Lab) {
        self.moment(lab, NewMoment::new(MomentKind::SessionEnd));
    }

    pub(crate) fn branch_of(&self, from: &str, name: &str) -> SessionBranchOptions {
        SessionBranchOptions {
            from: from.to_owned(),
            name: SessionName::new(name).unwrap(),
            instruction: Some("go on".to_owned()),
            form: Form::Interactive,
            run: false,
            elsewhere: false,
            can_show: |_| true,
            agents: self.home.clone(),
        }
    }

    pub(crate) fn back_to(&self, to: &str) -> RewindOptions {
        RewindOptions {
            to: to.to_owned(),
            files: true,
            conversation: true,
            run: false,
            elsewhere: false,
            agents: self.home.clone(),
        }
    }

    /// Every file in the agent's home.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut folders = vec![self.home.claude.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                let into = if entry.path().is_dir() { &mut folders } else { &mut found };
                into.push(entry.path());
            }
        }
        found.sort();
        found
    }
}

/// The name of a directory's folder in Claude Code's home.
pub(crate) fn project(cwd: &Path) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    cwd.to_str().unwrap().chars().map(plain).collect()
}
