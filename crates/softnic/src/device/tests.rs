//! The port, its addresses and the headers of datagrams.

use super::*;
use verbs_abi::{IBV_PORT_DOWN, ibv_global_route};

const GUID: [u8; 8] = [0x02, 1, 2, 3, 4, 5, 6, 7];
const OTHER_GUID: [u8; 8] = [0x02, 9, 9, 9, 9, 9, 9, 9];

fn address(if_index: u32, ip: &str) -> InterfaceAddress {
    InterfaceAddress {
        if_index,
        if_name: format!("if{if_index}"),
        ip: ip.parse().unwrap(),
    }
}

fn gid(ip: &str) -> [u8; 16] {
    gid_of_ip(ip.parse().unwrap())
}

/// GIDs: 0 link-local, 1 10.0.0.1, 2 fd00::1.
fn roce() -> Port {
    Port::new(
        LinkLayer::Ethernet,
        GUID,
        vec![address(2, "10.0.0.1"), address(2, "fd00::1")],
    )
}

/// GIDs: 0 link-local, 1 10.0.0.2, 2 fd00::2.
fn other_roce() -> Port {
    let addresses = vec![address(2, "10.0.0.2"), address(2, "fd00::2")];
    Port::new(LinkLayer::Ethernet, OTHER_GUID, addresses)
}

fn ib() -> Port {
    Port::new(LinkLayer::InfiniBand, GUID, Vec::new())
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

#[test]
fn guid_is_a_local_individual_eui64_and_stable() {
    assert_eq!(node_guid(), node_guid());
    assert_eq!(node_guid()[0] & 0x03, 0x02);
    // Pinned: a new version must not give a host another GUID.
    assert_eq!(
        guid_from("0123456789abcdef0123456789abcdef"),
        [122, 92, 253, 45, 177, 232, 114, 198]
    );
    assert_ne!(guid_from("a"), guid_from("b"));
}

#[test]
fn device_attr_holds_the_limits() {
    let attr = device_attr(&Identity::default(), LinkLayer::Ethernet);
    assert_eq!(attr.node_guid.to_ne_bytes(), node_guid());
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
    let parse = |value: &str| LinkLayer::from_value(Some(OsStr::new(value)));
    assert_eq!(LinkLayer::from_value(None).unwrap(), LinkLayer::Ethernet);
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
    let error = PortError::Addresses(io::Error::from_raw_os_error(libc::EMFILE));
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
    let port = Port::new(LinkLayer::Ethernet, GUID, addresses);
    let expected = [
        [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 1, 2, 3, 4, 5, 6, 7],
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1],
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 9],
        [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2],
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 172, 17, 0, 1],
    ];
    assert_eq!(port.gids, expected);
    assert_eq!(port, Port::new(LinkLayer::Ethernet, GUID, reversed));
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
    let port = Port::new(LinkLayer::Ethernet, GUID, lo());
    assert_eq!(port.gids, [link_local_gid(GUID), gid("127.0.0.1")]);

    let mut with_v6 = lo();
    with_v6.push(address(2, "2001:db8::1"));
    let port = Port::new(LinkLayer::Ethernet, GUID, with_v6);
    assert_eq!(port.gids, [link_local_gid(GUID), gid("2001:db8::1")]);

    assert_eq!(
        Port::new(LinkLayer::Ethernet, GUID, Vec::new()).gids,
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
    let port = Port::new(LinkLayer::Ethernet, GUID, addresses.collect());
    assert_eq!(port.gids.len(), GID_TBL_LEN as usize);
    assert_eq!(port.index_of(gid("10.0.0.254")), Some(255));
    assert!(port.check_ah(&ah_global(255, gid("10.0.0.1"))).is_ok());
}

#[test]
fn infiniband_has_a_lid_and_one_gid() {
    let port = Port::new(LinkLayer::InfiniBand, GUID, vec![address(2, "10.0.0.1")]);
    assert_eq!((port.lid, port.gids), (1, vec![link_local_gid(GUID)]));
}

#[test]
fn port_of_this_host() {
    let addresses = interface_addresses().unwrap();
    let port = Port::new(LinkLayer::Ethernet, node_guid(), addresses.clone());
    assert_eq!(port.gids[0], link_local_gid(node_guid()));
    assert_eq!(
        port,
        Port::new(
            LinkLayer::Ethernet,
            node_guid(),
            interface_addresses().unwrap()
        )
    );
    for address in addresses.iter().filter(|address| is_global(&address.ip)) {
        assert!(port.gids.contains(&gid_of_ip(address.ip)), "{address:?}");
    }
    if std::env::var_os(LINK_LAYER_VAR).is_none() {
        assert_eq!(Port::from_env().unwrap(), port);
    }
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
        (256, 1, 0x8000_0000)
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
    assert_eq!(port.gid(3), Some([0; 16]));
    assert_eq!(port.gid(GID_TBL_LEN - 1), Some([0; 16]));
    assert_eq!(port.gid(GID_TBL_LEN), None);
    assert_eq!(port.gid(u32::MAX), None);
    assert_eq!((port.pkey(0), port.pkey(1)), (Some(0xffff), None));
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
        assert!(roce().reaches(&ah_global(0, gid)));
    }
    assert!(!roce().reaches(&ah_global(0, gid("10.0.0.2"))));
    assert!(
        !roce().reaches(&ah_global(0, [0; 16])),
        "an empty entry is no GID"
    );
    assert!(
        !roce().reaches(&ah_lid(0)),
        "Ethernet has no LIDs, not even 0"
    );
    assert!(ib().reaches(&ah_lid(1)));
    assert!(!ib().reaches(&ah_lid(0)));
    assert!(!ib().reaches(&ah_lid(2)));
    assert!(ib().reaches(&ah_global(0, link_local_gid(GUID))));
    let elsewhere = ibv_ah_attr {
        dlid: 1,
        ..ah_global(0, link_local_gid(OTHER_GUID))
    };
    assert!(
        !ib().reaches(&elsewhere),
        "another host's port with the same LID"
    );
}

#[test]
fn grh_of_infiniband_byte_by_byte() {
    let mut grh = ib().grh(&ah_global(0, link_local_gid(OTHER_GUID))).unwrap();
    assert_eq!(grh[..8], [0x6a, 0x61, 0x23, 0x45, 0, 0, 0x1b, 63]);
    assert_eq!(grh[8..24], link_local_gid(GUID));
    assert_eq!(grh[24..], link_local_gid(OTHER_GUID));
    set_grh_length(&mut grh, 0x0120);
    assert_eq!(grh[4..6], [0x01, 0x20]);
}

#[test]
fn grh_of_roce_ipv6_byte_by_byte() {
    let mut grh = roce().grh(&ah_global(2, gid("fd00::2"))).unwrap();
    assert_eq!(grh[..8], [0x6a, 0x61, 0x23, 0x45, 0, 8, 17, 63]);
    assert_eq!(grh[8..24], gid("fd00::1"));
    assert_eq!(grh[24..], gid("fd00::2"));
    set_grh_length(&mut grh, 0x0120);
    assert_eq!(grh[4..6], [0x01, 0x28]);
}

#[test]
fn grh_of_roce_ipv4_byte_by_byte() {
    let mut grh = roce().grh(&ah_global(1, gid("10.0.0.2"))).unwrap();
    set_grh_length(&mut grh, 100);
    assert_eq!(grh[..20], [0; 20]);
    assert_eq!(grh[20..30], [0x45, 0xa6, 0, 128, 0, 0, 0x40, 0, 63, 17]);
    assert_eq!(grh[32..], [10, 0, 0, 1, 10, 0, 0, 2]);
    assert_eq!(ones_complement_sum(&grh[20..]), 0xffff);
    set_grh_length(&mut grh, 101);
    assert_eq!(grh[22..24], [0, 129]);
    assert_eq!(ones_complement_sum(&grh[20..]), 0xffff);
}

#[test]
fn checksum_of_a_published_header() {
    // The example of Wikipedia's "Internet checksum": 0xb861.
    let mut header = [
        0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0, 0xc7,
    ];
    assert_eq!(!ones_complement_sum(&header), 0xb861);
    header[10..12].copy_from_slice(&[0xb8, 0x61]);
    assert_eq!(ones_complement_sum(&header), 0xffff);
}

#[test]
fn hop_limit_0_is_replaced_on_ip_only() {
    let hop_limit_0 = |mut ah: ibv_ah_attr| {
        ah.grh.hop_limit = 0;
        ah
    };
    assert_eq!(
        roce()
            .grh(&hop_limit_0(ah_global(1, gid("10.0.0.2"))))
            .unwrap()[28],
        64
    );
    assert_eq!(
        roce()
            .grh(&hop_limit_0(ah_global(2, gid("fd00::2"))))
            .unwrap()[7],
        64
    );
    assert_eq!(
        ib().grh(&hop_limit_0(ah_global(0, link_local_gid(GUID))))
            .unwrap()[7],
        0
    );
}

#[test]
fn no_grh_without_a_route_or_a_source() {
    assert_eq!(ib().grh(&ah_lid(1)), None);
    assert_eq!(roce().grh(&ah_lid(1)), None);
    assert_eq!(roce().grh(&ah_global(3, gid("10.0.0.2"))), None);
}

#[test]
fn mixed_gids_travel_in_an_ipv6_header() {
    let grh = roce().grh(&ah_global(0, gid("10.0.0.2"))).unwrap();
    assert_eq!(header_version(&grh), Some(Version::V6));
    let ah = init_ah_from_wc(&other_roce(), 1, &wc_grh(), &grh)
        .ok()
        .unwrap();
    assert_eq!(raw(&ah.grh.dgid), link_local_gid(GUID));
    assert_eq!(ah.grh.sgid_index, 1);
}

#[test]
fn lengths_of_ud_packets() {
    assert_eq!(ud_packet_bytes(0, false), 24);
    assert_eq!(ud_packet_bytes(0, true), 28);
    assert_eq!(ud_packet_bytes(1, false), 28);
    assert_eq!(ud_packet_bytes(4096, true), 4096 + 28);
    assert_eq!(ud_packet_bytes(u16::MAX, true), u16::MAX);
    for ah in [ah_global(1, gid("10.0.0.2")), ah_global(2, gid("fd00::2"))] {
        let mut grh = roce().grh(&ah).unwrap();
        set_grh_length(&mut grh, u16::MAX);
        let at = if grh[0] == 0 { 22 } else { 4 };
        assert_eq!(grh[at..at + 2], [0xff, 0xff], "saturates");
    }
    let mut neither = [0; 40];
    set_grh_length(&mut neither, 7);
    assert_eq!(neither, [0; 40]);
}

#[test]
fn ipv4_header_behind_bytes_that_look_like_version_6() {
    let mut grh = roce().grh(&ah_global(1, gid("10.0.0.2"))).unwrap();
    grh[..20].fill(0x66);
    assert_eq!(header_version(&grh), Some(Version::V4));
    let ah = init_ah_from_wc(&other_roce(), 1, &wc_grh(), &grh)
        .ok()
        .unwrap();
    assert_eq!((raw(&ah.grh.dgid), ah.grh.sgid_index), (gid("10.0.0.1"), 1));
    grh[30] ^= 1;
    assert_eq!(header_version(&grh), Some(Version::V6), "wrong checksum");
}

#[test]
fn init_ah_without_grh_goes_by_lid() {
    let wc = ibv_wc {
        wc_flags: 0,
        dlid_path_bits: 2,
        ..wc_grh()
    };
    let ah = init_ah_from_wc(&ib(), 1, &wc, &[0xa5; 40]).ok().unwrap();
    assert_eq!(
        (ah.dlid, ah.sl, ah.src_path_bits, ah.port_num),
        (1, 3, 2, 1)
    );
    assert_eq!((ah.is_global, ah.grh.flow_label), (0, 0));
    assert!(ib().reaches(&ah));
}

#[test]
fn init_ah_refusals() {
    let (roce, wc) = (roce(), wc_grh());
    let to = |sgid_index, dgid| other_roce().grh(&ah_global(sgid_index, dgid)).unwrap();
    let good = to(1, gid("10.0.0.1"));
    assert!(init_ah_from_wc(&roce, 1, &wc, &good).is_ok());
    assert_eq!(errno(init_ah_from_wc(&roce, 0, &wc, &good)), EINVAL);
    assert_eq!(errno(init_ah_from_wc(&roce, 2, &wc, &good)), EINVAL);
    for dgid in ["10.0.0.77", "224.0.0.1"] {
        assert_eq!(
            errno(init_ah_from_wc(&roce, 1, &wc, &to(1, gid(dgid)))),
            EINVAL,
            "{dgid}"
        );
    }
    for dgid in ["fd00::77", "ff0e::1"] {
        assert_eq!(
            errno(init_ah_from_wc(&roce, 1, &wc, &to(2, gid(dgid)))),
            EINVAL,
            "{dgid}"
        );
    }
    assert_eq!(
        errno(init_ah_from_wc(&roce, 1, &wc, &[0; 40])),
        libc::EPROTONOSUPPORT
    );
    let mut tcp = to(2, gid("fd00::1"));
    tcp[6] = 6;
    assert_eq!(
        errno(init_ah_from_wc(&roce, 1, &wc, &tcp)),
        libc::EPROTONOSUPPORT
    );
    let from_ib = ib().grh(&ah_global(0, link_local_gid(GUID))).unwrap();
    assert!(init_ah_from_wc(&ib(), 1, &wc, &from_ib).is_ok());
    assert_eq!(
        errno(init_ah_from_wc(&roce, 1, &wc, &from_ib)),
        EINVAL,
        "a GID of another type"
    );
}

/// A sequence of numbers from a seed (SplitMix64).
fn random(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*seed ^ (*seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[test]
fn an_answer_reaches_the_sender() {
    let mut seed = 2;
    let mut random = || random(&mut seed);
    for _ in 0..20_000 {
        let [r, s] = [random(), random()].map(u64::to_ne_bytes);
        let v4 = |tail: u8| Ipv4Addr::new(10, r[0], r[1], tail).into();
        let v6 = |tail: u16| {
            let [a, b, c] = [r[2], r[3], r[4]].map(u16::from);
            Ipv6Addr::new(0x2001, 0xdb8, a, b, c, a, b, tail).into()
        };
        let host = |tail: u8, guid: u64| {
            let one = |ip| InterfaceAddress {
                if_index: 2,
                if_name: "if2".into(),
                ip,
            };
            let addresses = vec![one(v4(tail)), one(v6(tail.into()))];
            let link_layer = if r[5] & 1 == 0 {
                LinkLayer::Ethernet
            } else {
                LinkLayer::InfiniBand
            };
            Port::new(link_layer, guid_from(&guid.to_string()), addresses)
        };
        let (sender, receiver) = (host(1, random()), host(2, random()));
        let index = r[6] % u8::try_from(sender.gids.len()).unwrap();
        let mut ah = ah_global(index, receiver.gids[usize::from(index)]);
        ah.grh.flow_label = u32::from_ne_bytes([s[0], s[1], s[2], s[3]]);
        ah.grh.traffic_class = s[4];
        ah.grh.hop_limit = s[5];
        assert!(receiver.reaches(&ah) && !sender.reaches(&ah));

        let mut grh = sender.grh(&ah).unwrap();
        set_grh_length(&mut grh, u16::from_ne_bytes([s[6], s[7]]));
        let answer = init_ah_from_wc(&receiver, 1, &wc_grh(), &grh).ok().unwrap();
        assert_eq!(receiver.check_ah(&answer), Ok(()));
        assert!(sender.reaches(&answer) && !receiver.reaches(&answer));
        assert_eq!(answer.grh.sgid_index, index);
        assert_eq!(answer.grh.traffic_class, ah.grh.traffic_class);
        if header_version(&grh) == Some(Version::V6) {
            assert_eq!(answer.grh.flow_label, ah.grh.flow_label & 0xf_ffff);
        }
        // And there again: the first receiver's answer is answered along the first route.
        let grh = receiver.grh(&answer).unwrap();
        let again = init_ah_from_wc(&sender, 1, &wc_grh(), &grh).ok().unwrap();
        assert_eq!(
            (raw(&again.grh.dgid), again.grh.sgid_index),
            (raw(&ah.grh.dgid), index)
        );
    }
}

#[test]
fn any_40_bytes_are_an_address_or_an_errno() {
    let mut seed = 3;
    for _ in 0..100_000 {
        let mut grh = [0; 40];
        for word in grh.as_chunks_mut::<8>().0 {
            *word = random(&mut seed).to_ne_bytes();
        }
        for port in [roce(), ib()] {
            match init_ah_from_wc(&port, 1, &wc_grh(), &grh) {
                Ok(ah) => assert_eq!(port.check_ah(&ah), Ok(())),
                Err(errno) => assert!([EINVAL, libc::EPROTONOSUPPORT].contains(&errno)),
            }
        }
        set_grh_length(&mut grh, 1);
    }
}
