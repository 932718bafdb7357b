//! `ah agent rewind`: back to before a prompt, in the same directory: files, conversation or both.

use std::io::IsTerminal;

use ah_agents::launch::Form;
use ah_core::{Error, ErrorKind, PromptRecord, RewindOptions, RewindReport, Workspace};
use clap::Args;
use dialoguer::Select;
use dialoguer::console::Term;
use serde::Serialize;

use crate::app::App;
use crate::args::reference;
use crate::commands::launch::{self, Launch};
use crate::commands::restore;
use crate::failure::{Exit, Failure, Outcome};
use crate::output::{text, time};

/// So many prompts are offered.
const OFFERED: usize = 50;

/// Options of `ah agent rewind`.
#[derive(Debug, Args)]
#[command(after_help = "\
Restores the files as they were at REF, after a safety snapshot, and cuts the agent's conversation there; prints the \
command that goes on with it under a new id, in the same directory; recorded if the agent's hooks are not installed, so that it has moments all the same. \
The conversation that there is stays, under its own id. \
Without REF: a list of prompts to choose from on a terminal, else to before the last prompt. Repeated, it goes to before the prompt \
before that. `ah agent fs undo` takes the files forward again.

Examples:
  ah agent rewind
  ah agent rewind @prompt{2} --run
  ah agent rewind --files --json")]
pub(crate) struct RewindArgs {
    /// The moment to go back to.
    #[arg(value_name = "REF", value_parser = reference, allow_hyphen_values = true)]
    reference: Option<String>,
    /// Only the files.
    #[arg(long, conflicts_with_all = ["conversation", "both"])]
    files: bool,
    /// Only the conversation.
    #[arg(long, conflicts_with = "both")]
    conversation: bool,
    /// Both; the default.
    #[arg(long)]
    both: bool,
    /// Start the agent instead of printing the command.
    #[arg(long, conflicts_with = "files")]
    run: bool,
    /// With --run: start it also where its conversation knows its files at a path where it will not see them.
    #[arg(long, requires = "run")]
    elsewhere: bool,
}

#[derive(Serialize)]
struct Shape<'a> {
    rewind: Answer<'a>,
}

#[derive(Serialize)]
struct Answer<'a> {
    #[serde(flatten)]
    report: &'a RewindReport,
    #[serde(skip_serializing_if = "Option::is_none")]
    launch: Option<&'a Launch>,
}

/// Goes back.
pub(crate) fn run(app: &App, args: &RewindArgs) -> Outcome {
    // The agent gets no instruction with it, and would have nothing to do.
    if launch::form(args.run) == Form::OneShot {
        return Err(Error::new(ErrorKind::InvalidArgument, "`--run` starts the agent on a terminal, and this is none")
            .with_hint("leave `--run` away: the command that starts the agent is printed")
            .into());
    }
    let remedy = "an agent's hooks have its prompts noted: `ah agent hooks status` says whether they are there";
    let workspace = app.workspace_with("there is no prompt here to go back to", Some(remedy))?;
    let to = match &args.reference {
        Some(reference) => reference.clone(),
        None if !app.ui.json && std::io::stdin().is_terminal() && app.ui.stderr_terminal => {
            pick(app, &workspace, !args.files)?
        }
        None => "@prompt".to_owned(),
    };
    let options = RewindOptions {
        to,
        files: !args.conversation,
        conversation: !args.files,
        run: args.run,
        elsewhere: args.elsewhere,
        agents: app.agents_home()?,
    };
    let report = workspace.rewind(&options)?;
    let agent = report.conversation.as_ref().map(|made| (launch::command(app, report.session.as_str(), made), made));
    // What is printed may be run outside of the command of `exec` that shows a branch here: there the agent would be let loose on the workspace.
    let shown = workspace.own_place().map(|_| workspace.own_branch()).transpose()?.flatten();
    let launch = agent.as_ref().map(|(agent, made)| match &shown {
        Some(branch) => Launch::new(launch::in_branch(app, workspace.root(), &made.cwd, &branch.name, agent), None),
        None => Launch::new(agent.clone(), Some(&made.cwd)),
    });
    let incomplete = report.restore.as_ref().is_some_and(|restore| !restore.failed.is_empty());
    let ended = if incomplete { Exit::Code(4) } else { Exit::Done };
    if app.ui.json && !args.run {
        let shape = Shape { rewind: Answer { report: &report, launch: launch.as_ref() } };
        return ended.after(app.answer_of(true, workspace.root(), &shape));
    }
    tell(app, &workspace, &report);
    ended.after(match (agent, launch) {
        (Some((agent, made)), _) if args.run && !incomplete => Err(launch::become_it(app, &agent, &made.cwd)),
        (_, Some(launch)) => launch.print(app),
        (_, None) => {
            let safety = report.restore.as_ref().and_then(|restore| restore.safety.as_ref());
            safety.map_or(Ok(()), |safety| app.ui.line(safety.id.as_str()))
        }
    })
}

fn tell(app: &App, workspace: &Workspace, report: &RewindReport) {
    if let Some(restored) = &report.restore {
        restore::aside(app, workspace, restored, false, false);
        restore::deleted(app, restored);
        // Several in a row are more than `undo` takes back, and the line on stdout is the agent's command.
        if let Some(safety) = &restored.safety {
            app.ui.note(&format!(
                "`ah agent fs restore {}` brings back the files of before this rewind, later on too",
                safety.id
            ));
        }
    }
    if let Some(made) = &report.conversation {
        launch::tell(app, &report.from, made);
    }
    for note in &report.notes {
        app.ui.note(note);
    }
}

/// Lets a person choose a prompt, the newest first; gives the id of its moment.
fn pick(app: &App, workspace: &Workspace, conversation: bool) -> Result<String, Failure> {
    let prompts = workspace.prompts(conversation, OFFERED)?;
    if prompts.is_empty() {
        return Ok("@prompt".to_owned());
    }
    let now = app.now();
    let width = usize::from(Term::stderr().size().1).clamp(40, 160);
    let line = |prompt: &PromptRecord| {
        let shown = prompt.text.as_deref().unwrap_or("(its text was not kept)");
        text::short(&format!("{:>10}  {shown}", time::relative(prompt.time, now)), width - 6)
    };
    let lines: Vec<String> = prompts.iter().map(line).collect();
    let select = Select::new().with_prompt("Go back to before").items(&lines).default(0).max_length(12);
    let chosen = select.interact_on_opt(&Term::stderr()).map_err(std::io::Error::from).or_else(|error| {
        // Ctrl-C.
        if error.kind() == std::io::ErrorKind::Interrupted {
            return Ok(None);
        }
        Err(Error::new(ErrorKind::Unavailable, "the list of prompts cannot be shown")
            .with_cause(&error)
            .with_hint("ah agent rewind @prompt"))
    })?;
    match chosen.and_then(|at| prompts.get(at)) {
        Some(prompt) => Ok(prompt.moment.to_string()),
        None => Err(Error::new(ErrorKind::Cancelled, "nothing was chosen").with_hint("ah agent rewind @prompt").into()),
    }
}
