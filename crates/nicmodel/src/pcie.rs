//! Transactions on the PCIe link between processor and NIC.
//!
//! *To the device* go MMIO writes, doorbells and the completions of DMA reads. *To the host* go DMA writes and the
//! requests of DMA reads. The two directions are independent.

use std::fmt;

use serde::Serialize;

use crate::profile::Profile;
use crate::wqe::CACHE_LINE_BYTES;

/// The purpose of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TransactionPurpose {
    /// WQEs that the processor writes to the NIC.
    WqeByMmio,
    /// Rings of the doorbell.
    Doorbell,
    /// WQEs of the send queue that the NIC fetches.
    WqeFetch,
    /// WQEs of RECVs that the NIC fetches; the publications do not count them.
    RecvWqeFetch,
    /// Payload that the requester's NIC fetches to send it.
    PayloadFetch,
    /// Data that the responder's NIC fetches for a READ.
    ReadData,
    /// The operand that the responder's NIC fetches for an atomic.
    AtomicRead,
    /// The operand that the responder's NIC writes back for an atomic.
    AtomicWrite,
    /// A read by the responder's NIC for a FLUSH: its completion shows that earlier writes have arrived, because
    /// reads do not pass writes. A read of zero bytes "may be used by devices as a type of flush request". Source:
    /// PCI Express base specification, 2.4.1 and 2.2.5.
    FlushRead,
    /// Payload of a SEND or WRITE that the responder's NIC writes.
    PayloadPlacement,
    /// The result of a READ or atomic that the requester's NIC writes.
    ResponsePlacement,
    /// Completions.
    Cqe,
}

impl fmt::Display for TransactionPurpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::WqeByMmio => "WQEs by MMIO",
            Self::Doorbell => "doorbells",
            Self::WqeFetch => "WQEs fetched",
            Self::RecvWqeFetch => "RECV WQEs fetched",
            Self::PayloadFetch => "payload fetched",
            Self::ReadData => "data of READs fetched",
            Self::AtomicRead => "operands of atomics fetched",
            Self::AtomicWrite => "operands of atomics written",
            Self::FlushRead => "reads behind what is flushed",
            Self::PayloadPlacement => "payload written",
            Self::ResponsePlacement => "results written",
            Self::Cqe => "completions",
        })
    }
}

/// The three kinds of transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TransactionKind {
    /// The processor writes to the NIC.
    MmioWrite,
    /// The NIC reads memory.
    DmaRead,
    /// The NIC writes memory.
    DmaWrite,
}

impl TransactionPurpose {
    /// Returns the kind of the transaction.
    pub fn kind(self) -> TransactionKind {
        match self {
            Self::WqeByMmio | Self::Doorbell => TransactionKind::MmioWrite,
            Self::WqeFetch
            | Self::RecvWqeFetch
            | Self::PayloadFetch
            | Self::ReadData
            | Self::AtomicRead
            | Self::FlushRead => TransactionKind::DmaRead,
            Self::AtomicWrite | Self::PayloadPlacement | Self::ResponsePlacement | Self::Cqe => {
                TransactionKind::DmaWrite
            }
        }
    }

    /// Returns true if the transactions move the payload of a SEND, WRITE or READ.
    pub(crate) fn moves_payload(self) -> bool {
        matches!(
            self,
            Self::PayloadFetch | Self::ReadData | Self::PayloadPlacement | Self::ResponsePlacement
        )
    }
}

/// Transactions with one purpose. Numbers are sums; they are fractions if several operations share a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Transactions {
    /// Purpose of the transactions.
    pub purpose: TransactionPurpose,
    /// Number of MMIO writes or DMAs; one DMA may be several packets.
    pub count: f64,
    /// Data of the transactions.
    pub data_bytes: f64,
    /// Cache lines of host memory or MMIO space that the data touches, counted for each DMA separately.
    #[serde(rename = "lines")]
    pub cache_lines: f64,
    /// Packets to the device.
    pub tlps_to_device: f64,
    /// Packets to the host.
    pub tlps_to_host: f64,
    /// Headers to the device.
    pub header_bytes_to_device: f64,
    /// Headers to the host.
    pub header_bytes_to_host: f64,
}

impl Transactions {
    /// `count` MMIO writes of `bytes` bytes each.
    pub(crate) fn mmio(
        profile: &Profile,
        purpose: TransactionPurpose,
        count: f64,
        bytes: u32,
    ) -> Self {
        let header = f64::from(profile.pcie.request_header_bytes.value);
        Self {
            purpose,
            count,
            data_bytes: count * f64::from(bytes),
            cache_lines: count,
            tlps_to_device: count,
            tlps_to_host: 0.0,
            header_bytes_to_device: count * header,
            header_bytes_to_host: 0.0,
        }
    }

    /// `count` DMA reads of `bytes` bytes each.
    pub(crate) fn dma_read(
        profile: &Profile,
        purpose: TransactionPurpose,
        count: f64,
        bytes: u64,
    ) -> Self {
        let pcie = &profile.pcie;
        let requests = count * piece_count(bytes, pcie.max_read_request_bytes.value);
        let completions = count * piece_count(bytes, pcie.read_completion_bytes.value);
        Self {
            purpose,
            count,
            data_bytes: count * to_f64(bytes),
            cache_lines: count * piece_count(bytes, CACHE_LINE_BYTES),
            tlps_to_device: completions,
            tlps_to_host: requests,
            header_bytes_to_device: completions * f64::from(pcie.completion_header_bytes.value),
            header_bytes_to_host: requests * f64::from(pcie.request_header_bytes.value),
        }
    }

    /// `count` DMA writes of `bytes` bytes each.
    pub(crate) fn dma_write(
        profile: &Profile,
        purpose: TransactionPurpose,
        count: f64,
        bytes: u64,
    ) -> Self {
        let pcie = &profile.pcie;
        let packets = count * piece_count(bytes, pcie.max_payload_bytes.value);
        Self {
            purpose,
            count,
            data_bytes: count * to_f64(bytes),
            cache_lines: count * piece_count(bytes, CACHE_LINE_BYTES),
            tlps_to_device: 0.0,
            tlps_to_host: packets,
            header_bytes_to_device: 0.0,
            header_bytes_to_host: packets * f64::from(pcie.request_header_bytes.value),
        }
    }

    /// Data and headers to the device.
    pub fn bytes_to_device(&self) -> f64 {
        let data = match self.purpose.kind() {
            TransactionKind::MmioWrite | TransactionKind::DmaRead => self.data_bytes,
            TransactionKind::DmaWrite => 0.0,
        };
        data + self.header_bytes_to_device
    }

    /// Data and headers to the host.
    pub fn bytes_to_host(&self) -> f64 {
        let data = match self.purpose.kind() {
            TransactionKind::DmaWrite => self.data_bytes,
            TransactionKind::MmioWrite | TransactionKind::DmaRead => 0.0,
        };
        data + self.header_bytes_to_host
    }

    pub(crate) fn scaled(self, factor: f64) -> Self {
        Self {
            purpose: self.purpose,
            count: self.count * factor,
            data_bytes: self.data_bytes * factor,
            cache_lines: self.cache_lines * factor,
            tlps_to_device: self.tlps_to_device * factor,
            tlps_to_host: self.tlps_to_host * factor,
            header_bytes_to_device: self.header_bytes_to_device * factor,
            header_bytes_to_host: self.header_bytes_to_host * factor,
        }
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            purpose: self.purpose,
            count: self.count + other.count,
            data_bytes: self.data_bytes + other.data_bytes,
            cache_lines: self.cache_lines + other.cache_lines,
            tlps_to_device: self.tlps_to_device + other.tlps_to_device,
            tlps_to_host: self.tlps_to_host + other.tlps_to_host,
            header_bytes_to_device: self.header_bytes_to_device + other.header_bytes_to_device,
            header_bytes_to_host: self.header_bytes_to_host + other.header_bytes_to_host,
        }
    }
}

/// Bandwidth of the link in one direction, in 10^6 bytes a second.
pub fn bandwidth_mbytes_per_s(profile: &Profile) -> f64 {
    f64::from(profile.pcie.lanes.value) * profile.pcie.lane_mbps.value
}

/// Data rate of DMA reads with full completions, in 10^6 bytes a second: section 5.2.1 of the paper, 13443 on
/// Connect-IB. Link-layer packets are not subtracted.
pub fn dma_read_mbytes_per_s(profile: &Profile) -> f64 {
    let data = f64::from(profile.pcie.read_completion_bytes.value);
    let header = f64::from(profile.pcie.completion_header_bytes.value);
    bandwidth_mbytes_per_s(profile) * data / (data + header)
}

/// Upper limit of MMIO writes of one cache line, in 10^6 a second: section 5.2.1 of the paper has 175 for Connect-IB.
/// Link-layer packets are not subtracted.
pub fn max_mmio_line_mops(profile: &Profile) -> f64 {
    let header = f64::from(profile.pcie.request_header_bytes.value);
    bandwidth_mbytes_per_s(profile) / (f64::from(CACHE_LINE_BYTES) + header)
}

/// Bytes to the device for writing `bytes` bytes by MMIO (Figure 2b of the paper).
pub fn bytes_to_device_for_mmio_write(profile: &Profile, bytes: u32) -> f64 {
    let count = piece_count(u64::from(bytes), CACHE_LINE_BYTES);
    Transactions::mmio(
        profile,
        TransactionPurpose::WqeByMmio,
        count,
        CACHE_LINE_BYTES,
    )
    .bytes_to_device()
}

/// Bytes to the device for reading `bytes` bytes by one DMA (Figure 2b of the paper).
pub fn bytes_to_device_for_dma_read(profile: &Profile, bytes: u32) -> f64 {
    Transactions::dma_read(profile, TransactionPurpose::WqeFetch, 1.0, u64::from(bytes))
        .bytes_to_device()
}

/// `ceil(bytes / size)`.
fn piece_count(bytes: u64, size: u32) -> f64 {
    to_f64(bytes.div_ceil(u64::from(size.max(1))))
}

/// Converts to a float, which is exact below 2^53. The largest sum is a postlist of messages of 2^31 bytes.
#[expect(clippy::cast_precision_loss, reason = "numbers stay far below 2^53")]
fn to_f64(value: u64) -> f64 {
    value as f64
}
