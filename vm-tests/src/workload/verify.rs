//! Looks at everything that was reported before the power went.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use super::lab::{Lab, list, printed, text};
use super::tree::{self, Tree};
use super::{interrupted, repository};
use crate::kinds::Git;
use crate::record::{Book, Branch, Digest, Present, Report};

/// Removed ones that are still asked for; older ones were looked at often enough.
const REMEMBERED: usize = 30;

pub(super) fn everything(lab: &mut Lab) -> Result<()> {
    lab.book.repository = repository::look(lab)?;
    // As the cut left it.
    let found = tree::of(&lab.workspace())?;
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
    let (interrupted, present) = interrupted::settle(lab, found, &mut shown)?;
    if lab.kind.by_helper() {
        // A view that could not be given back just then, since a process that was being started had it open still, is for the next one.
        collect(lab)?;
    }
    let mut removed = lab.book.removed.clone();
    removed.extend(lab.book.removing.keys().filter(|id| !shown.contains_key(*id)).cloned());
    let mut removed_branches = lab.book.removed_branches.clone();
    while removed.len() > REMEMBERED {
        removed.pop_first();
    }
    while removed_branches.len() > REMEMBERED {
        removed_branches.pop_first();
    }
    repository::untouched(lab)?;
    let (changed, are_times) = present.differences(&tree::of(&lab.workspace())?);
    let present = present.digest();
    if !changed.is_empty() {
        // ZFS gives directories the time at which it does again what its log says.
        ensure!(are_times && lab.kind.disk == "zfs", "the workspace was changed by something else: {changed:?}");
        lab.say(Report::Note { text: format!("directories show other times than before: {changed:?}") })?;
    }
    printed(Command::new("sync").arg("-f").arg(lab.workspace()).arg(&lab.folder)).context("sync")?;
    let (repository, mut heads) = (lab.book.repository.clone(), lab.book.heads.clone());
    heads.retain(|id, _| shown.contains_key(id));
    let snapshots = shown.into_iter().map(|(id, tree)| (id, tree.digest())).collect();
    let workspace = Some(Present { before: present.clone(), after: present, done: true });
    let book = Book { snapshots, branches, removed, removed_branches, repository, heads, workspace, ..Book::default() };
    lab.say(Report::Verified { book: book.into(), compared, interrupted })
}

/// The snapshots that are listed, by id.
pub(super) fn listed(lab: &Lab) -> Result<BTreeMap<String, Value>> {
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

/// What the listed snapshots show, each compared with what it showed.
fn show(lab: &Lab, listed: &BTreeMap<String, Value>) -> Result<BTreeMap<String, Tree>> {
    let Some((one, snapshot)) = listed.last_key_value() else { return Ok(BTreeMap::new()) };
    let answer = lab.ah(&["seek", one])?;
    compare(lab, one, snapshot, &tree::digest(text(&answer, "/lease/path")?.as_ref())?)?;
    let shown = lab.views(listed.keys())?;
    for (id, snapshot) in listed {
        let tree = shown.get(id).with_context(|| format!("snapshot {id} was not shown"))?;
        compare(lab, id, snapshot, &tree.digest())?;
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
        Some(known) if known.plain == digest.plain => {
            bail!("snapshot {id} shows other times or hard links than it did")
        }
        Some(_) => bail!("snapshot {id} shows something else than it did"),
        None if label.is_none() && book.maybe_safety.contains(digest) => Ok(()),
        None => bail!("snapshot {id} is listed, which nobody took like this: {snapshot}"),
    }
}

/// The branches that there are.
fn branches(lab: &mut Lab) -> Result<BTreeMap<String, Branch>> {
    let answer = lab.ah(&["branches"])?;
    let (mut found, mut listed) = (BTreeMap::new(), BTreeSet::new());
    for branch in list(&answer, "/branches")? {
        let (name, path) = (text(branch, "/name")?.to_owned(), text(branch, "/path")?);
        listed.insert(name.clone());
        if lab.book.removed_branches.contains(&name) {
            bail!("branch {name} was reported removed and is listed");
        }
        let known = lab.book.branches.get(&name).cloned();
        let Some(known) = known.or_else(|| lab.book.maybe_branches.get(&name).cloned()) else {
            bail!("branch {name} is listed, which nobody made: {branch}");
        };
        // Also one that is not whole.
        repository::closed(path.as_ref()).with_context(|| format!("the repository of branch {name}"))?;
        let whole = whole(lab, path.as_ref(), &known);
        if let (Err(why), true) = (&whole, known.synced) {
            bail!("branch {name} was on disk and has changed: {why:#}: {branch}");
        }
        let whole = whole.is_ok();
        if whole {
            found.insert(name, Branch { synced: true, ..known });
        } else {
            // What SEMANTICS allows: a branch's files are not synced before the command returns.
            lab.say(Report::Note { text: format!("branch {name} was not on disk yet") })?;
            lab.ah(&["rm", "--force", &name])?;
        }
    }
    for name in lab.book.branches.keys() {
        if !listed.contains(name) {
            bail!("branch {name} was reported as made and is not listed");
        }
    }
    Ok(found)
}

/// Whether a branch is what it was.
fn whole(lab: &Lab, path: &Path, known: &Branch) -> Result<()> {
    ensure!(tree::digest(path)?.linked == known.digest.linked, "its files are others");
    if lab.kind.git != Git::No {
        let head = repository::check_branch(lab, path)?;
        ensure!(known.head.as_ref().is_none_or(|known| *known == head), "its HEAD is {head}");
    }
    Ok(())
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
    let (name, unit) = (lab.kind.name, usize::from(lab.kind.unit));
    let dataset = format!("tank/{name}");
    let (found, wanted) = match lab.kind.disk {
        // Of all on the filesystem, what is in this one's own; and where snapshots are kept is another.
        "btrfs" => {
            let all = printed(Command::new("btrfs").args(["subvolume", "list", "/mnt/top"]))?;
            let within = |line: &&str| line.contains(&format!(" path {name}/"));
            (all.lines().filter(within).map(|line| format!("{line}\n")).collect(), unit + snapshots + branches)
        }
        "zfs" => {
            let list = ["list", "-H", "-r", "-o", "name", "-t", "filesystem,snapshot", &dataset];
            (printed(Command::new("zfs").args(list))?, 1 + unit + snapshots + branches)
        }
        _ => return Ok(()),
    };
    // A removed snapshot that a branch grew from has given its name back, and goes with the branch: ZFS has no clone without it.
    let origins = match lab.kind.disk {
        "zfs" => printed(Command::new("zfs").args(["list", "-H", "-r", "-o", "origin", "-t", "filesystem", &dataset]))?,
        _ => String::new(),
    };
    let pinned = |line: &str| {
        let unnamed = line.split_once("@ah-").is_some_and(|(_, rest)| rest.contains('.'));
        unnamed && origins.lines().any(|origin| origin == line)
    };
    let place = |line: &str| line.ends_with("/depot") || line.ends_with("/.ah-snapshots");
    if found.lines().filter(|line| !place(line) && !pinned(line)).count() != wanted {
        bail!("{snapshots} snapshots and {branches} branches are listed, and the filesystem has these:\n{found}");
    }
    Ok(())
}
