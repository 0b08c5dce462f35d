//! What a device can do, found out before a system relies on it.
//!
//! Devices differ: RC, UC and UD are all there on ConnectX and on the kernel's Soft-RoCE, `irdma` and
//! `bnxt_re` have no UC, EFA has nothing but UD, and iWARP (`siw`, `cxgb4`) nothing but RC, without
//! immediates and mostly without atomics. Where the verbs say it ([`DeviceAttr`](crate::DeviceAttr)) they are believed; where
//! they do not, the smallest object of the kind is created and destroyed. How a device fails can be found
//! out neither way: there `known` lists drivers that are known to deviate, each with the test of
//! `verbs-conformance` that shows it.
//!
//! Only what some device lacks is here. Postlists, RDMA WRITE, signaled and unsignaled WRs, and the 40
//! bytes in front of the payload of a datagram come with the transport, on every device.

mod asking;
mod kinds;
mod known;

pub use kinds::{Capabilities, Capability, InlineBytes, Lack};
