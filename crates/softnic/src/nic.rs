//! The state that all objects of a process's NIC share: its place in the fabric, its port, its keys and mappings.

use std::any::Any;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::capabilities::{DeviceCapabilities, InvalidCapabilitiesVariable};
use crate::device::{BadCount, Device, Port, PortError};
use crate::identity::{BadDeviceVariable, Identity};
use crate::imports::SharedObjects;
use crate::lock::lock;
use crate::multicast::MulticastAttachmentLock;
use crate::path::hw_counters::PortCounterFiles;
use crate::path::traffic::{self, HostPortId, PortTrafficCounters};
use crate::path::{self, BadNetwork, CountedPort, CounterPublication, PacketPath, PathMode};
use crate::steering::OwnFlows;
use crate::steering::rss::OwnRssConfigs;
use shm::errno::errno_of;
use shm::fabric::layout::*;
use shm::fabric::{Fabric, FabricError, Peer};
use shm::keys::KeyTable;
use shm::mem::PeerMappings;

/// The reason why this process has no software NIC.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NicError {
    /// The fabric cannot be joined.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The configuration of the port is not valid.
    #[error("{message}")]
    Port {
        /// The requested value, and the possible ones.
        message: String,
        /// The errno for C callers.
        errno: i32,
    },
    /// A port was asked for that is not there.
    #[error("device {device} has no port {port_num}")]
    NoSuchPort {
        /// The device, from 0.
        device: usize,
        /// The port, from 1.
        port_num: u8,
    },
    /// The configuration of the device's identity is not valid.
    #[error(transparent)]
    Device(#[from] BadDeviceVariable),
    /// `VERBATIM_CAPABILITIES` has a value that is not valid.
    #[error(transparent)]
    Capabilities(#[from] InvalidCapabilitiesVariable),
    /// The configuration of the path is not valid, or a capture of it cannot be written.
    #[error(transparent)]
    Network(#[from] BadNetwork),
    /// The configuration of faults is not valid.
    #[error(transparent)]
    Faults(#[from] ::faults::BadFaults),
    /// The engine's thread cannot be started.
    #[error("cannot start the engine: {0}")]
    Engine(std::io::Error),
}

impl From<BadCount> for NicError {
    fn from(e: BadCount) -> Self {
        PortError::from(e).into()
    }
}

impl From<PortError> for NicError {
    fn from(e: PortError) -> Self {
        Self::Port {
            message: e.to_string(),
            errno: e.errno(),
        }
    }
}

/// A ring that its sender has given up and its receiver may still read.
struct RetiredRing {
    offset: usize,
    bytes: usize,
    receiver: Option<Arc<Peer>>,
}

/// The operations that a NIC needs of the objects made on it, which themselves use the NIC.
pub(crate) trait NicObjects: Send + Sync {
    /// Returns the object for a cast to its type.
    fn as_any(&self) -> &dyn Any;
    /// Processes the connection notices that have arrived.
    fn process_connection_notices(&self, nic: &Nic);
    /// Delivers the packets that have arrived to their queue pairs. Returns true if any had.
    fn deliver_arrived_packets(&self, nic: &Nic, by: PacketDeliveryCaller) -> bool;
    /// Sends the answers that the next check for packets would send.
    fn send_owed_answers(&self, nic: &Nic);
    /// Returns true if the queue pairs at both indices were made through one context.
    fn do_qps_share_context(&self, one: usize, other: usize) -> bool;
    /// Removes the queue pair at `index`.
    fn remove_qp(&self, index: usize);
    /// Removes the completion queue at `index`.
    fn remove_cq(&self, index: usize);
}

/// The caller of [`NicObjects::deliver_arrived_packets`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PacketDeliveryCaller {
    /// A thread of the program that polls: it checks again soon.
    Poll,
    /// A thread that is about to change a queue pair: all that has arrived by now is processed, also by other threads.
    BeforeQpChange,
    /// The engine.
    Engine,
}

/// The parts of a NIC.
pub(crate) struct NicParts {
    pub(crate) fabric: Fabric,
    pub(crate) devices: Vec<Device>,
    pub(crate) first_port: Port,
    pub(crate) identity: Identity,
    pub(crate) capabilities: DeviceCapabilities,
    pub(crate) packet_path: PacketPath,
    pub(crate) objects: &'static dyn NicObjects,
}

/// The state that the objects of this process's software NIC share.
pub(crate) struct Nic {
    pub(crate) fabric: Fabric,
    /// At least one.
    pub(crate) devices: Vec<Device>,
    /// Port 1 of the first device. Where the ports of the host are meant, it speaks for all of them.
    pub(crate) first_port: Port,
    pub(crate) identity: Identity,
    pub(crate) capabilities: DeviceCapabilities,
    pub(crate) key_table: KeyTable,
    pub(crate) peer_mappings: PeerMappings,
    /// The network that carries packets between queue pairs.
    pub(crate) packet_path: PacketPath,
    /// The queue pairs and completion queues.
    pub(crate) objects: &'static dyn NicObjects,
    pub(crate) shared_objects: SharedObjects,
    /// Descriptors that contexts show as `cmd_fd`, by device.
    cmd_fds: Mutex<HashMap<u8, OwnedFd>>,
    /// The next slot of the connection notices, as the last reader left it.
    next_notice_slot: AtomicUsize,
    retired_rings: Mutex<Vec<RetiredRing>>,
    /// True while the engine checks every millisecond, called or not.
    pub(crate) is_engine_ticking: AtomicBool,
    /// Number of completion queues that the engine checks for overruns periodically.
    pub(crate) overrun_checked_cq_count: AtomicUsize,
    pub(crate) multicast_attachments: MulticastAttachmentLock,
    pub(crate) flows: OwnFlows,
    pub(crate) rss_configs: OwnRssConfigs,
    /// The traffic counters of ports of this host.
    pub(crate) traffic_counters: traffic::TrafficCountersByPort,
}

/// The message of the last failed attempt to use the software NIC.
pub(crate) static LAST_OPEN_ERROR: Mutex<Option<String>> = Mutex::new(None);
/// The reason why the last `ibv_modify_qp` of this process was refused.
pub(crate) static LAST_MODIFY_ERROR: Mutex<Option<String>> = Mutex::new(None);

/// Returns the reason why the last attempt of this process to use the software NIC failed. It is a message for the
/// user; the C ABI has room for an errno only.
#[must_use]
pub fn last_error() -> Option<String> {
    lock(&LAST_OPEN_ERROR).clone()
}

/// Returns the folder of shared memory through which the processes of this user reach each other.
///
/// # Errors
/// `VERBATIM_FABRIC_DIR` does not hold an absolute path.
pub fn fabric_dir() -> Result<PathBuf, FabricError> {
    Fabric::default_dir()
}

impl Nic {
    /// Makes a NIC without any object.
    pub(crate) fn new(parts: NicParts) -> Self {
        let header = parts.fabric.this_process.segment.header();
        header
            .port_counters_key
            .store(traffic::own_port_counters_key(), Ordering::Relaxed);
        Self {
            fabric: parts.fabric,
            devices: parts.devices,
            first_port: parts.first_port,
            identity: parts.identity,
            capabilities: parts.capabilities,
            key_table: KeyTable::new(),
            peer_mappings: PeerMappings::default(),
            packet_path: parts.packet_path,
            objects: parts.objects,
            shared_objects: SharedObjects::default(),
            cmd_fds: Mutex::new(HashMap::new()),
            next_notice_slot: AtomicUsize::new(0),
            retired_rings: Mutex::new(Vec::new()),
            is_engine_ticking: AtomicBool::new(false),
            overrun_checked_cq_count: AtomicUsize::new(0),
            multicast_attachments: MulticastAttachmentLock::default(),
            flows: OwnFlows::default(),
            rss_configs: OwnRssConfigs::default(),
            traffic_counters: traffic::TrafficCountersByPort::default(),
        }
    }

    /// Returns the number of this process's ports ([`traffic::own_port_counters_key`]).
    pub(crate) fn port_counters_key(&self) -> u64 {
        let header = self.this_process().segment.header();
        header.port_counters_key.load(Ordering::Relaxed)
    }

    /// Returns this process as its own peer.
    pub(crate) fn this_process(&self) -> &Arc<Peer> {
        &self.fabric.this_process
    }

    /// The descriptor that stands for the contexts of a device of this process, as [`FabricProcessId`] tells others.
    ///
    /// # Errors
    /// The system's errno if there are no descriptors left.
    ///
    /// [`FabricProcessId`]: shm::fabric::process_id::FabricProcessId
    pub(crate) fn cmd_fd(&self, device: &Device) -> Result<RawFd, i32> {
        let mut made = lock(&self.cmd_fds);
        let file = match made.entry(device.number) {
            Entry::Occupied(file) => file.into_mut(),
            Entry::Vacant(none) => {
                let name = self
                    .this_process()
                    .fabric_process_id()
                    .with_device(device.number);
                none.insert(name.to_sealed_memfd().map_err(|e| errno_of(&e))?)
            }
        };
        Ok(file.as_raw_fd())
    }

    /// Returns the QP number of queue pair `index` of this process.
    pub(crate) fn qpn(&self, index: usize) -> u32 {
        #[allow(clippy::cast_possible_truncation)] // 10 and 14 bits
        let qpn = (self.fabric.this_process.slot << QP_INDEX_BITS | index) as u32;
        qpn
    }

    /// Makes the engine check soon, because work was held back and the program may not poll.
    pub(crate) fn wake_engine_unless_ticking(&self) {
        // SYNC POINT T: see `engine::run`.
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
        if !self.is_engine_ticking.load(Ordering::Relaxed) {
            self.this_process().wake_engine();
        }
    }

    /// Processes what peers have sent to queue pairs of this process: connection notices, and packets.
    #[inline]
    pub(crate) fn process_arrivals(&self) {
        if path::are_packets_in_use() {
            self.packet_path.note_program_check();
            self.packet_path.send_held_back();
            self.objects
                .deliver_arrived_packets(self, PacketDeliveryCaller::Poll);
        }
        self.process_arrived_connection_notices();
    }

    /// Processes arrivals like [`process_arrivals`](Self::process_arrivals). All that has arrived by now is processed when
    /// it returns.
    pub(crate) fn process_all_arrivals(&self) {
        if path::are_packets_in_use() {
            self.objects
                .deliver_arrived_packets(self, PacketDeliveryCaller::BeforeQpChange);
        }
        self.process_arrived_connection_notices();
    }

    /// Processes arrivals for the engine. Returns true if packets had arrived.
    pub(crate) fn process_arrivals_for_engine(&self) -> bool {
        let came = self.packet_path.is_open() && {
            self.packet_path.set_engine_checking(true);
            let came = self
                .objects
                .deliver_arrived_packets(self, PacketDeliveryCaller::Engine);
            self.packet_path.set_engine_checking(false);
            came
        };
        self.process_arrived_connection_notices();
        came
    }

    /// Sends answers to packets that a poll has left to the next one: the program may not poll for long.
    pub(crate) fn send_owed_answers(&self) {
        if path::are_packets_in_use() {
            self.objects.send_owed_answers(self);
        }
    }

    /// Processes the connection notices that have arrived.
    #[inline]
    pub(crate) fn process_arrived_connection_notices(&self) {
        let at = self.next_notice_slot.load(Ordering::Relaxed) as u64;
        if self.this_process().segment.mailbox().has_notice(at) {
            self.process_connection_notices();
        }
    }

    #[cold]
    fn process_connection_notices(&self) {
        self.objects.process_connection_notices(self);
    }

    /// Records that the connection notices before `next` have been read.
    pub(crate) fn note_notices_read(&self, next: u64) {
        self.next_notice_slot
            .store(next as usize, Ordering::Relaxed);
    }

    /// Returns true if queue pairs reach a peer by packets. `local`: the peer is a port of this host. `carried`:
    /// packets carry what these queue pairs do.
    pub(crate) fn uses_packets(&self, local: bool, carried: bool) -> bool {
        match self.packet_path.mode() {
            PathMode::Auto => !local,
            PathMode::Local => false,
            PathMode::Packets => true,
            PathMode::PacketsWherePossible => {
                !local || (carried && self.first_port.has_ip_address())
            }
        }
    }

    /// Opens the path by packets, if it is not open.
    ///
    /// # Errors
    /// The errno of the failure.
    pub(crate) fn open_network(&self) -> Result<(), i32> {
        if self.packet_path.is_open() {
            return Ok(());
        }
        let folder = self.fabric.make_sockets_dir().map_err(|e| errno_of(&e))?;
        #[allow(clippy::cast_possible_truncation)] // 10 bits
        let slot = self.fabric.this_process.slot as u16;
        let fabric = link::FabricMembership { folder, slot };
        let audience = self.counted_ports().map(|ports| CounterPublication {
            this_process: Arc::clone(self.this_process()),
            ports,
            traffic_counters_by_address: self.traffic_counters_by_address(),
            published_traffic: Mutex::default(),
        });
        let opened =
            self.packet_path
                .open(self.first_port.process_addresses(), fabric, audience.ok());
        opened.map_err(|e| {
            *lock(&LAST_MODIFY_ERROR) = Some(e.to_string());
            e.errno()
        })?;
        // The engine waits for packets from now on.
        self.this_process().wake_engine();
        Ok(())
    }

    /// Returns the ports of this process with the files of their counters.
    fn counted_ports(&self) -> io::Result<Vec<CountedPort>> {
        let ports = self.devices.iter().flat_map(Device::ports);
        let counted = |port: &Port| {
            Ok(CountedPort {
                host_wide_number: port.place.host_wide_number().into(),
                addresses: port.own_addresses().iter().map(|own| own.ip).collect(),
                files: PortCounterFiles::of_port(self.fabric.dir(), port.place)?,
            })
        };
        ports.map(counted).collect()
    }

    /// Returns the traffic counters of this process's ports by their addresses.
    fn traffic_counters_by_address(&self) -> Vec<(IpAddr, Arc<PortTrafficCounters>)> {
        let key = self.port_counters_key();
        let mut found = Vec::new();
        for port in self.devices.iter().flat_map(Device::ports) {
            let place = port.place.host_wide_number().into();
            let name = HostPortId {
                process_ports_key: key,
                host_wide_number: place,
            };
            if let Some(traffic) = self
                .traffic_counters
                .open_traffic_counters_of_port(self.fabric.dir(), name)
            {
                let addresses = port.own_addresses().into_iter();
                found.extend(addresses.map(|address| (address.ip, Arc::clone(&traffic))));
            }
        }
        found
    }

    /// Allocates shared memory for a ring of `bytes` bytes, header included.
    pub(crate) fn alloc_ring(&self, bytes: usize) -> std::io::Result<usize> {
        self.free_retired_rings();
        self.fabric.alloc_in_segment(bytes)
    }

    /// Frees a closed ring as soon as its receiver has detached.
    pub(crate) fn retire_ring(&self, offset: usize, bytes: usize, to: Option<Arc<Peer>>) {
        lock(&self.retired_rings).push(RetiredRing {
            offset,
            bytes,
            receiver: to,
        });
    }

    /// Frees the retired rings that have no reader any more.
    pub(crate) fn free_retired_rings(&self) {
        lock(&self.retired_rings).retain(|ring| {
            let Some(header) = self.this_process().segment.ring_header(ring.offset) else {
                return false;
            };
            let unread = match &ring.receiver {
                // The ring was never announced.
                None => false,
                Some(to) => {
                    header.is_receiver_detached.load(Ordering::Acquire) == 0 && !to.is_dead()
                }
            };
            if !unread {
                self.fabric.free_in_segment(ring.offset, ring.bytes);
            }
            unread
        });
    }
}
