//! `ahd.conf`: what the administrator allows, and how much of it.
//!
//! JSON, like the project's other files; read once, at the start. It must be root's, as must every folder on its way. A name that is not
//! known there is an error, so that nothing is allowed or limited by a slip of the pen.

use std::io::Read;
use std::path::{Path, PathBuf};

use ah_plugin_api::{Error, ErrorKind, Result};
use nix::unistd::{Group, User};
use serde::Deserialize;

use crate::peer::Peer;

/// The largest configuration file, bytes.
const MAX_SIZE: u64 = 1 << 20;

/// What is in the file.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct File {
    allow_containing: Vec<String>,
    limits: Limits,
}

/// How much one user may have at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Limits {
    /// Connections.
    pub connections: usize,
    /// Calls in a minute.
    pub calls_per_minute: u32,
    /// Stores; `ah` keeps one for each workspace and provider.
    pub stores: usize,
    /// Snapshots in one store.
    pub snapshots: usize,
    /// Views.
    pub views: usize,
    /// Clones.
    pub clones: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections: 16, calls_per_minute: 6000, stores: 256, snapshots: 10_000, views: 64, clones: 64 }
    }
}

/// Users that are allowed something.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Who {
    User(u32),
    Group(u32),
}

/// The configuration in force.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Config {
    /// Where it is read from, whether there is anything or not.
    pub(crate) path: PathBuf,
    allow_containing: Vec<Who>,
    /// How much each user may have.
    pub limits: Limits,
}

impl Config {
    /// Reads the file at `path`; one that is not there is one without anything in it. Users who do not exist are passed to `warn`.
    ///
    /// # Errors
    /// If others could have changed it, or it is not such a file.
    pub fn read(path: &Path, warn: &mut dyn FnMut(String)) -> Result<Self> {
        let shown = path.display();
        if matches!(std::fs::symlink_metadata(path), Err(e) if e.kind() == std::io::ErrorKind::NotFound) {
            return Ok(Self { path: path.to_owned(), ..Self::default() });
        }
        let (file, _) = ah_host::open_trusted(path).map_err(|untrusted| {
            Error::new(ErrorKind::PermissionDenied, format!("{shown} is not to be trusted: {untrusted}"))
                .with_hint(format!("chown root:root {shown}; chmod 644 {shown}"))
        })?;
        let mut text = String::new();
        file.take(MAX_SIZE)
            .read_to_string(&mut text)
            .map_err(|e| Error::from_io(format!("cannot read {shown}"), &e))?;
        let config = Self::parse(&text, warn).map_err(|error| error.context(format!("{shown} is wrong")))?;
        Ok(Self { path: path.to_owned(), ..config })
    }

    fn parse(text: &str, warn: &mut dyn FnMut(String)) -> Result<Self> {
        let wrong = |why: String| Error::new(ErrorKind::InvalidArgument, why);
        // A list would be taken for a file without names. By way of an object, which keeps the last of several, a name could be there twice.
        if !text.trim_start().starts_with('{') {
            return Err(wrong("it is no JSON object".to_owned()));
        }
        let file: File = serde_json::from_str(text).map_err(|e| wrong(e.to_string()))?;
        let mut config = Self { limits: file.limits, ..Self::default() };
        for text in &file.allow_containing {
            match who(text)? {
                Some(who) => config.allow_containing.push(who),
                None => warn(format!("allow-containing names {text:?}, whom this system does not know")),
            }
        }
        Ok(config)
    }

    /// Whether a caller may have subvolumes and datasets captured that belong to somebody else.
    pub(crate) fn may_capture_containing(&self, peer: &Peer) -> bool {
        self.allow_containing.iter().any(|who| match who {
            Who::User(uid) => *uid == peer.uid,
            Who::Group(gid) => *gid == peer.gid || peer.groups.contains(gid),
        })
    }
}

fn who(text: &str) -> Result<Option<Who>> {
    let failed = |e: nix::errno::Errno| Error::from_io(format!("cannot look up {text:?}"), &e.into());
    if let Some(group) = text.strip_prefix('@') {
        if let Ok(gid) = group.parse() {
            return Ok(Some(Who::Group(gid)));
        }
        return Ok(Group::from_name(group).map_err(failed)?.map(|group| Who::Group(group.gid.as_raw())));
    }
    if let Ok(uid) = text.parse() {
        return Ok(Some(Who::User(uid)));
    }
    Ok(User::from_name(text).map_err(failed)?.map(|user| Who::User(user.uid.as_raw())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(uid: u32, groups: &[u32]) -> Peer {
        Peer { uid, gid: uid, pid: 1, groups: groups.to_vec() }
    }

    #[test]
    fn nobody_is_allowed_anything_by_default_and_only_those_named_are() {
        let none = Config::parse("{}", &mut |w| panic!("{w}")).unwrap();
        assert!(!none.may_capture_containing(&peer(0, &[])) && !none.may_capture_containing(&peer(1000, &[])));
        let text = r#"{"allow-containing": ["1000", "@50", "root", "no-such-user-here"], "limits": {"views": 3}}"#;
        let mut warnings = Vec::new();
        let some = Config::parse(text, &mut |w| warnings.push(w)).unwrap();
        assert_eq!(warnings.len(), 1);
        assert_eq!((some.limits.views, some.limits.clones), (3, Limits::default().clones));
        for (uid, groups, may) in
            [(1000, &[][..], true), (1001, &[], false), (1001, &[7, 50], true), (50, &[], true), (0, &[], true)]
        {
            assert_eq!(some.may_capture_containing(&peer(uid, groups)), may, "{uid} {groups:?}");
        }
    }

    #[test]
    fn a_slip_of_the_pen_is_an_error() {
        for bad in [
            "",
            "[]",
            r#"{"allow_containing": []}"#,
            r#"{"limits": {"vews": 3}}"#,
            r#"{"limits": {"views": -1}}"#,
            r#"{"limits": {"connections": 2}, "limits": {"views": 3}}"#,
            r#"{"limits": {"views": 2, "views": 3}}"#,
            r#"{"allow-containing": [], "allow-containing": ["1000"]}"#,
        ] {
            assert!(Config::parse(bad, &mut |_| {}).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_documentation_has_each_limit_by_its_name() {
        let told = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/SEMANTICS.md")).unwrap();
        // One that is added has to be added here.
        let Limits { connections, calls_per_minute, stores, snapshots, views, clones } = Limits::default();
        let all = [
            ("connections", connections),
            ("calls-per-minute", calls_per_minute as usize),
            ("stores", stores),
            ("snapshots", snapshots),
            ("views", views),
            ("clones", clones),
        ];
        for (name, default) in all {
            Config::parse(&format!(r#"{{"limits": {{"{name}": 1}}}}"#), &mut |w| panic!("{w}")).unwrap();
            let row = format!("| `limits.{name}` | {default} |");
            assert!(told.lines().any(|line| line.starts_with(&row)), "{row}");
        }
    }
}
