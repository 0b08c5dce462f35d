//! Tests of lanes over simulated servers and networks.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// A sequencer behind a network that loses, duplicates and reorders messages.
#[derive(Debug, Default)]
struct World {
    next: u64,
    requests: VecDeque<u32>,
    answers: VecDeque<SpecAnswer>,
    /// Duplicates of answers that the network may deliver later.
    copies: VecDeque<SpecAnswer>,
    /// Numbers that the server took for this client.
    taken: BTreeSet<u64>,
}

impl DatagramNetwork for World {
    fn send(&mut self, count: usize, guess: u32) -> Result<(), RpcError> {
        self.requests.extend(std::iter::repeat_n(guess, count));
        Ok(())
    }

    fn poll(&mut self, mut each: impl FnMut(SpecAnswer)) -> Result<(), RpcError> {
        self.answers.drain(..).for_each(&mut each);
        Ok(())
    }
}

impl World {
    fn serve(&mut self) {
        let Some(guess) = self.requests.pop_front() else {
            return;
        };
        let n = self.next;
        self.next += 1;
        assert!(self.taken.insert(n));
        #[expect(clippy::cast_possible_truncation, reason = "the lower half is meant")]
        let answer = if n >> 32 == u64::from(guess) {
            SpecAnswer::LowerHalf(n as u32)
        } else {
            SpecAnswer::FullNumber(n)
        };
        self.answers.push_back(answer);
    }
}

#[derive(Debug, Clone)]
enum Step {
    Send(usize),
    Serve(usize),
    Poll,
    /// Other clients take numbers, up to several times 2^32.
    Jump(u64),
    LoseRequest,
    LoseAnswer,
    Duplicate,
    LateCopy,
    Reorder,
    /// The deadline passes: a new session receives nothing of the old one.
    Deadline,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1usize..6).prop_map(Step::Send),
        8 => (1usize..6).prop_map(Step::Serve),
        6 => Just(Step::Poll),
        2 => prop_oneof![1u64..10, (1u64 << 32) - 5..(1 << 32) + 5, 3u64 << 32..4 << 32].prop_map(Step::Jump),
        1 => Just(Step::LoseRequest),
        1 => Just(Step::LoseAnswer),
        1 => Just(Step::Duplicate),
        1 => Just(Step::LateCopy),
        1 => Just(Step::Reorder),
        1 => Just(Step::Deadline),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Every number that the client gets was taken for it, and arrives once, whatever the network does.
    #[test]
    fn speculation_never_gives_a_wrong_number(ordered: bool, steps in prop::collection::vec(step(), 1..200)) {
        let mut lane = SpecLane::new(World { next: (1 << 32) - 20, ..World::default() }, (8, ordered), (1 << 32) - 20);
        let mut results = LaneResults { numbers_in_arrival_order: Some(Vec::new()), ..LaneResults::default() };
        for step in steps {
            let step = if lane.needs_new_session() { Step::Deadline } else { step };
            match step {
                Step::Send(n) => {
                    let n = n.min(lane.room_in_window());
                    lane.send(n, results.one_past_largest_number).expect("sends");
                }
                Step::Serve(n) => (0..n).for_each(|_| lane.client.serve()),
                Step::Poll => drop(lane.poll(&mut results).expect("polls")),
                Step::Jump(n) => lane.client.next += n,
                Step::LoseRequest => drop(lane.client.requests.pop_front()),
                Step::LoseAnswer => drop(lane.client.answers.pop_front()),
                Step::Duplicate => {
                    let copy = lane.client.answers.front().copied();
                    lane.client.copies.extend(copy);
                }
                Step::LateCopy => {
                    let copy = lane.client.copies.pop_front();
                    lane.client.answers.extend(copy);
                }
                Step::Reorder => {
                    if let Some(first) = lane.client.answers.pop_front() {
                        lane.client.answers.push_back(first);
                    }
                }
                Step::Deadline => {
                    let World { next, taken, .. } = std::mem::take(&mut lane.client);
                    lane = SpecLane::new(World { next, taken, ..World::default() }, (8, ordered), next);
                }
            }
        }
        let got = results.numbers_in_arrival_order.expect("kept");
        prop_assert!(!ordered || got.is_sorted_by(|a, b| a < b), "{got:?}");
        let once: BTreeSet<_> = got.iter().collect();
        prop_assert!(once.len() == got.len() && results.not_increasing_number_count == 0, "{got:?}");
        prop_assert!(got.iter().all(|n| lane.client.taken.contains(n)), "{got:?}");
    }

    /// Without faults every request is answered, and sessions recover from wrong guesses.
    #[test]
    fn speculation_recovers_from_wrong_guesses(jumps in prop::collection::vec((1usize..9, 0u64..3 << 32), 1..50)) {
        let mut lane = SpecLane::new(World::default(), (8, true), 0);
        let mut results = LaneResults::default();
        let mut asked = 0;
        for (n, jump) in jumps {
            let n = n.min(lane.room_in_window());
            lane.send(n, results.one_past_largest_number).expect("sends");
            asked += n as u64;
            (0..n / 2).for_each(|_| lane.client.serve());
            lane.client.next += jump;
            (0..n).for_each(|_| lane.client.serve());
            lane.poll(&mut results).expect("polls");
            prop_assert_eq!(lane.unanswered_requests(), 0);
            prop_assert_eq!(results.received_number_count, asked);
            if lane.needs_new_session() {
                let next = lane.client.next;
                lane = SpecLane::new(World { next, ..World::default() }, (8, true), next);
            }
        }
        prop_assert_eq!((results.discarded_answer_count, results.not_increasing_number_count), (0, 0));
    }
}
