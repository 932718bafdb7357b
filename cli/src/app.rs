//! One run of the program: arguments and environment turned into core's settings, and what all commands share.

use std::cell::{Cell, OnceCell, RefCell};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use ah_core::{
    Access, Background, ConfigValues, Engine, FIRST_SNAPSHOT, HelperSocket, Notice, NoticeKind, ProviderSource,
    SessionName, Settings, Timestamp, Workspace, text,
};
use ah_plugin_api::{Error, ErrorKind, RelPath, Result};
use serde::Serialize;

use crate::args::{Globals, WorkMode};
use crate::env::Env;
use crate::failure::Failure;
use crate::itself;
use crate::output::Ui;
use crate::output::progress::Watcher;
use crate::output::time;

/// The system's configuration folder, compiled in by `scripts/install`.
const SYSCONFDIR: &str = match option_env!("AH_SYSCONFDIR") {
    Some(directory) => directory,
    None => "/etc",
};

/// Where the privileged helper listens, unless `AH_HELPER_SOCKET` says otherwise.
const HELPER_SOCKET: &str = ah_host::helper::SOCKET;

/// What is done in the background.
const GC: &[&str] = &["agent", "fs", "gc", "--auto", "--quiet"];

/// A hook waits no longer for other processes, all in all, the fence included.
const HOOK_PATIENCE: Duration = Duration::from_secs(2);

/// One run of the program.
pub(crate) struct App {
    /// Where output goes.
    pub(crate) ui: Ui,
    /// The current directory, after `-C`.
    pub(crate) cwd: PathBuf,
    globals: Globals,
    env: Env,
    interrupted: Arc<AtomicBool>,
    engine: OnceCell<Engine>,
    /// Whether this is the background's child itself, which starts none.
    in_background: Cell<bool>,
    /// Until when other processes are waited for, where each has not the usual time.
    deadline: Option<Instant>,
    /// Kinds of notices whose matter the answer itself tells.
    told: RefCell<Vec<NoticeKind>>,
}

/// The JSON of every command that works on a workspace: its own members, and these two.
#[derive(Serialize)]
struct Answer<'a, T> {
    #[serde(with = "text::abs")]
    workspace: &'a Path,
    #[serde(flatten)]
    data: &'a T,
    notices: Vec<Notice>,
}

/// Goes to a directory, and gives its path.
fn go_to(directory: &Path) -> Result<PathBuf> {
    let cannot = |error: std::io::Error| {
        Error::from_io(format!("cannot go to the directory {}", directory.display()), &error)
            .with_hint("-C takes a directory that is there and can be entered; `ls -ld` shows who may")
    };
    match std::env::set_current_dir(directory) {
        Ok(()) => std::env::current_dir().map_err(cannot),
        // In a branch whose provider's process was killed, or is being killed; it is mounted again when it is looked for.
        Err(error)
            if [std::io::ErrorKind::NotConnected, std::io::ErrorKind::ConnectionAborted].contains(&error.kind()) =>
        {
            std::path::absolute(directory).map_err(cannot)
        }
        Err(error) => Err(cannot(error)),
    }
}

/// Where the current directory was, which is not there any more; nothing where that is not known.
fn where_it_was() -> PathBuf {
    let named = std::fs::read_link("/proc/self/cwd").unwrap_or_default().into_os_string().into_vec();
    named.strip_suffix(b" (deleted)").map(|was| PathBuf::from(OsStr::from_bytes(was))).unwrap_or_default()
}

impl App {
    /// The environment.
    pub(crate) fn env(&self) -> &Env {
        &self.env
    }

    /// Goes where `-C` says.
    pub(crate) fn new(globals: Globals, env: Env, interrupted: Arc<AtomicBool>) -> Result<Self> {
        let (cwd, gone) = match &globals.directory {
            Some(directory) => match go_to(directory) {
                // What is kept of a workspace that was deleted can be asked for.
                Err(error) if error.kind == ErrorKind::NotFound => {
                    (std::path::absolute(directory).unwrap_or_else(|_| directory.clone()), Some(error))
                }
                there => (there?, None),
            },
            None => match std::env::current_dir() {
                Ok(here) => (here, None),
                Err(error) => {
                    (where_it_was(), Some(Error::from_io("the current directory is not there any more", &error)))
                }
            },
        };
        let ui = Ui::new(&globals, &env);
        let app = Self {
            ui,
            cwd,
            globals,
            env,
            interrupted,
            engine: OnceCell::new(),
            in_background: Cell::new(false),
            deadline: None,
            told: RefCell::default(),
        };
        match gone {
            Some(error) if app.globals.directory.is_none() => Err(error.with_hint(app.way_out())),
            Some(error) => {
                if app.was_workspace(&app.cwd)? {
                    Ok(app)
                } else {
                    Err(error)
                }
            }
            None => Ok(app),
        }
    }

    /// Whether a workspace was at a path where nothing is any more. Where there is no home yet, none is made to find that out.
    fn was_workspace(&self, path: &Path) -> Result<bool> {
        Ok(self.settings()?.home.exists() && self.engine()?.was_workspace(path)?)
    }

    /// What to do in a directory that is not there any more: what is kept of it is found by where it was, or the workspace around it.
    fn way_out(&self) -> String {
        let other = "go to one that is, or name it with `-C DIR`";
        let typed = |path: &Path| text::shell(path.as_os_str());
        if self.cwd.is_dir() {
            return format!("another one is in its place: `cd {}`", typed(&self.cwd));
        }
        match self.cwd.ancestors().find(|path| self.was_workspace(path).unwrap_or(false)) {
            Some(was) => {
                let typed = typed(was);
                format!("`ah -C {typed}` tells what is kept of it; commands that need no files work so; or {other}")
            }
            None => other.to_owned(),
        }
    }

    /// As [`App::new`], for a hook: in the directory that the agent names, which need not be there any more, and waiting for others no
    /// longer than an agent may be held up.
    pub(crate) fn for_hook(globals: Globals, mut env: Env, cwd: PathBuf) -> Self {
        // What is no session's name is nobody's session.
        env.session = env.session.filter(|name| name.to_str().is_some_and(|name| SessionName::new(name).is_ok()));
        let ui = Ui::new(&globals, &env);
        Self {
            ui,
            cwd,
            globals,
            env,
            interrupted: Arc::default(),
            engine: OnceCell::new(),
            in_background: Cell::new(false),
            deadline: Some(Instant::now() + HOOK_PATIENCE),
            told: RefCell::default(),
        }
    }

    /// Says that this is work that another command left for the background.
    pub(crate) fn work_in_background(&self) {
        self.in_background.set(true);
        // Nobody who waits for others to leave the workspace is to wait for this.
        let _ = std::env::set_current_dir("/");
    }

    /// The engine, opened at the first need.
    pub(crate) fn engine(&self) -> Result<&Engine> {
        if let Some(engine) = self.engine.get() {
            return Ok(engine);
        }
        let settings = self.settings()?;
        if self.in_background.get() && !settings.home.exists() {
            // Removed since: there is nothing left to do, and it is not made again.
            return Err(Error::new(ErrorKind::NotFound, format!("{} is gone", settings.home.display())));
        }
        let engine = Engine::open(settings)?;
        Ok(self.engine.get_or_init(|| engine))
    }

    /// The workspace of the current directory; said on stderr where that is not the directory itself.
    pub(crate) fn workspace(&self, access: Access) -> Result<Workspace> {
        let workspace = self.engine()?.workspace(&self.cwd, access).map_err(|error| match access {
            Access::Existing | Access::Reading => self.with_unkept(self.with_around(error)),
            Access::Create | Access::CreateForced => error,
        })?;
        if workspace.root() != self.cwd && !self.ui.json {
            self.ui.note(&format!("workspace {}", workspace.root().display()));
        }
        Ok(workspace)
    }

    /// After a command that was refused: a directory that became a workspace for it is none again, unless something was kept.
    pub(crate) fn take_back_new(&self) {
        if let Some(engine) = self.engine.get() {
            // What cannot be taken back is as it would be after a command that did something.
            let _ = engine.take_back_new();
        }
    }

    /// As [`App::workspace`], for who asks for something that no directory has in which nothing was ever captured: then `absent` is what is wrong,
    /// and `remedy`, if there is a better one than a snapshot, what helps.
    pub(crate) fn workspace_with(&self, absent: &str, remedy: Option<&str>) -> Result<Workspace> {
        let engine = self.engine()?;
        self.workspace(Access::Existing).map_err(|error| match error.kind {
            ErrorKind::NotFound if engine.root_of(&self.cwd).is_ok() => {
                let error = error.context(absent);
                let more = error.hint.as_deref().and_then(|hint| hint.strip_prefix(FIRST_SNAPSHOT)).unwrap_or_default();
                match remedy.map(|remedy| format!("{remedy}{more}")) {
                    Some(hint) => error.with_hint(hint),
                    None => error,
                }
            }
            _ => error,
        })
    }

    /// Names the workspace around a directory in which nothing was captured: its snapshots hold these files, too.
    fn with_around(&self, error: Error) -> Error {
        let around = || self.engine().ok()?.captured_around(&self.cwd);
        match (error.kind, error.hint.as_deref()) {
            (ErrorKind::NotFound, Some(hint)) if hint.starts_with(FIRST_SNAPSHOT) => match around() {
                Some(around) => {
                    let there = ah_core::text::shell(around.as_os_str());
                    let hint = format!("{hint}; or of the workspace around it: `ah -C {there} agent fs snapshots`");
                    error.with_hint(hint)
                }
                None => error,
            },
            _ => error,
        }
    }

    /// Where nothing was ever captured, an agent may have been at work all the same: why nothing was kept of that is what its user looks for.
    fn with_unkept(&self, mut error: Error) -> Error {
        let Ok(engine) = self.engine() else { return error };
        let Some(root) = engine.root_of(&self.cwd).ok().filter(|_| error.kind == ErrorKind::NotFound) else {
            return error;
        };
        if engine.is_too_much(&root) {
            error.hint =
                Some("go to a project's directory, and start the agent there: this one is no workspace".into());
        }
        if let Ok(Some(call)) = engine.last_unkept(&root, None) {
            error.causes.push(call.told(&time::relative(call.time, self.now())));
        }
        error
    }

    /// The workspace of the current directory for a command that lists what there is. Where nothing was ever captured that is
    /// an answer too, said on stderr; then there is only the root.
    pub(crate) fn history(&self, access: Access) -> Result<(PathBuf, Option<Workspace>)> {
        let hint = match self.workspace(access) {
            Ok(workspace) => return Ok((workspace.root().to_owned(), Some(workspace))),
            Err(Error { kind: ErrorKind::NotFound, hint, .. }) => hint.unwrap_or_default(),
            Err(error) => return Err(error),
        };
        let engine = self.engine()?;
        let root = engine.root_of(&self.cwd)?;
        self.ui.note(&format!("no snapshots yet: {hint}"));
        if let Some(call) = engine.last_unkept(&self.cwd, None).ok().flatten() {
            self.ui.note(&call.told(&time::relative(call.time, self.now())));
        }
        Ok((root, None))
    }

    /// Says of an empty list that nothing was captured, unless it is empty for what was asked.
    pub(crate) fn tell_none(&self, limit: Option<usize>) -> Result<()> {
        if limit != Some(0) && self.engine()?.settings().session.is_none() {
            self.ui.note(&format!("no snapshots here: {FIRST_SNAPSHOT}"));
        }
        Ok(())
    }

    /// The paths inside `workspace` that arguments mean.
    pub(crate) fn paths(&self, workspace: &Workspace, arguments: &[OsString]) -> Result<Vec<RelPath>> {
        arguments.iter().map(|argument| workspace.rel_path(&self.cwd, Path::new(argument))).collect()
    }

    /// The present time by the engine's clock.
    pub(crate) fn now(&self) -> Timestamp {
        self.engine.get().map_or_else(Timestamp::now, |engine| engine.settings().clock.now())
    }

    /// Prints the JSON of a command on `workspace`.
    pub(crate) fn answer<T: Serialize>(&self, workspace: &Path, data: &T) -> Result<(), Failure> {
        self.ui.json(&Answer { workspace, data, notices: self.take_notices() })
    }

    /// The same where the command has `acted`: then what it did is told also if standard output cannot be written to.
    pub(crate) fn answer_of<T: Serialize>(&self, acted: bool, workspace: &Path, data: &T) -> Result<(), Failure> {
        match acted {
            true => self.ui.json_of_act(&Answer { workspace, data, notices: self.take_notices() }),
            false => self.answer(workspace, data),
        }
    }

    /// Says that the command's answer tells itself what notices of this kind would.
    pub(crate) fn answer_tells(&self, kind: NoticeKind) {
        self.told.borrow_mut().push(kind);
    }

    /// Tells on stderr what has come up and was not in an answer.
    pub(crate) fn tell_notices(&self) {
        for notice in self.take_notices() {
            self.ui.warning(&notice.message, notice.hint.as_deref());
        }
    }

    fn take_notices(&self) -> Vec<Notice> {
        let mut notices = self.engine.get().map(Engine::take_notices).unwrap_or_default();
        // Whatever the engine lacks for it, that is why.
        if let Some(error) = self.engine.get().and_then(|_| itself::program().err()) {
            let notice = Notice::new(NoticeKind::Other, error.message);
            notices.push(error.hint.into_iter().fold(notice, Notice::with_hint));
        }
        notices.retain(|notice| !self.told.borrow().contains(&notice.kind));
        notices
    }

    /// True once the user wants it all to stop.
    pub(crate) fn interrupted(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.interrupted)
    }

    /// Where temporary files go.
    pub(crate) fn temp(&self) -> &Path {
        &self.env.temp
    }

    /// What a recording says of the environment it was made in.
    pub(crate) fn terminal_env(&self) -> impl Iterator<Item = (&'static str, &OsString)> {
        let known = [("TERM", &self.env.term), ("SHELL", &self.env.shell)];
        known.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?)))
    }

    /// The folders in which provider libraries are looked for, first to last.
    fn provider_folders(&self) -> Vec<PathBuf> {
        let named = self.globals.provider_path.iter().chain(&self.env.provider_path);
        // A folder that cannot be made absolute is one that is not there.
        named.filter_map(|folder| std::path::absolute(self.cwd.join(folder)).ok()).collect()
    }

    fn settings(&self) -> Result<Settings> {
        let home = self.home()?;
        let mut settings = Settings::new(home, ProviderSource::Plugins(self.provider_folders()));
        settings.exe_dir = exe_dir();
        settings.helper = self.helper_socket();
        settings.background = self.background(&settings.home, GC).filter(|_| !self.in_background.get());
        settings.capturer = self.background(&settings.home, &["__capture", "--quiet"]);
        settings.deadline = self.deadline;
        if let Some(seconds) = self.globals.hang_limit {
            settings.hang = Duration::from_secs(seconds.into());
        }
        settings.local_time = time::read_local;
        settings.named_time = time::local;
        settings.user_home.clone_from(&self.env.user_home);
        settings.sudo_user = self.env.sudo_user;
        // Nobody's working directory is the system's.
        settings.system_config = Some(Path::new(SYSCONFDIR).join("ah/config.json")).filter(|path| path.is_absolute());
        settings.global_ignore = self.git_ignore_file().into_iter().collect();
        settings.flags = self.flags();
        settings.session = self.globals.session.clone().map(SessionName::new).transpose()?;
        settings.agent_session = self.agent_session()?;
        settings.agent_recording.clone_from(&self.env.recording);
        settings.observer = Arc::new(Watcher::new(self.ui.clone(), Arc::clone(&self.interrupted)));
        Ok(settings)
    }

    /// Where agents keep their things.
    pub(crate) fn agents_home(&self) -> Result<ah_agents::Home> {
        Env::agents_home()
    }

    fn helper_socket(&self) -> Option<HelperSocket> {
        match &self.env.helper_socket {
            None => Some(HelperSocket { path: HELPER_SOCKET.into(), named: false }),
            Some(path) if path.as_os_str().is_empty() => None,
            Some(path) => Some(HelperSocket { path: self.cwd.join(path), named: true }),
        }
    }

    fn home(&self) -> Result<PathBuf> {
        self.env.state().ok_or_else(|| {
            Error::new(ErrorKind::FailedPrecondition, "there is no home directory to keep the state in")
                .with_hint("export AH_HOME=/some/directory")
        })
    }

    fn agent_session(&self) -> Result<Option<SessionName>> {
        let Some(name) = &self.env.session else { return Ok(None) };
        let name = name.to_str().map(SessionName::new).unwrap_or_else(|| {
            Err(Error::new(ErrorKind::InvalidArgument, format!("{} is not a session's name", name.display())))
        });
        name.map(Some).map_err(|error| error.context("AH_SESSION is wrong").with_hint("unset AH_SESSION"))
    }

    fn flags(&self) -> ConfigValues {
        let mode = self.globals.mode.map(|mode| match mode {
            WorkMode::Auto => "auto",
            WorkMode::InPlace => "in-place",
            WorkMode::Worktree => "worktree",
            WorkMode::CowOverlay => "cow-overlay",
        });
        let provider = self.globals.provider.as_deref();
        let flags = [("provider", provider), ("mode", mode)];
        flags.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?.into()))).collect()
    }

    /// Git's own place for the user's ignore file.
    fn git_ignore_file(&self) -> Option<PathBuf> {
        let config = self.env.xdg_config_home.clone().or_else(|| Some(self.env.user_home.as_ref()?.join(".config")))?;
        Some(config.join("git/ignore"))
    }

    /// How this program is started again for work that nobody waits for.
    fn background(&self, home: &Path, command: &[&str]) -> Option<Background> {
        let program = itself::program().ok()?;
        let mut args: Vec<OsString> = command.iter().map(OsString::from).collect();
        for folder in self.provider_folders() {
            args.extend(["--provider-path".into(), folder.into_os_string()]);
        }
        if let Some(seconds) = self.globals.hang_limit {
            args.extend(["--hang-limit".into(), seconds.to_string().into()]);
        }
        let mut env: Vec<(OsString, OsString)> = vec![("AH_HOME".into(), home.into())];
        let helper_socket = self.env.helper_socket.as_ref().map(|path| match path.as_os_str().is_empty() {
            true => path.clone(),
            false => self.cwd.join(path),
        });
        let kept = [
            ("HOME", &self.env.user_home),
            ("XDG_CONFIG_HOME", &self.env.xdg_config_home),
            ("AH_HELPER_SOCKET", &helper_socket),
        ];
        for (name, value) in kept {
            if let Some(value) = value {
                env.push((name.into(), value.into()));
            }
        }
        Some(Background { program, args, env })
    }
}

/// The folder of this program, without symlinks.
fn exe_dir() -> Option<PathBuf> {
    let program = itself::program().ok()?.canonicalize().ok()?;
    program.parent().map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        globals: Globals,
    }

    #[test]
    fn the_background_has_the_same_patience() {
        let Line { globals } = Line::parse_from(["ah", "--hang-limit", "700"]);
        let app = App::for_hook(globals, Env::read(), "/".into());
        let background = app.background(Path::new("/state"), GC).unwrap();
        assert!(background.args.windows(2).any(|pair| pair == ["--hang-limit", "700"]), "{:?}", background.args);
    }
}
