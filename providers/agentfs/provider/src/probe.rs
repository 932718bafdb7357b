//! What can be served: a branch of ours where it is; of any other directory, branches.

use std::collections::BTreeSet;

use ah_plugin_api::{Dir, Mode, Probe, Result};

use crate::home::{Shown, path_of};
use crate::reach::service_program;

/// What `statfs` calls filesystems whose files somebody on another machine may change, with times of that machine's.
const REMOTE: &[(u32, &str)] = &[
    (0x6969, "NFS"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB"),
    (0x517b, "SMB"),
    (0x00c3_6400, "Ceph"),
    (0x0102_1997, "9P"),
];

/// Answers [`ah_plugin_api::Provider::probe`].
pub(crate) fn probe(workspace: &Dir, store: &Dir) -> Result<Probe> {
    let (reason, modes) = match Shown::around(workspace)? {
        Some((_, true)) => {
            ("it is a branch in AgentFS".to_owned(), BTreeSet::from([Mode::InPlace, Mode::Worktree, Mode::CowOverlay]))
        }
        Some(_) => {
            return Ok(unusable(
                "it is within a branch or view of AgentFS, and only a branch as a whole is captured",
                None,
            ));
        }
        None => match refusal(workspace, store) {
            Some((reason, remedy)) => return Ok(unusable(&reason, remedy)),
            None => (
                "branches grow from it at once and take no space; it is not captured where it is".to_owned(),
                BTreeSet::from([Mode::CowOverlay]),
            ),
        },
    };
    Ok(Probe { usable: true, reason, remedy: None, modes, can_delete: true, convertible: None })
}

fn unusable(reason: &str, remedy: Option<String>) -> Probe {
    Probe {
        usable: false,
        reason: reason.to_owned(),
        remedy,
        modes: BTreeSet::new(),
        can_delete: true,
        convertible: None,
    }
}

/// Why no branch can grow from a plain directory here, and what to do about it.
fn refusal(workspace: &Dir, store: &Dir) -> Option<(String, Option<String>)> {
    if let Err(error) = service_program() {
        return Some((error.message, error.hint));
    }
    if let Err(error) = ah_agentfs_fuse::available() {
        return Some((error.to_string(), None));
    }
    let kind = rustix::fs::fstatfs(workspace).map(|stat| stat.f_type as u32).unwrap_or_default();
    if let Some((_, name)) = REMOTE.iter().find(|(magic, _)| *magic == kind) {
        return Some((format!("it is on {name}, where changes underneath cannot be noticed"), None));
    }
    match (path_of(store), path_of(workspace)) {
        (Ok(store), Ok(workspace)) if store.starts_with(&workspace) => Some((
            "AgentFS would keep what changes within it".to_owned(),
            Some("keep AH_HOME outside of the workspace".to_owned()),
        )),
        (Ok(_), Ok(_)) => None,
        (Err(error), _) | (_, Err(error)) => Some((error.message, error.hint)),
    }
}
