//! Checkable payloads: the first, the last and one middle word hold the number of their request.

use anyhow::{Result, bail};
use verbs::MemoryRegion;

/// Returns the offsets of the marked words in a payload. The middle word moves from request to
/// request, so that all words are checked in time.
fn marked_word_offsets(payload_bytes: usize, number: u64) -> [usize; 3] {
    let words = payload_bytes / 8;
    let turn = usize::try_from(number % (1 << 20)).unwrap_or(0);
    // Each request moves the middle word by nine words, to another cache line.
    [0, 8 * (turn * 9 % words), 8 * (words - 1)]
}

/// Writes the marks of request `number` into the payload at `at`.
pub(super) fn write_marks(
    memory: &MemoryRegion,
    at: usize,
    payload_bytes: usize,
    number: u64,
) -> Result<()> {
    for word in marked_word_offsets(payload_bytes, number) {
        memory.write_u64(at + word, number)?;
    }
    Ok(())
}

/// Fails unless the payload at `at` has the marks of request `number`.
pub(super) fn check_marks(
    memory: &MemoryRegion,
    at: usize,
    payload_bytes: usize,
    number: u64,
) -> Result<()> {
    for word in marked_word_offsets(payload_bytes, number) {
        let found = memory.read_u64(at + word)?;
        if found != number {
            bail!("request {number} brought the data of request {found} at byte {word}");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open_nic::{NicChoice, OpenNic};

    #[test]
    fn each_word_is_looked_at_and_a_wrong_one_is_noticed() {
        let mut seen = [false; 512];
        for number in 0..512 {
            for word in marked_word_offsets(4096, number) {
                seen[word / 8] = true;
            }
        }
        assert_eq!(seen, [true; 512]);
        let nic = OpenNic::open(&NicChoice::first_device_of("softnic")).unwrap();
        let memory = nic
            .alloc_registered_memory(128, verbs::Access::LOCAL_WRITE, None)
            .unwrap();
        for wrong in marked_word_offsets(64, 5) {
            write_marks(&memory, 64, 64, 5).unwrap();
            check_marks(&memory, 64, 64, 5).unwrap();
            memory.write_u64(64 + wrong, 4).unwrap();
            assert!(check_marks(&memory, 64, 64, 5).is_err());
        }
    }
}
