//! Registered memory: the tap's record of its size and page sizes.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};

use crate::mapped_counter_file::MappedCounterFile;

/// Size in bytes of the smallest pages.
const SMALL_PAGE_BYTES: u64 = 4096;
/// Size in bytes of a huge page of x86-64. A shorter region is assumed to be in small pages, and is not
/// looked up.
const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// Bytes of each region, and its bytes in large pages, by the region's handle.
static REGION_BYTES_AND_HUGE_PAGE_BYTES: Mutex<Option<HashMap<usize, (u64, u64)>>> =
    Mutex::new(None);

/// Records that a region was registered.
pub(crate) fn record_registered_region(
    session: &MappedCounterFile,
    handle: usize,
    addr: usize,
    len: usize,
) {
    let (addr, len) = (addr as u64, len as u64);
    let huge = if len < HUGE_PAGE_BYTES {
        0
    } else {
        huge_page_bytes_in_range(addr, len).unwrap_or(0)
    };
    let mut regions = REGION_BYTES_AND_HUGE_PAGE_BYTES
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let known = regions.get_or_insert_default();
    if let Some((len, huge)) = known.insert(handle, (len, huge)) {
        subtract_region(session, len, huge);
    }
    let header = session.header();
    header.registrations_ever.fetch_add(1, Relaxed);
    let all = header.current_registered_bytes.fetch_add(len, Relaxed) + len;
    if header.max_registered_bytes.fetch_max(all, Relaxed) < all {
        let huge = header.current_registered_huge_page_bytes.load(Relaxed) + huge;
        header
            .huge_page_bytes_at_max_registered
            .store(huge, Relaxed);
    }
    header
        .current_registered_huge_page_bytes
        .fetch_add(huge, Relaxed);
}

/// Records that a region was deregistered.
pub(crate) fn record_deregistered_region(session: &MappedCounterFile, handle: usize) {
    let mut regions = REGION_BYTES_AND_HUGE_PAGE_BYTES
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    if let Some((len, huge)) = regions.as_mut().and_then(|known| known.remove(&handle)) {
        subtract_region(session, len, huge);
    }
}

fn subtract_region(session: &MappedCounterFile, len: u64, huge: u64) {
    let header = session.header();
    for (word, bytes) in [
        (&header.current_registered_bytes, len),
        (&header.current_registered_huge_page_bytes, huge),
    ] {
        let _ = word.fetch_update(Relaxed, Relaxed, |now| Some(now.saturating_sub(bytes)));
    }
}

/// Returns the number of bytes of a range that lie in pages larger than the smallest. These are pages of
/// hugetlbfs, and transparent huge pages that exist already.
fn huge_page_bytes_in_range(addr: u64, len: u64) -> Option<u64> {
    let end = addr.checked_add(len)?;
    let smaps = BufReader::new(File::open("/proc/self/smaps").ok()?);
    Some(huge_page_bytes_from_smaps(
        smaps.lines().map_while(Result::ok),
        addr,
        end,
    ))
}

/// Returns the number of bytes of `addr..end` in large pages, from the lines of `smaps` (proc_pid_smaps(5)).
fn huge_page_bytes_from_smaps(lines: impl Iterator<Item = String>, addr: u64, end: u64) -> u64 {
    let mut huge = 0;
    // Number of bytes of the range in the mapping that the current lines describe.
    let mut here = 0;
    for line in lines {
        if let Some((from, to)) = mapping_range(&line) {
            here = to.min(end).saturating_sub(from.max(addr));
            if from >= end {
                break;
            }
        } else if here > 0 {
            if smaps_field_bytes(&line, "KernelPageSize:")
                .is_some_and(|page| page > SMALL_PAGE_BYTES)
            {
                huge += here;
                here = 0;
            } else if let Some(transparent) = smaps_field_bytes(&line, "AnonHugePages:") {
                huge += transparent.min(here);
            }
        }
    }
    huge
}

/// Returns the address range in a line that begins the description of a mapping.
fn mapping_range(line: &str) -> Option<(u64, u64)> {
    let (from, to) = line.split(' ').next()?.split_once('-')?;
    let hex = |text| u64::from_str_radix(text, 16).ok();
    Some((hex(from)?, hex(to)?))
}

/// Returns the value of the field `name` in a line of `smaps`, in bytes.
fn smaps_field_bytes(line: &str, name: &str) -> Option<u64> {
    let kib = line.strip_prefix(name)?.trim().strip_suffix(" kB")?;
    kib.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
7f0000000000-7f0000400000 rw-p 00000000 00:00 0
Size:               4096 kB
KernelPageSize:        4 kB
AnonHugePages:      2048 kB
7f0000400000-7f0000800000 rw-s 00000000 00:0f 1 /anon_hugepage (deleted)
KernelPageSize:     2048 kB
AnonHugePages:         0 kB
7f0000800000-7f0000900000 rw-p 00000000 00:00 0
KernelPageSize:        4 kB
AnonHugePages:         0 kB
";

    fn huge(addr: u64, end: u64) -> u64 {
        huge_page_bytes_from_smaps(SMAPS.lines().map(str::to_owned), addr, end)
    }

    #[test]
    fn huge_pages_are_found_in_their_range() {
        let base = 0x7f00_0000_0000;
        assert_eq!(huge(base, base + 0x40_0000), 2 << 20, "transparent ones");
        assert_eq!(huge(base + 0x40_0000, base + 0x80_0000), 4 << 20);
        assert_eq!(huge(base + 0x60_0000, base + 0x90_0000), 2 << 20);
        assert_eq!(huge(base + 0x80_0000, base + 0x90_0000), 0);
        assert_eq!(huge(0, 4096), 0);
    }

    #[test]
    fn this_process_can_be_looked_at() {
        let small = vec![1u8; 4096];
        assert_eq!(
            huge_page_bytes_in_range(small.as_ptr().addr() as u64, 1),
            Some(0)
        );
    }
}
