//! The verbs end of a ping-pong, which sleeps on a completion channel.

use anyhow::{Context, Result, ensure};
use verbs::{
    Access, CompletionChannel, CompletionQueue, Inline, MemoryRegion, Postlist, QueuePair, Rc,
    RecvList, WcBuffer,
};

use super::ping_pong::{Message, PING_PONG_MESSAGE_BYTES, SingleFdEpoll, SleepingEndpoint};
use crate::connect::connect;
use crate::link::WorkerLink;
use crate::open_nic::{NicChoice, OpenNic, poll_successful_completions, saturating_u32};

/// RECVs of a side; each is posted again when its message is taken. One message is under way at a
/// time.
const RECVS_PER_SIDE: usize = 4;

/// Depth of a side's send queue; every (`SEND_QUEUE_DEPTH` / 2)th WR is signaled.
const SEND_QUEUE_DEPTH: usize = 16;

/// A queue pair whose receive CQ has a completion channel, as in an event-driven server.
pub(super) struct EventDrivenQp {
    qp: QueuePair<Rc>,
    send_cq: CompletionQueue,
    recv_cq: CompletionQueue,
    channel: CompletionChannel,
    channel_wait: SingleFdEpoll,
    send_postlist: Postlist<Rc>,
    messages_sent: usize,
    recv_lists: Vec<RecvList>,
    memory: MemoryRegion,
    _nic: OpenNic,
}

impl EventDrivenQp {
    pub(super) fn open_and_connect(
        link: &mut WorkerLink,
        nic: &NicChoice,
    ) -> Result<EventDrivenQp> {
        let nic = OpenNic::open(nic)?;
        let channel = nic.context.create_comp_channel()?;
        let send_cq = nic.create_cq(SEND_QUEUE_DEPTH)?;
        let recv_cq = nic
            .context
            .create_cq_with_channel(saturating_u32(RECVS_PER_SIDE), &channel)?;
        let qp = nic
            .qp_builder::<Rc>(&send_cq, &recv_cq)
            .max_send_wr(saturating_u32(SEND_QUEUE_DEPTH))
            .max_recv_wr(saturating_u32(RECVS_PER_SIDE))
            .max_inline_data(saturating_u32(PING_PONG_MESSAGE_BYTES))
            .build()?;
        let memory = nic.pd.alloc(
            RECVS_PER_SIDE * PING_PONG_MESSAGE_BYTES,
            Access::LOCAL_WRITE,
        )?;
        let mut recvs = Vec::new();
        for place in 0..RECVS_PER_SIDE {
            let at = place * PING_PONG_MESSAGE_BYTES;
            let mut recv = qp.recv_list(1);
            recv.recv(
                memory.slice(at..at + PING_PONG_MESSAGE_BYTES)?,
                place as u64,
            );
            qp.post_recv(&mut recv)?;
            recvs.push(recv);
        }
        let qp = connect(link, qp)?;
        recv_cq.req_notify(false)?;
        link.barrier()?;
        Ok(EventDrivenQp {
            channel_wait: SingleFdEpoll::new(&channel)?,
            send_postlist: qp.postlist(1),
            qp,
            send_cq,
            recv_cq,
            channel,
            messages_sent: 0,
            recv_lists: recvs,
            memory,
            _nic: nic,
        })
    }

    /// Returns the next message, if one has arrived, and posts its RECV again.
    fn poll_message(&mut self) -> Result<Option<Message>> {
        let mut place = None;
        poll_successful_completions(&self.recv_cq, &mut WcBuffer::<1>::new(), |wc| {
            ensure!(
                wc.byte_len() as usize == PING_PONG_MESSAGE_BYTES,
                "a message of {} bytes",
                wc.byte_len()
            );
            place = Some(usize::try_from(wc.wr_id())?);
            Ok(())
        })?;
        let Some(place) = place else { return Ok(None) };
        let mut message = [0; PING_PONG_MESSAGE_BYTES];
        self.memory
            .read_at(place * PING_PONG_MESSAGE_BYTES, &mut message)?;
        let recv = self
            .recv_lists
            .get_mut(place)
            .context("a RECV of no place")?;
        self.qp.post_recv(recv)?;
        Ok(Some(message))
    }
}

impl SleepingEndpoint for EventDrivenQp {
    fn send(&mut self, message: &Message) -> Result<()> {
        self.messages_sent += 1;
        self.send_postlist.clear();
        let wr = self.send_postlist.send(Inline(message));
        if self.messages_sent.is_multiple_of(SEND_QUEUE_DEPTH / 2) {
            wr.signaled();
            poll_successful_completions(&self.send_cq, &mut WcBuffer::<2>::new(), |_| Ok(()))?;
        }
        Ok(self.qp.post_send(&mut self.send_postlist)?)
    }

    fn receive(&mut self) -> Result<Message> {
        loop {
            // Messages that arrived before the CQ was armed raise no event, so poll first.
            if let Some(message) = self.poll_message()? {
                return Ok(message);
            }
            self.channel_wait.sleep_until_readable()?;
            self.channel.wait_for_cq_event()?;
            self.recv_cq.req_notify(false)?;
        }
    }
}
