//! gRPC by tonic over streams: a connector for clients, and the incoming connections of a server.
//!
//! A service needs two changed lines:
//!
//! ```no_run
//! # async fn go() -> Result<(), Box<dyn std::error::Error>> {
//! // The client: instead of `.connect().await?`
//! let channel = tonic::transport::Endpoint::from_static("http://127.0.0.1:50051")
//!     .connect_with_connector(stream::tonic::TonicConnector::new(stream::Connector::process_default()?))
//!     .await?;
//! # drop(channel);
//! // The server: instead of `.serve(address)`
//! let listener = stream::Listener::bind("127.0.0.1:50051".parse()?).await?;
//! let incoming = stream::tonic::Incoming::new(listener);
//! # let router: tonic::transport::server::Router = unimplemented!();
//! router.serve_with_incoming(incoming).await?;
//! # Ok(())
//! # }
//! ```
//!
//! Clients without RDMA reach the same port of the server by plain TCP.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tonic::codegen::http::Uri;
use tonic::transport::server::Connected;

use crate::connector::Connector;
use crate::listener::Listener;
use crate::stream::Stream;

/// Pause after the system has refused a connection for lack of descriptors or memory.
const PAUSE_AFTER_FAILED_ACCEPT: Duration = Duration::from_millis(50);

/// Connector for a channel of tonic, for `Endpoint::connect_with_connector`.
///
/// The authority of the endpoint's URI is the server's address; encryption is not supported.
#[derive(Debug, Clone)]
pub struct TonicConnector {
    connector: Connector,
}

impl TonicConnector {
    /// Creates a connector for channels from a connector for streams.
    pub fn new(connector: Connector) -> Self {
        Self { connector }
    }
}

impl tower_service::Service<Uri> for TonicConnector {
    type Response = TokioIo<Stream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connector = self.connector.clone();
        Box::pin(async move {
            let host = uri.host().unwrap_or_default();
            let host = host.trim_start_matches('[').trim_end_matches(']');
            let port = uri.port_u16().unwrap_or(80);
            let mut last = io::Error::new(
                io::ErrorKind::NotFound,
                format!("{host:?} has no address: the endpoint needs a URI as http://host:port"),
            );
            for address in tokio::net::lookup_host((host, port)).await? {
                match connector.connect(address).await {
                    Ok(stream) => return Ok(TokioIo::new(stream)),
                    Err(e) => last = e,
                }
            }
            Err(last)
        })
    }
}

/// The connections of a [`Listener`], for `serve_with_incoming`; an endless stream.
#[derive(Debug)]
pub struct Incoming {
    listener: Listener,
    pause_after_failed_accept: Option<Pin<Box<tokio::time::Sleep>>>,
}

impl Incoming {
    /// Creates the stream of connections of a listener.
    pub fn new(listener: Listener) -> Self {
        Self {
            listener,
            pause_after_failed_accept: None,
        }
    }
}

impl tokio_stream::Stream for Incoming {
    type Item = io::Result<Stream>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(pause) = &mut self.pause_after_failed_accept {
                std::task::ready!(pause.as_mut().poll(cx));
                self.pause_after_failed_accept = None;
            }
            match std::task::ready!(self.listener.poll_accept(cx)) {
                Ok(stream) => return Poll::Ready(Some(Ok(stream))),
                // Do not return the error, because tonic would then stop the server.
                Err(why) => {
                    tracing::error!(%why, "no connection can be accepted");
                    self.pause_after_failed_accept =
                        Some(Box::pin(tokio::time::sleep(PAUSE_AFTER_FAILED_ACCEPT)));
                }
            }
        }
    }
}

/// Information about a connection that a service can read:
/// `request.extensions().get::<ConnectInfo>()`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectInfo {
    /// The client's address.
    pub remote_addr: Option<SocketAddr>,
    /// True if the connection uses RDMA.
    pub is_rdma: bool,
}

impl Connected for Stream {
    type ConnectInfo = ConnectInfo;

    fn connect_info(&self) -> ConnectInfo {
        ConnectInfo {
            remote_addr: self.peer_addr().ok(),
            is_rdma: self.is_rdma(),
        }
    }
}
