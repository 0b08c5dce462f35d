//! Tests with clients that stop between any two steps of a change.

use std::time::Duration;

use rpc::one_sided::RequestSteps;

use super::*;
use crate::client::design::ClientDesign;
use crate::client::pipeline::PipelinedClient;
use crate::client::request::Answer;
use crate::wire::Op;
use crate::{Client, ClientConfig, Completion, Design, Server, ServerConfig};

const KEY: &[u8] = b"key";

fn server(lock_placement: crate::store::LockPlacement) -> Server {
    let config = ServerConfig {
        design: Design::Atomics,
        item_capacity: 1000,
        lock_lease_ms: 50,
        lock_placement,
        ..ServerConfig::default()
    };
    Server::start(config).expect("starts")
}

fn config(server: &Server) -> ClientConfig {
    ClientConfig {
        server: server.address().to_string(),
        deadline_ms: 60_000,
        ..ClientConfig::default()
    }
}

/// Returns a client that has READ the key, and so has cached its record number.
fn reader(server: &Server) -> PipelinedClient {
    let mut pipeline = PipelinedClient::connect(config(server)).expect("connects");
    assert!(pipeline.submit(&Op::Get { key: KEY }, 0).expect("short"));
    while pipeline.outstanding() > 0 {
        pipeline.poll(|_| {}).expect("reached");
    }
    pipeline
}

/// Returns a client that will put `value` and has locked the record.
fn holder(server: &Server, value: &[u8]) -> PipelinedClient {
    let mut pipeline = reader(server);
    let op = Op::Put {
        key: KEY,
        value,
        condition: SetCondition::Always,
        ttl_ms: 0,
    };
    assert!(pipeline.submit(&op, 1).expect("short"));
    let (records, _, _) = pipeline.remote_records_state();
    records.one_sided_qp.flush().expect("posted");
    pipeline
}

/// Takes the completion of the lock, and prepares the change without posting it.
fn prepare(pipeline: &mut PipelinedClient) {
    let (records, pending, stats) = pipeline.remote_records_state();
    let mut buffer = verbs::WcBuffer::<1>::new();
    let slot = verbs::poll_until(Duration::from_secs(20), || {
        let mut wcs = records.one_sided_qp.cq().poll(&mut buffer).expect("whole");
        wcs.next().map(|wc| wc.expect("locked").wr_id())
    });
    let slot = u32::try_from(slot.expect("it comes")).expect("a slot");
    let mut bytes = vec![0; records.one_sided_qp.slot_bytes()];
    let more = records.handle_completion(&pending[slot as usize], slot, stats, &mut bytes);
    assert!(more.expect("in range").is_none());
    assert!(
        records.request_may_have_changed_item(slot)
            && records.one_sided_qp.prepared_wr_count() == 3
    );
}

fn ends(pipeline: &mut PipelinedClient) -> (u64, bool) {
    let mut end = None;
    while end.is_none() {
        let each = |done: Completion<'_>| {
            end = Some(match done.answer {
                Answer::Changed { version } => (version, true),
                Answer::NoAnswerInTime => (0, false),
                other => panic!("{other:?}"),
            });
        };
        pipeline.poll(each).expect("reached");
    }
    end.expect("checked")
}

fn value(client: &mut Client) -> (Vec<u8>, u64) {
    let value = client.get(KEY).expect("answered").expect("there");
    (value.bytes, value.version)
}

/// A client that is slow while it holds a lock loses its access. Other clients continue, and its later WRITEs have no
/// effect.
#[test]
fn who_is_slow_with_a_lock_cannot_do_harm() {
    for placement in [Default::default(), crate::store::LockPlacement::Record] {
        let server = server(placement);
        let mut other = Client::connect(config(&server)).expect("connects");
        other.put(KEY, b"first").expect("set");
        let mut slow = holder(&server, b"slow");
        assert_eq!(other.put(KEY, b"second").expect("after the lease"), 2);
        assert!(other.stats().failed_lock_attempts > 0);
        let stats = server.stats();
        assert_eq!((stats.recovered_locks, stats.expelled_clients), (1, 1));
        // The slow client makes its change with keys that are no longer valid.
        prepare(&mut slow);
        let (records, _, _) = slow.remote_records_state();
        let _ = records.one_sided_qp.flush();
        assert_eq!(
            ends(&mut slow),
            (0, false),
            "it may have been made, for all it knows"
        );
        assert_eq!(value(&mut other), (b"second".to_vec(), 2));
        assert!(slow.stats().reconnects > 0);
        // The client has a new, working connection.
        let mut end = 0;
        let op = Op::Get { key: KEY };
        assert!(slow.submit(&op, 2).expect("short"));
        while end == 0 {
            slow.poll(|done| end = done.token).expect("reached");
        }
    }
}

/// A client dies while it holds a lock. A change with a redo entry is finished; one without was never made. Readers
/// never see half of a change.
#[test]
fn who_dies_with_a_lock_leaves_a_whole_value() {
    let server = server(Default::default());
    let mut other = Client::connect(config(&server)).expect("connects");
    other.put(KEY, b"first").expect("set");
    // The client dies with the lock only.
    drop(holder(&server, b"never"));
    assert_eq!(other.put(KEY, b"second").expect("set"), 2);
    // The client dies with a redo entry and half of the record changed.
    let mut dying = holder(&server, b"third");
    prepare(&mut dying);
    let (records, _, _) = dying.remote_records_state();
    let queue = &mut records.one_sided_qp;
    queue.post_first_and_drop_rest(1).expect("posted");
    let slot = records
        .request_states
        .iter()
        .position(|w| w.awaited_completion != AwaitedCompletion::Idle)
        .expect("one");
    let at =
        queue.slot_bytes() - redo::entry_bytes(&records.record_layout) + redo::ENTRY_BODY_OFFSET;
    let place = (u32::try_from(slot).expect("a slot"), at);
    let record = records.partition_memories[0].starting_at(
        records
            .record_layout
            .body_offset(records.request_states[slot].current_record),
    );
    queue.prepare_write(place, 24, record).expect("inside");
    queue.flush().expect("posted");
    let reader = other.start_get(KEY).expect("started");
    for _ in 0..100 {
        other.poll_without_waiting().expect("reached");
    }
    assert!(other.stats().torn_item_reads > 0);
    drop(dying);
    assert!(matches!(
        other.wait(reader),
        Ok(crate::RequestResult::Value(v)) if v.bytes == b"third" && v.version == 3
    ));
    assert_eq!(other.put(KEY, b"fourth").expect("set"), 4);
    let stats = server.stats();
    assert_eq!((stats.recovered_locks, stats.expelled_clients), (2, 0));
}

/// A client that may WRITE records can leave any bytes there. Requests for such a record end at their deadline.
#[test]
fn a_record_that_stays_torn_holds_nobody_beyond_the_deadline() {
    let server = server(Default::default());
    let mut other = Client::connect(config(&server)).expect("connects");
    other.put(KEY, b"value").expect("set");
    let mut hostile = reader(&server);
    let (records, _, _) = hostile.remote_records_state();
    let hash = crate::store::hash_of(KEY, records.hash_seed);
    let record = records.record_cache.get(hash);
    let value = records.record_layout.body_offset(record.expect("known"))
        + 16
        + records.record_layout.key_bytes as u64;
    let at = records.partition_memories[0].starting_at(value);
    let queue = &mut records.one_sided_qp;
    queue.write_buffer(0, 0, b"any byte").expect("room");
    queue.prepare_write((0, 0), 8, at).expect("inside");
    queue.flush().expect("posted");
    let mut asking = PipelinedClient::connect(ClientConfig {
        deadline_ms: 300,
        ..config(&server)
    })
    .expect("connects");
    let put = Op::Put {
        key: KEY,
        value: b"another",
        condition: SetCondition::Always,
        ttl_ms: 0,
    };
    for op in [Op::Get { key: KEY }, put] {
        asking.refresh_clock();
        assert!(asking.submit(&op, 0).expect("short"));
        let ended = verbs::poll_until(Duration::from_secs(20), || {
            let mut lost = None;
            let each = |done: Completion<'_>| lost = Some(done.answer == Answer::NoAnswerInTime);
            asking.poll(each).expect("reached");
            lost
        });
        assert_eq!(ended, Some(true), "{op:?}");
    }
    assert!(asking.stats().torn_item_reads > 0);
    assert_eq!(other.put(b"another key", b"value").expect("set"), 1);
}

/// If a neighbourhood is full of removed keys, their records are reused. Versions keep growing.
#[test]
fn records_of_removed_keys_are_given_to_others() {
    let config_of = ServerConfig {
        design: Design::Atomics,
        item_capacity: 1,
        ..ServerConfig::default()
    };
    let server = Server::start(config_of).expect("starts");
    let mut client = Client::connect(config(&server)).expect("connects");
    let (mut put, mut versions) = (0u32, 0);
    for n in 0..1000u32 {
        let key = n.to_le_bytes();
        match client.put(&key, b"value") {
            Ok(version) => {
                put += 1;
                assert!(version >= versions, "{version} after {versions}");
                if n < 50 {
                    continue;
                }
                versions = versions.max(version);
                assert!(client.delete(&key).expect("answered"));
                assert_eq!(client.get(&key).expect("answered"), None);
            }
            Err(crate::ClientError::StoreFull) => {}
            Err(e) => panic!("{e}"),
        }
    }
    let records = server.stats().store.items;
    assert!(
        u64::from(put) > 2 * records,
        "{put} keys in {records} records"
    );
}
