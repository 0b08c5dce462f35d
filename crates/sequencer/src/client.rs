//! The client: keeps a window of requests outstanding, measures, and opens a new session when necessary.

use std::time::Duration;

use rpc::{BufferedUdQpConfig, RpcError, datagram, herd};
use service::{
    ClientRefusal, ClientSession, ConnectError, LatencySummary, Protocol, ServerLocation,
};
use verbs::{Access, Context, PortAndGidIndex, ProtectionDomain, Rc, time};

use crate::lanes::{AtomicsLane, LaneResults, RpcLane, SpecLane, SpreadLane};
use crate::rendezvous::{Accepted, Hello, RendezvousProtocol, ServerOffer};
use crate::run::{ClientRun, SessionEnd};
use crate::{ClientConfig, ClientReport, Connector, Design, FailureCounts, RunLimit};

/// A client of a [`Server`](crate::Server). Dropping the client disconnects it.
#[derive(Debug)]
pub struct Client {
    config: ClientConfig,
    port: PortAndGidIndex,
    context: Context,
    pd: ProtectionDomain,
    session: Option<Session>,
    design: Design,
    results: LaneResults,
    first_number_of_server: u64,
    server_location: ServerLocation<RendezvousProtocol>,
}

/// The reason why a client cannot connect, or stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The client cannot connect.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A verb failed.
    #[error(transparent)]
    Verb(#[from] verbs::VerbError),
    /// The RPC layer failed.
    #[error(transparent)]
    Rpc(#[from] RpcError),
    /// The client got fewer numbers than requested.
    #[error("got {received} of {requested} numbers: {why}")]
    TooFewNumbers {
        /// Numbers that the client got.
        received: u64,
        /// Numbers that were requested.
        requested: u64,
        /// The reason why the run ended.
        why: String,
    },
}

verbs::from_verb_errors!(ClientError);

impl ClientError {
    fn permanently_refused(reason: String) -> Self {
        ConnectError::refused::<RendezvousProtocol>(ClientRefusal::permanent(reason)).into()
    }

    /// Returns true if another attempt to connect cannot help.
    fn is_hopeless(&self) -> bool {
        match self {
            Self::Connect(e) => e.is_permanent(),
            _ => true,
        }
    }
}

/// A session: dropping it ends the session at the client and at the server.
#[derive(Debug)]
struct Session {
    lane: AnyLane,
    /// Held only to be dropped: the end of the connection ends the session at the server.
    _connection: ClientSession,
}

#[derive(Debug)]
enum AnyLane {
    Atomics(Box<AtomicsLane>),
    Rpc(Box<RpcLane>),
    Spread(Box<SpreadLane>),
    Spec(Box<SpecLane>),
}

impl Client {
    /// Connects to a server. Retries for [`ClientConfig::reconnect_timeout_ms`] if the server is not reachable yet.
    pub fn connect(config: ClientConfig) -> Result<Self, ClientError> {
        config.check().map_err(ConnectError::Config)?;
        let context = config.nic.open().map_err(ConnectError::from)?;
        Self::connect_on(&context, config)
    }

    /// Connects through an open device, ignoring provider and device of [`ClientConfig::nic`].
    pub fn connect_on(context: &Context, config: ClientConfig) -> Result<Self, ClientError> {
        let target = ServerLocation::Tcp(config.server.clone());
        Self::connect_to(target, context, config)
    }

    /// Connects to a server in this process, ignoring provider, device and server of [`ClientConfig`].
    pub fn connect_in_process(
        connector: Connector,
        context: &Context,
        config: ClientConfig,
    ) -> Result<Self, ClientError> {
        Self::connect_to(ServerLocation::Local(connector), context, config)
    }

    fn connect_to(
        target: ServerLocation<RendezvousProtocol>,
        context: &Context,
        config: ClientConfig,
    ) -> Result<Self, ClientError> {
        config.check().map_err(ConnectError::Config)?;
        let port = target
            .port_and_gid(&config.nic, context)
            .map_err(ConnectError::from)?;
        let pd = context.alloc_pd()?;
        let mut client = Self {
            config,
            port,
            context: context.clone(),
            pd,
            session: None,
            design: Design::SpecS0,
            results: LaneResults::default(),
            first_number_of_server: 0,
            server_location: target,
        };
        client.open_session_with_retries()?;
        Ok(client)
    }

    /// Returns the design in use.
    pub fn design(&self) -> Design {
        self.design
    }

    /// Returns the first number of the server.
    pub fn first_number_of_server(&self) -> u64 {
        self.first_number_of_server
    }

    /// Gets numbers until the time is over or there are enough. The report includes failures.
    pub fn run(&mut self, until: RunLimit) -> ClientReport {
        self.run_unless(until, || false)
    }

    /// Does the same as [`run`](Self::run), and ends earlier if `should_end` returns true. The function is called now
    /// and then.
    pub fn run_unless(&mut self, until: RunLimit, should_end: fn() -> bool) -> ClientReport {
        let mut run = ClientRun::new(until, should_end, &self.config);
        self.results.number_set = crate::NumberSet::new();
        self.results.one_past_largest_number_at_start = self.results.one_past_largest_number;
        (
            self.results.received_number_count,
            self.results.not_increasing_number_count,
            self.results.discarded_answer_count,
        ) = (0, 0, 0);
        (
            self.results.refused_request_count,
            self.results.wrong_guess_count,
        ) = (0, 0);
        loop {
            let Some(session) = &mut self.session else {
                match self.open_session_with_retries() {
                    Ok(()) => continue,
                    Err(e) => {
                        run.failures.end_reason = Some(e.to_string());
                        break;
                    }
                }
            };
            let end = match &mut session.lane {
                AnyLane::Atomics(lane) => {
                    run.keep_window_full_until_end(&mut **lane, &mut self.results)
                }
                AnyLane::Rpc(lane) => {
                    run.keep_window_full_until_end(&mut **lane, &mut self.results)
                }
                AnyLane::Spread(lane) => {
                    run.keep_window_full_until_end(&mut **lane, &mut self.results)
                }
                AnyLane::Spec(lane) => {
                    run.keep_window_full_until_end(&mut **lane, &mut self.results)
                }
            };
            match end {
                SessionEnd::RunFinished => break,
                // The next session guesses right: see `lanes`, rule 4.
                SessionEnd::ContinueInNewSession => self.session = None,
                SessionEnd::NumbersUsedUp => {
                    run.failures.end_reason = Some("the numbers are used up".to_owned());
                    break;
                }
                SessionEnd::Failed { lost, why } => {
                    tracing::info!("{lost} requests lost, connecting again: {why}");
                    run.failures.lost += lost as u64;
                    run.failures.reconnects += 1;
                    // Dropping the session destroys its queue pairs and its connection: see `lanes`, rule 5.
                    self.session = None;
                    if run.is_finished(self.results.received_number_count) {
                        break;
                    }
                }
            }
        }
        self.take_report_of_run(run)
    }

    /// Gets exactly `count` numbers.
    pub fn take_numbers(&mut self, count: u64) -> Result<Vec<u64>, ClientError> {
        self.results.numbers_in_arrival_order = Some(Vec::new());
        let report = self.run(RunLimit::Count(count));
        let numbers = self
            .results
            .numbers_in_arrival_order
            .take()
            .unwrap_or_default();
        if report.received_number_count == count {
            return Ok(numbers);
        }
        let why = report
            .failures
            .end_reason
            .unwrap_or_else(|| "unknown".to_owned());
        Err(ClientError::TooFewNumbers {
            received: report.received_number_count,
            requested: count,
            why,
        })
    }

    fn take_report_of_run(&mut self, run: ClientRun) -> ClientReport {
        let seconds =
            Duration::from_nanos(run.last_answer_time_ns.saturating_sub(run.start_time_ns))
                .as_secs_f64();
        let mut numbers = std::mem::take(&mut self.results.number_set);
        let requests = self.results.received_number_count;
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let rate = if seconds > 0.0 {
            requests as f64 / seconds
        } else {
            0.0
        };
        ClientReport {
            design: self.design,
            window: self.config.window,
            received_number_count: requests,
            seconds,
            rate,
            latency: LatencySummary::from_histogram_with_mean(&run.latency.into_histogram()),
            doorbells: run.doorbell_count,
            wrong_guesses: self.results.wrong_guess_count,
            not_increasing_numbers: self.results.not_increasing_number_count,
            duplicates: numbers.duplicate_count(),
            failures: FailureCounts {
                discarded: self.results.discarded_answer_count,
                refused: self.results.refused_request_count,
                ..run.failures
            },
            number_set: numbers,
        }
    }

    /// Opens a session, and retries until the deadline while a retry can help.
    fn open_session_with_retries(&mut self) -> Result<(), ClientError> {
        let until = time::now() + self.config.reconnect_timeout();
        let opened = self.server_location.retry_until(
            until,
            || self.open_session(),
            ClientError::is_hopeless,
        );
        let (session, accepted) = opened?;
        if accepted.approximate_next_number < self.results.one_past_largest_number {
            return Err(ClientError::permanently_refused(format!(
                "it goes on at {}, but {} was given already: it was started again without its state file",
                accepted.approximate_next_number,
                self.results.one_past_largest_number - 1
            )));
        }
        self.design = accepted.design;
        self.first_number_of_server = accepted.first_number;
        self.session = Some(session);
        Ok(())
    }

    /// Opens a session: creates the client's queue pairs, and connects them by the server's answer.
    fn open_session(&self) -> Result<(Session, Accepted), ClientError> {
        let patience = self.config.reconnect_timeout().max(Duration::from_secs(1));
        let window = self.config.window;
        let opened = self
            .server_location
            .open_session(window, patience, |offer| self.prepare_hello(offer));
        let (prepared, accepted, connection) = opened?;
        let session = Session {
            lane: self.connect_lane(prepared, &accepted)?,
            _connection: connection,
        };
        Ok((session, accepted))
    }

    /// Checks the server's offer and prepares the client's queue pairs and its [`Hello`].
    fn prepare_hello(
        &self,
        offer: &ServerOffer,
    ) -> Result<(PreparedQueuePairs, Hello), ClientError> {
        let offered = offer.designs.first().copied();
        let offered = offered
            .ok_or_else(|| ClientError::permanently_refused("it serves no design".to_owned()))?;
        let design = self.config.design.unwrap_or(offered);
        if !offer.designs.contains(&design) {
            let reason = format!("it serves design {offered}, not {design}");
            return Err(ClientError::permanently_refused(reason));
        }
        let device = self.context.capabilities()?;
        design.check(device).map_err(ConnectError::from)?;
        let prepared = self.prepare_queue_pairs(design)?;
        let mut hello = Hello {
            version: RendezvousProtocol::VERSION,
            design,
            window: self.config.window,
            requests_rotate_over_workers: self.config.requests_rotate_over_workers
                && matches!(prepared, PreparedQueuePairs::Rpc(_)),
            rc_endpoint: None,
            uc_endpoint: None,
            ud_endpoint: None,
        };
        match &prepared {
            PreparedQueuePairs::Atomics(qp, _) => hello.rc_endpoint = Some(qp.endpoint()),
            PreparedQueuePairs::Rpc(c) => {
                (hello.uc_endpoint, hello.ud_endpoint) =
                    (Some(c.uc_endpoint()), Some(c.ud_endpoint()))
            }
            PreparedQueuePairs::Spec(c) => hello.ud_endpoint = Some(c.endpoint()),
        }
        Ok((prepared, hello))
    }

    /// Creates the client's queue pairs, without connecting them.
    fn prepare_queue_pairs(&self, design: Design) -> Result<PreparedQueuePairs, ClientError> {
        let (nic, window) = (self.port, self.config.window);
        let depth = u32::try_from(window.max(64)).unwrap_or(u32::MAX);
        // At most as many answers as requests are outstanding; small windows get extra RECVs for duplicates that a
        // network delivers. RECVs are used in turn, and each occupies two cache lines.
        let recv_depth = u32::try_from(window.max(8)).unwrap_or(u32::MAX);
        let port = BufferedUdQpConfig {
            port_num: nic.port_num,
            gid_index: Some(nic.gid_index),
            send_depth: (depth * 2).max(256),
            recv_depth,
            max_recv_payload_bytes: 8,
            max_send_payload_bytes: 16,
            ..BufferedUdQpConfig::default()
        };
        match design {
            Design::Atomics => {
                let cq = self.context.create_cq(depth + 4)?;
                let qp = self
                    .pd
                    .qp_builder::<Rc>(&cq, &cq)
                    .port_num(nic.port_num)
                    .gid_index(nic.gid_index)
                    .max_send_wr(depth + 4)
                    .max_recv_wr(1)
                    .max_inline_data_if_supported(0);
                Ok(PreparedQueuePairs::Atomics(qp.build()?, cq))
            }
            Design::SpecS0 => Ok(PreparedQueuePairs::Spec(datagram::Client::new(
                &self.pd, &port,
            )?)),
            Design::Rpc | Design::RpcBatch | Design::RpcBatchMq => Ok(PreparedQueuePairs::Rpc(
                herd::PreparedClient::new(&self.pd, 0, &port)?,
            )),
        }
    }

    fn connect_lane(
        &self,
        prepared: PreparedQueuePairs,
        accepted: &Accepted,
    ) -> Result<AnyLane, ClientError> {
        let window = self.config.window;
        let lacks =
            |what: &str| ConnectError::Config(format!("the server's answer lacks {what:?}"));
        Ok(match prepared {
            PreparedQueuePairs::Atomics(qp, cq) => {
                let remote = accepted
                    .counter_memory
                    .zip(accepted.limit_memory)
                    .ok_or_else(|| lacks("counter"))?;
                let results = self.pd.alloc((window + 1) * 8, Access::LOCAL_WRITE)?;
                let qp = qp.connect(&accepted.endpoint)?;
                AnyLane::Atomics(Box::new(AtomicsLane::new(
                    qp,
                    cq,
                    results,
                    window,
                    remote,
                    accepted.end_of_numbers,
                )?))
            }
            PreparedQueuePairs::Rpc(client) if self.config.requests_rotate_over_workers => {
                let layout = accepted
                    .request_region_layout
                    .ok_or_else(|| lacks("layout"))?;
                let endpoint = &accepted.endpoint;
                let client = client.connect_to_all_workers(
                    endpoint,
                    &accepted.request_slots_by_worker,
                    layout,
                )?;
                AnyLane::Spread(Box::new(SpreadLane::new(client, window)))
            }
            PreparedQueuePairs::Rpc(client) => {
                let (slots, layout) = accepted
                    .request_slots
                    .zip(accepted.request_region_layout)
                    .ok_or_else(|| lacks("slots"))?;
                let client = client.connect(&accepted.endpoint, slots, layout)?;
                AnyLane::Rpc(Box::new(RpcLane::new(client, window)))
            }
            PreparedQueuePairs::Spec(mut client) => {
                client.set_server_destination(
                    self.pd.ud_destination_from(self.port, &accepted.endpoint)?,
                );
                let ordered = !accepted.answers_may_be_reordered;
                AnyLane::Spec(Box::new(SpecLane::new(
                    client,
                    (window, ordered),
                    accepted.approximate_next_number,
                )))
            }
        })
    }
}

enum PreparedQueuePairs {
    Atomics(verbs::PreparedQp<Rc>, verbs::CompletionQueue),
    Rpc(herd::PreparedClient),
    Spec(datagram::Client),
}
