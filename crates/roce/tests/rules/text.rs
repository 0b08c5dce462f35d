//! Packets as short texts, for the tables of rules.

use roce::opcode::{MessagePosition, PacketOperation, Transport};
use roce::packet::{Aeth, AtomicEth, Bth, ExtendedHeaders, Feth, Packet, Reth, Syndrome};
use roce::psn::Psn;

/// The MTU of all tests.
pub(crate) const MTU: u32 = 256;
/// The R_Key of the responder's memory.
pub(crate) const RKEY: u32 = 7;
/// PSN of packet 0; PSNs wrap at packet 2.
pub(crate) const FIRST: Psn = Psn::new(0xff_fffe);

/// A packet that owns its payload.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) bth: Bth,
    pub(crate) extended: ExtendedHeaders,
    pub(crate) payload: Vec<u8>,
}

impl Sample {
    /// Makes packet `index` after [`FIRST`], without payload and acknowledgement request.
    pub(crate) fn new(operation: PacketOperation, position: MessagePosition, index: u32) -> Self {
        Self {
            bth: Bth {
                transport: Transport::Rc,
                operation,
                position,
                solicited: false,
                pkey: 0xffff,
                fecn: false,
                becn: false,
                dest_qpn: 17,
                ack_request: false,
                psn: FIRST.plus(index),
            },
            extended: ExtendedHeaders::default(),
            payload: Vec::new(),
        }
    }

    pub(crate) fn payload(mut self, len: u32) -> Self {
        self.payload = vec![0xa5; len as usize];
        self
    }

    pub(crate) fn ack(mut self) -> Self {
        self.bth.ack_request = true;
        self
    }

    pub(crate) fn imm(mut self) -> Self {
        self.extended.imm = Some([1, 2, 3, 4]);
        self
    }

    pub(crate) fn reth(mut self, addr: u64, len: u32) -> Self {
        let rkey = RKEY;
        self.extended.reth = Some(Reth { addr, rkey, len });
        self
    }

    pub(crate) fn rkey(mut self, rkey: u32) -> Self {
        if let Some(reth) = &mut self.extended.reth {
            reth.rkey = rkey;
        }
        self
    }

    pub(crate) fn syndrome(mut self, syndrome: Syndrome) -> Self {
        self.extended.aeth = Some(Aeth { syndrome, msn: 0 });
        self
    }

    pub(crate) fn unreliable(mut self) -> Self {
        self.bth.transport = Transport::Uc;
        self
    }

    pub(crate) fn packet(&self) -> Packet<'_> {
        Packet {
            bth: self.bth,
            extended: self.extended,
            payload: &self.payload,
        }
    }
}

pub(crate) fn send(position: MessagePosition, index: u32, len: u32) -> Sample {
    Sample::new(PacketOperation::Send, position, index).payload(len)
}

/// Makes a WRITE of a single packet.
pub(crate) fn write_only(index: u32, len: u32) -> Sample {
    let write = Sample::new(PacketOperation::Write, MessagePosition::Only, index);
    write.payload(len).reth(64, len)
}

pub(crate) fn write(position: MessagePosition, index: u32, len: u32) -> Sample {
    Sample::new(PacketOperation::Write, position, index).payload(len)
}

pub(crate) fn read(index: u32, addr: u64, len: u32) -> Sample {
    Sample::new(PacketOperation::ReadRequest, MessagePosition::Only, index).reth(addr, len)
}

pub(crate) fn fetch_add(index: u32, addr: u64, add: u64) -> Sample {
    let mut sample = Sample::new(PacketOperation::FetchAdd, MessagePosition::Only, index);
    sample.extended.atomic = Some(AtomicEth {
        addr,
        rkey: RKEY,
        swap_or_add: add,
        compare: 0,
    });
    sample
}

pub(crate) fn atomic_write(index: u32, addr: u64) -> Sample {
    let sample = Sample::new(PacketOperation::AtomicWrite, MessagePosition::Only, index);
    sample.reth(addr, 8).payload(8)
}

pub(crate) fn flush(index: u32) -> Sample {
    let mut sample = Sample::new(PacketOperation::Flush, MessagePosition::Only, index).reth(0, 100);
    sample.extended.feth = Some(Feth {
        placement: 1,
        selectivity: 0,
    });
    sample
}

pub(crate) fn acknowledge(index: u32, syndrome: Syndrome) -> Sample {
    Sample::new(PacketOperation::Acknowledge, MessagePosition::Only, index).syndrome(syndrome)
}

pub(crate) fn ack(index: u32) -> Sample {
    acknowledge(index, Syndrome::Ack(31))
}

pub(crate) fn nak(index: u32, code: u8) -> Sample {
    acknowledge(index, Syndrome::Nak(code))
}

pub(crate) fn rnr(index: u32, code: u8) -> Sample {
    acknowledge(index, Syndrome::RnrNak(code))
}

pub(crate) fn response(position: MessagePosition, index: u32, len: u32) -> Sample {
    let response = Sample::new(PacketOperation::ReadResponse, position, index).payload(len);
    match position {
        MessagePosition::Middle => response,
        _ => response.syndrome(Syndrome::Ack(31)),
    }
}

pub(crate) fn atomic_response(index: u32, original: u64) -> Sample {
    let mut sample = Sample::new(
        PacketOperation::AtomicAcknowledge,
        MessagePosition::Only,
        index,
    )
    .syndrome(Syndrome::Ack(31));
    sample.extended.original_value = Some(original);
    sample
}

/// Describes an emitted packet as a text: its type, the index of its PSN, and the other relevant fields.
pub(crate) fn describe(bytes: &[u8]) -> String {
    let packet = Packet::parse(bytes).expect("an emitted packet can be parsed");
    let Packet {
        bth,
        extended,
        payload,
    } = packet;
    let index = bth.psn.signed_distance_from(FIRST);
    let len = payload.len();
    let place = match bth.position {
        MessagePosition::First => "first",
        MessagePosition::Middle => "middle",
        MessagePosition::Last => "last",
        MessagePosition::Only => "only",
    };
    let asks = if bth.ack_request { " ask" } else { "" };
    let reth = extended
        .reth
        .map(|reth| format!(" @{}+{}", reth.addr, reth.len));
    let reth = reth.unwrap_or_default();
    match (bth.operation, extended.aeth.map(|aeth| aeth.syndrome)) {
        (PacketOperation::Acknowledge, Some(Syndrome::Ack(_))) => format!("ack {index}"),
        (PacketOperation::Acknowledge, Some(Syndrome::Nak(code))) => format!("nak{code} {index}"),
        (PacketOperation::Acknowledge, Some(Syndrome::RnrNak(code))) => {
            format!("rnr{code} {index}")
        }
        (PacketOperation::AtomicAcknowledge, _) => {
            format!(
                "original {index} {}",
                extended.original_value.unwrap_or(u64::MAX)
            )
        }
        (PacketOperation::ReadResponse, aeth) => {
            let aeth = if aeth.is_some() { "" } else { " bare" };
            format!("response {place} {index} {len}{aeth}")
        }
        (PacketOperation::Cnp, _) => format!("cnp to {}", bth.dest_qpn),
        (PacketOperation::ReadRequest, _) => format!("read {index}{reth}"),
        (PacketOperation::Send, _) => format!("send {place} {index} {len}{asks}"),
        (PacketOperation::Write, _) => format!("write {place} {index} {len}{reth}{asks}"),
        (other, _) => format!("{other:?} {index}").to_lowercase(),
    }
}
