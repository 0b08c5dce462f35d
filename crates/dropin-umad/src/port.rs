//! An open port: its agents, and how its datagrams travel.
//!
//! A port is a Unix datagram socket in the folder `umad` of the fabric, named `PID-NUMBER`. Answers of the subnet are
//! sent into the own socket, and datagrams for other programs into theirs. So a program can wait for the descriptor.
//!
//! A link `agent-LID-CLASS` in the folder names the socket and the agent that get the requests of this class at this
//! LID. The upper half of a request's transaction identifier names the socket and the agent that get the response, as
//! it does in the kernel (`ib_umad_write` in `linux:drivers/infiniband/core/user_mad.c`).

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use libc::c_int;
use shm::fabric::Fabric;
use subnet::SubnetAnswer;
use subnet::mad::{MAD_BYTES, MadFields, method, set_tid};

use crate::devices;

/// Bytes of `ib_user_mad` before the datagram (`linux:include/uapi/rdma/ib_user_mad.h`).
pub(crate) const UMAD_HEADER_BYTES: usize = 64;
/// Agents of a port at most (`IB_UMAD_MAX_AGENTS`).
const MAX_AGENTS: usize = 32;
/// Open ports of a process at most.
const MAX_OPEN_PORTS: usize = 32;
/// Bytes of a datagram before the data of its class, which return when a request times out.
const MAD_HEADER_BYTES: usize = 24;
/// Largest datagram that a program may send.
const MAX_MAD_BYTES: usize = 1 << 16;

/// Offsets in `ib_user_mad`.
mod user_mad_offset {
    pub(super) const AGENT: usize = 0;
    pub(super) const STATUS: usize = 4;
    pub(super) const TIMEOUT: usize = 8;
    pub(super) const RETRIES: usize = 12;
    pub(super) const LENGTH: usize = 16;
    pub(super) const QPN: usize = 20;
    pub(super) const LID: usize = 28;
}

/// A registration for a class.
struct RegisteredAgent {
    /// Link by which other programs find this agent; `None` if it gets no requests.
    request_link: Option<PathBuf>,
}

impl Drop for RegisteredAgent {
    fn drop(&mut self) {
        if let Some(link) = &self.request_link {
            // A link that is left names a socket that refuses.
            let _ = fs::remove_file(link);
        }
    }
}

/// An open port.
struct OpenPort {
    socket: UnixDatagram,
    folder: PathBuf,
    /// Number of the port in this process.
    number_in_process: usize,
    lid: u16,
    agents: [Option<RegisteredAgent>; MAX_AGENTS],
    /// Datagrams for which the socket had no room.
    datagrams_waiting_for_socket_room: VecDeque<Vec<u8>>,
}

impl Drop for OpenPort {
    fn drop(&mut self) {
        let _ = fs::remove_file(
            self.folder
                .join(socket_name(std::process::id(), self.number_in_process)),
        );
    }
}

static OPEN_PORTS: Mutex<BTreeMap<RawFd, OpenPort>> = Mutex::new(BTreeMap::new());

fn lock_open_ports() -> MutexGuard<'static, BTreeMap<RawFd, OpenPort>> {
    OPEN_PORTS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn socket_name(pid: u32, number: usize) -> String {
    format!("{pid}-{number}")
}

/// Calls `act` with a file of the folder under a name that fits into the address of a socket, however long the path of
/// the folder is.
fn with_short_socket_path<T>(
    folder: &Path,
    name: &str,
    act: impl FnOnce(&Path) -> io::Result<T>,
) -> io::Result<T> {
    let folder = File::open(folder)?;
    act(Path::new(&format!(
        "/proc/self/fd/{}/{name}",
        folder.as_raw_fd()
    )))
}

/// Opens a port with this LID. Returns its descriptor.
///
/// # Errors
/// The folder of the fabric cannot be used, or the process has too many open ports.
pub(crate) fn open_port(lid: u16) -> io::Result<RawFd> {
    let fabric = Fabric::default_dir().map_err(io::Error::other)?;
    Fabric::make_dir(&fabric).map_err(io::Error::other)?;
    let folder = fabric.join("umad");
    match fs::DirBuilder::new().mode(0o700).create(&folder) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => remove_stale_sockets(&folder),
    }
    let mut ports = lock_open_ports();
    let number = (0..MAX_OPEN_PORTS)
        .find(|number| ports.values().all(|port| port.number_in_process != *number))
        .ok_or_else(|| io::Error::from_raw_os_error(libc::EMFILE))?;
    let name = socket_name(std::process::id(), number);
    // A process with this number may have been killed.
    let _ = fs::remove_file(folder.join(&name));
    let socket = with_short_socket_path(&folder, &name, |path| UnixDatagram::bind(path))?;
    socket.set_nonblocking(true)?;
    let fd = socket.as_raw_fd();
    let port = OpenPort {
        socket,
        folder,
        number_in_process: number,
        lid,
        agents: [const { None }; MAX_AGENTS],
        datagrams_waiting_for_socket_room: VecDeque::new(),
    };
    ports.insert(fd, port);
    Ok(fd)
}

/// Removes the sockets of processes that have ended.
fn remove_stale_sockets(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name
            .to_str()
            .and_then(|name| name.split('-').next()?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Closes a port. Returns false if there is none.
pub(crate) fn close_port(fd: RawFd) -> bool {
    lock_open_ports().remove(&fd).is_some()
}

/// Returns true if the descriptor is a port.
pub(crate) fn is_open(fd: RawFd) -> bool {
    lock_open_ports().contains_key(&fd)
}

/// Registers an agent for a class. `gets_requests` is true if it names methods for which it gets requests. Returns the
/// number of the agent, or an error number.
pub(crate) fn register_agent(fd: RawFd, class: u8, gets_requests: bool) -> Result<c_int, c_int> {
    let mut ports = lock_open_ports();
    let port = ports.get_mut(&fd).ok_or(libc::EINVAL)?;
    let number = port
        .agents
        .iter()
        .position(Option::is_none)
        .ok_or(libc::ENOMEM)?;
    let mut link = None;
    if gets_requests {
        let path = port.folder.join(agent_link_name(port.lid, class));
        let socket = socket_name(std::process::id(), port.number_in_process);
        let target = format!("{socket}:{number}");
        if let Some((socket, _)) = read_agent_link(&path) {
            let is_alive = with_short_socket_path(&port.folder, &socket, |path| {
                UnixDatagram::unbound()?.connect(path)
            });
            if is_alive.is_ok() {
                return Err(libc::EINVAL);
            }
            let _ = fs::remove_file(&path);
        }
        symlink(target, &path).map_err(|e| e.raw_os_error().unwrap_or(libc::EIO))?;
        link = Some(path);
    }
    port.agents[number] = Some(RegisteredAgent { request_link: link });
    c_int::try_from(number).map_err(|_| libc::EINVAL)
}

/// Removes an agent. Returns false if there is none.
pub(crate) fn unregister_agent(fd: RawFd, agent: c_int) -> bool {
    let mut ports = lock_open_ports();
    let slot = ports.get_mut(&fd).zip(usize::try_from(agent).ok());
    let slot = slot.and_then(|(port, agent)| port.agents.get_mut(agent));
    slot.is_some_and(|slot| slot.take().is_some())
}

fn agent_link_name(lid: u16, class: u8) -> String {
    format!("agent-{lid:04x}-{class:02x}")
}

/// Returns the name of the socket and the number of the agent that a link names.
fn read_agent_link(link: &Path) -> Option<(String, u32)> {
    let target = fs::read_link(link).ok()?;
    let (socket, agent) = target.to_str()?.rsplit_once(':')?;
    // Another process may have written anything.
    let is_name = socket.bytes().all(|b| b.is_ascii_digit() || b == b'-');
    let agent = agent.parse().ok()?;
    is_name.then(|| (socket.to_owned(), agent))
}

fn read_word(umad: &[u8], at: usize) -> u32 {
    let bytes = umad.get(at..at + 4).and_then(|b| b.try_into().ok());
    bytes.map_or(0, u32::from_ne_bytes)
}

fn set_word(umad: &mut [u8], at: usize, value: u32) {
    if let Some(bytes) = umad.get_mut(at..at + 4) {
        bytes.copy_from_slice(&value.to_ne_bytes());
    }
}

/// Returns a datagram for a program: header and MAD.
fn build_user_mad(agent: u32, status: u32, from_lid: u16, mad: &[u8]) -> Vec<u8> {
    let mut umad = vec![0; UMAD_HEADER_BYTES];
    umad.extend_from_slice(mad);
    set_word(&mut umad, user_mad_offset::AGENT, agent);
    set_word(&mut umad, user_mad_offset::STATUS, status);
    let length = u32::try_from(umad.len()).unwrap_or(u32::MAX);
    set_word(&mut umad, user_mad_offset::LENGTH, length);
    // Queue pair 1, that of the general services.
    set_word(&mut umad, user_mad_offset::QPN, 1_u32.to_be());
    umad[user_mad_offset::LID..user_mad_offset::LID + 2].copy_from_slice(&from_lid.to_be_bytes());
    umad
}

/// Sends the MAD behind the header in `umad` from an agent. Returns an error number if it cannot be sent.
pub(crate) fn send_mad(
    fd: RawFd,
    agent: c_int,
    umad: &mut [u8],
    timeout_ms: c_int,
    retries: c_int,
) -> Result<(), c_int> {
    let mut ports = lock_open_ports();
    let port = ports.get_mut(&fd).ok_or(libc::EINVAL)?;
    let number = usize::try_from(agent).map_err(|_| libc::EINVAL)?;
    if !matches!(port.agents.get(number), Some(Some(_))) {
        return Err(libc::EINVAL);
    }
    if umad.len() < UMAD_HEADER_BYTES + MAD_HEADER_BYTES
        || umad.len() > UMAD_HEADER_BYTES + MAX_MAD_BYTES
    {
        return Err(libc::EINVAL);
    }
    let agent = u32::try_from(agent).map_err(|_| libc::EINVAL)?;
    set_word(umad, user_mad_offset::AGENT, agent);
    set_word(umad, user_mad_offset::TIMEOUT, timeout_ms.cast_unsigned());
    set_word(umad, user_mad_offset::RETRIES, retries.cast_unsigned());
    let destination =
        u16::from_be_bytes([umad[user_mad_offset::LID], umad[user_mad_offset::LID + 1]]);
    let mad = &umad[UMAD_HEADER_BYTES..];
    if MadFields(mad).method() & method::RESPONSE != 0 {
        port.send_response(mad);
        return Ok(());
    }
    // The upper half of the identifier finds the way back. As in the kernel, the program's datagram keeps its own:
    // ibacm finds its request by the whole identifier.
    let back = port.reply_tid_prefix(agent);
    let tid = MadFields(mad).tid() & u64::from(u32::MAX) | u64::from(back) << 32;
    let mut sent = mad.to_vec();
    set_tid(&mut sent, tid);
    match devices::read_subnet_for_request(&sent).answer_request(&sent, port.lid, destination) {
        SubnetAnswer::Response(response) => {
            port.enqueue_for_program(build_user_mad(agent, 0, destination, &response))
        }
        SubnetAnswer::ForRegisteredProgram
            if port.forward_request_if_registered(destination, &sent) => {}
        SubnetAnswer::ForRegisteredProgram | SubnetAnswer::NoAgent if timeout_ms != 0 => {
            let status = libc::ETIMEDOUT.cast_unsigned();
            let header = &mad[..MAD_HEADER_BYTES];
            port.enqueue_for_program(build_user_mad(agent, status, destination, header));
        }
        SubnetAnswer::ForRegisteredProgram | SubnetAnswer::NoAgent => {}
    }
    Ok(())
}

impl OpenPort {
    /// Returns the number that names this port of this process and an agent.
    fn reply_tid_prefix(&self, agent: u32) -> u32 {
        let number = u32::try_from(self.number_in_process).unwrap_or(0);
        // A process number has 22 bits at most (`PID_MAX_LIMIT`).
        std::process::id() << 10 | number << 5 | agent
    }

    /// Sends a response to the agent that its transaction identifier names.
    fn send_response(&self, mad: &[u8]) {
        let to = MadFields(mad).tid() >> 32;
        let (pid, number, agent) = (to >> 10, to >> 5 & 31, to & 31);
        let (Ok(pid), Ok(number), Ok(agent)) = (
            u32::try_from(pid),
            usize::try_from(number),
            u32::try_from(agent),
        ) else {
            return;
        };
        // A program that has ended waits for no response.
        let _ = self.send_to(
            &socket_name(pid, number),
            &build_user_mad(agent, 0, self.lid, mad),
        );
    }

    /// Sends a request to the program that has registered for its class. Returns false if there is none.
    fn forward_request_if_registered(&self, destination: u16, mad: &[u8]) -> bool {
        let link = self
            .folder
            .join(agent_link_name(destination, MadFields(mad).class()));
        let Some((socket, agent)) = read_agent_link(&link) else {
            return false;
        };
        let mut whole = mad.to_vec();
        whole.resize(mad.len().max(MAD_BYTES), 0);
        self.send_to(&socket, &build_user_mad(agent, 0, self.lid, &whole))
            .is_ok()
    }

    fn send_to(&self, socket: &str, bytes: &[u8]) -> io::Result<()> {
        with_short_socket_path(&self.folder, socket, |path| {
            self.socket.send_to(bytes, path)
        })?;
        Ok(())
    }

    /// Adds a datagram to those that this port's program receives.
    fn enqueue_for_program(&mut self, datagram: Vec<u8>) {
        self.datagrams_waiting_for_socket_room.push_back(datagram);
        self.put_waiting_datagrams_into_own_socket();
    }

    /// Sends waiting datagrams into the own socket while it has room.
    fn put_waiting_datagrams_into_own_socket(&mut self) {
        let own = socket_name(std::process::id(), self.number_in_process);
        while let Some(first) = self.datagrams_waiting_for_socket_room.front() {
            if self.send_to(&own, first).is_err() {
                return;
            }
            self.datagrams_waiting_for_socket_room.pop_front();
        }
    }
}

/// Receives a datagram into `umad`. Returns the agent and the length of the MAD. If `umad` is too short, the datagram
/// stays, and the error has its length.
pub(crate) fn receive_mad(fd: RawFd, umad: &mut [u8]) -> Result<(c_int, usize), ReceiveFailure> {
    let receive = |umad: &mut [u8], flags: c_int| {
        // SAFETY: `umad` has as many bytes, and the kernel writes at most these.
        let n = unsafe { libc::recv(fd, umad.as_mut_ptr().cast(), umad.len(), flags) };
        usize::try_from(n).map_err(|_| {
            let e = io::Error::last_os_error();
            ReceiveFailure::Errno(e.raw_os_error().unwrap_or(libc::EIO))
        })
    };
    let whole = receive(&mut [], libc::MSG_PEEK | libc::MSG_TRUNC)?;
    if whole > umad.len() {
        return Err(ReceiveFailure::BufferTooShort(
            whole - UMAD_HEADER_BYTES.min(whole),
        ));
    }
    let got = receive(umad, 0)?;
    if let Some(port) = lock_open_ports().get_mut(&fd) {
        port.put_waiting_datagrams_into_own_socket();
    }
    let agent = c_int::try_from(read_word(umad, user_mad_offset::AGENT)).unwrap_or(0);
    Ok((agent, got.saturating_sub(UMAD_HEADER_BYTES)))
}

/// The reason why nothing was received.
pub(crate) enum ReceiveFailure {
    /// An error number.
    Errno(c_int),
    /// The MAD has this length, and the program has less room.
    BufferTooShort(usize),
}
