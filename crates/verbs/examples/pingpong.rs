//! Two processes send a message back and forth over an RC queue pair.
//!
//! ```sh
//! cargo run --example pingpong                       # prints: listening at 127.0.0.1:PORT
//! cargo run --example pingpong -- 127.0.0.1:PORT
//! ```

mod common;

use std::time::Instant;

use common::{Peer, Result, completion};
use verbs::{Access, Inline, Provider, QueuePair, Rc};

const MESSAGES: u64 = 10_000;
/// The `wr_id` of RECVs.
const RECV: u64 = 1;

fn main() -> Result<()> {
    let server = std::env::args().nth(1);
    let mut peer = Peer::find(server.as_deref())?;

    let context = Provider::softnic().device(None)?.open()?;
    let pd = context.alloc_pd()?;
    let (send_cq, recv_cq) = (context.create_cq(16)?, context.create_cq(16)?);
    let qp = pd.qp_builder::<Rc>(&send_cq, &recv_cq).build()?;
    let region = pd.alloc(8, Access::LOCAL_WRITE)?;

    // The RECV is posted before the peer knows of this queue pair, so no SEND arrives too early.
    let mut recv = qp.recv_list(1);
    recv.recv(region.slice(..)?, RECV);
    qp.post_recv(&mut recv)?;
    let endpoint = peer.exchange(&qp.endpoint())?;
    let qp = qp.connect(&endpoint)?;
    // Both sides are connected from here on.
    peer.exchange(&())?;

    let begin = Instant::now();
    for number in 0..MESSAGES {
        if server.is_some() {
            send(&qp, number)?;
        }
        assert_eq!(completion(&recv_cq)?, RECV);
        if region.read_u64(0)? != number {
            return Err(format!("message {number} has another number").into());
        }
        qp.post_recv(&mut recv)?;
        if server.is_none() {
            send(&qp, number)?;
        }
    }
    let each = begin.elapsed() / u32::try_from(MESSAGES)?;
    println!("{MESSAGES} messages each way, {each:?} a round trip");
    // The queue pair ends with its process, so wait until the peer has received everything.
    peer.exchange(&())?;
    Ok(())
}

/// SENDs a number inline. Every 64th work request is signaled: its completion frees the send queue
/// slots of all before it.
fn send(qp: &QueuePair<Rc>, number: u64) -> Result<()> {
    let signaled = number % 64 == 63;
    qp.post_one(|list| {
        let wr = list.send(Inline(&number.to_ne_bytes()));
        if signaled {
            wr.signaled();
        }
    })?;
    if signaled {
        completion(qp.send_cq())?;
    }
    Ok(())
}
