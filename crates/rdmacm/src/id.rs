//! The C objects: ids, event channels and events, and an id's queue pair.
//!
//! Only the program's threads come here. As with librdmacm, calls that change an id are the program's to order;
//! what this crate keeps of an id beside its C fields is behind a lock.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard};

use verbs_abi::*;

use crate::addr;
use crate::addr::Addr;
use crate::channel::Channel;
use crate::device::{DEFAULT_PKEY, Device, PORT_NUM, check, last_errno};
use crate::endpoint::{Endpoint, Event};
use crate::ends::Ends;
use crate::errno::{Errno, INVALID, Result};
use crate::lock::lock;
use crate::multicast::Membership;

/// An event channel; the program's handle points to its first field.
#[repr(C)]
pub struct ChannelHandle {
    abi: UnsafeCell<rdma_event_channel>,
    /// Until it is destroyed.
    channel: Mutex<Option<Arc<Channel<Event>>>>,
}

/// So many destroyed handles stay readable: a thread of the program may be about to ask one for an event.
const KEPT_HANDLES: usize = 64;

/// The addresses of handles that were destroyed, the oldest first.
static DESTROYED: Mutex<VecDeque<usize>> = Mutex::new(VecDeque::new());

impl ChannelHandle {
    /// A new channel, for the program.
    ///
    /// # Errors
    /// `EMFILE` or `ENFILE` where there are no more descriptors.
    pub fn create() -> Result<*mut rdma_event_channel> {
        let channel = Channel::new()?;
        let abi = rdma_event_channel {
            fd: channel.raw_fd(),
        };
        Ok(Box::into_raw(Box::new(Self {
            abi: UnsafeCell::new(abi),
            channel: Mutex::new(Some(channel)),
        }))
        .cast())
    }

    /// The channel of a handle.
    ///
    /// # Errors
    /// `EINVAL` for NULL, `EBADF` for one that was destroyed.
    ///
    /// # Safety
    /// `handle` is NULL or came from [`ChannelHandle::create`], and is not one that was destroyed long ago.
    pub unsafe fn channel(handle: *mut rdma_event_channel) -> Result<Arc<Channel<Event>>> {
        // SAFETY: contract of this function; the handle points to the first field.
        let handle = unsafe { handle.cast::<Self>().as_ref() }.ok_or(INVALID)?;
        lock(&handle.channel).clone().ok_or(Errno(libc::EBADF))
    }

    /// Closes the channel: `rdma_destroy_event_channel(3)`.
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
        let mut destroyed = lock(&DESTROYED);
        destroyed.push_back(handle.expose_provenance());
        if destroyed.len() > KEPT_HANDLES
            && let Some(oldest) = destroyed.pop_front()
        {
            // SAFETY: made by `create`, destroyed once, and long ago.
            drop(unsafe { Box::from_raw(ptr::with_exposed_provenance_mut::<Self>(oldest)) });
        }
    }
}

/// What this crate keeps of an id beside its C fields.
pub(crate) struct Extra {
    /// The id has a channel of its own, and its calls wait for their outcome.
    pub(crate) sync: bool,
    /// The queue pair could not be connected: the end of the connection is no news.
    pub(crate) connect_error: bool,
    pub(crate) initiator_depth: u8,
    pub(crate) responder_resources: u8,
    /// Of the queue pairs that `rdma_get_request` makes.
    pub(crate) qp_init_attr: Option<ibv_qp_init_attr>,
    /// Private data of `rdma_addrinfo`, which goes in front of the program's.
    pub(crate) connect_data: Vec<u8>,
    pub(crate) memberships: Vec<Arc<Membership>>,
    pub(crate) reuse_address: bool,
    pub(crate) afonly: bool,
    pub(crate) ack_timeout: Option<u8>,
    pub(crate) ece: (u32, u32),
    /// What `route.path_rec` points to.
    path: Option<Box<UnsafeCell<ibv_sa_path_rec>>>,
}

/// An id; the program's handle points to its first field.
#[repr(C)]
pub struct CmId {
    abi: UnsafeCell<rdma_cm_id>,
    pub(crate) endpoint: Arc<Endpoint>,
    extra: Mutex<Extra>,
}

impl CmId {
    /// A new id around an endpoint, whose channel is `channel`.
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
            extra: Mutex::new(Extra {
                sync,
                connect_error: false,
                initiator_depth: 0,
                responder_resources: 0,
                qp_init_attr: None,
                connect_data: Vec::new(),
                memberships: Vec::new(),
                reuse_address: false,
                afonly: false,
                ack_timeout: None,
                ece: (0, 0),
                path: None,
            }),
        });
        let handle: *mut rdma_cm_id = Box::into_raw(id).cast();
        endpoint.set_id(handle.expose_provenance());
        handle
    }

    /// The id of a handle.
    ///
    /// # Errors
    /// `EINVAL` for NULL.
    ///
    /// # Safety
    /// `handle` is NULL or an id that was not destroyed.
    pub unsafe fn borrow<'a>(handle: *mut rdma_cm_id) -> Result<&'a Self> {
        // SAFETY: contract of this function; the handle points to the first field.
        unsafe { handle.cast::<Self>().as_ref() }.ok_or(INVALID)
    }

    /// # Safety
    /// `handle` is an id that is not used any more.
    pub(crate) unsafe fn free(handle: *mut rdma_cm_id) {
        // SAFETY: contract of this function.
        drop(unsafe { Box::from_raw(handle.cast::<Self>()) });
    }

    /// The C fields. The program reads and writes them as well, so they are only reached through this pointer.
    pub fn abi(&self) -> *mut rdma_cm_id {
        self.abi.get()
    }

    /// Options of binding: the port may be in use already, and IPv6's wildcard is not IPv4's.
    pub fn set_bind_options(&self, reuse_address: bool, afonly: bool) {
        let mut extra = self.extra();
        extra.reuse_address = reuse_address;
        extra.afonly = afonly;
    }

    /// Its events come by `channel` from now on.
    ///
    /// # Errors
    /// As for [`ChannelHandle::channel`].
    ///
    /// # Safety
    /// `channel` is live, and no call waits for an event of this id.
    pub unsafe fn migrate(&self, channel: *mut rdma_event_channel) -> Result {
        // SAFETY: contract of this function; a field of the live object.
        unsafe {
            self.endpoint.migrate(&ChannelHandle::channel(channel)?);
            (*self.abi()).channel = channel;
        }
        Ok(())
    }

    /// Ends the connection, if there is one.
    pub fn disconnect(&self) {
        self.endpoint.disconnect();
    }

    /// Its event channel.
    pub(crate) fn channel(&self) -> Result<Arc<Channel<Event>>> {
        // SAFETY: a live id's channel is live.
        unsafe { ChannelHandle::channel((*self.abi()).channel) }
    }

    pub(crate) fn extra(&self) -> MutexGuard<'_, Extra> {
        lock(&self.extra)
    }

    /// The device that it is on, or will be.
    pub fn device(&self) -> &'static Device {
        &self.endpoint.cm.device
    }

    /// Its queue pair; NULL for none.
    pub fn qp(&self) -> *mut ibv_qp {
        // SAFETY: a field of the live object.
        unsafe { (*self.abi()).qp }
    }

    pub(crate) fn is_datagram(&self) -> bool {
        // SAFETY: a field of the live object.
        unsafe { (*self.abi()).qp_type == IBV_QPT_UD }
    }

    /// Is the id bound to the device?
    pub(crate) fn has_device(&self) -> bool {
        // SAFETY: a field of the live object.
        unsafe { !(*self.abi()).verbs.is_null() }
    }

    /// The own address; none before the id is bound.
    pub fn source(&self) -> Option<Addr> {
        // SAFETY: the field holds what `set_source` wrote, or zeroes, which are no family's address.
        unsafe { addr::read(&raw const (*self.abi()).route.addr.src.src_addr) }
    }

    /// The peer's address; none before it is resolved.
    pub fn destination(&self) -> Option<Addr> {
        // SAFETY: as above.
        unsafe { addr::read(&raw const (*self.abi()).route.addr.dst.dst_addr) }
    }

    fn source_or_none(&self) -> Addr {
        self.source().unwrap_or(Addr::NONE)
    }

    pub(crate) fn set_source(&self, to: Addr) {
        // SAFETY: a field of the live object.
        unsafe { (*self.abi()).route.addr.src.src_storage = addr::to_c(to).0 };
    }

    pub(crate) fn set_destination(&self, to: Addr) {
        // SAFETY: a field of the live object.
        unsafe { (*self.abi()).route.addr.dst.dst_storage = addr::to_c(to).0 };
    }

    /// Binds the id to the device.
    pub(crate) fn bind_to_device(&self) {
        let device = self.device();
        let abi = self.abi();
        let source = self.source_or_none();
        // SAFETY: fields of the live object.
        unsafe {
            (*abi).verbs = device.context;
            (*abi).port_num = PORT_NUM;
            if (*abi).pd.is_null() {
                (*abi).pd = device.pd;
            }
            (*abi).route.addr.addr.ibaddr.pkey = match source {
                Addr::Ip(_) => DEFAULT_PKEY,
                Addr::Ib(source) => source.pkey.to_be(),
            };
            (*abi).route.addr.addr.ibaddr.sgid.raw = device.gid(source);
        }
    }

    /// Fills in the path to the destination.
    pub(crate) fn set_path(&self) {
        let from = self.source_or_none();
        let to = self.destination().unwrap_or(from);
        let path = Box::new(UnsafeCell::new(self.device().path(from, to)));
        // SAFETY: fields of the live object; the path lives as long as the id or until the next.
        unsafe {
            (*self.abi()).route.addr.addr.ibaddr.dgid = (*path.get()).dgid;
            (*self.abi()).route.path_rec = path.get();
            (*self.abi()).route.num_paths = 1;
        }
        self.extra().path = Some(path);
    }

    // The queue pair.

    /// The attributes with which the queue pair goes to `state`: `rdma_init_qp_attr(3)`.
    pub(crate) fn qp_attr(&self, state: ibv_qp_state) -> Result<(ibv_qp_attr, c_int)> {
        let ends = self.endpoint.ends();
        self.qp_attr_with(state, &ends)
    }

    fn qp_attr_with(&self, state: ibv_qp_state, ends: &Ends) -> Result<(ibv_qp_attr, c_int)> {
        let qp = self.qp();
        // SAFETY: the queue pair, if there is one, lives as long as the field names it.
        let qp_type = unsafe {
            match qp.as_ref() {
                Some(qp) => qp.qp_type,
                None => (*self.abi()).qp_type,
            }
        };
        let ack_timeout = self.extra().ack_timeout;
        self.device()
            .qp_attr(state, qp_type, self.source_or_none(), ends, ack_timeout)
    }

    /// Moves the queue pair, if there is one, to RTR and RTS, for a connection with these parameters.
    pub(crate) fn connect_qp(&self, ends: &Ends) -> Result {
        for state in [IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS] {
            let qp = self.qp();
            if qp.is_null() {
                return Ok(());
            }
            let (mut attr, mask) = self.qp_attr_with(state, ends)?;
            // SAFETY: the id's live queue pair.
            unsafe { self.device().modify_qp(qp, &mut attr, mask) }?;
        }
        Ok(())
    }

    /// Moves the queue pair, if there is one, to ERR.
    pub(crate) fn fail_qp(&self) -> Result {
        let qp = self.qp();
        if qp.is_null() {
            return Ok(());
        }
        let mut attr = ibv_qp_attr::zeroed();
        attr.qp_state = IBV_QPS_ERR;
        // SAFETY: the id's live queue pair.
        unsafe { self.device().modify_qp(qp, &mut attr, IBV_QP_STATE) }
    }

    /// Makes the id's queue pair and what is missing of its completion queues: `rdma_create_qp_ex`.
    ///
    /// # Errors
    /// `EINVAL` where it has one, and what making one says.
    ///
    /// # Safety
    /// What `attr` names is live.
    pub unsafe fn create_qp(&self, attr: &mut ibv_qp_init_attr_ex) -> Result {
        let abi = self.abi();
        if !self.qp().is_null() || !self.has_device() {
            return Err(INVALID);
        }
        // SAFETY: fields of the live object, and what the caller promises to be live.
        unsafe {
            if attr.comp_mask & IBV_QP_INIT_ATTR_PD == 0 || attr.pd.is_null() {
                attr.comp_mask |= IBV_QP_INIT_ATTR_PD;
                attr.pd = (*abi).pd;
            } else if (*attr.pd).context != (*abi).verbs {
                return Err(INVALID);
            }
            let differs = |of_id: *mut ibv_cq, asked: *mut ibv_cq| {
                !of_id.is_null() && !asked.is_null() && of_id != asked
            };
            if differs((*abi).recv_cq, attr.recv_cq) || differs((*abi).send_cq, attr.send_cq) {
                return Err(INVALID);
            }
            if (*abi).qp_type == IBV_QPT_XRC_RECV
                && (attr.comp_mask & IBV_QP_INIT_ATTR_XRCD == 0 || attr.xrcd.is_null())
            {
                attr.xrcd = self.device().xrcd()?;
                attr.comp_mask |= IBV_QP_INIT_ATTR_XRCD;
            }
            let missing = |of_id: *mut ibv_cq, asked: *mut ibv_cq, size: u32| {
                if of_id.is_null() && asked.is_null() {
                    size
                } else {
                    0
                }
            };
            self.create_cqs(
                missing((*abi).send_cq, attr.send_cq, attr.cap.max_send_wr),
                missing((*abi).recv_cq, attr.recv_cq, attr.cap.max_recv_wr),
            )?;
            if attr.send_cq.is_null() {
                attr.send_cq = (*abi).send_cq;
            }
            if attr.recv_cq.is_null() {
                attr.recv_cq = (*abi).recv_cq;
            }
            if attr.srq.is_null() {
                attr.srq = (*abi).srq;
            }
            let qp = match self.new_qp(attr) {
                Ok(qp) => qp,
                Err(e) => {
                    self.destroy_cqs();
                    return Err(e);
                }
            };
            (*abi).qp = qp;
            if let Err(e) = self.prepare_qp() {
                (*abi).qp = ptr::null_mut();
                (self.device().verbs.ibv_destroy_qp)(qp);
                self.destroy_cqs();
                return Err(e);
            }
            (*abi).pd = (*qp).pd;
        }
        Ok(())
    }

    /// # Safety
    /// As for [`CmId::create_qp`].
    unsafe fn new_qp(&self, attr: &mut ibv_qp_init_attr_ex) -> Result<*mut ibv_qp> {
        let device = self.device();
        // SAFETY: contract of this function. `ibv_qp_init_attr_ex` begins with the fields of
        // `ibv_qp_init_attr`, so that `ibv_create_qp_ex` of verbs.h makes the same cast.
        let qp = unsafe {
            if attr.comp_mask == IBV_QP_INIT_ATTR_PD {
                (device.verbs.ibv_create_qp)(attr.pd, ptr::from_mut(attr).cast())
            } else {
                let extended = verbs_get_ctx(device.context);
                let create = extended.as_ref().and_then(|x| x.create_qp_ex);
                create.ok_or(Errno(libc::EOPNOTSUPP))?(device.context, attr)
            }
        };
        if qp.is_null() {
            Err(last_errno())
        } else {
            Ok(qp)
        }
    }

    /// "Transitions it for sending and receiving" (`rdma_create_qp(3)`): receives may be posted, and datagrams
    /// be sent.
    fn prepare_qp(&self) -> Result {
        let states: &[_] = if self.is_datagram() {
            &[IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS]
        } else {
            &[IBV_QPS_INIT]
        };
        for &state in states {
            let (mut attr, mask) = self.qp_attr(state)?;
            // SAFETY: the id's queue pair, just made.
            unsafe { self.device().modify_qp(self.qp(), &mut attr, mask) }?;
        }
        Ok(())
    }

    /// Makes completion queues with channels for `send` and `recv` WRs; 0 for none.
    pub(crate) fn create_cqs(&self, send: u32, recv: u32) -> Result {
        let abi = self.abi();
        let cq_context: *mut c_void = abi.cast();
        let context = self.device().context;
        let verbs = self.device().verbs;
        let create = |size: u32| -> Result<(*mut ibv_comp_channel, *mut ibv_cq)> {
            let size = c_int::try_from(size).map_err(|_| INVALID)?;
            // SAFETY: the open device; the context of a CQ is what `rdma_get_send_comp` of rdma_verbs.h
            // expects it to be.
            unsafe {
                let channel = (verbs.ibv_create_comp_channel)(context);
                if channel.is_null() {
                    return Err(last_errno());
                }
                let cq = (verbs.ibv_create_cq)(context, size, cq_context, channel, 0);
                if cq.is_null() {
                    let errno = last_errno();
                    (verbs.ibv_destroy_comp_channel)(channel);
                    return Err(errno);
                }
                Ok((channel, cq))
            }
        };
        // SAFETY: fields of the live object.
        unsafe {
            if recv > 0 {
                ((*abi).recv_cq_channel, (*abi).recv_cq) = create(recv)?;
            }
            if send > 0 {
                match create(send) {
                    Ok(made) => ((*abi).send_cq_channel, (*abi).send_cq) = made,
                    Err(e) => {
                        self.destroy_cqs();
                        return Err(e);
                    }
                }
            }
        }
        Ok(())
    }

    /// Destroys the completion queues that the id made for itself.
    pub(crate) fn destroy_cqs(&self) {
        let abi = self.abi();
        let verbs = self.device().verbs;
        // SAFETY: fields of the live object; they only hold what `create_cqs` made, each once.
        unsafe {
            if (*abi).qp_type == IBV_QPT_XRC_RECV && !(*abi).srq.is_null() {
                return;
            }
            for (cq, channel) in [
                (&raw mut (*abi).recv_cq, &raw mut (*abi).recv_cq_channel),
                (&raw mut (*abi).send_cq, &raw mut (*abi).send_cq_channel),
            ] {
                if !(*cq).is_null() {
                    (verbs.ibv_destroy_cq)(*cq);
                    *cq = ptr::null_mut();
                }
                if !(*channel).is_null() {
                    (verbs.ibv_destroy_comp_channel)(*channel);
                    *channel = ptr::null_mut();
                }
            }
        }
    }

    /// Destroys the queue pair and the completion queues that the id made for itself.
    pub fn destroy_qp(&self) {
        let qp = self.qp();
        if !qp.is_null() {
            // SAFETY: the id's live queue pair, which nothing names afterwards.
            unsafe {
                (self.device().verbs.ibv_destroy_qp)(qp);
                (*self.abi()).qp = ptr::null_mut();
            }
        }
        self.destroy_cqs();
    }

    /// Makes the id's shared receive queue: `rdma_create_srq_ex`.
    ///
    /// # Safety
    /// What `attr` names is live.
    pub(crate) unsafe fn create_srq(&self, attr: &mut ibv_srq_init_attr_ex) -> Result {
        let abi = self.abi();
        if attr.comp_mask & IBV_SRQ_INIT_ATTR_TYPE == 0 || !self.has_device() {
            return Err(INVALID);
        }
        // SAFETY: fields of the live object, and what the caller promises to be live.
        unsafe {
            if attr.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 || attr.pd.is_null() {
                attr.pd = (*abi).pd;
                attr.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
            }
            if attr.srq_type == IBV_SRQT_XRC {
                if attr.comp_mask & IBV_SRQ_INIT_ATTR_XRCD == 0 || attr.xrcd.is_null() {
                    attr.xrcd = self.device().xrcd()?;
                }
                if attr.comp_mask & IBV_SRQ_INIT_ATTR_CQ == 0 || attr.cq.is_null() {
                    self.create_cqs(0, attr.attr.max_wr)?;
                    attr.cq = (*abi).recv_cq;
                }
                attr.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
            }
            match self.new_srq(attr) {
                Ok(srq) => {
                    if (*abi).pd.is_null() {
                        (*abi).pd = attr.pd;
                    }
                    (*abi).srq = srq;
                    Ok(())
                }
                Err(e) => {
                    self.destroy_cqs();
                    Err(e)
                }
            }
        }
    }

    /// # Safety
    /// As for [`CmId::create_srq`].
    unsafe fn new_srq(&self, attr: &mut ibv_srq_init_attr_ex) -> Result<*mut ibv_srq> {
        let device = self.device();
        // SAFETY: contract of this function. `ibv_srq_init_attr_ex` begins with the fields of
        // `ibv_srq_init_attr`, so that `ibv_create_srq_ex` of verbs.h makes the same cast.
        let srq = unsafe {
            let basic = attr.comp_mask == IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD
                && attr.srq_type == IBV_SRQT_BASIC;
            if basic {
                (device.verbs.ibv_create_srq)(attr.pd, ptr::from_mut(attr).cast())
            } else {
                let extended = verbs_get_ctx(device.context);
                let create = extended.as_ref().and_then(|x| x.create_srq_ex);
                create.ok_or(Errno(libc::EOPNOTSUPP))?(device.context, attr)
            }
        };
        if srq.is_null() {
            Err(last_errno())
        } else {
            Ok(srq)
        }
    }

    /// Destroys the shared receive queue.
    pub(crate) fn destroy_srq(&self) {
        let abi = self.abi();
        // SAFETY: the id's live SRQ, which nothing names afterwards.
        unsafe {
            if !(*abi).srq.is_null() {
                if check((self.device().verbs.ibv_destroy_srq)((*abi).srq)).is_err() {
                    tracing::debug!("rdma_destroy_srq: the SRQ is in use");
                }
                (*abi).srq = ptr::null_mut();
            }
        }
        self.destroy_cqs();
    }
}
