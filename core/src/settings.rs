//! What the caller decides: where state lives, which configuration layers there are, clock, ids, providers, who watches.
//!
//! Core reads no environment variable (but `$PATH`, to say why a program cannot be run) and no clock but through this. Files of configuration are read in `config/`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ah_plugin_api::{Observer, Quiet, Timestamp};

use crate::config::ConfigValues;
use crate::ids::SessionName;
use crate::providers::ProviderSource;
use crate::text;

/// Everything that [`crate::Engine::open`] needs to know.
#[derive(Clone)]
pub struct Settings {
    /// `$AH_HOME`, absolute; made (0700) if it is not there.
    pub home: PathBuf,
    /// The user's home directory, for the guard against capturing all of it.
    pub user_home: Option<PathBuf>,
    /// The user who became root by `sudo`: their repositories are as good as root's own.
    pub sudo_user: Option<u32>,
    /// The system's configuration file (`/etc/ah/config.json`); it need not exist.
    pub system_config: Option<PathBuf>,
    /// Files in `.gitignore` syntax that hold everywhere (git's `core.excludesFile`), the weakest first; they need not exist.
    pub global_ignore: Vec<PathBuf>,
    /// Configuration from environment variables, by key.
    pub environment: ConfigValues,
    /// Configuration from flags, by key (`provider`, `mode`, …); the strongest layer.
    pub flags: ConfigValues,
    /// `--session`: reading, REFs and writing are limited to it.
    pub session: Option<SessionName>,
    /// `$AH_SESSION`, set inside an agent's session: `@` and writing mean it.
    pub agent_session: Option<SessionName>,
    /// `$AH_RECORDING`: the recording that this runs inside of.
    pub agent_recording: Option<PathBuf>,
    /// Where providers come from.
    pub providers: ProviderSource,
    /// The folder of the running program, symlinks resolved: plugins are looked for beside it.
    pub exe_dir: Option<PathBuf>,
    /// The privileged helper's socket, asked beside the plugins; none: it is not asked.
    pub helper: Option<HelperSocket>,
    /// The command that does work in the background; none: it is left for the next `gc`.
    pub background: Option<Background>,
    /// The command that takes the snapshots of moments behind whoever adds them; none: they wait for the next one.
    pub capturer: Option<Background>,
    /// How long to wait for another process that changes the same thing before saying `Busy`.
    pub patience: Duration,
    /// Nobody is waited for any longer than until then, however many there are to wait for; none: each has [`Settings::patience`] of its own.
    pub deadline: Option<Instant>,
    /// A provider's call that gives no sign of life for so long is given up.
    pub hang: Duration,
    /// What time it is.
    pub clock: Clock,
    /// Reads a REF that is a time without an offset, in the user's time zone; none: it is no such time.
    pub local_time: fn(&str) -> Option<Timestamp>,
    /// Names a time to the user, to the second.
    pub named_time: fn(Timestamp) -> String,
    /// Where random ids come from.
    pub ids: IdSource,
    /// Who watches long operations, and can stop them.
    pub observer: Arc<dyn Observer + Send + Sync>,
}

impl Settings {
    /// Settings with state below `home`, and nothing else but defaults: system clock, random ids, no background work.
    #[must_use]
    pub fn new(home: impl Into<PathBuf>, providers: ProviderSource) -> Self {
        Self {
            home: home.into(),
            user_home: None,
            sudo_user: None,
            system_config: None,
            global_ignore: Vec::new(),
            environment: ConfigValues::default(),
            flags: ConfigValues::default(),
            session: None,
            agent_session: None,
            agent_recording: None,
            providers,
            exe_dir: None,
            helper: None,
            background: None,
            capturer: None,
            patience: crate::lock::PATIENCE,
            deadline: None,
            hang: Duration::from_secs(120),
            clock: Clock::system(),
            local_time: |_| None,
            named_time: |time| text::format_time(Timestamp { nanos: 0, ..time }),
            ids: IdSource::random(),
            observer: Arc::new(Quiet),
        }
    }

    /// How long the next one that holds something may be waited for.
    pub(crate) fn patience_left(&self) -> Duration {
        self.deadline
            .map_or(self.patience, |deadline| self.patience.min(deadline.saturating_duration_since(Instant::now())))
    }
}

/// Where the privileged helper listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HelperSocket {
    /// Its path. That nothing is there is no error.
    pub path: PathBuf,
    /// Whether the user named it. Else every folder on the way must be root's.
    pub named: bool,
}

/// A command that core starts detached (own session, no terminal, output to nowhere) with `-C <workspace>` added at its end,
/// and never waits for.
#[derive(Debug, Clone)]
pub struct Background {
    /// The program, absolute: `ah` itself.
    pub program: PathBuf,
    /// Its arguments: `agent fs gc --auto`.
    pub args: Vec<OsString>,
    /// Its whole environment; `AH_HOME` must be in it where it is not the default.
    pub env: Vec<(OsString, OsString)>,
}

/// Where the time comes from.
#[derive(Clone)]
pub struct Clock {
    now: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    uptime: Arc<dyn Fn() -> Option<i64> + Send + Sync>,
}

impl Clock {
    /// The system's clock.
    #[must_use]
    pub fn system() -> Self {
        let uptime = || {
            // Goes on while the machine is suspended.
            Some(rustix::time::clock_gettime(rustix::time::ClockId::Boottime).tv_sec)
        };
        Self { now: Arc::new(Timestamp::now), uptime: Arc::new(uptime) }
    }

    /// A clock that stands still; for tests.
    #[must_use]
    pub fn fixed(at: Timestamp) -> Self {
        Self::from_fn(move || at)
    }

    /// Any function; for tests.
    pub fn from_fn(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self { now: Arc::new(now), uptime: Arc::new(|| None) }
    }

    /// With how long the machine has run, in seconds; for tests.
    #[must_use]
    pub fn with_uptime(self, uptime: impl Fn() -> i64 + Send + Sync + 'static) -> Self {
        Self { uptime: Arc::new(move || Some(uptime())), ..self }
    }

    /// The time by this clock.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        (self.now)()
    }

    /// How long the machine has run, suspended or not, in seconds; none if this clock does not know.
    pub(crate) fn uptime(&self) -> Option<i64> {
        (self.uptime)()
    }

    /// Seconds that go on whatever somebody sets the clock to, as far as this one has any.
    pub(crate) fn running_for(&self) -> i64 {
        self.uptime().unwrap_or_else(|| self.now().secs)
    }
}

/// Where ids come from.
#[derive(Clone)]
pub struct IdSource(Arc<dyn Fn() -> u64 + Send + Sync>);

impl IdSource {
    /// The operating system's random numbers.
    #[must_use]
    pub fn random() -> Self {
        Self(Arc::new(|| {
            getrandom::u64().unwrap_or_else(|_| {
                // Only a kernel without getrandom(2) and without /dev/urandom comes here; ids need to differ, not to be secret.
                let now = Timestamp::now();
                (u64::from(std::process::id()) << 32) ^ now.secs.cast_unsigned() ^ (u64::from(now.nanos) << 16)
            })
        }))
    }

    /// 1, 2, 3, …, spread over the letters; for tests.
    #[must_use]
    pub fn counting() -> Self {
        let next = Arc::new(AtomicU64::new(0));
        Self(Arc::new(move || next.fetch_add(1, Ordering::Relaxed).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15)))
    }

    pub(crate) fn next(&self) -> u64 {
        (self.0)()
    }
}
