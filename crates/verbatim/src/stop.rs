//! Signals that stop a server.

use std::io::Read;
use std::sync::mpsc::{self, Sender};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Returns a channel that receives a message when the server must stop. The message is sent at
/// SIGINT or SIGTERM and, if `until_eof` is set, at the end of standard input.
pub(crate) fn stop_request_channel(until_eof: bool) -> Result<mpsc::Receiver<()>> {
    let (tell, stop) = mpsc::channel();
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("cannot catch signals")?;
    let by_signal: Sender<()> = tell.clone();
    std::thread::spawn(move || {
        // An error means that the server is stopping already.
        let _ = signals.forever().next().map(|_| by_signal.send(()));
    });
    if until_eof {
        std::thread::spawn(move || {
            let mut rest = [0; 4096];
            while matches!(std::io::stdin().read(&mut rest), Ok(read) if read > 0) {}
            let _ = tell.send(());
        });
    } else {
        // The sender must not be dropped, because the receiver would see a closed channel.
        std::mem::forget(tell);
    }
    Ok(stop)
}
