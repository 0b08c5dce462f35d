//! Measures the messages per second of a requester and a responder on one core, without network and ICRC.
//!
//! `cargo run --release -p verbatim-roce --example rate`

use std::time::Instant;

use roce::opcode::LastPacketField;
use roce::packet::Packet;
use roce::rc::requester::{
    LocalFault, LocalMemory, Request, RequestOperation, Requester, RequesterConfig,
};
use roce::rc::responder::{AtomicOperation, Refusal, Responder, ResponderConfig, ResponderTarget};

/// Number of requests that are posted at once.
const POSTLIST: usize = 16;
/// Number of packets that are handed over at once.
const BATCH: usize = 64;

/// The memory of requester and responder.
struct Memory(Vec<u8>);

impl Memory {
    fn range(addr: u64, len: usize) -> std::ops::Range<usize> {
        let start = usize::try_from(addr).unwrap_or(usize::MAX);
        start..start.saturating_add(len)
    }

    fn copy_out(&self, addr: u64, into: &mut [u8]) -> Option<()> {
        into.copy_from_slice(self.0.get(Self::range(addr, into.len()))?);
        Some(())
    }

    fn copy_in(&mut self, addr: u64, bytes: &[u8]) -> Option<()> {
        self.0
            .get_mut(Self::range(addr, bytes.len()))?
            .copy_from_slice(bytes);
        Some(())
    }
}

impl LocalMemory for Memory {
    fn read_payload(&mut self, _: u64, offset: u32, into: &mut [u8]) -> Result<(), LocalFault> {
        self.copy_out(offset.into(), into).ok_or(LocalFault)
    }

    fn write_read_or_atomic_result(
        &mut self,
        _: u64,
        offset: u32,
        bytes: &[u8],
    ) -> Result<(), LocalFault> {
        self.copy_in(offset.into(), bytes).ok_or(LocalFault)
    }
}

impl ResponderTarget for Memory {
    fn try_begin_receive(&mut self) -> bool {
        true
    }

    fn write_to_receive_buffers(&mut self, offset: u32, bytes: &[u8]) -> Result<(), Refusal> {
        self.copy_in(offset.into(), bytes)
            .ok_or(Refusal::RemoteOperational)
    }

    fn finish_receive(
        &mut self,
        _: Option<u32>,
        _: LastPacketField,
        _: bool,
    ) -> Result<(), Refusal> {
        Ok(())
    }

    fn check_write(&mut self, _: u64, _: u32, _: u32) -> Result<(), Refusal> {
        Ok(())
    }

    fn write_memory(&mut self, addr: u64, _: u32, bytes: &[u8]) -> Result<(), Refusal> {
        self.copy_in(addr, bytes).ok_or(Refusal::RemoteAccess)
    }

    fn check_read(&mut self, _: u64, _: u32, _: u32) -> Result<(), Refusal> {
        Ok(())
    }

    fn read_memory(&mut self, addr: u64, _: u32, into: &mut [u8]) -> Result<(), Refusal> {
        self.copy_out(addr, into).ok_or(Refusal::RemoteAccess)
    }

    fn execute_atomic(&mut self, _: u64, _: u32, _: AtomicOperation) -> Result<u64, Refusal> {
        Err(Refusal::InvalidRequest)
    }

    fn execute_flush(&mut self, _: u64, _: u32, _: u32, _: u8, _: u8) -> Result<(), Refusal> {
        Err(Refusal::InvalidRequest)
    }
}

/// Packets on their way: the concatenated bytes, and the end of each packet.
#[derive(Default)]
struct Wire {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Wire {
    fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    fn fill(&mut self, mut transmit: impl FnMut(&mut Vec<u8>) -> bool) {
        self.clear();
        while self.ends.len() < BATCH && transmit(&mut self.bytes) {
            self.ends.push(self.bytes.len());
        }
    }

    fn packets(&self) -> impl Iterator<Item = Packet<'_>> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let ranges = starts.zip(&self.ends);
        ranges.filter_map(|(start, end)| Packet::parse(&self.bytes[start..*end]).ok())
    }
}

/// Sends `requests` requests; returns the number of requests that are done, and the time in seconds.
fn run(operation: RequestOperation, requests: u64) -> (u64, f64) {
    let mtu_bytes = 4096;
    let mut requester = Requester::new(RequesterConfig {
        mtu_bytes,
        ..RequesterConfig::default()
    });
    let mut responder = Responder::new(ResponderConfig {
        mtu_bytes,
        ..ResponderConfig::default()
    });
    let mut memories = [Memory(vec![1; 1 << 16]), Memory(vec![2; 1 << 16])];
    let [local, remote] = &mut memories;
    let mut wire = Wire::default();
    let start = Instant::now();
    let mut posted = 0;
    while requester.done_request_count() < requests && requester.failure().is_none() {
        while posted < requests && requester.unfinished_request_count() <= 4 * POSTLIST {
            for _ in 0..POSTLIST {
                posted = requester.post(Request {
                    operation,
                    solicited: false,
                    fence: false,
                });
            }
        }
        wire.fill(|out| requester.append_next_packet(0, local, out));
        for packet in wire.packets() {
            responder.process_received_packet(0, &packet, false, remote);
            responder.queue_gap_nak_if_due(0);
        }
        wire.fill(|out| responder.append_next_packet(0, remote, out));
        for packet in wire.packets() {
            requester.process_received_packet(0, &packet, local);
        }
    }
    (
        requester.done_request_count(),
        start.elapsed().as_secs_f64(),
    )
}

fn main() {
    let (addr, rkey, imm, tail) = (0, 1, None, LastPacketField::None);
    for (len, requests) in [(8, 5_000_000), (65_536, 50_000)] {
        let write = RequestOperation::Write {
            addr,
            rkey,
            len,
            imm,
        };
        for (name, operation) in [
            ("SEND", RequestOperation::Send { len, tail }),
            ("WRITE", write),
            ("READ", RequestOperation::Read { addr, rkey, len }),
        ] {
            let (done, seconds) = run(operation, requests);
            #[allow(clippy::cast_precision_loss)] // far below 2^53
            let rate = done as f64 / seconds;
            println!(
                "{name} of {len} B: {:.2} M messages/s, {:.2} GB/s",
                rate / 1e6,
                rate * f64::from(len) / 1e9
            );
        }
    }
}
