//! Reads scenarios, and refuses those that cannot be played.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::{Branch, Fault, Scenario, Step, Tool};

impl Scenario {
    /// Reads and checks a file: JSON if it is called so, else YAML.
    ///
    /// # Errors
    /// It cannot be read, is not of the form, or contradicts itself; the message says where.
    pub fn load(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let json = path.extension().is_some_and(|extension| extension == "json");
        Self::parse(&text, json).with_context(|| format!("{} is no scenario", path.display()))
    }

    /// Reads and checks a text.
    ///
    /// # Errors
    /// As for [`Scenario::load`].
    pub fn parse(text: &str, json: bool) -> Result<Self> {
        // `on` and `no` are words of people, not truths.
        let yaml = serde_saphyr::options! { strict_booleans: true };
        let scenario: Self =
            if json { serde_json::from_str(text)? } else { serde_saphyr::from_str_with_options(text, yaml)? };
        scenario.check()?;
        Ok(scenario)
    }

    /// All conversations, the main one first: name, steps, branches.
    pub fn all(&self) -> impl Iterator<Item = (&str, &[Step], &[Branch])> {
        let further = self.conversations.iter().map(|one| (one.name.as_str(), &*one.steps, &*one.branches));
        std::iter::once(("main", &*self.steps, &*self.branches)).chain(further)
    }

    fn check(&self) -> Result<()> {
        if let Some(clock) = &self.clock {
            clock.parse::<jiff::Timestamp>().with_context(|| format!("clock: {clock}"))?;
        }
        let mut names = BTreeSet::new();
        for (name, steps, branches) in self.all() {
            if !names.insert(name) {
                bail!("two conversations are called {name:?}");
            }
            if !matches!(first_said(steps), Some(Step::Prompt(_))) {
                bail!("conversation {name:?} does not begin with a prompt");
            }
            let mut labels = BTreeSet::new();
            self.check_steps(name, steps, &mut labels)?;
            for branch in branches {
                let place = format!("{name}/{}", branch.name);
                self.check_steps(&place, &branch.steps, &mut labels)?;
                if !matches!(first_said(&branch.steps), Some(Step::Prompt(_))) {
                    bail!("branch {place:?} does not begin with a prompt");
                }
            }
            for branch in branches {
                if !labels.contains(branch.after.as_str()) {
                    bail!("branch {:?} goes on after the label {:?}, which is not there", branch.name, branch.after);
                }
            }
        }
        Ok(())
    }

    fn check_steps<'a>(&self, place: &str, steps: &'a [Step], labels: &mut BTreeSet<&'a str>) -> Result<()> {
        // Whether the model has said something that is no whole answer yet.
        let mut open = false;
        for (at, step) in steps.iter().enumerate() {
            let place = || format!("{place}, step {}", at + 1);
            match step {
                Step::Think(_) | Step::Say(_) => open = true,
                Step::Tool(tool) => {
                    open = false;
                    self.check_tool(tool).with_context(place)?;
                }
                Step::Tools(tools) => {
                    open = false;
                    tools.iter().try_for_each(|tool| self.check_tool(tool)).with_context(place)?;
                }
                Step::Prompt(_) | Step::Said(_) => open = false,
                Step::Label(label) => {
                    let goes_on = first_said(&steps[at + 1..]);
                    if open && !matches!(goes_on, None | Some(Step::Prompt(_) | Step::Said(_))) {
                        bail!("{}: the label {label:?} is in the middle of an answer", place());
                    }
                    if !labels.insert(label) {
                        bail!("{}: the label {label:?} is there twice", place());
                    }
                }
                Step::Fault(fault) => check_fault(fault).with_context(place)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn check_tool(&self, tool: &Tool) -> Result<()> {
        if tool.input.is_some() == tool.text.is_some() {
            bail!("tool {:?} needs either input or text", tool.name);
        }
        if let Some(name) = &tool.subagent
            && !self.conversations.iter().any(|conversation| conversation.name == *name)
        {
            bail!("there is no conversation {name:?} for the sub-agent");
        }
        Ok(())
    }
}

fn check_fault(fault: &Fault) -> Result<()> {
    let kinds =
        [fault.status.is_some(), fault.break_after.is_some(), fault.error_after.is_some(), fault.stall_after.is_some()];
    if kinds.into_iter().filter(|is| *is).count() != 1 {
        bail!("a fault is one of status, break_after, error_after, stall_after");
    }
    if let Some(status) = fault.status
        && !(400..600).contains(&status)
    {
        bail!("status {status} is no error");
    }
    Ok(())
}

/// The first step that is part of the conversation.
fn first_said(steps: &[Step]) -> Option<&Step> {
    steps.iter().find(|step| {
        matches!(step, Step::Prompt(_) | Step::Said(_) | Step::Think(_) | Step::Say(_) | Step::Tool(_) | Step::Tools(_))
    })
}

#[cfg(test)]
mod tests {
    use super::Scenario;

    const GOOD: &str = r#"
name: two ways
seed: 3
steps:
  - prompt: Make a greeting
  - think: A file will do.
  - say: I write it.
  - tool: {name: Write, input: {file_path: hello.txt, content: "hi\n"}}
  - label: written
  - fault: {status: 529, times: 2, retry_after: 1}
  - say: Done.
  - prompt: {contains: louder, after_interrupt: true}
  - tools:
      - {name: Bash, input: {command: "echo HI > hello.txt"}, expect: {error: false}}
      - {name: Bash, input: {command: "false"}}
  - crash
branches:
  - {name: politely, after: written, steps: [prompt: Say good day, say: Good day.]}
"#;

    #[test]
    fn yaml_and_json_say_the_same() {
        let scenario = Scenario::parse(GOOD, false).unwrap();
        assert_eq!((scenario.steps.len(), scenario.seed, scenario.branches[0].steps.len()), (10, 3, 2));
        let json = r#"{"name": "x", "steps": [{"prompt": "a"}, {"say": "b"}, "crash"]}"#;
        assert_eq!(Scenario::parse(json, true).unwrap().steps.len(), 3);
        assert_eq!(Scenario::parse(json, false).unwrap().steps.len(), 3, "JSON is YAML");
    }

    #[test]
    fn those_that_come_with_the_project_are_well_formed() {
        let folder = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios"));
        let files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(files.len() >= 2);
        for file in files {
            crate::script::Script::new(&Scenario::load(&file).unwrap()).unwrap();
        }
    }

    #[test]
    fn what_cannot_be_played_is_refused() {
        let refused = |steps: &str, part: &str| {
            let error = format!("{:#}", Scenario::parse(&format!("name: x\nsteps: {steps}"), false).unwrap_err());
            assert!(error.contains(part), "{error}");
        };
        refused("[say: a]", "does not begin with a prompt");
        refused("[prompt: a, say: b, label: l, say: c]", "middle of an answer");
        refused("[prompt: a, label: l, label: l]", "there twice");
        refused("[prompt: a, fault: {status: 200}, say: b]", "is no error");
        refused("[prompt: a, fault: {status: 500, break_after: 1}, say: b]", "one of status");
        refused("[prompt: a, tool: {name: Bash}]", "either input or text");
        refused("[prompt: a, tool: {name: Agent, input: {}, subagent: nobody}]", "no conversation");
        refused("[prompt: a, shout: b]", "shout");
        refused("[prompt: a]\nbranches: [{name: b, after: nowhere, steps: [prompt: x]}]", "which is not there");
        refused("[prompt: a]\nclock: noon", "clock");
    }
}
