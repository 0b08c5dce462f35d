//! The protocol's state machines against a plain queue: whatever the order of calls, sends fill the receives that they
//! match.

use std::collections::{HashMap, VecDeque};

use collective::{
    ClearToSend, Error, GroupPartSizes, ImmediateResult, MAX_REQUESTS, ReceiveQueue, RequestHandle,
    SendGroup, SendMatch, SendQueue,
};
use proptest::prelude::*;

/// The next action of a test.
#[derive(Debug, Clone)]
enum Step {
    /// Posts a group: room and tag of each receive.
    Post(Vec<(u32, u32)>),
    /// Sends to the group at hand: which of its receives, and what share of its room, in 256ths.
    Send(usize, u32),
    /// A lane carries its next group.
    Carry(usize),
    /// Tests the oldest receive and the oldest send.
    Test,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        proptest::collection::vec((0u32..5000, 0u32..4), 1..=8).prop_map(Step::Post),
        (0usize..8, 0u32..=256).prop_map(|(part, share)| Step::Send(part, share)),
        (0usize..3).prop_map(Step::Carry),
        Just(Step::Test),
    ]
}

/// Both ends, and what should come of them.
struct World {
    lanes: usize,
    sending: SendQueue<()>,
    receiving: ReceiveQueue,
    posted: VecDeque<(RequestHandle, Vec<ClearToSend>)>,
    /// Groups that were written, as each lane has them before it.
    wires: Vec<VecDeque<(u64, Vec<u32>)>>,
    sizes: HashMap<u64, Vec<u32>>,
    receives: VecDeque<(RequestHandle, u64)>,
    sends: VecDeque<(RequestHandle, u32)>,
    groups: u64,
}

impl World {
    fn new(lanes: usize) -> Self {
        Self {
            lanes,
            sending: SendQueue::new(lanes),
            receiving: ReceiveQueue::new(lanes),
            posted: VecDeque::new(),
            wires: vec![VecDeque::new(); lanes],
            sizes: HashMap::new(),
            receives: VecDeque::new(),
            sends: VecDeque::new(),
            groups: 0,
        }
    }

    fn post(&mut self, parts: &[(u32, u32)]) {
        let room: Vec<u32> = parts.iter().map(|(room, _)| *room).collect();
        match self
            .receiving
            .post_receive_group(&room)
            .expect("1 to 8 parts")
        {
            Some((request, group)) => {
                assert_eq!(group, self.groups, "groups are numbered in their order");
                self.groups += 1;
                let count = u32::try_from(parts.len()).expect("8");
                let entry = |(len, tag): &(u32, u32)| ClearToSend {
                    addr: group,
                    buffer_bytes: *len,
                    rkey: 1,
                    tag: *tag,
                    receives_in_group: count,
                };
                self.posted
                    .push_back((request, parts.iter().map(entry).collect()));
                self.receives.push_back((request, group));
            }
            None => assert_eq!(
                self.receives.len(),
                MAX_REQUESTS,
                "refused only when all are taken"
            ),
        }
    }

    fn send(&mut self, part: usize, share: u32) {
        if self.sending.awaited_cts_group().is_some() {
            let Some((_, entries)) = self.posted.pop_front() else {
                return;
            };
            self.sending
                .add_cts_entries(&entries)
                .expect("entries agree");
            self.posted.push_front((self.receives[0].0, entries));
        }
        let entries = &self.posted[0].1;
        let to = entries[part % entries.len()];
        // The shortest receive with that tag decides what may be sent.
        let room = entries
            .iter()
            .filter(|e| e.tag == to.tag)
            .map(|e| e.buffer_bytes)
            .min();
        let len =
            u32::try_from(u64::from(room.expect("one")) * u64::from(share) / 256).expect("less");
        match self.sending.match_send(to.tag, len, ()).expect("it fits") {
            SendMatch::TryAgain => {}
            SendMatch::GroupIncomplete(request) => self.sends.push_back((request, len)),
            SendMatch::GroupComplete(request, group) => {
                self.sends.push_back((request, len));
                self.written(&group);
            }
        }
    }

    fn written(&mut self, group: &SendGroup<()>) {
        let (_, entries) = self.posted.pop_front().expect("it was offered");
        let tags = |e: &ClearToSend| (e.tag, e.buffer_bytes, e.addr);
        let to: Vec<_> = group
            .parts
            .iter()
            .map(|p| tags(&p.posted_receive))
            .collect();
        assert_eq!(
            to,
            entries.iter().map(tags).collect::<Vec<_>>(),
            "in the receives' order"
        );
        let sizes: Vec<u32> = group.parts.iter().map(|p| p.payload_len).collect();
        self.sizes.insert(group.number, sizes.clone());
        for wire in &mut self.wires {
            wire.push_back((group.number, sizes.clone()));
        }
    }

    fn carry(&mut self, lane: usize) {
        let lane = lane % self.lanes;
        let Some((group, sizes)) = self.wires[lane].pop_front() else {
            return;
        };
        let imm = match sizes[..] {
            [size] => size,
            _ => u32::try_from(sizes.len()).expect("8"),
        };
        match self
            .receiving
            .handle_immediate(lane, imm)
            .expect("it was posted")
        {
            ImmediateResult::SizesInCompletionRecord { group: came, parts } => {
                assert_eq!((came, parts), (group, sizes.len()));
                let sizes = GroupPartSizes::new(&sizes);
                self.receiving
                    .complete_group(group, sizes)
                    .expect("they fit");
            }
            ImmediateResult::Complete | ImmediateResult::Partial => {}
        }
        self.sending
            .complete_group_on_lane(group)
            .expect("it is under way");
    }

    fn test(&mut self) {
        if let Some(&(request, group)) = self.receives.front() {
            let all_lanes = self
                .wires
                .iter()
                .all(|w| w.front().is_none_or(|(g, _)| *g > group));
            let expected = self.sizes.get(&group).filter(|_| all_lanes);
            let came = self
                .receiving
                .take_if_complete(request)
                .expect("it is under way");
            let came = came.map(|sizes| sizes.as_slice().to_vec());
            assert_eq!(came.as_ref(), expected, "group {group}");
            if came.is_some() {
                self.receives.pop_front();
                assert!(matches!(
                    self.receiving.take_if_complete(request),
                    Err(Error::UnknownRequest)
                ));
            }
        }
        if let Some(&(request, len)) = self.sends.front()
            && let Some(sent) = self
                .sending
                .take_if_delivered(request)
                .expect("it is under way")
        {
            assert_eq!(sent, len);
            self.sends.pop_front();
        }
    }
}

proptest! {
    #[test]
    fn sends_fill_the_receives_that_they_match(
        lanes in 1usize..=3,
        steps in proptest::collection::vec(step(), 1..400),
    ) {
        let mut world = World::new(lanes);
        for step in steps {
            match step {
                Step::Post(parts) => world.post(&parts),
                Step::Send(part, share) => world.send(part, share),
                Step::Carry(lane) => world.carry(lane),
                Step::Test => world.test(),
            }
        }
    }
}

#[test]
fn a_send_that_is_longer_than_its_receive_is_refused() {
    let mut sending = SendQueue::new(1);
    let entry = ClearToSend {
        addr: 0,
        buffer_bytes: 10,
        rkey: 0,
        tag: 3,
        receives_in_group: 1,
    };
    sending.add_cts_entries(&[entry]).expect("one entry");
    let refused = sending.match_send(3, 11, ()).expect_err("11 of 10");
    assert!(matches!(
        refused,
        Error::MessageTooLong {
            len: 11,
            room: 10,
            tag: 3
        }
    ));
    assert!(matches!(
        sending.match_send(4, 1, ()),
        Ok(SendMatch::TryAgain)
    ));
    assert!(matches!(
        sending.match_send(3, 10, ()),
        Ok(SendMatch::GroupComplete(..))
    ));
}

#[test]
fn a_peer_that_breaks_the_protocol_is_told_from_one_that_keeps_it() {
    let mut sending = SendQueue::<()>::new(1);
    let entry = ClearToSend {
        addr: 0,
        buffer_bytes: 10,
        rkey: 0,
        tag: 3,
        receives_in_group: 2,
    };
    assert!(matches!(
        sending.add_cts_entries(&[entry]),
        Err(Error::Protocol(_))
    ));
    assert!(matches!(
        sending.add_cts_entries(&[]),
        Err(Error::Protocol(_))
    ));
    assert!(matches!(
        sending.complete_group_on_lane(0),
        Err(Error::Protocol(_))
    ));

    let mut receiving = ReceiveQueue::new(2);
    assert!(
        matches!(receiving.handle_immediate(0, 1), Err(Error::Protocol(_))),
        "nothing is posted"
    );
    let mut receiving = ReceiveQueue::new(2);
    receiving
        .post_receive_group(&[10])
        .expect("one")
        .expect("room");
    receiving.handle_immediate(0, 5).expect("posted");
    assert!(
        matches!(receiving.handle_immediate(1, 6), Err(Error::Protocol(_))),
        "lanes disagree"
    );
    let mut receiving = ReceiveQueue::new(1);
    receiving
        .post_receive_group(&[10])
        .expect("one")
        .expect("room");
    assert!(
        matches!(receiving.handle_immediate(0, 11), Err(Error::Protocol(_))),
        "more than posted"
    );
    assert!(matches!(
        receiving.post_receive_group(&[]),
        Err(Error::InvalidReceiveCount(0))
    ));
    assert!(matches!(
        receiving.post_receive_group(&[1; 9]),
        Err(Error::InvalidReceiveCount(9))
    ));
}
