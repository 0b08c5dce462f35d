//! The file of counters: a process writes it while it runs, and other processes read it afterwards.
//!
//! The file has a header and three arrays of cells. A *cell* counts what one thread did with one object, so
//! only that thread writes to it. All fields are 64-bit words: `AtomicU64` for the writer, `u64` for the
//! reader, which trusts none of them.

use zerocopy::FromBytes;

/// First word of a file of counters.
pub(crate) const COUNTER_FILE_MAGIC: u64 = u64::from_le_bytes(*b"VERB TAP");
/// Version of the layout of a file of counters.
pub(crate) const COUNTER_FILE_LAYOUT_VERSION: u64 = 5;

/// Maximum number of cells in a file, each with the counts of one thread for one queue pair.
pub(crate) const MAX_QP_THREAD_CELLS: usize = 1 << 14;
/// Maximum number of cells in a file, each with the counts of one thread for one completion queue.
pub(crate) const MAX_CQ_THREAD_CELLS: usize = 1 << 14;
/// Maximum number of cells in a file, each with the counts of one thread for one shared receive queue.
pub(crate) const MAX_SRQ_THREAD_CELLS: usize = 1 << 12;

/// Number of kinds of send operations that a queue pair's cell distinguishes.
pub(crate) const MAX_SENT_KINDS_PER_CELL: usize = 64;
/// Number of kinds of received messages that a queue pair's cell distinguishes.
pub(crate) const MAX_RECEIVED_KINDS_PER_CELL: usize = 32;
/// Number of kinds of send operations and of received messages in a cell that have a single payload size. The other
/// kinds stand for classes of payload sizes.
pub(crate) const SINGLE_SIZE_SENT_KIND_SLOTS: usize = 40;
pub(crate) const SINGLE_SIZE_RECEIVED_KIND_SLOTS: usize = 20;
/// Number of histogram buckets of postlist lengths: 1, 2, up to 4, up to 8 …
pub(crate) const POSTLIST_LENGTH_BUCKETS: usize = 17;
/// Number of peers that a queue pair's cell distinguishes.
pub(crate) const MAX_PEERS: usize = 117;
/// Number of 8-byte words that the low 12 bits of an aligned address distinguish.
pub(crate) const ATOMIC_ADDRESS_SLOTS: usize = 512;
/// Number of histogram buckets of polls by the number of completions found: 1, 2, up to 4 …
pub(crate) const POLL_HISTOGRAM_BUCKETS: usize = 8;
/// Maximum number of bytes of the command line that a file of counters stores.
pub(crate) const MAX_COMMAND_LINE_BYTES: usize = 8 * 488;

/// The header of a file of counters.
#[derive(FromBytes)]
#[repr(C)]
pub(crate) struct CounterFileHeader<W> {
    pub(crate) magic: W,
    pub(crate) version: W,
    pub(crate) pid: W,
    /// 1 after the process has ended by `exit`.
    pub(crate) exited_normally: W,
    /// Times of the first and last use of the data path, in nanoseconds of `CLOCK_MONOTONIC`.
    pub(crate) first_data_path_use_ns: W,
    pub(crate) last_data_path_use_ns: W,
    /// Numbers of used cells of queue pairs, completion queues and shared receive queues.
    pub(crate) used_qp_cells: W,
    pub(crate) used_cq_cells: W,
    pub(crate) used_srq_cells: W,
    /// Number of objects that were not counted because no cell was free.
    pub(crate) uncounted_objects: W,
    /// Number of created queue pairs.
    pub(crate) created_queue_pairs: W,
    pub(crate) thread_count: W,
    /// Bytes of memory that is registered now, and the part of them in pages larger than the smallest. Then the
    /// maximum of each.
    pub(crate) current_registered_bytes: W,
    pub(crate) current_registered_huge_page_bytes: W,
    pub(crate) max_registered_bytes: W,
    pub(crate) huge_page_bytes_at_max_registered: W,
    /// Number of registered regions.
    pub(crate) registrations_ever: W,
    pub(crate) command_line_bytes: W,
    pub(crate) provider_name: [W; 2],
    pub(crate) reserved: [W; 4],
    /// Bytes of the command line, eight bytes per word.
    pub(crate) command_line: [W; MAX_COMMAND_LINE_BYTES / 8],
}

/// Counters of operations of one kind on a send queue.
#[derive(Clone, Copy, FromBytes)]
#[repr(C)]
pub(crate) struct SentCounters<W> {
    /// [`OperationKey`] of the kind; 0 if these counters are unused.
    pub(crate) operation_key: W,
    pub(crate) count: W,
    /// Sum of the payload bytes of all operations, if the key is that of a class; otherwise the key contains the
    /// payload.
    pub(crate) payload_bytes_sum_if_size_class: W,
    pub(crate) signaled_count: W,
}

/// Counters of received messages of one kind.
#[derive(FromBytes)]
#[repr(C)]
pub(crate) struct ReceivedCounters<W> {
    /// [`OperationKey`] of the kind; 0 if these counters are unused.
    pub(crate) operation_key: W,
    pub(crate) count: W,
    /// Sum of the payload bytes, as in [`SentCounters`].
    pub(crate) payload_bytes_sum_if_size_class: W,
}

/// Counters of posted receives.
#[derive(FromBytes)]
#[repr(C)]
pub(crate) struct RecvCounters<W> {
    /// Number of calls that posted receives.
    pub(crate) post_calls: W,
    pub(crate) posted_recvs: W,
    /// Sum of the buffer sizes of the receives in bytes.
    pub(crate) buffer_bytes: W,
    /// Number of receives that were posted one per call with the same buffer size, and this buffer size in bytes.
    /// These receives are not yet included in the other counters.
    pub(crate) unmerged_repeated_recvs: W,
    pub(crate) repeated_buffer_bytes: W,
}

/// Counters of one thread for one queue pair.
#[derive(FromBytes)]
#[repr(C)]
pub(crate) struct QpThreadCell<W> {
    /// Number of the queue pair within the process, because a QP number may be reused.
    pub(crate) qp_id: W,
    pub(crate) qpn: W,
    /// `ibv_qp_type`.
    pub(crate) qp_type: W,
    pub(crate) thread_id: W,
    pub(crate) max_send_wr: W,
    pub(crate) max_recv_wr: W,
    pub(crate) max_inline_data: W,
    pub(crate) sq_sig_all: W,
    /// Number of runs. A run is a sequence of postlists between which the thread found no completion.
    pub(crate) postlist_runs_between_completions: W,
    /// Number of work requests that the provider refused.
    pub(crate) refused_wrs: W,
    /// Sum over all operations of the number of outstanding operations after the post of each.
    pub(crate) outstanding_sum: W,
    pub(crate) outstanding_max: W,
    pub(crate) adjacent_reads: W,
    pub(crate) recvs: RecvCounters<W>,
    /// Number of completions with an error.
    pub(crate) failed_completions: W,
    /// Number of operations that were counted under no kind, because the cell had no room for their kinds.
    pub(crate) unitemised_sent: W,
    pub(crate) unitemised_received: W,
    /// Number of destinations that were not looked up.
    pub(crate) unrecorded_destinations: W,
    /// [`RepeatedPosts`] posts, not yet included in the other counters.
    pub(crate) packed_repeated_posts: W,
    /// Number of operations that were outstanding after the last post that was counted in full.
    pub(crate) outstanding_before_repeats: W,
    pub(crate) postlists_by_length: [W; POSTLIST_LENGTH_BUCKETS],
    pub(crate) peer_machine_ids: [W; MAX_PEERS],
    /// Times of the first and last post for which the clock was read, in nanoseconds of `CLOCK_MONOTONIC`.
    pub(crate) first_post_ns: W,
    pub(crate) last_timed_post_ns: W,
    pub(crate) sent_by_kind: [SentCounters<W>; MAX_SENT_KINDS_PER_CELL],
    pub(crate) received_by_kind: [ReceivedCounters<W>; MAX_RECEIVED_KINDS_PER_CELL],
    pub(crate) atomics_by_address_slot: [W; ATOMIC_ADDRESS_SLOTS],
}

/// Counters of one thread for one completion queue.
#[derive(FromBytes)]
#[repr(C)]
pub(crate) struct CqThreadCell<W> {
    pub(crate) cq_id: W,
    pub(crate) thread_id: W,
    pub(crate) capacity: W,
    pub(crate) empty_polls: W,
    pub(crate) completions_found: W,
    /// Histogram of polls by the number of completions found.
    pub(crate) polls_by_completions: [W; POLL_HISTOGRAM_BUCKETS],
    /// Maximum by which the thread's posted work requests exceeded its received messages, as it found messages.
    pub(crate) max_sent_ahead: W,
    /// Maximum by which the thread's received messages exceeded its posted work requests.
    pub(crate) max_received_ahead: W,
    pub(crate) reserved: [W; 1],
}

/// Counters of one thread for one shared receive queue.
#[derive(FromBytes)]
#[repr(C)]
pub(crate) struct SrqThreadCell<W> {
    pub(crate) srq_id: W,
    pub(crate) thread_id: W,
    pub(crate) recvs: RecvCounters<W>,
    pub(crate) reserved: [W; 1],
}

/// Offsets in bytes of the arrays of cells in a file of counters.
pub(crate) const CQ_CELLS_AT: usize = size_of::<CounterFileHeader<u64>>();
pub(crate) const SRQ_CELLS_AT: usize =
    CQ_CELLS_AT + MAX_CQ_THREAD_CELLS * size_of::<CqThreadCell<u64>>();
pub(crate) const QP_CELLS_AT: usize =
    SRQ_CELLS_AT + MAX_SRQ_THREAD_CELLS * size_of::<SrqThreadCell<u64>>();
/// Size in bytes of a file of counters; unused parts take no memory.
pub(crate) const FILE_BYTES: usize =
    QP_CELLS_AT + MAX_QP_THREAD_CELLS * size_of::<QpThreadCell<u64>>();

const _: () = {
    use std::sync::atomic::AtomicU64;
    assert!(size_of::<CounterFileHeader<u64>>() == 4096);
    assert!(size_of::<CqThreadCell<u64>>() == 128);
    assert!(size_of::<SrqThreadCell<u64>>() == 64);
    assert!(size_of::<QpThreadCell<u64>>() == 8192);
    assert!(QP_CELLS_AT.is_multiple_of(4096));
    assert!(size_of::<QpThreadCell<AtomicU64>>() == size_of::<QpThreadCell<u64>>());
    assert!(align_of::<QpThreadCell<AtomicU64>>() == align_of::<QpThreadCell<u64>>());
};

/// A kind of operation in one word, 0 for none. Bits 32 to 63 are the payload, bits 16 to 23 the scatter/gather
/// elements, bits 8 to 15 the flags and bits 0 to 7 the opcode.
///
/// Operations with equal keys are equal in all properties that determine their cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OperationKey(pub(crate) u64);

impl OperationKey {
    /// Bit that is set in every key, so that no key is 0.
    const USED_BIT: u64 = 1 << 15;
    /// Bit of a key whose payload stands for a class of payload sizes; the payload is then the class's largest size.
    const SIZE_CLASS_BIT: u64 = 1 << 14;
    const INLINE_BIT: u64 = 1 << 8;
    const IMM_BIT: u64 = 1 << 9;

    #[inline]
    pub(crate) const fn new(opcode: u32, num_sge: u32, bytes: u32) -> Self {
        let sges = if num_sge > 255 { 255 } else { num_sge };
        Self((bytes as u64) << 32 | (sges as u64) << 16 | Self::USED_BIT | (opcode & 0xff) as u64)
    }

    #[inline]
    pub(crate) const fn with_inline(self, yes: bool) -> Self {
        Self(self.0 | if yes { Self::INLINE_BIT } else { 0 })
    }

    #[inline]
    pub(crate) const fn with_imm(self, yes: bool) -> Self {
        Self(self.0 | if yes { Self::IMM_BIT } else { 0 })
    }

    /// Returns the key of the class that contains this key's payload.
    pub(crate) fn with_size_class(self) -> Self {
        let upper = u64::from(self.payload_bytes()).next_power_of_two();
        Self((upper << 32) | (self.0 & 0xffff_ffff) | Self::SIZE_CLASS_BIT)
    }

    pub(crate) const fn is_size_class(self) -> bool {
        self.0 & Self::SIZE_CLASS_BIT != 0
    }

    pub(crate) const fn opcode(self) -> u32 {
        (self.0 & 0xff) as u32
    }

    pub(crate) const fn num_sge(self) -> u32 {
        ((self.0 >> 16) & 0xff) as u32
    }

    pub(crate) const fn payload_bytes(self) -> u32 {
        (self.0 >> 32) as u32
    }

    pub(crate) const fn is_inline(self) -> bool {
        self.0 & Self::INLINE_BIT != 0
    }

    pub(crate) const fn has_imm(self) -> bool {
        self.0 & Self::IMM_BIT != 0
    }

    pub(crate) const fn is_used(self) -> bool {
        self.0 & Self::USED_BIT != 0
    }
}

/// Number of posts of one work request each that equal the post before them, packed in one word. Bits 0 to 31 are the
/// number, bits 32 to 39 the index of the kind, and bit 40 is set if the work requests are signaled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RepeatedPosts(pub(crate) u64);

impl RepeatedPosts {
    /// Returns the word for zero repeated posts of the kind with index `place`.
    #[inline]
    pub(crate) const fn zero_of_kind(place: usize, signaled: bool) -> Self {
        Self((place as u64 & 0xff) << 32 | (signaled as u64) << 40)
    }

    pub(crate) const fn count(self) -> u64 {
        self.0 & 0xffff_ffff
    }

    pub(crate) const fn kind_index(self) -> usize {
        (self.0 >> 32 & 0xff) as usize
    }

    /// Returns the number of signaled work requests among the repeated posts.
    pub(crate) const fn signaled_count(self) -> u64 {
        if self.0 >> 40 & 1 == 1 {
            self.count()
        } else {
            0
        }
    }

    /// Returns the sum over all posts of the number of outstanding operations after each post. `before` is the number
    /// before the first post, and `max` the maximum.
    pub(crate) const fn outstanding_sum(self, before: u64, max: u64) -> u64 {
        let count = self.count();
        let room = max.saturating_sub(count);
        let before = if before < room { before } else { room };
        count
            .saturating_mul(before)
            .saturating_add(count * (count + 1) / 2)
    }
}

impl RecvCounters<u64> {
    /// Returns the total numbers of calls and of receives, and the sum of the buffer sizes in bytes.
    pub(crate) fn calls_recvs_and_bytes(&self) -> (u64, u64, u64) {
        let room = self
            .unmerged_repeated_recvs
            .saturating_mul(self.repeated_buffer_bytes);
        (
            self.post_calls.saturating_add(self.unmerged_repeated_recvs),
            self.posted_recvs
                .saturating_add(self.unmerged_repeated_recvs),
            self.buffer_bytes.saturating_add(room),
        )
    }
}

/// Returns the histogram bucket of a number that is at least 1: 1, 2, up to 4, up to 8 …; the last bucket contains all
/// larger numbers.
#[inline]
pub(crate) fn power_of_two_bucket(number: u64, buckets: usize) -> usize {
    let bucket = u64::BITS - number.saturating_sub(1).leading_zeros();
    usize::try_from(bucket).unwrap_or(buckets).min(buckets - 1)
}

/// Returns the largest number in a bucket of [`power_of_two_bucket`].
pub(crate) fn largest_of_bucket(bucket: usize) -> u64 {
    1 << bucket.min(63)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_end_at_powers_of_two() {
        let of = |number| power_of_two_bucket(number, POSTLIST_LENGTH_BUCKETS);
        assert_eq!([1, 2, 3, 4, 5, 8, 9, 16].map(of), [0, 1, 2, 2, 3, 3, 4, 4]);
        assert_eq!(of(u64::MAX), POSTLIST_LENGTH_BUCKETS - 1);
        assert_eq!(largest_of_bucket(of(13)), 16);
    }

    #[test]
    fn keys_give_back_what_they_were_made_of() {
        let key = OperationKey::new(3, 2, 4096)
            .with_inline(true)
            .with_imm(true);
        assert_eq!(
            (key.opcode(), key.num_sge(), key.payload_bytes()),
            (3, 2, 4096)
        );
        assert!(key.is_inline() && key.has_imm() && key.is_used());
        assert!(!OperationKey(0).is_used());
        assert_eq!(OperationKey::new(0, 1000, 0).num_sge(), 255);
        assert_eq!(
            OperationKey::new(2, 1, 100).with_size_class(),
            OperationKey::new(2, 1, 127).with_size_class()
        );
        assert_ne!(
            OperationKey::new(2, 1, 100).with_size_class(),
            OperationKey::new(2, 1, 129).with_size_class()
        );
        assert_ne!(
            OperationKey::new(2, 1, 128).with_size_class(),
            OperationKey::new(2, 1, 128)
        );
        assert!(
            OperationKey::new(2, 1, 128)
                .with_size_class()
                .is_size_class()
        );
    }

    #[test]
    fn repeated_posts_say_what_they_repeat() {
        let three = RepeatedPosts(RepeatedPosts::zero_of_kind(41, true).0 + 3);
        assert_eq!(
            (three.count(), three.kind_index(), three.signaled_count()),
            (3, 41, 3)
        );
        assert_eq!(
            RepeatedPosts(RepeatedPosts::zero_of_kind(0, false).0 + 3).signaled_count(),
            0
        );
        // The numbers of outstanding operations are 6, 7 and 8, or at most 7 in a queue of 7.
        assert_eq!(three.outstanding_sum(5, 100), 21);
        assert_eq!(three.outstanding_sum(5, 7), 5 + 6 + 7);
    }
}
