//! The end of a ping-pong that exchanges RDMA WRITEs and polls its memory for the other end's
//! WRITEs.

use anyhow::{Context, Result, bail};
use verbs::{Access, Connected, MemoryRegion, Postlist, QueuePair, RemoteMemory};

use super::outstanding_wrs::{OutstandingWrs, SEND_QUEUE_DEPTH, payload_layout};
use super::timed::LAST_MARK;
use crate::connect::connect;
use crate::link::WorkerLink;
use crate::micro::payload_form::PayloadForm;
use crate::micro::task::PingPong;
use crate::micro::verb::last_word_offset;
use crate::open_nic::{OpenNic, saturating_u32};
use crate::poll_timeout::{DEFAULT_EVENT_TIMEOUT_NS, PollTimeout};

pub(super) struct WritePingPongEnd<T: Connected, F: PayloadForm> {
    qp: QueuePair<T>,
    reused_wr_list: Postlist<T>,
    form: F,
    outstanding_wrs: OutstandingWrs,
    local_target_memory: MemoryRegion,
    remote_target_memory: RemoteMemory,
    last_word_offset: usize,
}

impl<T: Connected, F: PayloadForm> WritePingPongEnd<T, F> {
    pub(super) fn new(
        link: &mut WorkerLink,
        nic: &OpenNic,
        ping: &PingPong,
    ) -> Result<WritePingPongEnd<T, F>> {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let bytes = ping.payload_bytes.next_multiple_of(8);
        let memory = nic.pd.alloc(bytes, access)?;
        link.send(&memory.remote())?;
        let remote = link.recv()?;
        let cq = nic.create_cq(SEND_QUEUE_DEPTH)?;
        let qp = nic
            .qp_builder::<T>(&cq, &cq)
            .max_send_wr(saturating_u32(SEND_QUEUE_DEPTH))
            .max_recv_wr(1u32)
            .max_inline_data(saturating_u32(ping.inline_bytes()))
            .build()?;
        let qp = connect(link, qp)?;
        link.barrier()?;
        Ok(WritePingPongEnd {
            reused_wr_list: qp.postlist(1),
            qp,
            form: F::new(nic, &payload_layout(ping))?,
            outstanding_wrs: OutstandingWrs::new(),
            local_target_memory: memory,
            remote_target_memory: remote,
            last_word_offset: last_word_offset(ping.payload_bytes),
        })
    }

    #[inline]
    fn post(&mut self, number: u32) -> Result<()> {
        let (slot, signaled) = self
            .outstanding_wrs
            .wait_for_slot_and_signal_flag::<F>(self.qp.send_cq(), number)?;
        self.reused_wr_list.clear();
        let payload = self.form.stamped_payload(slot, number.into())?;
        let wr = self
            .reused_wr_list
            .rdma_write(payload, self.remote_target_memory);
        if signaled {
            wr.signaled();
        }
        Ok(self.qp.post_send(&mut self.reused_wr_list)?)
    }

    /// Waits until the WRITE after number `before` has arrived completely, from its first word to
    /// its last.
    #[inline]
    fn wait_for_write(&mut self, before: u32) -> Result<u32> {
        let mut timeout = PollTimeout::without_pause(DEFAULT_EVENT_TIMEOUT_NS);
        loop {
            // The bytes of one WRITE arrive in no guaranteed order, so wait for both words.
            let last = u64::from_le(self.local_target_memory.read_u64(self.last_word_offset)?);
            if last != u64::from(before) {
                let first = u64::from_le(self.local_target_memory.read_u64(0)?);
                if first == last {
                    return u32::try_from(last).context("another payload");
                }
            }
            timeout.fail_if_over_after_empty_poll("the other end's WRITE")?;
        }
    }

    #[inline]
    pub(super) fn exchange(&mut self, number: u32) -> Result<()> {
        self.post(number)?;
        let echoed = self.wait_for_write((number & !LAST_MARK) - 1)?;
        if echoed != number {
            bail!("the echo of {number:#x} was {echoed:#x}");
        }
        if number & LAST_MARK != 0 {
            self.outstanding_wrs
                .wait_until_outstanding_at_most(self.qp.send_cq(), 0)?;
        }
        Ok(())
    }

    /// Echoes WRITEs up to the last one.
    pub(super) fn echo_until_last(&mut self) -> Result<()> {
        let mut number = 0;
        while number & LAST_MARK == 0 {
            number = self.wait_for_write(number)?;
            self.post(number)?;
        }
        self.outstanding_wrs
            .wait_until_outstanding_at_most(self.qp.send_cq(), 0)
    }
}
