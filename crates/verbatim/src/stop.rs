//! When a server is to stop.

use std::io::Read;
use std::sync::mpsc::{self, Sender};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Gets a message when the server is to stop: on SIGINT, SIGTERM and, if asked for, at the end of standard input.
pub(crate) fn stop_signals(until_eof: bool) -> Result<mpsc::Receiver<()>> {
    let (tell, stop) = mpsc::channel();
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("cannot catch signals")?;
    let by_signal: Sender<()> = tell.clone();
    std::thread::spawn(move || {
        // Nobody listens any more when the server is stopping anyway.
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
