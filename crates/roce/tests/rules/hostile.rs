//! Sends arbitrary packets in any order: nothing may panic, and no packet may cause more replies than it asks for.

use proptest::prelude::*;
use roce::opcode::{LastPacketField, MessagePosition, PacketOperation};
use roce::packet::{Aeth, AtomicEth, ExtendedHeaders, Feth, Reth, Syndrome};
use roce::rc::requester::{
    LocalFault, LocalMemory, Request, RequestOperation, Requester, RequesterConfig,
};
use roce::rc::responder::{AtomicOperation, Refusal, Responder, ResponderConfig, ResponderTarget};
use roce::uc;

use crate::text::{FIRST, MTU, Sample};

/// Memory that permits every access below 2^16.
struct Memory;

impl LocalMemory for Memory {
    fn read_payload(&mut self, _: u64, _: u32, _: &mut [u8]) -> Result<(), LocalFault> {
        Ok(())
    }

    fn write_read_or_atomic_result(&mut self, _: u64, _: u32, _: &[u8]) -> Result<(), LocalFault> {
        Ok(())
    }
}

impl Memory {
    fn check(addr: u64, len: u32) -> Result<(), Refusal> {
        let end = addr.checked_add(len.into());
        end.filter(|end| *end <= 1 << 16)
            .map(|_| ())
            .ok_or(Refusal::RemoteAccess)
    }
}

impl ResponderTarget for Memory {
    fn try_begin_receive(&mut self) -> bool {
        true
    }

    fn write_to_receive_buffers(&mut self, _: u32, _: &[u8]) -> Result<(), Refusal> {
        Ok(())
    }

    fn finish_receive(
        &mut self,
        _: Option<u32>,
        _: LastPacketField,
        _: bool,
    ) -> Result<(), Refusal> {
        Ok(())
    }

    fn check_write(&mut self, addr: u64, _: u32, len: u32) -> Result<(), Refusal> {
        Self::check(addr, len)
    }

    fn write_memory(&mut self, addr: u64, _: u32, bytes: &[u8]) -> Result<(), Refusal> {
        Self::check(addr, u32::try_from(bytes.len()).expect("a packet"))
    }

    fn check_read(&mut self, addr: u64, _: u32, len: u32) -> Result<(), Refusal> {
        Self::check(addr, len)
    }

    fn read_memory(&mut self, addr: u64, _: u32, into: &mut [u8]) -> Result<(), Refusal> {
        Self::check(addr, u32::try_from(into.len()).expect("a packet"))
    }

    fn execute_atomic(&mut self, addr: u64, _: u32, _: AtomicOperation) -> Result<u64, Refusal> {
        Self::check(addr, 8).map(|()| 0)
    }

    fn execute_flush(&mut self, addr: u64, _: u32, len: u32, _: u8, _: u8) -> Result<(), Refusal> {
        Self::check(addr, len)
    }
}

fn operations() -> impl Strategy<Value = PacketOperation> {
    prop::sample::select(vec![
        PacketOperation::Send,
        PacketOperation::Write,
        PacketOperation::ReadRequest,
        PacketOperation::ReadResponse,
        PacketOperation::Acknowledge,
        PacketOperation::AtomicAcknowledge,
        PacketOperation::CompareSwap,
        PacketOperation::FetchAdd,
        PacketOperation::Flush,
        PacketOperation::AtomicWrite,
        PacketOperation::Cnp,
    ])
}

fn positions() -> impl Strategy<Value = MessagePosition> {
    prop::sample::select(vec![
        MessagePosition::First,
        MessagePosition::Middle,
        MessagePosition::Last,
        MessagePosition::Only,
    ])
}

fn lengths() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), Just(8), Just(MTU), 0..600u32, any::<u32>()]
}

prop_compose! {
    fn headers()(
        reth in prop::option::of((0..1u64 << 17, lengths())),
        atomic in prop::option::of(0..1u64 << 17),
        aeth in prop::option::of(any::<u8>()),
        original in prop::option::of(any::<u64>()),
        imm in prop::option::of(any::<[u8; 4]>()),
        feth in any::<bool>(),
    ) -> ExtendedHeaders {
        ExtendedHeaders {
            reth: reth.map(|(addr, len)| Reth { addr, rkey: 1, len }),
            atomic: atomic.map(|addr| AtomicEth { addr, rkey: 1, swap_or_add: 1, compare: 0 }),
            aeth: aeth.and_then(Syndrome::from_byte).map(|syndrome| Aeth { syndrome, msn: 0 }),
            original_value: original,
            imm,
            feth: feth.then_some(Feth { placement: 1, selectivity: 0 }),
            ..ExtendedHeaders::default()
        }
    }
}

prop_compose! {
    fn samples()(
        operation in operations(),
        position in positions(),
        index in prop_oneof![0..12u32, any::<u32>()],
        extended in headers(),
        len in prop_oneof![Just(MTU), Just(8), 0..300u32],
        ack_request: bool,
    ) -> Sample {
        let mut sample = Sample::new(operation, position, index).payload(len);
        sample.extended = extended;
        sample.bth.ack_request = ack_request;
        sample
    }
}

/// Returns the largest number of READ responses that a request asks for.
fn responses(sample: &Sample) -> u32 {
    let is_read = sample.bth.operation == PacketOperation::ReadRequest;
    let reth = sample.extended.reth.filter(|_| is_read);
    reth.map_or(0, |reth| reth.len.min(1 << 16).div_ceil(MTU))
}

proptest! {
    #[test]
    fn a_responder_answers_no_more_than_it_is_asked(samples in prop::collection::vec(samples(), 1..40)) {
        let mut responder = Responder::new(ResponderConfig {
            mtu_bytes: MTU,
            first_psn: FIRST,
            max_dest_rd_atomic: 2,
            ..ResponderConfig::default()
        });
        let mut now_ns = 0;
        // The reply to a packet may be sent after a later packet.
        let (mut allowed, mut sent) = (0, 0);
        for sample in samples {
            responder.process_received_packet(now_ns, &sample.packet(), false, &mut Memory);
            responder.queue_gap_nak_if_due(now_ns);
            allowed += 1 + responses(&sample);
            let mut bytes = Vec::new();
            loop {
                while responder.append_next_packet(now_ns, &mut Memory, &mut bytes) {
                    sent += 1;
                    bytes.clear();
                }
                let Some(at) = responder.next_send_time_ns() else { break };
                now_ns = at;
            }
            prop_assert!(sent <= allowed, "{sent} answers, the last to {sample:?}");
        }
    }

    #[test]
    fn a_requester_keeps_its_window(samples in prop::collection::vec(samples(), 1..40)) {
        let mut requester = Requester::new(RequesterConfig {
            mtu_bytes: MTU,
            first_psn: FIRST,
            window_packets: 8,
            ..RequesterConfig::default()
        });
        let (addr, rkey) = (0, 1);
        for len in [0, 8, 300, 2000] {
            let tail = LastPacketField::None;
            for operation in [
                RequestOperation::Send { len, tail },
                RequestOperation::Read { addr, rkey, len },
                RequestOperation::FetchAdd { addr, rkey, add: 1 },
                RequestOperation::AtomicWrite { addr, rkey },
            ] {
                requester.post(Request { operation, solicited: false, fence: false });
            }
        }
        let mut bytes = Vec::new();
        let mut done = 0;
        for (sample, step) in samples.into_iter().zip(0u64..) {
            let now_ns = step * 1_000_000_000;
            requester.apply_expired_timers(now_ns, now_ns);
            let mut sent = 0;
            while requester.append_next_packet(now_ns, &mut Memory, &mut bytes) {
                sent += 1;
                bytes.clear();
            }
            prop_assert!(sent <= 8);
            requester.process_received_packet(now_ns, &sample.packet(), &mut Memory);
            prop_assert!((done..=16).contains(&requester.done_request_count()));
            done = requester.done_request_count();
        }
    }

    #[test]
    fn an_unreliable_receiver_takes_anything(samples in prop::collection::vec(samples(), 1..40)) {
        let mut receiver = uc::Receiver::new(MTU, FIRST);
        for sample in samples {
            receiver.process_received_packet(&sample.unreliable().packet(), &mut Memory);
        }
    }
}
