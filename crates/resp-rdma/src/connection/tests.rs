//! Tests connections between two threads, and peers that violate the protocol.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use super::*;
use crate::stream::WriteTarget;
use crate::{Command, Config, Connector, Listener};

const TIMEOUT: Duration = Duration::from_secs(60);

fn connector(buffer_bytes: u32) -> Connector {
    let context = verbs::Provider::softnic()
        .device(None)
        .expect("a device")
        .open()
        .expect("the software NIC");
    let config = Config {
        receive_buffer_bytes: buffer_bytes,
        ..Config::default()
    };
    Connector::new(&context, config).expect("a connector")
}

fn listener(buffer_bytes: u32) -> (Listener, SocketAddr) {
    let any = "127.0.0.1:0".parse().expect("an address");
    let listener = connector(buffer_bytes).listen(any).expect("listens");
    let address = listener.local_addr().expect("bound");
    (listener, address)
}

/// Sleeps until a descriptor is readable.
fn sleep(fds: &[RawFd]) {
    #[allow(unsafe_code)]
    // SAFETY: the descriptors belong to a connection or listener that the caller owns.
    let fds = fds
        .iter()
        .map(|&fd| unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) })
        .collect::<Vec<_>>();
    let mut fds: Vec<PollFd<'_>> = fds
        .iter()
        .map(|fd| PollFd::new(fd, PollFlags::IN))
        .collect();
    let timeout = TIMEOUT.try_into().expect("a time");
    let ready = poll(&mut fds, Some(&timeout)).expect("polls");
    assert!(ready > 0, "nothing came for {TIMEOUT:?}");
}

fn accept(listener: &mut Listener) -> Connection {
    loop {
        match listener.accept() {
            Ok(connection) => return connection,
            Err(e) if e.kind() == ErrorKind::WouldBlock => sleep(&[listener.fd()]),
            Err(e) => panic!("{e}"),
        }
    }
}

/// Returns both ends of a connection.
fn pair(client_buffer: u32, server_buffer: u32) -> (Connection, Connection) {
    let (mut listener, address) = listener(server_buffer);
    let server = thread::spawn(move || accept(&mut listener));
    let client = connector(client_buffer).connect(address, TIMEOUT);
    let client = client.expect("connects");
    (client, server.join().expect("accepts"))
}

/// Repeats an operation until it no longer would block, either polling or sleeping.
fn retry_until<T>(
    connection: &mut Connection,
    asleep: bool,
    mut attempt: impl FnMut(&mut Connection) -> io::Result<T>,
) -> io::Result<T> {
    let begun = Instant::now();
    loop {
        match attempt(connection) {
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            done => return done,
        }
        assert!(begun.elapsed() < TIMEOUT, "nothing came for {TIMEOUT:?}");
        if asleep {
            if connection.arm_unless_arrived() {
                sleep(&connection.fds());
            }
        } else {
            connection.poll();
            thread::yield_now();
        }
    }
}

fn byte(place: usize) -> u8 {
    place.wrapping_mul(2_654_435_761).to_be_bytes()[7 - 3]
}

/// Sends a stream of `total` bytes in pieces of `piece`, and reads as many at the same time.
fn transfer_stream(connection: &mut Connection, total: usize, piece: usize, asleep: bool) {
    let (mut sent, mut got) = (0, 0);
    let mut buffer = vec![0; 10_007];
    while sent < total || got < total {
        let bytes: Vec<u8> = (sent..total.min(sent + piece)).map(byte).collect();
        let step = retry_until(connection, asleep, |c| {
            let mut any = false;
            if !bytes.is_empty() {
                match c.write(&bytes) {
                    Ok(n) => (sent, any) = (sent + n, true),
                    Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                    Err(e) => return Err(e),
                }
            }
            match c.read(&mut buffer) {
                Ok(0) => panic!("the peer has gone at {got} of {total} bytes"),
                Ok(n) => {
                    for (i, &b) in buffer[..n].iter().enumerate() {
                        assert_eq!(b, byte(got + i), "at {}", got + i);
                    }
                    got += n;
                    Ok(())
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock && any => Ok(()),
                Err(e) => Err(e),
            }
        });
        step.expect("the connection lasts");
    }
}

#[test]
fn both_ends_stream_at_once_through_buffers_that_fill() {
    for (client, server, piece, asleep) in [
        (64 << 10, 64 << 10, 64 << 10, true),
        (64 << 10, 128 << 10, 999, false),
        (256 << 10, 64 << 10, 100_000, true),
        (64 << 10, 64 << 10, 17, true),
    ] {
        let total = if piece < 100 { 200_000 } else { 3_000_000 };
        let (mut one, mut other) = pair(client, server);
        let there = thread::spawn(move || {
            transfer_stream(&mut other, total, 70_001, asleep);
            other
        });
        transfer_stream(&mut one, total, piece, asleep);
        let mut other = there.join().expect("the other end");
        drop(one);
        let end = retry_until(&mut other, true, |c| c.read(&mut [0; 10]));
        assert_eq!(end.expect("a clean end"), 0);
        let refused = retry_until(&mut other, true, |c| c.write(b"late"));
        assert_eq!(refused.expect_err("over").kind(), ErrorKind::BrokenPipe);
    }
}

#[test]
fn more_small_writes_than_receives_all_arrive() {
    let (mut client, mut server) = pair(64 << 10, 64 << 10);
    let writer = thread::spawn(move || {
        for i in 0..5_000usize {
            let step = retry_until(&mut client, true, |c| c.write(&[byte(i)]));
            assert_eq!(step.expect("writes"), 1);
        }
        client
    });
    // The server reads nothing while the client fills its send queue.
    thread::sleep(Duration::from_millis(100));
    let mut got = 0;
    let mut buffer = [0; 4096];
    while got < 5_000 {
        let n = retry_until(&mut server, true, |c| c.read(&mut buffer)).expect("reads");
        for (i, &b) in buffer[..n].iter().enumerate() {
            assert_eq!(b, byte(got + i));
        }
        got += n;
    }
    drop(writer.join().expect("the writer"));
}

/// Lets the server process its ESTABLISHED event, and the client learn the server's buffer.
fn establish(client: &mut Connection, server: &mut Connection) {
    let met = retry_until(client, false, |c| {
        let nothing = server.read(&mut [0; 1]).expect_err("nothing was sent");
        assert_eq!(nothing.kind(), ErrorKind::WouldBlock);
        match c.stream.free_peer_buffer_bytes() {
            0 => Err(nothing),
            _ => Ok(()),
        }
    });
    met.expect("told");
}

/// Lets a client violate the protocol, and checks the error with which the server's connection
/// ends.
fn expect_violation(what: impl FnOnce(&mut Connection), kind: ErrorKind) {
    let (mut listener, address) = listener(64 << 10);
    let clients = thread::spawn(move || {
        let connector = connector(64 << 10);
        let both = [(); 2].map(|()| connector.connect(address, TIMEOUT).expect("connects"));
        both.into_iter().map(Some).collect::<Vec<_>>()
    });
    let (mut bad_server, mut good_server) = (accept(&mut listener), accept(&mut listener));
    let mut clients = clients.join().expect("connected");
    let (mut bad, mut good) = (
        clients[0].take().expect("one"),
        clients[1].take().expect("one"),
    );
    establish(&mut bad, &mut bad_server);
    what(&mut bad);
    let read = retry_until(&mut bad_server, true, |c| match c.read(&mut [0; 64]) {
        Ok(n) if n > 0 => Err(ErrorKind::WouldBlock.into()),
        other => other,
    });
    let error = read.expect_err("an error");
    assert_eq!(error.kind(), kind, "{error}");
    let again = bad_server.read(&mut [0; 64]);
    assert_eq!(again.expect_err("it stays").to_string(), error.to_string());
    // The violating peer is disconnected; other connections continue.
    drop(bad_server);
    assert!(retry_until(&mut bad, true, |c| c.read(&mut [0; 64])).map_or(true, |n| n == 0));
    establish(&mut good, &mut good_server);
    good.write_all(b"good").expect("writes");
    let mut buffer = [0; 10];
    let got = retry_until(&mut good_server, true, |c| c.read(&mut buffer));
    assert_eq!(buffer[..got.expect("reads")], *b"good");
}

fn command(bytes: [u8; 32]) -> impl FnOnce(&mut Connection) {
    move |c| c.qp.send_command(&bytes).expect("posts")
}

#[test]
fn an_unknown_opcode_ends_its_connection_only() {
    expect_violation(command([0xff; 32]), ErrorKind::InvalidData);
}

#[test]
fn a_buffer_without_bytes_ends_its_connection_only() {
    let none = Command::RegisterXferMemory(crate::AnnouncedBuffer {
        addr: 4096,
        len: 0,
        rkey: 1,
    });
    expect_violation(command(none.encode()), ErrorKind::InvalidData);
}

/// WRITEs `bytes` to `offset` of the server's buffer, with this immediate and a changed R_Key.
fn write(bytes: &'static [u8], offset: u64, imm: u32, key: u32) -> impl FnOnce(&mut Connection) {
    move |c| {
        let WriteTarget { addr, rkey, .. } = c.stream.reserve_write(1).expect("it knows where");
        let (addr, rkey) = (addr.wrapping_add(offset), rkey ^ key);
        let len = imm;
        c.qp.write_raw(bytes, WriteTarget { addr, len, rkey })
            .expect("posts");
    }
}

#[test]
fn wrong_immediates_end_their_connection_only() {
    expect_violation(write(b"abc", 0, u32::MAX, 0), ErrorKind::InvalidData);
    expect_violation(write(b"abc", 0, (64 << 10) + 1, 0), ErrorKind::InvalidData);
    expect_violation(write(b"abc", 0, 2, 0), ErrorKind::InvalidData);
}

#[test]
fn wrong_addresses_and_keys_end_their_connection_only() {
    expect_violation(write(b"abc", 64 << 10, 3, 0), ErrorKind::ConnectionReset);
    expect_violation(write(b"abc", 0, 3, 0x100), ErrorKind::ConnectionReset);
}

#[test]
fn control_messages_of_other_lengths_end_their_connection_only() {
    for len in [0, 31] {
        let short = |c: &mut Connection| c.qp.send_raw(&[0; 40][..len]).expect("posts");
        expect_violation(short, ErrorKind::InvalidData);
    }
    // The message exceeds the receive buffer.
    let long = |c: &mut Connection| c.qp.send_raw(&[0; 40]).expect("posts");
    expect_violation(long, ErrorKind::ConnectionReset);
}

#[test]
fn a_server_that_nobody_runs_refuses() {
    let (listener, address) = listener(64 << 10);
    drop(listener);
    let refused = connector(64 << 10).connect(address, TIMEOUT);
    let error = refused.expect_err("nobody listens");
    assert!(error.to_string().contains("refuses"), "{error}");
}

#[test]
fn keep_alives_say_nothing() {
    let (mut client, mut server) = pair(64 << 10, 64 << 10);
    establish(&mut client, &mut server);
    client.write_all(b"x").expect("writes");
    for _ in 0..3 {
        server.send_keep_alive().expect("sends");
    }
    let got = retry_until(&mut server, true, |c| c.read(&mut [0; 2]));
    assert_eq!(got.expect("reads"), 1);
    server.write_all(b"y").expect("writes");
    let got = retry_until(&mut client, true, |c| c.read(&mut [0; 2]));
    assert_eq!(got.expect("reads"), 1);
}

/// Returns the keys that become ready within [`TIMEOUT`].
fn wait_for_keys(connector: &Connector) -> Vec<usize> {
    let mut keys = Vec::new();
    while keys.is_empty() {
        sleep(&connector.shared_fds().expect("shared"));
        connector.take_ready(|key| keys.push(key));
    }
    keys.sort_unstable();
    keys.dedup();
    keys
}

#[test]
fn connections_that_share_descriptors_are_woken_by_their_keys() {
    const COUNT: usize = 20;
    let any = "127.0.0.1:0".parse().expect("an address");
    let on_server = connector(64 << 10)
        .with_shared_descriptors()
        .expect("shared");
    let mut listener = on_server.listen(any).expect("listens");
    let address = listener.local_addr().expect("bound");
    let connecting = thread::spawn(move || {
        let connector = connector(64 << 10)
            .with_shared_descriptors()
            .expect("shared");
        (0..COUNT)
            .map(|_| connector.connect(address, TIMEOUT).expect("connects"))
            .collect::<Vec<_>>()
    });
    let mut servers: Vec<Connection> = (0..COUNT).map(|_| accept(&mut listener)).collect();
    let mut clients = connecting.join().expect("connected");
    for (key, server) in servers.iter().enumerate() {
        server.set_key(key);
        assert_eq!(Some(server.fds()), on_server.shared_fds());
    }
    for (client, server) in clients.iter_mut().zip(&mut servers) {
        establish(client, server);
    }
    on_server.take_ready(drop);
    for number in [3, 19, 0, 3] {
        for server in &mut servers {
            while !server.arm_unless_arrived() {}
        }
        clients[number].write_all(b"x").expect("writes");
        let keys = wait_for_keys(&on_server);
        assert!(keys.contains(&number) && keys.len() < COUNT, "{keys:?}");
        let got = retry_until(&mut servers[number], false, |c| c.read(&mut [0; 2]));
        assert_eq!(got.expect("reads"), 1);
    }
    let refused = servers[0].wait_for_arrival(Duration::ZERO);
    assert_eq!(refused.expect_err("shared").kind(), ErrorKind::Unsupported);
    drop(clients.swap_remove(7));
    let mut gone = wait_for_keys(&on_server);
    while !gone.contains(&7) {
        gone = wait_for_keys(&on_server);
    }
    let end = retry_until(&mut servers[7], false, |c| c.read(&mut [0; 2]));
    assert_eq!(end.expect("a clean end"), 0);
    // Events of a connection that is gone are reported to nobody.
    drop(servers.swap_remove(7));
    on_server.take_ready(|key| assert_ne!(key, 7));
}
