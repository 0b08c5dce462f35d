//! Tests of the 40 bytes in front of a UD payload, and of the way back that they give.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::*;

#[test]
fn grh_of_infiniband_byte_by_byte() {
    let mut grh = ib()
        .grh_at_receiver(&ah_global(0, link_local_gid(OTHER_GUID)))
        .unwrap();
    assert_eq!(grh[..8], [0x6a, 0x61, 0x23, 0x45, 0, 0, 0x1b, 63]);
    assert_eq!(grh[8..24], link_local_gid(GUID));
    assert_eq!(grh[24..], link_local_gid(OTHER_GUID));
    set_grh_length(&mut grh, 0x0120);
    assert_eq!(grh[4..6], [0x01, 0x20]);
}

#[test]
fn grh_of_roce_ipv6_byte_by_byte() {
    let mut grh = roce()
        .grh_at_receiver(&ah_global(2, gid("fd00::2")))
        .unwrap();
    assert_eq!(grh[..8], [0x6a, 0x61, 0x23, 0x45, 0, 8, 17, 63]);
    assert_eq!(grh[8..24], gid("fd00::1"));
    assert_eq!(grh[24..], gid("fd00::2"));
    set_grh_length(&mut grh, 0x0120);
    assert_eq!(grh[4..6], [0x01, 0x28]);
}

#[test]
fn grh_of_roce_ipv4_byte_by_byte() {
    let mut grh = roce()
        .grh_at_receiver(&ah_global(1, gid("10.0.0.2")))
        .unwrap();
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
            .grh_at_receiver(&hop_limit_0(ah_global(1, gid("10.0.0.2"))))
            .unwrap()[28],
        64
    );
    assert_eq!(
        roce()
            .grh_at_receiver(&hop_limit_0(ah_global(2, gid("fd00::2"))))
            .unwrap()[7],
        64
    );
    assert_eq!(
        ib().grh_at_receiver(&hop_limit_0(ah_global(0, link_local_gid(GUID))))
            .unwrap()[7],
        0
    );
}

#[test]
fn no_grh_without_a_route_or_a_source() {
    assert_eq!(ib().grh_at_receiver(&ah_lid(1)), None);
    assert_eq!(roce().grh_at_receiver(&ah_lid(1)), None);
    assert_eq!(roce().grh_at_receiver(&ah_global(3, gid("10.0.0.2"))), None);
}

#[test]
fn mixed_gids_travel_in_an_ipv6_header() {
    let grh = roce()
        .grh_at_receiver(&ah_global(0, gid("10.0.0.2")))
        .unwrap();
    assert_eq!(header_version(&grh), Some(IpHeaderVersion::V6));
    let ah = init_ah_from_wc(&other_roce(), &wc_grh(), &grh)
        .ok()
        .unwrap();
    assert_eq!(ah.grh.dgid.bytes(), link_local_gid(GUID));
    assert_eq!(ah.grh.sgid_index, 1);
}

#[test]
fn lengths_of_ud_packets() {
    assert_eq!(ud_packet_bytes_from_bth_to_icrc(0, false), 24);
    assert_eq!(ud_packet_bytes_from_bth_to_icrc(0, true), 28);
    assert_eq!(ud_packet_bytes_from_bth_to_icrc(1, false), 28);
    assert_eq!(ud_packet_bytes_from_bth_to_icrc(4096, true), 4096 + 28);
    assert_eq!(ud_packet_bytes_from_bth_to_icrc(u16::MAX, true), u16::MAX);
    for ah in [ah_global(1, gid("10.0.0.2")), ah_global(2, gid("fd00::2"))] {
        let mut grh = roce().grh_at_receiver(&ah).unwrap();
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
    let mut grh = roce()
        .grh_at_receiver(&ah_global(1, gid("10.0.0.2")))
        .unwrap();
    grh[..20].fill(0x66);
    assert_eq!(header_version(&grh), Some(IpHeaderVersion::V4));
    let ah = init_ah_from_wc(&other_roce(), &wc_grh(), &grh)
        .ok()
        .unwrap();
    assert_eq!(
        (ah.grh.dgid.bytes(), ah.grh.sgid_index),
        (gid("10.0.0.1"), 1)
    );
    grh[30] ^= 1;
    assert_eq!(
        header_version(&grh),
        Some(IpHeaderVersion::V6),
        "wrong checksum"
    );
}

#[test]
fn init_ah_without_grh_goes_by_lid() {
    let wc = ibv_wc {
        wc_flags: 0,
        dlid_path_bits: 2,
        ..wc_grh()
    };
    let ah = init_ah_from_wc(&ib(), &wc, &[0xa5; 40]).ok().unwrap();
    assert_eq!(
        (ah.dlid, ah.sl, ah.src_path_bits, ah.port_num),
        (1, 3, 2, 1)
    );
    assert_eq!((ah.is_global, ah.grh.flow_label), (0, 0));
    assert!(ib().reaches_local_port(&ah));
}

#[test]
fn init_ah_refusals() {
    let (roce, wc) = (roce(), wc_grh());
    let to = |sgid_index, dgid| {
        other_roce()
            .grh_at_receiver(&ah_global(sgid_index, dgid))
            .unwrap()
    };
    let good = to(1, gid("10.0.0.1"));
    assert!(init_ah_from_wc(&roce, &wc, &good).is_ok());
    for dgid in ["10.0.0.77", "224.0.0.1"] {
        assert_eq!(
            errno(init_ah_from_wc(&roce, &wc, &to(1, gid(dgid)))),
            EINVAL,
            "{dgid}"
        );
    }
    for dgid in ["fd00::77", "ff0e::1"] {
        assert_eq!(
            errno(init_ah_from_wc(&roce, &wc, &to(2, gid(dgid)))),
            EINVAL,
            "{dgid}"
        );
    }
    assert_eq!(
        errno(init_ah_from_wc(&roce, &wc, &[0; 40])),
        libc::EPROTONOSUPPORT
    );
    let mut tcp = to(2, gid("fd00::1"));
    tcp[6] = 6;
    assert_eq!(
        errno(init_ah_from_wc(&roce, &wc, &tcp)),
        libc::EPROTONOSUPPORT
    );
    let from_ib = ib()
        .grh_at_receiver(&ah_global(0, link_local_gid(GUID)))
        .unwrap();
    assert!(init_ah_from_wc(&ib(), &wc, &from_ib).is_ok());
    assert_eq!(
        errno(init_ah_from_wc(&roce, &wc, &from_ib)),
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
            Port::new(
                link_layer,
                PortPlace::FIRST,
                guid_from_host_id(&guid.to_string()),
                addresses,
            )
        };
        let (sender, receiver) = (host(1, random()), host(2, random()));
        let index = r[6] % u8::try_from(sender.gids.len()).unwrap();
        let mut ah = ah_global(index, receiver.gids[usize::from(index)]);
        ah.grh.flow_label = u32::from_ne_bytes([s[0], s[1], s[2], s[3]]);
        ah.grh.traffic_class = s[4];
        ah.grh.hop_limit = s[5];
        assert!(receiver.reaches_local_port(&ah) && !sender.reaches_local_port(&ah));

        let mut grh = sender.grh_at_receiver(&ah).unwrap();
        set_grh_length(&mut grh, u16::from_ne_bytes([s[6], s[7]]));
        let answer = init_ah_from_wc(&receiver, &wc_grh(), &grh).ok().unwrap();
        assert_eq!(receiver.check_ah(&answer), Ok(()));
        assert!(sender.reaches_local_port(&answer) && !receiver.reaches_local_port(&answer));
        assert_eq!(answer.grh.sgid_index, index);
        assert_eq!(answer.grh.traffic_class, ah.grh.traffic_class);
        if header_version(&grh) == Some(IpHeaderVersion::V6) {
            assert_eq!(answer.grh.flow_label, ah.grh.flow_label & 0xf_ffff);
        }
        // The answer to the first receiver's answer takes the first route again.
        let grh = receiver.grh_at_receiver(&answer).unwrap();
        let again = init_ah_from_wc(&sender, &wc_grh(), &grh).ok().unwrap();
        assert_eq!(
            (again.grh.dgid.bytes(), again.grh.sgid_index),
            (ah.grh.dgid.bytes(), index)
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
            match init_ah_from_wc(&port, &wc_grh(), &grh) {
                Ok(ah) => assert_eq!(port.check_ah(&ah), Ok(())),
                Err(errno) => assert!([EINVAL, libc::EPROTONOSUPPORT].contains(&errno)),
            }
        }
        set_grh_length(&mut grh, 1);
    }
}
