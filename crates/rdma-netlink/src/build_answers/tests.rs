use super::*;
use crate::fuzz::ExampleAnswerSource;
use crate::numbers::{NLA_TYPE_MASK, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR};

const SEQ: u32 = 9;
const PORT_ID: u32 = 42;

fn request(kind: u16, flags: u16, attributes: &[(u16, u32)]) -> Vec<u8> {
    let len = u32::try_from(16 + 8 * attributes.len()).expect("short");
    let mut bytes = len.to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend((flags | NLM_F_REQUEST).to_ne_bytes());
    bytes.extend(SEQ.to_ne_bytes());
    bytes.extend(0_u32.to_ne_bytes());
    for (number, value) in attributes {
        bytes.extend(8_u16.to_ne_bytes());
        bytes.extend(number.to_ne_bytes());
        bytes.extend(value.to_ne_bytes());
    }
    bytes
}

fn nldev(command: u16, flags: u16, attributes: &[(u16, u32)]) -> Vec<Vec<u8>> {
    let request = request(CLIENT_NLDEV << 10 | command, flags, attributes);
    build_answers(&request, PORT_ID, &ExampleAnswerSource)
}

fn kind(message: &[u8]) -> u16 {
    u16::from_ne_bytes([message[4], message[5]])
}

/// The errno of a refusal, 0 of an acknowledgement.
fn errno(message: &[u8]) -> i32 {
    assert_eq!(kind(message), NLMSG_ERROR);
    -i32::from_ne_bytes(message[16..20].try_into().expect("four bytes"))
}

/// The attributes of a message or of an attribute, one after the other.
fn attributes(mut bytes: &[u8]) -> Vec<(u16, &[u8])> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let len = usize::from(u16::from_ne_bytes([bytes[0], bytes[1]]));
        let number = u16::from_ne_bytes([bytes[2], bytes[3]]) & NLA_TYPE_MASK;
        found.push((number, &bytes[4..len]));
        bytes = &bytes[len.next_multiple_of(4)..];
    }
    found
}

fn attribute(message: &[u8], number: u16) -> Option<Vec<u8>> {
    let found = attributes(&message[16..]);
    let found = found.into_iter().find(|(found, _)| *found == number);
    found.map(|(_, value)| value.to_vec())
}

#[test]
fn a_dump_names_all_devices_and_ends() {
    let answers = nldev(command::GET, NLM_F_DUMP | NLM_F_ACK, &[]);
    let [first, second, end] = &answers[..] else {
        panic!("{answers:?}");
    };
    for (index, name, message) in [(0_u32, b"a0\0", first), (1, b"b0\0", second)] {
        assert_eq!(kind(message), CLIENT_NLDEV << 10 | command::GET);
        assert_eq!(
            message[8..16],
            [SEQ.to_ne_bytes(), PORT_ID.to_ne_bytes()].concat()
        );
        assert_eq!(
            attribute(message, attr::DEV_INDEX),
            Some(index.to_ne_bytes().to_vec())
        );
        assert_eq!(attribute(message, attr::DEV_NAME), Some(name.to_vec()));
        assert_eq!(attribute(message, attr::SYS_IMAGE_GUID), None);
    }
    assert_eq!(
        attribute(second, attr::DEV_PROTOCOL),
        Some(b"ib\0".to_vec())
    );
    assert_eq!((kind(end), end.len()), (NLMSG_DONE, 20));
}

#[test]
fn one_device_or_port_is_acknowledged_where_that_is_asked_for() {
    let device = [(attr::DEV_INDEX, 1)];
    assert_eq!(nldev(command::GET, 0, &device).len(), 1);
    let answers = nldev(command::GET, NLM_F_ACK, &device);
    assert_eq!((answers.len(), errno(&answers[1])), (2, 0));
    let port = [(attr::DEV_INDEX, 1), (attr::PORT_INDEX, 1)];
    let answers = nldev(command::PORT_GET, NLM_F_ACK, &port);
    assert_eq!(
        attribute(&answers[0], attr::LID),
        Some(1_u32.to_ne_bytes().to_vec())
    );
    assert_eq!(attribute(&answers[0], attr::NDEV_NAME), None);
    let port = [(attr::DEV_INDEX, 0), (attr::PORT_INDEX, 1)];
    let answers = nldev(command::PORT_GET, NLM_F_ACK, &port);
    assert_eq!(attribute(&answers[0], attr::LID), None);
    assert_eq!(
        attribute(&answers[0], attr::NDEV_NAME),
        Some(b"eth0\0".to_vec())
    );
}

#[test]
fn what_is_not_there_is_refused() {
    for (command, flags, attributes, expected) in [
        (command::GET, 0, &[][..], EINVAL),
        (command::GET, 0, &[(attr::DEV_INDEX, 2)], EINVAL),
        (command::PORT_GET, 0, &[(attr::DEV_INDEX, 0)], EINVAL),
        (
            command::PORT_GET,
            0,
            &[(attr::DEV_INDEX, 0), (attr::PORT_INDEX, 0)],
            EINVAL,
        ),
        (
            command::PORT_GET,
            0,
            &[(attr::DEV_INDEX, 0), (attr::PORT_INDEX, 2)],
            EINVAL,
        ),
        // RDMA_NLDEV_CMD_SET.
        (2, 0, &[(attr::DEV_INDEX, 0)], EOPNOTSUPP),
        (command::RES_GET, 0, &[(attr::DEV_INDEX, 1)], EOPNOTSUPP),
        (
            command::STAT_GET,
            0,
            &[
                (attr::DEV_INDEX, 0),
                (attr::PORT_INDEX, 1),
                (attr::STAT_RES, 1),
            ],
            EOPNOTSUPP,
        ),
        (
            command::STAT_GET,
            0,
            &[(attr::DEV_INDEX, 1), (attr::PORT_INDEX, 1)],
            EOPNOTSUPP,
        ),
    ] {
        let answers = nldev(command, flags, attributes);
        assert_eq!(answers.len(), 1, "{command} {attributes:?}");
        assert_eq!(errno(&answers[0]), expected, "{command} {attributes:?}");
    }
    // Another client.
    let answers = build_answers(&request(2 << 10 | 1, 0, &[]), PORT_ID, &ExampleAnswerSource);
    assert_eq!(errno(&answers[0]), EINVAL);
}

#[test]
fn resources_are_counted_and_regions_listed_in_messages_that_fit() {
    let device = [(attr::DEV_INDEX, 0)];
    let answers = nldev(command::RES_GET, NLM_F_ACK, &device);
    let table = attribute(&answers[0], attr::RES_SUMMARY).expect("a table");
    let counts: Vec<_> = attributes(&table)
        .into_iter()
        .map(|(_, entry)| {
            let entry = attributes(entry);
            let count = entry[1].1.try_into().expect("eight bytes");
            (entry[0].1.to_vec(), u64::from_ne_bytes(count))
        })
        .collect();
    let expected = [
        ("pd\0", 1),
        ("cq\0", 200),
        ("qp\0", 3),
        ("mr\0", 200),
        ("ctx\0", 1),
        ("srq\0", 1),
    ];
    assert_eq!(
        counts,
        expected.map(|(name, count)| (name.as_bytes().to_vec(), count))
    );

    let answers = nldev(command::RES_MR_GET, NLM_F_DUMP, &device);
    let (end, messages) = answers.split_last().expect("an end");
    assert_eq!(kind(end), NLMSG_DONE);
    let mut keys = Vec::new();
    for message in messages {
        assert!(message.len() <= MAX_DATAGRAM_BYTES);
        let table = attribute(message, attr::RES_MR).expect("a table");
        for (_, entry) in attributes(&table) {
            keys.push(u32::from_ne_bytes(
                attributes(entry)[0].1.try_into().expect("four bytes"),
            ));
        }
    }
    assert_eq!(keys, (1..=200).collect::<Vec<u32>>());
}

/// The entries of the answers to a dump of the first device, each as its numbers by attribute.
fn entries(command: u16, table: u16, more: &[(u16, u32)]) -> Vec<Vec<(u16, u64)>> {
    let named = [&[(attr::DEV_INDEX, 0)], more].concat();
    let answers = nldev(command, NLM_F_DUMP, &named);
    let (end, messages) = answers.split_last().expect("an end");
    assert_eq!(kind(end), NLMSG_DONE);
    let mut found = Vec::new();
    for message in messages {
        assert!(message.len() <= MAX_DATAGRAM_BYTES);
        let table = attribute(message, table).expect("a table");
        for (_, entry) in attributes(&table) {
            found.push(numbers(entry));
        }
    }
    found
}

fn numbers(entry: &[u8]) -> Vec<(u16, u64)> {
    let number = |value: &[u8]| {
        let bytes = value.iter().rev();
        bytes.fold(0, |sum, byte| sum << 8 | u64::from(*byte))
    };
    let all = attributes(entry).into_iter();
    all.map(|(name, value)| (name, number(value))).collect()
}

fn value(entry: &[(u16, u64)], number: u16) -> Option<u64> {
    let found = entry.iter().find(|(found, _)| *found == number);
    found.map(|(_, value)| *value)
}

#[test]
fn queue_pairs_are_listed_for_a_device_or_a_port() {
    let all = entries(command::RES_QP_GET, attr::RES_QP, &[]);
    let of = |entry: &Vec<(u16, u64)>| {
        let of = |number| value(entry, number);
        (of(attr::RES_LQPN), of(attr::PORT_INDEX), of(attr::RES_RQPN))
    };
    let expected = [
        (Some(5), Some(1), Some(9)),
        // Datagrams have no peer.
        (Some(6), Some(1), None),
        (Some(7), None, Some(9)),
    ];
    assert_eq!(all.iter().map(of).collect::<Vec<_>>(), expected);
    assert_eq!(value(&all[1], attr::RES_TYPE), Some(4));
    assert_eq!(value(&all[1], attr::RES_PID), Some(17));
    let port = [(attr::PORT_INDEX, 1)];
    let of_port = entries(command::RES_QP_GET, attr::RES_QP, &port);
    assert_eq!(of_port, all[..2]);
    let no_port = [(attr::DEV_INDEX, 0), (attr::PORT_INDEX, 2)];
    let answers = nldev(command::RES_QP_GET, NLM_F_DUMP, &no_port);
    assert_eq!(errno(&answers[0]), EINVAL);
}

#[test]
fn completion_queues_and_domains_say_how_many_use_them() {
    let queues = entries(command::RES_CQ_GET, attr::RES_CQ, &[]);
    let cqn = |entry: &Vec<(u16, u64)>| value(entry, attr::RES_CQN);
    let expected = (1..=200).map(Some);
    assert_eq!(
        queues.iter().map(cqn).collect::<Vec<_>>(),
        expected.collect::<Vec<_>>()
    );
    assert_eq!(value(&queues[0], attr::RES_USECNT), Some(2));
    let domains = entries(command::RES_PD_GET, attr::RES_PD, &[]);
    let expected = [
        (attr::RES_USECNT, 4),
        (attr::RES_PDN, 1),
        (attr::RES_PID, 17),
    ];
    assert_eq!(domains, [expected]);
}

#[test]
fn one_object_is_asked_for_by_its_number() {
    let of = |command, number, value| nldev(command, 0, &[(attr::DEV_INDEX, 0), (number, value)]);
    let answers = of(command::RES_QP_GET, attr::RES_LQPN, 6);
    let found = attribute(&answers[0], attr::RES_LQPN);
    assert_eq!(found, Some(6_u32.to_ne_bytes().to_vec()));
    let found = attribute(&of(command::RES_CQ_GET, attr::RES_CQN, 7)[0], attr::RES_CQE);
    assert_eq!(found, Some(16_u32.to_ne_bytes().to_vec()));
    for (command, number, value, expected) in [
        (command::RES_QP_GET, attr::RES_LQPN, 8, ENOENT),
        (command::RES_QP_GET, attr::RES_CQN, 6, EINVAL),
        (command::RES_PD_GET, attr::RES_PDN, 1, EOPNOTSUPP),
    ] {
        let answers = of(command, number, value);
        assert_eq!(errno(&answers[0]), expected, "{command} {number} {value}");
    }
}

#[test]
fn a_context_and_a_shared_receive_queue_are_listed_with_their_process() {
    let first_entry = |command, table| {
        let answers = nldev(command, NLM_F_DUMP, &[(attr::DEV_INDEX, 0)]);
        let table = attribute(&answers[0], table).expect("a table");
        attributes(&table)[0].1.to_vec()
    };
    let number = |value: u32| value.to_ne_bytes().to_vec();
    let owned = |entry: &[u8]| -> Vec<(u16, Vec<u8>)> {
        let all = attributes(entry).into_iter();
        all.map(|(number, value)| (number, value.to_vec()))
            .collect()
    };
    let context = owned(&first_entry(command::RES_CTX_GET, attr::RES_CTX));
    let pid = (attr::RES_PID, number(17));
    assert_eq!(context, [(attr::RES_CTXN, number(3)), pid.clone()]);
    let queue = owned(&first_entry(command::RES_SRQ_GET, attr::RES_SRQ));
    let [srqn, kind, pd, cq, pairs, last] = &queue[..] else {
        panic!("{queue:?}");
    };
    assert_eq!(*srqn, (attr::RES_SRQN, number(4)));
    assert_eq!(*kind, (attr::RES_TYPE, vec![1]));
    assert_eq!(*pd, (attr::RES_PDN, number(1)));
    assert_eq!(*cq, (attr::RES_CQN, number(7)));
    assert_eq!(*last, pid);
    let pairs: Vec<_> = owned(&pairs.1)
        .iter()
        .map(|(_, entry)| owned(entry))
        .collect();
    let expected = [5, 6, 7, 9].map(|qpn| vec![(attr::RES_LQPN, number(qpn))]);
    assert_eq!(pairs, expected);
}

#[test]
fn counters_of_a_port_have_names_and_values() {
    let port = [(attr::DEV_INDEX, 0), (attr::PORT_INDEX, 1)];
    let answers = nldev(command::STAT_GET, NLM_F_ACK, &port);
    let table = attribute(&answers[0], attr::STAT_HWCOUNTERS).expect("a table");
    let second = attributes(&table)[1].1.to_vec();
    let entry = attributes(&second);
    assert_eq!(
        entry[0],
        (attr::STAT_HWCOUNTER_ENTRY_NAME, &b"counter_1\0"[..])
    );
    assert_eq!(
        entry[1],
        (attr::STAT_HWCOUNTER_ENTRY_VALUE, &1_u64.to_ne_bytes()[..])
    );
}

#[test]
fn several_requests_are_answered_and_no_request_is_not() {
    let system = request(CLIENT_NLDEV << 10 | command::SYS_GET, NLM_F_ACK, &[]);
    let answers = build_answers(
        &[&system[..], &system].concat(),
        PORT_ID,
        &ExampleAnswerSource,
    );
    assert_eq!(answers.len(), 4);
    assert_eq!(
        attribute(&answers[0], attr::SYS_NETNS_MODE),
        Some(vec![NETNS_MODE_SHARED])
    );
    let mut too_long = system.clone();
    too_long[0] += 1;
    let mut short = system.clone();
    short[0] = 15;
    let no_operation = request(1, 0, &[]);
    for wrong in [&system[..15], &too_long, &short, &no_operation, &[]] {
        assert_eq!(
            build_answers(wrong, PORT_ID, &ExampleAnswerSource),
            [[0; 0]; 0],
            "{wrong:?}"
        );
    }
}
