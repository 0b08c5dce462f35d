//! The sources of the answers: the files of the device, and the processes of the fabric.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rdma_netlink::{Device, Process, Region, Source, sysfs};
use shm::fabric::{Fabric, FabricProcess, census};

use crate::{Room, meant};

/// The software NIC, as this process sees it.
pub(crate) struct SoftwareNic;

impl Source for SoftwareNic {
    fn devices(&self) -> Vec<Device> {
        let mut room: Room = [0; size_of::<Room>()];
        // SAFETY: the argument is a string, and so is the result, which lives as long as `room`.
        let folder = unsafe { CStr::from_ptr(meant(c"/sys/class/infiniband".as_ptr(), &mut room)) };
        sysfs::devices(Path::new(OsStr::from_bytes(folder.to_bytes())))
    }

    /// Returns the processes of the fabric that this process would join. A fabric has one device.
    fn processes(&self, _device: &Device) -> Option<Vec<Process>> {
        let found = census(&Fabric::default_dir().ok()?).ok()?;
        Some(found.into_iter().filter_map(process).collect())
    }
}

fn process(found: FabricProcess) -> Option<Process> {
    let regions = found.regions.into_iter().map(|region| Region {
        key: region.key,
        iova: region.addr,
        len_bytes: region.len,
        domain: region.domain,
    });
    Some(Process {
        pid: u32::try_from(found.pid).ok()?,
        queue_pairs: found.queue_pairs,
        domains: found.domains,
        regions: regions.collect(),
    })
}
