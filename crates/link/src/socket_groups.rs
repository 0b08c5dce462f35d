//! The groups of sockets that the processes of a fabric share, one group per address.
//!
//! Each group has a file in the fabric's folder with its members in the kernel's order. One lock protects the files of
//! all groups. A process that changes a file also sets the matching BPF program.
//!
//! - A socket is bound before the file is written. A process that dies in between leaves no socket.
//! - The next process that joins or calls [`SocketGroups::remove_dead_members`] removes dead members. Until then some
//!   packets reach wrong processes, which forward them.
//! - If several members died, the new order of the sockets is a guess. Then each member gets a probe: a packet that
//!   contains the index to which the kernel delivers it. The receiver of the probe corrects the file
//!   ([`SocketGroups::correct_own_position_in_file`]).

use std::fs::{self, File};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::config::{Config, FabricMembership, LocalAddress};
use crate::error::LinkError;
use crate::group_members::{GroupMember, GroupMembers};
use crate::socket::{BoundSocket, PortSharing, UdpPortState, probe_udp_port};
use crate::steering::slot_filter_program;
use crate::sys::options::attach_steering_program;

/// The groups of a process.
#[derive(Debug)]
pub(crate) struct SocketGroups {
    pub(crate) slot: u16,
    folder: PathBuf,
    /// Inode number of the network namespace. A folder may be shared by processes of several namespaces, and each
    /// namespace has its own groups.
    net_namespace: u64,
    udp_port: u16,
    own_member: GroupMember,
}

/// The state of a group after a change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SocketGroupState {
    pub(crate) generation: u64,
    pub(crate) member_count: usize,
    /// True if the order may differ from the file.
    pub(crate) is_order_uncertain: bool,
}

impl SocketGroups {
    pub(crate) fn new(fabric: &FabricMembership, port: u16) -> Result<SocketGroups, LinkError> {
        let failed = |path: &str| {
            let path = PathBuf::from(path);
            move |source| LinkError::FabricFile {
                what: "read",
                path,
                source,
            }
        };
        let namespace = "/proc/self/ns/net";
        let namespace = fs::metadata(namespace).map_err(failed(namespace))?.ino();
        let pid = u64::from(std::process::id());
        let start = liveness::start_time_ticks(pid)
            .and_then(|start| start.ok_or(io::ErrorKind::NotFound.into()))
            .map_err(failed("/proc/self/stat"))?;
        Ok(SocketGroups {
            slot: fabric.slot,
            folder: fabric.folder.clone(),
            net_namespace: namespace,
            udp_port: port,
            own_member: GroupMember {
                slot: fabric.slot,
                pid,
                start_time_ticks: start,
            },
        })
    }

    /// Opens the socket of an address and adds it to the address's group.
    pub(crate) fn bind_and_join(
        &self,
        address: LocalAddress,
        config: &Config,
    ) -> Result<(BoundSocket, SocketGroupState), LinkError> {
        let _lock = self.lock_folder()?;
        let mut members = self.read_members(address.ip)?;
        let dead = members.remove_dead(is_alive);
        // The slot belonged to a process that died, or this process had opened another endpoint before.
        members.remove_member(self.slot);
        let mode = match members.list.is_empty() {
            true => PortSharing::FirstOfGroup,
            false => PortSharing::JoinGroup,
        };
        let socket = BoundSocket::open(address, config, mode)?;
        members.add_member(self.own_member);
        self.write_members(address.ip, &members)?;
        if mode == PortSharing::JoinGroup {
            attach_slot_steering(&socket, &members).map_err(|source| {
                LinkError::SocketCallFailed {
                    what: "give the kernel the program that steers packets",
                    address: address.ip,
                    port: self.udp_port,
                    source,
                }
            })?;
        }
        Ok((socket, group_state(&members, dead)))
    }

    /// Removes dead members; `None` if no member has died.
    pub(crate) fn remove_dead_members(
        &self,
        socket: &BoundSocket,
    ) -> Result<Option<SocketGroupState>, LinkError> {
        let _lock = self.lock_folder()?;
        let mut members = self.read_members(socket.address.ip)?;
        let dead = members.remove_dead(is_alive);
        if dead == 0 {
            return Ok(None);
        }
        self.store_members_and_attach_steering(socket, &members)?;
        Ok(Some(group_state(&members, dead)))
    }

    /// Returns the owner of the port of `address`. The lock keeps processes of the fabric from taking the port in the
    /// meantime.
    pub(crate) fn udp_port_state(&self, address: LocalAddress, config: &Config) -> UdpPortState {
        let looked = self.lock_folder().and_then(|lock| {
            let mut members = self.read_members(address.ip)?;
            members.remove_dead(is_alive);
            Ok((lock, members.list.len()))
        });
        match looked {
            Ok((_lock, 0)) => probe_udp_port(address, config),
            Ok((_lock, members)) => UdpPortState::SharedByProcesses(members),
            Err(error) => UdpPortState::Unavailable(error),
        }
    }

    /// Returns the state of the group, with its order marked as doubtful.
    pub(crate) fn group_state_with_uncertain_order(
        &self,
        socket: &BoundSocket,
    ) -> Result<SocketGroupState, LinkError> {
        let _lock = self.lock_folder()?;
        Ok(group_state(&self.read_members(socket.address.ip)?, 2))
    }

    /// Corrects the file after this process has received the probe for `place`. Probes of an earlier `generation` are
    /// ignored.
    pub(crate) fn correct_own_position_in_file(
        &self,
        socket: &BoundSocket,
        generation: u64,
        place: usize,
    ) -> Result<bool, LinkError> {
        let _lock = self.lock_folder()?;
        let mut members = self.read_members(socket.address.ip)?;
        let news =
            members.generation == generation && members.move_to_actual_place(self.slot, place);
        if news {
            self.store_members_and_attach_steering(socket, &members)?;
        }
        Ok(news)
    }

    /// Returns true if this process has joined the groups, and not its parent before a fork.
    pub(crate) fn was_joined_by_this_process(&self) -> bool {
        u64::from(std::process::id()) == self.own_member.pid
    }

    /// Removes the sockets of this process from their groups and closes them.
    pub(crate) fn leave_and_close(&self, sockets: Vec<BoundSocket>) -> Result<(), LinkError> {
        let _lock = self.lock_folder()?;
        for socket in sockets {
            let mut members = self.read_members(socket.address.ip)?;
            members.remove_member(self.slot);
            // The program for the remaining members must be set first, since a closed socket cannot set it.
            self.store_members_and_attach_steering(&socket, &members)?;
        }
        Ok(())
    }

    fn store_members_and_attach_steering(
        &self,
        socket: &BoundSocket,
        members: &GroupMembers,
    ) -> Result<(), LinkError> {
        self.write_members(socket.address.ip, members)?;
        match attach_slot_steering(socket, members) {
            // A socket that was always alone is in no group and needs no program.
            Err(e) if e.kind() == io::ErrorKind::InvalidInput => Ok(()),
            Err(source) => Err(LinkError::SocketCallFailed {
                what: "give the kernel the program that steers packets",
                address: socket.address.ip,
                port: self.udp_port,
                source,
            }),
            Ok(()) => Ok(()),
        }
    }

    /// Takes the lock, which is released when the file is closed.
    fn lock_folder(&self) -> Result<File, LinkError> {
        let path = self.folder.join("link.lock");
        let open = || {
            let mut options = File::options();
            let file = options.create(true).append(true).open(&path)?;
            rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockExclusive))?;
            Ok(file)
        };
        open().map_err(|source| file_error("lock", &path, source))
    }

    fn group_file_path(&self, ip: IpAddr) -> PathBuf {
        let name = format!("link-{}-{}-{ip}", self.net_namespace, self.udp_port);
        self.folder.join(name)
    }

    fn read_members(&self, ip: IpAddr) -> Result<GroupMembers, LinkError> {
        let path = self.group_file_path(ip);
        match fs::read(&path) {
            Ok(bytes) => Ok(GroupMembers::parse(&String::from_utf8_lossy(&bytes))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(GroupMembers::default()),
            Err(source) => Err(file_error("read", &path, source)),
        }
    }

    /// Replaces the whole file atomically, since its writer may die at any time.
    fn write_members(&self, ip: IpAddr, members: &GroupMembers) -> Result<(), LinkError> {
        let path = self.group_file_path(ip);
        let mut new = path.clone().into_os_string();
        new.push(".new");
        fs::write(&new, members.to_file_text())
            .and_then(|()| fs::rename(&new, &path))
            .map_err(|source| file_error("write", &path, source))
    }
}

fn file_error(what: &'static str, path: &Path, source: io::Error) -> LinkError {
    LinkError::FabricFile {
        what,
        path: path.to_owned(),
        source,
    }
}

fn is_alive(member: &GroupMember) -> bool {
    liveness::is_alive(member.pid, member.start_time_ticks)
}

fn group_state(members: &GroupMembers, dead: usize) -> SocketGroupState {
    SocketGroupState {
        generation: members.generation,
        member_count: members.list.len(),
        is_order_uncertain: dead > 1,
    }
}

fn attach_slot_steering(socket: &BoundSocket, members: &GroupMembers) -> io::Result<()> {
    attach_steering_program(socket.as_fd(), &slot_filter_program(&members.slots()))
}
