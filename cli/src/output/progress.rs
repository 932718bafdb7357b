//! Progress on a terminal, and cancellation: what watches every long operation.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use ah_plugin_api::{LogLevel, Observer, Progress};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output::Ui;

/// Operations shorter than this show nothing.
const PATIENCE: Duration = Duration::from_secs(1);

/// The stage of a restore from which on it is brought to its end.
const CHANGING: &str = "changing files";

/// How long Ctrl-C may wait for an answer then.
const ANSWER: Duration = Duration::from_millis(50);

/// Watches an operation for the person in front of the terminal.
pub(crate) struct Watcher {
    ui: Ui,
    interrupted: Arc<AtomicBool>,
    started: Instant,
    changing: Once,
}

impl Watcher {
    /// Starts the clock.
    pub(crate) fn new(ui: Ui, interrupted: Arc<AtomicBool>) -> Self {
        Self { ui, interrupted, started: Instant::now(), changing: Once::new() }
    }

    /// Answers Ctrl-C from now on, for as long as the process lives: nothing else does while files change.
    fn answer_interrupts(&self) {
        let (ui, interrupted) = (self.ui.clone(), Arc::clone(&self.interrupted));
        std::thread::spawn(move || {
            while !interrupted.load(Ordering::Relaxed) {
                std::thread::sleep(ANSWER);
            }
            ui.note("finishing: stopping half-way would help nobody; `ah agent fs undo` takes it back");
        });
    }
}

impl Observer for Watcher {
    fn progress(&self, progress: &Progress) {
        if progress.stage == CHANGING {
            self.changing.call_once(|| self.answer_interrupts());
        }
        if !self.ui.stderr_terminal || self.ui.quiet || self.ui.json || self.started.elapsed() < PATIENCE {
            return;
        }
        // A thread that finds another one drawing has nothing to add.
        let Ok(mut held) = self.ui.bar.try_lock() else { return };
        let bar = held.get_or_insert_with(new_bar);
        if bar.message() != progress.stage || bar.length() != progress.total {
            let template =
                if progress.total.is_some() { "{msg} {wide_bar} {human_pos}/{human_len}" } else { "{msg} {human_pos}" };
            bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.set_message(progress.stage.clone());
            match progress.total {
                Some(total) => bar.set_length(total),
                None => bar.unset_length(),
            }
        }
        bar.set_position(progress.done);
    }

    fn cancelled(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    fn log(&self, level: LogLevel, message: &str) {
        if level == LogLevel::Warn {
            self.ui.warning(message, None);
        }
    }
}

fn new_bar() -> ProgressBar {
    ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10))
}
