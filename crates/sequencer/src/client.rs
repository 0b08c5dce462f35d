//! The client: keeps a window of requests outstanding, measures, starts over when it must.

use std::collections::VecDeque;
use std::net::TcpStream;
use std::time::Duration;

use hdrhistogram::Histogram;
use rpc::exchange::{Answer, Call, Refused};
use rpc::{RpcError, UdPortConfig, datagram, herd};
use verbs::{Access, Context, PortGid, ProtectionDomain, Rc, Waiter, time};

use crate::lanes::{AtomicsLane, Lane, RpcLane, Sink, SpecLane};
use crate::rendezvous::{self, Accepted, Hello, Welcome};
use crate::server::{Door, Pass};
use crate::{ClientConfig, ClientReport, Design, Failures, Latency, OpenError, Unsupported, Until};

/// A client of a [`Server`](crate::Server). Dropping it disconnects it.
#[derive(Debug)]
pub struct Client {
    config: ClientConfig,
    port: PortGid,
    context: Context,
    pd: ProtectionDomain,
    session: Option<Session>,
    design: Design,
    sink: Sink,
    start: u64,
    /// The way to a server in this process; by TCP without it.
    door: Option<Door>,
}

/// Why a client cannot connect, or stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The configuration cannot work.
    #[error("{0}")]
    Config(String),
    /// The server cannot be reached, or is none.
    #[error("cannot reach a sequencer at {server}: {source}")]
    Reach {
        /// The address.
        server: String,
        /// Why.
        source: std::io::Error,
    },
    /// The server refused.
    #[error("the sequencer refused: {reason}")]
    Refused {
        /// Why.
        reason: String,
        /// Whether it may succeed later.
        retry: bool,
    },
    /// The device lacks what the server's design needs.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// The NIC cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A verb failed.
    #[error(transparent)]
    Verb(#[from] verbs::VerbError),
    /// The RPC layer failed.
    #[error(transparent)]
    Rpc(#[from] RpcError),
    /// Fewer numbers came than were asked for.
    #[error("got {got} of {wanted} numbers: {why}")]
    Short {
        /// Numbers that came.
        got: u64,
        /// Numbers that were asked for.
        wanted: u64,
        /// Why there are no more.
        why: String,
    },
}

impl From<Refused> for ClientError {
    fn from(Refused { reason, retry }: Refused) -> Self {
        Self::Refused { reason, retry }
    }
}

impl ClientError {
    /// Whether trying to connect again cannot help.
    fn is_hopeless(&self) -> bool {
        match self {
            Self::Reach { source, .. } => source.kind() == std::io::ErrorKind::InvalidInput,
            Self::Refused { retry, .. } => !retry,
            _ => true,
        }
    }
}

/// A connection: it ends when it is dropped, here and at the server.
#[derive(Debug)]
struct Session {
    lane: AnyLane,
    /// Only held: its end is the end of the session at the server.
    _held: Held,
}

/// What a session at a server hangs on.
#[derive(Debug)]
#[expect(dead_code, reason = "its end is what counts")]
enum Held {
    Tcp(TcpStream),
    Local(Pass),
}

#[derive(Debug)]
enum AnyLane {
    Atomics(Box<AtomicsLane>),
    Rpc(Box<RpcLane>),
    Spec(Box<SpecLane>),
}

impl Client {
    /// Connects to a server; tries for [`ClientConfig::reconnect_ms`] if it is not there (yet).
    pub fn connect(config: ClientConfig) -> Result<Self, ClientError> {
        config.check().map_err(ClientError::Config)?;
        let context = config.nic.open()?;
        Self::connect_on(&context, config)
    }

    /// Connects through a device that is open already, whatever [`ClientConfig::nic`] says of provider and
    /// device.
    pub fn connect_on(context: &Context, config: ClientConfig) -> Result<Self, ClientError> {
        Self::make(context, config, None)
    }

    /// Connects to a server in this process, whatever [`ClientConfig`] says of provider, device and server.
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
        let pd = context.alloc_pd()?;
        let mut client = Self {
            config,
            port,
            context: context.clone(),
            pd,
            session: None,
            design: Design::SpecS0,
            sink: Sink::default(),
            start: 0,
            door,
        };
        client.reconnect()?;
        Ok(client)
    }

    /// The design it uses.
    pub fn design(&self) -> Design {
        self.design
    }

    /// The first number of the server.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Gets numbers until the time is over or there are enough. Failures are in the report.
    pub fn run(&mut self, until: Until) -> ClientReport {
        let mut run = Run::new(until, &self.config);
        self.sink.numbers = crate::NumberSet::new();
        (self.sink.got, self.sink.not_increasing, self.sink.discarded) = (0, 0, 0);
        (self.sink.refused, self.sink.wrong_guesses) = (0, 0);
        loop {
            let Some(session) = &mut self.session else {
                match self.reconnect() {
                    Ok(()) => continue,
                    Err(e) => {
                        run.failures.ended = Some(e.to_string());
                        break;
                    }
                }
            };
            let end = match &mut session.lane {
                AnyLane::Atomics(lane) => run.drive(&mut **lane, &mut self.sink),
                AnyLane::Rpc(lane) => run.drive(&mut **lane, &mut self.sink),
                AnyLane::Spec(lane) => run.drive(&mut **lane, &mut self.sink),
            };
            match end {
                End::Done => break,
                // The next session guesses right: see `lanes`, rule 4.
                End::Renew => self.session = None,
                End::UsedUp => {
                    run.failures.ended = Some("the numbers are used up".to_owned());
                    break;
                }
                End::Broken { lost, why } => {
                    tracing::info!("{lost} requests lost, connecting again: {why}");
                    run.failures.lost += lost as u64;
                    run.failures.reconnects += 1;
                    // Queue pairs and connection go with it: see `lanes`, rule 5.
                    self.session = None;
                    if run.is_over(self.sink.got) {
                        break;
                    }
                }
            }
        }
        self.report(run)
    }

    /// Gets exactly `count` numbers.
    pub fn take(&mut self, count: u64) -> Result<Vec<u64>, ClientError> {
        self.sink.keep = Some(Vec::new());
        let report = self.run(Until::Count(count));
        let numbers = self.sink.keep.take().unwrap_or_default();
        if report.requests == count {
            return Ok(numbers);
        }
        let why = report
            .failures
            .ended
            .unwrap_or_else(|| "unknown".to_owned());
        Err(ClientError::Short {
            got: report.requests,
            wanted: count,
            why,
        })
    }

    fn report(&mut self, run: Run) -> ClientReport {
        let seconds = Duration::from_nanos(run.last.saturating_sub(run.started)).as_secs_f64();
        let mut numbers = std::mem::take(&mut self.sink.numbers);
        let requests = self.sink.got;
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let rate = if seconds > 0.0 {
            requests as f64 / seconds
        } else {
            0.0
        };
        ClientReport {
            design: self.design,
            window: self.config.window,
            requests,
            seconds,
            rate,
            latency: Latency::of(&run.latency.all()),
            doorbells: run.doorbells,
            wrong_guesses: self.sink.wrong_guesses,
            not_increasing: self.sink.not_increasing,
            duplicates: numbers.duplicates(),
            failures: Failures {
                discarded: self.sink.discarded,
                refused: self.sink.refused,
                ..run.failures
            },
            numbers,
        }
    }

    /// Opens a session, trying again while that may help.
    fn reconnect(&mut self) -> Result<(), ClientError> {
        let until = time::now() + self.config.reconnect();
        // A server in this process does not come back.
        let hopeless = |e: &ClientError| self.door.is_some() || e.is_hopeless();
        let (session, accepted) = rpc::exchange::persist(until, || self.open(), hopeless)?;
        if accepted.next < self.sink.above {
            return Err(ClientError::from(Refused::never(format!(
                "it goes on at {}, but {} was given already: it was started again without its state file",
                accepted.next,
                self.sink.above - 1
            ))));
        }
        self.design = accepted.design;
        self.start = accepted.start;
        self.session = Some(session);
        Ok(())
    }

    fn open(&self) -> Result<(Session, Accepted), ClientError> {
        match &self.door {
            Some(door) => self.enter(door),
            None => self.dial(),
        }
    }

    /// Opens a session by TCP.
    fn dial(&self) -> Result<(Session, Accepted), ClientError> {
        let server = &self.config.server;
        let reach = |source| ClientError::Reach {
            server: server.clone(),
            source,
        };
        let patience = self.config.reconnect().max(Duration::from_secs(1));
        let (call, welcome) = Call::dial(server, rendezvous::WHOSE, patience).map_err(reach)?;
        let (prepared, hello) = self.introduce(&welcome)?;
        let (answer, stream) = call.introduce(&hello).map_err(reach)?;
        match answer {
            Answer::Accepted(accepted) => self.settle(prepared, accepted, Held::Tcp(stream)),
            Answer::Refused(refused) => Err(refused.into()),
        }
    }

    /// Opens a session at a server in this process.
    fn enter(&self, door: &Door) -> Result<(Session, Accepted), ClientError> {
        let (prepared, hello) = self.introduce(&door.welcome())?;
        let (accepted, pass) = door.enter(&hello)?;
        self.settle(prepared, accepted, Held::Local(pass))
    }

    /// Looks at what the server offers; this side's queue pairs, and what to say to the server.
    fn introduce(&self, welcome: &Welcome) -> Result<(Prepared, Hello), ClientError> {
        let refused = |reason: String| ClientError::Refused {
            reason,
            retry: false,
        };
        if welcome.protocol != rendezvous::PROTOCOL || welcome.version != rendezvous::VERSION {
            let Welcome {
                protocol, version, ..
            } = welcome;
            return Err(refused(format!(
                "it speaks {protocol} {version}, this client {} {}",
                rendezvous::PROTOCOL,
                rendezvous::VERSION
            )));
        }
        let offered = welcome
            .designs
            .first()
            .copied()
            .ok_or_else(|| refused("it serves no design".to_owned()))?;
        let design = self.config.design.unwrap_or(offered);
        if !welcome.designs.contains(&design) {
            return Err(refused(format!("it serves design {offered}, not {design}")));
        }
        if self.config.window > welcome.max_window {
            return Err(refused(format!(
                "its largest window is {}, not {}",
                welcome.max_window, self.config.window
            )));
        }
        design.check(self.context.capabilities()?)?;
        let prepared = self.prepare(design)?;
        let mut hello = Hello {
            version: rendezvous::VERSION,
            design,
            window: self.config.window,
            rc: None,
            uc: None,
            ud: None,
        };
        match &prepared {
            Prepared::Atomics(qp, _) => hello.rc = Some(qp.endpoint()),
            Prepared::Rpc(c) => {
                (hello.uc, hello.ud) = (Some(c.uc_endpoint()), Some(c.ud_endpoint()))
            }
            Prepared::Spec(c) => hello.ud = Some(c.endpoint()),
        }
        Ok((prepared, hello))
    }

    /// Connects this side as the server answered.
    fn settle(
        &self,
        prepared: Prepared,
        accepted: Accepted,
        held: Held,
    ) -> Result<(Session, Accepted), ClientError> {
        let lane = self.attach(prepared, &accepted)?;
        let session = Session { lane, _held: held };
        Ok((session, accepted))
    }

    /// This side's queue pairs, as far as they can be without the server.
    fn prepare(&self, design: Design) -> Result<Prepared, ClientError> {
        let (nic, window) = (self.port, self.config.window);
        let depth = u32::try_from(window.max(64)).unwrap_or(u32::MAX);
        // No more answers are under way than requests; a little more for what a network delivers twice. Every RECV is
        // two cache lines that are used in turn.
        let recv_depth = u32::try_from(window.max(8)).unwrap_or(u32::MAX);
        let port = UdPortConfig {
            port_num: nic.port_num,
            gid_index: Some(nic.gid_index),
            send_depth: (depth * 2).max(256),
            recv_depth,
            recv_payload: 8,
            send_payload: 16,
            ..UdPortConfig::default()
        };
        match design {
            Design::Atomics => {
                let cq = self.context.create_cq(depth + 4)?;
                let qp = self
                    .pd
                    .qp::<Rc>(&cq, &cq)
                    .port_num(nic.port_num)
                    .gid_index(nic.gid_index)
                    .max_send_wr(depth + 4)
                    .max_recv_wr(1)
                    .inline_up_to(0);
                Ok(Prepared::Atomics(qp.build()?, cq))
            }
            Design::SpecS0 => Ok(Prepared::Spec(datagram::Client::new(&self.pd, &port)?)),
            Design::Rpc | Design::RpcBatch | Design::RpcBatchMq => Ok(Prepared::Rpc(
                herd::PreparedClient::new(&self.pd, 0, &port)?,
            )),
        }
    }

    fn attach(&self, prepared: Prepared, accepted: &Accepted) -> Result<AnyLane, ClientError> {
        let window = self.config.window;
        let lacks = |what: &str| ClientError::Config(format!("the server's answer lacks {what:?}"));
        Ok(match prepared {
            Prepared::Atomics(qp, cq) => {
                let remote = accepted
                    .counter
                    .zip(accepted.limit)
                    .ok_or_else(|| lacks("counter"))?;
                let results = self.pd.alloc((window + 1) * 8, Access::LOCAL_WRITE)?;
                let qp = qp.connect(&accepted.endpoint)?;
                AnyLane::Atomics(Box::new(AtomicsLane::new(
                    qp,
                    cq,
                    results,
                    window,
                    remote,
                    accepted.end,
                )?))
            }
            Prepared::Rpc(client) => {
                let (slots, layout) = accepted
                    .slots
                    .zip(accepted.layout)
                    .ok_or_else(|| lacks("slots"))?;
                let client = client.connect(&accepted.endpoint, slots, layout)?;
                AnyLane::Rpc(Box::new(RpcLane::new(client, window)))
            }
            Prepared::Spec(mut client) => {
                client.connect(self.pd.ud_destination_from(self.port, &accepted.endpoint)?);
                AnyLane::Spec(Box::new(SpecLane::new(client, window, accepted.next)))
            }
        })
    }
}

enum Prepared {
    Atomics(verbs::PreparedQp<Rc>, verbs::CompletionQueue),
    Rpc(herd::PreparedClient),
    Spec(datagram::Client),
}

/// How a session ended.
enum End {
    Done,
    /// Nothing is wrong, but it goes on in a new session.
    Renew,
    UsedUp,
    Broken {
        lost: usize,
        why: String,
    },
}

/// A run over one or more sessions.
#[repr(C)]
struct Run {
    count: u64,
    batch: usize,
    /// Times are in nanoseconds, as [`time::now_ns`] says them.
    end: Option<u64>,
    deadline_ns: u64,
    doorbells: u64,
    last: u64,
    latency: Latencies,
    started: u64,
    failures: Failures,
}

/// Longer latencies than a minute count as that, in nanoseconds.
const MOST_LATENCY_NS: u64 = 60_000_000_000;

/// A histogram and what is not in it yet. With hundreds of clients on a simulated NIC it is in no cache when it is needed:
/// so it is, once for several latencies.
#[repr(C)]
struct Latencies {
    count: usize,
    recent: [u64; RECENT],
    histogram: Histogram<u64>,
}

/// Latencies that are kept until they are put into the histogram.
const RECENT: usize = 8;

impl Latencies {
    fn new(digits: u8) -> Self {
        Self {
            recent: [0; RECENT],
            count: 0,
            histogram: Histogram::new(digits).expect("checked with the configuration"),
        }
    }

    /// In nanoseconds.
    #[inline]
    fn add(&mut self, nanos: u64) {
        self.recent[self.count] = nanos;
        self.count += 1;
        if self.count == RECENT {
            self.flush();
        }
    }

    #[inline(never)]
    fn flush(&mut self) {
        for &nanos in &self.recent[..self.count] {
            // It grows up to this value: ten thousand simulated clients have one each.
            self.histogram += nanos.min(MOST_LATENCY_NS);
        }
        self.count = 0;
    }

    /// With all that were added.
    fn all(mut self) -> Histogram<u64> {
        self.flush();
        self.histogram
    }
}

impl Run {
    fn new(until: Until, config: &ClientConfig) -> Self {
        let started = time::now_ns();
        let (count, end) = match until {
            Until::Count(n) => (n, None),
            // A time too long to represent is for ever.
            Until::DurationMs(ms) => (u64::MAX, ms.saturating_mul(1_000_000).checked_add(started)),
        };
        Self {
            count,
            end,
            batch: config.batch.min(config.window),
            deadline_ns: u64::try_from(config.deadline().as_nanos()).unwrap_or(u64::MAX),
            started,
            last: started,
            latency: Latencies::new(config.latency_digits),
            doorbells: 0,
            failures: Failures::default(),
        }
    }

    fn is_over(&self, got: u64) -> bool {
        got >= self.count || self.end.is_some_and(|end| time::now_ns() >= end)
    }

    /// Keeps the lane's window full until the run is over. The clock is read once a postlist.
    ///
    /// Its frame has nothing but what this loop needs: of hundreds of simulated clients none is in a processor's caches.
    #[inline(never)]
    fn drive<L: Lane>(&mut self, lane: &mut L, sink: &mut Sink) -> End {
        let broken = |lane: &L, why: &dyn std::fmt::Display| End::Broken {
            lost: lane.outstanding(),
            why: why.to_string(),
        };
        let (mut sent, mut answered) = (0u64, 0u64);
        // Postlists under way: requests sent up to and with it, and when.
        let mut marks: VecDeque<(u64, u64)> = VecDeque::with_capacity(lane.room() + 1);
        let mut waiter = Waiter::never_sleeping().with_patience(128, u32::MAX - 128);
        let (mut stopping, mut progress, mut since) = (false, false, time::now_ns());
        let refused = sink.refused;
        let mut fresh = None;
        loop {
            if !stopping {
                let left = self.count - sink.got - lane.outstanding() as u64;
                let room = lane.room().min(usize::try_from(left).unwrap_or(usize::MAX));
                // Full postlists while answers come; what there is when none have come for a while.
                if room >= self.batch || (room > 0 && waiter.misses() >= 16) {
                    let n = room.min(self.batch);
                    if let Err(e) = lane.send(n, sink.above) {
                        return broken(lane, &e);
                    }
                    self.doorbells += 1;
                    sent += n as u64;
                    // The time at which the last answers were seen, a poll ago, is good enough.
                    let now = fresh.take().unwrap_or_else(time::now_ns);
                    marks.push_back((sent, now));
                    stopping = self.end.is_some_and(|end| now >= end);
                }
            }
            let got = match lane.poll(sink) {
                Ok(got) => got,
                Err(e) => return broken(lane, &e),
            };
            if got > 0 {
                waiter.reset();
                progress = true;
                answered += got as u64;
                if marks.front().is_some_and(|m| m.0 <= answered) {
                    self.last = time::now_ns();
                    fresh = Some(self.last);
                    while let Some((_, at)) = marks.pop_front_if(|m| m.0 <= answered) {
                        self.latency.add(self.last.saturating_sub(at));
                    }
                }
                stopping |= sink.refused > refused;
                continue;
            }
            if lane.outstanding() == 0 {
                if sink.refused > refused {
                    return End::UsedUp;
                }
                if stopping || sink.got >= self.count {
                    return End::Done;
                }
                if lane.is_used_up() {
                    return End::Renew;
                }
            }
            fresh = None;
            // Until an answer comes there is nothing to send, and the clock is only looked at.
            if !progress
                && (stopping || lane.room() == 0)
                && lane.outstanding() > 0
                && lane.only_polls()
            {
                let late = since.saturating_add(self.deadline_ns);
                let end = self.end.filter(|_| !stopping);
                waiter.idle_polling(end.map_or(late, |end| end.min(late)));
            } else {
                waiter.idle();
            }
            if waiter.misses().is_multiple_of(256) {
                let now = time::now_ns();
                stopping |= self.end.is_some_and(|end| now >= end);
                if std::mem::take(&mut progress) {
                    since = now;
                } else if now.saturating_sub(since) > self.deadline_ns {
                    return broken(lane, &"no answer came before the deadline");
                }
            }
        }
    }
}
