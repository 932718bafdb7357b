//! Completions and man pages, written by `scripts/install` through the hidden command `ah __generate`.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use ah_agents::Agent;
use ah_core::ConfigKey;
use ah_plugin_api::Error;
use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};
use clap_complete::Shell;

use crate::args;
use crate::failure::{Exit, Outcome};

/// What to write, and where.
#[derive(Debug, Args)]
pub(crate) struct GenerateArgs {
    /// What to write.
    what: What,
    /// The folder to write to; made if missing.
    directory: PathBuf,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum What {
    /// `ah.bash`, `_ah`, `ah.fish`.
    Completions,
    /// `ah.1`, `ah-agent-fs-snapshot.1`, …
    Man,
}

/// Writes the files.
pub(crate) fn run(args: &GenerateArgs) -> Outcome {
    let directory = &args.directory;
    let failed = |error: std::io::Error| Error::from_io(format!("cannot write to {}", directory.display()), &error);
    fs::create_dir_all(directory).map_err(failed)?;
    match args.what {
        What::Completions => completions(directory),
        What::Man => man(directory),
    }
    .map_err(failed)?;
    Ok(Exit::Done)
}

fn completions(directory: &Path) -> std::io::Result<()> {
    let mut command = without_hidden(&args::command());
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut command, "ah", directory)?;
    }
    let path = directory.join("ah.fish");
    let mut fish = without_siblings(&command, fs::read_to_string(&path)?).into_bytes();
    // The fish generator stops at the second level of commands; the options of `ah agent fs …` are on the third.
    deep_fish(&command, &mut Vec::new(), &mut fish)?;
    fs::write(&path, fish)
}

/// The fish generator offers the commands of the third level behind one of them, too: `show` after `ah agent fs rm`.
fn without_siblings(command: &clap::Command, mut script: String) -> String {
    for first in command.get_subcommands() {
        for second in first.get_subcommands().filter(|second| second.has_subcommands()) {
            let seen =
                format!("using_subcommand {}; and __fish_seen_subcommand_from {}", first.get_name(), second.get_name());
            let third: Vec<&str> = second.get_subcommands().map(clap::Command::get_name).collect();
            let unseen = format!("{seen}; and not __fish_seen_subcommand_from {}", third.join(" "));
            script = script.replace(&format!("{seen}\" -f -a \""), &format!("{unseen}\" -f -a \""));
        }
    }
    script
}

/// fish's lines for the options of commands below the second level, and for arguments of which the values are known.
fn deep_fish<'a>(command: &'a clap::Command, above: &mut Vec<&'a str>, out: &mut impl Write) -> std::io::Result<()> {
    let seen: Vec<String> = above.iter().map(|word| format!("__fish_seen_subcommand_from {word}")).collect();
    let seen = seen.join("; and ");
    for argument in command.get_positionals() {
        let values = argument.get_possible_values();
        let names: Vec<&str> = values.iter().map(clap::builder::PossibleValue::get_name).collect();
        if !names.is_empty() {
            let unseen = format!("not __fish_seen_subcommand_from {}", names.join(" "));
            writeln!(out, "complete -c ah -n \"{seen}; and {unseen}\" -f -a \"{}\"", names.join(" "))?;
        }
    }
    let own = |argument: &&clap::Arg| above.len() > 2 && !argument.is_global_set() && !argument.is_hide_set();
    for argument in command.get_arguments().filter(own) {
        let Some(long) = argument.get_long() else { continue };
        write!(out, "complete -c ah -n \"{seen}\" -l {long}")?;
        if let Some(short) = argument.get_short() {
            write!(out, " -s {short}")?;
        }
        if argument.get_action().takes_values() {
            write!(out, " -r")?;
        }
        let help = argument.get_help().map(|help| help.to_string().replace('\'', "\\'")).unwrap_or_default();
        writeln!(out, " -d '{help}'")?;
    }
    for sub in command.get_subcommands() {
        above.push(sub.get_name());
        deep_fish(sub, above, out)?;
        above.pop();
    }
    Ok(())
}

fn man(directory: &Path) -> std::io::Result<()> {
    // There is no page for the command `help`, so none is named.
    fn helpless(command: clap::Command) -> clap::Command {
        command.disable_help_subcommand(true).mut_subcommands(helpless)
    }
    let mut command = helpless(args::command());
    command.build();
    let notes = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let codes = notes.lines().find_map(|line| line.strip_prefix("Exit codes: ")).unwrap_or_default();
    pages(&command, "ah", codes, directory)
}

/// One page for each command that is shown, named after its whole path, as Git does.
fn pages(command: &clap::Command, name: &str, codes: &str, directory: &Path) -> std::io::Result<()> {
    let page = command.clone().name(name.to_owned()).bin_name(name.replace('-', " "));
    let mut text = Vec::new();
    clap_mangen::Man::new(page).title(name.to_uppercase()).manual("ah").render(&mut text)?;
    let text = with_synopsis(command, &with_sections(&String::from_utf8_lossy(&text)));
    let text = match command.has_subcommands() {
        true => text,
        false => format!("{text}.fi\n.SH \"EXIT STATUS\"\n{codes}\n"),
    };
    fs::write(directory.join(format!("{name}.1")), text)?;
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        pages(sub, &format!("{name}-{}", sub.get_name()), codes, directory)?;
    }
    Ok(())
}

/// The generator leaves out the values of options, and the `--` before what only comes after it.
fn with_synopsis(command: &clap::Command, page: &str) -> String {
    // What has no long name has a blank behind it.
    let mut page = page.replacen(r"[\fB\-C \fR]", r"[\fB\-C\fR]", 1);
    let takes_value = |option: &&clap::Arg| !option.is_positional() && option.get_action().takes_values();
    for option in command.get_arguments().filter(takes_value) {
        let short = || option.get_short().map(|letter| format!("-{letter}"));
        let name = option.get_long().map(|long| format!("--{long}")).or_else(short);
        let Some((name, [value, ..])) = name.zip(option.get_value_names()) else { continue };
        let bold = format!(r"\fB{}\fR", name.replace('-', r"\-"));
        page = page.replacen(&format!("{bold}]"), &format!(r"{bold} \fI{value}\fR]"), 1);
    }
    let last = command.get_positionals().find(|argument| argument.is_last_set());
    let Some(name) = last.and_then(|last| last.get_value_names()?.first()) else { return page };
    let word = format!(r"\-\- \fI{name}\fR...");
    page.replacen(&format!(r"[\fI{name}\fR]"), &format!("[{word}]"), 1).replacen(&format!(r"<\fI{name}\fR>"), &word, 1)
}

/// What stands after a command's options is one section called "extra" to the generator; here it is notes, then what a REF
/// can be, then examples. The lines of these two stay as they are.
fn with_sections(page: &str) -> String {
    let reference = "REF, in order of precedence:\n";
    page.replace(&format!(".SH EXTRA\n{reference}"), ".SH REF\nIn order of precedence:\n.nf\n")
        .replace(reference, ".fi\n.SH REF\nIn order of precedence:\n.nf\n")
        .replace(".SH EXTRA\nExamples:\n", ".SH EXAMPLES\n.nf\n")
        .replace(".SH EXTRA\n", ".SH NOTES\n")
        .replace("\nExamples:\n", "\n.fi\n.SH EXAMPLES\n.nf\n")
        .replace("\n.SH VERSION\n", "\n.fi\n.SH VERSION\n")
}

/// The tree without its hidden commands, which completion scripts would offer otherwise, and with what they can offer for an argument.
fn without_hidden(command: &clap::Command) -> clap::Command {
    let mut bare = clap::Command::new(command.get_name().to_owned()).disable_help_subcommand(true);
    if let Some(about) = command.get_about() {
        bare = bare.about(about.clone());
    }
    if command.get_version().is_some() {
        bare = bare.version(env!("CARGO_PKG_VERSION"));
    }
    bare.args(command.get_arguments().filter(|argument| !argument.is_hide_set()).cloned().map(with_values))
        .subcommands(command.get_subcommands().filter(|sub| !sub.is_hide_set()).map(without_hidden))
}

/// An argument that is an agent or a key of the configuration, with the names that there are.
fn with_values(argument: clap::Arg) -> clap::Arg {
    let values = match argument.get_value_names() {
        Some([name]) if name == "AGENT" => Agent::ALL.map(Agent::name).to_vec(),
        Some([name]) if name == "KEY" => ConfigKey::all().iter().map(|key| key.name).collect(),
        _ => return argument,
    };
    argument.value_parser(PossibleValuesParser::new(values))
}
