//! Requests under way: a window of them, sent in postlists, answered in any order, sent again when answers are lost.

mod open;

use std::collections::VecDeque;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Instant;

use rpc::RpcError;
use rpc::exchange::Refused;
use verbs::{Context, PortGid, ProtectionDomain, Waiter, time};

use open::Opened;

use super::ClientError;
use super::lane::{Ended, Lane};
use super::one_sided::Steps;
use super::reach::{Found, Reach};
use super::records::{Done, Locations, Records};
use crate::server::{Door, Pass, random};
use crate::store::{MAX_KEY_BYTES, MAX_VALUE_BYTES, hash_of, partition_of};
use crate::wire::{self, Op, Status};
use crate::{ClientConfig, Design};

/// How a request went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer<'a> {
    /// A GET found this.
    Value {
        /// The value.
        value: &'a [u8],
        /// Its version.
        version: u64,
    },
    /// A PUT set the value, which has this version now; a DELETE removed the one that had it.
    Done {
        /// The version.
        version: u64,
    },
    /// The key is not there.
    NotFound,
    /// The condition does not hold.
    Condition {
        /// The version that is there, 0 for none.
        version: u64,
    },
    /// The store is full.
    Full,
    /// Key or value are too long for the server, or the value for this client's messages.
    TooLong,
    /// No answer came in time. A change may have been made, and is not made later.
    Lost,
}

/// An answered request.
#[derive(Debug, Clone, Copy)]
pub struct Completion<'a> {
    /// What was given with the request.
    pub token: u64,
    /// How it went.
    pub answer: Answer<'a>,
    /// When it was sent, about: the time that the pipeline read last before.
    pub sent: Instant,
    /// When its answer was seen.
    pub seen: Instant,
}

/// What a client has had to do beside its requests.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Trouble {
    /// Requests that were sent again over new queue pairs.
    pub retries: u64,
    /// Times that it connected again.
    pub reconnects: u64,
    /// Requests that got no answer before their deadline.
    pub lost: u64,
    /// Answers to no request.
    pub discarded: u64,
    /// Items that were being changed while they were READ, and were READ again.
    #[serde(default)]
    pub torn: u64,
    /// Requests that could not be carried out without the server, so that it was asked.
    #[serde(default)]
    pub asked: u64,
    /// Locks that others had when this client wanted them.
    #[serde(default)]
    pub contended: u64,
}

/// A request under way.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) token: u64,
    /// Whether it is under way.
    pub(super) used: bool,
    pub(super) is_get: bool,
    pub(super) lane: usize,
    /// Number of the change; 0 of a GET.
    pub(super) seq: u32,
    /// When it was submitted, among the others.
    pub(super) order: u64,
    /// Its bytes, in case they have to be sent again.
    pub(super) bytes: Vec<u8>,
    /// A value that comes in several messages, and how much of it has come.
    pub(super) chunks: Vec<u8>,
    pub(super) came: usize,
    pub(super) sent: Instant,
    /// When the connection broke it may have been made.
    uncertain: bool,
}

/// The low level of a client: requests with tokens of the caller's, no allocation.
///
/// ```no_run
/// use kv::{Answer, ClientConfig, Op, Pipeline};
/// let mut pipeline = Pipeline::connect(ClientConfig { server: "127.0.0.1:7472".into(), ..Default::default() })?;
/// for (token, key) in [b"one", b"two"].iter().enumerate() {
///     assert!(pipeline.submit(&Op::Get { key: *key }, token as u64)?, "the window has room for two");
/// }
/// while pipeline.outstanding() > 0 {
///     pipeline.poll(|done| println!("{}: {:?}", done.token, done.answer))?;
/// }
/// # Ok::<(), kv::ClientError>(())
/// ```
#[derive(Debug)]
pub struct Pipeline {
    config: ClientConfig,
    port: PortGid,
    context: Context,
    pd: ProtectionDomain,
    /// The way to a server in this process; by TCP without it.
    door: Option<Door>,
    /// The name of the session.
    session: u64,
    seed: u64,
    lanes: Vec<Lane>,
    /// The way into the server's memory, where its design has one.
    reach: Option<Way>,
    /// The design that is served.
    design: Design,
    /// Requests about which the server must be asked, and is not yet.
    asking: VecDeque<u32>,
    held: Option<Held>,
    pending: Vec<Pending>,
    free: Vec<u32>,
    order: u64,
    /// The time, as read last.
    now: Instant,
    polls: u32,
    waiter: Waiter,
    trouble: Trouble,
    buffer: Vec<u8>,
}

/// A way into the server's memory.
#[derive(Debug)]
enum Way {
    Logs(Box<Reach>),
    Records(Box<Records>),
}

impl Way {
    /// Whether this client makes changes itself.
    #[inline]
    fn changes(&self) -> bool {
        matches!(self, Way::Records(records) if records.changes())
    }

    #[inline]
    fn begin(&mut self, pending: &Pending, slot: u32, hash: u64) {
        match self {
            Way::Logs(logs) => logs.begin(slot, pending.lane, hash),
            Way::Records(records) => records.begin(pending, slot, hash),
        }
    }

    fn doorbells(&self) -> u64 {
        match self {
            Way::Logs(logs) => logs.queue.doorbells,
            Way::Records(records) => records.queue.doorbells,
        }
    }
}

/// What a session at a server hangs on.
#[derive(Debug)]
#[expect(dead_code, reason = "its end is what counts")]
enum Held {
    Tcp(TcpStream),
    Local(Pass),
}

impl Pipeline {
    /// Connects to a server; tries for [`ClientConfig::deadline_ms`] if it is not there (yet).
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn connect(config: ClientConfig) -> Result<Self, ClientError> {
        config.check().map_err(ClientError::Config)?;
        let context = config.nic.open()?;
        Self::make(&context, config, None)
    }

    /// Connects through a device that is open already, whatever [`ClientConfig::nic`] says of provider and device.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn connect_on(context: &Context, config: ClientConfig) -> Result<Self, ClientError> {
        Self::make(context, config, None)
    }

    /// Connects to a server in this process, whatever [`ClientConfig`] says of provider, device and server.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn connect_through(
        door: Door,
        context: &Context,
        config: ClientConfig,
    ) -> Result<Self, ClientError> {
        Self::make(context, config, Some(door))
    }

    fn make(
        context: &Context,
        config: ClientConfig,
        door: Option<Door>,
    ) -> Result<Self, ClientError> {
        config.check().map_err(ClientError::Config)?;
        let port = config.nic.port(context)?;
        let now = time::now();
        let pending = |_| Pending {
            token: 0,
            used: false,
            is_get: false,
            lane: 0,
            seq: 0,
            order: 0,
            bytes: Vec::new(),
            chunks: Vec::new(),
            came: 0,
            sent: now,
            uncertain: false,
        };
        let window = u32::try_from(config.window).unwrap_or(1);
        let mut pipeline = Self {
            pd: context.alloc_pd()?,
            context: context.clone(),
            port,
            door,
            session: random(),
            seed: 0,
            lanes: Vec::new(),
            reach: None,
            design: Design::Herd,
            asking: VecDeque::new(),
            held: None,
            pending: (0..window).map(pending).collect(),
            free: (0..window).rev().collect(),
            order: 0,
            now,
            polls: 0,
            waiter: Waiter::never_sleeping().with_patience(128, u32::MAX - 128),
            trouble: Trouble::default(),
            buffer: Vec::new(),
            config,
        };
        pipeline.reconnect(pipeline.now + pipeline.config.deadline())?;
        Ok(pipeline)
    }

    /// What requests of a store of records are made of.
    #[cfg(test)]
    pub(super) fn parts(&mut self) -> (&mut Records, &mut [Pending], &mut Trouble) {
        let Some(Way::Records(records)) = &mut self.reach else {
            panic!("a store without records");
        };
        (records, &mut self.pending, &mut self.trouble)
    }

    /// Requests that are under way.
    #[inline]
    pub fn outstanding(&self) -> usize {
        self.pending.len() - self.free.len()
    }

    /// Its configuration.
    pub fn config(&self) -> &ClientConfig {
        &self.config
    }

    /// What it has had to do beside its requests.
    pub fn trouble(&self) -> &Trouble {
        &self.trouble
    }

    /// Which server it is connected to: a number that is another one after a server was started anew.
    pub fn server(&self) -> u64 {
        self.seed
    }

    /// What this client knows about where keys are, where it changes records itself.
    pub fn locations(&self) -> Option<&Arc<Locations>> {
        match &self.reach {
            Some(Way::Records(records)) if records.changes() => Some(records.locations()),
            _ => None,
        }
    }

    /// Uses what others know about where keys are, and tells them: as long as this connection lasts.
    pub fn share_locations(&mut self, locations: Arc<Locations>) {
        if let Some(Way::Records(records)) = &mut self.reach {
            records.share(locations);
        }
    }

    /// Doorbells that requests took.
    pub fn doorbells(&self) -> u64 {
        let lanes = self.lanes.iter().map(|lane| lane.doorbells).sum::<u64>();
        lanes + self.reach.as_ref().map_or(0, Way::doorbells)
    }

    /// Takes a request on, if there is room in the window; false if there is none, and the caller polls first. It is
    /// sent with those after it: by [`poll`](Self::poll) at the latest.
    ///
    /// # Errors
    /// [`ClientError::TooLong`]. A connection that breaks is repaired by [`poll`](Self::poll).
    #[inline]
    pub fn submit(&mut self, op: &Op<'_>, token: u64) -> Result<bool, ClientError> {
        let Some(&slot) = self.free.last() else {
            return Ok(false);
        };
        let key = op.key();
        if let Op::Put { value, .. } = op
            && value.len() > MAX_VALUE_BYTES
        {
            return Err(ClientError::TooLong);
        }
        if key.len() > MAX_KEY_BYTES {
            return Err(ClientError::TooLong);
        }
        if let Some(Way::Records(records)) = &self.reach {
            if let Op::Put { ttl_ms: 1.., .. } = op {
                return Err(ClientError::NotPromised {
                    design: self.design,
                    lacks: "keeps no times to live in its records; herd does, and reads with a read size of 0",
                });
            }
            if records.changes() && !records.fits(op) {
                return Err(ClientError::TooLong);
            }
        }
        // A request that needs no room in a lane, and its hash.
        let reads = self
            .reach
            .as_ref()
            .is_some_and(|r| !op.is_change() || r.changes());
        let hash = if reads || self.lanes.len() > 1 {
            hash_of(key, self.seed)
        } else {
            0
        };
        let number = match self.lanes.len() {
            0 => return Ok(false),
            lanes => partition_of(hash, lanes),
        };
        let lane = &mut self.lanes[number];
        if !reads && !lane.has_room(op.is_change()) {
            return Ok(false);
        }
        self.free.pop();
        let seq = if op.is_change() && !reads {
            lane.next_seq()
        } else {
            0
        };
        let pending = &mut self.pending[slot as usize];
        op.encode(seq, &mut pending.bytes);
        pending.token = token;
        pending.used = true;
        pending.is_get = !op.is_change();
        pending.lane = number;
        pending.seq = seq;
        pending.order = self.order;
        pending.came = 0;
        pending.uncertain = false;
        pending.sent = self.now;
        self.order += 1;
        if let Some(reach) = self.reach.as_mut().filter(|_| reads) {
            reach.begin(pending, slot, hash);
            return Ok(true);
        }
        if lane.is_idle() {
            // The silence before does not count.
            lane.alive = self.now;
        }
        if let Err(e) = lane.take_on(slot, &pending.bytes) {
            lane.broken.get_or_insert(e);
        }
        Ok(true)
    }

    /// Sends what was submitted, and takes answers: calls `each` for every request that is done. Returns how many were.
    /// When nothing comes for long, connects again and sends everything again; may then block for as long as
    /// requests may take.
    ///
    /// # Errors
    /// When the server cannot be reached any more. Requests under way are lost then, and `each` has heard of them.
    #[inline]
    pub fn poll(&mut self, mut each: impl FnMut(Completion<'_>)) -> Result<usize, ClientError> {
        let mut done = 0;
        let mut broken = None;
        for lane in &mut self.lanes {
            let (pending, free, trouble) = (&mut self.pending, &mut self.free, &mut self.trouble);
            let (now, buffer, before) = (&mut self.now, &mut self.buffer, done);
            let reach = &mut self.reach;
            let polled = lane.poll(pending, trouble, buffer, |pending, slot, ended| {
                if done == before {
                    *now = time::now();
                }
                let answer = match reach {
                    Some(Way::Records(records)) if records.has_asked(slot) => {
                        let said = (ended.status, ended.version);
                        match records.answered(pending, slot, said) {
                            Some(answer) => answer,
                            None => return,
                        }
                    }
                    _ => answer(pending.is_get, &ended),
                };
                done += 1;
                pending.used = false;
                free.push(slot);
                each(Completion {
                    token: pending.token,
                    answer,
                    sent: pending.sent,
                    seen: *now,
                });
            });
            match polled {
                Ok(0) => {}
                // Parts of a long request are signs of life, too.
                Ok(_) => {
                    if done == before {
                        self.now = time::now();
                    }
                    lane.alive = self.now;
                }
                Err(e) => {
                    broken.get_or_insert(e);
                }
            }
        }
        let mut moved = done;
        if self.reach.is_some() {
            match self.poll_reach(&mut each, &mut done) {
                Ok(reads) => moved += reads,
                Err(e) => {
                    broken.get_or_insert(e);
                }
            }
        }
        self.polls = self.polls.wrapping_add(1);
        if moved > 0 {
            self.waiter.reset();
        } else if self.outstanding() > 0 {
            self.waiter.idle();
        }
        if self.polls.is_multiple_of(1024) || self.waiter.misses() % 256 == 255 {
            self.now = time::now();
            let answer = self.config.answer();
            let silent = |l: &Lane| !l.is_idle() && self.now.duration_since(l.alive) > answer;
            if self.lanes.iter().any(silent) {
                let why = RpcError::Config("no answer came in time".to_owned());
                broken.get_or_insert(why);
            }
        }
        if self.lanes.is_empty() {
            let why = RpcError::Config("there is no connection".to_owned());
            broken.get_or_insert(why);
        }
        match broken {
            None => Ok(done),
            Some(why) => self.repair(&why, &mut each).map(|lost| done + lost),
        }
    }

    /// Takes what has been READ, and asks the server for what READs could not answer. Returns how many READs came.
    #[inline]
    fn poll_reach(
        &mut self,
        each: &mut impl FnMut(Completion<'_>),
        done: &mut usize,
    ) -> Result<usize, RpcError> {
        let Some(reach) = &mut self.reach else {
            return Ok(0);
        };
        let (free, asking, now) = (&mut self.free, &mut self.asking, &mut self.now);
        let mut first = true;
        let mut over = |pending: &mut Pending, slot, answer: Answer<'_>| {
            if std::mem::take(&mut first) {
                *now = time::now();
            }
            *done += 1;
            pending.used = false;
            free.push(slot);
            each(Completion {
                token: pending.token,
                answer,
                sent: pending.sent,
                seen: *now,
            });
        };
        let (all, trouble) = (&mut self.pending, &mut self.trouble);
        let came = match reach {
            Way::Logs(logs) => logs.go_on(all, trouble, |pending, slot, found| match found {
                Found::Value { version, value } => {
                    over(pending, slot, Answer::Value { value, version });
                }
                Found::Ask => asking.push_back(slot),
            })?,
            Way::Records(records) => {
                records.poll(all, trouble, |pending, slot, what| match what {
                    Done::Answer(answer) => over(pending, slot, answer),
                    Done::Ask => asking.push_back(slot),
                })?
            }
        };
        while let Some(&slot) = self.asking.front() {
            let pending = &self.pending[slot as usize];
            let lane = &mut self.lanes[pending.lane];
            if !lane.has_room(false) {
                break;
            }
            self.asking.pop_front();
            self.trouble.asked += 1;
            if lane.is_idle() {
                lane.alive = self.now;
            }
            match reach {
                Way::Logs(_) => self.buffer.clone_from(&pending.bytes),
                Way::Records(records) => records.question(pending, slot, &mut self.buffer),
            }
            if let Err(e) = lane.take_on(slot, &self.buffer) {
                lane.broken.get_or_insert(e);
            }
        }
        Ok(came)
    }

    /// Takes a new time for requests that are submitted after a pause.
    pub fn refresh(&mut self) {
        self.now = time::now();
    }

    /// Starts over with new queue pairs; what is under way is sent again, but for what has taken too long already.
    #[cold]
    fn repair(
        &mut self,
        why: &RpcError,
        each: &mut impl FnMut(Completion<'_>),
    ) -> Result<usize, ClientError> {
        tracing::info!("connecting again, {} under way: {why}", self.outstanding());
        let deadline = self.config.deadline();
        let oldest = self.pending.iter().filter(|p| p.used).map(|p| p.sent).min();
        let until = oldest.unwrap_or(self.now) + deadline;
        if let Some(Way::Records(records)) = &self.reach {
            for (slot, pending) in (0..).zip(&mut self.pending) {
                pending.uncertain = pending.used && records.may_have_changed(slot);
            }
        }
        let connected = self.reconnect(until.max(time::now() + self.config.answer()));
        self.now = time::now();
        self.trouble.reconnects += 1;
        let mut order: Vec<u32> = (0..).take(self.pending.len()).collect();
        order.retain(|&slot| self.pending[slot as usize].used);
        order.sort_by_key(|&slot| self.pending[slot as usize].order);
        let mut lost = 0;
        for slot in order {
            let pending = &mut self.pending[slot as usize];
            // A change that may have been made is not made again.
            let over = self.now.duration_since(pending.sent) >= deadline || pending.uncertain;
            if over || connected.is_err() {
                pending.used = false;
                self.free.push(slot);
                lost += 1;
                each(Completion {
                    token: pending.token,
                    answer: Answer::Lost,
                    sent: pending.sent,
                    seen: self.now,
                });
                continue;
            }
            pending.came = 0;
            self.trouble.retries += 1;
            if let Some(reach) = &mut self.reach
                && (pending.is_get || reach.changes())
                && let Some(key) = wire::key_of(&pending.bytes)
            {
                reach.begin(pending, slot, hash_of(key, self.seed));
                continue;
            }
            let lane = &mut self.lanes[pending.lane];
            lane.resume(pending.seq);
            if let Err(e) = lane.take_on(slot, &pending.bytes) {
                lane.broken.get_or_insert(e);
            }
        }
        self.trouble.lost += lost as u64;
        if connected.is_err() {
            // Changes begin again from number 1, so that they are others' to the server.
            self.lanes.clear();
            self.reach = None;
            self.session = random();
        }
        connected.map(|()| lost)
    }

    /// Opens a session, trying again while that may help.
    fn reconnect(&mut self, until: Instant) -> Result<(), ClientError> {
        let before: Vec<u32> = self.lanes.iter().map(Lane::last_seq).collect();
        // Old queue pairs go first: a late answer finds nobody, and the server hears that this client is gone.
        self.lanes.clear();
        (self.reach, self.held) = (None, None);
        self.asking.clear();
        // A server in this process does not come back.
        let hopeless = |e: &ClientError| self.door.is_some() || e.is_hopeless();
        let opened = rpc::exchange::persist(until, || self.open(), hopeless)?;
        let Opened {
            lanes,
            reach,
            held,
            seed,
            design,
        } = opened;
        let never = |reason: String| ClientError::from(Refused::never(reason));
        if !before.is_empty() && before.len() != lanes.len() {
            return Err(never(
                "it came back with another number of partitions".to_owned(),
            ));
        }
        if !before.is_empty() && design != self.design {
            // Changes are numbered with some, and made by clients themselves with another.
            return Err(never(format!(
                "it came back with design {design} instead of {}",
                self.design
            )));
        }
        (self.lanes, self.reach, self.held) = (lanes, reach, Some(held));
        self.design = design;
        if seed != self.seed && !before.is_empty() {
            // A new server: keys have other partitions, and it knows nothing of what was asked before.
            self.reassign(seed);
        } else {
            for (lane, seq) in self.lanes.iter_mut().zip(before) {
                lane.go_on_from(seq);
            }
        }
        self.seed = seed;
        Ok(())
    }

    /// Gives what is under way to the partitions of a server that hashes otherwise, with new numbers.
    fn reassign(&mut self, seed: u64) {
        let mut order: Vec<&mut Pending> = self.pending.iter_mut().filter(|p| p.used).collect();
        order.sort_by_key(|p| p.order);
        for pending in order {
            let Some(key) = wire::key_of(&pending.bytes) else {
                continue;
            };
            pending.lane = partition_of(hash_of(key, seed), self.lanes.len());
            if pending.seq != 0 {
                pending.seq = self.lanes[pending.lane].issue();
                pending.bytes[4..8].copy_from_slice(&pending.seq.to_le_bytes());
            }
        }
    }
}

/// What an answer means.
#[inline]
fn answer<'a>(is_get: bool, ended: &Ended<'a>) -> Answer<'a> {
    let version = ended.version;
    match ended.status {
        Status::Ok if is_get => Answer::Value {
            value: ended.value,
            version,
        },
        Status::Ok => Answer::Done { version },
        Status::NotFound => Answer::NotFound,
        Status::Condition => Answer::Condition { version },
        Status::Full => Answer::Full,
        Status::TooLong => Answer::TooLong,
        // What this client sends is a request, unless the server is of another kind.
        Status::Bad | Status::Part | Status::Busy => Answer::Lost,
    }
}
