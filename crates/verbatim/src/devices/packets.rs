//! `verbatim devices -v`: the way in which a port sends packets, and its counters.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::Result;
use serde::{Serialize, Serializer};
use softnic::{AddressReport, PacketReport, RECEIVE_BUFFER_BYTES, ROCE_UDP_PORT, UdpPortUsers};

use super::format_bytes::format_byte_limit;

/// The facts about a port that `-v` adds.
#[derive(Serialize)]
pub(super) struct PortDetails {
    /// The addresses and sockets for packets to other hosts; null for NICs other than the software NIC.
    #[serde(rename = "packets")]
    packet_path: Option<PacketPathReport>,
    /// Counters by name, as in `hw_counters` of sysfs.
    #[serde(serialize_with = "serialize_as_map")]
    counters: Vec<(String, u64)>,
    /// Interfaces of the GID table, by index.
    #[serde(skip)]
    gid_interfaces: Vec<Option<String>>,
}

/// The addresses and sockets by which the software NIC sends packets.
#[derive(Serialize)]
struct PacketPathReport {
    /// The condition under which queue pairs use packets: a value of `--path`.
    #[serde(rename = "path")]
    path_setting: &'static str,
    udp_port: u16,
    addresses: Vec<HostAddress>,
}

/// An address of the host, with its UDP port.
#[derive(Serialize)]
struct HostAddress {
    ip: String,
    interface: Option<String>,
    /// State of the UDP port: `free`, `shared` by processes of this fabric, or `unavailable`.
    #[serde(rename = "state")]
    udp_port_state: &'static str,
    /// Number of processes of this fabric that use the UDP port.
    #[serde(rename = "processes")]
    processes_on_udp_port: usize,
    /// The reason why the port is unavailable, and the remedy; null if it is available.
    problem: Option<String>,
    datapath: &'static str,
    gso: bool,
    gro: bool,
    receive_buffer_bytes: Option<usize>,
    receive_buffer_asked_bytes: usize,
    path_mtu_bytes: Option<u32>,
}

fn serialize_as_map<S: Serializer>(
    counters: &[(String, u64)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(counters.iter().map(|(name, value)| (name, value)))
}

impl PortDetails {
    /// Returns the facts about a port of the software NIC in this process. `device` counts devices from 0.
    ///
    /// # Errors
    /// Returns an error if the software NIC has no such port.
    pub(super) fn of_softnic(device: usize, port_num: u8) -> Result<Self, softnic::NicError> {
        Ok(Self::of_report(softnic::packet_report(device, port_num)?))
    }

    fn of_report(report: PacketReport) -> Self {
        let counters = report.counters.into_iter();
        Self {
            packet_path: Some(PacketPathReport {
                path_setting: report.path_mode,
                udp_port: ROCE_UDP_PORT,
                addresses: report
                    .addresses
                    .into_iter()
                    .map(HostAddress::from_report)
                    .collect(),
            }),
            counters: counters
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
            gid_interfaces: report.gid_interfaces,
        }
    }

    /// Returns the facts about a port of the machine's own device, from sysfs.
    pub(super) fn of_system(device: &str, port_num: u8) -> Self {
        let port = Path::new("/sys/class/infiniband").join(device);
        Self::of_sysfs(&port.join("ports").join(port_num.to_string()))
    }

    fn of_sysfs(port: &Path) -> Self {
        let mut counters = read_number_files(&port.join("hw_counters"));
        counters.retain(|(name, _)| name != "lifespan");
        let interface = |index: usize| {
            let text = fs::read_to_string(port.join(format!("gid_attrs/ndevs/{index}"))).ok()?;
            let name = text.trim();
            (!name.is_empty()).then(|| name.to_owned())
        };
        let len = fs::read_dir(port.join("gids")).map_or(0, Iterator::count);
        Self {
            packet_path: None,
            counters,
            gid_interfaces: (0..len).map(interface).collect(),
        }
    }

    /// Returns the interface of an entry of the GID table.
    pub(super) fn gid_interface(&self, index: u32) -> Option<String> {
        let index = usize::try_from(index).ok()?;
        self.gid_interfaces.get(index)?.clone()
    }

    /// Formats the lines of a port.
    pub(super) fn format_lines(&self) -> String {
        let mut text = String::new();
        if let Some(packets) = &self.packet_path {
            packets.append_text(&mut text);
        }
        let counted: Vec<_> = self.counters.iter().filter(|(_, n)| *n != 0).collect();
        let others = match (counted.len(), self.counters.len()) {
            (_, 0) => "none",
            (0, _) => "all 0",
            (some, all) if some < all => "others 0",
            _ => "",
        };
        let _ = write!(text, "\n    counters: {others}");
        for (name, value) in counted {
            let _ = write!(text, "\n      {name} {value}");
        }
        text
    }
}

/// Reads the files of a folder that contain numbers; returns each number with its file's name.
fn read_number_files(folder: &Path) -> Vec<(String, u64)> {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut numbers: Vec<_> = files
        .filter_map(|file| {
            let text = fs::read_to_string(file.path()).ok()?;
            let name = file.file_name().into_string().ok()?;
            Some((name, text.trim().parse().ok()?))
        })
        .collect();
    numbers.sort();
    numbers
}

impl PacketPathReport {
    fn append_text(&self, text: &mut String) {
        let when = match self.path_setting {
            "packets" => "to all peers",
            "local" => "to nobody (--path local)",
            _ => "to peers on other hosts",
        };
        let _ = write!(text, "\n    packets: {when}, UDP port {}", self.udp_port);
        if self.addresses.is_empty() {
            text.push_str("; this port has no address for them");
        }
        for address in &self.addresses {
            let _ = write!(text, "\n      {}", address.format_line());
        }
    }
}

impl HostAddress {
    fn from_report(report: AddressReport) -> Self {
        let (state, processes, problem) = match report.udp_port_users {
            UdpPortUsers::Free => ("free", 0, None),
            UdpPortUsers::Shared(processes) => ("shared", processes, None),
            UdpPortUsers::Unavailable(message) => ("unavailable", 0, Some(message)),
        };
        Self {
            ip: report.ip.to_string(),
            interface: report.interface,
            udp_port_state: state,
            processes_on_udp_port: processes,
            problem,
            datapath: "UDP socket",
            gso: report.gso,
            gro: report.gro,
            receive_buffer_bytes: report.receive_buffer_bytes,
            receive_buffer_asked_bytes: RECEIVE_BUFFER_BYTES,
            path_mtu_bytes: report.path_mtu_bytes,
        }
    }

    fn format_line(&self) -> String {
        let mut text = self.ip.clone();
        if let Some(interface) = &self.interface {
            let _ = write!(text, " ({interface})");
        }
        match (&self.problem, self.processes_on_udp_port) {
            (Some(problem), _) => {
                let _ = write!(text, ": unavailable: {problem}");
                return text;
            }
            (None, 0) => text.push_str(": port free"),
            (None, processes) => {
                let _ = write!(
                    text,
                    ": port shared by {processes} processes of this fabric"
                );
            }
        }
        let offloads = match (self.gso, self.gro) {
            (true, true) => "GSO and GRO",
            (true, false) => "GSO, no GRO",
            (false, true) => "GRO, no GSO",
            (false, false) => "neither GSO nor GRO",
        };
        let _ = write!(text, "; {} with {offloads}", self.datapath);
        if let Some(granted) = self.receive_buffer_bytes {
            let asked = self.receive_buffer_asked_bytes;
            let _ = write!(
                text,
                ", receive buffer {}",
                format_byte_limit(granted as u64)
            );
            if granted < asked {
                let _ = write!(
                    text,
                    " of {} (net.core.rmem_max)",
                    format_byte_limit(asked as u64)
                );
            }
        }
        if let Some(mtu) = self.path_mtu_bytes {
            let _ = write!(text, ", path MTU {mtu}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(udp_port: UdpPortUsers) -> PacketReport {
        PacketReport {
            port_num: 1,
            path_mode: "auto",
            gid_interfaces: vec![None, Some("eth0".to_owned())],
            addresses: vec![AddressReport {
                ip: "192.0.2.7".parse().unwrap(),
                interface: Some("eth0".to_owned()),
                udp_port_users: udp_port,
                receive_buffer_bytes: Some(208 << 10),
                gso: true,
                gro: false,
                path_mtu_bytes: Some(1024),
            }],
            counters: vec![("sent_pkts", 7), ("send_err", 0)],
        }
    }

    #[test]
    fn a_port_says_who_has_it_and_what_it_counted() {
        let details = PortDetails::of_report(report(UdpPortUsers::Free));
        assert_eq!(
            details.format_lines(),
            "\n    packets: to peers on other hosts, UDP port 4791\
             \n      192.0.2.7 (eth0): port free; UDP socket with GSO, no GRO, \
             receive buffer 208 KiB of 8 MiB (net.core.rmem_max), path MTU 1024\
             \n    counters: others 0\n      sent_pkts 7"
        );
        assert_eq!(details.gid_interface(1).as_deref(), Some("eth0"));
        let json = serde_json::to_value(&details).unwrap();
        assert_eq!(json["counters"]["sent_pkts"], 7);
        assert_eq!(json["packets"]["addresses"][0]["state"], "free");
        let taken = UdpPortUsers::Unavailable("in use; end the other one".to_owned());
        let text = PortDetails::of_report(report(taken)).format_lines();
        assert!(
            text.contains("192.0.2.7 (eth0): unavailable: in use; end the other one\n"),
            "{text}"
        );
    }

    #[test]
    fn a_kernels_device_has_what_sysfs_says() {
        let port = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("hw_counters/lifespan", "10\n"),
            ("hw_counters/sent_pkts", "12\n"),
            ("hw_counters/rcvd_pkts", "0\n"),
            ("gids/0", "fe80:0000:0000:0000:0000:0000:0000:0001\n"),
            ("gid_attrs/ndevs/0", "eth0\n"),
        ] {
            let path = port.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let details = PortDetails::of_sysfs(port.path());
        let counters = [("rcvd_pkts".to_owned(), 0), ("sent_pkts".to_owned(), 12)];
        assert_eq!(details.counters, counters);
        assert_eq!(details.gid_interface(0).as_deref(), Some("eth0"));
        assert_eq!(details.gid_interface(1), None);
        assert_eq!(
            PortDetails::of_sysfs(Path::new("/nowhere")).format_lines(),
            "\n    counters: none"
        );
    }
}
