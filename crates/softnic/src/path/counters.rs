//! Counters of packets and of what happens to them.
//!
//! A process counts its own packets, those of each port apart. [`PacketCounters::publish`] adds new counts to the files
//! of the ports ([`super::hw_counters`]).

use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use link::Endpoint;
use roce::counts::StateMachineCounters;

use super::hw_counters::PortCounterFiles;
use crate::device::{MAX_DEVICES, MAX_PORTS};
use crate::lock::lock;

macro_rules! counters {
    ($($(#[$doc:meta])* $counter:ident = $name:literal,)*) => {
        /// The counters of the packets of a port.
        ///
        /// A name is that of Soft-RoCE (`rxe_counter_name` in `linux:drivers/infiniband/sw/rxe/rxe_hw_counters.c`) or
        /// of mlx5 if one of them counts the same, else a name in their style. `ack_deferred` of Soft-RoCE is missing:
        /// no acknowledgement waits for a task here.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[expect(dead_code, reason = "counters of the sockets are found by their names")]
        pub(crate) enum Counter {
            $($(#[$doc])* $counter,)*
        }

        /// The names of all counters, in the order of [`Counter`].
        pub(crate) const NAMES: &[&str] = &[$($name,)*];

        const COUNT: usize = NAMES.len();
    };
}

counters! {
    /// Packets that the kernel took.
    Sent = "sent_pkts",
    /// Packets that have arrived.
    Received = "rcvd_pkts",
    /// Requests that had been executed before.
    DuplicateRequest = "duplicate_request",
    /// Requests that arrived while an earlier one was missing.
    OutOfSequence = "out_of_seq_request",
    /// RNR NAKs that have arrived.
    RnrReceived = "rcvd_rnr_err",
    /// RNR NAKs that were sent.
    RnrSent = "send_rnr_err",
    /// NAKs that have arrived and ask for a missing packet.
    SequenceErrorReceived = "rcvd_seq_err",
    /// Queue pairs that have used up their retries.
    RetryExceeded = "retry_exceeded_err",
    /// Queue pairs that have used up their RNR retries.
    RnrRetryExceeded = "retry_rnr_exceeded_err",
    /// Number of times that unacknowledged requests were sent again.
    Retry = "completer_retry_err",
    /// Packets that the kernel refused.
    SendError = "send_err",
    /// Number of times that the port went down.
    LinkDowned = "link_downed",
    /// SENDs that are done.
    Sends = "rdma_sends",
    /// Receive work requests that packets completed.
    Receives = "rdma_recvs",
    /// Congestion notifications that were sent.
    CnpSent = "np_cnp_sent",
    /// Packets that a switch had marked.
    EcnMarked = "np_ecn_marked_roce_packets",
    /// Congestion notifications that were followed.
    CnpHandled = "rp_cnp_handled",
    /// Requests that were refused because they had no right to the memory that they name.
    RemoteAccess = "resp_remote_access_errors",
    /// Dropped: the packet cannot be parsed, or lacks a header that its opcode has.
    Malformed = "rx_malformed",
    /// Dropped: the packet's ICRC is wrong.
    WrongIcrc = "rx_icrc_encapsulated",
    /// Dropped: the queue pair does not exist, or is of another transport service.
    UnknownQueuePair = "rx_unknown_qp",
    /// Dropped: the queue pair is in a state that takes no such packet.
    NotReady = "rx_qp_not_ready",
    /// Dropped: the packet's addresses are not those of the connected peer.
    WrongSource = "rx_wrong_source",
    /// Dropped: the packet's Q_Key is not that of the queue pair.
    WrongQkey = "rx_wrong_qkey",
    /// Dropped: the packet's P_Key is not in the port's table.
    WrongPkey = "rx_wrong_pkey",
    /// Dropped by the kernel: the receive buffer of a socket was full.
    Overrun = "rx_buffer_overrun",
    /// Packets that the kernel gave to the wrong process of the fabric, which forwarded them.
    Forwarded = "forwarded_pkts",
    /// Packets that another process forwarded to this one.
    ForwardReceived = "forward_rcvd_pkts",
    /// Packets that could not be forwarded: the queue of the other process was full.
    ForwardOverrun = "forward_overrun_pkts",
}

impl Counter {
    /// Returns the counter to which a counter of the sockets belongs; `None` for one that only developers need.
    fn index_of_socket_counter(name: &str) -> Option<usize> {
        match name {
            "rcvd_short_pkts" => Some(Self::Malformed as usize),
            "unknown_slot_pkts" => Some(Self::UnknownQueuePair as usize),
            name => NAMES.iter().position(|known| *known == name),
        }
    }
}

/// The reason why an arrived packet is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DropReason {
    /// The packet cannot be parsed, or lacks a header that its opcode has.
    Malformed,
    /// The packet's ICRC is wrong.
    WrongIcrc,
    /// The queue pair does not exist, or is of another transport service.
    UnknownQueuePair,
    /// The queue pair is in a state that takes no such packet.
    NotReady,
    /// The packet's addresses are not those of the connected peer.
    WrongSource,
    /// The packet's Q_Key is not that of the queue pair.
    WrongQkey,
    /// The packet's P_Key is not in the port's table.
    WrongPkey,
}

impl DropReason {
    fn counter(self) -> Counter {
        match self {
            Self::Malformed => Counter::Malformed,
            Self::WrongIcrc => Counter::WrongIcrc,
            Self::UnknownQueuePair => Counter::UnknownQueuePair,
            Self::NotReady => Counter::NotReady,
            Self::WrongSource => Counter::WrongSource,
            Self::WrongQkey => Counter::WrongQkey,
            Self::WrongPkey => Counter::WrongPkey,
        }
    }
}

/// Largest age of the published values: while counts grow, the files are written once in this interval.
pub(crate) const COUNTER_PUBLICATION_INTERVAL: Duration = Duration::from_secs(1);

/// Largest number of ports.
const MAX_PORTS_OF_HOST: usize = MAX_DEVICES as usize * MAX_PORTS as usize;

/// A port of this process, the addresses at which it has packets, and the files for its counts.
pub(crate) struct CountedPort {
    /// Its number ([`PortPlace::host_wide_number`]).
    ///
    /// [`PortPlace::host_wide_number`]: crate::device::PortPlace::host_wide_number
    pub(crate) host_wide_number: u32,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) files: PortCounterFiles,
}

/// Returns the port that has an address; the first if none has it.
pub(crate) fn port_with_address_or_first(
    ports: &[CountedPort],
    ip: IpAddr,
) -> Option<&CountedPort> {
    let has = |port: &&CountedPort| port.addresses.contains(&ip);
    ports.iter().find(has).or(ports.first())
}

/// Counts of this process's packets.
pub(crate) struct PacketCounters {
    /// The counts of each port, by [`port_index`].
    counts_by_port: [[AtomicU64; COUNT]; MAX_PORTS_OF_HOST],
    /// True if the engine knows that there are counts to be published.
    is_engine_called: AtomicBool,
    published_counts: Mutex<PublishedCounts>,
}

/// Returns the index of the port with the number `place`. 0 is the number of no port: the first one counts.
fn port_index(place: u32) -> usize {
    place.saturating_sub(1) as usize % MAX_PORTS_OF_HOST
}

/// The counts of this process that are in the files.
struct PublishedCounts {
    counts: [[u64; COUNT]; MAX_PORTS_OF_HOST],
    published_at: Option<Instant>,
}

impl Default for PacketCounters {
    fn default() -> Self {
        Self {
            counts_by_port: [const { [const { AtomicU64::new(0) }; COUNT] }; MAX_PORTS_OF_HOST],
            is_engine_called: AtomicBool::new(false),
            published_counts: Mutex::new(PublishedCounts {
                counts: [[0; COUNT]; MAX_PORTS_OF_HOST],
                published_at: None,
            }),
        }
    }
}

impl PacketCounters {
    /// Adds to a counter of the port with the number `place`.
    pub(crate) fn add(&self, place: u32, counter: Counter, count: u64) {
        self.counts_by_port[port_index(place)][counter as usize]
            .fetch_add(count, Ordering::Relaxed);
    }

    /// Counts a dropped packet.
    pub(crate) fn count_drop(&self, place: u32, why: DropReason) {
        self.add(place, why.counter(), 1);
    }

    /// Adds the counts of a queue pair, whose port has the number `place`.
    #[inline]
    pub(crate) fn add_qp_counts(
        &self,
        place: impl FnOnce() -> u32,
        counts: &mut StateMachineCounters,
    ) {
        if let Some(counts) = counts.take_unless_all_zero() {
            self.add_counts(place(), counts);
        }
    }

    fn add_counts(&self, place: u32, counts: StateMachineCounters) {
        for (counter, count) in [
            (Counter::DuplicateRequest, counts.duplicate_request),
            (Counter::OutOfSequence, counts.out_of_seq_request),
            (Counter::RnrSent, counts.send_rnr_err),
            (Counter::RemoteAccess, counts.resp_remote_access_errors),
            (Counter::RnrReceived, counts.rcvd_rnr_err),
            (Counter::SequenceErrorReceived, counts.rcvd_seq_err),
            (Counter::Retry, counts.completer_retry_err),
            (Counter::RetryExceeded, counts.retry_exceeded_err),
            (Counter::RnrRetryExceeded, counts.retry_rnr_exceeded_err),
            (Counter::Sends, counts.rdma_sends),
            (Counter::EcnMarked, counts.np_ecn_marked_roce_packets),
            (Counter::CnpSent, counts.np_cnp_sent),
            (Counter::CnpHandled, counts.rp_cnp_handled),
        ] {
            if count != 0 {
                self.add(place, counter, count);
            }
        }
    }

    /// Returns true if the engine has to be called, because this is the first count since the last publication.
    #[inline]
    pub(crate) fn claim_engine_call(&self) -> bool {
        !self.is_engine_called.load(Ordering::Relaxed)
            && !self.is_engine_called.swap(true, Ordering::Relaxed)
    }

    /// Returns the counts of this process for each of its ports.
    fn totals_by_port<'p>(
        &self,
        endpoint: &Endpoint,
        ports: &'p [CountedPort],
    ) -> Vec<(&'p CountedPort, [u64; COUNT])> {
        let own = |port: &'p CountedPort| {
            let counts = self.counts_by_port[port_index(port.host_wide_number)].each_ref();
            (port, counts.map(|count| count.load(Ordering::Relaxed)))
        };
        let mut totals: Vec<_> = ports.iter().map(own).collect();
        for (ip, counters) in endpoint.counters_by_address() {
            let Some(total) = counts_of_port_with_address(&mut totals, ip) else {
                continue;
            };
            for (name, count) in counters.values() {
                if let Some(counter) = Counter::index_of_socket_counter(name) {
                    total[counter] += count;
                }
            }
        }
        totals
    }

    /// Returns the time that new counts may still wait for their publication; `None` if there are none.
    pub(crate) fn time_until_publication(
        &self,
        endpoint: &Endpoint,
        ports: &[CountedPort],
    ) -> Option<Duration> {
        let published = self.lock_published();
        if !self.has_unpublished_counts(endpoint, ports, &published) {
            self.is_engine_called.store(false, Ordering::Relaxed);
            // A thread that counted before this did not call the engine.
            if !self.has_unpublished_counts(endpoint, ports, &published) {
                return None;
            }
        }
        let age = published
            .published_at
            .map_or(COUNTER_PUBLICATION_INTERVAL, |at| at.elapsed());
        Some(COUNTER_PUBLICATION_INTERVAL.saturating_sub(age))
    }

    /// Returns true if a count is not published. Drops by the kernel are left out: reading them costs a system call,
    /// and they do not matter here.
    fn has_unpublished_counts(
        &self,
        endpoint: &Endpoint,
        ports: &[CountedPort],
        published: &PublishedCounts,
    ) -> bool {
        let mut totals = self.totals_by_port(endpoint, ports).into_iter();
        totals.any(|(port, mut totals)| {
            let published = &published.counts[port_index(port.host_wide_number)];
            totals[Counter::Overrun as usize] = published[Counter::Overrun as usize];
            totals != *published
        })
    }

    /// Adds new counts to the files of the ports, as [`PortCounterFiles::add_to_counters`] does.
    ///
    /// # Errors
    /// Those of the file system, and `WouldBlock` while another process writes: new counts wait for the next time.
    pub(crate) fn publish(
        &self,
        endpoint: &Endpoint,
        ports: &[CountedPort],
        patience: Duration,
    ) -> io::Result<()> {
        let mut published = self.lock_published();
        published.published_at = Some(Instant::now());
        self.is_engine_called.store(false, Ordering::Relaxed);
        let mut totals = self.totals_by_port(endpoint, ports);
        for (ip, drops) in endpoint.kernel_drops_by_address() {
            if let Some(total) = counts_of_port_with_address(&mut totals, ip) {
                total[Counter::Overrun as usize] += drops;
            }
        }
        let mut results = Ok(());
        for (port, totals) in totals {
            let published = &mut published.counts[port_index(port.host_wide_number)];
            let news = NAMES.iter().zip(totals).zip(*published);
            // Drops at a socket that has closed are not counted any more.
            let mut news =
                news.map(|((name, total), before)| (*name, total.saturating_sub(before)));
            let result = port.files.add_to_counters(&mut news, patience);
            if !matches!(&result, Err(e) if e.kind() == io::ErrorKind::WouldBlock) {
                // Counts that cannot be written are lost: otherwise the engine would try for ever.
                *published = totals;
            }
            results = results.and(result);
        }
        results
    }

    fn lock_published(&self) -> MutexGuard<'_, PublishedCounts> {
        lock(&self.published_counts)
    }

    /// Returns the counts of dropped packets of all ports that are not 0.
    pub(crate) fn nonzero_drop_counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let of_all_ports = |counter: usize| {
            let counts = self.counts_by_port.iter().map(|own| &own[counter]);
            counts.map(|count| count.load(Ordering::Relaxed)).sum()
        };
        let all = NAMES.iter().enumerate();
        all.map(move |(counter, name)| (*name, of_all_ports(counter)))
            .filter(|(name, count)| name.starts_with("rx_") && *count != 0)
    }
}

/// Returns the counts of the port that has an address.
fn counts_of_port_with_address<'t>(
    totals: &'t mut [(&CountedPort, [u64; COUNT])],
    ip: IpAddr,
) -> Option<&'t mut [u64; COUNT]> {
    let has = |(port, _): &(&CountedPort, _)| port.addresses.contains(&ip);
    // Packets at an address of no port of this process count at the first port.
    let at = totals.iter().position(has).unwrap_or(0);
    totals.get_mut(at).map(|(_, counts)| counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_variants_and_unlike() {
        assert_eq!(NAMES[Counter::Sent as usize], "sent_pkts");
        assert_eq!(
            NAMES[Counter::ForwardOverrun as usize],
            "forward_overrun_pkts"
        );
        for (index, name) in NAMES.iter().enumerate() {
            assert_eq!(NAMES.iter().position(|n| n == name), Some(index));
        }
    }

    #[test]
    fn every_counter_of_the_sockets_but_four_has_a_place() {
        let values = link::Counters::default().values();
        let homeless: Vec<_> = values
            .iter()
            .filter(|(name, _)| Counter::index_of_socket_counter(name).is_none())
            .map(|(name, _)| *name)
            .collect();
        assert_eq!(
            homeless,
            [
                "sent_bytes",
                "rcvd_bytes",
                "order_corrections",
                "unsegmented_bursts"
            ]
        );
    }

    #[test]
    fn counts_of_queue_pairs_are_added_and_the_engine_is_called_once() {
        let counters = PacketCounters::default();
        let mut counts = StateMachineCounters {
            duplicate_request: 3,
            np_cnp_sent: 1,
            ..StateMachineCounters::default()
        };
        counters.add_qp_counts(|| 2, &mut counts);
        assert_eq!(counts, StateMachineCounters::default());
        counters.add_qp_counts(|| panic!("there are none"), &mut counts);
        counters.count_drop(1, DropReason::WrongQkey);
        let count = |place, counter: Counter| {
            counters.counts_by_port[port_index(place)][counter as usize].load(Ordering::Relaxed)
        };
        assert_eq!(count(2, Counter::DuplicateRequest), 3);
        assert_eq!(count(1, Counter::DuplicateRequest), 0);
        assert_eq!(count(2, Counter::CnpSent), 1);
        assert_eq!(
            counters.nonzero_drop_counts().collect::<Vec<_>>(),
            [("rx_wrong_qkey", 1)]
        );
        assert_eq!(
            (counters.claim_engine_call(), counters.claim_engine_call()),
            (true, false)
        );
    }
}
