//! The packets of this process in a pcap file.

use std::net::IpAddr;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use ::capture::{Capture, CapturedPackets, Datagram, OpenError};
use link::{Endpoint, PacketBatch, ReceivedPacket};
use roce::icrc::{self, IcrcFields};

/// The environment variable that names the pcap file into which processes write their packets.
pub const PCAP_VAR: &str = "VERBATIM_PCAP";

/// The reason why there is no capture.
#[derive(Debug, thiserror::Error)]
#[error("{PCAP_VAR}: {0}")]
pub struct BadCapture(#[from] OpenError);

/// The capture of a process.
///
/// - *Sent*: packets that the kernel took, as they go on the wire. A packet that a fault plan has dropped is missing; a
///   damaged one has its damage.
/// - *Received*: packets from other addresses than those of this process's port, as they arrived, before their ICRC is
///   checked. Processes with the same addresses write one file, and each packet between them is written by its sender.
pub(super) struct WireCapture {
    file: Capture,
    /// Addresses of the port, whose packets are written by their senders.
    own_addresses: OnceLock<Vec<IpAddr>>,
    /// True once the file could not be written: nothing follows.
    has_failed: AtomicBool,
}

impl WireCapture {
    /// Opens the capture that the environment asks for.
    ///
    /// # Errors
    /// The file cannot be opened, or is not a capture.
    pub(super) fn from_env() -> Result<Option<Self>, BadCapture> {
        let file = std::env::var_os(PCAP_VAR).filter(|file| !file.is_empty());
        let Some(file) = file else {
            return Ok(None);
        };
        Ok(Some(Self {
            file: Capture::open(Path::new(&file))?,
            own_addresses: OnceLock::new(),
            has_failed: AtomicBool::new(false),
        }))
    }

    /// Sends a batch and writes the packets that the kernel took.
    pub(super) fn send_and_capture(&self, endpoint: &Endpoint, batch: &mut PacketBatch) {
        if batch.is_all_sent() {
            return;
        }
        // The turn prevents that an answer is written in front of its request.
        let turn = self.file.lock_for_writing();
        let now = SystemTime::now();
        let mut records = CapturedPackets::default();
        endpoint.send_observed(batch, |sent| {
            let datagram = make_datagram(
                &sent.icrc_fields,
                sent.traffic_class,
                sent.hop_limit,
                sent.bytes,
            );
            self.push_datagram(&mut records, now, &datagram);
        });
        self.append_to_capture_file(&records);
        drop(turn);
    }

    /// Writes a packet that has arrived, unless its sender writes it.
    pub(super) fn capture_received(&self, endpoint: &Endpoint, received: &ReceivedPacket<'_>) {
        let addresses = || {
            endpoint
                .opened_addresses()
                .map(|address| address.ip)
                .collect()
        };
        let own = self.own_addresses.get_or_init(addresses);
        if own.contains(&received.icrc_fields.addresses.src()) {
            return;
        }
        // A receiver does not see the identification of the IP header, but the ICRC reveals it.
        let identification = icrc::split_off_icrc(received.bytes)
            .and_then(|(transport, icrc)| {
                icrc::recover_identification_if_icrc_valid(&received.icrc_fields, transport, icrc)
            })
            .unwrap_or(received.icrc_fields.identification);
        let frame = IcrcFields {
            identification,
            ..received.icrc_fields
        };
        let hop_limit = received.hop_limit.unwrap_or(0);
        let datagram = make_datagram(&frame, received.traffic_class, hop_limit, received.bytes);
        let turn = self.file.lock_for_writing();
        let mut records = CapturedPackets::default();
        self.push_datagram(&mut records, SystemTime::now(), &datagram);
        self.append_to_capture_file(&records);
        drop(turn);
    }

    fn push_datagram(
        &self,
        records: &mut CapturedPackets,
        time: SystemTime,
        datagram: &Datagram<'_>,
    ) {
        // No error is expected: the addresses are of one family, and a UDP payload fits.
        if let Err(error) = records.push(time, datagram) {
            tracing::error!("a packet is not captured: {error}");
        }
    }

    fn append_to_capture_file(&self, records: &CapturedPackets) {
        if records.is_empty() || self.has_failed.load(Ordering::Relaxed) {
            return;
        }
        if let Err(error) = self.file.append(records)
            && !self.has_failed.swap(true, Ordering::Relaxed)
        {
            // Programs do not show log messages.
            eprintln!(
                "verbatim: the capture of process {} ends here: {error}",
                std::process::id()
            );
        }
    }
}

fn make_datagram<'a>(
    frame: &IcrcFields,
    traffic_class: u8,
    hop_limit: u8,
    payload: &'a [u8],
) -> Datagram<'a> {
    Datagram {
        src: (frame.addresses.src(), frame.src_port).into(),
        dst: (frame.addresses.dst(), frame.dst_port).into(),
        identification: frame.identification,
        traffic_class,
        hop_limit,
        payload,
    }
}
