//! `sendmmsg(2)` of bursts that the kernel segments.

use std::io;
use std::mem::{MaybeUninit, size_of, zeroed};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::ControlBuffer;
use super::address::RawAddress;

/// Largest number of messages per system call.
pub(crate) const MAX_MESSAGES_PER_CALL: usize = 16;

/// Bytes of a burst's control messages: segment size, traffic class, hop limit.
const CONTROL_BYTES: usize = 3 * cmsg_space(size_of::<i32>());

/// A burst with its destination.
pub(crate) struct BurstMessage<'a> {
    pub(crate) destination: SocketAddr,
    pub(crate) bytes: &'a [u8],
    /// Bytes of each packet except the last; `None` for a single packet.
    pub(crate) segment_bytes: Option<u16>,
    pub(crate) traffic_class: u8,
    /// Hop limit; 0 for the host's default.
    pub(crate) hop_limit: u8,
}

/// Sends the first messages, at most [`MAX_MESSAGES_PER_CALL`]; returns the number that the kernel took.
///
/// # Errors
/// The error of the first message; nothing was sent.
pub(crate) fn send_bursts(
    socket: BorrowedFd<'_>,
    messages: &[BurstMessage<'_>],
) -> io::Result<usize> {
    match messages {
        [] => Ok(0),
        [_] => send_some::<1>(socket, messages),
        _ => send_some::<MAX_MESSAGES_PER_CALL>(socket, messages),
    }
}

fn send_some<const N: usize>(
    socket: BorrowedFd<'_>,
    messages: &[BurstMessage<'_>],
) -> io::Result<usize> {
    let mut addresses = [RawAddress::NONE; N];
    let mut vectors = [MaybeUninit::<libc::iovec>::uninit(); N];
    let mut controls = [ControlBuffer([0; CONTROL_BYTES]); N];
    let mut headers = [MaybeUninit::<libc::mmsghdr>::uninit(); N];
    let count = messages.len().min(N);
    for (i, message) in messages[..count].iter().enumerate() {
        let (address, address_len) = RawAddress::new(&message.destination);
        addresses[i] = address;
        let control_len = write_control_messages(message, &mut controls[i]);
        let vector = vectors[i].write(libc::iovec {
            iov_base: message.bytes.as_ptr().cast_mut().cast(),
            iov_len: message.bytes.len(),
        });
        // SAFETY: zero bytes are a valid `msghdr`, with null pointers of length 0.
        let mut header: libc::msghdr = unsafe { zeroed() };
        header.msg_name = (&raw mut addresses[i]).cast();
        header.msg_namelen = address_len;
        header.msg_iov = vector;
        header.msg_iovlen = 1;
        if control_len > 0 {
            header.msg_control = controls[i].0.as_mut_ptr().cast();
            header.msg_controllen = control_len as _;
        }
        headers[i].write(libc::mmsghdr {
            msg_hdr: header,
            msg_len: 0,
        });
    }
    // The code does not call `sendmmsg(3)`, which is a cancellation point: programs cancel threads that post. SAFETY:
    // the first `count` headers are initialised. They point to the addresses, vectors, controls and the bytes of the
    // messages. These live until the end of this function, and the kernel only reads them.
    let sent = unsafe {
        libc::syscall(
            libc::SYS_sendmmsg,
            socket.as_raw_fd(),
            headers.as_mut_ptr(),
            count,
            libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
        )
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Writes the control messages of `message` and returns their length.
fn write_control_messages(
    message: &BurstMessage<'_>,
    control: &mut ControlBuffer<CONTROL_BYTES>,
) -> usize {
    let (level, class, limit) = match message.destination {
        SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TOS, libc::IP_TTL),
        SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::IPV6_HOPLIMIT),
    };
    let mut len = 0;
    if let Some(segment) = message.segment_bytes {
        len += write_cmsg(
            control,
            len,
            (libc::SOL_UDP, libc::UDP_SEGMENT),
            &segment.to_ne_bytes(),
        );
    }
    if message.traffic_class != 0 {
        let value = i32::from(message.traffic_class).to_ne_bytes();
        len += write_cmsg(control, len, (level, class), &value);
    }
    if message.hop_limit != 0 {
        let value = i32::from(message.hop_limit).to_ne_bytes();
        len += write_cmsg(control, len, (level, limit), &value);
    }
    len
}

/// Returns the bytes of a control message with `len` bytes of data (`CMSG_SPACE`).
const fn cmsg_space(len: usize) -> usize {
    // SAFETY: the function is pure arithmetic.
    unsafe { libc::CMSG_SPACE(len as u32) as usize }
}

/// Writes a control message at `offset`; returns its space.
fn write_cmsg(
    control: &mut ControlBuffer<CONTROL_BYTES>,
    offset: usize,
    (level, kind): (i32, i32),
    data: &[u8],
) -> usize {
    // SAFETY: the functions are pure arithmetic.
    let (start, len) = unsafe { (libc::CMSG_LEN(0), libc::CMSG_LEN(data.len() as u32)) };
    let space = cmsg_space(data.len());
    let bytes = &mut control.0[offset..offset + space];
    // `cmsghdr` contains the length, the level and the type, in this order.
    let header = size_of::<libc::cmsghdr>();
    bytes[..size_of::<usize>()].copy_from_slice(&(len as usize).to_ne_bytes());
    bytes[header - 8..header - 4].copy_from_slice(&level.to_ne_bytes());
    bytes[header - 4..header].copy_from_slice(&kind.to_ne_bytes());
    bytes[start as usize..start as usize + data.len()].copy_from_slice(data);
    space
}
