//! Which of a session's tools run, so that a snapshot can tell whether one of them may have written while it was taken.
//!
//! In the session's folder `tools/`: `begun` grows by one byte whenever a tool that may write begins; one file for each such tool that
//! runs, or is about to: while the hook that was told of it lives, it holds the agent up. Agents do not tell of a tool that was interrupted: those are forgotten when the next prompt or the answer comes, those of sub-agents
//! too, unless sub-agents go on in the background. Nor do they tell of one that was refused: that is over when its result is in the transcript, which also tells of a command that the agent waits for no longer. One file for each that does, as far as the agent tells; whose sub-agent another one is it
//! does not, so while one goes on the tools of all do.
//!
//! Only a session's own tools count. What other sessions write in the same workspace at the same time is in a snapshot as it was then.

use std::path::{Path, PathBuf};

use ah_plugin_api::{Durability, Result};
use serde::{Deserialize, Serialize};

use crate::fsio;
use crate::ids::SessionName;
use crate::lock::Holder;
use crate::session;
use crate::text;

/// A tool that runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Running {
    /// What it is called.
    pub(crate) name: String,
    /// The sub-agent whose it is.
    #[serde(default)]
    pub(crate) sub_agent: Option<String>,
    /// When it began, in clock ticks of the machine's run; 0: not known.
    #[serde(default)]
    pub(crate) since: u64,
    /// How many bytes its agent's transcript had before it; none: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) written: Option<u64>,
    /// Of a command that went on in the background when its tool had ended: its processes.
    #[serde(default)]
    pub(crate) background: Vec<Holder>,
    /// The hook that was told of it, while it holds the agent up: the tool has not begun yet, unless that was killed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) asked: Option<Holder>,
}

impl Running {
    /// Why a snapshot that is taken meanwhile is inexact.
    pub(super) fn told(&self) -> String {
        match self.background.is_empty() {
            true => format!("{} was running at the same time", self.name),
            false => format!("a command that {} had left in the background was running", self.name),
        }
    }
}

/// What a tool's call is known by.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ToolId<'a> {
    /// The agent's id of the call.
    Call(&'a str),
    /// Only the tool's name: of several that run under it any one has ended when one has.
    Name(&'a str),
}

/// The tools of one session.
pub(crate) struct Tools {
    folder: PathBuf,
}

impl Tools {
    pub(crate) fn of(workspace: &Path, session: &SessionName) -> Self {
        Self { folder: session::folder(workspace, session).join("tools") }
    }

    /// A tool that may write is about to begin, when this process has ended. Should that be killed, it runs.
    pub(crate) fn ask(&self, call: &ToolId<'_>, running: Running) -> Result<()> {
        self.write(&self.file(call), &Running { asked: Some(Holder::me()), ..running })
    }

    /// A tool that may write begins.
    pub(crate) fn begin(&self, call: &ToolId<'_>, running: &Running) -> Result<()> {
        self.write(&self.file(call), running)?;
        fsio::count_up(&self.folder.join("begun"))
    }

    /// When a tool that runs began; none if it is not known to run.
    pub(crate) fn since(&self, call: &ToolId<'_>) -> Option<u64> {
        let bytes = fsio::read(&self.begun_file(call).ok()?).ok().flatten()?;
        serde_json::from_slice::<Running>(&bytes).ok().map(|running| running.since)
    }

    /// A tool has ended, successfully or not. What it left running in the background is a tool that runs, as long as it does.
    pub(crate) fn end(&self, call: &ToolId<'_>, name: &str, background: Vec<Holder>) -> Result<()> {
        let file = self.begun_file(call)?;
        if background.is_empty() {
            return fsio::remove_file(&file);
        }
        self.write(&file, &Running { name: name.to_owned(), background, ..Running::default() })
    }

    /// Where the transcript of the agent, or of the sub-agent, ended when the first of its tools began that run beside `call`; none if none do, or it
    /// is not known.
    pub(crate) fn beside(&self, call: Option<&ToolId<'_>>, sub_agent: Option<&str>) -> Result<Option<u64>> {
        let own = call.map(|call| self.file(call));
        let files = self.files()?.into_iter().filter(|(file, _)| Some(file) != own.as_ref());
        let its =
            files.filter(|(_, running)| running.background.is_empty() && running.sub_agent.as_deref() == sub_agent);
        Ok(its.filter_map(|(_, running)| running.written).min())
    }

    /// These calls have their results, so they have ended, but for what they left running.
    pub(crate) fn have_results(&self, ids: &[String]) -> Result<()> {
        let over: Vec<PathBuf> = ids.iter().map(|id| self.file(&ToolId::Call(id))).collect();
        self.over(|file, _| over.iter().any(|over| over == file))
    }

    /// The command of a call goes on though the agent does, too: from then on it is `processes` that run, which came since it began.
    pub(crate) fn command_goes_on(&self, id: &str, processes: impl FnOnce(u64) -> Vec<Holder>) -> Result<()> {
        let call = ToolId::Call(id);
        let bytes = fsio::read(&self.file(&call))?;
        match bytes.and_then(|bytes| serde_json::from_slice::<Running>(&bytes).ok()) {
            Some(running) if running.background.is_empty() => self.end(&call, &running.name, processes(running.since)),
            _ => Ok(()),
        }
    }

    /// A sub-agent, or several by that id, goes on in the background.
    pub(crate) fn goes_on(&self, id: &str) -> Result<()> {
        fsio::make_dir(&self.folder)?;
        fsio::replace(&self.agent_file(id), id.as_bytes(), Durability::Instant)
    }

    /// These go on in the background, and no others do.
    pub(crate) fn only_go_on(&self, ids: &[String]) -> Result<()> {
        self.paths("agent-")?.iter().try_for_each(|file| fsio::remove_file(file))?;
        ids.iter().try_for_each(|id| self.goes_on(id))
    }

    /// A sub-agent has ended, and so have its tools but for what they left running.
    pub(crate) fn sub_agent_over(&self, id: &str) -> Result<()> {
        fsio::remove_file(&self.agent_file(id))?;
        self.over(|_, running| running.sub_agent.as_deref() == Some(id))
    }

    /// A turn of the agent has ended, or was interrupted, and so have its tools but for what they left running; those of its sub-agents as
    /// well if they end with it (`sub_agents`), unless some go on in the background.
    pub(crate) fn turn_over(&self, sub_agents: bool) -> Result<()> {
        let all = sub_agents && self.paths("agent-")?.is_empty();
        self.over(|_, running| all || running.sub_agent.is_none())
    }

    fn over(&self, is_meant: impl Fn(&Path, &Running) -> bool) -> Result<()> {
        let mut files = self.files()?.into_iter();
        files.try_for_each(|(file, running)| match running.background.is_empty() && is_meant(&file, &running) {
            true => fsio::remove_file(&file),
            false => Ok(()),
        })
    }

    /// Nothing runs any more: the agent is gone.
    pub(crate) fn forget(&self) -> Result<()> {
        self.only_go_on(&[])?;
        self.paths("call-")?.iter().try_for_each(|file| fsio::remove_file(file))
    }

    /// How many have begun.
    pub(crate) fn begun(&self) -> u64 {
        fsio::count(&self.folder.join("begun"))
    }

    /// One that runs; in the background, too.
    pub(crate) fn running(&self) -> Result<Option<Running>> {
        let mut files = self.files()?.into_iter().map(|(_, running)| running);
        let asks = |running: &Running| running.asked.as_ref().is_some_and(Holder::alive);
        let runs = |running: &Running| running.background.is_empty() || running.background.iter().any(Holder::alive);
        Ok(files.find(|running| runs(running) && !asks(running)))
    }

    fn files(&self) -> Result<Vec<(PathBuf, Running)>> {
        let unknown = || Running { name: "a tool".to_owned(), ..Running::default() };
        let read = |file: PathBuf| {
            let bytes = fsio::read(&file).ok().flatten()?;
            Some((file, serde_json::from_slice(&bytes).unwrap_or_else(|_| unknown())))
        };
        Ok(self.paths("call-")?.into_iter().filter_map(read).collect())
    }

    fn paths(&self, start: &str) -> Result<Vec<PathBuf>> {
        let names = fsio::names(&self.folder)?;
        Ok(names.iter().filter(|name| name.starts_with(start)).map(|name| self.folder.join(name)).collect())
    }

    fn write(&self, file: &Path, running: &Running) -> Result<()> {
        fsio::make_dir(&self.folder)?;
        fsio::replace(file, &serde_json::to_vec(running).unwrap_or_default(), Durability::Instant)
    }

    /// The file of a call that begins. Those that have but a name are told apart by the process that notes them.
    fn file(&self, call: &ToolId<'_>) -> PathBuf {
        match call {
            ToolId::Call(id) => self.folder.join(format!("call-{}", text::digest(id))),
            ToolId::Name(name) => self.folder.join(format!("call-{}.{}", text::digest(name), std::process::id())),
        }
    }

    /// The file of a call that began; where it would be, if it is not known to have.
    fn begun_file(&self, call: &ToolId<'_>) -> Result<PathBuf> {
        let there = match call {
            ToolId::Call(_) => None,
            ToolId::Name(name) => self.paths(&format!("call-{}.", text::digest(name)))?.pop(),
        };
        Ok(there.unwrap_or_else(|| self.file(call)))
    }

    fn agent_file(&self, id: &str) -> PathBuf {
        self.folder.join(format!("agent-{}", text::digest(id)))
    }
}

#[cfg(test)]
mod tests {
    use super::ToolId::{Call, Name};
    use super::{Running, Tools};
    use crate::ids::SessionName;
    use crate::lock::Holder;

    fn named(name: &str, sub: Option<&str>) -> Running {
        Running { name: name.into(), sub_agent: sub.map(str::to_owned), since: 7, ..Running::default() }
    }

    #[test]
    fn tools_begin_and_end() {
        let dir = tempfile::tempdir().unwrap();
        let tools = Tools::of(dir.path(), &SessionName::main());
        let (one, two, three) = (Call("../1"), Call("2"), Call("3"));
        assert_eq!((tools.begun(), tools.running().unwrap()), (0, None));
        tools.begin(&one, &named("Bash", None)).unwrap();
        tools.begin(&two, &named("Edit", Some("sub"))).unwrap();
        assert_eq!((tools.begun(), tools.since(&two), tools.since(&three)), (2, Some(7), None));
        tools.end(&one, "Bash", Vec::new()).unwrap();
        assert_eq!(tools.running().unwrap().unwrap().name, "Edit");
        tools.sub_agent_over("sub").unwrap();
        assert_eq!((tools.begun(), tools.running().unwrap()), (2, None));
        tools.begin(&three, &named("Bash", None)).unwrap();
        tools.end(&three, "Bash", vec![Holder::me()]).unwrap();
        tools.turn_over(true).unwrap();
        assert!(tools.running().unwrap().is_some(), "what runs in the background goes on");
        let dead = Holder { start: 1, ..Holder::me() };
        tools.end(&three, "Bash", vec![dead]).unwrap();
        assert_eq!(tools.running().unwrap(), None, "until it has ended");
    }

    #[test]
    fn sub_agents_end_with_the_turn_unless_some_go_on() {
        let dir = tempfile::tempdir().unwrap();
        let tools = Tools::of(dir.path(), &SessionName::main());
        let runs = || tools.running().unwrap().is_some();
        let begin = || tools.begin(&Call("1"), &named("Edit", Some("inner"))).unwrap();
        begin();
        tools.turn_over(false).unwrap();
        assert!(runs(), "of an agent whose sub-agents do not end with its turn");
        tools.turn_over(true).unwrap();
        assert!(!runs());
        begin();
        tools.goes_on("outer").unwrap();
        tools.turn_over(true).unwrap();
        assert!(runs(), "it may be the one's that goes on");
        tools.sub_agent_over("outer").unwrap();
        tools.turn_over(true).unwrap();
        assert!(!runs());
        begin();
        tools.only_go_on(&["outer".into(), "other".into()]).unwrap();
        tools.only_go_on(&["outer".into()]).unwrap();
        tools.turn_over(true).unwrap();
        assert!(runs());
        tools.only_go_on(&[]).unwrap();
        tools.turn_over(true).unwrap();
        assert!(!runs());
        begin();
        tools.goes_on("outer").unwrap();
        tools.forget().unwrap();
        begin();
        tools.turn_over(true).unwrap();
        assert!(!runs(), "nothing is left of an agent that is gone");
    }

    #[test]
    fn tools_that_have_but_a_name_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let tools = Tools::of(dir.path(), &SessionName::main());
        let shell = Name("run_shell_command");
        tools.begin(&shell, &named("run_shell_command", None)).unwrap();
        let first = tools.begun_file(&shell).unwrap();
        // As if by another process.
        std::fs::rename(&first, first.with_extension("1")).unwrap();
        tools.begin(&shell, &named("run_shell_command", None)).unwrap();
        tools.end(&shell, "run_shell_command", Vec::new()).unwrap();
        assert_eq!((tools.running().unwrap().is_some(), tools.since(&shell)), (true, Some(7)));
        tools.end(&shell, "run_shell_command", Vec::new()).unwrap();
        assert_eq!(tools.running().unwrap(), None);
    }
}
