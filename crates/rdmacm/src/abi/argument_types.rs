//! Argument types of librdmacm's functions that safe code can use.
//!
//! [`Arg::from_c`] makes each value once, from a C argument, and relies on the man page. An id is NULL or live, a
//! channel is NULL or made by this library, an address has the length of its family. All dereferences of C pointers are
//! in this module, except those of structures that only `addrinfo` and `endpoints` use.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use c_edge::Arg;
use libc::sockaddr;
use verbs_abi::*;

use crate::addr::{self, IdAddress};
use crate::channel::EventChannel;
use crate::cm_event;
use crate::endpoint::EndpointEvent;
use crate::errno::{INVALID, Result};
use crate::id::{ChannelHandle, CmId};
use crate::id_lifecycle;

/// An id that the call uses, or NULL.
pub struct IdArg<'a>(Option<&'a CmId>);

impl Arg for IdArg<'_> {
    type C = *mut rdma_cm_id;
    unsafe fn from_c(c: *mut rdma_cm_id) -> Self {
        // SAFETY: NULL or live until the function returns (contract of `from_c`).
        Self(unsafe { CmId::borrow(c) }.ok())
    }
}

impl<'a> IdArg<'a> {
    /// Returns the id; `EINVAL` for NULL.
    pub(super) fn get(self) -> Result<&'a CmId> {
        self.0.ok_or(INVALID)
    }
}

/// An id that no other thread uses, because it is being destroyed or was just made.
pub struct OwnedId(*mut rdma_cm_id);

impl Arg for OwnedId {
    type C = *mut rdma_cm_id;
    unsafe fn from_c(c: *mut rdma_cm_id) -> Self {
        Self(c)
    }
}

impl OwnedId {
    /// Returns the id; `EINVAL` for NULL.
    pub(super) fn id(&self) -> Result<&CmId> {
        // SAFETY: NULL or live until this value is consumed.
        unsafe { CmId::borrow(self.0) }
    }

    /// Returns the handle for the program.
    pub(super) fn into_handle(self) -> *mut rdma_cm_id {
        self.0
    }

    /// Destroys the id: `rdma_destroy_id(3)`; `EINVAL` for NULL.
    pub(super) fn destroy(self) -> Result {
        // SAFETY: NULL or live, and not used afterwards.
        unsafe { id_lifecycle::destroy_id(self.0) }
    }

    /// Destroys the id with its queues: `rdma_destroy_ep(3)`.
    pub(super) fn destroy_with_queues(self) {
        // SAFETY: as in `destroy`.
        unsafe { id_lifecycle::destroy_with_queues(self.0) };
    }
}

/// An event channel of this library, or NULL.
#[derive(Clone, Copy)]
pub struct ChannelArg(*mut rdma_event_channel);

impl Arg for ChannelArg {
    type C = *mut rdma_event_channel;
    unsafe fn from_c(c: *mut rdma_event_channel) -> Self {
        Self(c)
    }
}

impl ChannelArg {
    pub(super) const NULL: Self = Self(std::ptr::null_mut());

    /// Makes a channel.
    pub(super) fn create() -> Result<Self> {
        ChannelHandle::create().map(Self)
    }

    /// Gives an id another channel; returns its previous one.
    pub(super) fn replace_channel_of(self, id: &CmId) -> Self {
        let old = Self(id.channel_handle());
        id.set_channel_handle(self.0);
        old
    }

    pub(super) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Returns the channel; `EINVAL` for NULL, `EBADF` if it was destroyed.
    pub(super) fn channel(self) -> Result<Arc<EventChannel<EndpointEvent>>> {
        // SAFETY: NULL or a handle of this library, as `from_c` and `create` guarantee.
        unsafe { ChannelHandle::channel(self.0) }
    }

    pub(super) fn destroy(self) {
        // SAFETY: as in `channel`.
        unsafe { ChannelHandle::destroy(self.0) };
    }

    /// Makes an id on this channel; the id is synchronous if the channel is NULL.
    pub(super) fn new_id(
        self,
        context: *mut c_void,
        ps: rdma_port_space,
        qp_type: ibv_qp_type,
    ) -> Result<OwnedId> {
        // SAFETY: as in `channel`.
        unsafe { id_lifecycle::new_id(self.0, context, ps, qp_type) }.map(OwnedId)
    }
}

/// An address, NULL, or an address of a family that ids do not support.
pub struct AddressArg {
    is_null: bool,
    addr: Option<IdAddress>,
}

impl Arg for AddressArg {
    type C = *mut sockaddr;
    unsafe fn from_c(c: *mut sockaddr) -> Self {
        Self {
            is_null: c.is_null(),
            // SAFETY: NULL, or an address of the length of its family (contract of `from_c`).
            addr: unsafe { addr::read_sockaddr(c) },
        }
    }
}

impl AddressArg {
    /// Returns the address; `EINVAL` for NULL and for other families.
    pub(super) fn get(self) -> Result<IdAddress> {
        self.addr.ok_or(INVALID)
    }

    /// Returns the address, or `None` for NULL; `EINVAL` for other families.
    pub(super) fn optional(self) -> Result<Option<IdAddress>> {
        if self.is_null {
            Ok(None)
        } else {
            self.get().map(Some)
        }
    }
}

/// The parameters of a connection, or NULL.
pub struct ConnParam(*mut rdma_conn_param);

impl Arg for ConnParam {
    type C = *mut rdma_conn_param;
    unsafe fn from_c(c: *mut rdma_conn_param) -> Self {
        Self(c)
    }
}

impl ConnParam {
    pub(super) fn connect_id(self, id: &CmId) -> Result {
        // SAFETY: NULL or valid, with its private data, until the function returns (contract of `from_c`).
        unsafe { id_lifecycle::connect(id, self.0) }
    }

    pub(super) fn accept_on_id(self, id: &CmId) -> Result {
        // SAFETY: as in `connect`.
        unsafe { id_lifecycle::accept(id, self.0) }
    }
}

/// An event that the program acknowledges, or NULL.
pub struct EventArg(*mut rdma_cm_event);

impl Arg for EventArg {
    type C = *mut rdma_cm_event;
    unsafe fn from_c(c: *mut rdma_cm_event) -> Self {
        Self(c)
    }
}

impl EventArg {
    /// Acknowledges the event; `EINVAL` for NULL.
    pub(super) fn acknowledge(self) -> Result {
        if self.0.is_null() {
            return Err(INVALID);
        }
        // SAFETY: an event of this library, which is acknowledged once (contract of `from_c`).
        unsafe { cm_event::acknowledge_event(self.0) };
        Ok(())
    }
}

/// Bytes whose number is in another argument, or NULL.
pub struct BytesArg(*const c_void);

impl Arg for BytesArg {
    type C = *const c_void;
    unsafe fn from_c(c: *const c_void) -> Self {
        Self(c)
    }
}

impl BytesArg {
    /// Copies the bytes; `len` is their number. The copy is empty for NULL.
    pub(super) fn copy(self, len: u8) -> Vec<u8> {
        // SAFETY: NULL or valid for `len` bytes (contract of `from_c`).
        unsafe { id_lifecycle::copy_private_data(self.0, len) }
    }
}

/// The value of an option, whose length is in another argument, or NULL.
pub struct OptionValue(*mut c_void);

impl Arg for OptionValue {
    type C = *mut c_void;
    unsafe fn from_c(c: *mut c_void) -> Self {
        Self(c)
    }
}

impl OptionValue {
    pub(super) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// Returns the bytes of the value; `len` is its length. `EINVAL` for NULL and if `len` is not `N`.
    fn bytes<const N: usize>(self, len: usize) -> Result<[u8; N]> {
        if self.is_null() || len != N {
            return Err(INVALID);
        }
        // SAFETY: not NULL, so valid for `len` bytes (contract of `from_c`), and `len` is `N`.
        Ok(unsafe { self.0.cast::<[u8; N]>().read_unaligned() })
    }

    pub(super) fn byte(self, len: usize) -> Result<u8> {
        self.bytes(len).map(u8::from_ne_bytes)
    }

    pub(super) fn number(self, len: usize) -> Result<c_int> {
        self.bytes(len).map(c_int::from_ne_bytes)
    }
}
