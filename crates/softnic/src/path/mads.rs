//! The sending of management datagrams.

use link::Flow;
use roce::mad::{GSI_QKEY, GSI_QPN, MAD_BYTES};
use roce::opcode::{Operation, Position, Transport};
use roce::packet::{Bth, Deth, Extended, Packet};
use roce::psn::Psn;

use super::{DEFAULT_PKEY, Network};

impl Network {
    /// Sends a management datagram to QP1 of another port.
    pub(crate) fn send_mad(&self, flow: &Flow, mad: &[u8; MAD_BYTES]) {
        let packet = Packet {
            bth: Bth {
                transport: Transport::Ud,
                operation: Operation::Send,
                position: Position::Only,
                solicited: false,
                pkey: DEFAULT_PKEY,
                fecn: false,
                becn: false,
                dest_qpn: GSI_QPN,
                ack_request: false,
                psn: Psn::new(0),
            },
            extended: Extended {
                deth: Some(Deth {
                    qkey: GSI_QKEY,
                    src_qpn: GSI_QPN,
                }),
                ..Extended::default()
            },
            payload: mad,
        };
        self.send_one(GSI_QPN, flow, |bytes| packet.emit(bytes));
        self.flush();
    }
}
