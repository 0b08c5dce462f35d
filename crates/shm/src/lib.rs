//! Memory that several processes write: the fabric of the processes of one user, and registered memory.
//!
//! All unsafe code that touches memory of other processes, or memory that other processes can write, is in this
//! crate. Nothing read from such memory is trusted: indices are masked or checked, and a process may have died
//! between any two instructions.
//!
//! - [`fabric`]: the directory of processes, their segments, rings between queue pairs, connection notices,
//!   detection of dead processes and cleanup.
//! - [`mem`]: the backing of registered memory, access to peers' memory, every copy, remote atomics.
//! - [`keys`]: L_Keys and R_Keys, memory windows, and pinning of a region during an access.
//! - [`peer_access_check`]: the access to other processes' memory that this machine permits.
//! - [`membarrier`], [`sync`], [`clock`], [`errno`]: small helpers of these modules.
//!
//! The crate knows neither work requests nor completions.
#![deny(unsafe_code)]
// `u64` and `usize` are the same size wherever this compiles; casts to narrower types carry their own reason.
#![allow(clippy::cast_possible_truncation)]
// Under loom only the lock-free parts of the fabric are compiled.
#![cfg_attr(loom, allow(dead_code))]

#[cfg(not(target_pointer_width = "64"))]
compile_error!("the software NIC maps segments of 4 GiB: it needs a 64-bit target");

pub mod clock;
#[cfg(not(loom))]
#[allow(unsafe_code)]
pub mod fabric;
#[cfg(not(loom))]
pub mod membarrier;
#[cfg(not(loom))]
#[allow(unsafe_code)]
pub mod peer_access_check;
#[cfg(loom)]
#[allow(unsafe_code)]
mod fabric {
    pub mod armed;
    pub mod mailbox;
    pub mod ring;
}
#[cfg(not(loom))]
pub mod errno;
#[cfg(all(any(test, fuzzing), not(loom)))]
pub mod fuzz;
#[cfg(not(loom))]
pub mod keys;
#[cfg(not(loom))]
mod lock;
#[cfg(not(loom))]
#[allow(unsafe_code)]
pub mod mem;
#[cfg(not(loom))]
#[allow(unsafe_code)]
mod process_memory;
#[cfg(not(loom))]
mod set_file_len;
#[allow(unsafe_code)]
pub mod sync;
