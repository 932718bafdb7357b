//! `ah-vm`: runs a command in the guest, or cuts its power. Called by `scripts/vm-run` and `scripts/vm-test`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use ah_vm_tests::contract::{Contract, Whom};
use ah_vm_tests::cuts::{Cuts, guest_files};
use ah_vm_tests::kinds::Kind;
use ah_vm_tests::machine::{Accelerator, Backing, Machine, Setup, run};
use ah_vm_tests::payload::{Guest, Payload};
use ah_vm_tests::random::Random;
use ah_vm_tests::workload;
use anyhow::{Context as _, Result, bail};
use clap::{Args, Parser, Subcommand};

#[derive(Parser)]
#[command(about = "Our programs in a virtual machine with real ZFS and Btrfs")]
struct Cli {
    #[command(subcommand)]
    command: Action,
    /// The guest's series of ZFS: 2.1 or 2.3.
    #[arg(long, global = true, default_value = "2.1")]
    zfs: String,
}

#[derive(Subcommand)]
enum Action {
    /// Runs a command in the guest and ends with its exit status.
    Run(RunArgs),
    /// Cuts the guest's power again and again and looks whether everything is there that was reported durable.
    Cuts(CutsArgs),
    /// What runs in the guest between two cuts.
    #[command(hide = true)]
    Inside(InsideArgs),
    /// What snapshots show there.
    #[command(hide = true)]
    Views { kind: String, ids: Vec<String> },
    /// The conformance suite, in the guest.
    #[command(hide = true)]
    Contract(ContractArgs),
}

#[derive(Args)]
struct ContractArgs {
    /// The library.
    #[arg(long, required_unless_present = "helper")]
    library: Option<PathBuf>,
    /// The helper's provider, in place of a library.
    #[arg(long, conflicts_with = "library")]
    helper: Option<String>,
    #[arg(long)]
    scratch: PathBuf,
    #[arg(long)]
    strict: bool,
    /// Parts of cases' names.
    only: Vec<String>,
}

#[derive(Args)]
struct CutsArgs {
    /// How many.
    #[arg(long, default_value_t = 10)]
    cuts: u32,
    /// The seed of an earlier run.
    #[arg(long)]
    seed: Option<u64>,
    /// Which disks.
    #[arg(long, default_value = "git btrfs zfs")]
    places: String,
}

#[derive(Args)]
struct InsideArgs {
    #[arg(long)]
    books: PathBuf,
    #[arg(long)]
    seed: u64,
    #[arg(long)]
    log: PathBuf,
    #[arg(long)]
    look: Vec<String>,
    #[arg(long)]
    work: Vec<String>,
}

#[derive(Args)]
struct RunArgs {
    /// An empty disk, /dev/ah/NAME.
    #[arg(long = "disk", value_name = "NAME=MIB", default_values = ["a=2048", "b=2048"])]
    disks: Vec<String>,
    /// A program or library, for /ah/bin, beside ah and the providers of target/debug.
    #[arg(long = "bin", value_name = "FILE")]
    programs: Vec<PathBuf>,
    /// A file or folder, for /ah/files, where the command runs.
    #[arg(long = "file", value_name = "PATH")]
    files: Vec<PathBuf>,
    /// Modules of the kernel to load.
    #[arg(long, default_value = "zfs btrfs ext4 loop overlay fuse")]
    modules: String,
    /// How long the guest may say nothing, in seconds.
    #[arg(long, default_value_t = 180)]
    silence: u64,
    /// A shell on the terminal, in place of a command.
    #[arg(long)]
    shell: bool,
    /// What to run; without arguments, a line for bash.
    #[arg(trailing_var_arg = true)]
    command: Vec<String>,
}

fn main() -> ExitCode {
    match act(&Cli::parse()) {
        Ok(status) => ExitCode::from(u8::try_from(status).unwrap_or(1)),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The target folder is where this program lies: `target/debug/ah-vm`.
fn folders() -> Result<(PathBuf, PathBuf)> {
    let own = std::env::current_exe()?;
    let build = own.parent().context("this program is in no folder")?;
    Ok((build.to_owned(), build.parent().context("no target folder")?.to_owned()))
}

fn act(cli: &Cli) -> Result<i32> {
    if let Action::Inside(args) = &cli.command {
        let InsideArgs { books, seed, log, look, work } = args;
        workload::Inside { look, work, books, seed: *seed, log }.run()?;
        return Ok(0);
    }
    if let Action::Views { kind, ids } = &cli.command {
        let kind = Kind::find(kind).context("there is no such kind")?;
        println!("{}", serde_json::to_string(&workload::views(kind, ids)?)?);
        return Ok(0);
    }
    if let Action::Contract(args) = &cli.command {
        let library = args.library.clone().map(Whom::Library);
        let whom = library.or_else(|| args.helper.clone().map(Whom::Helper)).context("a library is missing")?;
        let (scratch, only, strict) = (args.scratch.clone(), args.only.clone(), args.strict);
        let kept = Contract { whom, scratch, only, strict }.run(&mut |line| println!("{line}"));
        return Ok(i32::from(!kept));
    }
    let (build, target) = folders()?;
    let guest = Guest::find(&target, &cli.zfs)?;
    let accelerator = Accelerator::find(&guest, &target)?;
    match &cli.command {
        Action::Run(args) => run_command(args, Setup::new(guest, accelerator), &build),
        Action::Cuts(args) => run_cuts(args, Setup::new(guest, accelerator), &build, &target),
        Action::Inside(_) | Action::Views { .. } | Action::Contract(_) => Ok(0),
    }
}

fn run_command(args: &RunArgs, mut setup: Setup, build: &Path) -> Result<i32> {
    setup.payload = Payload {
        programs: ours(build)?.into_iter().chain(args.programs.iter().cloned()).collect(),
        files: args.files.clone(),
        command: line(&args.command),
        modules: args.modules.split_whitespace().map(str::to_owned).collect(),
        shell: args.shell,
    };
    for disk in &args.disks {
        let (name, size) = disk.split_once('=').with_context(|| format!("{disk}: NAME=MIB is meant"))?;
        setup.disks.push((name.to_owned(), Backing::New(size.parse::<u64>()? << 20)));
    }
    if args.shell {
        Machine::start(&setup)?.wait()?;
        return Ok(0);
    }
    if args.command.is_empty() {
        bail!("a command is missing");
    }
    let outcome = run(&setup, Duration::from_secs(args.silence), &mut |bytes| {
        let _ = std::io::stdout().write_all(bytes).and_then(|()| std::io::stdout().flush());
    })?;
    eprintln!(
        "guest: {}, {}; up after {:.1} s, {:.1} s in all, exit {}",
        setup.guest.versions()?,
        setup.accelerator.name(),
        outcome.boot.as_secs_f64(),
        outcome.whole.as_secs_f64(),
        outcome.status
    );
    Ok(outcome.status)
}

fn run_cuts(args: &CutsArgs, mut setup: Setup, build: &Path, target: &Path) -> Result<i32> {
    let places: Vec<_> = args.places.split_whitespace().map(str::to_owned).collect();
    setup.payload.programs = ours(build)?;
    // What is not used costs time at each boot.
    // Besides, the system's disk has Btrfs.
    let modules = places.iter().map(|place| if place == "git" { "ext4" } else { place });
    setup.payload.modules = modules.filter(|module| *module != "btrfs").chain(["btrfs"]).map(str::to_owned).collect();
    let seed = args.seed.unwrap_or_else(Random::seed);
    println!("power cuts: {} of {}, --seed {seed}", args.cuts, places.join(", "));
    let cuts = Cuts {
        setup,
        places,
        count: args.cuts,
        seed,
        program: std::env::current_exe()?,
        script: guest_files().join("cuts.sh"),
        disks: target.join("vm"),
    };
    let tally = cuts.run(&mut |line| println!("  {line}"))?;
    println!(
        "power cuts: {} snapshots compared, {} operations reported, {} of them by ahd, {} cuts amid one, {} restores interrupted, {} of {} unflushed blocks lost, and nothing that was reported durable",
        tally.compared,
        tally.done,
        tally.by_helper,
        tally.amid,
        tally.interrupted,
        tally.loss.lost,
        tally.loss.unflushed
    );
    // So few may all come before anything was done.
    if args.cuts >= 5 && [tally.compared, tally.done, tally.loss.unflushed].contains(&0) {
        bail!("nothing was at stake in any of these cuts");
    }
    if args.cuts >= 10 && tally.by_helper == 0 && cuts.places.iter().any(|place| place != "git") {
        bail!("the helper had no part in any of these cuts");
    }
    Ok(0)
}

/// One argument is a line for the shell; several are a command and its arguments.
fn line(command: &[String]) -> String {
    match command {
        [line] => line.clone(),
        words => words.iter().map(|word| format!("'{}'", word.replace('\'', r"'\''"))).collect::<Vec<_>>().join(" "),
    }
}

/// `ah`, `ahd` and the providers that are built.
fn ours(build: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(build)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if matches!(name.as_str(), "ah" | "ahd") || (name.starts_with("libah_provider_") && name.ends_with(".so")) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
