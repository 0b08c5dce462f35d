//! Subnet administration: requests for records, joins of multicast groups and subscriptions (IBTA 15.2.5, 15.4).

use crate::mad::{
    MadFields, SA_DATA_OFFSET, byte_or_zero, method, read_number, request_copy_as_response, status,
    store_low_bytes,
};
use crate::node_port_and_group_records as tables;
use crate::path_records::{
    DEFAULT_PKEY, EXACTLY_MTU_4096, EXACTLY_PACKET_LIFETIME, EXACTLY_RATE_100_GBIT_S, path_records,
};
use crate::record_table::RecordTable;
use crate::topology::{MULTICAST_LID, Subnet};

mod attribute {
    pub(super) const CLASS_PORT_INFO: u16 = 0x01;
    pub(super) const INFORM_INFO: u16 = 0x03;
    pub(super) const NODE: u16 = 0x11;
    pub(super) const PORT_INFO: u16 = 0x12;
    pub(super) const SL_TO_VL: u16 = 0x13;
    pub(super) const SWITCH_INFO: u16 = 0x14;
    pub(super) const LINEAR_FORWARDING: u16 = 0x15;
    pub(super) const MULTICAST_FORWARDING: u16 = 0x17;
    pub(super) const SM_INFO: u16 = 0x18;
    pub(super) const LINK: u16 = 0x20;
    pub(super) const GUID_INFO: u16 = 0x30;
    pub(super) const SERVICE: u16 = 0x31;
    pub(super) const PKEY_TABLE: u16 = 0x33;
    pub(super) const PATH: u16 = 0x35;
    pub(super) const VL_ARBITRATION: u16 = 0x36;
    pub(super) const MULTICAST_MEMBER: u16 = 0x38;
    pub(super) const INFORM_INFO_RECORD: u16 = 0xf3;
}

/// `CapabilityMask` of the class: optional records, multicast of UD, and requests for the ports with some capabilities.
const SA_CAPABILITY_MASK: u64 = 1 << 8 | 1 << 9 | 1 << 13;

/// Offset of the join state and the scope in a record of a multicast group.
const JOIN_STATE_OFFSET: usize = 48;

/// Answers a request to the subnet administration.
pub(crate) fn answer_sa_request(subnet: &Subnet, request: &[u8]) -> Vec<u8> {
    let mad = MadFields(request);
    match (mad.method(), mad.attribute()) {
        (method::GET, attribute::CLASS_PORT_INFO) => class_port_info(request),
        (method::SET, attribute::MULTICAST_MEMBER) => answer_group_join(request),
        (method::DELETE, attribute::MULTICAST_MEMBER) => request_copy_as_response(request, 0),
        // A subscription to traps, as srp_daemon has one. Ports, links and the switch of this subnet stay as they are,
        // so that no trap follows.
        (method::SET, attribute::INFORM_INFO) => request_copy_as_response(request, 0),
        (method::GET | method::GET_TABLE, attribute) => {
            match records_of_attribute(subnet, request, attribute) {
                Some(table) => table.build_response(request, attribute == attribute::PATH),
                None => request_copy_as_response(request, status::UNSUPPORTED_ATTRIBUTE),
            }
        }
        _ => request_copy_as_response(request, status::UNSUPPORTED_METHOD),
    }
}

/// Returns true if the records of an attribute depend on the members of multicast groups.
pub(crate) fn depends_on_multicast_groups(attribute: u16) -> bool {
    matches!(
        attribute,
        attribute::MULTICAST_MEMBER | attribute::MULTICAST_FORWARDING | attribute::SWITCH_INFO
    )
}

fn class_port_info(request: &[u8]) -> Vec<u8> {
    let mut answer = request_copy_as_response(request, 0);
    let data = answer.get_mut(SA_DATA_OFFSET..).unwrap_or_default();
    data.fill(0);
    data[0] = 1;
    data[1] = 2;
    store_low_bytes(data, 2, 2, SA_CAPABILITY_MASK);
    // A response takes up to 4.096 µs · 2^16.
    data[7] = 16;
    answer
}

/// Answers a join with the complete record of the group. Groups are created by their first member, and the software NIC
/// attaches queue pairs by the GID of the group.
fn answer_group_join(request: &[u8]) -> Vec<u8> {
    let mut answer = request_copy_as_response(request, 0);
    let record = answer.get_mut(SA_DATA_OFFSET..).unwrap_or_default();
    if byte_or_zero(record, 0) != 0xff || byte_or_zero(record, JOIN_STATE_OFFSET) & 0xf == 0 {
        return request_copy_as_response(request, status::INVALID_FIELD);
    }
    store_low_bytes(record, 36, 2, MULTICAST_LID.into());
    record[38] = EXACTLY_MTU_4096;
    if read_number(record, 40, 2) == 0 {
        store_low_bytes(record, 40, 2, DEFAULT_PKEY);
    }
    record[42] = EXACTLY_RATE_100_GBIT_S;
    record[43] = EXACTLY_PACKET_LIFETIME;
    answer
}

fn records_of_attribute(subnet: &Subnet, request: &[u8], attribute: u16) -> Option<RecordTable> {
    Some(match attribute {
        attribute::NODE => tables::node_records(subnet),
        attribute::PORT_INFO => tables::port_records(subnet),
        attribute::SL_TO_VL => tables::sl_to_vl_records(subnet),
        attribute::SWITCH_INFO => tables::switch_records(subnet),
        attribute::LINEAR_FORWARDING => tables::linear_forwarding_records(subnet),
        attribute::MULTICAST_FORWARDING => tables::multicast_forwarding_records(subnet),
        attribute::SM_INFO => tables::manager_records(subnet),
        attribute::LINK => tables::link_records(subnet),
        attribute::GUID_INFO => tables::guid_records(subnet),
        attribute::PKEY_TABLE => tables::pkey_records(subnet),
        attribute::PATH => path_records(subnet, request),
        attribute::VL_ARBITRATION => tables::vl_arbitration_records(subnet),
        attribute::MULTICAST_MEMBER => tables::group_member_records(subnet),
        // No program keeps a service or a subscription here.
        attribute::SERVICE => RecordTable::empty(176),
        attribute::INFORM_INFO_RECORD => RecordTable::empty(60),
        _ => return None,
    })
}
