//! Port numbers of the fabric: their owners, and the sockets of listeners.
//!
//! They live in the folder `rdma_cm` of the fabric. A bound port is a symbolic link. Its name contains port space, port
//! and address; its target is `PID-STARTTIME-N` and identifies the owner. Making a link is atomic, and so is taking
//! over a link whose process has died. A listener makes a socket under the name of the link's target. So a connect
//! *through the link* reaches the listener or fails.

mod link_names;
mod mad_sockets;
#[cfg(test)]
mod tests;

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use rustix::fs::{
    AtFlags, Dir, FlockOperation, Mode, OFlags, RenameFlags, flock, mkdirat, openat, readlinkat,
    renameat_with, statat, symlinkat, unlinkat,
};
use rustix::io::retry_on_intr;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};

use crate::addr::IdAddress;
use crate::errno::{Errno, Result};
use crate::process_identity::ProcessIdentity;
use link_names::{
    AddressInLinkName, CLOSED_FILE_SUFFIX, NOT_LISTENING_SUFFIX, closed_file_name, link_name_prefix,
};

pub(crate) use link_names::{IdBinding, process_in_socket_name};

/// Time after the close of a listener, or after a bind, in which a new listener is expected at the port.
const LISTENER_REOPEN_WINDOW: Duration = Duration::from_secs(2);
/// The folder of port numbers, as used by one process.
pub(crate) struct PortFolder {
    folder: OwnedFd,
    path: PathBuf,
    process: ProcessIdentity,
    /// Number of the next socket name; number 0 is the socket for MADs.
    next_socket_number: AtomicU64,
    next_port: AtomicU64,
}

/// A port that an id owns; [`PortFolder::release`] frees it.
#[derive(Debug)]
pub(crate) struct PortClaim {
    /// Name of the symbolic link.
    link_name: String,
    /// Name of the socket to which the link points, if the port has a listener.
    listener_socket_name: String,
    pub(crate) port_space: u32,
    pub(crate) binding: IdBinding,
}

impl PortClaim {
    /// Returns the name of the listener's socket.
    pub(crate) fn listener_socket_name(&self) -> &str {
        &self.listener_socket_name
    }
}

/// The reason why no listener was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnreachedReason {
    /// No process listens at the address.
    NoListener,
    /// The listener's queue is full: try again later.
    BacklogFull,
    /// A system call failed.
    Failed(Errno),
}

/// The lock of the folder.
struct FolderLock(OwnedFd);

impl Drop for FolderLock {
    fn drop(&mut self) {
        // Closing the file is not enough: a child that another thread has forked meanwhile has it open, too.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

impl PortFolder {
    /// Opens the folder of port numbers in the fabric's folder `fabric`, and removes names of dead processes.
    pub(crate) fn open(fabric: &Path) -> Result<Self> {
        let fabric_fd = rustix::fs::open(
            fabric,
            OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW,
            Mode::empty(),
        )?;
        match mkdirat(&fabric_fd, "rdma_cm", Mode::RWXU) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(e) => return Err(e.into()),
        }
        let folder = openat(
            &fabric_fd,
            "rdma_cm",
            OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW,
            Mode::empty(),
        )?;
        let (low, high) = ephemeral_ports();
        let offset = getrandom::u64().unwrap_or(0) % (u64::from(high - low) + 1);
        let ports = Self {
            folder,
            path: fabric.join("rdma_cm"),
            process: ProcessIdentity::own()?,
            next_socket_number: AtomicU64::new(1),
            next_port: AtomicU64::new(offset),
        };
        ports.remove_names_of_dead_processes();
        Ok(ports)
    }

    /// Claims the port that `binding` names, or a free one if its port is 0.
    ///
    /// # Errors
    /// `EADDRINUSE` if the port is taken at this address. `EADDRNOTAVAIL` if a wildcard is involved (as in Linux's
    /// `rdma_bind_addr`), or if no port is free.
    pub(crate) fn claim(&self, port_space: u32, binding: IdBinding) -> Result<PortClaim> {
        if binding.addr.port() == 0 {
            return self.claim_any(port_space, binding);
        }
        let _held = self.lock_folder()?;
        self.check_conflicts(port_space, binding, binding.reuse_address, None)?;
        let claim = self.new_claim(port_space, binding, binding.addr.port());
        symlinkat(&claim.listener_socket_name, &self.folder, &claim.link_name)?;
        Ok(claim)
    }

    fn claim_any(&self, port_space: u32, binding: IdBinding) -> Result<PortClaim> {
        let (low, high) = ephemeral_ports();
        let count = u64::from(high - low) + 1;
        for _ in 0..count {
            let nth = self.next_port.fetch_add(1, Ordering::Relaxed) % count;
            let port = low + u16::try_from(nth).unwrap_or(0);
            // A port that is taken under any name is skipped, which needs no lock of the folder.
            let wildcards = AddressInLinkName::WILDCARDS
                .iter()
                .map(|a| a.link_name(port_space, port));
            if wildcards
                .into_iter()
                .any(|link| self.owner(&link).is_some())
            {
                continue;
            }
            let claim = self.new_claim(port_space, binding, port);
            match symlinkat(&claim.listener_socket_name, &self.folder, &claim.link_name) {
                Ok(()) => return Ok(claim),
                Err(rustix::io::Errno::EXIST) => {
                    if self.owner(&claim.link_name).is_none_or(|p| !p.is_alive()) {
                        self.remove_names_of_dead_processes();
                    }
                }
                Err(e) => return Err(e.into()),
            }
        }
        Err(Errno(libc::EADDRNOTAVAIL))
    }

    fn new_claim(&self, port_space: u32, mut binding: IdBinding, port: u16) -> PortClaim {
        binding.addr = binding.addr.with_port(port);
        let n = self.next_socket_number.fetch_add(1, Ordering::Relaxed);
        let mut link = AddressInLinkName::from_binding(binding).link_name(port_space, port);
        if binding.reuse_address {
            // Several links may have the same port until one of their owners listens.
            link = format!("{link}+{}-{n}", self.process);
        }
        PortClaim {
            link_name: link,
            listener_socket_name: format!("{}-{n}", self.process),
            port_space,
            binding,
        }
    }

    /// Makes the socket that receives requests for the port.
    ///
    /// # Errors
    /// `EADDRINUSE`, `EADDRNOTAVAIL`: other ids share the port by `RDMA_OPTION_ID_REUSEADDR`.
    pub(crate) fn listen(&self, claim: &mut PortClaim) -> Result<OwnedFd> {
        let socket = new_socket()?;
        let _held = self.lock_folder()?;
        if claim.binding.reuse_address {
            // "Once the id listens it has to be unique" (`rdma_listen` of `linux:drivers/infiniband/core/cma.c`).
            self.check_conflicts(
                claim.port_space,
                claim.binding,
                false,
                Some(&claim.link_name),
            )?;
        }
        // The socket gets its final name only after it listens, so that peers cannot find it earlier.
        let unfinished = format!("{}{NOT_LISTENING_SUFFIX}", claim.listener_socket_name);
        bind(&socket, &self.address(&unfinished)?)?;
        let listens = listen(&socket, libc::SOMAXCONN).and_then(|()| {
            renameat_with(
                &self.folder,
                &unfinished,
                &self.folder,
                &claim.listener_socket_name,
                RenameFlags::empty(),
            )
        });
        if let Err(e) = listens {
            let _ = unlinkat(&self.folder, &unfinished, AtFlags::empty());
            return Err(e.into());
        }
        if claim.binding.reuse_address {
            let port = claim.binding.addr.port();
            let link =
                AddressInLinkName::from_binding(claim.binding).link_name(claim.port_space, port);
            renameat_with(
                &self.folder,
                &claim.link_name,
                &self.folder,
                &link,
                RenameFlags::NOREPLACE,
            )?;
            claim.link_name = link;
            claim.binding.reuse_address = false;
        }
        Ok(socket)
    }

    /// Frees a port. Does nothing in a child that was forked from its owner.
    pub(crate) fn release(&self, claim: &PortClaim) {
        if std::process::id() == self.process.pid() {
            let _ = unlinkat(&self.folder, &claim.listener_socket_name, AtFlags::empty());
            let _ = unlinkat(&self.folder, &claim.link_name, AtFlags::empty());
        }
    }

    /// Records that the listener of a port is about to close, so that [`may_listen_soon`](Self::may_listen_soon)
    /// returns true for a while.
    pub(crate) fn record_listener_closing(&self, claim: &PortClaim) {
        if std::process::id() == self.process.pid() {
            let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::TRUNC | OFlags::CLOEXEC;
            let name = closed_file_name(claim.binding.addr.port());
            if let Ok(file) = openat(&self.folder, name, flags, Mode::RUSR | Mode::WUSR) {
                // Truncating an empty file would not change its times.
                let _ = rustix::io::write(&file, b"\n");
            }
        }
    }

    /// Returns true if a listener may appear at `addr` soon: shortly before, a listener on the port has closed, in any
    /// port space, or the port was bound.
    ///
    /// Some programs listen for one connection, close, and listen for the next (perftest, for datagrams as well).
    /// Others bind a port, publish its number, and then listen (qperf). Over a network, the resolution of the address
    /// gives them enough time for that.
    pub(crate) fn may_listen_soon(&self, port_space: u32, addr: IdAddress) -> bool {
        let Some((port_space, port)) = addr.port_space_and_port(port_space) else {
            return false;
        };
        let candidates = AddressInLinkName::listener_addresses_for(addr);
        self.file_changed_recently(&closed_file_name(port))
            || candidates
                .into_iter()
                .any(|candidate| self.file_changed_recently(&candidate.link_name(port_space, port)))
    }

    fn file_changed_recently(&self, name: &str) -> bool {
        let Ok(stat) = statat(&self.folder, name, AtFlags::SYMLINK_NOFOLLOW) else {
            return false;
        };
        let seconds = Duration::from_secs(u64::try_from(stat.st_mtime).unwrap_or(0));
        let changed = UNIX_EPOCH + seconds + Duration::from_nanos(stat.st_mtime_nsec);
        // After the clock was set back, the age is an error and does not count as recent.
        changed
            .elapsed()
            .is_ok_and(|age| age < LISTENER_REOPEN_WINDOW)
    }

    /// Connects to the listener at `addr`, for an id of `port_space`.
    pub(crate) fn connect(
        &self,
        port_space: u32,
        addr: IdAddress,
    ) -> std::result::Result<OwnedFd, UnreachedReason> {
        let (port_space, port) = addr
            .port_space_and_port(port_space)
            .ok_or(UnreachedReason::NoListener)?;
        let socket = new_socket().map_err(UnreachedReason::Failed)?;
        for candidate in AddressInLinkName::listener_addresses_for(addr) {
            let link = candidate.link_name(port_space, port);
            let to = self.address(&link).map_err(UnreachedReason::Failed)?;
            match connect(&socket, &to) {
                Ok(()) => return Ok(socket),
                Err(rustix::io::Errno::AGAIN) => return Err(UnreachedReason::BacklogFull),
                Err(rustix::io::Errno::NOENT | rustix::io::Errno::CONNREFUSED) => {}
                Err(e) => return Err(UnreachedReason::Failed(e.into())),
            }
        }
        Err(UnreachedReason::NoListener)
    }

    /// Returns the address of the socket `name`, which is short however long the folder's path is.
    fn address(&self, name: &str) -> Result<SocketAddrUnix> {
        let path = format!("/proc/self/fd/{}/{name}", self.folder.as_raw_fd());
        Ok(SocketAddrUnix::new(path)?)
    }

    /// Returns the owner of a link.
    fn owner(&self, link: &str) -> Option<ProcessIdentity> {
        let target = readlinkat(&self.folder, link, Vec::new()).ok()?;
        process_in_socket_name(target.to_str().ok()?)
    }

    /// Locks the folder against other processes until the result is dropped.
    fn lock_folder(&self) -> Result<FolderLock> {
        let lock = openat(
            &self.folder,
            "lock",
            OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW,
            Mode::RUSR | Mode::WUSR,
        )?;
        retry_on_intr(|| flock(&lock, FlockOperation::LockExclusive))?;
        Ok(FolderLock(lock))
    }

    /// Checks the binding by the rules of `cma_check_port` in `linux:drivers/infiniband/core/cma.c`.
    fn check_conflicts(
        &self,
        port_space: u32,
        binding: IdBinding,
        may_share: bool,
        own_link: Option<&str>,
    ) -> Result {
        let address = AddressInLinkName::from_binding(binding);
        let prefix = link_name_prefix(port_space, binding.addr.port());
        for link in self.names()? {
            let Some(rest) = link.strip_prefix(&prefix) else {
                continue;
            };
            if own_link == Some(link.as_str()) {
                continue;
            }
            let (other, shares) = match rest.split_once('+') {
                Some((other, _)) => (other, true),
                None => (rest, false),
            };
            match self.owner(&link) {
                Some(owner) if owner.is_alive() => {}
                _ => {
                    self.remove_link_and_socket(&link);
                    continue;
                }
            }
            if may_share && shares {
                continue;
            }
            if let Some(errno) = address.bind_conflict_errno(other) {
                return Err(Errno(errno));
            }
        }
        Ok(())
    }

    /// Removes a link and the socket to which it points; if the target is not a socket name, only the link.
    fn remove_link_and_socket(&self, link: &str) {
        if let Ok(target) = readlinkat(&self.folder, link, Vec::new())
            && target
                .to_str()
                .is_ok_and(|target| process_in_socket_name(target).is_some())
        {
            let _ = unlinkat(&self.folder, target.as_c_str(), AtFlags::empty());
        }
        let _ = unlinkat(&self.folder, link, AtFlags::empty());
    }

    /// Removes the names of processes that have ended.
    fn remove_names_of_dead_processes(&self) {
        let Ok(_held) = self.lock_folder() else {
            return;
        };
        for name in self.names().unwrap_or_default() {
            if name.ends_with(CLOSED_FILE_SUFFIX) && !self.file_changed_recently(&name) {
                let _ = unlinkat(&self.folder, name.as_str(), AtFlags::empty());
                continue;
            }
            let of_the_dead = match readlinkat(&self.folder, name.as_str(), Vec::new()) {
                Ok(target) => target.to_str().ok().and_then(process_in_socket_name),
                // The names of sockets contain their owner.
                Err(_) => process_in_socket_name(&name),
            }
            .is_some_and(|owner| !owner.is_alive());
            if of_the_dead {
                let _ = unlinkat(&self.folder, name.as_str(), AtFlags::empty());
            }
        }
    }

    /// Returns the names in the folder.
    fn names(&self) -> Result<Vec<String>> {
        let dir = Dir::read_from(&self.folder)
            .inspect_err(|e| tracing::warn!("cannot read {}: {e}", self.path.display()))?;
        Ok(dir
            .filter_map(|entry| Some(entry.ok()?.file_name().to_str().ok()?.to_owned()))
            .filter(|name| !name.starts_with('.'))
            .collect())
    }
}

fn new_socket() -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        flags,
        None,
    )?)
}

/// Returns Linux's range of ephemeral ports: `ip(7)`, `ip_local_port_range`.
fn ephemeral_ports() -> (u16, u16) {
    std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|text| parse_port_range(&text))
        .unwrap_or((32_768, 60_999))
}

/// Parses the first and the last port of a range.
pub(crate) fn parse_port_range(text: &str) -> Option<(u16, u16)> {
    let mut numbers = text.split_ascii_whitespace().map(str::parse::<u16>);
    let range = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    Some(range).filter(|&(low, high)| 0 < low && low <= high)
}
