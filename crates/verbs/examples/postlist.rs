//! The same WRITEs with one doorbell each, and with one doorbell for sixteen.
//!
//! ```sh
//! cargo run --release --example postlist
//! ```
//!
//! On the software NIC a doorbell costs no PCIe transaction, so the gain is smaller than on a
//! hardware NIC: see `verbatim model write --nic cib`.

use std::error::Error;
use std::time::{Duration, Instant};

use verbs::{Access, CompletionQueue, Inline, Provider, Rc, WcBuffer, poll_until};

const WRITES: usize = 1 << 20;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let context = Provider::softnic().device(None)?.open()?;
    let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    let (a, b) = (
        pd.qp_builder::<Rc>(&cq, &cq).build()?,
        pd.qp_builder::<Rc>(&cq, &cq).build()?,
    );
    let (to_a, to_b) = (a.endpoint(), b.endpoint());
    let (qp, _passive) = (a.connect(&to_b)?, b.connect(&to_a)?);
    let region = pd.alloc(8, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let remote = region.remote();

    for length in [1, 16] {
        // The list is built once and posted repeatedly. The last WRITE of every 64 is signaled,
        // which frees the send queue.
        let mut list = qp.postlist(length);
        for _ in 0..length {
            list.rdma_write(Inline(&7u64.to_ne_bytes()), remote);
        }
        let begin = Instant::now();
        for posted in (length..=WRITES).step_by(length) {
            let signaled = posted % 64 == 0;
            list.set_signaled(length - 1, signaled);
            qp.post_send(&mut list)?;
            if signaled {
                completion(&cq)?;
            }
        }
        let each = begin.elapsed().as_nanos() / WRITES as u128;
        println!("{length:2} to a doorbell: {each} ns a WRITE");
    }
    Ok(())
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
