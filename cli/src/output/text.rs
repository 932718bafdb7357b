//! Words and bytes made safe for a terminal: a file name or a label must not be able to move the cursor.

pub(crate) use ah_plugin_api::text::{count, line, shell, size};
use ah_plugin_api::text::{escaped, misleads};
use std::borrow::Cow;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// `text` on any number of lines: other control characters show as escapes.
pub(crate) fn lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c| c == '\n')
}

/// A line of a file's contents, with or without its end: tabs stay.
pub(crate) fn content(line: &str) -> Cow<'_, str> {
    let bare = line.trim_end_matches(['\r', '\n']);
    match escaped(bare, |c| c == '\t') {
        Cow::Borrowed(_) => Cow::Borrowed(line),
        Cow::Owned(safe) => Cow::Owned(safe + &line[bare.len()..]),
    }
}

/// The first words of `text` on one line, at most `width` columns wide.
pub(crate) fn short(text: &str, width: usize) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let safe = line(&words);
    if safe.width() <= width {
        return safe.into_owned();
    }
    let mut short = String::new();
    let mut left = width.saturating_sub(1);
    for c in safe.chars() {
        let Some(rest) = left.checked_sub(c.width().unwrap_or(0)) else { break };
        left = rest;
        short.push(c);
    }
    short.push('…');
    short
}

/// A path for a message.
pub(crate) fn path(path: &Path) -> String {
    line(&path.to_string_lossy()).into_owned()
}

/// A path in a patch, as Git writes it: byte for byte, but in double quotes with C escapes if something that would
/// mislead, a quote or a backslash is in it.
pub(crate) fn quoted(path: &[u8]) -> Cow<'_, [u8]> {
    let special = |c: char| misleads(c) || c == '"' || c == '\\';
    if !path.utf8_chunks().any(|chunk| chunk.valid().contains(special)) {
        return Cow::Borrowed(path);
    }
    let mut out = vec![b'"'];
    for &byte in path {
        match byte {
            b'"' | b'\\' => out.extend([b'\\', byte]),
            b'\n' => out.extend(b"\\n"),
            b'\t' => out.extend(b"\\t"),
            b'\r' => out.extend(b"\\r"),
            // Inside quotes the rest goes as octal too, so that the whole can be pasted.
            0x20..=0x7e => out.push(byte),
            _ => {
                // Writing to a vector cannot fail.
                let _ = write!(out, "\\{byte:03o}");
            }
        }
    }
    out.push(b'"');
    Cow::Owned(out)
}

/// A path in a list of paths: byte for byte, or as a shell reads it if something in it would mislead.
pub(crate) fn listed(path: &[u8]) -> Cow<'_, [u8]> {
    let plain = path.utf8_chunks().all(|chunk| !chunk.valid().contains(misleads)) && !path.starts_with(b"$'");
    if plain { Cow::Borrowed(path) } else { Cow::Owned(shell(OsStr::from_bytes(path)).into_bytes()) }
}

/// Writes a path of a list of paths.
pub(crate) fn write_path(out: &mut impl Write, path: &[u8]) -> io::Result<()> {
    out.write_all(&listed(if path.is_empty() { b"." } else { path }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_moves_the_cursor() {
        assert_eq!(line("a\x1b[2Jb\nc"), "a\\u{1b}[2Jb\\nc");
        assert_eq!(lines("a\nb\r"), "a\nb\\r");
        assert_eq!(content("a\tb\x1b[2J\r+ x\u{202e}\r\n"), "a\tb\\u{1b}[2J\\r+ x\\u{202e}\r\n");
        assert_eq!(line("plain äöü"), "plain äöü");
        assert_eq!(line("\u{9b}2J \u{202e}txt.exe"), "\\u{9b}2J \\u{202e}txt.exe");
    }

    #[test]
    fn what_is_long_is_cut() {
        assert_eq!(short(" a\n b\tc ", 10), "a b c");
        assert_eq!(short("abcdef", 6), "abcdef");
        assert_eq!(short("abcdefg", 6), "abcde…");
        // Wide characters count twice.
        assert_eq!(short("日本語日本語", 6), "日本…");
        assert_eq!(short("\x1b[2J", 4), "\\u{…");
    }

    #[test]
    fn paths_in_lists_can_be_pasted_into_a_shell() {
        for plain in [&b"with space"[..], b"caf\xe9", b"a\"b\\"] {
            assert_eq!(&*listed(plain), plain);
        }
        assert_eq!(&*listed(b"a\nb\xe9"), br"$'a\012b\351'");
        assert_eq!(&*listed("ä\u{202e}".as_bytes()), "$'ä\\342\\200\\256'".as_bytes());
    }

    #[test]
    fn paths_are_quoted_as_git_does() {
        assert_eq!(&*quoted(b"with space"), b"with space");
        assert_eq!(&*quoted(b"caf\xe9"), b"caf\xe9");
        assert_eq!(&*quoted(b"a\nb\xe9"), b"\"a\\nb\\351\"");
        assert_eq!(&*quoted("ä\u{202e}".as_bytes()), b"\"\\303\\244\\342\\200\\256\"");
        assert_eq!(&*quoted("x\u{9b}".as_bytes()), b"\"x\\302\\233\"");
        assert_eq!(&*quoted(b"a\"b\\"), b"\"a\\\"b\\\\\"");
    }
}
