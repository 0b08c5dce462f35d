//! Capabilities of a device, determined before a system relies on them.
//!
//! Devices differ. ConnectX and the kernel's Soft-RoCE have RC, UC and UD. The drivers `irdma` and
//! `bnxt_re` have no UC, and EFA has only UD. iWARP (`siw`, `cxgb4`) has only RC, without
//! immediates and mostly without atomics. If the verbs report a capability
//! ([`DeviceAttr`](crate::DeviceAttr)), the report is used. Otherwise the smallest object of the
//! kind is created and destroyed. Neither method shows deviations in error handling. Therefore
//! `known_gaps` lists drivers that are known to deviate, each with the test of `verbs-conformance` that
//! shows it.
//!
//! Only capabilities that some device lacks are listed. Postlists, RDMA WRITE, signaled and
//! unsignaled WRs, and the 40 bytes before the payload of a datagram come with the transport, on
//! every device.

mod capability_types;
mod known_gaps;
mod probing;

pub use capability_types::{Capabilities, Capability, MaxInlineBytes, MissingCapability};
