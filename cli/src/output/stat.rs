//! How many lines came and went, path by path: `diff --stat`.

use std::io::{self, Write};

use ah_core::{ChangeRecord, RelPath};
use serde::Serialize;
use similar::ChangeTag;
use unicode_width::UnicodeWidthStr;

use crate::output::changes::Letter;
use crate::output::patch::{self, Version};
use crate::output::style::{Painter, Style};
use crate::output::text;

/// Columns for plus and minus signs.
const BAR: u64 = 40;

/// What a change amounts to.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct FileStat {
    #[serde(with = "ah_core::text::rel")]
    path: RelPath,
    /// Lines that came; none if it is not text.
    added: Option<u64>,
    /// Lines that went; none if it is not text.
    deleted: Option<u64>,
    /// What there is to say instead of lines.
    #[serde(skip)]
    instead: String,
}

impl FileStat {
    /// Counts.
    pub(crate) fn of(change: &ChangeRecord, before: Option<&Version>, after: Option<&Version>) -> Self {
        let path = change.path.clone();
        let instead = |what: String| Self { path: path.clone(), added: None, deleted: None, instead: what };
        if before.is_none() && after.is_none() {
            let what = match Letter::of(change) {
                Letter::Added => "new directory",
                Letter::Deleted => "directory gone",
                Letter::Modified | Letter::Permissions | Letter::Kind => "directory",
            };
            return instead(what.to_owned());
        }
        let nothing = || Some(&b""[..]);
        let texts = (before.map_or_else(nothing, Version::text), after.map_or_else(nothing, Version::text));
        let (Some(old), Some(new)) = texts else {
            let bytes = |version: Option<&Version>| text::size(version.map_or(0, |version| version.size));
            return instead(format!("binary {} -> {}", bytes(before), bytes(after)));
        };
        let (old, new) = (patch::lines(old), patch::lines(new));
        let diff = patch::config().diff_slices(&old, &new);
        let count = |tag| diff.iter_all_changes().filter(|change| change.tag() == tag).count() as u64;
        Self {
            path,
            added: Some(count(ChangeTag::Insert)),
            deleted: Some(count(ChangeTag::Delete)),
            instead: String::new(),
        }
    }
}

/// Writes one line a path and a sum.
pub(crate) fn write(out: &mut impl Write, painter: Painter, files: &[FileStat]) -> io::Result<()> {
    let shown = |file: &FileStat| String::from_utf8_lossy(&text::listed(file.path.as_bytes())).into_owned();
    let width = files.iter().map(|file| shown(file).width()).max().unwrap_or(0).min(80);
    let most = files.iter().filter_map(|file| Some(file.added? + file.deleted?)).max().unwrap_or(0);
    for file in files {
        out.write_all(b" ")?;
        text::write_path(out, file.path.as_bytes())?;
        write!(out, "{:1$} | ", "", width.saturating_sub(shown(file).width()))?;
        let (Some(added), Some(deleted)) = (file.added, file.deleted) else {
            writeln!(out, "{}", file.instead)?;
            continue;
        };
        // Every line that counts shows as one sign at least.
        let signs = |lines: u64| if most > BAR && lines > 0 { (lines * BAR / most).max(1) } else { lines };
        let bar = |sign: &str, lines| sign.repeat(usize::try_from(signs(lines)).unwrap_or(0));
        let plus = painter.paint(&bar("+", added), Style::Added);
        let minus = painter.paint(&bar("-", deleted), Style::Deleted);
        let gap = if added + deleted > 0 { " " } else { "" };
        writeln!(out, "{}{gap}{plus}{minus}", added + deleted)?;
    }
    let sum = |part: fn(&FileStat) -> Option<u64>| files.iter().filter_map(part).sum::<u64>();
    writeln!(
        out,
        " {} changed, {}, {}",
        text::count(files.len() as u64, "path", "paths"),
        text::count(sum(|file| file.added), "line added", "lines added"),
        text::count(sum(|file| file.deleted), "line deleted", "lines deleted"),
    )
}
