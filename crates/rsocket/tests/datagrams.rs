//! Tests of datagram sockets by their C functions, in one process.

use std::ffi::c_int;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::Once;

use libc::{sockaddr, sockaddr_in, socklen_t};
use rdmacm::abi::{rdma_create_event_channel, rdma_destroy_event_channel, rdma_get_cm_event};
use rdmacm::{DEFAULT_ANSWER_TIMEOUT, Provider};
use rsocket::abi::*;

/// Length of a `sockaddr_in`.
const ADDRLEN: socklen_t = 16;

/// Sets up a fabric for this test program, whose folder the next run uses again.
fn fabric() {
    static READY: Once = Once::new();
    READY.call_once(|| {
        // SAFETY: all other code that reads the environment waits for this function first.
        unsafe { std::env::set_var("VERBATIM_FABRIC", "rsocket_datagrams") };
        rdmacm::set_provider_finder(|| {
            Ok(Provider {
                verbs: softnic::symbols(),
                fabric_dir: softnic::fabric_dir().map_err(|_| libc::EINVAL)?,
                gsi: None,
                answer_timeout: DEFAULT_ANSWER_TIMEOUT,
            })
        });
    });
}

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn to_c(addr: SocketAddr) -> sockaddr_in {
    let SocketAddr::V4(addr) = addr else {
        panic!("IPv4: {addr}")
    };
    // SAFETY: the structure has only integers, for which zero is valid.
    let mut c: sockaddr_in = unsafe { std::mem::zeroed() };
    c.sin_family = libc::AF_INET.try_into().expect("a small number");
    c.sin_port = addr.port().to_be();
    c.sin_addr.s_addr = u32::from_ne_bytes(addr.ip().octets());
    c
}

fn from_c(c: &sockaddr_in) -> SocketAddr {
    let ip = Ipv4Addr::from(c.sin_addr.s_addr.to_ne_bytes());
    SocketAddrV4::new(ip, u16::from_be(c.sin_port)).into()
}

/// A datagram socket, which is closed on drop.
struct Socket(c_int);

impl Socket {
    fn new() -> Self {
        fabric();
        // SAFETY: plain values.
        let fd = unsafe { rsocket(libc::AF_INET, libc::SOCK_DGRAM, 0) };
        assert!(fd >= 0, "errno {}", errno());
        Self(fd)
    }

    fn bound(to: SocketAddr) -> Self {
        let new = Self::new();
        let c = to_c(to);
        // SAFETY: an address and its length.
        let failed = unsafe { rbind(new.0, (&raw const c).cast(), ADDRLEN) };
        assert_eq!(failed, 0, "errno {}", errno());
        new
    }

    fn anywhere() -> Self {
        Self::bound("127.0.0.1:0".parse().expect("an address"))
    }

    fn connect(&self, to: SocketAddr) {
        let c = to_c(to);
        // SAFETY: an address and its length.
        let failed = unsafe { rconnect(self.0, (&raw const c).cast(), ADDRLEN) };
        assert_eq!(failed, 0, "errno {}", errno());
    }

    fn name(&self) -> SocketAddr {
        let mut c = to_c("0.0.0.0:0".parse().expect("an address"));
        let mut len = ADDRLEN;
        // SAFETY: places for the results.
        let failed = unsafe { rgetsockname(self.0, (&raw mut c).cast(), &raw mut len) };
        assert_eq!((failed, len), (0, ADDRLEN));
        from_c(&c)
    }

    fn send_to(&self, bytes: &[u8], to: SocketAddr) -> Result<usize, c_int> {
        let c = to_c(to);
        let to: *const sockaddr = (&raw const c).cast();
        // SAFETY: bytes and an address with their lengths.
        let sent = unsafe { rsendto(self.0, bytes.as_ptr().cast(), bytes.len(), 0, to, ADDRLEN) };
        usize::try_from(sent).map_err(|_| errno())
    }

    fn send(&self, bytes: &[u8]) -> Result<usize, c_int> {
        // SAFETY: bytes with their length.
        let sent = unsafe { rsend(self.0, bytes.as_ptr().cast(), bytes.len(), 0) };
        usize::try_from(sent).map_err(|_| errno())
    }

    fn recv_from(&self, room: usize, flags: c_int) -> Result<(Vec<u8>, usize, SocketAddr), c_int> {
        let mut bytes = vec![0u8; room];
        let mut c = to_c("0.0.0.0:0".parse().expect("an address"));
        let mut len = ADDRLEN;
        // SAFETY: places for the results.
        let got = unsafe {
            let from = (&raw mut c).cast();
            rrecvfrom(
                self.0,
                bytes.as_mut_ptr().cast(),
                room,
                flags,
                from,
                &raw mut len,
            )
        };
        let got = usize::try_from(got).map_err(|_| errno())?;
        bytes.truncate(got);
        Ok((bytes, got, from_c(&c)))
    }

    /// Waits for a datagram; returns it with its sender, or `None` at the timeout.
    fn wait(&self, timeout_ms: c_int) -> Option<(Vec<u8>, SocketAddr)> {
        let mut fd = libc::pollfd {
            fd: self.0,
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one entry.
        let found = unsafe { rpoll(&raw mut fd, 1, timeout_ms) };
        (found == 1).then(|| {
            let (bytes, _, from) = self
                .recv_from(4096, libc::MSG_DONTWAIT)
                .expect("it is there");
            (bytes, from)
        })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // SAFETY: a live socket.
        unsafe { rclose(self.0) };
    }
}

#[test]
fn datagrams_come_whole_in_order_and_with_their_senders() {
    let (a, b) = (Socket::anywhere(), Socket::anywhere());
    for n in 0..2000u32 {
        let bytes = n.to_le_bytes().repeat(1 + n as usize % 900);
        assert_eq!(a.send_to(&bytes, b.name()), Ok(bytes.len()));
        assert_eq!(b.wait(10_000), Some((bytes.clone(), a.name())), "{n}");
        // The same in the other direction.
        assert_eq!(b.send_to(&bytes, a.name()), Ok(bytes.len()));
        assert_eq!(a.wait(10_000), Some((bytes, b.name())), "{n}");
    }
    assert_eq!(b.send_to(b"", a.name()), Ok(0));
    assert_eq!(a.wait(10_000), Some((vec![], b.name())));
}

#[test]
fn a_datagram_is_cut_off_peeked_at_and_no_longer_than_a_message() {
    let (a, b) = (Socket::anywhere(), Socket::anywhere());
    // The first round goes over UDP, the second one over RDMA.
    for _ in 0..2 {
        a.send_to(b"0123456789", b.name()).expect("sent");
        let peeked = b.recv_from(4, libc::MSG_PEEK).expect("there");
        assert_eq!(peeked, (b"0123".to_vec(), 4, a.name()));
        let mut bytes = [0u8; 4];
        // SAFETY: a place for four bytes.
        let got = unsafe { rrecv(b.0, bytes.as_mut_ptr().cast(), 4, libc::MSG_TRUNC) };
        assert_eq!((got, &bytes), (10, b"0123"));
        b.send_to(b"!", a.name()).expect("sent");
        a.recv_from(10, 0).expect("an answer");
    }
    assert_eq!(b.recv_from(4, libc::MSG_DONTWAIT).err(), Some(libc::EAGAIN));
    assert_eq!(a.send_to(&[0; 4097], b.name()), Err(libc::EMSGSIZE));
    assert_eq!(a.send(b"x"), Err(libc::EDESTADDRREQ));
    // SAFETY: plain values. Datagram sockets cannot listen.
    assert_eq!(unsafe { rlisten(a.0, 1) }, -1);
    assert_eq!(errno(), libc::EOPNOTSUPP);
}

#[test]
fn a_connected_socket_hears_its_peer_alone() {
    let (server, stranger) = (Socket::anywhere(), Socket::anywhere());
    let client = Socket::new();
    client.connect(server.name());
    for _ in 0..3 {
        assert_eq!(client.send(b"hello"), Ok(5));
        let (bytes, from) = server.wait(10_000).expect("it comes");
        assert_eq!((&bytes[..], from), (&b"hello"[..], client.name()));
        stranger.send_to(b"me too", client.name()).expect("sent");
        server.send_to(b"welcome", from).expect("sent");
        assert_eq!(
            client.wait(10_000),
            Some((b"welcome".to_vec(), server.name()))
        );
    }
}

#[test]
fn nobody_there_is_refused_and_a_server_that_comes_back_is_found() {
    let server = Socket::anywhere();
    let at = server.name();
    let client = Socket::new();
    client.connect(at);
    client.send(b"1").expect("sent");
    server.wait(10_000).expect("it comes");
    // Both sides know each other's queue pair now.
    server.send_to(b"2", client.name()).expect("sent");
    client.wait(10_000).expect("it comes");
    drop(server);
    // Datagrams are lost until one is sent over UDP again.
    let refused = (0..1000).find_map(|_| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        client.send(b"3").err()
    });
    assert_eq!(refused, Some(libc::ECONNREFUSED));
    let server = Socket::bound(at);
    let heard = (0..1000).find_map(|_| {
        let _ = client.send(b"4");
        server.wait(10)
    });
    assert_eq!(heard, Some((b"4".to_vec(), client.name())));
}

#[test]
fn messages_of_several_buffers_are_one_datagram() {
    let (a, b) = (Socket::anywhere(), Socket::anywhere());
    let iov = |bytes: &mut [u8]| libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    let mut to = to_c(b.name());
    let (mut x, mut y) = (*b"scat", *b"tered");
    let mut parts = [iov(&mut x), iov(&mut y)];
    // SAFETY: zero is valid for the structure's integers and pointers; buffers and addresses are valid for their
    // lengths.
    unsafe {
        let mut msg: libc::msghdr = std::mem::zeroed();
        msg.msg_name = (&raw mut to).cast();
        msg.msg_namelen = ADDRLEN;
        msg.msg_iov = parts.as_mut_ptr();
        msg.msg_iovlen = 2;
        assert_eq!(rsendmsg(a.0, &raw const msg, 0), 9);
        let (mut head, mut tail) = ([0; 2], [0; 20]);
        let mut parts = [iov(&mut head), iov(&mut tail)];
        msg.msg_iov = parts.as_mut_ptr();
        assert_eq!(rrecvmsg(b.0, &raw mut msg, 0), 9);
        assert_eq!((&head, &tail[..7]), (b"sc", &b"attered"[..]));
        assert_eq!((from_c(&to), msg.msg_namelen), (a.name(), ADDRLEN));
    }
}

/// Datagram sockets have UDP addresses.
#[test]
fn datagrams_have_no_addresses_of_infiniband() {
    fabric();
    // SAFETY: plain values.
    let made = unsafe { rsocket(verbs_abi::AF_IB, libc::SOCK_DGRAM, 0) };
    assert_eq!((made, errno()), (-1, libc::EAFNOSUPPORT));
}

#[test]
fn options_and_flags_are_remembered() {
    let socket = Socket::new();
    let get = |level: c_int, name: c_int| {
        let (mut value, mut len): (c_int, socklen_t) = (-1, 4);
        // SAFETY: places for the results.
        let failed =
            unsafe { rgetsockopt(socket.0, level, name, (&raw mut value).cast(), &raw mut len) };
        (failed == 0).then_some(value)
    };
    let set = |level: c_int, name: c_int, value: c_int| {
        // SAFETY: a value and its length.
        unsafe { rsetsockopt(socket.0, level, name, (&raw const value).cast(), 4) }
    };
    assert_eq!(get(libc::SOL_SOCKET, libc::SO_TYPE), Some(libc::SOCK_DGRAM));
    assert_eq!(set(verbs_abi::SOL_RDMA, verbs_abi::RDMA_SQSIZE, 17), 0);
    assert_eq!(get(verbs_abi::SOL_RDMA, verbs_abi::RDMA_SQSIZE), Some(17));
    assert_eq!(set(libc::SOL_SOCKET, libc::SO_RCVBUF, 1 << 16), 0);
    assert_eq!(set(libc::IPPROTO_TCP, libc::TCP_NODELAY, 1), -1);
    assert_eq!(errno(), libc::ENOTSUP);
    // SAFETY: plain values.
    unsafe {
        assert_eq!(rfcntl(socket.0, libc::F_SETFL, libc::O_NONBLOCK.into()), 0);
        assert_eq!(
            rfcntl(socket.0, libc::F_GETFL, 0),
            libc::O_RDWR | libc::O_NONBLOCK
        );
    }
    socket.connect("127.0.0.1:9".parse().expect("an address"));
    assert_eq!(socket.recv_from(1, 0).err(), Some(libc::EAGAIN));
    assert_eq!(
        set(verbs_abi::SOL_RDMA, verbs_abi::RDMA_SQSIZE, 18),
        -1,
        "its queues are there"
    );
}

/// Simulates a program's event thread that calls too late.
#[test]
fn a_channel_that_was_just_destroyed_has_no_events_and_is_not_destroyed_twice() {
    fabric();
    // SAFETY: a handle of the library, destroyed a moment ago, which the library still keeps.
    unsafe {
        let channel = rdma_create_event_channel();
        assert!(!channel.is_null());
        rdma_destroy_event_channel(channel);
        let mut event = std::ptr::null_mut();
        assert_eq!(rdma_get_cm_event(channel, &raw mut event), -1);
        assert_eq!(errno(), libc::EBADF);
        rdma_destroy_event_channel(channel);
    }
}
