//! Memory that the NIC reads and writes: allocation that peers can map, and every copy.
//!
//! Registered memory changes under our eyes: its owner, peers and this NIC write to it at any time. It is
//! therefore only reached through raw pointers here, never through a reference.

mod areas;
mod copy;
mod coverage;
mod fork;
mod guard;
mod replace;
mod share;
mod word;

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{Advice, madvise};

use nic_core::rights::{self, Owner, Permitted};

use crate::fabric::Peer;
use crate::fabric::layout::*;
use crate::fabric::segment::Mapping;
use crate::shortage::shortage;

#[cfg(any(test, fuzzing))]
pub use areas::fuzz;
use areas::{Area, area_of, areas};
pub use copy::copy;
use share::PrivateRegion;
pub use share::this_thread_is_the_engine;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

const HUGE_PAGE: usize = 2 << 20;
const PAGE: usize = 4096;

/// A backing that peers can map: a sealed memfd of this process.
#[derive(Clone)]
struct Backing {
    len: usize,
    fd: Arc<OwnedFd>,
    inode: u64,
}

/// The shareable memory of this process, by address.
static SHARED: Mutex<BTreeMap<usize, Backing>> = Mutex::new(BTreeMap::new());

/// Zeroed memory that other processes of the fabric can map once it is registered: one-sided verbs on it are
/// plain copies instead of system calls. In huge pages from 1 MiB on, where the system has them.
///
/// It is given back when dropped; deregister it first.
#[derive(Debug)]
pub struct SharedMemory {
    ptr: NonNull<u8>,
    len: usize,
    mapped: usize,
}

// SAFETY: a range of addresses that this value owns; it hands out raw pointers only.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// First byte; page-aligned.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// Bytes asked for; at least 1.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: there is no empty shared memory.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        lock(&SHARED).remove(&self.ptr.addr().get());
        // SAFETY: the range came from `Mapping::new` in `alloc_shared` and belongs to this value alone.
        let _ = unsafe { rustix::mm::munmap(self.ptr.as_ptr().cast(), self.mapped) };
    }
}

/// The pages that memory is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PageSize {
    /// The system's usual ones.
    Small,
    /// Huge ones of 2 MiB, which an administrator has reserved (`vm.nr_hugepages`).
    Huge,
}

/// Allocates [`SharedMemory`], in huge pages where it is long and the system gives some unasked.
///
/// # Errors
/// `InvalidInput` for a length of 0 or beyond the address space; what the system says where it has no more
/// memory or file descriptors.
pub fn alloc_shared(len: usize) -> io::Result<SharedMemory> {
    alloc(len, None)
}

/// Allocates [`SharedMemory`] in pages of one kind.
///
/// # Errors
/// As [`alloc_shared`]; also when there are not so many huge pages.
pub fn alloc_shared_in(len: usize, pages: PageSize) -> io::Result<SharedMemory> {
    alloc(len, Some(pages))
}

fn alloc(len: usize, pages: Option<PageSize>) -> io::Result<SharedMemory> {
    if len == 0 || len > 1 << 46 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let huge = match pages {
        None => len >= HUGE_PAGE / 2,
        Some(pages) => pages == PageSize::Huge,
    };
    let mapped = len.next_multiple_of(if huge { HUGE_PAGE } else { PAGE });
    let mut flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    if pages == Some(PageSize::Huge) {
        flags |= MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    }
    let fd = memfd_create("verbatim", flags)?;
    ftruncate(&fd, mapped as u64)?;
    // Sealed, so that a peer that mapped it can never be sent a SIGBUS.
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)?;
    let inode = File::from(fd.try_clone()?).metadata()?.ino();
    let mapping = Mapping::new(&fd, mapped)?;
    let ptr = mapping.as_ptr();
    let advice = match pages {
        None if huge => Some(Advice::LinuxHugepage),
        Some(PageSize::Small) => Some(Advice::LinuxNoHugepage),
        _ => None,
    };
    if let Some(advice) = advice {
        // SAFETY: the range was just mapped. Where there are no huge pages, small ones do.
        let _ = unsafe { madvise(ptr.cast(), mapped, advice) };
    }
    // Populate now: a shortage is an error here instead of a SIGBUS later.
    // SAFETY: the range was just mapped.
    match unsafe { madvise(ptr.cast(), mapped, Advice::LinuxPopulateWrite) } {
        // Kernels before 5.14 do not know it.
        Ok(()) | Err(rustix::io::Errno::INVAL) => {}
        Err(_) => return Err(io::ErrorKind::OutOfMemory.into()),
    }
    SharedMemory::enter(mapping, fd, inode, len)
}

impl SharedMemory {
    /// Takes a mapping of the whole file `fd`, so that registration finds it; `len` bytes of it were asked for.
    fn enter(mapping: Mapping, fd: OwnedFd, inode: u64, len: usize) -> io::Result<Self> {
        let ptr = NonNull::new(mapping.as_ptr()).ok_or(io::ErrorKind::OutOfMemory)?;
        let mapped = mapping.len();
        std::mem::forget(mapping);
        let backing = Backing {
            len: mapped,
            fd: Arc::new(fd),
            inode,
        };
        lock(&SHARED).insert(ptr.addr().get(), backing);
        Ok(Self { ptr, len, mapped })
    }

    /// What other processes need to [map](Self::of_peer) it: descriptor and inode of its file.
    pub fn file(&self) -> Option<(u32, u64)> {
        let shared = lock(&SHARED);
        let backing = shared.get(&self.ptr.addr().get())?;
        Some((backing.fd.as_raw_fd().cast_unsigned(), backing.inode))
    }

    /// Maps `len` bytes of shared memory that `peer` has; they stay when it gives them up.
    pub fn of_peer(peer: &Peer, (fd, inode): (u32, u64), len: usize) -> io::Result<SharedMemory> {
        let (file, mapped) = open_memfd(peer, fd, inode)?;
        if len == 0 || len > mapped {
            return Err(io::Error::other("the peer's memory is not what it says"));
        }
        let mapping = Mapping::new(&file, mapped)?;
        Self::enter(mapping, file.into(), inode, len)
    }
}

/// What lies behind a range of this process's memory, for [`MrShared`].
pub struct RangeBacking {
    /// One of `BACKING_*`.
    pub kind: u32,
    /// File descriptor, or the id of the SysV segment.
    pub handle: u32,
    /// Inode of the file.
    pub inode: u64,
    /// Where in the backing the range begins.
    pub offset: u64,
    /// Keeps the backing as it is.
    pub hold: Hold,
}

/// What keeps memory reachable for peers while it is registered.
pub enum Hold {
    /// Nothing to keep.
    Nothing,
    /// An open descriptor.
    Descriptor(#[allow(dead_code, reason = "keeps it open")] Arc<OwnedFd>),
    /// Private pages that are shared while the region is registered.
    Private(#[allow(dead_code, reason = "keeps its pages shared")] PrivateRegion),
}

impl RangeBacking {
    /// Of a region without memory.
    pub fn null() -> Self {
        Self {
            kind: BACKING_NULL,
            ..Self::private()
        }
    }

    /// Of memory that peers reach by system call, wherever it lies.
    pub fn private() -> Self {
        Self {
            kind: BACKING_PRIVATE,
            handle: 0,
            inode: 0,
            offset: 0,
            hold: Hold::Nothing,
        }
    }
}

/// Looks up what lies behind `len` bytes at `addr`, and checks that they are mapped (and writable, where
/// `write` says so). Gives private memory a backing that peers can map where `share` says so and it is safe.
///
/// # Errors
/// `EFAULT` as `ibv_reg_mr(3)` returns it; `EMFILE`, `ENFILE` and `ENOMEM` where what is mapped cannot be read for want of
/// a descriptor or of memory.
pub fn backing_of(addr: usize, len: usize, write: bool, share: bool) -> Result<RangeBacking, i32> {
    let end = addr.checked_add(len).ok_or(libc::EFAULT)?;
    {
        let shared = lock(&SHARED);
        if let Some((&start, b)) = shared.range(..=addr).next_back()
            && end <= start + b.len
        {
            return Ok(RangeBacking {
                kind: BACKING_MEMFD,
                handle: b.fd.as_raw_fd().cast_unsigned(),
                inode: b.inode,
                offset: (addr - start) as u64,
                hold: Hold::Descriptor(Arc::clone(&b.fd)),
            });
        }
    }
    // Kept from here on: what is shared does not change.
    let mut sharing = share::sharing();
    let areas = sharing
        .areas()
        .map_err(|e| shortage(&e).unwrap_or(libc::EFAULT))?;
    let first = area_of(&areas, addr..end, write)?;
    if let Some(id) = first.sysv.filter(|_| end <= first.end) {
        return Ok(RangeBacking {
            kind: BACKING_SYSV,
            handle: u32::try_from(id).map_err(|_| libc::EFAULT)?,
            inode: id,
            offset: first.offset + (addr - first.start) as u64,
            hold: Hold::Nothing,
        });
    }
    let region = sharing.register(&areas, (addr, len), share);
    let mut backing = RangeBacking::private();
    if let Some((handle, inode)) = region.file() {
        backing = RangeBacking {
            kind: BACKING_PAGES,
            handle,
            inode,
            offset: addr as u64,
            ..backing
        };
    }
    backing.hold = Hold::Private(region);
    Ok(backing)
}

/// Fetches the pages of a range of this process's memory, as an access on demand does. False where they are not
/// mapped, or not writable.
#[cold]
pub fn populate(addr: u64, len: u64, write: bool) -> bool {
    let (Ok(addr), Ok(len)) = (usize::try_from(addr), usize::try_from(len)) else {
        return false;
    };
    let first = addr & !(PAGE - 1);
    let Some(end) = addr.checked_add(len) else {
        return false;
    };
    let advice = if write {
        Advice::LinuxPopulateWrite
    } else {
        Advice::LinuxPopulateRead
    };
    // SAFETY: fetching pages changes nothing that a program can see; a range that is not mapped is an error.
    let done = unsafe {
        madvise(
            std::ptr::with_exposed_provenance_mut(first),
            end - first,
            advice,
        )
    };
    match done {
        Ok(()) => true,
        // Linux before 5.14.
        Err(rustix::io::Errno::INVAL) => {
            areas().is_ok_and(|areas| area_of(&areas, addr..addr + len, write).is_ok())
        }
        Err(_) => false,
    }
}

/// A peer's backing, mapped here.
pub enum PeerMapping {
    /// A mapping of a memfd.
    Memfd(Mapping),
    /// Some pages of a file, from this offset on.
    Pages(Mapping, u64),
    /// An attached SysV segment.
    Sysv(SysvAttachment),
}

/// An attached SysV segment, detached when dropped.
pub struct SysvAttachment(NonNull<u8>, usize);

// SAFETY: a range of addresses; access goes through raw copies.
unsafe impl Send for SysvAttachment {}
// SAFETY: as above.
unsafe impl Sync for SysvAttachment {}

impl Drop for SysvAttachment {
    fn drop(&mut self) {
        // SAFETY: the address came from `shmat`; holders of pointers hold this value.
        unsafe { libc::shmdt(self.0.as_ptr().cast()) };
    }
}

impl PeerMapping {
    /// Where `len` bytes at `offset` of the backing lie in this process.
    fn at(&self, offset: u64, len: u64) -> Option<*mut u8> {
        let (start, mapped, first) = match self {
            Self::Memfd(m) => (m.as_ptr(), m.len(), 0),
            Self::Pages(m, first) => (m.as_ptr(), m.len(), *first),
            Self::Sysv(s) => (s.0.as_ptr(), s.1, 0),
        };
        let offset = offset.checked_sub(first)?;
        if offset.checked_add(len)? > mapped as u64 {
            return None;
        }
        // SAFETY: `offset + len` lies within the mapping (just checked).
        Some(unsafe { start.add(offset as usize) })
    }
}

/// What of a peer's memory a mapping shows.
#[derive(Clone, PartialEq, Eq, Hash)]
struct MappingKey {
    incarnation: u64,
    kind: u32,
    inode: u64,
    /// Of a file of which some pages are mapped.
    pages: Range<u64>,
}

/// So many mappings of peers' memory are kept at most; a process may have 65,530 in all (`vm.max_map_count`), and
/// needs them for its own.
const MOST_MAPPINGS: usize = 8192;

/// Mappings of peers' memory.
#[derive(Default)]
pub struct Mappings {
    maps: Mutex<HashMap<MappingKey, Arc<PeerMapping>>>,
    /// `mem_epoch` of each peer when its mappings were last looked through.
    epochs: Mutex<HashMap<u64, u64>>,
}

impl Mappings {
    /// The mapping of the backing that `mr` of `peer` names, made if need be.
    fn get(&self, peer: &Peer, mr: &MrShared) -> io::Result<Arc<PeerMapping>> {
        let kind = mr.backing.load(Ordering::Relaxed);
        let inode = mr.inode.load(Ordering::Relaxed);
        let handle = mr.handle.load(Ordering::Relaxed);
        let epoch = peer.segment.header().mem_epoch.load(Ordering::Relaxed);
        if lock(&self.epochs).insert(peer.incarnation, epoch) != Some(epoch) {
            self.drop_unused(|incarnation| incarnation == peer.incarnation);
        }
        let pages = if kind == BACKING_PAGES {
            pages_of(mr)?
        } else {
            0..0
        };
        let key = MappingKey {
            incarnation: peer.incarnation,
            kind,
            inode,
            pages: pages.clone(),
        };
        if let Some(map) = lock(&self.maps).get(&key) {
            return Ok(Arc::clone(map));
        }
        if lock(&self.maps).len() >= MOST_MAPPINGS {
            self.drop_unused(|_| true);
            if lock(&self.maps).len() >= MOST_MAPPINGS {
                return Err(io::Error::other(
                    "too much of peers' memory is mapped already",
                ));
            }
        }
        let map = Arc::new(match kind {
            BACKING_MEMFD | BACKING_PAGES => {
                let (file, len) = open_memfd(peer, handle, inode)?;
                if kind == BACKING_MEMFD {
                    PeerMapping::Memfd(Mapping::new(&file, len)?)
                } else if pages.end <= len as u64 {
                    let (first, len) = (pages.start, (pages.end - pages.start) as usize);
                    PeerMapping::Pages(Mapping::at(&file, first, len)?, first)
                } else {
                    return Err(io::Error::other("the peer's memory ends before its region"));
                }
            }
            BACKING_SYSV => PeerMapping::Sysv(attach(handle)?),
            _ => return Err(io::ErrorKind::Unsupported.into()),
        });
        lock(&self.maps).insert(key, Arc::clone(&map));
        Ok(map)
    }

    /// Drops the mappings of `incarnation`s that nobody is using now; a later use maps them again.
    pub fn drop_unused(&self, of: impl Fn(u64) -> bool) {
        lock(&self.maps).retain(|key, map| !of(key.incarnation) || Arc::strong_count(map) > 1);
    }
}

/// Opens a sealed memfd of a peer, which has it as that descriptor; its length.
fn open_memfd(peer: &Peer, fd: u32, inode: u64) -> io::Result<(File, usize)> {
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

/// The pages of its file on which a region lies.
fn pages_of(mr: &MrShared) -> io::Result<Range<u64>> {
    let page = PAGE as u64;
    let first = mr.offset.load(Ordering::Relaxed);
    let end = first
        .checked_add(mr.len.load(Ordering::Relaxed))
        .and_then(|end| end.checked_next_multiple_of(page))
        .ok_or(io::ErrorKind::InvalidData)?;
    Ok(first & !(page - 1)..end)
}

fn attach(id: u32) -> io::Result<SysvAttachment> {
    let id = id.cast_signed();
    // SAFETY: `shmid_ds` is plain data that the kernel fills; attaching lets the kernel choose the address.
    unsafe {
        let mut ds: libc::shmid_ds = std::mem::zeroed();
        if libc::shmctl(id, libc::IPC_STAT, &raw mut ds) != 0 {
            return Err(io::Error::last_os_error());
        }
        let ptr = libc::shmat(id, std::ptr::null(), 0);
        if ptr.addr() == usize::MAX {
            return Err(io::Error::last_os_error());
        }
        let ptr = NonNull::new(ptr.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(SysvAttachment(ptr, ds.shm_segsz))
    }
}

/// How the bytes of a memory region are reached.
#[derive(Clone)]
enum Reach {
    /// At this address of the own address space lies the region's first byte.
    Direct(
        *mut u8,
        #[allow(dead_code, reason = "keeps the mapping")] Option<Arc<PeerMapping>>,
    ),
    /// By system call, in that process.
    ProcessVm(libc::pid_t),
    /// There are none: writes are dropped, and reads give zeros.
    Null,
}

/// A memory region that can be read and written: of this process or of a peer.
#[derive(Clone)]
pub struct Region {
    /// The process that has it, where that is not the one that was asked for its key.
    pub owner: Option<Arc<Peer>>,
    /// As in the table when it was read.
    pub entry: u64,
    /// Place in the table of its process.
    pub index: usize,
    /// What the table says of it: where it is, and who may use it for what.
    pub rights: rights::Region,
    /// Peers reach it by system call only.
    pub private: bool,
    /// It is one of this process.
    pub own: bool,
    /// Where its process has its first byte.
    base: u64,
    /// Atomics are CPU atomics; where not, they are made under a lock.
    cpu_atomics: bool,
    reach: Reach,
}

// SAFETY: the raw pointer is an address that the mapping beside it (or the registration) keeps valid in
// every thread.
unsafe impl Send for Region {}

/// Bytes that are copied at once between two places of which neither can be mapped.
pub const BOUNCE: usize = 16 << 10;

/// Pieces of `len` bytes, each at most as long as such a buffer: where each starts, and how long it is.
fn pieces(len: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..len)
        .step_by(BOUNCE)
        .map(move |at| (at, BOUNCE.min(len - at)))
}

/// The bytes could not be reached: unmapped, or their process has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault;

impl Region {
    /// Makes the region `index` of `peer` accessible. The caller has pinned it as `entry`, so it stays
    /// registered.
    pub fn reach(
        maps: &Mappings,
        peer: &Peer,
        (index, entry): (usize, u64),
        mr: &MrShared,
    ) -> Result<Self, Fault> {
        let addr = mr.addr.load(Ordering::Relaxed);
        let len = mr.len.load(Ordering::Relaxed);
        let backing = mr.backing.load(Ordering::Relaxed);
        let base = mr.base.load(Ordering::Relaxed);
        let by_system_call = || {
            let pid = libc::pid_t::try_from(peer.pid).map_err(|_| Fault)?;
            Ok(Reach::ProcessVm(pid))
        };
        let reach = if backing == BACKING_NULL {
            Reach::Null
        } else if peer.is_self {
            Reach::Direct(std::ptr::with_exposed_provenance_mut(base as usize), None)
        } else if backing == BACKING_PRIVATE {
            by_system_call()?
        } else {
            match maps.get(peer, mr) {
                Ok(map) => {
                    let offset = mr.offset.load(Ordering::Relaxed);
                    let first = map.at(offset, len).ok_or(Fault)?;
                    Reach::Direct(first, Some(map))
                }
                Err(e) => {
                    // Another user's /proc, or a limit: the bytes can still be copied by system call.
                    tracing::debug!("memory of process {} cannot be mapped: {e}", peer.pid);
                    by_system_call()?
                }
            }
        };
        Ok(Self {
            owner: None,
            entry,
            index,
            rights: rights::Region {
                start: addr,
                len,
                access: mr.access.load(Ordering::Relaxed),
                owner: Owner::from_word(mr.pd.load(Ordering::Relaxed)),
            },
            private: backing == BACKING_PRIVATE,
            own: peer.is_self,
            base,
            // A region may call its bytes by other addresses than the CPU, and be aligned to others.
            cpu_atomics: backing != BACKING_PRIVATE && base.wrapping_sub(addr).is_multiple_of(8),
            reach,
        })
    }

    /// The own address of the bytes `at`, where the region is mapped.
    #[inline]
    pub fn direct(&self, at: Permitted) -> Option<*mut u8> {
        match self.reach {
            Reach::Direct(first, _) => Some(first.wrapping_add(at.offset() as usize)),
            Reach::ProcessVm(_) | Reach::Null => None,
        }
    }

    /// Is it a region without memory (`ibv_alloc_null_mr(3)`)? Asked where it is not [direct](Self::direct).
    #[cold]
    pub fn is_null(&self) -> bool {
        matches!(self.reach, Reach::Null)
    }

    /// Copies bytes from `src` to those of this region that are permitted.
    ///
    /// # Safety
    /// Nobody has a mutable reference to the as many bytes at `src`; `at` is of this region, which is pinned.
    #[inline]
    pub unsafe fn write(&self, at: Permitted, src: *const u8) -> Result<(), Fault> {
        match self.direct(at) {
            // SAFETY: contract of this function; the pin keeps peers' memory mapped, and programs may unmap their own.
            Some(dst) => unsafe { copy(dst, src, at.len() as usize)? },
            None if self.is_null() => {}
            None => self.process_vm(at, src.cast_mut(), libc::process_vm_writev)?,
        }
        Ok(())
    }

    /// Copies the bytes of this region that are permitted to `dst`.
    ///
    /// # Safety
    /// Nobody has a reference to the as many bytes at `dst`; `at` is of this region, which is pinned.
    #[inline]
    pub unsafe fn read(&self, at: Permitted, dst: *mut u8) -> Result<(), Fault> {
        match self.direct(at) {
            // SAFETY: as in `write`.
            Some(src) => unsafe { copy(dst, src, at.len() as usize)? },
            None if self.is_null() => {
                static ZEROS: [u8; BOUNCE] = [0; BOUNCE];
                for (done, n) in pieces(at.len() as usize) {
                    // SAFETY: contract of this function; there are as many zeros.
                    unsafe { copy(dst.wrapping_add(done), ZEROS.as_ptr(), n)? };
                }
            }
            None => self.process_vm(at, dst, libc::process_vm_readv)?,
        }
        Ok(())
    }

    #[cold]
    fn process_vm(&self, at: Permitted, local: *mut u8, call: ProcessVmCall) -> Result<(), Fault> {
        let Reach::ProcessVm(pid) = self.reach else {
            return Err(Fault);
        };
        let len = at.len() as usize;
        let at = self.base.wrapping_add(at.offset()) as usize;
        // The last bytes come last, as in `copy`: the kernel takes one piece after the other.
        let rest = len.saturating_sub(copy::LAST);
        let mut done = 0;
        while done < len {
            let piece = if done < rest { rest - done } else { len - done };
            let pieces = |base: *mut u8| {
                let from = base.wrapping_add(done);
                [
                    (from, piece),
                    (from.wrapping_add(piece), len - done - piece),
                ]
                .map(|(base, iov_len)| libc::iovec {
                    iov_base: base.cast(),
                    iov_len,
                })
            };
            let local = pieces(local);
            let remote = pieces(std::ptr::without_provenance_mut(at));
            // SAFETY: two iovecs each; `local` is valid for `len` bytes (contract of the callers), and the
            // kernel checks the remote addresses.
            let n = unsafe { call(pid, local.as_ptr(), 2, remote.as_ptr(), 2, 0) };
            match usize::try_from(n) {
                Ok(n) if n > 0 => done += n,
                _ => return Err(Fault),
            }
        }
        Ok(())
    }

    /// Reads the 8 bytes `at`, stores what `change` makes of them, and returns what was there, in one
    /// step that no other atomic of any NIC of this fabric divides.
    ///
    /// `at` is 8 bytes of this region, which is pinned, and their address is a multiple of 8.
    #[inline]
    pub fn atomic(&self, peer: &Peer, at: Permitted, op: AtomicOp) -> Result<u64, Fault> {
        if at.len() != 8 {
            return Err(Fault);
        }
        if self.cpu_atomics
            && let Some(ptr) = self.direct(at)
        {
            // SAFETY: within the pinned region and aligned (the caller checked both). Other accesses of the
            // same bytes race only with whole words.
            return unsafe { word::change(ptr.cast(), op) };
        }
        self.atomic_locked(peer, at, op)
    }

    /// Atomics on memory without a shared mapping: read, modify and write under a lock of the owner's
    /// segment that the address chooses.
    #[cold]
    fn atomic_locked(&self, peer: &Peer, at: Permitted, op: AtomicOp) -> Result<u64, Fault> {
        let index = (self.base.wrapping_add(at.offset()) / 8) as usize % ATOMIC_LOCKS;
        let owner = self.owner.as_deref().unwrap_or(peer);
        let lock = owner.segment.atomic_lock(index).ok_or(Fault)?;
        let _held = HeldAtomicLock::take(&lock.holder)?;
        let mut old = 0u64;
        // SAFETY: `old` and `new` are 8 bytes, and so is `at` (checked in `atomic`); the caller has pinned the region.
        unsafe {
            self.read(at, (&raw mut old).cast())?;
            let new = match op {
                AtomicOp::FetchAdd(n) => old.wrapping_add(n),
                AtomicOp::Store(new) => new,
                AtomicOp::CompareSwap { expect, swap } if old == expect => swap,
                AtomicOp::CompareSwap { .. } => return Ok(old),
            };
            self.write(at, (&raw const new).cast())?;
        }
        Ok(old)
    }
}

type ProcessVmCall = unsafe extern "C" fn(
    libc::pid_t,
    *const libc::iovec,
    libc::c_ulong,
    *const libc::iovec,
    libc::c_ulong,
    libc::c_ulong,
) -> libc::ssize_t;

/// An atomic verb.
#[derive(Clone, Copy, Debug)]
pub enum AtomicOp {
    /// Add to the word.
    FetchAdd(u64),
    /// Swap the word if it is as expected.
    CompareSwap {
        /// The word must have this value.
        expect: u64,
        /// What is stored then.
        swap: u64,
    },
    /// Store the word.
    Store(u64),
}

/// A lock whose holder may die: it holds the holder's pid, and a waiter looks whether that one still runs.
struct HeldAtomicLock<'a>(&'a AtomicU64);

impl<'a> HeldAtomicLock<'a> {
    fn take(word: &'a AtomicU64) -> Result<Self, Fault> {
        let me = u64::from(std::process::id());
        for spins in 0u64.. {
            match word.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Ok(Self(word)),
                Err(holder) if spins % 1024 == 1023 => {
                    // A holder is in there for microseconds. One that has died (or garbage) is replaced.
                    let alive =
                        holder == me || std::path::Path::new(&format!("/proc/{holder}")).exists();
                    if !alive
                        && word
                            .compare_exchange(holder, me, Ordering::Acquire, Ordering::Relaxed)
                            .is_ok()
                    {
                        return Ok(Self(word));
                    }
                    std::thread::yield_now();
                }
                Err(_) => std::hint::spin_loop(),
            }
        }
        Err(Fault)
    }
}

impl Drop for HeldAtomicLock<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

/// Lets accesses to what a program has unmapped be errors.
pub fn survive_faults() {
    guard::install();
}

/// May this memory of the own process be read? To be asked when a copy has failed: it takes a system call for each page.
#[cold]
pub fn is_readable(at: *const u8, len: usize) -> bool {
    is_accessible(at.cast_mut(), len, libc::process_vm_readv)
}

/// May this memory of the own process be written? As [`is_readable`]; the first bytes of its pages are overwritten, for
/// what a copy that failed has left there is undefined.
#[cold]
pub fn is_writable(at: *mut u8, len: usize) -> bool {
    is_accessible(at, len, libc::process_vm_writev)
}

fn is_accessible(at: *mut u8, len: usize, call: ProcessVmCall) -> bool {
    let first = at.addr() % PAGE;
    let pages = (0..first + len).step_by(PAGE);
    pages.map(|page| page.saturating_sub(first)).all(|offset| {
        let mut byte = 0u8;
        let local = libc::iovec {
            iov_base: (&raw mut byte).cast(),
            iov_len: 1,
        };
        let remote = libc::iovec {
            iov_base: at.wrapping_add(offset).cast(),
            iov_len: 1,
        };
        // SAFETY: one iovec of one byte each; the local one is `byte`, and the kernel checks the other.
        let n = unsafe { call(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) };
        // Where the call is not allowed nothing is known.
        n == 1 || io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_is_found_and_private_memory_is_private() {
        let m = alloc_shared(5000).unwrap();
        let at = m.as_ptr().addr();
        let b = backing_of(at + 100, 4900, true, false).unwrap();
        assert_eq!((b.kind, b.offset), (BACKING_MEMFD, 100));
        let v = Box::new([0u8; 100]);
        assert_eq!(
            backing_of(v.as_ptr().addr(), 100, true, false)
                .unwrap()
                .kind,
            BACKING_PRIVATE
        );
    }

    #[test]
    fn unmapped_and_read_only_memory_is_refused() {
        assert_eq!(backing_of(8, 8, false, false).err(), Some(libc::EFAULT));
        assert_eq!(
            backing_of(usize::MAX, 8, false, false).err(),
            Some(libc::EFAULT)
        );
        let text = shared_memory_is_found_and_private_memory_is_private as fn() as usize;
        assert!(backing_of(text, 8, false, true).is_ok());
        assert_eq!(backing_of(text, 8, true, true).err(), Some(libc::EFAULT));
    }

    #[test]
    fn an_empty_or_absurd_allocation_is_refused() {
        assert!(alloc_shared(0).is_err());
        assert!(alloc_shared(usize::MAX).is_err());
    }

    #[test]
    fn the_lock_of_a_dead_holder_is_taken_over() {
        let word = AtomicU64::new(u64::from(u32::MAX));
        let held = HeldAtomicLock::take(&word).unwrap();
        drop(held);
        assert_eq!(word.load(Ordering::Relaxed), 0);
    }
}
