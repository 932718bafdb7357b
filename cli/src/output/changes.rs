//! Lists of differences: what `diff`, `restore` and `undo` print.

use std::fmt;
use std::io::{self, Write};

use ah_core::{ChangeRecord, EntryKind, EntryRecord};

use crate::output::style::{Painter, Style};
use crate::output::text;

/// What happened to a path, as one letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Letter {
    /// Added.
    Added,
    /// Deleted.
    Deleted,
    /// Contents differ, and permissions perhaps.
    Modified,
    /// Permissions alone differ.
    Permissions,
    /// A file became a directory, a symlink a file, ….
    Kind,
}

impl Letter {
    /// What `change` is.
    pub(crate) fn of(change: &ChangeRecord) -> Self {
        match (&change.before, &change.after) {
            (None, _) => Self::Added,
            (_, None) => Self::Deleted,
            (Some(before), Some(after)) if before.kind != after.kind => Self::Kind,
            (Some(before), Some(after)) if before.mode != after.mode && same_contents(before, after) => {
                Self::Permissions
            }
            _ => Self::Modified,
        }
    }

    fn style(self) -> Style {
        match self {
            Self::Added => Style::Added,
            Self::Deleted => Style::Deleted,
            Self::Modified | Self::Permissions | Self::Kind => Style::Changed,
        }
    }
}

impl fmt::Display for Letter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Added => "A",
            Self::Deleted => "D",
            Self::Modified => "M",
            Self::Permissions => "P",
            Self::Kind => "T",
        })
    }
}

fn same_contents(before: &EntryRecord, after: &EntryRecord) -> bool {
    match (&before.content, &after.content) {
        _ if before.kind == EntryKind::Dir => true,
        (Some(before), Some(after)) => before == after,
        // Not known without reading: changing permissions leaves size and time as they were.
        _ => before.size == after.size && before.mtime == after.mtime,
    }
}

/// One line a path: letter, tab, path; directories end with a slash.
pub(crate) fn write(out: &mut impl Write, painter: Painter, changes: &[ChangeRecord]) -> io::Result<()> {
    for change in changes {
        let letter = Letter::of(change);
        write!(out, "{}\t", painter.paint(&letter.to_string(), letter.style()))?;
        let shown = change.after.as_ref().or(change.before.as_ref());
        let mut path = change.path.as_bytes().to_vec();
        if shown.is_some_and(|entry| entry.kind == EntryKind::Dir) && !path.is_empty() {
            path.push(b'/');
        }
        text::write_path(out, &path)?;
        out.write_all(b"\n")?;
    }
    Ok(())
}

/// `3 added, 1 modified, 2 deleted`.
pub(crate) fn summary(changes: &[ChangeRecord]) -> String {
    let count = |wanted: &[Letter]| changes.iter().filter(|change| wanted.contains(&Letter::of(change))).count();
    let counts = [
        (count(&[Letter::Added]), "added"),
        (count(&[Letter::Modified, Letter::Permissions, Letter::Kind]), "changed"),
        (count(&[Letter::Deleted]), "deleted"),
    ];
    let parts: Vec<String> =
        counts.iter().filter(|(number, _)| *number > 0).map(|(number, what)| format!("{number} {what}")).collect();
    if parts.is_empty() { "nothing differs".to_owned() } else { parts.join(", ") }
}
