//! The pipelined client: a window of outstanding requests, sent in postlists, answered in any order, and sent again if
//! answers are lost.

use std::collections::VecDeque;
use std::time::Instant;

use rpc::RpcError;
use rpc::one_sided::RequestSteps;
use service::{ClientSession, ConnectError, ServerLocation};
use verbs::{Context, Waiter, time};

use super::access_chooser::AccessChooser;
use super::connect::{OpenSession, SessionOpener};
use super::error::ClientError;
use super::lane::{CompleteAnswer, Lane};
use super::request::{Answer, ClientStats, Completion, RequestSlot};
use super::walker::{WalkOutcome, WalkingClient};
use crate::config::ClientConfig;
use crate::key_or_value::KeyOrValue;
use crate::key_or_value::private::Sizes;
use crate::rendezvous::{RendezvousProtocol, ServerPlace};
use crate::wire::{self, Operation, Status};

/// The low-level client: requests carry the caller's tokens, and submitting them does not allocate.
///
/// ```
/// use btree::{Answer, ClientConfig, Operation, PipelinedClient, Server, ServerConfig, PutCondition};
///
/// let server = Server::<u64>::start(ServerConfig { key_capacity: 1000, ..Default::default() })?;
/// let config = ClientConfig { server: server.address().to_string(), ..Default::default() };
/// let mut pipeline = PipelinedClient::<u64>::connect(config)?;
/// for key in [3, 1, 2] {
///     pipeline.submit(0, &Operation::Put { key, value: 10 * key, when: PutCondition::Always }, key)?;
/// }
/// while pipeline.outstanding() > 0 {
///     pipeline.poll(|done| assert_eq!(done.answer, Answer::Changed { found: false }))?;
/// }
/// pipeline.submit(0, &Operation::Scan { from: 2, end: None, limit: 10 }, 0)?;
/// while pipeline.outstanding() > 0 {
///     pipeline.poll(|done| {
///         assert_eq!(done.answer, Answer::Entries { entries: &[(2, 20), (3, 30)], next: None });
///     })?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct PipelinedClient<T: KeyOrValue = u64> {
    opener: SessionOpener,
    /// The identity of the server.
    server_incarnation: u64,
    server_place: ServerPlace,
    tree_count: usize,
    /// The server's limits of keys and values.
    key_and_value_limits: T::Sizes,
    lanes: Vec<Lane>,
    /// The client's READ path, if it has one.
    walker: Option<WalkingClient<T>>,
    access_chooser: AccessChooser,
    connection: Option<ClientSession>,
    pending: Vec<RequestSlot<T>>,
    free_slots: Vec<u32>,
    /// Slots of requests that are to be sent again: long SCANs, requests that READs did not decide, and those that
    /// found a node locked.
    resend_queue: VecDeque<u32>,
    next_submission_number: u64,
    /// The time of the last clock reading.
    last_clock_reading: Instant,
    poll_calls: u32,
    waiter: Waiter,
    stats: ClientStats,
}

impl<T: KeyOrValue> PipelinedClient<T> {
    /// Connects to a server. Retries for [`ClientConfig::deadline_ms`] if the server is not reachable yet.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn connect(config: ClientConfig) -> Result<Self, ClientError> {
        config.check().map_err(ConnectError::Config)?;
        let context = config.nic.open().map_err(ConnectError::from)?;
        Self::connect_on(&context, config)
    }

    /// Connects through an open device, ignoring provider and device of [`ClientConfig::nic`].
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn connect_on(context: &Context, config: ClientConfig) -> Result<Self, ClientError> {
        let target = ServerLocation::Tcp(config.server.clone());
        Self::from_opener(SessionOpener::new(target, context, config)?)
    }

    /// Connects to a server in this process, ignoring provider, device and server of [`ClientConfig`].
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn connect_to_local_server(
        connector: service::LocalConnector<RendezvousProtocol>,
        context: &Context,
        config: ClientConfig,
    ) -> Result<Self, ClientError> {
        Self::from_opener(SessionOpener::new(
            ServerLocation::Local(connector),
            context,
            config,
        )?)
    }

    fn from_opener(opener: SessionOpener) -> Result<Self, ClientError> {
        let now = time::now();
        let window = u32::try_from(opener.config.window).unwrap_or(1);
        let mut pipeline = Self {
            server_incarnation: 0,
            server_place: ServerPlace::default(),
            tree_count: 0,
            key_and_value_limits: T::Sizes::default(),
            lanes: Vec::new(),
            walker: None,
            access_chooser: AccessChooser::new(opener.config.access, u64::from(window)),
            connection: None,
            pending: (0..window).map(|_| RequestSlot::unused(now)).collect(),
            free_slots: (0..window).rev().collect(),
            resend_queue: VecDeque::new(),
            next_submission_number: 0,
            last_clock_reading: now,
            poll_calls: 0,
            waiter: Waiter::never_sleeping().with_spins_and_yields(128, u32::MAX - 128),
            stats: ClientStats::default(),
            opener,
        };
        pipeline.reconnect(now + pipeline.opener.config.request_timeout())?;
        Ok(pipeline)
    }

    #[cfg(test)]
    pub(super) fn walker(&mut self) -> &mut WalkingClient<T> {
        self.walker.as_mut().expect("it READs")
    }

    /// Returns the number of outstanding requests.
    #[inline]
    pub fn outstanding(&self) -> usize {
        self.pending.len() - self.free_slots.len()
    }

    /// Returns the configuration.
    pub fn config(&self) -> &ClientConfig {
        &self.opener.config
    }

    /// Returns the client's statistics, such as retries.
    pub fn stats(&self) -> &ClientStats {
        &self.stats
    }

    /// Returns the server's identity, a random number that changes when the server restarts.
    pub fn server_incarnation(&self) -> u64 {
        self.server_incarnation
    }

    /// Returns the server's limits of keys and values.
    pub fn key_and_value_limits(&self) -> T::Sizes {
        self.key_and_value_limits
    }

    /// Checks that the server has these limits of keys and values, as all servers that share keys must.
    ///
    /// # Errors
    /// [`ClientError::KeyOrValueLimitsDiffer`].
    pub fn check_key_and_value_limits(&self, sizes: T::Sizes) -> Result<(), ClientError> {
        match (self.key_and_value_limits.of_strings(), sizes.of_strings()) {
            (Some(own), Some(other)) if own != other => {
                Err(ClientError::KeyOrValueLimitsDiffer(own, other))
            }
            _ => Ok(()),
        }
    }

    /// Checks that the server is number `number` of `of` servers that share the keys.
    ///
    /// # Errors
    /// [`ClientError::OtherServerPlace`].
    pub fn check_server_place(&self, number: usize, of: usize) -> Result<(), ClientError> {
        let expected = ServerPlace { number, of };
        if self.server_place == expected {
            return Ok(());
        }
        Err(ClientError::OtherServerPlace {
            server: self.opener.config.server.clone(),
            place: self.server_place,
            expected,
        })
    }

    /// Returns the number of doorbells for requests.
    pub fn doorbells(&self) -> u64 {
        let lanes: u64 = self.lanes.iter().map(|lane| lane.doorbells).sum();
        lanes
            + self
                .walker
                .as_ref()
                .map_or(0, WalkingClient::<T>::doorbells)
    }

    /// Submits a request. Returns false if the window has no room; the caller should then poll. The request is sent
    /// with the following ones, at the latest by [`poll`](Self::poll).
    ///
    /// # Errors
    /// [`ClientError::NoTree`], [`ClientError::TooLong`]. A broken connection is repaired by [`poll`](Self::poll).
    #[inline]
    pub fn submit(&mut self, tree: u8, op: &Operation<T>, token: u64) -> Result<bool, ClientError> {
        if usize::from(tree) >= self.tree_count {
            let trees = self.tree_count;
            return Err(ClientError::NoTree { tree, trees });
        }
        op.check_lengths(self.key_and_value_limits)?;
        let Some(&slot) = self.free_slots.last() else {
            return Ok(false);
        };
        let number = match self.lanes.len() {
            0 => return Ok(false),
            1 => 0,
            lanes => slot as usize % lanes,
        };
        let changes = self.walker.as_ref().map(WalkingClient::<T>::changes_leaves);
        let by_reads =
            changes.is_some_and(|changes| self.access_chooser.chooses_reads(op, changes));
        let lane = &mut self.lanes[number];
        if !by_reads && !lane.has_room(op, 0) {
            return Ok(false);
        }
        self.free_slots.pop();
        let pending = &mut self.pending[slot as usize];
        pending.caller_token = token;
        pending.is_outstanding = true;
        pending.op = *op;
        pending.tree = tree;
        pending.lane_index = number;
        pending.change_seq = match op.is_change() && !by_reads {
            true => lane.allocate_change_seq(),
            false => 0,
        };
        pending.submission_number = self.next_submission_number;
        pending.uses_reads = by_reads;
        pending.entries.clear();
        pending.received_entry_count = 0;
        pending.earlier_entry_count = 0;
        pending.submitted_at = self.last_clock_reading;
        self.next_submission_number += 1;
        if by_reads && let Some(walker) = &mut self.walker {
            self.stats.requests_begun_by_reads += 1;
            walker.begin_request_walk(slot, tree, op);
            return Ok(true);
        }
        if lane.is_idle() {
            // An idle period does not count as silence.
            lane.last_activity = self.last_clock_reading;
        }
        if let Err(e) = lane.enqueue(slot, pending) {
            lane.pending_error.get_or_insert(e);
        }
        Ok(true)
    }

    /// Sends submitted requests and takes answers: calls `each` for every completed request, and returns their number.
    /// If no answer arrives for [`ClientConfig::answer_ms`], reconnects and sends all requests again. This can block
    /// for as long as requests may take.
    ///
    /// # Errors
    /// If the server cannot be reached any more. `each` was then called with [`Answer::NoAnswerInTime`] for every
    /// outstanding request.
    #[inline]
    pub fn poll(&mut self, mut each: impl FnMut(Completion<'_, T>)) -> Result<usize, ClientError> {
        if !self.resend_queue.is_empty() {
            self.send_resend_queue();
        }
        let mut done = 0;
        let mut broken = self.poll_lanes(&mut each, &mut done).err();
        let mut progress = done;
        match self.poll_walker(&mut each, &mut done) {
            Ok(received) => progress += received,
            Err(e) => {
                broken.get_or_insert(e);
            }
        }
        self.poll_calls = self.poll_calls.wrapping_add(1);
        if progress > 0 {
            self.waiter.reset();
        } else if self.outstanding() > 0 {
            self.waiter.idle();
        }
        if self.poll_calls.is_multiple_of(1024) || self.waiter.misses() % 256 == 255 {
            self.last_clock_reading = time::now();
            let answer = self.opener.config.answer_timeout();
            let silent = |l: &Lane| {
                !l.is_idle() && self.last_clock_reading.duration_since(l.last_activity) > answer
            };
            if self.lanes.iter().any(silent) {
                let why = RpcError::Config("no answer came in time".to_owned());
                broken.get_or_insert(why);
            }
        }
        if self.lanes.is_empty() {
            let why = RpcError::Config("there is no connection".to_owned());
            broken.get_or_insert(why);
        }
        match broken {
            None => Ok(done),
            Some(why) => self
                .reconnect_and_resend_or_fail_requests(&why, &mut each)
                .map(|lost| done + lost),
        }
    }

    /// Takes answers from all lanes, even if one fails. Adds the number of completed requests to `done`.
    #[inline]
    fn poll_lanes(
        &mut self,
        each: &mut impl FnMut(Completion<'_, T>),
        done: &mut usize,
    ) -> Result<(), RpcError> {
        let mut result = Ok(());
        for lane in &mut self.lanes {
            let (pending, free, stats) = (&mut self.pending, &mut self.free_slots, &mut self.stats);
            let (now, resend_queue, before) =
                (&mut self.last_clock_reading, &mut self.resend_queue, *done);
            let choice = &mut self.access_chooser;
            let deadline = self.opener.config.request_timeout();
            let mut busy = 0;
            let polled = lane.poll(pending, stats, |pending, slot, complete| {
                if *done == before {
                    *now = time::now();
                }
                let late = now.duration_since(pending.submitted_at) >= deadline;
                let effect = match interpret_answer(pending, &complete) {
                    AnswerEffect::Resend if late => AnswerEffect::Complete(Answer::NoAnswerInTime),
                    AnswerEffect::Resend => {
                        // The change was not made, and gets a new number: its old number might be too old by the time
                        // it is sent.
                        pending.change_seq = 0;
                        busy += u64::from(complete.answer.status == Status::Busy);
                        return resend_queue.push_back(slot);
                    }
                    effect => effect,
                };
                *done += 1;
                pending.is_outstanding = false;
                free.push(slot);
                let answer = match effect {
                    AnswerEffect::Complete(answer) => answer,
                    AnswerEffect::EntriesCompleteWithNextKey(next) => Answer::Entries {
                        entries: &pending.entries,
                        next,
                    },
                    AnswerEffect::Resend => Answer::NoAnswerInTime,
                };
                choice.record_latency(&pending.op, false, now.duration_since(pending.submitted_at));
                each(pending.completion(answer, *now));
            });
            self.stats.requests_resent_after_busy_node += busy;
            match polled {
                Ok(0) => {}
                Ok(_) => {
                    if *done == before {
                        self.last_clock_reading = time::now();
                    }
                    lane.last_activity = self.last_clock_reading;
                }
                Err(e) => result = result.and(Err(e)),
            }
        }
        result
    }

    /// Processes the completions of READs and returns their number. Adds the number of completed requests to `done`.
    #[inline]
    fn poll_walker(
        &mut self,
        each: &mut impl FnMut(Completion<'_, T>),
        done: &mut usize,
    ) -> Result<usize, RpcError> {
        let Some(walker) = &mut self.walker else {
            return Ok(0);
        };
        if !walker.slots_and_lock_retry_times_ns.is_empty() {
            walker.retry_walks_after_lock_wait(&self.pending);
        }
        let (free, resend_queue, now) = (
            &mut self.free_slots,
            &mut self.resend_queue,
            &mut self.last_clock_reading,
        );
        let (choice, mut asked, mut first) = (&mut self.access_chooser, 0, true);
        let received =
            walker.post_and_poll(&mut self.pending, &mut self.stats, |pending, slot, what| {
                if std::mem::take(&mut first) {
                    *now = time::now();
                }
                let answer = match what {
                    WalkOutcome::Answer(answer) => answer,
                    WalkOutcome::Entries(entries, next) => {
                        pending.entries = entries;
                        Answer::Entries {
                            entries: &pending.entries,
                            next,
                        }
                    }
                    WalkOutcome::AskServer => {
                        asked += 1;
                        pending.uses_reads = false;
                        return resend_queue.push_back(slot);
                    }
                };
                *done += 1;
                free.push(slot);
                let sent = pending.submitted_at;
                choice.record_latency(&pending.op, true, now.duration_since(sent));
                let (token, seen) = (pending.caller_token, *now);
                each(Completion {
                    token,
                    answer,
                    submitted_at: sent,
                    completed_at: seen,
                });
                pending.is_outstanding = false;
            });
        self.stats.requests_passed_to_server += asked;
        received
    }

    /// Sends the requests in `resend_queue`, as far as the lanes have room.
    #[cold]
    fn send_resend_queue(&mut self) {
        while let Some(&slot) = self.resend_queue.front() {
            let pending = &mut self.pending[slot as usize];
            let lane = &mut self.lanes[pending.lane_index];
            if !lane.has_room(&pending.op, pending.earlier_entry_count) {
                break;
            }
            self.resend_queue.pop_front();
            match pending.op.is_change() && pending.change_seq == 0 {
                // The change has no number on this lane yet.
                true => pending.change_seq = lane.allocate_change_seq(),
                false => lane.mark_outstanding(pending.change_seq),
            }
            if lane.is_idle() {
                lane.last_activity = self.last_clock_reading;
            }
            if let Err(e) = lane.enqueue(slot, pending) {
                lane.pending_error.get_or_insert(e);
            }
        }
    }

    /// Reads the clock, for requests that are submitted after a pause.
    pub fn refresh_clock(&mut self) {
        self.last_clock_reading = time::now();
    }

    /// Reconnects with new queue pairs. Sends outstanding requests again, except those past their deadline.
    #[cold]
    fn reconnect_and_resend_or_fail_requests(
        &mut self,
        why: &RpcError,
        each: &mut impl FnMut(Completion<'_, T>),
    ) -> Result<usize, ClientError> {
        tracing::info!("connecting again, {} under way: {why}", self.outstanding());
        let deadline = self.opener.config.request_timeout();
        let oldest = self
            .pending
            .iter()
            .filter(|p| p.is_outstanding)
            .map(|p| p.submitted_at)
            .min();
        let until = oldest.unwrap_or(self.last_clock_reading) + deadline;
        // A change that this client may have made itself is not repeated.
        let may_have_changed = |slot| {
            self.walker
                .as_ref()
                .is_some_and(|w| w.may_have_changed_leaf(slot))
        };
        let uncertain: Vec<bool> = (0..)
            .zip(&self.pending)
            .map(|(slot, p)| p.is_outstanding && p.uses_reads && may_have_changed(slot))
            .collect();
        let connected =
            self.reconnect(until.max(time::now() + self.opener.config.answer_timeout()));
        self.last_clock_reading = time::now();
        self.stats.reconnects += 1;
        let mut order: Vec<u32> = (0..).take(self.pending.len()).collect();
        order.retain(|&slot| self.pending[slot as usize].is_outstanding);
        order.sort_by_key(|&slot| self.pending[slot as usize].submission_number);
        let mut lost = 0;
        for slot in order {
            let pending = &mut self.pending[slot as usize];
            let late = self.last_clock_reading.duration_since(pending.submitted_at) >= deadline;
            if !late && !uncertain[slot as usize] && connected.is_ok() {
                // Entries of the incomplete answer are requested again.
                pending.entries.truncate(pending.earlier_entry_count);
                pending.received_entry_count = 0;
                pending.uses_reads = false;
                self.stats.resent_requests += 1;
                self.resend_queue.push_back(slot);
                continue;
            }
            pending.is_outstanding = false;
            self.free_slots.push(slot);
            lost += 1;
            each(pending.completion(Answer::NoAnswerInTime, self.last_clock_reading));
        }
        self.stats.unanswered_requests += lost as u64;
        if connected.is_err() {
            self.disconnect();
            self.opener.renew_session_id();
        }
        connected.map(|()| lost)
    }

    /// Destroys the old queue pairs: late answers are dropped, and the server sees the client disconnect.
    fn disconnect(&mut self) {
        self.lanes.clear();
        self.walker = None;
        self.connection = None;
        self.resend_queue.clear();
    }

    /// Opens a session, and retries until the deadline while a retry can help.
    fn reconnect(&mut self, until: Instant) -> Result<(), ClientError> {
        let before: Vec<u32> = self.lanes.iter().map(Lane::last_change_seq).collect();
        self.disconnect();
        let OpenSession {
            lanes,
            walker,
            connection,
            server_incarnation: server,
            server_place: place,
            tree_count: trees,
            key_and_value_limits: sizes,
        } = self.opener.open_until(until)?;
        if !before.is_empty() && before.len() != lanes.len() {
            return Err(ClientError::permanent_refusal(
                "it came back with another number of workers",
            ));
        }
        (self.lanes, self.walker, self.connection) = (lanes, walker, Some(connection));
        (self.tree_count, self.key_and_value_limits) = (trees, sizes);
        self.server_place = place;
        // A restarted server knows no earlier changes, so the numbers can continue there too.
        self.server_incarnation = server;
        for (lane, seq) in self.lanes.iter_mut().zip(before) {
            lane.set_last_change_seq(seq);
        }
        Ok(())
    }
}

/// The meaning of the server's answer for the client's request.
enum AnswerEffect<T: KeyOrValue> {
    Complete(Answer<'static, T>),
    /// The request's entries are complete; the field is the key at which to continue.
    EntriesCompleteWithNextKey(Option<T>),
    /// The request is not complete and must be sent again.
    Resend,
}

#[inline]
fn interpret_answer<T: KeyOrValue>(
    pending: &mut RequestSlot<T>,
    complete: &CompleteAnswer<'_, T>,
) -> AnswerEffect<T> {
    let answer = &complete.answer;
    AnswerEffect::Complete(match (answer.status, pending.op) {
        (Status::Ok, Operation::Get { .. }) => {
            Answer::Value(answer.found.then_some(answer.value_or_next_key))
        }
        (Status::Ok, Operation::Put { .. } | Operation::Delete { .. }) => Answer::Changed {
            found: answer.found,
        },
        (Status::Moved, Operation::Scan { from, .. }) => {
            let moved = answer.moved_range();
            if pending.entries.is_empty() && moved.first_key <= from {
                return AnswerEffect::Complete(Answer::Moved(moved));
            }
            // The server owns `from`. The scan ends where the other server's range begins, with the entries before it,
            // if there are any.
            let next = Some(moved.first_key.max(from));
            return AnswerEffect::EntriesCompleteWithNextKey(next);
        }
        (Status::Ok, Operation::Scan { end, limit, .. }) => {
            let next = answer.has_more_entries.then_some(answer.value_or_next_key);
            match next {
                Some(from) if pending.entries.len() < limit as usize => {
                    pending.earlier_entry_count = pending.entries.len();
                    pending.received_entry_count = 0;
                    pending.op = Operation::Scan { from, end, limit };
                    return AnswerEffect::Resend;
                }
                _ => return AnswerEffect::EntriesCompleteWithNextKey(next),
            }
        }
        (Status::Ok, Operation::ReadServerLoad) => {
            return AnswerEffect::EntriesCompleteWithNextKey(None);
        }
        (Status::Ok, Operation::Handover { .. }) => Answer::HandoverStepDone {
            version: wire::version_in_first_word(answer.first_word),
        },
        (Status::MalformedOrRefused, Operation::Handover { .. }) => Answer::HandoverStepRefused,
        (Status::Moved, _) => Answer::Moved(answer.moved_range()),
        (Status::StoreFull, _) => Answer::StoreFull,
        (Status::Busy, _) => return AnswerEffect::Resend,
        // A server of the same protocol understands all requests of this client.
        (Status::MalformedOrRefused, _) => Answer::NoAnswerInTime,
    })
}
