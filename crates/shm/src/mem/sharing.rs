//! The record of the private memory that is registered: whose pages are shared, and by which file.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use super::areas::{Area, Maps, areas};
use super::coverage::Coverage;
use crate::lock::lock;

/// Bytes of the file: every address of a process.
const FILE_BYTES: u64 = 1 << 47;

/// Regions of private memory, and their pages that are shared.
pub(super) struct Sharing {
    /// The process whose pages these are: a forked child starts anew.
    pub(super) pid: u32,
    file: Option<SharedFile>,
    /// Open as long as there is the file: who forks, or gives a region up, must know what is mapped, and may have no more
    /// descriptors.
    maps: Option<Maps>,
    /// How many regions are shared.
    pub(super) regions: usize,
    /// Regions whose pages are all shared.
    pub(super) shared: Coverage,
    /// Regions that peers reach by system call.
    pub(super) private: Coverage,
}

#[derive(Clone)]
pub(super) struct SharedFile {
    pub(super) fd: Arc<OwnedFd>,
    pub(super) inode: u64,
}

static SHARING: Mutex<Sharing> = Mutex::new(Sharing::new(0));

/// What is shared, for the process that asks.
pub(super) fn sharing() -> MutexGuard<'static, Sharing> {
    let mut sharing = lock(&SHARING);
    let pid = std::process::id();
    if sharing.pid != pid {
        // The file is the parent's. Its pages here, if there are any, are the child's own (see `fork`).
        *sharing = Sharing::new(pid);
    }
    sharing
}

impl Sharing {
    const fn new(pid: u32) -> Self {
        Self {
            pid,
            file: None,
            maps: None,
            regions: 0,
            shared: Coverage::new(),
            private: Coverage::new(),
        }
    }

    /// The inode of the file, if there is one.
    pub(super) fn inode(&self) -> Option<u64> {
        self.file.as_ref().map(|file| file.inode)
    }

    /// The file, made if need be.
    pub(super) fn file(&mut self) -> io::Result<SharedFile> {
        if let Some(file) = &self.file {
            return Ok(file.clone());
        }
        let maps = Maps::open()?;
        let fd = memfd_create(
            "verbatim-pages",
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
        )?;
        ftruncate(&fd, FILE_BYTES)?;
        // Sealed, so that a peer that mapped it can never be sent a SIGBUS.
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)?;
        let inode = rustix::fs::fstat(&fd)?.st_ino;
        let file = SharedFile {
            fd: Arc::new(fd),
            inode,
        };
        self.file = Some(file.clone());
        self.maps = Some(maps);
        Ok(file)
    }

    /// What is mapped in this process, in the order of addresses.
    ///
    /// # Errors
    /// What the system says where it cannot be read.
    pub(super) fn areas(&self) -> io::Result<Vec<Area>> {
        match &self.maps {
            Some(maps) => maps.areas(),
            None => areas(),
        }
    }
}
