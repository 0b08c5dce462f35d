//! A TCP connection, which begins on TCP, changes to RDMA, and can be demoted to TCP.
//!
//! The kernel's connection stays open underneath. Both ends find one [page](crate::connection_page) by the two
//! addresses. When both have connected their queue pairs, each direction changes to RDMA at a byte that the sender
//! writes into the page. From then on, the TCP stream carries wake bytes, which are counted, until the direction is
//! demoted; then plain bytes follow again. Because all bytes are counted, the stream needs no markers, and bytes of one
//! kind cannot be taken for another.
//!
//! Between hosts each end has a page of its own, and the stream has records in place of counted wake bytes
//! ([`crate::remote_peer`], `between_hosts.rs`).
//!
//! Lock order: `setup`, `rx`, `tx`, then the page's locks: receiving, sending of side 0, sending of side 1.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use crate::connection_page::{ConnectionPage, DirectionWords, stage, state};
use crate::nic::{self, Nic, Sender, UnconnectedQp, lock};
use crate::not_rdma_reason::NotRdmaReason;
use crate::page_side::PageAndSide;
use crate::parked_watches::ParkedWatches;
use crate::remote_peer::RemotePeer;
use crate::ring::Ring;
use crate::{deep_stack, ended_connection_totals, own_calls, real_libc, remove_stale_pages};

/// Number of data calls before a connection looks for its page: short connections stay on TCP.
const CALLS_BEFORE_SETUP: u32 = 3;

/// The state of a connection in this process.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Phase {
    /// The connection has not looked for its page.
    NotStarted = 0,
    /// The connection has its page, and waits for the peer.
    WaitingForPeer = 1,
    /// The queue pair is connected.
    QpConnected = 2,
    /// The connection stays on TCP, and calls go to the kernel unchanged.
    Tcp = 3,
    /// Another process moved the connection to RDMA; the first use in this process demotes it.
    RdmaByOtherProcess = 4,
}

impl Phase {
    fn from_number(number: u8) -> Self {
        match number {
            0 => Self::NotStarted,
            1 => Self::WaitingForPeer,
            2 => Self::QpConnected,
            4 => Self::RdmaByOtherProcess,
            _ => Self::Tcp,
        }
    }
}

/// A connection, and its state in this process.
pub(crate) struct Conn {
    descriptor_refs: AtomicU32,
    phase: AtomicU8,
    /// Increases with each connection for which this object is reused.
    generation: AtomicU32,
    pub(crate) data_calls_before_setup: AtomicU32,
    /// True if another process may have a descriptor of the connection.
    is_shared: AtomicBool,
    /// An error of the socket that a call of this library got, and that the program has yet to get; 0 without.
    kept_errno: AtomicI32,
    /// True if the next send that finds the connection reset succeeds, and the call after it gets the error.
    pub(crate) delays_next_reset: AtomicBool,
    /// True if this side connected; false if it accepted.
    pub(crate) called_connect: AtomicBool,
    /// Numbers of calls that are inside the kernel's plain functions.
    pub(crate) running_tcp_reads: AtomicU32,
    pub(crate) running_tcp_writes: AtomicU32,
    /// Bytes that plain calls have moved in each direction.
    pub(crate) tcp_bytes_received: AtomicU64,
    pub(crate) tcp_bytes_sent: AtomicU64,
    /// True if a send found no room since the last reported edge of `EPOLLOUT`.
    pub(crate) send_found_no_room: AtomicBool,
    /// Number of threads and epoll instances that sleep until data arrive.
    pub(crate) data_sleeper_count: AtomicU32,
    pub(crate) parked_watches: ParkedWatches,
    /// The lock of `room_available`. Threads wait there for room while another thread, which sleeps until data arrive,
    /// receives the wake byte.
    pub(crate) room_lock: Mutex<()>,
    pub(crate) room_available: Condvar,
    pub(crate) setup: Mutex<SetupState>,
    pub(crate) rx: Mutex<Rx>,
    pub(crate) tx: Mutex<Tx>,
}

/// The state of the set-up.
#[derive(Default)]
pub(crate) struct SetupState {
    pub(crate) page: Option<Arc<ConnectionPage>>,
    /// The time of the first call that found nothing of the peer.
    pub(crate) waits_since: Option<Instant>,
    pub(crate) remote_peer: Option<Arc<RemotePeer>>,
    pub(crate) own_side: usize,
    pub(crate) unconnected_qp: Option<UnconnectedQp>,
    pub(crate) ring: Option<Ring>,
    pub(crate) ring_arena_number: usize,
}

/// The state for receiving.
#[derive(Default)]
pub(crate) struct Rx {
    pub(crate) page_and_side: Option<PageAndSide>,
    pub(crate) ring: Option<Ring>,
}

/// The state for sending.
#[derive(Default)]
pub(crate) struct Tx {
    pub(crate) page_and_side: Option<PageAndSide>,
    pub(crate) sender: Option<Sender>,
    pub(crate) nic: Option<&'static Nic>,
    /// True if the program had not set `TCP_NODELAY`.
    pub(crate) had_nagle: bool,
    /// Number of consecutive sends during which the receiver took nothing, and its last head.
    pub(crate) sends_without_progress: u32,
    pub(crate) last_receiver_head: u64,
}

impl Tx {
    /// Returns true if a direction that is on RDMA between hosts must be demoted before the next byte.
    pub(crate) fn has_rdma_ended(&self, link: &PageAndSide) -> bool {
        self.sender.is_none()
            || link.incoming_words().state.load(Ordering::Acquire) >= state::DEMOTED
            || link.peer_stage() == stage::TCP_OR_CLOSED
    }
}

impl Default for Conn {
    fn default() -> Self {
        Self {
            descriptor_refs: AtomicU32::new(0),
            phase: AtomicU8::new(Phase::Tcp as u8),
            generation: AtomicU32::new(0),
            data_calls_before_setup: AtomicU32::new(0),
            is_shared: AtomicBool::new(false),
            kept_errno: AtomicI32::new(0),
            delays_next_reset: AtomicBool::new(false),
            called_connect: AtomicBool::new(false),
            running_tcp_reads: AtomicU32::new(0),
            running_tcp_writes: AtomicU32::new(0),
            tcp_bytes_received: AtomicU64::new(0),
            tcp_bytes_sent: AtomicU64::new(0),
            send_found_no_room: AtomicBool::new(false),
            data_sleeper_count: AtomicU32::new(0),
            parked_watches: ParkedWatches::new(),
            room_lock: Mutex::default(),
            room_available: Condvar::new(),
            setup: Mutex::default(),
            rx: Mutex::default(),
            tx: Mutex::default(),
        }
    }
}

impl Conn {
    /// Resets the object for a new connection with one descriptor.
    pub(crate) fn reset(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
        self.data_calls_before_setup.store(0, Ordering::Relaxed);
        self.is_shared.store(false, Ordering::Relaxed);
        self.kept_errno.store(0, Ordering::Relaxed);
        self.delays_next_reset.store(false, Ordering::Relaxed);
        self.called_connect.store(false, Ordering::Relaxed);
        self.tcp_bytes_received.store(0, Ordering::Relaxed);
        self.tcp_bytes_sent.store(0, Ordering::Relaxed);
        self.send_found_no_room.store(false, Ordering::Relaxed);
        self.descriptor_refs.store(1, Ordering::Relaxed);
        self.set_phase(Phase::NotStarted);
    }

    pub(crate) fn descriptor_refs(&self) -> &AtomicU32 {
        &self.descriptor_refs
    }

    pub(crate) fn generation(&self) -> u32 {
        self.generation.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn phase(&self) -> Phase {
        Phase::from_number(self.phase.load(Ordering::SeqCst))
    }

    pub(crate) fn set_phase(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::SeqCst);
    }

    /// Returns true if the kernel alone knows the readiness.
    #[inline]
    pub(crate) fn is_plain_tcp(&self) -> bool {
        !matches!(self.phase(), Phase::QpConnected | Phase::RdmaByOtherProcess)
    }

    /// Returns true if the connection is on RDMA to another host.
    pub(crate) fn is_between_hosts(&self) -> bool {
        let rx = lock(&self.rx);
        let link = rx.page_and_side.as_ref();
        link.is_some_and(|link| link.remote_peer.is_some())
    }

    /// Returns true if a call of another thread can take the connection to RDMA.
    pub(crate) fn can_change_to_rdma(&self) -> bool {
        matches!(self.phase(), Phase::NotStarted | Phase::WaitingForPeer)
    }

    /// Begins a data call: continues the change to RDMA if possible. Returns the resulting phase.
    #[inline]
    pub(crate) fn begin_data_call(&self, fd: i32) -> Phase {
        let phase = self.phase();
        match phase {
            Phase::Tcp | Phase::QpConnected => phase,
            Phase::NotStarted
                if self.data_calls_before_setup.fetch_add(1, Ordering::Relaxed)
                    < CALLS_BEFORE_SETUP =>
            {
                phase
            }
            Phase::NotStarted | Phase::WaitingForPeer | Phase::RdmaByOtherProcess => {
                if self.advance_setup(fd) == Phase::RdmaByOtherProcess {
                    self.demote(fd, NotRdmaReason::OtherProcess);
                }
                self.phase()
            }
        }
    }

    /// Records that another process may use the connection: the next call then looks for the page at once.
    pub(crate) fn mark_shared(&self) {
        self.is_shared.store(true, Ordering::Relaxed);
        self.data_calls_before_setup
            .fetch_max(CALLS_BEFORE_SETUP, Ordering::Relaxed);
    }

    /// Returns true if the kernel's stream has a byte, has ended or has failed. The kernel reports a failure once: it
    /// is kept for the program's next read.
    pub(crate) fn kernel_stream_has_byte_end_or_error(&self, fd: i32) -> bool {
        let before = real_libc::errno();
        let has = real_libc::peek_byte(fd, libc::MSG_DONTWAIT) >= 0 || self.keep_error();
        real_libc::set_errno(before);
        has
    }

    /// Keeps the error of the call on the socket that has just failed, for the program. Returns false if the call only
    /// would have waited.
    pub(crate) fn keep_error(&self) -> bool {
        let errno = real_libc::errno();
        let is_failure = errno != libc::EAGAIN && errno != libc::EINTR;
        if is_failure {
            self.kept_errno.store(errno, Ordering::SeqCst);
        }
        is_failure
    }

    /// Keeps `ECONNRESET` for the program.
    pub(crate) fn keep_reset(&self) {
        self.kept_errno.store(libc::ECONNRESET, Ordering::SeqCst);
    }

    /// Keeps the error of a call that sent, for the program. The kernel reports `EPIPE` again.
    pub(crate) fn keep_send_error(&self) {
        if real_libc::errno() != libc::EPIPE {
            self.keep_error();
        }
    }

    /// Returns the kept error to a call that sends, as the kernel reports an error of the socket to its next call.
    #[inline]
    pub(crate) fn take_kept_error(&self) -> io::Result<()> {
        if self.kept_errno.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        match self.kept_errno.swap(0, Ordering::SeqCst) {
            0 => Ok(()),
            errno => {
                real_libc::set_errno(errno);
                Err(io::Error::from_raw_os_error(errno))
            }
        }
    }

    /// Returns true if an error is kept for the program.
    pub(crate) fn has_kept_error(&self) -> bool {
        self.kept_errno.load(Ordering::Relaxed) != 0
    }

    /// Takes the kept error, for a program that asks for it.
    pub(crate) fn take_kept_errno(&self) -> Option<i32> {
        self.delays_next_reset.store(false, Ordering::SeqCst);
        match self.kept_errno.swap(0, Ordering::SeqCst) {
            0 => None,
            errno => Some(errno),
        }
    }

    /// Returns the kept error in place of an end of the stream, or of the error of a connection that was reset here.
    pub(crate) fn kept_error_instead_of_end(&self, got: io::Result<usize>) -> io::Result<usize> {
        let is_end = match &got {
            Ok(count) => *count == 0,
            Err(err) => err.raw_os_error() == Some(libc::ENOTCONN),
        };
        let got = if is_end {
            self.take_kept_error().and(got)
        } else {
            got
        };
        if matches!(&got, Err(err) if err.raw_os_error() == Some(libc::ECONNRESET)) {
            // The program knows of the reset: its next send fails.
            self.delays_next_reset.store(false, Ordering::SeqCst);
        }
        got
    }

    /// Resets the connection, of whose stream nobody knows any more how to read it.
    pub(crate) fn reset_stream(&self, fd: i32) {
        self.keep_reset();
        real_libc::reset_connection(fd);
    }

    /// Begins a plain read; returns `None` if the connection is no longer plain.
    pub(crate) fn try_enter_tcp_read(&self) -> Option<TcpCall<'_>> {
        self.running_tcp_reads.fetch_add(1, Ordering::SeqCst);
        let call = TcpCall(&self.running_tcp_reads);
        self.is_plain_tcp().then_some(call)
    }

    /// Demotes both directions to TCP. Bytes that were sent by RDMA are received before bytes sent by TCP.
    pub(crate) fn demote(&self, fd: i32, reason: NotRdmaReason) {
        if self.phase() != Phase::Tcp {
            own_calls::without_table_changes(|| self.demote_using_nic(fd, reason));
        }
    }

    /// Demotes the connection to TCP if it has its page. A connection without one can still change to RDMA.
    pub(crate) fn demote_unless_not_started(&self, fd: i32, reason: NotRdmaReason) {
        if self.phase() != Phase::NotStarted {
            self.demote(fd, reason);
        }
    }

    fn demote_using_nic(&self, fd: i32, reason: NotRdmaReason) {
        let mut setup = lock(&self.setup);
        match self.phase() {
            Phase::Tcp => return,
            Phase::NotStarted | Phase::WaitingForPeer => {
                return self.stay_on_tcp(&mut setup, reason);
            }
            Phase::QpConnected | Phase::RdmaByOtherProcess => {}
        }
        let before = real_libc::errno();
        let _rx = lock(&self.rx);
        let mut tx = lock(&self.tx);
        let Some(link) = tx.page_and_side.clone() else {
            return;
        };
        if link.remote_peer.is_some() {
            self.demote_between_hosts(fd, &mut tx, &link, reason);
        } else {
            self.demote_page(&link, fd, reason);
            tx.sender = None;
        }
        if std::mem::take(&mut tx.had_nagle) {
            real_libc::set_nodelay(fd, false);
        }
        if self.phase() == Phase::RdmaByOtherProcess {
            self.set_phase(Phase::QpConnected);
        }
        self.parked_watches.unpark();
        real_libc::set_errno(before);
    }

    /// Demotes both directions of a page to TCP. A sleeping peer is woken first.
    fn demote_page(&self, link: &PageAndSide, fd: i32, reason: NotRdmaReason) {
        let page = &link.page;
        let dirs = [page.direction_words(0), page.direction_words(1)];
        let _held = [dirs[0].lock_sending(), dirs[1].lock_sending()];
        let (outgoing, incoming) = (dirs[link.own_side], dirs[1 - link.own_side]);
        if dirs
            .iter()
            .any(|dir| dir.state.load(Ordering::Relaxed) < state::DEMOTED)
        {
            page.not_rdma_reason()
                .store(reason as u64, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
        let sleeps = outgoing.receiver_sleeps.swap(0, Ordering::SeqCst)
            + incoming.sender_sleeps.swap(0, Ordering::SeqCst)
            > 0;
        if sleeps && outgoing.state.load(Ordering::Relaxed) == state::RDMA {
            self.send_wake_byte(outgoing.wake_bytes_sent, fd);
        }
        for dir in dirs {
            match dir.state.load(Ordering::Relaxed) {
                state::TCP => dir.state.store(state::TCP_ONLY, Ordering::Release),
                state::RDMA => dir.state.store(state::DEMOTED, Ordering::Release),
                _ => {}
            }
        }
    }

    /// Sends a wake byte; the caller holds the direction's sending lock. Returns false if the byte could not be sent.
    /// The kernel reports an error of the socket once: it is kept for the program.
    pub(crate) fn send_wake_byte(&self, wakes: &AtomicU64, fd: i32) -> bool {
        let before = real_libc::errno();
        // The byte is counted first, because the receiver never takes more bytes than are counted.
        wakes.fetch_add(1, Ordering::SeqCst);
        let is_sent = real_libc::send_byte(fd);
        if !is_sent {
            wakes.fetch_sub(1, Ordering::SeqCst);
            self.keep_send_error();
        }
        real_libc::set_errno(before);
        is_sent
    }

    /// Makes the connection plain after all RDMA data was received.
    pub(crate) fn set_tcp_after_rdma_data_drained(&self) {
        if self.phase() == Phase::QpConnected {
            self.set_phase(Phase::Tcp);
        }
    }

    /// Releases the connection when the last descriptor of this process is closed.
    pub(crate) fn release(&self, fd: i32) {
        let before = real_libc::errno();
        let uses_nic =
            self.phase() == Phase::WaitingForPeer || lock(&self.tx).page_and_side.is_some();
        if uses_nic {
            own_calls::as_library(|| {
                deep_stack::run_if_possible(|| self.release_now(fd))
                    .unwrap_or_else(|| self.release_now(fd));
            });
        } else {
            self.release_now(fd);
        }
        real_libc::set_errno(before);
    }

    fn release_now(&self, fd: i32) {
        let mut setup = lock(&self.setup);
        if self.phase() == Phase::WaitingForPeer {
            self.stay_on_tcp(&mut setup, NotRdmaReason::Shutdown);
        }
        let rx = std::mem::take(&mut *lock(&self.rx));
        let mut tx = std::mem::take(&mut *lock(&self.tx));
        if let Some(link) = tx.page_and_side.take() {
            // A side that another process owns is closed by that process. After `exec` the process is the same.
            let owner = link
                .page
                .side_words(link.own_side)
                .pid
                .load(Ordering::Relaxed);
            if owner == u64::from(std::process::id()) {
                // A peer does not notice that a WRITE fails: it must send by TCP before the queue pair goes.
                if link.remote_peer.is_none() {
                    self.demote_page(&link, fd, NotRdmaReason::Shutdown);
                } else if self.may_be_shared() {
                    self.demote_between_hosts(fd, &mut tx, &link, NotRdmaReason::Shutdown);
                }
                // Without a queue pair no packet of the peer reaches the ring, which another connection may have next.
                tx.sender = None;
                self.close_side(fd, &link, &setup, rx.ring);
            }
        }
        *setup = SetupState::default();
        self.set_phase(Phase::Tcp);
        self.parked_watches.unpark();
    }

    /// Closes this side.
    fn close_side(&self, fd: i32, link: &PageAndSide, setup: &SetupState, ring: Option<Ring>) {
        let incoming = link.incoming_words();
        let is_read = || {
            let taken = incoming.rdma_bytes_taken.load(Ordering::Relaxed);
            ring.as_ref().is_none_or(|ring| ring.tail() == taken)
        };
        if link.remote_peer.is_some() {
            if is_read() && !self.may_be_shared() {
                // The peer may send a wake byte until the descriptor is closed, and the kernel answers that by a reset.
                // The peer takes it for the end if the end has come before.
                real_libc::end_stream_before_close(fd);
            }
            self.take_last_records(fd, link, ring.as_ref());
        } else {
            discard_wake_bytes(fd, &incoming);
        }
        let is_read = is_read();
        // Between hosts a direction stays on RDMA until the peer's record is read.
        let may_come =
            link.remote_peer.is_some() && incoming.state.load(Ordering::Acquire) == state::RDMA;
        let is_unread_by_others = (!is_read || may_come) && self.may_be_shared();
        let own = link.page.side_words(link.own_side);
        own.setup_stage
            .store(stage::TCP_OR_CLOSED, Ordering::Release);
        // A process that has the descriptor of an end, but not the page yet, must find it.
        let is_page_needed = match link.remote_peer {
            Some(_) => self.may_be_shared(),
            None => [0, 1]
                .map(|side| link.page.has_unread_bytes(side))
                .contains(&true),
        };
        if is_page_needed {
            link.page
                .path
                .parent()
                .map(remove_stale_pages::remove_pages_sometimes);
        } else if remove_stale_pages::is_page_unused(&link.page) {
            ended_connection_totals::remove_page_and_add_to_totals(&link.page);
        }
        let ring = ring.filter(|_| setup.page.is_some());
        let (Some(ring), Some(nic)) = (ring, nic::nic_if_created()) else {
            return;
        };
        let (arena, sender) = (setup.ring_arena_number, 1 - link.own_side);
        if is_unread_by_others {
            nic.retire_ring(Arc::clone(&link.page), sender, arena, ring.offset());
        } else {
            nic.free_ring(arena, ring.offset());
        }
    }

    /// Returns true if another process may have a descriptor of the connection. Descriptors that a program passes to
    /// children without `fork(2)`, by `posix_spawn(3)` or `vfork(2)`, are not known: any child counts.
    fn may_be_shared(&self) -> bool {
        self.is_shared.load(Ordering::Relaxed) || real_libc::has_children()
    }

    /// Gives up the parent's queue pairs; called in a forked child. Returns false if a thread of the parent was inside
    /// a call: the object cannot be used any more.
    pub(crate) fn after_fork_in_child(&self) -> bool {
        // The child has only the thread that forked.
        self.data_sleeper_count.store(0, Ordering::SeqCst);
        self.parked_watches.forget();
        let locks = (
            self.setup.try_lock(),
            self.rx.try_lock(),
            self.tx.try_lock(),
        );
        let (Ok(mut setup), Ok(_rx), Ok(mut tx)) = locks else {
            return false;
        };
        self.mark_shared();
        std::mem::forget(tx.sender.take());
        std::mem::forget(setup.unconnected_qp.take());
        tx.nic = None;
        match self.phase() {
            Phase::QpConnected => self.set_phase(Phase::RdmaByOtherProcess),
            Phase::WaitingForPeer => {
                // The first of the two processes to use the connection claims the page.
                *setup = SetupState::default();
                self.set_phase(Phase::NotStarted);
            }
            _ => {}
        }
        // No call runs in the child.
        self.running_tcp_reads.store(0, Ordering::SeqCst);
        self.running_tcp_writes.store(0, Ordering::SeqCst);
        true
    }
}

/// A running plain call, which is counted until drop.
pub(crate) struct TcpCall<'c>(&'c AtomicU32);

impl<'c> TcpCall<'c> {
    /// Wraps a call that the counter already includes.
    pub(crate) fn from_counted(counter: &'c AtomicU32) -> Self {
        Self(counter)
    }
}

impl Drop for TcpCall<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Takes the wake bytes of a stream that is about to be closed: the kernel would reset the connection if they were
/// left. Another process that has the descriptor may be receiving.
fn discard_wake_bytes(fd: i32, incoming: &DirectionWords<'_>) {
    let _held = incoming.lock_receiving();
    let mut read = incoming.wake_bytes_taken.load(Ordering::Relaxed);
    let by_tcp = incoming.tcp_bytes_received.load(Ordering::Relaxed)
        >= incoming.tcp_bytes_before_rdma.load(Ordering::Relaxed);
    while by_tcp && read < incoming.wake_bytes_sent.load(Ordering::Acquire) {
        let n = real_libc::discard_stream_bytes(
            fd,
            incoming.wake_bytes_sent.load(Ordering::Acquire) - read,
        );
        let Ok(n @ 1..) = u64::try_from(n) else { break };
        read += n;
    }
    incoming.wake_bytes_taken.store(read, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_was_reset_here_says_so_once() {
        let conn = Conn::default();
        let read = |got: io::Result<usize>| {
            let got = conn.kept_error_instead_of_end(got);
            got.map_err(|err| err.raw_os_error())
        };
        let not_connected = || Err(io::Error::from_raw_os_error(libc::ENOTCONN));
        assert_eq!(read(not_connected()), Err(Some(libc::ENOTCONN)));
        // No descriptor has this number.
        conn.reset_stream(-1);
        assert_eq!(read(Ok(3)), Ok(3));
        assert_eq!(read(not_connected()), Err(Some(libc::ECONNRESET)));
        assert_eq!(read(Ok(0)), Ok(0));
    }

    #[test]
    fn so_error_takes_the_error_of_a_connection_that_was_reset_here() {
        let conn = Conn::default();
        assert_eq!(conn.take_kept_errno(), None);
        conn.reset_stream(-1);
        assert!(conn.has_kept_error());
        assert_eq!(conn.take_kept_errno(), Some(libc::ECONNRESET));
        assert!(!conn.has_kept_error());
        assert!(conn.take_kept_error().is_ok());
    }
}
