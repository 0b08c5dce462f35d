//! Connections of clients in the server's process, without TCP.

use std::fmt;
use std::sync::Arc;

use crate::protocol::Protocol;
use crate::rendezvous::ClientRefusal;

/// The accepting side of a server.
pub(crate) trait AcceptSide<P: Protocol>: Send + Sync {
    /// Returns the server's first message to a client.
    fn server_offer(&self) -> P::ServerOffer;

    /// Connects a client. The second result is the client's session; dropping it frees the client's
    /// resources at the server.
    fn accept(
        &self,
        hello: &P::Hello,
    ) -> Result<(P::Accepted, Box<dyn fmt::Debug + Send + Sync>), ClientRefusal>;

    /// Stops the server.
    fn stop(&self);
}

/// Connects clients to a server in this process. Clones connect to the same server.
pub struct LocalConnector<P: Protocol>(pub(crate) Arc<dyn AcceptSide<P>>);

impl<P: Protocol> LocalConnector<P> {
    /// Stops the server: its workers end.
    pub fn stop(&self) {
        self.0.stop();
    }
}

impl<P: Protocol> Clone for LocalConnector<P> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<P: Protocol> fmt::Debug for LocalConnector<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connector({})", P::NAME)
    }
}
