//! Sending on a connection.

use std::io;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use libc::{c_int, iovec};

use crate::conn::{Conn, Phase, TcpCall, Tx};
use crate::connection_page::{stage, state};
use crate::cursors::peer_ring_room;
use crate::iovec_cursor::IovecCursor;
use crate::nic::lock;
use crate::not_rdma_reason::NotRdmaReason;
use crate::page_side::PageAndSide;
use crate::real_libc::{self, fail, result};
use crate::remote_peer::AwaitedEvent;
use crate::ring::RING_BYTES;
use crate::spin::Spin;

/// Longest sleep of a sender in ms before it checks for room again, because another thread may have taken its wake
/// byte.
const ROOM_CHECK_MS: u64 = 10;

/// Number of sends without progress of the receiver after which the kernel is asked whether the peer still exists.
const SENDS_BEFORE_PEER_CHECK: u32 = 16;

/// The result of an attempt to send.
pub(crate) enum SendAttempt<'c> {
    Bytes(usize),
    /// The direction is on TCP, and stays there while the call is counted.
    Tcp(TcpCall<'c>),
    NoRoom,
}

impl Conn {
    /// Sends data as `sendmsg(2)` does with these flags.
    ///
    /// # Errors
    /// The errors of `sendmsg(2)`.
    pub(crate) fn send(&self, fd: c_int, from: IovecCursor<'_>, flags: c_int) -> io::Result<usize> {
        self.send_reporting_each_reset(fd, from, flags)
            .or_else(|err| self.delay_first_reset(from.len(), err))
    }

    /// Keeps the first reset of a connection that was on RDMA for the next call, and returns `len` as the bytes sent.
    ///
    /// The kernel answers unread wake bytes by a reset when the peer ends, where a program's peer that has read
    /// everything only ends the stream. TCP accepts the first bytes after that end, and programs rely on it:
    /// redis-benchmark repeats a failed write for ever.
    fn delay_first_reset(&self, len: usize, err: io::Error) -> io::Result<usize> {
        let is_reset = matches!(err.raw_os_error(), Some(libc::ECONNRESET | libc::EPIPE));
        if !is_reset || !self.delays_next_reset.swap(false, Ordering::SeqCst) {
            return Err(err);
        }
        self.keep_reset();
        Ok(len)
    }

    fn send_reporting_each_reset(
        &self,
        fd: c_int,
        from: IovecCursor<'_>,
        flags: c_int,
    ) -> io::Result<usize> {
        if flags & (libc::MSG_OOB | libc::MSG_ZEROCOPY) != 0 {
            self.demote(fd, NotRdmaReason::Unsupported);
        }
        self.take_kept_error()?;
        if self.begin_data_call(fd) != Phase::QpConnected || from.is_empty() {
            self.running_tcp_writes.fetch_add(1, Ordering::SeqCst);
            let call = TcpCall::from_counted(&self.running_tcp_writes);
            // The call is counted first, so that the direction cannot change to RDMA from here on.
            if from.is_empty() || self.phase() != Phase::QpConnected {
                return self.send_by_tcp(fd, from, flags, &call);
            }
        }
        let mut done = 0;
        let mut deadline = None;
        loop {
            match self.try_send(fd, from, done) {
                SendAttempt::Bytes(n) => done += n,
                SendAttempt::Tcp(call) if done == 0 => {
                    return self.send_by_tcp(fd, from, flags, &call);
                }
                // A program whose calls block may not look at the count.
                SendAttempt::Tcp(call) => {
                    let flags = flags | libc::MSG_NOSIGNAL;
                    let rest = self.send_by_tcp(fd, from.skip_bytes(done), flags, &call);
                    return Ok(done + rest.unwrap_or_else(|_| self.keep_send_error_of_rest()));
                }
                SendAttempt::NoRoom => {
                    if flags & libc::MSG_DONTWAIT != 0 || real_libc::is_nonblocking(fd) {
                        self.send_found_no_room.store(true, Ordering::SeqCst);
                        self.parked_watches.unpark();
                        // Another thread may already sleep in `epoll_wait(2)`, where it asked for no wake byte.
                        if self.request_wake_byte_on_room() || self.demote_if_tcp_and_peer_ended(fd)
                        {
                            continue;
                        }
                        return if done > 0 {
                            Ok(done)
                        } else {
                            Err(fail(libc::EAGAIN))
                        };
                    }
                    match self.wait_for_room(fd, &mut deadline) {
                        Err(_) if done > 0 => return Ok(done),
                        waited => waited?,
                    }
                }
            }
            if done == from.len() {
                return Ok(done);
            }
        }
    }

    /// Sends by the kernel's call `by_kernel` while the connection has not come to RDMA; `None` if it has.
    pub(crate) fn send_by_kernel_unless_rdma(
        &self,
        fd: c_int,
        by_kernel: impl FnOnce() -> io::Result<usize>,
    ) -> Option<io::Result<usize>> {
        if self.begin_data_call(fd) == Phase::QpConnected {
            return None;
        }
        self.running_tcp_writes.fetch_add(1, Ordering::SeqCst);
        let _call = TcpCall::from_counted(&self.running_tcp_writes);
        // The call is counted first, so that the direction cannot change to RDMA from here on.
        if self.phase() == Phase::QpConnected {
            return None;
        }
        if let Err(err) = self.take_kept_error() {
            return Some(Err(err));
        }
        Some(by_kernel().inspect(|sent| {
            self.tcp_bytes_sent
                .fetch_add(*sent as u64, Ordering::SeqCst);
        }))
    }

    /// Keeps the error of sending the rest of a program's bytes. Returns 0, the number of bytes sent.
    fn keep_send_error_of_rest(&self) -> usize {
        self.keep_send_error();
        0
    }

    fn send_by_tcp(
        &self,
        fd: c_int,
        from: IovecCursor<'_>,
        flags: c_int,
        _: &TcpCall<'_>,
    ) -> io::Result<usize> {
        self.take_kept_error()?;
        let flags = if self.delays_next_reset.load(Ordering::SeqCst) {
            flags | libc::MSG_NOSIGNAL
        } else {
            flags
        };
        let sent = send_by_kernel(fd, &from.iovecs_of_range(0, from.len()), flags)?;
        self.tcp_bytes_sent.fetch_add(sent as u64, Ordering::SeqCst);
        Ok(sent)
    }

    fn try_send(&self, fd: c_int, from: IovecCursor<'_>, skip: usize) -> SendAttempt<'_> {
        let mut tx = lock(&self.tx);
        let plain = || self.count_plain_send();
        if let Some(link) = tx
            .page_and_side
            .as_ref()
            .filter(|link| link.remote_peer.is_some())
        {
            let link = link.clone();
            return self.try_send_to_other_host(fd, &mut tx, &link, from.skip_bytes(skip));
        }
        let Tx {
            page_and_side: Some(link),
            sender,
            nic,
            sends_without_progress: unanswered,
            last_receiver_head: last_head,
            ..
        } = &mut *tx
        else {
            return plain();
        };
        let dir = link.page.direction_words(link.own_side);
        let _held = dir.lock_sending();
        if !link.switch_to_rdma_if_ready(self) {
            return plain();
        }
        let (Some(sender), Some(nic)) = (sender, *nic) else {
            return plain();
        };
        let sent = dir.rdma_bytes_sent.load(Ordering::Relaxed);
        let room = peer_ring_room(sent, dir.rdma_bytes_taken.load(Ordering::Acquire));
        let n = (from.len() - skip)
            .min(usize::try_from(room).unwrap_or(RING_BYTES))
            .min(RING_BYTES);
        if n == 0 {
            return SendAttempt::NoRoom;
        }
        if sender.write(nic, from.skip_bytes(skip), n, sent).is_err() {
            // The peer has died: the kernel's TCP reports the right error.
            dir.state.store(state::DEMOTED, Ordering::Release);
            link.page
                .not_rdma_reason()
                .store(NotRdmaReason::WriteFailed as u64, Ordering::Relaxed);
            return plain();
        }
        dir.rdma_bytes_sent
            .store(sent.wrapping_add(n as u64), Ordering::Release);
        // A peer that takes nothing may have closed its socket, which TCP would report at the second send.
        let head = dir.rdma_bytes_taken.load(Ordering::Relaxed);
        if is_peer_check_due(unanswered, last_head, head) && link.has_peer_ended(fd) {
            dir.state.store(state::DEMOTED, Ordering::Release);
        }
        fence(Ordering::SeqCst);
        if dir.receiver_sleeps.load(Ordering::Relaxed) != 0
            && dir.receiver_sleeps.swap(0, Ordering::SeqCst) != 0
        {
            self.send_wake_byte(dir.wake_bytes_sent, fd);
        }
        SendAttempt::Bytes(n)
    }

    /// Counts a plain send. The caller holds `tx`, the lock under which the direction changes to RDMA.
    pub(crate) fn count_plain_send(&self) -> SendAttempt<'_> {
        self.running_tcp_writes.fetch_add(1, Ordering::SeqCst);
        SendAttempt::Tcp(TcpCall::from_counted(&self.running_tcp_writes))
    }

    fn wait_for_room(&self, fd: c_int, deadline: &mut Option<Instant>) -> io::Result<()> {
        let link = lock(&self.tx).page_and_side.clone();
        let Some(link) = link else { return Ok(()) };
        let dir = link.outgoing_words();
        let sent = dir.rdma_bytes_sent.load(Ordering::Relaxed);
        let full = || {
            peer_ring_room(sent, dir.rdma_bytes_taken.load(Ordering::Acquire)) == 0
                && dir.state.load(Ordering::Acquire) == state::RDMA
        };
        if Spin::decide_whether_to_spin().spin_until(|| !full()) {
            return Ok(());
        }
        match &link.remote_peer {
            Some(remote) => self.ask_other_host_for_wake(remote, AwaitedEvent::Room),
            None => dir.sender_sleeps.store(1, Ordering::SeqCst),
        }
        fence(Ordering::SeqCst);
        if !full() {
            return Ok(());
        }
        let timeout = real_libc::send_timeout_ms(fd);
        if deadline.is_none() {
            *deadline = timeout.map(|ms| Instant::now() + Duration::from_millis(ms));
        }
        if self.data_sleeper_count.load(Ordering::SeqCst) > self.parked_watches.count() {
            // A thread that sleeps until data arrive receives the wake byte for this one, and notifies it.
            let nap = Duration::from_millis(ROOM_CHECK_MS);
            let napping = lock(&self.room_lock);
            if full() {
                drop(self.room_available.wait_timeout(napping, nap));
            }
        } else {
            self.sleep_for_room(fd, full)?;
        }
        self.demote_if_peer_gone(&link);
        match *deadline {
            Some(end) if Instant::now() >= end => Err(fail(libc::EAGAIN)),
            _ => Ok(()),
        }
    }

    fn sleep_for_room(&self, fd: c_int, full: impl Fn() -> bool) -> io::Result<()> {
        let nap = c_int::try_from(ROOM_CHECK_MS).unwrap_or(c_int::MAX);
        let (n, revents) = real_libc::poll_one(fd, libc::POLLIN, nap);
        if n < 0 {
            // A send would go on after a handler with `SA_RESTART`, `poll(2)` never does (`signal(7)`).
            let errno = real_libc::errno();
            let goes_on = errno == libc::EINTR && real_libc::do_handlers_restart_calls();
            real_libc::set_errno(errno);
            return if goes_on { Ok(()) } else { Err(fail(errno)) };
        }
        if revents & libc::POLLIN != 0 {
            self.take_wake_bytes_unless_needed(fd);
            if full() {
                // A reader must take these plain bytes or the end of the stream.
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        Ok(())
    }

    /// Demotes the direction if the peer is gone or dead, so that the kernel's TCP reports the state to the sender.
    fn demote_if_peer_gone(&self, link: &PageAndSide) {
        if let Some(remote) = &link.remote_peer {
            self.end_rdma_or_ask_for_room_wake(remote);
        } else if link.peer_is_gone() {
            let dir = link.page.direction_words(link.own_side);
            let _held = dir.lock_sending();
            if dir.state.load(Ordering::Relaxed) == state::RDMA {
                dir.state.store(state::DEMOTED, Ordering::Release);
            }
        }
    }

    /// Does the same as `demote_if_peer_gone` if the TCP connection has ended, too. Returns true if the direction is no
    /// longer on RDMA.
    ///
    /// A thread that waits by `poll(2)` does not sleep then, because the kernel reports the end. So a send that does not
    /// wait must look at the peer.
    fn demote_if_tcp_and_peer_ended(&self, fd: c_int) -> bool {
        let link = lock(&self.tx).page_and_side.clone();
        let Some(link) = link.filter(|_| real_libc::has_tcp_ended(fd)) else {
            return false;
        };
        self.demote_if_peer_gone(&link);
        self.readiness().must_ask_kernel_for_writable
    }

    /// Does the same as `demote_if_peer_gone` if the ring is full. Returns true if the ring is full.
    pub(crate) fn is_ring_full_checking_peer(&self) -> bool {
        let is = self.readiness();
        let is_full = !is.writable && !is.must_ask_kernel_for_writable;
        let link = lock(&self.tx).page_and_side.clone();
        if let (true, Some(link)) = (is_full, link) {
            self.demote_if_peer_gone(&link);
        }
        is_full
    }

    /// Wakes a peer that waits for room.
    pub(crate) fn wake_sending_peer(&self, fd: c_int) {
        let mut tx = lock(&self.tx);
        let Some(link) = tx.page_and_side.clone() else {
            return;
        };
        let dir = link.page.direction_words(link.own_side);
        let _held = dir.lock_sending();
        let sends_by_rdma = if link.remote_peer.is_some() {
            self.switch_path_to_other_host_if_due(fd, &mut tx, &link)
        } else {
            link.switch_to_rdma_if_ready(self)
        };
        if sends_by_rdma {
            self.send_wake_byte(dir.wake_bytes_sent, fd);
        }
    }

    /// Asks the peer for a wake byte when its ring has room. Returns true if a send would not find a full ring now.
    fn request_wake_byte_on_room(&self) -> bool {
        self.request_wake_bytes(false, true) || self.readiness().must_ask_kernel_for_writable
    }
}

impl PageAndSide {
    /// Returns true if this side sends by RDMA. Changes to RDMA if both sides are ready. The caller holds the sending
    /// lock.
    fn switch_to_rdma_if_ready(&self, conn: &Conn) -> bool {
        let dir = self.page.direction_words(self.own_side);
        match dir.state.load(Ordering::Relaxed) {
            state::RDMA => true,
            state::TCP => {
                let is_ready = self
                    .page
                    .side_words(1 - self.own_side)
                    .setup_stage
                    .load(Ordering::Acquire)
                    == stage::READY
                    && conn.running_tcp_writes.load(Ordering::SeqCst) == 0;
                if is_ready {
                    dir.tcp_bytes_before_rdma.store(
                        conn.tcp_bytes_sent.load(Ordering::SeqCst),
                        Ordering::Relaxed,
                    );
                    dir.state.store(state::RDMA, Ordering::Release);
                    conn.delays_next_reset.store(true, Ordering::SeqCst);
                }
                is_ready
            }
            _ => false,
        }
    }
}

/// Counts a send. Returns true if the receiver has taken nothing since [`SENDS_BEFORE_PEER_CHECK`] sends.
fn is_peer_check_due(unanswered: &mut u32, last_head: &mut u64, head: u64) -> bool {
    *unanswered = if head == *last_head {
        *unanswered + 1
    } else {
        0
    };
    *last_head = head;
    let is_due = *unanswered >= SENDS_BEFORE_PEER_CHECK;
    if is_due {
        *unanswered = 0;
    }
    is_due
}

pub(crate) fn send_by_kernel(fd: c_int, parts: &[iovec], flags: c_int) -> io::Result<usize> {
    // SAFETY: any bytes are valid; NULL pointers without lengths.
    let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
    (msg.msg_iov, msg.msg_iovlen) = (parts.as_ptr().cast_mut(), parts.len());
    // SAFETY: the parts are a program's buffers to send from (`IovecCursor::new`).
    result(unsafe { real_libc::sendmsg(fd, &raw const msg, flags) })
}
