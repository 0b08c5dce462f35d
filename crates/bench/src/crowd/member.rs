//! One process of a crowd: it sends requests, answers those of others, and polls without calls of `sched_yield(2)`.

use std::collections::HashMap;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use verbs::{
    Access, CompletionQueue, Inline, MemoryRegion, Postlist, QpEndpoint, Qpn, QueuePair, Rc,
    RecvList, WcBuffer,
};

use super::config::FlowControl;
use crate::clock::now_ns;
use crate::connect::exchange_endpoints;
use crate::core_pinning::run_pinned_to;
use crate::link::WorkerLink;
use crate::open_nic::{NicChoice, OpenNic, poll_successful_completions, saturating_u32};
use crate::poll_timeout::{DEFAULT_EVENT_TIMEOUT_NS, PollTimeout};

/// Order that the driver sends to a member of a crowd.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MemberJob {
    pub(super) nic: NicChoice,
    #[serde(rename = "pace")]
    pub(super) flow_control: FlowControl,
    #[serde(rename = "messages_each")]
    pub(super) messages_per_peer: u64,
    /// Role toward each peer, in the order of the queue pairs.
    pub(super) roles: Vec<RoleTowardPeer>,
    /// Cores that the member may use.
    pub(super) cores: Vec<usize>,
}

/// Role of a member toward one of its peers.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct RoleTowardPeer {
    #[serde(rename = "asks")]
    pub(super) sends_requests: bool,
    #[serde(rename = "answers")]
    pub(super) sends_answers: bool,
}

/// Result of a member, with its start and end time.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct MemberResult {
    pub(super) begin_ns: u64,
    pub(super) end_ns: u64,
    /// Messages that arrived in order.
    #[serde(rename = "verified")]
    pub(super) verified_messages: u64,
}

/// Bytes of a message: its number, and a word that is nonzero in answers.
const MESSAGE_BYTES: usize = 16;
/// Completions that one poll takes at most.
const MAX_COMPLETIONS_PER_POLL: usize = 16;

/// Runs one member in the worker process.
///
/// # Errors
/// When a verb fails, messages are out of order, or the driver is gone.
pub(crate) fn run_worker_side(link: &mut WorkerLink, order: &MemberJob) -> Result<()> {
    run_pinned_to(&order.cores, || {
        let nic = OpenNic::open(&order.nic)?;
        let mut member = Member::new(link, &nic, order)?;
        link.barrier()?;
        let begin_ns = now_ns();
        let verified = member.run_and_count_received()?;
        let end_ns = now_ns();
        link.send(&MemberResult {
            begin_ns,
            end_ns,
            verified_messages: verified,
        })?;
        // Keeps the queue pairs alive until all members have ended.
        link.barrier()
    })
}

/// The connection to one peer.
struct PeerConnection {
    qp: QueuePair<Rc>,
    send_postlist: Postlist<Rc>,
    recv_list: RecvList,
    outstanding_send_wrs: usize,
    /// Messages to send in all, sent so far, and answered so far.
    messages_to_send: u64,
    messages_sent: u64,
    messages_answered_by_peer: u64,
    /// Messages to receive in all, and received so far.
    messages_to_receive: u64,
    messages_received: u64,
    /// Number that the next answer carries; `None` if no answer is due.
    pending_answer_number: Option<u64>,
}

impl PeerConnection {
    fn is_done(&self) -> bool {
        self.messages_answered_by_peer == self.messages_to_send
            && self.messages_received == self.messages_to_receive
            && self.pending_answer_number.is_none()
            && self.outstanding_send_wrs == 0
    }

    /// Posts the answers and messages that may be sent now, and the receives.
    fn post_due_sends_and_recvs(&mut self, flow_control: FlowControl) -> Result<()> {
        self.send_postlist.clear();
        let room = |peer: &Self| {
            peer.outstanding_send_wrs + peer.send_postlist.len() < peer.send_postlist.capacity()
        };
        if let Some(number) = self.pending_answer_number
            && room(self)
        {
            self.add_message_to_postlist(number, 1);
            self.pending_answer_number = None;
        }
        while self.messages_sent < self.messages_to_send
            && self.messages_sent - self.messages_answered_by_peer
                < flow_control.max_unanswered_messages
            && room(self)
        {
            self.messages_sent += 1;
            self.add_message_to_postlist(self.messages_sent, 0);
        }
        if !self.recv_list.is_empty() {
            self.qp.post_recv(&mut self.recv_list)?;
            self.recv_list.clear();
        }
        if !self.send_postlist.is_empty() {
            self.outstanding_send_wrs += self.send_postlist.len();
            self.qp.post_send(&mut self.send_postlist)?;
        }
        Ok(())
    }

    fn add_message_to_postlist(&mut self, number: u64, is_answer: u64) {
        let mut bytes = [0; MESSAGE_BYTES];
        bytes[..8].copy_from_slice(&number.to_ne_bytes());
        bytes[8..].copy_from_slice(&is_answer.to_ne_bytes());
        self.send_postlist.send(Inline(&bytes)).signaled();
    }

    /// Processes an arrived message. Returns true for a message and false for an answer.
    fn process_and_is_message_not_answer(
        &mut self,
        number: u64,
        is_answer: bool,
        flow_control: FlowControl,
    ) -> Result<bool> {
        if is_answer {
            if number <= self.messages_answered_by_peer || number > self.messages_sent {
                bail!(
                    "an answer to message {number} of {} came",
                    self.messages_sent
                );
            }
            self.messages_answered_by_peer = number;
            return Ok(false);
        }
        self.messages_received += 1;
        if number != self.messages_received {
            bail!("message {number} came as number {}", self.messages_received);
        }
        if number.is_multiple_of(flow_control.messages_per_answer)
            || number == self.messages_to_receive
        {
            self.pending_answer_number = Some(number);
        }
        Ok(true)
    }
}

struct Member {
    cq: CompletionQueue,
    peers: Vec<PeerConnection>,
    peer_index_by_qpn: HashMap<Qpn, usize>,
    recv_buffers: MemoryRegion,
    flow_control: FlowControl,
}

impl Member {
    fn new(link: &mut WorkerLink, nic: &OpenNic, order: &MemberJob) -> Result<Member> {
        let flow_control = order.flow_control;
        // Receives for the messages and the answers of both sides.
        let recvs = usize::try_from(2 * flow_control.max_unanswered_messages)?;
        let sends = recvs + 2;
        let cq = nic.create_cq(order.roles.len() * (recvs + sends))?;
        let bytes = order.roles.len() * recvs * MESSAGE_BYTES;
        let memory = nic.alloc_registered_memory(bytes, Access::LOCAL_WRITE, None)?;
        let mut qps = Vec::new();
        for number in 0..order.roles.len() {
            let qp = nic
                .qp_builder::<Rc>(&cq, &cq)
                .max_send_wr(saturating_u32(sends))
                .max_recv_wr(saturating_u32(recvs))
                .build()?;
            let mut list = qp.recv_list(recvs);
            for place in number * recvs..(number + 1) * recvs {
                let at = place * MESSAGE_BYTES;
                list.recv(memory.slice(at..at + MESSAGE_BYTES)?, place as u64);
            }
            qp.post_recv(&mut list)?;
            qps.push(qp);
        }
        let own: Vec<QpEndpoint> = qps.iter().map(verbs::PreparedQp::endpoint).collect();
        let theirs = exchange_endpoints(link, &own)?;
        let mut peers = Vec::new();
        for ((qp, to), role) in qps.into_iter().zip(&theirs).zip(&order.roles) {
            let qp = qp.connect(to)?;
            let messages = |does: bool| if does { order.messages_per_peer } else { 0 };
            peers.push(PeerConnection {
                send_postlist: qp.postlist(sends),
                recv_list: qp.recv_list(recvs),
                outstanding_send_wrs: 0,
                messages_to_send: messages(role.sends_requests),
                messages_sent: 0,
                messages_answered_by_peer: 0,
                messages_to_receive: messages(role.sends_answers),
                messages_received: 0,
                pending_answer_number: None,
                qp,
            });
        }
        let numbers = peers.iter().enumerate().map(|(n, p)| (p.qp.qpn(), n));
        let numbers = numbers.collect();
        Ok(Member {
            cq,
            peers,
            peer_index_by_qpn: numbers,
            recv_buffers: memory,
            flow_control,
        })
    }

    /// Runs until all messages are sent, answered and received. Returns the number of messages
    /// received.
    fn run_and_count_received(&mut self) -> Result<u64> {
        let mut wcs = WcBuffer::<MAX_COMPLETIONS_PER_POLL>::new();
        let mut timeout = PollTimeout::without_pause(3 * DEFAULT_EVENT_TIMEOUT_NS);
        let (mut verified, mut left) = (0, self.peers.len());
        let mut changed: Vec<usize> = (0..self.peers.len()).collect();
        while left > 0 {
            for number in changed.drain(..) {
                self.peers[number].post_due_sends_and_recvs(self.flow_control)?;
            }
            let Self {
                cq,
                peers,
                peer_index_by_qpn: numbers,
                recv_buffers: memory,
                flow_control,
            } = self;
            let came = poll_successful_completions(cq, &mut wcs, |wc| {
                let number = *numbers
                    .get(&wc.qp_num())
                    .context("not of a queue pair here")?;
                let peer = &mut peers[number];
                if wc.is_recv() {
                    let at = usize::try_from(wc.wr_id())? * MESSAGE_BYTES;
                    let is_answer = memory.read_u64(at + 8)? != 0;
                    let in_order = peer.process_and_is_message_not_answer(
                        memory.read_u64(at)?,
                        is_answer,
                        *flow_control,
                    )?;
                    verified += u64::from(in_order);
                    peer.recv_list
                        .recv(memory.slice(at..at + MESSAGE_BYTES)?, wc.wr_id());
                } else {
                    peer.outstanding_send_wrs -= 1;
                }
                if !changed.contains(&number) {
                    changed.push(number);
                }
                Ok(())
            })?;
            if came == 0 {
                timeout.fail_if_over_after_empty_poll("a message of a crowd")?;
            } else {
                timeout.reset();
                left = self.peers.iter().filter(|peer| !peer.is_done()).count();
            }
        }
        Ok(verified)
    }
}
