//! A workspace that a provider mounts, mounted when its user logs in: a unit of systemd's for the user, which runs a command of ours.
//!
//! Without systemd there is none. The first command of ours in the workspace mounts it, too.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use ah_core::{Notice, NoticeKind, Status};
use ah_plugin_api::{Error, Result};

use crate::app::App;
use crate::env::Env;

/// What runs at login.
const WANTS: &str = "default.target.wants";

/// The unit of one workspace.
pub(crate) struct Unit {
    folder: PathBuf,
    name: String,
}

impl Unit {
    /// Of the workspace with that id; none where it is not known where a user's units are.
    pub(crate) fn of(env: &Env, id: &str) -> Option<Self> {
        let config = env.xdg_config_home.clone().or_else(|| Some(env.user_home.as_ref()?.join(".config")))?;
        Some(Self { folder: config.join("systemd").join("user"), name: format!("ah-workspace-{id}.service") })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> PathBuf {
        self.folder.join(&self.name)
    }

    /// Writes it, and has it run at login.
    pub(crate) fn write(&self, env: &Env, workspace: &Path) -> Result<()> {
        let program = env.program()?;
        let failed = |e: std::io::Error| Error::from_io(format!("cannot write {}", self.path().display()), &e);
        std::fs::create_dir_all(self.folder.join(WANTS)).map_err(failed)?;
        let state = env.ah_home.as_ref().map(|home| [b"AH_HOME=", home.as_os_str().as_bytes()].concat());
        let state = state.map_or_else(String::new, |set| format!("Environment={}\n", quoted(&set)));
        let program = quoted(program.as_os_str().as_bytes());
        // What begins with a dollar sign is looked up in arguments only.
        let workspace = quoted(workspace.as_os_str().as_bytes()).replace('$', "$$");
        let text = format!(
            "# Written by `ah agent fs convert`, and taken away by `ah agent fs convert --back`.\n\
             [Unit]\nDescription=A workspace that ah keeps mounted\n\n\
             [Service]\nType=oneshot\nRemainAfterExit=yes\n{state}ExecStart={program} -C {workspace} agent fs branches --quiet\n\n\
             [Install]\nWantedBy=default.target\n"
        );
        std::fs::write(self.path(), text).map_err(failed)?;
        let link = self.folder.join(WANTS).join(&self.name);
        match std::os::unix::fs::symlink(Path::new("..").join(&self.name), link) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => Err(failed(e)),
            _ => Ok(()),
        }
    }

    /// The program that it runs, if it is there and that is not.
    fn gone(&self) -> Option<PathBuf> {
        let text = std::fs::read_to_string(self.path()).ok()?;
        let program = PathBuf::from(text.lines().find_map(|line| unquoted(line.strip_prefix("ExecStart=\"")?))?);
        matches!(program.try_exists(), Ok(false)).then_some(program)
    }

    /// Takes it away, if it is there.
    pub(crate) fn remove(&self) -> Result<()> {
        for path in [self.folder.join(WANTS).join(&self.name), self.path()] {
            match std::fs::remove_file(&path) {
                Err(e) if e.kind() != ErrorKind::NotFound => {
                    return Err(Error::from_io(format!("cannot remove {}", path.display()), &e));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Says of what mounts a workspace at login that its program is gone: systemd says so in its journal alone.
pub(crate) fn tell_gone(app: &App, status: &Status) {
    let unit = status.workspace.as_ref().and_then(|id| Unit::of(app.env(), id.as_str()));
    let (Some(gone), Ok(engine)) = (unit.and_then(|unit| unit.gone()), app.engine()) else { return };
    let message = format!("it is not mounted at login any more: {}, which was to do that, is gone", gone.display());
    let hint = "`ah agent fs convert` has this ah do it";
    engine.notify(Notice::new(NoticeKind::Other, message).with_hint(hint));
}

/// Whether systemd runs this machine, as sd_booted(3) finds out.
pub(crate) fn has_systemd() -> bool {
    Path::new("/run/systemd/system").is_dir()
}

/// A word as systemd reads it (systemd.syntax(7), systemd.service(5)): in double quotes, with what it would look into doubled.
fn quoted(word: &[u8]) -> String {
    let mut text = String::from("\"");
    for &byte in word {
        match byte {
            b'%' => text.push_str("%%"),
            b'"' | b'\\' => text.extend(['\\', char::from(byte)]),
            b' '..=b'~' => text.push(char::from(byte)),
            other => text.push_str(&format!("\\x{other:02x}")),
        }
    }
    text + "\""
}

/// The word that [`quoted`] wrote, from behind its first quotation mark.
fn unquoted(text: &str) -> Option<OsString> {
    let (mut word, mut rest) = (Vec::new(), text.bytes());
    loop {
        match rest.next()? {
            b'"' => return Some(OsString::from_vec(word)),
            b'%' => word.push(rest.next()?),
            b'\\' => match rest.next()? {
                b'x' => {
                    let digits = [rest.next()?, rest.next()?];
                    word.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
                }
                other => word.push(other),
            },
            other => word.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Unit, WANTS, quoted, unquoted};
    use crate::env::Env;

    #[test]
    fn a_unit_is_written_and_taken_away_again() {
        let temp = tempfile::tempdir().unwrap();
        let env = Env {
            xdg_config_home: Some(temp.path().to_owned()),
            ah_home: Some("/a$b".into()),
            called: Some("/opt/ah/bin/ah".into()),
            ..Env::read()
        };
        let unit = Unit::of(&env, "qzvk").unwrap();
        unit.remove().unwrap();
        for _ in 0..2 {
            unit.write(&env, std::path::Path::new("/home/me/my $proj")).unwrap();
        }
        let link = temp.path().join("systemd/user").join(WANTS).join("ah-workspace-qzvk.service");
        let text = std::fs::read_to_string(link).unwrap();
        let runs = "ExecStart=\"/opt/ah/bin/ah\" -C \"/home/me/my $$proj\" agent fs branches --quiet\n";
        assert!(text.contains(runs), "{text}");
        assert!(text.contains("\nEnvironment=\"AH_HOME=/a$b\"\n"), "{text}");
        assert_eq!(unit.gone(), env.called);
        let there = Env { called: Some("/bin/sh".into()), ..env };
        unit.write(&there, std::path::Path::new("/home/me/proj")).unwrap();
        assert_eq!(unit.gone(), None);
        unit.remove().unwrap();
        assert_eq!(unit.gone(), None);
        assert!(
            !unit.path().exists() && unit.path().parent().unwrap().join(WANTS).read_dir().unwrap().next().is_none()
        );
    }

    #[test]
    fn words_are_quoted_for_systemd() {
        assert_eq!(quoted(b"/home/me/my proj"), "\"/home/me/my proj\"");
        for word in [&b"/home/me/my proj"[..], b"100%\"$x\\\n\xff"] {
            assert_eq!(unquoted(&quoted(word)[1..]).unwrap().as_encoded_bytes(), word);
        }
        assert_eq!(quoted(b"100%\"$x\\\n\xff"), "\"100%%\\\"$x\\\\\\x0a\\xff\"");
    }
}
