//! The PCI function behind each device, with the files of `linux:Documentation/ABI/testing/sysfs-bus-pci`.
//!
//! NCCL and UCX resolve `/sys/class/infiniband/DEVICE/device` and read the PCI address at the end of the path. From the
//! files there, and from the functions in front of it, they learn how near the NIC is to processors and GPUs.
//!
//! Each device is the only function of a root bus of its own. NCCL takes functions of one bus for ports of one NIC.

use std::fmt::Write;
use std::fs;

use crate::device::{Device, LinkLayer};
use crate::identity::Identity;
use crate::sysfs_file::{SysfsContent, SysfsFile};

/// The PCI domain of the functions, as in their addresses. Firmware numbers domains from 0 on, so that no machine has
/// so many; addresses of five digits, as behind Intel's VMD, are not understood by NCCL.
const PCI_DOMAIN: &str = "fffe";

/// The address of the function behind device `number`.
fn pci_address(number: u8) -> String {
    format!("{PCI_DOMAIN}:{number:02x}:00.0")
}

/// The folder of the function behind device `number`, below `/sys`.
pub(crate) fn pci_function_folder(number: u8) -> String {
    format!(
        "devices/pci{PCI_DOMAIN}:{number:02x}/{}",
        pci_address(number)
    )
}

/// Numbers that identify a function.
struct PciIds {
    vendor: u16,
    device: u16,
    /// Class, subclass and programming interface.
    class: u32,
}

impl PciIds {
    fn from_device(device: &Device, identity: &Identity) -> Self {
        // Mellanox' driver reports an OUI to the verbs, other drivers their PCI vendor (pci.ids). No vendor has 0xffff,
        // as none has the OUI ff:ff:ff.
        let vendor = match identity.vendor_id {
            MELLANOX_OUI => 0x15b3,
            other => u16::try_from(other).unwrap_or(0xffff),
        };
        let is_infiniband = device
            .ports()
            .first()
            .is_some_and(|port| port.link_layer == LinkLayer::InfiniBand);
        Self {
            vendor,
            device: (identity.vendor_part_id & 0xffff) as u16,
            // `PCI_CLASS_NETWORK_INFINIBAND` and `PCI_CLASS_NETWORK_ETHERNET` of `linux:include/linux/pci_ids.h`.
            class: if is_infiniband { 0x02_0700 } else { 0x02_0000 },
        }
    }

    /// The first 64 bytes of the configuration space: the header of type 0 without memory (PCI Local Bus 3.0, 6.1).
    fn config_space_bytes(&self) -> Vec<u8> {
        let mut config = vec![0; 64];
        let mut set = |at: usize, value: &[u8]| {
            if let Some(field) = config.get_mut(at..at + value.len()) {
                field.copy_from_slice(value);
            }
        };
        for at in [0x00, 0x2c] {
            set(at, &self.vendor.to_le_bytes());
            set(at + 2, &self.device.to_le_bytes());
        }
        set(0x08, &(self.class << 8).to_le_bytes());
        config
    }
}

/// The OUI that Mellanox' adapters report as `vendor_id` of `ibv_query_device(3)`.
pub(crate) const MELLANOX_OUI: u32 = 0x02c9;
/// The list of the machine's processors.
const ONLINE_CPUS_FILE: &str = "/sys/devices/system/cpu/online";
/// Largest number of processors in a mask: `CONFIG_NR_CPUS` of x86-64 has no larger value.
const MAX_CPUS: usize = 8192;
/// Lines of `resource`: the six BARs and the ROM, and those of bridges.
const RESOURCE_LINES: usize = 13;

/// Returns the files of the function behind a device, with the links to it. The function is on no NUMA node (`-1`), and
/// near all processors.
pub(crate) fn pci_function_files(device: &Device, identity: &Identity) -> Vec<SysfsFile> {
    let at = pci_function_folder(device.number);
    let (address, number) = (pci_address(device.number), device.number);
    let bus = format!("{PCI_DOMAIN}:{number:02x}");
    let bus_folder = format!("devices/pci{bus}/pci_bus/{bus}");
    let ids = PciIds::from_device(device, identity);
    let mut files = Vec::new();
    let mut add = |path: String, content| files.push(SysfsFile { path, content });

    let (vendor, part) = (ids.vendor, ids.device);
    let texts = [
        ("vendor", format!("{vendor:#06x}")),
        ("device", format!("{part:#06x}")),
        ("subsystem_vendor", format!("{vendor:#06x}")),
        ("subsystem_device", format!("{part:#06x}")),
        ("class", format!("{:#08x}", ids.class)),
        ("revision", "0x00".to_owned()),
        ("irq", "0".to_owned()),
        ("enable", "1".to_owned()),
        ("resource", empty_resource_file()),
        ("numa_node", "-1".to_owned()),
        // PCIe 3.0 x16 carries the 100 Gbit/s of the port.
        ("current_link_speed", "8.0 GT/s PCIe".to_owned()),
        ("current_link_width", "16".to_owned()),
        ("max_link_speed", "8.0 GT/s PCIe".to_owned()),
        ("max_link_width", "16".to_owned()),
        (
            "uevent",
            format!(
                "PCI_CLASS={:X}\nPCI_ID={vendor:04X}:{part:04X}\nPCI_SUBSYS_ID={vendor:04X}:{part:04X}\n\
                 PCI_SLOT_NAME={address}",
                ids.class
            ),
        ),
    ];
    for (name, text) in texts {
        let content = SysfsContent::Text(format!("{text}\n"));
        add(format!("{at}/{name}"), content);
    }
    let online = fs::read_to_string(ONLINE_CPUS_FILE).unwrap_or_default();
    if let Some(mask) = cpu_mask(online.trim()) {
        for (name, text) in [
            (format!("{at}/local_cpulist"), online.trim()),
            (format!("{at}/local_cpus"), &mask),
            (format!("{bus_folder}/cpulistaffinity"), online.trim()),
            (format!("{bus_folder}/cpuaffinity"), &mask),
        ] {
            add(name, SysfsContent::Text(format!("{text}\n")));
        }
    }
    add(
        format!("{at}/config"),
        SysfsContent::Bytes(ids.config_space_bytes()),
    );
    let name = &device.name;
    for (path, to) in [
        (
            format!("class/infiniband/{name}/device"),
            format!("../../../{at}"),
        ),
        (
            format!("{at}/infiniband/{name}"),
            format!("../../../../class/infiniband/{name}"),
        ),
        (format!("{at}/subsystem"), "../../../bus/pci".to_owned()),
        (
            format!("bus/pci/devices/{address}"),
            format!("../../../{at}"),
        ),
        (
            format!("class/pci_bus/{bus}"),
            format!("../../{bus_folder}"),
        ),
    ] {
        add(path, SysfsContent::Link(to));
    }
    files
}

/// Lists no memory and no ports.
fn empty_resource_file() -> String {
    let none = "0x0000000000000000 0x0000000000000000 0x0000000000000000";
    [none; RESOURCE_LINES].join("\n")
}

/// Converts a list of processors (`0-3,8`) to a mask in words of 32 bits, the highest first, as in sysfs.
fn cpu_mask(list: &str) -> Option<String> {
    let mut words = vec![0u32];
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last >= MAX_CPUS {
            return None;
        }
        for cpu in first..=last {
            if words.len() <= cpu / 32 {
                words.resize(cpu / 32 + 1, 0);
            }
            words[cpu / 32] |= 1 << (cpu % 32);
        }
    }
    let mut text = String::new();
    for word in words.iter().rev() {
        // Writing to a string does not fail.
        let _ = match text.is_empty() {
            true => write!(text, "{word:x}"),
            false => write!(text, ",{word:08x}"),
        };
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;
    use crate::device::DeviceAndPortCounts;
    use crate::sysfs::sysfs_files;

    fn of(link_layer: &str, identity: &str) -> Vec<SysfsFile> {
        let identity: Identity = identity.parse().expect("an identity");
        let counts = Some(DeviceAndPortCounts::new(2, 1));
        sysfs_files(Some(OsStr::new(link_layer)), Some(&identity), None, counts).expect("made")
    }

    fn content<'a>(files: &'a [SysfsFile], path: &str) -> &'a SysfsContent {
        let file = files.iter().find(|file| file.path == path);
        &file.unwrap_or_else(|| panic!("no {path}")).content
    }

    #[test]
    fn every_device_links_to_a_function_on_a_bus_of_its_own() {
        let files = of("ib", "mlx4_0:713:4099:MT_1100120019:2.42.5000");
        for (device, function) in [
            ("mlx4_0", "devices/pcifffe:00/fffe:00:00.0"),
            ("mlx4_1", "devices/pcifffe:01/fffe:01:00.0"),
        ] {
            let link = content(&files, &format!("class/infiniband/{device}/device"));
            assert_eq!(*link, SysfsContent::Link(format!("../../../{function}")));
            for (name, text) in [
                ("vendor", "0x15b3"),
                ("device", "0x1003"),
                ("class", "0x020700"),
                ("numa_node", "-1"),
            ] {
                let file = content(&files, &format!("{function}/{name}"));
                assert_eq!(*file, SysfsContent::Text(format!("{text}\n")), "{name}");
            }
            let SysfsContent::Bytes(config) = content(&files, &format!("{function}/config")) else {
                panic!("no bytes");
            };
            assert_eq!(config[..4], [0xb3, 0x15, 0x03, 0x10]);
            assert_eq!(config[8..12], [0, 0, 7, 2]);
        }
    }

    #[test]
    fn the_vendor_is_that_of_the_driver_or_none() {
        let function = "devices/pcifffe:00/fffe:00:00.0";
        for (identity, vendor) in [
            ("efa_0:7439:61345::1.0", "0x1d0f\n"),
            ("softnic0:16777215:0::1.0", "0xffff\n"),
        ] {
            let files = of("ib", identity);
            let file = content(&files, &format!("{function}/vendor"));
            assert_eq!(*file, SysfsContent::Text(vendor.to_owned()), "{identity}");
        }
    }

    #[test]
    fn lists_of_processors_become_masks() {
        for (list, mask) in [
            ("0", "1"),
            ("0-1", "3"),
            ("0-3,8", "10f"),
            ("31-32", "1,80000000"),
        ] {
            assert_eq!(cpu_mask(list).as_deref(), Some(mask), "{list}");
        }
        for wrong in ["", "a", "1-", "0-99999"] {
            assert_eq!(cpu_mask(wrong), None, "{wrong}");
        }
    }
}
