//! One file of ignore patterns, and matching a path against it.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use ah_plugin_api::RelPath;
use bstr::{BStr, BString, ByteSlice};
use gix_ignore::glob::pattern::{Case, Mode};
use gix_ignore::glob::{Pattern, wildmatch};

const MODE: wildmatch::Mode = wildmatch::Mode::NO_MATCH_SLASH_LITERAL;
/// With each further `**` the usual way, Git's, takes several times as long: minutes in a deep directory.
const MOST_ANY: usize = 3;

#[derive(Debug)]
struct Rule {
    pattern: Pattern,
    line: usize,
    /// Whether it is matched by [`matches_by_parts`].
    by_parts: bool,
}

impl Rule {
    fn new(pattern: Pattern, line: usize) -> Self {
        let by_parts = pattern.text.split(|&byte| byte == b'/').filter(|part| is_any(part)).count() > MOST_ANY;
        Self { pattern, line, by_parts }
    }

    fn matches(&self, path: &BStr, basename: Option<usize>, is_dir: bool) -> bool {
        if self.by_parts {
            return (is_dir || !self.pattern.mode.contains(Mode::MUST_BE_DIR))
                && matches_by_parts(self.pattern.text.as_bstr(), path);
        }
        self.pattern.matches_repo_relative_path(path, basename, Some(is_dir), Case::Sensitive, MODE)
    }
}

/// The patterns of one file, weakest first as they stand in it.
///
/// Programs write files of very many paths, each of which would be compared with each entry of the workspace: so those without wildcards are looked up.
#[derive(Debug, Default)]
pub(crate) struct Patterns {
    patterns: Vec<Rule>,
    /// Where those without wildcards stand, by the path or the name that they match.
    literal: HashMap<BString, Vec<usize>>,
    /// Where the others stand.
    wild: Vec<usize>,
    /// Where they come from, for people.
    source: String,
}

impl Patterns {
    /// Parses a file in `.gitignore` syntax.
    pub(crate) fn parse(bytes: &[u8], source: impl Into<String>) -> Self {
        // Git ends the last line itself, which matters to one that ends with a carriage return.
        let ended = if bytes.ends_with(b"\n") { Cow::Borrowed(bytes) } else { [bytes, b"\n"].concat().into() };
        let rules = gix_ignore::parse(&ended, false).map(|(pattern, line, _kind)| Rule::new(pattern, line));
        Self::of(rules.collect(), source.into())
    }

    /// Parses patterns that were given one by one.
    pub(crate) fn of_lines(lines: &[String], source: &str) -> Self {
        let rules = lines.iter().enumerate().filter_map(|(number, line)| {
            let (pattern, ..) = gix_ignore::parse(line.as_bytes(), false).next()?;
            Some(Rule::new(pattern, number + 1))
        });
        Self::of(rules.collect(), source.to_owned())
    }

    fn of(patterns: Vec<Rule>, source: String) -> Self {
        let (mut literal, mut wild) = (HashMap::<BString, Vec<usize>>::new(), Vec::new());
        for (at, Rule { pattern, .. }) in patterns.iter().enumerate() {
            match pattern.first_wildcard_pos {
                None => literal.entry(pattern.text.clone()).or_default().push(at),
                Some(_) => wild.push(at),
            }
        }
        Self { patterns, literal, wild, source }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// The last pattern that matches `path` (relative to the file's directory), negative ones included.
    pub(crate) fn last_match(&self, path: &BStr, is_dir: bool) -> Option<Hit<'_>> {
        if self.patterns.is_empty() {
            return None;
        }
        let basename = path.rfind_byte(b'/').map(|at| at + 1);
        let matches = |at: &&usize| self.patterns[**at].matches(path, basename, is_dir);
        let last = |text: &BStr| self.literal.get(text)?.iter().rev().find(matches);
        let literal = last(path).max(last(&path[basename.unwrap_or(0)..]));
        let mut stronger = self.wild.iter().rev().take_while(|at| literal.is_none_or(|literal| *at > literal));
        let found = &self.patterns[*stronger.find(matches).or(literal)?];
        Some(Hit { pattern: &found.pattern, line: found.line, source: &self.source })
    }

    /// Whether `path` itself is matched by a pattern that is not negative.
    pub(crate) fn matches(&self, path: &BStr, is_dir: bool) -> Option<Hit<'_>> {
        self.last_match(path, is_dir).filter(|hit| !hit.pattern.is_negative())
    }

    /// Whether something below the directory `path` could match. Errs towards yes.
    pub(crate) fn could_match_below(&self, path: &BStr) -> bool {
        self.patterns.iter().any(|rule| !rule.pattern.is_negative() && could_match_below(&rule.pattern, path))
    }
}

/// The pattern, in `.gitignore` syntax, of this path in the directory that the patterns are of. Bytes that no pattern can have in it, such as a newline, are matched by any.
#[must_use]
pub fn pattern_of(path: &RelPath) -> String {
    let mut pattern = String::from("/");
    for chunk in path.as_bytes().utf8_chunks() {
        for letter in chunk.valid().chars() {
            match letter {
                letter if letter.is_ascii_control() => pattern.push('?'),
                '\\' | '*' | '?' | '[' | ' ' => pattern.extend(['\\', letter]),
                letter => pattern.push(letter),
            }
        }
        pattern.extend(chunk.invalid().iter().map(|_| '?'));
    }
    pattern
}

/// Whether a part of a pattern, between slashes, stands for any directories.
fn is_any(part: &[u8]) -> bool {
    part.len() > 1 && part.iter().all(|&byte| byte == b'*')
}

/// Matches part by part, so that it costs at most to match each part with each name of the path. Brackets with a slash in them are cut there: such a
/// pattern matches nothing.
fn matches_by_parts(pattern: &BStr, path: &BStr) -> bool {
    let names: Vec<&[u8]> = path.split(|&byte| byte == b'/').collect();
    // Which first names the parts so far match, by their number.
    let mut matched = vec![false; names.len() + 1];
    matched[0] = true;
    let mut parts = pattern.split(|&byte| byte == b'/').peekable();
    while let Some(part) = parts.next() {
        let Some(fewest) = matched.iter().position(|&is| is) else { return false };
        if is_any(part) {
            // At the end it stands for what is in a directory, not for the directory.
            let fewest = fewest + usize::from(parts.peek().is_none());
            matched.iter_mut().enumerate().for_each(|(count, is)| *is = count >= fewest);
        } else {
            for count in (1..matched.len()).rev() {
                matched[count] = matched[count - 1] && wildmatch(part.as_bstr(), names[count - 1].as_bstr(), MODE);
            }
            matched[0] = false;
        }
    }
    matched[names.len()]
}

fn could_match_below(pattern: &Pattern, dir: &BStr) -> bool {
    let text = pattern.text.as_bstr();
    if pattern.mode.contains(Mode::NO_SUB_DIR) {
        // Without a slash a pattern matches in every directory; with a leading one only in the root.
        return !pattern.mode.contains(Mode::ABSOLUTE) || dir.is_empty();
    }
    let slashes = |text: &BStr| text.iter().filter(|&&byte| byte == b'/').count();
    if !text.contains_str("**") && slashes(dir) >= slashes(text) {
        return false;
    }
    let literal = &text[..pattern.first_wildcard_pos.unwrap_or(text.len())];
    let head = literal.len().min(dir.len());
    literal[..head] == dir[..head] && (literal.len() <= dir.len() || literal[head] == b'/')
}

/// A pattern that matched.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hit<'a> {
    pub(crate) pattern: &'a Pattern,
    line: usize,
    source: &'a str,
}

impl Hit<'_> {
    /// The rule for a person: `target/ (.gitignore:3)`.
    pub(crate) fn rule(&self) -> String {
        if self.source.is_empty() {
            return self.pattern.to_string();
        }
        format!("{} ({}:{})", self.pattern, self.source, self.line)
    }
}

/// A chain of pattern files, the strongest first, each with the length of its directory's path (with its slash).
#[derive(Debug)]
pub(crate) struct Chain {
    pub(crate) patterns: Patterns,
    pub(crate) base: usize,
    pub(crate) weaker: Option<Arc<Chain>>,
}

impl Chain {
    /// Puts a stronger file on top of a chain; one without patterns is left away.
    pub(crate) fn push(weaker: Option<Arc<Chain>>, patterns: Patterns, base: usize) -> Option<Arc<Chain>> {
        if patterns.is_empty() { weaker } else { Some(Arc::new(Self { patterns, base, weaker })) }
    }

    /// The pattern that decides on `path`, if it says "ignored".
    pub(crate) fn ignored_by<'a>(chain: Option<&'a Arc<Chain>>, path: &BStr, is_dir: bool) -> Option<Hit<'a>> {
        let mut next = chain;
        while let Some(link) = next {
            if let Some(hit) = link.patterns.last_match(path[link.base..].as_bstr(), is_dir) {
                return (!hit.pattern.is_negative()).then_some(hit);
            }
            next = link.weaker.as_ref();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert_eq, proptest};
    use proptest::sample::select;

    use super::{MODE, Patterns, RelPath, matches_by_parts, pattern_of, wildmatch};

    const PARTS: &[&str] = &["**", "**", "***", "*", "a", "a*", "?", "[!a]", "b**", "\\a", ""];

    proptest! {
        #[test]
        fn part_by_part_is_the_same(
            pattern in proptest::collection::vec(select(PARTS), 1..7), path in proptest::collection::vec(select(vec!["a", "b", "ab"]), 1..6),
        ) {
            let (pattern, path) = (pattern.join("/"), path.join("/"));
            let (pattern, path) = (pattern.as_str().into(), path.as_str().into());
            prop_assert_eq!(matches_by_parts(pattern, path), wildmatch(pattern, path, MODE));
        }
    }

    fn below(pattern: &str, dir: &str) -> bool {
        Patterns::of_lines(&[pattern.to_owned()], "").could_match_below(dir.into())
    }

    #[test]
    fn the_pattern_of_a_path_matches_that_alone_and_lets_its_directories_be_looked_through() {
        let odd: [&[u8]; 9] = [
            b"plain/name",
            b"top",
            b"a*b/**/c?",
            b"[x]/]y",
            b"back\\slash/\\",
            b"#no/!note",
            b"d /ends with ",
            b"line\nfeed/\r",
            b"d\xff/\xc3\xa4\xfe",
        ];
        for path in odd {
            let rel = RelPath::new(path).unwrap();
            let patterns = Patterns::of_lines(&[pattern_of(&rel)], "");
            assert!(patterns.matches(path.into(), false).is_some(), "{rel}");
            for other in [b"other/name".as_slice(), &[path, b"x"].concat(), &[b"x/", path].concat()] {
                assert!(patterns.matches(other.into(), false).is_none(), "{rel}");
            }
            for above in std::iter::successors(rel.parent(), RelPath::parent).filter(|above| !above.is_root()) {
                assert!(patterns.could_match_below(above.as_bytes().into()), "{rel}");
                assert!(patterns.matches(above.as_bytes().into(), true).is_none(), "{rel}");
            }
        }
    }

    #[test]
    fn those_without_wildcards_are_not_looked_at_one_by_one() {
        let lines = (0..10_000).map(|at| format!("dir/file-{at}")).chain(["*.log", "a*", "!a.log"].map(String::from));
        let patterns = Patterns::of_lines(&lines.collect::<Vec<_>>(), "");
        assert_eq!((patterns.wild.len(), patterns.literal.len()), (2, 10_001));
        let line = |path: &str| patterns.last_match(path.into(), false).map(|hit| hit.line);
        let found = ["dir/file-9", "file-9", "b.log", "x/ab.log", "x/a.log"].map(line);
        assert_eq!(found, [Some(10), None, Some(10_001), Some(10_002), Some(10_003)]);
    }

    #[test]
    fn where_a_pattern_could_match() {
        assert!(below("*.log", "a/b"));
        assert!(below("/build/keep.txt", "build"));
        assert!(!below("/build/keep.txt", "other"));
        assert!(!below("/build/keep.txt", "build/sub"));
        assert!(!below("/build/keep.txt", "buil"));
        assert!(below("build/*/x", "build/sub"));
        assert!(!below("build/*/x", "build/sub/deeper"));
        assert!(below("build/**/x", "build/sub/deeper"));
        assert!(below("**/x", "anything/at/all"));
        assert!(below("a/b*/c", "a/bcd"));
        assert!(!below("a/b*/c", "a/x"));
        assert!(!below("/top", "dir"));
        assert!(!below("!*.log", "dir"));
    }
}
