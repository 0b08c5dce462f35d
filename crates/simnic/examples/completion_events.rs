//! An event-driven server beside a polling one, on two simulated machines: the time from a request to its answer. Both
//! servers take requests from a shared receive queue; one of them sleeps on its completion channel.
//!
//! ```sh
//! cargo run -p verbatim-simnic --example completion_events
//! ```

use std::cell::Cell;
use std::error::Error;
use std::rc::Rc as Shared;
use std::time::Duration;

use nicmodel::profile;
use simnic::Cluster;
use verbs::{
    Access, CompletionChannel, CompletionQueue, MemoryRegion, Provider, QueuePair, Rc,
    SharedReceiveQueue, WcBuffer,
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const REQUESTS: u64 = 1_000;
const MESSAGE_BYTES: usize = 64;

fn main() -> Result<()> {
    for nic in ["cx3", "cib"] {
        let (polling, sleeping) = (mean_round_trip(nic, false)?, mean_round_trip(nic, true)?);
        println!(
            "{nic}: a request of {MESSAGE_BYTES} bytes takes {:.2} µs if the server polls, and {:.2} µs if it sleeps",
            polling.as_secs_f64() * 1e6,
            sleeping.as_secs_f64() * 1e6,
        );
    }
    Ok(())
}

/// One side of the exchange.
struct Side {
    qp: QueuePair<Rc>,
    cq: CompletionQueue,
    /// Receive queue of the queue pair.
    srq: SharedReceiveQueue,
    memory: MemoryRegion,
    /// Channel on which the side sleeps; `None` if it polls.
    channel: Option<CompletionChannel>,
}

impl Side {
    /// Posts the RECV for the next message.
    fn post_recv(&self) -> Result<()> {
        let mut list = self.srq.recv_list(1);
        list.recv(self.memory.slice(..MESSAGE_BYTES)?, 0);
        Ok(self.srq.post_recv(&mut list)?)
    }

    fn send(&self) -> Result<()> {
        let message = self.memory.slice(MESSAGE_BYTES..)?;
        self.qp.post_one(|list| {
            list.send(message).signaled();
        })?;
        Ok(())
    }

    /// Waits for the next message. Completions of SENDs are taken meanwhile.
    fn receive(&self, wcs: &mut WcBuffer<4>) -> Result<()> {
        let mut waiter = verbs::Waiter::new();
        loop {
            let mut received = false;
            for wc in self.cq.poll(wcs)? {
                received |= wc.map_err(|wc| wc.status().to_string())?.is_recv();
            }
            if received {
                return Ok(());
            }
            let Some(channel) = &self.channel else {
                waiter.idle();
                continue;
            };
            self.cq.req_notify(false)?;
            // A completion from before the queue was armed makes no event.
            for wc in self.cq.poll(wcs)? {
                received |= wc.map_err(|wc| wc.status().to_string())?.is_recv();
            }
            if received {
                return Ok(());
            }
            channel.wait_for_cq_event()?;
        }
    }
}

/// Returns the mean time from a request to its answer.
fn mean_round_trip(nic: &str, server_sleeps: bool) -> Result<Duration> {
    let profile = profile::builtin_profile(nic).ok_or("this NIC is built in")?;
    let cluster = Cluster::new(profile, 2, 1)?;
    let mut prepared = Vec::new();
    for (device, sleeps) in Provider::simnic()
        .devices()?
        .iter()
        .zip([false, server_sleeps])
    {
        let context = device.open()?;
        let pd = context.alloc_pd()?;
        let channel = sleeps.then(|| context.create_comp_channel()).transpose()?;
        let cq = match &channel {
            Some(channel) => context.create_cq_with_channel(16, channel)?,
            None => context.create_cq(16)?,
        };
        let srq = pd.create_srq(16, 1)?;
        let qp = pd.qp_builder::<Rc>(&cq, &cq).srq(&srq).build()?;
        let memory = pd.alloc(2 * MESSAGE_BYTES, Access::LOCAL_WRITE)?;
        prepared.push((qp, cq, srq, memory, channel));
    }
    let endpoints: Vec<_> = prepared.iter().map(|(qp, ..)| qp.endpoint()).collect();
    let peers = endpoints.iter().rev();
    let mut sides = Vec::new();
    for ((qp, cq, srq, memory, channel), peer) in prepared.into_iter().zip(peers) {
        let side = Side {
            qp: qp.connect(peer)?,
            cq,
            srq,
            memory,
            channel,
        };
        side.post_recv()?;
        sides.push(side);
    }
    let (server, client) = (sides.pop().ok_or("two")?, sides.pop().ok_or("two")?);

    // The server's queue pair must outlive its thread, so that the last answer still leaves.
    let server = Shared::new(server);
    let served = Shared::clone(&server);
    cluster.spawn(cluster.host_of_machine(1), "server", move || {
        serve(&served).expect("the server answers all requests");
    });
    let outcome = Shared::new(Cell::new(Duration::ZERO));
    let tell = Shared::clone(&outcome);
    cluster.spawn(cluster.host_of_machine(0), "client", move || {
        tell.set(request(&client).expect("all requests are answered"));
    });
    cluster.run_until_threads_end()?;
    Ok(outcome.get() / u32::try_from(REQUESTS)?)
}

/// Answers all requests.
fn serve(server: &Side) -> Result<()> {
    let mut wcs = WcBuffer::<4>::new();
    for _ in 0..REQUESTS {
        server.receive(&mut wcs)?;
        server.post_recv()?;
        server.send()?;
    }
    Ok(())
}

/// Makes all requests, one after the other. Returns the time that they took.
fn request(client: &Side) -> Result<Duration> {
    let mut wcs = WcBuffer::<4>::new();
    let begin = verbs::time::now();
    for _ in 0..REQUESTS {
        client.send()?;
        client.receive(&mut wcs)?;
        client.post_recv()?;
    }
    Ok(verbs::time::now().duration_since(begin))
}
