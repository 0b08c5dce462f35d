//! Subnet administration: records of nodes, ports, links, paths and multicast groups (IBTA 15.2.5).

use crate::mad::{
    MAD_BYTES, MadFields, SA_DATA_OFFSET, byte, method, put, put_bytes, read_number,
    request_copy_as_response, status,
};
use crate::smp;
use crate::topology::{MULTICAST_LID, MadArrivalNode, Port, Subnet};

mod attribute {
    pub(super) const CLASS_PORT_INFO: u16 = 0x01;
    pub(super) const NODE: u16 = 0x11;
    pub(super) const PORT_INFO: u16 = 0x12;
    pub(super) const SM_INFO: u16 = 0x18;
    pub(super) const LINK: u16 = 0x20;
    pub(super) const PATH: u16 = 0x35;
    pub(super) const MULTICAST_MEMBER: u16 = 0x38;
}

/// Selector "exactly" of an MTU, rate or lifetime, with MTU 4096.
const EXACTLY_MTU_4096: u8 = 2 << 6 | 5;
/// As above, for a rate of 100 Gbit/s (`rdma-core:libibverbs/verbs.h`).
const EXACTLY_RATE_100_GBIT_S: u8 = 2 << 6 | 16;
/// As above, for a packet lifetime of 4.096 µs · 2^14, which is common.
const EXACTLY_PACKET_LIFETIME: u8 = 2 << 6 | 14;
/// The default partition, full membership.
const DEFAULT_PKEY: u64 = 0xffff;

/// Offset of the join state and the scope in a record of a multicast group.
const JOIN_STATE_OFFSET: usize = 48;

/// A record, and the fields of it that a request can ask to match: the bit of the component mask, offset and length.
struct RecordTable {
    record_bytes: usize,
    matchable_fields: &'static [(u32, usize, usize)],
    records: Vec<Vec<u8>>,
}

/// Answers a request to the subnet administration.
pub(crate) fn answer(subnet: &Subnet, request: &[u8]) -> Vec<u8> {
    let mad = MadFields(request);
    match (mad.method(), mad.attribute()) {
        (method::GET, attribute::CLASS_PORT_INFO) => class_port_info(request),
        (method::SET, attribute::MULTICAST_MEMBER) => answer_group_join(request),
        (method::DELETE, attribute::MULTICAST_MEMBER) => request_copy_as_response(request, 0),
        (method::GET | method::GET_TABLE, attribute) => {
            match records_of_attribute(subnet, request, attribute) {
                Some(table) => matching_response(request, &table),
                None => request_copy_as_response(request, status::UNSUPPORTED_ATTRIBUTE),
            }
        }
        _ => request_copy_as_response(request, status::UNSUPPORTED_METHOD),
    }
}

fn class_port_info(request: &[u8]) -> Vec<u8> {
    let mut answer = request_copy_as_response(request, 0);
    let data = answer.get_mut(SA_DATA_OFFSET..).unwrap_or_default();
    data.fill(0);
    data[0] = 1;
    data[1] = 2;
    // A response takes up to 4.096 µs · 2^16.
    data[7] = 16;
    answer
}

/// Answers a join with the complete record of the group. Groups are created by their first member, and the software NIC
/// attaches queue pairs by the GID of the group.
fn answer_group_join(request: &[u8]) -> Vec<u8> {
    let mut answer = request_copy_as_response(request, 0);
    let record = answer.get_mut(SA_DATA_OFFSET..).unwrap_or_default();
    if byte(record, 0) != 0xff || byte(record, JOIN_STATE_OFFSET) & 0xf == 0 {
        return request_copy_as_response(request, status::INVALID_FIELD);
    }
    put(record, 36, 2, MULTICAST_LID.into());
    record[38] = EXACTLY_MTU_4096;
    if read_number(record, 40, 2) == 0 {
        put(record, 40, 2, DEFAULT_PKEY);
    }
    record[42] = EXACTLY_RATE_100_GBIT_S;
    record[43] = EXACTLY_PACKET_LIFETIME;
    answer
}

/// Returns the response with the records that match the request: the first for `Get`, all for `GetTable`.
fn matching_response(request: &[u8], table: &RecordTable) -> Vec<u8> {
    let mad = MadFields(request);
    let mask = mad.component_mask();
    let wanted = request.get(SA_DATA_OFFSET..).unwrap_or_default();
    let matches = |record: &&Vec<u8>| {
        table.matchable_fields.iter().all(|&(bit, at, len)| {
            let mut bytes = at..at + len;
            mask >> bit & 1 == 0 || bytes.all(|at| byte(record, at) == byte(wanted, at))
        })
    };
    let mut records = table.records.iter().filter(matches).peekable();
    if mad.method() == method::GET {
        let Some(record) = records.next() else {
            return request_copy_as_response(request, status::NO_RECORDS);
        };
        let mut answer = request_copy_as_response(request, 0);
        put_bytes(&mut answer, SA_DATA_OFFSET, &padded(record));
        return answer;
    }
    let mut answer = request_copy_as_response(request, 0);
    answer.truncate(SA_DATA_OFFSET);
    for record in records {
        answer.extend_from_slice(record);
        let padding = table.record_bytes.next_multiple_of(8) - record.len();
        answer.extend(std::iter::repeat_n(0, padding));
    }
    let data = answer.len() - SA_DATA_OFFSET;
    // RMPP: version 1, type data, first and last segment; the kernel has put the segments together
    // (`linux:drivers/infiniband/core/user_mad.c`).
    put_bytes(&mut answer, 24, &[1, 1, 7, 0]);
    put(&mut answer, 28, 4, 1);
    put(&mut answer, 32, 4, data as u64 + 20);
    put(&mut answer, 44, 2, table.record_bytes.div_ceil(8) as u64);
    answer
}

/// A record that fills the data of a MAD.
fn padded(record: &[u8]) -> [u8; MAD_BYTES - SA_DATA_OFFSET] {
    let mut data = [0; MAD_BYTES - SA_DATA_OFFSET];
    put_bytes(&mut data, 0, record);
    data
}

fn records_of_attribute(subnet: &Subnet, request: &[u8], attribute: u16) -> Option<RecordTable> {
    Some(match attribute {
        attribute::NODE => nodes(subnet),
        attribute::PORT_INFO => ports(subnet),
        attribute::SM_INFO => managers(subnet),
        attribute::LINK => links(subnet),
        attribute::PATH => paths(subnet, request),
        // The software NIC does not tell the members of groups.
        attribute::MULTICAST_MEMBER => RecordTable {
            record_bytes: 52,
            matchable_fields: &[],
            records: Vec::new(),
        },
        _ => return None,
    })
}

/// Starts a record with a LID.
fn new_record_with_lid(lid: u16, bytes: usize) -> Vec<u8> {
    let mut record = vec![0; bytes];
    put(&mut record, 0, 2, lid.into());
    record
}

fn nodes(subnet: &Subnet) -> RecordTable {
    let adapters = subnet
        .ports()
        .map(|(adapter, port)| (port.lid, MadArrivalNode::Adapter(adapter, port)));
    let switch = std::iter::once((subnet.switch_lid(), MadArrivalNode::Switch(0)));
    let record = |(lid, node)| {
        let mut record = new_record_with_lid(lid, 108);
        put_bytes(&mut record, 4, &smp::node_info(subnet, node)[..40]);
        put_bytes(&mut record, 44, &smp::node_description(node));
        record
    };
    RecordTable {
        record_bytes: 108,
        // LID, node type, GUIDs of the system, the node and the port, description.
        matchable_fields: &[
            (0, 0, 2),
            (4, 6, 1),
            (6, 8, 8),
            (7, 16, 8),
            (8, 24, 8),
            (14, 44, 64),
        ],
        records: adapters.chain(switch).map(record).collect(),
    }
}

fn ports(subnet: &Subnet) -> RecordTable {
    let mut records = Vec::new();
    for (_, port) in subnet.ports() {
        let mut record = new_record_with_lid(port.lid, 68);
        record[2] = port.number;
        put_bytes(&mut record, 4, &smp::port_info(subnet, port, port.number));
        records.push(record);
    }
    for (number, _) in (0..=u8::MAX).zip(0..=subnet.ports().count()) {
        let mut record = new_record_with_lid(subnet.switch_lid(), 68);
        record[2] = number;
        put_bytes(&mut record, 4, &smp::switch_port_info(subnet, number, 0));
        records.push(record);
    }
    RecordTable {
        record_bytes: 68,
        // LID and port number.
        matchable_fields: &[(0, 0, 2), (1, 2, 1)],
        records,
    }
}

fn managers(subnet: &Subnet) -> RecordTable {
    let manager = subnet
        .ports()
        .find(|(_, port)| port.lid == subnet.manager_lid());
    let record = |(_, port): (_, &Port)| {
        let mut record = new_record_with_lid(port.lid, 25);
        put_bytes(&mut record, 4, &smp::sm_info(port)[..21]);
        record
    };
    RecordTable {
        record_bytes: 25,
        matchable_fields: &[(0, 0, 2)],
        records: manager.map(record).into_iter().collect(),
    }
}

fn links(subnet: &Subnet) -> RecordTable {
    let mut records = Vec::new();
    for (switch_port, (_, port)) in (1..=u8::MAX).zip(subnet.ports()) {
        let ends = [(port.lid, port.number), (subnet.switch_lid(), switch_port)];
        for [from, to] in [ends, [ends[1], ends[0]]] {
            let mut record = new_record_with_lid(from.0, 6);
            record[2] = from.1;
            record[3] = to.1;
            put(&mut record, 4, 2, to.0.into());
            records.push(record);
        }
    }
    RecordTable {
        record_bytes: 6,
        matchable_fields: &[(0, 0, 2), (1, 2, 1), (2, 3, 1), (3, 4, 2)],
        records,
    }
}

/// Paths between all pairs of ports; a port has a path to itself.
fn paths(subnet: &Subnet, request: &[u8]) -> RecordTable {
    let mut records = Vec::new();
    for (_, from) in subnet.ports() {
        for (_, to) in subnet.ports() {
            let mut record = vec![0; 64];
            // A service ID that the request names applies to all paths.
            put(&mut record, 0, 8, read_number(request, SA_DATA_OFFSET, 8));
            put(&mut record, 8, 8, to.gid_prefix);
            put(&mut record, 16, 8, to.guid);
            put(&mut record, 24, 8, from.gid_prefix);
            put(&mut record, 32, 8, from.guid);
            put(&mut record, 40, 2, to.lid.into());
            put(&mut record, 42, 2, from.lid.into());
            // Reversible.
            record[49] = 0x80;
            put(&mut record, 50, 2, DEFAULT_PKEY);
            record[54] = EXACTLY_MTU_4096;
            record[55] = EXACTLY_RATE_100_GBIT_S;
            record[56] = EXACTLY_PACKET_LIFETIME;
            records.push(record);
        }
    }
    RecordTable {
        record_bytes: 64,
        // Destination and source: GID, LID; partition.
        matchable_fields: &[(2, 8, 16), (3, 24, 16), (4, 40, 2), (5, 42, 2), (13, 50, 2)],
        records,
    }
}
