//! The name of a process of the fabric as a file that can be passed to other processes: the `cmd_fd` of a
//! context.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::{pread, write};

/// Name of a process in a fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FabricProcessId {
    /// Slot in the directory.
    pub slot: usize,
    /// Incarnation of the process in that slot.
    pub incarnation: u64,
    /// Index of the process's device, from 0.
    pub device: u8,
}

/// Shift of the device number in the second word of a name file; the lower bits hold the process's slot.
const DEVICE_SHIFT: u32 = 56;

/// First word of a name file.
const ID_FILE_MAGIC: u64 = u64::from_le_bytes(*b"VRBTNAME");
/// Size of a name file: magic, slot and device, and incarnation, 8 bytes each.
const ID_FILE_BYTES: usize = 24;

impl FabricProcessId {
    /// Returns the name of another device of the same process.
    #[must_use]
    pub fn with_device(self, device: u8) -> Self {
        Self { device, ..self }
    }

    /// Makes a sealed file that contains the name.
    pub fn to_sealed_memfd(&self) -> io::Result<OwnedFd> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("verbatim-context", flags)?;
        if write(&file, self.to_words().as_flattened())? != ID_FILE_BYTES {
            return Err(io::ErrorKind::WriteZero.into());
        }
        let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
        fcntl_add_seals(&file, seals)?;
        Ok(file)
    }

    fn to_words(self) -> [[u8; 8]; 3] {
        let slot = self.slot as u64 | u64::from(self.device) << DEVICE_SHIFT;
        [ID_FILE_MAGIC, slot, self.incarnation].map(u64::to_ne_bytes)
    }

    /// Returns the name in a file; `None` if the file does not contain a name.
    pub fn read_from_file(file: BorrowedFd<'_>) -> Option<Self> {
        let mut bytes = [0; ID_FILE_BYTES + 1];
        let read = pread(file, &mut bytes, 0).ok()?;
        Self::parse(bytes.get(..read)?)
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (words, []) = bytes.as_chunks() else {
            return None;
        };
        let [magic, slot, incarnation] = *words else {
            return None;
        };
        (u64::from_ne_bytes(magic) == ID_FILE_MAGIC).then_some(())?;
        let slot = u64::from_ne_bytes(slot);
        Some(Self {
            slot: usize::try_from(slot & ((1 << DEVICE_SHIFT) - 1)).ok()?,
            incarnation: u64::from_ne_bytes(incarnation),
            device: u8::try_from(slot >> DEVICE_SHIFT).ok()?,
        })
    }
}

/// Fuzz target for [`crate::fuzz`]: parses any bytes as a name file.
#[cfg(any(test, fuzzing))]
pub fn fuzz(bytes: &[u8]) {
    if let Some(name) = FabricProcessId::parse(bytes) {
        assert_eq!(name.to_words().as_flattened(), bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_name_is_read_back_and_nothing_else_is_one() {
        let name = FabricProcessId {
            slot: 7,
            incarnation: 0x1234_5678_9abc_def0,
            device: 3,
        };
        let file = name.to_sealed_memfd().unwrap();
        assert_eq!(FabricProcessId::read_from_file(file.as_fd()), Some(name));
        assert!(write(&file, b"x").is_err());
        let null = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(FabricProcessId::read_from_file(null.as_fd()), None);
        let (reader, _writer) = io::pipe().unwrap();
        assert_eq!(FabricProcessId::read_from_file(reader.as_fd()), None);
        let whole = [ID_FILE_MAGIC, 7, 9].map(u64::to_ne_bytes);
        let whole = whole.as_flattened();
        assert!(FabricProcessId::parse(whole).is_some());
        assert_eq!(FabricProcessId::parse(&whole[..23]), None);
        assert_eq!(FabricProcessId::parse(&[whole, b"x"].concat()), None);
        assert_eq!(FabricProcessId::parse(&[0; ID_FILE_BYTES]), None);
    }
}
