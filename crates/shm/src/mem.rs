//! Memory that the NIC reads and writes: allocations that peers can map, and every copy.
//!
//! The owner, peers and this NIC write to registered memory at any time. The code therefore accesses it only
//! through raw pointers, never through a reference.
//!
//! - Allocation and registration: `shared_memory` allocates memory, `backing` finds the backing of
//!   a range, `share` lets peers map private memory.
//! - Regions: `mappings` holds the mappings of peers' memory; `region` reads, writes and modifies
//!   the bytes of a region.
//! - Instructions: `copy` and `word` access the bytes; `guard` turns faults of these accesses into
//!   errors.

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
pub use backing::{RangeBacking, ReachabilityGuard, find_or_make_backing};
pub use copy::copy;
pub use fault::MemoryFault;
pub use mappings::{PeerMapping, PeerMappings, SysvAttachment};
pub use present::{is_readable, prefault, probe_writable};
pub use region::{AccessibleRegion, BOUNCE};
pub use share::{declare_this_thread_the_engine, is_this_thread_the_engine};
pub use shared_memory::{PageSize, SharedMemory, alloc_shared, alloc_shared_in};
pub use word::AtomicOp;

/// Checks that a process can replace its pages while threads run; returns the error of
/// `userfaultfd(2)` if not.
pub(crate) fn check_userfaultfd() -> std::io::Result<()> {
    replace::check_writers_can_be_blocked()
}

/// Makes an access to memory that the program has unmapped return an error.
pub fn install_fault_handler() {
    guard::install();
}
