//! The end of a ping-pong that exchanges SENDs.

use anyhow::{Context, Result, bail};
use verbs::{Access, MemoryRegion, Postlist, RecvList, WcBuffer};

use super::outstanding_wrs::{OutstandingWrs, SEND_QUEUE_DEPTH, payload_layout};
use super::timed::LAST_MARK;
use crate::link::WorkerLink;
use crate::micro::payload_form::{PayloadForm, low_32_bits};
use crate::micro::task::PingPong;
use crate::micro::transport::{QpAndDestination, SendTransport};
use crate::open_nic::{OpenNic, poll_successful_completions, saturating_u32};
use crate::poll_timeout::{DEFAULT_EVENT_TIMEOUT_NS, PollTimeout};

/// Returns the RECVs of either side, in two lists that are used in turn. Many RECVs make posting
/// rare; long messages get few.
fn recvs_per_side(payload_bytes: usize) -> usize {
    if payload_bytes <= 1 << 16 { 64 } else { 8 }
}

/// Buffers of RECVs.
struct PingRecvBuffers {
    memory: MemoryRegion,
    /// RECV lists: the first one is in use, the other one follows.
    recv_lists: [RecvList; 2],
    /// Messages that arrived in the first list.
    received_in_first_list: usize,
}

impl PingRecvBuffers {
    fn allocate_and_post<T: SendTransport>(
        nic: &OpenNic,
        ping: &PingPong,
        qp: &T::UnconnectedQp,
    ) -> Result<PingRecvBuffers> {
        let room = (T::RECV_HEADER_BYTES + ping.payload_bytes).max(8);
        let stride = room.next_multiple_of(8);
        let half = recvs_per_side(ping.payload_bytes) / 2;
        let memory = nic.pd.alloc(2 * half * stride, Access::LOCAL_WRITE)?;
        let mut lists = [T::create_recv_list(qp, half), T::create_recv_list(qp, half)];
        for slot in 0..2 * half {
            let at = slot * stride;
            let wr_id = (at + T::RECV_HEADER_BYTES) as u64;
            lists[slot / half].recv(memory.slice(at..at + room)?, wr_id);
        }
        for list in &mut lists {
            T::post_recv(qp, list)?;
        }
        Ok(PingRecvBuffers {
            memory,
            recv_lists: lists,
            received_in_first_list: 0,
        })
    }
}

pub(super) struct SendPingPongEnd<T: SendTransport, F: PayloadForm> {
    qp_and_destination: QpAndDestination<T>,
    postlist: Postlist<T>,
    form: F,
    outstanding_wrs: OutstandingWrs,
    recv_buffers: PingRecvBuffers,
    payload_bytes: usize,
    wcs: WcBuffer<1>,
}

impl<T: SendTransport, F: PayloadForm> SendPingPongEnd<T, F> {
    pub(super) fn new(
        link: &mut WorkerLink,
        nic: &OpenNic,
        ping: &PingPong,
    ) -> Result<SendPingPongEnd<T, F>> {
        let recvs = recvs_per_side(ping.payload_bytes);
        let (send_cq, recv_cq) = (nic.create_cq(SEND_QUEUE_DEPTH)?, nic.create_cq(recvs + 1)?);
        let qp = nic
            .qp_builder::<T>(&send_cq, &recv_cq)
            .max_send_wr(saturating_u32(SEND_QUEUE_DEPTH))
            .max_recv_wr(saturating_u32(recvs))
            .max_inline_data(saturating_u32(ping.inline_bytes()));
        let qp = T::build_qp(qp)?;
        let places = PingRecvBuffers::allocate_and_post::<T>(nic, ping, &qp)?;
        let to = T::connect_qps(link, nic, ping.payload_bytes, vec![qp])?.pop();
        let to = to.context("one queue pair was connected")?;
        link.barrier()?;
        Ok(SendPingPongEnd {
            postlist: to.qp.postlist(1),
            qp_and_destination: to,
            form: F::new(nic, &payload_layout(ping))?,
            outstanding_wrs: OutstandingWrs::new(),
            recv_buffers: places,
            payload_bytes: ping.payload_bytes,
            wcs: WcBuffer::new(),
        })
    }

    #[inline]
    pub(super) fn post(&mut self, number: u32) -> Result<()> {
        let (slot, signaled) = self
            .outstanding_wrs
            .wait_for_slot_and_signal_flag::<F>(self.qp_and_destination.qp.send_cq(), number)?;
        let stamp = u64::from(number);
        let imm = if F::STAMP_IS_IMM {
            Some(low_32_bits(stamp))
        } else {
            None
        };
        self.postlist.clear();
        let payload = self.form.stamped_payload(slot, stamp)?;
        let wr = T::add_send(
            &mut self.postlist,
            payload,
            imm,
            &self.qp_and_destination.destination,
        );
        if signaled {
            wr.signaled();
        }
        Ok(self.qp_and_destination.qp.post_send(&mut self.postlist)?)
    }

    #[inline]
    pub(super) fn receive_number(&mut self) -> Result<u32> {
        let mut timeout = PollTimeout::without_pause(DEFAULT_EVENT_TIMEOUT_NS);
        let (memory, payload_bytes) = (&self.recv_buffers.memory, self.payload_bytes);
        let mut number = 0;
        loop {
            let taken = poll_successful_completions(
                self.qp_and_destination.qp.recv_cq(),
                &mut self.wcs,
                |wc| {
                    let [first, last] = F::received_stamps(memory, &wc, payload_bytes)?;
                    if first != last {
                        bail!("{last:#x} at the end of message {first:#x}");
                    }
                    number = u32::try_from(first).context("another payload")?;
                    Ok(())
                },
            )?;
            if taken > 0 {
                break;
            }
            timeout.fail_if_over_after_empty_poll("the other end's SEND")?;
        }
        self.recv_buffers.received_in_first_list += 1;
        if self.recv_buffers.received_in_first_list == self.recv_buffers.recv_lists[0].len() {
            self.recv_buffers.received_in_first_list = 0;
            self.qp_and_destination
                .qp
                .post_recv(&mut self.recv_buffers.recv_lists[0])?;
            self.recv_buffers.recv_lists.swap(0, 1);
        }
        Ok(number)
    }

    #[inline]
    pub(super) fn exchange(&mut self, number: u32) -> Result<()> {
        self.post(number)?;
        let echoed = self.receive_number()?;
        if echoed != number {
            bail!("the echo of {number:#x} was {echoed:#x}");
        }
        Ok(())
    }

    /// Echoes messages up to the last one.
    pub(super) fn echo_until_last(&mut self) -> Result<()> {
        let mut number = 0;
        while number & LAST_MARK == 0 {
            number = self.receive_number()?;
            self.post(number)?;
        }
        // The last echo must be sent before the queue pair is destroyed.
        self.outstanding_wrs
            .wait_until_outstanding_at_most(self.qp_and_destination.qp.send_cq(), 0)
    }
}
