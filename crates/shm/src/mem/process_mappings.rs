//! The memory areas of this process, from `/proc/self/maps`.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::ops::Range;

/// `/proc/self/maps`, kept open.
pub(super) struct ProcSelfMaps(File);

impl ProcSelfMaps {
    pub(super) fn open() -> io::Result<Self> {
        let _hold_off = cancellation::HoldOff::new();
        File::open("/proc/self/maps").map(Self)
    }

    /// Returns the mapped areas of this process in address order. Only one thread may call this
    /// function at a time.
    pub(super) fn mappings_of_process(&self) -> io::Result<Vec<ProcessMapping>> {
        let _hold_off = cancellation::HoldOff::new();
        let mut maps = String::new();
        let mut file = &self.0;
        file.rewind()?;
        file.read_to_string(&mut maps)?;
        let mut areas = Vec::new();
        // Programs have tens of thousands of areas.
        areas.try_reserve_exact(maps.lines().count())?;
        areas.extend(maps.lines().filter_map(ProcessMapping::parse));
        Ok(areas)
    }
}

/// Returns the mapped areas of this process in address order.
pub(super) fn mappings_of_process() -> io::Result<Vec<ProcessMapping>> {
    ProcSelfMaps::open()?.mappings_of_process()
}

/// Returns the area in which `range` starts, if all of `range` is mapped readable, and writable if `write` is
/// set.
///
/// # Errors
/// Returns `EFAULT` if the range is not mapped in this way.
pub(super) fn first_mapping_if_all_mapped(
    areas: &[ProcessMapping],
    range: Range<usize>,
    write: bool,
) -> Result<&ProcessMapping, i32> {
    let mut at = range.start;
    let mut first = None;
    for area in areas {
        if area.end <= at {
            continue;
        }
        if area.start > at || !area.is_readable || (write && !area.is_writable) {
            break;
        }
        first = first.or(Some(area));
        if area.end >= range.end {
            return first.ok_or(libc::EFAULT);
        }
        at = area.end;
    }
    Err(libc::EFAULT)
}

/// Fuzz target for [`crate::fuzz`]: parses any text as `/proc/self/maps`, and looks up regions in the areas
/// found.
#[cfg(any(test, fuzzing))]
pub fn fuzz(maps: &str) {
    let areas: Vec<_> = maps.lines().filter_map(ProcessMapping::parse).collect();
    for ProcessMapping { start, end, .. } in &areas {
        for write in [false, true] {
            if let Ok(first) = first_mapping_if_all_mapped(&areas, *start..*end, write) {
                assert!(first.is_readable && (first.is_writable || !write));
            }
        }
    }
}

/// A line of `/proc/self/maps`.
pub(super) struct ProcessMapping {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) is_readable: bool,
    pub(super) is_writable: bool,
    /// True if the mapping is private (copy-on-write).
    pub(super) is_private: bool,
    pub(super) file_offset: u64,
    pub(super) inode: u64,
    /// Id of the segment if the area is SysV shared memory.
    pub(super) sysv_id: Option<u64>,
    /// True if the area has a special purpose: a stack that grows, or pages of the kernel.
    pub(super) is_special_purpose: bool,
}

impl ProcessMapping {
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let perms = fields.next()?.as_bytes();
        let offset = u64::from_str_radix(fields.next()?, 16).ok()?;
        let _device = fields.next()?;
        let inode: u64 = fields.next()?.parse().ok()?;
        let name = fields.next().unwrap_or_default();
        let private = perms.get(3) == Some(&b'p');
        let named_memory = name == "[heap]" || name.starts_with("[anon:");
        Some(Self {
            start: usize::from_str_radix(start, 16).ok()?,
            end: usize::from_str_radix(end, 16).ok()?,
            is_readable: perms.first() == Some(&b'r'),
            is_writable: perms.get(1) == Some(&b'w'),
            is_private: private,
            file_offset: offset,
            inode,
            sysv_id: (!private && name.starts_with("/SYSV")).then_some(inode),
            is_special_purpose: name.starts_with('[') && !named_memory,
        })
    }
}
