//! How often, and how many at a time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ah_plugin_api::{Error, ErrorKind, Snapshot};

use crate::accounts;

/// All connections together. Each is a thread and a few descriptors.
const MAX_CONNECTIONS: usize = 256;

/// So much the texts of a store's snapshots may take, bytes as [`texts`] counts them. A list is in memory as long as its reader likes, for each
/// connection of theirs; beside these, ten thousand snapshots take nearly as much.
pub(crate) const MOST_TEXTS: usize = 4 << 20;
/// So much may be listed: several snapshots can be taken at once, each looking what there is before.
pub(crate) const LISTED_TEXTS: usize = 6 << 20;
/// What an attribute takes beside its texts, while it is read, at the least.
const ATTRIBUTE: usize = 32;

/// What the label and the attributes of a snapshot take.
pub(crate) fn texts(snapshot: &Snapshot) -> usize {
    let attributes = snapshot.attributes.iter().map(|(key, value)| key.len() + value.len() + ATTRIBUTE).sum::<usize>();
    snapshot.label.as_ref().map_or(0, String::len) + attributes
}

/// Counts what users have and do.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    users: Mutex<HashMap<u32, User>>,
}

#[derive(Debug)]
struct User {
    connections: usize,
    /// Calls that may still be made at `since`.
    calls: f64,
    since: Instant,
    /// Since when calls are refused.
    refused: Option<Instant>,
}

/// A call that is one too many.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) error: Error,
    /// Whether it is the first of this minute.
    pub(crate) is_first: bool,
}

impl User {
    fn new(since: Instant) -> Self {
        Self { connections: 0, calls: f64::MAX, since, refused: None }
    }
}

/// A connection that counts as long as this lives.
#[derive(Debug)]
pub(crate) struct Connected {
    meter: Arc<Meter>,
    uid: u32,
}

impl Meter {
    fn users(&self) -> MutexGuard<'_, HashMap<u32, User>> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a connection of `uid`.
    pub(crate) fn connect(self: &Arc<Self>, uid: u32, limit: usize) -> Result<Connected, Error> {
        let mut users = self.users();
        let all: usize = users.values().map(|user| user.connections).sum();
        // Root is served also when others have taken all there is.
        if all >= MAX_CONNECTIONS && uid != 0 {
            let message = "the helper ahd has as many connections as it takes";
            return Err(Error::new(ErrorKind::ResourceExhausted, message).with_hint("wait a little, then repeat"));
        }
        let uid = accounts::of(uid);
        let user = users.entry(uid).or_insert_with(|| User::new(Instant::now()));
        if user.connections >= limit {
            let message = format!("you have {limit} connections to the helper ahd, which is the limit");
            return Err(busy(message, "limits.connections"));
        }
        user.connections += 1;
        Ok(Connected { meter: Arc::clone(self), uid })
    }

    /// Counts a call of `uid`.
    pub(crate) fn call(&self, uid: u32, per_minute: u32) -> Result<(), Refused> {
        let mut users = self.users();
        let now = Instant::now();
        let user = users.entry(accounts::of(uid)).or_insert_with(|| User::new(now));
        let most = f64::from(per_minute);
        let gained = now.duration_since(user.since).as_secs_f64() / 60.0 * most;
        user.calls = (user.calls + gained).min(most);
        user.since = now;
        if user.calls < 1.0 {
            let is_first = user.refused.is_none_or(|at| now.duration_since(at) >= Duration::from_secs(60));
            if is_first {
                user.refused = Some(now);
            }
            let message = format!("you asked the helper ahd {per_minute} times in a minute, which is the limit");
            let error = busy(message, "limits.calls-per-minute");
            return Err(Refused { error, is_first });
        }
        user.calls -= 1.0;
        Ok(())
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        let mut users = self.meter.users();
        if let Some(user) = users.get_mut(&self.uid) {
            user.connections -= 1;
        }
        // Who has been gone for long has all their calls again.
        let long = Duration::from_secs(120);
        users.retain(|_, user| user.connections > 0 || user.since.elapsed() < long);
    }
}

/// What is refused by the limit of that name, and passes.
fn busy(message: String, limit: &str) -> Error {
    Error::new(ErrorKind::ResourceExhausted, message)
        .with_hint(format!("wait a little, then repeat; an administrator sets {limit} in ahd.conf"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_cannot_take_it_all() {
        let meter = Arc::new(Meter::default());
        let mine: Vec<_> = (0..4).map(|_| meter.connect(1, 4).unwrap()).collect();
        assert_eq!(meter.connect(1, 4).unwrap_err().kind, ErrorKind::ResourceExhausted);
        let theirs = meter.connect(2, 4).unwrap();
        drop(mine);
        meter.connect(1, 4).unwrap();
        drop(theirs);
        let all: Vec<_> = (10..10 + MAX_CONNECTIONS as u32).map(|uid| meter.connect(uid, 4).unwrap()).collect();
        assert!(meter.connect(1, 4).is_err());
        meter.connect(0, 4).unwrap();
        drop(all);
        meter.connect(1, 4).unwrap();
    }

    #[test]
    fn ids_for_user_namespaces_are_their_users() {
        let meter = Arc::new(Meter::default());
        let _held: Vec<_> = (0..4).map(|i| meter.connect(4_000_000 + i, 4).unwrap()).collect();
        assert!(meter.connect(1, 4).is_err() && meter.connect(4_000_999, 4).is_err());
        meter.connect(2, 4).unwrap();
        meter.call(4_000_000, 2).unwrap();
        meter.call(4_000_001, 2).unwrap();
        assert!(meter.call(4_000_002, 2).is_err() && meter.call(1, 2).is_err());
    }

    #[test]
    fn calls_are_counted_by_the_minute() {
        let meter = Meter::default();
        for _ in 0..5 {
            meter.call(1, 5).unwrap();
        }
        let refused = meter.call(1, 5).unwrap_err();
        assert!(refused.error.kind == ErrorKind::ResourceExhausted && refused.is_first);
        assert!(!meter.call(1, 5).unwrap_err().is_first, "one line a minute");
        meter.call(2, 5).unwrap();
        meter.users().get_mut(&1).unwrap().since -= Duration::from_secs(13);
        meter.call(1, 5).unwrap();
        assert!(meter.call(1, 5).is_err());
    }
}
