//! The objects of all processes of a fabric, for a process outside of it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use nic_core::rights::OwningPdOrQp;

use super::directory::DIRECTORY_FILE_NAME;
use super::error::{FabricError, io_error};
use super::folder::{check_owner_and_mode_if_exists, segment_path};
use super::layout::*;
use super::segment::{DirectoryMap, Segment};
use crate::keys::key_of_generation_and_key;

/// A process of a fabric, and the verbs objects that the process has at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricProcess {
    /// Process id of the process.
    pub pid: u64,
    /// Queue pairs of the process.
    pub queue_pairs: Vec<KnownQueuePair>,
    /// Completion queues of the process.
    pub completion_queues: Vec<KnownCompletionQueue>,
    /// Protection domains that the process has allocated, without imported domains.
    pub protection_domains: Vec<KnownProtectionDomain>,
    /// Memory regions of the process, without memory windows.
    pub memory_regions: Vec<KnownRegion>,
    /// Open devices of the process.
    pub contexts: Vec<KnownContext>,
    /// Shared receive queues of the process.
    pub shared_receive_queues: Vec<KnownSharedReceiveQueue>,
    /// Attachments of queue pairs of the process to multicast groups.
    pub multicast_attachments: Vec<KnownMulticastAttachment>,
}

/// A queue pair of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KnownQueuePair {
    /// Number of the object's device, from 0.
    pub device: u32,
    /// `port_num`; 0 until a port is chosen.
    pub port_num: u32,
    /// QP number of the queue pair.
    pub qpn: u32,
    /// `ibv_qp_type`.
    pub qp_type: u32,
    /// `ibv_qp_state`.
    pub state: u32,
    /// Number of the connected queue pair.
    pub dest_qpn: u32,
    /// `sq_psn`, as the program set it.
    pub sq_psn: u32,
    /// `rq_psn`, as the program set it.
    pub rq_psn: u32,
    /// Number of the object's protection domain.
    pub pd_number: u32,
    /// Number of the shared receive queue.
    pub srqn: Option<u32>,
}

/// A completion queue of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownCompletionQueue {
    /// Number of the object's device, from 0.
    pub device: u32,
    /// A number that no other completion queue of the fabric has.
    pub cqn: u32,
    /// Number of entries of the completion queue.
    pub cqe: u32,
    /// Number of objects that use the completion queue; a queue pair counts once for each of its two queues.
    pub use_count: u32,
}

/// A protection domain of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownProtectionDomain {
    /// Number of the object's device, from 0.
    pub device: u32,
    /// Number of the domain in its process.
    pub number: u32,
    /// Number of verbs objects that the process has created in the domain.
    pub use_count: u32,
}

/// A memory region of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownRegion {
    /// Number of the object's device, from 0.
    pub device: u32,
    /// L_Key and R_Key.
    pub key: u32,
    /// Address of the region's first byte in work requests.
    pub iova: u64,
    /// Length in bytes.
    pub len: u64,
    /// Number of the object's protection domain.
    pub pd_number: u32,
}

/// An open device of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownContext {
    /// Number of the device, from 0.
    pub device: u32,
    /// A number that no other context or shared receive queue of the fabric has.
    pub number_in_fabric: u32,
}

/// A shared receive queue of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownSharedReceiveQueue {
    /// Number of the object's device, from 0.
    pub device: u32,
    /// A number that no other context or shared receive queue of the fabric has.
    pub srqn: u32,
    /// `ibv_srq_type`.
    pub srq_type: u32,
    /// Number of the object's protection domain.
    pub pd_number: u32,
    /// Number of the completion queue that it has of its own.
    pub cqn: Option<u32>,
}

/// A queue pair that is attached to a multicast group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownMulticastAttachment {
    /// GID of the group, in memory order.
    pub mgid: [u8; 16],
    /// Number of the queue pair's device, from 0.
    pub device: u32,
    /// `port_num` of the queue pair; 0 until a port is chosen.
    pub port_num: u32,
}

/// Returns the processes of the fabric in `dir`, or an empty list if the folder does not exist.
/// This process does not join the fabric, creates no file and waits for no other process.
///
/// # Errors
/// Returns an error if another user owns or can enter the folder. Returns an error if a file cannot
/// be read or mapped, or has another layout version.
pub fn list_fabric_processes(dir: &Path) -> Result<Vec<FabricProcess>, FabricError> {
    if !check_owner_and_mode_if_exists(dir)? {
        return Ok(Vec::new());
    }
    read_census(dir).map_err(io_error(dir, "look at its processes"))
}

fn read_census(dir: &Path) -> io::Result<Vec<FabricProcess>> {
    let file = match open_file(&dir.join(DIRECTORY_FILE_NAME)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        opened => opened?,
    };
    if file.metadata()?.len() < DirectoryMap::FILE_BYTES as u64 {
        return Err(io::Error::other("the directory is too short"));
    }
    let map = DirectoryMap::new(&file)?;
    let directory = map.directory();
    if directory.magic.load(Ordering::Acquire) != MAGIC
        || directory.version.load(Ordering::Relaxed) != LAYOUT_VERSION
    {
        return Err(io::Error::other("the fabric is of another version"));
    }
    let mut found = Vec::new();
    for (slot, entry) in directory.procs.iter().enumerate() {
        let incarnation = entry.incarnation.load(Ordering::Acquire);
        let pid = entry.pid.load(Ordering::Relaxed);
        let start_time = entry.start_time_ticks.load(Ordering::Relaxed);
        if incarnation == 0 || !liveness::is_alive(pid, start_time) {
            continue;
        }
        match open_file(&segment_path(dir, incarnation)).and_then(|file| Segment::open(&file)) {
            Ok(segment) => found.push(read_process(pid, slot, &segment)),
            // The process has left the fabric meanwhile.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
    }
    Ok(found)
}

fn open_file(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(path)
}

fn read_process(pid: u64, slot: usize, segment: &Segment) -> FabricProcess {
    FabricProcess {
        pid,
        queue_pairs: (0..MAX_QPS)
            .filter_map(|index| read_qp_at_slot(segment, slot, index))
            .collect(),
        completion_queues: (0..MAX_CQS)
            .filter_map(|index| read_cq_at_slot(segment, slot, index))
            .collect(),
        protection_domains: (0..MAX_PDS)
            .filter_map(|index| read_pd_at_slot(segment, index))
            .collect(),
        memory_regions: (0..MR_SLOTS)
            .filter_map(|index| read_mr_at_slot(segment, index))
            .collect(),
        contexts: listed_objects(segment)
            .filter_map(|(index, entry)| known_context(entry, number_in_fabric(slot, index)?))
            .collect(),
        shared_receive_queues: listed_objects(segment)
            .filter_map(|(index, entry)| known_shared_receive_queue(entry, slot, index))
            .collect(),
        multicast_attachments: read_multicast_attachments(segment),
    }
}

/// Returns the objects on lists, with their places.
fn listed_objects(segment: &Segment) -> impl Iterator<Item = (usize, &ListedObjectShared)> {
    let used = segment.header().listed_slots_end.load(Ordering::Acquire);
    let used = usize::try_from(used)
        .unwrap_or(MAX_LISTED_OBJECTS)
        .min(MAX_LISTED_OBJECTS);
    (0..used).filter_map(|index| Some((index, segment.find_listed(index)?)))
}

fn known_context(entry: &ListedObjectShared, number: u32) -> Option<KnownContext> {
    (entry.kind.load(Ordering::Acquire) == LISTED_CONTEXT).then(|| KnownContext {
        device: entry.device.load(Ordering::Relaxed),
        number_in_fabric: number,
    })
}

fn known_shared_receive_queue(
    entry: &ListedObjectShared,
    slot: usize,
    index: usize,
) -> Option<KnownSharedReceiveQueue> {
    let srqn = number_in_fabric(slot, index)?;
    (entry.kind.load(Ordering::Acquire) == LISTED_SRQ).then(|| KnownSharedReceiveQueue {
        device: entry.device.load(Ordering::Relaxed),
        srqn,
        srq_type: entry.srq_type.load(Ordering::Relaxed),
        pd_number: entry.pd.load(Ordering::Relaxed),
        cqn: number_from_index_plus_1(slot, &entry.cq_index_plus_1),
    })
}

/// Returns the number in the fabric of an object whose place plus 1 is in a word, which is 0 for none.
fn number_from_index_plus_1(slot: usize, place_plus_1: &AtomicU32) -> Option<u32> {
    let place = place_plus_1.load(Ordering::Relaxed).checked_sub(1)?;
    number_in_fabric(slot, usize::try_from(place).ok()?)
}

fn read_multicast_attachments(segment: &Segment) -> Vec<KnownMulticastAttachment> {
    let used = segment.header().mcast_slots_end.load(Ordering::Acquire);
    let used = usize::try_from(used)
        .unwrap_or(MAX_MCAST_ATTACHMENTS)
        .min(MAX_MCAST_ATTACHMENTS);
    let member = |index| {
        let entry = segment.find_mcast(index)?;
        let qp = entry
            .qp_index_plus_1
            .load(Ordering::Acquire)
            .checked_sub(1)?;
        let qp = segment.find_qp(usize::try_from(qp).ok()?)?;
        let [first, second] = [0, 1].map(|at| entry.mgid[at].load(Ordering::Relaxed).to_ne_bytes());
        let mut mgid = [0; 16];
        mgid[..8].copy_from_slice(&first);
        mgid[8..].copy_from_slice(&second);
        Some(KnownMulticastAttachment {
            mgid,
            device: qp.device.load(Ordering::Relaxed),
            port_num: qp.port_num.load(Ordering::Relaxed),
        })
    };
    (0..used).filter_map(member).collect()
}

/// Returns a number that identifies an object of a kind in the fabric, as a QP number identifies a queue pair.
fn number_in_fabric(slot: usize, index: usize) -> Option<u32> {
    u32::try_from(slot << QP_INDEX_BITS | index).ok()
}

fn read_qp_at_slot(segment: &Segment, slot: usize, index: usize) -> Option<KnownQueuePair> {
    let qp = segment.find_qp(index)?;
    let state = qp.state_plus_1.load(Ordering::Acquire) & !QP_CONNECTED_BY_PACKETS;
    let state = state.checked_sub(1)?;
    Some(KnownQueuePair {
        device: qp.device.load(Ordering::Relaxed),
        port_num: qp.port_num.load(Ordering::Relaxed),
        qpn: number_in_fabric(slot, index)?,
        qp_type: qp.qp_type.load(Ordering::Relaxed),
        state,
        dest_qpn: qp.dest_qpn.load(Ordering::Relaxed),
        sq_psn: qp.sq_psn.load(Ordering::Relaxed),
        rq_psn: qp.rq_psn.load(Ordering::Relaxed),
        pd_number: qp.pd.load(Ordering::Relaxed),
        srqn: number_from_index_plus_1(slot, &qp.listed_srq_plus_1),
    })
}

fn read_cq_at_slot(segment: &Segment, slot: usize, index: usize) -> Option<KnownCompletionQueue> {
    let cq = segment.find_cq(index)?;
    let cqe = cq.cqe.load(Ordering::Relaxed);
    (cqe != 0).then_some(KnownCompletionQueue {
        device: cq.device.load(Ordering::Relaxed),
        cqn: number_in_fabric(slot, index)?,
        cqe,
        use_count: cq.use_count.load(Ordering::Relaxed),
    })
}

fn read_pd_at_slot(segment: &Segment, index: usize) -> Option<KnownProtectionDomain> {
    let pd = segment.find_pd(index)?;
    let number = pd.handle_and_use_count.handle.load(Ordering::Acquire);
    (!matches!(number, 0 | OBJECT_DESTROYED)).then(|| KnownProtectionDomain {
        device: pd.device.load(Ordering::Relaxed),
        number,
        use_count: pd
            .handle_and_use_count
            .home_use_count
            .load(Ordering::Relaxed),
    })
}

/// Returns the number of the device of protection domain `number` of a process: an own or an imported domain.
fn device_of_pd(segment: &Segment, number: u32) -> Option<u32> {
    let index = usize::try_from(number).ok()? % MAX_PDS;
    if let Some(own) = read_pd_at_slot(segment, index).filter(|own| own.number == number) {
        return Some(own.device);
    }
    let used = segment.header().import_slots_end.load(Ordering::Acquire);
    (0..usize::try_from(used).ok()?.min(MAX_IMPORTS))
        .filter_map(|index| segment.find_import(index))
        .find(|import| {
            import.home_incarnation.load(Ordering::Acquire) != 0
                && import.kind.load(Ordering::Relaxed) == IMPORT_PD
                && import.local_pd_number.load(Ordering::Relaxed) == number
        })
        .map(|import| import.local_device.load(Ordering::Relaxed))
}

/// Returns the region in slot `index` of the table of keys; `None` if the slot is free, holds a
/// window, or changes meanwhile.
fn read_mr_at_slot(segment: &Segment, index: usize) -> Option<KnownRegion> {
    let place = segment.find_mr(index)?;
    let entry = place.generation_and_key.load(Ordering::Acquire);
    let owner = OwningPdOrQp::from_word(place.owner_pd_or_qp.load(Ordering::Relaxed));
    let domain = owner.pd_number()?;
    let region = KnownRegion {
        // The domain of a region may end while this reads it.
        device: device_of_pd(segment, domain).unwrap_or(0),
        key: key_of_generation_and_key(entry),
        iova: place.iova.load(Ordering::Relaxed),
        len: place.len.load(Ordering::Relaxed),
        pd_number: domain,
    };
    std::sync::atomic::fence(Ordering::Acquire);
    let is_same = place.generation_and_key.load(Ordering::Relaxed) == entry;
    (region.key != 0 && !owner.is_window() && is_same).then_some(region)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::Fabric;

    #[test]
    fn somebody_else_counts_who_is_there_and_makes_nothing() {
        let tmp = tempfile::tempdir_in("/dev/shm").unwrap();
        let dir = tmp.path().join("fabric");
        assert_eq!(list_fabric_processes(&dir).unwrap(), []);
        assert!(!dir.exists());
        let members = [
            Fabric::join_fabric(&dir).unwrap(),
            Fabric::join_fabric(&dir).unwrap(),
        ];
        members[0]
            .back_with_memory(QPS_AT + 5 * size_of::<QpShared>(), size_of::<QpShared>())
            .unwrap();
        let segment = &members[0].this_process.segment;
        let qp = segment.qp(5).unwrap();
        qp.device.store(3, Ordering::Relaxed);
        qp.sq_psn.store(77, Ordering::Relaxed);
        qp.state_plus_1.store(1, Ordering::Relaxed);
        let found = list_fabric_processes(&dir).unwrap();
        let queue_pairs: Vec<_> = found.iter().flat_map(|one| &one.queue_pairs).collect();
        let [pair] = queue_pairs[..] else {
            panic!("{queue_pairs:?}");
        };
        let qpn = u32::try_from(members[0].this_process.slot << QP_INDEX_BITS | 5).unwrap();
        assert_eq!((pair.qpn, pair.device, pair.sq_psn), (qpn, 3, 77));
        assert_eq!((pair.state, pair.dest_qpn, pair.srqn), (0, 0, None));
        assert!(
            found
                .iter()
                .all(|one| one.pid == u64::from(std::process::id()))
        );
        members[0].leave();
        assert_eq!(list_fabric_processes(&dir).unwrap().len(), 1);
        members[1].leave();
        assert_eq!(list_fabric_processes(&dir).unwrap(), []);
    }

    #[test]
    fn contexts_shared_receive_queues_and_members_of_groups_are_counted() {
        let tmp = tempfile::tempdir_in("/dev/shm").unwrap();
        let dir = tmp.path().join("fabric");
        let member = Fabric::join_fabric(&dir).unwrap();
        for (at, len) in [
            (QPS_AT, size_of::<QpShared>()),
            (LISTED_AT, 2 * size_of::<ListedObjectShared>()),
            (MCASTS_AT, size_of::<McastAttachmentShared>()),
        ] {
            member.back_with_memory(at, len).unwrap();
        }
        let segment = &member.this_process.segment;
        let kinds = [LISTED_CONTEXT, LISTED_SRQ];
        for (place, kind) in kinds.into_iter().enumerate() {
            segment
                .listed(place)
                .unwrap()
                .kind
                .store(kind, Ordering::Relaxed);
        }
        let srq = segment.listed(1).unwrap();
        srq.pd.store(8, Ordering::Relaxed);
        srq.cq_index_plus_1.store(5, Ordering::Relaxed);
        let qp = segment.qp(0).unwrap();
        qp.listed_srq_plus_1.store(2, Ordering::Relaxed);
        qp.state_plus_1.store(1, Ordering::Relaxed);
        qp.port_num.store(2, Ordering::Relaxed);
        let attachment = segment.mcast(0).unwrap();
        let half = u64::from_ne_bytes([0xff; 8]);
        attachment.mgid[0].store(half, Ordering::Relaxed);
        attachment.qp_index_plus_1.store(1, Ordering::Relaxed);
        let header = segment.header();
        header.listed_slots_end.store(u64::MAX, Ordering::Relaxed);
        header.mcast_slots_end.store(1, Ordering::Relaxed);

        let found = list_fabric_processes(&dir).unwrap();
        let number =
            |index| u32::try_from(member.this_process.slot << QP_INDEX_BITS | index).unwrap();
        assert_eq!(
            found[0].contexts[..],
            [KnownContext {
                device: 0,
                number_in_fabric: number(0)
            }]
        );
        let expected = KnownSharedReceiveQueue {
            device: 0,
            srqn: number(1),
            srq_type: 0,
            pd_number: 8,
            cqn: Some(number(4)),
        };
        assert_eq!(found[0].shared_receive_queues[..], [expected]);
        assert_eq!(found[0].queue_pairs[0].srqn, Some(number(1)));
        let mut mgid = [0; 16];
        mgid[..8].fill(0xff);
        let expected = KnownMulticastAttachment {
            mgid,
            device: 0,
            port_num: 2,
        };
        assert_eq!(found[0].multicast_attachments[..], [expected]);
        member.leave();
    }

    #[test]
    fn a_directory_of_another_version_is_refused() {
        let tmp = tempfile::tempdir_in("/dev/shm").unwrap();
        for bytes in [16, DirectoryMap::FILE_BYTES] {
            std::fs::write(tmp.path().join(DIRECTORY_FILE_NAME), vec![1; bytes]).unwrap();
            assert!(list_fabric_processes(tmp.path()).is_err(), "{bytes}");
        }
    }
}
