//! How a client in the same process reaches a server without TCP.

use std::fmt;
use std::sync::Arc;

use crate::protocol::Protocol;
use crate::rendezvous::Refused;

/// The side of a server that takes clients.
pub(crate) trait AcceptSide<P: Protocol>: Send + Sync {
    /// What a client hears first.
    fn welcome(&self) -> P::Welcome;

    /// Connects to a client. What it gets besides is the client's session: the server frees it when it is dropped.
    fn accept(
        &self,
        hello: &P::Hello,
    ) -> Result<(P::Accepted, Box<dyn fmt::Debug + Send + Sync>), Refused>;

    /// Tells the server to stop.
    fn stop(&self);
}

/// Connects clients to a server in this process. Clones lead to the same server.
pub struct Connector<P: Protocol>(pub(crate) Arc<dyn AcceptSide<P>>);

impl<P: Protocol> Connector<P> {
    /// Tells the server to stop: its workers end.
    pub fn stop(&self) {
        self.0.stop();
    }
}

impl<P: Protocol> Clone for Connector<P> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<P: Protocol> fmt::Debug for Connector<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connector({})", P::NAME)
    }
}
