//! A simulation of NICs and queue pairs over a faulty network, determined by a seed.
//!
//! The state machines are those of `roce`; memory, receive queues and checks are in this module. Time is simulated.

mod flow;
mod network;
mod rng;
mod work;

use std::fmt;
use std::rc::Rc;

use roce::dcqcn::DcqcnParameters;
use roce::opcode::Transport;
use roce::packet::Packet;
use roce::psn::Psn;
use roce::rc::requester::{RequestFailure, Requester, RequesterConfig};
use roce::rc::responder::{Responder, ResponderConfig};
use roce::uc;

use flow::{Flow, Sabotage};
pub(crate) use network::Counts;
use network::{Arrival, Event, Network, checked};
use rng::Rng;
use work::{Mix, PATTERN_BYTES};

/// Simulated time after which a run fails.
const GIVE_UP_NS: u64 = 100_000_000_000_000;

const RETRY_CNT: u8 = 7;

/// Time that an RNR wait or a low rate may add to the timeouts.
const SLACK_NS: u64 = 5_000_000;

/// Time in which an unreliable queue pair sends one packet. It posts its next message when the last one has left. The
/// network then delays no packet behind more later ones than a UC receiver allows for.
const UNRELIABLE_PACKET_NS: u64 = 1_000;

/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    /// Number of messages of reliable connections.
    pub(crate) messages: u64,
    /// Probability of each kind of fault, for each packet.
    pub(crate) fault: f64,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "cargo run --release -p verbatim-roce --example soak -- --messages {} --fault {} --seed {}",
            self.messages, self.fault, self.seed
        )
    }
}

/// The result of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Report {
    /// Messages of reliable connections that are done.
    pub(crate) messages: u64,
    /// Messages of unreliable connections that were posted; `unreliable_completed`: those that completed.
    pub(crate) unreliable_posted: u64,
    pub(crate) unreliable_completed: u64,
    /// Packets with a correct ICRC that a queue pair accepted.
    pub(crate) received: u64,
    /// Packets with a wrong ICRC.
    pub(crate) dropped: u64,
    /// Work requests that failed because of a sabotage.
    pub(crate) failed: u64,
    pub(crate) simulated_ns: u64,
    pub(crate) counts: Counts,
}

enum Machine {
    Rc(Box<(Requester, Responder)>),
    Uc(Box<(uc::Sender, uc::Receiver)>),
}

/// One end of a connection. Its index is its QPN; the index of the other end differs in bit 0.
struct QueuePair {
    nic: usize,
    machine: Machine,
    depth: u64,
    quota: u64,
    sabotage: Option<(u64, Sabotage)>,
    /// Time at which the connection was cut.
    cut_ns: Option<u64>,
    timeout_ns: u64,
    timer_ns: Option<u64>,
    has_failed: bool,
    is_finished: bool,
}

pub(crate) struct World {
    plan: Plan,
    now_ns: u64,
    network: Network,
    queue_pairs: Vec<QueuePair>,
    /// The flow that the queue pair with the same index sends.
    flows: Vec<Flow>,
    /// Number of reliable queue pairs that are not finished.
    unfinished: usize,
    report: Report,
}

impl World {
    pub(crate) fn new(plan: Plan) -> Self {
        let mut rng = Rng::new(plan.seed);
        let mut pattern = vec![0; PATTERN_BYTES];
        for chunk in pattern.chunks_mut(8) {
            chunk.copy_from_slice(&rng.next().to_ne_bytes()[..chunk.len()]);
        }
        let pattern: Rc<[u8]> = pattern.into();
        let nics = 2 + rng.index(7);
        let connections = 2 + rng.index(7);
        let mut world = Self {
            plan,
            now_ns: 0,
            network: Network::new(rng.next(), plan.fault),
            queue_pairs: Vec::new(),
            flows: Vec::new(),
            unfinished: 0,
            report: Report::default(),
        };
        // The last connection is an unreliable one.
        let reliable = (connections - 1) as u64 * 2;
        for connection in 0..connections {
            let is_unreliable = connection + 1 == connections;
            let quota = if is_unreliable {
                plan.messages.min(20_000) / 10
            } else {
                plan.messages.div_ceil(reliable)
            };
            world.connect(&mut rng, nics, is_unreliable, quota, &pattern);
        }
        world
    }

    fn connect(
        &mut self,
        rng: &mut Rng,
        nics: usize,
        is_unreliable: bool,
        quota: u64,
        pattern: &Rc<[u8]>,
    ) {
        let mix = Mix {
            mtu_bytes: rng.one_of(&[256, 512, 1024, 2048, 4096]),
            is_unreliable,
        };
        let first_nic = rng.index(nics);
        let second_nic = (first_nic + 1 + rng.index(nics - 1)) % nics;
        let psns = [0, 1].map(|_| Psn::new(0xff_ffff - rng.below(200)));
        for (side, nic) in [first_nic, second_nic].into_iter().enumerate() {
            #[allow(clippy::cast_possible_truncation)] // at most 16 queue pairs
            let dest_qpn = (self.queue_pairs.len() as u32) ^ 1;
            let timeout_ns = 4096 << rng.one_of(&[8, 11, 14]);
            let machine = if is_unreliable {
                Machine::Uc(Box::new((
                    uc::Sender::new(dest_qpn, 0xffff, mix.mtu_bytes, psns[side]),
                    uc::Receiver::new(mix.mtu_bytes, psns[1 - side]),
                )))
            } else {
                let psns = [psns[side], psns[1 - side]];
                reliable(rng, dest_qpn, mix.mtu_bytes, psns, timeout_ns)
            };
            let is_sabotaged = !is_unreliable && rng.below(8) == 0;
            // The sabotage happens late, so that few requests are left undone.
            let at = quota - rng.next() % (quota / 10 + 1);
            let sabotage = rng.one_of(&[Sabotage::BadRkey, Sabotage::Unreadable, Sabotage::Cut]);
            self.queue_pairs.push(QueuePair {
                nic,
                machine,
                depth: 1 + u64::from(rng.below(64)),
                quota,
                sabotage: is_sabotaged.then_some((at, sabotage)),
                cut_ns: None,
                timeout_ns,
                timer_ns: None,
                has_failed: false,
                is_finished: false,
            });
            let flow = Flow::new(rng.next(), mix, self.plan.fault, pattern.clone());
            self.flows.push(flow);
            self.unfinished += usize::from(!is_unreliable && quota > 0);
        }
    }

    /// Runs the simulation until all flows are finished.
    ///
    /// # Errors
    /// The violated property, and the plan that repeats the run.
    pub(crate) fn run(mut self) -> Result<Report, String> {
        match self.run_to_the_end() {
            Ok(()) => {
                self.report.simulated_ns = self.now_ns;
                self.report.counts = self.network.counts;
                Ok(self.report)
            }
            Err(violation) => Err(format!(
                "at {} ns: {violation}; to repeat: {}",
                self.now_ns, self.plan
            )),
        }
    }

    fn run_to_the_end(&mut self) -> Result<(), String> {
        for number in 0..self.queue_pairs.len() {
            self.go_on(number)?;
        }
        while self.unfinished > 0 {
            let Some((at_ns, event)) = self.network.next() else {
                return Err(format!("{} queue pairs are stuck", self.unfinished));
            };
            self.now_ns = at_ns;
            if at_ns > GIVE_UP_NS {
                return Err(format!("{} queue pairs do not finish", self.unfinished));
            }
            match event {
                Event::Timer(number) => self.expire(number)?,
                Event::Arrival(arrival) => self.arrive(arrival)?,
            }
        }
        // Packets that are still in flight must change nothing.
        while let Some((at_ns, event)) = self.network.next() {
            self.now_ns = at_ns;
            if let Event::Arrival(arrival) = event {
                self.arrive(arrival)?;
            }
        }
        for (flow, queue_pair) in self.flows.iter_mut().zip(&self.queue_pairs) {
            if !queue_pair.has_failed {
                flow.finish();
            }
            if let Some(violation) = flow.violation.take() {
                return Err(violation);
            }
            if matches!(queue_pair.machine, Machine::Uc(_)) {
                self.report.unreliable_posted += flow.posted();
                self.report.unreliable_completed += flow.completed();
            }
        }
        Ok(())
    }

    fn expire(&mut self, number: usize) -> Result<(), String> {
        let queue_pair = &mut self.queue_pairs[number];
        if queue_pair.timer_ns != Some(self.now_ns) {
            return Ok(());
        }
        queue_pair.timer_ns = None;
        if let Machine::Rc(machines) = &mut queue_pair.machine
            && machines
                .0
                .next_call_time_ns()
                .is_some_and(|at| at <= self.now_ns)
        {
            machines.0.apply_expired_timers(self.now_ns, self.now_ns);
        }
        self.go_on(number)
    }

    fn arrive(&mut self, arrival: Arrival) -> Result<(), String> {
        let mut number = None;
        if let Some(transport) = checked(&arrival) {
            let packet = Packet::parse(transport)
                .map_err(|error| format!("a packet that was sent cannot be parsed: {error}"))?;
            self.report.received += 1;
            number = self.take(&packet, &arrival);
        } else {
            self.report.dropped += 1;
        }
        self.network.recycle(arrival.bytes);
        number.map_or(Ok(()), |number| self.go_on(number))
    }

    /// Passes a packet to its queue pair.
    fn take(&mut self, packet: &Packet<'_>, arrival: &Arrival) -> Option<usize> {
        let number = packet.bth.dest_qpn as usize;
        let queue_pair = self.queue_pairs.get_mut(number)?;
        if queue_pair.nic != arrival.to || queue_pair.cut_ns.is_some() {
            return None;
        }
        let now_ns = self.now_ns;
        let [own, peer] = self
            .flows
            .get_disjoint_mut([number, number ^ 1])
            .expect("two flows");
        peer.refill();
        match &mut queue_pair.machine {
            Machine::Rc(machines) => {
                let (requester, responder) = &mut **machines;
                if packet.bth.operation.goes_to_requester() {
                    requester.process_received_packet(now_ns, packet, own);
                    if arrival.is_ecn_marked && packet.bth.transport != Transport::Cnp {
                        responder.on_response_ecn_mark(now_ns);
                    }
                }
                if !packet.bth.operation.goes_to_requester()
                    || packet.bth.transport == Transport::Cnp
                {
                    responder.process_received_packet(now_ns, packet, arrival.is_ecn_marked, peer);
                    responder.queue_gap_nak_if_due(now_ns);
                }
            }
            Machine::Uc(machines) => machines.1.process_received_packet(packet, peer),
        }
        Some(number)
    }

    /// Lets a queue pair post and send as much as possible, and checks the completed requests.
    fn go_on(&mut self, number: usize) -> Result<(), String> {
        self.post_and_send(number);
        if let Some((at, Sabotage::Cut)) = self.queue_pairs[number].sabotage
            && self.flows[number].posted() >= at
        {
            for number in [number, number ^ 1] {
                self.queue_pairs[number].cut_ns.get_or_insert(self.now_ns);
            }
        }
        let Machine::Rc(machines) = &self.queue_pairs[number].machine else {
            return self.violations(number);
        };
        let (requester, responder) = &**machines;
        let (done, failure) = (requester.done_request_count(), requester.failure());
        let deadline = [requester.next_call_time_ns(), responder.next_send_time_ns()]
            .into_iter()
            .flatten()
            .min();
        let flow = &mut self.flows[number];
        self.report.messages += done + 1 - flow.first();
        flow.settle(done);
        let queue_pair = &mut self.queue_pairs[number];
        if let Some(failure) = failure
            && !queue_pair.has_failed
        {
            queue_pair.has_failed = true;
            self.unfinished -= 1;
            self.report.failed += 1;
            check_failure(number, queue_pair, self.now_ns, failure, done + 1)?;
        } else if failure.is_none() && done == queue_pair.quota && !queue_pair.is_finished {
            queue_pair.is_finished = true;
            self.unfinished -= 1;
        }
        if let Some(deadline) = deadline {
            let deadline = deadline.max(self.now_ns + 1);
            if queue_pair.timer_ns.is_none_or(|timer| deadline < timer) {
                queue_pair.timer_ns = Some(deadline);
                self.network.set_timer(deadline, number);
            }
        }
        self.violations(number)
    }

    fn violations(&mut self, number: usize) -> Result<(), String> {
        for number in [number, number ^ 1] {
            if let Some(violation) = self.flows[number].violation.take() {
                return Err(format!("queue pair {number}: {violation}"));
            }
        }
        Ok(())
    }

    fn post_and_send(&mut self, number: usize) {
        let now_ns = self.now_ns;
        let to = self.queue_pairs[number ^ 1].nic;
        let QueuePair {
            nic,
            machine,
            depth,
            quota,
            sabotage,
            timer_ns,
            ..
        } = &mut self.queue_pairs[number];
        let [own, peer] = self
            .flows
            .get_disjoint_mut([number, number ^ 1])
            .expect("two flows");
        let post = |flow: &mut Flow| {
            let due = sabotage.filter(|(at, _)| *at == flow.posted() + 1);
            flow.post(due.map(|(_, kind)| kind)).request
        };
        let network = &mut self.network;
        let mut send = |transmit: &mut dyn FnMut(&mut Vec<u8>) -> bool| loop {
            let mut bytes = network.buffer();
            if !transmit(&mut bytes) {
                network.recycle(bytes);
                return;
            }
            network.send(now_ns, *nic, to, bytes);
        };
        match machine {
            Machine::Rc(machines) => {
                let (requester, responder) = &mut **machines;
                while own.posted() < *quota
                    && (requester.unfinished_request_count() as u64) < *depth
                    && requester.failure().is_none()
                {
                    requester.post(post(own));
                }
                send(&mut |bytes| responder.append_next_packet(now_ns, peer, bytes));
                send(&mut |bytes| requester.append_next_packet(now_ns, own, bytes));
            }
            Machine::Uc(machines) => {
                if timer_ns.is_none() && own.posted() < *quota {
                    machines.0.post(post(own));
                    let mut packets = 0;
                    send(&mut |bytes| {
                        let has_sent = machines.0.append_next_packet(own, bytes);
                        packets += u64::from(has_sent);
                        has_sent
                    });
                    let at_ns = now_ns + packets.max(1) * UNRELIABLE_PACKET_NS;
                    *timer_ns = Some(at_ns);
                    network.set_timer(at_ns, number);
                }
            }
        }
    }
}

/// Makes the requester and the responder of a reliable queue pair.
fn reliable(
    rng: &mut Rng,
    dest_qpn: u32,
    mtu_bytes: u32,
    psns: [Psn; 2],
    timeout_ns: u64,
) -> Machine {
    let has_congestion = rng.below(2) == 0;
    let congestion = has_congestion.then_some(DcqcnParameters::SIGCOMM_2015);
    let requester = Requester::new(RequesterConfig {
        dest_qpn,
        mtu_bytes,
        first_psn: psns[0],
        timeout_ns: Some(timeout_ns),
        retry_cnt: RETRY_CNT,
        max_rd_atomic: rng.one_of(&[1, 2, 4, 16]),
        window_packets: rng.one_of(&[1, 8, 128, 512]),
        min_probe_wait_ns: rng.one_of(&[None, Some(100_000), Some(1_000_000)]),
        congestion,
        ..RequesterConfig::default()
    });
    let responder = Responder::new(ResponderConfig {
        dest_qpn,
        mtu_bytes,
        first_psn: psns[1],
        min_rnr_timer: rng.one_of(&[1, 5, 12]),
        congestion,
        ..ResponderConfig::default()
    });
    Machine::Rc(Box::new((requester, responder)))
}

/// Checks that a queue pair fails only because of a sabotage, with the right error and at the right position.
fn check_failure(
    number: usize,
    queue_pair: &QueuePair,
    now_ns: u64,
    failure: RequestFailure,
    position: u64,
) -> Result<(), String> {
    let is_right = match (queue_pair.sabotage, failure) {
        // After a cut, the failure comes after the timeouts of all retries, and not later.
        (_, RequestFailure::RetryExceeded) if queue_pair.cut_ns.is_some() => {
            let retries_ns = (u64::from(RETRY_CNT) + 1) * queue_pair.timeout_ns;
            let since_ns = now_ns - queue_pair.cut_ns.unwrap_or(now_ns);
            since_ns <= retries_ns + SLACK_NS
        }
        (Some((at, Sabotage::BadRkey)), RequestFailure::RemoteAccess)
        | (Some((at, Sabotage::Unreadable)), RequestFailure::LocalProtection) => at == position,
        // A failed responder is silent: if its NAK or an earlier response is lost, all retries remain unanswered.
        (Some((at, Sabotage::BadRkey)), RequestFailure::RetryExceeded) => position <= at,
        _ => false,
    };
    let sabotage = queue_pair.sabotage;
    is_right.then_some(()).ok_or_else(|| {
        format!("queue pair {number}: {position} fails with {failure:?}; on purpose: {sabotage:?}")
    })
}
