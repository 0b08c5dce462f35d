//! Memory that the NIC reads and writes: allocation that peers can map, and every copy.
//!
//! Registered memory changes under our eyes: its owner, peers and this NIC write to it at any time. It is
//! therefore only reached through raw pointers here, never through a reference.
//!
//! Allocated and registered: `shared_memory` allocates, `backing` finds what lies behind a range, `share` lets peers map
//! private memory. Reached: `mappings` has what is mapped of peers, and `region` reads, writes and changes the bytes of
//! a region. Below both: `copy` and `word`, the accesses themselves, which `guard` lets fail.

mod areas;
mod atomic_lock;
mod backing;
mod copy;
mod coverage;
mod fault;
mod fork;
mod guard;
mod mappings;
mod page;
mod peer_file;
mod present;
mod region;
mod replace;
mod share;
mod shared_memory;
mod sharing;
mod word;

#[cfg(any(test, fuzzing))]
pub use areas::fuzz;
pub use backing::{Hold, RangeBacking, backing_of};
pub use copy::copy;
pub use fault::Fault;
pub use mappings::{Mappings, PeerMapping, SysvAttachment};
pub use present::{is_readable, is_writable, populate};
pub use region::{BOUNCE, Region};
pub use share::this_thread_is_the_engine;
pub use shared_memory::{PageSize, SharedMemory, alloc_shared, alloc_shared_in};
pub use word::AtomicOp;

/// Can pages be replaced while a program runs? The error is that of `userfaultfd(2)`.
pub(crate) fn replaces_pages() -> std::io::Result<()> {
    replace::is_possible()
}

/// Lets accesses to what a program has unmapped be errors.
pub fn survive_faults() {
    guard::install();
}
