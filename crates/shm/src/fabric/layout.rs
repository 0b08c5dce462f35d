//! What lies where in the fabric's shared memory.
//!
//! Every structure here is `repr(C)`, made of atomics (another process may write at any time), valid when
//! all its bytes are zero, and checked for its size below. A change of any of them is a change of
//! [`LAYOUT_VERSION`]; processes of different versions refuse each other.

use std::mem::{offset_of, size_of};
use std::sync::atomic::{AtomicU32, AtomicU64};

use super::mailbox::MAILBOX_SLOTS;

pub use super::armed::{ARMED_ANY, ARMED_NO, ARMED_SOLICITED};

/// First word of the directory file and of each segment.
pub const MAGIC: u64 = u64::from_le_bytes(*b"VERBATIM");
/// Version of everything in this file and of the ring's records.
pub const LAYOUT_VERSION: u64 = 9;

/// Processes of a fabric; slot 0 is never used, so that no queue pair has number 0 or 1.
pub const MAX_PROCS: usize = 1024;
/// Bits of a QP number that tell the queue pair within its process; the other ten tell the process.
pub const QP_BITS: u32 = 14;
/// Queue pairs of a process.
pub const MAX_QPS: usize = 1 << QP_BITS;
/// Completion queues of a process.
pub const MAX_CQS: usize = 1 << 14;
/// Shared receive queues of a process that have numbers: those for XRC.
pub const MAX_SRQS: usize = 1 << QP_BITS;
/// Attachments of a process's queue pairs to multicast groups.
pub const MAX_MCASTS: usize = 4096;
/// Flows that steer raw packets to a process's queue pairs.
pub const MAX_FLOWS: usize = 4096;
/// Queue pairs of a process that spread raw packets over work queues.
pub const MAX_SPREADS: usize = 1024;
/// Work queues that such a queue pair can spread packets over, a power of two.
pub const MAX_IND_TBL: usize = 128;
/// Protection domains of a process.
pub const MAX_PDS: usize = 1 << 16;
/// Allocations of device memory of a process.
pub const MAX_DMS: usize = 4096;
/// Protection domains and device memories of other processes that a process can import.
pub const MAX_IMPORTS: usize = 4096;
/// Slots of the hash table of memory regions; at most half of them are used.
pub const MR_SLOTS: usize = 1 << 16;
/// Threads of a process that can access registered memory at the same time; more wait for one to end.
pub const HAZARDS: usize = 4096;
/// Locks for atomics on memory that has no shared mapping.
pub const ATOMIC_LOCKS: usize = 512;

/// The directory: who is in the fabric.
#[repr(C)]
pub struct Directory {
    /// [`MAGIC`], stored last by whoever made this.
    pub magic: AtomicU64,
    /// [`LAYOUT_VERSION`] of whoever made this.
    pub version: AtomicU64,
    /// Counts the changes of any process's flows: senders look at the flows again when they see it change.
    pub flow_changes: AtomicU64,
    /// The processes, by slot.
    pub procs: [ProcEntry; MAX_PROCS],
}

/// One process in the directory. `incarnation` 0: free.
#[repr(C)]
pub struct ProcEntry {
    /// Random, never 0; names the process's files and tells a reused slot from the old one.
    pub incarnation: AtomicU64,
    /// Process id.
    pub pid: AtomicU64,
    /// Field 22 of `/proc/PID/stat`: tells a reused pid from the old one.
    pub start_time: AtomicU64,
    /// Of entry 0, which is no process's: the slot that was given out last.
    pub last_slot: AtomicU64,
}

/// Start of a process's segment.
#[repr(C, align(64))]
pub struct SegmentHeader {
    /// [`MAGIC`], stored last by whoever made this.
    pub magic: AtomicU64,
    /// [`LAYOUT_VERSION`] of whoever made this.
    pub version: AtomicU64,
    /// Incarnation of the owner, as in the directory.
    pub incarnation: AtomicU64,
    /// Counts the memory regions' backings that were given up; a peer that sees it change drops the
    /// mappings that it no longer needs.
    pub mem_epoch: AtomicU64,
    /// Hazard slots in use are below this.
    pub hazards_used: AtomicU64,
    /// A secret of the process for hashing keys.
    pub key_secret: AtomicU64,
    /// Not zero: the engine is needed (see `engine`).
    pub engine_calls: AtomicU64,
    /// Places of multicast attachments in use are below this.
    pub mcasts_used: AtomicU64,
    /// Where the next connection notice goes.
    pub mailbox_tail: AtomicU64,
    pad0: [AtomicU64; 7],
    /// Up to where the owner has read the connection notices.
    pub mailbox_head: AtomicU64,
    pad1: [AtomicU64; 7],
    /// Places of imports in use are below this.
    pub imports_used: AtomicU64,
    /// Not zero: other processes have imported something of this one.
    pub exported: AtomicU64,
    /// Places of flows in use are below this.
    pub flows_used: AtomicU64,
    pad2: [AtomicU64; 5],
    /// A bit for each page before the arena: it has memory.
    pub backed: [AtomicU64; TABLE_PAGES / 64],
}

/// What peers need to know of a queue pair.
#[repr(C, align(128))]
pub struct QpShared {
    /// 0: there is none; else 1 + its state.
    pub state: AtomicU32,
    /// `ibv_qp_type`.
    pub qp_type: AtomicU32,
    /// `qp_access_flags`.
    pub access: AtomicU32,
    /// Number of its protection domain.
    pub pd: AtomicU32,
    /// Number of the queue pair that it is connected to.
    pub dest_qpn: AtomicU32,
    /// Changes whenever the queue pair is created, reset or destroyed.
    pub epoch: AtomicU32,
    /// Index of its receive CQ in the segment.
    pub recv_cq: AtomicU32,
    /// `min_rnr_timer`, as coded.
    pub min_rnr_timer: AtomicU32,
    /// Incarnation of the process that it is connected to.
    pub dest_incarnation: AtomicU64,
    /// `max_dest_rd_atomic`; 0 refuses READs and atomics.
    pub max_dest_rd_atomic: AtomicU32,
    /// The XRC domain that it receives for; 0: none.
    pub xrc_domain: AtomicU32,
    /// Not zero: the next message makes a completion, whatever it is. Said when its receive CQ is armed.
    pub takes: AtomicU32,
    pad0: [AtomicU32; 3],
    /// Written by requesters: 1 + `ibv_event_type` of what their request did to this queue pair.
    pub remote_error: AtomicU32,
    pad1: [AtomicU32; 15],
}

/// What peers need to know of a completion queue.
#[repr(C, align(64))]
pub struct CqShared {
    /// See [`armed`](super::armed).
    pub armed: AtomicU32,
    /// Number of its completion channel; 0: none.
    pub channel: AtomicU32,
    /// Tokens that peers could not write to its channel.
    pub lost_tokens: AtomicU32,
}

/// What peers need to know of a shared receive queue for XRC.
#[repr(C)]
pub struct SrqShared {
    /// Number of its domain; 0: the place is free.
    pub domain: AtomicU32,
    /// Number of its protection domain.
    pub pd: AtomicU32,
}

/// A queue pair's attachment to a multicast group.
#[repr(C)]
pub struct McastShared {
    /// GID of the group, as it lies in memory.
    pub mgid: [AtomicU64; 2],
    /// 0: the place is free; else 1 + the queue pair's index.
    pub qp: AtomicU32,
    pad0: AtomicU32,
}

/// A flow: which raw packets go to a queue pair (`ibv_create_flow(3)`).
#[repr(C, align(64))]
pub struct FlowShared {
    /// In the low half 0 if the place is free, else 1 + the queue pair's index; in the high half how often the place was
    /// taken, so that what was read of it meanwhile is known to be out of date.
    pub entry: AtomicU64,
    /// `ibv_flow_attr_type`.
    pub kind: AtomicU32,
    /// Its priority; `FLOW_*`.
    pub priority: AtomicU32,
    /// Layers that a packet must have: bits of `steering::Layers`.
    pub layers: AtomicU32,
    /// What its completions are tagged with.
    pub tag: AtomicU32,
    /// 0, or 1 + the place of what says how its packets are spread.
    pub spread: AtomicU32,
    pad0: [AtomicU32; 9],
    /// The headers to match, laid out as in `steering::Headers`.
    pub value: [AtomicU64; 8],
    /// Bits of them that count.
    pub mask: [AtomicU64; 8],
}

/// Added to a flow's priority: packets that match are tried against flows of lower priority too.
pub const FLOW_DONT_TRAP: u32 = 1 << 16;
/// Packets that match are dropped.
pub const FLOW_DROP: u32 = 1 << 17;

/// How a queue pair spreads raw packets over work queues (receive side scaling).
#[repr(C, align(64))]
pub struct SpreadShared {
    /// Bits of `ibv_rx_hash_fields`.
    pub fields: AtomicU64,
    /// Work queues in the table: a power of two; 0: the place is free.
    pub size: AtomicU32,
    pad0: AtomicU32,
    /// The key of the Toeplitz function.
    pub key: [AtomicU64; 5],
    /// Indices of the queue pairs that stand for the work queues.
    pub table: [AtomicU32; MAX_IND_TBL],
}

/// What peers need to know of a memory region or a memory window.
#[repr(C, align(64))]
pub struct MrShared {
    /// L_Key and R_Key in the low half, 0 if the place is free; in the high half how often the place was
    /// taken, so that what was read of it earlier is known to be out of date.
    pub entry: AtomicU64,
    /// `ibv_access_flags`, and what `keys::ACCESS_*` adds.
    pub access: AtomicU32,
    /// Number of its protection domain; of a window of type 2, of its queue pair.
    pub pd: AtomicU32,
    /// Address of the first byte, as work requests name it.
    pub addr: AtomicU64,
    /// Length in bytes.
    pub len: AtomicU64,
    /// One of `BACKING_*`.
    pub backing: AtomicU32,
    /// File descriptor of the backing in the owner, or the id of the SysV segment.
    pub handle: AtomicU32,
    /// Inode of the backing file, so that a reused descriptor is noticed.
    pub inode: AtomicU64,
    /// Where in the backing the region's first byte lies.
    pub offset: AtomicU64,
    /// Where in its owner's address space the region's first byte lies. `addr` is what work requests call it.
    pub base: AtomicU64,
}

/// An object that other processes may import.
#[repr(C)]
pub struct ObjectShared {
    /// Its handle; 0: the place is free; `OBJECT_DESTROYED`.
    pub handle: AtomicU32,
    /// How many objects its own process has made of it.
    pub uses: AtomicU32,
}

/// `handle` of an object that an importer has destroyed and its own process has not let go of.
pub const OBJECT_DESTROYED: u32 = u32::MAX;

/// Device memory.
#[repr(C)]
pub struct DmShared {
    /// Its handle and its uses.
    pub object: ObjectShared,
    /// Descriptor of its sealed memfd in its process.
    pub fd: AtomicU32,
    pad0: AtomicU32,
    /// Inode of that memfd, so that a reused descriptor is noticed.
    pub inode: AtomicU64,
    /// Bytes that the program asked for.
    pub len: AtomicU64,
}

/// An object of another process that this one has imported.
#[repr(C)]
pub struct ImportShared {
    /// Incarnation of its process; 0: the place is free.
    pub home: AtomicU64,
    /// Slot of its process.
    pub slot: AtomicU32,
    /// One of `IMPORT_*`.
    pub kind: AtomicU32,
    /// Its handle there.
    pub handle: AtomicU32,
    /// Of a protection domain: its number here.
    pub number: AtomicU32,
    /// How many objects this process has made of it.
    pub uses: AtomicU32,
    pad0: AtomicU32,
}

/// `kind` of an import: a protection domain.
pub const IMPORT_PD: u32 = 1;
/// Device memory.
pub const IMPORT_DM: u32 = 2;

/// Memory that only its process can map: peers use `process_vm_readv` and `process_vm_writev`.
pub const BACKING_PRIVATE: u32 = 0;
/// A sealed memfd: peers map it through `/proc/PID/fd`.
pub const BACKING_MEMFD: u32 = 1;
/// A SysV shared memory segment: peers attach it.
pub const BACKING_SYSV: u32 = 2;
/// Pages of a sealed memfd that is as large as an address space, each at the offset that is its address in its
/// owner: peers map those of the region through `/proc/PID/fd`.
pub const BACKING_PAGES: u32 = 3;
/// No memory: what is written is dropped, what is read is 0 (`ibv_alloc_null_mr(3)`).
pub const BACKING_NULL: u32 = 4;

/// The memory regions that a thread accesses now, at most two: 0, or the process slot in the upper and the
/// region's index in the lower 32 bits.
#[repr(C, align(64))]
pub struct Hazard {
    /// One word for each region that can be pinned at a time.
    pub mrs: [AtomicU64; 2],
}

/// A lock for atomics: 0, or the holder's incarnation.
#[repr(C, align(64))]
pub struct AtomicLock {
    /// 0, or the incarnation of the process that holds the lock.
    pub holder: AtomicU64,
}

/// Head of a ring, in the segment of the process that sends; the slots follow.
#[repr(C, align(64))]
pub struct RingHeader {
    /// [`RING_MAGIC`], stored last by the sender.
    pub magic: AtomicU32,
    /// Slots of the ring: a power of two.
    pub slots: AtomicU32,
    /// Number of the sending queue pair.
    pub src_qpn: AtomicU32,
    /// Number of the receiving queue pair.
    pub dest_qpn: AtomicU32,
    /// Epoch of the sending queue pair.
    pub src_epoch: AtomicU32,
    /// Index of the sender's send CQ in its segment.
    pub src_cq: AtomicU32,
    /// `rnr_retry` of the sender.
    pub rnr_retry: AtomicU32,
    /// One of `RING_*`.
    pub closed: AtomicU32,
    /// Incarnation of the receiving process.
    pub dest_incarnation: AtomicU64,
    pad0: [AtomicU64; 3],
    /// GRH of every message of this ring (UD).
    pub grh: [AtomicU64; 5],
    /// Source LID (low 16 bits), SL (next 8 bits), source path bits (next 8), GRH present (bit 32).
    pub path: AtomicU64,
    pad1: [AtomicU64; 2],
    /// Position of the consumer.
    pub head: AtomicU64,
    /// 0, or the status with which the receiver refused the record at `head`.
    pub nak: AtomicU32,
    /// Not zero: the receiver has let go of the ring.
    pub detached: AtomicU32,
    pad2: [AtomicU64; 6],
}

/// `closed` of a ring: its sender may send more.
pub const RING_OPEN: u32 = 0;
/// Its sender will send no more; what is in it counts.
pub const RING_CLOSED: u32 = 1;
/// Its sender has flushed what the receiver has not taken: the memory that records refer to is the program's
/// again, so they count for nothing.
pub const RING_WITHDRAWN: u32 = 2;

/// `magic` of a ring.
pub const RING_MAGIC: u32 = u32::from_le_bytes(*b"RING");

/// Bytes of a page.
pub const PAGE: usize = 4096;
const fn after(offset: usize, bytes: usize) -> usize {
    (offset + bytes).next_multiple_of(PAGE)
}

/// Offset of the mailbox's slots in a segment.
pub const MAILBOX_AT: usize = PAGE;
/// Offset of the queue pairs.
pub const QPS_AT: usize = after(MAILBOX_AT, MAILBOX_SLOTS * 8);
/// Offset of the completion queues.
pub const CQS_AT: usize = after(QPS_AT, MAX_QPS * size_of::<QpShared>());
/// Offset of the memory regions.
pub const MRS_AT: usize = after(CQS_AT, MAX_CQS * size_of::<CqShared>());
/// Offset of the hazards.
pub const HAZARDS_AT: usize = after(MRS_AT, MR_SLOTS * size_of::<MrShared>());
/// Offset of the atomic locks.
pub const LOCKS_AT: usize = after(HAZARDS_AT, HAZARDS * size_of::<Hazard>());
/// Offset of the shared receive queues.
pub const SRQS_AT: usize = after(LOCKS_AT, ATOMIC_LOCKS * size_of::<AtomicLock>());
/// Offset of the multicast attachments.
pub const MCASTS_AT: usize = after(SRQS_AT, MAX_SRQS * size_of::<SrqShared>());
/// Offset of the protection domains.
pub const PDS_AT: usize = after(MCASTS_AT, MAX_MCASTS * size_of::<McastShared>());
/// Offset of the device memories.
pub const DMS_AT: usize = after(PDS_AT, MAX_PDS * size_of::<ObjectShared>());
/// Offset of the imports.
pub const IMPORTS_AT: usize = after(DMS_AT, MAX_DMS * size_of::<DmShared>());
/// Offset of the flows.
pub const FLOWS_AT: usize = after(IMPORTS_AT, MAX_IMPORTS * size_of::<ImportShared>());
/// Offset of what spreads raw packets.
pub const SPREADS_AT: usize = after(FLOWS_AT, MAX_FLOWS * size_of::<FlowShared>());
/// Offset of the arena from which rings are allocated.
pub const ARENA_AT: usize =
    after(SPREADS_AT, MAX_SPREADS * size_of::<SpreadShared>()).next_multiple_of(1 << 20);
/// Pages before the arena.
const TABLE_PAGES: usize = ARENA_AT / PAGE;
/// Bytes of a segment. It is a sparse file: what is not used takes no memory.
pub const SEGMENT_BYTES: usize = 4 << 30;

const _: () = assert!(size_of::<SegmentHeader>() <= PAGE && TABLE_PAGES.is_multiple_of(64));
const _: () = assert!(size_of::<QpShared>() == 128 && offset_of!(QpShared, remote_error) == 64);
const _: () = assert!(size_of::<CqShared>() == 64);
const _: () = assert!(size_of::<MrShared>() == 64);
const _: () = assert!(size_of::<SrqShared>() == 8 && size_of::<McastShared>() == 24);
const _: () = assert!(size_of::<ObjectShared>() == 8 && size_of::<DmShared>() == 32);
const _: () = assert!(size_of::<ImportShared>() == 32);
const _: () = assert!(size_of::<FlowShared>() == 192 && size_of::<SpreadShared>() == 576);
const _: () = assert!(size_of::<RingHeader>() == 192);
const _: () = assert!(offset_of!(RingHeader, grh) == 64 && offset_of!(RingHeader, head) == 128);
// A ring's offset in units of 64 bytes and its process's slot fit into a letter of the mailbox.
const _: () = assert!(SEGMENT_BYTES / 64 <= 1 << 32 && MAX_PROCS <= 1 << 16);
