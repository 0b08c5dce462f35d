//! Signals that stop a server or end a measurement early.

use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;

/// Returns a channel that receives a message when the server should stop. That is at SIGINT or
/// SIGTERM and, if `until_eof`, at the end of standard input.
pub(crate) fn stop_signals(until_eof: bool) -> Result<mpsc::Receiver<()>> {
    let (tell, stop) = mpsc::channel();
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("cannot catch signals")?;
    let by_signal: Sender<()> = tell.clone();
    std::thread::spawn(move || {
        // An error means that the server stops already.
        let _ = signals.forever().next().map(|_| by_signal.send(()));
    });
    if until_eof {
        std::thread::spawn(move || {
            let mut rest = [0; 4096];
            while matches!(std::io::stdin().read(&mut rest), Ok(read) if read > 0) {}
            let _ = tell.send(());
        });
    } else {
        // The receiver must not see the channel close.
        std::mem::forget(tell);
    }
    Ok(stop)
}

/// The exit status that shells report for a process that SIGINT ended.
pub(crate) const INTERRUPTED: u8 = 130;

/// The state of a measurement of several steps that SIGINT can end early, with partial results.
#[derive(Default)]
struct Early {
    is_registered: AtomicBool,
    asked: Arc<AtomicBool>,
    done: AtomicU64,
    of: AtomicU64,
}

static EARLY: OnceLock<Early> = OnceLock::new();

/// Registers SIGINT handlers: the first SIGINT ends the measurement after the current step, a
/// second one ends the process. `steps` are added to the total.
pub(crate) fn end_early_on_interrupt(steps: u64) -> Result<()> {
    let early = EARLY.get_or_init(Early::default);
    early.of.fetch_add(steps, Ordering::Relaxed);
    if early.is_registered.swap(true, Ordering::Relaxed) {
        return Ok(());
    }
    // In this order, so that the first signal finds the flag false.
    flag::register_conditional_shutdown(SIGINT, i32::from(INTERRUPTED), early.asked.clone())
        .and_then(|_| flag::register(SIGINT, early.asked.clone()))
        .context("cannot catch SIGINT")?;
    Ok(())
}

/// Counts a completed step.
pub(crate) fn step_done() {
    if let Some(early) = EARLY.get() {
        early.done.fetch_add(1, Ordering::Relaxed);
    }
}

/// Returns true if SIGINT was received.
pub(crate) fn is_interrupted() -> bool {
    let early = EARLY.get();
    early.is_some_and(|early| early.asked.load(Ordering::Relaxed))
}

/// Returns the completed steps and all steps, if SIGINT was received and not all are complete.
pub(crate) fn interrupted_at() -> Option<(u64, u64)> {
    let early = EARLY.get().filter(|_| is_interrupted())?;
    let steps = [&early.done, &early.of].map(|n| n.load(Ordering::Relaxed));
    (steps[0] < steps[1]).then_some((steps[0], steps[1]))
}
