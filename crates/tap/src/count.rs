//! Counting: adds the work requests and completions of a data path call to the cells.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use verbs_abi::*;

use crate::layout::*;
use crate::mapped_counter_file::{add_as_only_writer, raise_to_at_least, store_if_changed};
use crate::objects::{Context, Cq, QPS, Qp, QpThread, find_or_claim_kind_index, qp_key};
use crate::peer_machines::machine_of_datagram;
use crate::send_work_request::{NO_REPEATABLE_PATTERN, RequestPattern, SendWorkRequest};

/// Number of work requests or completions (a power of two) per reading of the clock. The clock is also read
/// for the first `FIRST_TIMED_REQUESTS` of them.
const REQUESTS_PER_CLOCK_READ: u64 = 256;
const FIRST_TIMED_REQUESTS: u64 = 64;
/// Maximum number of look-ups of datagram destinations by a thread for a queue pair; later destinations are
/// only counted.
const MAX_DESTINATION_LOOKUPS: u64 = 1 << 16;

/// Maximum number of posts that are counted as repetitions before they are added to all counters.
const MAX_UNMERGED_REPEATED_POSTS: u64 = 255;

/// Counts an accepted postlist.
#[inline(always)]
pub(crate) fn count_posted(qp: &Qp, requests: impl Iterator<Item = impl SendWorkRequest> + Clone) {
    let entry = qp.thread_entry_or_create();
    let mut first = requests.clone();
    let Some(request) = first.next() else {
        return;
    };
    let alone = first.next().is_none();
    if alone && entry.is_repetition(qp, request.pattern(), || request.ud_destination()) {
        return add_as_only_writer(&entry.cell.packed_repeated_posts, 1);
    }
    entry.merge_repeated_posts(qp);
    count_each_posted(qp, entry, requests, alone);
}

#[inline(always)]
fn count_each_posted(
    qp: &Qp,
    entry: &QpThread,
    requests: impl Iterator<Item = impl SendWorkRequest>,
    alone: bool,
) {
    let before = qp.posted_wrs.load(Relaxed);
    let signaled_before = qp.posted_signaled_wrs.load(Relaxed);
    // Another thread may already have polled the completions of these work requests. They count as later ones.
    let completed = qp.completed_signaled_wrs.load(Relaxed).min(signaled_before);
    let in_flight = before.saturating_sub(qp.completed_wrs());
    let found = entry.thread.successful_polls.load(Relaxed);
    // Without outstanding work requests, other threads have found all completions.
    let begins_run = entry.successful_polls_at_last_post.load(Relaxed) != found || in_flight == 0;
    if begins_run {
        // A READ is adjacent only to one of the same run.
        store_if_changed(&entry.last_read_end_addr, u64::MAX);
    }
    let (mut count, mut signaled) = (0u64, 0u64);
    let (mut key, mut in_row, mut signaled_in_row) = (OperationKey(0), 0, 0);
    let datagram = qp.qp_type == IBV_QPT_UD;
    let mut requests = requests;
    let mut next = requests.next();
    let mut pattern = next.as_ref().map(SendWorkRequest::pattern);
    let first = pattern;
    while let Some(request) = next {
        let fetches = !datagram && request.opcode() >= IBV_WR_RDMA_READ;
        // Most work requests of a list are equal, and comparing them costs less than counting each.
        let mut equal = 1;
        loop {
            next = requests.next();
            let before = pattern;
            pattern = next.as_ref().map(SendWorkRequest::pattern);
            match &next {
                Some(next)
                    if !fetches
                        && pattern == before
                        && (!datagram || next.ud_destination() == request.ud_destination()) =>
                {
                    equal += 1;
                }
                _ => break,
            }
        }
        let kind = operation_key_of_request(qp, &request);
        if kind != key {
            entry.count_sent_kind(key, in_row, signaled_in_row);
            (key, in_row, signaled_in_row) = (kind, 0, 0);
        }
        in_row += equal;
        if is_signaled(qp, &request) {
            for _ in 0..equal {
                count += 1;
                qp.record_posted_up_to_signaled(signaled_before + signaled, before + count);
                signaled += 1;
            }
            signaled_in_row += equal;
        } else {
            count += equal;
        }
        if datagram {
            entry.add_destination(qp.context, request.ud_destination());
        } else if fetches {
            entry.record_read_or_atomic(
                request.opcode(),
                request.remote_addr(),
                request.num_sge_and_bytes().1,
            );
        }
    }
    entry.count_sent_kind(key, in_row, signaled_in_row);
    qp.add_atomically_if_shared(&qp.posted_wrs, count);
    if signaled > 0 {
        qp.add_atomically_if_shared(&qp.posted_signaled_wrs, signaled);
    }
    entry.thread.messages.count_sent(count);
    let cell = entry.cell;
    add_as_only_writer(
        &cell.postlists_by_length[power_of_two_bucket(count, POSTLIST_LENGTH_BUCKETS)],
        1,
    );
    let outstanding = in_flight.min(qp.max_send_wr().saturating_sub(count));
    add_as_only_writer(
        &cell.outstanding_sum,
        count * outstanding + count * (count + 1) / 2,
    );
    raise_to_at_least(&cell.outstanding_max, outstanding + count);
    store_if_changed(&entry.completed_signaled_wrs_at_last_post, completed);
    if begins_run || outstanding == 0 {
        entry.successful_polls_at_last_post.store(found, Relaxed);
        add_as_only_writer(&cell.postlist_runs_between_completions, 1);
    }
    if alone && let Some(pattern) = first {
        entry.record_repeatable_pattern(pattern, key, signaled > 0, outstanding + 1);
    }
    if must_read_clock(before, count) {
        entry.record_post_time(qp);
    }
}

/// Returns the kind under which a work request is counted.
#[inline(always)]
fn operation_key_of_request(qp: &Qp, request: &impl SendWorkRequest) -> OperationKey {
    let (num_sge, bytes) = request.num_sge_and_bytes();
    let inline = (request.flags() | qp.implied_flags) & IBV_SEND_INLINE != 0;
    OperationKey::new(request.opcode(), num_sge, bytes).with_inline(inline)
}

#[inline(always)]
fn is_signaled(qp: &Qp, request: &impl SendWorkRequest) -> bool {
    (request.flags() | qp.implied_flags) & IBV_SEND_SIGNALED != 0
}

/// Returns true if the clock must be read when `more` work requests or completions are added to `before`.
#[inline(always)]
fn must_read_clock(before: u64, more: u64) -> bool {
    before < FIRST_TIMED_REQUESTS || (before ^ (before + more)) >= REQUESTS_PER_CLOCK_READ
}

impl QpThread {
    /// Returns true if a post of one work request equals the previous post, so that only a counter of
    /// repetitions must be incremented. No completion may lie between the two posts. Another thread may have
    /// found it.
    ///
    /// The stores of a post to the receiver's ring are still in flight, and each further store waits behind
    /// them. Between distant cores the ten stores of a full count cost a third of the message rate.
    #[inline(always)]
    pub(crate) fn is_repetition(
        &self,
        qp: &Qp,
        pattern: RequestPattern,
        destination: impl FnOnce() -> (*mut ibv_ah, u32),
    ) -> bool {
        self.last_post_opcode_and_sges.load(Relaxed) == pattern.opcode_and_sges
            && self.last_post_flags_and_bytes.load(Relaxed) == pattern.flags_and_bytes
            && self.successful_polls_at_last_post.load(Relaxed)
                == self.thread.successful_polls.load(Relaxed)
            && self.completed_signaled_wrs_at_last_post.load(Relaxed)
                == qp.completed_signaled_wrs.load(Relaxed)
            && RepeatedPosts(self.cell.packed_repeated_posts.load(Relaxed)).count()
                < MAX_UNMERGED_REPEATED_POSTS
            && (qp.qp_type != IBV_QPT_UD || self.is_known_destination(destination()))
    }

    /// Records the pattern of a post of one work request, so that equal posts can be counted as repetitions.
    #[inline(always)]
    fn record_repeatable_pattern(
        &self,
        pattern: RequestPattern,
        key: OperationKey,
        signaled: bool,
        outstanding: u64,
    ) {
        let place = self.last_sent_kind_index.load(Relaxed) as usize;
        let single =
            place < SINGLE_SIZE_SENT_KIND_SLOTS && self.last_sent_kind_key.load(Relaxed) == key.0;
        let fetches = key.opcode() >= IBV_WR_RDMA_READ;
        if !single || fetches {
            return store_if_changed(&self.last_post_opcode_and_sges, NO_REPEATABLE_PATTERN);
        }
        store_if_changed(&self.last_post_opcode_and_sges, pattern.opcode_and_sges);
        store_if_changed(&self.last_post_flags_and_bytes, pattern.flags_and_bytes);
        store_if_changed(
            &self.cell.packed_repeated_posts,
            RepeatedPosts::zero_of_kind(place, signaled).0,
        );
        store_if_changed(&self.cell.outstanding_before_repeats, outstanding);
        self.thread.messages.expect_repetitions(self.repeated_sends);
    }

    /// Adds the posts that were only counted as repetitions to all counters.
    #[inline(always)]
    pub(crate) fn merge_repeated_posts(&self, qp: &Qp) {
        let repeated = RepeatedPosts(self.cell.packed_repeated_posts.load(Relaxed));
        if repeated.count() > 0 {
            self.add_repeated_posts_to_counters(qp, repeated);
        }
    }

    /// Records the time of a post; only some posts call this function.
    #[cold]
    fn record_post_time(&self, qp: &Qp) {
        let now = qp.context.counter_file.record_data_path_use_and_time();
        if self.cell.first_post_ns.load(Relaxed) == 0 {
            self.cell.first_post_ns.store(now, Relaxed);
        }
        self.cell.last_timed_post_ns.store(now, Relaxed);
    }

    #[inline(never)]
    fn add_repeated_posts_to_counters(&self, qp: &Qp, repeated: RepeatedPosts) {
        let cell = self.cell;
        let count = repeated.count();
        cell.packed_repeated_posts
            .store(repeated.0 - count, Relaxed);
        self.thread
            .messages
            .count_merged_repetitions(self.repeated_sends, count);
        let kind = &cell.sent_by_kind[repeated.kind_index()];
        add_as_only_writer(&kind.count, count);
        add_as_only_writer(&cell.postlists_by_length[0], count);
        let before = cell.outstanding_before_repeats.load(Relaxed);
        let sum = repeated.outstanding_sum(before, qp.max_send_wr());
        add_as_only_writer(&cell.outstanding_sum, sum);
        raise_to_at_least(
            &cell.outstanding_max,
            (before + count).min(qp.max_send_wr()),
        );
        let posted = qp.posted_wrs.load(Relaxed);
        let signaled = repeated.signaled_count();
        if signaled > 0 {
            let signaled_before = qp.posted_signaled_wrs.load(Relaxed);
            for index in 0..signaled {
                qp.record_posted_up_to_signaled(signaled_before + index, posted + index + 1);
            }
            add_as_only_writer(&kind.signaled_count, signaled);
            qp.add_atomically_if_shared(&qp.posted_signaled_wrs, signaled);
        }
        qp.add_atomically_if_shared(&qp.posted_wrs, count);
        if must_read_clock(posted, count) {
            self.record_post_time(qp);
        }
    }

    /// Counts `count` work requests of one kind.
    ///
    /// The arguments are numbers and not a structure: a structure that is written in words and read as a
    /// whole must wait for all earlier stores into the receiver's ring.
    #[inline(never)]
    fn count_sent_kind(&self, key: OperationKey, count: u64, signaled: u64) {
        if count == 0 {
            return;
        }
        let place = if self.last_sent_kind_key.load(Relaxed) == key.0 {
            self.last_sent_kind_index.load(Relaxed) as usize
        } else {
            self.sent_kind_index_or_max(key)
        };
        let Some(kind) = self.cell.sent_by_kind.get(place) else {
            return add_as_only_writer(&self.cell.unitemised_sent, count);
        };
        add_as_only_writer(&kind.count, count);
        if place >= SINGLE_SIZE_SENT_KIND_SLOTS {
            add_as_only_writer(
                &kind.payload_bytes_sum_if_size_class,
                count * u64::from(key.payload_bytes()),
            );
        }
        if signaled > 0 {
            add_as_only_writer(&kind.signaled_count, signaled);
        }
    }

    /// Returns the index of a kind in the cell; `usize::MAX` if the cell has no room for the kind.
    #[inline(never)]
    fn sent_kind_index_or_max(&self, key: OperationKey) -> usize {
        let kinds = &self.cell.sent_by_kind;
        let place =
            find_or_claim_kind_index(key, kinds.len(), SINGLE_SIZE_SENT_KIND_SLOTS, |place| {
                &kinds[place].operation_key
            });
        let place = place.unwrap_or(usize::MAX);
        self.last_sent_kind_key.store(key.0, Relaxed);
        self.last_sent_kind_index.store(place as u64, Relaxed);
        place
    }

    #[inline(always)]
    fn count_received_kind(&self, key: OperationKey, count: u64) {
        let place = if self.last_received_kind_key.load(Relaxed) == key.0 {
            self.last_received_kind_index.load(Relaxed) as usize
        } else {
            self.received_kind_index_or_max(key)
        };
        let Some(kind) = self.cell.received_by_kind.get(place) else {
            return add_as_only_writer(&self.cell.unitemised_received, count);
        };
        add_as_only_writer(&kind.count, count);
        if place >= SINGLE_SIZE_RECEIVED_KIND_SLOTS {
            add_as_only_writer(
                &kind.payload_bytes_sum_if_size_class,
                count * u64::from(key.payload_bytes()),
            );
        }
    }

    #[inline(never)]
    fn received_kind_index_or_max(&self, key: OperationKey) -> usize {
        let kinds = &self.cell.received_by_kind;
        let place =
            find_or_claim_kind_index(key, kinds.len(), SINGLE_SIZE_RECEIVED_KIND_SLOTS, |place| {
                &kinds[place].operation_key
            });
        let place = place.unwrap_or(usize::MAX);
        self.last_received_kind_key.store(key.0, Relaxed);
        self.last_received_kind_index.store(place as u64, Relaxed);
        place
    }

    /// Records whether a READ continues the previous one, and the address slot of an atomic.
    #[inline(never)]
    fn record_read_or_atomic(&self, opcode: ibv_wr_opcode, remote: u64, bytes: u32) {
        match opcode {
            IBV_WR_RDMA_READ => {
                if self.last_read_end_addr.load(Relaxed) == remote {
                    add_as_only_writer(&self.cell.adjacent_reads, 1);
                }
                let end = remote.wrapping_add(bytes.into());
                self.last_read_end_addr.store(end, Relaxed);
            }
            IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
                let slot = (remote as usize / 8) % ATOMIC_ADDRESS_SLOTS;
                add_as_only_writer(&self.cell.atomics_by_address_slot[slot], 1);
            }
            _ => {}
        }
    }

    /// Returns the slot that remembers a destination, and the value that identifies the destination.
    #[inline(always)]
    fn destination_slot_and_value(&self, (ah, qpn): (*mut ibv_ah, u32)) -> (&AtomicU64, u64) {
        let known = (ah.addr() as u64) << 24 | u64::from(qpn & 0xff_ffff);
        let place = (qpn as usize ^ ah.addr() >> 6) & (self.known_destinations.len() - 1);
        (&self.known_destinations[place], known)
    }

    /// Returns true if this destination was looked up before.
    #[inline(always)]
    fn is_known_destination(&self, to: (*mut ibv_ah, u32)) -> bool {
        let (place, known) = self.destination_slot_and_value(to);
        place.load(Relaxed) == known
    }

    /// Records the destination of a datagram.
    #[inline]
    fn add_destination(&self, context: &Context, to: (*mut ibv_ah, u32)) {
        let (place, known) = self.destination_slot_and_value(to);
        if place.load(Relaxed) != known {
            place.store(known, Relaxed);
            self.look_up_and_add_peer_machine(context, to.0, to.1);
        }
    }

    #[cold]
    fn look_up_and_add_peer_machine(&self, context: &Context, ah: *mut ibv_ah, qpn: u32) {
        if self.destination_lookups.load(Relaxed) >= MAX_DESTINATION_LOOKUPS {
            return add_as_only_writer(&self.cell.unrecorded_destinations, 1);
        }
        add_as_only_writer(&self.destination_lookups, 1);
        self.add_peer(machine_of_datagram(context.qpn_process_shift, ah, qpn));
    }

    /// Records a machine to which the queue pair sends.
    pub(crate) fn add_peer(&self, machine: u64) {
        let machine = machine.max(1);
        for peer in &self.cell.peer_machine_ids {
            match peer.load(Relaxed) {
                0 => return peer.store(machine, Relaxed),
                known if known == machine => return,
                _ => {}
            }
        }
        add_as_only_writer(&self.cell.unrecorded_destinations, 1);
    }
}

/// The counted properties of a completion.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct CountedCompletion {
    pub(crate) qpn: u32,
    pub(crate) is_success: bool,
    pub(crate) opcode: ibv_wc_opcode,
    pub(crate) bytes: u32,
    pub(crate) has_imm: bool,
}

impl CountedCompletion {
    #[inline(always)]
    pub(crate) fn from_wc(wc: &ibv_wc) -> Self {
        Self {
            qpn: wc.qp_num,
            is_success: wc.status == IBV_WC_SUCCESS,
            opcode: wc.opcode,
            bytes: wc.byte_len,
            has_imm: wc.wc_flags & IBV_WC_WITH_IMM != 0,
        }
    }

    /// Returns the key of completions that are counted together.
    #[inline(always)]
    fn receive_key_or_none_or_failed(self) -> OperationKey {
        if !self.is_success {
            OperationKey(u64::MAX)
        } else if self.opcode & IBV_WC_RECV == 0 {
            OperationKey(0)
        } else {
            OperationKey::new(self.opcode, 0, self.bytes).with_imm(self.has_imm)
        }
    }
}

/// Counts a poll that found no completion.
#[inline(always)]
pub(crate) fn count_empty_poll(cq: &Cq) {
    add_as_only_writer(&cq.thread_entry_or_create().thread_counters.empty_polls, 1);
}

/// Counts a poll that found completions.
#[inline(always)]
pub(crate) fn count_successful_poll(cq: &Cq, count: u64) {
    let entry = cq.thread_entry_or_create();
    let cell = entry.thread_counters;
    let before = cell.completions_found.load(Relaxed);
    add_as_only_writer(&entry.thread.successful_polls, 1);
    add_as_only_writer(&cell.completions_found, count);
    add_as_only_writer(
        &cell.polls_by_completions[power_of_two_bucket(count, POLL_HISTOGRAM_BUCKETS)],
        1,
    );
    if must_read_clock(before, count) {
        cq.context.counter_file.record_data_path_use_and_time();
    }
}

/// Counts completions.
///
/// Most polls find one run of equal completions. The function detects that by comparing their fields without
/// a branch for each field or completion.
#[inline(always)]
pub(crate) fn count_completions(cq: &Cq, completions: &[ibv_wc]) {
    let Some(first) = completions.first() else {
        return;
    };
    let differ = completions
        .iter()
        .fold(0, |differ, other| differ | differing_bits(first, other));
    if differ == 0 {
        return count_equal_completions(
            cq,
            CountedCompletion::from_wc(first),
            completions.len() as u64,
        );
    }
    count_completion_runs(cq, completions);
}

/// Counts completions like [`count_completions`], run by run.
#[inline(never)]
fn count_completion_runs(cq: &Cq, completions: &[ibv_wc]) {
    for run in completions.chunk_by(|a, b| differing_bits(a, b) == 0) {
        if let Some(first) = run.first() {
            count_equal_completions(cq, CountedCompletion::from_wc(first), run.len() as u64);
        }
    }
}

/// Returns the bits in which the counted fields of two completions differ; 0 if they are equal.
#[inline(always)]
fn differing_bits(a: &ibv_wc, b: &ibv_wc) -> u32 {
    let fate = (a.status ^ b.status) | (a.opcode ^ b.opcode) | (a.wc_flags ^ b.wc_flags);
    fate | (a.qp_num ^ b.qp_num) | (a.byte_len ^ b.byte_len)
}

/// Counts completions that are equal in all counted fields.
#[inline(never)]
pub(crate) fn count_equal_completions(cq: &Cq, completion: CountedCompletion, count: u64) {
    let Some(qp) = QPS.find(qp_key(cq.device, completion.qpn)) else {
        return;
    };
    let key = completion.receive_key_or_none_or_failed();
    match key.0 {
        0 => {
            // The completed work requests were posted before.
            if let Some(entry) = qp.existing_entry() {
                entry.merge_repeated_posts(qp);
            }
            qp.add_atomically_if_shared(&qp.completed_signaled_wrs, count);
        }
        u64::MAX => {
            let entry = qp.thread_entry_or_create();
            entry.merge_repeated_posts(qp);
            add_as_only_writer(&entry.cell.failed_completions, count);
            // The opcode of a failed completion is not valid (ibv_poll_cq), and the failed operation may be a
            // receive. After a failure the queue pair is in error, and at most as many operations are
            // outstanding as are flushed.
            qp.count_signaled_completions(count);
        }
        _ => {
            qp.thread_entry_or_create().count_received_kind(key, count);
            count_received_messages(cq, count);
        }
    }
}

/// Counts received messages of the calling thread, and by how many its sent messages were ahead.
#[inline(always)]
fn count_received_messages(cq: &Cq, count: u64) {
    let entry = cq.thread_entry_or_create();
    let ahead = entry.thread.messages.count_received(count);
    raise_to_at_least(&entry.thread_counters.max_sent_ahead, ahead.sent);
    raise_to_at_least(&entry.thread_counters.max_received_ahead, ahead.received);
}
