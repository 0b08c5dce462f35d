//! Blocking streams without an async runtime: calls wait until they can proceed, with optional
//! timeouts.

use std::io::{self, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::connection::Connection;
use crate::error::{SetupError, StreamError};
use crate::handshake::{ClientHandshake, ClientRequest, ServerAnswer, ServerHandshake, encode_ack};
use crate::listener::BACKLOG;
use crate::nic::{Config, ConfigAndNic, Nic, RdmaPolicy};
use crate::pool::Pool;
use crate::prepared_connection::PreparedConnection;
use crate::tcp_beside_rdma;

/// Maximum time for which dropping a stream waits until the peer's NIC has received all sent data.
const DROP_FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Connects blocking streams to servers. Clones of a connector share the device and its pool.
#[derive(Debug, Clone)]
pub struct Connector {
    config_and_nic: Arc<ConfigAndNic>,
}

impl Connector {
    /// Creates a connector with its own device.
    ///
    /// # Errors
    /// Returns an error if a value of the configuration is invalid, or RDMA is required and the
    /// device cannot be opened.
    pub fn new(config: Config) -> Result<Self, SetupError> {
        Ok(Self {
            config_and_nic: Arc::new(ConfigAndNic::new(config)?),
        })
    }

    /// Connects to a server: TCP first, then the handshake. If the server speaks another protocol,
    /// the connector connects again by plain TCP, unless RDMA is required. Such a server answers
    /// the hello with other bytes, closes the connection, or sends nothing within
    /// [`handshake_timeout`](Config::handshake_timeout).
    ///
    /// # Errors
    /// Returns an error if no server listens at the address, the handshake fails, or RDMA is
    /// required and unavailable.
    pub fn connect(&self, address: SocketAddr) -> io::Result<Stream> {
        let setup = &*self.config_and_nic;
        let tcp = connect_tcp(address)?;
        let Some(prepared) = setup.prepare_client(Nic::prepare_qp_with_own_channel)? else {
            return Ok(Stream::over_tcp(tcp, Vec::new()));
        };
        let mut answered = false;
        match negotiate_rdma_or_tcp_as_client(tcp, prepared, setup, address, &mut answered) {
            Err(why) if setup.must_connect_by_tcp(&why, answered) => {
                tracing::debug!(%address, %why, "no hello from the server: plain TCP");
                Ok(Stream::over_tcp(connect_tcp(address)?, Vec::new()))
            }
            other => Ok(other?),
        }
    }
}

fn connect_tcp(address: SocketAddr) -> io::Result<TcpStream> {
    let tcp = TcpStream::connect(address)?;
    tcp_beside_rdma::set_tcp_options(&tcp)?;
    Ok(tcp)
}

/// Accepts blocking streams on a TCP port, by RDMA and by plain TCP.
#[derive(Debug)]
pub struct Listener {
    tcp: TcpListener,
    config_and_nic: Arc<ConfigAndNic>,
}

impl Listener {
    /// Listens at `address`.
    ///
    /// # Errors
    /// Returns an error if the address cannot be used, a value of the configuration is invalid, or
    /// RDMA is required and the device cannot be opened.
    pub fn bind(address: SocketAddr, config: Config) -> io::Result<Self> {
        let setup = Arc::new(ConfigAndNic::new(config)?);
        let tcp = TcpListener::bind(address)?;
        rustix::net::listen(&tcp, BACKLOG)?;
        Ok(Self {
            tcp,
            config_and_nic: setup,
        })
    }

    /// Returns the address on which the listener listens.
    ///
    /// # Errors
    /// Returns an error if the system does not report the address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    /// Waits for a client and its handshake. Other clients wait during the handshake, so a program
    /// with many clients should use the tokio listener.
    ///
    /// # Errors
    /// Returns an error if the client's handshake fails; the listener remains usable.
    pub fn accept(&self) -> io::Result<Stream> {
        let (tcp, client) = self.tcp.accept()?;
        tcp_beside_rdma::set_tcp_options(&tcp)?;
        Ok(negotiate_rdma_or_tcp_as_server(
            tcp,
            &self.config_and_nic,
            client,
        )?)
    }
}

/// Reads the next bytes of a handshake: at least one, at most `wants`.
fn read_handshake_bytes(tcp: &mut TcpStream, wants: usize, until: Instant) -> io::Result<Vec<u8>> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    tcp.set_read_timeout(Some(left))?;
    let mut bytes = vec![0; wants];
    let read = tcp.read(&mut bytes);
    // The timeout applies only to the handshake; the stream begins without a timeout.
    tcp.set_read_timeout(None)?;
    match read {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(read) => {
            bytes.truncate(read);
            Ok(bytes)
        }
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Err(io::ErrorKind::TimedOut.into()),
        Err(e) => Err(e),
    }
}

fn negotiate_rdma_or_tcp_as_client(
    mut tcp: TcpStream,
    prepared: PreparedConnection,
    setup: &ConfigAndNic,
    address: SocketAddr,
    answered: &mut bool,
) -> Result<Stream, SetupError> {
    let until = Instant::now() + setup.config.handshake_timeout;
    let (mut client, hello) =
        ClientHandshake::new(setup.config.client_handshake_version, &prepared.hello());
    tcp.write_all(&hello)?;
    let answer = loop {
        let bytes = read_handshake_bytes(&mut tcp, client.max_bytes_to_read(), until)?;
        *answered = true;
        if let Some(answer) = client.receive(&bytes)? {
            break answer;
        }
    };
    // Connect before the acknowledgement is sent: the server may send data as soon as it has
    // received the acknowledgement.
    let connected = match answer {
        ServerAnswer::Rdma(hello) => prepared.connect(&hello).ok(),
        ServerAnswer::Tcp => None,
    };
    tcp.write_all(&encode_ack(connected.is_some()))?;
    match connected {
        Some(connection) => Stream::over_rdma(tcp, connection, setup.config.spin_time),
        None if setup.config.rdma_policy == RdmaPolicy::RdmaOnly => {
            Err(SetupError::PeerOffersOnlyTcp(address))
        }
        None => Ok(Stream::over_tcp(tcp, Vec::new())),
    }
}

fn negotiate_rdma_or_tcp_as_server(
    mut tcp: TcpStream,
    setup: &ConfigAndNic,
    client: SocketAddr,
) -> Result<Stream, SetupError> {
    let until = Instant::now() + setup.config.handshake_timeout;
    let mut server = ServerHandshake::new();
    let request = loop {
        let bytes = read_handshake_bytes(&mut tcp, server.max_bytes_to_read(), until)?;
        if let Some(request) = server.receive(&bytes)? {
            break request;
        }
    };
    let required = setup.config.rdma_policy == RdmaPolicy::RdmaOnly;
    let hello = match request {
        ClientRequest::OtherProtocol(_) if required => {
            return Err(SetupError::PeerOffersOnlyTcp(client));
        }
        ClientRequest::OtherProtocol(first) => return Ok(Stream::over_tcp(tcp, first)),
        ClientRequest::Rdma(hello) => Some(hello),
        ClientRequest::MustDecline => None,
    };
    // Connect before the answer is sent: the client may send data as soon as it has received the
    // answer.
    let connected = hello
        .and_then(|hello| setup.connect_and_make_answer(&hello, Nic::prepare_qp_with_own_channel));
    tcp.write_all(&server.encode_answer(connected.as_ref().map(|(_, own)| own)))?;
    let wanted = loop {
        let bytes = read_handshake_bytes(&mut tcp, server.max_bytes_to_read(), until)?;
        if let Some(wanted) = server.receive_ack(&bytes)? {
            break wanted;
        }
    };
    match connected {
        Some((connection, _)) if wanted => {
            Stream::over_rdma(tcp, connection, setup.config.spin_time)
        }
        _ if required => Err(SetupError::PeerOffersOnlyTcp(client)),
        _ => Ok(Stream::over_tcp(tcp, Vec::new())),
    }
}

/// A byte stream to a peer, whose calls block.
///
/// [`Read`] and [`Write`] work as for a `TcpStream`. [`close`](Self::close) waits until the peer's
/// NIC has received all sent bytes. Dropping a stream waits for the same event, for at most 1 s. After that the peer's
/// reads fail with `ConnectionReset`.
#[derive(Debug)]
pub struct Stream {
    tcp: TcpStream,
    /// Bytes that were read during the handshake although they belong to the stream over plain TCP.
    handshake_leftover: Bytes,
    rdma: Option<Box<Connection>>,
    spin_time: Duration,
    timeout: Option<Duration>,
}

impl Stream {
    fn over_tcp(tcp: TcpStream, first: Vec<u8>) -> Self {
        Self {
            tcp,
            handshake_leftover: first.into(),
            rdma: None,
            spin_time: Duration::ZERO,
            timeout: None,
        }
    }

    fn over_rdma(
        tcp: TcpStream,
        connection: Connection,
        spin: Duration,
    ) -> Result<Self, SetupError> {
        tcp.set_nonblocking(true)?;
        let mut stream = Self::over_tcp(tcp, Vec::new());
        (stream.rdma, stream.spin_time) = (Some(Box::new(connection)), spin);
        Ok(stream)
    }

    /// Returns true if the stream uses RDMA.
    pub fn is_rdma(&self) -> bool {
        self.rdma.is_some()
    }

    /// Returns the peer's address.
    ///
    /// # Errors
    /// Returns an error if the connection has ended.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.peer_addr()
    }

    /// Returns the pool whose blocks are sent without a copy, or `None` if the stream uses TCP.
    pub fn pool(&self) -> Option<&Pool> {
        self.rdma.as_ref().map(|connection| connection.pool())
    }

    /// Sets the maximum time for which a read or a write waits. By default, calls have no timeout
    /// and may wait forever. After the timeout, a call fails with `TimedOut` (by RDMA) or
    /// `WouldBlock` (by TCP).
    ///
    /// # Errors
    /// Returns an error if the timeout is zero.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.timeout = timeout;
        self.tcp.set_read_timeout(timeout)?;
        self.tcp.set_write_timeout(timeout)
    }

    /// Calls `step` until it returns a value. Between calls the stream polls for a while, then
    /// sleeps.
    fn poll_and_sleep_until<T>(
        &mut self,
        sends: bool,
        timeout: Option<Duration>,
        mut step: impl FnMut(&mut Connection) -> Option<T>,
    ) -> io::Result<T> {
        let connection = self.rdma.as_mut().expect("a stream by RDMA");
        let begun = Instant::now();
        loop {
            if let Some(done) = step(connection) {
                return Ok(done);
            }
            if connection.progress() {
                continue;
            }
            let waited = begun.elapsed();
            if waited < self.spin_time {
                std::hint::spin_loop();
                continue;
            }
            let left = timeout.map(|timeout| timeout.saturating_sub(waited));
            if left == Some(Duration::ZERO) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            connection.arm_cq(sends);
            // Messages that arrived before arming raise no event, so poll once more.
            if !connection.progress() && connection.failure().is_none() {
                sleep_until_event(&self.tcp, connection, left)?;
            }
        }
    }

    /// Returns the reason why the stream has ended. If a work request failed because the peer has
    /// closed the connection, the function returns that close as the reason.
    fn failure(tcp: &TcpStream, connection: &mut Connection) -> Option<StreamError> {
        connection.set_cause_of_failed_wr(|| tcp_beside_rdma::reason_of_end_if_ended(tcp));
        connection.failure().cloned()
    }

    /// Waits for received bytes. Returns false at the end of the stream.
    fn wait_for_received_bytes(&mut self) -> io::Result<bool> {
        let unread = self.poll_and_sleep_until(false, self.timeout, |connection| {
            (connection.has_unread() || connection.failure().is_some())
                .then(|| connection.has_unread())
        })?;
        let connection = self.rdma.as_mut().expect("a stream by RDMA");
        match Self::failure(&self.tcp, connection) {
            _ if unread => Ok(true),
            None | Some(StreamError::ClosedByPeer) => Ok(false),
            Some(e) => Err(e.into()),
        }
    }

    /// Waits until the peer's NIC has received all sent bytes, then closes the connection.
    ///
    /// # Errors
    /// Returns an error if the connection has failed before, or the timeout has passed.
    pub fn close(mut self) -> io::Result<()> {
        let timeout = self.timeout;
        self.wait_until_peer_nic_has_all(timeout)
    }

    fn wait_until_peer_nic_has_all(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        if self.rdma.is_none() {
            return Ok(());
        }
        let mut marker_posted = false;
        self.poll_and_sleep_until(true, timeout, |connection| {
            marker_posted = marker_posted || connection.post_flush_marker();
            (marker_posted && connection.is_flushed_or_failed()).then_some(())
        })?;
        let connection = self.rdma.as_mut().expect("a stream by RDMA");
        match Self::failure(&self.tcp, connection) {
            None | Some(StreamError::ClosedByPeer) => Ok(()),
            Some(e) => Err(e.into()),
        }
    }

    /// Returns the next bytes in the pieces in which they arrived. Pieces of 512 bytes or more are
    /// not copied. Returns `None` at the end of the stream.
    ///
    /// # Errors
    /// Returns an error if the connection has failed, or the timeout has passed.
    pub fn receive(&mut self) -> io::Result<Option<Bytes>> {
        if self.rdma.is_none() {
            let mut room = vec![0; 16 << 10];
            let read = self.read(&mut room)?;
            room.truncate(read);
            return Ok((read > 0).then(|| room.into()));
        }
        let unread = self.wait_for_received_bytes()?;
        let connection = self.rdma.as_mut().filter(|_| unread);
        Ok(connection.and_then(|connection| connection.read_bytes()))
    }

    /// Sends all of `bytes`, without a copy if they are in blocks of the [pool](Self::pool).
    ///
    /// # Errors
    /// Returns an error if the connection has ended, or the timeout has passed.
    pub fn send(&mut self, mut bytes: Bytes) -> io::Result<()> {
        if self.rdma.is_none() {
            return self.tcp.write_all(&bytes);
        }
        while !bytes.is_empty() {
            self.post_when_room(|connection| connection.write_bytes(&mut bytes))?;
        }
        Ok(())
    }

    fn post_when_room(
        &mut self,
        mut write: impl FnMut(&mut Connection) -> Result<usize, StreamError>,
    ) -> io::Result<usize> {
        let timeout = self.timeout;
        let posted =
            self.poll_and_sleep_until(false, timeout, |connection| match write(connection) {
                Ok(0) => None,
                other => Some(other),
            })?;
        let connection = self.rdma.as_mut().expect("a stream by RDMA");
        posted.map_err(|e| Self::failure(&self.tcp, connection).unwrap_or(e).into())
    }
}

/// Sleeps until the completion channel or the TCP connection has an event.
fn sleep_until_event(
    tcp: &TcpStream,
    connection: &mut Connection,
    left: Option<Duration>,
) -> io::Result<()> {
    let cq = connection.cq().clone();
    let channel = cq.channel().expect("the queue of a stream has a channel");
    let [completed, silent] = {
        let mut fds = [
            PollFd::new(channel, PollFlags::IN),
            PollFd::new(tcp, PollFlags::IN),
        ];
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut fds, left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        fds.map(|fd| !fd.revents().is_empty())
    };
    if completed {
        // No other queue uses the channel.
        while channel.wait_for_cq_event().is_ok() {}
    }
    if silent && let Some(why) = tcp_beside_rdma::reason_of_end_if_ended(tcp) {
        connection.close(why);
    }
    Ok(())
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.rdma.is_none() {
            if self.handshake_leftover.is_empty() {
                return self.tcp.read(into);
            }
            let now = self.handshake_leftover.len().min(into.len());
            into[..now].copy_from_slice(&self.handshake_leftover.split_to(now));
            return Ok(now);
        }
        if into.is_empty() || !self.wait_for_received_bytes()? {
            return Ok(0);
        }
        let connection = self.rdma.as_mut().expect("a stream by RDMA");
        let mut filled = 0;
        Ok(connection.read(|bytes| {
            let now = bytes.len().min(into.len() - filled);
            into[filled..filled + now].copy_from_slice(&bytes[..now]);
            filled += now;
            now
        }))
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.rdma.is_none() {
            return self.tcp.write_vectored(parts);
        }
        if parts.iter().all(|part| part.is_empty()) {
            return Ok(0);
        }
        self.post_when_room(|connection| connection.write(parts))
    }

    fn flush(&mut self) -> io::Result<()> {
        // Nothing is left to flush: written bytes are already posted, or in the socket.
        Ok(())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // Ignore the error, because a drop cannot report an error.
        let _ = self.wait_until_peer_nic_has_all(Some(DROP_FLUSH_TIMEOUT));
        if let Some(connection) = &self.rdma {
            // End the TCP connection before the queue pair is destroyed: the peer checks this
            // connection when its work requests fail.
            tcp_beside_rdma::shut_down_or_reset(&self.tcp, connection.may_lack_sent_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::sockopt::{socket_keepalive, tcp_keepidle};

    use super::*;

    #[test]
    fn connections_have_keepalive() {
        for policy in [RdmaPolicy::FallBack, RdmaPolicy::TcpOnly] {
            let config = Config {
                rdma_policy: policy,
                ..Config::default()
            };
            let any = "127.0.0.1:0".parse().expect("an address");
            let listener = Listener::bind(any, config.clone()).expect("listens");
            let address = listener.local_addr().expect("an address");
            let client = std::thread::spawn(move || {
                let connector = Connector::new(config).expect("a device");
                let mut client = connector.connect(address).expect("connects");
                // A plain client speaks first.
                client.write_all(b"x").expect("writes");
                client
            });
            let server = listener.accept().expect("accepts");
            for stream in [client.join().expect("the client"), server] {
                assert!(socket_keepalive(&stream.tcp).expect("an option"));
                let idle = tcp_keepidle(&stream.tcp).expect("an option");
                assert_eq!(idle, Duration::from_secs(60));
            }
        }
    }
}
