//! Port numbers of the fabric: who has which, and the sockets of those who listen.
//!
//! They live in the folder `rdma_cm` of the fabric. A port that is bound is a symbolic link: its name says
//! port space, port and address, and its target says whose it is: `PID-STARTTIME-N`. Making a link is atomic,
//! and so is taking over one whose process has died. Whoever listens makes a socket under the name that the
//! link points to, so connecting *through the link* finds the listener, or nobody.

use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use rustix::fs::{
    AtFlags, Dir, FlockOperation, Mode, OFlags, RenameFlags, flock, mkdirat, openat, readlinkat,
    renameat_with, statat, symlinkat, unlinkat,
};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};

use crate::addr::Addr;
use crate::errno::{Errno, Result};
use crate::process::Process;

/// How long after a listener has closed or a port was bound somebody is expected to listen there.
const REOPENING: Duration = Duration::from_secs(2);
/// What follows the port in the name of a file that was written when a listener closed.
const CLOSED: &str = ".closed";
/// What follows the name of a socket that does not listen yet.
const UNFINISHED: char = '~';

/// The folder of port numbers, as one process uses it.
pub(crate) struct Ports {
    folder: OwnedFd,
    path: PathBuf,
    me: Process,
    next: AtomicU64,
    next_port: AtomicU64,
}

/// What a bound id is bound to, beside its port space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Binding {
    /// Of `AF_IB`: with the service id of the port space in which the port is.
    pub(crate) addr: Addr,
    /// `RDMA_OPTION_ID_AFONLY`: a wildcard of one family leaves the other families alone.
    pub(crate) afonly: bool,
    /// `RDMA_OPTION_ID_REUSEADDR`: others with the same option may have the port too.
    pub(crate) reuse: bool,
}

/// A port that an id has; given back by [`Ports::release`].
#[derive(Debug)]
pub(crate) struct Claim {
    /// The link's name.
    link: String,
    /// The socket's name, were there one.
    target: String,
    pub(crate) port_space: u32,
    pub(crate) binding: Binding,
}

/// Why nobody was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreached {
    /// Nobody listens there.
    Refused,
    /// The listener has more waiting than it takes: try again later.
    Busy,
    /// The system did not do it.
    Failed(Errno),
}

impl Ports {
    /// Opens the folder of port numbers in the fabric's folder `fabric`, and removes what the dead left there.
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
            me: Process::own()?,
            next: AtomicU64::new(0),
            next_port: AtomicU64::new(offset),
        };
        ports.clean_up();
        Ok(ports)
    }

    /// Takes a port: the one that `binding` names, or a free one where it names port 0.
    ///
    /// # Errors
    /// `EADDRINUSE` where the address has it already, `EADDRNOTAVAIL` where a wildcard has it or is asked
    /// for (as Linux's `rdma_bind_addr`) or no port is free.
    pub(crate) fn claim(&self, port_space: u32, binding: Binding) -> Result<Claim> {
        if binding.addr.port() == 0 {
            return self.claim_any(port_space, binding);
        }
        let _held = self.hold()?;
        self.check_conflicts(port_space, binding, binding.reuse, None)?;
        let claim = self.new_claim(port_space, binding, binding.addr.port());
        symlinkat(&claim.target, &self.folder, &claim.link)?;
        Ok(claim)
    }

    fn claim_any(&self, port_space: u32, binding: Binding) -> Result<Claim> {
        let (low, high) = ephemeral_ports();
        let count = u64::from(high - low) + 1;
        for _ in 0..count {
            let nth = self.next_port.fetch_add(1, Ordering::Relaxed) % count;
            let port = low + u16::try_from(nth).unwrap_or(0);
            // A port that anybody has under any name is passed over; no need to lock the folder for that.
            let wildcards = Address::WILDCARDS.iter().map(|a| a.link(port_space, port));
            if wildcards
                .into_iter()
                .any(|link| self.owner(&link).is_some())
            {
                continue;
            }
            let claim = self.new_claim(port_space, binding, port);
            match symlinkat(&claim.target, &self.folder, &claim.link) {
                Ok(()) => return Ok(claim),
                Err(rustix::io::Errno::EXIST) => {
                    if self.owner(&claim.link).is_none_or(|p| !p.is_alive()) {
                        self.clean_up();
                    }
                }
                Err(e) => return Err(e.into()),
            }
        }
        Err(Errno(libc::EADDRNOTAVAIL))
    }

    fn new_claim(&self, port_space: u32, mut binding: Binding, port: u16) -> Claim {
        binding.addr = binding.addr.with_port(port);
        let n = self.next.fetch_add(1, Ordering::Relaxed);
        let mut link = Address::of(binding).link(port_space, port);
        if binding.reuse {
            // There may be several of the same name until one of them listens.
            link = format!("{link}+{}-{n}", self.me);
        }
        Claim {
            link,
            target: format!("{}-{n}", self.me),
            port_space,
            binding,
        }
    }

    /// Makes the socket through which requests for the port come in.
    ///
    /// # Errors
    /// `EADDRINUSE`, `EADDRNOTAVAIL`: others have the port too, by `RDMA_OPTION_ID_REUSEADDR`.
    pub(crate) fn listen(&self, claim: &mut Claim) -> Result<OwnedFd> {
        let socket = new_socket()?;
        let _held = self.hold()?;
        if claim.binding.reuse {
            // "Once the id listens it has to be unique" (`rdma_listen` of `linux:drivers/infiniband/core/cma.c`).
            self.check_conflicts(claim.port_space, claim.binding, false, Some(&claim.link))?;
        }
        // Under its name it is found when it listens, and not before.
        let unfinished = format!("{}{UNFINISHED}", claim.target);
        bind(&socket, &self.address(&unfinished)?)?;
        let listens = listen(&socket, libc::SOMAXCONN).and_then(|()| {
            renameat_with(
                &self.folder,
                &unfinished,
                &self.folder,
                &claim.target,
                RenameFlags::empty(),
            )
        });
        if let Err(e) = listens {
            let _ = unlinkat(&self.folder, &unfinished, AtFlags::empty());
            return Err(e.into());
        }
        if claim.binding.reuse {
            let port = claim.binding.addr.port();
            let link = Address::of(claim.binding).link(claim.port_space, port);
            renameat_with(
                &self.folder,
                &claim.link,
                &self.folder,
                &link,
                RenameFlags::NOREPLACE,
            )?;
            claim.link = link;
            claim.binding.reuse = false;
        }
        Ok(socket)
    }

    /// Gives a port back. Does nothing in a child that was forked from its owner.
    pub(crate) fn release(&self, claim: &Claim) {
        if std::process::id() == self.me.pid() {
            let _ = unlinkat(&self.folder, &claim.target, AtFlags::empty());
            let _ = unlinkat(&self.folder, &claim.link, AtFlags::empty());
        }
    }

    /// Says that the listener of a port is about to close, so that nobody finds it closed and knows nothing.
    pub(crate) fn closing(&self, claim: &Claim) {
        if std::process::id() == self.me.pid() {
            let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::TRUNC | OFlags::CLOEXEC;
            let name = closed_file(claim.binding.addr.port());
            if let Ok(file) = openat(&self.folder, name, flags, Mode::RUSR | Mode::WUSR) {
                // Truncating an empty file leaves its times as they are.
                let _ = rustix::io::write(&file, b"\n");
            }
        }
    }

    /// Whether somebody may be about to listen at `addr`: listened on the port, in any port space, a moment ago,
    /// or was bound to it then.
    ///
    /// Programs listen for one connection, close, and listen for the next (perftest does, and for datagrams if it
    /// is to measure them); or they bind to a port, tell its number, and then listen (qperf). Over a network, the
    /// resolution of the address gives them the time for that.
    pub(crate) fn opens_soon(&self, port_space: u32, addr: Addr) -> bool {
        let Some((port_space, port)) = addr.service(port_space) else {
            return false;
        };
        let candidates = Address::listeners_for(addr);
        self.is_recent(&closed_file(port))
            || candidates
                .into_iter()
                .any(|candidate| self.is_recent(&candidate.link(port_space, port)))
    }

    fn is_recent(&self, name: &str) -> bool {
        let Ok(stat) = statat(&self.folder, name, AtFlags::SYMLINK_NOFOLLOW) else {
            return false;
        };
        let seconds = Duration::from_secs(u64::try_from(stat.st_mtime).unwrap_or(0));
        let changed = UNIX_EPOCH + seconds + Duration::from_nanos(stat.st_mtime_nsec);
        // A clock that was set back makes no eternity.
        changed.elapsed().is_ok_and(|age| age < REOPENING)
    }

    /// A connection to whoever listens at `addr`, for an id of `port_space`.
    pub(crate) fn connect(
        &self,
        port_space: u32,
        addr: Addr,
    ) -> std::result::Result<OwnedFd, Unreached> {
        let (port_space, port) = addr.service(port_space).ok_or(Unreached::Refused)?;
        let socket = new_socket().map_err(Unreached::Failed)?;
        for candidate in Address::listeners_for(addr) {
            let link = candidate.link(port_space, port);
            let to = self.address(&link).map_err(Unreached::Failed)?;
            match connect(&socket, &to) {
                Ok(()) => return Ok(socket),
                Err(rustix::io::Errno::AGAIN) => return Err(Unreached::Busy),
                Err(rustix::io::Errno::NOENT | rustix::io::Errno::CONNREFUSED) => {}
                Err(e) => return Err(Unreached::Failed(e.into())),
            }
        }
        Err(Unreached::Refused)
    }

    /// The address of the socket `name`: short, however long the folder's name is.
    fn address(&self, name: &str) -> Result<SocketAddrUnix> {
        let path = format!("/proc/self/fd/{}/{name}", self.folder.as_raw_fd());
        Ok(SocketAddrUnix::new(path)?)
    }

    /// Whose a link is.
    fn owner(&self, link: &str) -> Option<Process> {
        let target = readlinkat(&self.folder, link, Vec::new()).ok()?;
        owner_of(target.to_str().ok()?)
    }

    /// Keeps other processes from changing the folder, until it is dropped.
    fn hold(&self) -> Result<OwnedFd> {
        let lock = openat(
            &self.folder,
            "lock",
            OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW,
            Mode::RUSR | Mode::WUSR,
        )?;
        flock(&lock, FlockOperation::LockExclusive)?;
        Ok(lock)
    }

    /// The rules of `cma_check_port` in `linux:drivers/infiniband/core/cma.c`.
    fn check_conflicts(
        &self,
        port_space: u32,
        binding: Binding,
        may_share: bool,
        own_link: Option<&str>,
    ) -> Result {
        let address = Address::of(binding);
        let prefix = link_prefix(port_space, binding.addr.port());
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
                    self.remove(&link);
                    continue;
                }
            }
            if may_share && shares {
                continue;
            }
            if let Some(errno) = address.conflict(other) {
                return Err(Errno(errno));
            }
        }
        Ok(())
    }

    /// Removes a link of a dead process, and its socket; of a link that is nobody's, only itself.
    fn remove(&self, link: &str) {
        if let Ok(target) = readlinkat(&self.folder, link, Vec::new())
            && target
                .to_str()
                .is_ok_and(|target| owner_of(target).is_some())
        {
            let _ = unlinkat(&self.folder, target.as_c_str(), AtFlags::empty());
        }
        let _ = unlinkat(&self.folder, link, AtFlags::empty());
    }

    /// Removes what processes that have ended left behind.
    fn clean_up(&self) {
        let Ok(_held) = self.hold() else { return };
        for name in self.names().unwrap_or_default() {
            if name.ends_with(CLOSED) && !self.is_recent(&name) {
                let _ = unlinkat(&self.folder, name.as_str(), AtFlags::empty());
                continue;
            }
            let of_the_dead = match readlinkat(&self.folder, name.as_str(), Vec::new()) {
                Ok(target) => target.to_str().ok().and_then(owner_of),
                // Sockets have their owner in their name.
                Err(_) => owner_of(&name),
            }
            .is_some_and(|owner| !owner.is_alive());
            if of_the_dead {
                let _ = unlinkat(&self.folder, name.as_str(), AtFlags::empty());
            }
        }
    }

    /// The names in the folder.
    fn names(&self) -> Result<Vec<String>> {
        let dir = Dir::read_from(&self.folder)
            .inspect_err(|e| tracing::warn!("cannot read {}: {e}", self.path.display()))?;
        Ok(dir
            .filter_map(|entry| Some(entry.ok()?.file_name().to_str().ok()?.to_owned()))
            .filter(|name| !name.starts_with('.'))
            .collect())
    }
}

/// The process in `PID-STARTTIME-N`, the name of a socket, also while it is unfinished.
pub(crate) fn owner_of(target: &str) -> Option<Process> {
    let (process, n) = target.rsplit_once('-')?;
    n.strip_suffix(UNFINISHED)
        .unwrap_or(n)
        .parse::<u64>()
        .ok()?;
    process.parse().ok()
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

/// The ports that Linux gives to those who ask for any: `ip(7)`, `ip_local_port_range`.
fn ephemeral_ports() -> (u16, u16) {
    std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|text| port_range(&text))
        .unwrap_or((32_768, 60_999))
}

/// The first and the last port of a range.
pub(crate) fn port_range(text: &str) -> Option<(u16, u16)> {
    let mut numbers = text.split_ascii_whitespace().map(str::parse::<u16>);
    let range = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    Some(range).filter(|&(low, high)| 0 < low && low <= high)
}

fn closed_file(port: u16) -> String {
    format!("{port}{CLOSED}")
}

fn link_prefix(port_space: u32, port: u16) -> String {
    format!("{port_space:04x}.{port}.")
}

/// Kinds of addresses, each with a wildcard of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    V4,
    V6,
    Ib,
}

/// The address part of a link's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Address {
    /// A wildcard; `only` with `RDMA_OPTION_ID_AFONLY`.
    Any {
        family: Family,
        only: bool,
    },
    Ip(IpAddr),
    Gid([u8; 16]),
}

const fn any(family: Family) -> Address {
    Address::Any {
        family,
        only: false,
    }
}

const fn any_only(family: Family) -> Address {
    Address::Any { family, only: true }
}

impl Address {
    const WILDCARDS: [Self; 6] = [
        any(Family::V4),
        any(Family::V6),
        any(Family::Ib),
        any_only(Family::V4),
        any_only(Family::V6),
        any_only(Family::Ib),
    ];

    fn of(binding: Binding) -> Self {
        let wildcard = |family| Self::Any {
            family,
            only: binding.afonly,
        };
        match binding.addr {
            Addr::Ib(addr) if addr.is_any() => wildcard(Family::Ib),
            Addr::Ib(addr) => Self::Gid(addr.gid),
            Addr::Ip(addr) => match addr.ip() {
                IpAddr::V4(ip) if ip.is_unspecified() => wildcard(Family::V4),
                IpAddr::V6(ip) if ip.is_unspecified() => wildcard(Family::V6),
                ip => Self::Ip(ip.to_canonical()),
            },
        }
    }

    /// The names under which a listener for `addr` may be found, the closest first.
    fn listeners_for(addr: Addr) -> Vec<Self> {
        let of = |address, family| vec![address, any(family), any_only(family)];
        match addr {
            Addr::Ib(addr) => of(Self::Gid(addr.gid), Family::Ib),
            Addr::Ip(addr) => match addr.ip().to_canonical() {
                ip @ IpAddr::V4(_) => {
                    let mut found = of(Self::Ip(ip), Family::V4);
                    // A wildcard of IPv6 takes IPv4 as well, as sockets do; not the other way round.
                    found.push(any(Family::V6));
                    found
                }
                ip @ IpAddr::V6(_) => of(Self::Ip(ip), Family::V6),
            },
        }
    }

    fn link(self, port_space: u32, port: u16) -> String {
        format!("{}{}", link_prefix(port_space, port), self.text())
    }

    fn text(self) -> String {
        match self {
            Self::Any { family, only } => {
                let family = match family {
                    Family::V4 => "any4",
                    Family::V6 => "any6",
                    Family::Ib => "anyib",
                };
                format!("{family}{}", if only { "only" } else { "" })
            }
            // Colons are legal in file names, and so are dots.
            Self::Ip(ip) => ip.to_string(),
            Self::Gid(gid) => format!("gid-{}", Ipv6Addr::from(gid)),
        }
    }

    /// The errno with which a port at this address is refused because of one at the address with the text
    /// `other`.
    fn conflict(self, other: &str) -> Option<i32> {
        let other_any = Self::WILDCARDS.into_iter().find(|a| a.text() == other);
        match (self, other_any) {
            (
                Self::Any {
                    family: a,
                    only: true,
                },
                Some(Self::Any {
                    family: b,
                    only: true,
                }),
            ) if a != b => None,
            (Self::Ip(_) | Self::Gid(_), None) => {
                (self.text() == other).then_some(libc::EADDRINUSE)
            }
            _ => Some(libc::EADDRNOTAVAIL),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::accept;

    const TCP: u32 = 0x0106;
    const UDP: u32 = 0x0111;

    fn ip(addr: &str) -> Addr {
        Addr::Ip(addr.parse().unwrap())
    }

    fn binding(addr: &str) -> Binding {
        Binding {
            addr: ip(addr),
            afonly: false,
            reuse: false,
        }
    }

    fn ports() -> (tempfile::TempDir, Ports) {
        let dir = tempfile::tempdir().unwrap();
        let ports = Ports::open(dir.path()).unwrap();
        (dir, ports)
    }

    #[test]
    fn who_listens_is_reached_and_who_is_only_bound_is_not() {
        let (_dir, ports) = ports();
        let to = ip("127.0.0.1:7471");
        assert_eq!(ports.connect(TCP, to).unwrap_err(), Unreached::Refused);
        assert!(!ports.opens_soon(TCP, to));
        let mut claim = ports.claim(TCP, binding("0.0.0.0:7471")).unwrap();
        assert_eq!(ports.connect(TCP, to).unwrap_err(), Unreached::Refused);
        assert!(ports.opens_soon(TCP, to), "it was bound a moment ago");
        assert!(!ports.opens_soon(UDP, to));
        let listener = ports.listen(&mut claim).unwrap();
        let _client = ports.connect(TCP, to).unwrap();
        accept(&listener).unwrap();
        let v6 = ip("[::1]:7471");
        assert_eq!(ports.connect(TCP, v6).unwrap_err(), Unreached::Refused);
        assert_eq!(ports.connect(UDP, to).unwrap_err(), Unreached::Refused);
        ports.closing(&claim);
        ports.release(&claim);
        assert_eq!(ports.connect(TCP, to).unwrap_err(), Unreached::Refused);
        assert!(ports.opens_soon(TCP, to));
        assert!(!ports.opens_soon(TCP, ip("127.0.0.1:7472")));
        ports.claim(TCP, binding("0.0.0.0:7471")).unwrap();
    }

    #[test]
    fn the_closest_listener_gets_the_request() {
        let (_dir, ports) = ports();
        let mut any = ports.claim(TCP, binding("[::]:99")).unwrap();
        let any = ports.listen(&mut any).unwrap();
        let _client = ports.connect(TCP, ip("10.0.0.1:99")).unwrap();
        accept(&any).unwrap();
        let (_dir, ports) = self::ports();
        let mut one = ports.claim(TCP, binding("10.0.0.1:99")).unwrap();
        let mut two = ports.claim(TCP, binding("10.0.0.2:99")).unwrap();
        let one = ports.listen(&mut one).unwrap();
        let two = ports.listen(&mut two).unwrap();
        let _client = ports.connect(TCP, ip("10.0.0.2:99")).unwrap();
        accept(&two).unwrap();
        assert!(accept(&one).is_err());
    }

    #[test]
    fn conflicts_are_those_of_linux() {
        let refused = |first: Binding, second: Binding| {
            let (_dir, ports) = ports();
            let _first = ports.claim(TCP, first).unwrap();
            ports.claim(TCP, second).err().map(|e| e.0)
        };
        let one = binding("10.0.0.1:5");
        let two = binding("10.0.0.2:5");
        let any4 = binding("0.0.0.0:5");
        let any6 = binding("[::]:5");
        let only = |b: Binding| Binding { afonly: true, ..b };
        let reuse = |b: Binding| Binding { reuse: true, ..b };
        assert_eq!(refused(one, two), None);
        assert_eq!(refused(one, one), Some(libc::EADDRINUSE));
        assert_eq!(refused(one, any4), Some(libc::EADDRNOTAVAIL));
        assert_eq!(refused(any4, one), Some(libc::EADDRNOTAVAIL));
        assert_eq!(refused(any4, any4), Some(libc::EADDRNOTAVAIL));
        assert_eq!(refused(any4, any6), Some(libc::EADDRNOTAVAIL));
        assert_eq!(refused(only(any4), only(any6)), None);
        assert_eq!(refused(only(any4), any6), Some(libc::EADDRNOTAVAIL));
        assert_eq!(refused(reuse(one), reuse(one)), None);
        assert_eq!(refused(reuse(one), one), Some(libc::EADDRINUSE));
        let (_dir, ports) = ports();
        let _tcp = ports.claim(TCP, one).unwrap();
        assert!(ports.claim(UDP, one).is_ok(), "port spaces are apart");
    }

    #[test]
    fn gids_and_addresses_of_ip_are_apart_but_for_wildcards() {
        use crate::ib::IbAddr;
        let (_dir, ports) = ports();
        let at = |gid: &str| {
            let gid = gid.parse::<Ipv6Addr>().unwrap().octets();
            Addr::Ib(IbAddr::new(gid, 0xffff).with_service(TCP, 99))
        };
        let bound = |addr| Binding {
            addr,
            ..binding("0.0.0.0:99")
        };
        let only = |addr| Binding {
            afonly: true,
            ..bound(addr)
        };
        let claim = |b| ports.claim(TCP, b).map_err(|e| e.0);
        let mut gid = claim(bound(at("fe80::1"))).unwrap();
        assert_eq!(claim(bound(at("fe80::1"))).err(), Some(libc::EADDRINUSE));
        assert_eq!(claim(bound(at("::"))).err(), Some(libc::EADDRNOTAVAIL));
        let mut ip = claim(bound(ip("[fe80::1]:99"))).unwrap();
        let gid_listener = ports.listen(&mut gid).unwrap();
        let ip_listener = ports.listen(&mut ip).unwrap();
        let _client = ports.connect(TCP, at("fe80::1")).unwrap();
        accept(&gid_listener).unwrap();
        assert!(accept(&ip_listener).is_err());
        // Its service id says which port space an address of AF_IB is in.
        let _client = ports.connect(UDP, at("fe80::1")).unwrap();
        accept(&gid_listener).unwrap();
        assert_eq!(
            ports.connect(TCP, at("fe80::2")).unwrap_err(),
            Unreached::Refused
        );
        ports.release(&gid);
        ports.release(&ip);
        // The loopback address is no address of its own.
        let mut any_gid = claim(only(at("::1"))).unwrap();
        assert!(claim(only(self::ip("0.0.0.0:99"))).is_ok());
        assert_eq!(
            claim(only(at("::"))).err(),
            Some(libc::EADDRNOTAVAIL),
            "the same family"
        );
        let listener = ports.listen(&mut any_gid).unwrap();
        let _client = ports.connect(TCP, at("fe80::2")).unwrap();
        accept(&listener).unwrap();
    }

    #[test]
    fn links_that_lead_elsewhere_delete_nothing_there() {
        let (dir, ports) = ports();
        let keep = dir.path().join("keep");
        std::fs::write(&keep, "").unwrap();
        std::fs::write(dir.path().join("rdma_cm/4294967295-1-keep"), "").unwrap();
        for (n, target) in ["../keep", "4294967295-1-keep", keep.to_str().unwrap()]
            .into_iter()
            .enumerate()
        {
            let link = any(Family::V4).link(TCP, 7471 + n as u16);
            symlinkat(target, &ports.folder, &link).unwrap();
            let taken = binding(&format!("10.0.0.1:{}", 7471 + n));
            ports.claim(TCP, taken).unwrap();
        }
        drop(Ports::open(dir.path()).unwrap());
        assert!(keep.exists());
        assert!(dir.path().join("rdma_cm/4294967295-1-keep").exists());
    }

    #[test]
    fn of_those_who_share_a_port_none_listens_until_it_is_alone() {
        let (_dir, ports) = ports();
        let shared = Binding {
            reuse: true,
            ..binding("10.0.0.1:5")
        };
        let mut first = ports.claim(TCP, shared).unwrap();
        let second = ports.claim(TCP, shared).unwrap();
        assert_eq!(ports.listen(&mut first).unwrap_err().0, libc::EADDRINUSE);
        ports.release(&second);
        let listener = ports.listen(&mut first).unwrap();
        let _client = ports.connect(TCP, ip("10.0.0.1:5")).unwrap();
        accept(&listener).unwrap();
        assert_eq!(ports.claim(TCP, shared).unwrap_err().0, libc::EADDRINUSE);
    }

    #[test]
    fn free_ports_differ_and_are_not_those_of_wildcards() {
        let (_dir, ports) = ports();
        let mut seen = std::collections::HashSet::new();
        for _ in 0..50 {
            let claim = ports.claim(TCP, binding("127.0.0.1:0")).unwrap();
            let port = claim.binding.addr.port();
            assert!(port >= 1024 && seen.insert(port));
        }
    }

    #[test]
    fn ports_of_the_dead_are_taken_over() {
        let (dir, ports) = ports();
        let dead = "4294967295-1-0";
        let link = any(Family::V4).link(TCP, 7471);
        symlinkat(dead, &ports.folder, &link).unwrap();
        std::fs::write(dir.path().join("rdma_cm").join(dead), "").unwrap();
        let claim = ports.claim(TCP, binding("10.0.0.1:7471")).unwrap();
        let mut names = ports.names().unwrap();
        names.sort();
        let mut expected = ["lock".to_owned(), claim.link.clone()];
        expected.sort();
        assert_eq!(names, expected);
        // A new member cleans up as well.
        symlinkat(dead, &ports.folder, any(Family::V4).link(TCP, 1)).unwrap();
        drop(Ports::open(dir.path()).unwrap());
        assert_eq!(ports.names().unwrap().len(), 2);
    }
}
