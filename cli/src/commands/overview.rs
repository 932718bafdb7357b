//! Bare `ah`: the state of this workspace, and the three commands that make sense next.

use ah_core::{NoticeKind, Status};
use serde::Serialize;

use crate::app::App;
use crate::commands::{hooks, status};
use crate::failure::{Exit, Failure, Outcome};
use crate::login;
use crate::output::style::Style;
use crate::output::{text, time};

#[derive(Serialize)]
struct Shape<'a> {
    status: &'a Status,
    next: &'a [Next],
}

/// A command that makes sense, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Next {
    command: String,
    purpose: &'static str,
}

/// Prints the overview.
pub(crate) fn run(app: &App) -> Outcome {
    let status = app.engine()?.status(&app.cwd)?;
    hooks::tell_gone(app, &status.root);
    login::tell_gone(app, &status);
    let is_no_workspace = status::is_no_workspace(app, &status)?;
    let mut next = if is_no_workspace {
        ELSEWHERE.map(|(command, purpose)| Next { command: command.to_owned(), purpose })
    } else {
        next(&status)
    };
    if status.workspace.is_none()
        && let Some(old) = app.engine()?.may_be_moved(&app.cwd)?
    {
        let command = format!("ah agent fs adopt {}", ah_core::text::shell(old.as_os_str()));
        next[1] = Next { command, purpose: "if that was moved here: its snapshots go on here" };
    }
    for next in &mut next {
        next.command = app.ui.in_place(&next.command);
    }
    if app.ui.json {
        app.answer(&status.root, &Shape { status: &status, next: &next })?;
    } else {
        app.answer_tells(NoticeKind::CaptureStopped);
        write(app, &status, &next, is_no_workspace)?;
    }
    Ok(Exit::Done)
}

/// A longer command does not push the others' purposes away.
const MOST: usize = 72;

/// What makes sense where no workspace is to be.
const ELSEWHERE: [(&str, &str); 3] = [
    ("cd PROJECT", "go into a project first"),
    ("ah agent fs providers", "which providers there are"),
    ("ah --help", "everything else"),
];

fn write(app: &App, status: &Status, next: &[Next], is_no_workspace: bool) -> Result<(), Failure> {
    let painter = app.ui.out;
    app.ui.stdout(|out| {
        use std::io::Write;
        let provider = status.provider.as_ref().map_or_else(
            || painter.paint("no provider can serve here", Style::Error),
            |name| format!("provider {}", painter.paint(name.as_str(), Style::Bold)),
        );
        let provider = if is_no_workspace { status::TOO_MUCH.to_owned() } else { provider };
        writeln!(out, "{} ({provider})", painter.paint(&text::path(&status.root), Style::Bold))?;
        if let Some(branch) = &status.branch {
            writeln!(out, "branch {} of {}", text::line(&branch.name), text::path(&branch.origin_path))?;
        }
        let counts = [
            (status.snapshots, "snapshot", "snapshots"),
            (status.branches.len() as u64, "branch", "branches"),
            (status.leases.len() as u64, "view", "views"),
        ];
        let counts: Vec<String> = counts
            .iter()
            .filter(|(number, one, _)| *number > 0 || *one == "snapshot")
            .map(|(number, one, many)| text::count(*number, one, many))
            .collect();
        writeln!(out, "{}", counts.join(", "))?;
        if let Some(latest) = &status.latest {
            let id = painter.paint(latest.id.as_str(), Style::Id);
            let label = text::line(latest.label.as_deref().unwrap_or_default());
            writeln!(out, "latest {id} {} {label}", time::relative(latest.time, app.now()))?;
        }
        if let Some(interrupted) = &status.interrupted {
            let began = time::relative(interrupted.began, app.now());
            let warning = painter.paint("a restore was interrupted", Style::Warning);
            let before = if interrupted.changed { "" } else { " before it changed anything" };
            writeln!(out, "{warning}{before}: of {}, begun {began}", interrupted.target)?;
        }
        if let Some(degraded) = &status.degraded {
            writeln!(out, "{}: {}", painter.paint("degraded", Style::Warning), text::line(degraded))?;
        }
        if let Some(stopped) = &status.stopped {
            writeln!(out, "{}: {}", painter.paint("stopped", Style::Warning), text::line(stopped))?;
        }
        if status.paused {
            let paused = painter.paint("paused", Style::Warning);
            writeln!(out, "{paused}: automatic snapshots, as the disk has too little room")?;
        }
        writeln!(out)?;
        let width = next.iter().map(|next| next.command.len()).filter(|width| *width <= MOST).max().unwrap_or(0);
        for Next { command, purpose } in next {
            writeln!(out, "  {}  {}", painter.paint(&format!("{command:width$}"), Style::Hint), purpose)?;
        }
        Ok(())
    })
}

/// The three commands.
fn next(status: &Status) -> [Next; 3] {
    let next = |command: &str, purpose| Next { command: command.to_owned(), purpose };
    if let Some(interrupted) = &status.interrupted {
        return [
            next(&interrupted.finish, "finish what was interrupted"),
            next(&interrupted.back, "go back to the state before it"),
            next("ah timeline", "what happened here"),
        ];
    }
    if status.provider.is_none() {
        return [
            next("ah agent fs status", "why no provider can serve"),
            next("ah agent fs providers", "which libraries there are"),
            next("ah --help", "everything else"),
        ];
    }
    // There may be some that nobody asked for: `@` means none of them.
    if status.latest.is_none() && status.branch.is_some() {
        return [
            next("ah agent fs diff", "what changed in this branch"),
            next("ah agent fs snapshot -m start", "capture this workspace"),
            next("ah --help", "everything else"),
        ];
    }
    if status.latest.is_none() {
        return [
            next("ah agent fs snapshot -m start", "capture this workspace"),
            next("ah agent fs status", "which provider serves, and why"),
            next("ah --help", "everything else"),
        ];
    }
    // What an agent did is in the latest snapshot already, with what it broke.
    if status.of_prompt {
        return [
            next("ah agent fs diff @prompt", "what changed since the last prompt"),
            next("ah timeline", "what happened here"),
            next("ah agent fs restore @prompt --dry-run", "what going back to before it would do"),
        ];
    }
    [
        next("ah agent fs diff @", "what changed since the latest snapshot"),
        next("ah timeline", "what happened here"),
        next("ah agent fs restore @ --dry-run", "what bringing it back would do"),
    ]
}
