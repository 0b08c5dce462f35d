//! The page that both ends of a connection map, with the identity of each side and the state of each direction.
//!
//! The page is a file in the fabric's folder, named by the two addresses. All words are atomics; cursors count bytes
//! from the start of the connection. The data and its tail go by RDMA WRITE instead ([`crate::ring`]). Between hosts
//! each end has a page of its own ([`crate::remote_peer`]).

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::mapped_words::MappedWords;

/// Version of all that the two ends of a connection share: the page, the ring, datagrams and records. Ends of different
/// versions do not find each other, and stay on TCP.
pub(crate) const PROTOCOL_VERSION: u32 = 1;

/// Returns the folder of connections inside the fabric's folder `fabric`.
pub(crate) fn connections_folder_of(fabric: &Path) -> PathBuf {
    fabric.join(format!("tcp-v{PROTOCOL_VERSION}"))
}

/// The stages of a side.
pub(crate) mod stage {
    /// The side has found the page.
    pub(crate) const PAGE_FOUND: u64 = 1;
    /// The side's queue pair is ready to be connected.
    pub(crate) const ENDPOINT_READY: u64 = 2;
    /// The side's queue pair is connected, and the side accepts the peer's WRITEs.
    pub(crate) const READY: u64 = 3;
    /// Between hosts: the side has sent its first WRITE, so the peer may change to RDMA.
    pub(crate) const HELLO_SENT: u64 = 4;
    /// The side stays on TCP, or has closed the socket.
    pub(crate) const TCP_OR_CLOSED: u64 = 9;
}

/// The states of a direction.
pub(crate) mod state {
    /// Data goes by TCP; the direction can change to RDMA.
    pub(crate) const TCP: u64 = 0;
    /// Data goes by RDMA, after the bytes that [`DirectionWords::tcp_bytes_before_rdma`](super::DirectionWords) counts.
    pub(crate) const RDMA: u64 = 1;
    /// Data goes by TCP again, after the RDMA bytes and the wake bytes.
    pub(crate) const DEMOTED: u64 = 2;
    /// Data goes by TCP for good.
    pub(crate) const TCP_ONLY: u64 = 3;
}

/// A mapped page.
pub(crate) struct ConnectionPage {
    words: MappedWords,
    pub(crate) path: PathBuf,
}

/// The words of one side.
#[derive(Clone, Copy)]
pub(crate) struct SideWords<'p> {
    pub(crate) pid: &'p AtomicU64,
    pub(crate) process_start_time: &'p AtomicU64,
    pub(crate) socket_cookie: &'p AtomicU64,
    pub(crate) setup_stage: &'p AtomicU64,
    /// The ring: the identifier of its arena's SysV segment, and its offset there.
    pub(crate) ring_segment_id: &'p AtomicU64,
    pub(crate) ring_offset: &'p AtomicU64,
    message_words: &'p [AtomicU64],
}

/// The words of one direction, in groups that are each written by one side.
#[derive(Clone, Copy)]
pub(crate) struct DirectionWords<'p> {
    send_lock: &'p AtomicU64,
    pub(crate) state: &'p AtomicU64,
    /// Bytes sent by TCP before the first byte by RDMA.
    pub(crate) tcp_bytes_before_rdma: &'p AtomicU64,
    /// Wake bytes sent by TCP.
    pub(crate) wake_bytes_sent: &'p AtomicU64,
    /// Bytes sent by RDMA.
    pub(crate) rdma_bytes_sent: &'p AtomicU64,
    /// Nonzero if the receiver sleeps until data arrives.
    pub(crate) receiver_sleeps: &'p AtomicU64,
    /// Nonzero if the sender sleeps until the ring has room.
    pub(crate) sender_sleeps: &'p AtomicU64,
    receive_lock: &'p AtomicU64,
    /// Bytes received by RDMA, bytes received by TCP before them, and wake bytes taken.
    pub(crate) rdma_bytes_taken: &'p AtomicU64,
    pub(crate) tcp_bytes_received: &'p AtomicU64,
    pub(crate) wake_bytes_taken: &'p AtomicU64,
    /// Between hosts: bytes received by TCP and dropped after a demotion, because they had arrived by RDMA.
    pub(crate) repeated_bytes_dropped: &'p AtomicU64,
}

impl ConnectionPage {
    /// Maps the page at `path`; creates the file if it is missing and `make` is true.
    pub(crate) fn open(path: &Path, make: bool) -> io::Result<Self> {
        Ok(Self {
            words: MappedWords::open(path, make)?,
            path: path.to_owned(),
        })
    }

    /// Returns true if `path` still names this page.
    pub(crate) fn path_names_this_page(&self) -> bool {
        fs::metadata(&self.path).is_ok_and(|named| named.ino() == self.words.inode())
    }

    /// Returns the words of side 0 or 1.
    pub(crate) fn side_words(&self, side: usize) -> SideWords<'_> {
        let words = &self.words[8 + (side & 1) * 80..];
        SideWords {
            pid: &words[0],
            process_start_time: &words[1],
            socket_cookie: &words[2],
            setup_stage: &words[3],
            ring_segment_id: &words[4],
            ring_offset: &words[5],
            message_words: &words[8..80],
        }
    }

    /// Returns the words of the direction in which side 0 or 1 sends.
    pub(crate) fn direction_words(&self, sender: usize) -> DirectionWords<'_> {
        let words = &self.words[168 + (sender & 1) * 64..];
        DirectionWords {
            send_lock: &words[0],
            state: &words[1],
            tcp_bytes_before_rdma: &words[2],
            wake_bytes_sent: &words[3],
            rdma_bytes_sent: &words[4],
            receiver_sleeps: &words[16],
            sender_sleeps: &words[24],
            receive_lock: &words[32],
            rdma_bytes_taken: &words[33],
            tcp_bytes_received: &words[34],
            wake_bytes_taken: &words[35],
            repeated_bytes_dropped: &words[36],
        }
    }

    /// Returns true if bytes that side 0 or 1 has sent by RDMA were not taken, on a page of both ends.
    pub(crate) fn has_unread_bytes(&self, sender: usize) -> bool {
        let dir = self.direction_words(sender);
        let taken = dir.rdma_bytes_taken.load(Ordering::Relaxed);
        dir.rdma_bytes_sent.load(Ordering::Acquire) != taken
    }

    /// Returns the word for the reason why the connection is not on RDMA: a number of `not_rdma_reason`.
    pub(crate) fn not_rdma_reason(&self) -> &AtomicU64 {
        &self.words[1]
    }
}

impl SideWords<'_> {
    /// Writes the data for the peer, before the stage announces it. Returns false if it is too long.
    pub(crate) fn set_message_for_peer(&self, text: &[u8]) -> bool {
        let (room, _) = self.message_words.split_at(self.message_words.len());
        if text.len() > (room.len() - 1) * 8 {
            return false;
        }
        room[0].store(text.len() as u64, Ordering::Relaxed);
        for (word, bytes) in room[1..].iter().zip(text.chunks(8)) {
            let mut eight = [0; 8];
            eight[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(eight), Ordering::Relaxed);
        }
        true
    }

    /// Returns the data that the other side wrote.
    pub(crate) fn message_for_peer(&self) -> Vec<u8> {
        let words = self.message_words[1..].iter();
        let mut bytes: Vec<u8> = words
            .flat_map(|w| w.load(Ordering::Relaxed).to_ne_bytes())
            .collect();
        let len = usize::try_from(self.message_words[0].load(Ordering::Relaxed)).unwrap_or(0);
        bytes.truncate(len);
        bytes
    }

    /// Returns true if a process claimed this side and has ended.
    pub(crate) fn is_dead(&self) -> bool {
        let (pid, start) = (
            self.pid.load(Ordering::Acquire),
            self.process_start_time.load(Ordering::Acquire),
        );
        pid != 0 && start != 0 && !liveness::is_alive(pid, start)
    }
}

/// A lock in the page, which is held until drop.
pub(crate) struct PageLock<'p>(&'p AtomicU64);

impl Drop for PageLock<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

impl<'p> DirectionWords<'p> {
    /// Keeps others from sending in this direction, and from changing its state.
    #[inline]
    pub(crate) fn lock_sending(&self) -> PageLock<'p> {
        acquire_lock(self.send_lock)
    }

    /// Keeps others from receiving in this direction.
    #[inline]
    pub(crate) fn lock_receiving(&self) -> PageLock<'p> {
        acquire_lock(self.receive_lock)
    }
}

/// Returns the number of this process, cached to avoid system calls.
fn own_pid() -> u64 {
    match OWN_PID.load(Ordering::Relaxed) {
        0 => {
            let pid = u64::from(std::process::id());
            OWN_PID.store(pid, Ordering::Relaxed);
            pid
        }
        pid => pid,
    }
}

/// Forgets the parent's number; called in a forked child.
pub(crate) fn forget_cached_pid() {
    OWN_PID.store(0, Ordering::Relaxed);
}

static OWN_PID: AtomicU64 = AtomicU64::new(0);

#[inline]
fn acquire_lock(lock: &AtomicU64) -> PageLock<'_> {
    let me = own_pid();
    if lock
        .compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed)
        .is_err()
    {
        lock_contended(lock, me);
    }
    PageLock(lock)
}

/// Waits for a lock, and takes it from a holder that was killed. A live holder keeps the lock only between two system
/// calls.
#[cold]
fn lock_contended(lock: &AtomicU64, me: u64) {
    for turn in 0u64.. {
        let holder = lock.load(Ordering::Relaxed);
        let is_free = holder == 0
            || turn % 1024 == 1023 && matches!(liveness::start_time_ticks(holder), Ok(None));
        if is_free
            && lock
                .compare_exchange(holder, me, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
        {
            return;
        }
        if turn < 4096 {
            std::thread::yield_now();
        } else {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

/// Returns the file name of a connection's page: network namespace, lower and higher address, the same at both ends.
/// Between hosts each end has its own, and the name ends with the side.
pub(crate) fn page_file_name(
    own: SocketAddr,
    peer: SocketAddr,
    is_between_hosts: bool,
) -> io::Result<String> {
    let namespace = fs::metadata("/proc/self/ns/net")?.ino();
    let (low, high) = (own.min(peer), own.max(peer));
    let name = format!("c-{namespace:x}_{low}_{high}");
    Ok(if is_between_hosts {
        format!("{name}_{}", u8::from(own > peer))
    } else {
        name
    })
}
