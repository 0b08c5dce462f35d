//! The client's side of the rendezvous: finds a server by TCP or in this process, and keeps its
//! session open.

use std::fmt;
use std::io;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use verbs::{Context, PortAndGidIndex};

use crate::connector::LocalConnector;
use crate::design::UnsupportedDesign;
use crate::nic::{NicConfig, OpenError, source_ip_towards};
use crate::protocol::{Protocol, check_server_offer};
use crate::rendezvous::{Answer, ClientRefusal, Handshake, retry_until};

/// Location of a server.
#[derive(Debug, Clone)]
pub enum ServerLocation<P: Protocol> {
    /// Server at a TCP address.
    Tcp(String),
    /// Server in this process.
    Local(LocalConnector<P>),
}

impl<P: Protocol> ServerLocation<P> {
    /// Returns the port of the client's NIC, and the GID index: that of the address from which this host reaches the
    /// server, unless the configuration has another one.
    ///
    /// # Errors
    /// As [`NicConfig::port_and_gid`].
    pub fn port_and_gid(
        &self,
        nic: &NicConfig,
        context: &Context,
    ) -> Result<PortAndGidIndex, OpenError> {
        let address = match self {
            Self::Tcp(server) => source_ip_towards(server),
            Self::Local(_) => None,
        };
        nic.port_and_gid(context, address)
    }
}

/// A session at a server; dropping it ends the session.
#[derive(Debug)]
pub struct ClientSession(#[expect(dead_code, reason = "its end is what counts")] ServerLink);

#[derive(Debug)]
#[expect(dead_code, reason = "its end is what counts")]
enum ServerLink {
    Tcp(TcpStream),
    Local(Box<dyn fmt::Debug + Send + Sync>),
}

/// Error of a client that cannot connect to a service.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The configuration is invalid.
    #[error("{0}")]
    Config(String),
    /// The server cannot be reached, or is not a server of this service.
    #[error("cannot reach a {service} at {server}: {source}")]
    Unreachable {
        /// Name of the service.
        service: &'static str,
        /// Address of the server.
        server: String,
        /// Cause.
        source: io::Error,
    },
    /// The server refused the client, or the client refused the server's offer.
    #[error("the {service} refused: {reason}")]
    Refused {
        /// Name of the service.
        service: &'static str,
        /// Reason in words.
        reason: String,
        /// True if connecting may succeed later.
        retry: bool,
    },
    /// The device lacks what the server's design needs.
    #[error(transparent)]
    Unsupported(#[from] UnsupportedDesign),
    /// The NIC cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A verb failed.
    #[error(transparent)]
    Verb(#[from] verbs::VerbError),
}

verbs::from_verb_errors!(ConnectError);

impl ConnectError {
    /// Creates the error of a refusal, for a server of the protocol `P`.
    pub fn refused<P: Protocol>(ClientRefusal { reason, retry }: ClientRefusal) -> Self {
        Self::Refused {
            service: P::SERVICE,
            reason,
            retry,
        }
    }

    /// Returns true if connecting again cannot succeed.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Unreachable { source, .. } => source.kind() == io::ErrorKind::InvalidInput,
            Self::Refused { retry, .. } => !retry,
            _ => true,
        }
    }
}

impl<P: Protocol> ServerLocation<P> {
    /// Opens a session for a client with this window. `prepare` reads the server's offer and
    /// returns the client's message. Its other result is returned together with the server's
    /// answer. Each step over TCP may take up to `timeout`.
    ///
    /// # Errors
    /// [`ConnectError`], or the error of `prepare`.
    pub fn open_session<Q, E: From<ConnectError>>(
        &self,
        window: usize,
        timeout: Duration,
        prepare: impl FnOnce(&P::ServerOffer) -> Result<(Q, P::Hello), E>,
    ) -> Result<(Q, P::Accepted, ClientSession), E> {
        let prepare = |offer: &P::ServerOffer| {
            check_server_offer::<P>(offer, window).map_err(ConnectError::refused::<P>)?;
            prepare(offer)
        };
        match self {
            Self::Local(connector) => {
                let (prepared, hello) = prepare(&connector.0.server_offer())?;
                let accepted = connector.0.accept(&hello);
                let (accepted, session) = accepted.map_err(ConnectError::refused::<P>)?;
                Ok((
                    prepared,
                    accepted,
                    ClientSession(ServerLink::Local(session)),
                ))
            }
            Self::Tcp(server) => {
                let unreachable = |source| ConnectError::Unreachable {
                    service: P::SERVICE,
                    server: server.clone(),
                    source,
                };
                let connected = Handshake::connect_and_receive_offer(server, P::SERVICE, timeout);
                let (handshake, offer) = connected.map_err(unreachable)?;
                let (prepared, hello) = prepare(&offer)?;
                match handshake
                    .send_hello_and_receive_answer(&hello)
                    .map_err(unreachable)?
                {
                    (Answer::Accepted(accepted), stream) => {
                        Ok((prepared, accepted, ClientSession(ServerLink::Tcp(stream))))
                    }
                    (Answer::Refused(refused), _) => {
                        Err(ConnectError::refused::<P>(refused).into())
                    }
                }
            }
        }
    }

    /// Calls `open` until it succeeds, with growing pauses, until `until`. Stops earlier if a retry
    /// cannot succeed, for example because a server in this process is gone.
    ///
    /// # Errors
    /// The last error of `open`.
    pub fn retry_until<T, E>(
        &self,
        until: Instant,
        open: impl FnMut() -> Result<T, E>,
        is_hopeless: impl Fn(&E) -> bool,
    ) -> Result<T, E> {
        let is_local = matches!(self, Self::Local(_));
        retry_until(until, open, |e| is_local || is_hopeless(e))
    }
}
