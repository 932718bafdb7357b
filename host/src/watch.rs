//! Names a call that hangs, instead of hanging with it.
//!
//! A call into a library cannot be stopped from outside. So each runs on a thread of its own, and the caller waits for it only as long as it
//! gives a sign of life: progress, a log line, or a look at whether it shall stop. While nobody reads what it writes, none is expected of it. Who wants to stop waits less long, and
//! signs of life put that off only so far. A call that is given up stays on its thread; its provider is not called again before that has come to its end.
//!
//! Loading a library has one limit, whoever wants to stop: for the system's loader, beside which another thread watches ([`guarded`]), and
//! for what makes the provider ([`within`]).

use std::convert::Infallible;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ah_plugin_api::wire::{Caller, Op, guard, waits_for_reader};
use ah_plugin_api::{Context, Error, ErrorKind, LogLevel, Observer, Progress, Result};

use crate::ending::{Doing, Inside};

/// How often the caller's wish to stop is looked at.
const TICK: Duration = Duration::from_millis(20);
/// How long a call may be silent once it shall stop. The contract wants a look at that every 100 ms.
const GRACE: Duration = Duration::from_secs(3);
/// How long it may go on then with signs of life: what is half made has to be taken back.
const WINDING_UP: Duration = Duration::from_secs(30);
/// The stack that a main thread usually has; a provider may need more than a thread's usual 2 MiB.
const STACK: usize = 8 << 20;
/// Idle threads that are kept for the next calls.
const MAX_IDLE: usize = 8;

/// A [`Caller`] whose calls are given up when they give no sign of life.
pub struct Watched<C> {
    caller: Arc<C>,
    what: Arc<str>,
    limit: Duration,
    /// [`WINDING_UP`].
    winding_up: Duration,
    /// Calls that were given up and have not come to an end since.
    hung: Mutex<Vec<(Op, Arc<Life>)>>,
    idle: Mutex<Vec<SyncSender<Job>>>,
}

struct Job {
    op: Op,
    request: Vec<u8>,
    fds: Vec<OwnedFd>,
    life: Arc<Life>,
}

/// What both sides of a running call see.
struct Life {
    events: SyncSender<Event>,
    cancelled: AtomicBool,
    /// Counts signs of life.
    signs: AtomicU64,
    ended: AtomicBool,
}

enum Event {
    Progress(Progress),
    Log(LogLevel, String),
    Done(Result<Vec<u8>>),
}

impl<C: Caller + 'static> Watched<C> {
    /// Watches `caller`. `what` names it in errors, as in "*what* does not answer".
    pub fn new(caller: C, what: String, limit: Duration) -> Self {
        Self {
            caller: Arc::new(caller),
            what: what.into(),
            limit,
            winding_up: WINDING_UP,
            hung: Mutex::default(),
            idle: Mutex::new(Vec::new()),
        }
    }

    fn unavailable(&self, op: Op, again: bool) -> Error {
        let (what, limit) = (&self.what, self.limit.as_secs_f32());
        let message = if again {
            format!("{what} is not asked now: its operation {op} did not come to an end before")
        } else {
            format!("{what} hangs: its operation {op} gave no sign of life for {limit} s")
        };
        Error::new(ErrorKind::Unavailable, message)
            .with_hint("repeat with another provider (`--provider NAME`; `ah agent fs status` lists them), or wait longer (`--hang-limit SECONDS`)")
    }

    /// Hands `job` to an idle thread, or to a new one.
    fn start(&self, mut job: Job) -> Result<SyncSender<Job>> {
        loop {
            let idle = lock(&self.idle).pop();
            let worker = match idle {
                Some(worker) => worker,
                None => self.worker()?,
            };
            match worker.send(job) {
                Ok(()) => return Ok(worker),
                Err(returned) => job = returned.0,
            }
        }
    }

    fn worker(&self) -> Result<SyncSender<Job>> {
        let (caller, what) = (Arc::clone(&self.caller), Arc::clone(&self.what));
        let (sender, jobs) = sync_channel::<Job>(1);
        let work = move || {
            for Job { op, request, fds, life } in jobs {
                let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(std::os::fd::AsFd::as_fd).collect();
                let result = {
                    let _inside = Inside::begin(&what, Doing::Call(op));
                    guard(|| caller.call(op, &request, &borrowed, &Context::new(&*life)))
                };
                life.ended.store(true, Ordering::Relaxed);
                let _ = life.events.send(Event::Done(result));
            }
        };
        let thread = std::thread::Builder::new().name("provider".to_owned()).stack_size(STACK).spawn(work);
        thread.map_err(|e| Error::from_io("cannot start a thread for a provider", &e))?;
        Ok(sender)
    }

    /// Passes events on until the call is done, or gives no sign of life for too long.
    fn wait(
        &self,
        op: Op,
        fds: &[BorrowedFd<'_>],
        events: &Receiver<Event>,
        life: &Arc<Life>,
        cx: &Context<'_>,
    ) -> Result<Vec<u8>> {
        let observer = cx.observer();
        // Time is counted in ticks, so that a program that was stopped (Ctrl-Z) is not taken for one that hangs.
        let (mut seen, mut silent, mut stopping, mut before) = (0, Duration::ZERO, Duration::ZERO, Instant::now());
        loop {
            match events.recv_timeout(TICK.min(self.limit)) {
                Ok(Event::Progress(progress)) => observer.progress(&progress),
                Ok(Event::Log(level, message)) => observer.log(level, &message),
                Ok(Event::Done(result)) => return result,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::new(ErrorKind::Internal, format!("{} ended its thread", self.what)));
                }
            }
            let stop = observer.cancelled();
            life.cancelled.store(stop, Ordering::Relaxed);
            let limit = if stop { self.limit.min(GRACE) } else { self.limit };
            let now = Instant::now();
            let passed = now.duration_since(before).min(2 * TICK);
            before = now;
            if stop || !waits_for_reader(op, fds) {
                silent += passed;
            }
            if stop {
                stopping += passed;
            }
            let signs = life.signs.load(Ordering::Relaxed);
            if signs != seen {
                (seen, silent) = (signs, Duration::ZERO);
            }
            if silent >= limit || stop && stopping >= self.winding_up {
                life.cancelled.store(true, Ordering::Relaxed);
                lock(&self.hung).push((op, Arc::clone(life)));
                return Err(if stop {
                    let what = &self.what;
                    let cause = if silent >= limit {
                        format!("{what} hangs: its operation {op} did not react")
                    } else {
                        let secs = self.winding_up.as_secs_f32();
                        format!("{what} is still at work {secs} s after its operation {op} was asked to stop")
                    };
                    Error { causes: vec![cause], ..Error::new(ErrorKind::Cancelled, "cancelled") }
                } else {
                    self.unavailable(op, false)
                });
            }
        }
    }
}

impl<C: Caller + 'static> Caller for Watched<C> {
    fn call(&self, op: Op, request: &[u8], fds: &[BorrowedFd<'_>], cx: &Context<'_>) -> Result<Vec<u8>> {
        let hung = {
            let mut hung = lock(&self.hung);
            hung.retain(|(_, life)| !life.ended.load(Ordering::Relaxed));
            hung.first().map(|(op, _)| *op)
        };
        if let Some(op) = hung {
            return Err(self.unavailable(op, true));
        }
        let duplicate = |fd: &BorrowedFd<'_>| fd.try_clone_to_owned();
        let own = fds.iter().map(duplicate).collect::<std::io::Result<Vec<_>>>();
        let own = own.map_err(|e| Error::from_io("cannot duplicate a descriptor", &e))?;
        // Room for a burst of events; a provider that is faster waits for its caller.
        let (sender, events) = sync_channel(256);
        let cancelled = AtomicBool::new(cx.observer().cancelled());
        let life =
            Arc::new(Life { events: sender, cancelled, signs: AtomicU64::new(0), ended: AtomicBool::new(false) });
        let worker = self.start(Job { op, request: request.to_owned(), fds: own, life: Arc::clone(&life) })?;
        let result = self.wait(op, fds, &events, &life, cx);
        if life.ended.load(Ordering::Relaxed) {
            let mut idle = lock(&self.idle);
            if idle.len() < MAX_IDLE {
                idle.push(worker);
            }
        }
        result
    }
}

/// How long was waited, in ticks, so that a program that was stopped (Ctrl-Z) is not taken for one that hangs.
struct Waited {
    time: Duration,
    before: Instant,
}

impl Waited {
    fn begin() -> Self {
        Self { time: Duration::ZERO, before: Instant::now() }
    }

    /// Until now; to be asked once a tick.
    fn so_far(&mut self) -> Duration {
        let now = Instant::now();
        self.time += now.duration_since(self.before).min(2 * TICK);
        self.before = now;
        self.time
    }
}

/// Runs `work` on this thread; also gives what it left of the limit. When that has passed, another thread runs `late`, which ends the process.
///
/// The other thread is there and waits before `work` begins, and then does nothing but wait: as long as the system's loader is at work, no
/// thread can be started, nor can one register a thread-local value that is to be dropped (glibc's `__cxa_thread_atexit_impl` takes
/// the loader's lock), as channels do.
///
/// # Errors
/// If there can be no such thread.
pub(crate) fn guarded<T>(
    limit: Duration,
    late: impl FnOnce() -> Infallible + Send,
    work: impl FnOnce() -> T,
) -> std::io::Result<(T, Duration)> {
    let (stage, changed) = (Mutex::new(Stage::Before), Condvar::new());
    let enter = |next: Stage| {
        *lock(&stage) = next;
        changed.notify_all();
    };
    let watch = || {
        enter(Stage::Working);
        let mut waited = Waited::begin();
        let mut now = lock(&stage);
        while *now != Stage::Over {
            if waited.so_far() >= limit {
                match late() {}
            }
            now = changed.wait_timeout(now, TICK.min(limit)).unwrap_or_else(PoisonError::into_inner).0;
        }
        limit.saturating_sub(waited.so_far())
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("watchdog".to_owned()).spawn_scoped(scope, watch)?;
        let mut now = lock(&stage);
        while *now == Stage::Before {
            now = changed.wait(now).unwrap_or_else(PoisonError::into_inner);
        }
        drop(now);
        let done = std::panic::catch_unwind(AssertUnwindSafe(work));
        enter(Stage::Over);
        // A process is not to be copied while another thread comes to its end.
        let left = thread.join().unwrap_or(Duration::ZERO);
        Ok((done.unwrap_or_else(|panic| std::panic::resume_unwind(panic)), left))
    })
}

/// How far what is guarded has come.
#[derive(PartialEq, Eq)]
enum Stage {
    Before,
    Working,
    Over,
}

/// Runs `work` on a thread of its own; none if it has not come to its end within the limit. It stays on its thread then.
///
/// # Errors
/// If there can be no such thread.
pub(crate) fn within<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> std::io::Result<Option<T>> {
    let (sender, ends) = sync_channel(1);
    let run = move || {
        let _ = sender.send(work());
    };
    let thread = std::thread::Builder::new().name("provider".to_owned()).stack_size(STACK).spawn(run)?;
    let mut waited = Waited::begin();
    loop {
        match ends.recv_timeout(TICK.min(limit)) {
            Ok(done) => {
                // As above.
                let _ = thread.join();
                return Ok(Some(done));
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(std::io::Error::other("its thread ended")),
        }
        if waited.so_far() >= limit {
            return Ok(None);
        }
    }
}

/// The worker's observer.
impl Observer for Life {
    fn progress(&self, progress: &Progress) {
        self.signs.fetch_add(1, Ordering::Relaxed);
        // The next progress says more; a full channel drops this one.
        let _ = self.events.try_send(Event::Progress(progress.clone()));
    }

    fn cancelled(&self) -> bool {
        self.signs.fetch_add(1, Ordering::Relaxed);
        self.cancelled.load(Ordering::Relaxed)
    }

    fn log(&self, level: LogLevel, message: &str) {
        self.signs.fetch_add(1, Ordering::Relaxed);
        let _ = self.events.send(Event::Log(level, message.to_owned()));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::sync::atomic::AtomicU32;

    use super::*;

    /// More than any pipe holds, bytes.
    const MUCH: usize = 8 << 20;

    /// Does what a request says.
    struct Obedient;

    impl Caller for Obedient {
        fn call(&self, op: Op, request: &[u8], fds: &[BorrowedFd<'_>], cx: &Context<'_>) -> Result<Vec<u8>> {
            match request {
                b"echo" => Ok(op.as_str().into()),
                b"panic" => panic!("told to"),
                b"report" => {
                    for done in 0..10 {
                        cx.progress("reporting", done, Some(10));
                    }
                    cx.log(LogLevel::Warn, "done");
                    Ok(Vec::new())
                }
                b"write" => {
                    let mut file = std::fs::File::from(fds[0].try_clone_to_owned().unwrap());
                    file.write_all(b"written").unwrap();
                    Ok(Vec::new())
                }
                b"fill" => {
                    let mut file = std::fs::File::from(fds[0].try_clone_to_owned().unwrap());
                    file.write_all(&vec![b'x'; MUCH]).unwrap();
                    Ok(Vec::new())
                }
                b"doze" => {
                    let mut waker = std::fs::File::from(fds[0].try_clone_to_owned().unwrap());
                    waker.read_exact(&mut [0]).unwrap();
                    Ok(Vec::new())
                }
                b"go on" => {
                    let end = Instant::now() + Duration::from_secs(60);
                    while Instant::now() < end {
                        cx.progress("going on", 1, None);
                        std::thread::sleep(Duration::from_millis(2));
                    }
                    Ok(Vec::new())
                }
                b"wait" => loop {
                    cx.check_cancelled()?;
                    std::thread::sleep(Duration::from_millis(2));
                },
                _ => loop {
                    std::thread::sleep(Duration::from_secs(60));
                },
            }
        }
    }

    #[derive(Default)]
    struct Notes {
        progress: AtomicU32,
        log: Mutex<Vec<String>>,
        cancel: AtomicBool,
    }

    impl Observer for Notes {
        fn progress(&self, _: &Progress) {
            self.progress.fetch_add(1, Ordering::Relaxed);
        }

        fn cancelled(&self) -> bool {
            self.cancel.load(Ordering::Relaxed)
        }

        fn log(&self, _: LogLevel, message: &str) {
            lock(&self.log).push(message.to_owned());
        }
    }

    fn watched(limit: Duration) -> Watched<Obedient> {
        Watched::new(Obedient, "the obedient one".to_owned(), limit)
    }

    #[test]
    fn everything_passes_through() {
        let watched = watched(Duration::from_secs(20));
        let notes = Notes::default();
        let cx = Context::new(&notes);
        assert_eq!(watched.call(Op::Stat, b"echo", &[], &cx).unwrap(), b"stat");
        watched.call(Op::Stat, b"report", &[], &cx).unwrap();
        assert_eq!((notes.progress.load(Ordering::Relaxed), lock(&notes.log).len()), (10, 1));
        let (mut reader, writer) = std::io::pipe().unwrap();
        watched.call(Op::Read, b"write", &[writer.as_fd()], &cx).unwrap();
        drop(writer);
        let mut text = String::new();
        // Ends only if the copy of the descriptor is closed as well.
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "written");
        let error = watched.call(Op::Stat, b"panic", &[], &cx).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Internal);
        assert_eq!(lock(&watched.idle).len(), 1, "one thread served them all");
    }

    #[test]
    fn a_call_that_looks_whether_it_shall_stop_is_not_given_up_and_stops() {
        let watched = watched(Duration::from_millis(60));
        let notes = Notes::default();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(300));
                notes.cancel.store(true, Ordering::Relaxed);
            });
            let error = watched.call(Op::Snapshot, b"wait", &[], &Context::new(&notes)).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Cancelled);
        });
        assert_eq!(watched.call(Op::Stat, b"echo", &[], &Context::quiet()).unwrap(), b"stat");
    }

    #[test]
    fn a_call_that_goes_on_and_on_is_given_up_once_it_shall_stop() {
        // However long a silence is borne.
        let watched = Watched { winding_up: Duration::from_millis(600), ..watched(Duration::from_secs(60)) };
        let notes = Notes { cancel: AtomicBool::new(true), ..Notes::default() };
        let error = watched.call(Op::Snapshot, b"go on", &[], &Context::new(&notes)).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Cancelled);
        assert!(error.causes.iter().any(|cause| cause.contains("still at work 0.6 s")), "{error:?}");
        assert!(notes.progress.load(Ordering::Relaxed) > 0, "its signs of life came");
        assert_eq!(watched.call(Op::Stat, b"echo", &[], &Context::quiet()).unwrap_err().kind, ErrorKind::Unavailable);
    }

    #[test]
    fn a_call_that_hangs_does_not_take_others_with_it() {
        let watched = watched(Duration::from_millis(300));
        std::thread::scope(|scope| {
            let hanging = scope.spawn(|| watched.call(Op::Snapshot, b"hang", &[], &Context::quiet()));
            std::thread::sleep(Duration::from_millis(50));
            assert_eq!(watched.call(Op::Stat, b"echo", &[], &Context::quiet()).unwrap(), b"stat");
            let error = hanging.join().unwrap().unwrap_err();
            assert_eq!(error.kind, ErrorKind::Unavailable);
            assert!(error.message.contains("the obedient one") && error.message.contains("snapshot"), "{error}");
        });
        assert_eq!(watched.call(Op::Stat, b"echo", &[], &Context::quiet()).unwrap_err().kind, ErrorKind::Unavailable);
    }

    #[test]
    fn a_call_whose_output_nobody_reads_waits_and_does_not_hang() {
        let limit = Duration::from_millis(200);
        let watched = watched(limit);
        let (mut reader, writer) = std::io::pipe().unwrap();
        std::thread::scope(|scope| {
            let call = scope.spawn(|| {
                let answer = watched.call(Op::Read, b"fill", &[writer.as_fd()], &Context::quiet());
                drop(writer);
                answer
            });
            std::thread::sleep(5 * limit);
            let mut all = Vec::new();
            reader.read_to_end(&mut all).unwrap();
            call.join().unwrap().unwrap();
            assert_eq!(all.len(), MUCH);
        });
        // What has room for more is waited for no longer than anything else, nor is what is to stop.
        let (reader, writer) = std::io::pipe().unwrap();
        let error = watched.call(Op::Read, b"hang", &[writer.as_fd()], &Context::quiet()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unavailable);
        let notes = Notes { cancel: AtomicBool::new(true), ..Notes::default() };
        let stopped = self::watched(limit).call(Op::Read, b"fill", &[writer.as_fd()], &Context::new(&notes));
        assert_eq!(stopped.unwrap_err().kind, ErrorKind::Cancelled);
        drop(reader);
    }

    #[test]
    fn a_call_that_was_given_up_and_came_to_its_end_is_no_reproach() {
        let watched = watched(Duration::from_millis(100));
        let (sleeper, mut waker) = std::io::pipe().unwrap();
        let echo = || watched.call(Op::Stat, b"echo", &[], &Context::quiet());
        let error = watched.call(Op::Snapshot, b"doze", &[sleeper.as_fd()], &Context::quiet()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unavailable);
        let hint = error.hint.unwrap();
        assert!(hint.contains("--provider") && hint.contains("--hang-limit"), "{hint}");
        assert!(echo().unwrap_err().message.contains("did not come to an end"));
        waker.write_all(b"!").unwrap();
        let end = Instant::now() + Duration::from_secs(20);
        while echo().is_err() {
            assert!(Instant::now() < end, "it is never asked again");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(echo().unwrap(), b"stat");
    }
}
