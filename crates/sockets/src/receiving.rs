//! Receiving on a connection, its readiness, and sleeps until data come.

use std::io;
use std::sync::atomic::{Ordering, fence};

use libc::c_int;

use crate::conn::{Conn, Phase, Rx};
use crate::connection_page::{DirectionWords, state};
use crate::cursors::{
    peer_ring_room, readable_bytes_unknown_to_kernel, readable_ring_bytes, untaken_wake_bytes,
};
use crate::destination::{Destination, recv_by_kernel};
use crate::iovec_cursor::IovecCursor;
use crate::nic::lock;
use crate::not_rdma_reason::NotRdmaReason;
use crate::page_side::PageAndSide;
use crate::real_libc::{self, fail, result};
use crate::remote_peer::AwaitedEvent;
use crate::ring::{RING_BYTES, Ring};
use crate::spin::Spin;

/// The result of an attempt to receive.
pub(crate) enum ReceiveAttempt {
    Bytes(usize),
    EndOfStream,
    Failed(c_int),
    WouldBlock,
    /// The pipe into which the bytes go is full.
    NoRoomInPipe,
    /// The direction is on TCP for good.
    Tcp,
    /// The connection turned out not to be ready.
    Retry,
}

/// The readiness of a connection that is not plain TCP.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Readiness {
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// Number of bytes received by RDMA so far; an increase is a new edge.
    pub(crate) arrived_rdma_bytes: u64,
    /// True if only the kernel knows whether data, or room, is available.
    pub(crate) must_ask_kernel_for_readable: bool,
    pub(crate) must_ask_kernel_for_writable: bool,
}

impl Conn {
    /// Receives data as `recvmsg(2)` does with these flags.
    ///
    /// # Errors
    /// The errors of `recvmsg(2)`.
    pub(crate) fn recv(&self, fd: c_int, to: IovecCursor<'_>, flags: c_int) -> io::Result<usize> {
        let got = self.recv_without_kept_error(fd, to, flags);
        if to.is_empty() {
            return got;
        }
        self.kept_error_instead_of_end(got)
    }

    fn recv_without_kept_error(
        &self,
        fd: c_int,
        to: IovecCursor<'_>,
        flags: c_int,
    ) -> io::Result<usize> {
        if flags & libc::MSG_OOB != 0 {
            // Urgent data come by TCP only.
            return recv_by_kernel(fd, &to.iovecs_of_range(0, to.len()), flags);
        }
        if flags & libc::MSG_TRUNC != 0 {
            self.demote(fd, NotRdmaReason::Unsupported);
        }
        let is_plain =
            self.begin_data_call(fd) != Phase::QpConnected || flags & libc::MSG_ERRQUEUE != 0;
        if is_plain && let Some(_call) = self.try_enter_tcp_read() {
            return self.recv_by_tcp(fd, to, flags);
        }
        let mut done = 0;
        loop {
            let rest = Destination::Memory(to.skip_bytes(done));
            match self.try_recv(fd, rest, flags & (libc::MSG_PEEK | libc::MSG_TRUNC)) {
                ReceiveAttempt::Bytes(n) => {
                    done += n;
                    let all = flags & libc::MSG_WAITALL != 0 && flags & libc::MSG_PEEK == 0;
                    if done == to.len() || !all {
                        return Ok(done);
                    }
                }
                ReceiveAttempt::Retry => match self.try_enter_tcp_read() {
                    Some(_call) => return self.recv_by_tcp(fd, to, flags),
                    None => std::thread::yield_now(),
                },
                ReceiveAttempt::EndOfStream => return Ok(done),
                ReceiveAttempt::Failed(errno) if done > 0 => {
                    real_libc::set_errno(errno);
                    self.keep_error();
                    return Ok(done);
                }
                ReceiveAttempt::Failed(errno) => return Err(fail(errno)),
                ReceiveAttempt::Tcp if done == 0 => return self.recv_by_tcp(fd, to, flags),
                ReceiveAttempt::Tcp => {
                    let parts = to.iovecs_of_range(done, to.len() - done);
                    let rest = recv_by_kernel(fd, &parts, flags);
                    if rest.is_err() {
                        self.keep_error();
                    }
                    return Ok(done + rest.unwrap_or(0));
                }
                ReceiveAttempt::WouldBlock | ReceiveAttempt::NoRoomInPipe => {
                    match self.wait_for_data(fd, flags) {
                        Err(_) if done > 0 => return Ok(done),
                        waited => waited?,
                    }
                }
            }
        }
    }

    /// Receives by the kernel's call `by_kernel` while the connection is plain TCP; `None` if it is not.
    pub(crate) fn recv_by_kernel_if_tcp(
        &self,
        fd: c_int,
        flags: c_int,
        by_kernel: impl FnOnce() -> io::Result<usize>,
    ) -> Option<io::Result<usize>> {
        if flags & libc::MSG_OOB != 0 {
            return Some(by_kernel());
        }
        if flags & libc::MSG_TRUNC != 0 {
            self.demote(fd, NotRdmaReason::Unsupported);
        }
        if self.begin_data_call(fd) == Phase::QpConnected {
            return None;
        }
        let _call = self.try_enter_tcp_read()?;
        let got = by_kernel().inspect(|got| self.count_tcp_read(*got, flags));
        Some(self.kept_error_instead_of_end(got))
    }

    fn recv_by_tcp(&self, fd: c_int, to: IovecCursor<'_>, flags: c_int) -> io::Result<usize> {
        let got = recv_by_kernel(fd, &to.iovecs_of_range(0, to.len()), flags)?;
        self.count_tcp_read(got, flags);
        Ok(got)
    }

    fn count_tcp_read(&self, got: usize, flags: c_int) {
        if flags & libc::MSG_PEEK == 0 {
            self.tcp_bytes_received
                .fetch_add(got as u64, Ordering::SeqCst);
        }
    }

    /// Receives once. `flags` are those among `MSG_PEEK` and `MSG_TRUNC`, which discards bytes (`tcp(7)`).
    pub(crate) fn try_recv(&self, fd: c_int, to: Destination<'_>, flags: c_int) -> ReceiveAttempt {
        let mut rx = lock(&self.rx);
        let Rx {
            page_and_side: Some(link),
            ring,
        } = &mut *rx
        else {
            return ReceiveAttempt::Retry;
        };
        let dir = link.incoming_words();
        let _held = dir.lock_receiving();
        if link.remote_peer.is_some() {
            self.advance_change_to_rdma_in_receive(link);
        }
        let len = to.len();
        loop {
            let now = dir.state.load(Ordering::Acquire);
            match now {
                state::TCP_ONLY => {
                    self.set_tcp_after_rdma_data_drained();
                    return ReceiveAttempt::Tcp;
                }
                state::TCP => match self.recv_during_setup(fd, link, to, flags) {
                    Some(got) => return got,
                    None => continue,
                },
                _ => {}
            }
            let by_tcp = dir.tcp_bytes_received.load(Ordering::Relaxed);
            let first = dir
                .tcp_bytes_before_rdma
                .load(Ordering::Acquire)
                .saturating_sub(by_tcp);
            if first > 0 {
                let n = len.min(usize::try_from(first).unwrap_or(len));
                return self.recv_tcp_bytes_before_rdma(fd, link, to, n, flags);
            }
            if let Some(ring) = ring
                && let Some(got) = self.recv_from_ring(fd, link, ring, to, flags)
            {
                return got;
            }
            if len == 0 {
                return ReceiveAttempt::Bytes(0);
            }
            match self.take_wake_bytes_and_check_end(fd, link, ring.as_ref(), now) {
                // The peer wrote data, maybe before it closed, and the data became visible only now.
                ReceiveAttempt::EndOfStream
                | ReceiveAttempt::Failed(_)
                | ReceiveAttempt::WouldBlock
                    if has_data(ring.as_ref(), link) => {}
                ReceiveAttempt::WouldBlock if dir.state.load(Ordering::Acquire) != now => {}
                other => return other,
            }
        }
    }

    /// Receives while the peer may change to RDMA at any moment: peeks first, and takes only bytes that were there
    /// before a change.
    fn recv_during_setup(
        &self,
        fd: c_int,
        link: &PageAndSide,
        to: Destination<'_>,
        flags: c_int,
    ) -> Option<ReceiveAttempt> {
        let there = to.count_bytes(fd, to.len(), flags);
        if link.incoming_words().state.load(Ordering::Acquire) != state::TCP {
            return None;
        }
        Some(match there {
            Ok(0) if to.len() > 0 => ReceiveAttempt::EndOfStream,
            Ok(n) if flags & libc::MSG_PEEK != 0 => ReceiveAttempt::Bytes(n),
            Ok(n) => self.recv_tcp_bytes_before_rdma(fd, link, to, n, flags),
            Err(err) => receive_attempt_from_error(&err),
        })
    }

    /// Receives plain bytes that precede the change to RDMA, and counts them.
    fn recv_tcp_bytes_before_rdma(
        &self,
        fd: c_int,
        link: &PageAndSide,
        to: Destination<'_>,
        len: usize,
        flags: c_int,
    ) -> ReceiveAttempt {
        match to.receive(fd, len, flags) {
            Ok(0) if len > 0 => ReceiveAttempt::EndOfStream,
            Ok(n) => {
                if flags & libc::MSG_PEEK == 0 {
                    link.page
                        .direction_words(1 - link.own_side)
                        .tcp_bytes_received
                        .fetch_add(n as u64, Ordering::Relaxed);
                }
                ReceiveAttempt::Bytes(n)
            }
            Err(err) => receive_attempt_from_error(&err),
        }
    }

    fn recv_from_ring(
        &self,
        fd: c_int,
        link: &PageAndSide,
        ring: &Ring,
        to: Destination<'_>,
        flags: c_int,
    ) -> Option<ReceiveAttempt> {
        let dir = link.incoming_words();
        let head = dir.rdma_bytes_taken.load(Ordering::Relaxed);
        let arrived = arrived_rdma_bytes(ring, &dir);
        let there = readable_ring_bytes(arrived, &dir);
        let mut n = there.min(to.len());
        if n == 0 {
            return None;
        }
        if flags & libc::MSG_TRUNC == 0 {
            n = match to.copy_from_ring(ring, head, n) {
                Ok(copied) => copied,
                Err(err) if err.raw_os_error() == Some(libc::EAGAIN) => {
                    return Some(ReceiveAttempt::NoRoomInPipe);
                }
                Err(err) => return Some(receive_attempt_from_error(&err)),
            };
        }
        if flags & libc::MSG_PEEK == 0 {
            dir.rdma_bytes_taken
                .store(head.wrapping_add(n as u64), Ordering::Release);
            fence(Ordering::SeqCst);
            if link.remote_peer.is_some() {
                dir.rdma_bytes_sent.store(arrived, Ordering::Relaxed);
                self.tell_peer_taken_bytes(fd, link, head.wrapping_add(n as u64), there - n);
            }
            let is_roomy = there - n <= RING_BYTES / 2;
            if is_roomy
                && dir.sender_sleeps.load(Ordering::Relaxed) != 0
                && dir.sender_sleeps.swap(0, Ordering::SeqCst) != 0
            {
                self.wake_sending_peer(fd);
            }
        }
        Some(ReceiveAttempt::Bytes(n))
    }

    /// Takes wake bytes when the ring is empty, and checks whether the stream has ended. The result is `WouldBlock` if
    /// data have come for other threads that sleep.
    fn take_wake_bytes_and_check_end(
        &self,
        fd: c_int,
        link: &PageAndSide,
        ring: Option<&Ring>,
        now: u64,
    ) -> ReceiveAttempt {
        if link.remote_peer.is_some() {
            return self.take_records_and_check_end(fd, link, ring, now);
        }
        let dir = link.page.direction_words(1 - link.own_side);
        loop {
            let left = untaken_wake_bytes(&dir);
            if left == 0 {
                break;
            }
            if !self.may_take_wake_bytes(link, ring) {
                return ReceiveAttempt::WouldBlock;
            }
            match u64::try_from(real_libc::discard_stream_bytes(fd, left)) {
                Ok(0) => return ReceiveAttempt::EndOfStream,
                Ok(n) => dir.wake_bytes_taken.fetch_add(n, Ordering::Relaxed),
                Err(_) => {
                    return receive_attempt_from_error(&io::Error::from_raw_os_error(
                        real_libc::errno(),
                    ));
                }
            };
            self.wake_local_room_waiters();
        }
        if now == state::DEMOTED {
            self.set_tcp_after_rdma_data_drained();
            return ReceiveAttempt::Tcp;
        }
        match real_libc::peek_byte(fd, libc::MSG_DONTWAIT) {
            0 => ReceiveAttempt::EndOfStream,
            1.. => ReceiveAttempt::WouldBlock,
            _ => receive_attempt_from_error(&io::Error::from_raw_os_error(real_libc::errno())),
        }
    }

    pub(crate) fn wait_for_data(&self, fd: c_int, flags: c_int) -> io::Result<()> {
        if flags & libc::MSG_DONTWAIT != 0 || real_libc::is_nonblocking(fd) {
            return Err(fail(libc::EAGAIN));
        }
        let (link, ring) = {
            let rx = lock(&self.rx);
            (rx.page_and_side.clone(), rx.ring.clone())
        };
        let Some(link) = link else { return Ok(()) };
        let dir = link.incoming_words();
        let before = dir.state.load(Ordering::Acquire);
        let ready =
            || has_data(ring.as_ref(), &link) || dir.state.load(Ordering::Acquire) != before;
        if Spin::decide_whether_to_spin().spin_until(ready) {
            return Ok(());
        }
        self.begin_data_sleep();
        self.ask_for_wake_on_data(&link);
        fence(Ordering::SeqCst);
        // The thread sleeps in a peek, which the kernel's own timeouts and signals end like a read.
        let is_ready = ready();
        let slept = if is_ready {
            1
        } else {
            real_libc::peek_byte(fd, 0)
        };
        let woken_errno = real_libc::errno();
        self.end_data_sleep();
        if slept > 0 && !is_ready {
            // If the program exits before another read, the kernel resets a connection with unread bytes.
            self.take_wake_bytes_unless_needed(fd);
        }
        real_libc::set_errno(woken_errno);
        if slept < 0 && self.keep_error() {
            // Data that came before the error are received first.
            return Ok(());
        }
        result(slept).map(|_| ())
    }

    /// Asks the peer for a wake byte when it sends data.
    fn ask_for_wake_on_data(&self, link: &PageAndSide) {
        match &link.remote_peer {
            Some(remote) => self.ask_other_host_for_wake(remote, AwaitedEvent::Data),
            None => link
                .page
                .direction_words(1 - link.own_side)
                .receiver_sleeps
                .store(1, Ordering::SeqCst),
        }
    }

    /// Counts a sleeper until data arrive. From here on no other thread takes the wake byte for which the sleeper asks:
    /// see `may_take_wake_bytes`.
    pub(crate) fn begin_data_sleep(&self) {
        self.data_sleeper_count.fetch_add(1, Ordering::SeqCst);
    }

    /// Ends what `begin_data_sleep` began. The request for wake bytes remains while others sleep.
    pub(crate) fn end_data_sleep(&self) {
        {
            let rx = lock(&self.rx);
            let others_sleep = self.data_sleeper_count.fetch_sub(1, Ordering::SeqCst) > 1;
            match &rx.page_and_side {
                Some(link) if link.remote_peer.is_none() => link
                    .page
                    .direction_words(1 - link.own_side)
                    .receiver_sleeps
                    .store(u64::from(others_sleep), Ordering::SeqCst),
                // A request at the other host stays there: it costs one wake byte at most.
                Some(link) if others_sleep => self.ask_for_wake_on_data(link),
                _ => {}
            }
        }
        self.wake_local_room_waiters();
    }

    /// Returns true if the caller may take wake bytes, of which it has loaded the number before. The caller holds `rx`.
    ///
    /// The peer sends one wake byte for all sleepers, which stays until each of them has found the data. If no data are
    /// there, the byte was for other data or for room; the peer is first asked for the next one.
    fn may_take_wake_bytes(&self, link: &PageAndSide, ring: Option<&Ring>) -> bool {
        if self.data_sleeper_count.load(Ordering::SeqCst) == 0 {
            return true;
        }
        let dir = link.page.direction_words(1 - link.own_side);
        dir.receiver_sleeps.store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        !has_data(ring, link)
    }

    /// Wakes threads that wait for room, since the wake byte that was taken may have been for them.
    pub(crate) fn wake_local_room_waiters(&self) {
        drop(lock(&self.room_lock));
        self.room_available.notify_all();
    }

    /// Takes the wake bytes that have arrived, unless a sleeper needs them.
    ///
    /// If a thread took a wake byte before a sleeper runs, the sleeper would sleep on.
    pub(crate) fn take_wake_bytes_unless_needed(&self, fd: c_int) {
        let before = real_libc::errno();
        let rx = lock(&self.rx);
        if let Some(link) = &rx.page_and_side {
            let dir = link.incoming_words();
            let _held = dir.lock_receiving();
            if let Some(remote) = &link.remote_peer {
                self.take_records_unless_needed(fd, link, remote, rx.ring.as_ref());
                real_libc::set_errno(before);
                return;
            }
            // The state first: the peer may change to RDMA now, and says before how many plain bytes precede that.
            let has_changed = matches!(
                dir.state.load(Ordering::Acquire),
                state::RDMA | state::DEMOTED
            );
            let after_tcp = dir.tcp_bytes_received.load(Ordering::Relaxed)
                >= dir.tcp_bytes_before_rdma.load(Ordering::Acquire);
            if has_changed && after_tcp {
                let left = untaken_wake_bytes(&dir);
                if left > 0 && self.may_take_wake_bytes(link, rx.ring.as_ref()) {
                    if let Ok(n) = u64::try_from(real_libc::discard_stream_bytes(fd, left)) {
                        dir.wake_bytes_taken.fetch_add(n, Ordering::Relaxed);
                    } else {
                        self.keep_error();
                    }
                }
            }
        }
        real_libc::set_errno(before);
    }

    /// Returns the readiness of the connection, without a system call.
    pub(crate) fn readiness(&self) -> Readiness {
        let mut is = self.readiness_for_reading();
        let tx = lock(&self.tx);
        let Some(link) = &tx.page_and_side else {
            is.must_ask_kernel_for_writable = true;
            return is;
        };
        let dir = link.outgoing_words();
        let sent = dir.rdma_bytes_sent.load(Ordering::Relaxed);
        is.must_ask_kernel_for_writable = dir.state.load(Ordering::Acquire) != state::RDMA
            || link.remote_peer.is_some() && tx.has_rdma_ended(link);
        is.writable = !is.must_ask_kernel_for_writable
            && peer_ring_room(sent, dir.rdma_bytes_taken.load(Ordering::Acquire)) > 0;
        is
    }

    /// Returns the readiness for reading alone, which costs half as much.
    pub(crate) fn readiness_for_reading(&self) -> Readiness {
        let mut is = Readiness::default();
        let rx = lock(&self.rx);
        let Some(link) = &rx.page_and_side else {
            is.must_ask_kernel_for_readable = true;
            return is;
        };
        let dir = link.incoming_words();
        let now = dir.state.load(Ordering::Acquire);
        let before = dir.tcp_bytes_received.load(Ordering::Relaxed)
            < dir.tcp_bytes_before_rdma.load(Ordering::Acquire);
        is.must_ask_kernel_for_readable = before || now != state::RDMA;
        if let Some(ring) = &rx.ring {
            is.arrived_rdma_bytes = arrived_rdma_bytes(ring, &dir);
            is.readable = readable_ring_bytes(is.arrived_rdma_bytes, &dir) > 0
                && (!before || now == state::TCP);
        }
        is
    }

    /// Asks the peer for a wake byte on data, and on room if none is available. Returns true if something is ready
    /// already. A caller that asks for data has called `begin_data_sleep`.
    pub(crate) fn request_wake_bytes(&self, for_data: bool, for_room: bool) -> bool {
        let links = {
            let rx = lock(&self.rx);
            rx.page_and_side.clone()
        };
        let Some(link) = links else { return false };
        if for_data {
            self.ask_for_wake_on_data(&link);
        }
        if !for_room {
            fence(Ordering::SeqCst);
            return for_data && self.readiness_for_reading().readable;
        }
        let is = self.readiness();
        if !is.writable && !is.must_ask_kernel_for_writable {
            match &link.remote_peer {
                Some(remote) => self.ask_other_host_for_wake(remote, AwaitedEvent::Room),
                None => link
                    .page
                    .direction_words(link.own_side)
                    .sender_sleeps
                    .store(1, Ordering::SeqCst),
            }
        }
        fence(Ordering::SeqCst);
        let is = self.readiness();
        for_data && is.readable || is.writable
    }

    /// Asks the peer for a further wake byte on data, because the last one woke only some of the sleepers.
    pub(crate) fn request_next_wake_byte(&self) {
        {
            let rx = lock(&self.rx);
            if let Some(link) = &rx.page_and_side {
                self.ask_for_wake_on_data(link);
            }
        }
        self.wake_local_room_waiters();
    }

    /// Returns the number of bytes that a read would return at once (`FIONREAD`), if the kernel does not know it.
    pub(crate) fn unread_bytes_unknown_to_kernel(&self) -> Option<u64> {
        let rx = lock(&self.rx);
        let (link, ring) = (rx.page_and_side.as_ref()?, rx.ring.as_ref()?);
        let dir = link.incoming_words();
        readable_bytes_unknown_to_kernel(arrived_rdma_bytes(ring, &dir), &dir)
    }
}

pub(crate) fn has_data(ring: Option<&Ring>, link: &PageAndSide) -> bool {
    let dir = link.incoming_words();
    ring.is_some_and(|ring| readable_ring_bytes(arrived_rdma_bytes(ring, &dir), &dir) > 0)
}

/// Returns the number of bytes received by RDMA. A demoted direction gets no more, and its ring may already belong to
/// another connection.
fn arrived_rdma_bytes(ring: &Ring, dir: &DirectionWords<'_>) -> u64 {
    if dir.state.load(Ordering::Acquire) == state::DEMOTED {
        dir.rdma_bytes_sent.load(Ordering::Acquire)
    } else {
        ring.tail()
    }
}

fn receive_attempt_from_error(err: &io::Error) -> ReceiveAttempt {
    match err.raw_os_error() {
        Some(libc::EAGAIN) => ReceiveAttempt::WouldBlock,
        errno => ReceiveAttempt::Failed(errno.unwrap_or(libc::EIO)),
    }
}
