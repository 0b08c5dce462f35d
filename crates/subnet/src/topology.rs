//! The adapters, the ports and the switch of a subnet, and the way of a MAD between them.

use crate::mad;

/// LID of every multicast group, as in crate `rdmacm`: the software NIC distinguishes groups by their GIDs.
pub const MULTICAST_LID: u16 = 0xc000;

/// Value of `NodeType` in `NodeInfo` for a channel adapter.
pub(crate) const NODE_TYPE_CHANNEL_ADAPTER: u8 = 1;
/// Value of `NodeType` in `NodeInfo` for a switch.
pub(crate) const NODE_TYPE_SWITCH: u8 = 2;

/// A port of a channel adapter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Port {
    /// Number of the port, from 1.
    pub number: u8,
    /// Local identifier.
    pub lid: u16,
    /// Subnet prefix, the upper half of the GID.
    pub gid_prefix: u64,
    /// GUID of the port, the lower half of the GID.
    pub guid: u64,
    /// `CapabilityMask` of `PortInfo`.
    pub capability_mask: u32,
    /// Partition keys.
    pub pkeys: Vec<u16>,
    /// Traffic since the start.
    pub traffic: PortTraffic,
}

/// The traffic of a port, as the files in `counters` of sysfs count it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PortTraffic {
    /// Sent data in units of 4 octets.
    pub xmit_words_of_4_octets: u64,
    /// Received data in units of 4 octets.
    pub rcv_words_of_4_octets: u64,
    /// Sent packets.
    pub xmit_packets: u64,
    /// Received packets.
    pub rcv_packets: u64,
}

impl PortTraffic {
    /// Returns the traffic of the port at the other end of the link.
    pub(crate) fn at_the_other_end(self) -> Self {
        Self {
            xmit_words_of_4_octets: self.rcv_words_of_4_octets,
            rcv_words_of_4_octets: self.xmit_words_of_4_octets,
            xmit_packets: self.rcv_packets,
            rcv_packets: self.xmit_packets,
        }
    }

    /// Returns the traffic of two ports together.
    pub(crate) fn plus(self, other: Self) -> Self {
        let sum = u64::wrapping_add;
        Self {
            xmit_words_of_4_octets: sum(self.xmit_words_of_4_octets, other.xmit_words_of_4_octets),
            rcv_words_of_4_octets: sum(self.rcv_words_of_4_octets, other.rcv_words_of_4_octets),
            xmit_packets: sum(self.xmit_packets, other.xmit_packets),
            rcv_packets: sum(self.rcv_packets, other.rcv_packets),
        }
    }
}

/// A channel adapter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChannelAdapter {
    /// GUID of the node.
    pub guid: u64,
    /// GUID of the system.
    pub system_guid: u64,
    /// Content of `NodeDescription`.
    pub description: String,
    /// IEEE identifier of the vendor, 24 bits.
    pub vendor_id: u32,
    /// Identifier of the device, by its vendor.
    pub device_id: u16,
    /// Ports, in the order of their numbers.
    pub ports: Vec<Port>,
}

/// A port that is a member of a multicast group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GroupMember {
    /// GID of the group, in memory order.
    pub mgid: [u8; 16],
    /// LID of the port.
    pub lid: u16,
}

/// A subnet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Subnet {
    /// The channel adapters.
    pub adapters: Vec<ChannelAdapter>,
    /// The members of the multicast groups, each port once a group.
    pub group_members: Vec<GroupMember>,
}

/// An end of paths: a port of an adapter, or the management port of the switch.
pub(crate) struct PathEnd {
    pub(crate) lid: u16,
    pub(crate) gid_prefix: u64,
    pub(crate) guid: u64,
}

/// A place in the subnet at which a MAD arrives.
#[derive(Clone, Copy)]
pub(crate) enum MadArrivalNode<'s> {
    /// A port of an adapter.
    Adapter(&'s ChannelAdapter, &'s Port),
    /// The switch, by its port of this number; 0 is its management port.
    Switch(u8),
}

impl Subnet {
    /// Returns the ports with their adapters. The switch connects the first of them to its port 1, and so on.
    pub(crate) fn ports(&self) -> impl Iterator<Item = (&ChannelAdapter, &Port)> {
        self.adapters
            .iter()
            .flat_map(|adapter| adapter.ports.iter().map(move |port| (adapter, port)))
    }

    /// Returns the LID of the port with the subnet manager.
    pub fn manager_lid(&self) -> u16 {
        self.ports().map(|(_, port)| port.lid).min().unwrap_or(0)
    }

    /// Returns the LID of the switch: the next behind the ports' LIDs.
    pub(crate) fn switch_lid(&self) -> u16 {
        let last = self.ports().map(|(_, port)| port.lid).max().unwrap_or(0);
        last.saturating_add(1)
    }

    /// Returns the GUID of the switch.
    pub(crate) fn switch_guid(&self) -> u64 {
        // Bit 55 of the first adapter's GUID is flipped, so that both differ and the switch keeps its GUID.
        self.adapters.first().map_or(0, |first| first.guid) ^ 1 << 55
    }

    /// Returns the ends of paths, the switch's last.
    pub(crate) fn path_ends(&self) -> Vec<PathEnd> {
        let adapters = self.ports().map(|(_, port)| PathEnd {
            lid: port.lid,
            gid_prefix: port.gid_prefix,
            guid: port.guid,
        });
        let prefix = self.ports().next().map(|(_, port)| port.gid_prefix);
        let switch = prefix.map(|gid_prefix| PathEnd {
            lid: self.switch_lid(),
            gid_prefix,
            guid: self.switch_guid(),
        });
        adapters.chain(switch).collect()
    }

    /// Returns the numbers of the switch's ports to members of multicast groups, in order.
    pub(crate) fn multicast_switch_ports(&self) -> Vec<u8> {
        let members = self.group_members.iter();
        let mut ports: Vec<_> = members
            .filter_map(|member| self.switch_port_of_lid(member.lid))
            .collect();
        ports.sort_unstable();
        ports.dedup();
        ports
    }

    /// Returns the number of the switch's port for a LID. Its own LID has port 0.
    pub(crate) fn switch_port_of_lid(&self, lid: u16) -> Option<u8> {
        if lid == self.switch_lid() {
            return Some(0);
        }
        let at = self.ports().position(|(_, port)| port.lid == lid)?;
        u8::try_from(at + 1).ok()
    }

    pub(crate) fn node_of_lid(&self, lid: u16) -> Option<MadArrivalNode<'_>> {
        match self.switch_port_of_lid(lid)? {
            0 => Some(MadArrivalNode::Switch(0)),
            port => self.node_behind_port(port),
        }
    }

    /// Returns the port that the switch connects to its port of this number.
    fn node_behind_port(&self, switch_port: u8) -> Option<MadArrivalNode<'_>> {
        let (adapter, port) = self.port_behind(switch_port)?;
        Some(MadArrivalNode::Adapter(adapter, port))
    }

    /// As [`Self::node_behind_port`], as the port with its adapter.
    pub(crate) fn port_behind(&self, switch_port: u8) -> Option<(&ChannelAdapter, &Port)> {
        self.ports().nth(usize::from(switch_port).checked_sub(1)?)
    }

    /// Follows the initial path of a directed route from the port with `own_lid`.
    pub(crate) fn follow_directed_route(
        &self,
        request: &[u8],
        own_lid: u16,
    ) -> Option<MadArrivalNode<'_>> {
        let hops = usize::from(mad::byte_or_zero(request, 7));
        let mut node = self.node_of_lid(own_lid)?;
        // Entry 0 of the path is reserved.
        for hop in 1..=hops.min(63) {
            let out = mad::byte_or_zero(request, 128 + hop);
            node = match node {
                MadArrivalNode::Adapter(_, port) if port.number == out => {
                    MadArrivalNode::Switch(self.switch_port_of_lid(port.lid)?)
                }
                MadArrivalNode::Adapter(..) => return None,
                MadArrivalNode::Switch(_) => self.node_behind_port(out)?,
            };
        }
        Some(node)
    }
}
