//! Subnet management: the attributes of nodes and ports (IBTA 14.2.5).

use crate::mad::{
    MadFields, SMP_AND_PERF_DATA_OFFSET, SMP_DATA_BYTES, class, method, put_bytes,
    request_copy_as_response, status, store_low_bytes,
};
use crate::topology::{
    MULTICAST_LID, MadArrivalNode, NODE_TYPE_CHANNEL_ADAPTER, NODE_TYPE_SWITCH, Port, Subnet,
};

pub(crate) mod attribute {
    pub(crate) const NODE_DESCRIPTION: u16 = 0x10;
    pub(crate) const NODE_INFO: u16 = 0x11;
    pub(crate) const SWITCH_INFO: u16 = 0x12;
    pub(crate) const GUID_INFO: u16 = 0x14;
    pub(crate) const PORT_INFO: u16 = 0x15;
    pub(crate) const PKEY_TABLE: u16 = 0x16;
    pub(crate) const SL_TO_VL: u16 = 0x17;
    pub(crate) const VL_ARBITRATION: u16 = 0x18;
    pub(crate) const LINEAR_FORWARDING_TABLE: u16 = 0x19;
    pub(crate) const MULTICAST_FORWARDING_TABLE: u16 = 0x1b;
    pub(crate) const SM_INFO: u16 = 0x20;
}

/// The partition keys of each port of the switch.
pub(crate) const SWITCH_PKEYS: &[u16] = &[0xffff];
/// Capacity of the switch's table for multicast.
const MULTICAST_CAPACITY: u64 = 1024;
/// Ports of a block of that table.
const MULTICAST_PORTS_A_BLOCK: u8 = 16;

/// The description of the switch.
pub(crate) const SWITCH_DESCRIPTION: &str = "Verbatim switch";

type SmpData = [u8; SMP_DATA_BYTES];

/// Answers an SMP that has arrived at `node`.
pub(crate) fn answer_smp(subnet: &Subnet, request: &[u8], node: MadArrivalNode<'_>) -> Vec<u8> {
    let mad = MadFields(request);
    let directed = if mad.class() == class::SMP_DIRECTED {
        status::DIRECTION_RETURN
    } else {
        0
    };
    let data = match mad.method() {
        method::GET => attribute_data(subnet, mad.attribute(), mad.modifier(), node),
        // The subnet has one manager, which is not a program.
        _ => Err(status::UNSUPPORTED_METHOD),
    };
    match data {
        Ok(data) => {
            let mut answer = request_copy_as_response(request, directed);
            put_bytes(&mut answer, SMP_AND_PERF_DATA_OFFSET, &data);
            answer
        }
        Err(status) => request_copy_as_response(request, directed | status),
    }
}

/// Returns true if an attribute depends on the members of multicast groups.
pub(crate) fn depends_on_multicast_groups(attribute: u16) -> bool {
    matches!(
        attribute,
        attribute::SWITCH_INFO | attribute::MULTICAST_FORWARDING_TABLE
    )
}

fn attribute_data(
    subnet: &Subnet,
    attribute: u16,
    modifier: u32,
    node: MadArrivalNode<'_>,
) -> Result<SmpData, u16> {
    match (attribute, node) {
        (attribute::NODE_DESCRIPTION, _) => Ok(node_description(node)),
        (attribute::NODE_INFO, _) => Ok(node_info(subnet, node)),
        (attribute::SWITCH_INFO, MadArrivalNode::Switch(_)) => Ok(switch_info(subnet)),
        (attribute::PORT_INFO, MadArrivalNode::Adapter(adapter, own)) => {
            // Port 0 means the port at which the request arrives.
            let port = match modifier {
                0 => Some(own),
                n => adapter.ports.iter().find(|p| u32::from(p.number) == n),
            };
            port.map(|port| port_info(subnet, port, own.number))
                .ok_or(status::INVALID_FIELD)
        }
        (attribute::PORT_INFO, MadArrivalNode::Switch(arrived)) => {
            let port = u8::try_from(modifier).map_err(|_| status::INVALID_FIELD)?;
            if usize::from(port) > subnet.ports().count() {
                return Err(status::INVALID_FIELD);
            }
            Ok(switch_port_info(subnet, port, arrived))
        }
        (attribute::GUID_INFO, node) if modifier == 0 => Ok(guid_info(subnet, node)),
        (attribute::PKEY_TABLE, MadArrivalNode::Adapter(_, port)) => {
            Ok(pkey_table(&port.pkeys, modifier))
        }
        (attribute::PKEY_TABLE, MadArrivalNode::Switch(_)) => {
            Ok(pkey_table(SWITCH_PKEYS, modifier))
        }
        // All service levels use virtual lane 0, and there is no other to arbitrate.
        (attribute::SL_TO_VL | attribute::VL_ARBITRATION, _) => Ok([0; SMP_DATA_BYTES]),
        (attribute::LINEAR_FORWARDING_TABLE, MadArrivalNode::Switch(_)) => {
            Ok(linear_forwarding_block(subnet, modifier))
        }
        (attribute::MULTICAST_FORWARDING_TABLE, MadArrivalNode::Switch(_)) => {
            Ok(multicast_forwarding_block(subnet, modifier))
        }
        (attribute::SM_INFO, MadArrivalNode::Adapter(_, port))
            if port.lid == subnet.manager_lid() =>
        {
            Ok(sm_info(port))
        }
        _ => Err(status::UNSUPPORTED_ATTRIBUTE),
    }
}

pub(crate) fn node_description(node: MadArrivalNode<'_>) -> SmpData {
    let text = match node {
        MadArrivalNode::Adapter(adapter, _) => &adapter.description,
        MadArrivalNode::Switch(_) => SWITCH_DESCRIPTION,
    };
    let mut data = [0; SMP_DATA_BYTES];
    put_bytes(&mut data, 0, text.as_bytes());
    data
}

pub(crate) fn node_info(subnet: &Subnet, node: MadArrivalNode<'_>) -> SmpData {
    let mut data = [0; SMP_DATA_BYTES];
    data[0] = 1;
    data[1] = 1;
    match node {
        MadArrivalNode::Adapter(adapter, port) => {
            data[2] = NODE_TYPE_CHANNEL_ADAPTER;
            data[3] = saturating_u8(adapter.ports.len());
            store_low_bytes(&mut data, 4, 8, adapter.system_guid);
            store_low_bytes(&mut data, 12, 8, adapter.guid);
            store_low_bytes(&mut data, 20, 8, port.guid);
            store_low_bytes(&mut data, 28, 2, saturating_u8(port.pkeys.len()).into());
            store_low_bytes(&mut data, 30, 2, adapter.device_id.into());
            data[36] = port.number;
            store_low_bytes(&mut data, 37, 3, adapter.vendor_id.into());
        }
        MadArrivalNode::Switch(arrived) => {
            let guid = subnet.switch_guid();
            data[2] = NODE_TYPE_SWITCH;
            data[3] = saturating_u8(subnet.ports().count());
            for at in [4, 12, 20] {
                store_low_bytes(&mut data, at, 8, guid);
            }
            store_low_bytes(&mut data, 28, 2, 1);
            data[36] = arrived;
        }
    }
    data
}

fn saturating_u8(n: usize) -> u8 {
    u8::try_from(n).unwrap_or(u8::MAX)
}

/// The fields that all ports have in common. The link is that of the software NIC: 4X EDR, active.
fn common_port_info(lid: u16, manager: u16, own_number: u8) -> SmpData {
    let mut data = [0; SMP_DATA_BYTES];
    store_low_bytes(&mut data, 16, 2, lid.into());
    store_low_bytes(&mut data, 18, 2, manager.into());
    data[28] = own_number;
    // Width: 4X enabled, 1X and 4X supported, 4X active.
    data[29] = 3;
    data[30] = 3;
    data[31] = 2;
    // Speeds of 2.5, 5 and 10 Gbit/s a lane; state Active.
    data[32] = 7 << 4 | 4;
    // Physical state LinkUp; polling is the state after a failure of the link.
    data[33] = 5 << 4 | 2;
    data[35] = 4 << 4 | 7;
    // Neighbour MTU 4096, and 4096 as the capability.
    data[36] = 5 << 4;
    data[37] = 1 << 4;
    data[41] = 5;
    // One operational virtual lane.
    data[43] = 1 << 4;
    // EDR is active; FDR and EDR are supported and enabled.
    data[62] = 2 << 4 | 3;
    data[63] = 3;
    data
}

pub(crate) fn port_info(subnet: &Subnet, port: &Port, own_number: u8) -> SmpData {
    let mut data = common_port_info(port.lid, subnet.manager_lid(), own_number);
    store_low_bytes(&mut data, 8, 8, port.gid_prefix);
    store_low_bytes(&mut data, 20, 4, port_capability_mask(subnet, port).into());
    data[50] = 1;
    data
}

/// Returns the port's capability mask with the bits of the subnet manager (bit 1) and of extended speeds (bit 14).
fn port_capability_mask(subnet: &Subnet, port: &Port) -> u32 {
    let manager = if port.lid == subnet.manager_lid() {
        1 << 1
    } else {
        0
    };
    port.capability_mask | manager | 1 << 14
}

pub(crate) fn switch_port_info(subnet: &Subnet, port: u8, arrived: u8) -> SmpData {
    let mut data = common_port_info(0, 0, arrived);
    if port == 0 {
        let prefix = subnet.ports().next().map_or(0, |(_, port)| port.gid_prefix);
        store_low_bytes(&mut data, 8, 8, prefix);
        store_low_bytes(&mut data, 16, 2, subnet.switch_lid().into());
        store_low_bytes(&mut data, 18, 2, subnet.manager_lid().into());
    }
    store_low_bytes(&mut data, 20, 4, 1 << 14);
    data
}

pub(crate) fn switch_info(subnet: &Subnet) -> SmpData {
    let mut data = [0; SMP_DATA_BYTES];
    // Capacity of the linear forwarding table, and the largest LID in it.
    store_low_bytes(&mut data, 0, 2, 0xbfff);
    store_low_bytes(&mut data, 6, 2, subnet.switch_lid().into());
    store_low_bytes(&mut data, 4, 2, MULTICAST_CAPACITY);
    // One partition.
    store_low_bytes(&mut data, 14, 2, 1);
    // The largest LID in the table for multicast: the only one, or the one before the first.
    let is_used = u16::from(!subnet.group_members.is_empty());
    store_low_bytes(&mut data, 18, 2, (MULTICAST_LID - 1 + is_used).into());
    data
}

/// Returns the GUIDs of a port: block 0, as there is one GUID.
pub(crate) fn guid_info(subnet: &Subnet, node: MadArrivalNode<'_>) -> SmpData {
    let mut data = [0; SMP_DATA_BYTES];
    let guid = match node {
        MadArrivalNode::Adapter(_, port) => port.guid,
        MadArrivalNode::Switch(_) => subnet.switch_guid(),
    };
    store_low_bytes(&mut data, 0, 8, guid);
    data
}

/// Returns the switch's ports for 64 LIDs: block `modifier`.
pub(crate) fn linear_forwarding_block(subnet: &Subnet, modifier: u32) -> SmpData {
    let mut data = [0xff; SMP_DATA_BYTES];
    let first = u64::from(modifier) * SMP_DATA_BYTES as u64;
    for (lid, out) in (first..).zip(&mut data) {
        let port = u16::try_from(lid).ok();
        if let Some(port) = port.and_then(|lid| subnet.switch_port_of_lid(lid)) {
            *out = port;
        }
    }
    data
}

/// Returns a mask of 16 of the switch's ports for each of 32 multicast LIDs. The upper 4 bits of `modifier` choose the
/// ports and the lower 9 the LIDs, of which the first alone is in use.
pub(crate) fn multicast_forwarding_block(subnet: &Subnet, modifier: u32) -> SmpData {
    let mut data = [0; SMP_DATA_BYTES];
    if modifier & 0x1ff == 0 {
        let position = modifier >> 28;
        let ports = subnet.multicast_switch_ports().into_iter();
        let here = ports.filter(|port| u32::from(port / MULTICAST_PORTS_A_BLOCK) == position);
        let mask = here.fold(0, |mask, port| {
            mask | 1_u64 << (port % MULTICAST_PORTS_A_BLOCK)
        });
        store_low_bytes(&mut data, 0, 2, mask);
    }
    data
}

/// Returns 32 entries of a table of partition keys: block `modifier`.
pub(crate) fn pkey_table(pkeys: &[u16], modifier: u32) -> SmpData {
    let mut data = [0; SMP_DATA_BYTES];
    let first = (modifier & 0xffff) as usize * 32;
    let entries = pkeys.iter().skip(first).take(32);
    for (at, pkey) in entries.enumerate() {
        store_low_bytes(&mut data, at * 2, 2, (*pkey).into());
    }
    data
}

pub(crate) fn sm_info(port: &Port) -> SmpData {
    let mut data = [0; SMP_DATA_BYTES];
    store_low_bytes(&mut data, 0, 8, port.guid);
    // Only standby managers check that the activity count grows, and this subnet has none.
    store_low_bytes(&mut data, 16, 4, 1);
    // Priority 0, state Master.
    data[20] = 3;
    data
}
