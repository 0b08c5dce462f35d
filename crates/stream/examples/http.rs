//! HTTP/1 by hyper over the stream: a server, and a client that sends requests to it.

use std::convert::Infallible;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use stream::{Listener, Stream};

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let text = format!("you asked for {}", request.uri().path());
    Ok(Response::new(text.into()))
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut listener = Listener::bind("127.0.0.1:0".parse()?).await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok(stream) = listener.accept().await {
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service_fn(answer));
            tokio::spawn(connection);
        }
    });

    let stream = Stream::connect(address).await?;
    assert!(stream.is_rdma());
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    for path in ["/first", "/second"] {
        let request = Request::get(path)
            .header("host", "localhost")
            .body(Full::<Bytes>::default())?;
        let response = sender.send_request(request).await?;
        let body = response.into_body().collect().await?.to_bytes();
        assert_eq!(body, format!("you asked for {path}"));
        println!("{}", String::from_utf8_lossy(&body));
    }
    Ok(())
}
