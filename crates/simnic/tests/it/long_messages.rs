//! Messages of several packets. Their packets follow each other through PCIe and the network.

use std::cell::RefCell;
use std::rc::Rc as Shared;
use std::time::Duration;

use nicmodel::profile::{Profile, builtin_profile};
use verbs::{Inline, WcBuffer};

use crate::scene::{Setup, Side, run, successes};

const BYTES: usize = 64 << 10;
const LAST_WORD: usize = BYTES - 8;

/// Times of the profile whose clusters the tests simulate, in ns.
struct Times {
    pcie_latency: f64,
    network_latency: f64,
    /// A message of [`BYTES`] on a port, and a packet of it.
    message_on_port: f64,
    packet_on_port: f64,
    /// A packet over PCIe.
    packet_over_pcie: f64,
    /// All that is not proportional to the payload: cores, processing of the NICs, and packets without payload.
    others: f64,
}

impl Times {
    fn of_a_connect_ib() -> Self {
        let profile: &Profile = builtin_profile("cib").expect("built in");
        let known = |number: &Option<nicmodel::profile::Sourced<f64>>| {
            number.as_ref().expect("it has all costs").value
        };
        let port = profile.port.gbps.value / 8.0;
        let mtu = f64::from(profile.port.mtu_bytes.value);
        // Headers take less than 2 % of a full packet.
        let packet_on_port = 1.02 * mtu / port;
        Self {
            pcie_latency: known(&profile.pcie.latency_ns),
            network_latency: known(&profile.port.latency_ns),
            message_on_port: BYTES as f64 / port,
            packet_on_port,
            packet_over_pcie: mtu / (0.8 * nicmodel::pcie::bandwidth_mbytes_per_s(profile) * 1e-3),
            others: 300.0,
        }
    }

    /// Checks a time that has these latencies and the time of the slowest stage, a port. Each other stage adds one packet.
    fn check(&self, time: Duration, pcie_latencies: f64, network_latencies: f64) {
        let least = pcie_latencies * self.pcie_latency
            + network_latencies * self.network_latency
            + self.message_on_port;
        let most = least
            + 0.02 * self.message_on_port
            + self.packet_on_port
            + 2.0 * self.packet_over_pcie
            + self.others;
        #[expect(clippy::cast_precision_loss, reason = "a few µs")]
        let time = time.as_nanos() as f64;
        assert!(
            (least..most).contains(&time),
            "{time} ns, not {least} to {most}"
        );
    }
}

fn now() -> Duration {
    simnic::now().expect("simulated")
}

/// Waits for one completion, with polls that follow each other closely.
fn wait_for_completion(side: &Side, meanwhile: impl Fn()) {
    let mut wcs = WcBuffer::<1>::new();
    loop {
        let mut polled = side.cq.poll(&mut wcs).expect("no overrun");
        if let Some(wc) = polled.next() {
            wc.expect("it succeeds");
            return;
        }
        meanwhile();
        simnic::suspend_while_idle(20, None);
        assert!(now() < Duration::from_millis(1), "no completion");
    }
}

fn fill(side: &Side) {
    for at in [0, LAST_WORD] {
        side.memory.write_u64(at, 4711).expect("in range");
    }
}

/// Returns the first and the last word of the message in a side's memory from `at` on.
fn words(side: &Side, at: usize) -> [u64; 2] {
    [at, at + LAST_WORD].map(|at| side.memory.read_u64(at).expect("in range"))
}

#[test]
fn a_long_write_takes_the_time_of_its_slowest_stage() {
    run(
        &Setup::default(),
        |side| {
            let message = side.memory.slice(..BYTES).expect("in range");
            for _ in 0..3 {
                let start = now();
                let posted = side.qp.post_one(|list| {
                    list.rdma_write(message, side.remote).signaled();
                });
                posted.expect("the send queue has room");
                wait_for_completion(side, || {});
                // The post, a round trip to fetch, and the completion.
                Times::of_a_connect_ib().check(now() - start, 4.0, 2.0);
            }
        },
        |_| {},
    );
}

/// Waits until the other side has filled its memory and posted its RECVs.
fn wait_until_peer_is_ready() {
    while now() < Duration::from_micros(10) {
        simnic::suspend_while_idle(100, None);
    }
}

#[test]
fn a_long_send_takes_the_time_of_its_slowest_stage_and_is_received_whole() {
    let sent_at = Shared::new(RefCell::new(Duration::ZERO));
    let start = Shared::clone(&sent_at);
    run(
        &Setup::default(),
        move |side| {
            fill(side);
            wait_until_peer_is_ready();
            *start.borrow_mut() = now();
            side.send(0, BYTES);
            wait_for_completion(side, || {});
            Times::of_a_connect_ib().check(now() - *start.borrow(), 4.0, 2.0);
        },
        move |side| {
            side.post_recvs(1, BYTES);
            wait_for_completion(side, || {
                assert_eq!(words(side, 0), [0, 0], "before the completion");
            });
            assert_eq!(words(side, 0), [4711, 4711]);
            // The post, a round trip to fetch, and the completion.
            Times::of_a_connect_ib().check(now() - *sent_at.borrow(), 4.0, 1.0);
        },
    );
}

#[test]
fn a_long_read_takes_the_time_of_its_slowest_stage_and_arrives_whole() {
    run(
        &Setup::default(),
        |side| {
            wait_until_peer_is_ready();
            let back = side.memory.slice(BYTES..2 * BYTES).expect("in range");
            let start = now();
            let posted = side.qp.post_one(|list| {
                list.rdma_read(back, side.remote).signaled();
            });
            posted.expect("the send queue has room");
            wait_for_completion(side, || {
                if words(side, BYTES) != [0, 0] {
                    assert_eq!(words(side, BYTES), [4711, 4711]);
                    // Without the completion, which is written behind the data.
                    Times::of_a_connect_ib().check(now() - start, 4.0, 2.0);
                }
            });
            assert_eq!(words(side, BYTES), [4711, 4711]);
            // The post, a round trip to fetch, the data, and the completion.
            Times::of_a_connect_ib().check(now() - start, 5.0, 2.0);
        },
        fill,
    );
}

/// The payload of a WRITE is not visible before its last packet, and that of a later WRITE not before that.
#[test]
fn a_short_write_stays_behind_a_long_one() {
    let start = Shared::new(RefCell::new(Duration::ZERO));
    let posted_at = Shared::clone(&start);
    run(
        &Setup::default(),
        move |side| {
            fill(side);
            wait_until_peer_is_ready();
            let message = side.memory.slice(..BYTES).expect("in range");
            let behind = side.remote.starting_at(BYTES as u64).expect("in range");
            *posted_at.borrow_mut() = now();
            let mut list = side.qp.postlist(2);
            list.rdma_write(message, side.remote).wr_id(0).signaled();
            list.rdma_write(Inline(&[1; 8]), behind).wr_id(1).signaled();
            side.qp.post_send(&mut list).expect("the queue has room");
            assert_eq!(side.completions(2).0, successes(2));
        },
        move |side| {
            let word = |at| side.memory.read_u64(at).expect("in range");
            while word(BYTES) == 0 {
                if words(side, 0) != [0, 0] {
                    assert_eq!(words(side, 0), [4711, 4711]);
                    Times::of_a_connect_ib().check(now() - *start.borrow(), 6.0, 1.0);
                }
                simnic::suspend_while_idle(20, None);
                assert!(now() < Duration::from_millis(1), "no WRITE");
            }
            assert_eq!(words(side, 0), [4711, 4711]);
        },
    );
}
