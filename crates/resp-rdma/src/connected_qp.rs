//! The queue pair of a connection with its memory: posts and completions.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use verbs::{
    Access, CompletionChannel, CompletionQueue, Inline, Postlist, PreparedQp, ProtectionDomain,
    QueuePair, Rc, RecvList, RemoteMemory, WcBuffer, WcOpcode, WcStatus,
};

use crate::command::{AnnouncedBuffer, COMMAND_BYTES};
use crate::error::SetupError;
use crate::memory::{ConnectionMemory, MemoryPool};
use crate::stream::WriteTarget;

/// Receives that are kept posted; clients rely on this number (`VALKEY_RDMA_MAX_WQE` of
/// `valkey:src/rdma.c`).
pub const POSTED_RECEIVES: usize = 1024;
/// The capacity of the send queue in WRs. Valkey's has 1024, which the peer cannot see. The software NIC has 4 GiB of
/// shared memory for the send queues of a process, and half a KiB for each WR: 8,300 queues of 1024.
const SEND_QUEUE_WRS: u32 = 512;
/// Send WRs that are reserved for control messages.
const RESERVED_CONTROL_WRS: u32 = 64;
/// The number of used receives that are reposted at once; fewer are reposted before the thread
/// waits.
const RECV_REPOST_BATCH: usize = 64;
/// The most completions of one poll.
const MAX_POLL_COMPLETIONS: usize = 16;
/// The largest inline payload of a WR in bytes.
const MAX_INLINE_BYTES: usize = 256;

/// The allowed lengths of the receive buffer in bytes, as Valkey's `rx-size`.
pub const RECV_BUFFER_BYTES_RANGE: std::ops::RangeInclusive<u32> = 64 << 10..=16 << 20;

/// The settings of connections.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Bytes of the receive buffer, within [`RECV_BUFFER_BYTES_RANGE`]; default 256 KiB. A connection needs
    /// this buffer, [`staging_bytes`](Self::staging_bytes), and about 256 KiB of queues.
    pub receive_buffer_bytes: u32,
    /// Bytes of the staging memory for WRITEs that are not inline; a power of two, default 64 KiB.
    pub staging_bytes: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            receive_buffer_bytes: 256 << 10,
            staging_bytes: 64 << 10,
        }
    }
}

impl Config {
    fn clamped_staging_bytes(&self) -> u32 {
        self.staging_bytes.clamp(4096, 1 << 30).next_power_of_two()
    }

    /// Returns the memory of connections with these settings.
    pub(crate) fn memory_pool(&self, pd: &ProtectionDomain) -> MemoryPool {
        let bytes = |count: u32| usize::try_from(count).unwrap_or(0);
        let private = POSTED_RECEIVES * COMMAND_BYTES + bytes(self.clamped_staging_bytes());
        MemoryPool::new(pd, bytes(self.receive_buffer_bytes), private)
    }
}

/// Creates a completion channel whose descriptor does not block.
pub(crate) fn create_nonblocking_channel(
    pd: &ProtectionDomain,
) -> Result<CompletionChannel, SetupError> {
    let channel = pd.context().create_comp_channel()?;
    let set = channel.set_nonblocking(true);
    set.map_err(|source| SetupError::Cm {
        step: "fcntl",
        source,
    })?;
    Ok(channel)
}

/// A queue pair before its connection, with posted receives.
pub(crate) struct UnconnectedQp {
    pub(crate) qp: PreparedQp<Rc>,
    resources: QueueResources,
}

/// The objects that a queue pair uses.
struct QueueResources {
    cq: CompletionQueue,
    channel: CompletionChannel,
    /// The receive buffer. The private memory has a slot for a control message for each receive, then the staging
    /// memory.
    memory: ConnectionMemory,
    staging_bytes: u32,
    recvs: RecvList,
}

/// An arrival from the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PeerArrival {
    /// A control message.
    Command([u8; COMMAND_BYTES]),
    /// A control message of a wrong length, with its bytes.
    CommandOfWrongLength(usize),
    /// `imm` bytes in the receive buffer, announced by a message of `len` bytes.
    Data { imm: u32, len: u32 },
}

/// A connected queue pair.
pub(crate) struct ConnectedQp {
    qp: QueuePair<Rc>,
    resources: QueueResources,
    postlist: Postlist<Rc>,
    wc_buffer: WcBuffer<MAX_POLL_COMPLETIONS>,
    /// Counters of send WRs, which wrap around: posted, covered by the last signaled WR, and known
    /// to be complete.
    posted_wrs: u32,
    signal_covered_wrs: u32,
    completed_wrs: u32,
    /// Counters of the staging ring in bytes, in the same order: written, covered by a signaled WR, and free again.
    staged_bytes: u32,
    signal_covered_bytes: u32,
    freed_staging_bytes: u32,
    is_cq_armed: bool,
}

impl UnconnectedQp {
    /// Creates a queue pair, whose completion queue uses `channel`.
    pub(crate) fn new(
        pd: &ProtectionDomain,
        config: &Config,
        pool: &MemoryPool,
        channel: CompletionChannel,
    ) -> Result<Self, SetupError> {
        let receives = u32::try_from(POSTED_RECEIVES).unwrap_or(u32::MAX);
        let cq = pd
            .context()
            .create_cq_with_channel(SEND_QUEUE_WRS + receives, &channel)?;
        let qp = pd
            .qp_builder::<Rc>(&cq, &cq)
            .max_send_wr(SEND_QUEUE_WRS)
            .max_recv_wr(receives)
            .max_inline_data_if_supported(u32::try_from(MAX_INLINE_BYTES).unwrap_or(0))
            .access(Access::LOCAL_WRITE | Access::REMOTE_WRITE)
            .build()?;
        let memory = pool.take()?;
        let mut recvs = qp.recv_list(RECV_REPOST_BATCH);
        for slot in 0..POSTED_RECEIVES {
            recvs.recv(command_slot(&memory, slot), slot as u64);
            if recvs.len() == RECV_REPOST_BATCH || slot + 1 == POSTED_RECEIVES {
                qp.post_recv(&mut recvs)?;
                recvs.clear();
            }
        }
        Ok(Self {
            qp,
            resources: QueueResources {
                cq,
                channel,
                memory,
                staging_bytes: config.clamped_staging_bytes(),
                recvs,
            },
        })
    }

    pub(crate) fn qpn(&self) -> u32 {
        self.qp.endpoint().qpn.0
    }

    /// Connects the queue pair.
    pub(crate) fn connect(
        self,
        connect: impl FnOnce(PreparedQp<Rc>) -> Result<QueuePair<Rc>, SetupError>,
    ) -> Result<ConnectedQp, SetupError> {
        let qp = connect(self.qp)?;
        let list = qp.postlist(1);
        Ok(ConnectedQp {
            qp,
            resources: self.resources,
            postlist: list,
            wc_buffer: WcBuffer::new(),
            posted_wrs: 0,
            signal_covered_wrs: 0,
            completed_wrs: 0,
            staged_bytes: 0,
            signal_covered_bytes: 0,
            freed_staging_bytes: 0,
            is_cq_armed: false,
        })
    }
}

/// Returns the slot for the control message of a receive.
fn command_slot(memory: &ConnectionMemory, slot: usize) -> verbs::MrSlice {
    let start = slot * COMMAND_BYTES;
    memory.private_slice(start..start + COMMAND_BYTES)
}

impl ConnectedQp {
    /// Returns the receive buffer, as announced to the peer.
    pub(crate) fn own_announced_buffer(&self) -> AnnouncedBuffer {
        let remote = self.resources.memory.receive_buffer().remote();
        AnnouncedBuffer {
            addr: remote.addr,
            len: u32::try_from(remote.len).unwrap_or(u32::MAX),
            rkey: remote.rkey.0,
        }
    }

    /// Copies bytes from the receive buffer; they must be inside it.
    pub(crate) fn copy_from_receive_buffer(&self, offset: u32, into: &mut [u8]) {
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        self.resources
            .memory
            .receive_buffer()
            .read_at(offset, into)
            .expect("bytes of the receive buffer");
    }

    /// Returns the bytes of a payload of `len` that one WRITE can carry now; 0 if the send queue or
    /// the staging memory is full.
    pub(crate) fn max_bytes_of_next_write(&self, len: usize) -> u32 {
        if SEND_QUEUE_WRS - RESERVED_CONTROL_WRS <= self.posted_wrs.wrapping_sub(self.completed_wrs)
        {
            return 0;
        }
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        if self.is_inline(len) {
            return len;
        }
        let ring = self.resources.staging_bytes;
        let free = ring - self.staged_bytes.wrapping_sub(self.freed_staging_bytes);
        let to_end = ring - self.staged_bytes % ring;
        len.min(free).min(to_end)
    }

    fn is_inline(&self, len: u32) -> bool {
        let most = self.qp.max_inline_data().min(MAX_INLINE_BYTES);
        usize::try_from(len).is_ok_and(|len| len <= most)
    }

    /// WRITEs `bytes`, for which [room](Self::max_bytes_of_next_write) must exist, with their number as the immediate.
    pub(crate) fn write(&mut self, bytes: &[u8], to: WriteTarget) -> Result<(), verbs::PostError> {
        let remote = RemoteMemory {
            addr: to.addr,
            len: to.len.into(),
            rkey: verbs::RKey(to.rkey),
        };
        let inline = self.is_inline(to.len);
        let ring = self.resources.staging_bytes;
        let at = POSTED_RECEIVES * COMMAND_BYTES
            + usize::try_from(self.staged_bytes % ring).unwrap_or(0);
        if !inline {
            self.resources.memory.write_private(at, bytes);
            self.staged_bytes = self.staged_bytes.wrapping_add(to.len);
        }
        self.posted_wrs = self.posted_wrs.wrapping_add(1);
        let signaled = self.mark_signaled_if_due();
        let id = (u64::from(self.posted_wrs) << 32) | u64::from(self.staged_bytes);
        self.postlist.clear();
        let wr = if inline {
            self.postlist
                .rdma_write_with_imm(Inline(bytes), remote, to.len)
        } else {
            let slice = self.resources.memory.private_slice(at..at + bytes.len());
            self.postlist.rdma_write_with_imm(slice, remote, to.len)
        };
        let wr = wr.wr_id(id);
        if signaled {
            wr.signaled();
        }
        self.qp.post_send(&mut self.postlist)
    }

    /// Sends a control message; the send queue must have room, see
    /// [`has_command_room`](Self::has_command_room).
    pub(crate) fn send_command(
        &mut self,
        command: &[u8; COMMAND_BYTES],
    ) -> Result<(), verbs::PostError> {
        self.posted_wrs = self.posted_wrs.wrapping_add(1);
        (self.signal_covered_wrs, self.signal_covered_bytes) = (self.posted_wrs, self.staged_bytes);
        let id = (u64::from(self.posted_wrs) << 32) | u64::from(self.staged_bytes);
        self.postlist.clear();
        self.postlist.send(Inline(command)).signaled().wr_id(id);
        self.qp.post_send(&mut self.postlist)
    }

    /// Returns true if the send queue has room for a control message.
    pub(crate) fn has_command_room(&self) -> bool {
        self.posted_wrs.wrapping_sub(self.completed_wrs) < SEND_QUEUE_WRS
    }

    /// Returns true if the WR that was just counted must be signaled: after each quarter of the
    /// send queue or of the staging ring.
    fn mark_signaled_if_due(&mut self) -> bool {
        let quarter = self.resources.staging_bytes / 4;
        let due = self.posted_wrs.wrapping_sub(self.signal_covered_wrs) >= SEND_QUEUE_WRS / 4
            || self.staged_bytes.wrapping_sub(self.signal_covered_bytes) >= quarter;
        if due {
            (self.signal_covered_wrs, self.signal_covered_bytes) =
                (self.posted_wrs, self.staged_bytes);
        }
        due
    }

    /// Polls completions, and passes each arrival to `arrived`, in order. Returns the number of
    /// completions.
    ///
    /// # Errors
    /// A failed WR, which ends the connection, or an error of `arrived`.
    pub(crate) fn poll<E: From<QueueError>>(
        &mut self,
        mut arrived: impl FnMut(PeerArrival) -> Result<(), E>,
    ) -> Result<usize, E> {
        let mut taken = 0;
        loop {
            let polled = self.resources.cq.poll(&mut self.wc_buffer);
            let completions = polled.map_err(|e| E::from(e.into()))?;
            let count = completions.len();
            taken += count;
            for wc in completions {
                let wc = match wc {
                    Ok(wc) => wc,
                    Err(failed) => {
                        return Err(QueueError::WorkRequestFailed(failed.status()).into());
                    }
                };
                let arrival = match (wc.opcode(), wc.imm()) {
                    (WcOpcode::RecvRdmaWithImm, Some(imm)) => PeerArrival::Data {
                        imm,
                        len: wc.byte_len(),
                    },
                    _ if wc.is_recv() => received_command(&self.resources.memory, &wc),
                    _ => {
                        let id = wc.wr_id();
                        #[expect(clippy::cast_possible_truncation, reason = "two words in one")]
                        {
                            (self.completed_wrs, self.freed_staging_bytes) =
                                ((id >> 32) as u32, id as u32);
                        }
                        continue;
                    }
                };
                let slot = usize::try_from(wc.wr_id()).unwrap_or(0);
                let recvs = &mut self.resources.recvs;
                recvs.recv(command_slot(&self.resources.memory, slot), slot as u64);
                if recvs.len() == recvs.capacity() {
                    let posted = self.qp.post_recv(recvs);
                    recvs.clear();
                    posted.map_err(|e| E::from(QueueError::Post(e)))?;
                }
                arrived(arrival)?;
            }
            if count < MAX_POLL_COMPLETIONS {
                return Ok(taken);
            }
        }
    }

    /// Reposts the used receives.
    pub(crate) fn repost_used_receives(&mut self) -> Result<(), verbs::PostError> {
        let recvs = &mut self.resources.recvs;
        if recvs.is_empty() {
            return Ok(());
        }
        let posted = self.qp.post_recv(recvs);
        recvs.clear();
        posted
    }

    /// Arms the descriptor for the next completion. Earlier completions raise no event, so poll
    /// once more afterwards. The channel must be of this queue pair alone if `takes_events` is true.
    pub(crate) fn arm_cq(&mut self, takes_events: bool) -> Result<(), verbs::EventError> {
        if takes_events && self.is_cq_armed {
            // Take a pending event, or the channel would keep it.
            let _ = self.resources.channel.wait_for_cq_event();
        }
        self.is_cq_armed = true;
        self.resources.cq.req_notify(false)
    }

    /// Takes the queue pair to ERR, so that the peer cannot access memory any more.
    pub(crate) fn move_to_error_state(&self) {
        let _ = self.qp.move_to_error_state();
    }

    /// Returns the id that events of the completion queue have.
    pub(crate) fn cq_id(&self) -> u64 {
        self.resources.cq.id()
    }

    pub(crate) fn borrowed_fd(&self) -> BorrowedFd<'_> {
        self.resources.channel.as_fd()
    }

    /// Returns the descriptor of the completion channel.
    pub(crate) fn fd(&self) -> RawFd {
        self.resources.channel.as_fd().as_raw_fd()
    }
}

#[cfg(test)]
impl ConnectedQp {
    /// Sends a message of any length.
    pub(crate) fn send_raw(&mut self, bytes: &[u8]) -> Result<(), verbs::PostError> {
        self.posted_wrs = self.posted_wrs.wrapping_add(1);
        self.postlist.clear();
        self.postlist.send(Inline(bytes));
        self.qp.post_send(&mut self.postlist)
    }

    /// WRITEs with an arbitrary immediate, the length of the piece.
    pub(crate) fn write_raw(
        &mut self,
        bytes: &[u8],
        to: WriteTarget,
    ) -> Result<(), verbs::PostError> {
        self.posted_wrs = self.posted_wrs.wrapping_add(1);
        let remote = RemoteMemory {
            addr: to.addr,
            len: to.len.into(),
            rkey: verbs::RKey(to.rkey),
        };
        self.postlist.clear();
        self.postlist
            .rdma_write_with_imm(Inline(bytes), remote, to.len);
        self.qp.post_send(&mut self.postlist)
    }
}

/// Returns the control message in the slot of a completed receive.
fn received_command(memory: &ConnectionMemory, wc: &verbs::WorkCompletion<'_>) -> PeerArrival {
    let len = usize::try_from(wc.byte_len()).unwrap_or(usize::MAX);
    if len != COMMAND_BYTES {
        return PeerArrival::CommandOfWrongLength(len);
    }
    let slot = usize::try_from(wc.wr_id()).unwrap_or(0);
    let mut bytes = [0; COMMAND_BYTES];
    memory.read_private(slot * COMMAND_BYTES, &mut bytes);
    PeerArrival::Command(bytes)
}

/// The reason why a queue cannot be used any more.
#[derive(Debug, thiserror::Error)]
pub(crate) enum QueueError {
    #[error("a work request failed: {0}")]
    WorkRequestFailed(WcStatus),
    #[error(transparent)]
    Verb(#[from] verbs::VerbError),
    #[error(transparent)]
    Post(#[from] verbs::PostError),
}

verbs::from_verb_errors!(QueueError);

impl From<QueueError> for std::io::Error {
    fn from(e: QueueError) -> Self {
        let kind = match e {
            QueueError::WorkRequestFailed(_) => std::io::ErrorKind::ConnectionReset,
            _ => std::io::ErrorKind::Other,
        };
        std::io::Error::new(kind, e)
    }
}
