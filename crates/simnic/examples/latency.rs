//! The time of one READ between two simulated machines, by its payload and by the NIC. The times are virtual: they
//! follow from the profile's numbers, and the same seed gives the same times.
//!
//! ```sh
//! cargo run -p verbatim-simnic --example latency
//! ```

use std::cell::Cell;
use std::error::Error;
use std::rc::Rc as Shared;
use std::time::Duration;

use nicmodel::profile;
use simnic::Cluster;
use verbs::{Access, CompletionQueue, MemoryRegion, Provider, QueuePair, Rc, RemoteMemory};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    for nic in ["cx3", "cib"] {
        for payload_bytes in [8, 512, 4096] {
            let (latency, read_bytes) = read(nic, payload_bytes)?;
            println!(
                "{nic}: a READ of {payload_bytes} bytes takes {} ns; the server's NIC reads {read_bytes} bytes of its memory",
                latency.as_nanos()
            );
        }
    }
    Ok(())
}

/// Returns the time from the post of a READ to its completion, and the bytes that the NIC of the server read.
fn read(nic: &str, payload_bytes: usize) -> Result<(Duration, u64)> {
    let profile = profile::builtin_profile(nic).ok_or("this NIC is built in")?;
    let cluster = Cluster::new(profile, 2, 1)?;
    let devices = Provider::simnic().devices()?;
    let (client, server) = (devices[0].open()?, devices[1].open()?);

    let (pd, cq) = (client.alloc_pd()?, client.create_cq(1)?);
    let (peers_pd, peers_cq) = (server.alloc_pd()?, server.create_cq(1)?);
    let into = pd.alloc(payload_bytes, Access::LOCAL_WRITE)?;
    let from = peers_pd.alloc(payload_bytes, Access::LOCAL_WRITE | Access::REMOTE_READ)?;
    let remote = from.remote();
    let (a, b) = (
        pd.qp_builder::<Rc>(&cq, &cq).build()?,
        peers_pd.qp_builder::<Rc>(&peers_cq, &peers_cq).build()?,
    );
    let (to_a, to_b) = (a.endpoint(), b.endpoint());
    let (a, _passive) = (a.connect(&to_b)?, b.connect(&to_a)?);

    // The client's thread: its verbs take virtual time. The server's processor takes no part in a READ.
    let outcome = Shared::new(Cell::new(None));
    let tell = Shared::clone(&outcome);
    cluster.spawn(cluster.host_of_machine(0), "client", move || {
        tell.set(Some(
            one_read(&a, &cq, &into, remote).map_err(|e| e.to_string()),
        ));
    });
    cluster.run_until_threads_end()?;
    let latency = outcome.take().ok_or("the client has not ended")??;
    Ok((
        latency,
        cluster
            .nic_counters(cluster.host_of_machine(1))
            .dma_read_bytes,
    ))
}

/// READs once; returns the virtual time until the completion.
fn one_read(
    qp: &QueuePair<Rc>,
    cq: &CompletionQueue,
    into: &MemoryRegion,
    from: RemoteMemory,
) -> Result<Duration> {
    let begin = verbs::time::now();
    let part = into.slice(..)?;
    qp.post_one(|list| {
        list.rdma_read(part, from).signaled();
    })?;
    let mut buffer = verbs::WcBuffer::<1>::new();
    let found = verbs::poll_until(Duration::from_secs(1), || {
        let polled = cq.poll(&mut buffer).map(|mut wcs| wcs.next());
        polled
            .map(|wc| wc.map(|wc| wc.map(drop).map_err(|wc| wc.status())))
            .transpose()
    });
    found
        .ok_or("no completion in time")??
        .map_err(|status| status.to_string())?;
    Ok(verbs::time::now().duration_since(begin))
}
