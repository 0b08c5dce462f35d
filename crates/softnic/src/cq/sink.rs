//! The destination of polled completions.

use std::mem::MaybeUninit;

use verbs_abi::{IBV_WC_RECV, IBV_WC_SUCCESS, ibv_wc};

/// The destination of polled completions: an array of the caller, filled from the front.
pub(crate) struct WcSink<'a> {
    out: &'a mut [MaybeUninit<ibv_wc>],
    len: usize,
    /// True if a completion was solicited or in error.
    pub(crate) has_solicited_or_error: bool,
    /// True if the completions go to the buffer of the queue, from which the program takes them later.
    pub(crate) is_for_buffer: bool,
}

impl<'a> WcSink<'a> {
    /// Returns a sink for completions that the program gets at once.
    pub(crate) fn new(out: &'a mut [MaybeUninit<ibv_wc>]) -> Self {
        Self {
            out,
            len: 0,
            has_solicited_or_error: false,
            is_for_buffer: false,
        }
    }

    /// Returns a sink for completions that go to the buffer of the queue.
    pub(crate) fn for_buffer(out: &'a mut [MaybeUninit<ibv_wc>]) -> Self {
        Self {
            is_for_buffer: true,
            ..Self::new(out)
        }
    }

    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.len == self.out.len()
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the completions behind the first `before`.
    pub(super) fn added_since(&self, before: usize) -> &[ibv_wc] {
        let made = self.out.get(before..self.len).unwrap_or_default();
        // SAFETY: the first `len` places have been written (`push`, `push_successful_wc_as_words`).
        unsafe { std::slice::from_raw_parts(made.as_ptr().cast(), made.len()) }
    }

    /// Returns the number of completions that can still be added.
    #[inline(always)]
    pub(crate) fn free_entries(&self) -> usize {
        self.out.len() - self.len
    }

    /// Adds a completion; there is room.
    #[inline]
    pub(crate) fn push(&mut self, wc: ibv_wc) {
        debug_assert!(!self.is_full());
        if wc.status != IBV_WC_SUCCESS {
            self.has_solicited_or_error = true;
        }
        if let Some(place) = self.out.get_mut(self.len) {
            place.write(wc);
            self.len += 1;
        }
    }

    /// Adds the completion of a work request that succeeded; there is room.
    #[inline(always)]
    pub(crate) fn push_sent(&mut self, wr_id: u64, opcode: u32, byte_len: u32, qp_num: u32) {
        self.push_successful_wc_as_words([
            wr_id,
            shift_to_upper_half(opcode),
            shift_to_upper_half(byte_len),
            shift_to_upper_half(qp_num),
            0,
            0,
        ]);
    }

    /// Adds the completion of a receive WR that a SEND has used; there is room.
    #[inline(always)]
    pub(crate) fn push_received(&mut self, wc: &ReceivedSend) {
        self.push_successful_wc_as_words([
            wc.wr_id,
            shift_to_upper_half(IBV_WC_RECV),
            shift_to_upper_half(wc.byte_len),
            shift_to_upper_half(wc.qp_num) | u64::from(wc.imm),
            shift_to_upper_half(wc.wc_flags) | u64::from(wc.src_qp),
            wc.last_wc_word,
        ]);
    }

    /// Adds a successful completion as words. Each store here waits behind WRITEs that wait for their cache line, and
    /// the compiler would make one store of each field.
    #[inline(always)]
    fn push_successful_wc_as_words(&mut self, words: [u64; 6]) {
        const {
            assert!(cfg!(target_endian = "little") && IBV_WC_SUCCESS == 0);
            assert!(size_of::<ibv_wc>() == 48 && std::mem::offset_of!(ibv_wc, opcode) == 12);
            assert!(std::mem::offset_of!(ibv_wc, byte_len) == 20);
            assert!(std::mem::offset_of!(ibv_wc, imm) == 24);
            assert!(std::mem::offset_of!(ibv_wc, qp_num) == 28);
            assert!(std::mem::offset_of!(ibv_wc, src_qp) == 32);
            assert!(std::mem::offset_of!(ibv_wc, wc_flags) == 36);
            assert!(std::mem::offset_of!(ibv_wc, slid) == 42);
            assert!(std::mem::offset_of!(ibv_wc, sl) == 44);
            assert!(std::mem::offset_of!(ibv_wc, dlid_path_bits) == 45);
        }
        debug_assert!(!self.is_full());
        if let Some(place) = self.out.get_mut(self.len) {
            // SAFETY: both types are equally large and consist of integers, for which any bytes are a value.
            place.write(unsafe { std::mem::transmute::<[u64; 6], ibv_wc>(words) });
            self.len += 1;
        }
    }
}

/// Returns a field in the upper half of a word.
#[inline(always)]
fn shift_to_upper_half(field: u32) -> u64 {
    u64::from(field) << 32
}

/// The values in the completion of a received SEND.
pub(crate) struct ReceivedSend {
    pub(crate) wr_id: u64,
    pub(crate) byte_len: u32,
    /// The immediate, as stored in the work request.
    pub(crate) imm: u32,
    pub(crate) qp_num: u32,
    pub(crate) src_qp: u32,
    pub(crate) wc_flags: u32,
    /// The last word of the completion: partition index, LID of the sender, service level and path bits.
    pub(crate) last_wc_word: u64,
}
