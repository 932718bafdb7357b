//! `ah agent fs convert`: the workspace as a unit that its filesystem, or ours, can snapshot by itself.

use ah_core::{Access, ConvertReport, ErrorKind, Workspace};
use ah_plugin_api::Error;
use clap::Args;
use serde::Serialize;

use crate::app::App;
use crate::failure::{Exit, Outcome};
use crate::login::{Unit, has_systemd};
use crate::output::text;

/// Options of `ah agent fs convert`.
#[derive(Debug, Args)]
#[command(after_help = "\
On Btrfs it makes the workspace's directory a subvolume: snapshots then cost milliseconds, hold nothing else, and need no root. \
Contents, owners, permissions and times stay; nothing is copied but names, as files share their data. \
Snapshots and backups that others make of the subvolume around it do not have it from then on: have them made of it too. \
Mount the filesystem with user_subvol_rm_allowed first: without it only root can remove such snapshots, and another provider goes on serving.

\
Where neither Btrfs nor ZFS can serve, it puts the workspace behind AgentFS: what you write is kept apart from then on, snapshots take the \
same time however much there is, and hold ignored files too. The directory itself is renamed to .ah-behind-NAME beside it, and AgentFS is \
mounted in its place; at login again, where systemd runs, else by the first command of ah in it. `--back` copies what is there then into a plain directory, in the same place; snapshots stay, and it cannot be put behind AgentFS again as long as there are any of that time. The kernel renames and moves no such directory: \
`--back` first, then `mv`, then convert it again, once the snapshots of that time are removed. To delete such a project: `--back`, then as any directory.

\
`ah agent fs status` says where it is worthwhile. Refused while a program has something in it open, a shell that stands in it \
included: go outside, and name it with -C.

Examples:
  ah -C ~/project agent fs convert
  ah -C ~/project agent fs convert --back")]
pub(crate) struct ConvertArgs {
    /// Make what was put behind AgentFS a plain directory again
    #[arg(long)]
    back: bool,
}

#[derive(Serialize)]
struct Shape<'a> {
    convert: &'a ConvertReport,
}

/// Converts; prints the workspace's path.
pub(crate) fn run(app: &App, args: &ConvertArgs) -> Outcome {
    let too_much =
        || app.engine().is_ok_and(|engine| engine.root_of(&app.cwd).is_ok_and(|root| engine.is_too_much(&root)));
    let workspace = app.workspace(Access::Create).map_err(|error| match error.kind {
        ErrorKind::FailedPrecondition if too_much() => {
            error.with_hint("name a project's directory: ah -C DIR agent fs convert")
        }
        _ => error,
    })?;
    // Whoever stands in it is in the way.
    std::env::set_current_dir("/").map_err(|e| Error::from_io("cannot leave the workspace", &e))?;
    let mut report = if args.back { workspace.convert_back()? } else { workspace.convert()? };
    // Also if that was all that had not been done when it was cut short.
    report.notes.extend(at_login(app, &workspace, report.mounted));
    if app.ui.json {
        app.answer_of(true, workspace.root(), &Shape { convert: &report })?;
        return Ok(Exit::Done);
    }
    let told = app.ui.path(workspace.root());
    if !report.changed && !args.back {
        app.ui.note(&format!("it was a unit of its own already, says {}", report.provider));
    }
    for note in &report.notes {
        app.ui.note(&text::line(note));
    }
    Exit::Done.after(told)
}

/// Has it mounted at login, or not any more. Gives what is to be said of that.
fn at_login(app: &App, workspace: &Workspace, mounted: bool) -> Option<String> {
    let unit = Unit::of(app.env(), workspace.id().as_str())?;
    if !mounted {
        return unit.remove().err().map(|error| format!("what mounts it at login is there still: {error}"));
    }
    let by_hand = "after the machine was started anew, the first command of ah in it mounts it";
    if !has_systemd() {
        return Some(by_hand.to_owned());
    }
    // It is done, and whole without that.
    Some(match unit.write(app.env(), workspace.own_path()) {
        Ok(()) => format!("it is mounted at login, by {}", text::path(&unit.path())),
        Err(error) => format!("{by_hand}: it is not mounted at login, as {error}"),
    })
}
