//! A queue pair for datagrams, with its buffers: what goes into one send WR and comes out of one receive.
//!
//! Nothing here waits and nothing here is in the background, as in [`crate::stream`].

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::c_int;
use std::net::IpAddr;
use std::ptr;

use verbs_abi::*;

use crate::cq::{Cq, NO_COMPLETIONS};
use crate::memory::Memory;
use crate::sizes::Sizes;
use rdmacm::QpAddress;
use rdmacm::addr::Addr;
use rdmacm::device::{Device, check, last_errno};
use rdmacm::errno::{Errno, Result};

/// The global routing header in front of what a receive takes (`ibv_post_recv(3)`).
const GRH_BYTES: usize = 40;
/// Address handles that are kept at most: one for each port of the fabric that was ever sent to.
const MAX_HANDLES: usize = 4096;

/// A datagram in a receive buffer, to be given back by [`Pair::give_back`].
#[derive(Debug)]
pub(crate) struct Received {
    slot: usize,
    len: usize,
}

impl Received {
    /// Its bytes, all headers of the network left out.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

/// A queue pair of the type UD.
pub(crate) struct Pair {
    device: &'static Device,
    cq: Cq,
    qp: *mut ibv_qp,
    send_buffers: Memory,
    recv_buffers: Memory,
    /// Bytes of a datagram at most, and of a receive buffer.
    mtu: usize,
    recv_stride: usize,
    /// Send WRs posted and completed; their buffers are used in turn, since they complete in order.
    posted: u64,
    completed: u64,
    sq: u64,
    max_inline: usize,
    handles: HashMap<(u16, [u8; 16]), *mut ibv_ah>,
}

// SAFETY: verbs' handles may be used from any thread, and a pair's are used by whoever holds it.
unsafe impl Send for Pair {}

impl Pair {
    pub(crate) fn new(device: &'static Device, sizes: Sizes) -> Result<Self> {
        // `enum ibv_mtu`: 1 is 256 bytes, each next one twice as much.
        let mtu = 128usize << device.active_mtu;
        let recv_stride = (GRH_BYTES + mtu).next_multiple_of(64);
        let (sq, rq) = (sizes.sq.max(1), sizes.rq.max(1));
        // SAFETY: the device's own domain; the device is never closed.
        let (send_buffers, recv_buffers) = unsafe {
            let access = IBV_ACCESS_LOCAL_WRITE;
            (
                Memory::new(device, device.pd, usize::from(sq) * mtu, access)?,
                Memory::new(device, device.pd, usize::from(rq) * recv_stride, access)?,
            )
        };
        let mut pair = Self {
            device,
            cq: Cq::new(device, c_int::from(sq) + c_int::from(rq))?,
            qp: ptr::null_mut(),
            send_buffers,
            recv_buffers,
            mtu,
            recv_stride,
            posted: 0,
            completed: 0,
            sq: sq.into(),
            max_inline: sizes.max_inline.into(),
            handles: HashMap::new(),
        };
        pair.create_qp(sq, rq)?;
        for slot in 0..usize::from(rq) {
            pair.post_recv(slot)?;
        }
        Ok(pair)
    }

    /// Makes the queue pair, ready to send.
    fn create_qp(&mut self, sq: u16, rq: u16) -> Result {
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
        // SAFETY: the domain of a device that is never closed, and a completion queue that lives as long as this value.
        unsafe {
            self.qp = (device.verbs.ibv_create_qp)(device.pd, &raw mut attr);
            if self.qp.is_null() {
                return Err(last_errno());
            }
            for state in [IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS] {
                let (mut attr, mask) = device.datagram_qp_attr(state, Addr::NONE)?;
                device.modify_qp(self.qp, &mut attr, mask)?;
            }
        }
        Ok(())
    }

    /// How peers reach it, at the own address `ip`.
    pub(crate) fn address(&self, ip: IpAddr) -> QpAddress {
        // SAFETY: a live queue pair.
        let qpn = unsafe { (*self.qp).qp_num };
        self.device.address_of(ip.into(), qpn, 0)
    }

    /// Bytes of the longest datagram.
    pub(crate) fn mtu(&self) -> usize {
        self.mtu
    }

    /// Has everything that was sent left its buffer?
    pub(crate) fn all_sent(&self) -> bool {
        self.posted == self.completed
    }

    /// May something be sent now?
    pub(crate) fn has_room(&self) -> bool {
        self.posted - self.completed < self.sq
    }

    /// Sends a datagram of two parts from the own address `from`. There is [room](Self::has_room), and it is no longer
    /// than the [MTU](Self::mtu).
    ///
    /// # Errors
    /// What making an address handle or posting says.
    pub(crate) fn send(&mut self, from: IpAddr, to: &QpAddress, parts: [&[u8]; 2]) -> Result {
        let ah = self.handle(from, to)?;
        let [head, tail] = parts;
        let at = (self.posted % self.sq) as usize * self.mtu;
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
        // SAFETY: a live queue pair and address handle; the WR is copied, and the buffer stays until it has completed.
        check(unsafe { ibv_post_send(self.qp, &raw mut wr, &raw mut bad) })?;
        self.posted += 1;
        Ok(())
    }

    fn handle(&mut self, from: IpAddr, to: &QpAddress) -> Result<*mut ibv_ah> {
        if self.handles.len() >= MAX_HANDLES {
            self.drop_handles();
        }
        let device = self.device;
        match self.handles.entry((to.lid, to.gid)) {
            Entry::Occupied(known) => Ok(*known.get()),
            Entry::Vacant(new) => {
                let mut av = device.address_vector(from.into(), to);
                // SAFETY: the device's own domain; attributes of the right type.
                let ah = unsafe { (device.verbs.ibv_create_ah)(device.pd, &raw mut av) };
                if ah.is_null() {
                    return Err(last_errno());
                }
                Ok(*new.insert(ah))
            }
        }
    }

    fn drop_handles(&mut self) {
        for (_, ah) in self.handles.drain() {
            // SAFETY: made by `handle`; WRs that were posted do not need it any more (`ibv_destroy_ah(3)` of the software
            // NIC), and no other is.
            unsafe { (self.device.verbs.ibv_destroy_ah)(ah) };
        }
    }

    /// Takes what has completed; what was received goes to `received`. Says whether there was something.
    pub(crate) fn progress(&mut self, mut received: impl FnMut(Received)) -> bool {
        let mut any = false;
        let mut wcs = NO_COMPLETIONS;
        loop {
            let n = self.cq.poll(&mut wcs);
            if n == 0 {
                return any;
            }
            any = true;
            for wc in wcs.iter().take(n) {
                // The opcode of a failed completion is not valid: receives alone have a `wr_id`.
                let Some(slot) = wc.wr_id.checked_sub(1) else {
                    self.completed += 1;
                    continue;
                };
                let datagram = Received {
                    slot: slot as usize,
                    len: (wc.byte_len as usize).saturating_sub(GRH_BYTES),
                };
                if wc.status == IBV_WC_SUCCESS {
                    received(datagram);
                }
            }
        }
    }

    /// Copies bytes of a datagram, from `offset`.
    pub(crate) fn read(&self, datagram: &Received, offset: usize, bytes: &mut [u8]) {
        let at = datagram.slot * self.recv_stride + GRH_BYTES + offset;
        self.recv_buffers.read(at, bytes);
    }

    /// The buffer of a datagram takes the next one.
    pub(crate) fn give_back(&mut self, datagram: &Received) {
        if let Err(Errno(errno)) = self.post_recv(datagram.slot) {
            tracing::warn!("a receive buffer is lost: errno {errno}");
        }
    }

    fn post_recv(&mut self, slot: usize) -> Result {
        let mut sge = ibv_sge {
            addr: self.recv_buffers.address(slot * self.recv_stride),
            length: (GRH_BYTES + self.mtu) as u32,
            lkey: self.recv_buffers.lkey(),
        };
        let mut wr = ibv_recv_wr::zeroed();
        wr.wr_id = slot as u64 + 1;
        wr.sg_list = &raw mut sge;
        wr.num_sge = 1;
        let mut bad = ptr::null_mut();
        // SAFETY: a live queue pair; the buffer stays as long as it.
        check(unsafe { ibv_post_recv(self.qp, &raw mut wr, &raw mut bad) })
    }

    /// Arms the completion queue: its channel becomes readable at the next completion. What is in the channel is taken.
    pub(crate) fn arm(&mut self) {
        self.cq.take_events();
        self.cq.arm();
    }

    /// The descriptor that says that something has completed.
    pub(crate) fn fd(&self) -> c_int {
        self.cq.fd()
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.drop_handles();
        if !self.qp.is_null() {
            // SAFETY: what `new` has made; what it names goes after it.
            unsafe { (self.device.verbs.ibv_destroy_qp)(self.qp) };
        }
    }
}
