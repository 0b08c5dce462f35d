//! The records of the subnet administration but those of paths: nodes, ports, tables of the switch, groups (IBTA
//! 15.2.5).

use crate::mad::{put_bytes, store_low_bytes};
use crate::path_records::{
    DEFAULT_PKEY, EXACTLY_MTU_4096, EXACTLY_PACKET_LIFETIME, EXACTLY_RATE_100_GBIT_S,
};
use crate::record_table::{RecordField, RecordTable};
use crate::smp;
use crate::topology::{MULTICAST_LID, MadArrivalNode, Port, Subnet};

/// LIDs of a block of the linear forwarding table.
const LIDS_A_BLOCK: u16 = 64;

/// Records of a LID alone.
const LID_ONLY_FIELDS: &[RecordField] = &[RecordField::of_bytes(0, 0, 2)];

/// Starts a record with a LID.
fn new_record_with_lid(lid: u16, bytes: usize) -> Vec<u8> {
    let mut record = vec![0; bytes];
    store_low_bytes(&mut record, 0, 2, lid.into());
    record
}

/// A port of a node, by the node's LID and its number.
struct NodePort<'s> {
    lid: u16,
    number: u8,
    arrival_node: MadArrivalNode<'s>,
}

/// Returns the ports of the adapters, and the ports of the switch from port 0 on.
fn all_ports(subnet: &Subnet) -> Vec<NodePort<'_>> {
    let adapters = subnet.ports().map(|(adapter, port)| NodePort {
        lid: port.lid,
        number: port.number,
        arrival_node: MadArrivalNode::Adapter(adapter, port),
    });
    let numbers = (0..=u8::MAX).zip(0..=subnet.ports().count());
    let switch = numbers.map(|(number, _)| NodePort {
        lid: subnet.switch_lid(),
        number,
        arrival_node: MadArrivalNode::Switch(0),
    });
    adapters.chain(switch).collect()
}

/// A record of each node; an adapter has one for each port.
pub(crate) fn node_records(subnet: &Subnet) -> RecordTable {
    // Node type, numbers of ports, GUIDs of the system, the node and the port, description.
    const FIELDS: &[RecordField] = &[
        RecordField::of_bytes(0, 0, 2),
        RecordField::of_bytes(4, 6, 1),
        RecordField::of_bytes(5, 7, 1),
        RecordField::of_bytes(6, 8, 8),
        RecordField::of_bytes(7, 16, 8),
        RecordField::of_bytes(8, 24, 8),
        RecordField::of_bytes(10, 34, 2),
        RecordField::of_bytes(12, 40, 1),
        RecordField::of_bytes(13, 41, 3),
        RecordField::of_bytes(14, 44, 64),
    ];
    let is_node = |port: &NodePort<'_>| match port.arrival_node {
        MadArrivalNode::Adapter(..) => true,
        MadArrivalNode::Switch(_) => port.number == 0,
    };
    let record = |port: NodePort<'_>| {
        let mut record = new_record_with_lid(port.lid, 108);
        put_bytes(
            &mut record,
            4,
            &smp::node_info(subnet, port.arrival_node)[..40],
        );
        put_bytes(&mut record, 44, &smp::node_description(port.arrival_node));
        record
    };
    let ports = all_ports(subnet).into_iter();
    RecordTable {
        record_bytes: 108,
        fields: FIELDS,
        records: ports.filter(is_node).map(record).collect(),
    }
}

pub(crate) fn port_records(subnet: &Subnet) -> RecordTable {
    // LID and number; LIDs and capabilities in `PortInfo`.
    const FIELDS: &[RecordField] = &[
        RecordField::of_bytes(0, 0, 2),
        RecordField::of_bytes(1, 2, 1),
        RecordField::of_bytes(5, 20, 2),
        RecordField::of_bytes(6, 22, 2),
        RecordField::of_capability_mask(7, 24),
    ];
    let record = |port: NodePort<'_>| {
        let mut record = new_record_with_lid(port.lid, 68);
        record[2] = port.number;
        let info = match port.arrival_node {
            MadArrivalNode::Adapter(_, own) => smp::port_info(subnet, own, own.number),
            MadArrivalNode::Switch(_) => smp::switch_port_info(subnet, port.number, 0),
        };
        put_bytes(&mut record, 4, &info);
        record
    };
    RecordTable {
        record_bytes: 68,
        fields: FIELDS,
        records: all_ports(subnet).into_iter().map(record).collect(),
    }
}

/// The service levels and their virtual lane, which is 0 for all. The switch has a record for each pair of its ports.
pub(crate) fn sl_to_vl_records(subnet: &Subnet) -> RecordTable {
    const FIELDS: &[RecordField] = &[
        RecordField::of_bytes(0, 0, 2),
        RecordField::of_bytes(1, 2, 1),
        RecordField::of_bytes(2, 3, 1),
    ];
    let mut records = Vec::new();
    for port in all_ports(subnet) {
        let ins = match port.arrival_node {
            MadArrivalNode::Adapter(..) => 0..=0,
            MadArrivalNode::Switch(_) => 0..=subnet.ports().count(),
        };
        for (input, _) in (0..=u8::MAX).zip(ins) {
            let mut record = new_record_with_lid(port.lid, 16);
            record[2] = input;
            record[3] = port.number;
            records.push(record);
        }
    }
    RecordTable {
        record_bytes: 16,
        fields: FIELDS,
        records,
    }
}

pub(crate) fn switch_records(subnet: &Subnet) -> RecordTable {
    let mut record = new_record_with_lid(subnet.switch_lid(), 24);
    put_bytes(&mut record, 4, &smp::switch_info(subnet)[..20]);
    RecordTable {
        record_bytes: 24,
        fields: LID_ONLY_FIELDS,
        records: vec![record],
    }
}

/// The blocks of the switch's table for unicast that have a LID.
pub(crate) fn linear_forwarding_records(subnet: &Subnet) -> RecordTable {
    const FIELDS: &[RecordField] = &[
        RecordField::of_bytes(0, 0, 2),
        RecordField::of_bytes(1, 2, 2),
    ];
    let block = |number: u16| {
        let mut record = new_record_with_lid(subnet.switch_lid(), 72);
        store_low_bytes(&mut record, 2, 2, number.into());
        let lids = smp::linear_forwarding_block(subnet, number.into());
        put_bytes(&mut record, 8, &lids);
        record
    };
    RecordTable {
        record_bytes: 72,
        fields: FIELDS,
        records: (0..=subnet.switch_lid() / LIDS_A_BLOCK)
            .map(block)
            .collect(),
    }
}

/// The block of the switch's table for multicast that has a LID in use.
pub(crate) fn multicast_forwarding_records(subnet: &Subnet) -> RecordTable {
    const FIELDS: &[RecordField] = &[
        RecordField::of_bytes(0, 0, 2),
        RecordField::of_bits(1, 16, 4),
        RecordField::of_bits(3, 23, 9),
    ];
    let mut positions: Vec<_> = subnet
        .multicast_switch_ports()
        .iter()
        .map(|n| n / 16)
        .collect();
    positions.dedup();
    let record = |position: u8| {
        let mut record = new_record_with_lid(subnet.switch_lid(), 72);
        record[2] = position << 4;
        let masks = smp::multicast_forwarding_block(subnet, u32::from(position) << 28);
        put_bytes(&mut record, 8, &masks);
        record
    };
    RecordTable {
        record_bytes: 72,
        fields: FIELDS,
        records: positions.into_iter().map(record).collect(),
    }
}

pub(crate) fn manager_records(subnet: &Subnet) -> RecordTable {
    const FIELDS: &[RecordField] = &[
        RecordField::of_bytes(0, 0, 2),
        RecordField::of_bytes(2, 4, 8),
    ];
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
        fields: FIELDS,
        records: manager.map(record).into_iter().collect(),
    }
}

pub(crate) fn link_records(subnet: &Subnet) -> RecordTable {
    const FIELDS: &[RecordField] = &[
        RecordField::of_bytes(0, 0, 2),
        RecordField::of_bytes(1, 2, 1),
        RecordField::of_bytes(2, 3, 1),
        RecordField::of_bytes(3, 4, 2),
    ];
    let mut records = Vec::new();
    for (switch_port, (_, port)) in (1..=u8::MAX).zip(subnet.ports()) {
        let ends = [(port.lid, port.number), (subnet.switch_lid(), switch_port)];
        for [from, to] in [ends, [ends[1], ends[0]]] {
            let mut record = new_record_with_lid(from.0, 6);
            record[2] = from.1;
            record[3] = to.1;
            store_low_bytes(&mut record, 4, 2, to.0.into());
            records.push(record);
        }
    }
    RecordTable {
        record_bytes: 6,
        fields: FIELDS,
        records,
    }
}

/// The GUIDs of each port with a LID: one block of one GUID.
pub(crate) fn guid_records(subnet: &Subnet) -> RecordTable {
    const FIELDS: &[RecordField] = &[
        RecordField::of_bytes(0, 0, 2),
        RecordField::of_bytes(1, 2, 1),
    ];
    let with_lid = |port: &NodePort<'_>| match port.arrival_node {
        MadArrivalNode::Adapter(..) => true,
        MadArrivalNode::Switch(_) => port.number == 0,
    };
    let record = |port: NodePort<'_>| {
        let mut record = new_record_with_lid(port.lid, 72);
        put_bytes(&mut record, 8, &smp::guid_info(subnet, port.arrival_node));
        record
    };
    let ports = all_ports(subnet).into_iter();
    RecordTable {
        record_bytes: 72,
        fields: FIELDS,
        records: ports.filter(with_lid).map(record).collect(),
    }
}

/// The partition keys of each port, in blocks of 32.
pub(crate) fn pkey_records(subnet: &Subnet) -> RecordTable {
    const FIELDS: &[RecordField] = &[
        RecordField::of_bytes(0, 0, 2),
        RecordField::of_bytes(1, 2, 2),
        RecordField::of_bytes(2, 4, 1),
    ];
    let mut records = Vec::new();
    for port in all_ports(subnet) {
        let pkeys = match port.arrival_node {
            MadArrivalNode::Adapter(_, own) => &own.pkeys,
            MadArrivalNode::Switch(_) => smp::SWITCH_PKEYS,
        };
        for (block, _) in (0..).zip(pkeys.chunks(32)) {
            let mut record = new_record_with_lid(port.lid, 72);
            store_low_bytes(&mut record, 2, 2, u64::from(block));
            record[4] = port.number;
            put_bytes(&mut record, 8, &smp::pkey_table(pkeys, block));
            records.push(record);
        }
    }
    RecordTable {
        record_bytes: 72,
        fields: FIELDS,
        records,
    }
}

/// The arbitration of each port between virtual lanes: no entry, as there is one lane.
pub(crate) fn vl_arbitration_records(subnet: &Subnet) -> RecordTable {
    const FIELDS: &[RecordField] = &[
        RecordField::of_bytes(0, 0, 2),
        RecordField::of_bytes(1, 2, 1),
        RecordField::of_bytes(2, 3, 1),
    ];
    let record = |port: NodePort<'_>| {
        let mut record = new_record_with_lid(port.lid, 72);
        record[2] = port.number;
        // The first block of the table for low priority.
        record[3] = 1;
        record
    };
    RecordTable {
        record_bytes: 72,
        fields: FIELDS,
        records: all_ports(subnet).into_iter().map(record).collect(),
    }
}

/// The members of the multicast groups. The Q_Key of a group is not known.
pub(crate) fn group_member_records(subnet: &Subnet) -> RecordTable {
    const FIELDS: &[RecordField] = &[
        RecordField::of_bytes(0, 0, 16),
        RecordField::of_bytes(1, 16, 16),
        RecordField::of_bytes(3, 36, 2),
        RecordField::of_bits(7, 40 * 8 + 1, 15),
        // Scope and state of the join.
        RecordField::of_bits(15, 48 * 8, 4),
        RecordField::of_bits(16, 48 * 8 + 4, 4),
    ];
    let mut records = Vec::new();
    for member in &subnet.group_members {
        let Some((_, port)) = subnet.ports().find(|(_, port)| port.lid == member.lid) else {
            continue;
        };
        let mut record = vec![0; 52];
        put_bytes(&mut record, 0, &member.mgid);
        store_low_bytes(&mut record, 16, 8, port.gid_prefix);
        store_low_bytes(&mut record, 24, 8, port.guid);
        store_low_bytes(&mut record, 36, 2, MULTICAST_LID.into());
        record[38] = EXACTLY_MTU_4096;
        store_low_bytes(&mut record, 40, 2, DEFAULT_PKEY);
        record[42] = EXACTLY_RATE_100_GBIT_S;
        record[43] = EXACTLY_PACKET_LIFETIME;
        // The scope is a part of the group's GID; a full member.
        record[48] = member.mgid[1] << 4 | 1;
        records.push(record);
    }
    RecordTable {
        record_bytes: 52,
        fields: FIELDS,
        records,
    }
}
