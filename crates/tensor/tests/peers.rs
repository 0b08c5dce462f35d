//! Peers in one process: tensors come whole, changes of metadata are followed, errors are told.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use tensor::{
    Config, ConnectedPeer, DType, Error, Operation, Outcome, Peer, Tensor, TensorMeta, TensorName,
};
use verbs::Access;

const PATIENCE: Option<Duration> = Some(Duration::from_secs(30));

fn listening(capacity_bytes: u64) -> Peer {
    let config = Config {
        listen_address: Some("127.0.0.1:0".to_owned()),
        peer_store_capacity_bytes: capacity_bytes,
        ..Config::default()
    };
    Peer::new(config).expect("it starts")
}

fn client() -> Peer {
    Peer::new(Config::default()).expect("it starts")
}

fn connected(client: &Peer, to: &Peer) -> ConnectedPeer {
    let address = to.address().expect("it listens").to_string();
    client.connect(&address).expect("it accepts")
}

fn name(key: &str) -> TensorName {
    TensorName::new(key, 3).expect("a good key")
}

/// A tensor of bytes that can be told from others.
fn bytes(peer: &Peer, len: usize, seed: usize) -> Tensor {
    let meta = TensorMeta::new(DType::U8, vec![len as u64]).expect("small");
    let content: Vec<u8> = (0..len).map(|i| content(i, seed)).collect();
    let register = |content| peer.pd().register_vec(content, Access::LOCAL_READ);
    let region = (len > 0).then(|| Arc::new(register(content).expect("registers")));
    Tensor::new(meta, region).expect("long enough")
}

fn content(i: usize, seed: usize) -> u8 {
    u8::try_from((i * 7 + i / 4096 + seed) % 251).expect("small")
}

fn got(operation: Result<Operation, Error>) -> Outcome {
    operation?.wait(PATIENCE)
}

fn check(outcome: Outcome, len: usize, seed: usize) {
    let tensor = outcome.expect("it comes").expect("a tensor");
    assert_eq!(tensor.meta().shape(), [len as u64]);
    let there = tensor.to_vec();
    assert!(
        (0..len).all(|i| there[i] == content(i, seed)),
        "{len} bytes"
    );
}

#[test]
fn tensors_of_all_sizes_come_whole() {
    let (sender, receiver) = (listening(0), client());
    let remote = connected(&receiver, &sender);
    for len in [
        0,
        1,
        100,
        4096,
        70_001,
        (1 << 20) - 1,
        5 << 20,
        (9 << 20) + 3,
    ] {
        sender.publish(name("t"), bytes(&sender, len, len));
        // The second time the receiver knows what it is.
        for _ in 0..2 {
            check(got(remote.get(name("t"), false, None)), len, len);
        }
    }
    assert!(sender.withdraw(&name("t")).is_some());
    let e = got(remote.get(name("t"), false, None)).expect_err("it is gone");
    assert!(matches!(e, Error::NotFound(_)), "{e}");
}

#[test]
fn a_receiver_waits_for_what_comes_later() {
    let (sender, receiver) = (listening(0), client());
    let remote = connected(&receiver, &sender);
    let waiting = remote.get(name("late"), true, None).expect("asked");
    assert!(!waiting.is_done_within(Duration::from_millis(30)));
    sender.publish(name("late"), bytes(&sender, 3 << 20, 1));
    check(waiting.wait(PATIENCE), 3 << 20, 1);
    sender.publish(name("late"), bytes(&sender, 300, 1));
    let soon = Some(Duration::from_millis(20));
    let never = remote.get(name("never"), true, None).expect("asked");
    let e = never.wait(soon).expect_err("nobody has it");
    assert!(matches!(e, Error::Timeout { .. }), "{e}");
    // What was cancelled is not outstanding for ever.
    for _ in 0..2 * tensor::REQUESTS_MAX {
        let never = remote.get(name("never"), true, None);
        drop(never);
        check(got(remote.get(name("late"), false, None)), 300, 1);
    }
}

#[test]
fn many_are_in_flight_and_no_more_than_may_be() {
    let (sender, receiver) = (listening(0), client());
    let remote = connected(&receiver, &sender);
    let get = |i: usize| remote.get(name(&format!("t{i}")), true, None);
    let outstanding: Vec<_> = (0..tensor::REQUESTS_MAX).map(get).collect();
    assert!(matches!(get(0), Err(Error::TooManyOutstandingRequests(_))));
    for i in (0..outstanding.len()).rev() {
        let tensor = bytes(&sender, i * 1000, i);
        sender.publish(name(&format!("t{i}")), tensor);
    }
    for (i, one) in outstanding.into_iter().enumerate() {
        check(got(one), i * 1000, i);
    }
}

#[test]
fn given_memory_is_filled_or_left_alone() {
    let (sender, receiver) = (listening(0), client());
    let remote = connected(&receiver, &sender);
    sender.publish(name("t"), bytes(&sender, 5000, 9));
    let given = |len: u64| {
        let meta = TensorMeta::new(DType::U8, vec![len]).expect("small");
        receiver.allocate(meta).expect("memory")
    };
    let into = given(5000);
    let address = into.region().expect("memory").addr();
    let outcome = got(remote.get(name("t"), false, Some(into)));
    let at = outcome
        .as_ref()
        .ok()
        .and_then(|t| Some(t.as_ref()?.region()?.addr()));
    assert_eq!(at, Some(address));
    check(outcome, 5000, 9);
    let e = got(remote.get(name("t"), false, Some(given(5001)))).expect_err("another shape");
    assert!(matches!(e, Error::MetadataMismatch { .. }), "{e}");
}

#[test]
fn a_store_keeps_what_was_used_last() {
    let (store, writer, reader) = (listening(10_000), client(), client());
    let (to, from) = (connected(&writer, &store), connected(&reader, &store));
    for i in 0..5 {
        let tensor = bytes(&writer, 3000, i);
        got(to.put(name(&format!("t{i}")), tensor)).expect("stored");
    }
    let get = |i: usize| got(from.get(name(&format!("t{i}")), false, None));
    assert!(matches!(get(0), Err(Error::NotFound(_))));
    (2..5).for_each(|i| check(get(i), 3000, i));
    assert_eq!(
        (
            store.store_statistics().stored_bytes,
            store.store_statistics().evicted_tensors
        ),
        (9000, 2)
    );
    let e = got(to.put(name("large"), bytes(&writer, 10_001, 0))).expect_err("too large");
    assert!(matches!(e, Error::TooLarge { bytes: 10_001, .. }), "{e}");
    got(from.remove(name("t4"))).expect("removed");
    assert!(matches!(
        got(from.remove(name("t4"))),
        Err(Error::NotFound(_))
    ));
    // Who waits at the store gets what somebody else puts there.
    let waiting = from.get(name("later"), true, None).expect("asked");
    got(to.put(name("later"), bytes(&writer, 777, 5))).expect("stored");
    check(waiting.wait(PATIENCE), 777, 5);
}

/// A store that takes up an offer only after the caller has given up does not get bytes that have changed since.
#[test]
fn a_put_that_timed_out_stores_nothing_later() {
    let (store, writer) = (listening(10 << 20), client());
    let to = connected(&writer, &store);
    // The thread of the store is stopped in a callback.
    let publisher = listening(0);
    let from = connected(&store, &publisher);
    let (is_stopped, stopped) = channel();
    let (go_on, may_go_on) = channel::<()>();
    let waiting = from.get(name("signal"), true, None).expect("asked");
    waiting.on_done(move || {
        is_stopped.send(()).expect("the test waits");
        let _ = may_go_on.recv();
    });
    publisher.publish(name("signal"), bytes(&publisher, 1, 0));
    stopped
        .recv_timeout(Duration::from_secs(60))
        .expect("called");

    let meta = TensorMeta::new(DType::U8, vec![3 << 20]).expect("small");
    let source = writer.allocate(meta).expect("memory");
    let put = to.put(name("t"), source.clone()).expect("begun");
    let soon = Some(Duration::from_millis(20));
    let e = put.wait(soon).expect_err("the store does nothing");
    assert!(matches!(e, Error::Timeout { .. }), "{e}");
    let region = source.region().expect("memory");
    region.write_at(0, &[7; 3 << 20]).expect("inside");

    drop(go_on);
    for i in 0..3 {
        got(to.put(name("next"), bytes(&writer, 300, i))).expect("stored");
    }
    assert!(store.find_local(&name("t")).is_none());
    assert!(store.find_local(&name("next")).is_some());
    // An offer that was withdrawn does not stay outstanding.
    for i in 0..2 * tensor::REQUESTS_MAX {
        drop(to.put(name("t"), bytes(&writer, 300, i)));
        got(to.put(name("next"), bytes(&writer, 300, i))).expect("stored");
    }
}

#[test]
fn others_change_no_tensor_that_a_process_has_published() {
    let (store, writer) = (listening(10_000), client());
    let to = connected(&writer, &store);
    store.publish(name("own"), bytes(&store, 100, 1));
    let e = got(to.put(name("own"), bytes(&writer, 100, 2))).expect_err("published");
    assert!(matches!(e, Error::PublishedByPeer(_)), "{e}");
    let e = got(to.remove(name("own"))).expect_err("published");
    assert!(matches!(e, Error::PublishedByPeer(_)), "{e}");
    check(got(to.get(name("own"), false, None)), 100, 1);
    // The process itself may change everything.
    got(to.put(name("other"), bytes(&writer, 100, 3))).expect("stored");
    store.publish(name("other"), bytes(&store, 50, 4));
    let e = got(to.remove(name("other"))).expect_err("published");
    assert!(matches!(e, Error::PublishedByPeer(_)), "{e}");
    check(got(to.get(name("other"), false, None)), 50, 4);
    assert_eq!(store.store_statistics().stored_bytes, 0);
}

#[test]
fn a_process_without_capacity_stores_nothing() {
    let (publisher, writer) = (listening(0), client());
    let to = connected(&writer, &publisher);
    for len in [0, 1] {
        let e = got(to.put(name("t"), bytes(&writer, len, 0))).expect_err("no store");
        assert!(matches!(e, Error::TooLarge { .. }), "{e}");
        let e = got(to.get(name("t"), false, None)).expect_err("not stored");
        assert!(matches!(e, Error::NotFound(_)), "{e}");
    }
}

#[test]
fn the_end_of_a_peer_is_an_error() {
    let (sender, receiver) = (listening(0), client());
    let remote = connected(&receiver, &sender);
    let waiting = remote.get(name("never"), true, None).expect("asked");
    drop(sender);
    let e = waiting.wait(PATIENCE).expect_err("it is gone");
    assert!(matches!(e, Error::Disconnected { .. }), "{e}");
    assert!(remote.has_ended());
    let e = got(remote.get(name("t"), false, None)).expect_err("it is gone");
    assert!(matches!(e, Error::Disconnected { .. }), "{e}");
}

/// The completion queue of a connection may go while the thread of the process waits for its event.
#[test]
fn a_peer_ends_while_completions_come() {
    let end_a_peer = || {
        let (sender, receiver) = (listening(0), client());
        let remote = connected(&receiver, &sender);
        let waiting = remote.get(name("never"), true, None).expect("asked");
        drop(sender);
        assert!(waiting.wait(PATIENCE).is_err());
    };
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| (0..4).for_each(|_| end_a_peer()));
        }
    });
}

#[test]
fn keys_have_a_length() {
    assert!(TensorName::new("", 0).is_err());
    assert!(TensorName::new(&"k".repeat(tensor::KEY_BYTES_MAX), 0).is_ok());
}
