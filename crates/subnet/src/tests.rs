use super::mad::{
    DATA_OFFSET, MAD_BYTES, MadFields, SA_DATA_OFFSET, class, method, put, set_tid, status,
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
    }
}

fn request(class: u8, method: u8, attribute: u16, modifier: u32) -> Vec<u8> {
    let mut mad = vec![0; MAD_BYTES];
    mad[..4].copy_from_slice(&[1, class, if class == class::SA { 2 } else { 1 }, method]);
    set_tid(&mut mad, 0x1234_5678_9abc);
    put(&mut mad, 16, 2, attribute.into());
    put(&mut mad, 20, 4, modifier.into());
    mad
}

/// Sends a request by port 1 of the first adapter; returns the status and the response.
#[track_caller]
fn ask(request: &[u8], destination: u16) -> (u16, Vec<u8>) {
    match subnet().answer(request, 1, destination) {
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
    assert_eq!(mad::read_number(&response, DATA_OFFSET, 8), 0x101);
    assert_eq!(response[DATA_OFFSET + 20], 3, "master");
    assert_eq!(ask(&asked, 2).0, status::UNSUPPORTED_ATTRIBUTE);
    assert_eq!(subnet().answer(&asked, 1, 99), SubnetAnswer::NoAgent);
    let asked = request(class::SA, method::GET, 1, 0);
    assert_eq!(ask(&asked, 1).0, 0);
    assert_eq!(subnet().answer(&asked, 1, 2), SubnetAnswer::NoAgent);
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
        match subnet().answer(&asked, 1, 0xffff) {
            SubnetAnswer::Response(response) => {
                assert_eq!(
                    mad::read_number(&response, 4, 2),
                    u64::from(status::DIRECTION_RETURN)
                );
                let (kind, port) = (response[DATA_OFFSET + 2], response[DATA_OFFSET + 36]);
                Some((kind, mad::read_number(&response, DATA_OFFSET + 12, 8), port))
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
    assert_eq!(count(&asked), 9);
    // The destination LID, bit 4.
    put(&mut asked, 48, 8, 1 << 4);
    put(&mut asked, SA_DATA_OFFSET + 40, 2, 3);
    assert_eq!(count(&asked), 3);
    // And the source GID, bit 3.
    put(&mut asked, 48, 8, 1 << 4 | 1 << 3);
    put(&mut asked, SA_DATA_OFFSET + 24, 8, PREFIX);
    put(&mut asked, SA_DATA_OFFSET + 32, 8, 0x102);
    assert_eq!(count(&asked), 1);
    asked[3] = method::GET;
    let (_, response) = ask(&asked, 1);
    assert_eq!(
        mad::read_number(&response, SA_DATA_OFFSET + 42, 2),
        2,
        "source LID"
    );
    put(&mut asked, SA_DATA_OFFSET + 32, 8, 0x999);
    assert_eq!(ask(&asked, 1).0, status::NO_RECORDS);
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
        asked[DATA_OFFSET + 1] = port;
        match subnet.answer(&asked, 1, 2) {
            SubnetAnswer::Response(response) => response,
            other => panic!("{other:?}"),
        }
    };
    let short = ask(0x12, 2);
    assert_eq!(
        mad::read_number(&short, DATA_OFFSET + 24, 4),
        u32::MAX.into()
    );
    assert_eq!(mad::read_number(&short, DATA_OFFSET + 36, 4), 7);
    let long = ask(0x1d, 255);
    assert_eq!(mad::read_number(&long, DATA_OFFSET + 8, 8), 1 << 40);
    assert_eq!(
        mad::read_number(&ask(0x12, 1), 4, 2),
        status::INVALID_FIELD.into()
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
        asked[DATA_OFFSET + 1] = port;
        match subnet.answer(&asked, 1, subnet.switch_lid()) {
            SubnetAnswer::Response(response) => response,
            other => panic!("{other:?}"),
        }
    };
    let status = |response: &[u8]| mad::read_number(response, 4, 2);
    assert_eq!(status(&ask(0x01, 0)), 0, "ClassPortInfo");
    let long = ask(0x1d, 2);
    let counters = [8, 16, 24, 32].map(|at| mad::read_number(&long, DATA_OFFSET + at, 8));
    assert_eq!((status(&long), counters), (0, [6, 5, 8, 7]));
    let own = ask(0x12, 0);
    assert_eq!(
        (status(&own), mad::read_number(&own, DATA_OFFSET + 24, 4)),
        (0, 0)
    );
    assert_eq!(status(&ask(0x12, 4)), status::INVALID_FIELD.into());
}

#[test]
fn other_classes_are_for_programs_and_garbage_is_answered() {
    let ping = request(0x32, method::GET, 0, 0);
    assert_eq!(
        subnet().answer(&ping, 1, 3),
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
                    let _ = subnet().answer(&asked, 1, 1);
                    let _ = Subnet::default().answer(&asked, 1, 1);
                }
            }
        }
    }
}
