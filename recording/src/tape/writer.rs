//! The thread that makes lines of what was handed over.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::disk::Disk;
use super::{Item, Listener, Options, Queue, Shared, Source, Summary};
use crate::cast::{Encoder, EventKind};
use crate::input::Redactor;
use crate::osc133::{Mark, Scanner};
use crate::utf8::Utf8;

/// So long is collected before it is written: one write for what comes together.
const COLLECT: Duration = Duration::from_millis(10);
/// So much is written at once, without waiting for more.
const ENOUGH: usize = 256 << 10;
/// How often input that waits to be shown is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

pub(super) struct Writer {
    shared: Arc<Shared>,
    disk: Disk,
    listener: Arc<dyn Listener>,
    encoder: Encoder,
    /// As it was after the last line in the file.
    before: Encoder,
    scanner: Scanner,
    redactor: Redactor,
    terminal: Utf8,
    errors: Utf8,
    bare_newlines: bool,
    /// The last byte shown was a return.
    after_return: bool,
    text: String,
    typed: String,
    lines: Vec<u8>,
    /// Bytes of output that they show.
    shown: u64,
    marks: Vec<(Mark, usize)>,
    summary: Summary,
}

impl Writer {
    pub(super) fn new(shared: Arc<Shared>, disk: Disk, options: &Options, listener: Arc<dyn Listener>) -> Self {
        Self {
            shared,
            disk,
            listener,
            encoder: Encoder::new(options.header.format),
            before: Encoder::new(options.header.format),
            scanner: Scanner::default(),
            redactor: Redactor::default(),
            terminal: Utf8::default(),
            errors: Utf8::default(),
            bare_newlines: options.bare_newlines,
            after_return: false,
            text: String::new(),
            typed: String::new(),
            lines: Vec::new(),
            shown: 0,
            marks: Vec::new(),
            summary: Summary::default(),
        }
    }

    /// Writes until it is over.
    pub(super) fn run(mut self) -> Summary {
        let mut taken = Queue::default();
        loop {
            let over = self.take(&mut taken);
            self.write(&taken, over);
            if over {
                break;
            }
            taken.bytes.clear();
            taken.items.clear();
        }
        self.summary.time = self.shared.start.elapsed();
        self.summary.bytes = self.disk.good();
        self.summary
    }

    /// Waits for something, and takes all of it; true if it is over.
    fn take(&mut self, taken: &mut Queue) -> bool {
        let shared = Arc::clone(&self.shared);
        let mut queue = shared.lock();
        if std::mem::take(&mut queue.busy) {
            shared.room.notify_all();
        }
        while queue.items.is_empty() && !queue.over {
            queue.idle = true;
            if !self.redactor.waits() {
                queue = shared.filled.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let (again, timeout) =
                shared.filled.wait_timeout(queue, LOOK_AGAIN).unwrap_or_else(PoisonError::into_inner);
            queue = again;
            if timeout.timed_out() {
                break;
            }
        }
        let until = Instant::now() + COLLECT;
        while !queue.over && !queue.items.is_empty() && queue.bytes.len() < ENOUGH {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            // Nobody wakes this while it is not idle: it looks again after a moment, and at the end of it.
            queue.idle = false;
            queue = shared.filled.wait_timeout(queue, left.min(COLLECT / 4)).unwrap_or_else(PoisonError::into_inner).0;
        }
        (queue.idle, queue.busy) = (false, true);
        std::mem::swap(&mut queue.bytes, &mut taken.bytes);
        std::mem::swap(&mut queue.items, &mut taken.items);
        let over = queue.over;
        drop(queue);
        shared.room.notify_all();
        over
    }

    fn write(&mut self, taken: &Queue, over: bool) {
        let mut at = 0;
        for (time, item) in &taken.items {
            let length = if let Item::Output(_, length) | Item::Input(_, length) = item { *length } else { 0 };
            let bytes = &taken.bytes[at..at + length];
            at += length;
            match item {
                Item::Output(source, _) if self.summary.stopped.is_some() => self.let_by(*source, bytes),
                _ if self.summary.stopped.is_some() => {}
                Item::Output(source, _) => self.output(*time, *source, bytes),
                Item::Input(echo, _) => {
                    self.redactor.input(bytes, *echo, *time, &mut self.typed);
                    self.input(*time);
                }
                Item::Event(kind) => self.encoder.event(&mut self.lines, *time, kind),
            }
            if self.lines.len() >= ENOUGH {
                self.put(*time);
            }
        }
        if self.summary.stopped.is_some() {
            return;
        }
        let now = self.shared.start.elapsed();
        if over {
            self.redactor.give_up(&mut self.typed);
        } else {
            self.redactor.tick(now, &mut self.typed);
        }
        self.input(now);
        if over {
            self.text.clear();
            self.terminal.finish(&mut self.text);
            self.errors.finish(&mut self.text);
            if !self.text.is_empty() {
                self.encoder.text(&mut self.lines, now, "o", &self.text);
            }
        }
        self.put(now);
    }

    /// Puts the lines into the file, or ends the recording there.
    fn put(&mut self, now: Duration) {
        if self.lines.is_empty() {
            return;
        }
        let mut start = self.disk.good();
        if let Err(why) = self.disk.put(&self.lines) {
            // Version 3 counts times from the last event that is there.
            self.encoder = self.before.clone();
            self.lines.clear();
            let label = format!("ah: the recording ends here: {why}");
            self.encoder.event(&mut self.lines, now, &EventKind::Marker(label));
            // A disk without a byte left has no room for it either.
            let _ = self.disk.put_last(&self.lines);
            self.summary.stopped = Some(why);
            self.summary.lost += self.shown;
            start = self.disk.good();
            self.marks.iter_mut().for_each(|(_, end)| *end = 0);
        }
        self.shared.written.store(self.disk.good(), Ordering::Release);
        for (mark, end) in self.marks.drain(..) {
            self.listener.mark(mark, start + end as u64);
        }
        self.before.clone_from(&self.encoder);
        self.shown = 0;
        self.lines.clear();
    }

    /// Listens to what comes after the recording's end.
    fn let_by(&mut self, source: Source, bytes: &[u8]) {
        self.summary.lost += bytes.len() as u64;
        if source == Source::Terminal {
            let (end, listener) = (self.disk.good(), &self.listener);
            self.scanner.push(bytes, |mark, _| listener.mark(mark, end));
        }
    }

    /// An event, or several: a mark's place is right behind it, however much came at once.
    fn output(&mut self, time: Duration, source: Source, bytes: &[u8]) {
        let mut marks = Vec::new();
        if source == Source::Terminal {
            self.scanner.push(bytes, |mark, at| marks.push((mark, at)));
        }
        let mut from = 0;
        for (mark, at) in marks {
            self.piece(time, source, &bytes[from..at]);
            self.marks.push((mark, self.lines.len()));
            from = at;
        }
        if from < bytes.len() {
            self.piece(time, source, &bytes[from..]);
        }
    }

    fn piece(&mut self, time: Duration, source: Source, bytes: &[u8]) {
        self.shown += bytes.len() as u64;
        self.text.clear();
        match source {
            Source::Terminal => self.terminal.push(bytes, &mut self.text),
            Source::Errors => self.errors.push(bytes, &mut self.text),
        }
        if self.text.is_empty() {
            // The beginning of a character.
        } else if self.bare_newlines || source == Source::Errors {
            self.encoder.bare(&mut self.lines, time, &self.text, &mut self.after_return);
        } else {
            self.encoder.text(&mut self.lines, time, "o", &self.text);
        }
        if self.redactor.waits() {
            let text = std::mem::take(&mut self.text);
            self.redactor.output(&text, &mut self.typed);
            self.text = text;
            self.input(time);
        }
    }

    fn input(&mut self, time: Duration) {
        if !self.typed.is_empty() {
            self.encoder.text(&mut self.lines, time, "i", &self.typed);
            self.typed.clear();
        }
    }
}
