//! How the ends of a connection between hosts find each other: a datagram with one end's state goes to a port of the
//! other host.
//!
//! The first process that binds the port receives the datagrams for all processes of its fabric on this host. It writes
//! the state into the page of the connection, and answers with the page's own state. The ends read their pages. A later
//! call sends a lost datagram again. The next process that sends replaces one that has ended.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use serde::{Deserialize, Serialize};

use crate::connection_page::{ConnectionPage, PROTOCOL_VERSION, SideWords, page_file_name, stage};
use crate::remote_peer::RemotePeer;
use crate::{nic, real_libc};

/// The environment variable with the UDP port, the same on all hosts.
const UDP_PORT_ENV_VAR: &str = "VERBATIM_SOCKETS_PORT";
const DEFAULT_UDP_PORT: u16 = 4792;
const MAX_DATAGRAM_BYTES: usize = 2048;

/// The state of one end of a connection.
#[derive(Serialize, Deserialize)]
struct SideStateMessage {
    version: u32,
    /// The address of this end.
    from: SocketAddr,
    /// The address of the other end.
    to: SocketAddr,
    /// The stage of this end's page.
    stage: u64,
    /// The queue pair and the ring of this end, empty until there are some.
    endpoint: String,
    wants_answer: bool,
}

/// Whether the peer's host is to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerRequest {
    Wanted,
    NotWanted,
}

/// True while this process receives datagrams.
static IS_RECEIVING: AtomicBool = AtomicBool::new(false);
/// The descriptor at which it does; -1 without.
static RECEIVING_FD: AtomicI32 = AtomicI32::new(-1);

/// Sends this end's state to the peer's host, without waiting. Nothing is known of its arrival.
pub(crate) fn send_own_state_to_peer(
    remote: &RemotePeer,
    own: &SideWords<'_>,
    answer: AnswerRequest,
) {
    start_datagram_receiver_if_none();
    let message = SideStateMessage::of_side(remote.own_addr, remote.peer_addr, own, answer);
    send_message(&message);
}

/// Forgets the parent's thread; called in a forked child.
pub(crate) fn reset_datagram_receiver_in_child() {
    IS_RECEIVING.store(false, Ordering::Relaxed);
    let fd = RECEIVING_FD.swap(-1, Ordering::Relaxed);
    if fd >= 0 {
        // The parent's descriptor, which this process inherited a moment ago.
        real_libc::close_own_descriptor(fd);
    }
}

fn udp_port() -> u16 {
    let set = std::env::var(UDP_PORT_ENV_VAR).ok();
    set.and_then(|text| text.parse().ok())
        .unwrap_or(DEFAULT_UDP_PORT)
}

fn send_message(message: &SideStateMessage) {
    let Ok(bytes) = serde_json::to_vec(message) else {
        return;
    };
    // The peer's host accepts a state from the address of the end only.
    let Ok(socket) = UdpSocket::bind((message.from.ip(), 0)) else {
        return;
    };
    let _ = socket.set_nonblocking(true);
    let _ = socket.send_to(&bytes, (message.to.ip(), udp_port()));
}

/// Starts a thread that receives datagrams, if no process of this host does so.
fn start_datagram_receiver_if_none() {
    if IS_RECEIVING.swap(true, Ordering::SeqCst) {
        return;
    }
    let bind = |ip: IpAddr| UdpSocket::bind((ip, udp_port()));
    let bound = bind(Ipv6Addr::UNSPECIFIED.into()).or_else(|_| bind(Ipv4Addr::UNSPECIFIED.into()));
    let (Ok(socket), Ok(folder)) = (bound, nic::connections_folder()) else {
        IS_RECEIVING.store(false, Ordering::SeqCst);
        return;
    };
    RECEIVING_FD.store(socket.as_raw_fd(), Ordering::SeqCst);
    let name = "verbatim-lookup".to_owned();
    let receive = move || {
        receive_datagrams_until_closed(&socket, &folder);
        // The program has closed the descriptor, and its number may be another one's.
        std::mem::forget(socket);
        RECEIVING_FD.store(-1, Ordering::SeqCst);
        IS_RECEIVING.store(false, Ordering::SeqCst);
    };
    // The program's signals are for its own threads.
    let started =
        real_libc::with_signals_blocked(|| std::thread::Builder::new().name(name).spawn(receive));
    if started.is_err() {
        RECEIVING_FD.store(-1, Ordering::SeqCst);
        IS_RECEIVING.store(false, Ordering::SeqCst);
    }
}

fn receive_datagrams_until_closed(socket: &UdpSocket, folder: &Path) {
    let cookie = real_libc::socket_cookie(socket.as_raw_fd());
    let mut bytes = [0; MAX_DATAGRAM_BYTES];
    while cookie.is_some() && real_libc::socket_cookie(socket.as_raw_fd()) == cookie {
        match socket.recv_from(&mut bytes) {
            Ok((len, source)) => {
                let datagram = bytes.get(..len).unwrap_or_default();
                if let Some(answer) = store_peer_state(folder, datagram, source.ip()) {
                    send_message(&answer);
                }
            }
            Err(err) if err.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

/// Writes the state of a peer into the page of its connection. Returns the answer, if one is wanted.
fn store_peer_state(folder: &Path, datagram: &[u8], source: IpAddr) -> Option<SideStateMessage> {
    let message: SideStateMessage = serde_json::from_slice(datagram).ok()?;
    if message.version != PROTOCOL_VERSION
        || message.from.ip().to_canonical() != source.to_canonical()
    {
        return None;
    }
    let (own, peer) = (message.to, message.from);
    let page =
        ConnectionPage::open(&folder.join(page_file_name(own, peer, true).ok()?), false).ok()?;
    let own_side = usize::from(own > peer);
    let own_words = page.side_words(own_side);
    if own_words.pid.load(Ordering::Acquire) == 0 || own_words.is_dead() {
        return None;
    }
    message.store_in_peer_side(&page.side_words(1 - own_side));
    message
        .wants_answer
        .then(|| SideStateMessage::of_side(own, peer, &own_words, AnswerRequest::NotWanted))
}

impl SideStateMessage {
    fn of_side(
        from: SocketAddr,
        to: SocketAddr,
        side: &SideWords<'_>,
        answer: AnswerRequest,
    ) -> Self {
        let stage = side.setup_stage.load(Ordering::Acquire);
        let endpoint = String::from_utf8(side.message_for_peer()).unwrap_or_default();
        Self {
            version: PROTOCOL_VERSION,
            from,
            to,
            stage,
            endpoint,
            wants_answer: answer == AnswerRequest::Wanted,
        }
    }

    /// Writes the state into the peer's side of a page. Stages only grow, so the order of datagrams does not matter.
    fn store_in_peer_side(&self, peer: &SideWords<'_>) {
        let known = peer.setup_stage.load(Ordering::Acquire);
        let mut reached = match self.stage {
            stage::PAGE_FOUND | stage::ENDPOINT_READY | stage::READY | stage::TCP_OR_CLOSED => {
                self.stage
            }
            stage::HELLO_SENT => stage::READY,
            _ => return,
        };
        if known < stage::ENDPOINT_READY
            && (self.endpoint.is_empty() || !peer.set_message_for_peer(self.endpoint.as_bytes()))
            && reached != stage::TCP_OR_CLOSED
        {
            reached = stage::PAGE_FOUND;
        }
        peer.setup_stage.fetch_max(reached, Ordering::AcqRel);
    }
}

/// Takes a datagram of any bytes, as the fuzzer does, for the connection `own` to `peer`. Returns the stage that the
/// peer's side then has.
#[cfg(any(test, fuzzing))]
pub(crate) fn store_state_of_any_datagram(
    folder: &Path,
    bytes: &[u8],
    own: SocketAddr,
    peer: SocketAddr,
) -> u64 {
    let _ = store_peer_state(folder, bytes, peer.ip());
    let path = page_file_name(own, peer, true).map(|name| folder.join(name));
    let page = path.and_then(|path| ConnectionPage::open(&path, false));
    page.map_or(0, |page| {
        page.side_words(usize::from(own <= peer))
            .setup_stage
            .load(Ordering::Acquire)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: ([u8; 4], u16) = ([127, 0, 0, 1], 5);
    const PEER: ([u8; 4], u16) = ([127, 0, 0, 2], 6);

    fn message(stage: u64, endpoint: &str) -> SideStateMessage {
        SideStateMessage {
            version: PROTOCOL_VERSION,
            from: SocketAddr::from(PEER),
            to: SocketAddr::from(OWN),
            stage,
            endpoint: endpoint.to_owned(),
            wants_answer: true,
        }
    }

    fn page(folder: &Path) -> ConnectionPage {
        let name =
            page_file_name(SocketAddr::from(OWN), SocketAddr::from(PEER), true).expect("a name");
        let page = ConnectionPage::open(&folder.join(name), true).expect("a page");
        let own = page.side_words(0);
        own.pid.store(std::process::id().into(), Ordering::Relaxed);
        own.setup_stage.store(stage::PAGE_FOUND, Ordering::Relaxed);
        page
    }

    #[test]
    fn a_peer_writes_its_state_and_gets_ours() {
        let folder = tempfile::tempdir().expect("a folder");
        let page = page(folder.path());
        let source = SocketAddr::from(PEER).ip();
        let tell = |message: &SideStateMessage, source| {
            let bytes = serde_json::to_vec(message).expect("text");
            store_peer_state(folder.path(), &bytes, source)
        };
        let answer = tell(&message(stage::ENDPOINT_READY, "{}"), source).expect("an answer");
        assert_eq!(
            (answer.from, answer.stage),
            (SocketAddr::from(OWN), stage::PAGE_FOUND)
        );
        assert!(!answer.wants_answer, "answers would go on for ever");
        let peer = page.side_words(1);
        assert_eq!(peer.message_for_peer(), b"{}");
        assert_eq!(
            peer.setup_stage.load(Ordering::Relaxed),
            stage::ENDPOINT_READY
        );
        // A datagram that was overtaken changes nothing.
        assert!(tell(&message(stage::PAGE_FOUND, ""), source).is_some());
        assert_eq!(
            peer.setup_stage.load(Ordering::Relaxed),
            stage::ENDPOINT_READY
        );
        assert_eq!(peer.message_for_peer(), b"{}");
    }

    #[test]
    fn another_address_cannot_speak_for_the_peer() {
        let folder = tempfile::tempdir().expect("a folder");
        let page = page(folder.path());
        let bytes = serde_json::to_vec(&message(stage::READY, "{}")).expect("text");
        assert!(
            store_peer_state(folder.path(), &bytes, Ipv4Addr::new(127, 0, 0, 3).into()).is_none()
        );
        assert_eq!(page.side_words(1).setup_stage.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_peer_of_another_version_is_not_known() {
        let folder = tempfile::tempdir().expect("a folder");
        let page = page(folder.path());
        let other = SideStateMessage {
            version: PROTOCOL_VERSION + 1,
            ..message(stage::READY, "{}")
        };
        let bytes = serde_json::to_vec(&other).expect("text");
        let source = SocketAddr::from(PEER).ip();
        assert!(store_peer_state(folder.path(), &bytes, source).is_none());
        assert_eq!(page.side_words(1).setup_stage.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_stage_without_an_endpoint_is_not_believed() {
        let folder = tempfile::tempdir().expect("a folder");
        let page = page(folder.path());
        let long = "x".repeat(1000);
        for endpoint in ["", &long] {
            let bytes = serde_json::to_vec(&message(stage::READY, endpoint)).expect("text");
            let _ = store_peer_state(folder.path(), &bytes, SocketAddr::from(PEER).ip());
            let stage = page.side_words(1).setup_stage.load(Ordering::Relaxed);
            assert_eq!(stage, stage::PAGE_FOUND);
        }
    }
}
