//! A byte stream over a reliable connection. Data goes by RDMA WRITEs to the peer's receive buffer, with immediates
//! that say how much was written. Credits go the other way (see [`crate::protocol`]).
//!
//! No function waits, and no work is done in the background: the owner of the stream posts work requests and polls the
//! completion queue. `completions` processes completions; `iomap` handles buffers that the peer maps.

mod completions;
mod iomap;

use std::collections::VecDeque;
use std::ffi::c_int;
use std::ptr;

use verbs_abi::*;

use crate::cq::Cq;
use crate::memory::ZeroedRegion;
use crate::protocol::{ConnData, IOMAP_ENTRY_SIZE, Immediate, RemoteBuffer, agreed_iomap_entries};
use crate::sizes::QueueSizes;
use rdmacm::device::{Device, check};
use rdmacm::errno::{Errno, Result};
use rdmacm::id::CmId;

/// Number of targets in the target SGL, which the halves of the receive buffer use in turn.
const TARGETS: usize = 2;
/// Number of send work requests reserved for control messages, so that credits can always be sent.
const CONTROL_WRS: u16 = 4;
/// Number of receives beyond the credits, for control messages.
const CONTROL_RECEIVES: u16 = 2 * CONTROL_WRS;
/// Largest number of bytes per WRITE: with shorter WRITEs, the receiver can start before the last byte has arrived.
const MAX_TRANSFER: usize = 65_536;

/// Minimum number of work requests; `MIN_BUFFER`: of bytes of a buffer. They leave room for control messages and for
/// two halves of a buffer.
const MIN_WRS: u16 = 16;
const MIN_BUFFER: usize = 4096;

/// The remote address of a WRITE.
#[derive(Clone, Copy)]
struct RemoteAddress {
    addr: u64,
    rkey: u32,
}

/// The purpose of a send work request, encoded in its `wr_id`.
#[derive(Clone, Copy)]
enum SendPurpose {
    /// Data; the value is the number of bytes of the send buffer that its completion frees.
    Data(u32),
    Control,
}

impl SendPurpose {
    fn wr_id(self) -> u64 {
        match self {
            Self::Data(len) => u64::from(len),
            Self::Control => u64::MAX,
        }
    }

    fn from_wr_id(wr_id: u64) -> Self {
        u32::try_from(wr_id).map_or(Self::Control, Self::Data)
    }
}

/// A buffer that the peer may write by `riowrite`.
struct PeerWritableBuffer {
    mr: *mut ibv_mr,
    addr: usize,
    index: u16,
}

/// One end of a byte stream.
pub(crate) struct Stream {
    device: &'static Device,
    qp: *mut ibv_qp,
    pub(crate) cq: Cq,
    /// Target SGL, iomap and receive buffer, which the peer writes.
    shared: ZeroedRegion,
    /// Send buffer.
    private: ZeroedRegion,
    sizes: QueueSizes,

    // Sending.
    /// Location of the peer's target SGL and iomap.
    remote_sgl: RemoteBuffer,
    /// Index of the peer's target that gets the next receive buffer.
    remote_target: usize,
    /// Unused rest of the current target; `target_index`: the target's index.
    target: RemoteBuffer,
    target_index: usize,
    /// Number of data messages sent; `allowed`: the number of the first one that must not be sent yet.
    sent: u16,
    allowed: u16,
    sq_free: u16,
    control_free: u16,
    send_at: usize,
    send_free: usize,

    // Receiving.
    /// Position of the next byte to read; `readable`: the number of readable bytes.
    recv_at: usize,
    readable: usize,
    /// Number of bytes that the peer may still write, to detect peers that claim more.
    granted: usize,
    /// Number of bytes that were read and not yet granted to the peer again.
    unreturned_credit_bytes: usize,
    /// Start of the half of the receive buffer that is granted next.
    grant_at: usize,
    /// Number of data messages received; `credits_due`: the number at which further credits must be sent.
    received: u16,
    credits_due: u16,

    mapped: Vec<PeerWritableBuffer>,
    /// Free iomap entries of the peer.
    free_maps: VecDeque<u16>,

    /// True if the peer sends no more.
    pub(crate) peer_has_shut_down: bool,
    /// True if this end sends no more.
    pub(crate) has_shut_down: bool,
    /// Set if neither end sends any more: 0, or the errno of a failure.
    pub(crate) final_status: Option<c_int>,
}

// SAFETY: verbs handles may be used from any thread, and only the owner of a stream uses its handles.
unsafe impl Send for Stream {}

impl Stream {
    /// Makes the queue pair of `id`, and the buffers of a stream.
    ///
    /// # Safety
    /// `id` is bound to a device. The queue pair that this function makes is destroyed before the stream is dropped,
    /// and the stream is not used in between.
    pub(crate) unsafe fn new(id: &CmId, sizes: QueueSizes) -> Result<Self> {
        let sizes = QueueSizes {
            send_buffer: sizes.send_buffer.max(MIN_BUFFER),
            // The buffer has two halves of whole words.
            recv_buffer: sizes.recv_buffer.max(MIN_BUFFER).next_multiple_of(16),
            sq: sizes.sq.max(MIN_WRS),
            rq: sizes.rq.max(MIN_WRS),
            max_inline: sizes.max_inline.max(IOMAP_ENTRY_SIZE as u16),
            iomap_entries: agreed_iomap_entries(sizes.iomap_entries),
        };
        // SAFETY: contract of this function.
        unsafe {
            let mut stream = Self::without_qp(id, sizes)?;
            stream.create_qp(id)?;
            Ok(stream)
        }
    }

    /// Makes a stream with its memory and completion queue, without a queue pair.
    ///
    /// # Safety
    /// `id` is bound to a device.
    unsafe fn without_qp(id: &CmId, sizes: QueueSizes) -> Result<Self> {
        let device = id.device();
        let shared_len = Self::recv_buffer_at(sizes.iomap_entries) + sizes.recv_buffer;
        let remote = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
        // SAFETY: the protection domain belongs to an id that is bound to the device.
        let (shared, private) = unsafe {
            (
                ZeroedRegion::new(device, id.pd(), shared_len, remote)?,
                ZeroedRegion::new(device, id.pd(), sizes.send_buffer, IBV_ACCESS_LOCAL_WRITE)?,
            )
        };
        let cqe = c_int::from(sizes.sq) + c_int::from(sizes.rq + CONTROL_RECEIVES);
        let cq = Cq::new(device, cqe)?;
        Ok(Self {
            device,
            qp: ptr::null_mut(),
            cq,
            shared,
            private,
            sizes,
            remote_sgl: RemoteBuffer::default(),
            remote_target: 0,
            target: RemoteBuffer::default(),
            target_index: 0,
            sent: 0,
            allowed: 0,
            sq_free: sizes.sq - CONTROL_WRS,
            control_free: CONTROL_WRS,
            send_at: 0,
            send_free: sizes.send_buffer,
            recv_at: 0,
            readable: 0,
            granted: sizes.recv_buffer / 2,
            unreturned_credit_bytes: sizes.recv_buffer / 2,
            grant_at: sizes.recv_buffer / 2,
            received: 0,
            credits_due: sizes.rq / 2,
            mapped: Vec::new(),
            free_maps: VecDeque::new(),
            peer_has_shut_down: false,
            has_shut_down: false,
            final_status: None,
        })
    }

    /// Makes the queue pair, and posts its receives.
    ///
    /// # Safety
    /// As for [`Stream::new`].
    unsafe fn create_qp(&mut self, id: &CmId) -> Result {
        let sizes = self.sizes;
        let receives = sizes.rq + CONTROL_RECEIVES;
        let mut attr = ibv_qp_init_attr_ex::zeroed();
        attr.comp_mask = IBV_QP_INIT_ATTR_PD;
        attr.pd = id.pd();
        attr.qp_type = IBV_QPT_RC;
        attr.send_cq = self.cq.raw();
        attr.recv_cq = self.cq.raw();
        attr.cap.max_send_wr = u32::from(sizes.sq);
        attr.cap.max_recv_wr = u32::from(receives);
        attr.cap.max_send_sge = 2;
        attr.cap.max_recv_sge = 1;
        attr.cap.max_inline_data = u32::from(sizes.max_inline);
        attr.sq_sig_all = 1;
        // SAFETY: the protection domain and the completion queue live as long as the queue pair (contract of this
        // function).
        unsafe { id.create_qp(&mut attr) }?;
        self.qp = id.qp();
        for _ in 0..receives {
            if let Err(e) = self.post_recv() {
                id.destroy_qp();
                return Err(e);
            }
        }
        Ok(())
    }

    /// Returns the offset of the receive buffer in the shared memory, which follows the iomap.
    fn recv_buffer_at(iomap_entries: u16) -> usize {
        Self::iomap_at(iomap_entries)
    }

    /// Returns the offset of iomap entry `index` in the shared memory.
    fn iomap_at(index: u16) -> usize {
        TARGETS * RemoteBuffer::SIZE + usize::from(index) * IOMAP_ENTRY_SIZE
    }

    /// Returns the data for the peer when the connection is made.
    pub(crate) fn conn_data(&self) -> ConnData {
        let rkey = self.shared.rkey();
        ConnData {
            credits: self.sizes.rq,
            iomap_entries: self.sizes.iomap_entries,
            target_sgl: RemoteBuffer {
                addr: self.shared.address(0),
                rkey,
                len: TARGETS as u32,
            },
            data_buf: RemoteBuffer {
                addr: self
                    .shared
                    .address(Self::recv_buffer_at(self.sizes.iomap_entries)),
                rkey,
                len: (self.sizes.recv_buffer / 2) as u32,
            },
        }
    }

    /// Stores the data that the peer sent when the connection was made.
    ///
    /// # Errors
    /// `EPROTO` if the data is invalid.
    pub(crate) fn set_peer(&mut self, peer: &ConnData) -> Result {
        if peer.target_sgl.len == 0 {
            return Err(Errno(libc::EPROTO));
        }
        self.remote_sgl = peer.target_sgl;
        self.free_maps = (0..peer.iomap_entries).collect();
        self.target = peer.data_buf;
        self.target_index = 0;
        // The first target is in use, so the next receive buffer goes to the second one.
        self.remote_target = 1 % peer.target_sgl.len as usize;
        self.allowed = peer.credits;
        Ok(())
    }

    pub(crate) fn sizes(&self) -> QueueSizes {
        self.sizes
    }

    // State.

    /// Returns true if a read would not block: data, the end of the stream, or an error.
    pub(crate) fn can_read(&self) -> bool {
        self.readable > 0 || self.peer_has_shut_down || self.final_status.is_some()
    }

    /// Returns true if data can be read.
    pub(crate) fn has_data(&self) -> bool {
        self.readable > 0
    }

    /// Returns true if a write would not block, including writes that fail.
    pub(crate) fn can_write(&self) -> bool {
        self.has_room() || self.has_shut_down || self.final_status.is_some()
    }

    fn has_room(&self) -> bool {
        self.sq_free > 0
            && self.send_free > 0
            && self.sent != self.allowed
            && self.current_target().len > 0
    }

    /// Returns true if all sends have completed, or the connection is over.
    pub(crate) fn all_sent(&self) -> bool {
        self.final_status.is_some()
            || (self.sq_free == self.sizes.sq - CONTROL_WRS && self.control_free == CONTROL_WRS)
    }

    /// Returns the target for the next data.
    fn current_target(&self) -> RemoteBuffer {
        if self.target.len > 0 {
            return self.target;
        }
        let at = self.target_index * RemoteBuffer::SIZE;
        RemoteBuffer::from_words(self.shared.word(at), self.shared.word(at + 8))
    }

    // Sending.

    /// Sends as much of `bytes` as fits now; returns the number of bytes.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<usize> {
        let mut done = 0;
        while done < bytes.len() && self.has_room() {
            if self.target.len == 0 {
                self.target = self.current_target();
                self.clear_target();
            }
            let rest = bytes.get(done..).unwrap_or_default();
            let len = rest
                .len()
                .min(MAX_TRANSFER)
                .min(self.target.len as usize)
                .min(self.send_free);
            let chunk = rest.get(..len).unwrap_or_default();
            let RemoteBuffer { addr, rkey, .. } = self.target;
            let imm = Immediate::Data(len as u32);
            self.post_data(chunk, RemoteAddress { addr, rkey }, Some(imm))?;
            self.sent = self.sent.wrapping_add(1);
            self.target.addr += len as u64;
            self.target.len -= len as u32;
            if self.target.len == 0 {
                self.target_index = (self.target_index + 1) % TARGETS;
            }
            done += len;
        }
        Ok(done)
    }

    /// Marks the target as used, so that it is not used again before the peer has renewed it.
    fn clear_target(&mut self) {
        self.shared.write(
            self.target_index * RemoteBuffer::SIZE,
            &[0; RemoteBuffer::SIZE],
        );
    }

    /// Copies `chunk`, which must fit, to the send buffer and posts a WRITE of it.
    fn post_data(&mut self, chunk: &[u8], to: RemoteAddress, imm: Option<Immediate>) -> Result {
        let inline = chunk.len() <= usize::from(self.sizes.max_inline);
        let size = self.sizes.send_buffer;
        let first = chunk.len().min(size - self.send_at);
        let (head, tail) = chunk.split_at(first);
        self.private.write(self.send_at, head);
        self.private.write(0, tail);
        let piece = |at: usize, len: usize| ibv_sge {
            addr: self.private.address(at),
            length: len as u32,
            lkey: self.private.lkey(),
        };
        let mut pieces = [piece(self.send_at, head.len()), piece(0, tail.len())];
        let count = if tail.is_empty() { 1 } else { 2 };
        let flags = if inline { IBV_SEND_INLINE } else { 0 };
        let used = pieces.get_mut(..count).unwrap_or_default();
        self.post_write(used, to, imm, flags, SendPurpose::Data(chunk.len() as u32))?;
        self.send_at = (self.send_at + chunk.len()) % size;
        self.send_free -= chunk.len();
        self.sq_free -= 1;
        Ok(())
    }

    /// Posts a control message; `control_free` must not be 0.
    fn post_control(&mut self, bytes: &mut [u8], addr: u64, imm: Immediate) -> Result {
        let mut sge = ibv_sge {
            addr: bytes.as_ptr().expose_provenance() as u64,
            length: bytes.len() as u32,
            lkey: 0,
        };
        let sges = if bytes.is_empty() {
            &mut []
        } else {
            std::slice::from_mut(&mut sge)
        };
        let rkey = self.remote_sgl.rkey;
        let to = RemoteAddress { addr, rkey };
        self.post_write(sges, to, Some(imm), IBV_SEND_INLINE, SendPurpose::Control)?;
        self.control_free -= 1;
        Ok(())
    }

    fn post_write(
        &mut self,
        sges: &mut [ibv_sge],
        to: RemoteAddress,
        imm: Option<Immediate>,
        flags: ibv_send_flags,
        what: SendPurpose,
    ) -> Result {
        let mut wr = ibv_send_wr::zeroed();
        wr.wr_id = what.wr_id();
        wr.sg_list = sges.as_mut_ptr();
        wr.num_sge = c_int::try_from(sges.len()).unwrap_or(0);
        wr.send_flags = flags;
        wr.opcode = match imm {
            Some(imm) => {
                wr.imm.imm_data = imm.encode().to_be();
                IBV_WR_RDMA_WRITE_WITH_IMM
            }
            None => IBV_WR_RDMA_WRITE,
        };
        wr.wr.rdma.remote_addr = to.addr;
        wr.wr.rdma.rkey = to.rkey;
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is live. The work request is copied, including inline data, and the send buffer stays
        // valid until the work request has completed.
        check(unsafe { ibv_post_send(self.qp, &raw mut wr, &raw mut bad) })
    }

    /// Sends a control message: this end sends no more, or is closed.
    pub(crate) fn send_control(&mut self, imm: Immediate) {
        if self.final_status.is_none() && self.control_free > 0 {
            let to = self.remote_sgl.addr;
            if self.post_control(&mut [], to, imm).is_err() {
                self.final_status = Some(libc::ECONNRESET);
            }
        }
    }

    // Receiving.

    /// Reads as many bytes as `bytes` and the received data allow; with `peek`, the data stays unread.
    pub(crate) fn recv(&mut self, bytes: &mut [u8], peek: bool) -> usize {
        let len = bytes.len().min(self.readable);
        let size = self.sizes.recv_buffer;
        let base = Self::recv_buffer_at(self.sizes.iomap_entries);
        let first = len.min(size - self.recv_at);
        let (head, tail) = bytes.split_at_mut(first);
        let tail = tail.get_mut(..len - first).unwrap_or_default();
        self.shared.read(base + self.recv_at, head);
        self.shared.read(base, tail);
        if !peek {
            self.recv_at = (self.recv_at + len) % size;
            self.readable -= len;
            self.unreturned_credit_bytes += len;
            self.grant();
        }
        len
    }

    /// Sends credits and receive buffers to the peer, if they are due.
    fn grant(&mut self) {
        let half = self.sizes.recv_buffer / 2;
        loop {
            let buffer_due = self.unreturned_credit_bytes >= half;
            let credits_due = self.received.wrapping_sub(self.credits_due).cast_signed() >= 0;
            let may =
                self.final_status.is_none() && self.control_free > 0 && self.remote_sgl.len > 0;
            if !may || !(buffer_due || credits_due) {
                return;
            }
            let imm = Immediate::Credits(self.received.wrapping_add(self.sizes.rq));
            let posted = if buffer_due {
                let base = Self::recv_buffer_at(self.sizes.iomap_entries);
                let mut bytes = RemoteBuffer {
                    addr: self.shared.address(base + self.grant_at),
                    rkey: self.shared.rkey(),
                    len: half as u32,
                }
                .to_memory();
                let to = self.remote_sgl.addr + (self.remote_target * RemoteBuffer::SIZE) as u64;
                self.remote_target = (self.remote_target + 1) % self.remote_sgl.len as usize;
                self.grant_at = (self.grant_at + half) % (2 * half);
                self.unreturned_credit_bytes -= half;
                self.granted += half;
                self.post_control(&mut bytes, to, imm)
            } else {
                self.post_control(&mut [], self.remote_sgl.addr, imm)
            };
            if posted.is_err() {
                self.final_status = Some(libc::ECONNRESET);
                return;
            }
            self.credits_due = self.received.wrapping_add(self.sizes.rq / 2);
        }
    }

    fn post_recv(&mut self) -> Result {
        let mut wr = ibv_recv_wr::zeroed();
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is live. The work request has no buffer, since the sender determines the address of
        // the payload.
        check(unsafe { ibv_post_recv(self.qp, &raw mut wr, &raw mut bad) })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        for mapped in self.mapped.drain(..) {
            // SAFETY: registered by `map` and deregistered once.
            unsafe { (self.device.verbs.ibv_dereg_mr)(mapped.mr) };
        }
    }
}
