//! A model of the cost of verbs on a given NIC.
//!
//! The crate is arithmetic over a [`Profile`]: no input or output, no clock, no NIC.
//!
//! - [`profile`]: a NIC, its PCIe link, its port and its host, each number with its evidence.
//! - [`Operation`]: a verb on a transport, with payload and flags.
//! - [`wqe`], [`pcie`], [`wire`]: sizes of WQEs, transactions of the PCIe link, packets.
//! - [`Footprint`]: the PCIe transactions, packets and locks that an operation causes on both sides.
//! - [`Mix`], [`Bounds`]: the rate that each resource allows, and the bottleneck.
//! - [`op_profile`], [`guidelines`]: the counts of a program's operations, and the changes that the model advises.
//! - [`uncertainty`]: the range in which the real rate probably lies.
//!
//! ```
//! use nicmodel::{Footprint, PostMethod, Operation, Transport, Verb, profile};
//!
//! let cib = profile::builtin_profile("cib").expect("it is built in");
//! let send = Operation::new(Verb::Send, Transport::Ud, 60).inlined();
//!
//! // Sixteen SENDs of 60 bytes: two cache lines each, or one doorbell.
//! let single = Footprint::of_postlist(cib, &send, PostMethod::WqeByMmio, 16)?;
//! let batched = Footprint::of_postlist(cib, &send, PostMethod::Doorbell, 16)?;
//! assert_eq!(single.requester.mmio_writes(), 32.0);
//! assert_eq!(batched.requester.mmio_writes(), 1.0);
//! assert_eq!(batched.requester.dma_reads_without_recv_wqes(), 1.0);
//! # Ok::<(), nicmodel::OperationError>(())
//! ```

#![deny(missing_docs, clippy::missing_errors_doc)]
#![forbid(unsafe_code)]

pub mod atomic_locks;
pub mod bounds;
mod footprint;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod guidelines;
pub mod mixes;
pub mod op_profile;
mod operation;
pub mod pcie;
pub mod profile;
pub mod published;
pub mod uncertainty;
mod verb;
pub mod wire;
pub mod wqe;

pub use bounds::{Bounds, Mix, MixOperation, Role};
pub use footprint::{Footprint, LinkTransactions, MAX_POSTLIST_LEN};
pub use operation::{
    MAX_MESSAGE_BYTES, MAX_SGES, Operation, OperationError, PayloadDestination, PostMethod,
};
pub use profile::Profile;
pub use verb::{ATOMIC_BYTES, Transport, Verb};
