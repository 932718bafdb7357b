//! What counts as ignored, compared with what Git says of the same tree.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

use ah_plugin_api::{CapturePolicy, EntryKind};
use ah_rules::{Class, DirRules, Rules};
use proptest::prelude::{ProptestConfig, Strategy, prop_assert_eq, proptest};
use proptest::sample::{select, subsequence};

/// Patterns with something special about each.
const PATTERNS: &[&str] = &[
    "*.log",
    "!keep.log",
    "build",
    "build/",
    "/build",
    "/build/",
    "a/b",
    "/a/b",
    "a/b/",
    "a/*",
    "a/**",
    "**/b",
    "**/b/",
    "a/**/c",
    "a/**/",
    "**/**/**/**/b",
    "**/a/**/**/**/c",
    "a/**/**/**/**",
    "/**/*/**/**/**/",
    "*",
    "!*/",
    "!*.c",
    "*/c",
    "**",
    "/*",
    "!/a",
    "#comment",
    "\\#hash",
    "\\!bang",
    "!\\!bang",
    "trailing   ",
    "trailing\\ ",
    "sp ace",
    "[abc]",
    "[!abc]",
    "[a-c].c",
    "?.c",
    "x\\*",
    "x*",
    "*.",
    ".*",
    "!.gitignore",
    "foo//bar",
    "//a",
    "a//",
    "/",
    "",
    " ",
    "  ",
    "\t",
    "c\r",
    "[",
    "[]",
    "[]a]",
    "a[",
    "\\",
    "a\\",
    "**a",
    "a**",
    "***",
    "a/***/c",
    "/**",
    "**/",
    "/**/",
    "!",
    "!!",
    "!!a",
    "[[:alpha:]].c",
    "[[:digit:]]*",
    "b/c",
    "./a",
    "../a",
    "a/../b",
    "B",
    "é",
    "$x",
    "!$x",
    "\u{feff}a",
    "d/**/",
    "d/**",
    "!d/e/",
    "!d/e/f",
    "d/*",
    "!d/e",
    "deep/*/*",
    "!deep/x/",
    "[\\]]",
    "[\\a]",
    "a\\b",
    "\\a",
    "\\*.c",
    "*\\.c",
    "f[^0-9]",
    "[a-",
    "[--0]",
    "{a,b}",
    "~",
    "a b",
    "\"a\"",
];

const FILES: &[&str] = &[
    "a/b/c",
    "a/b/x.c",
    "a/c",
    "a/x.log",
    "b/c",
    "b/b/b",
    "build/out.o",
    "sub/build/out.o",
    "keep.log",
    "x.log",
    "sub/keep.log",
    "a.c",
    "b.c",
    "z.c",
    "x*",
    "xy",
    "#hash",
    "#comment",
    "!bang",
    "trailing",
    "trailing ",
    "trailing   ",
    "sp ace",
    "c",
    "sub/c",
    ".hidden",
    "sub/.hidden",
    "d/e/f",
    "d/e/g",
    "d/h",
    "deep/x/y/z",
    "deep/y/x/z",
    "file.",
    "[",
    "[]",
    "]",
    "\\",
    "a[",
    "foo/bar",
    "B",
    "\u{e9}",
    "$x",
    "\u{feff}a",
    "3d",
    "sub/3d",
    "deep/a/b/c",
    "f1",
    "fa",
    "-",
    "{a,b}",
    "~",
    "\"a\"",
    "c\r",
    "sub/d/e/f",
    "sub/a/b/c",
];

fn git(dir: &Path, args: &[&str]) -> Vec<u8> {
    let output = Command::new("git")
        .args(args)
        .current_dir(dir)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_SYSTEM", "/dev/null")
        .env("XDG_CONFIG_HOME", "/nonexistent")
        .output()
        .unwrap();
    assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn names(output: &[u8]) -> BTreeSet<Vec<u8>> {
    output.split(|&byte| byte == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect()
}

/// All files that are ignored, by walking as a provider does.
fn ours(root: &Path, policy: &CapturePolicy) -> BTreeSet<Vec<u8>> {
    fn go(out: &mut BTreeSet<Vec<u8>>, root: &Path, rel: &[u8], rules: Option<&DirRules>) {
        let dir = root.join(std::ffi::OsStr::from_bytes(rel));
        for entry in fs::read_dir(&dir).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().as_bytes().to_vec();
            let path = if rel.is_empty() { name.clone() } else { [rel, b"/", &name].concat() };
            let is_dir = entry.file_type().unwrap().is_dir();
            if name == b".git" {
                continue;
            }
            let kind = if is_dir { EntryKind::Dir } else { EntryKind::File };
            let class = rules.map(|rules| rules.classify(&name, kind, 0));
            if is_dir {
                let fd = fs::File::open(entry.path()).unwrap();
                let below = match (rules, &class) {
                    (Some(rules), Some(class)) if class.is_captured() => {
                        Some(rules.enter(&name, class, fd.as_fd(), None))
                    }
                    _ => None,
                };
                go(out, root, &path, below.as_ref());
            } else if class.is_none_or(|class| class.is_ignored()) {
                out.insert(path);
            }
        }
    }
    let fd = fs::File::open(root).unwrap();
    let rules = Rules::open(fd.as_fd(), policy);
    let mut out = BTreeSet::new();
    go(&mut out, root, b"", Some(&rules.root(fd.as_fd())));
    out
}

fn build(dir: &Path) {
    for file in FILES {
        let path = dir.join(file);
        // Some names are files here and directories there; the first wins.
        if fs::create_dir_all(path.parent().unwrap()).is_ok() && !path.exists() {
            fs::write(path, file).unwrap();
        }
    }
    git(dir, &["init", "-q"]);
}

/// Some patterns in some order.
fn patterns(most: usize) -> impl Strategy<Value = String> {
    proptest::collection::vec(select(PATTERNS), 0..most).prop_map(|lines| lines.join("\n") + "\n")
}

fn text(set: BTreeSet<Vec<u8>>) -> BTreeSet<String> {
    set.into_iter().map(|name| String::from_utf8_lossy(&name).into_owned()).collect()
}

fn compare(dir: &Path, policy: &CapturePolicy) -> (BTreeSet<String>, BTreeSet<String>) {
    let theirs = names(&git(dir, &["ls-files", "-z", "--others", "--ignored", "--exclude-standard"]));
    (text(ours(dir, policy)), text(theirs))
}

#[test]
fn each_pattern_alone() {
    let dir = tempfile::tempdir().unwrap();
    build(dir.path());
    for pattern in PATTERNS {
        for (text, sub) in
            [(format!("{pattern}\n"), false), ((*pattern).to_owned(), false), (format!("{pattern}\r\n"), true)]
        {
            let file = dir.path().join(if sub { "sub/.gitignore" } else { ".gitignore" });
            fs::write(&file, text).unwrap();
            let (ours, theirs) = compare(dir.path(), &CapturePolicy::default());
            assert_eq!(ours, theirs, "{pattern:?} in {}", file.display());
            fs::remove_file(file).unwrap();
        }
    }
}

/// So many cases, unless `PROPTEST_CASES` says otherwise.
fn config(cases: u32) -> ProptestConfig {
    let usual = ProptestConfig::default();
    if std::env::var_os("PROPTEST_CASES").is_some() { usual } else { ProptestConfig { cases, ..usual } }
}

proptest! {
    #![proptest_config(config(60))]
    #[test]
    fn many_patterns_in_many_places(
        top in patterns(6), a in patterns(4), d in patterns(4), sub in patterns(4), exclude in patterns(3), global in patterns(3),
        tracked in subsequence(FILES, 0..5),
    ) {
        let dir = tempfile::tempdir().unwrap();
        build(dir.path());
        for (file, text) in [(".gitignore", &top), ("a/.gitignore", &a), ("d/e/.gitignore", &d), ("sub/.gitignore", &sub), (".git/info/exclude", &exclude)] {
            fs::write(dir.path().join(file), text).unwrap();
        }
        fs::write(dir.path().join(".git/global"), &global).unwrap();
        git(dir.path(), &["config", "core.excludesFile", dir.path().join(".git/global").to_str().unwrap()]);
        let mut add = vec!["--literal-pathspecs", "add", "-f", "--"];
        add.extend(tracked.iter().filter(|file| dir.path().join(file).is_file()));
        if add.len() > 4 {
            git(dir.path(), &add);
        }
        let policy = CapturePolicy { global_ignore: global.clone().into_bytes(), max_ignored_size: 0, ..CapturePolicy::default() };
        let (found, theirs) = compare(dir.path(), &policy);
        prop_assert_eq!(&found, &theirs);
        // A directory inside the work tree, taken as the workspace, ignores the same, unless it is ignored itself.
        if !ignores_dir(dir.path(), "sub") {
            let mine = text(ours(&dir.path().join("sub"), &policy));
            let inside: BTreeSet<String> = theirs.iter().filter_map(|name| name.strip_prefix("sub/")).map(str::to_owned).collect();
            prop_assert_eq!(mine, inside);
        }
    }
}

fn ignores_dir(root: &Path, dir: &str) -> bool {
    // With the index left aside: a directory of which some file is tracked is ignored all the same.
    let check = ["check-ignore", "--no-index", "-q", dir];
    Command::new("git").args(check).current_dir(root).env("GIT_CONFIG_GLOBAL", "/dev/null").status().unwrap().success()
}

/// The class of one file, with the directories on the way looked at.
fn class_of(rules: &Rules, workspace: &fs::File, path: &str, size: u64) -> Class {
    let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
    let mut here = rules.root(workspace.as_fd());
    let mut at = workspace.try_clone().unwrap();
    for component in above.split('/').filter(|component| !component.is_empty()) {
        let class = here.classify(component.as_bytes(), EntryKind::Dir, 0);
        if !class.is_captured() {
            return class;
        }
        at = fs::File::open(format!("/proc/self/fd/{}/{component}", std::os::fd::AsRawFd::as_raw_fd(&at))).unwrap();
        here = here.enter(component.as_bytes(), &class, at.as_fd(), None);
    }
    here.classify(name.as_bytes(), EntryKind::File, size)
}

#[test]
fn small_ignored_files_are_kept_outside_of_ignored_directories() {
    let dir = tempfile::tempdir().unwrap();
    build(dir.path());
    fs::write(dir.path().join(".gitignore"), "d/\n*.log\n").unwrap();
    let fd = fs::File::open(dir.path()).unwrap();
    let policy = CapturePolicy { max_ignored_size: 10, ..CapturePolicy::default() };
    let rules = Rules::open(fd.as_fd(), &policy);
    let class = |path: &str, size| class_of(&rules, &fd, path, size);
    assert_eq!(class("a/b/c", 1), Class::Captured);
    assert_eq!(class("x.log", 10), Class::Kept);
    assert!(matches!(class("x.log", 11), Class::Omitted { by_size: true, .. }));
    assert!(matches!(class("d/e/f", 1), Class::Omitted { by_size: false, .. }));
}

/// Git's own way of matching takes several times as long with each `**`.
#[test]
fn a_pattern_with_many_stars_holds_nobody_up() {
    let dir = tempfile::tempdir().unwrap();
    let deep = dir.path().join("a/".repeat(60));
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("b"), "").unwrap();
    fs::write(deep.join("c"), "").unwrap();
    fs::write(dir.path().join(".gitignore"), "**/a*/**/*/".repeat(10) + "b").unwrap();
    let began = std::time::Instant::now();
    let policy = CapturePolicy { max_ignored_size: 0, ..CapturePolicy::default() };
    assert_eq!(text(ours(dir.path(), &policy)), BTreeSet::from(["a/".repeat(60) + "b"]));
    assert!(began.elapsed().as_secs() < 10, "{:?}", began.elapsed());
}
