//! Pairs the posts of work requests with their completions.

use std::collections::{HashMap, VecDeque};

use tap::trace::{TraceEvent, TraceLine, TracedCompletion};

use super::filter::QpNamesAndNumbers;

/// A work request and its completion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TracedWork {
    pub(super) pid: u32,
    /// The name of the queue pair or the shared receive queue, such as `qp1`.
    pub(super) qp_or_srq_name: String,
    pub(super) qpn: Option<u32>,
    pub(super) wr_id: u64,
    /// The operation, such as `RDMA_WRITE`; `RECV` for receive queues.
    pub(super) verb: String,
    pub(super) bytes: u64,
    /// True if this work request was the first of its posted list.
    pub(super) is_first_of_postlist: bool,
    pub(super) is_signaled: bool,
    pub(super) posted_ns: u64,
    /// The time of the completion of this work request, or, if it is unsignaled, of a later work
    /// request.
    pub(super) known_complete_at_ns: Option<u64>,
    /// The status of the completion, such as `SUCCESS`.
    pub(super) status: Option<String>,
}

/// The name of the operation for work requests of receive queues.
pub(super) const RECV: &str = "RECV";

/// Pairs posts with completions.
#[derive(Debug, Default)]
pub(super) struct PostToCompletionMatcher {
    incomplete_sends: HashMap<(u32, String), VecDeque<TracedWork>>,
    incomplete_recvs: HashMap<(u32, String), VecDeque<TracedWork>>,
}

impl PostToCompletionMatcher {
    /// Processes a line, and returns the work requests that it completes.
    pub(super) fn add_line_and_take_completed(
        &mut self,
        line: &TraceLine,
        queues: &QpNamesAndNumbers,
    ) -> Vec<TracedWork> {
        let key = |queue: &str| (line.pid, queue.to_owned());
        match &line.event {
            TraceEvent::PostSend(post) if post.refusal_reason.is_none() => {
                let work = TracedWork {
                    pid: line.pid,
                    qp_or_srq_name: post.qp.clone(),
                    qpn: queues.find_qpn(line.pid, &post.qp),
                    wr_id: post.wr_id,
                    verb: post.opcode.clone(),
                    bytes: post.bytes,
                    is_first_of_postlist: post.index == 1,
                    is_signaled: post.flags.iter().any(|flag| flag == "SIGNALED")
                        || queues.signals_all(line.pid, &post.qp),
                    posted_ns: line.at_ns,
                    known_complete_at_ns: None,
                    status: None,
                };
                self.incomplete_sends
                    .entry(key(&post.qp))
                    .or_default()
                    .push_back(work);
                Vec::new()
            }
            TraceEvent::PostRecv(post) if post.refusal_reason.is_none() => {
                let work = TracedWork {
                    pid: line.pid,
                    qp_or_srq_name: post.queue.clone(),
                    qpn: queues.find_qpn(line.pid, &post.queue),
                    wr_id: post.wr_id,
                    verb: RECV.to_owned(),
                    bytes: post.bytes,
                    is_first_of_postlist: post.index == 1,
                    is_signaled: true,
                    posted_ns: line.at_ns,
                    known_complete_at_ns: None,
                    status: None,
                };
                let queue = self.incomplete_recvs.entry(key(&post.queue)).or_default();
                queue.push_back(work);
                Vec::new()
            }
            TraceEvent::Completion(found) => self.take_completed_by_completion(line, found, queues),
            _ => Vec::new(),
        }
    }

    fn take_completed_by_completion(
        &mut self,
        line: &TraceLine,
        found: &TracedCompletion,
        queues: &QpNamesAndNumbers,
    ) -> Vec<TracedWork> {
        let name = found
            .qpn
            .and_then(|qpn| queues.name(line.pid, qpn))
            .map(str::to_owned);
        let is_recv = found
            .opcode
            .as_deref()
            .is_some_and(|opcode| opcode.starts_with(RECV));
        if let Some(name) = name.as_ref().filter(|_| !is_recv)
            && let Some(queue) = self.incomplete_sends.get_mut(&(line.pid, name.clone()))
            && let Some(at) = position_of_completed_wr(queue, found)
        {
            // Earlier work requests without their own completion are complete, too.
            return queue
                .drain(..=at)
                .enumerate()
                .map(|(n, work)| TracedWork {
                    known_complete_at_ns: Some(line.at_ns),
                    status: (n == at).then(|| found.status.clone()),
                    ..work
                })
                .collect();
        }
        self.take_completed_recv(line, found, name)
            .into_iter()
            .collect()
    }

    /// Returns the RECV to which a completion belongs, from the queue pair or from a shared receive
    /// queue of the process.
    fn take_completed_recv(
        &mut self,
        line: &TraceLine,
        found: &TracedCompletion,
        qp: Option<String>,
    ) -> Option<TracedWork> {
        let is_it = |work: &TracedWork| work.wr_id == found.wr_id;
        let own = qp.clone().map(|name| (line.pid, name));
        let key = own.filter(|key| {
            self.incomplete_recvs
                .get(key)
                .is_some_and(|q| q.iter().any(is_it))
        });
        let key = key.or_else(|| {
            let mut shared = self.incomplete_recvs.iter().filter(|((pid, name), queue)| {
                *pid == line.pid && name.starts_with("srq") && queue.iter().any(is_it)
            });
            shared.next().map(|(key, _)| key.clone())
        })?;
        let queue = self.incomplete_recvs.get_mut(&key)?;
        let at = queue.iter().position(is_it)?;
        let work = queue.remove(at)?;
        Some(TracedWork {
            bytes: found.bytes.unwrap_or(0),
            qp_or_srq_name: qp.unwrap_or(work.qp_or_srq_name),
            qpn: found.qpn.or(work.qpn),
            known_complete_at_ns: Some(line.at_ns),
            status: Some(found.status.clone()),
            ..work
        })
    }

    /// Returns the work requests of send queues whose completion is unknown. RECVs are left out,
    /// since some always wait.
    pub(super) fn into_sends_without_completion(self) -> Vec<TracedWork> {
        self.incomplete_sends.into_values().flatten().collect()
    }
}

/// Returns the position of the work request to which a completion belongs. Several may have the same `wr_id`. Of
/// these, only a signaled one completes with success.
fn position_of_completed_wr(
    queue: &VecDeque<TracedWork>,
    found: &TracedCompletion,
) -> Option<usize> {
    let is_it = |work: &TracedWork| work.wr_id == found.wr_id;
    let signaled = queue
        .iter()
        .position(|work| is_it(work) && work.is_signaled);
    signaled
        .filter(|_| found.status == "SUCCESS")
        .or_else(|| queue.iter().position(is_it))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paired(lines: &[&str]) -> (Vec<TracedWork>, Vec<TracedWork>) {
        let mut pairing = PostToCompletionMatcher::default();
        let mut queues = QpNamesAndNumbers::default();
        let mut done = Vec::new();
        for (n, line) in lines.iter().enumerate() {
            let line = TraceLine::parse(&format!("1.{n:09} 7/7 {line}")).expect("a line");
            queues.record_created_qp(&line);
            done.extend(pairing.add_line_and_take_completed(&line, &queues));
        }
        (done, pairing.into_sends_without_completion())
    }

    #[test]
    fn a_completion_ends_those_before_it() {
        let (done, left) = paired(&[
            "ibv_create_qp(pd=pd1) = qp1, QPN 0x8000",
            "post_send qp1 1/2 wr_id=1 RDMA_WRITE 8 B",
            "post_send qp1 2/2 wr_id=2 RDMA_WRITE 8 B SIGNALED",
            "post_send qp1 1/1 wr_id=2 SEND 8 B",
            "poll_cq cq1 1/1 wr_id=2 SUCCESS RDMA_WRITE QPN 0x8000",
        ]);
        let times: Vec<_> = done
            .iter()
            .map(|w| (w.wr_id, w.known_complete_at_ns))
            .collect();
        assert_eq!(times, [(1, Some(1_000_000_004)), (2, Some(1_000_000_004))]);
        assert_eq!(done[0].status, None);
        assert_eq!(done[1].status.as_deref(), Some("SUCCESS"));
        assert_eq!((left.len(), left[0].verb.as_str()), (1, "SEND"));
    }

    #[test]
    fn a_completion_is_of_a_signaled_post() {
        let create = "ibv_create_qp(pd=pd1) = qp1, QPN 0x8000";
        let post = "post_send qp1 1/1 wr_id=0 RDMA_WRITE 8 B";
        let signaled = "post_send qp1 1/1 wr_id=0 RDMA_WRITE 8 B SIGNALED";
        let found = "poll_cq cq1 1/1 wr_id=0 SUCCESS RDMA_WRITE QPN 0x8000";
        let (done, left) = paired(&[create, post, post, post, signaled, found]);
        assert_eq!((done.len(), left.len()), (4, 0));
        let failed = "poll_cq cq1 1/1 wr_id=0 REM_ACCESS_ERR QPN 0x8000";
        let (done, left) = paired(&[create, post, post, post, signaled, failed]);
        assert_eq!((done.len(), left.len()), (1, 3));
        let create = "ibv_create_qp(pd=pd1, qp_init_attr=&ibv_qp_init_attr{IBV_QPT_RC, sq_sig_all 1}) = qp1, QPN 0x8000";
        let (done, left) = paired(&[create, post, post, found]);
        assert_eq!((done.len(), left.len()), (1, 1));
        assert!(done[0].is_signaled);
    }

    #[test]
    fn a_receive_is_found_in_its_queue_or_a_shared_one() {
        let (done, _) = paired(&[
            "ibv_create_qp(pd=pd1) = qp1, QPN 0x8000",
            "post_recv qp1 1/1 wr_id=1 4096 B in 1 SGEs",
            "post_srq_recv srq1 1/1 wr_id=2 4096 B in 1 SGEs",
            "poll_cq cq1 1/2 wr_id=1 SUCCESS RECV 64 B QPN 0x8000",
            "poll_cq cq1 2/2 wr_id=2 SUCCESS RECV 32 B QPN 0x8000",
        ]);
        let received: Vec<_> = done.iter().map(|w| (w.wr_id, w.bytes)).collect();
        assert_eq!(received, [(1, 64), (2, 32)]);
        assert!(done.iter().all(|work| work.qp_or_srq_name == "qp1"));
    }
}
