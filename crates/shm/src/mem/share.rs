//! Gives registered memory that is private to this process a backing that peers can map.
//!
//! Ordinary programs register what `malloc` or `mmap` gave them. Peers can reach that by system call only, 500 times
//! slower for small messages than through a mapping. So the pages of a region become those of a memfd when the region
//! is registered, and private ones again when it is deregistered. The file is as large as the address space and holds
//! each page at the offset that is its address, so regions that share pages share them here as well.
//!
//! The program must not be able to tell. What stands in the way of that, and what is done about it:
//!
//! - Threads that write meanwhile wait (`replace`). A system call that writes there in another thread would fail, so
//!   all other threads must be asleep when pages are shared.
//! - Peers write to private regions by system call, and the engine on behalf of peers: pages on which such a region
//!   lies stay private.
//! - A forked child must not share pages with its parent: see `fork`.
//! - `madvise(MADV_DONTNEED)` leaves the contents of shared pages, where allocators expect zeros: nothing is shared
//!   unless `malloc` is that of the GNU C library, which expects none.

use std::ffi::{CStr, c_void};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::fs::{FallocateFlags, fallocate};

use super::areas::Area;
use super::fork;
use super::page::PAGE;
use super::replace::{Pages, replace};
use super::sharing::{SharedFile, Sharing, sharing};

/// Larger regions stay as they are: sharing takes 0.5 ms a MiB, and large copies gain less.
const MOST: usize = 64 << 20;

/// So many regions at most are shared at a time: each may split a mapping of this process in three, and a process may
/// have 65,530 (`vm.max_map_count`).
const MOST_REGIONS: usize = 8192;

/// The engine's thread, by its id; what it writes is known.
static ENGINE: AtomicU32 = AtomicU32::new(0);

/// Says that the calling thread is the engine.
pub fn this_thread_is_the_engine() {
    let tid = rustix::thread::gettid().as_raw_nonzero().get();
    ENGINE.store(tid.cast_unsigned(), Ordering::Relaxed);
}

/// A region of private memory that is registered; dropped when that is over.
pub struct PrivateRegion {
    pages: Range<usize>,
    shared: Option<SharedFile>,
    pid: u32,
}

impl PrivateRegion {
    /// The file that holds its pages, each at the offset that is its address: descriptor and inode.
    pub fn file(&self) -> Option<(u32, u64)> {
        let file = self.shared.as_ref()?;
        Some((file.fd.as_raw_fd().cast_unsigned(), file.inode))
    }
}

impl Drop for PrivateRegion {
    fn drop(&mut self) {
        let mut sharing = sharing();
        if sharing.pid != self.pid {
            return;
        }
        match &self.shared {
            None => sharing.private.remove(&self.pages),
            Some(file) => {
                sharing.regions -= 1;
                sharing.shared.remove(&self.pages);
                if let Err(e) = sharing.unshare(file, &self.pages) {
                    // They work as well as before; a later region finds them shared.
                    tracing::debug!("the pages at {:#x?} stay shared: {e}", self.pages);
                }
            }
        }
    }
}

/// Does this process allow it? Looked up once.
fn allowed() -> bool {
    static ALLOWED: OnceLock<bool> = OnceLock::new();
    *ALLOWED.get_or_init(|| {
        let kept =
            std::env::var_os("VERBATIM_KEEP_PRIVATE").is_some_and(|v| !v.is_empty() && v != "0");
        !kept && malloc_is_glibc() && fork::handle()
    })
}

/// Is the allocator the C library's own, and not one that was linked or preloaded?
///
/// An allocator that replaces the C library's defines all of the three functions that are asked for here.
fn malloc_is_glibc() -> bool {
    let found = [c"malloc", c"calloc", c"realloc"].map(definition);
    found.contains(&Definition::Glibc) && !found.contains(&Definition::Other)
}

/// The object that defines a function of the allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Definition {
    Glibc,
    Other,
    /// The lookup ended at an entry of a procedure linkage table. A program that is not position-independent and
    /// takes a function's address, such as Debian's python3, has the function's address there.
    Unknown,
}

/// Asks `dladdr1` for the entry of the symbol table, as `dlfcn.h` of the GNU C library has it.
const RTLD_DL_SYMENT: libc::c_int = 1;

/// The object that defines the function `name` for this process.
fn definition(name: &CStr) -> Definition {
    let mut info: libc::Dl_info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    let mut entry: *mut c_void = std::ptr::null_mut();
    // SAFETY: `dlsym` looks `name` up by the loader's default search. `dladdr1` fills `info`, and `entry` with the
    // address of the entry of a symbol table.
    let found = unsafe {
        let function = libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr());
        !function.is_null()
            && libc::dladdr1(function, &raw mut info, &raw mut entry, RTLD_DL_SYMENT) != 0
    };
    if !found || info.dli_fname.is_null() {
        return Definition::Other;
    }
    // SAFETY: the loader's entries and names stay as long as the object is loaded; nothing unloads the C library or
    // the program, and of another object neither is used after this function.
    let (undefined, object) = unsafe {
        let entry = entry.cast::<libc::Elf64_Sym>();
        (
            entry.as_ref().is_some_and(|entry| entry.st_shndx == 0),
            CStr::from_ptr(info.dli_fname),
        )
    };
    match object.to_bytes().rsplit(|&b| b == b'/').next() {
        _ if undefined => Definition::Unknown,
        Some(b"libc.so.6") => Definition::Glibc,
        _ => Definition::Other,
    }
}

fn refused(why: &'static str) -> io::Error {
    io::Error::other(why)
}

impl Sharing {
    /// Registers `len` bytes of private memory at `addr`, and shares their pages where `wanted` and where that is
    /// safe. All of them are mapped in `areas`, which were looked up since nobody else shares pages.
    pub(super) fn register(
        &mut self,
        areas: &[Area],
        (addr, len): (usize, usize),
        wanted: bool,
    ) -> PrivateRegion {
        let pages = addr & !(PAGE - 1)..(addr + len).next_multiple_of(PAGE);
        let shared = if wanted && len <= MOST && self.regions < MOST_REGIONS && allowed() {
            self.share(areas, &pages)
                .inspect_err(|e| tracing::debug!("the pages at {pages:#x?} stay private: {e}"))
                .ok()
        } else {
            None
        };
        if shared.is_some() {
            self.regions += 1;
            self.shared.add(&pages);
        } else {
            self.private.add(&pages);
        }
        PrivateRegion {
            pages,
            shared,
            pid: self.pid,
        }
    }

    /// Makes `pages` those of the file, as far as they are not.
    fn share(&mut self, areas: &[Area], pages: &Range<usize>) -> io::Result<SharedFile> {
        let file = self.file()?;
        let mut private: Vec<Range<usize>> = Vec::new();
        for (part, area) in parts(areas, pages) {
            if area.is_of(&file) {
                continue;
            }
            if !area.is_private_memory() {
                return Err(refused("they are not private memory"));
            }
            match private.last_mut().filter(|last| last.end == part.start) {
                Some(last) => last.end = part.end,
                None => private.push(part),
            }
        }
        for part in &private {
            if self.private.touches(part) {
                return Err(refused(
                    "a region lies there that peers reach by system call",
                ));
            }
            if holds_what_sharing_writes(part) {
                return Err(refused("it is this thread's stack"));
            }
        }
        for part in &private {
            wait_for_sleeping_threads()?;
            // SAFETY: whole pages, mapped readable and writable a moment ago; other threads, all asleep, would
            // have to unmap memory that is being registered; not what this thread writes to (just looked at).
            unsafe { replace(part, Pages::Shared(file.fd.as_fd())) }?;
        }
        Ok(file)
    }

    /// Makes those of `pages` private on which no region lies any more.
    fn unshare(&mut self, file: &SharedFile, pages: &Range<usize>) -> io::Result<()> {
        let free = self.shared.uncovered(pages);
        if free.is_empty() {
            return Ok(());
        }
        let areas = self.areas()?;
        for range in free {
            for (part, area) in parts(&areas, &range) {
                if area.is_of(file) && area.writable && !holds_what_sharing_writes(&part) {
                    // SAFETY: as in `share`; the region that lay here has just been deregistered.
                    unsafe { replace(&part, Pages::Private) }?;
                }
            }
            let (from, len) = (range.start as u64, range.len() as u64);
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&file.fd, punch, from, len)?;
        }
        Ok(())
    }
}

impl Area {
    /// Does it map the pages of the file that belong at these addresses?
    fn is_of(&self, file: &SharedFile) -> bool {
        self.inode == file.inode && self.offset == self.start as u64 && self.readable
    }

    /// Anonymous memory, as `malloc` and `mmap` give it; a main thread's stack grows downwards and is none.
    fn is_private_memory(&self) -> bool {
        self.private && self.inode == 0 && self.readable && self.writable && !self.special
    }
}

/// The parts of `range` in each of the areas. What is not mapped is left out.
fn parts<'a>(
    areas: &'a [Area],
    range: &Range<usize>,
) -> impl Iterator<Item = (Range<usize>, &'a Area)> {
    let range = range.clone();
    areas.iter().filter_map(move |area| {
        let part = area.start.max(range.start)..area.end.min(range.end);
        (part.start < part.end).then_some((part, area))
    })
}

/// Does this thread's stack lie there, as far as it is going to be used now?
fn holds_what_sharing_writes(range: &Range<usize>) -> bool {
    let here = 0u8;
    let stack = std::ptr::from_ref(&here).addr();
    // What is called from here on needs less than 64 KiB.
    let used = stack - (64 << 10)..stack + PAGE;
    range.start < used.end && used.start < range.end
}

/// Waits a moment for all threads of this process but this one and the engine to sleep.
fn wait_for_sleeping_threads() -> io::Result<()> {
    const TIMES: u32 = 20;
    for _ in 0..TIMES {
        if others_sleep()? {
            return Ok(());
        }
        cancellation::sleep(Duration::from_micros(50));
    }
    Err(refused("other threads are running"))
}

fn others_sleep() -> io::Result<bool> {
    let me = rustix::thread::gettid()
        .as_raw_nonzero()
        .get()
        .cast_unsigned();
    let engine = ENGINE.load(Ordering::Relaxed);
    for task in std::fs::read_dir("/proc/self/task")? {
        let name = task?.file_name();
        let Some(tid) = name.to_str().and_then(|n| n.parse::<u32>().ok()) else {
            continue;
        };
        if tid == me || tid == engine {
            continue;
        }
        let Ok(stat) = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")) else {
            // It has ended.
            continue;
        };
        // "2 (name) S …": a name may hold anything, also parentheses.
        let state = stat
            .rsplit_once(')')
            .and_then(|(_, rest)| rest.trim_start().chars().next());
        if !matches!(state, Some('S' | 'Z' | 'X')) {
            return Ok(false);
        }
    }
    Ok(true)
}
