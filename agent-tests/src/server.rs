//! `mock-model-server` for a test.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::agents::Agent;
use crate::world::World;

/// A server that answers from a scenario. It must be ended, which is where it says whether all was as it should be.
#[derive(Debug)]
pub struct Server {
    /// None for the mock agent, which needs no server.
    child: Option<Child>,
    /// `http://127.0.0.1:PORT`
    pub url: String,
    report: PathBuf,
    record: PathBuf,
}

impl Server {
    /// Starts one that plays a scenario (YAML) for an agent.
    #[must_use]
    pub fn start(world: &World, agent: Agent, scenario: &str) -> Self {
        let file = |name: &str| world.path(name);
        std::fs::write(file("scenario.yaml"), scenario).unwrap();
        let (report, record) = (file("report.json"), file("record.jsonl"));
        if agent == Agent::Mock {
            return Self { child: None, url: String::new(), report, record };
        }
        let mut command = Command::new(crate::programs().join("mock-model-server"));
        command.arg(file("scenario.yaml"));
        command.arg("--report").arg(&report).arg("--record").arg(&record).arg("--all");
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.trim().to_owned();
        Self { child: Some(child), url, report, record }
    }

    /// The report as it is now.
    #[must_use]
    pub fn report(&self) -> Value {
        serde_json::from_slice(&std::fs::read(&self.report).unwrap()).unwrap()
    }

    /// The bodies of all requests so far.
    #[must_use]
    pub fn requests(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.record).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["request"].clone()).collect()
    }

    /// Ends it: every request must have been one of the scenario, and every answer of it asked for.
    pub fn passed(mut self) {
        let Some(child) = &mut self.child else { return };
        let pid = rustix::process::Pid::from_child(child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let status = child.wait().unwrap();
        assert!(status.success(), "{:#}", self.report());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let Some(child) = &mut self.child else { return };
        let _ = child.kill();
        let _ = child.wait();
        if std::thread::panicking() {
            eprintln!("what the server was asked: {:#}", self.report());
        }
    }
}
