//! Commands of several steps, which SIGINT ends early with the results so far.
//!
//! A command makes [`CommandSteps`] with the number of its steps and runs each step through
//! [`CommandSteps::run_unless_interrupted`], which returns no result once SIGINT was received. The command then shows
//! the results that it has. `main` adds how many steps they cover, and exits with [`INTERRUPTED_EXIT_STATUS`].

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result};
use signal_hook::consts::SIGINT;
use signal_hook::flag;

use crate::progress::{Progress, start_progress};

/// The exit status that shells report for a process that SIGINT ended.
pub(crate) const INTERRUPTED_EXIT_STATUS: u8 = 130;

/// The steps of a command, with their display.
pub(crate) struct CommandSteps {
    display: Progress,
    process_steps: &'static ProcessSteps,
}

/// The steps of the process, of which a command may have several series.
#[derive(Default)]
struct ProcessSteps {
    is_signal_handler_registered: AtomicBool,
    is_interrupted: Arc<AtomicBool>,
    is_interruptible_load: AtomicBool,
    completed_steps: AtomicU64,
    total_steps: AtomicU64,
}

static PROCESS_STEPS: OnceLock<ProcessSteps> = OnceLock::new();

impl CommandSteps {
    /// Starts the display of `steps` steps. From now on the first SIGINT ends the command after
    /// the current step, and a second one ends the process.
    ///
    /// # Errors
    /// The system refuses a signal handler.
    pub(crate) fn new(steps: u64) -> Result<CommandSteps> {
        Ok(CommandSteps {
            process_steps: ProcessSteps::add_interruptible_steps(steps)?,
            display: start_progress(steps),
        })
    }

    /// Runs a step and returns its result. Returns `None` without running it after SIGINT. A step
    /// that fails after SIGINT returns `None`, too: the terminal sends the signal to all processes
    /// of the measurement.
    ///
    /// # Errors
    /// The error of the step.
    pub(crate) fn run_unless_interrupted<T>(
        &self,
        name: impl Into<String>,
        step: impl FnOnce() -> Result<T>,
    ) -> Result<Option<T>> {
        if is_interrupted() {
            return Ok(None);
        }
        self.show_step(name);
        match step() {
            Ok(result) => {
                self.complete_step();
                Ok(Some(result))
            }
            Err(error) if is_interrupted() => {
                tracing::info!("the interrupted step failed: {error:#}");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Shows a step that a library runs and reports.
    pub(crate) fn show_step(&self, name: impl Into<String>) {
        let name = name.into();
        let [done, of] = self.process_steps.completed_and_total();
        tracing::info!("step {} of {of}: {name}", done + 1);
        self.display.set_message(name);
    }

    /// Counts a completed step.
    pub(crate) fn complete_step(&self) {
        self.process_steps
            .completed_steps
            .fetch_add(1, Ordering::Relaxed);
        self.display.add_completed_steps(1);
    }
}

impl Drop for CommandSteps {
    fn drop(&mut self) {
        self.display.finish_and_clear();
    }
}

/// A load that runs for a time. The first SIGINT ends it early with the results so far, if the load calls
/// [`is_interrupted`] now and then. A second SIGINT ends the process.
///
/// The load counts as one step.
pub(crate) struct InterruptibleLoad(&'static ProcessSteps);

impl InterruptibleLoad {
    /// Catches SIGINT from now on.
    ///
    /// # Errors
    /// The system refuses a signal handler.
    pub(crate) fn start() -> Result<Self> {
        let step = ProcessSteps::add_interruptible_steps(1)?;
        step.is_interruptible_load.store(true, Ordering::Relaxed);
        tracing::info!("the load begins");
        Ok(Self(step))
    }

    /// Notes that the load has ended: early, if SIGINT was received.
    pub(crate) fn finish(self) {
        if !is_interrupted() {
            self.0.completed_steps.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl ProcessSteps {
    /// Adds steps of a command, and catches SIGINT from now on.
    fn add_interruptible_steps(steps: u64) -> Result<&'static Self> {
        let count = PROCESS_STEPS.get_or_init(ProcessSteps::default);
        count.total_steps.fetch_add(steps, Ordering::Relaxed);
        if !count
            .is_signal_handler_registered
            .swap(true, Ordering::Relaxed)
        {
            // In this order, so that the first signal finds the flag false.
            let status = i32::from(INTERRUPTED_EXIT_STATUS);
            flag::register_conditional_shutdown(SIGINT, status, count.is_interrupted.clone())
                .and_then(|_| flag::register(SIGINT, count.is_interrupted.clone()))
                .context("cannot catch SIGINT")?;
        }
        Ok(count)
    }

    /// Returns the completed steps and all steps.
    fn completed_and_total(&self) -> [u64; 2] {
        [&self.completed_steps, &self.total_steps].map(|count| count.load(Ordering::Relaxed))
    }
}

/// Returns true if the step of this process is an [`InterruptibleLoad`].
pub(crate) fn is_interruptible_load() -> bool {
    let count = PROCESS_STEPS.get();
    count.is_some_and(|count| count.is_interruptible_load.load(Ordering::Relaxed))
}

/// Returns true if SIGINT was received since the first [`CommandSteps::new`] or [`InterruptibleLoad::start`].
pub(crate) fn is_interrupted() -> bool {
    let count = PROCESS_STEPS.get();
    count.is_some_and(|count| count.is_interrupted.load(Ordering::Relaxed))
}

/// Returns the completed steps and all steps, if SIGINT was received and not all are complete.
pub(crate) fn steps_if_interrupted_early() -> Option<(u64, u64)> {
    let [done, of] = PROCESS_STEPS
        .get()
        .filter(|_| is_interrupted())?
        .completed_and_total();
    (done < of).then_some((done, of))
}
