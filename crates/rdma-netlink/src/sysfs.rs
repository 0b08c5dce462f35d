//! Devices, as the files of sysfs describe them (`linux:Documentation/ABI/stable/sysfs-class-infiniband`).

use std::fs;
use std::path::Path;

use crate::{Device, Port, PortSubnetAttributes};

/// The devices with a folder in `class`, which is `/sys/class/infiniband` or a copy of it, in the order of their names.
/// A file that is missing or says nonsense leaves out what it is about.
#[must_use]
pub fn read_devices(class: &Path) -> Vec<Device> {
    let mut names = list_names(class);
    names.sort();
    names
        .into_iter()
        .map(|name| read_device(&class.join(&name), name))
        .collect()
}

fn read_device(folder: &Path, name: String) -> Device {
    let ports = folder.join("ports");
    let interfaces = read_interfaces(&folder.join("device/net"));
    // Ports have numbers from 1 on, without gaps.
    let ports = (1..=u8::MAX)
        .map(|number| ports.join(number.to_string()))
        .take_while(|folder| folder.is_dir())
        .map(|folder| read_port(&folder, &interfaces));
    Device {
        firmware: read_trimmed(&folder.join("fw_ver")),
        node_type: read_leading_number(&folder.join("node_type")),
        node_guid: read_guid(&folder.join("node_guid")),
        sys_image_guid: read_guid(&folder.join("sys_image_guid")),
        ports: ports.collect(),
        name,
    }
}

fn read_port(folder: &Path, interfaces: &[(String, u32)]) -> Port {
    // Where a device has several interfaces, the port's own is that of its first GID with one.
    let own = (0..=1).find_map(|index| {
        let name = read_trimmed(&folder.join(format!("gid_attrs/ndevs/{index}")))?;
        interfaces.iter().find(|(other, _)| *other == name)
    });
    let interface = own.or(interfaces.first()).cloned();
    let is_infiniband = read_trimmed(&folder.join("link_layer")).as_deref() == Some("InfiniBand");
    Port {
        state: read_leading_number(&folder.join("state")),
        physical_state: read_leading_number(&folder.join("phys_state")),
        subnet_attributes: is_infiniband.then(|| read_subnet_attributes(folder)),
        interface_name_and_index: interface.filter(|_| !is_infiniband),
        counters: read_counters(&folder.join("hw_counters")),
    }
}

fn read_subnet_attributes(folder: &Path) -> PortSubnetAttributes {
    let gid = read_trimmed(&folder.join("gids/0")).unwrap_or_default();
    PortSubnetAttributes {
        port_cap_flags: read_hexadecimal(&folder.join("cap_mask")),
        gid_prefix: gid.get(..19).and_then(parse_guid),
        lid: read_hexadecimal(&folder.join("lid")).and_then(|lid| u16::try_from(lid).ok()),
        sm_lid: read_hexadecimal(&folder.join("sm_lid")).and_then(|lid| u16::try_from(lid).ok()),
        lid_mask_control: read_decimal(&folder.join("lid_mask_count"))
            .and_then(|count| u8::try_from(count).ok()),
    }
}

/// The interfaces of a folder of interfaces that say their index.
fn read_interfaces(folder: &Path) -> Vec<(String, u32)> {
    let mut names = list_names(folder);
    names.sort();
    let known = names.into_iter().filter_map(|name| {
        let index = read_decimal(&folder.join(&name).join("ifindex"))?;
        Some((name, u32::try_from(index).ok()?))
    });
    known.collect()
}

/// The numbers in the files of a folder of counters. `lifespan` is an age, no counter.
fn read_counters(folder: &Path) -> Vec<(String, u64)> {
    let mut names = list_names(folder);
    names.sort();
    names
        .into_iter()
        .filter(|name| name != "lifespan")
        .filter_map(|name| {
            let value = read_decimal(&folder.join(&name))?;
            Some((name, value))
        })
        .collect()
}

/// The names in a folder; none where it cannot be read.
fn list_names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

/// The content of a file, without white space around it.
#[must_use]
pub fn read_trimmed(file: &Path) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    Some(text.trim().to_owned())
}

/// `4` of `4: ACTIVE`.
fn read_leading_number(file: &Path) -> Option<u8> {
    read_trimmed(file)?.split(':').next()?.trim().parse().ok()
}

/// The decimal number in a file.
#[must_use]
pub fn read_decimal(file: &Path) -> Option<u64> {
    read_trimmed(file)?.parse().ok()
}

/// The number such as `0x1` in a file.
#[must_use]
pub fn read_hexadecimal(file: &Path) -> Option<u32> {
    u32::from_str_radix(read_trimmed(file)?.strip_prefix("0x")?, 16).ok()
}

fn read_guid(file: &Path) -> Option<u64> {
    parse_guid(&read_trimmed(file)?)
}

/// Parses a GUID as sysfs prints it: four 16-bit words with colons between them.
#[must_use]
pub fn parse_guid(text: &str) -> Option<u64> {
    let words: Vec<&str> = text.split(':').collect();
    if words.len() != 4 || words.iter().any(|word| word.len() != 4) {
        return None;
    }
    u64::from_str_radix(&words.concat(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(folder: &Path, files: &[(&str, &str)]) {
        for (path, text) in files {
            let path = folder.join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, format!("{text}\n")).expect("written");
        }
    }

    #[test]
    fn a_roce_device_has_an_interface_and_counters() {
        let class = tempfile::tempdir().expect("a folder");
        write(
            &class.path().join("a0"),
            &[
                ("node_type", "1: CA"),
                ("node_guid", "0200:00ff:fe00:0001"),
                ("sys_image_guid", "0200:00ff:fe00:000g"),
                ("fw_ver", "1.0"),
                ("device/net/eth0/ifindex", "7"),
                ("ports/1/state", "4: ACTIVE"),
                ("ports/1/phys_state", "5: LinkUp"),
                ("ports/1/link_layer", "Ethernet"),
                ("ports/1/lid", "0x0"),
                ("ports/1/hw_counters/sent_pkts", "12"),
                ("ports/1/hw_counters/lifespan", "1000"),
                ("ports/1/hw_counters/rubbish", "-1"),
            ],
        );
        let port = Port {
            state: Some(4),
            physical_state: Some(5),
            subnet_attributes: None,
            interface_name_and_index: Some(("eth0".to_owned(), 7)),
            counters: vec![("sent_pkts".to_owned(), 12)],
        };
        let device = Device {
            name: "a0".to_owned(),
            firmware: Some("1.0".to_owned()),
            node_type: Some(1),
            node_guid: Some(0x0200_00ff_fe00_0001),
            sys_image_guid: None,
            ports: vec![port],
        };
        assert_eq!(read_devices(class.path()), [device]);
    }

    #[test]
    fn each_port_has_the_interface_of_its_gids() {
        let class = tempfile::tempdir().expect("a folder");
        write(
            &class.path().join("a0"),
            &[
                ("device/net/eth0/ifindex", "7"),
                ("device/net/lo/ifindex", "1"),
                ("ports/1/link_layer", "Ethernet"),
                ("ports/1/gid_attrs/ndevs/1", "eth0"),
                ("ports/2/link_layer", "Ethernet"),
                ("ports/2/gid_attrs/ndevs/1", "lo"),
            ],
        );
        let devices = read_devices(class.path());
        let names = devices[0]
            .ports
            .iter()
            .map(|port| port.interface_name_and_index.clone());
        let expected = [("eth0".to_owned(), 7), ("lo".to_owned(), 1)].map(Some);
        assert_eq!(names.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn an_infiniband_port_has_a_subnet() {
        let class = tempfile::tempdir().expect("a folder");
        write(
            &class.path().join("b0"),
            &[
                ("ports/1/link_layer", "InfiniBand"),
                ("ports/1/gids/0", "fe80:0000:0000:0000:0200:00ff:fe00:0001"),
                ("ports/1/lid", "0x1"),
                ("ports/1/sm_lid", "0x12"),
                ("ports/1/lid_mask_count", "0"),
                ("ports/1/cap_mask", "0x00010000"),
                ("ports/3/link_layer", "InfiniBand"),
            ],
        );
        let devices = read_devices(class.path());
        let [device] = &devices[..] else {
            panic!("{devices:?}");
        };
        let subnet = PortSubnetAttributes {
            port_cap_flags: Some(0x1_0000),
            gid_prefix: Some(0xfe80 << 48),
            lid: Some(1),
            sm_lid: Some(0x12),
            lid_mask_control: Some(0),
        };
        // Port 3 is none without port 2.
        assert_eq!(device.ports.len(), 1);
        assert_eq!(device.ports[0].subnet_attributes, Some(subnet));
        assert_eq!(device.ports[0].state, None);
    }

    #[test]
    fn no_folder_has_no_devices() {
        assert_eq!(read_devices(Path::new("/nowhere")), []);
    }
}
