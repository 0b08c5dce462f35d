//! The groups of sockets that the processes of a fabric share, one an address.
//!
//! Each group has a file in the fabric's folder with its members in the order of the kernel. One lock guards the files
//! of all groups. A process that changes a file gives the kernel the matching program.
//!
//! - A socket is bound, then the file is written. A process that dies in between leaves no socket.
//! - A dead member is taken out by the next process that joins or that looks ([`Group::refresh`]). Until then packets
//!   reach wrong processes, which hand them on.
//! - If several died, which of the sockets moved where is a guess. Then each member gets a probe: a packet to the place
//!   in the group that stands in it. The member that gets it corrects the file ([`Group::correct`]).

use std::fs::{self, File};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::config::{Config, Fabric, LocalAddress};
use crate::error::LinkError;
use crate::members::{Member, Members};
use crate::socket::{Mode, PortState, Socket, port_state};
use crate::steering::program;
use crate::sys::options::set_steering;

/// The groups of a process.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) slot: u16,
    folder: PathBuf,
    /// The network namespace: a folder may be shared by processes of several, and each has groups of its own.
    namespace: u64,
    port: u16,
    own: Member,
}

/// The state of a group after a change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    pub(crate) generation: u64,
    pub(crate) members: usize,
    /// The order may be another one than the file says.
    pub(crate) doubtful: bool,
}

impl Group {
    pub(crate) fn new(fabric: &Fabric, port: u16) -> Result<Group, LinkError> {
        let failed = |path: &str| {
            let path = PathBuf::from(path);
            move |source| LinkError::File {
                what: "read",
                path,
                source,
            }
        };
        let namespace = "/proc/self/ns/net";
        let namespace = fs::metadata(namespace).map_err(failed(namespace))?.ino();
        let pid = u64::from(std::process::id());
        let start = liveness::start_time(pid)
            .and_then(|start| start.ok_or(io::ErrorKind::NotFound.into()))
            .map_err(failed("/proc/self/stat"))?;
        Ok(Group {
            slot: fabric.slot,
            folder: fabric.folder.clone(),
            namespace,
            port,
            own: Member {
                slot: fabric.slot,
                pid,
                start,
            },
        })
    }

    /// Opens the socket of an address and takes it into the address's group.
    pub(crate) fn join(
        &self,
        address: LocalAddress,
        config: &Config,
    ) -> Result<(Socket, Outcome), LinkError> {
        let _lock = self.lock()?;
        let mut members = self.read(address.ip)?;
        let dead = members.remove_dead(is_alive);
        // The slot was that of a process that died, or the endpoint of this process was opened before.
        members.leave(self.slot);
        let mode = match members.list.is_empty() {
            true => Mode::Found,
            false => Mode::Join,
        };
        let socket = Socket::open(address, config, mode)?;
        members.join(self.own);
        self.write(address.ip, &members)?;
        if mode == Mode::Join {
            steer(&socket, &members).map_err(|source| LinkError::Socket {
                what: "give the kernel the program that steers packets",
                address: address.ip,
                port: self.port,
                source,
            })?;
        }
        Ok((socket, outcome(&members, dead)))
    }

    /// Takes the dead out. `None`: nobody died.
    pub(crate) fn refresh(&self, socket: &Socket) -> Result<Option<Outcome>, LinkError> {
        let _lock = self.lock()?;
        let mut members = self.read(socket.address.ip)?;
        let dead = members.remove_dead(is_alive);
        if dead == 0 {
            return Ok(None);
        }
        self.store(socket, &members)?;
        Ok(Some(outcome(&members, dead)))
    }

    /// The owner of the port of `address`. No process of the fabric takes the port meanwhile.
    pub(crate) fn port_state(&self, address: LocalAddress, config: &Config) -> PortState {
        let looked = self.lock().and_then(|lock| {
            let mut members = self.read(address.ip)?;
            members.remove_dead(is_alive);
            Ok((lock, members.list.len()))
        });
        match looked {
            Ok((_lock, 0)) => port_state(address, config),
            Ok((_lock, members)) => PortState::Shared(members),
            Err(error) => PortState::Unavailable(error),
        }
    }

    /// The state of the group for a process that doubts its order.
    pub(crate) fn doubt(&self, socket: &Socket) -> Result<Outcome, LinkError> {
        let _lock = self.lock()?;
        Ok(outcome(&self.read(socket.address.ip)?, 2))
    }

    /// This process has got the probe of `place`. Probes of an earlier `generation` say nothing.
    pub(crate) fn correct(
        &self,
        socket: &Socket,
        generation: u64,
        place: usize,
    ) -> Result<bool, LinkError> {
        let _lock = self.lock()?;
        let mut members = self.read(socket.address.ip)?;
        let news = members.generation == generation && members.correct(self.slot, place);
        if news {
            self.store(socket, &members)?;
        }
        Ok(news)
    }

    /// Whether this process joined, and not its parent before a fork.
    pub(crate) fn is_of_this_process(&self) -> bool {
        u64::from(std::process::id()) == self.own.pid
    }

    /// Takes the sockets of this process out of their groups and closes them.
    pub(crate) fn leave(&self, sockets: Vec<Socket>) -> Result<(), LinkError> {
        let _lock = self.lock()?;
        for socket in sockets {
            let mut members = self.read(socket.address.ip)?;
            members.leave(self.slot);
            // The program for those who stay comes first: a socket that is closed cannot bring it.
            self.store(&socket, &members)?;
        }
        Ok(())
    }

    fn store(&self, socket: &Socket, members: &Members) -> Result<(), LinkError> {
        self.write(socket.address.ip, members)?;
        match steer(socket, members) {
            // The only socket there has ever been is in no group: it needs no program.
            Err(e) if e.kind() == io::ErrorKind::InvalidInput => Ok(()),
            Err(source) => Err(LinkError::Socket {
                what: "give the kernel the program that steers packets",
                address: socket.address.ip,
                port: self.port,
                source,
            }),
            Ok(()) => Ok(()),
        }
    }

    /// Takes the lock, which closing the file gives back.
    fn lock(&self) -> Result<File, LinkError> {
        let path = self.folder.join("link.lock");
        let open = || {
            let mut options = File::options();
            let file = options.create(true).append(true).open(&path)?;
            rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockExclusive))?;
            Ok(file)
        };
        open().map_err(|source| file_error("lock", &path, source))
    }

    fn path(&self, ip: IpAddr) -> PathBuf {
        let name = format!("link-{}-{}-{ip}", self.namespace, self.port);
        self.folder.join(name)
    }

    fn read(&self, ip: IpAddr) -> Result<Members, LinkError> {
        let path = self.path(ip);
        match fs::read(&path) {
            Ok(bytes) => Ok(Members::parse(&String::from_utf8_lossy(&bytes))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Members::default()),
            Err(source) => Err(file_error("read", &path, source)),
        }
    }

    /// Replaces the file as a whole: its writer may die at any time.
    fn write(&self, ip: IpAddr, members: &Members) -> Result<(), LinkError> {
        let path = self.path(ip);
        let mut new = path.clone().into_os_string();
        new.push(".new");
        fs::write(&new, members.text())
            .and_then(|()| fs::rename(&new, &path))
            .map_err(|source| file_error("write", &path, source))
    }
}

fn file_error(what: &'static str, path: &Path, source: io::Error) -> LinkError {
    LinkError::File {
        what,
        path: path.to_owned(),
        source,
    }
}

fn is_alive(member: &Member) -> bool {
    liveness::is_alive(member.pid, member.start)
}

fn outcome(members: &Members, dead: usize) -> Outcome {
    Outcome {
        generation: members.generation,
        members: members.list.len(),
        doubtful: dead > 1,
    }
}

fn steer(socket: &Socket, members: &Members) -> io::Result<()> {
    set_steering(socket.as_fd(), &program(&members.slots()))
}
