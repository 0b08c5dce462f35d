//! The suite over TCP, over the stream by RDMA, and where a stream falls back.

use std::future::Future;
use std::time::Duration;

use grpc_interop::{cases, server};
use stream::tonic::{Incoming, TonicConnector};
use stream::{Config, Connector, Listener, RdmaPolicy};
use tokio::sync::oneshot;
use tonic::transport::{Endpoint, Server};

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        tokio::time::timeout(Duration::from_secs(100), test)
            .await
            .expect("the test hangs");
    });
}

/// Every case over a client and a server with these policies.
async fn all(client: RdmaPolicy, of_server: RdmaPolicy) {
    let with = |policy| Config {
        rdma_policy: policy,
        ..Config::default()
    };
    let any = "127.0.0.1:0".parse().expect("an address");
    let listener = Listener::bind_with_config(any, with(of_server)).await;
    let listener = listener.expect("listens");
    let address = listener.local_addr().expect("an address");
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = tokio::spawn(
        Server::builder()
            .add_service(server())
            .serve_with_incoming_shutdown(Incoming::new(listener), async {
                let _ = stopped.await;
            }),
    );
    let connector = Connector::new(with(client)).expect("a device");
    let channel = Endpoint::from_shared(format!("http://{address}"))
        .expect("a URI")
        .connect_with_connector(TonicConnector::new(connector))
        .await
        .expect("connects");
    let passed = cases::run(channel.clone()).await.expect("every case");
    assert_eq!(passed.len(), 15);
    drop(channel);
    stop.send(()).expect("the server runs");
    serving.await.expect("the server").expect("ends well");
}

#[test]
fn the_cases_pass_over_rdma() {
    run(all(RdmaPolicy::RdmaOnly, RdmaPolicy::RdmaOnly));
}

#[test]
fn the_cases_pass_where_a_side_has_tcp_only() {
    run(async {
        all(RdmaPolicy::TcpOnly, RdmaPolicy::FallBack).await;
        all(RdmaPolicy::FallBack, RdmaPolicy::TcpOnly).await;
    });
}

#[path = "../examples/move_over.rs"]
mod move_over;

#[test]
fn the_example_runs() {
    move_over::main().expect("it runs");
}
