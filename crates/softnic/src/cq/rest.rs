//! What a thread does between polls that find nothing for long: it rests.
//!
//! A poll reads the lines in which messages arrive, and a program that waits for a WRITE looks at its line between polls.
//! Each such look takes the line from the peer, whose next store there has to wait until it is back. Who has waited for
//! a tenth of a millisecond and more loses nothing that could be measured by looking a little later, and its peers write
//! several times as much between two looks.

use std::cell::Cell;
use std::hint;

use crate::send::now_ns;

/// Polls in a row of one queue that find nothing until it is asked whether to [`rest`].
pub(super) const IDLE_POLLS: u32 = 4096;

/// Polls of such queues that a thread makes without finding anything elsewhere: who polls an idle queue besides a busy
/// one, as programs with one for sends and one for receives do, does not rest.
const FRUITLESS_POLLS: u32 = 1024;

/// How long: as little as leaves the latency of what comes after such a wait what it was, and as much as lets a peer
/// fill its store buffer several times.
const REST_NS: u64 = 200;

thread_local! {
    static FRUITLESS: Cell<u32> = const { Cell::new(0) };
}

/// The calling thread has found a completion.
#[inline]
pub(super) fn found() {
    FRUITLESS.set(0);
}

/// Rests if the calling thread has found nothing for long. It holds no lock.
#[cold]
pub(super) fn rest() {
    let fruitless = FRUITLESS.get().saturating_add(1);
    FRUITLESS.set(fruitless);
    if fruitless < FRUITLESS_POLLS {
        return;
    }
    let end = now_ns() + REST_NS;
    while now_ns() < end {
        hint::spin_loop();
    }
}
