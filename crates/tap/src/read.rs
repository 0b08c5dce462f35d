//! Conversion of a file of counters into an operation profile. The file is untrusted.

mod kinds_to_operations;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use nicmodel::op_profile::{
    self, AtomicSlotCount, MessageBalance, OperationProfile, PostlistsByLength, QueuePair,
    RegisteredMemory, Thread, TimeSpan,
};
use nicmodel::{ATOMIC_BYTES, Transport, Verb};
use verbs_abi::*;
use zerocopy::FromBytes;

use crate::layout::*;
use kinds_to_operations::{
    merge_counted_operations, received_operations_if_modelled, saturate_to_u32,
    sent_operations_if_modelled,
};

/// The reason why a file is not a file of counters.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The file cannot be read, or is shorter than its header says.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    /// The file does not begin with the magic number of a file of counters.
    #[error("is no file of counters")]
    NotACounterFile,
    /// The file was written by another version of this program.
    #[error(
        "has version {found} of the file of counters; this program reads version {COUNTER_FILE_LAYOUT_VERSION}"
    )]
    WrongVersion {
        /// The layout version in the file.
        found: u64,
    },
    /// The file contradicts itself.
    #[error("is damaged: {0}")]
    Inconsistent(&'static str),
}

/// The operation profile of a process, and the time at which the process began to use the data path.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RecordedProfile {
    /// Time at which the process began to use the data path, by `CLOCK_MONOTONIC`; 0 if the process did not
    /// use it.
    pub(crate) first_use_ns: u64,
    pub(crate) provider: String,
    pub(crate) profile: OperationProfile,
}

/// Reads a process's file, which the process may still be writing.
pub(crate) fn read_counter_file(path: &Path) -> Result<RecordedProfile, ReadError> {
    let file = File::open(path)?;
    read_counter_file_with(|offset, bytes| file.read_exact_at(bytes, offset as u64))
}

/// Reads a file through `fetch`, which is called with an offset and a buffer.
pub(crate) fn read_counter_file_with(
    fetch: impl Fn(usize, &mut [u8]) -> io::Result<()>,
) -> Result<RecordedProfile, ReadError> {
    fn read_struct<T: FromBytes>(
        fetch: &impl Fn(usize, &mut [u8]) -> io::Result<()>,
        offset: usize,
    ) -> Result<T, ReadError> {
        let mut bytes = vec![0; size_of::<T>()];
        fetch(offset, &mut bytes)?;
        T::read_from_bytes(&bytes).map_err(|_| ReadError::Inconsistent("a cell is too short"))
    }
    let magic: u64 = read_struct(&fetch, 0).map_err(|_| ReadError::NotACounterFile)?;
    if magic != COUNTER_FILE_MAGIC {
        return Err(ReadError::NotACounterFile);
    }
    let header: CounterFileHeader<u64> = read_struct(&fetch, 0)?;
    if header.version != COUNTER_FILE_LAYOUT_VERSION {
        return Err(ReadError::WrongVersion {
            found: header.version,
        });
    }
    let limits = [
        (header.used_qp_cells, MAX_QP_THREAD_CELLS),
        (header.used_cq_cells, MAX_CQ_THREAD_CELLS),
        (header.used_srq_cells, MAX_SRQ_THREAD_CELLS),
    ];
    if limits.iter().any(|(used, max)| *used > *max as u64) {
        return Err(ReadError::Inconsistent("more cells than there can be"));
    }
    let mut builder = ProfileBuilder::default();
    for index in 0..header.used_cq_cells as usize {
        builder.add_cq_cell(&read_struct(
            &fetch,
            CQ_CELLS_AT + index * size_of::<CqThreadCell<u64>>(),
        )?);
    }
    for index in 0..header.used_srq_cells as usize {
        let offset = SRQ_CELLS_AT + index * size_of::<SrqThreadCell<u64>>();
        builder.add_srq_cell(&read_struct(&fetch, offset)?);
    }
    for index in 0..header.used_qp_cells as usize {
        let offset = QP_CELLS_AT + index * size_of::<QpThreadCell<u64>>();
        builder.add_qp_cell(&read_struct(&fetch, offset)?, header.first_data_path_use_ns);
    }
    Ok(builder.into_recorded_profile(&header))
}

fn saturating_sum(numbers: &[u64]) -> u64 {
    numbers.iter().fold(0, |sum, n| sum.saturating_add(*n))
}

fn text_from_words(words: &[u64], len: u64) -> String {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let len = usize::try_from(len).unwrap_or(usize::MAX).min(bytes.len());
    let end = bytes[..len].iter().position(|b| *b == 0).unwrap_or(len);
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// The profile made from the cells that were read so far.
#[derive(Default)]
struct ProfileBuilder {
    threads: BTreeMap<u64, Thread>,
    /// Queue pairs by number, each with the sum from which its mean number of outstanding operations is
    /// computed.
    queue_pairs_and_outstanding_sums: BTreeMap<u64, (QueuePair, u64)>,
    peers: BTreeSet<u64>,
    unrecorded_destinations: u64,
    unmodelled_operations: u64,
    unitemised_operations: u64,
    qps_of_other_transports: BTreeSet<u64>,
}

impl ProfileBuilder {
    fn thread_or_insert(&mut self, id: u64) -> &mut Thread {
        self.threads.entry(id).or_insert_with(|| Thread {
            id: saturate_to_u32(id),
            ..Thread::default()
        })
    }

    fn add_cq_cell(&mut self, cell: &CqThreadCell<u64>) {
        let polls = saturating_sum(&cell.polls_by_completions).saturating_add(cell.empty_polls);
        let thread = self.thread_or_insert(cell.thread_id);
        for (all, more) in [
            (&mut thread.poll_calls, polls),
            (&mut thread.empty_polls, cell.empty_polls),
            (&mut thread.completions, cell.completions_found),
        ] {
            *all = all.saturating_add(more);
        }
        let messages = thread.messages.get_or_insert_default();
        for (most, here) in [
            (&mut messages.max_sent_ahead, cell.max_sent_ahead),
            (&mut messages.max_received_ahead, cell.max_received_ahead),
        ] {
            *most = (*most).max(here);
        }
    }

    fn add_srq_cell(&mut self, cell: &SrqThreadCell<u64>) {
        let thread = self.thread_or_insert(cell.thread_id);
        thread.recv_posts = thread
            .recv_posts
            .saturating_add(cell.recvs.calls_recvs_and_bytes().0);
    }

    /// Adds a queue pair's cell of a process that began to use the data path at `began`.
    fn add_qp_cell(&mut self, cell: &QpThreadCell<u64>, began: u64) {
        let repeated = RepeatedPosts(cell.packed_repeated_posts);
        let thread = self.thread_or_insert(cell.thread_id);
        add_messages(thread.messages.get_or_insert_default(), cell, repeated);
        let transport = match u32::try_from(cell.qp_type) {
            Ok(IBV_QPT_RC) => Transport::Rc,
            Ok(IBV_QPT_UC) => Transport::Uc,
            Ok(IBV_QPT_UD) => Transport::Ud,
            _ => {
                self.qps_of_other_transports.insert(cell.qp_id);
                return;
            }
        };
        let posts = saturating_sum(&cell.postlists_by_length).saturating_add(repeated.count());
        let thread = self.thread_or_insert(cell.thread_id);
        thread.posts = thread.posts.saturating_add(posts);
        thread.post_time_span = union_of_spans(thread.post_time_span, posting_span(cell, began));
        thread.recv_posts = thread
            .recv_posts
            .saturating_add(cell.recvs.calls_recvs_and_bytes().0);
        self.peers
            .extend(cell.peer_machine_ids.iter().filter(|peer| **peer != 0));
        self.unrecorded_destinations = self
            .unrecorded_destinations
            .saturating_add(cell.unrecorded_destinations);
        for more in [cell.unitemised_sent, cell.unitemised_received] {
            self.unitemised_operations = self.unitemised_operations.saturating_add(more);
        }
        let (qp, outstanding_sum) = self
            .queue_pairs_and_outstanding_sums
            .entry(cell.qp_id)
            .or_insert_with(|| (QueuePair::new(saturate_to_u32(cell.qpn), transport), 0));
        for more in [
            cell.outstanding_sum,
            repeated.outstanding_sum(cell.outstanding_before_repeats, cell.max_send_wr),
        ] {
            *outstanding_sum = outstanding_sum.saturating_add(more);
        }
        qp.post_time_span = union_of_spans(qp.post_time_span, posting_span(cell, began));
        add_qp_counters(qp, cell, repeated, posts);
        let unmodelled = add_kinds_and_count_unmodelled(qp, cell, repeated, transport);
        self.unmodelled_operations = self.unmodelled_operations.saturating_add(unmodelled);
    }

    /// Returns notes for readers of the profile; `uncounted` is the number of objects that were not counted.
    fn notes(&self, uncounted: u64) -> Vec<String> {
        let mut notes = Vec::new();
        let mut note = |count: u64, what: &str| {
            if count > 0 {
                notes.push(format!("{count} {what}"));
            }
        };
        note(
            uncounted,
            "objects were not counted: there were more than the tap has room for",
        );
        note(
            self.qps_of_other_transports.len() as u64,
            "queue pairs are of a transport that the model does not have (not RC, UC or UD)",
        );
        note(
            self.unmodelled_operations,
            "work requests or messages are of kinds that the model does not have",
        );
        note(
            self.unitemised_operations,
            "work requests or messages are of more kinds than the tap tells apart",
        );
        note(
            self.unrecorded_destinations,
            "datagrams were sent without a look at their destination: there are more peers than counted",
        );
        notes
    }

    fn into_recorded_profile(self, header: &CounterFileHeader<u64>) -> RecordedProfile {
        let notes = self.notes(header.uncounted_objects);
        let queue_pairs = self.queue_pairs_and_outstanding_sums.into_values();
        let queue_pairs =
            queue_pairs.map(|(qp, outstanding_sum)| make_consistent(qp, outstanding_sum));
        let profile = OperationProfile {
            version: op_profile::VERSION,
            program: text_from_words(&header.command_line, header.command_line_bytes),
            pid: saturate_to_u32(header.pid),
            duration_ns: header
                .last_data_path_use_ns
                .saturating_sub(header.first_data_path_use_ns),
            complete: header.exited_normally == 1,
            threads: self.threads.into_values().collect(),
            queue_pairs: queue_pairs.collect(),
            peer_count: saturate_to_u32(self.peers.len() as u64),
            memory: RegisteredMemory {
                max_registered_bytes: header.max_registered_bytes,
                huge_page_bytes: header
                    .huge_page_bytes_at_max_registered
                    .min(header.max_registered_bytes),
            },
            notes,
            peers_work: None,
            clients_unanswered: None,
        };
        RecordedProfile {
            first_use_ns: header.first_data_path_use_ns,
            provider: text_from_words(&header.provider_name, u64::MAX),
            profile,
        }
    }
}

/// Adds a thread's messages on a queue pair of any transport.
fn add_messages(messages: &mut MessageBalance, cell: &QpThreadCell<u64>, repeated: RepeatedPosts) {
    let sent = cell.sent_by_kind.iter().map(|kind| kind.count);
    let received = cell.received_by_kind.iter().map(|kind| kind.count);
    let further_sent = [cell.unitemised_sent, repeated.count()];
    messages.sent = sent
        .chain(further_sent)
        .fold(messages.sent, u64::saturating_add);
    messages.received = received
        .chain([cell.unitemised_received])
        .fold(messages.received, u64::saturating_add);
}

/// Adds the counters of a thread for a queue pair; `posts` is the number of its calls.
fn add_qp_counters(
    qp: &mut QueuePair,
    cell: &QpThreadCell<u64>,
    repeated: RepeatedPosts,
    posts: u64,
) {
    let outstanding = cell
        .outstanding_before_repeats
        .saturating_add(repeated.count())
        .min(cell.max_send_wr)
        .max(cell.outstanding_max);
    qp.max_outstanding = qp.max_outstanding.max(saturate_to_u32(outstanding));
    qp.max_send_wr = saturate_to_u32(cell.max_send_wr);
    qp.max_inline_data = saturate_to_u32(cell.max_inline_data);
    let (recv_posts, recvs, room) = cell.recvs.calls_recvs_and_bytes();
    for (all, more) in [
        (&mut qp.postlists, posts),
        (
            &mut qp.unpolled_postlist_runs,
            cell.postlist_runs_between_completions,
        ),
        (&mut qp.adjacent_reads, cell.adjacent_reads),
        (&mut qp.refused_wrs, cell.refused_wrs),
        (&mut qp.failed_completions, cell.failed_completions),
        (&mut qp.posted_recvs.postlists, recv_posts),
        (&mut qp.posted_recvs.count, recvs),
        (&mut qp.posted_recvs.buffer_bytes, room),
    ] {
        *all = all.saturating_add(more);
    }
    let mut lists = cell.postlists_by_length;
    lists[0] = lists[0].saturating_add(repeated.count());
    add_postlist_length_buckets(&mut qp.postlist_lengths, &lists);
    for (slot, count) in (0u32..).zip(&cell.atomics_by_address_slot) {
        if *count > 0 {
            add_atomic_slot_count(
                &mut qp.atomics_by_low_address_bits,
                slot * ATOMIC_BYTES,
                *count,
            );
        }
    }
}

/// Adds the operations to the profile by their kinds, and returns the number of operations whose kinds the
/// model lacks.
fn add_kinds_and_count_unmodelled(
    qp: &mut QueuePair,
    cell: &QpThreadCell<u64>,
    repeated: RepeatedPosts,
    transport: Transport,
) -> u64 {
    let mut unmodelled = 0u64;
    for (place, kind) in cell.sent_by_kind.iter().enumerate() {
        let mut kind = *kind;
        if place == repeated.kind_index() {
            kind.count = kind.count.saturating_add(repeated.count());
            kind.signaled_count = kind
                .signaled_count
                .saturating_add(repeated.signaled_count());
        }
        match sent_operations_if_modelled(transport, &kind) {
            Some(counted) => merge_counted_operations(&mut qp.sent, counted),
            None => unmodelled = unmodelled.saturating_add(kind.count),
        }
    }
    for kind in &cell.received_by_kind {
        match received_operations_if_modelled(transport, kind) {
            Some(counted) => merge_counted_operations(&mut qp.received, counted),
            None => unmodelled = unmodelled.saturating_add(kind.count),
        }
    }
    unmodelled
}

/// Makes the numbers of a queue pair consistent with each other, for any content of the file.
fn make_consistent(mut qp: QueuePair, outstanding_sum: u64) -> QueuePair {
    let operations = qp.posted_operations();
    // Operations that the model does not have are missing from the list of operations.
    qp.postlists = qp.postlists.min(operations);
    qp.unpolled_postlist_runs = qp
        .unpolled_postlist_runs
        .min(qp.postlists)
        .max(u64::from(operations > 0));
    qp.postlists = qp.postlists.max(qp.unpolled_postlist_runs);
    qp.adjacent_reads = qp.adjacent_reads.min(qp.operations_of_verb(Verb::RdmaRead));
    if qp.atomics_of_known_address() > operations {
        qp.atomics_by_low_address_bits.clear();
    }
    #[expect(clippy::cast_precision_loss, reason = "a mean")]
    if operations > 0 {
        qp.mean_outstanding = outstanding_sum as f64 / operations as f64;
    }
    qp
}

/// Returns the period in which a thread posted to a queue pair, relative to the process's begin; `None` if no
/// time was read.
fn posting_span(cell: &QpThreadCell<u64>, began: u64) -> Option<TimeSpan> {
    (cell.first_post_ns > 0).then(|| TimeSpan {
        first_ns: cell.first_post_ns.saturating_sub(began),
        last_ns: cell
            .last_timed_post_ns
            .max(cell.first_post_ns)
            .saturating_sub(began),
    })
}

/// Returns the shortest period that contains both periods, or the one period that is known.
fn union_of_spans(one: Option<TimeSpan>, other: Option<TimeSpan>) -> Option<TimeSpan> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.union_with(other)),
        (known, unknown) => known.or(unknown),
    }
}

fn add_postlist_length_buckets(lengths: &mut Vec<PostlistsByLength>, buckets: &[u64]) {
    for (bucket, count) in buckets.iter().enumerate().filter(|(_, count)| **count > 0) {
        let at_most = largest_of_bucket(bucket);
        match lengths
            .iter_mut()
            .find(|known| known.max_postlist_len == at_most)
        {
            Some(known) => known.count = known.count.saturating_add(*count),
            None => lengths.push(PostlistsByLength {
                max_postlist_len: at_most,
                count: *count,
            }),
        }
    }
    lengths.sort_by_key(|known| known.max_postlist_len);
}

fn add_atomic_slot_count(slots: &mut Vec<AtomicSlotCount>, slot: u32, count: u64) {
    match slots
        .iter_mut()
        .find(|known| known.low_address_bits == slot)
    {
        Some(known) => known.count = known.count.saturating_add(count),
        None => slots.push(AtomicSlotCount {
            low_address_bits: slot,
            count,
        }),
    }
}

#[cfg(test)]
mod tests {
    use nicmodel::Operation;
    use nicmodel::op_profile::CountedOperations;
    use proptest::prelude::*;
    use zerocopy::FromZeros;

    use super::*;

    fn from(bytes: &[u8]) -> Result<RecordedProfile, ReadError> {
        read_counter_file_with(|offset, out| {
            let end = offset.checked_add(out.len()).expect("small numbers");
            let found = bytes.get(offset..end);
            out.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
            Ok(())
        })
    }

    /// Returns the words of a file with one queue pair that has sent.
    fn words() -> Vec<u64> {
        let mut words = vec![0; (QP_CELLS_AT + size_of::<QpThreadCell<u64>>()) / 8];
        words[..3].copy_from_slice(&[COUNTER_FILE_MAGIC, COUNTER_FILE_LAYOUT_VERSION, 77]);
        words[4..7].copy_from_slice(&[1000, 3000, 1]);
        let cell = &mut words[QP_CELLS_AT / 8..];
        cell[..3].copy_from_slice(&[0, 0x12, IBV_QPT_UD.into()]);
        let at = std::mem::offset_of!(QpThreadCell<u64>, postlists_by_length) / 8;
        (cell[at], cell[at + 2]) = (0, 22);
        let at = std::mem::offset_of!(QpThreadCell<u64>, postlist_runs_between_completions) / 8;
        cell[at] = 10;
        let at = std::mem::offset_of!(QpThreadCell<u64>, sent_by_kind) / 8;
        let key = OperationKey::new(IBV_WR_SEND, 1, 60).with_inline(true);
        cell[at..at + 4].copy_from_slice(&[key.0, 97, 0, 4]);
        // Three more posts are counted as repetitions.
        let at = std::mem::offset_of!(QpThreadCell<u64>, packed_repeated_posts) / 8;
        cell[at] = RepeatedPosts::zero_of_kind(0, false).0 + 3;
        words
    }

    fn bytes(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn what_was_counted_is_read() {
        let read = from(&bytes(&words())).expect("a file");
        assert_eq!(read.first_use_ns, 1000);
        let profile = read.profile;
        assert_eq!((profile.pid, profile.duration_ns), (77, 2000));
        assert!(!profile.complete && profile.notes.is_empty());
        let [qp] = &profile.queue_pairs[..] else {
            panic!("one queue pair: {profile:?}");
        };
        assert_eq!(
            (qp.qpn, qp.postlists, qp.unpolled_postlist_runs),
            (0x12, 25, 10)
        );
        let operation = Operation::new(Verb::Send, Transport::Ud, 60)
            .inlined()
            .with_signaled_fraction(0.04);
        let count = 100;
        assert_eq!(qp.sent, [CountedOperations { operation, count }]);
        assert_eq!(profile.check(), Ok(()));
    }

    #[test]
    fn other_files_are_refused_by_what_they_are() {
        assert!(matches!(from(b""), Err(ReadError::NotACounterFile)));
        assert!(matches!(from(&[7; 9000]), Err(ReadError::NotACounterFile)));
        let mut other = words();
        other[1] = COUNTER_FILE_LAYOUT_VERSION + 1;
        let message = from(&bytes(&other))
            .expect_err("another version")
            .to_string();
        assert!(
            message.contains(&format!("version {}", COUNTER_FILE_LAYOUT_VERSION + 1)),
            "{message}"
        );
        let mut other = words();
        other[6] = u64::MAX;
        assert!(matches!(
            from(&bytes(&other)),
            Err(ReadError::Inconsistent(_))
        ));
        let whole = bytes(&words());
        let short = &whole[..whole.len() - 1];
        assert!(matches!(from(short), Err(ReadError::Io(_))));
    }

    #[test]
    fn cells_of_several_threads_are_one_queue_pair() {
        let mut builder = ProfileBuilder::default();
        for thread in [0, 1] {
            let mut cell = QpThreadCell::<u64>::new_zeroed();
            cell.thread_id = thread;
            cell.qp_type = IBV_QPT_RC.into();
            cell.postlists_by_length[0] = 3;
            cell.postlist_runs_between_completions = 3;
            cell.sent_by_kind[0] = SentCounters {
                operation_key: OperationKey::new(IBV_WR_RDMA_READ, 1, 8).0,
                count: 3,
                payload_bytes_sum_if_size_class: 24,
                signaled_count: 3 * thread,
            };
            builder.add_qp_cell(&cell, 0);
        }
        let header = CounterFileHeader::<u64>::new_zeroed();
        let profile = builder.into_recorded_profile(&header).profile;
        assert_eq!(profile.threads.len(), 2);
        let [qp] = &profile.queue_pairs[..] else {
            panic!("one queue pair: {profile:?}");
        };
        assert_eq!((qp.posted_operations(), qp.postlists), (6, 6));
        assert!((qp.sent[0].operation.signaled_fraction - 0.5).abs() < 1e-9);
    }

    #[test]
    fn messages_of_a_thread_are_of_all_its_queues() {
        let mut builder = ProfileBuilder::default();
        for (sent_ahead, received_ahead) in [(1, 0), (7, 2)] {
            let mut cell = CqThreadCell::<u64>::new_zeroed();
            (cell.max_sent_ahead, cell.max_received_ahead) = (sent_ahead, received_ahead);
            builder.add_cq_cell(&cell);
        }
        // Requests leave on one queue pair, and answers arrive on another. Its transport does not matter.
        let mut cell = QpThreadCell::<u64>::new_zeroed();
        cell.sent_by_kind[0].count = 90;
        cell.unitemised_sent = 7;
        cell.packed_repeated_posts = RepeatedPosts::zero_of_kind(0, false).0 + 3;
        builder.add_qp_cell(&cell, 0);
        let mut cell = QpThreadCell::<u64>::new_zeroed();
        cell.received_by_kind[0].count = 90;
        cell.unitemised_received = 9;
        builder.add_qp_cell(&cell, 0);
        let header = CounterFileHeader::<u64>::new_zeroed();
        let profile = builder.into_recorded_profile(&header).profile;
        let expected = MessageBalance {
            sent: 100,
            received: 99,
            max_sent_ahead: 7,
            max_received_ahead: 2,
        };
        assert_eq!(profile.threads[0].messages, Some(expected));
    }

    #[test]
    fn more_bytes_than_there_can_be_are_a_mean_all_the_same() {
        let mut words = words();
        let sent = QP_CELLS_AT / 8 + std::mem::offset_of!(QpThreadCell<u64>, sent_by_kind) / 8;
        words[sent] = OperationKey::new(IBV_WR_SEND, 1, 60).with_size_class().0;
        words[sent + 2] = u64::MAX;
        let read = from(&bytes(&words)).expect("a file");
        assert_eq!(read.profile.check(), Ok(()));
        let operation = read.profile.queue_pairs[0].sent[0].operation;
        assert!(operation.payload_bytes > 60, "{operation:?}");
    }

    proptest! {
        /// Any words yield an error or a profile that is consistent.
        #[test]
        fn damaged_files_do_no_harm(
            changes in prop::collection::vec((0usize..4000, any::<u64>()), 0..200),
            cut in 0usize..100,
        ) {
            let mut words = words();
            let (head, cell) = (512, QP_CELLS_AT / 8);
            for (at, value) in changes {
                // Change sometimes a word of the header, otherwise a word of the cell.
                let at = if at < 30 { at } else { cell + at % (words.len() - cell) };
                prop_assert!(at < head || at >= cell);
                words[at] = if value % 3 == 0 { value % 7 } else { value };
            }
            let mut bytes = bytes(&words);
            if cut < 10 {
                bytes.truncate(bytes.len() * cut / 10);
            }
            if let Ok(read) = from(&bytes) {
                prop_assert_eq!(read.profile.check(), Ok(()));
                let cib = nicmodel::profile::builtin_profile("cib").expect("built in");
                let _ = nicmodel::guidelines::advise(&read.profile, cib);
            }
        }
    }
}
