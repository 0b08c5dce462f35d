//! Tests of invalid packets, sent from a plain UDP socket to live queue pairs of the software NIC.
//!
//! Each invalid packet is dropped, and the counter for its flaw counts it; memory stays unchanged. The number
//! of replies is bounded: a stranger gets no reply, and a peer gets one NAK. The counters show when all
//! packets have been processed, so no test waits for silence.

use std::net::{Ipv4Addr, UdpSocket};
use std::process::ExitCode;
use std::time::Duration;

use roce::icrc::{self, IcrcFields, IpAddressPair};
use roce::opcode::{MessagePosition, PacketOperation, Transport};
use roce::packet::{
    Aeth, Bth, Deth, ExtendedHeaders, NAK_INVALID_REQUEST, NAK_PSN_SEQUENCE, NAK_REMOTE_ACCESS,
    Packet, Reth, Syndrome,
};
use roce::psn::Psn;
use verbs_abi::{IBV_MTU_4096, IBV_QPS_ERR};
use verbs_conformance::harness::{self, SuiteVariant};
use verbs_conformance::objects::Buf;
use verbs_conformance::pair::{QKEY, QpAddress, QpSide, QpSpec};
use verbs_conformance::{SuiteTest, TestEnv};

macro_rules! tests {
    ($( $name:ident, )*) => {
        const TESTS: &[SuiteTest] = &[$( SuiteTest {
            name: concat!("hostile_packets::", stringify!($name)),
            needed_capabilities: &[],
            run: |env| $name(env).into(),
        } ),*];
    };
}

tests! {
    a_good_packet_does_what_it_says,
    a_stranger_reaches_no_connection,
    a_wrong_icrc_is_dropped,
    nobody_has_the_queue_pair,
    another_partition_is_dropped,
    a_wrong_qkey_is_dropped,
    a_queue_pair_that_is_not_connected_takes_nothing,
    psns_ahead_get_one_nak,
    psns_from_before_the_connection_get_nothing,
    a_guessed_rkey_ends_the_connection_once,
    truncated_packets_are_dropped,
    a_payload_longer_than_the_path_mtu_is_refused,
    a_flood_of_notifications_is_obeyed_and_not_answered,
    rubbish_for_qp1_is_dropped,
}

fn main() -> ExitCode {
    let tests: Vec<&'static SuiteTest> = TESTS.iter().collect();
    let mut variant = SuiteVariant::softnic("roce");
    "hostile".clone_into(&mut variant.test_name_prefix);
    variant.gives_test_own_address = true;
    variant.hang_timeout = Duration::from_secs(60);
    variant.settings.gid_index = 1;
    harness::main(&tests, &[variant])
}

/// QP number of the peer, which is not a queue pair but a socket.
const PEER_QPN: u32 = 0x1234;
/// First PSN of the peer.
const PSN: Psn = Psn::new(0x00ff_fffe);
const BYTES: usize = 8192;
const SEED: u64 = 7;

/// A queue pair with a remotely writable buffer, and the sockets of its peer and of a stranger.
struct Scene {
    side: QpSide,
    target: Buf,
    ip: Ipv4Addr,
    peer: Sender,
    stranger: Sender,
}

/// A host that sends and receives through a UDP socket.
struct Sender {
    ip: Ipv4Addr,
    socket: UdpSocket,
}

impl Scene {
    /// Makes a scene whose queue pair is not connected.
    fn unconnected(env: &TestEnv, spec: &QpSpec) -> Self {
        let ip: Ipv4Addr = std::env::var("VERBATIM_ADDRESS")
            .expect("the harness gives an address")
            .parse()
            .expect("an address");
        // Tests have the addresses 127.1.x.y, 127.2.x.y, ...; there are fewer than 80 tests.
        let [net, test, rest @ ..] = ip.octets();
        let sender = |above: u8| {
            let ip = Ipv4Addr::from([net, test + above, rest[0], rest[1]]);
            let socket = UdpSocket::bind((ip, roce::UDP_PORT)).expect("nobody has the port");
            socket.set_nonblocking(true).expect("a flag");
            Sender { ip, socket }
        };
        let side = spec.create_qp_side(env);
        let target = side.alloc_buf(BYTES);
        target.memory.fill_with_pattern(SEED);
        Self {
            side,
            target,
            ip,
            peer: sender(80),
            stranger: sender(160),
        }
    }

    /// Makes a scene whose queue pair is ready to send and receive.
    fn connected(env: &TestEnv, spec: &QpSpec) -> Self {
        let mut scene = Self::unconnected(env, spec);
        let mut gid = [0; 16];
        gid[10..12].fill(0xff);
        gid[12..].copy_from_slice(&scene.peer.ip.octets());
        scene.side.connect(&QpAddress {
            qpn: PEER_QPN,
            lid: 0,
            gid,
            psn: PSN.get(),
            active_mtu: IBV_MTU_4096,
        });
        scene
    }

    fn rc(env: &TestEnv) -> Self {
        Self::connected(env, &QpSpec::rc())
    }

    fn bth(&self, operation: PacketOperation, psn: Psn) -> Bth {
        Bth {
            transport: Transport::Rc,
            operation,
            position: MessagePosition::Only,
            solicited: false,
            pkey: 0xffff,
            fecn: false,
            becn: false,
            dest_qpn: self.side.qp.qpn(),
            ack_request: true,
            psn,
        }
    }

    /// Returns a packet of a WRITE to the buffer, which is valid if the peer sends it with this PSN.
    fn write(&self, psn: Psn, payload: &[u8]) -> Vec<u8> {
        let extended = self.reth(payload.len());
        emit(self.bth(PacketOperation::Write, psn), extended, payload)
    }

    fn reth(&self, len: usize) -> ExtendedHeaders {
        let target = self.target.remote_address();
        ExtendedHeaders {
            reth: Some(Reth {
                addr: target.addr,
                rkey: target.rkey,
                len: len.try_into().expect("a length"),
            }),
            ..ExtendedHeaders::default()
        }
    }

    /// Sends the bytes of a packet from the BTH to the pad, with a correct ICRC.
    fn send(&self, from: &Sender, transport: &[u8]) {
        let mut datagram = transport.to_vec();
        let addresses = IpAddressPair::new(from.ip.into(), self.ip.into()).expect("of one family");
        let frame = IcrcFields {
            addresses,
            src_port: roce::UDP_PORT,
            dst_port: roce::UDP_PORT,
            identification: 0,
        };
        icrc::append_icrc(&frame, &mut datagram, 0);
        self.send_raw(from, &datagram);
    }

    fn send_raw(&self, from: &Sender, datagram: &[u8]) {
        let to = (self.ip, roce::UDP_PORT);
        from.socket.send_to(datagram, to).expect("it is sent");
    }

    /// Waits until the counters have the values in `due`. Checks that no other counter has counted, that
    /// memory is unchanged, and that the stranger gets no reply.
    #[track_caller]
    fn expect(&self, due: &[(&str, u64)]) {
        loop {
            let counters = counters();
            for (name, count) in &counters {
                let limit = due.iter().find(|(n, _)| n == name).map_or(0, |(_, n)| *n);
                // Each received packet is counted by this counter, and again by the counter of its outcome.
                let is_fine = *name == "rcvd_pkts" || *count <= limit;
                assert!(is_fine, "{name} is {count}, not {limit}: {counters:?}");
            }
            if due.iter().all(|(name, n)| value(&counters, name) == *n) {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.target.memory.assert_whole_pattern(SEED);
        assert_eq!(
            self.stranger.received_packets(),
            0,
            "a stranger is answered"
        );
    }
}

/// Returns the port's counters as the NIC has published them last.
#[track_caller]
fn counters() -> Vec<(&'static str, u64)> {
    softnic::packet_report(0, 1)
        .expect("a software NIC")
        .counters
}

#[track_caller]
fn value(counters: &[(&str, u64)], name: &str) -> u64 {
    let found = counters.iter().find(|(n, _)| *n == name);
    found.unwrap_or_else(|| panic!("no counter {name}")).1
}

impl Sender {
    /// Returns the number of packets received.
    fn received_packets(&self) -> usize {
        let mut count = 0;
        while self.socket.recv(&mut [0; 65536]).is_ok() {
            count += 1;
        }
        count
    }

    /// Returns syndrome and PSN of the only received packet, an acknowledgement.
    #[track_caller]
    fn one_answer(&self) -> (Syndrome, Psn) {
        let mut bytes = [0; 65536];
        let len = self.socket.recv(&mut bytes).expect("an answer");
        assert_eq!(self.received_packets(), 0, "more than one answer");
        let (transport, _) = icrc::split_off_icrc(&bytes[..len]).expect("an ICRC");
        let packet = Packet::parse(transport).expect("a packet");
        assert_eq!(packet.bth.dest_qpn, PEER_QPN);
        let Aeth { syndrome, .. } = packet.extended.aeth.expect("an acknowledgement");
        (syndrome, packet.bth.psn)
    }
}

fn emit(bth: Bth, extended: ExtendedHeaders, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    Packet {
        bth,
        extended,
        payload,
    }
    .emit(&mut bytes);
    bytes
}

/// A correct packet has its effect. The refusals in other tests are therefore due to the flaws of their
/// packets.
fn a_good_packet_does_what_it_says(env: &TestEnv) {
    let scene = Scene::rc(env);
    let same = scene.target.memory.read(0, 64);
    scene.send(&scene.peer, &scene.write(PSN, &same));
    scene.expect(&[("sent_pkts", 1)]);
    assert!(matches!(scene.peer.one_answer(), (Syndrome::Ack(_), PSN)));
    scene.send(&scene.peer, &scene.write(PSN.plus(1), &[0xee; 64]));
    loop {
        if scene.target.memory.read(0, 64) == [0xee; 64] {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn a_stranger_reaches_no_connection(env: &TestEnv) {
    let scene = Scene::rc(env);
    let (syndrome, msn) = (Syndrome::Nak(NAK_REMOTE_ACCESS), 0);
    let ack = ExtendedHeaders {
        aeth: Some(Aeth { syndrome, msn }),
        ..ExtendedHeaders::default()
    };
    let mut notification = scene.bth(PacketOperation::Cnp, PSN);
    notification.transport = Transport::Cnp;
    let mut rkeys = scene.reth(64);
    let mut packets = vec![
        scene.write(PSN, &[0xee; 64]),
        emit(
            scene.bth(PacketOperation::ReadRequest, PSN),
            scene.reth(BYTES),
            &[],
        ),
        emit(
            scene.bth(PacketOperation::Send, PSN),
            ExtendedHeaders::default(),
            &[0xee; 64],
        ),
        emit(
            scene.bth(PacketOperation::Acknowledge, scene_psn(&scene)),
            ack,
            &[],
        ),
        emit(notification, ExtendedHeaders::default(), &[]),
    ];
    // The stranger sends WRITEs with guessed R_Keys.
    for guess in 0..200 {
        if let Some(reth) = &mut rkeys.reth {
            reth.rkey = guess * 0x0101_0101;
        }
        packets.push(emit(
            scene.bth(PacketOperation::Write, PSN),
            rkeys,
            &[0xee; 64],
        ));
    }
    for packet in &packets {
        scene.send(&scene.stranger, packet);
    }
    scene.expect(&[("rx_wrong_source", packets.len() as u64)]);
    assert_eq!(scene.peer.received_packets(), 0);
}

/// Returns the first PSN that the queue pair sends.
fn scene_psn(scene: &Scene) -> Psn {
    Psn::new(scene.side.address().psn)
}

fn a_wrong_icrc_is_dropped(env: &TestEnv) {
    let scene = Scene::rc(env);
    let good = scene.write(PSN, &[0xee; 64]);
    for bit in 0..100 {
        let mut datagram = good.clone();
        // These bytes are not the packet's ICRC for any identification in the IPv4 header.
        datagram.extend_from_slice(&[0x5a; 4]);
        datagram[40 + bit / 8] ^= 1 << (bit % 8);
        scene.send_raw(&scene.peer, &datagram);
    }
    scene.expect(&[("rx_icrc_encapsulated", 100)]);
    assert_eq!(scene.peer.received_packets(), 0);
}

fn nobody_has_the_queue_pair(env: &TestEnv) {
    let scene = Scene::rc(env);
    let own = scene.side.qp.qpn();
    let mut count = 0;
    // Slots are assigned in turn, so no process has a slot that is 200 or more behind this process's slot. A
    // slot has 2^14 QP numbers, and slots are 1 to 1023.
    let others = (200..240).map(|away| ((own >> 14) - 1 + away) % 1023 + 1);
    let elsewhere = others.map(|slot| slot << 14 | own & 0x3fff);
    for qpn in (1..40).map(|i| own ^ i).chain(elsewhere) {
        let mut bth = scene.bth(PacketOperation::Write, PSN);
        bth.dest_qpn = qpn;
        scene.send(&scene.peer, &emit(bth, scene.reth(64), &[0xee; 64]));
        count += 1;
    }
    // The packet has another transport service than the queue pair.
    let mut datagram = scene.bth(PacketOperation::Send, PSN);
    datagram.transport = Transport::Ud;
    let deth = ExtendedHeaders {
        deth: Some(Deth {
            qkey: QKEY,
            src_qpn: PEER_QPN,
        }),
        ..ExtendedHeaders::default()
    };
    scene.send(&scene.peer, &emit(datagram, deth, &[0xee; 64]));
    scene.expect(&[("rx_unknown_qp", count + 1)]);
    assert_eq!(scene.peer.received_packets(), 0);
}

fn another_partition_is_dropped(env: &TestEnv) {
    let scene = Scene::rc(env);
    for pkey in [0, 1, 0x7ffe, 0x8000, 0xfffe] {
        let mut bth = scene.bth(PacketOperation::Write, PSN);
        bth.pkey = pkey;
        scene.send(&scene.peer, &emit(bth, scene.reth(64), &[0xee; 64]));
    }
    scene.expect(&[("rx_wrong_pkey", 5)]);
    assert_eq!(scene.peer.received_packets(), 0);
}

fn a_wrong_qkey_is_dropped(env: &TestEnv) {
    let scene = Scene::connected(env, &QpSpec::ud());
    let received = scene.side.alloc_buf(40 + 64);
    scene.side.post_recv(1, [received.whole_sge()]);
    let datagram = |qkey: u32| {
        let mut bth = scene.bth(PacketOperation::Send, PSN);
        bth.transport = Transport::Ud;
        let deth = Deth {
            qkey,
            src_qpn: PEER_QPN,
        };
        let extended = ExtendedHeaders {
            deth: Some(deth),
            ..ExtendedHeaders::default()
        };
        emit(bth, extended, &[0xee; 64])
    };
    for wrong in [0, QKEY ^ 1, QKEY | 1 << 31, u32::MAX] {
        scene.send(&scene.stranger, &datagram(wrong));
    }
    scene.expect(&[("rx_wrong_qkey", 4)]);
    scene.side.rcq.expect_empty();
    // A datagram with the right Q_Key is accepted from any sender, and is not answered.
    scene.send(&scene.stranger, &datagram(QKEY));
    scene
        .side
        .await_recv_completion()
        .expect_received(1, 40 + 64);
    scene.expect(&[("rx_wrong_qkey", 4), ("rdma_recvs", 1)]);
}

fn a_queue_pair_that_is_not_connected_takes_nothing(env: &TestEnv) {
    // The sockets exist because another queue pair needs them.
    let scene = Scene::rc(env);
    let initial = scene.side.create_side_on_same_pd_and_cqs();
    initial.to_init();
    let mut bth = scene.bth(PacketOperation::Write, PSN);
    bth.dest_qpn = initial.qp.qpn();
    for from in [&scene.peer, &scene.stranger] {
        scene.send(from, &emit(bth, scene.reth(64), &[0xee; 64]));
    }
    scene.expect(&[("rx_qp_not_ready", 2)]);
    assert_eq!(scene.peer.received_packets(), 0);
}

fn psns_ahead_get_one_nak(env: &TestEnv) {
    let scene = Scene::rc(env);
    for ahead in (1..200).chain([1 << 20, (1 << 22) + 1]) {
        let packet = scene.write(PSN.plus(ahead), &[0xee; 64]);
        scene.send(&scene.peer, &packet);
    }
    scene.expect(&[("out_of_seq_request", 201), ("sent_pkts", 1)]);
    let asks = (Syndrome::Nak(NAK_PSN_SEQUENCE), PSN);
    assert_eq!(scene.peer.one_answer(), asks);
}

fn psns_from_before_the_connection_get_nothing(env: &TestEnv) {
    let scene = Scene::rc(env);
    for behind in (1..100).chain([1 << 20, 1 << 22]) {
        let packet = scene.write(PSN.plus((1 << 24) - behind), &[0xee; 64]);
        scene.send(&scene.peer, &packet);
    }
    scene.expect(&[("duplicate_request", 101)]);
    assert_eq!(scene.peer.received_packets(), 0);
}

fn a_guessed_rkey_ends_the_connection_once(env: &TestEnv) {
    let scene = Scene::rc(env);
    let guess = |index: u32| {
        let mut extended = scene.reth(64);
        if let Some(reth) = &mut extended.reth {
            reth.rkey ^= 1 << (index % 32);
        }
        emit(
            scene.bth(PacketOperation::Write, PSN),
            extended,
            &[0xee; 64],
        )
    };
    scene.send(&scene.peer, &guess(0));
    scene.side.qp.await_state(IBV_QPS_ERR);
    for index in 1..100 {
        scene.send(&scene.peer, &guess(index));
    }
    scene.expect(&[
        ("resp_remote_access_errors", 1),
        ("rx_qp_not_ready", 99),
        ("sent_pkts", 1),
    ]);
    let refused = (Syndrome::Nak(NAK_REMOTE_ACCESS), PSN);
    assert_eq!(scene.peer.one_answer(), refused);
}

fn truncated_packets_are_dropped(env: &TestEnv) {
    let scene = Scene::rc(env);
    let good = scene.write(PSN, &[0xee; 64]);
    // BTH and RETH have 28 bytes. A packet that ends within them has a correct ICRC here, and 4 to 31 bytes
    // in all.
    for len in 0..28 {
        scene.send(&scene.peer, &good[..len]);
    }
    // A packet's length must be a multiple of 4 bytes.
    for len in [29, 30, 31, 90, 91] {
        scene.send(&scene.peer, &good[..len]);
    }
    // An empty datagram is no packet, and not counted: it asks whether the port is open.
    for len in 0..4 {
        scene.send_raw(&scene.peer, &good[..len]);
    }
    // One packet has an unassigned opcode, the other has a pad longer than its payload.
    let mut unknown = good.clone();
    unknown[0] = 0x1f;
    scene.send(&scene.peer, &unknown);
    let mut padded = scene.write(PSN, &[]);
    padded[1] |= 3 << 4;
    scene.send(&scene.peer, &padded);
    scene.expect(&[("rx_malformed", 28 + 5 + 3 + 2)]);
    assert_eq!(scene.peer.received_packets(), 0);
}

fn a_payload_longer_than_the_path_mtu_is_refused(env: &TestEnv) {
    let scene = Scene::rc(env);
    scene.send(&scene.peer, &scene.write(PSN, &[0xee; 4100]));
    scene.side.qp.await_state(IBV_QPS_ERR);
    scene.expect(&[("sent_pkts", 1)]);
    let refused = (Syndrome::Nak(NAK_INVALID_REQUEST), PSN);
    assert_eq!(scene.peer.one_answer(), refused);
    // Send the largest possible datagram to a queue pair that has failed.
    scene.send(&scene.peer, &scene.write(PSN, &[0xee; 65_000]));
    scene.expect(&[("sent_pkts", 1), ("rx_qp_not_ready", 1)]);
    assert_eq!(scene.peer.received_packets(), 0);
}

fn a_flood_of_notifications_is_obeyed_and_not_answered(env: &TestEnv) {
    const FLOOD: u64 = 1000;
    let scene = Scene::rc(env);
    let mut bth = scene.bth(PacketOperation::Cnp, Psn::new(0));
    bth.transport = Transport::Cnp;
    let notification = emit(bth, ExtendedHeaders::default(), &[]);
    for _ in 0..FLOOD {
        scene.send(&scene.peer, &notification);
        scene.send(&scene.stranger, &notification);
    }
    // A small receive buffer may not hold all packets.
    let mut dealt_with = 0;
    while dealt_with < 2 * FLOOD {
        let counters = counters();
        let [obeyed, dropped, lost, sent] = [
            "rp_cnp_handled",
            "rx_wrong_source",
            "rx_buffer_overrun",
            "sent_pkts",
        ]
        .map(|name| value(&counters, name));
        assert!(obeyed <= FLOOD && dropped <= FLOOD && sent == 0);
        dealt_with = obeyed + dropped + lost;
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(
        (
            scene.peer.received_packets(),
            scene.stranger.received_packets()
        ),
        (0, 0)
    );
    // The connection is still usable.
    let source = scene.side.alloc_buf(64);
    scene.side.post_recv(1, [source.whole_sge()]);
    let message = emit(
        scene.bth(PacketOperation::Send, PSN),
        ExtendedHeaders::default(),
        &[0xee; 64],
    );
    scene.send(&scene.peer, &message);
    scene.side.await_recv_completion().expect_received(1, 64);
}

fn rubbish_for_qp1_is_dropped(env: &TestEnv) {
    let scene = Scene::rc(env);
    let datagram = |qkey: u32, payload: &[u8]| {
        let mut bth = scene.bth(PacketOperation::Send, PSN);
        bth.transport = Transport::Ud;
        bth.dest_qpn = roce::mad::GSI_QPN;
        let extended = ExtendedHeaders {
            deth: Some(Deth { qkey, src_qpn: 1 }),
            ..ExtendedHeaders::default()
        };
        emit(bth, extended, payload)
    };
    let mad = [0xee; roce::mad::MAD_BYTES];
    scene.send(&scene.stranger, &datagram(QKEY, &mad));
    for len in [0, 4, 252, 256] {
        let rubbish = &mad[..len];
        scene.send(&scene.stranger, &datagram(roce::mad::GSI_QKEY, rubbish));
    }
    let mut write = scene.bth(PacketOperation::Write, PSN);
    write.dest_qpn = roce::mad::GSI_QPN;
    scene.send(&scene.stranger, &emit(write, scene.reth(64), &[0xee; 64]));
    scene.expect(&[("rx_wrong_qkey", 1), ("rx_malformed", 5)]);
}
