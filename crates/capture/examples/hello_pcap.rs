//! Writes a file with one packet: an acknowledgement of RoCEv2.

use std::path::Path;
use std::time::SystemTime;

use capture::{Capture, Datagram};
use roce::icrc::{self, IcrcFields, IpAddressPair};
use roce::opcode::{MessagePosition, PacketOperation, Transport};
use roce::packet::{Aeth, Bth, ExtendedHeaders, Packet, Syndrome};
use roce::psn::Psn;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "hello.pcap".into());
    let (src, dst) = ("127.0.0.2:49152".parse()?, "127.0.0.3:4791".parse()?);
    let packet = Packet {
        bth: Bth {
            transport: Transport::Rc,
            operation: PacketOperation::Acknowledge,
            position: MessagePosition::Only,
            solicited: false,
            pkey: 0xffff,
            fecn: false,
            becn: false,
            dest_qpn: 17,
            ack_request: false,
            psn: Psn::new(1),
        },
        extended: ExtendedHeaders {
            aeth: Some(Aeth {
                syndrome: Syndrome::Ack(31),
                msn: 1,
            }),
            ..ExtendedHeaders::default()
        },
        payload: &[],
    };
    let frame = IcrcFields {
        addresses: IpAddressPair::new([127, 0, 0, 2].into(), [127, 0, 0, 3].into())
            .ok_or("of two families")?,
        src_port: 49152,
        dst_port: roce::UDP_PORT,
        identification: 0,
    };
    let mut payload = Vec::new();
    packet.emit(&mut payload);
    icrc::append_icrc(&frame, &mut payload, 0);
    let datagram = Datagram {
        src,
        dst,
        identification: frame.identification,
        traffic_class: 0,
        hop_limit: 64,
        payload: &payload,
    };
    Capture::create(Path::new(&path))?.write_packet(SystemTime::now(), &datagram)?;
    println!("{path}: one acknowledgement");
    Ok(())
}
