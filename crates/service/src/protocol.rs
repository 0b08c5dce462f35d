//! The messages of a service's rendezvous, and what is checked of them for every service.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::rendezvous::Refused;

/// The rendezvous of one service: three messages, each a JSON object on one line.
pub trait Protocol: 'static {
    /// What the service is, in messages to people, such as `sequencer`.
    const SERVICE: &'static str;
    /// What [`Welcome::protocol`] says.
    const NAME: &'static str;
    /// The version of the exchange.
    const VERSION: u32;
    /// The server's first message: what it is and offers.
    type Welcome: Welcome + Serialize + DeserializeOwned;
    /// The client's message: what it wants, and its queue pairs.
    type Hello: Hello + Serialize + DeserializeOwned;
    /// The server's answer: its queue pairs and keys.
    type Accepted: Serialize + DeserializeOwned;
}

/// The part of a server's first message that every service has.
pub trait Welcome {
    /// [`Protocol::NAME`].
    fn protocol(&self) -> &str;
    /// [`Protocol::VERSION`].
    fn version(&self) -> u32;
    /// The largest window that a client may ask for.
    fn max_window(&self) -> usize;
}

/// The part of a client's message that every service has.
pub trait Hello {
    /// [`Protocol::VERSION`].
    fn version(&self) -> u32;
    /// Requests outstanding at most.
    fn window(&self) -> usize;
}

/// Refuses the welcome of another protocol, or of a server that takes no such window.
pub(crate) fn check_welcome<P: Protocol>(
    welcome: &P::Welcome,
    window: usize,
) -> Result<(), Refused> {
    let (protocol, version) = (welcome.protocol(), welcome.version());
    if protocol != P::NAME || version != P::VERSION {
        return Err(Refused::never(format!(
            "it speaks {protocol} {version}, this client {} {}",
            P::NAME,
            P::VERSION
        )));
    }
    if window > welcome.max_window() {
        return Err(Refused::never(format!(
            "its largest window is {}, not {window}",
            welcome.max_window()
        )));
    }
    Ok(())
}

/// Refuses a client of another version, or with a window that this server does not take.
pub(crate) fn check_hello<P: Protocol>(hello: &P::Hello, max_window: usize) -> Result<(), Refused> {
    let (version, window) = (hello.version(), hello.window());
    if version != P::VERSION {
        return Err(Refused::never(format!(
            "version {version} of the exchange, {} expected",
            P::VERSION
        )));
    }
    if window == 0 || window > max_window {
        return Err(Refused::never(format!(
            "a window of {window}: this server takes 1 to {max_window} (its max-window)"
        )));
    }
    Ok(())
}
