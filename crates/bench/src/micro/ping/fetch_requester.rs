//! Requester of READs or fetch-and-adds, one at a time.

use anyhow::{Result, bail};
use verbs::{Access, MemoryRegion, Postlist, QueuePair, Rc, RemoteMemory, WcBuffer};

use super::timed::LAST_MARK;
use crate::connect::connect;
use crate::link::WorkerLink;
use crate::micro::task::PingPong;
use crate::micro::verb::{Verb, last_word_offset};
use crate::open_nic::{OpenNic, poll_successful_completions};
use crate::poll_timeout::{DEFAULT_EVENT_TIMEOUT_NS, PollTimeout};

/// Requester that READs or fetches and adds.
pub(super) struct FetchRequester {
    qp: QueuePair<Rc>,
    postlist: Postlist<Rc>,
    result_memory: MemoryRegion,
    verb: Verb,
    wcs: WcBuffer<1>,
}

impl FetchRequester {
    pub(super) fn new(
        link: &mut WorkerLink,
        nic: &OpenNic,
        ping: &PingPong,
    ) -> Result<FetchRequester> {
        let remote: RemoteMemory = link.recv()?;
        let cq = nic.create_cq(1)?;
        let qp = nic.qp_builder::<Rc>(&cq, &cq).max_recv_wr(1u32).build()?;
        let qp = connect(link, qp)?;
        let into = nic.pd.alloc(ping.payload_bytes, Access::LOCAL_WRITE)?;
        let mut list = qp.postlist(1);
        let slice = into.slice(..)?;
        if ping.verb == Verb::Atomics {
            list.atomic_fetch_and_add(slice, remote, 1).signaled();
        } else {
            list.rdma_read(slice, remote).signaled();
        }
        Ok(FetchRequester {
            qp,
            postlist: list,
            result_memory: into,
            verb: ping.verb,
            wcs: WcBuffer::new(),
        })
    }

    #[inline]
    pub(super) fn fetch_and_check(&mut self, number: u32) -> Result<()> {
        let end = last_word_offset(self.result_memory.len());
        self.result_memory.write_u64(0, u64::MAX)?;
        self.result_memory.write_u64(end, u64::MAX)?;
        self.qp.post_send(&mut self.postlist)?;
        let mut timeout = PollTimeout::without_pause(DEFAULT_EVENT_TIMEOUT_NS);
        while poll_successful_completions(self.qp.send_cq(), &mut self.wcs, |_| Ok(()))? == 0 {
            timeout.fail_if_over_after_empty_poll("the completion")?;
        }
        // A READ finds zeros; fetch-and-add n returns n - 1.
        let want = match self.verb {
            Verb::Atomics => u64::from(number & !LAST_MARK) - 1,
            _ => 0,
        };
        let got = [
            self.result_memory.read_u64(0)?,
            self.result_memory.read_u64(end)?,
        ];
        if got != [want; 2] {
            bail!("number {number:#x} fetched {got:?}, not {want}");
        }
        Ok(())
    }
}
