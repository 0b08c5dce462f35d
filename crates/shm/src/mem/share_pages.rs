//! Gives registered private memory of this process a backing that peers can map.
//!
//! Ordinary programs register memory from `malloc` or `mmap`. Peers can access it by system call only, which
//! is 500 times slower for small messages than a mapping. Registration therefore replaces the pages of a
//! region by pages of a memfd, and deregistration makes them private again. The file is as large as the
//! address space and holds each page at the offset that equals its address. Regions that share pages
//! therefore share them in the file, too.
//!
//! The program must not notice that pages are replaced. These obstacles have these solutions:
//!
//! - Threads that write meanwhile are blocked (`replace`). A system call of another thread that
//!   writes to the pages would fail. All other threads must therefore be asleep when pages are
//!   shared.
//! - Peers write to private regions by system call, and so does the engine on behalf of peers. Pages that
//!   contain such a region stay private.
//! - A forked child must not share pages with its parent: `fork` gives the child private copies.
//! - `mremap` moves shared pages, and may make their mapping longer: it would reach the pages of other memory.
//!   `realloc` of the GNU C library does so. The first page of a shared range is therefore a mapping of its own:
//!   `mremap` of the range fails, and `realloc` copies. Where pages have moved nevertheless, they are made private
//!   at their new place, and no other memory takes their place in the file.
//! - `madvise(MADV_DONTNEED)` keeps the contents of shared pages, although allocators expect zeros. Pages are
//!   therefore shared only if `malloc` is the GNU C library's, which does not expect zeros.

use std::cell::Cell;
use std::ffi::{CStr, c_void};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::mm::{Advice, madvise};

use super::fork;
use super::page::PAGE_BYTES;
use super::process_mappings::ProcessMapping;
use super::replace_pages::{PageSource, replace_pages};
use super::shared_pages::{SharedFile, SharedPages, lock_shared_pages};

/// Maximum size in bytes of a shared region: sharing takes 0.5 ms per MiB, and large copies gain
/// less.
const MAX_SHARED_REGION_BYTES: usize = 64 << 20;

/// Maximum number of regions shared at a time. Each shared region may split a mapping of this
/// process in four, and Linux permits a process 65,530 mappings (`vm.max_map_count`).
const MAX_SHARED_REGIONS: usize = 8192;

/// Thread id of the engine, which may run while pages are shared, because its writes are known.
static ENGINE_THREAD_ID: AtomicU32 = AtomicU32::new(0);

thread_local! {
    static IS_ENGINE: Cell<bool> = const { Cell::new(false) };
}

/// Declares the calling thread to be the engine.
pub fn declare_this_thread_the_engine() {
    let tid = rustix::thread::gettid().as_raw_nonzero().get();
    ENGINE_THREAD_ID.store(tid.cast_unsigned(), Ordering::Relaxed);
    IS_ENGINE.set(true);
}

/// Returns true in the thread that was declared to be the engine.
pub fn is_this_thread_the_engine() -> bool {
    IS_ENGINE.get()
}

/// A registered region of private memory; dropped at deregistration.
pub struct PrivateRegion {
    pages: Range<usize>,
    shared_file: Option<SharedFile>,
    registering_pid: u32,
}

impl PrivateRegion {
    /// Returns descriptor and inode of the file that holds the region's pages, each at the offset that equals
    /// its address.
    pub fn shared_file_fd_and_inode(&self) -> Option<(u32, u64)> {
        let file = self.shared_file.as_ref()?;
        Some((file.fd.as_raw_fd().cast_unsigned(), file.inode))
    }
}

impl Drop for PrivateRegion {
    fn drop(&mut self) {
        let mut sharing = lock_shared_pages();
        if sharing.owner_pid != self.registering_pid {
            return;
        }
        match &self.shared_file {
            None => sharing.syscall_accessed_coverage.remove(&self.pages),
            Some(file) => {
                sharing.shared_region_count -= 1;
                sharing.shared_coverage.remove(&self.pages);
                if let Err(e) = sharing.unshare(file, &self.pages) {
                    // The shared pages remain usable, and a later region on them finds them shared.
                    tracing::debug!("the pages at {:#x?} stay shared: {e}", self.pages);
                }
            }
        }
    }
}

/// Returns true if this process permits sharing of pages; the answer is determined once.
fn is_sharing_allowed() -> bool {
    static ALLOWED: OnceLock<bool> = OnceLock::new();
    *ALLOWED.get_or_init(|| {
        let kept =
            std::env::var_os("VERBATIM_KEEP_PRIVATE").is_some_and(|v| !v.is_empty() && v != "0");
        !kept && malloc_is_glibc() && fork::install_fork_handlers()
    })
}

/// Returns true if the allocator is the C library's own, and not a linked or preloaded one.
///
/// An allocator that replaces the C library's defines all three of the functions checked here.
fn malloc_is_glibc() -> bool {
    let found = [c"malloc", c"calloc", c"realloc"].map(find_allocator_definer);
    found.contains(&AllocatorDefiner::Glibc) && !found.contains(&AllocatorDefiner::Other)
}

/// The object that defines a function of the allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AllocatorDefiner {
    Glibc,
    Other,
    /// The lookup ended at an entry of a procedure linkage table. A program that is not
    /// position-independent, such as Debian's python3, takes this entry's address for the
    /// function's address.
    Unknown,
}

/// Flag of `dladdr1` that requests the symbol table entry; from `dlfcn.h` of the GNU C library.
const RTLD_DL_SYMENT: libc::c_int = 1;

/// Returns the object that defines the function `name` in this process.
fn find_allocator_definer(name: &CStr) -> AllocatorDefiner {
    let mut info: libc::Dl_info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    let mut entry: *mut c_void = std::ptr::null_mut();
    // SAFETY: `dlsym` looks `name` up by the loader's default search. `dladdr1` fills `info`, and sets
    // `entry` to the address of a symbol table entry.
    let found = unsafe {
        let function = libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr());
        !function.is_null()
            && libc::dladdr1(function, &raw mut info, &raw mut entry, RTLD_DL_SYMENT) != 0
    };
    if !found || info.dli_fname.is_null() {
        return AllocatorDefiner::Other;
    }
    // SAFETY: the loader's entries and names stay valid while the object is loaded. The C library and the
    // program are never unloaded; of other objects neither is used after this function.
    let (undefined, object) = unsafe {
        let entry = entry.cast::<libc::Elf64_Sym>();
        (
            entry.as_ref().is_some_and(|entry| entry.st_shndx == 0),
            CStr::from_ptr(info.dli_fname),
        )
    };
    match object.to_bytes().rsplit(|&b| b == b'/').next() {
        _ if undefined => AllocatorDefiner::Unknown,
        Some(b"libc.so.6") => AllocatorDefiner::Glibc,
        _ => AllocatorDefiner::Other,
    }
}

fn sharing_refused_error(why: &'static str) -> io::Error {
    io::Error::other(why)
}

impl SharedPages {
    /// Registers `len` bytes of private memory at `addr`, and shares their pages if `wanted` is set
    /// and sharing is safe.
    ///
    /// All bytes are mapped in `areas`, which the caller read while it held the lock of
    /// [`SharedPages`].
    pub(super) fn register_region(
        &mut self,
        areas: &[ProcessMapping],
        (addr, len): (usize, usize),
        wanted: bool,
    ) -> PrivateRegion {
        let pages = addr & !(PAGE_BYTES - 1)..(addr + len).next_multiple_of(PAGE_BYTES);
        let shared = if wanted
            && len <= MAX_SHARED_REGION_BYTES
            && self.shared_region_count < MAX_SHARED_REGIONS
            && is_sharing_allowed()
        {
            self.share(areas, &pages)
                .inspect_err(|e| tracing::debug!("the pages at {pages:#x?} stay private: {e}"))
                .ok()
        } else {
            None
        };
        if shared.is_some() {
            self.shared_region_count += 1;
            self.shared_coverage.add(&pages);
        } else {
            self.syscall_accessed_coverage.add(&pages);
        }
        PrivateRegion {
            pages,
            shared_file: shared,
            registering_pid: self.owner_pid,
        }
    }

    /// Replaces the private pages in the range `pages` by pages of the file.
    fn share(&mut self, areas: &[ProcessMapping], pages: &Range<usize>) -> io::Result<SharedFile> {
        let file = self.file_or_create()?;
        if mapped_parts_of_file(areas, &file, pages).any(|(_, area)| area.has_moved()) {
            return Err(sharing_refused_error(
                "pages that were registered here are mapped elsewhere now",
            ));
        }
        let mut private: Vec<Range<usize>> = Vec::new();
        for (part, area) in parts_by_mapping(areas, pages) {
            if area.maps_shared_file(&file) {
                continue;
            }
            if !area.is_private_memory() {
                return Err(sharing_refused_error("they are not private memory"));
            }
            match private.last_mut().filter(|last| last.end == part.start) {
                Some(last) => last.end = part.end,
                None => private.push(part),
            }
        }
        for part in &private {
            if self.syscall_accessed_coverage.touches(part) {
                return Err(sharing_refused_error(
                    "a region lies there that peers reach by system call",
                ));
            }
            if overlaps_used_stack(part) {
                return Err(sharing_refused_error("it is this thread's stack"));
            }
        }
        for part in &private {
            wait_briefly_until_other_threads_sleep()?;
            // SAFETY: these are whole pages, mapped readable and writable a moment ago. All other threads are
            // asleep, and would have to unmap memory that is being registered. This thread does not write to
            // the pages (just checked).
            unsafe { replace_pages(part, PageSource::Shared(file.fd.as_fd())) }?;
            separate_first_page(part);
        }
        Ok(file)
    }

    /// Makes pages in the range `pages` private again, unless another shared region covers them.
    fn unshare(&mut self, file: &SharedFile, pages: &Range<usize>) -> io::Result<()> {
        let free = self.shared_coverage.uncovered(pages);
        if free.is_empty() {
            return Ok(());
        }
        let areas = self.mappings_of_process()?;
        for range in free {
            let mut is_still_mapped = false;
            for (part, area) in mapped_parts_of_file(&areas, file, &range) {
                if area.is_readable && area.is_writable && !overlaps_used_stack(&part) {
                    // SAFETY: as in `share`; the region on these pages has just been deregistered.
                    unsafe { replace_pages(&part, PageSource::Private) }?;
                } else {
                    is_still_mapped = true;
                }
            }
            if !is_still_mapped {
                let (from, len) = (range.start as u64, range.len() as u64);
                let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(&file.fd, punch, from, len)?;
            }
        }
        Ok(())
    }
}

impl ProcessMapping {
    /// Returns true if the area maps the file's pages for these addresses.
    fn maps_shared_file(&self, file: &SharedFile) -> bool {
        self.inode == file.inode && self.file_offset == self.start as u64 && self.is_readable
    }

    /// Returns true if the area, which maps the file of shared pages, is no longer at the address of its pages.
    fn has_moved(&self) -> bool {
        self.file_offset != self.start as u64
    }

    /// Returns true for anonymous memory, as `malloc` and `mmap` return it. A main thread's stack is
    /// excluded, because it grows.
    fn is_private_memory(&self) -> bool {
        self.is_private
            && self.inode == 0
            && self.is_readable
            && self.is_writable
            && !self.is_special_purpose
    }
}

/// Returns the part of `range` in each of the areas; unmapped parts are left out.
fn parts_by_mapping<'a>(
    areas: &'a [ProcessMapping],
    range: &Range<usize>,
) -> impl Iterator<Item = (Range<usize>, &'a ProcessMapping)> {
    let range = range.clone();
    areas.iter().filter_map(move |area| {
        let part = area.start.max(range.start)..area.end.min(range.end);
        (part.start < part.end).then_some((part, area))
    })
}

/// Returns the mapped parts of the file at the offsets `range`, each with its area. The program may have moved them.
fn mapped_parts_of_file<'a>(
    areas: &'a [ProcessMapping],
    file: &SharedFile,
    range: &Range<usize>,
) -> impl Iterator<Item = (Range<usize>, &'a ProcessMapping)> {
    let (range, inode) = (range.clone(), file.inode);
    let of_file = areas.iter().filter(move |area| area.inode == inode);
    of_file.filter_map(move |area| {
        let offset = usize::try_from(area.file_offset).ok()?;
        let end = offset.checked_add(area.end.checked_sub(area.start)?)?;
        let part = offset.max(range.start)..end.min(range.end);
        (part.start < part.end).then(|| {
            let at = |file_offset| area.start + (file_offset - offset);
            (at(part.start)..at(part.end), area)
        })
    })
}

/// Makes the first page of `range`, which has just been shared, a mapping of its own.
fn separate_first_page(range: &Range<usize>) {
    let first: *mut c_void = std::ptr::with_exposed_provenance_mut(range.start);
    // SAFETY: the advice is about reading ahead, which pages in memory do not need. The kernel does not merge
    // mappings of different advice.
    let advised = unsafe { madvise(first, PAGE_BYTES, Advice::Random) };
    if let Err(e) = advised {
        tracing::debug!("{range:#x?} stays one mapping: {e}");
    }
}

/// Returns true if `range` overlaps the part of this thread's stack that sharing is going to use.
fn overlaps_used_stack(range: &Range<usize>) -> bool {
    let here = 0u8;
    let stack = std::ptr::from_ref(&here).addr();
    // The functions called from here on need less than 64 KiB.
    let used = stack - (64 << 10)..stack + PAGE_BYTES;
    range.start < used.end && used.start < range.end
}

/// Waits briefly until all threads of this process sleep, except this one and the engine.
fn wait_briefly_until_other_threads_sleep() -> io::Result<()> {
    const MAX_SLEEP_CHECKS: u32 = 20;
    for _ in 0..MAX_SLEEP_CHECKS {
        if are_other_threads_asleep()? {
            return Ok(());
        }
        cancellation::sleep(Duration::from_micros(50));
    }
    Err(sharing_refused_error("other threads are running"))
}

fn are_other_threads_asleep() -> io::Result<bool> {
    let me = rustix::thread::gettid()
        .as_raw_nonzero()
        .get()
        .cast_unsigned();
    let engine = ENGINE_THREAD_ID.load(Ordering::Relaxed);
    for task in std::fs::read_dir("/proc/self/task")? {
        let name = task?.file_name();
        let Some(tid) = name.to_str().and_then(|n| n.parse::<u32>().ok()) else {
            continue;
        };
        if tid == me || tid == engine {
            continue;
        }
        let Ok(stat) = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")) else {
            // The thread has ended.
            continue;
        };
        // "2 (name) S …": a thread's name may contain any characters, even parentheses.
        let state = stat
            .rsplit_once(')')
            .and_then(|(_, rest)| rest.trim_start().chars().next());
        if !matches!(state, Some('S' | 'Z' | 'X')) {
            return Ok(false);
        }
    }
    Ok(true)
}
