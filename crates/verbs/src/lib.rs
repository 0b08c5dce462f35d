//! A safe interface to the verbs.
//!
//! Devices, protection domains, memory regions, typed queue pairs, postlists and completions over
//! the libibverbs ABI. A [`Provider`], chosen at run time, determines the NIC; code above this
//! crate is the same for every NIC.
//!
//! - [`Provider`], [`Device`], [`Context`]: the devices, and their limits.
//! - [`Capabilities`]: the capabilities of a device, and the reasons for those that it lacks.
//! - [`ProtectionDomain`], [`MemoryRegion`]: memory; contents are copied or atomic, never borrowed.
//! - [`QueuePair`]`<`[`Rc`]`>`, `<`[`Uc`]`>`, `<`[`Ud`]`>`: operations that a transport lacks do
//!   not compile.
//! - [`Postlist`], [`RecvList`]: several WRs, one doorbell.
//! - [`CompletionQueue`], [`WorkCompletion`], [`FailedCompletion`]: successes and failures are
//!   different types.
//! - [`Waiter`], [`MemoryRegion::wait_u64`]: waiting for memory that a peer writes.
//! - [`time`]: the clock, and work beside the verbs; both are virtual on a simulated NIC.
//!
//! # Features
//!
//! Each provider is a feature. Without a feature, [`raw::provider`] makes a provider from a table of entry points.
//!
//! - `softnic` (default): `Provider::softnic`, the software NIC in this process, and `Provider::default`. Memory of
//!   [`ProtectionDomain::alloc`] is then such that other processes of the host can map it.
//! - `system`: `Provider::system`, the machine's own libibverbs, which is opened at run time.
//! - `simnic`: `Provider::simnic`, simulated NICs. Without it, [`time`] and [`Waiter`] have no branch for virtual time.
//! - `tap` (default): `verbatim run --ledger` and `verbatim trace` count and trace the verbs of the program. It costs
//!   nothing while they do not.
//!
//! [`Provider::by_name`] of a provider that is not built names the feature to enable.
//!
//! # Errors
//!
//! Each kind of call has its own enum: [`OpenError`], [`RegisterError`], [`CreateQpError`], [`ModifyError`] and others.
//! A variant has the values that decide, such as the limit of the device, and says what to change. `errno()` and
//! `source()` have the errno. [`VerbError`] is any of them. Posts have a [`PostError`].
//!
//! ```
//! use verbs::{CreateQpError, Provider, Rc};
//!
//! let context = Provider::softnic().device(None)?.open()?;
//! let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
//! let qp = match pd.qp_builder::<Rc>(&cq, &cq).max_send_wr(1 << 30).build() {
//!     Err(CreateQpError::LimitExceeded { attribute, limit, .. }) => {
//!         println!("{attribute} may be {limit}");
//!         pd.qp_builder::<Rc>(&cq, &cq).max_send_wr(limit).build()?
//!     }
//!     other => other?,
//! };
//! # drop(qp);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Objects
//!
//! Objects keep the objects on which they depend alive. They may be dropped in any order and used
//! from any thread.
//!
//! ```
//! use verbs::{Access, Inline, Provider, Rc, WcBuffer};
//!
//! let context = Provider::softnic().device(None)?.open()?;
//! let (pd, cq) = (context.alloc_pd()?, context.create_cq(64)?);
//!
//! // Two queue pairs; the second could be in another process.
//! let (a, b) = (pd.qp_builder::<Rc>(&cq, &cq).build()?, pd.qp_builder::<Rc>(&cq, &cq).build()?);
//! let (to_a, to_b) = (a.endpoint(), b.endpoint());
//! let (a, _b) = (a.connect(&to_b)?, b.connect(&to_a)?);
//!
//! // RDMA WRITE into a region of the peer.
//! let region = pd.alloc(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
//! let remote = region.remote();
//! a.post_one(|list| {
//!     list.rdma_write(Inline(&42u64.to_ne_bytes()), remote).signaled().wr_id(1);
//! })?;
//! assert_eq!(region.wait_u64(0, std::time::Duration::from_secs(5), |v| v != 0)?, Some(42));
//!
//! let mut buffer = WcBuffer::<4>::new();
//! let done = verbs::poll_until(std::time::Duration::from_secs(5), || {
//!     cq.poll(&mut buffer).expect("the CQ is good").next().map(|wc| wc.map(|wc| wc.wr_id()).map_err(|e| e.status()))
//! });
//! assert_eq!(done, Some(Ok(1)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![deny(unsafe_code, missing_docs, clippy::missing_errors_doc)]

mod address_vector;
mod ah;
mod attr;
mod capabilities;
mod context;
mod copy;
mod cq;
mod cq_srq_ids;
mod device;
mod endpoint;
mod error;
mod event;
mod memory;
mod mr;
mod mr_slice;
mod payload;
mod pd;
mod polled_queues;
mod postlist;
mod prefetch;
mod provider;
mod qp;
mod qp_attribute_limits;
mod qp_builder;
pub mod raw;
mod recv_list;
mod register;
mod simulated;
mod srq;
pub mod time;
mod transport;
mod types;
mod wait;
mod wc_codes;
mod wr_array;

pub use ah::{AddressHandle, UdDestination};
pub use attr::{DeviceAttr, NodeType, PortAndGidIndex, PortAttr, TransportType};
pub use capabilities::{Capabilities, Capability, MaxInlineBytes, MissingCapability};
pub use context::Context;
pub use cq::{
    CompletionChannel, CompletionQueue, Completions, FailedCompletion, WcBuffer, WorkCompletion,
};
pub use device::Device;
pub use endpoint::QpEndpoint;
pub use error::{
    AddressError, CreateError, CreateQpError, DeviceError, EventError, ModifyError, ModifySrqError,
    OpenError, PollError, PostError, PostErrorKind, QueryError, RegisterError, VerbError,
};
pub use event::{AsyncEvent, PortEvent, QpEvent};
pub use mr::{MemoryRegion, RangeError};
pub use mr_slice::{MrSlice, RemoteMemory};
pub use payload::{HeaderOnly, Inline, Payload, ScatterDestination};
pub use pd::ProtectionDomain;
pub use polled_queues::PolledQueues;
pub use postlist::{Postlist, WrBuilder};
pub use prefetch::prefetch;
pub use provider::{Provider, ProviderError};
pub use qp::{QpAttr, QueuePair};
pub use qp_builder::{PreparedQp, QpBuilder};
pub use recv_list::RecvList;
pub use srq::SharedReceiveQueue;
pub use transport::{Connected, Rc, Transport, Uc, Ud};
pub use types::{
    Access, AtomicCap, Gid, GidType, LKey, Lid, LinkLayer, Mtu, PKey, PageSize, PortState, Psn,
    QKey, QpState, Qpn, RKey,
};
pub use wait::{Waiter, poll_until};
pub use wc_codes::{WcOpcode, WcStatus};

/// Bytes before the payload of every UD receive: the GRH, or room for it (IBTA vol. 1, 11.4.1.2).
pub const GRH_BYTES: usize = 40;
