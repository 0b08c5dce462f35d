//! Tells the library's own system calls from those of the program.
//!
//! The library calls the C library by the names that it exports itself: a `std::fs::File` is closed by the exported
//! `close`. A program may have closed a descriptor by a bare system call, so that the table still has its number. The kernel
//! may give that number to a file of the software NIC. Without this module the NIC's own `close` would release the stale
//! connection while the NIC holds its locks.

use std::cell::Cell;

use crate::real_libc;

/// The calls of a thread that are the library's own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum OwnCalls {
    None,
    /// Calls that change the table. A handler of a signal may still move bytes meanwhile.
    TableChanges,
    All,
}

thread_local! {
    static OWN_CALLS: Cell<OwnCalls> = const { Cell::new(OwnCalls::None) };
}

/// Makes the calls of this thread the library's own, until drop.
struct Guard(OwnCalls);

impl Guard {
    fn new(calls: OwnCalls) -> Self {
        // A thread whose variables are gone ends, and has no lock of the NIC.
        let set = OWN_CALLS.try_with(|own| own.replace(calls.max(own.get())));
        Self(set.unwrap_or(OwnCalls::None))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = OWN_CALLS.try_with(|own| own.set(self.0));
    }
}

fn own_calls() -> OwnCalls {
    OWN_CALLS.try_with(Cell::get).unwrap_or(OwnCalls::None)
}

/// Runs `act`, which uses the NIC, without a change of the table by the NIC's files. For calls that move bytes, because
/// it costs no system call.
#[inline]
pub(crate) fn without_table_changes<T>(act: impl FnOnce() -> T) -> T {
    let _guard = Guard::new(OwnCalls::TableChanges);
    act()
}

/// Runs `act`, all of whose calls are the library's own. Signals are blocked, because the calls of a handler would not be.
pub(crate) fn as_library<T>(act: impl FnOnce() -> T) -> T {
    real_libc::with_signals_blocked(|| {
        let _guard = Guard::new(OwnCalls::All);
        act()
    })
}

/// Makes all calls of this thread the library's own, for good: it is a thread of the library.
pub fn declare_this_thread_the_librarys() {
    let _ = OWN_CALLS.try_with(|own| own.set(OwnCalls::All));
}

/// Returns true if a call of this thread must not change the table of descriptors.
#[inline]
#[must_use]
pub fn must_keep_table() -> bool {
    own_calls() != OwnCalls::None
}

/// Returns true if all calls of this thread are the library's own.
#[inline]
pub(crate) fn are_all_calls_own() -> bool {
    own_calls() == OwnCalls::All
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_the_librarys_own_until_the_outermost_guard_ends() {
        let seen = || (must_keep_table(), are_all_calls_own());
        assert_eq!(seen(), (false, false));
        without_table_changes(|| {
            assert_eq!(seen(), (true, false));
            as_library(|| {
                assert_eq!(seen(), (true, true));
                without_table_changes(|| assert_eq!(seen(), (true, true)));
                assert_eq!(seen(), (true, true));
            });
            assert_eq!(seen(), (true, false));
        });
        assert_eq!(seen(), (false, false));
    }
}
