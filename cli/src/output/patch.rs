//! Unified diffs with Git's headers. What is text in them can be given to `git apply` or `patch -p1`. The ids of what was and what is stand in them, so that
//! `git apply --3way` merges where the repository has what was.
//!
//! Of what is not text there is one line that says that it differs. It stands outside of any patch, so that `git apply` passes over it.
//!
//! Directories have no place in such a patch, nor have permission bits other than "executable"; `--name-status` has them.

use std::io::{self, Write};
use std::time::Duration;

use ah_core::EntryRecord;
use ah_plugin_api::EntryKind;
use sha1::{Digest, Sha1};
use similar::{Algorithm, ChangeTag, TextDiff, TextDiffConfig};

use crate::output::style::{Painter, Style};
use crate::output::text;

/// Files above this size are treated as binary: nobody reads a patch of that length, and a diff costs memory.
pub(crate) const MAX_TEXT: u64 = 16 << 20;

/// A diff that takes longer comes out coarser.
const DEADLINE: Duration = Duration::from_secs(2);

/// One side of a file.
#[derive(Debug, Clone)]
pub(crate) struct Version {
    /// A file or a symlink.
    pub(crate) kind: EntryKind,
    /// Permission bits.
    pub(crate) mode: u32,
    /// Bytes.
    pub(crate) size: u64,
    /// The contents, or the symlink's target; none where they are too large to show.
    pub(crate) content: Option<Vec<u8>>,
}

impl Version {
    /// The mode that Git has for it.
    fn git_mode(&self) -> &'static str {
        match (self.kind, self.mode & 0o100) {
            (EntryKind::Symlink, _) => "120000",
            (_, 0) => "100644",
            _ => "100755",
        }
    }

    /// The id that Git has for the contents, in repositories that count by SHA-1.
    fn git_id(&self) -> Option<String> {
        let content = self.content.as_deref()?;
        let mut hash = Sha1::new();
        hash.update(format!("blob {}\0", content.len()));
        hash.update(content);
        Some(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// The contents, if they are text.
    pub(crate) fn text(&self) -> Option<&[u8]> {
        self.content.as_deref().filter(|bytes| !bytes[..bytes.len().min(8000)].contains(&0))
    }
}

/// The lines of a text, each with its end. `similar` would end one at a lone carriage return too, which no tool that reads
/// patches does.
pub(crate) fn lines(text: &[u8]) -> Vec<&[u8]> {
    text.split_inclusive(|&byte| byte == b'\n').collect()
}

/// How lines are compared.
pub(crate) fn config() -> TextDiffConfig {
    let mut config = TextDiff::configure();
    config.algorithm(Algorithm::Myers).timeout(DEADLINE);
    config
}

/// Whether contents differ, or may, that a patch cannot hold: then there is only a line that says so.
pub(crate) fn is_left_out(before: Option<&Version>, after: Option<&Version>) -> bool {
    let is_text = |version: Option<&Version>| version.is_none_or(|version| version.text().is_some());
    let contents = |version: Option<&Version>| version.and_then(|version| version.content.clone());
    let differ =
        || before.is_none() || after.is_none() || contents(before).is_none() || contents(before) != contents(after);
    !(is_text(before) && is_text(after)) && differ()
}

/// Whether there are permissions that a patch cannot hold: it knows only whether a file can be executed. Those of what is new, if it is closed to somebody to
/// whom it would be open where the patch is applied, with that `umask`.
pub(crate) fn lacks_mode(before: Option<&EntryRecord>, after: &EntryRecord, umask: u32) -> bool {
    if !matches!(after.kind, EntryKind::File | EntryKind::Dir) {
        return false;
    }
    let is_file = after.kind == EntryKind::File;
    let Some(before) = before.filter(|before| before.kind == after.kind) else {
        let made = if is_file && after.mode & 0o100 == 0 { 0o666 } else { 0o777 };
        return made & !umask & !after.mode != 0;
    };
    let others = if is_file && (before.mode ^ after.mode) & 0o100 != 0 { !0o111 } else { !0 };
    (before.mode ^ after.mode) & others != 0
}

/// Writes the patch of one path.
pub(crate) fn write(
    out: &mut impl Write,
    painter: Painter,
    path: &[u8],
    before: Option<&Version>,
    after: Option<&Version>,
) -> io::Result<()> {
    match (before, after) {
        // Git takes a file and the symlink that replaced it for two things, and so does `git apply`.
        (Some(old), Some(new)) if old.kind != new.kind && old.text().is_some() && new.text().is_some() => {
            write(out, painter, path, before, None)?;
            write(out, painter, path, None, after)
        }
        (None, None) => Ok(()),
        _ => one(out, painter, path, before, after),
    }
}

fn one(
    out: &mut impl Write,
    painter: Painter,
    path: &[u8],
    before: Option<&Version>,
    after: Option<&Version>,
) -> io::Result<()> {
    let body = match body(path, before, after)? {
        Body::Lines(lines) => lines,
        Body::Binary(line) => return paint(out, painter, &line, b""),
    };
    let mut head = Vec::new();
    match (before, after) {
        (None, Some(new)) => writeln!(head, "new file mode {}", new.git_mode())?,
        (Some(old), None) => writeln!(head, "deleted file mode {}", old.git_mode())?,
        (Some(old), Some(new)) if old.git_mode() != new.git_mode() => {
            writeln!(head, "old mode {}\nnew mode {}", old.git_mode(), new.git_mode())?;
        }
        _ => {}
    }
    if head.is_empty() && body.is_empty() {
        return Ok(());
    }
    if !body.is_empty() {
        let none = || Some("0".repeat(40));
        let ids = (before.map_or_else(none, Version::git_id), after.map_or_else(none, Version::git_id));
        if let (Some(old), Some(new)) = ids {
            let same = before.zip(after).filter(|(old, new)| old.git_mode() == new.git_mode());
            let mode = same.map_or_else(String::new, |(old, _)| format!(" {}", old.git_mode()));
            writeln!(head, "index {old}..{new}{mode}")?;
        }
    }
    let mut first = b"diff --git ".to_vec();
    first.extend_from_slice(&prefixed(b"a/", path));
    first.push(b' ');
    first.extend_from_slice(&prefixed(b"b/", path));
    first.push(b'\n');
    first.extend_from_slice(&head);
    if body.is_empty() {
        // Git would take a line on a binary file that follows at once for this one's contents.
        first.push(b'\n');
    }
    paint(out, painter, &first, &body)
}

/// What there is to say of the contents.
enum Body {
    /// What follows the head; empty if the contents are equal.
    Lines(Vec<u8>),
    /// They are not text and differ: one line instead of a patch.
    Binary(Vec<u8>),
}

fn body(path: &[u8], before: Option<&Version>, after: Option<&Version>) -> io::Result<Body> {
    let nothing = || Some(&b""[..]);
    let texts = (before.map_or_else(nothing, Version::text), after.map_or_else(nothing, Version::text));
    let name = |prefix: &[u8], there: bool| if there { prefixed(prefix, path) } else { b"/dev/null".to_vec() };
    let (old_name, new_name) = (name(b"a/", before.is_some()), name(b"b/", after.is_some()));
    let mut body = Vec::new();
    if is_left_out(before, after) {
        body.extend_from_slice(b"Binary files ");
        body.extend_from_slice(&old_name);
        body.extend_from_slice(b" and ");
        body.extend_from_slice(&new_name);
        body.extend_from_slice(b" differ\n");
        return Ok(Body::Binary(body));
    }
    // What is not text is equal then.
    let (Some(old), Some(new)) = texts else { return Ok(Body::Lines(body)) };
    if old == new {
        return Ok(Body::Lines(body));
    }
    // A name with a space ends at a tab, or `patch` would cut it off.
    let tab: &[u8] = if path.contains(&b' ') { b"\t" } else { b"" };
    for (mark, name) in [(&b"--- "[..], &old_name), (b"+++ ", &new_name)] {
        body.extend_from_slice(mark);
        body.extend_from_slice(name);
        if name != b"/dev/null" {
            body.extend_from_slice(tab);
        }
        body.push(b'\n');
    }
    hunks(&mut body, old, new)?;
    Ok(Body::Lines(body))
}

fn hunks(out: &mut Vec<u8>, old: &[u8], new: &[u8]) -> io::Result<()> {
    let (old, new) = (lines(old), lines(new));
    let diff = config().diff_slices(&old, &new);
    for hunk in diff.unified_diff().context_radius(3).iter_hunks() {
        writeln!(out, "{}", hunk.header())?;
        for change in hunk.iter_changes() {
            out.extend_from_slice(match change.tag() {
                ChangeTag::Equal => b" ",
                ChangeTag::Delete => b"-",
                ChangeTag::Insert => b"+",
            });
            out.extend_from_slice(change.value());
            if !change.value().ends_with(b"\n") {
                out.extend_from_slice(b"\n\\ No newline at end of file\n");
            }
        }
    }
    Ok(())
}

/// A name with its prefix, quoted as a whole if it must be.
fn prefixed(prefix: &[u8], path: &[u8]) -> Vec<u8> {
    text::quoted(&[prefix, path].concat()).into_owned()
}

fn paint(out: &mut impl Write, painter: Painter, head: &[u8], body: &[u8]) -> io::Result<()> {
    if !painter.is_seen() {
        out.write_all(head)?;
        return out.write_all(body);
    }
    let mut in_hunk = false;
    for (is_head, line) in head
        .split_inclusive(|&b| b == b'\n')
        .map(|l| (true, l))
        .chain(body.split_inclusive(|&b| b == b'\n').map(|l| (false, l)))
    {
        in_hunk |= line.starts_with(b"@@");
        let style = match line.first() {
            _ if is_head || !in_hunk => Some(Style::Bold),
            Some(b'@') => Some(Style::Hint),
            Some(b'+') => Some(Style::Added),
            Some(b'-') => Some(Style::Deleted),
            _ => None,
        };
        // What is for eyes must not move the cursor.
        match (style, str::from_utf8(line).map(text::content)) {
            (Some(style), Ok(line)) => {
                let bare = line.strip_suffix('\n').unwrap_or(&line);
                writeln!(out, "{}", painter.paint(bare, style))?;
            }
            (None, Ok(line)) => out.write_all(line.as_bytes())?,
            (_, Err(_)) => out.write_all(text::content(&String::from_utf8_lossy(line)).as_bytes())?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(content: &[u8]) -> Version {
        Version { kind: EntryKind::File, mode: 0o644, size: content.len() as u64, content: Some(content.to_vec()) }
    }

    fn patch(path: &[u8], before: Option<&Version>, after: Option<&Version>) -> String {
        let mut out = Vec::new();
        write(&mut out, Painter::plain(), path, before, after).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_changed_file() {
        let shown = patch(b"a", Some(&file(b"1\n2\n3")), Some(&file(b"1\nzwei\n3")));
        assert_eq!(
            shown,
            "diff --git a/a b/a\nindex 5f5fbe759f10b9807b18f3898afd7505dbbfcbd2..85fd90d62a67bca1879c7ad4f0655a11f2d45335 100644\n--- a/a\n+++ b/a\n@@ -1,3 +1,3 @@\n 1\n-2\n+zwei\n 3\n\\ No newline at end of file\n"
        );
    }

    #[test]
    fn added_deleted_and_executable() {
        assert!(patch(b"a b", None, Some(&file(b"x\n"))).contains("--- /dev/null\n+++ b/a b\t\n@@ -0,0 +1 @@\n+x\n"));
        assert!(patch(b"a", Some(&file(b"x\n")), None).contains("deleted file mode 100644\nindex 587be6b4c3f93f93c489c0111bba5596147a26cb..0000000000000000000000000000000000000000\n--- a/a\n+++ /dev/null\n"));
        let executable = Version { mode: 0o755, ..file(b"x") };
        assert_eq!(
            patch(b"a", Some(&file(b"x")), Some(&executable)),
            "diff --git a/a b/a\nold mode 100644\nnew mode 100755\n\n"
        );
        assert_eq!(patch(b"a", Some(&file(b"x")), Some(&Version { mode: 0o600, ..file(b"x") })), "");
        assert_eq!(patch(b"empty", None, Some(&file(b""))), "diff --git a/empty b/empty\nnew file mode 100644\n\n");
    }

    #[test]
    fn a_carriage_return_alone_ends_no_line() {
        let shown = patch(b"a", Some(&file(b"x\ry\n")), Some(&file(b"x\rz\r")));
        assert!(shown.ends_with("@@ -1 +1 @@\n-x\ry\n+x\rz\r\n\\ No newline at end of file\n"), "{shown:?}");
    }

    #[test]
    fn binary_and_too_large() {
        let shown = patch(b"a", Some(&file(b"\0")), Some(&file(b"x")));
        assert_eq!(shown, "Binary files a/a and b/a differ\n");
        let large = Version { content: None, ..file(b"") };
        assert!(patch(b"a", Some(&large), Some(&large)).contains("Binary files"));
    }

    #[test]
    fn what_only_became_executable_is_in_the_patch() {
        let (binary, executable) = (file(b"\0"), Version { mode: 0o755, ..file(b"\0") });
        assert!(patch(b"a", Some(&binary), Some(&executable)).contains("new mode 100755"));
        assert!(!is_left_out(Some(&binary), Some(&executable)));
        assert!(is_left_out(Some(&binary), Some(&file(b"x"))) && is_left_out(None, Some(&binary)));
        let large = Version { content: None, ..file(b"") };
        assert!(is_left_out(Some(&large), Some(&large)), "nobody can tell");
    }

    #[test]
    fn a_file_that_became_a_symlink_is_two_things() {
        let link = Version { kind: EntryKind::Symlink, mode: 0o777, size: 6, content: Some(b"target".to_vec()) };
        let shown = patch(b"a", Some(&file(b"x\n")), Some(&link));
        assert!(shown.contains("deleted file mode 100644") && shown.contains("new file mode 120000"), "{shown}");
    }
}
