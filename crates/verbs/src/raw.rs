//! The C objects under the safe ones, for test suites that must break the rules of the safe API.
//!
//! The functions here are safe: they only show pointers and the table. Using those is not: the rules of
//! the man pages hold, and besides
//!
//! - a pointer is good only as long as the object it came from,
//! - nothing may be destroyed through it that a safe object will destroy again,
//! - the state that the safe object believes in (a queue pair that is connected, say) may be left.

use verbs_abi as abi;
pub use verbs_abi::Symbols;

use crate::{
    Access, AddressHandle, CompletionChannel, CompletionQueue, Connected, Context, MemoryRegion,
    PreparedQp, ProtectionDomain, Provider, QueuePair, SharedReceiveQueue, Transport, VerbError,
};

/// The entry points of a provider.
pub fn symbols(provider: &Provider) -> &'static Symbols {
    provider.symbols()
}

/// A provider over a table that the caller filled: a layer over another provider, say, that takes something
/// away or counts calls.
///
/// # Safety
/// Every function of the table keeps the rules of the man page of its name. An object made by one function is valid for
/// all others of the table and their `context->ops`, from any thread.
#[allow(unsafe_code)]
pub unsafe fn provider(name: &'static str, symbols: &'static Symbols) -> Provider {
    Provider::new(name, symbols)
}

/// The `ibv_context` of a context.
pub fn context(context: &Context) -> *mut abi::ibv_context {
    context.inner.raw
}

/// The `ibv_pd` of a protection domain.
pub fn pd(pd: &ProtectionDomain) -> *mut abi::ibv_pd {
    pd.inner.raw
}

/// The `ibv_mr` of a memory region.
pub fn mr(mr: &MemoryRegion) -> *mut abi::ibv_mr {
    mr.raw()
}

/// Registers memory of the caller's, which stays the caller's: for interfaces that hand over addresses.
///
/// # Errors
/// Those of `ibv_reg_mr(3)`.
///
/// # Safety
/// The `len` bytes at `addr` are valid for reads and writes until the region is dropped, and Rust has no reference to
/// bytes that the NIC or peers write meanwhile.
#[allow(unsafe_code)]
pub unsafe fn register(
    pd: &ProtectionDomain,
    addr: *mut u8,
    len: usize,
    access: Access,
) -> Result<MemoryRegion, VerbError> {
    // SAFETY: contract of this function.
    unsafe { MemoryRegion::of_caller(pd, addr, len, access) }
}

/// The `ibv_cq` of a completion queue.
pub fn cq(cq: &CompletionQueue) -> *mut abi::ibv_cq {
    cq.inner.raw
}

/// The `ibv_comp_channel` of a completion channel.
pub fn comp_channel(channel: &CompletionChannel) -> *mut abi::ibv_comp_channel {
    channel.raw()
}

/// The `ibv_srq` of a shared receive queue.
pub fn srq(srq: &SharedReceiveQueue) -> *mut abi::ibv_srq {
    srq.inner.raw
}

/// The `ibv_ah` of an address handle.
pub fn ah(ah: &AddressHandle) -> *mut abi::ibv_ah {
    ah.inner.raw
}

/// The `ibv_qp` of a queue pair.
pub fn qp<T: Transport>(qp: &QueuePair<T>) -> *mut abi::ibv_qp {
    qp.raw()
}

/// Connects a prepared queue pair by attributes that a connection manager made (`rdma_init_qp_attr(3)`), one step after the
/// other: to RTR, then to RTS. Each is the attributes and their mask.
///
/// # Errors
/// Those of `ibv_modify_qp(3)`.
pub fn connect<T: Connected>(
    qp: PreparedQp<T>,
    steps: &mut [(abi::ibv_qp_attr, i32)],
) -> Result<QueuePair<T>, VerbError> {
    qp.connect_by(steps)
}

/// The `ibv_qp` of a queue pair that is not connected yet.
pub fn prepared_qp<T: Connected>(qp: &PreparedQp<T>) -> *mut abi::ibv_qp {
    qp.raw()
}
