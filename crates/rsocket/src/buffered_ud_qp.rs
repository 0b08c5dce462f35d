//! A UD queue pair with its buffers; each datagram is one work request.
//!
//! No function waits, and no work is done in the background, as in [`crate::stream`].

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::c_int;
use std::net::IpAddr;
use std::ptr;

use verbs_abi::*;

use crate::cq::{Cq, ZEROED_COMPLETIONS};
use crate::memory::ZeroedRegion;
use crate::queue_and_buffer_sizes::QueueAndBufferSizes;
use rdmacm::QpAddress;
use rdmacm::addr::IdAddress;
use rdmacm::device_port::{DevicePort, check_returned_errno, last_errno};
use rdmacm::errno::{Errno, Result};

/// Bytes of the global routing header in front of a received datagram (`ibv_post_recv(3)`).
const GRH_BYTES: usize = 40;
/// Largest number of cached address handles; each is for one port of the fabric.
const MAX_ADDRESS_HANDLES: usize = 4096;

/// A datagram in a receive buffer; [`BufferedUdQp::repost_recv_buffer`] must return the buffer.
#[derive(Debug)]
pub(crate) struct ReceivedDatagram {
    recv_buffer_index: usize,
    len: usize,
}

impl ReceivedDatagram {
    /// Returns the number of bytes, without the GRH.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

/// A UD queue pair with its buffers.
pub(crate) struct BufferedUdQp {
    device: &'static DevicePort,
    cq: Cq,
    qp: *mut ibv_qp,
    send_buffers: ZeroedRegion,
    recv_buffers: ZeroedRegion,
    /// Largest datagram in bytes; `recv_buffer_stride_bytes`: the distance of receive buffers.
    mtu: usize,
    recv_buffer_stride_bytes: usize,
    /// Number of posted send work requests; `completed_sends`: of completed ones. Their buffers are used in turn, since
    /// they complete in order.
    posted_sends: u64,
    completed_sends: u64,
    max_outstanding_sends: u64,
    max_inline: usize,
    address_handles: HashMap<(u16, [u8; 16]), *mut ibv_ah>,
}

// SAFETY: verbs handles may be used from any thread, and only the owner of a pair uses its handles.
unsafe impl Send for BufferedUdQp {}

impl BufferedUdQp {
    pub(crate) fn new(device: &'static DevicePort, sizes: QueueAndBufferSizes) -> Result<Self> {
        // `enum ibv_mtu`: 1 is 256 bytes, and each following value is twice as much.
        let mtu = 128usize << device.active_mtu;
        let recv_stride = (GRH_BYTES + mtu).next_multiple_of(64);
        let (sq, rq) = (sizes.sq_wrs.max(1), sizes.rq_wrs.max(1));
        // SAFETY: the device's protection domain; the device is never closed.
        let (send_buffers, recv_buffers) = unsafe {
            let access = IBV_ACCESS_LOCAL_WRITE;
            (
                ZeroedRegion::new(device, device.pd, usize::from(sq) * mtu, access)?,
                ZeroedRegion::new(device, device.pd, usize::from(rq) * recv_stride, access)?,
            )
        };
        let mut pair = Self {
            device,
            cq: Cq::new(device, c_int::from(sq) + c_int::from(rq))?,
            qp: ptr::null_mut(),
            send_buffers,
            recv_buffers,
            mtu,
            recv_buffer_stride_bytes: recv_stride,
            posted_sends: 0,
            completed_sends: 0,
            max_outstanding_sends: sq.into(),
            max_inline: sizes.max_inline.into(),
            address_handles: HashMap::new(),
        };
        pair.create_qp_in_rts(sq, rq)?;
        for slot in 0..usize::from(rq) {
            pair.post_recv(slot)?;
        }
        Ok(pair)
    }

    /// Makes the queue pair and moves it to RTS.
    fn create_qp_in_rts(&mut self, sq: u16, rq: u16) -> Result {
        let device = self.device;
        let mut attr = ibv_qp_init_attr::zeroed();
        attr.qp_type = IBV_QPT_UD;
        attr.send_cq = self.cq.raw();
        attr.recv_cq = self.cq.raw();
        attr.cap.max_send_wr = sq.into();
        attr.cap.max_recv_wr = rq.into();
        attr.cap.max_send_sge = 1;
        attr.cap.max_recv_sge = 1;
        attr.cap.max_inline_data = self.max_inline as u32;
        attr.sq_sig_all = 1;
        // SAFETY: the protection domain belongs to a device that is never closed, and the completion queue lives as
        // long as this value.
        unsafe {
            self.qp = (device.verbs.ibv_create_qp)(device.pd, &raw mut attr);
            if self.qp.is_null() {
                return Err(last_errno());
            }
            for state in [IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS] {
                let (mut attr, mask) = device.datagram_qp_attr(state, IdAddress::UNBOUND)?;
                device.modify_qp(self.qp, &mut attr, mask)?;
            }
        }
        Ok(())
    }

    /// Returns the address of the queue pair, for the local address `ip`.
    pub(crate) fn qp_address(&self, ip: IpAddr) -> QpAddress {
        // SAFETY: the queue pair is live.
        let qpn = unsafe { (*self.qp).qp_num };
        self.device.qp_address_of(ip.into(), qpn, 0)
    }

    /// Returns the largest datagram in bytes.
    pub(crate) fn mtu(&self) -> usize {
        self.mtu
    }

    /// Returns true if all sends have completed.
    pub(crate) fn have_all_sends_completed(&self) -> bool {
        self.posted_sends == self.completed_sends
    }

    /// Returns true if the send queue has room for a datagram.
    pub(crate) fn has_send_queue_room(&self) -> bool {
        self.posted_sends - self.completed_sends < self.max_outstanding_sends
    }

    /// Sends a datagram of two parts from the local address `from`. The send queue must have
    /// [room](Self::has_send_queue_room), and the datagram must not exceed the [MTU](Self::mtu).
    ///
    /// # Errors
    /// The error of making an address handle or of posting.
    pub(crate) fn send(&mut self, from: IpAddr, to: &QpAddress, parts: [&[u8]; 2]) -> Result {
        let ah = self.address_handle_or_create(from, to)?;
        let [head, tail] = parts;
        let at = (self.posted_sends % self.max_outstanding_sends) as usize * self.mtu;
        self.send_buffers.write(at, head);
        self.send_buffers.write(at + head.len(), tail);
        let len = head.len() + tail.len();
        let mut sge = ibv_sge {
            addr: self.send_buffers.address(at),
            length: len as u32,
            lkey: self.send_buffers.lkey(),
        };
        let mut wr = ibv_send_wr::zeroed();
        wr.sg_list = &raw mut sge;
        wr.num_sge = 1;
        wr.opcode = IBV_WR_SEND;
        if len <= self.max_inline {
            wr.send_flags = IBV_SEND_INLINE;
        }
        wr.wr.ud = ibv_send_wr_wr_ud {
            ah,
            remote_qpn: to.qpn,
            remote_qkey: to.qkey,
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair and the address handle are live. The work request is copied, and the buffer stays
        // valid until it has completed.
        check_returned_errno(unsafe { ibv_post_send(self.qp, &raw mut wr, &raw mut bad) })?;
        self.posted_sends += 1;
        Ok(())
    }

    fn address_handle_or_create(&mut self, from: IpAddr, to: &QpAddress) -> Result<*mut ibv_ah> {
        if self.address_handles.len() >= MAX_ADDRESS_HANDLES {
            self.destroy_address_handles();
        }
        let device = self.device;
        match self.address_handles.entry((to.lid, to.gid)) {
            Entry::Occupied(known) => Ok(*known.get()),
            Entry::Vacant(new) => {
                let mut av = device.address_vector(from.into(), to);
                // SAFETY: the device's protection domain, and attributes of the right type.
                let ah = unsafe { (device.verbs.ibv_create_ah)(device.pd, &raw mut av) };
                if ah.is_null() {
                    return Err(last_errno());
                }
                Ok(*new.insert(ah))
            }
        }
    }

    fn destroy_address_handles(&mut self) {
        for (_, ah) in self.address_handles.drain() {
            // SAFETY: made by `address_handle_or_create`. Posted work requests do not need it any more
            // (`ibv_destroy_ah(3)` of the software NIC), and no other user exists.
            unsafe { (self.device.verbs.ibv_destroy_ah)(ah) };
        }
    }

    /// Polls the completion queue and passes received datagrams to `received`. Returns true if a completion was found.
    pub(crate) fn poll_completions(&mut self, mut received: impl FnMut(ReceivedDatagram)) -> bool {
        let mut any = false;
        let mut wcs = ZEROED_COMPLETIONS;
        loop {
            let n = self.cq.poll(&mut wcs);
            if n == 0 {
                return any;
            }
            any = true;
            for wc in wcs.iter().take(n) {
                // The opcode of a failed completion is invalid, but only receives have a nonzero `wr_id`.
                let Some(slot) = wc.wr_id.checked_sub(1) else {
                    self.completed_sends += 1;
                    continue;
                };
                let datagram = ReceivedDatagram {
                    recv_buffer_index: slot as usize,
                    len: (wc.byte_len as usize).saturating_sub(GRH_BYTES),
                };
                if wc.status == IBV_WC_SUCCESS {
                    received(datagram);
                }
            }
        }
    }

    /// Copies bytes of a datagram, from `offset` on.
    pub(crate) fn copy_from_datagram(
        &self,
        datagram: &ReceivedDatagram,
        offset: usize,
        bytes: &mut [u8],
    ) {
        let at = datagram.recv_buffer_index * self.recv_buffer_stride_bytes + GRH_BYTES + offset;
        self.recv_buffers.read(at, bytes);
    }

    /// Posts the buffer of a datagram for the next one.
    pub(crate) fn repost_recv_buffer(&mut self, datagram: &ReceivedDatagram) {
        if let Err(Errno(errno)) = self.post_recv(datagram.recv_buffer_index) {
            tracing::warn!("a receive buffer is lost: errno {errno}");
        }
    }

    fn post_recv(&mut self, slot: usize) -> Result {
        let mut sge = ibv_sge {
            addr: self
                .recv_buffers
                .address(slot * self.recv_buffer_stride_bytes),
            length: (GRH_BYTES + self.mtu) as u32,
            lkey: self.recv_buffers.lkey(),
        };
        let mut wr = ibv_recv_wr::zeroed();
        wr.wr_id = slot as u64 + 1;
        wr.sg_list = &raw mut sge;
        wr.num_sge = 1;
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is live, and the buffer lives as long as the queue pair.
        check_returned_errno(unsafe { ibv_post_recv(self.qp, &raw mut wr, &raw mut bad) })
    }

    /// Takes the events of the channel and arms the completion queue, so that the channel becomes readable at the next
    /// completion.
    pub(crate) fn take_events_and_arm(&mut self) {
        self.cq.take_and_ack_channel_events();
        self.cq.arm();
    }

    /// Returns the descriptor that becomes readable after a completion.
    pub(crate) fn fd(&self) -> c_int {
        self.cq.fd()
    }
}

impl Drop for BufferedUdQp {
    fn drop(&mut self) {
        self.destroy_address_handles();
        if !self.qp.is_null() {
            // SAFETY: `new` made the queue pair; the objects that it uses are destroyed after it.
            unsafe { (self.device.verbs.ibv_destroy_qp)(self.qp) };
        }
    }
}
