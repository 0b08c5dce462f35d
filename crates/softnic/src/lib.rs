//! The software NIC: a user-space RDMA NIC inside the process, for the processes of one user on one host.
//!
//! It is a provider: [`symbols`] returns libibverbs' entry points, and everything above it uses that ABI. Semantics are
//! those of the InfiniBand specification and of the `ibv_*` man pages.
//!
//! # The layers, bottom up
//!
//! - The crates `nic-core` (the decisions of a NIC) and [`shm`] (memory that several processes write).
//! - `device`, `identity`, `capabilities`, `sysfs`: the port, its addresses, and the identity and
//!   capabilities that the device reports. No state.
//! - `path`: the paths from one queue pair to another: messages, and the state machines at both ends.
//! - `region_cache`, `sge`, `imports`: the regions that work requests name, of this process or of one that shares its
//!   protection domain.
//! - `send`, `recv`: turn work requests into copies, atomics, records and messages, and these into completions.
//! - `live`, `abi_cell`: the table of live handles, and the structures that handles point to.
//! - `pd`, `mw`, `dm`, `qp`, `cq`, `srq`, `ah`, `event`, `context`, `nic`: one object of the verbs each, and the state
//!   that they share.
//! - `comp_cntr`: counters of completions.
//! - `faults`: the decisions of a fault plan; `incidents`: its effects on the objects.
//! - `why`: the check that made a work request fail.
//! - `engine`: the sleeping thread that makes progress while the program does not poll.
//! - `report`: a report on the path by packets for users.
//! - `abi`: the verbs as safe functions, and the C functions made of them.
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
#![deny(unsafe_code, missing_docs, clippy::missing_errors_doc)]
// `u64` and `usize` are the same size wherever this compiles; casts to narrower types carry their own reason.
#![allow(clippy::cast_possible_truncation)]

#[cfg(not(target_pointer_width = "64"))]
compile_error!("the software NIC maps segments of 4 GiB: it needs a 64-bit target");

mod abi;
#[allow(unsafe_code)]
mod abi_cell;
#[allow(unsafe_code)]
mod ah;
mod at_exit;
#[allow(unsafe_code)]
mod biased_lock;
mod capabilities;
mod comp_cntr;
#[allow(unsafe_code)]
mod context;
#[allow(unsafe_code)]
mod cq;
mod device;
mod dm;
mod engine;
mod event;
mod fallible_alloc;
mod faults;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod identity;
mod imports;
mod incidents;
mod listed_object;
mod live_handles;
mod lock;
mod multicast;
#[allow(unsafe_code)]
mod mw;
mod nic;
mod packet_report;
mod path;
mod pd;
mod process_nic;
#[allow(unsafe_code)]
mod qp;
mod qp_attributes;
#[allow(unsafe_code)]
mod recv;
mod region_cache;
mod registry;
mod ring_record;
#[allow(unsafe_code)]
mod send;
#[allow(unsafe_code)]
mod sge;
mod srq;
mod steering;
mod sysfs;
mod sysfs_file;
mod sysfs_pci;
mod sysfs_text;
mod why;
mod xrc;

pub use abi::gsi::gsi_functions;
pub use abi::newest;
pub use abi::{later_symbols, symbols};
pub use capabilities::{
    CAPABILITIES_VAR, CapabilitiesParseError, DeviceCapabilities, InvalidCapabilitiesVariable,
    Transport,
};
pub use device::{
    BadCount, DEVICE_COUNT_VAR, DeviceAndPortCounts, MAX_DEVICES, MAX_PORTS, PORT_COUNT_VAR,
};
pub use faults::register_fault_observer;
pub use identity::{BadDeviceVariable, BadIdentity, DEVICE_VAR, Identity};
pub use path::{DCQCN_VAR, PCAP_VAR, check_dcqcn_setting};
pub use shm::fabric::FabricError;
pub use shm::peer_access_check;
/// Number of bits by which a QP number is shifted right to get the slot of the process that has the queue pair.
pub const QPN_TO_PROCESS_SLOT_SHIFT: u32 = shm::fabric::layout::QP_INDEX_BITS;
pub use nic::{NicError, fabric_dir, last_error};
pub use packet_report::{
    AddressReport, PacketReport, RECEIVE_BUFFER_BYTES, ROCE_UDP_PORT, UdpPortUsers, packet_report,
};
pub use shm::mem::{
    MemoryFault, PageSize, SharedMemory, alloc_shared, alloc_shared_with_page_size,
    copy as copy_shared,
};
pub use sysfs::{SysfsContent, SysfsFile, sysfs_files, uverbs_names};
pub use sysfs_text::read_sysfs_text;
pub use why::WHY_VAR;
