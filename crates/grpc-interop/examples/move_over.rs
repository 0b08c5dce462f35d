//! How a service of tonic moves over: the server serves what a listener of the stream accepts, and the client connects
//! by its connector. The service and its callers stay what they are.

use grpc_interop::messages::{Payload, SimpleRequest};
use stream::tonic::{Incoming, TonicConnector};
use stream::{Connector, Listener};
use tonic::transport::{Endpoint, Server};

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listener = Listener::bind("127.0.0.1:0".parse()?).await?;
    let uri = format!("http://{}", listener.local_addr()?);
    let server = Server::builder().add_service(grpc_interop::server());
    tokio::spawn(server.serve_with_incoming(Incoming::new(listener)));

    let connect = TonicConnector::new(Connector::process_default()?);
    let channel = Endpoint::from_shared(uri)?
        .connect_with_connector(connect)
        .await?;
    let mut client = grpc_interop::cases::client(channel);

    let request = SimpleRequest {
        response_size: 5,
        payload: Some(Payload::zeros(3)),
        ..SimpleRequest::default()
    };
    let response = client.unary_call(request).await?.into_inner();
    println!("{} bytes", response.payload.unwrap_or_default().body.len());
    Ok(())
}
