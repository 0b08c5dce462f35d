//! A network that loses, delays, reorders, duplicates, corrupts and ECN-marks packets.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::net::Ipv4Addr;

use roce::icrc::{IcrcFields, IpAddressPair, icrc, split_off_icrc};

use super::rng::Rng;

/// Latency between two NICs.
const LATENCY_NS: u64 = 3_000;
/// Largest delay of a reordered packet; `DELAY_NS`: that of a delayed packet.
const REORDER_NS: u32 = 5_000;
const DELAY_NS: u32 = 400_000;

/// The next event of the simulation.
pub(crate) enum Event {
    Arrival(Arrival),
    /// A queue pair's timer expires.
    Timer(usize),
}

/// A packet on its way, from the BTH through the ICRC.
pub(crate) struct Arrival {
    pub(crate) bytes: Vec<u8>,
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) is_ecn_marked: bool,
}

struct Queued {
    at_ns: u64,
    order: u64,
    event: Event,
}

impl PartialEq for Queued {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Queued {}

impl PartialOrd for Queued {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Queued {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at_ns, self.order).cmp(&(other.at_ns, other.order))
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) sent: u64,
    pub(crate) lost: u64,
    pub(crate) delayed: u64,
    pub(crate) reordered: u64,
    pub(crate) duplicated: u64,
    pub(crate) corrupted: u64,
    pub(crate) marked: u64,
}

/// The packets in flight, and the timers.
pub(crate) struct Network {
    rng: Rng,
    fault: f64,
    pub(crate) counts: Counts,
    /// Packets without a fault, in the order of their arrival.
    straight: VecDeque<Queued>,
    rest: BinaryHeap<Reverse<Queued>>,
    order: u64,
    spare: Vec<Vec<u8>>,
}

impl Network {
    pub(crate) fn new(seed: u64, fault: f64) -> Self {
        Self {
            rng: Rng::new(seed),
            fault,
            counts: Counts::default(),
            straight: VecDeque::new(),
            rest: BinaryHeap::new(),
            order: 0,
            spare: Vec::new(),
        }
    }

    pub(crate) fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    pub(crate) fn recycle(&mut self, mut buffer: Vec<u8>) {
        buffer.clear();
        self.spare.push(buffer);
    }

    pub(crate) fn set_timer(&mut self, at_ns: u64, queue_pair: usize) {
        self.push_rest(at_ns, Event::Timer(queue_pair));
    }

    fn push_rest(&mut self, at_ns: u64, event: Event) {
        self.order += 1;
        self.rest.push(Reverse(Queued {
            at_ns,
            order: self.order,
            event,
        }));
    }

    /// Sends a packet; `bytes` range from the BTH through the pad.
    pub(crate) fn send(&mut self, now_ns: u64, from: usize, to: usize, mut bytes: Vec<u8>) {
        self.counts.sent += 1;
        let checksum = icrc(&frame(from, to), &bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        let fault = self.fault;
        if self.rng.chance(fault) {
            self.counts.lost += 1;
            self.recycle(bytes);
            return;
        }
        if self.rng.chance(fault) {
            self.counts.corrupted += 1;
            for _ in 0..=self.rng.below(3) {
                let at = self.rng.index(bytes.len());
                bytes[at] ^= 1 << self.rng.below(8);
            }
        }
        let is_ecn_marked = self.rng.chance(fault);
        self.counts.marked += u64::from(is_ecn_marked);
        if self.rng.chance(fault) {
            self.counts.duplicated += 1;
            let mut copy = self.buffer();
            copy.extend_from_slice(&bytes);
            let late = u64::from(self.rng.below(DELAY_NS));
            let arrival = Arrival {
                bytes: copy,
                from,
                to,
                is_ecn_marked,
            };
            self.push_rest(now_ns + LATENCY_NS + late, Event::Arrival(arrival));
        }
        let mut late = 0;
        if self.rng.chance(fault) {
            self.counts.reordered += 1;
            late += 1 + u64::from(self.rng.below(REORDER_NS));
        }
        if self.rng.chance(fault) {
            self.counts.delayed += 1;
            late += 1 + u64::from(self.rng.below(DELAY_NS));
        }
        let event = Event::Arrival(Arrival {
            bytes,
            from,
            to,
            is_ecn_marked,
        });
        let at_ns = now_ns + LATENCY_NS + late;
        if late > 0 {
            self.push_rest(at_ns, event);
        } else {
            self.order += 1;
            self.straight.push_back(Queued {
                at_ns,
                order: self.order,
                event,
            });
        }
    }

    /// Returns the next event and its time.
    pub(crate) fn next(&mut self) -> Option<(u64, Event)> {
        let is_straight = match (self.straight.front(), self.rest.peek()) {
            (Some(straight), Some(Reverse(rest))) => straight < rest,
            (straight, _) => straight.is_some(),
        };
        let queued = if is_straight {
            self.straight.pop_front()
        } else {
            self.rest.pop().map(|Reverse(queued)| queued)
        };
        queued.map(|queued| (queued.at_ns, queued.event))
    }
}

/// Returns the headers in front of the BTH for packets between two NICs.
fn frame(from: usize, to: usize) -> IcrcFields {
    #[allow(clippy::cast_possible_truncation)] // at most 8 NICs
    let address = |nic: usize| Ipv4Addr::new(10, 0, 0, nic as u8 + 1);
    IcrcFields {
        addresses: IpAddressPair::V4 {
            src: address(from),
            dst: address(to),
        },
        src_port: 0xc000,
        dst_port: roce::UDP_PORT,
        identification: 0,
    }
}

/// Returns the packet without its ICRC; `None` if the ICRC is wrong.
pub(crate) fn checked(arrival: &Arrival) -> Option<&[u8]> {
    let (transport, received) = split_off_icrc(&arrival.bytes)?;
    (icrc(&frame(arrival.from, arrival.to), transport) == received).then_some(transport)
}
