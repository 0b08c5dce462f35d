//! The footprint of an operation: every transaction on both PCIe links, and every packet between the NICs.

use serde::Serialize;

use crate::operation::{Operation, OperationError, PostMethod};
use crate::pcie::{TransactionKind, TransactionPurpose, Transactions};
use crate::profile::{LinkLayer, Profile};
use crate::verb::{ATOMIC_BYTES, Transport, Verb};
use crate::wire::{self, OperationPackets};
use crate::wqe::{self, CACHE_LINE_BYTES};

/// Longest postlist that can be described.
pub const MAX_POSTLIST_LEN: u32 = 1 << 16;

/// The global routing header that precedes the payload in the RECV buffer of a datagram.
const GRH_BYTES: u32 = 40;

/// The cost of a postlist of equal operations.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Footprint {
    /// Operations in the footprint; a fraction if it describes a part of postlists.
    #[serde(rename = "operations")]
    pub operation_count: f64,
    /// Size of a WQE.
    pub wqe_bytes: u32,
    /// Cache lines of a WQE.
    #[serde(rename = "wqe_lines")]
    pub wqe_cache_lines: u32,
    /// The way in which the WQEs reach the NIC.
    #[serde(rename = "method")]
    pub post_method: PostMethod,
    /// The requester's PCIe link.
    pub requester: LinkTransactions,
    /// The responder's PCIe link.
    pub responder: LinkTransactions,
    /// The network.
    #[serde(rename = "network")]
    pub network_packets: OperationPackets,
    /// Locks for atomics that the responder's NIC takes.
    pub atomic_locks: f64,
}

/// The transactions on one PCIe link, by purpose.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LinkTransactions {
    /// One entry for each purpose that occurs.
    pub transactions: Vec<Transactions>,
}

impl LinkTransactions {
    fn add(&mut self, transactions: Transactions) {
        if transactions.count > 0.0 {
            self.transactions.push(transactions);
        }
    }

    /// Sums `what` over all transactions whose purpose satisfies `of`.
    fn sum_where(
        &self,
        of: impl Fn(TransactionPurpose) -> bool,
        what: impl Fn(&Transactions) -> f64,
    ) -> f64 {
        let picked = self.transactions.iter().filter(|t| of(t.purpose));
        // `Iterator::sum` of no floating-point numbers is -0.0.
        picked.map(what).sum::<f64>() + 0.0
    }

    /// Transactions with this purpose.
    pub fn count_of_purpose(&self, purpose: TransactionPurpose) -> f64 {
        self.sum_where(|p| p == purpose, |t| t.count)
    }

    /// MMIO writes of the processor: cache lines of WQEs, and doorbells.
    pub fn mmio_writes(&self) -> f64 {
        self.sum_where(|p| p.kind() == TransactionKind::MmioWrite, |t| t.count)
    }

    /// Doorbells among the MMIO writes.
    pub fn doorbells(&self) -> f64 {
        self.count_of_purpose(TransactionPurpose::Doorbell)
    }

    /// DMA reads, without those of RECVs' WQEs, which the publications do not count.
    pub fn dma_reads_without_recv_wqes(&self) -> f64 {
        let counted = |p: TransactionPurpose| {
            p.kind() == TransactionKind::DmaRead && p != TransactionPurpose::RecvWqeFetch
        };
        self.sum_where(counted, |t| t.count)
    }

    /// DMA reads of RECVs' WQEs; a fraction, since one read fetches several.
    pub fn recv_wqe_reads(&self) -> f64 {
        self.count_of_purpose(TransactionPurpose::RecvWqeFetch)
    }

    /// DMA writes.
    pub fn dma_writes(&self) -> f64 {
        self.sum_where(|p| p.kind() == TransactionKind::DmaWrite, |t| t.count)
    }

    /// Cache lines that all DMA reads touch: the processor's counter PCIeRdCur.
    pub fn cache_lines_read(&self) -> f64 {
        self.sum_where(|p| p.kind() == TransactionKind::DmaRead, |t| t.cache_lines)
    }

    /// Cache lines that DMA writes touch: the processor's counter PCIeItoM.
    pub fn cache_lines_written(&self) -> f64 {
        self.sum_where(|p| p.kind() == TransactionKind::DmaWrite, |t| t.cache_lines)
    }

    /// Data and headers to the device.
    pub fn bytes_to_device(&self) -> f64 {
        self.sum_where(|_| true, Transactions::bytes_to_device)
    }

    /// Data and headers to the host.
    pub fn bytes_to_host(&self) -> f64 {
        self.sum_where(|_| true, Transactions::bytes_to_host)
    }

    /// Data and headers of one kind to the device.
    pub fn bytes_to_device_of_kind(&self, kind: TransactionKind) -> f64 {
        self.sum_where(|p| p.kind() == kind, Transactions::bytes_to_device)
    }

    /// Packets to the device of one kind.
    pub fn tlps_to_device_of_kind(&self, kind: TransactionKind) -> f64 {
        self.sum_where(|p| p.kind() == kind, |t| t.tlps_to_device)
    }

    /// Packets in both directions.
    pub fn tlps(&self) -> f64 {
        self.sum_where(|_| true, |t| t.tlps_to_device + t.tlps_to_host)
    }

    /// Adds all transactions of another side, multiplied by `times`.
    pub fn add_multiple(&mut self, other: &Self, times: f64) {
        for transactions in &other.transactions {
            let scaled = transactions.scaled(times);
            let mut known = self.transactions.iter_mut();
            match known.find(|t| t.purpose == scaled.purpose) {
                Some(known) => *known = known.plus(scaled),
                None => self.add(scaled),
            }
        }
    }

    fn weighted_sum(&self, own: f64, other: &Self, others: f64) -> Self {
        let mut sum = Self::default();
        sum.add_multiple(self, own);
        sum.add_multiple(other, others);
        sum
    }
}

impl Footprint {
    /// Computes the footprint of `len` operations that are posted as one list.
    ///
    /// # Errors
    /// The errors of [`Operation::check_executable`], and [`OperationError::OutOfRange`] for a length outside 1 to
    /// [`MAX_POSTLIST_LEN`].
    pub fn of_postlist(
        profile: &Profile,
        operation: &Operation,
        method: PostMethod,
        len: u32,
    ) -> Result<Self, OperationError> {
        operation.check_executable(profile)?;
        if !(1..=MAX_POSTLIST_LEN).contains(&len) {
            return Err(OperationError::OutOfRange {
                name: "postlist",
                value: f64::from(len),
                low: 1.0,
                high: f64::from(MAX_POSTLIST_LEN),
            });
        }
        let operations = f64::from(len);
        let network = wire::packets_of_operation(profile, operation);
        let atomic = operation.verb.is_atomic();
        let wqe_bytes = operation.wqe_bytes(profile);
        Ok(Self {
            operation_count: operations,
            wqe_bytes,
            wqe_cache_lines: wqe::cache_line_count(wqe_bytes),
            post_method: method,
            requester: requester_transactions(profile, operation, method, len),
            responder: responder_transactions(profile, operation, operations),
            network_packets: OperationPackets {
                to_responder: network.to_responder.scaled(operations),
                to_requester: network.to_requester.scaled(operations),
            },
            atomic_locks: if atomic { operations } else { 0.0 },
        })
    }

    /// Computes the footprint of one operation in postlists of `mean_len` operations on average.
    ///
    /// A length between two whole numbers is taken as a mixture of postlists of these two lengths.
    ///
    /// # Errors
    /// The errors of [`Footprint::of_postlist`].
    pub fn of_one(
        profile: &Profile,
        operation: &Operation,
        method: PostMethod,
        mean_len: f64,
    ) -> Result<Self, OperationError> {
        if !(1.0..=f64::from(MAX_POSTLIST_LEN)).contains(&mean_len) {
            return Err(OperationError::OutOfRange {
                name: "postlist",
                value: mean_len,
                low: 1.0,
                high: f64::from(MAX_POSTLIST_LEN),
            });
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "was checked to be from 1 to MAX_POSTLIST"
        )]
        let short_len = mean_len.floor() as u32;
        let short = Self::of_postlist(profile, operation, method, short_len)?;
        let long_share = mean_len - mean_len.floor();
        if long_share == 0.0 {
            return Ok(short.weighted_sum(1.0 / mean_len, &short, 0.0));
        }
        let long = Self::of_postlist(profile, operation, method, short_len + 1)?;
        Ok(short.weighted_sum((1.0 - long_share) / mean_len, &long, long_share / mean_len))
    }

    fn weighted_sum(&self, own: f64, other: &Self, others: f64) -> Self {
        let mix = |of: fn(&Self) -> f64| of(self) * own + of(other) * others;
        let packets = |of: fn(&OperationPackets) -> wire::PacketCost| {
            of(&self.network_packets)
                .scaled(own)
                .plus(of(&other.network_packets).scaled(others))
        };
        Self {
            operation_count: mix(|f| f.operation_count),
            wqe_bytes: self.wqe_bytes,
            wqe_cache_lines: self.wqe_cache_lines,
            post_method: self.post_method,
            requester: self.requester.weighted_sum(own, &other.requester, others),
            responder: self.responder.weighted_sum(own, &other.responder, others),
            network_packets: OperationPackets {
                to_responder: packets(|n| n.to_responder),
                to_requester: packets(|n| n.to_requester),
            },
            atomic_locks: mix(|f| f.atomic_locks),
        }
    }
}

/// The requester's transactions for one postlist.
fn requester_transactions(
    profile: &Profile,
    operation: &Operation,
    method: PostMethod,
    len: u32,
) -> LinkTransactions {
    let mut side = LinkTransactions::default();
    let operations = f64::from(len);
    let wqe_bytes = operation.wqe_bytes(profile);
    match method {
        PostMethod::WqeByMmio => {
            let writes = operations * f64::from(wqe::cache_line_count(wqe_bytes));
            let purpose = TransactionPurpose::WqeByMmio;
            side.add(Transactions::mmio(
                profile,
                purpose,
                writes,
                CACHE_LINE_BYTES,
            ));
        }
        PostMethod::Doorbell => {
            let doorbell = profile.pcie.doorbell_bytes.value;
            side.add(Transactions::mmio(
                profile,
                TransactionPurpose::Doorbell,
                1.0,
                doorbell,
            ));
            let slot = u64::from(wqe::send_queue_slot_bytes(wqe_bytes));
            let at_once = profile.pcie.wqes_per_fetch.as_ref();
            let at_once = at_once.map_or(len, |most| most.value.min(len));
            let fetch = |count: u32, wqes: u32| {
                let bytes = slot * u64::from(wqes);
                Transactions::dma_read(
                    profile,
                    TransactionPurpose::WqeFetch,
                    f64::from(count),
                    bytes,
                )
            };
            let whole = fetch(len / at_once, at_once);
            side.add(match len % at_once {
                0 => whole,
                rest => whole.plus(fetch(1, rest)),
            });
        }
    }
    let payload = operation.payload_bytes;
    if operation.verb.carries_payload_in_request() {
        if payload > 0 && !operation.inline {
            // The NIC reads once for each scatter/gather element; the elements have about equal length.
            let elements = operation.num_sge.min(payload);
            let (each, longer) = (u64::from(payload / elements), payload % elements);
            let read = |count: u32, bytes: u64| {
                let count = f64::from(count) * operations;
                Transactions::dma_read(profile, TransactionPurpose::PayloadFetch, count, bytes)
            };
            side.add(read(elements - longer, each).plus(read(longer, each + 1)));
        }
    } else if payload > 0 {
        let (purpose, bytes) = (TransactionPurpose::ResponsePlacement, u64::from(payload));
        side.add(Transactions::dma_write(profile, purpose, operations, bytes));
    }
    let completions = operations * operation.signaled_fraction;
    let cqe = u64::from(profile.wqe.cqe_bytes.value);
    side.add(Transactions::dma_write(
        profile,
        TransactionPurpose::Cqe,
        completions,
        cqe,
    ));
    side
}

/// A read of zero bytes is completed with one double word (PCI Express base specification, 2.2.5 and 2.3.1.1).
const ZERO_LENGTH_READ_BYTES: u64 = 4;

/// The responder's transactions for this number of operations.
fn responder_transactions(
    profile: &Profile,
    operation: &Operation,
    operations: f64,
) -> LinkTransactions {
    let mut side = LinkTransactions::default();
    let payload = u64::from(operation.payload_bytes);
    let read = |purpose, bytes| Transactions::dma_read(profile, purpose, operations, bytes);
    let write = |purpose, bytes| Transactions::dma_write(profile, purpose, operations, bytes);
    match operation.verb {
        Verb::Send | Verb::RdmaWrite => {
            if payload > 0 && !operation.arrives_in_cqe(profile) {
                let with_grh =
                    operation.transport == Transport::Ud && profile.link_layer == LinkLayer::Roce;
                let grh = if with_grh { u64::from(GRH_BYTES) } else { 0 };
                side.add(write(TransactionPurpose::PayloadPlacement, payload + grh));
            }
        }
        Verb::RdmaRead => {
            if payload > 0 {
                side.add(read(TransactionPurpose::ReadData, payload));
            }
        }
        Verb::AtomicCmpAndSwp | Verb::AtomicFetchAndAdd => {
            side.add(read(
                TransactionPurpose::AtomicRead,
                u64::from(ATOMIC_BYTES),
            ));
            side.add(write(
                TransactionPurpose::AtomicWrite,
                u64::from(ATOMIC_BYTES),
            ));
        }
        Verb::Flush => side.add(read(TransactionPurpose::FlushRead, ZERO_LENGTH_READ_BYTES)),
    }
    if operation.consumes_recv() {
        // The WQEs of RECVs are adjacent in memory, and the NIC reads a cache line of them at a time.
        let recv = f64::from(profile.wqe.recv_bytes.value);
        let reads = operations * recv / f64::from(CACHE_LINE_BYTES);
        let line = u64::from(CACHE_LINE_BYTES);
        side.add(Transactions::dma_read(
            profile,
            TransactionPurpose::RecvWqeFetch,
            reads,
            line,
        ));
        side.add(write(
            TransactionPurpose::Cqe,
            u64::from(profile.wqe.cqe_bytes.value),
        ));
    }
    side
}
