use super::*;

const TIMES: ConnectionTimeouts = ConnectionTimeouts {
    max_response_time: Duration::from_millis(4000),
    full_interval_resends: 15,
    time_wait: Duration::from_millis(2000),
};

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

const AT: Duration = Duration::from_millis(1);

/// Makes a machine in the given state.
fn in_state(state: CmState) -> CmStateMachine {
    let mut m = CmStateMachine::new(TIMES);
    let get = |m: &mut CmStateMachine, kind| drop(m.receive(Duration::ZERO, kind, Duration::ZERO));
    let say = |m: &mut CmStateMachine, kind| drop(m.post(Duration::ZERO, kind).unwrap());
    let active = [
        (CmState::ReqSent, CmMessageKind::Req),
        (CmState::RepReceived, CmMessageKind::Rep),
        (CmState::EstablishedActive, CmMessageKind::Rtu),
    ];
    match state {
        CmState::Idle | CmState::Done => {}
        CmState::ReqSent | CmState::RepReceived | CmState::EstablishedActive => {
            for (reached, kind) in active {
                if kind == CmMessageKind::Rep {
                    get(&mut m, kind);
                } else {
                    say(&mut m, kind);
                }
                if reached == state {
                    break;
                }
            }
        }
        CmState::ReqReceived => get(&mut m, CmMessageKind::Req),
        CmState::RepSent | CmState::EstablishedPassive | CmState::DreqSent | CmState::TimeWait => {
            get(&mut m, CmMessageKind::Req);
            say(&mut m, CmMessageKind::Rep);
            if state != CmState::RepSent {
                get(&mut m, CmMessageKind::Rtu);
            }
            if matches!(state, CmState::DreqSent | CmState::TimeWait) {
                say(&mut m, CmMessageKind::Dreq);
            }
            if state == CmState::TimeWait {
                get(&mut m, CmMessageKind::Drep);
            }
        }
        CmState::RejSent => {
            get(&mut m, CmMessageKind::Req);
            say(&mut m, CmMessageKind::Rej);
        }
        CmState::SidrReqSent => say(&mut m, CmMessageKind::SidrReq),
        CmState::SidrReqReceived => get(&mut m, CmMessageKind::SidrReq),
        CmState::SidrAnswered => {
            get(&mut m, CmMessageKind::SidrReq);
            say(&mut m, CmMessageKind::SidrRep);
        }
    }
    assert_eq!(m.state(), state);
    m
}

const STATES: [CmState; 13] = [
    CmState::Idle,
    CmState::ReqSent,
    CmState::ReqReceived,
    CmState::RepReceived,
    CmState::RepSent,
    CmState::EstablishedActive,
    CmState::EstablishedPassive,
    CmState::DreqSent,
    CmState::RejSent,
    CmState::TimeWait,
    CmState::SidrReqSent,
    CmState::SidrReqReceived,
    CmState::SidrAnswered,
];

/// Returns the effect of a message by state: `(state, actions, next state)`; in other states it has none.
fn table(kind: CmMessageKind) -> Vec<(CmState, Vec<CallerAction>, CmState)> {
    use CallerAction::{Deliver, Send};
    use CmState as S;
    let deliver = vec![Deliver(kind)];
    match kind {
        CmMessageKind::Req => vec![
            (S::Idle, deliver, S::ReqReceived),
            (
                S::ReqReceived,
                vec![Send(CmMessageKind::MraOfReq)],
                S::ReqReceived,
            ),
            (S::RepSent, vec![Send(CmMessageKind::Rep)], S::RepSent),
            (S::RejSent, vec![Send(CmMessageKind::Rej)], S::RejSent),
        ],
        CmMessageKind::Rep => vec![
            (S::ReqSent, deliver, S::RepReceived),
            (
                S::RepReceived,
                vec![Send(CmMessageKind::MraOfRep)],
                S::RepReceived,
            ),
            (
                S::EstablishedActive,
                vec![Send(CmMessageKind::Rtu)],
                S::EstablishedActive,
            ),
            (S::RejSent, vec![Send(CmMessageKind::Rej)], S::RejSent),
        ],
        CmMessageKind::Rtu => vec![(S::RepSent, deliver, S::EstablishedPassive)],
        CmMessageKind::Rej => vec![
            (S::ReqSent, deliver.clone(), S::TimeWait),
            (S::ReqReceived, deliver.clone(), S::TimeWait),
            (S::RepSent, deliver.clone(), S::TimeWait),
            (S::RepReceived, deliver.clone(), S::TimeWait),
            (S::EstablishedActive, deliver.clone(), S::TimeWait),
            (S::EstablishedPassive, deliver, S::TimeWait),
            (S::DreqSent, vec![Deliver(CmMessageKind::Drep)], S::TimeWait),
        ],
        CmMessageKind::Dreq => {
            let both = vec![Send(CmMessageKind::Drep), Deliver(kind)];
            vec![
                (S::RepSent, both.clone(), S::TimeWait),
                (S::RepReceived, both.clone(), S::TimeWait),
                (S::EstablishedActive, both.clone(), S::TimeWait),
                (S::EstablishedPassive, both.clone(), S::TimeWait),
                (S::DreqSent, both, S::TimeWait),
                (S::TimeWait, vec![Send(CmMessageKind::Drep)], S::TimeWait),
            ]
        }
        CmMessageKind::Drep => vec![(S::DreqSent, deliver, S::TimeWait)],
        CmMessageKind::SidrReq => vec![
            (S::Idle, deliver, S::SidrReqReceived),
            (
                S::SidrAnswered,
                vec![Send(CmMessageKind::SidrRep)],
                S::SidrAnswered,
            ),
        ],
        CmMessageKind::SidrRep => vec![(S::SidrReqSent, deliver, S::TimeWait)],
        CmMessageKind::MraOfReq | CmMessageKind::MraOfRep => Vec::new(),
    }
}

const KINDS: [CmMessageKind; 10] = [
    CmMessageKind::Req,
    CmMessageKind::Rep,
    CmMessageKind::Rtu,
    CmMessageKind::Rej,
    CmMessageKind::Dreq,
    CmMessageKind::Drep,
    CmMessageKind::MraOfReq,
    CmMessageKind::MraOfRep,
    CmMessageKind::SidrReq,
    CmMessageKind::SidrRep,
];

#[test]
fn each_message_does_in_each_state_what_the_table_says() {
    for kind in KINDS {
        let rows = table(kind);
        for state in STATES {
            let row = rows.iter().find(|(at, ..)| *at == state);
            let (actions, next) = row.map_or((Vec::new(), state), |(_, actions, next)| {
                (actions.clone(), *next)
            });
            let mut m = in_state(state);
            let did = m.receive(AT, kind, Duration::ZERO);
            assert_eq!((did, m.state()), (actions, next), "{kind:?} in {state:?}");
        }
    }
}

#[test]
fn the_program_may_send_each_message_in_these_states_only() {
    use CmState as S;
    let allowed = |kind| -> &[CmState] {
        match kind {
            CmMessageKind::Req | CmMessageKind::SidrReq => &[S::Idle],
            CmMessageKind::Rep => &[S::ReqReceived],
            CmMessageKind::Rtu => &[S::RepReceived],
            CmMessageKind::Rej => &[S::ReqSent, S::ReqReceived, S::RepSent, S::RepReceived],
            CmMessageKind::Dreq => &[S::EstablishedActive, S::EstablishedPassive, S::RepSent],
            CmMessageKind::SidrRep => &[S::SidrReqReceived],
            CmMessageKind::Drep | CmMessageKind::MraOfReq | CmMessageKind::MraOfRep => &[],
        }
    };
    for kind in KINDS {
        for state in STATES {
            let posted = in_state(state).post(AT, kind);
            let expected = if allowed(kind).contains(&state) {
                Ok(vec![CallerAction::Send(kind)])
            } else {
                Err(WrongState)
            };
            assert_eq!(posted, expected, "{kind:?} in {state:?}");
        }
    }
}

/// Returns the times at which the message is sent, and the last actions.
fn outgoings(m: &mut CmStateMachine) -> (Vec<u64>, Vec<CallerAction>) {
    let mut at = Vec::new();
    while let Some(deadline) = m.next_expiry() {
        assert_eq!(m.act_on_expiry_if_due(deadline - ms(1)), [], "too early");
        let actions = m.act_on_expiry_if_due(deadline);
        if !matches!(actions[..], [CallerAction::Send(_)]) {
            return (at, actions);
        }
        at.push(u64::try_from(deadline.as_millis()).unwrap());
    }
    panic!("a machine that waits for ever")
}

#[test]
fn a_request_is_repeated_soon_at_first_and_given_up_in_the_end() {
    let mut m = in_state(CmState::ReqSent);
    let (at, last) = outgoings(&mut m);
    assert_eq!(at[..6], [250, 750, 1750, 3750, 7750, 11_750]);
    assert_eq!((at.len(), at[18]), (19, 63_750));
    assert_eq!(last, [CallerAction::TimedOut(CmMessageKind::Req)]);
    assert_eq!((m.state(), m.next_expiry()), (CmState::ReqSent, None));
    // The peer gets a REJ, again for each repeated message.
    assert_eq!(
        m.post(ms(64_000), CmMessageKind::Rej),
        Ok(vec![CallerAction::Send(CmMessageKind::Rej)])
    );
    assert_eq!(
        m.receive(ms(65_000), CmMessageKind::Rep, ms(0)),
        [CallerAction::Send(CmMessageKind::Rej)]
    );
    assert_eq!(
        m.act_on_expiry_if_due(ms(66_000)),
        [CallerAction::ForgetConnection]
    );
    assert_eq!(m.state(), CmState::Done);
}

#[test]
fn an_mra_slows_the_repetitions_and_adds_the_time_that_it_asks_for() {
    for (state, mra) in [
        (CmState::ReqSent, CmMessageKind::MraOfReq),
        (CmState::RepSent, CmMessageKind::MraOfRep),
    ] {
        let mut m = in_state(state);
        assert_eq!(m.receive(ms(100), mra, ms(60_000)), []);
        let (at, _) = outgoings(&mut m);
        assert_eq!(at[..2], [4_100, 8_100]);
        assert_eq!(at.last(), Some(&120_100));
    }
}

#[test]
fn an_unanswered_farewell_ends_in_time_wait_and_is_told() {
    let mut m = in_state(CmState::DreqSent);
    assert_eq!(
        outgoings(&mut m).1,
        [CallerAction::TimedOut(CmMessageKind::Dreq)]
    );
    assert_eq!(m.state(), CmState::TimeWait);
    assert_eq!(outgoings(&mut m).1, [CallerAction::ForgetConnection]);
    let mut m = in_state(CmState::SidrReqSent);
    assert_eq!(
        outgoings(&mut m).1,
        [CallerAction::TimedOut(CmMessageKind::SidrReq)]
    );
    assert_eq!(outgoings(&mut m).1, [CallerAction::ForgetConnection]);
}

#[test]
fn what_was_abandoned_ends_by_itself() {
    for state in STATES {
        let mut m = in_state(state);
        m.close(AT);
        let mut steps = 0;
        while let Some(at) = m.next_expiry() {
            m.act_on_expiry_if_due(at);
            steps += 1;
            assert!(steps < 100);
        }
        assert_eq!(m.state(), CmState::Done, "from {state:?}");
    }
}

/// A generator of pseudo-random numbers: SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

/// Two ends of a connection, and a network that loses, duplicates and reorders messages.
struct Simulation {
    dice: Random,
    lost_percent: u64,
    now: Duration,
    ends: [CmStateMachine; 2],
    /// Messages in flight: `(arrival, number, to, kind)`
    network: Vec<(Duration, u64, usize, CmMessageKind)>,
    sent: u64,
    /// The actions that each program has got, in order.
    delivered: [Vec<CallerAction>; 2],
    /// Time that each program takes for its answer.
    answer_delay: Duration,
    todo: Vec<(Duration, usize, CmMessageKind)>,
}

impl Simulation {
    fn new(seed: u64, lost_percent: u64) -> Self {
        let mut dice = Random(seed);
        let answer_delay = ms([0, 1, 300, 9_000][usize::try_from(dice.below(4)).unwrap()]);
        Self {
            dice,
            lost_percent,
            now: Duration::ZERO,
            ends: [CmStateMachine::new(TIMES), CmStateMachine::new(TIMES)],
            network: Vec::new(),
            sent: 0,
            delivered: [Vec::new(), Vec::new()],
            answer_delay,
            todo: Vec::new(),
        }
    }

    fn do_all(&mut self, end: usize, actions: Actions) {
        for action in actions {
            match action {
                CallerAction::Send(kind) => self.send(1 - end, kind),
                CallerAction::ForgetConnection => {}
                told => {
                    self.delivered[end].push(told);
                    self.program(end, told);
                }
            }
        }
    }

    fn send(&mut self, to: usize, kind: CmMessageKind) {
        let copies = match self.dice.below(100) {
            n if n < self.lost_percent => 0,
            n if n < self.lost_percent + 10 => 2,
            _ => 1,
        };
        for _ in 0..copies {
            let delay = if self.dice.below(10) == 0 { 700 } else { 1 };
            self.sent += 1;
            self.network
                .push((self.now + ms(delay), self.sent, to, kind));
        }
    }

    /// Reacts like the two programs: the server accepts; the client sends an RTU, and a DREQ later.
    fn program(&mut self, end: usize, told: CallerAction) {
        let (after, kind) = match (end, told) {
            (1, CallerAction::Deliver(CmMessageKind::Req)) => {
                (self.answer_delay, CmMessageKind::Rep)
            }
            (0, CallerAction::Deliver(CmMessageKind::Rep)) => {
                (self.answer_delay, CmMessageKind::Rtu)
            }
            (_, CallerAction::TimedOut(CmMessageKind::Req | CmMessageKind::Rep)) => {
                (ms(0), CmMessageKind::Rej)
            }
            _ => return,
        };
        self.todo.push((self.now + after, end, kind));
        if kind == CmMessageKind::Rtu {
            self.todo
                .push((self.now + after + ms(20_000), end, CmMessageKind::Dreq));
        }
    }

    fn run(&mut self) {
        self.todo.push((ms(0), 0, CmMessageKind::Req));
        for _ in 0..100_000 {
            let due = [
                self.network.iter().map(|n| n.0).min(),
                self.todo.iter().map(|n| n.0).min(),
                self.ends[0].next_expiry(),
                self.ends[1].next_expiry(),
            ];
            let Some(now) = due.into_iter().flatten().min() else {
                return;
            };
            self.now = now;
            if let Some(i) = self.todo.iter().position(|t| t.0 == now) {
                let (_, end, kind) = self.todo.remove(i);
                // An error is ignored: the end may have been rejected in the meantime.
                if let Ok(actions) = self.ends[end].post(now, kind) {
                    self.do_all(end, actions);
                }
            } else if let Some(i) = self.network.iter().position(|n| n.0 == now) {
                let (_, _, to, kind) = self.network.remove(i);
                // A late REQ must not reach a connection that has ended; it would belong to a new one.
                let actions = self.ends[to].receive(now, kind, ms(10_000));
                self.do_all(to, actions);
            } else {
                for end in 0..2 {
                    let actions = self.ends[end].act_on_expiry_if_due(now);
                    self.do_all(end, actions);
                }
            }
        }
        panic!("it does not end");
    }
}

#[test]
fn under_loss_each_end_is_told_everything_once_and_comes_to_its_end() {
    let mut connected = 0;
    for seed in 0..2_000 {
        let lost_percent = [0, 1, 10, 30, 60][usize::try_from(seed % 5).unwrap()];
        let mut world = Simulation::new(seed, lost_percent);
        world.run();
        for (end, told) in world.delivered.iter().enumerate() {
            for (i, what) in told.iter().enumerate() {
                assert!(
                    !told[..i].contains(what),
                    "seed {seed}, end {end}: {told:?}"
                );
            }
            assert_eq!(
                world.ends[end].state(),
                CmState::Done,
                "seed {seed}: {told:?}"
            );
        }
        let was_told =
            |end: usize, kind| world.delivered[end].contains(&CallerAction::Deliver(kind));
        // No message is delivered unless its cause was delivered before.
        assert!(
            !was_told(0, CmMessageKind::Rep) || was_told(1, CmMessageKind::Req),
            "seed {seed}"
        );
        assert!(
            !was_told(1, CmMessageKind::Rtu) || was_told(0, CmMessageKind::Rep),
            "seed {seed}"
        );
        assert!(
            !was_told(0, CmMessageKind::Drep) || was_told(1, CmMessageKind::Dreq),
            "seed {seed}"
        );
        if lost_percent <= 30 {
            assert!(
                was_told(0, CmMessageKind::Rep),
                "seed {seed}: {:?}",
                world.delivered
            );
            assert!(
                was_told(1, CmMessageKind::Dreq),
                "seed {seed}: {:?}",
                world.delivered
            );
        }
        connected += usize::from(was_told(1, CmMessageKind::Rtu));
    }
    assert!(connected > 1_500, "{connected} of 2000");
}
