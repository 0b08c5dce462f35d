//! A single-producer ring with only the costs of the verbs interface: the most that two cores can
//! exchange.
//!
//! - The sender fills a `struct ibv_send_wr` and an `ibv_sge` for each message. [`Producer::post`]
//!   reads them and writes a record of 16 bytes (header-only) or 32 bytes (8 bytes of payload).
//! - [`Consumer::poll`] takes an entry of a local receive queue for each record. It copies the
//!   payload to the address in the entry, and fills an `ibv_wc` in the caller's array. The receiver
//!   checks each message and posts RECVs again.
//! - One message in [`SIGNAL_EVERY`] is signaled: [`Producer::poll_completions`] fills an `ibv_wc` once the
//!   consumer has taken the message.
//!
//! A record's header holds the lap number of its slot, so that consumed records need no zeroing.
//! One release store publishes a list. Queue pairs, keys, states, retries and errors are missing:
//! the ring is a limit, not a transport.
//!
//! Unsafe code: the immediate is a member of a union of the C ABI.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use verbs_abi::{
    IBV_SEND_INLINE, IBV_SEND_SIGNALED, IBV_WC_RECV, IBV_WC_SEND, IBV_WC_SUCCESS, IBV_WC_WITH_IMM,
    IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_wc,
};

/// Maximum distance of the producer from the consumer in messages, as in the rows that the ring
/// limits.
pub(crate) const WINDOW: usize = 256;

/// One message in this many is signaled, as in the rows that the ring limits.
pub(crate) const SIGNAL_EVERY: u64 = 16;

/// Maximum number of signaled messages in a window.
const MAX_SIGNALED_IN_WINDOW: usize = 2 * WINDOW / 16;

/// Maximum messages in a list.
pub(crate) const MAX_MESSAGES_PER_LIST: usize = 16;

/// Records in a ring: a power of two, at least the window.
const RECORDS_PER_RING: usize = 512;

/// Words before the records. They hold the consumer's position on its own pair of cache lines,
/// because processors prefetch pairs.
const CONSUMER_POSITION_WORDS: usize = 16;

/// RECVs that are posted again at once, as in the rows that the ring limits.
const RECVS_PER_REPOST: usize = WINDOW / 4;

/// Records after which the consumer publishes its position; it also does so when no more records
/// are available. Measured on an EPYC guest with near cores: publishing after each poll costs lists
/// of one message 15 % of their rate. It costs a ping-pong as much.
const RECORDS_PER_PUBLISH: u64 = 32;

/// Maximum entries that one poll takes, as in the rows that the ring limits.
const MAX_POLLED_ENTRIES: usize = 32;

/// Bit that marks the last message of a run, in the number that a payload or an immediate carries.
const LAST_MARK_64_BIT: u64 = 1 << 63;
const LAST_MARK_32_BIT: u32 = 1 << 31;

/// Queue pair number in completions; no queue pair has it.
const PLACEHOLDER_QP_NUM: u32 = 0x11;

/// Words of a header-only record, and of a record with 8 bytes of payload.
pub(crate) const HEADER_ONLY_RECORD_WORDS: usize = 2;
pub(crate) const EIGHT_BYTE_RECORD_WORDS: usize = 4;

/// Returns the words of shared memory that a ring needs.
pub(crate) const fn ring_words(record_words: usize) -> usize {
    CONSUMER_POSITION_WORDS + RECORDS_PER_RING * record_words
}

/// A ring in shared words, which are all zero at first. `WORDS` is [`HEADER_ONLY_RECORD_WORDS`] or
/// [`EIGHT_BYTE_RECORD_WORDS`].
///
/// Word 0 of a record: lap number (32 bits), bytes of payload (16), opcode (8). Word 1: immediate,
/// queue pair number. Word 2: payload.
#[derive(Clone, Copy)]
pub(crate) struct Ring<'m, const WORDS: usize> {
    /// Number of records that the consumer has taken, as published to the producer.
    consumer_position: &'m AtomicU64,
    records: &'m [[AtomicU64; WORDS]; RECORDS_PER_RING],
}

impl<'m, const WORDS: usize> Ring<'m, WORDS> {
    /// Creates a view of the ring in the first [`ring_words`] of `words`.
    ///
    /// # Errors
    /// When `words` has too few words.
    pub(crate) fn new(words: &'m [AtomicU64]) -> Result<Self> {
        let (head, rest) = words
            .split_at_checked(CONSUMER_POSITION_WORDS)
            .context("no room for a ring")?;
        let records = rest.as_chunks().0.first_chunk();
        Ok(Ring {
            consumer_position: &head[0],
            records: records.context("no room for the records of a ring")?,
        })
    }
}

/// Returns `number` modulo `N`, as an index.
#[inline]
fn index_modulo<const N: usize>(number: u64) -> usize {
    #[allow(clippy::cast_possible_truncation, reason = "less than N")]
    {
        (number % N as u64) as usize
    }
}

/// Returns the lap number of a position, counted from 1. A slot that was never written holds 0.
#[inline]
fn lap_number(position: u64) -> u64 {
    (position / RECORDS_PER_RING as u64 + 1) & 0xffff_ffff
}

#[inline]
fn low_32_bits(value: u64) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "that is the point")]
    {
        value as u32
    }
}

/// Returns the index of the word at a byte address, in a buffer of `N` words.
#[inline]
fn word_index_of_addr<const N: usize>(addr: u64) -> usize {
    index_modulo::<N>(addr / 8)
}

/// A list of send WRs with their scatter/gather elements and payloads, as in a verbs program.
pub(crate) struct SendList<const WORDS: usize> {
    wrs: Vec<ibv_send_wr>,
    sges: Vec<ibv_sge>,
    payloads: [u64; MAX_MESSAGES_PER_LIST],
}

impl<const WORDS: usize> SendList<WORDS> {
    pub(crate) fn new() -> Self {
        let mut wrs = vec![ibv_send_wr::zeroed(); MAX_MESSAGES_PER_LIST];
        let sges = vec![
            ibv_sge {
                addr: 0,
                length: 0,
                lkey: 0
            };
            MAX_MESSAGES_PER_LIST
        ];
        for index in 1..MAX_MESSAGES_PER_LIST {
            wrs[index - 1].next = &raw mut wrs[index];
        }
        SendList {
            wrs,
            sges,
            payloads: [0; MAX_MESSAGES_PER_LIST],
        }
    }

    /// Fills `count` WRs for the messages from number `first` on. If `last` is true, the last WR is
    /// marked.
    #[inline]
    pub(crate) fn fill_wrs(&mut self, first: u64, count: usize, last: bool) {
        let (wrs, sges) = (&mut self.wrs[..count], &mut self.sges[..count]);
        for (index, (wr, sge)) in wrs.iter_mut().zip(sges).enumerate() {
            let number = first + index as u64;
            let last = last && index + 1 == count;
            let signaled = (number + 1).is_multiple_of(SIGNAL_EVERY);
            wr.wr_id = number;
            wr.send_flags = if signaled { IBV_SEND_SIGNALED } else { 0 };
            if WORDS == HEADER_ONLY_RECORD_WORDS {
                wr.num_sge = 0;
                wr.opcode = IBV_WR_SEND_WITH_IMM;
                wr.imm.imm_data = make_32_bit_stamp(number, last).to_be();
            } else {
                self.payloads[index % MAX_MESSAGES_PER_LIST] = make_64_bit_stamp(number, last);
                (sge.addr, sge.length) = (8 * index as u64, 8);
                wr.sg_list = sge;
                wr.num_sge = 1;
                wr.opcode = IBV_WR_SEND;
                wr.send_flags |= IBV_SEND_INLINE;
            }
        }
    }
}

fn make_64_bit_stamp(number: u64, last: bool) -> u64 {
    number | if last { LAST_MARK_64_BIT } else { 0 }
}

fn make_32_bit_stamp(number: u64, last: bool) -> u32 {
    (low_32_bits(number) & (LAST_MARK_32_BIT - 1)) | if last { LAST_MARK_32_BIT } else { 0 }
}

/// The sending end of a ring.
pub(crate) struct Producer<'m, const WORDS: usize> {
    ring: Ring<'m, WORDS>,
    /// Position of the next record.
    next_record_position: u64,
    /// Signaled WRs that have not completed, counted in signaled WRs.
    outstanding_signaled_wrs: std::ops::Range<u64>,
    /// `wr_id`s of outstanding signaled WRs.
    wr_ids: [u64; MAX_SIGNALED_IN_WINDOW],
    wcs: [ibv_wc; MAX_POLLED_ENTRIES],
}

impl<'m, const WORDS: usize> Producer<'m, WORDS> {
    pub(crate) fn new(ring: Ring<'m, WORDS>) -> Self {
        Producer {
            ring,
            next_record_position: 0,
            outstanding_signaled_wrs: 0..0,
            wr_ids: [0; MAX_SIGNALED_IN_WINDOW],
            wcs: [ibv_wc::zeroed(); MAX_POLLED_ENTRIES],
        }
    }

    /// Returns true if `count` more messages fit the window after the last completion.
    #[inline]
    pub(crate) fn has_room(&self, count: usize) -> bool {
        self.next_record_position + count as u64
            <= self.outstanding_signaled_wrs.start * SIGNAL_EVERY + WINDOW as u64
    }

    /// Writes the records of the first `count` WRs of a list and publishes them. The ring must have
    /// room.
    #[inline(never)]
    pub(crate) fn post(&mut self, list: &SendList<WORDS>, count: usize) {
        let first = self.next_record_position;
        let mut first_header = 0;
        let wrs = list.wrs[..count].iter().zip(&list.sges);
        for (position, (wr, sge)) in (first..).zip(wrs) {
            let record = &self.ring.records[index_modulo::<RECORDS_PER_RING>(position)];
            let byte_len = if wr.num_sge > 0 { sge.length } else { 0 };
            let header = lap_number(position)
                | (u64::from(byte_len) & 0xffff) << 32
                | u64::from(wr.opcode) << 48;
            // SAFETY: both members of the union are plain 32-bit integers.
            let imm = unsafe { wr.imm.imm_data };
            record[1].store(
                u64::from(imm) | u64::from(PLACEHOLDER_QP_NUM) << 32,
                Ordering::Relaxed,
            );
            if WORDS > HEADER_ONLY_RECORD_WORDS {
                let payload = list.payloads[word_index_of_addr::<MAX_MESSAGES_PER_LIST>(sge.addr)];
                record[2].store(payload, Ordering::Relaxed);
            }
            if position == first {
                first_header = header;
            } else {
                record[0].store(header, Ordering::Relaxed);
            }
            if wr.send_flags & IBV_SEND_SIGNALED != 0 {
                self.wr_ids
                    [index_modulo::<MAX_SIGNALED_IN_WINDOW>(self.outstanding_signaled_wrs.end)] =
                    wr.wr_id;
                self.outstanding_signaled_wrs.end += 1;
            }
        }
        // Publishes the list: the consumer reads the other records only after it has loaded this
        // header with Acquire.
        self.ring.records[index_modulo::<RECORDS_PER_RING>(first)][0]
            .store(first_header, Ordering::Release);
        self.next_record_position = first + count as u64;
    }

    /// Fills a completion for each signaled message that the consumer has taken, and checks the
    /// completions as a verbs program does.
    ///
    /// # Errors
    /// When a completion belongs to another WR than the expected one.
    #[inline]
    pub(crate) fn poll_completions(&mut self) -> Result<usize> {
        let due = self.outstanding_signaled_wrs.start;
        let done = self.fill_wcs_and_count();
        for (number, wc) in (due..).zip(&self.wcs[..done]) {
            let wr_id = (number + 1) * SIGNAL_EVERY - 1;
            anyhow::ensure!(
                wc.status == IBV_WC_SUCCESS && wc.wr_id == wr_id,
                "the bare ring completed WR {} where {wr_id} was due",
                wc.wr_id
            );
        }
        Ok(done)
    }

    #[inline(never)]
    fn fill_wcs_and_count(&mut self) -> usize {
        let consumed = self.ring.consumer_position.load(Ordering::Acquire);
        let mut done = 0;
        for wc in &mut self.wcs {
            let number = self.outstanding_signaled_wrs.start;
            if number == self.outstanding_signaled_wrs.end || (number + 1) * SIGNAL_EVERY > consumed
            {
                break;
            }
            *wc = ibv_wc {
                wr_id: self.wr_ids[index_modulo::<MAX_SIGNALED_IN_WINDOW>(number)],
                status: IBV_WC_SUCCESS,
                opcode: IBV_WC_SEND,
                qp_num: PLACEHOLDER_QP_NUM,
                ..ibv_wc::zeroed()
            };
            self.outstanding_signaled_wrs.start += 1;
            done += 1;
        }
        done
    }
}

/// An entry of the receive queue: a RECV with one scatter/gather element.
#[derive(Clone, Copy)]
struct ReceiveEntry {
    wr_id: u64,
    sge: ibv_sge,
}

/// The receiving end of a ring, with its receive queue and its RECV buffers.
struct Consumer<'m, const WORDS: usize> {
    ring: Ring<'m, WORDS>,
    /// Position of the next record, which is also the number of RECVs taken.
    next_record_position: u64,
    /// Position that was published last.
    published_position: u64,
    /// Number of RECVs posted so far.
    recvs_posted: u64,
    recv_queue: [ReceiveEntry; WINDOW],
    recv_buffers: Box<[u64; WINDOW]>,
}

impl<const WORDS: usize> Consumer<'_, WORDS> {
    #[inline(never)]
    fn post_recv(&mut self, wrs: &[ibv_recv_wr], sges: &[ibv_sge]) {
        for (wr, sge) in wrs.iter().zip(sges) {
            self.recv_queue[index_modulo::<WINDOW>(self.recvs_posted)] = ReceiveEntry {
                wr_id: wr.wr_id,
                sge: *sge,
            };
            self.recvs_posted += 1;
        }
    }

    /// Takes records into `wcs` until records, entries of `wcs` or RECVs run out. Returns the
    /// number of records taken.
    #[inline(never)]
    fn poll(&mut self, wcs: &mut [ibv_wc]) -> usize {
        let mut taken = 0;
        for wc in wcs {
            let record =
                &self.ring.records[index_modulo::<RECORDS_PER_RING>(self.next_record_position)];
            let header = record[0].load(Ordering::Acquire);
            if header & 0xffff_ffff != lap_number(self.next_record_position)
                || self.next_record_position == self.recvs_posted
            {
                break;
            }
            let entry = &self.recv_queue[index_modulo::<WINDOW>(self.next_record_position)];
            let about = record[1].load(Ordering::Relaxed);
            let byte_len = low_32_bits(header >> 32) & 0xffff;
            if WORDS > HEADER_ONLY_RECORD_WORDS && byte_len <= entry.sge.length {
                let payload = record[2].load(Ordering::Relaxed);
                self.recv_buffers[word_index_of_addr::<WINDOW>(entry.sge.addr)] = payload;
            }
            let with_imm = header >> 48 & 0xff == u64::from(IBV_WR_SEND_WITH_IMM);
            *wc = ibv_wc {
                wr_id: entry.wr_id,
                status: IBV_WC_SUCCESS,
                opcode: IBV_WC_RECV,
                byte_len,
                qp_num: PLACEHOLDER_QP_NUM,
                src_qp: low_32_bits(about >> 32),
                wc_flags: if with_imm { IBV_WC_WITH_IMM } else { 0 },
                ..ibv_wc::zeroed()
            };
            wc.imm.imm_data = low_32_bits(about);
            self.next_record_position += 1;
            taken += 1;
        }
        let unpublished = self.next_record_position - self.published_position;
        if unpublished >= RECORDS_PER_PUBLISH || (taken == 0 && unpublished > 0) {
            // Release orders the loads above before this store: from here on, the producer may
            // overwrite these slots.
            self.ring
                .consumer_position
                .store(self.next_record_position, Ordering::Release);
            self.published_position = self.next_record_position;
        }
        taken
    }
}

/// The program at the receiving end of a ring, which checks each message.
pub(crate) struct Receiver<'m, const WORDS: usize> {
    consumer: Consumer<'m, WORDS>,
    wcs: [ibv_wc; MAX_POLLED_ENTRIES],
    /// RECVs of the window, which are posted again unchanged, one chunk at a time.
    recv_wrs: Vec<ibv_recv_wr>,
    sges: Vec<ibv_sge>,
    /// Messages whose RECVs are not posted again yet, and the index of the next chunk's first RECV.
    unposted_recvs: usize,
    next_recv_to_repost: usize,
    /// Number of the next expected message, which is also the number of checked messages.
    pub(crate) next_expected_message: u64,
    /// True once the last message has arrived.
    pub(crate) has_ended: bool,
    /// Description of the first wrong message.
    pub(crate) first_wrong_message: Option<String>,
}

impl<'m, const WORDS: usize> Receiver<'m, WORDS> {
    /// Creates a receiver and posts RECVs for a window.
    pub(crate) fn new(ring: Ring<'m, WORDS>) -> Self {
        let sge = |index: usize| ibv_sge {
            addr: 8 * index as u64,
            length: 8,
            lkey: 0,
        };
        let mut sges: Vec<_> = (0..WINDOW).map(sge).collect();
        let of = |(sge, index): (&mut ibv_sge, u64)| {
            let mut wr = ibv_recv_wr::zeroed();
            (wr.wr_id, wr.sg_list, wr.num_sge) = (8 * index, sge, 1);
            wr
        };
        let recvs: Vec<_> = sges.iter_mut().zip(0..).map(of).collect();
        let sge = ibv_sge {
            addr: 0,
            length: 0,
            lkey: 0,
        };
        let mut consumer = Consumer {
            ring,
            next_record_position: 0,
            published_position: 0,
            recvs_posted: 0,
            recv_queue: [ReceiveEntry { wr_id: 0, sge }; WINDOW],
            recv_buffers: Box::new([0; WINDOW]),
        };
        consumer.post_recv(&recvs, &sges);
        Receiver {
            consumer,
            wcs: [ibv_wc::zeroed(); MAX_POLLED_ENTRIES],
            recv_wrs: recvs,
            sges,
            unposted_recvs: 0,
            next_recv_to_repost: 0,
            next_expected_message: 0,
            has_ended: false,
            first_wrong_message: None,
        }
    }

    /// Takes and checks up to `count` messages. Returns the number of messages taken.
    #[inline]
    pub(crate) fn poll_and_check(&mut self, count: usize) -> usize {
        let taken = self
            .consumer
            .poll(&mut self.wcs[..count.min(MAX_POLLED_ENTRIES)]);
        for index in 0..taken {
            let wc = &self.wcs[index];
            let (is_due, is_last) = if WORDS == HEADER_ONLY_RECORD_WORDS {
                // SAFETY: both members of the union are plain 32-bit integers.
                let imm = u32::from_be(unsafe { wc.imm.imm_data });
                let stamp = make_32_bit_stamp(self.next_expected_message, false);
                (
                    imm & !LAST_MARK_32_BIT == stamp,
                    imm & LAST_MARK_32_BIT != 0,
                )
            } else {
                let stamp = self.consumer.recv_buffers[word_index_of_addr::<WINDOW>(wc.wr_id)];
                (
                    stamp & !LAST_MARK_64_BIT == self.next_expected_message,
                    stamp & LAST_MARK_64_BIT != 0,
                )
            };
            let byte_len = if WORDS == HEADER_ONLY_RECORD_WORDS {
                0
            } else {
                8
            };
            if is_due & (wc.status == IBV_WC_SUCCESS) & (wc.byte_len == byte_len) {
                self.next_expected_message += 1;
                self.has_ended |= is_last;
            } else {
                self.record_wrong_message(index);
            }
        }
        self.unposted_recvs += taken;
        taken
    }

    #[cold]
    fn record_wrong_message(&mut self, index: usize) {
        let (due, byte_len) = (self.next_expected_message, self.wcs[index].byte_len);
        self.first_wrong_message.get_or_insert_with(|| {
            format!("another message of {byte_len} bytes where number {due} was due")
        });
        self.has_ended = true;
    }

    /// Posts the RECVs of whole chunks again. Returns true if at least one chunk was complete.
    #[inline]
    pub(crate) fn repost_recvs_if_chunk_is_full(&mut self) -> bool {
        let has_chunk = self.unposted_recvs >= RECVS_PER_REPOST;
        while self.unposted_recvs >= RECVS_PER_REPOST {
            let chunk = self.next_recv_to_repost..self.next_recv_to_repost + RECVS_PER_REPOST;
            self.consumer
                .post_recv(&self.recv_wrs[chunk.clone()], &self.sges[chunk]);
            self.next_recv_to_repost = (self.next_recv_to_repost + RECVS_PER_REPOST) % WINDOW;
            self.unposted_recvs -= RECVS_PER_REPOST;
        }
        has_chunk
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(record_words: usize) -> Vec<AtomicU64> {
        (0..ring_words(record_words))
            .map(|_| AtomicU64::new(0))
            .collect()
    }

    /// Sends several laps of messages in lists of `list`, and checks each message.
    fn laps<const WORDS: usize>(list: usize) {
        let words = words(WORDS);
        let ring = Ring::<WORDS>::new(&words).unwrap();
        let (mut producer, mut receiver) = (Producer::new(ring), Receiver::new(ring));
        let mut wrs = SendList::new();
        let mut sent = 0;
        while sent < 5 * RECORDS_PER_RING as u64 {
            while producer.has_room(list) {
                wrs.fill_wrs(sent, list, false);
                producer.post(&wrs, list);
                sent += list as u64;
            }
            assert!(sent - receiver.next_expected_message <= WINDOW as u64);
            while receiver.poll_and_check(MAX_POLLED_ENTRIES) > 0 {
                receiver.repost_recvs_if_chunk_is_full();
            }
            assert_eq!(
                (
                    receiver.next_expected_message,
                    receiver.first_wrong_message.clone()
                ),
                (sent, None)
            );
            assert!(producer.poll_completions().unwrap() > 0);
        }
        wrs.fill_wrs(sent, 1, true);
        producer.post(&wrs, 1);
        assert_eq!(
            (
                receiver.poll_and_check(MAX_POLLED_ENTRIES),
                receiver.has_ended
            ),
            (1, true)
        );
        assert_eq!(receiver.poll_and_check(MAX_POLLED_ENTRIES), 0);
    }

    #[test]
    fn messages_arrive_in_order_lap_after_lap() {
        for list in [1, 3, 16] {
            laps::<HEADER_ONLY_RECORD_WORDS>(list);
            laps::<EIGHT_BYTE_RECORD_WORDS>(list);
        }
    }

    #[test]
    fn nothing_is_taken_without_a_recv() {
        let words = words(EIGHT_BYTE_RECORD_WORDS);
        let ring = Ring::<EIGHT_BYTE_RECORD_WORDS>::new(&words).unwrap();
        let (mut producer, mut receiver) = (Producer::new(ring), Receiver::new(ring));
        let mut wrs = SendList::new();
        for first in (0..2 * WINDOW as u64).step_by(16) {
            wrs.fill_wrs(first, 16, false);
            producer.post(&wrs, 16);
        }
        while receiver.poll_and_check(MAX_POLLED_ENTRIES) > 0 {}
        assert_eq!(receiver.next_expected_message, WINDOW as u64);
        receiver.repost_recvs_if_chunk_is_full();
        while receiver.poll_and_check(MAX_POLLED_ENTRIES) > 0 {}
        assert_eq!(receiver.next_expected_message, 2 * WINDOW as u64);
    }

    #[test]
    fn a_wrong_message_is_noticed() {
        let words = words(EIGHT_BYTE_RECORD_WORDS);
        let ring = Ring::<EIGHT_BYTE_RECORD_WORDS>::new(&words).unwrap();
        let (mut producer, mut receiver) = (Producer::new(ring), Receiver::new(ring));
        let mut wrs = SendList::new();
        wrs.fill_wrs(0, 2, false);
        producer.post(&wrs, 2);
        words[CONSUMER_POSITION_WORDS + EIGHT_BYTE_RECORD_WORDS + 2].store(7, Ordering::Relaxed);
        receiver.poll_and_check(MAX_POLLED_ENTRIES);
        assert_eq!(receiver.next_expected_message, 1);
        assert!(receiver.has_ended && receiver.first_wrong_message.is_some());
        assert!(Ring::<EIGHT_BYTE_RECORD_WORDS>::new(&words[1..]).is_err());
    }
}
