//! Counts of the objects of all processes of a fabric, for a process outside of it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::Ordering;

use nic_core::rights::Owner;

use super::directory::DIRECTORY;
use super::error::{FabricError, io_error};
use super::folder::{check_ours, segment_path};
use super::layout::*;
use super::segment::{DirectoryMap, Segment};
use crate::keys::key_of;

/// A process of a fabric and what it has at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricProcess {
    /// Its process id.
    pub pid: u64,
    /// Its queue pairs.
    pub queue_pairs: usize,
    /// Its protection domains.
    pub domains: usize,
    /// Its memory regions, without windows.
    pub regions: Vec<KnownRegion>,
}

/// A memory region of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownRegion {
    /// L_Key and R_Key.
    pub key: u32,
    /// Address of its first byte, as work requests name it.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
    /// Number of its protection domain.
    pub domain: u32,
}

/// The processes of the fabric in `dir`. This process does not join, makes nothing and waits for nobody; where there is no
/// fabric, nobody is in it.
///
/// # Errors
/// The folder is not this user's alone; its files cannot be read or mapped, or are of another version.
pub fn census(dir: &Path) -> Result<Vec<FabricProcess>, FabricError> {
    if !check_ours(dir)? {
        return Ok(Vec::new());
    }
    read(dir).map_err(io_error(dir, "look at its processes"))
}

fn read(dir: &Path) -> io::Result<Vec<FabricProcess>> {
    let file = match open(&dir.join(DIRECTORY)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        opened => opened?,
    };
    if file.metadata()?.len() < DirectoryMap::BYTES as u64 {
        return Err(io::Error::other("the directory is too short"));
    }
    let map = DirectoryMap::new(&file)?;
    let directory = map.get();
    if directory.magic.load(Ordering::Acquire) != MAGIC
        || directory.version.load(Ordering::Relaxed) != LAYOUT_VERSION
    {
        return Err(io::Error::other("the fabric is of another version"));
    }
    let mut found = Vec::new();
    for entry in &directory.procs {
        let incarnation = entry.incarnation.load(Ordering::Acquire);
        let pid = entry.pid.load(Ordering::Relaxed);
        let start_time = entry.start_time.load(Ordering::Relaxed);
        if incarnation == 0 || !liveness::is_alive(pid, start_time) {
            continue;
        }
        match open(&segment_path(dir, incarnation)).and_then(|file| Segment::open(&file)) {
            Ok(segment) => found.push(process_of(pid, &segment)),
            // It has left meanwhile.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
    }
    Ok(found)
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(path)
}

fn process_of(pid: u64, segment: &Segment) -> FabricProcess {
    let queue_pairs = (0..MAX_QPS)
        .filter_map(|index| segment.find_qp(index))
        .filter(|qp| qp.state.load(Ordering::Relaxed) != 0);
    let domains = (0..MAX_PDS)
        .filter_map(|index| segment.find_pd(index))
        .filter(|pd| !matches!(pd.handle.load(Ordering::Relaxed), 0 | OBJECT_DESTROYED));
    FabricProcess {
        pid,
        queue_pairs: queue_pairs.count(),
        domains: domains.count(),
        regions: (0..MR_SLOTS)
            .filter_map(|index| region(segment, index))
            .collect(),
    }
}

/// The region in a place of the table of keys; `None` where there is none, it is a window, or it changes.
fn region(segment: &Segment, index: usize) -> Option<KnownRegion> {
    let place = segment.find_mr(index)?;
    let entry = place.entry.load(Ordering::Acquire);
    let owner = Owner::from_word(place.pd.load(Ordering::Relaxed));
    let region = KnownRegion {
        key: key_of(entry),
        addr: place.addr.load(Ordering::Relaxed),
        len: place.len.load(Ordering::Relaxed),
        domain: owner.number()?,
    };
    std::sync::atomic::fence(Ordering::Acquire);
    let is_same = place.entry.load(Ordering::Relaxed) == entry;
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
        assert_eq!(census(&dir).unwrap(), []);
        assert!(!dir.exists());
        let members = [Fabric::join(&dir).unwrap(), Fabric::join(&dir).unwrap()];
        members[0]
            .reserve(QPS_AT + 5 * size_of::<QpShared>(), size_of::<QpShared>())
            .unwrap();
        let segment = &members[0].me.segment;
        segment.qp(5).unwrap().state.store(1, Ordering::Relaxed);
        let found = census(&dir).unwrap();
        let mut queue_pairs: Vec<_> = found.iter().map(|one| one.queue_pairs).collect();
        queue_pairs.sort_unstable();
        assert_eq!(queue_pairs, [0, 1]);
        assert!(
            found
                .iter()
                .all(|one| one.pid == u64::from(std::process::id()))
        );
        members[0].leave();
        assert_eq!(census(&dir).unwrap().len(), 1);
        members[1].leave();
        assert_eq!(census(&dir).unwrap(), []);
    }

    #[test]
    fn a_directory_of_another_version_is_refused() {
        let tmp = tempfile::tempdir_in("/dev/shm").unwrap();
        for bytes in [16, DirectoryMap::BYTES] {
            std::fs::write(tmp.path().join(DIRECTORY), vec![1; bytes]).unwrap();
            assert!(census(tmp.path()).is_err(), "{bytes}");
        }
    }
}
