//! The program: arguments, and an environment that nothing can be smuggled in by.

use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use ah_helper::Options;
use ah_plugin_api::{Error, ErrorKind, Result, text};

const USAGE: &str = "\
ahd - the privileged helper of ah: serves providers that need root to ordinary users

usage: ahd [--socket PATH] [--state DIR] [--config FILE] [--provider-dir DIR]...
       ahd --stores [--state DIR] [--provider-dir DIR]...
       ahd --forget-store UID/TOKEN[/PROVIDER] [--force] [--state DIR] [--provider-dir DIR]...

  --socket PATH       where to listen (default /run/ahd/ahd.sock), unless systemd hands over a socket
  --state DIR         root's own folder for what it keeps (default /var/lib/ahd)
  --config FILE       what it allows (default CONFIG)
  --provider-dir DIR  where provider libraries are, instead of the system's folders
  --stores            lists what is kept for whom, while no ahd is running (systemctl stop ahd.socket ahd.service)
  --forget-store UID/TOKEN[/PROVIDER]
                      removes all that is kept there, by all providers or by that one, branches too: snapshots
                      whose user has lost what ~/.ah knew of them; those on a disk that is not mounted, or in a
                      pool that is not imported, stay there, and are known to nobody then; a branch there keeps
                      all of it, but with --force
  --version, --help

CONFIG is JSON, read at the start; it need not be there, and a name in it that is not known is an error:
  \"allow-containing\"  users, and groups as \"@NAME\", who may have subvolumes and datasets of others captured
  \"limits\"            what one user may have, each a number: \"connections\" (16), \"calls-per-minute\" (6000),
                      \"stores\" (256), \"snapshots\" in one store (10000), \"views\" (64), \"clones\" (64), which
                      are branches
As in {\"allow-containing\": [\"me\", \"@staff\"], \"limits\": {\"connections\": 32}}
";

/// Where systemd puts the first socket.
const FIRST_FD: RawFd = 3;

fn main() {
    ah_host::leave(run())
}

/// The whole program; gives the exit code.
fn run() -> u8 {
    match start() {
        Ok(None) => 0,
        Ok(Some(never)) => match never {},
        Err(error) => {
            complain(&format!("ahd: {error}"));
            for cause in &error.causes {
                complain(&format!("  {cause}"));
            }
            if let Some(hint) = &error.hint {
                complain(&format!("hint: {hint}"));
            }
            match error.kind {
                ErrorKind::InvalidArgument => 2,
                _ => 1,
            }
        }
    }
}

/// A line on stderr. There are names in it that users chose, and it is for root's terminal.
fn complain(line: &str) {
    eprintln!("{}", text::line(line));
}

/// What is asked of it.
#[derive(Default)]
enum Wanted {
    #[default]
    Serve,
    Stores,
    Forget {
        uid: u32,
        token: String,
        provider: Option<String>,
    },
}

fn start() -> Result<Option<Infallible>> {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    if std::env::vars_os().next().is_some() {
        return Err(start_afresh(&arguments));
    }
    let (mut options, mut wanted, mut force) = (Options::default(), Wanted::default(), false);
    let mut rest = arguments.into_iter();
    while let Some(argument) = rest.next() {
        let mut value = || {
            let missing = || {
                let message = format!("{} needs a value", argument.display());
                Error::new(ErrorKind::InvalidArgument, message).with_hint("ahd --help")
            };
            rest.next().ok_or_else(missing)
        };
        match argument.to_str() {
            Some("--socket") => options.socket = absolute(&value()?)?,
            Some("--state") => options.state = absolute(&value()?)?,
            Some("--config") => options.config = absolute(&value()?)?,
            Some("--provider-dir") => options.provider_dirs.push(absolute(&value()?)?),
            Some("--listen-fd") => {
                let text = value()?;
                let number = text.to_str().and_then(|text| text.parse().ok()).filter(|number| *number >= FIRST_FD);
                let wrong = || Error::new(ErrorKind::InvalidArgument, "--listen-fd needs a number from 3 on");
                options.listen_fd = Some(number.ok_or_else(wrong)?);
            }
            Some("--stores") => wanted = Wanted::Stores,
            Some("--force") => force = true,
            Some("--forget-store") => {
                let text = value()?;
                let store = text.to_str().and_then(|text| text.split_once('/')).and_then(|(uid, rest)| {
                    let (token, provider) = match rest.split_once('/') {
                        Some((token, provider)) => (token, Some(provider.to_owned())),
                        None => (rest, None),
                    };
                    Some(Wanted::Forget { uid: uid.parse().ok()?, token: token.to_owned(), provider })
                });
                let message = "--forget-store needs UID/TOKEN or UID/TOKEN/PROVIDER";
                let wrong = || Error::new(ErrorKind::InvalidArgument, message);
                wanted = store.ok_or_else(|| wrong().with_hint("ahd --stores lists them"))?;
            }
            Some("--version") => {
                println!("ahd {}", env!("CARGO_PKG_VERSION"));
                return Ok(None);
            }
            Some("--help" | "-h") => {
                // As it was built: the system's configuration folder is compiled in.
                print!("{}", USAGE.replace("CONFIG", &text::line(&options.config.display().to_string())));
                return Ok(None);
            }
            _ => {
                let message = format!("unknown argument {}", argument.display());
                return Err(Error::new(ErrorKind::InvalidArgument, message).with_hint("ahd --help"));
            }
        }
    }
    if force && !matches!(wanted, Wanted::Forget { .. }) {
        let message = "--force goes with --forget-store alone";
        return Err(Error::new(ErrorKind::InvalidArgument, message).with_hint("ahd --help"));
    }
    match wanted {
        Wanted::Serve => return ah_helper::run(&options).map(Some),
        Wanted::Stores => {
            let all = ah_helper::stores(&options)?;
            all.iter().for_each(|held| println!("{}", text::line(&held.to_string())));
            if all.is_empty() {
                eprintln!("ahd: nothing is kept for anybody");
            }
        }
        Wanted::Forget { uid, token, provider } => {
            let forgotten = ah_helper::forget_store(&options, uid, &token, provider.as_deref(), force)?;
            println!("{} is forgotten, with {}", forgotten.store, forgotten.what());
            for place in &forgotten.given_up {
                complain(&format!("ahd: the branch at {} is forgotten; its files stay on their disk", place.display()));
            }
            for error in &forgotten.unseen {
                complain(&format!(
                    "ahd: what is kept elsewhere stays, and goes by the filesystem's own command alone: {error}"
                ));
            }
        }
    }
    Ok(None)
}

fn absolute(path: &OsStr) -> Result<PathBuf> {
    std::path::absolute(path)
        .map_err(|e| Error::from_io(format!("{} cannot be made an absolute path", path.display()), &e))
}

/// Starts this program again, without an environment: libraries that it loads may read theirs. What systemd says of sockets goes along
/// as an argument.
fn start_afresh(arguments: &[OsString]) -> Error {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
    let mut command = Command::new("/proc/self/exe");
    command.arg0("ahd").args(arguments).env_clear();
    if number("LISTEN_PID") == Some(std::process::id()) && number("LISTEN_FDS").is_some_and(|count| count > 0) {
        command.args(["--listen-fd", &FIRST_FD.to_string()]);
    }
    Error::from_io("cannot start again without an environment", &command.exec())
}
