//! The software NIC: a user-space RDMA NIC inside the process, for the processes of one user on one host.
//!
//! It is a provider: [`symbols`] gives libibverbs' entry points, and everything above it speaks that ABI.
//! Semantics are those of the InfiniBand specification and of the `ibv_*` man pages.
//!
//! # The layers, bottom up
//!
//! - `fabric`: the shared memory of the processes of one user: who is there, their segments, the rings
//!   between queue pairs, the mailbox that announces them. All of it may be written by a process that is
//!   killed or broken, and is never trusted.
//! - `mem`, `keys`, `region_cache`: registered memory: what lies behind it, how peers reach it, L_Keys and
//!   R_Keys, and every copy. No protocol rules.
//! - `qp_state`, `device`, `strings`, `sysfs`, `sysfs_text`: tables of the specification, the port and its addresses. No state.
//! - `send`, `recv`: the verbs: work requests become copies, atomics and records; records become completions.
//! - `qp`, `cq`, `srq`, `ah`, `event`, `context`, `nic`: one object of the verbs each, and their common home.
//! - `engine`: the sleeping thread that makes the progress nobody polls for.
//! - `abi`: the C functions.
//!
//! # Example
//!
//! ```
//! let symbols = softnic::symbols();
//! let mut count = 0;
//! // SAFETY: a place for the count; the list is freed with the same provider.
//! unsafe {
//!     let list = (symbols.ibv_get_device_list)(&mut count);
//!     assert_eq!(count, 1);
//!     (symbols.ibv_free_device_list)(list);
//! }
//! ```
#![deny(unsafe_code)]
// `u64` and `usize` are the same size wherever this compiles; casts to narrower types carry their own reason.
#![allow(clippy::cast_possible_truncation)]
// Under loom only the lock-free parts of the fabric are compiled.
#![cfg_attr(loom, allow(dead_code))]

#[cfg(not(target_pointer_width = "64"))]
compile_error!("the software NIC maps segments of 4 GiB: it needs a 64-bit target");

#[cfg(not(loom))]
#[allow(unsafe_code)]
mod abi;
#[cfg(not(loom))]
#[allow(unsafe_code)]
mod ah;
#[cfg(not(loom))]
#[allow(unsafe_code)]
mod arming;
#[cfg(not(loom))]
mod barrier;
#[cfg(not(loom))]
#[allow(unsafe_code)]
mod biased_lock;
#[cfg(not(loom))]
#[allow(unsafe_code)]
mod context;
#[cfg(not(loom))]
#[allow(unsafe_code)]
mod cq;
#[cfg(not(loom))]
mod device;
#[cfg(not(loom))]
mod engine;
#[cfg(not(loom))]
mod errno;
#[cfg(not(loom))]
mod event;
#[cfg(not(loom))]
#[allow(unsafe_code)]
mod fabric;
#[cfg(loom)]
#[allow(unsafe_code)]
mod fabric {
    pub(crate) mod mailbox;
    pub(crate) mod ring;
}
#[cfg(all(any(test, fuzzing), not(loom)))]
pub mod fuzz;
#[cfg(not(loom))]
mod identity;
#[cfg(not(loom))]
mod imports;
#[cfg(not(loom))]
mod keys;
#[cfg(not(loom))]
#[allow(unsafe_code)]
mod mem;
#[cfg(not(loom))]
mod multicast;
#[cfg(not(loom))]
mod nic;
#[cfg(not(loom))]
#[allow(unsafe_code)]
mod qp;
#[cfg(not(loom))]
mod qp_state;
#[cfg(not(loom))]
#[allow(unsafe_code)]
mod recv;
#[cfg(not(loom))]
mod region_cache;
#[cfg(not(loom))]
#[allow(unsafe_code)]
mod send;
#[cfg(not(loom))]
#[allow(unsafe_code)]
mod sge;
#[cfg(not(loom))]
#[allow(unsafe_code)]
mod srq;
#[cfg(not(loom))]
mod steering;
#[cfg(not(loom))]
mod strings;
#[allow(unsafe_code)]
mod sync;
#[cfg(not(loom))]
mod sysfs;
mod sysfs_text;
#[cfg(not(loom))]
mod xrc;

#[cfg(not(loom))]
pub use abi::{later_symbols, symbols};
#[cfg(not(loom))]
pub use fabric::FabricError;
#[cfg(not(loom))]
pub use identity::{BadDevice, BadIdentity, DEVICE_VAR, Identity};
/// How far a QP number is shifted right to tell the process that has the queue pair.
#[cfg(not(loom))]
pub const PROCESS_SHIFT: u32 = fabric::layout::QP_BITS;
#[cfg(not(loom))]
pub use mem::{PageSize, SharedMemory, alloc_shared, alloc_shared_in};
#[cfg(not(loom))]
pub use nic::{NicError, fabric_dir, last_error};
#[cfg(not(loom))]
pub use sysfs::{SysfsFile, UVERBS_NAME, sysfs_files};
pub use sysfs_text::read_sysfs_text;
