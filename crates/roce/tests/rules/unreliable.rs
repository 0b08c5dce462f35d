//! Tests of the rules of unreliable connections.

use roce::opcode::{LastPacketField, MessagePosition, Transport};
use roce::psn::Psn;
use roce::rc::requester::{LocalFault, LocalMemory, Request, RequestFailure, RequestOperation};
use roce::rc::responder::{AtomicOperation, Refusal, ResponderTarget};
use roce::uc::{Receiver, Sender};

use crate::text::*;
use MessagePosition::{First, Last, Middle, Only};

/// A target that records each call as a text.
#[derive(Default)]
struct Notes {
    has_receive: bool,
    texts: Vec<String>,
}

impl ResponderTarget for Notes {
    fn try_begin_receive(&mut self) -> bool {
        self.has_receive
    }

    fn write_to_receive_buffers(&mut self, offset: u32, bytes: &[u8]) -> Result<(), Refusal> {
        self.texts.push(format!("{}@{offset}", bytes.len()));
        Ok(())
    }

    fn finish_receive(
        &mut self,
        _: Option<u32>,
        _: LastPacketField,
        _: bool,
    ) -> Result<(), Refusal> {
        self.texts.push("done".into());
        Ok(())
    }

    fn check_write(&mut self, _addr: u64, rkey: u32, _len: u32) -> Result<(), Refusal> {
        (rkey == RKEY).then_some(()).ok_or(Refusal::RemoteAccess)
    }

    fn write_memory(&mut self, addr: u64, _rkey: u32, bytes: &[u8]) -> Result<(), Refusal> {
        self.texts.push(format!("write {}@{addr}", bytes.len()));
        Ok(())
    }

    fn check_read(&mut self, _: u64, _: u32, _: u32) -> Result<(), Refusal> {
        Err(Refusal::InvalidRequest)
    }

    fn read_memory(&mut self, _: u64, _: u32, _: &mut [u8]) -> Result<(), Refusal> {
        Err(Refusal::InvalidRequest)
    }

    fn execute_atomic(&mut self, _: u64, _: u32, _: AtomicOperation) -> Result<u64, Refusal> {
        Err(Refusal::InvalidRequest)
    }

    fn execute_flush(&mut self, _: u64, _: u32, _: u32, _: u8, _: u8) -> Result<(), Refusal> {
        Err(Refusal::InvalidRequest)
    }
}

impl LocalMemory for Notes {
    fn read_payload(
        &mut self,
        position: u64,
        offset: u32,
        into: &mut [u8],
    ) -> Result<(), LocalFault> {
        self.texts
            .push(format!("{position}: {}@{offset}", into.len()));
        Ok(())
    }

    fn write_read_or_atomic_result(&mut self, _: u64, _: u32, _: &[u8]) -> Result<(), LocalFault> {
        Err(LocalFault)
    }
}

#[test]
#[rustfmt::skip] // a row is a line
fn what_comes_of_packets() {
    let rows: [(&str, Vec<Sample>, &[&str]); 12] = [
        ("a message", vec![send(First, 0, 256), send(Last, 1, 4)], &["256@0", "4@256", "done"]),
        ("a message without its middle does not end", vec![send(First, 0, 256), send(Last, 2, 4), send(Only, 3, 9)], &["256@0", "9@0", "done"]),
        ("nor one without its end", vec![send(First, 0, 256), send(Only, 2, 9)], &["256@0", "9@0", "done"]),
        ("nor one without its beginning", vec![send(Middle, 1, 256), send(Last, 2, 9)], &[]),
        ("a repeated packet is dropped", vec![send(Only, 0, 1), send(Only, 0, 1)], &["1@0", "done"]),
        ("a packet of the past is dropped", vec![send(Only, 4, 1), send(Only, 3, 1)], &["1@0", "done"]),
        ("a message with a new PSN begins again", vec![send(Only, 4, 1), send(First, 0x90_0000, 256), send(Last, 0x90_0001, 2)], &["1@0", "done", "256@0", "2@256", "done"]),
        ("but not in its middle", vec![send(Only, 4, 1), send(Last, 0x90_0000, 2)], &["1@0", "done"]),
        ("what a lost WRITE has written stays", vec![write(First, 0, 256).reth(64, 300), write(Last, 2, 44)], &["write 256@64"]),
        ("a WRITE with immediate", vec![write_only(0, 8).imm()], &["write 8@64", "done"]),
        ("a WRITE with a wrong key is dropped", vec![write_only(0, 8).rkey(1), write_only(1, 9)], &["write 9@64"]),
        ("other requests are dropped", vec![read(0, 0, 8), fetch_add(1, 0, 1)], &[]),
    ];
    for (rule, samples, due) in rows {
        let mut receiver = Receiver::new(MTU, FIRST);
        let mut notes = Notes {
            has_receive: true,
            ..Notes::default()
        };
        for sample in samples {
            receiver.process_received_packet(&sample.unreliable().packet(), &mut notes);
        }
        assert_eq!(notes.texts, due, "{rule}");
        assert!(!receiver.has_failed(), "{rule}");
    }
}

#[test]
fn a_message_without_receive_is_dropped() {
    let mut receiver = Receiver::new(MTU, FIRST);
    let mut notes = Notes::default();
    receiver.process_received_packet(&send(First, 0, 256).unreliable().packet(), &mut notes);
    notes.has_receive = true;
    receiver.process_received_packet(&send(Last, 1, 1).unreliable().packet(), &mut notes);
    assert!(notes.texts.is_empty());
    receiver.process_received_packet(&send(Only, 2, 1).unreliable().packet(), &mut notes);
    assert_eq!(notes.texts, ["1@0", "done"]);
}

#[test]
fn a_message_is_done_when_it_is_sent() {
    let mut sender = Sender::new(20, 0xffff, MTU, Psn::new(0xff_ffff));
    let mut notes = Notes::default();
    let send = |len, tail| Request {
        operation: RequestOperation::Send { len, tail },
        solicited: true,
        fence: false,
    };
    assert_eq!(sender.post(send(257, LastPacketField::Imm([1; 4]))), 1);
    assert_eq!(sender.post(send(0, LastPacketField::None)), 2);
    let mut psns = Vec::new();
    let mut bytes = Vec::new();
    while sender.append_next_packet(&mut notes, &mut bytes) {
        let packet = roce::packet::Packet::parse(&bytes).expect("a packet");
        assert_eq!(packet.bth.transport, Transport::Uc);
        psns.push((
            packet.bth.psn.get(),
            packet.bth.solicited,
            sender.done_request_count(),
        ));
        bytes.clear();
    }
    let due = [(0xff_ffff, false, 0), (0, true, 1), (1, true, 2)];
    assert_eq!(psns, due);
    assert_eq!(notes.texts, ["1: 256@0", "1: 1@256"]);
}

#[test]
fn what_only_reliable_connections_have_fails() {
    let (addr, rkey, len) = (0, RKEY, 8);
    for operation in [
        RequestOperation::Read { addr, rkey, len },
        RequestOperation::Send {
            len,
            tail: LastPacketField::Invalidate(1),
        },
    ] {
        let mut sender = Sender::new(20, 0xffff, MTU, FIRST);
        sender.post(Request {
            operation,
            solicited: false,
            fence: false,
        });
        assert!(!sender.append_next_packet(&mut Notes::default(), &mut Vec::new()));
        assert_eq!(sender.failure(), Some(RequestFailure::RemoteInvalidRequest));
    }
}
