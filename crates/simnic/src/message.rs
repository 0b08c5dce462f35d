//! Work requests on their way.

use verbs_abi as abi;

use crate::memory::Payload;
use crate::reads::CacheSlot;

/// A work request on its way, from its post to its end: a cache line, since many are under way.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(crate) struct Message {
    /// The requester, and the responder once it has left.
    pub(crate) qp: u32,
    pub(crate) dest: u32,
    /// The requester's machine.
    pub(crate) home: u32,
    /// Big-endian, as in the WR.
    pub(crate) imm: u32,
    /// The Q_Key of a datagram, or the key of remote memory, and its address.
    pub(crate) key: u32,
    pub(crate) remote_addr: u64,
    pub(crate) wr_id: u64,
    /// What it carries; of a READ or atomic, what it brings back.
    pub(crate) payload: Payload,
    pub(crate) shape: u16,
    /// What becomes of a reliable request.
    pub(crate) status: u8,
    pub(crate) signaled: bool,
    /// The place of what only READs and atomics have, among [`Messages`]' own.
    pub(crate) answer: u32,
    /// WRs that it stands for and that are under way: programs post lists of datagrams without payload that are all
    /// the same. Nothing changes in it while it stands for several.
    pub(crate) count: u32,
}

const _: () = assert!(size_of::<Message>() == 64);

/// A code of the ABI, of which all fit a byte.
#[expect(clippy::cast_possible_truncation, reason = "asserted")]
pub(crate) const fn code(code: u32) -> u8 {
    assert!(code <= 0xff);
    code as u8
}

/// The status of what has not failed.
pub(crate) const SUCCESS: u8 = code(abi::IBV_WC_SUCCESS);

/// What only READs and atomics have.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Answer {
    /// Operands of atomics.
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
    /// Where the answer goes.
    pub(crate) local_addr: u64,
    pub(crate) local_lkey: u32,
    /// Its place among the READs of its queue pair, for the WQE cache.
    pub(crate) cache_slot: Option<CacheSlot>,
}

/// Messages by number; numbers are used again.
#[derive(Debug, Default)]
pub(crate) struct Messages {
    all: Vec<Message>,
    free: Vec<u32>,
    answers: Vec<Answer>,
    free_answers: Vec<u32>,
}

/// The place of [`Answer`]s that are none.
pub(crate) const NO_ANSWER: u32 = u32::MAX;

impl Messages {
    /// What a READ or atomic will have besides.
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

    /// So many of the WRs that a message stands for are not under way any more.
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

    /// What a READ or atomic has besides.
    pub(crate) fn answer(&mut self, message: u32) -> Option<&mut Answer> {
        let answer = self.all[message as usize].answer;
        self.answers.get_mut(answer as usize)
    }
}

/// The number of what is the last of so many.
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
