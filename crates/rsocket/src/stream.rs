//! A byte stream over a reliable connection: RDMA WRITEs into the peer's receive buffer, whose immediates say what
//! was written, and credits the other way (see [`crate::protocol`]).
//!
//! Nothing here waits and nothing here is in the background: whoever holds the stream posts, and polls the
//! completion queue. `completions` has what is polled, `iomap` the buffers that the peer maps.

mod completions;
mod iomap;

use std::collections::VecDeque;
use std::ffi::c_int;
use std::ptr;

use verbs_abi::*;

use crate::cq::Cq;
use crate::memory::Memory;
use crate::protocol::{ConnData, IOMAP_ENTRY_SIZE, Immediate, Target, agreed_iomap_entries};
use crate::sizes::Sizes;
use rdmacm::device::{Device, check};
use rdmacm::errno::{Errno, Result};
use rdmacm::id::CmId;

/// Entries of the target SGL: the halves of the receive buffer in turn.
const TARGETS: usize = 2;
/// WRs kept for what is not data, so that credits always find room.
const CONTROL_WRS: u16 = 4;
/// Receives beyond the credits: for what is not data.
const CONTROL_RECEIVES: u16 = 2 * CONTROL_WRS;
/// Most bytes of one WRITE: shorter ones let the receiver begin before the last byte has come.
const MAX_TRANSFER: usize = 65_536;

/// The least of each: room for control messages, and for halves of a buffer.
const MIN_WRS: u16 = 16;
const MIN_BUFFER: usize = 4096;

/// Where in the peer's memory a WRITE goes.
#[derive(Clone, Copy)]
struct Remote {
    addr: u64,
    rkey: u32,
}

/// What a send WR was for; its `wr_id`.
#[derive(Clone, Copy)]
enum Sent {
    /// So many bytes of the send buffer are free again.
    Data(u32),
    Control,
}

impl Sent {
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

/// A buffer that the peer may write into by `riowrite`.
struct Mapped {
    mr: *mut ibv_mr,
    addr: usize,
    index: u16,
}

/// One end of a byte stream.
pub(crate) struct Stream {
    device: &'static Device,
    qp: *mut ibv_qp,
    pub(crate) cq: Cq,
    /// Target SGL, iomap and receive buffer, where the peer writes.
    shared: Memory,
    /// The send buffer.
    private: Memory,
    sizes: Sizes,

    // Sending.
    /// Where the peer's targets and iomap are.
    remote_sgl: Target,
    /// The next of the peer's targets to be told of a receive buffer.
    remote_target: usize,
    /// The current target, as far as it is used up, and which it is.
    target: Target,
    target_index: usize,
    /// Data messages sent, and the number of the first that may not be sent.
    sent: u16,
    allowed: u16,
    sq_free: u16,
    control_free: u16,
    send_at: usize,
    send_free: usize,

    // Receiving.
    /// Where the next byte to be read is, and how many there are.
    recv_at: usize,
    readable: usize,
    /// What the peer may still write, so that its word is not taken for more.
    granted: usize,
    /// Read bytes that the peer does not know to be free.
    returned: usize,
    /// Where the half begins that is granted next.
    grant_at: usize,
    /// Data messages received, and at how many further credits are due.
    received: u16,
    credits_due: u16,

    mapped: Vec<Mapped>,
    /// Free entries of the iomap that the peer keeps.
    free_maps: VecDeque<u16>,

    /// The peer sends no more.
    pub(crate) ended: bool,
    /// This end sends no more.
    pub(crate) shut: bool,
    /// Neither end sends any more; with the errno where that is a failure.
    pub(crate) over: Option<c_int>,
}

// SAFETY: verbs' handles may be used from any thread, and a stream's are used by whoever holds the stream.
unsafe impl Send for Stream {}

impl Stream {
    /// Makes the queue pair of `id` and all that a stream needs.
    ///
    /// # Safety
    /// `id` is bound to a device; its queue pair, which is made here, is destroyed before the stream is dropped, and
    /// the stream not used in between.
    pub(crate) unsafe fn new(id: &CmId, sizes: Sizes) -> Result<Self> {
        let sizes = Sizes {
            send_buffer: sizes.send_buffer.max(MIN_BUFFER),
            // Two halves of whole words.
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

    /// A stream with its memory and its completion queue.
    ///
    /// # Safety
    /// `id` is bound to a device.
    unsafe fn without_qp(id: &CmId, sizes: Sizes) -> Result<Self> {
        let device = id.device();
        let shared_len = Self::recv_buffer_at(sizes.iomap_entries) + sizes.recv_buffer;
        let remote = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
        // SAFETY: the domain of an id that is bound to the device.
        let (shared, private) = unsafe {
            (
                Memory::new(device, id.pd(), shared_len, remote)?,
                Memory::new(device, id.pd(), sizes.send_buffer, IBV_ACCESS_LOCAL_WRITE)?,
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
            remote_sgl: Target::default(),
            remote_target: 0,
            target: Target::default(),
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
            returned: sizes.recv_buffer / 2,
            grant_at: sizes.recv_buffer / 2,
            received: 0,
            credits_due: sizes.rq / 2,
            mapped: Vec::new(),
            free_maps: VecDeque::new(),
            ended: false,
            shut: false,
            over: None,
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
        // SAFETY: the domain and the completion queue live as long as the queue pair (contract of this function).
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

    /// The receive buffer lies behind the iomap.
    fn recv_buffer_at(iomap_entries: u16) -> usize {
        Self::iomap_at(iomap_entries)
    }

    /// Where entry `index` of the iomap lies in the shared memory.
    fn iomap_at(index: u16) -> usize {
        TARGETS * Target::SIZE + usize::from(index) * IOMAP_ENTRY_SIZE
    }

    /// What the peer is told.
    pub(crate) fn conn_data(&self) -> ConnData {
        let rkey = self.shared.rkey();
        ConnData {
            credits: self.sizes.rq,
            iomap_entries: self.sizes.iomap_entries,
            target_sgl: Target {
                addr: self.shared.address(0),
                rkey,
                len: TARGETS as u32,
            },
            data_buf: Target {
                addr: self
                    .shared
                    .address(Self::recv_buffer_at(self.sizes.iomap_entries)),
                rkey,
                len: (self.sizes.recv_buffer / 2) as u32,
            },
        }
    }

    /// What the peer has told.
    ///
    /// # Errors
    /// `EPROTO` where it has told nonsense.
    pub(crate) fn set_peer(&mut self, peer: &ConnData) -> Result {
        if peer.target_sgl.len == 0 {
            return Err(Errno(libc::EPROTO));
        }
        self.remote_sgl = peer.target_sgl;
        self.free_maps = (0..peer.iomap_entries).collect();
        self.target = peer.data_buf;
        self.target_index = 0;
        // The first target is in use: the next receive buffer goes to the second.
        self.remote_target = 1 % peer.target_sgl.len as usize;
        self.allowed = peer.credits;
        Ok(())
    }

    pub(crate) fn sizes(&self) -> Sizes {
        self.sizes
    }

    // State.

    /// Is there something to be read, if only the end?
    pub(crate) fn can_read(&self) -> bool {
        self.readable > 0 || self.ended || self.over.is_some()
    }

    /// Is there data to be read?
    pub(crate) fn has_data(&self) -> bool {
        self.readable > 0
    }

    /// May something be written, if only to learn that it may not?
    pub(crate) fn can_write(&self) -> bool {
        self.has_room() || self.shut || self.over.is_some()
    }

    fn has_room(&self) -> bool {
        self.sq_free > 0
            && self.send_free > 0
            && self.sent != self.allowed
            && self.current_target().len > 0
    }

    /// Has everything that was sent arrived?
    pub(crate) fn all_sent(&self) -> bool {
        self.over.is_some()
            || (self.sq_free == self.sizes.sq - CONTROL_WRS && self.control_free == CONTROL_WRS)
    }

    /// The target that the next data goes to.
    fn current_target(&self) -> Target {
        if self.target.len > 0 {
            return self.target;
        }
        let at = self.target_index * Target::SIZE;
        Target::from_words(self.shared.word(at), self.shared.word(at + 8))
    }

    // Sending.

    /// Sends as much of `bytes` as there is room for now, and says how much.
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
            let Target { addr, rkey, .. } = self.target;
            let imm = Immediate::Data(len as u32);
            self.post_data(chunk, Remote { addr, rkey }, Some(imm))?;
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

    /// Marks the target as taken, so that it is not taken again before the peer has renewed it.
    fn clear_target(&mut self) {
        self.shared
            .write(self.target_index * Target::SIZE, &[0; Target::SIZE]);
    }

    /// Posts a WRITE of `chunk`, which fits into the send buffer, through a copy there.
    fn post_data(&mut self, chunk: &[u8], to: Remote, imm: Option<Immediate>) -> Result {
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
        self.post_write(used, to, imm, flags, Sent::Data(chunk.len() as u32))?;
        self.send_at = (self.send_at + chunk.len()) % size;
        self.send_free -= chunk.len();
        self.sq_free -= 1;
        Ok(())
    }

    /// Posts a message that is no data. There is room if `control_free` says so.
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
        let to = Remote { addr, rkey };
        self.post_write(sges, to, Some(imm), IBV_SEND_INLINE, Sent::Control)?;
        self.control_free -= 1;
        Ok(())
    }

    fn post_write(
        &mut self,
        sges: &mut [ibv_sge],
        to: Remote,
        imm: Option<Immediate>,
        flags: ibv_send_flags,
        what: Sent,
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
        // SAFETY: a live queue pair; the WR is copied, inline data as well, and the send buffer stays until the WR
        // has completed.
        check(unsafe { ibv_post_send(self.qp, &raw mut wr, &raw mut bad) })
    }

    /// Tells the peer that this end sends no more, or is gone.
    pub(crate) fn send_control(&mut self, imm: Immediate) {
        if self.over.is_none() && self.control_free > 0 {
            let to = self.remote_sgl.addr;
            if self.post_control(&mut [], to, imm).is_err() {
                self.over = Some(libc::ECONNRESET);
            }
        }
    }

    // Receiving.

    /// Reads as much as there is room for in `bytes`; `peek` leaves it there.
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
            self.returned += len;
            self.grant();
        }
        len
    }

    /// Gives the peer credits and receive buffers, where it is time to.
    fn grant(&mut self) {
        let half = self.sizes.recv_buffer / 2;
        loop {
            let buffer_due = self.returned >= half;
            let credits_due = self.received.wrapping_sub(self.credits_due).cast_signed() >= 0;
            let may = self.over.is_none() && self.control_free > 0 && self.remote_sgl.len > 0;
            if !may || !(buffer_due || credits_due) {
                return;
            }
            let imm = Immediate::Credits(self.received.wrapping_add(self.sizes.rq));
            let posted = if buffer_due {
                let base = Self::recv_buffer_at(self.sizes.iomap_entries);
                let mut bytes = Target {
                    addr: self.shared.address(base + self.grant_at),
                    rkey: self.shared.rkey(),
                    len: half as u32,
                }
                .to_memory();
                let to = self.remote_sgl.addr + (self.remote_target * Target::SIZE) as u64;
                self.remote_target = (self.remote_target + 1) % self.remote_sgl.len as usize;
                self.grant_at = (self.grant_at + half) % (2 * half);
                self.returned -= half;
                self.granted += half;
                self.post_control(&mut bytes, to, imm)
            } else {
                self.post_control(&mut [], self.remote_sgl.addr, imm)
            };
            if posted.is_err() {
                self.over = Some(libc::ECONNRESET);
                return;
            }
            self.credits_due = self.received.wrapping_add(self.sizes.rq / 2);
        }
    }

    fn post_recv(&mut self) -> Result {
        let mut wr = ibv_recv_wr::zeroed();
        let mut bad = ptr::null_mut();
        // SAFETY: a live queue pair; the WR has no buffer, since the payload goes where its sender says.
        check(unsafe { ibv_post_recv(self.qp, &raw mut wr, &raw mut bad) })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        for mapped in self.mapped.drain(..) {
            // SAFETY: registered by `map`, deregistered once.
            unsafe { (self.device.verbs.ibv_dereg_mr)(mapped.mr) };
        }
    }
}
