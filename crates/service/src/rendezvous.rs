//! Rendezvous of clients and servers over TCP: messages are JSON objects, one per line.
//!
//! The server sends its identity and offer first. Then the client sends its own message, and the
//! server accepts or refuses it ([`Answer`]). Afterwards the connection stays open and silent. When
//! it ends, for whatever reason, the server frees the client's resources. Clients use [`Handshake`];
//! [`serve_connection`] serves the connections that a server's acceptor passes on.

use std::fmt::Display;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use liveness::keepalive::enable_keepalive;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Maximum length of a message, in bytes.
const MAX_LINE_BYTES: u64 = 64 * 1024;
/// Time that a client may take to send its message.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// Time without a packet after which the kernel asks whether the peer's host still answers. The connection is silent
/// while a client is connected, and a server frees the client's resources when the connection ends.
const KEEPALIVE_IDLE: Duration = Duration::from_mins(1);

/// Answer of a server to a client's message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer<A> {
    /// The client is connected; the data that it needs.
    Accepted(A),
    /// The client is refused.
    Refused(ClientRefusal),
}

/// Refusal of a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{reason}")]
pub struct ClientRefusal {
    /// Reason in words.
    pub reason: String,
    /// True if the same request may succeed later, or with other queue pairs.
    pub retry: bool,
}

impl ClientRefusal {
    /// Creates a refusal for a permanent reason.
    pub fn permanent(reason: impl Display) -> Self {
        Self {
            reason: reason.to_string(),
            retry: false,
        }
    }

    /// Creates a refusal for a temporary reason.
    pub fn temporary(reason: impl Display) -> Self {
        Self {
            reason: reason.to_string(),
            retry: true,
        }
    }
}

/// Sets the options of a connection.
fn set_tcp_options(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    enable_keepalive(stream, KEEPALIVE_IDLE)
}

/// Sends one message.
fn send_line(stream: &mut TcpStream, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// Receives one message. Fails unless the whole message arrives within `timeout`.
fn receive_line<T: DeserializeOwned>(
    stream: &mut TcpStream,
    whose: &str,
    timeout: Duration,
) -> io::Result<T> {
    let mut line = Vec::new();
    let bytes = DeadlineReader {
        stream,
        receive_started_at: Instant::now(),
        timeout,
    };
    // The two sides take turns, so the reader buffers nothing beyond the line.
    BufReader::new(bytes.take(MAX_LINE_BYTES)).read_until(b'\n', &mut line)?;
    if line.last() != Some(&b'\n') {
        let what = if line.len() as u64 >= MAX_LINE_BYTES {
            "a message longer than 64 KiB"
        } else {
            "the connection closed"
        };
        return Err(io::Error::new(ErrorKind::UnexpectedEof, what));
    }
    serde_json::from_slice(&line).map_err(|e| {
        io::Error::new(
            ErrorKind::InvalidData,
            format!("not the exchange of a {whose}: {e}"),
        )
    })
}

/// A stream with a total time for reading, independent of how the bytes arrive.
struct DeadlineReader<'s> {
    stream: &'s mut TcpStream,
    receive_started_at: Instant,
    timeout: Duration,
}

impl Read for DeadlineReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let late = || io::Error::new(ErrorKind::TimedOut, "no message came in time");
        let left = self
            .timeout
            .saturating_sub(self.receive_started_at.elapsed());
        if left.is_zero() {
            return Err(late());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(buffer).map_err(|e| match e.kind() {
            ErrorKind::WouldBlock => late(),
            _ => e,
        })
    }
}

/// A client's connection, from the server's first message to its answer.
#[derive(Debug)]
pub(crate) struct Handshake {
    stream: TcpStream,
    peer_role: &'static str,
    timeout: Duration,
}

impl Handshake {
    /// Connects to a server and receives its first message. `peer_role` names the service in errors.
    /// Each step may take up to `timeout`.
    ///
    /// # Errors
    /// As connecting and reading. [`ErrorKind::InvalidInput`] if the address is invalid.
    pub(crate) fn connect_and_receive_offer<W: DeserializeOwned>(
        server: &str,
        whose: &'static str,
        timeout: Duration,
    ) -> io::Result<(Self, W)> {
        let mut stream = connect_tcp(server, timeout)?;
        set_tcp_options(&stream)?;
        let offer = receive_line(&mut stream, whose, timeout)?;
        let handshake = Self {
            stream,
            peer_role: whose,
            timeout,
        };
        Ok((handshake, offer))
    }

    /// Sends the client's message and receives the answer. The returned stream belongs to the
    /// session: when it ends, the server frees the client's resources.
    ///
    /// # Errors
    /// As writing and reading.
    pub(crate) fn send_hello_and_receive_answer<A: DeserializeOwned>(
        mut self,
        hello: &impl Serialize,
    ) -> io::Result<(Answer<A>, TcpStream)> {
        send_line(&mut self.stream, hello)?;
        let answer = receive_line(&mut self.stream, self.peer_role, self.timeout)?;
        Ok((answer, self.stream))
    }
}

/// Connects to the first reachable address of a server.
fn connect_tcp(server: &str, timeout: Duration) -> io::Result<TcpStream> {
    let mut error = io::Error::new(ErrorKind::InvalidInput, "no address of that name");
    for address in server.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(stream) => return Ok(stream),
            Err(e) => error = e,
        }
    }
    Err(error)
}

/// Calls `open` until it succeeds, with pauses that grow from 5 to 200 ms. Stops at a hopeless
/// error, or when the next call would be later than `until`, by [`verbs::time`].
///
/// # Errors
/// The last error of `open`.
pub(crate) fn retry_until<T, E>(
    until: Instant,
    mut open: impl FnMut() -> Result<T, E>,
    hopeless: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let mut pause = Duration::from_millis(5);
    loop {
        match open() {
            Err(e) if !hopeless(&e) && verbs::time::now() + pause <= until => {}
            result => return result,
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(200));
    }
}

/// Runs the server's side of a connection until it ends. Sends the first message, receives the
/// client's message, and answers with the result of `accept`. The session that `accept` returns is
/// dropped when the connection ends.
pub(crate) fn serve_connection<H: DeserializeOwned, A: Serialize, S>(
    mut stream: TcpStream,
    whose: &str,
    offer: &impl Serialize,
    accept: impl FnOnce(&H) -> Result<(A, S), ClientRefusal>,
) {
    let mut receive_hello = || {
        set_tcp_options(&stream)?;
        send_line(&mut stream, offer)?;
        receive_line(&mut stream, whose, HELLO_TIMEOUT)
    };
    let accepted = receive_hello()
        .map_err(ClientRefusal::temporary)
        .and_then(|h| accept(&h));
    let (answer, session) = match accepted {
        Ok((accepted, session)) => (Answer::Accepted(accepted), Some(session)),
        Err(refused) => (Answer::Refused(refused), None),
    };
    let sent = send_line(&mut stream, &answer);
    if session.is_some() && sent.is_ok() && stream.set_read_timeout(None).is_ok() {
        // The connection is silent from here on; the read returns when the client ends it.
        while matches!(stream.read(&mut [0; 1]), Err(e) if e.kind() == ErrorKind::Interrupted) {}
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Returns both ends of a connection.
    fn stream_pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let here = TcpStream::connect(address).expect("it listens");
        (here, listener.accept().expect("it came").0)
    }

    #[test]
    fn a_peer_that_drips_is_given_up() {
        let (mut here, mut there) = stream_pair();
        let drip = std::thread::spawn(move || {
            // Drip bytes until the peer closes the connection, or for a second.
            for _ in 0..100 {
                if there.write_all(b" ").is_err() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        let timeout = Duration::from_millis(50);
        let e = receive_line::<u64>(&mut here, "test", timeout).expect_err("never whole");
        assert_eq!(e.kind(), ErrorKind::TimedOut, "{e}");
        drop(here);
        drip.join().expect("ended");
    }

    #[test]
    fn both_ends_have_keepalive() {
        use rustix::net::sockopt::{socket_keepalive, tcp_keepidle};

        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let serving = std::thread::spawn(move || {
            let (stream, _) = listener.accept().expect("it came");
            let server = stream.try_clone().expect("a descriptor");
            serve_connection(stream, "test", &1, |_: &u64| Ok((2, ())));
            server
        });
        let timeout = Duration::from_secs(60);
        let (handshake, _) = Handshake::connect_and_receive_offer::<u64>(&address, "test", timeout)
            .expect("it connects");
        let (_, client) = handshake
            .send_hello_and_receive_answer::<u64>(&1)
            .expect("an answer");
        let keepalive = |stream: &TcpStream| {
            let idle = tcp_keepidle(stream).expect("an option");
            socket_keepalive(stream).expect("an option").then_some(idle)
        };
        assert_eq!(keepalive(&client), Some(Duration::from_secs(60)));
        drop(client);
        let server = serving.join().expect("it ends");
        assert_eq!(keepalive(&server), Some(Duration::from_secs(60)));
    }

    #[test]
    fn answers_have_the_documented_form() {
        let refused = Answer::<u64>::Refused(ClientRefusal::temporary("full"));
        let text = serde_json::to_string(&refused).expect("serializes");
        assert_eq!(text, r#"{"refused":{"reason":"full","retry":true}}"#);
        assert_eq!(
            serde_json::from_str::<Answer<u64>>(&text).expect("parses"),
            refused
        );
        let text = serde_json::to_string(&Answer::Accepted(5)).expect("serializes");
        assert_eq!(text, r#"{"accepted":5}"#);
    }
}
