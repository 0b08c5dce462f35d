//! The progress of a long command, on standard error: a bar on a terminal, else a line every ten seconds.

use std::io::IsTerminal;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// The time between two lines of progress.
const PROGRESS_LINE_INTERVAL: Duration = Duration::from_secs(10);

/// The progress of a command: a bar, or lines.
pub(crate) struct Progress {
    bar: ProgressBar,
    line_printer: Option<ProgressLinePrinter>,
}

/// Starts the progress display of a command of `steps` steps.
pub(crate) fn start_progress(steps: u64) -> Progress {
    let bar = ProgressBar::new(steps);
    let style =
        ProgressStyle::with_template("{elapsed:>4} [{bar:30}] {pos}/{len}, {eta} left {msg}")
            .expect("the template is right")
            .progress_chars("=> ");
    bar.set_style(style);
    let lines = if std::io::stderr().is_terminal() {
        bar.enable_steady_tick(Duration::from_millis(200));
        None
    } else {
        Some(ProgressLinePrinter::start(
            steps,
            PROGRESS_LINE_INTERVAL,
            |line| eprintln!("{line}"),
        ))
    };
    Progress {
        bar,
        line_printer: lines,
    }
}

impl Progress {
    /// Sets the text that names the current step.
    pub(crate) fn set_message(&self, message: impl Into<String>) {
        let message = message.into();
        if let Some(lines) = &self.line_printer {
            lines.state().message.clone_from(&message);
        }
        self.bar.set_message(message);
    }

    /// Adds `steps` completed steps.
    pub(crate) fn add_completed_steps(&self, steps: u64) {
        if let Some(lines) = &self.line_printer {
            lines.state().completed_steps += steps;
        }
        self.bar.inc(steps);
    }

    /// Removes the progress display.
    pub(crate) fn finish_and_clear(&self) {
        self.bar.finish_and_clear();
    }
}

/// A thread that prints lines of progress until this value is dropped.
struct ProgressLinePrinter {
    state_and_wakeup: Arc<(Mutex<ProgressState>, Condvar)>,
    printer: Option<JoinHandle<()>>,
}

struct ProgressState {
    message: String,
    completed_steps: u64,
    total_steps: u64,
    is_over: bool,
}

impl ProgressLinePrinter {
    fn start(of: u64, every: Duration, mut print: impl FnMut(&str) + Send + 'static) -> Self {
        let state = ProgressState {
            message: String::new(),
            completed_steps: 0,
            total_steps: of,
            is_over: false,
        };
        let shared = Arc::new((Mutex::new(state), Condvar::new()));
        let of_thread = shared.clone();
        let printer = std::thread::spawn(move || {
            let (state, changed) = &*of_thread;
            let begun = Instant::now();
            let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
            loop {
                let waited = changed.wait_timeout_while(state, every, |state| !state.is_over);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
                if state.is_over {
                    return;
                }
                print(&format_line(&state, begun.elapsed()));
            }
        });
        ProgressLinePrinter {
            state_and_wakeup: shared,
            printer: Some(printer),
        }
    }

    fn state(&self) -> MutexGuard<'_, ProgressState> {
        self.state_and_wakeup
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ProgressLinePrinter {
    fn drop(&mut self) {
        self.state().is_over = true;
        self.state_and_wakeup.1.notify_all();
        if let Some(printer) = self.printer.take() {
            // The thread returns no result, and an error would change nothing.
            let _ = printer.join();
        }
    }
}

/// Formats the steps done, the current step and an estimate of the remaining time.
fn format_line(state: &ProgressState, elapsed: Duration) -> String {
    let ProgressState {
        completed_steps: done,
        total_steps: of,
        message,
        ..
    } = state;
    let left = match done {
        0 => String::new(),
        #[allow(clippy::cast_precision_loss)] // counts of steps
        done => {
            let rest = of.saturating_sub(*done) as f64 / *done as f64;
            format!(", about {:.0} s left", rest * elapsed.as_secs_f64())
        }
    };
    let message = if message.is_empty() {
        String::new()
    } else {
        format!(": {message}")
    };
    format!(
        "progress: {done} of {of} steps in {} s{left}{message}",
        elapsed.as_secs()
    )
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn lines_come_again_and_again_and_end() {
        let (tell, told) = mpsc::channel();
        let lines = ProgressLinePrinter::start(4, Duration::from_millis(1), move |line| {
            // The test may have dropped the receiver.
            let _ = tell.send(line.to_owned());
        });
        lines.state().message = "rpc".to_owned();
        for _ in 0..2 {
            let line = told.recv_timeout(Duration::from_secs(30)).expect("a line");
            assert!(line.starts_with("progress: 0 of 4 steps"), "{line}");
        }
        drop(lines);
        assert!(told.iter().count() < 1_000_000, "the printer has ended");
    }

    #[test]
    fn what_is_left_is_estimated() {
        let state = ProgressState {
            message: "rpc".to_owned(),
            completed_steps: 1,
            total_steps: 4,
            is_over: false,
        };
        assert_eq!(
            format_line(&state, Duration::from_secs(20)),
            "progress: 1 of 4 steps in 20 s, about 60 s left: rpc"
        );
    }
}
