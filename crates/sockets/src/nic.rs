//! The NIC of this process, with its rings and queue pairs.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use verbs::{
    Access, CompletionQueue, Context, GidType, Inline, MemoryRegion, Postlist, PreparedQp,
    ProtectionDomain, Provider, QpEndpoint, QueuePair, Rc, RemoteMemory, WcBuffer,
};

use crate::connection_page::{ConnectionPage, connections_folder_of, state};
use crate::iovec_cursor::IovecCursor;
use crate::own_calls;
use crate::ring::{Arena, RING_BYTES, RING_OFFSET_IN_SLOT, Ring, SLOT_BYTES, SLOTS_PER_ARENA};

/// Bytes that are copied into registered memory and published at a time.
const STAGING_BUFFER_BYTES: usize = 32 * 1024;
/// Bytes that are sent to another host before the sender waits for their acknowledgement.
pub(crate) const MAX_UNACKNOWLEDGED_BYTES: usize = 4 * STAGING_BUFFER_BYTES;
/// Largest payload that is sent inline, if the device supports it.
const MAX_INLINE_BYTES: u32 = 512;
const SEND_QUEUE_WRS: u32 = 128;
/// The code of the ACK timeout between hosts: 268 ms, and 2.1 s with all retries. A process that gets no processor for
/// that long goes back to TCP. Lost packets are sent again sooner, by the measured round trip.
const ACK_TIMEOUT_CODE_BETWEEN_HOSTS: u8 = 16;
/// The port of the device.
const PORT_NUM: u8 = 1;
/// The time after which a WRITE to another host is given up if the TCP connection has ended. It is also the pause
/// between two looks at that connection.
const TCP_CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// Takes a lock, even after a thread panicked while it held the lock: the protected states stay usable.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Takes a lock as [`lock`] does, if it is free.
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// The NIC of this process.
pub(crate) struct Nic {
    context: Context,
    pd: ProtectionDomain,
    pub(crate) connections_dir: PathBuf,
    pub(crate) pid: u64,
    pub(crate) process_start_time: u64,
    ring_arenas: Mutex<RingArenas>,
    /// Registered memory from which large payloads are sent.
    free_staging_buffers: Mutex<Vec<MemoryRegion>>,
}

#[derive(Default)]
struct RingArenas {
    arenas: Vec<Arc<MemoryRegion>>,
    /// Arena and offset of each free ring.
    free_rings: Vec<(usize, usize)>,
    /// Rings of closed connections of which another process may still read.
    retired_rings: Vec<RetiredRing>,
}

/// A ring of a closed connection of which another process may still read.
struct RetiredRing {
    page: Arc<ConnectionPage>,
    /// The side that sent into the ring.
    sending_side: usize,
    arena_number: usize,
    offset: usize,
}

impl RetiredRing {
    /// Returns true if no process reads from the ring any more.
    fn is_free(&self) -> bool {
        let dir = self.page.direction_words(self.sending_side);
        let is_demoted = dir.state.load(Ordering::Acquire) >= state::DEMOTED;
        is_demoted
            && dir.rdma_bytes_taken.load(Ordering::Acquire)
                >= dir.rdma_bytes_sent.load(Ordering::Relaxed)
            || !self.page.path_names_this_page()
    }
}

impl RingArenas {
    /// Frees the retired rings of which nobody reads any more.
    fn free_retired_rings(&mut self) {
        let (free, kept) = std::mem::take(&mut self.retired_rings)
            .into_iter()
            .partition(RetiredRing::is_free);
        self.retired_rings = kept;
        let free: Vec<RetiredRing> = free;
        let places = free.iter().map(|ring| (ring.arena_number, ring.offset));
        self.free_rings.extend(places);
    }
}

/// The arena of a ring: its number in this process, and the identifier of its SysV segment.
pub(crate) struct ArenaId {
    pub(crate) number: usize,
    pub(crate) sysv_segment_id: i32,
}

/// The NIC is never freed: a forked child leaves its parent's NIC untouched, and creates its own.
static NIC: AtomicPtr<Nic> = AtomicPtr::new(std::ptr::null_mut());
static INIT_LOCK: Mutex<()> = Mutex::new(());

/// Returns the folder of connections inside the fabric's folder, which only this user can access.
pub(crate) fn connections_folder() -> io::Result<PathBuf> {
    let fabric = softnic::fabric_dir().map_err(io::Error::other)?;
    Ok(connections_folder_of(&fabric))
}

/// Returns the NIC of this process, and creates it at the first call.
pub(crate) fn get_or_create_nic() -> io::Result<&'static Nic> {
    let known = || {
        // SAFETY: the pointer is null, or a box that was leaked.
        unsafe { NIC.load(Ordering::Acquire).as_ref() }
    };
    if let Some(nic) = known() {
        return Ok(nic);
    }
    let _making = lock(&INIT_LOCK);
    if let Some(nic) = known() {
        return Ok(nic);
    }
    let nic = Box::new(Nic::new()?);
    NIC.store(Box::into_raw(nic), Ordering::Release);
    known().ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Returns the NIC if it already exists.
pub(crate) fn nic_if_created() -> Option<&'static Nic> {
    // SAFETY: the pointer is null, or a box that was leaked.
    unsafe { NIC.load(Ordering::Acquire).as_ref() }
}

/// Takes the lock under which the NIC is created, if it is free.
pub(crate) fn try_lock_creation() -> Option<MutexGuard<'static, ()>> {
    try_lock(&INIT_LOCK)
}

/// Forgets the parent's NIC; called in a forked child.
pub(crate) fn forget_parent_nic() {
    NIC.store(std::ptr::null_mut(), Ordering::Release);
}

/// Returns descriptors inherited through `exec` of connections that a process had moved to RDMA.
pub(crate) fn inherited_connection_fds() -> io::Result<Vec<i32>> {
    let mut cookies = Vec::new();
    for entry in std::fs::read_dir(connections_folder()?)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with("c-")
            && let Ok(page) = crate::connection_page::ConnectionPage::open(&entry.path(), false)
        {
            cookies.extend(
                [0, 1].map(|side| page.side_words(side).socket_cookie.load(Ordering::Acquire)),
            );
        }
    }
    if cookies.is_empty() {
        return Ok(Vec::new());
    }
    let fds = std::fs::read_dir("/proc/self/fd")?.flatten();
    let fds: Vec<i32> = fds
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    let is_one = |fd: &i32| {
        crate::real_libc::socket_cookie(*fd).is_some_and(|cookie| cookies.contains(&cookie))
    };
    Ok(fds.into_iter().filter(is_one).collect())
}

impl Nic {
    fn new() -> io::Result<Self> {
        let context = Provider::softnic().device(None)?.open()?;
        let pd = context.alloc_pd()?;
        let dir = connections_folder()?;
        std::fs::create_dir_all(&dir)?;
        let pid = u64::from(std::process::id());
        let start = liveness::start_time_ticks(pid)?.ok_or(io::ErrorKind::NotFound)?;
        crate::remove_stale_pages::remove_pages_of_ended_connections(&dir);
        Ok(Self {
            context,
            pd,
            connections_dir: dir,
            pid,
            process_start_time: start,
            ring_arenas: Mutex::default(),
            free_staging_buffers: Mutex::default(),
        })
    }

    /// Takes a free ring. Returns it with the address and key for the peer's WRITEs, and its arena.
    pub(crate) fn take_ring(&self) -> io::Result<(Ring, RemoteMemory, ArenaId)> {
        let mut slots = lock(&self.ring_arenas);
        if slots.free_rings.is_empty() {
            slots.free_retired_rings();
        }
        if slots.free_rings.is_empty() {
            let number = slots.arenas.len();
            let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
            let arena = self.pd.alloc_sysv(SLOT_BYTES * SLOTS_PER_ARENA, access)?;
            slots.arenas.push(Arc::new(arena));
            let free = (0..SLOTS_PER_ARENA).rev().map(|i| (number, i * SLOT_BYTES));
            slots.free_rings.extend(free);
        }
        let taken = slots.free_rings.pop().and_then(|(number, offset)| {
            let arena = slots.arenas.get(number)?;
            let remote = arena.remote().starting_at(offset as u64)?;
            let id = arena.sysv_id()?;
            let ring = Ring::at(Arena::Own(Arc::clone(arena)), offset)?;
            Some((
                ring,
                remote,
                ArenaId {
                    number,
                    sysv_segment_id: id,
                },
            ))
        });
        let (ring, remote, place) = taken.ok_or(io::ErrorKind::NotFound)?;
        ring.reset();
        let len = SLOT_BYTES as u64;
        Ok((ring, RemoteMemory { len, ..remote }, place))
    }

    /// Frees a ring, which no process writes to or reads from any more.
    pub(crate) fn free_ring(&self, arena: usize, offset: usize) {
        lock(&self.ring_arenas).free_rings.push((arena, offset));
    }

    /// Frees a ring as soon as no other process can read from it. Side `sender` of the page sent into the ring.
    pub(crate) fn retire_ring(
        &self,
        page: Arc<ConnectionPage>,
        sender: usize,
        arena: usize,
        offset: usize,
    ) {
        lock(&self.ring_arenas).retired_rings.push(RetiredRing {
            page,
            sending_side: sender,
            arena_number: arena,
            offset,
        });
    }

    /// Creates a queue pair that can be connected. Between hosts `address` is this end's, from which its packets leave
    /// if a GID has it.
    pub(crate) fn create_unconnected_qp(
        &self,
        address: Option<IpAddr>,
    ) -> io::Result<UnconnectedQp> {
        let cq = self.context.create_cq(SEND_QUEUE_WRS)?;
        let mut builder = self
            .pd
            .qp_builder::<Rc>(&cq, &cq)
            .max_send_wr(SEND_QUEUE_WRS)
            .max_recv_wr(1)
            .max_inline_data_if_supported(MAX_INLINE_BYTES);
        if let Some(address) = address {
            builder = builder.timeout(ACK_TIMEOUT_CODE_BETWEEN_HOSTS);
            if let Some(index) = self.roce_v2_gid_index(address) {
                builder = builder.gid_index(index);
            }
        }
        let qp = builder.build()?;
        Ok(UnconnectedQp { qp, cq })
    }

    /// Returns the index of the GID of RoCE v2 with this address.
    fn roce_v2_gid_index(&self, address: IpAddr) -> Option<u8> {
        let wanted = match address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        let has_address = |index: &u8| {
            let index = u32::from(*index);
            self.context
                .gid(PORT_NUM, index)
                .is_ok_and(|gid| gid.0 == wanted.octets())
                && self.context.gid_type(PORT_NUM, index) == Some(GidType::RoceV2)
        };
        let count = self.context.query_port(PORT_NUM).ok()?.gid_tbl_len;
        (0..u8::try_from(count).unwrap_or(u8::MAX)).find(has_address)
    }

    fn take_or_alloc_staging_buffer(&self) -> io::Result<MemoryRegion> {
        match lock(&self.free_staging_buffers).pop() {
            Some(stage) => Ok(stage),
            None => Ok(own_calls::without_table_changes(|| {
                self.pd.alloc(STAGING_BUFFER_BYTES, Access::LOCAL_WRITE)
            })?),
        }
    }
}

/// A queue pair that is not connected yet.
pub(crate) struct UnconnectedQp {
    qp: PreparedQp<Rc>,
    cq: CompletionQueue,
}

impl UnconnectedQp {
    pub(crate) fn endpoint(&self) -> QpEndpoint {
        self.qp.endpoint()
    }

    /// Connects the queue pair to a peer that receives data in `ring`.
    pub(crate) fn connect(self, peer: &QpEndpoint, ring: RemoteMemory) -> io::Result<Sender> {
        let qp = self.qp.connect(peer)?;
        let list = qp.postlist(4);
        Ok(Sender {
            max_inline_bytes: qp.max_inline_data(),
            qp,
            cq: self.cq,
            postlist: list,
            peer_ring: ring,
            hello_state: HelloState::NotSent,
        })
    }
}

/// WRITEs data into the ring of a peer.
pub(crate) struct Sender {
    qp: QueuePair<Rc>,
    cq: CompletionQueue,
    postlist: Postlist<Rc>,
    peer_ring: RemoteMemory,
    max_inline_bytes: usize,
    hello_state: HelloState,
}

/// The state of the first WRITE to a peer on another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HelloState {
    NotSent,
    Sent,
    /// The peer has the WRITE.
    ReceivedByPeer,
}

impl Sender {
    /// WRITEs `len` bytes of the program's buffers, and then the new tail. `sent` is the position of the first byte in
    /// the stream. The ring must have room. Returns when the peer has the bytes.
    pub(crate) fn write(
        &mut self,
        nic: &Nic,
        from: IovecCursor<'_>,
        len: usize,
        sent: u64,
    ) -> io::Result<()> {
        if len <= self.max_inline_bytes.min(MAX_INLINE_BYTES as usize) {
            let mut bytes = [0; MAX_INLINE_BYTES as usize];
            from.copy_to(0, &mut bytes[..len]);
            self.postlist.clear();
            for (at, part) in ring_parts(sent, len) {
                let remote = self.peer_ring_at(at)?;
                let (start, end) = part;
                self.postlist.rdma_write(Inline(&bytes[start..end]), remote);
            }
            let tail = sent.wrapping_add(len as u64);
            return self.post_with_new_tail_and_wait(tail);
        }
        let stage = nic.take_or_alloc_staging_buffer()?;
        let result = self.write_staged(&stage, from, len, sent);
        lock(&nic.free_staging_buffers).push(stage);
        result
    }

    /// WRITEs as [`write`](Self::write) does, to a peer on another host: at most [`MAX_UNACKNOWLEDGED_BYTES`]. Returns
    /// an error if `has_ended` returns true.
    ///
    /// # Errors
    /// The queue pair is of no use any more. The peer may have some of the bytes, or all.
    pub(crate) fn write_to_other_host(
        &mut self,
        nic: &Nic,
        from: IovecCursor<'_>,
        len: usize,
        sent: u64,
        mut has_ended: impl FnMut() -> bool,
    ) -> io::Result<()> {
        let mut stages = Vec::new();
        let mut done = 0;
        while done < len {
            let n = (len - done).min(STAGING_BUFFER_BYTES);
            let stage = nic.take_or_alloc_staging_buffer()?;
            let cursor = sent.wrapping_add(done as u64);
            done += n;
            self.post_staged(&stage, from.skip_bytes(done - n), n, cursor, done == len)?;
            stages.push(stage);
        }
        self.wait_for_completion(&mut has_ended)?;
        // A WRITE that has failed might still read its stage.
        lock(&nic.free_staging_buffers).append(&mut stages);
        Ok(())
    }

    /// WRITEs words into the slot of a peer on another host, in order. Returns when the peer has them.
    ///
    /// # Errors
    /// The queue pair is of no use any more. The peer may have the words nevertheless.
    pub(crate) fn write_words(
        &mut self,
        words: &[(usize, u64)],
        mut has_ended: impl FnMut() -> bool,
    ) -> io::Result<()> {
        if self.hello_state == HelloState::Sent {
            self.wait_for_completion(&mut has_ended)?;
            self.hello_state = HelloState::ReceivedByPeer;
        }
        self.add_word_writes_to_postlist(words)?;
        self.post_postlist(true)?;
        self.wait_for_completion(&mut has_ended)
    }

    fn add_word_writes_to_postlist(&mut self, words: &[(usize, u64)]) -> io::Result<()> {
        self.postlist.clear();
        for (number, value) in words {
            let at = self.peer_ring.starting_at(*number as u64 * 8);
            let at = at.ok_or(io::ErrorKind::InvalidData)?;
            self.postlist.rdma_write(Inline(&value.to_ne_bytes()), at);
        }
        Ok(())
    }

    /// Returns the state of the first WRITE, without waiting.
    ///
    /// # Errors
    /// The peer cannot be reached.
    pub(crate) fn poll_hello_state(&mut self) -> io::Result<HelloState> {
        if self.hello_state == HelloState::Sent {
            let mut buffer = WcBuffer::<4>::new();
            let polled = own_calls::without_table_changes(|| self.cq.poll(&mut buffer));
            if let Some(wc) = polled?.next() {
                wc.map_err(|failed| io::Error::other(failed.to_string()))?;
                self.hello_state = HelloState::ReceivedByPeer;
            }
        }
        Ok(self.hello_state)
    }

    /// Posts the first WRITE, of these words. The peer must be ready to receive.
    ///
    /// # Errors
    /// The queue pair refuses the WRITE.
    pub(crate) fn send_hello(&mut self, words: &[(usize, u64)]) -> io::Result<()> {
        self.add_word_writes_to_postlist(words)?;
        self.hello_state = HelloState::Sent;
        self.post_postlist(true)
    }

    fn write_staged(
        &mut self,
        stage: &MemoryRegion,
        from: IovecCursor<'_>,
        len: usize,
        sent: u64,
    ) -> io::Result<()> {
        let mut done = 0;
        while done < len {
            let n = (len - done).min(STAGING_BUFFER_BYTES);
            let cursor = sent.wrapping_add(done as u64);
            self.post_staged(stage, from.skip_bytes(done), n, cursor, true)?;
            // The stage can be reused only after the work requests have completed.
            self.wait_for_completion(&mut || false)?;
            done += n;
        }
        Ok(())
    }

    /// Copies the first `len` bytes, at most [`STAGING_BUFFER_BYTES`], into a stage, and posts WRITEs of them and of
    /// the new tail. The stage is the caller's alone, and is in use until the WRITEs have completed.
    fn post_staged(
        &mut self,
        stage: &MemoryRegion,
        from: IovecCursor<'_>,
        len: usize,
        cursor: u64,
        signaled: bool,
    ) -> io::Result<()> {
        let mut at = 0;
        for (piece, piece_len) in from.pieces(0, len) {
            // SAFETY: the program's buffer and the stage, which is the caller's alone, have so many bytes; no WR that
            // names the stage is outstanding.
            unsafe { std::ptr::copy_nonoverlapping(piece, stage.as_mut_ptr().add(at), piece_len) };
            at += piece_len;
        }
        self.postlist.clear();
        for (to, (start, end)) in ring_parts(cursor, len) {
            let remote = self.peer_ring_at(to)?;
            self.postlist.rdma_write(stage.slice(start..end)?, remote);
        }
        self.add_tail_write_to_postlist(cursor.wrapping_add(len as u64));
        self.post_postlist(signaled)
    }

    fn peer_ring_at(&self, offset: usize) -> io::Result<RemoteMemory> {
        let offset = (RING_OFFSET_IN_SLOT + offset) as u64;
        self.peer_ring
            .starting_at(offset)
            .ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Adds a WRITE of the new tail to the list.
    fn add_tail_write_to_postlist(&mut self, tail: u64) {
        self.postlist
            .rdma_write(Inline(&tail.to_ne_bytes()), self.peer_ring);
    }

    /// Posts the list, followed by a WRITE of the new tail, and waits for the completion. On this host the WRITEs are
    /// done when they are posted, unless the process with the peer's queue pair has ended. Its child may have the
    /// connection, and gets the bytes by TCP.
    fn post_with_new_tail_and_wait(&mut self, tail: u64) -> io::Result<()> {
        self.add_tail_write_to_postlist(tail);
        self.post_postlist(true)?;
        self.wait_for_completion(&mut || false)
    }

    /// Posts the list. If `signaled` is true, its last work request makes a completion.
    fn post_postlist(&mut self, signaled: bool) -> io::Result<()> {
        let last = self.postlist.len() - 1;
        self.postlist.set_signaled(last, signaled);
        // The NIC opens and closes files, such as those of a port's counters, while it has the send queue locked.
        own_calls::without_table_changes(|| self.qp.post_send(&mut self.postlist))
            .map_err(io::Error::other)
    }

    /// Waits for the completion of the only signaled work request, or until `has_ended` returns true.
    fn wait_for_completion(&self, has_ended: &mut dyn FnMut() -> bool) -> io::Result<()> {
        let mut buffer = WcBuffer::<4>::new();
        let mut next_check = None;
        // The NIC completes every work request in the end, with an error if the peer has died.
        loop {
            let polled = own_calls::without_table_changes(|| self.cq.poll(&mut buffer));
            if let Some(wc) = polled?.next() {
                return wc
                    .map(|_| ())
                    .map_err(|failed| io::Error::other(failed.to_string()));
            }
            std::thread::yield_now();
            let now = Instant::now();
            if now >= *next_check.get_or_insert(now + TCP_CHECK_INTERVAL) {
                next_check = Some(now + TCP_CHECK_INTERVAL);
                if has_ended() {
                    return Err(io::ErrorKind::ConnectionAborted.into());
                }
            }
        }
    }
}

/// Returns the one or two parts of the ring that `len` bytes from a cursor occupy: the offset in the ring, and the
/// range of the bytes.
fn ring_parts(cursor: u64, len: usize) -> impl Iterator<Item = (usize, (usize, usize))> {
    let at = usize::try_from(cursor % RING_BYTES as u64).unwrap_or(0);
    let first = len.min(RING_BYTES - at);
    [(at, (0, first)), (0, (first, len))]
        .into_iter()
        .filter(|(_, (start, end))| end > start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_wrap_at_the_end_of_the_ring() {
        let of = |cursor, len| ring_parts(cursor, len).collect::<Vec<_>>();
        assert_eq!(of(5, 10), [(5, (0, 10))]);
        assert_eq!(
            of(RING_BYTES as u64 - 4, 10),
            [(RING_BYTES - 4, (0, 4)), (0, (4, 10))]
        );
        assert_eq!(
            of(RING_BYTES as u64 * 3 - 10, 10),
            [(RING_BYTES - 10, (0, 10))]
        );
    }
}
