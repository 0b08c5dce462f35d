//! The table of the process's descriptors.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

use crate::conn::Conn;
use crate::epoll::Epoll;
use crate::nic::{lock, try_lock};

const CHUNK_LEN: usize = 1024;
const MAX_CHUNKS: usize = 1024;

/// For each descriptor: 0 for neither, an even number for a connection, an odd number for an epoll instance.
static OBJECT_NUMBER_BY_FD: [OnceLock<Box<[AtomicU32; CHUNK_LEN]>>; MAX_CHUNKS] =
    [const { OnceLock::new() }; MAX_CHUNKS];
static CONNS: Pool<Conn> = Pool::new();
static EPOLLS: Pool<Epoll> = Pool::new();

/// A pool of objects that are never freed, only reused. A thread that looks up a descriptor while it is being closed
/// still finds an object.
struct Pool<T> {
    chunks: [OnceLock<Box<[T]>>; MAX_CHUNKS],
    free_indices_and_next: Mutex<(Vec<u32>, u32)>,
}

impl<T: Default> Pool<T> {
    const fn new() -> Self {
        Self {
            chunks: [const { OnceLock::new() }; MAX_CHUNKS],
            free_indices_and_next: Mutex::new((Vec::new(), 0)),
        }
    }

    fn get(&self, index: u32) -> Option<&T> {
        let index = index as usize;
        self.chunks
            .get(index / CHUNK_LEN)?
            .get()?
            .get(index % CHUNK_LEN)
    }

    fn allocate(&self) -> Option<u32> {
        let mut free = lock(&self.free_indices_and_next);
        if let Some(index) = free.0.pop() {
            return Some(index);
        }
        let index = free.1;
        let chunk = self.chunks.get(index as usize / CHUNK_LEN)?;
        chunk.get_or_init(|| (0..CHUNK_LEN).map(|_| T::default()).collect());
        free.1 += 1;
        Some(index)
    }

    fn free(&self, index: u32) {
        lock(&self.free_indices_and_next).0.push(index);
    }
}

/// The locks of the pools.
pub(crate) type PoolGuards = [MutexGuard<'static, (Vec<u32>, u32)>; 2];

/// Takes the locks of the pools, if they are free.
pub(crate) fn try_lock_pools() -> Option<PoolGuards> {
    Some([
        try_lock(&CONNS.free_indices_and_next)?,
        try_lock(&EPOLLS.free_indices_and_next)?,
    ])
}

/// The kind of a descriptor, with its object.
#[derive(Clone, Copy)]
pub(crate) enum DescriptorEntry {
    Conn(&'static Conn, u32),
    Epoll(&'static Epoll, u32),
}

fn entry_word(fd: i32) -> Option<&'static AtomicU32> {
    let fd = usize::try_from(fd).ok()?;
    OBJECT_NUMBER_BY_FD
        .get(fd / CHUNK_LEN)?
        .get()?
        .get(fd % CHUNK_LEN)
}

fn entry_word_or_create(fd: i32) -> Option<&'static AtomicU32> {
    let fd = usize::try_from(fd).ok()?;
    let chunk = OBJECT_NUMBER_BY_FD.get(fd / CHUNK_LEN)?;
    chunk
        .get_or_init(|| Box::new([const { AtomicU32::new(0) }; CHUNK_LEN]))
        .get(fd % CHUNK_LEN)
}

fn decode_entry(value: u32) -> Option<DescriptorEntry> {
    let index = (value >> 1).checked_sub(1)?;
    if value & 1 == 0 {
        CONNS
            .get(index)
            .map(|conn| DescriptorEntry::Conn(conn, index))
    } else {
        EPOLLS
            .get(index)
            .map(|epoll| DescriptorEntry::Epoll(epoll, index))
    }
}

/// Returns the connection or epoll instance of a descriptor; `None` for other descriptors.
pub(crate) fn find_entry(fd: i32) -> Option<DescriptorEntry> {
    decode_entry(entry_word(fd)?.load(Ordering::Acquire))
}

/// Returns the connection of a descriptor.
#[inline]
pub(crate) fn find_conn(fd: i32) -> Option<&'static Conn> {
    match find_entry(fd)? {
        DescriptorEntry::Conn(conn, _) => Some(conn),
        DescriptorEntry::Epoll(..) => None,
    }
}

/// Returns the epoll instance of a descriptor.
pub(crate) fn find_epoll(fd: i32) -> Option<&'static Epoll> {
    match find_entry(fd)? {
        DescriptorEntry::Epoll(epoll, _) => Some(epoll),
        DescriptorEntry::Conn(..) => None,
    }
}

/// Registers a descriptor as a connection.
pub(crate) fn add_conn(fd: i32) -> Option<&'static Conn> {
    remove_stale_entry(fd);
    let (slot, index) = (entry_word_or_create(fd)?, CONNS.allocate()?);
    let conn = CONNS.get(index)?;
    conn.reset();
    slot.store((index + 1) << 1, Ordering::Release);
    Some(conn)
}

/// Gives the descriptors of `old`, of which `fd` is one, a new object. Nobody uses the old one any more.
pub(crate) fn renew_conn(fd: i32, old: &'static Conn) -> Option<&'static Conn> {
    let old_value = entry_word(fd)?.load(Ordering::Acquire);
    let index = CONNS.allocate()?;
    let conn = CONNS.get(index)?;
    conn.reset();
    let fds = fds_with_entry(0, u32::MAX).filter_map(entry_word);
    let of_old = fds.filter(|slot| slot.load(Ordering::Relaxed) == old_value);
    let refs = of_old.map(|slot| slot.store((index + 1) << 1, Ordering::Release));
    let refs = u32::try_from(refs.count()).unwrap_or(1);
    conn.descriptor_refs().store(refs, Ordering::Relaxed);
    old.descriptor_refs().store(0, Ordering::Relaxed);
    Some(conn)
}

/// Registers a descriptor as an epoll instance.
pub(crate) fn add_epoll(fd: i32) -> Option<()> {
    remove_stale_entry(fd);
    let (slot, index) = (entry_word_or_create(fd)?, EPOLLS.allocate()?);
    EPOLLS.get(index)?.reset();
    slot.store((index + 1) << 1 | 1, Ordering::Release);
    Some(())
}

/// Makes `to` an entry for the same object as `from`.
pub(crate) fn duplicate_entry(from: i32, to: i32) {
    if from == to {
        return;
    }
    remove_stale_entry(to);
    let Some(found) = find_entry(from) else {
        return;
    };
    let Some(slot) = entry_word_or_create(to) else {
        return;
    };
    let (refs, value) = match found {
        DescriptorEntry::Conn(conn, index) => (conn.descriptor_refs(), (index + 1) << 1),
        DescriptorEntry::Epoll(epoll, index) => (epoll.descriptor_refs(), (index + 1) << 1 | 1),
    };
    refs.fetch_add(1, Ordering::Relaxed);
    slot.store(value, Ordering::Release);
}

/// Removes the entry of a descriptor that is about to be closed.
pub(crate) fn remove_entry(fd: i32) {
    remove_entry_of(fd, fd);
}

/// Removes the entry of a descriptor that the program has closed past this library. The number is that of a new
/// descriptor, which the release of the old connection must not touch.
fn remove_stale_entry(fd: i32) {
    remove_entry_of(fd, NO_DESCRIPTOR);
}

/// A number that no descriptor has.
const NO_DESCRIPTOR: i32 = -1;

/// Removes the entry of a number. `open_fd` is the descriptor of the object, if it is still open.
fn remove_entry_of(fd: i32, open_fd: i32) {
    let Some(slot) = entry_word(fd) else { return };
    if slot.load(Ordering::Relaxed) == 0 {
        return;
    }
    match decode_entry(slot.swap(0, Ordering::AcqRel)) {
        Some(DescriptorEntry::Conn(conn, index))
            if conn.descriptor_refs().fetch_sub(1, Ordering::AcqRel) == 1 =>
        {
            conn.release(open_fd);
            CONNS.free(index);
        }
        Some(DescriptorEntry::Epoll(epoll, index))
            if epoll.descriptor_refs().fetch_sub(1, Ordering::AcqRel) == 1 =>
        {
            epoll.release();
            EPOLLS.free(index);
        }
        _ => {}
    }
}

/// Returns every descriptor that is a connection.
pub(crate) fn all_conns() -> impl Iterator<Item = (i32, &'static Conn)> {
    fds_with_entry(0, u32::MAX).filter_map(|fd| Some((fd, find_conn(fd)?)))
}

/// Returns every epoll instance of a descriptor.
pub(crate) fn all_epolls() -> impl Iterator<Item = &'static Epoll> {
    fds_with_entry(0, u32::MAX).filter_map(find_epoll)
}

/// Returns the descriptors from `first` to `last` that have an entry.
pub(crate) fn fds_with_entry(first: u32, last: u32) -> impl Iterator<Item = i32> {
    let (first, last) = (first as usize, last as usize);
    OBJECT_NUMBER_BY_FD
        .iter()
        .enumerate()
        .filter_map(|(i, chunk)| Some((i, chunk.get()?)))
        .flat_map(|(i, chunk)| (0..).map(move |j| i * CHUNK_LEN + j).zip(chunk.iter()))
        .filter(move |(fd, slot)| (first..=last).contains(fd) && slot.load(Ordering::Relaxed) != 0)
        .filter_map(|(fd, _)| i32::try_from(fd).ok())
}
