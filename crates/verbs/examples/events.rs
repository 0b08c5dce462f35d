//! A server that sleeps on a completion channel until a message arrives, instead of polling.
//!
//! ```sh
//! cargo run --example events                       # prints: listening at 127.0.0.1:PORT
//! cargo run --example events -- 127.0.0.1:PORT
//! ```

mod common;

use common::{PATIENCE, Peer, Result, completion};
use verbs::{Access, Inline, Provider, Rc, WcBuffer};

const MESSAGES: usize = 5;

fn main() -> Result<()> {
    let server = std::env::args().nth(1);
    let mut peer = Peer::find(server.as_deref())?;

    let context = Provider::softnic().device(None)?.open()?;
    let pd = context.alloc_pd()?;
    let channel = context.create_comp_channel()?;
    let recv_cq = context.create_cq_with_channel(16, &channel)?;
    let send_cq = context.create_cq(16)?;
    let qp = pd.qp_builder::<Rc>(&send_cq, &recv_cq).build()?;
    let region = pd.alloc(8 * MESSAGES, Access::LOCAL_WRITE)?;
    let mut recvs = qp.recv_list(MESSAGES);
    for slot in 0..MESSAGES {
        recvs.recv(region.slice(8 * slot..8 * slot + 8)?, slot as u64);
    }
    qp.post_recv(&mut recvs)?;
    let endpoint = peer.exchange(&qp.endpoint())?;
    let qp = qp.connect(&endpoint)?;
    peer.exchange(&())?;

    if server.is_some() {
        for number in 0..MESSAGES as u64 {
            std::thread::sleep(std::time::Duration::from_millis(20));
            // `req_notify(true)` waits for solicited SENDs.
            qp.post_one(|list| {
                list.send(Inline(&number.to_ne_bytes()))
                    .solicited()
                    .signaled();
            })?;
            completion(&send_cq)?;
        }
        peer.exchange(&())?;
        return Ok(());
    }

    let mut taken = 0;
    let mut buffer = WcBuffer::<16>::new();
    while taken < MESSAGES {
        // Arm first, then poll: a completion after the poll but before the arming would raise no
        // event.
        recv_cq.req_notify(true)?;
        let before = taken;
        for wc in recv_cq.poll(&mut buffer)? {
            let wc = wc.map_err(|failed| failed.status().to_string())?;
            let number = region.read_u64(8 * usize::try_from(wc.wr_id())?)?;
            println!("message {number}");
            taken += 1;
        }
        if taken == before {
            channel
                .wait_for_cq_event_timeout(PATIENCE)?
                .ok_or("no message came in time")?;
        }
    }
    peer.exchange(&())?;
    Ok(())
}
