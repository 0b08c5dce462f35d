//! Tests of the ring against a `VecDeque`, with garbage, and (under `loom`) in every interleaving.

use super::*;

struct Owned {
    words: Vec<AtomicU64>,
    head: Box<AtomicU64>,
}

impl Owned {
    fn new(slots: usize) -> Self {
        Self {
            words: (0..2 * slots).map(|_| AtomicU64::new(0)).collect(),
            head: Box::new(AtomicU64::new(0)),
        }
    }

    fn memory(&self) -> RingMemory {
        // SAFETY: the vector has two words per slot and outlives the producer and consumer of each test.
        unsafe {
            RingMemory::new(
                self.words.as_ptr(),
                &*self.head,
                self.words.len() as u64 / 2,
            )
        }
    }
}

impl Producer {
    fn push(&mut self, header: RecordHeader, payload: usize, fill: impl FnOnce(Payload<'_>)) {
        let place = self.place_for_payload(payload);
        if payload != 0 {
            fill(place);
        }
        self.add_to_postlist(header, payload);
    }
}

fn header(len: u32) -> RecordHeader {
    RecordHeader {
        kind: 1,
        imm: 7,
        len_or_value: len,
        ..RecordHeader::default()
    }
}

#[cfg(loom)]
mod loom_tests {
    use super::*;
    use loom::thread;
    use std::sync::Arc;

    /// Sends two postlists of two records each; the consumer sees each postlist whole, in order and with its
    /// payload.
    #[test]
    fn loom_postlists_arrive_whole_and_in_order() {
        loom::model(|| {
            let owned = Arc::new(Owned::new(16));
            let memory = owned.memory();
            let sender = {
                let owned = Arc::clone(&owned);
                thread::spawn(move || {
                    let mut p = Producer::new(owned.memory());
                    for list in 0..2u64 {
                        for i in 0..2u64 {
                            let n = 2 * list + i;
                            assert_eq!(p.has_room(8), Ok(true));
                            p.push(header(n as u32), 8, |d| d.store_word(0, 100 + n));
                        }
                        p.publish_postlist();
                    }
                })
            };
            let mut c = Consumer::new(memory);
            let mut next = 0;
            while next < 4 {
                match c.peek().unwrap() {
                    None => thread::yield_now(),
                    Some(r) => {
                        assert_eq!(u64::from(r.header.len_or_value), next);
                        assert_eq!(r.payload.load_word(0), 100 + next);
                        let n = r.slot_count();
                        c.advance(n);
                        next += 1;
                    }
                }
            }
            c.release_slots();
            sender.join().unwrap();
        });
    }

    /// Fills the ring: the producer may overwrite only slots that the consumer has freed.
    #[test]
    fn loom_a_full_ring_waits_for_the_consumer() {
        loom::model(|| {
            let owned = Arc::new(Owned::new(16));
            let memory = owned.memory();
            let sender = {
                let owned = Arc::clone(&owned);
                thread::spawn(move || {
                    let mut p = Producer::new(owned.memory());
                    // Each record takes 7 slots: two records fit, and the third needs the slots of the first.
                    for n in 0..3u64 {
                        while p.has_room(96) != Ok(true) {
                            thread::yield_now();
                        }
                        p.push(header(n as u32), 96, |d| d.store_word(11, n));
                        p.publish_postlist();
                    }
                })
            };
            let mut c = Consumer::new(memory);
            let mut next = 0;
            while next < 3 {
                match c.peek().unwrap() {
                    None => thread::yield_now(),
                    Some(r) => {
                        assert_eq!(r.payload.load_word(11), next);
                        let n = r.slot_count();
                        c.advance(n);
                        c.release_slots();
                        next += 1;
                    }
                }
            }
            sender.join().unwrap();
        });
    }
}

#[cfg(not(loom))]
mod model_tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[derive(Debug, Clone)]
    enum Op {
        Push(usize),
        /// Pushes records with these payloads through a [`ProducerRun`], and abandons another one. The flag tells whether the
        /// consumer is far.
        PushRun(Vec<usize>, Option<usize>, bool),
        /// Pushes a record that is published at once.
        PushOne(usize),
        /// Writes payload for a record that is then abandoned.
        GiveUp(usize),
        Publish,
        Pop,
        /// Pops up to this number of records through a run of [`ConsumerRun`].
        PopRun(usize),
        Release,
    }

    fn fill(place: &Payload<'_>, record: u32) {
        for i in 0..place.len() / 8 {
            place.store_word(i, word(record, i));
        }
    }

    /// Pushes records with payloads of these lengths and with numbers from `next` on, and writes the payload of a record that is
    /// then abandoned. Returns the number of records that had room.
    fn push_run<W: RecordWriter>(
        mut run: ProducerRun<'_, W>,
        lens: &[usize],
        abandoned: Option<usize>,
        next: u32,
    ) -> usize {
        let mut pushed = 0;
        for (&len, record) in lens.iter().zip(next..) {
            let Some(place) = run.place_for_payload_if_room(len) else {
                break;
            };
            fill(&place, record);
            run.add_to_postlist(
                RecordHeader {
                    extra_value: record,
                    ..header(len as u32)
                },
                len,
            );
            pushed += 1;
        }
        if let Some(place) = abandoned.and_then(|len| run.place_for_payload_if_room(len)) {
            fill(&place, next);
        }
        run.store_back();
        pushed
    }

    /// Returns the payload lengths of a run; half of the runs have equal records.
    fn payloads() -> impl Strategy<Value = Vec<usize>> {
        prop_oneof![
            (payload(), 1usize..50).prop_map(|(len, n)| vec![len; n]),
            prop::collection::vec(payload(), 1..20),
        ]
    }

    /// Returns payload lengths; half of them are equal, so that laps without terminators occur.
    fn payload() -> impl Strategy<Value = usize> {
        prop_oneof![Just(8), (0usize..40).prop_map(|n| n * 8)]
    }

    /// Returns a payload word that looks like a header of one lap or the other.
    fn word(record: u32, i: usize) -> u64 {
        let slots = u64::from(record % 3 + 1);
        u64::from(record) << 32 | slots << 16 | (i as u64) << 8 | u64::from(record & 1) << 7 | 1
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            4 => payload().prop_map(Op::Push),
            3 => (payloads(), prop::option::weighted(0.2, payload()), any::<bool>())
                .prop_map(|(lens, abandoned, far)| Op::PushRun(lens, abandoned, far)),
            4 => payload().prop_map(Op::PushOne),
            1 => payload().prop_map(Op::GiveUp),
            2 => Just(Op::Publish),
            4 => Just(Op::Pop),
            2 => (1usize..8).prop_map(Op::PopRun),
            1 => Just(Op::Release),
        ]
    }

    proptest! {
        /// After any sequence of operations the ring behaves as a queue, has the room that it promised, and
        /// shows nothing unpublished.
        #[test]
        fn behaves_like_a_vecdeque(ops in prop::collection::vec(op(), 1..400)) {
            let owned = Owned::new(64);
            let (mut p, mut c) = (Producer::new(owned.memory()), Consumer::new(owned.memory()));
            let mut staged: VecDeque<(u32, usize)> = VecDeque::new();
            let mut visible: VecDeque<(u32, usize)> = VecDeque::new();
            let mut next = 0u32;
            for op in ops {
                match op {
                    Op::Push(len) => {
                        if p.has_room(len).unwrap() {
                            p.push(RecordHeader { extra_value: next, ..header(len as u32) }, len, |d| fill(&d, next));
                            staged.push_back((next, len));
                            next += 1;
                        }
                    }
                    Op::PushRun(lens, abandoned, far) => {
                        p.set_consumer_far(far);
                        let pushed = if p.is_consumer_far() {
                            push_run(p.begin_run::<WriteTogether>(), &lens, abandoned, next)
                        } else {
                            push_run(p.begin_run::<WriteInPlace>(), &lens, abandoned, next)
                        };
                        staged.extend((next..).zip(lens.into_iter().take(pushed)));
                        next += pushed as u32;
                    }
                    Op::PushOne(len) => {
                        if p.has_room(len).unwrap() {
                            fill(&p.place_for_payload(len), next);
                            p.add_and_publish(RecordHeader { extra_value: next, ..header(len as u32) }, len);
                            staged.push_back((next, len));
                            visible.append(&mut staged);
                            next += 1;
                        }
                    }
                    Op::GiveUp(len) => {
                        if p.has_room(len).unwrap() {
                            fill(&p.place_for_payload(len), next);
                        }
                    }
                    Op::PopRun(n) => {
                        let mut records = c.begin_run();
                        for _ in 0..n {
                            let Some(r) = records.peek_if_len_matches_slots().filter(|r| r.header.kind == 1) else { break };
                            let (n, len) = visible.pop_front().expect("a record that was not published");
                            prop_assert_eq!((r.header.extra_value, r.header.len_or_value as usize), (n, len));
                            prop_assert_eq!(r.payload.len(), len);
                            for i in 0..len / 8 {
                                prop_assert_eq!(r.payload.load_word(i), word(n, i));
                            }
                            let slots = r.slot_count();
                            records.advance(slots);
                        }
                        let pos = records.read_position();
                        c.advance_to(pos);
                    }
                    Op::Publish => { p.publish_postlist(); visible.append(&mut staged); }
                    Op::Pop => {
                        let expected = visible.pop_front();
                        match c.peek().unwrap() {
                            None => prop_assert_eq!(expected, None),
                            Some(r) => {
                                let (n, len) = expected.expect("a record that was not published");
                                prop_assert_eq!(r.header.extra_value, n);
                                prop_assert_eq!(r.header.len_or_value as usize, len);
                                for i in 0..len / 8 {
                                    prop_assert_eq!(r.payload.load_word(i), word(n, i));
                                }
                                let s = r.slot_count();
                                c.advance(s);
                            }
                        }
                    }
                    Op::Release => c.release_slots(),
                }
            }
        }

        /// A consumer survives any content of the ring.
        #[test]
        fn garbage_is_reported_not_followed(words in prop::collection::vec(any::<u64>(), 128)) {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            fuzz(&bytes);
        }

        /// A producer refuses a value of `head` that the consumer of this ring cannot have reached.
        #[test]
        fn a_wild_head_is_refused(head in 2u64..) {
            let owned = Owned::new(64);
            let mut p = Producer::new(owned.memory());
            p.push(header(0), 0, |_| ());
            p.publish_postlist();
            owned.head.store(head, Ordering::Relaxed);
            prop_assert_eq!(p.refresh_consumer_head(), Err(InvalidRingValue));
        }
    }

    /// A wrap record that fills the whole ring is refused. No correct producer writes such a
    /// record, and a consumer that accepted it would loop forever.
    #[test]
    fn a_wrap_round_the_whole_ring_is_refused() {
        let owned = Owned::new(16);
        let wrap = RecordHeader {
            kind: KIND_WRAP,
            ..RecordHeader::default()
        };
        owned.words[0].store(wrap.to_words(16).0, Ordering::Relaxed);
        let refused = Consumer::new(owned.memory()).peek().map(|_| ());
        assert_eq!(refused, Err(InvalidRingValue));
    }

    #[test]
    fn a_full_ring_refuses_and_recovers() {
        let owned = Owned::new(16);
        let (mut p, mut c) = (Producer::new(owned.memory()), Consumer::new(owned.memory()));
        let mut pushed = 0;
        while p.has_room(0).unwrap() {
            p.push(header(0), 0, |_| ());
            p.publish_postlist();
            pushed += 1;
        }
        assert_eq!(pushed, 15, "one slot is the terminator");
        let r = c.peek().unwrap().unwrap();
        let n = r.slot_count();
        c.advance(n);
        assert!(!p.has_room(0).unwrap(), "not given back yet");
        c.release_slots();
        assert!(p.has_room(0).unwrap());
    }

    /// Number of records in the tests of two threads.
    const RECORDS: u32 = 200_000;

    /// Returns the payload length of a record in the tests of two threads.
    fn payload_len(record: u32) -> usize {
        (record as usize % 4) * 16
    }

    #[test]
    fn two_threads_keep_order() {
        two_threads(|p, n| {
            let len = payload_len(n);
            if !p.has_room(len).unwrap() {
                return n;
            }
            p.push(header(n), len, |d| d.store_word(0, u64::from(n)));
            n + 1
        });
    }

    #[test]
    fn two_threads_keep_order_in_runs_to_a_far_core() {
        two_threads(|p, n| {
            let mut run = p.begin_run::<WriteTogether>();
            let mut next = n;
            while next < RECORDS && next < n + 20 {
                let len = payload_len(next);
                let Some(place) = run.place_for_payload_if_room(len) else {
                    break;
                };
                if len != 0 {
                    place.store_word(0, u64::from(next));
                }
                run.add_to_postlist(header(next), len);
                next += 1;
            }
            run.store_back();
            next
        });
    }

    /// Sends [`RECORDS`] records from one thread to another. `push` adds records from a number on, and returns the number of the
    /// next.
    fn two_threads(push: impl Fn(&mut Producer, u32) -> u32 + Send) {
        const N: u32 = RECORDS;
        let owned = Owned::new(64);
        let (mut p, mut c) = (Producer::new(owned.memory()), Consumer::new(owned.memory()));
        std::thread::scope(|s| {
            s.spawn(move || {
                let mut n = 0;
                while n < N {
                    for _ in 0..1 + n % 5 {
                        if n < N {
                            n = push(&mut p, n);
                        }
                    }
                    p.publish_postlist();
                }
            });
            let mut n = 0;
            while n < N {
                if let Some(r) = c.peek().unwrap() {
                    assert_eq!(r.header.len_or_value, n);
                    if r.payload.len() > 0 {
                        assert_eq!(r.payload.load_word(0), u64::from(n));
                    }
                    let s = r.slot_count();
                    c.advance(s);
                    n += 1;
                    if n % 7 == 0 {
                        c.release_slots();
                    }
                } else {
                    c.release_slots();
                    std::thread::yield_now();
                }
            }
        });
    }
}
