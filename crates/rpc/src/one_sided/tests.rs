use std::time::Duration;

use verbs::{Provider, RemoteMemory};

use super::*;

/// Adds 1 to words of the server. The word before each is its lock. A request takes two doorbells.
struct Adder {
    queue: OneSidedQueue,
    memory: RemoteMemory,
    commits: Vec<bool>,
}

/// Bytes of a word at the server: lock at 0, value at 8.
const WORD_BYTES: u64 = 16;
const MINE: u64 = 77;

impl Adder {
    fn at(&self, word: u64, offset: u64) -> Option<RemoteMemory> {
        self.memory.starting_at(word * WORD_BYTES + offset)
    }

    fn begin(&mut self, word: u64, slot: u32) {
        self.commits[slot as usize] = false;
        self.queue.flush_unless_postlist_has_room(2);
        let locked =
            self.queue
                .prepare_compare_and_swap((slot, 0), self.at(word, 0), (0, MINE), false);
        self.queue.record_error(locked);
        let read = self.queue.prepare_read((slot, 8), 8, self.at(word, 8));
        self.queue.record_error(read);
    }
}

impl RequestSteps for Adder {
    type Pending = u64;
    type Stats = u64;
    type FinishedResult<'b> = &'b [u8];

    fn queue(&mut self) -> &mut OneSidedQueue {
        &mut self.queue
    }

    fn handle_completion<'b>(
        &mut self,
        word: &u64,
        slot: u32,
        stats: &mut u64,
        bytes: &'b mut [u8],
    ) -> Result<Option<&'b [u8]>, RpcError> {
        *stats += 1;
        if self.commits[slot as usize] {
            assert_eq!(
                self.queue.buffer_word(slot, 0)?,
                MINE,
                "unlocked by somebody else"
            );
            self.queue.read_buffer(slot, 8, &mut bytes[..8])?;
            return Ok(Some(&bytes[..8]));
        }
        if self.queue.buffer_word(slot, 0)? != 0 {
            self.begin(*word, slot);
            return Ok(None);
        }
        let next = self.queue.buffer_word(slot, 8)? + 1;
        self.queue.flush_unless_postlist_has_room(2);
        self.queue.write_buffer(slot, 8, &next.to_ne_bytes())?;
        self.queue.prepare_write((slot, 8), 8, self.at(*word, 8))?;
        let unlocked =
            self.queue
                .prepare_compare_and_swap((slot, 0), self.at(*word, 0), (MINE, 0), true);
        self.commits[slot as usize] = true;
        unlocked.map(|()| None)
    }
}

/// Creates a client over a server's memory, both in this process. Returns the client, the memory,
/// and the server's queue pair, which must stay alive.
fn client(window: usize, words: u64) -> (Adder, MemoryRegion, QueuePair<Rc>) {
    let device = Provider::softnic().device(None).expect("a device");
    let context = device.open().expect("opens");
    let pd = context.alloc_pd().expect("a domain");
    let cq = context.create_cq(1).expect("a queue");
    let port = PortAndGidIndex {
        port_num: 1,
        gid_index: 0,
    };
    let prepared = PreparedOneSidedQueue::new(&pd, port, window, 4, 2).expect("a queue");
    let access =
        Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let responder = pd
        .qp_builder::<Rc>(&cq, &cq)
        .port_num(port.port_num)
        .gid_index(port.gid_index)
        .access(access)
        .build();
    let responder = responder.expect("a queue pair");
    let peer = responder.endpoint();
    let responder = responder.connect(&prepared.endpoint()).expect("connected");
    let bytes = usize::try_from(words * WORD_BYTES).expect("small");
    let memory = pd.alloc(bytes, access).expect("memory");
    let adder = Adder {
        commits: vec![false; prepared.window()],
        queue: prepared.connect(&peer, 64).expect("connected"),
        memory: memory.remote(),
    };
    (adder, memory, responder)
}

#[test]
fn steps_of_all_slots_are_made_in_order_with_few_doorbells() {
    let (window, words, rounds) = (8u32, 4u64, 50u64);
    let (mut adder, memory, _responder) = client(window as usize, words);
    // Several slots use the same word.
    let mut pending: Vec<u64> = (0..u64::from(window)).map(|slot| slot % words).collect();
    let mut left = vec![rounds; window as usize];
    let (mut stats, mut over) = (0, 0);
    for slot in 0..window {
        adder.begin(pending[slot as usize], slot);
    }
    let all = rounds * u64::from(window);
    let ended = verbs::poll_until(Duration::from_secs(60), || {
        let mut again = Vec::new();
        let each = |_: &mut u64, slot: u32, seen: &[u8]| {
            assert!(seen.iter().any(|b| *b != 0));
            over += 1;
            left[slot as usize] -= 1;
            if left[slot as usize] > 0 {
                again.push(slot);
            }
        };
        adder
            .post_and_poll(&mut pending, &mut stats, each)
            .expect("works");
        for slot in again {
            adder.begin(pending[slot as usize], slot);
        }
        (over == all).then_some(())
    });
    assert_eq!(ended, Some(()));
    for word in 0..usize::try_from(words).expect("small") {
        let of = |at| memory.read_u64(16 * word + at).expect("inside");
        assert_eq!([of(0), of(8)], [0, all / words]);
    }
    // At least two work requests share a doorbell.
    assert!(
        adder.queue.posted_doorbells() <= stats,
        "{}",
        adder.queue.posted_doorbells()
    );
    assert_eq!(adder.queue.prepared_wr_count(), 0);
}

#[test]
fn places_outside_are_refused_and_told_at_the_next_check() {
    let (mut adder, _memory, _responder) = client(1, 1);
    adder.begin(5, 0);
    let (mut pending, mut stats) = ([5], 0);
    let failed = adder.post_and_poll(&mut pending, &mut stats, |_, _, _| {});
    assert!(matches!(failed, Err(RpcError::Config(_))), "{failed:?}");
    let long = adder.queue.prepare_read((0, 8), 64, adder.at(0, 0));
    assert!(matches!(long, Err(RpcError::Range(_))), "{long:?}");
}

#[test]
fn a_part_of_what_is_prepared_is_posted_and_the_rest_is_forgotten() {
    let (mut adder, memory, _responder) = client(1, 1);
    adder
        .queue
        .write_buffer(0, 8, &9u64.to_ne_bytes())
        .expect("room");
    for offset in [8, 0] {
        let to = adder.at(0, offset);
        adder.queue.prepare_write((0, 8), 8, to).expect("inside");
    }
    adder.queue.post_first_and_drop_rest(1).expect("posted");
    assert_eq!(adder.queue.prepared_wr_count(), 0);
    let value = memory.wait_u64(8, Duration::from_secs(20), |v| v == 9);
    assert_eq!(value.expect("inside"), Some(9));
    // A later READ, which is ordered after the WRITEs, shows that nothing else was posted.
    let read = adder.queue.prepare_read((0, 16), 8, adder.at(0, 0));
    read.and_then(|()| adder.queue.flush()).expect("posted");
    let mut buffer = WcBuffer::<1>::new();
    let came = verbs::poll_until(Duration::from_secs(20), || {
        let mut wcs = adder.queue.cq().poll(&mut buffer).expect("whole");
        wcs.next().map(|wc| wc.expect("it was READ").wr_id())
    });
    assert_eq!(
        (came, adder.queue.buffer_word(0, 16).expect("inside")),
        (Some(0), 0)
    );
}
