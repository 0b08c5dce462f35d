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
use crate::protocol::{
    ConnData, IOMAP_ENTRY_SIZE, Immediate, RemoteBuffer, agreed_iomap_entry_count,
};
use crate::queue_and_buffer_sizes::QueueAndBufferSizes;
use rdmacm::device_port::{DevicePort, check_returned_errno};
use rdmacm::errno::{Errno, Result};
use rdmacm::id::CmId;

/// Number of targets in the target SGL, which the halves of the receive buffer use in turn.
const TARGET_SGL_ENTRIES: usize = 2;
/// Number of send work requests reserved for control messages, so that credits can always be sent.
const RESERVED_CONTROL_WRS: u16 = 4;
/// Number of receives beyond the credits, for control messages.
const EXTRA_CONTROL_RECEIVES: u16 = 2 * RESERVED_CONTROL_WRS;
/// Largest number of bytes per WRITE: with shorter WRITEs, the receiver can start before the last byte has arrived.
const MAX_WRITE_BYTES: usize = 65_536;

/// Minimum number of work requests; `MIN_BUFFER_BYTES`: of bytes of a buffer. They leave room for control messages and
/// for two halves of a buffer.
const MIN_QUEUE_WRS: u16 = 16;
const MIN_BUFFER_BYTES: usize = 4096;

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
    peer_iomap_index: u16,
}

/// One end of a byte stream.
pub(crate) struct Stream {
    device: &'static DevicePort,
    qp: *mut ibv_qp,
    pub(crate) cq: Cq,
    /// Target SGL, iomap and receive buffer, which the peer writes.
    peer_written_memory: ZeroedRegion,
    /// Send buffer.
    send_memory: ZeroedRegion,
    queue_and_buffer_sizes: QueueAndBufferSizes,

    // Sending.
    /// Location of the peer's target SGL and iomap.
    remote_target_sgl: RemoteBuffer,
    /// Index of the peer's target that gets the next receive buffer.
    next_remote_target_index: usize,
    /// Unused rest of the current target; `current_target_index`: the target's index.
    unused_rest_of_target: RemoteBuffer,
    current_target_index: usize,
    /// Number of data messages sent; `first_forbidden_message_number`: the number of the first one that must not be
    /// sent yet.
    sent_messages: u16,
    first_forbidden_message_number: u16,
    free_data_wrs: u16,
    free_control_wrs: u16,
    send_buffer_write_offset: usize,
    free_send_buffer_bytes: usize,

    // Receiving.
    /// Position of the next byte to read; `readable_bytes`: the number of readable bytes.
    recv_buffer_read_offset: usize,
    readable_bytes: usize,
    /// Number of bytes that the peer may still write, to detect peers that claim more.
    peer_writable_bytes: usize,
    /// Number of bytes that were read and not yet granted to the peer again.
    read_ungranted_bytes: usize,
    /// Start of the half of the receive buffer that is granted next.
    next_granted_half_offset: usize,
    /// Number of data messages received; `next_credit_at_message`: the number at which further credits must be sent.
    received_messages: u16,
    next_credit_at_message: u16,

    peer_writable_buffers: Vec<PeerWritableBuffer>,
    /// Free iomap entries of the peer.
    free_peer_iomap_indexes: VecDeque<u16>,

    /// True if the peer sends no more.
    pub(crate) peer_has_shut_down: bool,
    /// True if this end sends no more.
    pub(crate) has_shut_down: bool,
    /// Set if neither end sends any more: 0, or the errno of a failure.
    pub(crate) final_errno: Option<c_int>,
}

// SAFETY: verbs handles may be used from any thread, and only the owner of a stream uses its handles.
unsafe impl Send for Stream {}

impl Stream {
    /// Makes the queue pair of `id`, and the buffers of a stream.
    ///
    /// # Safety
    /// `id` is bound to a device. The queue pair that this function makes is destroyed before the stream is dropped,
    /// and the stream is not used in between.
    pub(crate) unsafe fn new(id: &CmId, sizes: QueueAndBufferSizes) -> Result<Self> {
        let sizes = QueueAndBufferSizes {
            send_buffer_bytes: sizes.send_buffer_bytes.max(MIN_BUFFER_BYTES),
            // The buffer has two halves of whole words.
            recv_buffer_bytes: sizes
                .recv_buffer_bytes
                .max(MIN_BUFFER_BYTES)
                .next_multiple_of(16),
            sq_wrs: sizes.sq_wrs.max(MIN_QUEUE_WRS),
            rq_wrs: sizes.rq_wrs.max(MIN_QUEUE_WRS),
            max_inline: sizes.max_inline.max(IOMAP_ENTRY_SIZE as u16),
            iomap_entry_count: agreed_iomap_entry_count(sizes.iomap_entry_count),
        };
        // SAFETY: contract of this function.
        unsafe {
            let mut stream = Self::new_without_qp(id, sizes)?;
            stream.create_qp_and_post_recvs(id)?;
            Ok(stream)
        }
    }

    /// Makes a stream with its memory and completion queue, without a queue pair.
    ///
    /// # Safety
    /// `id` is bound to a device.
    unsafe fn new_without_qp(id: &CmId, sizes: QueueAndBufferSizes) -> Result<Self> {
        let device = id.device_port_of_local_address();
        let shared_len =
            Self::recv_buffer_offset(sizes.iomap_entry_count) + sizes.recv_buffer_bytes;
        let remote = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
        // SAFETY: the protection domain belongs to an id that is bound to the device.
        let (shared, private) = unsafe {
            (
                ZeroedRegion::new(device, id.pd(), shared_len, remote)?,
                ZeroedRegion::new(
                    device,
                    id.pd(),
                    sizes.send_buffer_bytes,
                    IBV_ACCESS_LOCAL_WRITE,
                )?,
            )
        };
        let cqe = c_int::from(sizes.sq_wrs) + c_int::from(sizes.rq_wrs + EXTRA_CONTROL_RECEIVES);
        let cq = Cq::new(device, cqe)?;
        Ok(Self {
            device,
            qp: ptr::null_mut(),
            cq,
            peer_written_memory: shared,
            send_memory: private,
            queue_and_buffer_sizes: sizes,
            remote_target_sgl: RemoteBuffer::default(),
            next_remote_target_index: 0,
            unused_rest_of_target: RemoteBuffer::default(),
            current_target_index: 0,
            sent_messages: 0,
            first_forbidden_message_number: 0,
            free_data_wrs: sizes.sq_wrs - RESERVED_CONTROL_WRS,
            free_control_wrs: RESERVED_CONTROL_WRS,
            send_buffer_write_offset: 0,
            free_send_buffer_bytes: sizes.send_buffer_bytes,
            recv_buffer_read_offset: 0,
            readable_bytes: 0,
            peer_writable_bytes: sizes.recv_buffer_bytes / 2,
            read_ungranted_bytes: sizes.recv_buffer_bytes / 2,
            next_granted_half_offset: sizes.recv_buffer_bytes / 2,
            received_messages: 0,
            next_credit_at_message: sizes.rq_wrs / 2,
            peer_writable_buffers: Vec::new(),
            free_peer_iomap_indexes: VecDeque::new(),
            peer_has_shut_down: false,
            has_shut_down: false,
            final_errno: None,
        })
    }

    /// Makes the queue pair, and posts its receives.
    ///
    /// # Safety
    /// As for [`Stream::new`].
    unsafe fn create_qp_and_post_recvs(&mut self, id: &CmId) -> Result {
        let sizes = self.queue_and_buffer_sizes;
        let receives = sizes.rq_wrs + EXTRA_CONTROL_RECEIVES;
        let mut attr = ibv_qp_init_attr_ex::zeroed();
        attr.comp_mask = IBV_QP_INIT_ATTR_PD;
        attr.pd = id.pd();
        attr.qp_type = IBV_QPT_RC;
        attr.send_cq = self.cq.raw();
        attr.recv_cq = self.cq.raw();
        attr.cap.max_send_wr = u32::from(sizes.sq_wrs);
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
    fn recv_buffer_offset(iomap_entries: u16) -> usize {
        Self::iomap_entry_offset(iomap_entries)
    }

    /// Returns the offset of iomap entry `index` in the shared memory.
    fn iomap_entry_offset(index: u16) -> usize {
        TARGET_SGL_ENTRIES * RemoteBuffer::ENCODED_BYTES + usize::from(index) * IOMAP_ENTRY_SIZE
    }

    /// Returns the data for the peer when the connection is made.
    pub(crate) fn own_conn_data(&self) -> ConnData {
        let rkey = self.peer_written_memory.rkey();
        ConnData {
            peer_send_credits: self.queue_and_buffer_sizes.rq_wrs,
            iomap_entry_count: self.queue_and_buffer_sizes.iomap_entry_count,
            target_sgl: RemoteBuffer {
                addr: self.peer_written_memory.address(0),
                rkey,
                len: TARGET_SGL_ENTRIES as u32,
            },
            first_recv_buffer: RemoteBuffer {
                addr: self.peer_written_memory.address(Self::recv_buffer_offset(
                    self.queue_and_buffer_sizes.iomap_entry_count,
                )),
                rkey,
                len: (self.queue_and_buffer_sizes.recv_buffer_bytes / 2) as u32,
            },
        }
    }

    /// Stores the data that the peer sent when the connection was made.
    ///
    /// # Errors
    /// `EPROTO` if the data is invalid.
    pub(crate) fn set_peer_conn_data(&mut self, peer: &ConnData) -> Result {
        if peer.target_sgl.len == 0 {
            return Err(Errno(libc::EPROTO));
        }
        self.remote_target_sgl = peer.target_sgl;
        self.free_peer_iomap_indexes = (0..peer.iomap_entry_count).collect();
        self.unused_rest_of_target = peer.first_recv_buffer;
        self.current_target_index = 0;
        // The first target is in use, so the next receive buffer goes to the second one.
        self.next_remote_target_index = 1 % peer.target_sgl.len as usize;
        self.first_forbidden_message_number = peer.peer_send_credits;
        Ok(())
    }

    pub(crate) fn queue_and_buffer_sizes(&self) -> QueueAndBufferSizes {
        self.queue_and_buffer_sizes
    }

    // State.

    /// Returns true if a read would not block: data, the end of the stream, or an error.
    pub(crate) fn can_read(&self) -> bool {
        self.readable_bytes > 0 || self.peer_has_shut_down || self.final_errno.is_some()
    }

    /// Returns true if data can be read.
    pub(crate) fn has_data(&self) -> bool {
        self.readable_bytes > 0
    }

    /// Returns true if a write would not block, including writes that fail.
    pub(crate) fn can_write(&self) -> bool {
        self.can_send_data() || self.has_shut_down || self.final_errno.is_some()
    }

    fn can_send_data(&self) -> bool {
        self.free_data_wrs > 0
            && self.free_send_buffer_bytes > 0
            && self.sent_messages != self.first_forbidden_message_number
            && self.current_remote_target().len > 0
    }

    /// Returns true if all sends have completed, or the connection is over.
    pub(crate) fn all_sent_or_has_ended(&self) -> bool {
        self.final_errno.is_some()
            || (self.free_data_wrs == self.queue_and_buffer_sizes.sq_wrs - RESERVED_CONTROL_WRS
                && self.free_control_wrs == RESERVED_CONTROL_WRS)
    }

    /// Returns the target for the next data.
    fn current_remote_target(&self) -> RemoteBuffer {
        if self.unused_rest_of_target.len > 0 {
            return self.unused_rest_of_target;
        }
        let at = self.current_target_index * RemoteBuffer::ENCODED_BYTES;
        RemoteBuffer::from_words(
            self.peer_written_memory.read_word(at),
            self.peer_written_memory.read_word(at + 8),
        )
    }

    // Sending.

    /// Sends as much of `bytes` as fits now; returns the number of bytes.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<usize> {
        let mut done = 0;
        while done < bytes.len() && self.can_send_data() {
            if self.unused_rest_of_target.len == 0 {
                self.unused_rest_of_target = self.current_remote_target();
                self.mark_target_used();
            }
            let rest = bytes.get(done..).unwrap_or_default();
            let len = rest
                .len()
                .min(MAX_WRITE_BYTES)
                .min(self.unused_rest_of_target.len as usize)
                .min(self.free_send_buffer_bytes);
            let chunk = rest.get(..len).unwrap_or_default();
            let RemoteBuffer { addr, rkey, .. } = self.unused_rest_of_target;
            let imm = Immediate::Data(len as u32);
            self.post_data(chunk, RemoteAddress { addr, rkey }, Some(imm))?;
            self.sent_messages = self.sent_messages.wrapping_add(1);
            self.unused_rest_of_target.addr += len as u64;
            self.unused_rest_of_target.len -= len as u32;
            if self.unused_rest_of_target.len == 0 {
                self.current_target_index = (self.current_target_index + 1) % TARGET_SGL_ENTRIES;
            }
            done += len;
        }
        Ok(done)
    }

    /// Marks the target as used, so that it is not used again before the peer has renewed it.
    fn mark_target_used(&mut self) {
        self.peer_written_memory.write(
            self.current_target_index * RemoteBuffer::ENCODED_BYTES,
            &[0; RemoteBuffer::ENCODED_BYTES],
        );
    }

    /// Copies `chunk`, which must fit, to the send buffer and posts a WRITE of it.
    fn post_data(&mut self, chunk: &[u8], to: RemoteAddress, imm: Option<Immediate>) -> Result {
        let inline = chunk.len() <= usize::from(self.queue_and_buffer_sizes.max_inline);
        let size = self.queue_and_buffer_sizes.send_buffer_bytes;
        let first = chunk.len().min(size - self.send_buffer_write_offset);
        let (head, tail) = chunk.split_at(first);
        self.send_memory.write(self.send_buffer_write_offset, head);
        self.send_memory.write(0, tail);
        let piece = |at: usize, len: usize| ibv_sge {
            addr: self.send_memory.address(at),
            length: len as u32,
            lkey: self.send_memory.lkey(),
        };
        let mut pieces = [
            piece(self.send_buffer_write_offset, head.len()),
            piece(0, tail.len()),
        ];
        let count = if tail.is_empty() { 1 } else { 2 };
        let flags = if inline { IBV_SEND_INLINE } else { 0 };
        let used = pieces.get_mut(..count).unwrap_or_default();
        self.post_write(used, to, imm, flags, SendPurpose::Data(chunk.len() as u32))?;
        self.send_buffer_write_offset = (self.send_buffer_write_offset + chunk.len()) % size;
        self.free_send_buffer_bytes -= chunk.len();
        self.free_data_wrs -= 1;
        Ok(())
    }

    /// Posts a control message; `free_control_wrs` must not be 0.
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
        let rkey = self.remote_target_sgl.rkey;
        let to = RemoteAddress { addr, rkey };
        self.post_write(sges, to, Some(imm), IBV_SEND_INLINE, SendPurpose::Control)?;
        self.free_control_wrs -= 1;
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
        check_returned_errno(unsafe { ibv_post_send(self.qp, &raw mut wr, &raw mut bad) })
    }

    /// Sends a control message: this end sends no more, or is closed.
    pub(crate) fn send_control(&mut self, imm: Immediate) {
        if self.final_errno.is_none() && self.free_control_wrs > 0 {
            let to = self.remote_target_sgl.addr;
            if self.post_control(&mut [], to, imm).is_err() {
                self.final_errno = Some(libc::ECONNRESET);
            }
        }
    }

    // Receiving.

    /// Reads as many bytes as `bytes` and the received data allow; with `peek`, the data stays unread.
    pub(crate) fn recv(&mut self, bytes: &mut [u8], peek: bool) -> usize {
        let len = bytes.len().min(self.readable_bytes);
        let size = self.queue_and_buffer_sizes.recv_buffer_bytes;
        let base = Self::recv_buffer_offset(self.queue_and_buffer_sizes.iomap_entry_count);
        let first = len.min(size - self.recv_buffer_read_offset);
        let (head, tail) = bytes.split_at_mut(first);
        let tail = tail.get_mut(..len - first).unwrap_or_default();
        self.peer_written_memory
            .read(base + self.recv_buffer_read_offset, head);
        self.peer_written_memory.read(base, tail);
        if !peek {
            self.recv_buffer_read_offset = (self.recv_buffer_read_offset + len) % size;
            self.readable_bytes -= len;
            self.read_ungranted_bytes += len;
            self.return_credits_and_buffers_if_due();
        }
        len
    }

    /// Sends credits and receive buffers to the peer, if they are due.
    fn return_credits_and_buffers_if_due(&mut self) {
        let half = self.queue_and_buffer_sizes.recv_buffer_bytes / 2;
        loop {
            let buffer_due = self.read_ungranted_bytes >= half;
            let credits_due = self
                .received_messages
                .wrapping_sub(self.next_credit_at_message)
                .cast_signed()
                >= 0;
            let may = self.final_errno.is_none()
                && self.free_control_wrs > 0
                && self.remote_target_sgl.len > 0;
            if !may || !(buffer_due || credits_due) {
                return;
            }
            let imm = Immediate::CreditLimit(
                self.received_messages
                    .wrapping_add(self.queue_and_buffer_sizes.rq_wrs),
            );
            let posted = if buffer_due {
                let base = Self::recv_buffer_offset(self.queue_and_buffer_sizes.iomap_entry_count);
                let mut bytes = RemoteBuffer {
                    addr: self
                        .peer_written_memory
                        .address(base + self.next_granted_half_offset),
                    rkey: self.peer_written_memory.rkey(),
                    len: half as u32,
                }
                .to_memory();
                let to = self.remote_target_sgl.addr
                    + (self.next_remote_target_index * RemoteBuffer::ENCODED_BYTES) as u64;
                self.next_remote_target_index =
                    (self.next_remote_target_index + 1) % self.remote_target_sgl.len as usize;
                self.next_granted_half_offset = (self.next_granted_half_offset + half) % (2 * half);
                self.read_ungranted_bytes -= half;
                self.peer_writable_bytes += half;
                self.post_control(&mut bytes, to, imm)
            } else {
                self.post_control(&mut [], self.remote_target_sgl.addr, imm)
            };
            if posted.is_err() {
                self.final_errno = Some(libc::ECONNRESET);
                return;
            }
            self.next_credit_at_message = self
                .received_messages
                .wrapping_add(self.queue_and_buffer_sizes.rq_wrs / 2);
        }
    }

    fn post_recv(&mut self) -> Result {
        let mut wr = ibv_recv_wr::zeroed();
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is live. The work request has no buffer, since the sender determines the address of
        // the payload.
        check_returned_errno(unsafe { ibv_post_recv(self.qp, &raw mut wr, &raw mut bad) })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        for mapped in self.peer_writable_buffers.drain(..) {
            // SAFETY: registered by `map` and deregistered once.
            unsafe { (self.device.verbs.ibv_dereg_mr)(mapped.mr) };
        }
    }
}
