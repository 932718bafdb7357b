//! The parts of a repository's configuration that a clone gets: facts and preferences, nothing that names a program.
//!
//! Not `core.ignoreCase` and the like either: they say what the filesystem does, and the clone may lie on another.
//!
//! A list of what is safe, not of what is not: a key that Git learns tomorrow stays out. Hooks, filters, includes, aliases,
//! `core.worktree`, `core.fsmonitor`, `core.sshCommand`, `remote.*.uploadpack` and the like can run something or lead out of
//! the clone, and are not on it.

use gix::bstr::{BStr, ByteSlice};

/// Section without subsection, key.
const PLAIN: &[(&str, &[&str])] = &[
    (
        "core",
        &[
            "abbrev",
            "autocrlf",
            "bigfilethreshold",
            "checkstat",
            "commentchar",
            "compression",
            "eol",
            "quotepath",
            "safecrlf",
            "sparsecheckout",
            "sparsecheckoutcone",
            "symlinks",
            "trustctime",
            "whitespace",
        ],
    ),
    ("user", &["email", "name", "signingkey", "useconfigonly"]),
    ("author", &["email", "name"]),
    ("committer", &["email", "name"]),
    ("branch", &["autosetupmerge", "autosetuprebase", "sort"]),
    ("commit", &["gpgsign"]),
    ("tag", &["gpgsign", "sort"]),
    ("gpg", &["format"]),
    ("i18n", &["commitencoding", "logoutputencoding"]),
    ("index", &["sparse"]),
    ("merge", &["conflictstyle", "ff"]),
    ("pull", &["ff", "rebase"]),
    ("push", &["autosetupremote", "default", "followtags"]),
    ("rebase", &["autosquash", "updaterefs"]),
    ("remote", &["pushdefault"]),
];

/// Section with any subsection, key.
const NAMED: &[(&str, &[&str])] = &[
    (
        "remote",
        &[
            "fetch",
            "followremotehead",
            "mirror",
            "prune",
            "prunetags",
            "push",
            "pushurl",
            "skipfetchall",
            "tagopt",
            "url",
        ],
    ),
    ("branch", &["description", "merge", "mergeoptions", "pushremote", "rebase", "remote"]),
];

/// Sections and lines beyond these are no configuration: each takes some 400 bytes of memory, and a file of a hostile repository's four has one.
const MOST_PARTS: usize = 50_000;

/// What a configuration says, but for what it includes; none if it cannot be read.
pub(crate) fn parsed(text: &[u8]) -> Option<gix::config::File> {
    if text.iter().filter(|byte| matches!(byte, b'[' | b'\n')).count() > MOST_PARTS {
        return None;
    }
    let meta = gix::config::file::Metadata::from(gix::config::Source::Local);
    gix::config::File::from_bytes_no_includes(text, meta, gix::config::file::init::Options::default()).ok()
}

/// The configuration file of a clone.
#[derive(Debug)]
pub(crate) struct Config {
    /// Its text.
    pub(crate) text: Vec<u8>,
    /// What a person should know: what was left out and may be missed.
    pub(crate) notes: Vec<String>,
}

/// Makes the clone's configuration of the texts of the user's (the repository's own, then the work tree's). `ignores_case`: what the
/// clone's own filesystem does.
pub(crate) fn config(texts: &[Vec<u8>], ignores_case: bool) -> Config {
    let (mut body, mut notes) = (Vec::new(), Vec::new());
    for text in texts {
        let Some(file) = parsed(text) else {
            notes.push("the repository's configuration cannot be read, so none of it was taken along".to_owned());
            continue;
        };
        for section in file.sections() {
            let name = section.header().name().to_str_lossy().to_ascii_lowercase();
            let subsection = section.header().subsection_name();
            if name == "filter" {
                let filter = subsection.map(ToString::to_string).unwrap_or_default();
                notes.push(format!("the filter {filter:?} was not taken along: it names programs"));
            }
            if name.starts_with("include") {
                notes
                    .push("the repository's configuration includes other files, which were not taken along".to_owned());
            }
            let table = if subsection.is_some() { NAMED } else { PLAIN };
            let Some((_, safe)) = table.iter().find(|(section, _)| *section == name) else { continue };
            let mut keys: Vec<String> = section.value_names().collect();
            keys.sort_by_key(|key| key.to_ascii_lowercase());
            keys.dedup_by_key(|key| key.to_ascii_lowercase());
            keys.retain(|key| safe.contains(&key.to_ascii_lowercase().as_str()));
            if keys.is_empty() {
                continue;
            }
            heading(&mut body, &name, subsection);
            for key in &keys {
                if matches!(section.value_implicit(key), Some(None)) {
                    // A key without `=` means true; with an empty value it would mean false.
                    body.extend_from_slice(format!("\t{key}\n").as_bytes());
                    continue;
                }
                for value in section.values(key) {
                    body.extend_from_slice(format!("\t{key} = ").as_bytes());
                    quoted(&mut body, value.as_ref());
                    body.push(b'\n');
                }
            }
        }
    }
    notes.sort();
    notes.dedup();
    let head = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\tlogallrefupdates = true\n";
    let case = if ignores_case { "\tignorecase = true\n" } else { "" };
    Config { text: [head.as_bytes(), case.as_bytes(), &body].concat(), notes }
}

/// Whether Git reads `config.worktree` beside a repository's configuration.
pub(crate) fn has_worktree_config(text: &[u8]) -> bool {
    parsed(text).is_some_and(|file| matches!(file.boolean("extensions.worktreeConfig"), Ok(Some(true))))
}

fn heading(out: &mut Vec<u8>, name: &str, subsection: Option<&BStr>) {
    out.extend_from_slice(b"[");
    out.extend_from_slice(name.as_bytes());
    if let Some(subsection) = subsection {
        out.extend_from_slice(b" \"");
        for &byte in subsection.as_bytes() {
            if matches!(byte, b'"' | b'\\') {
                out.push(b'\\');
            }
            out.push(byte);
        }
        out.push(b'"');
    }
    out.extend_from_slice(b"]\n");
}

fn quoted(out: &mut Vec<u8>, value: &BStr) {
    out.push(b'"');
    for &byte in value.as_bytes() {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\t' => out.extend_from_slice(b"\\t"),
            b'\x08' => out.extend_from_slice(b"\\b"),
            _ => out.push(byte),
        }
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::config;

    #[test]
    fn what_would_take_all_memory_cannot_be_read() {
        let theirs = |count: usize| [b"[user]\nname = A\n".to_vec(), b"[a]\n".repeat(count)].concat();
        assert!(config(&[theirs(20_000)], false).notes.is_empty());
        let ours = config(&[theirs(30_000)], false);
        assert!(ours.notes[0].contains("cannot be read") && !ours.text.contains(&b'A'), "{:?}", ours.notes);
    }

    #[test]
    fn takes_facts_and_leaves_programs() {
        let theirs = b"[core]\n\tworktree = /elsewhere\n\tfsmonitor = evil\n\tautocrlf = input\n\tignoreCase = true\n\tsshCommand = evil\n\
            [include]\n\tpath = evil\n[alias]\n\tst = !evil\n[filter \"lfs\"]\n\tclean = evil\n\
            [user]\n\tname = \"A \\\"B\\\" \\\\ C # not a comment\"\n\temail = a@b\n\
            [remote \"or\\\"igin\"]\n\turl = \"https://x/y;z\"\n\tuploadpack = evil\n\tfetch = +a:b\n\tfetch = +c:d\n\
            [branch \"feat/x\"]\n\tremote = origin\n\tmerge = refs/heads/feat/x\n[commit]\n\tgpgsign\n";
        let ours = config(&[theirs.to_vec()], false);
        let text = String::from_utf8(ours.text.clone()).unwrap();
        assert!(!text.contains("evil") && !text.contains("elsewhere"), "{text}");
        assert_eq!(ours.notes.len(), 2, "{:?}", ours.notes);
        // What Git itself reads from it.
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config"), &ours.text).unwrap();
        let get = |key: &str| {
            let out = Command::new("git")
                .args(["config", "--file"])
                .arg(dir.path().join("config"))
                .args(["--get-all", key])
                .output();
            String::from_utf8(out.unwrap().stdout).unwrap()
        };
        assert_eq!(get("user.name"), "A \"B\" \\ C # not a comment\n");
        assert_eq!(get("remote.or\"igin.fetch"), "+a:b\n+c:d\n");
        assert_eq!(get("remote.or\"igin.url"), "https://x/y;z\n");
        assert_eq!(get("branch.feat/x.merge"), "refs/heads/feat/x\n");
        assert_eq!(get("core.autocrlf"), "input\n");
        assert_eq!(get("core.bare"), "false\n");
        assert_eq!(get("core.ignorecase"), "");
        std::fs::write(dir.path().join("config"), &config(&[theirs.to_vec()], true).text).unwrap();
        assert_eq!(get("core.ignorecase"), "true\n");
        assert!(text.contains("\tgpgsign\n"), "{text}");
    }

    #[test]
    fn what_cannot_be_read_gives_a_plain_configuration_and_a_note() {
        let ours = config(&[b"[core\nx".to_vec()], false);
        assert!(ours.text.starts_with(b"[core]\n\trepositoryformatversion = 0\n"));
        assert_eq!(ours.notes.len(), 1);
    }
}
