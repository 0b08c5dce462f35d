//! Sending and receiving on a connection between hosts.
//!
//! A send returns when the peer's host has the bytes, so nothing is lost if the process ends. The sender looks at the
//! peer's request for a wake byte after that. The peer looks for bytes after its request has come here. So one of them
//! finds what the other has written.
//!
//! 1. Both ends exchange their states by datagrams ([`crate::peer_lookup`]), and connect their queue pairs.
//! 2. Each end sends a first WRITE, the hello. An end whose hello has arrived and that has the peer's knows that packets
//!    travel both ways.
//! 3. Then it tells the peer after how many bytes by TCP its bytes come by RDMA. From there on its TCP stream has records.
//! 4. A demotion is a record with the number of bytes sent by RDMA, and plain bytes follow. It also ends the sender's use
//!    of a queue pair that has failed: the receiver drops the bytes that it gets twice. The peer demotes its direction, too.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use libc::{c_int, iovec};

use crate::conn::{Conn, Tx};
use crate::connection_page::{DirectionWords, stage, state};
use crate::cursors::{peer_ring_room, repeated_plain_bytes};
use crate::iovec_cursor::IovecCursor;
use crate::nic::{HelloState, MAX_UNACKNOWLEDGED_BYTES, lock};
use crate::not_rdma_reason::NotRdmaReason;
use crate::page_side::PageAndSide;
use crate::receiving::{ReceiveAttempt, has_data};
use crate::remote_peer::{
    AwaitedEvent, DEMOTED_RECORD_BYTES, RemotePeer, TcpRecord, WAKES_PER_REQUEST, mailbox,
};
use crate::ring::{RING_BYTES, Ring};
use crate::sending::{SendAttempt, send_by_kernel};
use crate::{peer_lookup, real_libc};

/// Longest wait in ms for room in the kernel's buffer, which has only records. Nobody reads them after that time.
const RECORD_ROOM_TIMEOUT_MS: c_int = 5000;
/// Longest wait in ms for the end of a TCP connection whose peer's queue pair has failed.
const TCP_END_TIMEOUT_MS: c_int = 1000;
/// The words of the first WRITE. A thread may already sleep until data arrive.
const HELLO_WORDS: [(usize, u64); 2] = [
    (mailbox::WAKES_FOR_DATA, WAKES_PER_REQUEST),
    (mailbox::HELLO, 1),
];
/// The pause in ms between two looks for the peer's demotion.
const DEMOTION_CHECK_MS: c_int = 20;

impl Conn {
    /// Sends to a peer on another host, at most as much as may be unacknowledged. The caller holds `tx`.
    pub(crate) fn try_send_to_other_host(
        &self,
        fd: c_int,
        tx: &mut Tx,
        link: &PageAndSide,
        from: IovecCursor<'_>,
    ) -> SendAttempt<'_> {
        let dir = link.outgoing_words();
        let _held = dir.lock_sending();
        if dir.state.load(Ordering::Relaxed) == state::RDMA && tx.has_rdma_ended(link) {
            return self.demote_with_bytes(fd, &dir, from);
        }
        if !self.switch_path_to_other_host_if_due(fd, tx, link) {
            return self.count_plain_send();
        }
        let (sent, taken) = (
            dir.rdma_bytes_sent.load(Ordering::Relaxed),
            dir.rdma_bytes_taken.load(Ordering::Acquire),
        );
        let room = usize::try_from(peer_ring_room(sent, taken)).unwrap_or(RING_BYTES);
        let n = from.len().min(room).min(MAX_UNACKNOWLEDGED_BYTES);
        if n == 0 && !real_libc::has_tcp_ended(fd) {
            return SendAttempt::NoRoom;
        }
        let written = match (&mut tx.sender, tx.nic) {
            (Some(sender), Some(nic)) if n > 0 => {
                let has_ended = || real_libc::has_tcp_ended(fd) || is_demoted_by_peer(fd, link);
                sender.write_to_other_host(nic, from, n, sent, has_ended)
            }
            _ => Err(std::io::ErrorKind::NotConnected.into()),
        };
        if written.is_err() {
            // The peer has ended, or its host cannot be reached by packets: TCP brings the bytes, or the right error.
            tx.sender = None;
            set_not_rdma_reason(link, NotRdmaReason::WriteFailed);
            return self.demote_with_bytes(fd, &dir, from);
        }
        dir.rdma_bytes_sent
            .store(sent.wrapping_add(n as u64), Ordering::Release);
        self.wake_receiver_if_wanted(&dir, fd);
        SendAttempt::Bytes(n)
    }

    /// Demotes the outgoing direction, and sends the first plain bytes with the record. A peer that has closed answers
    /// the record by a reset, and the send after that fails, which the program expects of its second send at the
    /// earliest.
    fn demote_with_bytes(
        &self,
        fd: c_int,
        dir: &DirectionWords<'_>,
        from: IovecCursor<'_>,
    ) -> SendAttempt<'_> {
        let record = TcpRecord::encode_demoted(dir.rdma_bytes_sent.load(Ordering::Relaxed));
        let mut parts = vec![iovec {
            iov_base: record.as_ptr().cast_mut().cast(),
            iov_len: record.len(),
        }];
        parts.extend(from.iovecs_of_range(0, from.len().min(MAX_UNACKNOWLEDGED_BYTES)));
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        match send_by_kernel(fd, &parts, flags).map(|sent| sent.checked_sub(record.len())) {
            Ok(Some(bytes)) => {
                dir.state.store(state::DEMOTED, Ordering::Release);
                if bytes > 0 {
                    return SendAttempt::Bytes(bytes);
                }
            }
            // Part of a record cannot be taken back.
            Ok(None) => {
                real_libc::reset_connection(fd);
                dir.state.store(state::DEMOTED, Ordering::Release);
            }
            Err(_) => {
                self.keep_send_error();
                self.demote_outgoing(fd, dir);
            }
        }
        self.count_plain_send()
    }

    /// Returns true if this side sends by RDMA. Changes to RDMA if both sides are ready, and to TCP if RDMA has ended.
    /// The caller holds the sending lock.
    pub(crate) fn switch_path_to_other_host_if_due(
        &self,
        fd: c_int,
        tx: &mut Tx,
        link: &PageAndSide,
    ) -> bool {
        let dir = link.outgoing_words();
        match dir.state.load(Ordering::Relaxed) {
            state::RDMA if tx.has_rdma_ended(link) => {
                self.demote_outgoing(fd, &dir);
                false
            }
            state::RDMA => true,
            state::TCP => self.advance_change_to_rdma(fd, tx, link),
            _ => false,
        }
    }

    /// Continues the change of this side's direction to RDMA, without waiting. Returns true if it has changed. The
    /// caller holds the sending lock.
    fn advance_change_to_rdma(&self, fd: c_int, tx: &mut Tx, link: &PageAndSide) -> bool {
        let has_peers_hello =
            |remote: &Arc<RemotePeer>| remote.load_mailbox_word(mailbox::HELLO) != 0;
        advance_hello(tx, link)
            && link.remote_peer.as_ref().is_some_and(has_peers_hello)
            && self.running_tcp_writes.load(Ordering::SeqCst) == 0
            && self.change_to_rdma(fd, tx, link)
    }

    /// Tells the peer after how many bytes by TCP this side sends by RDMA. Returns true if this side does. The caller
    /// holds the sending lock.
    fn change_to_rdma(&self, fd: c_int, tx: &mut Tx, link: &PageAndSide) -> bool {
        let Some(sender) = &mut tx.sender else {
            return false;
        };
        let dir = link.outgoing_words();
        let sent = self.tcp_bytes_sent.load(Ordering::SeqCst);
        dir.tcp_bytes_before_rdma.store(sent, Ordering::Relaxed);
        let words = [
            (mailbox::PEER_TCP_BYTES_BEFORE_RDMA, sent),
            (mailbox::PEER_SENDS_BY_RDMA, 1),
        ];
        if sender
            .write_words(&words, || real_libc::has_tcp_ended(fd))
            .is_err()
        {
            // Nobody knows whether the peer takes the next bytes for records.
            tx.sender = None;
            set_not_rdma_reason(link, NotRdmaReason::WriteFailed);
            dir.state.store(state::TCP_ONLY, Ordering::Release);
            // A peer that is killed may lose its queue pair a moment before its TCP connection.
            if !real_libc::has_tcp_ended_within(fd, TCP_END_TIMEOUT_MS) {
                self.reset_stream(fd);
            }
            return false;
        }
        dir.state.store(state::RDMA, Ordering::Release);
        self.delays_next_reset.store(true, Ordering::SeqCst);
        true
    }

    /// Continues the change of this side's direction in a call that receives. The last step is left to a call that
    /// sends: a peer that has closed does not take it, and its bytes must still be read. The caller holds `rx`.
    pub(crate) fn advance_change_to_rdma_in_receive(&self, link: &PageAndSide) {
        let dir = link.outgoing_words();
        if link.remote_peer.is_some() && dir.state.load(Ordering::Relaxed) == state::TCP {
            let mut tx = lock(&self.tx);
            let _held = dir.lock_sending();
            if dir.state.load(Ordering::Relaxed) == state::TCP {
                advance_hello(&mut tx, link);
            }
        }
    }

    /// Demotes the outgoing direction, which asks the peer to demote the other one. The caller holds `tx`.
    pub(crate) fn demote_between_hosts(
        &self,
        fd: c_int,
        tx: &mut Tx,
        link: &PageAndSide,
        reason: NotRdmaReason,
    ) {
        let (dir, incoming) = (link.outgoing_words(), link.incoming_words());
        let _held = dir.lock_sending();
        if dir.state.load(Ordering::Relaxed) == state::RDMA
            && reason != NotRdmaReason::Unsupported
            && real_libc::has_tcp_ended(fd)
        {
            // A record to a peer that has closed would be answered by a reset. The next send demotes.
            tx.sender = None;
            return;
        }
        if dir.state.load(Ordering::Relaxed) < state::DEMOTED {
            set_not_rdma_reason(link, reason);
        }
        self.switch_path_to_other_host_if_due(fd, tx, link);
        match dir.state.load(Ordering::Relaxed) {
            state::RDMA => self.demote_outgoing(fd, &dir),
            state::TCP => {
                dir.state.store(state::TCP_ONLY, Ordering::Release);
                let own = link.page.side_words(link.own_side);
                let before = own.setup_stage.swap(stage::TCP_OR_CLOSED, Ordering::AcqRel);
                if before < stage::HELLO_SENT {
                    // The peer never had the hello without which it does not change to RDMA.
                    incoming.state.store(state::TCP_ONLY, Ordering::Release);
                }
                if let Some(remote) = &link.remote_peer {
                    peer_lookup::send_own_state_to_peer(
                        remote,
                        &own,
                        peer_lookup::AnswerRequest::NotWanted,
                    );
                }
            }
            _ => {}
        }
        if incoming.state.load(Ordering::Acquire) >= state::DEMOTED {
            tx.sender = None;
        }
    }

    /// Waits until the peer sends plain bytes, for a program that will read by other means. Returns false if the peer
    /// does not within `limit`.
    pub(crate) fn wait_for_plain_bytes(&self, fd: c_int, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        loop {
            {
                let rx = lock(&self.rx);
                let Some(link) = &rx.page_and_side else {
                    return true;
                };
                let Some(remote) = &link.remote_peer else {
                    return true;
                };
                let dir = link.incoming_words();
                let _held = dir.lock_receiving();
                if dir.state.load(Ordering::Acquire) != state::RDMA
                    || are_tcp_bytes_unread(&dir)
                    || self.take_records(fd, link, remote, rx.ring.as_ref())
                        != NoMoreRecordsReason::WouldBlock
                {
                    return true;
                }
                if dir.state.load(Ordering::Acquire) != state::RDMA {
                    return true;
                }
            }
            if Instant::now() >= end {
                return false;
            }
            if real_libc::poll_one(fd, libc::POLLIN, DEMOTION_CHECK_MS).0 > 0 {
                // Wake bytes that a sleeper needs stay where they are.
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// Asks the peer for a wake byte, unless it has the request. Returns when the peer's host has it. If the host
    /// cannot be reached, no further byte comes by RDMA.
    pub(crate) fn ask_other_host_for_wake(&self, remote: &RemotePeer, wait: AwaitedEvent) {
        let mut tx = lock(&self.tx);
        if !remote.must_ask_for_wake(wait) {
            return;
        }
        let fd = remote.setup_fd.load(Ordering::Relaxed);
        let Some(sender) = &mut tx.sender else { return };
        let asked = match sender.poll_hello_state() {
            // The peer sends nothing by RDMA before the hello, which asks for a wake byte.
            Ok(HelloState::NotSent) => return,
            Ok(_) => {
                // The wake byte may come, and be taken by another thread, before the WRITE completes.
                let word = (wait.mailbox_word_number(), remote.begin_wake_request(wait));
                sender.write_words(&[word], || real_libc::has_tcp_ended(fd))
            }
            Err(err) => Err(err),
        };
        if asked.is_err() {
            tx.sender = None;
        }
    }

    /// Gives up RDMA if the TCP connection of a sender that waits for room has ended.
    pub(crate) fn end_rdma_or_ask_for_room_wake(&self, remote: &RemotePeer) {
        if real_libc::has_tcp_ended(remote.setup_fd.load(Ordering::Relaxed)) {
            lock(&self.tx).sender = None;
        } else {
            self.ask_other_host_for_wake(remote, AwaitedEvent::Room);
        }
    }

    /// Tells the peer how many bytes have been taken, if it may lack room. The caller holds `rx`.
    ///
    /// A peer without room knows of all but less than half a ring of the bytes taken. So more than half a ring is still
    /// unread, and a later call tells the rest.
    pub(crate) fn tell_peer_taken_bytes(
        &self,
        fd: c_int,
        link: &PageAndSide,
        taken: u64,
        unread: usize,
    ) {
        let Some(remote) = &link.remote_peer else {
            return;
        };
        let dir = link.incoming_words();
        let untold = taken.wrapping_sub(remote.taken_bytes_known_to_peer.load(Ordering::Relaxed));
        let is_roomy = unread <= RING_BYTES / 2;
        let asks = is_roomy && dir.sender_sleeps.load(Ordering::SeqCst) != 0;
        if untold >= RING_BYTES as u64 / 2 || asks && untold > 0 {
            let mut tx = lock(&self.tx);
            let word = [(mailbox::RDMA_BYTES_TAKEN, taken)];
            let told = tx
                .sender
                .as_mut()
                .map(|sender| sender.write_words(&word, || real_libc::has_tcp_ended(fd)));
            match told {
                Some(Ok(())) => remote
                    .taken_bytes_known_to_peer
                    .store(taken, Ordering::Relaxed),
                Some(Err(_)) => tx.sender = None,
                None => {}
            }
        }
    }

    /// Takes what the TCP stream has after the ring is empty: records, or after a demotion the bytes that have also
    /// come by RDMA. The caller holds `rx` and the receiving lock, and `now` is the state that it found.
    pub(crate) fn take_records_and_check_end(
        &self,
        fd: c_int,
        link: &PageAndSide,
        ring: Option<&Ring>,
        now: u64,
    ) -> ReceiveAttempt {
        let Some(remote) = &link.remote_peer else {
            return ReceiveAttempt::Retry;
        };
        let end = if now == state::DEMOTED {
            drop_repeated_bytes(fd, &link.incoming_words())
        } else {
            Some(self.take_records(fd, link, remote, ring))
        };
        match end {
            Some(NoMoreRecordsReason::WouldBlock) => ReceiveAttempt::WouldBlock,
            Some(NoMoreRecordsReason::EndOfStream) => ReceiveAttempt::EndOfStream,
            Some(NoMoreRecordsReason::Failed(errno)) => ReceiveAttempt::Failed(errno),
            None => {
                // A direction that still has to be demoted keeps the connection from being plain.
                if link.outgoing_words().state.load(Ordering::Acquire) >= state::DEMOTED {
                    self.set_tcp_after_rdma_data_drained();
                }
                ReceiveAttempt::Tcp
            }
        }
    }

    /// Takes records, or repeated bytes, unless a sleeper needs them. Keeps an error for the program. The caller holds
    /// `rx` and the receiving lock.
    pub(crate) fn take_records_unless_needed(
        &self,
        fd: c_int,
        link: &PageAndSide,
        remote: &RemotePeer,
        ring: Option<&Ring>,
    ) {
        let dir = link.incoming_words();
        // The state first: another thread may find the peer's change, which says how many plain bytes precede it.
        let now = dir.state.load(Ordering::Acquire);
        if are_tcp_bytes_unread(&dir) {
            return;
        }
        let mut end = None;
        if now == state::RDMA {
            end = Some(self.take_records(fd, link, remote, ring));
        }
        if dir.state.load(Ordering::Acquire) == state::DEMOTED {
            end = drop_repeated_bytes(fd, &dir);
        }
        if let Some(NoMoreRecordsReason::Failed(errno)) = end {
            real_libc::set_errno(errno);
            self.keep_error();
        }
    }

    /// Takes the records of a stream that is about to be closed: the kernel would reset the connection if they were
    /// left. Plain bytes that follow are those of another process that has the descriptor.
    pub(crate) fn take_last_records(&self, fd: c_int, link: &PageAndSide, ring: Option<&Ring>) {
        let Some(remote) = &link.remote_peer else {
            return;
        };
        let dir = link.incoming_words();
        let _held = dir.lock_receiving();
        self.take_records_unless_needed(fd, link, remote, ring);
    }

    fn take_records(
        &self,
        fd: c_int,
        link: &PageAndSide,
        remote: &RemotePeer,
        ring: Option<&Ring>,
    ) -> NoMoreRecordsReason {
        let dir = link.incoming_words();
        let mut bytes = [0; 64];
        loop {
            let there = match usize::try_from(real_libc::peek_bytes(fd, &mut bytes)) {
                Ok(0) => return NoMoreRecordsReason::EndOfStream,
                Ok(n) => n,
                Err(_) if real_libc::errno() == libc::EINTR => continue,
                Err(_) => return NoMoreRecordsReason::from_errno(),
            };
            match TcpRecord::parse_first(bytes.get(..there).unwrap_or_default()) {
                TcpRecord::Wakes(count) => {
                    remote.count_taken_wakes(count as u64);
                    if !self.may_take_wakes_of_other_host(link, remote, ring) {
                        return NoMoreRecordsReason::WouldBlock;
                    }
                    let taken = u64::try_from(real_libc::discard_stream_bytes(fd, count as u64))
                        .unwrap_or(0);
                    dir.wake_bytes_sent.fetch_add(taken, Ordering::Relaxed);
                    dir.wake_bytes_taken.fetch_add(taken, Ordering::Relaxed);
                    self.wake_local_room_waiters();
                }
                TcpRecord::Demoted(sent) => {
                    real_libc::discard_stream_bytes(fd, DEMOTED_RECORD_BYTES as u64);
                    self.on_demotion_by_peer(fd, link, sent);
                    return NoMoreRecordsReason::WouldBlock;
                }
                TcpRecord::Incomplete => return NoMoreRecordsReason::WouldBlock,
                TcpRecord::Invalid => {
                    real_libc::reset_connection(fd);
                    return NoMoreRecordsReason::Failed(libc::ECONNRESET);
                }
            }
        }
    }

    /// Returns true if the caller may consume the wake bytes that it has peeked at: no other thread sleeps, or no data
    /// is left in the ring. If a thread sleeps, the peer is asked for the next wake byte first.
    fn may_take_wakes_of_other_host(
        &self,
        link: &PageAndSide,
        remote: &RemotePeer,
        ring: Option<&Ring>,
    ) -> bool {
        if self.data_sleeper_count.load(Ordering::SeqCst) == 0 {
            return true;
        }
        self.ask_other_host_for_wake(remote, AwaitedEvent::Data);
        !has_data(ring, link)
    }

    /// Records that the peer sends plain bytes from here on, and demotes the other direction.
    fn on_demotion_by_peer(&self, fd: c_int, link: &PageAndSide, sent: u64) {
        let (incoming, dir) = (link.incoming_words(), link.outgoing_words());
        incoming.rdma_bytes_sent.store(sent, Ordering::Release);
        incoming.state.store(state::DEMOTED, Ordering::Release);
        let mut tx = lock(&self.tx);
        let _held = dir.lock_sending();
        if link.page.not_rdma_reason().load(Ordering::Relaxed) == NotRdmaReason::None as u64 {
            set_not_rdma_reason(link, NotRdmaReason::DemotedByOtherEnd);
        }
        match dir.state.load(Ordering::Relaxed) {
            state::TCP => dir.state.store(state::TCP_ONLY, Ordering::Release),
            // A record to a peer that has closed would be answered by a reset. The next send demotes.
            state::RDMA if !real_libc::has_tcp_ended(fd) => self.demote_outgoing(fd, &dir),
            _ => {}
        }
        tx.sender = None;
    }

    /// Sends a wake byte, if the receiver wants one after this send. The caller holds the sending lock, and the
    /// receiver's host has the bytes.
    fn wake_receiver_if_wanted(&self, dir: &DirectionWords<'_>, fd: c_int) {
        fence(Ordering::SeqCst);
        let one_less = |wakes: u64| wakes.checked_sub(1);
        let (set, fetch) = (Ordering::SeqCst, Ordering::SeqCst);
        if dir
            .receiver_sleeps
            .fetch_update(set, fetch, one_less)
            .is_ok()
            && !self.send_wake_byte(dir.wake_bytes_sent, fd)
        {
            // The receiver has not taken the bytes that fill the stream, but counts on as many wake bytes.
            dir.receiver_sleeps.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Sends the record after which plain bytes follow. The caller holds the sending lock.
    fn demote_outgoing(&self, fd: c_int, dir: &DirectionWords<'_>) {
        let before = real_libc::errno();
        let record = TcpRecord::encode_demoted(dir.rdma_bytes_sent.load(Ordering::Relaxed));
        if !real_libc::send_all(fd, &record, RECORD_ROOM_TIMEOUT_MS) {
            self.keep_send_error();
            if !real_libc::has_tcp_ended(fd) {
                // The next bytes would be taken for a record.
                real_libc::reset_connection(fd);
            }
        }
        dir.state.store(state::DEMOTED, Ordering::Release);
        real_libc::set_errno(before);
    }
}

/// Sends the first WRITE when the peer is ready, without waiting. Returns true if the peer has it. The caller holds the
/// sending lock.
fn advance_hello(tx: &mut Tx, link: &PageAndSide) -> bool {
    let (Some(sender), Some(remote)) = (&mut tx.sender, &link.remote_peer) else {
        return false;
    };
    let dir = link.outgoing_words();
    let own = link.page.side_words(link.own_side);
    match link.peer_stage() {
        stage::READY => {}
        stage::TCP_OR_CLOSED => {
            dir.state.store(state::TCP_ONLY, Ordering::Release);
            return false;
        }
        _ => {
            if remote.is_time_to_look_up(true) {
                peer_lookup::send_own_state_to_peer(
                    remote,
                    &own,
                    peer_lookup::AnswerRequest::Wanted,
                );
            }
            return false;
        }
    }
    let hello = sender.poll_hello_state().and_then(|hello| {
        if hello == HelloState::NotSent {
            own.setup_stage.store(stage::HELLO_SENT, Ordering::Release);
            sender.send_hello(&HELLO_WORDS)?;
        }
        Ok(hello)
    });
    match hello {
        Err(_) => {
            tx.sender = None;
            set_not_rdma_reason(link, NotRdmaReason::WriteFailed);
            dir.state.store(state::TCP_ONLY, Ordering::Release);
            false
        }
        Ok(hello) => hello == HelloState::ReceivedByPeer,
    }
}

/// The reason why no further record is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NoMoreRecordsReason {
    WouldBlock,
    EndOfStream,
    Failed(c_int),
}

impl NoMoreRecordsReason {
    fn from_errno() -> Self {
        match real_libc::errno() {
            libc::EAGAIN | libc::EINTR => Self::WouldBlock,
            errno => Self::Failed(errno),
        }
    }
}

/// Returns true if the next record says that the peer has demoted its direction.
fn is_demoted_by_peer(fd: c_int, link: &PageAndSide) -> bool {
    let dir = link.incoming_words();
    if dir.state.load(Ordering::Acquire) != state::RDMA || are_tcp_bytes_unread(&dir) {
        return false;
    }
    let mut bytes = [0; 64];
    let there = usize::try_from(real_libc::peek_bytes(fd, &mut bytes)).unwrap_or(0);
    let mut records = bytes.get(..there).unwrap_or_default();
    if let Some(TcpRecord::Wakes(count)) = records.first().map(|_| TcpRecord::parse_first(records))
    {
        records = records.get(count..).unwrap_or_default();
    }
    matches!(
        records.first().map(|_| TcpRecord::parse_first(records)),
        Some(TcpRecord::Demoted(_))
    )
}

fn are_tcp_bytes_unread(dir: &DirectionWords<'_>) -> bool {
    dir.tcp_bytes_received.load(Ordering::Relaxed)
        < dir.tcp_bytes_before_rdma.load(Ordering::Acquire)
}

fn set_not_rdma_reason(link: &PageAndSide, reason: NotRdmaReason) {
    link.page
        .not_rdma_reason()
        .store(reason as u64, Ordering::Relaxed);
}

/// Drops plain bytes that the peer sent again because it did not know of their arrival. Returns `None` after the last.
fn drop_repeated_bytes(fd: c_int, dir: &DirectionWords<'_>) -> Option<NoMoreRecordsReason> {
    loop {
        let left = repeated_plain_bytes(dir);
        if left == 0 {
            return None;
        }
        match u64::try_from(real_libc::discard_stream_bytes(fd, left)) {
            Ok(0) => return Some(NoMoreRecordsReason::EndOfStream),
            Ok(n) => dir.repeated_bytes_dropped.fetch_add(n, Ordering::Relaxed),
            Err(_) => return Some(NoMoreRecordsReason::from_errno()),
        };
    }
}
