//! The pipelined client: a window of outstanding requests, sent in postlists, answered in any order, and sent again if
//! answers are lost.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use rpc::RpcError;
use service::{ClientSession, ConnectError, ServerLocation};
use verbs::{Context, Waiter, time};

use super::connect::{OpenSession, SessionOpener};
use super::design::{AnswerEffect, ClientDesign, HerdClientDesign, OneSidedOps, StepOutcome};
use super::error::ClientError;
use super::lane::{AnswerBuffers, CompleteAnswer, Lane};
use super::lanes_to_poll::LanesToPoll;
use super::request::{Answer, ClientStats, Completion, WindowSlot};
use crate::record_cache::RecordCache;
use crate::store::{MAX_KEY_BYTES, MAX_VALUE_BYTES, hash_of, partition_of};
use crate::wire::{self, Op, Status};
use crate::{ClientConfig, Design, LocalConnector};

/// The low-level client: requests carry the caller's tokens, and submitting them does not allocate.
///
/// ```no_run
/// use kv::{Answer, ClientConfig, Op, PipelinedClient};
/// let mut pipeline = PipelinedClient::connect(ClientConfig { server: "127.0.0.1:7472".into(), ..Default::default() })?;
/// for (token, key) in [b"one", b"two"].iter().enumerate() {
///     assert!(pipeline.submit(&Op::Get { key: *key }, token as u64)?, "the window has room for two");
/// }
/// while pipeline.outstanding() > 0 {
///     pipeline.poll(|done| println!("{}: {:?}", done.token, done.answer))?;
/// }
/// # Ok::<(), kv::ClientError>(())
/// ```
#[derive(Debug)]
pub struct PipelinedClient {
    opener: SessionOpener,
    hash_seed: u64,
    lanes: Vec<Lane>,
    lanes_to_poll: LanesToPoll,
    /// The design's client side, which may execute requests itself.
    design: Box<dyn ClientDesign>,
    one_sided_ops: OneSidedOps,
    /// The server's design.
    server_design: Design,
    /// Requests about which the server must be asked, in slots of the window.
    ask_server_queue: VecDeque<u32>,
    server_session: Option<ClientSession>,
    pending: Vec<WindowSlot>,
    free_slots: Vec<u32>,
    next_submission_number: u64,
    /// The time of the last clock reading.
    last_clock_reading: Instant,
    poll_calls: u32,
    waiter: Waiter,
    stats: ClientStats,
    answer_buffers: AnswerBuffers,
}

impl PipelinedClient {
    /// Connects to a server. Retries for [`ClientConfig::deadline_ms`] if the server is not reachable yet.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn connect(config: ClientConfig) -> Result<Self, ClientError> {
        config
            .check_values_in_range()
            .map_err(ConnectError::Config)?;
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
        connector: LocalConnector,
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
            hash_seed: 0,
            lanes: Vec::new(),
            lanes_to_poll: LanesToPoll::default(),
            design: Box::new(HerdClientDesign),
            one_sided_ops: OneSidedOps::default(),
            server_design: Design::Herd,
            ask_server_queue: VecDeque::new(),
            server_session: None,
            pending: (0..window).map(|_| WindowSlot::unused(now)).collect(),
            free_slots: (0..window).rev().collect(),
            next_submission_number: 0,
            last_clock_reading: now,
            poll_calls: 0,
            waiter: Waiter::never_sleeping().with_spins_and_yields(128, u32::MAX - 128),
            stats: ClientStats::default(),
            answer_buffers: AnswerBuffers::new(),
            opener,
        };
        pipeline.reconnect(now + pipeline.opener.config.request_timeout())?;
        Ok(pipeline)
    }

    /// Returns the internal state of a client of a store of records.
    #[cfg(test)]
    pub(super) fn remote_records_state(
        &mut self,
    ) -> (
        &mut super::remote_records::RemoteRecordsClientDesign,
        &mut [WindowSlot],
        &mut ClientStats,
    ) {
        let design: &mut dyn std::any::Any = &mut *self.design;
        let records = design.downcast_mut().expect("a store of records");
        (records, &mut self.pending, &mut self.stats)
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

    /// Returns the server's identity, a number that changes when the server restarts.
    pub fn server_incarnation(&self) -> u64 {
        self.hash_seed
    }

    /// Returns the client's cache of record numbers, if the client changes records itself.
    pub fn record_cache(&self) -> Option<&Arc<RecordCache>> {
        self.design.record_cache()
    }

    /// Replaces the cache of record numbers by one that other clients share, until the next reconnect.
    pub fn use_shared_record_cache(&mut self, record_cache: Arc<RecordCache>) {
        self.design.use_shared_record_cache(record_cache);
    }

    /// Returns the number of doorbells for requests.
    pub fn doorbells(&self) -> u64 {
        let lanes = self.lanes.iter().map(|lane| lane.doorbells).sum::<u64>();
        lanes + self.design.one_sided_doorbells()
    }

    /// Submits a request. Returns false if the window has no room; the caller should then poll. The request is sent
    /// with the following ones, at the latest by [`poll`](Self::poll).
    ///
    /// # Errors
    /// [`ClientError::TooLong`], or [`ClientError::Unsupported`]. A broken connection is repaired by
    /// [`poll`](Self::poll).
    #[inline]
    pub fn submit(&mut self, op: &Op<'_>, token: u64) -> Result<bool, ClientError> {
        let Some(&slot) = self.free_slots.last() else {
            return Ok(false);
        };
        self.check_op_is_supported_and_fits(op)?;
        let key = op.key();
        let is_one_sided = self.one_sided_ops.includes(op.is_change());
        let hash = if is_one_sided || self.lanes.len() > 1 {
            hash_of(key, self.hash_seed)
        } else {
            0
        };
        let number = match self.lanes.len() {
            0 => return Ok(false),
            lanes => partition_of(hash, lanes),
        };
        let lane = &mut self.lanes[number];
        if !is_one_sided && !lane.has_room(op.is_change()) {
            return Ok(false);
        }
        self.free_slots.pop();
        let seq = if op.is_change() && !is_one_sided {
            lane.allocate_outstanding_change_seq()
        } else {
            0
        };
        let pending = &mut self.pending[slot as usize];
        op.encode(seq, &mut pending.encoded_request);
        pending.caller_token = token;
        pending.is_outstanding = true;
        pending.is_get = !op.is_change();
        pending.lane_index = number;
        pending.change_seq = seq;
        pending.submission_number = self.next_submission_number;
        pending.received_bytes = 0;
        pending.may_be_applied = false;
        pending.submitted_at = self.last_clock_reading;
        self.next_submission_number += 1;
        if is_one_sided {
            self.design.begin_one_sided_request(pending, slot, hash);
            return Ok(true);
        }
        if lane.is_idle() {
            // An idle period does not count as silence.
            lane.last_activity = self.last_clock_reading;
        }
        self.lanes_to_poll.set_work_flag(pending.lane_index);
        if let Err(e) = lane.enqueue(slot, &pending.encoded_request) {
            lane.pending_error.get_or_insert_with(|| Box::new(e));
        }
        Ok(true)
    }

    /// Returns an error for a request that is too long or that the design does not support.
    #[inline]
    fn check_op_is_supported_and_fits(&self, op: &Op<'_>) -> Result<(), ClientError> {
        if let Op::Put { value, .. } = op
            && value.len() > MAX_VALUE_BYTES
        {
            return Err(ClientError::TooLong);
        }
        if op.key().len() > MAX_KEY_BYTES {
            return Err(ClientError::TooLong);
        }
        if self.one_sided_ops.includes_gets {
            self.design.check_op_is_supported_and_fits(op)?;
        }
        Ok(())
    }

    /// Sends submitted requests and takes answers: calls `each` for every completed request, and returns their number.
    /// If no answer arrives for [`ClientConfig::answer_ms`], reconnects and sends all requests again. This can block
    /// for as long as requests may take.
    ///
    /// # Errors
    /// If the server cannot be reached any more. `each` was then called with [`Answer::NoAnswerInTime`] for every
    /// outstanding request.
    #[inline]
    pub fn poll(&mut self, mut each: impl FnMut(Completion<'_>)) -> Result<usize, ClientError> {
        let mut done = 0;
        let mut broken = self.poll_lanes(&mut each, &mut done).err();
        let mut progress = done;
        if self.one_sided_ops.includes_gets {
            match self.poll_one_sided_requests(&mut each, &mut done) {
                Ok(received) => progress += received,
                Err(e) => {
                    broken.get_or_insert(e);
                }
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
                .recover_connection(&why, &mut each)
                .map(|lost| done + lost),
        }
    }

    /// Takes answers from all lanes, even if one fails. Adds the number of completed requests to `done`.
    #[inline]
    fn poll_lanes(
        &mut self,
        each: &mut impl FnMut(Completion<'_>),
        done: &mut usize,
    ) -> Result<(), RpcError> {
        let mut result = Ok(());
        let mut next = self.lanes_to_poll.next_lane_to_poll(0);
        while let Some(lane) = self.lanes.get_mut(next) {
            let (pending, free, stats) = (&mut self.pending, &mut self.free_slots, &mut self.stats);
            let (now, buffer, before) = (
                &mut self.last_clock_reading,
                &mut self.answer_buffers,
                *done,
            );
            let (design, one_sided_ops) = (&mut self.design, self.one_sided_ops);
            let polled = lane.poll(pending, stats, buffer, |pending, slot, complete| {
                if *done == before {
                    *now = time::now();
                }
                let mut result = answer_from_reply(pending.is_get, &complete);
                if one_sided_ops.includes_changes {
                    match design.handle_server_answer(
                        pending,
                        slot,
                        (complete.status, complete.version_or_record),
                    ) {
                        AnswerEffect::AnswerIsFinal => {}
                        AnswerEffect::CompleteWithAnswer(answer) => result = answer,
                        AnswerEffect::Continue => return,
                    }
                }
                *done += 1;
                pending.is_outstanding = false;
                free.push(slot);
                each(pending.completion(result, *now));
            });
            match polled {
                Ok(0) => {}
                // Acknowledged parts of a long request also show that the server is alive.
                Ok(_) => {
                    if *done == before {
                        self.last_clock_reading = time::now();
                    }
                    lane.last_activity = self.last_clock_reading;
                }
                Err(e) => result = result.and(Err(e)),
            }
            self.lanes_to_poll.update_work_flag_after_poll(next, lane);
            next = self.lanes_to_poll.next_lane_to_poll(next + 1);
        }
        result
    }

    /// Continues the requests that this client executes itself, and sends requests about records to the server. Returns
    /// the number of completions, and adds the number of completed requests to `done`.
    #[inline]
    fn poll_one_sided_requests(
        &mut self,
        each: &mut impl FnMut(Completion<'_>),
        done: &mut usize,
    ) -> Result<usize, RpcError> {
        let (free, server_queue, now) = (
            &mut self.free_slots,
            &mut self.ask_server_queue,
            &mut self.last_clock_reading,
        );
        let mut first = true;
        let mut complete = |pending: &mut WindowSlot, slot, what: StepOutcome<'_>| {
            let answer = match what {
                StepOutcome::Answer(answer) => answer,
                StepOutcome::AskServer => return server_queue.push_back(slot),
            };
            if std::mem::take(&mut first) {
                *now = time::now();
            }
            *done += 1;
            pending.is_outstanding = false;
            free.push(slot);
            each(pending.completion(answer, *now));
        };
        let (all, stats) = (&mut self.pending, &mut self.stats);
        let received = self.design.poll(all, stats, &mut complete)?;
        while let Some(&slot) = self.ask_server_queue.front() {
            let pending = &self.pending[slot as usize];
            let lane = &mut self.lanes[pending.lane_index];
            if !lane.has_room(false) {
                break;
            }
            self.ask_server_queue.pop_front();
            self.stats.extra_server_requests += 1;
            if lane.is_idle() {
                lane.last_activity = self.last_clock_reading;
            }
            self.design.encode_server_request(
                pending,
                slot,
                &mut self.answer_buffers.value_or_encoded_request,
            );
            self.lanes_to_poll.set_work_flag(pending.lane_index);
            if let Err(e) = lane.enqueue(slot, &self.answer_buffers.value_or_encoded_request) {
                lane.pending_error.get_or_insert_with(|| Box::new(e));
            }
        }
        Ok(received)
    }

    /// Reads the clock, for requests that are submitted after a pause.
    pub fn refresh_clock(&mut self) {
        self.last_clock_reading = time::now();
    }

    /// Reconnects with new queue pairs. Sends outstanding requests again, except those past their deadline.
    #[cold]
    fn recover_connection(
        &mut self,
        why: &RpcError,
        each: &mut impl FnMut(Completion<'_>),
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
        for (slot, pending) in (0..).zip(&mut self.pending) {
            pending.may_be_applied =
                pending.is_outstanding && self.design.request_may_have_changed_item(slot);
        }
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
            // A change that may have been made is not repeated.
            let is_lost = self.last_clock_reading.duration_since(pending.submitted_at) >= deadline
                || pending.may_be_applied;
            if is_lost || connected.is_err() {
                pending.is_outstanding = false;
                self.free_slots.push(slot);
                lost += 1;
                each(pending.completion(Answer::NoAnswerInTime, self.last_clock_reading));
            } else {
                self.resend_in_new_session(slot);
            }
        }
        self.stats.unanswered_requests += lost as u64;
        if connected.is_err() {
            // Changes restart at number 1, so the session needs a new name.
            self.disconnect();
            self.opener.renew_session_id();
        }
        connected.map(|()| lost)
    }

    /// Sends a request again in a new session.
    fn resend_in_new_session(&mut self, slot: u32) {
        let pending = &mut self.pending[slot as usize];
        pending.received_bytes = 0;
        self.stats.resent_requests += 1;
        if self.one_sided_ops.includes(!pending.is_get)
            && let Some(key) = wire::key_of_request(&pending.encoded_request)
        {
            return self.design.begin_one_sided_request(
                pending,
                slot,
                hash_of(key, self.hash_seed),
            );
        }
        let lane = &mut self.lanes[pending.lane_index];
        lane.mark_change_outstanding_again(pending.change_seq);
        self.lanes_to_poll.set_work_flag(pending.lane_index);
        if let Err(e) = lane.enqueue(slot, &pending.encoded_request) {
            lane.pending_error.get_or_insert_with(|| Box::new(e));
        }
    }

    /// Destroys the old queue pairs: late answers are dropped, and the server sees the client disconnect.
    fn disconnect(&mut self) {
        self.lanes_to_poll = LanesToPoll::default();
        self.lanes.clear();
        (self.design, self.one_sided_ops) = (Box::new(HerdClientDesign), OneSidedOps::default());
        self.server_session = None;
        self.ask_server_queue.clear();
    }

    /// Opens a session, and retries until the deadline while a retry can help.
    fn reconnect(&mut self, until: Instant) -> Result<(), ClientError> {
        let before: Vec<u32> = self.lanes.iter().map(Lane::last_change_seq).collect();
        let request_window = self.lanes.iter().map(Lane::request_window).min();
        self.disconnect();
        let OpenSession {
            lanes,
            design,
            server_session: connection,
            hash_seed: seed,
            server_design: served,
        } = self.opener.open_until(until)?;
        if !before.is_empty() && before.len() != lanes.len() {
            return Err(ClientError::permanent_refusal(
                "it came back with another number of partitions",
            ));
        }
        if !before.is_empty() && served != self.server_design {
            // In some designs changes are numbered; in another, clients make the changes themselves.
            return Err(ClientError::permanent_refusal(format!(
                "it came back with design {served} instead of {}",
                self.server_design
            )));
        }
        self.one_sided_ops = design.one_sided_ops();
        self.lanes_to_poll = LanesToPoll::new(&lanes);
        (self.lanes, self.design, self.server_session) = (lanes, design, Some(connection));
        self.server_design = served;
        if let Some(unanswered) = request_window {
            // Answers may have been lost because they were long.
            let lanes = self.lanes.iter_mut();
            lanes.for_each(|lane| lane.limit_request_window(unanswered));
        }
        if seed != self.hash_seed && !before.is_empty() {
            // A new server hashes keys to other partitions, and does not know the earlier requests.
            self.reassign_requests_to_partitions(seed);
        } else {
            for (lane, seq) in self.lanes.iter_mut().zip(before) {
                lane.set_last_change_seq(seq);
            }
        }
        self.hash_seed = seed;
        Ok(())
    }

    /// Assigns outstanding requests to the partitions of a server with another hash seed, with new numbers.
    fn reassign_requests_to_partitions(&mut self, seed: u64) {
        let mut order: Vec<&mut WindowSlot> = self
            .pending
            .iter_mut()
            .filter(|p| p.is_outstanding)
            .collect();
        order.sort_by_key(|p| p.submission_number);
        for pending in order {
            let Some(key) = wire::key_of_request(&pending.encoded_request) else {
                continue;
            };
            pending.lane_index = partition_of(hash_of(key, seed), self.lanes.len());
            if pending.change_seq != 0 {
                pending.change_seq = self.lanes[pending.lane_index].allocate_change_seq();
                pending.encoded_request[4..8].copy_from_slice(&pending.change_seq.to_le_bytes());
            }
        }
    }
}

/// Returns the answer for a reply of the server.
#[inline]
fn answer_from_reply<'a>(is_get: bool, complete: &CompleteAnswer<'a>) -> Answer<'a> {
    let version = complete.version_or_record;
    match complete.status {
        Status::Ok if is_get => Answer::Value {
            value: complete.value,
            version,
        },
        Status::Ok => Answer::Changed { version },
        Status::NotFound => Answer::NotFound,
        Status::ConditionNotMet => Answer::ConditionNotMet { version },
        Status::Full => Answer::StoreFull,
        Status::TooLong => Answer::TooLong,
        // A server of the same protocol understands all requests of this client.
        Status::BadRequest | Status::PartReceived | Status::LeaseNotExpired => {
            Answer::NoAnswerInTime
        }
    }
}
