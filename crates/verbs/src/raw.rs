//! Access to the C objects behind the safe ones, for test suites that must break the rules of the
//! safe API.
//!
//! Most functions here are safe, since they only return pointers and the table. Using the pointers
//! is unsafe. The rules of the man pages apply, and in addition:
//!
//! - A pointer is valid only as long as the object that it came from.
//! - An object must not be destroyed through a pointer, since the safe object destroys it again.
//! - A pointer may change state that the safe object relies on, such as that of a connected queue
//!   pair.

use verbs_abi as abi;
pub use verbs_abi::Symbols;

use crate::{
    Access, AddressHandle, CompletionChannel, CompletionQueue, Connected, Context, MemoryRegion,
    ModifyError, PreparedQp, ProtectionDomain, Provider, QueuePair, RegisterError,
    SharedReceiveQueue, Transport,
};

/// Returns the entry points of a provider.
pub fn symbols(provider: &Provider) -> &'static Symbols {
    provider.symbols()
}

/// Makes a provider from the caller's table, for example a layer over another provider that removes
/// capabilities or counts calls.
///
/// # Safety
/// Every function of the table obeys the man page of its name. An object made by one function is
/// valid for all others of the table and their `context->ops`, from any thread.
#[allow(unsafe_code)]
pub unsafe fn provider(name: &'static str, symbols: &'static Symbols) -> Provider {
    Provider::new(name, symbols)
}

/// Returns the `ibv_context` of a context.
pub fn context(context: &Context) -> *mut abi::ibv_context {
    context.inner.raw
}

/// Returns the `ibv_pd` of a protection domain.
pub fn pd(pd: &ProtectionDomain) -> *mut abi::ibv_pd {
    pd.inner.raw
}

/// Returns the `ibv_mr` of a memory region.
pub fn mr(mr: &MemoryRegion) -> *mut abi::ibv_mr {
    mr.raw()
}

/// Registers memory that the caller keeps owning, for interfaces that pass addresses.
///
/// # Errors
/// [`RegisterError`], by the errno of `ibv_reg_mr(3)`.
///
/// # Safety
/// The `len` bytes at `addr` are valid for reads and writes until the region is dropped. Meanwhile, Rust has no
/// reference to bytes that the NIC or peers write.
#[allow(unsafe_code)]
pub unsafe fn register_borrowed(
    pd: &ProtectionDomain,
    addr: *mut u8,
    len: usize,
    access: Access,
) -> Result<MemoryRegion, RegisterError> {
    // SAFETY: contract of this function.
    unsafe { MemoryRegion::register_borrowed(pd, addr, len, access) }
}

/// Returns the `ibv_cq` of a completion queue.
pub fn cq(cq: &CompletionQueue) -> *mut abi::ibv_cq {
    cq.inner.raw
}

/// Returns the `ibv_comp_channel` of a completion channel.
pub fn comp_channel(channel: &CompletionChannel) -> *mut abi::ibv_comp_channel {
    channel.raw()
}

/// Returns the `ibv_srq` of a shared receive queue.
pub fn srq(srq: &SharedReceiveQueue) -> *mut abi::ibv_srq {
    srq.inner.raw
}

/// Returns the `ibv_ah` of an address handle.
pub fn ah(ah: &AddressHandle) -> *mut abi::ibv_ah {
    ah.inner.raw
}

/// Returns the `ibv_qp` of a queue pair.
pub fn qp<T: Transport>(qp: &QueuePair<T>) -> *mut abi::ibv_qp {
    qp.raw()
}

/// Connects a prepared queue pair by attributes of a connection manager (`rdma_init_qp_attr(3)`),
/// in steps: to RTR, then to RTS. Each step is the attributes and their mask.
///
/// # Errors
/// [`ModifyError`], by the errno of `ibv_modify_qp(3)`.
pub fn connect<T: Connected>(
    qp: PreparedQp<T>,
    steps: &mut [(abi::ibv_qp_attr, i32)],
) -> Result<QueuePair<T>, ModifyError> {
    qp.connect_with_steps(steps)
}

/// Returns the `ibv_qp` of a queue pair that is not connected yet.
pub fn prepared_qp<T: Connected>(qp: &PreparedQp<T>) -> *mut abi::ibv_qp {
    qp.raw()
}
