//! The layout of the fabric's shared memory.
//!
//! Every structure here is `repr(C)` and made of atomics, because another process may write at any
//! time. All-zero bytes are valid, and the sizes are checked below. A change of any structure needs
//! a new [`LAYOUT_VERSION`]; processes of different versions refuse each other. The exception is a new
//! field in padding whose value 0, which older processes leave there, means what they do.

use std::mem::{offset_of, size_of};
use std::sync::atomic::{AtomicU32, AtomicU64};

use super::mailbox::MAILBOX_SLOTS;

pub use super::armed::{ARMED_ANY, ARMED_NO, ARMED_SOLICITED};

/// First word of the directory file and of each segment.
pub const MAGIC: u64 = u64::from_le_bytes(*b"VERBATIM");
/// Version of the fabric's layout: of all structures in this file, and of the records in rings.
pub const LAYOUT_VERSION: u64 = 14;

/// Slots for processes in a fabric; slot 0 is never used, so that no queue pair has number 0 or 1.
pub const MAX_PROCS: usize = 1024;
/// Bits of a QP number that identify the queue pair within its process; the other ten identify the process.
pub const QP_INDEX_BITS: u32 = 14;
/// Maximum number of queue pairs of a process.
pub const MAX_QPS: usize = 1 << QP_INDEX_BITS;
/// Maximum number of completion queues of a process.
pub const MAX_CQS: usize = 1 << 14;
/// Maximum number of XRC shared receive queues of a process; only these shared receive queues have
/// a number.
pub const MAX_XRC_SRQS: usize = 1 << QP_INDEX_BITS;
/// Maximum number of attachments of a process's queue pairs to multicast groups.
pub const MAX_MCAST_ATTACHMENTS: usize = 4096;
/// Maximum number of flows that steer raw packets to a process's queue pairs.
pub const MAX_FLOWS: usize = 4096;
/// Maximum number of queue pairs of a process that distribute raw packets over work queues (RSS).
pub const MAX_RSS_CONFIGS: usize = 1024;
/// Maximum number of work queues in an RSS indirection table, a power of two.
pub const MAX_IND_TBL: usize = 128;
/// Maximum number of protection domains of a process.
pub const MAX_PDS: usize = 1 << 16;
/// Maximum number of allocations of device memory of a process.
pub const MAX_DMS: usize = 4096;
/// Maximum number of protection domains and device memories that a process can import from other processes.
pub const MAX_IMPORTS: usize = 4096;
/// Maximum number of contexts and shared receive queues of a process that are on lists.
pub const MAX_LISTED_OBJECTS: usize = 1 << 14;
/// Slots of the hash table of memory regions; at most half of them are used.
pub const MR_SLOTS: usize = 1 << 16;
/// Maximum number of threads of a process that access registered memory at the same time; further threads
/// wait.
pub const HAZARD_SLOTS: usize = 4096;
/// Number of locks for atomics on memory that has no shared mapping.
pub const ATOMIC_LOCKS: usize = 512;

/// The directory: the table of the fabric's processes.
#[repr(C)]
pub struct Directory {
    /// [`MAGIC`], stored last by the process that made the directory.
    pub magic: AtomicU64,
    /// [`LAYOUT_VERSION`] of the process that made the directory.
    pub version: AtomicU64,
    /// Counts the changes of any process's flows; senders read the flows again after the counter changes.
    pub flow_change_count: AtomicU64,
    /// The processes, by slot.
    pub procs: [ProcEntry; MAX_PROCS],
}

/// Entry of one process in the directory. The entry is free if `incarnation` is 0.
#[repr(C)]
pub struct ProcEntry {
    /// Random number of this run of the process, never 0. It names the process's files and
    /// distinguishes a reused slot from its earlier use.
    pub incarnation: AtomicU64,
    /// Process id.
    pub pid: AtomicU64,
    /// Start time of the process: field 22 of `/proc/PID/stat`. It distinguishes a reused pid from
    /// its earlier use.
    pub start_time_ticks: AtomicU64,
    /// Slot that was assigned last. The field is used only in entry 0, which belongs to no process.
    pub last_assigned_slot: AtomicU64,
}

/// Header at the start of a process's segment.
#[repr(C, align(64))]
pub struct SegmentHeader {
    /// [`MAGIC`], stored last by the owner.
    pub magic: AtomicU64,
    /// [`LAYOUT_VERSION`] of the owner.
    pub version: AtomicU64,
    /// Incarnation of the owner, as in the directory.
    pub incarnation: AtomicU64,
    /// Counts released backings of memory regions; a peer that sees the counter change drops the mappings
    /// that it no longer needs.
    pub backing_release_count: AtomicU64,
    /// Upper bound (exclusive) of the hazard slots in use.
    pub hazard_slots_end: AtomicU64,
    /// A secret of the process for hashing keys.
    pub key_hash_secret: AtomicU64,
    /// Upper bound (exclusive) of the objects on lists.
    pub listed_slots_end: AtomicU64,
    /// Upper bound (exclusive) of the multicast attachments in use.
    pub mcast_slots_end: AtomicU64,
    /// Position in the mailbox of the next connection notice that a peer puts.
    pub mailbox_tail: AtomicU64,
    pad0: [AtomicU64; 7],
    /// Position up to which the owner has read the connection notices.
    pub mailbox_head: AtomicU64,
    pad1: [AtomicU64; 7],
    /// Upper bound (exclusive) of the imports in use.
    pub import_slots_end: AtomicU64,
    /// Nonzero if other processes have imported an object of this process.
    pub is_imported_by_others: AtomicU64,
    /// Upper bound (exclusive) of the flows in use.
    pub flow_slots_end: AtomicU64,
    /// Names the owner's ports, so that peers find their traffic counters; 0: they are not counted.
    pub port_counters_key: AtomicU64,
    pad2: [AtomicU64; 4],
    /// One bit for each page before the arena, set if memory backs the page.
    pub backed_pages: [AtomicU64; TABLE_PAGES / 64],
}

/// The bit of [`QpShared::state_plus_1`] of a connected queue pair whose messages are packets. For peers that use
/// shared memory the queue pair is in no state in which it receives.
pub const QP_CONNECTED_BY_PACKETS: u32 = 1 << 31;

/// State of a queue pair that peers read.
#[derive(Default)]
#[repr(C, align(128))]
pub struct QpShared {
    /// State of the queue pair plus 1; 0 if the entry has no queue pair. With [`QP_CONNECTED_BY_PACKETS`] if the queue
    /// pair does not receive by shared memory.
    pub state_plus_1: AtomicU32,
    /// `ibv_qp_type`.
    pub qp_type: AtomicU32,
    /// `qp_access_flags`.
    pub access: AtomicU32,
    /// Number of the queue pair's protection domain.
    pub pd: AtomicU32,
    /// Number of the connected queue pair.
    pub dest_qpn: AtomicU32,
    /// Changes whenever the queue pair is created, reset or destroyed.
    pub epoch: AtomicU32,
    /// Index of the receive CQ in the segment.
    pub recv_cq_index: AtomicU32,
    /// `min_rnr_timer`, as encoded by the specification.
    pub min_rnr_timer: AtomicU32,
    /// Incarnation of the connected queue pair's process.
    pub dest_incarnation: AtomicU64,
    /// `max_dest_rd_atomic`; with 0 the queue pair refuses READs and atomics.
    pub max_dest_rd_atomic: AtomicU32,
    /// Number of the XRC domain that the queue pair receives for; 0 if it is no XRC target.
    pub xrc_domain: AtomicU32,
    /// Nonzero if the next message causes a completion, whatever its operation. Written when the
    /// receive CQ is armed.
    pub next_message_completes: AtomicU32,
    /// Number of the queue pair's port among all ports of its host, from 1; 0 until a port is chosen.
    pub host_wide_port_number: AtomicU32,
    /// Position in slots in the only ring to this queue pair. Every message that ends at or before
    /// this position causes a completion. Written and valid together with `next_message_completes`.
    pub messages_complete_up_to_position: AtomicU64,
    /// Report of a requester whose request this queue pair refuses: its epoch (high half) and 1 + `ibv_event_type`; 0: none.
    pub(super) refused_request: AtomicU64,
    /// `sq_psn`.
    pub sq_psn: AtomicU32,
    /// `rq_psn`.
    pub rq_psn: AtomicU32,
    /// Number of the device, from 0.
    pub device: AtomicU32,
    /// `port_num`; 0 until a port is chosen.
    pub port_num: AtomicU32,
    /// Place of the queue pair's shared receive queue among the objects on lists plus 1; 0: it has none.
    pub listed_srq_plus_1: AtomicU32,
    pad1: [AtomicU32; 9],
}

/// State of a completion queue that peers read, and change to wake its owner.
#[repr(C, align(64))]
pub struct CqShared {
    /// The armed word; [`armed`](super::armed) describes it.
    pub armed_word: AtomicU32,
    /// Number of the completion channel; 0 if the CQ has no channel.
    pub channel_number: AtomicU32,
    /// Number of tokens that peers could not write to the channel.
    pub lost_token_count: AtomicU32,
    /// Number of entries that the program has asked for; 0: no queue, or a queue without a handle.
    pub cqe: AtomicU32,
    /// Number of objects that use the queue; a queue pair counts once for each of its two queues.
    pub use_count: AtomicU32,
    /// Number of the device, from 0.
    pub device: AtomicU32,
}

/// State of a shared receive queue for XRC that peers read.
#[repr(C)]
pub struct SrqShared {
    /// Number of the XRC domain; 0: the entry is free.
    pub xrc_domain: AtomicU32,
    /// Number of the protection domain.
    pub pd: AtomicU32,
}

/// An object that peers need only for lists of the fabric's objects.
#[repr(C)]
pub struct ListedObjectShared {
    /// One of `LISTED_*`; 0: the entry is free.
    pub kind: AtomicU32,
    /// Number of the device, from 0.
    pub device: AtomicU32,
    /// `ibv_srq_type` of a shared receive queue.
    pub srq_type: AtomicU32,
    /// Number of the protection domain of a shared receive queue.
    pub pd: AtomicU32,
    /// Index of the completion queue that a shared receive queue has of its own plus 1; 0: it has none.
    pub cq_index_plus_1: AtomicU32,
    pad0: [AtomicU32; 3],
}

/// `kind` of an object on lists: an open device.
pub const LISTED_CONTEXT: u32 = 1;
/// `kind` of an object on lists: a shared receive queue.
pub const LISTED_SRQ: u32 = 2;

/// A queue pair's attachment to a multicast group.
#[repr(C)]
pub struct McastAttachmentShared {
    /// GID of the group, in memory order.
    pub mgid: [AtomicU64; 2],
    /// Index of the attached queue pair plus 1; 0 if the entry is free.
    pub qp_index_plus_1: AtomicU32,
    pad0: AtomicU32,
}

/// A flow: selects the raw packets for a queue pair (`ibv_create_flow(3)`).
#[repr(C, align(64))]
pub struct FlowShared {
    /// Low half: index of the queue pair plus 1, or 0 if the entry is free. High half: number of
    /// times that the entry was used for a flow, so that a reader detects stale data.
    pub generation_and_qp_index_plus_1: AtomicU64,
    /// `ibv_flow_attr_type`.
    pub kind: AtomicU32,
    /// Priority of the flow, with `FLOW_*` bits.
    pub priority_and_flags: AtomicU32,
    /// Layers that a packet must have: bits of `steering::Layers`.
    pub required_layers: AtomicU32,
    /// Tag of the flow's completions.
    pub flow_tag: AtomicU32,
    /// Index of the RSS configuration for the flow's packets plus 1; 0 if the flow has no RSS
    /// configuration.
    pub rss_index_plus_1: AtomicU32,
    pad0: [AtomicU32; 9],
    /// The headers to match, laid out as in `steering::Headers`.
    pub header_value: [AtomicU64; 8],
    /// Mask of the header bits to compare.
    pub header_mask: [AtomicU64; 8],
}

/// Bit in a flow's priority: matching packets are also checked against flows of lower priority.
pub const FLOW_DONT_TRAP: u32 = 1 << 16;
/// Bit in a flow's priority: matching packets are dropped.
pub const FLOW_DROP: u32 = 1 << 17;

/// RSS configuration of a queue pair: how raw packets are distributed over work queues.
#[repr(C, align(64))]
pub struct RssShared {
    /// Bits of `ibv_rx_hash_fields`.
    pub hashed_fields: AtomicU64,
    /// Number of work queues in the indirection table, a power of two; 0 if the entry is free.
    pub indirection_table_len: AtomicU32,
    pad0: AtomicU32,
    /// The key of the Toeplitz function.
    pub toeplitz_key: [AtomicU64; 5],
    /// Indices of the queue pairs that implement the work queues.
    pub indirection_table: [AtomicU32; MAX_IND_TBL],
}

/// State of a memory region or memory window that peers read.
#[repr(C, align(64))]
pub struct MrShared {
    /// Low half: L_Key and R_Key, 0 if the entry is free. High half: number of times that the entry
    /// was used for a region or window, so that a reader detects stale data.
    pub generation_and_key: AtomicU64,
    /// `ibv_access_flags`, plus `keys::ACCESS_*` bits.
    pub access: AtomicU32,
    /// Owner of the region or window, encoded by `nic_core::rights::OwningPdOrQp`. It is the number of the
    /// protection domain, or of the queue pair for a window of type 2.
    pub owner_pd_or_qp: AtomicU32,
    /// Address of the first byte in work requests.
    pub iova: AtomicU64,
    /// Length in bytes.
    pub len: AtomicU64,
    /// One of `BACKING_*`.
    pub backing_kind: AtomicU32,
    /// File descriptor of the backing in the owner, or the id of the SysV segment.
    pub backing_fd_or_sysv_id: AtomicU32,
    /// Inode of the backing file, by which a reused descriptor is detected.
    pub backing_inode: AtomicU64,
    /// Offset of the region's first byte in the backing.
    pub backing_offset: AtomicU64,
    /// Address of the region's first byte in the owner's address space. Work requests use `iova` instead.
    pub owner_address: AtomicU64,
}

/// An object that other processes may import.
#[repr(C)]
pub struct ImportableObjectShared {
    /// Handle of the object, or [`OBJECT_DESTROYED`]; 0 if the entry is free.
    pub handle: AtomicU32,
    /// Number of verbs objects that the home process has created in this domain or on this memory.
    pub home_use_count: AtomicU32,
}

/// `handle` of an object that an importer has destroyed and the home process has not yet released.
pub const OBJECT_DESTROYED: u32 = u32::MAX;

/// A protection domain.
#[repr(C)]
pub struct PdShared {
    /// Handle and use count.
    pub handle_and_use_count: ImportableObjectShared,
    /// Number of the device, from 0.
    pub device: AtomicU32,
    pad0: AtomicU32,
}

/// A device memory allocation.
#[repr(C)]
pub struct DmShared {
    /// Handle and use count.
    pub handle_and_use_count: ImportableObjectShared,
    /// Descriptor of the sealed memfd in the home process.
    pub owner_fd: AtomicU32,
    pad0: AtomicU32,
    /// Inode of that memfd, by which a reused descriptor is detected.
    pub inode: AtomicU64,
    /// Number of bytes that the program asked for.
    pub len: AtomicU64,
}

/// An object of another process that this process has imported.
#[repr(C)]
pub struct ImportShared {
    /// Incarnation of the home process; 0: the entry is free.
    pub home_incarnation: AtomicU64,
    /// Slot of the home process in the directory.
    pub home_slot: AtomicU32,
    /// One of `IMPORT_*`.
    pub kind: AtomicU32,
    /// Handle of the object in the home process.
    pub home_handle: AtomicU32,
    /// Number of an imported protection domain in this process.
    pub local_pd_number: AtomicU32,
    /// Number of verbs objects that this process has created in the imported domain or on the memory.
    pub local_use_count: AtomicU32,
    /// Number of the device of this process through which it was imported, from 0.
    pub local_device: AtomicU32,
}

/// `kind` of an import: a protection domain.
pub const IMPORT_PD: u32 = 1;
/// `kind` of an import: device memory.
pub const IMPORT_DM: u32 = 2;

/// Memory that only its owner can map: peers use `process_vm_readv` and `process_vm_writev`.
pub const BACKING_PRIVATE: u32 = 0;
/// A sealed memfd: peers map it through `/proc/PID/fd`.
pub const BACKING_MEMFD: u32 = 1;
/// A SysV shared memory segment: peers attach it.
pub const BACKING_SYSV: u32 = 2;
/// Pages of a sealed memfd as large as an address space, each at the offset that equals its address in the
/// owner. Peers map the region's pages through `/proc/PID/fd`.
pub const BACKING_ADDRESS_SPACE_MEMFD: u32 = 3;
/// No memory: written data is dropped, and reads return 0 (`ibv_alloc_null_mr(3)`).
pub const BACKING_NULL: u32 = 4;

/// A hazard slot: the memory regions that a thread is accessing, at most two.
///
/// Each word is 0, or has the owner's process slot in its upper and the region's index in its lower
/// 32 bits.
#[repr(C, align(64))]
pub struct HazardSlot {
    /// One word for each region that can be pinned at a time.
    pub pinned_regions: [AtomicU64; 2],
}

/// A lock for remote atomics.
#[repr(C, align(64))]
pub struct RemoteAtomicsLock {
    /// Holder of the lock: the pid of the process, or 0 if the lock is free.
    pub holder: AtomicU64,
}

/// Header of a ring, in the segment of the sending process; the slots follow.
#[repr(C, align(64))]
pub struct RingHeader {
    /// [`RING_MAGIC`], stored last by the sender.
    pub magic: AtomicU32,
    /// Number of slots of the ring: a power of two.
    pub slot_count: AtomicU32,
    /// Number of the sending queue pair.
    pub src_qpn: AtomicU32,
    /// Number of the receiving queue pair.
    pub dest_qpn: AtomicU32,
    /// Epoch of the sending queue pair.
    pub src_epoch: AtomicU32,
    /// Index of the sender's send CQ in its segment.
    pub src_send_cq_index: AtomicU32,
    /// `rnr_retry` of the sender.
    pub rnr_retry: AtomicU32,
    /// One of `RING_*`.
    pub lifecycle_state: AtomicU32,
    /// Incarnation of the receiving process.
    pub dest_incarnation: AtomicU64,
    /// Nonzero if the sender has deferred work requests, which may wait for room in the ring.
    pub sender_has_deferred_wrs: AtomicU32,
    pad0: [AtomicU32; 5],
    /// GRH of every message of this ring (UD).
    pub grh: [AtomicU64; 5],
    /// Source LID (low 16 bits), SL (next 8 bits), source path bits (next 8), GRH present (bit 32).
    pub src_lid_sl_grh: AtomicU64,
    pad1: [AtomicU64; 2],
    /// Position of the consumer in the ring; the consumer has released all slots before it.
    pub consumer_head: AtomicU64,
    /// Status with which the receiver rejected the record at `head`; 0 if no record was rejected.
    pub nak_status: AtomicU32,
    /// Nonzero if the receiver no longer uses the ring.
    pub is_receiver_detached: AtomicU32,
    /// Value that the receiver's engine stored in `consumer_head` last; 0 if it has not. If `consumer_head` has another
    /// value, a thread of the receiving program took the last records.
    pub head_stored_by_engine: AtomicU64,
    pad2: [AtomicU64; 5],
}

/// Value of `lifecycle_state` for a ring whose sender may send more messages.
pub const RING_OPEN: u32 = 0;
/// Value of `lifecycle_state` for a ring whose sender will send no more messages; records in the ring remain
/// valid.
pub const RING_CLOSED: u32 = 1;
/// Value of `lifecycle_state` for a ring whose sender has flushed the records that the receiver has not
/// taken. These records are void, because the program owns their memory again.
pub const RING_WITHDRAWN: u32 = 2;

/// `magic` of a ring.
pub const RING_MAGIC: u32 = u32::from_le_bytes(*b"RING");

/// Bytes of a memory page.
pub const PAGE_BYTES: usize = 4096;
const fn table_end(offset: usize, bytes: usize) -> usize {
    (offset + bytes).next_multiple_of(PAGE_BYTES)
}

/// Offset of the mailbox's slots in a segment.
pub const MAILBOX_AT: usize = PAGE_BYTES;
/// Offset of the queue pairs.
pub const QPS_AT: usize = table_end(MAILBOX_AT, MAILBOX_SLOTS * 8);
/// Offset of the completion queues.
pub const CQS_AT: usize = table_end(QPS_AT, MAX_QPS * size_of::<QpShared>());
/// Offset of the memory regions.
pub const MRS_AT: usize = table_end(CQS_AT, MAX_CQS * size_of::<CqShared>());
/// Offset of the hazards.
pub const HAZARDS_AT: usize = table_end(MRS_AT, MR_SLOTS * size_of::<MrShared>());
/// Offset of the atomic locks.
pub const LOCKS_AT: usize = table_end(HAZARDS_AT, HAZARD_SLOTS * size_of::<HazardSlot>());
/// Offset of the shared receive queues.
pub const SRQS_AT: usize = table_end(LOCKS_AT, ATOMIC_LOCKS * size_of::<RemoteAtomicsLock>());
/// Offset of the multicast attachments.
pub const MCASTS_AT: usize = table_end(SRQS_AT, MAX_XRC_SRQS * size_of::<SrqShared>());
/// Offset of the protection domains.
pub const PDS_AT: usize = table_end(
    MCASTS_AT,
    MAX_MCAST_ATTACHMENTS * size_of::<McastAttachmentShared>(),
);
/// Offset of the device memories.
pub const DMS_AT: usize = table_end(PDS_AT, MAX_PDS * size_of::<PdShared>());
/// Offset of the imports.
pub const IMPORTS_AT: usize = table_end(DMS_AT, MAX_DMS * size_of::<DmShared>());
/// Offset of the flows.
pub const FLOWS_AT: usize = table_end(IMPORTS_AT, MAX_IMPORTS * size_of::<ImportShared>());
/// Offset of the RSS configurations.
pub const RSS_AT: usize = table_end(FLOWS_AT, MAX_FLOWS * size_of::<FlowShared>());
/// Offset of the objects on lists.
pub const LISTED_AT: usize = table_end(RSS_AT, MAX_RSS_CONFIGS * size_of::<RssShared>());
/// Offset in a segment of the arena from which rings are allocated.
pub const ARENA_AT: usize = table_end(
    LISTED_AT,
    MAX_LISTED_OBJECTS * size_of::<ListedObjectShared>(),
)
.next_multiple_of(1 << 20);
/// Number of pages of a segment before the arena.
const TABLE_PAGES: usize = ARENA_AT / PAGE_BYTES;
/// Bytes of a segment. The file is sparse: unused parts take no memory.
pub const SEGMENT_BYTES: usize = 4 << 30;

const _: () = assert!(size_of::<SegmentHeader>() <= PAGE_BYTES && TABLE_PAGES.is_multiple_of(64));
const _: () = assert!(size_of::<QpShared>() == 128 && offset_of!(QpShared, refused_request) == 64);
const _: () = assert!(size_of::<CqShared>() == 64);
const _: () = assert!(size_of::<MrShared>() == 64);
const _: () = assert!(size_of::<SrqShared>() == 8 && size_of::<McastAttachmentShared>() == 24);
const _: () = assert!(size_of::<ImportableObjectShared>() == 8 && size_of::<DmShared>() == 32);
const _: () = assert!(size_of::<ImportShared>() == 32 && size_of::<PdShared>() == 16);
const _: () = assert!(size_of::<FlowShared>() == 192 && size_of::<RssShared>() == 576);
const _: () = assert!(size_of::<ListedObjectShared>() == 32);
const _: () = assert!(size_of::<RingHeader>() == 192);
const _: () =
    assert!(offset_of!(RingHeader, grh) == 64 && offset_of!(RingHeader, consumer_head) == 128);
// A ring's offset in units of 64 bytes and its process's slot fit into a connection notice.
const _: () = assert!(SEGMENT_BYTES / 64 <= 1 << 32 && MAX_PROCS <= 1 << 16);
