//! `verbatim tensor serve`: a store in a process of its own, used by two peers.

use std::sync::Arc;
use std::time::Duration;

use tensor::{Config, ConnectedPeer, DType, Error, Peer, Tensor, TensorMeta, TensorName};
use verbs::Access;

use crate::common::{self, ANYWHERE, Server};

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(60));

/// Connects a new peer to the store.
fn connect(store: &Server) -> (Peer, ConnectedPeer) {
    let peer = Peer::new(Config::default()).expect("a peer starts");
    let remote = peer.connect(&store.address).expect("the store accepts");
    (peer, remote)
}

fn name(key: &str) -> TensorName {
    TensorName::new(key, 0).expect("a good key")
}

fn content(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| seed ^ i.to_le_bytes()[0]).collect()
}

fn put(peer: &Peer, remote: &ConnectedPeer, key: &str, bytes: Vec<u8>) -> Result<(), Error> {
    let meta = TensorMeta::new(DType::U8, vec![bytes.len() as u64]).expect("small");
    let region = peer.pd().register_vec(bytes, Access::LOCAL_READ);
    let tensor = Tensor::new(meta, Some(Arc::new(region.expect("registered"))));
    let put = remote.put(name(key), tensor.expect("long enough"))?;
    put.wait(TIMEOUT).map(drop)
}

fn get(remote: &ConnectedPeer, key: &str) -> Result<Vec<u8>, Error> {
    let got = remote.get(name(key), false, None)?.wait(TIMEOUT)?;
    Ok(got.expect("a tensor").to_vec())
}

#[test]
fn a_store_gives_to_one_peer_what_another_put_and_says_what_it_evicted() {
    let store = Server::start("tensor", ANYWHERE, &["--capacity", "3M"]);
    let ((writer, to), (_reader, from)) = (connect(&store), connect(&store));
    for (key, seed) in [("a", 1), ("b", 2), ("c", 3)] {
        put(&writer, &to, key, content(1 << 20, seed)).expect("stored");
    }
    assert_eq!(get(&from, "a").expect("held"), content(1 << 20, 1));
    // The store is full, and `b` was used longest ago.
    put(&writer, &to, "d", content(1 << 20, 4)).expect("stored");
    assert!(matches!(get(&from, "b"), Err(Error::NotFound(_))));
    for (key, seed) in [("a", 1), ("c", 3), ("d", 4)] {
        assert_eq!(get(&from, key).expect("held"), content(1 << 20, seed));
    }
    drop((to, from));
    let stats = store.stop();
    assert_eq!(stats["tensors"], 3);
    assert_eq!(stats["stored_bytes"], 3 << 20);
    assert_eq!(stats["evicted"], 1);
}

#[test]
fn peers_of_a_killed_store_get_an_error() {
    let mut store = Server::start("tensor", ANYWHERE, &[]);
    let (peer, remote) = connect(&store);
    put(&peer, &remote, "a", content(100, 1)).expect("stored");
    store.child.kill().expect("killed");
    store.child.wait().expect("ended");
    let e = get(&remote, "a").expect_err("the store has ended");
    assert!(matches!(e, Error::Disconnected { .. }), "{e}");
}

#[test]
fn an_address_in_use_is_an_error_that_names_it() {
    let store = Server::start("tensor", ANYWHERE, &[]);
    let out = common::run(&["tensor", "serve", "--listen", &store.address]);
    let err = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{err}");
    assert!(err.contains(&store.address), "{err}");
}
