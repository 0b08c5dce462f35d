//! The cost of a GET of a key-value store to the server's NIC and PCIe link on a Connect-IB: by two READs, or by a
//! SEND and its answer.
//!
//! ```sh
//! cargo run -p verbatim-nicmodel --example cost
//! ```

use nicmodel::{Footprint, Operation, OperationError, PostMethod, Transport, Verb, profile};

fn main() -> Result<(), OperationError> {
    let cib = profile::builtin_profile("cib").expect("this NIC is built in");
    let read = Operation::new(Verb::RdmaRead, Transport::Rc, 32);
    let request = Operation::new(Verb::Send, Transport::Ud, 16).inlined();
    let answer = Operation::new(Verb::Send, Transport::Ud, 32).inlined();

    let read = Footprint::of_postlist(cib, &read, PostMethod::WqeByMmio, 1)?.responder;
    let request = Footprint::of_postlist(cib, &request, PostMethod::WqeByMmio, 1)?.responder;
    let answers = Footprint::of_postlist(cib, &answer, PostMethod::Doorbell, 16)?.requester;
    println!(
        "two READs of 32 bytes: {} DMA reads, {} DMA writes",
        2.0 * read.dma_reads_without_recv_wqes(),
        2.0 * read.dma_writes()
    );
    println!(
        "a SEND of 16 bytes: {} DMA reads, {} DMA writes",
        request.dma_reads_without_recv_wqes(),
        request.dma_writes()
    );
    println!(
        "sixteen answers in a postlist: {} MMIO write, {} DMA reads",
        answers.mmio_writes(),
        answers.dma_reads_without_recv_wqes()
    );
    Ok(())
}
