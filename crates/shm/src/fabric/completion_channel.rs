//! Completion channels between processes: FIFOs in the fabric's folder, to which peers write
//! tokens.
//!
//! A *token* in a channel's FIFO announces an event, and names a completion queue that may have the
//! event. The program waits for the FIFO as `channel->fd`. The owner writes a token for an event
//! that the owner has caused. A peer writes a token for an event that the peer's message causes.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rustix::fs::{FileType, Mode, OFlags, fcntl_getfl, fcntl_setfl};

use super::folder::channel_fifo_path;
use super::own_pid_and_random::own_pid;
use crate::lock::lock;

/// Maximum number of completion channels of a peer that this process holds open at a time.
const MAX_OPEN_PEER_CHANNELS: usize = 1024;

/// Bytes of a token.
const TOKEN_BYTES: usize = 2;

/// A completion channel of this process.
pub struct OwnCompletionChannel {
    number: u32,
    path: PathBuf,
    /// The program's descriptor of the FIFO, which blocks unless the program changes that. It only reads: event loops
    /// that also wait for `POLLOUT` would find it ready at all times.
    program_fd: File,
    /// The library's descriptor of the same FIFO, which never blocks.
    library_fd: File,
    creator_pid: u64,
}

impl OwnCompletionChannel {
    /// Makes channel `number` of this process, whose incarnation is `incarnation` and whose pid is `pid`.
    pub(super) fn create(dir: &Path, incarnation: u64, number: u32, pid: u64) -> io::Result<Self> {
        let _hold_off = cancellation::HoldOff::new();
        let path = channel_fifo_path(dir, incarnation, number);
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, mode, 0)?;
        let opened =
            open_fifo(&path).and_then(|library| Ok((open_blocking_reader(&path)?, library)));
        let (program_fd, library_fd) = opened.inspect_err(|_| {
            let _ = fs::remove_file(&path);
        })?;
        Ok(Self {
            number,
            path,
            program_fd,
            library_fd,
            creator_pid: pid,
        })
    }

    /// Returns the number by which peers find the channel: never 0, and never reused.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns the descriptor that the program waits for.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.program_fd.as_fd()
    }

    /// Takes a token from the FIFO and returns its completion queue index, which is untrusted
    /// input. Returns `None` if the FIFO is empty, and in a forked child of the owner.
    pub fn take_token_cq_index(&self) -> Option<u16> {
        if own_pid() != self.creator_pid {
            return None;
        }
        let mut token = [0xff; TOKEN_BYTES];
        let taken = rustix::io::retry_on_intr(|| rustix::io::read(&self.library_fd, &mut token));
        // Only an incorrect writer leaves half a token.
        (taken.is_ok_and(|n| n > 0)).then_some(u16::from_ne_bytes(token))
    }

    /// Waits for a token and reads it, for [`Self::take_token_of_wait`] of this thread.
    ///
    /// # Errors
    /// `EAGAIN` if the program has set `O_NONBLOCK`, or if `cancellation::take_or_wait` waits instead; `EINTR` after a
    /// signal whose handler has no `SA_RESTART`.
    pub fn wait_for_token(&self) -> io::Result<()> {
        if fcntl_getfl(&self.program_fd)?.contains(OFlags::NONBLOCK) {
            return Err(rustix::io::Errno::AGAIN.into());
        }
        Ok(cancellation::wait_for_token(&self.program_fd, TOKEN_BYTES)?)
    }

    /// Returns the completion queue index of the token that the last wait of this thread has read, which is untrusted
    /// input.
    pub fn take_token_of_wait(&self) -> Option<u16> {
        let token = cancellation::take_token_bytes_read_from(self.program_fd.as_raw_fd())?;
        Some(u16::from_ne_bytes([token[0], token[1]]))
    }

    /// Writes a token. Returns false if the FIFO is full.
    #[must_use]
    pub fn put_token(&self, cq: u16) -> bool {
        own_pid() != self.creator_pid || write_token(&self.library_fd, cq)
    }

    /// Returns the number of tokens in the FIFO.
    pub fn token_count(&self) -> usize {
        let bytes = rustix::io::ioctl_fionread(&self.library_fd).unwrap_or(0);
        usize::try_from(bytes).unwrap_or(0) / TOKEN_BYTES
    }
}

impl Drop for OwnCompletionChannel {
    fn drop(&mut self) {
        if own_pid() == self.creator_pid {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Opens a FIFO in non-blocking mode.
pub(super) fn open_fifo(path: &Path) -> io::Result<File> {
    // Open for reading and writing: the call does not wait for the other side, a reader never sees end of
    // file, and a writer never gets SIGPIPE.
    open_options().write(true).open(path)
}

/// Opens a FIFO to read, in blocking mode.
fn open_blocking_reader(path: &Path) -> io::Result<File> {
    // A blocking open would wait if another process had replaced the FIFO by one without a writer.
    let fifo = open_options().open(path)?;
    fcntl_setfl(&fifo, fcntl_getfl(&fifo)?.difference(OFlags::NONBLOCK))?;
    Ok(fifo)
}

fn open_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW);
    options
}

/// Writes a token and returns true on success; the kernel writes the 2 bytes of a token together or
/// not at all.
fn write_token(fifo: &File, cq: u16) -> bool {
    rustix::io::retry_on_intr(|| rustix::io::write(fifo, &cq.to_ne_bytes())).is_ok()
}

/// The channels of a peer to which this process has written.
pub(super) struct PeerCompletionChannels {
    dir: PathBuf,
    open_fifos: Mutex<HashMap<u32, Arc<File>>>,
}

impl PeerCompletionChannels {
    pub(super) fn new(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            open_fifos: Mutex::default(),
        }
    }

    /// Returns channel `number` of the process `incarnation`.
    pub(super) fn get_or_open(
        &self,
        incarnation: u64,
        number: u32,
    ) -> Option<PeerCompletionChannel> {
        if number == 0 {
            return None;
        }
        let mut open = lock(&self.open_fifos);
        if let Some(file) = open.get(&number) {
            return Some(PeerCompletionChannel(Arc::clone(file)));
        }
        // Posting a send may call this function.
        let _hold_off = cancellation::HoldOff::new();
        let file = open_fifo(&channel_fifo_path(&self.dir, incarnation, number)).ok()?;
        if !file.metadata().ok()?.file_type().is_fifo() {
            return None;
        }
        if open.len() >= MAX_OPEN_PEER_CHANNELS {
            // The peer creates channels with ever new numbers, and must have destroyed most of
            // these channels.
            open.clear();
        }
        let file = Arc::new(file);
        open.insert(number, Arc::clone(&file));
        Some(PeerCompletionChannel(file))
    }
}

/// A peer's channel, open for writing tokens.
pub struct PeerCompletionChannel(Arc<File>);

impl PeerCompletionChannel {
    /// Wakes the threads that wait for the channel. Returns false if its FIFO is full.
    #[must_use]
    pub fn write_token(&self, cq: u16) -> bool {
        write_token(&self.0, cq)
    }
}
