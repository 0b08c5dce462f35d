//! The C structures of the verbs, inside the objects that they stand for.

use std::cell::UnsafeCell;

/// A structure of `verbs.h` at the start of an object; the program's handle points to it.
///
/// The object writes the structure before the handle is given out. Then the structure belongs to the program. Single
/// fields that the man pages let a verb change (a queue pair's `state`, a CQ's `cqe`) are written through
/// [`handle`](Self::handle).
#[repr(transparent)]
pub(crate) struct AbiCell<A>(UnsafeCell<A>);

// SAFETY: a shared `AbiCell` gives out its address and nothing else (`handle`), so sharing it reads and writes nothing;
// each access through the address is justified where it is made.
unsafe impl<A> Sync for AbiCell<A> {}
// SAFETY: the structures of `verbs.h` are plain data; their pointers are handed back to the program and not
// dereferenced here.
unsafe impl<A> Send for AbiCell<A> {}

impl<A> AbiCell<A> {
    pub(crate) fn new(abi: A) -> Self {
        Self(UnsafeCell::new(abi))
    }

    /// Returns the address of the structure, which is the program's handle.
    pub(crate) fn handle(&self) -> *mut A {
        self.0.get()
    }
}
