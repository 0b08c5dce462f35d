//! A client's side of the rendezvous: finds a server by TCP or in this process, and keeps its session open.

use std::fmt;
use std::io;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::connector::Connector;
use crate::design::Unsupported;
use crate::nic::OpenError;
use crate::protocol::{Protocol, check_welcome};
use crate::rendezvous::{Answer, Call, Refused, persist};

/// Where a client's server is.
#[derive(Debug, Clone)]
pub enum Target<P: Protocol> {
    /// At a TCP address.
    Tcp(String),
    /// In this process.
    Local(Connector<P>),
}

/// A session at a server: it ends when this is dropped.
#[derive(Debug)]
pub struct Connection(#[expect(dead_code, reason = "its end is what counts")] Held);

#[derive(Debug)]
#[expect(dead_code, reason = "its end is what counts")]
enum Held {
    Tcp(TcpStream),
    Local(Box<dyn fmt::Debug + Send + Sync>),
}

/// Why a client of any service cannot connect.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The configuration cannot work.
    #[error("{0}")]
    Config(String),
    /// The server cannot be reached, or is none.
    #[error("cannot reach a {service} at {server}: {source}")]
    Unreachable {
        /// What was looked for.
        service: &'static str,
        /// The address.
        server: String,
        /// Why.
        source: io::Error,
    },
    /// The server refused.
    #[error("the {service} refused: {reason}")]
    Refused {
        /// What the server is.
        service: &'static str,
        /// Why.
        reason: String,
        /// Whether it may succeed later.
        retry: bool,
    },
    /// The device lacks what the server's design needs.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// The NIC cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A verb failed.
    #[error(transparent)]
    Verb(#[from] verbs::VerbError),
}

impl ConnectError {
    /// A server of this protocol refused, or said what this client refuses.
    pub fn refused<P: Protocol>(Refused { reason, retry }: Refused) -> Self {
        Self::Refused {
            service: P::SERVICE,
            reason,
            retry,
        }
    }

    /// Whether trying to connect again cannot help.
    pub fn is_hopeless(&self) -> bool {
        match self {
            Self::Unreachable { source, .. } => source.kind() == io::ErrorKind::InvalidInput,
            Self::Refused { retry, .. } => !retry,
            _ => true,
        }
    }
}

impl<P: Protocol> Target<P> {
    /// Opens a session for a client with this window. `prepare` looks at what the server offers and says what this
    /// client wants; what it gives besides is returned with the server's answer. Each step over TCP may take `patience`.
    ///
    /// # Errors
    /// [`ConnectError`], or what `prepare` says.
    pub fn open<Q, E: From<ConnectError>>(
        &self,
        window: usize,
        patience: Duration,
        prepare: impl FnOnce(&P::Welcome) -> Result<(Q, P::Hello), E>,
    ) -> Result<(Q, P::Accepted, Connection), E> {
        let prepare = |welcome: &P::Welcome| {
            check_welcome::<P>(welcome, window).map_err(ConnectError::refused::<P>)?;
            prepare(welcome)
        };
        match self {
            Self::Local(connector) => {
                let (prepared, hello) = prepare(&connector.0.welcome())?;
                let accepted = connector.0.accept(&hello);
                let (accepted, session) = accepted.map_err(ConnectError::refused::<P>)?;
                Ok((prepared, accepted, Connection(Held::Local(session))))
            }
            Self::Tcp(server) => {
                let unreachable = |source| ConnectError::Unreachable {
                    service: P::SERVICE,
                    server: server.clone(),
                    source,
                };
                let dialed = Call::dial(server, P::SERVICE, patience);
                let (call, welcome) = dialed.map_err(unreachable)?;
                let (prepared, hello) = prepare(&welcome)?;
                match call.introduce(&hello).map_err(unreachable)? {
                    (Answer::Accepted(accepted), stream) => {
                        Ok((prepared, accepted, Connection(Held::Tcp(stream))))
                    }
                    (Answer::Refused(refused), _) => {
                        Err(ConnectError::refused::<P>(refused).into())
                    }
                }
            }
        }
    }

    /// Calls `open`, again and again with growing pauses until `until`, as long as that may help. A server in this
    /// process does not come back.
    ///
    /// # Errors
    /// The last one.
    pub fn persist<T, E>(
        &self,
        until: Instant,
        open: impl FnMut() -> Result<T, E>,
        is_hopeless: impl Fn(&E) -> bool,
    ) -> Result<T, E> {
        let is_local = matches!(self, Self::Local(_));
        persist(until, open, |e| is_local || is_hopeless(e))
    }
}
