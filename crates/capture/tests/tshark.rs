//! tshark decodes captures as InfiniBand over UDP and reads the written field values. The tests
//! need tshark; `pcap_file.rs` and the crate `roce` check the same bytes without tshark.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

use capture::{Capture, Datagram};
use roce::cm::{
    BoundedData, CmMessage, ConnectionPath as CmPath, Dreq, Mra, PortSpace, Rej, Rep, Req,
    RtuOrDrep,
};
use roce::cm::{
    IpCmHeader, ReferredMessage, SidrRep, SidrReq, TransportService, reason, sidr_status,
};
use roce::icrc::{self, IcrcFields, IpAddressPair};
use roce::mad::{GSI_QKEY, GSI_QPN};
use roce::opcode::Opcode;
use roce::packet::{Aeth, AtomicEth, Bth, Deth, ExtendedHeaders, Feth, Packet, Reth, Syndrome};
use roce::psn::Psn;

/// A capture into which packets are written.
struct Wire {
    capture: Capture,
    addresses: IpAddressPair,
    identification: u16,
}

impl Wire {
    fn new(path: &Path, src: &str, dst: &str) -> Self {
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        Self {
            capture: Capture::open(path).expect("it is opened"),
            addresses: IpAddressPair::new(ip(src), ip(dst)).expect("of one family"),
            identification: 0,
        }
    }

    fn send(&mut self, packet: &Packet<'_>) {
        let frame = IcrcFields {
            addresses: self.addresses,
            src_port: 0xc123,
            dst_port: roce::UDP_PORT,
            identification: self.identification,
        };
        self.identification += 1;
        let mut payload = Vec::new();
        packet.emit(&mut payload);
        icrc::append_icrc(&frame, &mut payload, 0);
        let datagram = Datagram {
            src: SocketAddr::new(self.addresses.src(), frame.src_port),
            dst: SocketAddr::new(self.addresses.dst(), frame.dst_port),
            identification: frame.identification,
            traffic_class: 2,
            hop_limit: 64,
            payload: &payload,
        };
        self.capture
            .write_packet(SystemTime::now(), &datagram)
            .expect("it is written");
    }
}

/// Returns the fields of each packet as tshark prints them; `None` without tshark.
fn decoded(path: &Path, fields: &[&str]) -> Option<Vec<Vec<String>>> {
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(path).args([
        "-o",
        "udp.check_checksum:TRUE",
        "-o",
        "ip.check_checksum:TRUE",
    ]);
    tshark.args(["-T", "fields", "-E", "separator=;"]);
    for field in fields {
        tshark.args(["-e", field]);
    }
    let output = match tshark.output() {
        Ok(output) => output,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("skipped: tshark is not installed");
            return None;
        }
        Err(error) => panic!("tshark: {error}"),
    };
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "tshark: {complaints}");
    let lines = String::from_utf8(output.stdout).expect("text");
    let columns = |line: &str| line.split(';').map(str::to_owned).collect();
    Some(lines.lines().map(columns).collect())
}

/// Fields that contain tshark's warnings.
const COMPLAINTS: [&str; 2] = ["_ws.malformed", "_ws.expert.message"];

/// Returns a packet with all extended headers; `emit` writes only those of its opcode.
fn packet(opcode: Opcode, number: u32, payload: &[u8]) -> Packet<'_> {
    use roce::opcode::{LastPacketFieldKind, PacketOperation as O};
    let imm = (opcode.last_packet_field == LastPacketFieldKind::Imm).then_some([1, 2, 3, 4]);
    let ieth = (opcode.last_packet_field == LastPacketFieldKind::Invalidate).then_some(0x5566_7788);
    let has_payload = matches!(opcode.operation, O::Send | O::Write | O::ReadResponse);
    Packet {
        bth: Bth {
            transport: opcode.transport,
            operation: opcode.operation,
            position: opcode.position,
            solicited: false,
            pkey: 0xffff,
            fecn: false,
            becn: opcode.operation == O::Cnp,
            dest_qpn: 0x11,
            ack_request: false,
            psn: Psn::new(number),
        },
        extended: ExtendedHeaders {
            deth: Some(Deth {
                qkey: 0x1111_1111,
                src_qpn: 0x22,
            }),
            xrceth_srqn: Some(0x33),
            feth: Some(Feth {
                placement: 1,
                selectivity: 0,
            }),
            reth: Some(Reth {
                addr: 0x7f00_0000_1000,
                rkey: 0x1234,
                len: 4096,
            }),
            atomic: Some(AtomicEth {
                addr: 0x7f00_0000_1000,
                rkey: 0x1234,
                swap_or_add: 7,
                compare: 6,
            }),
            aeth: Some(Aeth {
                syndrome: Syndrome::Ack(31),
                msn: number,
            }),
            original_value: Some(5),
            imm,
            ieth_rkey: ieth,
        },
        payload: match opcode.operation {
            O::AtomicWrite => &[8; 8],
            _ if has_payload => payload,
            _ => &[],
        },
    }
}

#[test]
fn tshark_reads_packets_of_each_opcode() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("opcodes.pcap");
    let mut sent = Vec::new();
    for (src, dst) in [("192.0.2.1", "192.0.2.2"), ("2001:db8::1", "2001:db8::2")] {
        let mut wire = Wire::new(&path, src, dst);
        for byte in 0..=255_u8 {
            let Some(opcode) = Opcode::from_byte(byte) else {
                continue;
            };
            for len in [256, 255, 253] {
                let number = 0x00ff_ff00 | u32::from(byte);
                wire.send(&packet(opcode, number, &[byte; 256][..len]));
                sent.push((byte, number, src));
            }
        }
    }
    let fields = [
        "infiniband.bth.opcode",
        "infiniband.bth.psn",
        "infiniband.invariant.crc",
    ];
    let addresses = ["ip.src", "ipv6.src"];
    let Some(lines) = decoded(&path, &[&fields[..], &addresses, &COMPLAINTS].concat()) else {
        return;
    };
    assert_eq!(lines.len(), sent.len());
    for (line, (byte, number, src)) in lines.iter().zip(sent) {
        let [opcode, psn, _, v4, v6, malformed, expert] = line.as_slice() else {
            panic!("{line:?}");
        };
        assert_eq!((opcode, psn), (&byte.to_string(), &number.to_string()));
        assert_eq!(format!("{v4}{v6}"), src);
        assert_eq!(format!("{malformed}{expert}"), "", "opcode {byte:#x}");
    }
}

/// Sends a message as a datagram from QP1 to QP1.
fn send_message(wire: &mut Wire, number: u32, message: &CmMessage) {
    let mad = message.emit(0x1122);
    let mut datagram = packet(Opcode::from_byte(0x64).expect("UD SEND"), number, &mad);
    datagram.bth.dest_qpn = GSI_QPN;
    datagram.extended.deth = Some(Deth {
        qkey: GSI_QKEY,
        src_qpn: GSI_QPN,
    });
    wire.send(&datagram);
}

fn req(addresses: IpAddressPair) -> Req {
    let header = IpCmHeader {
        addresses,
        src_port: 43_210,
    };
    Req {
        local_comm_id: 0x1122_3344,
        service_id: PortSpace::Tcp.service_id(7471),
        local_ca_guid: 0x0102_0304_0506_0708,
        local_qkey: 0,
        local_qpn: 0x00ab_cdef,
        responder_resources: 16,
        initiator_depth: 8,
        remote_cm_response_timeout: 20,
        transport_service: TransportService::Rc,
        flow_control: true,
        starting_psn_from_peer: Psn::new(0x0012_3456),
        local_cm_response_timeout: 21,
        retry_count: 7,
        pkey: 0xffff,
        path_mtu: 3,
        rnr_retry_count: 6,
        max_cm_retries: 15,
        has_srq: true,
        primary: CmPath {
            flow_label: 0x000a_bcde,
            packet_rate: 2,
            traffic_class: 0x68,
            hop_limit: 64,
            service_level: 5,
            local_ack_timeout: 19,
            ..CmPath::default()
        },
        alternate: None,
        private_data: BoundedData::new(&header.emit()).expect("it fits"),
    }
}

fn rep() -> Rep {
    Rep {
        local_comm_id: 0x5566_7788,
        remote_comm_id: 0x1122_3344,
        local_qkey: 0,
        local_qpn: 0x0012_abcd,
        starting_psn_from_peer: Psn::new(0x00fe_dcba),
        responder_resources: 4,
        initiator_depth: 3,
        target_ack_delay: 15,
        failover_accepted: 1,
        flow_control: true,
        rnr_retry_count: 7,
        has_srq: true,
        local_ca_guid: 0x0807_0605_0403_0201,
        private_data: BoundedData::default(),
    }
}

/// Messages other than REQ and REP.
fn short_messages() -> [CmMessage; 7] {
    let (local_comm_id, remote_comm_id) = (0x5566_7788, 0x1122_3344);
    let notice = RtuOrDrep {
        local_comm_id,
        remote_comm_id,
        private_data: BoundedData::default(),
    };
    [
        CmMessage::Mra(Mra {
            local_comm_id,
            remote_comm_id,
            acknowledged_message: ReferredMessage::Req,
            service_timeout: 24,
            private_data: BoundedData::default(),
        }),
        CmMessage::Rej(Rej {
            local_comm_id,
            remote_comm_id,
            rejected_message: ReferredMessage::Rep,
            reason: reason::CONSUMER_DEFINED,
            additional_info: BoundedData::new(&[1; 9]).expect("it fits"),
            private_data: BoundedData::default(),
        }),
        CmMessage::Rtu(notice),
        CmMessage::Dreq(Dreq {
            local_comm_id,
            remote_comm_id,
            remote_qpn: 0x0012_abcd,
            private_data: BoundedData::default(),
        }),
        CmMessage::Drep(notice),
        CmMessage::SidrReq(SidrReq {
            request_id: 9,
            pkey: 0xffff,
            service_id: PortSpace::Udp.service_id(7471),
            private_data: BoundedData::default(),
        }),
        CmMessage::SidrRep(SidrRep {
            request_id: 9,
            status: sidr_status::VALID,
            qpn: 0x12,
            service_id: PortSpace::Udp.service_id(7471),
            qkey: 0x0123_4567,
            additional_info: BoundedData::default(),
            private_data: BoundedData::default(),
        }),
    ]
}

#[test]
fn tshark_reads_messages_of_communication_management() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("cm.pcap");
    let mut wire = Wire::new(&path, "192.0.2.1", "192.0.2.2");
    let mut messages = vec![CmMessage::Req(req(wire.addresses)), CmMessage::Rep(rep())];
    messages.extend(short_messages());
    for (number, message) in (0..).zip(&messages) {
        send_message(&mut wire, number, message);
    }
    let by_name = |names: &[&str]| decoded(&path, names);
    let Some(lines) = by_name(&[&["infiniband.mad.attributeid"][..], &COMPLAINTS].concat()) else {
        return;
    };
    let expected: Vec<Vec<String>> = messages
        .iter()
        .map(|message| {
            vec![
                format!("{:#06x}", message.attribute_id()),
                String::new(),
                String::new(),
            ]
        })
        .collect();
    assert_eq!(lines, expected);

    // Each field of a line: its name, and the value that tshark prints.
    let check = |line: usize, prefix: &str, fields: &[(&str, &str)]| {
        let names: Vec<String> = fields
            .iter()
            .map(|(name, _)| format!("{prefix}.{name}"))
            .collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let lines = by_name(&names).expect("tshark was there");
        for (found, (name, expected)) in lines[line].iter().zip(fields) {
            assert_eq!(found, expected, "{prefix}.{name}");
        }
    };
    check(0, "infiniband.cm.req", REQ_FIELDS);
    check(1, "infiniband.cm.rep", REP_FIELDS);
    let ids = [
        ("localcommid", "0x55667788"),
        ("remotecommid", "0x11223344"),
    ];
    check(3, "infiniband.cm.rej", &[&ids[..], REJ_FIELDS].concat());
    check(4, "infiniband.cm.rtu", &ids);
    check(5, "infiniband.cm.dreq", &ids);
    check(5, "infiniband.cm.req", &[("remoteqpneecn", "0x12abcd")]);
    check(6, "infiniband.cm.drsp", &ids);
}

/// The fields of the REQ in tshark. tshark 4.0 reads flow label and packet rate at other bit
/// positions than the specification's.
const REQ_FIELDS: &[(&str, &str)] = &[
    ("serviceid", "0x0000000001061d2f"),
    ("serviceid.dport", "0x1d2f"),
    ("localcaguid", "0x0102030405060708"),
    ("localqpn", "0xabcdef"),
    ("responderres", "0x10"),
    ("initdepth", "0x08"),
    ("remoteresptout", "0x14"),
    ("transpsvctype", "0x00"),
    ("e2eflowctrl", "0x01"),
    ("startpsn", "0x123456"),
    ("localresptout", "0x15"),
    ("retrcount", "0x07"),
    ("pkey", "0xffff"),
    ("pppmtu", "0x03"),
    ("rnrretrcount", "0x06"),
    ("maxcmretr", "0x0f"),
    ("srq", "0x01"),
    ("prim_tfcclass", "0x68"),
    ("prim_hoplim", "0x40"),
    ("prim_sl", "0x05"),
    ("prim_localacktout", "0x13"),
    ("ip_cm.ipv", "0x04"),
    ("ip_cm.sport", "0xa8ca"),
    ("ip_cm.sip4", "192.0.2.1"),
    ("ip_cm.dip4", "192.0.2.2"),
];

/// The fields of the REP in tshark.
const REP_FIELDS: &[(&str, &str)] = &[
    ("remotecommid", "0x11223344"),
    ("localqpn", "0x12abcd"),
    ("startpsn", "0xfedcba"),
    ("respres", "0x04"),
    ("initdepth", "0x03"),
    ("tgtackdelay", "0x0f"),
    ("failoveracc", "0x01"),
    ("e2eflowctrl", "0x01"),
    ("rnrretrcount", "0x07"),
    ("srq", "0x01"),
    ("localcaguid", "0x0807060504030201"),
];

/// The fields of the REJ in tshark.
const REJ_FIELDS: &[(&str, &str)] = &[
    ("msgrej", "0x01"),
    ("rejinfolen", "0x09"),
    ("reason", "0x001c"),
];
