//! The queue pair of a connection, with its memory: what is posted, and what has completed.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use verbs::{
    Access, CompletionChannel, CompletionQueue, Inline, MemoryRegion, Postlist, PreparedQp,
    ProtectionDomain, QueuePair, Rc, RecvList, RemoteMemory, WcBuffer, WcOpcode, WcStatus,
};

use crate::command::{Buffer, COMMAND_BYTES};
use crate::error::SetupError;
use crate::stream::Piece;

/// Receives that are kept posted: what clients reckon with (`VALKEY_RDMA_MAX_WQE` of `valkey:src/rdma.c`).
pub const RECEIVES: usize = 1024;
/// Room for send WRs.
const SENDS: u32 = 1024;
/// Send WRs that are kept for control messages.
const CONTROL_SENDS: u32 = 64;
/// Receives that were used are posted again at once when there are so many, and else before the thread does something else.
const RECV_BATCH: usize = 64;
/// Completions taken at once.
const POLL: usize = 16;
/// Payload up to here is carried by the WR itself.
const INLINE_BYTES: usize = 256;

/// The receive buffer's least and most bytes, as Valkey's `rx-size`.
pub const BUFFER_BYTES: std::ops::RangeInclusive<u32> = 64 << 10..=16 << 20;

/// How connections are made.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Bytes of the receive buffer, one of [`BUFFER_BYTES`]; 256 KiB unless set. Memory of each connection: the buffer, as much
    /// as [`staging_bytes`](Self::staging_bytes), and about 256 KiB of queues.
    pub buffer_bytes: u32,
    /// Bytes from which WRITEs leave that the WR does not carry; a power of two, 64 KiB unless set.
    pub staging_bytes: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            buffer_bytes: 256 << 10,
            staging_bytes: 64 << 10,
        }
    }
}

/// A queue pair before it is connected. Its receives are posted.
pub(crate) struct Prepared {
    pub(crate) qp: PreparedQp<Rc>,
    parts: Parts,
}

/// The objects that a queue pair works with.
struct Parts {
    cq: CompletionQueue,
    channel: CompletionChannel,
    /// Where the peer writes.
    inbox: MemoryRegion,
    /// A place for a control message for each receive, then the staging memory.
    private: MemoryRegion,
    staging_bytes: u32,
    recvs: RecvList,
}

/// What has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// A control message.
    Command([u8; COMMAND_BYTES]),
    /// A control message of a wrong length.
    Odd(usize),
    /// So many bytes in the receive buffer, announced by a message of `len`.
    Data { imm: u32, len: u32 },
}

/// A queue pair that is connected.
pub(crate) struct Queue {
    qp: QueuePair<Rc>,
    parts: Parts,
    list: Postlist<Rc>,
    completions: WcBuffer<POLL>,
    /// Send WRs that were ever posted, that were signaled by the last signaled one, and that are known to be complete. They
    /// wrap around.
    posted: u32,
    signaled: u32,
    completed: u32,
    /// The same of bytes of the staging memory, which is a ring.
    staged: u32,
    staged_signaled: u32,
    staged_free: u32,
    armed: bool,
}

impl Prepared {
    pub(crate) fn new(pd: &ProtectionDomain, config: &Config) -> Result<Self, SetupError> {
        let context = pd.context();
        let channel = context.create_comp_channel()?;
        let flags = fcntl_getfl(&channel).map_err(|e| SetupError::Cm {
            step: "fcntl",
            source: e.into(),
        })?;
        fcntl_setfl(&channel, flags | OFlags::NONBLOCK).map_err(|e| SetupError::Cm {
            step: "fcntl",
            source: e.into(),
        })?;
        let receives = u32::try_from(RECEIVES).unwrap_or(u32::MAX);
        let cq = context.create_cq_with_channel(SENDS + receives, &channel)?;
        let qp = pd
            .qp::<Rc>(&cq, &cq)
            .max_send_wr(SENDS)
            .max_recv_wr(receives)
            .inline_up_to(u32::try_from(INLINE_BYTES).unwrap_or(0))
            .access(Access::LOCAL_WRITE | Access::REMOTE_WRITE)
            .build()?;
        let inbox = pd.alloc(
            usize::try_from(config.buffer_bytes).unwrap_or(0),
            Access::LOCAL_WRITE | Access::REMOTE_WRITE,
        )?;
        let staging_bytes = config
            .staging_bytes
            .clamp(4096, 1 << 30)
            .next_power_of_two();
        let private = RECEIVES * COMMAND_BYTES + usize::try_from(staging_bytes).unwrap_or(0);
        let private = pd.alloc(private, Access::LOCAL_WRITE)?;
        let mut recvs = qp.recv_list(RECV_BATCH);
        for slot in 0..RECEIVES {
            recvs.recv(slot_of(&private, slot), slot as u64);
            if recvs.len() == RECV_BATCH || slot + 1 == RECEIVES {
                qp.post_recv(&mut recvs)?;
                recvs.clear();
            }
        }
        Ok(Self {
            qp,
            parts: Parts {
                cq,
                channel,
                inbox,
                private,
                staging_bytes,
                recvs,
            },
        })
    }

    pub(crate) fn qpn(&self) -> u32 {
        self.qp.endpoint().qpn.0
    }

    /// The same once it is connected.
    pub(crate) fn connected(
        self,
        connect: impl FnOnce(PreparedQp<Rc>) -> Result<QueuePair<Rc>, SetupError>,
    ) -> Result<Queue, SetupError> {
        let qp = connect(self.qp)?;
        let list = qp.postlist(1);
        Ok(Queue {
            qp,
            parts: self.parts,
            list,
            completions: WcBuffer::new(),
            posted: 0,
            signaled: 0,
            completed: 0,
            staged: 0,
            staged_signaled: 0,
            staged_free: 0,
            armed: false,
        })
    }
}

/// The place for the control message that a receive takes.
fn slot_of(private: &MemoryRegion, slot: usize) -> verbs::MrSlice {
    let start = slot * COMMAND_BYTES;
    private
        .slice(start..start + COMMAND_BYTES)
        .expect("a slot of the region")
}

impl Queue {
    /// The receive buffer, as the peer is told of it.
    pub(crate) fn own_buffer(&self) -> Buffer {
        let remote = self.parts.inbox.remote();
        Buffer {
            addr: remote.addr,
            len: u32::try_from(remote.len).unwrap_or(u32::MAX),
            rkey: remote.rkey.0,
        }
    }

    /// Copies bytes out of the receive buffer, which has them.
    pub(crate) fn read(&self, offset: u32, into: &mut [u8]) {
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        self.parts
            .inbox
            .read_at(offset, into)
            .expect("bytes of the receive buffer");
    }

    /// How many bytes of a payload of `len` one WRITE takes now; 0 when the send queue or the staging memory is full.
    pub(crate) fn room(&self, len: usize) -> u32 {
        if SENDS - CONTROL_SENDS <= self.posted.wrapping_sub(self.completed) {
            return 0;
        }
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        if self.is_inline(len) {
            return len;
        }
        let ring = self.parts.staging_bytes;
        let free = ring - self.staged.wrapping_sub(self.staged_free);
        let to_end = ring - self.staged % ring;
        len.min(free).min(to_end)
    }

    fn is_inline(&self, len: u32) -> bool {
        let most = self.qp.max_inline_data().min(INLINE_BYTES);
        usize::try_from(len).is_ok_and(|len| len <= most)
    }

    /// WRITEs `bytes`, for which there is [room](Self::room), with their number as immediate.
    pub(crate) fn write(&mut self, bytes: &[u8], to: Piece) -> Result<(), verbs::PostError> {
        let remote = RemoteMemory {
            addr: to.addr,
            len: to.len.into(),
            rkey: verbs::RKey(to.rkey),
        };
        let inline = self.is_inline(to.len);
        let ring = self.parts.staging_bytes;
        let at = RECEIVES * COMMAND_BYTES + usize::try_from(self.staged % ring).unwrap_or(0);
        if !inline {
            self.parts
                .private
                .write_at(at, bytes)
                .expect("room in the staging memory");
            self.staged = self.staged.wrapping_add(to.len);
        }
        self.posted = self.posted.wrapping_add(1);
        let signaled = self.is_signal_due();
        let id = (u64::from(self.posted) << 32) | u64::from(self.staged);
        self.list.clear();
        let wr = if inline {
            self.list.rdma_write_with_imm(Inline(bytes), remote, to.len)
        } else {
            let slice = self.parts.private.slice(at..at + bytes.len());
            let slice = slice.expect("room in the staging memory");
            self.list.rdma_write_with_imm(slice, remote, to.len)
        };
        let wr = wr.wr_id(id);
        if signaled {
            wr.signaled();
        }
        self.qp.post_send(&mut self.list)
    }

    /// Sends a control message; false when the send queue is full.
    pub(crate) fn send(&mut self, command: &[u8; COMMAND_BYTES]) -> Result<(), verbs::PostError> {
        self.posted = self.posted.wrapping_add(1);
        (self.signaled, self.staged_signaled) = (self.posted, self.staged);
        let id = (u64::from(self.posted) << 32) | u64::from(self.staged);
        self.list.clear();
        self.list.send(Inline(command)).signaled().wr_id(id);
        self.qp.post_send(&mut self.list)
    }

    /// Whether the send queue takes a control message.
    pub(crate) fn takes_command(&self) -> bool {
        self.posted.wrapping_sub(self.completed) < SENDS
    }

    /// Whether the WR that was just counted is to be signaled: the last of a quarter of the send queue or of the ring.
    fn is_signal_due(&mut self) -> bool {
        let quarter = self.parts.staging_bytes / 4;
        let due = self.posted.wrapping_sub(self.signaled) >= SENDS / 4
            || self.staged.wrapping_sub(self.staged_signaled) >= quarter;
        if due {
            (self.signaled, self.staged_signaled) = (self.posted, self.staged);
        }
        due
    }

    /// Takes what has completed, and tells `arrived` what has come, in order. Returns how many completions there were.
    ///
    /// # Errors
    /// A WR that failed, with which the connection is over, or what `arrived` says.
    pub(crate) fn poll<E: From<QueueError>>(
        &mut self,
        mut arrived: impl FnMut(Arrival) -> Result<(), E>,
    ) -> Result<usize, E> {
        let mut taken = 0;
        loop {
            let polled = self.parts.cq.poll(&mut self.completions);
            let completions = polled.map_err(|e| E::from(QueueError::Verb(e)))?;
            let count = completions.len();
            taken += count;
            for wc in completions {
                let wc = match wc {
                    Ok(wc) => wc,
                    Err(failed) => return Err(QueueError::Failed(failed.status()).into()),
                };
                let arrival = match (wc.opcode(), wc.imm()) {
                    (WcOpcode::RecvRdmaWithImm, Some(imm)) => Arrival::Data {
                        imm,
                        len: wc.byte_len(),
                    },
                    _ if wc.is_recv() => command(&self.parts.private, &wc),
                    _ => {
                        let id = wc.wr_id();
                        #[expect(clippy::cast_possible_truncation, reason = "two words in one")]
                        {
                            (self.completed, self.staged_free) = ((id >> 32) as u32, id as u32);
                        }
                        continue;
                    }
                };
                let slot = usize::try_from(wc.wr_id()).unwrap_or(0);
                let recvs = &mut self.parts.recvs;
                recvs.recv(slot_of(&self.parts.private, slot), slot as u64);
                if recvs.len() == recvs.capacity() {
                    let posted = self.qp.post_recv(recvs);
                    recvs.clear();
                    posted.map_err(|e| E::from(QueueError::Post(e)))?;
                }
                arrived(arrival)?;
            }
            if count < POLL {
                return Ok(taken);
            }
        }
    }

    /// Posts again the receives that were used.
    pub(crate) fn post_receives(&mut self) -> Result<(), verbs::PostError> {
        let recvs = &mut self.parts.recvs;
        if recvs.is_empty() {
            return Ok(());
        }
        let posted = self.qp.post_recv(recvs);
        recvs.clear();
        posted
    }

    /// Has the descriptor become readable at the next completion. Completions that came before make no event: poll once more.
    pub(crate) fn arm(&mut self) -> Result<(), verbs::VerbError> {
        if self.armed {
            // An event that came is taken, or the channel would keep it.
            let _ = self.parts.channel.wait();
        }
        self.armed = true;
        self.parts.cq.req_notify(false)
    }

    /// Takes the queue pair to ERR: the peer can do nothing any more.
    pub(crate) fn stop(&self) {
        let _ = self.qp.to_error();
    }

    pub(crate) fn borrowed_fd(&self) -> BorrowedFd<'_> {
        self.parts.channel.as_fd()
    }

    /// The descriptor of the completion channel.
    pub(crate) fn fd(&self) -> RawFd {
        self.parts.channel.as_fd().as_raw_fd()
    }
}

#[cfg(test)]
impl Queue {
    /// Sends a message of any length.
    pub(crate) fn send_raw(&mut self, bytes: &[u8]) -> Result<(), verbs::PostError> {
        self.posted = self.posted.wrapping_add(1);
        self.list.clear();
        self.list.send(Inline(bytes));
        self.qp.post_send(&mut self.list)
    }

    /// WRITEs with any immediate, which is the length of the piece.
    pub(crate) fn write_raw(&mut self, bytes: &[u8], to: Piece) -> Result<(), verbs::PostError> {
        self.posted = self.posted.wrapping_add(1);
        let remote = RemoteMemory {
            addr: to.addr,
            len: to.len.into(),
            rkey: verbs::RKey(to.rkey),
        };
        self.list.clear();
        self.list.rdma_write_with_imm(Inline(bytes), remote, to.len);
        self.qp.post_send(&mut self.list)
    }
}

/// The control message that a receive has taken.
fn command(private: &MemoryRegion, wc: &verbs::WorkCompletion<'_>) -> Arrival {
    let len = usize::try_from(wc.byte_len()).unwrap_or(usize::MAX);
    if len != COMMAND_BYTES {
        return Arrival::Odd(len);
    }
    let slot = usize::try_from(wc.wr_id()).unwrap_or(0);
    let mut bytes = [0; COMMAND_BYTES];
    private
        .read_at(slot * COMMAND_BYTES, &mut bytes)
        .expect("a slot of the region");
    Arrival::Command(bytes)
}

/// Why a queue is of no use any more.
#[derive(Debug, thiserror::Error)]
pub(crate) enum QueueError {
    #[error("a work request failed: {0}")]
    Failed(WcStatus),
    #[error(transparent)]
    Verb(#[from] verbs::VerbError),
    #[error(transparent)]
    Post(#[from] verbs::PostError),
}

impl From<QueueError> for std::io::Error {
    fn from(e: QueueError) -> Self {
        let kind = match e {
            QueueError::Failed(_) => std::io::ErrorKind::ConnectionReset,
            _ => std::io::ErrorKind::Other,
        };
        std::io::Error::new(kind, e)
    }
}
