//! The peer of a connection between hosts: the mailbox that it writes, and the requests that it has.
//!
//! Each end has a page of its own. The words that only the peer knows arrive by RDMA WRITE in the first page of the
//! ring's slot, the mailbox. The TCP stream carries records once the direction has changed to RDMA.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use crate::nic::lock;
use crate::ring::Ring;

/// The words of the mailbox: their numbers in the slot. Word 0 is the number of bytes in the ring.
pub(crate) mod mailbox {
    /// Nonzero once the peer's direction is on RDMA.
    pub(crate) const PEER_SENDS_BY_RDMA: usize = 8;
    /// Bytes that the peer sent by TCP before its first byte by RDMA.
    pub(crate) const PEER_TCP_BYTES_BEFORE_RDMA: usize = 9;
    /// Number of sends after which the peer wants a wake byte, because it may sleep until data arrive.
    pub(crate) const WAKES_FOR_DATA: usize = 16;
    /// Nonzero if the peer sleeps until this side's ring has room.
    pub(crate) const SENDER_SLEEPS: usize = 24;
    /// Bytes that the peer has taken out of its ring.
    pub(crate) const RDMA_BYTES_TAKEN: usize = 32;
    /// Nonzero once a WRITE of the peer has arrived.
    pub(crate) const HELLO: usize = 40;
}

/// A record of the TCP stream while its direction is on RDMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TcpRecord {
    /// So many wake bytes.
    Wakes(usize),
    /// Plain bytes follow; the sender has sent so many bytes by RDMA. Bytes past these follow again.
    Demoted(u64),
    /// More bytes of the record must arrive first.
    Incomplete,
    /// No peer sends this.
    Invalid,
}

/// Bytes of the record that announces plain bytes.
pub(crate) const DEMOTED_RECORD_BYTES: usize = 9;
const WAKE_RECORD_TYPE: u8 = 0;
const DEMOTED_RECORD_TYPE: u8 = 1;

impl TcpRecord {
    /// Reads the first record of the stream. `bytes` is not empty.
    pub(crate) fn parse_first(bytes: &[u8]) -> Self {
        let wakes = bytes
            .iter()
            .take_while(|byte| **byte == WAKE_RECORD_TYPE)
            .count();
        match (wakes, bytes.first(), bytes.get(1..DEMOTED_RECORD_BYTES)) {
            (1.., ..) => Self::Wakes(wakes),
            (_, Some(&DEMOTED_RECORD_TYPE), Some(count)) => {
                let mut eight = [0; 8];
                eight.copy_from_slice(count);
                Self::Demoted(u64::from_be_bytes(eight))
            }
            (_, None | Some(&DEMOTED_RECORD_TYPE), _) => Self::Incomplete,
            _ => Self::Invalid,
        }
    }

    /// Returns the record that announces plain bytes.
    pub(crate) fn encode_demoted(rdma_bytes_sent: u64) -> [u8; DEMOTED_RECORD_BYTES] {
        let mut bytes = [DEMOTED_RECORD_TYPE; DEMOTED_RECORD_BYTES];
        bytes[1..].copy_from_slice(&rdma_bytes_sent.to_be_bytes());
        bytes
    }
}

/// The event for which a thread sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AwaitedEvent {
    Data,
    Room,
}

impl AwaitedEvent {
    /// Returns the word of the peer's mailbox that asks for the wake byte.
    pub(crate) fn mailbox_word_number(self) -> usize {
        match self {
            Self::Data => mailbox::WAKES_FOR_DATA,
            Self::Room => mailbox::SENDER_SLEEPS,
        }
    }
}

/// The peer of a connection between hosts, as this process knows it.
pub(crate) struct RemotePeer {
    pub(crate) own_addr: SocketAddr,
    pub(crate) peer_addr: SocketAddr,
    mailbox: OnceLock<Ring>,
    /// The descriptor at which the connection was set up. Another one may have this number by now: it only shortens
    /// waits.
    pub(crate) setup_fd: AtomicI32,
    /// At most the number of wake bytes that the peer will still send for data, or that have not been taken.
    max_pending_data_wakes: AtomicU64,
    /// Number of requests for one wake byte that follow before one for several.
    single_requests_left: AtomicU64,
    /// True if the peer has the request for a wake byte when there is room, or its wake byte has not been taken.
    asked_for_room: AtomicBool,
    last_room_request_time: Mutex<Option<Instant>>,
    /// The number of taken bytes that the peer knows.
    pub(crate) taken_bytes_known_to_peer: AtomicU64,
    lookup_schedule: Mutex<LookupSchedule>,
}

/// When the peer is asked for its side of the connection.
struct LookupSchedule {
    next_lookup: Option<Instant>,
    pause: Duration,
    /// Number of questions that are left while the peer is unknown.
    questions_left: u32,
}

/// Number of datagrams to a peer of which nothing is known.
const MAX_QUESTIONS_TO_UNKNOWN_PEER: u32 = 16;

/// The longest pause between two questions.
const MAX_LOOKUP_PAUSE: Duration = Duration::from_millis(256);
/// The time after which a request for room is repeated, to notice a peer that has vanished.
const ROOM_REQUEST_REPEAT_INTERVAL: Duration = Duration::from_secs(1);
/// Number of wake bytes that a request asks for. A request costs a round trip, and a wake byte that nobody needs a
/// system call at each end.
pub(crate) const WAKES_PER_REQUEST: u64 = 32;
/// Number of wake bytes that lie in the stream if this side does not sleep.
const UNNEEDED_WAKES_BEFORE_SINGLE_REQUESTS: u64 = 8;
/// Number of requests for one wake byte after a time without sleeps.
const SINGLE_WAKE_REQUESTS: u64 = 16;

impl RemotePeer {
    pub(crate) fn new(own: SocketAddr, peer: SocketAddr, fd: i32) -> Self {
        Self {
            own_addr: own,
            peer_addr: peer,
            mailbox: OnceLock::new(),
            setup_fd: AtomicI32::new(fd),
            // The first WRITE to the peer, before which it sends nothing by RDMA, asks for these.
            max_pending_data_wakes: AtomicU64::new(WAKES_PER_REQUEST),
            single_requests_left: AtomicU64::new(0),
            asked_for_room: AtomicBool::new(false),
            last_room_request_time: Mutex::default(),
            taken_bytes_known_to_peer: AtomicU64::new(0),
            lookup_schedule: Mutex::new(LookupSchedule {
                next_lookup: None,
                pause: Duration::from_millis(1),
                questions_left: MAX_QUESTIONS_TO_UNKNOWN_PEER,
            }),
        }
    }

    /// Sets the slot in which the peer's words arrive.
    pub(crate) fn set_mailbox(&self, ring: Ring) {
        let _ = self.mailbox.set(ring);
    }

    /// Returns a word of the mailbox; `None` before there is one.
    #[inline]
    pub(crate) fn mailbox_word(&self, number: usize) -> Option<&AtomicU64> {
        Some(self.mailbox.get()?.word_before_ring(number))
    }

    /// Returns a word of the mailbox, which is 0 before there is one.
    pub(crate) fn load_mailbox_word(&self, number: usize) -> u64 {
        self.mailbox_word(number)
            .map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Returns true if the peer must be asked for a wake byte.
    pub(crate) fn must_ask_for_wake(&self, wait: AwaitedEvent) -> bool {
        match wait {
            AwaitedEvent::Data => self.max_pending_data_wakes.load(Ordering::SeqCst) == 0,
            AwaitedEvent::Room => {
                let last = *lock(&self.last_room_request_time);
                let is_new = last.is_some_and(|last| last.elapsed() < ROOM_REQUEST_REPEAT_INTERVAL);
                !is_new || !self.asked_for_room.load(Ordering::SeqCst)
            }
        }
    }

    /// Records a request that the peer is about to get. Returns the word for its mailbox.
    pub(crate) fn begin_wake_request(&self, wait: AwaitedEvent) -> u64 {
        match wait {
            AwaitedEvent::Data => {
                let single = |left: u64| left.checked_sub(1);
                let (set, fetch) = (Ordering::SeqCst, Ordering::SeqCst);
                let wakes = match self.single_requests_left.fetch_update(set, fetch, single) {
                    Ok(_) => 1,
                    Err(_) => WAKES_PER_REQUEST,
                };
                self.max_pending_data_wakes.store(wakes, Ordering::SeqCst);
                wakes
            }
            AwaitedEvent::Room => {
                *lock(&self.last_room_request_time) = Some(Instant::now());
                self.asked_for_room.store(true, Ordering::SeqCst);
                1
            }
        }
    }

    /// Records that wake bytes are about to be taken: the peer may have to be asked again before the next sleep.
    pub(crate) fn count_taken_wakes(&self, count: u64) {
        if count >= UNNEEDED_WAKES_BEFORE_SINGLE_REQUESTS {
            // This side finds data without sleeping.
            self.single_requests_left
                .store(SINGLE_WAKE_REQUESTS, Ordering::SeqCst);
        }
        let left = |wakes: u64| Some(wakes.saturating_sub(count));
        let (set, fetch) = (Ordering::SeqCst, Ordering::SeqCst);
        let _ = self.max_pending_data_wakes.fetch_update(set, fetch, left);
        self.asked_for_room.store(false, Ordering::SeqCst);
    }

    /// Returns true if it is time to ask the peer's host for the other side, at growing intervals. A peer without the
    /// library, which never answers, is not asked for long.
    pub(crate) fn is_time_to_look_up(&self, is_peer_known: bool) -> bool {
        let mut lookup = lock(&self.lookup_schedule);
        let now = Instant::now();
        if lookup.next_lookup.is_some_and(|next| now < next)
            || !is_peer_known && lookup.questions_left == 0
        {
            return false;
        }
        lookup.questions_left = lookup.questions_left.saturating_sub(1);
        lookup.next_lookup = Some(now + lookup.pause);
        lookup.pause = (lookup.pause * 2).min(MAX_LOOKUP_PAUSE);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_in_order() {
        let mut stream = vec![0, 0];
        stream.extend(TcpRecord::encode_demoted(0x0102_0304));
        assert_eq!(TcpRecord::parse_first(&stream), TcpRecord::Wakes(2));
        assert_eq!(
            TcpRecord::parse_first(&stream[2..]),
            TcpRecord::Demoted(0x0102_0304)
        );
        assert_eq!(
            TcpRecord::parse_first(&stream[2..10]),
            TcpRecord::Incomplete
        );
        assert_eq!(TcpRecord::parse_first(b"plain"), TcpRecord::Invalid);
    }

    #[test]
    fn a_taken_wake_byte_makes_the_next_sleeper_ask() {
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let remote = RemotePeer::new(address, address, -1);
        assert!(
            !remote.must_ask_for_wake(AwaitedEvent::Data)
                && remote.must_ask_for_wake(AwaitedEvent::Room)
        );
        assert_eq!(remote.begin_wake_request(AwaitedEvent::Room), 1);
        assert!(!remote.must_ask_for_wake(AwaitedEvent::Room));
        remote.count_taken_wakes(1);
        assert!(
            !remote.must_ask_for_wake(AwaitedEvent::Data)
                && remote.must_ask_for_wake(AwaitedEvent::Room)
        );
        for _ in 1..WAKES_PER_REQUEST {
            remote.count_taken_wakes(1);
        }
        assert!(
            remote.must_ask_for_wake(AwaitedEvent::Data),
            "the peer sends no more"
        );
        assert_eq!(
            remote.begin_wake_request(AwaitedEvent::Data),
            WAKES_PER_REQUEST
        );
        assert!(!remote.must_ask_for_wake(AwaitedEvent::Data));
    }

    #[test]
    fn a_side_that_does_not_sleep_asks_for_one_wake_byte_at_a_time() {
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let remote = RemotePeer::new(address, address, -1);
        remote.count_taken_wakes(UNNEEDED_WAKES_BEFORE_SINGLE_REQUESTS);
        for _ in 0..SINGLE_WAKE_REQUESTS {
            assert_eq!(remote.begin_wake_request(AwaitedEvent::Data), 1);
        }
        assert_eq!(
            remote.begin_wake_request(AwaitedEvent::Data),
            WAKES_PER_REQUEST
        );
    }

    #[test]
    fn an_unknown_peer_is_not_asked_for_long() {
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let remote = RemotePeer::new(address, address, -1);
        let asks = |is_peer_known| {
            let is_time = remote.is_time_to_look_up(is_peer_known);
            lock(&remote.lookup_schedule).next_lookup = None;
            is_time
        };
        for _ in 0..MAX_QUESTIONS_TO_UNKNOWN_PEER {
            assert!(asks(false));
        }
        assert!(!asks(false) && asks(true));
        assert!(remote.is_time_to_look_up(true));
        let again = (0..1000)
            .filter(|_| remote.is_time_to_look_up(true))
            .count();
        assert!(again < 1000, "each call looks up");
    }
}
