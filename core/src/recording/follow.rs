//! The moments of a recording as they are added, by whichever process: each becomes a marker.
//!
//! All timelines of the workspace are looked at, because an agent may keep a session of its own in somebody's recording. The kernel
//! says when there is something new: every append ends with writing the workspace's `head`, or taking it away. Where it cannot, because the machine
//! has no watches left, the timelines are looked at now and then.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use ah_plugin_api::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;

use super::Recording;
use crate::fsio::failed;
use crate::ids::SessionName;
use crate::moments::Moment;
use crate::session;
use crate::timeline::{Event, EventBody, decode_line};
use crate::workspace::Workspace;

/// No moment's line is longer by far; more than that at once is read in parts.
const PART: u64 = 1 << 20;

/// How often they are looked at where the kernel cannot tell.
const LOOK: Duration = Duration::from_millis(250);

/// Tells of moments that are added to a recording from now on.
pub struct MomentFollower {
    workspace: PathBuf,
    recording: Recording,
    changes: Result<OwnedFd>,
    /// How much of each timeline was looked at.
    seen: BTreeMap<SessionName, u64>,
}

impl Workspace {
    /// Follows the moments of a recording that is being made.
    ///
    /// # Errors
    /// If it cannot be seen which sessions there are.
    pub fn follow_moments(&self, recording: &Recording) -> Result<MomentFollower> {
        let workspace = self.folder();
        let watch = || -> io::Result<OwnedFd> {
            let changes = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
            let head_changes = inotify::WatchFlags::MODIFY | inotify::WatchFlags::DELETE;
            inotify::add_watch(&changes, &workspace, head_changes)?;
            Ok(changes)
        };
        let changes = watch().map_err(|e| {
            let error = failed("watch", &workspace, &e);
            error.with_hint(
                "`sysctl fs.inotify` and `ulimit -n` show how much may be watched, and how many files may be open",
            )
        });
        let length = |name: &SessionName| {
            let path = session::folder(&workspace, name).join("timeline.jsonl");
            std::fs::metadata(path).map_or(0, |at| at.len())
        };
        let seen = session::names(&workspace)?.into_iter().map(|name| (name.clone(), length(&name))).collect();
        Ok(MomentFollower { workspace, recording: recording.clone(), changes, seen })
    }
}

impl MomentFollower {
    /// Why the kernel cannot tell of changes, if it cannot: then moments are found a quarter of a second late.
    #[must_use]
    pub fn trouble(&self) -> Option<&Error> {
        self.changes.as_ref().err()
    }

    /// Waits until something may have been added, or `stop` can be read; false then.
    pub fn wait(&self, stop: &OwnedFd) -> bool {
        let Ok(changes) = &self.changes else {
            let mut fds = [PollFd::new(stop, PollFlags::IN)];
            let _ = poll(&mut fds, Timespec::try_from(LOOK).ok().as_ref());
            return fds[0].revents().is_empty();
        };
        let mut fds = [PollFd::new(changes, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        if poll(&mut fds, None).is_err() {
            // Interrupted, or the machine is out of memory: not in a circle.
            let _ = poll(
                &mut [PollFd::new(stop, PollFlags::IN)],
                Timespec::try_from(Duration::from_millis(50)).ok().as_ref(),
            );
        }
        let over = !fds[1].revents().is_empty();
        let mut told = [0; 4096];
        while rustix::io::read(changes, &mut told).is_ok_and(|count| count > 0) {}
        !over
    }

    /// Calls `found` for each moment of the recording that was added since the last call.
    pub fn look(&mut self, mut found: impl FnMut(&Moment)) {
        for name in session::names(&self.workspace).unwrap_or_default() {
            let path = session::folder(&self.workspace, &name).join("timeline.jsonl");
            let Ok(file) = File::open(&path) else { continue };
            let length = file.metadata().map_or(0, |at| at.len());
            // One that is new since is followed from its beginning.
            let seen = self.seen.get(&name).copied().unwrap_or(0);
            let next = self.read(&file, &name, seen.min(length), &mut found);
            self.seen.insert(name, next);
        }
    }

    /// Reads whole lines from `from` on; where the next one begins.
    fn read(&self, file: &File, name: &SessionName, mut from: u64, found: &mut impl FnMut(&Moment)) -> u64 {
        loop {
            let mut part = vec![0; usize::try_from(PART).unwrap_or(0)];
            let Ok(count) = file.read_at(&mut part, from) else { return from };
            let Some(end) = part[..count].iter().rposition(|&byte| byte == b'\n') else {
                if count < part.len() {
                    return from;
                }
                // A longer line is another event's: what is left of it says nothing.
                from += count as u64;
                continue;
            };
            for line in part[..end].split(|&byte| byte == b'\n') {
                let Ok(event) = decode_line(line, name) else { continue };
                if let Event { seq, time, session, body: EventBody::Moment(record) } = event
                    && let Some(at) = &record.recording
                    && *at.session.as_ref().unwrap_or(&session) == self.recording.session
                    && at.number.unwrap_or(1) == self.recording.number
                {
                    found(&Moment { seq, time, session, record: *record });
                }
            }
            from += end as u64 + 1;
        }
    }
}
