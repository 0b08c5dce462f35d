//! The C objects of connection management: ids, event channels and, in `queues`, an id's queues.
//!
//! Only threads of the program call this module. As with librdmacm, the program must serialize calls that change an id.
//! Fields that this crate adds to the C fields are behind a lock.

mod queues;

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard};

use verbs_abi::*;

use crate::addr::{self, IdAddress};
use crate::address_list::AddressList;
use crate::channel::EventChannel;
use crate::device_port::{DEFAULT_PKEY, DevicePort};
use crate::endpoint::{Endpoint, EndpointEvent};
use crate::errno::{Errno, INVALID, Result};
use crate::lock::lock;
use crate::multicast::GroupMembership;

/// An event channel; the program's handle points to its first field.
#[repr(C)]
pub struct ChannelHandle {
    abi: UnsafeCell<rdma_event_channel>,
    /// The channel; `None` after its destruction.
    channel: Mutex<Option<Arc<EventChannel<EndpointEvent>>>>,
}

/// Number of destroyed handles that stay readable: another thread may just be about to ask a destroyed handle for an
/// event.
const MAX_DESTROYED_HANDLES: usize = 64;

/// Addresses of destroyed handles, oldest first.
static DESTROYED_CHANNEL_HANDLES: Mutex<VecDeque<usize>> = Mutex::new(VecDeque::new());

impl ChannelHandle {
    /// Makes a channel and returns its handle for the program.
    ///
    /// # Errors
    /// `EMFILE` or `ENFILE` if no descriptor is available.
    pub fn create() -> Result<*mut rdma_event_channel> {
        let channel = EventChannel::new()?;
        let abi = rdma_event_channel {
            fd: channel.raw_fd(),
        };
        Ok(Box::into_raw(Box::new(Self {
            abi: UnsafeCell::new(abi),
            channel: Mutex::new(Some(channel)),
        }))
        .cast())
    }

    /// Returns the channel of a handle.
    ///
    /// # Errors
    /// `EINVAL` for NULL, `EBADF` if the handle was destroyed.
    ///
    /// # Safety
    /// `handle` is NULL or came from [`ChannelHandle::create`]. It is live, or one of the last 64 that were destroyed.
    pub unsafe fn channel(
        handle: *mut rdma_event_channel,
    ) -> Result<Arc<EventChannel<EndpointEvent>>> {
        // SAFETY: contract of this function; the handle points to the first field.
        let handle = unsafe { handle.cast::<Self>().as_ref() }.ok_or(INVALID)?;
        lock(&handle.channel).clone().ok_or(Errno(libc::EBADF))
    }

    /// Destroys the channel: `rdma_destroy_event_channel(3)`.
    ///
    /// # Safety
    /// As for [`ChannelHandle::channel`].
    pub unsafe fn destroy(handle: *mut rdma_event_channel) {
        // SAFETY: contract of this function.
        let Some(this) = (unsafe { handle.cast::<Self>().as_ref() }) else {
            return;
        };
        if lock(&this.channel).take().is_none() {
            return;
        }
        let mut destroyed = lock(&DESTROYED_CHANNEL_HANDLES);
        destroyed.push_back(handle.expose_provenance());
        if destroyed.len() > MAX_DESTROYED_HANDLES
            && let Some(oldest) = destroyed.pop_front()
        {
            // SAFETY: the handle was made by `create` and destroyed once. It is older than the destroyed handles that
            // must stay readable.
            drop(unsafe { Box::from_raw(ptr::with_exposed_provenance_mut::<Self>(oldest)) });
        }
    }
}

/// The fields that this crate adds to the C fields of an id.
pub(crate) struct ExtraFields {
    /// True if the id has its own channel and its calls wait for their outcome.
    pub(crate) is_synchronous: bool,
    /// True if the queue pair could not be connected, so that the end of the connection is not reported.
    pub(crate) qp_connect_failed: bool,
    pub(crate) initiator_depth: u8,
    pub(crate) responder_resources: u8,
    /// Attributes of the queue pairs that `rdma_get_request` makes.
    pub(crate) qp_init_attr_for_requests: Option<ibv_qp_init_attr>,
    /// Private data of `rdma_addrinfo`, which precedes the program's own.
    pub(crate) addrinfo_connect_data: Vec<u8>,
    pub(crate) memberships: Vec<Arc<GroupMembership>>,
    pub(crate) reuse_address: bool,
    pub(crate) afonly: bool,
    pub(crate) ack_timeout: Option<u8>,
    pub(crate) ece: (u32, u32),
    /// The result of the last `rdma_resolve_addrinfo`.
    pub(crate) addrinfo: Option<AddressList>,
    /// The path record to which `route.path_rec` points.
    path: Option<Box<UnsafeCell<ibv_sa_path_rec>>>,
}

/// Getters and setters of the C fields of an id: `getter => field: type;` and `setter => field: type;`.
macro_rules! c_fields {
    (
        get { $( $(#[$meta:meta])* $vis:vis $get:ident => $read:ident: $type:ty; )* }
        set { $( $set:ident => $written:ident: $new:ty; )* }
    ) => {
        impl CmId {
            $(
                $(#[$meta])*
                $vis fn $get(&self) -> $type {
                    // SAFETY: a field of a live object. The program serializes calls that change an id.
                    unsafe { (*self.abi_ptr()).$read }
                }
            )*
            $(
                pub(crate) fn $set(&self, value: $new) {
                    // SAFETY: as above.
                    unsafe { (*self.abi_ptr()).$written = value };
                }
            )*
        }
    };
}

c_fields! {
    get {
        /// Returns the id's queue pair; NULL if it has none.
        pub qp => qp: *mut ibv_qp;
        /// Returns the id's protection domain; NULL before the id is bound to a device.
        pub pd => pd: *mut ibv_pd;
        /// Returns the handle of the id's event channel.
        pub channel_handle => channel: *mut rdma_event_channel;
        pub(crate) qp_type => qp_type: ibv_qp_type;
        pub(crate) verbs => verbs: *mut ibv_context;
        pub(crate) srq => srq: *mut ibv_srq;
        pub(crate) send_cq => send_cq: *mut ibv_cq;
        pub(crate) recv_cq => recv_cq: *mut ibv_cq;
        pub(crate) send_cq_channel => send_cq_channel: *mut ibv_comp_channel;
        pub(crate) recv_cq_channel => recv_cq_channel: *mut ibv_comp_channel;
        pub(crate) context => context: *mut c_void;
        pub(crate) event => event: *mut rdma_cm_event;
    }
    set {
        set_qp => qp: *mut ibv_qp;
        set_pd => pd: *mut ibv_pd;
        set_channel_handle => channel: *mut rdma_event_channel;
        set_verbs => verbs: *mut ibv_context;
        set_port_num => port_num: u8;
        set_srq => srq: *mut ibv_srq;
        set_send_cq => send_cq: *mut ibv_cq;
        set_recv_cq => recv_cq: *mut ibv_cq;
        set_send_cq_channel => send_cq_channel: *mut ibv_comp_channel;
        set_recv_cq_channel => recv_cq_channel: *mut ibv_comp_channel;
        set_event => event: *mut rdma_cm_event;
    }
}

/// An id; the program's handle points to its first field.
#[repr(C)]
pub struct CmId {
    abi: UnsafeCell<rdma_cm_id>,
    pub(crate) endpoint: Arc<Endpoint>,
    extra: Mutex<ExtraFields>,
}

impl CmId {
    /// Makes an id for an endpoint, whose channel is `channel`.
    ///
    /// # Safety
    /// `channel` is a live handle.
    pub(crate) unsafe fn create(
        endpoint: Arc<Endpoint>,
        channel: *mut rdma_event_channel,
        sync: bool,
        context: *mut c_void,
        qp_type: ibv_qp_type,
    ) -> *mut rdma_cm_id {
        let mut abi = rdma_cm_id::zeroed();
        abi.channel = channel;
        abi.context = context;
        abi.ps = endpoint.port_space;
        abi.qp_type = qp_type;
        let id = Box::new(Self {
            abi: UnsafeCell::new(abi),
            endpoint: Arc::clone(&endpoint),
            extra: Mutex::new(ExtraFields {
                is_synchronous: sync,
                qp_connect_failed: false,
                initiator_depth: 0,
                responder_resources: 0,
                qp_init_attr_for_requests: None,
                addrinfo_connect_data: Vec::new(),
                memberships: Vec::new(),
                reuse_address: false,
                afonly: false,
                ack_timeout: None,
                ece: (0, 0),
                addrinfo: None,
                path: None,
            }),
        });
        let handle: *mut rdma_cm_id = Box::into_raw(id).cast();
        endpoint.set_cm_id_address(handle.expose_provenance());
        handle
    }

    /// Returns the id of a handle.
    ///
    /// # Errors
    /// `EINVAL` for NULL.
    ///
    /// # Safety
    /// `handle` is NULL or an id that has not been destroyed.
    pub unsafe fn borrow<'a>(handle: *mut rdma_cm_id) -> Result<&'a Self> {
        // SAFETY: contract of this function; the handle points to the first field.
        unsafe { handle.cast::<Self>().as_ref() }.ok_or(INVALID)
    }

    /// # Safety
    /// `handle` is an id that is not used afterwards.
    pub(crate) unsafe fn free(handle: *mut rdma_cm_id) {
        // SAFETY: contract of this function.
        drop(unsafe { Box::from_raw(handle.cast::<Self>()) });
    }

    /// Returns a pointer to the C fields. The program reads and writes them as well, so they are accessed only through
    /// this pointer.
    pub fn abi_ptr(&self) -> *mut rdma_cm_id {
        self.abi.get()
    }

    /// Sets the options of binding: `RDMA_OPTION_ID_REUSEADDR` and `RDMA_OPTION_ID_AFONLY`.
    pub fn set_bind_options(&self, reuse_address: bool, afonly: bool) {
        let mut extra = self.lock_extra_fields();
        extra.reuse_address = reuse_address;
        extra.afonly = afonly;
    }

    /// Moves the id to another channel, which then reports its events.
    ///
    /// # Errors
    /// As for [`ChannelHandle::channel`].
    ///
    /// # Safety
    /// `channel` is live, and no call waits for an event of this id.
    pub unsafe fn migrate(&self, channel: *mut rdma_event_channel) -> Result {
        // SAFETY: contract of this function.
        self.endpoint
            .migrate(&unsafe { ChannelHandle::channel(channel) }?);
        self.set_channel_handle(channel);
        Ok(())
    }

    /// Sends the peer an RTU after its reply: `rdma_establish(3)`, for ids without a queue pair of their own.
    ///
    /// # Errors
    /// `EINVAL` if the peer has not replied.
    pub fn establish(&self) -> Result {
        self.endpoint.establish()
    }

    /// Disconnects the id, if it is connected: `rdma_disconnect(3)`.
    pub fn disconnect(&self) {
        self.endpoint.disconnect();
    }

    /// Returns the id's event channel.
    pub(crate) fn channel(&self) -> Result<Arc<EventChannel<EndpointEvent>>> {
        // SAFETY: a live id's channel is live.
        unsafe { ChannelHandle::channel(self.channel_handle()) }
    }

    pub(crate) fn lock_extra_fields(&self) -> MutexGuard<'_, ExtraFields> {
        lock(&self.extra)
    }

    /// The port that it is on, or will be: that of its own address.
    pub fn device_port_of_local_address(&self) -> &'static DevicePort {
        self.endpoint
            .cm
            .device_port_for_address(self.source_or_unbound())
    }

    pub(crate) fn is_datagram(&self) -> bool {
        self.qp_type() == IBV_QPT_UD
    }

    /// Returns true if the id is bound to the device.
    pub(crate) fn is_bound_to_device(&self) -> bool {
        !self.verbs().is_null()
    }

    /// Returns the local address; `None` before the id is bound.
    pub fn source(&self) -> Option<IdAddress> {
        // SAFETY: the field holds what `set_source` wrote, or zeros, which are an address of no family.
        unsafe { addr::read_sockaddr(&raw const (*self.abi_ptr()).route.addr.src.src_addr) }
    }

    /// Returns the peer's address; `None` before it is resolved.
    pub fn destination(&self) -> Option<IdAddress> {
        // SAFETY: as above.
        unsafe { addr::read_sockaddr(&raw const (*self.abi_ptr()).route.addr.dst.dst_addr) }
    }

    fn source_or_unbound(&self) -> IdAddress {
        self.source().unwrap_or(IdAddress::UNBOUND)
    }

    pub(crate) fn set_source(&self, to: IdAddress) {
        self.change_route(|route| route.addr.src.src_storage = addr::to_sockaddr(to).0);
    }

    pub(crate) fn set_destination(&self, to: IdAddress) {
        self.change_route(|route| route.addr.dst.dst_storage = addr::to_sockaddr(to).0);
    }

    /// Changes the addresses and the path, which the program only reads.
    fn change_route(&self, change: impl FnOnce(&mut rdma_route)) {
        // SAFETY: a field of a live object. The program serializes calls that change an id with its own reads of that
        // id.
        change(unsafe { &mut (*self.abi_ptr()).route });
    }

    /// Binds the id to the device.
    pub(crate) fn bind_to_device(&self) {
        let device = self.device_port_of_local_address();
        let source = self.source_or_unbound();
        self.set_verbs(device.context);
        self.set_port_num(device.port_num);
        if self.pd().is_null() {
            self.set_pd(device.pd);
        }
        self.change_route(|route| {
            // SAFETY: every byte pattern is valid for each member of the union.
            let ib = unsafe { &mut route.addr.addr.ibaddr };
            ib.pkey = match source {
                IdAddress::Ip(_) => DEFAULT_PKEY,
                IdAddress::Ib(source) => source.pkey.to_be(),
            };
            ib.sgid.raw = device.gid(source);
        });
    }

    /// Fills in the path record of the path to the destination.
    pub(crate) fn set_path_record(&self) {
        let from = self.source_or_unbound();
        let to = self.destination().unwrap_or(from);
        let by_packets = match to {
            IdAddress::Ip(to) => self.endpoint.cm.gid_if_reached_by_packets(to.ip()),
            IdAddress::Ib(_) => None,
        };
        let peer = self.endpoint.cm.device_port_for_address(to);
        let dgid = by_packets.unwrap_or_else(|| peer.gid(to));
        let path = self
            .device_port_of_local_address()
            .path_record(from, dgid, peer.lid());
        let path = Box::new(UnsafeCell::new(path));
        self.change_route(|route| {
            // SAFETY: the path record lives until it is replaced, and every byte pattern is valid for each member of
            // the union.
            unsafe { route.addr.addr.ibaddr.dgid = (*path.get()).dgid };
            route.path_rec = path.get();
            route.num_paths = 1;
        });
        self.lock_extra_fields().path = Some(path);
    }
}
