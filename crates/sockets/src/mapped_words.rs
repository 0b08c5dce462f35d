//! A file of one page, mapped as atomic words.

use std::fs::OpenOptions;
use std::io;
use std::ops::Deref;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::AtomicU64;

use memmap2::{MmapOptions, MmapRaw};

const WORDS_PER_FILE: usize = 512;
const FILE_BYTES: usize = WORDS_PER_FILE * 8;

/// The words of a mapped file. Another process may write any of them at any time.
pub(crate) struct MappedWords {
    map: MmapRaw,
    inode: u64,
}

impl MappedWords {
    /// Maps the file at `path`. With `make`, creates the file if it does not exist.
    pub(crate) fn open(path: &Path, make: bool) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(make).mode(0o600);
        let file = options.open(path)?;
        if make && file.metadata()?.len() < FILE_BYTES as u64 {
            // Two processes may do this at once: the file grows with zeroes, or stays as it is.
            file.set_len(FILE_BYTES as u64)?;
        }
        let found = file.metadata()?;
        if found.len() != FILE_BYTES as u64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Self {
            map: MmapOptions::new().len(FILE_BYTES).map_raw(&file)?,
            inode: found.ino(),
        })
    }

    /// Inode number of the mapped file.
    pub(crate) fn inode(&self) -> u64 {
        self.inode
    }
}

impl Deref for MappedWords {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: mapped as long as `self`, aligned to a page, and only ever accessed as atomics.
        unsafe {
            std::slice::from_raw_parts(self.map.as_mut_ptr().cast::<AtomicU64>(), WORDS_PER_FILE)
        }
    }
}
