//! Words for people that `ah`, the helper and providers have in common.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use crate::error::{Error, ErrorKind, Result};

/// `1 file`, `2 files`.
#[must_use]
pub fn count<N: std::fmt::Display + Copy + PartialEq + From<u8>>(number: N, one: &str, many: &str) -> String {
    let what = if number == N::from(1) { one } else { many };
    format!("{number} {what}")
}

/// `0 B`, `999 B`, `1.4 MiB`, `12 GiB`.
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
#[must_use]
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value < 10.0 { format!("{value:.1} {}", UNITS[unit]) } else { format!("{value:.0} {}", UNITS[unit]) }
}

/// Lower-case hex.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Reads what [`hex`] wrote.
///
/// # Errors
/// `InvalidArgument` for anything else.
pub fn unhex(text: &str) -> Result<Vec<u8>> {
    let bad = || Error::new(ErrorKind::InvalidArgument, "this is not hex");
    let digit = |b: u8| char::from(b).to_digit(16).and_then(|d| u8::try_from(d).ok()).ok_or_else(bad);
    if !text.len().is_multiple_of(2) {
        return Err(bad());
    }
    text.as_bytes().chunks_exact(2).map(|pair| Ok(digit(pair[0])? << 4 | digit(pair[1])?)).collect()
}

/// Whether a character moves the cursor, or makes what stands beside it appear in another order.
#[must_use]
pub fn misleads(c: char) -> bool {
    let turns =
        |c| matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || turns(c)
}

/// `text` on one line, for a terminal: what [`misleads`] shows as an escape.
#[must_use]
pub fn line(text: &str) -> Cow<'_, str> {
    escaped(text, |_| false)
}

/// As [`line()`], but what is to be kept stays as it is.
pub fn escaped(text: &str, keep: impl Fn(char) -> bool) -> Cow<'_, str> {
    let bad = |c: char| misleads(c) && !keep(c);
    if !text.contains(bad) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if bad(c) { safe.extend(c.escape_default()) } else { safe.push(c) }
    }
    Cow::Owned(safe)
}

/// A path for people: as it is, but as [`shell`] writes it where something in it would mislead, or is not UTF-8.
#[must_use]
pub fn path(path: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(path) {
        // What looks as if it were written so is, too.
        Ok(text) if !text.contains(misleads) && !text.starts_with("$'") => Cow::Borrowed(text),
        _ => Cow::Owned(shell(OsStr::from_bytes(path))),
    }
}

/// A word of a command that can be run, quoted for a shell where it must be. What is not UTF-8, or would mislead, is written as
/// bash, ksh and zsh read it: `$'a\377'`.
#[must_use]
pub fn shell(word: &OsStr) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "@%+=:,./_-".contains(c);
    match word.to_str() {
        Some(text) if !text.is_empty() && text.chars().all(plain) => text.to_owned(),
        Some(text) if !text.contains(misleads) => format!("'{}'", text.replace('\'', r"'\''")),
        _ => {
            let mut quoted = String::from("$'");
            for chunk in word.as_bytes().utf8_chunks() {
                for c in chunk.valid().chars() {
                    match c {
                        '\\' | '\'' => quoted.extend(['\\', c]),
                        c if misleads(c) => quoted.push_str(&octal(c.encode_utf8(&mut [0; 4]).as_bytes())),
                        c => quoted.push(c),
                    }
                }
                quoted.push_str(&octal(chunk.invalid()));
            }
            quoted + "'"
        }
    }
}

/// Three digits each, so that what follows cannot be taken for one more.
fn octal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("\\{byte:03o}")).collect()
}

#[cfg(test)]
mod tests {
    use super::{OsStr, OsStrExt, count, misleads, path, shell, size};

    #[test]
    fn three_digits() {
        assert_eq!(size(0), "0 B");
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(1024), "1.0 KiB");
        assert_eq!(size(1_468_006), "1.4 MiB");
        assert_eq!(size(1 << 34), "16 GiB");
        assert_eq!(size(u64::MAX), "16 EiB");
    }

    #[test]
    fn a_shell_reads_what_was_meant() {
        let words: [&[u8]; 11] = [
            b"a/b",
            b"",
            b"it's",
            b"a b",
            "\u{fc}n\u{ef}".as_bytes(),
            b"a\nb",
            b"\xff7",
            b"a\xff'\\x",
            b"-x\x1b[2J",
            "a\u{202e}b".as_bytes(),
            "it's\u{200f} a\\b\nc".as_bytes(),
        ];
        for word in words.map(OsStr::from_bytes) {
            let quoted = shell(word);
            assert!(!quoted.contains(misleads), "{quoted:?}");
            let echo =
                std::process::Command::new("bash").args(["-c", &format!("printf %s {quoted}")]).output().unwrap();
            assert_eq!(OsStr::from_bytes(&echo.stdout), word, "{quoted}");
        }
        assert_eq!(shell("it's".as_ref()), r"'it'\''s'");
        assert_eq!(shell(OsStr::from_bytes(b"\xff")), r"$'\377'");
    }

    #[test]
    fn a_path_is_as_it_is_unless_that_would_mislead() {
        for plain in ["a b/it's", "\u{fc}", r#"a\"b"#] {
            assert_eq!(path(plain.as_bytes()), plain);
        }
        assert_eq!(path(b"a\nb\xe9"), r"$'a\012b\351'");
        assert_eq!(path(b"$'a'"), r"'$'\''a'\'''");
    }

    #[test]
    fn one_is_one() {
        assert_eq!([0_u64, 1, 2].map(|n| count(n, "file", "files")), ["0 files", "1 file", "2 files"]);
        assert_eq!(count(1_usize, "snapshot", "snapshots"), "1 snapshot");
    }
}
