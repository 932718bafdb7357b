//! Looks at everything that was reported before the power went.

use std::collections::BTreeMap;
use std::process::Command;

use ah_core::SeekOptions;
use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::lab::{Lab, list, text};
use super::tree;
use crate::record::{Book, Branch, Digest, Report};

/// Removed ones that are still asked for; older ones were looked at often enough.
const REMEMBERED: usize = 30;

pub(super) fn everything(lab: &mut Lab) -> Result<()> {
    // Views were mounts; their leases were not.
    lab.ah(&["release", "--all"])?;
    promised(lab, &listed(lab)?)?;
    collect(lab)?;
    // What had no line in the timeline yet is listed now.
    let listed = listed(lab)?;
    promised(lab, &listed)?;
    let mut shown = show(lab, &listed)?;
    let compared = shown.len();
    let branches = branches(lab)?;
    orphans(lab, shown.len(), branches.len())?;
    settle(lab, &mut shown)?;
    let mut removed = lab.book.removed.clone();
    removed.extend(lab.book.removing.keys().filter(|id| !shown.contains_key(*id)).cloned());
    let mut removed_branches = lab.book.removed_branches.clone();
    while removed.len() > REMEMBERED {
        removed.pop_first();
    }
    while removed_branches.len() > REMEMBERED {
        removed_branches.pop_first();
    }
    let status = Command::new("sync").arg("-f").arg(lab.workspace()).status()?;
    if !status.success() {
        bail!("sync: {status}");
    }
    let book = Book { snapshots: shown, branches, removed, removed_branches, ..Book::default() };
    lab.say(Report::Verified { book, compared })
}

/// Takes back a restore that the power cut interrupted, as it says itself; what that saved first counts from now on.
fn settle(lab: &Lab, shown: &mut BTreeMap<String, Digest>) -> Result<()> {
    let is_interrupted = || Ok::<_, anyhow::Error>(lab.ah(&["status"])?.pointer("/status/interrupted").is_some());
    if !is_interrupted()? {
        return Ok(());
    }
    // Not more than were begun at once.
    for _ in 0..3 {
        lab.ah(&["undo"]).context("a restore was interrupted")?;
        if !is_interrupted()? {
            break;
        }
    }
    for id in listed(lab)?.into_keys().filter(|id| !shown.contains_key(id)).collect::<Vec<_>>() {
        let answer = lab.ah(&["seek", &id])?;
        let path = text(&answer, "/lease/path")?;
        let digest = tree::digest(path.as_ref())?;
        lab.ah(&["release", path])?;
        shown.insert(id, digest);
    }
    Ok(())
}

/// The snapshots that are listed, by id.
fn listed(lab: &Lab) -> Result<BTreeMap<String, Value>> {
    let answer = lab.ah(&["snapshots"])?;
    let list = list(&answer, "/snapshots")?;
    list.iter().map(|snapshot| Ok((text(snapshot, "/id")?.to_owned(), snapshot.clone()))).collect()
}

/// What was reported durable is listed, what was reported removed is not.
fn promised(lab: &Lab, listed: &BTreeMap<String, Value>) -> Result<()> {
    for id in lab.book.snapshots.keys() {
        if !listed.contains_key(id) {
            bail!("snapshot {id} was reported durable and is not listed");
        }
    }
    for id in &lab.book.removed {
        if listed.contains_key(id) {
            bail!("snapshot {id} was reported removed and is listed");
        }
    }
    Ok(())
}

/// What the listed snapshots show, each compared with what it showed. By one process but for one: emulated, a program's start takes longer
/// than all that it then does.
fn show(lab: &Lab, listed: &BTreeMap<String, Value>) -> Result<BTreeMap<String, Digest>> {
    let mut shown = BTreeMap::new();
    let Some((one, snapshot)) = listed.last_key_value() else { return Ok(shown) };
    let answer = lab.ah(&["seek", one])?;
    compare(lab, one, snapshot, &tree::digest(text(&answer, "/lease/path")?.as_ref())?)?;
    let workspace = lab.open()?;
    for (id, snapshot) in listed {
        let lease = workspace.seek(id, &SeekOptions::default());
        let lease = lease.with_context(|| format!("snapshot {id} is listed: {snapshot}"))?;
        let digest = tree::digest(&lease.path).with_context(|| format!("the view of {id}"))?;
        compare(lab, id, snapshot, &digest)?;
        shown.insert(id.clone(), digest);
    }
    lab.ah(&["release", "--all"])?;
    Ok(shown)
}

fn compare(lab: &Lab, id: &str, snapshot: &Value, digest: &Digest) -> Result<()> {
    let book = &lab.book;
    let label = snapshot.get("label").and_then(Value::as_str);
    let known = book.snapshots.get(id).or_else(|| book.removing.get(id)).or_else(|| book.maybe.get(label?));
    match known {
        Some(known) if known == digest => Ok(()),
        Some(known) if known.plain == digest.plain => bail!("snapshot {id} shows other times than it did"),
        Some(_) => bail!("snapshot {id} shows something else than it did"),
        None if label.is_none() && book.maybe_safety.contains(digest) => Ok(()),
        None => bail!("snapshot {id} is listed, which nobody took like this: {snapshot}"),
    }
}

/// The branches that there are.
fn branches(lab: &mut Lab) -> Result<BTreeMap<String, Branch>> {
    let answer = lab.ah(&["branches"])?;
    let mut found = BTreeMap::new();
    for branch in list(&answer, "/branches")? {
        let (name, path) = (text(branch, "/name")?.to_owned(), text(branch, "/path")?);
        if lab.book.removed_branches.contains(&name) {
            bail!("branch {name} was reported removed and is listed");
        }
        let known = lab.book.branches.get(&name).cloned();
        let maybe = lab.book.maybe_branches.get(&name).cloned();
        let Some(known) = known.or(maybe.map(|digest| Branch { digest, synced: false })) else {
            bail!("branch {name} is listed, which nobody made: {branch}");
        };
        let whole = tree::digest(path.as_ref()).is_ok_and(|digest| digest.plain == known.digest.plain);
        if !whole && known.synced {
            bail!("branch {name} was on disk and has changed: {branch}");
        }
        if whole {
            found.insert(name, Branch { synced: true, ..known });
        } else {
            // What SEMANTICS allows: a branch's files are not synced before the command returns.
            lab.say(Report::Note { text: format!("branch {name} was not on disk yet") })?;
            lab.ah(&["rm", "--force", &name])?;
        }
    }
    for (name, branch) in &lab.book.branches {
        if branch.synced && !found.contains_key(name) {
            bail!("branch {name} was on disk and is not listed");
        }
    }
    Ok(found)
}

/// `gc` brings order, and a second one finds nothing to do.
fn collect(lab: &Lab) -> Result<()> {
    for round in ["first", "second"] {
        let answer = lab.ah(&["gc"])?;
        if !list(&answer, "/gc/failures")?.is_empty() {
            bail!("the {round} gc failed: {answer}");
        }
        if round == "second" && !list(&answer, "/gc/actions")?.is_empty() {
            bail!("the first gc left work to the second: {answer}");
        }
    }
    Ok(())
}

/// The filesystem, where it knows of snapshots, has no more of them than are listed.
fn orphans(lab: &Lab, snapshots: usize, branches: usize) -> Result<()> {
    let lines = |program: &str, arguments: &[&str]| -> Result<String> {
        let output = Command::new(program).args(arguments).output().context(program.to_owned())?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let folder = lab.folder.display().to_string();
    let (found, wanted) = match lab.name.as_str() {
        // The workspace is one, and where snapshots are kept is another.
        "btrfs" => (lines("btrfs", &["subvolume", "list", &folder])?, 1 + snapshots + branches),
        // The pool, home and workspace are three.
        "zfs" => (lines("zfs", &["list", "-H", "-o", "name", "-t", "filesystem,snapshot"])?, 3 + snapshots + branches),
        _ => return Ok(()),
    };
    // A removed snapshot that a branch grew from has given its name back, and goes with the branch: ZFS has no clone without it.
    let origins = match lab.name.as_str() {
        "zfs" => lines("zfs", &["list", "-H", "-o", "origin", "-t", "filesystem"])?,
        _ => String::new(),
    };
    let pinned = |line: &str| {
        let unnamed = line.split_once("@ah-").is_some_and(|(_, rest)| rest.contains('.'));
        unnamed && origins.lines().any(|origin| origin == line)
    };
    if found.lines().filter(|line| !line.ends_with("/depot") && !pinned(line)).count() != wanted {
        bail!("{snapshots} snapshots and {branches} branches are listed, and the filesystem has these:\n{found}");
    }
    Ok(())
}
