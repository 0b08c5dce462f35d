//! The data from which requests are answered: the device's files, and the processes of the fabric.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rdma_netlink::{
    AnswerSource, CompletionQueue, Device, MemoryRegion, OpenContext, ProcessObjects,
    ProtectionDomain, QueuePair, SharedReceiveQueue, sysfs,
};
use shm::fabric::{Fabric, FabricProcess, list_fabric_processes};

use crate::{PathBuffer, redirect};

/// The software NIC, as this process sees it.
pub(crate) struct SoftwareNicAnswers;

impl AnswerSource for SoftwareNicAnswers {
    fn devices(&self) -> Vec<Device> {
        let mut room: PathBuffer = [0; size_of::<PathBuffer>()];
        // SAFETY: the argument is a string, and so is the result, which lives as long as `room`.
        let folder =
            unsafe { CStr::from_ptr(redirect(c"/sys/class/infiniband".as_ptr(), &mut room)) };
        sysfs::read_devices(Path::new(OsStr::from_bytes(folder.to_bytes())))
    }

    /// Returns the processes of the fabric that this process would join.
    fn processes_of_device(&self, device: usize) -> Option<Vec<ProcessObjects>> {
        // The names of the devices are in the order of their numbers.
        let device = u32::try_from(device).ok()?;
        let found = list_fabric_processes(&Fabric::default_dir().ok()?).ok()?;
        let of = |found| objects_on_device(found, device);
        Some(found.into_iter().filter_map(of).collect())
    }
}

/// Returns the objects that a process has on the device with the number `device`.
fn objects_on_device(found: FabricProcess, device: u32) -> Option<ProcessObjects> {
    let shared_receive_queues = shared_receive_queues_on_device(&found, device);
    let queue_pairs = found.queue_pairs.into_iter();
    let completion_queues = found.completion_queues.into_iter();
    let domains = found.protection_domains.into_iter();
    let regions = found.memory_regions.into_iter();
    let contexts = found.contexts.into_iter();
    Some(ProcessObjects {
        pid: u32::try_from(found.pid).ok()?,
        queue_pairs: queue_pairs
            .filter(|pair| pair.device == device)
            .map(|pair| QueuePair {
                qpn: pair.qpn,
                port_num: (pair.port_num != 0).then_some(pair.port_num),
                qp_type: u8::try_from(pair.qp_type).unwrap_or(u8::MAX),
                state: u8::try_from(pair.state).unwrap_or(u8::MAX),
                dest_qpn: pair.dest_qpn,
                rq_psn: pair.rq_psn,
                sq_psn: pair.sq_psn,
                pd_number: pair.pd_number,
            })
            .collect(),
        completion_queues: completion_queues
            .filter(|queue| queue.device == device)
            .map(|queue| CompletionQueue {
                cqn: queue.cqn,
                cqe: queue.cqe,
                use_count: queue.use_count,
            })
            .collect(),
        protection_domains: domains
            .filter(|domain| domain.device == device)
            .map(|domain| ProtectionDomain {
                number: domain.number,
                use_count: domain.use_count,
            })
            .collect(),
        memory_regions: regions
            .filter(|region| region.device == device)
            .map(|region| MemoryRegion {
                lkey_and_rkey: region.key,
                iova: region.iova,
                len_bytes: region.len,
                pd_number: region.pd_number,
            })
            .collect(),
        contexts: contexts
            .filter(|context| context.device == device)
            .map(|context| OpenContext {
                number: context.number_in_fabric,
            })
            .collect(),
        shared_receive_queues,
    })
}

fn shared_receive_queues_on_device(found: &FabricProcess, device: u32) -> Vec<SharedReceiveQueue> {
    let queues = found.shared_receive_queues.iter();
    let on_device = queues.filter(|queue| queue.device == device);
    on_device
        .map(|queue| SharedReceiveQueue {
            srqn: queue.srqn,
            srq_type: u8::try_from(queue.srq_type).unwrap_or(u8::MAX),
            pd_number: queue.pd_number,
            cqn: queue.cqn,
            qpns: found
                .queue_pairs
                .iter()
                .filter(|pair| pair.srqn == Some(queue.srqn))
                .map(|pair| pair.qpn)
                .collect(),
        })
        .collect()
}
