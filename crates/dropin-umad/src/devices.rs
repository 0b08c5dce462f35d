//! The devices of `/sys/class/infiniband`, and the subnet of their ports.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rdma_netlink::{Device, sysfs};
use shm::fabric::{Fabric, KnownMulticastAttachment, list_fabric_processes};
use subnet::{ChannelAdapter, GroupMember, Port, PortTraffic, Subnet};

/// The folder of the devices.
const INFINIBAND_CLASS_FOLDER: &str = "/sys/class/infiniband";

/// Returns the devices, in the order of their names.
pub(crate) fn all_devices() -> Vec<Device> {
    sysfs::read_devices(Path::new(INFINIBAND_CLASS_FOLDER))
}

/// Returns the device of this name.
pub(crate) fn find_device_by_name(name: &str) -> Option<Device> {
    all_devices().into_iter().find(|device| device.name == name)
}

/// Returns the folder of a device.
pub(crate) fn device_folder(device: &Device) -> PathBuf {
    Path::new(INFINIBAND_CLASS_FOLDER).join(&device.name)
}

/// Returns the folder of a port.
pub(crate) fn port_folder(device: &Device, number: u8) -> PathBuf {
    device_folder(device).join("ports").join(number.to_string())
}

/// Returns the subnet of all InfiniBand ports, with what the answer to `request` needs.
pub(crate) fn read_subnet_for_request(request: &[u8]) -> Subnet {
    let devices = all_devices();
    let adapters = devices.iter().map(to_channel_adapter);
    Subnet {
        adapters: adapters
            .filter(|adapter| !adapter.ports.is_empty())
            .collect(),
        group_members: if Subnet::depends_on_multicast_groups(request) {
            group_members(&devices)
        } else {
            Vec::new()
        },
    }
}

/// Returns the ports with queue pairs that are attached to multicast groups, each once a group. The names of the
/// devices are in the order of their numbers.
fn group_members(devices: &[Device]) -> Vec<GroupMember> {
    let fabric = Fabric::default_dir().ok();
    let processes = fabric.and_then(|fabric| list_fabric_processes(&fabric).ok());
    let known = processes
        .into_iter()
        .flatten()
        .flat_map(|process| process.multicast_attachments);
    let of_port = |member: KnownMulticastAttachment| {
        let device = devices.get(usize::try_from(member.device).ok()?)?;
        let at = usize::try_from(member.port_num).ok()?.checked_sub(1)?;
        let lid = device.ports.get(at)?.subnet_attributes.as_ref()?.lid?;
        Some((member.mgid, lid))
    };
    let members: BTreeSet<_> = known.filter_map(of_port).collect();
    let members = members.into_iter();
    members
        .map(|(mgid, lid)| GroupMember { mgid, lid })
        .collect()
}

fn to_channel_adapter(device: &Device) -> ChannelAdapter {
    let folder = device_folder(device);
    let guid = device.node_guid.unwrap_or(0);
    let pci = |file| sysfs::read_hexadecimal(&folder.join("device").join(file)).unwrap_or(0);
    let ports = (1..=u8::MAX).zip(&device.ports);
    ChannelAdapter {
        guid,
        system_guid: device.sys_image_guid.unwrap_or(guid),
        description: sysfs::read_trimmed(&folder.join("node_desc")).unwrap_or_default(),
        // The first 24 bits of a GUID are its vendor's.
        vendor_id: u32::try_from(guid >> 40).unwrap_or(0),
        device_id: u16::try_from(pci("device")).unwrap_or(0),
        ports: ports
            .filter(|(_, port)| port.subnet_attributes.is_some())
            .map(|(number, port)| to_subnet_port(device, number, port))
            .collect(),
    }
}

fn to_subnet_port(device: &Device, number: u8, port: &rdma_netlink::Port) -> Port {
    let folder = port_folder(device, number);
    let subnet = port.subnet_attributes.as_ref();
    let counter = |name| sysfs::read_decimal(&folder.join("counters").join(name)).unwrap_or(0);
    Port {
        number,
        lid: subnet.and_then(|subnet| subnet.lid).unwrap_or(0),
        gid_prefix: subnet.and_then(|subnet| subnet.gid_prefix).unwrap_or(0),
        guid: port_guid(device, number),
        capability_mask: subnet.and_then(|subnet| subnet.port_cap_flags).unwrap_or(0),
        pkeys: read_pkey_table(device, number),
        traffic: PortTraffic {
            xmit_words_of_4_octets: counter("port_xmit_data"),
            rcv_words_of_4_octets: counter("port_rcv_data"),
            xmit_packets: counter("port_xmit_packets"),
            rcv_packets: counter("port_rcv_packets"),
        },
    }
}

/// Returns the GUID of a port: the lower half of its first GID.
pub(crate) fn port_guid(device: &Device, number: u8) -> u64 {
    let gid = sysfs::read_trimmed(&port_folder(device, number).join("gids/0")).unwrap_or_default();
    gid.get(20..).and_then(sysfs::parse_guid).unwrap_or(0)
}

/// Returns the table of partition keys of a port.
pub(crate) fn read_pkey_table(device: &Device, number: u8) -> Vec<u16> {
    let folder = port_folder(device, number).join("pkeys");
    (0..)
        .map_while(|index: u32| sysfs::read_hexadecimal(&folder.join(index.to_string())))
        .filter_map(|pkey| u16::try_from(pkey).ok())
        .collect()
}
