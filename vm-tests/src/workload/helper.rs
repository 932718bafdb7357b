//! `ahd` in the guest, as the system would run it, and what it keeps for whom.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::lab::{Lab, printed};
use crate::kinds::KINDS;

const LOG: &str = "/tmp/ahd.log";
/// Where it writes down what it has made for whom.
const RECORDS: &str = "/var/lib/ahd/records";
/// How long it may take to serve.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) struct Helper(Child);

fn command() -> Result<Command> {
    let mut command = Command::new("ahd");
    command.arg("--provider-dir").arg(fs::canonicalize("/ah/providers")?);
    Ok(command)
}

impl Helper {
    /// Starts it; it serves when this returns.
    pub(super) fn start() -> Result<Self> {
        fs::create_dir_all("/run/ahd")?;
        let log = File::create(LOG)?;
        // As `cuts.sh` has written it, wherever the programs were built for.
        let config = ["--config", "/etc/ah/ahd.conf"];
        let mut child = command()?.args(config).stdout(log.try_clone()?).stderr(log).spawn().context("ahd")?;
        let started = Instant::now();
        while UnixStream::connect(ah_host::helper::SOCKET).is_err() {
            if let Some(status) = child.try_wait()? {
                bail!("ahd ended: {status}: {}", fs::read_to_string(LOG)?);
            }
            if started.elapsed() > PATIENCE {
                bail!("ahd does not serve: {}", fs::read_to_string(LOG)?);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(Self(child))
    }

    /// Ends it, as it may end at any time, and compares what it keeps with what these workspaces' users know of.
    pub(super) fn look(mut self, labs: &[&Lab]) -> Result<()> {
        self.0.kill()?;
        self.0.wait()?;
        let said = printed(command()?.arg("--stores"))?;
        let mut kept = BTreeMap::new();
        for line in said.lines() {
            let words: Vec<_> = line.split_whitespace().collect();
            // "1 snapshot", "2 snapshots".
            let number = |before: &str| {
                let at = words.iter().position(|word| word.trim_end_matches(',').trim_end_matches('s') == before)?;
                words.get(at.checked_sub(1)?)?.parse::<usize>().ok()
            };
            let store = words.first().and_then(|store| store.split_once('/'));
            let (Some((_, token)), Some(snapshots)) = (store, number("snapshot")) else {
                bail!("ahd --stores says: {said}");
            };
            kept.insert(token.to_owned(), (snapshots, number("view").unwrap_or(0)));
        }
        let mut known = Vec::new();
        for kind in KINDS.iter().filter(|kind| kind.by_helper()) {
            let mut tokens = Vec::new();
            find_tokens(&kind.folder().join("home/ah/workspaces"), &mut tokens)?;
            if let Some(lab) = labs.iter().find(|lab| lab.kind.name == kind.name) {
                let stores = tokens.iter().filter_map(|token| kept.get(token));
                let found = stores.fold((0, 0), |sum, (snapshots, shown)| (sum.0 + snapshots, sum.1 + shown));
                let wanted = (lab.book.snapshots.len(), lab.book.branches.len());
                if found != wanted {
                    let (name, state) = (kind.name, of_helper()?);
                    bail!("{name}: {wanted:?} snapshots and branches are listed, and the helper keeps: {said}{state}");
                }
            }
            known.append(&mut tokens);
        }
        if let Some(lost) = kept.keys().find(|token| !known.contains(token)) {
            bail!("the helper keeps {lost}, of which no user knows: {said}");
        }
        Ok(())
    }
}

/// What the helper has said, and what it has written down of views and clones.
fn of_helper() -> Result<String> {
    let mut text = fs::read_to_string(LOG)?;
    for entry in fs::read_dir(RECORDS)? {
        let path = entry?.path();
        text.push_str(&format!("{}: {}\n", path.display(), String::from_utf8_lossy(&fs::read(&path)?)));
    }
    Ok(text)
}

/// The tokens by which a user's own files name stores of the helper's.
fn find_tokens(folder: &Path, into: &mut Vec<String>) -> Result<()> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(()) };
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            find_tokens(&entry.path(), into)?;
        } else if entry.file_name() == ah_host::helper::TOKEN_FILE {
            into.push(fs::read_to_string(entry.path())?);
        }
    }
    Ok(())
}
