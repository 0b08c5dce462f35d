//! Replaces the C library's socket functions for sockets of `NETLINK_RDMA`. The kernel does not know the software NIC,
//! so this library answers the requests in place of the kernel.
//!
//! A replaced netlink socket is a Unix datagram socket that is connected to itself. The program's requests are not
//! sent. The library sends the answers into the socket. Waiting, descriptors and their inheritance therefore work as
//! with the kernel. Functions that return addresses return netlink addresses.
//!
//! Limits: a copy of the descriptor (`dup(2)`) receives answers but cannot send requests. The library does not replace
//! `read(2)`, `write(2)`, `readv(2)` and `writev(2)`.

use std::collections::VecDeque;
use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use libc::{msghdr, size_t, sockaddr, sockaddr_nl, socklen_t, ssize_t};

use crate::next;
use crate::software_nic_answers::SoftwareNicAnswers;

/// The number of the RDMA netlink family: `linux:include/uapi/linux/netlink.h`.
const NETLINK_RDMA: c_int = 20;
/// Number of bytes in a `sockaddr_nl`.
const NETLINK_ADDRESS_BYTES: usize = size_of::<sockaddr_nl>();
/// The largest request in bytes. The limit of the kernel is the size of the send buffer.
const MAX_REQUEST_BYTES: usize = 1 << 16;

/// A netlink socket that this library has created.
struct NetlinkSocket {
    fd: c_int,
    /// Device and inode of the socket, which identify it although descriptor numbers are reused.
    device_and_inode: (u64, u64),
    /// The `nl_pid` of the socket's address.
    port_id: u32,
    /// Answers that wait because the socket's buffer had no room.
    pending_answers: VecDeque<Vec<u8>>,
}

/// The number of netlink sockets that this library has created. While it is 0, every function loads only this number
/// and calls the C library.
static SOCKET_COUNT: AtomicUsize = AtomicUsize::new(0);
static CREATED_NETLINK_SOCKETS: Mutex<Vec<NetlinkSocket>> = Mutex::new(Vec::new());

fn lock_sockets() -> MutexGuard<'static, Vec<NetlinkSocket>> {
    CREATED_NETLINK_SOCKETS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

/// Calls `act` with the netlink socket of a descriptor; returns `None` if this library did not create the socket.
fn with_socket<T>(fd: c_int, act: impl FnOnce(&mut NetlinkSocket) -> T) -> Option<T> {
    if SOCKET_COUNT.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let mut sockets = lock_sockets();
    let at = sockets.iter().position(|socket| socket.fd == fd)?;
    if device_and_inode_of(fd) == Some(sockets.get(at)?.device_and_inode) {
        return sockets.get_mut(at).map(act);
    }
    // The socket was closed, and its descriptor number is used for another file.
    sockets.swap_remove(at);
    SOCKET_COUNT.store(sockets.len(), Ordering::Relaxed);
    None
}

/// Returns device and inode of a descriptor's file.
fn device_and_inode_of(fd: c_int) -> Option<(u64, u64)> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `stat` has room for the result, and `fstat` accepts any descriptor.
    if unsafe { libc::fstat(fd, stat.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: a successful `fstat` has written it.
    let stat = unsafe { stat.assume_init() };
    Some((stat.st_dev, stat.st_ino))
}

/// Calls the C library's function of the given name, with the given types of arguments and result.
macro_rules! real {
    ($name:ident($( $arg:ident: $type:ty ),*) -> $ret:ty) => {{
        type Function = unsafe extern "C" fn($( $type ),*) -> $ret;
        static RESOLVED: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
        let name = concat!(stringify!($name), "\0");
        let name = CStr::from_bytes_with_nul(name.as_bytes()).unwrap_or_default();
        match next(&RESOLVED, name) {
            // SAFETY: the C library's function of this name has this type; the caller of the
            // function of the same name guarantees the arguments.
            Some(function) => unsafe {
                std::mem::transmute::<*mut c_void, Function>(function)($( $arg ),*)
            },
            None => fail_with_errno(libc::ENOSYS).into(),
        }
    }};
}

fn fail_with_errno(errno: c_int) -> i8 {
    // SAFETY: the pointer is to this thread's errno.
    unsafe { *libc::__errno_location() = errno };
    -1
}

/// Replaces `socket(2)`.
// SAFETY: the name, the arguments and the behaviour are those of the C library; as for all
// functions here.
#[unsafe(no_mangle)]
pub extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if domain != libc::AF_NETLINK || protocol != NETLINK_RDMA {
        return real!(socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int);
    }
    let flags = kind & (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
    if !matches!(kind & !flags, libc::SOCK_RAW | libc::SOCK_DGRAM) {
        return fail_with_errno(libc::ESOCKTNOSUPPORT).into();
    }
    let (domain, kind, protocol) = (libc::AF_UNIX, libc::SOCK_DGRAM | flags, 0);
    let fd = real!(socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int);
    let file = if fd >= 0 {
        device_and_inode_of(fd)
    } else {
        None
    };
    let Some(file) = file.filter(|_| connect_to_itself(fd)) else {
        if fd >= 0 {
            // SAFETY: this function has created the descriptor.
            unsafe { libc::close(fd) };
        }
        return fail_with_errno(libc::ENOBUFS).into();
    };
    let mut sockets = lock_sockets();
    sockets.retain(|socket| {
        socket.fd != fd && device_and_inode_of(socket.fd) == Some(socket.device_and_inode)
    });
    // The first netlink socket of a process has the process id as its address (netlink(7)).
    let own = std::process::id();
    let is_free = |id: &u32| sockets.iter().all(|socket| socket.port_id != *id);
    let port_id = std::iter::once(own)
        .chain((0..u32::MAX).rev())
        .find(is_free);
    sockets.push(NetlinkSocket {
        fd,
        device_and_inode: file,
        port_id: port_id.unwrap_or(own),
        pending_answers: VecDeque::new(),
    });
    SOCKET_COUNT.store(sockets.len(), Ordering::Relaxed);
    fd
}

/// Connects a Unix datagram socket to itself, so that no other socket can send to it (`unix(7)`).
fn connect_to_itself(fd: c_int) -> bool {
    // SAFETY: zeroes are an address.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX.unsigned_abs().try_into().unwrap_or_default();
    let start = (&raw mut address).cast::<sockaddr>();
    let family_bytes = size_of::<libc::sa_family_t>();
    let mut len = socklen_t::try_from(size_of_val(&address)).unwrap_or_default();
    let family_len = socklen_t::try_from(family_bytes).unwrap_or_default();
    // "If a bind(2) call specifies addrlen as sizeof(sa_family_t) [...] the socket is autobound to an abstract address".
    let bound = start.cast_const();
    if real!(bind(fd: c_int, bound: *const sockaddr, family_len: socklen_t) -> c_int) != 0 {
        return false;
    }
    let len_at = &raw mut len;
    if real!(getsockname(fd: c_int, start: *mut sockaddr, len_at: *mut socklen_t) -> c_int) != 0 {
        return false;
    }
    // SAFETY: the address and its length belong to this function, and the kernel has written them.
    unsafe { libc::connect(fd, bound, len) == 0 }
}

/// Replaces `bind(2)`. With an `nl_pid` of 0 the kernel chooses the port id; this library has already chosen it.
///
/// # Safety
/// The contract of the C library's function of this name applies.
// SAFETY: as for `socket`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    let bound = with_socket(fd, |socket| {
        if address.is_null() || (len as usize) < NETLINK_ADDRESS_BYTES {
            return libc::EINVAL;
        }
        // SAFETY: the address has the length of a netlink address, by the contract of `bind`.
        let address = unsafe { address.cast::<sockaddr_nl>().read_unaligned() };
        if c_int::from(address.nl_family) != libc::AF_NETLINK {
            return libc::EINVAL;
        }
        if address.nl_pid != 0 {
            socket.port_id = address.nl_pid;
        }
        0
    });
    match bound {
        Some(0) => 0,
        Some(errno) => fail_with_errno(errno).into(),
        None => real!(bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int),
    }
}

/// Writes as many bytes of a netlink address as fit into `room`; returns the full length of the address.
///
/// # Safety
/// `to` has `room` bytes.
unsafe fn write_netlink_address(to: *mut c_void, room: socklen_t, port_id: u32) -> socklen_t {
    // SAFETY: zeroes are an address.
    let mut address: sockaddr_nl = unsafe { std::mem::zeroed() };
    address.nl_family = libc::AF_NETLINK
        .unsigned_abs()
        .try_into()
        .unwrap_or_default();
    address.nl_pid = port_id;
    let len = NETLINK_ADDRESS_BYTES.min(room as usize);
    // SAFETY: `len` is at most `room`, and at most the length of the address.
    unsafe {
        to.cast::<u8>()
            .copy_from_nonoverlapping((&raw const address).cast(), len)
    };
    socklen_t::try_from(NETLINK_ADDRESS_BYTES).unwrap_or_default()
}

/// Replaces `getsockname(2)`.
///
/// # Safety
/// The contract of the C library's function of this name applies.
// SAFETY: as for `socket`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockname(fd: c_int, to: *mut sockaddr, len: *mut socklen_t) -> c_int {
    match with_socket(fd, |socket| socket.port_id) {
        Some(_) if to.is_null() || len.is_null() => fail_with_errno(libc::EFAULT).into(),
        Some(port_id) => {
            // SAFETY: by the contract of `getsockname`.
            unsafe { *len = write_netlink_address(to.cast(), *len, port_id) };
            0
        }
        None => real!(getsockname(fd: c_int, to: *mut sockaddr, len: *mut socklen_t) -> c_int),
    }
}

/// Replaces `setsockopt(2)`. Netlink options are accepted without effect: groups receive no messages, and error
/// messages contain no details.
///
/// # Safety
/// The contract of the C library's function of this name applies.
// SAFETY: as for `socket`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    if level == libc::SOL_NETLINK && with_socket(fd, |_| ()).is_some() {
        return 0;
    }
    real!(setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int)
}

/// Answers a request; the program then reads the answers from the socket. Returns the value that `send` must return.
fn queue_answers(socket: &mut NetlinkSocket, request: &[u8]) -> ssize_t {
    let answers = rdma_netlink::build_answers(request, socket.port_id, &SoftwareNicAnswers);
    socket.pending_answers.extend(answers);
    send_pending_answers(socket);
    ssize_t::try_from(request.len()).unwrap_or(ssize_t::MAX)
}

/// Sends waiting answers into the socket while its buffer has room.
fn send_pending_answers(socket: &mut NetlinkSocket) {
    while let Some(answer) = socket.pending_answers.front() {
        let (fd, bytes, len) = (socket.fd, answer.as_ptr().cast::<c_void>(), answer.len());
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let sent =
            real!(send(fd: c_int, bytes: *const c_void, len: size_t, flags: c_int) -> ssize_t);
        if sent < 0 {
            return;
        }
        socket.pending_answers.pop_front();
    }
}

/// Replaces `send(2)`.
///
/// # Safety
/// The contract of the C library's function of this name applies.
// SAFETY: as for `socket`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn send(
    fd: c_int,
    bytes: *const c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: by the contract of `send`.
    match with_socket(fd, |socket| unsafe { answer_request(socket, bytes, len) }) {
        Some(taken) => taken,
        None => {
            real!(send(fd: c_int, bytes: *const c_void, len: size_t, flags: c_int) -> ssize_t)
        }
    }
}

/// Answers a request that lies in the program's memory.
///
/// # Safety
/// `bytes` has `len` bytes, or is NULL.
unsafe fn answer_request(socket: &mut NetlinkSocket, bytes: *const c_void, len: size_t) -> ssize_t {
    if bytes.is_null() && len != 0 {
        return fail_with_errno(libc::EFAULT).into();
    }
    if len > MAX_REQUEST_BYTES {
        return fail_with_errno(libc::EMSGSIZE).into();
    }
    if len == 0 {
        return 0;
    }
    // SAFETY: contract of this function.
    queue_answers(socket, unsafe {
        std::slice::from_raw_parts(bytes.cast(), len)
    })
}

/// Replaces `sendto(2)`. The address is ignored: all requests go to the kernel.
///
/// # Safety
/// The contract of the C library's function of this name applies.
// SAFETY: as for `socket`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendto(
    fd: c_int,
    bytes: *const c_void,
    len: size_t,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> ssize_t {
    // SAFETY: by the contract of `sendto`.
    match with_socket(fd, |socket| unsafe { answer_request(socket, bytes, len) }) {
        Some(taken) => taken,
        None => real!(sendto(
            fd: c_int, bytes: *const c_void, len: size_t, flags: c_int, to: *const sockaddr, to_len: socklen_t
        ) -> ssize_t),
    }
}

/// Replaces `sendmsg(2)`.
///
/// # Safety
/// The contract of the C library's function of this name applies.
// SAFETY: as for `socket`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    let taken = with_socket(fd, |socket| {
        // SAFETY: by the contract of `sendmsg`.
        match unsafe { gather_message_bytes(message) } {
            Ok(request) => queue_answers(socket, &request),
            Err(errno) => fail_with_errno(errno).into(),
        }
    });
    match taken {
        Some(taken) => taken,
        None => real!(sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t),
    }
}

/// Returns the bytes of a message, collected from its parts.
///
/// # Safety
/// `message` is valid for `sendmsg`, or NULL.
unsafe fn gather_message_bytes(message: *const msghdr) -> Result<Vec<u8>, c_int> {
    if message.is_null() {
        return Err(libc::EFAULT);
    }
    // SAFETY: contract of this function.
    let (parts, count) = unsafe { ((*message).msg_iov, (*message).msg_iovlen) };
    if count > libc::UIO_MAXIOV.unsigned_abs() as usize || (parts.is_null() && count != 0) {
        return Err(libc::EMSGSIZE);
    }
    let mut bytes = Vec::new();
    for index in 0..count {
        // SAFETY: the array has `count` parts, and each part has the bytes that it names.
        let part = unsafe { *parts.add(index) };
        if bytes.len() + part.iov_len > MAX_REQUEST_BYTES {
            return Err(libc::EMSGSIZE);
        }
        if part.iov_len != 0 {
            // SAFETY: as above.
            bytes.extend_from_slice(unsafe {
                std::slice::from_raw_parts(part.iov_base.cast_const().cast(), part.iov_len)
            });
        }
    }
    Ok(bytes)
}

/// Sends more waiting answers into the socket after the program has received some; returns `bytes`.
fn send_pending_answers_after_receive(fd: c_int, bytes: ssize_t) -> ssize_t {
    if bytes >= 0 {
        with_socket(fd, send_pending_answers);
    }
    bytes
}

/// Replaces `recv(2)`.
///
/// # Safety
/// The contract of the C library's function of this name applies.
// SAFETY: as for `socket`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recv(fd: c_int, to: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    let bytes = real!(recv(fd: c_int, to: *mut c_void, len: size_t, flags: c_int) -> ssize_t);
    send_pending_answers_after_receive(fd, bytes)
}

/// Replaces `recvfrom(2)`.
///
/// # Safety
/// The contract of the C library's function of this name applies.
// SAFETY: as for `socket`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvfrom(
    fd: c_int,
    to: *mut c_void,
    len: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> ssize_t {
    let is_ours = with_socket(fd, |_| ()).is_some();
    let room = (is_ours && !from.is_null() && !from_len.is_null()).then(|| {
        // SAFETY: by the contract of `recvfrom`.
        unsafe { *from_len }
    });
    let bytes = real!(recvfrom(
        fd: c_int, to: *mut c_void, len: size_t, flags: c_int, from: *mut sockaddr, from_len: *mut socklen_t
    ) -> ssize_t);
    if let Some(room) = room.filter(|_| bytes >= 0) {
        // SAFETY: as above; the kernel's address is 0.
        unsafe { *from_len = write_netlink_address(from.cast(), room, 0) };
    }
    send_pending_answers_after_receive(fd, bytes)
}

/// Replaces `recvmsg(2)`.
///
/// # Safety
/// The contract of the C library's function of this name applies.
// SAFETY: as for `socket`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    let is_ours = with_socket(fd, |_| ()).is_some() && !message.is_null();
    // SAFETY: by the contract of `recvmsg`.
    let name = is_ours.then(|| unsafe { ((*message).msg_name, (*message).msg_namelen) });
    let bytes = real!(recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t);
    if let Some((to, room)) = name.filter(|(to, _)| bytes >= 0 && !to.is_null()) {
        // SAFETY: as above; the kernel's address is 0.
        unsafe { (*message).msg_namelen = write_netlink_address(to, room, 0) };
    }
    send_pending_answers_after_receive(fd, bytes)
}
