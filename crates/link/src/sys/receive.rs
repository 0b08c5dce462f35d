//! `recvmmsg(2)` with buffers for the largest datagram and with control messages.

use std::io;
use std::mem::{MaybeUninit, zeroed};
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::ControlBuffer;
use super::address::RawAddress;

/// Largest number of messages per system call.
pub(crate) const MAX_MESSAGES_PER_CALL: usize = 16;

/// Largest number of bytes of a message: a UDP payload, which the kernel may have coalesced from several packets (GRO).
const MAX_MESSAGE_BYTES: usize = 65_536;

/// Distance between the starts of buffers. Small packets use only the start of a buffer, and this distance maps the
/// starts to different sets of the L1 cache.
const BUFFER_STRIDE_BYTES: usize = MAX_MESSAGE_BYTES + 1536;

/// Bytes for the control messages: traffic class, hop limit, segment size.
const CONTROL_BYTES: usize = 128;

/// The buffers of one receiver.
pub(crate) struct MessageBuffers {
    bytes: Vec<u8>,
    addresses: [RawAddress; MAX_MESSAGES_PER_CALL],
    control_buffers: Box<[ControlBuffer<CONTROL_BYTES>; MAX_MESSAGES_PER_CALL]>,
    lens: [MessageLens; MAX_MESSAGES_PER_CALL],
}

#[derive(Clone, Copy, Default)]
struct MessageLens {
    data_bytes: usize,
    control_bytes: usize,
}

/// A received message: one packet, or several that the kernel has coalesced.
pub(crate) struct ReceivedMessage<'a> {
    pub(crate) source: IpAddr,
    pub(crate) source_port: u16,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: Option<u8>,
    /// Bytes of each packet except the last.
    pub(crate) segment_bytes: usize,
    pub(crate) bytes: &'a [u8],
}

impl MessageBuffers {
    /// Makes buffers, whose memory is only allocated when it is used.
    pub(crate) fn new() -> MessageBuffers {
        MessageBuffers {
            bytes: vec![0; BUFFER_STRIDE_BYTES * MAX_MESSAGES_PER_CALL],
            addresses: [RawAddress::NONE; MAX_MESSAGES_PER_CALL],
            control_buffers: Box::new([ControlBuffer([0; CONTROL_BYTES]); MAX_MESSAGES_PER_CALL]),
            lens: [MessageLens::default(); MAX_MESSAGES_PER_CALL],
        }
    }

    /// Receives at most `limit` messages without waiting; returns their number.
    ///
    /// # Errors
    /// The error of the first message. An empty queue is not an error.
    pub(crate) fn receive(&mut self, socket: BorrowedFd<'_>, limit: usize) -> io::Result<usize> {
        let count = limit.clamp(1, MAX_MESSAGES_PER_CALL);
        let mut vectors = [MaybeUninit::<libc::iovec>::uninit(); MAX_MESSAGES_PER_CALL];
        let mut headers = [MaybeUninit::<libc::mmsghdr>::uninit(); MAX_MESSAGES_PER_CALL];
        let buffers = self.bytes.chunks_mut(BUFFER_STRIDE_BYTES);
        for (i, buffer) in buffers.take(count).enumerate() {
            let vector = vectors[i].write(libc::iovec {
                iov_base: buffer.as_mut_ptr().cast(),
                iov_len: MAX_MESSAGE_BYTES,
            });
            // SAFETY: zero bytes are a valid `msghdr`, with null pointers of length 0.
            let mut header: libc::msghdr = unsafe { zeroed() };
            header.msg_name = (&raw mut self.addresses[i]).cast();
            header.msg_namelen = size_of::<RawAddress>() as libc::socklen_t;
            header.msg_iov = vector;
            header.msg_iovlen = 1;
            header.msg_control = self.control_buffers[i].0.as_mut_ptr().cast();
            header.msg_controllen = CONTROL_BYTES as _;
            headers[i].write(libc::mmsghdr {
                msg_hdr: header,
                msg_len: 0,
            });
        }
        // The code does not call `recvmmsg(3)`, which is a cancellation point: programs cancel threads that poll.
        // SAFETY: the first `count` headers are initialised. They point to buffers, addresses and controls of `self`,
        // which is borrowed mutably, and to vectors of this function, each with its length.
        let received = unsafe {
            libc::syscall(
                libc::SYS_recvmmsg,
                socket.as_raw_fd(),
                headers.as_mut_ptr(),
                count,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut::<libc::timespec>(),
            )
        };
        let Ok(received) = usize::try_from(received) else {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(0),
                _ => Err(error),
            };
        };
        for (lens, header) in self.lens.iter_mut().zip(&headers[..received]) {
            // SAFETY: `received` is at most `count`, and the first `count` headers are initialised.
            let header = unsafe { header.assume_init_ref() };
            *lens = MessageLens {
                data_bytes: header.msg_len as usize,
                control_bytes: header.msg_hdr.msg_controllen,
            };
        }
        Ok(received)
    }

    /// Returns memory for another datagram; the last received messages are lost.
    pub(crate) fn scratch_discarding_messages(&mut self) -> &mut [u8] {
        self.lens = [MessageLens::default(); MAX_MESSAGES_PER_CALL];
        &mut self.bytes[..BUFFER_STRIDE_BYTES]
    }

    /// Returns message `i` of the last call; `None` if it was not received, or its source is not an IP address.
    pub(crate) fn message(&self, i: usize) -> Option<ReceivedMessage<'_>> {
        let lens = self.lens.get(i)?;
        let (source, source_port) = self.addresses[i].ip_and_port()?;
        let start = i * BUFFER_STRIDE_BYTES;
        let bytes = &self.bytes[start..start + lens.data_bytes.min(MAX_MESSAGE_BYTES)];
        let control = &self.control_buffers[i].0[..lens.control_bytes.min(CONTROL_BYTES)];
        let mut message = ReceivedMessage {
            source,
            source_port,
            traffic_class: 0,
            hop_limit: None,
            segment_bytes: bytes.len(),
            bytes,
        };
        message.parse_control_messages(control);
        Some(message)
    }
}

impl ReceivedMessage<'_> {
    fn parse_control_messages(&mut self, mut control: &[u8]) {
        const HEADER: usize = size_of::<libc::cmsghdr>();
        while let Some((len, level, kind)) = first_control_message_header(control) {
            let Some(data) = control.get(HEADER..len) else {
                return;
            };
            let value = parse_control_value(data);
            match (level, kind) {
                (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    self.traffic_class = value.to_le_bytes()[0];
                }
                (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                    self.hop_limit = u8::try_from(value).ok();
                }
                (libc::SOL_UDP, libc::UDP_GRO) => {
                    if let Some(segment) = usize::try_from(value).ok().filter(|s| *s > 0) {
                        self.segment_bytes = segment;
                    }
                }
                _ => {}
            }
            control = control.get(len.next_multiple_of(8)..).unwrap_or_default();
        }
    }
}

/// Returns length (with header), level and type of the first control message.
fn first_control_message_header(control: &[u8]) -> Option<(usize, i32, i32)> {
    let (len, rest) = control.split_first_chunk()?;
    let rest = rest.get(size_of::<libc::cmsghdr>() - 8 - size_of::<usize>()..)?;
    let (level, rest) = rest.split_first_chunk()?;
    let (kind, _) = rest.split_first_chunk()?;
    let len = usize::from_ne_bytes(*len);
    let header = (len, i32::from_ne_bytes(*level), i32::from_ne_bytes(*kind));
    (len >= size_of::<libc::cmsghdr>()).then_some(header)
}

/// Reads the value of a control message: an `int`, or a byte (`IP_TOS`).
fn parse_control_value(data: &[u8]) -> i32 {
    match data {
        [a, b, c, d, ..] => i32::from_ne_bytes([*a, *b, *c, *d]),
        [a, ..] => i32::from(*a),
        [] => 0,
    }
}
