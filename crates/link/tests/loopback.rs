//! Tests of packets between addresses of this host.

use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsFd;

use link::probe_features::probe_addresses;
use link::{
    Config, Endpoint, FabricMembership, LinkError, PacketFlow, ReceiveBuffers, UdpPortState,
};
use roce::icrc::{self, IpAddressPair};
use rustix::event::{PollFd, PollFlags, poll};

fn endpoint(addresses: &[&str], port: u16) -> Result<Endpoint, LinkError> {
    let ips = addresses.iter().map(|a| a.parse::<IpAddr>().unwrap());
    Endpoint::open(&Config {
        udp_port: port,
        ..Config::new(ips.map(Into::into).collect())
    })
}

fn flow(src: &str, dst: &str) -> PacketFlow {
    PacketFlow {
        addresses: IpAddressPair::new(src.parse().unwrap(), dst.parse().unwrap()).unwrap(),
        traffic_class: 0,
        hop_limit: 0,
    }
}

fn counts(endpoint: &Endpoint, host: &str) -> Vec<(&'static str, u64)> {
    let ip: IpAddr = host.parse().unwrap();
    let found = endpoint.counters_by_address().find(|(of, _)| *of == ip);
    found.expect("an address of the endpoint").1.values()
}

/// Makes a packet that contains a number.
fn packet(number: u32, len: usize) -> Vec<u8> {
    let mut packet = vec![number.to_le_bytes()[0]; len];
    packet[4..8].copy_from_slice(&17_u32.to_be_bytes());
    packet[8..12].copy_from_slice(&number.to_be_bytes());
    packet
}

/// A received packet: the packet without ICRC, the identification according to its ICRC, traffic class, hop limit.
type Arrival = (Vec<u8>, Option<u16>, u8, Option<u8>);

/// Receives until `count` packets have arrived.
fn receive(endpoint: &Endpoint, count: usize) -> Vec<Arrival> {
    let mut inbox = ReceiveBuffers::default();
    let mut all = Vec::new();
    while all.len() < count {
        let mut fds = [PollFd::from_borrowed_fd(endpoint.as_fd(), PollFlags::IN)];
        poll(&mut fds, None).unwrap();
        endpoint.receive(&mut inbox, |received| {
            let (transport, icrc) = icrc::split_off_icrc(received.bytes).unwrap();
            let identification =
                icrc::recover_identification_if_icrc_valid(&received.icrc_fields, transport, icrc);
            let (class, limit) = (received.traffic_class, received.hop_limit);
            all.push((transport.to_vec(), identification, class, limit));
        });
    }
    all
}

#[test]
fn bursts_arrive_as_packets_with_good_icrcs_over_both_families() {
    for (port, here, there) in [(4801, "127.0.0.1", "127.0.0.2"), (4802, "::1", "::1")] {
        let sender = endpoint(&[here], port).unwrap();
        let other = (here != there).then(|| endpoint(&[there], port).unwrap());
        let receiver = other.as_ref().unwrap_or(&sender);
        let lens = [20, 20, 20, 16, 1044, 1044, 4124, 20];
        let mut batch = sender.new_batch();
        for (number, len) in (0..).zip(lens) {
            batch.push(&flow(here, there), &packet(number, len));
        }
        assert_eq!(sender.send(&mut batch), lens.len());
        assert!(batch.is_all_sent());
        let expected = [0, 1, 2, 3, 0, 1, 0, 1];
        let arrived = receive(receiver, lens.len());
        for (number, (bytes, identification, class, limit)) in (0..).zip(&arrived) {
            assert_eq!(*bytes, packet(number, lens[number as usize]));
            assert_eq!(*identification, Some(expected[number as usize]));
            assert_eq!((*class, *limit), (0, Some(64)));
        }
    }
}

#[test]
fn traffic_class_and_hop_limit_are_those_of_the_flow() {
    for (port, here) in [(4803, "127.0.0.1"), (4804, "::1")] {
        let endpoint = endpoint(&[here], port).unwrap();
        let mut batch = endpoint.new_batch();
        let mut flow = flow(here, here);
        (flow.traffic_class, flow.hop_limit) = (0x68 | 3, 7);
        batch.push(&flow, &packet(0, 20));
        batch.push(&flow, &packet(1, 20));
        assert_eq!(endpoint.send(&mut batch), 2);
        for (_, identification, class, limit) in receive(&endpoint, 2) {
            assert!(identification.is_some());
            assert_eq!((class, limit), (0x6b, Some(7)));
        }
    }
}

#[test]
fn an_endpoint_has_several_addresses_and_sends_from_each() {
    let hosts = ["127.0.5.1", "127.0.5.2", "::1"];
    let endpoint = endpoint(&hosts, 4805).unwrap();
    let mut batch = endpoint.new_batch();
    let flows = [
        flow(hosts[0], hosts[1]),
        flow(hosts[1], hosts[0]),
        flow(hosts[2], hosts[2]),
    ];
    for number in 0..30 {
        batch.push(&flows[number as usize % 3], &packet(number, 24));
    }
    assert_eq!(endpoint.send(&mut batch), 30);
    let mut numbers: Vec<u8> = receive(&endpoint, 30).iter().map(|a| a.0[11]).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..30).collect::<Vec<u8>>());
    // Each address counts what it sends and receives.
    for (host, sent, received) in [(0, 10, 10), (1, 10, 10), (2, 10, 10)] {
        let counts = counts(&endpoint, hosts[host]);
        assert!(counts.contains(&("sent_pkts", sent)), "{counts:?}");
        assert!(counts.contains(&("sent_bytes", sent * 28)), "{counts:?}");
        assert!(counts.contains(&("rcvd_pkts", received)), "{counts:?}");
        assert!(
            counts.contains(&("rcvd_bytes", received * 28)),
            "{counts:?}"
        );
    }
}

#[test]
fn an_inbox_says_when_no_socket_has_a_packet() {
    let hosts = ["127.0.5.3", "127.0.5.4"];
    let endpoint = endpoint(&hosts, 4830).unwrap();
    let mut inbox = ReceiveBuffers::default();
    assert_eq!(endpoint.receive(&mut inbox, |_| {}), 0);
    assert!(inbox.are_all_sockets_empty());
    let mut batch = endpoint.new_batch();
    for host in hosts {
        batch.push(&flow(hosts[0], host), &packet(0, 24));
    }
    assert_eq!(endpoint.send(&mut batch), 2);
    let mut received = 0;
    while received < 2 {
        received += endpoint.receive(&mut inbox, |_| {});
        assert!(received == 2 || !inbox.are_all_sockets_empty());
    }
    // The socket of the last packet is polled first, which says nothing about the other socket.
    assert_eq!(endpoint.receive(&mut inbox, |_| {}), 0);
    assert!(!inbox.are_all_sockets_empty());
    while !inbox.are_all_sockets_empty() {
        assert_eq!(endpoint.receive(&mut inbox, |_| {}), 0);
    }
}

#[test]
fn packets_that_cannot_be_sent_are_counted_and_do_not_hold_up_the_others() {
    let endpoint = endpoint(&["127.0.6.1"], 4806).unwrap();
    let mut batch = endpoint.new_batch();
    // No socket has the source of the first packet. The loopback device does not route the second. No device takes a
    // packet as long as the third.
    batch.push(&flow("127.0.6.9", "127.0.6.1"), &packet(0, 20));
    batch.push(&flow("127.0.6.1", "255.255.255.255"), &packet(1, 20));
    batch.push(&flow("127.0.6.1", "127.0.6.1"), &packet(2, 65_480));
    batch.push(&flow("127.0.6.1", "127.0.6.1"), &packet(3, 20));
    endpoint.send(&mut batch);
    assert!(batch.is_all_sent());
    let arrived = receive(&endpoint, 2);
    assert_eq!(arrived.last().unwrap().0[11], 3);
    let counters = counts(&endpoint, "127.0.6.1");
    assert!(counters.contains(&("send_err", 2)), "{counters:?}");
}

#[test]
fn datagrams_that_are_no_packets_are_counted() {
    let endpoint = endpoint(&["127.0.7.1"], 4807).unwrap();
    let stranger = UdpSocket::bind("127.0.7.2:0").unwrap();
    // An empty datagram only asks whether the port is open.
    for len in [0, 1, 15, 16] {
        stranger.send_to(&vec![1; len], "127.0.7.1:4807").unwrap();
    }
    let arrived = receive(&endpoint, 1);
    assert_eq!(arrived[0].0, [1; 12]);
    let counters = counts(&endpoint, "127.0.7.1");
    assert!(counters.contains(&("rcvd_short_pkts", 2)), "{counters:?}");
}

#[test]
fn a_port_in_use_and_a_foreign_address_are_named() {
    let taken = UdpSocket::bind("127.0.8.1:4808").unwrap();
    let error = endpoint(&["127.0.8.1"], 4808).unwrap_err();
    assert!(matches!(error, LinkError::PortInUse { .. }), "{error}");
    let error = endpoint(&["192.0.2.1"], 4808).unwrap_err();
    assert!(matches!(error, LinkError::NoSuchAddress { .. }), "{error}");
    assert!(matches!(endpoint(&[], 4808), Err(LinkError::NoAddress)));
    let both = endpoint(&["127.0.8.1", "127.0.8.2"], 4808).unwrap();
    let error_of = |ip: &str| both.socket_open_error_of(ip.parse().unwrap());
    assert!(matches!(
        error_of("127.0.8.1"),
        Some(LinkError::PortInUse { .. })
    ));
    assert!(error_of("127.0.8.2").is_none());
    assert_eq!(both.opened_addresses().count(), 1);
    drop(taken);
}

#[test]
fn a_full_buffer_is_an_overrun_and_no_error() {
    let ip = "127.0.9.1".parse::<IpAddr>().unwrap();
    let endpoint = Endpoint::open(&Config {
        udp_port: 4809,
        buffer_bytes: 4096,
        ..Config::new(vec![ip.into()])
    })
    .unwrap();
    let mut batch = endpoint.new_batch();
    for number in 0..1000 {
        batch.push(&flow("127.0.9.1", "127.0.9.1"), &packet(number, 1044));
        endpoint.send(&mut batch);
    }
    let overruns: Vec<_> = endpoint.kernel_drops_by_address().collect();
    assert!(
        matches!(overruns[..], [(of, count)] if of == ip && count > 0),
        "{overruns:?}"
    );
    assert_eq!(receive(&endpoint, 1)[0].1, Some(0));
}

#[test]
fn an_observer_sees_what_the_kernel_took_as_it_arrives() {
    let hosts = [(4811, "127.0.11.1", "127.0.11.9"), (4812, "::1", "fd00::9")];
    for (port, here, elsewhere) in hosts {
        let endpoint = endpoint(&[here], port).unwrap();
        let mut batch = endpoint.new_batch();
        let mut marked = flow(here, here);
        (marked.traffic_class, marked.hop_limit) = (0x6b, 7);
        // No socket has the source, so the packet is refused and not observed.
        batch.push(&flow(elsewhere, here), &packet(9, 20));
        for number in 0..3 {
            batch.push(&flow(here, here), &packet(number, 20));
        }
        batch.push(&marked, &packet(3, 20));
        let mut seen = Vec::new();
        let sent = endpoint.send_observed(&mut batch, |sent| {
            let (transport, icrc) = icrc::split_off_icrc(sent.bytes).unwrap();
            assert_eq!(icrc, icrc::icrc(&sent.icrc_fields, transport));
            assert_eq!(
                (sent.icrc_fields.src_port, sent.icrc_fields.dst_port),
                (port, port)
            );
            let identification = Some(sent.icrc_fields.identification);
            let limit = Some(sent.hop_limit);
            seen.push((
                transport.to_vec(),
                identification,
                sent.traffic_class,
                limit,
            ));
        });
        assert_eq!((sent, seen.len()), (4, 4));
        assert_eq!(seen, receive(&endpoint, 4));
    }
}

#[test]
fn a_probe_says_who_has_the_port() {
    let config = |port| Config {
        udp_port: port,
        ..Config::new(vec!["127.0.0.9".parse::<IpAddr>().unwrap().into()])
    };
    let state = |config: &Config| probe_addresses(config).unwrap().remove(0).udp_port_state;
    assert!(matches!(state(&config(4808)), UdpPortState::Free));
    // The probe itself has released the port.
    let held = UdpSocket::bind("127.0.0.9:4808").unwrap();
    let UdpPortState::Unavailable(error) = state(&config(4808)) else {
        panic!("the port is in use");
    };
    assert!(
        error
            .to_string()
            .contains("UDP port 4808 of 127.0.0.9 is in use")
    );
    drop(held);
    let folder = tempfile::tempdir().unwrap();
    let shared = Config {
        fabric_membership: Some(FabricMembership {
            folder: folder.path().to_owned(),
            slot: 3,
        }),
        ..config(4808)
    };
    let own = Endpoint::open(&shared).unwrap();
    assert!(matches!(state(&shared), UdpPortState::SharedByProcesses(1)));
    drop(own);
    assert!(matches!(state(&shared), UdpPortState::Free));
}

#[test]
fn a_probe_says_what_the_kernel_gives() {
    let config = |ip: &str| Config {
        buffer_bytes: 64 << 10,
        ..Config::new(vec![ip.parse::<IpAddr>().unwrap().into()])
    };
    let socket = probe_addresses(&config("127.0.0.9"))
        .unwrap()
        .remove(0)
        .socket_features;
    assert_eq!(socket.unwrap().receive_buffer_bytes, 64 << 10);
    // No interface has this address, which is in the block for documentation.
    let nowhere = probe_addresses(&config("192.0.2.1")).unwrap().remove(0);
    assert!(nowhere.socket_features.is_none());
    let UdpPortState::Unavailable(error) = nowhere.udp_port_state else {
        panic!("there is no such address");
    };
    assert!(error.to_string().contains("no address 192.0.2.1"));
}
