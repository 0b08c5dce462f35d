//! Access to the files that hold the memory of peers.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;

use rustix::fs::SealFlags;

use crate::fabric::Peer;

/// Opens a sealed memfd that is descriptor `fd` in the peer, and returns the file and its length.
pub(super) fn open_memfd(peer: &Peer, fd: u32, inode: u64) -> io::Result<(File, usize)> {
    let _hold_off = cancellation::HoldOff::new();
    let path = format!("/proc/{}/fd/{fd}", peer.pid);
    let file = File::options().read(true).write(true).open(path)?;
    let meta = file.metadata()?;
    let len = usize::try_from(meta.len()).unwrap_or(0);
    let seals = rustix::fs::fcntl_get_seals(&file)?;
    if meta.ino() != inode || len == 0 || !seals.contains(SealFlags::SHRINK) {
        return Err(io::Error::other("the peer's memory is not what it says"));
    }
    Ok((file, len))
}
