//! The messages of a service's rendezvous, and their checks for all services.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::rendezvous::ClientRefusal;

/// The rendezvous of one service: three messages, each a JSON object on one line.
pub trait Protocol: 'static {
    /// Name of the service in messages to users, such as `sequencer`.
    const SERVICE: &'static str;
    /// Value of [`ServerOffer::protocol`].
    const NAME: &'static str;
    /// Version of the exchange.
    const VERSION: u32;
    /// The server's first message: its identity and its offer.
    type ServerOffer: ServerOffer + Serialize + DeserializeOwned;
    /// The client's message: its request, and its queue pairs.
    type Hello: Hello + Serialize + DeserializeOwned;
    /// The server's answer: its queue pairs and keys.
    type Accepted: Serialize + DeserializeOwned;
}

/// The part of a server's first message that all services share.
pub trait ServerOffer {
    /// Returns the server's [`Protocol::NAME`].
    fn protocol(&self) -> &str;
    /// Returns the server's [`Protocol::VERSION`].
    fn version(&self) -> u32;
    /// Returns the largest window that a client may request.
    fn max_window(&self) -> usize;
}

/// The part of a client's message that all services share.
pub trait Hello {
    /// Returns the client's [`Protocol::VERSION`].
    fn version(&self) -> u32;
    /// Returns the maximum number of outstanding requests.
    fn window(&self) -> usize;
}

/// Refuses a server of another protocol, or a server that does not accept the window.
pub(crate) fn check_server_offer<P: Protocol>(
    offer: &P::ServerOffer,
    window: usize,
) -> Result<(), ClientRefusal> {
    let (protocol, version) = (offer.protocol(), offer.version());
    if protocol != P::NAME || version != P::VERSION {
        return Err(ClientRefusal::permanent(format!(
            "it speaks {protocol} {version}, this client {} {}",
            P::NAME,
            P::VERSION
        )));
    }
    if window > offer.max_window() {
        return Err(ClientRefusal::permanent(format!(
            "its largest window is {}, not {window}",
            offer.max_window()
        )));
    }
    Ok(())
}

/// Refuses a client of another version, or a window that this server does not accept.
pub(crate) fn check_hello<P: Protocol>(
    hello: &P::Hello,
    max_window: usize,
) -> Result<(), ClientRefusal> {
    let (version, window) = (hello.version(), hello.window());
    if version != P::VERSION {
        return Err(ClientRefusal::permanent(format!(
            "version {version} of the exchange, {} expected",
            P::VERSION
        )));
    }
    if window == 0 || window > max_window {
        return Err(ClientRefusal::permanent(format!(
            "a window of {window}: this server takes 1 to {max_window} (its max-window)"
        )));
    }
    Ok(())
}
