//! The server: its objects on a device, its clients, and the reservation of numbers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rpc::{BufferedUdQpConfig, RpcError, RpcWorkerCounts, datagram, herd};
use service::worker::lock;
use service::{
    ClientRefusal, ClientSlot, ClientsConnected, FirstFailure, FreeSlots, Protocol, ServerError,
    Service, qp::connect_responder_qp,
};
use verbs::{Access, CompletionQueue, Context, PortAndGidIndex, ProtectionDomain, QueuePair, Rc};

use crate::counter::Counter;
use crate::rendezvous::{Accepted, Hello, RendezvousProtocol, ServerOffer};
use crate::state::StateFile;
use crate::worker::{self, Command, RpcServer, WorkerShared};
use crate::{Design, ServerConfig, ServerStats};

/// The sequencer service that a [`Server`](crate::Server) runs.
#[derive(Debug)]
pub struct Sequencer {
    config: ServerConfig,
    port: PortAndGidIndex,
    pd: ProtectionDomain,
    /// The completion queue of queue pairs on which the server never posts.
    responder_cq: CompletionQueue,
    counter: Counter,
    workers: Vec<Arc<WorkerShared>>,
    free_client_slots: FreeSlots,
    /// The clients' queue pairs by client slot, for `atomics`.
    client_qps: Mutex<HashMap<u32, QueuePair<Rc>>>,
    /// The state file, until the reserver thread takes it.
    state_file: Mutex<Option<StateFile>>,
    stop_requested: AtomicBool,
}

/// The threads that run a server's workers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum WorkerThreads {
    /// The server starts its own threads.
    #[default]
    OwnThreads,
    /// The caller runs the workers. The server has no thread, so it cannot keep a state file.
    CallerThreads,
}

/// A client's resources at the server.
#[derive(Debug)]
pub struct ClientResources {
    sequencer: Arc<Sequencer>,
    slot: ClientSlot,
    worker_slots: Vec<ClientSlotAtWorker>,
}

/// The slot of a client at a worker.
#[derive(Debug, Clone, Copy)]
struct ClientSlotAtWorker {
    worker: usize,
    index: u32,
    /// The part of the client's window that the worker has reserved.
    reserved_window: usize,
}

impl Drop for ClientResources {
    fn drop(&mut self) {
        for slot in self.worker_slots.drain(..) {
            let ClientSlotAtWorker {
                worker,
                index,
                reserved_window: window,
            } = slot;
            let worker = &self.sequencer.workers[worker];
            worker.mailbox.send(Command::RemoveClient { index, window });
        }
        lock(&self.sequencer.client_qps).remove(&self.slot.index());
    }
}

impl Service for Sequencer {
    type Protocol = RendezvousProtocol;
    type Config = ServerConfig;
    type Environment = WorkerThreads;
    type Worker = RpcServer;
    type WorkerError = RpcError;
    type Session = ClientResources;
    type Stats = ServerStats;

    fn new(
        context: &Context,
        config: ServerConfig,
        runtime: WorkerThreads,
    ) -> Result<(Arc<Self>, Vec<RpcServer>), ServerError> {
        if runtime == WorkerThreads::CallerThreads && config.state_path.is_some() {
            return Err(ServerError::Config(
                "a server without threads keeps no state file".to_owned(),
            ));
        }
        let state = config.state_path.as_deref();
        let state = state.map(|path| StateFile::open(path, config.start));
        let mut state = state.transpose().map_err(ServerError::service_failed)?;
        let port = service::ServerConfig::port_and_gid(&config, context)?;
        let (start, limit) = first_number_and_limit(&config, state.as_mut())?;
        let pd = context.alloc_pd()?;
        let end = config.design.end_of_numbers();
        let counter = Counter::new(&pd, start, limit, end, config.reserve / 2)?;
        let engines = create_workers(&config, port, context, &pd)?;
        let (engines, workers): (Vec<_>, Vec<_>) = engines.into_iter().unzip();
        let sequencer = Arc::new(Self {
            responder_cq: context.create_cq(1)?,
            port,
            pd,
            counter,
            workers,
            free_client_slots: FreeSlots::new(config.max_clients),
            client_qps: Mutex::default(),
            state_file: Mutex::new(state),
            stop_requested: AtomicBool::new(false),
            config,
        });
        Ok((sequencer, engines))
    }

    fn config(&self) -> &ServerConfig {
        &self.config
    }

    fn server_offer(&self) -> ServerOffer {
        ServerOffer {
            protocol: RendezvousProtocol::NAME.to_owned(),
            version: RendezvousProtocol::VERSION,
            designs: vec![self.config.design],
            max_window: self.config.max_window,
        }
    }

    fn accept(
        self: &Arc<Self>,
        hello: &Hello,
    ) -> Result<(Accepted, ClientResources), ClientRefusal> {
        let design = self.config.design;
        if hello.design != design {
            return Err(ClientRefusal::permanent(format!(
                "this server serves design {design}, not {}",
                hello.design
            )));
        }
        if self.counter.next_number() >= self.counter.end_of_numbers() {
            return Err(ClientRefusal::permanent(format!(
                "the numbers are used up: design {design} gives none from {} on",
                self.counter.end_of_numbers()
            )));
        }
        let full = || {
            let max = self.config.max_clients;
            ClientRefusal::temporary(format!("this server has its {max} clients already"))
        };
        let mut session = ClientResources {
            sequencer: Arc::clone(self),
            slot: self.free_client_slots.take_free_slot().ok_or_else(full)?,
            worker_slots: Vec::new(),
        };
        let accepted = match design {
            Design::Atomics => self.admit_atomics(hello, session.slot.index())?,
            Design::SpecS0 => self.admit_spec(hello, &mut session.worker_slots)?,
            Design::Rpc | Design::RpcBatch | Design::RpcBatchMq => {
                self.admit_herd(hello, &mut session.worker_slots)?
            }
        };
        Ok((accepted, session))
    }

    fn run_worker(&self, index: usize, engine: RpcServer) -> Result<(), RpcError> {
        let speculate = self.config.design == Design::SpecS0;
        worker::run_until_stop_command(engine, &self.workers[index], &self.counter, speculate)
    }

    fn background_thread_name_and_body(
        self: &Arc<Self>,
        failure: &FirstFailure,
    ) -> Option<(String, Box<dyn FnOnce() + Send>)> {
        let state = lock(&self.state_file).take();
        if state.is_none() && self.config.design != Design::Atomics {
            return None;
        }
        let (sequencer, failure) = (Arc::clone(self), failure.clone());
        let work = move || sequencer.keep_limit_ahead_of_counter(state, &failure);
        Some(("reserver".to_owned(), Box::new(work)))
    }

    fn stats(&self, clients: ClientsConnected) -> ServerStats {
        let (start, next) = (self.counter.first_number(), self.counter.next_number());
        let mut counts = RpcWorkerCounts::default();
        for worker in &self.workers {
            counts.add(&worker.mailbox.worker_counts());
        }
        let atomics = self.config.design == Design::Atomics;
        ServerStats {
            requests: if atomics {
                next.saturating_sub(start)
            } else {
                counts.answered_requests
            },
            doorbells: counts.doorbells,
            answer_postlists_by_length: counts.postlists_by_length,
            datagrams_from_unknown_senders: counts.requests_from_unknown_clients,
            connected_clients: clients.now,
            clients_total: clients.ever,
            first_number: start,
            next_number: next,
        }
    }

    fn stop_offering(&self) {
        self.stop_requested.store(true, Ordering::Release);
        self.counter.stop_waiting_for_limit();
    }

    fn stop(&self) {
        for worker in &self.workers {
            worker.mailbox.send(Command::Stop);
        }
    }
}

/// Returns the first number and the initial limit. The state file covers the limit before any number is given.
fn first_number_and_limit(
    config: &ServerConfig,
    state: Option<&mut StateFile>,
) -> Result<(u64, u64), ServerError> {
    let (design, end) = (config.design, config.design.end_of_numbers());
    let start = state
        .as_ref()
        .map_or(config.start, |state| state.lowest_unreserved_number());
    if start > end {
        return Err(ServerError::Config(format!(
            "numbers are used up: the state file says {start}, design {design} gives numbers below {end}"
        )));
    }
    let Some(state) = state else {
        return Ok((start, end));
    };
    let limit = start.saturating_add(config.reserve).min(end);
    state
        .reserve_below(limit)
        .map_err(ServerError::service_failed)?;
    Ok((start, limit))
}

/// Creates the workers of a design, and the shared part of each.
fn create_workers(
    config: &ServerConfig,
    port: PortAndGidIndex,
    context: &Context,
    pd: &ProtectionDomain,
) -> Result<Vec<(RpcServer, Arc<WorkerShared>)>, ServerError> {
    let max_qp_wr = context.query_device()?.max_qp_wr;
    let base = BufferedUdQpConfig {
        port_num: port.port_num,
        gid_index: Some(port.gid_index),
        send_depth: config.send_depth.min(max_qp_wr),
        ..BufferedUdQpConfig::default()
    };
    let workers = match config.design {
        Design::Atomics => 0,
        _ => config.workers,
    };
    let make = |_| match config.design {
        Design::SpecS0 => {
            let channel = context.create_comp_channel()?;
            let recv_depth = config.recv_depth.min(max_qp_wr);
            let port = BufferedUdQpConfig {
                recv_depth,
                channel: Some(channel),
                ..base.clone()
            };
            create_datagram_worker(config, pd, &port)
        }
        _ => create_herd_worker(config, pd, &base),
    };
    (0..workers).map(make).collect()
}

fn create_datagram_worker(
    config: &ServerConfig,
    pd: &ProtectionDomain,
    port: &BufferedUdQpConfig,
) -> Result<(RpcServer, Arc<WorkerShared>), ServerError> {
    let answers = config.max_answers_per_doorbell.unwrap_or(config.batch);
    let server = |_| {
        let server = datagram::Server::new(pd, config.batch, port)?;
        if config.rotates_answer_qps {
            let server = server.with_answer_qps(pd, config.queues_per_worker(), port)?;
            return Ok(server.with_max_answers_per_doorbell(answers));
        }
        Ok(server.with_max_answers_per_doorbell(answers))
    };
    let receiving = if config.rotates_answer_qps {
        1
    } else {
        config.queues_per_worker()
    };
    let servers = (0..receiving).map(server);
    let servers: Result<Vec<_>, RpcError> = servers.collect();
    let servers = servers.map_err(ServerError::service_failed)?;
    let endpoints = servers.iter().map(datagram::Server::endpoint).collect();
    let depth = port.recv_depth as usize;
    let shared = WorkerShared::new(endpoints, None, config.max_clients, depth)?;
    let Some(channel) = port.channel.clone() else {
        return Err(ServerError::Config(
            "datagrams without a channel".to_owned(),
        ));
    };
    Ok((RpcServer::Datagram(servers, channel), Arc::new(shared)))
}

fn create_herd_worker(
    config: &ServerConfig,
    pd: &ProtectionDomain,
    port: &BufferedUdQpConfig,
) -> Result<(RpcServer, Arc<WorkerShared>), ServerError> {
    let doorbells = herd::BatchPolicy {
        max_batch: match config.design {
            Design::Rpc => 1,
            _ => config.batch,
        },
        answer_qps: config.queues_per_worker(),
        region_scan: config.request_region_scan,
        answer_qps_per_batch: config.qps_per_answer_batch,
    };
    let window = u32::try_from(config.max_window.next_power_of_two()).unwrap_or(u32::MAX);
    let layout = herd::RequestRegionLayout {
        slots_per_client: window,
        max_payload_bytes: 0,
    };
    let server = herd::Server::new(pd, layout, config.max_clients, doorbells, port);
    let server = server.map_err(ServerError::service_failed)?;
    let region = Some((server.request_region(), layout));
    let shared = WorkerShared::new(Vec::new(), region, config.max_clients, usize::MAX)?;
    Ok((RpcServer::Herd(Box::new(server)), Arc::new(shared)))
}

impl Sequencer {
    /// Returns the next number.
    pub fn next_number(&self) -> u64 {
        self.counter.next_number()
    }

    /// Keeps the limit ahead of the counter, and ends `atomics` when the numbers are used up.
    fn keep_limit_ahead_of_counter(&self, mut state: Option<StateFile>, failure: &FirstFailure) {
        self.counter.set_reserver_thread();
        let atomics = self.config.design == Design::Atomics;
        let end = self.counter.end_of_numbers();
        while !self.stop_requested.load(Ordering::Acquire) {
            let (next, limit) = (self.counter.next_number(), self.counter.number_limit());
            if atomics && next >= end {
                for rc in lock(&self.client_qps).values() {
                    // The queue pair may already be in ERR.
                    let _ = rc.move_to_error_state();
                }
            }
            if let Some(state) = &mut state
                && limit < end
                && limit.saturating_sub(next) < self.config.reserve / 2
            {
                let target = limit.max(next).saturating_add(self.config.reserve).min(end);
                match state.reserve_below(target) {
                    Ok(()) => self.counter.raise_limit(target),
                    Err(e) => {
                        failure.record_if_first(format!("no more numbers can be reserved: {e}"));
                        std::thread::park_timeout(Duration::from_millis(100));
                    }
                }
                continue;
            }
            if atomics && !lock(&self.client_qps).is_empty() {
                // A remote atomic causes no event, so the counter is polled.
                std::thread::park_timeout(Duration::from_millis(2));
            } else {
                std::thread::park();
            }
        }
    }

    fn accepted_message_without_memory(&self, endpoint: verbs::QpEndpoint) -> Accepted {
        Accepted {
            design: self.config.design,
            first_number: self.counter.first_number(),
            approximate_next_number: self.counter.next_number(),
            end_of_numbers: self.counter.end_of_numbers(),
            endpoint,
            counter_memory: None,
            limit_memory: None,
            request_slots: None,
            request_slots_by_worker: Vec::new(),
            answers_may_be_reordered: self.config.rotates_answer_qps,
            request_region_layout: None,
        }
    }

    fn admit_atomics(&self, hello: &Hello, slot: u32) -> Result<Accepted, ClientRefusal> {
        let peer = hello
            .rc_endpoint
            .ok_or_else(|| missing_endpoint_refusal("rc"))?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let (endpoint, qp) =
            connect_responder_qp(&self.pd, &self.responder_cq, self.port, access, &peer)?;
        lock(&self.client_qps).insert(slot, qp);
        // The reserver polls the counter while clients are connected.
        self.counter.wake_reserver();
        let (counter, limit) = (
            self.counter.remote_memory_of_next_number(),
            self.counter.remote_memory_of_limit(),
        );
        Ok(Accepted {
            counter_memory: Some(counter),
            limit_memory: Some(limit),
            ..self.accepted_message_without_memory(endpoint)
        })
    }

    fn admit_spec(
        &self,
        hello: &Hello,
        worker_slots: &mut Vec<ClientSlotAtWorker>,
    ) -> Result<Accepted, ClientRefusal> {
        let peer = hello
            .ud_endpoint
            .ok_or_else(|| missing_endpoint_refusal("ud"))?;
        let to = self.pd.ud_destination_from(self.port, &peer);
        let to = to.map_err(ClientRefusal::temporary)?;
        let (worker, index) = self.take_slot_at_least_busy_worker(hello.window, worker_slots)?;
        let added = worker
            .mailbox
            .send_and_wait(|done| Command::AddDatagramClient { index, to, done });
        added.map_err(ClientRefusal::temporary)?;
        let queue = index as usize % worker.endpoints.len().max(1);
        let endpoint = worker.endpoints.get(queue);
        let endpoint =
            endpoint.ok_or_else(|| ClientRefusal::temporary("the worker has no endpoint"))?;
        Ok(self.accepted_message_without_memory(*endpoint))
    }

    fn admit_herd(
        &self,
        hello: &Hello,
        worker_slots: &mut Vec<ClientSlotAtWorker>,
    ) -> Result<Accepted, ClientRefusal> {
        let (uc, ud) = (
            hello
                .uc_endpoint
                .ok_or_else(|| missing_endpoint_refusal("uc"))?,
            hello
                .ud_endpoint
                .ok_or_else(|| missing_endpoint_refusal("ud"))?,
        );
        let connected = herd::connect_client(&self.pd, self.port, &self.responder_cq, (&uc, &ud));
        let herd::ConnectedClient {
            server_endpoint: endpoint,
            qp,
            client_destination: to,
        } = connected.map_err(ClientRefusal::temporary)?;
        let qp = Arc::new(qp);
        let window = u32::try_from(hello.window.next_power_of_two()).unwrap_or(u32::MAX);
        let add = |worker: &WorkerShared, index, tag| {
            let slots = worker.request_region.and_then(|(region, layout)| {
                let slots = herd::client_region(&region, &layout, index)?;
                Some((
                    slots,
                    herd::RequestRegionLayout {
                        slots_per_client: window,
                        ..layout
                    },
                ))
            });
            let found = slots
                .ok_or_else(|| ClientRefusal::temporary("the worker has no request region"))?;
            let added = worker.mailbox.send_and_wait(|done| Command::AddHerdClient {
                index,
                qp: Arc::clone(&qp),
                to: to.clone(),
                slots: (window, tag),
                done,
            });
            added.map_err(ClientRefusal::temporary)?;
            Ok::<_, ClientRefusal>(found)
        };
        let mut accepted = self.accepted_message_without_memory(endpoint);
        if hello.requests_rotate_over_workers {
            for number in 0..self.workers.len() {
                let tag = herd::WorkerTag::of_worker(number);
                let tag = tag.ok_or_else(|| ClientRefusal::permanent("it has too many workers"))?;
                let (worker, index) = self.take_slot_at(number, 0, worker_slots)?;
                let (slots, layout) = add(worker, index, tag)?;
                accepted.request_slots_by_worker.push(slots);
                accepted.request_region_layout = Some(layout);
            }
        } else {
            let (worker, index) = self.take_slot_at_least_busy_worker(0, worker_slots)?;
            let (slots, layout) = add(worker, index, herd::WorkerTag::SINGLE_WORKER)?;
            (accepted.request_slots, accepted.request_region_layout) = (Some(slots), Some(layout));
        }
        Ok(accepted)
    }

    /// Takes a slot at the worker with the fewest clients. Returns the worker and the client's index there.
    fn take_slot_at_least_busy_worker(
        &self,
        window: usize,
        worker_slots: &mut Vec<ClientSlotAtWorker>,
    ) -> Result<(&WorkerShared, u32), ClientRefusal> {
        let fits = |w: &Arc<WorkerShared>| {
            let p = lock(&w.client_slots);
            p.has_room(window).then_some(p.client_count)
        };
        let best = (0..self.workers.len())
            .filter_map(|i| Some((fits(&self.workers[i])?, i)))
            .min();
        let (_, number) = best.ok_or_else(no_room_refusal)?;
        self.take_slot_at(number, window, worker_slots)
    }

    /// Takes a slot at this worker.
    fn take_slot_at(
        &self,
        number: usize,
        window: usize,
        worker_slots: &mut Vec<ClientSlotAtWorker>,
    ) -> Result<(&WorkerShared, u32), ClientRefusal> {
        let worker = &self.workers[number];
        let index = lock(&worker.client_slots)
            .reserve_client_index(window)
            .ok_or_else(no_room_refusal)?;
        worker_slots.push(ClientSlotAtWorker {
            worker: number,
            index,
            reserved_window: window,
        });
        Ok((worker, index))
    }
}

fn no_room_refusal() -> ClientRefusal {
    ClientRefusal::temporary(
        "no worker has room for the window: ask for a smaller one, or give the server more workers or a larger \
         recv-depth",
    )
}

fn missing_endpoint_refusal(what: &str) -> ClientRefusal {
    ClientRefusal::permanent(format!("the message lacks the endpoint {what:?}"))
}
