//! The RDMA netlink family (`NETLINK_RDMA`, `linux:include/uapi/rdma/rdma_netlink.h`) for a device that the kernel does
//! not know: requests of clients such as `rdma(8)` of iproute2, and the kernel's answers.
//!
//! - [`build_answers()`]: from a datagram of a client to the datagrams of the kernel. It does no I/O.
//! - [`sysfs`]: the devices as the files of sysfs describe them.
//!
//! The commands of the client NLDEV that only read are answered: devices, ports, the subsystem, counters, resources.
//! All others are refused with `EOPNOTSUPP`.
#![forbid(unsafe_code)]

mod build_answers;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod message_builder;
mod numbers;
mod request;
mod resource;
pub mod sysfs;

pub use build_answers::build_answers;

/// The largest datagram of an answer, in bytes. Clients of libmnl receive into a page (`MNL_SOCKET_BUFFER_SIZE`).
pub const MAX_DATAGRAM_BYTES: usize = 4096;

/// A device. Answers leave out the attributes that are `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// `ibv_get_device_name(3)`.
    pub name: String,
    /// Version of the firmware.
    pub firmware: Option<String>,
    /// `ibv_node_type`; 1 is a channel adapter.
    pub node_type: Option<u8>,
    /// GUID of the node, as a number.
    pub node_guid: Option<u64>,
    /// GUID of the system image, as a number.
    pub sys_image_guid: Option<u64>,
    /// Its ports, from port 1 on.
    pub ports: Vec<Port>,
}

/// A port of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Port {
    /// `ibv_port_state`; 4 is active.
    pub state: Option<u8>,
    /// Physical state of IBTA vol. 1, 14.2.5.6 (`PortPhysicalState`); 5 is `LinkUp`.
    pub physical_state: Option<u8>,
    /// Attributes of an InfiniBand port alone; `None` for RoCE.
    pub subnet_attributes: Option<PortSubnetAttributes>,
    /// The network interface beside the port: its name and its index.
    pub interface_name_and_index: Option<(String, u32)>,
    /// Counters of the port and their values.
    pub counters: Vec<(String, u64)>,
}

/// An InfiniBand port's place in its subnet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortSubnetAttributes {
    /// `port_cap_flags` of `ibv_query_port(3)`.
    pub port_cap_flags: Option<u32>,
    /// Upper half of GID 0, as a number.
    pub gid_prefix: Option<u64>,
    /// LID of the port.
    pub lid: Option<u16>,
    /// LID of the subnet manager.
    pub sm_lid: Option<u16>,
    /// LID mask count.
    pub lid_mask_control: Option<u8>,
}

/// Objects that a process has on a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessObjects {
    /// Its process id.
    pub pid: u32,
    /// Its queue pairs.
    pub queue_pairs: Vec<QueuePair>,
    /// Its completion queues.
    pub completion_queues: Vec<CompletionQueue>,
    /// Its protection domains.
    pub protection_domains: Vec<ProtectionDomain>,
    /// Its memory regions.
    pub memory_regions: Vec<MemoryRegion>,
    /// Its open devices.
    pub contexts: Vec<OpenContext>,
    /// Its shared receive queues.
    pub shared_receive_queues: Vec<SharedReceiveQueue>,
}

/// A queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueuePair {
    /// Its number.
    pub qpn: u32,
    /// Number of its port; `None` until the program has chosen one.
    pub port_num: Option<u32>,
    /// `ibv_qp_type`.
    pub qp_type: u8,
    /// `ibv_qp_state`.
    pub state: u8,
    /// Number of the queue pair that it is connected to.
    pub dest_qpn: u32,
    /// PSN of the receive queue.
    pub rq_psn: u32,
    /// PSN of the send queue.
    pub sq_psn: u32,
    /// Number of its protection domain.
    pub pd_number: u32,
}

/// A completion queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompletionQueue {
    /// Its number.
    pub cqn: u32,
    /// Number of its entries.
    pub cqe: u32,
    /// Number of objects that use it.
    pub use_count: u32,
}

/// A protection domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProtectionDomain {
    /// Its number.
    pub number: u32,
    /// Number of objects that use it.
    pub use_count: u32,
}

/// A memory region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryRegion {
    /// L_Key and R_Key.
    pub lkey_and_rkey: u32,
    /// Its first address, as work requests name it.
    pub iova: u64,
    /// Its length in bytes.
    pub len_bytes: u64,
    /// Number of its protection domain.
    pub pd_number: u32,
}

/// An open device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenContext {
    /// Its number.
    pub number: u32,
}

/// A shared receive queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedReceiveQueue {
    /// Its number.
    pub srqn: u32,
    /// `ibv_srq_type`.
    pub srq_type: u8,
    /// Number of its protection domain.
    pub pd_number: u32,
    /// Number of the completion queue that it has of its own.
    pub cqn: Option<u32>,
    /// Numbers of the queue pairs that use it, in order.
    pub qpns: Vec<u32>,
}

/// Where answers come from. It is asked once a request.
pub trait AnswerSource {
    /// The devices, in the order of their index, which begins at 0.
    fn devices(&self) -> Vec<Device>;
    /// The processes that use a device, with what they have on it. The device is named by its index. `None` where that
    /// is not known.
    fn processes_of_device(&self, device: usize) -> Option<Vec<ProcessObjects>>;
}
