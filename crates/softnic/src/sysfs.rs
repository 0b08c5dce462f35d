//! The sysfs files that the kernel would have for this device.
//!
//! Programs read them beside the verbs: UCX reads the types and interfaces of GIDs, scripts read nearly everything. The
//! software NIC needs no kernel, so the kernel has none of these files. `verbatim run` shows them to a program.

use std::ffi::OsStr;
use std::fmt::Write;
use std::fs;
use std::net::Ipv6Addr;
use std::path::Path;

use crate::capabilities::{DeviceCapabilities, Transport};
use crate::device::{self, Device, DeviceAndPortCounts, LINK_LAYER_VAR, LinkLayer, Port};
use crate::identity::Identity;
use crate::nic::NicError;
use crate::path;
use crate::path::hw_counters::PortCounterFiles;
use crate::path::traffic::{self, HostPortId};
pub use crate::sysfs_file::{SysfsContent, SysfsFile};
use crate::sysfs_pci::{self, MELLANOX_OUI};
use shm::fabric::Fabric;

/// Name of the character device of device `number` below `/dev/infiniband`, and of its folder in
/// `/sys/class/infiniband_verbs`.
pub(crate) fn uverbs_name(number: u8) -> String {
    format!("uverbs{number}")
}

/// The names that the devices have below `/dev/infiniband`, by the files in their folders.
pub fn uverbs_names(files: &[SysfsFile]) -> impl Iterator<Item = &str> {
    files.iter().filter_map(|file| {
        let folder = file.path.strip_prefix("class/infiniband_verbs/")?;
        folder.strip_suffix("/ibdev")
    })
}

/// Returns the files of the devices below `/sys`, in the form that
/// `linux:Documentation/ABI/stable/sysfs-class-infiniband` describes. `link_layer` is a value of `VERBATIM_LINK_LAYER`.
/// Arguments that are `None` are read from the environment.
///
/// Empty entries of the GID table have no file here; the kernel has files of zeroes. `counters` of every port is a link
/// to a folder with its counters in the fabric's folder, and `hw_counters` of every Ethernet port is another. The
/// function creates these folders if necessary, and leaves out the links to those that it cannot create.
///
/// # Errors
/// If `link_layer` or a setting of the environment is malformed, or the host's addresses cannot be read.
pub fn sysfs_files(
    link_layer: Option<&OsStr>,
    identity: Option<&Identity>,
    capabilities: Option<&DeviceCapabilities>,
    counts: Option<DeviceAndPortCounts>,
) -> Result<Vec<SysfsFile>, NicError> {
    let link_layer = link_layer.map(OsStr::to_owned);
    let link_layer = link_layer.or_else(|| std::env::var_os(LINK_LAYER_VAR));
    let identity = identity.cloned().map_or_else(Identity::from_env, Ok)?;
    let capabilities = capabilities
        .copied()
        .map_or_else(DeviceCapabilities::from_env, Ok)?;
    let counts = counts.map_or_else(DeviceAndPortCounts::from_env, Ok)?;
    let (devices, _) = device::devices_from_env(link_layer.as_deref(), &identity, counts)?;
    let beside = device::first_port_interface();
    let says = (&identity, capabilities.transport);
    let mut files = device_files(says, &devices, Path::new(INTERFACES_FOLDER), beside);
    for device in &devices {
        for port in device.ports() {
            files.extend(traffic_folder_link(&device.name, port));
            files.extend(counter_folder_link(&device.name, port));
        }
    }
    Ok(files)
}

/// Returns the link to the folder with the traffic counters of a port; `None` if that cannot be made.
fn traffic_folder_link(device: &str, port: &Port) -> Option<SysfsFile> {
    let fabric = Fabric::default_dir().ok()?;
    Fabric::make_dir(&fabric).ok()?;
    let name = HostPortId {
        process_ports_key: traffic::own_port_counters_key(),
        host_wide_number: port.place.host_wide_number().into(),
    };
    let folder = traffic::create_counter_folder(&fabric, name).ok()?;
    Some(SysfsFile {
        path: format!(
            "class/infiniband/{device}/ports/{}/counters",
            port.place.port_num
        ),
        content: SysfsContent::ExternalFolderLink(folder),
    })
}

/// Returns the link to the folder with the packet counters of a port; `None` if the port is not an Ethernet port, or
/// the folder cannot be made.
fn counter_folder_link(device: &str, port: &Port) -> Option<SysfsFile> {
    if port.link_layer != LinkLayer::Ethernet {
        return None;
    }
    let fabric = Fabric::default_dir().ok()?;
    Fabric::make_dir(&fabric).ok()?;
    let files = PortCounterFiles::of_port(&fabric, port.place).ok()?;
    files
        .create_missing_files(path::NAMES, path::COUNTER_PUBLICATION_INTERVAL)
        .ok()?;
    Some(SysfsFile {
        path: format!(
            "class/infiniband/{device}/ports/{}/hw_counters",
            port.place.port_num
        ),
        content: SysfsContent::ExternalFolderLink(files.folder().to_owned()),
    })
}

/// The folder in which the kernel has the network interfaces.
pub(crate) const INTERFACES_FOLDER: &str = "/sys/class/net";

/// `beside` is the interface beside the first port, by name and number.
fn device_files(
    (identity, transport): (&Identity, Transport),
    devices: &[Device],
    interfaces: &Path,
    beside: Option<(String, u32)>,
) -> Vec<SysfsFile> {
    let mut files = Vec::new();
    let mut file = |path: String, text: &str| {
        let content = SysfsContent::Text(format!("{text}\n"));
        files.push(SysfsFile { path, content });
    };

    for device in devices {
        let at = format!("class/infiniband/{}", device.name);
        let guid = format_guid(device.node_guid);
        file(format!("{at}/node_type"), transport.node_type_text());
        file(format!("{at}/node_desc"), &device.name);
        file(format!("{at}/node_guid"), &guid);
        file(format!("{at}/sys_image_guid"), &guid);
        file(format!("{at}/fw_ver"), &identity.firmware);
        // The kernel has this file only if the driver knows the board.
        if !identity.board_id.is_empty() {
            file(format!("{at}/board_id"), &identity.board_id);
        }
        // Programs list the folder to learn at which address the device is reached.
        let first = beside.clone().filter(|_| device.number == 0);
        for (name, number) in interfaces_of_device(device, interfaces, first) {
            let at = sysfs_pci::pci_function_folder(device.number);
            file(format!("{at}/net/{name}/ifindex"), &number.to_string());
        }

        if identity.vendor_id == MELLANOX_OUI {
            // As in `hca_type_show` of `linux:drivers/infiniband/hw/mlx5/main.c` and mlx4.
            file(
                format!("{at}/hca_type"),
                &format!("MT{}", identity.vendor_part_id),
            );
        }
        for port in device.ports() {
            add_port_files(&mut file, &at, port, interfaces);
        }

        let verbs = format!("class/infiniband_verbs/{}", uverbs_name(device.number));
        file(format!("{verbs}/ibdev"), &device.name);
        file(format!("{verbs}/abi_version"), "1");
        // Of no character device: it is not opened.
        file(format!("{verbs}/dev"), "0:0");
    }
    // Versions as `linux:drivers/infiniband/core/uverbs_main.c` has them.
    file("class/infiniband_verbs/abi_version".to_owned(), "6");
    for device in devices {
        files.extend(sysfs_pci::pci_function_files(device, identity));
    }
    files
}

/// The network interfaces beside the ports of a device, by name and number; `first` is the one beside the first port.
fn interfaces_of_device(
    device: &Device,
    interfaces: &Path,
    first: Option<(String, u32)>,
) -> Vec<(String, u32)> {
    let mut found = Vec::new();
    let of_port = |port: &Port| {
        let number = *port.gid_if_indices.get(1)?;
        Some((interface_name(interfaces, number)?, number))
    };
    let skipped = usize::from(first.is_some());
    let others = device.ports().iter().skip(skipped).filter_map(of_port);
    for (name, number) in first.into_iter().chain(others) {
        // An alias (`eth0:1`) is no interface of its own.
        let name = name.split(':').next().unwrap_or(&name).to_owned();
        if !found.contains(&(name.clone(), number)) {
            found.push((name, number));
        }
    }
    found
}

/// Adds the files of the port of `device`.
fn add_port_files(
    file: &mut impl FnMut(String, &str),
    device: &str,
    port: &Port,
    interfaces: &Path,
) {
    let attr = port.attr();
    let at = format!("{device}/ports/{}", port.place.port_num);
    // Names of `ib_port_state` and `ib_port_phys_state` as `linux:drivers/infiniband/core/sysfs.c` spells them.
    file(format!("{at}/state"), "4: ACTIVE");
    file(format!("{at}/phys_state"), "5: LinkUp");
    // 4X and 25 Gbit/s a lane, see `Port::attr`.
    file(format!("{at}/rate"), "100 Gb/sec (4X EDR)");
    file(format!("{at}/lid"), &format!("{:#x}", attr.lid));
    file(format!("{at}/sm_lid"), &format!("{:#x}", attr.sm_lid));
    file(format!("{at}/lid_mask_count"), &attr.lmc.to_string());
    file(format!("{at}/sm_sl"), &attr.sm_sl.to_string());
    file(
        format!("{at}/cap_mask"),
        &format!("{:#010x}", attr.port_cap_flags),
    );
    let (link_layer, gid_type) = match port.link_layer {
        LinkLayer::Ethernet => ("Ethernet", "RoCE v2"),
        LinkLayer::InfiniBand => ("InfiniBand", "IB/RoCE v1"),
    };
    file(format!("{at}/link_layer"), link_layer);
    file(
        format!("{at}/pkeys/0"),
        &format!("{:#06x}", device::DEFAULT_PKEY),
    );
    for (index, gid) in port.gids.iter().enumerate() {
        let words = Ipv6Addr::from(*gid).segments();
        let words = words.map(|word| format!("{word:04x}")).join(":");
        file(format!("{at}/gids/{index}"), &words);
        file(format!("{at}/gid_attrs/types/{index}"), gid_type);
        let number = port.gid_if_indices.get(index).copied().unwrap_or(0);
        if let Some(name) = interface_name(interfaces, number) {
            file(format!("{at}/gid_attrs/ndevs/{index}"), &name);
        }
    }
}

/// Formats a GUID as in sysfs: four words of 16 bits.
fn format_guid(bytes: [u8; 8]) -> String {
    let mut text = String::new();
    for (n, pair) in bytes.chunks(2).enumerate() {
        let colon = if n == 0 { "" } else { ":" };
        // Writing to a string does not fail.
        let _ = write!(text, "{colon}{:02x}{:02x}", pair[0], pair[1]);
    }
    text
}

/// Returns the name of the kernel's interface with that number.
pub(crate) fn interface_name(interfaces: &Path, number: u32) -> Option<String> {
    if number == 0 {
        return None;
    }
    let of = |entry: &fs::DirEntry| -> Option<u32> {
        let text = fs::read_to_string(entry.path().join("ifindex")).ok()?;
        text.trim().parse().ok()
    };
    fs::read_dir(interfaces)
        .ok()?
        .filter_map(Result::ok)
        .find(|entry| of(entry) == Some(number))
        .and_then(|entry| entry.file_name().into_string().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text<'a>(files: &'a [SysfsFile], path: &str) -> Option<&'a str> {
        let file = files.iter().find(|file| file.path == path);
        file.and_then(|file| match &file.content {
            SysfsContent::Text(text) => Some(text.as_str()),
            _ => None,
        })
    }

    #[test]
    fn an_infiniband_port_has_a_lid_and_one_gid() {
        let files =
            sysfs_files(Some(OsStr::new("ib")), None, None, None).expect("it needs no addresses");
        let port = "class/infiniband/softnic0/ports/1";
        let at = |name: &str| text(&files, &format!("{port}/{name}"));
        assert_eq!(at("link_layer"), Some("InfiniBand\n"));
        assert_eq!(at("lid"), Some("0x1\n"));
        assert_eq!(at("pkeys/0"), Some("0xffff\n"));
        let gid = at("gids/0").expect("GID 0");
        assert!(gid.starts_with("fe80:0000:0000:0000:"), "{gid}");
        let node = text(&files, "class/infiniband/softnic0/node_guid").expect("a GUID");
        assert!(gid.ends_with(node), "{gid} {node}");
        assert_eq!(at("gids/1"), None);
        assert_eq!(at("gid_attrs/ndevs/0"), None);
        assert_eq!(
            text(&files, "class/infiniband_verbs/uverbs0/ibdev"),
            Some("softnic0\n")
        );
    }

    #[test]
    fn gids_of_a_roce_port_have_their_interfaces() {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, number) in [("eth7", "7"), ("eth8", "8")] {
            let of = folder.path().join(name);
            std::fs::create_dir(&of).expect("made");
            std::fs::write(of.join("ifindex"), format!("{number}\n")).expect("written");
        }
        let mut v4 = [0; 16];
        v4[10..].copy_from_slice(&[0xff, 0xff, 192, 0, 2, 1]);
        let (mut devices, _) =
            device::devices_from_env(None, &Identity::default(), DeviceAndPortCounts::default())
                .expect("a host has addresses");
        let mut port = devices[0].ports()[0].clone();
        port.gids = vec![[0xfe; 16], v4];
        port.gid_if_indices = vec![0, 8];
        devices[0].replace_first_port(port);
        let files = device_files(
            (&Identity::default(), Transport::default()),
            &devices,
            folder.path(),
            Some(("eth8:1".to_owned(), 8)),
        );
        let attrs = "class/infiniband/softnic0/ports/1/gid_attrs";
        assert_eq!(text(&files, &format!("{attrs}/ndevs/1")), Some("eth8\n"));
        assert_eq!(text(&files, &format!("{attrs}/ndevs/0")), None);
        assert_eq!(text(&files, &format!("{attrs}/types/1")), Some("RoCE v2\n"));
        assert_eq!(
            text(&files, "devices/pcifffe:00/fffe:00:00.0/net/eth8/ifindex"),
            Some("8\n")
        );
        assert_eq!(
            text(&files, "class/infiniband/softnic0/ports/1/gids/1"),
            Some("0000:0000:0000:0000:0000:ffff:c000:0201\n")
        );
    }

    #[test]
    fn the_files_are_those_of_the_identity() {
        let cx3 = "mlx4_0:713:4099:MT_1100120019:2.42.5000";
        let cx3: Identity = cx3.parse().expect("an identity");
        let files = sysfs_files(Some(OsStr::new("ib")), Some(&cx3), None, None)
            .expect("no addresses needed");
        for (name, value) in [
            ("node_desc", "mlx4_0\n"),
            ("board_id", "MT_1100120019\n"),
            ("fw_ver", "2.42.5000\n"),
            ("hca_type", "MT4099\n"),
        ] {
            assert_eq!(
                text(&files, &format!("class/infiniband/mlx4_0/{name}")),
                Some(value)
            );
        }
        assert!(files.iter().all(|file| !file.path.contains("softnic0")));
    }

    #[test]
    fn every_port_of_every_device_has_its_files() {
        let counts = Some(DeviceAndPortCounts::new(2, 2));
        let files = sysfs_files(Some(OsStr::new("ib")), None, None, counts).expect("made");
        let mut lids = Vec::new();
        for device in ["softnic0", "softnic1"] {
            for port in 1..=2 {
                let lid = text(
                    &files,
                    &format!("class/infiniband/{device}/ports/{port}/lid"),
                );
                lids.push(lid.expect("a LID").to_owned());
            }
        }
        assert_eq!(lids, ["0x1\n", "0x2\n", "0x5\n", "0x6\n"]);
        let names: Vec<_> = uverbs_names(&files).collect();
        assert_eq!(names, ["uverbs0", "uverbs1"]);
        assert_eq!(
            text(&files, "class/infiniband_verbs/uverbs1/ibdev"),
            Some("softnic1\n")
        );
        assert_ne!(
            text(&files, "class/infiniband/softnic0/node_guid"),
            text(&files, "class/infiniband/softnic1/node_guid")
        );
    }

    #[test]
    fn what_is_no_link_layer_is_refused() {
        let err = sysfs_files(Some(OsStr::new("tokenring")), None, None, None)
            .expect_err("no link layer");
        assert!(err.to_string().contains("tokenring"), "{err}");
    }
}
