//! Tests with servers and clients in one process, on the software NIC.

use super::*;
use crate::herd::{Client, PreparedClient};

/// Handler that answers with the request's index in its batch.
struct BatchIndexHandler;

impl RpcHandler for BatchIndexHandler {
    type BatchState = ();

    fn prepare_batch(&mut self, _requests: usize) {}

    fn handle(&mut self, (): &mut (), request: Request<'_>, reply: RequestReplier<'_>) {
        reply.send_payload(&(request.index_in_batch as u64).to_le_bytes());
    }
}

const LAYOUT: RequestRegionLayout = RequestRegionLayout {
    slots_per_client: 4,
    max_payload_bytes: 0,
};

struct TestBed {
    pd: ProtectionDomain,
    port: PortAndGidIndex,
    cq: CompletionQueue,
}

impl TestBed {
    fn new() -> Self {
        let device = verbs::Provider::softnic().device(None);
        let context = device.expect("a device").open().expect("opens");
        let port = PortAndGidIndex {
            port_num: 1,
            gid_index: context.default_gid_index(1).expect("one"),
        };
        Self {
            pd: context.alloc_pd().expect("a PD"),
            port,
            cq: context.create_cq(1).expect("a CQ"),
        }
    }

    fn server(&self, doorbells: BatchPolicy) -> Result<Server, RpcError> {
        Server::new(
            &self.pd,
            LAYOUT,
            4,
            doorbells,
            &BufferedUdQpConfig::default(),
        )
    }

    /// Creates a client of all these servers, under this index.
    fn client(&self, servers: &mut [Server], index: u32) -> Client {
        let config = BufferedUdQpConfig {
            max_recv_payload_bytes: 8,
            ..BufferedUdQpConfig::default()
        };
        let client = PreparedClient::new(&self.pd, 0, &config).expect("made");
        let ends = (&client.uc_endpoint(), &client.ud_endpoint());
        let connected = connect_client(&self.pd, self.port, &self.cq, ends).expect("connected");
        let (qp, mut regions) = (Arc::new(connected.qp), Vec::new());
        for (place, server) in servers.iter_mut().enumerate() {
            let tag = WorkerTag::of_worker(place).expect("few workers");
            let slots = (LAYOUT.slots_per_client, tag);
            let added = server.add_client_of_many_workers(
                index,
                Arc::clone(&qp),
                connected.client_destination.clone(),
                slots,
            );
            added.expect("added");
            regions.push(server.region_of_client(index).expect("a part"));
        }
        let connected = client.connect_to_all_workers(&connected.server_endpoint, &regions, LAYOUT);
        connected.expect("connected")
    }
}

/// Receives the next `count` answers and returns their immediates and payloads.
fn answers(client: &mut Client, count: usize) -> Vec<(u32, u64)> {
    let mut came = Vec::new();
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while came.len() < count {
        let each =
            |r: crate::ReceivedDatagram<'_>| came.push((r.imm, r.u64_le().expect("eight bytes")));
        client.poll(each).expect("polled");
        assert!(std::time::Instant::now() < end, "{came:?}");
    }
    came
}

/// Polls until `count` requests have been handled. Returns the number of requests of each poll.
fn passes(server: &mut Server, count: usize) -> Vec<usize> {
    let mut passes = Vec::new();
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while passes.iter().sum::<usize>() < count {
        let came = server.poll(&mut BatchIndexHandler).expect("polled");
        passes.extend((came > 0).then_some(came));
        assert!(std::time::Instant::now() < end, "{passes:?}");
    }
    passes
}

/// Three clients send three requests each. Requests on the same host have arrived when `send`
/// returns.
#[test]
fn a_pass_drains_clients_or_takes_one_request_of_each() {
    let bed = TestBed::new();
    for (scan, expected) in [
        (RequestsPerClient::All, vec![4, 4, 1]),
        (RequestsPerClient::AtMostOne, vec![3, 3, 3]),
    ] {
        let doorbells = BatchPolicy {
            max_batch: 4,
            region_scan: scan,
            ..BatchPolicy::default()
        };
        let mut servers = [bed.server(doorbells).expect("made")];
        let mut clients = [0, 1, 2].map(|index| bed.client(&mut servers, index));
        for client in &mut clients {
            client.send(3, |_| &[]).expect("sent");
        }
        let [server] = &mut servers;
        assert_eq!(passes(server, 9), expected, "{scan:?}");
        for client in &mut clients {
            let numbers: Vec<_> = answers(client, 3).iter().map(|a| a.0).collect();
            assert_eq!(numbers, [1, 2, 3], "{scan:?}");
        }
    }
}

#[test]
fn answers_of_a_batch_are_divided_over_queue_pairs_with_a_doorbell_each() {
    let bed = TestBed::new();
    let doorbells = BatchPolicy {
        answer_qps: 4,
        answer_qps_per_batch: 2,
        region_scan: RequestsPerClient::AtMostOne,
        ..BatchPolicy::default()
    };
    let mut servers = [bed.server(doorbells).expect("made")];
    let mut clients = [0, 1, 2].map(|index| bed.client(&mut servers, index));
    for client in &mut clients {
        client.send(2, |_| &[]).expect("sent");
    }
    let [server] = &mut servers;
    assert_eq!(passes(server, 6), [3, 3]);
    // Clients 0 and 2 share one queue pair, client 1 uses the other; both batches are alike.
    let counts = server.counts();
    assert_eq!((counts.answered_requests, counts.doorbells), (6, 4));
    assert_eq!(counts.postlists_by_length[..3], [2, 2, 0]);
    for client in &mut clients {
        answers(client, 2);
    }
    for (queues, split) in [(3, 2), (3, 3), (4, 0)] {
        let doorbells = BatchPolicy {
            answer_qps: queues,
            answer_qps_per_batch: split,
            ..BatchPolicy::default()
        };
        let refused = bed.server(doorbells).expect_err("no such division");
        assert!(refused.to_string().contains("power of two"), "{refused}");
    }
}

#[test]
fn a_client_of_several_workers_tells_their_answers_apart() {
    let bed = TestBed::new();
    let mut servers = [(); 3].map(|()| bed.server(BatchPolicy::default()).expect("made"));
    let mut client = bed.client(&mut servers, 1);
    assert_eq!(client.worker_count(), 3);
    // Send to worker 0 twice and to the others once, with one doorbell.
    for worker in [0, 1, 2, 0] {
        client.select_worker(worker);
        client.prepare_request(&[]).expect("prepared");
    }
    client.post_prepared_requests().expect("sent");
    let mut came = Vec::new();
    for (place, server) in servers.iter_mut().enumerate() {
        let count = if place == 0 { 2 } else { 1 };
        passes(server, count);
        came.extend(answers(&mut client, count));
    }
    let tag = |place| WorkerTag::of_worker(place).expect("a place");
    let expected = [(0, 1, 0), (0, 2, 1), (1, 1, 0), (2, 1, 0)];
    assert_eq!(
        came,
        expected.map(|(place, number, index)| (tag(place).answer_imm(number), index))
    );
}
