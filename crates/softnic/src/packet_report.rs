//! A report on the path by packets for users: sockets, addresses, counters.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use link::probe_features::{SocketFeatures, probe_addresses};
use link::{Config, FabricMembership, UdpPortState};

use crate::nic::NicError;
use crate::path;
use crate::path::hw_counters::PortCounterFiles;
use crate::process_nic;
use crate::sysfs::{INTERFACES_FOLDER, interface_name};

/// The way by packets of a port of this process.
#[derive(Clone, Debug)]
pub struct PacketReport {
    /// Number of the port.
    pub port_num: u8,
    /// When packets are used: `auto`, `local` or `packets`, as in `VERBATIM_PATH`.
    pub path_mode: &'static str,
    /// The network interface of each entry of the GID table, by index; `None` where an entry belongs to no interface.
    pub gid_interfaces: Vec<Option<String>>,
    /// The addresses that can have sockets; none on InfiniBand.
    pub addresses: Vec<AddressReport>,
    /// Counters of the port and their values, summed over all processes of the fabric, at most a second old.
    pub counters: Vec<(&'static str, u64)>,
}

/// An address of the port.
#[derive(Clone, Debug)]
pub struct AddressReport {
    /// The address.
    pub ip: IpAddr,
    /// The network interface that has it.
    pub interface: Option<String>,
    /// The users of the UDP port of RoCEv2 at this address.
    pub udp_port_users: UdpPortUsers,
    /// Bytes of a socket's receive buffer when [`RECEIVE_BUFFER_BYTES`] are asked for.
    pub receive_buffer_bytes: Option<usize>,
    /// True if the kernel segments sent packets (GSO).
    pub gso: bool,
    /// True if the kernel puts received packets together (GRO).
    pub gro: bool,
    /// The largest path MTU of packets, in bytes, that fits through the interface.
    pub path_mtu_bytes: Option<u32>,
}

/// The users of the UDP port of RoCEv2 at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UdpPortUsers {
    /// The port has no user.
    Free,
    /// This number of processes of the fabric share the port.
    Shared(usize),
    /// The port is not available; the message gives the reason and a remedy.
    Unavailable(String),
}

/// The UDP port of RoCEv2.
pub const ROCE_UDP_PORT: u16 = roce::UDP_PORT;

/// Bytes of the receive buffer that a socket asks for.
pub const RECEIVE_BUFFER_BYTES: usize = link::DEFAULT_BUFFER_BYTES;

/// Looks at the way by packets of a port of this process: that of `device` (from 0) with the number `port_num` (from
/// 1). The process joins the fabric.
///
/// # Errors
/// There is no software NIC in this process or no such port, or the fabric's folder cannot be used.
pub fn packet_report(device: usize, port_num: u8) -> Result<PacketReport, NicError> {
    let nic = process_nic::process_nic()?;
    let of_device = nic.devices.get(device).map(|device| device.port(port_num));
    let port = of_device
        .and_then(Result::ok)
        .ok_or(NicError::NoSuchPort { device, port_num })?;
    let failed = |what| {
        let path = nic.fabric.dir().to_owned();
        move |source| shm::fabric::FabricError::Io { path, what, source }
    };
    let folder = nic.fabric.make_sockets_dir();
    let folder = folder.map_err(failed("make the folder for sockets"))?;
    let files = PortCounterFiles::of_port(nic.fabric.dir(), port.place);
    let files = files.map_err(failed("find the counters of this network namespace"))?;
    let interfaces = Path::new(INTERFACES_FOLDER);
    let name_of = |number: u32| interface_name(interfaces, number);
    #[allow(clippy::cast_possible_truncation)] // 10 bits
    let slot = nic.this_process().slot as u16;
    let probes = probe_addresses(&Config {
        fabric_membership: Some(FabricMembership { folder, slot }),
        ..Config::new(port.own_addresses())
    });
    let probes = probes.map_err(std::io::Error::other);
    let probes = probes.map_err(failed("look at the sockets of other processes"))?;
    let addresses = probes.into_iter().map(|probe| {
        let socket = probe.socket_features;
        let interface = name_of(probe.address.if_index);
        AddressReport {
            ip: probe.address.ip,
            udp_port_users: UdpPortUsers::from_port_state(probe.udp_port_state),
            receive_buffer_bytes: socket.map(|socket| socket.receive_buffer_bytes),
            gso: socket.is_some_and(
                |SocketFeatures {
                     has_gso: segments, ..
                 }| segments,
            ),
            gro: socket.is_some_and(
                |SocketFeatures {
                     has_gro: coalesces, ..
                 }| coalesces,
            ),
            path_mtu_bytes: interface
                .as_ref()
                .and_then(|name| interface_mtu(interfaces, name))
                .map(roce::path_mtu_within),
            interface,
        }
    });
    Ok(PacketReport {
        port_num,
        path_mode: nic.packet_path.mode().name(),
        gid_interfaces: port.gid_if_indices.iter().map(|n| name_of(*n)).collect(),
        addresses: addresses.collect(),
        counters: files.read_values(path::NAMES),
    })
}

impl UdpPortUsers {
    fn from_port_state(state: UdpPortState) -> Self {
        match state {
            UdpPortState::Free => Self::Free,
            UdpPortState::SharedByProcesses(processes) => Self::Shared(processes),
            UdpPortState::Unavailable(error) => Self::Unavailable(error.to_string()),
        }
    }
}

/// Returns the bytes of the largest IP packet that an interface takes.
fn interface_mtu(interfaces: &Path, name: &str) -> Option<u32> {
    let text = fs::read_to_string(interfaces.join(name).join("mtu")).ok()?;
    text.trim().parse().ok()
}
