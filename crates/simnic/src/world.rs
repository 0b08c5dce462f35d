//! Everything that is simulated: machines, their NICs and cores, and the objects of the verbs.

use std::collections::VecDeque;

use nicmodel::profile::Profile;
use verbs_abi as abi;

use crate::costs::{Costs, Shapes};
use crate::line::Line;
use crate::memory::{Payload, Region};
use crate::prefetch::prefetch;
use crate::queue::{EventQueue, Ps};
use crate::threads::{Thread, wake};
use crate::timetable::Timetable;

/// Something that happens at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// A thread goes on, if it still waits for this.
    Resume { thread: u32 },
    /// A list of WQEs, or the doorbell for it, has arrived at the NIC.
    Announce { qp: u32 },
    /// The first WQE that a queue pair's unit works on leaves for the network.
    Emit { qp: u32 },
    /// A machine's NIC has handled the next of the messages that arrive there.
    Handle { machine: u32 },
    /// The answer of a READ or atomic, or an acknowledgement, leaves the responder.
    Respond { message: u32 },
    /// It has come back to the requester.
    Return { message: u32 },
}

/// A resource that serves one after the other.
///
/// Who comes may be a little behind who came before, since threads and events are a little ahead of each other. It
/// waits for what is in front of it, and not for the time by which it is behind.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fifo {
    free_at: Ps,
    latest: Ps,
}

impl Fifo {
    /// How long one that comes at `at` waits.
    fn wait(&mut self, at: Ps) -> Ps {
        self.latest = self.latest.max(at);
        self.free_at.saturating_sub(self.latest)
    }

    /// Takes the resource for `time` as soon as it is free; returns when it is done.
    pub(crate) fn take(&mut self, at: Ps, time: Ps) -> Ps {
        let wait = self.wait(at);
        self.free_at = self.latest + wait + time;
        at + wait + time
    }

    /// Takes as much of the resource, but does not wait: for short packets between long ones.
    pub(crate) fn slip_in(&mut self, at: Ps, time: Ps) {
        self.take(at, time);
    }
}

/// What a machine's NIC counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages that left.
    pub sent: u64,
    /// Messages that arrived and were taken.
    pub received: u64,
    /// Messages that arrived and were dropped: no RECV, no such queue pair, a wrong key.
    pub dropped: u64,
    /// Doorbells that were rung.
    pub doorbells: u64,
    /// MMIO writes of whole WQEs.
    pub wqes_by_mmio: u64,
    /// WQEs that were fetched again because the NIC's cache had lost them.
    pub wqe_cache_misses: u64,
    /// Bytes of the cache lines that it read from memory: a processor counts each line as PCIeRdCur. Of a line of WQEs
    /// of RECVs each message that takes one counts its part.
    pub read_bytes: u64,
}

/// A machine: its NIC, its PCIe link and its memory.
#[derive(Debug, Default)]
pub(crate) struct Machine {
    /// MMIO writes of the cores, and the link to the device with all that uses it.
    pub(crate) mmio: Timetable,
    pub(crate) to_device: Fifo,
    pub(crate) to_host: Fifo,
    pub(crate) inbound: Fifo,
    pub(crate) link_out: Fifo,
    pub(crate) link_in: Fifo,
    /// Units that work, and queue pairs that wait for one.
    pub(crate) busy_units: usize,
    pub(crate) waiting: Line<u32>,
    /// Messages that the NIC is to have handled at a time, in the order of these times, and when it looks at them.
    pub(crate) arriving: Line<(Ps, u32)>,
    pub(crate) handles_at: Option<Ps>,
    /// When each lock for atomics is free; empty until there is an atomic.
    pub(crate) locks: Vec<Fifo>,
    /// Regions with writes that are not visible yet, each with when its first is, and when the first of all is.
    pub(crate) unsettled: Vec<(Ps, u32)>,
    pub(crate) settles_at: Ps,
    /// Queue pairs that have READs outstanding.
    pub(crate) reading: usize,
    pub(crate) counters: Counters,
}

/// A queue pair, in four cache lines: a responder needs the first, a requester's core the second, and its NIC the others.
/// Hundreds of queue pairs are in no cache, and each line that a message touches is fetched.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Qp {
    pub(crate) recvs: Recvs,
    /// Nothing that comes to it is visible before this time.
    pub(crate) last_delivery: Ps,
    pub(crate) machine: u32,
    pub(crate) recv_cq: u32,
    /// What lets messages in: of datagrams the Q_Key, of others what they may do.
    pub(crate) guard: u32,
    pub(crate) transport: nicmodel::Transport,
    /// Whether it is in a state in which messages may come.
    pub(crate) receives: bool,
    pub(crate) signal_all: bool,
    /// What was posted last, and its shape.
    pub(crate) last_posted: Option<(crate::post::Kind, u16)>,
    pub(crate) state: u32,
    /// WRs that are posted and not complete.
    pub(crate) outstanding: u32,
    pub(crate) cap: abi::ibv_qp_cap,
    pub(crate) peer: u32,
    /// Messages that have not left, each with how often it is still to leave, and the lists that they came in.
    pub(crate) wqes: Line<(u32, u32)>,
    pub(crate) lists: Line<List>,
    /// No completion of the send queue before this time.
    pub(crate) last_completion: Ps,
    /// None of its messages is handled before this time: they keep their order.
    pub(crate) last_handled: Ps,
    /// Lists that have arrived at the NIC.
    pub(crate) arrived: usize,
    /// A unit works on it, or it waits for one.
    pub(crate) in_service: bool,
    pub(crate) send_cq: u32,
    /// Opcode and flags of the last datagram without payload that was posted, and its shape.
    pub(crate) last_empty: Option<(u32, u32, u16)>,
    /// No answer of this responder before this time: answers keep the order of their requests.
    pub(crate) last_answer: Ps,
    pub(crate) qkey: u32,
    pub(crate) access: i32,
    /// Until when its unit fetches WQEs that the NIC's cache has lost, and how much of that is to be added to the time of
    /// the WQE that the unit works on.
    pub(crate) refetches_until: Ps,
    pub(crate) held_up: Ps,
    pub(crate) reads: crate::nic::Reads,
}

const _: () = {
    assert!(std::mem::offset_of!(Qp, last_posted) == 64);
    assert!(std::mem::offset_of!(Qp, wqes) == 128);
    assert!(std::mem::offset_of!(Qp, last_completion) == 192);
    assert!(size_of::<Qp>() <= 320);
};

impl Qp {
    /// A message is on its way to it: what that will need besides is fetched ahead.
    #[inline(always)]
    pub(crate) fn fetch_for_arrival(&self, cqs: &[Option<Cq>]) {
        if self.transport == nicmodel::Transport::Ud {
            prefetch(self.recvs.runs.first_place());
            prefetch(cqs.as_ptr().wrapping_add(self.recv_cq as usize));
        }
    }

    /// Its state, Q_Key or access has changed.
    pub(crate) fn changed(&mut self) {
        self.receives = matches!(self.state, abi::IBV_QPS_RTR | abi::IBV_QPS_RTS);
        self.guard = match self.transport {
            nicmodel::Transport::Ud => self.qkey,
            _ => self.access.cast_unsigned(),
        };
    }
}

/// A posted RECV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recv {
    pub(crate) wr_id: u64,
    pub(crate) addr: u64,
    pub(crate) len: u32,
    pub(crate) lkey: u32,
}

/// The RECVs of a queue pair. Programs number them in order and place their buffers side by side: such ones are one
/// entry, so that thousands of queue pairs with hundreds of RECVs each do not need memory for all of them.
#[derive(Debug, Default)]
pub(crate) struct Recvs {
    runs: Line<Run>,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    first: Recv,
    /// What follows.
    next: Recv,
    /// From each address to the next; of one alone none.
    stride: u64,
    count: u64,
}

impl Recv {
    /// The one behind it.
    #[inline(always)]
    fn following(self, stride: u64) -> Self {
        Self {
            wr_id: self.wr_id.wrapping_add(1),
            addr: self.addr.wrapping_add(stride),
            ..self
        }
    }
}

impl Run {
    /// Takes a RECV that follows, if it is one.
    #[inline(always)]
    fn join(&mut self, recv: Recv) -> bool {
        if self.count == 1 {
            self.stride = recv.addr.wrapping_sub(self.first.addr);
            self.next = self.first.following(self.stride);
        }
        let joins = self.next == recv;
        if joins {
            self.next = recv.following(self.stride);
            self.count += 1;
        }
        joins
    }
}

/// RECVs that are posted together.
pub(crate) trait RecvList<E> {
    /// The next one, or why it is none.
    fn next(&mut self) -> Option<Result<Recv, E>>;
    /// Goes on behind the next one, if it is this.
    fn skip(&mut self, recv: &Recv) -> bool;
}

impl Recvs {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Adds RECVs up to the first that is refused, which is one behind `most` of them if none is before it; says why.
    #[inline(always)]
    pub(crate) fn extend<E>(
        &mut self,
        mut recvs: impl RecvList<E>,
        most: usize,
        full: E,
    ) -> Result<(), E> {
        loop {
            // Mostly all go on with the last run.
            if let Some(run) = self.runs.back_mut()
                && run.count > 1
            {
                let (mut next, room) = (run.next, most.saturating_sub(self.len));
                let mut more = 0;
                while more < room && recvs.skip(&next) {
                    next = next.following(run.stride);
                    more += 1;
                }
                run.next = next;
                run.count += more as u64;
                self.len += more;
            }
            let Some(recv) = recvs.next() else {
                return Ok(());
            };
            if self.len >= most {
                return Err(full);
            }
            let recv = recv?;
            self.len += 1;
            if !self.runs.back_mut().is_some_and(|run| run.join(recv)) {
                self.runs.push(Run {
                    first: recv,
                    next: recv,
                    stride: 0,
                    count: 1,
                });
            }
        }
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Recv> {
        let run = self.runs.front_mut()?;
        let recv = run.first;
        self.len -= 1;
        if run.count == 1 {
            self.runs.pop();
        } else {
            run.first = recv.following(run.stride);
            run.count -= 1;
        }
        Some(recv)
    }
}

/// WQEs that were posted together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    pub(crate) len: u32,
    /// By doorbell, else by MMIO.
    pub(crate) rung: bool,
    pub(crate) shape: u16,
}

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
    pub(crate) cache_slot: Option<crate::nic::CacheSlot>,
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

/// A completion that becomes visible at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cqe {
    pub(crate) at: Ps,
    pub(crate) wr_id: u64,
    pub(crate) byte_len: u32,
    pub(crate) imm: u32,
    pub(crate) qpn: u32,
    pub(crate) src_qp: u32,
    pub(crate) slid: u16,
    pub(crate) with_imm: bool,
    pub(crate) status: u8,
    pub(crate) opcode: u8,
}

/// A completion queue: a cache line, as there are many.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Cq {
    pub(crate) capacity: u32,
    pub(crate) overrun: bool,
    pub(crate) cqes: Line<Cqe>,
    /// What C sees of it; whoever gets a completion goes through it.
    pub(crate) handle: *const abi::ibv_cq,
    /// The thread that polled it last, and since when it has not waited.
    pub(crate) watcher: Option<u32>,
    pub(crate) stamp: u64,
}

const _: () = assert!(size_of::<Option<Cq>>() == 64);

impl Cq {
    /// A completion that becomes visible at its time, and then to the thread that waits for it.
    #[inline(always)]
    pub(crate) fn put(&mut self, cqe: Cqe, threads: &mut [Thread], events: &mut EventQueue<Event>) {
        if self.cqes.len() >= self.capacity as usize {
            self.overrun = true;
            return;
        }
        prefetch(self.handle);
        self.cqes.insert_by(cqe, |cqe| cqe.at);
        if let Some(thread) = self.watcher {
            wake(threads, events, thread, cqe.at);
        }
    }
}

/// A memory region.
#[derive(Debug)]
pub(crate) struct Mr {
    pub(crate) machine: u32,
    pub(crate) region: Region,
    pub(crate) access: i32,
    /// WRITEs that become visible at a time, the earliest first.
    pub(crate) writes: VecDeque<(Ps, u64, Payload)>,
    /// The thread that waits for WRITEs to it.
    pub(crate) watcher: Option<u32>,
}

impl Mr {
    /// A WRITE that becomes visible at its time, to the region with this key of a machine.
    #[inline(always)]
    #[expect(
        clippy::too_many_arguments,
        reason = "parts of the simulation that others hold at the same time"
    )]
    pub(crate) fn write_later(
        &mut self,
        key: u32,
        machine: &mut Machine,
        at: Ps,
        addr: u64,
        payload: Payload,
        threads: &mut [Thread],
        events: &mut EventQueue<Event>,
    ) {
        if machine.unsettled.is_empty() {
            machine.settles_at = at;
        }
        machine.settles_at = machine.settles_at.min(at);
        match self.writes.front() {
            None => machine.unsettled.push((at, key)),
            Some((first, ..)) if at < *first => {
                let mut unsettled = machine.unsettled.iter_mut();
                if let Some(region) = unsettled.find(|(_, other)| *other == key) {
                    region.0 = at;
                }
            }
            Some(_) => {}
        }
        insert_by(&mut self.writes, (at, addr, payload), |(at, ..)| *at);
        if let Some(thread) = self.watcher {
            wake(threads, events, thread, at);
        }
    }
}

/// A cache line that several cores add to.
#[derive(Debug)]
pub(crate) struct SharedLine {
    /// Its number: its address by the bytes of a line.
    pub(crate) number: u64,
    /// When it is free.
    pub(crate) free: Fifo,
    /// The thread that has it.
    pub(crate) owner: u32,
}

/// The simulation.
#[derive(Debug)]
pub(crate) struct World {
    /// Tells handles of this simulation from those of another.
    pub(crate) id: u64,
    pub(crate) costs: Costs,
    pub(crate) shapes: Shapes,
    pub(crate) now: Ps,
    pub(crate) events: EventQueue<Event>,
    pub(crate) machines: Vec<Machine>,
    pub(crate) qps: Vec<Option<Box<Qp>>>,
    pub(crate) cqs: Vec<Option<Cq>>,
    pub(crate) mrs: Vec<Option<Mr>>,
    pub(crate) messages: Messages,
    pub(crate) threads: Vec<Thread>,
    pub(crate) thread_names: Vec<String>,
    /// The running thread, its clock and machine, and since when it has not waited.
    pub(crate) current: Option<u32>,
    pub(crate) clock: Ps,
    pub(crate) home: u32,
    pub(crate) stamp: u64,
    /// Stamps that were given.
    pub(crate) stamps: u64,
    /// The end of the run.
    pub(crate) until: Ps,
    /// Cache lines that cores add to. Few are.
    pub(crate) shared_lines: Vec<SharedLine>,
    pub(crate) rng: u64,
}

impl World {
    pub(crate) fn new(id: u64, profile: &Profile, costs: Costs, seed: u64) -> Self {
        Self {
            id,
            shapes: Shapes::new(profile),
            costs,
            now: 0,
            events: EventQueue::new(),
            machines: Vec::new(),
            qps: vec![None],
            cqs: Vec::new(),
            mrs: vec![None],
            messages: Messages::default(),
            threads: Vec::new(),
            thread_names: Vec::new(),
            current: None,
            clock: 0,
            home: 0,
            stamp: 0,
            stamps: 0,
            until: 0,
            shared_lines: Vec::new(),
            rng: seed,
        }
    }

    /// The next number of the simulation's generator (splitmix64, Steele et al., OOPSLA 2014).
    pub(crate) fn random(&mut self) -> u64 {
        self.rng = self.rng.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.rng;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn machine(&mut self, index: u32) -> &mut Machine {
        &mut self.machines[index as usize]
    }

    pub(crate) fn qp(&mut self, index: u32) -> Option<&mut Qp> {
        self.qps.get_mut(index as usize)?.as_deref_mut()
    }

    /// Destroys a queue pair: what of it is under way is gone.
    pub(crate) fn remove_qp(&mut self, index: u32) {
        let Some(mut qp) = self.qps.get_mut(index as usize).and_then(Option::take) else {
            return;
        };
        for &(message, count) in qp.wqes.as_slice() {
            self.messages.free_some(message, count);
        }
        let machine = self.machine(qp.machine);
        qp.reads.forget(&mut machine.reading);
        let waiting = machine.waiting.len();
        machine.waiting.retain(|&other| other != index);
        let waited = machine.waiting.len() < waiting;
        if qp.in_service && !waited {
            self.free_unit(qp.machine, self.now);
        }
    }

    /// The region of a key on a machine.
    pub(crate) fn mr(&self, machine: u32, key: u32) -> Option<&Mr> {
        let mr = self.mrs.get(key as usize)?.as_ref()?;
        (mr.machine == machine).then_some(mr)
    }

    /// Runs an event that is not a thread's.
    pub(crate) fn happen(&mut self, event: Event, at: Ps) {
        match event {
            Event::Resume { .. } => {}
            Event::Announce { qp } => self.announced(qp, at),
            Event::Emit { qp } => self.emit(qp, at),
            Event::Handle { machine } => self.handle(machine),
            Event::Respond { message } => self.respond(message),
            Event::Return { message } => self.returned(message),
        }
    }

    /// A completion that becomes visible at its time.
    #[inline(always)]
    pub(crate) fn complete(&mut self, cq: u32, cqe: Cqe) {
        if let Some(Some(queue)) = self.cqs.get_mut(cq as usize) {
            queue.put(cqe, &mut self.threads, &mut self.events);
        }
    }

    /// A WRITE that becomes visible at its time.
    pub(crate) fn write_later(&mut self, key: u32, at: Ps, addr: u64, payload: Payload) {
        let Some(Some(mr)) = self.mrs.get_mut(key as usize) else {
            return;
        };
        let machine = &mut self.machines[mr.machine as usize];
        let (threads, events) = (&mut self.threads, &mut self.events);
        mr.write_later(key, machine, at, addr, payload, threads, events);
    }

    /// Makes visible what was written to the machine's memory up to a time.
    pub(crate) fn settle(&mut self, machine: u32, up_to: Ps) {
        let Self { machines, mrs, .. } = self;
        let Machine {
            unsettled,
            settles_at,
            ..
        } = &mut machines[machine as usize];
        if unsettled.is_empty() || *settles_at > up_to {
            return;
        }
        *settles_at = Ps::MAX;
        unsettled.retain_mut(|(first, key)| {
            if *first <= up_to {
                let Some(Some(mr)) = mrs.get_mut(*key as usize) else {
                    return false;
                };
                while let Some((_, addr, payload)) = mr.writes.pop_front_if(|(at, ..)| *at <= up_to)
                {
                    mr.region.write(addr, payload.bytes());
                }
                let Some((next, ..)) = mr.writes.front() else {
                    return false;
                };
                *first = *next;
            }
            *settles_at = (*settles_at).min(*first);
            true
        });
    }
}

/// Puts something among what is ordered by time, behind what is as early: seldom far from the end.
#[inline]
fn insert_by<T>(queue: &mut VecDeque<T>, new: T, at: impl Fn(&T) -> Ps) {
    let time = at(&new);
    if queue.back().is_none_or(|last| at(last) <= time) {
        queue.push_back(new);
        return;
    }
    let before = queue.iter().rposition(|other| at(other) <= time);
    queue.insert(before.map_or(0, |before| before + 1), new);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    struct List(VecDeque<Recv>);

    impl RecvList<()> for List {
        fn next(&mut self) -> Option<Result<Recv, ()>> {
            self.0.pop_front().map(Ok)
        }

        fn skip(&mut self, recv: &Recv) -> bool {
            self.0.pop_front_if(|first| first == recv).is_some()
        }
    }

    proptest! {
        /// Runs or not, RECVs come out as they went in.
        #[test]
        fn recvs_are_a_queue(steps in prop::collection::vec(prop::option::weighted(0.6, (0u64..3, 0u64..3, 0u32..2)), 0..200)) {
            let (mut recvs, mut model) = (Recvs::default(), VecDeque::new());
            let (mut wr_id, mut addr) = (u64::MAX - 20, 1000);
            let (mut posted, most) = (VecDeque::new(), 20);
            for step in steps {
                if let Some((id, distance, len)) = step {
                    (wr_id, addr) = (wr_id.wrapping_add(id), addr + 64 * distance);
                    let recv = Recv { wr_id, addr, len, lkey: 1 };
                    posted.push_back(recv);
                    continue;
                }
                // Together, as many as there is room for.
                let room = most - model.len();
                let expected = if posted.len() > room { Err(()) } else { Ok(()) };
                model.extend(posted.iter().take(room));
                prop_assert_eq!(recvs.extend(List(std::mem::take(&mut posted)), most, ()), expected);
                prop_assert_eq!(recvs.len(), model.len());
                prop_assert_eq!(recvs.pop(), model.pop_front());
                prop_assert_eq!(recvs.len(), model.len());
            }
            while let Some(recv) = model.pop_front() {
                prop_assert_eq!(recvs.pop(), Some(recv));
            }
            prop_assert_eq!(recvs.pop(), None);
        }
    }
}
