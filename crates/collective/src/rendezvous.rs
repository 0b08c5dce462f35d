//! The rendezvous: two ends exchange [`Hello`]s by TCP, without blocking and without threads.
//!
//! The sender connects to the receiver's listener and says hello. The receiver connects its queue pairs, answers, and
//! waits for the sender's word that its queue pairs are connected, too: a clear-to-send WRITE that came before would be
//! lost. The connection stays open, so that each end notices when the other's process ends. TCP keepalive does so when
//! the other's host vanishes.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use liveness::keepalive::enable_keepalive;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use verbs::ProtectionDomain;

use crate::comm::{Receiver, Sender};
use crate::config::Config;
use crate::error::Error;
use crate::unconnected_ends::{Hello, PreparedReceiver, PreparedSender};

/// The first bytes of a handle.
const HANDLE_MAGIC: [u8; 8] = *b"VBCOLL01";
/// Bytes of a message, at most: a hello of 16 queue pairs has about 3,000.
const MAX_HELLO_BYTES: usize = 16 << 10;
/// Peers that have connected and have not said hello, at most: the oldest one goes first.
const MAX_PENDING_ACCEPTS: usize = 64;
/// Time without a packet after which the kernel asks whether the peer's host still answers. Ranks may wait for each
/// other without sending anything, and an idle queue pair does not notice that its peer is gone.
const KEEPALIVE_IDLE: Duration = Duration::from_mins(1);

/// Where a receiver listens: what it gives to the sender by any means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListenHandle {
    /// The listener's address.
    pub listener_addr: SocketAddr,
    /// Strangers at the port do not know it.
    token: u64,
}

impl ListenHandle {
    /// Bytes of a handle.
    pub const BYTES: usize = 34;

    /// The handle as bytes.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let ip = match self.listener_addr.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&HANDLE_MAGIC);
        bytes[8..16].copy_from_slice(&self.token.to_le_bytes());
        bytes[16..32].copy_from_slice(&ip.octets());
        bytes[32..].copy_from_slice(&self.listener_addr.port().to_le_bytes());
        bytes
    }

    /// The handle in these bytes; `None` if they are no handle.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let rest = bytes.strip_prefix(&HANDLE_MAGIC)?;
        let (token, rest) = rest.split_first_chunk::<8>()?;
        let (ip, rest) = rest.split_first_chunk::<16>()?;
        let (port, _) = rest.split_first_chunk::<2>()?;
        let ip = Ipv6Addr::from(*ip).to_canonical();
        Some(Self {
            listener_addr: SocketAddr::new(ip, u16::from_le_bytes(*port)),
            token: u64::from_le_bytes(*token),
        })
    }
}

/// Messages over a socket that does not block: each is its length in four bytes, and JSON.
#[derive(Debug)]
struct HelloSocket {
    stream: TcpStream,
    peer_address: SocketAddr,
    unsent_bytes: Vec<u8>,
    received_bytes: Vec<u8>,
}

impl HelloSocket {
    fn new(stream: TcpStream, peer_address: SocketAddr) -> std::io::Result<Self> {
        // Latency of the set-up only.
        let _ = stream.set_nodelay(true);
        enable_keepalive(&stream, KEEPALIVE_IDLE)?;
        Ok(Self {
            stream,
            peer_address,
            unsent_bytes: Vec::new(),
            received_bytes: Vec::new(),
        })
    }

    fn error_with_peer(&self, what: impl ToString) -> Error {
        Error::Rendezvous {
            peer: self.peer_address.to_string(),
            reason: what.to_string(),
        }
    }

    fn queue_hello(&mut self, hello: &Hello) -> Result<(), Error> {
        let json = serde_json::to_vec(hello).map_err(|e| self.error_with_peer(e))?;
        let len = u32::try_from(json.len()).map_err(|e| self.error_with_peer(e))?;
        self.unsent_bytes.extend_from_slice(&len.to_le_bytes());
        self.unsent_bytes.extend_from_slice(&json);
        Ok(())
    }

    /// Writes the queued hello. Returns true if all of it is written.
    fn write_queued_hello(&mut self) -> Result<bool, Error> {
        while !self.unsent_bytes.is_empty() {
            match self.stream.write(&self.unsent_bytes) {
                Ok(0) => return Err(self.error_with_peer("it closed the connection")),
                Ok(count) => drop(self.unsent_bytes.drain(..count)),
                Err(e) if is_retryable(&e) => return Ok(false),
                Err(e) => return Err(self.error_with_peer(e)),
            }
        }
        Ok(true)
    }

    /// Reads until `bytes` bytes are received. Returns true if they are.
    fn try_read_bytes(&mut self, bytes: usize) -> Result<bool, Error> {
        let mut buffer = [0; 1024];
        while self.received_bytes.len() < bytes {
            let most = (bytes - self.received_bytes.len()).min(buffer.len());
            match self.stream.read(&mut buffer[..most]) {
                Ok(0) => return Err(self.error_with_peer("it closed the connection")),
                Ok(count) => self.received_bytes.extend_from_slice(&buffer[..count]),
                Err(e) if is_retryable(&e) => return Ok(false),
                Err(e) => return Err(self.error_with_peer(e)),
            }
        }
        Ok(true)
    }

    /// Returns the peer's hello once it has arrived.
    fn receive_hello(&mut self) -> Result<Option<Hello>, Error> {
        if !self.try_read_bytes(4)? {
            return Ok(None);
        }
        let len = self
            .received_bytes
            .first_chunk::<4>()
            .copied()
            .unwrap_or_default();
        let len = u32::from_le_bytes(len) as usize;
        if len > MAX_HELLO_BYTES {
            return Err(self.error_with_peer(format!("it sends a message of {len} bytes")));
        }
        if !self.try_read_bytes(4 + len)? {
            return Ok(None);
        }
        let hello = serde_json::from_slice(&self.received_bytes[4..])
            .map_err(|e| self.error_with_peer(e))?;
        self.received_bytes.clear();
        Ok(Some(hello))
    }
}

/// Returns true if the call only has to be repeated.
fn is_retryable(e: &std::io::Error) -> bool {
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// A sender that connects. Dropping it gives up.
#[derive(Debug)]
pub struct PendingConnect {
    hello_socket: HelloSocket,
    stage: ConnectStage,
}

#[derive(Debug)]
enum ConnectStage {
    AwaitingHello(PreparedSender),
    SendingReadyByte(Box<Sender>),
    SenderTaken,
}

impl PendingConnect {
    /// Begins to connect to a listener.
    ///
    /// # Errors
    /// A verb failed, or there is no way to the address.
    pub fn new(
        pd: &ProtectionDomain,
        config: &Config,
        handle: &ListenHandle,
    ) -> Result<Self, Error> {
        let sender = PreparedSender::new(pd, config)?;
        let messages = start_nonblocking_connect(handle.listener_addr)
            .and_then(|stream| HelloSocket::new(stream, handle.listener_addr));
        let mut messages = messages.map_err(|e| Error::Rendezvous {
            peer: handle.listener_addr.to_string(),
            reason: e.to_string(),
        })?;
        messages.queue_hello(&sender.hello(handle.token))?;
        Ok(Self {
            hello_socket: messages,
            stage: ConnectStage::AwaitingHello(sender),
        })
    }

    /// Goes on as far as possible without waiting: the sender, once it is connected.
    ///
    /// # Errors
    /// The listener is gone or refuses this end, or a verb failed.
    pub fn poll(&mut self) -> Result<Option<Sender>, Error> {
        if !self.hello_socket.write_queued_hello()? {
            return Ok(None);
        }
        if let ConnectStage::AwaitingHello(_) = self.stage {
            let Some(peer) = self.hello_socket.receive_hello()? else {
                return Ok(None);
            };
            let stage = std::mem::replace(&mut self.stage, ConnectStage::SenderTaken);
            if let ConnectStage::AwaitingHello(sender) = stage {
                let watch = self.hello_socket.stream.try_clone();
                let watch = watch.map_err(|e| self.hello_socket.error_with_peer(e))?;
                self.stage = ConnectStage::SendingReadyByte(Box::new(
                    sender.connect(&peer, Some(Box::new(watch)))?,
                ));
                self.hello_socket.unsent_bytes.push(SENDER_READY_BYTE);
            }
        }
        if !self.hello_socket.write_queued_hello()? {
            return Ok(None);
        }
        match std::mem::replace(&mut self.stage, ConnectStage::SenderTaken) {
            ConnectStage::SendingReadyByte(sender) => Ok(Some(*sender)),
            ConnectStage::AwaitingHello(_) | ConnectStage::SenderTaken => Err(self
                .hello_socket
                .error_with_peer("this end was taken before")),
        }
    }
}

/// The byte that a sender sends when it is connected.
const SENDER_READY_BYTE: u8 = 1;

/// Begins to connect.
fn start_nonblocking_connect(addr: SocketAddr) -> std::io::Result<TcpStream> {
    let family = match addr {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &addr) {
        // Writing says "try again" until the connection is there, and then what became of it.
        Ok(()) | Err(rustix::io::Errno::INPROGRESS | rustix::io::Errno::INTR) => {
            Ok(TcpStream::from(socket))
        }
        Err(e) => Err(e.into()),
    }
}

/// A receiver that waits for its sender.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    handle: ListenHandle,
    pd: ProtectionDomain,
    config: Config,
    pending_accepts: Vec<PendingAccept>,
}

#[derive(Debug)]
struct PendingAccept {
    hello_socket: HelloSocket,
    stage: AcceptStage,
}

#[derive(Debug)]
enum AcceptStage {
    AwaitingHello,
    AwaitingReadyByte(Box<Receiver>),
}

impl Listener {
    /// Listens at an address; port 0 lets the kernel choose.
    ///
    /// # Errors
    /// The address cannot be listened at.
    pub fn new(pd: &ProtectionDomain, config: &Config, addr: SocketAddr) -> Result<Self, Error> {
        let no = |what: String| Error::Rendezvous {
            peer: format!("senders at {addr}"),
            reason: what,
        };
        let listener = TcpListener::bind(addr).map_err(|e| no(e.to_string()))?;
        let ready = listener.set_nonblocking(true);
        ready.map_err(|e| no(e.to_string()))?;
        let addr = listener.local_addr().map_err(|e| no(e.to_string()))?;
        let token = getrandom::u64().map_err(|e| no(e.to_string()))?;
        Ok(Self {
            listener,
            handle: ListenHandle {
                listener_addr: addr,
                token,
            },
            pd: pd.clone(),
            config: *config,
            pending_accepts: Vec::new(),
        })
    }

    /// The handle that the sender needs to connect.
    pub fn handle(&self) -> ListenHandle {
        self.handle
    }

    /// Goes on as far as possible without waiting: the receiver of the next sender that is connected. Strangers, who do
    /// not know the handle, are sent away.
    ///
    /// # Errors
    /// A sender that knew the handle failed, or a verb did. The listener can still be used.
    pub fn poll(&mut self) -> Result<Option<Receiver>, Error> {
        self.accept_connections();
        let mut at = 0;
        while at < self.pending_accepts.len() {
            let next = self.pending_accepts[at].poll(&self.pd, &self.config, self.handle.token);
            match next {
                Ok(None) => at += 1,
                Ok(Some(receiver)) => {
                    drop(self.pending_accepts.remove(at));
                    return Ok(Some(receiver));
                }
                Err(AcceptFailure::PeerWithoutHandle) => drop(self.pending_accepts.remove(at)),
                Err(AcceptFailure::PeerWithHandle(error)) => {
                    drop(self.pending_accepts.remove(at));
                    return Err(error);
                }
            }
        }
        Ok(None)
    }

    /// Takes connections that have come. An error is one of the connection that failed, and so nobody's here.
    fn accept_connections(&mut self) {
        while let Ok((stream, peer_address)) = self.listener.accept() {
            let messages = stream
                .set_nonblocking(true)
                .and_then(|()| HelloSocket::new(stream, peer_address));
            let Ok(messages) = messages else { continue };
            if self.pending_accepts.len() == MAX_PENDING_ACCEPTS {
                drop(self.pending_accepts.remove(0));
            }
            self.pending_accepts.push(PendingAccept {
                hello_socket: messages,
                stage: AcceptStage::AwaitingHello,
            });
        }
    }
}

/// Why there is no receiver for a connection.
enum AcceptFailure {
    /// It never said that it knows the handle.
    PeerWithoutHandle,
    /// It did.
    PeerWithHandle(Error),
}

impl PendingAccept {
    fn poll(
        &mut self,
        pd: &ProtectionDomain,
        config: &Config,
        token: u64,
    ) -> Result<Option<Receiver>, AcceptFailure> {
        if let AcceptStage::AwaitingHello = self.stage {
            let heard = self
                .hello_socket
                .receive_hello()
                .map_err(|_| AcceptFailure::PeerWithoutHandle)?;
            let Some(peer) = heard else { return Ok(None) };
            if peer.token != token {
                return Err(AcceptFailure::PeerWithoutHandle);
            }
            let receiver = self.connect(pd, config, &peer);
            self.stage = AcceptStage::AwaitingReadyByte(Box::new(
                receiver.map_err(AcceptFailure::PeerWithHandle)?,
            ));
        }
        let ready = self.hello_socket.write_queued_hello();
        let ready = ready.and_then(|flushed| Ok(flushed && self.hello_socket.try_read_bytes(1)?));
        if !ready.map_err(AcceptFailure::PeerWithHandle)? {
            return Ok(None);
        }
        match std::mem::replace(&mut self.stage, AcceptStage::AwaitingHello) {
            AcceptStage::AwaitingReadyByte(receiver) => Ok(Some(*receiver)),
            AcceptStage::AwaitingHello => Ok(None),
        }
    }

    /// Connects this end with a sender, and answers it.
    fn connect(
        &mut self,
        pd: &ProtectionDomain,
        config: &Config,
        peer: &Hello,
    ) -> Result<Receiver, Error> {
        let receiver = PreparedReceiver::new(pd, config, peer.lane_count())?;
        self.hello_socket.queue_hello(&receiver.hello(0))?;
        let watch = self.hello_socket.stream.try_clone();
        let watch = watch.map_err(|e| self.hello_socket.error_with_peer(e))?;
        // A sender may have more queue pairs than are wanted here.
        let peer = peer.with_at_most_lanes(receiver.lane_count());
        receiver.connect(&peer, Some(Box::new(watch)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_comes_back_as_it_was() {
        for addr in ["127.0.0.1:80", "[2001:db8::1]:65535"] {
            let addr = addr.parse().expect("an address");
            let handle = ListenHandle {
                listener_addr: addr,
                token: 77,
            };
            assert_eq!(ListenHandle::from_bytes(&handle.to_bytes()), Some(handle));
        }
        assert_eq!(ListenHandle::from_bytes(&[0; ListenHandle::BYTES]), None);
    }

    /// A host that vanishes sends neither data nor the end of the connection.
    #[test]
    fn both_ends_have_keepalive() {
        use rustix::net::sockopt::{socket_keepalive, tcp_keepidle};

        let device = verbs::Provider::softnic()
            .device(None)
            .expect("there is one");
        let pd = device.open().expect("opens").alloc_pd().expect("a domain");
        let config = Config::default();
        let here = SocketAddr::from((std::net::Ipv4Addr::LOCALHOST, 0));
        let mut listener = Listener::new(&pd, &config, here).expect("a free port");
        let connecting = PendingConnect::new(&pd, &config, &listener.handle()).expect("begins");
        let accepted = verbs::poll_until(Duration::from_secs(20), || {
            listener.accept_connections();
            listener.pending_accepts.pop()
        });
        let accepted = accepted.expect("a connection");
        for stream in [
            &connecting.hello_socket.stream,
            &accepted.hello_socket.stream,
        ] {
            assert!(socket_keepalive(stream).expect("an option"));
            assert_eq!(tcp_keepidle(stream).expect("an option"), KEEPALIVE_IDLE);
        }
    }
}
