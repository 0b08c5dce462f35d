//! Messages: work requests in flight.

use verbs_abi as abi;

use crate::memory::Payload;
use crate::reads::CacheSlot;

/// A work request between its post and its completion. It has the size of a cache line, since many are in flight.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(crate) struct Message {
    /// Queue pair of the requester; `dest`: that of the responder, valid once the message has left.
    pub(crate) qp: u32,
    pub(crate) dest: u32,
    /// Machine of the requester.
    pub(crate) home: u32,
    /// Immediate, big-endian as in the work request.
    pub(crate) imm: u32,
    /// Q_Key of a datagram, or R_Key; `remote_addr`: the remote address.
    pub(crate) key: u32,
    pub(crate) remote_addr: u64,
    pub(crate) wr_id: u64,
    /// Payload; for a READ or atomic, the payload of the response.
    pub(crate) payload: Payload,
    pub(crate) shape: u16,
    /// Status of a reliable request.
    pub(crate) status: u8,
    pub(crate) signaled: bool,
    /// Index of the additional fields of a READ or atomic in [`Messages`].
    pub(crate) answer: u32,
    /// Number of work requests in flight that this message represents: programs post lists of equal datagrams without
    /// payload. The other fields do not change while it is more than one.
    pub(crate) count: u32,
}

const _: () = assert!(size_of::<Message>() == 64);

/// Converts a code of the ABI, all of which fit into a byte.
#[expect(clippy::cast_possible_truncation, reason = "asserted")]
pub(crate) const fn code(code: u32) -> u8 {
    assert!(code <= 0xff);
    code as u8
}

/// `IBV_WC_SUCCESS` as stored in a message.
pub(crate) const SUCCESS: u8 = code(abi::IBV_WC_SUCCESS);

/// The additional fields of READs and atomics.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Answer {
    /// Operands of an atomic.
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
    /// Local address for the response.
    pub(crate) local_addr: u64,
    pub(crate) local_lkey: u32,
    /// Position of a READ among the READs of its queue pair, for the WQE cache.
    pub(crate) cache_slot: Option<CacheSlot>,
}

/// The messages in flight, by index; indexes are reused.
#[derive(Debug, Default)]
pub(crate) struct Messages {
    all: Vec<Message>,
    free: Vec<u32>,
    answers: Vec<Answer>,
    free_answers: Vec<u32>,
}

/// Index of the additional fields for messages that have none.
pub(crate) const NO_ANSWER: u32 = u32::MAX;

impl Messages {
    /// Stores the additional fields of a READ or atomic; returns their index.
    pub(crate) fn put_answer(&mut self, answer: Answer) -> u32 {
        if let Some(free) = self.free_answers.pop() {
            self.answers[free as usize] = answer;
            return free;
        }
        self.answers.push(answer);
        number(self.answers.len())
    }

    #[inline(always)]
    pub(crate) fn put(&mut self, message: Message) -> u32 {
        if let Some(free) = self.free.pop()
            && let Some(place) = self.all.get_mut(free as usize)
        {
            *place = message;
            return free;
        }
        self.all.push(message);
        number(self.all.len())
    }

    /// Reduces the number of work requests that a message represents, and frees the message at 0.
    #[inline(always)]
    pub(crate) fn free_some(&mut self, message: u32, count: u32) {
        let this = &mut self.all[message as usize];
        this.count -= count;
        if this.count > 0 {
            return;
        }
        let answer = this.answer;
        if answer != NO_ANSWER {
            self.free_answers.push(answer);
        }
        self.free.push(message);
    }

    #[inline(always)]
    pub(crate) fn free(&mut self, message: u32) {
        self.free_some(message, 1);
    }

    /// Returns the additional fields of a READ or atomic.
    pub(crate) fn answer(&mut self, message: u32) -> Option<&mut Answer> {
        let answer = self.all[message as usize].answer;
        self.answers.get_mut(answer as usize)
    }
}

/// Returns the index of the last of `len` items.
fn number(len: usize) -> u32 {
    u32::try_from(len - 1).expect("fewer messages under way than 2^32")
}

impl std::ops::Index<u32> for Messages {
    type Output = Message;

    #[inline]
    fn index(&self, message: u32) -> &Message {
        &self.all[message as usize]
    }
}

impl std::ops::IndexMut<u32> for Messages {
    #[inline]
    fn index_mut(&mut self, message: u32) -> &mut Message {
        &mut self.all[message as usize]
    }
}
