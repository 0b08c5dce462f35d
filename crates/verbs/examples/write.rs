//! A client writes into a server's memory by RDMA WRITE, and reads it back by RDMA READ. The
//! server's processor only looks at its memory.
//!
//! ```sh
//! cargo run --example write                       # prints: listening at 127.0.0.1:PORT
//! cargo run --example write -- 127.0.0.1:PORT
//! ```

mod common;

use common::{PATIENCE, Peer, Result, completion};
use verbs::{Access, Inline, Provider, Rc, RemoteMemory};

/// The layout of the server's memory: a text of at most `TEXT` bytes, then a word with the text's
/// length.
const TEXT: usize = 1024;
const LENGTH: u64 = TEXT as u64;

fn main() -> Result<()> {
    let server = std::env::args().nth(1);
    let mut peer = Peer::find(server.as_deref())?;

    let context = Provider::softnic().device(None)?.open()?;
    let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    let qp = pd.qp_builder::<Rc>(&cq, &cq).build()?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let region = pd.alloc(TEXT + 8, access)?;

    // The data that a peer needs: the queue pair's number and address, and the region's address and
    // R_Key.
    let (endpoint, memory): (_, RemoteMemory) = peer.exchange(&(qp.endpoint(), region.remote()))?;
    let qp = qp.connect(&endpoint)?;
    peer.exchange(&())?;

    if server.is_none() {
        let length = region
            .wait_u64(TEXT, PATIENCE, |length| length != 0)?
            .ok_or("the client has written nothing")?;
        let mut text = vec![0; usize::try_from(length)?.min(TEXT)];
        region.read_at(0, &mut text)?;
        println!("the client has written: {}", String::from_utf8_lossy(&text));
        peer.exchange(&())?;
        return Ok(());
    }

    let text = b"one-sided";
    region.write_at(0, text)?;
    let length = memory
        .starting_at(LENGTH)
        .ok_or("the server's region is too short")?;
    // One postlist, one doorbell. WRITEs of one queue pair are executed in order, so the length arrives last.
    let mut list = qp.postlist(2);
    list.rdma_write(region.slice(..text.len())?, memory);
    list.rdma_write(Inline(&(text.len() as u64).to_ne_bytes()), length)
        .signaled();
    qp.post_send(&mut list)?;
    completion(&cq)?;

    let copy = region.slice(TEXT / 2..TEXT / 2 + text.len())?;
    qp.post_one(|list| {
        list.rdma_read(copy, memory).signaled();
    })?;
    completion(&cq)?;
    let mut read = vec![0; text.len()];
    region.read_at(TEXT / 2, &mut read)?;
    println!(
        "the server's memory has: {}",
        String::from_utf8_lossy(&read)
    );
    peer.exchange(&())?;
    Ok(())
}
