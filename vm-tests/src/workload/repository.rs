//! Git repositories: the user's, which nobody else may change, and those of branches, out of which nothing may lead. Looked at with git.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};

use super::lab::{Lab, printed};
use super::tree;
use crate::kinds::Git;
use crate::record::{Digest, Report, Repository};

/// The user commits all that they have changed. What git writes is made durable step by step: it must not be git that loses something.
pub(super) fn commit(lab: &mut Lab) -> Result<()> {
    if lab.kind.git == Git::No {
        return Ok(());
    }
    lab.say(Report::Commit)?;
    lab.change()?;
    let script = "git add -A && sync -f . \"$0\" && git commit -q -m more && sync -f . \"$0\" && git rev-parse HEAD";
    let head = printed(lab.command("sh").args(["-c", script]).arg(&lab.folder)).context("git commit")?;
    let repository = Repository { digest: measure(lab)?, head: head.trim().to_owned() };
    lab.say(Report::CommitDone { repository })
}

/// All that is the user's alone: the repository, and what git ignores.
fn measure(lab: &Lab) -> Result<Digest> {
    let theirs = ["main", "work/.git", "work/out"].map(PathBuf::from);
    Ok(tree::of_paths(&lab.folder, theirs.into())?.digest())
}

/// Says so if something of it was changed.
pub(super) fn untouched(lab: &Lab) -> Result<()> {
    if let Some(repository) = &lab.book.repository {
        ensure!(measure(lab)? == repository.digest, "the user's repository, or what it ignores, was changed");
    }
    Ok(())
}

/// Looks at the user's repository after a reboot, before anything else; what was being committed is as git left it.
pub(super) fn look(lab: &Lab) -> Result<Option<Repository>> {
    if lab.kind.git == Git::No {
        return Ok(None);
    }
    if lab.book.repository.is_none() {
        // As its user is told to do.
        let script = "find . ../main -name '*.lock' -path '*.git/*' -exec rm {} + ; git rev-parse HEAD >/dev/null";
        printed(lab.command("sh").args(["-c", script]))?;
    }
    let found = measure(lab)?;
    let head = check(lab, &lab.workspace()).context("the user's repository")?.1;
    if let Some(known) = &lab.book.repository {
        let was = &known.digest;
        ensure!(found.plain == was.plain, "the user's repository, or what it ignores, was changed");
        // What ZFS does again from its log after a cut gives the directories that it is in the time at which that is done.
        ensure!(found == *was || lab.kind.disk == "zfs", "the user's repository has other times");
        ensure!(head == known.head, "the user's repository has another HEAD");
        ensure!(measure(lab)? == found, "git changed it");
    }
    Ok(Some(Repository { digest: measure(lab)?, head }))
}

/// Has git look at all of a repository; gives where git says that it is, and the commit at HEAD.
fn check(lab: &Lab, at: &Path) -> Result<(PathBuf, String)> {
    let script = "git fsck --no-progress --no-dangling --no-reflogs >&2 && git rev-parse --absolute-git-dir HEAD";
    let text = printed(lab.command("sh").args(["-c", script]).current_dir(at))?;
    let (folder, head) = text.trim().split_once('\n').with_context(|| format!("git says {text}"))?;
    Ok((folder.into(), head.to_owned()))
}

/// Looks at a branch's repository, which must be whole; gives the commit at HEAD.
pub(super) fn check_branch(lab: &Lab, branch: &Path) -> Result<String> {
    let (folder, head) = check(lab, branch)?;
    ensure!(folder == branch.join(".git"), "git works in {}", folder.display());
    Ok(head)
}

/// Nothing in a branch's `.git` leads out of the branch, whole or not.
pub(super) fn closed(branch: &Path) -> Result<()> {
    let top = branch.join(".git");
    let mut paths = vec![top.clone()];
    while let Some(path) = paths.pop() {
        let Ok(meta) = fs::symlink_metadata(&path) else { continue };
        if meta.is_dir() {
            paths.extend(fs::read_dir(&path)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?);
            continue;
        }
        let leads = path == top || meta.is_symlink() || path.ends_with("commondir") || path.ends_with("alternates");
        if leads {
            bail!("{} leads out of it, or could", path.display());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leads_out_of_a_branch_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let branch = folder.path().join("branch");
        fs::create_dir_all(branch.join(".git/objects/info")).unwrap();
        fs::write(branch.join(".git/HEAD"), "ref: refs/heads/main\n").unwrap();
        closed(&branch).unwrap();
        let lead = |path: &str, make: &dyn Fn(&Path)| {
            make(&branch.join(path));
            assert!(closed(&branch).is_err(), "{path}");
            fs::remove_file(branch.join(path)).unwrap();
        };
        lead(".git/objects/info/alternates", &|path| fs::write(path, "/elsewhere\n").unwrap());
        lead(".git/commondir", &|path| fs::write(path, "../..\n").unwrap());
        lead(".git/refs", &|path| std::os::unix::fs::symlink("/elsewhere", path).unwrap());
        fs::remove_dir_all(branch.join(".git")).unwrap();
        lead(".git", &|path| fs::write(path, "gitdir: /elsewhere\n").unwrap());
        closed(&branch).unwrap();
    }
}
