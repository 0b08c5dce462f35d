use super::mad::{
    MAD_BYTES, MadFields, SA_DATA_OFFSET, SMP_AND_PERF_DATA_OFFSET, class, method, set_tid, status,
    store_low_bytes,
};
use super::topology::{NODE_TYPE_CHANNEL_ADAPTER, NODE_TYPE_SWITCH};
use super::*;

const PREFIX: u64 = 0xfe80 << 48;

/// Two adapters; the first has two ports.
fn subnet() -> Subnet {
    let port = |number, lid| Port {
        number,
        lid,
        gid_prefix: PREFIX,
        guid: 0x100 + u64::from(lid),
        pkeys: vec![0xffff],
        ..Port::default()
    };
    let adapter = |guid, ports| ChannelAdapter {
        guid,
        description: format!("adapter {guid:x}"),
        ports,
        ..ChannelAdapter::default()
    };
    Subnet {
        adapters: vec![
            adapter(0xa0, vec![port(1, 1), port(2, 2)]),
            adapter(0xb0, vec![port(1, 3)]),
        ],
        group_members: Vec::new(),
    }
}

fn request(class: u8, method: u8, attribute: u16, modifier: u32) -> Vec<u8> {
    let mut mad = vec![0; MAD_BYTES];
    mad[..4].copy_from_slice(&[1, class, if class == class::SA { 2 } else { 1 }, method]);
    set_tid(&mut mad, 0x1234_5678_9abc);
    store_low_bytes(&mut mad, 16, 2, attribute.into());
    store_low_bytes(&mut mad, 20, 4, modifier.into());
    mad
}

/// Sends a request by port 1 of the first adapter; returns the status and the response.
#[track_caller]
fn ask(request: &[u8], destination: u16) -> (u16, Vec<u8>) {
    match subnet().answer_request(request, 1, destination) {
        SubnetAnswer::Response(response) => {
            assert_eq!(MadFields(&response).tid(), MadFields(request).tid());
            assert!(MadFields(&response).method() & method::RESPONSE != 0);
            (u16::from_be_bytes([response[4], response[5]]), response)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_manager_answers_at_its_port_alone() {
    let asked = request(class::SMP_LID, method::GET, smp::attribute::SM_INFO, 0);
    let (status, response) = ask(&asked, 1);
    assert_eq!(status, 0);
    assert_eq!(
        mad::read_number(&response, SMP_AND_PERF_DATA_OFFSET, 8),
        0x101
    );
    assert_eq!(response[SMP_AND_PERF_DATA_OFFSET + 20], 3, "master");
    assert_eq!(ask(&asked, 2).0, status::UNSUPPORTED_ATTRIBUTE);
    assert_eq!(
        subnet().answer_request(&asked, 1, 99),
        SubnetAnswer::NoAgent
    );
    let asked = request(class::SA, method::GET, 1, 0);
    assert_eq!(ask(&asked, 1).0, 0);
    assert_eq!(subnet().answer_request(&asked, 1, 2), SubnetAnswer::NoAgent);
}

#[test]
fn a_directed_route_leads_over_the_switch_to_each_port() {
    let mut asked = request(
        class::SMP_DIRECTED,
        method::GET,
        smp::attribute::NODE_INFO,
        0,
    );
    let mut walk = |path: &[u8]| {
        asked[7] = u8::try_from(path.len()).expect("short");
        asked[129..129 + path.len()].copy_from_slice(path);
        match subnet().answer_request(&asked, 1, 0xffff) {
            SubnetAnswer::Response(response) => {
                assert_eq!(
                    mad::read_number(&response, 4, 2),
                    u64::from(status::DIRECTION_RETURN)
                );
                let (kind, port) = (
                    response[SMP_AND_PERF_DATA_OFFSET + 2],
                    response[SMP_AND_PERF_DATA_OFFSET + 36],
                );
                Some((
                    kind,
                    mad::read_number(&response, SMP_AND_PERF_DATA_OFFSET + 12, 8),
                    port,
                ))
            }
            SubnetAnswer::NoAgent => None,
            SubnetAnswer::ForRegisteredProgram => panic!("not for a program"),
        }
    };
    let switch = subnet().switch_guid();
    assert_eq!(walk(&[]), Some((NODE_TYPE_CHANNEL_ADAPTER, 0xa0, 1)));
    assert_eq!(walk(&[1]), Some((NODE_TYPE_SWITCH, switch, 1)));
    assert_eq!(walk(&[1, 2]), Some((NODE_TYPE_CHANNEL_ADAPTER, 0xa0, 2)));
    assert_eq!(walk(&[1, 3]), Some((NODE_TYPE_CHANNEL_ADAPTER, 0xb0, 1)));
    assert_eq!(walk(&[1, 3, 1]), Some((NODE_TYPE_SWITCH, switch, 3)));
    assert_eq!(walk(&[2]), None, "the other port has its own cable");
    assert_eq!(walk(&[1, 4]), None);
}

#[test]
fn paths_match_the_fields_that_the_request_names() {
    let mut asked = request(class::SA, method::GET_TABLE, 0x35, 0);
    let count = |asked: &[u8]| {
        let (status, response) = ask(asked, 1);
        assert_eq!((status, mad::read_number(&response, 44, 2)), (0, 8));
        (response.len() - SA_DATA_OFFSET) / 64
    };
    // Of three ports and the switch.
    assert_eq!(count(&asked), 16);
    // The destination LID, bit 4.
    store_low_bytes(&mut asked, 48, 8, 1 << 4);
    store_low_bytes(&mut asked, SA_DATA_OFFSET + 40, 2, 3);
    assert_eq!(count(&asked), 4);
    // And the source GID, bit 3.
    store_low_bytes(&mut asked, 48, 8, 1 << 4 | 1 << 3);
    store_low_bytes(&mut asked, SA_DATA_OFFSET + 24, 8, PREFIX);
    store_low_bytes(&mut asked, SA_DATA_OFFSET + 32, 8, 0x102);
    assert_eq!(count(&asked), 1);
    asked[3] = method::GET;
    let (_, response) = ask(&asked, 1);
    assert_eq!(
        mad::read_number(&response, SA_DATA_OFFSET + 42, 2),
        2,
        "source LID"
    );
    store_low_bytes(&mut asked, SA_DATA_OFFSET + 32, 8, 0x999);
    assert_eq!(ask(&asked, 1).0, status::NO_RECORDS);
}

/// Asks for a table of records with these bytes of the record at offsets; returns the records.
#[track_caller]
fn table(
    subnet: &Subnet,
    attribute: u16,
    modifier: u32,
    mask: u64,
    wanted: &[(usize, &[u8])],
) -> Vec<Vec<u8>> {
    let mut asked = request(class::SA, method::GET_TABLE, attribute, modifier);
    store_low_bytes(&mut asked, 48, 8, mask);
    for (at, bytes) in wanted {
        mad::put_bytes(&mut asked, SA_DATA_OFFSET + at, bytes);
    }
    let SubnetAnswer::Response(response) = subnet.answer_request(&asked, 1, 1) else {
        panic!("no response");
    };
    assert_eq!(mad::read_number(&response, 4, 2), 0, "status");
    let size = mad::read_number(&response, 44, 2) * 8;
    let records = response[SA_DATA_OFFSET..].chunks(size.try_into().expect("small"));
    records.map(<[u8]>::to_vec).collect()
}

/// `saquery` asks for each of these records.
#[test]
fn the_switch_has_records_of_its_tables() {
    let subnet = subnet();
    let all = |attribute| table(&subnet, attribute, 0, 0, &[]);
    let switch = all(0x14);
    assert_eq!(switch.len(), 1, "SwitchInfoRecord");
    assert_eq!(switch[0][..2], [0, 4]);
    let forwarding = all(0x15);
    assert_eq!(forwarding.len(), 1, "blocks of LinearForwardingTableRecord");
    assert_eq!(forwarding[0][8..14], [0xff, 1, 2, 3, 0, 0xff]);
    assert_eq!(table(&subnet, 0x15, 0, 1 << 1, &[(2, &[0, 1])]).len(), 0);
    // Three ports, and ports 0 to 3 of the switch.
    assert_eq!(all(0x33).len(), 7, "P_KeyTableRecord");
    assert_eq!(
        table(&subnet, 0x33, 0, 1 << 2, &[(4, &[3])])[0][..10],
        [0, 4, 0, 0, 3, 0, 0, 0, 0xff, 0xff]
    );
    assert_eq!(all(0x36).len(), 7, "VLArbitrationTableRecord");
    assert_eq!(all(0x13).len(), 3 + 16, "SLtoVLMappingTableRecord");
    assert_eq!(all(0x30).len(), 4, "GUIDInfoRecord");
    assert_eq!(all(0x31).len(), 0, "ServiceRecord");
    assert_eq!(all(0xf3).len(), 0, "InformInfoRecord");
    assert_eq!(all(0x17).len(), 0, "MulticastForwardingTableRecord");
}

/// `smpquery pkeys` of the switch, `smpquery sl2vl` and `smpquery vlarb`.
#[test]
fn the_switch_answers_for_its_partition_keys_and_lanes() {
    for attribute in [0x14, 0x16, 0x17, 0x18, 0x1b] {
        let asked = request(class::SMP_LID, method::GET, attribute, 0);
        let (status, response) = ask(&asked, 4);
        assert_eq!(status, 0, "{attribute:#x}");
        if attribute == 0x16 {
            assert_eq!(
                response[SMP_AND_PERF_DATA_OFFSET..SMP_AND_PERF_DATA_OFFSET + 3],
                [0xff, 0xff, 0]
            );
        }
    }
}

/// `saquery -s` asks for the ports with the capability of a subnet manager.
#[test]
fn ports_match_some_of_their_capabilities_where_the_modifier_says_so() {
    let subnet = subnet();
    let wanted: &[(usize, &[u8])] = &[(24, &[0, 0, 0, 2])];
    let found = table(&subnet, 0x12, 1 << 31, 1 << 7, wanted);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0][..2], [0, 1]);
    assert_eq!(table(&subnet, 0x12, 0, 1 << 7, wanted).len(), 0, "exactly");
}

#[test]
fn paths_match_the_selectors_of_their_rate() {
    let count = |mask, selector_and_rate| {
        let wanted: &[(usize, &[u8])] = &[(55, &[selector_and_rate])];
        table(&subnet(), 0x35, 0, mask, wanted).len()
    };
    const FIFTY: u8 = 20;
    let with_selector = 1 << 18 | 1 << 19;
    assert_eq!(count(with_selector, FIFTY), 16, "greater than 50 Gbit/s");
    assert_eq!(count(with_selector, 1 << 6 | FIFTY), 0, "less");
    assert_eq!(count(with_selector, 2 << 6 | FIFTY), 0, "exactly");
    assert_eq!(count(with_selector, 2 << 6 | 16), 16);
    assert_eq!(count(with_selector, 3 << 6), 16, "the largest");
    assert_eq!(count(1 << 19, 1 << 6 | FIFTY), 16, "without a selector");
}

/// IBTA C15-0.1.30.
#[test]
fn a_request_for_one_record_that_several_match_fails() {
    let asked = request(class::SA, method::GET, 0x11, 0);
    assert_eq!(ask(&asked, 1).0, status::TOO_MANY_RECORDS);
}

/// An `rdma_cm` that resolves a path names no LID and wants one of the paths.
#[test]
fn a_request_for_one_path_gets_the_first() {
    let asked = request(class::SA, method::GET, 0x35, 0);
    assert_eq!(ask(&asked, 1).0, 0);
}

#[test]
fn the_members_of_a_group_are_records_and_ports_of_the_switch() {
    let mut subnet = subnet();
    let mut mgid = [0; 16];
    mgid[..2].copy_from_slice(&[0xff, 0x15]);
    subnet.group_members = [1, 3].map(|lid| GroupMember { mgid, lid }).into();
    let members = table(&subnet, 0x38, 0, 1, &[(0, &mgid)]);
    assert_eq!(members.len(), 2);
    assert_eq!(mad::read_number(&members[1], 24, 8), 0x103, "GUID");
    assert_eq!(members[1][48], 5 << 4 | 1, "scope, full member");
    assert_eq!(table(&subnet, 0x38, 0, 1, &[(0, &[0xff, 0x12])]).len(), 0);
    let forwarding = table(&subnet, 0x17, 0, 0, &[]);
    assert_eq!(forwarding.len(), 1);
    assert_eq!(forwarding[0][8..12], [0, 1 << 1 | 1 << 3, 0, 0]);
}

/// srp_daemon subscribes to traps.
#[test]
fn a_subscription_is_accepted() {
    let asked = request(class::SA, method::SET, 0x03, 0);
    assert_eq!(ask(&asked, 1).0, 0);
}

#[test]
fn a_join_has_a_lid_for_the_group() {
    let mut asked = request(class::SA, method::SET, 0x38, 0);
    assert_eq!(ask(&asked, 1).0, status::INVALID_FIELD, "no multicast GID");
    asked[SA_DATA_OFFSET] = 0xff;
    asked[SA_DATA_OFFSET + 48] = 1;
    let (status, response) = ask(&asked, 1);
    assert_eq!(status, 0);
    assert_eq!(
        mad::read_number(&response, SA_DATA_OFFSET + 36, 2),
        MULTICAST_LID.into()
    );
}

#[test]
fn counters_are_those_of_the_port() {
    let mut subnet = subnet();
    subnet.adapters[0].ports[1].traffic = PortTraffic {
        xmit_words_of_4_octets: 1 << 40,
        rcv_packets: 7,
        ..PortTraffic::default()
    };
    let ask = |attribute, port| {
        let mut asked = request(class::PERFORMANCE, method::GET, attribute, 0);
        asked[SMP_AND_PERF_DATA_OFFSET + 1] = port;
        match subnet.answer_request(&asked, 1, 2) {
            SubnetAnswer::Response(response) => response,
            other => panic!("{other:?}"),
        }
    };
    let short = ask(0x12, 2);
    assert_eq!(
        mad::read_number(&short, SMP_AND_PERF_DATA_OFFSET + 24, 4),
        u32::MAX.into()
    );
    assert_eq!(
        mad::read_number(&short, SMP_AND_PERF_DATA_OFFSET + 36, 4),
        7
    );
    let long = ask(0x1d, 255);
    assert_eq!(
        mad::read_number(&long, SMP_AND_PERF_DATA_OFFSET + 8, 8),
        1 << 40
    );
    // The agent of an adapter answers for all of its ports, also at another port's LID.
    assert_eq!(mad::read_number(&ask(0x12, 1), 4, 2), 0);
    assert_eq!(
        mad::read_number(&ask(0x12, 1), SMP_AND_PERF_DATA_OFFSET + 36, 4),
        0
    );
    assert_eq!(
        mad::read_number(&ask(0x12, 3), 4, 2),
        status::INVALID_FIELD.into()
    );
    let capabilities = mad::read_number(&ask(0x01, 0), SMP_AND_PERF_DATA_OFFSET + 2, 2);
    assert_ne!(capabilities & 1 << 8, 0, "AllPortSelect");
}

/// `perfquery -a` and `perfquery LID 255`.
#[test]
fn all_ports_together_have_the_sum_of_the_counters() {
    let mut subnet = subnet();
    for port in subnet.adapters.iter_mut().flat_map(|a| &mut a.ports) {
        port.traffic.rcv_packets = 10 + u64::from(port.lid);
    }
    let received = |lid, counter| {
        let mut asked = request(class::PERFORMANCE, method::GET, 0x12, 0);
        asked[SMP_AND_PERF_DATA_OFFSET + 1] = 255;
        match subnet.answer_request(&asked, 1, lid) {
            SubnetAnswer::Response(response) => {
                mad::read_number(&response, SMP_AND_PERF_DATA_OFFSET + counter, 4)
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(received(1, 36), 11 + 12);
    assert_eq!(received(subnet.switch_lid(), 32), 11 + 12 + 13);
}

/// `ibaddr LID` of the switch prints its GID.
#[test]
fn the_management_port_of_the_switch_has_the_prefix_of_the_subnet() {
    let asked = request(class::SMP_LID, method::GET, smp::attribute::PORT_INFO, 0);
    let (status, response) = ask(&asked, 4);
    assert_eq!(status, 0);
    assert_eq!(
        mad::read_number(&response, SMP_AND_PERF_DATA_OFFSET + 8, 8),
        PREFIX
    );
}

/// `ibqueryerrors` asks every node of the subnet for the counters of all its ports.
#[test]
fn a_port_of_the_switch_has_sent_what_the_adapter_behind_it_has_received() {
    let mut subnet = subnet();
    subnet.adapters[0].ports[1].traffic = PortTraffic {
        xmit_words_of_4_octets: 5,
        rcv_words_of_4_octets: 6,
        xmit_packets: 7,
        rcv_packets: 8,
    };
    let ask = |attribute, port| {
        let mut asked = request(class::PERFORMANCE, method::GET, attribute, 0);
        asked[SMP_AND_PERF_DATA_OFFSET + 1] = port;
        match subnet.answer_request(&asked, 1, subnet.switch_lid()) {
            SubnetAnswer::Response(response) => response,
            other => panic!("{other:?}"),
        }
    };
    let status = |response: &[u8]| mad::read_number(response, 4, 2);
    assert_eq!(status(&ask(0x01, 0)), 0, "ClassPortInfo");
    let long = ask(0x1d, 2);
    let counters =
        [8, 16, 24, 32].map(|at| mad::read_number(&long, SMP_AND_PERF_DATA_OFFSET + at, 8));
    assert_eq!((status(&long), counters), (0, [6, 5, 8, 7]));
    let own = ask(0x12, 0);
    assert_eq!(
        (
            status(&own),
            mad::read_number(&own, SMP_AND_PERF_DATA_OFFSET + 24, 4)
        ),
        (0, 0)
    );
    assert_eq!(status(&ask(0x12, 4)), status::INVALID_FIELD.into());
}

#[test]
fn other_classes_are_for_programs_and_garbage_is_answered() {
    let ping = request(0x32, method::GET, 0, 0);
    assert_eq!(
        subnet().answer_request(&ping, 1, 3),
        SubnetAnswer::ForRegisteredProgram
    );
    let classes = [
        class::SMP_LID,
        class::SMP_DIRECTED,
        class::SA,
        class::PERFORMANCE,
    ];
    for class in classes {
        for method in 0..=u8::MAX {
            for attribute in 0..0x40 {
                let mut asked = request(class, method, attribute, u32::MAX);
                asked[7] = 255;
                for len in [0, 2, 24, 56, 64, 100, 256, 300] {
                    asked.resize(len, 0xff);
                    let _ = subnet().answer_request(&asked, 1, 1);
                    let _ = Subnet::default().answer_request(&asked, 1, 1);
                }
            }
        }
    }
}
