//! The tree of commands and the options that all of them take. What a command takes itself stands in its own file.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

use crate::commands;
use crate::env::Env;
use crate::failure;

/// Undo for a coding agent's work: snapshots of any directory, and every file back.
///
/// Without a command: the state of this workspace, and what makes sense next.
#[derive(Debug, Parser)]
#[command(name = "ah", version, max_term_width = 100, after_help = AFTER_HELP)]
pub(crate) struct Cli {
    /// Options of every command.
    #[command(flatten)]
    pub(crate) globals: Globals,
    /// What to do; without it, the state of this workspace.
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

const AFTER_HELP: &str = "\
Exit codes: 0 done, 1 failed, 2 usage, 3 not found, 4 refused, 5 no provider could serve, 130 interrupted (by SIGTERM and SIGHUP too).

Environment: AH_HOME (the state, ~/.ah), AH_SESSION (the session to write to), AH_RECORDING (set inside of a recording), AH_PROVIDER_PATH (folders of \
provider libraries), AH_HELPER_SOCKET (where the helper ahd listens; empty: without it), NO_COLOR; \
as other programs read them: XDG_CONFIG_HOME (git's ignore file), CLAUDE_CONFIG_DIR, CODEX_HOME, OPENCODE_CONFIG_DIR (agents' settings), TMPDIR, SHELL.

Examples:
  ah agent fs snapshot -m 'before the refactoring'   # capture this workspace
  ah timeline                                        # what happened here
  ah agent fs diff @                                 # what changed since the latest snapshot
  ah agent fs restore @                              # put every file back, safely
  ah agent fs undo                                   # take the restore back";

/// What every command says that takes a REF.
const REF_HELP: &str = "\
REF, in order of precedence:
  @  @{2}                    the latest snapshot; two back
  @prompt  @prompt{2}        before an agent's last prompt; its last but one
  knxwqqvrmlpz               the id of a snapshot or a moment
  'before the refactoring'   a label that you gave: the newest snapshot that bears it
  5m-ago  -5m  1h30m-ago     so long ago
  5m  12.5s                  so long INTO the session, from its start
  2026-11-21T09:30:00Z       a time; with an offset instead of Z too
  '2026-11-21 09:30:00'      a local time, as `show` prints it, or with a T;
                             of an hour that comes twice the second, but with
                             the offset that `show` prints then
  '2026-11-21 09:30'         the first moment of that minute, local time;
  2026-11-21                 of that day
  knx                        the beginning of an id that no other begins with
  'make test'                what a recorded shell ran, with or without `(exit 2)`
                             where that failed; or another program's label
A time means the nearest snapshot at or before it. @ and times pass over
snapshots that a restore or a branch took for itself.";

/// When to colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal, unless NO_COLOR is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// How a workspace is given to an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum WorkMode {
    /// Whatever the chosen provider serves best.
    Auto,
    /// Snapshot the directory where it is.
    InPlace,
    /// A separate checkout.
    Worktree,
    /// A copy-on-write view that keeps the original path.
    CowOverlay,
}

/// Options of every command.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Options of every command")]
pub(crate) struct Globals {
    /// Work as if started in DIR.
    #[arg(short = 'C', value_name = "DIR", global = true)]
    pub(crate) directory: Option<PathBuf>,
    /// The session to read or to write; without it, reading covers all sessions and writing goes to $AH_SESSION or `main`.
    #[arg(long, value_name = "SESSION", global = true)]
    pub(crate) session: Option<String>,
    /// The provider that new snapshots use, instead of the best one.
    #[arg(long, value_name = "NAME", global = true)]
    pub(crate) provider: Option<String>,
    /// The mode of work: auto, in-place, worktree (branches are copies) or cow-overlay (branches share what they do not change).
    #[arg(long, value_name = "MODE", value_enum, global = true, hide_possible_values = true)]
    pub(crate) mode: Option<WorkMode>,
    /// A folder with provider libraries, looked at first; may be repeated.
    #[arg(long, value_name = "DIR", global = true)]
    pub(crate) provider_path: Vec<PathBuf>,
    /// Give up a provider that gives no sign of life for so many seconds, in a call or while it is loaded, instead of 120.
    #[arg(long, value_name = "SECONDS", global = true, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) hang_limit: Option<u16>,
    /// Print one JSON document, errors too.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Print no notes, warnings or progress.
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    /// When to colour: auto, always or never.
    #[arg(
        long,
        value_name = "WHEN",
        value_enum,
        default_value_t,
        global = true,
        hide_possible_values = true,
        hide_default_value = true
    )]
    pub(crate) color: Color,
}

/// The commands at the top.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// What agents do, and what can be done about it.
    #[command(
        subcommand,
        after_help = "\
Examples:
  ah agent hooks install claude          # snapshots by themselves, at each step of Claude Code's
  ah agent rewind @prompt                # go back to before its last prompt
  ah agent fs snapshot -m 'it works'     # capture this workspace
  ah agent record -- make test           # run a command and record its terminal"
    )]
    Agent(Agent),
    /// Moments, snapshots, branches and restores of this workspace, in order.
    Timeline(commands::timeline::TimelineArgs),
    /// Mark this point, with a snapshot; prints the moment's id.
    Moment(commands::moment::MomentArgs),
    /// Sessions of this workspace.
    #[command(
        subcommand,
        after_help = "\
Examples:
  ah session list
  ah session show main
  ah session branch @prompt --name try-b"
    )]
    Session(commands::session::Session),
    /// Read and change the configuration.
    #[command(
        subcommand,
        after_help = "\
Examples:
  ah config list
  ah config set prune.max-size 5GiB"
    )]
    Config(commands::config::Config),
    /// What agents call: reads one event of AGENT's on stdin.
    Hook(commands::hook::HookArgs),
    /// Takes the snapshots that moments wait for; started by hooks in the background.
    #[command(name = "__capture", hide = true)]
    Capture,
    /// Print what makes a shell mark its commands in recordings.
    #[command(name = "shell-init")]
    ShellInit(commands::shell_init::ShellInitArgs),
    /// Writes completions or man pages.
    #[command(name = "__generate", hide = true)]
    Generate(crate::generate::GenerateArgs),
    /// The child of `ah agent fs check` in which the library under test runs.
    #[command(name = "__check-child", hide = true)]
    CheckChild(commands::check::ChildArgs),
    /// The child of `ah agent record` that leads the pty's session.
    #[command(name = "__record-child", hide = true)]
    RecordChild(commands::record::ChildArgs),
}

/// `ah agent …`.
#[derive(Debug, Subcommand)]
pub(crate) enum Agent {
    /// Run a command and record its terminal.
    Record(commands::record::RecordArgs),
    /// Play a recording in the terminal.
    Replay(commands::replay::ReplayArgs),
    /// Recordings as files: in from elsewhere, out for other programs.
    #[command(
        subcommand,
        after_help = "\
Examples:
  ah agent cast export > demo.cast
  ah agent cast import demo.cast"
    )]
    Cast(commands::cast::Cast),
    /// Snapshots of a workspace's files: take, look at, go back, branch off.
    #[command(
        subcommand,
        after_help = "\
Examples:
  ah agent fs snapshot -m 'before the refactoring'   # capture this workspace
  ah agent fs diff @                                 # what changed since the latest snapshot
  ah agent fs restore @                              # put every file back, safely
  ah agent fs undo                                   # take the restore back
  ah agent fs branch @ --name try-b                  # a writable copy to work in"
    )]
    Fs(Fs),
    /// Let an agent call `ah` at each step.
    #[command(
        subcommand,
        after_help = "\
Examples:
  ah agent hooks install claude
  ah agent hooks status
  ah agent hooks uninstall claude"
    )]
    Hooks(commands::hooks::Hooks),
    /// Go back to before a prompt: files, conversation or both.
    Rewind(commands::rewind::RewindArgs),
}

/// `ah agent fs …`, in the order in which help shows them.
#[derive(Debug, Subcommand)]
pub(crate) enum Fs {
    /// Which provider serves this workspace, and each candidate's verdict.
    Status(commands::status::StatusArgs),
    /// Capture the workspace; prints the snapshot's id.
    Snapshot(commands::snapshot::SnapshotArgs),
    /// List the snapshots, newest first.
    Snapshots(commands::snapshots::SnapshotsArgs),
    /// Everything known about a snapshot or moment.
    Show(commands::show::ShowArgs),
    /// What differs between two snapshots, or a snapshot and the workspace.
    Diff(commands::diff::DiffArgs),
    /// Show a snapshot as a read-only directory; prints its path.
    Seek(commands::seek::SeekArgs),
    /// Give the directory of a `seek` back.
    Release(commands::release::ReleaseArgs),
    /// Print a file as it was.
    Cat(commands::cat::CatArgs),
    /// The distinct versions of a file over time.
    Versions(commands::versions::VersionsArgs),
    /// Make a writable copy that starts from a snapshot; prints its path.
    Branch(commands::branch::BranchArgs),
    /// List the branches.
    Branches(commands::branches::BranchesArgs),
    /// Run a command that sees a branch at the workspace's own path.
    Exec(commands::exec::ExecArgs),
    /// Put files back; saves the present state first and prints its id.
    Restore(commands::restore::RestoreArgs),
    /// Take the latest restore back.
    Undo(commands::undo::UndoArgs),
    /// Relabel or pin a snapshot.
    Edit(commands::edit::EditArgs),
    /// Take over the history of a workspace that was moved here.
    Adopt(commands::adopt::AdoptArgs),
    /// Make the workspace a unit that its filesystem can snapshot by itself.
    Convert(commands::convert::ConvertArgs),
    /// Remove snapshots and branches.
    Rm(commands::rm::RmArgs),
    /// Remove old snapshots by a policy.
    Prune(commands::prune::PruneArgs),
    /// Reclaim what crashes and removals left.
    Gc(commands::gc::GcArgs),
    /// List the provider libraries and what came of loading each.
    Providers(commands::providers::ProvidersArgs),
    /// Run the conformance suite on a provider library.
    Check(commands::check::CheckArgs),
}

/// Reads a REF. One may begin with a hyphen only as a time (`-5m`) or a sentence does, so that a mistyped option is not taken for one.
pub(crate) fn reference(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("a REF cannot be empty; `@` is the latest snapshot".to_owned());
    }
    match ah_core::reads_as_option(text) {
        true => Err("there is no such option, and no REF begins with a hyphen but a time (-5m)".to_owned()),
        false => Ok(text.to_owned()),
    }
}

/// Reads a path in a workspace. An empty one, which a script's unset variable makes, shall not mean all of it.
pub(crate) fn path() -> impl TypedValueParser<Value = OsString> {
    OsStringValueParser::new().try_map(|path| match path.is_empty() {
        true => Err("an empty path names nothing; `.` is the whole workspace"),
        false => Ok(path),
    })
}

/// The tree of commands. Those that take a REF say what one can be.
pub(crate) fn command() -> clap::Command {
    fn explain(command: clap::Command) -> clap::Command {
        let is_ref = |argument: &clap::Arg| {
            argument.get_value_names().unwrap_or_default().iter().any(|name| name.starts_with("REF"))
        };
        let takes_ref = command.get_name() == "ah" || command.get_arguments().any(is_ref);
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let command = match help.split_once("Examples:\n").filter(|_| takes_ref) {
            Some((notes, examples)) => command.after_help(format!("{notes}{REF_HELP}\n\nExamples:\n{examples}")),
            None => command,
        };
        command.mut_subcommands(explain)
    }
    explain(Cli::command())
}

/// Reads the command line. On the other way out the message has been printed already.
pub(crate) fn parse(arguments: &[OsString], env: &Env) -> Result<Cli, u8> {
    let color = if env.no_color { clap::ColorChoice::Never } else { clap::ColorChoice::Auto };
    let colour = env.stderr_terminal && !env.no_color;
    let read = |command: clap::Command| {
        let mut command = command.color(color);
        let matches = command.try_get_matches_from_mut(arguments);
        // Taking hundreds of small things apart would cost as much as reading the command line.
        std::mem::forget(command);
        Cli::from_arg_matches(&matches?)
    };
    // The explanations and all other commands are for help and for errors alone, and cost more than all the rest.
    let lean = lean(arguments).unwrap_or_else(Cli::command);
    let again = |error: clap::Error| match error.kind() {
        clap::error::ErrorKind::DisplayVersion => Err(error),
        _ => read(command()),
    };
    read(lean).or_else(again).map_err(|error| failure::usage(error, arguments, colour))
}

/// The tree of commands without those beside the one that `arguments` name, if they begin with it, or with options of every command and then with it. It
/// reads what the whole tree reads, and nothing else.
fn lean(arguments: &[OsString]) -> Option<clap::Command> {
    // For an agent's look before its hooks, whether we can be run at all.
    if arguments.len() == 2 && arguments[1] == "--version" {
        return Some(clap::Command::new("ah").version(env!("CARGO_PKG_VERSION")));
    }
    let ah = Globals::augment_args(clap::Command::new("ah"));
    let words = behind_options(arguments.get(1..)?, &ah)?;
    // It waits for each of its hooks.
    let only = match words.first()?.to_str()? {
        "hook" => Some(commands::hook::HookArgs::augment_args(clap::Command::new("hook"))),
        "__capture" => Some(clap::Command::new("__capture")),
        _ => None,
    };
    if let Some(only) = only {
        return Some(ah.subcommand(only));
    }
    let [agent, fs, name, ..] = words else { return None };
    if agent != "agent" || fs != "fs" {
        return None;
    }
    let new = clap::Command::new;
    let named = match name.to_str()? {
        // Those that programs call again and again are made alone; the others are picked out of all.
        "snapshot" => commands::snapshot::SnapshotArgs::augment_args(new("snapshot")),
        "snapshots" => commands::snapshots::SnapshotsArgs::augment_args(new("snapshots")),
        "seek" => commands::seek::SeekArgs::augment_args(new("seek")),
        "release" => commands::release::ReleaseArgs::augment_args(new("release")),
        "branch" => commands::branch::BranchArgs::augment_args(new("branch")),
        "rm" => commands::rm::RmArgs::augment_args(new("rm")),
        "gc" => commands::gc::GcArgs::augment_args(new("gc")),
        name => {
            let mut all = Fs::augment_subcommands(new("fs"));
            let named = std::mem::take(all.find_subcommand_mut(name)?);
            std::mem::forget(all);
            named
        }
    };
    let fs = clap::Command::new("fs").subcommand(named);
    Some(ah.subcommand(clap::Command::new("agent").subcommand(fs)))
}

/// The words behind the options of `command` that they begin with; none if another option is among these, or a value is missing.
fn behind_options<'a>(mut words: &'a [OsString], command: &clap::Command) -> Option<&'a [OsString]> {
    let takes_value = |is_it: &dyn Fn(&clap::Arg) -> bool| {
        command.get_arguments().find(|option| is_it(option)).map(|option| option.get_action().takes_values())
    };
    let letter_does = |letter: char| takes_value(&|option| option.get_short() == Some(letter));
    loop {
        let (first, behind) = words.split_first()?;
        let Some(option) = first.to_str()?.strip_prefix('-') else { return Some(words) };
        let value_is_next = if let Some(long) = option.strip_prefix('-') {
            let name = long.split('=').next()?;
            takes_value(&|option| option.get_long() == Some(name))? && name == long
        } else {
            // What stands behind a letter that takes a value, in the same word, is that.
            let rest = option.trim_start_matches(|letter| letter_does(letter) == Some(false));
            match rest.chars().next() {
                Some(letter) => letter_does(letter)? && rest.len() == letter.len_utf8(),
                None => false,
            }
        };
        words = if value_is_next { behind.get(1..)? } else { behind };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_of_commands_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn the_lean_tree_reads_what_the_whole_one_reads() {
        let lines: [&[&str]; 15] = [
            &["snapshot", "-m", "x", "--json", "-C", "/tmp"],
            &["snapshot", "--keep", "--instant", "--force", "--provider", "git"],
            &["snapshots", "--json"],
            &["seek", "@{2}", "--", "a", "b"],
            &["release", "--all", "-q"],
            &["branch", "@", "--name", "b", "--carry", "none"],
            &["rm", "--force", "a", "b"],
            &["gc", "--auto", "--quiet"],
            &["rm"],
            &["-q", "snapshot"],
            &["restore", "@", "--", "-odd"],
            &["restore", "--no-such-option"],
            &["prune"],
            &["no-such-command"],
            &["help", "snapshot"],
        ];
        let right: [&[&str]; 8] = [
            &[],
            &["-C", "/tmp"],
            &["-C/tmp", "--json"],
            &["-qC", "agent"],
            &["-C=hook", "--color", "never"],
            &["--session", "agent", "--hang-limit=5"],
            &["--provider-path", "fs", "--provider-path=p"],
            &["--mode", "worktree", "-q"],
        ];
        let wrong: [&[&str]; 15] = [
            &["-C"],
            &["-C", "-q"],
            &["-C/tmp", "-C", "/tmp"],
            &["-x"],
            &["-qx"],
            &["-"],
            &["--"],
            &["--json=yes"],
            &["--no-such", "option"],
            &["--color", "blue"],
            &["--session"],
            &["-h"],
            &["--help"],
            &["-V"],
            &["--version"],
        ];
        let fronts =
            right.into_iter().zip(std::iter::repeat(true)).chain(wrong.into_iter().zip(std::iter::repeat(false)));
        for ((front, is_right), line) in fronts.flat_map(|front| lines.iter().map(move |line| (front, line))) {
            let words = [&["ah"], front, &["agent", "fs"], line].concat();
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            let whole = Cli::command()
                .try_get_matches_from(&words)
                .map(|matches| format!("{:?}", Cli::from_arg_matches(&matches)));
            let whole_fails = whole.is_err();
            let lean = lean(&words).and_then(|lean| {
                let matches = lean.try_get_matches_from(&words).ok()?;
                Some(format!("{:?}", Cli::from_arg_matches(&matches)))
            });
            match lean {
                Some(lean) => assert_eq!(Some(lean), whole.ok(), "{words:?}"),
                None => assert!(whole.is_err() || line[0].starts_with('-'), "{words:?} is read by the whole tree only"),
            }
            assert!(is_right || whole_fails, "{words:?}");
        }
    }

    #[test]
    fn a_hook_is_read_without_the_whole_tree() {
        let lines = [
            &["hook", "claude"][..],
            &["hook", "-q", "codex"],
            &["-q", "hook", "claude"],
            &["__capture", "--quiet", "-C", "/tmp"],
        ];
        for line in lines {
            let words: Vec<OsString> = ["ah"].iter().chain(line).map(OsString::from).collect();
            let read = |command: clap::Command| {
                let matches = command.try_get_matches_from(&words).unwrap();
                format!("{:?}", Cli::from_arg_matches(&matches).unwrap())
            };
            assert_eq!(read(lean(&words).unwrap()), read(Cli::command()), "{line:?}");
        }
    }

    #[test]
    fn the_version_is_told_without_the_whole_tree() {
        let words = ["ah", "--version"].map(OsString::from);
        let told = |command: clap::Command| command.try_get_matches_from(&words).unwrap_err().to_string();
        assert_eq!(told(lean(&words).unwrap()), told(Cli::command()));
        assert!(lean(&["ah", "--version", "hook"].map(OsString::from)).is_none());
    }

    #[test]
    fn every_visible_command_has_an_example() {
        fn visit(command: &clap::Command) {
            for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
                let help = sub.get_after_help().map(ToString::to_string).unwrap_or_default();
                assert!(help.contains("Examples:\n  ah "), "{} has no example", sub.get_name());
                visit(sub);
            }
        }
        visit(&command());
    }

    /// The commands of an example as a shell takes them apart, without what is said of it.
    fn commands_of(example: &str) -> Vec<Vec<String>> {
        let (mut commands, mut word, mut is_quoted) = (vec![Vec::new()], None::<String>, false);
        for letter in example.chars().chain([' ']) {
            match letter {
                '\'' => {
                    is_quoted = !is_quoted;
                    word.get_or_insert_default();
                }
                '#' if !is_quoted && word.is_none() => break,
                ' ' | '"' | '|' | ';' | '<' | '>' | '(' | ')' if !is_quoted => {
                    commands.last_mut().unwrap().extend(word.take());
                    if !" \"".contains(letter) {
                        commands.push(Vec::new());
                    }
                }
                letter => word.get_or_insert_default().push(letter),
            }
        }
        commands.retain(|words| words.first().is_some_and(|first| first == "ah"));
        commands
    }

    #[test]
    fn every_example_can_be_typed_as_it_stands() {
        fn visit(command: &clap::Command) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            for example in help.split_once("Examples:\n").map_or("", |(_, examples)| examples).lines() {
                let commands = commands_of(example.trim_start());
                assert!(!commands.is_empty(), "{example:?} has no command of ours");
                for words in commands {
                    let read = super::command().try_get_matches_from(&words);
                    assert!(read.is_ok(), "{example:?}: {}", read.unwrap_err());
                }
                // What is said beside the last one's own command is none of its words.
                let typed = example.trim_start().split(" #").next().unwrap_or_default().trim_end();
                assert!(!typed.contains("  "), "{example:?} has prose that is no comment");
            }
            command.get_subcommands().filter(|sub| !sub.is_hide_set()).for_each(visit);
        }
        visit(&command());
    }
}
