//! Tests of the port, its addresses and the headers of datagrams.

use std::ffi::OsStr;
use std::io;
use std::net::Ipv4Addr;

use libc::EINVAL;
use verbs_abi::*;

use super::attr::*;
use super::device_and_port_counts::*;
use super::grh::*;
use super::guid::*;
use super::interfaces::*;
use super::limits::*;
use super::link_layer::*;
use super::port::*;
use super::ports::*;
use crate::capabilities::DeviceCapabilities;
use crate::identity::Identity;

mod headers;

const GUID: [u8; 8] = [0x02, 1, 2, 3, 4, 5, 6, 7];
const OTHER_GUID: [u8; 8] = [0x02, 9, 9, 9, 9, 9, 9, 9];

fn address(if_index: u32, ip: &str) -> InterfaceAddress {
    InterfaceAddress {
        if_index,
        if_name: format!("if{if_index}"),
        ip: ip.parse().unwrap(),
    }
}

/// A port on a host with these addresses.
fn port_of(link_layer: LinkLayer, guid: [u8; 8], addresses: Vec<InterfaceAddress>) -> Port {
    Port::new(
        link_layer,
        PortPlace::FIRST,
        guid,
        filter_port_addresses(addresses),
    )
}

fn gid(ip: &str) -> [u8; 16] {
    gid_of_ip(ip.parse().unwrap())
}

/// GIDs: 0 link-local, 1 10.0.0.1, 2 fd00::1.
fn roce() -> Port {
    port_of(
        LinkLayer::Ethernet,
        GUID,
        vec![address(2, "10.0.0.1"), address(2, "fd00::1")],
    )
}

/// GIDs: 0 link-local, 1 10.0.0.2, 2 fd00::2.
fn other_roce() -> Port {
    let addresses = vec![address(2, "10.0.0.2"), address(2, "fd00::2")];
    port_of(LinkLayer::Ethernet, OTHER_GUID, addresses)
}

fn ib() -> Port {
    port_of(LinkLayer::InfiniBand, GUID, Vec::new())
}

fn ah_global(sgid_index: u8, dgid: [u8; 16]) -> ibv_ah_attr {
    let grh = ibv_global_route {
        dgid: ibv_gid { raw: dgid },
        flow_label: 0x12345,
        sgid_index,
        hop_limit: 63,
        traffic_class: 0xa6,
    };
    ibv_ah_attr {
        grh,
        is_global: 1,
        port_num: 1,
        ..ibv_ah_attr::zeroed()
    }
}

fn ah_lid(dlid: u16) -> ibv_ah_attr {
    ibv_ah_attr {
        dlid,
        port_num: 1,
        ..ibv_ah_attr::zeroed()
    }
}

fn wc_grh() -> ibv_wc {
    ibv_wc {
        wc_flags: IBV_WC_GRH,
        slid: 1,
        sl: 3,
        dlid_path_bits: 0,
        ..ibv_wc::zeroed()
    }
}

fn errno<T>(result: Result<T, i32>) -> i32 {
    result.err().expect("refused")
}

/// The devices of a host with the address 10.0.0.1.
fn devices_of(link_layer: LinkLayer, counts: DeviceAndPortCounts) -> Vec<Device> {
    let all = vec![address(1, "127.0.0.1"), address(2, "10.0.0.1")];
    devices_of_host(link_layer, counts, all, None)
}

#[test]
fn guid_is_a_local_individual_eui64_and_stable() {
    let guid = || read_node_guid().expect("a host has an id");
    assert_eq!(guid(), guid());
    assert_eq!(guid()[0] & 0x03, 0x02);
    // Pinned: a new version must not give a host another GUID.
    assert_eq!(
        guid_from_host_id("0123456789abcdef0123456789abcdef"),
        [122, 92, 253, 45, 177, 232, 114, 198]
    );
    assert_ne!(guid_from_host_id("a"), guid_from_host_id("b"));
}

#[test]
fn device_attr_holds_the_limits() {
    let devices = devices_of(LinkLayer::Ethernet, DeviceAndPortCounts::default());
    let attr = device_attr(
        &Identity::default(),
        &DeviceCapabilities::default(),
        &devices[0],
    );
    assert_eq!(attr.node_guid.to_ne_bytes(), GUID);
    assert_eq!(attr.sys_image_guid, attr.node_guid);
    assert_eq!(
        attr.fw_ver[..4],
        c"1.0"
            .to_bytes_with_nul()
            .iter()
            .map(|b| b.cast_signed())
            .collect::<Vec<_>>()
    );
    assert_eq!(
        (attr.max_qp, attr.max_qp_wr, attr.max_sge),
        (16_384, 16_384, 32)
    );
    assert_eq!((attr.max_cq, attr.max_cqe), (16_384, 4_194_303));
    assert_eq!((attr.max_mr, attr.max_mr_size), (32_768, i64::MAX as u64));
    assert_eq!(
        (attr.max_srq, attr.max_srq_wr, attr.max_srq_sge),
        (16_384, 16_384, 32)
    );
    assert_eq!((attr.max_pd, attr.max_ah), (65_536, 65_536));
    assert_eq!((attr.max_qp_rd_atom, attr.max_qp_init_rd_atom), (128, 128));
    assert_eq!(attr.max_res_rd_atom, 128 * 16_384);
    assert_eq!(
        (attr.atomic_cap, attr.phys_port_cnt, attr.max_pkeys),
        (IBV_ATOMIC_HCA, 1, 1)
    );
    assert_eq!(attr.page_size_cap & 0x1fff, 0x1000);
    assert!(attr.page_size_cap & (1 << 21) != 0 && attr.page_size_cap & (1 << 30) != 0);
    assert_eq!(
        (attr.max_mw, attr.max_mcast_grp, attr.max_mcast_qp_attach),
        (32_768, 4096, 4096)
    );
    assert_eq!((attr.max_ee, attr.max_fmr), (0, 0));
}

#[test]
fn link_layer_values() {
    let parse = |value: &str| LinkLayer::from_env_value(Some(OsStr::new(value)));
    assert_eq!(
        LinkLayer::from_env_value(None).unwrap(),
        LinkLayer::Ethernet
    );
    for value in ["roce", "ethernet", "Ethernet", "RoCE"] {
        assert_eq!(parse(value).unwrap(), LinkLayer::Ethernet, "{value}");
    }
    for value in ["ib", "infiniband", "InfiniBand", "IB"] {
        assert_eq!(parse(value).unwrap(), LinkLayer::InfiniBand, "{value}");
    }
    for value in ["", " ", "rocev2", "ib ", "1", "\u{fffd}"] {
        let error = parse(value).unwrap_err();
        assert_eq!(error.errno(), EINVAL);
        let text = error.to_string();
        for name in [
            LINK_LAYER_VAR,
            "`roce`",
            "`ethernet`",
            "`ib`",
            "`infiniband`",
        ] {
            assert!(text.contains(name), "{text}");
        }
        assert!(text.contains(&format!("{value:?}")), "{text}");
    }
}

#[test]
fn unreadable_addresses_keep_their_errno() {
    let error = PortError::CannotReadAddresses(io::Error::from_raw_os_error(libc::EMFILE));
    assert_eq!(error.errno(), libc::EMFILE);
    assert!(
        error.to_string().contains("VERBATIM_LINK_LAYER=ib"),
        "{error}"
    );
}

#[test]
fn gids_of_ethernet_are_link_local_then_addresses_by_interface() {
    let addresses = vec![
        address(3, "172.17.0.1"),
        address(2, "fd00::2"),
        address(1, "127.0.0.1"),
        address(1, "::1"),
        address(2, "fe80::fc:ff:fe00:1"),
        address(2, "10.0.0.9"),
        address(2, "10.0.0.1"),
        address(2, "10.0.0.1"),
        address(2, "::ffff:1.2.3.4"),
        address(2, "ff02::1"),
        address(2, "0.0.0.0"),
        address(2, "224.0.0.1"),
    ];
    let mut reversed = addresses.clone();
    reversed.reverse();
    let port = port_of(LinkLayer::Ethernet, GUID, addresses);
    let expected = [
        gid("fe80::fc:ff:fe00:1"),
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1],
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 9],
        [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2],
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 172, 17, 0, 1],
    ];
    assert_eq!(port.gids, expected);
    assert_eq!(port, port_of(LinkLayer::Ethernet, GUID, reversed));
    assert_eq!(port.lid, 0);
}

#[test]
fn loopback_is_a_gid_only_if_there_is_no_other() {
    let lo = || {
        vec![
            address(1, "127.0.0.53"),
            address(1, "127.0.0.1"),
            address(1, "::1"),
        ]
    };
    let port = port_of(LinkLayer::Ethernet, GUID, lo());
    assert_eq!(port.gids, [link_local_gid(GUID), gid("127.0.0.1")]);

    let mut with_v6 = lo();
    with_v6.push(address(2, "2001:db8::1"));
    let port = port_of(LinkLayer::Ethernet, GUID, with_v6);
    assert_eq!(port.gids, [link_local_gid(GUID), gid("2001:db8::1")]);

    assert_eq!(
        port_of(LinkLayer::Ethernet, GUID, Vec::new()).gids,
        [link_local_gid(GUID)]
    );
}

#[test]
fn more_addresses_than_the_table_holds() {
    let addresses = (0..1000).map(|n: u32| InterfaceAddress {
        if_index: 2,
        if_name: "if2".into(),
        ip: Ipv4Addr::from(0x0a00_0000 + n).into(),
    });
    let port = port_of(LinkLayer::Ethernet, GUID, addresses.collect());
    assert_eq!(port.gids.len(), MAX_GIDS as usize);
    assert_eq!(port.gid_index(gid("10.0.0.254")), Some(255));
    assert!(port.check_ah(&ah_global(255, gid("10.0.0.1"))).is_ok());
}

#[test]
fn infiniband_has_a_lid_and_one_gid() {
    let port = port_of(LinkLayer::InfiniBand, GUID, vec![address(2, "10.0.0.1")]);
    assert_eq!((port.lid, port.gids), (1, vec![link_local_gid(GUID)]));
}

#[test]
fn port_of_this_host() {
    let addresses = interface_addresses().unwrap();
    let node_guid = read_node_guid().expect("a host has an id");
    let guid = guid_of_interface(&filter_port_addresses(addresses.clone())).unwrap_or(node_guid);
    let port = port_of(LinkLayer::Ethernet, guid, addresses.clone());
    assert_eq!(port.gids[0][..8], LINK_LOCAL_PREFIX);
    assert!(port.gid_0_is_interface_address || port.gids[0] == link_local_gid(guid));
    assert_eq!(
        port,
        port_of(LinkLayer::Ethernet, guid, interface_addresses().unwrap())
    );
    for address in addresses.iter().filter(|address| is_global(&address.ip)) {
        assert!(port.gids.contains(&gid_of_ip(address.ip)), "{address:?}");
    }
    let identity = Identity::default();
    let (_, first) = devices_from_env(None, &identity, DeviceAndPortCounts::default()).unwrap();
    assert_eq!(first.gids, port.gids);
    assert_eq!(first.process_addresses(), port.process_addresses());
}

#[test]
fn port_attr_of_each_link_layer() {
    let eth = roce().attr();
    assert_eq!((eth.state, eth.phys_state), (IBV_PORT_ACTIVE, 5));
    assert_ne!(eth.state, IBV_PORT_DOWN);
    assert_eq!((eth.max_mtu, eth.active_mtu), (IBV_MTU_4096, IBV_MTU_4096));
    assert_eq!((eth.lid, eth.sm_lid, eth.lmc), (0, 0, 0));
    assert_eq!(
        (eth.link_layer, eth.flags),
        (IBV_LINK_LAYER_ETHERNET, IBV_QPF_GRH_REQUIRED)
    );
    assert_ne!(eth.port_cap_flags & IBV_PORT_IP_BASED_GIDS, 0);
    assert_eq!(
        (eth.gid_tbl_len, eth.pkey_tbl_len, eth.max_msg_sz),
        (3, 1, 0x8000_0000)
    );
    let ib = ib().attr();
    assert_eq!((ib.lid, ib.sm_lid), (1, 1));
    assert_eq!((ib.link_layer, ib.flags), (IBV_LINK_LAYER_INFINIBAND, 0));
    assert_eq!(ib.port_cap_flags & IBV_PORT_IP_BASED_GIDS, 0);
}

#[test]
fn tables_end_where_they_say() {
    let port = roce();
    assert_eq!(port.gid(0), Some(link_local_gid(GUID)));
    assert_eq!(port.gid(1), Some(gid("10.0.0.1")));
    assert_eq!((port.gid_tbl_len(), port.gid(3)), (3, None));
    assert_eq!(port.gid(u32::MAX), None);
    assert_eq!((port.pkey(0), port.pkey(1)), (Some(0xffff), None));
}

#[test]
fn resolve_refuses_destinations_that_nobody_can_be() {
    let port = roce();
    let stranger = link_local_gid([9; 8]);
    assert_eq!(
        port.check_destination(&ah_global(0, link_local_gid(GUID))),
        Ok(())
    );
    assert_eq!(
        port.check_destination(&ah_global(0, stranger)),
        Err(libc::ETIMEDOUT)
    );
    assert_eq!(
        port.check_destination(&ah_global(0, gid("10.0.0.1"))),
        Err(EINVAL),
        "another address family"
    );
    assert_eq!(ib().check_destination(&ah_global(0, stranger)), Ok(()));
}

#[test]
fn check_ah_refuses_what_the_port_cannot_send() {
    let roce = roce();
    let dgid = gid("10.0.0.2");
    assert_eq!(roce.check_ah(&ah_global(2, dgid)), Ok(()));
    assert_eq!(
        roce.check_ah(&ah_global(3, dgid)),
        Err(EINVAL),
        "empty entry"
    );
    assert_eq!(roce.check_ah(&ah_global(255, dgid)), Err(EINVAL));
    assert_eq!(roce.check_ah(&ah_lid(1)), Err(EINVAL), "no global route");
    for port_num in [0, 2, 255] {
        let ah = ibv_ah_attr {
            port_num,
            ..ah_global(0, dgid)
        };
        assert_eq!(roce.check_ah(&ah), Err(EINVAL), "port {port_num}");
        let ah = ibv_ah_attr {
            port_num,
            ..ah_lid(1)
        };
        assert_eq!(ib().check_ah(&ah), Err(EINVAL), "port {port_num}");
    }
    assert_eq!(ib().check_ah(&ah_lid(1)), Ok(()));
    assert_eq!(
        ib().check_ah(&ah_lid(7)),
        Ok(()),
        "a LID that nobody has is not an error"
    );
    assert_eq!(ib().check_ah(&ah_global(0, dgid)), Ok(()));
    assert_eq!(ib().check_ah(&ah_global(1, dgid)), Err(EINVAL));
}

#[test]
fn reaches_our_gids_and_our_lid_only() {
    for gid in roce().gids {
        assert!(roce().reaches_local_port(&ah_global(0, gid)));
    }
    assert!(!roce().reaches_local_port(&ah_global(0, gid("10.0.0.2"))));
    assert!(
        !roce().reaches_local_port(&ah_global(0, [0; 16])),
        "an empty entry is no GID"
    );
    assert!(
        !roce().reaches_local_port(&ah_lid(0)),
        "Ethernet has no LIDs, not even 0"
    );
    assert!(ib().reaches_local_port(&ah_lid(1)));
    assert!(!ib().reaches_local_port(&ah_lid(0)));
    assert!(!ib().reaches_local_port(&ah_lid(2)));
    assert!(ib().reaches_local_port(&ah_global(0, link_local_gid(GUID))));
    let elsewhere = ibv_ah_attr {
        dlid: 1,
        ..ah_global(0, link_local_gid(OTHER_GUID))
    };
    assert!(
        !ib().reaches_local_port(&elsewhere),
        "another host's port with the same LID"
    );
}

#[test]
fn every_port_has_names_of_its_own_and_knows_the_others() {
    for link_layer in [LinkLayer::Ethernet, LinkLayer::InfiniBand] {
        let devices = devices_of(link_layer, DeviceAndPortCounts::new(2, 2));
        let names: Vec<_> = devices.iter().map(|d| d.name.as_str()).collect();
        assert_eq!(names, ["softnic0", "softnic1"]);
        assert_ne!(devices[0].node_guid, devices[1].node_guid);
        let ports: Vec<_> = devices.iter().flat_map(Device::ports).collect();
        assert_eq!(ports.len(), 4);
        for (n, port) in ports.iter().enumerate() {
            for (m, other) in ports.iter().enumerate() {
                for gid in &other.gids {
                    assert_eq!(
                        port.local_destination_port(&ah_global(0, *gid)),
                        Some(other.place)
                    );
                    assert_eq!(port.gids.contains(gid), n == m);
                }
                let by_lid = (link_layer == LinkLayer::InfiniBand).then_some(other.place);
                assert_eq!(port.local_destination_port(&ah_lid(other.lid)), by_lid);
            }
        }
        // The first port is what it is without others.
        let alone = devices_of(link_layer, DeviceAndPortCounts::default());
        let alone = &alone[0].ports()[0];
        assert_eq!((&ports[0].gids, ports[0].lid), (&alone.gids, alone.lid));
        // A process with one port knows those of another process, and sends from its own only.
        assert!(alone.is_gid_of_host(ports[3].gids[0]));
        assert_eq!(alone.process_addresses(), alone.own_addresses());
    }
}

#[test]
fn packets_go_between_the_addresses_of_ports() {
    let devices = devices_of(LinkLayer::Ethernet, DeviceAndPortCounts::new(2, 1));
    let (one, other) = (&devices[0].ports()[0], &devices[1].ports()[0]);
    let ips = |gid| {
        let flow = one.packet_flow_to(&ah_global(0, gid)).expect("a route");
        (
            flow.addresses.src().to_string(),
            flow.addresses.dst().to_string(),
        )
    };
    // A GID that no interface has stands for the port's address.
    for gid in &other.gids {
        assert_eq!(ips(*gid), ("10.0.0.1".to_owned(), "127.251.1.1".to_owned()));
    }
    let addresses: Vec<_> = one
        .process_addresses()
        .iter()
        .map(|a| a.ip.to_string())
        .collect();
    assert_eq!(addresses, ["10.0.0.1", "127.251.1.1"]);
}

#[test]
fn given_addresses_are_dealt_to_the_ports_in_turn() {
    let given = ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(|ip| address(2, ip));
    let counts = DeviceAndPortCounts::new(1, 2);
    let devices = devices_of_host(
        LinkLayer::Ethernet,
        counts,
        Vec::new(),
        Some(given.to_vec()),
    );
    let ports = devices[0].ports();
    assert_eq!(ports[0].gids[1..], [gid("10.0.0.1"), gid("10.0.0.3")]);
    assert_eq!(ports[1].gids[1..], [gid("10.0.0.2")]);
    assert!(ports[0].is_gid_of_host(gid("10.0.0.2")));
    assert!(!ports[0].is_gid_of_host(gid("127.251.0.2")));
}

#[test]
fn a_device_has_the_ports_that_it_counts() {
    let devices = devices_of(LinkLayer::Ethernet, DeviceAndPortCounts::new(1, 2));
    let attr = device_attr(
        &Identity::default(),
        &DeviceCapabilities::default(),
        &devices[0],
    );
    assert_eq!(attr.phys_port_cnt, 2);
    for port_num in [1u8, 2] {
        let port = devices[0].port(port_num).expect("a port");
        assert_eq!(
            port.gid_entry(0).map(|entry| entry.port_num),
            Some(port_num.into())
        );
    }
    for port_num in [0u8, 3, 255] {
        assert_eq!(devices[0].port(port_num).err(), Some(EINVAL));
    }
}
