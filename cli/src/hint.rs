//! Commands in hints: as they have to be typed where the person is, and what was probably meant.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use ah_core::text::shell;
use ah_core::{Error, ErrorKind, RelPath, Workspace};
use clap::error::{ContextKind, ContextValue};

use crate::app::App;
use crate::args;

/// A text with `-C` in its commands, if that is how this one came to its directory.
pub(crate) fn in_place(directory: Option<&Path>, text: &str) -> String {
    let Some(directory) = directory else { return text.to_owned() };
    let ah = format!("ah -C {}", shell(directory.as_os_str()));
    // A command that has one keeps it.
    let command = |rest: &str| if rest.starts_with("-C ") { format!("ah {rest}") } else { format!("{ah} {rest}") };
    let behind = |text: &str, what: &str| {
        let begin = format!("{what}ah ");
        let mut parts = text.split(&begin);
        let first = parts.next().unwrap_or_default().to_owned();
        // One that goes elsewhere first is there already.
        let is_elsewhere = |text: &str| text.rsplit('`').next().is_some_and(|before| before.starts_with("cd "));
        parts.fold(first, |text, rest| match is_elsewhere(&text) {
            true => format!("{text}{begin}{rest}"),
            false => format!("{text}{what}{}", command(rest)),
        })
    };
    let text = text.strip_prefix("ah ").map_or_else(|| text.to_owned(), command);
    let text = ["`", "&& ", "$("].iter().fold(text, |text, what| behind(&text, what));
    text.replace("`ah`", &format!("`{ah}`"))
}

/// What other tools call what some of our commands do.
const CALLED_ELSEWHERE: [(&[&str], &str); 15] = [
    (&["list", "ls"], "ah agent fs snapshots"),
    (&["log", "history"], "ah timeline"),
    (&["delete", "remove", "drop"], "ah agent fs rm"),
    (&["checkout", "reset", "revert", "rollback"], "ah agent fs restore"),
    (&["save", "commit", "checkpoint", "init"], "ah agent fs snapshot"),
    (&["sessions"], "ah session list"),
    (&["recordings"], "ah session show"),
    (&["usage", "du", "df"], "ah agent fs prune --dry-run"),
    (&["doctor", "info"], "ah agent fs status"),
    (&["fsck", "verify", "repair"], "ah agent fs gc"),
    (&["pin", "label", "tag", "rename"], "ah agent fs edit"),
    (&["apply", "merge"], "ah agent fs diff --patch"),
    (&["mount"], "ah agent fs seek"),
    (&["umount", "unmount"], "ah agent fs release"),
    (&["completions", "completion"], "ah __generate completions"),
];

/// What was probably meant: a command by the last part of its name, or a path that `--` was forgotten before.
pub(crate) fn meant(error: &clap::Error, arguments: &[OsString]) -> Option<String> {
    let word = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word.as_str()),
        _ => None,
    };
    match error.kind() {
        clap::error::ErrorKind::InvalidSubcommand => {
            let word = word(ContextKind::InvalidSubcommand)?;
            // Of a session's recordings, and not of its snapshots.
            let word = if arguments.iter().any(|word| word == "cast") && word == "list" { "recordings" } else { word };
            let elsewhere = CALLED_ELSEWHERE.iter().find(|(names, _)| names.contains(&word));
            let path = elsewhere.map(|(_, path)| (*path).to_owned()).or_else(|| path_of(&args::command(), word))?;
            Some(format!("did you mean `{path}`?"))
        }
        clap::error::ErrorKind::UnknownArgument => {
            let word = word(ContextKind::InvalidArg)?;
            // What begins with a hyphen is a mistyped option, of which the first letter is told here, unless there is such a file.
            let is_it = |argument: &OsString| match word.starts_with('-') {
                true => argument.as_encoded_bytes().starts_with(word.as_bytes()) && Path::new(argument).exists(),
                false => argument == word,
            };
            // As few words as can be are taken for paths.
            let places = || (1..arguments.len()).rev().filter(|at| is_it(&arguments[*at]));
            let mut tries = places().map(|at| [&arguments[..at], &["--".into()], &arguments[at..]].concat());
            let is_right = |words: &Vec<OsString>| args::command().try_get_matches_from(words).is_ok();
            let Some(right) = tries.find(is_right) else {
                // A label, where nothing else can stand.
                let mut labelled = places().map(|at| [&arguments[..at], &["-m".into()], &arguments[at..]].concat());
                return labelled.find(is_right).map(|right| format!("did you mean `{}`?", line_of(&right)));
            };
            let runs = |words: &[OsString]| words == ["fs", "exec"] || words == ["agent", "record"];
            let what = if arguments.windows(2).any(runs) { "the command goes" } else { "paths go" };
            Some(format!("{what} after `--`: `{}`", line_of(&right)))
        }
        _ => None,
    }
}

/// An error of a command in a mount namespace of its own, which what others mount need not reach: outside it does. The command was typed in `cwd`, in what is
/// shown at `root` there and is at `place` outside.
pub(crate) fn outside(place: &Path, root: &Path, cwd: &Path, arguments: &[OsString], error: Error) -> Error {
    let there =
        |path: &Path| Some(place.components().chain(path.strip_prefix(root).ok()?.components()).collect::<PathBuf>());
    let cwd = there(cwd).unwrap_or_else(|| place.to_owned());
    let words = without_directory(arguments).into_iter();
    let words: Vec<OsString> =
        words.map(|word| there(Path::new(&word)).map_or(word, PathBuf::into_os_string)).collect();
    let line = line_of(&words);
    let there = format!("ah -C {}{}", shell(cwd.as_os_str()), line.strip_prefix("ah").unwrap_or(&line));
    let or = error.hint.as_deref().map_or_else(String::new, |hint| format!("; or {hint}"));
    error.with_hint(format!("outside of `exec`: `{there}`{or}"))
}

/// A command line without `-C`, which may stand in one word with its value, or behind other options of one letter.
fn without_directory(arguments: &[OsString]) -> Vec<OsString> {
    let options = arguments.iter().position(|word| word == "--").unwrap_or(arguments.len());
    let (mut words, mut is_value) = (Vec::new(), false);
    for word in &arguments[..options] {
        let letters = word.as_bytes().strip_prefix(b"-").filter(|word| !word.starts_with(b"-"));
        match letters.and_then(|letters| letters.iter().position(|letter| *letter == b'C')) {
            _ if is_value => is_value = false,
            Some(at) => {
                is_value = at + 2 == word.len();
                words.extend((at > 0).then(|| OsStr::from_bytes(&word.as_bytes()[..=at]).to_owned()));
            }
            None => words.push(word.clone()),
        }
    }
    words.extend_from_slice(&arguments[options..]);
    words
}

/// Whether no snapshot has that name.
pub(crate) fn names_nothing(workspace: &Workspace, name: &str) -> bool {
    workspace.resolve(name).is_err_and(|error| error.kind == ErrorKind::NotFound)
}

/// A file's name where a REF goes, in a command of `ah agent fs`: the REF was forgotten.
pub(crate) fn reference_first(app: &App, workspace: &Workspace, command: &str, name: &str, error: Error) -> Error {
    let is_path = || app.cwd.join(name).symlink_metadata().is_ok() && names_nothing(workspace, name);
    if error.kind != ErrorKind::NotFound || !is_path() {
        return error;
    }
    error.with_hint(format!("the REF goes before the path: `ah agent fs {command} @ -- {}`", shell(name.as_ref())))
}

/// What a shell found nothing for and handed on: nothing here takes patterns. Where it is the REF that is not found, or the workspace, that says more.
pub(crate) fn no_pattern(workspace: &Workspace, reference: &str, paths: &[OsString], error: Error) -> Error {
    let is_pattern = |path: &OsString| path.as_encoded_bytes().iter().any(|byte| b"*?".contains(byte));
    let is_there = || workspace.root().is_dir() && workspace.resolve(reference).is_ok();
    if error.kind != ErrorKind::NotFound || !paths.iter().any(is_pattern) || !is_there() {
        return error;
    }
    error.with_hint("paths are no patterns: name files and directories; `ah agent fs diff REF` lists what differs")
}

/// Paths as they are named from the current directory, if one of them is nowhere, and would be somewhere if it was taken from the top: `diff` and the timeline
/// name files so.
fn from_here(
    app: &App,
    workspace: &Workspace,
    paths: &[OsString],
    is_there: impl Fn(&RelPath) -> bool,
) -> Option<Vec<OsString>> {
    let here = app.cwd.strip_prefix(workspace.root()).ok().filter(|here| !here.as_os_str().is_empty())?;
    let meant = |path: &OsString| {
        let taken_from = |directory: &Path| workspace.rel_path(directory, Path::new(path)).ok();
        let is_somewhere = taken_from(&app.cwd).is_none_or(|path| is_there(&path));
        let from_top = taken_from(workspace.root()).filter(|path| !is_somewhere && is_there(path));
        from_top.map(|path| named_from(here, path.as_path()).into_os_string())
    };
    let named: Vec<Option<OsString>> = paths.iter().map(meant).collect();
    let is_any = named.iter().any(Option::is_some);
    is_any.then(|| named.into_iter().zip(paths).map(|(named, path)| named.unwrap_or_else(|| path.clone())).collect())
}

/// How a path is named in the directory `here`; both begin at the top.
fn named_from(here: &Path, path: &Path) -> PathBuf {
    let common = here.components().zip(path.components()).take_while(|(one, other)| one == other).count();
    let up = here.components().skip(common).map(|_| Component::ParentDir);
    let named: PathBuf = up.chain(path.components().skip(common)).collect();
    match named.as_os_str().as_bytes() {
        b"" => PathBuf::from("."),
        [b'-', ..] => Path::new(".").join(named),
        _ => named,
    }
}

fn taken_from_here(line: &str) -> String {
    format!("paths are taken from the current directory: `{line}`")
}

/// What to say of a path that `from_here` names another way; `command`: `ah agent fs …` up to it.
pub(crate) fn path_from_here(
    app: &App,
    workspace: &Workspace,
    command: &str,
    path: &OsString,
    is_there: impl Fn(&RelPath) -> bool,
) -> Option<String> {
    let named = from_here(app, workspace, std::slice::from_ref(path), is_there)?;
    Some(taken_from_here(&format!("ah agent fs {command} {}", shell(named.first()?))))
}

/// The same of paths behind `--`: the command line as it was typed, with them as they are named from here.
pub(crate) fn paths_from_here(
    app: &App,
    workspace: &Workspace,
    paths: &[OsString],
    is_there: impl Fn(&RelPath) -> bool,
) -> Option<String> {
    let named = from_here(app, workspace, paths, is_there)?;
    let words = without_directory(&std::env::args_os().collect::<Vec<_>>());
    let before = words.iter().position(|word| word == "--")?;
    Some(taken_from_here(&line_of(&[&words[..=before], &named].concat())))
}

/// An error about paths of a snapshot, and with `now` of the workspace, that were named from the top.
pub(crate) fn from_top(
    app: &App,
    workspace: &Workspace,
    reference: &str,
    paths: &[OsString],
    now: bool,
    error: Error,
) -> Error {
    if error.kind != ErrorKind::NotFound {
        return error;
    }
    let Ok(snapshot) = workspace.resolve(reference) else { return error };
    let is_there = |path: &RelPath| workspace.has_then(&snapshot, path) || now && workspace.is_there(path);
    match paths_from_here(app, workspace, paths, is_there) {
        Some(hint) => error.with_hint(hint),
        None => error,
    }
}

/// The whole name of the command whose last word is `name`, somewhere below `command`.
fn path_of(command: &clap::Command, name: &str) -> Option<String> {
    let own = command.get_name();
    let mut subs = command.get_subcommands().filter(|sub| !sub.is_hide_set());
    subs.find_map(|sub| if sub.get_name() == name { Some(name.to_owned()) } else { path_of(sub, name) })
        .map(|path| format!("{own} {path}"))
}

/// A command line that does the same again.
pub(crate) fn line_of(arguments: &[OsString]) -> String {
    let words = arguments.iter().skip(1).map(|word| shell(word));
    std::iter::once("ah".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}

/// The command that the words begin to name: `ah agent fs diff`.
pub(crate) fn command_named(arguments: &[OsString]) -> String {
    let mut command = args::command();
    let mut name = String::from("ah");
    for word in arguments.iter().skip(1).take_while(|word| *word != "--") {
        if let Some(sub) = command.find_subcommand(word) {
            name = format!("{name} {}", sub.get_name());
            command = sub.clone();
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_call_otherwise_is_there() {
        for (names, path) in CALLED_ELSEWHERE {
            let words: Vec<&str> = path.split(' ').chain(["--help"]).collect();
            let help = args::command().try_get_matches_from(words).unwrap_err();
            assert_eq!(help.kind(), clap::error::ErrorKind::DisplayHelp, "{path}");
            let ours = names.iter().find(|name| args::command().find_subcommand(name).is_some());
            assert_eq!(ours, None);
        }
    }

    #[test]
    fn what_is_not_seen_in_a_namespace_is_asked_for_outside() {
        let error = || Error::new(ErrorKind::FailedPrecondition, "it does not reach");
        let hint = |cwd: &str, line: &str, error| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            outside(Path::new("/state/b"), Path::new("/home/u/p"), Path::new(cwd), &words, error).hint.unwrap()
        };
        let there = "outside of `exec`: `ah -C /state/b agent fs diff --patch`";
        assert_eq!(hint("/home/u/p", "/usr/bin/ah agent fs diff --patch", error()), there);
        assert_eq!(hint("/home/u/p", "ah agent fs diff --patch", error().with_hint("ask")), format!("{there}; or ask"));
        // `-C` led there already.
        for line in ["ah -C sub agent fs diff", "ah agent fs diff -Csub", "ah agent -C=sub fs diff"] {
            let there = "outside of `exec`: `ah -C /state/b/sub agent fs diff`";
            assert_eq!(hint("/home/u/p/sub", line, error()), there, "{line}");
            // Nor is it put in again where the error is told.
            assert_eq!(in_place(Some(Path::new("sub")), there), there);
        }
        assert_eq!(
            hint("/home/u/p/sub", "ah -qC sub agent fs diff --json -- a /home/u/p/-C -C", error()),
            "outside of `exec`: `ah -C /state/b/sub -q agent fs diff --json -- a /state/b/-C -C`"
        );
    }

    #[test]
    fn a_path_is_named_from_where_one_is() {
        let named = |here: &str, path: &str| named_from(Path::new(here), Path::new(path)).display().to_string();
        assert_eq!(named("src", "src/main.rs"), "main.rs");
        assert_eq!(named("src/a", "src/b/c"), "../b/c");
        assert_eq!(named("src/a", "src"), "..");
        assert_eq!(named("src", "src"), ".");
        assert_eq!(named("src", "src/-x"), "./-x");
    }

    #[test]
    fn commands_stay_in_their_directory() {
        let there = |text| in_place(Some(Path::new("a b")), text);
        assert_eq!(there("ah agent fs gc"), "ah -C 'a b' agent fs gc");
        assert_eq!(there("see `ah`, or `ah timeline`"), "see `ah -C 'a b'`, or `ah -C 'a b' timeline`");
        assert_eq!(there("name it with `-C DIR`"), "name it with `-C DIR`");
        assert_eq!(there("`ah -C x timeline` again"), "`ah -C x timeline` again");
        assert_eq!(there("`ah -C x timeline`, or `ah timeline`"), "`ah -C x timeline`, or `ah -C 'a b' timeline`");
        assert_eq!(there("ah undo && ah undo"), "ah -C 'a b' undo && ah -C 'a b' undo");
        assert_eq!(there("`cd / && ah -C x rm`"), "`cd / && ah -C x rm`");
        assert_eq!(there("`cd / && ah rm`, then `ah gc`"), "`cd / && ah rm`, then `ah -C 'a b' gc`");
        assert_eq!(there("`b=$(ah -C x agent fs branch)`"), "`b=$(ah -C x agent fs branch)`");
        assert_eq!(there("`v=$(ah agent fs seek)`"), "`v=$(ah -C 'a b' agent fs seek)`");
        assert_eq!(in_place(None, "ah agent fs gc"), "ah agent fs gc");
    }
}
