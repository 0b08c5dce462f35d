//! Runs calls of the NIC that need much stack on a thread of their own, if the program's thread has little.
//!
//! Programs make threads with stacks of 64 KiB. The set-up and the end of a connection need as much: they create a NIC,
//! read files and format text.

use std::cell::Cell;
use std::thread;

use crate::real_libc;

/// The stack that must be left for a call on the program's own thread.
const MIN_STACK_BYTES: usize = 192 << 10;
/// The stack of a thread that executes one call.
const OWN_STACK_BYTES: usize = 1 << 20;

thread_local! {
    /// The lowest address of this thread's stack and the one after the highest, once known.
    static STACK: Cell<Option<(usize, usize)>> = const { Cell::new(None) };
}

fn has_enough_stack() -> bool {
    let Ok(known) = STACK.try_with(Cell::get) else {
        return false;
    };
    let (low, high) = known.unwrap_or_else(|| {
        let found = real_libc::stack_of_this_thread().unwrap_or((0, 0));
        let _ = STACK.try_with(|stack| stack.set(Some(found)));
        found
    });
    let here = (&raw const known).addr();
    // A coroutine has a stack elsewhere.
    (low..high).contains(&here) && here - low >= MIN_STACK_BYTES
}

/// Runs `act`, on a thread of its own if this one has little stack. Returns `None`, without a run, if there is no thread.
pub(crate) fn run_if_possible<T: Send>(act: impl FnOnce() -> T + Send) -> Option<T> {
    if has_enough_stack() {
        return Some(act());
    }
    thread::scope(|scope| {
        let thread = thread::Builder::new()
            .name("verbatim-setup".to_owned())
            .stack_size(OWN_STACK_BYTES)
            .spawn_scoped(scope, act);
        thread.ok()?.join().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns whether a call runs on the calling thread, which has a stack of this size.
    fn runs_here(stack_bytes: usize) -> bool {
        let calling = thread::Builder::new().stack_size(stack_bytes).spawn(|| {
            let here = thread::current().id();
            run_if_possible(move || thread::current().id() == here)
        });
        let ran = calling.expect("a thread").join().expect("no panic");
        ran.expect("a thread")
    }

    #[test]
    fn a_thread_with_little_stack_leaves_the_call_to_another() {
        assert!(runs_here(1 << 20));
        assert!(!runs_here(64 << 10));
    }
}
