//! Two simulated machines with a Connect-IB run verbs code in virtual time. The NIC processes each
//! queue pair in one of its processing units, so more queue pairs give a higher rate.
//!
//! ```sh
//! cargo run --release --features simnic --example simulate
//! ```

use std::cell::Cell;
use std::error::Error;
use std::rc::Rc as Shared;
use std::time::Duration;

use nicmodel::profile;
use simnic::Cluster;
use verbs::{
    Access, CompletionQueue, Inline, Provider, QueuePair, Rc, RemoteMemory, WcBuffer, poll_until,
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The number of WRITEs that are measured.
const WRITES: usize = 1 << 14;

fn main() -> Result<()> {
    for count in [1, 2, 4] {
        println!(
            "{count} queue pairs: {:.1} M WRITEs/s on a Connect-IB",
            simulate(count)?
        );
    }
    Ok(())
}

/// Returns the rate of one core with `count` queue pairs, in 10^6 WRITEs a second.
fn simulate(count: usize) -> Result<f64> {
    let cib = profile::builtin_profile("cib").ok_or("this NIC is built in")?;
    // A run depends only on the seed: the same seed gives the same times.
    let cluster = Cluster::new(cib, 2, 1)?;
    let devices = Provider::simnic().devices()?;
    let (client, server) = (devices[0].open()?, devices[1].open()?);

    let (pd, cq) = (client.alloc_pd()?, client.create_cq(16)?);
    let (peers_pd, peers_cq) = (server.alloc_pd()?, server.create_cq(16)?);
    let region = peers_pd.alloc(8, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let remote = region.remote();
    let (mut qps, mut passive) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let a = pd.qp_builder::<Rc>(&cq, &cq).build()?;
        let b = peers_pd.qp_builder::<Rc>(&peers_cq, &peers_cq).build()?;
        let (to_a, to_b) = (a.endpoint(), b.endpoint());
        qps.push(a.connect(&to_b)?);
        passive.push(b.connect(&to_a)?);
    }

    // Start the client's thread, whose verbs take virtual time.
    let outcome = Shared::new(Cell::new(None));
    let tell = Shared::clone(&outcome);
    cluster.spawn(cluster.host_of_machine(0), "client", move || {
        tell.set(Some(write(&qps, &cq, remote).map_err(|e| e.to_string())));
    });
    let begin = cluster.now();
    cluster.run_until_threads_end()?;
    outcome.take().ok_or("the client has not ended")??;
    let taken = cluster.now() - begin;
    Ok(WRITES as f64 / taken.as_secs_f64() / 1e6)
}

/// WRITEs 8 bytes repeatedly, to the queue pairs in turn. The last of every 64 is signaled, and at
/// most 128 are outstanding.
fn write(qps: &[QueuePair<Rc>], cq: &CompletionQueue, remote: RemoteMemory) -> Result<()> {
    let mut qps = qps.iter().cycle();
    for posted in (64..=WRITES).step_by(64) {
        let qp = qps.next().ok_or("there is no queue pair")?;
        let mut list = qp.postlist(1);
        list.rdma_write(Inline(&7u64.to_ne_bytes()), remote);
        for number in 1..=64 {
            list.set_signaled(0, number == 64);
            qp.post_send(&mut list)?;
        }
        if posted > 64 {
            completion(cq)?;
        }
    }
    completion(cq)
}

/// Polls until a work request completes.
fn completion(cq: &CompletionQueue) -> Result<()> {
    let mut buffer = WcBuffer::<1>::new();
    let found = poll_until(Duration::from_secs(10), || {
        cq.poll(&mut buffer)
            .map(|mut found| {
                found
                    .next()
                    .map(|wc| wc.map(drop).map_err(|wc| wc.status()))
            })
            .transpose()
    });
    found
        .ok_or("nothing completed in time")??
        .map_err(|status| status.to_string().into())
}
