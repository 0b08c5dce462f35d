//! The record of registered private memory: which pages are shared, and through which file.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use super::process_mappings::{ProcSelfMaps, ProcessMapping, mappings_of_process};
use super::range_coverage::RangeCoverage;
use crate::lock::lock;
use crate::set_file_len::set_file_len;

/// Bytes of the file: the size of a process's address space.
const SHARED_FILE_BYTES: u64 = 1 << 47;

/// The registered regions of private memory, and the set of pages that are shared.
pub(super) struct SharedPages {
    /// The process that owns these pages; a forked child begins with an empty record.
    pub(super) owner_pid: u32,
    file: Option<SharedFile>,
    /// `/proc/self/maps`, kept open while the file exists. Fork and deregistration must read the
    /// areas even if no descriptors are left.
    proc_self_maps: Option<ProcSelfMaps>,
    /// Number of shared regions.
    pub(super) shared_region_count: usize,
    /// Coverage of the regions whose pages are all shared.
    pub(super) shared_coverage: RangeCoverage,
    /// Coverage of the regions that peers access by system call.
    pub(super) syscall_accessed_coverage: RangeCoverage,
}

#[derive(Clone)]
pub(super) struct SharedFile {
    pub(super) fd: Arc<OwnedFd>,
    pub(super) inode: u64,
}

static SHARED_PAGES: Mutex<SharedPages> = Mutex::new(SharedPages::new(0));

/// Locks and returns the record of the calling process.
pub(super) fn lock_shared_pages() -> MutexGuard<'static, SharedPages> {
    let mut sharing = lock(&SHARED_PAGES);
    let pid = std::process::id();
    if sharing.owner_pid != pid {
        // The file belongs to the parent. The child's copies of shared pages, if any, are private
        // (see `fork`).
        *sharing = SharedPages::new(pid);
    }
    sharing
}

impl SharedPages {
    const fn new(pid: u32) -> Self {
        Self {
            owner_pid: pid,
            file: None,
            proc_self_maps: None,
            shared_region_count: 0,
            shared_coverage: RangeCoverage::new(),
            syscall_accessed_coverage: RangeCoverage::new(),
        }
    }

    /// Returns the inode of the file, if the file exists.
    pub(super) fn shared_file_inode(&self) -> Option<u64> {
        self.file.as_ref().map(|file| file.inode)
    }

    /// Returns the file that holds shared pages, and makes the file if necessary.
    pub(super) fn file_or_create(&mut self) -> io::Result<SharedFile> {
        if let Some(file) = &self.file {
            return Ok(file.clone());
        }
        let maps = ProcSelfMaps::open()?;
        let fd = memfd_create(
            "verbatim-pages",
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
        )?;
        set_file_len(&fd, SHARED_FILE_BYTES)?;
        // Sealed against shrinking, so that a peer that has mapped the file never gets a SIGBUS.
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)?;
        let inode = rustix::fs::fstat(&fd)?.st_ino;
        let file = SharedFile {
            fd: Arc::new(fd),
            inode,
        };
        self.file = Some(file.clone());
        self.proc_self_maps = Some(maps);
        Ok(file)
    }

    /// Returns the areas mapped in this process, in the order of addresses.
    ///
    /// # Errors
    /// Returns the system's error if `/proc/self/maps` cannot be read.
    pub(super) fn mappings_of_process(&self) -> io::Result<Vec<ProcessMapping>> {
        match &self.proc_self_maps {
            Some(maps) => maps.mappings_of_process(),
            None => mappings_of_process(),
        }
    }
}
