//! The sending of management datagrams.

use link::PacketFlow;
use roce::mad::{GSI_QKEY, GSI_QPN, MAD_BYTES};
use roce::opcode::{MessagePosition, PacketOperation, Transport};
use roce::packet::{Bth, Deth, ExtendedHeaders, Packet};
use roce::psn::Psn;

use super::{DEFAULT_PKEY, PacketPath};

impl PacketPath {
    /// Sends a management datagram to QP1 of another port.
    pub(crate) fn send_mad(&self, flow: &PacketFlow, mad: &[u8; MAD_BYTES]) {
        let packet = Packet {
            bth: Bth {
                transport: Transport::Ud,
                operation: PacketOperation::Send,
                position: MessagePosition::Only,
                solicited: false,
                pkey: DEFAULT_PKEY,
                fecn: false,
                becn: false,
                dest_qpn: GSI_QPN,
                ack_request: false,
                psn: Psn::new(0),
            },
            extended: ExtendedHeaders {
                deth: Some(Deth {
                    qkey: GSI_QKEY,
                    src_qpn: GSI_QPN,
                }),
                ..ExtendedHeaders::default()
            },
            payload: mad,
        };
        self.enqueue_packet(GSI_QPN, flow, |bytes| packet.emit(bytes));
        self.send_enqueued();
    }
}
