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

mod access_check;
mod atomic_lock;
mod backing;
mod copy;
mod fork;
mod guarded_access;
mod guarded_atomics;
mod memory_fault;
mod page;
mod peer_mappings;
mod peer_memfd;
mod process_mappings;
mod range_coverage;
mod region;
mod replace_pages;
mod share_pages;
mod shared_memory;
mod shared_pages;

pub use access_check::{is_readable, prefault, probe_writable};
pub use backing::{RangeBacking, ReachabilityGuard, find_or_make_backing};
pub use copy::copy;
pub use guarded_atomics::AtomicOp;
pub use memory_fault::MemoryFault;
pub use peer_mappings::{PeerMapping, PeerMappings, SysvAttachment};
#[cfg(any(test, fuzzing))]
pub use process_mappings::fuzz;
pub use region::{AccessibleRegion, BOUNCE_BUFFER_BYTES};
pub use share_pages::{declare_this_thread_the_engine, is_this_thread_the_engine};
pub use shared_memory::{PageSize, SharedMemory, alloc_shared, alloc_shared_with_page_size};

/// Checks that a process can replace its pages while threads run; returns the error of
/// `userfaultfd(2)` if not.
pub(crate) fn check_userfaultfd() -> std::io::Result<()> {
    replace_pages::check_writers_can_be_blocked()
}

/// Makes an access to memory that the program has unmapped return an error.
pub fn install_fault_handler() {
    guarded_access::install_fault_handlers();
}
