//! The suite and the documentation of the contract are held together: each case quotes words that stand there, and each
//! sentence of the contract is quoted by a case, or is listed here with the reason why it is not.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use ah_conformance::all_cases;

/// Sentences of `provider.rs` that no case checks, by how they begin, and why.
const NOT_CHECKED: &[(&str, &str)] = &[
    ("The contract: what every provider", "a heading"),
    ("A mechanism that captures", "a heading"),
    ("`ah` takes a snapshot of a workspace before", "says what it is for"),
    ("A provider is the mechanism", "says what it is for"),
    ("It knows nothing of timelines", "about the code, not about what it does"),
    ("*workspace*:", "a word"),
    ("*snapshot*:", "a word"),
    ("`probe` → `snapshot`", "an overview"),
    ("Workspace `/home/me/proj`", "the example"),
    ("`snapshot{id: a}`", "the example"),
    ("An agent deletes", "the example"),
    ("`snapshot{id: b}`", "the example"),
    ("`diff{from: b", "the example"),
    ("`mount{a, name: v}`", "the example"),
    ("`destroy(Snapshot a)`", "the example"),
    ("Access times may change", "allows something"),
    ("The capabilities in [`Description`] say which", "a pointer; each capability is what cases need"),
    ("What is special is said at the method.", "a pointer"),
    ("Cost: a few system calls.", "cost is measured, not tested (scripts/bench)"),
    ("Only when the question itself", "cannot be brought about from outside"),
    ("Cost grows with what changed", "cost is measured, not tested (scripts/bench)"),
    (
        "`DataLoss` if the store cannot be read.",
        "depends on how a store is made; `failure.damage` and `failure.damage-found` damage each",
    ),
    (
        "`FailedPrecondition` if some cannot be looked for now",
        "needs a disk that goes away; the tests of Btrfs and ZFS take theirs away",
    ),
    ("Where the request says `partial`, they are left out.", "as above"),
    ("It is at the request's name in the target, or wherever", "allows something"),
    ("Where the target is on another filesystem", "needs two filesystems; the tests of Btrfs, which does so, check it"),
    ("Where the request says `unused`", "allows something"),
    ("Those of all methods.", "a pointer"),
    ("Where the new one is mounted", "allows something"),
    ("With `Durable` it survives a power cut", "the suite cuts no power; `vm-tests` does, for the project's own"),
    ("Makes an `Instant` snapshot survive a power cut.", "as above: `answers.sync` hears only what is said of it"),
    ("Killed anywhere, the old one", "a provider's own tests kill it where it matters"),
];

#[test]
fn every_quotation_stands_in_the_contract() {
    let contract: String =
        ["provider.rs", "types.rs", "request.rs", "place.rs", "context.rs", "error.rs"].map(documentation).join("\n\n");
    let contract = flat(&contract);
    for case in all_cases() {
        for clause in case.clauses {
            assert!(
                contract.contains(&flat(clause)),
                "{} quotes words that are not in the contract: {clause}",
                case.id
            );
        }
    }
}

#[test]
fn every_sentence_is_checked_or_says_why_not() {
    let quoted: Vec<String> = all_cases().flat_map(|case| case.clauses).map(|clause| flat(clause)).collect();
    let mut unused: Vec<&str> = NOT_CHECKED.iter().map(|(begin, _)| *begin).collect();
    let mut forgotten = Vec::new();
    for sentence in sentences(&documentation("provider.rs")) {
        let covered = quoted.iter().any(|quote| sentence.contains(quote.as_str()) || quote.contains(&sentence));
        let excused = NOT_CHECKED.iter().find(|(begin, _)| sentence.starts_with(&flat(begin)));
        if let Some((begin, _)) = excused {
            unused.retain(|other| other != begin);
            if covered {
                forgotten.push(format!("(is checked now; take it off the list) {sentence}"));
            }
        } else if !covered {
            forgotten.push(sentence);
        }
    }
    assert!(forgotten.is_empty(), "no case checks:\n  {}", forgotten.join("\n  "));
    assert!(unused.is_empty(), "on the list, but not in the contract any more: {unused:?}");
}

/// The doc comments of a source file, one paragraph a line, without headings and list marks.
fn documentation(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plugin-api/src").join(file);
    let source = std::fs::read_to_string(path).unwrap();
    let mut paragraphs = vec![String::new()];
    for line in source.lines().map(str::trim) {
        let Some(text) = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")) else {
            paragraphs.push(String::new());
            continue;
        };
        let text = text.trim();
        let marked =
            text.strip_prefix("- ").or_else(|| text.split_once(". ").filter(|(n, _)| n.len() == 1).map(|s| s.1));
        if text.is_empty() || text.starts_with('#') || marked.is_some() {
            paragraphs.push(String::new());
        }
        if !text.starts_with('#') {
            let last = paragraphs.last_mut().unwrap();
            last.push(' ');
            last.push_str(marked.unwrap_or(text));
        }
    }
    paragraphs.join("\n")
}

/// The sentences of a documentation.
fn sentences(documentation: &str) -> Vec<String> {
    let mut found = Vec::new();
    for paragraph in documentation.lines() {
        let paragraph = flat(paragraph);
        let mut rest = paragraph.as_str();
        while let Some(end) = rest.find(". ") {
            found.push(rest[..=end].to_owned());
            rest = &rest[end + 2..];
        }
        found.push(rest.to_owned());
    }
    // Of `**Immutable.** What …` the first is a heading.
    found.retain(|sentence| sentence.len() > 2 && !(sentence.starts_with("**") && sentence.ends_with("**")));
    found
}

/// With single blanks, as lines are broken anywhere.
fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
