//! What librdmacm's functions are given, as types that can be used safely.
//!
//! Each is made of what C passed, once, by [`Arg::from_c`], which believes the man page: an id is NULL or live, a channel
//! is NULL or one of ours, an address is as long as its family says. All that follows pointers of C stands in here, but
//! for the structures that the functions of `addrinfo` and `endpoints` are made for.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use c_edge::Arg;
use libc::sockaddr;
use verbs_abi::*;

use crate::addr::{self, Addr};
use crate::channel::Channel;
use crate::cm_event;
use crate::connect;
use crate::endpoint::Event;
use crate::errno::{INVALID, Result};
use crate::id::{ChannelHandle, CmId};

/// An id that the call uses.
pub struct Id<'a>(Option<&'a CmId>);

impl Arg for Id<'_> {
    type C = *mut rdma_cm_id;
    unsafe fn from_c(c: *mut rdma_cm_id) -> Self {
        // SAFETY: NULL or live until the function returns (contract of `from_c`).
        Self(unsafe { CmId::borrow(c) }.ok())
    }
}

impl<'a> Id<'a> {
    /// `EINVAL` for NULL.
    pub(super) fn get(self) -> Result<&'a CmId> {
        self.0.ok_or(INVALID)
    }
}

/// An id that nobody else uses any more, or not yet.
pub struct OwnedId(*mut rdma_cm_id);

impl Arg for OwnedId {
    type C = *mut rdma_cm_id;
    unsafe fn from_c(c: *mut rdma_cm_id) -> Self {
        Self(c)
    }
}

impl OwnedId {
    /// `EINVAL` for NULL.
    pub(super) fn id(&self) -> Result<&CmId> {
        // SAFETY: NULL or live, until this value is given up.
        unsafe { CmId::borrow(self.0) }
    }

    /// The handle, for the program.
    pub(super) fn into_handle(self) -> *mut rdma_cm_id {
        self.0
    }

    /// `rdma_destroy_id(3)`; `EINVAL` for NULL.
    pub(super) fn destroy(self) -> Result {
        // SAFETY: NULL or live, and nobody uses it afterwards.
        unsafe { connect::destroy(self.0) }
    }

    /// `rdma_destroy_ep(3)`.
    pub(super) fn destroy_with_queues(self) {
        // SAFETY: as in `destroy`.
        unsafe { connect::destroy_with_queues(self.0) };
    }
}

/// An event channel of ours, or NULL.
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

    /// A new channel.
    pub(super) fn create() -> Result<Self> {
        ChannelHandle::create().map(Self)
    }

    /// Gives an id another channel; the one that it had.
    pub(super) fn replace(self, id: &CmId) -> Self {
        let old = Self(id.channel_handle());
        id.set_channel_handle(self.0);
        old
    }

    pub(super) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// `EINVAL` for NULL, `EBADF` for one that was destroyed.
    pub(super) fn channel(self) -> Result<Arc<Channel<Event>>> {
        // SAFETY: NULL or a handle of ours, as `from_c` and `create` say.
        unsafe { ChannelHandle::channel(self.0) }
    }

    pub(super) fn destroy(self) {
        // SAFETY: as in `channel`.
        unsafe { ChannelHandle::destroy(self.0) };
    }

    /// A new id on this channel; synchronous on NULL.
    pub(super) fn new_id(
        self,
        context: *mut c_void,
        ps: rdma_port_space,
        qp_type: ibv_qp_type,
    ) -> Result<OwnedId> {
        // SAFETY: as in `channel`.
        unsafe { connect::new_id(self.0, context, ps, qp_type) }.map(OwnedId)
    }
}

/// An address, or NULL, or one of a family that ids have none of.
pub struct Address {
    is_null: bool,
    addr: Option<Addr>,
}

impl Arg for Address {
    type C = *mut sockaddr;
    unsafe fn from_c(c: *mut sockaddr) -> Self {
        Self {
            is_null: c.is_null(),
            // SAFETY: NULL, or as long as its family says (contract of `from_c`).
            addr: unsafe { addr::read(c) },
        }
    }
}

impl Address {
    /// `EINVAL` for NULL and for other families.
    pub(super) fn get(self) -> Result<Addr> {
        self.addr.ok_or(INVALID)
    }

    /// None for NULL; `EINVAL` for other families.
    pub(super) fn optional(self) -> Result<Option<Addr>> {
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
    pub(super) fn connect(self, id: &CmId) -> Result {
        // SAFETY: NULL or valid, with its private data, until the function returns (contract of `from_c`).
        unsafe { connect::connect(id, self.0) }
    }

    pub(super) fn accept(self, id: &CmId) -> Result {
        // SAFETY: as in `connect`.
        unsafe { connect::accept(id, self.0) }
    }
}

/// An event that is given back, or NULL.
pub struct EventArg(*mut rdma_cm_event);

impl Arg for EventArg {
    type C = *mut rdma_cm_event;
    unsafe fn from_c(c: *mut rdma_cm_event) -> Self {
        Self(c)
    }
}

impl EventArg {
    /// `EINVAL` for NULL.
    pub(super) fn acknowledge(self) -> Result {
        if self.0.is_null() {
            return Err(INVALID);
        }
        // SAFETY: an event of ours, acknowledged once (contract of `from_c`).
        unsafe { cm_event::acknowledge(self.0) };
        Ok(())
    }
}

/// Bytes, as many as another argument says, or NULL.
pub struct Bytes(*const c_void);

impl Arg for Bytes {
    type C = *const c_void;
    unsafe fn from_c(c: *const c_void) -> Self {
        Self(c)
    }
}

impl Bytes {
    /// A copy of them; `len` is the argument that says how many. None for NULL.
    pub(super) fn copy(self, len: u8) -> Vec<u8> {
        // SAFETY: NULL or valid for as many bytes (contract of `from_c`).
        unsafe { connect::bytes(self.0, len) }
    }
}

/// The value of an option, as long as another argument says, or NULL.
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

    /// Its bytes; `len` is the argument that says how many. `EINVAL` for NULL and for any other length.
    fn bytes<const N: usize>(self, len: usize) -> Result<[u8; N]> {
        if self.is_null() || len != N {
            return Err(INVALID);
        }
        // SAFETY: not NULL, so valid for `len` bytes (contract of `from_c`), which are as many.
        Ok(unsafe { self.0.cast::<[u8; N]>().read_unaligned() })
    }

    pub(super) fn byte(self, len: usize) -> Result<u8> {
        self.bytes(len).map(u8::from_ne_bytes)
    }

    pub(super) fn number(self, len: usize) -> Result<c_int> {
        self.bytes(len).map(c_int::from_ne_bytes)
    }
}
